"""The rows of the transport benchmark: methods, baselines and controls, and how each is called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from interbasin.jobs.transport.bases import Bases
from interbasin.jobs.transport.comparison.table import COMPARED
from interbasin.jobs.transport.methods import METHODS
from interbasin.jobs.transport.task import Task, Transported
from interbasin.jobs.transport.updates.update import Update

ONE, LABEL_FREE, VALIDATED = "1", "label-free", "validation"  # how alpha is found
RATES = (3e-4, 1e-3, 3e-3)
STEPS = 400


@dataclass(frozen=True)
class Row:
    """A line of the tables: a method and how it is called.

    Attributes:
        name: Of the line.
        method: In `METHODS` or `COMPARED`; ``"auto"`` is the job itself, ``"tuned-target"`` B fine-tuned with labels,
            ``"interpolated"`` A with interpolated blocks itself, fine-tuned (``tuned``) or not (``base``), or as it was
            before (``given``).
        variant: Of the method; None: its default.
        options: Fields of `Options` that differ from the defaults.
        settings: What the method's function takes besides.
        generic: Whether it sees the generic batches.
        rules: How alpha is found: for methods that have one.
        labels: Whether it sees labels.
        inner: Whether the update of the input embedding and of the head is left out, as in the paper.
        depth: How blocks are paired where the networks are not equally deep.
        heads: Whether maps keep to the heads of attention.
        whole: Whether each of several blocks of the target that one of the source serves gets the whole of its update,
            not a share.
    """

    name: str
    method: str
    variant: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    generic: bool = False
    rules: tuple[str, ...] = (ONE,)
    labels: bool = False
    inner: bool = False
    depth: str = "auto"
    heads: str = "auto"
    whole: bool = False

    @property
    def needs_data(self) -> bool:
        """Whether the number of batches matters."""
        if self.method in ("auto", "tuned-target", "interpolated"):
            return self.method == "auto"
        if self.variant == "weights":
            return False
        return "data" in (METHODS if self.method in METHODS else COMPARED)[self.method].needs

    @property
    def sees(self) -> str:
        """What it takes of the bases' activations that rows share: ``"moments"``, ``"grams"`` (with Gram matrices) or
        nothing; see `shown_by`."""
        if self.method.startswith(("pinv", "linear")):
            return "grams"
        is_through_maps = self.method in THROUGH_MAPS and self.variant not in ("modules", "weights")
        return "moments" if is_through_maps else ""

    @property
    def needs_shapes(self) -> bool:
        return self.method == "direct" or (self.method in COMPARED and "shapes" in COMPARED[self.method].needs)

    def is_called(self, names: Sequence[str]) -> bool:
        return self.name in names or self.method in names

    def __call__(self, task: Task, variant: str = "") -> Transported:
        method = (METHODS if self.method in METHODS else COMPARED)[self.method]
        variant = variant or (method.variant(self.variant) if method.variants else "")
        transported = method.function(task, variant, **self.settings)
        return replace(transported, update=_undivided(transported.update, task.bases)) if self.whole else transported


def _undivided(update: Update, bases: Bases) -> Update:
    """What each tensor of the target would have got if it had no others to share with."""
    shares = {pair.target: pair.share for pair in bases.correspondence.tensors}
    return Update.of({name: update.tensor(name) / math.sqrt(shares.get(name, 1.0)) for name in update}, bases.target)


ALL_RULES = (ONE, LABEL_FREE, VALIDATED)
THROUGH_MAPS = ("theseus", "regression", "random-through-maps", "ortho", "theseus+gradfix")
REFERENCES = (
    Row("none", "none"),
    Row("tuned-source", "tuned-source"),
    Row("tuned-target", "tuned-target", labels=True),
    *(Row(name, name) for name in ("written-in",) if name in COMPARED),
)
METHOD_ROWS = (
    Row("theseus-modules-inner", "theseus", "modules", inner=True, rules=ALL_RULES),
    Row("theseus-modules", "theseus", "modules", rules=ALL_RULES),
    Row("theseus-spaces", "theseus", "spaces", rules=ALL_RULES),
    Row("theseus-spaces-rms", "theseus", "spaces", {"scale": "rms"}, rules=ALL_RULES),
    Row("regression", "regression"),
    Row("regression-generic-tuned", "regression", options={"generic_target": "tuned"}, generic=True),
    Row("regression-keep", "regression", generic=True),
    Row("head-ridge", "head-ridge"),
    Row("head-ridge-keep", "head-ridge", generic=True),
)
AUTO_ROWS = (Row("auto", "auto"), Row("auto-keep", "auto", generic=True))
BASELINE_ROWS = (
    Row("padded", "padded", rules=(ONE, VALIDATED)),
    Row("random", "random", rules=(ONE, VALIDATED)),
    Row("cross-lora", "cross-lora", rules=(ONE, VALIDATED)),
    Row("theseus-weights", "theseus", "weights", rules=(ONE, VALIDATED)),
    Row("random-through-maps", "random-through-maps", rules=ALL_RULES),
    Row("pinv", "pinv", rules=ALL_RULES),
    Row("pinv-tikhonov", "pinv-tikhonov", rules=ALL_RULES),
    Row("pinv-orthogonal", "pinv-orthogonal", rules=ALL_RULES),
    Row("linear", "linear", "dual", rules=ALL_RULES),
    Row("linear-transpose", "linear", "transpose", rules=ALL_RULES),
    Row("linear-ridge", "linear-ridge", "dual", rules=ALL_RULES),
    Row("linear-ridge-transpose", "linear-ridge", "transpose", rules=ALL_RULES),
    Row("linear-orthogonal", "linear-orthogonal", rules=ALL_RULES),
    Row("ortho", "ortho"),
)
SAME_SHAPE_ROWS = (
    Row("direct", "direct", rules=ALL_RULES),
    Row("transfusion", "transfusion", rules=ALL_RULES),
    Row("gradfix", "gradfix", labels=True, rules=ALL_RULES),
)
LABEL_ROWS = (
    Row("label-ridge", "label-ridge", labels=True),
    Row("bico", "bico", labels=True, rules=ALL_RULES),
    Row("theseus+gradfix", "theseus+gradfix", labels=True, rules=ALL_RULES),
)
ABLATION_ROWS = (
    Row("theseus-spaces-inner", "theseus", "spaces", inner=True),
    Row("theseus-spaces-uncentred", "theseus", "spaces", {"centered": False}),
    Row("theseus-modules-uncentred", "theseus", "modules", {"centered": False}),
    Row("theseus-spaces-drop", "theseus", "spaces", {"unobserved": "drop"}),
    Row("regression-uncentred", "regression", options={"centered": False}),
)
DEPTH_ROWS = (
    Row("theseus-spaces-even", "theseus", "spaces", depth="even"),
    Row("regression-even", "regression", depth="even"),
)
# Only where B is deeper: blocks can be put into A, not taken out, and a block of A can serve several of B.
DEEPER_ROWS = (
    Row("source", "interpolated", "given", depth="interpolate"),
    Row("source-interpolated", "interpolated", "base", depth="interpolate"),
    Row("tuned-source-interpolated", "interpolated", "tuned", depth="interpolate"),
    Row("theseus-modules-interpolated", "theseus", "modules", depth="interpolate", rules=ALL_RULES),
    Row("theseus-spaces-interpolated", "theseus", "spaces", depth="interpolate", rules=ALL_RULES),
    Row("theseus-modules-whole", "theseus", "modules", whole=True, rules=ALL_RULES),
    Row("theseus-spaces-whole", "theseus", "spaces", whole=True, rules=ALL_RULES),
)


def distillations(start: str, rates: Sequence[float] = RATES, *, generic: bool = False) -> tuple[Row, ...]:
    """Distillation at several rates."""
    stem = "distil" + ("-transported" if start == "transported" else "") + ("-keep" if generic else "")
    return tuple(
        Row(f"{stem}-{rate:g}", "distil", start, settings={"rate": rate, "steps": STEPS}, generic=generic)
        for rate in rates
    )
