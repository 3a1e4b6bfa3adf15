"""Results of runs on data: verdict, intervals of all decoders, paired differences, and errors in the outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from seqwise.data.readers import Example
from seqwise.data.records import is_number
from seqwise.evaluation.errors import Pair, align, by_position, confusions, label_scores, num_errors
from seqwise.evaluation.metrics import Comparison, Sums, compared, enough_examples, estimated
from seqwise.evaluation.signature import sha256_of_examples
from seqwise.names import interval_texts, measure_heading, measure_scale, measure_text
from seqwise.pages.report.blocks import Block, Entry, Figure, Listing, Table
from seqwise.pages.report.folders import Folder
from seqwise.pages.report.plots import Interval, Rows, interval_plot
from seqwise.runs.decoder_choice import choose_decoder, decoders_for, usual_decoder
from seqwise.runs.measures import decisive, decode, distinct_inputs, measure_outputs, references_by_source
from seqwise.runs.run import OutputRun

MOST_ROWS = 10  # of the tables of errors
FIRST_SHOWN, MOST_SHOWN = 1, 10  # outputs: shown at once, and in total
MOST_TOKENS = 60  # of an output
SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class Output:
    """Output aligned with gold."""

    source: Sequence[str]  # the tokens of a tagger; else one text
    pairs: Sequence[Pair]


@dataclass(frozen=True, eq=False)
class Result:
    """Outputs of a run on data, with the measures of each decoder."""

    name: str
    number: int  # of its colour
    data: str  # name of the data
    digest: str  # of the data
    decoder: str  # the best one on the development data, or else the one trained for
    title: str  # deciding measure
    sign: int  # +1 if more of it is better, or -1
    measures: dict[str, dict[str, Sums]]  # by decoder and title
    outputs: Sequence[Output] = field(default=(), repr=False)
    joint: str = " "  # between output tokens
    is_tagger: bool = True
    baseline: float | None = None  # deciding measure of the baseline without learning

    @property
    def chosen(self) -> Sums:
        """Deciding measure of the chosen decoder."""
        return self.measures[self.decoder][self.title]


def result_of(
    run: OutputRun,
    folder: Folder,
    examples: Sequence[Example],
    *,
    number: int,
    data: str,
    baseline: float | None,
    on_progress: Callable[[int, int], None],
) -> Result:
    """Decode examples with all decoders and measure the outputs."""
    names = decoders_for(run.settings)
    written, measures = {}, {}
    for done, name in enumerate(names):
        on_progress(done, len(names))
        written[name] = decode(run, examples, choose_decoder(run.settings, name))
        measures[name] = measure_outputs(run, examples, written[name])
    on_progress(len(names), len(names))
    best = folder.on_dev.get("best decoder")
    decoder = best if best in measures else usual_decoder(run.settings)
    title, sign = decisive(measures[decoder], subwords=run.codec.writes_text)
    return Result(
        folder.name,
        number,
        data,
        sha256_of_examples(examples),
        decoder,
        title,
        sign,
        measures,
        _outputs(run, examples, written[decoder]),
        joint="" if run.codec.target_text(("a", "b")) == "ab" and not run.codec.writes_text else " ",
        is_tagger=run.settings.task == "tag",
        baseline=baseline,
    )


def _outputs(run: OutputRun, examples: Sequence[Example], written: Sequence[tuple[str, ...]]) -> list[Output]:
    inputs = distinct_inputs(run, examples)
    if run.settings.task == "tag":
        return [
            Output(example.source, by_position(output, example.target))
            for example, output in zip(inputs, written, strict=True)
        ]
    _, references = references_by_source(examples)
    outputs = []
    for example, tokens, golds in zip(inputs, written, references, strict=True):
        options = golds
        if run.codec.writes_text:
            tokens, options = (
                tuple(run.codec.target_text(tokens).split()),
                [tuple(" ".join(gold).split()) for gold in golds],
            )
        aligned = min((align(tokens, gold) for gold in options), key=num_errors)
        outputs.append(Output((run.codec.source_text(example),), aligned))
    return outputs


# ---- The verdict and its figure -------------------------------------------------------------------------------------


def comparable(results: Sequence[Result]) -> list[list[Result]]:
    """Group results on the same data by the same measure."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.digest, result.title), []).append(result)
    return list(groups.values())


def verdict(group: Sequence[Result]) -> str:
    """Name the best run in a sentence, or the result of the only one."""
    ranked = sorted(group, key=lambda result: -result.sign * result.chosen.value)  # stable: ties keep their order
    best, first = ranked[0], group[0]
    value = measure_text(best.title, best.chosen.value)
    unit = f"% {best.title}" if "%" in measure_heading(best.title) else f" {best.title}"
    if len(group) == 1:
        _, interval = interval_texts(best.title, estimated(best.chosen))
        measured = f"{value}{unit} {interval or '(too few examples for an interval)'}"
        return f"{best.name} gets {measured} on {best.data}, decoded by {best.decoder}{_baseline_text(best)}."
    other = ranked[1] if best is first else first
    difference = compared(best.chosen, other.chosen)
    values = f"{value} against {measure_text(other.title, other.chosen.value)}{unit}, {difference_text(difference)}"
    many = f" of {len(group)} runs" if len(group) > 2 else ""
    if not enough_examples(best.chosen):
        return f"There are too few examples to compare {best.name} with {other.name}: {values}."
    if difference.p_value < SIGNIFICANCE_LEVEL:
        # Of many runs, only one is compared with the best: another may be nearly as good.
        better = f"the best{many}, and better than" if many else "better than"
        return f"{best.name} is {better} {other.name}: {values}."
    return f"{best.name} and {other.name} do not differ significantly: {values}."


