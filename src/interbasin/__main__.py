"""The program, and ``python -m interbasin``. Next to nothing is imported before an interrupt can be answered."""

import _thread
import contextlib
import os
import signal
import sys
import time
import traceback
from types import FrameType, TracebackType

LONGEST = 10.0  # seconds that an interrupt waits for an import
_since: float | None = None  # when the interrupt came that waits
_is_leaving = False  # the command has ended, well or badly


def main() -> None:
    """Run the command line; an interrupt is one line even while the program is still being imported."""
    sys.excepthook = _show_traceback  # before typer is imported, which keeps the one it finds
    os.environ.setdefault("LANCEDB_LOG", "error")  # its warnings would stand beside our sentence on stderr
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as by nohup
            signal.signal(signal.SIGINT, _interrupt)
        # Schedulers stop a job by SIGTERM: it should lose no more than Ctrl-C does.
        signal.signal(signal.SIGTERM, _interrupt)
        from interbasin.cli import app

        app()
        code: str | int | None = 0
    except SystemExit as leaving:
        code = leaving.code
    except KeyboardInterrupt:
        _say("Interrupted; nothing half-written was left behind.")
        code = 130
    finally:
        _leave_signals_to_the_system()
    raise SystemExit(_flush(code))


def _leave_signals_to_the_system() -> None:
    """From now on a signal ends the process at once: Python would show a traceback of what it does to leave."""
    global _is_leaving
    _is_leaving = True
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def _flush(code: str | int | None) -> str | int | None:
    """The exit code, once the result is written: Python itself flushes too late to answer for it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        sys.stdout = None  # Python would complain once more when it flushes
        # The command said already what went wrong, or the reader of our output went away, as `head` does.
        if code in (None, 0) and not isinstance(error, BrokenPipeError):
            reason = getattr(error, "strerror", None) or str(error)
            _say(f"Error: the result could not be written to stdout ({reason}); is there room where it goes?")
        code = code or 1
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = None
    return code


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # where stderr is full, there is nowhere to say it
        print(sentence, file=sys.stderr)


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What ``--debug`` shows; the message may quote names from files, which must not command the terminal."""
    from interbasin.text import printable

    _say(printable("".join(traceback.format_exception(kind, error, trace)), keep="\n\t").rstrip("\n"))


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not inside an import.

    There libraries turn it into other errors, drop it, or abort the process; so it comes again until the import is
    over, or it has waited long.
    """
    global _since
    if _is_leaving:
        return
    now = time.monotonic()
    if not _untimely(frame) or (_since is not None and now - _since > LONGEST):
        _since = None
        raise KeyboardInterrupt
    if _since is None:
        _since = now
    # Not by the module threading, whose locks the interrupted code may hold.
    _thread.start_new_thread(_again, (number, _thread.get_ident()))


def _again(number: int, main_thread: int) -> None:
    time.sleep(0.02)
    if hasattr(signal, "pthread_kill"):
        # A signal proper, and to that thread: it ends waiting too, which a note to the interpreter does not.
        signal.pthread_kill(main_thread, number)
    else:
        _thread.interrupt_main(signal.Signals(number))


def _untimely(frame: FrameType | None) -> bool:
    while frame is not None:
        name = frame.f_code.co_filename
        # Out of evaluated text, too: Python would then end itself by the signal, whatever is made of it here.
        if name.startswith("<frozen importlib") or (name == "<string>" and frame.f_back is not None):
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    main()
