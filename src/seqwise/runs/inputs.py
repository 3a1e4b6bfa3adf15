"""What a run is asked to predict from: a text, the lines of a file, or those of standard input."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from seqwise.data.readers import Example, Units, each_input
from seqwise.data.spooled import spooled
from seqwise.errors import InputError
from seqwise.runs.settings import Settings
from seqwise.runs.settings import Units as SideUnits

__all__ = ["digest_of", "example_of", "file_units", "input_units", "inputs_of", "names_a_file"]

# What a text without blanks ends with only if it is meant as the name of a file.
_FILE_ENDINGS = (".txt", ".tsv", ".csv", ".conll", ".gz", ".json", ".jsonl")


def file_units(units: SideUnits) -> Units:
    """What a side is read from a file as: subwords come from the text as it stands.

    Example:
        >>> file_units("subwords"), file_units("words")
        ('text', 'words')
    """
    return "text" if units == "subwords" else units


def input_units(settings: Settings) -> Units:
    """What an input of the run is read as."""
    return file_units(settings.source_units) if settings.task == "transduce" else "words"


def inputs_of(text: str | None, *, units: Units) -> Sequence[Example]:
    """Examples of a file or of standard input, with their lines; or one, without a path, of the text itself.

    Args:
        text: a text, the name of a file, or None or "-" for standard input.
        units: "words", "characters" or "text", which is one token whatever is in it.

    Raises:
        InputError: the file cannot be read, or there is nothing in the text.

    Example:
        >>> inputs_of("the dog", units="words")[0].source
        ('the', 'dog')
    """
    if text is None or text == "-":
        if sys.stdin is not None and sys.stdin.isatty():
            print("reading one input a line from the terminal, up to Ctrl-D", file=sys.stderr)
        return spooled(each_input("/dev/stdin", units=units))
    if names_a_file(text):
        return spooled(each_input(text, units=units))
    return [example_of(text, units=units)]


def example_of(text: str, *, units: Units) -> Example:
    """An example of the text itself, which is never taken for the name of a file.

    Args:
        text: of one input.
        units: see :func:`inputs_of`.

    Raises:
        InputError: there is nothing in the text, or it is no text.

    Example:
        >>> example_of("/dev/null", units="words").source
        ('/dev/null',)
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError("the text is not UTF-8", mend="set the terminal to UTF-8, or give a file")
    words = tuple(text.split())
    tokens = {"words": words, "characters": tuple(text), "text": (text,) if words else ()}[units]
    if not tokens:
        raise InputError("the input is empty", mend="give some text, or a file")
    return Example(source=tokens, target=())


def digest_of(examples: Iterable[Example]) -> str:
    """SHA-256 of all that outputs may say of examples, the lines they stand in included.

    Example:
        >>> digest_of([Example(("a",), ())]) == digest_of([Example(("a",), (), line=2)])
        False
    """
    found = hashlib.sha256()
    for one in examples:
        found.update(repr((one.source, one.target, one.line, one.key)).encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def names_a_file(text: str) -> bool:
    """A file that is there, or plainly the name of one that should be; a folder may be called as a word is.

    Example:
        >>> names_a_file("missing.tsv"), names_a_file("the dog"), names_a_file("/")
        (True, False, False)
    """
    path = Path(text)
    try:
        if path.exists():
            return not path.is_dir()
    except OSError:  # a text longer than a file name may be
        return False
    return path.suffix in _FILE_ENDINGS and not any(map(str.isspace, text))
