"""Log-linear language models as runs: settings, training on text of any size, saving, reading back, scoring.

::

    RUN/settings.json     every setting
    RUN/text.json         the SHA-256 of each text file, and their number of positions
    RUN/model/            model.safetensors, config.json, the tokenizer and a manifest with their SHA-256
    RUN/metrics.json      the final measures
    RUN/checkpoints/      the last two complete ones

Shapes: N positions, T positions of one sentence, the end included.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from reproductions.andreas_klein_2015.log_linear import LogLinear, held_out
from reproductions.andreas_klein_2015.log_linear_training import (
    AdagradState,
    Normalization,
    adagrad_state,
    adagrad_step,
    penalized_normalization,
    sampled_normalization,
)
from reproductions.andreas_klein_2015.streams import (
    Sentence,
    build_vocabulary,
    encode,
    gather_positions,
    read_sentences,
    stream_positions,
)
from seqwise.configuration import Config, setting
from seqwise.configuration.flat import differences
from seqwise.data.durable import discard_partials, holds_nothing, sha256_of_file, write_atomically
from seqwise.data.records import read_record
from seqwise.data.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.evaluation.signature import sign, signature_line
from seqwise.runs.hub import model_folder, run_folder
from seqwise.runs.trainer_options import changed_setting_error
from seqwise.training.checkpoints import (
    UNFINISHED,
    checkpoint_step,
    discard_incomplete,
    keep_checkpoint,
    last_complete,
    load_model_file,
    prune,
    publishing,
    saving,
    verify,
)
from seqwise.training.lock import sole_writer

MODEL, TEXT, SETTINGS = "model", "text.json", "settings.json"


@dataclass(frozen=True)
class LanguageModel:
    """Model with its vocabulary."""

    model: LogLinear
    vocabulary: Vocabulary


def save_language_model(run: LanguageModel, output: Path) -> None:
    """Write the model folder atomically."""
    with publishing(output / MODEL) as partial:
        run.model.save_pretrained(partial)
        # The model card would say that the model has been published.
        (partial / "README.md").unlink(missing_ok=True)
        save_tokenizer(Tokenizer(run.vocabulary), partial)


def load_language_model(name: Path | str) -> LanguageModel:
    """Read a trained language model, whose files are checked against their manifest."""
    folder = run_folder(name)
    inside = model_folder(folder)
    if not folder.is_dir():
        hint = "give the --output of a python -m reproductions.andreas_klein_2015 train"
        raise InputError("there is no such folder", path=folder, hint=hint)
    if not (inside / "tokenizer.json").exists():
        begun = (folder / TEXT).exists()
        hint = (
            "run the same command again to finish it"
            if begun
            else "give the --output of a python -m reproductions.andreas_klein_2015 train"
        )
        raise InputError("the folder holds no trained language model", path=folder, hint=hint)
    verify(inside)
    vocabulary = load_tokenizer(inside).vocabulary
    config = read_part(inside / "config.json", ["vocabulary_size", "num_weights", "templates"])
    model = LogLinear(**config)
    if len(vocabulary) != model.vocabulary_size:
        raise InputError("vocabulary and model do not fit", path=inside, hint="take another copy")
    weights_M = load_model_file(inside / "model.safetensors").get("weights_M")
    if weights_M is None or weights_M.shape != model.weights_M.shape:
        raise InputError("the weights do not fit the configuration", path=inside, hint="take another copy")
    model.load_state_dict({"weights_M": weights_M})
    return LanguageModel(model.eval(), vocabulary)


class SentenceScore(NamedTuple):
    """Sentence with its unnormalised log-score, in nats, and, if requested, log Z at its T positions."""

    sentence: Sentence
    unnormalized: float
    log_partitions_T: Tensor | None

    @property
    def normalized(self) -> float | None:
        """Return the log-probability, ``sum_t f(x_t, y_t) - log Z(x_t)``."""
        return (
            None if self.log_partitions_T is None else self.unnormalized - float(self.log_partitions_T.double().sum())
        )


def score_sentences(run: LanguageModel, sentences: Iterable[Sentence]) -> Iterator[SentenceScore]:
    """Score a stream of sentences, with log Z at each position, by J V additions per word."""
    return _scores(run, sentences, run.model.log_partitions)


def score_sentences_unnormalized(run: LanguageModel, sentences: Iterable[Sentence]) -> Iterator[SentenceScore]:
    """Score a stream of sentences by J look-ups per word, whatever the size of the vocabulary."""
    return _scores(run, sentences, None)


def _scores(
    run: LanguageModel, sentences: Iterable[Sentence], log_partitions: Callable[[Tensor], Tensor] | None
) -> Iterator[SentenceScore]:
    waiting = iter(sentences)
    while block := list(islice(waiting, 256)):
        encoded = [encode(sentence, run.vocabulary) for sentence in block]
        lengths = [len(ids) for ids in encoded]
        positions = gather_positions(encoded, context_size=run.model.context_size)
        with torch.no_grad():
            totals = [float(part.double().sum()) for part in run.model.word_scores(*positions).split(lengths)]
        parts: Sequence[Tensor | None] = [None] * len(block)
        if log_partitions is not None:
            parts = log_partitions(positions.contexts_NC).split(lengths)
        yield from map(SentenceScore, block, totals, parts)


def score_lists(run: LanguageModel, lists: Iterable[Sequence[Sentence]]) -> list[list[float]]:
    """Return the unnormalised scores of all sentences of some lists; an empty sentence has only the end token."""
    lists = list(lists)
    sentences = (sentence for each in lists for sentence in each)
    scores = iter([score.unnormalized for score in score_sentences_unnormalized(run, sentences)])
    return [[next(scores) for _ in each] for each in lists]


def read_part(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Read a JSON file of a run, which must have exactly these keys."""
    return read_record(path, keys, what="part of a language model", hint="remove the folder and train again")


