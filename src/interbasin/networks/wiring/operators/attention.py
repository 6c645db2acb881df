"""Scaled dot-product attention as one operator."""

from __future__ import annotations

from typing import Any

from interbasin.networks.wiring.axes import Product, Same
from interbasin.networks.wiring.groups import Group
from interbasin.networks.wiring.interpret import Run, Value, rule
from interbasin.networks.wiring.operators.contraction import contract
from interbasin.networks.wiring.operators.elementwise import add_like, bend

__all__: list[str] = []


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
    batch = "abcdefgh"[: len(query.dims) - 2]
    scores = contract(run, query, batch + "tx", key, batch + "sx", batch + "ts")
    if is_causal:
        for term in scores.dims[-2:]:
            run.axes.restrict(term, Group.FIXED, run.why("attention is causal along it", "position"))
    if attn_mask is not None:
        scores = add_like(run, scores, attn_mask)
    weights = bend(run, scores, Group.PERMUTATION, "the softmax of attention bends it")
    return contract(run, weights, batch + "ts", value, batch + "sx", batch + "tx")


def _repeated(run: Run, value: Value, heads: int) -> Value:
    """Key-value heads, each standing for the group of query heads that share it."""
    own = value.shape[-3]
    if own == heads:
        return value
    dims = list(value.dims)
    dims[-3] = Product((dims[-3], Same(heads // own)))
    return run.made(dims, value)


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "softmin", "_safe_softmax")
def softmax(run: Run, self: Value, dim: int | None = None, **_: Any) -> Value:
    return bend(run, self, Group.PERMUTATION, "a softmax bends it")
