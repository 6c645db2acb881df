"""The whole job on tiny networks: what it leaves alone, what it is given, and cases where the answer is known."""

from __future__ import annotations

import copy
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from tests.jobs.adapt.examples import (
    QUICK,
    bits,
    draw,
    make_mlp,
    make_proxy,
    make_target,
    make_token_source,
    one_recalibration,  # noqa: F401
    same_bits,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import interbasin as ib
from interbasin.errors import DataError, DivergedError, FitError, ShapeError, UnknownNameError
from interbasin.evaluate.prediction import error_metric
from interbasin.extras import import_extra
from interbasin.jobs.adapt import METHODS, Source, load_adapted, validation

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_recalibration")]


def run(**options: Any):
    options = {"method": "linear-probe", **QUICK, **options}
    source, proxy = options.pop("source", None) or make_mlp(), options.pop("proxy", None) or make_proxy()
    return ib.adapt(source, proxy, options.pop("train", None) or make_target(), **options)


def errors(result) -> dict[str, float]:
    return {row.method: row.error_valid for row in result.table}


def test_everything_of_the_users_stays_as_it_is():
    model, embedder = make_mlp(norm=True).train(), nn.Sequential(nn.Flatten(), nn.Linear(8, 10), nn.Dropout(0.1))
    model[2].weight.requires_grad_(False)
    model[3].eval()
    parts = [model, embedder]
    before = [bits(part) for part in parts]
    flags = [[parameter.requires_grad for parameter in part.parameters()] for part in parts]
    modes = [[module.training for module in part.modules()] for part in parts]
    proxy, train, state = make_proxy(), make_target(), torch.random.get_rng_state()
    tensors = copy.deepcopy((proxy, train))
    result = run(source=model, proxy=proxy, train=train, embedder=embedder, compare=True, test=train)
    assert all(same_bits(part, own) for part, own in zip(parts, before, strict=True))
    assert [[parameter.requires_grad for parameter in part.parameters()] for part in parts] == flags
    assert [[module.training for module in part.modules()] for part in parts] == modes
    assert all(torch.equal(x, y) for x, y in zip([*proxy, *train], [*tensors[0], *tensors[1]], strict=True))
    assert torch.equal(torch.random.get_rng_state(), state)
    names = [row.method for row in result.table]
    assert set(METHODS) - set(names) == {"means"} and {"recraft-transport", "recraft-head", "fa-head"} <= set(names)
    assert any("means needs an embedder" in note for note in result.notes)  # the user's has no positions
    assert all(row.error_test is not None for row in result.table) and len(result.scores_test) >= len(METHODS)
    assert not any(module.training for module in result.model.modules())


def test_the_same_seed_gives_the_same_result_whatever_was_drawn_before():
    first = run(method="recraft", transport_width=4, test=make_target(12))
    torch.manual_seed(5)
    second = run(method="recraft", transport_width=4, test=make_target(12))
    inputs = draw(4, 1, 8, seed=8)
    assert torch.equal(first.model(inputs), second.model(inputs))
    assert errors(first) == errors(second) and first.metrics == second.metrics
    assert str(first.verdict) == str(second.verdict)


def test_the_callers_autocast_changes_nothing():
    options: dict[str, Any] = {"method": "naive", "compare": ["recraft"], "test": make_target(12)}
    expected = run(**options)
    with torch.autocast("cpu", torch.bfloat16):
        result = run(**options)
        assert torch.is_autocast_enabled("cpu")
    inputs = draw(4, 1, 8, seed=8)
    assert torch.equal(result.model(inputs), expected.model(inputs))
    assert errors(result) == errors(expected) and result.metrics == expected.metrics


def test_data_of_inference_mode_are_learned_like_any():
    expected = run(method="recraft", train=make_target(), unlabelled=make_target()[0])
    with torch.inference_mode():
        data = make_target()
        result = run(method="recraft", train=data, unlabelled=data[0])
    assert errors(result) == errors(expected)


def test_a_method_that_cannot_be_had_says_why_and_nothing_about_rates():
    with pytest.raises(FitError, match=r"^means needs an embedder in which one convolution .* take another method\.$"):
        run(method="means")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression", "dense"])
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_every_method_learns_every_kind(method, kind):
    inputs, labels = make_target(30, kind)
    source = {"source": make_token_source(), "proxy": make_target()} if method == "means" else {}
    result = run(method=method, task=kind, train=(inputs, labels), test=(inputs, labels), **source)
    assert result.method == method or method == "auto"
    assert result.model(inputs).shape[1:] == (tuple(labels.shape[1:]) or (3,))
    assert result.metrics["error_test"] >= 0 and str(result.verdict)
    assert (result.bound is None) == (METHODS[result.method].traits["group"] == "simple")


def notes_on_data(result) -> list[str]:
    """Without those on options of `QUICK` that the method has no use for."""
    return [note for note in result.notes if "no effect" not in note]


def test_fields_of_zeros_decide_no_verdict_and_are_named():
    inputs, fields = make_target(30, "dense")
    plain = run(method="nearest", task="dense", train=(inputs, fields), test=(inputs, fields))
    fields[4] = 0
    tests = fields.clone()
    tests[[7, 9]] = 0
    result = run(method="nearest", task="dense", train=(inputs, fields), test=(inputs, tests))
    assert max(errors(result).values()) < 2 * max(errors(plain).values())
    assert result.metrics["error_test"] < 1 and notes_on_data(plain) == []
    assert [note.split(" are ")[0] for note in notes_on_data(result)] == [
        "1 of 30 fields of the held-out samples",
        "3 of 30 fields of the test data",
    ]


def test_small_fields_that_make_most_of_the_error_are_named():
    inputs, fields = make_target(30, "dense")
    fields[4] *= 1e-3
    (note,) = notes_on_data(run(method="nearest", task="dense", train=(inputs, fields)))
    assert note.startswith("1 of 30 fields of the held-out samples are smaller than 0.01") and 'metric="mae"' in note
    assert notes_on_data(run(method="nearest", task="dense", train=(inputs, fields), metric="mae")) == []


# ---------------------------------------------------------------------- what it is given


INPUTS, LABELS = make_target()
FORMS = {
    "arrays": (INPUTS.numpy(), LABELS.numpy()),
    "doubles": (INPUTS.double(), LABELS.to(torch.int8)),
    "a Dataset": TensorDataset(INPUTS, LABELS),
    "a DataLoader": DataLoader(TensorDataset(INPUTS, LABELS), 7),
    "batches": list(zip(INPUTS.split(8), LABELS.split(8), strict=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_data_in_every_form_give_the_same_model(form):
    model, expected = run(train=FORMS[form], test=FORMS[form]), run(test=(INPUTS, LABELS))
    assert torch.equal(model.model(INPUTS), expected.model(INPUTS)) and model.metrics == expected.metrics


@pytest.mark.slow
@pytest.mark.parametrize("method", ["linear-probe", "nearest", "recraft"])
def test_a_model_keeps_the_names_of_its_classes(method, tmp_path):
    result = run(method=method, classes=["saw", "sine", "square", "none of these"])
    names = ("saw", "sine", "square")[: result.model(make_target()[0]).shape[1]]
    assert result.model.classes == names and result.request["classes"] == list(names)
    result.save(tmp_path / "out")
    assert load_adapted(tmp_path / "out", make_mlp()).classes == names


def test_whole_numbers_and_rows_are_inputs_too():
    whole = run(train=((10 * INPUTS).int(), LABELS))
    assert torch.equal(
        whole.model((10 * INPUTS).int().float()),
        run(train=((10 * INPUTS).trunc(), LABELS)).model((10 * INPUTS).trunc()),
    )
    # Columns of a table are standardised; of columns that are, a body that takes vectors sees no difference. Simple
    # models do: they standardise a signal as a whole.
    columns = INPUTS[:, 0].double()
    columns = ((columns - columns.mean(0)) / columns.std(0, correction=0)).float()
    rows = run(train=(columns, LABELS), method="auto")
    signals = run(train=(columns[:, None], LABELS), method="auto")
    with_body = errors(rows).keys() - {"raw-linear", "nearest"}
    assert {name: errors(rows)[name] for name in with_body} == {name: errors(signals)[name] for name in with_body}


def test_validation_data_are_what_methods_are_compared_on():
    inputs, labels = make_target(50)
    result = run(train=(inputs[:30], labels[:30]), valid=(inputs[30:], labels[30:]), method="nearest")
    answers = torch.cdist(inputs[30:].flatten(1), inputs[:30].flatten(1)).argmin(1)
    expected = float((labels[:30][answers] != labels[30:]).double().mean())
    assert errors(result)["nearest"] == pytest.approx(expected)
    assert result.request["samples"] == 30 and all(len(row.fold_errors) == 1 for row in result.table)


def test_patience_ends_the_final_training_alone_and_the_table_compares_equal_steps():
    """Labels say nothing of inputs, so that the loss on validation data rises soon."""
    inputs, labels = draw(50, 1, 8, seed=5), torch.arange(50) % 2
    options: dict[str, Any] = {"train": (inputs[:30], labels[:30]), "valid": (inputs[30:], labels[30:])}
    options |= {"method": "naive", "steps": 200, "rate": 3e-2, "body_rate": 3e-2}
    plain, patient = run(**options), run(**options, patience=2)
    assert errors(patient) == errors(plain) and [row.steps for row in patient.table] == [
        row.steps for row in plain.table
    ]
    assert not any("ended after" in note for note in plain.notes)
    (note,) = [note for note in patient.notes if "ended after" in note]
    assert int(re.search(r"ended after (\d+) steps", note)[1]) < 200
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(result.model(inputs[30:]), labels[30:]) for result in (plain, patient)]
    assert losses[1] < losses[0] and patient.request["patience"] == 2


def test_a_time_that_is_up_leaves_methods_out_and_says_so():
    result = run(method="recraft", compare=True, minutes=1e-6)
    names = {row.method for row in result.table}
    assert {"raw-linear", "nearest", "scratch", "naive", "recraft"} <= names and not names & {"lp-ft", "fa", "warm"}
    assert any("time was up before these were run" in note and "lp-ft" in note for note in result.notes)


@pytest.mark.slow
def test_a_method_that_comes_to_no_finite_loss_is_left_out_with_a_note_or_refused_by_name(monkeypatch):
    fit = validation.fit

    def fail(setup, name, rows, trial):
        if name == "naive" and trial.options["factor"] > largest:
            raise DivergedError("The loss of fine-tuning is nan in batch 0.")
        return fit(setup, name, rows, trial)

    monkeypatch.setattr(validation, "fit", fail)
    largest = 1.0  # one trial of two
    result = run(method="naive")
    assert next(row for row in result.table if row.method == "naive").trial == "rate x1"
    largest = 0.0
    result = run(method="auto", compare=["raw-linear", "scratch", "naive"])
    assert "naive" not in {row.method for row in result.table}
    assert any("naive came to no finite loss" in note and "lower rate=" in note for note in result.notes)
    with pytest.raises(FitError, match=r"naive came to no finite loss in any trial .*The loss of fine-tuning is nan"):
        run(method="naive")


@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression", "dense"])
def test_an_interval_holds_its_own_figure_and_the_verdict_says_what_errors_are(kind):
    result = run(train=make_target(40, kind), task=kind)
    compared_by = error_metric(kind).compared_by
    assert (compared_by in str(result.verdict)) and (kind in ("classification", "dense")) == (not compared_by)
    for row in result.table:
        assert row.low <= row.score_valid <= row.high
        assert compared_by or row.score_valid == pytest.approx(row.error_valid)
        folds = {trial: held["folds"] for trial, held in row.tried.items()}
        assert folds[row.trial] == 5 and set(folds.values()) <= {2, 5}


def test_settings_that_cannot_be_end_a_comparison_instead_of_deciding_it():
    with pytest.raises(DataError, match="fp16' needs an accelerator"):
        run(method="auto", precision="fp16")


@pytest.mark.parametrize("metric", ["auroc", "f1"])
def test_rates_are_chosen_on_folds_that_lack_a_rare_class(metric):
    labels = (torch.arange(60) < 3).long()
    result = run(train=(draw(60, 1, 8), labels), metric=metric, method="naive")
    assert 0 <= next(row for row in result.table if row.method == "naive").error_valid <= 1


@pytest.mark.parametrize("compare", [None, "fa", ("fa",), {"fa"}, []])
def test_a_comparison_is_named_in_several_ways(compare):
    result = run(compare=compare)
    assert ("fa" in {row.method for row in result.table}) == bool(compare)
    assert result.request["compare"] == (["fa"] if compare else False)


def test_what_names_no_comparison_and_batches_that_do_not_pair_are_refused():
    inputs, labels = make_target(30)
    with pytest.raises(DataError, match="compare= is True, False or names"):
        run(compare=5)
    with pytest.raises(ShapeError, match="Batch 0 of the training data has 5 inputs and 6 labels"):
        run(train=[(inputs[:5], labels[:6]), (inputs[5:], labels[6:])])


def test_a_source_that_knows_nothing_of_its_proxy_is_remarked_on():
    inputs, _ = make_proxy(200)
    result = run(proxy=(inputs, draw(200).argsort() % 3))
    assert any("was the source trained" in note for note in result.notes)


def test_a_comparison_runs_the_methods_of_its_list():
    result = run(compare=["fa"], predictor="head")
    assert [row.method for row in result.table] == ["raw-linear", "nearest", "scratch", "linear-probe", "naive", "fa"]
    assert [row.trial for row in result.table if row.method == "fa"] == ["head"]
    assert "fa" in [row.method for row in run(compare="fa").table]


def test_lines_of_progress_say_what_is_done(tmp_path):
    lines: list[str] = []
    run(method="nearest", progress=lines.append, state=tmp_path / "state")
    assert any(re.fullmatch("method . of 4: nearest, as it is, part 5 of 5", line) for line in lines)
    assert "fitting nearest to all samples" in lines and not any("earlier run" in line for line in lines)
    run(method="nearest", progress=lines.append, state=tmp_path / "state")
    assert any(re.fullmatch(r"going on from an earlier run, which had done \d+ fits", line) for line in lines)


def test_no_fit_is_made_more_often_than_it_must(monkeypatch):
    from interbasin.jobs.adapt import validation

    counts: Counter[str] = Counter()
    original = validation.fit

    def fit(setup, name, rows, trial):
        counts[name] += 1
        return original(setup, name, rows, trial)

    monkeypatch.setattr(validation, "fit", fit)
    run(method="naive")
    assert counts == {
        "raw-linear": 20,
        "nearest": 5,
        "scratch": 7,
        "naive": 7,
    }  # two rates on two folds, the better one on the rest


# ---------------------------------------------------------------------- cases where the answer is known


def clusters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Twelve clusters with four labels, and twenty larger numbers that mean nothing: few samples do not tell which."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.arange(count) % 12
    rows = 2 * draw(12, 6, seed=40)[numbers] + 0.3 * torch.randn(count, 6, generator=generator)
    return torch.cat([rows, 3 * torch.randn(count, 20, generator=generator)], 1), numbers % 4


def make_expert() -> Source:
    """A source that has learned from many samples which numbers count."""
    torch.manual_seed(0)
    embedder = nn.Linear(26, 26)
    nn.init.eye_(embedder.weight)
    body, head = nn.Sequential(nn.Linear(26, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()), nn.Linear(32, 4)
    optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)
    inputs, labels = clusters(4000, 1)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(head(body(embedder(inputs))), labels).backward()
        optimiser.step()
    return Source(embedder, body, head)


@pytest.mark.slow
def test_where_the_source_solves_a_rotated_task_pre_training_beats_scratch():
    turn = torch.linalg.qr(draw(26, 26, seed=4))[0]
    embedder = nn.Linear(26, 26)  # nearly turns back
    with torch.no_grad():
        embedder.weight.copy_(turn + 0.03 * draw(26, 26, seed=6))
        embedder.bias.zero_()
    inputs, labels = clusters(60, 2)
    others, answers = clusters(400, 3)
    result = ib.adapt(
        make_expert(),
        clusters(400, 5),
        (inputs @ turn, labels),
        test=(others @ turn, answers),
        embedder=embedder,
        compare=["scratch", "naive", "recraft"],
        steps=60,
    )
    on_test = {row.method: row.error_test for row in result.table}
    assert result.verdict.choice in ("transfer", "align"), result.verdict
    assert METHODS[result.method].traits["group"] in ("transfer", "align")
    assert on_test[result.method] < min(on_test["scratch"], on_test["raw-linear"], on_test["nearest"]) - 0.1, on_test


def test_what_found_nothing_to_align_stands_for_a_plain_transfer():
    expert = make_expert()
    inputs, labels = clusters(60, 2)

    def groups(data: Tensor) -> dict[str, str]:
        result = ib.adapt(
            expert,
            clusters(400, 5),
            (data, labels // 2),
            embedder=copy.deepcopy(expert.embedder),
            method="recraft",
            **QUICK,
        )
        assert ("nothing to align" in " ".join(result.notes)) == (len(result.looks) == 1)
        return {row.method: row.group for row in result.table}

    assert groups(inputs)["recraft"] == "transfer" and groups(inputs.flip(1))["recraft"] == "align"


@pytest.mark.slow
def test_where_labels_are_linear_in_the_raw_input_no_network_is_advised():
    inputs = draw(150, 1, 8)
    result = run(train=(inputs, (inputs[:, 0] @ torch.arange(8.0) > 0).long()), method="auto", steps=30)
    assert result.verdict.choice == "simple-model" and result.verdict.methods["simple"] == "raw-linear"
    assert str(result.verdict).startswith("Do not use a network: raw-linear")


def test_twenty_samples_are_too_few_to_tell():
    assert run(train=make_target(20)).verdict.choice == "too-few"


@pytest.mark.slow
def test_labels_that_are_noise_are_hardly_ever_taken_for_a_gain():
    choices = []
    for seed in range(8):
        labels = torch.randint(0, 2, (60,), generator=torch.Generator().manual_seed(seed))
        choices.append(
            run(train=(draw(60, 1, 8, seed=seed), labels), method="auto", steps=10, seed=seed).verdict.choice
        )
    assert sum(choice in ("transfer", "align") for choice in choices) == 0, choices


# ---------------------------------------------------------------------- hard cases


def test_a_fold_may_lack_a_class():
    result = run(train=(INPUTS[:10], torch.tensor([0, 0, 0, 1, 0, 0, 0, 0, 0, 0])))
    assert errors(result)["raw-linear"] == pytest.approx(0.1) and result.verdict.choice == "too-few"


@pytest.mark.slow
@pytest.mark.parametrize(
    "train",
    [
        (torch.zeros(30, 1, 8), LABELS),
        (torch.ones(30, 1, 8), LABELS),
        (INPUTS[:, 0, :1], LABELS),
        (INPUTS[:1].expand(30, -1, -1), LABELS),
        (INPUTS[:10], torch.tensor([0, 0, 0, 1, 0, 0, 0, 0, 0, 0])),
        (INPUTS, (LABELS > 0) * 3),
        (INPUTS, LABELS > 0),
        (1e-30 * INPUTS, LABELS),
    ],
    ids=[
        "zeros",
        "ones",
        "a feature",
        "duplicates",
        "a class of one",
        "a gap in the classes",
        "booleans",
        "tiny values",
    ],
)
def test_data_that_are_hard_to_learn_are_adapted_to_all_the_same(train):
    result = run(train=train)
    assert bool(result.model(train[0]).isfinite().all()) and str(result.verdict)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "recaft"}, UnknownNameError, r"named 'recaft'; try one of: recraft,"),
        ({"compare": ["recaft"]}, UnknownNameError, r"named 'recaft'; try one of: recraft,"),
        ({"test": (INPUTS, LABELS + 1)}, DataError, r"Label 3 in row \d+ of the test data is out of range"),
        ({"test": (INPUTS[:, :, :5], LABELS)}, ShapeError, r"the test data have shape \(1, 5\)"),
        ({"valid": (INPUTS[:, :, :5], LABELS)}, ShapeError, r"the validation data have shape \(1, 5\)"),
        ({"unlabelled": draw(5, 1, 9)}, ShapeError, r"the unlabelled data have shape \(1, 9\)"),
        ({"test": (INPUTS[:3], LABELS[:3] * 0), "metric": "auroc"}, DataError, "AUROC needs"),
        ({"embedder": nn.Sequential(nn.Flatten(), nn.Linear(8, 9))}, ShapeError, r"trained on \(10,\)"),
        ({"embedder": nn.Flatten()}, DataError, "has no parameters"),
        ({"task": "regression", "predictor": "transport"}, DataError, 'use predictor="head" or predictor="auto"'),
        ({"discretise": "ten"}, DataError, "discretise must be a whole number"),
        ({"minutes": 0}, DataError, "minutes must be a number above 0"),
        ({"seed": -1}, DataError, "seed must be a whole number"),
    ],
)
def test_what_cannot_be_adapted_is_refused_before_anything_is_trained(options, error, message):
    with pytest.raises(error, match=message):
        run(**options)


