"""Options that several kernels share, and the class that a named kernel extends.

Nothing here imports torch before a kernel is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from seqwise.configuration import Config, setting
from seqwise.errors import InputError
from seqwise.names import VisitsName

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.proposals import Proposal, Visits
    from seqwise.sampling.state import Kernel

MOST_SWEEPS = 10**6
"""Largest number of sweeps or iterations for annealing, forced acceptance and Mask-Predict, against typos."""

MOST_POSITIONS = 10**5
"""Largest length of a sequence or block."""


class KernelConfig(Config):
    """Kernel with its options.

    A subclass has a ``name: Literal["..."]``, a field for each option and :meth:`build`.
    """

    name: Any  # narrowed to a Literal by each subclass; checkers refuse that of a mutable str

    follows_target: ClassVar[bool] = True
    """Whether the kernel leaves the target invariant, so that constraints can be part of it."""

    draws: ClassVar[bool] = True
    """Whether the kernel is random, so that chains and sweeps differ."""

    @property
    def num_replicas(self) -> int:
        """Number of replicas of each chain."""
        return 1

    @property
    def burn_in(self) -> int:
        """Number of initial sweeps that do not leave the target invariant."""
        return 0

    @property
    def largest_block(self) -> int:
        """Number of positions masked together in the last sweeps."""
        return 1

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        """Make the kernel, which may depend on the number of the sweep, but not on their total.

        Args:
            model: a model in evaluation mode, whose conditionals are proposed.
            energy: the target, constraints included.
            allowed_V: bool, tokens that may be proposed; None for all.
        """
        raise NotImplementedError


class Visiting(KernelConfig):
    """Options of kernels that visit positions."""

    visits: VisitsName = setting(
        "in-order",
        "order of the positions: in-order, shuffled, or anywhere (1 to --blocks random positions at a time)",
        panel="Proposals",
    )

    def visits_of(self, block: int) -> Visits:
        """Return the visits of a sweep with blocks of one size."""
        from seqwise.sampling.proposals import VISITS

        return VISITS[self.visits](block)


class Tempered(KernelConfig):
    """Options of kernels that draw from the model's masked conditionals."""

    proposal_temperature: float = setting(1.0, "temperature of the proposals; above 1 flatter", gt=0, panel="Proposals")

    def conditionals(self, model: MaskedModel, allowed_V: Tensor | None) -> Proposal:
        """Return the conditionals at this temperature."""
        from seqwise.sampling.proposals import masked_conditionals

        return masked_conditionals(model, temperature=self.proposal_temperature, allowed_V=allowed_V)


class Proposing(Tempered, Visiting):
    """Options of kernels that propose from the masked conditionals, some positions at a time."""

    blocks: Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_POSITIONS)], ...], Field(min_length=1)] = setting(
        (1,),
        "positions masked together in each sweep; the last number holds from then on [1]",
        metavar="N,...",
        panel="Proposals",
    )
    nucleus: float = setting(
        1.0,
        "propose the likeliest tokens of this total probability; below 1, chains get stuck without --full-share",
        gt=0,
        le=1,
    )
    full_share: float = setting(
        0.0, "weight of proposals from the full distribution, which keeps chains irreducible", ge=0, lt=1
    )

    @model_validator(mode="after")
    def _full_share(self) -> Proposing:
        if self.full_share and self.nucleus == 1:
            raise InputError("full_share: the nucleus holds the whole distribution", hint="lower the nucleus")
        return self

    @property
    def largest_block(self) -> int:
        return self.blocks[-1]

    def proposal(self, model: MaskedModel, allowed_V: Tensor | None) -> Proposal:
        """Return the proposal distribution."""
        from seqwise.sampling.proposals import masked_conditionals

        return masked_conditionals(
            model,
            temperature=self.proposal_temperature,
            allowed_V=allowed_V,
            nucleus=self.nucleus,
            full_share=self.full_share,
        )

    def in_blocks(self, kernel_of: Callable[[Visits], Kernel]) -> Kernel:
        """Make a kernel whose block size changes by sweep."""
        from seqwise.sampling.combinators import anneal_blocks

        return anneal_blocks(lambda block: kernel_of(self.visits_of(block)), self.blocks)

    def gibbs(self, proposal: Proposal) -> Kernel:
        """Make a kernel that accepts all proposals."""
        from seqwise.sampling.kernels import gibbs

        return self.in_blocks(lambda visits: gibbs(proposal, visits=visits))


class Annealed(KernelConfig):
    """Options of kernels whose target has one temperature, which may be annealed."""

    temperature: float = setting(
        1.0, "temperature of the target; below 1 nearer to its modes", panel="Temperature", gt=0
    )
    anneal: float | None = setting(
        None, "anneal the target from 1 to --temperature, by X in each sweep (burn-in)", gt=0
    )

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
        """Return the temperature of the target in each sweep, the last one from then on."""
        if self.anneal is None:
            return (self.temperature,)
        # Without the margin, rounding could add a sweep.
        number = math.ceil((1 - self.temperature - 1e-12) / self.anneal)
        return (*(1 - sweep * self.anneal for sweep in range(number)), self.temperature)

    @property
    def burn_in(self) -> int:
        return max(super().burn_in, len(self.annealed) - 1)


class Forced(Proposing):
    """Options of kernels that may accept all proposals in their first sweeps."""

    forced: int = setting(
        0, "accept all proposals in the first N sweeps (burn-in)", panel="Temperature", ge=0, le=MOST_SWEEPS
    )

    @property
    def burn_in(self) -> int:
        return max(super().burn_in, self.forced)

    def after_forced(self, kernel: Kernel, proposal: Proposal) -> Kernel:
        """Make the kernel with initial sweeps in which every proposal is accepted."""
        from seqwise.sampling.combinators import by_sweep

        return by_sweep([*[self.gibbs(proposal)] * self.forced, kernel]) if self.forced else kernel


class Accepting(Forced, Annealed):
    """Options of kernels that accept or reject proposals at one temperature."""

    def accepting(self, proposal: Proposal, kernel_of: Callable[..., Kernel]) -> Kernel:
        """Make a kernel of ``kernel_of(visits=..., temperature=...)`` whose blocks and temperature change by sweep."""
        from seqwise.sampling.combinators import anneal_target

        def at(temperature: float) -> Kernel:
            return self.in_blocks(lambda visits: kernel_of(visits=visits, temperature=temperature))

        return self.after_forced(anneal_target(at, self.annealed), proposal)


class Decoding(KernelConfig):
    """Kernels that refill all free positions and have no target."""

    follows_target = False


class Refining(Decoding):
    """Options of decoders with a number of iterations."""

    iterations: int = setting(10, "number of refinements", ge=1, le=MOST_SWEEPS, panel="Kernel")
