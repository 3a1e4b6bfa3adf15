"""When is a label final? Accuracy against delay and retractions of streams, by commit rule and system.

Every test sequence arrives token by token. A stream shows labels at once and may retract them until a commit rule makes
them final. The strongest control, and the most expensive one, is a bidirectional model that is run again on every
prefix. Models with a look-ahead of some tokens are another: each label is that late, and plain ones never revise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from reproductions import Setup
from reproductions.beyond import search_objectives
from reproductions.comparison import Measured, best_on_dev, judge, mean_value, rows_of
from reproductions.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, interval_bars, legend_below, panels
from reproductions.outcome import Outcome
from reproductions.report import Claim, Result, Table
from reproductions.systems import System, best_outputs, systems_of
from reproductions.tasks import Task, run_task
from reproductions.tuning import with_early_stopping
from reproductions.verdicts import student_result
from reproductions.workers import one_thread
from seqwise import Streams
from seqwise.data.readers import Example
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.signature import Signature
from seqwise.names import count_of
from seqwise.runs.decoder_choice import choose_decoder
from seqwise.runs.loading import load_run
from seqwise.runs.run import OutputRun

CORPORA = ("stress", "pmb", "ewt", "erg", "ner")
MOST_EPOCHS = {"cross-entropy-longer": 20.0, "relaxed-beam": 2.5}
"""Largest number of epochs of a converged stage by key, where it is not eight."""
DECODERS = BEAM, HALF_RAW, RAW = ("beam", "interpolated-beam", "raw-beam")
DELAYS = (0, 1, 2, 4)
AGREE, AT_THE_END = "agree", "never"
RULES = (*(f"delay({labels})" for labels in DELAYS), "margin(2)", AGREE)
PLAIN = {"cross-entropy": "cross-entropy", "cross-entropy-longer": "cross-entropy, longer"}
CRF, DENSE = "beam-crf-from-cross-entropy", "dense-beam-from-cross-entropy"
GLOBAL = {
    CRF: "beam CRF, global",
    DENSE: "dense beam loss, global",
    "relaxed-beam-from-cross-entropy": "relaxed beam, global",
}
COMMITTED = {labels: f"beam-crf-delay-{labels}" for labels in (1, 2)}
DENSE_COMMITTED = {labels: f"dense-beam-delay-{labels}" for labels in (2,)}
TRAINED = {
    **{key: f"beam CRF, trained for delay({labels})" for labels, key in COMMITTED.items()},
    **{key: f"dense beam loss, trained for delay({labels})" for labels, key in DENSE_COMMITTED.items()},
}
LOCAL, HALF, AGAIN = "cross-entropy, local", "cross-entropy, half-normalised", "two-way, re-run on every prefix"
AHEAD = "cross-entropy, look-ahead"
AHEAD_LOCAL, AHEAD_GLOBAL = (f"{name}, look-ahead of one token" for name in (LOCAL, "beam CRF, global"))
LOOK_AHEAD = (1, 2, 4)  # tokens
DELAY, RETRACTED, COST = "mean delay", "retracted a hundred tokens", "CPU time a token"
MOST_RETRACTED = 0.1  # of the labels
BATCH = 256
SOURCE = "not in the papers"

_tokens = partial(count_of, thing="token")

Labels = tuple[str, ...]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Course:
    """Course of the labels of one streamed sequence: the last ones, and sums over its tokens."""

    labels: Labels
    delay: int  # tokens that followed the token of each label before the label was final
    retracted: int  # labels that were shown and retracted


@dataclass(frozen=True)
class Streamed:
    """Measurements of a system under a commit rule, one for each seed."""

    right: tuple[Sums, ...]
    delay: tuple[Counts, ...]
    retracted: tuple[Counts, ...]
    milliseconds: tuple[float, ...]  # CPU time per token
    signature: Signature  # of the training


def course(shown: Sequence[Labels], num_final: Sequence[int]) -> Course:
    """Summarise the labels shown after each token, and perhaps at the end, and how many were final after each token.

    At the end, all are.

    Example:
        >>> course([("A",), ("B", "C"), ("B", "C", "D")], [0, 1, 3])
        Course(labels=('B', 'C', 'D'), delay=2, retracted=1)
    """
    length, delay, retracted = len(num_final), 0, 0
    for now, (before, after) in enumerate(pairwise([0, *num_final[:-1], length])):
        delay += sum(now - place for place in range(before, after))
    for earlier, later in pairwise(shown):
        kept = next((place for place, label in enumerate(earlier) if later[place] != label), len(earlier))
        retracted += len(earlier) - kept
    return Course(shown[-1], delay, retracted)


def stream(run: OutputRun, examples: Sequence[Example], decoder: str, rule: str) -> list[Course]:
    """Feed every source token by token, many in a batch."""
    courses: dict[int, Course] = {}
    order = sorted(range(len(examples)), key=lambda place: len(examples[place].source))
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        streams = Streams(run, choose_decoder(run.settings, decoder), commit=rule)
        shown: dict[int, list[Labels]] = {place: [] for place in places}
        final: dict[int, list[Labels]] = {place: [()] for place in places}
        for step in range(len(examples[places[-1]].source)):
            fed = {p: [examples[p].source[step]] for p in places if step < len(examples[p].source)}
            for place, update in streams.feed(fed).items():
                final[place].append(final[place][-1] + update.committed)
                shown[place].append(final[place][-1] + update.partial)
        last = streams.finish_all(places)
        for place in places:
            shown[place].append(final[place][-1] + last[place].committed)
            courses[place] = course(shown[place], [len(each) for each in final[place][1:]])
    return [courses[place] for place in range(len(examples))]


def read_again(run: OutputRun, examples: Sequence[Example], decoder: str) -> list[list[Labels]]:
    """Search every prefix of every source from the start; return the outputs for each source by length of prefix."""
    prefixes = [
        Example(example.source[:end], example.target[:end], example.path, example.line)
        for example in examples
        for end in range(1, len(example.source) + 1)
    ]
    outputs = iter(best_outputs(run, prefixes, decoder))
    return [[next(outputs) for _ in example.source] for example in examples]


def commit_prefixes(outputs: Sequence[Labels], delay: int | None) -> Course:
    """Show the outputs of prefixes as a stream; a label is final after a delay in tokens, or at the end for None.

    Example:
        >>> commit_prefixes([("A",), ("B", "C"), ("B", "C", "D")], 0)
        Course(labels=('A', 'C', 'D'), delay=0, retracted=0)
    """
    final: Labels = ()
    shown, num_final = [], []
    for output in outputs:
        count = 0 if delay is None else max(len(output) - delay, 0)
        final += output[len(final) : count]
        shown.append(final + output[len(final) :])
        num_final.append(count)
    return course(shown, num_final)


def systems(corpus: str, scale: str, num_examples: int, seed: int) -> dict[str, System]:
    """Return the systems of one seed by key: some of the search objectives, and related ones.

    At the scale "converged", stages are stopped early on development data, and all are tuned around the start's rate.
    """
    _, start, epochs = search_objectives.CORPORA[corpus]
    slower = search_objectives.SLOWER
    if scale == "converged":
        start = with_early_stopping(start.with_changes(batch_size=16, learning_rate=5e-3, epochs=40.0), num_examples)
        epochs, slower = {**dict.fromkeys(epochs, 8.0), **MOST_EPOCHS}, search_objectives.ALIKE
    shared = search_objectives.family(start, epochs, seed, slower=slower)
    start = shared["cross-entropy"].settings
    crf = shared[CRF].settings
    dense = crf.with_changes(objective="dense-beam", cross_entropy_weight=0.0)
    relaxed = start.with_changes(
        objective="relaxed-beam", score="global", alpha="exponential(0.5, 3)", learning_rate=crf.learning_rate,
        epochs=2 * epochs["relaxed-beam"],
    )  # fmt: skip
    own = systems_of(
        {
            DENSE: (dense, "cross-entropy"),
            "relaxed-beam-from-cross-entropy": (relaxed, "cross-entropy"),
            **{
                key: (stage.with_changes(commit_delay=labels), "cross-entropy")
                for stage, keys in ((crf, COMMITTED), (dense, DENSE_COMMITTED))
                for labels, key in keys.items()
            },
        },
        seed,
    )
    return {**{key: shared[key] for key in (*PLAIN, CRF)}, **own}


def variants(
    corpus: str, scale: str, num_examples: int, keys: Collection[str], changes: Mapping[str, Any], seed: int
) -> dict[str, System]:
    """Return some systems of one seed by key, with other settings: a look-ahead, or a two-way encoder."""
    made = systems(corpus, scale, num_examples, seed)
    return {key: replace(made[key], settings=made[key].settings.with_changes(**changes)) for key in keys}


def reproduce(setup: Setup) -> Iterator[Outcome]:
    """Train every system, stream the test data under every rule, and test the claims."""
    tables = setup.chosen({f"frontier-{corpus}": corpus for corpus in CORPORA})
    for corpus in tables.values():
        search_objectives.CORPORA[corpus][0].require()
    for name, corpus in tables.items():
        yield run_corpus(name, corpus, setup.inside(corpus))


def run_corpus(name: str, corpus: str, setup: Setup) -> Outcome:
    """Make the table and the figure of one corpus."""
    task = replace(search_objectives.CORPORA[corpus][0], decoders=DECODERS)
    num_examples = len(task.load_data().train)
    rows = rows_of({**PLAIN, **GLOBAL, **TRAINED})
    measured = run_task(task, partial(systems, corpus, setup.scale, num_examples), rows, name, setup)

    def vary(title: str, names: Mapping[str, str], **changes: Any) -> dict[str, Measured]:
        family = partial(variants, corpus, setup.scale, num_examples, tuple(names), changes)
        return run_task(task, family, rows_of(names), f"{name}-{title}", setup.inside(title))

    ahead = {
        tokens: vary(f"look-ahead-{tokens}", PLAIN | ({CRF: AHEAD_GLOBAL} if tokens == 1 else {}), look_ahead=tokens)
        for tokens in LOOK_AHEAD
    }
    two_way = vary("two-way", PLAIN, encoder="bidirectional")
    with one_thread():
        found = (
            dict(_stream_all(task, measured)) | dict(_stream_again(task, two_way)) | dict(_stream_ahead(task, ahead))
        )
    best = best_on_dev(measured, GLOBAL, decoder=RAW).row.name
    figure = setup.folder / f"{name}.png"
    table = make_table(name, task, found, best)
    draw(table, figure)
    return Outcome(name, table, {"figure": figure, "runs": setup.folder})


def _stream_all(task: Task, measured: Mapping[str, Measured]) -> Iterator[tuple[tuple[str, str], Streamed]]:
    """Yield measurements by system and rule; the plain model of each score is chosen on development data."""
    chosen = {
        LOCAL: (best_on_dev(measured, PLAIN, decoder=BEAM), BEAM),
        HALF: (best_on_dev(measured, PLAIN, decoder=HALF_RAW), HALF_RAW),
        **{name: (measured[key], RAW) for key, name in {**GLOBAL, **TRAINED}.items()},
    }
    test = task.load_data().test
    num_tokens = sum(len(example.source) for example in test)
    for name, (row, decoder) in chosen.items():
        runs = [load_run(path) for path in row.runs]
        for rule in RULES:
            timed = [_timed(stream, run, test, decoder, rule) for run in runs]
            yield (name, rule), _measure(task, row, timed, num_tokens)


def _stream_again(task: Task, two_way: Mapping[str, Measured]) -> Iterator[tuple[tuple[str, str], Streamed]]:
    """Yield measurements of the two-way model that is best on development data, run again on every prefix."""
    row, test = best_on_dev(two_way, PLAIN, decoder=BEAM), task.load_data().test
    num_tokens = sum(len(example.source) for example in test)
    again = [_timed(read_again, load_run(path), test, BEAM) for path in row.runs]
    for rule, delay in {**{f"delay({labels})": labels for labels in DELAYS}, AT_THE_END: None}.items():
        timed = [([commit_prefixes(outputs, delay) for outputs in every], seconds) for every, seconds in again]
        yield (AGAIN, rule), _measure(task, row, timed, num_tokens)


def _stream_ahead(
    task: Task, ahead: Mapping[int, Mapping[str, Measured]]
) -> Iterator[tuple[tuple[str, str], Streamed]]:
    """Yield measurements of models with a look-ahead; the labels of plain ones are final as many tokens late."""
    plain = {tokens: best_on_dev(measured, PLAIN, decoder=BEAM) for tokens, measured in ahead.items()}
    chosen = {(AHEAD, f"delay({tokens})"): (row, BEAM, "delay(0)") for tokens, row in plain.items()}
    chosen[AHEAD_LOCAL, AGREE] = (plain[1], BEAM, AGREE)
    chosen[AHEAD_GLOBAL, AGREE] = (ahead[1][CRF], RAW, AGREE)
    test = task.load_data().test
    num_tokens = sum(len(example.source) for example in test)
    for place, (row, decoder, rule) in chosen.items():
        timed = [_timed(stream, load_run(path), test, decoder, rule) for path in row.runs]
        yield place, _measure(task, row, timed, num_tokens)


def _timed(function: Callable[..., Made], *arguments: Any, **options: Any) -> tuple[Made, float]:
    began = time.process_time()
    made = function(*arguments, **options)
    return made, time.process_time() - began


def _measure(task: Task, row: Measured, timed: Sequence[tuple[Sequence[Course], float]], num_tokens: int) -> Streamed:
    """Measure the courses of the test data and their CPU seconds, one of each for each seed of a row."""
    courses = [every for every, _ in timed]

    def per_token(sums: Iterable[int], every: Sequence[Course]) -> Counts:
        return Counts(list(sums), [len(each.labels) for each in every])

    return Streamed(
        tuple(task.count("test", [each.labels for each in every]) for every in courses),
        tuple(per_token((each.delay for each in every), every) for every in courses),
        tuple(per_token((each.retracted for each in every), every) for every in courses),
        tuple(1000 * seconds / num_tokens for _, seconds in timed),
        row.signature,
    )


Found = Mapping[tuple[str, str], Streamed]
"""Measurements by system and rule."""


def make_table(name: str, task: Task, found: Found, best: str) -> Table:
    """Make a table of numbers with Student's intervals over seeds, and of claims on ``best``, a global system."""
    results = []
    for (system, rule), measured in found.items():
        signed = replace(measured.signature, method=f"{name}: {system}")
        numbers = {
            task.measure: ([100 * each.value for each in measured.right], "%"),
            DELAY: ([each.value for each in measured.delay], " tokens"),
            RETRACTED: ([100 * each.value for each in measured.retracted], ""),
            COST: (list(measured.milliseconds), " ms"),
        }
        for measure, (values, unit) in numbers.items():
            results.append(student_result(system, f"{rule}: {measure}", values, signed, unit=unit))
    title = f"Delay, retractions and accuracy of streams, {task.title}"
    return Table(title, tuple(results), claims=tuple(examine(task, found, best)))


