"""What was recorded, and how its sums are kept in files: finished, or as the state that a killed run goes on from.

A state holds the sums, exactly, how many batches are in them, a hash over those batches, and what was asked for. A run
that goes on reads the same batches again without calling the networks, and refuses to if they are others.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from interbasin.activations.distributed import rank, world_size
from interbasin.activations.plan import Item, Plan, layer_name
from interbasin.checks import require_whole
from interbasin.errors import DataError, FileError, UnknownNameError
from interbasin.statistics import LayerwiseMoments, PairedMoments
from interbasin.statistics.accumulation import Accumulator, describe_accumulator, restore_accumulator
from interbasin.statistics.moments import SOURCE, TARGET
from interbasin.storage import as_path, new_folder, read_record, refuse_what_is_in_the_way, write_record
from interbasin.text import plural
from interbasin.wiring.trace.preflight import named_tensors

FORMAT, VERSION, NAME = "recording", 1, "recording"
HOLDS = (NAME,)
SHOWN = 6  # pairs that are named where another was asked for
ATTEMPTS = 5
PIECE = 2**22  # entries of a tensor that are hashed at a time
HASHES = 2  # how batches and networks are hashed; of a state with other hashes nothing can be compared
PASSING = ("transformers_version", "dtype", "torch_dtype")  # in a configuration
ADDRESS = re.compile(r" at 0x[0-9a-f]+")

Pair = tuple[str, str]
Moments = PairedMoments | LayerwiseMoments
Value = TypeVar("Value")


class _ByPair(dict[Pair, Value]):
    """What was recorded, by the names of source and target; another pair is an error that names the nearest."""

    def __missing__(self, pair: object) -> Value:
        if isinstance(pair, str) and (pair, pair) in self:
            raise UnknownNameError(
                f"Recorded are pairs (source, target), found the one name {pair!r}; ask for ({pair!r}, {pair!r})."
            )
        near = difflib.get_close_matches(repr(pair), map(repr, self), SHOWN, cutoff=0.0)
        raise UnknownNameError.of("recorded pair (source, target)", pair, near)


@dataclass(frozen=True)
class Recording:
    """The statistics of a recording.

    Attributes:
        moments: ``(source, target)`` -> the paired moments of two spaces. For one network, of a space with itself, or
            of two of its spaces.
        places: ``(source, target)`` -> where the two were taken.
        batches: How many batches went in, over all processes.
        layerwise: The moments of all pairs of layers at once, if those were asked for.
    """

    moments: Mapping[Pair, PairedMoments]
    places: Mapping[Pair, Pair]
    batches: int
    layerwise: LayerwiseMoments | None = field(default=None)

    @classmethod
    def of(cls, plan: Plan, sums: Sequence[Moments], batches: int, grams: bool) -> Recording:
        """The finished sums under the names they were asked for, with what is derived from them."""
        places = _ByPair({names: (x.place, y.place) for names, (x, y) in plan.requested.items()})
        if plan.layers is not None:
            layers = _derive_layers(plan, sums[0])
            return cls(_ByPair({names: layers.pair(*names) for names in plan.requested}), places, batches, layers)
        recorded = dict(zip(plan.pairs, sums, strict=True))
        moments: dict[tuple[Item, Item], Any] = {}
        for x, y in dict.fromkeys(plan.requested.values()):
            moments[x, y] = recorded[x.key, y.key]
            state = moments[x, y]._state
            if state.grams != grams or x.weight is not None or y.weight is not None:
                sources, targets = {SOURCE: (SOURCE, x.weight, x.bias)}, {TARGET: (TARGET, y.weight, y.bias)}
                moments[x, y] = PairedMoments._of_state(state.through(sources, targets, grams))
        return cls(_ByPair({names: moments[items] for names, items in plan.requested.items()}), places, batches)

    @property
    def count(self) -> int:
        """The number of rows, of the pair that had most."""
        return max(moments.count for moments in self.moments.values())

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write it, exactly, to a folder from which `load` reads it."""
        distinct: dict[int, PairedMoments] = {id(moments): moments for moments in self.moments.values()}
        positions = {key: position for position, key in enumerate(distinct)}
        names = {names: positions[id(moments)] for names, moments in self.moments.items()}
        states = [moments._state for moments in distinct.values()]
        if self.layerwise is not None:
            states, names = [self.layerwise._state], dict.fromkeys(self.moments, 0)
        notes = {
            "pairs": [[*pair, position, *self.places[pair]] for pair, position in names.items()],
            "batches": self.batches,
            "layerwise": self.layerwise is not None,
        }
        save_sums(folder, states, notes, force=force)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Recording:
        """The recording that was saved to ``folder``."""
        states, notes = load_sums(folder)
        try:
            pairs = {(row[0], row[1]): int(row[2]) for row in notes["pairs"]}
            places = {(row[0], row[1]): (row[3], row[4]) for row in notes["pairs"]}
            layerwise = LayerwiseMoments._of_state(states[0]) if notes["layerwise"] else None
            if layerwise is None and not all(map(_is_of_a_pair, states)):
                raise ValueError("its sums are not of pairs")
            saved = [PairedMoments._of_state(state) for state in states]
            if not pairs:
                raise ValueError("it names no pair")
            moments = {names: layerwise.pair(*names) if layerwise else saved[at] for names, at in pairs.items()}
            return cls(_ByPair(moments), _ByPair(places), int(notes["batches"]), layerwise)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise FileError(
                f"The recording in {folder} is damaged, or a state of one that was not finished ({error}); record anew."
            ) from error

    def __repr__(self) -> str:
        kind = "all pairs of layers" if self.layerwise is not None else plural(len(self.moments), "pair")
        return f"Recording({kind}, {plural(self.batches, 'batch', 'batches')})"


