"""Vocabularies, which map tokens to ids and back."""

from __future__ import annotations

import difflib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from seqwise.errors import InputError


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of V distinct tokens; the id of a token is its index in the tuple.

    Args:
        tokens: the tokens, including special ones.
        unknown: token for all others; without it, an unknown token is an error.
        end: token that ends a target; texts must not contain it.

    Raises:
        InputError: a repeated token, an entry that is not a string, no tokens, or a special token that is missing.

    Example:
        >>> labels = Vocabulary(("</s>", "DET", "NOUN"), end="</s>")
        >>> labels.encode(["DET", "NOUN"]), labels.end_id, len(labels)
        ([1, 2], 0, 3)
        >>> labels.decode([2, 1, 0])
        ['NOUN', 'DET', '</s>']
        >>> labels.encode(["NUON"], path="a.tsv", line=4)
        Traceback (most recent call last):
        ...
        seqwise.errors.InputError: a.tsv:4: unknown token 'NUON'; the nearest known token is 'NOUN'

    Not implemented: subwords; split text into them first.
    """

    # Not a WordLevel model of `tokenizers`: on words already split, that takes five times as long as this look-up,
    # drops empty labels, and its errors name neither file nor nearest token. `save_tokenizer` writes one.

    tokens: tuple[str, ...]
    unknown: str | None = None
    end: str | None = None

    def __post_init__(self) -> None:
        if not self.tokens:
            raise InputError("a vocabulary needs at least one token")
        for token, count in Counter(self.tokens).items():
            if not isinstance(token, str):
                raise InputError(f"the token {token!r} is not a string")
            if count > 1:
                raise InputError(f"the token {token!r} occurs {count} times in the vocabulary", hint="list it once")
        for name, special in (("unknown", self.unknown), ("end", self.end)):
            if special is not None and special not in self._ids:
                raise InputError(f"the {name} token {special!r} is not in the vocabulary", hint="add it to the tokens")
        if self.end is not None and self.end == self.unknown:
            raise InputError(f"{self.end!r} cannot be both the unknown and the end token", hint="rename one")

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def end_id(self) -> int | None:
        """The id of the end token, or None."""
        return None if self.end is None else self._ids[self.end]

    @property
    def unknown_id(self) -> int | None:
        """The id of the unknown token, or None."""
        return None if self.unknown is None else self._ids[self.unknown]

    def encode(
        self, tokens: Iterable[str], *, path: str | os.PathLike[str] | None = None, line: int | None = None
    ) -> list[int]:
        """Return the ids of tokens; ``path`` and ``line`` are for the error message.

        Raises:
            InputError: a token is not known and there is no unknown token, or the text holds the end token.

        Example:
            >>> Vocabulary(("?", "a"), unknown="?").encode("aba")
            [1, 0, 1]
        """
        fallback = self.unknown_id
        ids = []
        for token in tokens:
            index = self._ids.get(token, fallback)
            if index is None:
                problem = f"unknown token {token[:100]!r}"
                nearest = self._nearest(token)
                hint = "replace it" if nearest is None else f"the nearest known token is {nearest!r}"
                raise InputError(problem, path=path, line=line, hint=hint)
            if token == self.end:
                problem = f"the text holds {token!r}, which marks its end"
                raise InputError(problem, path=path, line=line, hint="remove it, or write it in another way")
            ids.append(index)
        return ids

    def _nearest(self, token: str) -> str | None:
        known = {name.casefold(): name for name in reversed(self.tokens) if name != self.end or len(self) == 1}
        if len(token) == 1:  # characters are alike only if they differ in accent or case
            plain = unicodedata.normalize("NFKD", token)[0].casefold()
            return known.get(token.casefold(), known.get(plain))
        close = difflib.get_close_matches(token[:100].casefold(), known, n=1, cutoff=0.0)
        return known[close[0]]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens of ids, including those from the end token on.

        Raises:
            InputError: an id outside [0, V), such as padding.
        """
        tokens = []
        for index in map(int, ids):
            if not 0 <= index < len(self.tokens):
                problem = f"the id {index} is outside the vocabulary of {len(self.tokens)}"
                raise InputError(problem, hint="cut padding off")
            tokens.append(self.tokens[index])
        return tokens

    @classmethod
    def build(
        cls,
        sequences: Iterable[Iterable[str]],
        *,
        minimum_count: int = 1,
        unknown: str | None = None,
        end: str | None = None,
    ) -> Vocabulary:
        """Build a vocabulary of frequent tokens: unknown, end, then by decreasing count, ties by code point.

        Args:
            sequences: token sequences to count.
            minimum_count: smallest count of a token in the vocabulary.
            unknown: unknown token, or None; it may occur in the sequences.
            end: end token, or None; it must not occur.

        Raises:
            InputError: no tokens are left, the end token occurs, or rare tokens are dropped without an unknown token.

        Example:
            >>> Vocabulary.build(["banana", "bb"], minimum_count=2, unknown="?", end="$").tokens
            ('?', '$', 'a', 'b', 'n')
        """
        counts = Counter(token for sequence in sequences for token in sequence)
        if end is not None and end in counts:
            raise InputError(f"the end token {end!r} occurs in the text", hint="remove it, or write it in another way")
        if minimum_count > 1 and unknown is None:
            raise InputError("rare tokens are dropped, but there is no unknown token", hint="name an unknown token")
        specials = [special for special in (unknown, end) if special is not None]
        kept = [token for token, count in counts.items() if count >= minimum_count and token not in specials]
        return cls((*specials, *sorted(kept, key=lambda token: (-counts[token], token))), unknown=unknown, end=end)
