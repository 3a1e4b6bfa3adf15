"""Chains over problems: sequences that agree with fixed tokens, advanced in groups of equal length.

The random numbers of a chain depend only on the seed, its number and the sweep. So it takes the same path in any group,
if the model's scores do not depend on the batch.

Shapes: S sweeps, B chains, T positions, V vocabulary, R replicas of a chain, N some of the chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from seqwise.data.batches import FREE, EncodedExample, collate
from seqwise.devices import device_of
from seqwise.errors import InputError, placed
from seqwise.models.conditional import ConditionalMaskedTransformer
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.chains import Trace, sample_chains
from seqwise.sampling.combinators import replicas
from seqwise.sampling.energies import Energy, rows_of
from seqwise.sampling.phrases import Phrases, phrase_starts
from seqwise.sampling.settings import ChainSettings
from seqwise.sampling.state import ChainState, Info, Kernel, start_chains

Tokenizations = tuple[tuple[int, ...], ...]
"""Tokenizations of a phrase, as ids; the first is written into initial sequences."""

Progress = Callable[[ChainState, Info], None]
"""Function called after each sweep of a group with its state, replicas included, and the record of the sweep."""

MOST_SCORES = 2**25
"""Largest number of scores (chains x positions x vocabulary) that a group caches."""


@dataclass(frozen=True)
class ChainProblem:
    """Problem: sequences that agree with some fixed tokens, and the chains over them."""

    tokens: tuple[int, ...]  # ids, FREE at positions to be sampled
    source: tuple[int, ...] = (0,)  # ids that a conditional model reads
    num_chains: int = 1
    first_chain: int = 0  # number of the first chain, which determines its random numbers; the others follow
    starts: Sequence[tuple[int, ...]] = ()  # initial sequence of each chain; () for those that the runner makes
    problem: int = 0  # index among the requested problems
    rank: int = 0  # rank of this length among those tried for the problem
    path: str | None = None  # file of the problem, for messages
    line: int | None = None


class Sample(NamedTuple):
    """Sample of a chain."""

    problem: int  # index of the problem
    chain: int  # index among the chains of the problem; those of the likeliest length come first
    sweep: int  # number of the sweep after which the sample was taken, from 1
    tokens: tuple[int, ...]
    energy: float  # at temperature 1, soft constraints included


def samples_of(problem: ChainProblem, trace: Trace, sweeps: Iterable[int]) -> list[Sample]:
    """Return the kept sequences of one problem after some sweeps, by chain and sweep."""
    sweeps = list(sweeps)
    return [
        Sample(
            problem.problem,
            problem.rank * problem.num_chains + number,
            sweep,
            tuple(trace.tokens[sweep][number].tolist()),
            float(trace.energy_SB[sweep - 1, number]),
        )
        for number in range(problem.num_chains)
        for sweep in sweeps
    ]


@torch.no_grad()
def encode_sources(model: MaskedModel, sources: Sequence[tuple[int, ...]]) -> Any:
    """Encode sources for a conditional model, one row each; None for a model without sources."""
    if not isinstance(model, ConditionalMaskedTransformer):
        return None
    batch = collate([EncodedExample(ids, ()) for ids in sources]).to(device_of(model))
    return model.encode(batch.sources_BS, batch.source_lengths_B)


@dataclass(frozen=True, eq=False)
class ChainRunner:
    """Model, target, kernel and constraints shared by the chains of several problems.

    Phrases of the settings are matched as words in the text that ``spell`` makes of tokens, or as tokens if it is None.
    With "dispersed" starts, the first chain of each problem starts from a greedy fill, the others from sequences that
    are drawn token by token; with "greedy" starts, all start from the greedy fill.
    """

    model: MaskedModel
    settings: ChainSettings
    seed: int = 0
    allowed_V: Tensor | None = None  # bool, tokens that may be drawn; None for all
    phrase: Callable[[str], Tokenizations] | None = None  # from the text of a phrase
    spell: Callable[[Sequence[int]], str] | None = None  # from ids to text
    starts: Literal["dispersed", "greedy"] = "dispersed"
    phrases: Phrases = field(init=False)
    energy: Energy = field(init=False)
    kernel: Kernel = field(init=False)

    def __post_init__(self) -> None:
        phrases = self._phrases()
        energy = phrases.constrain(self.settings.build_energy(self.model))
        object.__setattr__(self, "phrases", phrases)
        object.__setattr__(self, "energy", energy)
        object.__setattr__(self, "kernel", self.settings.build_kernel(self.model, energy, self.allowed_V))

    def _phrases(self) -> Phrases:
        required, forbidden = (
            [self._tokenizations(text, setting) for text in getattr(self.settings, setting)]
            for setting in ("contain", "without")
        )
        penalty = torch.inf if self.settings.penalty is None else self.settings.penalty
        if self.spell is None:
            return Phrases(required, [each for tokenizations in forbidden for each in tokenizations], penalty)
        return Phrases.of_words(required, forbidden, penalty=penalty, spell=self.spell)

    def _tokenizations(self, text: str, setting: str) -> Tokenizations:
        if self.phrase is None:
            raise InputError(f"{setting}: phrases need the units of a run or a tokenizer")
        with placed(f"{setting}: "):
            return self.phrase(text)

    @property
    def shortest(self) -> int:
        """Smallest length with room for a required phrase."""
        needed = [min(map(len, tokenizations)) for tokenizations in self.phrases.required] if self.phrases.hard else []
        return max(needed, default=1)

    def require_room(self, problem: ChainProblem) -> None:
        """Raise an InputError if a problem has no room for a required phrase.

        Phrases are checked one by one; whether several fit together is only known once they are written.
        """
        if self.phrases.hard and not all(_has_room(problem.tokens, each) for each in self.phrases.required):
            raise self._no_start(problem)

    def groups(self, problems: Sequence[ChainProblem]) -> Iterator[list[int]]:
        """Yield groups of indices of problems of one length, shortest first, as many as fit."""
        most_chains = max((problem.num_chains for problem in problems), default=1) * self.settings.num_replicas

        def most(length: int) -> int:
            fitting = min(self.settings.max_rows, MOST_SCORES // (length * self.model.vocab_size))
            return fitting // most_chains

        return of_one_length([len(problem.tokens) for problem in problems], most)

    def context(self, problems: Sequence[ChainProblem]) -> Any:
        """Return the context of the model, one row for each replica of each chain."""
        rows_N = torch.tensor([problem.num_chains * self.settings.num_replicas for problem in problems])
        places_B = torch.arange(len(problems)).repeat_interleave(rows_N)
        return rows_of(encode_sources(self.model, [problem.source for problem in problems]), places_B)

    def numbers(self, problems: Sequence[ChainProblem]) -> Tensor:
        """Return the numbers of the chains, without replicas, int64 (B,)."""
        numbers = [torch.arange(problem.num_chains) + problem.first_chain for problem in problems]
        return torch.cat(numbers)

    def start(self, problems: Sequence[ChainProblem]) -> ChainState:
        """Make the initial state of the chains of problems of one length, replicas included."""
        context, chain_B = self.context(problems), self.numbers(problems)
        rows = [problem.tokens for problem in problems for _ in range(problem.num_chains)]
        tokens_BT = torch.tensor(rows)
        free_BT = tokens_BT == FREE
        own_context = rows_of(context, torch.arange(len(rows)) * self.settings.num_replicas)
        if problems[0].starts:
            started_BT = torch.tensor([ids for problem in problems for ids in problem.starts])
        else:
            first = [number == 0 for problem in problems for number in range(problem.num_chains)]
            started_BT, found_B = phrase_starts(
                self.model,
                tokens_BT.masked_fill(free_BT, 0),
                free_BT,
                self.phrases,
                chain_B=chain_B,
                greedy_B=torch.tensor(first) | (self.starts == "greedy"),
                seed=self.seed,
                context=own_context,
                allowed_V=self.allowed_V,
                max_rows=self.settings.max_rows,
            )
            if not bool(found_B.all()):
                owners = [problem for problem in problems for _ in range(problem.num_chains)]
                raise self._no_start(owners[int((~found_B).nonzero()[0])])
        state = start_chains(self.energy, started_BT, free_BT=free_BT, context=own_context, chain_B=chain_B)
        return replicas(state, self.settings.num_replicas)

    def advance(
        self, state: ChainState, num_sweeps: int, *, progress: Progress | None = None
    ) -> tuple[Trace, ChainState]:
        """Make sweeps; return the trace of the chains at the first temperature, and the state of all replicas."""
        trace = sample_chains(self.kernel, state, num_sweeps, seed=self.seed, progress=progress)
        return trace.coldest(self.settings.num_replicas), trace.state

    def _no_start(self, problem: ChainProblem) -> InputError:
        what = [
            f"{verb} {phrase!r}"
            for verb, phrases in (("contains", self.settings.contain), ("does without", self.settings.without))
            for phrase in phrases
        ]
        all_free = all(token == FREE for token in problem.tokens)
        hint = f"{'choose a larger length' if all_free else 'leave more positions free'}, or give a penalty"
        tokens = {token for tokenizations in self.phrases.required for phrase in tokenizations for token in phrase}
        if self.allowed_V is not None and not bool(self.allowed_V[sorted(tokens)].all()):
            hint = f"allow all tokens of the phrases, {hint}"
        found = f"was found that {' and '.join(what)}" if what else "was found: the model excludes every allowed token"
        return InputError(
            f"no sequence {f'of length {len(problem.tokens)} ' if all_free else ''}{found}",
            path=problem.path,
            line=problem.line,
            hint=hint if what else "allow other tokens",
        )


def run_problems(
    model: MaskedModel,
    problems: Sequence[ChainProblem],
    settings: ChainSettings,
    *,
    num_sweeps: int,
    progress: Progress | None = None,
    **options: Any,
) -> list[Trace]:
    """Run chains over problems of any lengths that sample ``p(y) proportional to exp(-E(y) / T)``; return their traces.

    ``options`` are the remaining ones of :class:`ChainRunner`.

    Source: Goyal (2021), sections 6.3 and 6.4.

    Example:
        >>> from seqwise.sampling import ChainSettings, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> problems = [ChainProblem((FREE, 1, FREE), num_chains=2), ChainProblem((FREE, FREE, 0), first_chain=2)]
        >>> first, second = run_problems(model, problems, ChainSettings(), num_sweeps=5)
        >>> first.energy_SB.shape, second.tokens[5][0, 2]
        (torch.Size([5, 2]), tensor(0))
    """
    runner = ChainRunner(model, settings, **options)
    traces: dict[int, Trace] = {}
    for places in runner.groups(problems):
        group = [problems[place] for place in places]
        trace, _ = runner.advance(runner.start(group), num_sweeps, progress=progress)
        traces |= zip(places, by_problem(trace, group), strict=True)
    return [traces[place] for place in range(len(problems))]


def of_one_length(lengths: Sequence[int], most: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield indices of sequences of one length, shortest first, in groups of at most ``most(length)``, at least 1.

    Example:
        >>> list(of_one_length([3, 2, 3, 3], lambda length: 6 // length))
        [[1], [0, 2], [3]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for length, group in groupby(order, key=lengths.__getitem__):
        alike, size = list(group), max(1, most(length))
        yield from (alike[first : first + size] for first in range(0, len(alike), size))


def by_problem(trace: Trace, problems: Sequence[ChainProblem]) -> list[Trace]:
    """Split the trace of a group into those of its problems."""
    counts = [problem.num_chains for problem in problems]
    rows_B = torch.arange(sum(counts), device=trace.energy_SB.device)
    return [trace.take(rows_N) for rows_N in rows_B.split(counts)]


def _has_room(tokens: Sequence[int], tokenizations: Sequence[Sequence[int]]) -> bool:
    return any(
        all(tokens[place + offset] in (FREE, written) for offset, written in enumerate(phrase))
        for phrase in tokenizations
        for place in range(len(tokens) - len(phrase) + 1)
    )
