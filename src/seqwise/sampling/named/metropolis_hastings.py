"""The kernel "metropolis-hastings"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.sampling.named.base import Annealed, Forced

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.state import Kernel


class MetropolisHastings(Forced, Annealed):
    """Propose from the masked conditionals and accept so that the target is kept.

    See :func:`~seqwise.sampling.kernels.metropolis_hastings`.

    Example:
        >>> MetropolisHastings(temperature=0.5, anneal=0.25).annealed
        (1.0, 0.75, 0.5)
    """

    name: Literal["metropolis-hastings"] = "metropolis-hastings"

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None, *, max_rows: int) -> Kernel:
        """See :class:`~seqwise.sampling.named.base.KernelConfig`."""
        from seqwise.sampling.combinators import anneal_target
        from seqwise.sampling.kernels import metropolis_hastings

        proposal = self.proposal(model, allowed_V)

        def at(temperature: float) -> Kernel:
            return self.in_blocks(
                lambda visits: metropolis_hastings(energy, proposal, visits=visits, temperature=temperature)
            )

        return self.after_forced(anneal_target(at, self.annealed), proposal)
