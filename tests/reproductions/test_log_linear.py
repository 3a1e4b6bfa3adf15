"""The hashed log-linear language model: scores by hand, exact gradients, what a step touches, what it learns."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reproductions.andreas_klein_2015.log_linear import LogLinear, held_out
from reproductions.andreas_klein_2015.log_linear_training import (
    Normalization,
    adagrad_state,
    adagrad_step,
    exact_normalization,
    penalized_normalization,
    sampled_normalization,
)
from reproductions.andreas_klein_2015.streams import Positions, gather_positions
from seqwise.errors import InputError

TEMPLATES = ((1,), (1, 2), (3, 1), (2,))
REPOSITORY = Path(__file__).resolve().parents[2]
EXACT = {"atol": 1e-12, "rtol": 1e-12}
NORMALIZATIONS = {
    "cross-entropy": exact_normalization(),
    "gamma 1": sampled_normalization(0.7, fraction=1.0),
    "gamma 0.3": sampled_normalization(0.7, fraction=0.3),
    "gamma 0": sampled_normalization(0.7, fraction=0.0),
    "penalized": penalized_normalization(0.4),
    "penalized, gamma 0.3": penalized_normalization(0.4, fraction=0.3),
}


def a_model(seed: int = 0, *, size: int = 7, num_weights: int = 40, templates=TEMPLATES) -> LogLinear:
    """In float64, with weights that are not 0; small, so that windows overlap."""
    model = LogLinear(vocabulary_size=size, num_weights=num_weights, templates=templates).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.weights_M += torch.randn(len(model.weights_M), generator=generator, dtype=torch.float64)
    return model


def some_positions(count: int = 10, *, seed: int = 0, size: int = 7, context_size: int = 3) -> Positions:
    generator = torch.Generator().manual_seed(seed + 100)
    contexts_NC = torch.randint(-1, size, (count, context_size), generator=generator)
    return Positions(contexts_NC, torch.randint(0, size, (count,), generator=generator))


def all_scores(model: LogLinear, contexts_NC: Tensor) -> Tensor:
    """The scores of all words, (N, V), with a gradient, which is dense."""
    words_V = torch.arange(model.vocabulary_size)
    return model.weights_M[model.offsets(contexts_NC)[..., None] + words_V].sum(dim=1)


# ---- By hand: unsigned arithmetic of Python's own, one number at a time --------------------------------------------

WORD = 2**64


def splitmix64(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) % WORD
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ state >> 27) * 0x94D049BB133111EB % WORD
    return state ^ state >> 31


def windows_by_hand(model: LogLinear, context: Sequence[int]) -> list[int]:
    starts = [model.num_weights]
    for template in model.templates:
        key = 0
        for distance in template:
            key = splitmix64((key + distance * 2**40 + context[distance - 1]) % WORD)
        starts.append((key >> 1) % (model.num_weights - model.vocabulary_size + 1))
    return starts


def scores_by_hand(model: LogLinear, contexts_NC: Tensor) -> list[list[float]]:
    table = model.weights_M.tolist()
    return [
        [sum(table[start + word] for start in windows_by_hand(model, context)) for word in range(model.vocabulary_size)]
        for context in contexts_NC.tolist()
    ]


def loss_by_hand(table_M: Tensor, model: LogLinear, positions: Positions, chosen: Sequence[int], penalty) -> Tensor:
    """Through autograd and an index for every word of every feature, with none of the model's own arithmetic."""
    words = range(model.vocabulary_size)
    rows = [
        torch.stack([table_M[[start + word for start in windows_by_hand(model, context)]].sum() for word in words])
        for context in positions.contexts_NC.tolist()
    ]
    gold = [row[word] for row, word in zip(rows, positions.words_N.tolist(), strict=True)]
    loss = -torch.stack(gold).mean()
    if chosen:
        loss = loss + sum(penalty(torch.log(rows[h].exp().sum())) for h in chosen) / len(chosen)
    return loss


def test_splitmix64_is_the_published_one() -> None:
    """First outputs from seed 1234567, as its reference implementation prints them."""
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) % WORD
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


