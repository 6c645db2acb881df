"""The laws of maps, for every map in `cases.MAPS`."""

from __future__ import annotations

import copy
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.cases import MAPS
from tests.laws.strategies import SEEDS, WIDTHS, gaussian
from tests.profiles import at_most
from tests.test_storage import layout_of

from interbasin import maps

# Products of matrices of width at most 8 with entries of order one: round-off stays far below this.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}

every_map = pytest.mark.parametrize("name", MAPS)


@st.composite
def drawn(draw: st.DrawFn, name: str, source: int | None = None) -> tuple[maps.Map, int]:
    """A map of the named case, and a seed for the data it acts on."""
    case = MAPS[name]
    source = draw(WIDTHS) if source is None else source
    target = source if case.square_only else draw(WIDTHS)
    return case.make(draw(SEEDS), target, source), draw(SEEDS)


def chain(draw: st.DataObject, *names: str) -> tuple[list[maps.Map], int]:
    """Maps that follow one another, and a seed."""
    width = draw.draw(WIDTHS)
    made: list[maps.Map] = []
    for name in names:
        map, _ = draw.draw(drawn(name, source=width))
        made.append(map)
        width = map.target_width
    return made, draw.draw(SEEDS)


def offset(m: maps.Map) -> torch.Tensor:
    return m(torch.zeros(m.source_width, dtype=torch.float64))


@every_map
@given(data=st.data())
def test_calling_a_map_is_multiplying_by_its_matrix(name: str, data: st.DataObject) -> None:
    m, seed = data.draw(drawn(name))
    x = gaussian(seed, 5, m.source_width)
    assert m.matrix.shape == (m.target_width, m.source_width)
    torch.testing.assert_close(m(x) - offset(m), x @ m.matrix.mT, **CLOSE)


@every_map
@given(data=st.data())
def test_a_map_acts_on_the_last_axis_whatever_stands_before_it(name: str, data: st.DataObject) -> None:
    m, seed = data.draw(drawn(name))
    x = gaussian(seed, 2, 3, m.source_width)
    torch.testing.assert_close(m(x).reshape(6, -1), m(x.reshape(6, -1)), **CLOSE)
    torch.testing.assert_close(m(x)[1, 2], m(x[1, 2]), **CLOSE)


@every_map
@given(data=st.data())
def test_the_inverse_undoes_the_map_where_it_says_so(name: str, data: st.DataObject) -> None:
    m, seed = data.draw(drawn(name))
    x = gaussian(seed, 5, m.source_width)
    undone = m.inverse()(m(x))
    assert m.is_exact_inverse == (m.rank == m.source_width)
    if m.is_exact_inverse:
        torch.testing.assert_close(undone, x, **CLOSE)
    else:
        # A direction that is lost cannot come back: the law would be empty if "exact" were said too rarely.
        assert m.rank < m.source_width
        assert torch.linalg.matrix_rank(m.inverse().matrix @ m.matrix) < m.source_width


@every_map
@given(data=st.data())
def test_the_inverse_is_the_pseudo_inverse_of_the_matrix(name: str, data: st.DataObject) -> None:
    m, seed = data.draw(drawn(name))
    torch.testing.assert_close(m.inverse().matrix, torch.linalg.pinv(m.matrix), **CLOSE)
    x = gaussian(seed, 5, m.source_width)
    torch.testing.assert_close(m(m.inverse()(m(x))), m(x), **CLOSE)
    assert (m.inverse().source_width, m.inverse().target_width) == (m.target_width, m.source_width)


@every_map
@given(data=st.data())
def test_the_dual_is_the_inverse_transposed(name: str, data: st.DataObject) -> None:
    m, _ = data.draw(drawn(name))
    torch.testing.assert_close(m.dual().matrix, m.inverse().matrix.mT, **CLOSE)


