"""Search errors of beams, compared with exact search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from seqwise.data.batches import EncodedExample
from seqwise.decoding import Hypothesis, encoded_batches, evaluation_mode, hypotheses
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts
from seqwise.models.protocols import StepModel
from seqwise.search.exact import best_first

BATCH_SIZE = 16  # inputs searched together: all keep their decoder states


@dataclass(frozen=True)
class BeamErrors:
    """Search errors of beams, by size, over inputs whose best output is known.

    Attributes:
        missed: share of inputs with an output that scores higher than that of the beam.
        lost: score of the best output minus that of the beam, in nats.
        certified: number of inputs whose best output is known; without any, nothing is measured.
        inputs: number of all inputs. Those without a certificate are probably harder.
    """

    missed: Mapping[int, Counts]
    lost: Mapping[int, Counts]
    certified: int
    inputs: int


def exact_outputs(
    model: StepModel,
    examples: Sequence[EncodedExample],
    *,
    most_expansions: int = 1000,
    on_progress: Callable[[int], None] | None = None,
) -> list[Hypothesis | None]:
    """Return the best output of each example by best-first search; None if the search was cut short.

    Args:
        model: a step model that is also a module; it is in evaluation mode during the call.
        examples: encoded examples; only their sources are read.
        most_expansions: see :func:`~seqwise.search.exact.best_first`.
        on_progress: called with the number of examples just done.

    Example:
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> sources = [EncodedExample((1,), ()), EncodedExample((1,) * 9, ())]
        >>> best, unknown = exact_outputs(model, sources, most_expansions=5)
        >>> len(best.tokens), unknown is None
        (1, True)
    """
    best: list[Hypothesis | None] = [None] * len(examples)
    with evaluation_mode(model), torch.no_grad():
        for indices, context, steps_B in encoded_batches(model, examples, batch_size=BATCH_SIZE):
            found = best_first(model, context, 1, num_steps=steps_B, most_expansions=most_expansions)
            ranked = hypotheses(found, end=model.end)
            for index, outputs, is_certified in zip(indices, ranked, found.certified_B.tolist(), strict=True):
                best[index] = outputs[0] if is_certified and outputs else None
            if on_progress is not None:
                on_progress(len(indices))
    return best


def shortfall(score: float, best: float) -> float:
    """Return the gap between a score and the best one; 0 if they differ only by rounding.

    Example:
        >>> shortfall(-12.5, -12.0), shortfall(-12.000001, -12.0)
        (0.5, 0.0)
    """
    short = best - score
    return short if short > 1e-4 * max(1.0, abs(best)) else 0.0


def beam_errors(outputs_by_size: Mapping[int, Sequence[Hypothesis]], best: Sequence[Hypothesis | None]) -> BeamErrors:
    """Count the inputs for which a beam misses the best output, and measure the loss of score.

    Args:
        outputs_by_size: the best output of a beam for each example, by beam size.
        best: the best output of each example by the same score, None if unknown; see :func:`exact_outputs`.

    Raises:
        InputError: the lists differ in length.

    Source: Stahlberg and Byrne, On NMT Search Errors and Model Errors (EMNLP 2019).

    Example:
        >>> found = [Hypothesis((3,), -2.0, True), Hypothesis((4,), -1.0, True), Hypothesis((5,), -4.0, True)]
        >>> errors = beam_errors({5: found}, [Hypothesis((1,), -1.5, True), found[1], None])
        >>> errors.missed[5].value, errors.lost[5].value, errors.certified
        (0.5, 0.25, 2)
    """
    known = [(place, output.score) for place, output in enumerate(best) if output is not None]
    missed, lost = {}, {}
    for size, outputs in outputs_by_size.items():
        if len(outputs) != len(best):
            raise InputError(f"there are {len(outputs)} outputs of the beam of {size}, and {len(best)} of exact search")
        if known:
            short = [shortfall(outputs[place].score, score) for place, score in known]
            missed[size], lost[size] = Counts([value > 0 for value in short]), Counts(short)
    return BeamErrors(missed, lost, len(known), len(best))
