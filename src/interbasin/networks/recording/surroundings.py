"""What torch keeps beside the arithmetic, for each thread: autocast, inference mode, the default device, streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

__all__ = ["ordinary_arithmetic", "these_surroundings"]


@contextlib.contextmanager
def ordinary_arithmetic() -> Iterator[None]:
    """Arithmetic inside a forward pass whose results outlive it: ordinary tensors, in the precision of the data."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for kind, _ in _casts():
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def these_surroundings() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context that has another thread calculate as this one would, as far as the caller may have set it."""
    casts = _casts()
    busy = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    stream = torch.cuda.current_stream() if busy else None
    default = torch.get_default_device()

    @contextlib.contextmanager
    def enter() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for kind, dtype in casts:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            if default.type != "cpu":
                stack.enter_context(default)
            if stream is not None:
                stack.enter_context(torch.cuda.device(stream.device))
                stack.enter_context(torch.cuda.stream(stream))
            yield

    return enter


def _casts() -> list[tuple[str, torch.dtype]]:
    kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else []), *(["xpu"] if torch.xpu.is_available() else [])]
    return [(kind, torch.get_autocast_dtype(kind)) for kind in kinds if torch.is_autocast_enabled(kind)]
