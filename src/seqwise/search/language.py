"""Languages: sets of outputs that constrain a search.

A search stays in the language of its model, ``model.language``. A language reads outputs from left to right: at each
node, some tokens are allowed, and each leads to another node. Disallowed tokens are removed *before* scoring, so that a
score may be normalised over the allowed ones (``renormalized``), and only the scores of allowed tokens are computed.

``local`` scores of allowed outputs are still log p(y), so their order is that of p(y | y in L). ``renormalized`` scores
are those of another distribution: at each step, the mass of the disallowed continuations goes to the allowed ones of
the same prefix, and mass once given to a prefix cannot be taken back. This is label bias.

Shapes: B batch, J and K slots before and after a step, T steps, C allowed tokens of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from seqwise.devices import reading_is_free
from seqwise.errors import InputError
from seqwise.models.heads import IN_CACHE

NOWHERE = -1
"""Node that no output of a language reaches; it allows nothing."""


class Language(Protocol):
    """Set of outputs, including the end token if the model has one.

    A node is a number that summarises a prefix. An output that has ended may only repeat its end token.

    A method ``without(tokens)`` is optional. It returns the language of the outputs without these tokens; a
    ``generation_selector`` calls it, so that no prefix leads to a token that it forbids.

    A method ``allowed_rows(nodes_BJ, steps_left)`` is optional. It returns the same tokens as ``allowed``, in rows that
    slots share (:class:`Allowed`), which makes a search faster if many tokens are allowed. Searches call it in place of
    ``allowed``, so a subclass of a language that has it overrides both.
    """

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Return the node of the empty prefix of each input: int64 (B, 1)."""
        ...

    def allowed(self, nodes_BJ: Tensor, steps_left: int | Tensor | None) -> Tensor:
        """Return the tokens after which an output of the language can still be finished.

        Args:
            nodes_BJ: int64; :data:`NOWHERE` allows nothing.
            steps_left: number of tokens to write, including the next one: int or int64 (B,). None sets no
                limit.

        Returns:
            int64 (B, J, C), each token once and -1 in unused places, in any order; C is at least 1.
        """
        ...

    def advance(self, nodes_BJ: Tensor, parents_BK: Tensor, tokens_BK: Tensor) -> Tensor:
        """Return the nodes of the new slots, int64 (B, K): the parent's node after the token."""
        ...


