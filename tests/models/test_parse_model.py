"""What a MODEL string means."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_a_path_is_a_name(tmp_path):
    assert parse_model(tmp_path) == ModelName("folder", str(tmp_path))
