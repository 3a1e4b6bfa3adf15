"""Lattice of a hard or relaxed beam: tokens, parents, score and cost of every slot after every step.

Shapes: B batch (1 here), J slots before a step, K after it, V vocabulary, T target length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqwise.data.batches import EncodedExample
from seqwise.decoding import encode_input, evaluation_mode, has_ended, steps_for
from seqwise.models.heads import log_partition
from seqwise.models.protocols import StepModel
from seqwise.objectives.search_aware import hamming_cost
from seqwise.search.beam import search_steps
from seqwise.search.candidates import Score, local
from seqwise.search.costs import Cost, edit_distance_cost
from seqwise.search.selectors import HardTopK, Selector

MOST_STEPS = 20
"""Largest number of steps that are drawn."""


@dataclass(frozen=True)
class Node:
    """Slot after a step."""

    # The heaviest added tokens and their weights; in a hard search one of weight 1.
    tokens: tuple[tuple[int, float], ...]
    # The J back-pointer weights.
    parents: tuple[float, ...]
    score: float  # cumulative
    cost: float | None  # added by the step; None without gold
    total_cost: float | None  # cumulative; None without gold
    log_partition: float | None  # log Z of the step, averaged over the parents; None if all of them had ended
    is_live: bool  # whether its score is finite


Lattice = tuple[tuple[Node, ...], ...]
"""Slots after each step of a search that starts from one slot, the empty prefix."""


@torch.no_grad()
def beam_lattice(
    model: StepModel,
    source: EncodedExample,
    selector: Selector,
    *,
    num_steps: int,
    score: Score = local,
    gold: Sequence[int] | None = None,
    most_tokens: int = 3,
) -> Lattice:
    """Record a search of one input.

    The back-pointer weights are ``b_r[i] = sum_w p_r[i, w]`` and the token weights ``a_r[w] = sum_i p_r[i, w]`` of the
    selection (one-hot in a hard search). The task cost is the Hamming cost where outputs are as long as inputs, and the
    edit distance elsewhere.

    Source: Goyal et al. (AAAI 2018), Algorithms 1 and 3.
    """
    device = model.embedding_VD.device
    steps: list[tuple[Node, ...]] = []
    with evaluation_mode(model):
        context = encode_input(model, source)
        cost = None if gold is None else _cost(model, torch.tensor([list(gold)], device=device))
        before_BJ = finished_BJ = None
        for step in search_steps(model, context, selector, num_steps=num_steps, score=score, cost=cost):
            selection, beam = step.selection, step.beam
            num_slots = step.candidates.prefix_scores_BJ.shape[1]
            eye_BJJ = torch.eye(num_slots, dtype=beam.scores_BK.dtype, device=device)[None]
            log_partitions_BJ = log_partition(step.candidates.logits_BJV).to(eye_BJJ.dtype)
            # A dead end has log Z of minus infinity, and 0 times that would be NaN in a mixture.
            log_partitions_BJ = log_partitions_BJ.masked_fill(log_partitions_BJ == -torch.inf, 0.0)
            before_BJ = torch.zeros_like(eye_BJJ[:, 0]) if before_BJ is None else before_BJ
            going_BJ = torch.ones_like(before_BJ) if finished_BJ is None else 1 - finished_BJ
            added_BK = beam.costs_BK - selection.follow(before_BJ)
            tokens_BV = torch.arange(model.embedding_VD.shape[0], device=device)[None]
            weights_BKM, tokens_BKM = selection.token_masses(tokens_BV).topk(min(most_tokens, tokens_BV.shape[1]))
            columns = (
                tokens_BKM,
                weights_BKM,
                selection.follow(eye_BJJ),
                beam.scores_BK,
                added_BK,
                beam.costs_BK,
                selection.follow(going_BJ * log_partitions_BJ) / selection.follow(going_BJ),
            )
            steps.append(_nodes(columns, has_gold=gold is not None))
            before_BJ, finished_BJ = beam.costs_BK, beam.finished_BK
    return tuple(steps)


def _cost(model: StepModel, gold_BT: Tensor) -> Cost:
    size = model.embedding_VD.shape[0]
    return hamming_cost(gold_BT, size) if model.end is None else edit_distance_cost(gold_BT, size, end=model.end)


def _nodes(columns: Sequence[Tensor], *, has_gold: bool) -> tuple[Node, ...]:
    nodes = []
    for tokens, weights, parents, score, added, total, log_z in zip(
        *(column[0].tolist() for column in columns), strict=True
    ):
        kept = tuple((token, weight) for token, weight in zip(tokens, weights, strict=True) if weight > 0)
        cost, total_cost = (added, total) if has_gold else (None, None)
        is_live = score != -math.inf
        of_step = None if math.isnan(log_z) else log_z
        nodes.append(Node(kept, tuple(parents), score, cost, total_cost, of_step, is_live))
    return tuple(nodes)


def drawn_steps(model: StepModel, source: EncodedExample, *, k: int, gold: Sequence[int] | None) -> int:
    """Return the number of steps to draw: until the local hard beam has ended and one step past the end of gold."""
    limit = steps_for(source.source_ids, model)
    if model.end is None:
        return min(limit, MOST_STEPS)
    needed = 0
    with evaluation_mode(model), torch.no_grad():
        context = encode_input(model, source)
        for step in search_steps(model, context, HardTopK(k), num_steps=min(limit, MOST_STEPS)):
            needed += 1
            if has_ended(step.beam):
                break
    return min(max(needed, 0 if gold is None else len(gold) + 1), limit, MOST_STEPS)
