"""What ``seqwise sample`` is asked for beside the target and the kernel: how many, how long, and what is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqwise.errors import InputError
from seqwise.sampling.settings import (
    MOST_POSITIONS,
    ChainSettings,
    build_energy,
    build_kernel,
    require_ranges,
    require_read,
)

__all__ = ["SampleSettings", "build_energy", "build_kernel"]

BURN_IN = 7
"""Sweeps that are not counted, where there are enough; Goyal (2021), section 6.4."""


MOST_CHAINS = MOST_PROBLEMS = 10**6
"""Chains of a problem at a length, and problems of ``count``; more are taken for a slip of the pen."""

MOST_SWEEPS = 10**7
"""Of a chain; likewise."""

MOST_PRINTED = 10**8
"""Sequences that one call prints, of all problems, chains and sweeps; they would fill the disk."""


@dataclass(frozen=True)
class SampleSettings(ChainSettings):
    """How is sampled, from what, and what is printed of it, beside :class:`~seqwise.sampling.ChainSettings`.

    Args:
        chains: for each problem and length, at most a million; None: 5, and 1 for mask-predict, which draws nothing.
        sweeps: of each chain, at most ten millions; None: 33, and 1 for mask-predict.
        discard: sweeps that are neither counted nor printed; None: 7, or half of all where there are fewer than 14.
        every: print each so many sweeps; None: the last one only.
        best: print of each problem only the sequence of the lowest energy per token, of all chains, sweeps and lengths.
        length: of sequences that are sampled from nothing: a number, or a range as in "5-9", from which each problem
            draws its own; None: drawn from the lengths of the training data. For sources: the likely lengths that may
            be tried are these; None: all that the model knows.
        count: how many problems, at most a million, where there is no file of them; mask-predict has the likeliest
            lengths, each once.
        length_beam: how many of its likeliest lengths are tried for each source.
        free: the token that marks a free position in a file.
        seed: of all random numbers.
        save_every: sweeps between two savings.

    Raises:
        InputError: a setting is out of its range, does not go with another, or differs from its default though nothing
            would read it.

    Example:
        >>> SampleSettings(sweeps=10).num_discarded
        5
    """

    chains: int | None = None
    sweeps: int | None = None
    discard: int | None = None
    every: int | None = None
    best: bool = False
    length: str | None = None
    count: int = 1
    length_beam: int = 1
    free: str = "_"
    seed: int = 0
    save_every: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require_read(self, _READ_BY)
        if self.best and self.every is not None:
            raise InputError("every: of each problem the best one is printed", mend="leave it out")
        positive = ("chains", "sweeps", "every", "count", "length_beam", "save_every")
        require_ranges(self, positive=positive, counts=("discard",), most=_MOST)
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed must be a number of 64 bits, got {self.seed}")
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

    def prints(self, sweep: int) -> bool:
        """Whether the sequences after a sweep, counted from 1, are among those printed."""
        if self.every is None:
            return sweep == self.num_sweeps
        return sweep % self.every == 0 and sweep > max(self.num_discarded, self.burn_in)

    def keeps(self, sweep: int, *, after: int = 0) -> bool:
        """Whether the sequences after a sweep, counted from 1 after some others, are kept in the file of the chains."""
        return self.best or (self.every is not None and self.prints(after + sweep))

    def num_printed(self, num_problems: int) -> int:
        """How many sequences are printed of so many problems."""
        if self.best:
            return num_problems
        left_out = max(self.num_discarded, self.burn_in)
        sweeps = 1 if self.every is None else self.num_sweeps // self.every - left_out // self.every
        return num_problems * self.length_beam * self.num_chains * sweeps

    @property
    def lengths(self) -> range | None:
        """Those that ``length`` names."""
        if self.length is None:
            return None
        low, _, high = self.length.partition("-")
        return range(int(low), int(high or low) + 1)


_MOST = {"chains": MOST_CHAINS, "sweeps": MOST_SWEEPS, "count": MOST_PROBLEMS}
_DRAWING = ("metropolis-hastings", "delayed-acceptance", "exact-gibbs", "gibbs", "parallel-tempering")
_READ_BY: dict[str, Sequence[str]] = dict.fromkeys(("chains", "sweeps", "discard", "every"), _DRAWING)
"""Settings that not every kernel reads."""


def _require_sense(settings: SampleSettings) -> None:
    if settings.num_discarded >= settings.num_sweeps:
        problem = f"discard: of {settings.num_sweeps} sweeps {settings.num_discarded} are left out"
        raise InputError(problem, mend="sample more, or discard fewer")
    left_out = max(settings.num_discarded, settings.burn_in)
    if settings.every is not None and settings.num_sweeps // settings.every * settings.every <= left_out:
        problem = f"every: of {settings.num_sweeps} sweeps none would be printed, for {left_out} are left out"
        raise InputError(problem, mend="sample more, or print more often")
    lengths = _numbers(settings.length)
    if lengths is not None and not 1 <= lengths[0] <= lengths[-1]:
        raise InputError(f"length: {settings.length!r} is no length", mend="give a number, or a range such as 5-9")
    if lengths is not None and lengths[-1] > MOST_POSITIONS:
        given = settings.length if len(str(settings.length)) < 40 else f"{str(settings.length)[:30]}..."
        raise InputError(f"length: sequences of at most {MOST_POSITIONS:,} tokens are sampled, got {given!r}")


def _numbers(length: str | None) -> list[int] | None:
    if length is None:
        return None
    parts = length.split("-")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        return [0]
    # Python refuses to read numbers of thousands of digits.
    return [int(part) if len(part) < 1000 else 10**1000 for part in parts]
