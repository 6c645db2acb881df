"""Networks whose weights stay in their files compute what loaded ones do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.models.test_from_transformers import small
from tests.test_storage import refused
from torch import Tensor, nn

from interbasin.errors import CheckpointError
from interbasin.extras import import_extra
from interbasin.models import load_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def files_of(model: nn.Module) -> set[str]:
    """The names of the files that a network's parameters lie in; ``""`` is memory."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text("utf-8").splitlines()]
    ranges = [(*(int(end, 16) for end in line[0].split("-")), line[5] if len(line) > 5 else "") for line in lines]
    places = set()
    for parameter in model.parameters():
        address = parameter.data_ptr()
        places |= {Path(name).name for first, last, name in ranges if first <= address < last}
    return places


def answers_of(model: nn.Module, inputs: Any) -> Tensor:
    with torch.no_grad():
        outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return getattr(outputs, "logits", outputs)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_folder_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = import_extra("transformers", "A network of transformers", "hf")
    model = small(transformers, name).to(torch.bfloat16 if name == "llama" else torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    loaded, mapped = (load_model(tmp_path, in_files=in_files) for in_files in (False, True))
    assert all(file.startswith("model") for file in files_of(mapped.model))
    assert torch.equal(answers_of(mapped.model, mapped.inputs), answers_of(loaded.model, mapped.inputs))
    assert {name: each.dtype for name, each in mapped.model.state_dict().items()} == {
        name: each.dtype for name, each in loaded.model.state_dict().items()
    }
    tied = mapped.model.get_output_embeddings().weight is mapped.model.get_input_embeddings().weight
    assert tied == (name == "gpt2") and not mapped.model.training


@pytest.mark.slow
def test_a_folder_whose_tensors_transformers_joins_is_loaded_by_transformers(tmp_path: Path) -> None:
    transformers = import_extra("transformers", "A network of transformers", "hf")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.MixtralConfig(**shape, num_key_value_heads=1, num_local_experts=2, vocab_size=50)
    transformers.MixtralForCausalLM(config).eval().save_pretrained(tmp_path)
    loaded, mapped = (load_model(tmp_path, in_files=in_files) for in_files in (False, True))
    assert torch.equal(answers_of(mapped.model, mapped.inputs), answers_of(loaded.model, mapped.inputs))


def test_a_network_of_timm(tmp_path: Path) -> None:
    timm = import_extra("timm", "A network of timm", "timm")
    save_file(timm.create_model("test_vit", num_classes=7).state_dict(), tmp_path / "w.safetensors")
    text = f"timm:test_vit@{tmp_path / 'w.safetensors'}"
    loaded, mapped = (load_model(text, in_files=in_files) for in_files in (False, True))
    assert files_of(mapped.model) == {"w.safetensors"} and "w.safetensors" not in files_of(loaded.model)
    assert torch.equal(answers_of(mapped.model, mapped.inputs), answers_of(loaded.model, mapped.inputs))


FACTORY = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.embed(x) + self.shift))

def tied():
    return Tied(), torch.arange(5)
"""


def test_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mapped_networks.py").write_text(FACTORY, "utf-8")
    state = dict(load_model("mapped_networks:tied").model.state_dict())
    state["embed.weight"] = torch.randn(5, 3)
    del state["head.weight"], state["norm.num_batches_tracked"]
    save_file(state, tmp_path / "w.safetensors")
    loaded, mapped = (load_model("mapped_networks:tied@w.safetensors", in_files=in_files) for in_files in (False, True))
    assert files_of(mapped.model) == {"w.safetensors"}
    assert mapped.model.head.weight is mapped.model.embed.weight
    assert torch.equal(answers_of(mapped.model, mapped.inputs), answers_of(loaded.model, mapped.inputs))
    # Without weights of its own the network is what the factory makes of it.
    own = load_model("mapped_networks:tied", in_files=True).model
    assert own.embed.weight.device.type == "cpu" and torch.isfinite(own.embed.weight).all()
    more = {**state, "extra": torch.ones(1)}
    save_file(more, tmp_path / "more.safetensors")
    refused(lambda: load_model("mapped_networks:tied@more.safetensors", in_files=True), CheckpointError, ("extra",))
    loose = load_model("mapped_networks:tied@more.safetensors", in_files=True, strict=False)
    assert loose.unused == ("extra",)
    torch.save(state, tmp_path / "w.pt")
    refused(lambda: load_model("mapped_networks:tied@w.pt", in_files=True), CheckpointError, ("safetensors",))
    sys.modules.pop("mapped_networks", None)
