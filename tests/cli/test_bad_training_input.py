"""Input that training cannot use: refused in one line before any work, and the output folder stays usable."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Command

COLUMNS = "the\tDET\ndog\tNOUN\n\na\tDET\ncat\tNOUN\n\n"
PAIRS = "ab\tB A\nba\tA B\n"
TINY = ["--hidden-size=4", "--embedding-size=4", "--batch-size=2", "--epochs=1"]
TRANSDUCE = ["--task=transduce", "--source-units=characters"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {
        "train.conll": COLUMNS * 2,
        "dev.conll": COLUMNS,
        "train.tsv": PAIRS * 2,
        "dev.tsv": PAIRS,
        "empty": "",
        "blank": "\n\n",
        "bare.conll": "the\ndog\n",
        "entities.conll": "the\tO\ndog\tB-PER\n",
        "sources.tsv": "ab\n",
        "greek.tsv": "αβ\tA B\n",
        "settings.yaml": "task: tag\ntrain: train.conll\nepochs: 1\nhidden_size: 4\nembedding_size: 4\nbatch_size: 2\n",
    }
    for name, content in contents.items():
        Path(name).write_text(content, encoding="utf-8")


DEVELOPMENT_DATA = {
    "missing.conll": "missing.conll: no such file; ",
    ".": ".: this is a directory; ",
    "empty": "empty: the file is empty; ",
    "blank": "blank: no sentence in the file; ",
    "bare.conll": "bare.conll:1: 1 column, where a token and its label are needed; ",
    "entities.conll": "entities.conll:1: the run knows none of the labels in this file (the first is 'O'); ",
    "dev.tsv": "dev.tsv:1: the run knows none of the labels in this file (the first is 'B A'); ",
}


@pytest.mark.parametrize("dev", DEVELOPMENT_DATA)
def test_development_data_that_a_tagger_cannot_use(seqwise: Command, dev: str) -> None:
    refused = seqwise("train", *TINY, "--train=train.conll", "--dev", dev, "--output=run")
    assert refused.complaint.startswith(DEVELOPMENT_DATA[dev]), refused.complaint
    require_the_folder_usable(seqwise, "train", *TINY, "--train=train.conll", "--dev=dev.conll")


@pytest.mark.parametrize(
    ("dev", "complaint"),
    [
        ("empty", "empty: the file is empty; "),
        ("dev.conll", "dev.conll:3: a blank line where a pair was expected; "),
        ("sources.tsv", "sources.tsv:1: 1 column where 2 were expected; "),
        ("greek.tsv", "greek.tsv:1: unknown token 'α'; "),
    ],
)
def test_development_data_that_a_transducer_cannot_use(seqwise: Command, dev: str, complaint: str) -> None:
    train = ["train", *TRANSDUCE, *TINY, "--train=train.tsv"]
    refused = seqwise(*train, "--dev", dev, "--output=run")
    assert refused.complaint.startswith(complaint), refused.complaint
    require_the_folder_usable(seqwise, *train, "--dev=dev.tsv")


# One that cannot be read, and one that does not fit the training data.
@pytest.mark.parametrize("dev", ["empty", "entities.conll"])
def test_development_data_that_tuning_cannot_use(seqwise: Command, dev: str) -> None:
    pytest.importorskip("optuna")
    refused = seqwise("tune", "settings.yaml", "--trials=1", "--dev", dev, "--output=run")
    assert refused.complaint.startswith(DEVELOPMENT_DATA[dev]), refused.complaint
    require_the_folder_usable(seqwise, "tune", "settings.yaml", "--trials=1", "--dev=dev.conll")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--dev=dev.conll", "--patience=0"], "patience must be at least 1, got 0"),
        (["--dev=dev.conll", "--patience=some"], "patience must be an integer, got 'some'"),
        (["--patience=3"], "patience: nothing is evaluated during training; give --dev FILE"),
        (["--dev=dev.conll", "--evaluate-every=0", "--patience=3"], "patience: nothing is evaluated during training; "),
        (["--dev=dev.conll", "--evaluate-every=-1"], "evaluate_every must be at least 0, got -1"),
        (["--evaluate-every=3"], "evaluate_every: there is no development data; give --dev FILE"),
        (["--dev=dev.conll", "--metric=bleu"], "no such option: --metric"),
    ],
)
def test_evaluations_that_cannot_be_made(seqwise: Command, flags: list[str], complaint: str) -> None:
    refused = seqwise("train", *TINY, "--train=train.conll", *flags, "--output=run")
    assert refused.complaint.startswith(complaint), refused.complaint
    assert not Path("run").exists()


def require_the_folder_usable(seqwise: Command, *arguments: str) -> None:
    """The same command with other data, into the same folder, goes through."""
    ended = seqwise(*arguments, "--output=run")
    assert ended.code == 0, ended.err
