"""Languages of texts over the tokens of a Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from seqwise.hugging_face.tokens import decoded, special_ids
from seqwise.search.automata import Automaton, regular
from seqwise.search.grammars import Grammar, grammar
from seqwise.search.language import Language, allowed_tokens, nodes_along, require_output

NO_TEXT = "\ufffd"  # decoding of a part of a character


def token_texts(tokenizer: Any) -> tuple[dict[int, str], dict[int, str]]:
    """Return the text that each token adds after other tokens, and at the beginning, by id.

    Special tokens and tokens that are part of a character have none.

    Example:
        >>> from transformers import BertTokenizer
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s"]
        >>> token_texts(BertTokenizer(vocab={piece: place for place, piece in enumerate(pieces)}))
        ({5: ' dog', 6: 's'}, {5: 'dog', 6: '##s'})
    """
    special = special_ids(tokenizer)
    ids = [token for token in range(len(tokenizer)) if token not in special]
    first = {token: text for token in ids if NO_TEXT not in (text := decoded(tokenizer, [token]))}
    anchor, before = next(((token, text) for token, text in first.items() if text.strip()), (None, ""))
    texts = [] if anchor is None else [decoded(tokenizer, [anchor, token]) for token in ids]
    later = {
        token: text[len(before) :]
        for token, text in zip(ids, texts, strict=bool(texts))
        if text.startswith(before) and len(text) > len(before) and NO_TEXT not in text[len(before) :]
    }
    # A token that is only a blank decodes to nothing at the beginning, but may come first.
    return later, {token: text for token, text in first.items() if text or token in later}


def text_language(tokenizer: Any, pattern: str, *, end: int | None) -> Automaton:
    """Make the language of all tokens that decode to a text that a pattern matches.

    Needs the extra ``constraints`` (interegular). Characters that take several tokens are never written.

    Args:
        tokenizer: Hugging Face tokenizer.
        pattern: regular expression that must match the whole text, as in :func:`~seqwise.search.regular`.
        end: end token of the model.

    Raises:
        InputError: the pattern is invalid, or no sequence of tokens spells a match.

    Example: with ``model = step_model(GPT2LMHeadModel.from_pretrained(...))`` and its tokenizer,
        ``model.language = text_language(tokenizer, r'{"age": [1-9][0-9]?}', end=model.end)``.
    """
    later, first = token_texts(tokenizer)
    return regular(pattern, later, first=first, end=end)


def text_grammar(tokenizer: Any, source: str | Mapping[str, Any], *, end: int | None) -> Grammar:
    """Make the language of all tokens that decode to a text of a grammar or a JSON schema.

    Needs the extra ``constraints`` (llguidance). Characters that take several tokens are never written.

    Args:
        tokenizer: Hugging Face tokenizer.
        source: see :func:`~seqwise.search.grammar`.
        end: end token of the model.

    Raises:
        InputError: the grammar is invalid, no sequence of tokens was found that spells a text of it, or there is no end
            token.

    Example: with ``model = step_model(GPT2LMHeadModel.from_pretrained(...))`` and its tokenizer,
        ``model.language = text_grammar(tokenizer, {"type": "array", "items": {"type": "integer"}}, end=model.end)``.
    """
    later, first = token_texts(tokenizer)
    return grammar(source, later, first=first, end=end)


class InsideLanguage(LogitsProcessor):
    """Logits processor for one call of ``generate``, which masks the tokens that a language does not allow.

    Rows that have ended, or left the language, are not masked.

    Args:
        language: the allowed outputs, without the tokens that are already there at the first call.
        longest: number of tokens at which ``generate`` stops, those of the first call included.

    Raises:
        InputError: at the first call, if no output of the language fits.

    Example: ``model.generate(**inputs, max_length=20, logits_processor=[InsideLanguage(language, longest=20)])``
    """

    def __init__(self, language: Language, *, longest: int) -> None:
        self._language, self._longest = language, longest
        self._prompt_length: int | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask the scores (rows, V) of the next tokens."""
        if self._prompt_length is None:
            self._prompt_length = input_ids.shape[1]
            require_output(self._language, self._longest - self._prompt_length)
        *_, nodes_B1 = nodes_along(self._language, input_ids[:, self._prompt_length :])
        allowed_BC = self._language.allowed(nodes_B1, self._longest - input_ids.shape[1])[:, 0]
        return scores.masked_fill(~allowed_tokens(allowed_BC, scores.shape[1]), -torch.inf)
