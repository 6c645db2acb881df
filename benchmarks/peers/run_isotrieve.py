"""A store of `.npy` translated by PyPI's `isotrieve`, for benchmarks/translate_speed.py; runs in its own environment.

    python run_isotrieve.py FOLDER THREADS    FOLDER: x.npy (vectors), pairs-x.npy and pairs-y.npy (to fit on)

Both of its ways are timed: the command `transform`, and `migrate_store`, which can be resumed and so is nearer to what
ours does. Prints seconds as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from isotrieve.cli import transform_cmd
from isotrieve.mapping.linear import RidgeMapping
from isotrieve.migrate import migrate_store
from isotrieve.stores.numpy_files import NumpyFileStore
from threadpoolctl import threadpool_limits


def main() -> None:
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    x, y = np.load(folder / "pairs-x.npy"), np.load(folder / "pairs-y.npy")
    seconds = {}
    with threadpool_limits(threads), contextlib.redirect_stdout(io.StringIO()):
        mapping = RidgeMapping().fit(x, y)
        mapping.save(folder / "mapping.isotrieve")
        source = NumpyFileStore.from_arrays(folder / "store", np.load(folder / "x.npy"))
        started = time.perf_counter()
        transform_cmd(folder / "mapping.isotrieve", folder / "store", folder / "transformed", 2048, False)
        seconds["transform"] = time.perf_counter() - started
        target = NumpyFileStore(folder / "migrated", create=True)
        started = time.perf_counter()
        migrate_store(source, target, mapping, manifest_path=folder / "manifest.json")
        seconds["migrate_store"] = time.perf_counter() - started
    rows = len(np.load(folder / "transformed" / "vectors.npy", mmap_mode="r"))
    for name in ("store", "transformed", "migrated"):
        shutil.rmtree(folder / name)
    print(json.dumps({"rows": rows, "seconds": seconds}))


if __name__ == "__main__":
    main()
