"""Small networks, and recording them by hand: plain hooks, all rows kept, float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from interbasin.extras import import_extra
from interbasin.statistics import PairedMoments

# Sums of a few hundred float64 products of ordinary size.
TOLERANCE = 1e-10


def mlp(seed: int = 0, hidden: int = 8, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, hidden), nn.ReLU(), nn.Linear(hidden, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def cnn(seed: int = 0, channels: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return (
        nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 16, 3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(16 * 4, 10),
            nn.ReLU(inplace=True),
            nn.Linear(10, 3),
        )
        .double()
        .eval()
    )


def vit(seed: int = 0, width: int = 24, patch: int = 8, image: int = 32, heads: int = 3, **extra: Any) -> nn.Module:
    timm = import_extra("timm", "This network", "timm")
    torch.manual_seed(seed)
    return (
        timm.create_model(
            "vit_tiny_patch16_224",
            img_size=image,
            patch_size=patch,
            depth=2,
            embed_dim=width,
            num_heads=heads,
            num_classes=5,
            **extra,
        )
        .double()
        .eval()
    )


def llama(seed: int = 0, width: int = 16) -> nn.Module:
    transformers = import_extra("transformers", "This network", "hf")
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=width,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config).double().eval()


def texts(batches: int = 3, size: int = 4, length: int = 7, seed: int = 0) -> list[dict[str, Tensor]]:
    """Padded batches; the padding is of other lengths in each row."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(batches):
        ids = torch.randint(0, 40, (size, length), generator=generator)
        lengths = torch.randint(2, length + 1, (size,), generator=generator)
        found.append({"input_ids": ids, "attention_mask": (torch.arange(length) < lengths[:, None]).long()})
    return found


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def by_hand(model: nn.Module, batches: Iterable[Any], module: str, side: str = "output") -> list[Tensor]:
    """What goes into or comes out of a module, a tensor a batch."""
    seen: list[Tensor] = []

    def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(next(iter((*args, *kwargs.values()))).detach().clone())

    def leave(_: nn.Module, args: Any, output: Any) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output).detach().clone())

    where = model.get_submodule(module)
    handle = (
        where.register_forward_pre_hook(enter, with_kwargs=True)
        if side == "input"
        else where.register_forward_hook(leave)
    )
    try:
        with torch.no_grad():
            for batch in batches:
                if isinstance(batch, dict):
                    model(**batch, use_cache=False)
                else:
                    model(batch)
    finally:
        handle.remove()
    return seen


def rows_of(seen: Sequence[Tensor], take: Callable[[Tensor], Tensor] = lambda x: x.flatten(0, -2)) -> Tensor:
    return torch.cat([take(one) for one in seen])


def assert_moments(moments: PairedMoments, x: Tensor, y: Tensor, tolerance: float = TOLERANCE) -> None:
    """That the moments are those of all rows at once."""
    x, y = x.double(), y.double()
    assert moments.count == len(x) == len(y)
    a, b = x - x.mean(0), y - y.mean(0)
    for found, wanted in (
        (moments.cross(), b.mT @ a),
        (moments.mean_source, x.mean(0)),
        (moments.mean_target, y.mean(0)),
        (moments.squares_source(), a.square().sum(0)),
        (moments.squares_target(), b.square().sum(0)),
    ):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max() + 1))


def no_hooks(*models: nn.Module) -> bool:
    modules = [module for model in models for module in model.modules()]
    return not any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) for module in modules
    )
