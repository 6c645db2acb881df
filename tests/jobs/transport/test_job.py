"""`interbasin.transport` as a whole: what it chooses, what it says, what it leaves in a folder, and what it refuses."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.records import seal_document
from torch import nn

import interbasin as ib
from interbasin.errors import DataError, FileError, InterbasinError, ShapeError, UnknownNameError
from interbasin.jobs.transport.held_out import Part
from interbasin.jobs.transport.judge import relative_gain

pytestmark = pytest.mark.slow

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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"method": "regression", "as_lora": 2},
        {"method": "theseus", "alpha": 1.0},
        {"generic": rows(), "front": True},
    ],
)
def test_an_update_of_zeros_does_nothing(image, asked, tmp_path):
    source, _, target = image
    result = ib.transport(source, copy.deepcopy(source), target, rows(), **asked)
    assert result.verdict.choice == "do-not"
    assert "does nothing" in str(result.verdict)
    assert not [*result.delta] and not result.candidates and not result.front and not result.spaces
    assert all(torch.equal(result.model.state_dict()[name], tensor) for name, tensor in target.state_dict().items())
    assert result.metrics["effect_explained"] == result.metrics["norm_ratio"] == result.metrics["alpha"] == 0
    assert {(row.status, row.reason) for row in result.moved} == {("skipped", "its update is zero")}
    result.save(tmp_path / "out", model=True)
    assert (tmp_path / "out" / "verdict.txt").read_text().startswith("do-not")


@pytest.mark.slow
def test_a_fine_tune_that_changes_hardly_anything_is_not_what_comes_across():
    source, target = mlp(32, 1), mlp(12, 2)  # too narrow to hold all of the source
    result = ib.transport(source, tuned_of(source, 1e-4), target, rows(), method="regression", readout=lambda out: out)
    assert result.metrics["effect_explained"] > 0.5  # the source itself was learnt
    assert result.verdict.choice == "do-not"
    assert "fine-tune is not shown" in str(result.verdict)
    large = ib.transport(source, tuned_of(source, 0.5), target, rows(), method="regression", readout=lambda out: out)
    assert large.verdict.choice == "transport"
    assert large.verdict.figures["beyond_base"].low > 0


@pytest.mark.slow
def test_answers_that_change_are_counted():
    source, target, generic = mlp(16, 1), mlp(24, 2), rows(seed=3) - 3
    given = {"generic": generic, "readout": lambda out: out, "method": "theseus", "alpha": 0.0}
    same = ib.transport(source, tuned_of(source, 0.5), target, rows(), **given)
    assert same.metrics["answers_changed"] == 0
    held = torch.cat(list(Part([generic[i : i + 32] for i in range(0, 256, 32)], held=True)))
    differ = tuned_of(source, 0.5)(held).argmax(1) != target(held).argmax(1)
    assert same.metrics["answers_changed_source"] == pytest.approx(float(differ.double().mean()))
    assert "answers_changed" not in ib.transport(source, tuned_of(source), target, rows(), generic=generic).metrics


class Counting(nn.Module):
    """A network that counts its calls: in a buffer, in one that it replaces, and in one that it leaves alone."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.net = mlp(width, seed)
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.register_buffer("rounds", torch.full((), 7))
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.rounds = self.rounds + 1
        return self.net(x)


@pytest.mark.parametrize("asked", [{"method": "direct"}, {"method": "regression"}, {"mask": lambda batch: 1 / 0}])
def test_buffers_that_networks_write_when_they_run_come_back(asked):
    source, target = Counting(8, 1), Counting(8, 2)
    networks = [source, tuned_of(source), target]
    with torch.no_grad():
        networks[1].calls.zero_()
    kept = [dict(network.named_buffers()) for network in networks]
    labelled = [(rows(64), torch.zeros(64, dtype=torch.int64))]
    if "mask" in asked:
        with pytest.raises(DataError, match="mask function"):
            ib.transport(*networks, rows(64), **asked)
    else:
        networks.append(ib.transport(*networks, rows(64), validate=labelled, **asked).model)
    ib.jobs.transport.plan_transport(*networks[:3], rows(64))
    assert [(float(network.calls), int(network.rounds)) for network in networks] == [(0.0, 7)] * len(networks)
    for network, buffers in zip(networks, kept, strict=False):
        assert all(network.get_buffer(name) is buffer for name, buffer in buffers.items())


@pytest.mark.slow
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


@pytest.mark.slow
def test_several_updates_are_summed(image):
    source, tuned, target = image
    other = tuned_of(source, seed=10)
    both = ib.transport(source, [tuned, other], target, rows(), method="theseus")
    each = [ib.transport(source, one, target, rows(), method="theseus") for one in (tuned, other)]
    total = sum(result.delta.tensor("2.weight") for result in each)
    assert torch.allclose(both.delta.tensor("2.weight"), total)


