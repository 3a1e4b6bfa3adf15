"""Relaxed selection without B x K x J x V weights: few candidates if a bound allows it, else sums over all.

Nearly all of the V scores of a slot are so far below the k best that their weight ``exp(-alpha (s - m_r)^2)`` vanishes
in the precision of the numbers. Finding these needs all scores, but no graph. So each step computes all scores without
a graph, takes the n best candidates, and bounds the total weight of the others. If the bound is below a tolerance, it
continues with the n best: a soft top-k over B x K x n. Otherwise it sums over all candidates of the input, in chunks
that the backward pass recomputes. On a GPU it always does so, because reading the bound would stall the GPU.

Shapes: B batch, J slots before, K slots after, V vocabulary, I some of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from seqwise.devices import reading_is_free
from seqwise.models.deferred_linear import DeferredLinear, Matrices
from seqwise.search.candidates import Candidates
from seqwise.search.large_vocabulary.chunked import sums_of_all
from seqwise.search.large_vocabulary.few import mixed_rows, top_k_of_few
from seqwise.search.large_vocabulary.scan import Choice, Kept, certify, kept_of, scan_of, scan_scores
from seqwise.search.selection import SoftSelection, SummedSelection, TokenSums, token_sums

# Number of scores of one group of inputs, which bounds the memory.
GROUP = 2**25
# Tolerance at which no candidate is dropped.
KEEP_ALL = -1.0

Expand = Callable[[Candidates], SoftSelection]


def default_tolerance(dtype: torch.dtype) -> float:
    """Return the mass that may be dropped without a visible effect: 1e-12 in float64, else 1e-7."""
    return 1e-12 if dtype == torch.float64 else 1e-7


def relaxed_top_k(candidates: Candidates, choice: Choice, expand: Expand, matrices: Matrices) -> SummedSelection:
    """Compute the soft top-k of candidates without expanding them in a graph.

    It equals the plain one, up to rounding if all candidates are summed, and up to the tolerance if few are kept.

    Args:
        candidates: candidates of a search with an embedding; none are excluded.
        choice: k, alpha and its unit, the tolerance of the certificate, and the largest number of candidates to keep.
        expand: the same selection in the plain version, for nonlinear heads and for other queries.
        matrices: matrices of the search.
    """
    batch_size, num_slots = candidates.prefix_scores_BJ.shape
    head = matrices.of_head(candidates.head, candidates.features_BJH.shape[-1])
    per_input = num_slots * len(candidates.token_values.embedding_VD) * (choice.k if head is None else 1)
    width = max(1, GROUP // max(per_input, 1))
    parts: list[SummedSelection] = []
    for start in range(0, batch_size, width):
        inputs_I = torch.arange(start, min(start + width, batch_size), device=candidates.prefix_scores_BJ.device)
        group = candidates if width >= batch_size else candidates.of_inputs(inputs_I)
        if head is None:
            parts.append(_checkpointed(group, inputs_I, expand))
        else:
            parts += _of_linear_head(group, inputs_I, head, choice, expand, matrices)
    return parts[0] if len(parts) == 1 else _joined(parts, candidates)


def _joined(parts: Sequence[SummedSelection], candidates: Candidates) -> SummedSelection:
    """Join selections of disjoint sets of inputs."""
    order_B = torch.cat([inputs_I for part in parts for inputs_I, _ in part.parts]).argsort()

    def join(values: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(values))[order_B]

    return SummedSelection(
        join([part.scores_BK for part in parts]),
        join([part.parents_BK for part in parts]),
        join([part.tokens_BK for part in parts]),
        join([part.parent_weights_BKJ for part in parts]),
        candidates.token_values,
        TokenSums(*map(join, zip(*(part.sums for part in parts), strict=True))),
        tuple(made for part in parts for made in part.parts),
    )


def _checkpointed(candidates: Candidates, inputs_I: Tensor, expand: Expand) -> SummedSelection:
    """Compute the plain version, but keep only its sums: the backward pass expands the candidates again."""
    make = partial(_expanded, candidates, expand)

    def summed() -> tuple[Tensor, ...]:
        soft = make()
        fixed = soft.scores_BK, soft.parents_BK, soft.tokens_BK, soft.parent_weights_BKJ
        return *fixed, *token_sums(soft, candidates.token_values)

    scores_BK, parents_BK, tokens_BK, parent_weights_BKJ, *sums = checkpoint(summed, use_reentrant=False)
    fixed = scores_BK, parents_BK, tokens_BK, parent_weights_BKJ
    return SummedSelection(*fixed, candidates.token_values, TokenSums(*sums), ((inputs_I, make),))


def _of_linear_head(
    candidates: Candidates, inputs_B: Tensor, head: DeferredLinear, choice: Choice, expand: Expand, matrices: Matrices
) -> Iterator[SummedSelection]:
    """Use few candidates for inputs whose certificate allows it, and all for the others."""
    # Products of weights and scores are never rounded to 16 bits; the head follows the caller's autocast.
    full_precision = torch.autocast(candidates.features_BJH.device.type, enabled=False)
    if not reading_is_free(inputs_B):  # the certificates would have to be read at every step
        choice = choice._replace(tolerance=KEEP_ALL)
    with torch.no_grad(), full_precision:
        scan = scan_scores(candidates, head)
        kept = certify(candidates, scan, choice)
    for few, chosen_I in _split(kept, choice):
        chosen, inputs_I, scanned = candidates, inputs_B, (scan, kept)
        if chosen_I is not None:
            chosen, inputs_I = candidates.of_inputs(chosen_I), inputs_B[chosen_I]
            scanned = scan_of(scan, chosen_I), kept_of(kept, chosen_I)
        embedding = matrices.of_embedding(candidates.token_values.embedding_VD)
        if few:
            with full_precision:
                soft = top_k_of_few(chosen, head, *scanned, choice)
                part = _summed_few(soft, chosen, inputs_I, embedding)
            yield part
        elif _summable(chosen):
            with full_precision:
                fixed, sums = sums_of_all(chosen, head, embedding, *scanned, choice)
            yield SummedSelection(*fixed, chosen.token_values, sums, ((inputs_I, partial(_expanded, chosen, expand)),))
        else:
            yield _checkpointed(chosen, inputs_I, expand)


def _split(kept: Kept, choice: Choice) -> Iterator[tuple[bool, Tensor | None]]:
    """Yield True and the inputs that need few candidates, then False and those that need all; None: all inputs."""
    if choice.tolerance < 0:
        yield False, None
        return
    certified_B = kept.bound_B <= choice.tolerance
    for few, mask_B in ((True, certified_B), (False, ~certified_B)):
        if bool(mask_B.all()):
            yield few, None
        elif bool(mask_B.any()):
            yield few, mask_B.nonzero().squeeze(1)


def _summed_few(
    soft: SoftSelection, candidates: Candidates, inputs_I: Tensor, embedding: DeferredLinear
) -> SummedSelection:
    """Sum few candidates; the gradient of their embedding rows is computed with that of all steps."""
    assert soft.token_ids_BX is not None
    weights_BKX, cost, end = soft.token_weights_BKX, candidates.cost, candidates.end
    zeros_BK = torch.zeros_like(soft.scores_BK)
    sums = TokenSums(
        mixed_rows(weights_BKX.to(embedding.weight_VD.dtype), embedding, soft.token_ids_BX),
        zeros_BK if cost is None else soft.expect(cost),
        zeros_BK if end is None else soft.token_mass(end),
    )
    fixed = soft.scores_BK, soft.parents_BK, soft.tokens_BK, soft.parent_weights_BKJ
    return SummedSelection(*fixed, candidates.token_values, sums, ((inputs_I, lambda: soft),))


def _summable(candidates: Candidates) -> bool:
    """Whether the cost, if any, is the same for all slots, has no gradient and can be recomputed."""
    cost = candidates.cost
    return cost is None or (cost.dim() == 2 and not cost.requires_grad and candidates.recompute_cost is not None)


def _expanded(candidates: Candidates, expand: Expand) -> SoftSelection:
    return expand(replace(candidates))  # a copy, so that the expanded scores are not cached
