"""Masked models from files to runs to scores: positions one by one, resumption, every format, and bad input."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from command_line import Command
from run_folders import contents, weights
from seqwise.cli import console
from seqwise.configuration.flat import flags_of
from seqwise.data import IGNORE, EncodedExample, Example
from seqwise.errors import InputError
from seqwise.runs import (
    MaskedModelSettings,
    codecs,
    load_run,
    masked_settings,
    read_sequences,
    save_run,
    scoring,
)
from seqwise.runs.masked_model_settings import MASKED_SETTINGS
from seqwise.runs.masked_model_training import measure_masked_run, new_masked_run, train_masked_model
from seqwise.runs.run import MaskedRun
from seqwise.runs.scoring import Scorer

SIZES: dict[str, Any] = {"hidden_size": 8, "feedforward_size": 16, "epochs": 2.0, "batch_size": 8, "save_every": 5}
TINY: dict[str, MaskedModelSettings] = {
    "words": masked_settings(**SIZES, num_layers=1, num_heads=2),
    "characters": masked_settings(**SIZES, num_heads=1, units="characters", masking="0.3"),
    "lstm": masked_settings(**SIZES, model="lstm", embedding_size=4, masking="one", warmup=0.5),
    "subwords": masked_settings(**SIZES, num_layers=1, units="subwords", subword_vocabulary=20),
    "fasta": masked_settings(**SIZES, num_layers=1, format="fasta", units="characters"),
    "pairs": masked_settings(**SIZES, num_layers=1, format="pairs", source_units="characters"),
    "subword pairs": masked_settings(
        **SIZES,
        num_layers=1,
        format="pairs",
        units="subwords",
        source_units="subwords",
        subword_vocabulary=18,
        max_length=20,
    ),
}
WORDS = ["the", "a", "dog", "cat", "sees", "runs"]
each_kind = pytest.mark.parametrize("kind", TINY)


def sentences(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, weights=range(6, 0, -1), k=chance.randint(1, 5))) for _ in range(count)]


def write(path: Path, settings: MaskedModelSettings, count: int = 60, seed: int = 0) -> Path:
    lines = sentences(count, seed)
    if settings.format == "pairs":
        lines = [f"{line[::-1]}\t{line}" for line in lines]
    if settings.format == "fasta":
        lines = [f">P{number} x\n{line.replace(' ', '')}" for number, line in enumerate(lines)]
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def train(folder: Path, settings: MaskedModelSettings, **options: Any) -> Path:
    file = write(folder / "train.txt", settings)
    train_masked_model(file, folder / "run", settings, **options)
    return folder / "run"


# ---- Scores ---------------------------------------------------------------------------------------------------------


def log_softmax_at(scores: Sequence[float], place: int) -> float:
    highest = max(scores)
    return scores[place] - highest - math.log(math.fsum(math.exp(score - highest) for score in scores))


def scores_one_by_one(run: MaskedRun, one: EncodedExample, *, mask_all: bool = False) -> list[float]:
    """log p of each token, a pass of one row for each: no batches, no padding, no tensors after the scores."""
    model, found = run.model, []
    context = None
    if run.codec.conditional:
        context = model.encode(torch.tensor([one.source_ids]), torch.tensor([len(one.source_ids)]))
    for place, token in enumerate(one.target_ids):
        hidden = range(len(one.target_ids)) if mask_all else [place]
        masked = torch.tensor([[position in hidden for position in range(len(one.target_ids))]])
        # What stands at the masked position plays no part.
        shown = [0 if position in hidden else token for position, token in enumerate(one.target_ids)]
        with torch.no_grad():
            scores = model.masked_logits(torch.tensor([shown]), masked, context)
        found.append(log_softmax_at(scores[place if mask_all else 0].tolist(), token))
    return found


def untrained(tmp_path: Path, kind: str) -> tuple[MaskedRun, list[Example]]:
    """A run in double precision with weights that are not near uniform, and sequences of many lengths."""
    examples = read_sequences(write(tmp_path / "data.txt", TINY[kind], count=13), TINY[kind])
    run = new_masked_run(examples, TINY[kind])
    with torch.no_grad():
        for parameter in run.model.double().eval().parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return run, examples


@pytest.mark.thorough
@each_kind
@pytest.mark.parametrize("max_tokens", [1, 50, 10_000])
def test_scores_are_those_of_single_positions(
    tmp_path: Path, kind: str, max_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the file, whatever shares a pass, and across the blocks that are sorted by length."""
    monkeypatch.setattr(scoring, "BLOCK", 5)
    run, examples = untrained(tmp_path, kind)
    found = list(Scorer(run, pieces="original", max_tokens=max_tokens).score_examples(examples))
    assert [one.example for one in found] == examples
    for one, encoded in zip(found, run.codec.encode(examples), strict=True):
        by_hand = scores_one_by_one(run, encoded)
        assert one.token_log_probs_T.tolist() == pytest.approx(by_hand, rel=0, abs=1e-12)
        assert one.tokens == tuple(run.codec.sequence.vocabulary.tokens[index] for index in encoded.target_ids)
        assert one.log_prob == pytest.approx(math.fsum(by_hand), abs=1e-11)
        assert one.pseudo_perplexity == pytest.approx(math.exp(-math.fsum(by_hand) / len(by_hand)), rel=1e-11)
    assert len({len(one.tokens) for one in found}) > 3


