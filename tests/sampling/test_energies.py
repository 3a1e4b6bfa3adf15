"""Energies and proposals against sums in plain Python, and what they ask of a model."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from recording import RecordedRows
from seqwise import InputError
from seqwise.models import MaskedLSTM, MaskedTransformer
from seqwise.sampling import (
    Energy,
    SeededDraws,
    anywhere,
    constraint,
    contains,
    in_order,
    local_energy,
    masked_conditionals,
    metropolis_hastings,
    pseudo_log_likelihood,
    raw_energy,
    sequence_energy,
    shuffled,
    start_chains,
    table_model,
)
from seqwise.sampling.correctness import TableModel, every_sequence
from seqwise.sampling.draws import choice_at
from seqwise.sampling.energies import joint_logits, single_mask_logits
from seqwise.sampling.state import evaluate

MODEL = table_model(num_positions=3, vocab_size=3, seed=1)
OTHER = table_model(num_positions=3, vocab_size=3, seed=2)
SEQUENCES = every_sequence(3, 3)


def scores(model: Any, y: list[int], t: int, context: Tensor | None = None) -> list[float]:
    masked = torch.tensor([[place == t for place in range(3)]])
    return model.masked_logits(torch.tensor([y]), masked, context)[0].tolist()


def log_prob(row: list[float], w: int) -> float:
    return row[w] - math.log(sum(math.exp(score) for score in row))


def test_raw_and_local_are_the_sums_of_the_definition() -> None:
    raw_B, local_B = evaluate(raw_energy(MODEL), SEQUENCES).energy_B, evaluate(local_energy(MODEL), SEQUENCES).energy_B
    for row, y in enumerate(SEQUENCES.tolist()):
        assert raw_B[row].item() == pytest.approx(-sum(scores(MODEL, y, t)[y[t]] for t in range(3)), abs=1e-12)
        wanted = -sum(log_prob(scores(MODEL, y, t), y[t]) for t in range(3))
        assert local_B[row].item() == pytest.approx(wanted, abs=1e-12)


def test_an_offset_of_the_scores_changes_raw_and_not_local() -> None:
    assert isinstance(MODEL, TableModel)
    shifted = TableModel(MODEL.table + torch.randn(*MODEL.table.shape[:2], 1, dtype=torch.float64))
    raw_B, local_B = evaluate(raw_energy(MODEL), SEQUENCES).energy_B, evaluate(local_energy(MODEL), SEQUENCES).energy_B
    assert (evaluate(raw_energy(shifted), SEQUENCES).energy_B - raw_B).abs().max() > 0.5
    assert torch.allclose(evaluate(local_energy(shifted), SEQUENCES).energy_B, local_B, atol=1e-12)


def test_sums_and_weights() -> None:
    length = sequence_energy(lambda y: 0.25 * y.sum(1))
    soft = constraint(contains(0, 1), penalty=3.0)
    energy = (
        2.0 * raw_energy(MODEL)
        + 0.5 * (local_energy(OTHER) + length)
        + local_energy(MODEL)
        + soft
        + -1.0 * raw_energy(OTHER)
    )
    parts = [
        evaluate(part, SEQUENCES).energy_B
        for part in (raw_energy(MODEL), local_energy(OTHER), length, local_energy(MODEL), soft, raw_energy(OTHER))
    ]
    weights = [2.0, 0.5, 0.5, 1.0, 1.0, -1.0]
    wanted_B = torch.stack([weight * part_B for weight, part_B in zip(weights, parts, strict=True)]).sum(0)
    assert torch.allclose(evaluate(energy, SEQUENCES).energy_B, wanted_B, atol=1e-12)
    assert len(energy.models) == 2
    assert raw_energy(MODEL) == raw_energy(MODEL, max_rows=3)
    assert raw_energy(MODEL) != local_energy(MODEL)
    assert raw_energy(MODEL) != 2.0 * raw_energy(MODEL)
    for weight in (0.0, math.inf, math.nan):
        with pytest.raises(InputError, match="weight of an energy"):
            weight * raw_energy(MODEL)


def test_constraints() -> None:
    y = torch.tensor([[0, 1, 2], [1, 0, 1], [2, 2, 2]])
    assert contains(0, 1)(y).tolist() == [True, True, False]
    assert contains(2, 2)(y).tolist() == [False, False, True]
    assert contains(0, 1, 2, 0)(y).tolist() == [False, False, False]
    assert constraint(contains(1)).of_sequences(y).tolist() == [0, 0, math.inf]
    assert constraint(lambda tokens: ~contains(1)(tokens), penalty=2.5).of_sequences(y).tolist() == [2.5, 2.5, 0]
    for penalty in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="penalty"):
            constraint(contains(1), penalty=penalty)
    with pytest.raises(InputError, match="at least one token"):
        contains()
    with pytest.raises(InputError, match="minus infinity"):
        (-1.0 * constraint(contains(1))).of_sequences(y)
    with pytest.raises(InputError, match="NaN or minus infinity"):
        sequence_energy(lambda tokens: tokens[:, 0] / torch.zeros(3)).of_sequences(torch.zeros(3, 3).long())


@pytest.mark.parametrize(
    ("function", "shape"),
    [(lambda y: y.sum(), "[]"), (lambda y: y, "[3, 3]"), (lambda y: y.sum(1, keepdim=True), "[3, 1]")],
)
def test_an_energy_is_one_number_for_each_sequence(function: Any, shape: str) -> None:
    """A sum over the batch would be added to all its sequences; three sequences of three tokens fit each other."""
    energy, y = local_energy(MODEL) + sequence_energy(function), torch.tensor([[0, 1, 2], [2, 2, 1], [0, 0, 0]])
    with pytest.raises(InputError, match=re.escape(f"an energy of 3 sequences has the shape {shape}")):
        start_chains(energy, y)
    with pytest.raises(InputError, match=r"has the shape \[3, 3\]"):
        constraint(lambda tokens: tokens == 1).of_sequences(y)


def test_the_memory_limit_holds_and_changes_nothing() -> None:
    model = RecordedRows(MODEL)
    context_B = torch.linspace(-1, 1, 27, dtype=torch.float64)
    whole_B = evaluate(local_energy(MODEL), SEQUENCES, context_B).energy_B
    limited_B = evaluate(local_energy(model, max_rows=7), SEQUENCES, context_B).energy_B
    assert torch.equal(whole_B, limited_B)
    assert model.rows == [7] * 11 + [4]
    model.rows.clear()
    each_BT = pseudo_log_likelihood(model, SEQUENCES, context=context_B, max_rows=10)
    assert model.rows == [10] * 8 + [1]
    assert torch.allclose(each_BT.sum(1), -whole_B, atol=1e-12)
    for row, y in enumerate(SEQUENCES.tolist()):
        for t in range(3):
            wanted = log_prob(scores(MODEL, y, t, context_B[row : row + 1]), y[t])
            assert each_BT[row, t].item() == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(InputError, match="at least 1"):
        local_energy(model, max_rows=0)
    with pytest.raises(InputError, match="at least 1"):
        pseudo_log_likelihood(model, SEQUENCES, max_rows=0)


def test_pseudo_log_likelihood_can_be_trained_through() -> None:
    assert isinstance(MODEL, TableModel)
    table = MODEL.table.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: pseudo_log_likelihood(TableModel(t), SEQUENCES[:4]), (table,), atol=1e-6)


# -------------------------------------------------------------------------------------------------- proposals


def test_log_q_is_normalised_over_what_may_be_proposed() -> None:
    model, allowed_V = table_model(num_positions=1, vocab_size=6), torch.tensor([1, 1, 0, 1, 1, 1]).bool()
    logits = torch.randn(50, 6, dtype=torch.float64)
    for temperature, nucleus, share in itertools.product((0.5, 1.0, 2.0), (1.0, 0.9, 0.5), (0.0, 0.2)):
        proposal = masked_conditionals(
            model, temperature=temperature, allowed_V=allowed_V, nucleus=nucleus, full_share=share
        )
        q = proposal.log_probs(logits).exp()
        for row in range(50):
            weights = {w: math.exp(score / temperature) for w, score in enumerate(logits[row].tolist()) if allowed_V[w]}
            full = {w: weight / sum(weights.values()) for w, weight in weights.items()}
            kept, mass = [], 0.0
            for w in sorted(full, key=lambda w: -full[w]):
                if mass >= nucleus:
                    break
                kept.append(w)
                mass += full[w]
            for w in range(6):
                cut = full[w] / mass if w in kept else 0.0
                share_here = share if nucleus < 1 else 0.0
                wanted = (1 - share_here) * cut + share_here * full.get(w, 0.0)
                assert q[row, w].item() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_a_sweep_visits_every_free_position_once(block: int) -> None:
    free_BT = torch.rand(200, 7) < 0.6
    for visits in (in_order(block), shuffled(block)):
        draws = SeededDraws(0, torch.arange(200), sweep=0)
        masks = list(visits(draws, free_BT))
        assert torch.equal(torch.stack(masks).sum(0), free_BT.long())
        sizes = torch.stack(masks).sum(2)
        assert (sizes.amax(0) == free_BT.sum(1).clamp(max=block)).all()


def test_all_orders_and_all_subsets_are_alike() -> None:
    """Within 4.5 standard errors, over 6 orders of 3 positions and 10 pairs of 5."""
    count = 6000
    draws = SeededDraws(1, torch.arange(count), sweep=0)
    orders = torch.stack([mask.long().argmax(1) for mask in shuffled()(draws, torch.ones(count, 3).bool())], 1)
    found = torch.unique(orders, dim=0, return_counts=True)[1]
    assert len(found) == 6
    assert ((found - count / 6).abs() < 4.5 * math.sqrt(count * 5 / 36)).all()
    (pairs,) = anywhere([2])(draws, torch.ones(count, 5).bool())
    found = torch.unique(pairs, dim=0, return_counts=True)[1]
    assert len(found) == 10
    assert ((found - count / 10).abs() < 4.5 * math.sqrt(count * 9 / 100)).all()
    (mixed,) = anywhere([1, 3, 3])(draws, torch.ones(count, 5).bool())
    assert abs(int((mixed.sum(1) == 3).sum()) - count * 2 / 3) < 4.5 * math.sqrt(count * 2 / 9)


def test_choices_by_inversion_never_fall_on_what_has_no_weight() -> None:
    log_weights = torch.tensor([-math.inf, 0.3, -math.inf, 0.1, -math.inf], dtype=torch.float64)
    edges = torch.tensor([0.0, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert choice_at(edges, log_weights.expand(3, -1)).tolist() == [1, 1, 3]
    many = torch.rand(2000, dtype=torch.float64)
    assert set(choice_at(many, log_weights.expand(2000, -1)).tolist()) == {1, 3}


def test_a_kernel_for_an_equal_energy_reuses_cached_scores() -> None:
    state = start_chains(local_energy(MODEL), SEQUENCES)
    assert state.under(local_energy(MODEL)).logits[0].equal(state.logits[0])
    other: Energy = raw_energy(OTHER)
    assert torch.allclose(state.under(other).energy_B, evaluate(other, SEQUENCES).energy_B)
    assert state.under(other).energy == other


@pytest.mark.parametrize("max_rows", [1, 64])
@pytest.mark.parametrize("pieces", ["original", "within-word-l2r", "whole-word"])
def test_a_token_is_scored_with_the_masks_of_its_word(pieces: Any, max_rows: int) -> None:
    """Against one pass for each; the first token of a word may be one that is not scored."""
    model = table_model(num_positions=5, vocab_size=3, seed=6)
    tokens, words = [[0, 2, 1, 1, 0], [2, 2, 0, 1, 2]], [[0, 1, 1, 1, 2], [3, 3, 3, 4, 4]]
    scored = [[True, False, True, True, False], [False, True, True, True, True]]
    found_BT = pseudo_log_likelihood(
        model, torch.tensor(tokens), words_BT=torch.tensor(words), pieces=pieces, scored_BT=torch.tensor(scored),
        max_rows=max_rows,
    )  # fmt: skip
    for row, place in itertools.product(range(2), range(5)):
        if not scored[row][place]:
            assert found_BT[row, place].isnan()
            continue
        same = [words[row][other] == words[row][place] for other in range(5)]
        masked = {
            "original": [other == place for other in range(5)],
            "within-word-l2r": [same[other] and other >= place for other in range(5)],
            "whole-word": same,
        }[pieces]
        logits_KV = model.masked_logits(torch.tensor([tokens[row]]), torch.tensor([masked]))
        expected = log_prob(logits_KV[sum(masked[:place])].tolist(), tokens[row][place])
        assert found_BT[row, place].item() == pytest.approx(expected, abs=1e-12)


def test_where_nothing_is_masked_the_model_is_not_asked() -> None:
    model, none_BT = RecordedRows(MODEL), torch.zeros(2, 3).bool()
    for logits_of in (single_mask_logits, joint_logits):
        assert logits_of(model, SEQUENCES[:2], none_BT).shape == (0, 3)
    assert pseudo_log_likelihood(model, SEQUENCES[:2], scored_BT=none_BT).isnan().all()
    assert model.rows == []


@pytest.mark.parametrize("pieces", ["original", "within-word-l2r", "whole-word"])
def test_padded_sequences_have_the_log_probabilities_of_each_alone(pieces: Any) -> None:
    sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "feedforward_size": 9}
    torch.manual_seed(2)
    model = MaskedTransformer(vocab_size=7, **sizes).double().eval()
    rows, words = [[1, 2, 3, 4, 0], [5, 6], [3]], [[0, 1, 1, 1, 2], [0, 0], [0]]
    scored = [[True, False, True, True, True], [True, True], [True]]

    def padded(values: list[list[Any]], padding: Any) -> Tensor:
        return torch.tensor([row + [padding] * (5 - len(row)) for row in values])

    together_BT = pseudo_log_likelihood(
        model,
        padded(rows, -100),
        words_BT=padded(words, -1),
        pieces=pieces,
        scored_BT=padded(scored, False),
        max_rows=3,
    )
    every_BT = pseudo_log_likelihood(model, padded(rows, -100), words_BT=padded(words, -1), pieces=pieces)
    assert every_BT.isfinite().equal(padded(rows, -100) >= 0)
    for found_T, ids, of_word, asked in zip(together_BT, rows, words, scored, strict=True):
        alone = {"words_BT": torch.tensor([of_word]), "scored_BT": torch.tensor([asked])}
        alone_1T = pseudo_log_likelihood(model, torch.tensor([ids]), pieces=pieces, **alone)
        torch.testing.assert_close(found_T[: len(ids)], alone_1T[0], rtol=1e-9, atol=1e-9, equal_nan=True)
        assert found_T[len(ids) :].isnan().all()


def test_scores_in_half_precision_are_summed_in_single() -> None:
    model = MaskedLSTM(vocab_size=50, embedding_size=8, hidden_size=8, feedforward_size=8).eval().bfloat16()
    tokens_BT = torch.randint(50, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits_BTV = torch.stack(
            [model.masked_logits(tokens_BT, torch.arange(40).expand(2, -1) == place).float() for place in range(40)],
            dim=1,
        )
    expected_BT = logits_BTV.double().log_softmax(-1).gather(-1, tokens_BT[..., None]).squeeze(-1)
    found_BT = pseudo_log_likelihood(model, tokens_BT)
    assert found_BT.dtype == torch.float32 and torch.allclose(found_BT.double(), expected_BT, atol=1e-5)
    q_BTV = masked_conditionals(model).log_probs(logits_BTV.bfloat16())  # normalised, as the Hastings ratio needs it
    assert torch.allclose(q_BTV.exp().sum(-1), torch.ones(2, 40), atol=1e-5)
    energy_B = start_chains(local_energy(model), tokens_BT).energy_B
    assert torch.allclose(energy_B, -expected_BT.sum(1), atol=1e-3)


def test_models_that_compare_by_value_are_told_apart() -> None:
    @dataclass
    class Valued:
        table: Tensor
        vocab_size: int = 3
        mask_id: int = 3

        def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
            return self.table[masked_NT.nonzero(as_tuple=True)[1]]

    models = [Valued(torch.eye(3)), Valued(torch.eye(3))]
    one, same, other = local_energy(models[0]), local_energy(models[0]), local_energy(models[1])  # type: ignore[arg-type]
    assert one == same and hash(one) == hash(same) and one != other
    state = start_chains(one, torch.tensor([[0, 2]]))
    kernel = metropolis_hastings(other, masked_conditionals(models[1]))  # type: ignore[arg-type]
    assert kernel(SeededDraws(0, state.chain_B, sweep=0), state)[0].energy == other
