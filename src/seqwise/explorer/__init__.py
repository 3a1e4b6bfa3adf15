"""The explorer: pages in the browser, on a local server, over what :mod:`seqwise.runs.explore` computes.

``server.py`` serves, ``search_page.py`` and ``chain_page.py`` are the two pages, ``search_views.py`` and
``chain_views.py`` turn results into HTML, ``work.py`` computes without holding up a page, ``widgets.py`` has what the
pages share. Widgets are NiceGUI's, which is imported only where one is made.
"""

from __future__ import annotations

from seqwise.explorer.server import serve

__all__ = ["serve"]