# ---------------------------------------------------------------------------------------- training

LIKELIHOODS: dict[str, Callable[..., Normalization]] = {
    "unnormalized": sampled_normalization,
    "normalized": penalized_normalization,
}
"""Normalisation of the loss, by the name of the likelihood of gold words."""


class LanguageModelSettings(Config):
    """Settings of a language model; likelihood normalized, alpha 0 and fraction 1 make cross-entropy."""

    likelihood: Literal["unnormalized", "normalized"] = setting(
        "unnormalized", "likelihood of gold words: unnormalized, or normalized (with log Z of the same positions)"
    )
    alpha: float = setting(
        1.0,
        "weight of (log Z)^2; log Z ends near 1 / (2 X) with --likelihood unnormalized, near 0 if normalized",
        ge=0,
    )
    fraction: float = setting(0.1, "gamma, in (0, 1]: fraction of the positions whose log Z is computed", ge=0, le=1)
    epochs: int = setting(1, "number of epochs, after one pass for the vocabulary", ge=1)
    batch_size: int = setting(128, "positions in a batch", ge=1)
    learning_rate: float = setting(0.3, "learning rate of Adagrad, in nats", gt=0)
    initial_squares: float = setting(1.0, "initial sum of squared gradients of Adagrad", gt=0)
    num_weights: int = setting(
        2**22, "size of the hashed table; at least ten times the number of words of the text", ge=1
    )
    minimum_count: int = setting(2, "rarer words become the unknown word", ge=1)
    shuffle_buffer: int = setting(2**17, "number of positions that are shuffled together", ge=0)
    save_every: int = setting(2000, "steps between checkpoints", ge=1)
    seed: int = setting(0, "seed of order and sampling", ge=0)

    @property
    def normalization(self) -> Normalization:
        """Return the normalisation of the loss."""
        return LIKELIHOODS[self.likelihood](self.alpha, fraction=self.fraction)


