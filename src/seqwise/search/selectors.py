"""Selectors turn the candidates of one step into a selection (:mod:`seqwise.search.selection`).

Shapes: B batch, J slots before, K slots after, V vocabulary, W tokens that may follow a slot (all V, or those that a
language allows), N = J W candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.deferred_linear import Matrices
from seqwise.search.candidates import Candidates
from seqwise.search.large_vocabulary.relaxed import default_tolerance, relaxed_top_k
from seqwise.search.large_vocabulary.scan import MOST, Choice
from seqwise.search.noise import Noise, no_noise
from seqwise.search.operators import (
    AlphaUnit,
    finite,
    hard_top_k,
    in_units,
    of_scores,
    peaked_softmax,
    require_alpha,
    require_beam_size,
    weights_and_gaps,
)
from seqwise.search.selection import HardSelection, Selection, SoftSelection


class Selector(Protocol):
    """Function that chooses from the candidates of one step.

    Args:
        candidates: candidates of one step.
        carry: carry that the selector returned at the previous step, None at the first. A selector keeps all its state
            (the noise of each slot, the losses so far) in the carry, so one selector can serve many searches.
        generator: source of random numbers; None is torch's global one.

    Returns:
        The selection, and the carry for the next step (None if the selector has no state).
    """

    def __call__(self, candidates: Candidates, carry: Any, generator: torch.Generator | None) -> tuple[Selection, Any]:
        """Choose."""
        ...


@dataclass(frozen=True)
class HardTopK:
    """Keep the k best candidates: greedy for k = 1, beam search for k > 1 (Algorithm 1).

    Args:
        k: beam size. A step with fewer candidates keeps all of them.
        noise: noise added before choosing, never to the scores; for k = 1 only.

    Raises:
        InputError: k is less than 1, or more than 1 with noise.

    Gradients flow through the scores of the chosen candidates, never through the choice.

    Example:
        >>> selection, _ = HardTopK(2)(Candidates.of_scores(torch.tensor([[[0.1, 0.9, 0.5]]])), None, None)
        >>> selection.tokens_BK, selection.scores_BK
        (tensor([[1, 2]]), tensor([[0.9000, 0.5000]]))
    """

    k: int
    noise: Noise = field(default=no_noise)

    def __post_init__(self) -> None:
        require_beam_size(self.k)
        if self.k > 1 and self.noise is not no_noise:
            raise InputError(
                f"fresh noise at each step with k = {self.k} is not stochastic beam search",
                hint="use k = 1 with noise, or StochasticTopK(k)",
            )

    def __call__(
        self, candidates: Candidates, carry: Any, generator: torch.Generator | None
    ) -> tuple[HardSelection, Any]:
        """Choose from one step's candidates."""
        if self.noise is no_noise:
            matrices = Matrices() if carry is None else carry
            return HardSelection(*candidates.top_k(self.k, matrices)), matrices
        scores_BJW = candidates.scores_BJW
        k = min(self.k, scores_BJW.shape[1:].numel())
        _, parents_BK, columns_BK = hard_top_k(self.noise(scores_BJW, generator), k)
        scores_BK = scores_BJW.flatten(1).gather(1, parents_BK * scores_BJW.shape[-1] + columns_BK)
        return HardSelection(scores_BK, parents_BK, candidates.tokens_at(parents_BK, columns_BK)), carry


@dataclass(frozen=True)
class SoftTopK:
    """Keep k mixtures of candidates, each peaked at one of the k best: the relaxed beam (Algorithms 2 and 3).

    Args:
        k: beam size. A step with fewer candidates has one slot per candidate.
        alpha: inverse temperature, greater than 0; as it grows, the search approaches ``HardTopK(k)``.
        unit: divisor of alpha at each step: 1, or :func:`~seqwise.search.operators.mean_squared_gap`, which makes the
            result independent of the scale of the scores.
        form: method of computation: by default ``summed`` if there are many candidates, else ``expanded``; or one form
            for all steps, :func:`expanded` or :func:`summed`.

    Raises:
        InputError: k is less than 1, or alpha is not positive.

    Example:
        >>> selection, _ = SoftTopK(k=2, alpha=1.0)(Candidates.of_scores(torch.tensor([[[3.0, 1.0, 2.0]]])), None, None)
        >>> selection.token_weights_BKX
        tensor([[[0.7214, 0.0132, 0.2654],
                 [0.2119, 0.2119, 0.5761]]])
    """

    k: int
    alpha: float
    unit: AlphaUnit = field(default=of_scores)
    form: Form = field(default_factory=lambda: automatic)

    def __post_init__(self) -> None:
        require_beam_size(self.k)
        require_alpha(self.alpha)

    def __call__(self, candidates: Candidates, carry: Any, generator: torch.Generator | None) -> tuple[Selection, Any]:
        """Choose from one step's candidates."""
        matrices = Matrices() if carry is None else carry
        return self.form(candidates, self.k, self.alpha, self.unit, matrices), matrices


