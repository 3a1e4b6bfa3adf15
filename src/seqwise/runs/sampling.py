"""Resumable sampling from masked models.

Problems are processed in blocks; the chains of a block with the same length are advanced together.

Shapes: S sweeps, B chains, T positions.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from seqwise.errors import InputError
from seqwise.runs.run import MaskedRun, fingerprint
from seqwise.runs.sampling_folder import append_sweeps, claim, keep_samples, read_trace, require_disk
from seqwise.runs.sampling_problems import Problem, at_lengths, chains_of
from seqwise.runs.sampling_settings import MOST_PRINTED, SampleSettings
from seqwise.runs.scoring import room_for
from seqwise.sampling.chains import Trace, load_chains, save_chains
from seqwise.sampling.combinators import coldest
from seqwise.sampling.problems import ChainProblem, ChainRunner, Sample, by_problem, samples_of
from seqwise.sampling.state import ChainState, Info
from seqwise.training.lock import sole_writer
from seqwise.training.processes import (
    NO_TIMEOUT,
    from_main_process,
    init_process_group,
    is_main_process,
    rank,
    wait_for_everyone,
    world_size,
)

SWEEP_BYTES, LINE_BYTES = 25, 50  # minimum size on disk of a sweep of a chain, and of a printed sequence
BLOCK = 4096  # problems in memory together, with the traces of their chains


@dataclass(frozen=True, eq=False)
class Group:
    """Problems of one length, and the trace of their chains, problem by problem."""

    problems: Sequence[ChainProblem]
    trace: Trace
    longest_phrase: int = 1  # length of the longest phrase that must occur


@dataclass(frozen=True, eq=False)
class Sampled:
    """Samples by problem, chain and sweep, with a JSON line for each, and all chains."""

    samples: Sequence[Sample]
    lines: Sequence[str]
    groups: Sequence[Group]


@dataclass(frozen=True)
class SweepDone:
    """Progress after each sweep of a group of chains."""

    sweep: int
    done: int  # sweeps of all problems so far, in all processes; each length of a problem counts
    added: int  # by this step
    total: int
    acceptance: float  # rate of accepted proposals in this sweep
    novelty: float  # rate of accepted proposals that changed the state
    mean_energy: float


def sample_in_blocks(
    run: MaskedRun,
    problems: Sequence[Problem],
    settings: SampleSettings,
    *,
    output: str | os.PathLike[str] | None = None,
    on_sweep: Callable[[SweepDone], None] | None = None,
) -> Iterator[Sampled]:
    """Sample sequences for problems, in blocks of a few thousand problems, to bound memory.

    The target is ``p(y) proportional to exp(-E(y) / T)`` over the sequences that agree with the fixed tokens,
    separately for each length; E is the model's energy plus the constraints. The first chain of each problem and length
    starts from the greedy fill of all masks, the others from ``dispersed_starts``; starts contain required phrases. The
    unknown token is never proposed.

    With a folder ``output``, a repeated call resumes an interrupted one and ends with the same files, byte for byte;
    with more sweeps, it continues. Several processes share the groups of chains; only the first yields samples.

    Source: Goyal (2021), sections 6.3 and 6.4; Ghazvininejad et al. (EMNLP 2019), section 4, for several lengths. Not
    implemented: moves between lengths.
    """
    sampling = _Sampling(run, runner_of(run, settings), settings, None if output is None else Path(output), on_sweep)
    for problem in problems:
        if problem.tokens:
            sampling.runner.require_room(chains_of(problem, settings))
    sampling.tasks(problems[:1])  # raises errors about phrases before the first sweep
    _require_limits(settings, problems, sampling.output)
    init_process_group(timeout=NO_TIMEOUT)
    with nullcontext() if sampling.output is None else sole_writer(sampling.output):
        yield from sampling.blocks(problems)


def runner_of(run: MaskedRun, settings: SampleSettings) -> ChainRunner:
    """Return the chain runner of a run."""
    allowed_V = None if bool(run.codec.allowed_V.all()) else run.codec.allowed_V
    return ChainRunner(run.model, settings, settings.seed, allowed_V, run.codec.phrase, run.codec.spell)


def begin_chains(run: MaskedRun, problem: Problem, settings: SampleSettings) -> tuple[ChainRunner, ChainState]:
    """Start the chains of one problem, at its likeliest length, for the caller to advance."""
    runner = runner_of(run, settings)
    return runner, runner.start(at_lengths(run, [problem], settings, runner.shortest)[:1])


def _require_limits(settings: SampleSettings, problems: Sequence[Problem], output: Path | None) -> None:
    """Raise an InputError for absurdly many printed sequences, or more bytes than the disk has."""
    printed = settings.num_printed(len(problems))
    hint = "use fewer inputs, chains or sweeps, or print fewer sequences: --every N, --best"
    if printed > MOST_PRINTED:
        raise InputError(f"{printed:,} sequences would be printed; the limit is {MOST_PRINTED:,}", hint=hint)
    if output is not None:
        sweeps = len(problems) * settings.length_beam * settings.num_chains * settings.num_sweeps
        present = sum(path.stat().st_size for path in output.rglob("*") if path.is_file()) if output.is_dir() else 0
        require_disk(output, SWEEP_BYTES * sweeps + LINE_BYTES * printed - present, what="the samples")


class _Part(NamedTuple):
    """Problems of one length, whose chains advance together; each length of a problem is a separate one."""

    number: int  # counted over all blocks
    problems: Sequence[ChainProblem]
    before: int  # problems in all parts before it
    total: int  # problems in all parts


@dataclass(frozen=True, eq=False)
class _Sampling:
    """One call of ``sample_in_blocks``."""

    run: MaskedRun
    runner: ChainRunner
    settings: SampleSettings
    output: Path | None
    on_sweep: Callable[[SweepDone], None] | None

    def tasks(self, problems: Sequence[Problem], *, first: int = 0) -> list[ChainProblem]:
        return at_lengths(self.run, problems, self.settings, self.runner.shortest, first=first)

    def blocks(self, problems: Sequence[Problem]) -> Iterator[Sampled]:
        if self.output is not None:
            output, fingerprints = self.output, _fingerprints(self.run, problems)
            from_main_process(lambda: claim(output, self.settings, fingerprints))
            if world_size() > 1:
                # All blocks at once, so that no process waits for the slowest one after each block.
                parts_of_all = itertools.chain.from_iterable(parts for _, parts in self.parts(problems))
                for part in itertools.islice(parts_of_all, rank(), None, world_size()):
                    self.advance(part)
                wait_for_everyone()
        end = 0
        for first, parts in self.parts(problems) if is_main_process() else ():
            begin, groups, block = end, list[Group](), problems[first : first + BLOCK]
            samples, lines = list[Sample](), list[str]()
            for number, part in enumerate(parts, start=1):
                groups.append(Group(part.problems, self.advance(part), self.longest_phrase))
                # All are written again, hence only when there are twice as many as the last time, and at the end.
                if number < len(parts) and (self.output is None or number & (number - 1)):
                    continue
                samples = collect_samples(groups, self.settings)
                lines = [self.line(block[sample.problem - first], sample) for sample in samples]
                if self.output is not None:
                    end = keep_samples(self.output, lines, begin=begin)
            yield Sampled(samples, lines, groups)

    def parts(self, problems: Sequence[Problem]) -> Iterator[tuple[int, list[_Part]]]:
        """Yield, for each block of problems, the index of the first one, and the parts."""
        number = before = 0
        for first in range(0, len(problems), BLOCK):
            block = problems[first : first + BLOCK]
            tasks = self.tasks(block, first=first)
            # Every problem of a file has the same number of lengths.
            total, parts = len(problems) * len(tasks) // len(block), []
            for places in self.runner.groups(tasks):
                parts.append(_Part(number, [tasks[place] for place in places], before, total))
                number, before = number + 1, before + len(places)
            yield first, parts

    @property
    def longest_phrase(self) -> int:
        phrases = self.runner.phrases
        return max((len(ways[0]) for ways in phrases.required), default=1) if phrases.hard else 1

    def advance(self, part: _Part) -> Trace:
        """Start or load chains, and advance them to their last sweep."""
        settings, first_replicas = self.settings, slice(None, None, self.settings.num_replicas)

        def report(now: ChainState, info: Info) -> None:
            if self.on_sweep is not None:
                proposals_B, accepted_B, novel_B = (
                    counts_B[first_replicas] for counts_B in (info.proposals_B, info.accepted_B, info.novel_B)
                )
                num_proposals = max(int(proposals_B.sum()), 1)
                rates = int(accepted_B.sum()) / num_proposals, int(novel_B.sum()) / num_proposals
                done = part.before * settings.num_sweeps + now.sweep * len(part.problems)
                total = part.total * settings.num_sweeps
                mean_energy = float(now.energy_B[first_replicas].mean())
                self.on_sweep(SweepDone(now.sweep, done, len(part.problems), total, *rates, mean_energy))

        length = len(part.problems[0].tokens)
        with room_for(f"chains of {length} tokens", hint="give a smaller --max-rows, or fewer --chains"):
            trace, state = self.begin(part)
            while state.sweep < settings.num_sweeps:
                count = min(settings.save_every, settings.num_sweeps - state.sweep)
                later, state = self.runner.advance(state, count, progress=report)
                later = later.keep(partial(settings.keeps, after=len(trace)))
                if self.output is not None:
                    append_sweeps(self.file(part, "jsonl"), later, part.problems, first=len(trace))
                    save_chains(self.file(part, "safetensors"), state)
                trace += later
        final_BT = coldest(state, settings.num_replicas).tokens_BT
        return replace(trace, tokens={**trace.tokens, settings.num_sweeps: final_BT})

    def begin(self, part: _Part) -> tuple[Trace, ChainState]:
        """Return the trace so far, and the states of the chains."""
        settings, runner = self.settings, self.runner
        path = None if self.output is None else self.file(part, "safetensors")
        if path is None or not path.exists():
            if path is not None:
                path.with_suffix(".jsonl").unlink(missing_ok=True)
            state = runner.start(part.problems)
            return Trace.none(coldest(state, settings.num_replicas)), state
        state = load_chains(path, runner.energy, context=runner.context(part.problems))
        # Replicas of a chain have consecutive numbers.
        numbers_B, expected_B = state.chain_B[:: settings.num_replicas], runner.numbers(part.problems)
        if len(state) != len(expected_B) * settings.num_replicas or not torch.equal(
            numbers_B // settings.num_replicas, expected_B
        ):
            raise InputError("the file holds other chains", path=path, hint="remove the folder and start again")
        if state.sweep > settings.num_sweeps:
            problem = f"sweeps: the chains have already run {state.sweep}, more than {settings.num_sweeps}"
            raise InputError(problem, path=path, hint=f"ask for {state.sweep} or more, or give another --output")
        trace = read_trace(path.with_suffix(".jsonl"), num_sweeps=state.sweep, num_chains=len(expected_B))
        return trace, state

    def file(self, part: _Part, suffix: str) -> Path:
        assert self.output is not None
        return self.output / "chains" / f"{part.number:04d}.{suffix}"

    def line(self, problem: Problem, sample: Sample) -> str:
        """Return a sample as a JSON line, with problem, chain and sweep counted from 1."""
        record = {
            "problem": sample.problem + 1,
            "chain": sample.chain + 1,
            "sweep": sample.sweep,
            "text": self.run.codec.filled(problem.example, sample.tokens, self.settings.free),
            "energy": round(sample.energy, 4),
            "unit": "nats",
        }
        if self.run.codec.conditional:
            record["source"] = self.run.codec.source_text(problem.example)
        return json.dumps(record, ensure_ascii=False)


def collect_samples(groups: Sequence[Group], settings: SampleSettings) -> list[Sample]:
    """Return the samples to print, by problem, chain and sweep; or the best one of each problem."""
    of_problems = [
        (problem, trace)
        for group in groups
        for problem, trace in zip(group.problems, by_problem(group.trace, group.problems), strict=True)
    ]
    if not settings.best:
        sweeps = [sweep for sweep in groups[0].trace.tokens if settings.prints(sweep)] if groups else []
        samples = [sample for problem, trace in of_problems for sample in samples_of(problem, trace, sweeps)]
        return sorted(samples, key=lambda sample: (sample.problem, sample.chain, sample.sweep))
    best: dict[int, Sample] = {}
    for problem, trace in of_problems:
        # Of equal energies, the first.
        energies = trace.energy_SB.flatten().tolist()
        sweep, number = divmod(energies.index(min(energies)), problem.num_chains)
        sample = samples_of(problem, trace, [sweep + 1])[number]
        rival = best.get(problem.problem)
        if rival is None or sample.energy / len(sample.tokens) < rival.energy / len(rival.tokens):
            best[problem.problem] = sample
    return [best[problem] for problem in sorted(best)]


def _fingerprints(run: MaskedRun, problems: Iterable[Problem]) -> dict[str, str]:
    """Compute checksums of the model with its vocabulary, and of the problems."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(repr((problem.tokens, problem.source_ids)).encode())
    return {"model": fingerprint(run), "problems": digest.hexdigest()}
