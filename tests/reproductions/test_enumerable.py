"""Enumerable distributions: closed forms, sums over hidden paths, samples against probabilities, the real phonemes."""

from __future__ import annotations

import gzip
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from reproductions.corpora.lexicons import read_lexicon
from reproductions.goyal_2021.enumerable import (
    EMISSION_WEIGHTS,
    HMM_SHARPNESS,
    TRANSITION_WEIGHTS,
    Enumerable,
    empirical_weights,
    hidden_markov,
    palindrome_entropy,
    palindromes,
    phoneme_sequences,
    sequence_numbers,
    thesis_hmm,
)
from seqwise.errors import InputError
from seqwise.sampling.correctness import every_sequence


def test_every_sequence_is_the_product_in_lexicographic_order() -> None:
    for size, length in ((2, 3), (3, 4), (5, 2), (4, 1)):
        found = every_sequence(size, length)
        assert found.tolist() == [list(one) for one in itertools.product(range(size), repeat=length)]
        assert sequence_numbers(found, size).tolist() == list(range(size**length))


def test_palindromes_one_by_one() -> None:
    found = palindromes(vocab_size=3, length=4, share=0.7)
    sequences = list(itertools.product(range(3), repeat=4))
    mirrored = [one for one in sequences if one == one[::-1]]
    assert len(mirrored) == 9
    for one, probability in zip(sequences, found.probs_N.tolist(), strict=True):
        expected = 0.7 / 9 if one in mirrored else 0.3 / (81 - 9)
        assert probability == pytest.approx(expected, rel=1e-12)


def test_the_entropy_of_palindromes_is_not_the_published_one() -> None:
    by_hand = -0.8 * math.log(0.8 / 125) - 0.2 * math.log(0.2 / 3000)
    assert palindrome_entropy() == pytest.approx(by_hand, abs=1e-12) and round(by_hand, 4) == 5.9643
    assert palindromes().entropy == pytest.approx(by_hand, abs=1e-12)
    slip = -0.8 * math.log(0.8 / 125) + 0.2 * math.log(0.2) + 0.2 * math.log(3000)
    assert round(slip, 2) == 5.32
    for size, length in ((3, 4), (2, 5)):
        given = {"vocab_size": size, "length": length, "share": 0.35}
        assert palindrome_entropy(**given) == pytest.approx(palindromes(**given).entropy, abs=1e-12)


def path_sum(initial, transitions, emissions, sequence) -> float:
    """Probability of a sequence, one hidden path after the other."""
    total = 0.0
    for path in itertools.product(range(len(initial)), repeat=len(sequence)):
        probability = initial[path[0]]
        for t, (state, token) in enumerate(zip(path, sequence, strict=True)):
            probability *= emissions[state][token] * (transitions[path[t - 1]][state] if t else 1)
        total += probability
    return total


def test_a_hidden_markov_model_against_its_hidden_paths() -> None:
    draw = np.random.default_rng(0)
    initial, transitions, emissions = draw.dirichlet([1] * 3), draw.dirichlet([1] * 3, 3), draw.dirichlet([1] * 4, 3)
    found = hidden_markov(*map(torch.tensor, (initial, transitions, emissions)), length=3)
    expected = [path_sum(initial, transitions, emissions, one) for one in itertools.product(range(4), repeat=3)]
    np.testing.assert_allclose(found.probs_N.numpy(), expected, rtol=1e-12)
    assert found.entropy == pytest.approx(-sum(p * math.log(p) for p in expected), abs=1e-12)


@pytest.mark.parametrize(("entropy", "nats"), [("low", 5.0), ("high", 6.43)])
def test_the_two_hidden_markov_models_have_the_entropies_of_the_thesis(entropy: str, nats: float) -> None:
    found = thesis_hmm(entropy)
    assert (found.vocab_size, found.length) == (5, 5) and found.entropy == pytest.approx(nats, abs=5e-3)
    tables = [np.array(w, dtype=float) ** HMM_SHARPNESS[entropy] for w in (TRANSITION_WEIGHTS, EMISSION_WEIGHTS)]
    transitions, emissions = (table / table.sum(1, keepdims=True) for table in tables)
    for sequence in ((0, 0, 0, 0, 0), (0, 1, 2, 3, 4), (4, 2, 0, 3, 1)):
        number = int("".join(map(str, sequence)), 5)
        expected = path_sum([0.25] * 4, transitions, emissions, sequence)
        assert found.probs_N[number].item() == pytest.approx(expected, rel=1e-12)


def test_samples_have_the_probabilities() -> None:
    """Pearson's statistic of 26 degrees of freedom: mean 26, standard deviation sqrt(52)."""
    truth = palindromes(vocab_size=3, length=3, share=0.6)
    drawn = truth.sample(40_000, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (40_000, 3)
    expected = 40_000 * truth.probs_N
    statistic = (((40_000 * empirical_weights(drawn, 3) - expected) ** 2) / expected).sum().item()
    assert abs(statistic - 26) < 4 * math.sqrt(52)
    assert torch.equal(drawn, truth.sample(40_000, generator=torch.Generator().manual_seed(0)))


def test_sequences_of_probability_zero_are_allowed_and_never_drawn() -> None:
    coin = Enumerable(2, 2, torch.tensor([0.5, 0.0, 0.0, 0.5], dtype=torch.float64).log())
    assert coin.entropy == pytest.approx(math.log(2))
    drawn = coin.sample(200, generator=torch.Generator().manual_seed(1))
    assert (drawn[:, 0] == drawn[:, 1]).all() and set(drawn[:, 0].tolist()) == {0, 1}


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"5\^12 sequences, more than the limit of 1,000,000"):
        every_sequence(5, 12)
    with pytest.raises(InputError, match="at least 1"):
        every_sequence(5, 0)
    with pytest.raises(InputError, match="at most 2 phonemes"):
        phoneme_sequences([("photo", ["F", "OW1", "T", "OW2"])], max_length=2)


@pytest.mark.thorough
def test_the_thesis_counts_phoneme_sequences_with_their_duplicates(corpora: Path) -> None:
    with gzip.open(corpora / "cmudict" / "cmudict-0.7b.gz", "rt", encoding="latin-1") as file:
        lexicon = read_lexicon(file)
    short = [phonemes for _, phonemes in lexicon if len(phonemes) <= 6]
    assert len(short) == 77_653  # as the thesis says
    found = phoneme_sequences(lexicon)
    assert len(found) == len(set(found)) == 61_144
    assert len({phoneme for one in found for phoneme in one}) == 39
    assert max(map(len, found)) == 6 and found == sorted(found)
