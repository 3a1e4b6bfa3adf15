"""The kernel "parallel-tempering"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from seqwise.configuration import setting
from seqwise.errors import InputError
from seqwise.sampling.named.base import Forced, numbers

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.state import Kernel


class ParallelTempering(Forced):
    """Metropolis-Hastings at several temperatures, whose chains exchange what they hold.

    See :func:`~seqwise.sampling.combinators.parallel_tempering`.
    """

    name: Literal["parallel-tempering"] = "parallel-tempering"
    temperatures: tuple[float, ...] = setting((), "the wanted one first [none]", metavar="X,...", panel="Temperature")

    @field_validator("temperatures", mode="before")
    @classmethod
    def _temperatures(cls, value: Any) -> Any:
        temperatures = numbers("temperatures", value, float)
        if not all(0 < temperature < math.inf for temperature in temperatures):
            raise InputError(f"temperatures must be finite and greater than 0, got {list(temperatures)}")
        if len(temperatures) < 2:
            hint = "give the wanted one first: 1,1.5"
            raise InputError("temperatures: parallel tempering needs two or more", hint=hint)
        return temperatures

    @property
    def num_replicas(self) -> int:
        """One for each temperature."""
        return len(self.temperatures)

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None, *, max_rows: int) -> Kernel:
        """See :class:`~seqwise.sampling.named.base.KernelConfig`."""
        from seqwise.sampling.combinators import parallel_tempering
        from seqwise.sampling.kernels import metropolis_hastings

        proposal = self.proposal(model, allowed_V)

        def with_visits(visits: Any) -> Kernel:
            return parallel_tempering(
                lambda t_B: metropolis_hastings(energy, proposal, visits=visits, temperature=t_B), self.temperatures
            )

        return self.after_forced(self.in_blocks(with_visits), proposal)
