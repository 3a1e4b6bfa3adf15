"""The conditional masked model: against one in NumPy, what it reads and what not, rows of its context, learning."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from oracles import TransformerLayers, Vector
from seqwise import InputError, tree
from seqwise.data import EncodedExample, collate
from seqwise.data.batches import IGNORE
from seqwise.models import ConditionalMaskedTransformer, MaskedTransformer
from seqwise.models.conditional import ConditionalContext
from seqwise.objectives import conditional_masked_objective, mask_uniformly
from seqwise.sampling.energies import pseudo_log_likelihood, rows_of

SOURCES, V, L = 6, 4, 5
TOLERANCE = {"atol": 1e-12, "rtol": 0}
SOURCE_LENGTHS = (3, 1, 4)
TARGETS = ((2, 0, 3, 1), (1, 1), (3,))


def small(seed: int = 0, **sizes: int) -> ConditionalMaskedTransformer:
    sizes = {"hidden_size": 4, "num_layers": 2, "num_heads": 2, "feedforward_size": 5, **sizes}
    return oracles.randomised(
        ConditionalMaskedTransformer(source_size=SOURCES, vocab_size=V, max_length=L, **sizes), seed, 0.8
    )


def sources() -> tuple[Tensor, Tensor]:
    """Three sources of different lengths; what stands behind them is no padding symbol in particular."""
    lengths_B = torch.tensor(SOURCE_LENGTHS)
    return torch.randint(SOURCES, (3, 4)), lengths_B


def targets() -> Tensor:
    width = max(map(len, TARGETS))
    return torch.tensor([[*row, *[IGNORE] * (width - len(row))] for row in TARGETS])


# ---------------------------------------------------------------------------------------- the oracle


def conditional_in_numpy(
    model: ConditionalMaskedTransformer, source: Sequence[int], target: Sequence[int], masked: Sequence[bool]
) -> tuple[list[Vector], list[float]]:
    """The scores at the masked positions of one target, and the log-probability of each length of one source."""
    num_layers = len(model.decoder)
    layers = TransformerLayers(model, num_heads=model.decoder[0].own.num_heads, size=model.head.in_features)
    read = [layers.weights["length_symbol_H"], *layers.weights["source_embedding.weight"][list(source)]]
    hidden = [layers.placed(embedding, place) for place, embedding in enumerate(read)]
    for layer in range(num_layers):
        hidden = layers.layer(f"encoder.{layer}", hidden)
    memory = [layers.norm("encoder_norm", x) for x in hidden]
    lengths = list(layers.linear("length_head", memory[0]))
    seen = [model.mask_id if hide else token for token, hide in zip(target, masked, strict=True)]
    hidden = [layers.placed(x, place) for place, x in enumerate(layers.weights["target_embedding.weight"][seen])]
    for layer in range(num_layers):
        hidden = layers.layer(f"decoder.{layer}", hidden, memory)
    scores = [layers.linear("head", layers.norm("decoder_norm", x)) for x in hidden]
    return (
        [score for score, hide in zip(scores, masked, strict=True) if hide],
        [length - oracles.log_sum_exp(lengths) for length in lengths],
    )


@pytest.mark.parametrize("sizes", [{}, {"num_layers": 1, "num_heads": 4}, {"hidden_size": 5, "num_heads": 1}])
def test_scores_and_lengths_equal_the_model_in_numpy(sizes: dict[str, int]) -> None:
    for seed in range(3):
        model, (sources_BS, lengths_B), targets_BT = small(seed, **sizes), sources(), targets()
        masked_BT = (torch.rand(targets_BT.shape) < 0.6) & (targets_BT != IGNORE)
        context = model.encode(sources_BS, lengths_B)
        found_MV = model.masked_logits(targets_BT, masked_BT, context)
        expected, checked = [], 0
        for row, target in enumerate(TARGETS):
            source = sources_BS[row, : SOURCE_LENGTHS[row]].tolist()
            scores, lengths = conditional_in_numpy(model, source, target, masked_BT[row, : len(target)].tolist())
            expected += scores
            np.testing.assert_allclose(context.length_log_probs_BL[row].detach().numpy(), lengths, atol=1e-10)
            checked += len(scores)
        assert len(found_MV) == checked > 0
        np.testing.assert_allclose(found_MV.detach().numpy(), np.array(expected), atol=1e-10)


def test_the_masked_transformer_without_a_source_equals_the_same_layers_in_numpy() -> None:
    plain = MaskedTransformer(vocab_size=V, hidden_size=6, num_layers=2, num_heads=3, feedforward_size=5)
    model, targets_NT = oracles.randomised(plain, 1, 0.8), targets()
    masked_NT = (torch.rand(targets_NT.shape) < 0.6) & (targets_NT != IGNORE)
    layers, expected = TransformerLayers(model, num_heads=3, size=6), []
    for row, target in enumerate(TARGETS):
        seen = [V if hide else token for token, hide in zip(target, masked_NT[row].tolist(), strict=False)]
        hidden = [layers.placed(x, place) for place, x in enumerate(layers.weights["embedding.weight"][seen])]
        for name in ("layers.0", "layers.1"):
            hidden = layers.layer(name, hidden)
        expected += [
            layers.linear("head", layers.norm("norm", x))
            for x, hide in zip(hidden, masked_NT[row], strict=False)
            if hide
        ]
    found_MV = model.masked_logits(targets_NT, masked_NT)
    np.testing.assert_allclose(found_MV.detach().numpy(), np.array(expected), atol=1e-10)


# ---------------------------------------------------------------------------------------- what is read


def test_a_row_does_not_depend_on_the_others_or_on_padding_of_source_or_target() -> None:
    model, (sources_BS, lengths_B), targets_BT = small(), sources(), targets()
    masked_BT = targets_BT != IGNORE
    masked_BT[0, 1] = False
    found_MV = model.masked_logits(targets_BT, masked_BT, model.encode(sources_BS, lengths_B))
    wider_BS = torch.cat([sources_BS, torch.randint(SOURCES, (3, 3))], dim=1)
    wider_BT = torch.nn.functional.pad(targets_BT, (0, 2), value=IGNORE)
    wider_MV = model.masked_logits(
        wider_BT, torch.nn.functional.pad(masked_BT, (0, 2)), model.encode(wider_BS, lengths_B)
    )
    torch.testing.assert_close(wider_MV, found_MV, **TOLERANCE)
    alone = []
    for row, target in enumerate(TARGETS):
        length = SOURCE_LENGTHS[row]
        context = model.encode(sources_BS[row : row + 1, :length], lengths_B[row : row + 1])
        alone.append(model.masked_logits(torch.tensor([target]), masked_BT[row : row + 1, : len(target)], context))
        torch.testing.assert_close(
            context.length_log_probs_BL[0],
            model.encode(sources_BS, lengths_B).length_log_probs_BL[row],
            **TOLERANCE,
        )
    torch.testing.assert_close(torch.cat(alone), found_MV, **TOLERANCE)


def test_masked_tokens_are_not_read_and_all_others_are() -> None:
    model = small()
    sources_BS, lengths_B = torch.tensor([[1, 2, 3, 4]]), torch.tensor([3])
    context = model.encode(sources_BS, lengths_B)
    tokens_NT, masked_NT = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[False, True, False, True]])
    found_MV = model.masked_logits(tokens_NT, masked_NT, context)
    for other in ([0, 3, 2, 0], [0, model.mask_id, 2, -7]):
        assert torch.equal(model.masked_logits(torch.tensor([other]), masked_NT, context), found_MV)
    for other in ([1, 1, 2, 3], [0, 1, 3, 3]):
        changed_MV = model.masked_logits(torch.tensor([other]), masked_NT, context)
        assert (changed_MV - found_MV).abs().amax(1).min() > 1e-4
    for place in range(3):
        changed_BS = sources_BS.clone()
        changed_BS[0, place] = 0
        changed = model.encode(changed_BS, lengths_B)
        assert (model.masked_logits(tokens_NT, masked_NT, changed) - found_MV).abs().amax(1).min() > 1e-4
        assert (changed.length_log_probs_BL - context.length_log_probs_BL).abs().max() > 1e-4
    after_BS = torch.tensor([[1, 2, 3, 0]])  # after the end
    torch.testing.assert_close(model.masked_logits(tokens_NT, masked_NT, model.encode(after_BS, lengths_B)), found_MV)


def test_an_empty_source_is_the_length_symbol_alone() -> None:
    model = small()
    both = model.encode(torch.tensor([[3, 4], [5, 1]]), torch.tensor([0, 2]))
    alone = model.encode(torch.zeros(1, 0, dtype=torch.long), torch.tensor([0]))
    torch.testing.assert_close(both.length_log_probs_BL[:1], alone.length_log_probs_BL, **TOLERANCE)
    masked_NT = torch.tensor([[True, False]])
    torch.testing.assert_close(
        model.masked_logits(torch.tensor([[0, 2]]), masked_NT, rows_of(both, torch.tensor([0]))),
        model.masked_logits(torch.tensor([[0, 2]]), masked_NT, alone),
        **TOLERANCE,
    )


def test_lengths_have_probabilities_that_sum_to_one() -> None:
    context = small().encode(*sources())
    assert context.length_log_probs_BL.shape == (3, L)
    torch.testing.assert_close(context.length_log_probs_BL.exp().sum(1), torch.ones(3).double(), **TOLERANCE)


# ---------------------------------------------------------------------------------------- the context


def test_the_source_is_read_once_and_the_head_sees_masked_positions_only() -> None:
    model, seen, read = small(), [], []
    model.head.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    for part in (*model.encoder, *(layer.cross.key for layer in model.decoder)):
        part.register_forward_hook(lambda module, inputs, output: read.append(1))
    context = model.encode(*sources())
    assert len(read) == 4
    masked_NT = torch.tensor([[True, False], [True, True], [False, False]])
    for _ in range(3):
        model.masked_logits(torch.zeros(3, 2).long(), masked_NT, context)
    assert len(read) == 4
    assert seen == [3, 3, 3]


def test_rows_of_a_context_can_be_picked_and_repeated() -> None:
    model, (sources_BS, lengths_B) = small(), sources()
    context = model.encode(sources_BS, lengths_B)
    shapes: list[tuple[int, ...]] = []
    tree.map(lambda leaf: shapes.append(tuple(leaf.shape)) or leaf, context)
    assert len(shapes) == 2 * 2 + 2
    assert {shape[0] for shape in shapes} == {3}
    rows_N = torch.tensor([2, 0, 2, 1])
    picked = rows_of(context, rows_N)
    assert isinstance(picked, ConditionalContext)
    tokens_NT, masked_NT = torch.randint(V, (4, 3)), torch.ones(4, 3, dtype=torch.bool)
    expected_MV = model.masked_logits(tokens_NT, masked_NT, model.encode(sources_BS[rows_N], lengths_B[rows_N]))
    torch.testing.assert_close(model.masked_logits(tokens_NT, masked_NT, picked), expected_MV, **TOLERANCE)


def test_pseudo_log_likelihood_given_sources_one_mask_at_a_time() -> None:
    model, (sources_BS, lengths_B) = small(), sources()
    tokens_BT = torch.randint(V, (3, 3))
    with torch.no_grad():
        found_BT = pseudo_log_likelihood(model, tokens_BT, context=model.encode(sources_BS, lengths_B), max_rows=4)
    for row, place in itertools.product(range(3), range(3)):
        masked = [t == place for t in range(3)]
        source = sources_BS[row, : SOURCE_LENGTHS[row]].tolist()
        (scores,), _ = conditional_in_numpy(model, source, tokens_BT[row].tolist(), masked)
        expected = scores[tokens_BT[row, place]] - oracles.log_sum_exp(list(scores))
        assert abs(found_BT[row, place].item() - expected) < 1e-10


# ---------------------------------------------------------------------------------------- keeping, refusing, learning


def test_saved_and_loaded_back(tmp_path: Path) -> None:
    model = ConditionalMaskedTransformer(
        source_size=SOURCES, vocab_size=V, max_length=L, hidden_size=8, num_layers=1, num_heads=2, feedforward_size=9
    ).eval()
    model.save_pretrained(tmp_path)
    back = ConditionalMaskedTransformer.from_pretrained(tmp_path).eval()
    assert (back.vocab_size, back.mask_id, back.max_length) == (V, V, L)
    (sources_BS, lengths_B), tokens_NT = sources(), torch.randint(V, (3, 3))
    masked_NT = torch.ones(3, 3, dtype=torch.bool)
    contexts = [one.encode(sources_BS, lengths_B) for one in (model, back)]
    assert torch.equal(contexts[0].length_log_probs_BL, contexts[1].length_log_probs_BL)
    one, other = (m.masked_logits(tokens_NT, masked_NT, c) for m, c in zip((model, back), contexts, strict=True))
    assert torch.equal(one, other)


def test_dropout_is_for_training_only() -> None:
    model = ConditionalMaskedTransformer(source_size=SOURCES, vocab_size=V, max_length=L, hidden_size=8, dropout=0.5)
    context = model.encode(*sources())
    assert not torch.equal(model.encode(*sources()).length_log_probs_BL, context.length_log_probs_BL)
    tokens_NT, masked_NT = torch.zeros(3, 2).long(), torch.ones(3, 2, dtype=torch.bool)
    pair = [model.masked_logits(tokens_NT, masked_NT, context) for _ in range(2)]
    assert not torch.equal(*pair)
    model.eval()
    pair = [model.masked_logits(tokens_NT, masked_NT, context) for _ in range(2)]
    assert torch.equal(*pair)


def test_refusals() -> None:
    model, (sources_BS, lengths_B) = small(), sources()
    context = model.encode(sources_BS, lengths_B)
    tokens_NT, masked_NT = torch.zeros(3, 2).long(), torch.ones(3, 2, dtype=torch.bool)
    for nothing in (None, tokens_NT, (context.memories, context.mask_BS)):
        with pytest.raises(InputError, match="needs a source"):
            model.masked_logits(tokens_NT, masked_NT, nothing)
    with pytest.raises(InputError, match="2 sequences with 3 sources"):
        model.masked_logits(tokens_NT[:2], masked_NT[:2], context)
    with pytest.raises(InputError, match="do not fit"):
        model.masked_logits(tokens_NT, masked_NT.long(), context)
    with pytest.raises(InputError, match="masked padding"):
        model.masked_logits(tokens_NT.index_fill(1, torch.tensor([1]), IGNORE), masked_NT, context)
    for lengths in ([5, 1, 1], [1, -1, 1]):
        with pytest.raises(InputError, match="and there are 4 positions"):
            model.encode(sources_BS, torch.tensor(lengths))
    for wrong in (lengths_B[:2], lengths_B[:, None]):
        with pytest.raises(InputError, match="do not fit"):
            model.encode(sources_BS, wrong)


@pytest.mark.parametrize("name", ["source_size", "vocab_size", "max_length", "hidden_size", "num_layers", "num_heads"])
def test_invalid_sizes_are_refused(name: str) -> None:
    sizes = {"source_size": 3, "vocab_size": 3, "max_length": 3, **{name: 0}}
    with pytest.raises(InputError, match=f"{name} must be at least 1, got 0"):
        ConditionalMaskedTransformer(**sizes)
    with pytest.raises(InputError, match="use a multiple of 4"):
        ConditionalMaskedTransformer(source_size=3, vocab_size=3, max_length=3, hidden_size=6)


@pytest.mark.thorough
def test_it_learns_to_reverse_a_string_and_how_long_that_is() -> None:
    strings = [string for length in (1, 2, 3) for string in itertools.product(range(3), repeat=length)]
    batch = collate([EncodedExample(string, string[::-1]) for string in strings])
    model = ConditionalMaskedTransformer(
        source_size=3, vocab_size=3, max_length=4, hidden_size=16, num_layers=1, feedforward_size=32, dropout=0.0
    )
    objective = conditional_masked_objective(mask_uniformly)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        objective(model, batch, {}).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        context = model.encode(batch.sources_BS, batch.source_lengths_B)
        assert (context.length_log_probs_BL.argmax(1) + 1).tolist() == [len(string) for string in strings]
        everything_BT = batch.targets_BT != IGNORE
        predicted_M = model.masked_logits(batch.targets_BT, everything_BT, context).argmax(-1)
    assert torch.equal(predicted_M, batch.targets_BT[everything_BT])
