"""The command line as users meet it: every command and objective, and one line for every mistake of theirs."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from command_line import Command, run_main
from run_folders import contents, weights
from seqwise import cli
from seqwise.configuration import OneOf
from seqwise.configuration.flat import flags_of
from seqwise.data import load_tokenizer
from seqwise.data.durable import LOCK
from seqwise.decoding import DECODERS
from seqwise.objectives.options import Searching
from seqwise.runs import settings
from seqwise.runs.decoder_choice import decoders_for
from seqwise.runs.settings import train_settings

WORDS = {"the": "DET", "a": "DET", "dog": "NOUN", "cat": "NOUN", "runs": "VERB", "sees": "VERB", "big": "ADJ"}
TINY = ["--hidden-size=8", "--embedding-size=8", "--batch-size=8", "--beam-size=3"]
ONE_STAGE = [*TINY, "--epochs=0.4"]
SHORT = [*ONE_STAGE, "--objective=relaxed-beam", "--warm-start-epochs=0.4"]
FROM_SCRATCH = [
    "cross-entropy", "self-normalized", "sampled-self-normalized", "unnormalized-likelihood", "noise-contrastive",
]  # fmt: skip
SEARCH_OBJECTIVES = list(OneOf(Searching).members)
OBJECTIVES = ["auto", *FROM_SCRATCH, "scheduled-sampling", "distillation", *SEARCH_OBJECTIVES]


def short(objective: str) -> list[str]:
    """Flags of a short training with an objective, and with a warm start where it has one."""
    return [*(ONE_STAGE if objective in FROM_SCRATCH else SHORT), "--objective", objective]


def sentences(count: int, *, seed: int) -> list[list[str]]:
    generator = random.Random(seed)
    return [generator.choices(list(WORDS), k=generator.randint(2, 5)) for _ in range(count)]


def conll(sentences: list[list[str]]) -> str:
    return "\n".join("".join(f"{word}\t{WORDS[word]}\n" for word in sentence) for sentence in sentences)


def tsv(count: int, *, seed: int) -> str:
    generator = random.Random(seed)
    words = ["".join(generator.choices("abc", k=generator.randint(1, 4))) for _ in range(count)]
    return "".join(f"{word}\t{' '.join(reversed(word.upper()))}\n" for word in words)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, count, seed in (("train", 24, 0), ("dev", 6, 1)):
        (folder / f"{name}.conll").write_text(conll(sentences(count, seed=seed)))
        (folder / f"{name}.tsv").write_text(tsv(count, seed=seed))
        for ending in ("conll", "tsv"):
            with gzip.open(folder / f"{name}.{ending}.gz", "wt") as file:
                file.write((folder / f"{name}.{ending}").read_text())
    return folder


@pytest.fixture(scope="module")
def trained_tagger(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "tagger"
    run_main("train", "--train", data / "train.conll", "--dev", data / "dev.conll", *SHORT, "--output", run)
    return run


@pytest.fixture(scope="module")
def trained_speller(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "speller"
    task = ["--task=transduce", "--source-units=characters", "--objective=cross-entropy", "--epochs=30"]
    run_main("train", *task, "--train", data / "train.tsv", *TINY, "--learning-rate=1e-2", "--output", run)
    return run


@pytest.fixture
def tagger(trained_tagger: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(trained_tagger, tmp_path / "tagger"))


@pytest.fixture
def speller(trained_speller: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(trained_speller, tmp_path / "speller"))


# ---------------------------------------------------------------------------------------------- train


def only_below_the_baseline(said: str) -> bool:
    """Whether standard error has nothing but the warning that a model which hardly was trained deserves."""
    return said.count("seqwise: ") == said.count("seqwise: the model is worse than the baseline") and (
        said == "" or said.startswith("seqwise: ")
    )


@pytest.mark.thorough
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("task", ["tag", "transduce"])
def test_every_objective_trains_on_both_tasks(
    seqwise: Command, data: Path, tmp_path: Path, task: str, objective: str
) -> None:
    ending = "conll.gz" if task == "tag" else "tsv.gz"
    train, dev = data / f"train.{ending}", data / f"dev.{ending}"
    options = [*short(objective), "--task", task]
    options += ["--source-units=characters"] if task == "transduce" else []
    options += ["--score=global"] if objective in SEARCH_OBJECTIVES else []
    ended = seqwise("train", *options, "--train", train, "--dev", dev, "--output", tmp_path / "run")
    assert ended.code == 0 and only_below_the_baseline(ended.err)
    assert all(decoder in ended.out for decoder in set(DECODERS) - {"viterbi", "renormalized-beam"})
    assert "best on the development data: " in ended.out and "predict" in ended.out.split("best on the")[1]
    assert f"seqwise predict {tmp_path / 'run'} TEXT" in ended.out
    stages = [] if objective in ("auto", *FROM_SCRATCH) else ["warm start"]  # auto sees the whole input here
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert [stage for stage in ("warm start", "training") if stage in metrics] == [*stages, "training"]
    assert metrics["train_examples"] == 24 and metrics["dev_examples"] == 6
    steps = 2 if objective == "auto" else 1  # it has the warm start's epochs as well
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == metrics["training"]["steps"] == steps
    said = "2 steps in 2 stages" if stages else "2 steps" if objective == "auto" else "1 step"
    assert f"trained for {said} on 24 examples" in ended.out


@pytest.mark.thorough
@pytest.mark.parametrize("objective", ["crf", "beam-crf", "noise-contrastive", "relaxed-beam"])
def test_a_chain_is_trained_and_searched_like_any_tagger(
    seqwise: Command, data: Path, tmp_path: Path, objective: str
) -> None:
    options = [*short(objective), "--model=chain", "--train", data / "train.conll"]
    ended = seqwise("train", *options, "--dev", data / "dev.conll", "--output", tmp_path / "run")
    assert ended.code == 0 and only_below_the_baseline(ended.err)
    best = {"crf": "raw-beam"}.get(objective, "beam")
    assert f"{best}, which predict uses by default" in ended.out or f"than {best}" in ended.out
    # Two words: a beam of all pairs of labels finds the best output too.
    predict = ["predict", tmp_path / "run", "the dog", "--n-best=1"]
    searched = seqwise(*predict, "--beam-size=16")
    assert searched.code == 0 and seqwise(*predict, "--decoder=viterbi").out == searched.out
    assert seqwise(*predict[:-1], "--decoder=viterbi").out == searched.out
    said = "--n-best 2 is more than the 1 that the search keeps; choose another decoder"
    assert seqwise(*predict[:-1], "--decoder=viterbi", "--n-best=2").complaint == said
    for decoder in ("viterbi", "greedy"):
        with_beam = seqwise(*predict[:-1], f"--decoder={decoder}", "--beam-size=7").complaint
        assert with_beam == f"--beam-size has no effect on the decoder {decoder}; leave it out"


def test_objectives_that_need_a_chain_say_so(seqwise: Command, data: Path, tmp_path: Path) -> None:
    train = ["train", "--train", data / "train.conll", "--output", tmp_path / "run"]
    complaint = seqwise(*train, "--objective=crf").complaint
    assert complaint.startswith("objective: crf needs the scores of a chain") and "use --model chain" in complaint
    assert "use --task tag" in seqwise(*train, "--task=transduce", "--model=chain").complaint


@pytest.mark.thorough
def test_viterbi_is_for_chains(seqwise: Command, trained_tagger: Path, data: Path) -> None:
    for command in (["predict", trained_tagger, "the dog"], ["evaluate", trained_tagger, data / "dev.conll"]):
        assert "viterbi is for chains" in seqwise(*command, "--decoder=viterbi").complaint


@pytest.mark.thorough
def test_yaml_flags_and_gzip_train_the_same_weights(seqwise: Command, data: Path, tmp_path: Path) -> None:
    lines = ["hidden_size: 8", "embedding_size: 8", "batch_size: 8", "objective: cross-entropy", "epochs: 1"]
    config = tmp_path / "settings.yaml"
    config.write_text("\n".join(["learning_rate: 1e-2", f"train: {data / 'train.conll'}", *lines]))
    flags = ["--hidden-size=8", "--embedding-size=8", "--batch-size=8", "--objective=cross-entropy", "--epochs=1"]
    by_yaml, by_flags, overridden = tmp_path / "yaml", tmp_path / "flags", tmp_path / "overridden"
    assert seqwise("train", "--config", config, "--output", by_yaml).code == 0
    gz = ["--train", data / "train.conll.gz", "--learning-rate", "0.01"]
    assert seqwise("train", *gz, *flags, "--output", by_flags).code == 0
    assert seqwise("train", "--config", config, "--epochs=0.5", "--output", overridden).code == 0
    assert weights(by_yaml) == weights(by_flags) != weights(overridden)
    saved = (overridden / "configuration.yaml").read_text()
    assert "epochs: 0.5\n" in saved and "learning_rate: 0.01\n" in saved


@pytest.mark.thorough
def test_columns_can_be_chosen(seqwise: Command, tmp_path: Path) -> None:
    rows = "".join(f"1\t{word}\t{label}\t_\n" for word, label in WORDS.items())
    (tmp_path / "wide.conll").write_text(f"# a comment\n{rows}\n" * 3)
    options = ["--token-column=1", "--label-column=2", "--objective=cross-entropy"]
    run = tmp_path / "run"
    assert seqwise("train", "--train", tmp_path / "wide.conll", *options, *SHORT, "--output", run).code == 0
    assert set(load_tokenizer(run / "model" / "target").vocabulary.tokens) == set(WORDS.values())


@pytest.mark.thorough
@pytest.mark.parametrize("change", [lambda raw: b"\xef\xbb\xbf" + raw, lambda raw: raw.replace(b"\n", b"\r\n")])
def test_byte_order_marks_and_crlf_change_nothing(
    seqwise: Command, data: Path, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    runs = []
    for name, raw in (("plain", (data / "train.conll").read_bytes()), ("odd", b"")):
        file = tmp_path / f"{name}.conll"
        file.write_bytes(raw or change((data / "train.conll").read_bytes()))
        runs.append(tmp_path / name)
        ended = seqwise("train", "--train", file, *ONE_STAGE, "--objective=cross-entropy", "--output", runs[-1])
        assert ended.code == 0, ended.err
    assert weights(runs[0]) == weights(runs[1])


@pytest.mark.thorough
def test_swapped_columns_and_pairs_read_as_columns_are_warned_of(seqwise: Command, data: Path, tmp_path: Path) -> None:
    pairs = "".join(f"word{number}\twords{number}\n" for number in range(80))
    (tmp_path / "pairs.tsv").write_text(pairs)
    (tmp_path / "swapped.conll").write_text(
        "".join(f"{'NV'[n % 2]}\tword{n if n < 30 else n % 5}\n" for n in range(80))
    )
    told = (
        "80 tokens have 80 different labels; should it be another --label-column",
        "30 different labels of 2 different tokens, 25 of them seen once; are the columns swapped? Try --token-column",
    )
    for name, said in zip(("pairs.tsv", "swapped.conll"), told, strict=True):
        ended = seqwise("train", *SHORT, "--train", tmp_path / name, "--output", tmp_path / "run" / name)
        assert ended.code == 0
        (line,) = ended.err.splitlines()
        assert line.startswith(f"seqwise: {said}")
    assert seqwise("train", *SHORT, "--train", data / "train.conll", "--output", tmp_path / "run" / "right").err == ""
    # It is not the development data that are to blame.
    (tmp_path / "dev.conll").write_text("word1\tN\nword2\tV\n")
    files = ["--train", tmp_path / "swapped.conll", "--dev", tmp_path / "dev.conll"]
    complaint = seqwise("train", *SHORT, *files, "--output", tmp_path / "run" / "dev").complaint
    assert complaint.startswith(f"{tmp_path / 'swapped.conll'}: {told[1]}")


@pytest.mark.parametrize("known", [False, True])
def test_development_data_among_the_training_data_are_warned_of(
    seqwise: Command, data: Path, tmp_path: Path, known: bool
) -> None:
    files = ["--train", data / "train.conll", "--dev", data / ("train.conll" if known else "dev.conll")]
    ended = seqwise("train", *files, *TINY, "--objective=cross-entropy", "--epochs=1", "--output", tmp_path / "run")
    said = "24 of 24 development examples are in the training data: the model may have memorised them"
    assert ended.code == 0 and (said in ended.err) == known


def test_finished_training_says_so_when_run_again(seqwise: Command, data: Path, tmp_path: Path) -> None:
    train = ["train", "--train", data / "train.conll", *TINY, "--objective=cross-entropy", "--output", tmp_path / "run"]
    assert "trained for 3 steps on 24 examples; mean loss over" in seqwise(*train, "--epochs=1").out
    assert "already trained for 3 steps; mean loss over" in seqwise(*train, "--epochs=1").out


def test_a_finished_training_run_again_changes_nothing(
    seqwise: Command, data: Path, tagger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(tagger)
    monkeypatch.setattr("seqwise.training.sequence_trainer.SequenceTrainer.compute_loss", None)  # no step is taken
    arguments = ["--train", data / "train.conll", "--dev", data / "dev.conll", *SHORT, "--output", tagger]
    assert seqwise("train", *arguments).code == 0
    after = contents(tagger)
    if torch.cuda.is_available():  # measured again: a GPU rounds otherwise in a process that has trained before
        rounded = [
            json.loads(each.pop("metrics.json"), parse_float=lambda number: round(float(number), 4))
            for each in (before, after)
        ]
        assert rounded[0] == rounded[1]
    assert after == before


@pytest.mark.parametrize(
    "change",
    ["--score=global", "--epochs=3", "--objective=hinge", "--dropout=0.3", "--seed=1", "--evaluate-every=0"],
)
def test_other_settings_into_the_same_output_are_refused(
    seqwise: Command, data: Path, tagger: Path, change: str
) -> None:
    before = weights(tagger)
    options = ["--train", data / "train.conll", "--dev", data / "dev.conll", *SHORT, change, "--output", tagger]
    complaint = seqwise("train", *options).complaint
    name, value = change.removeprefix("--").replace("-", "_").split("=")
    assert complaint.startswith(f"{tagger}: the run was started with another {name} (")
    assert f"{value} now" in complaint or f"{float(value)} now" in complaint
    assert complaint.endswith("give another --output, or remove this folder to start again")
    assert weights(tagger) == before


def test_other_data_into_the_same_output_are_refused(seqwise: Command, data: Path, tagger: Path) -> None:
    before = contents(tagger)
    doubled = tagger.parent / "doubled.conll"
    doubled.write_text(2 * ((data / "train.conll").read_text() + "\n"))
    for train in (data / "dev.conll", doubled):
        ended = seqwise("train", "--train", train, "--dev", data / "dev.conll", *SHORT, "--output", tagger)
        assert ended.complaint.endswith("to start again")
        assert "other training data" in ended.complaint or "another training file" in ended.complaint
        assert contents(tagger) == before
    # The number of epochs was not given: it follows from the data.
    unsized = [*TINY, "--objective=relaxed-beam", "--warm-start-epochs=0.4", "--output", tagger]
    complaint = seqwise("train", "--train", doubled, "--dev", data / "dev.conll", *unsized).complaint
    assert complaint.startswith(
        f"{tagger}: the run was started with another training file ({data / 'train.conll'} then, "
    )
    longer = tagger.parent / "dev.conll"
    longer.write_text(2 * ((data / "dev.conll").read_text() + "\n"))
    again = ["--train", data / "train.conll", "--dev", longer, *SHORT, "--output", tagger]
    assert "the checkpoint was made with other development data" in seqwise("train", *again).complaint
    assert contents(tagger) == before


@pytest.mark.parametrize("name", ["model", "checkpoints", "warm-start"])
def test_folders_that_are_not_runs_are_not_touched(seqwise: Command, data: Path, tmp_path: Path, name: str) -> None:
    treasure = tmp_path / name / "checkpoint-7" / "treasure"
    treasure.parent.mkdir(parents=True)
    treasure.write_text("mine")
    complaint = seqwise("train", "--train", data / "train.conll", *SHORT, "--output", tmp_path).complaint
    assert complaint.startswith(f"{tmp_path}: the folder holds {name} but no configuration.yaml, so it is not a run")
    assert treasure.read_text() == "mine"


def test_settings_of_the_user_in_the_output_stay_as_written(seqwise: Command, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "configuration.yaml"
    config.write_text(f"# my own words\ntrain: {data / 'train.conll'}\nobjective: cross-entropy\nepochs: 0.1\n")
    before = config.read_text()
    assert "another seed" in seqwise("train", "--config", config, "--seed=1", "--output", tmp_path).complaint
    assert config.read_text() == before
    assert seqwise("train", "--config", config, "--output", tmp_path).code == 0
    assert config.read_text() == before


STEPS = [*TINY, "--objective=relaxed-beam", "--epochs=2", "--warm-start-epochs=2", "--save-every=2"]
KILLED = """
import os, signal, sys
from seqwise import cli
from seqwise.training import trainer

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
before, left = trainer._AfterStep.on_step_end, [int(sys.argv.pop(1))]

