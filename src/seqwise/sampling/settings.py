"""What chains are asked for: the target, the kernel that leaves it unchanged, and what each kernel reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import get_args

from torch import Tensor

from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.names import EnergyName, KernelName, VisitsName
from seqwise.sampling.combinators import burn_in, parallel_tempering
from seqwise.sampling.draws import Draws
from seqwise.sampling.energies import MAX_ROWS, Energy, local, raw
from seqwise.sampling.kernels import delayed_acceptance, exact_gibbs, gibbs, mask_predict, metropolis_hastings
from seqwise.sampling.proposals import Visits, anywhere, in_order, masked_conditionals, shuffled
from seqwise.sampling.state import ChainState, Info, Kernel

__all__ = [
    "ChainSettings",
    "build_energy",
    "build_kernel",
    "require_ranges",
    "require_read",
]

MOST_SWEEPS = 10**6
"""Of annealing, of forced acceptance and of Mask-Predict: more are taken for a slip of the pen."""

MOST_POSITIONS = 10**5
"""Of a sequence, or a block; likewise."""

ENERGIES: dict[str, Callable[..., Energy]] = {"local": local, "raw": raw}
VISITS: dict[str, Callable[[int], Visits]] = {
    "in-order": in_order,
    "shuffled": shuffled,
    "anywhere": lambda block: anywhere(range(1, block + 1), num_visits=None),
}


@dataclass(frozen=True)
class ChainSettings:
    """What is sampled from, and what makes a sweep.

    Args:
        kernel: what makes a sweep; see :data:`~seqwise.names.KernelName`.
        energy: "local" or "raw".
        blocks: how many positions are masked together: one number for each sweep, the last from then on. A required
            phrase of several tokens can move for certain if that last number is its length at least, and visits are
            not in order.
        visits: "in-order", "shuffled" or "anywhere"; see :data:`~seqwise.names.VisitsName`.
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
        contain: phrases that must occur: whole words, however subwords spell them, in the case that a tokenizer keeps.
            Where tokens are words, characters or residues, a phrase is its tokens, and may stand anywhere.
        without: phrases that must not.
        penalty: nats, for each phrase that is missing, or there; None: the constraints are hard.
        max_rows: masked sequences that the model is given at once.

    Raises:
        InputError: a setting is out of its range, does not go with another, or differs from its default though nothing
            would read it.

    Example:
        >>> ChainSettings(temperature=0.5, anneal=0.25).annealed
        (1.0, 0.75, 0.5)
        >>> ChainSettings(kernel="gibbs", temperature=0.5)
        Traceback (most recent call last):
        seqwise.errors.InputError: temperature: the kernel gibbs does not read it; leave it out
    """

    kernel: KernelName = "metropolis-hastings"
    energy: EnergyName = "local"
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
    max_rows: int = MAX_ROWS

    def __post_init__(self) -> None:
        _require_choices(self)
        _require_read(self)
        _require_ranges(self)
        _require_sense(self)

    @property
    def num_replicas(self) -> int:
        """Of each chain, one for each temperature of parallel tempering."""
        return max(len(self.temperatures), 1)

    @property
    def annealed(self) -> tuple[float, ...]:
        """The temperature of the target in each sweep, the last from then on."""
        return tuple(self.temperature_of(sweep) for sweep in range(self.num_annealed + 1))

    @property
    def num_annealed(self) -> int:
        """How many sweeps the target takes to its last temperature."""
        if self.anneal is None:
            return 0
        # Not by repeated subtraction, whose rounding could add a sweep; a division may be off by one as well.
        number = max(0, math.ceil((1 - self.temperature) / self.anneal) - 2)
        while 1 - number * self.anneal > self.temperature + 1e-12:
            number += 1
        return number

    def temperature_of(self, sweep: int) -> float:
        """That of the target in one sweep, counted from 0."""
        if self.anneal is None or sweep >= self.num_annealed:
            return self.temperature
        return 1 - sweep * self.anneal

    @property
    def burn_in(self) -> int:
        """First sweeps that do not leave the target unchanged."""
        return max(self.forced, self.num_annealed)


def build_energy(settings: ChainSettings, model: MaskedModel) -> Energy:
    """The model's energy by the name in the settings; constraints are added to it.

    Args:
        settings: ``energy`` and ``max_rows`` are read.
        model: in evaluation mode.
    """
    return ENERGIES[settings.energy](model, max_rows=settings.max_rows)


def build_kernel(settings: ChainSettings, model: MaskedModel, energy: Energy, allowed_V: Tensor | None) -> Kernel:
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
        iterations, max_rows = settings.iterations, settings.max_rows
        return mask_predict(model, num_iterations=iterations, allowed_V=allowed_V, max_rows=max_rows)
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
        kernel = one(block, settings.temperature_of(sweep))
        return burn_in(kernel) if sweep < settings.num_annealed else kernel

    of_sweep(0)  # refuses now what it would refuse later

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        return of_sweep(state.sweep)(draws, state)

    return kernel


_PROPOSING = ("metropolis-hastings", "delayed-acceptance", "gibbs", "parallel-tempering")
_FOLLOWING = ("metropolis-hastings", "delayed-acceptance", "exact-gibbs", "parallel-tempering")
_DRAWING = ("exact-gibbs", *_PROPOSING)
_READ_BY: dict[str, Sequence[str]] = {
    "visits": _DRAWING,
    "blocks": _PROPOSING,
    "proposal_temperature": _PROPOSING,
    "nucleus": _PROPOSING,
    "full_share": _PROPOSING,
    "window": ("delayed-acceptance",),
    "temperature": ("metropolis-hastings", "delayed-acceptance", "exact-gibbs"),
    "anneal": ("metropolis-hastings", "delayed-acceptance", "exact-gibbs"),
    "forced": ("metropolis-hastings", "delayed-acceptance", "parallel-tempering"),
    "temperatures": ("parallel-tempering",),
    "iterations": ("mask-predict",),
    "contain": _FOLLOWING,
    "without": _FOLLOWING,
}
"""Settings that not every kernel reads."""


def require_read(settings: ChainSettings, read_by: Mapping[str, Sequence[str]]) -> None:
    """Refuse a setting that differs from its default though the kernel does not read it.

    Args:
        settings: all of them.
        read_by: the kernels that read a setting, by its name.

    Raises:
        InputError: names the setting.
    """
    given = {field.name for field in fields(settings) if getattr(settings, field.name) != field.default}
    for name, kernels in read_by.items():
        if name in given and settings.kernel not in kernels:
            raise InputError(f"{name}: the kernel {settings.kernel} does not read it", mend="leave it out")


def require_ranges(
    settings: ChainSettings,
    *,
    positive: Sequence[str] = (),
    counts: Sequence[str] = (),
    most: Mapping[str, int] | None = None,
) -> None:
    """Refuse whole numbers out of their range; None is in it.

    Args:
        settings: all of them.
        positive: names of those that are at least 1.
        counts: names of those that are at least 0.
        most: the greatest values of some of them.

    Raises:
        InputError: names the setting.
    """
    for least, names in ((1, positive), (0, counts)):
        for name in names:
            value = getattr(settings, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least}, got {value}")
    for name, greatest in (most or {}).items():
        value = getattr(settings, name)
        if value is not None and value > greatest:
            raise InputError(f"{name} must be at most {greatest}, got {value}", mend="ask for less")


def _require_choices(settings: ChainSettings) -> None:
    for name, choices in (("kernel", KernelName), ("energy", EnergyName), ("visits", VisitsName)):
        value, known = getattr(settings, name), get_args(choices)
        if value not in known:
            raise InputError(f"{name}: there is no {value!r}", mend=f"choose from {', '.join(known)}")


def _require_read(settings: ChainSettings) -> None:
    require_read(settings, _READ_BY)
    if settings.penalty is not None and not settings.contain and not settings.without:
        raise InputError("penalty: there is no constraint", mend="add phrases to contain, or to do without")
    if settings.full_share and settings.nucleus == 1:
        raise InputError("full_share: the nucleus holds the whole distribution", mend="lower the nucleus")


def _require_ranges(settings: ChainSettings) -> None:
    most = {"iterations": MOST_SWEEPS, "forced": MOST_SWEEPS}
    require_ranges(settings, positive=("iterations", "max_rows"), counts=("forced", "window"), most=most)
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
    if max(settings.blocks) > MOST_POSITIONS:
        raise InputError(f"blocks must be at most {MOST_POSITIONS} each, got {list(settings.blocks)}")
    if not all(0 < value < math.inf for value in settings.temperatures):
        raise InputError(f"temperatures must be finite and greater than 0, got {list(settings.temperatures)}")


def _require_sense(settings: ChainSettings) -> None:
    if settings.kernel == "parallel-tempering" and len(settings.temperatures) < 2:
        raise InputError("temperatures: parallel tempering needs two or more", mend="give the wanted one first: 1,1.5")
    if settings.anneal is not None and settings.temperature >= 1:
        mend = "give a lower one, or leave anneal out"
        raise InputError(f"anneal goes from temperature 1 down, and the target's is {settings.temperature}", mend=mend)
    if settings.anneal is not None and (1 - settings.temperature) / settings.anneal > MOST_SWEEPS:
        number = (1 - settings.temperature) / settings.anneal
        told = f"{round(number):,}" if number < 10**12 else f"{number:.3g}"
        problem = f"anneal: from 1 to {settings.temperature:g} it takes {told} sweeps, more than {MOST_SWEEPS:,}"
        raise InputError(problem, mend="subtract more each sweep")
    if settings.forced and settings.penalty is None and (settings.contain or settings.without):
        mend = "leave it out, or make the constraints soft with a penalty"
        raise InputError("forced: a proposal that is accepted unasked may break a hard constraint", mend=mend)
