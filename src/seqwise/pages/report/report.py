"""Reports on runs: reading, measuring and drawing for each kind of run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.evaluation.signature import sha256_of_examples, sign, signature_line
from seqwise.pages.report.blocks import Block, Folded, Frames, Paragraph, Section, Table, Verdict
from seqwise.pages.report.chains import read_sampling
from seqwise.pages.report.curves import more_curves, settings_tables, so_far, training_figures
from seqwise.pages.report.drawing import Palette, lattice_palette
from seqwise.pages.report.examples import Searched, lattice_blocks, lattice_legend, search_example
from seqwise.pages.report.folders import Folder, read_folders
from seqwise.pages.report.masked import masked_verdict, metrics_tables, scored_blocks
from seqwise.pages.report.page import render_page, require_own, save_page
from seqwise.pages.report.results import (
    Result,
    comparable,
    development_lines,
    error_tables,
    output_listings,
    result_figure,
    result_of,
    result_tables,
    verdict,
)
from seqwise.pages.report.sampling import sampling_section, sampling_table, sampling_verdict
from seqwise.pages.report.slots import log_partition_blocks, slot_spread
from seqwise.runs.diagnosis import measure_log_partitions
from seqwise.runs.inputs import read_examples
from seqwise.runs.loading import load_run
from seqwise.runs.measures import require_known_target, signatures, unknown_targets, unread_sources
from seqwise.runs.paths import recorded_file
from seqwise.runs.run import OutputRun, reading_problems
from seqwise.training.processes import local_device

OnProgress = Callable[[str, int, int], None]
"""Function called with the name of a part, the amount done and the total."""

ROOM_FOR_LATTICES = 3_800_000  # characters, of the 5 MB that a page may have


@dataclass(frozen=True)
class ReportOptions:
    """Data and examples of a report.

    Args:
        files: data for the runs: none, one for all, or one for each.
        num_examples: number of examples to draw, starting from the first.
        chosen: numbers, from 1, of examples to draw instead.
        refresh: seconds between reloads of a page on an unfinished run; None for no reload.
    """

    files: Sequence[Path] = ()
    num_examples: int = 2
    chosen: Sequence[int] = ()
    refresh: int | None = None


DEVELOPMENT_DATA = "the development data"
CHOSEN_HERE = (
    "The checkpoint and the decoder were also chosen on these data. For numbers to report, give --file with examples "
    "from neither the training nor the development data."
)


@dataclass(frozen=True)
class Data:
    """Examples for a run."""

    name: str = ""
    examples: Sequence[Example] = ()
    is_given: bool = False  # by --file; else the development data, which training measured
    note: str = ""  # why there are no examples, or ""


@dataclass(frozen=True)
class Page:
    """State of a page that is being written."""

    files: Mapping[str, Path]  # by the name of the folder
    options: ReportOptions
    on_progress: OnProgress
    waits: bool = False  # for all runs to end; until then, no model is measured
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
    waits = options.refresh is not None and any(folder.is_unfinished for folder in folders)
    page = Page(_share_files(folders, options.files), options, on_progress or (lambda *_: None), waits)
    parts = {}
    for kind, title, build in (
        ("training", "Training runs", _training),
        ("masked model", "Masked models", _masked),
        ("samples", "Samples", _samples),
    ):
        if own := [folder for folder in folders if folder.kind == kind]:
            parts[title] = build(own, page)
    sections = (
        next(iter(parts.values()))
        if len(parts) == 1
        else [Section(title, [], sections) for title, sections in parts.items()]
    )
    about = [Folded("Runs of this page", [_overview(folders)])]
    if page.footer:
        about.append(Folded("Signatures", [Paragraph(line) for line in page.footer]))
    title = f"Report on {', '.join(folder.name for folder in folders)}"
    refresh = options.refresh if page.waits else None
    save_page(render_page(title, [*sections, Section("About this page", about)], refresh=refresh), output)


def watch_report(
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: ReportOptions | None = None,
    *,
    every: int = 10,
    on_progress: OnProgress | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Write a page again whenever its runs have logged more, until all are trained; only the last page measures them.

    Args:
        paths, output, options, on_progress: as in :func:`write_report`.
        every: seconds between two readings of the folders, and between reloads of the page.
        wait: called with ``every``.
    """
    options, seen = replace(options or ReportOptions(), refresh=every), None
    while True:
        folders = read_folders([Path(path) for path in paths])
        state = [
            (folder.is_unfinished, [(len(log), len(log.measured.get("step", ()))) for log in folder.logs])
            for folder in folders
        ]
        if state != seen:
            write_report(paths, output, options, on_progress=on_progress)
            seen = state
        if not any(folder.is_unfinished for folder in folders):
            return
        wait(every)


