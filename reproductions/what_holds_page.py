"""The page docs/what-holds.md and its plot, from results/*.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reproductions.figures import interval_bars, panels
from reproductions.goyal_2019.label_bias import plan_of
from reproductions.goyal_2021.sampler_tasks import GERMAN, PHONEMES, SPELLING
from reproductions.grids import markdown_grid
from reproductions.report import Table
from reproductions.result_files import CHAPTERS, NAMES, Tables
from reproductions.result_pages import is_ours
from reproductions.values import interval_text
from reproductions.what_holds import IDEAS, Evidence, detectable, examine
from seqwise.evaluation.metrics import Estimate
from seqwise.names import count_of

SCALE_NAMES = {"converged": "converged", "gpu": "the papers' sizes", "cpu": "quick"}

TITLES = ("idea", "paper", "ours", "seeds, tables", "at equal time", "in the same decoder", "verdict")
PAGE = """\
# What holds

Made by `make figures` from the files in `results/`; do not edit.

This page compares the effects of ten published ideas with those measured here, and gives a verdict on each. {extent}

{ideas}
## How to read the table

Effects are in points of F1, accuracy or BLEU unless another unit is given, with 95% intervals.

- **Paper**: the paper's effect, averaged over its corpora.
- **Ours**: the effect in the same comparison here, averaged over our tables with equal weights. A table is a corpus, or
  one direction of the taggers on it. The interval treats tables as independent.
- **At equal time**: the same system against the strongest control trained for about as long, each with its best decoder
  on development data. For Metropolis-Hastings, the control is the best temperature of both samplers; for Table 6.6, the
  strongest of Mask-Predict with one length, with as many passes, and drawn repeatedly; for pseudolikelihood, the MLM
  read as E_local.
- **In the same decoder**: the same system against the paper's baseline, decoded like the new system.

An effect *disappears* under a control if less than half of it is left and the interval excludes the whole effect.

- **Confirmed**: the interval lies above 0, the effect is at least half of the paper's, and it does not disappear at
  equal time.
- **Decoder, not training**: the interval lies above 0, but the effect disappears in the same decoder.
- **Smaller**: the paper's effect lies above the interval, or ours disappears at equal time.
- **Contradicted**: the interval lies below 0.
- **Undecided**: none of these; the interval contains the paper's effect. The number in parentheses is the effect that
  these seeds and examples would detect four times in five.

Theorems have no verdict; [Andreas and Klein](results/andreas-klein.md) has their checks.