@every_map
@given(data=st.data())
def test_what_reads_a_space_by_the_dual_reads_the_same(name: str, data: st.DataObject) -> None:
    m, seed = data.draw(drawn(name))
    weight, x = gaussian(seed, 3, m.source_width), gaussian(seed + 1, 5, m.source_width)
    if m.is_exact_inverse:
        # The rule of carrying: W' = W M^-1 reads M x as W reads x.
        torch.testing.assert_close((m(x) - offset(m)) @ m.dual()(weight).mT, x @ weight.mT, **CLOSE)


@pytest.mark.parametrize(("later", "first"), itertools.product(MAPS, MAPS))
@given(data=st.data())
def test_a_composition_does_one_after_the_other(later: str, first: str, data: st.DataObject) -> None:
    (f, g), seed = chain(data, first, later)
    x = gaussian(seed, 5, f.source_width)
    both = g @ f
    torch.testing.assert_close(both(x), g(f(x)), **CLOSE)
    torch.testing.assert_close(both.matrix, g.matrix @ f.matrix, **CLOSE)
    if g.is_exact_inverse and f.is_exact_inverse and f.rank == f.target_width:
        torch.testing.assert_close(both.dual().matrix, (g.dual() @ f.dual()).matrix, **CLOSE)


@given(names=st.tuples(*[st.sampled_from(sorted(MAPS))] * 3), data=st.data())
def test_composition_associates(names: tuple[str, str, str], data: st.DataObject) -> None:
    (f, g, h), seed = chain(data, *names)
    x = gaussian(seed, 5, f.source_width)
    torch.testing.assert_close(((h @ g) @ f)(x), (h @ (g @ f))(x), **CLOSE)


@every_map
@given(data=st.data())
def test_the_identity_leaves_every_map_as_it_is(name: str, data: st.DataObject) -> None:
    m, _ = data.draw(drawn(name))
    assert m @ maps.Identity(m.source_width) == m
    assert maps.Identity(m.target_width) @ m == m


@pytest.mark.parametrize(
    ("later", "first", "kind"),
    [
        ("permutation", "permutation", maps.Permutation),
        ("permutation", "signed permutation", maps.SignedPermutation),
        ("signed permutation", "permutation", maps.SignedPermutation),
        ("signed permutation", "signed permutation", maps.SignedPermutation),
        ("orthogonal", "permutation", maps.Orthogonal),
        ("permutation", "orthogonal", maps.Orthogonal),
        ("orthogonal", "signed permutation", maps.Orthogonal),
        ("orthogonal", "orthogonal", maps.Orthogonal),
        ("linear", "orthogonal", maps.Linear),
        ("permutation", "linear", maps.Linear),
        ("affine", "permutation", maps.Affine),
        ("orthogonal", "affine", maps.Affine),
        ("blocks", "affine", maps.Affine),
        ("linear", "blocks", maps.Linear),
    ],
)
@given(data=st.data())
def test_square_maps_compose_to_the_most_special_kind(later: str, first: str, kind: type, data: st.DataObject) -> None:
    width, seed = data.draw(WIDTHS), data.draw(SEEDS)
    f, g = MAPS[first].make(seed, width, width), MAPS[later].make(seed + 1, width, width)
    assert type(g @ f) is kind


@given(seed=SEEDS, count=st.integers(1, 4), width=WIDTHS)
def test_blocks_that_are_cut_alike_compose_to_blocks(seed: int, count: int, width: int) -> None:
    def heads(seed: int) -> maps.Blocks:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        return maps.Blocks([MAPS["orthogonal"].make(seed + i, width, width) for i in range(count)], order=order)

    f, g = heads(seed), heads(seed + 10)
    both = g @ f
    assert isinstance(both, maps.Blocks) and both.is_isometric
    torch.testing.assert_close(both.matrix, g.matrix @ f.matrix, **CLOSE)