def examine(task: Task, found: Found, best: str) -> list[Claim]:
    """Test the claims on streams with global scores that are shown at once."""
    at_once = found[best, AGREE]

    def beats(text: str, ours: tuple[str, str], theirs: tuple[str, str]) -> Claim:
        (better, rule), (worse, other) = ours, theirs
        first, second = (100 * mean_value(found[key].right) for key in (ours, theirs))
        prefix = f"{task.measure}: {better}, {rule} {first:.1f} against {worse}, {other} {second:.1f}: "
        return judge(text, SOURCE, found[ours].right, found[theirs].right, prefix=prefix)

    allowed = [Counts(MOST_RETRACTED * each.denominators_N, each.denominators_N) for each in at_once.retracted]
    share = 100 * mean_value(at_once.retracted)
    return [
        beats("Global scores, shown at once and revised, do better than local scores two tokens late.",
              (best, AGREE), (LOCAL, "delay(2)")),
        beats("… than local scores at any delay.", (best, AGREE), (LOCAL, AGREE)),
        beats("… than half-normalised scores at any delay.", (best, AGREE), (HALF, AGREE)),
        judge(f"… and take back at most {MOST_RETRACTED:.0%} of the labels.", SOURCE, allowed, at_once.retracted,
              prefix=f"{MOST_RETRACTED:.0%} minus {best}, {share:.1f}: "),
        *(beats(f"Never revised, global scores do better than local ones, both {_tokens(labels)} late.",
                (best, f"delay({labels})"), (LOCAL, f"delay({labels})")) for labels in DELAYS if labels),
        *(beats(text.format(labels), (TRAINED[key], f"delay({labels})"), (other, f"delay({labels})"))
          for keys, name, whole in ((COMMITTED, "beam CRF", CRF), (DENSE_COMMITTED, "dense beam loss", DENSE))
          for labels, key in keys.items()
          for text, other in (
              (f"Trained for a delay of {{}}, the {name} does better at that delay than trained for whole outputs.",
               GLOBAL[whole]),
              ("… than local scores at a delay of {}.", LOCAL))),
        beats("Global scores, shown at once and revised, do better than a look-ahead of two tokens.",
              (best, AGREE), (AHEAD, "delay(2)")),
        *(beats(f"Never revised, a look-ahead of {_tokens(labels)} does better than global scores that late.",
                (AHEAD, f"delay({labels})"), (best, f"delay({labels})")) for labels in LOOK_AHEAD),
        beats("With a look-ahead of one token, global scores do better than local ones, both revised.",
              (AHEAD_GLOBAL, AGREE), (AHEAD_LOCAL, AGREE)),
        beats("A two-way model, run again on every prefix, does better than global scores, both shown at once and "
              "revised.", (AGAIN, AT_THE_END), (best, AGREE)),
        judge("… and takes more labels back.", SOURCE, found[AGAIN, AT_THE_END].retracted, at_once.retracted,
              prefix=f"{100 * mean_value(found[AGAIN, AT_THE_END].retracted):.1f} against {share:.1f}: "),
        *(beats(f"Never revised, the two-way model does better than global scores, both {_tokens(labels)} late.",
                (AGAIN, f"delay({labels})"), (best, f"delay({labels})")) for labels in DELAYS),
    ]  # fmt: skip


