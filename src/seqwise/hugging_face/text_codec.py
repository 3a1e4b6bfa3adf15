"""Conversion between text and the tokens of a masked language model.

Encoding and decoding are not always inverse: a tokenizer may lower-case, drop accents and blanks, or split a word into
different pieces than those that were drawn. Ids are scored and sampled; :meth:`TextCodec.survives` tests whether the
text encodes to them.

Shapes: V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from seqwise.data.batches import FREE
from seqwise.errors import InputError
from seqwise.hugging_face.tokens import checked_text, decoded, special_around, special_ids


class TextCodec:
    """Codec between text and ids of free tokens, by a Hugging Face tokenizer, fast or slow, with a mask token.

    Example:
        >>> from transformers import BertTokenizer
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s"]
        >>> codec = TextCodec(BertTokenizer(vocab={word: place for place, word in enumerate(words)}), vocab_size=8)
        >>> codec.ids("The dogs"), codec.ids_to_fill("the [MASK]"), codec.text([5, 6, 7]), codec.before, codec.after
        ((5, 6, 7), (5, -1), 'the dogs', (2,), (3,))
    """

    def __init__(self, tokenizer: Any, *, vocab_size: int) -> None:
        if getattr(tokenizer, "mask_token", None) is None:
            raise InputError("the tokenizer has no mask token", hint="give that of a masked language model")
        self.tokenizer = tokenizer
        self.mask_id = int(tokenizer.mask_token_id)
        self.unknown_id: int | None = tokenizer.unk_token_id  # for unknown characters
        known = set(tokenizer.get_vocab().values())
        if max(known) >= vocab_size:
            raise InputError(
                f"the tokenizer has tokens up to {max(known)}, and the model scores {vocab_size}",
                hint="give the model's own tokenizer, or resize the model's embeddings",
            )
        self._special = special_ids(tokenizer)
        self.allowed_V = torch.zeros(vocab_size, dtype=torch.bool)  # known to the tokenizer and not special
        self.allowed_V[sorted(known - self._special)] = True
        if self.mask_id not in self._encode(tokenizer.mask_token):
            raise InputError("the tokenizer does not encode its mask token as one token", hint="give another tokenizer")
        self.before, self.after = special_around(tokenizer, tokenizer.mask_token)

    def ids(self, text: str) -> tuple[int, ...]:
        """Return the free tokens of a text, at least one; raise an InputError for a special token in the text."""
        ids = self._tokens(text)
        self.require_whole(ids)
        return ids

    def ids_to_fill(self, text: str) -> tuple[int, ...]:
        """Return the free tokens of a text, FREE at mask tokens; raise an InputError for any other special token."""
        ids = self._tokens(text)
        self._require_no_special(ids)
        return tuple(FREE if token == self.mask_id else token for token in ids)

    def require_whole(self, ids: Sequence[int]) -> None:
        """Raise an InputError for a mask or another special token among the ids of a text."""
        self._require_no_special(ids)
        if self.mask_id in ids:
            mask = self.tokenizer.mask_token
            raise InputError(f"the text contains the mask token {mask}", hint="give whole texts, or use infill")

    def _tokens(self, text: str) -> tuple[int, ...]:
        ids = self._encode(checked_text(text))
        if not ids:
            raise InputError("the text has no token", hint="fill it in or drop it")
        return ids

    def _require_no_special(self, ids: Sequence[int]) -> None:
        written = next((token for token in ids if token in self._special - {self.mask_id, self.unknown_id}), None)
        if written is not None:
            piece = self.tokenizer.convert_ids_to_tokens(written)
            hint = "leave it out; special tokens are put around the text"
            raise InputError(f"the text contains the special token {piece}", hint=hint)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return the tokens as in the vocabulary."""
        return tuple(self.tokenizer.convert_ids_to_tokens(list(ids)))

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens: the first of several spellings that encodes to the same tokens.

        It tries the tokenizer's text without blanks (residues of a protein), without blanks before punctuation marks,
        and unchanged; if none :meth:`survives`, it returns the last.
        """
        plain = self.plain(ids)
        ways = (plain.replace(" ", ""), re.sub(r" ([.,;:!?])", r"\1", plain), plain)
        return next((way for way in ways if self.survives(way, ids)), plain)

    def survives(self, text: str, ids: Sequence[int]) -> bool:
        """Whether a text encodes to exactly these tokens."""
        return self._encode(text) == tuple(ids)

    def filled(self, text: str, ids: Sequence[int]) -> str:
        """Fill in the mask tokens of a text; the rest stays as written, if that gives the same tokens.

        Otherwise it is the :meth:`text` of all tokens; ``ids`` are all tokens, including the drawn ones.
        """
        places = [place for place, own in enumerate(self.ids_to_fill(text)) if own == FREE]
        written, *rest = text.split(self.tokenizer.mask_token)
        for place, after in zip(places, rest, strict=True):
            piece = self.plain([ids[place]])
            if place > 0:
                before, both = self.plain(ids[place - 1 : place]), self.plain(ids[place - 1 : place + 1])
                # The token continues a word. (A preceding token may be SentencePiece's blank alone, which is no word.)
                if before and both.startswith(before) and not both.startswith(" ", len(before)):
                    written, piece = written.rstrip(" "), both[len(before) :]
            # A token that begins a word may include its blank.
            written += (piece[1:] if written.endswith(" ") and piece.startswith(" ") else piece) + after
        return written if self.survives(written, ids) else self.text(ids)

    def phrase(self, text: str) -> tuple[tuple[int, ...], ...]:
        """Return the tokenizations of a phrase: after a blank, and at the beginning or after another character.

        Raises an InputError for a phrase without tokens, or with one that is never proposed.
        """
        ways = tuple(dict.fromkeys(self.ids(way) for way in (f" {text}", text)))
        for ids in ways:
            for piece, token in zip(self.pieces(ids), ids, strict=True):
                if self.allowed_V[token]:
                    continue
                problem = f"the phrase {text!r} holds {piece!r}, which is never drawn"
                if token == self.unknown_id:
                    problem = f"the phrase {text!r} contains an unknown token"
                raise InputError(problem, hint="choose words that the model can produce")
        return ways

    def _encode(self, text: str) -> tuple[int, ...]:
        encoded = self.tokenizer(text, add_special_tokens=False, padding=False, truncation=False, verbose=False)
        return tuple(encoded["input_ids"])

    def plain(self, ids: Sequence[int]) -> str:
        """Return the tokenizer's text of some tokens, with a blank between tokens that are separate words."""
        return decoded(self.tokenizer, ids)
