"""Selections for large vocabularies: relaxed without B x K x J x V weights, hard without expanding all candidates.

``SoftTopK`` and ``Candidates.top_k`` use this package for large vocabularies.

===========  ====================================================================================
module       contents
===========  ====================================================================================
``relaxed``  the soft top-k: chooses between few and all candidates for each input
``scan``     all scores of a step, and the few candidates to keep for each input
``blocks``   the n best of many candidates, and a bound on the weight of all others
``few``      the soft top-k of few candidates, with gradients but without a graph through V scores
``chunked``  the soft top-k of all candidates, in chunks that the backward pass recomputes
``triton``   block maxima and log Z in one pass on a GPU
===========  ====================================================================================

Gradients of the head and the embedding are computed once for all steps: ``seqwise.models.deferred_linear``.
"""