@pytest.mark.parametrize("kind", ["words", "pairs"])
def test_no_pass_has_more_tokens_than_allowed(tmp_path: Path, kind: str) -> None:
    run, examples = untrained(tmp_path, kind)
    given: list[torch.Size] = []
    before = run.model.masked_logits

    def counted(tokens_NT: torch.Tensor, *others: Any) -> torch.Tensor:
        given.append(tokens_NT.shape)
        return before(tokens_NT, *others)

    run.model.masked_logits = counted  # type: ignore[method-assign]
    lengths = [len(one.target) for one in examples]
    for max_tokens in (12, 90):
        given.clear()
        list(Scorer(run, pieces="original", max_tokens=max_tokens).score_examples(examples))
        assert max(shape.numel() for shape in given) <= max_tokens
        assert sum(shape[0] for shape in given) == sum(lengths)
    # Sequences of equal length share a pass as far as there is room.
    assert len(given) < len(examples)
    with pytest.raises(InputError, match="max_tokens must be at least 1, got 0"):
        Scorer(run, max_tokens=0)
    with pytest.raises(InputError, match=r"x\.txt:3: there is no sequence to score"):
        Scorer(run).score_examples([Example(("t",), (), "x.txt", 3)])


@pytest.mark.parametrize("kind", ["lstm", "pairs"])
def test_measures_on_development_data(tmp_path: Path, kind: str) -> None:
    """With every position masked there is nothing random in the masks, and each token counts once."""
    run, examples = untrained(tmp_path, kind)
    run = replace(run, settings=run.settings.with_changes(masking="1", batch_size=4))
    encoded = run.codec.encode(examples)
    alone = [value for one in encoded for value in scores_one_by_one(run, one)]
    together = [value for one in encoded for value in scores_one_by_one(run, one, mask_all=True)]
    seen: list[tuple[int, int]] = []
    measured = measure_masked_run(run, examples, on_measured=lambda done, total: seen.append((done, total)))
    assert measured["pseudo_perplexity"] == pytest.approx(math.exp(-math.fsum(alone) / len(alone)), rel=1e-10)
    assert measured["masked_cross_entropy"] == pytest.approx(-math.fsum(together) / len(together), rel=1e-10)
    assert (measured["sequences"], measured["tokens"], measured["unknown_tokens"]) == (13, len(alone), 0)
    assert seen == [(place, 13) for place in range(1, 14)]
    assert ("length_cross_entropy" in measured) == (kind == "pairs")
    if kind == "pairs":
        losses = []
        for one in encoded:
            context = run.model.encode(torch.tensor([one.source_ids]), torch.tensor([len(one.source_ids)]))
            losses.append(-context.length_log_probs_BL[0, len(one.target_ids) - 1].item())
        assert measured["length_cross_entropy"] == pytest.approx(math.fsum(losses) / len(losses), rel=1e-10)


