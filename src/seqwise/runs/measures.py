"""How good a run is, by decoder: the measures of its task on a set of examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from seqwise.data.batches import EncodedExample, collate
from seqwise.data.readers import Example
from seqwise.decoding import DECODERS
from seqwise.evaluation.metrics import (
    Counts,
    length_ratio,
    phoneme_error_rate,
    sequence_accuracy,
    token_accuracy,
    word_error_rate,
)
from seqwise.objectives.self_normalization import log_partitions
from seqwise.runs.run import Run, choose_decoder, predict

__all__ = [
    "log_partitions_of",
    "measure",
    "measure_decoders",
    "references_by_source",
    "tagging_measures",
    "transduction_measures",
]

Tokens = tuple[str, ...]


def tagging_measures(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> dict[str, Counts]:
    """Sequences entirely right, and labels right."""
    return {
        "sequences right": sequence_accuracy(predictions, references),
        "labels right": token_accuracy(predictions, references),
    }


def transduction_measures(predictions: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> dict[str, Counts]:
    """Outputs wrong (matching none of the references), token errors to the nearest reference, and length ratio."""
    return {
        "word error": word_error_rate(predictions, references),
        "token error": phoneme_error_rate(predictions, references),
        "length ratio": length_ratio(predictions, [options[0] for options in references]),
    }


def measure(run: Run, examples: Sequence[Example], decoder: str, *, beam_size: int | None = None) -> dict[str, Counts]:
    """Decode examples and count what is right.

    In transduction an input that occurs several times (a word with several pronunciations) is decoded once, and every
    one of its targets is a correct answer.
    """
    chosen = choose_decoder(run.settings, decoder, beam_size=beam_size)
    if run.settings.task == "tag":
        outputs = predict(run, examples, chosen)
        return tagging_measures([best[0].tokens for best in outputs], [example.target for example in examples])
    asked, references = references_by_source(examples)
    outputs = predict(run, asked, chosen)
    return transduction_measures([best[0].tokens for best in outputs], references)


def references_by_source(examples: Sequence[Example]) -> tuple[list[Example], list[list[Tokens]]]:
    """Each distinct source once (its first example), and all the targets it has."""
    firsts: dict[Tokens, Example] = {}
    references: dict[Tokens, list[Tokens]] = {}
    for example in examples:
        firsts.setdefault(example.source, example)
        references.setdefault(example.source, []).append(example.target)
    return list(firsts.values()), list(references.values())


def measure_decoders(run: Run, examples: Sequence[Example], encoded: Sequence[EncodedExample]) -> dict[str, Any]:
    """All decoders side by side, as plain numbers, with the statistics of log Z and the best decoder's name."""
    by_decoder = {
        name: {title: counts.value for title, counts in measure(run, examples, name).items()} for name in DECODERS
    }
    log_partitions_N = log_partitions_of(run, encoded)
    title, sign = ("labels right", 1) if run.settings.task == "tag" else ("word error", -1)
    return {
        "decoders": by_decoder,
        "best decoder": max(by_decoder, key=lambda name: sign * by_decoder[name][title]),
        "mean log Z": log_partitions_N.mean().item(),
        "variance of log Z": log_partitions_N.var(correction=0).item(),
    }


def log_partitions_of(run: Run, encoded: Sequence[EncodedExample], *, batch_size: int = 256) -> torch.Tensor:
    """log Z at every gold position, in nats, one dimension."""
    was_training, device = run.model.training, run.model.embedding_VD.device
    run.model.eval()
    parts = [
        log_partitions(run.model, collate(list(enumerate(encoded[start : start + batch_size]))).to(device))
        for start in range(0, len(encoded), batch_size)
    ]
    run.model.train(was_training)
    return torch.cat(parts).cpu()
