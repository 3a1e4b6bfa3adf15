"""Figure 3.1: that hard objectives jump and soft ones do not, against naive decoders that share no code with search."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reproducing import no_progress, read_back
from reproductions import run_reproduction
from reproductions.goyal_2021 import figure_3_1
from reproductions.goyal_2021.figure_3_1 import (
    ALPHAS,
    AWAY,
    BRACKET,
    Panel,
    Sweep,
    Toy,
    beam_panel,
    make_toy,
    sampling_panel,
    sweep,
)

SAMPLING, BEAM = 0, 1
GRID = 81


@pytest.fixture(scope="module")
def toy() -> Toy:
    return make_toy(0)


@pytest.fixture(scope="module")
def swept(toy: Toy) -> list[tuple[Panel, Sweep]]:
    return [(panel, sweep(toy, panel, points=GRID)) for panel in (sampling_panel(), beam_panel())]


# ------------------------------------------------------------------ naive decoders: whole prefixes, no search loop


def last_scores(toy: Toy, embeddings: list[Tensor]) -> Tensor:
    """Scores after the first input and these embeddings, from one pass over all of them."""
    inputs_1TD = torch.stack([toy.model.first_input_D, *embeddings])[None]
    return toy.model.head(toy.model.forced(toy.model.encode(toy.batch), inputs_1TD))[0, -1]


def naive_cross_entropy(toy: Toy, alpha: float) -> float:
    """Greedy decoding by an argmax (alpha infinite) or a mixture of embeddings."""
    fed: list[Tensor] = []
    losses = []
    for target in toy.batch.targets_BT[0].tolist():
        scores = last_scores(toy, fed)
        losses.append(-math.log(float(scores.exp()[target] / scores.exp().sum())))
        weights = (alpha * scores).exp() / (alpha * scores).exp().sum() if alpha < math.inf else scores == scores.max()
        fed.append(weights.double() @ toy.model.embedding_VD)
    return sum(losses) / len(losses)


def naive_beam(toy: Toy, k: int) -> tuple[int, ...]:
    """The best of the k best prefixes, every prefix scored from the start."""
    beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in toy.batch.targets_BT[0]:
        longer = []
        for score, prefix in beam:
            scores = last_scores(toy, [toy.model.embedding_VD[token] for token in prefix])
            log_probs = (scores.exp() / scores.exp().sum()).log().tolist()
            longer += [(score + log_prob, (*prefix, token)) for token, log_prob in enumerate(log_probs)]
        beam = sorted(longer, reverse=True)[:k]
    return beam[0][1]


@pytest.mark.thorough
@pytest.mark.parametrize("theta", [-2.9, -1.3, -0.4, 0.8, 1.3, 2.5])
def test_curves_are_what_naive_decoders_give(toy: Toy, theta: float) -> None:
    sampling, beam = sampling_panel(), beam_panel()
    toy.at(theta)
    assert sampling.curves["hard"](toy) == pytest.approx(naive_cross_entropy(toy, math.inf), abs=1e-12)
    for alpha in (1.0, 3.0, 10.0):
        assert sampling.curves[f"alpha = {alpha:g}"](toy) == pytest.approx(naive_cross_entropy(toy, alpha), abs=1e-12)
    best, gold = naive_beam(toy, 2), toy.batch.targets_BT[0].tolist()
    assert beam.curves["hard"](toy) == sum(token != target for token, target in zip(best, gold, strict=True))
    assert list(beam.words(toy)) == toy.words.decode(list(best))


@pytest.mark.thorough
def test_the_beam_is_not_greedy(toy: Toy, swept: list[tuple[Panel, Sweep]]) -> None:
    (_, sampling), (panel, beam) = swept
    for greedy_jump, beam_jump in zip(sampling.jumps, beam.jumps, strict=True):
        toy.at((greedy_jump + beam_jump) / 2)
        assert naive_beam(toy, 1) != naive_beam(toy, 2) == tuple(toy.words.encode(panel.words(toy)))
        gold = toy.batch.targets_BT[0].tolist()
        wrong = sum(token != target for token, target in zip(naive_beam(toy, 2), gold, strict=True))
        assert panel.curves["hard"](toy) == wrong


# ------------------------------------------------------------------ continuity


def largest_step(values: list[float]) -> float:
    """The largest change between neighbours."""
    return max(abs(after - before) for before, after in itertools.pairwise(values))


@pytest.mark.thorough
@pytest.mark.parametrize("which", [SAMPLING, BEAM])
def test_jumps_stay_on_a_finer_grid_and_soft_steps_shrink(
    toy: Toy, swept: list[tuple[Panel, Sweep]], which: int
) -> None:
    panel, found = swept[which]
    assert len(found.jumps) == 2
    for jump, (name, objective) in itertools.product(found.jumps, panel.curves.items()):
        # A soft curve is steeper the larger its alpha, and needs the finer grid to be seen to be continuous.
        alpha = float(name.rpartition("= ")[2]) if "alpha" in name else 1.0
        spacing = 0.0001 / alpha
        fine = [objective(toy.at(jump + spacing * (point - 30.5))) for point in range(61)]
        if name == "hard":
            assert largest_step(fine) > 0.9 * largest_step(fine[::4]) > 0.4
        else:
            assert 0 < largest_step(fine) < 0.3 * largest_step(fine[::4])


@pytest.mark.thorough
@pytest.mark.parametrize("which", [SAMPLING, BEAM])
def test_only_the_hard_curve_moves_across_a_jump(swept: list[tuple[Panel, Sweep]], which: int) -> None:
    _, found = swept[which]
    assert all(0 < high - low <= BRACKET for low, high in found.switches)
    for name, changes in found.across.items():
        if name == "hard":
            assert sum(change > 0.4 for change in changes) == len(found.jumps) == 2
        else:
            assert max(changes) < 1e-5


@pytest.mark.thorough
@pytest.mark.parametrize("which", [SAMPLING, BEAM])
def test_soft_curves_approach_the_hard_one(swept: list[tuple[Panel, Sweep]], which: int) -> None:
    _, found = swept[which]
    distances = [found.distance(name) for name in found.values if "alpha" in name]
    assert len(distances) == len(ALPHAS)
    assert all(later < earlier for earlier, later in itertools.pairwise(distances))
    assert distances[0] > 0.5 and distances[-1] < 1e-3
    # Most points are away from the switches, so the distance is not that of a remainder.
    away = [theta for theta in found.thetas if all(abs(theta - low) >= AWAY for low, _ in found.switches)]
    assert len(away) > 0.5 * GRID


@pytest.mark.thorough
def test_gold_fed_is_teacher_forcing_and_continuous(toy: Toy, swept: list[tuple[Panel, Sweep]]) -> None:
    _, found = swept[SAMPLING]
    targets_BT = toy.batch.targets_BT
    for theta, value in list(zip(found.thetas, found.values["gold fed"], strict=True))[::10]:
        toy.at(theta)
        logits_TV = toy.model.head(toy.model.teacher_forced(toy.model.encode(toy.batch), targets_BT))[0]
        gold = torch.nn.functional.cross_entropy(logits_TV, targets_BT[0])
        assert value == pytest.approx(gold.item(), abs=1e-12)
    assert found.largest_step("gold fed") < 0.05


# ------------------------------------------------------------------ the parts


@pytest.mark.thorough
def test_one_parameter_moves_and_is_put_back(toy: Toy) -> None:
    before = {name: weight.clone() for name, weight in toy.model.state_dict().items()}
    panel = replace(sampling_panel(), curves={"hard": lambda toy: 0.0})
    sweep(toy, panel, points=9)
    assert all(torch.equal(weight, before[name]) for name, weight in toy.model.state_dict().items())
    toy.at(7.0)
    changed = {name: int((weight != before[name]).sum()) for name, weight in toy.model.state_dict().items()}
    assert {name: count for name, count in changed.items() if count} == {"encoder.embedding.weight": 1}


@pytest.mark.thorough
def test_every_switch_within_a_cell_is_found(toy: Toy) -> None:
    places = (-2.0, 0.5, 0.5001, 2.25)

    def theta(toy: Toy) -> float:
        return toy.model.encoder.embedding.weight[toy.moved, 0].item()

    def count(toy: Toy) -> int:
        return sum(theta(toy) > place for place in places)

    panel = Panel("steps", "", "", "", count, lambda toy: [], {"hard": lambda toy: float(count(toy))})
    found = sweep(toy, panel, points=2)
    assert [high for _, high in found.switches] == pytest.approx(places, abs=2 * BRACKET)
    assert found.across["hard"] == [1.0] * 4
    assert found.jumps == [high for _, high in found.switches]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 3])
def test_the_order_of_animals_does_not_depend_on_the_seed(seed: int) -> None:
    toy = make_toy(seed)
    for panel in (sampling_panel(), beam_panel()):
        assert [panel.words(toy.at(theta))[1] for theta in (-2.0, 0.0, 2.0)] == ["kitten", "dog", "cat"]


@pytest.mark.thorough
def test_the_reproduction_writes_its_figure_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_3_1, "POINTS", 41)
    (outcome,) = run_reproduction("figure-3.1", tmp_path, seed=0, scale=None, progress=no_progress)
    figure = outcome.files["figure"].read_bytes()
    assert outcome.files["figure"].name == "figure-3.1.png"
    assert figure.startswith(b"\x89PNG") and 10_000 < len(figure) < 150_000
    read_back(outcome, tmp_path)
    values = {(result.system, result.measure): result.value for result in outcome.table.results}
    jumps = {system: value for (system, measure), value in values.items() if measure == "jumps"}
    assert len(jumps) == 2 * (1 + len(ALPHAS)) + 1
    assert {system: value for system, value in jumps.items() if value} == {
        "scheduled sampling, hard": 2,
        "beam, hard": 2,
    }
    assert values["beam, hard", "largest change within 1e-9"] == 3
    assert values["beam, alpha = 100", "largest distance to hard"] < 1e-3
    assert ("scheduled sampling, gold fed", "largest distance to hard") not in values
    assert "2 jumps of up to 3 words" in outcome.lesson