# ---------------------------------------------------------------------- sources of other libraries


def vit() -> nn.Module:
    timm = import_extra("timm", "This test", "timm")
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes)


def resnet() -> nn.Module:
    return import_extra("timm", "This test", "timm").create_model("test_resnet", num_classes=3)


def bert() -> nn.Module:
    transformers = import_extra("transformers", "This test", "hf")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return transformers.BertModel(transformers.BertConfig(vocab_size=99, **sizes))


TOKENS = torch.randint(5, 99, (24, 7), generator=torch.Generator().manual_seed(0))
FAMILIES = {
    "timm ViT": (vit, draw(24, 3, 32, 32)),
    "timm ResNet": (resnet, draw(24, 3, 32, 32)),
    "BERT, by tokens": (bert, TOKENS),
    "BERT, by a mapping": (bert, {"input_ids": TOKENS, "token_type_ids": torch.zeros_like(TOKENS)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_other_libraries_are_adapted_to_a_signal(family):
    make, inputs = FAMILIES[family]
    torch.manual_seed(0)
    model = make().eval()
    before = bits(model)
    signals = draw(24, 1, 32, seed=3), torch.arange(24) % 2
    result = ib.adapt(model, (inputs, torch.arange(24) % 3), signals, test=signals, steps=3, align_steps=3)
    assert same_bits(model, before)
    assert bool(result.model(signals[0]).isfinite().all()) and result.verdict.choice == "too-few"
    assert Source.of(model).body is not None and 0 <= result.metrics["error_test"] <= 1


def test_numbers_of_numpy_and_a_generator_of_names_are_plain_ones(tmp_path):
    options = {"seed": np.int64(3), "steps": np.int64(2), "rate": np.float32(0.01), "state": tmp_path / "state"}
    names = (name for name in "abc")
    result = ib.adapt(make_mlp(), make_proxy(), make_target(), method="nearest", classes=names, **options)
    result.save(tmp_path / "out")
    assert result.request["seed"] == 3 and type(result.request["steps"]) is int
    assert result.model.classes == ("a", "b", "c")


def test_the_callers_default_precision_plays_no_part_and_stays():
    given = make_mlp(), make_proxy(), make_target()
    expected = ib.adapt(*given, method="naive", **QUICK)
    torch.set_default_dtype(torch.float64)
    try:
        result = ib.adapt(*given, method="naive", **QUICK)
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert result.metrics == expected.metrics


def test_options_without_effect_and_a_model_that_is_not_the_verdicts_are_said():
    given = {"unlabelled": draw(4, 1, 8), "predictor": "head", "rank": 3}
    notes = ib.adapt(make_mlp(), make_proxy(), make_target(), method="naive", steps=2, **given).notes
    assert any("unlabelled=, predictor= had no effect" in note for note in notes)
    assert any("rank= had no effect" in note for note in notes)
    given = {"method": "recraft", "predictor": "transport", "distortion_steps": 1}
    notes = ib.adapt(make_mlp(), make_proxy(), make_target(), **given, **QUICK).notes
    assert any("distortion_steps= had no effect" in note for note in notes)
    notes = ib.adapt(make_mlp(), make_proxy(), make_target(), method="naive", steps=2).notes
    assert not any("no effect" in note for note in notes)


def test_simple_models_have_a_test_error_without_a_comparison():
    result = ib.adapt(make_mlp(), make_proxy(), make_target(), test=make_target(12), method="linear-probe", **QUICK)
    tested = {row.method for row in result.table if row.error_test is not None}
    assert tested == {"raw-linear", "nearest", "linear-probe"} == set(result.scores_test)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_table_is_the_same_in_other_units_and_comes_back_from_a_file(tmp_path, kind):
    rows = draw(40, 5)
    labels = (rows[:, 0] > 0).long() if kind == "classification" else rows[:, :1]
    units = torch.tensor([1e-2, 1.0, 64.0, 1.0, 1.0])
    options = {"task": kind, "method": "naive", **QUICK}
    plain, scaled = (ib.adapt(make_mlp(), make_proxy(), (rows * unit, labels), **options) for unit in (1.0, units))
    for row, other in zip(plain.table, scaled.table, strict=True):
        assert row.loss_valid == pytest.approx(other.loss_valid, rel=2e-2, abs=1e-3)
    scaled.save(tmp_path / "out")
    again = load_adapted(tmp_path / "out", make_mlp())
    assert torch.equal(again(rows * units), scaled.model(rows * units))
