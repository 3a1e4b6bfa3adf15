"""The committed results say what the README says they do; each was written by the recipe that made it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seqwise.evaluation.report import Result, load_table

RESULTS = Path(__file__).parent.parent / "results"
README = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
CONTROLS = (
    "cross-entropy", "cross-entropy, longer", "scheduled sampling", "self-normalised", "relaxed beam, local",
)  # fmt: skip


def best(name: str, measure: str, systems: tuple[str, ...]) -> float:
    """The highest value of a measure over decoders and systems."""
    return max(
        result.value
        for result in load_table(RESULTS / f"{name}.json").results
        if result.system in systems and result.measure.endswith(f": {measure}")
    )


def find(name: str, measure: str, system: str) -> Result:
    """One result."""
    (found,) = [r for r in load_table(RESULTS / f"{name}.json").results if (r.system, r.measure) == (system, measure)]
    return found


def value(name: str, measure: str, system: str) -> float:
    """One number."""
    return find(name, measure, system).value


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_number_is_signed(path: Path) -> None:
    for result in load_table(path).results:
        signature = result.signature
        assert (
            signature.seeds and len(signature.data) == 64 and signature.revision and "dirty" not in signature.revision
        )


def test_global_scores_beat_every_left_to_right_control_by_four_points() -> None:
    control = best("stress", "words right", CONTROLS)
    assert best("stress", "words right", ("relaxed beam, global",)) >= control + 4
    assert best("stress", "words right", ("beam CRF, global",)) >= control + 4


def test_controls_had_at_least_the_time_of_what_they_control() -> None:
    longer = value("stress", "training seconds", "cross-entropy, longer")
    for system in ("relaxed beam, global", "beam CRF, global"):
        assert longer >= 0.9 * value("stress", "training seconds", system)


def test_the_toy_stays_between_its_ceilings() -> None:
    assert value("label-bias-toy", "beam: labels right", "relaxed beam, local") < 57
    assert value("label-bias-toy", "raw beam: labels right", "relaxed beam, global") >= 85


def test_spelling_to_sound_is_as_good_as_promised() -> None:
    assert value("g2p", "beam: word error", "cross-entropy") <= 32
    assert value("g2p", "training seconds", "cross-entropy") <= 180


SYSTEMS = (
    "cross-entropy", "cross-entropy, longer", "scheduled sampling", "self-normalised", "relaxed beam, local",
    "relaxed beam, global", "… from self-normalised", "beam CRF, global", "cross-entropy, two-way",
)  # fmt: skip


def test_the_readme_table_is_the_saved_one() -> None:
    rows = re.findall(r"^\|[^|]+\| ([a-z ]+) \| \**([0-9.]+)\** ± ([0-9.]+) \|$", README, flags=re.MULTILINE)
    assert len(rows) == len(SYSTEMS)
    for system, (decoder, shown, half) in zip(SYSTEMS, rows, strict=True):
        saved = find("stress", f"{decoder}: words right", system)
        assert saved.low is not None and saved.high is not None
        assert (shown, half) == (f"{saved.value:.1f}", f"{(saved.high - saved.low) / 2:.1f}"), system
        assert saved.value == best("stress", "words right", (system,)), system
    for decoder in ("beam", "raw beam"):
        assert f"{value('g2p', f'{decoder}: word error', 'cross-entropy'):.1f}%" in README
