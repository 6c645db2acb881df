"""Sums of products over a shared axis, attention among them: the dual on one side undoes any map on the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Grid, Role, Same, Still, Term
from interbasin.wiring.interpret import Interpreter, Value, rule
from interbasin.wiring.operators.elementwise import add_like, nonlinear


def contract(run: Interpreter, one: Value, letters: str, other: Value, others: str, result: str) -> Value:
    """The value of an einsum of two operands, whose axes are named by letters.

    A letter of both that is kept is a batch: entries of the same index meet, so permutations survive where both vary.
    A letter of both that is summed is a contraction. A letter of one that is summed survives permutations.
    """
    axes = run.axes
    left = dict(zip(letters, one.dims, strict=True))
    right = dict(zip(others, other.dims, strict=True))
    terms: dict[str, Term] = {**right, **left}
    shared = [letter for letter in letters if letter in right]
    batch = [letter for letter in shared if letter in result]
    summed = [letter for letter in shared if letter not in result]
    for letter in sorted(batch, key=lambda letter: axes.dependence(left[letter], right[letter])):
        a, b = _expand(left[letter], right[letter])
        why = run.why("entries of equal index meet")
        terms[letter] = axes.unify(a, b, why, pair=Group.PERMUTATION)
    # The result is without what is summed, so nothing in it can depend on that: said first, it saves many cases.
    axes.settle([terms[letter] for letter in result])
    for letter in sorted(summed, key=lambda letter: axes.dependence(left[letter], right[letter])):
        a, b = _expand(left[letter], right[letter])
        axes.unify(a, b, run.why("both factors of a product lie in it"), role=Role.READ, same=Group.PERMUTATION)
    for letter, term in terms.items():
        if letter not in result and letter not in shared:
            axes.restrict(term, Group.PERMUTATION, run.why("its units are summed"))
    # What is summed away may not depend on an axis that stands twice beside it, once from each factor.
    axes.settle(list(terms.values()))
    return run.result([terms[letter] for letter in result], one, other)


def _expand(a: Term, b: Term) -> tuple[Term, Term]:
    size = max(a.size, b.size)
    return (Same(size) if a.size == 1 else a), (Same(size) if b.size == 1 else b)


@rule("linear")
def linear(run: Interpreter, input: Value, weight: Value, bias: Value | None = None) -> Value:
    lead = _letters(len(input.dims) - 1)
    product = contract(run, input, lead + "y", weight, "zy"[2 - len(weight.dims) :], lead + "z"[: len(weight.dims) - 1])
    return product if bias is None else add_like(run, product, bias)


@rule("matmul", "mm", "bmm", "mv", "dot", "vdot")
def matmul(
    run: Interpreter,
    self: Value,
    other: Value | None = None,
    mat2: Value | None = None,
    vec: Value | None = None,
    tensor: Value | None = None,
    **_: Any,
) -> Value:
    right = next(value for value in (other, mat2, vec, tensor) if value is not None)
    own, its = len(self.dims), len(right.dims)
    batch = _letters(max(own, its) - 2) if max(own, its) > 2 else ""
    letters = "x" if own == 1 else batch[len(batch) - (own - 2) :] + "wx"
    others = "x" if its == 1 else batch[len(batch) - (its - 2) :] + "xz"
    result = batch + ("w" if own > 1 else "") + ("z" if its > 1 else "")
    return contract(run, self, letters, right, others, result)


@rule("addbmm")
def addbmm(run: Interpreter, self: Value, batch1: Value, batch2: Value, **_: Any) -> Value:
    return add_like(run, contract(run, batch1, "abc", batch2, "acd", "bd"), self)


@rule("addmm", "baddbmm")
def addmm(
    run: Interpreter, self: Value, mat1: Value | None = None, mat2: Value | None = None, batch1: Value | None = None,
    batch2: Value | None = None, **_: Any,
) -> Value:  # fmt: skip
    first = mat1 if mat1 is not None else batch1
    second = mat2 if mat2 is not None else batch2
    assert first is not None and second is not None
    product = matmul(run, first, second)
    assert isinstance(product, Value)
    return add_like(run, product, self)


@rule("einsum")
def einsum(run: Interpreter, equation: str, tensors: list[Value], path: Any = None) -> Value:
    left, _, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    names = ""
    if "..." in equation:
        spare = [letter for letter in _letters(26) if letter not in equation]
        rank = max(len(value.dims) - len(term.replace("...", "")) for term, value in zip(terms, tensors, strict=True))
        names = "".join(spare[:rank])
        for position, (term, value) in enumerate(zip(terms, tensors, strict=True)):
            own = len(value.dims) - len(term.replace("...", ""))
            terms[position] = term.replace("...", names[rank - own :])
        result = result.replace("...", names)
    if "->" not in equation:
        # What the dots stand for comes first and is kept, however many operands have it.
        flat = [letter for letter in "".join(terms) if letter not in names]
        result = names + "".join(sorted(letter for letter in set(flat) if flat.count(letter) == 1))
    if any(len(set(term)) < len(term) for term in terms):
        return run.not_known("aten.einsum with a diagonal", tensors)  # type: ignore[no-any-return]
    value, letters = tensors[0], terms[0]
    for position in range(1, len(tensors)):
        later = set("".join(terms[position + 1 :])) | set(result)
        kept = [letter for letter in dict.fromkeys(letters + terms[position]) if letter in later]
        value = contract(run, value, letters, tensors[position], terms[position], "".join(kept))
        letters = "".join(kept)
    for letter, summed in zip(letters, value.dims, strict=True):
        if letter not in result:
            run.axes.restrict(summed, Group.PERMUTATION, run.why("its units are summed"))
    held = dict(zip(letters, value.dims, strict=True))
    return run.result([held[letter] for letter in result], *tensors)


@rule("tensordot")
def tensordot(run: Interpreter, self: Value, other: Value, dims_self: Sequence[int], dims_other: Sequence[int], **_: Any
              ) -> Value:  # fmt: skip
    own, its = list(_letters(len(self.dims))), list("0123456789"[: len(other.dims)])
    for one, another in zip(dims_self, dims_other, strict=True):
        its[another] = own[one]
    result = "".join(letter for letter in (*own, *its) if (letter in own) != (letter in its))
    return contract(run, self, "".join(own), other, "".join(its), result)


@rule("inner")
def inner(run: Interpreter, self: Value, other: Value) -> Value:
    if not self.dims or not other.dims:
        return run.not_known("aten.inner of numbers", [self, other])  # type: ignore[no-any-return]
    own, its = _letters(len(self.dims) - 1), "0123456789"[: len(other.dims) - 1]
    return contract(run, self, own + "x", other, its + "x", own + its)


@rule("cosine_similarity")
def cosine_similarity(run: Interpreter, x1: Value, x2: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    """A product of two vectors over their lengths: both turn alike."""
    lead = _letters(len(x1.dims))
    axis = dim % len(x1.dims)
    if len(x2.dims) != len(x1.dims):
        return run.not_known("aten.cosine_similarity of different ranks", [x1, x2])  # type: ignore[no-any-return]
    for value in (x1, x2):
        for place, term in enumerate(value.dims):
            group = Group.ORTHOGONAL if place == axis else Group.PERMUTATION
            run.axes.restrict(term, group, run.why("its length is taken"))
    return contract(run, x1, lead, x2, lead, lead.replace(lead[axis], ""))


@rule("outer", "ger")
def outer(run: Interpreter, self: Value, vec2: Value) -> Value:
    return run.result([*self.dims, *vec2.dims], self, vec2)


@rule("bilinear")
def bilinear(run: Interpreter, input1: Value, input2: Value, weight: Value, bias: Value | None = None) -> Value:
    lead = _letters(len(input1.dims) - 1)
    half = contract(run, input1, lead + "x", weight, "zxy", lead + "zy")
    product = contract(run, half, lead + "zy", input2, lead + "y", lead + "z")
    return product if bias is None else add_like(run, product, bias)


def _letters(count: int) -> str:
    return "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[: max(count, 0)].translate(_RESERVED)


# The letters that matmul and linear use themselves are kept out of the batch.
_RESERVED = str.maketrans("wxyz", "WXYZ")


# ---------------------------------------------------------------------- attention


@rule("scaled_dot_product_attention")
def attention(
    run: Interpreter,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if enable_gqa:
        heads = query.shape[-3]
        key, value = _repeated(run, key, heads), _repeated(run, value, heads)
    rank = max(len(operand.dims) for operand in (query, key, value))
    query, key, value = (
        Value([*[Same(1)] * (rank - len(operand.dims)), *operand.dims], operand.learned)
        for operand in (query, key, value)
    )
    batch = "abcdefgh"[: rank - 2]
    scores = contract(run, query, batch + "tx", key, batch + "sx", batch + "ts")
    if is_causal:
        why = run.why("attention is causal along it", "position")
        along = [run.axes.unify(term, Still(term.size, why), why) for term in scores.dims[-2:]]
        scores = run.result([*scores.dims[:-2], *along], scores)
    if attn_mask is not None:
        scores = add_like(run, scores, attn_mask)
    weights = _softmax(run, scores, -1, "the softmax of attention bends it")
    return contract(run, weights, batch + "ts", value, batch + "sx", batch + "tx")


def _repeated(run: Interpreter, value: Value, heads: int) -> Value:
    """Key-value heads, each standing for the group of query heads that share it."""
    own = value.shape[-3]
    if own == heads:
        return value
    dims = list(value.dims)
    dims[-3] = Grid((dims[-3], Same(heads // own)))
    return run.result(dims, value)


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "softmin", "_safe_softmax")
def softmax(run: Interpreter, self: Value, dim: int | None = None, **_: Any) -> Value:
    return _softmax(run, self, -1 if dim is None else dim, "a softmax bends it")


def _softmax(run: Interpreter, value: Value, dim: int, what: str) -> Value:
    """Each entry beside the axis has one sum along it, so how it moves cannot depend on what lies along the axis."""
    axis = dim % len(value.dims) if value.dims else 0
    run.axes.settle([term for place, term in enumerate(value.dims) if place != axis])
    return nonlinear(run, value, Group.PERMUTATION, what)
