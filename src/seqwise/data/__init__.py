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
from seqwise.data.streams import (
    BEFORE,
    Positions,
    Sentence,
    build_vocabulary,
    gather_positions,
    read_sentences,
    stream_positions,
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
    "BEFORE",
    "IGNORE",
    "Batch",
    "BucketBatchSampler",
    "EncodedExample",
    "Example",
    "Positions",
    "Sentence",
    "Subwords",
    "Vocabulary",
    "build_vocabulary",
    "collate",
    "encode_examples",
    "gather_positions",
    "join_pieces",
    "label_bias_toy",
    "learn_subwords",
    "load_subwords",
    "normalize_text",
    "read_columns",
    "read_inputs",
    "read_lexicon",
    "read_lines",
    "read_pairs",
    "read_sentences",
    "read_spelling",
    "read_stress",
    "require_aligned",
    "save_subwords",
    "split_by_hash",
    "split_text",
    "stream_positions",
    "toy_ceilings",
    "write_atomically",
    "write_columns",
    "write_pairs",
]
