"""A trained log-linear language model in a folder: saved, read back, and used to score sentences.

::

    RUN/settings.json     every setting
    RUN/text.json         the SHA-256 of each file of the text, and how many positions they have
    RUN/model/            model.safetensors, config.json, the tokenizer and a manifest with their SHA-256
    RUN/metrics.json      what it came to
    RUN/checkpoints/      the last two complete ones

Shapes: N positions, T positions of one sentence, the end included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reproductions.andreas_klein_2015.log_linear import LogLinear
from reproductions.andreas_klein_2015.streams import Sentence, gather_positions
from seqwise.data.records import read_record
from seqwise.data.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.runs.hub import model_folder, run_folder
from seqwise.training.checkpoints import load_model_file, publishing, verify

MODEL, TEXT = "model", "text.json"


@dataclass(frozen=True)
class LanguageModel:
    """A model with its vocabulary."""

    model: LogLinear
    vocabulary: Vocabulary

    def encode(self, sentence: Sentence) -> list[int]:
        """Ids of the words, the end included."""
        ids = self.vocabulary.encode(sentence.tokens, path=sentence.path or None, line=sentence.line or None)
        return ids if self.vocabulary.end_id is None else [*ids, self.vocabulary.end_id]


def save_language_model(run: LanguageModel, output: Path) -> None:
    """Write the model folder, which appears whole or not at all."""
    with publishing(output / MODEL) as partial:
        run.model.save_pretrained(partial)
        # Its model card says that the model has been published.
        (partial / "README.md").unlink(missing_ok=True)
        save_tokenizer(Tokenizer(run.vocabulary), partial)


def load_language_model(name: Path | str) -> LanguageModel:
    """Read a trained language model back, every file checked against its manifest."""
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
    """A sentence with its unnormalised log-score, in nats, and, where it was asked for, log Z at its T positions."""

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
    """Score sentences as they come, with log Z at each position: J V additions a word."""
    return _scores(run, sentences, run.model.log_partitions)


def score_sentences_unnormalized(run: LanguageModel, sentences: Iterable[Sentence]) -> Iterator[SentenceScore]:
    """Score sentences as they come by J look-ups a word; the vocabulary is never touched, however large it is."""
    return _scores(run, sentences, None)


def _scores(
    run: LanguageModel, sentences: Iterable[Sentence], log_partitions: Callable[[Tensor], Tensor] | None
) -> Iterator[SentenceScore]:
    waiting = iter(sentences)
    while block := list(islice(waiting, 256)):
        encoded = [run.encode(sentence) for sentence in block]
        lengths = [len(ids) for ids in encoded]
        positions = gather_positions(encoded, context_size=run.model.context_size)
        with torch.no_grad():
            totals = [float(part.double().sum()) for part in run.model.word_scores(*positions).split(lengths)]
        parts: Sequence[Tensor | None] = [None] * len(block)
        if log_partitions is not None:
            parts = log_partitions(positions.contexts_NC).split(lengths)
        yield from map(SentenceScore, block, totals, parts)


def read_part(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Read one of the JSON files of a run, which has exactly these keys."""
    return read_record(path, keys, what="part of a language model", hint="remove the folder and train again")
