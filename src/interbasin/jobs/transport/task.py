"""What a method of transport is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

from torch import Tensor, nn

from interbasin.activations import Tokens
from interbasin.activations.pairing import MaskOf
from interbasin.checks import require_choice, require_finite, require_flag, require_whole
from interbasin.jobs.transport.bases import Bases, Pair
from interbasin.jobs.transport.journal import Journal
from interbasin.jobs.transport.regression.sequence import LayerFit
from interbasin.jobs.transport.theseus.carrier import Carrier, Moved
from interbasin.jobs.transport.theseus.maps import NeededMaps, fit_maps, observe, seek
from interbasin.jobs.transport.theseus.rules import Rule, SpaceMap, Unobserved, procrustes
from interbasin.jobs.transport.updates.update import Update
from interbasin.randomness import generator_of
from interbasin.statistics import PairedMoments

SCALES = ("none", "rms")  # of `Options.scale`
GENERIC_TARGETS = ("keep", "tuned")
MOST_WEIGHT = 1e6  # of generic inputs; beyond, nothing is left of the task but round-off


@dataclass(frozen=True)
class Options:
    """Options of a method. Each method reads the ones that concern it; `transport` explains them."""

    centered: bool = True
    scale: str = "none"
    unobserved: Unobserved = "complete"
    tokens: str | Tokens | None = None
    mask: MaskOf = None
    generic_target: str = "keep"
    generic_weight: float = 0.5
    rank: int | None = None
    seed: int = 0
    attention: str = "heads"

    def check(self) -> Options:
        """The options, refused if one of them cannot be.

        Raises:
            UnknownNameError, DataError: names the option.
        """
        require_flag("centered", self.centered)
        require_choice("scale", self.scale, SCALES)
        require_choice("unobserved", self.unobserved, get_args(Unobserved))
        require_choice("generic_target", self.generic_target, GENERIC_TARGETS)
        require_finite("generic_weight", self.generic_weight, above=0, most=MOST_WEIGHT)
        if self.rank is not None:
            require_whole("as_lora", self.rank, least=1)
        generator_of(self.seed)
        return self


@dataclass(frozen=True, eq=False)
class Task:
    """Two base networks, the fine-tune of one of them, and what else a method may look at.

    Attributes:
        bases: The networks before fine-tuning, and their correspondence.
        update: What fine-tuning added to the source.
        tuned: The source with it.
        data: Task inputs, with labels where there are some: `WithoutLabels` takes them off.
        generic: Inputs of the kind that the target was trained on, or None.
        readout: Outputs -> logits, where outputs are shared; None where outputs are to be compared as they are.
        options: Of the method.
        report: Called with a line of text on the way.
        recorded: What the bases show on the data, where that is known already.
        journal: Where what takes long is kept, for a run that goes on from there.
    """

    bases: Bases
    update: Update
    tuned: nn.Module
    data: Any
    generic: Any = None
    readout: Callable[[Any], Tensor] | None = None
    options: Options = field(default_factory=Options)
    report: Callable[[str], object] = field(default=lambda text: None)
    recorded: Mapping[Pair, PairedMoments] | None = None
    journal: Journal | None = None

    @cached_property
    def needed_maps(self) -> NeededMaps:
        """Which maps the two networks need."""
        return seek(self.bases)

    @cached_property
    def moments(self) -> Mapping[Pair, PairedMoments]:
        """What the bases show on the data, in the spaces that need a map. Recorded once."""
        return self.recorded if self.recorded is not None else self._observe(grams=False)

    @cached_property
    def moments_with_grams(self) -> Mapping[Pair, PairedMoments]:
        """The same with Gram matrices, which cost as much again and which isometries do without."""
        if self.recorded is not None and all(each.has_grams for each in self.recorded.values()):
            return self.recorded
        return self._observe(grams=True)

    def _observe(self, *, grams: bool) -> Mapping[Pair, PairedMoments]:
        self.report("recording activations")
        options = self.options
        state = None
        if self.journal is not None:
            settings = {
                "spaces": self.needed_maps.pairs_to_record,
                "tokens": options.tokens,
                "mask": options.mask,
                "grams": grams,
            }
            state = self.journal.recording((self.bases.source, self.bases.target), self.data, **settings)
        return observe(
            self.bases,
            self.data,
            self.needed_maps.pairs_to_record,
            tokens=options.tokens,
            mask=options.mask,
            grams=grams,
            state=state,
        )

    def maps(self, rule: Rule = procrustes, *, scale: bool | None = None) -> dict[Pair, SpaceMap]:
        """The map of every pair of spaces; isometries are fitted once."""
        scaled = self.options.scale == "rms" if scale is None else scale
        if rule is not procrustes:
            return self._fit(rule, scaled, self.moments_with_grams)
        if scaled not in self._isometries:
            self._isometries[scaled] = self._fit(rule, scaled, self.moments)
        return dict(self._isometries[scaled])

    @cached_property
    def _isometries(self) -> dict[bool, dict[Pair, SpaceMap]]:
        return {}

    def _fit(self, rule: Rule, scale: bool, moments: Mapping[Pair, PairedMoments]) -> dict[Pair, SpaceMap]:
        options = self.options
        return fit_maps(
            self.bases,
            self.needed_maps,
            moments,
            rule,
            centered=options.centered,
            unobserved=options.unobserved,
            scale=scale,
        )

    def carrier(self, maps: Mapping[Pair, SpaceMap] | None = None) -> Carrier:
        """What carries updates through the maps; by default the isometries."""
        return Carrier(self.bases, self.maps() if maps is None else maps, self.needed_maps.missing)

    def on(self, data: Any) -> Task:
        """The same task on other data; what was recorded is not taken along."""
        return replace(self, data=data, recorded=None)

    @cached_property
    def as_given(self) -> Task:
        """The same with the source as it was given, where new blocks were put into it: to run tuned A and to judge."""
        given_bases = self.bases.given_bases
        return self if given_bases is None else replace(self, bases=given_bases, recorded=None)

    def with_generic_weight(self, weight: float) -> Task:
        """The same with another weight of the generic inputs; what was recorded and the isometries are taken along."""
        other = replace(self, options=replace(self.options, generic_weight=weight), recorded=self.moments)
        other._isometries.update(self._isometries)
        return other

    def against_target(self) -> Task:
        """The same with the target as it was in the place of tuned A: to measure what is forgotten."""
        return replace(self, tuned=self.bases.target)


@dataclass(frozen=True, eq=False)
class Transported:
    """What a method made of a task.

    Attributes:
        update: For the target, to be added to it once (``alpha=1``).
        moved: What became of each tensor of the source's update; empty for methods that do not carry it.
        maps: The maps that it was carried through.
        layers: What a regression found for each layer.
        notes: What a user should know.
        model: The network itself, where that is not the target with the update: tuned A, for the table.
    """

    update: Update
    moved: tuple[Moved, ...] = ()
    maps: Mapping[Pair, SpaceMap] = field(default_factory=dict)
    layers: tuple[LayerFit, ...] = ()
    notes: tuple[str, ...] = ()
    model: nn.Module | None = None

    def applied_to(self, target: nn.Module, alpha: float = 1.0) -> nn.Module:
        """The network that results: the target with ``alpha`` times the update, or `model`."""
        return self.update.added_to(target, alpha) if self.model is None else self.model
