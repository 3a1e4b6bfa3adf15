"""Reports: one page of HTML on one or several run folders, which opens anywhere and without a network.

``folders.py`` and ``chains.py`` read, ``training.py``, ``masked.py``, ``sampling.py`` and ``lattice.py`` measure,
``plots.py`` and ``drawing.py`` draw, ``blocks.py`` is what a page is made of, and ``page.py`` writes it.
"""

from __future__ import annotations

from seqwise.runs.report.data import Asked
from seqwise.runs.report.report import write_report

__all__ = ["Asked", "write_report"]