def killed(self, args, state, control, **more):
    before(self, args, state, control, **more)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

trainer._AfterStep.on_step_end = killed
cli.main()
"""


@pytest.mark.thorough
def test_a_killed_training_resumes_to_the_same_weights(seqwise: Command, data: Path, tmp_path: Path) -> None:
    """6 steps of warm start and 6 of the relaxed beam; killed at step 3 of the first, then of the second."""
    options = ["train", "--train", data / "train.conll", *STEPS]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    at_once = seqwise(*options, "--output", whole)
    assert at_once.code == 0 and "resumed after" not in at_once.err
    # The second time it begins with the warm start's third step again, from the checkpoint at 2.
    for after, log, steps in ((3, "warm-start/log.jsonl", 3), (4 + 3, "log.jsonl", 3)):
        command = [sys.executable, "-c", KILLED, after, *options, "--output", killed]
        ended = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert len((killed / log).read_text().splitlines()) == steps
        assert not (killed / "model").exists()
        hint = "wait for the end of its training or, if that was stopped, run the same command again"
        assert hint in seqwise("predict", killed, "the dog").complaint
    again = seqwise(*options, "--output", killed)
    assert again.code == 0 and "resumed after step 2 of 6" in again.err
    assert weights(killed) == weights(whole)
    for log in ("warm-start/log.jsonl", "log.jsonl"):
        assert (killed / log).read_bytes() == (whole / log).read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_training_says_how_to_continue(data: Path, tmp_path: Path, how: signal.Signals) -> None:
    script = KILLED.replace("SIGKILL", how.name)
    options = ["train", "--train", data / "train.conll", *STEPS, "--output", tmp_path / "run"]
    command = [sys.executable, "-c", script, "3", *map(str, options)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 128 + how
    assert "run the same command again to continue" in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / "run" / LOCK).exists()
    assert (tmp_path / "run" / "warm-start" / "checkpoints" / "checkpoint-2" / "manifest.json").exists()


def test_stopped_while_measuring_only_the_measurement_is_missing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("seqwise.runs.training.measure_decoders", interrupt)
    options = ["--dev", data / "dev.conll", *TINY, "--objective=cross-entropy", "--output", tmp_path / "run"]
    monkeypatch.setattr(sys, "argv", ["seqwise", "train", "--train", *map(str, [data / "train.conll", *options])])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is before
    assert "run the same command again to measure the trained model" in capfd.readouterr().err
    assert (tmp_path / "run" / "model").exists()


def test_a_loss_that_turns_nan_stops_and_names_the_examples(
    seqwise: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, train = tmp_path / "run", data / "train.conll"
    steps = iter((0.0, 0.0, torch.nan))
    monkeypatch.setattr(
        "seqwise.objectives.settings.CrossEntropy.build",
        lambda *_, **__: lambda model, batch, values: model.embedding_VD.square().sum() + next(steps),
    )
    options = ["--train", train, *TINY, "--objective=cross-entropy", "--save-every=1", "--output", run]
    complaint = seqwise("train", *options).complaint
    assert complaint.startswith(f"the loss is nan at step 3, on {train}:") and complaint.count(f"{train}:") == 8
    assert f"checkpoints before it, if any, are kept in {run / 'checkpoints'}; lower the learning rate" in complaint
    assert (run / "checkpoints" / "checkpoint-2" / "manifest.json").exists() and not (run / "model").exists()


def test_a_learning_rate_out_of_all_proportion(seqwise: Command, data: Path, tmp_path: Path) -> None:
    options = ["--train", data / "train.conll", *TINY, "--objective=cross-entropy", "--output", tmp_path / "run"]
    assert "lower the learning rate" in seqwise("train", *options, "--learning-rate=1e38").complaint


@pytest.mark.thorough
def test_a_loss_that_is_nan_at_once_can_be_corrected_in_place(
    seqwise: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--train", data / "train.tsv", "--task=transduce", *SHORT, "--output", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr(
            "seqwise.objectives.settings.CrossEntropy.build",
            lambda *_, **__: lambda model, batch, values: 0 * model.embedding_VD.sum() + torch.nan,
        )
        complaint = seqwise("train", *options).complaint
    assert complaint.startswith(f"the loss is nan at step 1, on {data / 'train.tsv'}:")
    # Nothing was kept, so other settings may take the same folder.
    assert seqwise("train", *options, "--seed=3").code == 0
    assert "seed: 3\n" in (tmp_path / "run" / "configuration.yaml").read_text()


# ------------------------------------------------------------------------------------- predict, evaluate


@pytest.mark.thorough
def test_the_run_folder_is_all_that_prediction_needs(
    seqwise: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    shutil.copy(data / "train.conll", home)
    monkeypatch.chdir(home)
    assert seqwise("train", "--train=train.conll", *SHORT, "--output=run").code == 0
    here = seqwise("predict", "run", "the dog runs")
    shutil.copytree("run/model", away / "run/model")
    shutil.copy("run/configuration.yaml", away / "run")
    shutil.rmtree(home)
    monkeypatch.chdir(away)
    assert seqwise("predict", "run", "the dog runs") == here
    assert here.code == 0 and here.out


def test_one_text_gives_ranked_outputs_with_scores(seqwise: Command, trained_tagger: Path) -> None:
    lines = [line.split(maxsplit=2) for line in seqwise("predict", trained_tagger, "the dog runs").out.splitlines()]
    assert [rank for rank, _, _ in lines] == ["1", "2", "3"]  # the beam that it was trained with
    scores = [float(score) for _, score, _ in lines]
    assert scores == sorted(scores, reverse=True) and len({output for *_, output in lines}) == 3
    assert all(len(output.split()) == 3 for *_, output in lines)
    ended = seqwise("predict", trained_tagger, "the dog runs", "--json", "--n-best=2")
    found = json.loads(ended.out)
    assert found["input"] == "the dog runs"
    assert [one["output"] for one in found["outputs"]] == [output for *_, output in lines[:2]]
    assert [one["score"] for one in found["outputs"]] == pytest.approx(scores[:2], abs=1e-3)


@pytest.mark.thorough
def test_characters_come_back_as_text(seqwise: Command, trained_speller: Path) -> None:
    ended = seqwise("predict", trained_speller, "ab", "--n-best=1")
    assert ended.out.startswith("1  ") and set(ended.out.split()[2:]) <= set("ABC")
    assert json.loads(seqwise("predict", trained_speller, "ab", "--json").out)["input"] == "ab"


@pytest.mark.parametrize("decoder", [*decoders_for(train_settings()), "best"])
def test_every_decoder_predicts_a_file_line_by_line(
    seqwise: Command, trained_tagger: Path, tmp_path: Path, decoder: str
) -> None:
    texts = [" ".join(sentence) for sentence in sentences(20, seed=5)]
    (tmp_path / "inputs").write_text("\n".join(texts))
    ended = seqwise("predict", trained_tagger, tmp_path / "inputs", "--text", "--decoder", decoder)
    lines = [line.split("\t") for line in ended.out.splitlines()]
    assert [line[0] for line in lines] == texts
    assert all(len(source.split()) == len(output.split()) for source, output in lines)
    records = seqwise("predict", trained_tagger, tmp_path / "inputs", "--text", "--decoder", decoder, "--json").records
    assert [record["outputs"][0]["output"] for record in records] == [line[1] for line in lines]
    assert [record["line"] for record in records] == list(range(1, 21))


@pytest.fixture
def standard_input(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Put a file in place of this process's standard input."""

    def replace(path: Path) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(path.read_bytes()))))

    return replace