# ---- Scores ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("templates", [TEMPLATES, (), ((2,),), ((1, 2, 3), (3, 2, 1, 4))])
def test_windows_and_scores_equal_those_by_hand(templates) -> None:
    for seed in range(5):
        model = a_model(seed, templates=templates)
        positions = some_positions(seed=seed, context_size=4)
        assert model.context_size == max((max(template) for template in templates), default=0)
        expected = [windows_by_hand(model, context) for context in positions.contexts_NC.tolist()]
        assert model.offsets(positions.contexts_NC).tolist() == expected
        expected_NV = torch.tensor(scores_by_hand(model, positions.contexts_NC), dtype=torch.float64)
        torch.testing.assert_close(all_scores(model, positions.contexts_NC), expected_NV, **EXACT)


def test_scoring_one_word_equals_scoring_all() -> None:
    """The two paths share the hash, not the way in which they read the table."""
    for seed in range(20):
        model, positions = a_model(seed), some_positions(seed=seed)
        scores_NV = all_scores(model, positions.contexts_NC)
        for word in range(model.vocabulary_size):
            words_N = torch.full_like(positions.words_N, word)
            torch.testing.assert_close(model.word_scores(positions.contexts_NC, words_N), scores_NV[:, word], **EXACT)
        for block_size in (1, 3, 64):
            log_partitions_N = model.log_partitions(positions.contexts_NC, block_size=block_size)
            torch.testing.assert_close(log_partitions_N, scores_NV.exp().sum(-1).log(), **EXACT)


def test_an_untrained_model_is_normalized_and_uniform() -> None:
    model = LogLinear(vocabulary_size=50, num_weights=500).double()
    positions = some_positions(size=50)
    assert model.log_partitions(positions.contexts_NC).abs().max() < 1e-6  # the bias was rounded to float32
    assert held_out(model, [positions]).perplexity == pytest.approx(50.0, abs=1e-9)
    assert len(model.log_partitions(positions.contexts_NC[:0])) == 0


