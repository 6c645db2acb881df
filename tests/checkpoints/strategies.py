"""Random weights for property tests: names, dtypes, shapes and ties, all drawn."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
)
# Whatever a name may be: dots, spaces, other scripts, quotes; not half a character.
NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12).filter(
    lambda n: n != "__metadata__"
)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def tensors(draw, shape: tuple[int, ...] | None = None) -> Tensor:
    """Any bits at all, NaN and infinity included, in any dtype that can be stored."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(SHAPES) if shape is None else shape
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    count = int(torch.tensor(shape).prod()) if shape else 1
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator).to(torch.uint8)
    return raw.view(dtype).reshape(shape)


@st.composite
def weights(draw) -> dict[str, Tensor]:
    """Tensors by name; some are transposed, some are slices of another, some the very same."""
    names = draw(st.lists(NAMES, max_size=8, unique=True))
    found: dict[str, Tensor] = {}
    for name in names:
        kind = draw(st.sampled_from(("new", "new", "new", "tied", "turned", "part")))
        before = found[draw(st.sampled_from(sorted(found)))] if found and kind != "new" else None
        if before is None:
            found[name] = draw(tensors())
        elif kind == "tied":
            found[name] = before.detach()
        elif kind == "turned" and before.dim() >= 2:
            found[name] = before.mT
        else:
            found[name] = before[1:] if before.dim() else before
    return found


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the bit."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.contiguous().flatten().view(torch.uint8).tolist()
        == other.contiguous().flatten().view(torch.uint8).tolist()
    )
