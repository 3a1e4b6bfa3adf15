"""A number with how it was made: `Signature`, `Result`, `Table`; printed with rich, kept as JSON.

Printing a `Table` on a rich console gives systems in rows and measures in columns, or one line per number where that
does not fit. The JSON is the same on every machine for equal tables: sorted keys, floats of 10 significant digits.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import rich.box
import rich.table
import torch
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, bootstrap_interval

__all__ = [
    "Result",
    "Signature",
    "Table",
    "describe_machine",
    "load_table",
    "percent_result",
    "save_table",
    "sha256_of_examples",
    "sign",
    "signature_line",
]


class SourceAndTarget(Protocol):
    """What is hashed of an example: any object with these two attributes, such as `seqwise.data` examples."""

    @property
    def source(self) -> Sequence[str]: ...
    @property
    def target(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Signature:
    """What one needs to know to make a number again; `sign` fills it in, `signature_line` prints it.

    ``data`` is the SHA-256 of the evaluated examples, ``date`` the day in UTC, ``revision`` git's name for the source
    that ran (ending in "-dirty" where it had been edited), or None outside a checkout.
    """

    method: str
    seeds: tuple[int, ...]
    data: str
    seqwise: str
    torch: str
    python: str
    machine: str
    date: str
    revision: str | None = None

    def __post_init__(self) -> None:
        for name in ("method", "data", "seqwise", "torch", "python", "machine", "date"):
            _check_text(name, getattr(self, name))
        if self.revision is not None:
            _check_text("revision", self.revision)
        if not all(isinstance(seed, int) for seed in self.seeds):
            raise InputError(f"seeds must be whole numbers, got {self.seeds!r}")
        object.__setattr__(self, "seeds", tuple(self.seeds))


@dataclass(frozen=True)
class Result:
    """One measured number of one system.

    Args:
        system: what was measured (the table's row).
        measure: the name of the measure (the table's column).
        value: the number, in ``unit``.
        signature: how it was made.
        low, high: the ends of its confidence interval, in ``unit``.
        p_value: of the comparison that the table's note names.
        published: the number in the paper, to compare with.
        unit: "%" by default; "" for a bare number.

    Raises:
        InputError: a number that is not finite (JSON has no word for it), or a field of the wrong type.
    """

    system: str
    measure: str
    value: float
    signature: Signature
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    published: float | None = None
    unit: str = "%"

    def __post_init__(self) -> None:
        for name in ("system", "measure", "unit"):
            _check_text(name, getattr(self, name))
        for name in ("value", "low", "high", "p_value", "published"):
            number = getattr(self, name)
            if number is None and name != "value":
                continue
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            # Rounded here and not when writing, so that a table equals what is loaded back.
            rounded = float(f"{number:.10g}") if is_number else math.nan
            if not math.isfinite(rounded):
                raise InputError(f"{name} of {self.system!r} must be a finite number, got {number!r}")
            object.__setattr__(self, name, rounded)


@dataclass(frozen=True)
class Table:
    """Results under a title; `console.print(table)` renders it at the console's width."""

    title: str
    results: tuple[Result, ...]
    note: str = ""

    def __post_init__(self) -> None:
        _check_text("title", self.title)
        _check_text("note", self.note)
        object.__setattr__(self, "results", tuple(self.results))
        seen: set[tuple[str, str]] = set()
        for result in self.results:
            if (result.system, result.measure) in seen:
                raise InputError(f"two results for {result.system!r} and {result.measure!r} in {self.title!r}")
            seen.add((result.system, result.measure))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="bold")
        grid = _grid(self)
        # A number is never cut: a grid that would need more than the width becomes a list.
        fits = Measurement.get(console, options.update(width=10_000), grid).minimum <= options.max_width
        yield grid if fits else _list(self)
        if self.note:
            yield Text(self.note)
        for line in dict.fromkeys(signature_line(result.signature) for result in self.results):
            yield Text(line, style="dim", overflow="fold")


def sign(method: str, *, seeds: Iterable[int], data: str) -> Signature:
    """Signature of a number made here, now, by this code.

    Args:
        method: what was run, in the field's words.
        seeds: of every training or sampling run that went in.
        data: SHA-256 of the evaluated examples, from `sha256_of_examples`.

    Example:
        >>> signature = sign("beam search, k = 3", seeds=[1, 2], data=sha256_of_examples([]))
        >>> signature_line(signature).startswith("method:beam search, k = 3 | seeds:1,2 | data:e3b0c44298fc | seqwise:")
        True
    """
    return Signature(
        method=method,
        seeds=tuple(seeds),
        data=data,
        seqwise=_own_version(),
        torch=str(torch.__version__),
        python=platform.python_version(),
        machine=describe_machine(),
        date=datetime.now(UTC).date().isoformat(),
        revision=_git_revision(Path(__file__)),
    )


def signature_line(signature: Signature) -> str:
    """The signature on one line, fields joined by " | ", the data hash cut to 12 digits; unknown fields left out.

    Example:
        >>> print(signature_line(Signature("greedy", (7,), "ab" * 32, "0.1.0", "2.13.0", "3.11.4", "4 cores", "2026-01-31")))
        method:greedy | seeds:7 | data:abababababab | seqwise:0.1.0 | torch:2.13.0 | python:3.11.4 | machine:4 cores | date:2026-01-31
    """  # noqa: E501  (the example shows the line whole)
    shown = {field.name: getattr(signature, field.name) for field in fields(signature)}
    shown |= {"seeds": ",".join(map(str, signature.seeds)), "data": signature.data[:12]}
    return " | ".join(f"{name}:{' '.join(text.split())}" for name, text in shown.items() if text)


def percent_result(
    counts: Counts,
    *,
    system: str,
    measure: str,
    signature: Signature,
    published: float | None = None,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Result:
    """A measure's counts as a result in per cent, with its bootstrap interval.

    Args:
        counts: from a function of `seqwise.evaluation.metrics`.
        system, measure, signature, published: as in `Result`; ``published`` in per cent.
        confidence, resamples, seed: as in `bootstrap_interval`.

    Example:
        >>> signature = sign("greedy", seeds=[1], data="00")
        >>> percent_result(Counts([1, 1, 1, 0]), system="tagger", measure="accuracy", signature=signature).value
        75.0
    """
    estimate = bootstrap_interval(counts, confidence=confidence, resamples=resamples, seed=seed)
    value, low, high = (100 * end for end in estimate)
    return Result(system, measure, value, signature, low=low, high=high, published=published)


def sha256_of_examples(examples: Iterable[SourceAndTarget]) -> str:
    """SHA-256, in hexadecimal, of the sources and targets of the examples in order.

    Where they were read from does not count: a copy of a file under another name has the same hash. Each example
    enters as a line of ASCII JSON, ``[[source tokens],[target tokens]]``, so no two data sets share a text.

    Example:
        >>> from types import SimpleNamespace
        >>> sha256_of_examples([SimpleNamespace(source=("a", "b"), target=("X",))])[:12]
        '9f7e449ecb59'
    """
    digest = hashlib.sha256()
    for example in examples:
        line = json.dumps([list(example.source), list(example.target)], separators=(",", ":")) + "\n"
        digest.update(line.encode("ascii"))
    return digest.hexdigest()


def describe_machine() -> str:
    """Processor model, cores this process may use, and the GPU if there is one; never a host or user name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = [_processor(), f"{cores} core" if cores == 1 else f"{cores} cores"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def save_table(table: Table, path: Path) -> None:
    """Write the table as JSON, whole or not at all; folders on the way are made.

    Raises:
        InputError: the file cannot be written there.
    """
    path = Path(path)
    text = json.dumps(asdict(table), sort_keys=True, indent=2, allow_nan=False) + "\n"
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=path) from error
    finally:
        unfinished.unlink(missing_ok=True)


def load_table(path: Path) -> Table:
    """Read a table that `save_table` wrote; the two are equal.

    Raises:
        InputError: the file cannot be read, is not JSON, or is not a table of results.
    """
    mend = "make it again with the command that wrote it"
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        results = [Result(**{**result, "signature": Signature(**result["signature"])}) for result in content["results"]]
        return Table(**{**content, "results": tuple(results)})
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg}", path=path, line=error.lineno, mend=mend) from error
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", path=path, mend=mend) from error
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a table of results ({error})", path=path, mend=mend) from error


def _grid(table: Table) -> rich.table.Table:
    """Systems down, measures across; each cell holds the value and, below it, what is known about it."""
    measures = list(dict.fromkeys(result.measure for result in table.results))
    cells = {(result.system, result.measure): result for result in table.results}
    grid = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("system", overflow="fold", min_width=16)
    for measure in measures:
        lines = [line for result in table.results if result.measure == measure for line in _cell_lines(result)]
        # Rich takes the longest word as the least width even of a column that may not wrap: say the real one.
        widest = max(map(cell_len, [measure, *lines]))
        grid.add_column(Text(measure), justify="right", no_wrap=True, min_width=widest)
    for system in dict.fromkeys(result.system for result in table.results):
        row = [cells.get((system, measure)) for measure in measures]
        grid.add_row(Text(system), *(Text("") if cell is None else Text("\n".join(_cell_lines(cell))) for cell in row))
    return grid


def _list(table: Table) -> rich.table.Table:
    """One line per number: narrow enough for any number of measures."""
    lines = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    lines.add_column("system", overflow="fold")
    lines.add_column("measure", overflow="fold")
    lines.add_column("value", justify="right", no_wrap=True)
    lines.add_column("interval, comparison", overflow="fold")
    for result in table.results:
        value, *rest = _cell_lines(result)
        lines.add_row(Text(result.system), Text(result.measure), Text(value), Text(" ".join(rest)))
    return lines


def _cell_lines(result: Result) -> list[str]:
    lines = [_number(result.value) + result.unit]
    if result.low is not None and result.high is not None:
        lines.append(f"[{_number(result.low)}, {_number(result.high)}]")
    if result.p_value is not None:
        lines.append(f"p = {result.p_value:.3f}" if result.p_value >= 0.001 else "p < 0.001")
    if result.published is not None:
        lines.append(f"paper {_number(result.published)}")
    return lines


def _number(value: float) -> str:
    """Two decimals where they say something, else four significant digits."""
    return f"{value:.2f}" if value == 0 or 0.1 <= abs(value) < 1e6 else f"{value:.4g}"


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, got {value!r}")


def _own_version() -> str:
    try:
        return metadata.version("seqwise")
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """Linux alone hides the model's name from the platform module."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "unknown processor"


def _git_revision(file: Path) -> str | None:
    """Git's short name of the checkout that tracks ``file``, or None.

    An installed copy may lie inside somebody else's checkout, hence the question whether the file is tracked.
    """

    def answer(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        answer("ls-files", "--error-unmatch", file.name)
        return answer("describe", "--always", "--dirty", "--exclude=*") or None
    except (OSError, subprocess.SubprocessError):
        return None
