"""Networks of timm, by name, with as many classes and channels as the weights have."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from tests.checkpoints.strategies import same
from tests.test_storage import refused

from interbasin.errors import DataError, MissingExtraError
from interbasin.extras import import_extra
from interbasin.models import load_model

NAME = "test_vit"


@pytest.fixture(scope="module")
def timm():
    return import_extra("timm", "A network of timm", "timm")


def test_a_name_alone_is_a_random_network_with_inputs_of_its_size(timm):
    loaded = load_model(f"timm:{NAME}", seed=3)
    assert loaded.checkpoint is None and loaded.family == NAME and not loaded.model.training
    assert loaded.inputs.shape == (2, 3, 160, 160)
    with torch.no_grad():
        assert loaded.model(loaded.inputs).shape == (2, 1000)
    assert torch.equal(loaded.inputs, load_model(f"timm:{NAME}", seed=3).inputs)


@pytest.mark.parametrize(("name", "classes", "channels"), [(NAME, 7, 3), (NAME, 1000, 1), ("test_resnet", 5, 2)])
def test_weights_decide_how_many_classes_and_channels_there_are(name, classes, channels, timm, tmp_path):
    state = timm.create_model(name, num_classes=classes, in_chans=channels).half().state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save({"state_dict": state, "arch": name}, tmp_path / "w.pth.tar")
    for file in ("w.safetensors", "w.pth.tar"):
        loaded = load_model(f"timm:{name}@{tmp_path / file}")
        found = loaded.model.state_dict()
        assert all(same(found[key], state[key]) for key in state) and set(found) == set(state)
        assert loaded.inputs.shape[:2] == (2, channels) and loaded.inputs.dtype == torch.float16
        assert loaded.checkpoint is not None


def test_an_architecture_that_cannot_be_made_is_named(timm, monkeypatch):
    def refuse(*arguments: object, **keywords: object) -> None:
        raise RuntimeError("needs something else")

    monkeypatch.setattr(timm, "create_model", refuse)
    words = (f"could not make {NAME}", "needs something else", "factory")
    refused(lambda: load_model(f"timm:{NAME}"), DataError, words)


def test_a_torchvision_that_cannot_be_mended_is_told_from_a_missing_timm(monkeypatch):
    def import_module(name, *rest):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("interbasin.extras.importlib.import_module", import_module)
    words = (f"timm:{NAME}", "cannot be imported (RuntimeError: operator torchvision::nms", "install the torchvision")
    refused(lambda: load_model(f"timm:{NAME}"), MissingExtraError, words)
