"""``python -m seqwise``, for launchers that need a module, such as torchrun; and the ``seqwise`` script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an interrupt ends it without a traceback, even while its modules are imported."""
    try:
        from seqwise.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)  # as `seqwise.cli.INTERRUPTED`, which may not be there yet


if __name__ == "__main__":
    main()
