"""Problems for sampling: whole sequences, sequences with free positions, or outputs for given sources.

Shapes: B problems, V vocabulary.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import FREE
from seqwise.data.readers import ONLY_SOURCES, Example, read_lines
from seqwise.data.spooled import in_blocks, spooled
from seqwise.errors import InputError
from seqwise.runs.inputs import example_of, file_units, inputs_of, standard_input
from seqwise.runs.paths import names_a_file
from seqwise.runs.run import MaskedRun
from seqwise.runs.sampling_folder import require_disk
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.sampling.draws import SeededDraws
from seqwise.sampling.problems import ChainProblem, encode_sources
from seqwise.sampling.refinement import likeliest_lengths

SOURCES_AT_ONCE = 64  # in a batch, for predicting lengths
DRAWS_AT_ONCE = 4096  # of lengths


@dataclass(frozen=True)
class Problem:
    """One sequence to sample, by several chains."""

    tokens: tuple[int, ...]  # FREE where they are drawn; () if the length is unknown
    example: Example  # that it was read from
    source_ids: tuple[int, ...] = (0,)  # (0,) if the model reads no source


def read_problems(run: MaskedRun, text: str | None, settings: SampleSettings) -> Sequence[Problem]:
    """Read the problems of a file, standard input ("-") or text; None makes as many as the settings require.

    All are read first, spooled to disk, so that errors come before the first sweep.
    """
    if settings.length_beam > 1 and not run.codec.conditional:
        raise InputError("length_beam: the model has no source from which to predict lengths", hint="leave it out")
    if text is None:
        if run.codec.conditional:
            raise InputError("the model needs a source", hint="give a text, a file, or - for stdin")
        return spooled(_whole_sequences(run, settings))
    if settings.count != 1:
        raise InputError("count: has no effect where problems are given", hint="leave it out")
    if run.codec.conditional and not _holds_pairs(text):
        if "\t" in text and not names_a_file(text):
            raise InputError("a pair where a source was expected", hint=ONLY_SOURCES)
        examples = inputs_of(text, units=file_units(run.codec.source_units))
        return spooled(Problem((), example, run.codec.encode([example])[0].source_ids) for example in examples)
    for name, default in (("length", None), ("length_beam", 1)):
        if getattr(settings, name) != default:
            problem = f"{name}: sequences to be filled in already have a length"
            raise InputError(problem, hint="leave it out, or leave out the text to draw whole sequences")
    run.codec.require_free(settings.free)
    return spooled(_to_fill(run, example, settings.free) for example in _sequences(run, text))


def problem_of(run: MaskedRun, text: str, *, source: str = "", free: str = "_") -> Problem:
    """Make a problem from typed texts; for a conditional run, a blank text leaves the whole output free."""
    source_tokens = example_of(source, units=file_units(run.codec.source_units)).source if run.codec.conditional else ()
    if run.codec.conditional and not text.strip():
        example = Example(source_tokens, ())
        return Problem((), example, run.codec.encode([example])[0].source_ids)
    run.codec.require_free(free)
    return _to_fill(run, Example(source_tokens, example_of(text, units=file_units(run.codec.units)).source), free)


def chains_of(
    problem: Problem, settings: SampleSettings, *, place: int = 0, rank: int = 0, length: int | None = None
) -> ChainProblem:
    """Return the chains of a problem at one of its lengths; the likeliest length has rank 0."""
    tokens = problem.tokens if length is None else (FREE,) * length
    first_chain = (place * settings.length_beam + rank) * settings.num_chains
    options = {"problem": place, "rank": rank, **problem.example.place}
    return ChainProblem(tokens, problem.source_ids, settings.num_chains, first_chain, **options)


def at_lengths(
    run: MaskedRun, problems: Sequence[Problem], settings: SampleSettings, shortest: int, *, first: int = 0
) -> list[ChainProblem]:
    """Return each problem at each of its lengths; problems are numbered from ``first``."""
    numbered = list(enumerate(problems, first))
    tasks = [chains_of(problem, settings, place=place) for place, problem in numbered if problem.tokens]
    bounds: dict[str, Any] = {"shortest": shortest}
    if settings.lengths is not None:
        bounds = {"shortest": max(shortest, settings.lengths[0]), "longest": settings.lengths[-1]}
    for part in in_blocks([(place, problem) for place, problem in numbered if not problem.tokens], SOURCES_AT_ONCE):
        context = encode_sources(run.model, [problem.source_ids for _, problem in part])
        lengths_BK = likeliest_lengths(context.length_log_probs_BL, beam=settings.length_beam, **bounds)
        for (place, problem), lengths in zip(part, lengths_BK.tolist(), strict=True):
            for rank, length in enumerate(lengths):
                tasks.append(chains_of(problem, settings, place=place, rank=rank, length=length))
    return sorted(tasks, key=lambda task: (task.problem, task.rank))


def problem_warnings(run: MaskedRun, problems: Sequence[Problem]) -> list[str]:
    """Warn of unknown tokens, and of lengths outside those of training."""
    num_unknown, lengths = 0, Counter[int]()
    for problem in problems:
        num_unknown += run.codec.unknown_id in problem.tokens
        lengths[len(problem.tokens)] += 1
    del lengths[0]  # the length of these problems is unknown
    lines = []
    if num_unknown:
        lines.append(f"{num_unknown} of {len(problems)} sequences have fixed tokens that the model does not know")
    known = run.codec.lengths or lengths
    num_outside = sum(count for length, count in lengths.items() if not min(known) <= length <= max(known))
    if num_outside:
        lines.append(
            f"{num_outside} of {len(problems)} sequences have lengths outside those of the training data"
            f" ({min(known)} to {max(known)}); the longest has {max(lengths)} tokens"
        )
    return lines


def _whole_sequences(run: MaskedRun, settings: SampleSettings) -> Iterator[Problem]:
    """Return problems without fixed tokens, with drawn lengths or, for kernels without draws, the likeliest ones."""
    lengths = list(settings.lengths or run.codec.lengths)
    if not lengths:
        hint = "give a number of tokens, or a range such as 5-9"
        raise InputError("length: the lengths of the training data are unknown", hint=hint)
    # A kernel without draws would sample the same sequence for the same length.
    if not settings.kernel.draws and settings.count > len(lengths):
        problem = f"count: the kernel {settings.kernel.name} draws nothing, so {settings.count} sequences need as many"
        raise InputError(f"{problem} lengths, not {len(lengths)}", hint="ask for fewer, or give a longer range")
    # Many problems are spooled to a temporary file.
    require_disk(Path(tempfile.gettempdir()), settings.count * (15 + 4 * lengths[0]), what="the problems")
    weights = torch.tensor([1.0 if settings.lengths else run.codec.lengths[length] for length in lengths]).log()
    likeliest = weights.sort(descending=True, stable=True).indices[: settings.count].tolist()
    chosen = _draw_lengths(weights, settings) if settings.kernel.draws else likeliest
    return (Problem((FREE,) * lengths[choice], Example((), ())) for choice in chosen)


def _draw_lengths(weights: Tensor, settings: SampleSettings) -> Iterator[int]:
    """Yield indices of lengths."""
    for first in range(0, settings.count, DRAWS_AT_ONCE):
        number_B = torch.arange(first, min(first + DRAWS_AT_ONCE, settings.count))
        # A number that no sweep (0, 1, ...) and no start (-1, -2, ...) has.
        draws = SeededDraws(settings.seed, number_B, sweep=-(2**20))
        yield from draws.categorical(weights.expand(len(number_B), -1), torch.ones_like(number_B).bool()).tolist()


def _holds_pairs(text: str) -> bool:
    """Whether the first line of a file has a tab, and hence a source."""
    return text != "-" and names_a_file(text) and "\t" in next(iter(read_lines(text)))[1]


def _sequences(run: MaskedRun, text: str) -> Sequence[Example]:
    if text == "-" or names_a_file(text):
        return run.codec.read(standard_input() if text == "-" else text)
    return [
        replace(example, source=(), target=example.source)
        for example in inputs_of(text, units=file_units(run.codec.units))
    ]


def _to_fill(run: MaskedRun, example: Example, free: str) -> Problem:
    tokens = run.codec.to_fill(example, free)
    if FREE not in tokens:
        hint = f"write {free} for each position to draw, as a token like the others"
        if run.codec.conditional:
            hint += "; for whole outputs, give only the sources"
        raise InputError("no position is free", hint=hint, **example.place)
    return Problem(tokens, example, run.codec.encode([replace(example, target=())])[0].source_ids)
