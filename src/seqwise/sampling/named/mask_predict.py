"""The kernel "mask-predict"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import field_validator

from seqwise.configuration import setting
from seqwise.sampling.named.base import KernelConfig, at_most

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.state import Kernel


class MaskPredict(KernelConfig):
    """Fill in the likeliest tokens, again and again: a search, which draws nothing.

    See :func:`~seqwise.sampling.kernels.mask_predict`.
    """

    follows_target = False
    draws = False

    name: Literal["mask-predict"] = "mask-predict"
    iterations: int = setting(10, "number of refinements", ge=1, panel="Kernel")

    @field_validator("iterations")
    @classmethod
    def _most(cls, value: int) -> int:
        return at_most("iterations", value)

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None, *, max_rows: int) -> Kernel:
        """See :class:`~seqwise.sampling.named.base.KernelConfig`."""
        from seqwise.sampling.kernels import mask_predict

        return mask_predict(model, num_iterations=self.iterations, allowed_V=allowed_V, max_rows=max_rows)
