"""Files to examples, tokens to ids, examples to batches; and tasks made up to be understood."""

from __future__ import annotations

from seqwise.data.batches import IGNORE, Batch, BucketBatchSampler, EncodedExample, collate, encode_examples
from seqwise.data.fasta import read_fasta
from seqwise.data.readers import (
    Example,
    read_columns,
    read_inputs,
    read_lines,
    read_pairs,
    require_aligned,
    write_atomically,
    write_columns,
    write_pairs,
)
from seqwise.data.subwords import (
    Subwords,
    join_pieces,
    learn_subwords,
    load_subwords,
    normalize_text,
    save_subwords,
    split_text,
)
from seqwise.data.synthetic import label_bias_toy, toy_ceilings
from seqwise.data.vocabulary import Vocabulary

__all__ = [
    "IGNORE",
    "Batch",
    "BucketBatchSampler",
    "EncodedExample",
    "Example",
    "Subwords",
    "Vocabulary",
    "collate",
    "encode_examples",
    "join_pieces",
    "label_bias_toy",
    "learn_subwords",
    "load_subwords",
    "normalize_text",
    "read_columns",
    "read_fasta",
    "read_inputs",
    "read_lines",
    "read_pairs",
    "require_aligned",
    "save_subwords",
    "split_text",
    "toy_ceilings",
    "write_atomically",
    "write_columns",
    "write_pairs",
]
