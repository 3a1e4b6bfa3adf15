"""Tables 3.1, 3.2, 4.1 and 4.2: the papers' rows and numbers, the controls that they lack, and the papers' claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from reproductions import Setup
from reproductions.comparison import Measured, Row, best_on_dev, examine, examine_all
from reproductions.goyal_2018.exposure_bias import (
    DIRECTIONS,
    FEEDING_ROWS,
    LARGE_ALPHA,
    SEARCH_ROWS,
    family_of,
    runs_of,
)
from reproductions.outcome import Outcome
from reproductions.report import Claim
from reproductions.tasks import ENTITIES, Task, make_table, supertags, translation_at

Published = Mapping[str, Sequence[float]]
Rows = Mapping[str, Measured]
BASELINES = {"cross-entropy": "cross-entropy", "cross-entropy-longer": "cross-entropy, longer"}
GREEDY, BEAM, SOFT = "greedy", "beam", "soft-beam"
OURS = "not in the papers"


def _rows(names: Mapping[str, str], published: Published, decoders: Sequence[str]) -> list[Row]:
    """Make rows with the paper's numbers, which are listed as dev, test for each decoder in turn."""
    places = [(decoder, part) for decoder in decoders for part in ("dev", "test")]
    return [Row(key, name, dict(zip(places, published.get(key, ()), strict=False))) for key, name in names.items()]


def _table(
    name: str,
    number: str,
    task: Task,
    rows: Sequence[Row],
    controls: Mapping[str, str],
    claims: Callable[[Rows], list[Claim]],
    setup: Setup,
    *,
    direction: str = "",
) -> Outcome:
    """Make a table on a task; the title names the direction of a tagger, if given."""
    title = f"{number}, {task.title}{f', {DIRECTIONS[direction]}' if direction else ''}: {task.measure}"
    family, runs = family_of(task, setup.scale, direction), setup.inside(runs_of(task, direction))
    return make_table(name, title, task, family, rows, runs, controls=controls, claims=claims)


# ---------------------------------------------------------------------------------------- feeding

PUBLISHED_3_1: dict[str, Published] = {
    # dev, test
    "ner": {
        "cross-entropy": (49.43, 53.32), "sampling-greedy": (49.75, 54.83), "sampling-sample": (50.90, 54.60),
        "fixed-greedy": (51.65, 55.88), "fixed-sample": (51.13, 56.25), "annealed-greedy": (51.43, 56.33),
        "annealed-sample": (50.99, 54.20),
    },
    "translation": {
        "cross-entropy": (20.35, 19.11), "sampling-greedy": (20.52, 19.85), "sampling-sample": (20.40, 19.69),
        "fixed-greedy": (21.32, 20.28), "fixed-sample": (20.48, 19.69), "annealed-greedy": (21.28, 20.18),
        "annealed-sample": (21.36, 20.60),
    },
}  # fmt: skip


def table_3_1(setup: Setup) -> Iterator[Outcome]:
    """Make Table 3.1: scheduled sampling, hard and relaxed, for named entities and for translation."""
    tasks = setup.chosen({f"table-3.1-{task.name}": task for task in (ENTITIES, translation_at(setup.scale))})
    for task in tasks.values():
        task.require()
    for name, task in tasks.items():
        rows = _rows({**BASELINES, **FEEDING_ROWS}, PUBLISHED_3_1[task.name], [GREEDY])
        yield _table(name, "Table 3.1", task, rows, BASELINES, _claims_3_1, setup)


def _claims_3_1(measured: Rows) -> list[Claim]:
    source = "thesis, section 3.3.4 and Table 3.1"
    plain, longer = measured["cross-entropy"], measured["cross-entropy-longer"]
    keys = {
        "hard": ["sampling-greedy", "sampling-sample"],
        "soft": [key for key in FEEDING_ROWS if "sampling" not in key],
    }
    # The papers search greedily, so the rows of their claims are chosen by greedy search.
    hard, soft = (best_on_dev(measured, keys[kind], decoder=GREEDY) for kind in keys)
    best_hard, best_soft = (best_on_dev(measured, keys[kind]) for kind in keys)
    greedy = (GREEDY, GREEDY)
    return [
        examine("Scheduled sampling improves on cross-entropy.", source, hard, plain, decoders=greedy),
        examine("Relaxed scheduled sampling improves on the hard one.", source, soft, hard, decoders=greedy),
        examine("Relaxed scheduled sampling improves on cross-entropy.", source, soft, plain, decoders=greedy),
        examine(
            "Relaxed scheduled sampling, with its best decoder, beats longer cross-entropy.", OURS, best_soft, longer
        ),
        examine("Hard scheduled sampling, with its best decoder, beats longer cross-entropy.", OURS, best_hard, longer),
    ]


