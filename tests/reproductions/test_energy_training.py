"""Exact training of energies: every objective against sums written out one by one, and what they must obey."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reproductions.goyal_2021 import energy_training
from reproductions.goyal_2021.energy_training import (
    Fit,
    enumerated_logits,
    fit_enumerated,
    likelihood_loss,
    local_scores,
    masked_loss,
    projection_loss,
    pseudolikelihood_loss,
    raw_scores,
)
from reproductions.goyal_2021.enumerable import Enumerable, empirical_weights, palindromes
from seqwise.errors import InputError
from seqwise.models import MaskedLSTM

V, T = 3, 3
SEQUENCES = list(itertools.product(range(V), repeat=T))
CONTEXTS = list(itertools.product(range(V), repeat=T - 1))


def random_logits() -> Tensor:
    return torch.randn(T, V ** (T - 1), V, dtype=torch.float64)


def random_weights(count: int = V**T) -> Tensor:
    return torch.rand(count, dtype=torch.float64).softmax(0)


# ------------------------------------------------------------------ sums written out


def score(logits: Tensor, sequence: tuple[int, ...], place: int) -> float:
    """f(y_t, h(y without t)), from a table by context."""
    context = CONTEXTS.index(sequence[:place] + sequence[place + 1 :])
    return logits[place, context, sequence[place]].item()


def free_log_prob(logits: Tensor, sequence: tuple[int, ...], place: int) -> float:
    others = [(*sequence[:place], token, *sequence[place + 1 :]) for token in range(V)]
    return score(logits, sequence, place) - math.log(sum(math.exp(score(logits, one, place)) for one in others))


def raw_energy(logits: Tensor, sequence: tuple[int, ...]) -> float:
    return -sum(score(logits, sequence, place) for place in range(T))


def local_energy(logits: Tensor, sequence: tuple[int, ...]) -> float:
    return -sum(free_log_prob(logits, sequence, place) for place in range(T))


def true_log_prob(energy, logits: Tensor, sequence: tuple[int, ...], place: int) -> float:
    others = [(*sequence[:place], token, *sequence[place + 1 :]) for token in range(V)]
    return -energy(logits, sequence) - math.log(sum(math.exp(-energy(logits, one)) for one in others))


def weighted(weights: Tensor, value) -> float:
    return sum(weight * value(one) for weight, one in zip(weights.tolist(), SEQUENCES, strict=True))


ENERGIES = [(raw_energy, raw_scores), (local_energy, local_scores)]


@pytest.mark.parametrize(("energy", "scores"), ENERGIES)
def test_energies(energy, scores) -> None:
    logits = random_logits()
    np.testing.assert_allclose(scores(logits).numpy(), [-energy(logits, one) for one in SEQUENCES], atol=1e-12)


@pytest.mark.parametrize(("energy", "scores"), ENERGIES)
def test_likelihood_and_pseudolikelihood(energy, scores) -> None:
    logits, weights = random_logits(), random_weights()
    log_partition = math.log(sum(math.exp(-energy(logits, one)) for one in SEQUENCES))
    expected = weighted(weights, lambda one: energy(logits, one) + log_partition)
    assert likelihood_loss(logits, weights, scores=scores).item() == pytest.approx(expected, abs=1e-12)
    expected = -weighted(weights, lambda one: sum(true_log_prob(energy, logits, one, place) for place in range(T)))
    assert pseudolikelihood_loss(logits, weights, scores=scores).item() == pytest.approx(expected, abs=1e-12)


def test_masked_language_modelling_uses_the_free_conditionals() -> None:
    logits, weights = random_logits(), random_weights()
    expected = weighted(weights, lambda one: local_energy(logits, one))
    assert masked_loss(logits, weights).item() == pytest.approx(expected, abs=1e-12)


def test_the_projection_and_its_mixture() -> None:
    teacher, logits, weights = random_logits(), random_logits(), random_weights()

    def divergence(one: tuple[int, ...]) -> float:
        total = 0.0
        for place in range(T):
            for token in range(V):
                other = (*one[:place], token, *one[place + 1 :])
                q = free_log_prob(teacher, other, place)
                total += math.exp(q) * (q - true_log_prob(raw_energy, logits, other, place))
        return total

    expected = weighted(weights, divergence)
    assert projection_loss(teacher)(logits, weights).item() == pytest.approx(expected, abs=1e-12)
    mixed = projection_loss(teacher, pseudolikelihood_weight=0.5)(logits, weights).item()
    assert mixed == pytest.approx(expected + 0.5 * pseudolikelihood_loss(logits, weights).item(), abs=1e-12)


@pytest.mark.parametrize("name", ["LL", "LL local", "PLL", "PLL local", "MLM", "KL", "KL + PLL"])
def test_gradients(name: str) -> None:
    weights, teacher = random_weights(), random_logits()
    losses = {
        "LL": likelihood_loss,
        "LL local": lambda logits, given: likelihood_loss(logits, given, scores=local_scores),
        "PLL": pseudolikelihood_loss,
        "PLL local": lambda logits, given: pseudolikelihood_loss(logits, given, scores=local_scores),
        "MLM": masked_loss,
        "KL": projection_loss(teacher),
        "KL + PLL": projection_loss(teacher, pseudolikelihood_weight=1.0),
    }
    logits = random_logits().requires_grad_()
    assert torch.autograd.gradcheck(lambda given: losses[name](given, weights), logits)


def test_no_gradient_flows_into_the_teacher() -> None:
    teacher, logits = random_logits().requires_grad_(), random_logits().requires_grad_()
    projection_loss(teacher)(logits, random_weights()).backward()
    assert teacher.grad is None and logits.grad is not None


# ------------------------------------------------------------------ what they must obey


def true_parameters(probs: Tensor) -> Tensor:
    """Logits with ``exp(-E_raw) = p``: all of it in the scores of the last position."""
    logits = torch.zeros(T, V ** (T - 1), V, dtype=torch.float64)
    logits[-1] = probs.log().view(-1, V)
    return logits


def true_conditionals(probs: Tensor) -> Tensor:
    """``log p(w | y without t)`` in each context, by dividing sums of probabilities."""
    table = probs.view([V] * T)
    found = [(table / table.sum(place, keepdim=True)).movedim(place, -1).reshape(-1, V) for place in range(T)]
    return torch.stack(found).log()


def test_a_model_whose_parameters_are_the_truth() -> None:
    probs = random_weights()
    entropy = -(probs * probs.log()).sum().item()
    logits, conditionals = true_parameters(probs), true_conditionals(probs)
    assert likelihood_loss(logits, probs).item() == pytest.approx(entropy, abs=1e-12)
    # True conditionals as a teacher are met exactly, whatever the data.
    for weights in (probs, random_weights()):
        assert abs(projection_loss(conditionals)(logits, weights).item()) < 1e-12
    # Pseudolikelihood and MLM have the same optimum: the sum of the conditional entropies.
    best = pseudolikelihood_loss(logits, probs).item()
    assert masked_loss(conditionals, probs).item() == pytest.approx(best, abs=1e-12)
    # And no other model is as good as the truth by any of them.
    other = logits + 0.3 * random_logits()
    assert likelihood_loss(other, probs).item() > entropy + 1e-3
    assert pseudolikelihood_loss(other, probs).item() > best + 1e-3
    assert masked_loss(conditionals + 0.3 * random_logits(), probs).item() > best + 1e-3


def test_what_is_added_in_a_context_changes_the_raw_energy_and_nothing_of_the_mlm() -> None:
    logits, weights = random_logits(), random_weights()
    gauge = torch.randn(T, V ** (T - 1), 1, dtype=torch.float64)
    moved = logits + gauge
    torch.testing.assert_close(local_scores(moved), local_scores(logits), atol=1e-12, rtol=0)
    assert masked_loss(moved, weights).item() == pytest.approx(masked_loss(logits, weights).item(), abs=1e-12)
    assert (raw_scores(moved) - raw_scores(logits)).abs().max() > 0.1
    assert abs(likelihood_loss(moved, weights).item() - likelihood_loss(logits, weights).item()) > 1e-3
    # The same everywhere, it is a constant of the energy, and drops out.
    shifted = logits + torch.randn(T, 1, 1, dtype=torch.float64)
    for loss in (likelihood_loss, pseudolikelihood_loss, masked_loss):
        assert loss(shifted, weights).item() == pytest.approx(loss(logits, weights).item(), abs=1e-12)


def test_conditionals_that_no_distribution_has_are_not_met() -> None:
    """The two tables of the thesis: .99/.01 and .5/.5. Of all distributions on a fine grid, none has divergence 0."""
    teacher = torch.tensor([[[0.99, 0.01], [0.01, 0.99]], [[0.5, 0.5], [0.5, 0.5]]], dtype=torch.float64).log()
    consistent = torch.tensor([[[0.99, 0.01], [0.01, 0.99]], [[0.99, 0.01], [0.01, 0.99]]], dtype=torch.float64).log()
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    grid = torch.linspace(-8, 8, 81, dtype=torch.float64)
    least = {"thesis": math.inf, "consistent": math.inf}
    for corner in grid.tolist():  # by symmetry p(aa) = p(bb) and p(ab) = p(ba) can be taken for granted
        logits = torch.zeros(2, 2, 2, dtype=torch.float64)
        logits[0, 0, 0] = logits[0, 1, 1] = corner
        for name, given in (("thesis", teacher), ("consistent", consistent)):
            least[name] = min(least[name], projection_loss(given)(logits, weights).item())
    assert least["consistent"] < 1e-4 and least["thesis"] > 0.2


# ------------------------------------------------------------------ models


def small_model() -> MaskedLSTM:
    return MaskedLSTM(vocab_size=V, embedding_size=4, hidden_size=5, feedforward_size=6).double()


def test_enumerated_logits_are_masked_logits() -> None:
    model = small_model()
    found = enumerated_logits(model, T)
    assert found.shape == (T, V ** (T - 1), V)
    for sequence in SEQUENCES:
        for place in range(T):
            masked = torch.tensor([[t == place for t in range(T)]])
            expected = model.masked_logits(torch.tensor([sequence]), masked)[0, sequence[place]].item()
            assert score(found, sequence, place) == pytest.approx(expected, abs=1e-12)


def test_gradients_through_the_tree_are_those_of_single_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pairs are taken at once."""
    model, weights_TCV = small_model(), random_logits()
    monkeypatch.setattr(energy_training, "PAIRS_AT_ONCE", 2)
    (weights_TCV * enumerated_logits(model, T)).sum().backward()
    by_tree = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for place, weights_CV in enumerate(weights_TCV):
        contexts = torch.tensor(CONTEXTS)
        tokens_NT = torch.cat([contexts[:, :place], torch.zeros(len(contexts), 1).long(), contexts[:, place:]], dim=1)
        masked_NT = torch.zeros_like(tokens_NT, dtype=torch.bool)
        masked_NT[:, place] = True
        (weights_CV * model.masked_logits(tokens_NT, masked_NT)).sum().backward()
    for one, parameter in zip(by_tree, model.parameters(), strict=True):
        # The tree never shows the mask's embedding to anyone; single passes hide it at the position itself.
        torch.testing.assert_close(one, parameter.grad, atol=1e-11, rtol=0)


