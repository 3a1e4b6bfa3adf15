"""Readers and writers of text files; every error names the file and line, and gives a hint.

Readers accept plain or gzip-compressed UTF-8. Only a line feed ends a line, so tokens may contain U+2028 or U+0085.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from io import BufferedReader
from typing import IO, Any, Literal, TypeVar, cast, get_args

from seqwise.data.durable import write_atomically
from seqwise.errors import InputError
from seqwise.names import STDIN

Units = Literal["words", "characters", "text"]
"""Units of one side of a pair; "text" keeps the side as one token, which is split into subwords later."""
FilePath = str | os.PathLike[str]
Examples = TypeVar("Examples", bound="Sequence[Example]")

MAX_LINE_BYTES = 1_000_000
DOCUMENT_START = "-DOCSTART-"
NOT_A_WORD = re.compile(r"\d+[-.]\d+")  # CoNLL-U, in the first of ten columns: a range of words, or an empty node
ONLY_SOURCES = "give only sources, as with cut -f1; pairs are read from a named file, one on every line"
BLANKS = re.compile(r"[ \t]+")  # str.split() would also split at U+2028, U+0085 and the no-break space


@dataclass(frozen=True)
class Example:
    """Source sequence, its target, and their place in a file.

    Args:
        source: S input tokens.
        target: T output tokens; ``()`` for prediction.
        path: the file.
        line: line of the first token, from 1.
        key: name of a group that splits keep together, such as the word of a lexicon entry; may be empty.

    Example:
        >>> Example(("the", "dog"), ("DET", "NOUN"), "train.tsv", 1).target
        ('DET', 'NOUN')
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    path: str = ""
    line: int = 0
    key: str = ""

    @property
    def place(self) -> dict[str, Any]:
        """File and line, as arguments of ``InputError``; None where they are unknown."""
        return {"path": self.path or None, "line": self.line or None}