def table_3_2(setup: Setup) -> list[Outcome]:
    """Make Table 3.2: speeds of the decay from gold to the model's own relaxed choices, for named entities."""
    names = {"decay-100": "k = 100", "fixed-greedy": "k = 10", "decay-1": "k = 1", "always": "always"}
    numbers = zip(names, (56.33, 55.88, 55.30, 54.83), strict=True)
    rows = [Row(key, names[key], {(GREEDY, "test"): number}) for key, number in numbers]

    def claims(measured: Rows) -> list[Claim]:
        return examine_all(
            measured,
            "thesis, Table 3.2",
            ("A gentle decay (k = 100) beats no gold at all.", "decay-100", "always"),
            ("k = 10 beats no gold at all.", "fixed-greedy", "always"),
            ("k = 1 beats no gold at all.", "decay-1", "always"),
            decoder_of=lambda key: GREEDY,
        )

    rows = [*_rows(BASELINES, {}, []), *rows]
    return [_table("table-3.2", "Table 3.2", ENTITIES, rows, BASELINES, claims, setup)]


# ---------------------------------------------------------------------------------------- search

PUBLISHED_4_1: Published = {
    # hard beam dev, test; soft beam dev, test
    "cross-entropy": (82.17, 82.42, 81.62, 82.00), "hinge-annealed": (83.03, 83.54, 82.82, 83.05),
    "hinge-constant": (83.02, 83.36, 82.49, 82.85), "direct-constant": (83.23, 82.65, 82.58, 82.82),
    "direct-annealed": (85.69, 85.82, 85.58, 85.78),
}  # fmt: skip
PUBLISHED_4_2: Published = {
    "cross-entropy": (46.22, 51.34, 47.50, 52.78), "hinge-annealed": (41.10, 45.98, 41.24, 46.34),
    "hinge-constant": (40.09, 44.67, 39.67, 43.82), "direct-constant": (49.88, 54.08, 50.73, 54.77),
    "direct-annealed": (51.86, 56.15, 51.96, 56.38),
}  # fmt: skip
GREEDY_4 = {"supertags": (80.15, 80.35), "ner": (50.21, 54.92)}
# Where no cross-entropy is mixed in, "direct-mixed" is "direct-annealed".
PURE_SEARCH_ROWS = {key: name for key, name in SEARCH_ROWS.items() if key != "direct-mixed"} | {
    "direct-global": "direct loss, global, alpha .5 to 4"
}
SEARCH_CONTROLS = {**BASELINES, "sampling-greedy": "scheduled sampling, greedy"}


def table_4_1(setup: Setup) -> Iterator[Outcome]:
    """Make Table 4.1: training through the relaxed beam, for bidirectional and left-to-right supertagging.

    The paper's 80% is far below the accuracy of a bidirectional tagger, so both tables have its numbers.
    """

    def claims(measured: Rows) -> list[Claim]:
        source = "AAAI 2018, Table 1; thesis, Table 4.1"
        return [
            *examine_all(
                measured,
                source,
                (
                    "The direct loss improves a beam's result over cross-entropy's.",
                    "direct-annealed", "cross-entropy",
                ),
                ("The hinge improves a beam's result over cross-entropy's.", "hinge-annealed", "cross-entropy"),
                ("The direct loss beats the hinge.", "direct-annealed", "hinge-annealed"),
                decoder_of=lambda key: BEAM,
            ),
            *_claims_of_both(measured, source),
        ]  # fmt: skip

    task = supertags("pmb")
    names = {"table-4.1" if direction == "bi" else f"table-4.1-{direction}": direction for direction in DIRECTIONS}
    for name, direction in setup.chosen(names).items():
        rows = _search_rows(task, PUBLISHED_4_1, setup)
        yield _table(name, "Table 4.1", task, rows, SEARCH_CONTROLS, claims, setup, direction=direction)


