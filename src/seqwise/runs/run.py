"""A run: a trained model with its vocabularies and settings, in a folder that is all that prediction needs.

::

    RUN/configuration.yaml   every setting
    RUN/model/               model.safetensors, config.json, the vocabularies, and a manifest with their SHA-256
    RUN/metrics.json         what it reached on the development data
    RUN/log.jsonl            a line for each training step
    RUN/checkpoints/         the last two complete ones (RUN/warm-start/ holds those of the warm start)
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seqwise.data.batches import EncodedExample, encode_examples
from seqwise.data.readers import Example, write_atomically
from seqwise.data.vocabulary import Vocabulary
from seqwise.decoding import DECODERS, Decoder, Hypothesis, decode_examples, step_limit
from seqwise.errors import InputError
from seqwise.models.recurrent import EncoderDecoder, Tagger
from seqwise.runs.settings import SEARCH_OBJECTIVES, Settings, load_settings, score_by_name
from seqwise.training.checkpoints import load_model_file, seal, verify
from seqwise.training.configuration import did_you_mean, dump_configuration, load_configuration
from seqwise.training.schedules import parse_schedule

__all__ = [
    "Prediction",
    "Run",
    "build_model",
    "build_vocabularies",
    "choose_decoder",
    "load_run",
    "predict",
    "require_enough_candidates",
    "save_run",
]

UNKNOWN, END = "<unk>", "</s>"
SequenceModel = Tagger | EncoderDecoder


@dataclass(frozen=True)
class Run:
    """A model with what it takes to use it."""

    settings: Settings
    model: SequenceModel
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Tokens to ids; an unknown label is refused with its file and line."""
        return encode_examples(examples, self.source_vocabulary, self.target_vocabulary)


@dataclass(frozen=True)
class Prediction:
    """One output as tokens, with its score (higher is better)."""

    tokens: tuple[str, ...]
    score: float


def build_vocabularies(examples: Sequence[Example], settings: Settings) -> tuple[Vocabulary, Vocabulary]:
    """Source and target vocabularies of training data; the source is open unless ``minimum_count`` is 1."""
    characters = settings.task == "transduce" and settings.source_units == "characters"
    minimum_count = settings.minimum_count or (1 if characters else 2)
    source = Vocabulary.build(
        (example.source for example in examples),
        minimum_count=minimum_count,
        unknown=None if minimum_count == 1 else UNKNOWN,
    )
    end = END if settings.task == "transduce" else None
    return source, Vocabulary.build((example.target for example in examples), end=end)


def build_model(settings: Settings, source: Vocabulary, target: Vocabulary) -> SequenceModel:
    """A model with new weights, drawn from the settings' seed."""
    sizes: dict[str, Any] = {
        "source_size": len(source),
        "target_size": len(target),
        "embedding_size": settings.embedding_size,
        "hidden_size": settings.hidden_size,
        "dropout": settings.dropout,
    }
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        if settings.task == "tag":
            bidirectional = settings.encoder == "bidirectional"
            return Tagger(**sizes, label_embedding_size=settings.label_embedding_size, bidirectional=bidirectional)
        if target.end_id is None:
            raise InputError("the target vocabulary of a transduction has no end token", mend="is it a tagger?")
        return EncoderDecoder(**sizes, end=target.end_id)


def save_run(run: Run, folder: Path) -> None:
    """Write configuration and model; the model folder appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    partial, final = folder / "model.partial", folder / "model"
    shutil.rmtree(partial, ignore_errors=True)
    run.model.save_pretrained(partial)
    # Its model card says that the model has been published.
    (partial / "README.md").unlink(missing_ok=True)
    run.source_vocabulary.save(partial / "source_vocabulary.json")
    run.target_vocabulary.save(partial / "target_vocabulary.json")
    save_settings(run.settings, folder)
    seal(partial)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(partial, final)


def save_settings(settings: Settings, folder: Path) -> None:
    """Write ``configuration.yaml``, unless it says the same already: it may be the user's own, with comments."""
    path = folder / "configuration.yaml"
    if not path.exists() or load_configuration(Settings, path, {}) != settings:
        write_atomically(path, dump_configuration(settings))


