"""`interbasin.transport` as a whole: what it chooses, what it says, what it leaves in a folder, and what it refuses."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, InterbasinError, ShapeError, UnknownNameError
from interbasin.jobs.transport.judging import Part, relative_gain

KEYS = (
    "share_moved",
    "share_skipped",
    "share_unobserved",
    "norm_ratio",
    "cosine_before",
    "cosine_after",
    "alpha",
    "effect_explained",
)


def mlp(width: int, seed: int, outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
        return nn.Sequential(*layers).double().eval().requires_grad_(False)


def rows(count: int = 256, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tuned_of(net: nn.Module, size: float = 0.3, seed: int = 9) -> nn.Module:
    tuned = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return tuned


@pytest.fixture(scope="module")
def image() -> tuple[nn.Module, nn.Module, nn.Module]:
    """A network, its fine-tune, and the network seen through random permutations."""
    net = mlp(16, 1)
    return net, tuned_of(net), ib.carry(net, ib.wire(net, rows(8)).sample(seed=4))


@pytest.mark.parametrize("method", ["auto", "theseus", "regression"])
def test_an_image_of_the_source_gets_the_whole_effect(image, method):
    source, tuned, target = image
    before = copy.deepcopy(target.state_dict())
    result = ib.transport(source, tuned, target, rows(), method=method)
    assert set(KEYS) <= set(result.metrics)
    assert result.metrics["effect_explained"] > 0.99
    assert result.verdict.choice == "transport"
    assert str(result.verdict).startswith("Transport it")
    assert torch.allclose(result.model(rows(seed=5)), tuned(rows(seed=5)), atol=0.2 if method == "regression" else 1e-6)
    assert all(torch.equal(target.state_dict()[name], tensor) for name, tensor in before.items())
    assert sum(row.share for row in result.moved) == pytest.approx(1)
    again = ib.transport(source, tuned, target, rows(), method=method)
    assert again.metrics == result.metrics


def test_theseus_keeps_norms_and_alpha_scales_them(image):
    source, tuned, target = image
    result = ib.transport(source, tuned, target, rows(), method="theseus")
    assert result.metrics["norm_ratio"] == pytest.approx(1)
    assert result.metrics["alpha"] == 1
    half = ib.transport(source, tuned, target, rows(), method="theseus", alpha=0.5)
    assert half.metrics["norm_ratio"] == pytest.approx(0.5)
    name = "2.weight"
    assert torch.allclose(2 * half.delta.tensor(name), result.delta.tensor(name))
    assert torch.allclose(half.model.state_dict()[name], target.state_dict()[name] + half.delta.tensor(name))


def test_alpha_is_found_on_held_out_inputs(image):
    source, tuned, target = image
    weak = {name: 2 * (tensor - source.state_dict()[name]) for name, tensor in tuned.state_dict().items()}
    doubled = ib.transport(source, tuned, target, rows(), method="theseus", alpha="auto")
    assert doubled.metrics["alpha"] == 1
    assert len(doubled.sweep) > 5
    assert ib.transport(source, weak, target, rows(), method="theseus").metrics["norm_ratio"] == pytest.approx(1)


def test_one_lineage_is_copied():
    source = mlp(16, 1)
    target = tuned_of(source, size=0.02, seed=3)
    result = ib.transport(source, tuned_of(source), target, rows())
    assert result.verdict.choice == "copy"
    assert result.method == "direct"


def test_an_update_of_zeros_does_nothing(image):
    source, _, target = image
    result = ib.transport(source, copy.deepcopy(source), target, rows())
    assert result.verdict.choice == "do-not"
    assert "does nothing" in str(result.verdict)


def test_unrelated_networks_with_outputs_of_their_own_say_no():
    choices = [
        ib.transport(
            mlp(16, 2 * seed), tuned_of(mlp(16, 2 * seed)), mlp(24, 2 * seed + 1), rows(), outputs="own", seed=seed
        )
        for seed in range(3)
    ]
    assert [result.verdict.choice for result in choices] == ["do-not"] * 3
    assert "in common" in str(choices[0].verdict)


def test_an_image_with_outputs_of_its_own_says_yes(image):
    source, tuned, target = image
    result = ib.transport(source, tuned, target, rows(512), outputs="own", method="theseus")
    assert result.verdict.figures["kinship"].low > 0.3
    assert result.verdict.choice == "transport"


def test_labels_show_a_fine_tune_that_is_worth_nothing(image):
    source, tuned, target = image
    inputs = rows(200, seed=7)
    labels = source(inputs).argmax(-1)
    worse = ib.transport(source, tuned, target, rows(), validate=[(inputs, labels)], method="theseus")
    assert worse.verdict.choice == "do-not"
    assert "not shown to be better" in str(worse.verdict)
    better = ib.transport(
        source, tuned, target, rows(), validate=[(inputs, tuned(inputs).argmax(-1))], method="theseus"
    )
    assert better.verdict.choice == "transport"
    assert better.metrics["accuracy"] > better.metrics["accuracy_base"]


def test_generic_inputs_are_kept():
    source, target = mlp(16, 1), mlp(24, 2)
    task, generic = rows(256) + 3, rows(256, seed=2) - 3
    kept = ib.transport(source, tuned_of(source), target, task, generic=generic, method="regression")
    free = ib.transport(source, tuned_of(source), target, task, method="regression")

    def apart(model: nn.Module) -> float:
        return float((model(generic) - target(generic)).square().mean())

    assert apart(kept.model) < 0.5 * apart(free.model)
    assert kept.metrics["forgotten"] < kept.metrics["forgotten_source"]


def test_several_updates_are_summed(image):
    source, tuned, target = image
    other = tuned_of(source, seed=10)
    both = ib.transport(source, [tuned, other], target, rows(), method="theseus")
    each = [ib.transport(source, one, target, rows(), method="theseus") for one in (tuned, other)]
    total = sum(result.delta.tensor("2.weight") for result in each)
    assert torch.allclose(both.delta.tensor("2.weight"), total)


def test_the_folder_holds_the_update_and_the_verdict(image, tmp_path):
    source, tuned, target = image
    result = ib.transport(source, tuned, target, rows(), method="theseus", alpha="auto")
    outcome = result.save(tmp_path / "out", model=True)
    assert outcome.job == "transport"
    assert (tmp_path / "out" / "verdict.txt").read_text().startswith("transport")
    written = load_file(tmp_path / "out" / "update.safetensors")
    assert torch.equal(written["2.weight"], result.delta.tensor("2.weight"))
    again = ib.transport(source, tuned, target, rows(), method="theseus").delta
    assert set(written) == set(again)


def test_low_rank_leaves_an_adapter(image, tmp_path):
    source, tuned, target = image
    result = ib.transport(source, tuned, target, rows(), method="regression", as_lora=4)
    assert result.delta.rank == 4
    result.save(tmp_path / "out")
    assert (tmp_path / "out" / "adapter" / "adapter_config.json").is_file()


def test_prepared_statistics_carry_any_update(image, tmp_path):
    source, tuned, target = image
    prepared = ib.prepare_transport(source, target, rows())
    carried = prepared.apply(tuned, alpha=0.5).update
    whole = ib.transport(source, tuned, target, rows(), method="theseus", alpha=0.5).delta
    assert torch.allclose(carried.tensor("2.weight"), whole.tensor("2.weight"))
    prepared.save(tmp_path / "p")
    loaded = type(prepared).load(tmp_path / "p", source, target)
    assert torch.equal(loaded.apply(tuned).update.tensor("2.weight"), prepared.apply(tuned).update.tensor("2.weight"))
    with pytest.raises(DataError, match="another source"):
        type(prepared).load(tmp_path / "p", tuned, target)


def test_vectors_and_probes_go_through_the_same_maps(image):
    source, _, target = image
    prepared = ib.prepare_transport(source, target, rows())
    hidden = nn.Sequential(*list(source)[:2])(rows(seed=3))
    other = nn.Sequential(*list(target)[:2])(rows(seed=3))
    weight, bias = torch.randn(2, 16, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    moved = ib.carry_probe(weight, bias, prepared, "0")
    assert torch.allclose(other @ moved[0].mT + moved[1], hidden @ weight.mT + bias, atol=1e-8)
    steer = torch.randn(16, dtype=torch.float64)
    rest = [nn.Sequential(*list(net)[2:]) for net in (source, target)]
    steered = rest[0](hidden + steer), rest[1](other + ib.carry_vector(steer, prepared, "0"))
    assert torch.allclose(*steered, atol=1e-8)
    with pytest.raises(ShapeError):
        ib.carry_vector(torch.ones(5, dtype=torch.float64), prepared, "0")
    with pytest.raises(UnknownNameError):
        ib.carry_vector(steer, prepared, "nothing")


def test_training_goes_on_from_a_transport(image):
    source, tuned, target = image
    inputs = rows(128)
    pairs = [(inputs, tuned(inputs).argmax(-1))]
    warm = ib.transport(source, tuned, target, rows(), method="theseus").model
    cold_run, warm_run = (ib.finetune(net, pairs, pairs, steps=20, every=5) for net in (target, warm))
    assert cold_run.steps == warm_run.steps == (0, 5, 10, 15, 20)
    assert warm_run.losses_valid[0] < cold_run.losses_valid[-1]
    assert cold_run.losses_valid[-1] < cold_run.losses_valid[0]
    assert not any(parameter.grad is not None for parameter in target.parameters())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"method": "theseuss"}, UnknownNameError, "theseus"),
        ({"variant": "modules"}, DataError, "name the method"),
        ({"method": "theseus", "variant": "nothing"}, UnknownNameError, "spaces"),
        ({"alpha": float("nan")}, DataError, "alpha"),
        ({"alpha": "much"}, DataError, "auto"),
        ({"scale": "mean"}, UnknownNameError, "rms"),
        ({"outputs": "both"}, UnknownNameError, "own"),
        ({"heads": "many"}, UnknownNameError, "free"),
        ({"depth": "deep"}, UnknownNameError, "cka"),
        ({"unobserved": "keep"}, UnknownNameError, "drop"),
        ({"generic_target": "both"}, UnknownNameError, "tuned"),
        ({"generic_weight": 0}, DataError, "generic_weight"),
        ({"as_lora": 0}, DataError, "as_lora"),
        ({"data": []}, DataError, "no batch"),
        ({"data": iter([rows()])}, DataError, "more than once"),
        ({"data": [rows() * float("nan")]}, DataError, "NaN|finite"),
        ({"data": [torch.zeros(4, 5, dtype=torch.float64)]}, InterbasinError, "Linear|shape|failed"),
        ({"method": "direct", "target": mlp(24, 3)}, ShapeError, "same tensors"),
        ({"tuned": mlp(12, 1)}, ShapeError, "shape"),
        ({"tuned": {"nothing": torch.zeros(3)}}, UnknownNameError, "nothing"),
        ({"outputs": "shared", "target": mlp(16, 1, outputs=4)}, DataError, "own"),
        ({"validate": []}, DataError, "no batch"),
    ],
)
def test_what_cannot_be_asked_is_refused(image, change, error, words):
    source, tuned, target = image
    asked = {"source": source, "tuned": tuned, "target": target, "data": rows(), **change}
    with pytest.raises(error, match=words):
        ib.transport(**asked)


def test_data_that_change_from_pass_to_pass_are_refused(image):
    source, tuned, target = image
    loader = torch.utils.data.DataLoader(rows(64), batch_size=16, shuffle=True)
    with pytest.raises(DataError, match="does not shuffle"):
        ib.transport(source, tuned, target, loader)


@pytest.mark.parametrize("alpha", [np.float32(0.5), np.int64(2)])
def test_alpha_is_any_number(image, alpha):
    source, tuned, target = image
    result = ib.transport(source, tuned, target, rows(), method="theseus", alpha=alpha)
    assert result.metrics["norm_ratio"] == pytest.approx(float(alpha))


@pytest.mark.parametrize(
    "readout",
    [lambda answer: answer["logits"], lambda answer: answer.sum(), lambda answer: answer.mT, lambda answer: None],
)
def test_a_readout_that_fails_is_explained(image, readout):
    source, tuned, target = image
    with pytest.raises(DataError, match="readout"):
        ib.transport(source, tuned, target, rows(), readout=readout)


def test_excluded_classes_have_no_part_in_the_divergence(image):
    source, tuned, target = image

    def readout(outputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([outputs, torch.full_like(outputs[:, :1], -torch.inf)], 1)

    result = ib.transport(source, tuned, target, rows(), method="theseus", readout=readout)
    assert result.metrics["effect_explained"] > 0.99


def test_numbers_that_are_none_never_end_in_a_verdict(image):
    source, tuned, target = image
    bad = rows(64)
    bad[-1, 0] = torch.nan
    for given in ({"generic": bad}, {"validate": [(bad, tuned(rows(64)).argmax(-1))]}):
        with pytest.raises(DataError, match=r"NaN|finite"):
            ib.transport(source, tuned, target, rows(), method="theseus", **given)


def test_a_rank_is_kept_to_by_convolutions():
    def net(width: int, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers = nn.Conv2d(1, width, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * width, 3)
            return nn.Sequential(*layers).double().eval().requires_grad_(False)

    source, data = net(4, 0), torch.randn(128, 1, 4, 4, dtype=torch.float64)
    result = ib.transport(source, tuned_of(source), net(6, 1), data, method="regression", as_lora=2)
    assert result.delta.rank == 2
    assert result.metrics["effect_explained_full_rank"] > result.metrics["effect_explained"]


class Patches(nn.Module):
    """Cuts rows into tokens, mixes their channels, and answers by their mean."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.into, self.hidden, self.out = nn.Linear(16 // tokens, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.relu(self.into(x.reshape(len(x), self.tokens, -1)))
        return self.out(torch.relu(self.hidden(rows)).mean(1))


