"""Merging: one network of several that share their coordinates. One file a method, and a table of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interbasin._lazy import lazy_names
from interbasin.jobs.merge.merging import merge
from interbasin.jobs.merge.methods import METHODS, Method

if TYPE_CHECKING:
    from interbasin.jobs.merge.files import Merged

__all__ = ["METHODS", "Merged", "Method", "merge"]

# Networks in memory are merged without what reads and writes files.
__getattr__, __dir__ = lazy_names(__name__, (), {"Merged": "interbasin.jobs.merge.files"})
