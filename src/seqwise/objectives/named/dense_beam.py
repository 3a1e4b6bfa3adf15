"""The objective "dense-beam"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Mixed

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class DenseBeam(Mixed):
    """Likelihood of gold among the slots of a beam, at every step.

    See :func:`~seqwise.objectives.beam_likelihood.dense_beam_objective`.
    """

    name: Literal["dense-beam"] = "dense-beam"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.beam_likelihood import dense_beam_objective

        return self.mixed(dense_beam_objective(**self.beam()), context)
