"""Phrases that must occur, or must not: as a part of the energy, and in the sequences that chains start from.

Shapes: B chains, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqwise.models.protocols import MaskedModel
from seqwise.sampling.energies import Energy, constraint, contains
from seqwise.sampling.starts import Phrase, dispersed_starts

__all__ = ["Phrases", "phrase_starts"]


@dataclass(frozen=True)
class Phrases:
    """What sequences should contain, and do without.

    Attributes:
        required: phrases of which each must occur, in one of the ways that are given for it.
        forbidden: phrases of which none may, in no way.
        penalty: nats, for each required phrase that is missing and each way of a forbidden one that is there; infinity
            makes the constraints hard.

    Example:
        >>> phrases = Phrases(required=[[(1, 2), (3,)]], forbidden=[(0, 0)], penalty=2.0)
        >>> phrases.constrain(Energy()).of_sequences(torch.tensor([[1, 2, 0], [0, 3, 1], [1, 0, 0]]))
        tensor([0., 0., 4.], dtype=torch.float64)
    """

    required: Sequence[Sequence[Phrase]] = ()
    forbidden: Sequence[Phrase] = ()
    penalty: float = math.inf

    @property
    def hard(self) -> bool:
        """Whether the constraints may not be broken."""
        return self.penalty == math.inf

    def constrain(self, energy: Energy) -> Energy:
        """The energy with what the phrases add."""
        for ways in self.required:
            energy += constraint(_one_of(ways), penalty=self.penalty)
        for phrase in self.forbidden:
            energy += constraint(_none_of(phrase), penalty=self.penalty)
        return energy


def phrase_starts(
    model: MaskedModel, tokens_BT: Tensor, free_BT: Tensor, phrases: Phrases, **options: Any
) -> tuple[Tensor, Tensor]:
    """Initial sequences as of :func:`~seqwise.sampling.dispersed_starts`, with the phrases kept wherever they can be.

    Args:
        model: a masked model in evaluation mode.
        tokens_BT: int64; what stands at free positions plays no part.
        free_BT: bool.
        phrases: of a required one, the first way is written in. Where soft constraints cannot be kept, a start breaks
            them; forbidden phrases are avoided for hard constraints only.
        options: the others of :func:`~seqwise.sampling.dispersed_starts`.

    Returns:
        The sequences, and bool (B,): false where no start was found that keeps hard constraints.

    Example:
        >>> from seqwise.sampling import table_model
        >>> model, blank_BT = table_model(num_positions=3, vocab_size=3), torch.zeros(2, 3).long()
        >>> options = {"chain_B": torch.arange(2), "greedy_B": torch.zeros(2).bool(), "seed": 0}
        >>> tokens_BT, found_B = phrase_starts(
        ...     model, blank_BT, torch.ones(2, 3).bool(), Phrases(required=[[(2, 1)]]), **options)
        >>> contains(2, 1)(tokens_BT), found_B
        (tensor([True, True]), tensor([True, True]))
    """
    required = [ways[0] for ways in phrases.required]
    forbidden = phrases.forbidden if phrases.hard else ()
    started_BT, found_B = dispersed_starts(model, tokens_BT, free_BT, required=required, forbidden=forbidden, **options)
    if phrases.hard or bool(found_B.all()):
        return started_BT, found_B
    without_BT, _ = dispersed_starts(model, tokens_BT, free_BT, **options)
    return torch.where(found_B[:, None], started_BT, without_BT), torch.ones_like(found_B)


def _one_of(ways: Sequence[Phrase]) -> Callable[[Tensor], Tensor]:
    return lambda tokens_BT: torch.stack([contains(*way)(tokens_BT) for way in ways]).any(0)


def _none_of(phrase: Phrase) -> Callable[[Tensor], Tensor]:
    return lambda tokens_BT: ~contains(*phrase)(tokens_BT)
