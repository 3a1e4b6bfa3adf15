"""Search: one loop with selectors for greedy search, sampling, beam search and their continuous relaxations."""

from __future__ import annotations

from seqwise.search.automata import Automaton, regular, transitions, trie
from seqwise.search.beam import Beam, backtrace, beam_search, unroll
from seqwise.search.candidates import (
    Candidates,
    Score,
    cost_augmented,
    global_,
    interpolated,
    local,
    renormalized,
    shifted,
)
from seqwise.search.commits import CommitRule, Committing, agree, delay, margin, never
from seqwise.search.costs import Cost, PrefixCost, edit_distance_cost
from seqwise.search.exact import BestOutputs, best_first
from seqwise.search.feeding import fed_logits
from seqwise.search.grammars import Grammar, grammar
from seqwise.search.language import Allowed, Language
from seqwise.search.noise import Gumbel
from seqwise.search.operators import hard_top_k, mean_squared_gap, peaked_softmax, soft_top_k
from seqwise.search.selection import HardSelection, Selection, SoftSelection
from seqwise.search.selectors import HardTopK, Selector, SoftArgmax, SoftTopK, expanded, summed, viterbi
from seqwise.search.stochastic import (
    StochasticBeam,
    StochasticTopK,
    importance_weights,
    normalized_importance_weights,
    stochastic_beam_search,
)

__all__ = [
    "Allowed",
    "Automaton",
    "Beam",
    "BestOutputs",
    "Candidates",
    "CommitRule",
    "Committing",
    "Cost",
    "Grammar",
    "Gumbel",
    "HardSelection",
    "HardTopK",
    "Language",
    "PrefixCost",
    "Score",
    "Selection",
    "Selector",
    "SoftArgmax",
    "SoftSelection",
    "SoftTopK",
    "StochasticBeam",
    "StochasticTopK",
    "agree",
    "backtrace",
    "beam_search",
    "best_first",
    "cost_augmented",
    "delay",
    "edit_distance_cost",
    "expanded",
    "fed_logits",
    "global_",
    "grammar",
    "hard_top_k",
    "importance_weights",
    "interpolated",
    "local",
    "margin",
    "mean_squared_gap",
    "never",
    "normalized_importance_weights",
    "peaked_softmax",
    "regular",
    "renormalized",
    "shifted",
    "soft_top_k",
    "stochastic_beam_search",
    "summed",
    "transitions",
    "trie",
    "unroll",
    "viterbi",
]
