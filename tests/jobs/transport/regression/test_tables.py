"""Tables whose rows are added to a stream: which are fitted, and which row goes where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.jobs.transport.small import tuned as tuned_of
from tests.laws.strategies import gaussian, generator
from tests.laws.transported import distance
from torch import Tensor, nn

from interbasin.errors import DataError
from interbasin.jobs.transport.bases import Bases, relate
from interbasin.jobs.transport.regression.layers import find_layers
from interbasin.jobs.transport.regression.sequence import Recipe, regress
from interbasin.jobs.transport.regression.tables import find_added_rows, set_table, table_rows

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Stem(nn.Module):
    """Patches, one token before them and one behind, positions, and a residual block.

    ``twice`` is for batches of more than eight inputs, where positions count twice.
    """

    def __init__(self, *, scaled: bool = False, twice: bool = False, tokens: int = 4) -> None:
        super().__init__()
        self.patch, self.head = nn.Linear(3, 8), nn.Linear(8, 5)
        self.first, self.last = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(8))
        self.positions = nn.Parameter(torch.zeros(tokens, 8))
        self.unused = nn.Parameter(torch.zeros(2, 8))
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 9), nn.Linear(9, 8)
        self.scaled, self.twice = scaled, twice

    def forward(self, x: Tensor) -> Tensor:
        count = len(x)
        positions = self.positions[: x.shape[1]] * (2 if self.twice and count > 8 else 1)
        patches = self.patch(x) + (positions * x.mean((1, 2), keepdim=True) if self.scaled else positions)
        x = torch.cat([self.first.expand(count, 1, -1), patches, self.last.expand(count, 1, -1)], 1)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return self.head(x[:, 0])


def stem(seed: int = 0, **options: Any) -> Any:
    network = Stem(**options).double().eval()
    with torch.no_grad():
        for place, parameter in enumerate(network.parameters()):
            parameter.copy_(gaussian(seed + place, *parameter.shape))
    return network


def test_every_row_is_found_where_it_is_added() -> None:
    network, x = stem(tokens=11), gaussian(0, 2, 9, 3)
    at = "norm:input"
    first, last, rows = (
        find_added_rows(network, name, axis, at, x) for name, axis in (("first", 2), ("last", 0), ("positions", 1))
    )
    assert first is not None and last is not None and rows is not None
    assert first.tolist() == [[0, *[-1] * 10]] * 2
    assert last.tolist() == [[*[-1] * 10, 0]] * 2
    assert rows.tolist() == [[-1, *range(9), -1]] * 2


def test_looking_for_rows_changes_nothing() -> None:
    network = stem()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    find_added_rows(network, "positions", 1, "norm:input", gaussian(0, 2, 4, 3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_found_in_low_precision(dtype: torch.dtype) -> None:
    network = stem(tokens=40).to(dtype)
    found = find_added_rows(network, "positions", 1, "norm:input", gaussian(0, 2, 37, 3).to(dtype))
    assert found is not None
    assert found[1].tolist() == [-1, *range(37), -1]


@pytest.mark.parametrize(("shape", "axis"), [((8,), 0), ((1, 1, 8), 2), ((5, 8), 1), ((1, 8, 2, 3), 1)])
def test_rows_are_written_where_they_were_read(shape: tuple[int, ...], axis: int) -> None:
    table, other = gaussian(0, *shape), torch.zeros(shape, dtype=torch.float64)
    rows = table_rows(table, axis)
    assert rows.shape == (table.numel() // 8, 8)
    set_table(other, rows, axis)
    assert torch.equal(other, table)


def test_tables_are_told_from_offsets_and_from_what_nothing_reads() -> None:
    network, x = stem(), gaussian(0, 5, 4, 3)
    layers, left_out = find_layers(relate(network, network, [x]), x)
    assert [layer.tensors[1] for layer in layers if layer.is_table] == ["positions", "first", "last"]
    assert not left_out
    assert layers[0].beside is layers[1]  # the patches are fitted with the positions


def test_rows_that_are_scaled_on_the_way_are_left_out() -> None:
    network, x = stem(scaled=True), gaussian(0, 5, 4, 3)
    layers, left_out = find_layers(relate(network, network, [x]), x)
    assert "positions" not in {layer.tensors[1] for layer in layers}
    assert "not added to the stream as they are" in left_out["positions"]


class Worded(nn.Module):
    """Tokens, and a residual block; the head may be the table of tokens."""

    def __init__(self, width: int, seed: int, *, tied: bool = False, words: int = 9) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
            self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 12), nn.Linear(12, width)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.head(x + self.down(torch.relu(self.up(self.norm(x)))))


IDS = torch.randint(0, 6, (24, 5), generator=torch.Generator().manual_seed(0))  # three words are never seen


def worded(*networks: nn.Module) -> tuple[Bases, nn.Module]:
    source, target = (network.double().eval() for network in networks)
    return relate(source, target, [IDS]), tuned_of(source)


def test_rows_of_tokens_are_those_of_the_tuned_source_whether_they_are_seen_or_not() -> None:
    bases, tuned = worded(Worded(6, 0), Worded(8, 1))
    found = regress(bases, tuned, [IDS]).model.words.weight
    # Through an isometry and a scale, distances between words are those of the tuned source, but for one factor.
    ratios = torch.pdist(found) / torch.pdist(tuned.words.weight)
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios))
    carried = regress(bases, tuned, [IDS], recipe=Recipe(tables="carried"))
    torch.testing.assert_close(carried.model.words.weight, bases.target.words.weight)
    assert "tables='carried'" in carried.left_out["words.weight"]


def test_rows_of_tokens_stay_where_the_target_is_to_keep_what_it_knows() -> None:
    bases, tuned = worded(Worded(6, 0), Worded(8, 1))
    kept = regress(bases, tuned, [IDS], generic=[IDS])
    assert "needs its own" in kept.left_out["words.weight"]
    torch.testing.assert_close(kept.model.words.weight, bases.target.words.weight)
    given = regress(bases, tuned, [IDS], generic=[IDS], recipe=Recipe(generic_target="tuned"))
    assert not given.left_out


@pytest.mark.parametrize(
    ("networks", "why"),
    [
        ((Worded(8, 0), Worded(6, 1)), "too narrow"),
        ((Worded(6, 0), Worded(8, 1, words=10)), "the source has others"),
        ((Worded(6, 0), Worded(8, 1, tied=True)), "in the source they are two"),
    ],
)
def test_rows_of_tokens_that_cannot_be_taken_are_carried(networks: tuple[nn.Module, nn.Module], why: str) -> None:
    bases, _ = worded(*networks)
    layers, left_out = find_layers(bases, IDS)
    assert why in left_out["words.weight"]
    assert not [layer for layer in layers if layer.is_table]


def test_a_tied_table_of_tokens_is_taken_with_its_head() -> None:
    bases, tuned = worded(Worded(6, 0, tied=True), Worded(8, 1, tied=True))
    found = regress(bases, tuned, [IDS]).model
    assert found.head.weight is found.words.weight
    carried = regress(bases, tuned, [IDS], recipe=Recipe(tables="carried")).model
    assert distance(tuned, found, IDS) < 0.9 * distance(tuned, carried, IDS)


class Distant(nn.Module):
    """Attention with a bias for each distance and head, which may be all that tells its heads apart."""

    def __init__(self, width: int, size: int, seed: int, heads: int = 2, scaling: float | None = None) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.scaling = size**-0.5 if scaling is None else scaling
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.stem, self.head = nn.Linear(4, width), nn.Linear(width, 3)
            self.q, self.k, self.v = (nn.Linear(width, heads * size) for _ in range(3))
            self.o = nn.Linear(heads * size, width)
            self.bias = nn.Parameter(3 * torch.randn(9, heads))

    def attention(self, stream: Tensor) -> Tensor:
        q, k = (self.split(layer(stream)) for layer in (self.q, self.k))
        places = torch.arange(stream.shape[1])
        bias = self.bias[places[:, None] - places + 4].permute(2, 0, 1)
        return torch.softmax(q @ k.mT * self.scaling + bias, -1)

    def split(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (self.heads, self.size)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.stem(x)
        mixed = self.attention(stream) @ self.split(self.v(stream))
        return self.head(stream + self.o(mixed.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("scaling", [None, 1.0])
def test_attention_with_a_bias_for_each_distance_is_that_of_the_tuned_source(scaling: float | None) -> None:
    """The widths of heads differ, so that a wrong factor of the logits would show."""
    source, target = (Distant(*sizes, scaling=scaling).double().eval() for sizes in ((6, 3, 0), (12, 6, 1)))
    x = gaussian(0, 300, 5, 4)
    tuned = tuned_of(source)
    bases = relate(source, target, [x])
    layers, left_out = find_layers(bases, x)
    assert (layers[0].tensors[1], layers[0].aim) == ("bias", "taken")
    found = regress(bases, tuned, [x])
    assert not found.left_out and not left_out
    taken = found.model.bias
    assert any(torch.allclose(taken, tuned.bias[:, order]) for order in ([0, 1], [1, 0]))
    fresh = gaussian(9, 50, 5, 4)
    order = [0, 1] if torch.allclose(taken, tuned.bias) else [1, 0]
    ours, theirs = (network.attention(network.stem(fresh)) for network in (found.model, tuned))
    torch.testing.assert_close(ours, theirs[:, order], rtol=1e-6, atol=1e-6)
    assert "bias" in regress(bases, tuned, [x], recipe=Recipe(attention="full")).left_out


class Repeated(nn.Module):
    """Positions that are added again behind the first block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.places, self.head = nn.Linear(3, 8), nn.Embedding(4, 8), nn.Linear(8, 5)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 9), nn.Linear(9, 8)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(4)
        x = self.stem(x) + self.places(positions)
        x = x + self.down(torch.relu(self.up(self.norm(x)))) + self.places(positions)
        return self.head(x.mean(1))


