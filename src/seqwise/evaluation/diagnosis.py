"""Exposure gap and length bias: a model on its own prefixes, and the length of its outputs.

Shapes: B batch, T output length, V vocabulary, R optimal next tokens of one position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqwise.data.batches import EncodedExample, collate
from seqwise.decoding import Hypothesis, evaluation_mode
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, pairs, pairs_with_many
from seqwise.models.protocols import StepModel

Ids = tuple[int, ...]

# An output with fewer tokens than this share of its reference is short.
SHORT = 0.5


def optimal_next_tokens(output: Ids, references: Sequence[Ids], *, end: int | None) -> list[set[int]]:
    """For each prefix of an output, the next tokens that keep the best output within reach.

    With d the cost of a whole output against the nearest reference,

        O(y_1..t) = {w : min_z d(y_1..t w z) = min_z d(y_1..t z)},    t = 0 .. T - 1.

    Where all outputs have one length (``end`` is None) d is the number of wrong tokens, and O is the next token of
    the references that agree best with the prefix: with one reference, its token at this place, whatever the prefix.
    Where lengths differ d is the edit distance, and O holds what follows, in a reference, each place that the prefix
    can be aligned to at the fewest edits. After a right prefix that is the next token of each reference that begins so.

    Source: Sabour, Chan and Norouzi, Optimal Completion Distillation (ICLR 2019), section 3, for edit distance.
    """
    if not references:
        raise InputError("there is no reference to hold the output against", hint="give at least one")
    if end is None:
        return _by_hamming(output, references)
    if not all(references):
        raise InputError("a reference is empty", hint="end it with the end token")
    found: list[set[int]] = []
    # Distances of the prefix to y*_1..j for every j short of the end token, which is what follows the last j.
    rows = [list(range(len(reference))) for reference in references]
    for place, token in enumerate(output):
        best = min(min(row) for row in rows)
        found.append(
            {
                reference[j]
                for reference, row in zip(references, rows, strict=True)
                for j, distance in enumerate(row)
                if distance == best
            }
        )
        rows = [_next_row(row, place, token, reference) for row, reference in zip(rows, references, strict=True)]
    return found


def _next_row(row: Sequence[int], place: int, token: int, reference: Ids) -> list[int]:
    """Levenshtein distances after one more token, from those before it."""
    after = [place + 1]
    for j in range(1, len(row)):
        after.append(min(row[j] + 1, after[j - 1] + 1, row[j - 1] + (token != reference[j - 1])))
    return after


def _by_hamming(output: Ids, references: Sequence[Ids]) -> list[set[int]]:
    for reference in references:
        if len(reference) != len(output):
            raise InputError(f"a reference has {len(reference)} tokens and the output {len(output)}")
    wrong = [0] * len(references)
    found: list[set[int]] = []
    for place, token in enumerate(output):
        found.append({ref[place] for ref, number in zip(references, wrong, strict=True) if number == min(wrong)})
        wrong = [number + (ref[place] != token) for ref, number in zip(references, wrong, strict=True)]
    return found


@dataclass(frozen=True)
class ExposureGap:
    """Loss after gold prefixes and after the model's own, in nats per token; each with one entry for each example.

    Attributes:
        gold: ``L(gold)``; with one reference, cross-entropy.
        own: ``L(own)``.
    """

    gold: Counts
    own: Counts

    @property
    def gap(self) -> float:
        """``L(own) - L(gold)``; `paired_bootstrap` of the two gives its interval."""
        return self.own.value - self.gold.value


def exposure_gap(
    model: StepModel,
    examples: Sequence[EncodedExample],
    references: Sequence[Sequence[Ids]],
    outputs: Sequence[Ids],
    *,
    batch_size: int = 64,
    on_progress: Callable[[int], None] | None = None,
) -> ExposureGap:
    """Measure how much worse a model continues its own prefixes than gold ones.

    With O(prefix) the next tokens that are right after a prefix (`optimal_next_tokens`),

        L(Y) = sum_{y in Y} sum_t -log sum_{w in O(y_1..t-1)} p(w | x, y_1..t-1)  /  sum_{y in Y} |y|,

    once with Y the references and once with Y the model's own outputs; the gap is the difference. For outputs of a
    fixed length, such as labels, L(own) is the loss on gold label t after the model's own labels. For outputs of
    their own length a place has no gold token once the prefix has gone astray, so the loss is that on any token that
    keeps the best attainable edit distance, end included; after a gold prefix that is the gold token again.

    The gap bounds what exposure bias costs from above: a gold prefix also tells the model things that no model could
    know without it, such as which of two right labels an annotator chose.

    Args:
        model: a step model that is also a module; it is put into evaluation mode for the call and back after it.
        examples: encoded examples; only their sources are read.
        references: for each example its right outputs, end token included; at least one, none empty.
        outputs: for each example the model's own output (greedy, or a beam's best), with the end token where it was
            written. Every place of it counts, the end token's too, and nothing after it.
        batch_size: examples taken together; results do not depend on it.
        on_progress: called with the number of examples just done.

    Raises:
        InputError: the lists differ in length, or an example has no reference.

    Example:
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> gap = exposure_gap(model, [EncodedExample((1, 2), ())], [[(0, 2)]], [(0, 1)])
        >>> gap.own.denominators_N, bool(abs(gap.gap) < 1e-6)  # the first label is right and the second is no prefix
        (array([2.]), True)
    """
    pairs_with_many(examples, references)
    pairs(examples, outputs)
    golden = [
        (index, ids, optimal_next_tokens(ids, options, end=model.end))
        for index, options in enumerate(references)
        for ids in options
    ]
    own = [
        (index, ids, optimal_next_tokens(ids, references[index], end=model.end)) for index, ids in enumerate(outputs)
    ]
    totals: list[list[float]] = [[0.0, 0.0] for _ in examples]
    lengths = [[sum(map(len, options)), len(ids)] for options, ids in zip(references, outputs, strict=True)]
    with evaluation_mode(model), torch.no_grad():
        for side, jobs in enumerate((golden, own)):
            jobs.sort(key=lambda job: len(job[1]))
            for start in range(0, len(jobs), batch_size):
                some = jobs[start : start + batch_size]
                for (index, *_), loss in zip(some, _losses(model, examples, some), strict=True):
                    totals[index][side] += loss
                if on_progress is not None and side == 1:
                    on_progress(len(some))
    gold, ours = (Counts([row[side] for row in totals], [row[side] for row in lengths]) for side in (0, 1))
    return ExposureGap(gold, ours)


def _losses(
    model: StepModel, examples: Sequence[EncodedExample], jobs: Sequence[tuple[int, Ids, list[set[int]]]]
) -> list[float]:
    """``sum_t -log p(O(y_1..t-1) | x, y_1..t-1)`` of each job: an example, an output, and the right next tokens."""
    encoded = [(index, EncodedExample(examples[index].source_ids, ids)) for index, ids, _ in jobs]
    batch = collate(encoded).to(model.embedding_VD.device)
    log_probs_BTV = model.head(model.teacher_forced(model.encode(batch), batch.targets_BT)).log_softmax(-1)
    most = max((len(tokens) for *_, sets in jobs for tokens in sets), default=1)
    # Each set once over, filled up with -1.
    right_BTR = pad_sequence(
        [
            torch.tensor([sorted(tokens) + [-1] * (most - len(tokens)) for tokens in sets]).reshape(-1, most)
            for *_, sets in jobs
        ],
        batch_first=True,
        padding_value=-1,
    ).to(log_probs_BTV.device)
    chosen_BTR = log_probs_BTV.gather(-1, right_BTR.clamp(min=0)).masked_fill(right_BTR < 0, -torch.inf)
    counted_BT = batch.targets_BT >= 0
    mass_BT: Tensor = chosen_BTR.masked_fill(~counted_BT[..., None], 0.0).logsumexp(-1).masked_fill(~counted_BT, 0.0)
    return mass_BT.double().sum(-1).neg().tolist()


@dataclass(frozen=True)
class LengthBias:
    """Lengths of a search's outputs; one entry for each example.

    Attributes:
        empty: share of outputs without any token.
        short: share of outputs with fewer than half the tokens of their reference, empty ones among them.
        cut_off: share of outputs that had not ended when the search was stopped.
        ratio: tokens written per token of the references.
    """

    empty: Counts
    short: Counts
    cut_off: Counts
    ratio: Counts


def length_bias(outputs: Sequence[Hypothesis], reference_lengths: Sequence[int]) -> LengthBias:
    """Share of outputs that are empty, short or never end, and the ratio of lengths ``sum |y| / sum |y*|``.

    Compared over growing beams it shows what a score prefers once the search finds it: with log-probabilities larger
    beams tend towards short outputs, since every token costs something; with raw scores towards long ones where log Z
    is above 0.

    Args:
        outputs: the best hypothesis of each example; the end token counts for nothing.
        reference_lengths: tokens of each reference, at least 1, the end token not counted.

    Raises:
        InputError: the lists differ in length, or there is nothing to count.

    Source: Stahlberg and Byrne, On NMT Search Errors and Model Errors (EMNLP 2019), for empty outputs.

    Example:
        >>> found = length_bias([Hypothesis((), -2.0, True), Hypothesis((3, 1, 4), -1.0, True)], [2, 3])
        >>> found.empty.value, found.short.value, found.ratio.value
        (0.5, 0.5, 0.6)
    """
    together = list(pairs(outputs, reference_lengths))
    written = [len(output.tokens) for output in outputs]
    return LengthBias(
        Counts([length == 0 for length in written]),
        Counts([len(output.tokens) < SHORT * length for output, length in together]),
        Counts([not output.finished for output in outputs]),
        Counts(written, [length for _, length in together]),
    )
