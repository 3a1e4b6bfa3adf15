"""Decoders of masked diffusion models, which unmask all free positions, several per pass.

Each decoder is a kernel that draws a new sequence, independent of the state. None has a target: tokens of one pass are
drawn independently, and the choice of kept ones may depend on the draws.
:func:`~seqwise.sampling.correctness.unmasking_law` computes the exact distribution of each.

Shapes: B chains, T positions, M masked positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.draws import Draws
from seqwise.sampling.energies import MAX_ROWS, joint_logits
from seqwise.sampling.kernels import with_tokens
from seqwise.sampling.proposals import Proposal, random_subset
from seqwise.sampling.refinement import require_iterations
from seqwise.sampling.state import ChainState, Info


@dataclass(frozen=True, eq=False)
class Partial:
    """Sequences in which some free positions are still masked; tokens at masked positions are arbitrary."""

    tokens_BT: Tensor
    masked_BT: Tensor
    free_BT: Tensor

    def take(self, rows_N: Tensor) -> Partial:
        """Select sequences, int64 (N,)."""
        return Partial(self.tokens_BT[rows_N], self.masked_BT[rows_N], self.free_BT[rows_N])


Rule: TypeAlias = Callable[[Draws, Partial, Tensor, int], Partial]
"""Rule of an iteration: maps draws, sequences, scores (B, T, V), 0 at unmasked positions, and the number of the
iteration, from 1, to the next sequences."""


@dataclass(frozen=True, eq=False)
class Unmasking:
    """Decoder of masked diffusion models as a kernel; made by the functions of this module.

    Attributes:
        model: the masked model.
        rule: rule of an iteration.
        num_iterations: number of iterations; None for as many as needed.
    """

    model: MaskedModel
    rule: Rule
    num_iterations: int | None

    def most_iterations(self, free_BT: Tensor) -> int:
        """Return the number of iterations after which no position is masked."""
        return int(free_BT.sum(1).max()) if self.num_iterations is None else self.num_iterations

    def scores(self, partial: Partial, context: Any = None, *, max_rows: int = MAX_ROWS) -> Tensor:
        """Compute the scores of every token at masked positions, (B, T, V), 0 at the others; one pass per sequence."""
        logits_MV = joint_logits(
            self.model, partial.tokens_BT, partial.masked_BT, context=context, max_rows=max_rows
        ).cpu()
        logits_BTV = logits_MV.new_zeros(*partial.masked_BT.shape, self.model.vocab_size)
        logits_BTV[partial.masked_BT] = logits_MV
        return logits_BTV

    @torch.no_grad()
    def __call__(self, draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        """Draw a sequence for each chain; see :class:`~seqwise.sampling.state.Kernel`."""
        partial, info = Partial(state.tokens_BT, state.free_BT, state.free_BT), Info.none(state, invariant=False)
        for iteration in range(1, self.most_iterations(state.free_BT) + 1):
            if not bool(partial.masked_BT.any()) and self.num_iterations is None:
                break
            live_B = partial.masked_BT.any(1).long()
            logits_BTV = self.scores(partial, state.context, max_rows=state.energy.max_rows)
            after = self.rule(draws, partial, logits_BTV, iteration)
            novel_B = after.tokens_BT.ne(partial.tokens_BT).any(1).long()
            info += replace(info, proposals_B=live_B, accepted_B=live_B, novel_B=novel_B, passes_B=live_B)
            partial = after
        return with_tokens(state, partial.tokens_BT, info)


def random_unmasking(proposal: Proposal, *, num_iterations: int) -> Unmasking:
    """Draw tokens at random masked positions in N iterations, starting from all free positions masked.

    After iteration i of N, ``F i // N`` of the F free positions have a final token. With N = F, one position per pass,
    this samples exactly from the model's any-order distribution::

        p(y) = 1/F! sum over orders o of prod_j p(y_o(j) | y_o(1) .. y_o(j-1), masks elsewhere)

    With fewer iterations, tokens of one pass are independent given the rest. It takes one pass per iteration, and T at
    the end for the energy of changed sequences.

    Args:
        proposal: conditionals of a masked model.
        num_iterations: N, 1 or more.

    Raises:
        InputError: there are no iterations.

    Source: Uria, Murray and Larochelle (ICML 2014), Hoogeboom et al. (ICLR 2022): orders at random, several a pass.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> state = start_chains(local_energy(model), torch.full((1, 3), 3))
        >>> kernel = random_unmasking(masked_conditionals(model), num_iterations=3)
        >>> kernel(SeededDraws(0, state.chain_B, sweep=0), state)[1].proposals_B
        tensor([3])
    """
    require_iterations(num_iterations)

    def rule(draws: Draws, partial: Partial, logits_BTV: Tensor, iteration: int) -> Partial:
        size_B = _num_revealed(partial, iteration, num_iterations)
        reveal_BT = random_subset(draws, partial.masked_BT, size_B)
        return _reveal(partial, reveal_BT, _draw(draws, proposal.log_probs(logits_BTV), reveal_BT))

    return Unmasking(proposal.model, rule, num_iterations)


def low_confidence_remasking(proposal: Proposal, *, num_iterations: int) -> Unmasking:
    """Draw all masked positions, keep the likeliest draws and mask the others again, in N iterations.

    After iteration i of N, ``F i // N`` of the F free positions are kept, and never drawn again. Draws are ranked by
    their probability at temperature 1, whatever the proposal's temperature. It takes one pass per iteration, and T at
    the end for the energy of changed sequences.

    Args:
        proposal: conditionals of a masked model; a low temperature is nearly greedy.
        num_iterations: N, 1 or more; 1 draws all free positions at once.

    Raises:
        InputError: there are no iterations.

    Source: Nie et al. (2025), Large Language Diffusion Models, Algorithm 5. Not implemented: blocks from left to
    right, classifier-free guidance.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> state = start_chains(local_energy(model), torch.full((1, 3), 3))
        >>> kernel = low_confidence_remasking(masked_conditionals(model), num_iterations=2)
        >>> kernel(SeededDraws(0, state.chain_B, sweep=0), state)[1].proposals_B
        tensor([2])
    """
    require_iterations(num_iterations)

    def rule(draws: Draws, partial: Partial, logits_BTV: Tensor, iteration: int) -> Partial:
        drawn_BT = _draw(draws, proposal.log_probs(logits_BTV), partial.masked_BT)
        certainty_BT = _certainty(proposal, logits_BTV).gather(2, drawn_BT[..., None]).squeeze(2)
        certainty_BT = certainty_BT.masked_fill(~partial.masked_BT, -torch.inf)
        # The least certain positions stay masked; of equally certain ones, the later.
        rank_BT = certainty_BT.argsort(dim=1, descending=True, stable=True).argsort(1)
        size_B = _num_revealed(partial, iteration, num_iterations)
        return _reveal(partial, partial.masked_BT & (rank_BT < size_B[:, None]), drawn_BT)

    return Unmasking(proposal.model, rule, num_iterations)


def threshold_decoding(proposal: Proposal, *, threshold: float = 0.9) -> Unmasking:
    """Draw tokens at all masked positions whose likeliest token passes a threshold, until no position is masked.

    Each pass draws at least the position with the most probable token. Probabilities are compared at temperature 1,
    whatever the proposal's temperature. It takes at most F passes, and T at the end for the energy of changed
    sequences.

    Args:
        proposal: conditionals of a masked model; a low temperature is nearly greedy.
        threshold: smallest probability that passes, 0 to 1; 0 draws all free positions at once.

    Raises:
        InputError: the threshold is not a probability.

    Source: Wu et al. (2025), Fast-dLLM, confidence-aware parallel decoding. Not implemented: their factor rule, whose
    threshold depends on the number of drawn positions; blocks from left to right with cached keys and values.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> state = start_chains(local_energy(model), torch.full((1, 3), 3))
        >>> kernel = threshold_decoding(masked_conditionals(model), threshold=1.0)
        >>> kernel(SeededDraws(0, state.chain_B, sweep=0), state)[1].proposals_B
        tensor([3])
    """
    if not 0 <= threshold <= 1:
        raise InputError(f"the threshold must be a probability from 0 to 1, got {threshold}")

    def rule(draws: Draws, partial: Partial, logits_BTV: Tensor, iteration: int) -> Partial:
        top_BT = _certainty(proposal, logits_BTV).amax(2).exp().masked_fill(~partial.masked_BT, -1.0)
        first_BT = torch.zeros_like(partial.masked_BT).scatter(1, top_BT.argmax(1, keepdim=True), True)
        reveal_BT = partial.masked_BT & (first_BT | (top_BT >= threshold))
        return _reveal(partial, reveal_BT, _draw(draws, proposal.log_probs(logits_BTV), reveal_BT))

    return Unmasking(proposal.model, rule, None)


def remasking_diffusion(proposal: Proposal, *, num_iterations: int, remask: float = 0.1) -> Unmasking:
    """Draw tokens at masked positions and remask earlier ones, each at random, in N iterations.

    With a = (i - 1) / N and b = i / N, iteration i of N remasks a token with probability ``sigma = min(remask,
    (1 - b) / a)``, and draws one at a masked position with probability ``(b - (1 - sigma) a) / (1 - a)``. So each
    position has a token after iteration i with probability i / N, for any sigma. Without remasking, this is ancestral
    sampling of a masked diffusion model. It takes one pass per iteration with a masked position, and T at the end for
    the energy of changed sequences.

    Args:
        proposal: conditionals of a masked model.
        num_iterations: N, 1 or more.
        remask: upper bound of sigma, 0 to 1.

    Raises:
        InputError: there are no iterations, or the bound is not a probability.

    Source: Wang et al. (2025), Remasking Discrete Diffusion Models with Inference-Time Scaling: the max-capped
    schedule (ReMDM-cap) with a linear noise schedule. Not implemented: the rescaled and the confidence-based schedule,
    remasking in only some iterations (switch, loop).

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> state = start_chains(local_energy(model), torch.full((1, 3), 3))
        >>> kernel = remasking_diffusion(masked_conditionals(model), num_iterations=4, remask=0.5)
        >>> kernel(SeededDraws(0, state.chain_B, sweep=0), state)[0].tokens_BT.shape
        torch.Size([1, 3])
    """
    require_iterations(num_iterations)
    if not 0 <= remask <= 1:
        raise InputError(f"the cap of remasking must be a probability from 0 to 1, got {remask}")

    def rule(draws: Draws, partial: Partial, logits_BTV: Tensor, iteration: int) -> Partial:
        before, after = (iteration - 1) / num_iterations, iteration / num_iterations
        sigma = min(remask, (1 - after) / before) if before else remask
        reveal = (after - (1 - sigma) * before) / (1 - before)
        log_reveal, log_sigma = (math.log(p) if p else -math.inf for p in (reveal, sigma))
        chance_BT = torch.full_like(partial.tokens_BT, log_sigma, dtype=torch.float64)
        chance_BT = chance_BT.masked_fill(partial.masked_BT, log_reveal)
        places = range(partial.free_BT.shape[1])
        flip_BT = torch.stack([draws.accepts(chance_BT[:, t], partial.free_BT[:, t]) for t in places], 1)
        reveal_BT = flip_BT & partial.masked_BT
        again_BT = flip_BT & partial.free_BT & ~partial.masked_BT
        drawn = _reveal(partial, reveal_BT, _draw(draws, proposal.log_probs(logits_BTV), reveal_BT))
        return replace(drawn, masked_BT=drawn.masked_BT | again_BT)

    return Unmasking(proposal.model, rule, num_iterations)


# ------------------------------------------------------------------------------------------------- parts of decoders


def _num_revealed(partial: Partial, iteration: int, num_iterations: int) -> Tensor:
    """Return the number of positions that a linear schedule reveals in an iteration, (B,)."""
    count_B = partial.free_BT.sum(1)
    still_masked_B = count_B - count_B * iteration // num_iterations
    return partial.masked_BT.sum(1) - still_masked_B


def _certainty(proposal: Proposal, logits_BTV: Tensor) -> Tensor:
    """Compute log-probabilities at temperature 1 over all allowed tokens, (B, T, V)."""
    return Proposal(proposal.model, allowed_V=proposal.allowed_V).log_probs(logits_BTV)


def _draw(draws: Draws, log_q_BTV: Tensor, places_BT: Tensor) -> Tensor:
    """Draw a token at each of some positions, independently; tokens elsewhere are arbitrary."""
    places = range(places_BT.shape[1])
    return torch.stack([draws.categorical(log_q_BTV[:, t], places_BT[:, t]) for t in places], 1)


def _reveal(partial: Partial, reveal_BT: Tensor, drawn_BT: Tensor) -> Partial:
    """Write tokens at some of the masked positions."""
    tokens_BT = torch.where(reveal_BT, drawn_BT, partial.tokens_BT)
    return replace(partial, tokens_BT=tokens_BT, masked_BT=partial.masked_BT & ~reveal_BT)
