"""Searches of an input, step by step, and the local and raw scores of their outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from seqwise.decoding import Decoder, Hypothesis, encode_input, evaluation_mode, ids_with_end, steps_for
from seqwise.evaluation.exact_search import exact_outputs, shortfall
from seqwise.models.chain import ChainTagger
from seqwise.objectives.chain import best_chain_output
from seqwise.objectives.rescoring import output_scores
from seqwise.pages.explorer.questions import Question
from seqwise.pages.report.examples import SCORES
from seqwise.pages.report.lattice import Lattice, beam_lattice, drawn_steps
from seqwise.runs.measures import gold_text
from seqwise.runs.run import OutputRun, restrictions, search
from seqwise.search.candidates import Score
from seqwise.search.language import language_of
from seqwise.search.selectors import HardTopK, Selector, SoftTopK

MOST_SLOTS = 16
"""Largest beam that can be drawn legibly."""

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Beam sizes to compare with that of the setup."""

MOST_OUTPUTS = 4096  # largest number to enumerate
MOST_EXPANSIONS = 1000  # largest number of prefixes of an exact search

SearchName = Literal["greedy", "beam", "relaxed beam"]
"""Hard with one slot, hard with k slots, relaxed with k slots."""


@dataclass(frozen=True)
class Setup:
    """Setup of a search."""

    search: SearchName = "beam"
    score: str = "local"  # "local" or "raw"
    k: int = 4  # size of the beam; greedy search ignores it
    alpha: float = 1.0  # inverse temperature of the relaxation, in the unit of the run's training

    def decoder(self, run: OutputRun) -> Decoder:
        """Return the selector and the score."""
        selectors: dict[str, Selector] = {
            "greedy": HardTopK(1),
            "beam": HardTopK(self.k),
            "relaxed beam": SoftTopK(self.k, self.alpha, run.settings.divisor_of_alpha),
        }
        return Decoder(selectors[self.search], SCORES[self.score])


@dataclass(frozen=True)
class Scored:
    """Output with its local and raw scores."""

    name: str  # of the search
    tokens: tuple[int, ...]  # ids, without the end token
    text: str  # tokens that training never saw are marked
    log_prob: float  # ``sum_t f_t - log Z_t``, in nats; minus infinity if training never saw one of the tokens
    raw_score: float  # ``sum_t f_t``, in nats; or minus infinity
    is_gold: bool | None  # None if the right output is unknown


def follow(run: OutputRun, question: Question, setup: Setup) -> Lattice:
    """Record a search, with costs against the right output, if known."""
    decoder, model = setup.decoder(run), run.model
    steps = drawn_steps(model, question.source, k=setup.k, gold=question.gold)
    selector = run.codec.allowed(decoder.selector)
    return beam_lattice(model, question.source, selector, num_steps=steps, score=decoder.score, gold=question.gold)


def dropped(lattice: Lattice, step: int) -> tuple[int, ...]:
    """Return the slots before a step of a hard search that have no child: the dropped prefixes; both count from 1."""
    before = lattice[step - 2] if step > 1 else ()
    used = {place for node in lattice[step - 1] if node.is_live for place, weight in enumerate(node.parents) if weight}
    return tuple(place + 1 for place, node in enumerate(before) if node.is_live and place not in used)


def fell_off(lattice: Lattice, gold: Sequence[int]) -> int | None:
    """Return the step, from 1, at which the prefix of gold leaves a hard beam, or None."""
    holding = {0}
    for number, (nodes, right) in enumerate(zip(lattice, gold, strict=False), start=1):
        holding = {
            place
            for place, node in enumerate(nodes)
            if node.is_live and node.tokens[0][0] == right and any(node.parents[parent] for parent in holding)
        }
        if not holding:
            return number
    return None


def compare(run: OutputRun, question: Question, *, k: int, alpha: float) -> list[Scored]:
    """Score the outputs of greedy, hard and relaxed searches with local and raw scores; the right output is last."""
    setups = [Setup("greedy", "local", k, alpha)]
    setups += [Setup(search, score, k, alpha) for search in ("beam", "relaxed beam") for score in SCORES]
    names, outputs = [], []
    for setup in setups:
        best = _best(run, question, setup.decoder(run))
        names.append("greedy" if setup.search == "greedy" else f"{setup.search}, {setup.score} scores")
        outputs.append(ids_with_end(best, run.model.end))
    if question.gold is not None:
        names.append("the right output")
        outputs.append(question.gold)
    scores = zip(*(score_outputs(run, question, outputs, score) for score in SCORES.values()), strict=True)
    return [
        Scored(
            name,
            output[:-1] if output and output[-1] == run.model.end else output,
            gold_text(run, question.example) if output == question.gold else text_of(run, output),
            log_prob,
            raw,
            None if question.gold is None else output == question.gold,
        )
        for name, output, (log_prob, raw) in zip(names, outputs, scores, strict=True)
    ]


