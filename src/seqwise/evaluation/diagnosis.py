"""Exposure gap and length bias of a model.

Shapes: B batch, T output length, V vocabulary, R optimal next tokens of one position.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqwise.data.batches import EncodedExample, collate
from seqwise.decoding import Hypothesis, evaluation_mode
from seqwise.devices import at_least_float32
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, edit_distances, pairs, pairs_with_many
from seqwise.models.protocols import StepModel

Ids = tuple[int, ...]

# An output with fewer tokens than this share of its reference is short.
SHORT = 0.5


def optimal_next_tokens(output: Ids, references: Sequence[Ids], *, end: int | None) -> list[set[int]]:
    """Return the optimal next tokens of each prefix of an output, T nonempty sets.

    With d the cost of an output against the nearest reference,

        O(y_1..t) = {w : min_z d(y_1..t w z) = min_z d(y_1..t z)},    t = 0 .. T - 1.

    d is the number of wrong tokens if all outputs have the same length (``end`` is None), else the edit distance.

    Source: Sabour, Chan and Norouzi, Optimal Completion Distillation (ICLR 2019), section 3, for edit distance.
    """
    if not references:
        raise InputError("there is no reference to compare the output with", hint="give at least one")
    if end is None:
        return _by_hamming(output, references)
    if not all(references):
        raise InputError("a reference is empty", hint="end it with the end token")
    optimal: list[set[int]] = []
    # From each prefix of the output to each y*_1..j without the end token, which is the token after the last j.
    distances = zip(*(edit_distances(output, reference[:-1]) for reference in references), strict=True)
    for rows in itertools.islice(distances, len(output)):
        best = min(map(min, rows))
        following = itertools.chain.from_iterable(map(zip, references, rows))
        optimal.append({token for token, distance in following if distance == best})
    return optimal


def _by_hamming(output: Ids, references: Sequence[Ids]) -> list[set[int]]:
    for reference in references:
        if len(reference) != len(output):
            raise InputError(f"a reference has {len(reference)} tokens and the output {len(output)}")
    wrong = [0] * len(references)
    optimal: list[set[int]] = []
    for place, token in enumerate(output):
        optimal.append({ref[place] for ref, number in zip(references, wrong, strict=True) if number == min(wrong)})
        wrong = [number + (ref[place] != token) for ref, number in zip(references, wrong, strict=True)]
    return optimal


@dataclass(frozen=True)
class ExposureGap:
    """Loss after gold prefixes and after the model's own prefixes, in nats per token.

    Attributes:
        gold: ``L(gold)``; with one reference, cross-entropy.
        own: ``L(own)``.
    """

    gold: Counts
    own: Counts

    @property
    def gap(self) -> float:
        """``L(own) - L(gold)``; its interval is that of `paired_bootstrap`."""
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

    With O(prefix) the next tokens that can still reach the lowest cost,

        L(Y) = sum_{y in Y} sum_t -log sum_{w in O(y_1..t-1)} p(w | x, y_1..t-1)  /  sum_{y in Y} |y|,

    once with Y the references and once with Y the model's own outputs; the gap is the difference. For outputs of fixed
    length, such as labels, the cost is the number of wrong tokens and O is gold label t; otherwise it is the edit
    distance. The gap is an upper bound on exposure bias: a gold prefix also carries information, such as the
    annotator's choice between two right labels.

    Args:
        model: a step model that is also a module; it is in evaluation mode during the call.
        examples: encoded sources.
        references: the right outputs of each example, end token included; at least one, none empty.
        outputs: the model's own output for each example (greedy, or the best of a beam), with its end token if any.
        batch_size: examples per batch; results do not depend on it.
        on_progress: called with the number of examples just done.

    Raises:
        InputError: the lists differ in length, or an example has no reference.

    Source: Sabour, Chan and Norouzi (ICLR 2019), section 3, for the optimal next tokens.

    Example:
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> gap = exposure_gap(model, [EncodedExample((1, 2), ())], [[(0, 2)]], [(0, 1)])
        >>> gap.own.denominators_N, bool(abs(gap.gap) < 1e-6)  # both prefixes, () and (0,), are gold
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
                part = jobs[start : start + batch_size]
                for (index, *_), loss in zip(part, _losses(model, examples, part), strict=True):
                    totals[index][side] += loss
                if on_progress is not None and side == 1:
                    on_progress(len(part))
    gold, ours = (Counts([row[side] for row in totals], [row[side] for row in lengths]) for side in (0, 1))
    return ExposureGap(gold, ours)


def _losses(
    model: StepModel, examples: Sequence[EncodedExample], jobs: Sequence[tuple[int, Ids, list[set[int]]]]
) -> list[float]:
    """Return ``sum_t -log p(O(y_1..t-1) | x, y_1..t-1)`` of each job: example, output, optimal next tokens."""
    encoded = [EncodedExample(examples[index].source_ids, ids) for index, ids, _ in jobs]
    batch = collate(encoded).to(model.embedding_VD.device)
    logits_BTV = model.head(model.teacher_forced(model.encode(batch), batch.targets_BT))
    log_probs_BTV = at_least_float32(logits_BTV).log_softmax(-1)
    most = max((len(tokens) for *_, sets in jobs for tokens in sets), default=1)
    # One row per set, padded with -1.
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
    return mass_BT.cpu().double().sum(-1).neg().tolist()


@dataclass(frozen=True)
class LengthBias:
    """Shares of outputs of a search with degenerate length, and the length ratio.

    Attributes:
        empty: share of outputs without any token.
        short: share of outputs with fewer than half the tokens of their reference, including empty ones.
        cut_off: share of outputs that had not ended when the search was stopped.
        ratio: tokens written per token of the references.
    """

    empty: Counts
    short: Counts
    cut_off: Counts
    ratio: Counts


def length_bias(outputs: Sequence[Hypothesis], reference_lengths: Sequence[int]) -> LengthBias:
    """Measure the shares of outputs that are empty, short or cut off, and the length ratio ``sum |y| / sum |y*|``.

    With larger beams, log-probabilities tend to prefer short outputs, and raw scores long ones if log Z is above 0.

    Args:
        outputs: the best hypothesis of each example.
        reference_lengths: number of tokens of each reference, at least 1, without the end token.

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
