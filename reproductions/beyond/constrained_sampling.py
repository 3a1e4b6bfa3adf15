"""Errors of samplers of p(y | y in L) on a space small enough to list, and their numbers of passes of the model.

A language model of phonemes writes words of up to three phonemes, which six languages constrain. For masking, masking
with a memory (ASAp) and chains, the law of a sample is computed exactly. Rejection is exact by construction, with or
without a memory, and only its passes are measured. The error of sequential Monte Carlo is a lower bound, estimated from
many runs; that of ``sample_within`` is an upper bound, the share of its samples that come from chains.

Shapes: N outputs of a language, T steps, R runs, P particles, V phonemes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reproductions import Setup
from reproductions.beyond.stress import cmu_entries, cmu_version
from reproductions.cells import measure_by_seed
from reproductions.comparison import judge_by_seed
from reproductions.corpora.lexicons import without_stress
from reproductions.goyal_2021.enumerable import total_variation
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from reproductions.verdicts import student_result
from reproductions.workers import Report
from seqwise.data import EncodedExample, collate
from seqwise.data.readers import Example
from seqwise.evaluation.signature import sha256_of_examples, sign
from seqwise.models import EncoderDecoder
from seqwise.models.protocols import StepModel
from seqwise.names import WithinName
from seqwise.objectives import cross_entropy_objective
from seqwise.sampling import LanguageChains, RejectionMemory, sample_within, start_within
from seqwise.sampling.energies import rows_of
from seqwise.search import Language, trie

LONGEST = 3  # phonemes
SMOOTHING = 0.1  # added to each count of the bigram model
STEPS, BATCH = 600, 64  # of training the LSTM
PASSES = 10  # for each sample
SAMPLES = (10, 100, 1000)
LEARNT = (100, 1000)  # passes after which the memory of ASAp is measured
RUNS = 20_000  # of sequential Monte Carlo
ESS = 0.5  # effective share of the particles below which they are resampled
VOWELS = frozenset(["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"])
MASKING, CHAINS, SMC = "masking", f"Metropolis-Hastings, {PASSES} passes", f"SMC, {PASSES} particles"
PLAIN, DISTANCE, COST = "rejection", "total variation", "passes"

Word = tuple[str, ...]
Found = dict[tuple[str, str], float]
"""Numbers of one model, by system and measure."""


@cache
def lexicon() -> tuple[Word, ...]:
    """Return the pronunciations of the CMU dictionary, without stress, each once."""
    return tuple(sorted({without_stress(phonemes) for _, phonemes in cmu_entries()}))


@cache
def phonemes() -> tuple[str, ...]:
    """Return the phonemes; the end token follows them."""
    return tuple(sorted({phoneme for word in lexicon() for phoneme in word}))


@cache
def set_of_words() -> frozenset[Word]:
    """Return the lexicon as a set."""
    return frozenset(lexicon())


CONSTRAINTS: Mapping[str, Callable[[Word], bool]] = {
    "exactly three": lambda word: len(word) == LONGEST,
    "ends in a vowel": lambda word: word[-1] in VOWELS,
    "contains K": lambda word: "K" in word,
    "alternates": lambda word: all((a in VOWELS) != (b in VOWELS) for a, b in itertools.pairwise(word)),
    "in the lexicon": lambda word: word in set_of_words(),
    "no phoneme twice": lambda word: len(set(word)) == len(word),
}
"""Languages by name, each as a condition on words."""


@cache
def constraint(name: str) -> tuple[Language, Tensor]:
    """Return a language and its outputs (N, T) in lexicographic order, padded with the end token."""
    names, end = phonemes(), len(phonemes())
    ids = [
        word
        for length in range(1, LONGEST + 1)
        for word in itertools.product(range(end), repeat=length)
        if CONSTRAINTS[name](tuple(names[token] for token in word))
    ]
    ended = sorted((*word, *[end] * (LONGEST + 1 - len(word))) for word in ids)
    return trie(ids, end=end), torch.tensor(ended)


# ------------------------------------------------------------------------------------------------- models


class Bigram:
    """Bigram model of phonemes, as a step model without sources; row V of its table begins a word."""

    def __init__(self, log_probs: Tensor) -> None:
        self.log_probs, self.end = log_probs, len(log_probs) - 1
        self.embedding_VD = torch.eye(len(log_probs), dtype=log_probs.dtype)

    def start(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the first step, and an empty state."""
        return self.embedding_VD[self.end].expand(len(context), 1, -1), context.new_zeros(len(context), 1, 0)

    def step(self, inputs_BJD: Tensor, state: Tensor, context: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Look up the row of the last phoneme."""
        return inputs_BJD @ self.log_probs, state

    def head(self, features: Tensor) -> Tensor:
        """Return the features, which are the scores."""
        return features


def bigram(seed: int) -> tuple[Any, Any]:
    """Make a smoothed bigram model of a bootstrap sample of the lexicon, and its context."""
    number = {phoneme: place for place, phoneme in enumerate(phonemes())}
    end, words = len(number), lexicon()
    counts = [[SMOOTHING] * (end + 1) for _ in range(end + 1)]
    counts[end][end] = 0.0  # no word is empty
    for place in torch.randint(len(words), (len(words),), generator=torch.Generator().manual_seed(seed)).tolist():
        ids = [end, *(number[phoneme] for phoneme in words[place]), end]
        for before, after in itertools.pairwise(ids):
            counts[before][after] += 1
    table = torch.tensor(counts, dtype=torch.float64)
    model = Bigram((table / table.sum(1, keepdim=True)).log().clamp(min=-1e3))
    return model, torch.zeros(1, 0)


def lstm(seed: int) -> tuple[Any, Any]:
    """Train an LSTM on the lexicon, the decoder of a constant source, and return it with its context."""
    torch.manual_seed(seed)
    number = {phoneme: place for place, phoneme in enumerate(phonemes())}
    end, words = len(number), lexicon()
    model = EncoderDecoder(source_size=2, target_size=end + 1, end=end, embedding_size=32, hidden_size=64)
    optimizer, objective = torch.optim.Adam(model.parameters(), lr=3e-3), cross_entropy_objective()
    for _ in range(STEPS):
        chosen = [words[place] for place in torch.randint(len(words), (BATCH,)).tolist()]
        examples = [EncodedExample((1,), (*(number[phoneme] for phoneme in word), end)) for word in chosen]
        loss = objective(model, collate(examples), {})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return model, model.encode(collate([EncodedExample((1,), ())]))


MODELS: Mapping[str, Callable[[int], tuple[Any, Any]]] = {"bigram": bigram, "LSTM": lstm}
"""Functions from a seed to a model and its context, by name."""


# ------------------------------------------------------------------------------------------------- laws


def prefixes(outputs_NT: Tensor, length: int) -> Tensor:
    """Number the prefixes of sorted outputs in order, (N,)."""
    is_new_N = (outputs_NT[1:, :length] != outputs_NT[:-1, :length]).any(1)
    return F.pad(is_new_N.long().cumsum(0), (1, 0))


def after_proposal(law_N: Tensor, states: LanguageChains, end: int | None, *, independence: float = 0.5) -> Tensor:
    """Return the law of chains after a proposal of ``regrow_suffix``, from the chain of each output, sorted.

    Outputs that share y_<t exchange mass. With a = s(t | y) prod_{i >= t} Z_i, j is proposed from each of them with the
    same probability, and is accepted with probability ``min(1, a_j / a_i)``. Sorted by a, all flows are running sums.
    """
    outputs_NT, moved_N = states.tokens_BT, law_N
    lengths_N = ((outputs_NT != (-1 if end is None else end)).sum(1) + 1).clamp(max=outputs_NT.shape[1])
    for t in range(outputs_NT.shape[1]):
        start_N = independence * (t == 0) + (1 - independence) / lengths_N.double()
        suffix_N = states.log_mass_BT[:, t:].sum(1)
        number_N = prefixes(outputs_NT, t)
        rows_M = ((lengths_N > t) & (start_N > 0)).nonzero().flatten()
        weight_M = start_N[rows_M] * suffix_N[rows_M].exp()
        order_M = weight_M.argsort(stable=True)
        order_M = order_M[number_N[rows_M][order_M].argsort(stable=True)]
        rows_M, a_M = rows_M[order_M], weight_M[order_M]
        proposed_M = (-states.energy_BT[rows_M, t:].sum(1) - suffix_N[rows_M]).exp()
        flow_M = law_N[rows_M] * start_N[rows_M]
        _, group_M, count_G = number_N[rows_M].unique_consecutive(return_inverse=True, return_counts=True)
        last_G = count_G.cumsum(0) - 1

        def up_to(values_M: Tensor, group_M: Tensor = group_M, last_G: Tensor = last_G) -> tuple[Tensor, Tensor]:
            """Sum over the same group up to each row, and over the rows after it."""
            sums_M = values_M.cumsum(0)
            before_G = F.pad(sums_M[last_G[:-1]], (1, 0))
            return sums_M - before_G[group_M], sums_M[last_G][group_M] - sums_M

        (lower_M, _), (_, higher_M) = up_to(flow_M), up_to(flow_M / a_M)
        (less_M, _), (_, more_M) = up_to(proposed_M * a_M), up_to(proposed_M)
        arriving_M = proposed_M * (lower_M + a_M * higher_M)
        leaving_M = flow_M * (less_M / a_M + more_M)
        moved_N = moved_N.index_add(0, rows_M, arriving_M - leaving_M)
    return moved_N


def particles_law(states: LanguageChains, *, num_runs: int, num_particles: int, seed: int) -> Tensor:
    """Estimate the law of a particle that is drawn by weight after sequential Monte Carlo, (N,).

    Particles are extended with masking and weighted by the allowed mass. They are resampled, by multinomial draws, if
    their effective sample size is below half of their number, as in genlm-control with its default settings.
    """
    generator = torch.Generator().manual_seed(seed)
    outputs_NT = states.tokens_BT
    number_RP = torch.zeros(num_runs, num_particles, dtype=torch.long)
    log_weights_RP = torch.zeros(num_runs, num_particles, dtype=torch.float64)
    for t in range(outputs_NT.shape[1]):
        before_N, after_N = prefixes(outputs_NT, t), prefixes(outputs_NT, t + 1)
        first_C = F.pad(after_N.diff().nonzero().flatten() + 1, (1, 0))  # a row of each longer prefix
        parent_C = before_N[first_C]
        log_mass_C = states.log_mass_BT[first_C, t]
        sums_C = (-states.energy_BT[first_C, t] - log_mass_C).exp().cumsum(0)
        last_G = parent_C.diff().nonzero().flatten()
        first_G = F.pad(last_G + 1, (1, 0))
        last_G = F.pad(last_G, (0, 1), value=len(parent_C) - 1)
        start_G = F.pad(sums_C[last_G[:-1]], (1, 0))
        total_G = sums_C[last_G] - start_G
        log_weights_RP += log_mass_C[first_G][number_RP]
        point_RP = torch.rand(number_RP.shape, generator=generator, dtype=torch.float64)
        place_RP = torch.searchsorted(sums_C, start_G[number_RP] + point_RP * total_G[number_RP], right=True)
        number_RP = torch.minimum(torch.maximum(place_RP, first_G[number_RP]), last_G[number_RP])
        weights_RP = log_weights_RP.softmax(1)
        is_low_R = 1 / weights_RP.square().sum(1) < ESS * num_particles
        low_SP = weights_RP[is_low_R]
        if len(low_SP):
            ancestors_SP = torch.multinomial(low_SP, num_particles, replacement=True, generator=generator)
            number_RP[is_low_R] = number_RP[is_low_R].gather(1, ancestors_SP)
            log_weights_RP[is_low_R] = 0.0  # equal weights: those of a run count only relative to each other
    weights_RP = log_weights_RP.softmax(1) / num_runs
    return torch.zeros(len(outputs_NT), dtype=torch.float64).index_add(0, number_RP.flatten(), weights_RP.flatten())


def least_distance(target_N: Tensor, halves: Sequence[Tensor]) -> float:
    """Estimate a lower bound of total variation: the excess of one estimate where the other exceeds the target."""
    (p_N, q_N), total = halves, 0.0
    for chosen_N, tested_N in ((p_N, q_N), (q_N, p_N)):
        total += float((tested_N - target_N)[chosen_N > target_N].sum()) / 2
    return max(total, 0.0)


def measure(model: StepModel, context: Any, name: str, seed: int) -> Found:
    """Measure every sampler in a language."""
    language, outputs_NT = constraint(name)
    found: Found = {}

    def note(system: str, distance: float, passes: float) -> None:
        found[system, f"{name}, {DISTANCE}"] = distance
        found[system, f"{name}, {COST}"] = passes

    rows_N = torch.zeros(len(outputs_NT), dtype=torch.long)

    def states(memory: RejectionMemory | None) -> LanguageChains:
        return start_within(model, rows_of(context, rows_N), language, outputs_NT, inputs_B=rows_N, memory=memory)

    def draw(
        method: WithinName, num_samples: int, memory: RejectionMemory | None = None, number: int = 0
    ) -> tuple[float, int]:
        samples = sample_within(
            model, context, language, num_steps=LONGEST + 1, num_samples=num_samples, method=method, num_passes=PASSES,
            memory=memory, seed=seed + 1_000_003 * number,
        )  # fmt: skip
        return 1 - float(samples.exact_BN.double().mean()), int(samples.passes_B[0])

    every = states(None)
    target_N, law_N = (-every.energy_B).softmax(0), (-every.energy_B - every.log_weights_B).exp()
    note(MASKING, total_variation(law_N, target_N), 1)
    for _ in range(PASSES - 1):
        law_N = after_proposal(law_N, every, model.end)
    note(CHAINS, total_variation(law_N, target_N), PASSES)
    halves = [particles_law(every, num_runs=RUNS, num_particles=PASSES, seed=2 * seed + half) for half in range(2)]
    note(SMC, least_distance(target_N, halves), PASSES)
    memory, passes, number = RejectionMemory(), 0, 0
    for learnt in LEARNT:
        while passes < learnt:
            number += 1
            passes += draw("rejection", max(1, passes // 100), memory, number)[1]
        known = states(memory)
        learnt_N = (-known.energy_B - known.log_weights_B).exp()
        note(f"ASAp, after {learnt:,} passes", total_variation(learnt_N, target_N), 1)
    note(PLAIN, 0, 1 / float((-every.energy_B).exp().sum()))
    for count in SAMPLES:
        note(f"rejection with a memory, {count:,} samples", 0, draw("rejection", count)[1] / count)
    for count in SAMPLES:
        share, passes = draw("budgeted", count)
        note(f"sample_within, {count:,} samples", share, passes / count)
    return found


def reproduce(setup: Setup) -> list[Outcome]:
    """Measure the samplers with a bigram model and an LSTM, for each seed.

    Source: Park et al. (NeurIPS 2024) for ASAp, Parys et al. (2025) for rejection with a memory, Anaya Gonzalez et al.
    (NeurIPS 2025) for the chains, Loula et al. (ICLR 2025) for sequential Monte Carlo.
    """

    def measured(model_name: str, seed: int, report: Report) -> Found:
        model, context = MODELS[model_name](seed)
        found: Found = {}
        for place, name in enumerate(CONSTRAINTS):
            report(place, len(CONSTRAINTS), name)
            found |= measure(model, context, name, seed)
        return found

    by_model = measure_by_seed(MODELS, measured, setup)
    title = "Sampling inside a language: total variation to the conditional, and passes"
    table = Table(title, tuple(_results(by_model, setup.seeds)), claims=tuple(_compare(by_model)))
    return [Outcome("constrained-sampling", table)]


# ------------------------------------------------------------------------------------------------- claims and table


def _compare(by_model: Mapping[str, Sequence[Found]]) -> Iterator[Claim]:
    """Test which of two samplers is nearer to the conditional, on average over the languages."""

    def mean(found: Found, system: str) -> float:
        return sum(found[system, f"{name}, {DISTANCE}"] for name in CONSTRAINTS) / len(CONSTRAINTS)

    ours = f"sample_within, {SAMPLES[-1]:,} samples"
    for name, runs in by_model.items():
        worst = max(run[ours, f"{each}, {DISTANCE}"] for run in runs for each in CONSTRAINTS)
        most = max(run[ours, f"{each}, {COST}"] for run in runs for each in CONSTRAINTS)
        verdict = "holds" if worst <= 0.02 and most <= PASSES else "not seen"
        yield Claim(
            f"{name}: {SAMPLES[-1]:,} samples of sample_within are within .02, in {PASSES} passes each.",
            "here", verdict, f"at most {worst:.2g} of them not exact; at most {most:.1f} passes", kind="figure",
        )  # fmt: skip
        rivals = [
            (MASKING, ours),
            (CHAINS, ours),
            (SMC, ours),
            (f"ASAp, after {LEARNT[-1]:,} passes", ours),
            (SMC, CHAINS),
        ]
        for farther, closer in rivals:
            yield judge_by_seed(
                f"{name}: {closer} is nearer the conditional than {farther}.", "here",
                [mean(run, farther) for run in runs], [mean(run, closer) for run in runs], unit="",
            )  # fmt: skip


def _results(by_model: Mapping[str, Sequence[Found]], seeds: Sequence[int]) -> Iterator[Result]:
    data = sha256_of_examples([Example(word, ()) for word in lexicon()])
    for model, runs in by_model.items():
        signature = sign(f"constrained-sampling: {model}", seeds=seeds, data=data, training=cmu_version())
        for system, measured in runs[0]:
            values = [run[system, measured] for run in runs]
            yield student_result(f"{model}: {system}", measured, values, signature, unit="")
