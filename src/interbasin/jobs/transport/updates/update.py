r"""`Update`: what fine-tuning added to one network, the form in which a fine-tune enters and leaves the job.

An update is dense (a tensor), or of low rank (two factors, never multiplied unless asked). Sums, norms and truncations
keep factors as factors. ``reading`` makes updates from networks, adapters and files; ``adapter`` writes those for PEFT.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from interbasin.arrays import working_dtype
from interbasin.checkpoints import Entry, LazyTensors, write_checkpoint
from interbasin.checkpoints.delta import add
from interbasin.checkpoints.in_memory import HeldTensors, identity, tensors_of
from interbasin.checkpoints.lora import Factors, factorise, product
from interbasin.checks import require_finite, require_fraction, require_whole
from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError
from interbasin.jobs.transport.updates.adapter import Kind, kinds_of, write_as_adapter
from interbasin.jobs.transport.updates.reading import FILE, MARK, Picked, read_update, require_fitting
from interbasin.jobs.transport.updates.sums import SummedUpdates
from interbasin.jobs.transport.updates.ties import names_apart
from interbasin.jobs.transport.updates.ties import untie as make_apart
from interbasin.storage import as_path
from interbasin.text import list_names
from interbasin.wiring.trace.copying import copied, forget_what_was_derived

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, eq=False, repr=False)
class Update:
    """What fine-tuning added to one network, by the names of its tensors.

    A tied tensor is named once, by its first name. Where its names were trained apart (a head that PEFT copied, one
    table of two with a LoRA), each of them is named, with zeros for those that did not change.

    Attributes:
        dense: Updates as whole tensors, computed when they are asked for wherever that is possible.
        factors: Updates of low rank, by the weight that they update (``"layer.weight"``). The scaling is in them, and
            ``product(a, b)`` is (out, in), with the kernel of a convolution behind it.
        transposed: Weights whose update is the transpose of that product: those stored (in, out), as ``Conv1D``
            stores them, and tables of embeddings.
        tables: Which of the weights with factors are tables of embeddings.
        label: How messages call it.
        kinds: Weights of the network that can have factors, and what they are: see `kinds_of`. Only `truncated` asks.
        notes: What a user should know.

    Raises:
        DataError, ShapeError: If factors are not finite or have no product, or a tensor has two updates.
    """

    dense: Mapping[str, Tensor] = field(default_factory=dict)
    factors: Mapping[str, Factors] = field(default_factory=dict)
    transposed: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    label: str = "the update"
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        twice = [name for name in self.factors if name in self.dense]
        if twice:
            raise DataError(f"{list_names(twice)} of {self.label} has factors and a dense update; add them up first.")
        for name, pair in self.factors.items():
            if pair.a.ndim < 2 or pair.b.ndim < 2 or pair.a.shape[0] != pair.b.shape[1]:
                raise ShapeError(
                    f"The factors of {name} have shapes {tuple(pair.a.shape)} and {tuple(pair.b.shape)}, which have no "
                    "product B @ A; give A as (rank, in) and B as (out, rank)."
                )
            if not all(bool(torch.isfinite(factor).all()) for factor in (pair.a, pair.b)):
                raise DataError(f"The factors of {name} in {self.label} hold NaN or infinity; repair them first.")
        object.__setattr__(self, "tables", frozenset(self.tables) & set(self.factors))
        object.__setattr__(self, "transposed", (frozenset(self.transposed) & set(self.factors)) | self.tables)

    @classmethod
    def of(cls, tuned: nn.Module | Mapping[str, Tensor] | str | os.PathLike[str], source: nn.Module) -> Update:
        """The update that makes ``source`` into ``tuned``. What is dense is computed when it is asked for.

        Args:
            tuned: One of these:

                - a module of the same tensors as ``source``;
                - a ``peft.PeftModel``, or a network that ``peft`` put a LoRA into: the adapter that is active;
                - a mapping of tensors' names to updates;
                - an adapter's folder, ``update.safetensors``, or the folder that a transport left;
                - a MODEL: a folder or file with the weights of the tuned network, or a name that `load_model` knows.
            source: The network that was fine-tuned.

        Raises:
            WiringError, ShapeError, UnknownNameError: If the two are not made of the same tensors; names one.
            DataError: If the numbers cannot be used (NaN), an adapter is not of this network, or configurations say
                that the two compute differently.
            CheckpointError: If there is nothing at that path, or it is an adapter that is no plain LoRA.
        """
        parts = read_update(tuned, source)
        return cls(
            parts.dense, parts.factors, parts.transposed, parts.tables, parts.label, kinds_of(source), parts.notes
        )

    # ------------------------------------------------------------------ looking at it

    def __iter__(self) -> Iterator[str]:
        return chain(self.dense, self.factors)

    def __len__(self) -> int:
        return len(self.dense) + len(self.factors)

    def __contains__(self, name: object) -> bool:
        return name in self.dense or name in self.factors

    def __repr__(self) -> str:
        rank = f", {len(self.factors)} of rank up to {self.rank}" if self.factors else ""
        return f"Update({self.label}: {len(self)} tensors{rank})"

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor with an update."""
        return tuple(self)

    def tensor(self, name: str) -> Tensor:
        """The whole update of a tensor.

        Raises:
            UnknownNameError: If it has none; lists the nearest.
        """
        if name in self.factors:
            pair = self.factors[name]
            return product(pair.a, pair.b, transposed=name in self.transposed)
        if name not in self.dense:
            raise UnknownNameError.of(f"tensor with an update in {self.label}", name, self.names)
        return self.dense[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor's update, which is not computed for it."""
        return self.tensors.shape(name)

    @cached_property
    def tensors(self) -> LazyTensors:
        """All updates as whole tensors, each computed when it is asked for."""
        return _Whole(self)

    @property
    def is_low_rank(self) -> bool:
        """Whether some update comes as factors."""
        return bool(self.factors)

    @property
    def rank(self) -> int | None:
        """The largest inner width of the factors; None if there are none."""
        return max((int(pair.a.shape[0]) for pair in self.factors.values()), default=None)

    def norm(self) -> float:
        """The Frobenius norm of all updates together. No product of factors is formed."""
        return math.hypot(*(self.norm_of(name) for name in self))

    def norm_of(self, name: str) -> float:
        """The Frobenius norm of the update of one tensor."""
        if name in self.factors:
            return float(_core(self.factors[name])[1].norm())
        return float(torch.linalg.vector_norm(self.tensor(name), dtype=torch.float64))

    @property
    def does_nothing(self) -> bool:
        """Whether every update is zero, as that of a LoRA is before it is trained."""
        for pair in self.factors.values():
            a, b = pair.a.flatten(1), pair.b.flatten(1)
            if bool(((a != 0).any(1) & (b != 0).any(0)).any()):
                return False
        return not any(bool(self.dense[name].any()) for name in self.dense)

    # ------------------------------------------------------------------ arithmetic

    def added_to(self, model: Model, alpha: float = 1.0, *, untie: bool = False) -> Model:
        """A copy of a network with ``alpha`` times the update, in the network's dtypes; the given one stays as it is.

        Args:
            model: The network: the one that was fine-tuned, or the one that the update was carried to.
            alpha: What the update is multiplied with.
            untie: Whether a tied tensor whose names have different updates becomes several tensors in the copy.

        Raises:
            UnknownNameError, ShapeError: If an update has no tensor in the network, or not its shape.
            WiringError: If a tied tensor has different updates and ``untie`` is off.
            DataError: If ``alpha`` or a sum is not finite.
        """
        copy, delta = copied(model), self.tensors
        apart = names_apart(self, copy) if untie else []
        if apart:
            make_apart(copy, apart)
            config: Any = getattr(copy, "config", None)
            if getattr(config, "tie_word_embeddings", False):
                config.tie_word_embeddings = False  # or transformers ties them again
        try:
            total = add(copy, delta, alpha)
        except WiringError as error:
            raise WiringError(f"{error} Or have added_to make them two tensors (untie=True).") from error
        state = copy.state_dict(keep_vars=True)
        identities = {identity(tensor) for tensor in chain(copy.parameters(), copy.buffers())}
        derived: dict[str, Tensor] = {}
        with torch.no_grad():
            for name in total.updated:
                if identity(state[name]) in identities:
                    state[name].copy_(total[name])  # one tensor at a time; those that are tied change with it
                else:
                    derived[name] = total[name]
        if derived:  # what a network shows under a name of its own making, only it can take back
            copy.load_state_dict(derived, strict=False)
        forget_what_was_derived(copy)
        return copy

    def scaled(self, alpha: float) -> Update:
        """The update times a number."""
        return Update.combined([self], [alpha])

    @staticmethod
    def combined(
        updates: Sequence[Update], weights: Sequence[float] | None = None, *, density: float | None = None
    ) -> Update:
        """The weighted sum of several updates of one network (task arithmetic) or, with a density, their TIES merge.

        In a sum, factors are put side by side, so that ranks add up; where one update of a tensor has factors and
        another none, their sum is dense. A TIES merge [yadav:23] is dense, and computed when it is asked for.

        Args:
            updates: The updates.
            weights: One for each; 1 by default.
            density: For TIES: the share of every update that is kept, in each tensor by itself.

        Raises:
            DataError: If there are no updates, or not one finite weight for each, or the density is no share.
            ShapeError: If two updates of a tensor differ in shape: they are not of one network.
        """
        scales = [1.0] * len(updates) if weights is None else [require_finite("a weight", weight) for weight in weights]
        if not updates or len(scales) != len(updates):
            raise DataError(
                f"A sum takes updates and a weight for each, found {len(updates)} and {len(scales)}; give one for each."
            )
        if density is not None:
            require_fraction("density", density, zero=False)
        names = dict.fromkeys(chain(*updates))
        weighted = {name: [pair for pair in zip(updates, scales, strict=True) if name in pair[0]] for name in names}
        factors = {}
        for name, pairs in weighted.items():
            if len({update.shape(name) for update, _ in pairs}) > 1:
                shapes = list_names(f"{update.shape(name)} in {update.label}" for update, _ in pairs)
                raise ShapeError(f"The updates of {name} differ in shape: {shapes}; give updates of one network.")
            orientations = {name in update.transposed for update, _ in pairs}
            if density is None and len(orientations) == 1 and all(name in update.factors for update, _ in pairs):
                dtype = working_dtype(*(update.factors[name].a.dtype for update, _ in pairs))
                a = torch.cat([update.factors[name].a.to(dtype) for update, _ in pairs])
                b = torch.cat([scale * update.factors[name].b.to(dtype) for update, scale in pairs], dim=1)
                factors[name] = Factors(a, b)
        return Update(
            SummedUpdates({name: pairs for name, pairs in weighted.items() if name not in factors}, density),
            factors,
            frozenset[str]().union(*(update.transposed for update in updates)),
            frozenset[str]().union(*(update.tables for update in updates)),
            list_names((update.label for update in updates), most=8),
            updates[0].kinds,
            tuple(dict.fromkeys(chain(*(update.notes for update in updates)))),
        )

    def truncated(self, rank: int, model: nn.Module | None = None) -> tuple[Update, dict[str, float]]:
        """The update with factors of that rank for every weight that PEFT can update so, and what that loses.

        Biases, gains and the like stay dense, and so do weights that did not change, and those that are tied to others
        of the network, which PEFT stores whole. Factors of at most that rank stay
        what they are; others are cut without forming their product.

        Args:
            rank: The largest inner width.
            model: The network that the update is for, where it was made without one (`kinds` is empty).

        Returns:
            The update, and for each tensor with factors the share of its update's Frobenius norm that they lack.

        Raises:
            DataError: If the rank is no whole number above zero, or nothing says which tensors can have factors.
        """
        require_whole("rank", rank, least=1)
        kinds = self.kinds if model is None else kinds_of(model)
        if not kinds and self.dense:
            raise DataError(f"{self.label} does not say which weights can have factors; give the network as model=.")
        factors, lost = {}, {}
        for name, pair in self.factors.items():
            factors[name] = pair if pair.a.shape[0] <= rank else _cut(pair, rank)
            lost[name] = factors[name].lost if factors[name] is not pair else 0.0
        ties = {} if model is None else HeldTensors(model, "the network").ties
        for name in (name for name in self.dense if name in kinds and not self._is_tied(name, ties)):
            update = self.tensor(name)
            if bool(update.any()):
                full = min(len(update), update[0].numel())
                factors[name] = factorise(update, min(rank, full), transposed=kinds[name] in ("conv1d", "table"))
                lost[name] = factors[name].lost
        cut = replace(
            self,
            dense=Picked(
                tensors_of(self.dense, self.label), {name: name for name in self.dense if name not in factors}
            ),
            factors=factors,
            transposed=self.transposed | {name for name in factors if kinds.get(name) in ("conv1d", "table")},
            tables=self.tables | {name for name in factors if kinds.get(name) == "table"},
            kinds=kinds,
        )
        return cut, lost

    def _is_tied(self, name: str, ties: Mapping[str, str]) -> bool:
        """Whether a tensor has other names in a network (``ties``), none of which has an update of its own."""
        stored = ties.get(name, name)
        group = [stored, *(other for other, first in ties.items() if first == stored)]
        return len(group) > 1 and sum(other in self for other in group) == 1

    def as_dense(self) -> Update:
        """The same update with every tensor whole, computed when it is asked for."""
        return replace(self, dense=self.tensors, factors={})

    # ------------------------------------------------------------------ writing

    def write(
        self,
        folder: str | os.PathLike[str],
        *,
        base: str | os.PathLike[str] | None = None,
        model: nn.Module,
        force: bool = False,
    ) -> tuple[str, ...]:
        """Write the update for those who hold the network: an adapter if it is of low rank, else one file.

        An adapter is a new folder that ``peft.PeftModel.from_pretrained`` loads. What is dense goes into it as PEFT
        stores such things: biases beside the factors, other modules whole. A dense update becomes
        ``update.safetensors`` in the folder, which is made where there is none. `Update.of` reads both.

        Args:
            folder: Where to.
            base: The MODEL that the update belongs to, for those who load it.
            model: The same as a module.
            force: Replace what this wrote there before. Anything else is never replaced.

        Returns:
            What a user should know of how it was written.

        Raises:
            DataError: If PEFT has no place for a tensor's update; names it, and says what to do.
            FileError: If something is in the way.
        """
        require_fitting(self.tensors, HeldTensors(model, "the network"))
        if self.is_low_rank:
            return write_as_adapter(self, folder, base=base, model=model, force=force)
        place = as_path(folder)
        place.mkdir(parents=True, exist_ok=True)
        about = {"version": 1, "label": self.label, "base": None if base is None else os.fspath(base)}
        write_checkpoint(Path(place) / FILE, self.tensors, metadata={MARK: json.dumps(about)}, force=force)
        return ()


# ---------------------------------------------------------------------- updates that are computed when asked for


class _Whole(LazyTensors):
    """All updates of an `Update` as whole tensors."""

    def __init__(self, update: Update) -> None:
        self._update, self.ties = update, {}
        dense = tensors_of(update.dense, update.label)
        self.entries = {name: dense.entry(name) for name in update.dense}
        for name, pair in update.factors.items():
            upright = (pair.b.shape[0], *pair.a.shape[1:])
            shape = upright[::-1] if name in update.transposed else upright
            self.entries[name] = Entry.of(working_dtype(pair.a.dtype, pair.b.dtype), shape)

    @property
    def label(self) -> str:
        return self._update.label

    def __getitem__(self, name: str) -> Tensor:
        return self._update.tensor(self.stored_name(name))


# ---------------------------------------------------------------------- factors, without their product


def _core(pair: Factors) -> tuple[Tensor, Tensor, Tensor]:
    """Orthonormal bases of both factors and what stands between: ``B @ A = left @ core @ right.mT``, in float64."""
    left, from_b = torch.linalg.qr(pair.b.double().flatten(1))
    right, from_a = torch.linalg.qr(pair.a.double().flatten(1).mT)
    return left, from_b @ from_a.mT, right


def _cut(pair: Factors, rank: int) -> Factors:
    """The best factors of a lower rank [eckart:36], of equal norms."""
    left, core, right = _core(pair)
    inner = factorise(core, min(rank, *core.shape))
    a, b = inner.a @ right.mT, left @ inner.b
    kernel = pair.a.shape[1:]
    return Factors(
        a.reshape(-1, *kernel).to(pair.a.dtype),
        b.reshape(*b.shape, *[1] * (len(kernel) - 1)).to(pair.b.dtype),
        inner.lost,
    )