def test_masks_of_the_development_data_have_their_own_seed(tmp_path: Path) -> None:
    run, examples = untrained(tmp_path, "words")
    torch.manual_seed(1)
    first, state = measure_masked_run(run, examples), torch.get_rng_state()
    torch.manual_seed(1)
    assert bool((torch.get_rng_state() == state).all())
    torch.manual_seed(2)
    assert measure_masked_run(run, examples) == first


# ---- Runs -----------------------------------------------------------------------------------------------------------


@each_kind
def test_a_run_comes_back_as_it_was_saved(tmp_path: Path, kind: str) -> None:
    examples = read_sequences(write(tmp_path / "data.txt", TINY[kind]), TINY[kind])
    run = new_masked_run(examples, TINY[kind])
    save_run(run, tmp_path / "run")
    again = load_run(tmp_path / "run")
    assert (again.settings, again.codec) == (run.settings, run.codec)
    assert type(again.model) is type(run.model) and not again.model.training
    weights = run.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.model.state_dict().items())
    assert again.codec.encode(examples) == run.codec.encode(examples)
    assert sum(again.codec.lengths.values()) == 60 and again.codec.conditional == kind.endswith("pairs")
    # As it stands in the file: these texts need no normalisation.
    for example, encoded in zip(examples, run.codec.encode(examples), strict=True):
        assert (
            again.codec.text(encoded.target_ids)
            == again.codec.example_text(example)
            == "".join(example.target if TINY[kind].units != "words" else " ".join(example.target))
        )
        assert (encoded.source_ids == (0,)) == (not again.codec.conditional)


def test_lengths_and_what_may_be_proposed(tmp_path: Path) -> None:
    run = new_masked_run([Example((), tuple("aab")), Example((), tuple("bax")), Example((), ("a",))], TINY["words"])
    vocabulary = run.codec.sequence.vocabulary
    assert vocabulary.tokens == ("<unk>", "a", "b") and vocabulary.unknown == "<unk>"
    assert run.codec.allowed_V.tolist() == [False, True, True] and run.codec.allowed_V.dtype == torch.bool
    assert dict(run.codec.lengths) == {1: 1, 3: 2}
    closed = new_masked_run([Example((), ("a", "b"))], TINY["words"].with_changes(minimum_count=1))
    assert closed.codec.unknown_id is None and closed.codec.allowed_V.tolist() == [True, True]
    assert closed.codec.text([1, 0]) == "b a"


def test_new_weights_belong_to_the_seed() -> None:
    examples = [Example((), ("a", "b"))] * 2
    state = torch.get_rng_state()
    weights = [new_masked_run(examples, TINY["words"].with_changes(seed=seed)).model.head.weight for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["words", "lstm", "subword pairs"])
def test_killed_training_resumes_to_the_same_files(tmp_path: Path, kind: str) -> None:
    """Stopped before, at and after a checkpoint, with what a crash inside a save leaves behind."""
    settings = TINY[kind]
    whole, output = train(tmp_path, settings), tmp_path / "again"
    for stop in (2, 13):

        def on_progress(stage: str, step: Any, stop: int = stop) -> None:
            assert step.steps == 16
            if step.step == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_masked_model(tmp_path / "train.txt", output, settings, on_progress=on_progress)
        torn = output / "checkpoints" / "checkpoint-999"
        torn.mkdir(parents=True)
        (torn / "model.safetensors").write_bytes(b"half")
    seen: list[int] = []
    metrics = train_masked_model(
        tmp_path / "train.txt", output, settings, on_progress=lambda _, step: seen.append(step.step)
    )
    assert seen == list(range(11, 17))
    for name in ("model/model.safetensors", "log.jsonl", "metrics.json", "configuration.yaml", "model/manifest.json"):
        assert (output / name).read_bytes() == (whole / name).read_bytes(), name
    seen.clear()
    again = train_masked_model(
        tmp_path / "train.txt",
        output,
        settings.with_changes(save_every=9),
        on_progress=lambda _, step: seen.append(step.step),
    )
    assert seen == [] and again == metrics


