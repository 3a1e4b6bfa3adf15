"""Stochastic beam search: samples k outputs of a model without replacement, in one search with k slots.

Adding Gumbel noise to the log-probability of every output and keeping the k best samples k outputs without replacement.
The noisy value of a prefix is the maximum over its continuations, so sampling can proceed top-down: a beam search that
draws noise at every step, conditioned on the best child of a slot having the slot's own value.

Shapes: B batch, J and K slots before and after a step, V vocabulary, N = J V candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.search.beam import Beam, search_steps
from seqwise.search.candidates import Candidates, renormalized
from seqwise.search.costs import Cost
from seqwise.search.language import language_of
from seqwise.search.noise import Gumbel
from seqwise.search.operators import peaked_softmax
from seqwise.search.selection import HardSelection


@dataclass(frozen=True)
class StochasticBeam:
    """Samples of k outputs for each of B inputs, without replacement, with the values for importance weights.

    Attributes:
        beam: the final beam; slots are in the order of the draws, so the first is an ordinary ancestral sample.
            ``beam.scores_BK`` are log-probabilities; minus infinity for missing outputs.
        perturbed_BK: noisy log-probabilities of the outputs, in descending order.
        threshold_B: kappa, the largest noisy log-probability of all outputs not drawn; minus infinity if all were
            drawn.
        log_mass_BK: sum over the steps of an output of log Z_t, the model's mass of the allowed tokens; None without a
            language.
    """

    beam: Beam
    perturbed_BK: Tensor
    threshold_B: Tensor
    log_mass_BK: Tensor | None = None


def conditional_gumbels(log_probs: Tensor, maximum: Tensor, generator: torch.Generator | None) -> Tensor:
    """Add Gumbel noise to log-probabilities, conditioned on the maximum of the sums.

    With ``g_i = log p_i + G_i``, ``Z = max_i g_i`` and the given maximum T, each g_i is moved to its quantile among
    values below T: ``g~_i = -log(exp(-T) - exp(-Z) + exp(-g_i))``, computed as ``T - max(0, v) - log(1 + exp(-|v|))``
    with ``v = T - g_i + log(1 - exp(g_i - Z))``.

    Maps log-probabilities (..., V), up to a constant, and maxima (...) to (..., V), with the largest of each live row
    exactly T; minus infinity in either excludes an entry. Not differentiable.

    Source: Kool, van Hoof and Welling (ICML 2019), section 3 and appendix B.3.
    """
    noisy = Gumbel()(log_probs.detach(), generator)
    largest = noisy.amax(-1, keepdim=True)
    excluded = noisy == -torch.inf
    # The largest has a gap of exactly 0, hence v is minus infinity and its value exactly T.
    gaps = (noisy - largest).masked_fill(excluded, -1.0)
    v = maximum.unsqueeze(-1) - noisy.masked_fill(excluded, 0.0) + _log1mexp(gaps)
    conditioned = maximum.unsqueeze(-1) - v.clamp(min=0) - torch.log1p(torch.exp(-v.abs()))
    return conditioned.masked_fill(excluded, -torch.inf)


class Draw(NamedTuple):
    """Carry of ``StochasticTopK``: noisy log-probabilities of the slots, and the best one that this step dropped."""

    perturbed_BK: Tensor
    dropped_B: Tensor


def _first_draw(scores_B1: Tensor, generator: torch.Generator | None) -> Draw:
    """Draw the maximum over all outputs: a standard Gumbel variable, as their probabilities sum to one."""
    return Draw(Gumbel()(scores_B1, generator), torch.full_like(scores_B1[:, 0], -torch.inf))


@dataclass(frozen=True)
class StochasticTopK:
    """Selector of the k best candidates by noisy log-probability, with noise conditioned on that of their parents.

    Args:
        k: beam size. A step with fewer candidates keeps all of them.

    With local scores, :func:`~seqwise.search.beam.beam_search` then samples k outputs without replacement;
    :func:`stochastic_beam_search` also keeps the values for importance weights.

    Source: Kool, van Hoof and Welling (ICML 2019), Algorithm 1.

    Example:
        >>> selection, draw = StochasticTopK(2)(Candidates.of_scores(torch.zeros(1, 1, 3)), None, None)
        >>> bool((draw.perturbed_BK[:, 0] >= draw.perturbed_BK[:, 1]).all()), selection.scores_BK
        (True, tensor([[0., 0.]]))
    """

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"the number of outputs k must be at least 1, got {self.k}")

    def __call__(
        self, candidates: Candidates, carry: Draw | None, generator: torch.Generator | None
    ) -> tuple[HardSelection, Draw]:
        """Choose from one step's candidates."""
        carry = _first_draw(candidates.prefix_scores_BJ, generator) if carry is None else carry
        perturbed_BN = conditional_gumbels(candidates.scores_BJW, carry.perturbed_BK, generator).flatten(1)
        k, num_candidates = min(self.k, perturbed_BN.shape[1]), perturbed_BN.shape[1]
        values_BK, flat_BK = perturbed_BN.topk(min(k + 1, num_candidates))
        dropped_B = values_BK[:, k] if k < num_candidates else torch.full_like(values_BK[:, 0], -torch.inf)
        width, chosen_BK = candidates.scores_BJW.shape[-1], flat_BK[:, :k]
        scores_BK, parents_BK = candidates.scores_BJW.flatten(1).gather(1, chosen_BK), chosen_BK // width
        selection = HardSelection(scores_BK, parents_BK, candidates.tokens_at(parents_BK, chosen_BK % width))
        return selection, Draw(values_BK[:, :k], dropped_B)


