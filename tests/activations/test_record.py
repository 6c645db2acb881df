"""Recording beside recording by hand: plain hooks, every row kept, float64."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.activations.examples import (
    assert_moments,
    by_hand,
    cnn,
    llama,
    mlp,
    no_hooks,
    numbers,
    rows_of,
    texts,
    vit,
)
from tests.profiles import at_most
from torch import nn

from interbasin.activations import Tokens, record, standing
from interbasin.statistics import PairedMoments, linear_cka
from interbasin.wiring.wire import wire


def reader(wiring, axis):
    return next(name for name, one in wiring.spaces.items() if axis in one.reads)


# ---------------------------------------------------------------------- networks of every kind


@at_most(10)
@given(st.integers(1, 5), st.integers(2, 9), st.integers(3, 9), st.booleans())
def test_two_perceptrons(batches, size, hidden, grams):
    one, other = mlp(0, 8), mlp(1, hidden)
    data = list(numbers(batches, size, 5))
    found = record((one, other), data, ["0", "2:output"], grams=grams)
    for name, place in (("0", ("2", "input")), ("2:output", ("2", "output"))):
        assert_moments(found.moments[name, name], *(rows_of(by_hand(model, data, *place)) for model in (one, other)))
    assert found.moments["0", "0"].has_grams is grams
    assert found.batches == batches and found.count == batches * size
    assert found.places["0", "0"] == ("2:input:0", "2:input:0")


def test_two_convolutional_networks_also_before_a_flattened_layer_and_in_place_activations():
    one, other = cnn(0), cnn(1, 6)
    data = numbers(10, 3, 8, 8)
    batches = data.split(4)
    wiring = wire(one, data[:2])
    channels, flattened = reader(wiring, "4.weight[1]"), reader(wiring, "7.weight[1]")
    found = record((one, other), data, [channels, flattened], batch_size=4)
    take = lambda x: x.movedim(1, -1).flatten(0, -2)  # noqa: E731
    sides = [rows_of(by_hand(model, batches, "4", "input"), take) for model in (one, other)]
    assert_moments(found.moments[channels, channels], *sides)
    sides = [rows_of(by_hand(model, batches, "6", "input"), take) for model in (one, other)]
    assert_moments(found.moments[flattened, flattened], *sides)


def test_activations_that_are_written_over_are_recorded_as_they_were():
    one, other = cnn(0), cnn(1)
    data = [numbers(4, 3, 8, 8)]
    # The convolution's output is overwritten by the activation behind it, and its partner comes much later.
    pairs = [("4:output", "4:output"), ("4:output", "7:output[1]"), ("1:output", "1:output")]
    found = record((one, other), data, pairs[:1] + pairs[2:])
    take = lambda x: x.movedim(1, -1).flatten(0, -2)  # noqa: E731
    for pair in (pairs[0], pairs[2]):
        module = pair[0].partition(":")[0]
        assert_moments(found.moments[pair], *(rows_of(by_hand(model, data, module), take) for model in (one, other)))
    pooled = record((one, other), data, [("4:output", "9:output"), ("9:output", "4:output")], pool="mean")
    early, late = (rows_of(by_hand(one, data, "4"), lambda x: x.mean((2, 3))), rows_of(by_hand(one, data, "9")))
    early2, late2 = (rows_of(by_hand(other, data, "4"), lambda x: x.mean((2, 3))), rows_of(by_hand(other, data, "9")))
    assert_moments(pooled.moments["4:output", "9:output"], early, late2)
    assert_moments(pooled.moments["9:output", "4:output"], late, early2)


def test_two_vision_transformers_all_spaces_at_once():
    one, other = vit(0), vit(1, width=36)
    data = numbers(6, 3, 32, 32)
    wirings = wire(one, data[:2]), wire(other, data[:2])
    places = standing(wirings[0])
    found = record((one, other), data, list(places), wirings=wirings, batch_size=4)
    assert len(found.moments) == len(places) == 7
    batches = data.split(4)
    for name, place in places.items():
        module, side, _ = place.split(":")

        def take(x: torch.Tensor, module: str = module) -> torch.Tensor:
            x = x.transpose(1, 2).flatten(2) if x.ndim == 4 else x
            # The queries are the first third of the fused projection.
            return (x[..., : x.shape[-1] // 3] if module.endswith("qkv") else x).flatten(0, 1)

        assert_moments(
            found.moments[name, name], *(rows_of(by_hand(m, batches, module, side), take) for m in (one, other))
        )
        assert found.places[name, name] == (place, place)


@pytest.mark.slow
def test_language_models_with_padding_left_out():
    one, other = llama(0), llama(1, 24)
    data = texts()
    wirings = wire(one, data[0]), wire(other, data[0])
    stream = reader(wirings[0], "lm_head.weight[1]")
    hidden = reader(wirings[0], "model.layers.1.mlp.down_proj.weight[1]")
    found = record((one, other), data, [stream, hidden], wirings=wirings)
    masks = [batch["attention_mask"].bool() for batch in data]
    for name, module in ((stream, "model.norm"), (hidden, "model.layers.1.mlp.down_proj")):
        sides = [
            torch.cat([x[m] for x, m in zip(by_hand(model, data, module, "input"), masks, strict=True)])
            for model in (one, other)
        ]
        assert_moments(found.moments[name, name], *sides)
    whole = record((one, other), data, [hidden], wirings=wirings, mask=False)
    assert whole.count == sum(mask.numel() for mask in masks) > found.count


@pytest.mark.parametrize("pool", ["mean", "first", "last"])
def test_pooled_language_models(pool):
    net, data = llama(), texts()
    found = record(net, data, ["model.layers.0.mlp:output"], pool=pool)
    rows = []
    for x, batch in zip(by_hand(net, data, "model.layers.0.mlp"), data, strict=True):
        for values, mask in zip(x, batch["attention_mask"].bool(), strict=True):
            kept = values[mask]
            rows.append({"mean": kept.mean(0), "first": kept[0], "last": kept[-1]}[pool])
    x = torch.stack(rows)
    assert_moments(found.moments["model.layers.0.mlp:output", "model.layers.0.mlp:output"], x, x)


def test_heads_in_several_axes_and_other_spaces_as_rows_where_a_place_is_named():
    net, batch = llama(), texts(1)[0]
    wiring = wire(net, batch)
    alone = standing(wiring)
    name = next(n for n, s in wiring.spaces.items() if not s.is_fixed and n not in alone and s.within)
    place = next(p for p in wiring.activations if p.endswith("layers.0.self_attn.q_proj:output:0"))
    found = record(net, [batch], {name: place}, wirings=wiring, mask=False)
    assert found.moments[name, name].source_width == wiring.spaces[name].width


# ---------------------------------------------------------------------- ways to ask


def test_pairs_of_different_names_and_of_one_network():
    one, other = mlp(0), mlp(1)
    data = [numbers(7, 5)]
    found = record((one, other), data, [("0:output", "2:output"), ("2:output", "0:output"), ("0:output", "0:output")])
    seen = {(i, m): rows_of(by_hand(net, data, m)) for i, net in enumerate((one, other)) for m in ("0", "2")}
    for x, y in (("0", "2"), ("2", "0"), ("0", "0")):
        assert_moments(found.moments[f"{x}:output", f"{y}:output"], seen[0, x], seen[1, y])
    alone = record(one, data, [("0:output", "2:output"), ("2:output", "0:output")])
    assert_moments(alone.moments["0:output", "2:output"], seen[0, "0"], seen[0, "2"])
    assert_moments(alone.moments["2:output", "0:output"], seen[0, "2"], seen[0, "0"])


def test_names_mean_modules_without_wirings_and_places_need_none():
    net, data = mlp(), [numbers(7, 5)]
    x = rows_of(by_hand(net, data, "0"))
    assert_moments(record(net, data, ["0"], wirings=False).moments["0", "0"], x, x)
    assert_moments(record(net, data, {"hidden": "0:output"}, wirings=False).moments["hidden", "hidden"], x, x)
    wired = record(net, data, {"0": "0:output"})
    assert_moments(wired.moments["0", "0"], x, x)
    assert record(net, data, {("0", "0"): ("0:output", "2:input")}).places["0", "0"] == ("0:output:0", "2:input:0")


def test_before_and_behind_the_nonlinearity():
    net, data = mlp(), [numbers(9, 5)]
    assert record(net, data, ["0"]).places["0", "0"][0] == "2:input:0"
    assert record(net, data, ["0"], at="pre").places["0", "0"][0] == "0:output:0"


def test_the_same_thing_asked_for_twice_is_recorded_once():
    net, data = mlp(), [numbers(9, 5)]
    found = record(net, data, {"0": "0:output", "a": "0:output"}, wirings=False)
    assert found.moments["0", "0"] is found.moments["a", "a"]


class Shared(nn.Module):
    """One activation module, called twice."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.act = nn.Linear(5, 4), nn.Linear(4, 4), nn.Tanh()

    def forward(self, x):
        return self.act(self.two(self.act(self.one(x))))