@pytest.mark.thorough
def test_interrupted_training_says_how_to_continue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    dev = write(tmp_path / "dev.txt", TINY["words"], count=20, seed=1)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, TINY["words"], dev=dev, on_progress=stop)
    assert "stopped at step 1 of 16: no checkpoint yet; run the same command again" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, TINY["words"], dev=dev, on_measured=stop)
    assert "run the same command again to measure the trained model" in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert "dev" in json.loads((train(tmp_path, TINY["words"], dev=dev) / "metrics.json").read_text())


@pytest.mark.thorough
def test_what_training_depends_on(tmp_path: Path) -> None:
    def trained(name: str, file: Path, settings: MaskedModelSettings) -> bytes:
        train_masked_model(file, tmp_path / name, settings)
        return weights(tmp_path / name)

    plain = write(tmp_path / "a.txt", TINY["words"], count=20)
    packed = write(tmp_path / "a.txt.gz", TINY["words"], count=20)
    first = trained("plain", plain, TINY["words"])
    assert trained("packed", packed, TINY["words"]) == first
    for name, value in {"seed": 1, "masking": "one", "warmup": 0.5}.items():
        assert trained(name, plain, TINY["words"].with_changes(**{name: value})) != first, name


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["lstm", "transformer", "pairs"])
def test_a_masked_model_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """Four symbols, of which the others (or the source) tell each: guessing has a pseudo-perplexity of 4."""
    lines = [f"{symbol} {symbol}" for symbol in "abcd"]
    if kind == "pairs":
        lines = [f"{symbol}\t{other}" for symbol, other in zip("abcd", "cdab", strict=True)]
    file = tmp_path / "train.txt"
    file.write_text("".join(f"{line}\n" for line in lines * 8))
    settings = masked_settings(
        format="pairs" if kind == "pairs" else "sequences",
        model="lstm" if kind == "lstm" else "transformer",
        hidden_size=16,
        feedforward_size=32,
        masking="one",
        epochs=60.0,
        batch_size=32,
        learning_rate=1e-2,
    )
    metrics = train_masked_model(file, tmp_path / "run", settings, dev=file)
    assert metrics["dev"]["pseudo_perplexity"] < 1.2
    assert metrics["dev"]["masked_cross_entropy"] < math.log(1.2)
    assert metrics["dev"].get("length_cross_entropy", 0.0) < 1e-6
    assert "development examples are in the training data" in capsys.readouterr().err


# ---- Settings -------------------------------------------------------------------------------------------------------


def test_flags_are_the_settings_and_say_their_defaults(seqwise: Command) -> None:
    said = " ".join(seqwise("masked-model", "train", "--help").out.split())
    for flag in flags_of(MASKED_SETTINGS):
        assert f"--{flag.name.replace('_', '-')} " in said
        assert flag.text.split()[0] in said and (not flag.default or f"[{flag.default}]" in said)


@pytest.mark.thorough
def test_fasta_has_characters_unless_told_otherwise(seqwise: Command, tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_text(">one\nACDA\n>two\nCAD\n", encoding="utf-8")
    small = ["--format", "fasta", "--epochs", 1, "--hidden-size", 8, "--num-heads", 2, "--feedforward-size", 8]
    for name, more in (("one", []), ("two", ["--units", "characters"])):
        ended = seqwise("masked-model", "train", tmp_path / "a.fasta", *small, *more, "--output", tmp_path / name)
        assert ended.code == 0, ended.err
    one, two = ((tmp_path / name / "configuration.yaml").read_text() for name in ("one", "two"))
    assert one == two and "units: characters\n" in one


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--format", "fata"], "format must be one of sequences, fasta, pairs, got 'fata'; did you mean 'fasta'?"),
        (["--batch-size", "many"], "batch_size must be an integer, got 'many'"),
        # Even if it has the value of the default.
        (["--dropout", "0.1", "--model", "lstm"], "dropout: has no effect here"),
        (["--source-units", "words"], "source_units: has no effect here"),
    ],
)
def test_flags_that_are_wrong(seqwise: Command, tmp_path: Path, flags: list[str], said: str) -> None:
    refused = seqwise("masked-model", "train", tmp_path / "a.txt", *flags, "--output", tmp_path / "run")
    assert said in refused.complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("masking", "counts"), [("uniform", {1, 2, 3, 4, 5, 6}), ("one", {1}), ("1", {6}), ("0.000001", {1})]
)
def test_maskings_by_name(masking: str, counts: set[int]) -> None:
    tokens_NT = torch.zeros(400, 7, dtype=torch.long)
    tokens_NT[:, 6] = IGNORE
    masked_NT = masked_settings(masking=masking).masks(tokens_NT)
    assert set(masked_NT.sum(1).tolist()) == counts and not bool(masked_NT[:, 6].any())


