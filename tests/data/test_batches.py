"""Batches: padding, end tokens, and an order that depends on seed and epoch only."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from seqwise.data import IGNORE, EncodedExample, Example, Vocabulary, collate, encode_examples
from seqwise.data.batches import BatchSampler
from seqwise.errors import InputError

LETTERS = Vocabulary(("a", "b"))
EXAMPLES = [Example(("a", "b", "a"), ("A",)), Example(("b",), ("B", "A", "B"))]


@pytest.mark.parametrize("end", [None, "$"])
def test_collate_with_and_without_end_token(end):
    sounds = Vocabulary(("$", "A", "B"), end=end)
    batch = collate(encode_examples(EXAMPLES, LETTERS, sounds), indices=[12, 5])
    assert batch.sources_BS.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert batch.source_lengths_B.tolist() == [3, 1]
    assert batch.indices_B.tolist() == [12, 5]
    if end is None:
        assert batch.targets_BT.tolist() == [[1, IGNORE, IGNORE], [2, 1, 2]]
        assert batch.target_lengths_B.tolist() == [1, 3]
    else:
        assert batch.targets_BT.tolist() == [[1, 0, IGNORE, IGNORE], [2, 1, 2, 0]]
        assert batch.target_lengths_B.tolist() == [2, 4]
    assert {t.dtype for t in vars(batch).values()} == {torch.int64}
    assert {t.device.type for t in vars(batch.to("meta")).values()} == {"meta"} and len(batch) == 2


def test_ignore_is_what_cross_entropy_leaves_out():
    targets_BT = collate([EncodedExample((0,), (1, 1)), EncodedExample((0,), (0,))]).targets_BT
    scores_BTV = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(0))
    loss = torch.nn.functional.cross_entropy(scores_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum")
    log_probs_BTV = scores_BTV.log_softmax(-1)
    torch.testing.assert_close(loss, -(log_probs_BTV[0, 0, 1] + log_probs_BTV[0, 1, 1] + log_probs_BTV[1, 0, 0]))


def test_prediction_inputs_get_no_end_token():
    encoded = encode_examples([Example(("a",), ())], LETTERS, Vocabulary(("$", "A"), end="$"))
    batch = collate(encoded)
    assert batch.targets_BT.shape == (1, 0) and batch.target_lengths_B.tolist() == [0]


def test_refused_examples():
    with pytest.raises(InputError, match=r"^d\.tsv:7: unknown token 'c'; "):
        encode_examples([Example(("a", "c"), ("A",), "d.tsv", 7)], LETTERS, LETTERS)
    with pytest.raises(InputError, match=r"^d\.tsv:8: unknown token 'A'; the nearest known token is 'a'"):
        encode_examples([Example(("a",), ("A",), "d.tsv", 8)], LETTERS, LETTERS)
    with pytest.raises(InputError, match=r"^d\.tsv:9: the source is empty"):
        encode_examples([Example((), (), "d.tsv", 9)], LETTERS, LETTERS)
    with pytest.raises(InputError, match="at least one example"):
        collate([])


def lengths_of(count: int) -> list[tuple[int, int]]:
    draw = random.Random(0)
    return [(draw.randint(1, 40), draw.randint(1, 40)) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 7, 8, 399, 400, 401, 1003])
def test_each_index_once_in_batches_of_the_size(count):
    sampler = BatchSampler(lengths_of(count), batch_size=8, seed=1)
    batches = list(sampler)
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert len(batches) == len(sampler) == -(-count // 8)
    assert sorted(map(len, batches), reverse=True)[:-1] == [8] * (len(batches) - 1)


def padded(lengths: list[tuple[int, int]], batch: list[int]) -> int:
    return len(batch) * max(max(lengths[index]) for index in batch)


@pytest.mark.parametrize("count", [1, 7, 400, 1003])
@pytest.mark.parametrize("batch_tokens", [1, 39, 200, 10**9])
def test_each_index_once_in_batches_of_so_many_tokens(count: int, batch_tokens: int) -> None:
    lengths = lengths_of(count)
    sampler = BatchSampler(lengths, batch_tokens=batch_tokens, seed=1)
    sizes = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert sorted(index for batch in batches for index in batch) == list(range(count))
        assert all(padded(lengths, batch) <= batch_tokens or len(batch) == 1 for batch in batches)
        assert len(batches) == len(sampler)
        sizes.append(sorted(map(len, batches)))
    assert sizes[0] == sizes[1] == sizes[2]
    # No batch has room for the first example of the next one.
    batches.sort(key=lambda batch: lengths[batch[0]])
    for batch, following in itertools.pairwise(batches):
        assert padded(lengths, [*batch, following[0]]) > batch_tokens


def test_examples_of_one_length_change_their_batches() -> None:
    sampler = BatchSampler([(3, 3)] * 20, batch_tokens=12, seed=0)
    first = {tuple(sorted(batch)) for batch in sampler}
    sampler.set_epoch(1)
    assert first != {tuple(sorted(batch)) for batch in sampler} and len(first) == 5


@pytest.mark.parametrize("size", [{"batch_size": 100}, {"batch_tokens": 100}])
def test_order_depends_on_seed_and_epoch_only(size: dict[str, int]) -> None:
    lengths = lengths_of(500)

    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = BatchSampler(lengths, **size, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    orders = {(seed, epoch): order(seed, epoch) for seed in range(3) for epoch in range(3)}
    assert len({str(value) for value in orders.values()}) == 9
    sampler = BatchSampler(lengths, **size, seed=1)
    before = torch.get_rng_state()
    torch.manual_seed(99)
    for epoch in (2, 0, 2):
        sampler.set_epoch(epoch)
        next(iter(sampler))
        assert list(sampler) == list(sampler) == orders[1, epoch]
    after = torch.get_rng_state()
    torch.manual_seed(99)
    assert torch.equal(after, torch.get_rng_state())
    torch.set_rng_state(before)


def test_batches_hold_similar_lengths_in_no_order_of_length():
    lengths = lengths_of(4000)
    batches = list(BatchSampler(lengths, batch_size=8, seed=0))

    def padding(groups: list[list[int]]) -> int:
        return sum(max(lengths[i][0] for i in group) - lengths[j][0] for group in groups for j in group)

    unsorted = [list(range(start, start + 8)) for start in range(0, 4000, 8)]
    assert padding(batches) < 0.1 * padding(unsorted)
    firsts = [lengths[batch[0]][0] for batch in batches[:50]]
    assert 15 < sum(a > b for a, b in itertools.pairwise(firsts)) < 35


def test_works_as_the_batch_sampler_of_a_loader():
    encoded = [EncodedExample((index,), (index, 0)) for index in range(11)]
    loader = torch.utils.data.DataLoader(
        encoded,  # type: ignore[arg-type]
        batch_sampler=BatchSampler([example.lengths for example in encoded], batch_size=4, seed=0),
        collate_fn=collate,
    )
    places = torch.cat([batch.sources_BS[:, 0] for batch in loader])
    assert sorted(places.tolist()) == list(range(11))


def test_refused_samplers():
    with pytest.raises(InputError, match="no example"):
        BatchSampler([], batch_size=4, seed=0)
    with pytest.raises(InputError, match="batch_size must be at least 1, got 0"):
        BatchSampler([(1, 1)], batch_size=0, seed=0)
    with pytest.raises(InputError, match="batch_tokens must be at least 1, got 0"):
        BatchSampler([(1, 1)], batch_tokens=0, seed=0)
    for both in (None, 3):
        with pytest.raises(InputError, match="give batch_size or batch_tokens"):
            BatchSampler([(1, 1)], batch_size=both, batch_tokens=both, seed=0)
