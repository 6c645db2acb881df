"""What benchmarks run beside us: an environment for each peer, made from its list of requirements on first use."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def peer_python(name: str, *, shares_versions: bool = True) -> Path:
    """The Python of the environment that ``benchmarks/peers/NAME.txt`` describes.

    Args:
        name: Of the peer.
        shares_versions: Whether versions that its list does not name are ours, and torch is there. A peer that cannot
            stand our versions has a list that names all of its own.
    """
    folder = ROOT / ".peers" / name
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    folder.parent.mkdir(exist_ok=True)
    # Cells run side by side: the second one waits, or it would clear what the first is installing.
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            _install(name, folder, python, shares_versions)
            ready.touch()
    return python


def _install(name: str, folder: Path, python: Path, shares_versions: bool) -> None:
    print(f"Making an environment for {name}.", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    constraints = ROOT / "constraints.txt"
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    if shares_versions:
        torch_version = next(line for line in constraints.read_text().splitlines() if line.startswith("torch=="))
        pip += ["-c", str(constraints)]
        # torch first and by its exact version, so that nothing chooses another.
        subprocess.run([*pip, torch_version], check=True)
    subprocess.run([*pip, "-r", str(Path(__file__).parent / f"{name}.txt")], check=True)
