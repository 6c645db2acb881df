"""What all commands share: help, versions, streams, exit codes, and errors in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.test_storage import left_in
from typer.testing import CliRunner

import interbasin
from interbasin.cli import app
from interbasin.cli.output import number, shorten
from interbasin.errors import FileError

COMMANDS = ("demo", "fit", "compare", "inspect", "merge", "rebasin", "transport", "adapt", "evaluate", "data", "clean")
PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}


def run(*arguments: object):
    """The program, in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=PLAIN)


def run_apart(*arguments: object, **keywords: object) -> subprocess.CompletedProcess[str]:
    """The program, in a process of its own."""
    command = [sys.executable, "-m", "interbasin", *(str(argument) for argument in arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"} | PLAIN
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | keywords
    return subprocess.run(command, env=environment, text=True, timeout=120, check=False, **streams)


def failed(done, code: int = 1) -> str:
    """The sentence that a run ended with: nothing else is on stderr, nothing on stdout, and no traceback anywhere."""
    found = done.exit_code if hasattr(done, "exit_code") else done.returncode
    assert found == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(name="files")
def two_files(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 4))
    turn = np.linalg.qr(generator.normal(size=(4, 4)))[0]
    np.save(tmp_path / "a.npy", x)
    np.save(tmp_path / "b.npy", x @ turn.T)
    return tmp_path / "a.npy", tmp_path / "b.npy"


# Help


def test_the_version_is_shown():
    done = run("--version")
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"interbasin {interbasin.__version__}\n", "")


@pytest.mark.parametrize("arguments", [(), *((command,) for command in COMMANDS)], ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help_with_examples(arguments, flag):
    done = run(*arguments, flag)
    assert done.exit_code == 0 and done.stderr == ""
    examples = done.stdout.split("Examples:")[1].split("Options:")[0]
    assert f"interbasin {' '.join(arguments)}".strip() in examples


def test_the_commands_are_those_that_are_tested_here():
    assert {command.callback.__name__ for command in app.registered_commands} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_the_flags_of_the_program(command):
    shown = run(command, "--help").stdout
    assert all(flag in shown for flag in ("--json", "--quiet", "--debug"))


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["--version"], ["fit", "--nonsense"]], ids=str)
def test_help_does_not_wait_for_torch(arguments):
    script = (
        "import sys, interbasin.cli\n"
        "try:\n"
        f"    interbasin.cli.app({arguments})\n"
        "except SystemExit:\n"
        "    heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'pyarrow'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
        "else:\n"
        "    raise AssertionError('did not leave')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Streams


@pytest.mark.parametrize(
    "place",
    [lambda f, c: (f, *c), lambda f, c: (*c, f), lambda f, c: (c[0], f, *c[1:])],
    ids=["before", "end", "after"],
)
def test_json_counts_before_and_behind_the_command(place, files):
    done = run(*place("--json", ("compare", *files)))
    assert done.exit_code == 0 and json.loads(done.stdout)["rows"] == 200


@pytest.mark.slow
def test_stdout_holds_the_json_and_nothing_else(files, tmp_path):
    done = run_apart("fit", *files, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


def test_people_get_a_table_on_stdout(files):
    done = run("compare", *files)
    assert done.exit_code == 0 and "linear_cka" in done.stdout and "200 rows" in done.stdout


def test_remarks_go_to_stderr_and_quiet_silences_them(files, tmp_path):
    np.save(tmp_path / "few.npy", np.load(files[0])[:3])
    few = tmp_path / "few.npy"
    spoken = run("compare", few, few)
    assert "inflated" in spoken.stderr and "inflated" not in spoken.stdout
    for flag in ("--quiet", "-q"):
        for arguments in ((flag, "compare", few, few), ("compare", few, few, flag)):
            done = run(*arguments)
            assert done.exit_code == 0 and done.stderr == "" and "linear_cka" in done.stdout


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["table", "json"])
def test_a_run_without_remarks_leaves_stderr_empty_where_nobody_watches(flags, files):
    assert run("compare", *files, *flags).stderr == ""


# Errors


def test_our_errors_are_one_sentence(files):
    assert "missing.npy" in failed(run("compare", files[0], "missing.npy"))
    assert "missing.npy" in failed(run_apart("compare", files[0], "missing.npy"))
    assert "missing.npy" in failed(run("--quiet", "compare", files[0], "missing.npy"))


def test_an_error_in_the_middle_of_reading_is_still_one_sentence(files, tmp_path):
    array = np.load(files[1])
    array[150, 2] = np.nan
    np.save(files[1], array)
    for done in (run("compare", *files), run("compare", *files, "--quiet")):
        sentence = failed(done)
        assert all(word in sentence for word in ("a.npy", "b.npy", "target", "1 of 4 columns (2)", "150"))
    assert left_in(tmp_path) == ["a.npy", "b.npy"]


@pytest.mark.parametrize("place", [lambda f, c: (f, *c), lambda f, c: (*c, f)], ids=["before", "behind"])
def test_with_json_an_error_is_json_too(place, files):
    done = run(*place("--json", ("compare", files[0], "missing.npy")))
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert json.loads(done.stdout) == {"error": "FileError", "message": done.stderr.removeprefix("Error: ").strip()}


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(28, "No space left"), 1, "No space left"),
        (MemoryError(), 1, "out of memory"),
        (KeyError("x"), 70, "bug"),
    ],
    ids=["system", "memory", "bug"],
)
def test_with_json_every_error_is_json_too(files, monkeypatch, error, code, words):
    def broken(*arguments, **keywords):
        raise error

    monkeypatch.setattr("interbasin.statistics.similarities", broken)
    done = run("compare", *files, "--json")
    assert done.exit_code == code and words in done.stderr
    found = json.loads(done.stdout)
    assert found == {"error": type(error).__name__, "message": done.stderr.removeprefix("Error: ").strip()}


