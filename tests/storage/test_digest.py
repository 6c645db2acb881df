"""Hashes of files that are being written, and sums over the beginning of files that grow."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interbasin.storage import digest
from interbasin.storage.digest import Sum, digest_of


@given(content=st.binary(max_size=400), cuts=st.lists(st.integers(0, 400), max_size=6), piece=st.integers(1, 64))
def test_a_sum_that_grows_is_that_over_all_at_once(tmp_path_factory, content, cuts, piece):
    path = tmp_path_factory.mktemp("sum") / "file"
    path.write_bytes(content + b"what is not counted")
    total = Sum()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "PIECE", piece)
        for size in sorted(min(cut, len(content)) for cut in cuts):
            total = total.grown(path, size)
        total = total.grown(path, len(content))
    assert total == Sum(len(content), zlib.crc32(content))


def test_a_file_that_is_too_short_has_no_sum(tmp_path):
    (tmp_path / "file").write_bytes(b"short")
    with pytest.raises(OSError, match="ends after 5 of 6 bytes"):
        Sum().grown(tmp_path / "file", 6)


@given(pieces=st.lists(st.binary(max_size=300), min_size=1, max_size=8), told=st.data())
def test_a_file_that_is_followed_is_hashed_as_a_whole_one(tmp_path_factory, pieces, told):
    path = tmp_path_factory.mktemp("followed") / "part"
    with digest.Following() as following:
        with path.open("wb") as file:
            for piece in pieces[:-1]:
                file.write(piece)
                file.flush()
                if told.draw(st.booleans()):
                    following.reached(path, file.tell())
            file.write(pieces[-1])
            file.flush()
            following.reached(path, file.tell())
        named = path.rename(path.with_name("final"))
    assert following.digest(named) == digest_of(named)


def test_a_file_that_was_not_followed_to_its_end_has_no_digest(tmp_path):
    more, less, never = tmp_path / "more", tmp_path / "less", tmp_path / "never"
    for path in (more, less, never):
        path.write_bytes(b"12345")
    with digest.Following() as following:
        following.reached(more, 5)
        following.reached(less, 9)
    with more.open("ab") as file:
        file.write(b"6")
    less.write_bytes(b"1")
    assert [following.digest(path) for path in (more, less, never)] == [None] * 3
