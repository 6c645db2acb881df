"""Networks with a PEFT adapter: the base, and the adapter put on."""

from __future__ import annotations

import warnings
from pathlib import Path

from interbasin.checkpoints import Checkpoint, open_checkpoint
from interbasin.checkpoints.lora import DEFAULT, name_in_file, read_adapter
from interbasin.errors import CheckpointError
from interbasin.extras import import_extra
from interbasin.models.base import LoadedModel, refuse_mismatch
from interbasin.text import one_line


def base_of(folder: Path, asked: str | None = None) -> str:
    """The MODEL that an adapter belongs to: what was asked for, else the one it names.

    A folder may be named as seen from the current folder, or from the adapter's.

    Raises:
        CheckpointError: If it names none, or itself.
    """
    name = read_adapter(folder).base if asked is None else asked
    if not name or not isinstance(name, str):
        raise CheckpointError(
            f"{folder} holds an adapter that does not say of which network; name that with base= (--base MODEL)."
        )
    beside = folder / name
    if not Path(name).is_dir() and beside.is_dir():
        name = str(beside)
    if Path(name).is_dir() and Path(name).samefile(folder):
        raise CheckpointError(
            f"{folder} holds an adapter that names itself as its base; name that with base= (--base MODEL)."
        )
    return name


def load_adapter(text: str, folder: Path, base: LoadedModel) -> LoadedModel:
    """``base`` with the adapter in ``folder`` put on; it is changed.

    Raises:
        MissingExtraError: If PEFT is not installed.
        CheckpointError: If the adapter is damaged or does not fit.
    """
    checkpoint = open_checkpoint(folder)
    peft = import_extra("peft", f"Loading the adapter in {folder}", "hf")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names that do not fit, of which we tell below
            model = peft.PeftModel.from_pretrained(base.model, folder, adapter_name=DEFAULT, is_trainable=False)
    # PEFT and each of its methods may object in their own ways.
    except Exception as error:
        raise CheckpointError(
            f"PEFT could not put the adapter in {folder} on {base.text} ({type(error).__name__}: {one_line(error)}); "
            "is that the network it was trained on?"
        ) from error
    if checkpoint.adapter is not None and checkpoint.adapter.is_lora:
        _refuse_strangers(checkpoint, base.text, list(model.state_dict()))
    return LoadedModel(model.eval(), base.inputs, checkpoint, text, base.family)


def _refuse_strangers(checkpoint: Checkpoint, base: str, names: list[str]) -> None:
    """PEFT loads what fits and only warns of the rest."""
    own = {name_in_file(name): name for name in names}
    stored = {name_in_file(name): name for name in checkpoint.names}
    missing = [name for plain, name in own.items() if f".{DEFAULT}" in name and plain not in stored]
    unexpected = [name for plain, name in stored.items() if plain not in own]
    refuse_mismatch(checkpoint, f"the adapter of {base}", missing, unexpected)