def test_names_without_end_are_cut_and_what_cannot_be_printed_is_escaped(files):
    for command in (
        ("compare", files[0], "x" * 5000),
        ("inspect", "x" * 5000),
        ("inspect", "x" * 200 + ":" + "y" * 5000),
    ):
        assert len(failed(run(*command))) < 600
    assert "a\\nb\\x1b[31m.npy" in failed(run("compare", files[0], "a\nb\x1b[31m.npy"))
    path = "/" + "/".join(["folder"] * 40)
    assert shorten(f"no {path}.") == f"no {path}."


@pytest.mark.slow
def test_a_traceback_is_shown_when_asked_for(files):
    done = run_apart("compare", files[0], "missing.npy", "--debug")
    assert done.returncode == 1 and "Traceback" in done.stderr and "missing.npy" in done.stderr
    assert isinstance(run("--debug", "compare", files[0], "missing.npy").exception, FileError)


def test_no_command_shows_the_help():
    done = run()
    assert done.exit_code == 2 and "Examples:" in done.stdout + done.stderr


def test_a_bug_of_ours_is_called_one(files, monkeypatch):
    def broken(*arguments, **keywords):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("interbasin.statistics.similarities", broken)
    done = run("compare", *files, "--quiet")
    sentence = failed(done, code=70)
    assert all(word in sentence for word in ("ZeroDivisionError", "oh", "bug in interbasin", "--debug"))
    debugged = run("compare", *files, "--quiet", "--debug")
    assert isinstance(debugged.exception, ZeroDivisionError)


def test_an_interrupt_is_said_in_one_line(files, monkeypatch):
    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr("interbasin.statistics.similarities", interrupted)
    done = run("compare", *files, "--quiet")
    assert done.exit_code == 130 and done.stderr == "Interrupted; nothing half-written was left behind.\n"


def test_an_interrupt_while_the_command_is_read_is_said_in_one_line(monkeypatch):
    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.core.TyperGroup.make_context", interrupted)
    done = run("demo")
    assert done.exit_code == 130 and done.stderr == "Interrupted; nothing half-written was left behind.\n"


