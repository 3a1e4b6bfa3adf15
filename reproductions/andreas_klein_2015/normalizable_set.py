"""The inputs at which a log-linear model is normalised, ``{x: Z(x; theta) = 1}``, and the distances of others to them.

``Z(x; theta) = sum_y exp(theta_y . x)``. Shapes: N inputs, D features, K classes, S directions, P points of a curve.
All work is done in float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from seqwise.errors import InputError


class Projection(NamedTuple):
    """Nearest point of the normalisable set to each input, (N, D), and its distance, (N,)."""

    points_ND: Tensor
    distances_N: Tensor


def nearest_normalized(inputs_ND: Tensor, weights_KD: Tensor) -> Projection:
    """Find the nearest input with Z = 1: ``min max_d |x_d - x*_d|  subject to  Z(x*; theta) = 1`` (equation 3).

    The distance is the largest difference of a feature (definition 2). The set bounds the convex region
    ``C = {log Z <= 0}``, so the two sides of it are different problems.

    - *One class*: a hyperplane; ``|theta . x|`` over the sum of theta's absolute values.
    - *Outside, log Z > 0*: a convex problem, solved by an interior-point method (Newton steps on a logarithmic
      barrier; Boyd and Vandenberghe 2004, section 11.3) to about eight digits.
    - *Inside, log Z < 0*: not a convex problem. From the direction of each theta_y and of the gradient, the direction
      is replaced by that in which log Z grows fastest at the boundary point reached, until the distance no longer
      shrinks. The result is on the set, but in general only a local minimum: an upper bound of the distance, so that
      theorem 1 holds with it.
    """
    inputs_ND, weights_KD = inputs_ND.detach().double(), weights_KD.detach().double()
    falling_D = _falling_direction(weights_KD) if len(weights_KD) > 1 else None
    if falling_D is None and len(weights_KD) > 1:
        raise InputError("no input has Z = 1: 0 is a mixture of the weight vectors", hint="choose other weights")
    points_ND = inputs_ND.clone()
    log_partition_N = (inputs_ND @ weights_KD.T).logsumexp(-1)
    if falling_D is None:
        steepest_1D = _steepest(weights_KD)
        slope = (weights_KD * steepest_1D).sum()
        points_ND = inputs_ND - (log_partition_N / slope if slope > 0 else log_partition_N)[:, None] * steepest_1D
    else:
        outside_N, inside_N = log_partition_N > 0, log_partition_N < 0
        points_ND[outside_N] = _from_outside(inputs_ND[outside_N], weights_KD, falling_D)
        points_ND[inside_N] = _from_inside(inputs_ND[inside_N], weights_KD)
    return Projection(points_ND, torch.linalg.vector_norm(points_ND - inputs_ND, ord=math.inf, dim=-1))


def normalizable_curve(weights_KD: Tensor, *, extent: float, num_points: int = 201) -> Tensor:
    """Return points of the curve ``{x in R^2: Z(x; theta) = 1}``, in order along it, (P, 2).

    With v a direction in which every score falls, and w one at right angles to it, each line ``a w + b v`` meets the
    curve exactly once; so it is the graph of a convex function of a, which runs evenly from -extent to extent.
    """
    weights_KD = weights_KD.detach().double()
    falling_2 = _falling_direction(weights_KD)
    if falling_2 is None:
        raise InputError("Z = 1 at no input, or at all of them", hint="choose weights whose convex hull excludes 0")
    falling_2 = falling_2 / torch.linalg.vector_norm(falling_2)
    across_2 = torch.stack([-falling_2[1], falling_2[0]])
    along_P = torch.linspace(-extent, extent, num_points, dtype=torch.float64, device=weights_KD.device)
    scores_PK = along_P[:, None] * (weights_KD @ across_2)
    slopes_PK = (weights_KD @ falling_2).expand_as(scores_PK)
    # Where the largest score is 0, log Z is not negative.
    start_P = (-scores_PK / slopes_PK).amax(-1)
    return along_P[:, None] * across_2 + _crossing(scores_PK, slopes_PK, start_P)[:, None] * falling_2


def _steepest(gradients: Tensor) -> Tensor:
    """Return the direction of length 1 along which a function of this gradient grows fastest."""
    return torch.where(gradients < 0, -1.0, 1.0).double()


def _crossing(scores: Tensor, slopes: Tensor, start: Tensor) -> Tensor:
    """Find the t nearest to the start with ``logsumexp(scores + t slopes) = 0``: (..., K) twice to (...).

    At the start the left side must not be negative: as it is convex in t, Newton steps go one way and do not overshoot.
    """
    t = start
    for _ in range(200):
        moved = scores + t[..., None] * slopes
        step = moved.logsumexp(-1) / (moved.softmax(-1) * slopes).sum(-1)
        t = t - step
        if bool((step.abs() <= 1e-15 * t.abs()).all()):
            break
    return t


def _falling_direction(weights_KD: Tensor) -> Tensor | None:
    """Return a direction along which every score falls, or None if 0 is in the convex hull of the weight vectors.

    Minimises ``logsumexp(beta theta y) / beta + |y|^2 / 2``; y tends to minus the hull's point nearest 0.
    """
    scale = weights_KD.abs().amax()
    if scale == 0:
        return None
    scaled_KD = weights_KD / scale
    y_D = -scaled_KD.mean(0)
    for beta in (100.0**power for power in range(7)):

        def value(y_D: Tensor, beta: float = beta) -> Tensor:
            return (beta * (scaled_KD @ y_D)).logsumexp(0) / beta + y_D.square().sum() / 2

        for _ in range(100):
            if bool((scaled_KD @ y_D < 0).all()):
                return y_D
            p_K = (beta * (scaled_KD @ y_D)).softmax(0)
            mean_D = p_K @ scaled_KD
            gradient_D = mean_D + y_D
            centred_KD = scaled_KD - mean_D
            hessian_DD = beta * (centred_KD.T * p_K) @ centred_KD + torch.eye(len(y_D)).to(y_D)
            step_D = torch.linalg.solve(hessian_DD, gradient_D)
            slope, size = gradient_D @ step_D, 1.0
            if slope < 1e-20:
                break
            while size > 1e-12 and value(y_D - size * step_D) > value(y_D) - 0.25 * size * slope:
                size /= 2
            y_D = y_D - size * step_D
    return None


def _from_outside(inputs_ND: Tensor, weights_KD: Tensor, falling_D: Tensor) -> Tensor:
    """Find the nearest points to inputs with log Z > 0: ``min r  subject to  |step| <= r, log Z(x + step) <= 0``.

    Minimises ``t r - log(-log Z(x + step)) - sum_d log(r^2 - step_d^2)`` for growing t. Then r exceeds the optimum by
    at most ``(2 D + 1) / t``.
    """
    if len(inputs_ND) == 0:
        return inputs_ND
    scores_NK = inputs_ND @ weights_KD.T
    slopes_NK = (weights_KD @ falling_D).expand_as(scores_NK)
    zeros_N = torch.zeros_like(inputs_ND[:, 0])
    # Twice as far as the set along the falling direction: log Z is well below 0 there.
    steps_ND = 2 * _crossing(scores_NK, slopes_NK, zeros_N)[:, None] * falling_D
    z_NE = torch.cat([steps_ND, 2 * torch.linalg.vector_norm(steps_ND, ord=math.inf, dim=-1, keepdim=True)], dim=-1)
    # The set is at least log Z over the steepest slope away.
    nearest_N = scores_NK.logsumexp(-1) / torch.linalg.vector_norm(weights_KD, ord=1, dim=-1).amax()
    t_N, last_N = 1 / z_NE[:, -1], (2 * inputs_ND.shape[1] + 1) / (1e-9 * nearest_N + 1e-13)
    while bool((t_N < last_N).any()):
        t_N = torch.where(t_N < last_N, 10 * t_N, t_N)
        z_NE = _centred(z_NE, scores_NK, weights_KD, t_N)
    steps_ND = z_NE[:, :-1]
    return inputs_ND + _crossing(scores_NK, steps_ND @ weights_KD.T, zeros_N)[:, None] * steps_ND


def _centred(start_NE: Tensor, scores_NK: Tensor, weights_KD: Tensor, t_N: Tensor) -> Tensor:
    """Find the step and r (concatenated, E = D + 1) that minimise the barrier, by damped Newton steps."""
    z_NE, value_N = start_NE, _barrier(start_NE, scores_NK, weights_KD, t_N)
    for _ in range(50):
        gradient_NE, hessian_NEE = _barrier_derivatives(z_NE, scores_NK, weights_KD, t_N)
        step_NE, singular_N = torch.linalg.solve_ex(hessian_NEE, gradient_NE)
        slope_N = (gradient_NE * step_NE).sum(-1)
        moving_N = (slope_N > 1e-7) & (singular_N == 0)
        size_N = moving_N.double()
        for _ in range(40):
            tried_NE = z_NE - size_N[:, None] * step_NE
            tried_N = _barrier(tried_NE, scores_NK, weights_KD, t_N)
            worse_N = ~(tried_N <= value_N - 0.1 * size_N * slope_N) & moving_N
            if not bool(worse_N.any()):
                break
            size_N = torch.where(worse_N, size_N / 2, size_N)
        # A point that no halving improves is as good as rounding allows.
        moving_N &= ~worse_N
        if not bool(moving_N.any()):
            break
        z_NE = torch.where(moving_N[:, None], tried_NE, z_NE)
        value_N = torch.where(moving_N, tried_N, value_N)
    return z_NE


def _room(z_NE: Tensor) -> Tensor:
    """Return ``r^2 - step_d^2`` of each feature, (N, D), without cancellation; NaN if r is not positive."""
    length_ND = z_NE[:, :-1].abs()
    r_N1 = z_NE[:, -1:].where(z_NE[:, -1:] > 0, math.nan)
    return (r_N1 - length_ND) * (r_N1 + length_ND)


def _barrier(z_NE: Tensor, scores_NK: Tensor, weights_KD: Tensor, t_N: Tensor) -> Tensor:
    """Return the barrier; NaN outside its domain, where a logarithm is of a negative number or r is not positive."""
    below_N = -(scores_NK + z_NE[:, :-1] @ weights_KD.T).logsumexp(-1)
    return t_N * z_NE[:, -1] - _room(z_NE).log().sum(-1) - below_N.log()


def _barrier_derivatives(z_NE: Tensor, scores_NK: Tensor, weights_KD: Tensor, t_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradient (N, E) and Hessian (N, E, E) of the barrier, by hand: much faster than by autograd."""
    steps_ND, r_N = z_NE[:, :-1], z_NE[:, -1]
    room_ND = _room(z_NE)
    moved_NK = scores_NK + steps_ND @ weights_KD.T
    p_NK, below_N1 = moved_NK.softmax(-1), -moved_NK.logsumexp(-1, keepdim=True)
    mean_ND = p_NK @ weights_KD
    gradient_ND = 2 * steps_ND / room_ND + mean_ND / below_N1
    gradient_N = t_N - (2 * r_N[:, None] / room_ND).sum(-1)
    # Second derivatives of log Z: the covariance of the weight vectors under p.
    curvature_NDD = torch.einsum("NK,KD,KE->NDE", p_NK, weights_KD, weights_KD) / below_N1[..., None]
    curvature_NDD += mean_ND[:, :, None] * mean_ND[:, None] * (below_N1**-2 - 1 / below_N1)[..., None]
    pull_ND = 2 * steps_ND / room_ND
    hessian_NEE = z_NE.new_empty(len(z_NE), z_NE.shape[1], z_NE.shape[1])
    hessian_NEE[:, :-1, :-1] = curvature_NDD + torch.diag_embed(pull_ND.square()) + torch.diag_embed(2 / room_ND)
    hessian_NEE[:, -1, :-1] = hessian_NEE[:, :-1, -1] = -2 * r_N[:, None] * pull_ND / room_ND
    hessian_NEE[:, -1, -1] = (4 * r_N[:, None].square() / room_ND.square() - 2 / room_ND).sum(-1)
    return torch.cat([gradient_ND, gradient_N[:, None]], dim=-1), hessian_NEE


