"""Tables 6.2 to 6.5: temperature and nucleus of the proposal, blocks, and annealing towards modes.

Settings that the thesis states are as there: random order of positions, 7 sweeps of burn-in and 26 more, all chains
from the greedy fill. Those that it does not state: blocks shrink from 4 to 1 with eight sweeps each, and the
temperature of the target falls to 0.05 at least. These tables need no development data, because nothing is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reproductions import Setup
from reproductions.goyal_2021.sampler_cells import SamplerSpec
from reproductions.goyal_2021.sampler_tasks import GERMAN, PHONEMES, SPELLING, SamplerTask
from reproductions.goyal_2021.samplers import (
    Measured,
    SamplerRow,
    compare_rows,
    judge_seeds,
    measure_samplers,
    sampler_outcome,
)
from reproductions.outcome import Outcome
from reproductions.report import Claim
from seqwise.configuration import configure
from seqwise.names import EnergyName
from seqwise.runs.sampling_settings import SampleSettings

TASKS: tuple[SamplerTask, ...] = (GERMAN, SPELLING, PHONEMES)
"""Tasks of the tables, with an outcome for each."""
RUNS = "samplers"
"""Folder of all models and samplers, next to those of the other tables."""

TEMPERATURES = (2.0, 1.5, 1.0, 0.8, 0.5)
NUCLEI = (1.0, 0.99, 0.95, 0.9, 0.8)
RATES = (0.02, 0.04, 0.06)
BLOCKS = (4,) * 8 + (3,) * 8 + (2,) * 8 + (1,)
"""Number of positions masked together in each sweep; the last number holds from then on."""
COLDEST = 0.05
"""Lowest temperature that a target is annealed to."""
OURS = "not in the thesis"

Rows = Mapping[str, Measured]


def metropolis(key: str, energy: EnergyName = "local", **settings: Any) -> SamplerSpec:
    """Return Metropolis-Hastings in random order; ``key`` names its folder."""
    return SamplerSpec(key, configure(SampleSettings, energy=energy, visits="shuffled", **settings))


def degenerate(key: str, **settings: Any) -> SamplerSpec:
    """Return degenerate Gibbs in random order; its states are evaluated by E_local."""
    return SamplerSpec(key, configure(SampleSettings, kernel="gibbs", visits="shuffled", **settings))


LOCAL, RAW, GIBBS = metropolis("local"), metropolis("raw", "raw"), degenerate("gibbs")
_PLAIN: dict[EnergyName, SamplerSpec] = {"local": LOCAL, "raw": RAW}


@dataclass(frozen=True)
class SamplerTable:
    """Table with its rows, and the thesis' claims about them."""

    number: str
    title: str  # without the task
    rows: Sequence[SamplerRow]
    claims: Callable[[Rows], list[Claim]]  # of the measured rows by key
    note: str = ""


def run_table(table: SamplerTable, task: SamplerTask, setup: Setup) -> Outcome:
    """Make one table on one task; samplers shared with other tables are read back."""
    measured = measure_samplers(task, table.rows, setup)
    name, title = f"table-{table.number}", f"Table {table.number}: {table.title}"
    return sampler_outcome(name, title, task, measured, table.claims(measured), setup, note=table.note)


# ------------------------------------------------------------------------------------------------- proposals

# E_local, novel rate, BLEU: MH, then degenerate Gibbs.
PUBLISHED_6_2 = {
    2.0: ((12.87, 0.03, 25.91), (32.46, 1.0, 14.53)), 1.5: ((10.21, 0.05, 24.78), (29.57, 0.97, 10.12)),
    1.0: ((11.13, 0.11, 24.74), (31.12, 0.36, 9.03)), 0.8: ((9.95, 0.06, 25.84), (21.12, 0.08, 24.77)),
    0.5: ((7.85, 0.03, 27.23), (17.65, 0.04, 26.12)),
}  # fmt: skip
PUBLISHED_6_3 = {
    1.0: ((11.13, 0.11, 24.74), (31.12, 0.36, 9.03)), 0.99: ((10.65, 0.12, 24.95), (30.12, 0.33, 14.03)),
    0.95: ((10.21, 0.10, 26.15), (28.75, 0.22, 18.04)), 0.9: ((9.95, 0.07, 27.35), (18.57, 0.10, 23.25)),
    0.8: ((9.85, 0.05, 27.23), (18.23, 0.06, 23.55)),
}  # fmt: skip


