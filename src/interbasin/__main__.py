"""The program, and ``python -m interbasin``. Next to nothing is imported before an interrupt can be answered."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; an interrupt is one line even while the program is still being imported."""
    try:
        from interbasin.cli import main as program

        program()
    except KeyboardInterrupt:
        print("Interrupted; nothing half-written was left behind.", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
