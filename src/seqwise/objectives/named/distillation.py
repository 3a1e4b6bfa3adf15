"""The objective "distillation"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from seqwise.configuration import setting
from seqwise.errors import InputError
from seqwise.names import ScoreName
from seqwise.objectives.named.base import BEAM, NOTHING, Context, ObjectiveConfig

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.data.batches import Batch
    from seqwise.models.protocols import StepModel
    from seqwise.objectives.objective import Objective


class Distillation(ObjectiveConfig):
    """Learn as raw scores what the beam of a local model prefers.

    See :func:`~seqwise.objectives.distillation.distillation_objective`.
    """

    searches = True

    name: Literal["distillation"] = "distillation"
    k: int = setting(5, BEAM, flag="beam_size", ge=1)

    @property
    def trained_score(self) -> ScoreName:
        """Raw scores."""
        return "global"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective; the context has the teacher.

        Raises:
            InputError: it has none.
        """
        from seqwise.objectives.distillation import distillation_objective

        if context.teacher is None:
            raise InputError("distillation needs a trained model to start from", hint="pass start=model")
        teacher: Any = context.teacher()
        objective = distillation_objective(teacher, k=self.k)

        def on_its_device(model: StepModel, batch: Batch, values: Mapping[str, float]) -> Tensor:
            teacher.to(batch.sources_BS.device)  # training may have moved the model
            return objective(model, batch, values)

        return on_its_device
