"""Settings of ``seqwise sample`` other than target and kernel: chains, sweeps, and sequences to print."""

from __future__ import annotations

import re

from pydantic import field_validator, model_validator

from seqwise.configuration import setting
from seqwise.errors import InputError
from seqwise.sampling.options import MOST_POSITIONS
from seqwise.sampling.settings import ChainSettings

BURN_IN = 7  # sweeps that do not count, at most half of all; Goyal (2021), section 6.4
MOST_PRINTED = 10**8  # sequences in one call


class SampleSettings(ChainSettings):
    """Settings of ``seqwise sample``, in addition to those of ``ChainSettings``; see the help of each field."""

    chains: int | None = setting(
        None, "number of chains for each input and length [5; mask-predict: 1]", ge=1, le=10**6, panel="Chains"
    )
    sweeps: int | None = setting(None, "sweeps of each chain [33; mask-predict: 1]", ge=1, le=10**7, panel="Chains")
    discard: int | None = setting(None, "first sweeps to discard [7, at most half]", ge=0, panel="Chains")
    every: int | None = setting(None, "print every N-th sweep [only the last one]", ge=1, panel="Chains")
    best: bool = setting(
        False, "print only the sequence with the lowest energy per token of each input", panel="Chains"
    )
    length: str | None = setting(
        None,
        "without FILE, length of the sequences [as in training]; with sources, bounds on the length of outputs",
        metavar="N|N-N",
        panel="Sequences",
    )
    count: int = setting(
        1,
        "without FILE, number of sequences, each of its own length; at most a million",
        ge=1,
        le=10**6,
        panel="Sequences",
    )
    length_beam: int = setting(1, "with sources, number of likely lengths to try", ge=1, panel="Sequences")
    free: str = setting(
        "_",
        "token to fill in; for Hugging Face models also the mask token",
        metavar="TOKEN",
        panel="Sequences",
    )
    seed: int = setting(0, "seed of all random numbers", ge=-(2**63), lt=2**63, panel="Run")
    save_every: int = setting(10, "sweeps between checkpoints", ge=1, panel="Run")

    @field_validator("length")
    @classmethod
    def _length(cls, value: str | None) -> str | None:
        if value is None:
            return None
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", value)
        # Python does not parse numbers of thousands of digits.
        low, high = (int(end[:20]) for end in (ends[1], ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= low <= high:
            raise InputError(f"length: {value!r} is not a length", hint="give a number, or a range such as 5-9")
        if high > MOST_POSITIONS:
            given = value if len(value) < 40 else f"{value[:30]}..."
            raise InputError(f"length: sequences of at most {MOST_POSITIONS:,} tokens are sampled, got {given!r}")
        return value

    @model_validator(mode="after")
    def _samples_are_printed(self) -> SampleSettings:
        for name in ("chains", "sweeps", "discard", "every"):
            if not self.kernel.draws and getattr(self, name) is not None:
                raise InputError(f"{name}: the kernel {self.kernel.name} draws nothing", hint="leave it out")
        if self.best and self.every is not None:
            problem = "every: has no effect, because only the best sequence of each input is printed"
            raise InputError(problem, hint="leave it out")
        if self.num_discarded >= self.num_sweeps:
            problem = f"discard: {self.num_discarded} of {self.num_sweeps} sweeps are discarded"
            raise InputError(problem, hint="sample more, or discard fewer")
        if self.every is not None and self.num_sweeps // self.every * self.every <= self.num_skipped:
            problem = (
                f"every: none of {self.num_sweeps} sweeps would be printed, because {self.num_skipped} are discarded"
            )
            raise InputError(problem, hint="sample more, or print more often")
        return self

    @property
    def num_chains(self) -> int:
        """Number of chains of each problem and length."""
        return self.chains or (5 if self.kernel.draws else 1)

    @property
    def num_sweeps(self) -> int:
        """Number of sweeps of each chain."""
        return self.sweeps or (33 if self.kernel.draws else 1)

    @property
    def num_discarded(self) -> int:
        """Number of sweeps that are neither counted nor printed, without burn-in."""
        return min(BURN_IN, self.num_sweeps // 2) if self.discard is None else self.discard

    @property
    def num_skipped(self) -> int:
        """Number of sweeps that are not printed, including burn-in."""
        return max(self.num_discarded, self.burn_in)

    def prints(self, sweep: int) -> bool:
        """Whether the sequences after a sweep, counted from 1, are printed."""
        if self.every is None:
            return sweep == self.num_sweeps
        return sweep % self.every == 0 and sweep > self.num_skipped

    def keeps(self, sweep: int, *, after: int = 0) -> bool:
        """Whether the file of the chains keeps the sequences after a sweep, also those that are discarded by default.

        Their number depends on that of all sweeps, which another call may change.
        """
        done = after + sweep
        return self.best or (
            self.every is not None and done % self.every == 0 and done > max(self.discard or 0, self.burn_in)
        )

    def num_printed(self, num_problems: int) -> int:
        """Number of printed sequences."""
        if self.best:
            return num_problems
        sweeps = 1 if self.every is None else self.num_sweeps // self.every - self.num_skipped // self.every
        return num_problems * self.length_beam * self.num_chains * sweeps

    @property
    def lengths(self) -> range | None:
        """Lengths as a range, or None."""
        if self.length is None:
            return None
        low, _, high = self.length.partition("-")
        return range(int(low), int(high or low) + 1)
