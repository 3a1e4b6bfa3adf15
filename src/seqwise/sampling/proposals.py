"""Proposals: the positions to mask, and the distribution of their new tokens.

The choice of positions does not depend on the tokens, and the distribution only on unmasked ones. So it is the same in
both directions between two sequences, and one function gives both the draw and the ratio.

Shapes: B chains, T positions, V vocabulary, M masked positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqwise.devices import at_least_float32, moved
from seqwise.errors import InputError
from seqwise.models.protocols import MaskedModel
from seqwise.sampling.draws import Draws
from seqwise.sampling.energies import require_allowed


@dataclass(frozen=True, eq=False)
class Proposal:
    """Masked conditionals of a model; made by :func:`masked_conditionals`.

    Attributes:
        model: the masked model.
        temperature: temperature of the proposal; greater than 1 is flatter.
        allowed_V: bool, tokens that may be proposed, or None for all.
        nucleus: mass of the likeliest tokens that are kept; 1 keeps all.
        full_share: weight of the distribution before truncation to the nucleus.
    """

    model: MaskedModel
    temperature: float = 1.0
    allowed_V: Tensor | None = None
    nucleus: float = 1.0
    full_share: float = 0.0

    def log_probs(self, logits: Tensor) -> Tensor:
        """Compute log q of every token from the model's scores: (..., V) to (..., V), minus infinity where q is 0."""
        if self.allowed_V is not None:
            logits = logits.masked_fill(moved(~self.allowed_V, logits.device), -torch.inf)
        full = (at_least_float32(logits) / self.temperature).log_softmax(-1)
        if self.nucleus >= 1:
            return full
        ordered, order = full.sort(dim=-1, descending=True, stable=True)
        # The smallest set of that mass: a token is in it if those before it do not reach the mass.
        before = ordered.exp().cumsum(-1).roll(1, -1)
        before[..., 0] = 0.0
        kept = torch.zeros_like(full, dtype=torch.bool).scatter(-1, order, before < self.nucleus)
        cut = full.masked_fill(~kept, -torch.inf).log_softmax(-1)
        if self.full_share == 0:
            return cut
        share = torch.tensor([1 - self.full_share, self.full_share], dtype=full.dtype).log()
        return torch.logaddexp(cut + share[0], full + share[1])


def masked_conditionals(
    model: MaskedModel,
    *,
    temperature: float = 1.0,
    allowed_V: Tensor | None = None,
    nucleus: float = 1.0,
    full_share: float = 0.0,
) -> Proposal:
    """Propose tokens at masked positions, each from ``q = softmax(f / temperature)`` over the allowed tokens.

    Positions that are masked together are drawn independently: q is the product over them.

    Args:
        model: a masked model in evaluation mode.
        temperature: temperature of the proposal, greater than 0.
        allowed_V: bool, tokens that may be proposed, such as all but special ones. A free position that holds any other
            token never changes, as it could not change back.
        nucleus: keep the smallest set of tokens with at least this mass, and renormalise. Tokens outside never change
            either, so the chain is not irreducible.
        full_share: epsilon, which makes it irreducible: ``(1 - epsilon) q_nucleus + epsilon q``.

    Raises:
        InputError: a value is out of range, or no token is allowed.

    Source: Goyal (2021), section 6.4.1, without the mixture.

    Example:
        >>> from seqwise.sampling import table_model
        >>> proposal = masked_conditionals(table_model(num_positions=1, vocab_size=3), nucleus=0.5)
        >>> proposal.log_probs(torch.tensor([0.5, 0.3, 0.2]).log()).exp()
        tensor([1., 0., 0.])
    """
    if not temperature > 0:
        raise InputError(f"the temperature of a proposal must be greater than 0, got {temperature}")
    if not 0 < nucleus <= 1:
        raise InputError(f"the mass of the nucleus must be greater than 0 and at most 1, got {nucleus}")
    if not 0 <= full_share < 1:
        raise InputError(f"the share of the full distribution must be at least 0 and less than 1, got {full_share}")
    require_allowed(allowed_V, model.vocab_size)
    return Proposal(model, temperature, allowed_V, nucleus, full_share)


Visits = Callable[[Draws, Tensor], Iterator[Tensor]]
"""Function from ``(draws, free_BT)`` to the masked positions (B, T) of successive proposals."""


