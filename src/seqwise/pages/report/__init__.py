"""Reports: a self-contained HTML page on one or several run folders.

``folders.py`` and ``chains.py`` read, ``results.py``, ``slots.py``, ``masked.py``, ``sampling.py`` and ``lattice.py``
measure, ``plots.py`` and ``drawing.py`` draw, ``blocks.py`` has the elements of a page, and ``page.py`` writes it.
"""

from __future__ import annotations

from seqwise.pages.report.report import ReportOptions, watch_report, write_report

__all__ = ["ReportOptions", "watch_report", "write_report"]
