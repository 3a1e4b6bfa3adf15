"""Selections of large vocabularies: relaxed without ever holding B x K x J x V weights, hard without all scores.

``SoftTopK`` and ``Candidates.top_k`` come here by themselves where a vocabulary is large enough.

===========  ====================================================================================
module       what is in it
===========  ====================================================================================
``relaxed``  the soft top-k: which inputs keep few candidates, and which need all
``scan``     all scores of a step, the few that are kept, input by input
``blocks``   the n best of many candidates, and a bound on what all others weigh together
``few``      the soft top-k of few candidates, with gradients but without a graph through V scores
``chunked``  the soft top-k of all candidates, summed in chunks that the backward pass makes again
``triton``   maxima of blocks and log Z in one pass, on a GPU
===========  ====================================================================================

Gradients of the head and the embedding are made once for all steps: ``seqwise.models.deferred_linear``.
"""