Form = Callable[[Candidates, int, float, AlphaUnit, Matrices], Selection]
"""Method of computing the soft top-k: a function of the candidates, k, alpha, its unit, and the search's matrices."""


def expanded(
    candidates: Candidates, k: int, alpha: float, unit: AlphaUnit, matrices: Matrices | None = None
) -> SoftSelection:
    """Compute the soft top-k from its definition, with K x J x V weights, all in the graph.

    Example:
        >>> candidates = Candidates.of_scores(torch.tensor([[[3.0, 1.0, 2.0]]]))
        >>> expanded(candidates, 2, 50.0, of_scores).token_weights_BKX.round()
        tensor([[[1., 0., 0.],
                 [0., 0., 1.]]])
    """
    scores_BJW = candidates.scores_BJW
    k = min(k, scores_BJW.shape[1:].numel())
    maxima_BK, parents_BK, columns_BK = hard_top_k(scores_BJW, k)
    scaled_alpha: float | Tensor = alpha
    if unit is not of_scores:
        best_BM, parents_BM, columns_BM = hard_top_k(scores_BJW, min(k + 1, scores_BJW.shape[1:].numel()))
        open_BM = candidates.open_shares(parents_BM, candidates.tokens_at(parents_BM, columns_BM))
        scaled_alpha = in_units(alpha, unit(best_BM, open_BM))[:, None, None]
    weights_BKN, gaps_BKN = weights_and_gaps(scores_BJW.flatten(1), maxima_BK, scaled_alpha)
    weights_BKJW = weights_BKN.unflatten(-1, scores_BJW.shape[1:])
    return _mixture(candidates, maxima_BK, weights_BKJW, gaps_BKN, parents_BK, columns_BK)


def summed(*, tolerance: float | None = None, most: int = MOST) -> Form:
    """Compute the soft top-k without K x J x V weights in memory, and without saving anything of size V.

    For each input, the n best candidates are used if a bound shows that all others together have at most
    ``tolerance`` of the mass in each of the k distributions; otherwise all candidates are used, in chunks. If the head
    is not linear, the expanded form is computed for a few inputs at a time, and recomputed in the backward pass.

    Args:
        tolerance: share of the mass that may be left out; by default 1e-12 in float64, else 1e-7, less than rounding
            errors. With a negative tolerance, all candidates are used.
        most: upper bound on n.

    Second derivatives are not implemented. The cost of a step may be computed again during the backward pass.

    Example:
        >>> SoftTopK(k=3, alpha=1.0, form=summed(tolerance=1e-9)).k
        3
    """

    def form(candidates: Candidates, k: int, alpha: float, unit: AlphaUnit, matrices: Matrices) -> Selection:
        if not len(candidates.prefix_scores_BJ) or candidates.allowed_BJC is not None:
            return expanded(candidates, k, alpha, unit)
        allowed = default_tolerance(candidates.prefix_scores_BJ.dtype) if tolerance is None else tolerance
        choice = Choice(k, alpha, unit, allowed, most)
        return relaxed_top_k(candidates, choice, partial(expanded, k=k, alpha=alpha, unit=unit), matrices)

    return form


def automatic(candidates: Candidates, k: int, alpha: float, unit: AlphaUnit, matrices: Matrices) -> Selection:
    """Use :func:`summed` for many candidates; :func:`expanded` for few, or if their scores exist already."""
    form = summed() if candidates.many and not candidates.num_excluded else expanded
    return form(candidates, k, alpha, unit, matrices)


