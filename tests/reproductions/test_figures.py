"""Figures of reproductions show what their tables hold, and a table read back draws the same picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reproducing import setup
from reproductions.beyond import spelling, stress
from reproductions.figures import draw_by_decoder, draw_curves, interval_bars
from reproductions.goyal_2021 import figure_6_1
from reproductions.goyal_2021.figure_6_1 import METHODS
from reproductions.outcome import DECODERS as EVERY_DECODER
from reproductions.report import Curve, Result, Table, load_table, save_table
from reproductions.systems import Cell, Data
from seqwise.data import Example
from seqwise.evaluation.signature import sign

pyplot = pytest.importorskip("matplotlib.pyplot")

SIGNATURE = sign("made up", seeds=[0], data="0" * 64)
DECODERS = ("greedy", "beam", "raw-beam", "soft-beam")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is drawn stays open, and is here."""
    kept: list[Any] = []
    with monkeypatch.context() as patched:
        # matplotlib 3.9 itself closes "all" when it is first used.
        patched.setattr(pyplot, "close", lambda figure: kept.extend([] if figure == "all" else [figure]))
        yield kept
    for figure in kept:
        pyplot.close(figure)


def points(container: Any) -> list[tuple[float, float]]:
    """Where the points of an errorbar lie."""
    line, _, _ = container.lines
    return list(zip(*(values.tolist() for values in line.get_data(orig=False)), strict=True))


def ends(container: Any, axis: int) -> list[tuple[float, float]]:
    """From where to where its bars go, along one axis."""
    _, _, (bars,) = container.lines
    return [(start[axis], end[axis]) for start, end in bars.get_segments()]


# ------------------------------------------------------------------ by decoder


def by_decoder() -> Table:
    """Two systems, two measures, and what stands beside them in the table; intervals longer above than below."""
    results = []
    for place, system in enumerate(("one", "… other")):
        for column, decoder in enumerate(("greedy", "beam", "raw beam", "soft beam")):
            value = 50.0 + 10 * place + column
            results += [
                Result(system, f"{decoder}: word accuracy", value, SIGNATURE, value - 1 - column, value + 2 + column),
                Result(system, f"{decoder}: vowels right", value + 30, SIGNATURE, value + 29, value + 31),
            ]
        results.append(Result(system, "training seconds", 7.0, SIGNATURE, unit="s"))
    results.append(Result("… other", "word accuracy: beam minus best control", 10.0, SIGNATURE, 9.0, 11.0))
    return Table("made up", tuple(results))


def test_each_decoder_has_its_points_and_intervals(tmp_path: Path, drawn: list[Any]) -> None:
    draw_by_decoder(by_decoder(), "word accuracy", tmp_path / "new" / "figure.png", title="words")
    assert (tmp_path / "new" / "figure.png").read_bytes()[:4] == b"\x89PNG"
    ((axes,),) = [figure.axes for figure in drawn]
    assert [container.get_label() for container in axes.containers] == ["greedy", "beam", "raw beam", "soft beam"]
    for column, container in enumerate(axes.containers):
        row = -0.24 + 0.16 * column
        assert points(container) == [(50 + column, pytest.approx(row)), (60 + column, pytest.approx(1 + row))]
        # Reckoned from the point, so with its rounding.
        assert ends(container, 0) == [pytest.approx((49, 52 + 2 * column)), pytest.approx((59, 62 + 2 * column))]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "… other"]
    assert axes.get_title(loc="left") == "words" and axes.yaxis.get_inverted()


def test_a_measure_that_the_table_lacks(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="greedy: words wrong"):
        draw_by_decoder(by_decoder(), "words wrong", tmp_path / "figure.png", title="")
    assert not (tmp_path / "figure.png").exists()


