"""From the name of an objective in the settings to what a training step minimises, and the schedules that it reads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqwise.data.batches import Batch, EncodedExample
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.objectives import (
    CostOfGold,
    Objective,
    beam_crf_objective,
    beam_search_optimization_objective,
    crf_objective,
    cross_entropy_objective,
    dense_beam_objective,
    distillation_objective,
    early_update_objective,
    edit_distances,
    hamming_cost,
    hard_beam_hinge_objective,
    hinge_objective,
    minimum_risk_objective,
    mixed_objective,
    noise_contrastive_objective,
    noise_log_probs,
    relaxed_beam_objective,
    sampled_self_normalized_objective,
    scheduled_sampling_objective,
    self_normalized_objective,
    soft_dense_beam_objective,
    two_pass_scheduled_sampling_objective,
    unnormalized_likelihood_objective,
)
from seqwise.runs.settings import ONLY_FOR, Settings, parse_label_costs, score_by_name, unit_by_name
from seqwise.search.costs import edit_distance_cost
from seqwise.training.configuration import did_you_mean
from seqwise.training.schedules import Schedule, parse_schedule

__all__ = ["build_objective", "build_schedules"]

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


def _cost_of_gold(settings: Settings, labels: Vocabulary) -> CostOfGold:
    """Hamming costs, weighted as the settings say."""
    costs = parse_label_costs(settings.wrong_label_costs)
    unknown = [label for label in costs if label not in labels.tokens]
    if unknown:
        problem = f"wrong_label_costs: no label of the training data is called {unknown[0]!r}"
        raise InputError(problem, mend=did_you_mean(unknown[0], labels.tokens))
    weights_V = torch.tensor([costs.get(label, 1.0) for label in labels.tokens])
    return lambda gold_BT, size: hamming_cost(gold_BT, size, weights=weights_V.to(gold_BT.device))


def build_objective(
    settings: Settings,
    labels: Vocabulary,
    *,
    encoded: Iterable[EncodedExample] = (),
    start: nn.Module | None = None,
) -> Objective:
    """The objective that the settings name, for outputs over this vocabulary.

    Args:
        settings: the name and its options.
        labels: what outputs are made of.
        encoded: the training data, whose tokens are the noise of noise-contrastive estimation.
        start: the model that training starts from; a copy of it is the teacher of distillation.

    Raises:
        InputError: an option cannot be used, or distillation has no model to start from.
    """
    penalty = {"weight": settings.log_partition_weight, "fraction": settings.log_partition_fraction}
    without_search: dict[str, Callable[[], Objective]] = {
        "cross-entropy": cross_entropy_objective,
        "self-normalized": lambda: self_normalized_objective(**penalty),
        "sampled-self-normalized": lambda: sampled_self_normalized_objective(**penalty),
        "unnormalized-likelihood": lambda: unnormalized_likelihood_objective(**penalty),
        "noise-contrastive": lambda: noise_contrastive_objective(
            _noise(encoded, len(labels)), num_noise=settings.noise_tokens
        ),
        "scheduled-sampling": lambda: _scheduled_sampling(settings),
        "crf": crf_objective,
        "distillation": lambda: _distillation(start, settings.beam_size),
    }
    if settings.objective in without_search:
        return without_search[settings.objective]()
    beam: dict[str, Any] = {"k": settings.beam_size, "score": score_by_name(settings.score)}
    searched = _SEARCHES[settings.objective](
        **beam, cross_entropy_weight=settings.cross_entropy_weight, **_options(settings, labels, settings.objective)
    )
    if settings.direct_loss_weight == 0:
        return searched
    relaxed = relaxed_beam_objective(**beam, **_options(settings, labels, "relaxed-beam"))
    return mixed_objective([searched, relaxed], [1.0, settings.direct_loss_weight])


def _options(settings: Settings, labels: Vocabulary, objective: str) -> dict[str, Any]:
    """The cost and the unit of alpha, where they are not the default, for an objective that has them."""
    options: dict[str, Any] = {}
    if settings.cost == "edit-distance" and objective in ONLY_FOR["cost"]:
        of_outputs, of_tokens = edit_distances, partial(edit_distance_cost, end=labels.end_id)
        options["cost"] = of_outputs if objective == "minimum-risk" else of_tokens
    if settings.wrong_label_costs and objective in ONLY_FOR["wrong_label_costs"]:
        options["cost"] = _cost_of_gold(settings, labels)
    if objective in ONLY_FOR["alpha_unit"]:
        options["unit"] = unit_by_name(settings.alpha_unit)
    return options


def _scheduled_sampling(settings: Settings) -> Objective:
    two_pass = settings.feeding_passes == "two-pass"
    return (two_pass_scheduled_sampling_objective if two_pass else scheduled_sampling_objective)(settings.feeding)


def _noise(encoded: Iterable[EncodedExample], num_tokens: int) -> Tensor:
    """log q of the tokens, by how often they are gold."""
    counts_V = torch.ones(num_tokens)  # once more each: what is never gold has to be held down too
    for example in encoded:
        counts_V += torch.bincount(torch.tensor(example.target_ids, dtype=torch.long), minlength=num_tokens)
    return noise_log_probs(counts_V)


def _distillation(start: nn.Module | None, k: int) -> Objective:
    """Distillation of the model that training starts from, as it is now."""
    if start is None:
        raise InputError("distillation needs a trained model to start from", mend="pass start=model")
    teacher = copy.deepcopy(start).requires_grad_(False).eval()
    objective = distillation_objective(cast(StepModel, teacher), k=k)

    def on_its_device(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        teacher.to(batch.sources_BS.device)  # training may have moved the model
        return objective(model, batch, values)

    return on_its_device


def build_schedules(settings: Settings, *, total_steps: int) -> dict[str, Schedule]:
    """The schedules that objectives ask for by name."""
    return {
        name: parse_schedule(getattr(settings, name), total_steps=total_steps) for name in ("alpha", "gold_probability")
    }
