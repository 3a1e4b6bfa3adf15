"""Headroom for training inside a language: mass of excluded tokens after gold prefixes, and gold outputs in beams.

Shapes: T steps of a gold output, M steps of all gold outputs of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from seqwise.data.batches import EncodedExample
from seqwise.decoding import Hypothesis, encode_input, evaluation_mode, ids_with_end
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts
from seqwise.models.protocols import StepModel
from seqwise.sampling.within import start_within
from seqwise.search.language import language_of, members

Ids = tuple[int, ...]


@dataclass(frozen=True)
class TrainingHeadroom:
    """Headroom for training inside a language, over inputs that have a gold output in it.

    Attributes:
        outside: probability of the excluded tokens at the steps of gold outputs: all that cross-entropy normalised over
            the allowed tokens can move.
        best: by decoder, share of inputs whose best output is gold.
        oracle: by decoder, share of inputs with a gold output anywhere in the beam. Other scores of these outputs can
            gain at most the difference; the rest is lost before, and only training with the search can keep it.
    """

    outside: Counts
    best: Mapping[str, Counts]
    oracle: Mapping[str, Counts]


@torch.no_grad()
def training_headroom(
    model: StepModel,
    examples: Sequence[EncodedExample],
    references: Sequence[Sequence[Ids]],
    beams: Mapping[str, Sequence[Sequence[Hypothesis]]],
    *,
    on_progress: Callable[[int], None] | None = None,
) -> TrainingHeadroom | None:
    """Measure the headroom for training inside the language of a model; None if no gold output lies in it.

    Args:
        model: a step model with a language; it is in evaluation mode during the call.
        examples: only their sources are read.
        references: gold outputs of each example, with their end tokens; those outside the language are left out.
        beams: hypotheses of each example, best first, by decoder.
        on_progress: called with the number of examples just done.

    Raises:
        InputError: the model has no language.

    Example:
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import trie
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> model.language = trie([(0, 1), (1, 1), (2, 0)])
        >>> beams = {"beam": [[Hypothesis((1, 1), -1.0, True), Hypothesis((0, 1), -2.0, True)]]}
        >>> headroom = training_headroom(model, [EncodedExample((1, 2), ())], [[(0, 1)]], beams)
        >>> 0 < headroom.outside.value < 1, headroom.best["beam"].value, headroom.oracle["beam"].value
        (True, 0.0, 1.0)
    """
    language = language_of(model)
    if language is None:
        raise InputError("the model has no language", hint="set model.language")
    outside, steps, golds = list[float](), list[int](), dict[int, set[Ids]]()
    with evaluation_mode(model):
        for number, example in enumerate(examples):
            rows = [torch.tensor([gold], device=model.embedding_VD.device) for gold in references[number] if gold]
            inside = [row_1T for row_1T in rows if bool(members(language, row_1T))]
            if inside:
                context = encode_input(model, example)
                chains = [start_within(model, context, language, row_1T, checked=False) for row_1T in inside]
                allowed_M = torch.cat([each.log_mass_BT.flatten() for each in chains]).exp().nan_to_num(0.0)
                outside.append(float((1 - allowed_M).sum()))
                steps.append(len(allowed_M))
                golds[number] = {tuple(row_1T[0].tolist()) for row_1T in inside}
            if on_progress is not None:
                on_progress(1)
    if not golds:
        return None
    found = {
        name: [[ids_with_end(output, model.end) in gold for output in ranked[number]] for number, gold in golds.items()]
        for name, ranked in beams.items()
    }
    return TrainingHeadroom(
        Counts(outside, steps),
        {name: Counts([right[0] for right in rows]) for name, rows in found.items()},
        {name: Counts([any(right) for right in rows]) for name, rows in found.items()},
    )
