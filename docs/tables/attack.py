"""Tables of what the attack on the program found: faults, kills, damaged files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tables.markdown import environment, table

FAULTS = {
    "ENOSPC": "no room, once",
    "EIO": "an error of the device",
    "FULL": "no room, from then on",
    "SHORT": "half of a write, then no room",
    "HALF": "half of a write, and no error",
    "KILL_BEFORE": "killed before the call",
    "KILL_AFTER": "killed after the call",
    "INTERRUPT": "interrupted by SIGINT",
    "TERMINATE": "ended by SIGTERM",
}
BROKEN = {"partial": "partial", "lost": "lost", "different": "different after a second run"}


def faults(results: dict[str, Any]) -> str:
    kinds = Counter(violation["kind"] for violation in results["violations"])
    rows = [(FAULTS[name], f"{count:,}") for name, count in results["by_fault"].items()]
    rows.append(("**all**", f"{results['trials']:,}"))
    tried = f"{len(results['by_case'])} commands and functions that write, {_calls(results):,} calls in all"
    return f"{table(('fault', 'trials'), rows)}\n\n{tried}. {_found(kinds)}\n\n{environment(results)}"


def kills(results: dict[str, Any]) -> str:
    kinds = Counter(violation["kind"] for violation in results["violations"])
    landed = sum(counts.get("LANDED", 0) for counts in results["by_case"].values())
    databases = sum(
        counts.get("LANDED", 0)
        for name, counts in results["by_case"].items()
        if name.startswith("translate apply to postg")
    )
    rows = [("landed", f"{landed:,}"), ("of these in a translation inside PostgreSQL", f"{databases:,}")]
    return f"{table(('kills', 'count'), rows)}\n\n{_found(kinds)}\n\n{environment(results)}"


def fuzz(results: dict[str, Any]) -> str:
    verdicts = list(next(iter(results["counts"].values())))
    rows = [(kind, *(f"{counts[verdict]:,}" for verdict in verdicts)) for kind, counts in results["counts"].items()]
    sums = [sum(counts[verdict] for counts in results["counts"].values()) for verdict in verdicts]
    rows.append(("**all**", *(f"{total:,}" for total in sums)))
    return f"{table(('format', *verdicts), rows)}\n\n{environment(results)}"


def _calls(results: dict[str, Any]) -> int:
    return int(sum(results["calls"].values()))


def _found(kinds: Counter[str]) -> str:
    first = ", ".join(f"{kinds.pop(kind, 0)} {words}" for kind, words in BROKEN.items())
    others: Iterable[str] = (f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"Found: {first}; {', '.join(others) or 'nothing else'}."


MAKERS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "attack-faults": ("faults", faults),
    "attack-kills": ("kills", kills),
    "attack-fuzz": ("fuzz", fuzz),
}