@dataclass(frozen=True)
class SoftArgmax:
    """Keep one mixture, ``softmax_alpha(s~)`` of all candidates: alpha-soft greedy or, with noise, alpha-soft sampling.

    This differs from ``SoftTopK(1, alpha)``, whose weights fall with the *square* of the distance from the best.

    Args:
        alpha: inverse temperature, greater than 0.
        noise: ``Gumbel()`` gives the concrete relaxation ``softmax_alpha(s~ + G)`` of a sample.

    Raises:
        InputError: alpha is not positive.

    Source: Goyal, Dyer and Berg-Kirkpatrick (ACL 2017); thesis, chapter 3.

    Example:
        >>> selection, _ = SoftArgmax(alpha=2.0)(Candidates.of_scores(torch.tensor([[[0.0, 1.0]]])), None, None)
        >>> selection.token_weights_BKX
        tensor([[[0.1192, 0.8808]]])
    """

    alpha: float
    noise: Noise = field(default=no_noise)

    def __post_init__(self) -> None:
        require_alpha(self.alpha)

    def __call__(
        self, candidates: Candidates, carry: Any, generator: torch.Generator | None
    ) -> tuple[SoftSelection, Any]:
        """Choose from one step's candidates."""
        scores_BJW = candidates.scores_BJW
        noisy_BJW = self.noise(scores_BJW, generator)
        _, parents_B1, columns_B1 = hard_top_k(noisy_BJW, 1)
        weights_B1JW = peaked_softmax(noisy_BJW.flatten(1), self.alpha).view_as(scores_BJW)[:, None]
        flat_B1 = parents_B1 * scores_BJW.shape[-1] + columns_B1
        scores_BN = scores_BJW.flatten(1)
        centre_B1 = scores_BN.gather(1, flat_B1)
        gaps_BN = finite(scores_BN) - finite(centre_B1)
        return _mixture(candidates, centre_B1, weights_B1JW, gaps_BN[:, None], parents_B1, columns_B1), carry


def viterbi(
    candidates: Candidates, carry: Any = None, generator: torch.Generator | None = None
) -> tuple[HardSelection, Any]:
    """Keep the best hypothesis for each last token, V slots: ``s_w = max_i s_i + phi_i(w)``.

    If a score depends only on the previous token, as in a chain, this is the Viterbi algorithm: the best slot at the
    end is the best output, and each other slot is the best output that ends with its token. For other models, it is
    beam search with recombination: of hypotheses with the same last token, only the best survives, although another
    might have continued better. There are V^2 candidates per step.

    Source: Viterbi (IEEE Transactions on Information Theory, 1967); Lafferty et al. (ICML 2001) for chains of labels.

    Example:
        >>> before_BJ, added_BJV = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 1.0], [2.0, 0.0]]])
        >>> selection, _ = viterbi(Candidates.of_scores(added_BJV, prefix_scores_BJ=before_BJ))
        >>> selection.scores_BK, selection.parents_BK
        (tensor([[2., 2.]]), tensor([[1, 0]]))
    """
    scores_BV, parents_BV = candidates.scores_BJV.max(1)
    tokens_V = torch.arange(scores_BV.shape[1], device=scores_BV.device)
    return HardSelection(scores_BV, parents_BV, tokens_V.expand_as(parents_BV)), carry


def _mixture(
    candidates: Candidates,
    centre_BK: Tensor,
    weights_BKJW: Tensor,
    gaps_BKN: Tensor,
    parents_BK: Tensor,
    columns_BK: Tensor,
) -> SoftSelection:
    """Make a selection from weights over candidates, ``s_r = m_r + sum p_r (s~ - m_r)`` of the gaps to a centre."""
    dead_BK = centre_BK == -torch.inf
    scores_BK = finite(centre_BK) + (weights_BKJW.flatten(2) * gaps_BKN).sum(-1)
    allowed_BJC = candidates.allowed_BJC
    return SoftSelection(
        scores_BK.masked_fill(dead_BK, -torch.inf),
        parents_BK,
        candidates.tokens_at(parents_BK, columns_BK),
        weights_BKJW.sum(-1),
        weights_BKJW.sum(-2) if allowed_BJC is None else weights_BKJW.flatten(2),
        None if allowed_BJC is None else allowed_BJC.clamp(min=0).flatten(1),
    )
