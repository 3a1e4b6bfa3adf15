"""Exact inference in linear chains: log partition, likelihood, marginals and the best output.

Shapes: B batch, T steps, V labels, J and V also the labels before and after a transition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqwise.data.batches import IGNORE, Batch
from seqwise.devices import at_least_float32
from seqwise.errors import InputError
from seqwise.models.chain import Chain
from seqwise.models.protocols import StepModel
from seqwise.objectives.objective import Objective, per_token_objective


class _ChainModel(Protocol):
    def chain(self, context: Any) -> Chain: ...


# ---------------------------------------------------------------------------------------- log partition


def _promoted(chain: Chain) -> Chain:
    """Return a chain whose scores and transitions have one type, float32 or better."""
    scores_BTV = at_least_float32(chain.scores_BTV)
    return Chain(scores_BTV, chain.transitions_VV.to(scores_BTV.dtype), chain.lengths_B)


def chain_log_partition(chain: Chain) -> Tensor:
    """Compute the log partition over all V^T outputs: ``log Z = log sum_y exp s(y)``.

    The forward recursion, ``a_t[j] = e^{u_t[j]} sum_i a_{t-1}[i] e^{A[i, j]}``, is one matrix product per step, with a
    rescaled to sum to 1 at every step. If A spans so many nats that exponentials could underflow (more than about 34 in
    float32, 335 in float64, or minus infinity), it runs on logarithms instead, which is safe for any scores but slower.
    Inputs of length 0 have one output, the empty one, and log Z = 0.

    Args:
        chain: scores, transitions and lengths.

    Returns:
        (B,), float32 or better; minus infinity if every output is forbidden. Differentiable once, by the backward
        recursion for the marginals.

    Source: Lafferty et al. (ICML 2001), section 3; Rabiner (1989) for the scaling. Not implemented: second derivatives.

    Example:
        >>> zeros = Chain(torch.zeros(1, 3, 4), torch.zeros(4, 4), torch.tensor([3]))
        >>> bool(chain_log_partition(zeros)[0].exp().round() == 4**3)
        True
    """
    log_partition: Tensor = _LogPartition.apply(*_promoted(chain))
    return log_partition


class _LogPartition(torch.autograd.Function):
    """Forward and backward recursions as one function; autograd through the steps would cost several times as much."""

    @staticmethod
    def forward(ctx: Any, scores_BTV: Tensor, transitions_VV: Tensor, lengths_B: Tensor) -> Tensor:
        run = _forward(Chain(scores_BTV, transitions_VV, lengths_B))
        # Detached: autograd attaches ctx to the returned tensor, and the two would keep each other alive.
        ctx.run = run._replace(log_partition_B=run.log_partition_B.detach())
        ctx.save_for_backward(scores_BTV, transitions_VV, lengths_B)
        return run.log_partition_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        marginals_BTV, counts_VV = _backward(Chain(*ctx.saved_tensors), ctx.run, gradient_B)
        return marginals_BTV * gradient_B[:, None, None], counts_VV, None


class _Forward(NamedTuple):
    """Values that the backward recursion needs of the forward one: a after each step, or its logarithm."""

    log_partition_B: Tensor
    prefixes_TBV: Tensor
    scaled: _Scaled | None


class _Scaled(NamedTuple):
    """Exponentiated scores and transitions of the rescaled recursion, and the divisor of each step."""

    scores_TBV: Tensor
    transitions_VV: Tensor
    sums_TB1: Tensor


def _forward(chain: Chain) -> _Forward:
    batch_size, num_steps, _ = chain.scores_BTV.shape
    if num_steps == 0:
        return _Forward(chain.scores_BTV.new_zeros(batch_size), chain.scores_BTV.transpose(0, 1), None)
    return _scaled_forward(chain) if _can_be_scaled(chain) else _log_forward(chain)


def _backward(chain: Chain, run: _Forward, weights_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return marginals (B, T, V) and expected counts of transitions (V, V), with weighted inputs."""
    if chain.scores_BTV.shape[1] == 0:
        return torch.zeros_like(chain.scores_BTV), torch.zeros_like(chain.transitions_VV)
    if run.scaled is not None:
        return _scaled_backward(chain, run.prefixes_TBV, run.scaled, weights_B)
    return _log_backward(chain, run, weights_B)


