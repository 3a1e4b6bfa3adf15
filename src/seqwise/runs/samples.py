"""What chains come to: the sequences that are printed, picked from all that the chains went through.

Shapes: S sweeps, B chains, T positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from seqwise.runs.sampling_folder import History
from seqwise.runs.sampling_problems import Problem, Task
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.runs.sequence_run import SequenceRun

__all__ = ["Group", "Sample", "collect_samples", "sample_line"]


@dataclass(frozen=True)
class Sample:
    """A sequence that a chain held.

    Attributes:
        problem: its place among the problems, from 0.
        chain: its number among the problem's chains, from 0; those of the likeliest length come first.
        sweep: after which one, counted from 1.
        tokens: ids.
        energy: at temperature 1, soft constraints included.
        asked: the problem itself.
    """

    problem: int
    chain: int
    sweep: int
    tokens: tuple[int, ...]
    energy: float
    asked: Problem


@dataclass(frozen=True, eq=False)
class Group:
    """Chains that were advanced together, all of one length.

    Attributes:
        tasks: each has as many chains as the settings say, next to each other.
        history: of all these chains.
        final_BT: where they are.
        seconds: how long the sweeps took that were made this time.
        made: how many those were.
        longest_phrase: how many tokens the longest phrase has that must occur in all of them, or 1.
    """

    tasks: Sequence[Task]
    history: History
    final_BT: Tensor
    seconds: float
    made: int
    longest_phrase: int = 1


def collect_samples(groups: Sequence[Group], settings: SampleSettings) -> list[Sample]:
    """What is printed, by problem, chain and sweep; of each problem the best one where that is asked for."""
    if not settings.best:
        found = (one for group in groups for one in _printed(group, settings))
        return sorted(found, key=lambda one: (one.problem, one.chain, one.sweep))
    best: dict[int, Sample] = {}
    for one in (one for group in groups for one in _best(group, settings)):
        rival = best.get(one.problem)
        if rival is None or one.energy / len(one.tokens) < rival.energy / len(rival.tokens):
            best[one.problem] = one
    return [best[problem] for problem in sorted(best)]


def _printed(group: Group, settings: SampleSettings) -> Iterator[Sample]:
    tokens = group.history.tokens if settings.every is not None else {settings.num_sweeps: group.final_BT}
    for sweep, tokens_BT in tokens.items():
        if settings.prints(sweep):
            yield from (_sample_of(group, settings, row, sweep, tokens_BT) for row in range(len(tokens_BT)))


def _best(group: Group, settings: SampleSettings) -> Iterator[Sample]:
    """Of each task the sequence of the lowest energy, of two alike the earlier one."""
    each = settings.num_chains
    for place in range(len(group.tasks)):
        columns = group.history.energy_SB[:, place * each : (place + 1) * each].flatten().tolist()
        sweep, number = divmod(columns.index(min(columns)), each)
        yield _sample_of(group, settings, place * each + number, sweep + 1, group.history.tokens[sweep + 1])


def _sample_of(group: Group, settings: SampleSettings, row: int, sweep: int, tokens_BT: Tensor) -> Sample:
    task, number = group.tasks[row // settings.num_chains], row % settings.num_chains
    chain = task.rank * settings.num_chains + number
    energy = float(group.history.energy_SB[sweep - 1, row])
    return Sample(task.problem, chain, sweep, tuple(tokens_BT[row].tolist()), energy, task.asked)


def sample_line(run: SequenceRun, one: Sample, *, free: str) -> str:
    """A sample as a JSON object; problem and chain are counted from 1, as the sweeps are."""
    record = {
        "problem": one.problem + 1,
        "chain": one.chain + 1,
        "sweep": one.sweep,
        "text": run.filled(one.asked.example, one.tokens, free),
        "energy": round(one.energy, 4),
    }
    if run.conditional:
        record["source"] = run.source_text(one.asked.example)
    return json.dumps(record, ensure_ascii=False)
