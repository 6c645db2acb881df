r"""Differences of networks, also called task vectors, and their sums with a base; a tensor at a time.

What is computed:

- `difference` is :math:`\tau = m - b`, in float32, or in float64 where one of the two is; it is kept in that dtype. For
  weights of less precision ``dtype=torch.float64`` makes it exact, and then ``add(base, difference(tuned, base))`` is
  ``tuned`` to the bit (unless two entries differ by more than :math:`2^{29}` times in size).
- `add` is :math:`b + \alpha \tau`, computed in the wider of the two dtypes, float32 at least, and rounded once, to the
  dtype of the base.
- Running statistics are tensors like any other. Whole numbers and flags (counters, positions, masks) have no multiples:
  they are left out of a difference, and a sum has those of the base.
- Tied tensors are one tensor under several names. An update that comes under several of them is added once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from interbasin.arrays import working_dtype
from interbasin.checkpoints.adapter_settings import require_agreement
from interbasin.checkpoints.checkpoint import ARITHMETIC, Checkpoint, Entry, LazyTensors, require_same_tensors
from interbasin.checkpoints.in_memory import tensors_of
from interbasin.checkpoints.lora import (
    Adapter,
    Factor,
    Factors,
    Ranks,
    factor_of,
    plain_name,
    product,
    refuse_another_rank,
)
from interbasin.checks import require_finite
from interbasin.errors import DataError, ShapeError, UnknownNameError, WiringError
from interbasin.text import list_names


class Difference(LazyTensors):
    """What `difference` returns: the updates of the tensors, each computed when it is asked for.

    Attributes:
        entries: Dtype and shape of every update, tied ones once.
        ties: The further names of tensors that are tied in both networks.
        left_out: Tensors without an update: whole numbers and flags.
    """

    def __init__(self, tuned: LazyTensors, base: LazyTensors, dtype: torch.dtype | None) -> None:
        self._tuned, self._base = tuned, base
        self.left_out = tuple(name for name in base if base.entry(name).kind not in ARITHMETIC)
        names = [name for name in base if name not in self.left_out]
        # Names that are one tensor in both networks have one update.
        self.ties = {
            name: base.ties[name]
            for name in names
            if name in base.ties
            and (name not in tuned or tuned.stored_name(name) == tuned.stored_name(base.ties[name]))
        }
        self.entries = {}
        for name in names:
            if name not in self.ties:
                wide = working_dtype(base.dtype(name), tuned.dtype(name), dtype or torch.float32)
                self.entries[name] = Entry.of(wide, base.shape(name))

    def __getitem__(self, name: str) -> Tensor:
        name = self.stored_name(name)
        base, wide = self._base[name], self.dtype(name)
        tuned = self._tuned[name].to(base.device)
        update = tuned.to(wide) - base.to(wide)
        if not bool(torch.isfinite(update).all()):
            # Masks hold infinity, and what is the same in both networks has no update.
            update.masked_fill_((tuned == base) | (tuned.isnan() & base.isnan()), 0)
            if not bool(torch.isfinite(update).all()):
                raise DataError(
                    f"The update of {name} is not finite: {self._tuned.label} or {self._base.label} holds NaN, "
                    f"infinity or numbers too large to subtract in {wide}; repair that tensor first."
                )
        return update


class Sum(LazyTensors):
    """What `add` returns: the tensors of the base with their updates added, each computed when it is asked for.

    Attributes:
        entries: Dtype and shape of every tensor, tied ones once: those of the base.
        ties: The further names of tied tensors.
        updated: Tensor -> the name of the update that is added to it.
    """

    def __init__(self, base: LazyTensors, delta: LazyTensors, alpha: float, ties: Mapping[str, str]) -> None:
        self._base, self._delta, self.alpha = base, delta, alpha
        self.ties = {name: ties.get(stored, stored) for name, stored in base.ties.items()} | {**ties}
        self.entries = {name: entry for name, entry in base.entries.items() if name not in self.ties}
        self.updated = self._find_updates()

    def _find_updates(self) -> dict[str, str]:
        updates: dict[str, str] = {}
        for name in self._delta:
            if name not in self:
                raise UnknownNameError.of(f"tensor in {self._base.label} to be updated", name, self.names)
            entry, update = self.entry(name), self._delta.entry(name)
            if entry.shape != update.shape:
                raise ShapeError(
                    f"The update of {name} has shape {update.shape}, and in {self._base.label} it has {entry.shape}."
                )
            if entry.kind not in ARITHMETIC or update.kind not in ARITHMETIC:
                raise DataError(
                    f"{name} is of {entry.kind} and its update of {update.kind}, which cannot be added; leave it out."
                )
            if update.kind.startswith("complex") and not entry.kind.startswith("complex"):
                raise DataError(f"{name} holds real numbers and its update complex ones; give a real update.")
            first = updates.setdefault(self.stored_name(name), name)
            if self._delta.stored_name(first) != self._delta.stored_name(name) and not torch.equal(
                self._delta[first], self._delta[name]
            ):
                raise WiringError(
                    f"{first} and {name} are one tensor in {self._base.label}, and their updates differ; give one of "
                    "the two, or untie them first."
                )
        return updates

    def __getitem__(self, name: str) -> Tensor:
        name = self.stored_name(name)
        base = self._base[name]
        if name not in self.updated or self.alpha == 0:
            return base
        update = self._delta[self.updated[name]].to(base.device)
        wide = working_dtype(base.dtype, update.dtype)
        total = torch.add(base.to(wide), update.to(wide), alpha=self.alpha).to(base.dtype)
        # Where the base is not finite, as in masks, it may stay so.
        if not bool((torch.isfinite(total) | ~torch.isfinite(base)).all()):
            raise DataError(
                f"{name} is not finite once {self.alpha:g} times its update is added: the update holds NaN or "
                f"infinity, or {base.dtype} cannot hold the sum; repair the update, or add less of it."
            )
        return total


class LoraUpdate(LazyTensors):
    """What a LoRA adds to the tensors of its base, by their names there; each is computed when it is asked for.

    `add` adds it. Biases and modules that were trained whole count too: their update is what they differ by from
    the base.

    Args:
        tensors: The adapter: an open `Checkpoint` of its folder, or what ``peft.get_peft_model_state_dict`` gives.
        base: The network that it was trained on, its tensors by name, or its open `Checkpoint`.
        adapter: What its configuration says, where the folder does not; see `parse_adapter`.

    Attributes:
        notes: What a user should know.

    Raises:
        CheckpointError: If it is no LoRA, or a variant such as DoRA, or its configuration is not about these tensors;
            names it.
        DataError, ShapeError: If there are no tensors, or one of them does not fit the base; names it.
    """

    def __init__(
        self,
        tensors: Checkpoint | Mapping[str, Tensor],
        base: nn.Module | Mapping[str, Tensor],
        adapter: Adapter | None = None,
    ) -> None:
        self._tensors, self._base = tensors_of(tensors, "the adapter"), tensors_of(base, "the base")
        adapter = adapter or (tensors.adapter if isinstance(tensors, Checkpoint) else None)
        if adapter is None:
            raise DataError(
                f"{self.label} does not say its rank and scale; open the adapter's folder, or give adapter=."
            )
        adapter.require_plain_lora(self.label)
        if not len(self._tensors):
            raise DataError(f"{self.label} holds no tensor at all, so that it changes nothing; give a trained adapter.")
        self._adapter, self._modules = adapter, None if isinstance(base, Mapping) else dict(base.named_modules())
        # Tensor of the base -> the tensors of the adapter that make up its update, by what they are.
        self._parts: dict[str, dict[str, str]] = {}
        ranks: Ranks = {}
        for name in self._tensors:
            again = name.replace(".modules_to_save.", ".")
            if ".original_module." in name or (again != name and again in self._tensors):
                continue  # with all biases PEFT stores those of a module that is trained whole three times
            factor, part = factor_of(name), "whole"
            updated = plain_name(name)
            if factor is not None:
                _require_factor(factor, self._tensors.shape(name))
                refuse_another_rank(factor, self._tensors.shape(name), ranks)
                adapter.require_rank(factor, self._tensors.shape(name))
                layer, part = plain_name(f"{factor.layer}."), "bias" if factor.is_bias else factor.letter
                updated = layer + ("bias" if factor.is_bias else "weight")
            if self._parts.setdefault(updated, {}).setdefault(part, name) != name:
                raise DataError(
                    f"{name} updates {updated} as {self._parts[updated][part]} does; give the tensors of one adapter "
                    "(peft.get_peft_model_state_dict)."
                )
        self.entries, self.ties = {name: self._entry(name) for name in self._parts}, {}
        # In memory PEFT has built what the configuration says.
        self.notes = self._require_agreement() if isinstance(tensors, Checkpoint) else ()

    @property
    def label(self) -> str:
        return self._tensors.label

    def __getitem__(self, name: str) -> Tensor:
        name = self.stored_name(name)
        scaling = self._adapter.scaling_of(name.rpartition(".")[0])
        parts = {part: self._tensors[stored].to(self.dtype(name)) for part, stored in self._parts[name].items()}
        updates = []
        if "A" in parts:
            updates.append(scaling * product(parts["A"], parts["B"], transposed=self._is_transposed(name)))
        if "bias" in parts:
            updates.append(scaling * parts["bias"])
        if "whole" in parts:  # PEFT stores a table beside its factors
            updates.append(parts["whole"] - self._base[name].to(parts["whole"].dtype))
        return updates[0] if len(updates) == 1 else updates[0] + updates[1]

    def factors(self, name: str) -> Factors | None:
        """The factors of a tensor's update with the scaling in B, in memory of their own.

        None if it is no product, or more than that: a table whose own numbers are not those of the base.
        """
        parts = self._parts[self.stored_name(name)]
        if "A" not in parts or (
            "whole" in parts and not equal_as_stored(self._tensors[parts["whole"]], self._base[name])
        ):
            return None
        a, b = (self._tensors[parts[letter]].to(self.dtype(name)) for letter in "AB")
        return Factors(a, self._adapter.scaling_of(name.rpartition(".")[0]) * b)

    def is_transposed(self, name: str) -> bool:
        """Whether the update of a weight is the transpose of the product of its factors."""
        return "A" in self._parts[name] and self._is_transposed(name)

    def is_table(self, name: str) -> bool:
        """Whether a weight with factors is a table of embeddings."""
        return "lora_embedding_" in self._parts[name].get("A", "")

    def _require_agreement(self) -> tuple[str, ...]:
        factors = {name.rpartition(".")[0]: parts["A"] for name, parts in self._parts.items() if "A" in parts}
        whole = [name for name, parts in self._parts.items() if "whole" in parts]
        return require_agreement(
            self._adapter.settings, factors, whole, self._base, is_linear=self._is_linear, where=self.label
        )

    def _is_linear(self, layer: str) -> bool:
        if self._modules is None:
            return not self.is_table(f"{layer}.weight")
        return isinstance(self._modules[layer], nn.Linear) or type(self._modules[layer]).__name__ == "Conv1D"

    def _entry(self, name: str) -> Entry:
        """Dtype and shape of an update, after checking that the base has such a tensor."""
        parts, first = self._parts[name], next(iter(self._parts[name].values()))
        if name not in self._base:
            # PEFT 0.21 adds the update of the output projection twice, other versions may not.
            attention = f"{name.rpartition('.')[0]}.in_proj_weight" in self._base
            raise DataError(
                f"{first} updates {'nn.MultiheadAttention' if attention else name}, "
                + (
                    "for which PEFT has arithmetic of its own; merge it into its base first (merge_and_unload())."
                    if attention
                    else f"which {self._base.label} does not hold; is it the adapter of this network, and no DoRA?"
                )
            )
        if ("A" in parts) != ("B" in parts):
            raise DataError(f"{first} has no partner to update {name} with; give the whole adapter.")
        for stored in parts.values() if self._base.entry(name).kind in ARITHMETIC else ():
            if self._tensors.entry(stored).kind not in ARITHMETIC:
                raise DataError(
                    f"{stored} of {self.label} is of {self._tensors.entry(stored).kind}, which has no arithmetic here, "
                    f"and {name} is updated by numbers; save the adapter in float32, float16 or bfloat16."
                )
        shape = self._base.shape(name)
        shapes = {self._tensors.shape(stored) for part, stored in parts.items() if part in ("bias", "whole")}
        if "A" in parts:
            shapes.add(self._product_shape(name)[:: -1 if self._is_transposed(name) else 1])
        if shapes != {shape}:
            raise ShapeError(
                f"{list_names(parts.values())} make an update of shape {list_names(map(str, shapes - {shape}))}, and "
                f"{name} of {self._base.label} has shape {shape}; is it the adapter of this network?"
            )
        return Entry.of(working_dtype(*map(self._tensors.dtype, parts.values())), shape)

    def _product_shape(self, name: str) -> tuple[int, ...]:
        a, b = (self._tensors.shape(self._parts[name][letter]) for letter in "AB")
        return (b[0], *a[1:])

    def _is_transposed(self, name: str) -> bool:
        """Whether a weight takes the transpose of ``B @ A``: by the shapes if they tell, else by what else is known."""
        upright, layer = self._product_shape(name), name.rpartition(".")[0]
        if "lora_embedding_" in self._parts[name]["A"]:
            return True
        if len(upright) > 2 or upright[0] != upright[1]:
            return len(upright) == 2 and self._base.shape(name) == upright[::-1]
        return self._adapter.is_transposed if self._modules is None else type(self._modules[layer]).__name__ == "Conv1D"


def _require_factor(factor: Factor, shape: tuple[int, ...]) -> None:
    """Refuse a factor whose axes are not those of one."""
    if factor.is_bias:
        return
    if len(shape) < 2 or (factor.letter == "B" and {*shape[2:]} - {1}):
        expected = "(rank, in), and a kernel behind it" if factor.letter == "A" else "(out, rank), and ones behind it"
        raise ShapeError(
            f"{factor.name} has shape {shape}, and such a factor of a LoRA has {expected} for a convolution; give the "
            "tensors as PEFT saves them."
        )


def equal_as_stored(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors hold the same numbers, once both are rounded to the coarser of their dtypes.

    Example:
        >>> third = torch.tensor([1 / 3])
        >>> equal_as_stored(third, third.bfloat16()), equal_as_stored(third, third + 1e-6)
        (True, False)
    """
    if first.shape != second.shape:
        return False
    dtypes = {first.dtype, second.dtype}
    if all(dtype.is_floating_point for dtype in dtypes):
        dtypes = {max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)}
    return all(bool(torch.equal(first.to(dtype), second.to(device=first.device, dtype=dtype))) for dtype in dtypes)


