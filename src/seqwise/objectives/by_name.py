"""Objectives by name: which there are, what each of them reads, and how it is built from settings.

What trains a model from the command line and what trains a model of transformers go by the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.names import ONLY_FOR, AlphaUnitName, CostName, Feeding, FeedingPasses, ScoreName
from seqwise.objectives.beam_likelihood import beam_crf_objective, dense_beam_objective, soft_dense_beam_objective
from seqwise.objectives.chain import crf_objective
from seqwise.objectives.distillation import distillation_objective
from seqwise.objectives.objective import (
    Objective,
    cross_entropy_objective,
    hinge_objective,
    mixed_objective,
    noise_contrastive_objective,
    relaxed_beam_objective,
    sampled_self_normalized_objective,
    scheduled_sampling_objective,
    self_normalized_objective,
    two_pass_scheduled_sampling_objective,
    unnormalized_likelihood_objective,
)
from seqwise.objectives.risk import edit_distances, minimum_risk_objective
from seqwise.objectives.search_aware import hamming_cost
from seqwise.objectives.violations import (
    beam_search_optimization_objective,
    early_update_objective,
    hard_beam_hinge_objective,
)
from seqwise.search.candidates import as_score
from seqwise.search.costs import edit_distance_cost
from seqwise.search.operators import AlphaUnit, mean_squared_gap, of_scores

__all__ = [
    "ObjectiveSettings",
    "log_partition_objective",
    "objective_by_name",
    "unit_by_name",
]

_SEARCHES: dict[str, Callable[..., Objective]] = {
    "relaxed-beam": relaxed_beam_objective,
    "hinge": hinge_objective,
    "hard-hinge": hard_beam_hinge_objective,
    "beam-crf": beam_crf_objective,
    "dense-beam": dense_beam_objective,
    "soft-dense-beam": soft_dense_beam_objective,
    "early-update": early_update_objective,
    "beam-search-optimization": beam_search_optimization_objective,
    "minimum-risk": minimum_risk_objective,
}


class ObjectiveSettings(Protocol):
    """What an objective is built from; each objective reads only its own."""

    @property
    def objective(self) -> str:
        """Its name."""
        ...

    @property
    def score(self) -> ScoreName:
        """What a token adds to a hypothesis."""
        ...

    @property
    def beam_size(self) -> int:
        """Slots of the beam."""
        ...

    @property
    def alpha_unit(self) -> AlphaUnitName:
        """What alpha is divided by."""
        ...

    @property
    def cost(self) -> CostName:
        """What a wrong output costs."""
        ...

    @property
    def feeding(self) -> Feeding:
        """What is fed in place of gold."""
        ...

    @property
    def feeding_passes(self) -> FeedingPasses:
        """How scheduled sampling is done."""
        ...

    @property
    def log_partition_weight(self) -> float:
        """Of the penalty on log Z."""
        ...

    @property
    def log_partition_fraction(self) -> float:
        """The part of the positions that is penalised."""
        ...

    @property
    def noise_tokens(self) -> int:
        """For each gold token."""
        ...

    @property
    def cross_entropy_weight(self) -> float:
        """Of cross-entropy added to an objective that sees the beam."""
        ...

    @property
    def direct_loss_weight(self) -> float:
        """Of relaxed-beam loss added to another."""
        ...


def objective_by_name(
    settings: ObjectiveSettings,
    *,
    end: int | None,
    log_noise_V: Callable[[], Tensor],
    teacher: Callable[[], nn.Module],
    token_costs_V: Tensor | None = None,
) -> Objective:
    """The objective that the settings name.

    Args:
        settings: the name and its options, each in its range.
        end: the token that ends an output, or None.
        log_noise_V: called for log q of the noise tokens, where the objective is noise-contrastive.
        teacher: called for the model that is distilled, where the objective is distillation.
        token_costs_V: of Hamming costs, what wrongly choosing each token costs; None for 1.

    Returns:
        ``objective(model, batch, values)``.

    Raises:
        InputError: there is no such objective, or an option cannot be used.

    Example:
        >>> from types import SimpleNamespace
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> settings = SimpleNamespace(objective="beam-crf", score="global", beam_size=2, cost="hamming",
        ...                            alpha_unit="scores", cross_entropy_weight=0.0, direct_loss_weight=0.0,
        ...                            log_partition_weight=0.0, log_partition_fraction=1.0)
        >>> objective = objective_by_name(settings, end=None, log_noise_V=lambda: None, teacher=lambda: None)
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> bool(objective(model, collate([(0, EncodedExample((1, 2), (0, 1)))]), {}) > 0)
        True
    """
    penalty = {"weight": settings.log_partition_weight, "fraction": settings.log_partition_fraction}
    without_search: dict[str, Callable[[], Objective]] = {
        "cross-entropy": cross_entropy_objective,
        "self-normalized": lambda: self_normalized_objective(**penalty),
        "sampled-self-normalized": lambda: sampled_self_normalized_objective(**penalty),
        "unnormalized-likelihood": lambda: unnormalized_likelihood_objective(**penalty),
        "noise-contrastive": lambda: noise_contrastive_objective(log_noise_V(), num_noise=settings.noise_tokens),
        "scheduled-sampling": lambda: _scheduled_sampling(settings),
        "crf": crf_objective,
        "distillation": lambda: _distillation(teacher(), settings.beam_size),
    }
    if settings.objective in without_search:
        return without_search[settings.objective]()
    if settings.objective not in _SEARCHES:
        raise InputError(f"no objective is called {settings.objective!r}")
    beam: dict[str, Any] = {"k": settings.beam_size, "score": as_score(settings.score)}
    searched = _SEARCHES[settings.objective](
        **beam,
        cross_entropy_weight=settings.cross_entropy_weight,
        **_options(settings, settings.objective, end, token_costs_V),
    )
    if settings.direct_loss_weight == 0:
        return searched
    relaxed = relaxed_beam_objective(**beam, **_options(settings, "relaxed-beam", end, token_costs_V))
    return mixed_objective([searched, relaxed], [1.0, settings.direct_loss_weight])


def _options(
    settings: ObjectiveSettings, objective: str, end: int | None, token_costs_V: Tensor | None
) -> dict[str, Any]:
    """The cost and the unit of alpha, where they are not the default, for an objective that has them."""
    options: dict[str, Any] = {}
    if settings.cost == "edit-distance" and objective in ONLY_FOR["cost"]:
        of_outputs, of_tokens = edit_distances, partial(edit_distance_cost, end=end)
        options["cost"] = of_outputs if objective == "minimum-risk" else of_tokens
    if token_costs_V is not None and objective in ONLY_FOR["wrong_label_costs"]:
        weights_V = token_costs_V
        options["cost"] = lambda gold_BT, size: hamming_cost(gold_BT, size, weights=weights_V.to(gold_BT.device))
    if objective in ONLY_FOR["alpha_unit"]:
        options["unit"] = unit_by_name(settings.alpha_unit)
    return options


def _scheduled_sampling(settings: ObjectiveSettings) -> Objective:
    two_pass = settings.feeding_passes == "two-pass"
    return (two_pass_scheduled_sampling_objective if two_pass else scheduled_sampling_objective)(settings.feeding)


def _distillation(teacher: nn.Module, k: int) -> Objective:
    objective = distillation_objective(cast(StepModel, teacher), k=k)

    def on_its_device(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        teacher.to(batch.sources_BS.device)  # training may have moved the model
        return objective(model, batch, values)

    return on_its_device


def log_partition_objective(*, fraction: float = 1.0) -> Objective:
    """The penalty that draws log Z to 0, alone: ``mean_{t in H} (log Z_t)^2`` along gold; uses no schedule.

    To be mixed with an objective that has none. H is all gold positions, or a fraction of them drawn anew at each call;
    the others never touch the vocabulary.

    Args:
        fraction: gamma, in (0, 1]; ``|H| = ceil(gamma n)`` of the n gold positions.

    Returns:
        An objective, in squared nats.

    Raises:
        InputError: the fraction is outside (0, 1].

    Source: Devlin et al. (ACL 2014), section 2.4; known as z-loss since PaLM (2022).

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=2, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> _ = nn.init.zeros_(model.head.weight), nn.init.zeros_(model.head.bias)
        >>> loss = log_partition_objective()(model, collate([(0, EncodedExample((1, 2), (0, 1)))]), {})
        >>> round(loss.item(), 4)  # (log 2)^2
        0.4805
    """
    if not 0 < fraction <= 1:
        raise InputError(f"the fraction of penalised positions must lie in (0, 1], got {fraction}")

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        features_BTH = model.teacher_forced(model.encode(batch), batch.targets_BT)
        features_NH = features_BTH[batch.targets_BT >= 0]
        if len(features_NH) == 0:
            return features_BTH.sum() * 0.0
        if fraction < 1:
            # Rounded first: 0.07 * 100 is 7.000000000000001 in floating point.
            num_drawn = math.ceil(round(fraction * len(features_NH), 9))
            features_NH = features_NH[torch.randperm(len(features_NH), device=features_NH.device)[:num_drawn]]
        logits_NV = model.head(features_NH)
        logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        return logits_NV.logsumexp(-1).square().mean()

    return objective


def unit_by_name(name: AlphaUnitName) -> AlphaUnit:
    """``of_scores`` or ``mean_squared_gap``."""
    return {"scores": of_scores, "gaps": mean_squared_gap}[name]