def load_run(folder: Path) -> Run:
    """Read a run back, every file checked against its manifest.

    Raises:
        InputError: the folder is missing, is no run, or a file of it is damaged; the message names the file.
    """
    if not folder.is_dir():
        raise InputError("there is no such run folder", path=folder, mend="give the --output of a seqwise train")
    model_folder = folder / "model"
    if not model_folder.is_dir():
        unfinished = (folder / "checkpoints").is_dir() or (folder / "warm-start").is_dir()
        mend = "run the same seqwise train again to finish it" if unfinished else "give the --output of a seqwise train"
        raise InputError("the folder holds no trained model", path=folder, mend=mend)
    verify(model_folder)
    settings = load_settings(folder / "configuration.yaml", {})
    source = Vocabulary.load(model_folder / "source_vocabulary.json")
    target = Vocabulary.load(model_folder / "target_vocabulary.json")
    try:
        model = build_model(settings, source, target)
    except InputError as error:
        mend = "restore it as it was saved"
        raise InputError(error.problem, path=folder / "configuration.yaml", mend=mend) from error
    _load_weights(model, model_folder / "model.safetensors")
    return Run(settings, model.eval(), source, target)


def _load_weights(model: nn.Module, path: Path) -> None:
    try:
        model.load_state_dict(load_model_file(path))
    except RuntimeError as error:
        problem = f"the weights do not fit the configuration ({str(error).splitlines()[-1].strip()})"
        raise InputError(problem, path=path, mend="restore configuration.yaml as it was saved") from error


def choose_decoder(settings: Settings, name: str | None = None, *, beam_size: int | None = None) -> Decoder:
    """A decoder by name; by default the one that searches as the model was trained to be searched.

    Args:
        settings: of the run.
        name: "greedy", "beam", "raw-beam", "soft-beam", or None: the raw beam for a model trained with global scores,
            otherwise the beam.
        beam_size: by default as in training.

    Raises:
        InputError: there is no such decoder.
    """
    searched = settings.objective in SEARCH_OBJECTIVES
    score = score_by_name(settings.score if searched else "local")
    name = name or ("raw-beam" if searched and settings.score == "global" else "beam")
    if name not in DECODERS:
        raise InputError(f"no decoder is called {name!r}", mend=did_you_mean(name, DECODERS))
    # The value at the end of training, which lies beyond any number of steps that the schedule itself gives.
    final_alpha = parse_schedule(settings.alpha, total_steps=1)(math.inf)
    return DECODERS[name](beam_size or settings.beam_size, final_alpha, score)


def require_enough_candidates(run: Run, examples: Sequence[Example], beam_size: int) -> None:
    """A beam asked for by hand must not be larger than the set of possible outputs.

    Raises:
        InputError: it is, for each of the examples.
    """
    steps = max(step_limit(len(example.source), run.model.end) for example in examples)
    labels = len(run.target_vocabulary)
    if labels**steps < beam_size:
        raise InputError(
            f"a beam of {beam_size} is larger than the number of candidates, {labels}^{steps} = {labels**steps}",
            mend=f"use --beam-size {labels**steps} or less",
        )


def predict(
    run: Run, examples: Sequence[Example], decoder: Decoder, *, n_best: int = 1, length_normalization: float = 0.0
) -> list[list[Prediction]]:
    """The best outputs for each example, best first, as tokens."""
    encoded = run.encode(examples)
    found = decode_examples(run.model, encoded, decoder, n_best=n_best, length_normalization=length_normalization)
    return [[_as_tokens(hypothesis, run.target_vocabulary) for hypothesis in outputs] for outputs in found]


def _as_tokens(hypothesis: Hypothesis, vocabulary: Vocabulary) -> Prediction:
    return Prediction(tuple(vocabulary.decode(hypothesis.tokens)), hypothesis.score)


def save_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Write ``metrics.json``."""
    write_atomically(folder / "metrics.json", json.dumps(metrics, indent=1, sort_keys=True) + "\n")
