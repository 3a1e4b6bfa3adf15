"""Samplers inside a language: the laws that they are compared by, and a small run."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from reproducing import read_back, setup
from reproductions.beyond import constrained_sampling as sampling
from reproductions.goyal_2021.enumerable import total_variation
from reproductions.report import Table
from seqwise.sampling import LanguageChains, regrow_suffix, start_within, transition_matrix
from seqwise.sampling.energies import rows_of


@pytest.fixture(scope="module", autouse=True)
def two_phonemes() -> Iterator[None]:
    """A lexicon of three phonemes and words of up to two."""
    words = tuple(tuple(word) for word in (["AA"], ["AA", "K"], ["K", "AA"], ["T", "K"], ["K"], ["T", "AA"]))
    caches = (sampling.lexicon, sampling.phonemes, sampling.set_of_words, sampling.constraint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "lexicon", lambda: words)
        for name, setting in {"LONGEST": 2, "STEPS": 3, "RUNS": 500, "LEARNT": (5,), "SAMPLES": (5, 40)}.items():
            patch.setattr(sampling, name, setting)
        for cached in caches:
            cached.cache_clear()
        yield
    for cached in caches:
        cached.cache_clear()


def states_of(name: str, seed: int) -> tuple[object, LanguageChains]:
    model, context = sampling.bigram(seed)
    language, outputs_NT = sampling.constraint(name)
    rows_N = torch.zeros(len(outputs_NT), dtype=torch.long)
    return model, start_within(model, rows_of(context, rows_N), language, outputs_NT)


def test_outputs_are_those_of_the_constraint_in_order() -> None:
    phonemes = sampling.phonemes()
    assert phonemes == ("AA", "K", "T")
    outputs = [tuple(output) for output in sampling.constraint("contains K")[1].tolist()]
    every = [(a, 3, 3) for a in range(3)] + [(a, b, 3) for a, b in itertools.product(range(3), repeat=2)]
    assert outputs == sorted(output for output in every if 1 in output)


@pytest.mark.parametrize("independence", [0.5, 1.0])
@pytest.mark.parametrize("name", ["contains K", "in the lexicon", "alternates"])
def test_the_law_after_a_proposal_is_that_of_the_transition_matrix(name: str, independence: float) -> None:
    model, states = states_of(name, seed=1)
    language, _ = sampling.constraint(name)
    matrix_NN = transition_matrix(regrow_suffix(model, language, independence=independence), states)
    law_N = (-states.energy_B - states.log_weights_B).exp()
    moved_N = sampling.after_proposal(law_N, states, model.end, independence=independence)
    torch.testing.assert_close(moved_N, law_N @ matrix_NN, atol=1e-12, rtol=0)


def test_particles_of_one_run_are_masked_and_of_many_the_conditional() -> None:
    _, states = states_of("contains K", seed=0)
    masked_N = (-states.energy_B - states.log_weights_B).exp()
    target_N = (-states.energy_B).softmax(0)
    for num_particles, law_N in ((1, masked_N), (300, target_N)):
        num_runs = 60_000 // num_particles
        found_N = sampling.particles_law(states, num_runs=num_runs, num_particles=num_particles, seed=0)
        assert float(found_N.sum()) == pytest.approx(1)
        assert total_variation(found_N, law_N) < 0.02 < total_variation(masked_N, target_N)


def test_a_bound_of_total_variation_is_not_raised_by_noise() -> None:
    target_N = torch.full((4000,), 1 / 4000).double()
    draws = [torch.bincount(torch.randint(4000, (4000,)), minlength=4000) / 4000 for _ in range(2)]
    assert total_variation(draws[0], target_N) > 0.3
    assert sampling.least_distance(target_N, draws) < 0.03
    assert sampling.least_distance(target_N, [torch.eye(4000)[0]] * 2) == pytest.approx(1 - 1 / 4000)


@pytest.fixture(scope="module")
def small(two_phonemes: None, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Three phonemes, and three steps of training."""
    folder = tmp_path_factory.mktemp("sampling")
    (outcome,) = sampling.reproduce(setup(folder, 0, 1))
    return read_back(outcome, folder)


