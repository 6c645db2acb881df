"""Layers of different depth: even paths, and paths of largest similarity."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.correspondence.networks import mlp, residual

from interbasin import LayerwiseMoments
from interbasin.correspondence import Correspondence
from interbasin.correspondence.depth import TIE, even_path, largest_path
from interbasin.errors import DataError, ShapeError

Path = list[tuple[int, int]]
depths = st.integers(1, 12)


def check_path(path: Path, rows: int, columns: int) -> None:
    """Monotone, complete, and every layer has one partner, or is the one partner of several."""
    assert path == sorted(set(path))
    assert [row for row, _ in path] == sorted(row for row, _ in path)
    assert [column for _, column in path] == sorted(column for _, column in path)
    assert {row for row, _ in path} == set(range(rows)) and {column for _, column in path} == set(range(columns))
    for row, column in path:
        assert [r for r, _ in path].count(row) == 1 or [c for _, c in path].count(column) == 1


def value(path: Path, table: np.ndarray) -> float:
    """Every layer counts once, with the mean similarity to its partners."""
    rows = [np.mean([table[pair] for pair in path if pair[0] == row]) for row in range(table.shape[0])]
    columns = [np.mean([table[pair] for pair in path if pair[1] == column]) for column in range(table.shape[1])]
    return float(np.sum(rows) + np.sum(columns))


def all_paths(rows: int, columns: int, start: tuple[int, int] = (0, 0)) -> Iterator[Path]:
    if start == (rows, columns):
        yield []
    row, column = start
    steps = [(1, wide) for wide in range(1, columns - column + 1)] + [(high, 1) for high in range(2, rows - row + 1)]
    for high, wide in steps if row < rows and column < columns else ():
        own = [(row + i, column + j) for i in range(high) for j in range(wide)]
        yield from (own + rest for rest in all_paths(rows, columns, (row + high, column + wide)))


@given(depths, depths)
def test_an_even_path_is_a_path_between_equal_depths(rows: int, columns: int) -> None:
    path = even_path(rows, columns)
    check_path(path, rows, columns)
    assert len(path) == max(rows, columns)
    assert all(abs((i + 0.5) / rows - (j + 0.5) / columns) <= 0.5 / min(rows, columns) + 1e-12 for i, j in path)
    assert even_path(columns, rows) == [(j, i) for i, j in path]


@given(depths)
def test_networks_of_one_depth_are_matched_layer_by_layer(rows: int) -> None:
    assert even_path(rows, rows) == [(row, row) for row in range(rows)]
    table = np.random.default_rng(rows).uniform(0, 0.9, (rows, rows))
    np.fill_diagonal(table, 1.0)
    assert largest_path(table) == even_path(rows, rows)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_path_of_largest_similarity_is_the_best_of_all(rows: int, columns: int, seed: int) -> None:
    table = np.random.default_rng(seed).uniform(size=(rows, columns))
    path = largest_path(table)
    check_path(path, rows, columns)
    assert value(path, table) >= max(value(other, table) for other in all_paths(rows, columns)) - 20 * TIE


@given(depths, depths, st.integers(0, 2**32 - 1))
def test_the_path_of_the_transposed_matrix_is_the_way_back(rows: int, columns: int, seed: int) -> None:
    table = np.random.default_rng(seed).uniform(size=(rows, columns))
    assert largest_path(table.T) == [(j, i) for i, j in largest_path(table)]


@given(depths, depths)
def test_where_everything_is_equally_similar_the_path_is_as_even_as_any(rows: int, columns: int) -> None:
    distance = -np.abs((np.arange(rows)[:, None] + 0.5) / rows - (np.arange(columns) + 0.5) / columns)
    path = largest_path(np.full((rows, columns), 0.5))
    assert value(path, distance) >= value(even_path(rows, columns), distance) - 1e-6


def test_blocks_follow_the_cka_and_not_the_even_spread() -> None:
    shallow, deep = residual(2), residual(4)
    found = Correspondence.by_depth(shallow, deep, [[0.9, 0.2, 0.1, 0.1], [0.3, 0.8, 0.9, 0.9]])
    pairs = [(pair.target, pair.share) for pair in found.tensor_pairs(source="blocks.1.up.weight")]
    assert pairs == [(f"blocks.{block}.up.weight", 1 / 3) for block in (1, 2, 3)]
    assert [pair.target for pair in found.tensor_pairs(source="blocks.0.up.weight")] == ["blocks.0.up.weight"]
    assert found != Correspondence.by_role(shallow, deep)


def test_several_blocks_that_serve_one_are_all_listed() -> None:
    found = Correspondence.by_depth(residual(3), residual(1), [[0.1], [0.2], [0.3]])
    pairs = found.tensor_pairs(target="blocks.0.down.weight")
    assert [(pair.source, pair.share) for pair in pairs] == [(f"blocks.{block}.down.weight", 1.0) for block in range(3)]


def moments(source: list[str], target: list[str]) -> LayerwiseMoments:
    """Layers of the same number see the same."""
    rows = torch.randn(200, 9, 3, generator=torch.Generator().manual_seed(0))
    seen = LayerwiseMoments()
    number = {name: int("".join(filter(str.isdigit, name.partition(":")[0])) or 0) for name in (*source, *target)}
    seen.update({name: rows[:, number[name]] for name in source}, {name: rows[:, number[name]] for name in target})
    return seen


def test_the_cka_of_blocks_is_the_mean_over_what_was_recorded_in_them() -> None:
    source = ["blocks.0:output", "blocks.0.up", "blocks.1:output", "stem"]
    target = [f"blocks.{block}:output" for block in range(2)]
    assert Correspondence.by_depth(residual(2), residual(2), moments(source, target)) == Correspondence.by_role(
        residual(2), residual(2)
    )


def test_a_network_without_blocks_has_its_hidden_spaces_in_their_place() -> None:
    found = Correspondence.by_depth(mlp(1), mlp(3), moments(["fc1:output"], ["fc1", "fc2", "fc3"]))
    assert [(pair.target, pair.share) for pair in found.space_pairs(source="fc1")] == [
        ("fc1", 1 / 3),
        ("fc2", 1 / 3),
        ("fc3", 1 / 3),
    ]


@pytest.mark.parametrize(
    ("cka", "error", "words"),
    [
        ([[1.0]], ShapeError, ["(1, 1)", "(2, 3)", "rows blocks.0, blocks.1", "LayerwiseMoments"]),
        ([1.0, 2.0], ShapeError, ["(2,)"]),
        (torch.full((2, 3), torch.nan), DataError, ["NaN"]),
        (moments(["stem"], ["stem"]), DataError, ["of no layer in the blocks", "blocks.2", "by_role"]),
        (
            moments(["blocks.0:output"], ["blocks.1:output"]),
            DataError,
            ["blocks of the source", "nothing was recorded in blocks.1;", "'blocks.1:output'"],
        ),
    ],
)
def test_a_cka_of_other_blocks_is_refused(cka: object, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        Correspondence.by_depth(residual(2), residual(3), cka)  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words)
