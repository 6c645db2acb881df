"""What every job returns: figures, notes, timings and the request, with one way to write them to a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from interbasin.evaluate.measured import Measured
from interbasin.outcome.outcome import Outcome
from interbasin.outcome.writing import Stopwatch, new_outcome
from interbasin.text import plural


@dataclass(frozen=True, kw_only=True, eq=False)
class Result(Measured):
    """The base class of what jobs return. A job adds fields of its own, and says what it writes in `write`.

    Attributes:
        job: What the outcome calls the job.
        headline: The metrics that the representation shows.
        notes: What a reader of the metrics should know, in sentences.
        timings: Seconds by what they were spent on.
        request: What was asked, defaults filled in.
    """

    job: ClassVar[str]
    headline: ClassVar[tuple[str, ...]] = ()

    notes: tuple[str, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        force: bool = False,
        inputs: Mapping[str, str | os.PathLike[str]] | None = None,
        request: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Outcome:
        """Write the outcome folder, whole or not at all.

        Args:
            folder: Where to.
            force: Replace an earlier outcome.
            inputs: Name to path of the networks and data; the files behind them are hashed.
            request: What was asked, where that is more than the result itself knows.
            **options: What `write` of this job takes.
        """
        # A caller that says None leaves it to the result, which knows what the default became.
        beyond = {
            name: value for name, value in (request or {}).items() if value is not None or name not in self.request
        }
        asked = {**self.request, **beyond}
        with new_outcome(
            folder,
            job=self.job,
            request=asked,
            inputs=inputs,
            seed=asked.get("seed"),
            force=force,
            elapsed=sum(self.timings.values()),
        ) as draft:
            draft.metrics.update(self.metrics)
            draft.timings.update(self.timings)
            draft.notes.extend(self.notes)
            self.write(draft, **options)
        return draft.outcome

    def write(self, *draft: Any, **options: Any) -> None:
        """Add what this job leaves beside the figures to the one `Draft`; nothing by default.

        A job overrides it as ``write(self, draft, *, ...)`` with the options that its `save` takes.
        """

    def __repr__(self) -> str:
        figures = [f"{name}={self.metrics[name]:.4g}" for name in self.headline if name in self.metrics]
        notes = [plural(len(self.notes), "note")] if self.notes else []
        return f"{type(self).__name__}({', '.join([*figures, *notes])})"


class Stages(Stopwatch):
    """The stages of a long job: their seconds, notes on the way, and what share of them is done.

    Args:
        progress: Called with the share that is done, from 0 to 1.
        count: How many stages there are.
    """

    def __init__(self, progress: Callable[[float], object] | None, count: int) -> None:
        super().__init__()
        self.notes: list[str] = []
        self._progress, self._count, self._done = progress, count, 0

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Callable[[float], object] | None]:
        """One stage; what it yields takes the share of the stage that is done, or is None where nobody listens."""
        progress, done, count = self._progress, self._done, self._count
        with self(name):
            yield None if progress is None else lambda share: progress((done + share) / count)
        self._done += 1
        if progress is not None:
            progress(self._done / count)

    def finish(self) -> None:
        """Say that all is done, whichever stages were left out."""
        if self._progress is not None:
            self._progress(1.0)
