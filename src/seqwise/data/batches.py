"""Padded batches of examples of similar length.

Shapes: B batch, S source length and T target length, each the longest of the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler

from seqwise.data.readers import Example
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError

IGNORE = -100  # default ``ignore_index`` of torch.nn.functional.cross_entropy
FREE = -1  # marks the positions of a sequence that are to be sampled

CHUNK_BATCHES = 50


@dataclass(frozen=True)
class EncodedExample:
    """Example as ids: S of the source, and T of the target with its end token, if any; no target ids for prediction.

    Example:
        >>> EncodedExample((3, 1, 2), (5, 0)).lengths
        (3, 2)
    """

    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]

    @property
    def lengths(self) -> tuple[int, int]:
        """``(S, T)``, the sort key of batches."""
        return len(self.source_ids), len(self.target_ids)


@dataclass(frozen=True, eq=False)
class Batch:
    """Batch of B examples as int64 tensors on one device.

    Args:
        sources_BS: source ids, padded with 0; only ``source_lengths_B`` tells padding from the token 0.
        source_lengths_B: source lengths, at least 1.
        targets_BT: target ids, padded with -100 (`IGNORE`); the last token is the end id, if any.
        target_lengths_B: target lengths, end token included; 0 for prediction.
        indices_B: index of each example in its dataset.

    Example:
        >>> batch = collate([EncodedExample((3, 1), (2,))], indices=[7])
        >>> len(batch), batch.to("cpu").indices_B
        (1, tensor([7]))
    """

    sources_BS: Tensor
    source_lengths_B: Tensor
    targets_BT: Tensor
    target_lengths_B: Tensor
    indices_B: Tensor

    def __len__(self) -> int:
        return self.sources_BS.shape[0]

    def to(self, device: torch.device | str | int) -> Batch:
        """Move the batch to another device."""
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


def encode_examples(
    examples: Iterable[Example], source_vocabulary: Vocabulary, target_vocabulary: Vocabulary
) -> list[EncodedExample]:
    """Convert tokens to ids; targets end with the end id if the target vocabulary has one.

    A source never gets an end id, and an empty target (prediction input) stays empty.

    Raises:
        InputError: a source is empty, or a token is not in its vocabulary; names the file and line of the example.

    Example:
        >>> letters, sounds = Vocabulary(("a", "b")), Vocabulary(("$", "A", "B"), end="$")
        >>> encode_examples([Example(("a", "b"), ("A", "B")), Example(("b",), ())], letters, sounds)
        [EncodedExample(source_ids=(0, 1), target_ids=(1, 2, 0)), EncodedExample(source_ids=(1,), target_ids=())]
    """
    end = () if target_vocabulary.end_id is None else (target_vocabulary.end_id,)
    encoded = []
    for example in examples:
        if not example.source:
            raise InputError("the source is empty", **example.place, hint="fill it in or drop the example")
        source = tuple(source_vocabulary.encode(example.source, **example.place))
        target = tuple(target_vocabulary.encode(example.target, **example.place))
        encoded.append(EncodedExample(source, target + end if target else ()))
    return encoded


def collate(examples: Sequence[EncodedExample], *, indices: Sequence[int] | None = None) -> Batch:
    """Pad examples to a batch on the CPU, in the given order.

    Args:
        examples: examples, at least one.
        indices: index of each example in its dataset; by default they are numbered from 0.

    Raises:
        InputError: there are no examples.

    Example:
        >>> batch = collate([EncodedExample((5, 6, 7), (1, 0)), EncodedExample((8,), (2, 3, 0))])
        >>> batch.sources_BS.tolist(), batch.source_lengths_B.tolist()
        ([[5, 6, 7], [8, 0, 0]], [3, 1])
        >>> batch.targets_BT.tolist(), batch.target_lengths_B.tolist()
        ([[1, 0, -100], [2, 3, 0]], [2, 3])
    """
    if not examples:
        raise InputError("a batch needs at least one example")
    sources = [torch.tensor(example.source_ids, dtype=torch.long) for example in examples]
    targets = [torch.tensor(example.target_ids, dtype=torch.long) for example in examples]
    return Batch(
        sources_BS=pad_sequence(sources, batch_first=True, padding_value=0),
        source_lengths_B=torch.tensor([len(ids) for ids in sources]),
        targets_BT=pad_sequence(targets, batch_first=True, padding_value=IGNORE),
        target_lengths_B=torch.tensor([len(ids) for ids in targets]),
        indices_B=torch.tensor(range(len(examples)) if indices is None else indices),
    )


class BatchSampler(Sampler[list[int]]):
    """Sampler of batches of similar length in random order: each index once per epoch, with little padding.

    With ``batch_size``: shuffle all indices, sort within chunks of 50 batches by (source length, target length), cut,
    shuffle the batches; one batch per epoch may be smaller. With ``batch_tokens``, the limit of ``B max(S, T)``,
    padding included: shuffle, sort all, cut before the limit, shuffle the batches; an example over the limit is a batch
    of its own. These cuts depend only on the lengths, so every epoch has the same number of batches. The order depends
    only on ``(seed, epoch)``. Not implemented: sharding over processes.

    Example:
        >>> sampler = BatchSampler([(1, 1), (9, 9), (1, 2), (9, 8)], batch_size=2, seed=0)
        >>> sampler.set_epoch(3)
        >>> len(sampler), sorted(sorted(batch) for batch in sampler)
        (2, [[0, 2], [1, 3]])
    """

    def __init__(
        self,
        lengths: Sequence[tuple[int, int]],
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        seed: int,
    ) -> None:
        if not lengths:
            raise InputError("there is no example to draw batches from")
        if (batch_size is None) == (batch_tokens is None):
            problem = "the batch size is a number of examples or of tokens, not both"
            raise InputError(problem, hint="give batch_size or batch_tokens")
        for name, size in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
            if size is not None and size < 1:
                raise InputError(f"{name} must be at least 1, got {size}")
        self.lengths, self.seed, self.epoch = list(lengths), seed, 0
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self._num_batches = len(self._cut(list(range(len(lengths)))))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return self._num_batches

    def __iter__(self) -> Iterator[list[int]]:
        # A hash, not seed + epoch: the order of seed 0 in epoch 1 must not be that of seed 1 in epoch 0.
        digest = hashlib.sha256(f"{self.seed}/{self.epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        batches = self._cut(torch.randperm(len(self.lengths), generator=generator).tolist())
        for place in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[place]

    def _cut(self, order: list[int]) -> list[list[int]]:
        """Cut a random order of all indices into batches."""
        batches: list[list[int]] = []
        if self.batch_size is not None:
            # A chunk is a whole number of batches, so only the last batch of the last chunk can be short.
            for start in range(0, len(order), CHUNK_BATCHES * self.batch_size):
                chunk = sorted(order[start : start + CHUNK_BATCHES * self.batch_size], key=self.lengths.__getitem__)
                batches += [chunk[i : i + self.batch_size] for i in range(0, len(chunk), self.batch_size)]
            return batches
        assert self.batch_tokens is not None
        longest = 0
        for index in sorted(order, key=self.lengths.__getitem__):
            longest = max(longest, *self.lengths[index])
            if not batches or (len(batches[-1]) + 1) * longest > self.batch_tokens:
                batches.append([])
                longest = max(self.lengths[index])
            batches[-1].append(index)
        return batches
