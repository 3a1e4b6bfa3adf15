"""Decoding: search, then trace back the final beam, cut outputs at the end token, and rank them.

Shapes: B batch, K slots, T steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqwise.data.batches import EncodedExample, collate
from seqwise.devices import worth_reading
from seqwise.errors import InputError, NotFiniteError
from seqwise.models.protocols import StepModel, require_evaluation_mode
from seqwise.names import DecoderName
from seqwise.search.beam import HELD, Beam, backtrace, search_steps
from seqwise.search.candidates import Score, global_, interpolated, local, renormalized
from seqwise.search.exact import BestOutputs
from seqwise.search.operators import of_scores
from seqwise.search.selection import HardSelection
from seqwise.search.selectors import HardTopK, Selector, SoftTopK, viterbi

__all__ = [
    "DECODERS",
    "Decoder",
    "Hypothesis",
    "decode",
    "decode_examples",
    "encode_input",
    "hypotheses",
]


BATCH_SIZE = 256
"""Default number of examples that are decoded together."""


@dataclass(frozen=True)
class Hypothesis:
    """Output: its token ids without the end token, its score (higher is better), and whether the model ended it."""

    tokens: tuple[int, ...]
    score: float
    finished: bool


def ids_with_end(output: Hypothesis, end: int | None) -> tuple[int, ...]:
    """Return the ids of an output, followed by the end token if it is finished.

    Example:
        >>> ids_with_end(Hypothesis((3, 4), -1.0, True), 0), ids_with_end(Hypothesis((3, 4), -1.0, False), 0)
        ((3, 4, 0), (3, 4))
    """
    return output.tokens if end is None or not output.finished else (*output.tokens, end)


@dataclass(frozen=True)
class Decoder:
    """Search procedure at test time: a selector, and the score that each token adds.

    Example:
        >>> Decoder(HardTopK(5), global_) == as_decoder("raw-beam", k=5)
        True
    """

    selector: Selector
    score: Score


DECODERS: dict[str, Callable[..., Decoder]] = {
    # The most probable token at each step.
    "greedy": lambda k, *_: Decoder(HardTopK(1), local),
    # By log-probability, the sum of f - log Z.
    "beam": lambda k, *_: Decoder(HardTopK(k), local),
    # By log-probabilities among the tokens that a language allows.
    "renormalized-beam": lambda k, *_: Decoder(HardTopK(k), renormalized),
    # By half-normalised scores, f - log Z / 2.
    "interpolated-beam": lambda k, *_: Decoder(HardTopK(k), interpolated(0.5)),
    # By unnormalised scores f.
    "raw-beam": lambda k, *_: Decoder(HardTopK(k), global_),
    # The relaxed beam search of training, with k slots at inverse temperature alpha.
    "soft-beam": lambda k, alpha, score, unit=of_scores: Decoder(SoftTopK(k, alpha, unit), score),
    # The best output of a chain by the score that it was trained with.
    "viterbi": lambda k, alpha, score, *_: Decoder(viterbi, score),
}
"""Decoders by name; each is made from the beam size, alpha, the score used in training, and the unit of alpha.

