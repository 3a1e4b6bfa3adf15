"""Answers of the explorer, computed in parts; a change of setting recomputes only the parts that it affects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seqwise.evaluation.label_bias import LabelBias
from seqwise.pages.explorer.questions import Question
from seqwise.pages.explorer.searches import Scored, SearchErrors, Setup, compare, follow, search_errors
from seqwise.pages.report.lattice import Lattice
from seqwise.runs.diagnosis import explore
from seqwise.runs.run import OutputRun

SUPPORT = 512  # prefixes over which global shares are summed; few enough for a page

PARTS = ("the search", "outputs", "label bias", "search errors")
"""Parts of an answer, in the order of computation."""

OnPart = Callable[[str, int, int], None]
"""Function called before each part with its name, the number done and the total; it may raise to stop the job."""


@dataclass(frozen=True, eq=False)
class Answer:
    """Answer for an input and a setup."""

    question: Question
    setup: Setup
    lattice: Lattice  # of the search
    outputs: tuple[Scored, ...]  # of several searches, with both scores
    bias: LabelBias  # of the local beam of k slots
    errors: SearchErrors  # by the score of the search


def answer(
    run: OutputRun, question: Question, setup: Setup, *, known: Answer | None = None, on_part: OnPart | None = None
) -> Answer:
    """Compute all parts, except those that ``known``, an earlier answer of the run, already has."""

    def part(number: int) -> None:
        if on_part is not None:
            on_part(PARTS[number], number, len(PARTS))

    same = known if known is not None and known.question == question else None
    # The settings that each part reads.
    reads = (("search", "score", "k", "alpha"), ("k", "alpha"), ("k",), ("k", "score"))
    kept = [same is not None and all(getattr(setup, n) == getattr(same.setup, n) for n in names) for names in reads]
    part(0)
    lattice = same.lattice if same and kept[0] else follow(run, question, setup)
    part(1)
    outputs = same.outputs if same and kept[1] else tuple(compare(run, question, k=setup.k, alpha=setup.alpha))
    part(2)
    bias = same.bias if same and kept[2] else explore(run, question.example, beam_size=setup.k, support=SUPPORT)
    part(3)
    errors = same.errors if same and kept[3] else search_errors(run, question, k=setup.k, score=setup.score)
    return Answer(question, setup, lattice, outputs, bias, errors)
