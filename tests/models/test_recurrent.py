"""The LSTM models: against an LSTM in NumPy, step by step against all at once. With the Transformer: batches, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oracles
from oracles import Case, tagger_case, transformer_case, translation_case
from seqwise import InputError, tree
from seqwise.data import EncodedExample, collate
from seqwise.models import ChainTagger, EncoderDecoder, Tagger

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}
KINDS = ["forward tagger", "look-ahead tagger", "tagger", "encoder-decoder"]


def a_case(kind: str, seed: int, **options: Any) -> Case:
    if kind == "encoder-decoder":
        return translation_case(seed, **options)
    if kind == "transformer":
        return transformer_case(seed, **options)
    ahead = 2 if kind == "look-ahead tagger" else 0
    return tagger_case(seed, bidirectional=kind == "tagger", look_ahead=ahead, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_forcing_equals_the_model_in_numpy(kind: str) -> None:
    for seed in range(8):
        case = a_case(kind, seed)
        context = case.model.encode(case.batch)
        logits_BTV = case.forced_logits()
        for b, (oracle, example) in enumerate(zip(case.oracles, case.examples, strict=True)):
            length = len(example.source_ids)
            memory = oracles.numbers(context.memory_BSM[b, :length])
            np.testing.assert_allclose(memory, np.stack(oracle.memory), atol=1e-10)
            assert context.mask_BS[b].tolist() == [s < length for s in range(context.mask_BS.shape[1])]
            expected = np.array(oracles.forced_logits(oracle, example.target_ids))
            np.testing.assert_allclose(oracles.numbers(logits_BTV[b, : len(expected)]), expected, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_forcing_equals_one_step_at_a_time(kind: str) -> None:
    for seed in range(8):
        case = a_case(kind, seed)
        model, targets_BT = case.model, case.batch.targets_BT
        context = model.encode(case.batch)
        torch.testing.assert_close(
            model.teacher_forced(context, targets_BT), case.stepped(context, targets_BT), **TOLERANCE
        )


@pytest.mark.parametrize("kind", KINDS)
def test_every_slot_steps_by_itself(kind: str) -> None:
    """J slots at once give what each gives alone, and the slots stay in place."""
    case = a_case(kind, 1)
    context = case.model.encode(case.batch)
    inputs_B1D, state = case.model.start(context)
    inputs_BJD = torch.randn(3, 4, inputs_B1D.shape[-1], dtype=torch.float64)
    state_BJ = tree.map(lambda leaf: torch.randn(3, 4, leaf.shape[-1], dtype=torch.float64), state)
    features_BJH, next_BJ = case.model.step(inputs_BJD, state_BJ, context, 0)
    for j in range(4):
        slot = tree.map(lambda leaf, j=j: leaf[:, j, None], state_BJ)
        features_B1H, next_B1 = case.model.step(inputs_BJD[:, j, None], slot, context, 0)
        torch.testing.assert_close(features_BJH[:, j, None], features_B1H, **TOLERANCE)
        for whole, alone in zip(next_BJ, next_B1, strict=True):
            torch.testing.assert_close(whole[:, j, None], alone, **TOLERANCE)


@pytest.mark.parametrize("kind", [*KINDS, "transformer"])
def test_batch_order_and_padding_change_nothing(kind: str) -> None:
    draw = np.random.default_rng(0)
    for seed in range(30):
        case = a_case(kind, seed)
        whole = case.forced_logits()
        order = draw.permutation(3).tolist()
        longest = EncodedExample(tuple([2] * 8), tuple([0] * 8))
        mixed = collate([longest, *(case.examples[b] for b in order)])
        shuffled = case.forced_logits(mixed)
        for row, b in enumerate(order):
            length = len(case.examples[b].target_ids)
            torch.testing.assert_close(shuffled[row + 1, :length], whole[b, :length], **TOLERANCE)
        b = seed % 3
        alone = case.forced_logits(collate([case.examples[b]]))
        torch.testing.assert_close(alone[0], whole[b, : alone.shape[1]], **TOLERANCE)


@pytest.mark.parametrize("kind", [*KINDS, "transformer"])
def test_padding_symbols_are_never_read(kind: str) -> None:
    """Whatever stands in the padded places of sources and targets, outputs and gradients stay the same."""
    case = a_case(kind, 2)
    spoiled = collate(case.examples)
    for b, example in enumerate(case.examples):
        spoiled.sources_BS[b, len(example.source_ids) :] = 4
        spoiled.targets_BT[b, len(example.target_ids) :] = -7
    real_BT = case.batch.targets_BT >= 0
    results = []
    for batch in (case.batch, spoiled):
        case.model.zero_grad()
        logits_NV = case.forced_logits(batch)[real_BT]
        logits_NV.square().sum().backward()
        results.append([logits_NV, *(p.grad.clone() for p in case.model.parameters() if p.grad is not None)])
    for clean, dirty in zip(*results, strict=True):
        torch.testing.assert_close(clean, dirty, **TOLERANCE)


def test_a_forward_tagger_sees_no_future_and_a_bidirectional_one_does() -> None:
    for bidirectional in (False, True):
        case = tagger_case(3, lengths=(4, 4), bidirectional=bidirectional)
        other = EncodedExample((*case.examples[0].source_ids[:3], (case.examples[0].source_ids[3] + 1) % 5), (0,) * 4)
        first = EncodedExample(case.examples[0].source_ids, (0,) * 4)
        logits_BTV = case.forced_logits(collate([first, other]))
        difference_T = (logits_BTV[0] - logits_BTV[1]).abs().amax(-1)
        assert (difference_T[:3] > 1e-6).any() == bidirectional and difference_T[3] > 1e-6
        assert bidirectional or (difference_T[:3] < 1e-12).all()  # the rows of a product may be rounded differently


def test_a_tagger_looks_as_many_tokens_ahead_as_it_is_told() -> None:
    for look_ahead in (0, 1, 2):
        case = tagger_case(3, lengths=(5, 5), bidirectional=False, look_ahead=look_ahead)
        first = case.examples[0].source_ids
        other = EncodedExample((*first[:4], (first[4] + 1) % 5), (0,) * 5)
        logits_BTV = case.forced_logits(collate([EncodedExample(first, (0,) * 5), other]))
        difference_T = (logits_BTV[0] - logits_BTV[1]).abs().amax(-1)
        assert (difference_T[: 4 - look_ahead] < 1e-12).all() and (difference_T[4 - look_ahead :] > 1e-6).all()
    with pytest.raises(InputError, match="reads its source both ways has no look-ahead; leave look_ahead out"):
        Tagger(source_size=5, target_size=3, bidirectional=True, look_ahead=1)
    with pytest.raises(InputError, match="look_ahead must be at least 0, got -1"):
        ChainTagger(source_size=5, target_size=3, look_ahead=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_source_does_not_depend_on_its_batch(kind: str) -> None:
    case = a_case(kind, 4)
    empty = EncodedExample((), (1,))
    results = []
    for source in ((1,), (1, 2, 3), (4, 4, 4, 4, 4)):
        batch = collate([empty, EncodedExample(source, (1,))])
        logits_BTV = case.forced_logits(batch)
        assert torch.isfinite(logits_BTV).all()
        results.append(logits_BTV[0])
    if kind != "encoder-decoder":
        return  # a tagger has no position to tag in an empty source
    torch.testing.assert_close(results[1], results[0], **TOLERANCE)
    torch.testing.assert_close(results[2], results[0], **TOLERANCE)


@pytest.mark.parametrize("kind", [*KINDS, "transformer"])
def test_a_batch_without_gold_outputs_has_no_features(kind: str) -> None:
    case = a_case(kind, 5)
    batch = collate([EncodedExample((1, 2), ()), EncodedExample((3,), ())])
    features_BTH = case.model.teacher_forced(case.model.encode(batch), batch.targets_BT)
    assert features_BTH.shape[:2] == (2, 0)


@pytest.mark.parametrize("kind", [*KINDS, "transformer"])
def test_a_saved_model_is_loaded_back(kind: str, tmp_path: Path) -> None:
    case = a_case(kind, 6)
    case.model.float().save_pretrained(tmp_path)
    assert {"model.safetensors", "config.json"} <= {path.name for path in tmp_path.iterdir()}
    again = type(case.model).from_pretrained(tmp_path)
    assert again.end == case.model.end
    for (name, before), (_, after) in zip(case.model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(before, after), name
    logits_BTV = again.head(again.teacher_forced(again.encode(case.batch), case.batch.targets_BT))
    assert torch.equal(case.forced_logits(), logits_BTV)


def test_dropout_acts_in_training_only() -> None:
    models = [
        Tagger(source_size=5, target_size=4, embedding_size=8, hidden_size=8, label_embedding_size=3, dropout=0.5),
        EncoderDecoder(source_size=5, target_size=4, end=1, embedding_size=8, hidden_size=8, dropout=0.5),
    ]
    for model, case in zip(models, (tagger_case(0), translation_case(0)), strict=True):
        context = {}
        for mode in (True, False):
            model.train(mode)
            context[mode] = [model.encode(case.batch).memory_BSM for _ in range(2)]
        assert not torch.equal(*context[True])
        assert torch.equal(*context[False])
