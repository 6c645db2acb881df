"""The same work on Ray Data: tasks all over a cluster read and translate batches; this process writes them in order.

So order, state and resuming are the same as without Ray. Every machine must reach the store under the same name.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import warnings
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from interbasin.errors import FileError, InterbasinError
from interbasin.extras import import_extra
from interbasin.jobs.translate.apply import Treatment
from interbasin.vectors.files.base import Piece
from interbasin.vectors.stores.opening import Rows, open_rows
from interbasin.vectors.stores.uri import StoreURI

MOST_BLOCKS = 4096
PROGRESS = "ray.data._internal.progress"  # the logger by which Ray speaks of its progress bars


def is_worth_showing(record: logging.LogRecord) -> bool:
    """Whether a message of Ray's says more than that it shows no progress bars, as it was told."""
    return not record.getMessage().startswith("Progress bars disabled")


def require_ray(source: StoreURI) -> None:
    """Refuse a source whose rows cannot be reached by their number, and Ray that is not installed."""
    if source.kind in ("faiss", "postgresql"):
        raise FileError(f"Ray reads files and Lance tables, and not {source.shown}; leave engine='ray' out.")
    import_extra("ray.data", "The engine 'ray'", "ray")


def translate_on_ray(
    source: StoreURI, rows: Rows, treatment: Treatment, size: int, start: int
) -> Generator[Piece, None, None]:
    """Translated pieces in order, from row ``start`` on."""
    import ray

    firsts = [{"first": first} for first in range(start, rows.rows, size)]
    if not firsts:
        return
    began = not ray.is_initialized()
    if began:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Workers start in another folder, where relative paths lead elsewhere.
        path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path if os.path.isdir(folder or "."))
        with warnings.catch_warnings():
            # The children that Ray starts are other programs, to which nothing of lancedb comes.
            warnings.filterwarnings("ignore", "lancedb fork support is experimental")
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": {"PYTHONPATH": path}},
            )
    context = ray.data.DataContext.get_current()
    before = context.execution_options.preserve_order, context.enable_progress_bars
    context.execution_options.preserve_order, context.enable_progress_bars = True, False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger(PROGRESS).addFilter(is_worth_showing)  # once, however often it is added
    try:
        task = Task(replace(source, path=source.path.absolute()), ray.put(treatment), size)
        items = ray.data.from_items(firsts, override_num_blocks=min(len(firsts), MOST_BLOCKS))
        for row in items.map_batches(task, batch_size=1, batch_format="numpy").iter_rows():
            piece, counts, error = pickle.loads(row["content"])
            if error is not None:
                raise error
            for kind, count in counts.items():
                treatment.counts[kind] += count
            yield piece
    finally:
        context.execution_options.preserve_order, context.enable_progress_bars = before
        if began:
            ray.shutdown()


@dataclass(frozen=True)
class Task:
    """What a worker does: one batch, read and translated."""

    source: StoreURI
    treatment: Any  # a reference, so that the translator is sent to each machine once
    size: int

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        import ray

        treatment: Treatment = ray.get(self.treatment)
        return {"content": [self._translate(treatment, int(first)) for first in batch["first"]]}

    def _translate(self, treatment: Treatment, first: int) -> bytes:
        treatment = replace(treatment, counts={"not finite": 0, "zero": 0})
        try:
            piece = next(iter(open_rows(self.source).pieces(self.size, first)))
            ready, bad = treatment.prepare(piece, first)
            return pickle.dumps((treatment.translate(ready, bad, first), treatment.counts, None))
        # Our errors are raised as they are; Ray would wrap them in a page of its own.
        except InterbasinError as error:
            return pickle.dumps((None, None, type(error)(*error.args)))
