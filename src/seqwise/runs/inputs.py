"""Readers of data files, and of inputs from text, a file or standard input."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from seqwise.data.fasta import each_entry
from seqwise.data.readers import (
    Example,
    FilePath,
    Units,
    each_input,
    each_pair,
    each_sentence,
    each_source,
    read_columns,
    read_lines,
    read_pairs,
    require_aligned,
    require_some,
    split_text,
)
from seqwise.data.spooled import spooled
from seqwise.errors import InputError
from seqwise.names import STDIN, TextUnits
from seqwise.runs.masked_model_settings import Format, MaskedModelSettings
from seqwise.runs.paths import names_a_file
from seqwise.runs.settings import Settings, Tagging

Reader = Callable[[FilePath], Iterable[Example]]
"""Function that reads the inputs of a file."""


def file_units(units: TextUnits) -> Units:
    """Return the units in which a file is read: raw text for subwords."""
    return "text" if units == "subwords" else units


def input_units(settings: Settings) -> Units:
    """Return the units for reading inputs of a run."""
    return file_units(settings.source_units)


def input_reader(settings: Settings, *, plain_text: bool = False) -> Reader:
    """Return a reader of inputs: files in the training format, with or without targets, or one input per line."""
    if plain_text:
        return partial(each_source, units=input_units(settings), separator=None)
    if not isinstance(settings, Tagging):
        return partial(each_source, units=input_units(settings))
    hint = "one token per line and a blank line after each sentence; or, for one sentence per line, add --text"
    return partial(each_sentence, token_column=settings.token_column, label_column=settings.label_column, hint=hint)


def require_own_labels(examples: Iterable[Example], labels: Container[str]) -> None:
    """Raise an InputError if the run knows none of the labels, because the columns may be wrong."""
    first: tuple[Example, str] | None = None
    for example in examples:
        for label in example.target:
            if label in labels:
                return
            if first is None and label.strip() not in ("", "_"):
                first = example, label
    if first is not None:
        example, label = first
        problem = f"{label[:100]!r} is in the label column, and the run has none of the file's labels"
        hint = "for one sentence per line, add --text; if there are more columns, give only the tokens, as with cut -f1"
        raise InputError(problem, path=example.path, line=example.line, hint=hint)


def read_examples(settings: Settings, path: FilePath) -> list[Example]:
    """Read a data file in the format of the task."""
    if isinstance(settings, Tagging):
        examples = read_columns(path, token_column=settings.token_column, label_column=settings.label_column)
        require_aligned(examples)
        return examples
    return read_pairs(
        path, source_units=file_units(settings.source_units), target_units=file_units(settings.target_units)
    )


def read_sequences(path: FilePath, settings: MaskedModelSettings) -> list[Example]:
    r"""Read a file in the format of a masked model, skipping blank lines.

    Returns:
        Examples whose target is the sequence. Only pairs have a source; the key is the name of a FASTA entry.

    Raises:
        InputError: the file is not in this format; names the line.

    Example:
        >>> file = getfixture("tmp_path") / "a.txt"
        >>> _ = file.write_text("the dog\n\nruns\n")
        >>> from seqwise.runs import masked_settings
        >>> [(example.target, example.line) for example in read_sequences(file, masked_settings())]
        [(('the', 'dog'), 1), (('runs',), 3)]
    """
    units = {"units": settings.units, "source_units": settings.units_of_sources}
    return require_some(list(each_sequence(path, format=settings.format, **units)), path)


def each_sequence(
    path: FilePath,
    *,
    format: Format,
    units: TextUnits,
    source_units: TextUnits,
    hint: str = "give one sequence per line; for source, tab, sequence use --format pairs",
) -> Iterator[Example]:
    """Yield the examples of ``read_sequences``, possibly none; the hint is for errors about tabs."""
    if format == "pairs":
        yield from each_pair(path, source_units=file_units(source_units), target_units=file_units(units))
    elif format == "fasta":
        for entry in each_entry(path):
            yield replace(entry, target=("".join(entry.target),)) if units == "subwords" else entry
    else:
        yield from _each_line(path, file_units(units), hint)


def _each_line(path: FilePath, units: Units, hint: str) -> Iterator[Example]:
    for number, text in read_lines(path):
        if "\t" in text:
            raise InputError("a tab in a sequence", path=path, line=number, hint=hint)
        if text.strip(" "):
            tokens = split_text(text.strip(" ") if units == "text" else text, units)
            yield Example((), tokens, os.fspath(path), number)


def inputs_of(text: str | None, *, units: Units, read: Reader | None = None) -> Sequence[Example]:
    """Read the examples of a file or standard input ("-"), or make one, without a path, from text."""
    read = read or partial(each_input, units=units)
    if text is None or text == "-":
        return spooled(read(standard_input()))
    if names_a_file(text):
        return spooled(read(text))
    return [example_of(text, units=units)]


def standard_input() -> str:
    """Return the path of standard input; if it is a terminal, print a note."""
    if sys.stdin is not None and sys.stdin.isatty():
        print("reading a file from the terminal, up to Ctrl-D", file=sys.stderr)
    return STDIN


def example_of(text: str, *, units: Units) -> Example:
    """Make an example from text, which is never read as a file name."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError("the text is not UTF-8", hint="set the terminal to UTF-8, or give a file")
    if units != "characters":  # unlike a line of a file, a text may contain line breaks
        text = re.sub(r"[\r\n]", " ", text) if units == "words" else text.strip(" \t\r\n")
    tokens = split_text(text, units)
    if not tokens:
        raise InputError("the input is empty", hint="give some text, or a file")
    return Example(source=tokens, target=())


def digest_of(examples: Iterable[Example]) -> str:
    """Compute the SHA-256 of examples, including line numbers, on which outputs depend."""
    digest = hashlib.sha256()
    for example in examples:
        fields = (example.source, example.target, example.line, example.key)
        digest.update(repr(fields).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
