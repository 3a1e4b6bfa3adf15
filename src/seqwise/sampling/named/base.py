"""Options that several named kernels share, and the interface of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import field_validator, model_validator

from seqwise.configuration import Config, OneOf, setting
from seqwise.errors import InputError
from seqwise.names import VisitsName

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.proposals import Proposal, Visits
    from seqwise.sampling.state import Kernel

MOST_SWEEPS = 10**6
"""Limit of annealing, of forced acceptance and of Mask-Predict: a larger number is taken for a slip of the pen."""

MOST_POSITIONS = 10**5
"""Limit of the length of a sequence, and of a block."""


class KernelConfig(Config):
    """A kernel with its options.

    A subclass has a ``name: Literal["..."]``, a field for each option and :meth:`build`.
    """

    follows_target: ClassVar[bool] = True
    """Whether it leaves the target unchanged, so that constraints can be part of it."""

    draws: ClassVar[bool] = True
    """Whether it draws at all, so that several chains and sweeps differ."""

    @property
    def label(self) -> str:
        """The name that settings have for the kernel."""
        return str(getattr(self, self.tag))

    @property
    def num_replicas(self) -> int:
        """Number of replicas of each chain."""
        return 1

    @property
    def burn_in(self) -> int:
        """Number of first sweeps that do not leave the target unchanged."""
        return 0

    @property
    def largest_block(self) -> int:
        """Number of positions that are masked together in the last sweeps."""
        return 1

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None, *, max_rows: int) -> Kernel:
        """Make the kernel; it depends on the number of the sweep, not on how many there will be.

        Args:
            model: in evaluation mode; its conditionals are proposed.
            energy: the target, constraints included.
            allowed_V: bool, the tokens that may be proposed; None for all.
            max_rows: masked sequences that the model is given at once.
        """
        raise NotImplementedError


AnyKernel = Annotated[KernelConfig, OneOf(KernelConfig)]
"""A setting that is a named kernel."""


class Visiting(KernelConfig):
    """Options of the kernels that visit positions."""

    visits: VisitsName = setting(
        "in-order",
        "in-order, shuffled, or anywhere: at random places, 1 to --blocks positions at a time",
        panel="Proposals",
    )

    def visits_of(self, block: int) -> Visits:
        """The visits of a sweep with blocks of one size."""
        from seqwise.sampling.proposals import VISITS

        return VISITS[self.visits](block)


class Proposing(Visiting):
    """Options of the kernels that propose from the masked conditionals of the model."""

    blocks: tuple[int, ...] = setting(
        (1,),
        "positions masked together: sweep by sweep, the last one from then on [1]",
        metavar="N,...",
        panel="Proposals",
    )
    proposal_temperature: float = setting(1.0, "greater than 1 is flatter", gt=0, panel="Proposals")
    nucleus: float = setting(
        1.0,
        "propose the likeliest tokens of that mass; below 1 chains get stuck without --full-share",
        gt=0,
        le=1,
    )
    full_share: float = setting(
        0.0,
        "weight of all tokens beside the nucleus, so that chains can go anywhere",
        ge=0,
        lt=1,
    )

    @field_validator("blocks", mode="before")
    @classmethod
    def _blocks(cls, value: Any) -> Any:
        blocks = numbers("blocks", value, int)
        if not blocks or min(blocks) < 1:
            raise InputError(f"blocks must be at least 1 each, got {list(blocks)}")
        if max(blocks) > MOST_POSITIONS:
            raise InputError(f"blocks must be at most {MOST_POSITIONS} each, got {list(blocks)}")
        return blocks

    @model_validator(mode="after")
    def _full_share(self) -> Proposing:
        if self.full_share and self.nucleus == 1:
            raise InputError("full_share: the nucleus holds the whole distribution", hint="lower the nucleus")
        return self

    @property
    def largest_block(self) -> int:
        """See :class:`KernelConfig`."""
        return self.blocks[-1]

    def proposal(self, model: MaskedModel, allowed_V: Tensor | None) -> Proposal:
        """The distribution that is proposed from."""
        from seqwise.sampling.proposals import masked_conditionals

        return masked_conditionals(
            model,
            temperature=self.proposal_temperature,
            allowed_V=allowed_V,
            nucleus=self.nucleus,
            full_share=self.full_share,
        )

    def in_blocks(self, kernel_of: Callable[[Visits], Kernel]) -> Kernel:
        """A kernel whose block size changes from sweep to sweep."""
        from seqwise.sampling.combinators import anneal_blocks

        return anneal_blocks(lambda block: kernel_of(self.visits_of(block)), self.blocks)


class Annealed(KernelConfig):
    """Options of the kernels whose target has one temperature, which may fall."""

    temperature: float = setting(1.0, "of the target; below 1 nearer to its modes", panel="Temperature", gt=0)
    anneal: float | None = setting(None, "from 1 to --temperature, X less each sweep (burn-in)", gt=0)

    @model_validator(mode="after")
    def _falls(self) -> Annealed:
        if self.anneal is None:
            return self
        if self.temperature >= 1:
            problem = f"anneal goes from temperature 1 down, and the target's is {self.temperature}"
            raise InputError(problem, hint="give a lower one, or leave anneal out")
        if (1 - self.temperature) / self.anneal > MOST_SWEEPS:
            number = (1 - self.temperature) / self.anneal
            shown = f"{round(number):,}" if number < 10**12 else f"{number:.3g}"
            problem = f"anneal: from 1 to {self.temperature:g} it takes {shown} sweeps, more than {MOST_SWEEPS:,}"
            raise InputError(problem, hint="subtract more each sweep")
        return self

    @property
    def annealed(self) -> tuple[float, ...]:
        """The temperature of the target in each sweep, the last from then on."""
        if self.anneal is None:
            return (self.temperature,)
        # Not by repeated subtraction, whose rounding could add a sweep; a division may be off by one as well.
        number = max(0, math.ceil((1 - self.temperature) / self.anneal) - 2)
        while 1 - number * self.anneal > self.temperature + 1e-12:
            number += 1
        return (*(1 - sweep * self.anneal for sweep in range(number)), self.temperature)

    @property
    def burn_in(self) -> int:
        """See :class:`KernelConfig`."""
        return max(super().burn_in, len(self.annealed) - 1)


class Forced(Proposing):
    """Options of the kernels that may accept all proposals in their first sweeps."""

    forced: int = setting(
        0,
        "accept all in the first N sweeps (burn-in)",
        panel="Temperature",
        ge=0,
    )

    @field_validator("forced")
    @classmethod
    def _most(cls, value: int) -> int:
        return at_most("forced", value)

    @property
    def burn_in(self) -> int:
        """See :class:`KernelConfig`."""
        return max(super().burn_in, self.forced)

    def after_forced(self, kernel: Kernel, proposal: Proposal) -> Kernel:
        """The kernel, after sweeps in which every proposal is accepted."""
        from seqwise.sampling.combinators import by_sweep
        from seqwise.sampling.kernels import gibbs

        if not self.forced:
            return kernel
        accepting = self.in_blocks(lambda visits: gibbs(proposal, visits=visits))
        return by_sweep([*[accepting] * self.forced, kernel])


def at_most(name: str, value: int, most: int = MOST_SWEEPS) -> int:
    """The value, if it is not absurd.

    Raises:
        InputError: it is.
    """
    if value > most:
        raise InputError(f"{name} must be at most {most}, got {value}", hint="ask for less")
    return value


def numbers(name: str, value: Any, kind: type[int] | type[float]) -> Sequence[Any]:
    """Numbers between commas, or a list of numbers.

    Raises:
        InputError: it is neither.

    Example:
        >>> numbers("blocks", "3,2,1", int), numbers("blocks", [3, 2], int)
        ((3, 2, 1), (3, 2))
    """
    parts = value
    if isinstance(value, str):
        parts = value.split(",") if value else ()
    try:
        if kind is int and any(isinstance(part, float) and part != int(part) for part in parts):
            raise ValueError
        return tuple(kind(part) for part in parts)
    except (TypeError, ValueError):
        what = "whole numbers" if kind is int else "numbers"
        problem = f"{name}: {value!r} is not a list of {what}"
        raise InputError(problem, hint="separate them with commas: 3,2,1") from None