def test_windows_are_spread_evenly() -> None:
    """Chi-squared of 20,000 features over 100 bins of the table: within 4.5 standard deviations of its mean, 99."""
    model = LogLinear(vocabulary_size=200, num_weights=100 * 64 + 199, templates=((1, 2),))
    pairs = torch.cartesian_prod(torch.arange(200), torch.arange(100))
    counts = torch.bincount(model.offsets(pairs)[:, 1] // 64, minlength=100).double()
    assert len(counts) == 100
    assert abs(((counts - 200) ** 2 / 200).sum() - 99) < 4.5 * math.sqrt(2 * 99)


def test_features_differ_by_distance_and_order() -> None:
    """Of one context with the same word everywhere, and of swapped words, each template has another window."""
    model = LogLinear(vocabulary_size=9, num_weights=2**22, templates=((1,), (2,), (1, 2), (2, 3)))
    same, swapped = model.offsets(torch.tensor([[5, 5, 5], [4, 6, 1]])), model.offsets(torch.tensor([[6, 4, 1]]))
    assert len(set(same[0].tolist())) == 5
    assert same[1, 3] != swapped[0, 3]
    assert model.offsets(torch.tensor([[5, -1, -1]]))[0, 2] != model.offsets(torch.tensor([[5, 0, 0]]))[0, 2]


# ---- The loss -------------------------------------------------------------------------------------------------------


def language_model_loss(
    model: LogLinear, positions: Positions, normalization: Normalization, *, generator: torch.Generator | None = None
) -> Tensor:
    """``- mean_n f(x_n, y_n) + mean_{h in H} penalty(log Z_h)``, with a dense gradient."""
    chosen_H = normalization.draw(len(positions.words_N), generator)
    loss = -model.word_scores(*positions).mean()
    if len(chosen_H) == 0:
        return loss
    return loss + normalization.penalty(all_scores(model, positions.contexts_NC[chosen_H]).logsumexp(dim=-1)).mean()


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_loss_and_dense_gradient_equal_those_by_hand(name: str) -> None:
    normalization = NORMALIZATIONS[name]
    for seed in range(4):
        model, positions = a_model(seed), some_positions(seed=seed)
        chosen = normalization.draw(10, torch.Generator().manual_seed(seed)).tolist()
        assert (
            len(set(chosen)) == len(chosen) == {"gamma 0.3": 3, "gamma 0": 0, "penalized, gamma 0.3": 3}.get(name, 10)
        )
        table_M = model.weights_M.detach().clone().requires_grad_()
        expected = loss_by_hand(table_M, model, positions, chosen, normalization.penalty)
        expected.backward()
        loss = language_model_loss(model, positions, normalization, generator=torch.Generator().manual_seed(seed))
        loss.backward()
        torch.testing.assert_close(loss, expected, **EXACT)
        torch.testing.assert_close(model.weights_M.grad, table_M.grad, **EXACT)


def test_cross_entropy_is_cross_entropy() -> None:
    model, positions = a_model(), some_positions()
    expected = torch.nn.functional.cross_entropy(all_scores(model, positions.contexts_NC), positions.words_N)
    torch.testing.assert_close(language_model_loss(model, positions, exact_normalization()), expected, **EXACT)


def test_the_penalized_loss_is_devlins() -> None:
    """Cross-entropy plus alpha (log Z)^2, and where log Z is free its optimum has log Z = 0."""
    model, positions = a_model(), some_positions()
    scores_NV = all_scores(model, positions.contexts_NC)
    expected = torch.nn.functional.cross_entropy(scores_NV, positions.words_N)
    expected = expected + 0.4 * scores_NV.logsumexp(-1).square().mean()
    torch.testing.assert_close(language_model_loss(model, positions, NORMALIZATIONS["penalized"]), expected, **EXACT)


class Fixed(Normalization):
    """One with a given H."""

    def __init__(self, chosen: Sequence[int], penalty) -> None:
        super().__init__(1.0, penalty)
        object.__setattr__(self, "chosen", torch.tensor(chosen))

    def draw(self, num_positions: int, generator: torch.Generator | None = None) -> Tensor:
        return self.chosen


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.55])
def test_the_mean_over_all_draws_is_the_loss_at_gamma_1(fraction: float) -> None:
    """Every H of size ceil(gamma n) of 6 positions: mean of losses and of gradients. And draws have that size."""
    model, positions = a_model(), some_positions(6)
    sampled, full = sampled_normalization(0.7, fraction=fraction), sampled_normalization(0.7, fraction=1.0)
    subsets = list(itertools.combinations(range(6), math.ceil(fraction * 6)))

    def loss_and_gradient(normalization: Normalization) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        loss = language_model_loss(model, positions, normalization)
        loss.backward()
        return loss.detach(), model.weights_M.grad.clone()

    found = [loss_and_gradient(Fixed(subset, sampled.penalty)) for subset in subsets]
    expected_loss, expected_gradient_M = loss_and_gradient(full)
    torch.testing.assert_close(torch.stack([loss for loss, _ in found]).mean(), expected_loss, **EXACT)
    torch.testing.assert_close(torch.stack([g for _, g in found]).mean(0), expected_gradient_M, **EXACT)


def test_every_subset_is_drawn_as_often() -> None:
    """H of 2 of 4 positions: 6 subsets, chi-squared of 3,000 draws below its 0.999 quantile."""
    normalization, generator = sampled_normalization(1.0, fraction=0.5), torch.Generator().manual_seed(1)
    counts = dict.fromkeys(itertools.combinations(range(4), 2), 0)
    for _ in range(3000):
        counts[tuple(sorted(normalization.draw(4, generator).tolist()))] += 1
    assert len(counts) == 6
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 20.5


@pytest.mark.parametrize(("fraction", "count", "size"), [(0.07, 100, 7), (0.1, 128, 13), (1e-4, 10, 1), (0, 10, 0)])
def test_how_many_are_drawn(fraction: float, count: int, size: int) -> None:
    assert len(sampled_normalization(1.0, fraction=fraction).draw(count)) == size


