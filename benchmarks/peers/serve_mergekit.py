"""Runs mergekit in one process as often as it is told to: a line of JSON in, a line of JSON with the seconds out.

Told by benchmarks/merge.py, run by the Python of mergekit's own environment; imports come before the clock runs.
"""

import json
import sys
import time

import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions

OPTIONS = MergeOptions(copy_tokenizer=False, quiet=True)

for line in sys.stdin:
    asked = json.loads(line)
    with open(asked["config"], encoding="utf-8") as file:
        configuration = MergeConfiguration.model_validate(yaml.safe_load(file))
    started = time.perf_counter()
    run_merge(configuration, asked["output"], options=OPTIONS)
    print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
