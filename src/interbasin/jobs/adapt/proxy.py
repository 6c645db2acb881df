"""What is seen of the proxy: the source's features and labels there, what its body takes, and its head as one layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from interbasin.batches import as_batches, count_inputs, cut_inputs, split_batch
from interbasin.errors import DataError, InterbasinError, ShapeError, WiringError
from interbasin.jobs.adapt.bank import TokenBank
from interbasin.jobs.adapt.samples import as_tensor, refuse_text, require_range, to_single
from interbasin.jobs.adapt.source import Source
from interbasin.jobs.adapt.source_head import fit_source_head

PROXY = "the proxy"  # as messages call it
PROXY_BATCH = 64
MOST_PROXY = 5000  # samples of the proxy that are looked at
FAILURES = (RuntimeError, IndexError, ValueError, TypeError)  # of a module that is given what it does not take
PASSED_ON = (InterbasinError, torch.OutOfMemoryError)  # errors that say enough
NO_LABELS = (
    "The proxy has no labels; give pairs (inputs, labels) of the source's own modality: its labels say what the "
    "features mean."
)


def look_at_proxy(source: Source, proxy: Any, bank: TokenBank) -> tuple[Source, Tensor, Tensor, Tensor, Tensor]:
    """The source with its layout, what its body takes, the means of that, and features and labels of the proxy."""
    body_inputs: Tensor | None = None
    means, features, labels, count = [], [], [], 0
    for inputs, classes in _proxy_batches(proxy):
        classes = _class_labels(classes, count)
        if isinstance(inputs, Tensor) and inputs.is_floating_point():
            inputs = to_single(inputs, "the inputs of the proxy", count)
        if body_inputs is None:
            source = source.with_layout(inputs)
        with torch.no_grad():
            rows = source.embed(inputs)
            means.append(source.mean_embedding(rows).float())
            features.append(_read_features(source, rows.clone()))  # a body may write to what it is given
        if len(classes) != len(rows):
            raise ShapeError(f"The proxy has {len(rows)} inputs and {len(classes)} labels; give one for each input.")
        bank.add(rows, classes)
        # Text comes in batches of several lengths; the longest tells how much the body can take.
        if body_inputs is None or rows.shape[1:].numel() > body_inputs.shape[1:].numel():
            body_inputs = rows[:2].clone()
        labels.append(classes)
        count += len(classes)
        if count >= MOST_PROXY:
            break
    if body_inputs is None:
        raise DataError("The proxy holds no samples at all; give data of the source's own modality, with labels.")
    known = torch.cat(labels).long().to(body_inputs.device)
    head = _linear_head(source)
    # A head of ten thousand classes may be shown a few of them.
    require_range(known, PROXY, known=head.out_features if isinstance(head, nn.Linear) else 0)
    whole = torch.cat(features)
    if not bool(torch.isfinite(whole).all()):
        raise DataError("The source's features of the proxy are NaN or infinite; check the proxy and the source.")
    return source, body_inputs, torch.cat(means), whole, known


def _read_features(source: Source, body_inputs: Tensor) -> Tensor:
    """Features of what the source's embedder puts out.

    Raises:
        WiringError: if the body does not take it, or gives something else than one row for each input.
    """
    shape = tuple(body_inputs.shape)
    try:
        features = source.pool_states(source.states(body_inputs)).float()
    except FAILURES as error:
        if isinstance(error, PASSED_ON):
            raise
        raise WiringError(
            f"The source's embedder puts out {shape}, and its body failed on that ({reason(error)}); give parts that "
            "follow one another: the body takes what the embedder puts out."
        ) from error
    if features.ndim != 2 or len(features) != shape[0]:
        raise WiringError(
            f"The source's embedder puts out {shape}, and the pooled output of its body is {tuple(features.shape)}; "
            "one row of features for each input is needed: give a body that keeps the first axis."
        )
    return features


def _proxy_batches(proxy: Any) -> Iterator[tuple[Any, Tensor]]:
    is_pair = isinstance(proxy, tuple | list) and len(proxy) == 2 and not isinstance(proxy[0], tuple | list)
    is_pair = is_pair and not isinstance(proxy[1], Mapping)  # else two batches that hold their labels
    if (is_pair and isinstance(proxy[0], Mapping | Tensor)) or (is_pair and hasattr(proxy[0], "__array__")):
        inputs = proxy[0] if isinstance(proxy[0], Mapping) else as_tensor(proxy[0], PROXY)
        if isinstance(inputs, Mapping):
            inputs = {name: as_tensor(part, PROXY) for name, part in inputs.items()}
        if proxy[1] is None:
            raise DataError(NO_LABELS)
        refuse_text(proxy[1], PROXY)
        labels = as_tensor(proxy[1], PROXY)
        require_rows(inputs, labels)
        count = count_inputs((), inputs) if isinstance(inputs, Mapping) else len(inputs)
        if count != len(labels):
            raise ShapeError(f"The proxy has {count} inputs and {len(labels)} labels; give one label for each input.")
        for first in range(0, len(labels), PROXY_BATCH):
            rows = slice(first, first + PROXY_BATCH)
            yield cut_inputs(inputs, rows, len(labels)), labels[rows]
        return
    if (
        hasattr(proxy, "__getitem__")
        and hasattr(proxy, "__len__")
        and not isinstance(proxy, Sequence | Mapping | Tensor)
    ):
        proxy = DataLoader(proxy, PROXY_BATCH)  # a Dataset
    for batch in as_batches(proxy, PROXY_BATCH):
        inputs, labels = split_batch(batch)
        if labels is None:
            raise DataError(NO_LABELS)
        refuse_text(labels, PROXY)
        yield inputs, as_tensor(labels, PROXY)


def require_rows(inputs: Any, labels: Tensor) -> None:
    """Refuse single numbers in the place of inputs or labels."""
    parts = [*(inputs.values() if isinstance(inputs, Mapping) else [inputs]), labels]
    if any(part.ndim == 0 for part in parts):
        raise ShapeError("The proxy is a single number; give one row of inputs and one label for each sample.")


def _class_labels(labels: Tensor, before: int) -> Tensor:
    """Labels of a batch of the proxy as whole numbers; so many samples came before."""
    if labels.ndim != 1:
        raise ShapeError(
            f"Labels of the proxy are classes, one for each sample, found shape {tuple(labels.shape)}; number the "
            "classes from 0 on."
        )
    whole = labels.long()
    wrong = (whole < 0) | ((whole != labels) if labels.is_floating_point() else (whole < 0))
    wrong = wrong.nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"Label {labels[row].item():g} in row {before + row} of the proxy is no class; number classes from 0 on."
        )
    return whole


def source_linear(source: Source, features: Tensor, labels: Tensor, scale: float) -> tuple[nn.Linear, tuple[str, ...]]:
    """The head of the source as one linear layer on scaled features, or a new one where it has none."""
    head = _linear_head(source)
    if isinstance(head, nn.Linear):
        if not all(bool(torch.isfinite(parameter).all()) for parameter in head.parameters()):
            raise DataError(
                "The source's head has weights that are NaN or infinite; check the source, or give head=None."
            )
        if head.in_features != features.shape[1]:
            raise ShapeError(
                f"The source's head reads {head.in_features} numbers, and the pooled output of its body has "
                f"{features.shape[1]}; give the head that belongs to this body, or head=None."
            )
        if int(labels.max()) >= head.out_features:
            return fit_source_head(features, labels), (
                f"The source's head has {head.out_features} labels and the proxy {int(labels.max()) + 1}, so a head "
                "was trained on the proxy instead.",
            )
        return fit_source_head(features, labels, head, scale=scale), ()
    if head is not None:
        note = "The source's head is more than one linear layer, so a head was trained on the proxy instead."
        return fit_source_head(features, labels), (note,)
    return fit_source_head(features, labels), ()


def _linear_head(source: Source) -> nn.Module | None:
    """The head of the source, without layers around it that do nothing."""
    if isinstance(source.head, nn.Sequential):  # of timm: a norm that is often nothing, and the layer
        layers = [layer for layer in source.head if not isinstance(layer, nn.Identity | nn.Dropout)]
        return layers[0] if len(layers) == 1 else source.head
    return source.head


def reason(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or ["no reason"])[0].rstrip(".")
