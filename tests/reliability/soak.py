"""Long work in one process: memory and speed after each tick, as JSON on standard output.

``python -m reliability.soak SUBJECT SECONDS``, in the folder of the tests.

Shapes: B chains, T positions.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple


class Tick(NamedTuple):
    """Measurements after a piece of work.

    Attributes:
        bytes: resident memory.
        speed: pieces of work in the processor time of a fixed calculation, which a busy machine slows down as much.
    """

    bytes: int
    speed: float


def resident() -> int:
    """Resident memory in bytes, as Linux has it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def of_python() -> None:
    """A fixed calculation that keeps nothing."""
    total = 0
    for number in range(100_000):
        total += number * number % 7


def of_torch() -> Callable[[], None]:
    """Another one, of the kind that training and search are made of: what slows them down slows it down."""
    import torch

    layer, inputs = torch.nn.LSTM(8, 16, batch_first=True), torch.zeros(16, 60, 8)

    def calculation() -> None:
        for _ in range(12):
            torch.autograd.grad(layer(inputs)[0].sum(), list(layer.parameters()))

    return calculation


def meter(fixed: Callable[[], None]) -> Callable[[], Tick]:
    """Return a function that measures the work since its last call; the fixed calculation is done in between."""

    def timed() -> float:
        began = time.process_time()
        fixed()
        return time.process_time() - began

    before, began = timed(), time.process_time()

    def tick() -> Tick:
        nonlocal before, began
        spent, after = time.process_time() - began, timed()
        found = Tick(resident(), (before + after) / 2 / spent)
        before, began = after, time.process_time()
        return found

    return tick


def soaked(work: Iterator[None], seconds: float, fixed: Callable[[], None], *, at_least: int = 0) -> list[Tick]:
    """Do piece after piece until the time is over, and so many are done."""
    ticks: list[Tick] = []
    tick, end = meter(fixed), time.monotonic() + seconds
    while time.monotonic() < end or len(ticks) < at_least:
        next(work)
        ticks.append(tick())
    return ticks


class Judged(NamedTuple):
    """After the warm-up, the last tenth of the ticks as a share of the first one."""

    memory: float
    speed: float


def judged(ticks: list[Tick]) -> Judged:
    """Medians are compared, of the first and of the last tenth of what follows the first fifth."""
    warm = ticks[len(ticks) // 5 :]
    tenth = max(1, len(warm) // 10)
    first, last = zip(*warm[:tenth], strict=True), zip(*warm[-tenth:], strict=True)
    (bytes_before, speed_before), (bytes_after, speed_after) = (tuple(map(median, part)) for part in (first, last))
    return Judged(bytes_after / bytes_before, speed_after / speed_before)


# ----------------------------------------------------------------------------------------------------- subjects

SENTENCES = 10_080
AT_ONCE = 120
TOKENS = 1_000_000
TOKENS_AT_ONCE = 1000


def sentences(count: int) -> list[Any]:
    """Of every length from 1 to 60, as often as each other, so that each block is as much work."""
    import torch

    from seqwise.data import EncodedExample

    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randint(20, (2, 1 + number % 60), generator=generator).tolist() for number in range(count))
    return [EncodedExample(tuple(source), tuple(label % 5 for label in target)) for source, target in drawn]


def tagger() -> Any:
    from seqwise import Tagger

    return Tagger(source_size=20, target_size=5, embedding_size=8, hidden_size=16, label_embedding_size=4)


def decoding() -> Iterator[None]:
    from seqwise.decoding import DECODERS, decode_examples
    from seqwise.search import local
    from seqwise.search.operators import mean_squared_gap

    model, examples = tagger().eval(), sentences(SENTENCES)
    decoder = DECODERS["beam"](4, 1.0, local, mean_squared_gap)
    while True:
        for start in range(0, SENTENCES - AT_ONCE + 1, AT_ONCE):
            assert len(decode_examples(model, examples[start : start + AT_ONCE], decoder)) == AT_ONCE
            yield


def sampling() -> Iterator[None]:
    import torch

    from seqwise.models import MaskedTransformer
    from seqwise.sampling import local_energy, masked_conditionals, metropolis_hastings, sample_chains, start_chains

    model = MaskedTransformer(vocab_size=6, hidden_size=16).eval()
    energy = local_energy(model)
    kernel = metropolis_hastings(energy, masked_conditionals(model))
    state = start_chains(energy, torch.randint(6, (24, 8), generator=torch.Generator().manual_seed(0)))
    while True:
        state = sample_chains(kernel, state, 1).state
        assert bool(state.energy_B.isfinite().all())
        yield


def streaming() -> Iterator[None]:
    import torch

    from seqwise import Stream

    stream = Stream(tagger().eval(), k=4, score="global", commit="agree or delay(50)")
    generator, num_labels = torch.Generator().manual_seed(0), 0
    while True:
        update = stream.feed(torch.randint(20, (TOKENS_AT_ONCE,), generator=generator).tolist())
        num_labels += len(update.committed)
        assert num_labels % TOKENS_AT_ONCE == -len(update.partial) % TOKENS_AT_ONCE and len(update.partial) <= 50
        yield


class _Enough(Exception):
    """The time is over."""


def train(seconds: float) -> list[Tick]:
    """Steps of the Trainer, checkpoints included; a tick is an epoch."""
    from seqwise.objectives.objective import cross_entropy_objective
    from seqwise.training.trainer import fit

    ticks: list[Tick] = []
    tick, end, epoch = meter(of_torch()), time.monotonic() + seconds, 60

    def on_progress(progress: Any) -> None:
        if progress.step % epoch == 0:
            ticks.append(tick())
            if time.monotonic() > end:
                raise _Enough

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_Enough):
        fit(
            tagger(), cross_entropy_objective(), sentences(16 * epoch), output=Path(folder), steps=10**6, batch_size=16,
            learning_rate=0.01, seed=0, save_every=epoch, decay="constant", on_progress=on_progress,
        )  # fmt: skip
    return ticks


def leaking() -> Iterator[None]:
    """A mistake on purpose: 100 kB of each piece are kept."""
    kept = []
    while True:
        of_python()
        kept.append(os.urandom(100_000))
        yield


def slowing() -> Iterator[None]:
    """A mistake on purpose: each piece goes through all that came before."""
    kept: list[float] = []
    while True:
        of_python()
        kept.extend(range(30_000))
        sum(kept)
        yield


SUBJECTS: dict[str, Callable[[float], list[Tick]]] = {
    "train": train,
    "decode": lambda seconds: soaked(decoding(), seconds, of_torch(), at_least=SENTENCES // AT_ONCE),
    "sample": lambda seconds: soaked(sampling(), seconds, of_torch()),
    "stream": lambda seconds: soaked(streaming(), seconds, of_torch(), at_least=TOKENS // TOKENS_AT_ONCE),
    "leak": lambda seconds: soaked(leaking(), seconds, of_python),
    "slow down": lambda seconds: soaked(slowing(), seconds, of_python),
}

if __name__ == "__main__":
    subject, length = sys.argv[1:]
    print(json.dumps(SUBJECTS[subject](float(length))))
