"""Training inside a language: its systems, and that all of them are decoded inside, wherever they were trained."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from reproducing import no_progress
from reproductions import Setup
from reproductions.beyond import training_inside
from reproductions.beyond.training_inside import CONTROLS, TASKS, TRAINED, ConstrainedTask, family
from reproductions.outcome import HEADINGS
from reproductions.systems import Data
from reproductions.tasks import Task, against_gold
from seqwise.data import Example
from seqwise.evaluation.metrics import token_accuracy
from seqwise.runs import load_run, train_settings
from seqwise.runs.paths import BIO
from seqwise.runs.settings import require_data


@pytest.mark.parametrize("name", TASKS)
def test_every_system_can_be_trained_and_only_one_not_inside(name: str) -> None:
    systems = family(TASKS[name], 1000, BIO, 3)
    assert list(systems) == [*CONTROLS, *TRAINED]
    for key, system in systems.items():
        require_data(system.settings.with_changes(train=Path("train"), dev=Path("dev")))
        assert system.settings.seed == 3 and system.settings.patience and system.settings.evaluate_every
        assert system.starts_from == (None if key == "cross-entropy" else "seed-3/cross-entropy")
        assert (system.settings.language == BIO) == (key != "crf")
        assert (system.language or system.settings.language) == BIO
    inside, outside = systems["crf-inside"].settings, systems["crf"].settings
    assert inside.with_changes(language="") == outside  # the comparison changes one thing


@pytest.mark.thorough
def test_all_systems_are_decoded_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [tuple("abcab"), tuple("bca"), tuple("bcab"), tuple("aabc")]
    labels = {"a": "O", "b": "B-X", "c": "I-X"}
    examples = [Example(word, tuple(labels[each] for each in word)) for word in words]
    load_data = partial(Data, examples * 4, examples, [Example(tuple("ccacbc"), ("O",) * 6)] * 3)
    decoders = training_inside.DECODERS
    task = Task("tiny", "tiny", "accuracy", load_data, against_gold(load_data, token_accuracy), decoders)
    start = train_settings(
        encoder="left-to-right", objective="cross-entropy", hidden_size=4, embedding_size=4, label_embedding_size=2,
        epochs=1.0, batch_size=4, beam_size=2, minimum_count=1,
    )  # fmt: skip
    monkeypatch.setattr(training_inside, "TASKS", {"tiny": ConstrainedTask(task, start, lambda _: BIO)})
    monkeypatch.setattr(training_inside, "EPOCHS", dict.fromkeys(training_inside.EPOCHS, 1.0))
    (outcome,) = training_inside.reproduce(Setup(tmp_path, [0], no_progress, "cpu"))
    assert outcome.name == "training-inside-tiny"
    measures = {result.measure for result in outcome.table.results}
    assert {f"{HEADINGS[decoder]}: accuracy" for decoder in decoders} <= measures
    assert {result.system for result in outcome.table.results} == {*CONTROLS.values(), *TRAINED.values()}
    assert len(outcome.table.claims) == len(TRAINED) + 4
    assert not load_run(tmp_path / "tiny" / "seed-0" / "crf").settings.language
    for cell in sorted((tmp_path / "tiny").rglob("cell.json")):
        outputs = _test_outputs(cell)
        assert outputs and not [one for one in outputs if _is_ill_formed(one)], cell


def _test_outputs(cell: Path) -> list[list[str]]:
    record = json.loads(cell.read_bytes())
    return [output for part in ("outputs", "dev_outputs") for each in record[part].values() for output in each]


def _is_ill_formed(labels: list[str]) -> bool:
    return any(label == "I-X" and (place == 0 or labels[place - 1] == "O") for place, label in enumerate(labels))