def _counted_TB(chain: Chain) -> Tensor:
    return torch.arange(chain.scores_BTV.shape[1], device=chain.lengths_B.device)[:, None] < chain.lengths_B


def _can_be_scaled(chain: Chain) -> bool:
    """Check that no relevant exponential can underflow.

    With transitions in [m - d, m], the label with the best label score, scaled to 1, gets at least e^-d of the mass,
    and passes at least e^-d of it to every next label. A value that underflows is below the smallest number of the
    type, and passes on at most all of its mass. So the ratio of a lost path to a kept one is at most that number over
    e^-2d, whatever the label scores; d is bounded so that this ratio is negligible.
    """
    limits = torch.finfo(chain.transitions_VV.dtype)
    room = (math.log(limits.eps) - math.log(limits.tiny) - math.log(len(chain.transitions_VV))) / 2
    span = chain.transitions_VV.amax() - chain.transitions_VV.amin()
    finite = torch.isfinite(chain.scores_BTV.amax(-1)) | ~_counted_TB(chain).T
    return bool((span <= room) & finite.all())


# ---------------------------------------------------------------------------------------- rescaled recursion


def _scaled_forward(chain: Chain) -> _Forward:
    counted_TB = _counted_TB(chain)
    scores_TBV = chain.scores_BTV.transpose(0, 1).masked_fill(~counted_TB[..., None], 0.0)
    highest_TB1, highest = scores_TBV.amax(-1, keepdim=True), chain.transitions_VV.amax()
    scores_TBV = (scores_TBV - highest_TB1).exp()
    transitions_VV = (chain.transitions_VV - highest).exp()
    prefixes, sums = [], []
    prefix_BV = scores_TBV[0]
    for step in range(len(scores_TBV)):
        if step:
            prefix_BV = prefix_BV @ transitions_VV * scores_TBV[step]
        sums.append(prefix_BV.sum(-1, keepdim=True))
        prefix_BV = prefix_BV / sums[-1]
        prefixes.append(prefix_BV)
    sums_TB1 = torch.stack(sums)
    # Log of the divisor of each step; steps beyond a row's length do not count.
    steps_TB = (sums_TB1.log() + highest_TB1).squeeze(-1)
    log_partition_B = steps_TB.masked_fill(~counted_TB, 0.0).sum(0) + (chain.lengths_B - 1).clamp(min=0) * highest
    return _Forward(log_partition_B, torch.stack(prefixes), _Scaled(scores_TBV, transitions_VV, sums_TB1))


