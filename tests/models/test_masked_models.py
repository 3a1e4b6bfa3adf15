"""Masked models: the two LSTMs against cells written out in NumPy, the Transformer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from oracles import LSTMWeights
from seqwise.data.batches import IGNORE
from seqwise.errors import InputError
from seqwise.models import MaskedLSTM, MaskedTransformer, masked

Floats = npt.NDArray[np.float64]
V, T = 3, 4


def small_lstm() -> MaskedLSTM:
    model = MaskedLSTM(vocab_size=V, embedding_size=4, hidden_size=5, feedforward_size=6).double()
    for parameter in model.parameters():  # large enough that every path through the model shows
        nn.init.normal_(parameter, std=0.7)
    return model


def small_transformer(dropout: float = 0.0) -> MaskedTransformer:
    sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "feedforward_size": 16}
    return MaskedTransformer(vocab_size=V, dropout=dropout, **sizes).double()


# ------------------------------------------------------------------ two LSTMs, one cell at a time


def read(lstm: nn.LSTM, vectors: list[Floats]) -> Floats:
    """The hidden state after reading these vectors, from zeros."""
    return [np.zeros(lstm.hidden_size), *LSTMWeights.of(lstm).run(vectors)][-1]


def gelu(x: Floats) -> Floats:
    """By the error function, from its Taylor-exact library value."""
    return np.array([0.5 * value * (1 + float(torch.erf(torch.tensor(value / 2**0.5)))) for value in x])


def by_hand(model: MaskedLSTM, tokens: list[int], masked_places: list[bool], place: int) -> Floats:
    seen = [model.mask_id if hidden else token for token, hidden in zip(tokens, masked_places, strict=True)]
    vectors = [model.embedding.weight[token].detach().numpy() for token in seen]
    both = np.concatenate([read(model.before, vectors[:place]), read(model.after, vectors[place + 1 :][::-1])])
    inner = gelu(model.combine.weight.detach().numpy() @ both + model.combine.bias.detach().numpy())
    found: Floats = model.head.weight.detach().numpy() @ inner + model.head.bias.detach().numpy()
    return found


def test_logits_against_cells_by_hand_in_row_major_order() -> None:
    model = small_lstm()
    tokens_NT = torch.randint(V, (6, T))
    masked_NT = torch.rand(6, T) < 0.5
    masked_NT[0] = True
    masked_NT[1] = False
    expected = [
        by_hand(model, tokens_NT[row].tolist(), masked_NT[row].tolist(), place)
        for row in range(6)
        for place in range(T)
        if masked_NT[row, place]
    ]
    found = model.masked_logits(tokens_NT, masked_NT)
    np.testing.assert_allclose(found.detach().numpy(), np.array(expected), atol=1e-12)


# ------------------------------------------------------------------ both models


@pytest.mark.parametrize("make", [small_lstm, small_transformer])
def test_masked_tokens_are_not_read_and_all_others_are(make) -> None:
    model = make()
    tokens_NT, masked_NT = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[False, True, False, True]])
    found = model.masked_logits(tokens_NT, masked_NT)
    hidden = tokens_NT.masked_fill(masked_NT, model.mask_id)
    for other in (hidden, torch.tensor([[0, 2, 2, 1]]), torch.tensor([[0, -7, 2, 99]])):
        assert torch.equal(model.masked_logits(other, masked_NT), found)
    for place in (0, 2):
        changed = tokens_NT.clone()
        changed[0, place] = 1
        assert (model.masked_logits(changed, masked_NT) - found).abs().amin(-1).max() > 1e-6
    # The mask stands at the other masked position: unmasked, it is read.
    alone = torch.tensor([[False, True, False, False]])
    assert not torch.allclose(model.masked_logits(tokens_NT, alone)[0], found[0])


def seen(tokens_NT: Tensor, masked_NT: Tensor) -> masked.Seen:
    return masked.seen_tokens(tokens_NT, masked_NT, mask_id=V, device=torch.device("cpu"))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_last_layer_at_masked_positions_alone_is_the_whole_one(count: int) -> None:
    """Rows with equally many masks, and the same with another row beside them: two ways through the last layer."""
    model = small_transformer()
    tokens_NT = torch.randint(V, (6, T))
    masked_NT = torch.rand(6, T).argsort(-1) < count
    one_more = torch.cat([masked_NT, torch.ones(1, T, dtype=torch.bool)])
    more_NT = torch.cat([tokens_NT, tokens_NT[:1]])
    assert seen(tokens_NT, masked_NT).wanted_NC is not None and seen(more_NT, one_more).wanted_NC is None
    found_MV = model.masked_logits(tokens_NT, masked_NT)
    whole_MV = model.masked_logits(more_NT, one_more)[: 6 * count]
    torch.testing.assert_close(found_MV, whole_MV, atol=1e-12, rtol=0)
    gradients = [torch.autograd.grad(x.square().sum(), list(model.parameters())) for x in (found_MV, whole_MV)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=0)


@pytest.mark.parametrize("make", [small_lstm, small_transformer])
def test_rows_do_not_depend_on_each_other(make) -> None:
    model = make()
    tokens_NT, masked_NT = torch.randint(V, (5, T)), torch.rand(5, T) < 0.6
    alone = [model.masked_logits(tokens_NT[n : n + 1], masked_NT[n : n + 1]) for n in range(5)]
    torch.testing.assert_close(torch.cat(alone), model.masked_logits(tokens_NT, masked_NT), atol=1e-12, rtol=0)


@pytest.mark.parametrize("make", [small_lstm, small_transformer])
def test_the_head_sees_masked_positions_only(make) -> None:
    model, rows = make(), []
    model.head.register_forward_hook(lambda module, inputs, output: rows.append(inputs[0].shape[:-1].numel()))
    masked_NT = torch.tensor([[True, False, False, False], [False, True, True, False]])
    assert model.masked_logits(torch.zeros(2, T).long(), masked_NT).shape == (3, V)
    assert rows == [3]


def test_the_transformer_knows_places_and_drops_out_in_training_only() -> None:
    model = small_transformer(dropout=0.5)
    tokens_NT = torch.tensor([[0, 1, 2, 2], [2, 1, 0, 2]])  # the same tokens round the last position, in two orders
    masked_NT = torch.tensor([[False, False, False, True]] * 2)
    model.eval()
    found = model.masked_logits(tokens_NT, masked_NT)
    assert torch.equal(found, model.masked_logits(tokens_NT, masked_NT))
    assert (found[0] - found[1]).abs().max() > 1e-3
    model.train()
    assert not torch.equal(model.masked_logits(tokens_NT, masked_NT), model.masked_logits(tokens_NT, masked_NT))


@pytest.mark.parametrize("make", [small_lstm, small_transformer])
def test_saved_and_loaded_back(make, tmp_path: Path) -> None:
    model = make().float()
    model.save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path).eval()
    tokens_NT, masked_NT = torch.randint(V, (2, T)), torch.ones(2, T, dtype=torch.bool)
    assert torch.equal(back.masked_logits(tokens_NT, masked_NT), model.eval().masked_logits(tokens_NT, masked_NT))


@pytest.mark.parametrize("make", [small_lstm, small_transformer])
def test_refusals(make) -> None:
    model, tokens_NT = make(), torch.zeros(2, T).long()
    masked_NT = torch.ones(2, T, dtype=torch.bool)
    for tokens, places in ((tokens_NT, masked_NT.long()), (tokens_NT, masked_NT[:1]), (tokens_NT[0], masked_NT[0])):
        with pytest.raises(InputError, match="do not fit"):
            model.masked_logits(tokens, places)
    with pytest.raises(InputError, match="reads no context"):
        model.masked_logits(tokens_NT, masked_NT, context=tokens_NT)


# ------------------------------------------------------------------ rows of several lengths

LENGTHS = (4, 1, 6, 3, 2)


def ragged(width: int) -> tuple[Tensor, Tensor]:
    """Rows of several lengths, padded to a width, and masks among their tokens, in every row but the last."""
    tokens_NT = torch.randint(V, (len(LENGTHS), width))
    masked_NT = torch.rand(tokens_NT.shape) < 0.5
    for row, length in enumerate(LENGTHS):
        masked_NT[row, torch.randint(length, ())] = True
        tokens_NT[row, length:] = IGNORE
        masked_NT[row, length:] = False
    masked_NT[-1] = False
    return tokens_NT, masked_NT


@pytest.mark.parametrize("width", [6, 9])
@pytest.mark.parametrize("make", [small_lstm, small_transformer])
def test_padding_changes_no_row(make, width: int) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        model, (tokens_NT, masked_NT) = make().to(dtype), ragged(width)
        rows = enumerate(LENGTHS)
        alone = [model.masked_logits(tokens_NT[n : n + 1, :t], masked_NT[n : n + 1, :t]) for n, t in rows]
        found_MV = model.masked_logits(tokens_NT, masked_NT)
        assert len(found_MV) == masked_NT.sum() > 4
        torch.testing.assert_close(found_MV, torch.cat(alone), atol=tolerance, rtol=0)


@pytest.mark.parametrize("make", [small_lstm, small_transformer])
def test_padding_takes_no_part_in_gradients(make) -> None:
    model, (tokens_NT, masked_NT) = make(), ragged(9)
    model.masked_logits(tokens_NT, masked_NT).square().sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for row, length in enumerate(LENGTHS):
        one = slice(row, row + 1)
        model.masked_logits(tokens_NT[one, :length], masked_NT[one, :length]).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-11, rtol=1e-11)


def test_rows_of_one_length_take_the_path_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("this is for padding only")

    monkeypatch.setattr(Tensor, "gather", refuse)
    tokens_NT, masked_NT = torch.randint(V, (3, T)), torch.ones(3, T, dtype=torch.bool)
    small_lstm().masked_logits(tokens_NT, masked_NT)
    found = seen(tokens_NT, masked_NT)
    assert found.real_NT is None
    assert torch.equal(found.tokens_NT, torch.full_like(tokens_NT, V))
    with pytest.raises(AssertionError, match="padding only"):
        small_lstm().masked_logits(*ragged(6))


@pytest.mark.parametrize("make", [small_lstm, small_transformer])
@pytest.mark.parametrize(
    ("row", "masks", "problem"),
    [
        ([0, 1, IGNORE], [True, False, True], "row 1 has masked padding"),
        ([0, IGNORE, 1], [True, False, False], "row 1 has padding .* before a token"),
        ([IGNORE, 0, 1], [False, False, True], "row 1 starts with padding"),
        ([IGNORE, IGNORE, IGNORE], [False, False, False], "row 1 starts with padding"),
    ],
)
def test_invalid_padding_is_refused(make, row: list[int], masks: list[bool], problem: str) -> None:
    tokens_NT = torch.tensor([[0, 1, 2], row, [0, 1, IGNORE]])
    masked_NT = torch.tensor([[True, False, True], masks, [True, False, False]])
    with pytest.raises(InputError, match=problem):
        make().masked_logits(tokens_NT, masked_NT)


@pytest.mark.parametrize("make", [small_lstm, small_transformer])
def test_sequences_without_a_token_are_refused(make) -> None:
    with pytest.raises(InputError, match="without a token"):
        make().masked_logits(torch.zeros(2, 0).long(), torch.zeros(2, 0, dtype=torch.bool))


def test_sizes_of_a_transformer() -> None:
    with pytest.raises(InputError, match="use a multiple of 4"):
        MaskedTransformer(vocab_size=3, hidden_size=6, num_heads=4)
    with pytest.raises(InputError, match="at least 1"):
        MaskedTransformer(vocab_size=3, num_layers=0)
