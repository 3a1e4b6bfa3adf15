"""Contents of the explorer, computed without a page.

``questions.py`` reads what is typed, ``searches.py`` follows a search and scores its outputs, ``search_errors.py``
looks for better outputs than a beam's, ``answers.py`` puts these together; ``chains.py`` advances chains of a masked
model sweep by sweep.
"""

from __future__ import annotations

from seqwise.runs.explore.chains import Watched, adjust, advance, pin, start, tally
from seqwise.runs.explore.questions import Question, load_explored, read_question
from seqwise.runs.explore.search_errors import SearchErrors, search_errors
from seqwise.runs.explore.searches import Scored, Setup, compare, dropped, fell_off, follow
from seqwise.runs.explore.suggestions import Suggestions

__all__ = [
    "Question",
    "Scored",
    "SearchErrors",
    "Setup",
    "Suggestions",
    "Watched",
    "adjust",
    "advance",
    "compare",
    "dropped",
    "fell_off",
    "follow",
    "load_explored",
    "pin",
    "read_question",
    "search_errors",
    "start",
    "tally",
]