def test_a_fraction_masks_that_part() -> None:
    tokens_NT = torch.zeros(500, 40, dtype=torch.long)
    share = float(masked_settings(masking="0.25").masks(tokens_NT).double().mean())
    # 20,000 positions: a standard error of 0.003.
    assert share == pytest.approx(0.25, abs=0.012)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": "csv"}, "format must be one of sequences, fasta, pairs, got 'csv'"),
        ({"units": "bytes"}, "units must be one of words, characters, subwords, got 'bytes'"),
        ({"model": "gru"}, "model must be one of transformer, lstm, got 'gru'"),
        ({"masking": "two"}, "masking: 'two' is neither uniform nor one nor a number between 0 and 1; 0.15 masks 15%"),
        ({"masking": "0"}, "masking: '0' is neither"),
        ({"masking": "1.5"}, "masking: '1.5' is neither"),
        ({"masking": "nan"}, "masking: 'nan' is neither"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"minimum_count": 0}, "minimum_count must be at least 1, got 0"),
        ({"epochs": 0.0}, "epochs must be greater than 0, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number, got nan"),
        ({"learning_rate": math.inf}, "learning_rate must be a finite number, got inf"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"warmup": -0.1}, "warmup must be at least 0 and below 1, got -0.1"),
        ({"seed": -1}, "seed must be at least 0 and below 4294967296, got -1"),
        ({"seed": 2**32}, "seed must be at least 0 and below 4294967296, got 4294967296"),
        ({"hidden_size": 6}, "hidden_size: 6 cannot be divided among 4 heads; use a multiple of 4, or other --num-hea"),
        (
            {"format": "fasta", "units": "words"},
            "units: a FASTA sequence has no words; use --units characters or subwords",
        ),
        ({"format": "pairs", "model": "lstm"}, "model must be one of transformer, got 'lstm'"),
        (
            {"source_units": "characters"},
            "source_units: has no effect here; leave it out, or use format pairs",
        ),
        ({"max_length": 9}, "max_length: has no effect here; leave it out, or use format pairs"),
        (
            {"model": "lstm", "num_layers": 3},
            "num_layers: has no effect here; leave it out, or use model transformer",
        ),
        ({"model": "lstm", "dropout": 0.0}, "dropout: has no effect here"),
        ({"embedding_size": 9}, "embedding_size: has no effect here; leave it out, or use model lstm"),
        ({"subword_vocabulary": 9}, "subword_vocabulary: has no effect here; leave it out, or use subw"),
        ({"units": "subwords", "minimum_count": 1}, "minimum_count: has no effect here"),
    ],
)
def test_settings_out_of_range_or_without_effect_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        masked_settings(**changes)
    assert str(caught.value).startswith(complaint)


# ---- The command line -----------------------------------------------------------------------------------------------