def _scaled_backward(chain: Chain, prefixes_TBV: Tensor, scaled: _Scaled, weights_B: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``b_{t-1}[i] = sum_j e^{A[i, j]} e^{u_t[j]} b_t[j] / c_t``, so that the marginal is ``a_t[i] b_t[i]``."""
    counted_TB1 = _counted_TB(chain)[..., None]
    suffix_BV = torch.ones_like(prefixes_TBV[0])
    suffixes, arrivals = [suffix_BV], []
    transposed_VV = scaled.transitions_VV.T
    for step in range(len(prefixes_TBV) - 1, 0, -1):
        arrival_BV = scaled.scores_TBV[step] * suffix_BV / scaled.sums_TB1[step]
        suffix_BV = torch.where(counted_TB1[step], arrival_BV @ transposed_VV, 1.0)
        arrivals.append(arrival_BV)
        suffixes.append(suffix_BV)
    marginals_TBV = (prefixes_TBV * torch.stack(suffixes[::-1])).masked_fill(~counted_TB1, 0.0)
    if not arrivals:
        return marginals_TBV.transpose(0, 1), torch.zeros_like(chain.transitions_VV)
    arrivals_TBV = torch.stack(arrivals[::-1]).masked_fill(~counted_TB1[1:], 0.0) * weights_B[:, None]
    counts_VV = scaled.transitions_VV * (prefixes_TBV[:-1].flatten(0, 1).T @ arrivals_TBV.flatten(0, 1))
    return marginals_TBV.transpose(0, 1), counts_VV


# ---------------------------------------------------------------------------------------- recursion on logarithms


def _log_sum_exp(values: Tensor, dim: int) -> Tensor:
    """Compute log sum exp; minus infinity if all values are minus infinity."""
    highest = values.amax(dim, keepdim=True)
    highest = highest.masked_fill(highest == -torch.inf, 0.0)
    return (values - highest).exp().sum(dim).log() + highest.squeeze(dim)


def _log_forward(chain: Chain) -> _Forward:
    prefix_BV = chain.scores_BTV[:, 0]
    prefixes = [prefix_BV]
    for step in range(1, chain.scores_BTV.shape[1]):
        going_on_BV = _log_sum_exp(prefix_BV[..., None] + chain.transitions_VV, 1) + chain.scores_BTV[:, step]
        prefix_BV = torch.where((chain.lengths_B > step)[:, None], going_on_BV, prefix_BV)
        prefixes.append(prefix_BV)
    log_partition_B = _log_sum_exp(prefix_BV, -1).masked_fill(chain.lengths_B == 0, 0.0)
    return _Forward(log_partition_B, torch.stack(prefixes), None)


def _log_backward(chain: Chain, run: _Forward, weights_B: Tensor) -> tuple[Tensor, Tensor]:
    counted_TB = _counted_TB(chain)
    # If every output is forbidden, the exponentials below are exp(-inf) = 0, not NaN.
    total_B1 = run.log_partition_B.masked_fill(run.log_partition_B == -torch.inf, 0.0)[:, None]
    suffix_BV = torch.zeros_like(run.prefixes_TBV[0])
    marginals, counts_VV = [], torch.zeros_like(chain.transitions_VV)
    for step in range(chain.scores_BTV.shape[1] - 1, -1, -1):
        prefix_BV, counted_B1 = run.prefixes_TBV[step], counted_TB[step, :, None]
        marginals.append((prefix_BV + suffix_BV - total_B1).exp().masked_fill(~counted_B1, 0.0))
        if step == 0:
            break
        leaving_BVV = chain.transitions_VV + (chain.scores_BTV[:, step] + suffix_BV)[:, None]
        pairs_BVV = (run.prefixes_TBV[step - 1][..., None] + leaving_BVV - total_B1[..., None]).exp()
        counts_VV = counts_VV + (pairs_BVV * weights_B[:, None, None]).masked_fill(~counted_B1[..., None], 0.0).sum(0)
        suffix_BV = torch.where(counted_B1, _log_sum_exp(leaving_BVV, -1), 0.0)
    return torch.stack(marginals[::-1], dim=1), counts_VV


# ---------------------------------------------------------------------------------------- likelihood, marginals, best


def chain_score(chain: Chain, outputs_BT: Tensor) -> Tensor:
    """Score one output for each input, ``s(y) = sum_t u_t[y_t] + sum_{t > 1} A[y_{t-1}, y_t]``: (B,)."""
    chain, counted_BT = _promoted(chain), _counted_TB(chain).T
    outputs_BT = outputs_BT.masked_fill(~counted_BT, 0)
    labels_BT = chain.scores_BTV.gather(-1, outputs_BT[..., None]).squeeze(-1).masked_fill(~counted_BT, 0.0)
    pairs_BT = chain.transitions_VV[outputs_BT[:, :-1], outputs_BT[:, 1:]].masked_fill(~counted_BT[:, 1:], 0.0)
    return labels_BT.sum(-1) + pairs_BT.sum(-1)


def chain_loss(chain: Chain, gold_BT: Tensor) -> Tensor:
    """Compute the negative log-likelihood of gold, ``log Z - s(y*)``: a conditional random field.

    Args:
        chain: scores, transitions and lengths.
        gold_BT: int64; positions beyond a row's length are ignored.

    Returns:
        (B,), in nats per sequence.

    Source: Lafferty et al. (ICML 2001).

    Example:
        >>> chain = Chain(torch.zeros(1, 2, 2), torch.zeros(2, 2), torch.tensor([2]))
        >>> chain_loss(chain, torch.tensor([[0, 1]]))
        tensor([1.3863])
    """
    return chain_log_partition(chain) - chain_score(chain, gold_BT)


@torch.no_grad()
def chain_marginals(chain: Chain) -> Tensor:
    """Compute marginals of labels, ``p(y_t = v) = sum over outputs with y_t = v of exp(s(y) - log Z)``.

    Args:
        chain: scores, transitions and lengths.

    Returns:
        (B, T, V), without gradients; rows sum to 1, and are 0 beyond an input's length or if no output is allowed.

    Example:
        >>> chain_marginals(Chain(torch.zeros(1, 2, 4), torch.zeros(4, 4), torch.tensor([1])))[0]
        tensor([[0.2500, 0.2500, 0.2500, 0.2500],
                [0.0000, 0.0000, 0.0000, 0.0000]])
    """
    chain = _promoted(chain)
    return _backward(chain, _forward(chain), chain.scores_BTV.new_ones(len(chain.lengths_B)))[0]


@torch.no_grad()
def best_chain_output(chain: Chain) -> tuple[Tensor, Tensor]:
    """Find the output with the highest score by the Viterbi algorithm.

    Args:
        chain: scores, transitions and lengths.

    Returns:
        ``scores_B`` and ``outputs_BT``, int64, -100 beyond an input's length. Ties go to the smallest last label, then
        the smallest label before it, and so on.

    Example:
        >>> best_chain_output(Chain(torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]), torch.zeros(2, 2), torch.tensor([2])))
        (tensor([3.]), tensor([[1, 0]]))
    """
    chain = _promoted(chain)
    batch_size, num_steps, _ = chain.scores_BTV.shape
    if num_steps == 0:
        return chain.scores_BTV.new_zeros(batch_size), chain.lengths_B.new_zeros(batch_size, 0)
    best_BV, back = chain.scores_BTV[:, 0], []
    itself_V = torch.arange(chain.scores_BTV.shape[-1], device=chain.scores_BTV.device)
    for step in range(1, num_steps):
        active_B1 = (chain.lengths_B > step)[:, None]
        # Transposed, so that the maximum over the previous label is taken over contiguous memory.
        values_BV, before_BV = (best_BV[:, None] + chain.transitions_VV.T).max(-1)
        best_BV = torch.where(active_B1, values_BV + chain.scores_BTV[:, step], best_BV)
        back.append(torch.where(active_B1, before_BV, itself_V))
    scores_B, label_B = best_BV.max(-1)
    columns = [label_B]
    for before_BV in reversed(back):
        columns.append(before_BV.gather(1, columns[-1][:, None]).squeeze(1))
    outputs_BT = torch.stack(columns[::-1], dim=1).masked_fill(~_counted_TB(chain).T, IGNORE)
    return scores_B.masked_fill(chain.lengths_B == 0, 0.0), outputs_BT


# ---------------------------------------------------------------------------------------- objective


def crf_objective() -> Objective:
    """Make the objective of exact likelihood of a globally normalised chain, in nats per token; uses no schedule.

    A beam CRF tends to this as its beam grows. Source: Lafferty et al. (ICML 2001).
    """

    def loss(model: StepModel, context: Any, batch: Batch, values: Mapping[str, float]) -> Tensor:
        if not hasattr(model, "chain"):
            problem = (
                f"the exact likelihood needs scores that form a chain, which those of {type(model).__name__} do not"
            )
            raise InputError(problem, hint="use a ChainTagger (--model chain), or beam_crf_objective (beam-crf)")
        chain = cast(_ChainModel, model).chain(context)._replace(lengths_B=batch.target_lengths_B)
        return chain_loss(chain, batch.targets_BT)

    return per_token_objective(loss)