def test_three_thousand_lines_keep_their_order(
    seqwise: Command, trained_tagger: Path, tmp_path: Path, standard_input: Callable[[Path], None]
) -> None:
    texts = [" ".join(sentence) for sentence in sentences(3000, seed=6)]
    (tmp_path / "inputs.txt.gz").write_bytes(gzip.compress("\n".join(texts).encode()))
    ended = seqwise("predict", trained_tagger, tmp_path / "inputs.txt.gz", "--text", "--decoder=greedy")
    lines = [line.split("\t") for line in ended.out.splitlines()]
    assert [line[0] for line in lines] == texts
    best = dict(lines)
    # The same input has the same output wherever it stands, and as if it stood alone.
    assert all(best[source] == output for source, output in lines)
    alone = seqwise("predict", trained_tagger, texts[2999], "--decoder=greedy").out
    assert alone.split(maxsplit=2)[2].strip() == best[texts[2999]]
    standard_input(tmp_path / "inputs.txt.gz")
    assert seqwise("predict", trained_tagger, "--text", "--decoder=greedy") == ended


def test_a_minus_is_standard_input(
    seqwise: Command, trained_tagger: Path, tmp_path: Path, standard_input: Callable[[Path], None]
) -> None:
    (tmp_path / "one").write_text("the dog\n")
    standard_input(tmp_path / "one")
    assert seqwise("predict", trained_tagger, "-", "--text").out.startswith("the dog\t")


