"""Required and forbidden phrases, as part of the energy and in initial sequences.

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
"""Condition: maps tokens (B, T) to bool (B,)."""

REMEMBERED = 2**16
"""Number of sequences whose text is cached, so that chains that do not move are not decoded again."""

BLANKLESS = ("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ")
"""Prefixes of the names of characters of scripts without blanks between words."""


@dataclass(frozen=True)
class Phrases:
    """Required phrases, each with alternative tokenizations, and forbidden phrases.

    If phrases are not defined by their tokens, ``conditions`` replace them as constraints, and the phrases are only
    used to write initial sequences. See :meth:`of_words`.

    Example:
        >>> phrases = Phrases(required=[[(1, 2), (3,)]], forbidden=[(0, 0)], penalty=2.0)
        >>> phrases.constrain(Energy()).of_sequences(torch.tensor([[1, 2, 0], [0, 3, 1], [1, 0, 0]]))
        tensor([0., 0., 4.], dtype=torch.float64)
    """

    required: Sequence[Sequence[Phrase]] = ()
    forbidden: Sequence[Phrase] = ()
    penalty: float = math.inf  # nats, for each missing required or present forbidden phrase; infinity: hard
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
        """Make phrases that are matched as whole words in the text of the tokens; see :func:`has_words`.

        Each phrase comes with its tokenizations.

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

        def condition(tokenizations: Sequence[Phrase], *, wanted: bool) -> Condition:
            texts = dict.fromkeys(text_of(tuple(phrase)) for phrase in tokenizations)

            def holds(tokens_BT: Tensor) -> Tensor:
                occurs = [any(has_words(text_of(tuple(row)), text) for text in texts) for row in tokens_BT.tolist()]
                return torch.tensor(occurs, dtype=torch.bool, device=tokens_BT.device) == wanted

            return holds

        conditions = [condition(tokenizations, wanted=True) for tokenizations in required]
        conditions += [condition(tokenizations, wanted=False) for tokenizations in forbidden]
        return cls(required, [phrase for tokenizations in forbidden for phrase in tokenizations], penalty, conditions)

    @property
    def hard(self) -> bool:
        """Whether the constraints are hard."""
        return self.penalty == math.inf

    def constrain(self, energy: Energy) -> Energy:
        """Add the phrases to an energy."""
        conditions = self.conditions
        if conditions is None:
            conditions = [*map(_one_of, self.required), *map(lacks, self.forbidden)]
        for condition in conditions:
            energy += constraint(condition, penalty=self.penalty)
        return energy


def has_words(text: str, phrase: str) -> bool:
    """Whether a phrase occurs in a text as whole words, not next to a letter, digit or accent.

    In scripts without blanks, it may occur anywhere. Blanks are single.

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
    """Whether a word continues across a place."""
    return 0 < place < len(text) and all(map(_makes_words, text[place - 1 : place + 1]))


def _makes_words(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character == "_"
    return unicodedata.category(character)[0] in "LMN" and not unicodedata.name(character, "").startswith(BLANKLESS)


def phrase_starts(
    model: MaskedModel, tokens_BT: Tensor, free_BT: Tensor, phrases: Phrases, **options: Any
) -> tuple[Tensor, Tensor]:
    """Make initial sequences by :func:`~seqwise.sampling.starts.dispersed_starts` that satisfy the phrases if possible.

    The first tokenization of a required phrase that fits is written. A start may break soft constraints; forbidden
    phrases are avoided only as hard constraints. Returns the sequences, and bool (B,): false where no start was found
    that satisfies hard constraints.
    """
    if phrases.hard:
        options |= {"forbidden": phrases.forbidden, "conditions": phrases.conditions}
    started_BT, found_B = tokens_BT, torch.zeros(len(tokens_BT), dtype=torch.bool, device=tokens_BT.device)
    for number in range(max(map(len, phrases.required), default=1)):
        required = [tokenizations[min(number, len(tokenizations) - 1)] for tokenizations in phrases.required]
        new_BT, fine_B = dispersed_starts(model, tokens_BT, free_BT, required=required, **options)
        started_BT, found_B = torch.where(found_B[:, None], started_BT, new_BT), found_B | fine_B
        if bool(found_B.all()):
            break
    if phrases.hard or bool(found_B.all()):
        return started_BT, found_B
    without_BT, _ = dispersed_starts(model, tokens_BT, free_BT, **options)
    return torch.where(found_B[:, None], started_BT, without_BT), torch.ones_like(found_B)


def _one_of(tokenizations: Sequence[Phrase]) -> Callable[[Tensor], Tensor]:
    return lambda tokens_BT: torch.stack([contains(*phrase)(tokens_BT) for phrase in tokenizations]).any(0)
