"""Objectives as settings: each class names a training objective, lists its options, and builds it.

An objective is added by a subclass of :class:`~seqwise.objectives.ObjectiveConfig` here, or in a file of its own that
is imported here; see docs/extending.md. Nothing here imports torch before an objective is built, so that the command
line can list the options quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from seqwise.configuration import setting
from seqwise.errors import InputError
from seqwise.names import NormalizedOver, ScoreName
from seqwise.objectives.options import (
    BEAM,
    LOST_MARGIN,
    NOTHING,
    Annealed,
    Committed,
    Context,
    Costed,
    Mixed,
    ObjectiveConfig,
    OutputCosted,
    Penalized,
    Relaxed,
    Sampling,
    Searching,
)
from seqwise.schedules import Schedule

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.data.batches import Batch
    from seqwise.models.protocols import StepModel
    from seqwise.objectives.objective import Objective


# ---------------------------------------------------------------------------------------- self-normalisation


class SampledSelfNormalized(Penalized):
    """Cross-entropy with a penalty on log Z, at a fraction of the positions."""

    name: Literal["sampled-self-normalized"] = "sampled-self-normalized"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.self_normalization import sampled_self_normalized_objective

        return sampled_self_normalized_objective(weight=self.weight, fraction=self.fraction)


class SelfNormalized(Penalized):
    """Cross-entropy with a penalty that keeps log Z near 0."""

    name: Literal["self-normalized"] = "self-normalized"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.self_normalization import self_normalized_objective

        return self_normalized_objective(weight=self.weight, fraction=self.fraction)


class UnnormalizedLikelihood(Penalized):
    """Raw scores of the gold tokens with a penalty on log Z."""

    name: Literal["unnormalized-likelihood"] = "unnormalized-likelihood"
    weight: float = setting(
        0.1, "unnormalized-likelihood: log Z settles near 1/(2 weight)", flag="log_partition_weight", gt=0
    )

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.self_normalization import unnormalized_likelihood_objective

        return unnormalized_likelihood_objective(weight=self.weight, fraction=self.fraction)


# ---------------------------------------------------------------------------------------- options of searches


class BeamCRF(Committed):
    """Likelihood normalised over the outputs of a beam."""

    name: Literal["beam-crf"] = "beam-crf"

    @property
    def unrolls(self) -> bool:
        """Only with added relaxed-beam loss: the beam itself is found without gradients."""
        return self.relaxes

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.beam_likelihood import beam_crf_objective

        return self.mixed(beam_crf_objective(**self.beam()), context)


class DenseBeam(Committed):
    """Likelihood of gold among the slots of a beam, at every step."""

    name: Literal["dense-beam"] = "dense-beam"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.beam_likelihood import dense_beam_objective

        return self.mixed(dense_beam_objective(**self.beam()), context)


class SoftDenseBeam(Mixed):
    """Likelihood of gold among the slots of a relaxed beam, at every step."""

    name: Literal["soft-dense-beam"] = "soft-dense-beam"

    @property
    def relaxes(self) -> bool:
        """Always true: the rivals of gold come from a relaxed beam."""
        return True

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.beam_likelihood import soft_dense_beam_objective

        return self.mixed(soft_dense_beam_objective(**self.beam(), unit=self.alpha_unit()), context)


# ---------------------------------------------------------------------------------------- margins and costs of a beam


class BeamSearchOptimization(Costed, Searching):
    """Margin violations wherever gold falls off the beam, which then restarts from gold."""

    search_unit = LOST_MARGIN
    name: Literal["beam-search-optimization"] = "beam-search-optimization"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.violations import beam_search_optimization_objective

        return beam_search_optimization_objective(**self.beam(), **self.token_cost(context))


class EarlyUpdate(Searching):
    """Perceptron update at the step where gold falls off the beam."""

    search_unit = LOST_MARGIN
    name: Literal["early-update"] = "early-update"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.violations import early_update_objective

        return early_update_objective(**self.beam())


class HardHinge(Costed, Searching):
    """Hinge loss on the hard beam."""

    search_unit = LOST_MARGIN
    name: Literal["hard-hinge"] = "hard-hinge"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.violations import hard_beam_hinge_objective

        return hard_beam_hinge_objective(**self.beam(), **self.token_cost(context))


class Hinge(Relaxed, Costed, Searching):
    """Hinge loss on the relaxed beam, with cost-augmented search."""

    search_unit = LOST_MARGIN
    name: Literal["hinge"] = "hinge"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.search_aware import hinge_objective

        return hinge_objective(**self.beam(), unit=self.alpha_unit(), **self.token_cost(context))


class MinimumRisk(Annealed, OutputCosted):
    """Expected cost of the outputs of a beam."""

    name: Literal["minimum-risk"] = "minimum-risk"

    def search_loss_unit(self, token: str) -> str:
        return "expected edits" if self.cost == "edit-distance" else f"expected wrong {token}s"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.risk import minimum_risk_objective

        return minimum_risk_objective(**self.beam(), **self.output_cost())


class SoftmaxMargin(OutputCosted):
    """Likelihood over the outputs of a beam, in which costly outputs weigh more."""

    name: Literal["softmax-margin"] = "softmax-margin"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.softmax_margin import softmax_margin_objective

        return softmax_margin_objective(**self.beam(), **self.output_cost())


class RelaxedBeam(Relaxed, Costed, Searching):
    """Expected cost of the outputs of a relaxed beam."""

    name: Literal["relaxed-beam"] = "relaxed-beam"

    def search_loss_unit(self, token: str) -> str:
        return f"expected {self.cost_name(token)}"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.search_aware import relaxed_beam_objective

        return relaxed_beam_objective(**self.beam(), unit=self.alpha_unit(), **self.token_cost(context))


# ---------------------------------------------------------------------------------------- others


class CRF(ObjectiveConfig):
    """Likelihood of a linear chain, normalised over all outputs."""

    name: Literal["crf"] = "crf"

    @property
    def trained_score(self) -> ScoreName:
        return "global"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.chain import crf_objective

        return crf_objective()


class CrossEntropy(ObjectiveConfig):
    """Cross-entropy of the gold tokens."""

    from_scratch = True

    name: Literal["cross-entropy"] = "cross-entropy"
    label_smoothing: float = setting(0.0, "probability that is moved from each gold token to all tokens", ge=0, lt=1)
    normalized_over: NormalizedOver = setting(
        "vocabulary", "tokens that log Z sums over: all, or those that --language allows"
    )

    @property
    def trained_score(self) -> ScoreName:
        return "local" if self.normalized_over == "vocabulary" else "renormalized"

    def loss_unit(self, token: str) -> str:
        smoothed = f", labels smoothed by {self.label_smoothing:g}" if self.label_smoothing else ""
        return super().loss_unit(token) + smoothed

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.objective import cross_entropy_objective

        return cross_entropy_objective(label_smoothing=self.label_smoothing, score=self.trained_score)


class Distillation(ObjectiveConfig):
    """Distil the preferences of a local model's beam into raw scores."""

    searches = True

    name: Literal["distillation"] = "distillation"
    k: int = setting(5, BEAM, flag="beam_size", ge=1)

    @property
    def unrolls(self) -> bool:
        """Always false: both beams are found without gradients, and rescored in one pass."""
        return False

    @property
    def trained_score(self) -> ScoreName:
        return "global"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.distillation import distillation_objective

        if context.teacher is None:
            raise InputError("distillation needs a trained model to start from", hint="pass start=model")
        teacher: Any = context.teacher()
        objective = distillation_objective(teacher, k=self.k)

        def on_device_of_batch(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
            teacher.to(batch.sources_BS.device)  # training may have moved the model
            return objective(model, batch, values)

        return on_device_of_batch


class NoiseContrastive(ObjectiveConfig):
    """Discriminate gold tokens from tokens drawn from their distribution."""

    from_scratch = True

    name: Literal["noise-contrastive"] = "noise-contrastive"
    noise_tokens: int = setting(
        10, "noise tokens for each gold token, drawn from the distribution of gold tokens", ge=1
    )

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.contrastive import noise_contrastive_objective

        if context.log_noise_V is None:
            raise InputError("noise-contrastive estimation needs noise", hint="pass Context(log_noise_V=...)")
        return noise_contrastive_objective(context.log_noise_V(), num_noise=self.noise_tokens)


class ScheduledSampling(Sampling, ObjectiveConfig):
    """Cross-entropy along the model's own outputs, with decreasing probability of gold."""

    name: Literal["scheduled-sampling"] = "scheduled-sampling"

    @property
    def schedules(self) -> dict[str, Schedule]:
        soft = {"alpha": self.alpha} if self.feeding.startswith("soft") else {}
        return {"gold_probability": self.gold_probability, **soft}

    @property
    def steps_singly(self) -> bool:
        return self.feeding_passes == "step-by-step"

    def build(self, context: Context = NOTHING) -> Objective:
        from seqwise.objectives.scheduled_sampling import scheduled_sampling_objective
        from seqwise.search.feeding import fed_logits, fed_logits_in_two_passes

        fed = fed_logits if self.steps_singly else fed_logits_in_two_passes
        return scheduled_sampling_objective(self.feeding, fed=fed)
