"""Scaled dot-product attention as one operator."""

from __future__ import annotations

from typing import Any

from interbasin.wiring.axes.groups import Group
from interbasin.wiring.axes.spaces import Grid, Same, Still
from interbasin.wiring.interpret import Run, Value, rule
from interbasin.wiring.operators.contraction import contract
from interbasin.wiring.operators.elementwise import add_like, bend


@rule("scaled_dot_product_attention")
def attention(
    run: Run,
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
    rank = max(len(one.dims) for one in (query, key, value))
    query, key, value = (
        Value([*[Same(1)] * (rank - len(one.dims)), *one.dims], one.learned) for one in (query, key, value)
    )
    batch = "abcdefgh"[: rank - 2]
    scores = contract(run, query, batch + "tx", key, batch + "sx", batch + "ts")
    if is_causal:
        why = run.why("attention is causal along it", "position")
        along = [run.axes.unify(term, Still(term.size, why), why) for term in scores.dims[-2:]]
        scores = run.made([*scores.dims[:-2], *along], scores)
    if attn_mask is not None:
        scores = add_like(run, scores, attn_mask)
    weights = _softmax(run, scores, -1, "the softmax of attention bends it")
    return contract(run, weights, batch + "ts", value, batch + "sx", batch + "tx")


def _repeated(run: Run, value: Value, heads: int) -> Value:
    """Key-value heads, each standing for the group of query heads that share it."""
    own = value.shape[-3]
    if own == heads:
        return value
    dims = list(value.dims)
    dims[-3] = Grid((dims[-3], Same(heads // own)))
    return run.made(dims, value)


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "softmin", "_safe_softmax")
def softmax(run: Run, self: Value, dim: int | None = None, **_: Any) -> Value:
    return _softmax(run, self, -1 if dim is None else dim, "a softmax bends it")


def _softmax(run: Run, value: Value, dim: int, what: str) -> Value:
    """Each entry beside the axis has one sum along it, so how it moves cannot depend on what lies along the axis."""
    axis = dim % len(value.dims) if value.dims else 0
    run.axes.settle([term for place, term in enumerate(value.dims) if place != axis])
    return bend(run, value, Group.PERMUTATION, what)
