"""The table of methods: what each is called, what it takes, and where it comes from. A new one is a file and a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interbasin.errors import DataError, UnknownNameError
from interbasin.jobs.merge.average import average
from interbasin.jobs.merge.lerp import lerp
from interbasin.jobs.merge.operands import Combine, Operands
from interbasin.jobs.merge.recipe import Recipe, checked_density, checked_number, checked_weights
from interbasin.jobs.merge.slerp import slerp
from interbasin.jobs.merge.task_arithmetic import task_arithmetic
from interbasin.jobs.merge.ties import ties

__all__ = ["METHODS", "Method", "described", "resolved"]


@dataclass(frozen=True)
class Method:
    """A way to merge.

    Attributes:
        name: What it is called here and on the command line.
        title: In words, for the model card.
        formula: What is calculated, for the model card; ``m`` are the models and ``b`` is the base.
        reference: The key of the paper in docs/references.bib.
        paper: The paper for people.
        plan: One tensor of all networks -> what to do with every stretch of it.
        takes: The options that it has.
        base: Whether it needs the network that the models were made from.
        pair: Whether it takes two models and no more.
        positive: Whether weights may not be negative.
        sum_to_one: Whether weights are divided by their sum.
    """

    name: str
    title: str
    formula: str
    reference: str
    paper: str
    plan: Callable[[Operands, Recipe], Combine]
    takes: frozenset[str]
    base: bool = False
    pair: bool = False
    positive: bool = False
    sum_to_one: bool = False


METHODS = {
    method.name: method
    for method in (
        Method(
            "lerp",
            "linear interpolation (LERP)",
            "(1 - t) m1 + t m2",
            "goodfellow:15",
            "Goodfellow, Vinyals and Saxe, Qualitatively Characterizing Neural Network Optimization Problems, 2015",
            lerp,
            frozenset({"t"}),
            pair=True,
        ),
        Method(
            "slerp",
            "spherical interpolation (SLERP), a tensor at a time",
            "sin((1 - t) a) / sin(a) m1 + sin(t a) / sin(a) m2, with a the angle between the two tensors",
            "shoemake:85",
            "Shoemake, Animating Rotation with Quaternion Curves, 1985",
            slerp,
            frozenset({"t"}),
            pair=True,
        ),
        Method(
            "average",
            "weighted average (model soup)",
            "sum of w m, with weights that sum to one",
            "wortsman:22",
            "Wortsman et al., Model Soups: Averaging Weights of Multiple Fine-tuned Models Improves Accuracy without "
            "Increasing Inference Time, 2022",
            average,
            frozenset({"weights"}),
            sum_to_one=True,
        ),
        Method(
            "task-arithmetic",
            "task arithmetic",
            "b + scale * sum of w (m - b)",
            "ilharco:23",
            "Ilharco et al., Editing Models with Task Arithmetic, 2023",
            task_arithmetic,
            frozenset({"weights", "scale"}),
            base=True,
        ),
        Method(
            "ties",
            "TIES (trim, elect sign, disjoint mean), a tensor at a time",
            "b + scale * mean of those w (m - b), trimmed to density, that have the elected sign",
            "yadav:23",
            "Yadav et al., TIES-Merging: Resolving Interference When Merging Models, 2023",
            ties,
            frozenset({"weights", "density", "scale"}),
            base=True,
            positive=True,
        ),
    )
}


def described(name: object) -> Method:
    """The method of that name; underscores will do for hyphens.

    Raises:
        UnknownNameError: if there is none.
    """
    method = METHODS.get(name.replace("_", "-")) if isinstance(name, str) else None
    if method is None:
        raise UnknownNameError.of("method of merging", name, METHODS)
    return method


def resolved(name: object, count: int, *, base: bool, **given: Any) -> Recipe:
    """The recipe for so many models, defaults filled in.

    Args:
        name: Of the method.
        count: How many models there are, the base not among them.
        base: Whether there is one.
        given: ``weights``, ``t``, ``density`` and ``scale``; None is not given.

    Raises:
        UnknownNameError: if there is no such method.
        DataError: if the models, the base or the options do not fit it.
    """
    method = described(name)
    foreign = [option for option, value in given.items() if value is not None and option not in method.takes]
    if foreign:
        taken = ", ".join(sorted(method.takes))
        fits = ", ".join(other.name for other in METHODS.values() if foreign[0] in other.takes)
        raise DataError(
            f"{method.name} was given {foreign[0]}, which it has no use for (it takes {taken}); leave it out, or use a "
            f"method that takes it: {fits}."
        )
    if method.pair and count != 2:
        raise DataError(
            f"{method.name} goes from one model to another, and was given {count}; give two, or use average for any "
            "number."
        )
    if method.base != base:
        raise DataError(
            f"{method.name} adds up what the models learned since their base, and no base was given; say which network "
            "they were all fine-tuned from (base=)."
            if method.base
            else f"{method.name} has no use for a base, and one was given; leave it out, or use task-arithmetic or "
            "ties."
        )
    recipe: dict[str, Any] = {}
    if "weights" in method.takes:
        recipe["weights"] = checked_weights(
            given.get("weights"), count, method.name, positive=method.positive, sum_to_one=method.sum_to_one
        )
    for option in ("t", "scale"):
        if given.get(option) is not None:
            recipe[option] = checked_number(given[option], option)
    if given.get("density") is not None:
        recipe["density"] = checked_density(given["density"])
    return Recipe(method.name, **recipe)