def test_curves_begin_where_the_stages_before_ended(tmp_path: Path, drawn: list[Any]) -> None:
    ones = tuple(Curve("one", seed, "accuracy", 0.0, ((1.0, 0.5), (2.0, 0.75 + seed / 100))) for seed in (0, 1))
    other = Curve("other", 0, "accuracy", 2.0, ((5.0, 0.75), (6.0, 0.5)))
    draw_curves(replace(by_decoder(), curves=(*ones, other)), tmp_path / "figure.png")
    ((axes,),) = [figure.axes for figure in drawn]
    lines = [(line.get_xydata().tolist(), line.get_color()) for line in axes.lines]
    assert lines[::2] == [([[1, 0.5], [2, pytest.approx(0.755)]], "#0072B2"), ([[7, 0.75]], "#56B4E9")]
    assert [points for points, _ in lines[1::2]] == [[[2, pytest.approx(0.755)]], [[7, 0.75]]]  # the best of each
    (figure,) = drawn
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "other"]
    assert axes.get_ylabel() == "accuracy, development data"


def test_curves_of_an_error_fall(tmp_path: Path, drawn: list[Any]) -> None:
    falling = Curve("one", 0, "word error", 0.0, ((1.0, 0.9), (2.0, 0.25), (3.0, 0.5), (4.0, 0.2)))
    other = Curve("other", 0, "word error", 0.0, ((1.0, 0.9), (2.0, 0.3)))
    draw_curves(replace(by_decoder(), curves=(falling, other)), tmp_path / "figure.png")
    ((axes,),) = [figure.axes for figure in drawn]
    lines = [line.get_xydata().tolist() for line in axes.lines[::2]]
    assert lines == [[[1, 0.9], [2, 0.25], [4, 0.2]], [[1, 0.9], [2, 0.3]]]
    assert axes.get_ylim() == pytest.approx((0.2 - 0.2 * 0.105, 0.3 + 2 * 0.105))


def test_bars_below_and_above() -> None:
    bare = Result("a", "m", 4.0, SIGNATURE)
    assert interval_bars([replace(bare, low=3.0, high=8.0), bare]) == [[1.0, 0.0], [4.0, 0.0]]


# ------------------------------------------------------------------ the reproductions that draw by decoder

GOLD = [("0", "-", str(place % 3)) for place in range(30)]


def outputs(right: int) -> list[tuple[str, ...]]:
    """The first so many right, the others without an end."""
    return [target if place < right else (*target[:2], "-") for place, target in enumerate(GOLD)]


def cells_of(systems: list[Any]) -> dict[str, Cell]:
    """Every system and decoder with a number of its own."""
    return {
        system.folder: Cell(
            system.name, Path("run"), {name: outputs(3 + 2 * place + column) for column, name in enumerate(DECODERS)},
            {name: outputs(5) for name in DECODERS}, 1.0, 1.0, 0.5, SIGNATURE,
        )
        for place, system in enumerate(systems)
    }  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("reproduction", [stress, spelling])
