"""Real corpora of every format that the readers know: counts as published beside them, and a tiny training on one."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqwise.data import read_columns, read_pairs
from seqwise.runs import load_run, predict, train_settings
from seqwise.runs.decoder_choice import choose_decoder
from seqwise.runs.training import train_run

COLUMNS = [
    # file, label column, tokens, distinct labels at least
    ("supertag-ud-ewt/dev.tsv.gz", 1, 25_147, 400),
    ("supertag-erg/dev.tsv.gz", 1, 25_076, 400),
    ("supertag-ccg-pmb/en.dev.tsv", 1, 7_368, 100),
    ("ner-de-germeval14/dev.tsv", 1, 20_632, 9),
    ("ner-de-mobie/dev.tsv", 1, 13_209, 20),
]
PAIRS = [
    ("mt-de-en-tatoeba/valid.tsv.gz", "words", "words", 2_201),
    ("mt-ro-en-tatoeba/valid.tsv.gz", "words", "words", 673),
    ("g2p-en-sigmorphon21/eng_us_dev.tsv", "characters", "words", 4_168),
]


@pytest.mark.parametrize("name, column, tokens, labels", COLUMNS, ids=[row[0] for row in COLUMNS])
def test_columns_are_read_whole(corpora: Path, name: str, column: int, tokens: int, labels: int) -> None:
    examples = read_columns(corpora / name, label_column=column)
    assert sum(len(example.source) for example in examples) == tokens
    assert len({label for example in examples for label in example.target}) >= labels


@pytest.mark.parametrize("name, source, target, lines", PAIRS, ids=[row[0] for row in PAIRS])
def test_pairs_are_read_whole(corpora: Path, name: str, source: str, target: str, lines: int) -> None:
    assert len(read_pairs(corpora / name, source_units=source, target_units=target)) == lines


@pytest.mark.thorough
def test_a_tagger_learns_from_a_real_file(corpora: Path, tmp_path: Path) -> None:
    settings = train_settings(
        task="tag", train=corpora / "supertag-ccg-pmb/en.dev.tsv", label_column=1, encoder="left-to-right",
        hidden_size=32, embedding_size=32, objective="cross-entropy", epochs=20.0, learning_rate=5e-3, batch_size=32,
    )  # fmt: skip
    train_run(settings, tmp_path / "run")
    run = load_run(tmp_path / "run")
    examples = read_columns(corpora / "supertag-ccg-pmb/en.test.tsv", label_column=1)
    known = set(run.codec.target_vocabulary.tokens)
    examples = [example for example in examples if known.issuperset(example.target)][:200]
    found = predict(run, examples, choose_decoder(settings, "beam"))
    right = [
        a == b for example, best in zip(examples, found, strict=True)
        for a, b in zip(example.target, best[0].tokens, strict=True)
    ]  # fmt: skip
    gold = [label for example in examples for label in example.target]
    always_the_same = max(gold.count(label) for label in set(gold)) / len(gold)
    assert sum(right) / len(right) > always_the_same + 0.2
