"""Scores of sequences by a run: ``log p(token | all others)`` at each position, and their sum.

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
from seqwise.runs.run import MaskedRun
from seqwise.sampling.energies import TokenScores, pseudo_log_likelihood
from seqwise.sampling.problems import of_one_length

MAX_ROWS = 256
BLOCK = 256  # sequences that are sorted by length before the first of them is given back


@contextmanager
def room_for(what: str, *, hint: str) -> Iterator[None]:
    """Say in one line that the memory is too small for something."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(f"there is no room for {what}", hint=hint) from None


@dataclass(frozen=True, eq=False)
class SequenceScore(TokenScores):
    """A sequence as the model sees it, with ``log p(token | all others)`` at each of its T positions, in nats.

    Attributes:
        tokens: as the model sees them.
        token_log_probs_T: on the CPU.
        example: what was scored.
    """

    example: Example


def score_sequences(
    run: MaskedRun, examples: Sequence[Example], *, max_rows: int = MAX_ROWS
) -> Iterator[SequenceScore]:
    """Score sequences, in the order in which they come: each of T tokens takes T masked copies of itself.

    All are encoded before the first is scored. Sequences of equal length near each other share passes of the model.

    Args:
        run: its model in evaluation mode.
        examples: as the run reads them.
        max_rows: how many masked sequences the model is given at once.

    Raises:
        InputError: at once, as the run's ``encode``; a sequence without a token; or ``max_rows`` is less than 1.

    Source: Salazar et al. (ACL 2020), section 2. Not implemented: the probability of the length of a conditional model,
    which is no part of these scores.
    """
    if max_rows < 1:
        raise InputError(f"max_rows must be at least 1, got {max_rows}")
    for block in in_blocks(examples, BLOCK):
        for example, one in zip(block, run.codec.encode(block), strict=True):
            if not one.target_ids:
                raise InputError("there is no sequence to score", path=example.path or None, line=example.line or None)
    return _scores(run, examples, max_rows)


def _scores(run: MaskedRun, examples: Sequence[Example], max_rows: int) -> Iterator[SequenceScore]:
    for block in in_blocks(examples, BLOCK):
        # Encoded once more: the ids of all would take more room than the examples, of which most are on the disk.
        encoded = run.codec.encode(block)
        for example, one, log_probs_T in zip(block, encoded, _score_block(run, encoded, max_rows), strict=True):
            yield SequenceScore(run.codec.decode(one.target_ids), log_probs_T, example)


@torch.no_grad()
def _score_block(run: MaskedRun, block: Sequence[EncodedExample], max_rows: int) -> list[Tensor]:
    model = run.model
    device = next(model.parameters()).device
    # Of one length, those whose sources have one length come together.
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
