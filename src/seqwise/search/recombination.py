"""Of hypotheses that end alike, the best one alone: exact where a score sees no further back.

Shapes: B batch, J slots before a step, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from seqwise.search.candidates import Candidates
from seqwise.search.selection import HardSelection


def viterbi(
    candidates: Candidates, carry: Any = None, generator: torch.Generator | None = None
) -> tuple[HardSelection, Any]:
    """Keep the best hypothesis for each last token, V slots: ``s_w = max_i s_i + phi_i(w)``.

    Where a score depends on the last token alone, as in a chain, this is the Viterbi algorithm, and the best slot at
    the end is the best output; each of the others is the best that ends with its token. In other models it is a beam
    whose hypotheses are recombined: of two that end alike one is dropped, though it might have gone on better. O(V^2)
    candidates a step.

    Args:
        candidates: of one step.
        carry, generator: ignored; nothing is remembered and nothing is drawn.

    Source: Viterbi (IEEE Transactions on Information Theory, 1967); Lafferty et al. (ICML 2001) for chains of labels.

    Example:
        >>> before_BJ, added_BJV = torch.tensor([[1.0, 0.0]]), torch.tensor([[[0.0, 1.0], [2.0, 0.0]]])
        >>> selection, _ = viterbi(Candidates.of_scores(added_BJV, prefix_scores_BJ=before_BJ))
        >>> selection.scores_BK, selection.parents_BK
        (tensor([[2., 2.]]), tensor([[1, 0]]))
    """
    scores_BV, parents_BV = candidates.scores_BJV.max(1)
    tokens_V = torch.arange(scores_BV.shape[1], device=scores_BV.device)
    return HardSelection(scores_BV, parents_BV, tokens_V.expand_as(parents_BV)), carry