def test_a_word_that_is_also_a_folder_is_a_word(
    seqwise: Command, trained_tagger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert seqwise("predict", trained_tagger, "runs").out.startswith("1  ")


def test_an_output_in_place_of_the_input_is_refused(seqwise: Command, trained_tagger: Path, tmp_path: Path) -> None:
    inputs, link = tmp_path / "in.txt", tmp_path / "link.txt"
    inputs.write_text("the dog\n")
    link.symlink_to(inputs)
    for command in (["predict", trained_tagger, inputs, "--text"], ["score", trained_tagger, inputs]):
        for output in (inputs, link):
            complaint = seqwise(*command, "--output", output).complaint
            assert complaint == f"{output}: the output would replace the input; give another --output"
    assert inputs.read_text() == "the dog\n" and len(list(tmp_path.iterdir())) == 2


def test_evaluate_prints_a_table_within_80_columns_or_json(
    seqwise: Command, data: Path, trained_tagger: Path, trained_speller: Path
) -> None:
    for run, file, titles in (
        (trained_tagger, "dev.conll.gz", ["sequence accuracy", "accuracy"]),
        (trained_speller, "dev.tsv", ["word error", "token error", "length ratio"]),
    ):
        ended = seqwise("evaluate", run, data / file)
        assert ended.code == 0 and max(map(len, ended.out.splitlines())) <= 80
        names = [line.split()[0] for line in ended.out.splitlines() if line.strip().split(" ")[0] in DECODERS]
        assert names == decoders_for(train_settings())
        assert all(title in ended.out for title in titles)
        found = json.loads(seqwise("evaluate", run, data / file, "--json", "--decoder=beam").out)
        assert list(found) == ["beam"] and [title for title in found["beam"] if title != "BLEU"] == titles
        for estimate in found["beam"].values():
            few = estimate["low"] is None and estimate["high"] is None
            assert few or estimate["low"] <= estimate["value"] <= estimate["high"]


def test_one_example_has_a_value_and_no_interval(
    seqwise: Command, data: Path, trained_tagger: Path, tmp_path: Path
) -> None:
    one = tmp_path / "one.conll"
    one.write_text((data / "dev.conll").read_text().split("\n\n")[0] + "\n")
    ended = seqwise("evaluate", trained_tagger, one, "--decoder=beam")
    assert "1 example, too few for intervals" in ended.out and "[" not in ended.out
    found = json.loads(seqwise("evaluate", trained_tagger, one, "--json", "--decoder=beam").out)["beam"]
    assert all(estimate["low"] is None and estimate["value"] is not None for estimate in found.values())


def test_pairs_of_one_source_are_counted_once(
    seqwise: Command, data: Path, trained_speller: Path, tmp_path: Path
) -> None:
    lines = (data / "dev.tsv").read_text().splitlines(keepends=True)
    sources = {line.split("\t")[0] for line in lines}
    twice = tmp_path / "twice.tsv"
    twice.write_text("".join([*lines, *lines]))
    ended = seqwise("evaluate", trained_speller, twice, "--decoder=beam")
    assert f"\n{2 * len(lines)} examples of {len(sources)} sources, too few" in ended.out


def test_a_wide_table_has_its_intervals_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from seqwise.cli.console import print_measures

    monkeypatch.setenv("COLUMNS", "80")
    row = {"word error": ("31.3", "[30.1, 32.5]"), "length ratio": ("0.998", "[0.981, 1.022]")}
    print_measures({"interpolated-beam": row, "beam": row})
    narrow = capsys.readouterr().out.splitlines()
    assert narrow[0].split() == ["decoder", "word", "error,", "%", "length", "ratio"]
    assert narrow[2].split() == ["interpolated-beam", "31.3", "[30.1,", "32.5]", "0.998", "[0.981,", "1.022]"]
    print_measures({"interpolated-beam": row | {"token error": row["word error"], "BLEU": ("100.0", "[99.0, 100.0]")}})
    wide = capsys.readouterr().out.splitlines()
    assert max(map(len, wide)) <= 80
    assert wide[2].split() == ["interpolated-beam", "31.3", "0.998", "31.3", "100.0"]
    assert "".join(wide[3].split()) == "[30.1,32.5][0.981,1.022][30.1,32.5][99.0,100.0]"
    titles = ("sequence accuracy", "accuracy", "entity F1", "macro-averaged entity F1")
    print_measures({"interpolated-beam": dict.fromkeys(titles, ("100.0", "[100.0, 100.0]"))})
    assert capsys.readouterr().out.count("[100.0, 100.0]") == 4, "none is broken"


def test_evaluate_counts_as_training_did(seqwise: Command, data: Path, trained_tagger: Path) -> None:
    metrics = json.loads((trained_tagger / "metrics.json").read_text())
    found = json.loads(seqwise("evaluate", trained_tagger, data / "dev.conll", "--json").out)
    for decoder, by_title in metrics["dev"]["decoders"].items():
        assert {title: one["value"] for title, one in found[decoder].items()} == pytest.approx(by_title)


def test_the_best_decoder_is_read_from_the_metrics(
    seqwise: Command, data: Path, tagger: Path, trained_speller: Path
) -> None:
    (tagger / "metrics.json").write_text(json.dumps({"dev": {"best decoder": "raw-beam"}}))
    for command in (["predict", tagger, "the dog"], ["evaluate", tagger, data / "dev.conll"]):
        best, raw, usual = (seqwise(*command, *more) for more in (["--decoder=best"], ["--decoder=raw-beam"], []))
        assert best == raw != usual
    (tagger / "metrics.json").write_text(json.dumps({"dev": {"best decoder": "greedy"}}))
    complaint = seqwise("predict", tagger, "the dog", "--decoder=best", "--n-best=2").complaint
    assert complaint == "--n-best 2 is more than the 1 that the search keeps; choose another decoder"
    complaint = seqwise("predict", tagger, "the dog", "--decoder=best", "--beam-size=2").complaint
    assert complaint == "--beam-size has no effect on the best decoder, greedy; leave it out"
    said = "the run was trained without development data; name a decoder, or train with --dev"
    assert said in seqwise("predict", trained_speller, "ab", "--decoder=best").complaint
    assert said in seqwise("evaluate", trained_speller, data / "dev.tsv", "--decoder=best").complaint


def test_entities_are_measured_as_entities(seqwise: Command, tmp_path: Path) -> None:
    words = {"Ann": "B-PER", "Bob": "B-PER", "Rome": "B-LOC", "sees": "O", "likes": "O"}
    (tmp_path / "a.conll").write_text("".join(f"{word}\t{label}\n" for word, label in words.items()) * 2)
    options = [*ONE_STAGE, "--objective=cross-entropy", "--output", tmp_path / "run"]
    files = ["--train", tmp_path / "a.conll", "--dev", tmp_path / "a.conll"]
    ended = seqwise("train", *files, *options)
    assert ended.code == 0 and "entity F1, %" in ended.out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["dev"]["best by"] == "entity F1"
    evaluate = ["evaluate", tmp_path / "run", tmp_path / "a.conll"]
    ended = seqwise(*evaluate)
    assert ended.code == 0 and max(map(len, ended.out.splitlines())) <= 80
    assert all(name in ended.out for name in ("macro-averaged", "precision", "recall", "support"))
    table = [line.split() for line in ended.out.splitlines()]
    assert [row[-1] for row in table if row[:1] in (["PER"], ["LOC"])] == ["2", "4"]  # the entities of both sentences
    found = json.loads(seqwise(*evaluate, "--json", "--decoder=beam").out)["beam"]
    by_type = found["entity F1"]["by type"]
    assert {name: scores["support"] for name, scores in by_type.items()} == {"LOC": 2, "PER": 4}
    total = next(line.split() for line in ended.out.splitlines() if line.startswith("all (micro-averaged)"))
    value = json.loads(seqwise(*evaluate, "--json").out)["beam"]["entity F1"]["value"]
    assert (total[-2], total[-1]) == (f"{100 * value:.1f}", "6")
    mean = sum(scores["f1"] for scores in by_type.values()) / 2
    assert found["macro-averaged entity F1"]["value"] == pytest.approx(mean)


# -------------------------------------------------------------------------------------- subwords


GERMAN = {"Hund": "dog", "Katze": "cat", "Haus": "house"}
TRANSLATE = ["--task=transduce", "--source-units=subwords", "--target-units=subwords", "--subword-vocabulary=40"]


def translations(count: int, *, seed: int) -> str:
    generator = random.Random(seed)
    pairs = [generator.choice(list(GERMAN.items())) for _ in range(count)]
    ends = [generator.choice(".!") for _ in range(count)]
    return "".join(f"Der {word}{end}\tThe {other}{end}\n" for (word, other), end in zip(pairs, ends, strict=True))


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    (folder / "train.tsv").write_text(translations(40, seed=0))
    (folder / "dev.tsv").write_text(translations(6, seed=1))
    sizes = ["--hidden-size=24", "--embedding-size=24", "--batch-size=8", "--learning-rate=1e-2", "--epochs=30"]
    data = ["--train", folder / "train.tsv", "--dev", folder / "dev.tsv", "--objective=cross-entropy"]
    run_main("train", *TRANSLATE, *data, *sizes, "--output", folder / "run")
    return folder / "run"


@pytest.mark.thorough
def test_a_sentence_is_translated(
    seqwise: Command, translator: Path, tmp_path: Path, standard_input: Callable[[Path], None]
) -> None:
    ended = seqwise("predict", translator, "Der  Hund!", "--n-best=1")
    assert ended.out.split(maxsplit=2)[2] == "The dog!\n"
    found = json.loads(seqwise("predict", translator, "Der  Hund!", "--json", "--n-best=5").out)
    assert found["input"] == "Der  Hund!" and found["outputs"][0]["output"] == "The dog!"
    assert len(found["outputs"]) == 5 and not any("\u2581" in one["output"] for one in found["outputs"])
    (tmp_path / "in").write_text("Der Katze.\nDer  Hund!\nDer Zoë\n")
    ended = seqwise("predict", translator, tmp_path / "in")
    lines = [line.split("\t") for line in ended.out.splitlines()]
    assert [source for source, _ in lines] == ["Der Katze.", "Der  Hund!", "Der Zoë"]
    assert [output for _, output in lines[:2]] == ["The cat.", "The dog!"]
    standard_input(tmp_path / "in")
    assert seqwise("predict", translator) == ended
    standard_input(tmp_path / "in")
    as_json = seqwise("predict", translator, "-", "--json").out.splitlines()
    assert [json.loads(line)["outputs"][0]["output"] for line in as_json] == [output for _, output in lines]


def test_a_translation_is_measured_by_bleu(seqwise: Command, translator: Path) -> None:
    pytest.importorskip("sacrebleu")
    metrics = json.loads((translator / "metrics.json").read_text())["dev"]
    assert metrics["best by"] == "BLEU" and "tok:13a" in metrics["signatures"]["BLEU"]
    ended = seqwise("evaluate", translator, translator.parent / "dev.tsv", "--decoder=beam")
    assert "\nBLEU: nrefs:1|case:mixed|eff:no|tok:13a" in ended.out and "BLEU, %" not in ended.out
    found = json.loads(seqwise("evaluate", translator, translator.parent / "dev.tsv", "--json").out)
    for decoder, by_title in found.items():
        assert by_title["BLEU"]["value"] == pytest.approx(metrics["decoders"][decoder]["BLEU"])
        assert by_title["BLEU"]["signature"] == metrics["signatures"]["BLEU"]
        assert "signature" not in by_title["token error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["  \t"], "the input is empty"),
        (["\u2581"], "the source is blank"),
        (["caf\udce9"], "the text is not UTF-8"),
    ],
)
def test_a_text_that_cannot_be_translated(seqwise: Command, translator: Path, arguments: list[str], said: str) -> None:
    assert said in seqwise("predict", translator, *arguments).complaint


