"""The objective "noise-contrastive"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.configuration import setting
from seqwise.errors import InputError
from seqwise.objectives.named.base import NOTHING, Context, ObjectiveConfig

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class NoiseContrastive(ObjectiveConfig):
    """Tell gold tokens from tokens drawn as often as they are gold.

    See :func:`~seqwise.objectives.objective.noise_contrastive_objective`.
    """

    from_scratch = True

    name: Literal["noise-contrastive"] = "noise-contrastive"
    noise_tokens: int = setting(10, "how many for each gold token, drawn as often as they are gold", ge=1)

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective; the context has the noise.

        Raises:
            InputError: it has none.
        """
        from seqwise.objectives.objective import noise_contrastive_objective

        if context.log_noise_V is None:
            raise InputError("noise-contrastive estimation needs noise", hint="pass Context(log_noise_V=...)")
        return noise_contrastive_objective(context.log_noise_V(), num_noise=self.noise_tokens)
