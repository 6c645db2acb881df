"""The program, and ``python -m interbasin``. Next to nothing is imported before an interrupt can be answered."""

import _thread
import signal
import sys
import time
from types import FrameType

LONGEST = 10.0  # seconds that an interrupt waits for an import
_since: float | None = None  # when the interrupt came that waits


def main() -> None:
    """Run the command line; an interrupt is one line even while the program is still being imported."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as by nohup
            signal.signal(signal.SIGINT, _interrupt)
        # Schedulers stop a job by SIGTERM: it should lose no more than Ctrl-C does.
        signal.signal(signal.SIGTERM, _interrupt)
        from interbasin.cli import app

        app()
    except KeyboardInterrupt:
        print("Interrupted; nothing half-written was left behind.", file=sys.stderr)
        raise SystemExit(130) from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not inside an import.

    There libraries turn it into other errors, drop it, or abort the process; so it comes again until the import is
    over, or it has waited long.
    """
    global _since
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