class Allowed(NamedTuple):
    """Tokens that may follow each of B x J slots: U rows, which slots may share.

    Attributes:
        rows_UC: int64, -1 in unused places.
        shape: (B, J).
        row_N: row of each of the N = B J slots, int64; None if each has its own, in order.
    """

    rows_UC: Tensor
    shape: tuple[int, int]
    row_N: Tensor | None = None

    @staticmethod
    def of(tokens_BJC: Tensor) -> Allowed:
        """Wrap the tokens after each slot."""
        return Allowed(tokens_BJC.flatten(0, 1), (tokens_BJC.shape[0], tokens_BJC.shape[1]))

    def spread(self, values_UX: Tensor) -> Tensor:
        """Return values of rows as values of slots, (B, J, X).

        Example:
            >>> allowed = Allowed(torch.tensor([[7, 8], [9, -1]]), (1, 3), torch.tensor([0, 1, 0]))
            >>> allowed.spread(allowed.rows_UC)
            tensor([[[ 7,  8],
                     [ 9, -1],
                     [ 7,  8]]])
        """
        if self.row_N is None:
            values_NX = values_UX
        elif len(values_UX) == 1:
            return values_UX.expand(*self.shape, -1)
        else:
            values_NX = values_UX.index_select(0, self.row_N)
        return values_NX.view(*self.shape, values_UX.shape[-1])

    def mask_(self, logits_BJV: Tensor) -> Tensor:
        """Add minus infinity to the logits of tokens that are not allowed, in place if they are contiguous.

        Example:
            >>> Allowed.of(torch.tensor([[[2, -1]]])).mask_(torch.zeros(1, 1, 3))
            tensor([[[-inf, -inf, 0.]]])
        """
        logits_NV = logits_BJV.flatten(0, 1)
        size, columns_UC = logits_NV.shape[1], self.rows_UC
        # Unused places are written to one column more.
        columns_UC = torch.where(columns_UC < 0, size, columns_UC)
        mask_UV = logits_NV.new_full((len(columns_UC), size + 1), -torch.inf).scatter_(1, columns_UC, 0.0)
        mask_UV = mask_UV[:, :size].contiguous()  # of which rows are copied fast
        if self.row_N is None or len(mask_UV) == 1:
            return logits_NV.add_(mask_UV).view_as(logits_BJV)
        at_once = max(1, IN_CACHE // size) if reading_is_free(logits_NV) else len(logits_NV)
        for block_NV, row_N in zip(logits_NV.split(at_once), self.row_N.split(at_once), strict=True):
            block_NV.add_(mask_UV.index_select(0, row_N))
        return logits_NV.view_as(logits_BJV)


def allowed_after(language: Language, nodes_BJ: Tensor, steps_left: int | Tensor | None) -> Allowed:
    """Return the tokens that a language allows, in rows that slots share if it has ``allowed_rows``.

    Args: see :meth:`Language.allowed`.
    """
    allowed_rows = getattr(language, "allowed_rows", None)
    if allowed_rows is None:
        return Allowed.of(language.allowed(nodes_BJ, steps_left))
    shared: Allowed = allowed_rows(nodes_BJ, steps_left)
    return shared


def language_of(model: object) -> Language | None:
    """Return the language of a model, its attribute ``language``, or None."""
    return getattr(model, "language", None)


def nodes_along(language: Language, outputs_BT: Tensor) -> Iterator[Tensor]:
    """Yield the node before each token of some outputs, (B, 1) each, and finally the node after all of them.

    Negative tokens (padding) lead nowhere.

    Example:
        >>> from seqwise.search import trie
        >>> [int(node) for node in nodes_along(trie([(5, 6)]), torch.tensor([[5, 7]]))]
        [0, 1, -1]
    """
    nodes_B1 = language.start(len(outputs_BT), outputs_BT.device)
    slot_B1 = torch.zeros_like(nodes_B1)
    yield nodes_B1
    for tokens_B in outputs_BT.unbind(1):
        nodes_B1 = language.advance(nodes_B1, slot_B1, tokens_B[:, None])
        yield nodes_B1


def allowed_logits(
    logits_BTV: Tensor, outputs_BT: Tensor, language: Language, *, num_steps: int | Tensor | None = None
) -> Tensor:
    """Replace the logits of disallowed tokens along outputs by minus infinity.

    Steps after an output has left the language keep their logits.

    Args:
        logits_BTV: unnormalised scores before each token of the outputs.
        outputs_BT: int64.
        language: the allowed outputs.
        num_steps: number of steps of the search, int or int64 (B,), in which outputs must be finished; None for no
            limit.

    Example:
        >>> from seqwise.search import trie
        >>> allowed_logits(torch.zeros(1, 2, 3), torch.tensor([[2, 0]]), trie([(2, 0), (2, 1)]))
        tensor([[[-inf, -inf, 0.],
                 [0., 0., -inf]]])
    """
    steps = []
    for step, (nodes_B1, logits_BV) in enumerate(
        zip(nodes_along(language, outputs_BT), logits_BTV.unbind(1), strict=False)
    ):
        allowed_BC = language.allowed(nodes_B1, None if num_steps is None else num_steps - step)[:, 0]
        steps.append(logits_BV.masked_fill(~allowed_tokens(allowed_BC, logits_BV.shape[1]), -torch.inf))
    return torch.stack(steps, 1) if steps else logits_BTV


def allowed_tokens(allowed_BC: Tensor, size: int) -> Tensor:
    """Return whether each token of a vocabulary is allowed, bool (B, V); all are if a row allows none.

    Example:
        >>> allowed_tokens(torch.tensor([[2, -1], [-1, -1]]), 3)
        tensor([[False, False,  True],
                [ True,  True,  True]])
    """
    is_token_BC = allowed_BC >= 0
    allowed_BV = torch.zeros(len(allowed_BC), size, dtype=torch.uint8, device=allowed_BC.device)
    allowed_BV = allowed_BV.scatter_reduce(1, allowed_BC.clamp(min=0), is_token_BC.to(torch.uint8), "amax").bool()
    return allowed_BV | ~is_token_BC.any(1, keepdim=True)


def members(language: Language, outputs_BT: Tensor) -> Tensor:
    """Whether outputs lie in a language: bool (B,). Negative tokens after an output are padding.

    Example:
        >>> from seqwise.search import trie
        >>> members(trie([(5, 6), (5,)]), torch.tensor([[5, 6], [5, -1], [6, 5]]))
        tensor([ True,  True, False])
    """
    lengths_B = (outputs_BT >= 0).sum(1)
    inside_B = torch.zeros_like(lengths_B, dtype=torch.bool)
    nodes = nodes_along(language, outputs_BT)
    before_B1 = next(nodes)
    for step, after_B1 in enumerate(nodes):
        # The last token finishes the output if it is allowed where one step is left.
        last_BC = language.allowed(before_B1, 1)[:, 0]
        finishes_B = ((last_BC == outputs_BT[:, step, None]) & (last_BC >= 0)).any(1)
        inside_B |= finishes_B & (lengths_B == step + 1)
        before_B1 = after_B1
    return inside_B


def require_members(language: Language, outputs_BT: Tensor) -> None:
    """Raise an :class:`InputError` if an output is not in the language."""
    inside_B = members(language, outputs_BT)
    if not bool(inside_B.all()):
        output = [token for token in outputs_BT[~inside_B][0].tolist() if token >= 0]
        raise InputError(f"the gold output {output} is not in the language", hint="widen it, or drop the example")


def chosen_by(selector: object, language: Language | None) -> Language | None:
    """Return the part of a language that a selector can choose, if it has a method ``within``, which tells."""
    within: Callable[[Language], Language] | None = getattr(selector, "within", None)
    return language if language is None or within is None else within(language)


def require_output(language: Language | None, num_steps: int | None) -> None:
    """Raise an :class:`InputError` if a language has no output for this number of steps; None sets no limit."""
    if language is not None:
        first = allowed_after(language, language.start(1, torch.device("cpu")), num_steps)
        require_first_token(first, num_steps)


def require_first_token(allowed: Allowed, steps_left: int | Tensor | None) -> None:
    """Raise an :class:`InputError` if an input with steps left has no allowed first token."""
    has_one_B = allowed.spread((allowed.rows_UC >= 0).any(-1, keepdim=True)).flatten(1).any(-1)
    if steps_left is not None:
        has_one_B = has_one_B | (steps_left <= 0)
    if bool(has_one_B.all()):
        return
    if steps_left is None:
        raise InputError("the language is empty", hint="check the outputs or the pattern that it was made from")
    steps = int(steps_left[~has_one_B][0]) if isinstance(steps_left, Tensor) else steps_left
    raise InputError(
        f"the language has no output that a search of {steps} step{'s' * (steps != 1)} can write",
        hint="allow more steps (a tagger takes one for each token), widen the language (in a pattern, spaces separate "
        "tokens), or, if outputs end with an end token, make it with end=",
    )


def never_written() -> InputError:
    """Return the error for a language none of whose outputs the model can write."""
    return InputError(
        "every output of the language has probability 0 under the model",
        hint="widen the language, or use a model whose scores exclude fewer tokens",
    )
