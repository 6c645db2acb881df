"""A translator recovers planted maps, is the same after a file, and follows scikit-learn's conventions."""

from __future__ import annotations

import json
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import SkipTestWarning
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from tests.records import seal_document
from tests.test_storage import layout_of, retensored

import interbasin as ib
from interbasin.errors import DataError, FileError, FitError
from interbasin.jobs.translate import translation
from interbasin.jobs.translate.methods import CANDIDATES, ridge_by_leave_one_out

ALL = ["relative-projection", "procrustes", "ridge", "affine", "cca", "auto"]
# What scikit-learn asks and a translator does not do.
EXCUSED = {
    "check_dtype_object": "an array of dictionaries is a DataError here, which is a ValueError and not a TypeError",
}
RELATIVE_EXCUSED = {
    name: "cosines with anchors have nothing to be scored against"
    for name in ("check_fit_score_takes_y", "check_n_features_in_after_fitting", "check_pipeline_consistency")
}


def pairs(
    rows: int = 300, source: int = 12, target: int = 12, noise: float = 0.0, seed: int = 0, scale: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one space, and the same turned (into more dimensions, or fewer), scaled and moved."""
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(rows, source)) * np.linspace(1, 2, source) + 3
    turn = np.linalg.qr(draws.normal(size=(max(source, target), max(source, target))))[0][:source, :target]
    return x, scale * (x @ turn) - 5 + noise * draws.normal(size=(rows, target))


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("target", [12, 17])
def test_a_planted_isometry_is_recovered(method: str, target: int) -> None:
    x, y = pairs(target=target)
    translator = ib.Translator(method=method).fit(x[:200], y[:200])
    found, wanted = translator.transform(x[200:]), y[200:]
    if method == "relative-projection":  # keeps no lengths
        mean = y[:200].mean(0)
        ours, theirs = found - mean, wanted - mean
        cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
        np.testing.assert_allclose(cosines, 1, atol=1e-9)
        assert not translator.carries_norms
    else:
        tolerance = 1e-2 if method == "cca" else 1e-4
        np.testing.assert_allclose(found, wanted, atol=tolerance * np.abs(wanted).max())
        assert translator.carries_norms


@given(seed=st.integers(0, 99), source=st.integers(1, 9), target=st.integers(1, 9), method=st.sampled_from(ALL))
@example(seed=0, source=9, target=1, method="affine")
@example(seed=0, source=1, target=9, method="relative-projection")
def test_batches_can_be_cut_anywhere_and_files_change_nothing(
    tmp_path_factory: Any, seed: int, source: int, target: int, method: str
) -> None:
    x, y = pairs(40, source, target, noise=0.3, seed=seed)
    translator = ib.Translator(method=method, seed=seed).fit(x, y)
    whole = translator.transform(x)
    assert whole.shape == (40, target) and np.isfinite(whole).all()
    np.testing.assert_allclose(np.concatenate([translator.transform(x[:7]), translator.transform(x[7:])]), whole)
    folder = tmp_path_factory.mktemp("t") / "t"
    translator.save(folder)
    again = ib.Translator.load(folder)
    assert np.array_equal(again.transform(x), whole)
    assert layout_of(again.translation_.to_json()[1]) == layout_of(translator.translation_.to_json()[1])
    assert (again.source_width, again.target_width) == (source, target)
    assert again.get_params() == translator.get_params() and again.judged_ == translator.judged_


@pytest.mark.parametrize(
    ("method", "options"), [*((method, {}) for method in ALL), ("relative-projection", {"lengths": True})]
)
def test_more_rows_than_a_block_come_out_as_fewer_do_also_with_gradients(
    method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = pairs(40, 5, 7, noise=0.3)
    fitted = ib.Translator(method=method, **options).fit(x, y)
    whole = fitted.transform(x)
    monkeypatch.setattr(translation, "BLOCK", 16)
    np.testing.assert_allclose(fitted.transform(x), whole, rtol=1e-12, atol=1e-12)
    rows = torch.from_numpy(np.asarray(x)).requires_grad_()
    made = fitted.translation_(rows)
    np.testing.assert_allclose(made.detach().numpy(), whole, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(made.square().sum(), rows)
    assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0


@pytest.mark.parametrize("method", [*ALL, "relative"])
def test_tensors_and_arrays_in_their_own_precision(method: str) -> None:
    x, y = pairs()
    translator = ib.Translator(method=method).fit(x, y)
    wide = translator.transform(x)
    narrow = translator.transform(torch.from_numpy(x).float())
    assert isinstance(wide, np.ndarray) and wide.dtype == np.float64
    assert isinstance(narrow, torch.Tensor) and narrow.dtype == torch.float32
    np.testing.assert_allclose(narrow.numpy(), wide, rtol=1e-3, atol=1e-3)


def failed_checks(estimator: Any, excused: dict[str, str]) -> dict[str, str]:
    """What scikit-learn's own checks find, but for what is excused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        results = check_estimator(estimator, on_fail=None, expected_failed_checks=excused)
    assert len(results) > 40
    return {one["check_name"]: str(one["exception"]) for one in results if one["status"] == "failed"}


@pytest.mark.slow
@pytest.mark.parametrize("method", [*ALL, "relative"])
def test_scikit_learn_approves(method: str) -> None:
    excused = EXCUSED | (RELATIVE_EXCUSED if method == "relative" else {})
    assert failed_checks(ib.Translator(method=method), excused) == {}


def test_it_stands_in_a_pipeline_and_is_cloned() -> None:
    x, y = pairs()
    line = make_pipeline(StandardScaler(), ib.Translator(method="ridge"))
    np.testing.assert_allclose(line.fit(x, y).transform(x), y, atol=1e-3)
    assert clone(ib.Translator(method="cca", seed=3)).get_params() == ib.Translator(method="cca", seed=3).get_params()


# ---------------------------------------------------------------------- against references


def test_affine_is_least_squares_with_an_intercept() -> None:
    x, y = pairs(noise=1.0, target=5)
    reference = LinearRegression().fit(x, y)
    np.testing.assert_allclose(ib.Translator(method="affine").fit(x, y).transform(x), reference.predict(x), atol=1e-8)


def test_ridge_of_a_given_strength_is_that_of_scikit_learn() -> None:
    x, y = pairs(noise=1.0, target=5)
    centred = x - x.mean(0)
    alpha = 0.3 * float(np.square(centred).sum() / x.shape[1])
    reference = Ridge(alpha=alpha).fit(x, y)
    found = ib.Translator(method="ridge", strength=0.3).fit(x, y).transform(x)
    np.testing.assert_allclose(found, reference.predict(x), atol=1e-8)


def test_the_strength_of_ridge_is_the_one_that_leaving_each_row_out_would_choose() -> None:
    x, y = (torch.from_numpy(one) for one in pairs(30, 8, 3, noise=4.0))
    x, y = x - x.mean(0), y - y.mean(0)
    _, chosen, _ = ridge_by_leave_one_out(x, y, None, 0)

    def error(strength: float) -> float:
        total = 0.0
        alpha = strength * float(torch.linalg.eigvalsh(x.mT @ x).mean())
        for row in range(len(x)):
            rest = torch.arange(len(x)) != row
            fitted = Ridge(alpha=alpha).fit(x[rest], y[rest])
            total += float(np.square(fitted.predict(x[row : row + 1]) - y[row : row + 1].numpy()).sum())
        return total

    assert error(chosen) <= min(error(chosen * 3), error(chosen / 3)) * (1 + 1e-9)


# ---------------------------------------------------------------------- the way back


@pytest.mark.parametrize("method", ["procrustes", "ridge", "affine", "cca"])
def test_the_way_back_undoes_it(method: str) -> None:
    x, y = pairs(target=17)
    translator = ib.Translator(method=method).fit(x, y)
    np.testing.assert_allclose(translator.inverse_transform(translator.transform(x)), x, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "target", "lost"),
    [
        ("relative-projection", 12, "the lengths of rows"),
        ("ridge", 5, "7 of 12 dimensions"),
        ("relative", 12, "no way back from cosines"),
    ],
)
def test_where_something_is_lost_there_is_no_way_back(method: str, target: int, lost: str) -> None:
    x, y = pairs(target=target)
    with pytest.raises(FitError, match=lost):
        ib.Translator(method=method).fit(x, y).inverse_transform(y)


