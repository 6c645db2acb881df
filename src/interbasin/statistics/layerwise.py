"""All pairs of two lists of layers at once: `LayerwiseMoments`, similarities without stored activations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from interbasin.arrays import Array
from interbasin.errors import DataError, UnknownNameError
from interbasin.statistics.accumulation import Accumulator, load_accumulator
from interbasin.statistics.batches import add_batch
from interbasin.statistics.moments import SOURCE, TARGET, Moments, PairedMoments
from interbasin.statistics.similarity import linear_cka
from interbasin.text import plural


class LayerwiseMoments(Moments):
    """The moments of every source layer with every target layer, over the same rows.

    Each layer's own sums are kept once and each pair's cross-product once: for ``a`` and ``b`` layers of width ``w``
    the memory is ``(a b + a + b) w^2`` numbers, whatever the number of rows.

    Example:
        >>> moments = LayerwiseMoments()
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> moments.update({"one": x, "two": x.square()}, {"one": x})
        >>> [round(v, 6) for v in moments.cka()[0].tolist()]
        [1.0]
    """

    def __init__(self) -> None:
        self._state = Accumulator(grams=True)

    def update(self, sources: Mapping[str, Array], targets: Mapping[str, Array]) -> None:
        """Add a batch: for each layer by name, rows that all come from the same inputs."""
        for kind, layers in (("source", sources), ("target", targets)):
            if not isinstance(layers, Mapping):
                raise DataError(f"The {kind} layers must be a dict {{name: rows}}, got {type(layers).__name__}.")
            odd = [name for name in layers if not isinstance(name, str)]
            if odd:
                raise DataError(f"The names of layers must be text, got {odd[0]!r} among the {kind} layers.")
        self._state = add_batch(self._state, sources, targets)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> LayerwiseMoments:
        """The moments that were saved to ``folder``."""
        state, _ = load_accumulator(folder)
        if not state.grams:
            raise DataError(f"The statistics in {folder} hold no Gram matrices, which LayerwiseMoments need.")
        return cls._of_state(state)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the source layers, in the order they were first given."""
        return tuple(self._state.sources)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the target layers, in the order they were first given."""
        return tuple(self._state.targets)

    def pair(self, source: str, target: str) -> PairedMoments:
        """The moments of one source layer with one target layer."""
        for kind, name, known in (("source layer", source, self.sources), ("target layer", target, self.targets)):
            if name not in known:
                raise UnknownNameError.of(kind, name, known)
        whole = self._state
        state = replace(
            whole,
            sources={SOURCE: whole.sources[source]},
            targets={TARGET: whole.targets[target]},
            crosses={(SOURCE, TARGET): whole.crosses[source, target]},
        )
        return PairedMoments._of_state(state)

    def cka(self) -> Tensor:
        """The matrix of linear CKA: one row per source layer, one column per target layer."""
        if not self.count:
            raise DataError("These moments are empty; call update(sources, targets) first.")
        values = [[linear_cka(self.pair(source, target)) for target in self.targets] for source in self.sources]
        return torch.tensor(values, dtype=torch.float64)

    def __repr__(self) -> str:
        layers = f"{len(self.sources)} source and {plural(len(self.targets), 'target layer')}"
        return f"LayerwiseMoments({layers}, {plural(self.count, 'row')})"
