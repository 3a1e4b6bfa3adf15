"""Tokens of a text with their characters and words, for any Hugging Face tokenizer, fast or slow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from seqwise.errors import InputError
from seqwise.names import WordsName
from seqwise.sampling.scores import Span, located


class TextTokens(NamedTuple):
    """Free tokens of a text: ids, their characters without and with blanks, and the numbers of their words."""

    ids: tuple[int, ...]
    spans: tuple[Span | None, ...]
    words: tuple[int, ...]  # nondecreasing
    offsets: tuple[Span | None, ...]  # as the tokenizer returns them: with blanks, or not


def text_tokens(tokenizer: Any, text: str, *, words: WordsName = "tokenizer", target: bool = False) -> TextTokens:
    """Split a text, without special tokens.

    Words are those of a fast tokenizer's pre-tokenization. Without it, a word ends where the tokenizer writes a blank
    between tokens; ``words="blanks"`` uses the blanks of the text, whitespace of any kind, which are no words.

    Args:
        tokenizer: fast or slow.
        text: text to split.
        words: definition of word boundaries.
        target: whether to read the text as output of an encoder-decoder.

    Raises:
        InputError: it is not text, or has no tokens.

    Example:
        >>> from transformers import BertTokenizer
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "."]
        >>> tokenizer = BertTokenizer(vocab={piece: place for place, piece in enumerate(pieces)})
        >>> text_tokens(tokenizer, "The dogs.")
        TextTokens(ids=(5, 6, 7, 8), spans=((0, 3), (4, 7), (7, 8), (8, 9)), words=(0, 1, 1, 2), \
offsets=((0, 3), (4, 7), (7, 8), (8, 9)))
        >>> text_tokens(tokenizer, "The dogs.", words="blanks").words
        (0, 1, 1, 1)
    """
    checked_text(text)
    fast = bool(getattr(tokenizer, "is_fast", False))
    options: dict[str, Any] = {"add_special_tokens": False, "padding": False, "truncation": False, "verbose": False}
    options |= {"text_target" if target else "text": text, "return_offsets_mapping": fast}
    encoded = tokenizer(**options)
    ids = tuple(encoded["input_ids"])
    if not ids:
        raise InputError("the text has no token", hint="fill it in or drop it")
    pieces = [] if fast else [decoded(tokenizer, [token]).strip() for token in ids]
    spans = _trimmed(text, encoded["offset_mapping"]) if fast else located(pieces, text)
    numbers = encoded.word_ids() if fast and tokenizer.backend_tokenizer.pre_tokenizer is not None else None
    known = [span for span in spans if span is not None]
    if words == "blanks" and len(known) == len(ids):
        begins = _apart(text, known)
    elif numbers is not None and words == "tokenizer":
        begins = [
            place > 0 and (number is None or number != numbers[place - 1]) for place, number in enumerate(numbers)
        ]
    else:
        begins = _written_apart(tokenizer, ids)
    offsets = tuple(encoded["offset_mapping"]) if fast else spans
    return TextTokens(ids, spans, tuple(accumulate(begins, initial=0))[1:], offsets)


def checked_text(text: Any) -> str:
    """Return a text that a tokenizer can read; raise an InputError for anything else."""
    if not isinstance(text, str):
        raise InputError(f"a text was expected, got {type(text).__name__}", hint="give a list of str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"character {error.start + 1} of a text is half of a surrogate pair"
        raise InputError(problem, hint="drop the lone surrogate") from None
    return text


def special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of special tokens: those with a role, and those that were added as special."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(token for token, entry in added.items() if entry.special)}


def special_around(tokenizer: Any, text: str = "a", *, target: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special tokens that a tokenizer adds before and after a text."""
    name = "text_target" if target else "text"
    encoded, plain = (
        tokenizer(**{name: text, "add_special_tokens": special, "verbose": False})["input_ids"]
        for special in (True, False)
    )
    starts = [place for place in range(len(encoded)) if encoded[place : place + len(plain)] == plain]
    if not plain or not starts:
        raise InputError("the tokenizer does not put its special tokens around a text", hint="give another tokenizer")
    return tuple(encoded[: starts[0]]), tuple(encoded[starts[0] + len(plain) :])


def before_targets(tokenizer: Any, forced_first: int | None) -> tuple[int, ...]:
    """Return the special tokens before every target: those of the tokenizer, after the forced one if it differs."""
    around, _ = special_around(tokenizer, target=True)
    return around if forced_first is None or forced_first in around else (forced_first, *around)


def _trimmed(text: str, offsets: Sequence[Span]) -> tuple[Span | None, ...]:
    """Strip blanks at both ends of a token."""
    spans = []
    for start, end in offsets:
        part = text[start:end]
        inner = part.strip()
        first = start + len(part) - len(part.lstrip()) if inner else end
        spans.append((first, first + len(inner)))
    return tuple(spans)


def _apart(text: str, spans: Sequence[Span]) -> list[bool]:
    """Mark the tokens that begin a word; those that are only blanks belong to the word after them, or else before."""
    begins, last_end, first_blank = [False] * len(spans), len(text), None
    for place, (start, end) in enumerate(spans):
        if start == end:
            first_blank = place if first_blank is None else first_blank
            continue
        begins[place if first_blank is None else first_blank] = text[last_end:start].isspace()
        last_end, first_blank = end, None
    return begins


def _written_apart(tokenizer: Any, ids: Sequence[int]) -> list[bool]:
    """Mark the tokens before which the tokenizer writes a blank; tokens that are only blanks belong to words before.

    A part of a character decodes to nothing, but begins a word after a token that is a blank.
    """
    begins, last, after_blank = [False] * len(ids), None, False
    for place, token in enumerate(ids):
        text = decoded(tokenizer, [token])
        if text.isspace():
            after_blank = True
        elif text.strip() or after_blank or last is None:
            if last is not None:
                between = decoded(tokenizer, ids[last : place + 1]).strip()
                begins[place] = after_blank or any(sign.isspace() for sign in between)
            last, after_blank = place, False
    return begins


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the tokenizer's text of some tokens, without the clean-up, which some refuse and others cannot undo."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
