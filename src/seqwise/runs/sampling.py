"""Samples of a masked run: from problems over initial states and sweeps to sequences, and on from where it was killed.

Chains of one length are advanced together. What a chain draws depends on the seed, its problem, its length and its
number alone, so that it goes the same way whatever else is sampled, as far as the model's scores do not depend on the
batch.

Shapes: S sweeps, B chains, T positions, R replicas of a chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import EncodedExample, collate
from seqwise.data.readers import write_atomically
from seqwise.errors import InputError
from seqwise.models.conditional import ConditionalMaskedTransformer
from seqwise.runs.samples import Group, Sample, collect_samples, sample_line
from seqwise.runs.sampling_folder import History, append_sweeps, claim, keep_chains, read_history
from seqwise.runs.sampling_problems import FREE, Problem, Task, phrase_ids, split_into_tasks
from seqwise.runs.sampling_settings import SampleSettings, build_energy, build_kernel
from seqwise.runs.scoring import room_for
from seqwise.runs.sequence_run import SequenceRun
from seqwise.sampling import (
    Chains,
    ChainState,
    Energy,
    Info,
    Kernel,
    Phrases,
    chains_at_once,
    coldest,
    load_chains,
    of_one_length,
    phrase_starts,
    replicas,
    sample_chains,
    start_chains,
)
from seqwise.sampling.energies import rows_of
from seqwise.training.processes import WITHOUT_END, from_first, is_first, join, share, wait_for_all

__all__ = ["Sampled", "SweepDone", "begin_chains", "sample"]


@dataclass(frozen=True, eq=False)
class Sampled:
    """What came of it: the samples by problem, chain and sweep, and all chains."""

    samples: Sequence[Sample]
    groups: Sequence[Group]


@dataclass(frozen=True)
class SweepDone:
    """How far it is, after each sweep.

    Attributes:
        sweep: of the chains that are advanced together now.
        done: sweeps of all groups of chains.
        total: how many there are to be.
        acceptance: of the proposals of this sweep.
        novelty: the share of them that was accepted and changed the state.
        mean_energy: over these chains.
    """

    sweep: int
    done: int
    total: int
    acceptance: float
    novelty: float
    mean_energy: float


@dataclass(frozen=True, eq=False)
class _Plan:
    """All that the groups share."""

    run: SequenceRun
    problems: Sequence[Problem]
    settings: SampleSettings
    phrases: Phrases
    on_sweep: Callable[[SweepDone], None] | None
    energy: Energy = field(init=False)
    kernel: Kernel = field(init=False)

    def __post_init__(self) -> None:
        energy = self.phrases.constrain(build_energy(self.settings, self.run.model))
        object.__setattr__(self, "energy", energy)
        object.__setattr__(self, "kernel", build_kernel(self.settings, self.run.model, energy, self.allowed_V))

    @property
    def allowed_V(self) -> Tensor | None:
        return None if bool(self.run.allowed_V.all()) else self.run.allowed_V


def sample(
    run: SequenceRun,
    problems: Sequence[Problem],
    settings: SampleSettings,
    *,
    output: Path | None = None,
    on_sweep: Callable[[SweepDone], None] | None = None,
) -> Sampled:
    """Sample sequences for problems.

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
        Everything; in other processes than the first, their own share.

    Raises:
        InputError: a phrase or the output cannot be used, or no start keeps the constraints.

    Source: Goyal (2021), sections 6.3 and 6.4; Ghazvininejad et al. (EMNLP 2019), section 4, for several lengths. Not
    implemented: moves between lengths.

    Example:
        >>> from seqwise.data.readers import Example
        >>> from seqwise.runs.masked_model_settings import MaskedModelSettings
        >>> from seqwise.runs.masked_model_training import new_masked_run
        >>> run = new_masked_run([Example((), ("b", "a"))], MaskedModelSettings(model="lstm", minimum_count=1))
        >>> _ = run.model.eval()
        >>> settings = SampleSettings(chains=2, sweeps=3, contain=("a b",))
        >>> (first, second) = sample(run, [Problem((FREE, FREE, 0), Example((), ()))], settings).samples
        >>> first.tokens, second.tokens, first.sweep
        ((0, 1, 0), (0, 1, 0), 3)
    """
    plan, tasks = _plan(run, problems, settings, on_sweep)
    join(patience=WITHOUT_END)
    if output is not None:
        began = _fingerprints(run, problems)
        from_first(lambda: claim(output, settings, began))
    parts = list(_parts(tasks, settings, run.model.vocab_size))
    own = share(range(len(parts)))
    groups: dict[int, Group] = {}

    def advance(number: int) -> None:
        part, folder = parts[number], None if output is None else output / "chains" / f"{number:04d}"
        with room_for(f"chains of {len(part[0].tokens)} tokens", mend="give a smaller --max-rows, or fewer --chains"):
            groups[number] = _advance(plan, part, folder, done=len(groups) * settings.num_sweeps, groups=len(own))

    def write() -> None:
        if output is not None and is_first():
            found = collect_samples(_in_order(groups), settings)
            lines = (sample_line(run, problems, one, free=settings.free) for one in found)
            write_atomically(output / "samples.jsonl", "".join(f"{line}\n" for line in lines))

    for number in own:
        advance(number)
        write()
    wait_for_all()
    if is_first() and len(own) < len(parts):
        for number in sorted({*range(len(parts))} - {*own}):  # which the others have advanced to the end
            advance(number)
        write()
    return Sampled(collect_samples(_in_order(groups), settings), _in_order(groups))


def _in_order(groups: Mapping[int, Group]) -> list[Group]:
    return [group for _, group in sorted(groups.items())]


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
        >>> run = new_masked_run([Example((), ("b", "a"))], MaskedModelSettings(model="lstm", minimum_count=1))
        >>> _ = run.model.eval()
        >>> kernel, state = begin_chains(run, Problem((FREE, 0), Example((), ())), SampleSettings(chains=3))
        >>> state.tokens_BT.shape, state.free_BT[0]
        (torch.Size([3, 2]), tensor([ True, False]))
    """
    plan, tasks = _plan(run, [problem], settings, None)
    return plan.kernel, _start(plan, tasks[:1], _context(plan, tasks[:1]))


