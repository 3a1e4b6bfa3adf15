"""The kernel "delayed-acceptance"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from seqwise.configuration import setting
from seqwise.sampling.named.base import Annealed, Forced

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.state import Kernel


class DelayedAcceptance(Forced, Annealed):
    """Metropolis-Hastings that first looks at the energy near the change only.

    See :func:`~seqwise.sampling.kernels.delayed_acceptance`.
    """

    name: Literal["delayed-acceptance"] = "delayed-acceptance"
    window: int = setting(1, "how far from a change the first look at the energy goes", ge=0, panel="Kernel")

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None, *, max_rows: int) -> Kernel:
        """See :class:`~seqwise.sampling.named.base.KernelConfig`."""
        from seqwise.sampling.combinators import anneal_target
        from seqwise.sampling.kernels import delayed_acceptance

        proposal, window = self.proposal(model, allowed_V), self.window

        def at(temperature: float) -> Kernel:
            return self.in_blocks(
                lambda visits: delayed_acceptance(
                    energy, proposal, window=window, visits=visits, temperature=temperature
                )
            )

        return self.after_forced(anneal_target(at, self.annealed), proposal)
