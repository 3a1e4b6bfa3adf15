"""Bias of masking: how far masked draws are from p(y | y in L), and which prefixes gain and lose mass.

Where a language has few outputs, they are listed, and everything is exact. Otherwise masked draws are weighted by the
product of their allowed masses.

Shapes: N outputs or draws of an input, T steps, J prefixes, C tokens allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqwise.data.batches import EncodedExample
from seqwise.decoding import encode_input, evaluation_mode, steps_for
from seqwise.errors import InputError
from seqwise.models.protocols import StepModel
from seqwise.sampling.energies import rows_of
from seqwise.sampling.within import masked_draws, start_within
from seqwise.search.beam import HELD
from seqwise.search.language import Language, language_of, never_written, require_output

MOST_OUTPUTS = 2000
"""Number of outputs of a language up to which they are listed."""

DRAWS = 1000
"""Masked draws of an input whose outputs are not listed."""

RESAMPLES = 200  # of the draws, for standard errors


@dataclass(frozen=True)
class Shift:
    """Mean mass of a prefix over inputs: by masking, and in p(y | y in L)."""

    prefix: tuple[int, ...]
    masked: float
    conditional: float

    @property
    def gain(self) -> float:
        """Mass that masking adds; negative if it takes some away."""
        return self.masked - self.conditional


@dataclass(frozen=True)
class MaskingBias:
    """Bias of masking over inputs.

    Attributes:
        inside: p(y in L) of each input.
        distances: total variation between masked draws and p(y | y in L), of each input.
        errors: standard errors of the distances; 0 where outputs were listed.
        listed: number of outputs of each input, None where there are too many to list.
        shifts: prefixes with their masses, those that change most first; none begins another that changes in the same
            direction.
    """

    inside: tuple[float, ...]
    distances: tuple[float, ...]
    errors: tuple[float, ...]
    listed: tuple[int | None, ...]
    shifts: tuple[Shift, ...]

    @property
    def distance(self) -> float:
        """Mean total variation."""
        return sum(self.distances) / len(self.distances)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of the mean total variation, due to the draws; None if all outputs were listed."""
        if all(count is not None for count in self.listed):
            return None
        half = 1.96 * math.sqrt(sum(error**2 for error in self.errors)) / len(self.errors)
        return max(self.distance - half, 0.0), min(self.distance + half, 1.0)


def list_outputs(language: Language, num_steps: int, *, most: int = MOST_OUTPUTS) -> Tensor | None:
    """List the outputs of a language, int64 (N, num_steps), continued by end tokens; None if there are more than most.

    Example:
        >>> from seqwise.search import trie
        >>> list_outputs(trie([(3, 4), (5,)], end=0), 3)
        tensor([[3, 4, 0],
                [5, 0, 0]])
    """
    outputs_JT = torch.zeros(1, 0, dtype=torch.long)
    nodes_1J = language.start(1, outputs_JT.device)
    for step in range(num_steps):
        allowed_JC = language.allowed(nodes_1J, num_steps - step)[0]
        parents_K, columns_K = (allowed_JC >= 0).nonzero(as_tuple=True)
        if len(parents_K) > most:
            return None
        tokens_K = allowed_JC[parents_K, columns_K]
        outputs_JT = torch.cat([outputs_JT[parents_K], tokens_K[:, None]], 1)
        nodes_1J = language.advance(nodes_1J, parents_K[None], tokens_K[None])
    return outputs_JT


