r"""A network with the same function whose residual stream commutes with every orthogonal map.

A pre-norm network reads its stream through norms. With a LayerNorm's gain :math:`g` and bias :math:`b`, what reads it
computes :math:`W (g \odot n(x) + b)`, which is :math:`(W\,\mathrm{diag}(g))\,n(x) + W b`: gain and bias move into the
reader. The mean that LayerNorm takes away can be taken out of everything that writes the stream; then the norm is
:math:`x / \sqrt{\overline{x^2} + \epsilon}`, which turns with :math:`x`. A scaling behind a branch (layer scale) moves
into what writes it. Nothing is approximated.

What may be folded is decided by wiring: the norms are taken out of the graph, what comes out of each is a space of its
own, and only if nothing but weights reads that space (its group is all invertible maps) can anything be absorbed there.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from interbasin.checkpoints.folded import FOLDING, Filler, FoldedFolder, describe_folder
from interbasin.checkpoints.write import (
    copy_companions,
    find_companions,
    is_our_folder,
    notes_on_companions,
    write_into,
)
from interbasin.errors import FileError, InterbasinError, WiringError
from interbasin.extras import is_transformers_model
from interbasin.models.base import without_numbers
from interbasin.models.example_inputs import example_inputs
from interbasin.models.folding import (
    Folding,
    UnitNorm,
    find_ties,
    folding_of,
    group_reasons,
    keep_folding,
    tie_again,
    untie,
    write_folding,
)
from interbasin.models.from_transformers import load_plainly
from interbasin.randomness import generator_of
from interbasin.storage import as_path, new_folder, write_document
from interbasin.wiring.check import difference
from interbasin.wiring.folding.absorb import absorb
from interbasin.wiring.folding.plan import Plan, recognise
from interbasin.wiring.trace.copying import copied, forget_what_was_derived
from interbasin.wiring.trace.preflight import check_model, refuse_numbers_that_are_none
from interbasin.wiring.trace.tracing import Inputs
from interbasin.wiring.wire import wire_around

Model = TypeVar("Model", bound=nn.Module)

# How far what transformers loads may be from the folded network, for the folder to be left to it.
SAME = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# How far the folded network may be from the given one, relative to the outputs, before folding is called a failure.
EQUAL = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


def fold_norms(model: Model, inputs: Inputs) -> Model:
    """A new network that computes the same, with norms that have no gain on a stream that has no mean.

    In it the residual stream moves by every orthogonal map. Tied heads become tensors of their own, norms become
    `UnitNorm`, and linear layers get a bias where a norm had one. Where something besides weights reads a norm of the
    stream (the network's output, say), its gain becomes a linear layer behind it. Norms that read no stream (of queries
    and keys, say) stay as they are: ``print(folding_of(folded))`` tells which, and why. `save_folded` writes the result
    so that `load_model` reads it.

    Args:
        model: In evaluation mode. It stays as it is.
        inputs: One batch, for tracing and to see that the function is the same.

    Raises:
        WiringError: if there is nothing that can be folded, with the reason for each norm: in a post-norm network the
            skip reads what the norm puts out, so its gain has no reader to go into.

    Example:
        >>> import torch
        >>> from torch import Tensor, nn
        >>> from interbasin.wiring import wire
        >>> layer = nn.TransformerEncoderLayer(16, 2, 32, norm_first=True, batch_first=True)
        >>> net = nn.Sequential(nn.Linear(4, 16), layer, nn.LayerNorm(16), nn.Linear(16, 3)).eval()
        >>> x = torch.randn(2, 5, 4)
        >>> folded = fold_norms(net, x)
        >>> print(wire(net, x).spaces["0"].group, "->", wire(folded, x).spaces["0"].group)
        permutation -> orthogonal
    """
    check_model(model)
    refuse_numbers_that_are_none(model)
    folded = copied(model)
    forget_what_was_derived(folded)
    ties = untie(folded)
    formulas = {name: recognise(module) for name, module in folded.named_modules()}
    elementary = {name: formula for name, formula in formulas.items() if formula is not None}
    if not any(norm.kind != "scale" for norm in elementary.values()):
        raise WiringError(
            f"{type(model).__name__} has no layer norm and no RMS norm with a gain; there is nothing to fold."
        )
    wiring = wire_around(folded, inputs, {name: norm.axis for name, norm in elementary.items()})
    plan = Plan(wiring, elementary)
    plan.require_something(type(model).__name__)
    _carry_out(folded, plan, ties)
    gap, most = _gap(model, folded, inputs, plan), _equal_enough(model)
    if plan.moves_biases and not gap <= most:
        # Something that a gain passes through and a bias does not, as a factor, stands between a norm and its readers.
        folded = copied(model)
        forget_what_was_derived(folded)
        ties = untie(folded)
        plan = Plan(wiring, elementary, biases=False)
        _carry_out(folded, plan, ties)
        gap = _gap(model, folded, inputs, plan)
    if not gap <= most:
        raise WiringError(
            f"Folding {type(model).__name__} changed its outputs by {gap:.1e}, which it must not; please report this "
            "network."
        )
    return folded


def _carry_out(folded: nn.Module, plan: Plan, ties: list[tuple[str, ...]]) -> None:
    with torch.no_grad():
        biases = absorb(folded, plan)
    parted = tie_again(folded, ties)
    done = Folding(plan.replacements(), biases, tuple(find_ties(folded)), group_reasons(plan.left()), tuple(parted))
    keep_folding(folded, done)


def _equal_enough(model: nn.Module) -> float:
    dtype = next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), torch.float32)
    return EQUAL.get(dtype, 1e-3)


def _gap(model: nn.Module, folded: nn.Module, inputs: Inputs, plan: Plan) -> float:
    """How far the folded network is from the given one; an error if a gain or a bias is read outside of its norm."""
    most = _equal_enough(model)
    units = {name: module for name, module in folded.named_modules() if isinstance(module, UnitNorm)}
    try:
        gap = difference(model, folded, inputs)
        # What stands for the gain is there for its dtype: whoever reads its numbers would now read others.
        for unit in units.values():
            unit.weight.fill_(torch.nan)
        if not difference(model, folded, inputs) <= max(gap, most):
            raise _read_elsewhere(model, _first_reader(model, folded, inputs, units, most))
    except WiringError as error:
        if isinstance(error.__cause__, AttributeError | TypeError):  # of a bias that is no longer there
            raise _read_elsewhere(model, " or ".join([*plan.norms, *plan.spelled, *plan.dense][:3])) from error
        raise
    finally:
        for unit in units.values():
            unit.weight.fill_(1.0)
    return gap


def _first_reader(
    model: nn.Module, folded: nn.Module, inputs: Inputs, units: Mapping[str, UnitNorm], most: float
) -> str:
    for name, unit in units.items():
        for other in units.values():
            other.weight.fill_(torch.nan if other is unit else 1.0)
        if not difference(folded, folded, inputs) <= most:
            return name
    return next(iter(units))


def _read_elsewhere(model: nn.Module, norm: str) -> WiringError:
    return WiringError(
        f"{type(model).__name__} reads the gain or the bias of {norm} outside of that norm, so that folding it would "
        "change what is read there; give that place a tensor of its own first (norm.weight.detach().clone())."
    )


# ---------------------------------------------------------------------- on disk


def save_folded(
    model: nn.Module, path: str | os.PathLike[str], *, like: str | os.PathLike[str] | None = None, force: bool = False
) -> tuple[str, ...]:
    """Write a network that `fold_norms` made (or one that was carried from it) to a new folder.

    `load_model` builds it again from there: the folder of a network of ``transformers`` by its own name, any other as
    the weights of its architecture, ``timm:NAME@folder`` or ``package.module:factory@folder``. Where the network's
    class in transformers has a place for all that is stored, ``from_pretrained`` of the folder computes the same, for
    ones stand where the gains of norms were; that is tried. Where it has none, transformers refuses the folder.

    Args:
        model: The folded network.
        path: The folder, whole or not at all.
        like: A folder whose tokenizer, licence and other configuration to copy along.
        force: Replace what this function wrote there. Anything else is never replaced.

    Returns:
        Sentences that a user of the folder should know: who loads it, and what was not copied along.

    Raises:
        WiringError: if the network is not a folded one, or one whose code comes with it.
        FileError: if ``path`` exists, or cannot be written.
    """
    folding = folding_of(model)
    if as_path(path).suffix == ".safetensors":
        raise FileError(f"A folded network is saved as a folder, found {path}; give a name without .safetensors.")
    library = sys.modules["transformers"] if is_transformers_model(model) else None
    _refuse_what_cannot_be_built(model, library)
    with tempfile.TemporaryDirectory() as companions:
        beside = Path(companions)
        notes: list[str] = []
        if like is not None:
            source = as_path(like)
            if not source.is_dir():
                raise FileError(f"like= names a folder to copy a tokenizer from, and {source} is none; leave it out.")
            copy_companions([name for name in find_companions(source) if name != FOLDING], source, beside)
            notes += notes_on_companions(source)
        if library is not None:
            _write_configuration(model, beside)
        with new_folder(path, force=force, ours=is_our_folder) as temporary:
            _fill(temporary, as_path(path), model, folding, library, beside)
            about = describe_folder(temporary, f"The network in {as_path(path).name}")
    return (*([about] if about else []), *notes)


def _fill(folder: Path, destination: Path, model: nn.Module, folding: Folding, library: Any, companions: Path) -> None:
    """Write a folded network so that transformers computes the same or refuses it."""
    version = None if library is None else library.__version__
    held = None if library is None else _fillers_of(model, folding)
    if held is not None and held.fillers is not None:
        tensors = dict(model.state_dict())
        kind = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
        for name, filler in held.fillers.items():
            tensors[name] = torch.full((filler.width,), filler.value, dtype=kind)
        write_folding(companions, folding, version, held)
        write_into(folder, tensors, like=companions, destination=destination)
        if _is_computed_alike(model, folder):
            return
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_folding(companions, folding, version, FoldedFolder())
    write_into(folder, model.state_dict(), like=companions, destination=destination)


def _fillers_of(model: Any, folding: Folding) -> FoldedFolder | None:
    """What the class of a network needs where norms and scalings were folded; None if it has no place for the rest."""
    if folding.biases or any(replacement.kind not in ("unit", "nothing") for replacement in folding.replaced.values()):
        return None
    try:
        with without_numbers():
            plain = type(model)(copy.deepcopy(model.config))
    except Exception:  # each of a thousand architectures may object in its own way
        return None
    fillers: dict[str, Filler] = {}
    centred = False
    for name in folding.replaced:
        norm = plain.get_submodule(name).to_empty(device="cpu")
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=generator) + 1)
        formula = recognise(norm)
        if formula is None:
            return None
        centred = centred or formula.kind == "layer"
        for local, parameter in norm.named_parameters():
            is_bias = formula.bias is not None and torch.equal(parameter.detach().double(), formula.bias)
            adds_one = not torch.equal(parameter.detach().double(), formula.gain)
            fillers[f"{name}.{local}"] = Filler(0 if is_bias or adds_one else 1, parameter.numel())
    return FoldedFolder(fillers, centred)


def _is_computed_alike(model: nn.Module, folder: Path) -> bool:
    """Whether transformers makes of a folder what ``model`` computes."""
    loaded = load_plainly(type(model), folder)
    inputs = example_inputs(model, generator_of(0))
    if loaded is None or inputs is None:
        return False
    parameter = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    batch = {name: one.to(parameter.device) if isinstance(one, Tensor) else one for name, one in inputs.items()}
    try:
        return difference(model, loaded.to(parameter.device), batch) <= SAME.get(parameter.dtype, 1e-5)
    except InterbasinError:  # an example that the network does not take says nothing
        return False


def _refuse_what_cannot_be_built(model: nn.Module, library: Any) -> None:
    if hasattr(model, "peft_config"):
        raise WiringError(
            f"{type(model).__name__} has an adapter on it, which a folded network is not saved with; merge it first "
            "(merge_and_unload()), and fold that."
        )
    if library is not None and not hasattr(library, type(model).__name__):
        raise WiringError(
            f"{type(model).__name__} is not a class of transformers {library.__version__}, so that nothing could build "
            "it again from a folder; save its weights with a factory: package.module:factory@folder."
        )


def _write_configuration(model: Any, folder: Path) -> None:
    settings: Mapping[str, Any] = model.config.to_dict()
    write_document(folder / "config.json", {**settings, "architectures": [type(model).__name__]})
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        write_document(folder / "generation_config.json", generation.to_dict())