def test_a_direction_that_was_never_seen_has_no_way_back() -> None:
    x, y = pairs(8)
    with pytest.raises(FitError, match="directions that the map sends to nothing"):
        ib.Translator(method="affine").fit(x, y).inverse_transform(y)


# ---------------------------------------------------------------------- lengths


def test_targets_of_one_length_come_out_in_it() -> None:
    x, y = pairs(noise=0.5)
    y = 7 * y / np.linalg.norm(y, axis=1, keepdims=True)
    for method in ("ridge", "relative-projection"):
        translator = ib.Translator(method=method).fit(x, y)
        np.testing.assert_allclose(np.linalg.norm(translator.transform(x), axis=1), 7, rtol=1e-9)
        assert translator.carries_norms


def test_relative_projection_gives_lengths_back_if_asked() -> None:
    x, y = pairs()
    translator = ib.Translator(lengths=True).fit(x[:200], y[:200])
    np.testing.assert_allclose(translator.transform(x[200:]), y[200:], atol=1e-6 * np.abs(y).max())
    assert translator.carries_norms
    halves = ib.compose(ib.RelativeEncoder().fit(x[:200]), ib.RelativeDecoder().fit(y[:200]), lengths=True)
    np.testing.assert_allclose(halves.transform(x), translator.transform(x))


