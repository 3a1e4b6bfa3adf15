"""The summary before training and the verdict after it: counted by hand, and each rule tried on both sides."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from command_line import Command
from run_folders import json_lines
from seqwise.data import Example
from seqwise.data.summary import most_frequent_labels, most_frequent_outputs, summarize, wrong_label_column
from seqwise.data.synthetic import label_bias_toy
from seqwise.runs import train_settings
from seqwise.runs.training_summary import Baseline, below, loss_warnings
from seqwise.training import trainer

SENTENCES = [
    Example(("the", "cat", "saw", "the", "dog"), ("DET", "NOUN", "VERB", "DET", "NOUN")),
    Example(("the", "saw"), ("DET", "NOUN")),
    Example(("dog",), ("VERB",)),
]


def test_examples_are_counted() -> None:
    found = summarize(SENTENCES)
    assert (found.examples, found.source_tokens, found.target_tokens) == (3, 8, 8)
    assert (found.source_types, found.target_types) == (4, 3)
    assert (found.longest_source, found.longest_target) == (5, 5)
    assert found.unseen_source_tokens is None and found.unseen_target_tokens is None
    dev = summarize([Example(("a", "cat", "a"), ("DET", "NOUN", "ADV"))], train=SENTENCES)
    assert (dev.unseen_source_tokens, dev.unseen_target_tokens) == (2, 1)


def test_baselines_predict_the_most_frequent_outputs() -> None:
    asked = [Example(("the", "saw", "bird"), ()), Example(("dog",), ())]
    # saw: VERB first of two equals; dog: NOUN first; the most frequent label is DET, first of two with three each.
    assert most_frequent_labels(SENTENCES, asked) == [("DET", "VERB", "DET"), ("NOUN",)]
    pairs = [Example(("a",), (x,)) for x in "XYY"] + [Example(("b",), ("X",)), Example(("c",), ("X",))]
    assert most_frequent_outputs(pairs, [Example((x,), ()) for x in "abd"]) == [("Y",), ("X",), ("X",)]


def text(count: int) -> list[Example]:
    """Sentences of five words, half of which occur once, as words do, with a part of speech and a lemma."""
    words = [f"w{place if place % 2 else place % 20}" for place in range(5 * count)]
    return [Example(tuple(words[at : at + 5]), ("DET", "ADJ", "NOUN", "VERB", "ADV")) for at in range(0, len(words), 5)]


def test_labels_of_the_right_column_give_no_warning() -> None:
    toy = label_bias_toy(1200, length=6, generator=torch.Generator().manual_seed(0))
    for right in (toy, toy[:10], text(200), text(10)):
        assert wrong_label_column(right) is None
    many = [Example((str(place % 7),) * 3, (str(place % 30), "A", "B")) for place in range(300)]
    assert wrong_label_column(many) is None  # more labels than tokens that differ, each of them many times
    copied = [Example(("a", "b", "c"), ("A", "B", "C"))] * 100
    assert wrong_label_column(copied) is None  # few labels, which happen to be the tokens


def test_labels_of_a_wrong_column_are_warned_of() -> None:
    right = text(200)
    swapped = [Example(one.target, one.source) for one in right]
    assert "seen once" in (wrong_label_column(swapped + swapped[:1] * 20) or "")
    lemmas = [Example(one.source, tuple(word.upper() for word in one.source)) for one in right]
    lemmas += [Example(("w1",), ("W1",))] * 1000  # words that recur, so that labels are far fewer than tokens
    assert "labels equal their token" in (wrong_label_column(lemmas) or "")
    numbered = [Example(one.source, ("1", "2", "3", "4", "5")) for one in right]
    assert "count the tokens" in (wrong_label_column(numbered) or "")
    all_differ = [Example(one.source, tuple(f"{place}{n}" for n in one.source)) for place, one in enumerate(right)]
    assert "1,000 different labels" in (wrong_label_column(all_differ) or "")


# -------------------------------------------------------------------------------------- the start of a training run


TRAIN = "a\tX\na\tX\nb\tY\n\na\tY\nc\tY\n\n"
DEV = "a\tX\nb\tX\nd\tY\ne\tX\n\n"
TINY = ["--hidden-size=4", "--embedding-size=4", "--label-embedding-size=2", "--batch-size=1", "--minimum-count=1"]


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    (tmp_path / "train.conll").write_text(TRAIN)
    (tmp_path / "dev.conll").write_text(DEV.replace("d", "c").replace("e", "c"))
    return ["train", "--train", tmp_path / "train.conll", "--output", tmp_path / "run", *TINY]


@pytest.mark.thorough
def test_training_starts_with_a_summary(files: list[object], tmp_path: Path, seqwise: Command) -> None:
    ended = seqwise(
        *files, "--dev", tmp_path / "dev.conll", "--encoder=left-to-right", "--epochs=2", "--warm-start-epochs=5"
    )
    assert ended.code == 0, ended.err
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (found["train"]["examples"], found["train"]["source_tokens"], found["train"]["target_types"]) == (2, 5, 2)
    assert (found["dev"]["source_tokens"], found["dev"]["unseen_source_tokens"]) == (4, 0)
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert found["parameters"] == sum(weight.numel() for weight in weights.values())
    stages = [(stage["name"], stage["objective"], stage["steps"]) for stage in found["stages"]]
    warm = [("warm start", "cross-entropy", 10), ("scheduled sampling", "scheduled-sampling", 5)]
    assert stages == [*warm, ("training", "beam-crf", 4)]
    assert found["auto"] == "beam-crf with global scores"
    # a: X of three; b: Y; c: Y. Of the gold labels X, X, Y, X the first and the third are right.
    assert found["baseline"]["title"] == "accuracy" and found["baseline"]["measures"]["accuracy"] == 0.5
    lines = [*ended.out.partition("trained for")[0].splitlines(), *ended.err.splitlines()]
    assert max(map(len, lines)) <= 80
    begun = "\n".join(lines)
    for said in (
        "2 sentences, 5 tokens (3 different), 2 labels",
        "beam-crf, at most 2 epochs, 4 steps",
        "accuracy 50.0% on",
    ):
        assert said in begun
    # A line may break wherever the numbers before it end.
    assert "nats per label, + 0.1 x cross-entropy" in " ".join(ended.out.split())


def test_the_baseline_of_a_transducer_is_on_development_data(tmp_path: Path, seqwise: Command) -> None:
    (tmp_path / "train").write_text("a b\tX\nc\tY Z\nd\tY Z\n")
    (tmp_path / "dev").write_text("a b\tX\na b\tW\ne\tX\nf\tY Z\n")
    train = ["train", "--task=transduce", "--train", tmp_path / "train", *TINY[:2], "--epochs=1", "--output"]
    for name, flags in (("with", ["--dev", tmp_path / "dev"]), ("without", [])):
        assert seqwise(*train, tmp_path / name, "--minimum-count=2", *flags).code == 0
    found = json.loads((tmp_path / "with" / "summary.json").read_text())["baseline"]
    # Of three sources, e alone is answered wrongly: with Y Z, the most frequent output.
    assert found["measures"]["word error"] == pytest.approx(1 / 3)
    assert json.loads((tmp_path / "without" / "summary.json").read_text())["baseline"] is None


def test_training_a_masked_model_starts_with_a_summary(tmp_path: Path, seqwise: Command) -> None:
    train, dev, run = tmp_path / "train.txt", tmp_path / "dev.txt", tmp_path / "run"
    train.write_text("a b\na b a\na c\n" * 10)
    dev.write_text("a b\na d\n")
    flags = ("--hidden-size=8", "--num-layers=1", "--num-heads=1", "--batch-size=30", "--learning-rate=1e-9")
    ended = seqwise("masked-model", "train", train, "--dev", dev, *flags, "--epochs=1", "--output", run)
    shown = " ".join(ended.out.split())
    assert "train 30 sequences, 70 tokens (3 different) dev 2 sequences, 4 tokens (3 different); 25.0% unseen" in shown
    assert "stage 1 cross-entropy of masked tokens, at most 1 epoch, 1 step; loss: nats per masked token" in shown
    # a: 40 of 70, b: 20; one is added to the count of each of a, b, c and of any other token
    perplexity = (74**4 / (41 * 21 * 41 * 1)) ** 0.25
    method = "each token's frequency in the training data"
    assert f"baseline pseudo-perplexity {perplexity:.4g} on dev by {method}" in shown
    metrics = json.loads((run / "metrics.json").read_text())
    reached = metrics["dev"]["pseudo_perplexity"]
    assert ("below the baseline" in metrics["warnings"]) == (reached > perplexity)
    assert json.loads((run / "summary.json").read_text())["task"] == "masked"


def test_the_summary_of_a_masked_model_counts_rare_words(tmp_path: Path, seqwise: Command) -> None:
    train, dev, run = tmp_path / "train.txt", tmp_path / "dev.txt", tmp_path / "run"
    train.write_text("a b\n" * 10 + "a e\na f\n")
    dev.write_text("a e\na g\n")
    flags = ("--hidden-size=8", "--num-layers=1", "--num-heads=1", "--batch-size=30", "--minimum-count=2")
    ended = seqwise("masked-model", "train", train, "--dev", dev, *flags, "--epochs=1", "--output", run)
    shown = " ".join(ended.out.split())
    assert "train 12 sequences, 24 tokens (4 different) dev 2 sequences, 4 tokens (3 different); 25.0% unseen" in shown
    assert "parameters, a vocabulary of 2 " in shown and "trained for 1 step on 12 examples; mean loss" in shown
    assert "2 sequences of 4 tokens (2 unknown)" in shown


def test_a_masked_model_of_pairs_counts_its_sources(tmp_path: Path, seqwise: Command) -> None:
    (tmp_path / "pairs.tsv").write_text("x y\ta\nx\ta b\n" * 4)
    flags = ("--format=pairs", "--hidden-size=8", "--num-layers=1", "--num-heads=1", "--epochs=1")
    ended = seqwise("masked-model", "train", tmp_path / "pairs.tsv", *flags, "--output", tmp_path / "run")
    shown = " ".join(ended.out.split())
    assert "train 8 pairs, 12 source tokens (2 different), 12 target tokens (2 different)" in shown
    assert "stopping no early stopping without --dev" in shown and "on train by each token's" in shown


@pytest.mark.parametrize("kind", ["tagger", "masked model"])
def test_without_development_data_the_last_losses_are_shown(kind: str, tmp_path: Path, seqwise: Command) -> None:
    (tmp_path / "train").write_text("a\tX\nb\tY\n\na\tX\n\n" if kind == "tagger" else "a b\na b a\n")
    flags = ["--hidden-size=4", "--batch-size=1", "--minimum-count=1", "--epochs=5", "--output", tmp_path / "run"]
    train = {"tagger": ["train", "--train"], "masked model": ["masked-model", "train", "--num-heads=1"]}[kind]
    ended = seqwise(*train, tmp_path / "train", *flags)
    log = [line["loss"] for line in json_lines(tmp_path / "run" / "log.jsonl")]
    before, last = ((log[at] + log[at + 1]) / 2 for at in (6, 8))
    change = f"{'fell' if last < before else 'rose'} from {before:.4g} to {last:.4g} in the last two fifths"
    assert f"fixed number of steps, not evaluated during training: the loss {change}" in " ".join(ended.out.split())


def test_a_constant_loss_did_not_rise(tmp_path: Path, seqwise: Command) -> None:
    (tmp_path / "train").write_text("a\tX\n\nb\tX\n")  # one label, of probability 1
    ended = seqwise("train", "--train", tmp_path / "train", "--epochs=2", "--output", tmp_path / "run")
    assert "the loss stayed at 0 in the last two fifths" in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("patience", "earliest"), [(None, [4, 23, 22, 11, 0]), (1, [1, 0, 0, 0, 0]), (2, [3, 12, 11, 0, 0])]
)
def test_the_time_left_counts_the_measurements_to_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patience: int | None, earliest: list[int]
) -> None:
    """The earliest end is ``patience`` measurements after the best one, which is none or the first here."""
    now, seen = [0.0], list[trainer.Progress]()
    monkeypatch.setattr(trainer.time, "monotonic", lambda: now[0])

    def measure(values: Mapping[str, float]) -> dict[str, float]:
        now[0] += 10
        return {"accuracy": 0.5}

    taken: Any = SimpleNamespace(loss=0.5, gradient_norm=1.0, values={}, measured={}, log_file=io.StringIO())
    taken.args = SimpleNamespace(output_dir=tmp_path / "checkpoints", max_steps=7)
    after = trainer._AfterStep(taken, measure, 2, patience, seen.append)
    for step in range(3, 8):  # resumed after step 2
        now[0] += 1
        after.on_step_end(taken.args, SimpleNamespace(global_step=step, best_global_step=None), None)
    assert [step.seconds_left for step in seen] == [4, 3 + 2 * 10, 2 + 2 * 10, 1 + 10, 0]
    assert [step.earliest_end for step in seen] == earliest
    assert [dict(step.measured) for step in seen] == [{}, *[{"accuracy": 0.5}] * 4]


# -------------------------------------------------------------------------------------- and its end


def noisy(*values: float, noise: float = 0.3) -> list[float]:
    generator = random.Random(0)
    return [value + generator.gauss(0, noise) for value in values]


def kinds(losses: list[float], **settings: str) -> list[str]:
    chosen = train_settings(**{"objective": "cross-entropy", **settings})
    return list(loss_warnings(losses, chosen, unit="nats", schedules=chosen.objective.schedules))


def test_a_falling_loss_is_told_from_a_converged_one() -> None:
    falling = noisy(*(5 - place / 100 for place in range(400)))
    resting = noisy(*(1 + 4 * math.exp(-place / 30) for place in range(400)))
    assert kinds(falling) == ["still falling"] and kinds(resting) == []
    assert kinds(falling[:40]) == []  # too few to tell
    assert kinds(noisy(*(5 - place / 100 for place in range(400)), noise=8)) == []  # nor in so much noise
    assert kinds(falling, objective="hinge", alpha="linear(1, 9)") == []  # alpha may have done it
    assert kinds(falling, objective="hinge", alpha="3") == ["still falling"]
    barely = [3 * math.exp(-place / 30) + 1 - place * 1e-6 for place in range(400)]
    assert kinds(barely) == []  # by less than anybody waits for


def test_a_risen_loss_is_told_from_a_steady_one() -> None:
    rising = noisy(*(1 + place / 100 for place in range(400)))
    assert kinds(rising) == ["diverged"] and kinds(noisy(*[1.0] * 400)) == []
    assert kinds(rising, objective="relaxed-beam", alpha="linear(1, 9)") == []
    assert kinds([2.0, 1.1e10]) == kinds([2.0] * 200 + [1.1e10] * 200, objective="relaxed-beam") == ["diverged"]
    assert kinds([-3.0] * 100 + [-1.0] * 100) == ["diverged"]
    warnings = loss_warnings([1.0, 99.0], train_settings(learning_rate=0.01), unit="")
    assert "--learning-rate 0.001" in warnings["diverged"]


@pytest.mark.parametrize(("title", "sign", "value"), [("accuracy", 1, 0.4), ("word error", -1, 0.6)])
def test_a_model_below_the_baseline_is_reported(title: str, sign: int, value: float) -> None:
    def told(value: float, file: str = "dev") -> bool:
        return bool(below(Baseline("guessing", file, title, sign, {title: 0.5}), {title: value}))

    assert told(value) and not told(0.5) and not told(1 - value) and not told(value, file="train")


def test_a_diverged_training_run_ends_with_a_warning(files: list[object], tmp_path: Path, seqwise: Command) -> None:
    wild = ["--objective=cross-entropy", "--learning-rate=1000", "--clip=1e9", "--epochs=30", "--encoder=left-to-right"]
    ended = seqwise(*files, *wild)
    assert ended.code == 0 and "seqwise: the loss rose from" in ended.err and "seqwise predict" not in ended.out
    assert "diverged" in json.loads((tmp_path / "run" / "metrics.json").read_text())["warnings"]
