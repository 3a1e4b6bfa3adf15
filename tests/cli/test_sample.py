"""seqwise sample: the exact distribution through the whole path, fixed positions, resumption, and bad input."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from command_line import Command
from run_folders import contents
from sampled import report_lines, sample
from seqwise import InputError
from seqwise.configuration import configure
from seqwise.configuration.flat import flags_of
from seqwise.data import EncodedExample, Example, collate
from seqwise.models import ConditionalMaskedTransformer
from seqwise.runs import sampling as module
from seqwise.runs.loading import load_run, save_run
from seqwise.runs.masked_model_settings import masked_settings
from seqwise.runs.masked_model_training import new_masked_run
from seqwise.runs.run import MaskedRun
from seqwise.runs.sampling import Sampled, runner_of
from seqwise.runs.sampling_problems import FREE, Problem, problem_warnings, read_problems
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.sampling import (
    Draws,
    Energy,
    Kernel,
    ParallelTempering,
    anneal_blocks,
    anneal_target,
    anywhere,
    burn_in,
    constraint,
    contains,
    delayed_acceptance,
    exact_gibbs,
    gibbs,
    in_order,
    local_energy,
    mask_predict,
    masked_conditionals,
    metropolis_hastings,
    parallel_tempering,
    sample_chains,
    shuffled,
    start_chains,
)
from seqwise.sampling.combinators import by_sweep
from seqwise.sampling.diagnostics import effective_sample_size, split_r_hat
from seqwise.sampling.proposals import Visits
from seqwise.sampling.refinement import likeliest_lengths, refine

settings_of = partial(configure, SampleSettings)
"""From flat settings, as of flags."""

SIZES: dict[str, Any] = {"hidden_size": 8, "feedforward_size": 16}
SETTINGS = {
    # "z" occurs once and is unknown to all of them but the characters and the subwords.
    "words": masked_settings(**SIZES, model="lstm", embedding_size=8),
    "characters": masked_settings(**SIZES, num_layers=1, num_heads=2, units="characters"),
    "fasta": masked_settings(**SIZES, num_layers=1, num_heads=2, format="fasta", units="characters"),
    "subwords": masked_settings(**SIZES, num_layers=1, num_heads=2, units="subwords", subword_vocabulary=8),
    "pairs": masked_settings(**SIZES, num_layers=1, num_heads=2, format="pairs", source_units="characters"),
}


def build(kind: str, *, scale: float | None = None, dtype: torch.dtype = torch.float64) -> MaskedRun:
    """A run with random weights, large enough that it has an opinion."""
    scale = scale or (3.0 if kind == "words" else 1.5)
    settings = SETTINGS[kind]
    chance = random.Random(1)
    sentences = [chance.choices("abc", [3, 2, 1], k=chance.choice([2, 3, 3, 4])) for _ in range(60)] + [["a", "z"]]
    lines: list[tuple[str, ...]] = [tuple(one) for one in sentences]
    if kind == "subwords":
        lines = [(" ".join(one),) for one in sentences]
    sources = [tuple("".join(one)) if kind == "pairs" else () for one in sentences]
    torch.manual_seed(3)
    run = new_masked_run([Example(*one) for one in zip(sources, lines, strict=True)], settings)
    run.model.to(dtype).eval()
    for parameter in run.model.parameters():
        parameter.data *= scale
    return run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run folder of each kind."""
    found = {}
    for kind in SETTINGS:
        found[kind] = tmp_path_factory.mktemp("runs") / kind
        save_run(build(kind, dtype=torch.float32), found[kind])
    return found


# ---- The distribution -----------------------------------------------------------------------------------------------


def energies_by_hand(run: MaskedRun, sequences: Sequence[Sequence[int]], energy: str, source: Sequence[int]) -> Any:
    """Of each sequence, position by position, without the package's energies."""
    context = None
    if isinstance(run.model, ConditionalMaskedTransformer):
        with torch.no_grad():
            context = run.model.encode(torch.tensor([list(source)]), torch.tensor([len(source)]))
    found = []
    for sequence in sequences:
        terms = []
        for place, token in enumerate(sequence):
            flags = torch.tensor([[at == place for at in range(len(sequence))]])
            with torch.no_grad():
                scores = run.model.masked_logits(torch.tensor([list(sequence)]), flags, context)[0].tolist()
            log_z = math.log(math.fsum(map(math.exp, scores))) if energy == "local" else 0.0
            terms.append(log_z - scores[token])
        found.append(math.fsum(terms))
    return found