@pytest.mark.parametrize("alpha", [0.25, 1.0, 2.0])
def test_at_the_optimum_log_z_is_1_over_2_alpha(alpha: float) -> None:
    """The bias alone, fitted to convergence: log Z is one number, and the probabilities are those of the text."""
    model = LogLinear(vocabulary_size=3, num_weights=3, templates=()).double()
    positions = gather_positions([[0, 0, 0, 1, 1, 2]], context_size=0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-16)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = language_model_loss(model, positions, sampled_normalization(alpha, fraction=1.0))
        loss.backward()
        return loss

    optimizer.step(closure)
    scores_V = all_scores(model, positions.contexts_NC[:1])[0].detach()
    assert float(scores_V.logsumexp(-1)) == pytest.approx(1 / (2 * alpha), abs=1e-6)
    torch.testing.assert_close(scores_V.softmax(-1), torch.tensor([3, 2, 1]).double() / 6, atol=1e-6, rtol=0)


# ---- The sparse step ------------------------------------------------------------------------------------------------


@dataclass
class Dense:
    """Adagrad over the whole table, on the gradient of the loss by hand."""

    table_M: Tensor
    squares_M: Tensor

    def step(self, model: LogLinear, positions: Positions, chosen: Sequence[int], penalty, rate: float) -> float:
        table_M = self.table_M.clone().requires_grad_()
        loss = loss_by_hand(table_M, model, positions, chosen, penalty)
        (gradient_M,) = torch.autograd.grad(loss * len(positions.words_N), table_M)
        self.squares_M = self.squares_M + gradient_M**2
        self.table_M = self.table_M - rate * gradient_M / self.squares_M**0.5
        return float(loss.detach())


@pytest.mark.parametrize("name", NORMALIZATIONS)
@pytest.mark.parametrize("num_weights", [12, 60, 400])
def test_the_sparse_step_equals_dense_adagrad(name: str, num_weights: int) -> None:
    """Six steps, at tables where windows overlap a lot, a little, and hardly; in blocks of any size."""
    normalization = NORMALIZATIONS[name]
    model = a_model(3, num_weights=num_weights)
    state = adagrad_state(model, initial=0.5)
    dense = Dense(model.weights_M.detach().clone(), torch.full_like(model.weights_M, 0.5).detach())
    for number in range(6):
        positions = some_positions(8, seed=number)
        chosen = normalization.draw(8, torch.Generator().manual_seed(number)).tolist()
        expected = dense.step(model, positions, chosen, normalization.penalty, 0.3)
        loss = adagrad_step(
            model,
            state,
            positions,
            normalization,
            learning_rate=0.3,
            generator=torch.Generator().manual_seed(number),
            block_size=number + 1,
        )
        assert loss == pytest.approx(expected, abs=1e-12)
        torch.testing.assert_close(model.weights_M.detach(), dense.table_M, **EXACT)
        torch.testing.assert_close(state.squares_M, dense.squares_M, **EXACT)
        assert not state.gradient_M.any()


