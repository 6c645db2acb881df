"""An adapted model on the disk: what is needed to build its network again, and how that is done.

Weights lie in ``model.safetensors``, all of them: those of the body too. ``adaptation.json`` says what they belong to.
The source gives the architecture of the body and how its states are pooled, and none of its weights.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from interbasin.batches import device_of
from interbasin.checkpoints import Checkpoint, open_checkpoint
from interbasin.checks import require_finite
from interbasin.errors import CheckpointError, DataError, FileError, InterbasinError
from interbasin.evaluate.prediction import error_metric
from interbasin.jobs.adapt.embedders import make_embedder
from interbasin.jobs.adapt.feature_map import FeatureMap
from interbasin.jobs.adapt.label_transport import LabelTransport
from interbasin.jobs.adapt.methods import TransportNetwork
from interbasin.jobs.adapt.network import TargetNetwork
from interbasin.jobs.adapt.samples import in_single_precision
from interbasin.jobs.adapt.simple_models import Nearest, RawLinear
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.source_head import SourceHead
from interbasin.jobs.adapt.task import TargetTask
from interbasin.models.base import load_weights
from interbasin.outcome import Outcome
from interbasin.outcome.outcome import DOCUMENT
from interbasin.storage import FORMAT_PREFIX, as_path, read_document
from interbasin.text import one_line

if TYPE_CHECKING:
    from interbasin.jobs.adapt.setup import Setup

FILE, FORMAT, VERSION = "adaptation.json", "adaptation", 1
KINDS: dict[type[nn.Module], str] = {
    RawLinear: "raw-linear",
    Nearest: "nearest",
    TargetNetwork: "network",
    TransportNetwork: "transport",
}


def describe_model(model: nn.Module, setup: Setup, classes: Sequence[str] | None = None) -> dict[str, Any]:
    """What `load_adapted` needs to know of a model beside its weights, fit for JSON."""
    is_network = isinstance(model, TargetNetwork | TransportNetwork)
    return {
        "format": FORMAT_PREFIX + FORMAT,
        "version": VERSION,
        "kind": KINDS.get(type(model), type(model).__name__),
        "task": setup.task.kind,
        "outputs": list(setup.task.shape),
        "inputs": list(setup.samples.inputs.shape[1:]),
        "body_inputs": list(setup.body_inputs.shape[1:]) if is_network else None,
        "layout": setup.source.layout if is_network else None,
        "scale": setup.scale if is_network else None,
        "own_embedder": is_network and setup.embedder is not None,
        "classes": None if classes is None else list(classes),
    }


@torch.random.fork_rng(devices=[])  # torch's layers begin with numbers of the global generator, which is left alone
@in_single_precision()
def load_adapted(
    folder: str | os.PathLike[str], source: Source | nn.Module | None = None, *, embedder: nn.Module | None = None
) -> nn.Module:
    """The model that an adaptation saved: inputs of the target -> logits or values, the same to the last bit.

    Its attribute ``classes`` holds the names of the classes, one for each output, or None where they have none.

    Args:
        folder: Where `Adaptation.save`, or ``interbasin adapt``, wrote it.
        source: What was adapted, for its architecture; its weights play no part. ``raw-linear`` and ``nearest`` do
            without.
        embedder: A module like the one that `adapt` was given as ``embedder=``, if it was.

    Raises:
        FileError: if the folder holds no adaptation, or a damaged one.
        CheckpointError: if the source has another architecture.
        DataError: if the source or the embedder is missing.
    """
    place = as_path(folder, "An adaptation")
    document = read_document(place / FILE, FORMAT, VERSION)
    if (place / DOCUMENT).exists():  # else only what a model needs was copied
        Outcome.load(place).verify()
    checkpoint = open_checkpoint(place)
    try:
        model = _build(document, checkpoint, source, embedder)
        names = document.get("classes")
        name_classes(model, None if names is None else tuple(map(str, names)))
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        message = f"{place / FILE} lacks what a model is built from ({error}); save the adaptation anew."
        raise FileError(message) from error
    except (RuntimeError, IndexError) as error:
        raise CheckpointError(
            f"The model in {place} cannot be built around this source ({one_line(error)}); give the source that was "
            "adapted, or one of the same architecture."
        ) from error
    load_weights(model, checkpoint, "the model that was built around the source")
    return model.eval().requires_grad_(False)


def name_classes(model: nn.Module, classes: tuple[str, ...] | None) -> None:
    """Give a model the names of its outputs, as the attribute ``classes``."""
    model.classes = classes  # type: ignore[assignment]


def _build(
    document: Mapping[str, Any], checkpoint: Checkpoint, source: Source | nn.Module | None, embedder: nn.Module | None
) -> nn.Module:
    """A model with tensors of the right shapes."""
    kind, outputs = document["kind"], tuple(document["outputs"])
    if kind == "raw-linear":
        return RawLinear.of_shapes({name: checkpoint.shape(name) for name in checkpoint}, outputs)
    if kind == "nearest":
        return Nearest.of_shapes({name: checkpoint.shape(name) for name in checkpoint})
    if kind not in KINDS.values():
        raise DataError(f"A model of class {kind} was saved, and only its weights can be read back; load them by hand.")
    feature_map = _build_map(document, source, embedder)
    if kind == "transport":
        sources, labels = checkpoint.shape("transport.table")
        width = checkpoint.shape("transport.bend.0.weight")[0] if "transport.bend.0.weight" in checkpoint else 0
        linear = nn.Linear(checkpoint.shape("transport.head.weight")[1], sources)
        head = SourceHead(linear, math.nan, math.nan, math.nan, math.nan, math.nan, torch.zeros(0, dtype=torch.int64))
        return TransportNetwork(feature_map, LabelTransport(head, labels, width))
    shift, scale = (torch.zeros(checkpoint.shape(name)) for name in ("shift", "scale"))
    task = TargetTask(document["task"], outputs, error_metric(document["task"], None), shift, scale)
    device = device_of(feature_map.body) or torch.device("cpu")
    return TargetNetwork(feature_map.eval(), task, torch.zeros(1, *document["inputs"], device=device))


def _build_map(
    document: Mapping[str, Any], source: Source | nn.Module | None, embedder: nn.Module | None
) -> FeatureMap:
    if source is None:
        raise DataError("The model has the body of its source; give what was adapted as source=, for its architecture.")
    if document["own_embedder"] and embedder is None:
        raise DataError("The model has an embedder of its user's own; give one like it as embedder=.")
    parts = (source if isinstance(source, Source) else Source.of(source)).copy()
    embedder = copy.deepcopy(embedder)  # it is filled with what was learned, and the given one stays as it is
    for part in (parts.embedder, parts.body, parts.head, embedder):
        if part is not None:
            part.float()  # as it was adapted
    parts = replace(parts, layout=document["layout"])
    device = device_of(parts.body) or torch.device("cpu")
    if not document["own_embedder"]:
        body_inputs = torch.zeros(1, *document["body_inputs"], device=device)
        try:
            embedder = make_embedder(parts, body_inputs, tuple(document["inputs"])).to(device)
        except InterbasinError as error:
            raise FileError(f"No embedder can be built as {FILE} says: {error}") from error
    assert embedder is not None
    return FeatureMap(parts, embedder, require_finite("The scale of features", document["scale"], above=0))