def difference(
    tuned: nn.Module | Mapping[str, Tensor], base: nn.Module | Mapping[str, Tensor], *, dtype: torch.dtype | None = None
) -> Difference:
    """What fine-tuning added to ``base``: a mapping of names to updates, computed when they are asked for.

    Args:
        tuned: A network, its tensors by name, or an open `Checkpoint`.
        base: What it was fine-tuned from, in one of the same forms.
        dtype: The least precision to compute and keep updates in, float32 or float64; a tensor of float64 takes that.

    Raises:
        WiringError, ShapeError: If the two are not made of the same tensors; names one that is missing or of another
            shape.
        DataError: If something is no tensor or not of numbers. A tensor that is not finite in one of them is refused
            when its update is asked for.

    Example:
        >>> delta = difference({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, 0.5])})
        >>> delta["w"]
        tensor([0.0000, 1.5000])
    """
    if dtype is not None and dtype not in (torch.float32, torch.float64):
        raise DataError(
            f"A difference is computed in torch.float32 or torch.float64, found {dtype!r}; give one of them."
        )
    networks = [
        (label, tensors_of(network, label)) for label, network in (("the tuned network", tuned), ("the base", base))
    ]
    require_same_tensors(networks, "subtracted")
    return Difference(networks[0][1], networks[1][1], dtype)


