"""Starts of chains: sequences that differ from chain to chain, and keep the hard constraints from the beginning.

Shapes: B chains, T positions, V vocabulary, N some of the chains, M positions that are not yet filled, in all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from seqwise.models.protocols import MaskedModel
from seqwise.sampling.draws import Draws, SeededDraws
from seqwise.sampling.energies import MAX_ROWS, contains, joint_logits, rows_of
from seqwise.sampling.proposals import shuffled
from seqwise.sampling.refinement import refine

Phrase = Sequence[int]

FREE = -1
"""Number that stands for a token that is to be drawn, where sequences are handed over."""

MOST_ATTEMPTS = 50
"""Number of times that a start is drawn anew where it broke a constraint."""

MOST_PLACES = 20_000
"""Number of places that are tried for the phrases of one start before they are said not to fit."""


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
    """Initial sequences: the greedy fill for the chains of ``greedy_B``, for the others one drawn token by token.

    Required phrases are written in first, each at a random place where it fits what is fixed or written already. Then
    greedy chains fill the rest from all masks at once with the likeliest tokens (the thesis' start), and the others by
    :func:`fill_in_turn`. A start that holds a forbidden phrase is drawn anew, by the latter. A chain's start depends on
    its number and on the seed, not on the other chains.

    ``conditions`` are functions of the tokens (B, T) to bool (B,) that are all to hold. The phrases are hints then:
    every second draw avoids the forbidden ones, and takes a required one that stands there already for granted.

    Returned are the sequences, and bool (B,): false where no start was found that keeps the constraints. Required
    phrases alone are tried at all places (20,000 at most), together with forbidden ones or conditions 50 draws are
    made.

    Source: Goyal (2021), section 6.4, for the greedy start; dispersed starts are what R-hat asks for (Gelman and Rubin
    1992).

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
                drawn_NT, left_NT, chain_B[rows_N], seed, attempt, required, avoided, keep=by_tokens
            )
            if conditions is not None and by_tokens:
                again_N = rows_N[~fits_N]
            rows_N, drawn_NT, left_NT = rows_N[fits_N], drawn_NT[fits_N], left_NT[fits_N]
        greedy_N = greedy_B[rows_N] & (attempt == 0)
        shared: dict[str, Any] = {"context": rows_of(context, rows_N), "allowed_V": allowed_V, "max_rows": max_rows}
        filled_NT, _ = refine(model, drawn_NT, left_NT & greedy_N[:, None], num_iterations=1, **shared)
        # Sweeps are numbered from 0, so that these draws are none of theirs.
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
    """Draw the free positions one after another in a random order, those still to come masked.

    ``y_t ~ softmax f(., h(what is fixed or filled so far))``, without tokens that would complete a forbidden phrase.
    Returned are the sequences, and bool (B,): false where at some position no token was left to draw.
    """
    tokens_BT, left_BT = tokens_BT.clone(), free_BT.clone()
    fine_B = torch.ones_like(left_BT[:, 0])
    for place_BT in shuffled()(draws, free_BT):
        rows_N = place_BT.any(1).nonzero().flatten()
        here_BT = left_BT & place_BT.any(1, keepdim=True)
        logits_MV = joint_logits(model, tokens_BT, here_BT, context=context, max_rows=max_rows)
        # Of the scores at everything that is masked, those at the one position of each chain.
        logits_NV = logits_MV[place_BT[here_BT]].double()
        if allowed_V is not None:
            logits_NV = logits_NV.masked_fill(~allowed_V.to(logits_NV.device), -torch.inf)
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
    """The condition that a phrase does not occur: tokens (B, T) to bool (B,)."""
    return lambda tokens_BT: ~contains(*phrase)(tokens_BT)


def _banned(tokens_NT: Tensor, known_NT: Tensor, places_N: Tensor, forbidden: Sequence[Phrase], size: int) -> Tensor:
    """The tokens (N, V) that would complete a forbidden phrase at one place of each chain."""
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
            there = known_NT.gather(1, window) & (tokens_NT.gather(1, window) == phrase_K)
            completed_N = (there | (steps == offset)).all(1) & (first_N >= 0) & (first_N <= longest)
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the required phrases in; return tokens, what is free then, and bool (N,): whether there was room.

    A phrase that stands there already is kept, or may be written a second time.
    """
    tokens_NT, free_NT, fits = tokens_NT.clone(), free_NT.clone(), []
    for row, chain in enumerate(chain_N.tolist()):
        chance = random.Random(f"{seed}/{chain}/{attempt}")
        # What is not known yet is None.
        known = [None if free else token for token, free in zip(tokens_NT[row].tolist(), free_NT[row], strict=True)]
        written = _placed(
            known, chance.sample(list(required), len(required)), forbidden, chance, [MOST_PLACES], keep=keep
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
) -> list[int | None] | None:
    """The known tokens with all phrases among them, or None; ``left`` counts down the places that may be tried."""

    def here(place: int, phrase: Phrase) -> Sequence[int | None]:
        return known[place : place + len(phrase)]

    if any(list(phrase) == here(place, phrase) for phrase in forbidden for place in range(len(known))):
        return None
    if not required:
        return known
    phrase, *remaining = required
    num_places = max(len(known) - len(phrase) + 1, 0)
    places = chance.sample(range(num_places), num_places)
    there = [place for place in places if keep and list(phrase) == here(place, phrase)]
    for place in there[:1] or places:
        left[0] -= 1
        if left[0] < 0:
            return None
        if all(token is None or token == own for token, own in zip(here(place, phrase), phrase, strict=True)):
            following = [*known[:place], *phrase, *known[place + len(phrase) :]]
            written = _placed(following, remaining, forbidden, chance, left, keep=keep)
            if written is not None:
                return written
    return None