# ---------------------------------------------------------------------- auto


def test_auto_takes_the_best_on_held_out_pairs_and_names_the_others() -> None:
    x, y = pairs(noise=0.2)
    translator = ib.Translator(method="auto").fit(x, y)
    scores = list(translator.judged_.values())
    assert scores == sorted(scores, reverse=True) and set(translator.judged_) == set(CANDIDATES)
    assert translator.chosen_ == next(iter(translator.judged_))
    same = ib.Translator(**CANDIDATES[translator.chosen_]).fit(x, y)
    np.testing.assert_allclose(translator.transform(x), same.transform(x))


@pytest.mark.parametrize("criterion", ["cosine", "retrieval", "error"])
def test_auto_sees_that_a_rotation_is_none(criterion: str) -> None:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(400, 6))
    y = x @ (draws.normal(size=(6, 6)) * [10, 5, 1, 1, 0.2, 0.1]) + 0.01 * draws.normal(size=(400, 6))
    assert ib.Translator(method="auto", criterion=criterion).fit(x, y).chosen_ in ("ridge", "affine")


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize("method", ALL)
def test_fewer_pairs_than_dimensions_say_what_rank_they_leave(method: str, tmp_path: Any) -> None:
    few = ib.Translator(method=method).fit(*pairs(8, 12, 17, noise=0.3))
    assert few.details_["rank"] == 7 and "7 of 12 directions" in few.notes[0]
    few.save(tmp_path / "few")
    assert ib.Translator.load(tmp_path / "few").notes == few.notes
    assert ib.Translator(method=method).fit(*pairs(40, 12, 17, noise=0.3)).notes == ()


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_rows_of_any_size_are_translated_in_float32(method: str, scale: float) -> None:
    x, y = pairs(60, 6, 9, noise=0.1)
    y /= np.linalg.norm(y, axis=1, keepdims=True)  # all of one length
    wanted = ib.Translator(method=method).fit(x, y).transform(x)
    found = ib.Translator(method=method).fit(scale * x, y).transform((scale * x).astype(np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_one_huge_row_has_its_direction() -> None:
    x, y = pairs(60, 6, 9, noise=0.1)
    translator = ib.Translator().fit(x, y)
    rows = x.copy()
    rows[7] = x.mean(0) + 1e25 * (x[7] - x.mean(0))
    wanted = translator.transform(x)
    np.testing.assert_allclose(translator.transform(rows.astype(np.float32)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-100, 1e-12, 1.0, 1e100])
def test_the_score_does_not_depend_on_the_scale(scale: float) -> None:
    x, y = pairs(60, 6, 9, noise=0.5)
    wanted = ib.Translator(method="ridge").fit(x, y).score(x, y)
    assert ib.Translator(method="ridge").fit(scale * x, scale * y).score(scale * x, scale * y) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("part", "key", "value", "words"),
    [
        ("target", "length", -5.0, "its length is -5"),
        ("target", "norm", float("nan"), "its norm is nan"),
        ("source", "norm", 0.0, "its norm is 0"),
    ],
)
def test_numbers_that_cannot_be_are_damage(tmp_path: Any, part: str, key: str, value: float, words: str) -> None:
    ib.Translator().fit(*pairs(60, 6, 9)).save(tmp_path / "t")
    path = tmp_path / "t" / "translation.json"
    document = json.loads(path.read_text("utf-8"))
    document["translation"][part][key] = value
    seal_document(path, document)
    with pytest.raises(FileError, match=f"is damaged .*{words}"):
        ib.Translator.load(tmp_path / "t")


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"source.mean": torch.full((6,), torch.nan)}, "mean is not 6 finite numbers"),
        ({"source.deviation": torch.zeros(6)}, "a deviation is not positive"),
        ({"target.mean": torch.zeros(4)}, "its map leads from 6 to 9 dimensions"),
        ({"source.deviation": torch.ones(2)}, "deviation is not 6 finite numbers"),
    ],
)
def test_tensors_that_cannot_be_are_damage(tmp_path: Any, tensors: dict[str, Any], words: str) -> None:
    ib.Translator().fit(*pairs(60, 6, 9)).save(tmp_path / "t")
    retensored(tmp_path / "t", "translation", tensors)
    with pytest.raises(FileError, match=f"is damaged .*{words}"):
        ib.Translator.load(tmp_path / "t")


