"""Scheduled sampling: cross-entropy with the decoder's own choices as some of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from seqwise.data.batches import Batch
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.objectives.likelihood import cross_entropy
from seqwise.objectives.objective import Objective, schedule_value
from seqwise.search.feeding import FEEDINGS, fed_logits


def scheduled_sampling_objective(feeding: str, *, fed: Callable[..., Tensor] = fed_logits) -> Objective:
    """Make the scheduled-sampling objective: cross-entropy of the gold tokens, whatever the inputs were.

    ``feeding`` names one of :data:`~seqwise.search.feeding.FEEDINGS`; ``fed`` feeds step by step, or is
    ``fed_logits_in_two_passes``. Schedules used: ``gold_probability``, and ``alpha`` for the soft feedings.

    Source: Bengio et al. (NIPS 2015); in two passes, Mihaylova and Martins (ACL 2019, student workshop).
    """
    if feeding not in FEEDINGS:
        raise InputError(f"no feeding is called {feeding!r}", hint=f"choose one of {', '.join(FEEDINGS)}")
    soft = feeding.startswith("soft")

    def objective(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
        alpha = schedule_value(values, "alpha", "scheduled_sampling_objective") if soft else 1.0
        logits_BTV = fed(
            model,
            model.encode(batch),
            batch.targets_BT,
            otherwise=FEEDINGS[feeding](alpha),
            gold_probability=schedule_value(values, "gold_probability", "scheduled_sampling_objective"),
        )
        return cross_entropy(logits_BTV, batch.targets_BT)

    return objective
