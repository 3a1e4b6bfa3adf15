"""Metropolis-Hastings with fewer calls of the model, by scoring the proposals after possible rejections together.

Shapes: B chains, T positions, V vocabulary, N sequences scored together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.sampling.draws import Draws, SeededDraws, choice_at
from seqwise.sampling.energies import Energy
from seqwise.sampling.kernels import evaluate_changed, evaluation_info, temperatures_of
from seqwise.sampling.proposals import Proposal
from seqwise.sampling.state import ChainState, Info, Kernel


def prefetching(energy: Energy, proposal: Proposal, *, num_ahead: int = 4, temperature: float | Tensor = 1.0) -> Kernel:
    """Sweep in order, one position at a time, and score several upcoming proposals in one call of the model.

    While proposals are rejected, the state does not change, and neither do the conditionals of later positions. So the
    first ``num_ahead`` proposals that differ from the state are scored at once; the first accepted one is taken, and
    later ones are discarded. The states are those of :func:`~seqwise.sampling.kernels.metropolis_hastings` with the
    same random numbers, with more passes but fewer calls. It looks ahead in
    :class:`~seqwise.sampling.draws.SeededDraws`, and accepts no other draws.

    Args:
        proposal: proposal from one of the energy's models.
        num_ahead: number of proposals scored together.
        energy, temperature: see :func:`~seqwise.sampling.kernels.metropolis_hastings`.

    Raises:
        InputError: a value is out of range, or the proposal's model is not one of the energy's; in a sweep, if the
            draws are not ``SeededDraws``.

    Source: Brockwell (2006), Parallel Markov chain Monte Carlo simulation by pre-fetching.

    Example:
        >>> from seqwise.sampling import local_energy, masked_conditionals, start_chains, table_model
        >>> model = table_model(num_positions=3, vocab_size=4)
        >>> state = start_chains(local_energy(model), torch.zeros(2, 3).long())
        >>> kernel = prefetching(local_energy(model), masked_conditionals(model))
        >>> kernel(SeededDraws(0, state.chain_B, sweep=0), state)[1].proposals_B
        tensor([3, 3])
    """
    if num_ahead < 1:
        raise InputError(f"at least 1 proposal must be scored at once, got {num_ahead}")
    known = energy.place_of(proposal.model)
    if known is None:
        raise InputError("the proposal's model is not one of the energy's", hint="use metropolis_hastings")

    @torch.no_grad()
    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        if not isinstance(draws, SeededDraws):
            raise InputError("prefetching needs separate random numbers for each chain", hint="use SeededDraws")
        info, state = evaluation_info(energy, state), state.under(energy)
        temperature_B = temperatures_of(temperature, state)
        done_B = torch.zeros_like(state.chain_B)
        while bool((done_B < state.free_BT.sum(1)).any()):
            done_B, more = _leap(draws, state, proposal, known, num_ahead, temperature_B, done_B)
            info += more
        return state, info

    return kernel


def _leap(
    draws: SeededDraws,
    state: ChainState,
    proposal: Proposal,
    known: int,
    num_ahead: int,
    temperature_B: Tensor,
    done_B: Tensor,
) -> tuple[Tensor, Info]:
    """Make visits up to the first that changes the state, or to the last scored one; return the number of visits."""
    rank_BT, count_B = state.free_BT.long().cumsum(1) - 1, state.free_BT.sum(1)
    left_BT = state.free_BT & (rank_BT >= done_B[:, None])
    # Each visit uses two numbers: for the token, and for its acceptance.
    ahead_BT = 2 * (rank_BT - done_B[:, None]).clamp(min=0)
    log_q_BTV = proposal.log_probs(state.logits[known]).cpu()
    token_BT = choice_at(draws.peek(ahead_BT).flatten(), log_q_BTV.flatten(0, 1)).view_as(rank_BT)
    token_BT = torch.where(left_BT, token_BT, state.tokens_BT)
    old_log_q_BT, new_log_q_BT = (
        log_q_BTV.gather(2, t[..., None]).squeeze(2).double() for t in (state.tokens_BT, token_BT)
    )
    differs_BT = token_BT != state.tokens_BT
    possible_BT = differs_BT & (old_log_q_BT - new_log_q_BT).isfinite()
    number_BT = possible_BT.long().cumsum(1)

    rows_N, places_N = (possible_BT & (number_BT <= num_ahead)).nonzero(as_tuple=True)
    tokens_NT = state.tokens_BT[rows_N].scatter(1, places_N[:, None], token_BT[rows_N, places_N][:, None])
    proposed, spent_N = evaluate_changed(state, rows_N, tokens_NT, state.energy.of_sequences(tokens_NT))
    gain_N = (state.energy_B[rows_N] - proposed.energy_B) / temperature_B[rows_N]
    log_accept_N = gain_N + (old_log_q_BT - new_log_q_BT)[rows_N, places_N]
    accepted_N = draws.peek(ahead_BT + 1)[rows_N, places_N] < log_accept_N.exp()

    beyond = rank_BT.shape[1] + 1
    accepted_BT = torch.zeros_like(left_BT).index_put((rows_N, places_N), accepted_N)
    first_B = rank_BT.masked_fill(~accepted_BT, beyond).amin(1)
    last_scored_B = rank_BT.masked_fill(~(possible_BT & (number_BT == num_ahead)), beyond).amin(1)
    stop_B = torch.minimum(torch.minimum(first_B, last_scored_B) + 1, count_B)
    taken_N = (accepted_N & (rank_BT[rows_N, places_N] == first_B[rows_N])).nonzero().flatten()
    visited_BT = left_BT & (rank_BT < stop_B[:, None])
    novel_B = (first_B < beyond).long()
    info = Info(
        visited_BT.sum(1),
        (visited_BT & ~differs_BT).sum(1) + novel_B,
        novel_B,
        torch.zeros_like(done_B).index_add(0, rows_N, spent_N),
    )
    state.put(rows_N[taken_N], proposed.take(taken_N))
    draws.skip(2 * info.proposals_B)
    return stop_B, info
