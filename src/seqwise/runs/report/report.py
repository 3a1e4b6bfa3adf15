"""Report on runs: reading, measuring and drawing for each kind of run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Estimate, bootstrap_interval
from seqwise.evaluation.signature import sha256_of_examples, sign, signature_line
from seqwise.runs.decoder_choice import decoders_for
from seqwise.runs.inputs import read_examples, recorded_file
from seqwise.runs.loading import load_run
from seqwise.runs.measures import measure, signatures, unknown_targets, unread_sources
from seqwise.runs.report.blocks import Block, Frames, Ids, Paragraph, Section, Table
from seqwise.runs.report.chains import read_sampling
from seqwise.runs.report.curves import curve_blocks, settings_tables
from seqwise.runs.report.examples import lattice_blocks
from seqwise.runs.report.folders import Folder, Kind, read_folders
from seqwise.runs.report.masked import metrics_tables, scored_blocks
from seqwise.runs.report.page import render_page, require_own, save_page
from seqwise.runs.report.sampling import sampling_section, sampling_table
from seqwise.runs.report.training import (
    decoder_tables,
    log_partition_blocks,
    measured_log_partitions,
    slot_spread,
)
from seqwise.runs.run import MaskedRun, OutputRun, reading_problems

OnProgress = Callable[[str, int, int], None]
"""Called with the name of a part, the amount done, and the total."""

ROOM_FOR_LATTICES = 3_800_000  # characters, of the 5 MB that a page may have


@dataclass(frozen=True)
class ReportOptions:
    """Data and examples of a report.

    Args:
        files: data for the runs: none, one for all, or one for each.
        num_examples: number of examples to draw, from the first on.
        chosen: numbers, from 1, of examples to draw instead.
    """

    files: Sequence[Path] = ()
    num_examples: int = 2
    chosen: Sequence[int] = ()


@dataclass(frozen=True)
class Data:
    """Examples for a run."""

    name: str = ""
    examples: Sequence[Example] = ()
    is_given: bool = False  # by --file; else they are the development data, already measured
    note: str = ""  # the reason for no examples, or ""


@dataclass(frozen=True)
class Page:
    """State of a page that is being written."""

    files: Mapping[str, Path]  # by the name of the folder
    options: ReportOptions
    on_progress: OnProgress
    ids: Ids = field(default_factory=Ids)
    footer: list[str] = field(default_factory=list)  # signatures, a line each


def write_report(
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: ReportOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> None:
    """Write a self-contained page on one or several run folders.

    It shows settings and signatures; training curves; results with bootstrap intervals; log Z and the spread of slot
    scores by position; the lattices of hard and relaxed beams; and the energies, acceptance, novelty, R-hat, effective
    sample size, autocorrelation and sequences of samples.

    Args:
        paths: the outputs of ``seqwise train``, ``masked-model train`` and ``sample``.
        output: the page; an older report is replaced, any other file is not.
        options: data and examples; by default the development data.
        on_progress: called with the name of a part, the amount done, and the total.

    Raises:
        InputError: a folder, a file or the output cannot be used, matplotlib is missing, or the page is too large.
    """
    options, output = options or ReportOptions(), Path(output)
    require_own(output)
    folders = read_folders([Path(path) for path in paths])
    page = Page(_share_files(folders, options.files), options, on_progress or (lambda *_: None))
    sections = [Section("Runs", [_overview(folders)])]
    for kind, build in (("training", _training), ("masked model", _masked), ("samples", _samples)):
        own = [folder for folder in folders if folder.kind == kind]
        if own:
            sections.append(build(own, page))
    title = f"Report on {', '.join(folder.name for folder in folders)}"
    save_page(render_page(title, sections, page.footer), output)


def _overview(folders: Sequence[Folder]) -> Table:
    columns = ("run", "kind", "folder", "state", "seed", "SHA-256 of the weights")
    rows = [
        [
            folder.name,
            KIND_NAMES[folder.kind],
            str(folder.path),
            _state(folder),
            str(folder.settings.get("seed", "—")),
            (folder.weights or "—")[:12],
        ]
        for folder in folders
    ]
    return Table("What this page is on", columns, rows)


KIND_NAMES: Mapping[Kind, str] = {
    "training": "run of seqwise train",
    "masked model": "masked model",
    "samples": "samples",
}
"""Names of the kinds of folders on pages."""


def _state(folder: Folder) -> str:
    if folder.kind == "samples":
        return "sampled"
    steps = sum(int(log.columns["step"][-1]) for log in folder.logs)
    return f"{'trained' if folder.has_model else 'still training'}, {steps:,} steps logged"


def _signed(method: str, folder: Folder, data: Data) -> str:
    seed = folder.settings.get("seed")
    digest = sha256_of_examples(data.examples) if data.examples else ""
    return f"{folder.name} — " + signature_line(
        sign(method, seeds=[seed] if isinstance(seed, int) else [], data=digest)
    )


def _training(folders: Sequence[Folder], page: Page) -> Section:
    loaded = {folder.name: load_run(folder.path) for folder in folders if folder.has_model}
    data = {
        folder.name: _data(folder, loaded[folder.name], page.files.get(folder.name))
        for folder in folders
        if folder.name in loaded
    }
    measured: dict[str, dict[str, dict[str, Estimate]]] = {}
    notes: list[Block] = []
    for folder in folders:
        own = data.get(folder.name, Data(note=f"{folder.name} has no trained model yet."))
        if own.note:
            notes.append(Paragraph(own.note))
        page.footer.append(_signed(f"{folder.settings['objective']}, {folder.settings['score']} scores", folder, own))
        if own.is_given:
            run = loaded[folder.name]
            measured[folder.name] = _measured(run, own, folder.name, page.on_progress)
            page.footer.extend(f"{title}: {line}" for title, line in signatures(run, own.examples).items())
            doubts = (unread_sources(run, own.examples), unknown_targets(run, own.examples))
            notes += [Paragraph(f"{folder.name}: {doubt}.") for doubt in doubts if doubt is not None]
    results = decoder_tables(folders, measured, {name: own.name for name, own in data.items()})
    with_data = {name: own.examples for name, own in data.items() if own.examples}
    reports = {name: measured_log_partitions(loaded[name], examples) for name, examples in with_data.items()}
    spreads = {name: slot_spread(loaded[name], examples) for name, examples in with_data.items()}
    by_position = log_partition_blocks(
        [folder.name for folder in folders],
        {name: report for name, report in reports.items() if report is not None},
        spreads,
        ids=page.ids,
    )
    sources = [Paragraph(f"{name}: on {data[name].name}.") for name in with_data]
    return Section(
        "Training runs",
        notes,
        [
            Section("Settings", settings_tables(folders)),
            Section("Results", results or [Paragraph("Nothing has been measured.")]),
            Section("Training, step by step", curve_blocks(folders, ids=page.ids)),
            *([Section("The saved model: log Z and slots", [*sources, *by_position])] if by_position else []),
            *_lattices(folders, loaded, data, page),
        ],
    )


def _measured(run: OutputRun, data: Data, name: str, on_progress: OnProgress) -> dict[str, dict[str, Estimate]]:
    estimates, decoders = {}, decoders_for(run.settings)
    for done, decoder in enumerate(decoders):
        on_progress(f"measuring {name}", done, len(decoders))
        measures = measure(run, data.examples, decoder)
        estimates[decoder] = {title: bootstrap_interval(sums) for title, sums in measures.items()}
    on_progress(f"measuring {name}", len(decoders), len(decoders))
    return estimates


def _lattices(
    folders: Sequence[Folder],
    loaded: Mapping[str, OutputRun],
    data: Mapping[str, Data],
    page: Page,
) -> list[Section]:
    """Draw the lattices of all runs for each chosen example."""
    jobs = [
        (place, folder)
        for folder in folders
        if folder.name in data and data[folder.name].examples
        for place in _chosen_places(page.options, len(data[folder.name].examples), path=data[folder.name].name)
    ]
    jobs.sort(key=lambda job: job[0])  # stable: runs stay in their order
    sections: dict[int, list[Block]] = {}
    taken = 0
    for done, (place, folder) in enumerate(jobs):
        page.on_progress("drawing lattices", done, len(jobs))
        example, run = data[folder.name].examples[place], loaded[folder.name]
        problem = next(reading_problems(run, [example]))
        if problem is not None:
            sections.setdefault(place, []).append(Paragraph(f"{folder.name} cannot read this example: {problem}."))
            continue
        blocks = lattice_blocks(run, example, place + 1, name=folder.name, logs=folder.logs, ids=page.ids)
        size = sum(
            len(drawing)
            for block in blocks
            if isinstance(block, Frames)
            for _, drawings in block.panels
            for drawing in drawings
        )
        if taken + size > ROOM_FOR_LATTICES:
            blocks = [
                Paragraph(f"{folder.name} is left out here: the page would be too large. Ask for fewer examples.")
            ]
        else:
            taken += size
        sections.setdefault(place, []).extend(blocks)
    page.on_progress("drawing lattices", len(jobs), len(jobs))
    if not sections:
        return []
    legend = Paragraph(
        "A box is a slot of the beam after a step, with its heaviest token (and its weight, where others share the"
        " slot). A line is as opaque as its back-pointer weight, the part of the slot that comes from the one before;"
        " below 0.01 it is not drawn. A thick blue border: the heaviest token is the gold one at that place. Point at a"
        " box for its numbers. The slider goes from soft to hard."
    )
    inner = [Section(f"Example {place + 1}", blocks) for place, blocks in sorted(sections.items())]
    return [Section("Beam lattices", [legend], inner)]


def _masked(folders: Sequence[Folder], page: Page) -> Section:
    results = metrics_tables(folders)
    for folder in folders:
        data = Data(note=f"{folder.name} has no trained model yet.")
        if folder.has_model:
            run = load_run(folder.path)
            data = _sequence_data(folder, run, page.files.get(folder.name))
            if data.is_given:
                total = len(data.examples)
                chosen = _chosen_places(page.options, total, path=data.name)
                scored = partial(page.on_progress, f"scoring with {folder.name}")
                results += scored_blocks(run, data.examples, chosen, name=folder.name, on_progress=scored)
        results += [Paragraph(data.note)] if data.note else []
        page.footer.append(_signed(f"masked {folder.settings['model']}", folder, data))
    note = Paragraph("Training logs loss, learning rate and gradient norm at every step, and nothing else.")
    return Section(
        "Masked models",
        [note],
        [
            Section("Settings", settings_tables(folders)),
            Section("Results", results),
            Section("Training, step by step", curve_blocks(folders, ids=page.ids)),
        ],
    )


def _samples(folders: Sequence[Folder], page: Page) -> Section:
    samplings = {}
    for done, folder in enumerate(folders):
        page.on_progress("reading chains", done, len(folders))
        samplings[folder.name] = read_sampling(folder)
        page.footer.append(_signed(f"{folder.settings.get('kernel')}", folder, Data()))
    page.on_progress("reading chains", len(folders), len(folders))
    shown = list(page.options.chosen) or list(range(1, page.options.num_examples + 1))
    for name, sampling in samplings.items():
        known = {chains.problem for chains in sampling.problems if chains.problem is not None}
        wrong = [number for number in page.options.chosen if known and number not in known]
        if wrong:
            problem = f"--example {wrong[0]} is none of the problems of {name}"
            raise InputError(problem, hint=f"give a number from {min(known)} to {max(known)}")
    return Section(
        "Samples",
        [sampling_table(samplings)],
        [
            Section("Settings", settings_tables(folders)),
            *(sampling_section(folder, samplings[folder.name], shown, ids=page.ids) for folder in folders),
        ],
    )


def _share_files(folders: Sequence[Folder], files: Sequence[Path]) -> dict[str, Path]:
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


def _sequence_data(folder: Folder, run: MaskedRun, file: Path | None) -> Data:
    """Read sequences for a masked model."""
    if file is None:
        return Data(note=f"Without --file nothing is scored by {folder.name}.")
    return Data(str(file), run.codec.read(file), is_given=True)


def _data(folder: Folder, run: OutputRun, file: Path | None) -> Data:
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


def _chosen_places(options: ReportOptions, number: int, *, path: str) -> list[int]:
    """Return the indices of the examples to draw."""
    for chosen in options.chosen:
        if not 1 <= chosen <= number:
            problem = f"--example {chosen} is none of the {number:,} that there are"
            raise InputError(problem, path=path or None, hint=f"give a number from 1 to {number}")
    return [chosen - 1 for chosen in dict.fromkeys(options.chosen)] or list(range(number))[: options.num_examples]