def _published(numbers: tuple[float, float, float]) -> dict[str, float]:
    energy, novel, bleu = numbers
    return {"energy": energy, "novel": novel, "samples": bleu / 100}


def _pair(sign: str, value: float, setting: str, published: Mapping[float, Any]) -> list[SamplerRow]:
    """Return MH and degenerate Gibbs with a setting of the proposal; all tables share those at 1."""
    settings: dict[str, Any] = {} if value == 1 else {setting: value}
    ending = "" if value == 1 else f"-{sign}{value:g}"
    what = {"t": "T = ", "n": "nucleus "}[sign] + f"{value:g}"
    local, gibbs = map(_published, published[value])
    return [
        SamplerRow(f"MH, local, {what}", metropolis(f"local{ending}", **settings), local),
        SamplerRow(f"Gibbs, {what}", degenerate(f"gibbs{ending}", **settings), gibbs),
    ]


def _keys(sampler: str, sign: str, values: Sequence[float]) -> list[str]:
    return [sampler if value == 1 else f"{sampler}-{sign}{value:g}" for value in values]


def _robustness(rows: Rows, text: str, source: str, cold: str) -> list[Claim]:
    """Test that a proposal helps Gibbs more than MH; by seeds, because the gain is not a mean over sentences."""
    four = [rows[key].sums("samples") for key in (f"gibbs-{cold}", "gibbs", f"local-{cold}", "local")]
    if any(each is None for each in four):
        return []
    gibbs_cold, gibbs, local_cold, local = ([100 * sums.value for sums in each] for each in four if each is not None)
    gains = [
        [cold - plain for cold, plain in zip(*both, strict=True)] for both in ((gibbs_cold, gibbs), (local_cold, local))
    ]
    return [judge_seeds(text.format(measure=rows["local"].task.measure), source, *gains)]


def _claims_6_2(rows: Rows) -> list[Claim]:
    source = "thesis, section 6.7.1 and Table 6.2"
    local, gibbs = ([rows[key] for key in _keys(name, "t", TEMPERATURES)] for name in ("local", "gibbs"))
    return [
        *compare_rows("Degenerate Gibbs has the higher energy (all temperatures).", source, "energy", gibbs, local),
        *compare_rows("Degenerate Gibbs has the higher energy at T = 1.",
                      source, "energy", rows["gibbs"], rows["local"]),
        *compare_rows("Degenerate Gibbs has the higher energy at T = 0.5, too.",
                      source, "energy", rows["gibbs-t0.5"], rows["local-t0.5"]),
        *compare_rows("MH beats degenerate Gibbs in {measure} (all temperatures).", source, "samples", local, gibbs),
        *compare_rows("MH beats degenerate Gibbs in {measure} at T = 0.5.",
                      source, "samples", rows["local-t0.5"], rows["gibbs-t0.5"]),
        *compare_rows("A cold proposal (T = 0.5 against 1) helps degenerate Gibbs, in {measure}.",
                      source, "samples", rows["gibbs-t0.5"], rows["gibbs"]),
        *_robustness(rows, "A cold proposal helps degenerate Gibbs more than MH, in {measure}.",
                     source, "t0.5"),
        *compare_rows("A hot proposal (T = 2) makes novel transitions of MH rarer.",
                      source, "novel", rows["local"], rows["local-t2"]),
        *compare_rows("A cold proposal (T = 0.5) makes novel transitions of MH rarer.",
                      source, "novel", rows["local"], rows["local-t0.5"]),
        *compare_rows("By its states of the lowest energy, too, MH beats degenerate Gibbs in {measure} at T = 0.5.",
                      OURS, "lowest", rows["local-t0.5"], rows["gibbs-t0.5"]),
    ]  # fmt: skip


