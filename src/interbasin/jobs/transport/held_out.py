"""Which inputs are fitted on and which are held out, and whether the data are such that this means something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from interbasin.activations.recording import digest_of
from interbasin.batches import WithoutLabels, as_batches, cut_inputs, inputs_in, split_batch
from interbasin.errors import DataError
from interbasin.jobs.transport.networks import require_inputs
from interbasin.text import plural
from interbasin.wiring.trace.calls import output_tensors

HELD_OUT = 0.25  # of the inputs, where something has to be chosen or judged
COMPARED_ON = "networks would not be compared on the same inputs"


class Steady:
    """Data that must be numbers, and the same whenever they are read.

    Labels inside mapping batches, under ``"labels"``, are left out: with them a network would put out a loss as well.

    Args:
        data: Batches, or a tensor.
        what: Their name in messages.
        fault: What would come of data that change.
        labelled: Whether batches stay as they are, with all labels.

    Raises:
        DataError: when they are read, if they are not.
    """

    def __init__(
        self,
        data: Any,
        what: str,
        fault: str = "what is held out would be fitted on",
        *,
        labelled: bool = False,
        batch_size: int = 32,
    ) -> None:
        self._data, self._what, self._fault, self._size = data, what, fault, batch_size
        self._labelled = labelled
        self._known: list[str] = []
        self._count: int | None = None  # of batches, once they were read to the end

    def __iter__(self) -> Iterator[Any]:
        count = 0
        for number, batch in enumerate(as_batches(self._data, self._size)):
            require_inputs(batch, self._what)
            digest = digest_of(batch)
            if number < len(self._known) and self._known[number] != digest:
                raise DataError(
                    f"Batch {number} of the {self._what} was another one when they were read before, so that "
                    f"{self._fault}; give a list, or a loader that does not shuffle."
                )
            if number >= len(self._known):
                self._require_numbers(batch, number)
                self._known.append(digest)
            yield batch if self._labelled else _without_labels(batch)
            count = number + 1
        if count < len(self._known) or self._count not in (None, count):
            raise DataError(
                f"The {self._what} had {plural(self._count or len(self._known), 'batch', 'batches')} when they were "
                f"read before, and {count} now, so that {self._fault}; give a list, or a loader that gives the same "
                "batches each time."
            )
        self._count = count

    def _require_numbers(self, batch: Any, number: int) -> None:
        inputs = split_batch(batch)[0]
        named = inputs.items() if isinstance(inputs, Mapping) else [("", inputs)]
        for name, part in named:
            for tensor in output_tensors(part):
                # In a mask, minus infinity is what leaves a token out.
                bad = tensor.isnan() if "mask" in str(name) else ~tensor.isfinite()
                if bool(bad.any()):
                    where = f"{name} in batch" if name else "batch"
                    raise DataError(
                        f"The {self._what} hold NaN or infinity ({where} {number}, {int(bad.sum())} of "
                        f"{plural(tensor.numel(), 'number')}); leave these inputs out, or repair them."
                    )


def count_repeats(data: Any) -> tuple[int, int, int]:
    """How many inputs are held out, how many of them are among the others as well, and how many different ones.

    Raises:
        DataError: if all inputs are the same one.
    """
    fitted, held = (
        [
            digest_of(cut_inputs(inputs, slice(row, row + 1), count))
            for inputs in WithoutLabels(Part(data, held=is_held))
            for count in (inputs_in(inputs),)
            for row in range(count)
        ]
        for is_held in (False, True)
    )
    total, others = len(fitted) + len(held), set(fitted)
    if total > 1 and len(others | set(held)) == 1:
        raise DataError(
            f"A transport is fitted on some inputs and judged by others, and the {total} inputs of the data are all "
            "the same one; give different inputs of the task, some hundreds."
        )
    return len(held), sum(digest in others for digest in held), len(set(held))


def _without_labels(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name != "labels"}
    if isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[0], Mapping):
        return _without_labels(batch[0]), batch[1]
    return batch


class Part:
    """Some of the inputs of every batch, as often as the data can be read: the first ones, or the last ones.

    Data whose batches hold one input each are divided by batches.
    """

    def __init__(self, data: Any, *, held: bool, share: float = HELD_OUT, batch_size: int = 32) -> None:
        self._data, self._held, self._share, self._size = data, held, share, batch_size

    def __iter__(self) -> Iterator[Any]:
        every = round(1 / self._share)
        for number, batch in enumerate(as_batches(self._data, self._size)):
            inputs, labels = split_batch(batch)
            count = inputs_in(inputs)
            if count < every:
                if (number % every == every - 1) == self._held:
                    yield batch
                continue
            first = count - round(count * self._share)
            chosen = slice(first, count) if self._held else slice(0, first)
            cut = cut_inputs(inputs, chosen, count)
            yield cut if labels is None else (cut, cut_inputs(labels, chosen, count))
