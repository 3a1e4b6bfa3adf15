"""The explorer's local and global shares against the enumeration of all outputs; its limits; its figure."""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles import Case, Normalized, hard_beam, log_sum_exp, tagger_case, translation_case
from seqwise import InputError
from seqwise.data import collate
from seqwise.evaluation import LabelBias, explore_label_bias
from seqwise.evaluation.label_bias import Prefix, draw_label_bias, fate_of_gold
from seqwise.evaluation.short_names import shorten_distinctly
from seqwise.search import global_, local

CASES = {"tagger": tagger_case, "translation": translation_case}
STEPS = 4


def case_of(kind: str, seed: int) -> Case:
    return CASES[kind](seed, lengths=(STEPS,), target_size=3)


def explored(case: Case, **options: Any) -> LabelBias:
    context = case.model.encode(collate([case.examples[0]]))
    with torch.no_grad():
        return explore_label_bias(case.model, context, num_steps=STEPS, **options)


def outputs(oracle: Any, length: int) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """All outputs cut after so many tokens, with raw score and log-probability; each walked from the root."""
    tokens = range(len(oracle.embeddings))
    seen = set()
    for output in itertools.product(tokens, repeat=length):
        if oracle.end in output:
            output = output[: output.index(oracle.end) + 1]
        if output in seen:
            continue
        seen.add(output)
        fed, state = oracle.start()
        raw = log_prob = 0.0
        for step, token in enumerate(output):
            logits, state = oracle.step(fed, state, step)
            raw, log_prob = raw + logits[token], log_prob + logits[token] - log_sum_exp(logits)
            fed = oracle.embeddings[token]
        yield output, raw, log_prob


def shares(oracle: Any, length: int, *, place: int) -> dict[tuple[int, ...], float]:
    """Of every prefix its share of all outputs cut after so many tokens, by raw scores (1) or log-probabilities (2)."""
    listed = list(outputs(oracle, length))
    total = math.fsum(math.exp(row[place]) for row in listed)
    below: dict[tuple[int, ...], float] = defaultdict(float)
    for row in listed:
        for cut in range(len(row[0]) + 1):
            below[row[0][:cut]] += math.exp(row[place]) / total
    return below


def growth_of(prefix: Prefix) -> float:
    """The factor of the next step on the global share."""
    return prefix.global_masses[1] / prefix.global_masses[0]