SMALL = ["--hidden-size=8", "--feedforward-size=16", "--num-layers=1", "--epochs=1", "--batch-size=16"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["words", "fasta", "pairs", "subwords"])
def test_from_files_to_scores(seqwise: Command, tmp_path: Path, kind: str) -> None:
    settings = TINY[kind]
    flags = {
        "words": [],
        "fasta": ["--format=fasta"],
        "pairs": ["--format=pairs", "--source-units=characters"],
        "subwords": ["--units=subwords", "--subword-vocabulary=20"],
    }[kind]
    file, dev = write(tmp_path / "a.gz", settings), write(tmp_path / "dev", settings, count=20, seed=9)
    ended = seqwise("masked-model", "train", file, "--dev", dev, "-o", tmp_path / "my run", *SMALL, *flags)
    assert ended.code == 0, ended.err
    metrics = json.loads((tmp_path / "my run" / "metrics.json").read_text())
    assert f"pseudo-perplexity {metrics['dev']['pseudo_perplexity']:.4g}; " in ended.out
    assert f"try: seqwise score '{tmp_path}/my run' FILE, or seqwise sample '" in ended.out
    assert ("of the length" in ended.out) == (kind == "pairs")
    scored = seqwise("score", tmp_path / "my run", dev, "--pieces=original")
    assert scored.code == 0
    run, records = load_run(tmp_path / "my run"), [json.loads(line) for line in scored.out.splitlines()]
    examples = read_sequences(dev, run.settings)
    assert len(records) == len(examples) == 20
    keys = ["text", "line", "log_prob", "mean_log_prob", "unit", "tokens", "token_log_probs", "words"]
    keys.append("pseudo_perplexity")
    assert [key for key in records[0] if key not in ("source", "name")] == keys
    for record, example, encoded in zip(records, examples, run.codec.encode(examples), strict=True):
        by_hand = scores_one_by_one(run, encoded)
        assert record["token_log_probs"] == pytest.approx(by_hand, abs=1e-4)
        assert record["log_prob"] == pytest.approx(math.fsum(by_hand), abs=1e-3)
        assert record["pseudo_perplexity"] == pytest.approx(math.exp(-math.fsum(by_hand) / len(by_hand)), rel=1e-3)
        assert record["line"] == example.line and len(record["tokens"]) == len(by_hand)
        assert all(value == round(value, 4) for value in [*record["token_log_probs"], record["log_prob"]])
    lines = sentences(20, 9)
    assert [one["text"] for one in records] == [line.replace(" ", "") if kind == "fasta" else line for line in lines]
    assert [one["line"] for one in records] == [2 * n if kind == "fasta" else n for n in range(1, 21)]
    assert [one.get("source") for one in records] == [line[::-1] if kind == "pairs" else None for line in lines]
    assert [one.get("name") for one in records] == [f"P{n}" if kind == "fasta" else None for n in range(20)]
    tokens = metrics["dev"]["tokens"]
    expected = f"20 sequences, {tokens:,} tokens: pseudo-perplexity {metrics['dev']['pseudo_perplexity']:.4g}\n"
    assert scored.err == expected
    assert seqwise("score", tmp_path / "my run", dev, "--pieces=original", "--max-tokens=20").err == expected


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return train(tmp_path_factory.mktemp("once"), TINY["words"])


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A run, and the text that it was trained on beside it as train.txt."""
    shutil.copytree(trained_once, tmp_path / "run")
    shutil.copy(trained_once.parent / "train.txt", tmp_path)
    return tmp_path / "run"


def test_unknown_words_are_counted(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("the zebra\n\n  zebra zebra \n")
    ended = seqwise("score", trained, file)
    records = [json.loads(line) for line in ended.out.splitlines()]
    assert [(one["text"], one["line"]) for one in records] == [("the zebra", 1), ("zebra zebra", 3)]
    assert records[1]["tokens"] == ["<unk>", "<unk>"]
    assert ended.err.startswith("2 sequences, 4 tokens (3 unknown): pseudo-perplexity ")
    metrics = train_masked_model(tmp_path / "train.txt", trained, TINY["words"], dev=file)
    assert metrics["dev"]["unknown_tokens"] == 3


def test_other_training_data_leave_the_run_as_it_is(trained: Path, tmp_path: Path) -> None:
    before = contents(trained)
    other = write(tmp_path / "other.txt", TINY["words"], seed=1)
    with pytest.raises(InputError, match="the checkpoint was made with other training data"):
        train_masked_model(other, trained, TINY["words"])
    assert contents(trained) == before


def test_standard_input(seqwise: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "some.txt"
    file.write_text("the dog\n")
    asked: list[str] = []

    def reads(path: Any, **options: Any) -> list[Example]:
        asked.append(str(path))
        return list(really(file, **options))

    really = codecs.each_sequence
    monkeypatch.setattr(codecs, "each_sequence", reads)
    assert seqwise("score", trained, "-").out == seqwise("score", trained, file).out != ""
    assert asked == ["<stdin>", str(file)]


def test_a_progress_bar_does_not_swallow_the_results(
    seqwise: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error is a terminal and standard output is not: rich would send both to the terminal."""
    file = write(tmp_path / "some.txt", TINY["words"], count=5)
    quiet = seqwise("score", trained, file)
    shown = io.StringIO()
    monkeypatch.setattr(console, "err", lambda: Console(file=shown, force_terminal=True))
    assert seqwise("score", trained, file).out == quiet.out != ""
    assert "scoring" in shown.getvalue() and "5/5" in shown.getvalue() and "log_prob" not in shown.getvalue()


