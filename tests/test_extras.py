"""Optional packages: what is missing is named, and a torchvision built for another torch is in nobody's way."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.fresh import Starter, starting
from tests.test_storage import refused

from interbasin.errors import MissingExtraError
from interbasin.extras import OPERATORS, import_extra, is_transformers_model, retry_with_torchvision

UNDECLARED = "operator torchvision::nms does not exist"


def write_module(folder: Path, name: str, source: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(source, "utf-8")


@pytest.fixture(scope="module")
def starter(tmp_path_factory) -> Iterator[Starter]:
    # What timm and transformers import too, and which has nothing to do with torchvision.
    with starting(tmp_path_factory.mktemp("printed"), "torch._dynamo", "scipy.optimize") as found:
        yield found


# ---------------------------------------------------------------------- what is missing


def test_a_module_comes_back_as_an_import_statement_would_bring_it():
    assert import_extra("json", "Nothing", "hf") is json
    assert import_extra("json.decoder", "Nothing", "hf") is json.decoder


@pytest.mark.parametrize("module", ["nowhere", "nowhere.deeper", "json.nowhere"])
def test_what_is_not_installed_names_its_extra(module):
    message = refused(lambda: import_extra(module, "Reading tea leaves", "timm"), MissingExtraError)
    assert message == (
        "Reading tea leaves needs the 'timm' extra, which is not installed; run: pip install 'interbasin[timm]'."
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise OSError('undefined\\n  symbol.')", ("(OSError: undefined symbol)",)),
        ("import nowhere", ("(ModuleNotFoundError: No module named 'nowhere')",)),
        ("raise ImportError('too old')", ("(ImportError: too old)",)),
    ],
)
def test_what_is_installed_and_does_not_import_says_why(source, words, tmp_path, monkeypatch):
    write_module(tmp_path, "extra_that_fails", source)
    monkeypatch.syspath_prepend(tmp_path)
    words = (
        "Reading needs extra_that_fails",
        "installed but cannot be imported",
        *words,
        "python -c 'import extra_that",
    )
    refused(lambda: import_extra("extra_that_fails", "Reading", "timm"), MissingExtraError, words)


# ---------------------------------------------------------------------- torchvision, and doubles of it

# As torchvision does while it is imported, whose compiled operators do not load.
BROKEN = """
import warnings
import torch
torch.library.register_fake("torchvision::nms", lambda dets, scores, iou_threshold: dets)
torch.library.register_fake("torchvision::qnms", lambda dets, scores, iou_threshold: dets)
warnings.warn("Failed to load image Python extension")
"""
WORKING = "print('imported')"
NOVEL = "raise RuntimeError('operator torchvision::novel does not exist')"
OTHERWISE_BROKEN = "raise OSError('no libjpeg here')"


def run_beside(torchvision: str, program: str, folder: Path, starter: Starter) -> list[str]:
    """The lines that ``program`` prints in a fresh process, in which ``torchvision`` is the source of that package."""
    write_module(folder / "double", "torchvision", torchvision)
    write_module(folder / "double", "vision_user", "import torchvision")
    before = f"import sys, warnings\nwarnings.simplefilter('always')\nsys.path.insert(0, {str(folder / 'double')!r})"
    done = starter.run(f"{before}\n{program}", folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


DECLARED = "import torch; print(hasattr(torch.ops.torchvision, 'nms'))\n"
# What fails in the user's hands first works afterwards.
FAILED = f"""
try:
    import torchvision
except RuntimeError as error:
    assert str(error) == {UNDECLARED!r}
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", FAILED], ids=["at-first", "after-a-failure"])
def test_a_torchvision_without_its_operators_becomes_importable_and_says_nothing(before, tmp_path, starter):
    program = f"""
{before}
from interbasin.extras import declare_torchvision_operators, import_extra
declare_torchvision_operators()
import torchvision
import_extra("torchvision", "Seeing", "timm")
import vision_user
declare_torchvision_operators()
{DECLARED}
"""
    assert run_beside(BROKEN, program, tmp_path, starter) == ["True"]


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import torchvision; torchvision.mine = 1"], ids=["not-yet", "imported"])
def test_a_torchvision_that_works_is_left_alone(before, tmp_path, starter):
    program = f"""
{before}
from interbasin.extras import import_extra
torchvision = import_extra("torchvision", "Seeing", "timm")
print(hasattr(torchvision, "mine"))
{DECLARED}
"""
    assert run_beside(WORKING, program, tmp_path, starter) == ["imported", str(bool(before)), "False"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "reason", "remedy"),
    [
        (NOVEL, "RuntimeError: operator torchvision::novel does", "install the torchvision that was built for this"),
        (OTHERWISE_BROKEN, "OSError: no libjpeg here", "python -c 'import torchvision' shows where it fails"),
    ],
    ids=["novel-operator", "otherwise"],
)
def test_a_torchvision_that_cannot_be_mended_is_reported(source, reason, remedy, tmp_path, starter):
    program = """
from interbasin.errors import MissingExtraError
from interbasin.extras import import_extra
try:
    import_extra("torchvision", "Seeing", "timm")
except MissingExtraError as error:
    print(error)
"""
    (message,) = run_beside(source, program, tmp_path, starter)
    assert message.startswith("Seeing needs torchvision") and reason in message and remedy in message


