"""How many examples hypothesis draws, and whether they are new ones. INTERBASIN_PROFILE names the profile.

default: few, the same for everyone and on every machine. check: more, the same again. search: as many new ones as
INTERBASIN_EXAMPLES says; ``make search`` uses it, and what fails there is printed with what repeats it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

__all__ = ["at_most"]

PROFILE = os.environ.get("INTERBASIN_PROFILE", "default")
EXAMPLES = {"default": 15, "check": 50, "search": int(os.environ.get("INTERBASIN_EXAMPLES", "200"))}

for _name, _count in EXAMPLES.items():
    # Whatever hypothesis would set by itself where it sees a CI is set here, so that it changes nothing.
    settings.register_profile(
        _name,
        max_examples=_count,
        derandomize=_name != "search",
        database=None,
        print_blob=True,
        # The first torch call takes most of a second, which breaks the deadline; drawing tensors counts as slow.
        deadline=None,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
settings.load_profile(PROFILE)


def at_most(count: int) -> settings:
    """Settings for a test that takes long: no more than ``count`` examples, except in a search, which draws all."""
    return settings(max_examples=EXAMPLES[PROFILE] if PROFILE == "search" else min(count, EXAMPLES[PROFILE]))
