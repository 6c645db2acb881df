"""Plots: well-formed whatever they are given, nothing outside the paper, every name told, nothing finite lost."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interbasin.errors import DataError
from interbasin.outcome.plots import bar_chart, heat_map, line_chart, scatter_chart
from interbasin.outcome.plots.drawing import (
    COLOURS,
    in_two,
    linear,
    logarithmic,
    shorten,
    width_of,
    without_common_start,
)

SVG = "{http://www.w3.org/2000/svg}"
HALF = [place / 10 for place in range(11)]


def parsed(svg: str) -> ElementTree.Element:
    """The plot, after checking that it is XML, loads nothing, and draws nothing outside its paper."""
    root = ElementTree.fromstring(svg)
    assert root.tag == SVG + "svg" and "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for one in root.iter():
        for key in ("x", "x1", "x2", "cx"):
            if key in one.attrib:
                assert -0.01 <= float(one.attrib[key]) <= width + 0.01, one.attrib
        for key in ("y", "y1", "y2", "cy"):
            if key in one.attrib:
                assert -0.01 <= float(one.attrib[key]) <= height + 0.01, one.attrib
        for pair in one.get("points", "").split():
            x, y = map(float, pair.split(","))
            assert -0.01 <= x <= width + 0.01 and -0.01 <= y <= height + 0.01
        assert "nan" not in str(one.attrib) and "inf" not in str(one.attrib)
    return root


def words(root: ElementTree.Element) -> list[str]:
    return ["".join(one.itertext()) for one in root.iter(SVG + "text")]


def all_of(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return list(root.iter(SVG + name))


def test_a_line_chart_has_a_curve_a_name_and_a_colour_for_each_series():
    series = {f"method {place}": (HALF, [place + one for one in HALF]) for place in range(10)}
    root = parsed(line_chart(series, title="Loss", x_label="t", y_label="loss", note="two pairs"))
    curves = all_of(root, "polyline")
    assert len(curves) == 10 and {"Loss", "t", "loss", "two pairs", *series} <= set(words(root))
    # Where colours come again, the dashes are others.
    looks = {(one.get("stroke"), one.get("stroke-dasharray")) for one in curves}
    assert len(looks) == 10 and {colour for colour, _ in looks} == set(COLOURS)


def test_a_curve_goes_up_where_its_numbers_do():
    root = parsed(line_chart({"a": ([0.0, 1.0, 2.0], [0.0, 10.0, 5.0])}))
    (curve,) = all_of(root, "polyline")
    points = [tuple(map(float, pair.split(","))) for pair in curve.get("points", "").split()]
    assert points[0][0] < points[1][0] < points[2][0] and points[1][1] < points[2][1] < points[0][1]
    assert points[2][1] - points[1][1] == pytest.approx(points[0][1] - points[2][1], abs=0.02)


def test_a_curve_is_broken_where_a_number_is_not_finite():
    root = parsed(line_chart({"a": (HALF, [1, 2, math.nan, 3, 4, math.inf, 5, math.nan, 1, 1, 1e308])}))
    assert [len(one.get("points", "").split()) for one in all_of(root, "polyline")] == [2, 2, 2]
    assert len(all_of(root, "circle")) >= 1  # the point that stands alone


def test_a_curve_without_finite_numbers_says_so():
    assert "no finite values" in words(parsed(line_chart({"a": ([0, 1], [math.nan, math.nan])})))
    assert "no finite values" in words(parsed(line_chart({"a": ([], [])})))
    assert "no finite values" in words(parsed(line_chart({"a": ([0, 1], [0, -1])}, log=True)))


def test_one_curve_needs_no_legend():
    assert "a" not in words(parsed(line_chart({"a": ([0, 1], [0, 1])})))


def test_arrays_and_tensors_are_drawn_like_lists():
    lists = line_chart({"a": (HALF, HALF)})
    assert line_chart({"a": (np.array(HALF), torch.tensor(HALF, dtype=torch.float64))}) == lists


def test_names_are_escaped_and_long_ones_whole_where_the_mouse_rests():
    wicked, long = "<script>alert('&')</script>", "encoder." * 40
    root = parsed(line_chart({wicked: (HALF, HALF), long: (HALF, HALF)}, title='"<&>"\x00\x1b'))
    assert all_of(root, "script") == [] and wicked in words(root) and '"<&>"\\x00\\x1b' in words(root)
    assert long in [one.text for one in all_of(root, "title")]


def test_bars_are_as_long_as_their_numbers():
    root = parsed(bar_chart({"fc1": 1.0, "fc2": 2.0, "fc3": math.nan, "fc4": 0.0}, title="Error", x_label="error"))
    bars = [one for one in all_of(root, "rect") if one.find(SVG + "title") is not None]
    lengths = [float(one.get("width", "")) for one in bars]
    assert lengths[1] == pytest.approx(2 * lengths[0], abs=0.02) and lengths[2] == 0 and len(lengths) == 3
    assert {"fc1", "fc2", "fc3", "fc4", "1", "2", "nan", "0", "Error", "error"} <= set(words(root))


def test_bars_of_several_methods_share_rows_and_a_row_may_lack_one():
    root = parsed(bar_chart({"before": {"fc1": 1.0, "fc2": 2.0}, "after": {"fc2": 0.5}}))
    assert words(root).count("fc2") == 1 and {"before", "after"} <= set(words(root))
    assert len([one for one in all_of(root, "rect") if one.find(SVG + "title") is not None]) == 3


def test_bars_may_be_negative_or_on_decades():
    parsed(bar_chart({"a": -1.0, "b": 2.0}))
    root = parsed(bar_chart({"a": 1e-6, "b": 1e-2, "c": 0.0, "d": -1.0}, log=True))
    widths = [float(one.get("width", "")) for one in all_of(root, "rect") if one.find(SVG + "title") is not None]
    assert len(widths) == 2 and 0 < widths[0] < widths[1]
    assert "no finite values" in words(parsed(bar_chart({"a": math.nan})))


def test_bars_have_whiskers_and_a_baseline():
    bars, ends = {"keep": 0.4, "a": 0.6, "b": 0.2, "c": 0.5}, {"keep": (0.3, 0.5), "a": (0.5, 0.9), "b": (-0.1, 0.3)}
    root = parsed(bar_chart(bars, whiskers={**ends, "c": (math.nan, 1.0)}, baseline="keep"))
    drawn = [one for one in all_of(root, "line") if one.get("class") == "ib-whisker"]
    across = [(float(one.get("x1", "")), float(one.get("x2", ""))) for one in drawn if one.get("y1") == one.get("y2")]
    assert len(drawn) == 3 * len(across) == 9
    assert across[1][1] - across[1][0] == pytest.approx(2 * (across[0][1] - across[0][0]), abs=0.05)
    shown = [one for one in all_of(root, "rect") if one.find(SVG + "title") is not None]
    assert shown[0].find(SVG + "title").text == "0.4 [0.3, 0.5]" and shown[3].find(SVG + "title").text == "0.5"
    # The baseline is of another colour, and a dashed line goes down from its end.
    assert shown[0].get("fill") != shown[1].get("fill") == shown[2].get("fill")
    (line,) = [one for one in all_of(root, "line") if one.get("class") == "ib-baseline"]
    assert line.get("stroke-dasharray") and line.get("x1") == line.get("x2")
    assert float(line.get("x1", "")) == pytest.approx(
        float(shown[0].get("x", "")) + float(shown[0].get("width", "")), abs=0.02
    )
    both = bar_chart({"m": bars, "n": {"a": 0.1}}, whiskers={"n": {"a": (0.0, 0.2)}}, baseline="keep", log=True)
    assert both.count('class="ib-whisker"') == 3 and both.count('class="ib-baseline"') == 1


def test_long_names_of_bars_take_two_lines_where_they_have_blanks():
    name = "translate, re-embed the top 100, procrustes, standardised"
    root = parsed(bar_chart({name: 0.5, "keep the old model": 0.4}))
    shown = words(root)
    (two,) = [shown[place : place + 2] for place in range(len(shown)) if shown[place].startswith("translate")]
    assert " ".join(two) == name and not any("…" in one for one in shown)
    rows = [one for one in all_of(root, "text") if one.text in (*two, "keep the old model")]
    heights = [float(one.get("y", "")) for one in rows]
    assert heights[1] - heights[0] >= 13 and heights[2] - heights[1] >= 20
    assert in_two("a" * 200, 100) == ["a" * 200] and in_two("short one", 340) == ["short one"]


def test_labels_stand_beside_points_and_never_on_one_another():
    series = {"a": ([1, 2, 3], [1, 2, 3]), "b": ([0, 4], [0, 0])}
    root = parsed(line_chart(series, labels={"a": ["first", "second", "third"]}))
    shown = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"first", "second", "third"} <= set(shown)
    # Of points that lie on one another as many have a label as there is room for.
    crowd = {"a": ([1.0] * 40, [1.0] * 40)}
    root = parsed(line_chart(crowd, labels={"a": [f"label{number}" for number in range(40)]}))
    words = [element for element in root.iter() if (element.text or "").startswith("label")]
    places = [(float(word.get("x")), float(word.get("y"))) for word in words]
    assert 1 < len(words) < 10 and len(set(places)) == len(places)
    with pytest.raises(DataError, match="2 labels for the curve 'a', which has 3 points"):
        line_chart(series, labels={"a": ["first", "second"]})
    with pytest.raises(DataError, match="1 labels for the curve 'c'"):
        line_chart(series, labels={"c": ["first"]})


def test_a_band_lies_around_its_curve():
    ends = ([0.0, math.nan, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0])
    root = parsed(line_chart({"a": ([0, 1, 2, 3], [1, 2, 3, 4]), "b": ([0, 3], [1, 1])}, bands={"a": ends}))
    shaded = [one for one in all_of(root, "polygon") if one.get("class") == "ib-band"]
    assert [len(one.get("points", "").split()) for one in shaded] == [2, 4]  # broken where an end is not known
    assert {one.get("fill") for one in shaded} == {COLOURS[0]} and words(root).count("a") == 1
    (curve,) = [one for one in all_of(root, "polyline") if one.get("stroke") == COLOURS[0]]
    upper, lower = (float(shaded[1].get("points", "").split()[place].split(",")[1]) for place in (0, 3))
    assert upper < float(curve.get("points", "").split()[2].split(",")[1]) < lower
    parsed(line_chart({"a": ([0, 1], [1, 2])}, bands={"a": ([-1.0, 0.5], [2.0, 3.0])}, log=True))


def test_positions_may_be_on_decades_with_ticks_where_they_are_asked_for():
    root = parsed(
        line_chart({"a": ([0, 100, 1000, 10_000], [9, 1, 2, 3])}, log_x=True, x_ticks=[100, 1000, 1040, 10_000])
    )
    (curve,) = all_of(root, "polyline")
    across = [float(pair.split(",")[0]) for pair in curve.get("points", "").split()]
    assert len(across) == 3 and across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.02)
    # Of labels that would overlap, the later stays.
    shown = words(root)
    assert {"100", "1,040", "10,000"} <= set(shown) and "1,000" not in shown
    assert "0.5" in words(parsed(line_chart({"a": ([0, 1], [0, 1])}, x_ticks=[-1, 0, 0.5, 1, 2])))


def test_a_scatter_chart_shows_all_groups_in_one_scale():
    points = np.random.default_rng(0).normal(size=(20, 2))
    root = parsed(scatter_chart({"A": points, "B": torch.tensor(points) + 5}, title="PCA", x_label="1", y_label="2"))
    assert {"A", "B", "PCA"} <= set(words(root)) and len(all_of(root, "circle")) == 21  # one is the legend's
    square = parsed(scatter_chart({"A": [[0, 0], [1, 0], [0, 1]]}))
    a, b, c = ((float(one.get("cx", "")), float(one.get("cy", ""))) for one in all_of(square, "circle"))
    assert b[0] - a[0] == pytest.approx(a[1] - c[1], abs=0.03)


def test_of_many_points_some_are_shown_and_it_says_so():
    root = parsed(scatter_chart({"A": np.zeros((4000, 2)), "B": np.ones((10, 2))}, note="fc2"))
    assert "fc2; 1,334 of the 4,000 points of A are shown" in words(root)
    assert len(all_of(root, "circle")) == 1334 + 1


def test_a_heat_map_has_a_cell_for_each_number_and_its_colours_grow_lighter():
    root = parsed(heat_map([[0.0, 0.5], [1.0, math.nan]], rows=["a", "b"], columns=["c", "d"], title="CKA"))
    cells = [one for one in all_of(root, "rect") if one.find(SVG + "title") is not None]
    assert [one.find(SVG + "title").text for one in cells] == ["a, c: 0", "a, d: 0.5", "b, c: 1", "b, d: nan"]
    light = [sum(int(one.get("fill", "")[place : place + 2], 16) for place in (1, 3, 5)) for one in cells]
    assert light[0] < light[1] < light[2] and cells[3].get("class") == "ib-none"
    assert {"a", "b", "c", "d", "0.50", "–", "CKA"} <= set(words(root))


def test_a_large_heat_map_leaves_names_out_that_would_overlap():
    names = [f"encoder.layers.{place}.linear1" for place in range(60)]
    root = parsed(heat_map(np.eye(60), rows=names, columns=names, x_label="B", y_label="A", low=0, high=1))
    shown = [one for one in words(root) if one.startswith("encoder")]
    assert 20 <= len(shown) <= 120 and len(all_of(root, "rect")) == 3600 + 1 + 65


def test_long_names_of_a_heat_map_lose_what_they_all_begin_with():
    names = [f"base.model.transformer.encoder.layers.{place}.attention.linear1" for place in range(3)]
    root = parsed(heat_map(np.eye(3), rows=names, columns=[*names[:2], "base.head"]))
    shown = set(words(root))
    assert {"0.attention.linear1", "1.attention.linear1", "2.attention.linear1", "head"} <= shown
    assert f"{names[0]}, base.head: 0" in [one.text for one in root.iter(SVG + "title")]
    assert without_common_start(["a", "a.b"]) == ["a", "a.b"] and without_common_start(["a.b"]) == ["b"]


numbers = st.floats() | st.floats(-1e3, 1e3) | st.sampled_from([0.0, -0.0, 1e-320, 1e300, 5e-324])


@given(
    st.dictionaries(st.text(max_size=9), st.lists(st.tuples(numbers, numbers), max_size=9), min_size=1, max_size=25),
    st.text(),
    st.booleans(),
)
def test_whatever_is_drawn_is_well_formed(groups, title, log):
    series = {name: ([x for x, _ in one], [y for _, y in one]) for name, one in groups.items()}
    parsed(line_chart(series, log=log, log_x=log))
    parsed(line_chart(series, log=log, bands={name: (y, x) for name, (x, y) in series.items()}, x_ticks=[0, 1, 5]))
    parsed(scatter_chart(groups, title=title, x_label=title, y_label=title, note=title))
    bars = {name: dict(zip(map(str, range(9)), (x for x, _ in one), strict=False)) for name, one in groups.items()}
    if any(bars.values()):
        parsed(bar_chart(bars, title=title, log=log))
        whiskers = {name: dict(zip(map(str, range(9)), one, strict=False)) for name, one in groups.items()}
        parsed(bar_chart(bars, log=log, whiskers=whiskers, baseline=next(row for one in bars.values() for row in one)))
    rows = [[x, y] for one in groups.values() for x, y in one]
    if rows:
        parsed(heat_map(rows, title=title))


@given(st.lists(st.floats(-1e200, 1e200), min_size=1), st.booleans())
def test_an_axis_holds_its_numbers_and_its_ticks_differ(values, zero):
    scale = linear(values, zero=zero)
    assert all(-1e-9 <= scale.share(one) <= 1 + 1e-9 for one in values) and scale.low < scale.high
    assert 2 <= len(scale.ticks) <= 12 and all(-1e-6 <= scale.share(tick) <= 1 + 1e-6 for tick in scale.ticks)
    assert not zero or scale.low <= 0 <= scale.high
    assert len(set(scale.labels)) == len(scale.ticks)


@given(st.lists(st.floats(1e-290, 1e279), min_size=1))
def test_an_axis_of_ratios_holds_its_numbers(values):
    scale = logarithmic(values)
    assert all(-1e-9 <= scale.share(one) <= 1 + 1e-9 for one in values)
    assert 2 <= len(scale.ticks) <= 12 and len(set(scale.labels)) == len(scale.ticks)
    assert all(-1e-6 <= scale.share(tick) <= 1 + 1e-6 for tick in scale.ticks)


def test_numbers_near_the_smallest_are_drawn_as_zero():
    parsed(line_chart({"a": ([0.0, 5e-324], [5e-324, 1e-310])}))
    parsed(bar_chart({"a": 5e-324}, log=True))
    parsed(heat_map([[5e-324, 0.0]]))


def test_ticks_read_as_people_write_numbers():
    assert linear([0, 1], around=0).labels == ("0.0", "0.2", "0.4", "0.6", "0.8", "1.0")
    assert linear([-10, 10], around=0).labels == ("−10", "−5", "0", "5", "10")
    assert linear([0, 1e-5], around=0).labels[:2] == ("0", "2.0e−6")
    assert linear([0, 2e6], around=0).labels == ("0", "5.0e5", "1.0e6", "1.5e6", "2.0e6")
    assert logarithmic([0.1, 2]).labels == ("0.1", "0.2", "0.5", "1", "2")
    assert logarithmic([1e-6, 1]).labels[0] == "10⁻⁶"
    assert logarithmic([1e-7, 2e-6]).labels == ("10⁻⁷", "2·10⁻⁷", "5·10⁻⁷", "10⁻⁶", "2·10⁻⁶")


@given(st.text(), st.floats(0, 500))
def test_shortened_words_fit_and_keep_both_ends(text, most):
    short = shorten(text, most)
    assert short == text or short == "…" or width_of(short) <= most
    if short not in (text, "…"):
        before, after = re.split("…", short, maxsplit=1) if short.count("…") == 1 else (short[0], short[-1])
        assert text.startswith(before) and text.endswith(after)


@pytest.mark.parametrize(
    ("bars", "whiskers"),
    [({"a": 1.0}, {"method": {"a": (0, 2), "b": (0, 2)}}), ({"method": {"a": 1.0}}, {"a": (0.0, 2.0)})],
)
def test_whiskers_of_another_form_than_the_bars_are_refused(bars, whiskers):
    with pytest.raises(DataError, match="form of its bars"):
        bar_chart(bars, whiskers=whiskers)
