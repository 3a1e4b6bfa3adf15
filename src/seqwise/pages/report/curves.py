"""Settings and training curves of runs, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seqwise.names import measure_heading, measure_scale, measure_text
from seqwise.pages.report.blocks import Block, Key, Paragraph, Table, plain_number
from seqwise.pages.report.folders import Folder, StageLog
from seqwise.pages.report.plots import Line, Panel, line_plot, panel_plot

Columns = Mapping[str, Sequence[float]]

TITLES = {
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm, before clipping",
    "alpha": "Alpha, the inverse temperature of the relaxation",
    "gold_probability": "Mixing: probability of feeding gold tokens",
}
SPANS_MAGNITUDES = ("gradient_norm", "alpha")
ROWS = 10  # of a table of values


def settings_tables(folders: Sequence[Folder]) -> list[Block]:
    """Make tables of settings: those that differ between runs, and, folded, all others."""
    if not folders:
        return []
    shown = [{name: shown_value(value) for name, value in folder.settings.items()} for folder in folders]
    rows = side_by_side(shown, missing="not read")
    columns = ["setting", *(folder.name for folder in folders)]
    other = [row for row in rows if len(set(row[1:])) > 1]
    same = [row[:2] for row in rows if len(set(row[1:])) == 1]
    blocks: list[Block] = []
    if other:
        blocks.append(Table("Settings that differ", columns, other))
    what = "All settings" if len(folders) == 1 else "Settings shared by all runs"
    blocks.append(Table(what, ["setting", "value"], same, folded=True))
    return blocks


def side_by_side(values: Sequence[Mapping[str, str]], *, missing: str) -> list[list[str]]:
    """Make rows of values by name, with a column for each run.

    Example:
        >>> side_by_side([{"a": "1"}, {"a": "2", "b": "3"}], missing="-")
        [['a', '1', '2'], ['b', '-', '3']]
    """
    names = dict.fromkeys(name for own in values for name in own)
    return [[name, *(own.get(name, missing) for own in values)] for name in names]


def shown_value(value: Any) -> str:
    """Format the value of a setting.

    Example:
        >>> shown_value(None), shown_value(True), shown_value([3, 2]), shown_value("")
        ('not set', 'yes', '3, 2', 'none')
    """
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"


def training_figures(folders: Sequence[Folder]) -> list[Block]:
    """Plot the loss and, below it on the same axis, the development measure that decides early stopping.

    The stages of a run follow each other.
    """
    with_logs = [folder for folder in folders if folder.logs]
    if not with_logs:
        return [Paragraph("No step of training has been logged.")]
    units = list(dict.fromkeys(folder.loss_unit for folder in with_logs if folder.loss_unit))
    label = f"Training loss, {units[0]}" if len(units) == 1 else "Training loss"
    panels = [Panel(label, _lines(folders, lambda log: log.columns, "loss"))]
    for quantity in dict.fromkeys(map(_decisive, with_logs)):
        if quantity is not None:
            lines = _lines(folders, lambda log: log.measured, quantity)
            heading = measure_heading(quantity.replace("_", " "))
            panels.append(Panel(f"Development data: {heading}", [_shown(quantity, line) for line in lines]))
    panels = [Panel(panel.label, [line for line in panel.lines if line.xs]) for panel in panels]
    borders = _borders(with_logs)
    notes = (
        [] if len(units) == 1 else [f"{folder.name}: {folder.loss_unit}." for folder in with_logs if folder.loss_unit]
    )
    notes += ["Dotted lines mark ends of stages; losses of different objectives are not comparable."] if borders else []
    notes += [
        f"{folder.name}: " + ", then ".join(f"{log.objective} ({len(log):,} steps)" for log in folder.logs) + "."
        for folder in with_logs
        if len(folder.logs) > 1
    ]
    # A run with development data may not have been measured yet.
    if folders[0].kind == "training" and any(folder.settings.get("dev") is None for folder in with_logs):
        notes.append("Without --dev, there is no development curve.")
    title = "Loss and development measure, by step"
    figure = panel_plot(title, panels, x_label="step", borders=borders, note=" ".join(notes))
    return [*_keys(folders), figure]


def _keys(folders: Sequence[Folder]) -> list[Block]:
    return [Key([folder.name for folder in folders])] if len(folders) > 1 else []


def _decisive(folder: Folder) -> str | None:
    """Return the first development measure, which decides early stopping."""
    names = [name for log in folder.logs for name in log.measured if name != "step"]
    return names[0] if names else None


def _shown(quantity: str, line: Line) -> Line:
    """Convert a quantity to the unit of its heading."""
    return Line(line.name, line.xs, [measure_scale(quantity) * y for y in line.ys], line.number)


def so_far(folder: Folder) -> str:
    """Describe the progress of an unfinished run."""
    if not folder.logs:
        return f"{folder.name} has begun; no step has been logged yet."
    log = folder.logs[-1]
    text = f"{folder.name} has not finished: {log.name}, step {plain_number(log.columns['step'][-1])}"
    text += f", loss {log.columns['loss'][-1]:.3f}"
    quantity = _decisive(folder)
    values = [value for log in folder.logs for value in log.measured.get(quantity or "", ())]
    if quantity is None or not values:
        return f"{text}."
    best_of = min if "error" in quantity or "entropy" in quantity else max
    last, best = (measure_text(quantity, value) for value in (values[-1], best_of(values)))
    return f"{text}; {quantity.replace('_', ' ')} on development data {last}, best {best}."


def more_curves(folders: Sequence[Folder]) -> list[Block]:
    """Plot the other quantities of the training logs, with their values in folded tables."""
    with_logs = [folder for folder in folders if folder.logs]
    if not with_logs:
        return []
    blocks: list[Block] = _keys(folders)
    for quantity, title in TITLES.items():
        lines = _lines(folders, lambda log: log.columns, quantity)
        logarithmic = quantity in SPANS_MAGNITUDES
        blocks += _plot(title, lines, borders=_borders(with_logs), logarithmic=logarithmic)
    blocks += _measured_plots(folders)
    for folder in with_logs:
        blocks += _tables(folder)
    return blocks


def _measured_plots(folders: Sequence[Folder]) -> list[Block]:
    """Plot the development measures that do not decide."""
    quantities = dict.fromkeys(name for folder in folders for log in folder.logs for name in log.measured)
    drawn = {"step", *map(_decisive, folders)}
    blocks: list[Block] = []
    for quantity in [name for name in quantities if name not in drawn]:
        lines = _lines(folders, lambda log: log.measured, quantity)
        title = f"{quantity[:1].upper()}{quantity[1:].replace('_', ' ')}, on a sample of the development data"
        blocks += _plot(title, lines, borders=_borders(folders))
    return blocks


def _lines(folders: Sequence[Folder], columns_of: Callable[[StageLog], Columns], quantity: str) -> list[Line]:
    """Make a line for each run."""
    return [
        Line(folder.name, *_joined(folder, columns_of, quantity), number=place) for place, folder in enumerate(folders)
    ]


def _plot(title: str, lines: Sequence[Line], *, borders: Sequence[float], **style: Any) -> list[Block]:
    """Make a plot, or nothing if there are no points."""
    drawn = [line for line in lines if line.xs]
    return [line_plot(title, drawn, x_label="step", borders=borders, **style)] if drawn else []


def _joined(
    folder: Folder, columns_of: Callable[[StageLog], Columns], quantity: str
) -> tuple[list[float], list[float]]:
    """Concatenate a quantity over the stages of a run; a stage without it leaves a gap."""
    xs: list[float] = []
    ys: list[float] = []
    begun = 0.0
    for log in folder.logs:
        columns = columns_of(log)
        if quantity in columns:
            xs += [begun + step for step in columns["step"]]
            ys += columns[quantity]
        elif xs:
            xs.append(begun + 1)
            ys.append(math.nan)
        begun += log.columns["step"][-1]
    return xs, ys


def _borders(folders: Sequence[Folder]) -> list[float]:
    """Return the steps at which stages end."""
    ends = set()
    for folder in folders:
        begun = 0.0
        for log in folder.logs[:-1]:
            begun += log.columns["step"][-1]
            ends.add(begun + 0.5)
    return sorted(ends)


def _tables(folder: Folder) -> list[Table]:
    tables = []
    for log in folder.logs:
        quantities = [name for name in log.columns if name != "step"]
        places = sorted({round(part * (len(log) - 1) / (ROWS - 1)) for part in range(ROWS)})
        rows = [
            [plain_number(log.columns["step"][place]), *(plain_number(log.columns[name][place]) for name in quantities)]
            for place in places
        ]
        columns = ["step", *(name.replace("_", " ") for name in quantities)]
        tables.append(Table(f"{folder.name}, {log.name}: values at selected steps", columns, rows, folded=True))
    return tables