def _plan(
    run: SequenceRun,
    problems: Sequence[Problem],
    settings: SampleSettings,
    on_sweep: Callable[[SweepDone], None] | None,
) -> tuple[_Plan, list[Task]]:
    """What all groups share, and the problems at their lengths."""
    required = phrase_ids(run, settings.contain, setting="contain")
    forbidden = phrase_ids(run, settings.without, setting="without")
    penalty = torch.inf if settings.penalty is None else settings.penalty
    phrases = Phrases(required, [way for ways in forbidden for way in ways], penalty)
    # A length that has no room for a phrase would leave nothing to sample.
    needed = [min(map(len, ways)) for ways in required] if phrases.hard else []
    tasks = split_into_tasks(run, problems, settings, max(needed, default=1))
    return _Plan(run, problems, settings, phrases, on_sweep), tasks


def _parts(tasks: Sequence[Task], settings: SampleSettings, vocab_size: int) -> Iterator[Sequence[Task]]:
    """Tasks of one length, as many as may be advanced together."""
    chains_each = settings.num_chains * settings.num_replicas

    def most(length: int) -> int:
        return chains_at_once(length, vocab_size=vocab_size, max_rows=settings.max_rows) // chains_each

    for places in of_one_length([len(task.tokens) for task in tasks], most):
        yield [tasks[place] for place in places]


def _advance(plan: _Plan, tasks: Sequence[Task], folder: Path | None, *, done: int, groups: int) -> Group:
    """Start chains or read them back, and advance them to their last sweep."""
    settings, total = plan.settings, groups * plan.settings.num_sweeps
    state, history = _begin(plan, tasks, folder)
    began, seconds = state.sweep, 0.0

    def report(now: ChainState, info: Info) -> None:
        if plan.on_sweep is not None:
            own = slice(None, None, settings.num_replicas)
            proposals = max(int(info.proposals_B[own].sum()), 1)
            shares = int(info.accepted_B[own].sum()) / proposals, int(info.novel_B[own].sum()) / proposals
            plan.on_sweep(SweepDone(now.sweep, done + now.sweep, total, *shares, float(now.energy_B[own].mean())))

    while state.sweep < settings.num_sweeps:
        count = min(settings.save_every, settings.num_sweeps - state.sweep)
        chains = sample_chains(plan.kernel, state, count, seed=settings.seed, progress=report)
        later, state = _history(chains, settings, first=state.sweep), chains.state
        if folder is not None:
            append_sweeps(folder.with_suffix(".jsonl"), later, first=len(history))
            keep_chains(folder.with_suffix(".safetensors"), state)
        history, seconds = history + later, seconds + chains.seconds
    return Group(tasks, history, coldest(state, settings.num_replicas).tokens_BT, seconds, state.sweep - began)


