"""``seqwise diagnose``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.console import (
    bar_for_each_part,
    estimate_of,
    estimates_of,
    fields_of,
    out,
    print_estimates,
    print_table,
    progress_bars,
    require_at_least_one,
    shown_estimate,
)
from seqwise.cli.flags import BeamSize, GoldFile, RunFolder, load_predicting_run
from seqwise.errors import InputError, warn
from seqwise.names import count_of

if TYPE_CHECKING:
    from seqwise.data.readers import Example
    from seqwise.evaluation.diagnosis import ExposureGap, LengthBias
    from seqwise.evaluation.exact_search import BeamErrors
    from seqwise.evaluation.headroom import TrainingHeadroom
    from seqwise.evaluation.label_bias import LabelBias, Prefix
    from seqwise.evaluation.log_partitions import LogPartitionReport
    from seqwise.evaluation.metrics import Sums
    from seqwise.runs.findings import Diagnosis, LanguageDiagnosis
    from seqwise.runs.run import OutputRun

MOST_PREFIXES = 5  # with the largest gains, and with the largest losses
MOST_ROWS = 60  # in the table of one example; if there are more, each step shows its best prefixes
LONGEST_NAME = 12  # characters of a token in that table, to fit 80 columns
RANKED_BY = {
    "log_prob": "log-probability of the prefix",
    "log_partition": "log Z of the next step",
    "both": "their sum",
    "raw": "raw score and log Z of the next step",
}


def diagnose(
    run: RunFolder,
    file: GoldFile,
    *,
    beam_size: BeamSize = None,
    example: Annotated[
        int | None,
        typer.Option(metavar="N", help="show the beam of the N-th example instead, step by step"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="with --example: plot the beam as PNG")] = None,
    language: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|PATTERN",
            help="measure instead how far masked decoding in this language L is from p(y | y in L): bio, a file with "
            "one output per line, a JSON schema (.json), a grammar (.lark, .gbnf), or a regular expression",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables")] = False,
) -> None:
    """Diagnose a run: decoders, log Z, exposure gap, length bias, search errors, label bias.

    Each block ends with an explanation and advice. Brackets hold bootstrap 95% intervals.
    """
    from seqwise.runs.inputs import read_examples
    from seqwise.runs.language import targets_outside
    from seqwise.runs.measures import require_known_target, unknown_targets, unread_sources
    from seqwise.runs.run import readable

    folder, loaded = load_predicting_run(run, language=language)
    examples = read_examples(loaded.settings, file)
    require_known_target(loaded, examples)
    require_at_least_one("--beam-size", beam_size)
    require_at_least_one("--example", example)
    if example is not None and example > len(examples):
        problem = f"--example {example} is out of range: there are {len(examples)}"
        raise InputError(problem, path=file, hint=f"give a number from 1 to {len(examples)}")
    if language is not None and example is not None:
        raise InputError("--language and --example are two diagnoses", hint="give one of them")
    if plot is not None and example is None:
        raise InputError("--plot draws one example", hint="add --example N")
    chosen = examples if example is None else [examples[example - 1]]
    unread = unread_sources(loaded, chosen, handled="left out")
    warn(unread, unknown_targets(loaded, chosen), targets_outside(loaded, chosen))
    if language is not None:
        _diagnose_language(loaded, readable(loaded, chosen), beam_size=beam_size, as_json=as_json)
        return
    if example is not None:
        _explore(loaded, chosen[0], example, beam_size=beam_size, plot=plot, as_json=as_json)
        return
    chosen = readable(loaded, chosen)
    warn(_left_out(loaded, chosen))
    _diagnose(loaded, chosen, folder, beam_size=beam_size, as_json=as_json)


def _diagnose(
    run: OutputRun, examples: Sequence[Example], folder: Path, *, beam_size: int | None, as_json: bool
) -> None:
    from seqwise.runs.diagnosis import development_constant
    from seqwise.runs.diagnosis import diagnose as measure
    from seqwise.runs.findings import meanings

    constant = development_constant(folder)
    with progress_bars() as progress:
        advance = bar_for_each_part(progress)
        diagnosis = measure(run, examples, beam_size=beam_size, constant=constant, on_progress=advance)
    constant_from = "this file" if constant is None else "the development data"
    meaning = meanings(diagnosis, subwords=run.codec.writes_text)
    if as_json:
        print(
            json.dumps(_as_json(diagnosis, meaning, num_examples=len(examples), constant_from=constant_from), indent=1)
        )
    else:
        _print(diagnosis, meaning, num_examples=len(examples), constant_from=constant_from)


def _diagnose_language(run: OutputRun, examples: Sequence[Example], *, beam_size: int | None, as_json: bool) -> None:
    from seqwise.runs.diagnosis import diagnose_language
    from seqwise.runs.findings import meanings_inside

    with progress_bars() as progress:
        diagnosis = diagnose_language(run, examples, beam_size=beam_size, on_progress=bar_for_each_part(progress))
    meaning = meanings_inside(diagnosis, subwords=run.codec.writes_text)
    names = run.codec.target_vocabulary.tokens
    if as_json:
        about = {"examples": len(examples), **_language_as_json(diagnosis, names), "meaning": meaning}
        print(json.dumps(about, indent=1, ensure_ascii=False))
    else:
        _print_language(diagnosis, names, meaning, num_examples=len(examples))


def _language_as_json(diagnosis: LanguageDiagnosis, names: Sequence[str]) -> dict[str, Any]:
    masking = diagnosis.masking
    low, high = masking.interval or (None, None)
    return {
        "beam size": diagnosis.beam_size,
        "decoders": estimates_of(diagnosis.decoders),
        "changed": {name: estimate_of(share) for name, share in diagnosis.changed.items()},
        "search errors": _errors_as_json(diagnosis.search),
        "masking": {
            "inputs": len(masking.inside),
            "listed": list(masking.listed),
            "p(y in L)": list(masking.inside),
            "total variation": {"value": masking.distance, "low": low, "high": high},
            "prefixes": [
                {
                    "prefix": [names[token] for token in shift.prefix],
                    "masked": shift.masked,
                    "conditional": shift.conditional,
                }
                for shift in masking.shifts[: 2 * MOST_PREFIXES]
            ],
        },
        "training": _headroom_as_json(diagnosis.training),
    }


def _headroom_as_json(headroom: TrainingHeadroom | None) -> dict[str, Any] | None:
    if headroom is None:
        return None
    return {
        "inputs": len(headroom.outside),
        "mass of excluded tokens": estimate_of(headroom.outside),
        "gold is best": {name: estimate_of(share) for name, share in headroom.best.items()},
        "gold in beam": {name: estimate_of(share) for name, share in headroom.oracle.items()},
    }


def _print_language(
    diagnosis: LanguageDiagnosis, names: Sequence[str], meaning: Mapping[str, str], *, num_examples: int
) -> None:
    _heading(f"Inside the language ({count_of(num_examples, 'example')}, beams of {diagnosis.beam_size})")
    print_estimates(diagnosis.decoders)
    _print_meaning(meaning, "decoders")
    _print_search(diagnosis.search, meaning)
    masking = diagnosis.masking
    inputs = len(masking.inside)
    _heading(f"Masking, against p(y | y in L) ({count_of(inputs, 'input')})")
    interval = masking.interval
    bracket = "" if interval is None else f"[{interval[0]:.3f}, {interval[1]:.3f}]"
    print_table(
        ("", "mean", ""),
        [
            ("p(y in L)", f"{sum(masking.inside) / inputs:.3g}", ""),
            ("total variation", f"{masking.distance:.3f}", bracket),
        ],
    )
    drawn = sum(count is None for count in masking.listed)
    out().print(
        "exact: all outputs are listed"
        if interval is None
        else f"estimated from masked draws for {drawn:,} of these inputs",
        style="dim",
        highlight=False,
    )
    _print_meaning(meaning, "masking")
    shifts = [shift for shift in masking.shifts if abs(shift.gain) >= 0.0005]
    shown = [shift for shift in shifts if shift.gain > 0][:MOST_PREFIXES]
    shown += [shift for shift in shifts if shift.gain < 0][:MOST_PREFIXES][::-1]
    if shown:
        _heading("Prefixes that gain and lose the most mass by masking")
        print_table(
            ("prefix", "masked %", "p(y | y in L) %", "change"),
            [
                (
                    _shortened([names[token] for token in shift.prefix], width=40),
                    f"{100 * shift.masked:.1f}",
                    f"{100 * shift.conditional:.1f}",
                    f"{100 * shift.gain:+.1f}",
                )
                for shift in shown
            ],
        )
    _heading("Headroom for training inside the language")
    headroom = diagnosis.training
    if headroom is not None:
        print_table(
            ("decoder", "gold is best, %", "gold in beam, %"),
            [
                (name, f"{100 * headroom.best[name].value:.1f}", f"{100 * headroom.oracle[name].value:.1f}")
                for name in headroom.best
            ],
        )
        out().print(
            f"mass of excluded tokens after gold prefixes: {100 * headroom.outside.value:.1f}% "
            f"({count_of(len(headroom.outside), 'input')})",
            style="dim",
            highlight=False,
        )
    _print_meaning(meaning, "training")


def _as_json(
    diagnosis: Diagnosis, meaning: Mapping[str, str], *, num_examples: int, constant_from: str
) -> dict[str, Any]:
    ranking: dict[str, Any] | None = None
    if diagnosis.ranking is not None:
        ranking = {title: estimate_of(counts) for title, counts in vars(diagnosis.ranking).items()}
        ranking["pairs"] = int(diagnosis.ranking.both.denominators_N.sum())
    return {
        "examples": num_examples,
        "beam size": diagnosis.beam_size,
        "decoders": estimates_of(diagnosis.decoders),
        "constant": diagnosis.constant,
        "constant from": None if diagnosis.constant is None else constant_from,
        "log Z": None if diagnosis.log_partitions is None else asdict(diagnosis.log_partitions),
        "exposure gap": {
            name: {"gold": estimate_of(exposure.gold), "own": estimate_of(exposure.own), "gap": _gap(exposure)}
            for name, exposure in diagnosis.exposure.items()
        },
        "length bias": {
            name: {size: {title: counts.value for title, counts in vars(bias).items()} for size, bias in row.items()}
            for name, row in diagnosis.lengths.items()
        },
        "search errors": _errors_as_json(diagnosis.search),
        "slot ranking": ranking,
        "meaning": dict(meaning),
    }


def _errors_as_json(errors: BeamErrors | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    beams = {
        size: {"missed": estimate_of(missed), "lost": estimate_of(errors.lost[size])}
        for size, missed in errors.missed.items()
    }
    return {"beams": beams, "certified": errors.certified, "inputs": errors.inputs}


def _gap(exposure: ExposureGap) -> dict[str, float | None]:
    from seqwise.evaluation.metrics import compared

    return fields_of(compared(exposure.own, exposure.gold))


def _print(diagnosis: Diagnosis, meaning: Mapping[str, str], *, num_examples: int, constant_from: str) -> None:
    _heading(f"Decoders ({count_of(num_examples, 'example')}, beams of {diagnosis.beam_size})")
    print_estimates(diagnosis.decoders)
    _print_meaning(meaning, "decoders")
    if diagnosis.log_partitions is not None:
        _heading("log Z on gold prefixes, in nats")
        headings = ("", "tokens", "mean", "variance", "mean |log Z|", "mean |log Z - mean|", "from", "to")
        print_table(headings, _log_partition_rows(diagnosis.log_partitions))
        if "shifted-beam" in diagnosis.decoders:
            constant = f"{diagnosis.constant:.2f} nats per token (mean log Z of {constant_from})"
            out().print(f"shifted-beam subtracts {constant}")
        _print_meaning(meaning, "log Z")
    if diagnosis.exposure:
        _heading("Exposure gap: loss in nats per token")
        print_table(("", "after gold prefixes", "after its own", "gap"), _exposure_rows(diagnosis.exposure))
        _print_meaning(meaning, "exposure gap")
    if diagnosis.lengths:
        _heading("Length bias, by beam size")
        columns = ("scores", "beam", "empty, %", "shorter than half, %", "never ended, %", "length ratio")
        print_table(columns, _length_rows(diagnosis.lengths))
        _print_meaning(meaning, "length bias")
    _print_search(diagnosis.search, meaning)
    _heading("Slot ranking: how often the right prefix scores above the best wrong one")
    if diagnosis.ranking is not None:
        ranking = diagnosis.ranking
        print_table(
            ("by", "%", ""), [(text, *shown_estimate(name, getattr(ranking, name))) for name, text in RANKED_BY.items()]
        )
        pairs, kept = int(ranking.both.denominators_N.sum()), 100 * ranking.on_beam.value
        out().print(f"{pairs:,} pairs; the right prefix is on the local beam at {kept:.1f}% of the steps")
    _print_meaning(meaning, "slot ranking")


def _print_search(errors: BeamErrors | None, meaning: Mapping[str, str]) -> None:
    if errors is None:
        return
    _heading("Search errors of beams by log-probability, against the exact best output")
    if errors.certified:
        print_table(("beam", "missed, %", "", "lost, nats", ""), _search_rows(errors), names=1)
    out().print(
        f"measured on {errors.certified:,} of {errors.inputs:,} inputs, those for which the search proved its output"
        " optimal",
        highlight=False,
    )
    _print_meaning(meaning, "search errors")


def _exposure_rows(gaps: Mapping[str, ExposureGap]) -> list[tuple[str, ...]]:
    return [
        (f"prefixes of {name}", f"{gap.gold.value:.3f}", f"{gap.own.value:.3f}", _shown_gap(gap))
        for name, gap in gaps.items()
    ]


def _length_rows(lengths: Mapping[str, Mapping[int, LengthBias]]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            str(size),
            *(f"{100 * share.value:.1f}" for share in (bias.empty, bias.short, bias.cut_off)),
            f"{bias.ratio.value:.3f}",
        )
        for name, row in lengths.items()
        for size, bias in row.items()
    ]


def _search_rows(errors: BeamErrors) -> list[tuple[str, ...]]:
    return [
        (str(size), *shown_estimate("missed", missed), *_nats(errors.lost[size]))
        for size, missed in errors.missed.items()
    ]


def _nats(sums: Sums) -> tuple[str, str]:
    estimate = estimate_of(sums)
    interval = "" if estimate["low"] is None else f"[{estimate['low']:.3f}, {estimate['high']:.3f}]"
    return f"{estimate['value']:.3f}", interval


def _log_partition_rows(report: LogPartitionReport) -> list[tuple[str, ...]]:
    by_length = {f"of {name} token{'s' * (name != '1')}": statistics for name, statistics in report.by_length.items()}
    # Few outputs reach late positions: show those that at least half of the outputs reach.
    positions = [place for place in report.by_position if 2 * place.count >= report.by_position[0].count]
    places = {
        f"token {place + 1}": positions[place] for place in sorted({0, 1, len(positions) - 1}) if place < len(positions)
    }
    rows = {"all": report.overall, **places, **(by_length if len(by_length) > 1 else {})}
    columns = ("mean", "variance", "mean_absolute", "mean_absolute_deviation", "minimum", "maximum")
    return [
        (name, f"{statistics.count:,}", *(f"{getattr(statistics, column):.2f}" for column in columns))
        for name, statistics in rows.items()
    ]


def _shown_gap(exposure: ExposureGap) -> str:
    gap = _gap(exposure)
    difference = f"{gap['difference']:+.3f}"
    return difference if gap["low"] is None else f"{difference} [{gap['low']:+.3f}, {gap['high']:+.3f}]"


def _heading(text: str) -> None:
    out().print(f"\n{text}", style="bold", highlight=False, markup=False)


def _print_meaning(meaning: Mapping[str, str], name: str) -> None:
    out().print(f"-> {meaning[name]}", highlight=False, markup=False)


def _explore(
    run: OutputRun, example: Example, place: int, *, beam_size: int | None, plot: Path | None, as_json: bool
) -> None:
    from seqwise.evaluation.label_bias import draw_label_bias, fate_of_gold
    from seqwise.runs.diagnosis import explore
    from seqwise.runs.measures import gold_text, step_names, unknown_targets

    bias = explore(run, example, beam_size=beam_size)
    names = run.codec.target_vocabulary.tokens
    steps = step_names(run, example)
    if plot is not None:
        labels = steps or [str(step) for step in range(1, len(bias.steps))]
        text = run.codec.source_text(example)
        title = text if len(text) <= 80 else f"{text[:77]}..."
        draw_label_bias(bias, plot, target_name=names.__getitem__, step_names=labels, title=title)
    meaning = fate_of_gold(bias)
    if as_json:
        rows = [[_prefix_as_json(prefix, names) for prefix in prefixes] for prefixes in bias.steps]
        about = {"example": place, "input": run.codec.source_text(example), "gold": list(example.target)}
        about |= {"exact": bias.exact, "support": bias.support, "steps": rows, "meaning": meaning}
        print(json.dumps(about, indent=1, ensure_ascii=False))
        return
    _print_label_bias(bias, steps, names, title=f"Example {place}: {run.codec.source_text(example)}")
    if unknown_targets(run, [example]):
        print(f"gold: {gold_text(run, example)}")
    _print_meaning({"label bias": meaning}, "label bias")
    if plot is not None:
        print(f"figure: {plot}")


def _prefix_as_json(prefix: Prefix, names: Sequence[str]) -> dict[str, Any]:
    plain = {name: value for name, value in vars(prefix).items() if name != "tokens"}
    return {"prefix": [names[token] for token in prefix.tokens], "local_mass": prefix.local_mass, **plain}


def _print_label_bias(bias: LabelBias, steps: Sequence[str], names: Sequence[str], *, title: str) -> None:
    from seqwise.evaluation.label_bias import percent
    from seqwise.evaluation.short_names import shorten_distinctly

    _heading(title)
    tokens = {token for prefixes in bias.steps for prefix in prefixes for token in prefix.tokens}
    short = shorten_distinctly((names[token] for token in sorted(tokens)), longest=LONGEST_NAME)
    rows, width = [], max(22, min(60, out().width - 58))
    shown, left_out = _best_of_steps(bias.steps[1:])
    for step, prefixes in enumerate(shown, start=1):
        for row, prefix in enumerate(prefixes):
            masses = prefix.global_masses
            text = _shortened([short[names[token]] for token in prefix.tokens], width=width)
            rows.append(
                (
                    f"{step} {steps[step - 1] if step <= len(steps) else ''}".strip() if row == 0 else "",
                    f"{'*' if prefix.is_gold else ' '} {text}",
                    f"{prefix.log_prob:.2f}",
                    f"{prefix.raw_score:.2f}",
                    "" if prefix.log_partition is None else f"{prefix.log_partition:.2f}",
                    percent(prefix.local_mass),
                    percent(masses[0]),
                    percent(masses[1]) if len(masses) > 1 else "",
                    percent(masses[-1]) + ("" if prefix.on_beam else " off"),
                )
            )
    headings = ("step", "prefix", "log p", "raw", "log Z", "local %", "global %", "+1", "end")
    print_table(headings, rows, names=2)
    if left_out:
        out().print(f"{left_out} more prefixes not shown; --json has all", style="dim", highlight=False)
    how = "exactly" if bias.exact else f"over a raw-score beam of {bias.support:,} prefixes; 0: dropped"
    out().print(
        "* gold; off: no longer on the beam. log Z: of the next step. local %: probability of the prefix, the same at "
        "every step. global %, +1, end: its probability by raw scores over outputs cut after this step, after one "
        f"more, and at the end ({how}).",
        style="dim",
        highlight=False,
        markup=False,
    )


def _left_out(run: OutputRun, examples: Sequence[Example]) -> str | None:
    """Return a warning about examples whose targets the run cannot write, or None."""
    from seqwise.runs.measures import known_targets

    known = len(known_targets(run, examples))
    if known == len(examples):
        return None
    left_out = f"{len(examples) - known:,} of {count_of(len(examples), 'example')}"
    return f"all measures but those of the decoders leave out {left_out}, whose targets the run cannot write"


def _best_of_steps(steps: Sequence[Sequence[Prefix]]) -> tuple[list[list[Prefix]], int]:
    """Return the best prefixes of each step and gold, about ``MOST_ROWS`` in total, and the number left out."""
    most = max(2, MOST_ROWS // max(1, len(steps)))
    shown = [[prefix for place, prefix in enumerate(prefixes) if place < most or prefix.is_gold] for prefixes in steps]
    return shown, sum(map(len, steps)) - sum(map(len, shown))


def _shortened(tokens: Sequence[str], *, width: int) -> str:
    """Return the last tokens of a prefix that fit, at least one."""
    kept = list(tokens[-1:])
    for token in reversed(tokens[:-1]):
        if len(" ".join([token, *kept])) > width - 4:
            return " ".join(["..", *kept])
        kept.insert(0, token)
    return " ".join(kept)
