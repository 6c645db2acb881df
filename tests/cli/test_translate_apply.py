"""``interbasin translate apply``: what people and programs are shown, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.cli.test_frame import failed, run

from interbasin.cli.translate import STORES
from interbasin.jobs.translate import Translator


@pytest.fixture(autouse=True)
def fitted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((100, 6)).astype(np.float32)
    y = x @ generator.standard_normal((6, 4)).astype(np.float32)
    np.save("old.npy", x)
    Translator(method="ridge").fit(x, y, card={"source_model": "old-model", "target_model": "new-model"}).save("map")
    return x, y


def test_people_see_what_was_done(fitted):
    done = run("translate", "apply", "map", "old.npy", "-o", "new.npy")
    assert done.exit_code == 0, done.stderr
    assert "4 <- 6, float32" in done.stdout and "100" in done.stdout and "new.npy" in done.stdout
    np.testing.assert_allclose(np.load("new.npy"), fitted[1], rtol=1e-2, atol=1e-2)


def test_programs_get_json():
    done = run("translate", "apply", "map", "old.npy", "-o", "new.npy", "--json", "--batch-rows", "30")
    found = json.loads(done.stdout)
    assert (found["rows"], found["resumed_at"], found["dtype"], found["output"]) == (100, 0, "float32", "new.npy")


def test_the_real_translator_gives_the_same_in_any_batches(fitted):
    run("translate", "apply", "map", "old.npy", "-o", "new.npy", "--batch-rows", "7")
    np.testing.assert_allclose(np.load("new.npy"), Translator.load("map").transform(fitted[0]), rtol=1e-5, atol=1e-6)


def test_lost_lengths_are_remarked(fitted):
    Translator(method="relative-projection").fit(*fitted).save("relative")
    done = run("translate", "apply", "relative", "old.npy", "-o", "new.npy")
    assert "does not carry the lengths of vectors" in done.stderr
    done = run("translate", "apply", "relative", "old.npy", "-o", "new.npy", "--force", "--metric", "cosine")
    assert done.stderr == ""
    done = run("translate", "apply", "relative", "old.npy", "-o", "new.npy", "--force", "--metric", "dot")
    assert "old.npy is compared by dot, for which the lengths of vectors count" in done.stderr


def test_options_are_named_as_they_are_written():
    np.save("old.npy", np.ones((5, 6), dtype=np.int8))
    said = failed(run("translate", "apply", "map", "old.npy", "-o", "new.npy"))
    assert "Give it with --scale, or store floats" in said and "scale=" not in said
    np.save("old.npy", np.zeros((5, 6), dtype=np.float32))
    assert "with --bad-rows keep." in failed(run("translate", "apply", "map", "old.npy", "-o", "new.npy"))


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:S3cr@h/db?table=t",
        "postgresql:u:S3cr@h/db?table=t",
        "postgresql:/u:S3cr@h/db?table=t",
        "postgresql://u:S3cr@x@127.0.0.1:1/db?table=t",
        "postgresql://u:x@S3cr@127.0.0.1:1/db?table=t",
        "host=h password=S3cr dbname=x",
    ],
)
def test_no_command_repeats_a_password(address):
    for arguments in (
        ["fit", address, "old.npy", "-o", "out"],
        ["fit", "old.npy", address, "-o", "out"],
        ["apply", address, "map", "-o", "new.npy"],
        ["apply", "map", address, "-o", "new.npy"],
        ["apply", "map", "old.npy", "-o", address],
        ["evaluate", address, "old.npy", "old.npy", "-o", "out"],
        ["evaluate", "map", address, "old.npy", "-o", "out"],
        ["doctor", address, "-o", "out"],
        ["audit", address, "old.npy", "-o", "out"],
        ["fit", "old.npy", "old.npy", address, "-o", "out"],
    ):
        done = run("translate", *arguments)
        assert done.exit_code in (1, 2), arguments
        assert "S3cr" not in done.stdout + done.stderr, done.stderr


def test_an_interrupt_says_what_is_kept(monkeypatch):
    import interbasin.jobs.translate.apply as application

    whole = application.translate_vectors

    def interrupted(*arguments, progress, **options):
        def note(done: int, rows: int) -> None:
            progress(done, rows)
            if done >= 50:
                raise KeyboardInterrupt

        return whole(*arguments, progress=note, **options)

    monkeypatch.setattr(application, "translate_vectors", interrupted)
    done = run("translate", "apply", "map", "old.npy", "-o", "new.npy", "--batch-rows", "10")
    assert done.exit_code == 130
    assert done.stderr == "Interrupted; 50 of 100 rows are kept: run the same command to go on.\n"
    monkeypatch.undo()


def test_the_help_names_every_store():
    for store in ("lance://", "faiss://", "postgresql://"):
        assert store in STORES


def test_the_real_translator_does_not_write_infinity(fitted):
    x = fitted[0].copy()
    x[70] = 3e38
    np.save("huge.npy", x)
    assert "Translated, row 70 (counted from 0) of huge.npy would have numbers beyond 3.4e+38" in failed(
        run("translate", "apply", "map", "huge.npy", "-o", "new.npy")
    )


@pytest.mark.parametrize("moment", ["the translator is read", "the first rows are written", "the output is opened"])
def test_where_rows_are_kept_no_interrupt_says_that_nothing_was_left(moment, fitted, monkeypatch):
    from interbasin.vectors.files.npz import ArraySink

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    words = ["translate", "apply", "map", "old.npy", "-o", "new.npy", "--batch-rows", "7"]
    append = ArraySink.append
    with monkeypatch.context() as patch:  # an earlier run, which left rows
        patch.setattr(ArraySink, "append", lambda sink, piece: interrupted() if sink.rows > 20 else append(sink, piece))
        assert "rows are kept: run the same command" in run(*words).stderr
    with monkeypatch.context() as patch:
        if moment == "the translator is read":
            patch.setattr(Translator, "load", interrupted)
        elif moment == "the first rows are written":
            patch.setattr(ArraySink, "append", lambda sink, piece: (append(sink, piece), interrupted()))
        else:
            patch.setattr("interbasin.jobs.translate.apply.open_sink", interrupted)
        done = run(*words)
    assert (
        done.exit_code == 130 and "half-written" not in done.stderr and "are kept: run the same command" in done.stderr
    )
    found = json.loads(run(*words, "--json").stdout)
    assert found["resumed_at"] >= 21 and found["rows"] == 100
    np.testing.assert_allclose(np.load("new.npy"), Translator.load("map").transform(fitted[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "bits"), [(np.float16, 0x7D00), (np.float32, 0x7FA00000), (np.float64, 0x7FF4000000000000)]
)
def test_a_signalling_nan_is_one_line(fitted, dtype, bits):
    # As a file or another program leaves it: arithmetic with it raises a flag, of which NumPy warns.
    x = fitted[0].astype(dtype)
    x.view(f"u{x.itemsize}")[70, 2] = bits
    np.save("signalling.npy", x)
    # Warnings are errors in these tests.
    said = failed(run("translate", "apply", "map", "signalling.npy", "-o", "new.npy"))
    assert said.startswith("Error: In signalling.npy, row 70 (counted from 0) holds NaN or infinity")
    done = run("translate", "apply", "map", "signalling.npy", "-o", "kept.npy", "--bad-rows", "keep")
    assert (done.exit_code, done.stderr) == (0, "") and np.isnan(np.load("kept.npy")[70]).all()
