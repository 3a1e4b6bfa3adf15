"""Explorer: browser pages on a local server.

``questions.py`` reads typed text, ``searches.py`` records searches, scores outputs and finds search errors,
``suggestions.py`` ranks examples, ``answers.py`` combines these, ``streams.py`` labels lines as they arrive, and
``chains.py`` advances chains of a masked model; none of them needs a user interface. ``search_page.py``,
``stream_page.py`` and ``chain_page.py`` are the pages, ``*_views.py`` render results, ``work.py`` runs jobs in threads,
and ``widgets.py`` has shared widgets. NiceGUI is only imported to make widgets.
"""

from __future__ import annotations

from seqwise.pages.explorer.server import serve

__all__ = ["serve"]
