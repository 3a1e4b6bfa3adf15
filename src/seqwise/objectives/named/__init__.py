"""Objectives by name: a file a method, with the options that it reads, and how it is built.

A method is added by a file here with a subclass of :class:`~seqwise.objectives.named.base.ObjectiveConfig`, and by a
line below. Nothing here imports torch before an objective is built.
"""

from __future__ import annotations

from seqwise.objectives.named.base import AnyObjective, Context, ObjectiveConfig
from seqwise.objectives.named.beam_crf import BeamCRF
from seqwise.objectives.named.beam_search_optimization import BeamSearchOptimization
from seqwise.objectives.named.crf import CRF
from seqwise.objectives.named.cross_entropy import CrossEntropy
from seqwise.objectives.named.dense_beam import DenseBeam
from seqwise.objectives.named.distillation import Distillation
from seqwise.objectives.named.early_update import EarlyUpdate
from seqwise.objectives.named.hard_hinge import HardHinge
from seqwise.objectives.named.hinge import Hinge
from seqwise.objectives.named.minimum_risk import MinimumRisk
from seqwise.objectives.named.noise_contrastive import NoiseContrastive
from seqwise.objectives.named.relaxed_beam import RelaxedBeam
from seqwise.objectives.named.sampled_self_normalized import SampledSelfNormalized
from seqwise.objectives.named.scheduled_sampling import ScheduledSampling
from seqwise.objectives.named.self_normalized import SelfNormalized
from seqwise.objectives.named.soft_dense_beam import SoftDenseBeam
from seqwise.objectives.named.unnormalized_likelihood import UnnormalizedLikelihood

__all__ = [
    "CRF",
    "AnyObjective",
    "BeamCRF",
    "BeamSearchOptimization",
    "Context",
    "CrossEntropy",
    "DenseBeam",
    "Distillation",
    "EarlyUpdate",
    "HardHinge",
    "Hinge",
    "MinimumRisk",
    "NoiseContrastive",
    "ObjectiveConfig",
    "RelaxedBeam",
    "SampledSelfNormalized",
    "ScheduledSampling",
    "SelfNormalized",
    "SoftDenseBeam",
    "UnnormalizedLikelihood",
]
