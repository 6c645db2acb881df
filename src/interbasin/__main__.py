"""``python -m interbasin``."""

from interbasin.cli import main

if __name__ == "__main__":
    main()