def test_refusals() -> None:
    model = small_model()
    weights = random_weights()
    with pytest.raises(InputError, match="the loss is nan at step 0"):
        fit_enumerated(model, lambda logits, _: logits.sum() * math.nan, length=T, train_N=weights, dev_N=weights)


# ------------------------------------------------------------------ training


def truth() -> Enumerable:
    return palindromes(vocab_size=3, length=3, share=0.8)


@pytest.mark.thorough
def test_on_the_truth_likelihood_reaches_the_entropy() -> None:
    probs = truth().probs_N
    model = small_model()
    fit = fit_enumerated(
        model, likelihood_loss, length=3, train_N=probs, dev_N=probs, steps=150, learning_rates=(3e-2,)
    )
    assert 0 <= fit.loss - truth().entropy < 0.01


@pytest.mark.thorough
def test_on_the_truth_pseudolikelihood_and_projection_reach_it_too_and_the_mlm_does_not() -> None:
    probs = truth().probs_N
    found = {}
    mlm = small_model()
    how = {"length": 3, "train_N": probs, "dev_N": probs, "steps": 150, "learning_rates": (3e-2,)}
    fit_enumerated(mlm, masked_loss, **how)
    with torch.no_grad():
        teacher = enumerated_logits(mlm, 3)
    for name, loss in (("PLL", pseudolikelihood_loss), ("KL", projection_loss(teacher))):
        model = small_model()
        fit_enumerated(model, loss, **how)
        with torch.no_grad():
            found[name] = likelihood_loss(enumerated_logits(model, 3), probs).item() - truth().entropy
    assert 0 <= found["PLL"] < 0.02 and 0 <= found["KL"] < 0.02
    # Perfect conditionals, and yet neither sum of scores is the joint distribution.
    for scores in (raw_scores, local_scores):
        assert likelihood_loss(teacher, probs, scores=scores).item() - truth().entropy > 0.05


