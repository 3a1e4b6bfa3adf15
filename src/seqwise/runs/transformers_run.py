"""A run whose model and tokenizer are of transformers: trained, searched and measured like a model made here.

``RUN/model`` is a folder as ``save_pretrained`` leaves it, with a manifest beside its files, and
``AutoModelForSeq2SeqLM.from_pretrained`` (``AutoModelForCausalLM``) loads it.

A causal language model continues its source, the prompt, by the target: with a blank between the two, and in the tokens
that the tokenizer makes of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from seqwise.data.batches import EncodedExample
from seqwise.data.readers import Example
from seqwise.data.subwords import normalize_text
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.runs.pretrained import is_encoder, load_model_and_tokenizer, pretrained_source, quiet
from seqwise.runs.run import Run
from seqwise.runs.settings import Settings
from seqwise.search.selectors import Selector

__all__ = ["TransformersRun", "load_transformers_run", "new_transformers_run", "piece_vocabulary"]

HEEDED = ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
"""What is taken from a generation config: which tokens are never written. How to search is the decoder's to say."""


@dataclass(frozen=True)
class TransformersRun(Run):
    """An encoder-decoder or causal model of transformers with its tokenizer.

    Either side of an example is one token, its raw text.
    """

    model: Any
    tokenizer: Any = None

    @property
    def writes_text(self) -> bool:
        """Targets are raw texts."""
        return True

    @property
    def writable(self) -> set[str]:
        """All tokens but the unknown one."""
        return set(self.target_vocabulary.tokens) - {self.tokenizer.unk_token}

    @property
    def unknown_source(self) -> str | None:
        """The unknown token of the tokenizer."""
        token: str | None = self.tokenizer.unk_token
        return token

    def written(self, example: Example) -> Sequence[str]:
        """The tokens of a target, the end token left out."""
        ids = self._ids(example, "target") if example.target else ()
        return self.target_vocabulary.decode(token for token in ids if token != self.model.end)

    def split(self, examples: Sequence[Example]) -> list[Example]:
        """Raw texts to tokens."""
        return [
            replace(
                one,
                source=tuple(self.source_vocabulary.decode(self._ids(one, "source"))),
                target=tuple(self.written(one)),
            )
            for one in examples
        ]

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Texts to ids, special tokens included.

        Raises:
            InputError: a text is blank, or longer than the model has positions; with its file and line.
        """
        encoded = [
            EncodedExample(self._ids(one, "source"), self._ids(one, "target") if one.target else ()) for one in examples
        ]
        for example, one in zip(examples, encoded, strict=True):
            self._require_steps(one.source_ids, one.target_ids, path=example.path or None, line=example.line or None)
        if encoded:  # for they may come into one batch
            longest = (
                max(ids, key=len) for ids in zip(*((one.source_ids, one.target_ids) for one in encoded), strict=True)
            )
            self._require_steps(*longest)
        return encoded

    def source_text(self, example: Example) -> str:
        """The source as it was written."""
        return example.source[0]

    def target_text(self, tokens: Iterable[str]) -> str:
        """What the model wrote, without special tokens."""
        places = self.target_vocabulary
        ids = places.encode([token for token in tokens if token != places.end])
        return normalize_text(self.tokenizer.decode(ids, skip_special_tokens=True))

    def save_model(self, folder: Path) -> None:
        """Write what ``from_pretrained`` reads."""
        with quiet():
            self.model.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def allowed(self, selector: Selector) -> Selector:
        """The same choice among the tokens that the model's generation config does not forbid."""
        from transformers import GenerationConfig

        from seqwise.hugging_face import generation_selector

        own = self.model.model.generation_config
        heeded = {name: getattr(own, name, None) for name in HEEDED}
        # Sequences of tokens that are not to be written cannot be excluded one by one.
        heeded["bad_words_ids"] = [word for word in heeded["bad_words_ids"] or [] if len(word) == 1] or None
        special = {
            name: getattr(own, name) for name in ("bos_token_id", "decoder_start_token_id", "forced_bos_token_id")
        }
        config = GenerationConfig(**heeded, **special, eos_token_id=self.model.end)
        return generation_selector(selector, self.model, generation_config=config)

    @property
    def _is_causal(self) -> bool:
        return not self.model.model.config.is_encoder_decoder

    def _read(self, **text: Any) -> tuple[int, ...]:
        return tuple(self.tokenizer(**text, truncation=False, padding=False, verbose=False)["input_ids"])

    def _prompt(self, text: str) -> tuple[int, ...]:
        """A prompt with its special tokens but for the end token, behind which nothing would be written."""
        ids = self._read(text=text)
        return ids[:-1] if ids[-1:] == (self.model.end,) else ids

    def _continuation(self, prompt: str, text: str) -> tuple[int, ...]:
        """The tokens of a text behind a prompt; where the two run together, those of the text alone."""
        before = self._read(text=prompt, add_special_tokens=False)
        whole = self._read(text=f"{prompt} {text}", add_special_tokens=False)
        if whole[: len(before)] == before:
            return whole[len(before) :]
        return self._read(text=text, add_special_tokens=False)

    def _require_steps(
        self, source: Sequence[int], target: Sequence[int], *, path: str | None = None, line: int | None = None
    ) -> None:
        most = self.model.most_steps(source)
        if most is not None and len(target) > most:
            which = "the source" if path else "the longest source"
            left = f"{max(most, 0)} positions for a target of {len(target)}"
            problem = f"{which} has {len(source)} tokens, which leave {left}"
            raise InputError(problem, path=path, line=line, mend="shorten one of them")

    @property
    def _positions(self) -> int | None:
        """How many tokens a source or a target may have, or None."""
        found: int | None = getattr(self.model.model.config, "max_position_embeddings", None)
        return found

    def _ids(self, example: Example, side: str) -> tuple[int, ...]:
        text, path, line = getattr(example, side)[0], example.path or None, example.line or None
        if self._is_causal:
            ids = self._prompt(text) if side == "source" else self._continuation(example.source[0], text)
        else:
            ids = self._read(**({"text": text} if side == "source" else {"text_target": text}))
        if side == "target" and ids[-1:] != (self.model.end,):
            ids = (*ids, self.model.end)
        if not text.strip() or not ids:
            raise InputError(f"the {side} is blank", path=path, line=line, mend="fill it in or drop the line")
        if self._positions is not None and len(ids) > self._positions:
            problem = f"the {side} has {len(ids)} tokens, and the model has {self._positions} positions"
            raise InputError(problem, path=path, line=line, mend="shorten it, or drop the line")
        return ids


