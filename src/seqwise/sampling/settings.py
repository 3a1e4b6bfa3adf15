"""Settings of chains: named kernels, the target that they leave invariant, and constraints.

A kernel is added by a subclass of :class:`~seqwise.sampling.KernelConfig` here, or in a file of its own that is
imported here; see docs/extending.md. Nothing here imports torch before a kernel is built.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from seqwise.configuration import Config, OneOf, setting
from seqwise.errors import InputError
from seqwise.names import EnergyName
from seqwise.sampling.options import (
    Accepting,
    Annealed,
    Decoding,
    Forced,
    KernelConfig,
    Proposing,
    Refining,
    Tempered,
    Visiting,
)

if TYPE_CHECKING:
    from torch import Tensor

    from seqwise.models.protocols import MaskedModel
    from seqwise.sampling.energies import Energy
    from seqwise.sampling.proposals import Visits
    from seqwise.sampling.state import Kernel


class DelayedAcceptance(Accepting):
    """Metropolis-Hastings in two stages, with the energy near the change first.

    See :func:`~seqwise.sampling.kernels.delayed_acceptance`.
    """

    name: Literal["delayed-acceptance"] = "delayed-acceptance"
    window: int = setting(
        1, "distance from a change up to which the first stage computes the energy", ge=0, panel="Kernel"
    )

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        from seqwise.sampling.kernels import delayed_acceptance

        proposal = self.proposal(model, allowed_V)
        return self.accepting(proposal, partial(delayed_acceptance, energy, proposal, window=self.window))


class ExactGibbs(Visiting, Annealed):
    """Draw each position from the true conditional of the target.

    See :func:`~seqwise.sampling.kernels.exact_gibbs`.
    """

    name: Literal["exact-gibbs"] = "exact-gibbs"

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        from seqwise.sampling.combinators import anneal_target
        from seqwise.sampling.kernels import exact_gibbs

        def at(temperature: float) -> Kernel:
            return exact_gibbs(energy, visits=self.visits_of(1), temperature=temperature, allowed_V=allowed_V)

        return anneal_target(at, self.annealed)


class Gibbs(Proposing):
    """Draw from the masked conditionals and accept all draws: degenerate Gibbs, which has no target.

    See :func:`~seqwise.sampling.kernels.gibbs`.
    """

    follows_target = False

    name: Literal["gibbs"] = "gibbs"

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        return self.gibbs(self.proposal(model, allowed_V))


class LowConfidenceRemasking(Refining, Tempered):
    """Draw all masked positions, keep the likeliest draws, and mask the others again.

    See :func:`~seqwise.sampling.unmasking.low_confidence_remasking`.
    """

    name: Literal["low-confidence-remasking"] = "low-confidence-remasking"

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        from seqwise.sampling.unmasking import low_confidence_remasking

        return low_confidence_remasking(self.conditionals(model, allowed_V), num_iterations=self.iterations)


class MaskPredict(Refining):
    """Fill in the likeliest tokens repeatedly: a search without random draws.

    See :func:`~seqwise.sampling.kernels.mask_predict`.
    """

    draws = False

    name: Literal["mask-predict"] = "mask-predict"

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        from seqwise.sampling.kernels import mask_predict

        return mask_predict(model, num_iterations=self.iterations, allowed_V=allowed_V)


class MetropolisHastings(Accepting):
    """Propose from the masked conditionals and accept so that the target stays invariant.

    See :func:`~seqwise.sampling.kernels.metropolis_hastings`.

    Example:
        >>> MetropolisHastings(temperature=0.5, anneal=0.25).annealed
        (1.0, 0.75, 0.5)
    """

    name: Literal["metropolis-hastings"] = "metropolis-hastings"

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        from seqwise.sampling.kernels import metropolis_hastings

        proposal = self.proposal(model, allowed_V)
        return self.accepting(proposal, partial(metropolis_hastings, energy, proposal))


class ParallelTempering(Forced):
    """Metropolis-Hastings at several temperatures, with exchanges between chains.

    See :func:`~seqwise.sampling.combinators.parallel_tempering`.
    """

    name: Literal["parallel-tempering"] = "parallel-tempering"
    temperatures: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=2)] = setting(
        (), "temperatures of the replicas, the target's first [none]", metavar="X,...", panel="Temperature"
    )

    @property
    def num_replicas(self) -> int:
        return len(self.temperatures)

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        from seqwise.sampling.combinators import parallel_tempering
        from seqwise.sampling.kernels import metropolis_hastings

        proposal = self.proposal(model, allowed_V)

        def with_visits(visits: Visits) -> Kernel:
            return parallel_tempering(
                lambda t_B: metropolis_hastings(energy, proposal, visits=visits, temperature=t_B), self.temperatures
            )

        return self.after_forced(self.in_blocks(with_visits), proposal)


class RandomUnmasking(Refining, Tempered):
    """Draw tokens at random masked positions, several per pass.

    See :func:`~seqwise.sampling.unmasking.random_unmasking`.
    """

    name: Literal["random-unmasking"] = "random-unmasking"

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        from seqwise.sampling.unmasking import random_unmasking

        return random_unmasking(self.conditionals(model, allowed_V), num_iterations=self.iterations)


class RemaskingDiffusion(Refining, Tempered):
    """Draw tokens at masked positions, and remask tokens at random: ReMDM.

    See :func:`~seqwise.sampling.unmasking.remasking_diffusion`.
    """

    name: Literal["remdm"] = "remdm"
    remask: float = setting(0.1, "maximum probability that a token is masked again", ge=0, le=1, panel="Kernel")

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        from seqwise.sampling.unmasking import remasking_diffusion

        proposal = self.conditionals(model, allowed_V)
        return remasking_diffusion(proposal, num_iterations=self.iterations, remask=self.remask)


class ThresholdDecoding(Decoding, Tempered):
    """Draw tokens where the likeliest one passes a threshold, like Fast-dLLM.

    See :func:`~seqwise.sampling.unmasking.threshold_decoding`.
    """

    name: Literal["threshold-decoding"] = "threshold-decoding"
    threshold: float = setting(0.9, "minimum probability at which a position is filled", ge=0, le=1, panel="Kernel")

    def build(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        from seqwise.sampling.unmasking import threshold_decoding

        return threshold_decoding(self.conditionals(model, allowed_V), threshold=self.threshold)


AnyKernel = Annotated[KernelConfig, OneOf(KernelConfig)]
"""Setting that is a named kernel."""


class ChainSettings(Config):
    """Target, kernel and constraints of chains.

    Args:
        kernel: makes a sweep: a :class:`KernelConfig`, or its name.
        energy: "local" or "raw".
        contain: phrases that must occur, as whole words in any tokenization, in the case that the tokenizer keeps. If
            tokens are words, characters or residues, a phrase is a sequence of tokens anywhere. A phrase of several
            tokens is sure to move only if the last block of the kernel is at least as long, and visits are not in
            order.
        without: phrases that must not occur.
        penalty: penalty in nats for each missing or forbidden phrase; None makes the constraints hard.
        max_rows: masked sequences per call of the model.

    Raises:
        InputError: a setting is unknown to the kernel, out of range, or incompatible with another.

    Example:
        >>> from seqwise.sampling import ExactGibbs
        >>> ChainSettings(kernel=ExactGibbs(temperature=0.5), energy="raw").burn_in
        0
        >>> ChainSettings(kernel={"name": "gibbs", "temperature": 0.5})
        Traceback (most recent call last):
        seqwise.errors.InputError: unknown key 'kernel.temperature'; did you mean 'proposal_temperature'?
    """

    kernel: AnyKernel = setting(
        "metropolis-hastings",
        "sampler; only delayed-acceptance, exact-gibbs, metropolis-hastings and parallel-tempering sample exp(-E)",
        panel="Kernel",
    )
    energy: EnergyName = setting("local", "energy: local (minus the pseudo-log-likelihood) or raw", panel="Kernel")
    contain: tuple[str, ...] = setting((), "words that must occur", metavar="PHRASE", panel="Constraints")
    without: tuple[str, ...] = setting((), "words that must not occur", metavar="PHRASE", panel="Constraints")
    penalty: float | None = setting(
        None, "energy in nats of each violated phrase [infinity: a hard constraint]", gt=0, panel="Constraints"
    )
    max_rows: int = setting(1024, "masked sequences in one pass; fewer need less memory", ge=1, panel="Run")

    @model_validator(mode="after")
    def _constraints(self) -> ChainSettings:
        constrained = [name for name in ("contain", "without") if getattr(self, name)]
        if constrained and not self.kernel.follows_target:
            problem = f"{constrained[0]}: the kernel {self.kernel.name} follows no target"
            raise InputError(problem, hint="leave it out, or choose another kernel")
        if self.penalty is not None and not constrained:
            raise InputError("penalty: there is no constraint", hint="add phrases to contain, or to do without")
        if isinstance(self.kernel, Forced) and self.kernel.forced and self.penalty is None and constrained:
            hint = "leave it out, or make the constraints soft with a penalty"
            raise InputError("forced: a forced acceptance may violate a hard constraint", hint=hint)
        return self

    @property
    def num_replicas(self) -> int:
        """Number of replicas of each chain, one for each temperature of parallel tempering."""
        return self.kernel.num_replicas

    @property
    def burn_in(self) -> int:
        """Number of initial sweeps that do not leave the target invariant."""
        return self.kernel.burn_in

    def build_energy(self, model: MaskedModel) -> Energy:
        """Make the model's energy with constraints.

        Args:
            model: a model in evaluation mode.
        """
        from seqwise.sampling.energies import ENERGIES

        return ENERGIES[self.energy](model, max_rows=self.max_rows)

    def build_kernel(self, model: MaskedModel, energy: Energy, allowed_V: Tensor | None = None) -> Kernel:
        """Make the kernel, which may depend on the number of the sweep, but not on their total.

        Args:
            model: a model in evaluation mode, whose conditionals are proposed.
            energy: constraints included.
            allowed_V: bool, tokens that may be proposed; None for all.

        Returns:
            A kernel; parallel tempering takes a state of :func:`~seqwise.sampling.replicas`.
        """
        return self.kernel.build(model, energy, allowed_V)