Greedy search and the hard beams do not depend on how the model was trained.
"""


def as_decoder(decoder: Decoder | DecoderName, *, k: int = 5) -> Decoder:
    """Return a decoder, given itself or its name in :data:`DECODERS`; names give local scores, alpha 1 and k slots.

    Raises:
        InputError: there is no decoder of that name.

    Example:
        >>> as_decoder("beam", k=3) == Decoder(HardTopK(3), local)
        True
    """
    if isinstance(decoder, Decoder):
        return decoder
    if decoder not in DECODERS:
        raise InputError(f"no decoder is called {decoder!r}", hint=f"choose one of {', '.join(DECODERS)}")
    return DECODERS[decoder](k, 1.0, local)


def hypotheses(
    result: Beam | BestOutputs, *, end: int | None, n_best: int = 1, length_normalization: float = 0.0
) -> list[list[Hypothesis]]:
    """Return the best distinct outputs of each input, best first.

    Args:
        result: result of a search.
        end: id of the end token, or None.
        n_best: largest number of outputs, 1 or more; a beam may have fewer distinct live hypotheses.
        length_normalization: p; hypotheses are ranked by ``score / length^p``, which is the score returned. The length
            includes the end token. In Transformers, this is ``length_penalty``.

    Returns:
        For each input, at most ``n_best`` hypotheses.

    Raises:
        InputError: ``n_best`` is less than 1.

    Example:
        >>> scores_BK, tokens = torch.tensor([[-0.1, -2.0]]), (torch.tensor([[3, 4]]),)
        >>> beam = Beam(scores_BK, scores_BK, scores_BK, scores_BK, None, (torch.tensor([[0, 0]]),), tokens)
        >>> [best.tokens for best in hypotheses(beam, end=None, n_best=2)[0]]
        [(3,), (4,)]
    """
    if n_best < 1:
        raise InputError(f"the number of hypotheses must be at least 1, got {n_best}")
    tokens_BKT = backtrace(result) if isinstance(result, Beam) else result.tokens_BKT
    results = []
    for scores, outputs in zip(result.scores_BK.tolist(), tokens_BKT.tolist(), strict=True):
        ranked = [
            _hypothesis(tokens, score, end, length_normalization)
            for score, tokens in zip(scores, outputs, strict=True)
            if score != -torch.inf
        ]
        ranked.sort(key=lambda hypothesis: -hypothesis.score)
        # Two slots of a soft search may trace back to one output; the better one stands for both. Of tied outputs, that
        # of the first slot comes first, as in a stream.
        distinct: dict[tuple[int, ...], Hypothesis] = {}
        for hypothesis in ranked:
            distinct.setdefault(hypothesis.tokens, hypothesis)
        results.append(list(distinct.values())[:n_best])
    return results


def _hypothesis(tokens: list[int], score: float, end: int | None, length_normalization: float) -> Hypothesis:
    written = [token for token in tokens if token != HELD]
    finished = end is None or end in written
    length = len(written)
    if end is not None and end in written:
        written = written[: written.index(end)]
        length = len(written) + 1
    return Hypothesis(tuple(written), score / max(length, 1) ** length_normalization, finished)


def has_ended(beam: Beam) -> bool:
    """Whether every slot has ended or is dead."""
    return bool(((beam.finished_BK == 1) | (beam.scores_BK == -torch.inf)).all())


@torch.no_grad()
def decode(
    model: StepModel,
    context: Any,
    decoder: Decoder | DecoderName,
    *,
    num_steps: int | Tensor,
    n_best: int = 1,
    length_normalization: float = 0.0,
) -> list[list[Hypothesis]]:
    """Search and return the best outputs of each input, best first.

    A hard search stops as soon as every hypothesis has ended.

    Args:
        model: a step model, in evaluation mode.
        context: what ``model.encode`` returned.
        decoder: a selector and a score, or a name in :data:`DECODERS`, which gives local scores and 5 slots.
        num_steps: largest number of tokens, or the exact number for a model without end token; int or int64 (B,).
        n_best, length_normalization: see :func:`hypotheses`.

    Returns:
        For each input, at most ``n_best`` :class:`Hypothesis` objects; none if the model, the selector or a language
        excludes every continuation of the beam.

    Raises:
        InputError: an argument is out of range, or the model is in training mode.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> context = model.encode(collate([EncodedExample((1, 2, 3), ()), EncodedExample((4,), ())]))
        >>> outputs = decode(model, context, Decoder(HardTopK(2), local), num_steps=context.lengths_B)
        >>> [len(best[0].tokens) for best in outputs]
        [3, 1]
    """
    require_evaluation_mode(model)
    decoder, beam = as_decoder(decoder), Beam.start(model, context)
    steps = search_steps(model, context, decoder.selector, num_steps=num_steps, score=decoder.score)
    for number, step in enumerate(steps, start=1):
        beam = step.beam
        # A soft beam goes on mixing its slots' scores after all of them have ended, so it must make all its steps.
        settled = isinstance(step.selection, HardSelection) and model.end is not None
        if settled and worth_reading(beam.scores_BK, number) and has_ended(beam):
            break
    return hypotheses(beam, end=model.end, n_best=n_best, length_normalization=length_normalization)


def step_limit(source_length: int, end: int | None) -> int:
    """Return the largest number of output tokens: the source length for a tagger, else ``2 * source_length + 10``.

    It depends only on the input, so outputs do not depend on the batch.
    """
    return source_length if end is None else 2 * source_length + 10


def steps_for(source_ids: Sequence[int], model: StepModel) -> int:
    """Return the number of search steps for a source: :func:`step_limit`, or fewer if the model has ``most_steps``.

    Models with limited positions, or with fewer outputs than source tokens, have ``most_steps(source_ids)``.

    Raises:
        InputError: the source leaves no position for an output.
    """
    limit = step_limit(len(source_ids), model.end)
    most: int | None = getattr(model, "most_steps", lambda _: None)(source_ids)
    if most is not None and most < 1 <= limit:
        problem = f"a source of {len(source_ids)} tokens leaves no position for an output"
        raise InputError(problem, hint="shorten it")
    return limit if most is None else min(limit, most)


def encode_input(model: StepModel, source: EncodedExample) -> Any:
    """Encode one input on the device of the model."""
    return model.encode(collate([source]).to(model.embedding_VD.device))


@contextmanager
def evaluation_mode(model: object) -> Iterator[None]:
    """Put a module and its submodules into evaluation mode, and restore their modes afterwards; ignore other objects.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluation_mode(model):
        ...     print([part.training for part in model])
        [False, False]
        >>> [part.training for part in model]
        [True, False]
    """
    if not isinstance(model, nn.Module) or not any(part.training for part in model.modules()):
        yield
        return
    modes = {part: part.training for part in model.modules()}
    try:
        model.eval()
        yield
    finally:
        model.train(modes[model])  # a module may do more than set the flag
        for part, mode in modes.items():
            part.training = mode


def decode_examples(
    model: StepModel,
    examples: Sequence[EncodedExample],
    decoder: Decoder | DecoderName,
    *,
    n_best: int = 1,
    length_normalization: float = 0.0,
    on_progress: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """Decode a data set in batches of similar length; results are in the order of the examples.

    Args:
        model: a step model that is also a module; it is in evaluation mode during the call.
        examples: encoded examples; only their sources are read.
        decoder: see :func:`decode`.
        n_best, length_normalization: see :func:`hypotheses`.
        on_progress: called with the number of examples just done.

    Raises:
        InputError: a score is not a number.
    """
    results: list[list[Hypothesis]] = [[] for _ in examples]
    with evaluation_mode(model), torch.no_grad():
        for indices, context, steps_B in encoded_batches(model, examples):
            decoded = decode(
                model,
                context,
                decoder,
                num_steps=steps_B,
                n_best=n_best,
                length_normalization=length_normalization,
            )
            for index, outputs in zip(indices, decoded, strict=True):
                if any(math.isnan(output.score) for output in outputs):
                    raise NotFiniteError("the model's scores are not numbers", hint="check its weights")
                results[index] = outputs
            if on_progress is not None:
                on_progress(len(indices))
    return results


def encoded_batches(
    model: StepModel, examples: Sequence[EncodedExample], *, batch_size: int = BATCH_SIZE
) -> Iterator[tuple[list[int], Any, Tensor]]:
    """Encode a data set in batches of similar length.

    Yields:
        Indices of a batch of examples, the context of their sources, and their numbers of search steps, int64 (B,).
    """
    for indices in batches_by_length(model, examples, batch_size=batch_size):
        batch = collate([examples[index] for index in indices]).to(model.embedding_VD.device)
        limits = [steps_for(examples[index].source_ids, model) for index in indices]
        yield indices, model.encode(batch), torch.tensor(limits, device=batch.sources_BS.device)


def batches_by_length(
    model: StepModel, examples: Sequence[EncodedExample], *, batch_size: int = BATCH_SIZE
) -> Iterator[list[int]]:
    """Yield the indices of each batch of examples, from short to long sources.

    An input whose outputs are limited by the model's positions has its own batch: in one with a longer prompt, it might
    have fewer positions. The examples of any subsequence of the batches are grouped into the same batches again.
    """
    order = sorted(range(len(examples)), key=lambda index: len(examples[index].source_ids))
    together: list[int] = []
    alone: list[int] = []
    for index in order:
        ids = examples[index].source_ids
        is_cut = model.end is not None and steps_for(ids, model) < step_limit(len(ids), model.end)
        (alone if is_cut else together).append(index)
    yield from (together[start : start + batch_size] for start in range(0, len(together), batch_size))
    yield from ([index] for index in alone)
