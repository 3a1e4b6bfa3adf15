"""One loop and its selections: greedy, sampling, beam search, and their continuous relaxations."""

from __future__ import annotations

from seqwise.search.beam import HELD, Beam, Cost, Step, backtrace, beam_search, unroll
from seqwise.search.candidates import Candidates, Score, cost_augmented, global_, interpolated, local
from seqwise.search.feeding import FEEDINGS, GoldOr, fed_logits
from seqwise.search.gold import GoldStep, KeepGold, Lost, never_lost, no_rivals, out_of_beam, unroll_with_gold
from seqwise.search.noise import Gumbel
from seqwise.search.selection import (
    HardSelection,
    HardTopK,
    Selection,
    Selector,
    SoftArgmax,
    SoftSelection,
    SoftTopK,
    hard_top_k,
    peaked_softmax,
    soft_top_k,
)
from seqwise.search.stochastic import (
    StochasticBeam,
    conditional_gumbels,
    importance_weights,
    normalized_importance_weights,
    stochastic_beam_search,
)

__all__ = [
    "FEEDINGS",
    "HELD",
    "Beam",
    "Candidates",
    "Cost",
    "GoldOr",
    "GoldStep",
    "Gumbel",
    "HardSelection",
    "HardTopK",
    "KeepGold",
    "Lost",
    "Score",
    "Selection",
    "Selector",
    "SoftArgmax",
    "SoftSelection",
    "SoftTopK",
    "Step",
    "StochasticBeam",
    "backtrace",
    "beam_search",
    "conditional_gumbels",
    "cost_augmented",
    "fed_logits",
    "global_",
    "hard_top_k",
    "importance_weights",
    "interpolated",
    "local",
    "never_lost",
    "no_rivals",
    "normalized_importance_weights",
    "out_of_beam",
    "peaked_softmax",
    "soft_top_k",
    "stochastic_beam_search",
    "unroll",
    "unroll_with_gold",
]