def _by_rule(table: Table) -> dict[str, dict[str, dict[str, Result]]]:
    """Return results by system, rule and measure."""
    found: dict[str, dict[str, dict[str, Result]]] = {}
    for result in table.results:
        rule, measure = result.measure.split(": ")
        found.setdefault(result.system, {}).setdefault(rule, {})[measure] = result
    return found


STYLES = dict(zip((LOCAL, HALF, *GLOBAL.values(), *TRAINED.values(), AGAIN),
                  ((SKY, "o"), (BLUE, "s"), (RED, "^"), (RED, "p"), (ORANGE, "v"), (PINK, "<"), (GREEN, ">"),
                   (GREEN, "h"), (GREY, "D")), strict=True))  # fmt: skip
STYLES |= {AHEAD: (BLACK, "X"), AHEAD_LOCAL: (BLACK, "d"), AHEAD_GLOBAL: (BLACK, "P")}


def draw(table: Table, path: Path) -> None:
    """Draw accuracy against mean delay, and against retractions if all is shown at once; the legend has CPU times."""
    by_system = _by_rule(table)
    measure = next(iter(by_system[LOCAL][AGREE]))
    with panels(path, 2, figsize=(10, 4.8), sharey=True) as (figure, (left, right)):
        for system, rules in by_system.items():
            colour, marker = STYLES[system]
            style = {"color": colour, "marker": marker, "ms": 5, "capsize": 2, "lw": 1.2}
            delayed = [rules[rule] for rule in rules if rule.startswith("delay")]
            *_, last = rules.values()
            label = f"{system}: {last[COST].value:.2f} ms a token"
            _points(left, delayed, DELAY, measure, label=label, **style)
            others = [rules[rule] for rule in rules if not rule.startswith("delay")]
            _points(left, others, DELAY, measure, **{**style, "mfc": "white", "ls": "none"})
            _points(right, list(rules.values()), RETRACTED, measure, **{**style, "ls": "none"})
        left.set(xlabel="tokens until a label is final, mean", ylabel=f"{measure} (%)")
        right.set(xlabel="labels taken back, a hundred tokens (all shown at once)")
        for axes in (left, right):
            axes.grid(alpha=0.25)
        left.set_title("open: all slots agree, a margin, the end", loc="left", fontsize=9)
        legend_below(figure, 2)


def _points(axes: Any, results: Sequence[Mapping[str, Result]], across: str, up: str, **style: Any) -> None:
    bars = interval_bars([each[up] for each in results])
    axes.errorbar([each[across].value for each in results], [each[up].value for each in results], yerr=bars, **style)
