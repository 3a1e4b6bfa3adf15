"""Scaled dot-product attention.

Shapes: B batch, N heads, L queries, C keys, A size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.models.products import blas_is_slow

# Where torch's BLAS is slow, attention of at most this many keys and scores is computed by products of whole batches.
MOST_KEYS, MOST_SCORES = 256, 2**21


def attention(
    queries_BNLA: Tensor,
    keys_BNCA: Tensor,
    values_BNCA: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """Compute ``softmax(scale Q K^T + mask) V``, (B, N, L, A), as ``F.scaled_dot_product_attention`` does.

    Where :func:`~seqwise.models.products.blas_is_slow`, without gradients, few keys are multiplied batch by batch.
    The fused kernel of torch takes each head of each row by itself, which takes longer there with few queries, most of
    all on several threads.

    Args:
        queries_BNLA, keys_BNCA, values_BNCA: queries, keys and values.
        mask: of two dimensions at least; false, or minus infinity, hides a key, and other numbers are added to its
            scores. Each query must see a key.
        scale: by default ``1 / sqrt(A)``.

    Example:
        >>> queries, keys = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 3, 2)
        >>> mask = torch.tensor([[True, True, False]])
        >>> attention(queries, keys, torch.arange(6.0).view(1, 1, 3, 2), mask)
        tensor([[[[1., 2.]]]])
    """
    num_keys = keys_BNCA.shape[2]
    is_small = num_keys <= MOST_KEYS and queries_BNLA[..., 0].numel() * num_keys <= MOST_SCORES
    if (
        not is_small
        or not blas_is_slow()
        or torch.is_grad_enabled()
        or queries_BNLA.device.type != "cpu"
        or queries_BNLA.dtype not in (torch.float32, torch.float64)
        or torch.is_autocast_enabled("cpu")
    ):
        return F.scaled_dot_product_attention(queries_BNLA, keys_BNCA, values_BNCA, attn_mask=mask, scale=scale)
    return batched_attention(queries_BNLA, keys_BNCA, values_BNCA, mask, scale=scale)


def batched_attention(
    queries_BNLA: Tensor,
    keys_BNCA: Tensor,
    values_BNCA: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks_N1G: Tensor | None = None,
) -> Tensor:
    """Compute :func:`attention` by products of whole batches, without gradients.

    Args:
        queries_BNLA, keys_BNCA, values_BNCA, mask, scale: see :func:`attention`.
        softcap: c; scores s become ``c tanh(s / c)`` before the mask.
        sinks_N1G: score of a further key without a value, of G queries, which are repeated.
    """
    scores_BNLC = (queries_BNLA * (queries_BNLA.shape[-1] ** -0.5 if scale is None else scale)) @ keys_BNCA.mT
    if softcap is not None:
        scores_BNLC = softcap * (scores_BNLC / softcap).tanh()
    if mask is not None and mask.dtype == torch.bool:
        scores_BNLC.masked_fill_(~mask, -torch.inf)
    elif mask is not None:
        scores_BNLC.add_(mask)
    if sinks_N1G is not None:
        num_repeats = queries_BNLA.shape[2] // sinks_N1G.shape[2]
        sinks_NL1 = sinks_N1G.expand(-1, num_repeats, -1).flatten(1)[..., None]
        scores_BNLC = torch.cat([scores_BNLC, sinks_NL1.expand(len(scores_BNLC), -1, -1, -1)], dim=-1)
    weights_BNLC = scores_BNLC.softmax(-1, dtype=torch.promote_types(scores_BNLC.dtype, torch.float32))
    return weights_BNLC[..., : keys_BNCA.shape[2]].to(values_BNCA.dtype) @ values_BNCA