def stochastic_beam_search(
    model: StepModel,
    context: Any,
    *,
    k: int,
    num_steps: int | Tensor,
    cost: Cost | None = None,
    generator: torch.Generator | None = None,
) -> StochasticBeam:
    """Sample k outputs of a locally normalised model without replacement.

    The first is a sample of the model's distribution p over outputs, the next one of p without the first, renormalised,
    and so on: the r-th has probability ``p(y_r) / (1 - p(y_1) - ... - p(y_{r-1}))``.

    Scores must be local: the noise of a prefix depends on the total probability of its continuations, which raw or
    interpolated scores do not give. For the same reason, the model must not exclude all tokens after a live prefix:
    such a prefix is drawn like any other, and then its slot dies.

    In a language, the model is the one whose softmax is taken over the allowed tokens of each step. This is not the
    distribution of the model given the language; :func:`importance_weights` correct for that.

    Args:
        model: a step model.
        context: what ``model.encode`` returned.
        k: number of outputs; there are fewer if the model has fewer.
        num_steps: number of tokens to write: one number, or int64 (B,). An output that has not ended with the end token
            (``model.end``) by then counts as one output, whatever would follow.
        cost: the task cost of each token at each step, accumulated along the outputs in ``beam.costs_BK``.
        generator: random generator; by default torch's global one.

    Returns:
        The outputs, in the order of the draws. Gradients flow through their log-probabilities, never through the
        choice.

    Raises:
        InputError: k is less than 1, or the number of steps negative.

    Source: Kool, van Hoof and Welling (ICML 2019), Algorithm 1. There the threshold of the importance weights is the
    value of a (k+1)-th sample, which takes one more slot; here it is the best value that any step dropped. Both are
    equal, as a dropped prefix has the maximum of its continuations.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import backtrace
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> context = model.encode(collate([EncodedExample((1, 2), ())]))
        >>> drawn = stochastic_beam_search(model, context, k=4, num_steps=2)
        >>> sorted(backtrace(drawn.beam)[0].tolist())
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    beam = Beam.start(model, context)
    draw = _first_draw(beam.scores_BK, generator)
    perturbed_BK, threshold_B = draw
    language = language_of(model)
    log_mass_BK = None if language is None else torch.zeros_like(beam.scores_BK)
    steps = search_steps(
        model,
        context,
        StochasticTopK(k),
        num_steps=num_steps,
        score=renormalized,
        cost=cost,
        generator=generator,
        carry=draw,
    )
    for number, step in enumerate(steps):
        beam, draw = step.beam, step.carry
        active_B1 = torch.as_tensor(num_steps, device=threshold_B.device).expand_as(threshold_B)[:, None] > number
        held_BK = F.pad(perturbed_BK, (0, draw.perturbed_BK.shape[1] - perturbed_BK.shape[1]), value=-torch.inf)
        perturbed_BK = torch.where(active_B1, draw.perturbed_BK, held_BK)
        threshold_B = torch.where(active_B1[:, 0], torch.maximum(threshold_B, draw.dropped_B), threshold_B)
        if log_mass_BK is not None:
            log_mass_BJ = log_mass_BK + step.candidates.log_allowed_mass_BJ.masked_fill(~active_B1, 0.0)
            log_mass_BK = log_mass_BJ.gather(1, beam.parents[-1])
    return StochasticBeam(beam, perturbed_BK, threshold_B, log_mass_BK)


def importance_weights(drawn: StochasticBeam) -> Tensor:
    """Compute weights for an unbiased estimate of an expectation: ``E[f(y)] = E[sum_k w_k f(y_k)]``.

    ``w = p / q`` with ``q = 1 - exp(-exp(log p - kappa))``, the probability that the output's noisy log-probability
    exceeds the threshold. The weights of a draw sum to one only on average. Their variance is finite for k of 2 or
    more, and infinite for k = 1.

    In a language L, q belongs to the distribution drawn from, and the numerator to the model, whose probability is
    greater by the factor ``prod_t Z_t``. The sum then estimates ``E[f(y) 1[y in L]]`` without bias, and
    :func:`normalized_importance_weights` estimate ``E[f(y) | y in L]``.

    Args:
        drawn: what :func:`stochastic_beam_search` returned.

    Returns:
        (B, K), 0 for missing outputs. Gradients flow only through p, so that the gradient of the estimate is an
        unbiased estimate of the gradient of the expectation.

    Source: Kool, van Hoof and Welling (ICML 2019), section 4.2, after Vieira (2017).

    Example:
        >>> scores_BK, threshold_B = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([-torch.inf])  # all were drawn
        >>> beam = Beam(scores_BK, scores_BK, scores_BK, scores_BK, None)
        >>> importance_weights(StochasticBeam(beam, scores_BK, threshold_B))
        tensor([[0.5000, 0.2500]])
    """
    return _log_importance_weights(drawn).exp()


def normalized_importance_weights(drawn: StochasticBeam) -> Tensor:
    """Divide :func:`importance_weights` by their sum, which lowers the variance and, for finite k, adds some bias.

    Returns:
        (B, K); each row sums to 1. With k = 1, the only output has weight 1.

    Source: Kool, van Hoof and Welling (ICML 2019), section 4.2.

    Example:
        >>> scores_BK, threshold_B = torch.tensor([[0.6, 0.2]]).log(), torch.tensor([-torch.inf])
        >>> beam = Beam(scores_BK, scores_BK, scores_BK, scores_BK, None)
        >>> normalized_importance_weights(StochasticBeam(beam, scores_BK, threshold_B))
        tensor([[0.7500, 0.2500]])
    """
    return peaked_softmax(_log_importance_weights(drawn), alpha=1.0)


def _log_importance_weights(drawn: StochasticBeam) -> Tensor:
    log_probs_BK = drawn.beam.scores_BK
    dead_BK = log_probs_BK == -torch.inf
    log_probs_BK = log_probs_BK.masked_fill(dead_BK, 0.0)
    values_BK, threshold_B1 = log_probs_BK.detach(), drawn.threshold_B[:, None]
    excess_BK = values_BK - threshold_B1
    # q = 1 - exp(-rate). A long output's rate may be e^-1000, which underflows; from e^-60 on, q is the rate itself.
    log_inclusion_BK = torch.where(excess_BK < -60, excess_BK, _log1mexp(-excess_BK.exp()))
    if drawn.log_mass_BK is not None:
        log_probs_BK = log_probs_BK + drawn.log_mass_BK.masked_fill(dead_BK, 0.0)
    return (log_probs_BK - log_inclusion_BK).masked_fill(dead_BK, -torch.inf)


def _log1mexp(values: Tensor) -> Tensor:
    """Compute ``log(1 - exp(x))`` for x <= 0, with the accurate formula for each half of the range."""
    near_zero = values > -math.log(2)
    return torch.where(near_zero, torch.log(-torch.expm1(values)), torch.log1p(-torch.exp(values)))
