"""Report on runs of ``seqwise train``: results by decoder, log Z, and the spread of slot scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from seqwise.data.batches import collate
from seqwise.data.readers import Example
from seqwise.decoding import DECODERS, Decoder, evaluation_mode, steps_after
from seqwise.evaluation.log_partitions import LogPartitionReport, LogPartitionSummary, log_partition_report
from seqwise.evaluation.metrics import Estimate, bootstrap_interval
from seqwise.evaluation.slot_ranking import unroll_slots
from seqwise.names import measure_heading, measure_text
from seqwise.runs.measures import known_targets, log_partitions_of, measure, signatures
from seqwise.runs.monitoring import score_spread
from seqwise.runs.report.blocks import Block, Ids, Paragraph, Table, plain_number
from seqwise.runs.report.folders import Folder, is_number
from seqwise.runs.report.plots import Line, line_plot
from seqwise.runs.run import OutputRun, readable
from seqwise.search.selectors import HardTopK

_ORDER = {name: place for place, name in enumerate(DECODERS)}  # JSON has them by the alphabet
MOST_EXAMPLES = 200  # of which the spread of slots is taken


@dataclass(frozen=True)
class Spread:
    """Spread of the slot scores of a hard beam after each step."""

    means: tuple[float, ...]  # the mean over examples of the standard deviation over slots, in nats
    counts: tuple[int, ...]  # how many examples have two slots or more after that step


@torch.no_grad()
def slot_spread(run: OutputRun, examples: Sequence[Example]) -> Spread:
    """Measure the standard deviation of cumulative local scores over the live slots of a beam, step by step.

    Each step averages over those of the first 200 examples that have two live slots.
    """
    sums: list[float] = []
    counts: list[int] = []
    decoder = Decoder(run.codec.allowed(HardTopK(run.settings.beam_size)), DECODERS["beam"](1, 1.0, None).score)
    encoded = run.codec.encode_sources(readable(run, examples[:MOST_EXAMPLES]))
    with evaluation_mode(run.model):
        for one in encoded:
            context = run.model.encode(collate([(0, one)]).to(run.model.embedding_VD.device))
            limit = steps_after(one.source_ids, run.model)
            for step, slots in enumerate(unroll_slots(run.model, context, decoder, num_steps=limit)):
                if step == 0 or torch.isfinite(slots.scores_BJ).sum() < 2:
                    continue
                sums += [0.0] * (step - len(sums))
                counts += [0] * (step - len(counts))
                sums[step - 1] += score_spread(slots.scores_BJ.double()).item()
                counts[step - 1] += 1
    # The first steps of a beam of 1 have no two slots.
    return Spread(tuple(a / b if b else float("nan") for a, b in zip(sums, counts, strict=True)), tuple(counts))


def decoder_tables(
    folders: Sequence[Folder], measured: Mapping[str, Mapping[str, Mapping[str, Estimate]]], files: Mapping[str, str]
) -> list[Block]:
    """Make tables of results by decoder: on the given file, with intervals, and on the development data."""
    blocks: list[Block] = []
    for folder in folders:
        if folder.name in measured:
            rows = measured[folder.name]
            titles = list(next(iter(rows.values())))
            blocks.append(
                Table(
                    f"{folder.name} on {files[folder.name]}, with bootstrap 95% intervals over examples",
                    ["decoder", *map(measure_heading, titles)],
                    [[name, *(_interval(title, row[title]) for title in titles)] for name, row in rows.items()],
                )
            )
        dev = (folder.metrics or {}).get("dev")
        decoders = dev.get("decoders") if isinstance(dev, dict) else None
        if isinstance(dev, dict) and isinstance(decoders, dict) and decoders:
            titles = list(next(iter(decoders.values())))
            blocks.append(
                Table(
                    f"{folder.name} on its development data, at the end of training",
                    ["decoder", *map(measure_heading, titles)],
                    [
                        [name, *(measure_text(title, decoders[name][title]) for title in titles)]
                        for name in sorted(decoders, key=lambda name: _ORDER.get(name, len(_ORDER)))
                    ],
                )
            )
            blocks.append(Paragraph(_about_dev(folder, dev)))
    return blocks


def _interval(title: str, estimate: Estimate) -> str:
    value, low, high = (measure_text(title, end) for end in estimate)
    return f"{value} [{low}, {high}]"


def _about_dev(folder: Folder, dev: Mapping[str, object]) -> str:
    said = f"{folder.name}: best on the development data is {dev.get('best decoder')}, by {dev.get('best by')}."
    mean, variance = dev.get("mean log Z"), dev.get("variance of log Z")
    if is_number(mean) and is_number(variance):
        said += f" There log Z on gold prefixes has mean {mean:.4g} and variance {variance:.4g} (nats)."
    advice = dev.get("advice")
    return f"{said} {advice[:1].upper()}{advice[1:]}." if isinstance(advice, str) and advice else said


def measure_run(run: OutputRun, examples: Sequence[Example], decoder: str) -> dict[str, Estimate]:
    """Return all measures of a decoder with their intervals."""
    return {title: bootstrap_interval(sums) for title, sums in measure(run, examples, decoder).items()}


def signatures_of(run: OutputRun, examples: Sequence[Example]) -> list[str]:
    """Return the signatures of measures, such as BLEU, a line each."""
    return [f"{title}: {signature}" for title, signature in signatures(run, examples).items()]


def measured_log_partitions(run: OutputRun, examples: Sequence[Example]) -> LogPartitionReport | None:
    """Measure log Z on gold prefixes; None if the run can write no target."""
    encoded = run.codec.encode(known_targets(run, examples))
    if not encoded:
        return None
    lengths = [len(one.target_ids) for one in encoded]
    return log_partition_report(log_partitions_of(run, encoded).split(lengths), edges=[])


def log_partition_blocks(
    names: Sequence[str], reports: Mapping[str, LogPartitionReport], spreads: Mapping[str, Spread], *, ids: Ids
) -> list[Block]:
    """Make a table and plots of log Z and of the spread of slots, by position."""
    blocks: list[Block] = []
    if reports:
        columns = ("run", "tokens", "mean", "variance", "mean |log Z|", "mean |log Z − mean|", "from", "to")
        rows = [[name, *_numbers(report.overall)] for name, report in reports.items()]
        blocks.append(Table("log Z on gold prefixes, in nats", columns, rows))
        lines = [
            Line(
                name, range(1, len(report.by_position) + 1), [one.mean for one in report.by_position], names.index(name)
            )
            for name, report in reports.items()
        ]
        title = "Mean log Z by position"
        blocks.append(line_plot(title, lines, x_label="position, from 1", ids=ids, unit="nats", level=0.0))
    if spreads:
        lines = [
            Line(name, range(1, len(one.means) + 1), one.means, names.index(name))
            for name, one in spreads.items()
            if any(one.counts)
        ]
        title = "Slot-score spread of the beam by search step"
        if lines:
            blocks.append(line_plot(title, lines, x_label="step, of the search", ids=ids, unit="nats"))
    return blocks


def _numbers(one: LogPartitionSummary) -> list[str]:
    values = (one.mean, one.variance, one.mean_absolute, one.mean_absolute_deviation, one.minimum, one.maximum)
    return [f"{one.count:,}", *map(plain_number, values)]
