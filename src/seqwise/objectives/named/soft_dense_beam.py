"""The objective "soft-dense-beam"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Mixed

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class SoftDenseBeam(Mixed):
    """Likelihood of gold among the slots of a relaxed beam, at every step.

    See :func:`~seqwise.objectives.beam_likelihood.soft_dense_beam_objective`.
    """

    name: Literal["soft-dense-beam"] = "soft-dense-beam"

    @property
    def relaxes(self) -> bool:
        """Always: the rivals of gold come from a relaxed beam."""
        return True

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.beam_likelihood import soft_dense_beam_objective

        return self.mixed(soft_dense_beam_objective(**self.beam(), unit=self.alpha_unit()), context)
