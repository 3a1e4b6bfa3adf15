"""Search errors: an input searched with larger beams, and exactly where possible."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seqwise.data.batches import collate
from seqwise.decoding import Decoder, evaluation_mode, steps_after
from seqwise.models.chain import ChainTagger
from seqwise.objectives.chain import best_chain_output
from seqwise.objectives.enumeration import every_output
from seqwise.runs.explore.questions import Question
from seqwise.runs.explore.searches import SCORES, score_outputs
from seqwise.runs.run import OutputRun, search
from seqwise.search.selectors import HardTopK

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Beams that are tried, beside the one that is asked for."""

MOST_OUTPUTS = 4096  # that are enumerated


@dataclass(frozen=True)
class Found:
    """Best output of a search."""

    name: str  # of the search
    tokens: tuple[int, ...]  # ids, without the end token
    score: float  # in nats, by the score that is searched by
    # by how much that is less than the best score that was found at all; 0 for no search error that we know
    short: float


@dataclass(frozen=True)
class SearchErrors:
    """Search errors of beams of several sizes."""

    beams: tuple[Found, ...]  # by size, the one that was asked for among them
    asked: int  # the place of that one
    # the best output there is, or None where it is not known: then the largest beam is the best that is known
    exact: Found | None


def search_errors(run: OutputRun, question: Question, *, k: int, score: str) -> SearchErrors:
    """Search with beams of several sizes, and exactly: chains by raw scores, and short taggings.

    A search error is an output with a lower score than another one, by the score of the search.
    """
    sizes = sorted({*SIZES, k})
    found = [(f"beam of {size}", *_beam(run, question, size, score)) for size in sizes]
    exact = _exact(run, question, score)
    best = max(value for _, _, value in [*found, *([exact] if exact else [])])
    beams = tuple(_found(one, best) for one in found)
    return SearchErrors(beams, sizes.index(k), None if exact is None else _found(exact, best))


def _found(one: tuple[str, tuple[int, ...], float], best: float) -> Found:
    # Two ways to add up the same numbers differ in the last digits.
    short = best - one[2]
    return Found(*one, short if short > 1e-4 * max(1.0, abs(best)) else 0.0)


def _beam(run: OutputRun, question: Question, size: int, score: str) -> tuple[tuple[int, ...], float]:
    decoder = Decoder(HardTopK(size), SCORES[score])
    (outputs,) = search(run, [question.source], decoder, n_best=1, length_normalization=0.0)
    return outputs[0].tokens, outputs[0].score


def _exact(run: OutputRun, question: Question, score: str) -> tuple[str, tuple[int, ...], float] | None:
    model = run.model
    length = steps_after(question.source.source_ids, model)
    if isinstance(model, ChainTagger) and score == "raw":
        with evaluation_mode(model), torch.no_grad():
            context = model.encode(collate([(0, question.source)]).to(model.embedding_VD.device))
            score_B, output_BT = best_chain_output(model.chain(context))
        return "exact, by Viterbi", tuple(output_BT[0].tolist()), float(score_B[0])
    labels = len(run.codec.target_vocabulary)
    if model.end is not None or labels**length > MOST_OUTPUTS:
        return None
    outputs_BNT, _ = every_output(labels, torch.tensor([length]), end=None, limit=MOST_OUTPUTS)
    outputs = [tuple(output) for output in outputs_BNT[0].tolist()]
    values = score_outputs(run, question, outputs, SCORES[score])
    place = max(range(len(values)), key=values.__getitem__)
    return f"exact, of all {len(outputs):,} outputs", outputs[place], values[place]
