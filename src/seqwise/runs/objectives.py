"""From the name of an objective in the settings to what a training step minimises, and the schedules that it reads."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from seqwise.data.batches import EncodedExample
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.names import SEARCH_OBJECTIVES, SELF_NORMALIZING
from seqwise.objectives import Objective, noise_log_probs
from seqwise.objectives.by_name import objective_by_name
from seqwise.runs.label_costs import parse_label_costs
from seqwise.runs.settings import Settings
from seqwise.training.configuration import did_you_mean
from seqwise.training.schedules import Schedule, parse_schedule

__all__ = ["build_objective", "build_schedules", "loss_unit", "relaxes", "schedules_read"]


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
    return objective_by_name(
        settings,
        end=labels.end_id,
        log_noise_V=lambda: _noise(encoded, len(labels)),
        teacher=lambda: _teacher(start),
        token_costs_V=_token_costs(settings, labels),
    )


def _token_costs(settings: Settings, labels: Vocabulary) -> Tensor | None:
    """What wrongly choosing each label costs, where the settings say it."""
    costs = parse_label_costs(settings.wrong_label_costs)
    if not costs:
        return None
    unknown = [label for label in costs if label not in labels.tokens]
    if unknown:
        problem = f"wrong_label_costs: no label of the training data is called {unknown[0]!r}"
        raise InputError(problem, mend=did_you_mean(unknown[0], labels.tokens))
    return torch.tensor([costs.get(label, 1.0) for label in labels.tokens])


def _noise(encoded: Iterable[EncodedExample], num_tokens: int) -> Tensor:
    """log q of the tokens, by how often they are gold."""
    counts_V = torch.ones(num_tokens)  # once more each: what is never gold has to be held down too
    for example in encoded:
        counts_V += torch.bincount(torch.tensor(example.target_ids, dtype=torch.long), minlength=num_tokens)
    return noise_log_probs(counts_V)


def _teacher(start: nn.Module | None) -> nn.Module:
    """The model that training starts from, as it is now."""
    if start is None:
        raise InputError("distillation needs a trained model to start from", mend="pass start=model")
    return copy.deepcopy(start).requires_grad_(False).eval()


def build_schedules(settings: Settings, *, total_steps: int) -> dict[str, Schedule]:
    """The schedules that objectives ask for by name."""
    return {
        name: parse_schedule(getattr(settings, name), total_steps=total_steps) for name in ("alpha", "gold_probability")
    }


def schedules_read(settings: Settings) -> set[str]:
    """Of the two schedules, those that the objective of a stage reads: each objective is handed both.

    Example:
        >>> schedules_read(Settings(objective="scheduled-sampling", feeding="greedy"))
        {'gold_probability'}
    """
    if settings.objective == "scheduled-sampling":
        return {"gold_probability", *(["alpha"] if settings.feeding.startswith("soft") else [])}
    return {"alpha"} if relaxes(settings) else set()


def relaxes(settings: Settings) -> bool:
    """Whether the objective of a stage has a relaxed beam in it.

    Example:
        >>> relaxes(Settings(objective="hinge")), relaxes(Settings(objective="cross-entropy"))
        (True, False)
    """
    relaxed = settings.objective in ("relaxed-beam", "hinge", "soft-dense-beam", "minimum-risk")
    return relaxed or settings.direct_loss_weight > 0


def loss_unit(settings: Settings) -> str:
    """Name what the loss of a stage counts, per gold token; what it adds to that is named too.

    Example:
        >>> loss_unit(Settings(objective="relaxed-beam"))
        'expected wrong labels per label, + 0.1 x cross-entropy'
        >>> loss_unit(Settings(objective="cross-entropy")), loss_unit(Settings(objective="self-normalized"))
        ('nats per label', 'nats per label, + 0.1 x (log Z)^2')
    """
    token, costs = ("label" if settings.task == "tag" else "token"), settings.wrong_label_costs
    cost = "cost" if costs else "edits" if settings.cost == "edit-distance" else f"wrong {token}s"
    if settings.objective in ("relaxed-beam", "minimum-risk"):
        unit = f"expected {cost} per {token}"
    elif settings.objective in ("hinge", "hard-hinge", "early-update", "beam-search-optimization"):
        unit = f"nats by which gold loses in the beam, per {token}"
    else:
        unit = f"nats per {token}"
    if settings.objective in SELF_NORMALIZING:
        unit += f", + {settings.log_partition_weight:g} x (log Z)^2"
    if settings.objective in SEARCH_OBJECTIVES and settings.cross_entropy_weight:
        unit += f", + {settings.cross_entropy_weight:g} x cross-entropy"
    if settings.direct_loss_weight:
        unit += f", + {settings.direct_loss_weight:g} x expected {cost}"
    return unit
