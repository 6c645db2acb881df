"""The same work on Ray Data, on a cluster of this machine."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.vectors.stores.conftest import running, server  # noqa: F401  (fixtures)
from tests.vectors.stores.test_files import lists
from tests.vectors.stores.translators import Plain, vectors

from interbasin.errors import DataError, FileError
from interbasin.jobs.translate.apply import translate_vectors
from interbasin.jobs.translate.on_ray import PROGRESS, is_worth_showing

TRANSLATOR = Plain(6, 9)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_cluster_gives_the_same_bytes_and_the_same_errors(capfd):
    x = vectors(100, 6)
    pq.write_table(pa.table({"id": range(100), "v": lists(x)}), "old.parquet")
    x[60] = np.nan
    np.save("bad.npy", x)
    options = {"rows_per_batch": 30, "column": "v"}
    translate_vectors(TRANSLATOR, "old.parquet", "local.parquet", **options)
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path()}})
    try:
        done = translate_vectors(TRANSLATOR, "old.parquet", "ray.parquet", engine="ray", **options)
        assert done.rows == 100
        assert Path("ray.parquet").read_bytes() == Path("local.parquet").read_bytes()
        with pytest.raises(DataError, match=r"In .*bad.npy, row 60 \(counted from 0\) holds NaN"):
            translate_vectors(TRANSLATOR, "bad.npy", "new.npy", engine="ray", rows_per_batch=30)
        # Two batches came before the bad row, and the run goes on behind them.
        kept = translate_vectors(TRANSLATOR, "bad.npy", "new.npy", engine="ray", rows_per_batch=30, bad_rows="keep")
        assert (kept.resumed_at, kept.bad_rows["not finite"]) == (60, 1)
        assert ray.is_initialized()  # it is not ours to end
        assert "Progress bars" not in capfd.readouterr().err
    finally:
        ray.shutdown()


def test_ray_is_not_heard_of_its_progress_bars_but_of_anything_else():
    said = [
        logging.LogRecord(PROGRESS, logging.WARNING, "f", 1, text, (), None)
        for text in ("Progress bars disabled. To", "Oh")
    ]
    assert [is_worth_showing(one) for one in said] == [False, True]


def path() -> str:
    return ":".join(one for one in sys.path if one)


def test_stores_whose_rows_have_no_numbers_are_refused(server):  # noqa: F811
    server.fill(vectors(10, 6))
    with pytest.raises(FileError, match="Ray reads files and Lance tables, and not postgresql"):
        translate_vectors(TRANSLATOR, server.address(), "postgresql:?table=docs&column=new", engine="ray")
