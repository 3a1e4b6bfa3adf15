"""Where the chains of a sampling start, and what all of them share.

Shapes: B chains, T positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import EncodedExample, collate
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.models.conditional import ConditionalMaskedTransformer
from seqwise.runs.sampling_problems import FREE, Problem, Task, phrase_ids, split_into_tasks
from seqwise.runs.sampling_settings import SampleSettings, build_energy, build_kernel
from seqwise.runs.sequence_run import SequenceRun
from seqwise.sampling import ChainState, Energy, Kernel, Phrases, phrase_starts, replicas, start_chains
from seqwise.sampling.energies import rows_of

__all__ = ["Plan", "context_of", "numbers_of", "plan_of", "require_room", "start", "tasks_of"]


@dataclass(frozen=True, eq=False)
class Plan:
    """What all chains of a sampling share.

    Attributes:
        run: its model in evaluation mode.
        settings: see there.
        phrases: what must or must not occur, as ids.
        energy: the model's, with what the phrases add.
        kernel: one sweep.
    """

    run: SequenceRun
    settings: SampleSettings
    phrases: Phrases
    energy: Energy = field(init=False)
    kernel: Kernel = field(init=False)

    def __post_init__(self) -> None:
        energy = self.phrases.constrain(build_energy(self.settings, self.run.model))
        object.__setattr__(self, "energy", energy)
        object.__setattr__(self, "kernel", build_kernel(self.settings, self.run.model, energy, self.allowed_V))

    @property
    def allowed_V(self) -> Tensor | None:
        """Bool (V,): the tokens that may be proposed; None for all."""
        return None if bool(self.run.allowed_V.all()) else self.run.allowed_V

    @property
    def longest_phrase(self) -> int:
        """How many tokens the longest phrase has that must occur in every sequence, or 1."""
        return max((len(ways[0]) for ways in self.phrases.required), default=1) if self.phrases.hard else 1


def plan_of(run: SequenceRun, settings: SampleSettings) -> Plan:
    """What the settings stand for with this run.

    Raises:
        InputError: a phrase cannot be used.
    """
    required = phrase_ids(run, settings.contain, setting="contain")
    forbidden = phrase_ids(run, settings.without, setting="without")
    penalty = torch.inf if settings.penalty is None else settings.penalty
    if run.spell is None:
        return Plan(run, settings, Phrases(required, [way for ways in forbidden for way in ways], penalty))
    return Plan(run, settings, Phrases.of_words(required, forbidden, penalty=penalty, spell=run.spell))


def tasks_of(plan: Plan, problems: Sequence[Problem], *, first: int = 0) -> list[Task]:
    """Problems at the lengths that they are tried at; see :func:`~seqwise.runs.sampling_problems.split_into_tasks`."""
    # A length that has no room for a phrase would leave nothing to sample.
    needed = [min(map(len, ways)) for ways in plan.phrases.required] if plan.phrases.hard else []
    return split_into_tasks(plan.run, problems, plan.settings, max(needed, default=1), first=first)


def require_room(plan: Plan, problems: Iterable[Problem]) -> None:
    """Refuse problems with no room for a phrase that must occur, before anything is sampled.

    Each phrase is looked at alone: that two have no room together, only the attempt to write them in tells.

    Raises:
        InputError: with file and line.
    """
    if not plan.phrases.hard or not plan.phrases.required:
        return
    for problem in problems:
        if problem.tokens and not all(_has_room(problem.tokens, ways) for ways in plan.phrases.required):
            raise _no_start(plan, problem.tokens, problem.example)


def _has_room(tokens: Sequence[int], ways: Sequence[Sequence[int]]) -> bool:
    return any(
        all(token in (FREE, wanted) for token, wanted in zip(tokens[place:], phrase, strict=False))
        for phrase in ways
        for place in range(len(tokens) - len(phrase) + 1)
    )


def context_of(plan: Plan, tasks: Sequence[Task]) -> Any:
    """What the model has read, a row for each replica of each chain."""
    model = plan.run.model
    if not isinstance(model, ConditionalMaskedTransformer):
        return None
    sources = [EncodedExample(task.asked.source_ids, ()) for task in tasks]
    batch = collate(list(enumerate(sources)))
    with torch.no_grad():
        context = model.encode(batch.sources_BS, batch.source_lengths_B)
    each = plan.settings.num_chains * plan.settings.num_replicas
    return rows_of(context, torch.arange(len(tasks)).repeat_interleave(each))


def numbers_of(settings: SampleSettings, tasks: Sequence[Task]) -> Tensor:
    """Int64 (B,): which random numbers each chain of these tasks draws, replicas not counted."""
    each = settings.num_chains
    first_B = torch.tensor([(task.problem * settings.length_beam + task.rank) * each for task in tasks])
    return first_B.repeat_interleave(each) + torch.arange(each).repeat(len(tasks))


def start(plan: Plan, tasks: Sequence[Task], context: Any) -> ChainState:
    """The chains of some tasks before their first sweep.

    Args:
        plan: see there.
        tasks: all of one length.
        context: of these tasks, see :func:`context_of`.

    Raises:
        InputError: no start keeps the constraints, with the file and the line of the problem.
    """
    settings, model = plan.settings, plan.run.model
    each, chain_B = settings.num_chains, numbers_of(settings, tasks)
    tokens_BT = torch.tensor([task.tokens for task in tasks]).repeat_interleave(each, dim=0)
    number_B = torch.arange(each).repeat(len(tasks))
    free_BT = tokens_BT == FREE
    # Of the replicas of a chain, which start together, the context is the same.
    rows_B = torch.arange(0, len(tokens_BT) * settings.num_replicas, settings.num_replicas)
    shared: dict[str, Any] = {"seed": settings.seed, "allowed_V": plan.allowed_V, "chain_B": chain_B}
    shared |= {"max_rows": settings.max_rows}
    shared |= {"context": rows_of(context, rows_B), "greedy_B": number_B == 0}
    blank_BT = tokens_BT.masked_fill(free_BT, 0)
    started_BT, found_B = phrase_starts(model, blank_BT, free_BT, plan.phrases, **shared)
    if not bool(found_B.all()):
        task = tasks[int((~found_B).nonzero()[0]) // each]
        raise _no_start(plan, task.tokens, task.asked.example)
    state = start_chains(plan.energy, started_BT, free_BT=free_BT, context=shared["context"], chain_B=chain_B)
    return replicas(state, settings.num_replicas)


def _no_start(plan: Plan, tokens: Sequence[int], example: Example) -> InputError:
    what = [
        f"{verb} {phrase!r}"
        for verb, phrases in (("contains", plan.settings.contain), ("does without", plan.settings.without))
        for phrase in phrases
    ]
    length = f"of length {len(tokens)} " if FREE in tokens and not example.target else ""
    return InputError(
        f"no sequence {length}was found that {' and '.join(what)}",
        path=example.path or None,
        line=example.line or None,
        mend="leave more positions free, or give a penalty instead of a hard constraint",
    )
