"""Dispersed starts of chains that satisfy the hard constraints.

Shapes: B chains, T positions, V vocabulary, N some of the chains, M positions not yet filled, in all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import Tensor

from seqwise.devices import moved
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.draws import Draws, SeededDraws
from seqwise.sampling.energies import MAX_ROWS, contains, joint_logits, rows_of
from seqwise.sampling.proposals import shuffled
from seqwise.sampling.refinement import refine

Phrase = Sequence[int]

MOST_ATTEMPTS = 50
"""Number of attempts to draw a start that satisfies the constraints."""

MOST_PLACES = 20_000
"""Number of placements of the phrases of a start that are tried before giving up."""


@torch.no_grad()
def dispersed_starts(
    model: MaskedModel,
    tokens_BT: Tensor,
    free_BT: Tensor,
    *,
    chain_B: Tensor,
    greedy_B: Tensor,
    seed: int,
    context: Any = None,
    allowed_V: Tensor | None = None,
    max_rows: int = MAX_ROWS,
    required: Sequence[Phrase] = (),
    forbidden: Sequence[Phrase] = (),
    conditions: Sequence[Callable[[Tensor], Tensor]] | None = None,
) -> tuple[Tensor, Tensor]:
    """Make initial sequences: greedy fills for the chains of ``greedy_B``, ones drawn token by token for the others.

    Required phrases come first, each at a random place that fits fixed tokens and other phrases. Then greedy chains
    fill the rest from all masks at once with the likeliest tokens (the start of the thesis), and the others by
    :func:`fill_in_turn`, which also redraws starts that contain a forbidden phrase. A chain's start depends on its
    number and the seed, not on other chains.

    ``conditions`` are functions from tokens (B, T) to bool (B,) that must all hold. Phrases are then only hints: every
    second draw avoids the forbidden ones, and does not write a required one that already occurs.

    Returns the sequences, and bool (B,): false where no start was found that satisfies the constraints. Required
    phrases alone are tried at all places (at most 20,000); with forbidden ones or conditions, 50 draws are made.

    Source: Goyal (2021), section 6.4, for the greedy start; Gelman and Rubin (1992) for dispersed starts, which R-hat
    needs.

    Example:
        >>> from seqwise.sampling import table_model
        >>> model, blank_BT = table_model(num_positions=4, vocab_size=3), torch.zeros(2, 4).long()
        >>> tokens_BT, found_B = dispersed_starts(
        ...     model, blank_BT, torch.tensor([[1, 1, 1, 0]] * 2).bool(), chain_B=torch.arange(2),
        ...     greedy_B=torch.tensor([True, False]), seed=0, required=[(1, 2)])
        >>> contains(1, 2)(tokens_BT), tokens_BT[:, 3], found_B
        (tensor([True, True]), tensor([0, 0]), tensor([True, True]))
    """
    tokens_BT, found_B = tokens_BT.clone(), torch.zeros_like(greedy_B)
    rows_N = torch.arange(len(tokens_BT), device=tokens_BT.device)
    for attempt in range(MOST_ATTEMPTS if forbidden or conditions else 1):
        drawn_NT, left_NT = tokens_BT[rows_N], free_BT[rows_N]
        by_tokens = conditions is None or attempt % 2 == 0
        avoided, again_N = forbidden if by_tokens else (), rows_N[:0]
        if required or avoided:
            drawn_NT, left_NT, fits_N = _write(
                drawn_NT,
                left_NT,
                chain_B[rows_N],
                seed,
                attempt,
                required,
                avoided,
                keep=by_tokens,
                allowed_V=allowed_V,
            )
            if conditions is not None and by_tokens:
                again_N = rows_N[~fits_N]
            rows_N, drawn_NT, left_NT = rows_N[fits_N], drawn_NT[fits_N], left_NT[fits_N]
        greedy_N = greedy_B[rows_N] & (attempt == 0)
        shared: dict[str, Any] = {"context": rows_of(context, rows_N), "allowed_V": allowed_V, "max_rows": max_rows}
        filled_NT, _ = refine(model, drawn_NT, left_NT & greedy_N[:, None], num_iterations=1, **shared)
        # Sweeps are numbered from 0, so negative numbers give other random numbers.
        draws = SeededDraws(seed, chain_B[rows_N], sweep=-1 - attempt)
        filled_NT, fine_N = fill_in_turn(
            draws, model, filled_NT, left_NT & ~greedy_N[:, None], forbidden=avoided, **shared
        )
        for holds in [lacks(phrase) for phrase in forbidden] if conditions is None else conditions:
            fine_N = fine_N & holds(filled_NT)
        tokens_BT[rows_N[fine_N]], found_B[rows_N[fine_N]] = filled_NT[fine_N], True
        rows_N = torch.cat([rows_N[~fine_N], again_N])
        if not len(rows_N):
            break
    return tokens_BT, found_B


@torch.no_grad()
def fill_in_turn(
    draws: Draws,
    model: MaskedModel,
    tokens_BT: Tensor,
    free_BT: Tensor,
    *,
    context: Any = None,
    allowed_V: Tensor | None = None,
    max_rows: int = MAX_ROWS,
    forbidden: Sequence[Phrase] = (),
) -> tuple[Tensor, Tensor]:
    """Draw the free positions one by one in random order, with later ones masked.

    ``y_t ~ softmax f(., h(fixed and filled tokens))``, without tokens that would complete a forbidden phrase. Returns
    the sequences, and bool (B,): false if a position had no token left to draw.
    """
    tokens_BT, left_BT = tokens_BT.clone(), free_BT.clone()
    fine_B = torch.ones_like(left_BT[:, 0])
    for place_BT in shuffled()(draws, free_BT):
        rows_N = place_BT.any(1).nonzero().flatten()
        here_BT = left_BT & place_BT.any(1, keepdim=True)
        logits_MV = joint_logits(model, tokens_BT, here_BT, context=context, max_rows=max_rows)
        # Of the scores at all masked positions, select those at the one position of each chain.
        chosen_N = place_BT[here_BT].nonzero().flatten()
        logits_NV = logits_MV[moved(chosen_N, logits_MV.device)].cpu().double()
        if allowed_V is not None:
            logits_NV = logits_NV.masked_fill(~allowed_V.cpu(), -torch.inf)
        if forbidden:
            places_N = place_BT[rows_N].long().argmax(1)
            banned_NV = _banned(tokens_BT[rows_N], ~left_BT[rows_N], places_N, forbidden, model.vocab_size)
            logits_NV = logits_NV.masked_fill(banned_NV, -torch.inf)
        stuck_N = (logits_NV == -torch.inf).all(1)
        fine_B = fine_B.index_put((rows_N[stuck_N],), torch.zeros_like(stuck_N[stuck_N]))
        logits_BV = logits_NV.new_zeros(len(tokens_BT), model.vocab_size)
        logits_BV[rows_N] = logits_NV.masked_fill(stuck_N[:, None], 0.0)
        token_B = draws.categorical(logits_BV, place_BT.any(1))
        tokens_BT = torch.where(place_BT, token_B[:, None], tokens_BT)
        left_BT = left_BT & ~place_BT
    return tokens_BT, fine_B


def lacks(phrase: Phrase) -> Callable[[Tensor], Tensor]:
    """Make the condition that a phrase does not occur: tokens (B, T) to bool (B,)."""
    return lambda tokens_BT: ~contains(*phrase)(tokens_BT)


def _banned(tokens_NT: Tensor, known_NT: Tensor, places_N: Tensor, forbidden: Sequence[Phrase], size: int) -> Tensor:
    """Return the tokens (N, V) that would complete a forbidden phrase at one place of each chain."""
    banned_NV = torch.zeros(len(tokens_NT), size, dtype=torch.bool, device=tokens_NT.device)
    for phrase in forbidden:
        longest = tokens_NT.shape[1] - len(phrase)
        if longest < 0:
            continue
        phrase_K, steps = (
            torch.tensor(phrase, device=tokens_NT.device),
            torch.arange(len(phrase), device=places_N.device),
        )
        for offset, token in enumerate(phrase):
            first_N = places_N - offset
            window = first_N.clamp(0, longest)[:, None] + steps
            matches = known_NT.gather(1, window) & (tokens_NT.gather(1, window) == phrase_K)
            completed_N = (matches | (steps == offset)).all(1) & (first_N >= 0) & (first_N <= longest)
            banned_NV[completed_N, token] = True
    return banned_NV


def _write(
    tokens_NT: Tensor,
    free_NT: Tensor,
    chain_N: Tensor,
    seed: int,
    attempt: int,
    required: Sequence[Phrase],
    forbidden: Sequence[Phrase],
    *,
    keep: bool,
    allowed_V: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the required phrases; return tokens, the remaining free positions, and bool (N,): whether they fit.

    With ``keep``, a phrase that already occurs is not written again. Only allowed tokens are written, as a chain could
    not return to others.
    """
    allowed = None if allowed_V is None else set(allowed_V.nonzero().flatten().tolist())
    tokens_NT, free_NT, fits = tokens_NT.clone(), free_NT.clone(), []
    for row, chain in enumerate(chain_N.tolist()):
        chance = random.Random(f"{seed}/{chain}/{attempt}")
        # None marks free positions.
        known = [None if free else token for token, free in zip(tokens_NT[row].tolist(), free_NT[row], strict=True)]
        written = _placed(
            known,
            chance.sample(list(required), len(required)),
            forbidden,
            chance,
            [MOST_PLACES],
            keep=keep,
            allowed=allowed,
        )
        fits.append(written is not None)
        for place, token in enumerate(written or ()):
            if token is not None:
                tokens_NT[row, place], free_NT[row, place] = token, False
    return tokens_NT, free_NT, torch.tensor(fits, dtype=torch.bool, device=tokens_NT.device)


