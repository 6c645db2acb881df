"""From disk to disk: what is written, what is copied along, what is refused, and that nothing is left half-done."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.jobs.merge.networks import saved, tensors
from tests.test_storage import left_in, refused
from typer.testing import CliRunner

from interbasin import merge
from interbasin.checkpoints import open_checkpoint, write_checkpoint
from interbasin.cli import app
from interbasin.errors import CheckpointError, DataError, FileError, InterbasinError, ShapeError, WiringError
from interbasin.outcome import Outcome

LORA = {"peft_type": "LORA", "base_model_name_or_path": "some/base", "r": 2, "lora_alpha": 4, "target_modules": ["q"]}


@pytest.fixture(name="pair")
def two_folders(tmp_path):
    return [saved(tmp_path / name, tensors(seed)) for seed, name in enumerate(("one", "two"))]


def test_a_folder_holds_weights_configuration_tokenizer_card_and_outcome(pair, tmp_path):
    made = merge(pair, output=tmp_path / "out")
    files = ["README.md", "config.json", "model.safetensors", "outcome.json", "tokenizer.json"]
    assert left_in(tmp_path / "out") == files
    assert (tmp_path / "out/config.json").read_bytes() == (pair[0] / "config.json").read_bytes()
    expected = merge([tensors(0), tensors(1)])
    found = load_file(tmp_path / "out/model.safetensors")  # the library reads what was streamed
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert made.metrics == {"tensors": 6, "parameters": 1236, "tensors_unchanged": 0, "bytes": 4944, "files": 1}
    assert json.loads(json.dumps(made.summary()))["output"] == str(tmp_path / "out")


def test_the_outcome_tells_what_was_asked_of_what(pair, tmp_path):
    base = saved(tmp_path / "base", tensors(2))
    merge(pair, "ties", base=base, weights=[1, 0.5], density=0.25, output=tmp_path / "out")
    outcome = Outcome.load(tmp_path / "out")
    outcome.verify()
    assert outcome.job == "merge"
    assert outcome.request == {
        "models": [str(one) for one in pair],
        "method": "ties",
        "weights": [1.0, 0.5],
        "density": 0.25,
        "scale": 1.0,
        "base": str(base),
        "dtype": None,
    }
    weights = hashlib.sha256((pair[1] / "model.safetensors").read_bytes()).hexdigest()
    assert outcome.inputs["model 2"].files["model.safetensors"].sha256 == weights
    assert set(outcome.inputs) == {"model 1", "model 2", "base"}
    assert outcome.metrics["parameters"] == 1236
    assert torch.equal(outcome.checkpoint()["norm.weight"], open_checkpoint(tmp_path / "out")["norm.weight"])


def test_shards_go_in_and_come_out(tmp_path):
    for seed, name in enumerate(("one", "two")):
        write_checkpoint(tmp_path / name, tensors(seed), max_shard_bytes=1000 * (seed + 1))
    made = merge([tmp_path / "one", tmp_path / "two"], output=tmp_path / "out", max_shard_bytes=2500)
    files = [file for file in left_in(tmp_path / "out") if file.endswith(".safetensors")]
    assert files == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert made.metrics["files"] == 3
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4944 and set(index["weight_map"]) == set(tensors(0))
    found, expected = open_checkpoint(tmp_path / "out"), merge([tensors(0), tensors(1)])
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path):
    for seed, name in enumerate(("one", "two")):
        values = tensors(seed)
        write_checkpoint(tmp_path / name, values | {"head.weight": values["embed.weight"]})
    merge([tmp_path / "one", tmp_path / "two"], output=tmp_path / "out")
    found = open_checkpoint(tmp_path / "out")
    assert dict(found.ties) == {"head.weight": "embed.weight"} and "head.weight" not in found.sources
    assert torch.equal(found["head.weight"], merge([tensors(0), tensors(1)])["embed.weight"])


def test_a_tie_that_another_model_lacks_is_refused_unless_it_is_equal(tmp_path):
    values = tensors(0)
    write_checkpoint(tmp_path / "tied", values | {"head.weight": values["embed.weight"]})
    other = tensors(1)
    saved(tmp_path / "equal", other | {"head.weight": other["embed.weight"].clone()})
    saved(tmp_path / "untied", other | {"head.weight": other["embed.weight"] + 1})
    merge([tmp_path / "tied", tmp_path / "equal"], output=tmp_path / "out")
    assert open_checkpoint(tmp_path / "out").ties
    words = ("head.weight is tied to embed.weight", "untied they differ", "first")
    refused(lambda: merge([tmp_path / "tied", tmp_path / "untied"], output=tmp_path / "no"), WiringError, words)
    merge([tmp_path / "untied", tmp_path / "tied"], output=tmp_path / "way")
    assert not open_checkpoint(tmp_path / "way").ties


def test_a_tie_whose_second_name_another_model_leaves_out_is_the_same_network(tmp_path):
    """Transformers stores a tied head under one name, as an aligned network of it is not."""
    values = tensors(0)
    write_checkpoint(tmp_path / "tied", values | {"head.weight": values["embed.weight"]})
    saved(tmp_path / "plain", tensors(1))
    merge([tmp_path / "tied", tmp_path / "plain"], output=tmp_path / "out")
    assert dict(open_checkpoint(tmp_path / "out").ties) == {"head.weight": "embed.weight"}
    merge([tmp_path / "plain", tmp_path / "tied"], output=tmp_path / "turned")
    expected = merge([tensors(0), tensors(1)])
    for name in ("out", "turned"):
        found = load_file(tmp_path / name / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[one], tensor) for one, tensor in expected.items())
    saved(tmp_path / "untied", tensors(1) | {"head.weight": tensors(1)["embed.weight"] + 1})
    words = ("untied holds head.weight, which", "plain lacks")
    refused(lambda: merge([tmp_path / "plain", tmp_path / "untied"], output=tmp_path / "no"), WiringError, words)
    three = [tmp_path / "tied", tmp_path / "plain", tmp_path / "untied"]
    refused(lambda: merge(three, output=tmp_path / "no"), WiringError, ("untied holds head.weight",))


def test_the_dtype_can_be_chosen_and_the_configuration_says_so(pair, tmp_path):
    merge(pair, output=tmp_path / "out", dtype="bfloat16")
    found = open_checkpoint(tmp_path / "out")
    assert {found.dtype(name) for name in found} == {torch.bfloat16}
    expected = merge([tensors(0), tensors(1)])
    assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in expected.items())
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_mixed_dtypes_and_counts_are_kept(tmp_path):
    kinds = (torch.bfloat16, torch.float64, torch.float16, torch.float32)
    for seed, name in enumerate(("one", "two")):
        values = {f"x{place}": torch.randn(7).to(kind) for place, kind in enumerate(kinds)}
        values |= {"positions": torch.arange(5), "count": torch.tensor(seed), "flag": torch.tensor([True])}
        saved(tmp_path / name, values)
    made = merge([tmp_path / "one", tmp_path / "two"], output=tmp_path / "out")
    first, found = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "out"))
    assert {name: value.dtype for name, value in found.items()} == {name: value.dtype for name, value in first.items()}
    assert found["count"].item() == 0 and torch.equal(found["positions"], torch.arange(5))
    assert made.notes == ("count holds no real numbers and differs; it was taken from one model.",)


def test_files_are_merged_into_a_file(tmp_path):
    for seed, name in enumerate(("one", "two")):
        save_file(tensors(seed), tmp_path / f"{name}.safetensors")
    paths = [str(tmp_path / "one.safetensors"), f"timm:some@{tmp_path / 'two.safetensors'}"]
    merge(paths, "slerp", t=0.25, output=tmp_path / "out.safetensors")
    found = open_checkpoint(tmp_path / "out.safetensors")
    expected = merge([tensors(0), tensors(1)], "slerp", t=0.25)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    note = json.loads(found.metadata["merge"])
    assert (note["method"], note["t"], len(note["sha256"])) == ("slerp", 0.25, 2)
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in note["sha256"].values())


def test_torch_files_are_read_too(tmp_path):
    torch.save(tensors(0), tmp_path / "one.pt")
    saved(tmp_path / "two", tensors(1))
    merge([tmp_path / "one.pt", tmp_path / "two"], output=tmp_path / "out")
    found, expected = open_checkpoint(tmp_path / "out"), merge([tensors(0), tensors(1)])
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert (tmp_path / "out/tokenizer.json").is_file()  # of the first that is a folder


def test_open_checkpoints_will_do(pair, tmp_path):
    merge([open_checkpoint(one) for one in pair], output=tmp_path / "out")
    assert open_checkpoint(tmp_path / "out").numel == 1236


def test_progress_counts_tensors(pair, tmp_path):
    seen = []
    merge(pair, output=tmp_path / "out", progress=seen.append)
    assert seen == [1, 2, 3, 4, 5, 6]


# The model card


def front_matter(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_the_card_says_what_was_merged_and_how(pair, tmp_path):
    base = saved(tmp_path / "base", tensors(2))
    merge(pair, "ties", base=base, weights=[1, 0.5], density=0.25, output=tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert front_matter(card) == {"library_name": "transformers", "tags": ["merge", "interbasin"]}
    rows = re.findall(r"^\| (.+?) \| *([\d.]*) *\| `([0-9a-f]{64})` \|$", card, re.MULTILINE)
    assert [row[:2] for row in rows] == [("one", "1"), ("two", "0.5"), ("base (the base)", "")]
    # The hash of a folder is that of what sha256sum prints.
    names = sorted(file.name for file in pair[0].iterdir())
    lines = "".join(f"{hashlib.sha256((pair[0] / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    assert rows[0][2] == hashlib.sha256(lines.encode()).hexdigest()
    assert "- density: 0.25\n- scale: 1\n" in card and "1,236 numbers in 6 tensors" in card
    assert "Yadav et al." in card and "interbasin 0." in card and "NumPy" in card
    assert str(tmp_path) not in card


def test_the_command_on_the_card_makes_the_same_again(pair, tmp_path, monkeypatch):
    merge(pair, "average", weights=[1, 2], dtype="float16", output=tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    words = shlex.split(card.split("```sh\n")[1].split("\n```")[0])
    assert words[:2] == ["interbasin", "merge"]
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, words[1:]).exit_code == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "OUT"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_models_from_a_cache_of_a_hub_are_named_as_there(tmp_path):
    folders = [
        saved(tmp_path / f"models--some-one--{name}/snapshots/0123abc", tensors(seed))
        for seed, name in enumerate(("tiny.a", "tiny-b"))
    ]
    merge(folders, "lerp", t=0.3, output=tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    head = front_matter(card)
    assert head["base_model"] == ["some-one/tiny.a", "some-one/tiny-b"] and head["base_model_relation"] == "merge"
    assert "| some-one/tiny.a | 0.7 |" in card and "| some-one/tiny-b | 0.3 |" in card


def test_odd_names_do_not_break_the_card(tmp_path):
    folders = [saved(tmp_path / name, tensors(seed)) for seed, name in enumerate(('a|b: "c"', "- d"))]
    merge(folders, output=tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert front_matter(card)["tags"] == ["merge", "interbasin"]
    assert '| a\\|b: "c" | 0.5 |' in card


# What a user should know


def test_opposite_tensors_under_slerp_are_told(tmp_path):
    values = tensors(0)
    one = saved(tmp_path / "one", values)
    two = saved(tmp_path / "two", values | {"norm.weight": -values["norm.weight"]})
    refused(
        lambda: merge([one, two], "slerp", output=tmp_path / "out"), DataError, ("norm.weight points opposite ways",)
    )
    made = merge([one, two], "slerp", t=0.3, output=tmp_path / "out")
    assert len(made.notes) == 1 and made.notes[0].startswith("norm.weight point opposite ways")
    assert made.metrics["tensors_unchanged"] == 5
    assert Outcome.load(tmp_path / "out").notes == made.notes
    assert made.notes[0] in (tmp_path / "out/README.md").read_text()


def test_configurations_and_tokenizers_that_differ_are_told(pair, tmp_path):
    other = saved(tmp_path / "other", tensors(3), rope_theta=5e5, transformers_version="9")
    mine = saved(tmp_path / "mine", tensors(4), rope_theta=1e4)
    (other / "tokenizer.json").write_text('{"version": "2.0"}')
    notes = merge([mine, other], output=tmp_path / "out").notes
    assert len(notes) == 2
    assert "differ in rope_theta; the merged network has the first one's" in notes[0]
    assert "tokenizers" in notes[1]


# What is refused, with nothing written


def nothing_written(action, error, words, folder):
    before = left_in(folder)
    message = refused(action, error, words)
    assert left_in(folder) == before
    return message


def test_architectures_that_only_look_alike_are_refused(pair, tmp_path):
    other = saved(tmp_path / "other", tensors(3), model_type="small")
    words = ("is of the architecture tiny", "of small", "files themselves")
    nothing_written(lambda: merge([pair[0], other], output=tmp_path / "out"), WiringError, words, tmp_path)
    merge([one / "model.safetensors" for one in (pair[0], other)], output=tmp_path / "out")


def test_another_width_depth_or_a_missing_tensor_is_refused(pair, tmp_path):
    wide = saved(tmp_path / "wide", tensors(3, width=16))
    deep = saved(tmp_path / "deep", tensors(3, layers=4))
    values = tensors(3)
    del values["layers.1.up.weight"]
    less = saved(tmp_path / "less", values)
    for other, error, words in (
        (wide, ShapeError, ("embed.weight has shape 20 x 12", "20 x 16", "the job of transport")),
        (deep, WiringError, (f"{deep} is deeper than {pair[0]}", "layers.2.down.weight and 3 more")),
        (less, WiringError, (f"{pair[0]} holds layers.1.up.weight, which {less} lacks",)),
    ):
        nothing_written(lambda other=other: merge([pair[0], other], output=tmp_path / "out"), error, words, tmp_path)


def test_an_adapter_is_refused_by_name(pair, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_file({"base_model.model.q.lora_A.weight": torch.ones(2, 3)}, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps(LORA))
    words = (f"{adapter} is a LoRA of some/base and not a network", "merge_and_unload")
    nothing_written(lambda: merge([pair[0], adapter], output=tmp_path / "out"), CheckpointError, words, tmp_path)
    alone = adapter / "adapter_model.safetensors"
    words = ("holds a LoRA (base_model.model.q.lora_A.weight)",)
    nothing_written(lambda: merge([alone, alone], output=tmp_path / "out"), DataError, words, tmp_path)
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    words = ("is an adapter (IA3) and not a network",)
    nothing_written(lambda: merge([adapter], output=tmp_path / "out"), CheckpointError, words, tmp_path)


def test_quantised_weights_are_refused(pair, tmp_path):
    other = saved(tmp_path / "other", tensors(3), quantization_config={"quant_method": "gptq"})
    words = ("quantised with GPTQ",)
    nothing_written(lambda: merge([pair[0], other], output=tmp_path / "out"), CheckpointError, words, tmp_path)


def test_a_model_that_is_not_there_is_refused(pair, tmp_path):
    words = ("there is nothing there",)
    nothing_written(
        lambda: merge([*pair, tmp_path / "none"], output=tmp_path / "out"), CheckpointError, words, tmp_path
    )
    nothing_written(lambda: merge([*pair, "some/hub-id"], output=tmp_path / "out"), CheckpointError, words, tmp_path)


def test_numbers_that_are_not_finite_are_refused(pair, tmp_path):
    values = tensors(3)
    values["layers.1.up.weight"][4, 4] = torch.nan
    other = saved(tmp_path / "other", values)
    words = (f"layers.1.up.weight in {other} holds NaN or infinity",)
    nothing_written(lambda: merge([pair[0], other], output=tmp_path / "out"), DataError, words, tmp_path)


def test_a_dtype_that_no_file_holds_is_refused(tmp_path):
    torch.save({"x": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "x.pt")
    words = ("x is of complex128, which a safetensors file cannot hold",)
    given = [tmp_path / "x.pt"] * 2
    nothing_written(lambda: merge(given, output=tmp_path / "out"), DataError, words, tmp_path)


@pytest.mark.parametrize("place", ["one", "one/inside", "."])
def test_the_inputs_are_not_written_over(pair, tmp_path, place):
    words = ("which it is made from", "another name")
    action = lambda: merge(pair, output=tmp_path / place, force=True)  # noqa: E731
    nothing_written(action, FileError, words, tmp_path)


@pytest.mark.parametrize("name", ["out", "out.safetensors"])
def test_an_earlier_merge_is_replaced_only_when_asked(pair, tmp_path, name):
    merge(pair, output=tmp_path / name)
    words = ("exists already", "--force")
    nothing_written(lambda: merge(pair, "lerp", t=0, output=tmp_path / name), FileError, words, tmp_path)
    merge(pair, "lerp", t=0, output=tmp_path / name, force=True)
    assert torch.equal(open_checkpoint(tmp_path / name)["norm.weight"], tensors(0)["norm.weight"])


def test_what_a_merge_did_not_write_is_never_replaced(pair, tmp_path):
    other = saved(tmp_path / "other", tensors(3))
    words = ("did not write",)
    nothing_written(lambda: merge(pair, output=other, force=True), FileError, words, tmp_path)
    (tmp_path / "mine.safetensors").write_bytes(b"mine")
    action = lambda: merge(pair, output=tmp_path / "mine.safetensors", force=True)  # noqa: E731
    nothing_written(action, FileError, words, tmp_path)


@pytest.mark.parametrize("name", ["out", "out.safetensors"])
@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=str)
def test_an_interrupt_or_a_full_disk_leaves_nothing(pair, tmp_path, name, fault):
    def stop(done: int) -> None:
        if done == 3:
            raise fault

    before = left_in(tmp_path)
    with pytest.raises(KeyboardInterrupt if fault is KeyboardInterrupt else InterbasinError):
        merge(pair, output=tmp_path / name, progress=stop)
    assert left_in(tmp_path) == before


def test_a_model_that_changes_while_it_is_merged_is_noticed(pair, tmp_path):
    def meddle(done: int) -> None:
        if done == 2:
            os.utime(pair[1] / "model.safetensors", ns=(1, 1))

    before = left_in(tmp_path)
    refused(lambda: merge(pair, output=tmp_path / "out", progress=meddle), CheckpointError, ("has changed since",))
    assert left_in(tmp_path) == before


def test_merging_on_disk_does_not_wait_for_torch(pair, tmp_path):
    script = (
        "import sys\n"
        "from interbasin import merge\n"
        f"merge({[str(one) for one in pair]}, 'slerp', output={str(tmp_path / 'out')!r})\n"
        "print(sorted({'torch', 'scipy', 'transformers', 'pyarrow', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_network(tmp_path):
    """Eighty times the numbers, within a few megabytes of the same peak, by every method."""
    for name, rows in {"small": 512, "large": 40960}.items():
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            values = {"table": torch.randn(rows, 256, generator=generator).bfloat16()}
            save_file(values, tmp_path / f"{name}{seed}.safetensors")
    script = (
        "import resource, sys\n"
        "from interbasin import merge\n"
        "one, two, base, out, method = sys.argv[1:]\n"
        "merge([one, two], method, base=base if method in ('task-arithmetic', 'ties') else None, output=out)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    for method in ("lerp", "slerp", "average", "task-arithmetic", "ties"):
        peaks = []
        for name in ("small", "large"):
            files = [tmp_path / f"{name}{seed}.safetensors" for seed in range(3)]
            command = [sys.executable, "-c", script, *files, tmp_path / f"{name}-{method}", method]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(int(done.stdout) / 1024)
        assert peaks[1] - peaks[0] < (24 if method == "ties" else 8), (method, peaks)
