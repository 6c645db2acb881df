"""Merging: one network of several that share their coordinates.

`merge` resolves the request (``methods``, with the table of methods) and merges ``in_memory`` or ``on_disk``. Both use
the arithmetic of ``kernel``, which needs no torch. ``networks`` aligns before a merge and resets batch norms after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names
from interbasin.jobs.merge.merge import merge
from interbasin.jobs.merge.methods import METHODS

if TYPE_CHECKING:
    from interbasin.jobs.merge.on_disk import MergeResult

__all__ = ["METHODS", "MergeResult", "merge"]

# Networks in memory are merged without what reads and writes files.
__getattr__, __dir__ = lazy_names(__name__, (), {"MergeResult": "interbasin.jobs.merge.on_disk"})