@given(seed=SEEDS, narrow=st.integers(1, 4), extra=st.integers(1, 4))
def test_an_isometry_is_not_claimed_where_lengths_are_lost(seed: int, narrow: int, extra: int) -> None:
    wide = narrow + extra
    into, out = MAPS["orthogonal"].make(seed, wide, narrow), MAPS["orthogonal"].make(seed + 1, narrow, wide)
    assert type(out @ into) is maps.Linear  # an embedding, then a projection onto other directions
    assert type(into @ out) is maps.Orthogonal  # a projection, then an embedding: a partial isometry
    assert (into @ out).rank == narrow


@every_map
@given(data=st.data())
def test_save_then_load_is_exact(name: str, data: st.DataObject) -> None:
    m, seed = data.draw(drawn(name))
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    m = data.draw(st.sampled_from([m, m.inverse(), m.dual()])).to(dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        m.save(Path(folder) / "map")
        loaded = maps.load(Path(folder) / "map")
    assert loaded == m and type(loaded) is type(m) and loaded.dtype == m.dtype and loaded.rank == m.rank
    assert torch.equal(loaded.matrix, m.matrix)
    x = gaussian(seed, 5, m.source_width)
    assert torch.equal(loaded(x), m(x)) and torch.equal(loaded(x[0]), m(x[0]))
    assert layout_of(loaded._record()[1]) == layout_of(m._record()[1])


@pytest.mark.parametrize(("later", "first"), itertools.product(MAPS, MAPS))
@at_most(5)
@given(data=st.data())
def test_maps_of_different_precision_compose_and_can_be_kept(later: str, first: str, data: st.DataObject) -> None:
    (f, g), seed = chain(data, first, later)
    lower = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    x = gaussian(seed, 5, f.source_width)
    for both in (g.to(dtype=lower) @ f, g @ f.to(dtype=lower), g.to(dtype=lower).to(dtype=torch.float64) @ f):
        with tempfile.TemporaryDirectory() as folder:
            both.save(Path(folder) / "map")
            loaded = maps.load(Path(folder) / "map")
        assert loaded == both and layout_of(loaded._record()[1]) == layout_of(both._record()[1])
        torch.testing.assert_close(both(x), g(f(x)), rtol=0.2, atol=0.2)


@every_map
@given(data=st.data())
def test_a_map_cannot_be_changed(name: str, data: st.DataObject) -> None:
    m, seed = data.draw(drawn(name))
    before = copy.deepcopy(m)
    m.matrix.fill_(7)
    m.dual().matrix.fill_(7)
    m(gaussian(seed, 3, m.source_width)).fill_(7)
    with pytest.raises(AttributeError, match="immutable"):
        m.source_width = 3  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable"):
        del m.source_width
    assert m == before and hash(m) == hash(before)


@every_map
@given(data=st.data())
def test_arrays_and_tensors_are_carried_alike(name: str, data: st.DataObject) -> None:
    m, seed = data.draw(drawn(name))
    x = gaussian(seed, 4, m.source_width)
    carried = m(x.numpy())
    assert isinstance(carried, np.ndarray)
    np.testing.assert_array_equal(carried, m(x).numpy())


@every_map
@given(data=st.data())
def test_what_is_carried_keeps_its_dtype(name: str, data: st.DataObject) -> None:
    m, seed = data.draw(drawn(name))
    x = gaussian(seed, 4, m.source_width)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-2), (torch.bfloat16, 2e-1)):
        carried = m(x.to(dtype))
        assert carried.dtype == dtype
        torch.testing.assert_close(carried.double(), m(x), rtol=tolerance, atol=tolerance)


@every_map
@given(data=st.data())
def test_isometric_maps_keep_the_lengths_of_what_they_do_not_drop(name: str, data: st.DataObject) -> None:
    m, _ = data.draw(drawn(name))
    values = torch.linalg.svdvals(m.matrix)
    assert int((values > 1e-9).sum()) == m.rank
    if m.is_isometric:
        torch.testing.assert_close(values[: m.rank], torch.ones(m.rank, dtype=values.dtype), **CLOSE)