def test_without_torchvision_nothing_is_declared():
    program = (
        "import sys\nsys.modules['torchvision'] = None\n"
        "from interbasin.extras import declare_torchvision_operators\ndeclare_torchvision_operators()\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_signatures_are_those_that_torchvision_describes():
    registrations = import_extra("torchvision._meta_registrations", "Comparing", "timm")
    for name, schema in OPERATORS.items():
        described = inspect.signature(getattr(registrations, f"meta_{name}"))
        declared = torch._C.parse_schema(f"torchvision::{name}{schema}")
        assert [argument.name for argument in declared.arguments] == list(described.parameters)
        assert getattr(torch.ops.torchvision, name).default._schema == declared


# ---------------------------------------------------------------------- code of the user's


def test_code_that_lacks_the_operators_runs_again_and_other_code_does_not(monkeypatch):
    declared, calls = [], []
    monkeypatch.setattr("interbasin.extras.declare_torchvision_operators", lambda: declared.append(True))

    def fail_once() -> str:
        calls.append(True)
        if len(calls) == 1:
            try:
                raise RuntimeError(UNDECLARED)
            except RuntimeError as error:
                raise ModuleNotFoundError("Could not import module 'LlamaForCausalLM'") from error
        return "network"

    assert retry_with_torchvision(fail_once) == "network" and (len(declared), len(calls)) == (1, 2)
    assert retry_with_torchvision(fail_once) == "network" and (len(declared), len(calls)) == (1, 3)

    def fail() -> None:
        calls.append(True)
        raise RuntimeError("another reason")

    with pytest.raises(RuntimeError, match="another reason"):
        retry_with_torchvision(fail)
    assert (len(declared), len(calls)) == (1, 4)


def test_a_network_of_transformers_is_recognised_without_importing_it(monkeypatch):
    class PreTrainedModel(torch.nn.Module): ...

    modeling = type("modeling", (), {"PreTrainedModel": PreTrainedModel})
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", modeling)
    assert is_transformers_model(PreTrainedModel()) and not is_transformers_model(torch.nn.Linear(1, 1))
    monkeypatch.delitem(sys.modules, "transformers.modeling_utils")
    assert not is_transformers_model(PreTrainedModel())


# ---------------------------------------------------------------------- in a fresh process, as a user would

AT_THE_TOP = """
import timm

def at_the_top():
    return timm.create_model("test_resnet")
"""
INSIDE = """
def inside():
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2}
    return ViTModel(ViTConfig(**sizes, image_size=64, patch_size=16))
"""
INSPECT = ["inspect", "--no-check", "--json"]


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """What a fresh process printed to stdout: one that has not imported what the tests import."""
    assert done.returncode == 0, done.stderr
    assert "torchvision" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def networks(tmp_path_factory) -> Path:
    """A folder with a vision transformer, a language model and an adapter of that, and a module with factories."""
    folder = tmp_path_factory.mktemp("fresh")
    transformers = import_extra("transformers", "This test", "hf")
    peft = import_extra("peft", "This test", "hf")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    vit = transformers.ViTConfig(**sizes, image_size=16, patch_size=8)
    transformers.ViTForImageClassification(vit).save_pretrained(folder / "vit")
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=40))
    llama.save_pretrained(folder / "llama")
    base = transformers.LlamaForCausalLM.from_pretrained(folder / "llama")
    peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder / "adapter")
    write_module(folder, "my_timm", AT_THE_TOP)
    write_module(folder, "my_transformers", INSIDE)
    return folder


@pytest.mark.slow
def test_a_network_of_timm_is_inspected_in_a_fresh_process(tmp_path, starter):
    arguments = ("timm:resnet18", "--input-shape", "1,3,64,64", "--no-check", "--json")
    shown = json.loads(printed(starter.run_command(["inspect", *arguments], tmp_path)))
    assert shown["model"]["class"] == "ResNet" and shown["coverage"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["vit"], "ViTForImageClassification"),
        (["llama"], "LlamaForCausalLM"),
        (["adapter"], "PeftModel"),
        (["my_timm:at_the_top", "--input-shape", "1,3,64,64"], "ResNet"),
        (["my_transformers:inside", "--input-shape", "1,3,64,64"], "ViTModel"),
    ],
    ids=["vit", "llama", "adapter", "import-at-the-top", "import-inside"],
)
def test_networks_from_elsewhere_are_inspected_in_a_fresh_process(arguments, kind, networks, starter):
    shown = json.loads(printed(starter.run_command([*INSPECT, *arguments], networks)))
    assert shown["model"]["class"] == kind


@pytest.mark.slow
def test_the_functions_load_and_wire_in_a_fresh_process(networks, starter):
    program = """
import interbasin as ib
for name in ("adapter", "vit", "timm:test_vit", "my_timm:at_the_top"):
    loaded = ib.models.load_model(name, input_shape=(1, 3, 64, 64) if name.startswith("my") else None)
    print(type(loaded.model).__name__, ib.wire(loaded.model, loaded.inputs).coverage > 0.5)
"""
    kinds = ["PeftModel", "ViTForImageClassification", "VisionTransformer", "ResNet"]
    shown = printed(starter.run(program, networks)).splitlines()
    assert shown == [f"{kind} True" for kind in kinds]
