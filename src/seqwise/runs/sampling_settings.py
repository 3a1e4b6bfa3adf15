"""What ``seqwise sample`` is asked for: every setting, its range, what reads it, and the kernel that it makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling import (
    Energy,
    Kernel,
    Visits,
    burn_in,
    by_sweep,
    delayed_acceptance,
    exact_gibbs,
    gibbs,
    in_order,
    local,
    mask_predict,
    masked_conditionals,
    metropolis_hastings,
    parallel_tempering,
    raw,
    shuffled,
)
from seqwise.sampling.energies import MAX_ROWS

__all__ = ["KernelName", "SampleSettings", "build_energy", "build_kernel"]

KernelName = Literal[
    "metropolis-hastings", "delayed-acceptance", "exact-gibbs", "gibbs", "mask-predict", "parallel-tempering"
]
"""What makes a sweep; "gibbs" and "mask-predict" follow no energy."""

EnergyName = Literal["local", "raw"]
VisitsName = Literal["in-order", "shuffled"]

ENERGIES: dict[str, Callable[..., Energy]] = {"local": local, "raw": raw}
VISITS: dict[str, Callable[[int], Visits]] = {"in-order": in_order, "shuffled": shuffled}

BURN_IN = 7
"""Sweeps that are not counted, where there are enough; Goyal (2021), section 6.4."""


@dataclass(frozen=True)
class SampleSettings:
    """How is sampled, from what, and what is printed of it.

    Args:
        kernel: what makes a sweep; see :data:`KernelName`.
        energy: "local" or "raw".
        chains: for each problem and length; None: 5, and 1 for mask-predict, which draws nothing.
        sweeps: of each chain; None: 33, and 1 for mask-predict.
        discard: sweeps that are neither counted nor printed; None: 7, or half of all where there are fewer than 14.
        every: print each so many sweeps; None: the last one only.
        best: print of each problem only the sequence of the lowest energy per token, of all chains, sweeps and lengths.
        blocks: how many positions are masked together: one number for each sweep, the last from then on.
        visits: "in-order" or "shuffled".
        proposal_temperature: greater than 1 is flatter.
        nucleus: the mass of the likeliest tokens that are proposed.
        full_share: the weight of the whole distribution beside the nucleus.
        window: of delayed acceptance: how far from a change the first look at the energy goes.
        temperature: of the target.
        anneal: start from temperature 1 and subtract so much each sweep, as far as ``temperature``; until then the
            sweeps are burn-in. None: no annealing.
        forced: in so many first sweeps all proposals are accepted; they are burn-in.
        temperatures: of parallel tempering; the first is the one wanted.
        iterations: of mask-predict.
        contain: phrases that must occur.
        without: phrases that must not.
        penalty: nats, for each phrase that is missing, or there; None: the constraints are hard.
        length: of sequences that are sampled from nothing: a number, or a range as in "5-9", from which each problem
            draws its own; None: drawn from the lengths of the training data.
        count: how many problems, where there is no file of them.
        length_beam: how many of its likeliest lengths are tried for each source.
        free: the token that marks a free position in a file.
        seed: of all random numbers.
        save_every: sweeps between two savings.
        max_rows: masked sequences that the model is given at once.

    Raises:
        InputError: a setting is out of its range, does not go with another, or differs from its default though nothing
            would read it.

    Example:
        >>> SampleSettings(sweeps=10).num_discarded
        5
        >>> SampleSettings(kernel="gibbs", temperature=0.5)
        Traceback (most recent call last):
        seqwise.errors.InputError: temperature: the kernel gibbs does not read it; leave it out
    """

    kernel: KernelName = "metropolis-hastings"
    energy: EnergyName = "local"
    chains: int | None = None
    sweeps: int | None = None
    discard: int | None = None
    every: int | None = None
    best: bool = False
    blocks: tuple[int, ...] = (1,)
    visits: VisitsName = "in-order"
    proposal_temperature: float = 1.0
    nucleus: float = 1.0
    full_share: float = 0.0
    window: int = 1
    temperature: float = 1.0
    anneal: float | None = None
    forced: int = 0
    temperatures: tuple[float, ...] = ()
    iterations: int = 10
    contain: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    penalty: float | None = None
    length: str | None = None
    count: int = 1
    length_beam: int = 1
    free: str = "_"
    seed: int = 0
    save_every: int = 10
    max_rows: int = MAX_ROWS

    def __post_init__(self) -> None:
        _require_choices(self)
        _require_read(self)
        _require_ranges(self)
        _require_sense(self)

    @property
    def num_chains(self) -> int:
        """Of each problem and length."""
        return self.chains or (1 if self.kernel == "mask-predict" else 5)

    @property
    def num_sweeps(self) -> int:
        """Of each chain."""
        return self.sweeps or (1 if self.kernel == "mask-predict" else 33)

    @property
    def num_discarded(self) -> int:
        """Sweeps that are neither counted nor printed, burn-in not included."""
        return min(BURN_IN, self.num_sweeps // 2) if self.discard is None else self.discard

    @property
    def num_replicas(self) -> int:
        """Of each chain, one for each temperature of parallel tempering."""
        return max(len(self.temperatures), 1)

    @property
    def annealed(self) -> tuple[float, ...]:
        """The temperature of the target in each sweep, the last from then on."""
        falling: list[float] = []
        # Not by repeated subtraction, whose rounding could add a sweep.
        while self.anneal is not None and 1 - len(falling) * self.anneal > self.temperature + 1e-12:
            falling.append(1 - len(falling) * self.anneal)
        return (*falling, self.temperature)

    @property
    def burn_in(self) -> int:
        """First sweeps that do not leave the target unchanged."""
        return max(self.forced, len(self.annealed) - 1)

    def prints(self, sweep: int) -> bool:
        """Whether the sequences after a sweep, counted from 1, are among those printed."""
        if self.every is None:
            return sweep == self.num_sweeps
        return sweep % self.every == 0 and sweep > max(self.num_discarded, self.burn_in)

    @property
    def lengths(self) -> range | None:
        """Those that ``length`` names."""
        if self.length is None:
            return None
        low, _, high = self.length.partition("-")
        return range(int(low), int(high or low) + 1)


def build_energy(settings: SampleSettings, model: MaskedModel) -> Energy:
    """The model's energy by the name in the settings; constraints are added to it.

    Args:
        settings: ``energy`` and ``max_rows`` are read.
        model: in evaluation mode.
    """
    return ENERGIES[settings.energy](model, max_rows=settings.max_rows)


def build_kernel(settings: SampleSettings, model: MaskedModel, energy: Energy, allowed_V: Tensor | None) -> Kernel:
    """The kernel that the settings describe; it depends on the number of the sweep, not on how many there will be.

    Args:
        settings: see there.
        model: in evaluation mode; what is proposed from.
        energy: constraints included.
        allowed_V: bool, the tokens that may be proposed; None for all.

    Returns:
        A kernel; that of parallel tempering takes a state of :func:`~seqwise.sampling.replicas`.
    """
    if settings.kernel == "mask-predict":
        return mask_predict(model, num_iterations=settings.iterations, allowed_V=allowed_V)
    proposal = masked_conditionals(
        model,
        temperature=settings.proposal_temperature,
        allowed_V=allowed_V,
        nucleus=settings.nucleus,
        full_share=settings.full_share,
    )

    def one(block: int, temperature: float) -> Kernel:
        visits = VISITS[settings.visits](block)
        if settings.kernel == "gibbs":
            return gibbs(proposal, visits=visits)
        if settings.kernel == "exact-gibbs":
            return exact_gibbs(energy, visits=visits, temperature=temperature, allowed_V=allowed_V)
        if settings.kernel == "delayed-acceptance":
            window = settings.window
            return delayed_acceptance(energy, proposal, window=window, visits=visits, temperature=temperature)
        if settings.kernel == "parallel-tempering":
            return parallel_tempering(
                lambda t_B: metropolis_hastings(energy, proposal, visits=visits, temperature=t_B), settings.temperatures
            )
        return metropolis_hastings(energy, proposal, visits=visits, temperature=temperature)

    def of_sweep(sweep: int) -> Kernel:
        block = settings.blocks[min(sweep, len(settings.blocks) - 1)]
        if sweep < settings.forced:
            return gibbs(proposal, visits=VISITS[settings.visits](block))
        temperatures = settings.annealed
        kernel = one(block, temperatures[min(sweep, len(temperatures) - 1)])
        return burn_in(kernel) if sweep < len(temperatures) - 1 else kernel

    return by_sweep([of_sweep(sweep) for sweep in range(max(len(settings.blocks), settings.burn_in + 1))])


PROPOSING = ("metropolis-hastings", "delayed-acceptance", "gibbs", "parallel-tempering")
FOLLOWING = ("metropolis-hastings", "delayed-acceptance", "exact-gibbs", "parallel-tempering")
DRAWING = ("exact-gibbs", *PROPOSING)
READ_BY: dict[str, Sequence[str]] = {
    "chains": DRAWING,
    "sweeps": DRAWING,
    "discard": DRAWING,
    "every": DRAWING,
    "visits": DRAWING,
    "blocks": PROPOSING,
    "proposal_temperature": PROPOSING,
    "nucleus": PROPOSING,
    "full_share": PROPOSING,
    "window": ("delayed-acceptance",),
    "temperature": ("metropolis-hastings", "delayed-acceptance", "exact-gibbs"),
    "anneal": ("metropolis-hastings", "delayed-acceptance", "exact-gibbs"),
    "forced": ("metropolis-hastings", "delayed-acceptance", "parallel-tempering"),
    "temperatures": ("parallel-tempering",),
    "iterations": ("mask-predict",),
    "contain": FOLLOWING,
    "without": FOLLOWING,
}
"""Settings that not every kernel reads."""


def _require_choices(settings: SampleSettings) -> None:
    for name, choices in (("kernel", KernelName), ("energy", EnergyName), ("visits", VisitsName)):
        value, known = getattr(settings, name), get_args(choices)
        if value not in known:
            raise InputError(f"{name}: there is no {value!r}", mend=f"choose from {', '.join(known)}")


def _require_read(settings: SampleSettings) -> None:
    given = {field.name for field in fields(settings) if getattr(settings, field.name) != field.default}
    for name, kernels in READ_BY.items():
        if name in given and settings.kernel not in kernels:
            raise InputError(f"{name}: the kernel {settings.kernel} does not read it", mend="leave it out")
    if settings.penalty is not None and not settings.contain and not settings.without:
        raise InputError("penalty: there is no constraint", mend="add phrases to contain, or to do without")
    if settings.full_share and settings.nucleus == 1:
        raise InputError("full_share: the nucleus holds the whole distribution", mend="lower the nucleus")
    if settings.best and settings.every is not None:
        raise InputError("every: of each problem the best one is printed", mend="leave it out")


def _require_ranges(settings: SampleSettings) -> None:
    for name in ("chains", "sweeps", "every", "iterations", "count", "length_beam", "save_every", "max_rows"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    for name in ("discard", "forced", "window"):
        if (getattr(settings, name) or 0) < 0:
            raise InputError(f"{name} must be at least 0, got {getattr(settings, name)}")
    for name in ("proposal_temperature", "temperature", "anneal", "penalty"):
        value = getattr(settings, name)
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{name} must be finite and greater than 0, got {value}")
    if not 0 < settings.nucleus <= 1:
        raise InputError(f"nucleus must be greater than 0 and at most 1, got {settings.nucleus}")
    if not 0 <= settings.full_share < 1:
        raise InputError(f"full_share must be at least 0 and less than 1, got {settings.full_share}")
    if not settings.blocks or min(settings.blocks) < 1:
        raise InputError(f"blocks must be at least 1 each, got {list(settings.blocks)}")
    if not all(0 < value < math.inf for value in settings.temperatures):
        raise InputError(f"temperatures must be finite and greater than 0, got {list(settings.temperatures)}")
    if not -(2**63) <= settings.seed < 2**63:
        raise InputError(f"seed must be a number of 64 bits, got {settings.seed}")


def _require_sense(settings: SampleSettings) -> None:
    if settings.kernel == "parallel-tempering" and len(settings.temperatures) < 2:
        raise InputError("temperatures: parallel tempering needs two or more", mend="give the wanted one first: 1,1.5")
    if settings.anneal is not None and settings.temperature >= 1:
        mend = "give a lower one, or leave anneal out"
        raise InputError(f"anneal goes from temperature 1 down, and the target's is {settings.temperature}", mend=mend)
    if settings.num_discarded >= settings.num_sweeps:
        problem = f"discard: of {settings.num_sweeps} sweeps {settings.num_discarded} are left out"
        raise InputError(problem, mend="sample more, or discard fewer")
    if settings.forced and settings.penalty is None and (settings.contain or settings.without):
        mend = "leave it out, or make the constraints soft with a penalty"
        raise InputError("forced: a proposal that is accepted unasked may break a hard constraint", mend=mend)
    if settings.every is not None and not any(map(settings.prints, range(1, settings.num_sweeps + 1))):
        left_out = max(settings.num_discarded, settings.burn_in)
        problem = f"every: of {settings.num_sweeps} sweeps none would be printed, for {left_out} are left out"
        raise InputError(problem, mend="sample more, or print more often")
    lengths = _numbers(settings.length)
    if lengths is not None and not 1 <= lengths[0] <= lengths[-1]:
        raise InputError(f"length: {settings.length!r} is no length", mend="give a number, or a range such as 5-9")


def _numbers(length: str | None) -> list[int] | None:
    if length is None:
        return None
    parts = length.split("-")
    return [int(part) for part in parts] if len(parts) <= 2 and all(part.isdecimal() for part in parts) else [0]