def test_the_sources_of_pairs_are_predicted(seqwise: Command, translator: Path, tmp_path: Path) -> None:
    pairs, sources = translator.parent / "dev.tsv", tmp_path / "sources"
    sources.write_text("".join(line.split("\t")[0] + "\n" for line in pairs.read_text().splitlines()))
    ended = seqwise("predict", translator, pairs)
    assert ended.code == 0 and ended.out == seqwise("predict", translator, sources).out
    (tmp_path / "wide.tsv").write_text("Der Hund.\tThe dog.\t3\n")
    said = f"{tmp_path / 'wide.tsv'}:1: 3 columns where a source, or a source and its target, were expected; "
    assert seqwise("predict", translator, tmp_path / "wide.tsv").complaint.startswith(said)


def test_characters_that_cannot_be_written_are_counted(seqwise: Command, translator: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("Der Hund.\tThe dog.\nDer Hund.\tThé dög.\n")
    ended = seqwise("evaluate", translator, tmp_path / "dev.tsv", "--decoder=beam")
    said = "2 of 14 target characters were never seen in training and count as wrong"
    assert (ended.code, ended.err) == (0, f"seqwise: {said}; the first is {tmp_path / 'dev.tsv'}:2: 'é'\n")


def test_diagnosis_says_what_it_leaves_out(seqwise: Command, translator: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("Der Hund.\tThe dog.\nDer Hund .\tThé dög.\n")
    ended = seqwise("diagnose", translator, tmp_path / "dev.tsv", "--beam-size=2")
    said = "seqwise: all measures but those of the decoders leave out 1 of 2 examples, "
    assert ended.code == 0 and any(line.startswith(said) for line in ended.err.splitlines())


# ---------------------------------------------------------------------------------------------- help


def test_help_names_every_command_and_every_setting(seqwise: Command) -> None:
    top = seqwise("--help")
    assert top.code == 0 and seqwise().out == top.out == seqwise("-h").out
    names = ("train", "predict", "evaluate", "diagnose", "report")
    assert all(f"\n  {name} " in top.out for name in names)
    train = seqwise("train", "--help").out
    assert all(f"--{field.name.replace('_', '-')} " in train for field in flags_of(settings.SETTINGS))
    text = " ".join(train.split()).replace("- ", "-")
    assert all(name in text for name in (*OBJECTIVES, "bidirectional", "soft-greedy", "self-normalized"))
    assert "Examples:" in train and "--config" in train and "--output" in train
    for command, flags in (
        (["predict"], ["RUN", "TEXT|FILE", "--decoder", "--beam-size", "--n-best", "--length-normalization", "--json"]),
        (["evaluate"], ["RUN", "FILE", "--decoder", "--beam-size", "--length-normalization", "--json"]),
        (["diagnose"], ["RUN", "FILE", "--beam-size", "--example", "--plot", "--json"]),
        (["report"], ["RUN...", "--output", "--file", "--examples", "--example", "Examples:"]),
    ):
        said = seqwise(*command, "--help")
        assert said.code == 0 and all(flag in said.out for flag in flags), command
        assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.thorough
def test_training_prints_its_metrics_as_json(seqwise: Command, data: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b\na b c\nb c\n" * 3)
    small = ["--hidden-size=8", "--num-heads=2", "--feedforward-size=8", "--epochs=1"]
    trainings = {
        "tagger": ["train", "--train", data / "train.conll", "--dev", data / "dev.conll", *SHORT],
        "masked": ["masked-model", "train", tmp_path / "text.txt", *small],
    }
    for name, command in trainings.items():
        ended = seqwise(*command, "--json", "--output", tmp_path / name)
        assert ended.code == 0, ended.err
        assert json.loads(ended.out) == json.loads((tmp_path / name / "metrics.json").read_text()), name
    again = seqwise(*trainings["masked"], "--output", tmp_path / "masked").out
    assert "\nalready trained for 1 step; mean loss over the last steps " in again


def test_version(seqwise: Command) -> None:
    from seqwise import __version__

    assert seqwise("--version").out == f"seqwise {__version__}\n"


# ----------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "did you mean 'train'?"),
        (["train"], "missing option '--output'"),
        (["train", "--output"], "requires an argument"),
        (["train", "--objectiv=hinge", "--output=x"], "--objective"),
        (["predict"], "missing argument 'RUN'"),
        (["predict", "x", "--n-best=two"], "invalid value for '--n-best'"),
        (["train", "--output=x"], "there is no training data; give --train FILE"),
        (["train", "--train=.", "--output=x"], ".: this is a directory; name a file in it"),
    ],
)
def test_a_wrong_command_line(seqwise: Command, arguments: list[str], said: str) -> None:
    assert said.lower() in seqwise(*arguments).complaint.lower()


BAD_FILES = [
    ("tag", b"", ": the file is empty"),
    ("tag", b"the\tDET\ndog\t\n", ":2: the label is empty"),
    ("tag", b"the\tDET\nd\xffg\tNOUN\n", ":2: byte 0xff at column 2 is not UTF-8"),
    ("tag", b"\n\n\n", ": no sentence in the file"),
    ("tag", gzip.compress(b"the\tDET\n" * 50, mtime=0)[:-9], "damaged gzip file"),
    ("transduce", b"abc\tA B\nabc\n", ":2: 1 column where 2 were expected"),
    ("transduce", b"\tA\n", ":1: the source is empty"),
]


@pytest.mark.parametrize(("task", "raw", "said"), BAD_FILES)
@pytest.mark.parametrize("flag", ["--train", "--dev"])
def test_a_bad_data_file(
    seqwise: Command, data: Path, tmp_path: Path, task: str, raw: bytes, said: str, flag: str
) -> None:
    file, output = tmp_path / "bad", tmp_path / "new" / "run"
    file.write_bytes(raw)
    good = ["--train", data / ("train.conll" if task == "tag" else "train.tsv")] if flag == "--dev" else []
    complaint = seqwise("train", "--task", task, *good, flag, file, *SHORT, "--output", output).complaint
    assert complaint.startswith(f"{file}:") and said in complaint and "; " in complaint
    assert not output.parent.exists()


def test_missing_files_and_directories_are_refused(seqwise: Command, trained_tagger: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.conll"
    for arguments in (
        ["train", "--train", missing, "--output", tmp_path / "run"],
        ["evaluate", trained_tagger, missing],
    ):
        assert seqwise(*arguments).complaint == f"{missing}: no such file; check the name"
    assert seqwise("predict", trained_tagger, missing).complaint == f"{missing}: no such file; check the name"
    folder = ["train", "--train", tmp_path, "--output", tmp_path / "run"]
    assert seqwise(*folder).complaint == f"{tmp_path}: this is a directory; name a file in it"
    assert seqwise("train", "--config", missing, "--output", tmp_path / "run").complaint.startswith(f"{missing}: ")
    assert seqwise("predict", tmp_path / "no-run", "x").complaint.startswith(
        f"{tmp_path / 'no-run'}: there is no such run"
    )
    assert "holds no trained model" in seqwise("predict", tmp_path, "x").complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["predict", "sample"])
def test_a_second_text_is_refused_with_what_takes_several(seqwise: Command, command: str) -> None:
    complaint = seqwise(command, "run", "the dog", "a cat").complaint
    assert "'a cat'" in complaint and complaint.endswith("a file, one per line")


@pytest.mark.thorough
def test_labels_that_are_not_known_count_as_wrong_with_one_warning(
    seqwise: Command, data: Path, trained_tagger: Path, tmp_path: Path
) -> None:
    file = tmp_path / "test.conll"
    file.write_text("the\tDET\ndog\tNOUN\n\nthe\tDET\ndog\tNOUNS\n")
    said = "1 of 4 labels was never seen in training and counts as wrong; "
    said += f"the first is {file}:5: 'NOUNS'"
    ended = seqwise("evaluate", trained_tagger, file, "--json")
    assert (ended.code, ended.err) == (0, f"seqwise: {said}\n")
    assert all(found["accuracy"]["value"] <= 3 / 4 for found in json.loads(ended.out).values())
    options = ["--train", data / "train.conll", "--dev", file, *SHORT, "--output", tmp_path / "run"]
    ended = seqwise("train", *options)
    assert ended.code == 0 and only_below_the_baseline(ended.err.removeprefix(f"seqwise: {said}\n"))
    file.write_text("the\tX\n")
    complaint = seqwise("train", *options[:-1], tmp_path / "nothing known").complaint
    assert complaint.startswith(f"{file}:1: the run knows none of the labels in this file")


def test_data_of_something_else_are_refused_and_evaluate_warns_of_another_language(
    seqwise: Command, data: Path, trained_tagger: Path, trained_speller: Path, tmp_path: Path
) -> None:
    pairs = data / "dev.tsv"
    said = f"{pairs}:1: the run knows none of the labels in this file (the first is "
    for command in (["evaluate"], ["diagnose"], ["report", "--output", tmp_path / "report.html", "--file"]):
        assert seqwise(command[0], trained_tagger, *command[1:], pairs).complaint.startswith(said)
    file = tmp_path / "columns.tsv"
    file.write_text("a\tDET\nb\tNOUN\n")
    complaint = seqwise("evaluate", trained_speller, file, "--json").complaint
    assert complaint.startswith(f"{file}:1: the run knows none of the target tokens in this file (the first is 'DET')")
    file.write_text("犬\tNOUN\n走る\tVERB\nthe\tDET\n")
    ended = seqwise("evaluate", trained_tagger, file, "--decoder=beam")
    said = f"the run does not know 2 of 3 source tokens in {file}: are they in the language of the training data?"
    assert (ended.code, ended.err) == (0, f"seqwise: {said}\n")
    file.write_text("犬\tNOUN\ndog\tVERB\nthe\tDET\n")
    assert seqwise("evaluate", trained_tagger, file, "--decoder=beam").err == ""


def test_a_missing_sacrebleu_is_said_once(
    seqwise: Command, data: Path, trained_speller: Path, trained_tagger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sacrebleu" else find(name))
    ended = seqwise("evaluate", trained_speller, data / "dev.tsv", "--decoder=beam")
    said = "BLEU is left out because sacrebleu is not installed; pip install 'seqwise[translation]'"
    assert (ended.code, ended.err) == (0, f"seqwise: {said}\n")
    assert seqwise("evaluate", trained_tagger, data / "dev.conll", "--decoder=beam").err == ""


@pytest.mark.thorough
def test_tokens_that_are_not_known(
    seqwise: Command, data: Path, trained_tagger: Path, trained_speller: Path, tmp_path: Path
) -> None:
    (tmp_path / "dev.tsv").write_text("ab\tB A\nax\tA B\n")
    task = ["--task=transduce", "--source-units=characters", "--dev", tmp_path / "dev.tsv"]
    trained = seqwise("train", *task, "--train", data / "train.tsv", *SHORT, "--output", tmp_path / "run")
    said = (
        f"1 of 2 inputs could not be read (counted as wrong); the first is {tmp_path / 'dev.tsv'}:2: unknown token 'x'"
    )
    assert trained.code == 0 and f"seqwise: {said}; replace it\n" in trained.err
    (tmp_path / "none.tsv").write_text("ax\tA B\nxx\tA\n")
    task[-1] = tmp_path / "none.tsv"
    complaint = seqwise("train", *task, "--train", data / "train.tsv", *SHORT, "--output", tmp_path / "none").complaint
    assert complaint.startswith(f"{tmp_path / 'none.tsv'}:1: unknown token 'x'") and not (tmp_path / "none").exists()
    assert seqwise("predict", trained_tagger, "an unseen word").code == 0  # its vocabulary is open
    assert seqwise("predict", trained_speller, "abx").complaint.startswith("unknown token 'x'; replace it")
    (tmp_path / "words.txt").write_text("ab\n" * 2000 + "ax\nba\n")
    ended = seqwise("predict", trained_speller, tmp_path / "words.txt")
    said = f"1 of 2,002 inputs could not be read; the first is {tmp_path / 'words.txt'}:2001: unknown token 'x'; "
    assert ended.code == 1 and ended.err.startswith(f"seqwise: {said}") and ended.err.count("\n") == 1
    lines = ended.out.splitlines()
    assert len(lines) == 2002 and lines[2000].startswith("ax\terror: unknown token 'x'; replace it")
    assert set(lines[2001].split("\t")[1].split()) <= set("ABC") and lines[2001].startswith("ba\t")
    for place in ("kept", "again"):
        kept = seqwise("predict", trained_speller, tmp_path / "words.txt", "--output", tmp_path / place)
        assert (kept.code, kept.err, (tmp_path / place).read_text()) == (1, ended.err, ended.out)
    as_json = seqwise("predict", trained_speller, tmp_path / "words.txt", "--json", "--beam-size=2")
    records = [json.loads(line) for line in as_json.out.splitlines()]
    assert as_json.code == 1 and [number for number, record in enumerate(records, 1) if "error" in record] == [2001]
    assert records[2000]["line"] == 2001 and records[2000]["outputs"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["the dog", "--beam-size=0"], "--beam-size must be at least 1, got 0"),
        (["the dog", "--n-best=0"], "--n-best must be at least 1, got 0"),
        (["the dog", "--n-best=9"], "--n-best 9 is more than the 3 that the search keeps; add --beam-size 9"),
        (["the dog", "--n-best=2", "--decoder=greedy"], "choose another decoder"),
        (["the dog", "--decoder=interpolated"], "did you mean 'interpolated-beam'?"),
        (["the dog", "--decoder=bean"], "no decoder is called 'bean'; did you mean 'beam'?"),
        (["the dog", "--length-normalization=nan"], "--length-normalization must be finite"),
        (["  "], "the input is empty"),
        ([""], "the input is empty"),
        (["caf\udce9"], "the text is not UTF-8"),
    ],
)
def test_invalid_arguments_of_predict_are_refused(
    seqwise: Command, trained_tagger: Path, arguments: list[str], said: str
) -> None:
    assert said in seqwise("predict", trained_tagger, *arguments).complaint