def table_4_2(setup: Setup) -> list[Outcome]:
    """Make Table 4.2: training through the relaxed beam, for named entities; wrongly choosing "O" costs double."""

    def claims(measured: Rows) -> list[Claim]:
        source, plain = "AAAI 2018, Table 2; thesis, Table 4.2", measured["cross-entropy"]
        direct, hinge = measured["direct-annealed"], measured["hinge-annealed"]
        return [
            examine(
                "A beam hurts plain cross-entropy: greedy search is better.",
                source, plain, plain, decoders=(GREEDY, BEAM),
            ),
            examine(
                "The direct loss with a beam improves on cross-entropy searched greedily.",
                source, direct, plain, decoders=(BEAM, GREEDY),
            ),
            examine("The hinge does worse than cross-entropy.", source, plain, hinge, decoders=(BEAM, BEAM)),
            *_claims_of_both(measured, source),
        ]  # fmt: skip

    rows = _search_rows(ENTITIES, PUBLISHED_4_2, setup)
    return [_table("table-4.2", "Table 4.2", ENTITIES, rows, SEARCH_CONTROLS, claims, setup)]


def large_alpha(setup: Setup) -> list[Outcome]:
    """Compare the direct loss at a very large constant alpha with an annealed one, for left-to-right supertagging.

    Source: Goyal et al. (AAAI 2018), footnote 2, which calls its optimisation unstable.
    """
    source = "AAAI 2018, footnote 2"
    names = {
        "direct-constant": SEARCH_ROWS["direct-constant"],
        "direct-annealed": SEARCH_ROWS["direct-annealed"],
        "direct-large": f"direct loss, alpha = {LARGE_ALPHA}",
    }

    def claims(measured: Rows) -> list[Claim]:
        statements = [
            (
                f"Annealing alpha beats a very large one (alpha = {LARGE_ALPHA}) throughout.",
                "direct-annealed", "direct-large",
            ),
            ("So does alpha = 1.", "direct-constant", "direct-large"),
            ("A very large alpha makes the start worse.", "cross-entropy", "direct-large"),
        ]  # fmt: skip
        return examine_all(measured, source, *statements, decoder_of=lambda key: BEAM)

    rows = _rows({**BASELINES, **names}, {}, [])
    return [_table("large-alpha", source, supertags("pmb"), rows, BASELINES, claims, setup, direction="uni")]


def _search_rows(task: Task, published: Published, setup: Setup) -> list[Row]:
    searched = PURE_SEARCH_ROWS if setup.scale == "converged" else SEARCH_ROWS
    first, *others = _rows({**SEARCH_CONTROLS, **searched}, published, [BEAM, SOFT])
    greedy = dict(zip(((GREEDY, "dev"), (GREEDY, "test")), GREEDY_4[task.name], strict=True))
    return [Row(first.key, first.name, {**first.published, **greedy}), *others]


def _claims_of_both(measured: Rows, source: str) -> list[Claim]:
    annealed = measured["direct-annealed"]
    searched = best_on_dev(measured, [key for key in SEARCH_ROWS if key in measured])
    return [
        examine(
            "Annealing alpha beats alpha = 1.", source, annealed, measured["direct-constant"], decoders=(BEAM, BEAM)
        ),
        examine(
            "The best search-aware row beats longer cross-entropy, each with its best decoder.",
            OURS, searched, measured["cross-entropy-longer"],
        ),
        examine(
            "The best search-aware row beats hard scheduled sampling, each with its best decoder.",
            OURS, searched, measured["sampling-greedy"],
        ),
        examine(
            "The relaxed hinge beats the hinge of a hard beam.",
            "AAAI 2018, footnote 3", measured["hinge-annealed"], measured["hard-hinge"], decoders=(BEAM, BEAM),
        ),
    ]  # fmt: skip
