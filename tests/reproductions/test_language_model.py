"""Language models as runs and on the command line: scores by enumeration, resumption, re-ranking by hand."""

from __future__ import annotations

import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import Command
from reproductions.andreas_klein_2015 import log_linear as model_module
from reproductions.andreas_klein_2015.language_model import (
    LanguageModel,
    LanguageModelSettings,
    load_language_model,
    save_language_model,
    score_sentences,
    score_sentences_unnormalized,
    train_language_model,
)
from reproductions.andreas_klein_2015.log_linear import LogLinear
from reproductions.andreas_klein_2015.log_linear_training import Normalization
from reproductions.andreas_klein_2015.reranking import Candidate, candidate_table, read_nbest, tune
from reproductions.andreas_klein_2015.streams import Sentence, encode
from run_folders import weights
from seqwise.data import Vocabulary
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts
from seqwise.training import checkpoints

TINY = LanguageModelSettings(num_weights=3000, batch_size=16, epochs=2, save_every=7, shuffle_buffer=50, fraction=0.3)
WORDS = ["the", "a", "dog", "cat", "sees", "runs", "big", "small"]


@pytest.fixture
def seqwise(language_model: Command) -> Command:
    """The commands of language models."""
    return language_model


def write(path: Path, count: int, seed: int) -> Path:
    chance = random.Random(seed)
    lines = [" ".join(chance.choices(WORDS, weights=range(8, 0, -1), k=chance.randint(1, 6))) for _ in range(count)]
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write(tmp_path / "text.txt", 60, 0)


@pytest.fixture
def trained(text: Path, tmp_path: Path) -> Path:
    train_language_model([text], tmp_path / "trained", TINY)
    return tmp_path / "trained"


# ---- Scores ---------------------------------------------------------------------------------------------------------


def score_by_enumeration(run: LanguageModel, words: list[str]) -> tuple[float, float]:
    """Unnormalised and normalised, one word of the vocabulary at a time, without vectorised sums over it."""
    table, start = run.model.weights_M.tolist(), 0.0
    ids = [*run.vocabulary.encode(words), run.vocabulary.end_id or 0]
    raw = start
    log_z = 0.0
    for place, gold in enumerate(ids):
        context = [ids[place - d] if place >= d else -1 for d in range(1, run.model.context_size + 1)]
        offsets = run.model.offsets(torch.tensor([context]))[0].tolist()
        scores = [math.fsum(table[offset + word] for offset in offsets) for word in range(len(run.vocabulary))]
        raw += scores[gold]
        log_z += math.log(math.fsum(map(math.exp, scores)))
    return raw, raw - log_z


def log_z_by_enumeration(run: LanguageModel, words: list[str]) -> list[float]:
    """log Z of each position: that of a prefix with an end, less that of the shorter one with the same words before it.

    The end is a gold word like any other, and log Z does not depend on which word is gold.
    """
    sums = [
        math.fsum((raw, -normalized))
        for raw, normalized in (score_by_enumeration(run, words[:length]) for length in range(len(words) + 1))
    ]
    return [after - before for before, after in zip([0.0, *sums], sums, strict=False)]