def _best(run: OutputRun, question: Question, decoder: Decoder) -> Hypothesis:
    (outputs,) = search(run, [question.source], decoder)
    return outputs[0]


def text_of(run: OutputRun, output: Sequence[int]) -> str:
    """Format an output as text, without its end token."""
    tokens = run.codec.target_vocabulary.decode(token for token in output if token != run.model.end)
    return run.codec.target_text(tokens) or "(empty)"


def score_outputs(run: OutputRun, question: Question, outputs: Sequence[tuple[int, ...]], score: Score) -> list[float]:
    """Score complete outputs, in nats; an output with a token unknown to the model scores minus infinity."""
    model, longest = run.model, max(map(len, outputs))
    size = model.embedding_VD.shape[0]
    padded = [[*(min(token, size - 1) for token in output), *[-1] * (longest - len(output))] for output in outputs]
    with evaluation_mode(model), torch.no_grad():
        outputs_BNT = torch.tensor([padded], device=model.embedding_VD.device)
        scores: list[float] = output_scores(model, encode_input(model, question.source), outputs_BNT, score)[0].tolist()
    return [-math.inf if size in output else value for output, value in zip(outputs, scores, strict=True)]


@dataclass(frozen=True)
class SearchOutput:
    """Best output of a search."""

    name: str  # of the search
    tokens: tuple[int, ...]  # ids, without the end token
    score: float  # of the search, in nats
    gap: float = 0.0  # to the best score of all searches; 0 without a known search error


@dataclass(frozen=True)
class SearchErrors:
    """Search errors of beams of several sizes."""

    beams: tuple[SearchOutput, ...]  # by size
    place_of_k: int  # of the beam of k slots
    exact: SearchOutput | None  # the best output, if it can be computed


def search_errors(run: OutputRun, question: Question, *, k: int, score: str) -> SearchErrors:
    """Search with beams of several sizes, and exactly where this is possible.

    Exact search is possible by log-probability, unless it would take too long, and by raw scores for chains and short
    label sequences. A search error is an output that scores lower than another one, by the score of the search.
    """
    sizes = sorted({*SIZES, k})
    outputs = [_best(run, question, Decoder(HardTopK(size), SCORES[score])) for size in sizes]
    beams = [
        SearchOutput(f"beam of {size}", best.tokens, best.score) for size, best in zip(sizes, outputs, strict=True)
    ]
    exact = _exact(run, question, score)
    best_score = max(best.score for best in (*beams, *([exact] if exact else [])))

    def compared(best: SearchOutput) -> SearchOutput:
        return replace(best, gap=shortfall(best.score, best_score))

    return SearchErrors(tuple(map(compared, beams)), sizes.index(k), compared(exact) if exact else None)


def _exact(run: OutputRun, question: Question, score: str) -> SearchOutput | None:
    model = run.model
    if score == "local" and not restrictions(run):
        (best,) = exact_outputs(model, [question.source], most_expansions=MOST_EXPANSIONS)
        return None if best is None else SearchOutput("exact, best-first", best.tokens, best.score)
    if score == "local" or language_of(model) is not None:
        return None
    length = steps_for(question.source.source_ids, model)
    if isinstance(model, ChainTagger):
        with evaluation_mode(model), torch.no_grad():
            score_B, output_BT = best_chain_output(model.chain(encode_input(model, question.source)))
        return SearchOutput("exact, by Viterbi", tuple(output_BT[0].tolist()), float(score_B[0]))
    labels = len(run.codec.target_vocabulary)
    if model.end is not None or labels**length > MOST_OUTPUTS:
        return None
    outputs = list(itertools.product(range(labels), repeat=length))
    scores = score_outputs(run, question, outputs, SCORES[score])
    place = max(range(len(scores)), key=scores.__getitem__)
    return SearchOutput(f"exact, over all {len(outputs):,} outputs", outputs[place], scores[place])