def test_tables_that_are_used_twice_are_left_out() -> None:
    network, x = Repeated().double().eval(), gaussian(0, 5, 4, 3)
    layers, left_out = find_layers(relate(network, network, [x]), x)
    assert left_out == {"places.weight": "it is called more than once"}
    assert not any(layer.is_table for layer in layers)


def test_tables_of_too_many_rows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interbasin.jobs.transport.regression.tables.MOST_ROWS", 3)
    network, x = stem(), gaussian(0, 5, 4, 3)
    layers, left_out = find_layers(relate(network, network, [x]), x)
    assert "it has 4 rows" in left_out["positions"]
    assert [layer.tensors[1] for layer in layers if layer.is_table] == ["first", "last"]


def test_inputs_of_another_kind_are_refused() -> None:
    networks = stem(0, twice=True), stem(50, twice=True)
    few, many = gaussian(0, 8, 4, 3), gaussian(1, 9, 4, 3)
    bases = relate(*networks, [few])
    with pytest.raises(DataError, match="positions were added to the stream as they are in the first inputs"):
        regress(bases, networks[0], [few, many])


def test_positions_that_no_input_reaches_stay_as_they_were() -> None:
    source, target, tuned = (stem(seed, tokens=6) for seed in (0, 50, 100))
    x = gaussian(0, 40, 4, 3)
    found = regress(relate(source, target, [x]), tuned, [x]).model.get_parameter("positions")
    assert torch.equal(found[4:], target.positions[4:])
    assert not torch.allclose(found[:4], target.positions[:4], atol=0.1)


def test_the_mean_of_the_stream_is_tuned_as_and_that_is_what_positions_are_for() -> None:
    """Of networks that differ in their tables alone, tables are all that is found."""
    source = stem()
    tuned = stem()
    with torch.no_grad():
        for name in ("first", "last", "positions"):
            tuned.get_parameter(name).add_(gaussian(len(name), *tuned.get_parameter(name).shape))
    x = torch.rand(64, 4, 3, generator=generator(3), dtype=torch.float64)
    found = regress(relate(source, source, [x]), tuned, [x]).model
    ours, theirs = found.state_dict(), tuned.state_dict()
    for name in ("first", "last", "patch.weight", "down.weight"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-6)
    sums = [state["positions"] + state["patch.bias"] for state in (ours, theirs)]  # what is added is their sum
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-6, atol=1e-6)
