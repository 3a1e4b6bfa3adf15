"""``python -m seqwise``: the command line, where a launcher such as torchrun wants a module."""

from __future__ import annotations

from seqwise.cli import main

if __name__ == "__main__":
    main()