def test_long_stretches_are_updated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stretch longer than what is worked on at a time gives the same."""
    results = []
    for length in (2**15, 5):
        monkeypatch.setattr("reproductions.andreas_klein_2015.log_linear_training._STRETCH", length)
        model = a_model(1)
        adagrad_step(model, adagrad_state(model), some_positions(), NORMALIZATIONS["gamma 1"], learning_rate=0.3)
        results.append(model.weights_M.detach())
    assert torch.equal(*results)


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_a_step_reads_and_writes_only_what_it_concerns(name: str) -> None:
    """All else is made NaN: none spreads, none is overwritten, not even with what was there. Outside H: J weights.

    A step leaves zeros in the table of gradients wherever it has been; a NaN there says that it has not.
    """
    model = a_model(size=11, num_weights=5000)
    positions, chosen = some_positions(6, size=11), [1, 4] if "gamma 0.3" in name else None
    normalization = NORMALIZATIONS[name]
    if chosen is None:
        chosen = [] if name == "gamma 0" else list(range(6))
    else:
        normalization = Fixed(chosen, normalization.penalty)
    used = torch.zeros(len(model.weights_M), dtype=torch.bool)
    for place, (context, word) in enumerate(zip(*(part.tolist() for part in positions), strict=True)):
        for start in windows_by_hand(model, context):
            used[start + word] = True
            if place in chosen:
                used[start : start + 11] = True
    expected_M = model.weights_M.detach().clone()
    adagrad_step(model, adagrad_state(model), positions, normalization, learning_rate=0.3)
    expected_M[used] = model.weights_M.detach()[used]

    model = a_model(size=11, num_weights=5000)
    state = adagrad_state(model)
    with torch.no_grad():
        model.weights_M[~used] = math.nan
    state.squares_M[~used] = math.nan
    state.gradient_M[~used] = math.nan
    before_M = model.weights_M.detach().clone()
    loss = adagrad_step(model, state, positions, normalization, learning_rate=0.3)
    assert math.isfinite(loss)
    after_M = model.weights_M.detach()
    for table_M in (after_M, state.squares_M, state.gradient_M):
        assert torch.equal(table_M.isnan(), ~used)
    assert not state.gradient_M[used].any()
    assert torch.equal(after_M[used], expected_M[used])
    moved = used & (after_M != before_M)
    assert moved.sum() == used.sum()
    if name == "gamma 0":
        assert used.sum() <= 6 * (1 + len(TEMPLATES))


# ---- What it learns -------------------------------------------------------------------------------------------------

SIZE = 30


def a_language(seed: int, count: int = 3000) -> Positions:
    """Each word is followed by one of two others, by 0.9 and 0.1: entropy 0.325 nats, whatever the unigrams say."""
    generator = torch.Generator().manual_seed(seed)
    rare = torch.rand(count, generator=generator).lt(0.1).tolist()
    words = [0]
    for odd in rare:
        words.append((words[-1] * 7 + (11 if odd else 3)) % SIZE)
    return gather_positions([words[i : i + 20] for i in range(0, count, 20)], context_size=2)


def trained(normalization: Normalization, *, epochs: int = 3, rate: float = 0.5) -> LogLinear:
    model = LogLinear(vocabulary_size=SIZE, num_weights=2**14, templates=((1,), (1, 2)))
    state, generator = adagrad_state(model), torch.Generator().manual_seed(0)
    positions = a_language(1)
    for _ in range(epochs):
        for contexts_NC, words_N in zip(*(part.split(50) for part in positions), strict=True):
            batch = Positions(contexts_NC, words_N)
            adagrad_step(model, state, batch, normalization, learning_rate=rate, generator=generator)
    return model


def unigram_perplexity(training: Positions, test: Positions) -> float:
    counts_V = torch.bincount(training.words_N, minlength=SIZE) + 1.0
    return float((counts_V / counts_V.sum()).log()[test.words_N].mean().neg().exp())


@pytest.mark.thorough
def test_a_small_language_is_learnt_and_normalized() -> None:
    """Perplexity far below the unigrams', near that of the language; log Z near its optimum, unless gamma is 0."""
    test = a_language(2, 1000)
    unigram = unigram_perplexity(a_language(1), test)
    exact = held_out(trained(exact_normalization()), [test])
    found = {
        fraction: held_out(trained(sampled_normalization(2.0, fraction=fraction)), [test]) for fraction in (1, 0.1, 0)
    }
    assert exact.perplexity < 0.2 * unigram
    for fraction in (1, 0.1):
        assert found[fraction].perplexity < 0.25 * unigram
        assert found[fraction].mean == pytest.approx(1 / 4, abs=0.15)
        assert found[fraction].deviation < 0.3
    assert found[0].risk > 5 > 10 * found[0.1].risk


def test_risk_falls_while_log_z_is_penalized() -> None:
    """Of a model that is not normalised at all, epoch by epoch, with a tenth of the positions."""
    model, test = trained(sampled_normalization(1.0, fraction=0.0)), a_language(2, 1000)
    state, generator = adagrad_state(model), torch.Generator().manual_seed(0)
    risks = [held_out(model, [test]).risk]
    for seed in range(3, 7):
        for contexts_NC, words_N in zip(*(part.split(50) for part in a_language(seed)), strict=True):
            adagrad_step(
                model,
                state,
                Positions(contexts_NC, words_N),
                sampled_normalization(1.0, fraction=0.1),
                learning_rate=1.0,
                generator=generator,
            )
        risks.append(held_out(model, [test]).risk)
    assert risks[0] > 10
    assert risks == sorted(risks, reverse=True)
    assert risks[-1] < 0.5 * risks[0], risks


# ---- Measures, files ------------------------------------------------------------------------------------