@pytest.mark.thorough
def test_an_evaluation_ranks_by_the_given_length_normalization(
    seqwise: Command, data: Path, trained_speller: Path
) -> None:
    file = data / "dev.tsv"

    def length_ratio(*options: str) -> float:
        (row,) = json.loads(
            seqwise("evaluate", trained_speller, file, "--decoder=beam", "--json", *options).out
        ).values()
        return float(row["length ratio"]["value"])

    def predicted_length(*options: str) -> int:
        lines = seqwise("predict", trained_speller, file, "--decoder=beam", "--json", *options).out.splitlines()
        return sum(len(json.loads(line)["outputs"][0]["output"].split()) for line in lines)

    power = "--length-normalization=8"
    assert predicted_length(power) > predicted_length()
    assert length_ratio(power) / length_ratio() == pytest.approx(predicted_length(power) / predicted_length())
    said = seqwise("evaluate", trained_speller, file, "--length-normalization=inf").complaint
    assert "--length-normalization must be finite" in said


@pytest.mark.thorough
def test_an_input_that_cannot_be_read_counts_as_wrong(
    seqwise: Command, data: Path, trained_speller: Path, tmp_path: Path
) -> None:
    def measured(file: Path) -> dict[str, dict[str, float]]:
        return {
            name: {title: estimate["value"] for title, estimate in row.items()}
            for name, row in json.loads(seqwise("evaluate", trained_speller, file, "--json").out).items()
        }

    known = (data / "dev.tsv").read_text()
    count = len({line.split("\t")[0] for line in known.splitlines()})
    file = tmp_path / "test.tsv"
    file.write_text(f"ax\tA B\n{known}")
    ended = seqwise("evaluate", trained_speller, file)
    said = (
        f"1 of {1 + known.count(chr(10))} inputs could not be read (counted as wrong); the first is {file}:1: unknown"
    )
    assert ended.code == 1 and ended.err.startswith(f"seqwise: {said} token 'x'; replace it\n")
    before, after = measured(data / "dev.tsv"), measured(file)
    assert {*before} == {*after} and len(after) == 5
    for name, row in before.items():
        assert after[name]["word error"] == pytest.approx((row["word error"] * count + 1) / (count + 1))
        assert after[name]["length ratio"] < row["length ratio"]
    ended = seqwise("diagnose", trained_speller, file, "--json")
    assert ended.code == 0 and "could not be read (left out); the first is" in ended.err
    assert json.loads(ended.out)["examples"] == known.count("\n")
    ended = seqwise("report", trained_speller, "--file", file, "--examples", "2", "--output", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert ended.code == 0 and "cannot read this example" in page and "counted as wrong" in page
    file.write_text("ax\tA B\n")
    assert seqwise("evaluate", trained_speller, file).complaint.startswith(f"{file}:1: unknown token 'x'")


@pytest.mark.parametrize("command", ["evaluate", "diagnose"])
def test_where_no_input_can_be_read_the_first_is_named_whatever_the_beam(
    command: str, seqwise: Command, trained_speller: Path, tmp_path: Path
) -> None:
    file = tmp_path / "test.tsv"
    file.write_text("ax\tA B\n")
    refused = seqwise(command, trained_speller, file, "--beam-size=2").complaint
    assert refused.startswith(f"{file}:1: unknown token 'x'")


def test_evaluate_refuses_what_predict_refuses(seqwise: Command, data: Path, trained_tagger: Path) -> None:
    swapped = seqwise("evaluate", data / "dev.conll", trained_tagger).complaint
    assert swapped.startswith(f"{data / 'dev.conll'}: a file where a run folder was expected; give the --output of")
    ask = ["evaluate", trained_tagger, data / "dev.conll"]
    assert "did you mean 'raw-beam'?" in seqwise(*ask, "--decoder=raw_beam").complaint
    assert "at least 1" in seqwise(*ask, "--beam-size=0").complaint


def test_blank_and_broken_lines_of_inputs(seqwise: Command, trained_tagger: Path, tmp_path: Path) -> None:
    for raw, said in (
        (b"the dog\nr\xffns\n", ":2: byte 0xff"),
        (b"", ": the file is empty"),
        (b"\n \n", ": every line is blank"),
        (b"the\0dog\n", ":1: NUL"),
    ):
        (tmp_path / "inputs").write_bytes(raw)
        ended = seqwise("predict", trained_tagger, tmp_path / "inputs", "--text")
        assert ended.complaint.startswith(f"{tmp_path / 'inputs'}{said}") and ended.out == ""
    (tmp_path / "inputs").write_text("the dog\n\nruns\n\n")
    predict = ["predict", trained_tagger, tmp_path / "inputs", "--text"]
    lines = seqwise(*predict).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["the dog", "", "runs", ""] and lines[1] == lines[3] == ""
    assert [record["outputs"] == [] for record in seqwise(*predict, "--json").records] == [False, True, False, True]


COLUMNS = "# first\n\nthe\tDET\ndog\tNOUN\n\n\n-DOCSTART- -X-\n\n# second\nruns\tVERB\n"


@pytest.mark.thorough
@pytest.mark.parametrize("labels", ["right", "wrong", "_", "none", "blanks"])
def test_columns_are_predicted_line_by_line_whatever_their_labels(
    seqwise: Command, trained_tagger: Path, tmp_path: Path, standard_input: Callable[[Path], None], labels: str
) -> None:
    changes = {"wrong": [("NOUN", "DET"), ("VERB", "ADJ")], "_": [("DET", "_"), ("NOUN", "_"), ("VERB", "_")]}
    changes |= {"none": [("\tDET", ""), ("\tNOUN", ""), ("\tVERB", "")], "blanks": [("\t", "  ")]}
    written = COLUMNS
    for old, new in changes.get(labels, []):
        written = written.replace(old, new)
    file = tmp_path / "test"
    file.write_text(written)
    ended = seqwise("predict", trained_tagger, file)
    assert (ended.code, ended.err) == (0, "")
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert [source for source, _ in rows] == ["the dog", "runs"]
    alone = [seqwise("predict", trained_tagger, source, "--json").records[0]["outputs"][0] for source, _ in rows]
    assert [labels for _, labels in rows] == [best["output"] for best in alone]
    assert [record["line"] for record in seqwise("predict", trained_tagger, file, "--json").records] == [3, 10]

    columns = seqwise("predict", trained_tagger, file, "--format=columns").out
    there, before = columns.split("\n"), written.split("\n")
    assert len(there) == len(before) + 1 and there[-2:] == ["", ""]
    tokens = {3: "the", 4: "dog", 10: "runs"}
    predicted = iter(" ".join(labels for _, labels in rows).split())
    for number, (line, old) in enumerate(zip(there, before, strict=False), start=1):
        assert line == (f"{tokens[number]}\t{next(predicted)}" if number in tokens else old)
    standard_input(file)
    assert seqwise("predict", trained_tagger, "-", "--format=columns").out == columns
    for place in ("kept", "again"):
        assert seqwise("predict", trained_tagger, file, "--format=columns", "--output", tmp_path / place).code == 0
        assert (tmp_path / place).read_text() == columns


def test_files_that_are_not_columns_are_refused_with_a_hint(
    seqwise: Command, trained_tagger: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file.tsv"
    for text, said in (
        ("the old dog\nthe cat\n", ":2: 2 columns where the rows above have 3; "),
        ("the dog\n", ":1: 'dog' is in the label column, "),
        ("shoe\tSH UW\nhat\tHH AE T\n", ":1: 'SH UW' is in the label column, "),
        ("the\tDET\n\tNOUN\n", ":2: the token is empty; "),
        ("# a\n\n", ": no sentence in the file; "),
    ):
        file.write_text(text)
        complaint = seqwise("predict", trained_tagger, file).complaint
        assert complaint.startswith(f"{file}{said}") and ("--text" in complaint or "token" in complaint)
    assert seqwise("predict", trained_tagger, tmp_path / "gone.conll").complaint.endswith(
        "no such file; check the name"
    )


def test_formats_of_the_output(
    seqwise: Command, trained_tagger: Path, trained_speller: Path, data: Path, tmp_path: Path
) -> None:
    tag = ["predict", trained_tagger, data / "dev.conll"]
    assert seqwise(*tag, "--format=json") == seqwise(*tag, "--json") != seqwise(*tag, "--format=lines") == seqwise(*tag)
    assert seqwise("predict", trained_tagger, "the dog", "--format=columns").out.count("\t") == 2
    assert "did you mean 'columns'?" in seqwise(*tag, "--format=column").complaint
    assert "room for one output" in seqwise(*tag, "--format=columns", "--n-best=2").complaint
    assert "is for taggers" in seqwise("predict", trained_speller, "ab", "--format=columns").complaint
    (tmp_path / "inputs").write_text("the dog\nruns\n")
    columns = seqwise("predict", trained_tagger, tmp_path / "inputs", "--text", "--format=columns").out
    assert [line.split("\t")[0] for line in columns.split("\n")] == ["the", "dog", "", "runs", "", ""]


SETTINGS = [
    ("alpha: 0", "alpha must stay greater than 0, but '0' reaches 0"),
    ("alpha: linear(-1, 2)", "alpha must stay greater than 0, but 'linear(-1, 2)' reaches -1"),
    ("alpha: linear(1, -1, 50)", "but 'linear(1, -1, 50)' reaches -1"),
    ("alpha: inverse_sigmoid(5)", "alpha must stay greater than 0"),
    ("alpha: liner(1, 2)", "alpha: unknown schedule 'liner' in 'liner(1, 2)'; did you mean 'linear'?"),
    ("gold_probability: 1.5", "gold_probability: has no effect here; leave it out, or use objective scheduled-samp"),
    ("learning_rate: 0", "learning_rate must be greater than 0, got 0"),
    ("learning_rate: fast", "learning_rate must be a finite number, got 'fast'"),
    ("learning_rate: .nan", "learning_rate must be a finite number"),
    ("beam_size: 0", "beam_size must be at least 1, got 0"),
    ("beam_size: 2.5", "beam_size must be an integer, got '2.5'"),
    ("seed: -1", "seed must be at least 0 and below 4294967296, got -1"),
    ("dropout: 1", "dropout must be at least 0 and below 1, got 1"),
    ("objective: relaxed_beam", "did you mean 'relaxed-beam'?"),
    ("task: tagging", "did you mean 'tag'?"),
    ("model: transformer", "model must be one of lstm, chain, pretrained, got 'transformer'"),
    ("feeding_passes: two-pass", "feeding_passes: has no effect here"),
    ("subword_vocabulary: 0", "subword_vocabulary: has no effect here"),
    ("wrong_label_costs: O=two", "wrong_label_costs: has no effect here"),
]


def test_a_setting_that_is_given_twice_in_a_file(seqwise: Command, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text(f"train: {data / 'train.conll'}\nhidden_size: 8\nmodel:\n  name: lstm\n  hidden_size: 9\n")
    complaint = seqwise("train", "--config", config, "--output", tmp_path / "run").complaint
    said = "hidden_size is given twice; it is also given as model.hidden_size; remove one of them"
    assert complaint == f"{config}:2: {said}"


@pytest.mark.parametrize(("line", "said"), SETTINGS)
def test_a_setting_that_cannot_be_used(seqwise: Command, data: Path, tmp_path: Path, line: str, said: str) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text(f"# mine\ntrain: {data / 'train.conll'}\n{line}\n")
    complaint = seqwise("train", "--config", config, "--output", tmp_path / "run").complaint
    assert complaint.startswith(f"{config}:3: ") and said in complaint
    name, value = line.split(": ")
    flag = f"--{name.replace('_', '-')}={value}"
    by_flag = seqwise("train", "--train", data / "train.conll", flag, "--output", tmp_path / "run").complaint
    assert said in by_flag and str(config) not in by_flag
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epoch: 3", ":1: unknown key 'epoch'; did you mean 'epochs'?"),
        ("epochs: 3\nepochs: 4", ":2: the key 'epochs' occurs twice"),
        ("epochs: [3", ": not valid YAML"),
        ("- epochs", ":1: the file must be a mapping"),
        ("epochs:", ":1: epochs must be a finite number"),
    ],
)
def test_a_wrong_configuration_file(seqwise: Command, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    complaint = seqwise("train", "--config", tmp_path / "settings.yaml", "--output", tmp_path / "run").complaint
    place, _, _ = said.partition(" ")
    assert (
        complaint.startswith(f"{tmp_path / 'settings.yaml'}{place if place != ':' else ':'}") and said[1:] in complaint
    )


def test_outputs_that_cannot_be_written(seqwise: Command, data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    train = ["train", "--train", data / "train.conll", *SHORT, "--output"]
    assert seqwise(*train, tmp_path / "file").complaint == f"{tmp_path / 'file'}: the output is a file; name a folder"
    below = seqwise(*train, tmp_path / "file" / "run").complaint
    assert below.startswith(f"{tmp_path / 'file' / 'run'}: the folder cannot be made (Not a directory)")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(seqwise: Command, data: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    ended = seqwise("train", "--train", data / "train.conll", *SHORT, "--output", tmp_path / "closed" / "run")
    assert "Permission denied" in ended.complaint


def test_an_error_of_the_disk_is_one_line(seqwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "run/log.jsonl")

    monkeypatch.setattr("seqwise.runs.training.train_run", full)
    complaint = seqwise("train", "--train=x", "--output=run").complaint
    assert complaint.startswith("run/log.jsonl: No space left on device; ")


# ------------------------------------------------------------------------------------- damaged runs


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


DAMAGES = [
    ("model/model.safetensors", lambda raw: raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:]),
    ("model/target/tokenizer.json", lambda raw: raw.replace(b"DET", b"TED")),
    ("model/manifest.json", lambda raw: raw[:-20]),
    ("model/manifest.json", lambda raw: raw.replace(b'"version": 1', b'"version": 2')),
    ("configuration.yaml", lambda raw: raw.replace(b"alpha:", b"alfa:")),
    ("configuration.yaml", lambda raw: raw + b"beam_size: [\n"),
    ("configuration.yaml", lambda raw: raw.replace(b"task: tag", b"task: transduce")),
    ("configuration.yaml", lambda raw: raw.replace(b"beam_size: 3", b"beam_size: 0")),
    ("configuration.yaml", lambda raw: raw.replace(b"dropout: 0.1", b"dropout: 7")),
    ("configuration.yaml", lambda raw: b"\xff" + raw),
]


@pytest.mark.parametrize(("name", "change"), DAMAGES)
def test_a_damaged_run_is_refused_with_its_file(
    seqwise: Command, data: Path, tagger: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    before = (tagger / name).read_bytes()
    damage(tagger / name, change)
    assert (tagger / name).read_bytes() != before
    for command in (["predict", tagger, "the dog"], ["evaluate", tagger, data / "dev.conll"]):
        assert seqwise(*command).complaint.startswith(f"{tagger / name}:")


def test_weights_that_do_not_fit_an_edited_configuration(seqwise: Command, tagger: Path) -> None:
    damage(tagger / "configuration.yaml", lambda raw: raw.replace(b"hidden_size: 8", b"hidden_size: 9"))
    complaint = seqwise("predict", tagger, "the dog").complaint
    assert "do not fit the configuration" in complaint and complaint.endswith(
        "restore configuration.yaml as it was saved"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("configuration.yaml", "/configuration.yaml: the file does not exist; restore it"),
        ("model/model.safetensors", "/model/model.safetensors: the file is listed in manifest.json but missing"),
        ("model/manifest.json", "/model: there is no manifest.json, the folder is incomplete"),
        ("model", ": the folder holds no trained model"),
    ],
)
def test_a_run_with_something_missing(seqwise: Command, tagger: Path, name: str, said: str) -> None:
    path = tagger / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert seqwise("predict", tagger, "the dog").complaint.startswith(f"{tagger}{said}")


def test_training_again_repairs_a_damaged_model(seqwise: Command, data: Path, tagger: Path) -> None:
    before = weights(tagger)
    damage(tagger / "model" / "model.safetensors", lambda raw: raw[:100])
    options = ["--train", data / "train.conll", "--dev", data / "dev.conll", *SHORT, "--output", tagger]
    assert seqwise("train", *options).code == 0
    assert weights(tagger) == before


# ----------------------------------------------------------------------------------- as a process


def process(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seqwise", *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, timeout=120, **options)


@pytest.mark.thorough
def test_a_closed_pipe_is_no_error(trained_tagger: Path) -> None:
    texts = "the dog runs\n" * 20_000  # more than a pipe holds
    command = [sys.executable, "-m", "seqwise", "predict", str(trained_tagger), "--text", "--decoder=greedy"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin and running.stdout and running.stderr
        running.stdin.write(texts.encode())
        running.stdin.close()
        assert running.stdout.readline().startswith(b"the dog runs\t")
        running.stdout.close()
        said = running.stderr.read()
        assert (running.wait(timeout=60), said) == (0, b"running on cpu\n")


@pytest.mark.thorough
def test_exit_codes_of_the_process(tmp_path: Path) -> None:
    ended = process("predict", tmp_path / "nowhere", "x")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("seqwise: ") and ended.stderr.count("\n") == 1


def test_internal_errors_keep_their_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("seqwise.runs.load_run", broken)
    monkeypatch.setattr(sys, "argv", ["seqwise", "predict", "run", "x"])
    with pytest.raises(RuntimeError, match="a bug of ours"):
        cli.main()
