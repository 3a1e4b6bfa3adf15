"""A run whose model and tokenizer are of transformers: trained, searched and measured like a model made here.

``RUN/model`` is a folder as ``save_pretrained`` leaves it, with a manifest beside its files, and
``AutoModelForSeq2SeqLM.from_pretrained`` loads it.

Shapes: B batch, S source length.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from seqwise.data.batches import EncodedExample, collate
from seqwise.data.readers import Example
from seqwise.data.subwords import normalize_text
from seqwise.data.vocabulary import Vocabulary
from seqwise.decoding import Decoder, Hypothesis, decode, evaluation_mode, step_limit
from seqwise.errors import InputError
from seqwise.runs.pretrained import HUB_NAME, load_model_and_tokenizer, quiet
from seqwise.runs.run import Run
from seqwise.runs.settings import Settings
from seqwise.search.selection import Selector

if TYPE_CHECKING:
    from seqwise.hugging_face import HuggingFaceStepModel

__all__ = ["TransformersRun", "load_transformers_run", "new_transformers_run"]

BATCH = 64  # inputs that are decoded together
HEEDED = ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
"""What is taken from a generation config: which tokens are never written. How to search is the decoder's to say."""


@dataclass(frozen=True)
class TransformersRun(Run):
    """An encoder-decoder of transformers with its tokenizer; either side of an example is one token, its raw text."""

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
        return [
            EncodedExample(self._ids(one, "source"), self._ids(one, "target") if one.target else ()) for one in examples
        ]

    def source_text(self, example: Example) -> str:
        """The source as it was written."""
        return example.source[0]

    def target_text(self, tokens: Iterable[str]) -> str:
        """What the model wrote, without special tokens."""
        places = self.target_vocabulary
        ids = places.encode([token for token in tokens if token != places.end])
        return normalize_text(self.tokenizer.decode(ids, skip_special_tokens=True))

    def search(
        self, encoded: Sequence[EncodedExample], decoder: Decoder, *, n_best: int, length_normalization: float
    ) -> list[list[Hypothesis]]:
        """The best outputs for each source, best first, of no more tokens than the model has positions."""
        decoder = replace(decoder, selector=self._allowed(decoder.selector))
        results: list[list[Hypothesis]] = [[] for _ in encoded]
        order = sorted(range(len(encoded)), key=lambda index: len(encoded[index].source_ids))
        model: HuggingFaceStepModel = self.model
        with evaluation_mode(model), torch.no_grad():
            for start in range(0, len(order), BATCH):
                indices = order[start : start + BATCH]
                batch = collate([(index, encoded[index]) for index in indices]).to(model.embedding_VD.device)
                limits = [step_limit(length, model.end) for length in batch.source_lengths_B.tolist()]
                limits_B = torch.tensor(limits, device=batch.sources_BS.device)
                found = decode(
                    model,
                    model.encode(batch),
                    decoder,
                    num_steps=limits_B if self._positions is None else limits_B.clamp(max=self._positions),
                    n_best=n_best,
                    length_normalization=length_normalization,
                )
                for index, outputs in zip(indices, found, strict=True):
                    results[index] = outputs
        return results

    def save_model(self, folder: Path) -> None:
        """Write what ``from_pretrained`` reads."""
        with quiet():
            self.model.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def _allowed(self, selector: Selector) -> Selector:
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
    def _positions(self) -> int | None:
        """How many tokens a source or a target may have, or None."""
        found: int | None = getattr(self.model.model.config, "max_position_embeddings", None)
        return found

    def _ids(self, example: Example, side: str) -> tuple[int, ...]:
        text, path, line = getattr(example, side)[0], example.path or None, example.line or None
        given = {"text": text} if side == "source" else {"text_target": text}
        ids = tuple(self.tokenizer(**given, truncation=False, padding=False, verbose=False)["input_ids"])
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
        InputError: there is no such model, it is no encoder-decoder, cannot be adapted, or comes with what might run
            code when it is loaded.
    """
    folder = Path(settings.model)
    if os.path.lexists(folder):
        if not (folder / "config.json").is_file():
            problem = "the folder holds no model of transformers" if folder.is_dir() else "this is no folder"
            raise InputError(problem, path=folder, mend="name a folder with config.json, weights and tokenizer in it")
        return _loaded(settings, folder)
    if not HUB_NAME.fullmatch(settings.model):
        raise InputError("there is no such folder", path=folder, mend="name a folder, or a model on the hub")
    return _loaded(settings, settings.model)


def load_transformers_run(settings: Settings, folder: Path) -> TransformersRun:
    """Read back what :meth:`TransformersRun.save_model` wrote.

    Args:
        settings: of the run.
        folder: its model folder, already checked against its manifest.

    Raises:
        InputError: the folder holds no encoder-decoder with its tokenizer.
    """
    return _loaded(settings, folder)


def _loaded(settings: Settings, source: Path | str) -> TransformersRun:
    from transformers import AutoModelForSeq2SeqLM

    from seqwise.hugging_face import step_model

    model, tokenizer = load_model_and_tokenizer(
        source, AutoModelForSeq2SeqLM, kind="encoder-decoder", dtype=torch.float32
    )
    try:
        adapted = step_model(model.eval())
    except InputError as error:
        raise InputError(error.problem, path=source, mend=error.mend) from None
    if adapted.end is None:
        raise InputError("the model has no end token", path=source, mend="set eos_token_id in its generation config")
    vocabulary = _vocabulary(tokenizer, len(adapted.embedding_VD), adapted.end)
    return TransformersRun(settings, adapted, vocabulary, vocabulary, tokenizer=tokenizer)


def _vocabulary(tokenizer: Any, size: int, end: int) -> Vocabulary:
    """The tokens by id; ids that have none, or one that another has, get a name of their own."""
    known = min(size, len(tokenizer))
    found: list[str] = []
    taken: set[str] = set()
    for place, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(known))) + [None] * (size - known)):
        name = token if isinstance(token, str) and token not in taken else f"<id {place}>"
        found.append(name)
        taken.add(name)
    return Vocabulary(tuple(found), end=found[end])
