"""``seqwise debug-data``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.console import print_filled, require_at_least_one
from seqwise.errors import InputError
from seqwise.names import count_of, measure_text

if TYPE_CHECKING:
    from seqwise.runs.inspection import FileInspection, Lengths


def debug_data(
    train: Annotated[Path, typer.Argument(metavar="TRAIN", help="training data; - for standard input")],
    others: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="development and test data, compared with the training data"),
    ] = None,
    *,
    task: Annotated[str, typer.Option(metavar="NAME", help="tag (columns) or transduce (pairs)")] = "tag",
    token_column: Annotated[
        int | None, typer.Option(metavar="N", help="tag: column of the tokens, counted from 0 [0]")
    ] = None,
    label_column: Annotated[
        int | None, typer.Option(metavar="N", help="tag: column of the labels, counted from 0; -1 is the last [-1]")
    ] = None,
    source_units: Annotated[
        str | None, typer.Option(metavar="NAME", help="transduce: words or characters [words]")
    ] = None,
    target_units: Annotated[
        str | None, typer.Option(metavar="NAME", help="transduce: words or characters [words]")
    ] = None,
    labels: Annotated[int, typer.Option(metavar="N", help="number of labels to list, the most frequent first")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text, with all labels")] = False,
) -> None:
    """Check data files before training: counts, labels, unknown tokens, duplicates, and a baseline without learning.

    Reads files like train, and does not change them.
    """
    from seqwise.runs.inputs import read_examples, standard_input
    from seqwise.runs.inspection import inspect_data
    from seqwise.runs.settings import train_settings

    require_at_least_one("--labels", labels)
    if task not in ("tag", "transduce"):
        raise InputError(f"--task must be tag or transduce, got {task!r}")
    options: dict[str, Any] = {"token_column": token_column, "label_column": label_column}
    options |= {"source_units": source_units, "target_units": target_units}
    for name in ("source_units", "target_units"):
        if options[name] == "subwords":
            raise InputError(f"{name}: subwords are learned from the data by train", hint="give words or characters")
    settings = train_settings(task=task, **{name: value for name, value in options.items() if value is not None})
    paths = [standard_input() if str(path) == "-" else str(path) for path in (train, *(others or ()))]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise InputError("the file is given twice", path=twice, hint="give each file once")
    files = {path: read_examples(settings, path) for path in paths}
    inspections = inspect_data(files, tags=task == "tag")
    if as_json:
        print(json.dumps([asdict(file) for file in inspections], indent=1, ensure_ascii=False))
        return
    for place, file in enumerate(inspections):
        print("\n" * (place > 0) + file.name)
        for name, text in _rows(file, tags=task == "tag", most=labels):
            print_filled(f"  {name:<12}{text}", indent=14)


def _rows(file: FileInspection, *, tags: bool, most: int) -> Iterator[tuple[str, str]]:
    """Yield the rows of a file: a name and its text."""
    from seqwise.data.summary import MOST_FREQUENT

    counts = file.summary
    thing = "sentence" if tags else "pair"
    yield "examples", count_of(counts.examples, thing)
    yield "tokens", _tokens(counts.source_tokens, counts.source_types, counts.unseen_source_tokens)
    if file.in_another_form:
        forms = f"{file.in_another_form:,} of them are there in another Unicode form (NFC, NFD)"
        yield "", f"{forms}; normalise all files to one form"
    yield "lengths", _shown_lengths(file.source_lengths)
    kind = "labels" if tags else "targets"
    yield kind, _tokens(counts.target_tokens, counts.target_types, counts.unseen_target_tokens)
    if not tags:
        yield "lengths", f"{_shown_lengths(file.target_lengths)} (targets)"
    else:
        listed = [f"{label.name} {label.count:,}" for label in file.labels[:most]]
        rest = len(file.labels) - len(listed)
        yield "", ", ".join(listed) + (f" and {rest:,} more" if rest else "")
        new = [label.name for label in file.labels if not label.in_training_data]
        if new:
            yield "", f"not in the training data: {', '.join(new[:most])}" + (" ..." if len(new) > most else "")
    if file.odd_inside:
        odd = f"{count_of(file.odd_inside, 'I- label')} not after a B- or I- of the same type"
        yield "BIO errors", f"{odd}, first in {file.first_odd}"
    contradictions = f"{count_of(file.contradictions, 'source')} with different {kind}"
    yield "duplicates", f"{count_of(file.duplicates, thing)}; {contradictions}"
    if file.leaked is not None:
        yield "in training", f"{count_of(file.leaked, thing)}, {count_of(file.seen_sources or 0, 'source')}"
    if tags or file.leaked is not None:  # on training pairs, the baseline is nearly always right
        measures = ", ".join(f"{name} {measure_text(name, value)}" for name, value in file.baseline.items())
        yield "baseline", f"{measures} (%), by {MOST_FREQUENT['tag' if tags else 'transduce']}"
    if file.warning is not None:
        yield "warning", file.warning


def _tokens(tokens: int, types: int, unseen: int | None) -> str:
    text = f"{tokens:,}, {types:,} different"
    return text if unseen is None else f"{text}; {unseen:,} ({unseen / max(tokens, 1):.1%}) not in the training data"


def _shown_lengths(lengths: Lengths) -> str:
    return f"{lengths.least} to {lengths.most}, median {lengths.median:g}, 95% at most {lengths.most_of_them}"