![Effects of ten ideas: the paper's, ours, and what is left against the strongest control](what-holds.png)

*Hollow diamond: the paper. Dot with bar: ours. Grey dot: what is left against the strongest control. Grey band: effects
too small to detect.*

## Scale

{scale}
Seconds are CPU time of the first cross-entropy stage on one thread, averaged over seeds. "Points below plateau" is the
gap on test to the best cross-entropy model that we have, "at least" if that model was not trained to convergence. The
papers do not print the sizes of their corpora; the table has those of the usual splits. Details: [results](results.md).

## What is missing

{absent}

## Errata of the papers

{errata}
"""

ERRATA = """\
- *AAAI 2018, Algorithms 1 and 3.* All k slots start with the same score, 0. Each candidate is then tied k ways, and the
  beam never diversifies. Here, only one slot is alive at the start; the others have no mass.
- *NAACL 2015, equation 5.* The signs and the factor 1/γ are missing. With them, the penalty has the same expectation
  for every γ.
- *NAACL 2015, Theorem 2.* The printed bound lacks the range of |log Z| as a factor, and fails where |log Z| varies by
  much more than 1. `reproductions.andreas_klein_2015.normalization_theory` has the bound that the proof gives.
- *Thesis, Algorithm 4, line 11.* The acceptance ratio is printed with the energies themselves. It should be
  exp(E(y) − E(y')).
- *Thesis, Table 6.1, column True.* The entropy of the palindromes is 5.964 nats in closed form, not 5.32 or 5.35;
  log 0.2 with the wrong sign gives 5.32.
"""


@dataclass(frozen=True)
class Corpus:
    """Row of the table of scale; the second of a pair is the paper's."""

    names: tuple[str, str]  # of the corpora
    table: str  # name of the table with the cross-entropy systems
    plan: str  # name of their training plan
    amounts: tuple[str, str]  # of training data
    paper: tuple[str, str]  # hidden size and epochs of the paper's models
    converged: str = ""  # amount of training data at the converged scale, if different


_TOKENS = "0.93 million"  # of CCGbank's training sections
_NOT_PRINTED = ("not printed", "not printed")
CORPORA = (
    Corpus(
        ("GermEval 2014", "CoNLL-2003 German"), "table-4.2", "ner", ("96,499 tokens", "206,931"), ("64", "50")
    ),
    Corpus(
        ("Parallel Meaning Bank, bidirectional", "CCGbank"), "table-4.1", "supertags",
        ("50,408 tokens", _TOKENS), ("512", "50"),
    ),
    Corpus(
        ("the same, left to right", "CCGbank"), "table-5.2-pmb-uni", "supertags",
        ("50,408 tokens", _TOKENS), _NOT_PRINTED,
    ),
    Corpus(
        ("UD English EWT, left to right", "CCGbank"), "table-5.2-ewt-uni", "supertags-ewt",
        ("204,577 tokens", _TOKENS), _NOT_PRINTED,
    ),
    Corpus(
        ("ERG, left to right", "CCGbank"), "table-5.2-erg-uni", "supertags-erg",
        ("315,515 tokens", _TOKENS), _NOT_PRINTED,
    ),
    Corpus(
        ("Tatoeba, German to English", "IWSLT 2014"), "table-5.4", "translation",
        ("27,473 pairs", "153,326"), _NOT_PRINTED, "164,834 pairs",
    ),
)  # fmt: skip
"""Training data of the tables of Chapters 3 to 5."""


def page(tables: Tables) -> str:
    """Return the whole page."""
    evidence = [examine(idea, tables) for idea in IDEAS]
    made = [row for row in evidence if row is not None]
    rows = [_row(row) for row in made]
    missing = (idea for idea, row in zip(IDEAS, evidence, strict=True) if row is None)
    rows += [[f"{idea.title} ({idea.source})", "", "no results", "", "", "", ""] for idea in missing]
    return PAGE.format(
        extent=_extent(made),
        ideas=markdown_grid(TITLES, rows),
        scale=_scale(tables),
        absent=_absent(tables, made),
        errata=ERRATA.rstrip(),
    )


def _extent(evidence: Sequence[Evidence]) -> str:
    """Return the first paragraph, on the scale of the evidence."""
    seeds = [row.seeds for row in evidence if row.scale == "converged"]
    converged, numbers = len(seeds), " or ".join(map(str, sorted(set(seeds)))) or "5"
    text = (
        f"{converged or 'None'} of these {len(evidence)} verdicts {'rest' if converged > 1 else 'rests'} on converged "
        f"training (`--scale converged`: learning rates tuned and stages stopped on development data; {numbers} seeds)."
    )
    if converged < len(evidence):
        one = len(evidence) - converged == 1
        text += (
            f" {'They rest' if not converged else 'The other rests' if one else 'The others rest'} on "
            f"{'a quick table' if one else 'quick tables'} (`--scale cpu`): seconds to minutes of "
            "training with one untuned setting, mostly three seeds, small models, and corpora smaller than the "
            "papers'. There, cross-entropy itself is points below its plateau, so a gain may come from training "
            "longer, and a missing gain from training too little. "
            f"**{'This verdict is' if one else 'These verdicts are'} about such short training, not about what the "
            "method can do.** A converged table replaces the quick tables of its row as soon as its file is in "
            "`results/`."
        )
    return text


def _row(row: Evidence) -> list[str]:
    idea, unit = row.idea, "" if row.idea.unit == "points" else f" {row.idea.unit}"
    verdict = f"**{row.verdict}**"
    if row.verdict == "undecided":
        verdict += f" (could detect {detectable(row.ours):.1f}{unit})"
    equal_time = "no control" if row.equal_time is None else _interval(row.equal_time)
    same = "no control" if idea.alone else "the same" if row.same_decoder is None else _interval(row.same_decoder)
    (chapter,) = (each.page for each in CHAPTERS if row.tables[0] in each.names)
    title = f"[{idea.title}](results/{chapter}.md) ({idea.source})"
    tables = f"{row.seeds} seeds, {count_of(len(row.tables), 'table')}, {SCALE_NAMES[row.scale]}"
    return [title, f"{row.published:+.1f}{unit}", f"{_interval(row.ours)}{unit}", tables, equal_time, same, verdict]


def _interval(effect: Estimate) -> str:
    return interval_text(effect).replace(", ", ",\N{NO-BREAK SPACE}")


# ---------------------------------------------------------------------------------------- scale


def _scale(tables: Tables) -> str:
    titles = ("corpus / the paper's", "training data", "hidden size", "epochs", "seconds", "points below plateau")
    rows = []
    for corpus in CORPORA:
        for scale, table in tables.get(corpus.table, {}).items():
            start = plan_of(corpus.plan, scale).start[scale]
            most = "at most " if scale == "converged" else ""
            hidden, epochs = corpus.paper
            amount, theirs = corpus.amounts
            amount = corpus.converged if scale == "converged" and corpus.converged else amount
            (seconds,) = (
                row.value
                for row in table.results
                if row.system == "cross-entropy" and row.measure.startswith("training seconds")
            )
            rows.append(
                [
                    f"{' / '.join(corpus.names)} ({SCALE_NAMES[scale]})", f"{amount} / {theirs}",
                    f"{dict(start.model)['hidden_size']} / {hidden}", f"{most}{start.epochs:g} / {epochs}",
                    f"{seconds:.0f}", _below_plateau(tables[corpus.table], table),
                ]
            )  # fmt: skip
    return markdown_grid(titles, rows)


def _below_plateau(by_scale: Mapping[str, Table], table: Table) -> str:
    """Return the gap between the first cross-entropy stage of a table and the best one at the best scale."""
    plateau = max(_best_decoded(next(iter(by_scale.values())), ("cross-entropy", "cross-entropy, longer")))
    (start,) = _best_decoded(table, ("cross-entropy",))
    at_least = "" if "converged" in by_scale else "at least "
    return f"{at_least}{max(0.0, plateau - start):.1f}"


def _best_decoded(table: Table, systems: Sequence[str]) -> list[float]:
    """Return the test results of systems with the decoder chosen on development data."""
    return [row.value for row in table.results if row.system in systems and row.note == "chosen on dev"]


# ---------------------------------------------------------------------------------------- what is not here


def _absent(tables: Tables, evidence: Sequence[Evidence]) -> str:
    files = [table for by_scale in tables.values() for table in by_scale.values()]
    claims = [claim for table in files for claim in table.claims if not is_ours(claim)]
    untested = sum(claim.verdict == "not tested" for claim in claims)
    quick = sum(row.scale != "converged" for row in evidence)
    missing = ", ".join(f"`{name}`" for name in NAMES if not tables[name])
    sentences = max(task.sizes["cpu"].sentences for task in (GERMAN, SPELLING, PHONEMES))
    lines = {
        "The papers' corpora, which are not freely available, and results at their model sizes (`--scale gpu`).": 1,
        f"Converged tables of {quick} of the {len(evidence)} ideas.": quick,
        f"Results not committed yet: {missing}.": missing,
        f"Tests of {untested} of the papers' claims; the pages of the chapters say why.": untested,
        "Sentences of more than 20 words, the subject of Table 5.6: those of Tatoeba average 6.5 words. Its "
        "converged scale concatenates them.": "converged" not in tables["table-5.6"],
        f"More than {sentences} test sentences for the samplers of Chapter 6; their converged scale has 500.": not any(
            "converged" in tables[name] for name in NAMES if name.startswith("table-6.6")
        ),
    }
    return "\n".join(f"- {line}" for line, is_missing in lines.items() if is_missing)


# ---------------------------------------------------------------------------------------- the plot

OURS, GREY = "#0072B2", "#808080"
LINEAR = 2.0  # the axis is linear up to here, and logarithmic beyond
TICKS = (-10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)


def draw(tables: Tables, path: Path) -> None:
    """Draw a forest plot with a row for each idea: the paper, ours, the strongest control, the detectable effect."""
    evidence = [row for idea in IDEAS if (row := examine(idea, tables)) is not None]
    with panels(path, dpi=110, figsize=(10, 0.46 * len(evidence) + 1.2)) as (_, (axes,)):
        axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.8)
        axes.axvline(0, color="black", lw=0.8)
        for place, each in enumerate(evidence):
            ours, strongest, band = each.ours, each.strongest, detectable(each.ours)
            axes.barh(place, 2 * band, left=-band, height=0.7, color="#e4e4e4", zorder=0)
            if strongest is not None:
                bar = interval_bars([strongest])
                axes.errorbar(strongest.value, place + 0.22, xerr=bar, fmt="o", ms=4, color=GREY, lw=1, alpha=0.8)
            axes.errorbar(ours.value, place, xerr=interval_bars([ours]), fmt="o", ms=6, color=OURS, lw=2)
            axes.plot(each.published, place - 0.22, "D", ms=7, mfc="none", mec="black")
        axes.set_yticks(range(len(evidence)), [_label(row) for row in evidence])
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"effect (logarithmic beyond {LINEAR:g} points)")


def _label(row: Evidence) -> str:
    unit = "" if row.idea.unit == "points" else f" [{row.idea.unit}]"
    return f"{row.idea.title}{unit}\n{row.verdict}"
