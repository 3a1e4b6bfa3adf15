"""Runs of taggers that read words by their characters, from the files to every command."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from command_line import Command, run_main
from seqwise.data import Example
from seqwise.errors import InputError
from seqwise.pages.explorer.questions import MOST_TOKENS, read_question
from seqwise.pages.explorer.searches import compare
from seqwise.runs import load_run, new_run, save_run, train_settings
from seqwise.runs.measures import unknown_sources
from seqwise.runs.pushing import card_of, upload_of
from seqwise.training.checkpoints import seal

pytestmark = pytest.mark.thorough

TINY = [
    "--hidden-size=12",
    "--embedding-size=4",
    "--label-embedding-size=4",
    "--epochs=12",
    "--objective=cross-entropy",
]


def write(path: Path, *, seed: int) -> Path:
    """No word comes twice, and its last letter is its label."""
    draw = random.Random(seed)
    words = ("".join(draw.choices("abcdefgh", k=5)) + draw.choice("xyz") for _ in range(300))
    lines = [f"{word}\t{word[-1].upper()}\n" + ("\n" if place % 5 == 4 else "") for place, word in enumerate(words)]
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("characters")
    files = ["--train", write(folder / "train", seed=0), "--dev", write(folder / "dev", seed=1)]
    # A chain has no embeddings of labels.
    of_chain = [flag for flag in TINY if not flag.startswith("--label-embedding")]
    for name, flags in {
        "words": ["--characters=no"],
        "lstm": ["--characters=yes"],
        "chain": ["--characters=yes", "--model=chain", "--encoder=left-to-right"],
    }.items():
        run_main("train", *files, *(of_chain if name == "chain" else TINY), *flags, "--output", folder / name)
    return folder


def test_training_says_that_it_reads_characters(tmp_path: Path, seqwise: Command) -> None:
    train = write(tmp_path / "train", seed=0)
    for flags, shown in (([], True), (["--characters", "no"], False)):
        ended = seqwise("train", "--train", train, *TINY, *flags, "--output", tmp_path / f"run{shown}")
        assert ended.code == 0 and ("over words and their characters" in ended.out) == shown


def accuracy(run: Path) -> float:
    decoders = json.loads((run / "metrics.json").read_text())["dev"]["decoders"]
    return float(decoders["greedy"]["accuracy"])


def test_words_that_training_data_lack_are_labelled(folder: Path) -> None:
    assert accuracy(folder / "words") < 0.5
    assert accuracy(folder / "lstm") > 0.95 and accuracy(folder / "chain") > 0.95


@pytest.mark.parametrize("name", ["lstm", "chain"])
def test_every_command_takes_the_run(name: str, folder: Path, seqwise: Command, tmp_path: Path) -> None:
    run, dev = folder / name, folder / "dev"
    ended = seqwise("predict", run, "hhhhhx hhhhhz aby")
    assert ended.code == 0 and ended.out.splitlines()[0].split()[2:] == ["X", "Z", "Y"]
    for command in (["evaluate", run, dev], ["diagnose", run, dev], ["report", run]):
        output = ["--output", tmp_path / "page.html"] if command[0] == "report" else []
        ended = seqwise(*command, *output)
        assert ended.code == 0, ended.err
    loaded = load_run(run)
    assert "characters: true" in card_of(run) and "characters/tokenizer.json" in upload_of(run, "ada/tagger").files
    again = ["train", "--init", run, "--train", dev, "--epochs=1", "--output", tmp_path / "more"]
    assert seqwise(*again).code == 0 and load_run(tmp_path / "more").codec == loaded.codec
    # Words count as known or unknown by themselves, and it is words that the explorer counts.
    assert "know 300 of 300 source tokens" in str(unknown_sources(loaded, [Example(("hhx",) * 300, ("X",) * 300)]))
    question = read_question(loaded, "hhhhhhhhx " * 50)
    assert {len(scored.tokens) for scored in compare(loaded, question, k=2, alpha=1.0)} == {50}
    with pytest.raises(InputError, match=f"has {MOST_TOKENS + 1} tokens"):
        read_question(loaded, "x " * (MOST_TOKENS + 1))


def test_a_character_that_training_data_lack_is_unknown(folder: Path) -> None:
    run = load_run(folder / "lstm")
    characters = run.codec.characters.vocabulary
    (encoded,) = run.codec.encode_sources([Example(("aЖ",), ())])
    assert encoded.source_ids[1:] == (*characters.encode("a"), characters.unknown_id)


def test_a_run_whose_characters_are_gone_is_refused(folder: Path, tmp_path: Path, seqwise: Command) -> None:
    run = new_run([Example(("ab", "b"), ("X", "Y"))] * 2, train_settings(characters=True, hidden_size=4))
    (tmp_path / "run").mkdir()
    save_run(run, tmp_path / "run")
    (tmp_path / "run" / "model" / "characters" / "tokenizer.json").unlink()
    seal(tmp_path / "run" / "model")
    assert "characters/tokenizer" in seqwise("predict", tmp_path / "run", "a").complaint


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task=transduce"], "characters: has no effect here; leave it out, or use"),
        (["--characters=some"], "characters must be true or false"),
    ],
)
def test_characters_are_refused_where_they_have_no_effect(flags: list[Any], message: str, seqwise: Command) -> None:
    ended = seqwise("train", "--train=x", "--characters=yes", *flags, "--output=y")
    assert ended.complaint.startswith(message)