def _baseline_text(result: Result) -> str:
    if result.baseline is None:
        return ""
    return f"; baseline without learning {measure_text(result.title, result.baseline)}"


def difference_text(compared: Comparison) -> str:
    """Format a difference in points, without an interval if there is none.

    Example:
        >>> difference_text(Comparison(0.0544, 0.04, 0.07, 0.001))
        '+5.4 points [4.0, 7.0], p = 0.001'
        >>> difference_text(Comparison(-0.0004, -0.02, 0.01, 0.9))
        '0.0 points [−2.0, 1.0], p = 0.900'
    """
    value, low, high = (f"{100 * end:.1f}".replace("-0.0", "0.0").replace("-", "−") for end in compared[:3])
    sign = "+" if compared.difference > 0 and value != "0.0" else ""
    interval = "" if math.isnan(compared.low) else f" [{low}, {high}], p = {compared.p_value:.3f}"
    return f"{sign}{value} points{interval}"


def result_figure(group: Sequence[Result]) -> Figure:
    """Plot all runs and decoders with intervals, and the paired differences from the first run."""
    first, *others = group
    scale = measure_scale(first.title)
    groups = [
        Rows(
            result.name,
            [
                Interval(
                    name,
                    _scaled(estimated(by_title[result.title]), scale),
                    result.number,
                    is_chosen=name == result.decoder,
                )
                for name, by_title in result.measures.items()
            ],
        )
        for result in group
    ]
    rows = [
        Interval(f"{other.name} − {first.name}", _scaled(each[:3], scale), other.number, text=difference_text(each))
        for other in others
        for each in (compared(other.chosen, first.chosen),)
    ]
    levels = {result.baseline for result in group}
    level = levels.pop() if len(levels) == 1 else None
    better = "More" if first.sign > 0 else "Less"
    intervals = (
        "bootstrap 95% intervals over examples" if enough_examples(first.chosen) else "too few examples for intervals"
    )
    note = f"{better} is better; {intervals}. Filled dot: best decoder on development data"
    note += "; differences by a paired bootstrap" if others else ""
    note += ", p-values uncorrected." if len(others) > 1 else "."
    if level is not None:
        note += f" Dotted line: baseline without learning ({measure_text(first.title, level)})."
    return interval_plot(
        f"{measure_heading(first.title)[:1].upper()}{measure_heading(first.title)[1:]}, on {first.data}",
        groups,
        Rows("Paired difference, points", rows) if rows else None,
        number_text=lambda value: measure_text(first.title, value / scale),
        level=None if level is None else level * scale,
        note=note,
    )


def _scaled(ends: Sequence[float], scale: float) -> tuple[float, float, float]:
    value, low, high = ends
    return scale * value, scale * low, scale * high


def result_tables(results: Sequence[Result]) -> list[Block]:
    """Make tables of all measures with intervals."""
    tables: list[Block] = []
    for result in results:
        titles = list(result.measures[result.decoder])
        rows = [
            [name, *(" ".join(interval_texts(title, estimated(by_title[title]))).strip() for title in titles)]
            for name, by_title in result.measures.items()
        ]
        intervals = any(enough_examples(sums) for row in result.measures.values() for sums in row.values())
        caption = f"{result.name} on {result.data}{', with bootstrap 95% intervals over examples' * intervals}"
        tables.append(Table(caption, ["decoder", *map(measure_heading, titles)], rows))
    return tables


# ---- Errors ---------------------------------------------------------------------------------------------------------


def error_tables(group: Sequence[Result]) -> list[Block]:
    """Make tables of the ten labels with the most errors, and of the ten most frequent confusions."""
    thing = "label" if group[0].is_tagger else "token"
    pairs = [[pair for output in result.outputs for pair in output.pairs] for result in group]
    wrong = [confusions(each) for each in pairs]
    if not any(wrong):
        return []
    return [_label_table(group, pairs, wrong, thing), _confusion_table(group, wrong)]


