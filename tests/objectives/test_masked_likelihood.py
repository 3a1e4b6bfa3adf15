"""How masked models are trained: the distribution of masks, the loss against loops, and both objectives."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import oracles
from seqwise import InputError
from seqwise.data import Batch, EncodedExample, collate
from seqwise.data.batches import IGNORE
from seqwise.models import ConditionalMaskedTransformer, MaskedLSTM, MaskedTransformer
from seqwise.objectives import (
    conditional_masked_objective,
    mask_fraction,
    mask_one,
    mask_uniformly,
    masked_cross_entropy,
    masked_objective,
)
from seqwise.sampling.energies import pseudo_log_likelihood
from seqwise.training.trainer import fit

V = 4
MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniformly": mask_uniformly,
    "fraction": partial(mask_fraction, fraction=0.3),
    "one": mask_one,
}
# The 99.9th percentiles of chi-square, by degrees of freedom (Abramowitz and Stegun, table 26.8).
UNUSUAL = {1: 10.83, 2: 13.82, 3: 16.27, 6: 22.46, 14: 36.12}


def lstm() -> MaskedLSTM:
    return oracles.randomised(MaskedLSTM(vocab_size=V, embedding_size=3, hidden_size=3, feedforward_size=4), 0, 0.7)


def transformer() -> MaskedTransformer:
    sizes = {"hidden_size": 4, "num_layers": 1, "num_heads": 2, "feedforward_size": 5}
    return oracles.randomised(MaskedTransformer(vocab_size=V, **sizes), 0, 0.7)


def conditional() -> ConditionalMaskedTransformer:
    sizes = {"hidden_size": 4, "num_layers": 1, "num_heads": 2, "feedforward_size": 5}
    return oracles.randomised(ConditionalMaskedTransformer(source_size=5, vocab_size=V, max_length=4, **sizes), 0, 0.7)


def ragged() -> Batch:
    pairs = [((1, 2, 4), (3, 0, 2, 1)), ((3,), (1, 1)), ((0, 2), (2,))]
    return collate([EncodedExample(source, target) for source, target in pairs])


def context_of(model: Any, batch: Batch) -> Any:
    encode = getattr(model, "encode", None)
    return encode(batch.sources_BS, batch.source_lengths_B) if encode else None


# ---------------------------------------------------------------------------------------- masks


def subset_shares(name: str, length: int) -> dict[tuple[int, ...], float]:
    """The probability of every set of masked positions, from the definitions."""
    shares = {}
    for size in range(1, length + 1):
        for subset in itertools.combinations(range(length), size):
            if name == "uniformly":
                shares[subset] = 1 / length / math.comb(length, size)
            elif name == "one":
                shares[subset] = 1 / length if size == 1 else 0.0
            else:
                chosen = 0.3**size * 0.7 ** (length - size)
                shares[subset] = chosen + (0.7**length / length if size == 1 else 0.0)
    return {subset: share for subset, share in shares.items() if share > 0}


@pytest.mark.parametrize("name", sorted(MASKS))
def test_every_set_of_positions_is_masked_as_often_as_it_should(name: str) -> None:
    rows, width = 20_000, 6
    tokens_NT = torch.zeros(3 * rows, width, dtype=torch.long)
    for third, length in enumerate((4, 3, 1)):
        tokens_NT[third * rows : (third + 1) * rows, length:] = IGNORE
    masked_NT = MASKS[name](tokens_NT)
    assert masked_NT.dtype == torch.bool
    assert masked_NT.shape == tokens_NT.shape
    for third, length in enumerate((4, 3, 1)):
        found = Counter(
            tuple(place for place, hidden in enumerate(row) if hidden)
            for row in masked_NT[third * rows : (third + 1) * rows].tolist()
        )
        shares = subset_shares(name, length)
        assert sum(shares.values()) == pytest.approx(1)
        assert found.keys() == shares.keys()  # never padding, never nothing
        if len(shares) > 1:
            chi_square = sum((found[s] - rows * share) ** 2 / (rows * share) for s, share in shares.items())
            assert chi_square < UNUSUAL[len(shares) - 1]


@pytest.mark.parametrize("name", sorted(MASKS))
def test_rows_are_masked_independently_and_by_the_global_generator(name: str) -> None:
    tokens_NT = torch.zeros(20_000, 2, dtype=torch.long)
    torch.manual_seed(5)
    masked_NT = MASKS[name](tokens_NT)
    torch.manual_seed(5)
    assert torch.equal(MASKS[name](tokens_NT), masked_NT)
    assert not torch.equal(MASKS[name](tokens_NT), masked_NT)
    first, second = masked_NT[::2, 0], masked_NT[1::2, 0]
    expected = first.double().mean() * second.double().mean()
    error = (expected * (1 - expected) / len(first)).sqrt()
    assert abs((first & second).double().mean() - expected) < 4 * error


def test_a_uniform_number_of_masks_reaches_the_length_of_long_rows() -> None:
    counts_N = mask_uniformly(torch.zeros(4000, 50, dtype=torch.long)).sum(1).double()
    assert (counts_N.min(), counts_N.max()) == (1, 50)
    spread = math.sqrt((50**2 - 1) / 12)
    assert abs(counts_N.mean().item() - 25.5) < 4 * spread / math.sqrt(4000)


def test_invalid_fractions_are_refused() -> None:
    tokens_NT = torch.zeros(2, 3, dtype=torch.long)
    assert mask_fraction(tokens_NT, fraction=1).all()
    assert mask_fraction(tokens_NT, fraction=1e-12).sum(1).tolist() == [1, 1]
    for fraction in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(InputError, match="greater than 0 and at most 1"):
            mask_fraction(tokens_NT, fraction=fraction)


# ---------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("make", [lstm, transformer, conditional])
def test_the_loss_is_a_mean_over_masked_positions_of_all_rows(make: Callable[[], Any]) -> None:
    model, batch = make(), ragged()
    masked_NT = torch.tensor([[True, False, True, True], [False] * 4, [True, False, False, False]])
    found = masked_cross_entropy(model, batch.targets_BT, masked_NT, context_of(model, batch))
    losses = []
    for row, length in ((0, 4), (2, 1)):
        one = collate([EncodedExample(tuple(batch.sources_BS[row, : batch.source_lengths_B[row]].tolist()), ())])
        tokens = batch.targets_BT[row, :length]
        scores_MV = model.masked_logits(tokens[None], masked_NT[row : row + 1, :length], context_of(model, one))
        places = [place for place in range(length) if masked_NT[row, place]]
        for scores, place in zip(scores_MV.tolist(), places, strict=True):
            losses.append(oracles.log_sum_exp(scores) - scores[tokens[place]])
    assert len(losses) == 4
    assert found.item() == pytest.approx(sum(losses) / 4, abs=1e-12)


@pytest.mark.parametrize("make", [lstm, transformer, conditional])
def test_gradients_of_the_loss(make: Callable[[], Any]) -> None:
    model, batch = make(), ragged()
    masked_NT = torch.tensor([[True, False, True, False], [False, True, False, False], [True, False, False, False]])

    # gradcheck moves the parameters in place, so the closure sees them.
    def loss(*parameters: Tensor) -> Tensor:
        return masked_cross_entropy(model, batch.targets_BT, masked_NT, context_of(model, batch))

    names = {"embedding.weight", "target_embedding.weight", "head.weight", "length_symbol_H", "combine.weight"}
    parameters = [parameter for name, parameter in model.named_parameters() if name in names]
    assert len(parameters) >= 2
    assert torch.autograd.gradcheck(loss, parameters)


@pytest.mark.parametrize("make", [lstm, transformer])
def test_over_single_masks_the_loss_is_minus_the_pseudo_log_likelihood(make: Callable[[], Any]) -> None:
    model, tokens_NT = make(), torch.randint(V, (5, 3))
    losses = [
        masked_cross_entropy(model, tokens_NT, (torch.arange(3) == place).expand(5, 3)).item() for place in range(3)
    ]
    with torch.no_grad():
        expected = -pseudo_log_likelihood(model, tokens_NT).mean().item()
    assert sum(losses) / 3 == pytest.approx(expected, abs=1e-12)


def test_refusals_of_the_loss() -> None:
    model, tokens_NT = lstm(), torch.tensor([[0, 3, V], [1, -1, IGNORE]])
    with pytest.raises(InputError, match="no position is masked"):
        masked_cross_entropy(model, torch.zeros(2, 3).long(), torch.zeros(2, 3, dtype=torch.bool))
    for row, place, wrong in ((0, 2, V), (1, 1, -1)):
        masked_NT = torch.zeros(2, 3, dtype=torch.bool)
        masked_NT[:, 0] = True
        masked_NT[row, place] = True
        shown_NT = tokens_NT.clone()
        shown_NT[1 - row, 2 if row else 1] = 0
        with pytest.raises(InputError, match=rf"holds {wrong}, which is not one of the {V} tokens"):
            masked_cross_entropy(model, shown_NT, masked_NT)
    with pytest.raises(InputError, match="reads no context"):
        masked_cross_entropy(model, torch.zeros(2, 3).long(), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2))


# ---------------------------------------------------------------------------------------- objectives


@pytest.mark.parametrize("name", sorted(MASKS))
@pytest.mark.parametrize("make", [lstm, transformer])
def test_the_objective_masks_the_targets_anew(make: Callable[[], Any], name: str) -> None:
    model, batch = make(), ragged()
    objective = masked_objective(MASKS[name])
    torch.manual_seed(3)
    found = [objective(model, batch, {}).item() for _ in range(5)]
    assert len(set(found)) > 1
    torch.manual_seed(3)
    expected = [masked_cross_entropy(model, batch.targets_BT, MASKS[name](batch.targets_BT)).item() for _ in range(5)]
    assert found == expected


def test_the_conditional_objective_adds_the_length_by_its_weight() -> None:
    model, batch = conditional(), ragged()

    def last(tokens_NT: Tensor) -> Tensor:
        return torch.arange(4) == (tokens_NT != IGNORE).sum(1, keepdim=True) - 1

    tokens = masked_cross_entropy(model, batch.targets_BT, last(batch.targets_BT), context_of(model, batch)).item()
    log_probs = context_of(model, batch).length_log_probs_BL.tolist()
    lengths = -sum(row[length - 1] for row, length in zip(log_probs, (4, 2, 1), strict=True)) / 3
    assert conditional_masked_objective(last)(model, batch, {}).item() == pytest.approx(tokens + lengths, abs=1e-12)
    for weight in (0.0, 0.25, 2):
        found = conditional_masked_objective(last, length_weight=weight)(model, batch, {}).item()
        assert found == pytest.approx(tokens + weight * lengths, abs=1e-12)


def test_the_conditional_objective_trains_every_weight() -> None:
    model, batch = conditional(), ragged()
    conditional_masked_objective(mask_uniformly)(model, batch, {}).backward()
    without = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().max() > 0]
    # Softmax takes no notice of what is added to all scores, and a key's bias adds the same to all keys of a query.
    assert all(name.endswith("key.bias") for name in without)


def test_refusals_of_the_conditional_objective() -> None:
    for weight in (-0.1, math.inf, math.nan):
        with pytest.raises(InputError, match="length_weight must be 0 or more"):
            conditional_masked_objective(mask_one, length_weight=weight)
    objective, model = conditional_masked_objective(mask_one, length_weight=0.0), conditional()
    long = collate([EncodedExample((1,), (0, 1)), EncodedExample((1,), (0, 1, 2, 3, 0))])
    with pytest.raises(InputError, match="5 tokens is longer than the model's max_length 4"):
        objective(model, long, {})
    with pytest.raises(InputError, match="a target is empty"):
        objective(model, collate([EncodedExample((1,), (0, 1)), EncodedExample((1,), ())]), {})
    with pytest.raises(InputError, match="needs a source"):
        masked_objective(mask_one)(model, ragged(), {})


@pytest.mark.thorough
def test_the_trainer_takes_the_objective_and_its_seed_fixes_the_masks(tmp_path: Path) -> None:
    train = [EncodedExample((0,), target) for target in ((0, 1, 2), (1, 2), (3,), (2, 2, 1, 0))]
    weights = []
    for folder, seed in (("one", 1), ("again", 1), ("other", 2)):
        model = lstm().float()
        result = fit(
            model,
            masked_objective(mask_uniformly),
            train,
            output=tmp_path / folder,
            steps=3,
            batch_size=4,
            learning_rate=0.01,
            seed=seed,
        )
        assert result.steps == 3
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
