"""Fourier transforms and complex numbers: linear over the reals, so real maps beside the transformed axes pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.interpret import Run, Value, rule
from interbasin.wiring.operators.convolution import positions
from interbasin.wiring.operators.elementwise import add_like, bend, pointwise


@rule("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft", "_fft_r2c", "_fft_c2r", "_fft_c2c")
def transformed(run: Run, self: Value, dim: Any = -1, **_: Any) -> Value:
    return _transformed(run, self, [dim] if isinstance(dim, int) else dim)


@rule("fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2")
def transformed_twice(run: Run, self: Value, dim: Sequence[int] = (-2, -1), **_: Any) -> Value:
    return _transformed(run, self, dim)


@rule("fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn", "fft_fftshift", "fft_ifftshift")
def transformed_along_all(run: Run, self: Value, s: Sequence[int] | None = None, dim: Any = None, **_: Any) -> Value:
    if dim is None:
        # Sizes without axes are those of the last ones.
        dim = range(len(self.dims)) if s is None else range(-len(s), 0)
    return _transformed(run, self, [dim] if isinstance(dim, int) else dim)


def _transformed(run: Run, value: Value, axes: Sequence[int]) -> Value:
    dims = list(value.dims)
    for axis in axes:
        run.axes.restrict(dims[axis], Group.FIXED, run.why("a Fourier transform runs along it"))
        dims[axis] = positions(run, [run.shape[axis]])[0]
    return run.made(dims, value)


@rule("view_as_complex", "view_as_complex_copy")
def view_as_complex(run: Run, self: Value) -> Value:
    """The last axis holds real and imaginary parts, which a real map cannot mix."""
    run.axes.restrict(self.dims[-1], Group.FIXED, run.why("it holds real and imaginary parts"))
    return run.made(self.dims[:-1], self)


@rule("view_as_real", "view_as_real_copy")
def view_as_real(run: Run, self: Value) -> Value:
    return run.made([*self.dims, *positions(run, [2])], self)


@rule("real", "imag", "conj", "_conj", "conj_physical", "_conj_physical", "resolve_conj", "resolve_neg")
def part(run: Run, self: Value) -> Value:
    return run.made(self.dims, self)


@rule("complex")
def made_complex(run: Run, real: Value, imag: Value) -> Value:
    return add_like(run, real, imag)


@rule("angle")
def angle(run: Run, self: Value) -> Value:
    return bend(run, self, Group.PERMUTATION, "an elementwise function bends it")


@rule("polar")
def polar(run: Run, abs: Value, angle: Value) -> Value:
    return pointwise(run, abs, angle)
