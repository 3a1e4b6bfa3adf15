"""Checks that an adapter and its model agree, on two short inputs.

Shapes: B = 2 inputs, one shorter than the other, T = 3 steps, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from seqwise import tree
from seqwise.data.batches import Batch, EncodedExample, collate
from seqwise.decoding import evaluation_mode
from seqwise.errors import InputError
from seqwise.hugging_face.sparse_attention import attention_restored
from seqwise.models.shared_cache import Past

LOGGER = logging.getLogger(__name__)

# Largest difference of scores as a share of the largest score: more than rounding causes, and less than a fault. Some
# models compute attention weights or norms in float32 whatever their type is.
TOLERANCES = {torch.float64: 1e-5, torch.float32: 2e-3}
HALF_PRECISION_TOLERANCE = 5e-2

# Large enough to reveal what a head does to large scores, such as a soft cap.
PROBE = 100.0

# Steps within a sliding window while a model is probed, so that a few steps leave it.
PROBED_WINDOW = 2

FORBID_PADDING = (
    "forbid it: generation_config.suppress_tokens = [pad_token_id], and search with a generation_selector; or report "
    "this model"
)


def feature_scale(model: Any) -> float:
    """Return the factor between a decoder's last hidden vectors and the input of the head: 1, or T5's H^-1/2.

    Raises an InputError if the model cannot be run on tokens, gives NaN, or does anything else between the two.

    Example:
        >>> from transformers import T5Config, T5ForConditionalGeneration
        >>> sizes = {"d_model": 4, "d_kv": 2, "d_ff": 8, "num_layers": 1, "num_heads": 2}
        >>> feature_scale(T5ForConditionalGeneration(T5Config(vocab_size=9, **sizes, decoder_start_token_id=0)))
        0.5
    """
    recorded: dict[str, Tensor] = {}

    def record_features(module: nn.Module, inputs: Any) -> None:
        recorded["features"] = inputs[0]

    def record_hidden(module: nn.Module, inputs: Any, output: Any) -> None:
        recorded["hidden"] = output[0] if isinstance(output, tuple) else output.last_hidden_state

    hooks: list[Any] = []
    try:
        with _examined(model):
            hooks.append(model.get_output_embeddings().register_forward_pre_hook(record_features))
            hooks.append(model.get_decoder().register_forward_hook(record_hidden))
            first, last = _two_tokens(model)
            logits = _own_logits(model, [first, last], [first, last], model.device)
    finally:
        for hook in hooks:
            hook.remove()
    if bool(logits.isnan().any()):
        raise InputError(f"the scores of {type(model).__name__} are not numbers", hint="check its weights")
    if {"features", "hidden"} <= recorded.keys() and recorded["features"].shape == recorded["hidden"].shape:
        for scale in (1.0, recorded["hidden"].shape[-1] ** -0.5):
            if _relative_difference(recorded["hidden"] * scale, recorded["features"]) <= _tolerance(recorded["hidden"]):
                return float(scale)
    raise InputError(
        f"{type(model).__name__} has unknown steps between its decoder and its output embeddings",
        hint="use a model whose head reads the decoder's last hidden state",
    )


def require_agreement(adapted: Any, model: nn.Module) -> None:
    """Raise an InputError if an adapter's scores, by step or at once, differ from its model's on a padded batch.

    ``model`` is ``adapted.model`` or a wrapper of it, and gives the reference scores.
    """
    plain, probe = adapted.model, _probe_of(adapted)
    device, compared = plain.device, probe.compared

    def own() -> Tensor:
        fed = [adapted.first, *probe.fed]
        logits = [_own_logits(model, source, [source[-1], *probe.fed], device, fed) for source in probe.sources]
        return torch.cat(logits)

    def at_once() -> Tensor:
        return adapted.head(adapted.teacher_forced(adapted.encode(probe.batch), probe.batch.targets_BT))

    def by_step() -> Tensor:
        context = adapted.encode(probe.batch)
        return _by_step(adapted, probe, context, adapted.start(context)[1])

    with _examined(plain):
        if len(adapted.embedding_VD) != own().shape[-1]:
            raise InputError(
                f"{type(plain).__name__} scores {own().shape[-1]} tokens but embeds {len(adapted.embedding_VD)}",
                hint="resize its token embeddings",
            )
        for way, ours in (("all steps at once", at_once), ("one step at a time", by_step)):
            theirs, scores = own(), ours()
            _require_same(plain, theirs[:, compared][:, :-1], scores[:, compared][:, :-1], way)
            _require_same(plain, theirs[:, -1], scores[:, -1], f"{way}, after padding was written", hint=FORBID_PADDING)
        with _constant_output_embeddings(plain, PROBE):
            _require_same(plain, own()[:, compared], at_once()[:, compared], "the head, given large scores")


def slots_may_share(adapted: Any) -> bool:
    """Whether steps with shared keys and values agree with steps with separate copies."""
    plain, probe = adapted.model, _probe_of(adapted)
    try:
        with _examined(plain):
            context = adapted.encode(probe.batch)
            pasts = (context.empty, adapted.empty_cache(context))
            copied, shared = (_by_step(adapted, probe, context, past)[:, probe.compared] for past in pasts)
            _require_same(plain, copied, shared, "slots that share their keys and values")
    except InputError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise
        LOGGER.info("slots have copies of their keys and values: %s", error)
        return False
    return True


class _Probe(NamedTuple):
    """Two inputs, one of which is padded."""

    sources: tuple[list[int], list[int]]
    batch: Batch
    other: int  # another token
    fed: tuple[int, int]
    compared: slice  # of the steps


def _probe_of(adapted: Any) -> _Probe:
    first, last = _two_tokens(adapted.model)
    # A forced first token has no scores of the model: only later steps can be compared.
    second = last if adapted.forced_first is None else adapted.forced_first
    compared = slice(0 if adapted.forced_first is None else 1, None)
    # Some models skip padding when they count positions.
    fed = second, first if adapted.padding is None else adapted.padding
    # A prompt of two tokens before the last, and one of a single token and padding.
    sources = ([first, last, last], [last, first])
    examples = [EncodedExample(tuple(source), (*fed, first)) for source in sources]
    batch = collate(examples).to(adapted.model.device)
    return _Probe(sources, batch, first, fed, compared)


def _by_step(adapted: Any, probe: _Probe, context: Any, state: Past) -> Tensor:
    """Compute the scores of three successive steps from an empty past."""
    device = adapted.model.device
    inputs_B1D, _ = adapted.start(context)
    features_B1H, state = adapted.step(inputs_B1D, state, context, 0)
    logits = [adapted.head(features_B1H)]
    # Two slots with different inputs: the second must not affect the first.
    state = tree.gather(state, torch.zeros(2, 2, dtype=torch.long, device=device))
    for step, token in enumerate(probe.fed, start=1):
        fed_BKD = adapted.embedding_VD[torch.tensor([[token, probe.other]] * 2, device=device)]
        features_BKH, state = adapted.step(fed_BKD, state, context, step)
        logits.append(adapted.head(features_BKH[:, :1]))
    return torch.cat(logits, dim=1)


def _two_tokens(model: Any) -> tuple[int, int]:
    """Return two ordinary tokens known to encoder and decoder, if there are any."""
    modules = (model.get_encoder(), model.get_decoder()) if model.config.is_encoder_decoder else (model.get_decoder(),)
    size = min(module.get_input_embeddings().weight.shape[0] for module in modules)
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
    special = [getattr(model.config, name, None) for name in names]
    ordinary = [token for token in range(min(size, 16)) if token not in special] or [0]
    return ordinary[0], ordinary[-1]


def _own_logits(
    model: Any, source: list[int], fed: list[int], device: torch.device, decoder_fed: list[int] | None = None
) -> Tensor:
    """Compute the model's own scores (1, T, V) after each input token, without padding and cache.

    For a causal model, the first input token is the last one of the source.
    """
    if not model.config.is_encoder_decoder:
        tokens_1L = torch.tensor([source + fed[1:]], device=device)
        return model(input_ids=tokens_1L).logits[:, len(source) - 1 :]
    return model(
        input_ids=torch.tensor([source], device=device),
        decoder_input_ids=torch.tensor([decoder_fed or fed], device=device),
    ).logits


def _require_same(
    model: nn.Module,
    own_BTV: Tensor,
    ours_BTV: Tensor,
    way: str,
    *,
    hint: str = "use another model, or report this one",
) -> None:
    difference = _relative_difference(ours_BTV, own_BTV)
    if not difference <= _tolerance(own_BTV):
        raise InputError(
            f"{type(model).__name__} cannot be adapted: {way}, its scores differ from the model's own by "
            f"{difference:.1e} of the largest",
            hint=hint,
        )


def _relative_difference(ours: Tensor, own: Tensor) -> float:
    """Return the largest difference divided by the largest value; NaN if there is one."""
    ours, own = ours.cpu().double(), own.cpu().double()
    return float((ours - own).abs().max() / own.abs().max().clamp(min=1e-30))


def _tolerance(scores: Tensor) -> float:
    return TOLERANCES.get(scores.dtype, HALF_PRECISION_TOLERANCE)


@contextmanager
def _examined(model: Any) -> Iterator[None]:
    """Run without dropout, gradients and warnings about padding, and raise errors as InputErrors."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # the probe writes padding without a mask
    try:
        with evaluation_mode(model), narrow_windows(model.get_decoder()), torch.no_grad(), attention_restored(model):
            yield
    except InputError:
        raise
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be run as a step model: {error}",
            hint="see whether it runs by itself, on tokens and on embeddings, with a cache",
        ) from error
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def narrow_windows(decoder: Any) -> Iterator[None]:
    """Temporarily narrow the sliding windows of a decoder, if it has any."""
    parts = [part for part in (decoder.config, *decoder.modules()) if _window(part) > PROBED_WINDOW]
    windows = [_window(part) for part in parts]
    try:
        for part in parts:
            part.sliding_window = PROBED_WINDOW
        yield
    finally:
        for part, window in zip(parts, windows, strict=True):
            part.sliding_window = window


def _window(part: Any) -> int:
    window = getattr(part, "sliding_window", None)
    return window if isinstance(window, int) else 0


@contextmanager
def _constant_output_embeddings(model: Any, largest: float) -> Iterator[None]:
    """Temporarily make the output embeddings return the same wide range of scores for any input."""

    def wide(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        probe_V = torch.linspace(-largest, largest, output.shape[-1], dtype=output.dtype, device=output.device)
        return probe_V.expand_as(output)

    hook = model.get_output_embeddings().register_forward_hook(wide)
    try:
        yield
    finally:
        hook.remove()
