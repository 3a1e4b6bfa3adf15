"""Data: file readers, tokenizers, batches, and a synthetic task."""

from __future__ import annotations

from seqwise.data.batches import IGNORE, Batch, EncodedExample, collate, encode_examples
from seqwise.data.fasta import read_fasta
from seqwise.data.readers import Example, read_columns, read_pairs, write_columns, write_pairs
from seqwise.data.subwords import join_pieces
from seqwise.data.synthetic import label_bias_toy
from seqwise.data.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from seqwise.data.vocabulary import Vocabulary

__all__ = [
    "IGNORE",
    "Batch",
    "EncodedExample",
    "Example",
    "Tokenizer",
    "Vocabulary",
    "collate",
    "encode_examples",
    "join_pieces",
    "label_bias_toy",
    "load_tokenizer",
    "read_columns",
    "read_fasta",
    "read_pairs",
    "save_tokenizer",
    "write_columns",
    "write_pairs",
]
