"""Runs made from data, and runs read from their folders, of every kind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seqwise.data.readers import Example
from seqwise.data.subwords import (
    Subwords,
    learn_subwords,
    load_subwords,
)
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.models.chain import ChainTagger
from seqwise.models.recurrent import EncoderDecoder, Tagger
from seqwise.models.transformer import Transformer
from seqwise.runs.hub import model_folder, run_folder
from seqwise.runs.run import END, UNKNOWN, Run, SequenceModel, _split, _units, start_normalized
from seqwise.runs.settings import Settings, load_settings, names_pretrained, over_encoder
from seqwise.runs.stages import resolve
from seqwise.runs.tagger_run import load_tagger_run, new_tagger_run
from seqwise.runs.transformers_run import load_transformers_run, new_transformers_run
from seqwise.training.checkpoints import load_model_file, verify

__all__ = ["build_model", "build_vocabularies", "load_run", "new_run"]


def new_run(examples: Sequence[Example], settings: Settings) -> Run:
    """What training starts from: subwords and vocabularies of the training data, and a model with new weights.

    Or a trained model of transformers with its tokenizer, where the settings name one; under a tagger, its encoder.
    """
    if over_encoder(settings):
        return new_tagger_run(examples, settings)
    if names_pretrained(settings.model):
        return new_transformers_run(settings)
    subwords = _learn_subwords(examples, settings)
    source, target = build_vocabularies(_split(examples, *subwords), settings, target_subwords=subwords[1])
    return Run(settings, build_model(settings, source, target), source, target, *subwords)


def _learn_subwords(examples: Sequence[Example], settings: Settings) -> tuple[Subwords | None, Subwords | None]:
    """Subwords of each side that is made of them.

    Each side has its own: the model shares no embeddings between the two, and a joint vocabulary would make every
    search choose among pieces that only occur in sources.
    """
    learnt: list[Subwords | None] = []
    for side in ("source", "target"):
        texts = (getattr(example, side)[0] for example in examples)
        subwords = _units(settings, side) == "subwords"
        learnt.append(learn_subwords(texts, size=settings.subword_vocabulary) if subwords else None)
    return learnt[0], learnt[1]


def build_vocabularies(
    examples: Sequence[Example], settings: Settings, *, target_subwords: Subwords | None = None
) -> tuple[Vocabulary, Vocabulary]:
    """Source and target vocabularies of training data; the source is open unless ``minimum_count`` is 1.

    Args:
        examples: with texts already split into subwords.
        settings: what the two sides are made of, and ``minimum_count``.
        target_subwords: all of them can be written, whether or not the training data need them.
    """
    units = _units(settings, "source")
    minimum_count = settings.minimum_count or (1 if units == "characters" else 2)
    # Subwords that only other texts need, and characters that are none, are unknown whatever the count.
    source = Vocabulary.build(
        (example.source for example in examples),
        minimum_count=minimum_count,
        unknown=None if minimum_count == 1 and units != "subwords" else UNKNOWN,
    )
    end = END if settings.task == "transduce" else None
    targets = [example.target for example in examples] if target_subwords is None else [target_subwords.pieces]
    return source, Vocabulary.build(targets, end=end)


def build_model(settings: Settings, source: Vocabulary, target: Vocabulary) -> SequenceModel:
    """A model with new weights, drawn from the settings' seed."""
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = _draw_model(settings, source, target)
    start_normalized(model, settings)
    return model


def _draw_model(settings: Settings, source: Vocabulary, target: Vocabulary) -> SequenceModel:
    sizes: dict[str, Any] = {
        "source_size": len(source),
        "target_size": len(target),
        "hidden_size": settings.hidden_size,
        "dropout": settings.dropout,
    }
    if settings.task == "tag":
        if target.end is not None:
            problem = f"the target vocabulary of a tagger has the end token {target.end!r}"
            raise InputError(problem, mend="build it without one: a tagger writes a label for each token")
        sizes |= {"embedding_size": settings.embedding_size, "bidirectional": settings.encoder == "bidirectional"}
        if settings.model == "chain":
            return ChainTagger(**sizes)
        return Tagger(**sizes, label_embedding_size=settings.label_embedding_size)
    if target.end_id is None:
        raise InputError("the target vocabulary of a transduction has no end token", mend="is it a tagger?")
    if settings.model == "transformer":
        sizes |= {name: getattr(settings, name) for name in ("num_layers", "num_heads", "feedforward_size")}
        return Transformer(**sizes, end=target.end_id)
    return EncoderDecoder(**sizes, end=target.end_id, embedding_size=settings.embedding_size)


def load_run(name: str | os.PathLike[str]) -> Run:
    """Read a run back, every file checked against its manifest.

    Args:
        name: a folder; or, as a str and where there is no such path, a name on the hub.

    Raises:
        InputError: the folder is missing, is no run, or a file of it is damaged; the message names the file. Or the hub
            has no such run.
    """
    folder = run_folder(name)
    if not folder.is_dir():
        raise InputError("there is no such run folder", path=folder, mend="give the --output of a seqwise train")
    inside = model_folder(folder)
    if not inside.is_dir():
        unfinished = (folder / "checkpoints").is_dir() or (folder / "warm-start").is_dir()
        mend = "run the same seqwise train again to finish it" if unfinished else "give the --output of a seqwise train"
        raise InputError("the folder holds no trained model", path=folder, mend=mend)
    if (inside / "sequence_vocabulary.json").exists():
        mend = "use it with seqwise score or seqwise sample"
        raise InputError("the folder holds a masked model, which predicts no outputs", path=folder, mend=mend)
    verify(inside)
    settings = resolve(load_settings(folder / "configuration.yaml", {}))
    if over_encoder(settings):
        return load_tagger_run(settings, inside)
    if names_pretrained(settings.model):
        return load_transformers_run(settings, inside)
    source = Vocabulary.load(inside / "source_vocabulary.json")
    target = Vocabulary.load(inside / "target_vocabulary.json")
    try:
        model = build_model(settings, source, target)
    except InputError as error:
        mend = "restore it as it was saved"
        raise InputError(error.problem, path=folder / "configuration.yaml", mend=mend) from error
    _load_weights(model, inside / "model.safetensors")
    subwords = [
        load_subwords(inside / f"{side}_subwords.json") if _units(settings, side) == "subwords" else None
        for side in ("source", "target")
    ]
    return Run(settings, model.eval(), source, target, *subwords)


def _load_weights(model: nn.Module, path: Path) -> None:
    try:
        model.load_state_dict(load_model_file(path))
    except RuntimeError as error:
        problem = f"the weights do not fit the configuration ({str(error).splitlines()[-1].strip()})"
        raise InputError(problem, path=path, mend="restore configuration.yaml as it was saved") from error
