"""Kernels by name: a file a kernel, with the options that it reads, and how it is built.

A kernel is added by a file here with a subclass of :class:`~seqwise.sampling.named.base.KernelConfig`, and by a line
below. Nothing here imports torch before a kernel is built.
"""

from __future__ import annotations

from seqwise.sampling.named.base import AnyKernel, KernelConfig
from seqwise.sampling.named.delayed_acceptance import DelayedAcceptance
from seqwise.sampling.named.exact_gibbs import ExactGibbs
from seqwise.sampling.named.gibbs import Gibbs
from seqwise.sampling.named.mask_predict import MaskPredict
from seqwise.sampling.named.metropolis_hastings import MetropolisHastings
from seqwise.sampling.named.parallel_tempering import ParallelTempering

__all__ = [
    "AnyKernel",
    "DelayedAcceptance",
    "ExactGibbs",
    "Gibbs",
    "KernelConfig",
    "MaskPredict",
    "MetropolisHastings",
    "ParallelTempering",
]
