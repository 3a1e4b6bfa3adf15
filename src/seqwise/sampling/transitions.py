"""The parts that kernels are made of: to propose, to accept or reject, and to keep what is known up to date.

Shapes: B chains, T positions, V vocabulary, K masked positions of a chain, N some of the chains, M positions in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.sampling.draws import Draws
from seqwise.sampling.energies import Energy, joint_logits, lone_logits, rows_of
from seqwise.sampling.proposals import Proposal
from seqwise.sampling.state import ChainState, Info, evaluate


@dataclass(frozen=True, eq=False)
class Proposed:
    """New tokens for each chain, ``log q(old | new) - log q(new | old)``, and who takes part, differs, paid what."""

    tokens_BT: Tensor
    log_ratio_B: Tensor
    live_B: Tensor
    novel_B: Tensor
    passes_B: Tensor


def propose(draws: Draws, state: ChainState, proposal: Proposal, masked_BT: Tensor, *, cached: bool) -> Proposed:
    """Draw tokens at the masked positions of each chain."""
    count_B = masked_BT.sum(1)
    live_B, most = count_B > 0, max(int(count_B.max()), 1) if len(count_B) else 1
    places_BK = masked_BT.long().argsort(dim=1, descending=True, stable=True)[:, :most]
    live_BK = torch.arange(most, device=count_B.device) < count_B[:, None]
    known = next((i for i, model in enumerate(state.energy.models) if cached and model is proposal.model), None)
    cached_B = (count_B == 1) if known is not None else torch.zeros_like(live_B)
    unknown_BT = masked_BT & (live_B & ~cached_B)[:, None]
    shared = {"context": state.context, "max_rows": state.energy.max_rows}
    logits_MV = joint_logits(proposal.model, state.tokens_BT, unknown_BT, **shared)
    dtype = logits_MV.dtype if known is None else state.logits[known].dtype
    logits_BKV = torch.zeros(*places_BK.shape, proposal.model.vocab_size, dtype=dtype, device=count_B.device)
    if known is not None:
        lone_N = cached_B.nonzero().flatten()
        logits_BKV[lone_N, 0] = state.logits[known][lone_N, places_BK[lone_N, 0]]
    logits_BKV[live_BK & ~cached_B[:, None]] = logits_MV.to(dtype)
    log_q_BKV = proposal.log_probs(logits_BKV)
    old_BK = state.tokens_BT.gather(1, places_BK)
    new_BK = torch.stack([draws.categorical(log_q_BKV[:, k], live_BK[:, k]) for k in range(most)], 1)
    new_BK = torch.where(live_BK, new_BK, old_BK)
    back_BK, forth_BK = (log_q_BKV.gather(2, t_BK[..., None]).squeeze(2).double() for t_BK in (old_BK, new_BK))
    log_ratio_B = back_BK.masked_fill(~live_BK, 0.0).sum(1) - forth_BK.masked_fill(~live_BK, 0.0).sum(1)
    tokens_BT = state.tokens_BT.scatter(1, places_BK, new_BK)
    passes_B = (live_B & ~cached_B).long()
    return Proposed(tokens_BT, log_ratio_B, live_B, live_B & (new_BK != old_BK).any(1), passes_B)


def settle(
    draws: Draws, state: ChainState, proposed: Proposed, stages: Sequence[Tensor], temperature_B: Tensor
) -> Info:
    """Accept or reject, and move the state in place; each stage adds the energy at some of the positions."""
    passes_B, alive_B = proposed.passes_B.clone(), proposed.live_B
    old_B = state.energy_B - state.energy_BT.sum(1)
    new_B = torch.where(proposed.novel_B, state.energy.of_sequences(proposed.tokens_BT), old_B)
    # A proposal without a way back, or against a hard constraint, is rejected without a pass.
    hopeful_B = proposed.novel_B & proposed.log_ratio_B.isfinite() & new_B.isfinite()
    rows_N = hopeful_B.nonzero().flatten()
    tokens_NT, logits = proposed.tokens_BT[rows_N], tuple(own_BTV[rows_N] for own_BTV in state.logits)
    log_accept_B = torch.where(hopeful_B, (old_B - new_B) / temperature_B + proposed.log_ratio_B, -torch.inf)
    for stage_BT in stages:
        logits, spent_N = update_scores(state, rows_N, tokens_NT, logits, stage_BT[rows_N])
        energy_NT = state.energy.of_positions(tokens_NT, logits)
        gain_N = ((state.energy_BT[rows_N] - energy_NT) * stage_BT[rows_N]).sum(1) / temperature_B[rows_N]
        passes_B[rows_N] += spent_N
        log_accept_B[rows_N] += gain_N
        # What equals the state is accepted whatever the number.
        log_accept_B = log_accept_B.masked_fill(~proposed.novel_B, 0.0)
        alive_B = draws.accepts(log_accept_B, alive_B) & alive_B
        kept_N = alive_B[rows_N]
        rows_N, tokens_NT = rows_N[kept_N], tokens_NT[kept_N]
        logits, energy_NT = tuple(own_NTV[kept_N] for own_NTV in logits), energy_NT[kept_N]
        log_accept_B = torch.where(alive_B, 0.0, -torch.inf).double()
    if len(rows_N):
        state.put(rows_N, tokens_NT, energy_NT.sum(1) + new_B[rows_N], energy_NT, logits)
    return counts(proposed, alive_B, passes_B)


def counts(proposed: Proposed, accepted_B: Tensor, passes_B: Tensor) -> Info:
    """One visit in numbers."""
    novel_B = accepted_B & proposed.novel_B
    return Info(proposed.live_B.long(), accepted_B.long(), novel_B.long(), passes_B)


def update_scores(
    state: ChainState, rows_N: Tensor, tokens_NT: Tensor, logits: tuple[Tensor, ...], stage_NT: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The masked scores of new tokens at the positions of a stage, and what they cost each chain."""
    changed_NT = tokens_NT != state.tokens_BT[rows_N]
    # Where the only change is masked, the old scores hold.
    stale_NT = stage_NT & (changed_NT.sum(1, keepdim=True) - changed_NT.long() > 0)
    context, updated = rows_of(state.context, rows_N), []
    for model, own_NTV in zip(state.energy.models, logits, strict=True):
        fresh_MV = lone_logits(model, tokens_NT, stale_NT, context=context, max_rows=state.energy.max_rows)
        updated.append(own_NTV.masked_scatter(stale_NT[..., None], fresh_MV.to(own_NTV.dtype)))
    return tuple(updated), stale_NT.sum(1) * len(updated)


