"""Unmasking by confidence, as masked diffusion models are decoded: all free positions are drawn, the surest are kept.

Shapes: B chains, T positions, M masked positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.sampling.draws import Draws
from seqwise.sampling.energies import joint_logits
from seqwise.sampling.kernels import moved_to
from seqwise.sampling.proposals import Proposal
from seqwise.sampling.state import ChainState, Info, Kernel


def low_confidence_remasking(proposal: Proposal, *, num_iterations: int) -> Kernel:
    """Draw all masked positions, keep the likeliest draws, mask the others again; N times, from all free ones masked.

    After iteration i of N, ``F i // N`` of the F free positions are kept; those kept before are never drawn again. What
    stood at free positions plays no part, so that successive sweeps are independent draws. They follow neither the
    model's conditionals nor any energy: what is kept depends on what was drawn. One pass an iteration, and T in the end
    for the energy where tokens have changed.

    Args:
        proposal: the conditionals of a masked model; a low temperature is nearly greedy.
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
    if num_iterations < 1:
        raise InputError(f"remasking needs at least 1 iteration, got {num_iterations}")

    @torch.no_grad()
    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        tokens_BT, masked_BT, info = state.tokens_BT, state.free_BT, Info.none(state, invariant=False)
        count_B = masked_BT.sum(1)
        for iteration in range(1, num_iterations + 1):
            left_B = count_B - count_B * iteration // num_iterations
            drawn_BT, log_probs_BT = _draw(draws, state, proposal, tokens_BT, masked_BT)
            # The least certain are masked again; of equals, the later ones.
            rank_BT = log_probs_BT.argsort(dim=1, descending=True, stable=True).argsort(1)
            again_BT = masked_BT & (rank_BT >= (masked_BT.sum(1) - left_B)[:, None])
            kept_BT = torch.where(masked_BT & ~again_BT, drawn_BT, tokens_BT)
            live_B, novel_B = masked_BT.any(1).long(), kept_BT.ne(tokens_BT).any(1).long()
            info += replace(info, proposals_B=live_B, accepted_B=live_B, novel_B=novel_B, passes_B=live_B)
            tokens_BT, masked_BT = kept_BT, again_BT
        return moved_to(state, tokens_BT, info)

    return kernel


def _draw(
    draws: Draws, state: ChainState, proposal: Proposal, tokens_BT: Tensor, masked_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """A token at each masked position, and its log-probability; minus infinity elsewhere."""
    logits_MV = joint_logits(
        proposal.model, tokens_BT, masked_BT, context=state.context, max_rows=state.energy.max_rows
    )
    log_q_MV = proposal.log_probs(logits_MV)
    log_q_BTV = log_q_MV.new_zeros(*masked_BT.shape, log_q_MV.shape[-1])
    log_q_BTV[masked_BT] = log_q_MV
    places = range(masked_BT.shape[1])
    drawn_BT = torch.stack([draws.categorical(log_q_BTV[:, t], masked_BT[:, t]) for t in places], 1)
    drawn_BT = torch.where(masked_BT, drawn_BT, tokens_BT)
    found_BT = log_q_BTV.gather(2, drawn_BT.clamp(0, log_q_BTV.shape[2] - 1)[..., None]).squeeze(2)
    return drawn_BT, found_BT.masked_fill(~masked_BT, -torch.inf)