def _overview(folders: Sequence[Folder]) -> Table:
    columns = ("run", "kind", "folder", "state", "seed", "SHA-256 of the weights")
    rows = [
        [
            folder.name,
            "run of seqwise train" if folder.kind == "training" else folder.kind,
            str(folder.path),
            _state(folder),
            str(folder.settings.get("seed", "—")),
            (folder.weights or "—")[:12],
        ]
        for folder in folders
    ]
    return Table("Contents of this page", columns, rows)


def _state(folder: Folder) -> str:
    if folder.kind == "samples":
        return "sampled"
    steps = sum(int(log.columns["step"][-1]) for log in folder.logs)
    return f"{'trained' if folder.has_model else 'not finished'}, {steps:,} steps logged"


def _signed(method: str, folder: Folder, data: Data) -> str:
    seed = folder.settings.get("seed")
    digest = sha256_of_examples(data.examples) if data.examples else ""
    return f"{folder.name} — " + signature_line(
        sign(method, seeds=[seed] if isinstance(seed, int) else [], data=digest)
    )


def _training(folders: Sequence[Folder], page: Page) -> list[Section]:
    trained = [] if page.waits else [folder for folder in folders if folder.has_model]
    loaded = {folder.name: load_run(folder.path, device=local_device()) for folder in trained}
    data = {folder.name: _data(folder, loaded[folder.name], page.files.get(folder.name)) for folder in trained}
    results: list[Result] = []
    notes: list[Block] = []
    for number, folder in enumerate(folders):
        own = data.get(folder.name, Data())
        if own.note:
            notes.append(Paragraph(own.note))
        page.footer.append(_signed(f"{folder.settings['objective']}, {folder.settings['score']} scores", folder, own))
        if own.examples:
            run = loaded[folder.name]
            baseline = None if own.is_given else folder.baseline
            measuring = partial(page.on_progress, f"measuring {folder.name}")
            results.append(
                result_of(
                    run, folder, own.examples, number=number, data=own.name, baseline=baseline, on_progress=measuring
                )
            )
            page.footer.extend(f"{title}: {line}" for title, line in signatures(run, own.examples).items())
            doubts = (unread_sources(run, own.examples), unknown_targets(run, own.examples))
            notes += [Paragraph(f"{folder.name}: {doubt}.") for doubt in doubts if doubt is not None]
    groups = comparable(results)
    sections = [
        Section("Result", _first_screen(folders, groups, page), narrow=True),
        Section("Training", training_figures(folders), narrow=True),
        Section("Errors", [block for group in groups for block in error_tables(group)]),
        Section("Outputs and gold", [block for group in groups for block in output_listings(group)]),
        *_lattices(folders, loaded, data, page),
        Section("Details", _details(folders, loaded, data, results, notes)),
    ]
    return [section for section in sections if section.blocks or section.sections]


def _first_screen(folders: Sequence[Folder], groups: Sequence[Sequence[Result]], page: Page) -> list[Block]:
    blocks: list[Block] = []
    for group in groups:
        blocks += [Verdict(verdict(group)), result_figure(group)]
    if any(result.data == DEVELOPMENT_DATA for group in groups for result in group):
        blocks.append(Paragraph(CHOSEN_HERE))
    blocks += [Verdict(so_far(folder)) for folder in folders if not folder.has_model]
    measured = {result.name for group in groups for result in group}
    silent = [folder.name for folder in folders if folder.has_model and folder.name not in measured]
    if silent:
        when = "measured when all runs are trained" if page.waits else "not measured: give --file to see results"
        blocks.append(Verdict(f"{' and '.join(silent)}: trained, {when}."))
    return blocks


