"""Operators that act entry by entry: permutations survive them, and of the larger groups what their form allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Role, Same, Term
from interbasin.wiring.interpret import Interpreter, Pending, Value, rule

# ---------------------------------------------------------------------- one operand


@rule(
    *("alias", "clone", "contiguous", "detach", "dropout", "feature_dropout", "alpha_dropout", "lift_fresh_copy"),
    *("to", "_to_copy", "type_as", "float", "double", "half", "positive", "detach_", "lift", "native_dropout"),
    lazy=True,
)
def unchanged(
    run: Interpreter, self: Value | None = None, input: Value | None = None, other: Value | None = None, **_: Any
) -> Value:
    """Casts to another dtype, such as that of ``other``, come here too: `Interpreter` itself notices them."""
    value = self if self is not None else input
    assert value is not None
    return value


@rule("neg", lazy=True)
def neg(run: Interpreter, self: Value) -> Value:
    if self.pending is not None and self.pending.kind == "piece":
        return Value(list(self.dims), self.learned, replace(self.pending, sign=-self.pending.sign))
    return _multiple(run.settle(self))


def _multiple(value: Value) -> Value:
    """A multiple of a value moves as it does, but is another value: two of them side by side are not the same twice."""
    return Value(list(value.dims), value.learned, value.pending)


def nonlinear(run: Interpreter, value: Value, group: Group, what: str) -> Value:
    """An elementwise function: only ``group`` commutes with it."""
    for term in value.dims:
        run.axes.restrict(term, group, run.why(what))
    return run.result(value.dims, value)


@rule("tanh", "erf", "sin", "sinh", "asinh", "atan", "asin", "tan", "atanh", "sign", "sgn", "softshrink", "hardshrink",
      "tanhshrink", "trunc", "erfinv", "reciprocal")  # fmt: skip
def odd(run: Interpreter, self: Value, **_: Any) -> Value:
    return nonlinear(run, self, Group.SIGNED, "an odd function bends it")


@rule("relu", "relu6", "gelu", "silu", "mish", "sigmoid", "hardsigmoid", "hardswish", "log_sigmoid", "softplus", "elu",
      "celu", "selu", "leaky_relu", "rrelu", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt",
      "abs", "cos", "cosh", "acos", "erfc", "floor", "ceil", "round", "logical_not", "bitwise_not", "isnan",
      "isinf", "isfinite", "nan_to_num", "threshold", "digamma", "lgamma", "frac", "logit",
      "acosh", "sinc", "angle")  # fmt: skip
def bent(run: Interpreter, self: Value, **_: Any) -> Value:
    return nonlinear(run, self, Group.PERMUTATION, "an elementwise function bends it")


@rule("clamp_min", "clamp_max")
def clamped_on_one_side(run: Interpreter, self: Value, min: Any = None, max: Any = None) -> Value:
    bound = min if min is not None else max
    if isinstance(bound, Value):
        return pointwise(run, self, bound)
    return nonlinear(run, self, Group.PERMUTATION, "it is clamped")


@rule("hardtanh", "clamp", "clip")
def clamped(
    run: Interpreter, self: Value, min_val: Any = -1, max_val: Any = 1, min: Any = None, max: Any = None
) -> Value:
    low, high = (min, max) if min is not None or max is not None else (min_val, max_val)
    if isinstance(low, Value) or isinstance(high, Value):
        for bound in (low, high):
            if isinstance(bound, Value):
                self = pointwise(run, self, bound)
        return self
    even = low is not None and high is not None and low == -high
    return nonlinear(run, self, Group.SIGNED if even else Group.PERMUTATION, "it is clamped")


@rule("prelu", "_prelu_kernel")
def prelu(run: Interpreter, self: Value, weight: Value) -> Value:
    bent = nonlinear(run, self, Group.PERMUTATION, "an elementwise function bends it")
    slopes: list[Term] = [Same(size) for size in self.shape]
    if len(weight.dims) == 1 and len(self.dims) > 1:
        slopes[1] = weight.dims[0] if weight.shape[0] > 1 else Same(self.shape[1])
    else:
        slopes = [*slopes[: len(slopes) - len(weight.dims)], *weight.dims]
    return multiply(run, bent, Value(slopes, learned=True))


@rule("square", lazy=True)
def square(run: Interpreter, self: Value) -> Value:
    return power(run, self, 2)  # type: ignore[return-value]


@rule("pow", lazy=True)
def power(run: Interpreter, self: Any, exponent: Any) -> Value:
    if isinstance(self, Value) and exponent == 2:
        base = run.settle(self)
        return Value(list(base.dims), base.learned, Pending("square", base))
    if isinstance(self, Value) and isinstance(exponent, Value):
        return pointwise(run, run.settle(self), run.settle(exponent))
    value = self if isinstance(self, Value) else exponent
    even = not isinstance(exponent, int | float) or not float(exponent).is_integer() or exponent % 2 == 0
    return nonlinear(
        run, run.settle(value), Group.PERMUTATION if even else Group.SIGNED, "an elementwise power bends it"
    )


# ---------------------------------------------------------------------- two operands


def broadcast(one: Value, other: Value) -> list[tuple[Term, Term]]:
    """The axes of two operands side by side, the shorter filled up, and expanded where it is one long."""
    count = max(len(one.dims), len(other.dims))
    sides: list[list[Term]] = []
    for value in (one, other):
        sides.append([*[Same(1)] * (count - len(value.dims)), *value.dims])
    pairs = []
    for a, b in zip(*sides, strict=True):
        size = max(a.size, b.size) if 0 not in (a.size, b.size) else 0
        pairs.append((Same(size) if a.size == 1 else a, Same(size) if b.size == 1 else b))
    return pairs


def combine(run: Interpreter, one: Value, other: Value, **how: Any) -> list[Term]:
    """The axes of an elementwise result. Axes that others depend on are made one first."""
    pairs = broadcast(one, other)
    order = sorted(range(len(pairs)), key=lambda position: run.axes.dependence(*pairs[position]))
    terms: dict[int, Term] = {}
    for position in order:
        a, b = pairs[position]
        terms[position] = run.axes.unify(a, b, **how)
    return [terms[position] for position in range(len(pairs))]


def add_like(run: Interpreter, one: Value, other: Value) -> Value:
    """A linear combination: both lie in one space; what is added to all units alike survives permutations only."""
    why = run.why("something is added to all its units alike")
    return run.result(combine(run, one, other, why=why, same=Group.PERMUTATION), one, other)


def multiply(run: Interpreter, one: Value, other: Value) -> Value:
    """A product entry by entry. A learned factor with fewer axes is a gain, which *scales* the space of the other."""
    gain = _gain(run, one, other)
    if gain is None:
        why = run.why("it is multiplied entry by entry")
        return run.result(combine(run, one, other, why=why, pair=Group.PERMUTATION), one, other)
    scaled = one if gain is other else other
    why = run.why("a gain scales it")
    dims = combine(run, gain, scaled, why=why, role=Role.SCALE, pair=Group.SIGNED)
    return run.result(dims, one, other)


def _gain(run: Interpreter, one: Value, other: Value) -> Value | None:
    if one.learned != other.learned:
        return one if one.learned else other
    if not one.learned:
        return None
    varying = [sum(not isinstance(term, Same) for term in value.dims) for value in (one, other)]
    return None if varying[0] == varying[1] else one if varying[0] < varying[1] else other


def pointwise(run: Interpreter, one: Value, other: Value) -> Value:
    """Any function of two entries."""
    why = run.why("an elementwise function bends it")
    both = Group.PERMUTATION
    return run.result(combine(run, one, other, why=why, pair=both, same=both), one, other)


@rule("add", "sub", "subtract", "add_relu")
def add(run: Interpreter, self: Any, other: Any, alpha: Any = 1) -> Value:
    return _shifted(run, self, other)


@rule("rsub")
def rsub(run: Interpreter, self: Any, other: Any, alpha: Any = 1) -> Value:
    """What something is taken from is not it, even where that is zero."""
    return _multiple(_shifted(run, self, other))


def _shifted(run: Interpreter, self: Any, other: Any) -> Value:
    if isinstance(self, Value) and isinstance(other, Value):
        return add_like(run, self, other)
    value, number = (self, other) if isinstance(self, Value) else (other, self)
    if number == 0:
        assert isinstance(value, Value)
        return value
    return nonlinear(run, value, Group.PERMUTATION, "a number is added to all its units alike")


@rule("lerp")
def lerp(run: Interpreter, self: Value, end: Value, weight: Any) -> Value:
    mixed = add_like(run, self, end)
    return add_like(run, self, multiply(run, mixed, weight)) if isinstance(weight, Value) else mixed


@rule("addcmul")
def addcmul(run: Interpreter, self: Value, tensor1: Value, tensor2: Value, value: Any = 1) -> Value:
    return add_like(run, self, multiply(run, tensor1, tensor2))


@rule("addcdiv")
def addcdiv(run: Interpreter, self: Value, tensor1: Value, tensor2: Value, value: Any = 1) -> Value:
    divisor = nonlinear(run, tensor2, Group.SIGNED, "it is divided by, entry by entry")
    return add_like(run, self, multiply(run, tensor1, divisor))


@rule("mul", "multiply", lazy=True)
def mul(run: Interpreter, self: Any, other: Any) -> Value:
    if isinstance(self, Value) and self is other:
        base = run.settle(self)
        return Value(list(base.dims), base.learned, Pending("square", base))
    return _scaled(run, self, other)


@rule("div", "divide", "true_divide", lazy=True)
def div(run: Interpreter, self: Any, other: Any, rounding_mode: str | None = None) -> Value:
    if not isinstance(self, Value):
        return nonlinear(run, run.settle(other), Group.SIGNED, "an odd function bends it")
    if isinstance(other, Value):
        other = nonlinear(run, run.settle(other), Group.SIGNED, "something is divided by it")
    quotient = _scaled(run, self, other)
    return quotient if rounding_mode is None else nonlinear(run, quotient, Group.PERMUTATION, "it is rounded")


def _scaled(run: Interpreter, self: Any, other: Any) -> Value:
    if isinstance(self, Value) and isinstance(other, Value):
        return multiply(run, run.settle(self), run.settle(other))
    # A number in front changes nothing, not even what is pending but for a half of an axis.
    value = self if isinstance(self, Value) else other
    return _multiple(value if value.pending is not None and value.pending.kind == "square" else run.settle(value))


@rule("maximum", "minimum", "fmod", "remainder", "floor_divide", "atan2", "eq", "ne", "lt", "le", "gt",
      "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__",
      "__xor__", "fmax", "fmin", "hypot", "xlogy", "isclose", "greater", "greater_equal", "less", "less_equal",
      "not_equal", "logaddexp", "copysign")  # fmt: skip
def compared(run: Interpreter, self: Any, other: Any, **_: Any) -> Value:
    if isinstance(self, Value) and isinstance(other, Value):
        return pointwise(run, self, other)
    return nonlinear(
        run, self if isinstance(self, Value) else other, Group.PERMUTATION, "an elementwise function bends it"
    )


@rule("where")
def where(run: Interpreter, condition: Value, self: Any = None, other: Any = None) -> Value:
    if self is None and other is None:
        return run.not_known("aten.where", [condition])  # type: ignore[no-any-return]
    sides = [side for side in (self, other) if isinstance(side, Value)]
    numbers = [side for side in (self, other) if not isinstance(side, Value)]
    if not sides:
        return nonlinear(run, condition, Group.PERMUTATION, "it chooses between two numbers")
    if len(sides) == 2:
        how = {"why": run.why("a choice is made entry by entry"), "same": Group.PERMUTATION}
        chosen = run.result(combine(run, sides[0], sides[1], **how), *sides)
    else:
        chosen = sides[0] if numbers == [0] else nonlinear(run, sides[0], Group.PERMUTATION, "entries become a number")
    return _masked(run, chosen, condition)


@rule("masked_fill")
def masked_fill(run: Interpreter, self: Value, mask: Value, value: Any) -> Value:
    if isinstance(value, Value) or value != 0:
        self = nonlinear(run, self, Group.PERMUTATION, "entries become a number")
    return _masked(run, self, mask)


def _masked(run: Interpreter, value: Value, mask: Value) -> Value:
    why = run.why("a mask differs along it")
    return run.result(combine(run, value, mask, why=why, pair=Group.PERMUTATION), value, mask)


@rule("glu")
def glu(run: Interpreter, self: Value, dim: int = -1) -> Value:
    axis = dim % len(self.dims)
    size = self.shape[axis] // 2
    first = Value(run.take(self, axis, 0, size), self.learned)
    second = Value(run.take(self, axis, size, size), self.learned)
    return multiply(run, first, nonlinear(run, second, Group.PERMUTATION, "an elementwise function bends it"))
