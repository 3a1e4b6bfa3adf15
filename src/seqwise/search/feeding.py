"""Scheduled sampling: decoder inputs that are not always the gold token.

Each variant is a selection with K = 1. It runs step by step in the loop of beam search, or at all positions at once,
choosing by the scores of a first pass along gold. Shapes: B batch, T target length, V vocabulary, H features, D
embedding; P = T - 1 positions whose choice is the next input, N = B P.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqwise.devices import at_least_float32
from seqwise.errors import InputError
from seqwise.models.protocols import ParallelModel, StepModel
from seqwise.search.beam import unroll
from seqwise.search.candidates import Candidates, global_
from seqwise.search.noise import Gumbel
from seqwise.search.segments import segment_of
from seqwise.search.selection import Selection
from seqwise.search.selectors import HardTopK, Selector, SoftArgmax

FEEDINGS: dict[str, Callable[[float], Selector]] = {
    "greedy": lambda alpha: HardTopK(1),
    "sample": lambda alpha: HardTopK(1, noise=Gumbel()),
    "soft-greedy": lambda alpha: SoftArgmax(alpha),
    "soft-sample": lambda alpha: SoftArgmax(alpha, noise=Gumbel()),
}
"""Replacements for gold inputs, by name: a selector made from alpha (which hard ones ignore)."""


@dataclass(frozen=True)
class GoldOr:
    """Selector that feeds the gold token with a given probability, and else the choice of another selector with K = 1.

    A coin (with probability epsilon in the thesis) is tossed for each token of each input. Negative gold tokens
    (padding) may be fed as token 0; these inputs are never read.

    Source: Bengio et al. (2015); thesis, chapter 3.
    """

    otherwise: Selector
    gold_BT: Tensor
    gold_probability: float

    def __call__(self, candidates: Candidates, carry: Any, generator: torch.Generator | None) -> tuple[Selection, Any]:
        """Select, then replace the choice by gold with the given probability."""
        gold_B = self.gold_BT[:, candidates.step].clamp(min=0)
        coin_B = torch.rand(gold_B.shape, generator=generator, device=gold_B.device) < self.gold_probability
        selection, carry = self.otherwise(candidates, carry, generator)
        if selection.scores_BK.shape[1] != 1:
            raise InputError(
                f"feeding needs one slot, and this selector keeps {selection.scores_BK.shape[1]}",
                hint="use HardTopK(1) or SoftArgmax",
            )
        return selection.forced(coin_B, gold_B), carry


def fed_logits(
    model: StepModel,
    context: Any,
    targets_BT: Tensor,
    *,
    otherwise: Selector,
    gold_probability: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute a model's scores at every step when only some inputs are gold, as in scheduled sampling.

    The loss of scheduled sampling is the cross-entropy of the gold tokens by these scores.

    Args:
        model: a step model.
        context: what ``model.encode`` returned.
        targets_BT: int64 gold tokens, negative where there is none.
        otherwise: selector with K = 1 that replaces gold, such as those of :data:`FEEDINGS`.
        gold_probability: in [0, 1]; 1 is teacher forcing.
        generator: random generator for the coin and the noise.

    Returns:
        Unnormalised scores, (B, T, V).

    Raises:
        InputError: the probability is outside [0, 1].

    Source: thesis, chapter 3.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import SoftArgmax
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> batch = collate([EncodedExample((1, 2), (0, 2))])
        >>> context, soft = model.encode(batch), SoftArgmax(alpha=2.0)
        >>> fed_logits(model, context, batch.targets_BT, otherwise=soft, gold_probability=0.5).shape
        torch.Size([1, 2, 3])
    """
    _check_probability(gold_probability)
    selector = GoldOr(otherwise, targets_BT, gold_probability)
    if targets_BT.shape[1] == 0:
        return torch.zeros(*targets_BT.shape, model.embedding_VD.shape[0], device=targets_BT.device)
    # No end token here: a model that ends too early is still trained on the rest of the gold output.
    steps = unroll(
        model,
        context,
        selector,
        num_steps=targets_BT.shape[1],
        score=global_,
        generator=generator,
        segment=segment_of(model),
    )
    return torch.cat([step.candidates.logits_BJV for step in steps], dim=1)


def fed_logits_in_two_passes(
    model: ParallelModel,
    context: Any,
    targets_BT: Tensor,
    *,
    otherwise: Selector,
    gold_probability: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Compute a model's scores when it is fed its own choices along *gold*: two passes instead of T steps.

    The first pass is teacher forcing. From its scores f1_t at each position, the selector makes the next input of the
    second pass, ``e_{t+1} = softmax_alpha(f1_t) E`` with ``SoftArgmax(alpha)``, or gold, ``e_{t+1} = E[y*_t]``, by a
    coin toss. The second pass reads all these embeddings at once. The first pass stays in the graph: soft choices carry
    gradients through both passes, hard ones only through the second.

    The step-by-step version chooses along its own inputs. Both agree at the first two positions, and wherever earlier
    inputs have no effect; elsewhere this one is an approximation.

    Source: Mihaylova and Martins (ACL 2019, student workshop); Duckworth et al. (2019). Not implemented: more than two
    passes; sparse mixtures.
    """
    _check_probability(gold_probability)
    if not hasattr(model, "forced"):
        raise InputError(
            f"a {type(model).__name__} takes one step at a time, and cannot be fed in two passes",
            hint="use scheduled sampling step by step",
        )
    gold_BP = targets_BT[:, :-1]
    if gold_BP.numel() == 0:  # only the first input is fed
        return at_least_float32(model.head(model.teacher_forced(context, targets_BT)))
    features_N1H = model.teacher_forced(context, gold_BP).flatten(0, 1).unsqueeze(1)
    zeros_N1 = at_least_float32(torch.zeros_like(features_N1H[..., 0]))
    # Each position of each input is a separate search of one step.
    candidates = Candidates(
        prefix_scores_BJ=zeros_N1, features_BJH=features_N1H, head=model.head, score=global_, finished_BJ=zeros_N1
    )
    selection, _ = GoldOr(otherwise, gold_BP.reshape(-1, 1), gold_probability)(candidates, None, generator)
    fed_BPD = selection.embed(model.embedding_VD).view(*gold_BP.shape, -1)
    first_B1D, _ = model.start(context)
    return at_least_float32(model.head(model.forced(context, torch.cat([first_B1D, fed_BPD], dim=1))))


def _check_probability(gold_probability: float) -> None:
    if not 0 <= gold_probability <= 1:
        raise InputError(f"the probability of feeding gold must lie between 0 and 1, got {gold_probability}")
