"""The search loop: step the model, select, and let everything follow the selection.

Greedy decoding, scheduled sampling, beam search and its continuous relaxation are this loop with different selectors;
see :mod:`seqwise.search.selection`. Shapes: B batch, J and K slots before and after a step, V vocabulary, D embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.errors import InputError
from seqwise.models.deferred_linear import Matrices
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.search.candidates import Candidates, Score, as_score, local
from seqwise.search.costs import Cost, prefix_cost
from seqwise.search.language import Language, allowed_after, chosen_by, language_of, require_first_token
from seqwise.search.segments import Length, recomputed, segment_of, segments
from seqwise.search.selection import Selection, TokenValues, token_sums
from seqwise.search.selectors import Selector

HELD = -1
"""Token recorded for an input that had already ended while the rest of the batch was being searched."""


@dataclass(frozen=True)
class Beam:
    """K hypotheses for each of B inputs, after some steps of search.

    Attributes:
        scores_BK: cumulative scores; minus infinity marks a dead slot.
        costs_BK: cumulative costs D, zero when the search was given no cost.
        finished_BK: finished mass of each hypothesis, in [0, 1]; exactly 0 or 1 in hard search.
        inputs_BKD: embedding that each slot is fed next.
        state: decoder state of each slot, before that input.
        parents: for each step, the slot that each slot came from, int64 (B, K of that step).
        tokens: for each step, the token that each slot added, or :data:`HELD`.
        nodes_BK: node of each slot in the language of the search; None without a language.
    """

    scores_BK: Tensor
    costs_BK: Tensor
    finished_BK: Tensor
    inputs_BKD: Tensor
    state: Any
    parents: tuple[Tensor, ...] = ()
    tokens: tuple[Tensor, ...] = ()
    nodes_BK: Tensor | None = None

    @staticmethod
    def start(model: StepModel, context: Any) -> Beam:
        """Start with one empty hypothesis per input, so that no slot is a copy of another.

        With k identical slots, as Algorithm 3 is printed, every candidate would be tied k ways at every step.
        """
        inputs_B1D, state = model.start(context)
        # Scores are float32 or better whatever the dtype of the model: a beam depends on their differences.
        dtype = torch.promote_types(inputs_B1D.dtype, torch.float32)
        zeros_B1 = inputs_B1D.new_zeros(inputs_B1D.shape[:2], dtype=dtype)
        return Beam(zeros_B1, zeros_B1, zeros_B1, inputs_B1D, state)

    def advance(
        self,
        selection: Selection,
        state: Any,
        *,
        token_values: TokenValues,
        active_B1: Tensor | None,
        language: Language | None = None,
    ) -> Beam:
        """Follow a selection.

        Args:
            selection: the selected candidates.
            state: decoder state after this step, for each old slot.
            token_values: embedding, cost and end token of this step. Costs add up, ``D'_r = a_r . d_t + sum_i b_r[i]
                D_i``, with ``d_t = sum_i b_r[i] d_t[i]`` if the cost depends on the slot.
            active_B1: inputs that are still being searched; the others keep their scores, costs and history. None
                means all.
            language: language of the search; nodes follow the tokens that are traced back.
        """
        fed_BKD, cost_BK, ended_BK = token_sums(selection, token_values)
        nodes_BK = self.nodes_BK
        if language is not None and nodes_BK is not None:
            nodes_BK = language.advance(nodes_BK, selection.parents_BK, selection.tokens_BK)
        advanced = Beam(
            scores_BK=selection.scores_BK,
            costs_BK=selection.follow(self.costs_BK) + cost_BK,
            finished_BK=ended_BK,
            inputs_BKD=fed_BKD,
            state=selection.follow(state),
            parents=(*self.parents, selection.parents_BK),
            tokens=(*self.tokens, selection.tokens_BK),
            nodes_BK=nodes_BK,
        )
        return advanced if active_B1 is None else advanced._holding(self, active_B1)

    def _holding(self, before: Beam, active_B1: Tensor) -> Beam:
        """Freeze the scores, costs and history of inputs that have ended, at those of the beam before the step.

        Their decoder states and inputs may change, as nothing that is kept depends on them.
        """
        num_slots, old_slots = self.scores_BK.shape[1], before.scores_BK.shape[1]

        def held(new_BK: Tensor, old_BJ: Tensor, fill: float) -> Tensor:
            return torch.where(active_B1, new_BK, F.pad(old_BJ, (0, num_slots - old_slots), value=fill))

        itself_1K = torch.arange(num_slots, device=active_B1.device).clamp(max=old_slots - 1)[None]
        return replace(
            self,
            scores_BK=held(self.scores_BK, before.scores_BK, -torch.inf),
            costs_BK=held(self.costs_BK, before.costs_BK, 0.0),
            finished_BK=held(self.finished_BK, before.finished_BK, 0.0),
            parents=(*before.parents, torch.where(active_B1, self.parents[-1], itself_1K)),
            tokens=(*before.tokens, self.tokens[-1].masked_fill(~active_B1, HELD)),
        )


class Step(NamedTuple):
    """One step of the loop: its candidates, the selection, the resulting beam, and the states of selector and cost."""

    candidates: Candidates
    selection: Selection
    beam: Beam
    carry: Any = None
    cost_state: Any = None


def unroll(
    model: StepModel,
    context: Any,
    selector: Selector,
    *,
    num_steps: int | Tensor,
    score: Score | ScoreName = local,
    cost: Cost | None = None,
    end: int | None = None,
    language: Language | None = None,
    generator: torch.Generator | None = None,
    carry: Any = None,
    beam: Beam | None = None,
    segment: Length | None = None,
) -> Iterator[Step]:
    """Search step by step, yielding each :class:`Step`; :func:`beam_search` returns the last beam.

    Args: see :func:`beam_search`. In addition, ``end`` and ``language`` are given rather than taken from the model,
    ``carry`` is the carry of the selector before the first step, and ``beam`` is a beam to continue from (None starts
    from empty hypotheses). When continuing, the context covers the next part of the sources, and steps are counted
    from its beginning. If ``num_steps`` is a tensor, it is read again at each step: lowering an entry in place ends
    that input early. With a ``segment``, the backward pass recomputes the steps in segments of this length
    (``seqwise.search.segments``): all steps of a segment are taken before its first is yielded.
    """
    score = as_score(score)
    if score.cost_weight != 0 and cost is None:
        raise InputError("a cost-augmented score needs a cost", hint="pass cost=hamming_cost(...)")
    if beam is not None and cost is not None:
        raise InputError("a search that continues from a beam takes no cost", hint="search the whole sequence")
    # The total length of a search that continues later is unknown.
    steps_known, beam = beam is None, Beam.start(model, context) if beam is None else beam
    if language is not None and beam.nodes_BK is None:
        beam = replace(beam, nodes_BK=language.start(len(beam.scores_BK), beam.scores_BK.device))
    matrices, embedding_VD = Matrices(), model.embedding_VD
    costs = None if cost is None else prefix_cost(cost)

    def take_steps(steps: range, num_steps: int | Tensor, beam: Beam, carry: Any, cost_state: Any) -> Iterator[Step]:
        for step in steps:
            features_BJH, state = model.step(beam.inputs_BKD, beam.state, context, step)
            candidates = Candidates(
                prefix_scores_BJ=beam.scores_BK,
                features_BJH=features_BJH,
                head=model.head,
                score=score,
                cost=None if costs is None else costs.step(cost_state, step),
                recompute_cost=partial(cost, step) if callable(cost) else None,
                finished_BJ=beam.finished_BK,
                end=end,
                step=step,
                embedding_VD=embedding_VD,
            )
            if language is not None and beam.nodes_BK is not None:
                steps_left = num_steps - step if steps_known else None
                allowed = allowed_after(language, beam.nodes_BK, steps_left)
                if step == 0 and steps_known:
                    require_first_token(allowed, steps_left)
                candidates = candidates.within(allowed, matrices)
            selection, carry = selector(candidates, carry, generator)
            active_B1 = (num_steps > step)[:, None] if isinstance(num_steps, Tensor) else None
            beam = beam.advance(
                selection, state, token_values=candidates.token_values, active_B1=active_B1, language=language
            )
            cost_state = None if costs is None else costs.advance(cost_state, selection)
            yield Step(candidates, selection, beam, carry, cost_state)

    state = beam, carry, None if costs is None else costs.start(beam.scores_BK)
    for steps, is_recomputed in segments(longest_search(num_steps), segment):
        if is_recomputed:
            taken: Iterable[Step] = _recomputed(take_steps, steps, num_steps, *state, generator)
        else:
            taken = take_steps(steps, num_steps, *state)
        for made in taken:
            yield made
            state = made.beam, made.carry, made.cost_state


def _recomputed(
    take_steps: Callable[[range, int | Tensor, Beam, Any, Any], Iterator[Step]],
    steps: range,
    num_steps: int | Tensor,
    beam: Beam,
    carry: Any,
    cost_state: Any,
    generator: torch.Generator | None,
) -> Collection[Step]:
    """Take some steps that the backward pass recomputes; the graph keeps only the beam before them."""
    # The history has no gradient, and is kept as it is.
    history: dict[str, Any] = {"parents": beam.parents, "tokens": beam.tokens}
    fields = {name: value for name, value in vars(beam).items() if name not in history}
    if isinstance(num_steps, Tensor):
        num_steps = num_steps.clone()  # the original may be lowered in place before the backward pass

    def taken(before: tuple[dict[str, Any], Any, Any]) -> Iterator[Step]:
        fields, carry, cost_state = before
        return take_steps(steps, num_steps, Beam(**fields, **history), carry, cost_state)

    return recomputed(taken, (fields, carry, cost_state), generator=generator)


def search_steps(model: StepModel, context: Any, selector: Selector, **options: Any) -> Iterator[Step]:
    """Search step by step with the model's own end token, language and gradient checkpointing.

    Args: see :func:`unroll`.
    """
    language = chosen_by(selector, language_of(model))
    own: dict[str, Any] = {"end": model.end, "language": language, "segment": segment_of(model)}
    return unroll(model, context, selector, **own, **options)


def beam_search(
    model: StepModel,
    context: Any,
    selector: Selector,
    *,
    num_steps: int | Tensor,
    score: Score | ScoreName = local,
    cost: Cost | None = None,
    generator: torch.Generator | None = None,
) -> Beam:
    """Search for the best outputs with a selector; differentiable if its selection is soft.

    Args:
        model: a step model.
        context: what ``model.encode`` returned for the sources.
        selector: ``HardTopK(k)``, ``SoftTopK(k, alpha)``, ``SoftArgmax(alpha)``, or any other
            :class:`~seqwise.search.selectors.Selector`, which may be a function.
        num_steps: number of tokens to write, as int or int64 (B,). Inputs with fewer steps are frozen, so results do
            not depend on the rest of the batch.
        score: score that a token adds to a hypothesis: ``local``, ``global_``, ``renormalized``,
            ``interpolated(c)``, or one of these ``cost_augmented``; the first three also by name, such as "local" and
            "global".
        cost: task cost of each token at each step, accumulated along the hypotheses in ``beam.costs_BK``: a function
            of the step, or one that also depends on the prefix, such as ``edit_distance_cost``.
        generator: source of random numbers for noise; torch's global one by default.

    Returns:
        The final beam. Hypotheses that have written the end token (``model.end``) and their scores no longer change. If
        the model has a ``language``, all hypotheses are in it (:mod:`seqwise.search.language`).

    Raises:
        InputError: the number of steps is negative, or a cost-augmented score comes without a cost.

    Source: Goyal et al. (AAAI 2018), Algorithms 1 (hard) and 3 (soft), started from a single slot.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import SoftTopK
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> context = model.encode(collate([EncodedExample((1, 2, 3), ()), EncodedExample((4,), ())]))
        >>> beam = beam_search(model, context, SoftTopK(k=2, alpha=1.0), num_steps=context.lengths_B)
        >>> beam.scores_BK.shape
        torch.Size([2, 2])
    """
    beam = Beam.start(model, context)
    steps = search_steps(model, context, selector, num_steps=num_steps, score=score, cost=cost, generator=generator)
    for step in steps:
        beam = step.beam
    return beam


def backtrace(beam: Beam) -> Tensor:
    """Follow the back-pointers from the last step to the first.

    Args:
        beam: beam with its history; in a soft search, the most probable parents and tokens are followed (thesis,
            section 4.4).

    Returns:
        ``tokens_BKT``, int64, :data:`HELD` where an input had already ended.

    Example:
        >>> zeros = torch.zeros(1, 2)  # a two-step search whose best slot came from slot 1
        >>> parents = (torch.tensor([[0, 0]]), torch.tensor([[1, 0]]))
        >>> tokens = (torch.tensor([[7, 8]]), torch.tensor([[3, 4]]))
        >>> backtrace(Beam(zeros, zeros, zeros, zeros, None, parents, tokens))
        tensor([[[8, 3],
                 [7, 4]]])
    """
    batch_size, num_slots = beam.scores_BK.shape
    slots_BK = torch.arange(num_slots, device=beam.scores_BK.device).expand(batch_size, -1)
    columns: list[Tensor] = []
    for parents_BJ, tokens_BJ in zip(reversed(beam.parents), reversed(beam.tokens), strict=True):
        columns.append(tokens_BJ.gather(1, slots_BK))
        slots_BK = parents_BJ.gather(1, slots_BK)
    if not columns:
        return torch.zeros(batch_size, num_slots, 0, dtype=torch.long, device=beam.scores_BK.device)
    return torch.stack(columns[::-1], dim=-1)


def longest_search(num_steps: int | Tensor) -> int:
    """Return the largest number of steps of any input.

    Raises:
        InputError: a number of steps is negative.
    """
    if not isinstance(num_steps, Tensor):
        shortest = longest = num_steps
    else:
        shortest, longest = torch.stack(num_steps.aminmax()).tolist() if num_steps.numel() else (0, 0)
    if shortest < 0:
        raise InputError(f"the number of steps must not be negative, got {shortest}")
    return longest
