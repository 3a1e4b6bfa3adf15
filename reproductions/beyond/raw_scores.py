"""Effect of decoding a plain model with raw scores, by task, and the part of it that log Z explains.

If every output has the length of its input, log Z of the next step carries information about a prefix that its
probability does not, and a raw beam can use it. If lengths vary, each further token also adds log Z, outputs grow, and
quality collapses; the results include how much of this a constant, the mean log Z per token of the development data,
recovers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from reproductions import Setup
from reproductions.beyond import search_objectives
from reproductions.beyond.improvements import SPELLING, spelling_family
from reproductions.comparison import Measured, Row, examine, judge
from reproductions.goyal_2018.exposure_bias import family_of
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from reproductions.tasks import Family, Task, run_task, supertags
from reproductions.verdicts import interval_result
from seqwise.decoding import Decoder
from seqwise.evaluation.metrics import Sums
from seqwise.evaluation.slot_ranking import SlotRanking, rank_slots
from seqwise.runs.loading import load_run
from seqwise.runs.measures import known_targets, log_partitions_of
from seqwise.runs.run import OutputRun, predict
from seqwise.search.candidates import shifted
from seqwise.search.selectors import HardTopK

KEY = "cross-entropy"
RANKED = 1000
"""Number of test examples that are searched for pairs of slots."""
STATISTICS = {
    "log_prob": "log p(prefix)", "log_partition": "next log Z", "both": "log p + next log Z", "raw": "raw + next log Z",
}  # fmt: skip


@dataclass(frozen=True)
class _Found:
    """Measurements of one task, one for each seed."""

    measured: Measured
    shifted: list[Sums] | None
    rankings: list[SlotRanking]


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Measure beam, raw beam, raw beam less a constant, and slot rankings, for every task."""
    families = _families(setup.scale)
    by_task = {task.title: _measure(task, family, setup.inside(name)) for name, (task, family) in families.items()}
    results = [result for title, found in by_task.items() for result in _results(title, found)]
    claims = [claim for title, found in by_task.items() for claim in _claims(title, found)]
    table = Table("Raw scores of plain cross-entropy models, by task", tuple(results), claims=tuple(claims))
    yield Outcome("raw-scores", table, {"runs": setup.folder})


def _families(scale: str) -> dict[str, tuple[Task, Family]]:
    """Return the left-to-right tasks, a bidirectional one, and one with outputs of varying length."""
    families: dict[str, tuple[Task, Family]] = {
        name: (task, partial(search_objectives.family, start, epochs))
        for name, (task, start, epochs) in search_objectives.CORPORA.items()
    }
    whole = supertags("pmb")
    for task, _ in [*families.values(), (whole, None), (SPELLING, None)]:
        task.require()
    families["pmb-both-ways"] = (replace(whole, title=f"{whole.title}, both ways"), family_of(whole, scale))
    families[SPELLING.name] = (SPELLING, spelling_family)
    return families


def _measure(task: Task, family: Family, runs: Setup) -> _Found:
    measured = run_task(task, family, [Row(KEY, task.title)], "raw-scores", runs)[KEY]
    loaded = [load_run(runs.folder / f"seed-{seed}" / KEY) for seed in runs.seeds]
    length_varies = loaded[0].model.end is not None
    return _Found(
        measured,
        [_shifted(run, task) for run in loaded] if length_varies else None,
        [_rank(run, task) for run in loaded],
    )


def _shifted(run: OutputRun, task: Task) -> Sums:
    """Measure the raw beam less the mean log Z of the development data."""
    data = task.load_data()
    log_partitions_N = log_partitions_of(run, run.codec.encode(known_targets(run, data.dev)))
    decoder = Decoder(HardTopK(run.settings.beam_size), shifted(log_partitions_N.double().mean().item()))
    return task.count("test", [best[0].tokens for best in predict(run, data.test, decoder)])


def _rank(run: OutputRun, task: Task) -> SlotRanking:
    examples = known_targets(run, task.load_data().test)[:RANKED]
    encoded = run.codec.encode(examples)
    references = [[example.target_ids] for example in encoded]
    return rank_slots(run.model, encoded, references, k=run.settings.beam_size)


def _results(title: str, found: _Found) -> list[Result]:
    signature, by_decoder = found.measured.signature, found.measured.test
    columns: dict[str, list[Sums]] = {"beam": by_decoder["beam"], "raw beam": by_decoder["raw-beam"]}
    if found.shifted is not None:
        columns["raw beam less a constant"] = found.shifted
    for statistic, name in STATISTICS.items():
        columns[f"ranked first by {name}"] = [getattr(ranking, statistic) for ranking in found.rankings]
    results = []
    for name, measurements in columns.items():
        results.append(interval_result(title, name, measurements, signature))
    if found.shifted is not None:
        beam, raw, shifted_raw = (sum(each.value for each in columns[name]) for name in list(columns)[:3])
        if beam != raw:
            recovered = 100 * (shifted_raw - raw) / (beam - raw)
            results.append(Result(title, "recovered by the constant", recovered, signature))
    results.append(Result(title, "mean log Z", found.measured.mean_log_partition, signature, unit="nat"))
    return results


def _claims(title: str, found: _Found) -> list[Claim]:
    source, measured, decoders = "not in the papers", found.measured, ("raw-beam", "beam")
    beam = examine(f"{title}: the raw beam beats the beam.", source, measured, measured, decoders=decoders)
    better = [ranking.log_partition for ranking in found.rankings]
    worse = [ranking.log_prob for ranking in found.rankings]
    text = f"{title}: next log Z ranks the right slot above the wrong one more often than log p does."
    claims = [beam, judge(text, source, better, worse)]
    if found.shifted is not None:
        text = f"{title}: the raw beam less a constant beats the raw beam."
        claims.append(judge(text, source, found.shifted, measured.test["raw-beam"]))
    return claims
