"""Languages: the outputs that a search may write, followed slot by slot.

A search stays in the language of its model, ``model.language``. A language is a set of outputs that can be read from
left to right: from a node, some tokens are allowed, and each leads to another node. Disallowed tokens are taken away
*before* the score is made, so that a score may be normalised over what is left (``renormalized``), and only the scores
of allowed tokens are computed, one column for each.

A mask with ``local`` scores does not search, or sample, p(y | y in L): at each step, the mass of disallowed
continuations is lost, and mass once given to a prefix cannot be taken back. That is label bias.

Shapes: B batch, J and K slots before and after a step, T steps, C allowed tokens of a slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from seqwise.errors import InputError

NOWHERE = -1
"""The node that no output of a language reaches; nothing is allowed there."""


class Language(Protocol):
    """A set of outputs, end token included where the model has one.

    A node is a number and stands for all that matters of a prefix. What an output that has ended may still write is its
    end token, again and again.
    """

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Node of the empty prefix of each input: int64 (B, 1)."""
        ...

    def allowed(self, nodes_BJ: Tensor, steps_left: int | Tensor | None) -> Tensor:
        """Tokens after which an output of the language can still be finished.

        Args:
            nodes_BJ: int64; :data:`NOWHERE` allows nothing.
            steps_left: how many tokens are to be written, the next one included: int or int64 (B,). None does not
                limit them.

        Returns:
            int64 (B, J, C), each token once and -1 in unused places, in any order; C is at least 1.
        """
        ...

    def advance(self, nodes_BJ: Tensor, parents_BK: Tensor, tokens_BK: Tensor) -> Tensor:
        """Nodes of the new slots, int64 (B, K): that of the parent, after the token."""
        ...


def language_of(model: object) -> Language | None:
    """The language that a model is searched in: its attribute ``language``; None where it has none."""
    return getattr(model, "language", None)


def nodes_along(language: Language, outputs_BT: Tensor) -> Iterator[Tensor]:
    """Node before each token of some outputs, (B, 1) each, and at last that after all of them.

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
    """Replace by minus infinity the logits, along outputs, of tokens that the language does not allow there.

    Steps after an output has left the language keep their logits.

    Args:
        logits_BTV: unnormalised scores before each token of the outputs.
        outputs_BT: int64.
        language: what may be written.
        num_steps: of the search, int or int64 (B,), which allows only what can be finished in time; None: no limit.

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
        is_token_BC = allowed_BC >= 0
        allowed_BV = torch.zeros_like(logits_BV, dtype=torch.uint8)
        allowed_BV = allowed_BV.scatter_reduce(1, allowed_BC.clamp(min=0), is_token_BC.to(torch.uint8), "amax").bool()
        steps.append(logits_BV.masked_fill(~allowed_BV & is_token_BC.any(1, keepdim=True), -torch.inf))
    return torch.stack(steps, 1) if steps else logits_BTV


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


def require_output(language: Language | None, num_steps: int) -> None:
    """Raise an :class:`InputError` if a language has no output for a search of so many steps."""
    if language is not None:
        require_an_output(language.allowed(language.start(1, torch.device("cpu")), num_steps), num_steps)


def require_an_output(allowed_B1C: Tensor, steps_left: int | Tensor | None) -> None:
    """Raise an :class:`InputError` if an input with steps left may write nothing at the first of them."""
    has_one_B = (allowed_B1C >= 0).any(-1).any(-1)
    if steps_left is not None and not isinstance(steps_left, int):
        has_one_B = has_one_B | (steps_left <= 0)
    elif steps_left is not None and steps_left <= 0:
        return
    if bool(has_one_B.all()):
        return
    if steps_left is None:
        raise InputError("the language is empty", hint="check the outputs or the pattern that it was made from")
    steps = steps_left if isinstance(steps_left, int) else int(steps_left[~has_one_B][0])
    raise InputError(
        f"the language has no output that a search of {steps} step{'s' * (steps != 1)} can write",
        hint="allow more steps, or widen the language",
    )
