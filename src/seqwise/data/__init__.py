"""Files to examples, tokens to ids, examples to batches; and tasks made up to be understood."""

from __future__ import annotations

from seqwise.data.batches import IGNORE, Batch, BucketBatchSampler, EncodedExample, collate, encode_examples
from seqwise.data.lexicons import read_lexicon, read_spelling, read_stress, split_by_hash
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
from seqwise.data.synthetic import label_bias_toy, toy_ceilings
from seqwise.data.vocabulary import Vocabulary

__all__ = [
    "IGNORE",
    "Batch",
    "BucketBatchSampler",
    "EncodedExample",
    "Example",
    "Vocabulary",
    "collate",
    "encode_examples",
    "label_bias_toy",
    "read_columns",
    "read_inputs",
    "read_lexicon",
    "read_lines",
    "read_pairs",
    "read_spelling",
    "read_stress",
    "require_aligned",
    "split_by_hash",
    "toy_ceilings",
    "write_atomically",
    "write_columns",
    "write_pairs",
]