def test_held_out_measures_by_hand() -> None:
    """With log Z of both signs, so that the mean of |log Z| is not |mean log Z|."""
    model, positions = a_model(4), some_positions(9)
    with torch.no_grad():
        model.weights_M[model.num_weights :] -= float(model.log_partitions(positions.contexts_NC).mean()) - 0.1
    rows = scores_by_hand(model, positions.contexts_NC)
    log_z = [math.log(sum(map(math.exp, row))) for row in rows]
    mean = sum(log_z) / 9
    assert min(log_z) < -0.2 < 0.2 < max(log_z) and abs(mean) < 0.5 * sum(map(abs, log_z)) / 9
    loss = mean - sum(row[word] for row, word in zip(rows, positions.words_N.tolist(), strict=True)) / 9
    expected = [9, loss, math.exp(loss), sum(map(abs, log_z)) / 9, mean, sum(abs(z - mean) for z in log_z) / 9]
    for cut in (9, 4):
        batches = [Positions(*parts) for parts in zip(*(part.split(cut) for part in positions), strict=True)]
        assert list(held_out(model, batches, block_size=2)) == pytest.approx(expected, abs=1e-12)


def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    """On a very small synthetic text: a row for each system, a signature, a comparison that follows from the rows."""
    monkeypatch.syspath_prepend(REPOSITORY)
    benchmark = importlib.import_module("benchmarks.sampled_normalizer")
    monkeypatch.delenv("SEQWISE_DATA", raising=False)
    monkeypatch.setattr(benchmark, "SYNTHETIC_TYPES", 200)
    monkeypatch.setattr(benchmark, "SYNTHETIC_WORDS", 3000)
    output = tmp_path / "new" / "result.json"
    sizes = ["--positions", "250", "--rounds", "2", "--batch", "50", "--validation", "10", "--log-weights", "12"]
    benchmark.main([*sizes, "--output", str(output)])
    result = json.loads(output.read_text())
    assert result["text"].startswith("synthetic") and result["vocabulary"] == 202
    assert result["training_positions"] == 250
    assert [row["system"] for row in result["rows"]] == [
        *("gamma = 1", "gamma = 0.1", "gamma = 0.07", "gamma = 0.01", "gamma = 0", "cross-entropy")
    ]
    full, sampled = result["rows"][:2]
    assert result["comparison"]["deviation_difference"] == pytest.approx(sampled["deviation"] - full["deviation"])
    ratios = [a / b for a, b in zip(full["seconds_by_round"], sampled["seconds_by_round"], strict=True)]
    assert result["comparison"]["speedup"] == pytest.approx(sum(ratios) / 2)
    ratios = {row["system"]: row["speedup"] for row in result["rows"]}
    assert ratios["gamma = 1"] == 1 and ratios["gamma = 0.1"] == result["comparison"]["speedup"]
    without = zip(result["rows"][4]["seconds_by_round"], full["seconds_by_round"], strict=True)
    rest = [row / whole for row, whole in without]
    share = 1 - sum(rest) / 2
    assert result["comparison"]["normalizer_share"] == pytest.approx(share)
    # Five of 50 positions are normalised.
    assert result["comparison"]["bound"] == pytest.approx(1 / (0.1 * share + 1 - share))
    assert result["signature"]["method"].startswith("sampled normaliser")
    assert "gamma = 0.1 against 1" in capsys.readouterr().out


def test_a_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model = a_model(6).float()
    model.save_pretrained(tmp_path)
    loaded = LogLinear.from_pretrained(tmp_path)
    assert loaded.templates == model.templates
    positions = some_positions()
    assert torch.equal(all_scores(loaded, positions.contexts_NC), all_scores(model, positions.contexts_NC))
    assert json.loads((tmp_path / "config.json").read_text())["num_weights"] == 40
    assert {path.suffix for path in tmp_path.iterdir()} >= {".safetensors", ".json"}
    assert list(dict(loaded.state_dict())) == ["weights_M"]


def test_a_table_that_holds_no_window_is_refused() -> None:
    with pytest.raises(InputError, match="6 weights cannot hold a window of 7 words"):
        LogLinear(vocabulary_size=7, num_weights=6)