@torch.no_grad()
def masking_bias(
    model: StepModel,
    examples: Sequence[EncodedExample],
    *,
    most_outputs: int = MOST_OUTPUTS,
    num_draws: int = DRAWS,
    on_progress: Callable[[int], None] | None = None,
) -> MaskingBias:
    """Measure how far masking is from ``p(y | y in L)`` in the language of a model.

    With masked draws y of weight w = p(y) / q(y), p(y in L) is the mean weight, and the total variation is the mean of
    ``|w / p(y in L) - 1| / 2``. A draw gets stuck, and counts as a wrong output, at a prefix after which the model
    gives no probability to the allowed tokens.

    Args:
        model: a step model with a language; it is in evaluation mode during the call.
        examples: only their sources are read.
        most_outputs: number of outputs up to which they are listed instead of drawn.
        num_draws: masked draws of each other input.
        on_progress: called with the number of examples just done.

    Raises:
        InputError: the model has no language, or an input has no output in it, or none that the model can write.

    Example:
        >>> from seqwise.models import Tagger
        >>> from seqwise.search import trie
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2)
        >>> model.language = trie([(0, 1), (1, 1), (2, 0)])
        >>> bias = masking_bias(model, [EncodedExample((1, 2), ())])
        >>> bias.listed, 0 < bias.distance < 1, bias.interval
        ((3,), True, None)
    """
    language = language_of(model)
    if language is None:
        raise InputError("the model has no language", hint="set model.language")
    if not examples:
        raise InputError("there are no inputs to measure")
    masses: dict[tuple[int, ...], list[float]] = {}
    inside, distances, errors, listed = [], [], [], []
    outputs_by_length: dict[int, Tensor | None] = {}
    with evaluation_mode(model):
        for number, example in enumerate(examples):
            num_steps = steps_for(example.source_ids, model)
            require_output(language, num_steps)
            context = encode_input(model, example)
            if num_steps not in outputs_by_length:
                outputs_by_length[num_steps] = list_outputs(language, num_steps, most=most_outputs)
            outputs_NT = outputs_by_length[num_steps]
            if outputs_NT is None:
                drawn = masked_draws(
                    model, context, language, num_steps=num_steps, num_samples=num_draws, seed=number, checked=False
                )
                masked_N = torch.full((num_draws,), 1 / num_draws, dtype=torch.float64)
                log_joint_N = masked_N.log() + drawn.log_weights_B.cpu()
            else:
                rows_N = torch.zeros(len(outputs_NT), dtype=torch.long, device=model.embedding_VD.device)
                outputs_NT = outputs_NT.to(rows_N.device)
                drawn = start_within(model, rows_of(context, rows_N), language, outputs_NT, checked=False)
                # NaN where the model excludes all allowed tokens, so that masking has nothing to renormalise.
                masked_N = (-drawn.energy_B - drawn.log_weights_B).exp().nan_to_num(0.0).cpu()
                log_joint_N = -drawn.energy_B.cpu()
            if bool((log_joint_N == -torch.inf).all()):
                raise never_written()
            log_weights_N, conditional_N = drawn.log_weights_B.cpu(), log_joint_N.softmax(0)
            inside.append(float(log_joint_N.exp().sum()))
            stuck = max(1 - float(masked_N.sum()), 0.0)
            distances.append((float((masked_N - conditional_N).abs().sum()) + stuck) / 2)
            errors.append(0.0 if outputs_NT is not None else _standard_error(log_weights_N, seed=number))
            listed.append(None if outputs_NT is None else len(outputs_NT))
            _add_masses(masses, drawn.tokens_BT.cpu(), model.end, masked_N, conditional_N)
            if on_progress is not None:
                on_progress(1)
    shifts = [Shift(prefix, *(mass / len(examples) for mass in pair)) for prefix, pair in masses.items()]
    return MaskingBias(tuple(inside), tuple(distances), tuple(errors), tuple(listed), _without_nested(shifts))


def _standard_error(log_weights_N: Tensor, *, seed: int) -> float:
    """Return the standard error of the total variation, by the bootstrap over draws."""
    generator = torch.Generator().manual_seed(seed)
    rows_RN = torch.randint(len(log_weights_N), (RESAMPLES, len(log_weights_N)), generator=generator)
    weights_RN = (log_weights_N - log_weights_N.max()).exp()[rows_RN]
    return float(((weights_RN / weights_RN.mean(1, keepdim=True) - 1).abs().mean(1) / 2).std())


def _add_masses(
    masses: dict[tuple[int, ...], list[float]],
    tokens_NT: Tensor,
    end: int | None,
    masked_N: Tensor,
    conditional_N: Tensor,
) -> None:
    """Add the masses of the outputs of an input to those of their prefixes, up to the first end token."""
    pairs = torch.stack([masked_N, conditional_N], 1).tolist()
    for tokens, (masked, conditional) in zip(tokens_NT.tolist(), pairs, strict=True):
        for length in range(1, len(tokens) + 1):
            if tokens[length - 1] == HELD:
                break
            pair = masses.setdefault(tuple(tokens[:length]), [0.0, 0.0])
            pair[0] += masked
            pair[1] += conditional
            if tokens[length - 1] == end:
                break


def _without_nested(shifts: Sequence[Shift]) -> tuple[Shift, ...]:
    """Sort prefixes by how much they change; leave out those that begin or continue one with the same direction."""
    kept: list[Shift] = []
    seen: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}  # kept prefixes and their own prefixes
    chosen: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}
    for shift in sorted(shifts, key=lambda shift: (-abs(round(shift.gain, 12)), len(shift.prefix), shift.prefix)):
        gains, beginnings = shift.gain > 0, [shift.prefix[:length] for length in range(1, len(shift.prefix) + 1)]
        if shift.prefix in seen[gains] or not chosen[gains].isdisjoint(beginnings):
            continue
        kept.append(shift)
        chosen[gains].add(shift.prefix)
        seen[gains].update(beginnings)
    return tuple(kept)
