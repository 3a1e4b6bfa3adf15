"""Log-linear language model: n-gram and skip-gram features of the context, hashed into one table of weights.

Shapes: N positions, C context words, J features of a context, V vocabulary, M weights in the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reproductions.andreas_klein_2015.streams import Positions
from seqwise.errors import InputError
from seqwise.models.hub import HubModel

TEMPLATES = ((1,), (1, 2), (1, 2, 3), (2,), (3,), (1, 3), (2, 3))


class LogLinear(nn.Module, HubModel):
    """Log-linear language model with hashed features: ``f(x, w) = b_w + sum_j theta[h_j(x) + w]``.

    Feature j of a context is the tuple of words at the distances that template j lists: (1, 2) is the bigram before the
    word, which shorter templates back off from, and (1, 3) skips a word. Its hash ``h_j(x)`` is the place in the table
    where its *window* begins: V weights in a row, one for each word. So the pair (feature, w) has the address
    ``h_j(x) + w``. One word is scored by J look-ups, whatever V is; all words by adding up J windows. The bias is the
    window of the empty template, and only its weights are never shared.

    Collisions: the pairs (c, w) and (c', w') share a weight where ``h(c) - h(c') = w' - w``. A weight is read by about
    F V / M pairs, F distinct features, but training raises only the pairs that occur: keep M well above J times the
    number of positions. Two pairs with one context collide only if two of its J windows overlap. The hash is
    splitmix64 over 64 bits, in which two features practically never agree.

    Weights start at 0 and the bias at -log V, so that log Z = 0.

    Source: Andreas and Klein (2015), section 5, with features similar to Biadsy et al. (2014); windows after the
    n-gram part of Mikolov et al. (2011), "Strategies for training large scale neural network language models"; the
    start of the bias from Devlin et al. (2014). Not implemented: the back-off features of Biadsy et al., which fire
    where an n-gram was not seen in training; signed hashing; more than one device.
    """

    distances_DJ: Tensor

    def __init__(
        self, *, vocabulary_size: int, num_weights: int = 2**22, templates: Sequence[Sequence[int]] = TEMPLATES
    ) -> None:
        super().__init__()
        if num_weights < vocabulary_size:
            problem = f"{num_weights} weights cannot hold a window of {vocabulary_size} words"
            raise InputError(problem, hint="take at least as many weights as words, better a thousand times as many")
        self.vocabulary_size, self.num_weights = vocabulary_size, num_weights
        self.templates = tuple(tuple(template) for template in templates)
        # Row d holds the distance that each template lists at place d; -1 if it lists fewer.
        depth = max(map(len, self.templates), default=0)
        padded = [[*template, *[-1] * (depth - len(template))] for template in self.templates]
        distances_DJ = torch.tensor(padded, dtype=torch.int64).reshape(len(padded), depth).T.contiguous()
        self.register_buffer("distances_DJ", distances_DJ, persistent=False)
        weights_M = torch.zeros(num_weights + vocabulary_size)
        weights_M[num_weights:] = -math.log(vocabulary_size)
        self.weights_M = nn.Parameter(weights_M)

    @property
    def context_size(self) -> int:
        """Return C, the longest distance that a template lists."""
        return max((distance for template in self.templates for distance in template), default=0)

    def offsets(self, contexts_NC: Tensor) -> Tensor:
        """Return the start of the window of each feature, int64 (N, J); the bias comes first."""
        num_positions = len(contexts_NC)
        # Distance and word are packed into one number, so that a feature keeps its hash if templates are added.
        distances_C = torch.arange(contexts_NC.shape[1], device=contexts_NC.device) + 1
        placed_NC = contexts_NC + (distances_C << 40)
        keys_NJ = contexts_NC.new_zeros(num_positions, len(self.templates))
        for distances_J in self.distances_DJ:  # all templates at once: few large operations
            mixed_NJ = _mix(keys_NJ + placed_NC.index_select(1, distances_J.abs() - 1))
            keys_NJ = torch.where(distances_J > 0, mixed_NJ, keys_NJ)
        hashed_NJ = (keys_NJ >> 1 & _bits(63)) % (self.num_weights - self.vocabulary_size + 1)
        return torch.cat([hashed_NJ.new_full((num_positions, 1), self.num_weights), hashed_NJ], dim=1)

    def word_scores(self, contexts_NC: Tensor, words_N: Tensor) -> Tensor:
        """Return the score of one word per position, (N,), by J look-ups each, whatever the vocabulary."""
        return self.weights_M[self.addresses(contexts_NC, words_N)].sum(dim=-1)

    def addresses(self, contexts_NC: Tensor, words_N: Tensor) -> Tensor:
        """Return the addresses in the table of the J weights of each pair of a context and a word, int64 (N, J)."""
        return self.offsets(contexts_NC) + words_N[:, None]

    @torch.no_grad()
    def log_partitions(self, contexts_NC: Tensor, *, block_size: int = 64) -> Tensor:
        """Return log Z, (N,), with the scores of ``block_size`` positions in memory at a time."""
        blocks = [
            window_sums(self.weights_M, self.offsets(block), self.vocabulary_size).logsumexp(dim=-1)
            for block in contexts_NC.split(block_size)
        ]
        return torch.cat([self.weights_M.new_zeros(0), *blocks])


def _bits(count: int) -> int:
    return (1 << count) - 1


def _mix(key: Tensor) -> Tensor:
    """Apply the output function of splitmix64 (Steele et al. 2014); int64 multiplication wraps as unsigned does."""
    key = key - 0x61C8864680B583EB  # 2^64 over the golden ratio, as a negative int64
    key = (key ^ (key >> 30 & _bits(34))) * -0x40A7B892E31B1A47  # the mask makes the shift a logical one
    key = (key ^ (key >> 27 & _bits(37))) * -0x6B2FB644ECCEEE15
    return key ^ (key >> 31 & _bits(33))


def window_sums(weights_M: Tensor, offsets_NJ: Tensor, width: int) -> Tensor:
    """Return ``sum_j weights[offset_j : offset_j + width]``; reading in a row is far faster than gathering."""
    sums_NV = weights_M.new_zeros(len(offsets_NJ), width)
    for sums_V, offsets in zip(sums_NV, offsets_NJ.tolist(), strict=True):
        for offset in offsets:
            sums_V.add_(weights_M.narrow(0, offset, width))
    return sums_NV


class HeldOut(NamedTuple):
    """Quality and normalisation of a model on a text; all but the count and the perplexity in nats.

    ``negative_log_likelihood`` is normalised: the mean of log Z - f. ``risk`` is R, the mean of |log Z|; ``mean`` that
    of log Z; ``deviation`` the mean of |log Z - mean|, the risk that remains if a constant is subtracted.
    """

    num_positions: int
    negative_log_likelihood: float
    perplexity: float
    risk: float
    mean: float
    deviation: float

    @classmethod
    def of(cls, log_partitions_N: Tensor, total: float) -> HeldOut:
        """Compute the measures from log Z of each position and the sum of the unnormalised scores."""
        values_N = log_partitions_N.double()
        mean = float(values_N.mean())
        loss = mean - total / len(values_N)
        perplexity = math.exp(loss) if loss < 700 else math.inf
        risk, deviation = float(values_N.abs().mean()), float((values_N - mean).abs().mean())
        return cls(len(values_N), loss, perplexity, risk, mean, deviation)


@torch.no_grad()
def held_out(model: LogLinear, batches: Iterable[Positions], *, block_size: int = 64) -> HeldOut:
    """Measure perplexity and the normalisation risk ``R = mean_n |log Z(x_n)|`` in one pass over a text.

    Source: Andreas and Klein (2015), section 5.
    """
    log_partitions, total = [torch.zeros(0)], 0.0
    for positions in batches:
        log_partitions.append(model.log_partitions(positions.contexts_NC, block_size=block_size))
        total += float(model.word_scores(*positions).double().sum())
    return HeldOut.of(torch.cat(log_partitions), total)
