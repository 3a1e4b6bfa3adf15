"""log Z on gold prefixes and the spread of slot scores, by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import torch

from seqwise.data.readers import Example
from seqwise.decoding import Decoder, encode_input, evaluation_mode, steps_for
from seqwise.evaluation.log_partitions import LogPartitionReport, LogPartitionSummary
from seqwise.evaluation.slot_ranking import unroll_slots
from seqwise.pages.report.blocks import Block, Table, plain_number
from seqwise.pages.report.plots import Line, line_plot
from seqwise.runs.monitoring import score_spread
from seqwise.runs.run import OutputRun, readable
from seqwise.search.candidates import local
from seqwise.search.selectors import HardTopK

MOST_EXAMPLES = 200  # over which the spread is averaged


@dataclass(frozen=True)
class Spread:
    """Spread of slot scores after each step of a hard beam."""

    means: tuple[float, ...]  # mean over examples of the standard deviation over slots, in nats
    counts: tuple[int, ...]  # number of examples with two slots or more


@torch.no_grad()
def slot_spread(run: OutputRun, examples: Sequence[Example]) -> Spread:
    """Measure the standard deviation of cumulative local scores over the live slots of a beam at each step.

    Each step averages over those of the first 200 examples that have two live slots.
    """
    sums: list[float] = []
    counts: list[int] = []
    decoder = Decoder(run.codec.allowed(HardTopK(run.settings.beam_size)), local)
    encoded = run.codec.encode_sources(readable(run, examples[:MOST_EXAMPLES]))
    with evaluation_mode(run.model):
        for source in encoded:
            limit = steps_for(source.source_ids, run.model)
            searched = unroll_slots(run.model, encode_input(run.model, source), decoder, num_steps=limit)
            for step, slots in enumerate(searched):
                if step == 0 or torch.isfinite(slots.scores_BJ).sum() < 2:
                    continue
                sums += [0.0] * (step - len(sums))
                counts += [0] * (step - len(counts))
                sums[step - 1] += score_spread(slots.scores_BJ.cpu().double()).item()
                counts[step - 1] += 1
    # A beam of 1 never has two slots.
    return Spread(tuple(a / b if b else float("nan") for a, b in zip(sums, counts, strict=True)), tuple(counts))


def log_partition_blocks(
    names: Sequence[str], reports: Mapping[str, LogPartitionReport], spreads: Mapping[str, Spread]
) -> list[Block]:
    """Make a table and plots of log Z and of the spread of slot scores, by position."""
    blocks: list[Block] = []
    if reports:
        columns = ("run", "tokens", "mean", "variance", "mean |log Z|", "mean |log Z − mean|", "from", "to")
        rows = [[name, *_numbers(report.overall)] for name, report in reports.items()]
        blocks.append(Table("log Z on gold prefixes, in nats", columns, rows))
        means = {name: [summary.mean for summary in report.by_position] for name, report in reports.items()}
        lines = [Line(name, range(1, len(ys) + 1), ys, names.index(name)) for name, ys in means.items()]
        title = "Mean log Z by position"
        blocks.append(line_plot(title, lines, x_label="position, from 1", unit="nats", level=0.0))
    if spreads:
        lines = [
            Line(name, range(1, len(spread.means) + 1), spread.means, names.index(name))
            for name, spread in spreads.items()
            if any(spread.counts)
        ]
        title = "Slot-score spread of the beam by search step"
        if lines:
            blocks.append(line_plot(title, lines, x_label="search step", unit="nats"))
    return blocks


def _numbers(summary: LogPartitionSummary) -> list[str]:
    count, *values = astuple(summary)
    return [f"{count:,}", *map(plain_number, values)]