# ---- Bad input ------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    def written(text: str) -> Path:
        path = tmp_path / "input.txt"
        path.write_text(text)
        return path

    yield written


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flags", "train_text", "dev_text", "complaint"),
    [
        ([], "", None, "input.txt: the file is empty"),
        ([], "\n \n", None, "input.txt: no example in the file"),
        (
            [],
            "a\tb\n" * 9,
            None,
            "input.txt:1: a tab in a sequence; give one sequence per line; for source, tab, sequence",
        ),
        ([], "a b\n" * 9, "", "dev.txt: the file is empty"),
        ([], "a b\n" * 9, "\n\n", "dev.txt: no example in the file"),
        ([], "a a\n" * 9, None, "input.txt: the training data have one known token, 'a', so there is nothing to pred"),
        (
            [],
            "a b\n",
            None,
            "input.txt: the training data have no known token, so there is nothing to predict; give more",
        ),
        (["--units=characters"], "aa\n", None, "input.txt: the training data have one known token, 'a', so "),
        (["--units=characters"], "ab\n", "ab\nax\n", "dev.txt:2: unknown token 'x'; "),
        (["--minimum-count=1"], "a b\n", "a c\n", "dev.txt:1: unknown token 'c'; "),
        (
            ["--units=subwords"],
            "ab ba\n",
            "ab\naé\n",
            "dev.txt:2: the character 'é' does not occur in the training data; drop",
        ),
        (["--format=pairs"], "a b\n", None, "input.txt:1: 1 column where 2 were expected; write source, one tab, tar"),
        (["--format=pairs"], "a\tb\n\tb\n", None, "input.txt:2: the source is empty; fill it in or drop the line"),
        (
            ["--format=pairs"],
            "a\tb c\n" * 9,
            "a\tb c b\n",
            "dev.txt:1: a sequence of 3 tokens, where max_length is 2; ",
        ),
        (
            ["--format=pairs", "--max-length=1"],
            "a\tb\n" * 9 + "a\tb c\n" * 3,
            None,
            "input.txt:10: a sequence of 2 tokens, where max_length is 1; drop the line, or train with --max-length 2",
        ),
        (["--format=pairs", "--source-units=characters"], "a\tb c\n" * 9, "x\tb c\n", "dev.txt:1: unknown token 'x'; "),
        (["--format=fasta"], "ACDE\n", None, "input.txt:1: a sequence without a header; begin each sequence with a l"),
        (["--units=subwords", "--subword-vocabulary=1"], "ab\n", None, "a subword vocabulary of 1 has no room for the"),
        (["--hidden-size=1000000000000", "--num-heads=1"], "a b\n" * 9, None, "not enough memory for a model of this"),
        (["--learning-rate=1e38", "--epochs=9"], "a b\n" * 9, None, ""),
    ],
)
def test_training_refuses_in_one_line(
    seqwise: Command,
    file: Callable[[str], Path],
    tmp_path: Path,
    flags: list[str],
    train_text: str,
    dev_text: str | None,
    complaint: str,
) -> None:
    dev: list[object] = []
    if dev_text is not None:
        (tmp_path / "dev.txt").write_text(dev_text)
        dev = ["--dev", tmp_path / "dev.txt"]
    output = tmp_path / "out"
    said = seqwise("masked-model", "train", file(train_text), *dev, "-o", output, *flags).complaint
    assert said.removeprefix(f"{tmp_path}/").startswith(complaint)
    if not complaint:
        assert "lower the learning rate" in said
        # Nothing came of it: corrected, the same folder will do.
        assert seqwise("masked-model", "train", file(train_text), "-o", output, *SMALL).code == 0
    else:
        assert not output.exists()


