"""Tables of results with their signatures, saved as JSON.

The JSON is the same on every machine for equal tables: sorted keys, floats of 10 significant digits. It
holds the summands of each example and training seed ("values" and "columns"), from which
`python -m reproductions.recompute_results` computes every interval, p-value and verdict again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reproductions.values import Values
from seqwise.data.durable import write_atomically
from seqwise.data.records import read_json_object
from seqwise.errors import InputError
from seqwise.evaluation.signature import Signature, check_text
from seqwise.runs.measures import decisive

VERDICTS = ("holds", "reversed", "not seen", "not tested")
"""Verdicts on a claim."""
KINDS = ("claim", "theorem", "figure")
"""Kinds of claims; theorems and figures are checked, but not counted as claims."""


@dataclass(frozen=True)
class Result:
    """Measured number of a system."""

    system: str  # row of the table
    measure: str  # column of the table
    value: float  # in ``unit``
    signature: Signature
    low: float | None = None  # end of its confidence interval, in ``unit``
    high: float | None = None
    p_value: float | None = None  # of the comparison in the table's note
    published: float | None = None  # number in the paper
    unit: str = "%"  # "" for a bare number
    note: str = ""  # such as the decoder that was chosen
    values: tuple[Values, ...] = ()  # summands: one for an interval, two for a difference
    rule: str = ""  # how the number is computed from them: see `reproductions.verdicts.computed`

    def __post_init__(self) -> None:
        for name in ("system", "measure", "unit", "note"):
            check_text(name, getattr(self, name))
        for name in ("value", "low", "high", "p_value", "published"):
            number = getattr(self, name)
            if number is None and name != "value":
                continue
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            # Rounded here, not when writing, so that a table equals the one that is loaded back.
            rounded = float(f"{number:.10g}") if is_number else math.nan
            if not math.isfinite(rounded):
                raise InputError(f"{name} of {self.system!r} must be a finite number, got {number!r}")
            object.__setattr__(self, name, rounded)


@dataclass(frozen=True)
class Claim:
    """Statement of a paper, with the verdict of `reproductions.verdicts.decide`."""

    text: str
    source: str  # such as a table of a paper
    verdict: str  # one of VERDICTS
    evidence: str  # the numbers behind it, or why it is not tested
    kind: str = "claim"  # one of KINDS
    rule: str = ""  # of the test; "" without one
    values: tuple[Values, ...] = ()  # summands of both sides, in the order of the claim
    numbers: tuple[float, ...] = ()  # the difference, the ends of its interval and, of a bootstrap, the p-value

    def __post_init__(self) -> None:
        for name in ("text", "source", "evidence"):
            check_text(name, getattr(self, name))
        if self.verdict not in VERDICTS:
            raise InputError(f"a verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}")
        if self.kind not in KINDS:
            raise InputError(f"a claim must be a {' or '.join(KINDS)}, got {self.kind!r}")
        object.__setattr__(self, "numbers", tuple(float(f"{number:.10g}") for number in self.numbers))


@dataclass(frozen=True)
class Curve:
    """Development metric of a training run over time."""

    system: str  # row of the table
    seed: int  # of the run
    measure: str  # name of the metric
    start: float  # CPU seconds of the stages before it
    points: tuple[tuple[float, float], ...]  # CPU seconds of this stage, and the metric, at each evaluation

    def __post_init__(self) -> None:
        rounded = tuple((float(f"{seconds:.4g}"), float(f"{value:.5g}")) for seconds, value in self.points)
        object.__setattr__(self, "points", rounded)
        object.__setattr__(self, "start", float(f"{self.start:.4g}"))

    @property
    def sign(self) -> int:
        """+1 if a higher metric is better, else -1."""
        return decisive([self.measure], subwords=True)[1]


@dataclass(frozen=True)
class Table:
    """Results and claims under a title."""

    title: str
    results: tuple[Result, ...]
    note: str = ""
    claims: tuple[Claim, ...] = ()
    curves: tuple[Curve, ...] = ()

    def __post_init__(self) -> None:
        check_text("title", self.title)
        check_text("note", self.note)
        seen: set[tuple[str, str]] = set()
        for result in self.results:
            if (result.system, result.measure) in seen:
                raise InputError(f"two results for {result.system!r} and {result.measure!r} in {self.title!r}")
            seen.add((result.system, result.measure))


def save_table(table: Table, path: Path) -> None:
    """Write a table as JSON, atomically; missing folders are made."""
    text = json.dumps(_plain(table), sort_keys=True, indent=2, allow_nan=False) + "\n"
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", path=path) from error
    write_atomically(path, text)


LEFT_OUT = {"kind": "claim", "rule": "", "values": (), "numbers": (), "training": ()}
"""Values of fields that are not written."""


def _plain(table: Table) -> dict[str, Any]:
    """Convert a table to JSON values; each text of summands is written once, in "columns", and given by its index."""
    columns: dict[str, int] = {}
    kept: dict[Values, int] = {}

    def place(values: Values) -> int:
        return kept.setdefault(values, len(kept))

    def short(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name not in LEFT_OUT or value != LEFT_OUT[name]}

    content = asdict(replace(table, results=(), claims=(), curves=()))
    content["curves"] = [asdict(curve) for curve in table.curves]
    if not table.curves:
        del content["curves"]
    for name in ("results", "claims"):
        content[name] = [
            short(asdict(replace(each, values=()))) | ({"values": [*map(place, each.values)]} if each.values else {})
            for each in getattr(table, name)
        ]
    for result in content["results"]:
        result["signature"] = short(result["signature"])
    if kept:
        content["values"] = [
            {
                "combine": values.combine,
                "seeds": [" ".join(str(columns.setdefault(text, len(columns))) for text in texts) for texts in
                          values.seeds],
            }
            for values in kept
        ]  # fmt: skip
        content["columns"] = list(columns)
    return content


def _values(content: dict[str, Any]) -> Callable[[dict[str, Any]], tuple[Values, ...]]:
    """Take the summands out of JSON values, and return a function that looks up those of a result or claim."""
    columns, kept = content.pop("columns", []), content.pop("values", [])
    every = [
        Values(each["combine"], tuple(tuple(columns[int(place)] for place in seed.split()) for seed in each["seeds"]))
        for each in kept
    ]
    return lambda fields: tuple(every[place] for place in fields.get("values", ()))


def load_table(path: Path) -> Table:
    """Read a table that `save_table` wrote."""
    hint = "make it again with the command that wrote it"
    content = read_json_object(path, what="table of results", hint=hint)
    try:
        values = _values(content)
        results = [
            Result(**{**result, "signature": Signature(**result["signature"]), "values": values(result)})
            for result in content["results"]
        ]
        claims = [Claim(**{**claim, "values": values(claim)}) for claim in content.get("claims", ())]
        curves = [Curve(**curve) for curve in content.get("curves", ())]
        return Table(**{**content, "results": tuple(results), "claims": tuple(claims), "curves": tuple(curves)})
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a table of results ({error})", path=path, hint=hint) from error
