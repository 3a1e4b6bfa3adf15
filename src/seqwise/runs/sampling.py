"""Samples of a masked run: from problems over initial states and sweeps to sequences, and on from where it was killed.

Problems are taken in blocks, and of a block the chains of one length are advanced together. What a chain draws depends
on the seed, its problem, its length and its number alone, so that it goes the same way whatever else is sampled, as far
as the model's scores do not depend on the batch.

Shapes: S sweeps, B chains, T positions, R replicas of a chain.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from seqwise.errors import InputError
from seqwise.runs.samples import Group, Sample, collect_samples, sample_line
from seqwise.runs.sampling_folder import (
    History,
    append_sweeps,
    claim,
    keep_chains,
    keep_samples,
    read_history,
    require_disk,
)
from seqwise.runs.sampling_problems import Problem, Task
from seqwise.runs.sampling_settings import MOST_PRINTED, SampleSettings
from seqwise.runs.sampling_starts import Plan, context_of, numbers_of, plan_of, require_room, start, tasks_of
from seqwise.runs.scoring import room_for
from seqwise.runs.sequence_run import SequenceRun
from seqwise.sampling import (
    Chains,
    ChainState,
    Info,
    Kernel,
    chains_at_once,
    coldest,
    load_chains,
    of_one_length,
    sample_chains,
)
from seqwise.training.lock import sole_writer
from seqwise.training.processes import WITHOUT_END, from_first, is_first, join, number_of, rank, wait_for_all

__all__ = ["Sampled", "SweepDone", "begin_chains", "sample", "sample_in_blocks"]

SWEEP_BYTES, LINE_BYTES = 25, 50  # on the disk, of a chain in one sweep and of a printed sequence: at the very least
BLOCK = 4096  # problems that are in memory together, with all that their chains went through


@dataclass(frozen=True, eq=False)
class Sampled:
    """What came of problems: the samples by problem, chain and sweep, and all chains."""

    samples: Sequence[Sample]
    groups: Sequence[Group]


@dataclass(frozen=True)
class SweepDone:
    """How far it is, after each sweep.

    Attributes:
        sweep: of the chains that are advanced together now.
        done: sweeps of all problems up to here, in all processes; a problem at another length counts as another one.
        added: how many of them this step made.
        total: how many there are to be.
        acceptance: of the proposals of this sweep.
        novelty: the share of them that was accepted and changed the state.
        mean_energy: over these chains.
    """

    sweep: int
    done: int
    added: int
    total: int
    acceptance: float
    novelty: float
    mean_energy: float


@dataclass(frozen=True)
class _Part:
    """Tasks of one length, whose chains are advanced together.

    Attributes:
        number: counted over all blocks.
        tasks: see there.
        before: how many tasks the parts before it have.
        total: how many all parts have.
    """

    number: int
    tasks: Sequence[Task]
    before: int
    total: int


def sample(
    run: SequenceRun,
    problems: Sequence[Problem],
    settings: SampleSettings,
    *,
    output: str | os.PathLike[str] | None = None,
    on_sweep: Callable[[SweepDone], None] | None = None,
) -> Sampled:
    """Sample sequences for problems, all of them at once.

    The target is ``p(y) proportional to exp(-E(y) / T)`` over the sequences that agree with what is fixed, for each
    length on its own; E is the model's energy plus the constraints. The first chain of each problem and length starts
    from the greedy fill from all masks, the others from sequences drawn token by token
    (:func:`~seqwise.sampling.dispersed_starts`); each has the phrases that must occur written in. The unknown symbol is
    never proposed.

    Args:
        run: its model in evaluation mode.
        problems: from :func:`~seqwise.runs.sampling_problems.read_problems`.
        settings: see there.
        output: a folder to keep everything in. Killed and called again with the same arguments, it goes on from the
            last saving and ends with the same files, byte for byte; with more sweeps, it goes on as far. Several
            processes, which need one, share the groups of chains that are advanced together.
        on_sweep: called after each sweep of each group of chains.

    Returns:
        Everything; in other processes than the first, nothing.

    Raises:
        InputError: a phrase or the output cannot be used, or no start keeps the constraints.

    Source: Goyal (2021), sections 6.3 and 6.4; Ghazvininejad et al. (EMNLP 2019), section 4, for several lengths. Not
    implemented: moves between lengths.

    Example:
        >>> from seqwise.data.readers import Example
        >>> from seqwise.runs.masked_model_settings import MaskedModelSettings
        >>> from seqwise.runs.masked_model_training import new_masked_run
        >>> from seqwise.runs.sampling_problems import FREE
        >>> run = new_masked_run([Example((), ("b", "a"))], MaskedModelSettings(model="lstm", minimum_count=1))
        >>> _ = run.model.eval()
        >>> settings = SampleSettings(chains=2, sweeps=3, contain=("a b",))
        >>> (first, second) = sample(run, [Problem((FREE, FREE, 0), Example((), ()))], settings).samples
        >>> first.tokens, second.tokens, first.sweep
        ((0, 1, 0), (0, 1, 0), 3)
    """
    blocks = list(sample_in_blocks(run, problems, settings, output=output, on_sweep=on_sweep))
    return Sampled(
        [one for block in blocks for one in block.samples], [group for block in blocks for group in block.groups]
    )


def sample_in_blocks(
    run: SequenceRun,
    problems: Sequence[Problem],
    settings: SampleSettings,
    *,
    output: str | os.PathLike[str] | None = None,
    on_sweep: Callable[[SweepDone], None] | None = None,
) -> Iterator[Sampled]:
    """What :func:`sample` does, a few thousand problems at a time, so that memory does not grow with their number.

    Args:
        run: see there.
        problems: best taken slice by slice, as those of :func:`~seqwise.runs.sampling_problems.read_problems` are.
        settings: see there.
        output: see there. Samples are there as soon as their chains have come to the end.
        on_sweep: see there.

    Returns:
        Blocks of problems that follow each other, each when it is done; in other processes than the first, none.

    Raises:
        InputError: as :func:`sample`. Before the first sweep, unless chains find no start though each phrase that must
            occur has room, or the memory or the disk is too small.

    Example:
        >>> from seqwise.data.readers import Example
        >>> from seqwise.runs.masked_model_settings import MaskedModelSettings
        >>> from seqwise.runs.masked_model_training import new_masked_run
        >>> from seqwise.runs.sampling_problems import FREE
        >>> run = new_masked_run([Example((), ("b", "a"))], MaskedModelSettings(model="lstm", minimum_count=1))
        >>> _ = run.model.eval()
        >>> problems = [Problem((FREE, 0), Example((), ()))] * 5000
        >>> blocks = sample_in_blocks(run, problems, SampleSettings(kernel="mask-predict"))
        >>> [len(block.samples) for block in blocks]
        [4096, 904]
    """
    plan = plan_of(run, settings)
    require_room(plan, problems)
    tasks_of(plan, problems[:1])  # refuses now what it would refuse later
    folder = None if output is None else Path(output)
    _require_modesty(settings, problems, folder)
    join(patience=WITHOUT_END)
    with nullcontext() if folder is None else sole_writer(folder):
        yield from _sample_in_blocks(plan, problems, output=folder, on_sweep=on_sweep)


def _sample_in_blocks(
    plan: Plan, problems: Sequence[Problem], *, output: Path | None, on_sweep: Callable[[SweepDone], None] | None
) -> Iterator[Sampled]:
    run, settings = plan.run, plan.settings
    if output is not None:
        began = _fingerprints(run, problems)
        from_first(lambda: claim(output, settings, began))
    if output is not None and number_of() > 1:
        # A process that waited after each block would wait for the slowest one of each.
        every = itertools.chain.from_iterable(_blocks(plan, problems))
        for part in itertools.islice(every, rank(), None, number_of()):
            _advance(plan, part, output, on_sweep)
        wait_for_all()
    end = 0
    for parts in _blocks(plan, problems) if is_first() else ():
        begin, groups = end, []
        for part in parts:
            groups.append(_advance(plan, part, output, on_sweep))
            if output is not None:
                lines = (sample_line(run, one, free=settings.free) for one in collect_samples(groups, settings))
                end = keep_samples(output, lines, begin=begin)
        yield Sampled(collect_samples(groups, settings), groups)


def _require_modesty(settings: SampleSettings, problems: Sequence[Problem], output: Path | None) -> None:
    """Refuse what would print more than anybody reads, or write more than the disk has room for."""
    printed = settings.num_printed(len(problems))
    mend = "ask for fewer problems, chains or sweeps, or print fewer of these: --every N, --best"
    if printed > MOST_PRINTED:
        raise InputError(f"{printed:,} sequences would be printed, and {MOST_PRINTED:,} at most are", mend=mend)
    if output is not None:
        swept = len(problems) * settings.length_beam * settings.num_chains * settings.num_sweeps
        there = sum(path.stat().st_size for path in output.rglob("*") if path.is_file()) if output.is_dir() else 0
        require_disk(output, SWEEP_BYTES * swept + LINE_BYTES * printed - there, what="the samples")


def begin_chains(run: SequenceRun, problem: Problem, settings: SampleSettings) -> tuple[Kernel, ChainState]:
    """The chains of one problem before their first sweep, and what makes a sweep, for a caller who advances them.

    Args:
        run: its model in evaluation mode.
        problem: of several lengths, the likeliest one is taken.
        settings: see :func:`sample`, whose chains these are.

    Raises:
        InputError: a phrase cannot be used, or no start keeps the constraints.

    Example:
        >>> from seqwise.data.readers import Example
        >>> from seqwise.runs.masked_model_settings import MaskedModelSettings
        >>> from seqwise.runs.masked_model_training import new_masked_run
        >>> from seqwise.runs.sampling_problems import FREE
        >>> run = new_masked_run([Example((), ("b", "a"))], MaskedModelSettings(model="lstm", minimum_count=1))
        >>> _ = run.model.eval()
        >>> kernel, state = begin_chains(run, Problem((FREE, 0), Example((), ())), SampleSettings(chains=3))
        >>> state.tokens_BT.shape, state.free_BT[0]
        (torch.Size([3, 2]), tensor([ True, False]))
    """
    plan = plan_of(run, settings)
    tasks = tasks_of(plan, [problem])[:1]
    return plan.kernel, start(plan, tasks, context_of(plan, tasks))


def _blocks(plan: Plan, problems: Sequence[Problem]) -> Iterator[list[_Part]]:
    """Of each block of problems the parts, numbered on from block to block."""
    number = before = 0
    for first in range(0, len(problems), BLOCK):
        block = problems[first : first + BLOCK]
        tasks = tasks_of(plan, block, first=first)
        # Problems of one file are all tried at the same number of lengths.
        total, parts = len(problems) * len(tasks) // len(block), []
        for together in _of_one_length(tasks, plan.settings, plan.run.model.vocab_size):
            parts.append(_Part(number, together, before, total))
            number, before = number + 1, before + len(together)
        yield parts


def _of_one_length(tasks: Sequence[Task], settings: SampleSettings, vocab_size: int) -> Iterator[Sequence[Task]]:
    """Tasks of one length, as many as may be advanced together."""
    chains_each = settings.num_chains * settings.num_replicas

    def most(length: int) -> int:
        return chains_at_once(length, vocab_size=vocab_size, max_rows=settings.max_rows) // chains_each

    for places in of_one_length([len(task.tokens) for task in tasks], most):
        yield [tasks[place] for place in places]


def _advance(plan: Plan, part: _Part, output: Path | None, on_sweep: Callable[[SweepDone], None] | None) -> Group:
    """Start chains or read them back, and advance them to their last sweep."""
    length, own = len(part.tasks[0].tokens), slice(None, None, plan.settings.num_replicas)

    def report(now: ChainState, info: Info) -> None:
        if on_sweep is not None:
            proposals = max(int(info.proposals_B[own].sum()), 1)
            shares = int(info.accepted_B[own].sum()) / proposals, int(info.novel_B[own].sum()) / proposals
            done = part.before * plan.settings.num_sweeps + now.sweep * len(part.tasks)
            total = part.total * plan.settings.num_sweeps
            on_sweep(SweepDone(now.sweep, done, len(part.tasks), total, *shares, float(now.energy_B[own].mean())))

    with room_for(f"chains of {length} tokens", mend="give a smaller --max-rows, or fewer --chains"):
        return _sweep(plan, part, None if output is None else output / "chains" / f"{part.number:04d}", report)


def _sweep(plan: Plan, part: _Part, folder: Path | None, report: Callable[[ChainState, Info], None]) -> Group:
    settings, (state, history) = plan.settings, _begin(plan, part.tasks, folder)
    began, seconds = state.sweep, 0.0
    while state.sweep < settings.num_sweeps:
        count = min(settings.save_every, settings.num_sweeps - state.sweep)
        chains = sample_chains(plan.kernel, state, count, seed=settings.seed, progress=report)
        later, state = _history(chains, settings, first=state.sweep), chains.state
        if folder is not None:
            append_sweeps(folder.with_suffix(".jsonl"), later, first=len(history))
            keep_chains(folder.with_suffix(".safetensors"), state)
        history, seconds = history + later, seconds + chains.seconds
    final_BT = coldest(state, settings.num_replicas).tokens_BT
    return Group(part.tasks, history, final_BT, seconds, state.sweep - began, plan.longest_phrase)


def _begin(plan: Plan, tasks: Sequence[Task], folder: Path | None) -> tuple[ChainState, History]:
    settings = plan.settings
    count = len(tasks) * settings.num_chains
    context = context_of(plan, tasks)
    path = None if folder is None else folder.with_suffix(".safetensors")
    if path is None or not path.exists():
        if folder is not None:
            folder.with_suffix(".jsonl").unlink(missing_ok=True)
        return start(plan, tasks, context), History.none(count)
    state = load_chains(path, plan.energy, context=context)
    # Of a replica, the number of its chain is the quotient; see replicas.
    numbers_B = state.chain_B[:: settings.num_replicas] // settings.num_replicas
    if len(state) != count * settings.num_replicas or not torch.equal(numbers_B, numbers_of(settings, tasks)):
        raise InputError("the file holds other chains", path=path, mend="remove the folder and start again")
    if state.sweep > settings.num_sweeps:
        problem = f"sweeps: the chains have made {state.sweep} already, and {settings.num_sweeps} are asked for"
        raise InputError(problem, path=path, mend=f"ask for {state.sweep} or more, or give another --output")
    assert folder is not None
    return state, read_history(folder.with_suffix(".jsonl"), num_sweeps=state.sweep, num_chains=count)


def _history(chains: Chains, settings: SampleSettings, *, first: int) -> History:
    """Of what the chains did, that which is kept: of the replicas the one at the wanted temperature."""
    count = settings.num_replicas
    kept = {
        place + 1: tokens_BT[::count]
        for place, tokens_BT in enumerate(chains.tokens_SBT)
        if settings.best or (settings.every is not None and settings.prints(first + place + 1))
    }
    return History(
        chains.energy_SB[:, ::count],
        chains.proposals_SB[:, ::count],
        chains.accepted_SB[:, ::count],
        chains.novel_SB[:, ::count],
        # The passes of all replicas are what the samples of the first one cost.
        chains.passes_SB.unflatten(1, (-1, count)).sum(2),
        chains.invariant_S,
        kept,
    )


def _fingerprints(run: SequenceRun, problems: Iterable[Problem]) -> dict[str, str]:
    """What tells the model, with its vocabulary, and the problems from others."""
    asked = hashlib.sha256(b"[")  # as if a list of all of them were written at once
    for number, problem in enumerate(problems):
        asked.update((", " if number else "").encode() + repr((problem.tokens, problem.source_ids)).encode())
    asked.update(b"]")
    return {"model": run.fingerprint(), "problems": asked.hexdigest()}