def test_a_damaged_file_is_named(tmp_path: Any) -> None:
    ib.Translator(method="ridge").fit(*pairs()).save(tmp_path / "t")
    path = tmp_path / "t" / "translation.json"
    document = json.loads(path.read_text("utf-8"))
    del document["translation"]["map"]
    seal_document(path, document)
    with pytest.raises(FileError, match=r"translation in .* is damaged .'map'"):
        ib.Translator.load(tmp_path / "t")


def test_a_number_that_was_changed_by_hand_is_not_believed(tmp_path: Any) -> None:
    fitted = {
        "translation": ib.Translator(method="ridge").fit(*pairs()),
        "relative-encoder": ib.RelativeEncoder().fit(pairs()[0]),
        "relative-decoder": ib.RelativeDecoder().fit(pairs()[1]),
    }
    for name, saved in fitted.items():
        saved.save(tmp_path / name)
        path = tmp_path / name / f"{name}.json"
        text = path.read_text("utf-8")
        number = re.search(r'"norm": (\d+\.\d+)', text)
        assert number is not None
        path.write_text(text.replace(number[1], f"{2 * float(number[1])}", 1), "utf-8")
        with pytest.raises(FileError, match="was edited: it does not say what was saved"):
            type(saved).load(tmp_path / name)


def test_cards_are_kept_and_compared(tmp_path: Any) -> None:
    card = {"source_model": "small", "target_model": "large", "metric": "cosine"}
    ib.Translator(method="ridge").fit(*pairs(), card=card).save(tmp_path / "t")
    kept = ib.Translator.load(tmp_path / "t").card_
    assert kept.to_json() == card
    kept.refuse_others(type(kept).of({"source_model": "small"}), "The vectors")
    with pytest.raises(DataError, match="which this translation leads to, not from"):
        kept.refuse_others(type(kept).of({"source_model": "large"}), "The vectors")
    with pytest.raises(DataError, match="their metric is 'dot'"):
        kept.refuse_others(type(kept).of({"metric": "dot"}), "The vectors")