def _derive_layers(plan: Plan, recorded: Moments) -> LayerwiseMoments:
    """The moments of all layers that were asked for."""
    sources, targets = (
        {
            names[side]: (layer_name(names[side], items[side]), items[side].weight, items[side].bias)
            for names, items in plan.requested.items()
        }
        for side in (0, 1)
    )
    derived = any(weight is not None for _, weight, _ in (*sources.values(), *targets.values()))
    state = recorded._state
    return LayerwiseMoments._of_state(state.through(sources, targets, grams=True) if derived else state)


def _is_of_a_pair(state: Accumulator) -> bool:
    return (*state.sources, *state.targets) == (SOURCE, TARGET)


# ---------------------------------------------------------------------- files


def save_sums(
    folder: str | os.PathLike[str], states: Sequence[Accumulator], notes: Mapping[str, Any], *, force: bool
) -> None:
    """Write several sums as one record, whole or not at all."""
    documents, tensors = [], {}
    for position, state in enumerate(states):
        document, named = describe_accumulator(state)
        documents.append(document)
        tensors.update({f"{position}.{name}": tensor for name, tensor in named.items()})
    with new_folder(folder, HOLDS, force=force) as temporary:
        write_record(temporary, NAME, FORMAT, VERSION, {"sums": documents, "notes": dict(notes)}, tensors)


