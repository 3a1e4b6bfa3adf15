"""Files to examples, tokens to ids, examples to batches; and tasks made up to be understood."""

from __future__ import annotations

from seqwise.data.batches import IGNORE, Batch, BucketBatchSampler, EncodedExample, collate, encode_examples
from seqwise.data.enumerable import (
    Enumerable,
    empirical_weights,
    every_sequence,
    hidden_markov,
    palindrome_entropy,
    palindromes,
    phoneme_sequences,
    sequence_numbers,
    thesis_hmm,
)
from seqwise.data.fasta import read_fasta
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
    "Enumerable",
    "Example",
    "Positions",
    "Sentence",
    "Subwords",
    "Vocabulary",
    "build_vocabulary",
    "collate",
    "empirical_weights",
    "encode_examples",
    "every_sequence",
    "gather_positions",
    "hidden_markov",
    "join_pieces",
    "label_bias_toy",
    "learn_subwords",
    "load_subwords",
    "normalize_text",
    "palindrome_entropy",
    "palindromes",
    "phoneme_sequences",
    "read_columns",
    "read_fasta",
    "read_inputs",
    "read_lexicon",
    "read_lines",
    "read_pairs",
    "read_sentences",
    "read_spelling",
    "read_stress",
    "require_aligned",
    "save_subwords",
    "sequence_numbers",
    "split_by_hash",
    "split_text",
    "stream_positions",
    "thesis_hmm",
    "toy_ceilings",
    "write_atomically",
    "write_columns",
    "write_pairs",
]
