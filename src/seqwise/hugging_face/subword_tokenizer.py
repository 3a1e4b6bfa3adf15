"""Subwords learnt here as a tokenizer of transformers, for a model that is made there from nothing."""

from __future__ import annotations

from typing import Any

from seqwise.data.subwords import BLANK, UNKNOWN_PIECE, Subwords

__all__ = ["subword_tokenizer"]

END, PADDING = "</s>", "<pad>"


def subword_tokenizer(subwords: Subwords) -> Any:
    """A tokenizer of transformers that splits text as :func:`~seqwise.data.subwords.split_text` does.

    Ids: 0 the unknown character, then the pieces in order, ``</s>`` and ``<pad>``. Every text ends in ``</s>``.

    Args:
        subwords: as learnt by :func:`~seqwise.data.subwords.learn_subwords`.

    Returns:
        A ``PreTrainedTokenizerFast``, which is saved and loaded as any other.

    Raises:
        InputError: ``tokenizers`` is not installed.

    Example:
        >>> import pytest
        >>> _ = pytest.importorskip("tokenizers")
        >>> from seqwise.data.subwords import learn_subwords
        >>> tokenizer = subword_tokenizer(learn_subwords(["low lower", "low"], size=9))
        >>> tokenizer("lower  low")["input_ids"], tokenizer.decode([9, 1, 4, 9, 10], skip_special_tokens=True)
        ([9, 1, 4, 9, 10], 'lower low')
        >>> len(tokenizer)
        12
    """
    splitter = subwords.tokenizer  # which says so where the library is missing
    from tokenizers import Regex, Tokenizer, decoders, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(splitter.to_str())
    tokenizer.add_special_tokens([END, PADDING])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(rf"[\s{BLANK}]+"), " "), normalizers.Strip()]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    ending = [(END, tokenizer.token_to_id(END))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=ending)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN_PIECE, eos_token=END, pad_token=PADDING
    )