@pytest.mark.slow
def test_several_updates_are_weighted_and_merged_by_ties(image):
    source, tuned, target = image
    other = tuned_of(source, seed=10)
    updates = [ib.jobs.transport.Update.of(one, source) for one in (tuned, other)]
    for asked, wanted in (
        ({"merge_weights": [1, 0.5]}, ib.jobs.transport.Update.combined(updates, [1, 0.5])),
        ({"merge": "ties"}, ib.jobs.transport.Update.combined(updates, density=0.5)),
        (
            {"merge": "ties", "density": 0.2, "merge_weights": [2, 1]},
            ib.jobs.transport.Update.combined(updates, [2, 1], density=0.2),
        ),
    ):
        merged = ib.transport(source, [tuned, other], target, rows(), method="theseus", **asked)
        whole = {name: wanted.tensor(name) for name in wanted}
        first = ib.transport(source, whole, target, rows(), method="theseus")
        assert torch.allclose(merged.delta.tensor("2.weight"), first.delta.tensor("2.weight"))
        assert asked.items() <= merged.request.items()


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


def test_what_was_prepared_is_for_networks_of_the_same_settings(image, tmp_path):
    source, _, target = image
    sloped = [nn.Sequential(target[0], nn.LeakyReLU(slope), *target[2:]) for slope in (0.1, 0.2)]
    prepared = ib.prepare_transport(source, sloped[0], rows())
    prepared.save(tmp_path / "p")
    type(prepared).load(tmp_path / "p", source, sloped[0])
    with pytest.raises(DataError, match="another target"):
        type(prepared).load(tmp_path / "p", source, sloped[1])
    path = tmp_path / "p" / "prepared.json"
    document = json.loads(path.read_text("utf-8"))
    del document["hashes"]
    seal_document(path, document)
    with pytest.raises(FileError, match=r"older version.*prepare it anew"):
        type(prepared).load(tmp_path / "p", source, sloped[0])


