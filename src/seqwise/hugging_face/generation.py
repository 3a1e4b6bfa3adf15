"""Token constraints of a generation config, exactly as in ``generate``.

Shapes: B batch, J slots, V vocabulary, X excluded candidates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from seqwise.errors import InputError
from seqwise.hugging_face.heads import head_shape
from seqwise.search.candidates import Candidates
from seqwise.search.language import Language, require_output
from seqwise.search.selection import Selection
from seqwise.search.selectors import Selector

# Settings that change scores and are not supported, with the values at which they have no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "guidance_scale": (1.0,),
    "diversity_penalty": (0.0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "renormalize_logits": (False,),
    "token_healing": (False,),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
    "constraints": ([],),
    "force_words_ids": ([],),
    "stop_strings": ([],),
    "dola_layers": (),
}
NEVER_CHOSEN = ("suppress_tokens", "bad_words_ids")  # settings whose tokens are forbidden at every step
# The last two only change how keys within a sliding window are stored.
MOVABLE_CACHES = (None, "dynamic", "dynamic_full", "offloaded", "hybrid", "sliding_window")


class SpecialTokens(NamedTuple):
    """Special tokens that a search needs."""

    end: int | None
    first: int  # the first input of the decoder; 0 for a causal model, which continues a prompt
    forced_first: int | None  # the first output if it is forced
    padding: int | None  # if it may be written


def ended_by(generation_config: GenerationConfig, tokenizer: Any) -> GenerationConfig:
    """Return a generation config in which, of several end tokens, only the tokenizer's may be written.

    Targets end with it. ``generate`` ends an output at any of them, as chat models need, which a search does not.

    Example:
        >>> from types import SimpleNamespace
        >>> several = GenerationConfig(eos_token_id=[5, 6])
        >>> one = ended_by(several, SimpleNamespace(eos_token_id=6))
        >>> one.eos_token_id, one.suppress_tokens, several.eos_token_id
        (6, [5], [5, 6])
    """
    ends, end = generation_config.eos_token_id, getattr(tokenizer, "eos_token_id", None)
    if not isinstance(ends, list | tuple) or end not in ends or len(ends) == 1:
        return generation_config
    changed = copy.deepcopy(generation_config)
    changed.eos_token_id = end
    changed.suppress_tokens = sorted({*(generation_config.suppress_tokens or ()), *ends} - {end})
    return changed


def special_tokens(model: Any, generation_config: GenerationConfig) -> SpecialTokens:
    """Return the start and end tokens of a generation config.

    Raises an InputError for several end tokens, no single start token, or an unsupported cache.

    Example:
        >>> from transformers import BartConfig, BartForConditionalGeneration
        >>> sizes = {"d_model": 4, "encoder_layers": 1, "decoder_layers": 1}
        >>> heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
        >>> model = BartForConditionalGeneration(BartConfig(vocab_size=9, **sizes, **heads))
        >>> special_tokens(model, model.generation_config)
        SpecialTokens(end=2, first=2, forced_first=None, padding=1)
    """
    name = type(model).__name__
    end = generation_config.eos_token_id
    if isinstance(end, list | tuple):
        if len(end) != 1:
            raise InputError(
                f"{name} has {len(end)} end tokens (generation_config.eos_token_id is {list(end)}), and a search needs "
                "one",
                hint="set generation_config.eos_token_id and the tokenizer's eos_token to what targets end with",
            )
        end = end[0]
    if end is not None and end >= head_shape(model)[0]:
        end = None  # never written, such as the end token of GPT-2 in a model with a smaller vocabulary
    if generation_config.cache_implementation not in MOVABLE_CACHES:
        raise InputError(
            f"{name} asks for a {generation_config.cache_implementation} cache "
            "(generation_config.cache_implementation), which cannot be gathered or mixed",
            hint="set it to None",
        )
    padding = getattr(model.config, "pad_token_id", None)
    if padding is not None and (padding < 0 or padding in _forbidden(generation_config, end)):
        padding = None
    if not model.config.is_encoder_decoder:
        forced = generation_config.forced_bos_token_id
        if forced is not None:
            raise InputError(
                f"{name} is a causal model, whose first token follows a prompt, and generation_config."
                f"forced_bos_token_id is {forced}",
                hint="set it to None, and end prompts with that token",
            )
        return SpecialTokens(end, 0, None, padding)
    return SpecialTokens(end, *first_tokens(model, generation_config), padding)


def first_tokens(model: Any, generation_config: GenerationConfig) -> tuple[int, int | None]:
    """Return the token that the decoder of an encoder-decoder starts from, and the first output if it is forced."""
    name, first = type(model).__name__, generation_config.decoder_start_token_id
    if first is None:
        first = generation_config.bos_token_id
    if not isinstance(first, int):
        raise InputError(
            f"{name} has no single start token (generation_config.decoder_start_token_id is {first})",
            hint="set generation_config.decoder_start_token_id to one token",
        )
    return first, generation_config.forced_bos_token_id


def generation_selector(
    selector: Selector,
    model: nn.Module,
    *,
    num_steps: int | None = None,
    generation_config: GenerationConfig | None = None,
) -> GenerationSelector:
    """Restrict a selector to the candidates that ``generate`` would allow.

    As in ``generate``, forbidden tokens are removed after normalisation, so the remaining probabilities sum to less
    than one. A forced last token adds nothing to the score.

    It applies ``suppress_tokens``, ``begin_suppress_tokens``, ``bad_words_ids`` of one token each, ``min_new_tokens``,
    ``min_length`` (of encoder-decoders) and ``forced_eos_token_id``;
    :func:`~seqwise.hugging_face.step_model.step_model` applies ``forced_bos_token_id``. Search options (``num_beams``,
    ``length_penalty``, ``early_stopping``, ``max_length``, sampling) are ignored; set them in the selector and in
    ``decode``.

    A search inside a language leaves the forbidden tokens out of it, so that no prefix leads to them, if the language
    has a method ``without``. It refuses the settings that depend on the step, which a language does not know.

    Args:
        selector: hard or soft.
        model: a Hugging Face model, or an adapted one.
        num_steps: number of steps of every search; needed for a forced last token.
        generation_config: by default the model's own.

    Raises:
        InputError: a setting changes scores in an unsupported way, or needs the number of steps.

    Example:
        >>> from seqwise.hugging_face import step_model
        >>> from seqwise.search import HardTopK
        >>> from transformers import MarianConfig, MarianMTModel
        >>> sizes = {"vocab_size": 9, "d_model": 4, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 8}
        >>> config = MarianConfig(**sizes, encoder_attention_heads=1, decoder_attention_heads=1, eos_token_id=0)
        >>> config.decoder_start_token_id = 8
        >>> model = step_model(MarianMTModel(config))
        >>> model.model.generation_config.bad_words_ids = [[8]]
        >>> generation_selector(HardTopK(2), model, num_steps=20).excluded
        (8,)
    """
    plain: Any = getattr(model, "model", model) if not hasattr(model, "generation_config") else model
    config = plain.generation_config if generation_config is None else generation_config
    for name, neutral in NEUTRAL.items():
        value = getattr(config, name, None)
        if value is not None and value not in neutral:
            raise InputError(f"generation_config.{name} is {value}, which is not supported", hint="set it to None")
    end, _, forced_first, _ = special_tokens(plain, config)
    if any(len(word) != 1 for word in config.bad_words_ids or []):
        raise InputError(
            "generation_config.bad_words_ids holds words of several tokens, which are not excluded here",
            hint="keep those of one token",
        )
    before_end = config.min_new_tokens or 0
    if config.min_length:
        if not plain.config.is_encoder_decoder:
            raise InputError(
                f"generation_config.min_length is {config.min_length}, which counts the prompt and its padding",
                hint="set it to None, and min_new_tokens instead",
            )
        before_end = max(before_end, config.min_length - 1)  # the start token counts
    too_early = ("min_new_tokens", "min_length") if before_end > 0 else ()
    set_values = {
        name: value
        for name in (*NEVER_CHOSEN, "begin_suppress_tokens", *too_early)
        if (value := getattr(config, name, None))
    }
    last = config.forced_eos_token_id
    if last is not None and num_steps is None:
        raise InputError(
            f"generation_config.forced_eos_token_id is {last}, and the last step is unknown",
            hint="pass num_steps, or set it to None",
        )
    if isinstance(last, list):
        raise InputError("generation_config.forced_eos_token_id is a list", hint="set it to one token")
    return GenerationSelector(
        selector,
        vocabulary_size=head_shape(plain)[0],
        excluded=_in_vocabulary(_forbidden(config, end), plain),
        excluded_at_first=_in_vocabulary(config.begin_suppress_tokens or [], plain),
        first_choice=0 if forced_first is None else 1,
        end=end,
        steps_before_end=before_end,
        forced_last=last,
        num_steps=num_steps,
        settings=set_values if last is None else {**set_values, "forced_eos_token_id": last},
    )


def _forbidden(generation_config: GenerationConfig, end: int | None) -> set[int]:
    """Return the tokens that are never chosen; an end token among the bad words is still allowed."""
    words = {word[0] for word in generation_config.bad_words_ids or [] if len(word) == 1}
    return words - {end} | set(generation_config.suppress_tokens or [])


def _in_vocabulary(tokens: Iterable[int], model: Any) -> tuple[int, ...]:
    """Sort tokens, without those beyond the vocabulary, which cannot be written."""
    size = head_shape(model)[0]
    return tuple(sorted(token for token in set(tokens) if token < size))


@dataclass(frozen=True)
class GenerationSelector:
    """Selector with forbidden candidates; made by :func:`generation_selector`."""

    selector: Selector  # chooses among the other candidates
    vocabulary_size: int
    excluded: tuple[int, ...]  # tokens that are never chosen
    excluded_at_first: tuple[int, ...]  # tokens that are not chosen at the step ``first_choice``
    first_choice: int  # the first step that is not forced
    end: int | None
    steps_before_end: int  # steps at which the end token may not be chosen
    forced_last: int | None  # the token of the last step
    num_steps: int | None
    settings: Mapping[str, Any]  # values of the generation config that forbid or force tokens

    @property
    def restricts(self) -> bool:
        """Whether any candidate may be forbidden."""
        forbids = self.excluded or self.excluded_at_first or self.steps_before_end
        return bool(forbids) or self.forced_last is not None

    def within(self, language: Language) -> Language:
        """Return a language without the tokens that are never chosen.

        Raises an InputError for a setting that depends on the step, or that forbids every output.
        """
        for name in ("begin_suppress_tokens", "min_new_tokens", "min_length", "forced_eos_token_id"):
            value = self.settings.get(name)
            # A language makes every output end in time, so forcing the end changes nothing.
            if value is None or (name == "forced_eos_token_id" and value == self.end):
                continue
            problem = f"generation_config.{name} is {value}, which a search inside a language does not follow"
            raise InputError(problem, hint="set it to None, and let the language say which outputs are allowed")
        without: Callable[[tuple[int, ...]], Language] | None = getattr(language, "without", None)
        if not self.excluded or without is None:
            return language
        try:
            allowed = without(self.excluded)
            require_output(allowed, None)
        except InputError:
            names = " and ".join(f"generation_config.{name}" for name in NEVER_CHOSEN if name in self.settings)
            problem = f"every output of the language has a token that {names} forbids"
            raise InputError(problem, hint="set it to None, or widen the language") from None
        return allowed

    def __call__(self, candidates: Candidates, carry: Any, generator: torch.Generator | None) -> tuple[Selection, Any]:
        """Select from one step's candidates."""
        step = candidates.step
        if self.forced_last is not None and self.num_steps is not None and step == self.num_steps - 1:
            return self.selector(replace(candidates, head=_OnlyOne(candidates, self.forced_last)), carry, generator)
        if step < self.first_choice:
            return self.selector(candidates, carry, generator)
        tokens = set(self.excluded)
        if step == self.first_choice:
            tokens |= set(self.excluded_at_first)
        if self.end is not None and step < self.steps_before_end:
            tokens.add(self.end)
        if not tokens:
            return self.selector(candidates, carry, generator)
        num_inputs, num_slots = candidates.prefix_scores_BJ.shape
        device = candidates.prefix_scores_BJ.device
        excluded_X = _candidate_indices(tuple(sorted(tokens)), num_slots, self.vocabulary_size, device)
        return self.selector(candidates.without(excluded_X.expand(num_inputs, -1)), carry, generator)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # tensors made in that mode could not be used in a graph later
def _candidate_indices(tokens: tuple[int, ...], num_slots: int, vocabulary_size: int, device: torch.device) -> Tensor:
    """Return slot x V + token of these tokens in every slot; cached, as it synchronises with the GPU."""
    slots_J1 = torch.arange(num_slots, device=device)[:, None] * vocabulary_size
    return (slots_J1 + torch.tensor(tokens, device=device)).flatten()


@dataclass(frozen=True)
class _OnlyOne:
    """Head that gives one token score 0 and excludes all others."""

    candidates: Candidates
    token: int

    def __call__(self, features: Tensor) -> Tensor:
        scores = torch.full_like(self.candidates.head(features), -torch.inf)
        scores[..., self.token] = 0.0
        return scores
