"""Distributions over few enough sequences to list: palindromes and hidden Markov models; phoneme sequences.

Shapes: B sequences drawn, N = V^T sequences in lexicographic order, T length, V vocabulary, S hidden states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reproductions.corpora.lexicons import Lexicon, without_stress
from seqwise.errors import InputError
from seqwise.sampling.correctness import every_sequence

# Weights of a cycle of four states, each with a preferred token; they are raised to the power of a sharpness.
TRANSITION_WEIGHTS = ((2, 6, 1, 1), (1, 2, 6, 1), (1, 1, 2, 6), (6, 1, 1, 2))
EMISSION_WEIGHTS = ((8, 4, 2, 1, 1), (1, 8, 4, 2, 1), (1, 1, 8, 4, 2), (2, 1, 1, 8, 4))
HMM_SHARPNESS = {"low": 2.575, "high": 1.935}
"""For five tokens, an entropy of 5.00 nats (low) and of 6.43 nats (high)."""


@dataclass(frozen=True, eq=False)
class Enumerable:
    """Distribution over the V^T sequences of one length, as a table."""

    vocab_size: int  # V
    length: int  # T
    log_probs_N: Tensor  # float64, log-probability of each sequence in the order of :func:`every_sequence`

    @property
    def probs_N(self) -> Tensor:
        """Return the probability of each sequence."""
        return self.log_probs_N.exp()

    @property
    def entropy(self) -> float:
        """Return ``-sum_y p(y) log p(y)``, in nats per sequence, a lower bound of every model's cross-entropy."""
        # xlogy: a sequence of probability 0 adds 0, not NaN.
        return -float(torch.xlogy(self.probs_N, self.probs_N).sum())

    def sample(self, count: int, *, generator: torch.Generator) -> Tensor:
        """Draw sequences with replacement: int64, (count, T)."""
        drawn_B = torch.multinomial(self.probs_N, count, replacement=True, generator=generator)
        return every_sequence(self.vocab_size, self.length)[drawn_B]


def sequence_numbers(tokens_BT: Tensor, vocab_size: int) -> Tensor:
    """Return the index of each sequence in :func:`every_sequence`."""
    powers_T = vocab_size ** torch.arange(tokens_BT.shape[1] - 1, -1, -1, device=tokens_BT.device)
    return (tokens_BT * powers_T).sum(-1)


def empirical_weights(tokens_BT: Tensor, vocab_size: int) -> Tensor:
    """Return the share of each of the V^T sequences among those given: float64, (V^T,)."""
    numbers_B = sequence_numbers(tokens_BT, vocab_size)
    return torch.bincount(numbers_B, minlength=vocab_size ** tokens_BT.shape[1]).double() / len(tokens_BT)


def total_variation(p_N: Tensor, q_N: Tensor) -> float:
    """Return the total variation between two distributions."""
    return float((p_N - q_N).abs().sum() / 2)


def palindromes(*, vocab_size: int = 5, length: int = 5, share: float = 0.8) -> Enumerable:
    """Return the thesis' palindromes (section 6.2.3), which have the total probability ``share``.

    ``p(y) = share / M`` for the ``M = V^ceil(T/2)`` palindromes, ``(1 - share) / (V^T - M)`` for the others.
    """
    tokens_NT = every_sequence(vocab_size, length)
    is_palindrome_N = (tokens_NT == tokens_NT.flip(-1)).all(-1)
    count = int(is_palindrome_N.sum())
    probs_N = torch.where(
        is_palindrome_N,
        torch.tensor(share / count, dtype=torch.float64),
        torch.tensor((1 - share) / (len(tokens_NT) - count), dtype=torch.float64),
    )
    return Enumerable(vocab_size, length, probs_N.log())


def palindrome_entropy(*, vocab_size: int = 5, length: int = 5, share: float = 0.8) -> float:
    """Return the entropy of :func:`palindromes` in closed form, in nats.

    ``-share log(share / M) - (1 - share) log((1 - share) / (V^T - M))``, ``M = V^ceil(T/2)``. For the thesis' numbers,
    this is 5.9643. Its Table 6.1 prints 5.32, which results if log 0.2 has the wrong sign.
    """
    count = vocab_size ** math.ceil(length / 2)
    return -share * math.log(share / count) - (1 - share) * math.log((1 - share) / (vocab_size**length - count))


def hidden_markov(initial_S: Tensor, transitions_SS: Tensor, emissions_SV: Tensor, *, length: int) -> Enumerable:
    """Return the sequences of a hidden Markov model with their exact probabilities, by the forward algorithm.

    ``p(y) = sum_z p(z_1) o(y_1 | z_1) prod_{t > 1} a(z_t | z_{t-1}) o(y_t | z_t)``.
    """
    vocab_size = emissions_SV.shape[1]
    # Normalised again in float64, because sums of float32 are 1 to seven digits only.
    initial_S, transitions_SS, emissions_SV = (
        table.double() / table.double().sum(-1, keepdim=True) for table in (initial_S, transitions_SS, emissions_SV)
    )
    every_sequence(vocab_size, length)  # raises an error for too many sequences before memory is allocated
    before_NS = initial_S[None]
    for _ in range(length):
        with_token_NVS = before_NS[:, None] * emissions_SV.T
        # Also after the last token; rows sum to 1, so this changes no probability.
        before_NS = with_token_NVS.flatten(0, 1) @ transitions_SS
    return Enumerable(vocab_size, length, before_NS.sum(-1).log())


def thesis_hmm(entropy: str, *, length: int = 5) -> Enumerable:
    """Return a hidden Markov model with 4 states and 5 tokens, of "low" or of "high" entropy.

    The thesis (section 6.2.3) gives no parameters; these have its entropies at length 5, 5.0 and 6.43 nats. Each state
    prefers its successor on a cycle and one token.
    """
    tables = [
        torch.tensor(weights, dtype=torch.float64) ** HMM_SHARPNESS[entropy]
        for weights in (TRANSITION_WEIGHTS, EMISSION_WEIGHTS)
    ]
    transitions_SS, emissions_SV = (table / table.sum(-1, keepdim=True) for table in tables)
    initial_S = torch.full((len(transitions_SS),), 1 / len(transitions_SS), dtype=torch.float64)
    return hidden_markov(initial_S, transitions_SS, emissions_SV, length=length)


def phoneme_sequences(lexicon: Lexicon, *, max_length: int = 6) -> list[tuple[str, ...]]:
    """Return the distinct phoneme sequences of a lexicon, without stress, in alphabetical order.

    Otherwise, homophones on both sides of a split would let training data into the test data: of the 77,653 entries of
    the CMU dictionary 0.7b with at most 6 phonemes, which is the thesis' count (section 6.2.3), 61,144 are distinct.
    """
    found = {without_stress(phonemes) for _, phonemes in lexicon if 0 < len(phonemes) <= max_length}
    if not found:
        raise InputError(f"no pronunciation of at most {max_length} phonemes in the lexicon")
    return sorted(found)