def test_a_mask_that_is_a_function_cannot_be_stored(image, tmp_path):
    source, _, target = image
    prepared = ib.prepare_transport(source, target, rows())
    prepared = replace(prepared, options=replace(prepared.options, mask=lambda batch: batch["attention_mask"]))
    with pytest.raises(DataError, match="is a function, and functions cannot be stored"):
        prepared.save(tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("side", ["source", "target"])
def test_bases_that_hold_no_numbers_are_not_prepared(image, side):
    bases = dict(zip(("source", "target"), (copy.deepcopy(image[0]), copy.deepcopy(image[2])), strict=True))
    bases[side][0].weight.data[0, 0] = torch.nan
    with pytest.raises(DataError, match=rf"0.weight of the {side} .* holds NaN"):
        ib.prepare_transport(**bases, variant="weights", inputs=rows(2))


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
        ({"merge": "slerp"}, UnknownNameError, "task-arithmetic"),
        ({"density": 0.5}, DataError, "merge='ties'"),
        ({"merge": "ties", "density": 0}, DataError, "density"),
        ({"merge_weights": [1, 2]}, DataError, "1 and 2"),
        ({"merge_weights": [float("nan")]}, DataError, "weight"),
        *[
            ({"merge_weights": each}, DataError, "merge_weights is a list with a number for each fine-tune, found")
            for each in (1.0, {0: 1.0}, {1.0}, b"1", "1", torch.ones(()), iter([1.0]))
        ],
        *[({"merge_weights": [each]}, DataError, "merge_weights must be") for each in ("1", None, True, torch.inf)],
        ({"tuned": []}, DataError, "empty"),
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


def test_labelled_data_that_change_from_pass_to_pass_are_refused(image):
    source, tuned, target = image
    pairs = torch.utils.data.TensorDataset(rows(64, seed=5), tuned(rows(64, seed=5)).argmax(-1))
    shuffled = torch.utils.data.DataLoader(pairs, batch_size=16, shuffle=True)
    steady = torch.utils.data.DataLoader(pairs, batch_size=16)
    words = r"validate on was another one .* not be compared on the same inputs.* does not shuffle"
    with pytest.raises(DataError, match=words):
        ib.transport(source, tuned, target, rows(), method="theseus", validate=shuffled)
    result = ib.transport(source, tuned, target, rows(), method="theseus", validate=steady)
    assert "loss_source" in result.metrics
    with pytest.raises(DataError, match=r"validation data was another one .* does not shuffle"):
        result.with_training(steady, shuffled, steps=2)
    assert result.with_training(shuffled, steady, steps=2).trained is not None


@pytest.mark.parametrize("method", ["auto", "theseus"])
@pytest.mark.parametrize(
    ("name", "words"), [("data", "data"), ("generic", "generic inputs"), ("validate", "labelled data to validate on")]
)
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_inputs_that_are_no_numbers_are_named_at_the_start(image, method, name, words, value, monkeypatch):
    source, tuned, target = image
    bad = rows(64)
    bad[35, 0] = value
    given = {"data": rows(), name: [(bad, tuned(rows(64)).argmax(-1))] if name == "validate" else bad}
    monkeypatch.setattr("interbasin.jobs.transport.job.relate", lambda *args, **options: pytest.fail("it went on"))
    with pytest.raises(
        DataError, match=rf"^The {words} hold NaN or infinity \(batch \d, 1 of .* leave these inputs out"
    ):
        ib.transport(source, tuned, target, method=method, **given)


def test_inputs_that_are_all_the_same_are_no_evidence(image):
    source, tuned, target = image
    for method in ("auto", "theseus"):
        with pytest.raises(DataError, match="the 64 inputs of the data are all the same one; give different inputs"):
            ib.transport(source, tuned, target, torch.ones(64, 6, dtype=torch.float64), method=method)


def test_held_out_inputs_that_were_fitted_on_are_noted(image):
    source, tuned, target = image
    repeated = rows(32).repeat_interleave(4, 0)[torch.randperm(128, generator=torch.Generator().manual_seed(0))]
    result = ib.transport(source, tuned, target, repeated, method="theseus")
    assert [note for note in result.notes if "of 32 held-out inputs also stand among those that were fitted on" in note]
    result = ib.transport(source, tuned, target, rows(128), method="theseus")
    assert not [note for note in result.notes if "stand among" in note or "different ones" in note]
    copies = torch.cat([rows(32)] * 4)  # the same ones are held out of every batch
    result = ib.transport(source, tuned, target, copies, method="theseus")
    assert [note for note in result.notes if "Of 32 held-out inputs only 8 are different ones" in note]


@pytest.mark.parametrize("alpha", [np.float32(0.5), np.int64(2)])
def test_alpha_is_any_number(image, alpha):
    source, tuned, target = image
    result = ib.transport(source, tuned, target, rows(), method="theseus", alpha=alpha)
    assert result.metrics["norm_ratio"] == pytest.approx(float(alpha))


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_partners_of_unseen_directions_do_not_depend_on_how_data_are_cut(image):
    source, tuned, target = image
    inputs = rows(48)
    with torch.no_grad():
        for network in (source, target):
            network[0].weight[3], network[0].bias[3] = 0.0, -1.0  # a unit that is dead on all inputs
    whole, cut, turned = (
        ib.transport(source, tuned, target, data, method="theseus").delta.tensor("2.weight")
        for data in (inputs, list(inputs.split(5)), inputs.flip(0))
    )
    torch.testing.assert_close(cut, whole, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(turned, whole, rtol=1e-7, atol=1e-9)


def test_the_largest_alpha_is_noted_and_what_does_better_is_named(image):
    from interbasin.evaluate.bootstrap import Interval
    from interbasin.jobs.transport.figures import note_better, note_largest_alpha
    from interbasin.jobs.transport.result import ComparedRow

    assert note_largest_alpha(((1.0, 0.5), (2.5, 0.4)), 2.5) and not note_largest_alpha(((1.0, 0.4), (2.5, 0.5)), 1.0)
    assert not note_largest_alpha(((1.0, 0.4),), 1.0)
    effect = Interval(0.5, 0.45, 0.55)

    def row(method, low, forgotten):
        return ComparedRow(method, ("gradients",), low + 0.1, low, low + 0.2, None, 3.0, forgotten=forgotten)

    assert not note_better([row("distil", 0.5, None), row("tuned-source", 0.9, None)], effect, None)
    assert "distil explains more: 70% where" in note_better([row("distil", 0.6, None)], effect, None)[0]
    assert not note_better([row("distil", 0.6, 0.3)], effect, 0.2)
    assert "forgets 0.1 where that forgets 0.2" in note_better([row("distil", 0.6, 0.1)], effect, 0.2)[0]


def test_a_comparison_is_plotted_whatever_the_chosen_method_explains(image, tmp_path):
    source, tuned, target = image
    result = ib.transport(source, tuned, target, rows(), method="theseus", alpha=-40.0, compare=["none", "padded"])
    assert result.metrics["effect_explained"] < -1  # it would squeeze all others
    result.save(tmp_path / "some")
    assert "below -1 left out" in (tmp_path / "some" / "compared-plot.svg").read_text()
    replace(result, compared=()).save(tmp_path / "none")
    low = replace(result, compared=(replace(result.compared[0], effect=-3.0),))
    assert "compared-plot.svg" not in low.save(tmp_path / "low").written()
