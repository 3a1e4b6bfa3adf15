"""Search: one loop with selectors for greedy search, sampling, beam search and their continuous relaxations."""

from __future__ import annotations

from seqwise.search.automata import Automaton, regular, transitions, trie
from seqwise.search.beam import HELD, Beam, backtrace, beam_search, unroll
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
from seqwise.search.commits import CommitRule, Committing, agree, any_of, as_commit_rule, delay, margin, never
from seqwise.search.costs import Cost, PrefixCost, edit_distance_cost
from seqwise.search.exact import BestOutputs, best_first
from seqwise.search.feeding import FEEDINGS, fed_logits
from seqwise.search.grammars import Grammar, grammar
from seqwise.search.language import Language, allowed_logits, members
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
    "FEEDINGS",
    "HELD",
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
    "allowed_logits",
    "any_of",
    "as_commit_rule",
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
    "members",
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