@pytest.mark.thorough
def test_a_small_run(small: Table) -> None:
    found = {(result.system, result.measure): result.value for result in small.results}
    for model, name in itertools.product(sampling.MODELS, sampling.CONSTRAINTS):
        distances = {
            system: found[f"{model}: {system}", f"{name}, {sampling.DISTANCE}"]
            for system in (sampling.MASKING, sampling.CHAINS, sampling.PLAIN, "sample_within, 40 samples")
        }
        assert all(0 <= value <= 1 for value in distances.values())
        assert distances[sampling.CHAINS] < distances[sampling.MASKING]
        assert found[f"{model}: sample_within, 40 samples", f"{name}, {sampling.COST}"] <= sampling.PASSES
        plain = found[f"{model}: {sampling.PLAIN}", f"{name}, {sampling.COST}"]
        assert 1 <= found[f"{model}: rejection with a memory, 40 samples", f"{name}, {sampling.COST}"] < 2 * plain
    assert len(small.claims) == 2 * 6


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["contains K", "in the lexicon", "alternates"])
def test_particles_are_those_of_genlm_control(name: str) -> None:
    """Its own sampler, on the same bigram model and language: the mean weight of each output over runs."""
    control = pytest.importorskip("genlm.control", reason="genlm-control is not installed")
    model, states = states_of(name, seed=1)
    phonemes, outputs_NT = list(sampling.phonemes()), states.tokens_BT
    end, log_probs = len(phonemes), model.log_probs.numpy()  # type: ignore[attr-defined]
    words = [tuple(phonemes[token] for token in output if token < end) for output in outputs_NT.tolist()]
    beginnings = {word[:length] for word in words for length in range(len(word) + 1)}

    class Model(control.Potential):  # type: ignore[misc, name-defined]
        async def prefix(self, context: list[str]) -> float:
            ids = [end, *(self.lookup[phoneme] for phoneme in context)]
            return float(sum(log_probs[pair] for pair in itertools.pairwise(ids)))

        async def complete(self, context: list[str]) -> float:
            return await self.prefix(context) + float(log_probs[self.lookup[context[-1]] if context else end, end])

    class Inside(control.Potential):  # type: ignore[misc, name-defined]
        async def prefix(self, context: list[str]) -> float:
            return 0.0 if tuple(context) in beginnings else -math.inf

        async def complete(self, context: list[str]) -> float:
            return 0.0 if tuple(context) in words else -math.inf

    num_runs, num_particles = 300, 4

    async def weights_of_runs() -> torch.Tensor:
        smc = control.SMC(control.direct_token_sampler(Model(phonemes) * Inside(phonemes)))
        weights_RN = torch.zeros(num_runs, len(words), dtype=torch.float64)
        for weights_N in weights_RN:
            found = await smc(n_particles=num_particles, ess_threshold=sampling.ESS, max_tokens=sampling.LONGEST + 1)
            for context, weight in zip(found.contexts, found.normalized_weights, strict=True):
                weights_N[words.index(tuple(token for token in context if isinstance(token, str)))] += weight
        await smc.cleanup()
        return weights_RN

    np.random.seed(0)
    torch.manual_seed(0)
    weights_RN = asyncio.run(weights_of_runs())
    ours_N = sampling.particles_law(states, num_runs=20_000, num_particles=num_particles, seed=0)
    errors_N = weights_RN.std(0) / math.sqrt(num_runs)
    assert bool(((weights_RN.mean(0) - ours_N).abs() < 4 * errors_N + 1e-3).all())
    law_N = (-states.energy_B - states.log_weights_B).exp()  # of masking, which the particles improve on
    assert name == "alternates" or bool(((weights_RN.mean(0) - law_N).abs() > 4 * errors_N).any())
