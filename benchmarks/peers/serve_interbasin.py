"""Runs `interbasin.merge` in one process as often as it is told to, as serve_mergekit.py does mergekit."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import interbasin.jobs.merge.on_disk  # noqa: F401  (before the clock runs)
from interbasin import merge

for line in sys.stdin:
    asked = json.loads(line)
    started = time.perf_counter()
    merge(asked["models"], **asked["options"], output=asked["output"])
    print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
