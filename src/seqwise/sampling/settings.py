"""Settings of chains: the target, the kernel that leaves it unchanged, and the constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from seqwise.configuration import Config, setting
from seqwise.errors import InputError
from seqwise.names import EnergyName
from seqwise.sampling.named import AnyKernel
from seqwise.sampling.named.base import Forced

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.state import Kernel


class ChainSettings(Config):
    """Target, kernel and constraints of chains.

    Args:
        kernel: makes a sweep: one of :mod:`seqwise.sampling.named`, or its name.
        energy: "local" or "raw".
        contain: phrases that must occur: whole words, however subwords spell them, in the case that a tokenizer keeps.
            Where tokens are words, characters or residues, a phrase is its tokens, and may stand anywhere. A phrase of
            several tokens can move for certain if the last block of the kernel is as long at least, and its visits are
            not in order.
        without: phrases that must not.
        penalty: nats, for each phrase that is missing, or there; None: the constraints are hard.
        max_rows: masked sequences that the model is given at once.

    Raises:
        InputError: a setting is unknown to the kernel, out of its range, or does not go with another.

    Example:
        >>> from seqwise.sampling import ExactGibbs
        >>> ChainSettings(kernel=ExactGibbs(temperature=0.5), energy="raw").burn_in
        0
        >>> ChainSettings(kernel={"name": "gibbs", "temperature": 0.5})
        Traceback (most recent call last):
        seqwise.errors.InputError: unknown key 'kernel.temperature'; did you mean 'proposal_temperature'?
    """

    kernel: AnyKernel = setting("metropolis-hastings", "mask-predict and gibbs follow no energy", panel="Kernel")
    energy: EnergyName = setting("local", "local or raw", panel="Kernel")
    contain: tuple[str, ...] = setting((), "words that must occur", metavar="PHRASE", panel="Constraints")
    without: tuple[str, ...] = setting((), "words that must not occur", metavar="PHRASE", panel="Constraints")
    penalty: float | None = setting(
        None, "nats for each phrase that breaks it [infinity: hard]", gt=0, panel="Constraints"
    )
    max_rows: int = setting(1024, "masked sequences at once; fewer need less memory", ge=1, panel="Run")

    @model_validator(mode="after")
    def _constraints(self) -> ChainSettings:
        constrained = [name for name in ("contain", "without") if getattr(self, name)]
        if constrained and not self.kernel.follows_target:
            problem = f"{constrained[0]}: the kernel {self.kernel.label} follows no target"
            raise InputError(problem, hint="leave it out, or choose another kernel")
        if self.penalty is not None and not constrained:
            raise InputError("penalty: there is no constraint", hint="add phrases to contain, or to do without")
        if isinstance(self.kernel, Forced) and self.kernel.forced and self.penalty is None and constrained:
            hint = "leave it out, or make the constraints soft with a penalty"
            raise InputError("forced: a proposal that is accepted unasked may break a hard constraint", hint=hint)
        return self

    @property
    def num_replicas(self) -> int:
        """Number of replicas of each chain, one for each temperature of parallel tempering."""
        return self.kernel.num_replicas

    @property
    def burn_in(self) -> int:
        """Number of first sweeps that do not leave the target unchanged."""
        return self.kernel.burn_in

    def build_energy(self, model: MaskedModel) -> Energy:
        """The model's energy, to which constraints are added.

        Args:
            model: in evaluation mode.
        """
        from seqwise.sampling.energies import ENERGIES

        return ENERGIES[self.energy](model, max_rows=self.max_rows)

    def build_kernel(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        """The kernel; it depends on the number of the sweep, not on how many there will be.

        Args:
            model: in evaluation mode; its conditionals are proposed.
            energy: constraints included.
            allowed_V: bool, the tokens that may be proposed; None for all.

        Returns:
            A kernel; that of parallel tempering takes a state of :func:`~seqwise.sampling.replicas`.
        """
        return self.kernel.build(model, energy, allowed_V, max_rows=self.max_rows)

    def flat(self) -> dict[str, Any]:
        """All settings by the names of their flags, those of the kernel among them, as JSON has them."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        options = {name: getattr(self.kernel, name) for name in type(self.kernel).model_fields if name != "name"}
        found = {**own, **options, "kernel": self.kernel.label}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