def test_scores_are_those_of_enumeration(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("the dog runs\n\na zebra\n")
    run = load_language_model(trained)
    ended = seqwise("score", trained, file)
    assert ended.code == 0
    records = [json.loads(line) for line in ended.out.splitlines()]
    assert [(one["text"], one["line"]) for one in records] == [("the dog runs", 1), ("a zebra", 3)]
    total = 0.0
    for record in records:
        raw, normalized = score_by_enumeration(run, record["text"].split())
        assert record["unnormalized"] == pytest.approx(raw, abs=1e-4)
        assert record["normalized"] == pytest.approx(normalized, abs=1e-4)
        total += normalized
    assert f"7 positions: perplexity {math.exp(-total / 7):.4g}, R = mean |log Z|" in ended.err
    raw_only = seqwise("score", trained, file, "--unnormalized")
    assert [json.loads(line)["unnormalized"] for line in raw_only.out.splitlines()] == [
        one["unnormalized"] for one in records
    ]
    assert "normalized" not in json.loads(raw_only.out.splitlines()[0]) and "mean unnormalised score" in raw_only.err


def test_risk_and_perplexity_are_those_of_enumeration(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    """The summary of a text and the measures of training on it, against log Z found word by word."""
    run, file = load_language_model(trained), tmp_path / "one.txt"
    file.write_text("the cat\n")
    values = [
        raw - normalized
        for raw, normalized in (score_by_enumeration(run, words) for words in ([], ["the"], ["the", "cat"]))
    ]
    # log Z of a sentence is a sum over its positions, so that of a longer one adds that of its last.
    summary = seqwise("score", trained, file).err
    assert f"mean log Z {values[2] / 3:.3f}" in summary
    log_z = log_z_by_enumeration(run, ["the", "cat"])
    mean = sum(log_z) / 3
    # Of both signs, which a constant in the bias sees to: R is then not |mean log Z|.
    with torch.no_grad():
        run.model.weights_M[-len(run.vocabulary) :] -= mean
    save_language_model(run, tmp_path / "shifted")
    summary = seqwise("score", tmp_path / "shifted", file).err
    risk = sum(abs(value - mean) for value in log_z) / 3
    assert risk > 0.01 and f"R = mean |log Z| {risk:.3f}, mean log Z {0:.3f}, mean |log Z - mean| {risk:.3f}" in (
        summary.replace("-0.000", "0.000")
    )
    metrics = train_language_model([tmp_path / "text.txt"], tmp_path / "trained", TINY, dev=[file])
    assert metrics["dev"]["mean"] == pytest.approx(values[2] / 3, abs=1e-5)
    assert metrics["dev"]["num_positions"] == 3


def test_unnormalized_scores_never_touch_the_vocabulary(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight that is not one of the J of a gold word is NaN, and sums over windows are not to be had."""
    run, sentence = load_language_model(trained), Sentence(("the", "dog"))
    (before,) = (one.unnormalized for one in score_sentences_unnormalized(run, [sentence]))
    ids = encode(sentence, run.vocabulary)
    used = torch.zeros(len(run.model.weights_M), dtype=torch.bool)
    for place, word in enumerate(ids):
        context = [ids[place - d] if place >= d else -1 for d in (1, 2, 3)]
        used[run.model.offsets(torch.tensor([context]))[0] + word] = True
    with torch.no_grad():
        run.model.weights_M[~used] = math.nan

    def refuse(*_: object) -> None:
        raise AssertionError("the vocabulary was touched")

    monkeypatch.setattr(model_module, "window_sums", refuse)
    (after,) = (one.unnormalized for one in score_sentences_unnormalized(run, [sentence]))
    assert after == before and math.isfinite(after)
    with pytest.raises(AssertionError, match="touched"):
        list(score_sentences(run, [sentence]))


def test_scoring_is_lazy() -> None:
    """A stream without an end is scored as it comes."""
    vocabulary = Vocabulary(("a", "</s>"), end="</s>")
    run = LanguageModel(LogLinear(vocabulary_size=2, num_weights=64), vocabulary)

    def endless():
        while True:
            yield Sentence(("a",))

    assert next(score_sentences(run, endless())).unnormalized == pytest.approx(2 * math.log(0.5))


# ---- Training -------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("stop", [3, 7, 9, 20, 26])
def test_interrupted_training_resumes_to_the_same_weights(text: Path, trained: Path, tmp_path: Path, stop: int) -> None:
    """Before, at and after a checkpoint, in both epochs, with what a crash inside a save leaves behind."""

    def on_step(step: int, steps: int, loss: float) -> None:
        assert steps > 26
        if step == stop:
            raise Stopped

    output = tmp_path / "again"
    with pytest.raises(Stopped):
        train_language_model([text], output, TINY, on_step=on_step)
    torn = output / "checkpoints" / "checkpoint-999"
    torn.mkdir(parents=True)
    (torn / "training.safetensors").write_bytes(b"half")
    seen: list[int] = []
    train_language_model([text], output, TINY, on_step=lambda step, steps, loss: seen.append(step))
    # At step 7 it stops before the checkpoint of that step is written.
    assert seen[0] == (stop - 1) // 7 * 7 + 1 and not torn.exists()
    assert weights(output) == weights(trained)
    seen.clear()
    train_language_model([text], output, TINY, on_step=lambda step, steps, loss: seen.append(step))
    assert seen == [] and weights(output) == weights(trained)


def test_interrupted_before_its_last_save_cleared_away_it_is_cleared_away(
    text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path, **options: Any) -> None:
        if (folder / newest).exists():
            raise Stopped
        prune(folder, **options)

    kept = sorted(path.name for path in (trained / "checkpoints").iterdir())
    newest, output = max(kept, key=lambda name: int(name.rpartition("-")[2])), tmp_path / "again"
    prune = checkpoints.prune
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(checkpoints, "prune", interrupted)
        train_language_model([text], output, TINY)
    assert len(list((output / "checkpoints").iterdir())) == len(kept) + 1
    train_language_model([text], output, TINY)
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == kept


def test_text_seed_and_form_of_the_file(text: Path, trained: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed" / "text.txt.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(text.read_bytes()))
    train_language_model([packed], tmp_path / "gz", TINY)
    assert weights(tmp_path / "gz") == weights(trained)
    train_language_model([text], tmp_path / "seed", TINY.replace(seed=1))
    assert weights(tmp_path / "seed") != weights(trained)


def test_the_normalised_positions_are_drawn_anew_for_each_batch(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each H is that of the generator of its step, and of 10 positions out of 16 hardly two draws are the same."""
    draws: list[list[int]] = []

    def draw(self: Normalization, num_positions: int, generator: torch.Generator | None = None) -> torch.Tensor:
        chosen_H = drawn(self, num_positions, generator)
        draws.append(chosen_H.tolist())
        return chosen_H

    drawn = Normalization.draw
    monkeypatch.setattr(Normalization, "draw", draw)
    settings = TINY.replace(fraction=0.6)
    train_language_model([text], tmp_path / "drawn", settings)
    of_whole_batches = [tuple(one) for one in draws if len(one) == 10]
    assert len(of_whole_batches) > 20
    assert len(set(of_whole_batches)) == len(of_whole_batches)
    # Over all batches every place is drawn at times, and at times not.
    shares = [sum(place in one for one in of_whole_batches) / len(of_whole_batches) for place in range(16)]
    assert all(0.2 < share < 0.95 for share in shares)
    first, draws[:] = list(draws), []
    train_language_model([text], tmp_path / "again", settings)
    assert draws == first, "and by the seed"
    draws.clear()
    train_language_model([text], tmp_path / "other", settings.replace(seed=1))
    assert draws != first


def test_every_position_is_learnt_from_once_an_epoch(text: Path, tmp_path: Path) -> None:
    """Without normaliser the count of a gold word's bias moves by rate / sqrt(s), s growing: as many moves as words."""
    settings = TINY.replace(fraction=0.0, epochs=1, batch_size=10**6, initial_squares=1e6, learning_rate=1e3)
    train_language_model([text], tmp_path / "counts", settings)
    run = load_language_model(tmp_path / "counts")
    bias_V = run.model.weights_M[-len(run.vocabulary) :] + math.log(len(run.vocabulary))
    words = text.read_text().split()
    expected = [words.count(token) if token in words else 60 * (token == "</s>") for token in run.vocabulary.tokens]
    # One step: g = -count, s = 10^6 + count^2.
    moves = [1e3 * count / math.sqrt(1e6 + count**2) for count in expected]
    assert bias_V.tolist() == pytest.approx(moves, abs=1e-3)
    assert json.loads((tmp_path / "counts" / "text.json").read_text())["positions"] == sum(expected)


def test_a_language_model_learns_and_normalizes_itself(seqwise: Command, tmp_path: Path) -> None:
    train, dev = write(tmp_path / "a.txt.gz", 600, 1), write(tmp_path / "dev.txt", 60, 2)
    ended = seqwise("train", train, "--dev", dev, "--output", tmp_path / "lm", "--num-weights=5000", "--batch-size=32")
    assert ended.code == 0 and "try: python -m reproductions.andreas_klein_2015 score" in ended.out
    metrics = json.loads((tmp_path / "lm" / "metrics.json").read_text())["dev"]
    assert f"perplexity {metrics['perplexity']:.4g}" in ended.out
    # Eight words by weights 8 to 1, and an end after 3.5 on average: a perplexity of about 8.
    assert 5 < metrics["perplexity"] < 10
    assert metrics["mean"] == pytest.approx(0.5, abs=0.2) and metrics["deviation"] < 0.4


def test_folders_of_others_and_bad_files_are_refused(
    seqwise: Command, text: Path, trained: Path, tmp_path: Path
) -> None:
    same = ["--num-weights=3000", "--batch-size=16", "--epochs=2", "--fraction=0.3", "--save-every=7"]
    changed = seqwise("train", text, "--output", trained, *same, "--alpha=2")
    assert "the run was started with another alpha (1.0 then, 2.0 now)" in changed.complaint
    text.write_text("another text\n" * 9)
    with pytest.raises(InputError, match="the run was begun on other text"):
        train_language_model([text], trained, TINY)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    assert "is not empty and holds no language model" in seqwise("train", text, "--output", tmp_path / "full").complaint
    assert "no such file" in seqwise("train", tmp_path / "no.txt", "--output", tmp_path / "x").complaint
    assert not (tmp_path / "x").exists()
    assert (
        "fraction must be at least 0 and at most 1"
        in seqwise("train", text, "-o", tmp_path / "x", "--fraction=2").complaint
    )
    assert (
        "likelihood must be one of unnormalized, normalized, got 'exact'"
        in seqwise("train", text, "-o", tmp_path / "x", "--likelihood=exact").complaint
    )
    assert "batch_size must be at least 1" in seqwise("train", text, "-o", tmp_path / "x", "--batch-size=0").complaint
    assert "cannot hold a window" in seqwise("train", text, "-o", tmp_path / "x", "--num-weights=1").complaint
    assert seqwise("train", text, "-o", tmp_path / "x", "--num-weights=100").code == 0  # corrected, in the same folder
    assert "no such folder" in seqwise("score", tmp_path / "none", text).complaint
    assert "holds no trained language model" in seqwise("score", tmp_path / "full", text).complaint
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffd\n")
    assert "bad.txt:2: byte 0xff" in seqwise("score", trained, tmp_path / "bad.txt").complaint
    assert (
        "python -m reproductions.andreas_klein_2015 train --help"
        in seqwise("train", "--output", tmp_path / "x").complaint
    )
    assert seqwise().code == 0 and "rerank" in seqwise().out


def test_damage_is_noticed(seqwise: Command, text: Path, trained: Path) -> None:
    path = trained / "model" / "tokenizer.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "tokenizer.json: the file differs from its checksum" in seqwise("score", trained, text).complaint


def test_hints_name_no_missing_option(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    """There is no option for the end token: the hint is about the text."""
    (tmp_path / "ends.txt").write_text("the dog\nthe </s> runs\n")
    for command in (
        ["train", tmp_path / "ends.txt", "-o", tmp_path / "run"],
        ["score", trained, tmp_path / "ends.txt"],
    ):
        said = seqwise(*command).err.splitlines()[-1]
        assert said.endswith(
            "ends.txt:2: the text holds '</s>', which marks its end; remove it, or write it in another way"
        )


def test_training_without_any_normaliser_is_refused(seqwise: Command, text: Path, tmp_path: Path) -> None:
    """As `seqwise train` refuses it; the library allows it, for the published table has that row."""
    for likelihood in ("unnormalized", "normalized"):
        given = ["--fraction=0", f"--likelihood={likelihood}"]
        said = seqwise("train", text, "-o", tmp_path / "run", *given).complaint
        assert said == "--fraction must be greater than 0 and at most 1, got 0.0"
    assert not (tmp_path / "run").exists()


def test_a_learning_rate_that_is_too_high_is_reported(text: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lower the learning rate"):
        train_language_model([text], tmp_path / "nan", TINY.replace(learning_rate=1e38))


# ---- Re-ranking -----------------------------------------------------------------------------------------------------


def lists_of(seed: int, count: int = 40) -> tuple[list[list[Candidate]], list[list[float]], list[list[bool]]]:
    """Candidates with few different scores, so that ties occur; second scores; and which are right."""
    chance = random.Random(seed)
    lists, seconds, right = [], [], []
    for _ in range(count):
        size = chance.randint(1, 4)
        texts = [" ".join("w" * chance.randint(0, 3)) for _ in range(size)]
        lists.append([Candidate(text, chance.choice([-1.0, -2.0, -3.0])) for text in texts])
        seconds.append([chance.choice([-4.0, -6.0, -8.0]) for _ in range(size)])
        right.append([chance.random() < 0.4 for _ in range(size)])
    return lists, seconds, right


def best_by_hand(candidates: list[Candidate], seconds: list[float], weight: float, bonus: float) -> int:
    best, place = -math.inf, -1
    for number, (candidate, second) in enumerate(zip(candidates, seconds, strict=True)):
        total = candidate.score + weight * (second + bonus * len(candidate.text.split()))
        if total > best:
            best, place = total, number
    return place


@pytest.mark.parametrize("seed", range(5))
def test_the_best_and_the_tuned_weight_by_hand(seed: int) -> None:
    lists, seconds, right = lists_of(seed)
    table = candidate_table(lists, seconds)
    counts = Counts([one for some in right for one in some])
    grid_weights, bonuses = (0.0, 0.25, 0.5, 1.0), (0.0, -1.0, 2.0)
    starts = np.cumsum([0, *map(len, lists)])
    values: dict[tuple[float, float], float] = {}
    for weight in grid_weights:
        for bonus in bonuses:
            places = [best_by_hand(*one, weight, bonus) for one in zip(lists, seconds, strict=True)]
            assert (table.best(weight, word_bonus=bonus) - starts[:-1]).tolist() == places
            values[weight, bonus] = sum(some[place] for some, place in zip(right, places, strict=True)) / len(lists)
    tuned = tune(table, counts, weights=grid_weights, word_bonuses=bonuses)
    assert tuned.value == pytest.approx(max(values.values()))
    firsts_with_it = [pair for pair, value in values.items() if value == pytest.approx(tuned.value)]
    assert (tuned.weight, tuned.word_bonus) == firsts_with_it[0]


def test_tuning_is_of_the_corpus_measure_not_of_its_mean() -> None:
    """Two inputs: the ratio of sums prefers what the mean of ratios does not."""
    lists = [[Candidate("a", 0.0), Candidate("b", -1.0)], [Candidate("c", 0.0)]]
    table = candidate_table(lists, [[0.0, 10.0], [0.0]])
    counts = Counts([1, 50, 0], [1, 100, 1])  # a: 1/2 with c; b: 50/101
    assert tune(table, counts, weights=[0.0, 1.0]) == (0.0, 0.0, 0.5)
    counts = Counts([1, 60, 0], [1, 100, 1])
    assert tune(table, counts, weights=[0.0, 1.0]).weight == 1.0


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="not a finite number"):
        candidate_table([[Candidate("a", 0.0)]], [[math.nan]])


def nbest_file(path: Path, records: list[tuple[str, list[tuple[str, float]]]]) -> Path:
    lines = [
        json.dumps({"input": source, "outputs": [{"output": text, "score": score} for text, score in outputs]})
        for source, outputs in records
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rerank_on_the_command_line(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    run = load_language_model(trained)
    outputs = [("the dog runs", -2.0), ("small small small", -1.0), ("", -9.0)]
    file = nbest_file(tmp_path / "lists.jsonl", [("x", outputs), ("y", outputs[:1])])
    ended = seqwise("rerank", trained, file, "--weight=0.5")
    assert ended.code == 0
    first, second = map(json.loads, ended.out.splitlines())
    assert first["input"] == "x" and [one["output"] for one in second["outputs"]] == ["the dog runs"]
    for one in first["outputs"]:
        raw, _ = score_by_enumeration(run, one["output"].split())
        assert one["language_model"] == pytest.approx(raw, abs=1e-4)
        assert one["total"] == pytest.approx(one["score"] + 0.5 * raw, abs=2e-4)
        assert (one["output"], one["score"]) in outputs
    totals = [one["total"] for one in first["outputs"]]
    assert totals == sorted(totals, reverse=True) and len(totals) == 3
    untouched = json.loads(seqwise("rerank", trained, file, "--weight=0").out.splitlines()[0])
    assert [one["score"] for one in untouched["outputs"]] == [-1.0, -2.0, -9.0]
    assert read_nbest(file)[0].line == 1


def test_a_word_bonus_on_the_command_line(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    outputs = [("the dog runs", -2.0), ("the dog", -2.5), ("", -9.0)]
    file = nbest_file(tmp_path / "lists.jsonl", [("x", outputs)])
    for bonus in (-7.0, 0.25):
        (record,) = map(
            json.loads, seqwise("rerank", trained, file, "--weight=0.5", f"--word-bonus={bonus}").out.split("\n")[:1]
        )
        totals = [one["total"] for one in record["outputs"]]
        assert totals == sorted(totals, reverse=True) and len(totals) == 3
        for one in record["outputs"]:
            expected = one["score"] + 0.5 * (one["language_model"] + bonus * len(one["output"].split()))
            assert one["total"] == pytest.approx(expected, abs=2e-4)
    assert record["outputs"][0]["output"] != ""
    help_text = " ".join(seqwise("rerank", "--help").out.split())
    assert "--word-bonus" in help_text and "-1 / (2 alpha)" in help_text
    assert "--word-bonus must be finite" in seqwise("rerank", trained, file, "--weight=1", "--word-bonus=inf").complaint


def test_the_weight_is_chosen_with_the_word_bonus(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    """The right output is the shorter one; by how much each word earns, a weight finds it or not."""
    right, wrong = "the dog", "the dog the dog the dog the dog"
    file = nbest_file(tmp_path / "dev.jsonl", [("x", [(wrong, -1.0), (right, -1.2)])])
    references = tmp_path / "references.tsv"
    references.write_text(f"x\t{right}\n")
    tuned = ["--dev", file, "--references", references, "--measure=exact"]
    assert "exact 0.00 -> 0.00" in seqwise("rerank", trained, file, *tuned, "--word-bonus=9").err
    ended = seqwise("rerank", trained, file, *tuned, "--word-bonus=-9")
    assert "exact 0.00 -> 100.00" in ended.err
    assert json.loads(ended.out)["outputs"][0]["output"] == right


def test_totals_that_are_no_numbers_are_refused(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    file = nbest_file(tmp_path / "lists.jsonl", [("x", [("the dog runs", -2.0)])])
    ended = seqwise("rerank", trained, file, "--weight=1e308")
    assert ended.out == "" and "is not a finite number; lower the weight" in ended.complaint


@pytest.mark.parametrize("measure", ["exact", "bleu"])
def test_the_weight_is_chosen_on_development_lists(
    seqwise: Command, trained: Path, tmp_path: Path, measure: str
) -> None:
    """The first score prefers what the language model finds improbable, and the right outputs are the others."""
    if measure == "bleu":
        pytest.importorskip("sacrebleu")
    right, wrong = "the dog the a the dog", "small big small runs small big"
    file = nbest_file(tmp_path / "dev.jsonl", [(name, [(wrong, -1.0), (right, -1.2)]) for name in ("x", "y")])
    references = tmp_path / "references.tsv"
    references.write_text("".join(f"{name}\t{text}\n" for name in ("x", "y") for text in (right, "no one says this")))
    ended = seqwise("rerank", trained, file, "--dev", file, "--references", references, "--measure", measure)
    assert ended.code == 0 and f"{measure} 0.00 -> 100.00" in ended.err
    assert json.loads(ended.out.splitlines()[0])["outputs"][0]["output"] == right


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("the dog\tder Hund", r":2: not a JSON object; write it with seqwise predict --n-best N --json"),
        ('{"input": "x"}', r":2: not an n-best list: expected an input and outputs"),
        ('{"input": "x", "outputs": [{"output": "a", "score": NaN}]}', ":2: not an n-best list"),
        ('{"input": "x", "outputs": [{"output": "a", "score": true}]}', ":2: not an n-best list"),
        ('{"input": "x", "outputs": [{"output": 3, "score": 1}]}', ":2: not an n-best list"),
        ('{"input": "x", "outputs": "a"}', ":2: not an n-best list"),
        ('{"input": "x", "outputs": []}', ":2: a list without an output"),
        ("[1]", ":2: not an n-best list"),
    ],
)
def test_bad_lists_are_named_with_their_line(seqwise: Command, trained: Path, tmp_path: Path, line, message) -> None:
    file = nbest_file(tmp_path / "lists.jsonl", [("x", [("a", 0.0)])])
    with file.open("a") as more:
        more.write(line + "\n")
    assert message.replace("\\", "") in seqwise("rerank", trained, file, "--weight=1").complaint


@pytest.mark.parametrize("number", [10**14, 10**17])
def test_a_table_that_no_memory_holds(seqwise: Command, text: Path, tmp_path: Path, number: int) -> None:
    said = seqwise("train", text, "--output", tmp_path / "run", f"--num-weights={number}").complaint
    assert said == f"num_weights = {number} does not fit in memory; give fewer"
    assert seqwise("train", text, "--output", tmp_path / "run", "--num-weights=3000").code == 0, "corrected, it trains"


def test_options_of_rerank_that_make_no_sense(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    file = nbest_file(tmp_path / "lists.jsonl", [("x", [("a", 0.0)])])
    other = tmp_path / "references.tsv"
    other.write_text("z\ta\n")
    assert "give --weight or --dev, not both" in seqwise("rerank", trained, file).complaint
    both = seqwise("rerank", trained, file, "--weight=1", "--dev", file, "--references", other)
    assert "give --weight or --dev, not both" in both.complaint
    assert "--dev and --references go together" in seqwise("rerank", trained, file, "--dev", file).complaint
    assert "must be finite" in seqwise("rerank", trained, file, "--weight=nan").complaint
    tuned = ["--dev", file, "--references", other]
    assert "no measure 'f1'" in seqwise("rerank", trained, file, *tuned, "--measure=f1").complaint
    assert "--measure has no effect" in seqwise("rerank", trained, file, "--weight=1", "--measure=exact").complaint
    unknown = seqwise("rerank", trained, file, "--dev", file, "--references", other, "--measure=exact")
    assert "lists.jsonl:1: this input has no reference" in unknown.complaint
    (tmp_path / "empty.jsonl").write_text("\n\n")
    assert "no n-best list in the file" in seqwise("rerank", trained, tmp_path / "empty.jsonl", "--weight=1").complaint