@pytest.mark.parametrize("awaited", ["typer", "torch"])
def test_an_interrupt_while_the_program_starts_is_said_in_one_line(awaited):
    script = (
        "import sys, interbasin.__main__ as program\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == {awaited!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['interbasin', 'demo']\n"
        "program.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "Interrupted; nothing half-written was left behind.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("within", ["an import", "evaluated text", "an import that swallows it"])
def test_a_signal_while_something_is_imported_waits_until_that_is_done(within, tmp_path):
    send = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.1)\n"
    swallowing = f"try:\n    exec({send!r})\nexcept BaseException:\n    pass\n"
    text = swallowing if within == "an import that swallows it" else send
    (tmp_path / "slow.py").write_text(f"exec({text!r})\n" if within == "evaluated text" else text)
    script = (
        "import signal, sys, interbasin.__main__ as program\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in the background it is inherited as ignored
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import interbasin.cli as cli\n"
        "def slow():\n"
        "    import slow\n"
        "    print('imported')\n"
        "    import time\n"
        "    time.sleep(300)\n"  # which the signal must end
        "cli.app = slow\n"
        "program.main()\n"
    )
    (tmp_path / "started.py").write_text(script)  # from a file: what is in evaluated text is taken for an import
    words = [sys.executable, str(tmp_path / "started.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 130 and done.stderr == "Interrupted; nothing half-written was left behind.\n"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["table", "json"])
def test_a_reader_that_goes_away_gets_no_complaint(flags, files):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run_apart("compare", *files, *flags, "--quiet", stdout=writing)
    finally:
        os.close(writing)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr and done.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", [("--version",), ("--help",)], ids=" ".join)
def test_a_full_stdout_is_said_in_one_sentence(words, buffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", buffered)
    with open("/dev/full", "w") as full:
        done = run_apart(*words, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1 and "No space left" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_json_to_a_full_stdout_is_said_in_one_sentence(files):
    with open("/dev/full", "w") as full:
        done = run_apart("compare", *files, "--json", stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1 and "No space left" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_error_that_cannot_be_written_is_still_exit_code_1(stream, buffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", buffered)
    with open("/dev/full", "w") as full:
        done = run_apart("merge", "a", "b", "-o", "out", "--json", **{stream: full})
    assert done.returncode == 1
    if stream == "stdout":
        assert done.stderr.startswith("Error: Weights were") and done.stderr.count("\n") == 1
    else:
        assert json.loads(done.stdout)["error"] == "CheckpointError"


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_reader_that_went_away_before_anything_was_written_gets_no_complaint(buffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", buffered)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run_apart("--version", stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_interpreter_leaves_is_no_traceback(number):
    script = (
        "import atexit, os, signal, time, interbasin.__main__ as program, interbasin.cli as cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in the background it is inherited as ignored
        "def send():\n"
        f"    os.kill(os.getpid(), signal.{number})\n"
        "    time.sleep(10)\n"
        "atexit.register(send)\n"
        "cli.app = lambda: print('done')\n"
        "program.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (-getattr(signal, number), "done\n", "")


def test_a_traceback_shows_names_as_text():
    done = run_apart("merge", "a\x1b[2J", "b", "-o", "out", "--debug")
    assert done.returncode == 1 and "Traceback" in done.stderr and "a\\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_broken_pipe_inside_a_command_gets_no_complaint(files, monkeypatch):
    def gone(*arguments, **keywords):
        raise BrokenPipeError

    monkeypatch.setattr("interbasin.statistics.similarities", gone)
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # puts back what the command takes away
    with pytest.raises(SystemExit) as caught:
        app(["compare", *map(str, files), "--quiet"])
    assert caught.value.code == 1 and sys.stdout is None


def test_the_program_is_installed_as_a_module():
    done = run_apart("--version")
    assert done.returncode == 0 and done.stdout.startswith("interbasin ")


def test_numbers_for_people_are_short_and_the_unknown_is_a_dash():
    assert [number(value) for value in (0.123456, 1e-9, 12345.6, None, float("nan"))] == [
        "0.1235",
        "1e-09",
        "1.235e+04",
        "-",
        "-",
    ]


def test_every_command_has_a_file_of_its_own():
    folder = Path(interbasin.__file__).parent / "cli"
    assert {f"{command}.py" for command in COMMANDS} <= {path.name for path in folder.glob("*.py")}


def test_a_refusal_of_the_system_is_one_sentence(files, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("interbasin.statistics.similarities", full)
    assert "the system refused (No space left on device)" in failed(run("compare", *files))