def load_sums(folder: str | os.PathLike[str]) -> tuple[list[Accumulator], dict[str, Any]]:
    """The sums that were saved, exactly, and the notes beside them."""
    document, tensors = read_record(folder, NAME, FORMAT, VERSION)
    try:
        states = []
        for position, sums in enumerate(document["sums"]):
            prefix = f"{position}."
            own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            states.append(restore_accumulator(sums, own))
        return states, dict(document["notes"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(
            f"The recording in {folder} is damaged ({error}); copy the folder again or record anew."
        ) from error


# ---------------------------------------------------------------------- states


class State:
    """A folder that is written every so many batches; each process has its own inside it.

    Attributes:
        start: How many batches are in the sums that were loaded, and need not be recorded again.
        digest: A hash over the batches that were seen so far.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        networks: Sequence[nn.Module],
        plan: Plan,
        options: Mapping[str, Any],
        every: int,
    ) -> None:
        self.folder = as_path(folder)
        if world_size() > 1:
            self.folder = self.folder / f"process-{rank()}-of-{world_size()}"
        self.request = {
            "spaces": plan.describe(),
            "networks": [fingerprint(model) for model in networks],
            "processes": world_size(),
            "hashes": HASHES,
            **options,
        }
        self.layerwise = plan.layers is not None
        self.every = require_whole("every", every, least=1)
        self.start = self._written = 0
        self.digest = self._digest_at_start = ""
        self._sums: Sequence[Moments] = ()

    def load(self, sums: Sequence[Moments]) -> None:
        """Put what there is to go on from into ``sums``, which are saved from now on."""
        self._sums = sums
        saved = _try_again(self._load)
        if saved is None:
            return
        states, self.start, self._digest_at_start = saved
        self._written = self.start
        filled = [state for state in states if state.count]
        if len(states) != len(sums) or not (self.layerwise or all(map(_is_of_a_pair, filled))):
            raise FileError(
                f"The state in {self.folder} is damaged: its {len(states)} sums are not of {len(sums)} pairs."
            )
        for moments, state in zip(sums, states, strict=True):
            moments._state = state

    def _load(self) -> tuple[list[Accumulator], int, str] | None:
        if not (self.folder / f"{NAME}.json").exists():
            if self.folder.is_dir() and any(self.folder.iterdir()):
                raise FileError(f"The state was to be kept in {self.folder}, which holds other things; choose another.")
            refuse_what_is_in_the_way(self.folder, HOLDS, force=True)
            return None
        states, notes = load_sums(self.folder)
        request = notes.get("request")
        if isinstance(request, dict) and request.get("hashes") != HASHES:  # of an older version: recorded again
            return None
        if request != self.request:
            parts = request if isinstance(request, dict) else {}
            differing = [name for name, value in self.request.items() if parts.get(name) != value]
            raise DataError(
                f"The state in {self.folder} belongs to another recording: it differs in {', '.join(differing)}; "
                "choose another folder, or remove it to start anew."
            )
        refuse_what_is_in_the_way(self.folder, HOLDS, force=True)
        try:
            return states, int(notes["batches"]), str(notes["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"The state in {self.folder} is damaged ({error}); remove it to start anew.") from error

    def see(self, batch: Any) -> None:
        """Add a batch to the hash."""
        self.digest = digest_of(batch, self.digest)

    def save(self, done: int, *, is_last: bool = False) -> None:
        """Write the state in place of the last one, if it is time; refuse data that do not begin as they did."""
        if done == self.start or (is_last and done < self.start):
            self._require_same_data()
        if done - self._written >= (1 if is_last else self.every):
            notes = {"request": self.request, "batches": done, "digest": self.digest}
            states = [moments._state for moments in self._sums]
            _try_again(lambda: save_sums(self.folder, states, notes, force=True))
            self._written = done

    def _require_same_data(self) -> None:
        if self.digest != self._digest_at_start:
            raise DataError(
                f"The state in {self.folder} holds {plural(self.start, 'batch', 'batches')}, but the data do not begin "
                "with that; give the same batches in the same order (a loader that does not shuffle)."
            )


def _try_again(act: Callable[[], Value]) -> Value:
    """The result of ``act``, which is tried again if another run put its state in place at the same moment.

    Two runs of the same recording may share a folder: each state is whole, and any of them can be gone on from.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return act()
        except FileError:
            time.sleep(0.02 * 2**attempt)
    return act()


def fingerprint(model: nn.Module) -> dict[str, str]:
    """What tells a network from another: the classes and settings of its modules, and a hash of its tensors."""
    modules = [f"{name} {type(module).__qualname__} {_settings(module)}" for name, module in model.named_modules()]
    configs = {id(config): config for config in (getattr(module, "config", None) for module in model.modules())}
    modules += [json.dumps(_lasting(_values(config)), sort_keys=True, default=str) for config in configs.values()]
    text = ADDRESS.sub("", "; ".join(modules))
    return {
        "class": type(model).__name__,
        "modules": hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest(),
        "tensors": digest_of(named_tensors(model)),
    }


def _settings(module: nn.Module) -> str:
    """What a module shows of itself, and what it keeps of the arguments that it was made with: a slope, heads."""
    try:
        shown = module.extra_repr()
    except Exception:  # it is only to be looked at, and may be someone else's
        shown = ""
    try:
        names = inspect.signature(type(module)).parameters
    except (TypeError, ValueError):
        return shown
    own = vars(module)
    kept = {name: own[name] for name in names if isinstance(own.get(name), str | bool | int | float)}
    return f"{shown} {kept}"


def _values(config: Any) -> Any:
    """The values of a configuration, as it tells them itself."""
    try:
        if callable(getattr(config, "to_dict", None)):
            return config.to_dict()
        return json.loads(config.to_json_string()) if callable(getattr(config, "to_json_string", None)) else None
    except Exception:  # as above
        return None


def _lasting(value: Any) -> Any:
    """A configuration without what tells where it came from, or what the tensors tell."""
    if isinstance(value, Mapping):
        return {
            str(name): _lasting(part)
            for name, part in value.items()
            if name not in PASSING and not str(name).startswith("_")
        }
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return [_lasting(part) for part in value] if isinstance(value, list | tuple) else value


def digest_of(value: Any, before: str = "") -> str:
    """A hash of a batch, or of weights: of each tensor the kind, the shape and all its bytes, in their order."""
    digest = hashlib.sha256(before.encode())
    for name, part in _plain_parts(value, ""):
        if not isinstance(part, Tensor):
            digest.update(f"{name} {part!r};".encode(errors="backslashreplace"))
            continue
        digest.update(f"{name} {part.dtype} {tuple(part.shape)};".encode())
        if part.layout == torch.strided and not part.is_quantized and part.device.type != "meta":
            for piece in _pieces(part.detach().resolve_conj().resolve_neg()):
                digest.update(piece.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The entries of a tensor in their order, in vectors that are not long: no copy of it all is made."""
    if tensor.is_contiguous() or tensor.numel() <= PIECE:
        yield from torch.split(tensor.reshape(-1), PIECE) if tensor.numel() else ()
        return
    for part in torch.split(tensor, max(1, PIECE // tensor[0].numel())):
        yield from _pieces(part[0] if len(part) == 1 else part.contiguous())


def _plain_parts(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a batch and the plain values beside them, by name; nothing of other objects is compared."""
    if isinstance(value, Tensor) or value is None or isinstance(value, str | bool | int | float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _plain_parts(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            yield from _plain_parts(part, f"{name}.{position}")
