"""The reproduction of default settings: its runs, its choice on development data, and its one look at test data."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reproducing import Unseen
from reproductions.beyond import defaults
from reproductions.beyond.defaults import BY_HAND, CORPORA, DEFAULTS, OTHER_WAY, USUAL, Corpus, build_outcome, family
from reproductions.comparison import Measured, Row
from reproductions.systems import Data
from reproductions.tasks import Task
from seqwise.configuration.flat import flat_values
from seqwise.data.readers import Example, write_columns
from seqwise.errors import InputError
from seqwise.evaluation.metrics import Counts, Sums
from seqwise.evaluation.signature import sign
from seqwise.runs.settings import load_settings, require_data

SENTENCES = [Example(("a", f"word{place}", "b"), ("X", "Y", "X")) for place in range(20)]
DATA = Data(SENTENCES, SENTENCES[:4], SENTENCES[:8])


def corpus(name: str = "made", **flags: Any) -> Corpus:
    return Corpus(Task(name, f"the {name}", "accuracy", lambda: DATA, lambda part, outputs: Counts([1])), flags)


@pytest.mark.thorough
def test_the_defaults_are_what_the_command_trains_with(tmp_path: Path, seqwise: Callable[..., Any]) -> None:
    write_columns(tmp_path / "train.tsv", DATA.train)
    write_columns(tmp_path / "dev.tsv", DATA.dev)
    files = ("--train", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv", "--output", tmp_path / "run")
    assert seqwise("train", *files).code == 0
    trained = load_settings(tmp_path / "run" / "configuration.yaml")
    ours = family(corpus(), 0)[DEFAULTS].settings
    assert ours.with_changes(train=trained.train, dev=trained.dev) == trained


@pytest.mark.parametrize("flags", [{}, {"task": "transduce", "source_units": "characters"}])
def test_what_is_tried_by_hand_differs_in_what_it_names(flags: dict[str, Any]) -> None:
    systems = family(corpus(**flags), 3)
    before = flat_values(systems["usual"].settings)
    assert {name: before[name] for name in USUAL} == USUAL
    assert set(systems) == {DEFAULTS, *BY_HAND} | ({OTHER_WAY} if not flags else set())
    for key, system in systems.items():
        require_data(system.settings.with_changes(train=Path("train.tsv")))
        assert system.settings.seed == 3 and system.starts_from is None
        if key == DEFAULTS:
            continue
        changed = {name for name, value in flat_values(system.settings).items() if value != before[name]}
        assert changed == set(BY_HAND.get(key, {"characters"} if key == OTHER_WAY else ()))


def test_characters_are_tried_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert family(corpus(), 0)[DEFAULTS].settings.model.characters  # type: ignore[attr-defined]
    assert not family(corpus(), 0)[OTHER_WAY].settings.model.characters  # type: ignore[attr-defined]
    known = Data([Example(("a", "b"), ("X", "Y"))] * 20, [])
    monkeypatch.setitem(globals(), "DATA", known)
    assert not family(corpus(), 0)[DEFAULTS].settings.model.characters  # type: ignore[attr-defined]
    assert family(corpus(), 0)[OTHER_WAY].settings.model.characters  # type: ignore[attr-defined]


def measured(key: str, dev: float, test: float | None) -> Measured:
    def counts(share: float) -> list[Sums]:
        return [Counts((np.arange(1000) % 100 < 100 * share).astype(float))]

    on_test = Unseen() if test is None else MappingProxyType({"beam": counts(test)})
    return Measured(
        Row(key, key), {"beam": counts(dev)}, on_test, "beam", 12.0, 0.5, sign(key, seeds=[0], data="0" * 64)
    )


@pytest.mark.parametrize(("test", "verdict"), [(0.60, "holds"), (0.70, "holds"), (0.71, "holds"), (0.78, "reversed")])
def test_the_best_by_hand_is_chosen_on_dev_and_meets_the_defaults_on_test(
    test: float, verdict: str, tmp_path: Path
) -> None:
    tried = {
        DEFAULTS: measured(DEFAULTS, 0.90, 0.70),
        "slower": measured("slower", 0.5, None),
        "faster": measured("faster", 0.6, test),
        "long": measured("long", 0.4, None),
    }
    table = build_outcome({corpus(): tried}, tmp_path).table
    (claim,) = table.claims
    assert claim.verdict == verdict
    by_hand, against = (next(r for r in table.results if r.measure == name) for name in
                        ("by hand", "defaults minus by hand"))  # fmt: skip
    assert by_hand.note == "faster" and by_hand.value == pytest.approx(100 * test)
    assert against.value == pytest.approx(70 - 100 * test)
    on_dev = {result.measure: result.value for result in table.results if result.measure.endswith(", dev")}
    assert on_dev == {"defaults, dev": 90, "slower, dev": 50, "faster, dev": 60, "long, dev": 40}


def test_corpora_are_cut_evenly() -> None:
    assert defaults._spread(SENTENCES, 4) == SENTENCES[::5]
    assert defaults._spread(SENTENCES, 100) == SENTENCES
    assert len({one.task.name for one in CORPORA}) == len(CORPORA)
    assert defaults.UNSEEN in {one.task.name for one in CORPORA}


def test_the_parts_of_the_turkish_corpus_share_no_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = (f"1\tkelime{n}\t_\tNOUN\tNN\tCase=Bare\t0\troot\t_\t_\n\n" for n in range(10))
    (tmp_path / "wiki.conllu").write_text("".join(lines), "utf-8")
    file = SimpleNamespace(name="wiki.conllu", locate=lambda: tmp_path / "wiki.conllu")
    monkeypatch.setattr(metadata, "files", lambda _: [file])
    data = defaults._turkish.__wrapped__()
    words = [[example.source[0] for example in part] for part in (data.train, data.dev, data.test)]
    assert [len(part) for part in words] == [6, 2, 2]
    assert len({word for part in words for word in part}) == 10
    assert data.train[0].target == ("NOUN|Case=Bare",)


def test_the_turkish_package_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(InputError, match="turkish-treebanks, which contains a corpus, is not installed; pip install"):
        defaults._turkish.__wrapped__()