def add(
    base: nn.Module | Mapping[str, Tensor],
    delta: Mapping[str, Tensor],
    alpha: float = 1.0,
    *,
    ties: Mapping[str, str] | None = None,
) -> Sum:
    """``base`` with ``alpha`` times the updates added: a mapping of names to tensors, computed when asked for.

    What is tied in the base stays tied: by the memory that its tensors share, or as its checkpoint records.
    `write_checkpoint` takes the result, and so does ``load_state_dict``.

    Args:
        base: A network, its tensors by name, or an open `Checkpoint`. It does not change.
        delta: Updates by name, as `difference` gives them or carried from elsewhere. Tensors without one stay.
        alpha: What updates are multiplied with; 0 gives the base.
        ties: Further ties of the base, name -> the name that it stands for, where its tensors are copies.

    Raises:
        UnknownNameError, ShapeError: If an update has no tensor in the base, or not its shape.
        WiringError: If two names of one tied tensor come with different updates, or ``ties`` names tensors that differ.
        DataError: If ``alpha`` is not finite, or an update is not of numbers. A sum that is not finite is refused when
            it is asked for.

    Example:
        >>> table = torch.tensor([1.0, 2.0])
        >>> base = {"embed": table, "head": table}  # tied
        >>> update = torch.tensor([0.5, 0.5])
        >>> total = add(base, {"embed": update, "head": update}, alpha=2.0)
        >>> total["head"], dict(total.ties)
        (tensor([2., 3.]), {'head': 'embed'})
    """
    alpha, tensors = require_finite("alpha", alpha), tensors_of(base, "the base")
    return Sum(tensors, tensors_of(delta, "the update"), alpha, _check_ties(tensors, ties or {}))


def _check_ties(base: LazyTensors, ties: Mapping[str, str]) -> dict[str, str]:
    """Ties that a caller adds, each to a name that is stored."""
    stored = {}
    for name, other in ties.items():
        first, second = base.stored_name(name), base.stored_name(other)
        if first == second:
            continue
        if base.entry(first) != base.entry(second) or not torch.equal(base[first], base[second]):
            raise WiringError(
                f"{name} is said to be tied to {other}, and they differ in {base.label}; leave that out of ties=."
            )
        stored[first] = second
    chained = [name for name, other in stored.items() if other in stored]
    if chained:
        raise WiringError(
            f"{chained[0]} is said to be tied to {stored[chained[0]]}, which is tied itself; tie all names to one."
        )
    return stored
