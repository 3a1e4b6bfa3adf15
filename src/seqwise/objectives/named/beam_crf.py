"""The objective "beam-crf"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.objectives.named.base import NOTHING, Context, Mixed

if TYPE_CHECKING:
    from seqwise.objectives.objective import Objective


class BeamCRF(Mixed):
    """Likelihood normalised over the outputs of a beam.

    See :func:`~seqwise.objectives.beam_likelihood.beam_crf_objective`.
    """

    name: Literal["beam-crf"] = "beam-crf"

    def build(self, context: Context = NOTHING) -> Objective:
        """Make the objective."""
        from seqwise.objectives.beam_likelihood import beam_crf_objective

        return self.mixed(beam_crf_objective(**self.beam()), context)
