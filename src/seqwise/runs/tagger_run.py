"""A run whose tagger reads with an encoder of transformers: trained, searched and measured like a tagger made here.

``RUN/model`` is a folder of :func:`~seqwise.hugging_face.save_tagger`, which ``load_tagger`` reads, with the labels
(``target_vocabulary.json``) and the tokenizer (beside the encoder's configuration, in ``backbone``) under one manifest.

The tokenizer splits words into pieces, and the first piece of a word carries its label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from seqwise.data.batches import EncodedExample
from seqwise.data.readers import Example
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.runs.pretrained import is_encoder, load_model_and_tokenizer, load_tokenizer, pretrained_source, quiet
from seqwise.runs.run import Run, start_normalized
from seqwise.runs.settings import Settings
from seqwise.runs.transformers_run import piece_vocabulary

__all__ = ["TaggerRun", "load_tagger_run", "new_tagger_run"]

LABELS = "target_vocabulary.json"
UNREAD = ("pooler.",)
"""What summarises a text for a head: many folders lack its weights, and no tagger reads them."""


@dataclass(frozen=True)
class TaggerRun(Run):
    """A tagger over an encoder of transformers, with its tokenizer; sources are words."""

    model: Any
    tokenizer: Any = None

    @property
    def unknown_source(self) -> str | None:
        """The unknown token of the tokenizer."""
        token: str | None = self.tokenizer.unk_token
        return token

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Words to pieces, special tokens around them, and labels to ids.

        Raises:
            InputError: nothing is made of a word, a sentence has more pieces than the encoder has positions, or a label
                is unknown; with the file and the line.
        """
        return [EncodedExample(source, self._labels(one)) for one, source in self._sources(examples)]

    def encode_sources(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Pieces of the sources alone: whatever the targets are, only whether there are some is looked at."""
        return [EncodedExample(source, ()) for _, source in self._sources(examples)]

    def save_model(self, folder: Path) -> None:
        """Write what ``load_tagger`` reads, the tokenizer and the labels."""
        from seqwise.hugging_face.tagger import BACKBONE, save_tagger

        with quiet():
            save_tagger(self.model, folder)
            self.tokenizer.save_pretrained(folder / BACKBONE)
        self.target_vocabulary.save(folder / LABELS)

    def _sources(self, examples: Sequence[Example]) -> list[tuple[Example, tuple[int, ...]]]:
        from seqwise.hugging_face.masked_model import num_positions

        limit = num_positions(self.model.encoder.backbone)
        return [(one, self._pieces(one, limit)) for one in examples]

    def _pieces(self, example: Example, limit: int | None) -> tuple[int, ...]:
        from seqwise.hugging_face.tagger import unread_words, word_pieces

        path, line = example.path or None, example.line or None
        if not example.source:
            raise InputError("the source is empty", path=path, line=line, mend="fill it in or drop the example")
        for place in unread_words(self.tokenizer, example.source):
            # With labels, every word has a line of its own.
            own = None if line is None else line + place * bool(example.target)
            problem = f"the tokenizer makes nothing of {example.source[place]!r}"
            raise InputError(problem, path=path, line=own, mend="replace the word, or drop it")
        ids = word_pieces(self.tokenizer, example.source)
        if limit is not None and len(ids) > limit:
            problem = f"the sentence has {len(ids)} pieces, and the encoder has {limit} positions"
            raise InputError(problem, path=path, line=line, mend="split the sentence")
        return ids

    def _labels(self, example: Example) -> tuple[int, ...]:
        path, line = example.path or None, example.line or None
        return tuple(self.target_vocabulary.encode(example.target, path=path, line=line))


def new_tagger_run(examples: Sequence[Example], settings: Settings) -> TaggerRun:
    """What training starts from: the trained encoder that the settings name, under a decoder with new weights.

    Args:
        examples: the training data, whose labels the run can write.
        settings: their ``model`` is a folder; or, where there is no such path, a name on the hub.

    Raises:
        InputError: there is no such model, it is no encoder, has no tokenizer, or comes with what might run code when
            it is loaded.
    """
    from seqwise.hugging_face import pretrained_tagger

    source = pretrained_source(settings.model)
    labels = Vocabulary.build(example.target for example in examples)
    sizes = {name: getattr(settings, name) for name in ("hidden_size", "label_embedding_size", "dropout")}
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        options: dict[str, Any] = {"unread": UNREAD, "dtype": torch.float32}
        backbone, tokenizer = load_model_and_tokenizer(source, _loader, kind="encoder", **options)
        # With their names, the folder says by itself what it writes.
        backbone.config.id2label = dict(enumerate(labels.tokens))
        backbone.config.label2id = {label: place for place, label in enumerate(labels.tokens)}
        model = pretrained_tagger(backbone, num_labels=len(labels), **sizes)
    start_normalized(model, settings)
    return _run(settings, model, tokenizer, labels, source)


def load_tagger_run(settings: Settings, folder: Path) -> TaggerRun:
    """Read back what :meth:`TaggerRun.save_model` wrote.

    Args:
        settings: of the run.
        folder: its model folder, already checked against its manifest.

    Raises:
        InputError: the folder holds no such tagger.
    """
    from seqwise.hugging_face.tagger import BACKBONE, load_tagger

    tokenizer, labels = load_tokenizer(folder / BACKBONE), Vocabulary.load(folder / LABELS)
    return _run(settings, load_tagger(folder), tokenizer, labels, folder)


def _run(settings: Settings, model: Any, tokenizer: Any, labels: Vocabulary, source: Path | str) -> TaggerRun:
    size = model.encoder.backbone.get_input_embeddings().num_embeddings
    if len(tokenizer) > size:
        problem = f"the tokenizer has {len(tokenizer):,} tokens, and the encoder has embeddings for {size:,}"
        raise InputError(problem, path=source, mend="save it after model.resize_token_embeddings(len(tokenizer))")
    return TaggerRun(settings, model, piece_vocabulary(tokenizer, size), labels, tokenizer=tokenizer)


def _loader(config: Mapping[str, Any]) -> Any:
    from transformers import AutoModel

    if not is_encoder(config):
        named = next(iter(config.get("architectures") or ()), config.get("model_type"))
        problem = f"the model ({named}) is no encoder, which --task tag needs"
        raise InputError(problem, mend="name one such as BERT, or use --task transduce")
    return AutoModel
