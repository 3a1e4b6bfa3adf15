"""``python -m seqwise``: the command line, for launchers that need a module, such as torchrun."""

from __future__ import annotations

from seqwise.cli import main

if __name__ == "__main__":
    main()