def _begin(plan: _Plan, tasks: Sequence[Task], folder: Path | None) -> tuple[ChainState, History]:
    settings = plan.settings
    count = len(tasks) * settings.num_chains
    context = _context(plan, tasks)
    path = None if folder is None else folder.with_suffix(".safetensors")
    if path is None or not path.exists():
        if folder is not None:
            folder.with_suffix(".jsonl").unlink(missing_ok=True)
        return _start(plan, tasks, context), History.none(count)
    state = load_chains(path, plan.energy, context=context)
    if len(state) != count * settings.num_replicas:
        raise InputError("the file holds other chains", path=path, mend="remove the folder and start again")
    if state.sweep > settings.num_sweeps:
        problem = f"sweeps: the chains have made {state.sweep} already, and {settings.num_sweeps} are asked for"
        raise InputError(problem, path=path, mend=f"ask for {state.sweep} or more, or give another --output")
    assert folder is not None
    return state, read_history(folder.with_suffix(".jsonl"), num_sweeps=state.sweep, num_chains=count)


def _context(plan: _Plan, tasks: Sequence[Task]) -> Any:
    """What the model has read, a row for each replica of each chain."""
    model = plan.run.model
    if not isinstance(model, ConditionalMaskedTransformer):
        return None
    sources = [EncodedExample(plan.problems[task.problem].source_ids, ()) for task in tasks]
    batch = collate(list(enumerate(sources)))
    with torch.no_grad():
        context = model.encode(batch.sources_BS, batch.source_lengths_B)
    each = plan.settings.num_chains * plan.settings.num_replicas
    return rows_of(context, torch.arange(len(tasks)).repeat_interleave(each))


def _start(plan: _Plan, tasks: Sequence[Task], context: Any) -> ChainState:
    settings, model = plan.settings, plan.run.model
    each = settings.num_chains
    tokens_BT = torch.tensor([task.tokens for task in tasks]).repeat_interleave(each, dim=0)
    number_B = torch.arange(each).repeat(len(tasks))
    first_B = torch.tensor([(task.problem * settings.length_beam + task.rank) * each for task in tasks])
    chain_B = first_B.repeat_interleave(each) + number_B
    free_BT = tokens_BT == FREE
    # Of the replicas of a chain, which start together, the context is the same.
    rows_B = torch.arange(0, len(tokens_BT) * settings.num_replicas, settings.num_replicas)
    shared: dict[str, Any] = {"seed": settings.seed, "allowed_V": plan.allowed_V, "chain_B": chain_B}
    shared |= {"context": rows_of(context, rows_B), "greedy_B": number_B == 0}
    blank_BT = tokens_BT.masked_fill(free_BT, 0)
    started_BT, found_B = phrase_starts(model, blank_BT, free_BT, plan.phrases, **shared)
    if not bool(found_B.all()):
        raise _no_start(plan, tasks[int((~found_B).nonzero()[0]) // each])
    state = start_chains(plan.energy, started_BT, free_BT=free_BT, context=shared["context"], chain_B=chain_B)
    return replicas(state, settings.num_replicas)


def _no_start(plan: _Plan, task: Task) -> InputError:
    example = plan.problems[task.problem].example
    what = [
        f"{verb} {phrase!r}"
        for verb, phrases in (("contains", plan.settings.contain), ("does without", plan.settings.without))
        for phrase in phrases
    ]
    length = f"of length {len(task.tokens)} " if FREE in task.tokens and not example.target else ""
    return InputError(
        f"no sequence {length}was found that {' and '.join(what)}",
        path=example.path or None,
        line=example.line or None,
        mend="leave more positions free, or give a penalty instead of a hard constraint",
    )


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


def _fingerprints(run: SequenceRun, problems: Sequence[Problem]) -> dict[str, str]:
    """What tells the model, with its vocabulary, and the problems from others."""
    asked = repr([(problem.tokens, problem.source_ids) for problem in problems])
    return {"model": run.fingerprint(), "problems": hashlib.sha256(asked.encode()).hexdigest()}
