"""Merging: one network of several that share their coordinates. `methods.py` has the table of methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names
from interbasin.jobs.merge.merge import merge
from interbasin.jobs.merge.methods import METHODS, Method

if TYPE_CHECKING:
    from interbasin.jobs.merge.on_disk import MergeResult

__all__ = ["METHODS", "MergeResult", "Method", "merge"]

# Networks in memory are merged without what reads and writes files.
__getattr__, __dir__ = lazy_names(__name__, (), {"MergeResult": "interbasin.jobs.merge.on_disk"})
