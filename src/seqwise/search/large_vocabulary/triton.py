"""Triton kernel for GPUs: block maxima and log Z of V scores in a single pass.

A search step reads its scores for log Z and for the maximum of each block of 64. In torch, these are several
memory-bound passes over N x V numbers. Here each program of the kernel reads one tile of a row once, and returns a
maximum for each block and one logsumexp.

Triton comes with GPU builds of torch. With ``TRITON_INTERPRET=1``, the kernel runs slowly on CPUs, where it is tested,
as on a GPU if there is one.

Shapes: N rows, V vocabulary, M full blocks of a row, S tiles of a row.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from seqwise.search.large_vocabulary.blocks import BLOCK

# Blocks of a tile, which one program reads: 4,096 scores, some dozens for each of its threads.
TILE_BLOCKS = 64

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def _scan_tile(  # type: ignore[no-untyped-def]
        scores_NV, maxima_NM, partial_NS, stride_N, vocabulary_size, num_blocks, num_tiles,
        TILE_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)  # N V may be more than 32 bits hold
        tile = tl.program_id(1)
        blocks = tile * TILE_BLOCKS + tl.arange(0, TILE_BLOCKS)
        places = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        inside = places < vocabulary_size
        scores = tl.load(scores_NV + row * stride_N + places, mask=inside, other=-float("inf")).to(tl.float32)
        # tl.max ignores NaN, which must not go unnoticed.
        broken = tl.max((scores != scores).to(tl.int32), axis=1) > 0
        maxima = tl.where(broken, float("nan"), tl.max(scores, axis=1))
        tl.store(maxima_NM + row * num_blocks + blocks, maxima, mask=blocks < num_blocks)
        highest = tl.max(tl.max(scores, axis=1), axis=0)
        # If all scores are minus infinity, subtracting their maximum would give NaN.
        base = tl.where(highest == -float("inf"), 0.0, highest)
        total = tl.sum(tl.sum(tl.exp(scores - base), axis=1), axis=0)
        tl.store(partial_NS + row * num_tiles + tile, base + tl.log(total))


def scan_rows(scores_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Compute block maxima and log Z of every row, reading each score once.

    ``maxima[n, m] = max of scores[n, 64 m : 64 m + 64]``, for full blocks;
    ``log Z[n] = log sum_v exp scores[n, v]``, in nats, minus infinity if every score is.

    Args:
        scores_NV: each row contiguous; 32 bits or fewer.

    Returns:
        ``maxima_NM`` and ``log_partition_N``, in float32.

    Source: the single pass of the online softmax (Milakov and Gimelshein 2018), with tiles instead of a running
    maximum. Not implemented: a backward pass; scores carry no graph.
    """
    num_rows, vocabulary_size = scores_NV.shape
    num_blocks, tile_size = vocabulary_size // BLOCK, TILE_BLOCKS * BLOCK
    num_tiles = -(-vocabulary_size // tile_size)
    maxima_NM = torch.empty(num_rows, num_blocks, dtype=torch.float32, device=scores_NV.device)
    partial_NS = torch.empty(num_rows, num_tiles, dtype=torch.float32, device=scores_NV.device)
    sizes = scores_NV.stride(0), vocabulary_size, num_blocks, num_tiles
    if num_rows:
        _scan_tile[(num_rows, num_tiles)](scores_NV, maxima_NM, partial_NS, *sizes, TILE_BLOCKS, BLOCK)
    return maxima_NM, partial_NS.logsumexp(-1)
