"""Live lines: words of a text are labelled as they arrive, with final and just retracted labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from seqwise.errors import InputError
from seqwise.pages.explorer.searches import Setup
from seqwise.runs.run import OutputRun
from seqwise.runs.streaming import Streams, Update

MOST_PIECES = 5000
"""Largest length of a text."""

Piece = str | None
"""A word, or None for the end of a sentence."""


def pieces_of(text: str, *, ended: bool = False) -> tuple[Piece, ...]:
    """Split text into words and ends of sentences, which are line ends; a last word without a blank may be incomplete.

    Args:
        text: as typed so far.
        ended: whether the text is complete.

    Raises:
        InputError: the text is too long.

    Example:
        >>> pieces_of("the old\\nthe bo"), pieces_of("the bo", ended=True)
        (('the', 'old', None, 'the'), ('the', 'bo', None))
    """
    pieces: list[Piece] = []
    for match in re.finditer(r"[^ \t\r\n]+(?=[ \t\r\n])|\n", f"{text}\n" if ended else text):
        if match[0] != "\n":
            pieces.append(match[0])
        elif pieces and pieces[-1] is not None:
            pieces.append(None)
    if len(pieces) > MOST_PIECES:
        problem = f"the text has {len(pieces):,} words and line ends, and a live line takes at most {MOST_PIECES:,}"
        raise InputError(problem, hint="give a shorter one")
    return tuple(pieces)


@dataclass
class Line:
    """Sentence so far.

    Attributes:
        words: its words.
        labels: the best label of each; the last ones have none yet if the model looks ahead.
        num_final: number of first labels that are final.
        retracted: labels that the last word of the line retracted, by position.
    """

    words: list[str] = field(default_factory=list)
    labels: tuple[str, ...] = ()
    num_final: int = 0
    retracted: dict[int, str] = field(default_factory=dict)


class Live:
    """Lines of a text, the last of which may continue.

    Attributes:
        pieces: words and ends that have been read.
        lines: sentences.
        num_words: number of words in all lines.
        num_retracted: number of retracted labels in all lines.

    Raises:
        InputError: the run cannot stream, or the rule is unknown.
    """

    def __init__(self, run: OutputRun, setup: Setup, commit: str) -> None:
        self._options = (setup, commit)
        self.pieces: list[Piece] = []
        self.lines: list[Line] = []
        self.num_words = self.num_retracted = 0
        self._streams = Streams(run, setup.decoder(run), commit=commit)

    def continues_with(self, setup: Setup, commit: str, pieces: Sequence[Piece]) -> bool:
        """Whether a text begins with the pieces read so far, and the options are the same."""
        return self._options == (setup, commit) and self.pieces == [*pieces[: len(self.pieces)]]

    def read(self, pieces: Sequence[Piece]) -> None:
        """Read the rest of a text.

        Raises:
            InputError: a word cannot be read; everything before it has been read.
        """
        for piece in pieces[len(self.pieces) :]:
            self.take(piece)

    def take(self, piece: Piece) -> None:
        """Read the next word, or end the sentence.

        Raises:
            InputError: the word cannot be read; nothing has changed.
        """
        if piece is None:
            line = self.lines[-1]
            self._show(line, self._streams.finish(len(self.lines)))
            line.retracted = {}  # it was no word that retracted them
        else:
            line = Line() if not self.pieces or self.pieces[-1] is None else self.lines[-1]
            number = len(self.lines) + (not line.words)
            self._show(line, self._streams.feed({number: [piece]})[number])
            line.words.append(piece)
            self.lines[number - 1 :] = [line]
            self.num_words += 1
        self.pieces.append(piece)

    def _show(self, line: Line, update: Update) -> None:
        first = len(line.labels) - len(update.retracted)
        line.retracted = dict(enumerate(update.retracted, start=first))
        line.labels = line.labels[: line.num_final] + update.committed + update.partial
        line.num_final += len(update.committed)
        self.num_retracted += len(update.retracted)


def can_stream(run: OutputRun) -> bool:
    """Whether a run labels words before it has seen all of them."""
    try:
        Streams(run)
    except InputError:
        return False
    return True
