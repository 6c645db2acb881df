"""Which maps are needed, and what the rules make of what was seen."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.jobs.rebasin.networks_to_match import Attention, generic, mlp
from tests.laws.strategies import gaussian, generator, orthonormal, well_conditioned
from tests.laws.transported import CASES, Pair, ResidualMLP, pair_of, tuned_by
from torch import Tensor, nn

import interbasin as ib
from interbasin.jobs.transport.bases import relate
from interbasin.jobs.transport.theseus.carrier import Carrier
from interbasin.jobs.transport.theseus.maps import fit_maps, observe, seek
from interbasin.jobs.transport.theseus.rules import (
    RIDGE,
    Rule,
    SecondMoments,
    linear,
    linear_orthogonal,
    linear_transposed,
    pinv,
    pinv_orthogonal,
    procrustes,
)
from interbasin.maps import Identity
from interbasin.statistics import PairedMoments

pytestmark = pytest.mark.filterwarnings("ignore")
X = gaussian(0, 200, 10)
RULES: dict[str, Rule] = {
    "procrustes": procrustes,
    "linear": linear,
    "linear ridge": partial(linear, ridge=RIDGE),
    "linear transposed": linear_transposed,
    "linear orthogonal": linear_orthogonal,
    "pinv": pinv,
    "pinv ridge": partial(pinv, ridge=RIDGE),
    "pinv orthogonal": pinv_orthogonal,
}


def moments_of(x: Tensor, y: Tensor, *, centered: bool = True) -> SecondMoments:
    return SecondMoments.of(PairedMoments.of(x, y), centered=centered)


def middle() -> nn.Module:
    """A network with a space that any invertible map may change."""
    return nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 5))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("widths", [(6, 6), (5, 8), (8, 5)])
def test_every_rule_makes_a_map_of_both_widths(name: str, widths: tuple[int, int]) -> None:
    source, target = widths
    matrix, reads, rank = RULES[name](moments_of(gaussian(1, 40, source), gaussian(2, 40, target)))
    assert matrix.shape == (target, source)
    assert reads is None or reads.shape == (target, source)
    assert rank >= min(widths)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_but_the_regularised_finds_a_rotation(name: str) -> None:
    x, turn = gaussian(1, 60, 6) + 3, orthonormal(2, 6, 6)
    matrix, _, _ = RULES[name](moments_of(x, x @ turn.mT + 1))
    torch.testing.assert_close(matrix, turn, rtol=0, atol=0.05 if "ridge" in name else 1e-9)


def test_means_are_taken_out_unless_asked() -> None:
    x, turn = gaussian(1, 60, 6), orthonormal(2, 6, 6)
    y = x @ turn.mT + 5
    torch.testing.assert_close(procrustes(moments_of(x, y))[0], turn, rtol=0, atol=1e-9)
    assert float((procrustes(moments_of(x + 5, y, centered=False))[0] - turn).norm()) > 0.1


def test_least_squares_finds_what_no_isometry_does() -> None:
    x, turn = gaussian(1, 60, 6), well_conditioned(2, 6, 6)
    torch.testing.assert_close(linear(moments_of(x, x @ turn.mT))[0], turn, rtol=0, atol=1e-9)


def test_linear_maps_carry_through_elements_that_are_no_isometries() -> None:
    source = generic(middle(), 0).double().eval()
    target = ib.carry(source, ib.wire(source, X).sample(3))
    pair = Pair(source, target, tuned_by(source, 5), [X])
    errors = [pair.error(pair.task.carrier(pair.task.maps(rule)).carry(pair.task.update).update, X) for rule in
              (linear, procrustes)]  # fmt: skip
    assert errors[0] < 1e-9
    assert errors[1] > 1e-2


def test_few_rows_leave_directions_unseen() -> None:
    x = gaussian(1, 4, 6)
    matrix, _, rank = procrustes(moments_of(x, x @ orthonormal(2, 6, 6).mT))
    assert rank == 3  # of four rows about their mean
    torch.testing.assert_close(matrix @ matrix.mT, torch.eye(6, dtype=torch.float64))


def test_places_count_alike_whatever_their_size() -> None:
    x, turn = gaussian(1, 60, 6), orthonormal(2, 6, 6)
    one, other = moments_of(x, x @ turn.mT), moments_of(1000 * x, gaussian(3, 60, 6))
    pooled = SecondMoments.pool([one, other])
    assert pooled.rank_bound == one.rank_bound + other.rank_bound
    assert float((procrustes(pooled)[0] - turn).norm()) < float((procrustes(other)[0] - turn).norm())
    assert SecondMoments.pool([one]) is one


def test_the_ratio_of_sizes_becomes_the_scale() -> None:
    source, target = (generic(mlp(10, 16, 16, 5), seed).double().eval() for seed in (0, 1))
    bases = relate(source, target, [X])
    needed = seek(bases)
    moments = observe(bases, [X], needed.pairs_to_record, grams=True)
    plain, scaled = (fit_maps(bases, needed, moments, scale=scale) for scale in (False, True))
    for pair in needed.plain:
        assert plain[pair].scale == 1
        factor = scaled[pair].scale
        assert factor != 1
        torch.testing.assert_close(scaled[pair].map.matrix, factor * plain[pair].map.matrix)
        reads = scaled[pair].reads
        assert reads is not None
        torch.testing.assert_close(reads.matrix, scaled[pair].map.matrix)


def test_what_the_networks_share_stays() -> None:
    pair = pair_of("relu mlp")
    assert isinstance(pair.task.maps()["output", "output"].map, Identity)
    assert ("output", "output") not in pair.task.needed_maps.plain


def test_a_stream_is_seen_at_all_its_norms() -> None:
    network = ResidualMLP().double().eval()
    places = {place for places in seek(relate(network, network, [X])).plain.values() for place in places}
    norms = ("blocks.0.norm", "blocks.1.norm", "norm")
    assert {(f"{norm}:{side}",) * 2 for norm in norms for side in ("input", "output")} <= places


def test_heads_change_places_together() -> None:
    ids = torch.randint(0, 40, (40, 7), generator=generator(0))
    source = generic(Attention(), 0).double().eval()
    element = ib.wire(source, ids).sample(4, isometric=True)
    bases = relate(source, ib.carry(source, element), [ids])
    needed = seek(bases)
    maps = fit_maps(bases, needed, observe(bases, [ids], needed.pairs_to_record, grams=False))
    for cluster in needed.heads:
        torch.testing.assert_close(maps[cluster.heads].map.matrix, element.maps[cluster.heads[0]].matrix)
        assert len(cluster.pairs) == 2  # queries with keys, and values


def test_maps_are_the_same_every_time() -> None:
    case = CASES["residual mlp"]
    pair = pair_of("residual mlp")
    again = relate(pair.source, pair.target, [case.inputs(1), case.inputs(2)])
    needed = seek(again)
    maps = fit_maps(again, needed, observe(again, pair.data, needed.pairs_to_record, grams=False))
    for key, found in pair.task.maps().items():
        assert torch.equal(found.map.matrix, maps[key].map.matrix)
    assert Carrier(again, maps, needed.missing).ways.keys() == pair.task.carrier().ways.keys()