def in_order(block: int = 1) -> Visits:
    """Visit every free position once, from left to right, ``block`` neighbours at a time.

    The last block may be smaller. A sweep of such visits leaves the target invariant, but is not reversible.

    Example:
        >>> from seqwise.sampling import SeededDraws
        >>> free_BT = torch.tensor([[True, False, True, True]])
        >>> draws = SeededDraws(0, torch.arange(1), sweep=0)
        >>> [masked_BT[0].nonzero().flatten().tolist() for masked_BT in in_order(2)(draws, free_BT)]
        [[0, 2], [3]]
    """
    _check_blocks([block])

    def visits(draws: Draws, free_BT: Tensor) -> Iterator[Tensor]:
        rank_BT = free_BT.long().cumsum(1) - 1
        for first in range(0, _most(free_BT), block):
            yield free_BT & (rank_BT >= first) & (rank_BT < first + block)

    return visits


def shuffled(block: int = 1) -> Visits:
    """Visit every free position once, ``block`` at a time, in an order drawn anew for each chain and sweep.

    Example:
        >>> from seqwise.sampling import SeededDraws
        >>> draws = SeededDraws(0, torch.arange(1), sweep=0)
        >>> int(sum(shuffled()(draws, torch.ones(1, 4).bool())).amin())
        1
    """
    _check_blocks([block])

    def visits(draws: Draws, free_BT: Tensor) -> Iterator[Tensor]:
        left_BT = free_BT.clone()
        for _ in range(0, _most(free_BT), block):
            masked_BT = random_subset(draws, left_BT, torch.full_like(left_BT[:, 0], block, dtype=torch.int64))
            left_BT = left_BT & ~masked_BT
            yield masked_BT

    return visits


def anywhere(blocks: Sequence[int] = (1,), *, num_visits: int | None = 1) -> Visits:
    """Visit random subsets of free positions, uniform among those of a block size.

    A transition of one or several such independent visits is reversible. Several block sizes make a mixed-block kernel:
    each chain draws a block size for each visit.

    Args:
        blocks: block sizes; a repeated size is drawn more often.
        num_visits: number of visits; None for the number of free positions of the chain, as in other sweeps.

    Raises:
        InputError: there are no blocks, one is empty, or there are no visits.

    Example:
        >>> from seqwise.sampling import SeededDraws
        >>> draws = SeededDraws(0, torch.arange(2), sweep=0)
        >>> [masked_BT.sum(1).tolist() for masked_BT in anywhere([2])(draws, torch.ones(2, 5).bool())]
        [[2, 2]]
        >>> [masked_BT.sum(1).tolist() for masked_BT in anywhere(num_visits=None)(draws, torch.eye(2).bool())]
        [[1, 1]]
    """
    _check_blocks(blocks)
    if num_visits is not None and num_visits < 1:
        raise InputError(f"a sweep needs at least 1 visit, got {num_visits}")

    def visits(draws: Draws, free_BT: Tensor) -> Iterator[Tensor]:
        count_B = free_BT.sum(1)
        if num_visits is not None:
            count_B = torch.full_like(count_B, num_visits)
        for number in range(int(count_B.max()) if len(count_B) else 0):
            # Chains with fewer free positions than others have fewer visits, so that none depends on the batch.
            own_BT = free_BT & (number < count_B)[:, None]
            size_B = torch.full_like(count_B, blocks[0])
            if len(blocks) > 1:
                alike_BV = torch.zeros(len(own_BT), len(blocks), device=own_BT.device)
                size_B = torch.tensor(blocks, device=own_BT.device)[draws.categorical(alike_BV, own_BT.any(1))]
            yield random_subset(draws, own_BT, size_B)

    return visits


def random_subset(draws: Draws, free_BT: Tensor, size_B: Tensor) -> Tensor:
    """Draw a uniform subset of given size of the free positions of each chain; all if there are fewer."""
    left_BT = free_BT
    for number in range(min(int(size_B.max()), _most(free_BT)) if len(size_B) else 0):
        live_B = left_BT.any(1) & (size_B > number)
        log_weights_BT = torch.zeros_like(left_BT, dtype=torch.float64).masked_fill(~left_BT, -torch.inf)
        place_B = draws.categorical(log_weights_BT, live_B)
        chosen_BT = torch.nn.functional.one_hot(place_B, left_BT.shape[1]).bool()
        left_BT = left_BT & ~(chosen_BT & live_B[:, None])
    return free_BT & ~left_BT


def _most(free_BT: Tensor) -> int:
    return int(free_BT.sum(1).max()) if len(free_BT) else 0


def _check_blocks(blocks: Sequence[int]) -> None:
    if len(blocks) < 1 or min(blocks) < 1:
        raise InputError(f"a block must have at least 1 position, got {list(blocks)}")


VISITS: dict[str, Callable[[int], Visits]] = {
    "in-order": in_order,
    "shuffled": shuffled,
    "anywhere": lambda block: anywhere(range(1, block + 1), num_visits=None),
}
"""Visits of a sweep with blocks of one size, by their names in settings."""
