"""Data of each run of a report: the given file, or its development data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.runs.inputs import read_examples, recorded_file
from seqwise.runs.report.folders import Folder
from seqwise.runs.run import MaskedRun, OutputRun


@dataclass(frozen=True)
class Asked:
    """What a report is asked for.

    Args:
        files: data for the runs: none, one for all of them, or one for each.
        num_examples: how many examples are drawn, the first ones.
        chosen: numbers, from 1, of examples that are drawn instead.
    """

    files: Sequence[Path] = ()
    num_examples: int = 2
    chosen: Sequence[int] = ()


@dataclass(frozen=True)
class Data:
    """Examples for a run."""

    name: str = ""  # what they are called in the report
    examples: Sequence[Example] = ()
    is_given: bool = False  # whether they were asked for; else they are the development data, already measured
    note: str = ""  # why there are none, or ""


def share_files(folders: Sequence[Folder], files: Sequence[Path]) -> dict[str, Path]:
    """Assign the files to the runs that read data, by name."""
    readers = [folder for folder in folders if folder.kind != "samples"]
    if not files:
        return {}
    if not readers:
        raise InputError("--file: samples are shown as they are, and read no data", hint="leave it out")
    if len(files) not in (1, len(readers)):
        problem = f"--file: {len(files)} files for {len(readers)} runs that read one"
        raise InputError(problem, hint="give one for all of them, or one for each in their order")
    given = files if len(files) == len(readers) else [files[0]] * len(readers)
    return {folder.name: file for folder, file in zip(readers, given, strict=True)}


def read_sequence_data(folder: Folder, run: MaskedRun, file: Path | None) -> Data:
    """Read sequences for a masked model."""
    if file is None:
        return Data(note=f"Without --file nothing is scored by {folder.name}.")
    return Data(str(file), run.codec.read(file), is_given=True)


def read_data(folder: Folder, run: OutputRun, file: Path | None) -> Data:
    """Read examples for a run; missing development data are noted, not refused."""
    if file is not None:
        return Data(str(file), read_examples(run.settings, file), is_given=True)
    dev, without = run.settings.dev, "give --file to see results with intervals, log Z by position and lattices"
    if dev is None:
        return Data(note=f"{folder.name} was trained without development data: {without}.")
    try:
        return Data(f"its development data ({dev})", read_examples(run.settings, recorded_file(dev, folder.path)))
    except InputError as error:
        return Data(note=f"The development data of {folder.name} cannot be read ({error}): {without}.")


def chosen_places(asked: Asked, number: int, *, path: str) -> list[int]:
    """Return the indices of the examples to draw."""
    for one in asked.chosen:
        if not 1 <= one <= number:
            problem = f"--example {one} is none of the {number:,} that there are"
            raise InputError(problem, path=path or None, hint=f"give a number from 1 to {number}")
    return (
        [one - 1 for one in dict.fromkeys(asked.chosen)] if asked.chosen else list(range(number))[: asked.num_examples]
    )