def test_other_runs_and_folders_are_left_alone(seqwise: Command, trained: Path, tmp_path: Path) -> None:
    text = tmp_path / "train.txt"
    same = ["--hidden-size=8", "--feedforward-size=16", "--epochs=2", "--batch-size=8", "--num-layers=1"]
    begin = ["masked-model", "train", text, *same, "-o"]
    assert seqwise(*begin, trained, "--num-heads=2").code == 0
    said = seqwise(*begin, trained, "--num-heads=4").complaint
    assert said.endswith("run: the run was started with another num_heads (2 then, 4 now); give another --output, or "
                         "remove this folder to start again")  # fmt: skip
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "log.jsonl").write_text("precious")
    said = seqwise(*begin, tmp_path / "full").complaint
    assert "full: the folder holds log.jsonl but no configuration.yaml, so it is not a run; give another" in said
    assert seqwise(*begin, text).complaint.endswith("train.txt: the output is a file; name a folder")
    tagged = tmp_path / "tags.tsv"
    tagged.write_text("the\tD\ndog\tN\n\n" * 3)
    ended = seqwise("train", "--train", tagged, "-o", tmp_path / "tagger", "--epochs=1", "--hidden-size=4")
    assert ended.code == 0, ended.err
    said = seqwise("score", tmp_path / "tagger", text).complaint
    assert "holds a run of seqwise train, which is not a masked model; use it with seqwise predict" in said
    of_another_kind = {
        (*begin, tmp_path / "tagger"): "tagger: the folder holds a run of seqwise train; give another --output",
        (
            *begin,
            tmp_path / "next",
            "--init",
            tmp_path / "tagger",
        ): "tagger is not a run of seqwise masked-model train; ",
        ("train", "--train", tagged, "-o", trained): "run: the folder holds a run of seqwise masked-model train; give ",
        ("train", "--train", tagged, "-o", tmp_path / "next", "--init", trained): "run is not a run of seqwise train; ",
        ("predict", trained, "the dog"): "the folder holds a masked model, which does not predict outputs; use it ",
    }
    for command, complaint in of_another_kind.items():
        assert complaint in seqwise(*command).complaint, command
    shutil.rmtree(trained / "model")
    assert (
        "wait for the end of its training or, if that was stopped, run the same command again"
        in seqwise("score", trained, text).complaint
    )


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("name: transformer", "name: lstm", "configuration.yaml:9: unknown key 'model.num_layers'; known are"),
        (
            "hidden_size: 8",
            "hidden_size: many",
            "configuration.yaml:7: model.hidden_size must be an integer, got 'many'",
        ),
        ("format: sequences", "format: pairs", "source/tokenizer_config.json: no such file"),
    ],
)
def test_settings_that_were_changed_by_hand(
    seqwise: Command, trained: Path, tmp_path: Path, before: str, after: str, complaint: str
) -> None:
    path = trained / "configuration.yaml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    assert complaint in seqwise("score", trained, tmp_path / "train.txt").complaint


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("task: tag\n", "these settings are not of this kind of model; restore it as it was saved"),
        (None, "the file does not exist; restore it as it was saved"),
    ],
)
def test_a_model_with_settings_of_another_kind_or_without_any(
    seqwise: Command, trained: Path, tmp_path: Path, text: str | None, complaint: str
) -> None:
    path = trained / "configuration.yaml"
    path.unlink() if text is None else path.write_text(text)
    assert seqwise("score", trained, tmp_path / "train.txt").complaint == f"{path}: {complaint}"


def test_too_little_memory_is_reported(
    seqwise: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")

    monkeypatch.setattr(scoring, "pseudo_log_likelihood", no_room)
    said = seqwise("score", trained, tmp_path / "train.txt").complaint
    assert said == "not enough memory for 1 sequences of 1 tokens; give a smaller --max-tokens"

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("another reason")

    monkeypatch.setattr(scoring, "pseudo_log_likelihood", broken)
    with pytest.raises(RuntimeError, match="another reason"):
        list(Scorer(load_run(trained)).score_examples(read_sequences(tmp_path / "train.txt", TINY["words"])))