def test_a_module_that_is_called_twice_is_recorded_in_the_call_that_was_named():
    torch.manual_seed(0)
    net, data = Shared().double(), [numbers(9, 5)]
    seen = by_hand(net, data, "act")
    for call in (0, 1):
        name = f"act:output:{call}"
        assert_moments(record(net, data, [name]).moments[name, name], seen[call], seen[call])


class Several(nn.Module):
    """Takes two tensors, by position or by name."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 4)

    def forward(self, left, right):
        return {"sum": self.fc(left) + self.fc(right)}


def test_batches_are_tensors_tuples_or_mappings_and_labels_are_left_out_where_that_was_said():
    torch.manual_seed(0)
    net, x, y = Several().double(), numbers(6, 5), numbers(6, 5, seed=1)
    wanted = net.fc(x).detach()
    name = "fc:output"
    forms = [((x, y), False), ({"left": x, "right": y}, False), (((x, y), torch.zeros(6)), True)]
    for batch, labelled in forms:
        assert_moments(record(net, [batch], [name], labelled=labelled).moments[name, name], wanted, wanted)
    pairs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(numbers(6, 5), torch.zeros(6)), batch_size=4)
    assert record(mlp(), pairs, ["0:output"], labelled=True).count == 6


def test_each_network_can_have_inputs_of_its_own():
    one, other = mlp(0), mlp(1)
    x, y = numbers(6, 5), numbers(6, 5, seed=1)
    found = record((one, other), [(x, y)], ["0:output"], own_inputs=True)
    sides = rows_of(by_hand(one, [x], "0")), rows_of(by_hand(other, [y], "0"))
    assert_moments(found.moments["0:output", "0:output"], *sides)
    same = record((one, one), [(x, y)], ["0:output"], own_inputs=True)
    assert_moments(same.moments["0:output", "0:output"], sides[0], rows_of(by_hand(one, [y], "0")))


def test_a_mask_of_another_name_stays_out_of_the_network():
    net = vit()
    x = numbers(2, 3, 32, 32)
    mask = torch.ones(2, 17)
    mask[:, 9:] = 0
    found = record(net, [{"x": x, "seen": mask}], ["norm:input"], mask="seen")
    kept = by_hand(net, [x], "norm", "input")[0][:, :9].flatten(0, 1)
    assert_moments(found.moments["norm:input", "norm:input"], kept, kept)


# ---------------------------------------------------------------------- tokens


def test_unequal_patches_through_interpolation():
    one, other = vit(0, patch=8), vit(1, patch=4)
    data = [numbers(3, 3, 32, 32)]
    name = "blocks.0.mlp.fc2:input"
    found = record((one, other), data, [name], tokens="interpolate2d").moments[name, name]
    x, y = (by_hand(net, data, "blocks.0.mlp.fc2", "input")[0] for net in (one, other))
    grid = torch.nn.functional.interpolate(x[:, 1:].mT.unflatten(-1, (4, 4)), (8, 8), mode="bilinear")
    x = torch.cat([x[:, :1], grid.flatten(2).mT], dim=1)
    assert_moments(found, x.flatten(0, 1), y.flatten(0, 1))
    mean = record((one, other), data, [name], tokens="mean").moments[name, name]
    x = by_hand(one, data, "blocks.0.mlp.fc2", "input")[0]
    assert_moments(mean, x.mean(1), y.mean(1))
    full = Tokens("interpolate2d", prefix=(1, 1), grid=((4, 4), (8, 8)))
    again = record((one, other), data, [name], tokens=full).moments[name, name]
    assert torch.equal(again.cross(), found.cross())


def test_equal_tokens_are_left_alone_whatever_the_mode():
    one, other = vit(0), vit(1)
    data = [numbers(3, 3, 32, 32)]
    name = "norm:input"
    plain, moded = (record((one, other), data, [name], tokens=t).moments[name, name] for t in (None, "interpolate2d"))
    assert torch.equal(plain.cross(), moded.cross())


def test_registers_of_one_network_have_no_partner():
    one, other = vit(0), vit(1, reg_tokens=4, patch=4)
    data = [numbers(2, 3, 32, 32)]
    found = record((one, other), data, ["norm:input"], tokens="interpolate2d")
    assert found.count == 2 * (1 + 64)


def test_texts_in_two_tokenisations_are_aligned_by_their_characters():
    one, other = llama(0), llama(1, 24)
    ids = torch.arange(4)[None]
    offsets = torch.tensor([[[0, 0], [0, 3], [3, 6], [6, 10]]])
    theirs = torch.tensor([[[0, 6], [6, 8], [8, 10], [0, 0]]])
    batch = (
        {"input_ids": ids, "offset_mapping": offsets},
        {"input_ids": ids + 9, "offset_mapping": theirs, "attention_mask": torch.tensor([[1, 1, 1, 0]])},
    )
    name = "model.norm:input"
    found = record((one, other), [batch], [name], tokens="offsets", own_inputs=True).moments[name, name]
    x = by_hand(one, [{"input_ids": ids}], "model.norm", "input")[0][0]
    y = by_hand(other, [{"input_ids": ids + 9, "attention_mask": batch[1]["attention_mask"]}], "model.norm", "input")[
        0
    ][0]
    assert_moments(found, torch.stack([x[1:3].mean(0), x[3]]), torch.stack([y[0], y[1:3].mean(0)]))


# ---------------------------------------------------------------------- all pairs of layers


def test_all_pairs_of_layers_of_one_network_and_of_two():
    one, other = vit(0), vit(1, width=36)
    data = numbers(8, 3, 32, 32)
    layers = [f"blocks.{i}:output" for i in range(2)]
    found = record((one, other), data, (layers, [*layers, "norm:output"]), statistics="layerwise", batch_size=4)
    assert found.layerwise is not None and found.layerwise.cka().shape == (2, 3)
    batches = data.split(4)
    x, y = rows_of(by_hand(one, batches, "blocks.1")), rows_of(by_hand(other, batches, "norm"))
    assert_moments(found.moments["blocks.1:output", "norm:output"], x, y)
    wanted = linear_cka(PairedMoments.of(x, y))
    assert abs(float(found.layerwise.cka()[1, 2]) - wanted) < 1e-9
    alone = record(one, data, layers, statistics="layerwise", batch_size=4)
    torch.testing.assert_close(torch.diagonal(alone.layerwise.cka()), torch.ones(2, dtype=torch.float64))


def test_all_pairs_of_layers_with_other_numbers_of_positions():
    net, data = cnn(), [numbers(5, 3, 8, 8)]
    layers = {"one": "0:output", "two": "4:output"}
    found = record(net, data, layers, statistics="layerwise", wirings=False, pool="mean")
    assert found.layerwise.count == 5
    found = record(net, data, layers, statistics="layerwise", wirings=False, tokens="interpolate2d")
    assert found.layerwise.count == 5 * 64
    one, other = vit(0), vit(1, patch=4)
    found = record((one, other), [numbers(2, 3, 32, 32)], ["norm:input"], statistics="layerwise", tokens="mean")
    assert found.layerwise.count == 2


# ---------------------------------------------------------------------- manners


def test_models_stay_as_they_were():
    one, other = mlp(0), mlp(1)
    one.eval(), other.train()
    one[0].weight.requires_grad_(False)
    before = copy.deepcopy(one.state_dict())
    found = record((one, other), [numbers(6, 5)], ["0:output"])
    assert not one.training and other.training and not one[0].weight.requires_grad and one[2].weight.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in one.state_dict().items())
    assert no_hooks(one, other)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    # What comes back are ordinary tensors.
    assert not any(tensor.is_inference() for tensor in found.moments["0:output", "0:output"]._state.crosses.values())


def test_networks_run_without_gradients_and_each_once_a_batch():
    calls = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(5, 3)

        def forward(self, x):
            calls.append((torch.is_inference_mode_enabled(), self.fc(x).is_inference()))
            return self.fc(x)

    record((Spy(), Spy()), [numbers(4, 5).float()] * 3, ["fc:output"])
    assert calls == [(True, True)] * 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_networks_of_any_precision(dtype):
    one, other = mlp(0, dtype=dtype), mlp(1, dtype=dtype)
    data = [numbers(20, 5, dtype=torch.float32).to(dtype)] * 2
    found = record((one, other), data, ["2:input"]).moments["2:input", "2:input"]
    sides = [rows_of(by_hand(net, data, "2", "input")) for net in (one, other)]
    assert_moments(found, *sides, tolerance=1e-5)


def test_autocast_reaches_both_networks():
    one, other = mlp(0, dtype=torch.float32), mlp(1, dtype=torch.float32)
    data = [numbers(20, 5, dtype=torch.float32)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = record((one, other), data, ["0:output"]).moments["0:output", "0:output"]
        sides = [rows_of(by_hand(net, data, "0")) for net in (one, other)]
    assert sides[0].dtype == torch.bfloat16
    assert_moments(found, *sides, tolerance=1e-5)


def test_networks_that_share_modules_are_recorded_one_after_the_other():
    one = mlp(0)
    other = nn.Sequential(one[0], nn.Tanh(), nn.Linear(8, 3).double())
    data = [numbers(6, 5), numbers(6, 5, seed=1)]
    found = record((one, other), data, [("0:output", "0:output"), ("2:input", "2:input")])
    for module, side in (("0", "output"), ("2", "input")):
        name = f"{module}:{side}"
        assert_moments(found.moments[name, name], *(rows_of(by_hand(n, data, module, side)) for n in (one, other)))


def test_nothing_is_held_from_batch_to_batch_and_little_within_one():
    """Of two networks that run step by step at most one activation waits, whatever the number of layers."""
    from interbasin.activations import pairing

    most = 0

    class Watched(dict):
        def __setitem__(self, key, value):
            nonlocal most
            super().__setitem__(key, value)
            most = max(most, len(self))

    torch.manual_seed(0)
    one, other = (nn.Sequential(*(nn.Linear(5, 5) for _ in range(12))).double() for _ in range(2))
    start = pairing.Pairing.start

    def started(self, calls):
        assert not self.present
        self.present = Watched()
        start(self, calls)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairing.Pairing, "start", started)
        record((one, other), [numbers(4, 5)] * 3, [f"{i}:output" for i in range(12)])
    assert most == 2


def test_progress_is_told_or_shown(capsys):
    told = []
    record(mlp(), numbers(10, 5), ["0:output"], batch_size=4, progress=told.append)
    assert told == [1, 2, 3]
    record(mlp(), numbers(10, 5), ["0:output"], batch_size=4, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""


def test_data_that_can_be_read_once_are_enough_without_a_state():
    data = (numbers(4, 5, seed=seed) for seed in range(3))
    assert record(mlp(), data, ["0"]).count == 12


def test_a_caller_can_stop_it_and_hooks_are_gone():
    one, other = mlp(0), mlp(1)

    def stop(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record((one, other), [numbers(4, 5)] * 3, ["0:output"], progress=stop)
    assert no_hooks(one, other)