def test_training_keeps_the_weights_that_were_best_on_the_development_data() -> None:
    drawn = truth().sample(40, generator=torch.Generator().manual_seed(0))
    train, dev = empirical_weights(drawn[:20], 3), empirical_weights(drawn[20:], 3)
    model = small_model()
    with torch.no_grad():
        before = masked_loss(enumerated_logits(model, 3), dev).item()
    how = {"length": 3, "train_N": train, "dev_N": dev, "learning_rates": (3e-2,), "patience": 15}
    fit = fit_enumerated(model, masked_loss, steps=400, **how)
    with torch.no_grad():
        after = masked_loss(enumerated_logits(model, 3), dev).item()
    assert fit.loss == after < before
    assert fit.best_step > 0 and fit.steps == fit.best_step + 15 < 400


def test_the_weights_before_the_first_step_and_after_the_last_count_too() -> None:
    weights = random_weights()
    torch.manual_seed(3)
    model = small_model()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    # On data that are pushed away from, nothing is better than not to begin.
    fit = fit_enumerated(
        model, lambda logits, given: given.sum().sign() * masked_loss(logits, weights),
        length=T, train_N=-weights, dev_N=weights, patience=5,
    )  # fmt: skip
    assert (fit.steps, fit.best_step) == (5, 0)
    assert all(torch.equal(value, first[name]) for name, value in model.state_dict().items())
    fit = fit_enumerated(model, masked_loss, length=T, train_N=weights, dev_N=weights, steps=3)
    assert (fit.steps, fit.best_step) == (3, 3)


