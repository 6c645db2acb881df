"""Records with another document: what the checks behind the seal are tried with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interbasin.storage.records import SEAL, seal_of


def seal_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document in place of another, with a seal that fits: as a program with a fault would have saved it."""
    words = json.loads(json.dumps(document))
    path.write_text(json.dumps(words | {SEAL: seal_of(words)}), "utf-8")
