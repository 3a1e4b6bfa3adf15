"""The kernel "gibbs"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.sampling.named.base import Proposing

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.state import Kernel


class Gibbs(Proposing):
    """Draw from the masked conditionals and keep everything: degenerate Gibbs, which follows no target.

    See :func:`~seqwise.sampling.kernels.gibbs`.
    """

    follows_target = False

    name: Literal["gibbs"] = "gibbs"

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None, *, max_rows: int) -> Kernel:
        """See :class:`~seqwise.sampling.named.base.KernelConfig`."""
        from seqwise.sampling.kernels import gibbs

        proposal = self.proposal(model, allowed_V)
        return self.in_blocks(lambda visits: gibbs(proposal, visits=visits))
