"""Subwords learnt here as a Hugging Face tokenizer, for a model that is made there from nothing."""

from __future__ import annotations

from typing import Any

from seqwise.data.subwords import UNKNOWN_PIECE, Subwords
from seqwise.data.tokenizer import END, Tokenizer, library_tokenizer
from seqwise.data.vocabulary import Vocabulary

PADDING = "<pad>"


def subword_tokenizer(subwords: Subwords) -> Any:
    """A ``PreTrainedTokenizerFast`` that splits text as ``seqwise.data.subwords.split_text`` does.

    Ids: 0 the unknown character, then the pieces in order, ``</s>`` and ``<pad>``. Every text ends in ``</s>``.

    Example:
        >>> from seqwise.data.subwords import learn_subwords
        >>> tokenizer = subword_tokenizer(learn_subwords(["low lower", "low"], size=9))
        >>> tokenizer("lower  low")["input_ids"], tokenizer.decode([9, 1, 4, 9, 10], skip_special_tokens=True)
        ([9, 1, 4, 9, 10], 'lower low')
        >>> len(tokenizer)
        12
    """
    from transformers import PreTrainedTokenizerFast

    vocabulary = Vocabulary(
        tuple(dict.fromkeys((UNKNOWN_PIECE, *subwords.pieces, END))), unknown=UNKNOWN_PIECE, end=END
    )
    tokenizer = library_tokenizer(Tokenizer(vocabulary, "subwords", subwords))
    tokenizer.add_special_tokens([PADDING])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN_PIECE, eos_token=END, pad_token=PADDING
    )
