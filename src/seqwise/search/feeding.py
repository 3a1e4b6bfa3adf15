"""Scheduled sampling: what the decoder is fed next when it is not always fed the gold token.

Each variant is one selection with K = 1, run through the same loop as beam search. Shapes: B batch, T target length,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.search.beam import unroll
from seqwise.search.candidates import Candidates, global_
from seqwise.search.noise import Gumbel
from seqwise.search.selection import HardTopK, Selection, Selector, SoftArgmax

__all__ = ["FEEDINGS", "GoldOr", "fed_logits"]

FEEDINGS: dict[str, Callable[[float], Selector]] = {
    "greedy": lambda alpha: HardTopK(1),
    "sample": lambda alpha: HardTopK(1, noise=Gumbel()),
    "soft-greedy": lambda alpha: SoftArgmax(alpha),
    "soft-sample": lambda alpha: SoftArgmax(alpha, noise=Gumbel()),
}
"""What is fed in place of gold, by name: a selector made from alpha (which the hard ones do not need)."""


@dataclass(frozen=True)
class GoldOr:
    """Feed the gold token with a given probability, and otherwise what another selector chooses.

    The coin is tossed for each token of each input.

    Args:
        otherwise: a selector with K = 1.
        gold_BT: gold tokens; negative ones (padding) may be fed as token 0, where nothing reads them.
        gold_probability: the mixing probability, epsilon in the thesis.

    Source: Bengio et al. (2015); thesis, chapter 3.
    """

    otherwise: Selector
    gold_BT: Tensor
    gold_probability: float

    def __call__(self, candidates: Candidates, generator: torch.Generator | None) -> Selection:
        """Choose, then let gold take the place of the choice where the coin says so."""
        gold_B = self.gold_BT[:, candidates.step].clamp(min=0)
        coin_B = torch.rand(gold_B.shape, generator=generator, device=gold_B.device) < self.gold_probability
        selection = self.otherwise(candidates, generator)
        if selection.scores_BK.shape[1] != 1:
            raise InputError(
                f"what is fed must be one slot, and this selector keeps {selection.scores_BK.shape[1]}",
                mend="use HardTopK(1) or SoftArgmax",
            )
        return selection.forced(coin_B, gold_B)


def fed_logits(
    model: StepModel,
    context: Any,
    targets_BT: Tensor,
    *,
    otherwise: Selector,
    gold_probability: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The model's scores at every step when it is fed gold only some of the time.

    The loss on them is the ordinary cross-entropy of the gold token at every step, whatever was fed.

    Args:
        model: a step model.
        context: what ``model.encode`` returned.
        targets_BT: gold tokens, negative where there is none.
        otherwise: what is fed in place of gold: a selector with K = 1, such as those of :data:`FEEDINGS`.
        gold_probability: in [0, 1]; 1 is teacher forcing.
        generator: the source of random numbers for the coin and the noise.

    Returns:
        Unnormalised scores, (B, T, V).

    Raises:
        InputError: the probability is outside [0, 1].

    Source: thesis, chapter 3. Not implemented here: the parallel two-pass form for Transformers.

    Example:
        >>> sorted(FEEDINGS)
        ['greedy', 'sample', 'soft-greedy', 'soft-sample']
    """
    if not 0 <= gold_probability <= 1:
        raise InputError(f"the probability of feeding gold must lie between 0 and 1, got {gold_probability}")
    selector = GoldOr(otherwise, targets_BT, gold_probability)
    if targets_BT.shape[1] == 0:
        return torch.zeros(*targets_BT.shape, model.embedding_VD.shape[0], device=targets_BT.device)
    # No end token here: a model that ends too early is still trained on the rest of the gold output.
    steps = unroll(
        model, context, selector, num_steps=targets_BT.shape[1], score=global_, end=None, generator=generator
    )
    return torch.cat([step.candidates.logits_BJV for step in steps], dim=1)
