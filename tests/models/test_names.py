"""What a MODEL string means."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.test_storage import refused

from interbasin.errors import CheckpointError
from interbasin.models import ModelName, parse_model


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("timm:resnet18", ModelName("timm", "resnet18")),
        ("timm:resnet18.a1_in1k@w.safetensors", ModelName("timm", "resnet18.a1_in1k", Path("w.safetensors"))),
        ("my.networks:small", ModelName("factory", "my.networks:small")),
        ("networks:small@a/b@c.pt", ModelName("factory", "networks:small", Path("a/b@c.pt"))),
        ("gpt2", ModelName("hub", "gpt2")),
        ("meta-llama/Llama-3.2-1B", ModelName("hub", "meta-llama/Llama-3.2-1B")),
    ],
)
def test_names_are_taken_apart(text, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_model(text) == expected


def test_what_is_on_the_disk_comes_before_what_it_could_be_the_name_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "a:b"):
        (tmp_path / name).mkdir()
        assert parse_model(name) == ModelName("folder", name)
    (tmp_path / "gpt2" / "adapter_config.json").write_text("{}", "utf-8")
    assert parse_model("gpt2") == ModelName("adapter", "gpt2")


def test_weights_alone_are_not_a_network(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_text("", "utf-8")
    refused(lambda: parse_model(str(path)), CheckpointError, ("does not say of which network", f"timm:NAME@{path}"))


@pytest.mark.parametrize("text", ["a/b/c", "./missing", "missing folder", "a:b:c", "my-networks:small", "../x"])
def test_a_text_of_no_known_form_is_answered_with_the_forms(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(lambda: parse_model(text), CheckpointError, (repr(text), "timm:NAME@", "package.module:factory@"))


def test_an_empty_name_is_not_the_current_folder():
    refused(lambda: parse_model(""), CheckpointError, ("is empty", "timm:NAME@"))


def test_a_name_that_cannot_be_looked_up_is_named():
    refused(lambda: parse_model("~no-such-user/model"), CheckpointError, ("cannot be looked up", "home"))
    refused(lambda: parse_model("x" * 300), CheckpointError, ("cannot be looked up (File name too long)",))
    for text in ("timm:resnet18@~no-such-user/w.pt", "networks:small@~no-such-user/w.pt"):
        refused(lambda text=text: parse_model(text), CheckpointError, (text, "cannot be looked up", "home"))


@pytest.mark.parametrize("text", ["timm:resnet18@", "networks:small@"])
def test_an_at_sign_announces_weights(text):
    refused(lambda: parse_model(text), CheckpointError, (text, "names no weights behind its @", "leave the @ out"))


def test_a_path_is_a_name_and_other_things_are_none(tmp_path):
    assert parse_model(tmp_path) == ModelName("folder", str(tmp_path))
    for given in (None, 3, b"gpt2", object()):
        refused(
            lambda given=given: parse_model(given), CheckpointError, ("named by text", type(given).__name__, "timm:")
        )
