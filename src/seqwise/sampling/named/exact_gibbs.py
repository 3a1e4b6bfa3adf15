"""The kernel "exact-gibbs"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.sampling.named.base import Annealed, Visiting

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.state import Kernel


class ExactGibbs(Visiting, Annealed):
    """Draw each position from the true conditional of the target.

    See :func:`~seqwise.sampling.kernels.exact_gibbs`.
    """

    name: Literal["exact-gibbs"] = "exact-gibbs"

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None, *, max_rows: int) -> Kernel:
        """See :class:`~seqwise.sampling.named.base.KernelConfig`."""
        from seqwise.sampling.combinators import anneal_target
        from seqwise.sampling.kernels import exact_gibbs

        def at(temperature: float) -> Kernel:
            return exact_gibbs(energy, visits=self.visits_of(1), temperature=temperature, allowed_V=allowed_V)

        return anneal_target(at, self.annealed)
