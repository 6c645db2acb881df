"""The published way, which the benchmark runs beside ours, holds the same numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.activations.examples import no_hooks, numbers, vit

from interbasin.activations import record

PATH = Path(__file__).parents[2] / "benchmarks" / "reference" / "published_recording.py"


def test_the_published_way_gives_the_same_moments():
    description = importlib.util.spec_from_file_location("published_recording", PATH)
    published = importlib.util.module_from_spec(description)
    import sys

    sys.modules["published_recording"] = published
    description.loader.exec_module(published)
    models = vit(0), vit(1, width=36)
    data = numbers(6, 3, 32, 32).split(4)
    wanted = published.record(*models, data)
    names = [name for name in wanted if not name.startswith(":")]
    found = record(models, list(data), names)
    for name in names:
        centred = wanted[name].centred()
        difference = (found.moments[name, name].cross() - centred).norm() / centred.norm()
        assert difference < 1e-10, name
    assert no_hooks(*models)
