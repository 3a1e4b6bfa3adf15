"""Files to examples, tokens to ids, examples to batches; and tasks made up to be understood."""

from __future__ import annotations

from seqwise.data.batches import (
    IGNORE,
    Batch,
    BucketBatchSampler,
    EncodedExample,
    TokenBatchSampler,
    collate,
    encode_examples,
)
from seqwise.data.durable import write_atomically
from seqwise.data.fasta import read_fasta
from seqwise.data.readers import (
    Example,
    read_columns,
    read_inputs,
    read_lines,
    read_pairs,
    require_aligned,
    write_columns,
    write_pairs,
)
from seqwise.data.subwords import Subwords, join_pieces, learn_subwords, normalize_text, split_text
from seqwise.data.synthetic import label_bias_toy, toy_ceilings
from seqwise.data.tokenizer import Tokenizer, load_tokenizer, reading_tokenizer, save_tokenizer, writing_tokenizer
from seqwise.data.vocabulary import Vocabulary

__all__ = [
    "IGNORE",
    "Batch",
    "BucketBatchSampler",
    "EncodedExample",
    "Example",
    "Subwords",
    "TokenBatchSampler",
    "Tokenizer",
    "Vocabulary",
    "collate",
    "encode_examples",
    "join_pieces",
    "label_bias_toy",
    "learn_subwords",
    "load_tokenizer",
    "normalize_text",
    "read_columns",
    "read_fasta",
    "read_inputs",
    "read_lines",
    "read_pairs",
    "reading_tokenizer",
    "require_aligned",
    "save_tokenizer",
    "split_text",
    "toy_ceilings",
    "write_atomically",
    "write_columns",
    "write_pairs",
    "writing_tokenizer",
]