def read_lines(path: FilePath) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, text without line end)`` of a UTF-8 file, plain or gzip-compressed.

    A byte-order mark is dropped; only LF and CRLF end a line. One line is held in memory at a time.
    """
    number = 0
    try:
        with opened_input(path) as stream:
            # Limits readline instead of checking afterwards, because a small gzip may contain a line of gigabytes.
            for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 3), b""), start=1):
                yield number, _line_text(raw, path, number)
    except DAMAGED as error:
        raise damaged_input(error, path, number + 1) from None
    if number == 0:
        raise InputError("the file is empty", path=path, hint="give a file with at least one line")


@contextmanager
def opened_input(path: FilePath) -> Iterator[IO[bytes]]:
    """Open a file or standard input for reading, decompressed if it is a gzip file; reading may raise ``DAMAGED``."""
    with unreadable_files(path), _opened(path) as plain:
        start = plain.peek(2)[:2]
        if not start:  # a terminal, at its end, would wait for another one
            yield io.BytesIO()
        else:
            yield cast(IO[bytes], gzip.GzipFile(fileobj=plain)) if start == b"\x1f\x8b" else plain


DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)
"""Errors on reading a damaged gzip file."""


def damaged_input(error: Exception, path: FilePath, line: int) -> InputError:
    """Return the error about a damaged gzip file."""
    return InputError(f"damaged gzip file ({error})", path=path, line=line, hint="copy or compress the file again")


@contextmanager
def unreadable_files(path: FilePath) -> Iterator[None]:
    """Convert errors on opening or reading a file to an InputError."""
    try:
        yield
    except gzip.BadGzipFile:  # an OSError, but about the contents
        raise
    except FileNotFoundError:
        hint = "this command does not read standard input" if os.fspath(path) == "-" else "check the name"
        if os.fspath(path).startswith("~"):
            hint = "write out ~, the path of your home folder: no shell has replaced it here"
        raise InputError("no such file", path=path, hint=hint) from None
    except IsADirectoryError:
        raise InputError("this is a directory", path=path, hint="name a file in it") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", path=path) from None


def _opened(path: FilePath) -> AbstractContextManager[BufferedReader]:
    """Open a file; standard input stays open."""
    if os.fspath(path) != STDIN:
        return open(path, "rb")
    if sys.stdin is None:  # as in some services
        raise InputError("standard input is closed", path=path, hint="give a file")
    return nullcontext(cast(BufferedReader, sys.stdin.buffer))


def _line_text(raw: bytes, path: FilePath, number: int) -> str:
    body = raw.removesuffix(b"\n").removesuffix(b"\r")
    if len(body) > MAX_LINE_BYTES:
        hint = "one example per line; split it"
        raise InputError(f"the line is longer than {MAX_LINE_BYTES:,} bytes", path=path, line=number, hint=hint)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte 0x{body[error.start]:02x} at column {error.start + 1} is not UTF-8"
        hint = "convert the file to UTF-8, for example with iconv"
        raise InputError(problem, path=path, line=number, hint=hint) from None
    if "\0" in text:
        raise InputError("NUL character", path=path, line=number, hint="give a text file in UTF-8")
    if "\r" in text:
        raise InputError("carriage return inside the line", path=path, line=number, hint="end lines with LF or CRLF")
    return text.removeprefix("\ufeff") if number == 1 else text


def read_columns(path: FilePath, *, token_column: int = 0, label_column: int = -1) -> list[Example]:
    r"""Read CoNLL-style columns: one token per line, a blank line after each sentence.

    Columns are separated by tabs if the first row has one, else by runs of blanks. Blanks at the ends of a label are
    dropped. Lines that start with ``"# "`` before a sentence are comments, ``-DOCSTART-`` rows are skipped, and every
    other row must have as many columns as the first. (So in a file without tabs, a sentence must not begin with the
    token ``#``.) In CoNLL-U, with ten columns, rows of word ranges (``1-2``) and empty nodes (``1.1``) are skipped.

    Args:
        path: the file.
        token_column: column of the token, from 0, or from -1 backwards.
        label_column: column of the label.

    Returns:
        One example per sentence, with as many labels as tokens.

    Raises:
        InputError: ragged rows, an empty cell, a missing column, JSON, no sentences, or as for `read_lines`.

    Example:
        >>> file = getfixture("tmp_path") / "a.tsv"
        >>> _ = file.write_text("# id 1\nthe\tDT\tDET\ndog\tNN\tNOUN\n\nruns\tVB\tVERB\n")
        >>> [(e.source, e.target, e.line) for e in read_columns(file)]
        [(('the', 'dog'), ('DET', 'NOUN'), 2), (('runs',), ('VERB',), 5)]
    """
    return list(each_sentence(path, token_column=token_column, label_column=label_column, labelled=True))


def _cells(path: FilePath, *, hint: str) -> Iterator[tuple[int, str, list[str] | None]]:
    """Yield number, text and cells of each line; cells are None for comments and lines between sentences."""
    width, separator, inside = 0, BLANKS, False
    for number, text in read_lines(path):
        row = text.strip(" \t")
        if not row or BLANKS.split(row, 1)[0] == DOCUMENT_START:
            inside = False
            yield number, text, None
            continue
        if not inside and text.startswith("# "):
            yield number, text, None
            continue
        inside = True
        if not width:
            _refuse_json(row, path, number)
            separator = re.compile("\t") if "\t" in text else BLANKS
        cells = separator.split(row if separator is BLANKS else text)
        width = width or len(cells)
        if len(cells) != width:
            problem = f"{_columns(len(cells))} where the rows above have {width}"
            raise InputError(problem, path=path, line=number, hint=hint)
        if width == 10 and NOT_A_WORD.fullmatch(cells[0]):
            continue
        yield number, text, cells


def each_sentence(
    path: FilePath,
    *,
    token_column: int = 0,
    label_column: int = -1,
    labelled: bool = False,
    hint: str = "give each row the same columns, and put a blank line between sentences",
) -> Iterator[Example]:
    r"""Yield the sentences of a column file; unlabelled ones, for prediction, may lack labels.

    For prediction, the ``key`` of an example holds the preceding lines (blank lines, comments and document starts).

    Example:
        >>> file = getfixture("tmp_path") / "a.tsv"
        >>> _ = file.write_text("# id 1\nthe\ndog\n\nruns\n")
        >>> [(e.source, e.target, e.line, e.key) for e in each_sentence(file)]
        [(('the', 'dog'), ('', ''), 2, '# id 1\n'), (('runs',), ('',), 5, '\n')]
    """
    skipped, start, has_label = "", 0, False
    tokens: list[str] = []
    labels: list[str] = []
    for number, text, cells in itertools.chain(_cells(path, hint=hint), [(0, "", None)]):
        if cells is None:
            if tokens:
                yield Example(tuple(tokens), tuple(labels), os.fspath(path), start, "" if labelled else skipped)
                skipped, tokens, labels = "", [], []
            skipped += f"{text}\n"
            continue
        if not start:  # the first row; all others are as wide
            width = len(cells)
            if labelled:
                _require_columns(width, token_column, label_column, path, number)
            elif not -width <= token_column < width:
                problem = f"no token column {token_column} in {_columns(width)}"
                raise InputError(problem, path=path, line=number, hint=hint)
            has_label = -width <= label_column < width and label_column % width != token_column % width
        start = start if tokens else number
        tokens.append(cells[token_column])
        labels.append(cells[label_column].strip(" ") if has_label else "")  # a blank would make a different label
        for name, cell in (("token", tokens[-1]), ("label", labels[-1])):
            if not cell.strip(" ") and (labelled or name == "token"):
                raise InputError(f"the {name} is empty", path=path, line=number, hint=f"write the {name} in its column")
    if not start:
        hint = "one token and its label per line" if labelled else "one token per line"
        raise InputError("no sentence in the file", path=path, hint=hint)


def line_of_token(example: Example, place: int) -> int:
    r"""Return the line of a token in a column file, read from the file if that still exists.

    Example:
        >>> file = getfixture("tmp_path") / "a.conllu"
        >>> _ = file.write_text("".join(f"{row}\tA{8 * chr(9)}_\n" for row in ("1-2", "1", "1.1", "2")))
        >>> (example,) = read_columns(file, token_column=0, label_column=1)
        >>> [line_of_token(example, place) for place in range(2)]
        [2, 4]
    """
    if not os.path.isfile(example.path):
        return example.line + place
    numbers = (number for number, _, cells in _cells(example.path, hint="") if cells is not None)
    return next(itertools.islice(itertools.dropwhile(lambda number: number < example.line, numbers), place, None))


def _refuse_json(row: str, path: FilePath, line: int) -> None:
    """Raise an InputError for a JSON object, which blanks would split into columns."""
    if not (row.startswith('{"') and BLANKS.search(row)):
        return
    try:
        json.loads(row)
    except (ValueError, RecursionError):
        return
    problem, hint = "a JSON object where columns were expected", "write a token, a tab and its label on each line"
    raise InputError(problem, path=path, line=line, hint=hint)


def _columns(count: int) -> str:
    return f"{count} column" if count == 1 else f"{count} columns"


def _require_columns(width: int, token_column: int, label_column: int, path: FilePath, line: int) -> None:
    if width == 1:
        problem, hint = "1 column, where a token and its label are needed", "separate them by one tab"
        raise InputError(problem, path=path, line=line, hint=f"{hint}; sentences without labels are for predict")
    for name, column in (("token", token_column), ("label", label_column)):
        if not -width <= column < width:
            problem = f"no {name} column {column} in {_columns(width)}"
            raise InputError(problem, path=path, line=line, hint="count from 0")
    if token_column % width == label_column % width:
        hint = "give two columns: the token and its label, separated by one tab"
        raise InputError(f"token and label are the same column, of {width}", path=path, line=line, hint=hint)


def read_pairs(path: FilePath, *, source_units: Units, target_units: Units) -> list[Example]:
    r"""Read a two-column TSV: the source, one tab, the target.

    Args:
        path: the file.
        source_units: ``"words"`` splits the source at blanks, ``"characters"`` into code points, blanks included;
            ``"text"`` keeps it whole, except for blanks at its ends.
        target_units: the same for the target.

    Raises:
        InputError: a line without exactly two columns, an empty side, an unknown unit, or as for `read_lines`.

    Example:
        >>> file = getfixture("tmp_path") / "spelling.tsv"
        >>> _ = file.write_text("shoe\tSH UW\n")
        >>> example, = read_pairs(file, source_units="characters", target_units="words")
        >>> example.source, example.target
        (('s', 'h', 'o', 'e'), ('SH', 'UW'))

    Not implemented: grapheme clusters; a combining mark is a separate character.
    """
    return list(each_pair(path, source_units=source_units, target_units=target_units))


def each_pair(path: FilePath, *, source_units: Units, target_units: Units) -> Iterator[Example]:
    """Yield the examples of :func:`read_pairs`."""
    blank = None
    for number, text in read_lines(path):
        if "\t" not in text and not text.strip():
            blank = blank or number
            continue
        if blank is not None:  # and not at the end of the file
            hint = "drop it; columns of tokens and labels, with blank lines between sentences, are for --task tag"
            raise InputError("a blank line where a pair was expected", path=path, line=blank, hint=hint)
        cells = text.split("\t")
        if len(cells) != 2:
            problem = f"{_columns(len(cells))} where 2 were expected"
            raise InputError(problem, path=path, line=number, hint="write source, one tab, target")
        source, target = _split(cells[0], source_units), _split(cells[1], target_units)
        if not source or not target:
            side = "target" if source else "source"
            raise InputError(f"the {side} is empty", path=path, line=number, hint="fill it in or drop the line")
        yield Example(source, target, os.fspath(path), number)


def each_input(path: FilePath, *, units: Units) -> Iterator[Example]:
    """Yield one input per line, with an empty target; a tab, which would be a blank, is that of a pair."""
    for number, text in read_lines(path):
        if "\t" in text:
            raise InputError("a pair where a source was expected", path=path, line=number, hint=ONLY_SOURCES)
        source = _split(text, units)
        if not source:
            raise InputError("the line is blank", path=path, line=number, hint="one input per line; remove blank lines")
        yield Example(source, (), os.fspath(path), number)


def each_source(path: FilePath, *, units: Units, separator: str | None = "\t") -> Iterator[Example]:
    r"""Yield the source of each line, for prediction: the text before the tab, empty for a blank line.

    Example:
        >>> file = getfixture("tmp_path") / "pairs.tsv"
        >>> _ = file.write_text("the dog\tder Hund\n\nruns\n")
        >>> [e.source for e in each_source(file, units="words")]
        [('the', 'dog'), (), ('runs',)]
    """
    is_blank = True
    for number, text in read_lines(path):
        cells = text.split(separator) if separator else [text]
        if len(cells) > 2:
            problem = f"{_columns(len(cells))} where a source, or a source and its target, were expected"
            raise InputError(problem, path=path, line=number, hint="give only the sources, as with cut -f1")
        source = _split(cells[0], units)
        is_blank = is_blank and not source
        yield Example(source, (), os.fspath(path), number)
    if is_blank:
        raise InputError("every line is blank", path=path, hint="one input per line")


def _split(text: str, units: Units) -> tuple[str, ...]:
    if units not in get_args(Units):
        raise InputError(f"unknown units {units!r}", hint=f"choose one of {', '.join(get_args(Units))}")
    return split_text(text.strip(" \t") if units == "text" else text, units)


def split_text(text: str, units: Units) -> tuple[str, ...]:
    """Split text into words at blanks and tabs, or into characters; "text" is one token, or none if it is blank.

    Example:
        >>> split_text(" the  dog", "words"), split_text(" the  dog", "text"), split_text(" ", "text")
        (('the', 'dog'), (' the  dog',), ())
    """
    if units == "characters":
        return tuple(text)
    words = tuple(word for word in BLANKS.split(text) if word)
    return words if units == "words" else (text,) if words else ()


def require_some(examples: Examples, path: FilePath) -> Examples:
    """Return the examples; raise an InputError that names the file if there are none."""
    if not examples:
        raise InputError("no example in the file", path=path, hint="one example per line")
    return examples


def require_aligned(examples: Iterable[Example]) -> None:
    """Check that each source has one target token per source token, as a tagger needs."""
    for example in examples:
        num_tokens, num_labels = len(example.source), len(example.target)
        if num_tokens != num_labels:
            hint = "a tagger needs one label per token"
            problem = f"the source has length {num_tokens} but the target {num_labels}"
            raise InputError(problem, **example.place, hint=hint)


def write_columns(path: FilePath, examples: Iterable[Example]) -> None:
    """Write examples as lines of token, tab and label, which `read_columns` reads back.

    Raises:
        InputError: sides of different length, no examples, or a token that would not be read back (empty, a tab, line
            break or NUL, blanks at an end, or a sentence that begins with ``"# "`` or contains ``-DOCSTART-``).

    Example:
        >>> file = getfixture("tmp_path") / "a.tsv"
        >>> write_columns(file, [Example(("the", "dog"), ("DET", "NOUN"))])
        >>> file.read_text()
        'the\\tDET\\ndog\\tNOUN\\n\\n'
    """
    blocks = []
    for example in examples:
        require_aligned([example])
        for token in example.source + example.target:
            if not token.strip(" ") or token != token.strip(" ") or token.split(" ")[0] == DOCUMENT_START:
                raise _unwritable(token, example)
        if not example.source or example.source[0].startswith("# "):
            raise _unwritable("".join(example.source[:1]), example)
        blocks.append("".join(_row(row, example) for row in zip(example.source, example.target, strict=True)) + "\n")
    write_atomically(path, _require_readable("".join(blocks)))


def write_pairs(path: FilePath, examples: Iterable[Example], *, source_units: Units, target_units: Units) -> None:
    """Write examples that `read_pairs` with the same units reads back.

    Raises:
        InputError: no examples, an empty side, or a token that would not be read back: a word with a blank, a
            "character" of length other than 1, a tab, line break or NUL.

    Example:
        >>> file = getfixture("tmp_path") / "a.tsv"
        >>> write_pairs(file, [Example(tuple("shoe"), ("SH", "UW"))], source_units="characters", target_units="words")
        >>> file.read_text()
        'shoe\\tSH UW\\n'
    """
    rows = []
    for example in examples:
        cells = []
        for tokens, units in ((example.source, source_units), (example.target, target_units)):
            cells.append(("" if units == "characters" else " ").join(tokens))
            if not tokens or _split(cells[-1], units) != tokens:
                wrong = next((t for t in tokens if _split(t, units) != (t,)), cells[-1])
                raise _unwritable(wrong, example)
        rows.append(_row(cells, example))
    write_atomically(path, _require_readable("".join(rows)))


def _row(cells: Sequence[str], example: Example) -> str:
    for cell in cells:
        if set(cell) & set("\t\r\n\0"):
            raise _unwritable(cell, example)
    return "\t".join(cells) + "\n"


def _unwritable(token: str, example: Example) -> InputError:
    problem = f"{token[:100]!r} would be read back differently" if token else "nothing to write"
    return InputError(problem, **example.place, hint="rename or drop it")


def _require_readable(text: str) -> str:
    if not text:
        raise InputError("no example to write", hint="give at least one")
    if text.startswith("\ufeff"):
        raise InputError("the first token begins with a byte-order mark", hint="drop the mark from the token")
    return text
