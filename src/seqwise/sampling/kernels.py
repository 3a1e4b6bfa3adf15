"""Transitions of chains: Metropolis-Hastings, exact Gibbs, and two that follow no energy, Gibbs on masked conditionals
and Mask-Predict.

A state keeps the masked scores of every position, each masked alone. So a proposal at one position and the energy of
the state cost nothing, and a new sequence that differs at one position costs T - 1 passes: what stands at that position
itself is masked there. Passes are counted.

Shapes: B chains, T positions, V vocabulary, N some of the chains, M positions in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.draws import Draws
from seqwise.sampling.energies import MAX_ROWS, Energy
from seqwise.sampling.proposals import Proposal, Visits, in_order
from seqwise.sampling.refinement import refinements
from seqwise.sampling.state import ChainState, Info, Kernel
from seqwise.sampling.transitions import arrival, counts, draw_conditional, moved_to, propose, settle

MOST_ALTERNATIVES = 256
"""The vocabulary beyond which exact Gibbs is refused."""


def metropolis_hastings(
    energy: Energy, proposal: Proposal, *, visits: Visits | None = None, temperature: float | Tensor = 1.0
) -> Kernel:
    """Propose at masked positions and accept so that the target stays as it is.

    ``y'`` is accepted with probability ``min(1, exp((E(y) - E(y')) / T) q(y | y') / q(y' | y))``; both q are
    conditionals at the same masked positions. A proposal equal to the state is accepted without a pass.

    Args:
        energy: the target is proportional to ``exp(-E / T)``.
        proposal: from the same model as the energy, single positions cost no pass; from another, one each.
        visits: which positions are masked; by default every free position once, from left to right.
        temperature: T, one for all chains or (B,).

    Returns:
        A kernel. A new sequence costs T - 1 passes where it differs at one position and T where at more; masking
        several positions costs one more.

    Source: Goyal (2021), Algorithm 4. Its line 11 as printed multiplies the ratio of q by a ratio of energies; the
    exponentials of their negatives are meant.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> kernel = metropolis_hastings(local_energy(model), masked_conditionals(model))
        >>> state = start_chains(local_energy(model), torch.zeros(2, 3).long())
        >>> state, info = kernel(SeededDraws(0, state.chain_B, sweep=0), state)
        >>> state.tokens_BT.shape, info.proposals_B
        (torch.Size([2, 3]), tensor([3, 3]))
    """
    return _metropolis_hastings(energy, proposal, visits or in_order(), temperature, _all_at_once)


def delayed_acceptance(
    energy: Energy,
    proposal: Proposal,
    *,
    window: int = 1,
    visits: Visits | None = None,
    temperature: float | Tensor = 1.0,
) -> Kernel:
    """Metropolis-Hastings with the same target that first looks at the energy near the change only.

    With ``E = E_near + E_far``, a proposal is accepted with the product of ``min(1, exp(-(E_near(y') - E_near(y)) / T)
    q(y | y') / q(y' | y))`` and ``min(1, exp(-(E_far(y') - E_far(y)) / T))``, and the second is not computed where the
    first has rejected. Functions of the tokens count as near.

    Args:
        energy: see :func:`metropolis_hastings`.
        proposal: see there.
        window: how many positions to each side of a masked one are near.
        visits: see there.
        temperature: see there.

    Returns:
        A kernel; it accepts no more often than :func:`metropolis_hastings`, at fewer passes.

    Raises:
        InputError: the window is negative.

    Source: Christen and Fox (2005); Banterle et al. (2015) for acceptance in factors.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> kernel = delayed_acceptance(local_energy(model), masked_conditionals(model))
        >>> state = start_chains(local_energy(model), torch.zeros(2, 3).long())
        >>> state, info = kernel(SeededDraws(0, state.chain_B, sweep=0), state)
        >>> bool((info.passes_B <= 6).all())
        True
    """
    if window < 0:
        raise InputError(f"the window of delayed acceptance must be at least 0, got {window}")

    def near_then_far(masked_BT: Tensor) -> Sequence[Tensor]:
        reach = min(window, masked_BT.shape[1] - 1)
        spread = torch.nn.functional.max_pool1d(masked_BT[:, None].float(), 2 * reach + 1, 1, reach)
        near_BT = spread.squeeze(1).bool()
        return near_BT, ~near_BT

    return _metropolis_hastings(energy, proposal, visits or in_order(), temperature, near_then_far)


def gibbs(proposal: Proposal, *, visits: Visits | None = None) -> Kernel:
    """Draw masked positions from the model's own conditionals, and keep what is drawn: degenerate Gibbs sampling.

    The conditionals of a masked model need not belong to any one distribution, so that what the chain converges to, if
    to anything, depends on the order of the visits. Its transitions are flagged as not leaving the target unchanged.

    Args:
        proposal: what is drawn from.
        visits: which positions are masked; by default every free position once, from left to right.

    Returns:
        A kernel; one pass a visit, and T in the end for the energy of what has changed.

    Source: Wang and Cho (2019); Goyal (2021), section 6.3.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> state = start_chains(local_energy(model), torch.zeros(2, 3).long())
        >>> gibbs(masked_conditionals(model))(SeededDraws(0, state.chain_B, sweep=0), state)[1].invariant
        False
    """
    chosen = visits or in_order()

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        tokens_BT, info = state.tokens_BT, Info.none(state, invariant=False)
        for masked_BT in chosen(draws, state.free_BT):
            proposed = propose(draws, replace(state, tokens_BT=tokens_BT), proposal, masked_BT, cached=False)
            tokens_BT = proposed.tokens_BT
            info += counts(proposed, proposed.live_B, proposed.passes_B)
        return moved_to(state, tokens_BT, info)

    return _without_gradients(kernel)


def exact_gibbs(
    energy: Energy,
    *,
    visits: Visits | None = None,
    temperature: float | Tensor = 1.0,
    allowed_V: Tensor | None = None,
) -> Kernel:
    """Draw each position from the target's true conditional: ``p(w) = softmax_w(-E(y with y_i = w) / T)``.

    Args:
        energy: the target is proportional to ``exp(-E / T)``.
        visits: which position is visited; one at a time. By default every free position once, from left to right.
        temperature: T, one for all chains or (B,).
        allowed_V: bool, the tokens that may be drawn; all by default. Another one that stands at a position
            stays there.

    Returns:
        A kernel; (V - 1) (T - 1) passes a visit. What all candidates together need beyond the energy's ``max_rows`` is
        computed in parts, and then that of the token drawn once more, which is not counted.

    Raises:
        InputError: later, the vocabulary is large, or several positions are visited at once.

    Source: Goyal (2021), section 6.2, on the true conditionals.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, start_chains, table_model
        >>> target = local_energy(table_model(num_positions=3, vocab_size=4))
        >>> state = start_chains(target, torch.zeros(2, 3).long())
        >>> state, info = exact_gibbs(target)(SeededDraws(0, state.chain_B, sweep=0), state)
        >>> info.passes_B
        tensor([18, 18])
    """
    chosen = visits or in_order()

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        size = max((model.vocab_size for model in energy.models), default=0)
        size = len(allowed_V) if allowed_V is not None else size
        if not 0 < size <= MOST_ALTERNATIVES:
            raise InputError(
                f"exact Gibbs would try {size} tokens at each position; it takes 1 to {MOST_ALTERNATIVES}",
                hint="use metropolis_hastings, or for an energy without a model name the allowed tokens",
            )
        info = arrival(energy, state)
        state = state.under(energy)
        for masked_BT in chosen(draws, state.free_BT):
            info += draw_conditional(draws, state, masked_BT, size, _column(temperature, state), allowed_V)
        return state, info

    return _without_gradients(kernel)


def mask_predict(
    model: MaskedModel, *, num_iterations: int, allowed_V: Tensor | None = None, max_rows: int = MAX_ROWS
) -> Kernel:
    """Fill all free positions with the likeliest tokens, then mask the least certain ones and fill them again.

    Iteration i of N masks ``F (N - i) // N`` of the F free positions (i = 0 masks all): those whose token had the
    lowest probability when it was filled in. No random numbers are used, and what stood at free positions plays no
    part: this is a search, and a way to start chains. One iteration is the greedy fill from all masks.

    Args:
        model: a masked model in evaluation mode.
        num_iterations: N.
        allowed_V: bool, the tokens that may be filled in; all by default.
        max_rows: how many sequences the model is given at once.

    Returns:
        A kernel; one pass an iteration, and T in the end for the energy where tokens have changed.

    Raises:
        InputError: there is no iteration.

    Not implemented: several lengths at once; see :func:`~seqwise.sampling.length_beam.predict_with_lengths`.

    Source: Ghazvininejad et al. (EMNLP 2019), section 4.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> state = start_chains(local_energy(model), torch.full((1, 3), 3))
        >>> filled, info = mask_predict(model, num_iterations=2)(SeededDraws(0, state.chain_B, sweep=0), state)
        >>> info.passes_B, info.invariant
        (tensor([5]), False)
    """
    if num_iterations < 1:
        raise InputError(f"Mask-Predict needs at least 1 iteration, got {num_iterations}")

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        tokens_BT, info = state.tokens_BT, Info.none(state, invariant=False)
        options: dict[str, Any] = {"num_iterations": num_iterations, "context": state.context, "allowed_V": allowed_V}
        options |= {"max_rows": max_rows}
        for refinement in refinements(model, tokens_BT, state.free_BT, **options):
            filled_B = refinement.masked_BT.any(1).long()
            novel_B = refinement.tokens_BT.ne(tokens_BT).any(1).long()
            info += replace(info, proposals_B=filled_B, accepted_B=filled_B, novel_B=novel_B, passes_B=filled_B)
            tokens_BT = refinement.tokens_BT
        return moved_to(state, tokens_BT, info)

    return _without_gradients(kernel)


# ------------------------------------------------------------------------------------------------- their parts


def _without_gradients(kernel: Kernel) -> Kernel:
    wrapped: Kernel = torch.no_grad()(kernel)
    return wrapped


def _all_at_once(masked_BT: Tensor) -> Sequence[Tensor]:
    return (torch.ones_like(masked_BT),)


def _column(temperature: float | Tensor, state: ChainState) -> Tensor:
    temperature_B = torch.as_tensor(temperature, dtype=torch.float64, device=state.energy_B.device)
    if not bool((temperature_B > 0).all()):
        raise InputError(f"the temperature of a target must be greater than 0, got {temperature}")
    return temperature_B.expand(len(state))


def _metropolis_hastings(
    energy: Energy,
    proposal: Proposal,
    visits: Visits,
    temperature: float | Tensor,
    stages: Callable[[Tensor], Sequence[Tensor]],
) -> Kernel:
    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        info = arrival(energy, state)
        state, temperature_B = state.under(energy), _column(temperature, state)
        for masked_BT in visits(draws, state.free_BT):
            proposed = propose(draws, state, proposal, masked_BT, cached=True)
            info += settle(draws, state, proposed, stages(masked_BT), temperature_B)
        return state, info

    return _without_gradients(kernel)