@pytest.mark.parametrize("score", [local, global_], ids=["local", "raw"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", CASES)
def test_shares_equal_enumeration_at_every_step(kind: str, seed: int, score: Any) -> None:
    case = case_of(kind, seed)
    bias = explored(case, k=4, score=score, gold=case.examples[0].target_ids, support=3**STEPS)
    assert bias.exact
    raw = [shares(case.oracles[0], length, place=1) for length in range(STEPS + 1)]
    probabilities = [shares(case.oracles[0], length, place=2) for length in range(STEPS + 1)]
    checked = 0
    for step, prefixes in enumerate(bias.steps):
        for prefix in prefixes:
            expected = [raw[length][prefix.tokens] for length in range(step, STEPS + 1)]
            assert list(prefix.global_masses) == pytest.approx(expected, abs=1e-12)
            # The law of conservation: the local share is the same whenever it is asked for.
            for length in range(step, STEPS + 1):
                assert prefix.local_mass == pytest.approx(probabilities[length][prefix.tokens], abs=1e-12)
            checked += len(expected)
    assert checked > 30
    grown = [growth_of(prefix) for prefixes in bias.steps[1:-1] for prefix in prefixes]
    assert max(abs(math.log(growth)) for growth in grown) > 0.05, "raw mass moves, or nothing is tested"


@pytest.mark.parametrize("kind", CASES)
def test_one_step_multiplies_a_share_by_its_z_over_the_mean_z(kind: str) -> None:
    case = case_of(kind, 5)
    bias = explored(case, k=3**STEPS)
    for prefixes in bias.steps[1:-1]:
        partitions = [math.exp(prefix.log_partition or 0.0) for prefix in prefixes]
        mean = math.fsum(z * prefix.global_masses[0] for z, prefix in zip(partitions, prefixes, strict=True))
        for z, prefix in zip(partitions, prefixes, strict=True):
            assert growth_of(prefix) == pytest.approx(z / mean)


@pytest.mark.parametrize("kind", CASES)
def test_over_a_beam_the_sums_are_over_its_candidates(kind: str) -> None:
    case = case_of(kind, 2)
    bias = explored(case, k=2, support=3)
    assert not bias.exact and bias.support == 3
    end = case.oracles[0].end
    for step, prefixes in enumerate(bias.steps[1:], start=1):
        # Each candidate of a beam of 3 over raw scores is one of a beam so large that it keeps them all.
        slots = hard_beam(case.oracles[0], k=3, num_steps=step - 1, log_partition_weight=0.0)
        kept = {slot.tokens: slot for slot in slots}
        candidates: dict[tuple[int, ...], float] = {}
        for tokens, raw, _ in outputs(case.oracles[0], step):
            padded = (*tokens, *[end] * (step - len(tokens)))
            if padded[:-1] in kept:
                candidates[tokens] = raw
        total = math.fsum(map(math.exp, candidates.values()))
        for prefix in prefixes:
            expected = math.exp(candidates[prefix.tokens]) / total if prefix.tokens in candidates else 0.0
            assert prefix.global_masses[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", CASES)
def test_where_every_z_is_1_global_and_local_shares_agree(kind: str) -> None:
    case = case_of(kind, 4)
    context = case.model.encode(collate([case.examples[0]]))
    bias = explore_label_bias(Normalized(case.model, 0.0), context, num_steps=STEPS, k=5)
    for prefix in itertools.chain(*bias.steps):
        assert list(prefix.global_masses) == pytest.approx([prefix.local_mass] * len(prefix.global_masses))


def test_a_constant_changes_no_share_where_lengths_are_fixed_and_favours_length_where_not() -> None:
    case = case_of("tagger", 4)
    context = case.model.encode(collate([case.examples[0]]))
    for prefix in itertools.chain(
        *explore_label_bias(Normalized(case.model, 7.0), context, num_steps=STEPS, k=5).steps
    ):
        assert list(prefix.global_masses) == pytest.approx([prefix.local_mass] * len(prefix.global_masses))
    case = case_of("translation", 4)
    context = case.model.encode(collate([case.examples[0]]))
    bias = explore_label_bias(Normalized(case.model, 7.0), context, num_steps=STEPS, k=27)
    end = case.model.end
    ended = [prefix for prefix in bias.steps[1] if prefix.tokens == (end,)]
    assert ended and ended[0].global_masses[-1] < 1e-6 < ended[0].local_mass


def gold_at_the_bottom(case: Case, k: int) -> tuple[int, ...]:
    """An output that a local beam of k does not find."""
    kept = {hypothesis.tokens for hypothesis in hard_beam(case.oracles[0], k=k, num_steps=STEPS)}
    return next(output for output, *_ in outputs(case.oracles[0], STEPS) if output not in kept)


def test_gold_is_shown_where_it_has_fallen_off_the_beam() -> None:
    case = case_of("tagger", 0)
    gold = gold_at_the_bottom(case, 2)
    bias = explored(case, k=2, gold=gold)
    for step, prefixes in enumerate(bias.steps):
        golden = [prefix for prefix in prefixes if prefix.is_gold]
        assert [prefix.tokens for prefix in golden] == [gold[:step]]
        assert sum(prefix.on_beam for prefix in prefixes) == len(prefixes) - (not golden[0].on_beam)
    assert not bias.steps[-1][-1].on_beam
    assert fate_of_gold(bias).startswith("gold falls off the beam at step ")
    best = hard_beam(case.oracles[0], k=2, num_steps=STEPS)[0]
    stays = explored(case, k=2, gold=best.tokens)
    assert fate_of_gold(stays) == (
        f"gold stays on the beam, at the end with {100 * math.exp(best.score):.1f}% of the local mass"
    )
    assert fate_of_gold(explored(case, k=2)) == "there is no gold output to follow"


def fallen(*in_the_end: float, exact: bool = False) -> LabelBias:
    """Gold falls off at step 2 of 3, and each number is another; of gold and of the last that was kept, in the end."""

    def prefix(tokens: tuple[int, ...], mass: float, *shares: float, gold: bool = False, kept: bool = True) -> Prefix:
        return Prefix(tokens, math.log(mass), 0.0, None, shares, gold, kept)

    gold, other = in_the_end
    steps = (
        (prefix((), 1.0, 1.0, 1.0, 1.0, 1.0, gold=True),),
        (prefix((1,), 0.5, 0.41, 0.42, 0.43), prefix((0,), 0.3, 0.31, 0.32, 0.33, gold=True)),
        (
            prefix((1, 1), 0.28, 0.27, 0.26),
            prefix((1, 0), 0.2, 0.22, other),
            prefix((0, 1), 0.11, 0.12, gold, gold=True, kept=False),
        ),
        (prefix((1, 1, 1), 0.1, 0.09), prefix((0, 1, 1), 0.05, gold, gold=True, kept=False)),
    )
    return LabelBias(steps, exact, 3)


def test_the_fate_of_gold_to_the_letter() -> None:
    assert fate_of_gold(fallen(0.14, 0.23)) == (
        "gold falls off the beam at step 2, with 11.0% of the local mass, which no later step changes; by raw scores, "
        "it has 12.0% at that step and 14.0% at the end (the last prefix kept: 22.0% and 23.0%)"
    )
    assert "12.0% at that step and <0.1% at the end (" in fate_of_gold(fallen(0.0002, 0.23))
    # Exact or not: a share of 0 is what is left, or not known.
    assert "12.0% at that step and 0% at the end (" in fate_of_gold(fallen(0.0, 0.23, exact=True))
    unknown = fate_of_gold(fallen(0.0, 0.23))
    assert "12.0% at that step and an unknown share at the end (the last prefix kept: 22.0% and 23.0%)" in unknown
    assert unknown.endswith("; the share of a prefix that the raw-score beam has dropped is not known")
    other = fate_of_gold(fallen(0.14, 0.0))
    assert "14.0% at the end (the last prefix kept: 22.0% and an unknown share)" in other and "dropped" in other
    assert "dropped" not in fate_of_gold(fallen(0.14, 0.23))


def test_a_small_mass_of_gold_is_not_printed_as_zero() -> None:
    last = Prefix((0,), math.log(0.0001), 0.0, None, (0.5,), is_gold=True, on_beam=True)
    assert fate_of_gold(LabelBias(((), (last,)), True, 3)) == (
        "gold stays on the beam, at the end with <0.1% of the local mass"
    )
    assert fate_of_gold(LabelBias(((), (replace(last, log_prob=math.log(0.004)),)), True, 3)).endswith(
        "with 0.4% of the local mass"
    )


def test_what_cannot_be_explored_is_refused() -> None:
    case = tagger_case(0)
    context = case.model.encode(case.batch)
    with pytest.raises(InputError, match="one input at a time"):
        explore_label_bias(case.model, context, num_steps=2, k=2)
    for options in ({"k": 0}, {"k": 2, "support": 0}):
        with pytest.raises(InputError, match="at least 1, got 0"):
            explored(case_of("tagger", 0), **options)


@pytest.mark.parametrize("kind", CASES)
def test_the_figure_is_drawn(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    case = case_of(kind, 1)
    bias = explored(case, k=3, gold=case.examples[0].target_ids)
    path = tmp_path / "new folder" / "beam.png"
    draw_label_bias(bias, path, target_name=str, step_names=["a", "b"], title="$ < [x]")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_panels_draw_local_mass_above_and_the_share_after_the_next_step_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import colors, pyplot

    figures: list[Any] = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    bias = fallen(0.14, 0.23)
    draw_label_bias(bias, tmp_path / "beam.png", target_name=str, step_names=["a", "b"])
    (figure,) = figures
    above, below = figure.axes
    prefixes = [(step, row, prefix) for step, some in enumerate(bias.steps) for row, prefix in enumerate(some)]
    for axes, mass in (
        (above, lambda prefix: math.exp(prefix.log_prob)),
        (below, lambda prefix: prefix.global_masses[min(1, len(prefix.global_masses) - 1)]),
    ):
        assert len(axes.collections) == len(prefixes)
        for disc, (step, row, prefix) in zip(axes.collections, prefixes, strict=True):
            assert disc.get_offsets().tolist() == [[step, row]]
            assert disc.get_sizes().tolist() == pytest.approx([12 + 420 * mass(prefix)])
            (edge,) = disc.get_edgecolors().tolist()
            assert colors.to_hex(edge) == ("#0072b2" if prefix.is_gold else "#d55e00")
            assert (len(disc.get_facecolors()) == 1) == prefix.on_beam
    (legend,) = figure.legends
    entries = {text.get_text(): line for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)}
    *kinds, tenth, half = entries.values()
    assert [colors.to_hex(line.get_markeredgecolor()) for line in kinds] == ["#0072b2", "#d55e00", "#0072b2"]
    assert list(entries)[:3] == ["gold", "other prefixes", "gold, no longer on the beam"]
    assert [line.get_markerfacecolor() == "none" for line in kinds] == [False, False, True]
    # A marker's size is a diameter, that of a disc an area.
    assert [line.get_markersize() ** 2 for line in (tenth, half)] == pytest.approx([12 + 42, 12 + 210])


def test_no_two_names_of_the_figure_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    figures: list[Any] = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    bias = explored(case_of("tagger", 1), k=6)

    def long_name(token: int) -> str:
        return f"dr(0,dl(0,lit(np(A,B,C)),lit(s(main))),lit(n{token}))"

    steps = [f"incomprehensibility-{number}" for number in range(STEPS)]
    draw_label_bias(bias, tmp_path / "beam.png", target_name=long_name, step_names=steps)
    (figure,) = figures
    for axes in figure.axes:
        assert len({text.get_text() for text in axes.texts if text.get_text()}) == 3
        shown = [text for text in (*axes.texts, *axes.get_xticklabels()) if text.get_text()]
        boxes = [text.get_window_extent(figure.canvas.get_renderer()) for text in shown]
        assert len(boxes) > 20
        assert not any(first.overlaps(second) for first, second in itertools.combinations(boxes, 2))


@given(
    names=st.lists(st.text("ab(,…1", max_size=14), max_size=12),
    longest=st.integers(min_value=1, max_value=10),
)
def test_short_forms_of_different_names_are_different(names: list[str], longest: int) -> None:
    short = shorten_distinctly(names, longest=longest)
    assert set(short) == set(names) and len(set(short.values())) == len(set(names))
    for name, form in short.items():
        assert form == name or len(form) <= max(longest, 1 + len(str(len(names)))) < len(name) + 2
        assert form == name or len(name) > longest


def test_a_figure_that_cannot_be_drawn_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bias = explored(case_of("tagger", 1), k=3)

    def draw(name: str) -> None:
        draw_label_bias(bias, tmp_path / name, target_name=str, step_names=[])

    with pytest.raises(InputError, match=r"ends in .png, .pdf or .svg"):
        draw("beam.gif")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'seqwise\[demo\]'"):
        draw("beam.png")
    assert not list(tmp_path.iterdir())


def test_steps_names_beyond_the_beam_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bias = explored(case_of("tagger", 1), k=2)
    names: Sequence[str] = [str(step) for step in range(20)]
    draw_label_bias(bias, tmp_path / "beam.svg", target_name=str, step_names=names)
    assert (tmp_path / "beam.svg").stat().st_size > 1000
