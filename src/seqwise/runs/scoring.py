"""Scores of sequences by a masked model: ``log p(token | all others)`` at each position, and their sum.

Shapes: B sequences, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from seqwise.data.batches import EncodedExample, collate
from seqwise.data.readers import Example
from seqwise.data.spooled import in_blocks
from seqwise.errors import InputError
from seqwise.models.conditional import ConditionalMaskedTransformer
from seqwise.runs.codecs import place_of
from seqwise.runs.run import MaskedRun
from seqwise.sampling.energies import pseudo_log_likelihood
from seqwise.sampling.problems import of_one_length
from seqwise.sampling.scores import TokenScores

MAX_ROWS = 256
BLOCK = 256  # sequences that are sorted by length together


@contextmanager
def room_for(what: str, *, hint: str) -> Iterator[None]:
    """Turn an error for want of memory into one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(f"there is no room for {what}", hint=hint) from None


@dataclass(frozen=True, eq=False)
class SequenceScore(TokenScores):
    """The tokens of an example, with ``log p(token | all others)`` at each of T positions, in nats, on the CPU."""

    example: Example


def score_sequences(
    run: MaskedRun, examples: Sequence[Example], *, max_rows: int = MAX_ROWS
) -> Iterator[SequenceScore]:
    """Score sequences in order, by T masked copies of a sequence of T tokens.

    All are encoded before the first is scored. Sequences of equal length near each other share passes of the model.

    Args:
        run: a masked model in evaluation mode.
        examples: as the run reads them.
        max_rows: number of masked copies in a pass of the model.

    Returns:
        For each example its tokens and ``token_log_probs_T``, in nats, and their sum ``log_prob``.

    Raises:
        InputError: at once, if an example cannot be encoded or has no token, or ``max_rows`` is less than 1.

    Source: Salazar et al. (ACL 2020), section 2. Not implemented: the probability of a length, which conditional models
    have.
    """
    if max_rows < 1:
        raise InputError(f"max_rows must be at least 1, got {max_rows}")
    for block in in_blocks(examples, BLOCK):
        for example, encoded in zip(block, run.codec.encode(block), strict=True):
            if not encoded.target_ids:
                raise InputError("there is no sequence to score", **place_of(example))
    return _scores(run, examples, max_rows)


def _scores(run: MaskedRun, examples: Sequence[Example], max_rows: int) -> Iterator[SequenceScore]:
    for block in in_blocks(examples, BLOCK):
        # Encoded again: the ids of all examples, most of which are on the disk, would fill the memory.
        encoded = run.codec.encode(block)
        for example, ids, log_probs_T in zip(block, encoded, _score_block(run, encoded, max_rows), strict=True):
            yield SequenceScore(run.codec.decode(ids.target_ids), log_probs_T, example)


@torch.no_grad()
def _score_block(run: MaskedRun, block: Sequence[EncodedExample], max_rows: int) -> list[Tensor]:
    model = run.model
    device = next(model.parameters()).device
    # Sequences of one length are ordered by the lengths of their sources.
    order = sorted(range(len(block)), key=lambda place: block[place].lengths[0])
    lengths = [len(block[place].target_ids) for place in order]
    scored: dict[int, Tensor] = {}
    for group in of_one_length(lengths, lambda length: max_rows // length):
        part, length = [order[place] for place in group], lengths[group[0]]
        batch = collate([(place, block[place]) for place in part]).to(device)
        context = (
            model.encode(batch.sources_BS, batch.source_lengths_B)
            if isinstance(model, ConditionalMaskedTransformer)
            else None
        )
        with room_for(f"{min(max_rows, length)} sequences of {length} tokens", hint="give a smaller --max-rows"):
            found_BT = pseudo_log_likelihood(model, batch.targets_BT, context=context, max_rows=max_rows)
        scored |= zip(part, found_BT.cpu(), strict=True)
    return [scored[place] for place in range(len(block))]