def new_transformers_run(settings: Settings) -> TransformersRun:
    """What training starts from: the trained model that the settings name.

    Args:
        settings: their ``model`` is a folder; or, where there is no such path, a name on the hub.

    Raises:
        InputError: there is no such model, it writes no text, cannot be adapted, or comes with what might run code
            when it is loaded.
    """
    return _loaded(settings, pretrained_source(settings.model))


def load_transformers_run(settings: Settings, folder: Path) -> TransformersRun:
    """Read back what :meth:`TransformersRun.save_model` wrote.

    Args:
        settings: of the run.
        folder: its model folder, already checked against its manifest.

    Raises:
        InputError: the folder holds no model that writes text, with its tokenizer.
    """
    return _loaded(settings, folder)


def _loaded(settings: Settings, source: Path | str) -> TransformersRun:
    from seqwise.hugging_face import step_model

    kind = "encoder-decoder or causal language model"
    model, tokenizer = load_model_and_tokenizer(source, _loader, kind=kind, dtype=torch.float32)
    try:
        adapted = step_model(model.eval())
    except InputError as error:
        raise InputError(error.problem, path=source, mend=error.mend) from None
    if adapted.end is None:
        raise InputError("the model has no end token", path=source, mend="set eos_token_id in its generation config")
    vocabulary = piece_vocabulary(tokenizer, len(adapted.embedding_VD), end=adapted.end)
    return TransformersRun(settings, adapted, vocabulary, vocabulary, tokenizer=tokenizer)


def _loader(config: Mapping[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    kind = config.get("model_type")
    masked = any(name.endswith("ForMaskedLM") for name in config.get("architectures") or ())
    if masked or is_encoder(config):
        what = "a masked language model" if masked else "an encoder"
        mend = "tag with it (--task tag), or use it with seqwise score or seqwise sample"
        raise InputError(f"the model is {what}, which writes no text", mend=mend)
    # Some encoder-decoders have decoders that can be had on their own.
    reads = kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForSeq2SeqLM if reads else AutoModelForCausalLM


def piece_vocabulary(tokenizer: Any, size: int, *, end: int | None = None) -> Vocabulary:
    """The tokens by id; ids that have none, or one that another has, get a name of their own.

    Args:
        tokenizer: of transformers.
        size: how many the model has embeddings for.
        end: the id of the one that ends a text, or None.
    """
    known = min(size, len(tokenizer))
    found: list[str] = []
    taken: set[str] = set()
    for place, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(known))) + [None] * (size - known)):
        name = token if isinstance(token, str) and token not in taken else f"<id {place}>"
        found.append(name)
        taken.add(name)
    return Vocabulary(tuple(found), end=None if end is None else found[end])
