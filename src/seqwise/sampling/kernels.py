"""Kernels: Metropolis-Hastings, exact Gibbs, and two without a target, Gibbs on masked conditionals and Mask-Predict.

A state caches the scores of every position masked alone. So a proposal at one position and the energy of the state take
no passes, and a new sequence that differs at one position takes T - 1 passes, as that position's own scores do not
change. Passes are counted.

Shapes: B chains, T positions, V vocabulary, K masked positions of a chain, N some of the chains, M positions in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqwise.devices import moved
from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.draws import Draws
from seqwise.sampling.energies import Energy, joint_logits, require_allowed, rows_of, single_mask_logits
from seqwise.sampling.proposals import Proposal, Visits, in_order
from seqwise.sampling.refinement import refinements, require_iterations
from seqwise.sampling.state import ChainState, Evaluated, Info, Kernel, evaluate

MOST_ALTERNATIVES = 256
"""Largest vocabulary for exact Gibbs."""


def metropolis_hastings(
    energy: Energy, proposal: Proposal, *, visits: Visits | None = None, temperature: float | Tensor = 1.0
) -> Kernel:
    """Propose at masked positions and accept so that the target stays invariant.

    ``y'`` is accepted with probability ``min(1, exp((E(y) - E(y')) / T) q(y | y') / q(y' | y))``; both q are
    conditionals at the same masked positions. A proposal equal to the state is accepted without a pass. A new sequence
    takes T - 1 passes if it differs at one position and T otherwise; masking several positions takes one more.

    Args:
        energy: the target is proportional to ``exp(-E / T)``.
        proposal: proposal distribution; single positions take no pass with the model of the energy, else one each.
        visits: positions to mask; by default every free position once, from left to right.
        temperature: T, one for all chains or (B,).

    Source: Goyal (2021), Algorithm 4. Its printed line 11 multiplies the ratio of q by a ratio of energies, where the
    exponentials of the negative energies are meant.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> kernel = metropolis_hastings(local_energy(model), masked_conditionals(model))
        >>> state = start_chains(local_energy(model), torch.zeros(2, 3).long())
        >>> state, info = kernel(SeededDraws(0, state.chain_B, sweep=0), state)
        >>> state.tokens_BT.shape, info.proposals_B
        (torch.Size([2, 3]), tensor([3, 3]))
    """
    return _metropolis_hastings(
        energy, proposal, visits or in_order(), temperature, lambda masked_BT: (torch.ones_like(masked_BT),)
    )


def delayed_acceptance(
    energy: Energy,
    proposal: Proposal,
    *,
    window: int = 1,
    visits: Visits | None = None,
    temperature: float | Tensor = 1.0,
) -> Kernel:
    """Run Metropolis-Hastings in two stages, and compute the energy far from the change only if the first accepts.

    With ``E = E_near + E_far``, the acceptance probability is the product of ``min(1, exp(-(E_near(y') - E_near(y)) /
    T) q(y | y') / q(y' | y))`` and ``min(1, exp(-(E_far(y') - E_far(y)) / T))``; the second is not computed if the
    first stage rejects. Functions of the tokens count as near. The target is the same; it accepts at most as often as
    :func:`metropolis_hastings`, with fewer passes.

    Args:
        window: number of positions on each side of a masked one that count as near.
        energy, proposal, visits, temperature: see :func:`metropolis_hastings`.

    Raises:
        InputError: the window is negative.

    Source: Christen and Fox (2005); Banterle et al. (2015) for acceptance in factors.

    Example:
        >>> from seqwise.sampling import local_energy, masked_conditionals, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> kernel = delayed_acceptance(local_energy(model), masked_conditionals(model), window=0)
    """
    if window < 0:
        raise InputError(f"the window of delayed acceptance must be at least 0, got {window}")

    def near_then_far(masked_BT: Tensor) -> Sequence[Tensor]:
        reach = min(window, masked_BT.shape[1] - 1)
        spread = torch.nn.functional.max_pool1d(masked_BT[:, None].float(), 2 * reach + 1, 1, reach)
        near_BT = spread.squeeze(1).bool()
        return near_BT, ~near_BT

    return _metropolis_hastings(energy, proposal, visits or in_order(), temperature, near_then_far)


def _metropolis_hastings(
    energy: Energy,
    proposal: Proposal,
    visits: Visits,
    temperature: float | Tensor,
    stages: Callable[[Tensor], Sequence[Tensor]],
) -> Kernel:
    @torch.no_grad()
    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        info = evaluation_info(energy, state)
        state, temperature_B = state.under(energy), temperatures_of(temperature, state)
        for masked_BT in visits(draws, state.free_BT):
            proposed = propose(draws, state, proposal, masked_BT, cached=True)
            info += settle(draws, state, proposed, stages(masked_BT), temperature_B)
        return state, info

    return kernel


def gibbs(proposal: Proposal, *, visits: Visits | None = None) -> Kernel:
    """Draw masked positions from the model's conditionals and accept every draw: degenerate Gibbs sampling.

    The conditionals of a masked model need not have a common joint distribution, so the limit of the chain, if any,
    depends on the order of visits. Its transitions are flagged as not invariant.

    It takes one pass per visit, and T at the end for the energy of changed sequences.

    Args:
        proposal: conditionals to draw from, see :func:`~seqwise.sampling.masked_conditionals`.
        visits: positions to mask; by default every free position once, from left to right.

    Source: Wang and Cho (2019); Goyal (2021), section 6.3.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> state = start_chains(local_energy(model), torch.zeros(2, 3).long())
        >>> gibbs(masked_conditionals(model))(SeededDraws(0, state.chain_B, sweep=0), state)[1].invariant
        False
    """
    chosen = visits or in_order()

    @torch.no_grad()
    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        tokens_BT, info = state.tokens_BT, Info.none(state, invariant=False)
        for masked_BT in chosen(draws, state.free_BT):
            proposed = propose(draws, replace(state, tokens_BT=tokens_BT), proposal, masked_BT, cached=False)
            tokens_BT = proposed.tokens_BT
            info += proposed.info(proposed.live_B, proposed.passes_B)
        return with_tokens(state, tokens_BT, info)

    return kernel


def exact_gibbs(
    energy: Energy,
    *,
    visits: Visits | None = None,
    temperature: float | Tensor = 1.0,
    allowed_V: Tensor | None = None,
) -> Kernel:
    """Draw each position from the target's true conditional: ``p(w) = softmax_w(-E(y with y_i = w) / T)``.

    It takes (V - 1) (T - 1) passes per visit. Passes beyond the energy's ``max_rows`` are split, and those of the drawn
    token are then repeated, which is not counted.

    Args:
        energy: the target is proportional to ``exp(-E / T)``.
        visits: positions to visit, one at a time; by default every free position once, from left to right.
        temperature: T, one for all chains or (B,).
        allowed_V: bool, tokens that may be drawn; by default all. A position that holds any other token does not
            change.

    Raises:
        InputError: the allowed tokens are no mask of the vocabulary; in a sweep, if the vocabulary is too large or
            several positions are visited at once.

    Source: Goyal (2021), section 6.2, for the true conditionals.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, start_chains, table_model
        >>> target = local_energy(table_model(num_positions=3, vocab_size=4))
        >>> state = start_chains(target, torch.zeros(2, 3).long())
        >>> exact_gibbs(target)(SeededDraws(0, state.chain_B, sweep=0), state)[1].passes_B
        tensor([18, 18])
    """
    chosen = visits or in_order()
    if allowed_V is not None:
        # Models of several sizes share the tokens of the smallest.
        require_allowed(allowed_V, min((model.vocab_size for model in energy.models), default=len(allowed_V)))

    @torch.no_grad()
    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        size = max((model.vocab_size for model in energy.models), default=0)
        size = len(allowed_V) if allowed_V is not None else size
        if not 0 < size <= MOST_ALTERNATIVES:
            raise InputError(
                f"exact Gibbs would try {size} tokens at each position; it takes 1 to {MOST_ALTERNATIVES}",
                hint="use metropolis_hastings, or for an energy without a model name the allowed tokens",
            )
        info = evaluation_info(energy, state)
        state = state.under(energy)
        for masked_BT in chosen(draws, state.free_BT):
            info += _draw_conditional(draws, state, masked_BT, size, temperatures_of(temperature, state), allowed_V)
        return state, info

    return kernel


def mask_predict(model: MaskedModel, *, num_iterations: int, allowed_V: Tensor | None = None) -> Kernel:
    """Fill all free positions with the likeliest tokens, then repeatedly mask and refill the least certain ones.

    Iteration i of N masks ``F (N - i) // N`` of the F free positions (i = 0 masks all): those whose token had the
    lowest probability when it was filled in. It uses no random numbers and ignores the tokens at free positions: it is
    a search, and a way to initialise chains. With one iteration, it is the greedy fill from all masks. It takes one
    pass per iteration, and T at the end for the energy of changed sequences.

    Args:
        model: a masked model in evaluation mode.
        num_iterations: N, 1 or more.
        allowed_V: bool, tokens that may be filled in; by default all.

    Source: Ghazvininejad et al. (EMNLP 2019), section 4. Not implemented: several lengths at once.

    Example:
        >>> from seqwise.sampling import SeededDraws, local_energy, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> state = start_chains(local_energy(model), torch.full((1, 3), 3))
        >>> mask_predict(model, num_iterations=2)(SeededDraws(0, state.chain_B, sweep=0), state)[1].passes_B
        tensor([5])
    """
    require_iterations(num_iterations)
    require_allowed(allowed_V, model.vocab_size)

    @torch.no_grad()
    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        tokens_BT, info = state.tokens_BT, Info.none(state, invariant=False)
        steps = refinements(
            model,
            tokens_BT,
            state.free_BT,
            num_iterations=num_iterations,
            context=state.context,
            allowed_V=allowed_V,
            max_rows=state.energy.max_rows,
        )
        for refinement in steps:
            filled_B = refinement.masked_BT.any(1).long()
            novel_B = refinement.tokens_BT.ne(tokens_BT).any(1).long()
            info += replace(info, proposals_B=filled_B, accepted_B=filled_B, novel_B=novel_B, passes_B=filled_B)
            tokens_BT = refinement.tokens_BT
        return with_tokens(state, tokens_BT, info)

    return kernel


# ------------------------------------------------------------------------------------------------- parts of kernels


@dataclass(frozen=True, eq=False)
class Proposed:
    """New tokens for each chain."""

    tokens_BT: Tensor
    log_ratio_B: Tensor  # log q(old | new) - log q(new | old)
    live_B: Tensor  # has a masked position
    novel_B: Tensor  # differs from the state
    passes_B: Tensor

    def info(self, accepted_B: Tensor, passes_B: Tensor) -> Info:
        """Return the counts of one visit."""
        return Info(self.live_B.long(), accepted_B.long(), (accepted_B & self.novel_B).long(), passes_B)


def propose(draws: Draws, state: ChainState, proposal: Proposal, masked_BT: Tensor, *, cached: bool) -> Proposed:
    """Draw tokens at the masked positions of each chain, at most K."""
    count_B = masked_BT.sum(1)
    live_B, most = count_B > 0, max(int(count_B.max()), 1) if len(count_B) else 1
    places_BK = masked_BT.long().argsort(dim=1, descending=True, stable=True)[:, :most]
    live_BK = torch.arange(most, device=count_B.device) < count_B[:, None]
    known = state.energy.place_of(proposal.model) if cached else None
    cached_B = (count_B == 1) if known is not None else torch.zeros_like(live_B)
    unknown_BT = masked_BT & (live_B & ~cached_B)[:, None]
    shared = {"context": state.context, "max_rows": state.energy.max_rows}
    logits_MV = joint_logits(proposal.model, state.tokens_BT, unknown_BT, **shared)
    dtype = logits_MV.dtype if known is None else state.logits[known].dtype
    device = logits_MV.device
    logits_BKV = torch.zeros(*places_BK.shape, proposal.model.vocab_size, dtype=dtype, device=device)
    if known is not None:
        cached_N = cached_B.nonzero().flatten()
        rows_N, places_N = moved(cached_N, device), moved(places_BK[cached_N, 0], device)
        logits_BKV[rows_N, 0] = state.logits[known][rows_N, places_N]
    if len(logits_MV):
        rows_M, ranks_M = (live_BK & ~cached_B[:, None]).nonzero(as_tuple=True)
        logits_BKV[moved(rows_M, device), moved(ranks_M, device)] = logits_MV.to(dtype)
    log_q_BKV = proposal.log_probs(logits_BKV).cpu()
    old_BK = state.tokens_BT.gather(1, places_BK)
    new_BK = torch.stack([draws.categorical(log_q_BKV[:, k], live_BK[:, k]) for k in range(most)], 1)
    new_BK = torch.where(live_BK, new_BK, old_BK)
    old_log_q_BK, new_log_q_BK = (log_q_BKV.gather(2, t_BK[..., None]).squeeze(2).double() for t_BK in (old_BK, new_BK))
    log_ratio_B = old_log_q_BK.masked_fill(~live_BK, 0.0).sum(1) - new_log_q_BK.masked_fill(~live_BK, 0.0).sum(1)
    tokens_BT = state.tokens_BT.scatter(1, places_BK, new_BK)
    passes_B = (live_B & ~cached_B).long()
    return Proposed(tokens_BT, log_ratio_B, live_B, live_B & (new_BK != old_BK).any(1), passes_B)


def settle(
    draws: Draws, state: ChainState, proposed: Proposed, stages: Sequence[Tensor], temperature_B: Tensor
) -> Info:
    """Accept or reject, and update the state in place; each stage adds the energy at some positions."""
    passes_B, alive_B = proposed.passes_B.clone(), proposed.live_B
    old_B = state.energy_B - state.energy_BT.sum(1)
    new_B = torch.where(proposed.novel_B, state.energy.of_sequences(proposed.tokens_BT), old_B)
    # A proposal that violates a hard constraint, or from which q cannot return, is rejected without a pass.
    possible_B = proposed.novel_B & proposed.log_ratio_B.isfinite() & new_B.isfinite()
    rows_N = possible_B.nonzero().flatten()
    tokens_NT, logits = proposed.tokens_BT[rows_N], rows_of(state.logits, rows_N)
    log_accept_B = torch.where(possible_B, (old_B - new_B) / temperature_B + proposed.log_ratio_B, -torch.inf)
    for stage_BT in stages:
        logits, spent_N = update_scores(state, rows_N, tokens_NT, logits, stage_BT[rows_N])
        energy_NT = state.energy.of_positions(tokens_NT, logits)
        gain_N = ((state.energy_BT[rows_N] - energy_NT) * stage_BT[rows_N]).sum(1) / temperature_B[rows_N]
        passes_B[rows_N] += spent_N
        log_accept_B[rows_N] += gain_N
        # Proposals equal to the state are always accepted.
        log_accept_B = log_accept_B.masked_fill(~proposed.novel_B, 0.0)
        alive_B = draws.accepts(log_accept_B, alive_B) & alive_B
        kept_N = alive_B[rows_N]
        rows_N, tokens_NT = rows_N[kept_N], tokens_NT[kept_N]
        logits, energy_NT = rows_of(logits, kept_N.nonzero().flatten()), energy_NT[kept_N]
        log_accept_B = torch.where(alive_B, 0.0, -torch.inf).double()
    if len(rows_N):
        state.put(rows_N, Evaluated(tokens_NT, energy_NT.sum(1) + new_B[rows_N], energy_NT, logits))
    return proposed.info(alive_B, passes_B)


def update_scores(
    state: ChainState, rows_N: Tensor, tokens_NT: Tensor, logits: tuple[Tensor, ...], stage_NT: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Compute the masked scores of new tokens at the positions of a stage, and count the passes of each chain."""
    changed_NT = tokens_NT != state.tokens_BT[rows_N]
    # At a position that is itself the only change, the old scores remain valid.
    stale_NT = stage_NT & (changed_NT.sum(1, keepdim=True) - changed_NT.long() > 0)
    context, updated = rows_of(state.context, rows_N), []
    for model, own_NTV in zip(state.energy.models, logits, strict=True):
        fresh_MV = single_mask_logits(model, tokens_NT, stale_NT, context=context, max_rows=state.energy.max_rows)
        stale_NT1 = moved(stale_NT[..., None], own_NTV.device)
        updated.append(own_NTV.masked_scatter(stale_NT1, fresh_MV.to(own_NTV.dtype)))
    return tuple(updated), stale_NT.sum(1) * len(updated)


def evaluate_changed(
    state: ChainState, rows_N: Tensor, tokens_NT: Tensor, sequence_N: Tensor
) -> tuple[Evaluated, Tensor]:
    """Evaluate candidate sequences of some chains, and count the passes of each.

    ``sequence_N`` is the energy of functions of their tokens; if it is infinite, no pass is made.
    """
    possible_NT = sequence_N.isfinite()[:, None].expand_as(tokens_NT)
    logits, passes_N = update_scores(state, rows_N, tokens_NT, rows_of(state.logits, rows_N), possible_NT)
    energy_NT = state.energy.of_positions(tokens_NT, logits)
    return Evaluated(tokens_NT, sequence_N + energy_NT.sum(1), energy_NT, logits), passes_N


def temperatures_of(temperature: float | Tensor, state: ChainState) -> Tensor:
    """Return the temperature of each chain, float64 (B,)."""
    temperature_B = torch.as_tensor(temperature, dtype=None if isinstance(temperature, Tensor) else torch.float64)
    temperature_B = temperature_B.cpu().double()
    if not bool((temperature_B > 0).all()):
        raise InputError(f"the temperature of a target must be greater than 0, got {temperature}")
    return temperature_B.expand(len(state))


def evaluation_info(energy: Energy, state: ChainState) -> Info:
    """Return the record of evaluating a state for another energy: its passes, 0 if the energy is the same."""
    info = Info.none(state)
    return info if state.energy == energy else replace(info, passes_B=info.passes_B + _full(energy, state))


def _full(energy: Energy, state: ChainState) -> int:
    return state.tokens_BT.shape[1] * len(energy.models)


def _draw_conditional(
    draws: Draws, state: ChainState, masked_BT: Tensor, size: int, temperature_B: Tensor, allowed_V: Tensor | None
) -> Info:
    """Make one visit of exact Gibbs: compute the energy with every token at the masked position, and draw one."""
    live_B = masked_BT.any(1)
    if bool((masked_BT.sum(1) > 1).any()):
        raise InputError("exact Gibbs visits one position at a time", hint="use blocks of 1")
    rows_N = live_B.nonzero().flatten().repeat_interleave(size)
    every_N = torch.arange(size, device=rows_N.device).repeat(len(rows_N) // size)
    # The scores of all candidates would take V times the memory of the state's, so candidates are evaluated in parts.
    numbers = torch.arange(len(rows_N), device=rows_N.device).split(max(1, state.energy.max_rows // masked_BT.shape[1]))
    passes_B, energies = torch.zeros_like(state.chain_B), []
    for part_N in numbers:
        candidates, passes_N = _candidates(state, masked_BT, rows_N[part_N], every_N[part_N], allowed_V)
        passes_B.index_add_(0, rows_N[part_N], passes_N)
        energies.append(candidates.energy_B)
    log_weights_BV = torch.zeros(len(state), size, dtype=torch.float64, device=rows_N.device)
    log_weights_BV[live_B] = (-torch.cat(energies) / temperature_B[rows_N]).view(-1, size)
    token_B = draws.categorical(log_weights_BV, live_B)
    chosen_N = (token_B[rows_N] == every_N).nonzero().flatten()
    rows_N = rows_N[chosen_N]
    if len(numbers) == 1:
        chosen = candidates.take(chosen_N)
    else:
        # These passes are repeated and not counted, so that no count depends on how many rows fit the memory.
        chosen, _ = _candidates(state, masked_BT, rows_N, token_B[rows_N], allowed_V)
    novel_B = torch.zeros_like(live_B).index_put((rows_N,), (chosen.tokens_BT != state.tokens_BT[rows_N]).any(1))
    state.put(rows_N, chosen)
    return Info(live_B.long(), live_B.long(), novel_B.long(), passes_B)


def _candidates(
    state: ChainState, masked_BT: Tensor, rows_N: Tensor, every_N: Tensor, allowed_V: Tensor | None
) -> tuple[Evaluated, Tensor]:
    """Evaluate chains with a candidate token at their masked position, and count the passes of each."""
    tokens_NT = torch.where(masked_BT[rows_N], every_N[:, None], state.tokens_BT[rows_N])
    sequence_N = state.energy.of_sequences(tokens_NT)
    here_N = (tokens_NT == state.tokens_BT[rows_N]).all(1)
    if allowed_V is not None:
        # A chain could never return to a token that is not allowed, so it does not leave such a token either.
        own_N = state.tokens_BT[rows_N][masked_BT[rows_N]]
        allowed_V = allowed_V.cpu()
        sequence_N = sequence_N.masked_fill(~(allowed_V[every_N] & allowed_V[own_N] | here_N), torch.inf)
    return evaluate_changed(state, rows_N, tokens_NT, sequence_N)


def with_tokens(state: ChainState, tokens_BT: Tensor, info: Info) -> tuple[ChainState, Info]:
    """Return the state at new tokens; changed sequences are evaluated from scratch."""
    new = state.under(state.energy)
    changed_B = (tokens_BT != state.tokens_BT).any(1)
    rows_N = changed_B.nonzero().flatten()
    if len(rows_N):
        new.put(rows_N, evaluate(state.energy, tokens_BT[rows_N], rows_of(state.context, rows_N)))
    return new, replace(info, passes_B=info.passes_B + changed_B * _full(state.energy, state))