def _details(
    folders: Sequence[Folder],
    loaded: Mapping[str, OutputRun],
    data: Mapping[str, Data],
    results: Sequence[Result],
    notes: Sequence[Block],
) -> list[Block]:
    """Fold the blocks that few readers need."""
    with_data = {name: own.examples for name, own in data.items() if own.examples}
    reports = {name: measure_log_partitions(loaded[name], examples) for name, examples in with_data.items()}
    spreads = {name: slot_spread(loaded[name], examples) for name, examples in with_data.items()}
    by_position = log_partition_blocks(
        [folder.name for folder in folders],
        {name: report for name, report in reports.items() if report is not None},
        spreads,
    )
    summaries = [Paragraph(line) for line in map(development_lines, folders) if line]
    folded = [
        Folded("All measures", [*result_tables(results), *summaries]),
        Folded("More curves", more_curves(folders)),
        Folded("log Z and spread of slot scores, by position", by_position),
        Folded("Settings", settings_tables(folders)),
        Folded("Notes on the data", notes),
    ]
    return [each for each in folded if each.blocks]


def _lattices(
    folders: Sequence[Folder],
    loaded: Mapping[str, OutputRun],
    data: Mapping[str, Data],
    page: Page,
) -> list[Section]:
    """Draw the lattices of all runs for each chosen example on a common scale."""
    jobs = [
        (place, folder)
        for folder in folders
        if folder.name in data and data[folder.name].examples
        for place in _chosen_places(page.options, len(data[folder.name].examples), path=data[folder.name].name)
    ]
    jobs.sort(key=lambda job: job[0])  # stable: runs stay in their order
    searches: list[tuple[str, Searched | InputError]] = []
    for done, (place, folder) in enumerate(jobs):
        page.on_progress("drawing lattices", done, len(jobs))
        example, run = data[folder.name].examples[place], loaded[folder.name]
        problem = next(reading_problems(run, [example]))
        searched = problem or search_example(run, example, place + 1, name=folder.name, logs=folder.logs)
        searches.append((f"Example {place + 1}, {folder.name}", searched))
    page.on_progress("drawing lattices", len(jobs), len(jobs))
    drawn = [searched for _, searched in searches if isinstance(searched, Searched)]
    without_gold = [lattice for searched in drawn if searched.gold is None for lattice in searched.all_lattices]
    palettes = {True: Palette(0.0, 1.0), False: lattice_palette(without_gold)}
    blocks: list[Block] = [lattice_legend(drawn, palettes[False])] if drawn else []
    room = ROOM_FOR_LATTICES
    for title, searched in searches:
        if isinstance(searched, InputError):
            blocks.append(Paragraph(f"{title}: the run cannot read this example: {searched}."))
            continue
        inner = lattice_blocks(searched, palettes[searched.gold is not None])
        room -= _size(inner)
        if room < 0:
            blocks.append(Paragraph(f"{title} is left out: the page would be too large. Ask for fewer examples."))
        else:
            blocks.append(Folded(title, inner, is_open=len(blocks) == 1))
    return [Section("Beam lattices", blocks)] if searches else []


def _size(blocks: Sequence[Block]) -> int:
    """Count the characters of drawings."""
    frames = [block for block in blocks if isinstance(block, Frames)]
    return sum(len(drawing) for block in frames for _, drawings in block.panels for drawing in drawings)


