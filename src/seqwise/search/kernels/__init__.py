"""The selections of large vocabularies: relaxed without ever holding B x K x J x V weights, hard without all scores.

``SoftTopK`` and ``HardTopK`` come here by themselves where a vocabulary is large enough; nothing else needs to know.

================  ====================================================================================
module            what is in it
================  ====================================================================================
``certificate``   the n best of many candidates, and a bound on what all others weigh together
``logits``        scores of a few tokens, and log Z, with gradients but without a graph through V scores
``dense``         all candidates, summed in chunks that the backward pass makes again
``deferral``      gradients of the head and the embedding, made once for all steps
``selections``    what a search asks of a selection, answered without a weight for each token
``scan``          all scores of a step, the few that are kept, input by input
``fused``         the scan in one pass, on a GPU (Triton)
``heads``         which heads are linear and nothing else
``relaxed``       the choice among these, input by input
``hard``          the k best, where nothing is differentiated
================  ====================================================================================
"""

from __future__ import annotations

from seqwise.search.kernels.certificate import (
    Best,
    Blocks,
    best_candidates,
    block_maxima,
    excluded_mass_bound,
    worst_maximum,
)
from seqwise.search.kernels.deferral import DeferredGradients, Matrix
from seqwise.search.kernels.dense import DenseProblem, DenseSums, dense_soft_top_k
from seqwise.search.kernels.hard import best_of_many
from seqwise.search.kernels.heads import FirstStepHead, LinearOverLayer, head_of_step, linear_weights
from seqwise.search.kernels.logits import few_logits
from seqwise.search.kernels.relaxed import default_tolerance, relaxed_top_k
from seqwise.search.kernels.scan import Choice, Kept, Scan, certify, scan_scores
from seqwise.search.kernels.selections import (
    FewSelection,
    ForcedSelection,
    JoinedSelection,
    ReducedSelection,
    mixed_rows,
)

__all__ = [
    "Best",
    "Blocks",
    "Choice",
    "DeferredGradients",
    "DenseProblem",
    "DenseSums",
    "FewSelection",
    "FirstStepHead",
    "ForcedSelection",
    "JoinedSelection",
    "Kept",
    "LinearOverLayer",
    "Matrix",
    "ReducedSelection",
    "Scan",
    "best_candidates",
    "best_of_many",
    "block_maxima",
    "certify",
    "default_tolerance",
    "dense_soft_top_k",
    "excluded_mass_bound",
    "few_logits",
    "head_of_step",
    "linear_weights",
    "mixed_rows",
    "relaxed_top_k",
    "scan_scores",
    "worst_maximum",
]
