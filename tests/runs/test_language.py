"""Runs in a language: ``--language`` in training and prediction, the saved language, and one line for what is none."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch

from command_line import Command, run_main
from seqwise import InputError
from seqwise.evaluation.entities import valid_transitions
from seqwise.runs import load_run, predict
from seqwise.runs.language import in_language
from seqwise.search import members
from seqwise.search.language import require_output

TINY = ["--hidden-size=8", "--embedding-size=8", "--label-embedding-size=4", "--batch-size=8", "--beam-size=3"]
SHORT = [*TINY, "--epochs=0.4", "--objective=cross-entropy"]
SPELLING = ["--task=transduce", "--source-units=characters", "--target-units=characters"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    sentence = "anna\tB-PER\nsees\tO\nnew\tB-LOC\nyork\tI-LOC\n"
    (folder / "train.conll").write_text("\n".join([sentence] * 16))
    words = ["".join(draw.choices("abc", k=draw.randint(2, 3))) for _ in range(24)]
    (folder / "train.tsv").write_text("".join(f"{word}\t{word.upper()}\n" for word in words))
    (folder / "catalogue.txt").write_text("".join(f"{word.upper()}\n" for word in sorted(set(words))) + "\n")
    return folder


@pytest.fixture(scope="module")
def tagger(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "tagger"
    inside = ["--language=bio", "--normalized-over=allowed"]
    run_main("train", "--train", data / "train.conll", *SHORT, *inside, "--output", run)
    return run


@pytest.fixture(scope="module")
def speller(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "speller"
    run_main("train", *SPELLING, "--train", data / "train.tsv", *SHORT, "--output", run)
    return run


def test_a_run_keeps_its_language(tagger: Path) -> None:
    """Untrained as it is, it writes well-formed entities only, by every decoder; without its language it does not."""
    run = load_run(tagger)
    assert run.settings.language == "bio" and run.settings.trained_score == "renormalized"
    follows, first, _ = valid_transitions(run.codec.target_vocabulary.tokens)
    ids = dict(zip(run.codec.target_vocabulary.tokens, range(9), strict=False))

    def is_well_formed(tokens: tuple[str, ...]) -> bool:
        places = [ids[token] for token in tokens]
        return first[places[0]] and all(follows[v][w] for v, w in itertools.pairwise(places))

    texts = ["anna", "new york sees", "york york york york york"]
    for decoder in ("greedy", "beam", "renormalized-beam", "raw-beam", "soft-beam"):
        outputs = [best.tokens for found in predict(run, texts, decoder, n_best=3) for best in found]
        assert all(map(is_well_formed, outputs))
    assert predict(run, texts)[0][0].score == predict(run, texts, "renormalized-beam")[0][0].score
    free = in_language(run, "")
    every = [best.tokens for found in predict(free, texts, "beam", n_best=3) for best in found]
    assert not all(map(is_well_formed, every))
    with pytest.raises(InputError, match="renormalized-beam"):
        predict(free, texts, "renormalized-beam")


def test_predict_stays_in_a_file_or_a_pattern(speller: Path, data: Path, seqwise: Command) -> None:
    catalogue = set((data / "catalogue.txt").read_text().split())
    for words in ("abc", "ccc", "b"):
        shown = seqwise("predict", speller, words, "--language", data / "catalogue.txt", "--json", "--n-best=3")
        found = [each["output"] for record in shown.records for each in record["outputs"]]
        assert len(found) > 1 and set(found) <= catalogue
    pytest.importorskip("interegular")
    shown = seqwise("predict", speller, "abc", "--language", "(AB|C)*B", "--json", "--n-best=3")
    found = [each["output"] for record in shown.records for each in record["outputs"]]
    assert found and all(text.endswith("B") and not set(text) - set("ABC") for text in found)


def test_evaluate_measures_inside(speller: Path, data: Path, seqwise: Command) -> None:
    free = seqwise("evaluate", speller, data / "train.tsv", "--decoder=beam", "--json")
    stay = ["--language", data / "catalogue.txt"]
    inside = seqwise("evaluate", speller, data / "train.tsv", "--decoder=beam", "--json", *stay)
    assert (free.code, inside.code) == (0, 0) and free.out != inside.out


@pytest.mark.parametrize(
    ("language", "says"),
    [
        ("bio", "language: bio is for taggers, which write labels; give a file or a pattern"),
        ("missing.txt", "missing.txt: no such file; check the name"),
    ],
)
def test_what_is_no_language_is_refused_in_a_line(speller: Path, seqwise: Command, language: str, says: str) -> None:
    assert seqwise("predict", speller, "abc", "--language", language).complaint == says


def test_outputs_that_cannot_be_written_are_named(speller: Path, seqwise: Command, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("AB\nAXB\n")
    refused = seqwise("predict", speller, "abc", "--language", tmp_path / "some.txt").complaint
    assert refused.startswith(f"{tmp_path / 'some.txt'}:2: ") and "'X" in refused
    (tmp_path / "blank.txt").write_text("\n\n")
    assert "has no output" in seqwise("predict", speller, "abc", "--language", tmp_path / "blank.txt").complaint


def test_gold_outside_is_named_by_its_line(data: Path, seqwise: Command, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("AB\n")
    command = ["train", *SPELLING, "--train", data / "train.tsv", *SHORT, "--language", tmp_path / "few.txt"]
    refused = seqwise(*command, "--output", tmp_path / "run").complaint
    assert refused.startswith(f"{data / 'train.tsv'}:") and "is not in the language" in refused
    assert not (tmp_path / "run" / "model").exists()


def test_renormalised_scores_need_a_language(data: Path, seqwise: Command, tmp_path: Path) -> None:
    command = ["train", "--train", data / "train.conll", *SHORT, "--normalized-over=allowed"]
    assert "language: renormalised scores" in seqwise(*command, "--output", tmp_path / "run").complaint


def test_entities_are_well_formed_in_both_schemes() -> None:
    labels = ["O", "B-A", "I-A", "E-A", "S-A", "I-B"]
    follows, first, last = valid_transitions(labels)
    assert [label for label, may in zip(labels, first, strict=True) if may] == ["O", "B-A", "S-A"]
    assert [label for label, may in zip(labels, last, strict=True) if may] == ["O", "E-A", "S-A"]
    after = {v: {w for w, may in zip(labels, row, strict=True) if may} for v, row in zip(labels, follows, strict=True)}
    assert after["B-A"] == after["I-A"] == {"I-A", "E-A"} and after["E-A"] == {"O", "B-A", "S-A"}
    assert after["I-B"] == {"I-B"}
    iob2, _, ends = valid_transitions(["O", "B-A", "I-A", "B-B"])
    assert iob2 == [[True, True, False, True], [True] * 4, [True] * 4, [True, True, False, True]] and all(ends)


def test_a_length_that_the_language_lacks_is_refused(tagger: Path) -> None:
    run = load_run(tagger)
    require_output(run.model.language, 3)
    one = in_language(load_run(tagger), "")
    assert one.model.language is None
    assert bool(members(run.model.language, torch.tensor([[0]])).numel())
