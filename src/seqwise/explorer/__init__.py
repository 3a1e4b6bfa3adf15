"""Explorer: browser pages on a local server that show the results of ``seqwise.runs.explore``.

``search_page.py``, ``stream_page.py`` and ``chain_page.py`` are the pages, ``*_views.py`` render results, ``work.py``
runs jobs in threads, and ``widgets.py`` has shared widgets. NiceGUI is only imported to make widgets.
"""

from __future__ import annotations

from seqwise.explorer.server import serve

__all__ = ["serve"]
