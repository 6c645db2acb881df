"""What benchmarks run beside us: an environment for each peer, made from its list of requirements on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def peer_python(name: str) -> Path:
    """The Python of the environment that ``benchmarks/peers/NAME.txt`` describes."""
    folder = ROOT / ".peers" / name
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        print(f"Making an environment for {name}.", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        constraints = ROOT / "constraints.txt"
        torch_version = next(line for line in constraints.read_text().splitlines() if line.startswith("torch=="))
        pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints)]
        # torch first and by its exact version, so that nothing chooses another.
        subprocess.run([*pip, torch_version], check=True)
        subprocess.run([*pip, "-r", str(Path(__file__).parent / f"{name}.txt")], check=True)
        ready.touch()
    return python
