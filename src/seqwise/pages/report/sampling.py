"""Report on samples: energies, acceptance, R-hat, ESS, autocorrelation, and traces of sequences.

Shapes: S sweeps, B chains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

import torch
from markupsafe import Markup, escape
from torch import Tensor

from seqwise.pages.report.blocks import Block, Paragraph, Section, Table, plain_number
from seqwise.pages.report.chains import ProblemChains, SampleLine, Sampling, autocorrelation
from seqwise.pages.report.folders import Folder
from seqwise.pages.report.plots import Line, line_plot
from seqwise.sampling import ChainReport
from seqwise.sampling.chains import tally
from seqwise.sampling.diagnostics import FEWEST_DRAWS, MOST_R_HAT

MOST_LAGS = 40
MOST_TRACES = 10  # chains in a plot
MOST_ROWS = 100  # problems in a table
MOST_SWEEPS = 60  # in a table of changing sequences
MOST_CHAINS = 2  # with tables of sequences, per problem


def sampling_verdict(name: str, sampling: Sampling) -> str:
    """State whether the chains of all problems agree."""
    r_hats = _r_hats(sampling.reports)
    if not r_hats:
        return f"{name}: there is no R-hat, so convergence of the chains is unknown."
    sizes = [report.ess["energy"] for report in sampling.reports if math.isfinite(report.ess["energy"])]
    worst = max(r_hats)
    over = f" over {len(r_hats)} sets of chains" if len(r_hats) > 1 else ""
    at_least = f", the effective sample size at least {min(sizes):.0f}" if sizes else ""
    numbers = f"the R-hat of the energy is at most {worst:.3f}{over}{at_least}"
    if worst > MOST_R_HAT:
        return f"{name}: the chains do not agree yet: {numbers}. Take more sweeps."
    if any(report.num_sweeps < FEWEST_DRAWS for report in sampling.reports):
        return f"{name}: too few sweeps are counted to tell whether the chains agree: {numbers}. Take more."
    return f"{name}: chains from different starts agree: {numbers}."


def _r_hats(reports: Sequence[ChainReport]) -> list[float]:
    """Return the R-hats of the energy except NaN; infinity, of chains that stand still at different values, stays."""
    return [report.r_hat["energy"] for report in reports if not math.isnan(report.r_hat["energy"])]


def sampling_table(samplings: Mapping[str, Sampling]) -> Table:
    """Make a table of all folders: counts, acceptance, energy, ESS and the worst R-hat."""
    rows = []
    for name, sampling in samplings.items():
        first, all_chains = sampling.first, [problem.chains for problem in sampling.problems]
        counts = tally(all_chains, sweeps=slice(first, None))
        energies = torch.cat([chains.energy_SB[first:].flatten() for chains in all_chains])
        reports = sampling.reports
        sizes = ([report.ess["energy"] for report in reports], [report.tail_ess["energy"] for report in reports])
        r_hats = _r_hats(reports)
        num_sweeps = max(map(len, all_chains))
        rows.append(
            [
                name,
                f"{sum(chains.energy_SB.shape[1] for chains in all_chains):,}",
                f"{num_sweeps - first} of {num_sweeps}",
                f"{counts.acceptance:.1%}",
                f"{counts.novelty:.1%}",
                plain_number(float(energies.mean())),
                *(
                    f"{math.fsum(known):,.0f}" if (known := list(filter(math.isfinite, each))) else "—"
                    for each in sizes
                ),
                f"{max(r_hats):.3f}" if r_hats else "—",
            ]
        )
    columns = ("folder", "chains", "sweeps counted", "accepted", "novel", "mean energy, nats")
    return Table("All chains, over the counted sweeps", (*columns, "ESS", "tail ESS", "worst R-hat"), rows)


def sampling_section(folder: Folder, sampling: Sampling, shown: Sequence[int]) -> Section:
    """Report on the chains of a folder, by problem."""
    blocks: list[Block] = []
    if sampling.no_report:
        blocks.append(Paragraph(f"No R-hat and no effective sample size: {sampling.no_report}."))
    blocks += _shares(folder, sampling)
    blocks += _reports(sampling)
    drawn = [problem for problem in sampling.problems if problem.problem in shown]
    drawn = drawn or list(sampling.problems[: len(shown)])  # while chains run, other problems may come first
    sections = [_problem(problem, sampling) for problem in drawn]
    if len(drawn) < len(sampling.problems):
        number = f"{len(drawn)} of {len(sampling.problems)} sets of chains"
        blocks.append(Paragraph(f"{number} are drawn below; --examples and --example choose others."))
    return Section(folder.name, blocks, sections)


def _shares(folder: Folder, sampling: Sampling) -> list[Block]:
    """Plot acceptance and novelty of all chains by sweep."""
    all_chains = [problem.chains for problem in sampling.problems]
    counts = [tally(all_chains, sweeps=slice(sweep, sweep + 1)) for sweep in range(max(map(len, all_chains)))]
    if not any(count.proposals for count in counts):
        return [Paragraph("This kernel makes no proposals, so there is no acceptance rate.")]
    sweeps = range(1, len(counts) + 1)
    accepted = [count.acceptance if count.proposals else math.nan for count in counts]
    novel = [count.novelty if count.proposals else math.nan for count in counts]
    lines = [Line("accepted", sweeps, accepted, 0), Line("accepted and new", sweeps, novel, 1)]
    title = f"{folder.name}: acceptance (solid) and novelty (dashed) by sweep, shares of proposals"
    return [line_plot(title, lines, x_label="sweep", shaded=_discarded(sampling))]


def _discarded(sampling: Sampling) -> tuple[float, float] | None:
    return (0.5, sampling.first + 0.5) if sampling.first else None


def _reports(sampling: Sampling) -> list[Block]:
    """Make a table of R-hat and ESS for each problem, worst first."""
    judged = [(problem.name, problem.report) for problem in sampling.problems if problem.report is not None]
    if not judged:
        return []
    judged.sort(key=lambda pair: -pair[1].r_hat["energy"] if math.isfinite(pair[1].r_hat["energy"]) else -math.inf)
    rows = [
        [
            name,
            _number(report.r_hat["energy"], ".3f"),
            _ess(report, report.ess["energy"], ".0f"),
            _ess(report, report.tail_ess["energy"], ".0f"),
            _ess(report, report.ess_per_pass, ".2g"),
            f"{report.acceptance:.1%}",
            f"{report.novelty:.1%}",
            plain_number(report.mean_energy),
            "; ".join(report.warnings) or "none",
        ]
        for name, report in judged[:MOST_ROWS]
    ]
    left = f" (the {MOST_ROWS} worst of {len(judged):,})" if len(judged) > MOST_ROWS else ""
    sizes = ("ESS", "tail ESS", "ESS per pass")
    columns = ("chains", "R-hat", *sizes, "accepted", "novel", "mean energy, nats", "warnings")
    table = Table(f"R-hat and effective sample size of the energy{left}", columns, rows)
    if all(report.num_sweeps >= FEWEST_DRAWS for _, report in judged):
        return [table]
    needed = f"at least {FEWEST_DRAWS} draws per chain are needed"
    return [Paragraph(f"The effective sample size is unknown where too few sweeps are counted: {needed}."), table]


def _ess(report: ChainReport, value: float, form: str) -> str:
    return "unknown" if report.num_sweeps < FEWEST_DRAWS else _number(value, form)


def _number(value: float, form: str) -> str:
    return "not a number" if math.isnan(value) else format(value, form)


def _problem(problem: ProblemChains, sampling: Sampling) -> Section:
    energy_SB = problem.chains.energy_SB
    sweeps = range(1, len(energy_SB) + 1)
    traces = [
        Line(f"chain {number + 1}", sweeps, energy_SB[:, number].tolist(), number)
        for number in range(min(energy_SB.shape[1], MOST_TRACES))
    ]
    more = f" (the first {MOST_TRACES} of {energy_SB.shape[1]} chains)" if energy_SB.shape[1] > MOST_TRACES else ""
    title = f"Energy of {problem.name} by sweep{more}; discarded sweeps are shaded"
    shaded = _discarded(sampling)
    blocks: list[Block] = [line_plot(title, traces, x_label="sweep", shaded=shaded, unit="nats")]
    blocks += _autocorrelation(energy_SB[sampling.first :], problem.name)
    blocks += _sequences(problem, sampling.samples)
    return Section(problem.name[:1].upper() + problem.name[1:], blocks)


def _autocorrelation(energy_SB: Tensor, name: str) -> list[Block]:
    lags = min(MOST_LAGS, len(energy_SB) // 2)
    if lags < 1:
        return [Paragraph("Too few sweeps are counted for an autocorrelation.")]
    values = autocorrelation(energy_SB, lags=lags).tolist()
    if not math.isfinite(values[0]):
        return [Paragraph("No chain moves, so the autocorrelation is undefined.")]
    title = f"Autocorrelation of the energy of {name}, mean over chains"
    lines = [Line("autocorrelation", range(lags + 1), values)]
    return [line_plot(title, lines, x_label="lag, in sweeps", level=0.0)]


def _sequences(chains: ProblemChains, samples: Sequence[SampleLine]) -> list[Block]:
    """Make tables of the samples of the first chains, with changes marked."""
    own = [line for line in samples if line.problem == chains.problem]
    if not own:
        return [Paragraph("No sequences of these chains are in samples.jsonl yet.")]
    blocks: list[Block] = []
    for chain in sorted({line.chain for line in own})[:MOST_CHAINS]:
        lines = sorted((line for line in own if line.chain == chain), key=lambda line: line.sweep)
        shown = lines if len(lines) <= MOST_SWEEPS else lines[-MOST_SWEEPS:]
        rows: list[list[str | Markup]] = []
        for place, line in enumerate(shown):
            text = line.text if place == 0 else marked(shown[place - 1].text, line.text)
            rows.append([str(line.sweep), text, plain_number(line.energy)])
        last = f" (the last {MOST_SWEEPS} of {len(lines)})" if len(lines) > MOST_SWEEPS else ""
        caption = f"Chain {chain} of problem {chains.problem}: the sequence as it changes{last}"
        blocks.append(Table(caption, ["after sweep", "sequence", "energy, nats"], rows))
    if max(line.sweep for line in own) == min(line.sweep for line in own):
        blocks.append(Paragraph("Each chain has only one printed sequence; sample with --every 1 to see it change."))
    return blocks


def marked(before: str, after: str) -> Markup:
    """Mark the words of a text that differ from another text; a text without spaces is compared by characters.

    Example:
        >>> print(marked("a b c", "a <c> c"))
        a <mark>&lt;c&gt;</mark> c
    """
    words = " " in before.strip() or " " in after.strip()
    joint = " " if words else ""
    old, new = (text.split(" ") if words else list(text) for text in (before, after))
    pieces: list[Markup] = []
    for tag, _, _, start, end in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if start == end:
            continue
        text = joint.join(new[start:end])
        pieces.append(escape(text) if tag == "equal" else Markup("<mark>{}</mark>").format(text))
    return Markup(joint).join(pieces)
