"""Chains over texts: several problems advanced together, and what comes of them as text.

Shapes: S sweeps, B chains, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.hugging_face.masked_model import HuggingFaceMaskedModel
from seqwise.hugging_face.text_codec import TextCodec
from seqwise.sampling.chains import Chains, sample_chains
from seqwise.sampling.combinators import replicas
from seqwise.sampling.diagnostics import ChainReport, diagnose_chains
from seqwise.sampling.lengths import chains_at_once, of_one_length
from seqwise.sampling.phrases import Phrases, phrase_starts
from seqwise.sampling.settings import ChainSettings, build_energy, build_kernel
from seqwise.sampling.starts import FREE
from seqwise.sampling.state import ChainState, Info, start_chains

__all__ = ["Progress", "SampledTexts", "TextChains", "TextProblem", "TextSample", "at_least_one"]

Progress = Callable[[ChainState, Info], None]
"""Called after each sweep with the state and what the sweep did."""


@dataclass(frozen=True)
class TextSample:
    """A text that a chain held.

    Attributes:
        text: what the tokens stand for.
        tokens: without the special ones.
        energy: at temperature 1, soft constraints included.
        problem: the place among the texts to fill in, or among the lengths of the starts, from 0.
        chain: the number of the chain among those of the problem, from 0.
        sweep: after which one, counted from 1.
        survives: whether the tokenizer makes these very tokens of the text.
    """

    text: str
    tokens: tuple[str, ...]
    energy: float
    problem: int
    chain: int
    sweep: int
    survives: bool


@dataclass(frozen=True, eq=False)
class SampledTexts:
    """What came of it.

    Attributes:
        samples: by problem, chain and sweep.
        chains: of each problem, all that they went through.
        discard: sweeps that are not counted.
    """

    samples: Sequence[TextSample]
    chains: Sequence[Chains]
    discard: int

    @property
    def texts(self) -> list[str]:
        """Of the samples, in their order."""
        return [one.text for one in self.samples]

    @property
    def acceptance(self) -> float:
        """The share of proposals that were accepted in the sweeps that count, those that equal the state included."""
        return self._share("accepted_SB")

    @property
    def novelty(self) -> float:
        """The share of proposals that were accepted and changed the state, in the sweeps that count."""
        return self._share("novel_SB")

    def diagnose(self, features: Mapping[str, Callable[[Tensor], Tensor]] | None = None) -> list[ChainReport]:
        """Acceptance, R-hat, effective sample size and warnings, for each problem on its own.

        Args:
            features: names and functions from token ids (S, B, T) to numbers (S, B), which are judged beside the
                energy.

        Raises:
            InputError: fewer than 4 sweeps count, or ArviZ is missing.
        """
        return [diagnose_chains(one, discard=self.discard, features=features) for one in self.chains]

    def _share(self, name: str) -> float:
        proposals = sum(int(one.proposals_SB[self.discard :].sum()) for one in self.chains)
        return sum(int(getattr(one, name)[self.discard :].sum()) for one in self.chains) / max(proposals, 1)


@dataclass(frozen=True)
class TextProblem:
    """What chains run over: the sequences that agree with some tokens.

    Attributes:
        tokens: ids, FREE where they are open.
        num_chains: how many run over it.
        text: with mask tokens, that is filled in; None where whole texts are sampled.
        starts: where the chains start, one each; () where that is to be found.
    """

    tokens: tuple[int, ...]
    num_chains: int
    text: str | None = None
    starts: Sequence[tuple[int, ...]] = ()


@dataclass(frozen=True, eq=False)
class TextChains:
    """All that the chains of one call share; called with the problems, it runs them.

    Attributes: see :func:`~seqwise.hugging_face.sample_texts`.
    """

    model: HuggingFaceMaskedModel
    codec: TextCodec
    allowed_V: Tensor
    settings: ChainSettings
    seed: int
    num_sweeps: int
    discard: int | None
    every: int | None
    progress: Progress | None

    def __call__(self, problems: Sequence[TextProblem]) -> SampledTexts:
        at_least_one("num_sweeps", self.num_sweeps)
        discard = min(7, self.num_sweeps // 2) if self.discard is None else self.discard
        if not 0 <= discard < self.num_sweeps:
            raise InputError(f"discard: of {self.num_sweeps} sweeps {discard} are left out", mend="discard fewer")
        discard = max(discard, self.settings.burn_in if self.settings.burn_in < self.num_sweeps else 0)
        phrases = Phrases.of_words(
            [self._phrase(one, "contain") for one in self.settings.contain],
            [self._phrase(one, "without") for one in self.settings.without],
            penalty=torch.inf if self.settings.penalty is None else self.settings.penalty,
            spell=self.codec.plain,
        )
        energy = phrases.constrain(build_energy(self.settings, self.model))
        kernel = build_kernel(self.settings, self.model, energy, self.allowed_V)
        found: dict[int, Chains] = {}
        most = max((problem.num_chains for problem in problems), default=1) * self.settings.num_replicas

        def at_once(length: int) -> int:
            fitting = chains_at_once(length, vocab_size=self.model.vocab_size, max_rows=self.settings.max_rows)
            return fitting // most

        firsts = [sum(one.num_chains for one in problems[:place]) for place in range(len(problems))]
        for places in of_one_length([len(problem.tokens) for problem in problems], at_once):
            part = [problems[place] for place in places]
            chain_B = torch.cat([firsts[place] + torch.arange(problems[place].num_chains) for place in places])
            tokens_BT, free_BT = self._start(part, places, chain_B.to(self.model.device), phrases)
            state = start_chains(energy, tokens_BT, free_BT=free_BT, chain_B=chain_B.to(self.model.device))
            state = replicas(state, self.settings.num_replicas)
            chains = sample_chains(kernel, state, self.num_sweeps, seed=self.seed, progress=self.progress)
            found |= zip(places, self._by_problem(chains, part), strict=True)
        ordered = [found[place] for place in range(len(problems))]
        samples = [one for place in range(len(problems)) for one in self._samples(problems, place, ordered, discard)]
        return SampledTexts(samples, ordered, discard)

    def _phrase(self, text: str, setting: str) -> tuple[tuple[int, ...], ...]:
        try:
            return self.codec.phrase(text)
        except InputError as error:
            raise InputError(f"{setting}: {error.problem}", mend=error.mend) from None

    def _start(
        self, part: Sequence[TextProblem], places: Sequence[int], chain_B: Tensor, phrases: Phrases
    ) -> tuple[Tensor, Tensor]:
        """Where the chains of problems of one length start, and what is free."""
        rows = [problem.tokens for problem in part for _ in range(problem.num_chains)]
        free_BT = torch.tensor(rows, device=self.model.device) == FREE
        if part[0].starts:
            return torch.tensor([ids for problem in part for ids in problem.starts], device=self.model.device), free_BT
        number_B = torch.cat([torch.arange(problem.num_chains) for problem in part])
        tokens_BT, found_B = phrase_starts(
            self.model,
            torch.tensor(rows, device=self.model.device).masked_fill(free_BT, 0),
            free_BT,
            phrases,
            chain_B=chain_B,
            greedy_B=(number_B == 0).to(self.model.device),
            seed=self.seed,
            allowed_V=self.allowed_V,
            max_rows=self.settings.max_rows,
        )
        if not bool(found_B.all()):
            owner = [place for place, problem in zip(places, part, strict=True) for _ in range(problem.num_chains)]
            number = owner[int((~found_B).nonzero()[0])] + 1
            where = f"text {number}: " if part[0].text is not None else ""
            mend = "leave more positions free, or give a penalty instead of a hard constraint"
            raise InputError(f"{where}no sequence was found that keeps the constraints", mend=mend)
        return tokens_BT, free_BT

    def _by_problem(self, chains: Chains, part: Sequence[TextProblem]) -> list[Chains]:
        """The chains of each problem; of replicas the ones at the wanted temperature, with the passes of all."""
        count, first, split = self.settings.num_replicas, 0, []
        for problem in part:
            rows_N = torch.arange(first, first + problem.num_chains * count, device=chains.energy_SB.device)
            own = chains.take(rows_N[::count])
            passes_SB = chains.passes_SB[:, rows_N].unflatten(1, (-1, count)).sum(2)
            split.append(replace(own, passes_SB=passes_SB))
            first += len(rows_N)
        return split

    def _samples(
        self, problems: Sequence[TextProblem], place: int, ordered: Sequence[Chains], discard: int
    ) -> list[TextSample]:
        chains, blank = ordered[place], problems[place].text
        wanted = [len(chains)]
        if self.every is not None:
            every = at_least_one("every", self.every)
            wanted = [sweep for sweep in range(discard + 1, len(chains) + 1) if sweep % every == 0]
        samples = []
        for chain in range(chains.energy_SB.shape[1]):
            for sweep in wanted:
                ids = chains.tokens_SBT[sweep - 1, chain].tolist()
                text = self.codec.text(ids) if blank is None else self.codec.filled(blank, ids)
                energy = float(chains.energy_SB[sweep - 1, chain])
                survives = self.codec.survives(text, ids)
                samples.append(TextSample(text, self.codec.pieces(ids), energy, place, chain, sweep, survives))
        return samples


def at_least_one(name: str, value: int) -> int:
    """The value, if it is 1 or more.

    Raises:
        InputError: it is less.
    """
    if value < 1:
        raise InputError(f"{name} must be at least 1, got {value}")
    return value
