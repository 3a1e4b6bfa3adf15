"""Table 6.6: searching for modes of both energies, with Mask-Predict and controls that the thesis lacks.

As in the thesis: a proposal at temperature 0.8, all proposals of the first two sweeps accepted, an annealed target. The
rate, and which states of a chain are measured, are chosen on development data; the choice of states is the same for all
chains, including degenerate Gibbs. Controls: Mask-Predict with about as many passes as a chain of E_local, the lowest
energy of as many drawn Mask-Predicts as these passes allow, and, for German, a left-to-right model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reproductions import Setup
from reproductions.comparison import judge, no_worse
from reproductions.goyal_2021.sampler_cells import SamplerSpec
from reproductions.goyal_2021.sampler_tables import COLDEST, RATES, RUNS, degenerate, metropolis
from reproductions.goyal_2021.sampler_tasks import GERMAN, ROMANIAN, SPELLING, SamplerTask
from reproductions.goyal_2021.samplers import (
    MEASURES,
    Measured,
    SamplerRow,
    compare_rows,
    measure_samplers,
    sampled_result,
    sampler_outcome,
)
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result
from seqwise.configuration import configure
from seqwise.evaluation.metrics import Sums
from seqwise.evaluation.signature import sha256_of_examples, sign
from seqwise.names import EnergyName
from seqwise.runs.sampling_settings import SampleSettings

MODE_TASKS: tuple[SamplerTask, ...] = (GERMAN, ROMANIAN, SPELLING)
"""Tasks of the table, with an outcome for each."""

COLD, FORCED, ITERATIONS, WIDE = 0.8, 2, 10, 5
SOURCE, OURS = "thesis, section 6.8 and Table 6.6", "not in the thesis"

PUBLISHED = {
    # warm start, degenerate Gibbs, Mask-Predict, the same with 5 lengths, local, raw
    "translation": (20.27, 27.88, 29.27, 30.52, 29.74, 30.12),
    "translation-ro": (24.38, 29.79, 29.95, 31.57, 31.13, 30.86),
}
START, GIBBS, PREDICT, WIDER, LOCAL, RAW, EQUAL, RANKED, LEFT_TO_RIGHT = (
    "warm-start", "gibbs-t0.8", "mask-predict", "mask-predict-lengths", "local", "raw", "mask-predict-equal",
    "reranked", "left-to-right",
)  # fmt: skip


LIKE = {"last": "by last states", "lowest": "by states of the lowest energy"}
"""The kinds of states that claims compare, and their names."""


def _search(key: str, **settings: Any) -> SamplerSpec:
    return SamplerSpec(key, configure(SampleSettings, kernel="mask-predict", **settings))


def _mode(energy: EnergyName, rate: float) -> SamplerSpec:
    return metropolis(
        f"{energy}-mode{rate:g}",
        energy,
        proposal_temperature=COLD,
        forced=FORCED,
        anneal=rate,
        temperature=COLDEST,
    )


def run_table_6_6(task: SamplerTask, setup: Setup) -> Outcome:
    """Choose rates and states on development data, then measure everything on test data, once.

    The task has a measure; the folder of the setup is that of all tables.
    """
    runs = setup.inside(RUNS)
    measured, dev = _choose(task, runs)
    # Their numbers of iterations and candidates depend on the passes of the other rows.
    equal = measure_samplers(task, _as_many_passes(measured), runs)
    measured |= {RANKED: replace(equal[RANKED], chosen="lowest"), EQUAL: equal[EQUAL]}
    measured = {key: _with_published(row, key, task) for key, row in measured.items()}
    beam = _left_to_right(task, setup)
    note = (
        f"Chosen on {len(task.part('dev', setup.scale).examples)} development sentences, one chain each: "
        + "; ".join(f"{measured[key].name}: {measured[key].chosen} ({dev[key]:.1f})" for key in (GIBBS, LOCAL, RAW))
        + ". Claims compare last states with last states, and those of the lowest energy with each other; the only"
        f" output of a search is its last state. Proposals at T = {COLD:g}; the first {FORCED} sweeps of MH"
        f" are accepted. Mask-Predict has {ITERATIONS} iterations unless stated otherwise."
    )
    more = [] if beam is None else [_result(task, setup, beam)]
    title = "Table 6.6: searching for modes, with controls"
    return sampler_outcome("table-6.6", title, task, measured, _claims(measured, beam), runs, note=note, more=more)


def _choose(task: SamplerTask, runs: Setup) -> tuple[dict[str, Measured], dict[str, float]]:
    """Choose rates and states on development data, and measure all rows on test data; return also the values on dev."""
    gibbs = SamplerRow(f"Gibbs, T = {COLD:g}", degenerate(GIBBS, proposal_temperature=COLD))
    options: dict[str, list[SamplerRow]] = {GIBBS: [gibbs]}
    energies: tuple[EnergyName, ...] = ("local", "raw")
    for energy in energies:
        options[energy] = [SamplerRow(f"MH, {energy}, annealed by {rate:g}", _mode(energy, rate)) for rate in RATES]
    on_dev = measure_samplers(task, [row for rows in options.values() for row in rows], runs, part="dev")

    def value(row: SamplerRow, states: str) -> float:
        return on_dev[row.spec.key].value(states)

    # The same states for all chains, so that their energies are never compared with their samples.
    states = max(MEASURES, key=lambda each: sum(max(value(row, each) for row in rows) for rows in options.values()))
    chosen = {key: max(rows, key=lambda row: value(row, states)) for key, rows in options.items()}
    by_key = {
        START: SamplerRow("warm start", _search(START, iterations=1)),
        GIBBS: chosen[GIBBS],
        PREDICT: SamplerRow("Mask-Predict", _search(PREDICT, iterations=ITERATIONS)),
        WIDER: SamplerRow(f"Mask-Predict, {WIDE} lengths", _search(WIDER, iterations=ITERATIONS, length_beam=WIDE)),
        LOCAL: chosen[LOCAL],
        RAW: chosen[RAW],
    }
    measured = measure_samplers(task, list(by_key.values()), runs)
    rows = {
        key: replace(measured[row.spec.key], chosen=states if key in chosen else "last") for key, row in by_key.items()
    }
    return rows, {key: value(row, states) for key, row in chosen.items()}


def _as_many_passes(rows: Mapping[str, Measured]) -> list[SamplerRow]:
    """Return two searches that cost about as many passes as a chain of E_local."""
    passes = rows[LOCAL].value("passes")
    # Iterations that mask nothing, in short outputs, cost nothing; their share is about the same for any number.
    iterations = round(ITERATIONS * passes / rows[WIDER].value("passes"))
    # A sweep of single positions makes a proposal for each token.
    length = statistics.fmean(float(cell.numbers["proposals_NCS"].mean()) for cell in rows[GIBBS].cells)
    count = max(2, round(passes / (rows[PREDICT].value("passes") + length)))
    drawn = SamplerSpec(RANKED, _search(RANKED, iterations=ITERATIONS).settings, candidates=count)
    return [
        SamplerRow(
            f"Mask-Predict, {WIDE} lengths, as many passes",
            _search(EQUAL, iterations=max(1, iterations), length_beam=WIDE),
        ),
        SamplerRow(f"the best of {count} drawn Mask-Predicts", drawn),
    ]


def _with_published(row: Measured, key: str, task: SamplerTask) -> Measured:
    numbers = dict(zip((START, GIBBS, PREDICT, WIDER, LOCAL, RAW), PUBLISHED.get(task.name, ()), strict=False))
    chosen = row.chosen or "last"
    return replace(row, published={chosen: numbers[key] / 100} if key in numbers else {}, chosen=chosen)


def _left_to_right(task: SamplerTask, setup: Setup) -> list[Sums] | None:
    if task.left_to_right is None or task.score is None:
        return None
    part = task.part("test", setup.scale)
    return [task.score(outputs, part.references) for outputs in task.left_to_right(part.examples, setup)]


def _result(task: SamplerTask, setup: Setup, beam: Sequence[Sums]) -> Result:
    data = sha256_of_examples(task.part("test", setup.scale).examples)
    signature = sign(f"table-6.6: {LEFT_TO_RIGHT}", seeds=setup.seeds, data=data)
    pairs = "all pairs" if setup.scale == "converged" else "a sixth of the pairs"
    name = f"left to right, cross-entropy, longer (Table 3.1: {pairs}), beam"
    return sampled_result(task, name, f"{task.measure}, last state", beam, signature)


def _claims(rows: Mapping[str, Measured], beam: list[Sums] | None) -> list[Claim]:
    def sums(key: str, states: str) -> list[Sums]:
        found = rows[key].sums(states)
        assert found is not None
        return found

    def with_value(key: str, states: str) -> str:
        return f"{rows[key].name} {rows[key].value(states):.1f}"

    def beats(text: str, better: str, worse: str, source: str = SOURCE) -> list[Claim]:
        """Compare two rows on every kind of states that both have."""
        return [
            claim
            for states, name in LIKE.items()
            for claim in compare_rows(f"{text}, {name}.", source, states, rows[better], rows[worse])
        ]

    def as_good(key: str) -> Claim:
        text = f"MH ({key}) is no worse than Mask-Predict with {WIDE} lengths, by half a point, {LIKE['last']}."
        names = f"{with_value(key, 'last')} against {with_value(WIDER, 'last')}: "
        return no_worse(text, SOURCE, sums(key, "last"), sums(WIDER, "last"), prefix=names)

    text = "The lowest E_local of many drawn Mask-Predicts beats one Mask-Predict."
    names = f"{with_value(RANKED, 'lowest')} against {with_value(PREDICT, 'last')}: "
    reranked = judge(text, OURS, sums(RANKED, "lowest"), sums(PREDICT, "last"), prefix=names)
    claims = [
        *beats(f"MH ({LOCAL}) beats the warm start", LOCAL, START),
        *beats(f"MH ({RAW}) beats the warm start", RAW, START),
        *beats(f"MH ({LOCAL}) beats degenerate Gibbs at T = {COLD:g}", LOCAL, GIBBS),
        *beats(f"MH ({RAW}) beats degenerate Gibbs at T = {COLD:g}", RAW, GIBBS),
        *beats(f"MH ({LOCAL}) beats Mask-Predict with one length", LOCAL, PREDICT),
        *beats(f"MH ({RAW}) beats Mask-Predict with one length", RAW, PREDICT),
        *map(as_good, (LOCAL, RAW)),
        *beats("Mask-Predict beats degenerate Gibbs", PREDICT, GIBBS),
        *beats(f"MH ({LOCAL}) beats Mask-Predict with as many passes", LOCAL, EQUAL, OURS),
        *beats(f"MH ({RAW}) beats Mask-Predict with as many passes", RAW, EQUAL, OURS),
        *beats("More passes help Mask-Predict, in {measure}", EQUAL, PREDICT, OURS),
        reranked,
        *beats(f"MH ({LOCAL}) beats many drawn Mask-Predicts", LOCAL, RANKED, OURS),
        *beats(f"MH ({RAW}) beats many drawn Mask-Predicts", RAW, RANKED, OURS),
    ]
    if beam is not None:
        chosen = {key: rows[key].chosen for key in (LOCAL, RAW, WIDER, EQUAL, RANKED)}
        best = max(chosen, key=lambda key: rows[key].value(chosen[key]))
        value = 100 * statistics.fmean(sums.value for sums in beam)
        text = "A left-to-right model of fewer pairs, in a beam, beats the best of these (chosen after the fact)."
        names = f"left to right {value:.1f} against {with_value(best, chosen[best])}: "
        claims.append(judge(text, OURS, beam, sums(best, chosen[best]), prefix=names))
    return claims


def table_6_6(setup: Setup) -> Iterator[Outcome]:
    """Make Table 6.6: sampling around modes, degenerate Gibbs and Mask-Predict, for German, Romanian and spelling."""
    tasks = setup.chosen({f"table-6.6-{task.name}": task for task in MODE_TASKS}).values()
    for task in tasks:
        task.require()
    for task in tasks:
        yield run_table_6_6(task, setup)