def _label_table(
    group: Sequence[Result], pairs: Sequence[Sequence[Pair]], wrong: Sequence[Counter[Pair]], thing: str
) -> Table:
    errors: Counter[str] = Counter()
    for counts in wrong:
        for pair, count in counts.items():
            for token in pair:
                if token is not None:
                    errors[token] += count
    worst = [label for label, _ in errors.most_common(MOST_ROWS)]
    scores = [label_scores(each) for each in pairs]
    support = {label: max((each[label].support for each in scores if label in each), default=0) for label in worst}
    caption = f"{thing.capitalize()}s with the most errors (F1 in %)"
    if len(group) == 1:
        caption = f"{thing.capitalize()}s with the most errors of {group[0].name} (in %)"
        rows = [
            [label, f"{support[label]:,}", *(f"{100 * share:.0f}" for share in scores[0][label][:3])] for label in worst
        ]
        return Table(caption, [thing, "gold", "precision", "recall", "F1"], rows, narrow=True)
    rows = [
        [label, f"{support[label]:,}", *(f"{100 * each[label].f1:.0f}" if label in each else "—" for each in scores)]
        for label in worst
    ]
    return Table(caption, [thing, "gold", *(f"F1, {result.name}" for result in group)], rows, narrow=True)


def _confusion_table(group: Sequence[Result], wrong: Sequence[Counter[Pair]]) -> Table:
    together: Counter[Pair] = Counter()
    for counts in wrong:
        together.update(counts)
    rows = [
        [gold or "(nothing)", output or "(nothing)", *(f"{counts[output, gold]:,}" for counts in wrong)]
        for (output, gold), _ in together.most_common(MOST_ROWS)
    ]
    counted = [result.name for result in group]
    return Table("Most frequent confusions", ["gold", "output", *counted], rows, narrow=True)


def output_listings(group: Sequence[Result]) -> list[Block]:
    """List the outputs with the most errors together with gold, worst first."""
    side_by_side = zip(*(result.outputs for result in group), strict=True)
    totals = [sum(num_errors(output.pairs) for output in outputs) for outputs in side_by_side]
    worst = sorted((place for place, total in enumerate(totals) if total), key=lambda place: -totals[place])
    entries = [_entry(group, place) for place in worst[:MOST_SHOWN]]
    if not entries:
        return []
    marked = (
        "the gold label is below the token, wrong labels are marked"
        if group[0].is_tagger
        else "differences are marked, … is a missing token"
    )
    names = ", ".join(result.name for result in group)  # a page has a list for each group
    blocks: list[Block] = [Listing(f"{names}: worst first; {marked}", entries[:FIRST_SHOWN])]
    if len(entries) > FIRST_SHOWN:
        blocks.append(Listing(f"{names}: the next {len(entries) - FIRST_SHOWN}", entries[FIRST_SHOWN:], folded=True))
    return blocks


def _entry(group: Sequence[Result], place: int) -> Entry:
    outputs = [result.outputs[place] for result in group]
    if group[0].is_tagger:
        return [("", _chips(group, outputs))]
    gold = Markup(group[0].joint).join(token for _, token in outputs[0].pairs[:MOST_TOKENS] if token is not None)
    lines = [("input", escape(outputs[0].source[0][:400])), ("gold", gold)]
    for result, output in zip(group, outputs, strict=True):
        lines.append((result.name, Markup(result.joint).join(_marked(pair) for pair in output.pairs[:MOST_TOKENS])))
    return lines


def _marked(pair: Pair) -> Markup:
    output, gold = pair
    if output == gold:
        return escape(output)
    return Markup("<mark>{}</mark>").format("…" if output is None else output)


def _chips(group: Sequence[Result], outputs: Sequence[Output]) -> Markup:
    """Render a sentence; below each token with a wrong label stand its gold label and those of the runs."""
    pieces = []
    for t, token in enumerate(outputs[0].source[:MOST_TOKENS]):
        labels = [output.pairs[t] for output in outputs if t < len(output.pairs)]
        if all(label == gold for label, gold in labels):
            pieces.append(Markup("<span>{}</span>").format(token))
            continue
        below = [Markup("<small>{}</small>").format(labels[0][1])]
        for result, (label, gold) in zip(group, labels, strict=True):
            name = f"{result.name} " if len(group) > 1 else ""
            text = Markup("✓") if label == gold else Markup("<mark>{}</mark>").format(label or "nothing")
            below.append(Markup("<small>{}{}</small>").format(name, text))
        pieces.append(Markup('<span class="chip">{}{}</span>').format(token, Markup("").join(below)))
    if len(outputs[0].source) > MOST_TOKENS:
        pieces.append(Markup("…"))
    return Markup(" ").join(pieces)


def development_lines(folder: Folder) -> str:
    """Summarize the final development measures: the best decoder, log Z and advice."""
    dev = folder.on_dev
    if "best decoder" not in dev:
        return ""
    text = f"{folder.name}: best on the development data is {dev['best decoder']}, by {dev.get('best by')}."
    mean, variance = dev.get("mean log Z"), dev.get("variance of log Z")
    if is_number(mean) and is_number(variance):
        text += f" There log Z on gold prefixes has mean {mean:.3g} and variance {variance:.3g} (nats)."
    advice = dev.get("advice")
    return f"{text} {advice[:1].upper()}{advice[1:]}." if isinstance(advice, str) and advice else text