def _claims_6_3(rows: Rows) -> list[Claim]:
    source = "thesis, section 6.7.2 and Table 6.3"
    local, gibbs = ([rows[key] for key in _keys(name, "n", NUCLEI)] for name in ("local", "gibbs"))
    return [
        *compare_rows("Degenerate Gibbs has the higher energy (all nuclei).", source, "energy", gibbs, local),
        *compare_rows("MH beats degenerate Gibbs in {measure} (all nuclei).", source, "samples", local, gibbs),
        *compare_rows("MH beats degenerate Gibbs in {measure} with a nucleus of 0.8.",
                      source, "samples", rows["local-n0.8"], rows["gibbs-n0.8"]),
        *compare_rows("A nucleus of 0.8 helps degenerate Gibbs, in {measure}.",
                      source, "samples", rows["gibbs-n0.8"], rows["gibbs"]),
        *_robustness(rows, "A nucleus of 0.8 helps degenerate Gibbs more than MH, in {measure}.",
                     source, "n0.8"),
        *compare_rows("A nucleus of 0.8 makes novel transitions of MH rarer.",
                      source, "novel", rows["local"], rows["local-n0.8"]),
        *compare_rows("A nucleus of 0.8 makes novel transitions of degenerate Gibbs rarer.",
                      source, "novel", rows["gibbs"], rows["gibbs-n0.8"]),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- blocks, modes

_ROWS_6_4 = (
    SamplerRow("MH, local, single positions", LOCAL, {**_published((11.13, 0.11, 24.74)), "acceptance": 0.91}),
    SamplerRow("MH, local, blocks", metropolis("local-blocks", blocks=BLOCKS), _published((8.17, 0.41, 26.78))),
    SamplerRow("MH, raw, single positions", RAW, {"novel": 0.11, "acceptance": 0.90}),
    SamplerRow("MH, raw, blocks", metropolis("raw-blocks", "raw", blocks=BLOCKS), _published((8.08, 0.40, 27.12))),
    SamplerRow("Gibbs, single positions", GIBBS, _published((31.12, 0.36, 9.03))),
    SamplerRow("Gibbs, blocks", degenerate("gibbs-blocks", blocks=BLOCKS), _published((31.18, 0.77, 9.03))),
)


def _claims_6_4(rows: Rows) -> list[Claim]:
    source = "thesis, section 6.7.3 and Table 6.4"
    local, raw, gibbs = (rows[f"{name}-blocks"] for name in ("local", "raw", "gibbs"))
    return [
        *compare_rows("Annealed blocks raise the novel rate of MH (local).", source, "novel", local, rows["local"]),
        *compare_rows("Annealed blocks raise the novel rate of MH (raw).", source, "novel", raw, rows["raw"]),
        *compare_rows("Annealed blocks lower the energy of MH (local).", source, "energy", rows["local"], local),
        *compare_rows("Annealed blocks help MH (local), in {measure}.", source, "samples", local, rows["local"]),
        *compare_rows("Annealed blocks help MH (raw), in {measure}.", source, "samples", raw, rows["raw"]),
        *compare_rows("With blocks, degenerate Gibbs has a higher energy than MH (local).",
                      source, "energy", gibbs, local),
        *compare_rows("With blocks, degenerate Gibbs has a higher energy than MH (raw).", source, "energy", gibbs, raw),
        *compare_rows("With blocks, MH (local) beats Gibbs in {measure}.", source, "samples", local, gibbs),
        *compare_rows("With blocks, MH (raw) beats Gibbs in {measure}.", source, "samples", raw, gibbs),
        *compare_rows("Blocks give more effective samples for the same passes (MH, local).",
                      OURS, "ess", local, rows["local"]),
    ]  # fmt: skip


# Best E_local, acceptance and best BLEU of any epoch.
PUBLISHED_6_5 = {
    "local": {0.02: (3277.6, 0.52, 29.16), 0.04: (3245.65, 0.45, 27.58), 0.06: (3187.80, 0.41, 26.95)},
    "raw": {0.02: (3146.4, 0.71, 29.91), 0.04: (3088.65, 0.62, 28.32), 0.06: (2146.34, 0.58, 27.21)},
}


def _annealed(energy: EnergyName, rate: float) -> SamplerRow:
    value, acceptance, bleu = PUBLISHED_6_5[energy][rate]
    spec = metropolis(f"{energy}-anneal{rate:g}", energy, anneal=rate, temperature=COLDEST)
    published = {"last energy": value / 1000, "acceptance": acceptance, "last": bleu / 100}
    return SamplerRow(f"MH, {energy}, annealed by {rate:g}", spec, published)


def _claims_6_5(rows: Rows) -> list[Claim]:
    source = "thesis, section 6.8 and Table 6.5"
    claims = []
    for name in ("local", "raw"):
        plain, slow, fast = rows[name], rows[f"{name}-anneal0.02"], rows[f"{name}-anneal0.06"]
        claims += [
            *compare_rows(f"Annealing lowers the energy ({name}).", source, "last energy", plain, slow),
            *compare_rows(f"Annealing helps in {{measure}} ({name}).", source, "last", slow, plain),
            *compare_rows(f"Faster annealing ends at a lower energy ({name}).", source, "last energy", slow, fast),
            *compare_rows(f"Slow annealing beats fast annealing in {{measure}} ({name}).", source, "last", slow, fast),
            *compare_rows(f"Faster annealing accepts less ({name}).", source, "acceptance", slow, fast),
        ]
    local, raw = ([rows[f"{name}-anneal{rate:g}"] for rate in RATES] for name in ("local", "raw"))
    return [
        *claims,
        *compare_rows("Annealed, raw accepts more than local (all rates).", source, "acceptance", raw, local),
        *compare_rows("Annealed, raw beats local in {measure} (all rates).", source, "last", raw, local),
    ]


TABLES = {
    "6.2": SamplerTable(
        "6.2",
        "temperature of the proposal",
        [row for value in TEMPERATURES for row in _pair("t", value, "proposal_temperature", PUBLISHED_6_2)],
        _claims_6_2,
    ),
    "6.3": SamplerTable(
        "6.3",
        "nucleus of the proposal",
        [row for value in NUCLEI for row in _pair("n", value, "nucleus", PUBLISHED_6_3)],
        _claims_6_3,
        note="With a nucleus below 1, chains are reducible and do not converge to the target.",
    ),
    "6.4": SamplerTable(
        "6.4",
        "annealed blocks",
        _ROWS_6_4,
        _claims_6_4,
        note="Blocks of 4 positions, 3 from sweep 9, 2 from sweep 17 and 1 from sweep 25. The thesis' rates for single"
        " positions are from its text.",
    ),
    "6.5": SamplerTable(
        "6.5",
        "annealing towards modes",
        [
            row
            for name, plain in _PLAIN.items()
            for row in (SamplerRow(f"MH, {name}, not annealed", plain), *(_annealed(name, rate) for rate in RATES))
        ],
        _claims_6_5,
        note=f"The temperature of the target falls by the rate each sweep, to {COLDEST} at least; claims are about last"
        " states. The thesis' energies and BLEU are the best of any epoch.",
    ),
}  # fmt: skip
"""Tables by number."""


def every_task(name: str, run: Callable[[SamplerTask, Setup], Outcome], setup: Setup) -> Iterator[Outcome]:
    """Make a table or figure of each task, after checking the requirements of all."""
    tasks = setup.chosen({f"{name}-{task.name}": task for task in TASKS}).values()
    for task in tasks:
        task.require()
    for task in tasks:
        yield run(task, setup.inside(RUNS))


table_6_2, table_6_3, table_6_4, table_6_5 = (
    partial(every_task, f"table-{number}", partial(run_table, table)) for number, table in TABLES.items()
)