@pytest.mark.parametrize("tokens", ["mean", "interpolate"])
def test_networks_with_outputs_of_their_own_may_cut_inputs_into_other_tokens(tokens):
    source, target = (Patches(*sizes).double().eval().requires_grad_(False) for sizes in ((4, 8), (8, 12)))
    inputs = torch.randn(64, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = ib.transport(source, tuned_of(source), target, inputs, outputs="own", tokens=tokens, method="theseus")
    assert "kinship" in result.verdict.figures
    with pytest.raises(ShapeError, match="tokens="):
        ib.transport(source, tuned_of(source), target, inputs, outputs="own", tokens=None, method="theseus")


def test_parts_of_batches_are_disjoint_and_whole():
    batches = [(torch.arange(8), torch.arange(8)), (torch.arange(8, 11), torch.arange(8, 11))]
    kept, held = (list(Part(batches, held=side)) for side in (False, True))
    assert [inputs.tolist() for inputs, _ in held] == [[6, 7]]
    assert sorted(torch.cat([inputs for inputs, _ in (*kept, *held)]).tolist()) == list(range(11))
    single = [torch.full((1, 2), float(number)) for number in range(8)]
    assert [float(batch[0, 0]) for batch in Part(single, held=True)] == [3, 7]


def test_the_gain_is_paired():
    before = np.array([1.0, 2.0, 3.0, 4.0])
    assert relative_gain(before, before / 2).low == pytest.approx(0.5)
    assert relative_gain(before, before / 2).high == pytest.approx(0.5)
    assert relative_gain(np.zeros(3), np.ones(3)).value == 0
