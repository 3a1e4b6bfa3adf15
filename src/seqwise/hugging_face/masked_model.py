"""Hugging Face masked language models as masked models for energies, samplers and training objectives.

Only the *free* tokens of a sequence are scored and sampled. The adapter adds the special tokens that the model expects
around them (``[CLS] ... [SEP]``, ``<cls> ... <eos>``), which are never masked and not part of an energy.

Shapes: N sequences, T free tokens of the longest, L tokens of the model's input with special ones and padding, M masked
positions in all, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqwise.data.batches import IGNORE
from seqwise.decoding import evaluation_mode
from seqwise.devices import at_least_float32, moved
from seqwise.errors import InputError
from seqwise.hugging_face.positions import num_positions
from seqwise.hugging_face.sparse_attention import attend_as_first, attention_restored, switching_part
from seqwise.hugging_face.text_codec import TextCodec
from seqwise.models.fast_layers import fast_layers
from seqwise.models.masked import refuse_context, seen_tokens

MAX_TOKENS = 2**14
"""Default number of tokens per call of a model, special ones and padding included."""


class HuggingFaceMaskedModel(nn.Module):
    """Hugging Face masked language model with special tokens around its input; made by :func:`masked_model`.

    It shares the parameters of the wrapped model, which is trained and saved as before, and follows its train / eval
    mode.

    Attributes:
        model: the wrapped model.
        vocab_size: V, number of scored tokens, including special ones.
        mask_id: id of the mask, one of the V.
        before: special tokens before the free ones.
        after: special tokens after them.
        allowed_V: bool, on the CPU: tokens that may be proposed, all but special ones and those unknown to the
            tokenizer.
        max_tokens: number of tokens per call of the model.
        narrowed_at: module of the backbone after which only masked positions are computed: the attention of the last
            layer, whose feed-forward network then skips other positions, or "" for the whole backbone. None if
            neither is found: the model scores all positions, and masked ones are selected.
        codec: codec of the tokenizer that it was made with, if any.
        max_length: length of the longest sequence of free tokens, or None without a limit.
        padding_is_neutral: whether scores are the same with and without padding.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mask_id: int,
        before: Sequence[int],
        after: Sequence[int],
        pad_id: int,
        allowed_V: Tensor,
        max_tokens: int,
        codec: TextCodec | None = None,
    ) -> None:
        super().__init__()
        self.model, self.codec = model, codec
        self.vocab_size = len(allowed_V)
        self.mask_id, self.before, self.after, self._pad_id = mask_id, tuple(before), tuple(after), pad_id
        self.allowed_V, self.max_tokens = allowed_V, max_tokens
        num_special = len(self.before) + len(self.after)
        positions = num_positions(model)
        self.max_length = None if positions is None else positions - num_special
        self.reads_attention_mask = "attention_mask" in inspect.signature(unwrapped(model).forward).parameters
        self._switching = (switching_part(model),)  # in a tuple, so that it is no second child
        self.padding_is_neutral = self.reads_attention_mask and self._switching == (None,)
        self.narrowed_at: str | None = None
        _check(self)

    @property
    def training(self) -> bool:
        """Mode of the wrapped model."""
        model = self._modules.get("model") if "_modules" in self.__dict__ else None
        return True if model is None else model.training

    @training.setter
    def training(self, mode: bool) -> None:
        # ``train`` and ``eval`` set the mode of every module below as well, the wrapped model's among them.
        pass

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.model.parameters()).device

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        """Compute unnormalised scores (M, V) at the masked positions, in row-major order; float32 or better.

        Args:
            tokens_NT: int64, free tokens only; values at masked positions are ignored. ``IGNORE`` after the end of
                shorter rows.
            masked_NT: bool; false at padding.
            context: None.

        Raises:
            InputError: shapes do not fit, padding is masked or precedes a token, a row has no tokens or more than the
                model has positions, or there is a context.
        """
        refuse_context(context)
        masked_NT = masked_NT.cpu()
        seen_NT, real_NT, *_ = seen_tokens(tokens_NT, masked_NT, mask_id=self.mask_id, device=masked_NT.device)
        self.require_room(tokens_NT.shape[1])
        if not bool(masked_NT.any()):
            return torch.zeros(0, self.vocab_size, device=self.device)
        width = tokens_NT.shape[1] + len(self.before) + len(self.after)
        rows, parts = max(1, self.max_tokens // width), []
        for first in range(0, len(seen_NT), rows):
            part = slice(first, first + rows)
            if bool(masked_NT[part].any()):
                parts.append(self._scores(seen_NT[part], masked_NT[part], None if real_NT is None else real_NT[part]))
        return torch.cat(parts)

    def require_room(self, length: int) -> None:
        """Raise an InputError for a sequence of more free tokens than the model has positions."""
        if self.max_length is not None and length > self.max_length:
            num_special = len(self.before) + len(self.after)
            raise InputError(
                f"a sequence has {length} tokens and {num_special} special ones, and the model has"
                f" {self.max_length + num_special} positions",
                hint=f"cut it into pieces of at most {self.max_length} tokens",
            )

    def _scores(self, seen_NT: Tensor, masked_NT: Tensor, real_NT: Tensor | None) -> Tensor:
        ids_NL, attended_NL = self._surrounded(seen_NT, real_NT)
        rows_M, columns_M = masked_NT.nonzero(as_tuple=True)
        indices = moved(rows_M, self.device), moved(columns_M + len(self.before), self.device)
        inputs: dict[str, Any] = {"input_ids": moved(ids_NL, self.device), "return_dict": True}
        if not bool(attended_NL.all()):
            inputs["attention_mask"] = moved(attended_NL, self.device)
        if "attention_mask" in inputs and not self.reads_attention_mask:
            raise InputError("the model takes no attention mask, so rows cannot be padded", hint="sort by length")
        attend_as_first(self._switching[0], ids_NL.shape[1])
        gathered = nullcontext() if self.narrowed_at is None else _gathered(self.model, self.narrowed_at, indices)
        with gathered, fast_layers(self.model):
            logits = self.model(**inputs).logits
        logits_MV = logits[indices] if self.narrowed_at is None else logits.squeeze(0)
        return at_least_float32(logits_MV)

    def _surrounded(self, seen_NT: Tensor, real_NT: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the model's input ids (N, L), with special tokens around each row's own, and the padding mask."""
        count, length = seen_NT.shape
        lengths_N = seen_NT.new_full((count,), length) if real_NT is None else real_NT.sum(1)
        start, width = len(self.before), len(self.before) + length + len(self.after)
        ids_NL = seen_NT.new_full((count, width), self._pad_id)
        ids_NL[:, :start] = seen_NT.new_tensor(self.before)
        ids_NL[:, start : start + length] = seen_NT if real_NT is None else seen_NT.masked_fill(~real_NT, self._pad_id)
        for place, token in enumerate(self.after):
            ids_NL.scatter_(1, (start + lengths_N + place)[:, None], token)
        ends_N = start + lengths_N + len(self.after)
        return ids_NL, (torch.arange(width, device=seen_NT.device) < ends_N[:, None]).long()


def masked_model(
    model: nn.Module,
    *,
    tokenizer: Any = None,
    mask_id: int | None = None,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    special: Sequence[int] = (),
    max_tokens: int = MAX_TOKENS,
) -> HuggingFaceMaskedModel:
    """Adapt a Hugging Face masked language model to :class:`~seqwise.models.MaskedModel`.

    ``f(w, y without t) = logits[t, w]`` of the model for ``before + y with the mask at t + after``. The head and, if
    possible, the last layer's feed-forward network are applied only at masked positions: the model's own ``forward``
    runs with the output of a module reduced to these positions (``narrowed_at``). Construction scores a dummy batch
    both ways; if the scores differ, the adapter falls back to scoring all positions.

    Args:
        model: any model that ``AutoModelForMaskedLM`` loads: BERT, RoBERTa, DistilBERT, ModernBERT, ESM, ALBERT, the
            generator of ELECTRA; or a PEFT model around it.
        tokenizer: the model's own, fast or slow. It determines the special tokens around a sequence, the mask, and
            the tokens that may be proposed.
        mask_id: id of the mask, without a tokenizer.
        before: special tokens before the free ones, without a tokenizer.
        after: special tokens after the free ones, without a tokenizer.
        special: further tokens that must not be proposed, without a tokenizer; the mask, ``before``, ``after`` and
            padding never are.
        max_tokens: number of tokens per call of the model, special ones and padding included; fewer need less
            memory.

    Returns:
        An nn.Module that shares the model's parameters. Pass its ``allowed_V`` to
        :func:`~seqwise.sampling.masked_conditionals`.

    Raises:
        InputError: there is neither a tokenizer nor a mask, or both; tokens are outside the model's vocabulary; or the
            model is not a masked language model: it has no scores by position, or does not see later tokens.

    Not implemented: pairs of sequences (token types other than 0); concurrent calls of the same model from several
    threads.

    Source: Salazar et al. (ACL 2020), section 2, and Goyal (2021), section 6.2, for uses of the scores.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertForMaskedLM
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        >>> bert = BertForMaskedLM(BertConfig(vocab_size=9, **sizes)).eval()
        >>> adapted = masked_model(bert, mask_id=4, before=[2], after=[3], special=[1])
        >>> adapted.masked_logits(torch.tensor([[5, 8, 7]]), torch.tensor([[True, False, True]])).shape
        torch.Size([2, 9])
        >>> adapted.allowed_V.nonzero().flatten().tolist()
        [5, 6, 7, 8]
    """
    vocab_size = _vocab_size(model)
    if max_tokens < 1:
        raise InputError(f"max_tokens must be at least 1, got {max_tokens}")
    pad_id, codec = getattr(model.config, "pad_token_id", None), None
    if tokenizer is not None:
        if mask_id is not None or before or after or special:
            raise InputError("both a tokenizer and ids of special tokens are given", hint="leave the ids out")
        codec = TextCodec(tokenizer, vocab_size=vocab_size)
        mask_id, before, after, allowed_V = codec.mask_id, codec.before, codec.after, codec.allowed_V
        pad_id = pad_id if pad_id is not None else getattr(tokenizer, "pad_token_id", None)
    elif mask_id is None:
        raise InputError("the mask token of the model is unknown", hint="give its tokenizer, or mask_id")
    else:
        outside = [token for token in (mask_id, *before, *after, *special) if not 0 <= token < vocab_size]
        if outside:
            raise InputError(f"the special token {outside[0]} is not one of the {vocab_size} that the model scores")
        allowed_V = torch.ones(vocab_size, dtype=torch.bool)
        allowed_V[[mask_id, *before, *after, *special]] = False
        if pad_id is not None:
            allowed_V[pad_id] = False
    if not bool(allowed_V.any()):
        raise InputError("all tokens are special ones, and none is left to propose")
    return HuggingFaceMaskedModel(
        model,
        mask_id=mask_id,
        before=before,
        after=after,
        pad_id=0 if pad_id is None else pad_id,
        allowed_V=allowed_V,
        max_tokens=max_tokens,
        codec=codec,
    )


def unwrapped(model: Any) -> Any:
    """Return the model inside a PEFT wrapper, whose ``forward`` has no named arguments."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def require_no_prompt(model: Any) -> None:
    """Raise an InputError for a PEFT adapter that puts vectors before the tokens, which are lost inside its wrapper."""
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        problem = "the adapter puts a learnt prompt before the tokens, which is not read here"
        raise InputError(problem, hint="use an adapter of weights, such as LoRA")


def _vocab_size(model: Any) -> int:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    weight = getattr(head, "weight", None)
    if weight is None or not hasattr(model, "config"):
        raise InputError(
            f"{type(model).__name__} has no head over a vocabulary", hint="load it with AutoModelForMaskedLM"
        )
    return len(weight)


@contextmanager
def _gathered(model: Any, name: str, indices: tuple[Tensor, Tensor]) -> Iterator[None]:
    """Temporarily reduce the output of a backbone module to the masked positions, as one sequence of M."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return output[indices][None]
        first_M = output[0][indices][None]
        if isinstance(output, tuple):
            return (first_M, *output[1:])
        output[next(iter(output.keys()))] = first_M
        return output

    handle = unwrapped(model).base_model.get_submodule(name).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _modules_to_narrow(model: Any) -> list[str]:
    """Return backbone modules after which positions are independent, the earliest first; none without a backbone."""
    backbone = unwrapped(model).base_model
    # Sparse attention pads its input, and cuts as many columns off its output.
    if backbone is unwrapped(model) or switching_part(model) is not None:
        return []
    attentions = [name for name, _ in backbone.named_modules() if name.rpartition(".")[2] == "attention"]
    return [*attentions[-1:], ""]


def _check(adapted: HuggingFaceMaskedModel) -> None:
    """Find the module after which masked positions suffice, and whether padding changes scores.

    Raises if this is not a masked language model.
    """
    name = type(unwrapped(adapted.model)).__name__
    room = 3 if adapted.max_length is None else min(3, adapted.max_length)
    if room < 1:
        raise InputError(f"{name} has no positions besides those of the special tokens", hint="load another model")
    words = adapted.allowed_V.cpu().nonzero().flatten()[:3]
    tokens_NT = words[torch.arange(2 * room) % len(words)].view(2, room)
    masked_NT = torch.tensor([[True, False, True], [False, True, True]])[:, :room]
    with evaluation_mode(adapted.model), torch.no_grad(), attention_restored(adapted.model):
        full_MV = _attempt(lambda: adapted.masked_logits(tokens_NT, masked_NT))
        if full_MV is None or full_MV.shape != (int(masked_NT.sum()), adapted.vocab_size):
            hint = "load it with AutoModelForMaskedLM"
            raise InputError(f"{name} gives no scores of every token at every position", hint=hint)
        for place in (*_modules_to_narrow(adapted.model), None):
            adapted.narrowed_at = place
            own_MV = _attempt(lambda: adapted.masked_logits(tokens_NT, masked_NT))
            if own_MV is not None and _alike(own_MV, full_MV, adapted):
                break
        if room > 1 and adapted.padding_is_neutral:
            padded_NT, shorter_1T = tokens_NT.clone(), tokens_NT[1:, :-1]
            padded_NT[1, -1] = IGNORE
            own_MV = adapted.masked_logits(shorter_1T, shorter_1T != IGNORE)
            padded_MV = _attempt(lambda: adapted.masked_logits(padded_NT, padded_NT != IGNORE)[1 - room :])
            # Fewer units in half precision, where 100 would be most of a score.
            units = 8 if own_MV.dtype != next(adapted.model.parameters()).dtype else 100
            adapted.padding_is_neutral = padded_MV is not None and _alike(padded_MV, own_MV, adapted, units=units)
        if room > 1 and len(words) > 1:
            first_NT = F.one_hot(torch.zeros(2, dtype=torch.int64), room).bool()
            ends_NT = tokens_NT[:1].repeat(2, 1)
            ends_NT[:, -1] = words[:2]
            one_V, other_V = adapted.masked_logits(ends_NT, first_NT)
            if bool((one_V == other_V).all()):
                hint = "load a masked language model; a left-to-right model scores texts itself"
                raise InputError(f"{name} does not see the tokens after a masked position", hint=hint)


def _attempt(score: Callable[[], Tensor]) -> Tensor | None:
    """Return the scores, or None if the model fails on its input."""
    try:
        return score()
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError):
        return None


def _alike(own_MV: Tensor, full_MV: Tensor, adapted: HuggingFaceMaskedModel, *, units: int = 100) -> bool:
    """Whether scores differ by at most some units of rounding of the largest one."""
    if own_MV.shape != full_MV.shape:
        return False
    # The same sums in other shapes may round differently.
    precision = torch.finfo(next(adapted.model.parameters()).dtype).eps
    return bool((own_MV - full_MV).abs().max() <= units * precision * full_MV.abs().max().clamp(min=1.0))
