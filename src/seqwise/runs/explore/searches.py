"""Searches of an input, step by step, and both scores of their outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from seqwise.data.batches import collate
from seqwise.decoding import Decoder, evaluation_mode
from seqwise.errors import InputError
from seqwise.objectives.rescoring import output_scores
from seqwise.runs.explore.questions import Question
from seqwise.runs.measures import gold_text
from seqwise.runs.report.lattice import Lattice, beam_lattice, drawn_steps
from seqwise.runs.run import OutputRun, search
from seqwise.search.candidates import Score, global_, local
from seqwise.search.operators import ALPHA_UNITS
from seqwise.search.selectors import HardTopK, Selector, SoftTopK

MOST_SLOTS = 16
"""Larger beams cannot be drawn so that one can read them."""

SearchName = Literal["greedy", "beam", "relaxed beam"]
"""Hard with one slot, hard with k, soft with k."""

SCORES: dict[str, Score] = {"local": local, "raw": global_}
"""By the names that the explorer has for them."""


@dataclass(frozen=True)
class Setup:
    """Setup of a search, checked."""

    search: SearchName = "beam"
    score: str = "local"  # "local" or "raw"
    k: int = 4  # size of the beam; greedy search does not read it
    alpha: float = 1.0  # inverse temperature of the relaxation, in the unit of the run's training

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MOST_SLOTS:
            raise InputError(f"k must be from 1 to {MOST_SLOTS}, got {self.k}")
        for name, choices in (("search", get_args(SearchName)), ("score", tuple(SCORES))):
            if getattr(self, name) not in choices:
                raise InputError(f"{name}: there is no {getattr(self, name)!r}", hint=f"choose from {choices}")

    def decoder(self, run: OutputRun) -> Decoder:
        """Return the selector and the score."""
        selectors: dict[str, Selector] = {
            "greedy": HardTopK(1),
            "beam": HardTopK(self.k),
            "relaxed beam": SoftTopK(self.k, self.alpha, ALPHA_UNITS[run.settings.alpha_unit]),
        }
        return Decoder(selectors[self.search], SCORES[self.score])


@dataclass(frozen=True)
class Scored:
    """Output with both of its scores."""

    name: str  # of the search
    tokens: tuple[int, ...]  # ids, without the end token
    text: str  # how it reads; tokens that training never saw are marked
    log_prob: float  # ``sum_t f_t - log Z_t``, in nats; minus infinity where training never saw one of the tokens
    raw_score: float  # ``sum_t f_t``, in nats; or minus infinity
    is_gold: bool | None  # whether it is the right output; None where that is not known


def follow(run: OutputRun, question: Question, setup: Setup) -> Lattice:
    """Record a search; costs are those of the right output, if known."""
    decoder, model = setup.decoder(run), run.model
    steps = drawn_steps(model, question.source, k=setup.k, gold=question.gold)
    selector = run.codec.allowed(decoder.selector)
    return beam_lattice(model, question.source, selector, num_steps=steps, score=decoder.score, gold=question.gold)


def dropped(lattice: Lattice, step: int) -> tuple[int, ...]:
    """Return the slots, from 1, before a step of a hard search, from 1, that have no child: the prefixes given up."""
    before = lattice.steps[step - 2] if step > 1 else ()
    used = {
        place for node in lattice.steps[step - 1] if node.is_live for place, weight in enumerate(node.parents) if weight
    }
    return tuple(place + 1 for place, node in enumerate(before) if node.is_live and place not in used)


def fell_off(lattice: Lattice, gold: Sequence[int]) -> int | None:
    """Return the first step, from 1, of a hard search after which no slot holds a prefix of gold, or None."""
    holding = {0}
    for number, (nodes, right) in enumerate(zip(lattice.steps, gold, strict=False), start=1):
        holding = {
            place
            for place, node in enumerate(nodes)
            if node.is_live and node.tokens[0][0] == right and any(node.parents[parent] for parent in holding)
        }
        if not holding:
            return number
    return None


def compare(run: OutputRun, question: Question, *, k: int, alpha: float) -> list[Scored]:
    """Score the outputs of greedy, hard and relaxed searches, by local and raw scores, and the right output last."""
    setups = [Setup("greedy", "local", k, alpha)]
    setups += [Setup(search, score, k, alpha) for search in ("beam", "relaxed beam") for score in SCORES]
    names, outputs = [], []
    for setup in setups:
        (found,) = search(run, [question.source], setup.decoder(run), n_best=1, length_normalization=0.0)
        end = () if run.model.end is None or not found[0].finished else (run.model.end,)
        names.append("greedy" if setup.search == "greedy" else f"{setup.search}, {setup.score} scores")
        outputs.append((*found[0].tokens, *end))
    if question.gold is not None:
        names.append("the right output")
        outputs.append(question.gold)
    scores = zip(*(score_outputs(run, question, outputs, score) for score in SCORES.values()), strict=True)
    return [
        Scored(
            name,
            output[:-1] if output and output[-1] == run.model.end else output,
            gold_text(run, question.example) if output == question.gold else _text(run, output),
            log_prob,
            raw,
            None if question.gold is None else output == question.gold,
        )
        for name, output, (log_prob, raw) in zip(names, outputs, scores, strict=True)
    ]


def _text(run: OutputRun, output: Sequence[int]) -> str:
    return run.codec.target_text(
        run.codec.target_vocabulary.decode(token for token in output if token != run.model.end)
    )


def score_outputs(run: OutputRun, question: Question, outputs: Sequence[tuple[int, ...]], score: Score) -> list[float]:
    """Score whole outputs, in nats; minus infinity for one with a token that the model lacks."""
    model, longest = run.model, max(map(len, outputs))
    size = model.embedding_VD.shape[0]
    padded = [[*(min(token, size - 1) for token in output), *[-1] * (longest - len(output))] for output in outputs]
    with evaluation_mode(model), torch.no_grad():
        device = model.embedding_VD.device
        context = model.encode(collate([(0, question.source)]).to(device))
        found: list[float] = output_scores(model, context, torch.tensor([padded], device=device), score)[0].tolist()
    return [-math.inf if size in output else value for output, value in zip(outputs, found, strict=True)]