def fit_language_model(
    model: LogLinear,
    sentences: Callable[[], Iterable[Sentence]],
    vocabulary: Vocabulary,
    settings: LanguageModelSettings,
    *,
    num_positions: int,
    checkpoints: Path | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
    is_enough: Callable[[], bool] | None = None,
) -> int:
    """Train a model in place; after an interruption, the same call resumes from its checkpoints, bit for bit.

    The order of positions depends on seed and epoch only, the positions that are normalised on seed and step only.
    ``is_enough`` is called after each epoch; if it returns true, training ends. Returns the number of steps.
    """
    state = adagrad_state(model, initial=settings.initial_squares)
    done = 0 if checkpoints is None else _resume(model, state, checkpoints)
    steps_per_epoch = -(-num_positions // settings.batch_size)
    steps = settings.epochs * steps_per_epoch
    generator, normalization = torch.Generator(), settings.normalization
    for epoch in range(done // steps_per_epoch, settings.epochs):
        batches = stream_positions(
            sentences(),
            vocabulary,
            context_size=model.context_size,
            batch_size=settings.batch_size,
            shuffle_buffer=settings.shuffle_buffer,
            seed=_seed(settings.seed, 0, epoch),
        )
        for batch in islice(batches, done - epoch * steps_per_epoch, None):
            generator.manual_seed(_seed(settings.seed, 1, done))
            loss = adagrad_step(
                model, state, batch, normalization, learning_rate=settings.learning_rate, generator=generator
            )
            done += 1
            if not math.isfinite(loss):
                raise InputError(f"the loss is {loss} at step {done}", hint="lower the learning rate")
            if on_step is not None:
                on_step(done, steps, loss)
            if checkpoints is not None and (done % settings.save_every == 0 or done == steps):
                _save_checkpoint(model, state, checkpoints, done)
        if is_enough is not None and is_enough():
            break
    if not bool(torch.isfinite(model.weights_M).all()):
        raise InputError("after the last step a weight is not finite", hint="lower the learning rate")
    return done


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _save_checkpoint(model: LogLinear, state: AdagradState, folder: Path, done: int) -> None:
    partial = folder / UNFINISHED / f"checkpoint-{done}"
    tensors = {"weights_M": model.weights_M.detach(), "squares_M": state.squares_M}
    with saving(partial):
        partial.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial / "training.safetensors")
        keep_checkpoint(folder, done)


def _resume(model: LogLinear, state: AdagradState, checkpoints: Path) -> int:
    """Load the last complete checkpoint into model and state, and return its number of steps."""
    discard_incomplete(checkpoints)
    last = last_complete(checkpoints)
    if last is None:
        return 0
    tensors = load_model_file(last / "training.safetensors")
    with torch.no_grad():
        for name, tensor in (("weights_M", model.weights_M), ("squares_M", state.squares_M)):
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise InputError("the checkpoint is of another model", path=last, hint="remove it")
            tensor.copy_(tensors[name])
    prune(checkpoints)  # there may be no later save that does it
    return checkpoint_step(last) or 0


def train_language_model(
    files: Sequence[Path],
    output: Path,
    settings: LanguageModelSettings,
    *,
    dev: Sequence[Path] = (),
    on_step: Callable[[int, int, float], None] | None = None,
) -> dict[str, Any]:
    """Train a language model on text files and write a run to the output folder.

    The files are streamed: once to hash them, once for the vocabulary, and once in each epoch. Memory holds only the
    vocabulary, the table and the shuffle buffer. After an interruption, the same call resumes from the last complete
    checkpoint and ends with the same weights.
    """
    with sole_writer(output):
        return _train(files, output, settings, dev=dev, on_step=on_step)


def _train(
    files: Sequence[Path],
    output: Path,
    settings: LanguageModelSettings,
    *,
    dev: Sequence[Path],
    on_step: Callable[[int, int, float], None] | None,
) -> dict[str, Any]:
    text = {"files": [[path.name, _sha256(path)] for path in files]}
    _claim(output, settings, text["files"])
    measured = [_sha256(path) for path in dev]  # before training, so that a missing file is an error at once
    known = output / "tokenizer"
    if known.exists() and (output / TEXT).exists():
        vocabulary = load_tokenizer(known).vocabulary
        num_positions = _positions(output / TEXT)
    else:
        num_positions = 0

        def counted() -> Iterator[Sentence]:
            nonlocal num_positions
            for sentence in read_sentences(files):
                num_positions += len(sentence.tokens) + 1
                yield sentence

        vocabulary = build_vocabulary(counted(), minimum_count=settings.minimum_count)
        save_tokenizer(Tokenizer(vocabulary), known)
        _write(output / TEXT, {**text, "positions": num_positions})
    model = _new_model(len(vocabulary), settings.num_weights)
    steps = fit_language_model(
        model,
        lambda: read_sentences(files),
        vocabulary,
        settings,
        num_positions=num_positions,
        checkpoints=output / "checkpoints",
        on_step=on_step,
    )
    save_language_model(LanguageModel(model, vocabulary), output)
    metrics: dict[str, Any] = {"steps": steps, "positions": num_positions, "vocabulary": len(vocabulary)}
    if dev:
        positions = stream_positions(
            read_sentences(dev), vocabulary, context_size=model.context_size, batch_size=settings.batch_size
        )
        metrics["dev"] = held_out(model, positions)._asdict()
        method = f"log-linear language model, {settings.likelihood}, alpha {settings.alpha:g}"
        data = hashlib.sha256("".join(measured).encode()).hexdigest()
        metrics["signature"] = signature_line(
            sign(f"{method}, gamma {settings.fraction:g}", seeds=[settings.seed], data=data)
        )
    _write(output / "metrics.json", metrics)
    return metrics


def _new_model(vocabulary_size: int, num_weights: int) -> LogLinear:
    try:
        return LogLinear(vocabulary_size=vocabulary_size, num_weights=num_weights)
    except (RuntimeError, MemoryError, TypeError, OverflowError):  # the type depends on the size
        raise InputError(f"num_weights = {num_weights} does not fit in memory", hint="give fewer") from None


def _positions(path: Path) -> int:
    number = read_part(path, ["files", "positions"])["positions"]
    if not isinstance(number, int) or number < 1:
        raise InputError("positions is not a number of positions", path=path, hint="remove the folder and train again")
    return number


def _claim(output: Path, settings: LanguageModelSettings, files: list[list[str]]) -> None:
    """Write the settings into the folder; raise an InputError if it holds something else, or another run."""
    path = output / SETTINGS
    if path.exists():
        try:
            begun = LanguageModelSettings(**read_part(path, list(LanguageModelSettings.model_fields)))
        except InputError:
            problem = "the settings in the folder are not those of a language model"
            raise InputError(problem, path=output, hint="give another --output") from None
        if not (output / MODEL).exists() and last_complete(output / "checkpoints") is None:
            # The run has no checkpoint, so settings that were refused may be corrected.
            (output / TEXT).unlink(missing_ok=True)
        if (output / TEXT).exists():
            for name, (then, now) in differences(begun, settings.replace(save_every=begun.save_every)).items():
                raise changed_setting_error(output, name, then, now)
            if read_part(output / TEXT, ["files", "positions"])["files"] != files:
                raise InputError(
                    "the run was begun on other text",
                    path=output,
                    hint="give another --output, or remove this folder to start again",
                )
    elif not holds_nothing(output):
        raise InputError(
            "the folder is not empty and holds no language model", path=output, hint="give another --output"
        )
    discard_partials(output)
    _write(path, settings.model_dump())


def _write(path: Path, record: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(record, indent=1, sort_keys=True) + "\n")


def _sha256(path: Path) -> str:
    try:
        return sha256_of_file(path)
    except FileNotFoundError:
        raise InputError("no such file", path=path) from None
    except IsADirectoryError:
        raise InputError("a folder where a file was expected", path=path, hint="name the files in it") from None
