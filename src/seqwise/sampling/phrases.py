"""Phrases that must occur, or must not: as a part of the energy, and in the sequences that chains start from.

Shapes: B chains, T positions.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from seqwise.models.protocols import MaskedModel
from seqwise.sampling.energies import Energy, constraint, contains
from seqwise.sampling.starts import Phrase, dispersed_starts, lacks

Condition = Callable[[Tensor], Tensor]
"""Tokens (B, T) to bool (B,)."""

REMEMBERED = 2**16
"""Sequences whose text is kept, so that a chain that stays is not spelt again."""

BLANKLESS = ("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ")
"""Beginnings of the names of characters that are written without blanks between words."""


@dataclass(frozen=True)
class Phrases:
    """Phrases that sequences should contain, each in one of the ways given for it, and phrases that none may hold.

    Where phrases are more than their tokens, ``conditions`` hold in their place, and the phrases only say how to write
    a sequence to start from. See :meth:`of_words`.

    Example:
        >>> phrases = Phrases(required=[[(1, 2), (3,)]], forbidden=[(0, 0)], penalty=2.0)
        >>> phrases.constrain(Energy()).of_sequences(torch.tensor([[1, 2, 0], [0, 3, 1], [1, 0, 0]]))
        tensor([0., 0., 4.], dtype=torch.float64)
    """

    required: Sequence[Sequence[Phrase]] = ()
    forbidden: Sequence[Phrase] = ()
    penalty: float = math.inf  # nats, for each phrase that is missing, or there; infinity makes constraints hard
    conditions: Sequence[Condition] | None = None

    @classmethod
    def of_words(
        cls,
        required: Sequence[Sequence[Phrase]],
        forbidden: Sequence[Sequence[Phrase]],
        *,
        penalty: float = math.inf,
        spell: Callable[[Sequence[int]], str],
    ) -> Phrases:
        """Phrases that are looked for as whole words in the text that tokens spell: see :func:`has_words`.

        For each phrase the ways are given in which a tokenizer writes it.

        Example:
            >>> pieces = ["cat", "c", "at", "s", " "]
            >>> spell = lambda ids: "".join(pieces[token] for token in ids)
            >>> phrases = Phrases.of_words([], [[(0,)]], spell=spell)
            >>> phrases.constrain(Energy()).of_sequences(torch.tensor([[0, 4, 3], [1, 2, 4], [1, 2, 3]]))
            tensor([inf, inf, 0.], dtype=torch.float64)
        """

        @lru_cache(REMEMBERED)
        def text_of(ids: tuple[int, ...]) -> str:
            return " ".join(spell(ids).split())

        def condition(ways: Sequence[Phrase], *, wanted: bool) -> Condition:
            texts = dict.fromkeys(text_of(tuple(way)) for way in ways)

            def holds(tokens_BT: Tensor) -> Tensor:
                there = [any(has_words(text_of(tuple(row)), text) for text in texts) for row in tokens_BT.tolist()]
                return torch.tensor(there, dtype=torch.bool, device=tokens_BT.device) == wanted

            return holds

        conditions = [condition(ways, wanted=True) for ways in required]
        conditions += [condition(ways, wanted=False) for ways in forbidden]
        return cls(required, [way for ways in forbidden for way in ways], penalty, conditions)

    @property
    def hard(self) -> bool:
        """Whether the constraints may not be broken."""
        return self.penalty == math.inf

    def constrain(self, energy: Energy) -> Energy:
        """The energy with what the phrases add."""
        conditions = self.conditions
        if conditions is None:
            conditions = [*map(_one_of, self.required), *map(lacks, self.forbidden)]
        for condition in conditions:
            energy += constraint(condition, penalty=self.penalty)
        return energy


def has_words(text: str, phrase: str) -> bool:
    """Whether a phrase occurs in a text as whole words: not joined to a letter, digit or accent on either side.

    Scripts that are written without blanks have no such borders; there it may occur anywhere. Blanks are single.

    Example:
        >>> has_words("a cat, not dogs", "cat"), has_words("a cat, not dogs", "dog"), has_words("白い猫です", "猫")
        (True, False, True)
    """
    place = text.find(phrase)
    while place >= 0:
        if not _is_joined(text, place) and not _is_joined(text, place + len(phrase)):
            return True
        place = text.find(phrase, place + 1)
    return False


def _is_joined(text: str, place: int) -> bool:
    """Whether a word goes on across a place."""
    return 0 < place < len(text) and all(map(_makes_words, text[place - 1 : place + 1]))


def _makes_words(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character == "_"
    return unicodedata.category(character)[0] in "LMN" and not unicodedata.name(character, "").startswith(BLANKLESS)


def phrase_starts(
    model: MaskedModel, tokens_BT: Tensor, free_BT: Tensor, phrases: Phrases, **options: Any
) -> tuple[Tensor, Tensor]:
    """Initial sequences of :func:`~seqwise.sampling.starts.dispersed_starts`, with phrases kept where they can be.

    Of a required phrase the first way is written in, or another where that has no room. Where soft constraints cannot
    be kept, a start breaks them; forbidden phrases are avoided for hard constraints only. Returned are the sequences,
    and bool (B,): false where no start was found that keeps hard constraints.
    """
    if phrases.hard:
        options |= {"forbidden": phrases.forbidden, "conditions": phrases.conditions}
    started_BT, found_B = tokens_BT, torch.zeros(len(tokens_BT), dtype=torch.bool, device=tokens_BT.device)
    for number in range(max(map(len, phrases.required), default=1)):
        required = [ways[min(number, len(ways) - 1)] for ways in phrases.required]
        new_BT, fine_B = dispersed_starts(model, tokens_BT, free_BT, required=required, **options)
        started_BT, found_B = torch.where(found_B[:, None], started_BT, new_BT), found_B | fine_B
        if bool(found_B.all()):
            break
    if phrases.hard or bool(found_B.all()):
        return started_BT, found_B
    without_BT, _ = dispersed_starts(model, tokens_BT, free_BT, **options)
    return torch.where(found_B[:, None], started_BT, without_BT), torch.ones_like(found_B)


def _one_of(ways: Sequence[Phrase]) -> Callable[[Tensor], Tensor]:
    return lambda tokens_BT: torch.stack([contains(*way)(tokens_BT) for way in ways]).any(0)
