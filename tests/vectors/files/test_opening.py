"""What can be wrong with a path, and with a file that is not what its name says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interbasin.errors import FileError
from interbasin.vectors import open_vectors


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_the_extension_may_be_in_capitals(tmp_path: Path) -> None:
    with (tmp_path / "VECTORS.NPY").open("wb") as file:
        np.save(file, np.ones((2, 3)))
    assert open_vectors(tmp_path / "VECTORS.NPY").format == "npy"


@pytest.mark.parametrize("extension", ["npy", "npz", "parquet"])
@pytest.mark.parametrize(
    "content, found",
    [
        (b"0.1 0.2 0.3\n0.4 0.5 0.6\n", r"begins with b'0\.1 0\.2 0\.3\\n'"),
        (b"\x00", r"begins with b'\\x00'"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "looks like a PNG image"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n",
            "looks like a Git LFS pointer .*git lfs pull",
        ),
        (b"<!DOCTYPE html><html>404</html>", "looks like an HTML page .*error page"),
        (b"\x80\x04\x95\x10\x00", "looks like a Python pickle"),
    ],
)
def test_a_file_that_is_something_else_is_recognised(
    extension: str, content: bytes, found: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError, match=rf"rows\.{extension} is named as a \.{extension} file but {found}"):
        open_vectors(write(tmp_path / f"rows.{extension}", content))


def test_formats_named_as_one_another_are_recognised(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    np.savez(tmp_path / "b.npz", x=np.ones((2, 2)))
    pq.write_table(pa.table({"c": [1.0]}), tmp_path / "c.parquet")
    kinds = {"a.npy": r"NumPy array \(\.npy\)", "b.npz": r"zip archive \(\.npz\)", "c.parquet": "Parquet file"}
    for name, kind in kinds.items():
        for extension in {".npy", ".npz", ".parquet"} - {Path(name).suffix}:
            with pytest.raises(FileError, match=rf"named as a \{extension} file but looks like a {kind}.*; rename it"):
                open_vectors(write(tmp_path / f"wrong{extension}", (tmp_path / name).read_bytes()))


def test_a_file_that_may_not_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows.npy", b"\x93NUMPY")

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "rows.npy")

    # Tests may run as a user who may read everything, so the refusal is staged.
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match=r"rows\.npy could not be read \(.*Permission denied.*check its permissions"):
        open_vectors(path)
    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(FileError, match=r"could not be looked at \(Permission denied\); check its permissions"):
        open_vectors(path)


def test_errors_are_one_sentence_on_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        open_vectors(write(tmp_path / "rows.parquet", b"PAR1" + bytes(40) + b"PAR1"))
    assert "\n" not in str(caught.value) and str(caught.value).startswith(str(tmp_path))
