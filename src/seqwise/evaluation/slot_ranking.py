"""Ranking of right against wrong slots of a beam, by prefix probability or by log Z of the next step.

Shapes: B batch, J slots before a step, K after it, T tokens written so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import EncodedExample
from seqwise.decoding import Decoder, encoded_batches, evaluation_mode, has_ended
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, pairs_with_many
from seqwise.models.heads import log_partition
from seqwise.models.protocols import StepModel
from seqwise.search.beam import Beam, backtrace, search_steps
from seqwise.search.candidates import local
from seqwise.search.selectors import HardTopK, Selector

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Slots:
    """Slots of a hard search before a step, with local and raw scores."""

    prefixes_BJT: Tensor  # int64; :data:`~seqwise.search.beam.HELD` where an input had ended
    scores_BJ: Tensor  # of the search; minus infinity for a dead slot
    log_probs_BJ: Tensor  # ``log p(prefix) = sum_t (f_t - log Z_t)``, in nats
    raw_scores_BJ: Tensor  # ``sum_t f_t``, in nats
    log_partitions_BJ: Tensor  # log Z of the next step; 0 for ended slots
    open_BJ: Tensor  # whether the slot is live, has not ended, and its input has steps left


def unrestricted(selector: Selector) -> Selector:
    """Return the selector unchanged, which excludes no output."""
    return selector


@torch.no_grad()
def unroll_slots(model: StepModel, context: Any, decoder: Decoder, *, num_steps: int | Tensor) -> Iterator[Slots]:
    """Search, and yield the slots before each step and, last, those of the final beam.

    The search ends after the last step, or as soon as every slot has ended.
    """
    beam = Beam.start(model, context)
    log_probs_BJ = raw_scores_BJ = beam.scores_BK
    steps = search_steps(model, context, decoder.selector, num_steps=num_steps, score=decoder.score)
    for number, step in enumerate(steps):
        live_BJ = (beam.scores_BK != -torch.inf) & (beam.finished_BK < 1)
        open_BJ = live_BJ & (num_steps > number)[:, None] if isinstance(num_steps, Tensor) else live_BJ
        logits_BJV = step.candidates.logits_BJV
        log_partitions_BJ = log_partition(logits_BJV).masked_fill(~open_BJ, 0.0)
        yield Slots(backtrace(beam), beam.scores_BK, log_probs_BJ, raw_scores_BJ, log_partitions_BJ, open_BJ)
        beam, parents_BK = step.beam, step.beam.parents[-1]
        places_BK = parents_BK * logits_BJV.shape[-1] + beam.tokens[-1].clamp(min=0)
        # A slot that had ended, or waits for the rest of the batch, has added nothing.
        closed_BK = ~open_BJ.gather(1, parents_BK)
        added_BK = logits_BJV.flatten(1).gather(1, places_BK).masked_fill(closed_BK, 0.0)
        raw_scores_BJ = raw_scores_BJ.gather(1, parents_BK) + added_BK
        log_probs_BJ = log_probs_BJ.gather(1, parents_BK) + added_BK - log_partitions_BJ.gather(1, parents_BK)
        if model.end is not None and has_ended(beam):
            break
    none_BJ = torch.zeros_like(beam.scores_BK)
    yield Slots(backtrace(beam), beam.scores_BK, log_probs_BJ, raw_scores_BJ, none_BJ, none_BJ.bool())


@dataclass(frozen=True)
class SlotRanking:
    """Share of pairs in which a statistic is higher for the right slot than for the best wrong one; ties count half.

    Attributes:
        log_prob: by ``log p(prefix)``, the score of a local beam.
        log_partition: by log Z of the next step.
        both: by ``log p(prefix) + log Z``.
        raw: by ``sum_t f_t + log Z``, the score of a raw beam one step ahead.
        on_beam: share of steps, from the second gold token on, with the right prefix on the beam.
    """

    log_prob: Counts
    log_partition: Counts
    both: Counts
    raw: Counts
    on_beam: Counts


def rank_slots(
    model: StepModel,
    examples: Sequence[EncodedExample],
    references: Sequence[Sequence[Ids]],
    *,
    k: int,
    allowed: Callable[[Selector], Selector] = unrestricted,
    batch_size: int = 256,
    on_progress: Callable[[int], None] | None = None,
) -> SlotRanking:
    """Measure how well prefix probability and log Z of the next step rank the right slot above the best wrong one.

    At every step of a beam search, slots are y_1 .. y_t; right ones are prefixes of a reference. If the best right slot
    r and the best wrong slot w (by the local score) can both still be extended, they make a pair, and a
    statistic g ranks it correctly if g(r) > g(w):

        g = log p(y_1..t),    g = log Z_{t+1},    g = log p(y_1..t) + log Z_{t+1},    g = sum_s f_s + log Z_{t+1}.

    A local search discards log Z. If log Z ranks better than chance, raw scores contain information that a local search
    cannot use. There are pairs only where the search has kept the right prefix.

    Args:
        model: a step model that is also a module; it is in evaluation mode during the call.
        examples: encoded sources.
        references: the right outputs of each example, end token included; at least one.
        k: size of the beam, at least 2.
        allowed: restricts a selector to allowed outputs; by default to all.
        batch_size: examples per batch; results do not depend on it.
        on_progress: called with the number of examples just done.

    Raises:
        InputError: k is less than 2, an example has no reference, or there are no pairs.

    Example:
        >>> from seqwise.models import Tagger
        >>> _ = torch.manual_seed(0)
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> ranking = rank_slots(model, [EncodedExample((1, 2, 3), ())], [[(0, 1, 1)]], k=4)
        >>> ranking.on_beam.value  # a beam of 4 keeps all prefixes of up to two labels
        1.0
    """
    if k < 2:
        raise InputError(f"a beam of {k} has no two slots to rank", hint="use a beam of 2 or more")
    pairs_with_many(examples, references)
    tallies = [_Tally() for _ in examples]
    right = [{ids[:length] for ids in outputs for length in range(len(ids))} for outputs in references]
    decoder = Decoder(allowed(HardTopK(k)), local)
    with evaluation_mode(model), torch.no_grad():
        for indices, context, steps_B in encoded_batches(model, examples, batch_size=batch_size):
            for index, limit in zip(indices, steps_B.tolist(), strict=True):
                tallies[index].steps = min(limit, max(map(len, references[index]))) - 1
            for slots in unroll_slots(model, context, decoder, num_steps=steps_B):
                _count(slots, [right[index] for index in indices], [tallies[index] for index in indices])
            if on_progress is not None:
                on_progress(len(indices))
    return _ranking(tallies)


@dataclass
class _Tally:
    """Counts of an example: pairs, those ranked correctly by each statistic, steps, and steps with gold on the beam."""

    pairs: int = 0
    ranked: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    steps: int = 0
    on_beam: int = 0


def _count(slots: Slots, right: Sequence[set[Ids]], tallies: Sequence[_Tally]) -> None:
    """Count the pairs among the slots of some inputs, given the prefixes of their right outputs."""
    if slots.prefixes_BJT.shape[-1] == 0:  # one slot: the empty prefix
        return
    ahead_BJ = slots.raw_scores_BJ + slots.log_partitions_BJ
    both_BJ = slots.log_probs_BJ + slots.log_partitions_BJ
    statistics_BJG = torch.stack([slots.log_probs_BJ, slots.log_partitions_BJ, both_BJ, ahead_BJ], -1).tolist()
    order_BJ = slots.scores_BJ.argsort(dim=1, descending=True).tolist()
    rows = zip(slots.prefixes_BJT.tolist(), slots.open_BJ.tolist(), order_BJ, right, tallies, strict=True)
    for row, (prefixes, is_open, order, right_prefixes, tally) in enumerate(rows):
        candidates = [(slot, tuple(prefixes[slot]) in right_prefixes) for slot in order if is_open[slot]]
        first_right = next((slot for slot, is_right in candidates if is_right), None)
        first_wrong = next((slot for slot, is_right in candidates if not is_right), None)
        tally.on_beam += first_right is not None
        if first_right is None or first_wrong is None:
            continue
        ours, theirs = statistics_BJG[row][first_right], statistics_BJG[row][first_wrong]
        wins = [float(a > b) + 0.5 * float(a == b) for a, b in zip(ours, theirs, strict=True)]
        tally.pairs += 1
        tally.ranked = tuple(total + win for total, win in zip(tally.ranked, wins, strict=True))


def _ranking(tallies: Sequence[_Tally]) -> SlotRanking:
    pairs = [tally.pairs for tally in tallies]
    if not any(pairs):
        problem = "there is no step at which a beam contains both the right prefix and a wrong one"
        raise InputError(problem, hint="use a larger beam, or longer examples")
    log_prob, log_partition, both, raw = (
        Counts(column, pairs) for column in zip(*(tally.ranked for tally in tallies), strict=True)
    )
    # An example of one token has no second one; both its counts are 0.
    on_beam = Counts([tally.on_beam for tally in tallies], [tally.steps for tally in tallies])
    return SlotRanking(log_prob, log_partition, both, raw, on_beam)
