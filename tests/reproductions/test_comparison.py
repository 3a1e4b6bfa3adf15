"""Tables over seeds, from made-up outputs whose every number can be counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reproducing import setup
from reproductions.comparison import LEARNING_RATE, Measured, Row, best_on_dev, compare, examine, measure_rows
from reproductions.corpora import readers as corpora_readers
from reproductions.goyal_2018.exposure_bias import FEEDING_ROWS, SEARCH_ROWS, family
from reproductions.outcome import DECODERS
from reproductions.report import Claim, load_table, save_table
from reproductions.systems import Cell, System
from reproductions.tasks import ENTITIES, TRANSLATION, Task, _needed, run_task, supertags
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Sums, token_accuracy
from seqwise.evaluation.signature import sign
from seqwise.objectives.options import Costed, Mixed
from seqwise.runs.settings import require_data, train_settings
from seqwise.schedules import inverse_sigmoid

GOLD = [("A",)] * 400


def outputs(right: int) -> list[tuple[str, ...]]:
    """The first so many right."""
    return [("A",) if place < right else ("B",) for place in range(len(GOLD))]


def cell(dev: dict[str, int], test: dict[str, int], seed: int = 0) -> Cell:
    """How many each decoder gets right; those not named, none."""
    by_part = [{name: outputs(part.get(name, 0)) for name in DECODERS} for part in (test, dev)]
    return Cell("s", Path(), *by_part, 1.0, 2.0 + seed, 1.0, sign("s", seeds=[seed], data="0" * 64))


def count(found: list[tuple[str, ...]]) -> Sums:
    return token_accuracy(found, GOLD)


def measured(**systems: list[Cell]) -> dict[str, Measured]:
    rows = [Row(key, key, {("beam", "test"): 82.0, ("beam", "dev"): 81.0}) for key in systems]
    cells = {f"seed-{seed}/{key}": run for key, runs in systems.items() for seed, run in enumerate(runs)}
    return measure_rows("table", rows, cells, range(2), dev=count, test=count)


@pytest.fixture
def three() -> dict[str, Measured]:
    """A control, one that is better with the raw beam, and one about as good as the control."""
    return measured(
        control=[cell({"beam": 200}, {"beam": 200, "greedy": 399}), cell({"beam": 240}, {"beam": 220})],
        better=[cell({"raw-beam": 300}, {"raw-beam": 300}), cell({"raw-beam": 320, "beam": 319}, {"raw-beam": 320}, 1)],
        same=[cell({"greedy": 190}, {"greedy": 203}), cell({"greedy": 200}, {"greedy": 215})],
    )


def test_decoders_are_chosen_on_development_data_alone(three: dict[str, Measured]) -> None:
    assert [one.chosen for one in three.values()] == ["beam", "raw-beam", "greedy"]
    # The control's greedy search is far better on test, which must not be known.
    assert three["control"].percent("test", "greedy") == pytest.approx(100 * (399 / 400 + 0) / 2)
    assert three["control"].percent("dev", "beam") == pytest.approx(100 * 220 / 400)
    assert best_on_dev(three, ["control", "same"]) is three["control"]
    assert best_on_dev(three, list(three)) is three["better"]
    assert three["better"].train_seconds == 2.5 and three["better"].signature.seeds == (0, 1)


def test_a_rate_that_was_chosen_stands_in_the_table_with_its_place_in_the_grid(three: dict[str, Measured]) -> None:
    tuned = replace(cell({"beam": 200}, {"beam": 200}), learning_rate=0.002, place_of_rate="lowest")
    rows = measured(control=[tuned, cell({"beam": 240}, {"beam": 220})], other=[cell({}, {}), cell({}, {})])
    table = compare("t", "t", rows, measure="right", controls=["control"], claims=[], files={}).table
    rates = {row.system: (row.value, row.note) for row in table.results if row.measure == LEARNING_RATE}
    assert rates == {"control": (0.002, "lowest")}


def test_verdicts(three: dict[str, Measured]) -> None:
    better, control, same = three["better"], three["control"], three["same"]
    holds = examine("c", "s", better, control)
    assert holds.verdict == "holds"
    assert "better 77.5 (raw beam) against control 52.5 (beam): +25.0" in holds.evidence
    assert "p < 0.001" in holds.evidence and "2 of 2 seeds above" in holds.evidence
    assert examine("c", "s", control, better).verdict == "reversed"
    assert examine("c", "s", same, control).verdict == "not seen"
    named = examine("c", "s", control, better, decoders=("beam", "beam"))
    assert named.verdict == "holds" and "better 0.0 (beam)" in named.evidence
    with pytest.raises(InputError, match="a verdict must be one of holds, reversed, not seen"):
        Claim("c", "s", "perhaps", "e")


def test_a_table_holds_what_it_shows(three: dict[str, Measured], tmp_path: Path) -> None:
    claims = [examine("This is better.", "the paper", three["better"], three["control"])]
    outcome = compare(
        "table", "Title", three, measure="accuracy", controls=["control"], claims=claims, files={}
    )  # fmt: skip
    save_table(outcome.table, tmp_path / "table.json")
    table = load_table(tmp_path / "table.json")
    assert table == outcome.table and table.claims == tuple(claims)
    found = {(result.system, result.measure): result for result in table.results}
    chosen = found["better", "raw beam: accuracy"]
    assert chosen.value == pytest.approx(77.5) and chosen.note == "chosen on dev"
    assert chosen.low is not None and chosen.high is not None and chosen.low < 77.5 < chosen.high
    assert found["better", "raw beam: accuracy, dev"].value == pytest.approx(77.5)
    assert found["control", "beam: accuracy"].published == 82
    assert found["control", "beam: accuracy, dev"].published == 81
    against = found["better", "accuracy minus best control"]
    assert against.value == pytest.approx(25.0) and against.p_value is not None and against.p_value < 0.01
    assert ("control", "accuracy minus best control") not in found
    assert outcome.lesson.startswith("HOLDS: This is better. (better 77.5")


def test_a_family_trains_what_the_tables_name() -> None:
    start = train_settings(task="tag", epochs=2.0, learning_rate=6e-3, minimum_count=1)
    budget = {"longer": 3, "feeding": 1.5, "search": 1, "likelihood": 1}
    systems = family(start, 4, steps_per_epoch=100, budget=budget, label_costs="O=2")
    assert {*FEEDING_ROWS, *SEARCH_ROWS} < set(systems)
    for key, system in systems.items():
        assert system.folder == f"seed-4/{key}" and system.settings.seed == 4
        require_data(system.settings.with_changes(train=Path("some")))
        assert (system.starts_from is None) == (key == "cross-entropy")
        objective = system.settings.objective
        if isinstance(objective, Costed):
            assert objective.wrong_label_costs == ("" if isinstance(objective, Mixed) else "O=2")
    assert systems["direct-global"].settings.trained_score == "global"
    # Decay by the papers' epochs, 50 of which are our 150 steps.
    schedule = systems["fixed-greedy"].settings.objective.schedules["gold_probability"].over(150)
    assert schedule(75) == pytest.approx(10 / (10 + 2.718281828459045 ** (25 / 10)))
    assert schedule(0) == pytest.approx(10 / 11) and inverse_sigmoid(10, 3)(75) == pytest.approx(schedule(75))
    assert systems["always"].settings.objective.schedules["gold_probability"].over(150)(0) == 0


def test_a_family_without_the_row(tmp_path: Path) -> None:
    settings = train_settings()
    task = Task("t", "t", "right", lambda: None, lambda part, outputs: count([]))  # type: ignore[arg-type, return-value]

    def chain(seed: int) -> dict[str, System]:
        return {
            "a": System("a", "seed-0/a", settings),
            "b": System("b", "seed-0/b", settings, "seed-0/a"),
            "c": System("c", "seed-0/c", settings, "seed-0/b"),
        }

    assert [system.name for system in _needed(chain(0), ["b"])] == ["a", "b"]
    assert [system.name for system in _needed(chain(0), ["c", "a"])] == ["a", "b", "c"]
    with pytest.raises(InputError, match="the family has no system 'd'; it has a, b, c"):
        run_task(task, chain, [Row("d", "d")], "table", setup(tmp_path))


def test_what_is_missing_is_said_before_any_training(tmp_path: Path) -> None:
    def missing() -> None:
        raise InputError("sacrebleu is missing")

    task = replace(TRANSLATION, load_data=lambda: pytest.fail("read too early"), check=missing)
    with pytest.raises(InputError, match="sacrebleu is missing"):
        task.require()


def test_a_corpus_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SEQWISE_DATA", raising=False)
    with pytest.raises(InputError, match=r"the corpus some is needed, and SEQWISE_DATA is not set; set SEQWISE_DATA"):
        corpora_readers.corpus("some")
    monkeypatch.setenv("SEQWISE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"some: the corpus is missing; set SEQWISE_DATA"):
        corpora_readers.corpus("some")
    (tmp_path / "some").mkdir()
    assert corpora_readers.corpus("some") == tmp_path / "some"


@pytest.mark.parametrize(
    "task, sizes",
    [(ENTITIES, (5100, 1100, 1100)), (supertags("pmb"), (7745, 1174, 1053))],
    ids=lambda task: str(task)[:20],
)
def test_tasks_read_their_corpora(
    task: Task, sizes: tuple[int, ...], corpora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQWISE_DATA", str(corpora))
    data = task.load_data()
    assert (len(data.train), len(data.dev), len(data.test)) == sizes
    assert task.count("dev", [example.target for example in data.dev]).value == pytest.approx(1.0)
    assert task.count("test", [example.target[::-1] for example in data.test]).value < 0.9


def test_translation_is_measured_as_text(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sacrebleu")
    monkeypatch.setenv("SEQWISE_DATA", str(corpora))
    references = corpora_readers.translation_references("dev")
    assert len(references) == 2199 and max(map(len, references)) > 1
    pieces = [tuple(f"\u2581{word}" for word in options[-1].split()) for options in references]
    assert TRANSLATION.count("dev", pieces).value == pytest.approx(1.0)
    assert TRANSLATION.count("dev", [piece[::-1] for piece in pieces]).value < 0.5