def test_the_reproduction_draws_what_it_saves(
    reproduction: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = [Example(("x",) * 3, target) for target in GOLD]
    monkeypatch.setattr(reproduction, "run_systems", lambda systems, *_, **how: cells_of(systems))
    monkeypatch.setattr(stress, "load_data", lambda: Data(examples, examples, examples))
    monkeypatch.setattr(stress, "_write_own_data", lambda folder, data: None)
    monkeypatch.setattr(spelling, "words_and_pronunciations", lambda part: (examples, [[target] for target in GOLD]))
    (outcome,) = reproduction.reproduce(setup(tmp_path))
    save_table(outcome.table, tmp_path / "table.json")
    for table in (outcome.table, load_table(tmp_path / "table.json")):
        reproduction.draw(table, tmp_path / "again.png")
        assert (tmp_path / "again.png").read_bytes() == outcome.files["figure"].read_bytes()
    # And nothing else would do: other numbers are another picture.
    higher = [replace(one, value=one.value + 1) for one in outcome.table.results]
    reproduction.draw(replace(outcome.table, results=tuple(higher)), tmp_path / "other.png")
    assert (tmp_path / "other.png").read_bytes() != outcome.files["figure"].read_bytes()


def test_the_demo_chooses_decoders_and_the_control_on_development_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is best on development words is reported, although another decoder and another control do better on test."""
    examples = [Example(("x",) * 3, target) for target in GOLD]
    best = {"cross-entropy-longer": ("interpolated-beam", 20), "beam-crf": ("raw-beam", 25)}

    def on_dev(key: str) -> dict[str, list[tuple[str, ...]]]:
        decoder, right = best.get(key, ("greedy", 10))
        return {name: outputs(right if name == decoder else 5) for name in EVERY_DECODER}

    def trained(systems: list[Any], *_: Any, decoders: Any, **how: Any) -> dict[str, Cell]:
        assert tuple(decoders) == tuple(EVERY_DECODER)  # the same tuning for controls and methods
        shown = {name: outputs(14 - place) for place, name in enumerate(EVERY_DECODER)}
        return {
            system.folder: Cell(
                system.name, Path("run"), shown, on_dev(system.folder), 1.0, 1.0, 0.5, SIGNATURE
            )
            for system in systems
        }  # fmt: skip

    monkeypatch.setattr(stress, "run_systems", trained)
    monkeypatch.setattr(stress, "load_data", lambda: Data(examples, examples, examples))
    monkeypatch.setattr(stress, "_write_own_data", lambda folder, data: None)
    (outcome,) = stress.reproduce(setup(tmp_path))
    chosen = {one.system: one.measure for one in outcome.table.results if one.note == "chosen on dev"}
    assert chosen["cross-entropy, longer"] == "half-raw beam: word accuracy"
    assert (
        chosen["beam CRF, global"] == "raw beam: word accuracy" and chosen["cross-entropy"] == "greedy: word accuracy"
    )
    (against,) = [one for one in outcome.table.results if one.system == "beam CRF, global" and one.p_value is not None]
    assert against.value == pytest.approx(100 * (11 - 12) / 30)  # raw beam, half-raw beam


# ------------------------------------------------------------------ Figure 6.1

SIZES = (100, 3_000)


def figure_6_1_table(**how: Any) -> Table:
    """Two distributions; each method of each size with a number of its own, from large sizes to small."""
    results = []
    for place, system in enumerate(("palindromes", "HMM, low entropy")):
        levels = {"entropy": 1.0, "MLM on 5,000, raw": 2.0, "MLM on 5,000, local": 3.0}
        results += [Result(system, name, value + place, SIGNATURE, unit="nat") for name, value in levels.items()]
        for row, method in enumerate(METHODS):
            for column, size in reversed(list(enumerate(SIZES))):
                value = 10.0 * row + column + place
                ends = {name: value + move for name, move in how.items()}
                results.append(Result(system, f"{method}, {size:,}", value, SIGNATURE, unit="nat", **ends))
    return Table("made up", tuple(results))


def test_each_method_has_its_line_and_each_level_its_name(tmp_path: Path, drawn: list[Any]) -> None:
    figure_6_1.draw(figure_6_1_table(low=-0.5, high=0.75), tmp_path / "figure.png")
    (panels,) = [figure.axes for figure in drawn]
    assert [axes.get_title(loc="left") for axes in panels] == ["palindromes", "HMM, low entropy"]
    for place, axes in enumerate(panels):
        assert tuple(container.get_label() for container in axes.containers) == METHODS
        for row, container in enumerate(axes.containers):
            low = 10 * row + place
            assert points(container) == [(100, low), (3_000, low + 1)]
            assert ends(container, 1) == [(low - 0.5, low + 0.75), (low + 0.5, low + 1.75)]
        lines = {line.get_label(): line.get_ydata()[0] for line in axes.lines}
        levels = {name: value for name, value in lines.items() if not name.startswith("_")}
        assert levels == {"entropy": 1 + place, "MLM on 5,000, E_raw": 2 + place, "MLM on 5,000, E_local": 3 + place}


def test_one_seed_has_no_bars(tmp_path: Path, drawn: list[Any]) -> None:
    figure_6_1.draw(figure_6_1_table(), tmp_path / "figure.png")
    assert ends(drawn[0].axes[0].containers[1], 1) == [(10, 10), (11, 11)]
