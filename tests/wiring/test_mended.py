"""Networks on which wiring once went wrong, as small as they could be made, each with what was wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.wiring.known_networks import Written, generic, parameter, rows
from torch import Tensor, nn

from interbasin.wiring import carry, wire

EXACT = 1e-10


def holds(network: nn.Module, *inputs: Tensor) -> None:
    """The law of wiring: no map changes the function, and the way back gives the weights back."""
    wiring = wire(network, inputs)
    for seed in range(3):
        assert wiring.check(network, inputs, seed=seed) < EXACT
    alignment = wiring.sample(seed=7)
    back = carry(carry(network, alignment), alignment.inverse()).state_dict()
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(back[name], tensor, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("multiple", [lambda x: -x, lambda x: 2 * x, lambda x: x / 3])
def test_a_value_beside_a_multiple_of_it_is_not_the_same_twice(multiple: Callable[[Tensor], Tensor]) -> None:
    holds(Written(lambda self, x: self.out(torch.cat([multiple(x), x], 1)), out=nn.Linear(8, 2)), rows(4))
    holds(Written(lambda self, x: self.out(torch.stack([multiple(x), x], 1).flatten(1)), out=nn.Linear(8, 2)), rows(4))


def test_halves_of_multiples_put_together_crosswise_are_no_quarter_turn() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        hidden = self.first(x)
        other = 2 * hidden
        return self.out(torch.cat([-hidden[:, 2:], other[:, :2]], 1) + hidden)

    holds(Written(run, first=nn.Linear(3, 4), out=nn.Linear(4, 2)), rows(3))


def test_a_half_whose_sign_is_changed_twice_is_as_it_was() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        first, second = self.first(x).chunk(2, -1)
        return self.out(torch.cat([second.neg().neg(), first], -1) + self.first(x))

    holds(Written(run, first=nn.Linear(3, 4), out=nn.Linear(4, 2)), rows(3))


def test_a_quarter_turn_of_two_equal_halves_does_not_leave_them_equal() -> None:
    def halves(self: Written, x: Tensor) -> Tensor:
        first, second = self.first(x).repeat(1, 2).chunk(2, -1)
        return self.out(torch.cat([-second, first], -1))

    def pairs(self: Written, x: Tensor) -> Tensor:
        twice = self.first(x).repeat_interleave(2, -1)
        return self.out(torch.stack([-twice[:, 1::2], twice[:, ::2]], -1).flatten(1))

    holds(Written(halves, first=nn.Linear(3, 4), out=nn.Linear(8, 2)), rows(3))
    holds(Written(pairs, first=nn.Linear(3, 4), out=nn.Linear(8, 2)), rows(3))


def test_what_is_repeated_and_then_masked_causally_is_not_the_same_all_along() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        q = self.q(x).repeat(1, 2, 1)
        k, v = self.k(x).repeat(1, 2, 1), self.v(x).repeat(1, 2, 1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).flatten(1))

    layers = {name: nn.Linear(3, 4) for name in "qkv"}
    holds(Written(run, **layers, out=nn.Linear(16, 2)), rows(2, 3))


def test_what_is_made_whole_numbers_is_rounded() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        return self.out((3 * self.first(x)).to(torch.int64).to(x.dtype))

    holds(Written(run, first=nn.Linear(3, 4), out=nn.Linear(4, 2)), rows(3))


def test_a_choice_between_two_numbers_is_followed() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        return self.out(torch.where(self.first(x) > 0, 1.0, 0.5).to(x.dtype))

    network = Written(run, first=nn.Linear(3, 4), out=nn.Linear(4, 2))
    holds(network, rows(3))
    assert wire(network, rows(3)).spaces["first"].describe() == "permutation of 4"


def test_a_mixture_with_learned_shares_of_what_is_the_same_all_along_is_not_linear_in_them() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        return self.out(torch.lerp(*torch.broadcast_tensors(x, x.cos(), self.share)))

    holds(Written(run, share=parameter(4), out=nn.Linear(4, 2)), rows(1))


def test_what_is_repeated_beside_positions_is_not_the_same_all_along() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        angles = torch.arange(3.0, dtype=x.dtype).repeat_interleave(2)
        return self.out(x * angles.cos())

    holds(Written(run, out=nn.Linear(6, 2)), rows(6))


def test_units_with_a_map_for_each_block_are_not_compared_from_block_to_block() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        heads = torch.einsum("bhd,hde->bhe", x, self.weight)
        return self.out((heads @ heads.mT).flatten(1))

    holds(Written(run, weight=parameter(3, 4, 5), out=nn.Linear(9, 2)), rows(3, 4))


def test_a_table_of_all_pairs_of_blocks_does_not_say_by_which_block_its_units_move() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        heads = torch.einsum("bhd,hde->bhe", x, self.weight)
        pairs = torch.relu(heads[:, :, None] - heads[:, None])
        return self.out(pairs.sum((1, 2)))

    holds(Written(run, weight=parameter(3, 4, 5), out=nn.Linear(5, 2)), rows(3, 4))


def test_a_gain_that_something_constant_is_divided_by_is_not_mixed() -> None:
    holds(
        Written(lambda self, x: self.out(x.repeat(1, 2) / self.gain), gain=parameter(6), out=nn.Linear(6, 2)), rows(3)
    )


def test_blocks_that_change_places_differently_from_block_to_block_take_what_is_inside_them_along() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        twice = torch.cat([x, x])
        scores = F.layer_norm(twice @ twice.mT, (4, 4), self.gain, self.bias)
        return self.out(scores[:2].flatten(1))

    holds(Written(run, gain=parameter(4, 4), bias=parameter(4, 4), out=nn.Linear(4, 2)), rows(3))


@pytest.mark.parametrize(
    "across",
    [
        lambda x: x.softmax(1),
        lambda x: F.rms_norm(x.mT, (3,)).mT,
        lambda x: F.layer_norm(x.mT, (3,)).mT,
        lambda x: F.normalize(x, dim=1),
        lambda x: x.flip(1),
        lambda x: x.roll(1, 1),
        lambda x: x.cumsum(1),
        lambda x: x.cummax(1).values,
        lambda x: F.instance_norm(x.mT).mT,
        lambda x: F.group_norm(x.mT, 5).mT,
    ],
)
def test_units_that_meet_across_blocks_move_alike_in_all_of_them(across: Callable[[Tensor], Tensor]) -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        heads = torch.einsum("bhd,hde->bhe", x, self.weight)
        return self.out(across(torch.relu(heads) + heads).flatten(1))

    holds(Written(run, weight=parameter(3, 4, 5), out=nn.Linear(15, 2)), rows(3, 4))


def test_statistics_of_the_batch_itself_leave_permutations_of_positions() -> None:
    norms = [nn.InstanceNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)]
    for norm in norms:
        holds(generic(nn.Sequential(nn.Linear(4, 5), norm, nn.Linear(5, 2))), rows(3, 4))


def test_a_triangle_is_cut_out_of_what_was_repeated() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        return self.out(torch.cat([x, x], 1).tril().flatten(1))

    holds(Written(run, out=nn.Linear(16, 2)), rows(2, 4))


def test_segments_that_end_inside_a_block_are_fixed_rather_than_followed_for_ever() -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        joined = torch.cat([self.a(x), self.b(x)], -1)
        return self.out(torch.relu(joined.unflatten(-1, (2, 4))).flatten(1))

    holds(Written(run, a=nn.Linear(4, 3), b=nn.Linear(4, 5), out=nn.Linear(8, 2)), rows(4))


@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_a_quarter_turn_without_frequencies_leaves_one_map_of_the_frequencies_for_both_halves(layout: str) -> None:
    def run(self: Written, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if layout == "halves":
            first, second = hidden.chunk(2, -1)
            turned = torch.cat([-second, first], -1)
        else:
            turned = torch.stack([-hidden[:, 1::2], hidden[:, ::2]], -1).flatten(1)
        return self.out(0.5 * hidden + turned)

    holds(Written(run, first=nn.Linear(3, 6), out=nn.Linear(6, 2)), rows(3))


def test_a_table_of_pairs_laid_out_anew_does_not_give_a_unit_the_block_of_its_partner() -> None:
    def with_itself(self: Written, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.out((hidden[:, :, None] * hidden[:, None, :]).reshape(-1, 2, 8))

    def with_its_blocks(self: Written, x: Tensor) -> Tensor:
        hidden = self.first(x)
        blocks = hidden.unflatten(-1, (2, 2)).square().sum(-1)
        return self.out((hidden[:, :, None] * blocks[:, None, :]).reshape(-1, 2, 4))

    holds(Written(with_itself, first=nn.Linear(3, 4), out=nn.Linear(8, 2)), rows(3))
    holds(Written(with_its_blocks, first=nn.Linear(3, 4), out=nn.Linear(4, 2)), rows(3))
