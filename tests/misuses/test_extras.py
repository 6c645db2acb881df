"""Misuse of what is not installed: the error names the extra that brings it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.misuses.table import misuses, public, the

import interbasin as ib
from interbasin.errors import MissingExtraError


def without(module: str, call: Callable[[Any], Any], prepare: Callable[[], Any]) -> Any:
    """What ``call`` gives where a module cannot be imported; what it needs is made before."""
    given = prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        return call(given)


def translate(source: Any, output: str = "out.npy", **options: Any) -> Any:
    return public.translate_vectors(the.translator, source, output, **options)


def adapter() -> str:
    settings = {"peft_type": "LORA", "r": 4, "target_modules": ["c_attn"], "base_model_name_or_path": str(the.gpt2)}
    return str(the.files({"adapter_config.json": settings, "adapter_model.safetensors": {"q.lora_A.weight": the.x}}))


def read_text(path: Any) -> Any:
    return public.open_data(path, tokenizer="model")


@misuses(
    *(
        (
            f"{what} without {module}",
            lambda module=module, call=call, prepare=prepare: without(module, call, prepare),
            MissingExtraError,
            extra,
        )
        for what, module, call, prepare, extra in [
            ("a sinkhorn fit", "ot", lambda x: ib.fit.sinkhorn(x, x), lambda: the.x, "interbasin[ot]"),
            ("a folder", "transformers", lambda path: public.load_model(path), lambda: str(the.gpt2), "interbasin[hf]"),
            ("a tokenizer", "transformers", read_text, lambda: the.letter, "interbasin[hf]"),
            ("a hub id", "huggingface_hub", lambda name: public.load_model(name), lambda: "a/b", "interbasin[hf]"),
            ("an adapter", "peft", lambda path: public.load_model(path), adapter, "interbasin[hf]"),
            ("an architecture", "timm", lambda x: public.load_model(x), lambda: "timm:resnet18", "interbasin[timm]"),
            ("images", "PIL.Image", lambda path: public.open_data(path), lambda: the.files({"1.png": b"x"}), "pillow"),
            ("an index", "faiss", lambda path: translate(path), lambda: f"faiss://{the.faiss_index}", "[vectors]"),
            ("a table", "lancedb", lambda path: translate(path), lambda: "lance://db/old", "interbasin[vectors]"),
            ("a server", "psycopg", translate, lambda: "postgresql://me:hunter2@host/db?table=t", "[vectors]"),
            ("a graph", "onnx", lambda bridge: bridge.save("out"), lambda: ib.bridge(the.translator), "[vectors]"),
            (
                "a checked graph",
                "onnxruntime",
                lambda bridge: bridge.save("out", check=the.x),
                lambda: ib.bridge(the.translator),
                "[vectors]",
            ),
            ("a cluster", "ray.data", lambda path: translate(path, engine="ray"), lambda: the.old_npy, "[ray]"),
        ]
    )
)
def test_what_is_not_installed_is_named_with_its_extra(misuse):
    misuse.check()