@pytest.mark.thorough
def test_of_several_learning_rates_the_best_on_the_development_data_is_kept() -> None:
    drawn = truth().sample(40, generator=torch.Generator().manual_seed(0))
    how: dict[str, Any] = {
        "length": 3,
        "train_N": empirical_weights(drawn[:20], 3),
        "dev_N": empirical_weights(drawn[20:], 3),
        "steps": 30,
    }

    def trained(*rates: float) -> tuple[Fit, list[Tensor]]:
        torch.manual_seed(3)
        model = small_model()
        return fit_enumerated(model, masked_loss, learning_rates=rates, **how), list(model.state_dict().values())

    alone = {rate: trained(rate) for rate in (1e-4, 3e-2, 1e-3)}
    best = min(alone, key=lambda rate: alone[rate][0].loss)
    fit, weights = trained(*alone)
    assert best == 3e-2 and fit == alone[best][0] and fit.learning_rate == best
    assert all(torch.equal(one, other) for one, other in zip(weights, alone[best][1], strict=True))


def test_large_gradients_are_cut_and_trainings_repeat_bit_for_bit() -> None:
    weights, ends = random_weights(), []
    for largest in (1.0, 1.0, 1e-4):
        torch.manual_seed(5)
        model = small_model()
        fit_enumerated(model, likelihood_loss, length=T, train_N=weights, dev_N=weights, steps=5,
                       largest_gradient=largest)  # fmt: skip
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