def _placed(
    known: list[int | None],
    required: Sequence[Phrase],
    forbidden: Sequence[Phrase],
    chance: random.Random,
    left: list[int],
    *,
    keep: bool = True,
    allowed: Container[int] | None = None,
) -> list[int | None] | None:
    """Place all phrases among the known tokens, or return None; ``left`` counts the remaining attempts."""

    def here(place: int, phrase: Phrase) -> Sequence[int | None]:
        return known[place : place + len(phrase)]

    if any(list(phrase) == here(place, phrase) for phrase in forbidden for place in range(len(known))):
        return None
    if not required:
        return known
    phrase, *remaining = required
    num_places = max(len(known) - len(phrase) + 1, 0)
    places = chance.sample(range(num_places), num_places)
    occurrences = [place for place in places if keep and list(phrase) == here(place, phrase)]
    for place in occurrences[:1] or places:
        left[0] -= 1
        if left[0] < 0:
            return None
        if all(
            token == own or (token is None and (allowed is None or own in allowed))
            for token, own in zip(here(place, phrase), phrase, strict=True)
        ):
            following = [*known[:place], *phrase, *known[place + len(phrase) :]]
            written = _placed(following, remaining, forbidden, chance, left, keep=keep, allowed=allowed)
            if written is not None:
                return written
    return None