def _masked(folders: Sequence[Folder], page: Page) -> list[Section]:
    verdicts: list[Block] = []
    results: list[Block] = []
    for folder in folders:
        file, data = page.files.get(folder.name), Data()
        verdict = Verdict(masked_verdict(folder) if folder.has_model else so_far(folder))
        if not folder.has_model:
            results.append(Paragraph(f"{folder.name} has no trained model yet."))
        elif file is None:
            results.append(Paragraph(f"{folder.name} scores no sequences without --file."))
        elif page.waits:
            results.append(Paragraph(f"{folder.name} is scored when all runs are trained."))
        else:
            run = load_run(folder.path, device=local_device())
            data = Data(str(file), run.codec.read(file), is_given=True)
            chosen = _chosen_places(page.options, len(data.examples), path=data.name)
            scored = partial(page.on_progress, f"scoring with {folder.name}")
            verdict, scores = scored_blocks(
                run, data.examples, chosen, name=folder.name, file=file.name, on_progress=scored
            )
            results += scores
        verdicts.append(verdict)
        page.footer.append(_signed(f"masked {folder.settings['model']}", folder, data))
    return [
        Section("Result", [*verdicts, *results]),
        Section("Training", training_figures(folders)),
        Section(
            "Details",
            [
                Folded("At the end of training", metrics_tables(folders)),
                Folded("More curves", more_curves(folders)),
                Folded("Settings", settings_tables(folders)),
            ],
        ),
    ]


def _samples(folders: Sequence[Folder], page: Page) -> list[Section]:
    samplings = {}
    for done, folder in enumerate(folders):
        page.on_progress("reading chains", done, len(folders))
        samplings[folder.name] = read_sampling(folder)
        page.footer.append(_signed(f"{folder.settings.get('kernel')}", folder, Data()))
    page.on_progress("reading chains", len(folders), len(folders))
    shown = list(page.options.chosen) or list(range(1, page.options.num_examples + 1))
    for name, sampling in samplings.items():
        known = {chains.problem for chains in sampling.problems}
        wrong = [number for number in page.options.chosen if number not in known]
        if wrong:
            problem = f"--example {wrong[0]} is not a problem of {name}"
            raise InputError(problem, hint=f"give a number from {min(known)} to {max(known)}")
    verdicts = [Verdict(sampling_verdict(name, sampling)) for name, sampling in samplings.items()]
    return [
        Section("Result", [*verdicts, sampling_table(samplings)]),
        *(sampling_section(folder, samplings[folder.name], shown) for folder in folders),
        Section("Details", [Folded("Settings", settings_tables(folders))]),
    ]


def _share_files(folders: Sequence[Folder], files: Sequence[Path]) -> dict[str, Path]:
    """Assign the files to the runs that read data, by name."""
    readers = [folder for folder in folders if folder.kind != "samples"]
    if not files:
        return {}
    if not readers:
        raise InputError("--file: a report on samples alone reads no data", hint="leave it out")
    if len(files) not in (1, len(readers)):
        runs = "runs that read" if len(readers) > 1 else "run that reads"
        problem = f"--file: {len(files)} files for {len(readers)} {runs} one"
        raise InputError(problem, hint="give one file for all runs, or one for each, in order")
    given = files if len(files) == len(readers) else [files[0]] * len(readers)
    return {folder.name: file for folder, file in zip(readers, given, strict=True)}


def _data(folder: Folder, run: OutputRun, file: Path | None) -> Data:
    """Read examples for a run; missing development data give a note, not an error."""
    if file is not None:
        examples = read_examples(run.settings, file)
        require_known_target(run, examples)
        return Data(str(file), examples, is_given=True)
    dev, without = run.settings.dev, "give --file to see results with intervals, log Z by position and lattices"
    if dev is None:
        return Data(note=f"{folder.name} was trained without development data: {without}.")
    try:
        return Data(DEVELOPMENT_DATA, read_examples(run.settings, recorded_file(dev, folder.path)))
    except InputError as error:
        return Data(note=f"The development data of {folder.name} cannot be read ({error}): {without}.")


def _chosen_places(options: ReportOptions, number: int, *, path: str) -> list[int]:
    """Return the indices of the examples to draw."""
    for chosen in options.chosen:
        if not 1 <= chosen <= number:
            problem = f"--example {chosen} is out of range: there are {number:,}"
            raise InputError(problem, path=path or None, hint=f"give a number from 1 to {number}")
    return [chosen - 1 for chosen in dict.fromkeys(options.chosen)] or list(range(number))[: options.num_examples]