def _from_inside(inputs_ND: Tensor, weights_KD: Tensor) -> Tensor:
    """Find points near inputs with log Z < 0, each along the steepest direction at the one before.

    From x along u the set is at t. There log Z is 0, and grows along u' no slower than along u; being convex, it is
    then at least 0 at t along u' as well: the set is no farther in that direction.
    """
    num_inputs = len(inputs_ND)
    if num_inputs == 0:
        return inputs_ND
    scores_N1K = (inputs_ND @ weights_KD.T)[:, None]
    starts_ND = scores_N1K[:, 0].softmax(-1) @ weights_KD
    gradients_NSD = torch.cat([weights_KD.expand(num_inputs, -1, -1), starts_ND[:, None]], dim=1)
    t_NS = inputs_ND.new_full(gradients_NSD.shape[:2], math.inf)
    for _ in range(1000):
        directions_NSD = _steepest(gradients_NSD)
        slopes_NSK = directions_NSD @ weights_KD.T
        # Once any score is 0, log Z is not negative.
        first_NS = torch.where(slopes_NSK > 0, -scores_N1K / slopes_NSK, math.inf).amin(-1)
        before_NS, t_NS = t_NS, _crossing(scores_N1K.expand_as(slopes_NSK), slopes_NSK, first_NS)
        if bool((t_NS >= before_NS * (1 - 1e-12)).all()):
            break
        gradients_NSD = (scores_N1K + t_NS[..., None] * slopes_NSK).softmax(-1) @ weights_KD
    t_N, best_N = t_NS.min(-1)
    return inputs_ND + t_N[:, None] * directions_NSD[torch.arange(num_inputs, device=best_N.device), best_N]