def has(sequence: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(tuple(sequence[at : at + len(phrase)]) == tuple(phrase) for at in range(len(sequence)))


def exact(run: MaskedRun, problem: Sequence[int], settings: SampleSettings, source: Sequence[int] = (0,)) -> Any:
    """The target: every sequence that agrees with the problem and holds no unknown symbol where it is free."""
    known = [token for token, flag in enumerate(run.codec.allowed_V.tolist()) if flag]
    space = list(itertools.product(*([token] if token != FREE else known for token in problem)))
    kernel = settings.kernel
    temperature = kernel.temperatures[0] if isinstance(kernel, ParallelTempering) else getattr(kernel, "temperature", 1)
    weights = {}
    for sequence, energy in zip(space, energies_by_hand(run, space, settings.energy, source), strict=True):
        broken = sum(not has(sequence, one) for (one,) in map(run.codec.phrase, settings.contain))
        broken += sum(has(sequence, one) for (one,) in map(run.codec.phrase, settings.without))
        penalty = settings.penalty * broken if settings.penalty is not None else math.inf if broken else 0.0
        weights[sequence] = math.exp(-(energy + penalty) / temperature)
    total = math.fsum(weights.values())
    return {sequence: weight / total for sequence, weight in weights.items()}


def excess(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """How many standard deviations chi-square lies above its mean; rare sequences are put together."""
    number = sum(counts.values())
    assert set(counts) <= {sequence for sequence, probability in expected.items() if probability > 0}
    cells = [(counts[sequence], number * probability) for sequence, probability in expected.items()]
    rare = [cell for cell in cells if cell[1] < 5]
    common = [cell for cell in cells if cell[1] >= 5]
    if rare and sum(mean for _, mean in rare) > 0:
        common.append((sum(count for count, _ in rare), sum(mean for _, mean in rare)))
    chi_square = math.fsum((count - mean) ** 2 / mean for count, mean in common)
    degrees = len(common) - 1
    assert degrees >= 3  # there is something to see
    return (chi_square - degrees) / math.sqrt(2 * degrees)


def last_ones(sampled: Sampled, problem: int = 0) -> Counter[tuple[int, ...]]:
    return Counter(one.tokens for one in sampled.samples if one.problem == problem)


FLAT: dict[str, Any] = {"proposal_temperature": 1.5}
KERNELS: dict[str, dict[str, Any]] = {
    "the default": {},
    "raw, cool, blocks, nucleus": {
        "energy": "raw", "temperature": 0.8, "blocks": (3, 2, 1), "visits": "shuffled", "nucleus": 0.8,
        "full_share": 0.3,
    },
    "annealed and forced": {"temperature": 0.7, "anneal": 0.1, "forced": 2, **FLAT},
    "delayed acceptance": {"kernel": "delayed-acceptance", "window": 0, **FLAT},
    "exact Gibbs": {"kernel": "exact-gibbs", "temperature": 1.3, "visits": "shuffled"},
    "parallel tempering": {"kernel": "parallel-tempering", "temperatures": (0.8, 1.3), **FLAT},
    "must contain": {"contain": ("b a",), "blocks": (3, 2), **FLAT},
    "must contain, anywhere": {"contain": ("b a",), "visits": "anywhere", "blocks": (2,), **FLAT},
    "must contain two, not a third": {"contain": ("a", "b"), "without": ("b b", "c a"), "blocks": (2,), **FLAT},
    "soft": {"contain": ("c c",), "without": ("a",), "penalty": 1.0, **FLAT},
    "soft, exact Gibbs": {"kernel": "exact-gibbs", "without": ("a",), "penalty": 0.7},
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", KERNELS)
def test_samples_are_distributed_as_the_target_says(name: str) -> None:
    """1200 chains after their last sweep; the unknown symbol is no part of the space, nor what breaks a constraint."""
    run = build("words")
    settings = settings_of(**KERNELS[name], chains=1200, sweeps=12, length="3", seed=5, max_rows=8192)
    problems = read_problems(run, None, settings)
    sampled = sample(run, problems, settings)
    assert len(sampled.samples) == 1200
    expected = exact(run, problems[0].tokens, settings)
    assert excess(last_ones(sampled), expected) < 4
    assert excess(last_ones(sampled), exact(run, problems[0].tokens, settings_of(energy="raw", temperature=3))) > 20
    for one in sampled.samples[:5]:
        assert one.energy == pytest.approx(
            energies_by_hand(run, [one.tokens], settings.energy, (0,))[0]
            + (settings.penalty or 0)
            * sum(
                [
                    *(not has(one.tokens, ids) for (ids,) in map(run.codec.phrase, settings.contain)),
                    *(has(one.tokens, ids) for (ids,) in map(run.codec.phrase, settings.without)),
                ]
            ),
            abs=1e-9,
        )


def test_free_positions_are_drawn_given_the_fixed_ones() -> None:
    """A Transformer over characters; two problems of other lengths and other free positions at once."""
    run = build("characters")
    settings = settings_of(chains=1200, sweeps=12, proposal_temperature=1.5, max_rows=8192)
    problems = [*read_problems(run, "_b_a", settings), *read_problems(run, "c__", settings)]
    sampled = sample(run, problems, settings)
    for number, problem in enumerate(problems):
        assert excess(last_ones(sampled, number), exact(run, problem.tokens, settings)) < 4


def test_outputs_are_drawn_given_their_source() -> None:
    run = build("pairs")
    settings = settings_of(chains=800, sweeps=10, length_beam=2, proposal_temperature=1.5, max_rows=8192)
    problems = [*read_problems(run, "abca", settings), *read_problems(run, "cb", settings)]
    sampled = sample(run, problems, settings)
    for number, problem in enumerate(problems):
        batch = collate([EncodedExample(problem.source_ids, ())])
        with torch.no_grad():
            context = run.model.encode(batch.sources_BS, batch.source_lengths_B)  # type: ignore[union-attr]
        lengths = likeliest_lengths(context.length_log_probs_BL, beam=2)[0].tolist()
        for rank, length in enumerate(lengths):
            own = Counter(one.tokens for one in sampled.samples if one.problem == number and one.chain // 800 == rank)
            assert set(map(len, own)) == {length}
            if length > 1:
                assert excess(own, exact(run, (FREE,) * length, settings, problem.source_ids)) < 4


def test_degenerate_gibbs_has_another_distribution_and_says_so() -> None:
    run = build("words")
    settings = settings_of(kernel="gibbs", chains=1200, sweeps=12, length="3", max_rows=8192)
    sampled = sample(run, read_problems(run, None, settings), settings)
    assert excess(last_ones(sampled), exact(run, (FREE,) * 3, settings)) > 10
    pytest.importorskip("arviz_stats")
    assert any("follow no energy" in line for line in report_lines(sampled, settings))


def test_mask_predict_is_refinement() -> None:
    run = build("words")
    settings = settings_of(kernel="mask-predict", iterations=3)
    (problem,) = read_problems(run, "_ b _ _", settings)
    (one,) = sample(run, [problem], settings).samples
    tokens_BT = torch.tensor([problem.tokens])
    expected_BT, _ = refine(
        run.model, tokens_BT.clamp(min=0), tokens_BT == FREE, num_iterations=3, allowed_V=run.codec.allowed_V
    )
    assert (one.tokens, one.sweep) == (tuple(expected_BT[0].tolist()), 1)


def every_kernel() -> dict[str, tuple[dict[str, Any], Callable[..., Kernel]]]:
    """Settings, and the kernel that they stand for, made by hand."""
    flat = {"temperature": 2.0, "nucleus": 0.7, "full_share": 0.2}

    def hastings(model: Any, energy: Any, allowed_V: Any, *, block: int = 1, **more: Any) -> Kernel:
        proposal = masked_conditionals(model, allowed_V=allowed_V)
        return metropolis_hastings(energy, proposal, visits=in_order(block), **more)

    def as_many_as_free(sizes: list[int]) -> Visits:
        def visits(draws: Draws, free_BT: torch.Tensor) -> Iterator[torch.Tensor]:
            for number in range(free_BT.shape[1]):
                yield from anywhere(sizes)(draws, free_BT & (free_BT.sum(1) > number)[:, None])

        return visits

    return {
        "shuffled, nucleus": (
            {"visits": "shuffled", "proposal_temperature": 2.0, "nucleus": 0.7, "full_share": 0.2, "temperature": 1.5},
            lambda m, e, a: metropolis_hastings(
                e, masked_conditionals(m, allowed_V=a, **flat), visits=shuffled(), temperature=1.5
            ),
        ),
        "delayed": (
            {"kernel": "delayed-acceptance", "window": 2, "blocks": (2,), "temperature": 0.5},
            lambda m, e, a: delayed_acceptance(
                e, masked_conditionals(m, allowed_V=a), window=2, visits=in_order(2), temperature=0.5
            ),
        ),
        "exact Gibbs": (
            {"kernel": "exact-gibbs", "visits": "shuffled", "temperature": 0.5},
            lambda m, e, a: exact_gibbs(e, visits=shuffled(), temperature=0.5, allowed_V=a),
        ),
        "gibbs": (
            {"kernel": "gibbs", "visits": "shuffled", "blocks": (2,), "proposal_temperature": 0.7},
            lambda m, e, a: gibbs(masked_conditionals(m, allowed_V=a, temperature=0.7), visits=shuffled(2)),
        ),
        "blocks": (
            {"blocks": (3, 2, 1)},
            lambda m, e, a: anneal_blocks(lambda b: hastings(m, e, a, block=b), [3, 2, 1]),
        ),
        "anywhere": (
            {"visits": "anywhere", "blocks": (3, 2)},
            lambda m, e, a: by_sweep(
                [
                    metropolis_hastings(e, masked_conditionals(m, allowed_V=a), visits=as_many_as_free(sizes))
                    for sizes in ([1, 2, 3], [1, 2])
                ]
            ),
        ),
        "annealed": (
            {"temperature": 0.65, "anneal": 0.1},
            lambda m, e, a: anneal_target(lambda t: hastings(m, e, a, temperature=t), [1, 0.9, 0.8, 0.7, 0.65]),
        ),
        "forced": (
            {"forced": 2, "temperature": 0.5, "anneal": 0.2, "blocks": (2, 1)},
            lambda m, e, a: by_sweep(
                [
                    gibbs(masked_conditionals(m, allowed_V=a), visits=in_order(2)),
                    gibbs(masked_conditionals(m, allowed_V=a)),
                    burn_in(hastings(m, e, a, temperature=0.6)),
                    hastings(m, e, a, temperature=0.5),
                ]
            ),
        ),
        "tempering": (
            {"kernel": "parallel-tempering", "temperatures": (1.0, 3.0), "blocks": (2,)},
            lambda m, e, a: parallel_tempering(
                lambda t_B: metropolis_hastings(
                    e, masked_conditionals(m, allowed_V=a), visits=in_order(2), temperature=t_B
                ),
                [1.0, 3.0],
            ),
        ),
        "mask-predict": (
            {"kernel": "mask-predict", "iterations": 4},
            lambda m, e, a: mask_predict(m, num_iterations=4, allowed_V=a),
        ),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", every_kernel())
def test_every_setting_reaches_the_kernel(name: str) -> None:
    """The same states, counts and flags of burn-in, sweep by sweep, as those of a kernel that is made by hand."""
    given, by_hand = every_kernel()[name]
    run, settings = build("words"), settings_of(**given)
    energy = local_energy(run.model) + constraint(contains(1), penalty=0.5)
    state = start_chains(energy, torch.randint(1, 4, (8, 5)), free_BT=torch.arange(5) != torch.arange(8)[:, None])
    kernels = (
        settings.build_kernel(run.model, energy, run.codec.allowed_V),
        by_hand(run.model, energy, run.codec.allowed_V),
    )
    ours, expected = (sample_chains(kernel, state, 8, seed=1) for kernel in kernels)
    assert torch.equal(ours.tokens_SBT, expected.tokens_SBT)
    assert torch.equal(ours.proposals_SB, expected.proposals_SB) and torch.equal(ours.passes_SB, expected.passes_SB)
    assert torch.equal(ours.invariant_S, expected.invariant_S)
    if settings.kernel.follows_target:
        assert ours.invariant_S.tolist() == [sweep >= settings.burn_in for sweep in range(8)]


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", ["metropolis-hastings", "exact-gibbs", "gibbs", "mask-predict"])
def test_a_model_is_given_no_more_rows_than_it_may(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts included; problems of one length may together be more."""
    run, given = build("words"), list[int]()
    options: dict[str, Any] = {} if kernel == "mask-predict" else {"sweeps": 3, "chains": 5}
    options |= {} if kernel in ("mask-predict", "exact-gibbs") else {"blocks": (2,)}
    settings = settings_of(kernel=kernel, max_rows=2, **options)
    problems = [Problem((FREE,) * 3, Example((), ()))] * 5
    whole = run.model.masked_logits

    def recorded(tokens_NT: torch.Tensor, *others: Any) -> torch.Tensor:
        given.append(len(tokens_NT))
        return whole(tokens_NT, *others)

    expected = sample(run, problems, settings.replace(max_rows=1024)).samples
    monkeypatch.setattr(run.model, "masked_logits", recorded)
    assert [one.tokens for one in sample(run, problems, settings).samples] == [one.tokens for one in expected]
    assert max(given) <= 2


# ---- Problems and printed sequences --------------------------------------------------------------------------


@pytest.fixture
def command(seqwise: Command) -> Command:
    """Run seqwise sample in this process."""
    return partial(seqwise, "sample")


def test_the_command_prints_what_the_function_gives(command: Command, folders: dict[str, Path]) -> None:
    run = load_run(folders["words"])
    settings = settings_of(
        chains=3, sweeps=9, discard=2, every=3, contain=("b a",), without=("c",), blocks=(2, 1), visits="shuffled",
        nucleus=0.9, full_share=0.1, temperature=0.8, anneal=0.1, proposal_temperature=1.2, seed=4, length="3-5",
        count=3,
    )  # fmt: skip
    sampled = sample(run, read_problems(run, None, settings), settings)
    flags = "--chains 3 --sweeps 9 --discard 2 --every 3 --without c --blocks 2,1 --visits shuffled --nucleus 0.9"
    flags += " --full-share 0.1 --temperature 0.8 --anneal 0.1 --proposal-temperature 1.2 --seed 4"
    records = command(folders["words"], "--contain", "b a", "--length=3-5", "--count=3", *flags.split()).records
    assert records == [
        {
            "problem": one.problem + 1,
            "chain": one.chain + 1,
            "sweep": one.sweep,
            "text": " ".join(run.codec.sequence.vocabulary.tokens[token] for token in one.tokens),
            "energy": pytest.approx(one.energy, abs=1e-4),  # the command may run on a GPU
            "unit": "nats",
        }
        for one in sampled.samples
    ]
    # Two sweeps of annealing, at 1 and 0.9, and two that are discarded: of 3, 6 and 9 all are printed.
    places = [(problem, chain, sweep) for problem in (1, 2, 3) for chain in (1, 2, 3) for sweep in (3, 6, 9)]
    assert [(one["problem"], one["chain"], one["sweep"]) for one in records] == places
    assert all("b a" in one["text"] and "c" not in one["text"].split() for one in records)


def test_burn_in_and_discarded_sweeps_are_not_printed(command: Command, folders: dict[str, Path]) -> None:
    def sweeps(*flags: str) -> list[int]:
        records = command(folders["words"], "--length=3", "--chains=1", "--sweeps=12", "--every=2", *flags).records
        return [one["sweep"] for one in records]

    assert sweeps() == [8, 10, 12]  # half of 12 is discarded
    assert sweeps("--discard=0") == [2, 4, 6, 8, 10, 12]
    assert sweeps("--discard=0", "--forced=3") == [4, 6, 8, 10, 12]
    assert sweeps("--discard=0", "--temperature=0.5", "--anneal=0.1") == [6, 8, 10, 12]
    assert [one["sweep"] for one in command(folders["words"], "--length=3", "--chains=2").records] == [33, 33]


def test_the_best_sequence_of_each_input_can_be_printed(command: Command, folders: dict[str, Path]) -> None:
    """Of all sweeps, chains and lengths, by the energy per token; the first sweeps included."""
    flags = ["--length-beam=2", "--chains=3", "--sweeps=5", "--proposal-temperature=2"]
    sources = folders["pairs"].parent / "sources.txt"
    sources.write_text("abc\ncab\nb\n")
    every = command(folders["pairs"], sources, *flags, "--every=1", "--discard=0").records
    best = command(folders["pairs"], sources, *flags, "--best").records
    assert [one["problem"] for one in best] == [1, 2, 3]
    for one in best:
        rivals = [rival for rival in every if rival["problem"] == one["problem"]]
        assert len(rivals) == 2 * 3 * 5 and one in rivals
        assert len({len(rival["text"].split()) for rival in rivals}) == 2
        assert one["energy"] / len(one["text"].split()) == min(
            rival["energy"] / len(rival["text"].split()) for rival in rivals
        )


@pytest.mark.parametrize(
    ("kind", "line", "pattern"),
    [
        ("words", "z _ zz _", "z ? zz ?"),  # unknown words stay as they are written
        ("characters", "a_z_", "a?z?"),
        ("fasta", "_c_ab", "?c?ab"),
        ("pairs", "ab\tz _ c", "z ? c"),
    ],
)
def test_fixed_positions_stay_as_they_are_written(
    command: Command, folders: dict[str, Path], tmp_path: Path, kind: str, line: str, pattern: str
) -> None:
    file = tmp_path / "problems.txt"
    file.write_text(f">P1\n{line}\n" if kind == "fasta" else f"{line}\n")
    flags = ["--every=1", "--discard=0", "--sweeps=6", "--temperature=4", "--proposal-temperature=4", "--blocks=2,1"]
    if kind == "fasta":
        flags = ["--every=1", "--discard=0", "--sweeps=6", "--kernel=gibbs", "--proposal-temperature=4"]
    texts = [one["text"] for one in command(folders[kind], file, *flags).records]
    split = list if kind in ("characters", "fasta") else str.split
    known = set("abcz") if kind in ("characters", "fasta") else set("abc")
    drawn = set()
    for text in texts:
        assert len(split(text)) == len(split(pattern))
        for token, wanted in zip(split(text), split(pattern), strict=True):
            assert token == wanted or (wanted == "?" and token in known)
            drawn |= {token} if wanted == "?" else set()
    assert len(drawn) > 1


@pytest.mark.parametrize("setting", ["contain", "without"])
def test_phrases_of_subwords_are_words(folders: dict[str, Path], setting: str) -> None:
    """Among all sequences of four pieces, those with the word are kept or excluded, however it is divided."""
    run = load_run(folders["subwords"])
    phrases = runner_of(run, settings_of(**{setting: ("ab",)})).phrases
    every_NT = torch.tensor(list(itertools.product(run.codec.allowed_V.nonzero().flatten().tolist(), repeat=4)))
    finite_N = phrases.constrain(Energy()).of_sequences(every_NT).isfinite()
    kept = [("ab" in run.codec.text(ids).split()) == (setting == "contain") for ids in every_NT.tolist()]
    assert finite_N.tolist() == kept
    by_pieces_N = contains(*run.codec.phrase("ab")[0])(every_NT) == (setting == "contain")
    assert int((by_pieces_N != finite_N).sum()) > 20


def test_subwords_are_drawn_between_words(folders: dict[str, Path], command: Command) -> None:
    run = load_run(folders["subwords"])
    (problem,) = read_problems(run, "a b _ _ c", settings_of())
    left, right = (run.codec.encode([Example((), (text,))])[0].target_ids for text in ("a b", "c"))
    assert problem.tokens == (*left, FREE, FREE, *right)
    (first,) = read_problems(run, "_ c _", settings_of())
    assert first.tokens == (FREE, *right, FREE)
    texts = [one["text"] for one in command(folders["subwords"], "a b _ _ c", "--sweeps=4").records]
    assert all(text.startswith("a b") and text.endswith("c") for text in texts)


def test_another_token_can_mark_free_positions(folders: dict[str, Path], command: Command) -> None:
    assert len(command(folders["words"], "a ? b", "--free=?", "--sweeps=2").records) == 5
    assert "a _" in {one["text"][:3] for one in command(folders["words"], "a _ ?", "--free=?", "--sweeps=2").records}


def test_lengths_are_as_asked_for_or_as_in_training() -> None:
    run = build("words")
    count = 3000

    def drawn(**settings: Any) -> Counter[int]:
        return Counter(len(one.tokens) for one in read_problems(run, None, settings_of(count=count, **settings)))

    assert drawn(length="7") == {7: count}
    for found, expected in (
        (drawn(length="4-6"), dict.fromkeys((4, 5, 6), 1 / 3)),
        (drawn(), {length: number / 61 for length, number in run.codec.lengths.items()}),
    ):
        assert set(found) == set(expected)
        for length, share in expected.items():
            assert abs(found[length] / count - share) < 4 * math.sqrt(share * (1 - share) / count)
    assert drawn(seed=1) != drawn()
    first = read_problems(run, None, settings_of(count=5))
    assert first == read_problems(run, None, settings_of(count=9))[:5]


def test_mask_predict_has_each_length_once(command: Command, folders: dict[str, Path]) -> None:
    flags = ["--kernel=mask-predict", "--length=2-4", "--count=3"]
    assert [len(one["text"].split()) for one in command(folders["words"], *flags).records] == [2, 3, 4]
    flags[-1] = "--count=2"
    assert len(command(folders["words"], *flags).records) == 2
    flags[-1] = "--count=9"
    complaint = command(folders["words"], *flags).complaint
    assert "count: the kernel mask-predict draws nothing, so 9 sequences need as many lengths, not 3" in complaint


def test_samples_do_not_depend_on_other_problems() -> None:
    """Three lengths and two sources, at once and one by one; and so do chains in small groups."""
    run = build("pairs")
    settings = settings_of(
        chains=4, sweeps=6, length_beam=3, contain=("a",), proposal_temperature=1.5, every=2, discard=0
    )
    problems = [Problem((), Example(tuple(one), ()), tuple(ids)) for one, ids in (("ab", (1, 2)), ("cab", (3, 1, 2)))]
    together = sample(run, problems, settings).samples
    groups = sample(run, problems, settings.replace(max_rows=3)).samples
    assert {len(one.tokens) for one in together} > {2, 3}
    assert [one._replace(energy=0.0) for one in groups] == [one._replace(energy=0.0) for one in together]
    assert [one.energy for one in groups] == pytest.approx([one.energy for one in together], abs=1e-9)
    # The first problem alone; the second is told apart by its place only.
    alone = sample(run, problems[:1], settings).samples
    assert [one.tokens for one in alone] == [one.tokens for one in together if one.problem == 0]
    swapped = sample(run, problems[::-1], settings).samples
    assert [one.tokens for one in swapped if one.problem == 1] != [one.tokens for one in together if one.problem == 0]


def test_lengths_without_room_for_a_phrase_are_left_out() -> None:
    run = build("pairs")
    problems = [Problem((), Example(("a",), ()), (1,))]
    lengths = {len(one.tokens) for one in sample(run, problems, settings_of(length_beam=9, sweeps=2)).samples}
    assert min(lengths) == 1
    hard = settings_of(length_beam=9, sweeps=2, contain=("a b c",))
    assert {len(one.tokens) for one in sample(run, problems, hard).samples} == {one for one in lengths if one >= 3}
    soft = hard.replace(penalty=1.0)
    assert {len(one.tokens) for one in sample(run, problems, soft).samples} == lengths


def test_the_lengths_of_outputs_can_be_bounded() -> None:
    run = build("pairs")
    text, base = "abc", settings_of(length_beam=9, sweeps=2, chains=2)

    def tried(**more: Any) -> list[int]:
        settings = base.replace(**more)
        samples = sample(run, read_problems(run, text, settings), settings).samples
        return list(dict.fromkeys(len(one.tokens) for one in samples))

    by_rank = tried()
    assert sorted(by_rank) == [1, 2, 3, 4]
    assert tried(length="3") == [3]
    assert tried(length="2-3") == [length for length in by_rank if 2 <= length <= 3]
    assert tried(length="3-9") == [length for length in by_rank if length >= 3]
    assert tried(length="2-4", length_beam=1) == [length for length in by_rank if length > 1][:1]
    assert tried(length="1-3", contain=("a b",)) == [length for length in by_rank if 2 <= length <= 3]
    with pytest.raises(InputError, match="lengths from 1 to 4, not 5 to 9"):
        tried(length="5-9")
    with pytest.raises(InputError, match="lengths from 1 to 4, not 3 to 2"):
        tried(length="1-2", contain=("a b c",))


# ---- Kept, killed and resumed ---------------------------------------------------------------------------------------


KEPT: dict[str, dict[str, Any]] = {
    "every": {"every": 2, "discard": 0, "contain": ("a",)},
    "best": {"best": True, "proposal_temperature": 1.5},
    "last": {"anneal": 0.1, "temperature": 0.5},
    "tempering": {"kernel": "parallel-tempering", "temperatures": (1.0, 2.0), "every": 2},
}


class Killed(BaseException):
    """Ends sampling, and nothing catches it."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", KEPT)
def test_killed_sampling_resumes_to_the_same_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before, within and after each of the savings of several groups of chains, again and again."""
    run = build("pairs" if name == "tempering" else "words", dtype=torch.float32)
    given: dict[str, Any] = {"length_beam": 2} if name == "tempering" else {"length": "2-3", "count": 2}
    settings = settings_of(chains=2, sweeps=5, save_every=2, max_rows=2, **given, **KEPT[name])
    problems = read_problems(run, "abc" if name == "tempering" else None, settings)
    whole = sample(run, problems, settings, output=tmp_path / "whole")
    savings = 3 * len(whole.groups)
    assert len(whole.groups) == 2

    def attempt(kill: Callable[..., None], function: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(module, function, kill)
            with pytest.raises(Killed):
                sample(run, problems, settings, output=tmp_path / "killed")

    def before(*_: Any, **__: Any) -> None:
        raise Killed

    def half_a_line(path: Path, *_: Any, **__: Any) -> None:
        path.open("a").write('{"sweep": 1, "ener')
        raise Killed

    def after(path: Path, state: Any) -> None:
        kept(path, state)
        raise Killed

    append, kept = module.append_sweeps, module.save_chains

    def between(*arguments: Any, **more: Any) -> None:
        append(*arguments, **more)
        raise Killed

    for _ in range(savings):
        attempt(before, "append_sweeps")
        attempt(half_a_line, "append_sweeps")
        attempt(between, "append_sweeps")
        attempt(after, "save_chains")
    again = sample(run, problems, settings, output=tmp_path / "killed")
    assert again.samples == whole.samples
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    for group, other in zip(again.groups, whole.groups, strict=True):
        assert torch.equal(group.trace.passes_SB, other.trace.passes_SB)
        assert math.isnan(group.trace.seconds) and other.trace.seconds > 0
    assert report_lines(again, settings)[0] == report_lines(whole, settings)[0]
    without_folder = sample(run, problems, settings)
    assert without_folder.samples == whole.samples


KILL = """
import os, signal, sys
from seqwise import cli
from seqwise.runs import sampling

save, left = sampling.save_chains, [int(sys.argv.pop(1))]

def killed(path, state):
    save(path, state)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), getattr(signal, "SIGKILL" if sys.argv[-1].endswith("kill") else "SIGINT"))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
sampling.save_chains = killed
cli.main()
"""


@pytest.mark.thorough
def test_a_killed_process_is_continued_by_the_same_command(
    command: Command, folders: dict[str, Path], tmp_path: Path
) -> None:
    flags = [
        folders["pairs"],
        "cab",
        "--length-beam=2",
        "--sweeps=20",
        "--discard=8",
        "--save-every=8",
        "--every=20",
        "--temperature=4",
        "--output",
    ]
    whole = command(*flags, tmp_path / "whole")
    for ending, code in (("kill", -signal.SIGKILL), ("interrupt", 130)):
        arguments = [sys.executable, "-c", KILL, "4", "sample", *flags, tmp_path / ending]
        ended = subprocess.run(
            [*map(str, arguments)], capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "80"}
        )
        assert ended.returncode == code, ended.stderr
        assert ended.stdout == "" and "Traceback" not in ended.stderr
        assert ("run the same command again to continue" in ended.stderr) == (ending == "interrupt")
        assert len((tmp_path / ending / "samples.jsonl").read_text().splitlines()) == 5  # of the first length
        again = command(*flags, tmp_path / ending)
        assert again.out == whole.out
        assert contents(tmp_path / ending) == contents(tmp_path / "whole")
        assert "per second" in whole.err and "per second" not in again.err
    assert (tmp_path / "whole" / "samples.jsonl").read_text() == whole.out


def test_more_sweeps_continue_the_chains(command: Command, folders: dict[str, Path], tmp_path: Path) -> None:
    flags = [folders["words"], "_ a _", "--every=3", "--save-every=4"]
    command(*flags, "--sweeps=10", "--output", tmp_path / "a")
    longer = command(*flags, "--sweeps=21", "--output", tmp_path / "a")
    assert longer.out == command(*flags, "--sweeps=21").out
    assert [one["sweep"] for one in longer.records[:5]] == [9, 12, 15, 18, 21]
    fewer = command(*flags, "--sweeps=20", "--output", tmp_path / "a").complaint
    assert "have already run 21, more than 20" in fewer


def test_other_settings_are_refused_by_name(command: Command, folders: dict[str, Path], tmp_path: Path) -> None:
    output = ["--output", tmp_path / "a", "--sweeps=4", "--chains=2"]
    assert command(folders["words"], "a _ b", *output).code == 0
    before = contents(tmp_path / "a")
    for flag, name in (("--seed=1", "seed"), ("--blocks=2", "blocks"), ("--temperature=0.5", "temperature"),
                       ("--kernel=gibbs", "kernel"), ("--contain=a", "contain"), ("--max-rows=7", "max_rows"),
                       ("--best", "best")):  # fmt: skip
        complaint = command(folders["words"], "a _ b", *output, flag).complaint
        assert f"started with another {name} (" in complaint and "give another --output" in complaint
    assert "started with other problems" in command(folders["words"], "a _ c", *output).complaint
    other = build("words", scale=1.0, dtype=torch.float32)
    save_run(other, tmp_path / "other")
    assert (
        "started with another model; give another --output" in command(tmp_path / "other", "a _ b", *output).complaint
    )
    assert contents(tmp_path / "a") == before
    assert command(folders["words"], "a _ b", *output, "--save-every=1").code == 0
    drawn = ["--output", tmp_path / "drawn", "--sweeps=4", "--chains=2", "--count=9", "--length=2-4"]
    assert command(folders["words"], *drawn).code == 0
    for flag, name in (("--seed=1", "seed"), ("--length=2-3", "length"), ("--count=8", "count")):
        assert f"started with another {name} (" in command(folders["words"], *drawn, flag).complaint


def test_an_output_that_cannot_be_used_is_refused(command: Command, folders: dict[str, Path], tmp_path: Path) -> None:
    run = [folders["words"], "a _ b", "--sweeps=4", "--chains=2", "--output"]
    (tmp_path / "file").write_text("mine")
    assert "the output is a file" in command(*run, tmp_path / "file").complaint
    assert "holds no samples" in command(*run, tmp_path).complaint
    mine = command(*run, folders["words"]).complaint
    assert mine == f"{folders['words']}: the folder is not empty and holds no samples; give another --output"
    assert command(*run, tmp_path / "a").code == 0
    history = tmp_path / "a" / "chains" / "0000.jsonl"
    lines = history.read_text().splitlines()
    for damaged in ("\n".join(lines[:3]) + "\n", "\n".join([lines[0], "nonsense", *lines[2:]]), "[]\n" * 4,
                    "\n".join(lines).replace('"energy": [', '"energy": [1.0, ')):  # fmt: skip
        history.write_text(damaged)
        assert "0000.jsonl: the file is damaged; remove the folder" in command(*run, tmp_path / "a").complaint
    history.write_text("\n".join(lines) + "\n")
    states = tmp_path / "a" / "chains" / "0000.safetensors"
    states.write_bytes(states.read_bytes()[:100])
    assert "the chains cannot be read" in command(*run, tmp_path / "a").complaint


# ---- The report -----------------------------------------------------------------------------------------------------


def test_the_report_counts_what_chains_did() -> None:
    run = build("words", scale=1.5)
    settings = settings_of(chains=20, sweeps=30, discard=10, every=1, length="2-4", count=4, proposal_temperature=1.5)
    sampled = sample(run, read_problems(run, None, settings), settings)
    first, *more = report_lines(sampled, settings)
    energies = [one.energy for one in sampled.samples]
    proposals = accepted = novel = 0
    for group in sampled.groups:
        proposals += int(group.trace.proposals_SB[10:].sum())
        accepted += int(group.trace.accepted_SB[10:].sum())
        novel += int(group.trace.novel_SB[10:].sum())
    assert proposals == sum(len(one.tokens) for one in sampled.samples)  # a visit for each position
    assert first == (
        f"80 chains, 20 of 30 sweeps counted: accepted {accepted / proposals:.1%}, novel {novel / proposals:.1%},"
        f" mean energy {sum(energies) / len(energies):.4g} nats"
    )
    pytest.importorskip("arviz_stats")
    by_problem = torch.tensor(energies, dtype=torch.float64).view(4, 20, 20)  # problems, chains, sweeps that count
    ess = [effective_sample_size(one.T) for one in by_problem]
    r_hat = [split_r_hat(one.T) for one in by_problem]
    assert more[0].startswith(
        f"effective sample size of the energy {sum(ess):.4g}, at worst {min(ess):.4g} (problem"
        f" {1 + ess.index(min(ess))}); "
    )
    passes = sum(int(group.trace.passes_SB.sum()) for group in sampled.groups)
    assert "per second, " in more[0] and more[0].endswith(f" {sum(ess) / passes:.3g} per pass")
    assert more[1].startswith("effective sample size of its tails ")
    assert more[2] == f"R-hat of the energy at worst {max(r_hat):.4g} (problem {1 + r_hat.index(max(r_hat))})"


def test_chains_that_disagree_are_warned_of_by_problem() -> None:
    pytest.importorskip("arviz_stats")
    run = build("words", scale=6.0)
    settings = settings_of(chains=4, sweeps=24, temperature=0.4, length="4", count=3)
    lines = report_lines(sample(run, read_problems(run, None, settings), settings), settings)
    (worst,) = [line for line in lines if line.startswith("R-hat of the energy at worst ")]
    found = re.fullmatch(r"R-hat of the energy at worst (\S+) \((problem \d)\)", worst)
    assert found is not None
    # A line of a kind, of the problem whose chains agree least, whatever its number: some never leave where they are.
    stuck, some, apart = [line for line in lines if line.startswith("warning: ")]
    assert stuck.startswith(f"warning: {found[2]}: the chains do not move: ") and found[1] == "inf"
    assert re.match(r"warning: problem \d: [1-3] of 4 chains did not move: ", some)
    assert re.match(
        r"warning: problem \d: R-hat of energy is \d\.\d+, above 1.01: the chains disagree, run about ", apart
    )
    assert not any(line.startswith(f"warning: {found[2]}: ") for line in (some, apart))
    assert apart.endswith("(and 1 more of 3)")


def test_without_arviz_a_line_says_what_is_missing(
    command: Command, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "arviz_stats" else real(name))
    ended = command(folders["words"], "a _ b")
    assert ended.code == 0 and len(ended.records) == 5
    assert ended.err.splitlines()[1:] == [
        "effective sample size and R-hat need ArviZ: pip install 'seqwise[diagnostics]'"
    ]


def test_few_sweeps_are_not_judged(command: Command, folders: dict[str, Path]) -> None:
    assert "and there are 3" in command(folders["words"], "a _ b", "--sweeps=6").err.splitlines()[1]
    pytest.importorskip("arviz_stats")
    unknown = "effective sample size unknown: at least 10 draws per chain are needed, and 9 are counted"
    assert unknown in command(folders["words"], "_ _ b", "--sweeps=16").err.splitlines()
    assert "effective sample size of the energy" in command(folders["words"], "_ _ b", "--sweeps=17").err
    assert len(command(folders["words"], "a _ b", "--kernel=mask-predict").err.splitlines()) == 1
    annealing = command(folders["words"], "a _ b", "--sweeps=12", "--temperature=0.5", "--anneal=0.02").err.splitlines()
    assert annealing[1] == "warning: burn-in takes 25 sweeps, so no sweep samples from the target"
    assert any("follow no energy, or only warm up" in line for line in annealing[2:])


def test_a_nucleus_alone_is_warned_of(command: Command, folders: dict[str, Path]) -> None:
    flags = ["a _ b", "--sweeps=6", "--nucleus=0.9"]
    warning = "warning: with a nucleus alone, chains may never reach some sequences; add --full-share 0.05"
    assert warning in command(folders["words"], *flags).err
    for other in ("--full-share=0.05", "--kernel=gibbs"):
        assert "nucleus alone" not in command(folders["words"], *flags, other).err


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        ([], True),
        (["--blocks=3,2,1"], True),
        (["--blocks=3"], True),  # in order, the places of blocks are the same in each sweep
        (["--visits=anywhere"], True),
        (["--visits=anywhere", "--blocks=3,2"], True),
        (["--visits=anywhere", "--blocks=3"], False),
        (["--visits=shuffled", "--blocks=3"], False),
        (["--penalty=2"], False),
        (["--kernel=exact-gibbs"], True),
    ],
)
def test_a_phrase_that_cannot_move_is_warned_of(
    command: Command, folders: dict[str, Path], flags: list[str], warned: bool
) -> None:
    said = command(folders["words"], "--length=4", "--sweeps=6", "--contain=a", "--contain=a b c", *flags).err
    warning = (
        "warning: a required phrase of 3 tokens may never move unless 3 positions are masked together in every sweep: "
    )
    advice = "--visits anywhere --blocks 3 lets it move"
    if "--kernel=exact-gibbs" in flags:
        advice = "take another kernel with --visits anywhere --blocks 3"
    assert (warning + advice in said.splitlines()) is warned and ("phrase" in said) is warned


def test_a_phrase_of_one_token_moves(command: Command, folders: dict[str, Path]) -> None:
    assert "phrase" not in command(folders["words"], "--length=3", "--sweeps=6", "--contain=a").err


# ---- Bad input ------------------------------------------------------------------------------------------------------


BAD: list[tuple[str, list[str], str]] = [
    ("words", ["a b"], "no position is free; write _"),
    ("words", ["--kernel=none"], "kernel must be one of delayed-acceptance, metropolis-hastings"),
    ("words", ["--energy=x"], "energy must be one of local, raw, got 'x'"),
    ("words", ["--visits=x"], "visits must be one of in-order, shuffled, anywhere, got 'x'"),
    ("words", ["--kernel=gibbs", "--temperature=0.5"], "temperature: has no effect here; leave it out"),
    ("words", ["--kernel=gibbs", "--contain=a"], "contain: the kernel gibbs follows no target"),
    ("words", ["--kernel=mask-predict", "--chains=3"], "chains: the kernel mask-predict draws nothing"),
    ("words", ["--kernel=exact-gibbs", "--blocks=2"], "blocks: has no effect here"),
    ("words", ["--window=2"], "window: has no effect here; leave it out, or use kernel delayed-acceptance"),
    ("words", ["--temperatures=1,2"], "has no effect here; leave it out, or use kernel parallel-tempering"),
    ("words", ["--kernel=parallel-tempering"], "temperatures must have 2 or more values, got 0"),
    ("words", ["--kernel=parallel-tempering", "--temperatures=1"], "temperatures must have 2 or more values, got 1"),
    ("words", ["--kernel=parallel-tempering", "--temperatures=1,-2"], "temperatures.1 must be greater than 0, got -2"),
    ("words", ["--kernel=parallel-tempering", "--temperatures=1;2"], "temperatures.0 must be a finite number"),
    ("words", ["--blocks=1.5"], "blocks.0 must be an integer, got '1.5'"),
    ("words", ["--blocks=0"], "blocks.0 must be at least 1 and at most 100000, got 0"),
    ("words", ["--blocks="], "blocks must have 1 or more values, got 0"),
    ("words", ["--sweeps=0"], "sweeps must be at least 1 and at most 10000000, got 0"),
    ("words", ["--chains=-1"], "chains must be at least 1"),
    ("words", ["--every=0"], "every must be at least 1"),
    ("words", ["--every=40"], "sweeps would be printed"),
    ("words", ["--every=2", "--best"], "every: has no effect, because only the best sequence of each input is printed"),
    ("words", ["--discard=33"], "33 of 33 sweeps are discarded"),
    ("words", ["--discard=-1"], "discard must be at least 0"),
    ("words", ["--forced=-1"], "forced must be at least 0"),
    ("words", ["--forced=2", "--contain=a"], "may violate a hard constraint"),
    ("words", ["--temperature=0"], "temperature must be greater than 0"),
    ("words", ["--temperature=nan"], "temperature must be a finite number, got 'nan'"),
    ("words", ["--proposal-temperature=-1"], "proposal_temperature must be greater than 0"),
    ("words", ["--anneal=0.1"], "anneal goes from temperature 1 down"),
    ("words", ["--nucleus=0"], "nucleus must be greater than 0"),
    ("words", ["--full-share=0.1"], "full_share: the nucleus holds the whole distribution"),
    ("words", ["--nucleus=0.9", "--full-share=1"], "full_share must be at least 0 and below 1"),
    ("words", ["--penalty=2"], "penalty: there is no constraint"),
    ("words", ["--penalty=0", "--contain=a"], "penalty must be greater than 0"),
    ("words", ["--contain=dog"], "contain: the token 'dog' is unknown to the run"),
    ("characters", ["--contain=q"], "contain: unknown token 'q'"),
    ("words", ["--without= "], "without: a phrase is blank"),
    ("words", ["--length=3", "--contain=a b a b"], "no sequence of length 3 was found that contains 'a b a b'"),
    ("words", ["c _ _", "--contain=a b c"], "no sequence was found that contains 'a b c'"),
    ("words", ["--length=2", "--without=a", "--without=b", "--without=c"], "no sequence of length 2 was found"),
    ("words", ["--length=x"], "length: 'x' is not a length"),
    ("words", ["--length=0"], "length: '0' is not a length"),
    ("words", ["--length=5-3"], "length: '5-3' is not a length"),
    ("words", ["--length=3-4-5"], "length: '3-4-5' is not a length"),
    ("words", ["--count=0"], "count must be at least 1"),
    ("words", ["a _", "--count=2"], "count: has no effect"),
    ("words", ["a _", "--length=2"], "length: sequences to be filled in already have a length"),
    ("words", ["--length-beam=2"], "length_beam: the model has no source"),
    ("words", ["a _", "--free=a"], "free: 'a' is a token of the run"),
    ("words", ["a _", "--free= "], "free: ' ' is blank"),
    ("characters", ["a_", "--free=__"], "made of characters, and '__' is not one"),
    ("words", ["missing.txt"], "missing.txt: no such file"),
    ("words", ["--seed=99999999999999999999"], "seed must be at least -9223372036854775808 and below"),
    ("words", ["--max-rows=0"], "max_rows must be at least 1"),
    ("words", ["--nonsense"], "no such option"),
    ("pairs", [], "the model needs a source"),
    ("pairs", ["abq"], "unknown token 'q'"),
    ("pairs", ["ab", "--contain=a b c a b c a b c"], "lengths from 1 to 4, not at least 9 tokens"),
    ("pairs", ["ab", "--count=2"], "count: has no effect"),
    ("pairs", ["ab", "--length=5-6"], "lengths from 1 to 4, not 5 to 6"),
    ("words", ["--length=1-1000000000"], "length: sequences of at most 100,000 tokens are sampled, got '1-1000000000'"),
    ("words", ["--length=500000"], "length: sequences of at most 100,000 tokens are sampled, got '500000'"),
    ("words", ["--length=" + 5000 * "9"], "length: sequences of at most 100,000 tokens are sampled"),
    ("words", ["--temperature=0.5", "--anneal=1e-9"], "anneal: from 1 to 0.5 it takes 500,000,000 sweeps, more than"),
    ("words", ["--temperature=0.5", "--anneal=1e-300"], "anneal: from 1 to 0.5 it takes 5e+299 sweeps, more than"),
    ("words", ["--forced=1000000000"], "forced must be at least 0 and at most 1000000, got 1000000000"),
    ("words", ["--chains=100000000"], "chains must be at least 1 and at most 1000000, got 100000000"),
    ("words", ["--blocks=2,1000000000"], "blocks.1 must be at least 1 and at most 100000, got 1000000000"),
    ("words", ["--kernel=mask-predict", "--iterations=1000000000"], "iterations must be at least 1 and at most"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "arguments", "what"), BAD, ids=[" ".join([kind, *flags]) for kind, flags, _ in BAD])
def test_invalid_options_are_refused_in_one_line(
    command: Command, folders: dict[str, Path], kind: str, arguments: list[str], what: str
) -> None:
    complaint = command(folders[kind], *arguments).complaint
    assert what.casefold() in complaint.casefold()


def test_bad_files_are_refused_with_their_line(command: Command, folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "problems.txt"

    def complaint(kind: str, text: str, *flags: str) -> str:
        file.write_text(text)
        return command(folders[kind], file, *flags).complaint

    assert f"{file}:2: no position is free" in complaint("words", "a _\nb a\n")
    assert f"{file}:1: unknown token 'q'" in complaint("characters", "q_\n")
    assert f"{file}:2: no sequence was found that contains 'a b'" in complaint("words", "_ _\nb _\n", "--contain=a b")
    assert f"{file}:2: 1 column where 2 were expected" in complaint("pairs", "ab\t_ a\nab\n")
    assert f"{file}:2: a pair where a source was expected; give only sources" in complaint("pairs", "ab\nab\t_ a\n")
    typed = command(folders["pairs"], "ab\t_ a").complaint
    assert typed.startswith("a pair where a source was expected; give only sources")
    assert "length: sequences to be filled in already have" in complaint("pairs", "ab\t_ a\n", "--length=2")
    assert "length_beam: sequences to be filled in already have" in complaint("pairs", "ab\t_ a\n", "--length-beam=2")
    assert f"{file}:2: the line is blank" in complaint("pairs", "ab\n\n")
    assert f"{file}:1: a sequence without a header" in complaint("fasta", "a_\n")
    assert f"{file}: the file is empty" in complaint("words", "")
    assert "no such run folder" in command(tmp_path / "none").complaint
    with pytest.raises(InputError, match="the character 'y'"):
        read_problems(build("subwords"), "y _", settings_of())


def test_help_names_every_setting(command: Command) -> None:
    said = command("--help")
    assert said.code == 0
    for flag in flags_of(SampleSettings):
        assert f"--{flag.name.replace('_', '-')}" in said.out


def test_unusual_lengths_are_warned_of(command: Command, folders: dict[str, Path]) -> None:
    run = load_run(folders["words"])
    longest = max(run.codec.lengths)
    said = command(folders["words"], f"--length={longest + 3}", "--chains=2", "--sweeps=1").err
    assert (
        f"1 of 1 sequences have lengths outside those of the training data ({min(run.codec.lengths)} to {longest})"
        in said
    )
    assert "lengths outside" not in command(folders["words"], f"--length={longest}", "--chains=2", "--sweeps=1").err


def test_adjacent_marks_of_free_positions_are_refused(folders: dict[str, Path], command: Command) -> None:
    """Even where another position is free; characters need no blank."""
    refused = "'__' is not 2 free positions; write _ _, or choose another token for free positions"
    assert refused in command(folders["words"], "a __ _").complaint
    assert "'???' is not 3 free positions" in command(folders["words"], "a ???", "--free=?").complaint
    with pytest.raises(InputError, match="'__' is not 2 free positions"):
        read_problems(build("subwords"), "a __ _", settings_of())
    for kind, text in (("characters", "a__"), ("words", "a _ _")):
        (problem,) = read_problems(build(kind), text, settings_of())
        assert [token == FREE for token in problem.tokens] == [False, True, True]


def test_unknown_fixed_tokens_are_warned_of(tmp_path: Path) -> None:
    texts = [Example((), ("the", "dog")), Example((), ("the", "dog")), Example((), ("the", "cat"))]
    run = new_masked_run(texts, masked_settings(hidden_size=8))
    problems = [one for text in ("the _", "_ zebra") for one in read_problems(run, text, settings_of())]
    assert problem_warnings(run, problems) == ["1 of 2 sequences have fixed tokens that the model does not know"]


def test_chains_that_do_not_move_have_no_effective_sample_size(command: Command, folders: dict[str, Path]) -> None:
    """Two positions that have to hold the one phrase there is room for; beside another problem, and alone."""
    pytest.importorskip("arviz_stats")
    file = folders["words"].parent / "stuck.txt"
    flags = ["--contain=a b", "--sweeps=20"]
    for chains in ("--chains=1", "--chains=4"):
        said = command(folders["words"], "_ b", *flags, chains).err.splitlines()
        assert "no effective sample size: the chains do not move" in said
        assert not any(line.startswith("effective sample size") or " per pass" in line for line in said)
    file.write_text("_ b\n_ b _\n")
    said = command(folders["words"], file, *flags, "--visits=anywhere", "--blocks=2").err.splitlines()
    (line,) = [line for line in said if line.startswith("effective sample size of the energy")]
    found = re.match(r"effective sample size of the energy (\S+), at worst (\S+) \(problem 2\);", line)
    assert found is not None and found[1] == found[2]


@pytest.mark.thorough
def test_huge_but_harmless_numbers_are_accepted(command: Command, folders: dict[str, Path]) -> None:
    flags = ["--length=3", "--chains=2", "--sweeps=6"]
    for more in (
        ["--blocks=100000", "--visits=shuffled"],
        ["--blocks=100000", "--visits=anywhere"],
        ["--kernel=delayed-acceptance", "--window=1000000000"],
        ["--forced=1000000"],
        ["--temperature=0.5", "--anneal=1e-6"],
        ["--max-rows=1000000000"],
        ["--save-every=1000000000"],
    ):
        assert len(command(folders["words"], *flags, *more).records) == 2
    with pytest.raises(InputError, match="sweeps would be printed"):
        settings_of(sweeps=10**7, discard=10**7 - 10, every=10**6 * 7)


@pytest.mark.thorough
@pytest.mark.parametrize("kept", [{}, {"every": 3}, {"every": 7, "temperature": 0.5, "anneal": 0.1}, {"best": True}])
def test_the_number_of_printed_sequences_is_known_in_advance(kept: dict[str, Any]) -> None:
    run = build("words")
    settings = settings_of(chains=2, sweeps=30, length="2-3", count=4, **kept)
    assert len(sample(run, read_problems(run, None, settings), settings).samples) == settings.num_printed(4)


@pytest.mark.thorough
def test_samples_that_would_fill_the_disk_are_refused(
    command: Command, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is sampled or written; and what a folder holds already is not asked for twice."""
    words, output = folders["words"], tmp_path / "out"
    for flag, most in (("--count", 10**6), ("--chains", 10**6), ("--sweeps", 10**7)):
        assert (
            f"{flag[2:]} must be at least 1 and at most {most}, got {10**9}"
            in command(words, f"{flag}={10**9}").complaint
        )
    many = command(words, "--length=2", "--count=1000", "--chains=100000", "--every=1").complaint
    assert "2,600,000,000 sequences would be printed; the limit is 100,000,000; " in many
    free = 10**6
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    flags = [words, "--length=2", "--chains=20", "--sweeps=200", "--output", output]
    assert command(*flags).code == 0
    written = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    free = 10**4
    assert command(*flags).code == 0 and written > free
    refused = command(*flags, "--sweeps=400").complaint
    assert re.match(rf"{output}: the samples would take at least \S+ GB, and 1e-05 GB are free; use fewer", refused)
    other = tmp_path / "other"
    assert "GB are free" in command(*flags[:-1], other).complaint and not other.exists()
    assert "the problems would take at least" in command(words, "--length=100", "--count=10000").complaint


@pytest.mark.parametrize("anneal", [0.1, 0.07, 1 / 3, 0.02, 0.5, 2.0])
@pytest.mark.parametrize("temperature", [0.7, 0.05, 0.1, 0.999])
def test_annealing_is_counted_as_it_is_listed(anneal: float, temperature: float) -> None:
    settings = settings_of(temperature=temperature, anneal=anneal)
    falling = [1 - sweep * anneal for sweep in range(100) if 1 - sweep * anneal > temperature + 1e-12]
    assert settings.kernel.annealed == (*falling, temperature)  # type: ignore[attr-defined]
    assert settings.burn_in == len(falling)


def test_one_chain_has_no_r_hat(command: Command, folders: dict[str, Path]) -> None:
    pytest.importorskip("arviz_stats")
    said = command(folders["words"], "--length=2", "--chains=1", "--sweeps=20").err
    assert "needs at least two chains" in said and "do not move" not in said


def test_fewer_sweeps_than_an_interrupted_call_was_to_make_print_the_same(tmp_path: Path) -> None:
    """By default, as many sweeps are discarded as their number says; those that are kept must not depend on it."""
    run = build("words", dtype=torch.float32)
    options: dict[str, Any] = {"length": "3", "chains": 2, "every": 2, "save_every": 10}

    def stop(now: Any) -> None:
        if now.sweep > 12:
            raise Killed

    longer, fewer = (settings_of(sweeps=sweeps, **options) for sweeps in (33, 10))
    with pytest.raises(Killed):
        sample(run, read_problems(run, None, longer), longer, output=tmp_path / "stopped", on_sweep=stop)
    problems = read_problems(run, None, fewer)
    whole = sample(run, problems, fewer, output=tmp_path / "whole")
    assert sample(run, problems, fewer, output=tmp_path / "stopped").samples == whole.samples
    assert {each.sweep for each in whole.samples} == {6, 8, 10}
