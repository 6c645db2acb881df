"""No password is repeated, however an address was mistaken for something else."""

from __future__ import annotations

import pickle

import pytest

from interbasin.errors import DataError, FileError, MissingExtraError, StoreError, UnknownNameError
from interbasin.text import redact

SECRET = "S3cr"
ADDRESSES = [
    "postgresql://u:S3cr@h/db?table=t",
    "postgresql:/u:S3cr@h/db?table=t",
    "postgresql:u:S3cr@h/db?table=t",
    "postgres://u:S3cr@h/db",
    "postgres:///u:S3cr@h/db",
    "POSTGRESQL://u:S3cr@h/db",
    "postgresql+psycopg://u:S3cr@h/db",
    "mysql://:S3cr@h/db",
    "postgresql://u@realm:S3cr@h/db",
    "https://u:S3cr@h",
    "postgresql://u:12/S3cr@h/db",
    "postgresql://u:a@S3cr@h/db",
    "postgresql://u:a S3cr@h/db",
    "postgresql://u:a S3cr b@h/db",
    "postgresql://h/db?password=S3cr&table=t",
    "host=h password=S3cr dbname=x",
    "host=h password = 'a S3cr' dbname=x",
    "host=h sslpassword=S3cr",
    "PASSWORD=S3cr",
]
HARMLESS = [
    "postgresql://USER@HOST:PORT/DATABASE?table=TABLE&column=COLUMN",
    "postgresql://h:5432/db?table=t could not be reached (by me@here)",
    "postgresql:?table=docs&column=new",
    "timm:resnet18@weights.safetensors",
    "package.module:factory@weights",
    "lance://folder/table#column",
    "a@b.c: d@e",
    "C:/me:here",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_looks_like_a_password_is_struck_out(address):
    for text in (address, f"'{address}'", f"no such file: {address}; check the path.", f"({address})"):
        assert SECRET not in redact(text), redact(text)
        assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_holds_none_stays_as_it_is(text):
    assert redact(text) == text


@pytest.mark.parametrize("kind", [DataError, FileError, StoreError, MissingExtraError])
def test_no_error_repeats_one(kind):
    error = kind("there is no postgresql://u:S3cr@h/db")
    assert SECRET not in f"{error} {error!r} {error.args}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "there is no postgresql://u:***@h/db"
    assert SECRET not in str(UnknownNameError.of("table", "postgresql://u:S3cr@h/db", ["a"]))