def draw_conditional(
    draws: Draws, state: ChainState, masked_BT: Tensor, size: int, temperature_B: Tensor, allowed_V: Tensor | None
) -> Info:
    """One visit of exact Gibbs: the energy with every token at the masked position, and a draw by it."""
    live_B = masked_BT.any(1)
    if bool((masked_BT.sum(1) > 1).any()):
        raise InputError("exact Gibbs visits one position at a time", hint="use blocks of 1")
    rows_N = live_B.nonzero().flatten().repeat_interleave(size)
    every_N = torch.arange(size, device=rows_N.device).repeat(len(rows_N) // size)
    # The scores of all candidates would be V times those of the state: a few candidates at a time have them.
    numbers = torch.arange(len(rows_N), device=rows_N.device).split(max(1, state.energy.max_rows // masked_BT.shape[1]))
    passes_B, energies = torch.zeros_like(state.chain_B), []
    for part_N in numbers:
        candidates = _candidates(state, masked_BT, rows_N[part_N], every_N[part_N], allowed_V)
        passes_B.index_add_(0, rows_N[part_N], candidates.passes_N)
        energies.append(candidates.energy_N)
    log_weights_BV = torch.zeros(len(state), size, dtype=torch.float64, device=rows_N.device)
    log_weights_BV[live_B] = (-torch.cat(energies) / temperature_B[rows_N]).view(-1, size)
    token_B = draws.categorical(log_weights_BV, live_B)
    chosen_N = (token_B[rows_N] == every_N).nonzero().flatten()
    rows_N = rows_N[chosen_N]
    if len(numbers) == 1:
        chosen = candidates.take(chosen_N)
    else:
        # These passes are made again and not counted, so that no count depends on what fits the memory.
        chosen = _candidates(state, masked_BT, rows_N, token_B[rows_N], allowed_V)
    novel_B = torch.zeros_like(live_B).index_put((rows_N,), (chosen.tokens_NT != state.tokens_BT[rows_N]).any(1))
    state.put(rows_N, chosen.tokens_NT, chosen.energy_N, chosen.energy_NT, chosen.logits)
    return Info(live_B.long(), live_B.long(), novel_B.long(), passes_B)


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Sequences to draw from, with what is known of them and what that cost."""

    tokens_NT: Tensor
    energy_N: Tensor
    energy_NT: Tensor
    logits: tuple[Tensor, ...]
    passes_N: Tensor

    def take(self, rows_N: Tensor) -> _Candidates:
        return _Candidates(
            self.tokens_NT[rows_N],
            self.energy_N[rows_N],
            self.energy_NT[rows_N],
            tuple(own_NTV[rows_N] for own_NTV in self.logits),
            self.passes_N[rows_N],
        )


def _candidates(
    state: ChainState, masked_BT: Tensor, rows_N: Tensor, every_N: Tensor, allowed_V: Tensor | None
) -> _Candidates:
    """Chains with a token each at their masked position."""
    tokens_NT = torch.where(masked_BT[rows_N], every_N[:, None], state.tokens_BT[rows_N])
    energy_N = state.energy.of_sequences(tokens_NT)
    here_N = (tokens_NT == state.tokens_BT[rows_N]).all(1)
    if allowed_V is not None:
        # What may not be drawn could never come back, so it is never left either.
        own_N = state.tokens_BT[rows_N][masked_BT[rows_N]]
        allowed_V = allowed_V.to(rows_N.device)
        energy_N = energy_N.masked_fill(~(allowed_V[every_N] & allowed_V[own_N] | here_N), torch.inf)
    possible_N = energy_N.isfinite()[:, None]
    logits, spent_N = update_scores(
        state, rows_N, tokens_NT, tuple(own[rows_N] for own in state.logits), possible_N.expand_as(tokens_NT)
    )
    energy_NT = state.energy.of_positions(tokens_NT, logits)
    return _Candidates(tokens_NT, energy_N + energy_NT.sum(1), energy_NT, logits, spent_N)


def moved_to(state: ChainState, tokens_BT: Tensor, info: Info) -> tuple[ChainState, Info]:
    """The state at new tokens; what has changed is evaluated from nothing."""
    moved = state.under(state.energy)
    rows_N = (tokens_BT != state.tokens_BT).any(1).nonzero().flatten()
    if len(rows_N):
        moved.put(rows_N, tokens_BT[rows_N], *evaluate(state.energy, tokens_BT[rows_N], rows_of(state.context, rows_N)))
    changed_B = (tokens_BT != state.tokens_BT).any(1)
    return moved, replace(info, passes_B=info.passes_B + changed_B * _full(state.energy, state))


def arrival(energy: Energy, state: ChainState) -> Info:
    """The passes that it takes to evaluate a state that belongs to another energy."""
    info = Info.none(state)
    return info if state.energy == energy else replace(info, passes_B=info.passes_B + _full(energy, state))


def _full(energy: Energy, state: ChainState) -> int:
    return state.tokens_BT.shape[1] * len(energy.models)
