"""Every name that a setting can have: objectives, scores, decoders, kernels, ...; the only list of each.

Nothing here imports torch, so that ``--help`` and the completion of a shell are quick. What the names stand for is
built elsewhere, and tests compare both.
"""

from __future__ import annotations

from typing import Literal, get_args

__all__ = [
    "COSTED_OBJECTIVES",
    "DECODER_NAMES",
    "GLOBAL_OBJECTIVES",
    "ONLY_FOR",
    "SEARCH_OBJECTIVES",
    "SELF_NORMALIZING",
    "AlphaUnitName",
    "CostName",
    "DecoderName",
    "EnergyName",
    "Feeding",
    "FeedingPasses",
    "GlobalObjective",
    "ScoreName",
    "SearchObjective",
    "TrainedObjective",
    "VisitsName",
]

SearchObjective = Literal[
    "relaxed-beam",
    "hinge",
    "hard-hinge",
    "beam-crf",
    "dense-beam",
    "soft-dense-beam",
    "early-update",
    "beam-search-optimization",
    "minimum-risk",
]
"""Objectives that see the beam."""

GlobalObjective = Literal["crf", "distillation"]
"""Objectives of raw scores, whatever the score of the settings."""

TrainedObjective = Literal[
    "cross-entropy",
    "self-normalized",
    "sampled-self-normalized",
    "unnormalized-likelihood",
    "noise-contrastive",
    "scheduled-sampling",
    GlobalObjective,
    SearchObjective,
]
"""All that can be built."""

ScoreName = Literal["local", "global"]  # what a token adds to a hypothesis: log-softmax, or raw scores
CostName = Literal["hamming", "edit-distance"]  # what a wrong output costs
AlphaUnitName = Literal["scores", "gaps"]  # what alpha is divided by
Feeding = Literal["greedy", "sample", "soft-greedy", "soft-sample"]  # what is fed in place of gold
FeedingPasses = Literal["step-by-step", "two-pass"]  # how scheduled sampling is done

SEARCH_OBJECTIVES: tuple[SearchObjective, ...] = get_args(SearchObjective)
"""Objectives that see the beam, and so the score it is searched with."""

GLOBAL_OBJECTIVES: tuple[GlobalObjective, ...] = get_args(GlobalObjective)
"""Objectives of raw scores, whatever the score of the settings."""

SELF_NORMALIZING = ("self-normalized", "sampled-self-normalized", "unnormalized-likelihood")
"""Objectives that draw log Z to a constant."""

COSTED_OBJECTIVES: tuple[SearchObjective, ...] = ("relaxed-beam", "hinge", "hard-hinge", "beam-search-optimization")
"""Those whose search knows what each wrong token costs."""

ONLY_FOR: dict[str, tuple[SearchObjective, ...]] = {
    "direct_loss_weight": ("beam-crf", "dense-beam", "soft-dense-beam"),
    "alpha_unit": ("relaxed-beam", "hinge", "soft-dense-beam"),
    "cost": (*COSTED_OBJECTIVES, "minimum-risk"),
    "wrong_label_costs": COSTED_OBJECTIVES,
}
"""Settings that all other objectives would pass over in silence."""

DecoderName = Literal["greedy", "beam", "interpolated-beam", "raw-beam", "soft-beam", "viterbi"]
"""How outputs are searched for; viterbi is for chains."""

DECODER_NAMES: tuple[DecoderName, ...] = get_args(DecoderName)
"""How outputs are searched for; viterbi is for chains."""

EnergyName = Literal["local", "raw"]
"""Minus the pseudo-log-likelihood, or minus the sum of the scores as they are."""

VisitsName = Literal["in-order", "shuffled", "anywhere"]
"""Each free position once in a sweep, from left to right or in an order drawn anew; or as many visits at random places,
each of a size that is drawn from 1 to the sweep's block."""
