"""Model settings of ``seqwise train``, for new and pretrained models: sizes and units of text."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from seqwise.configuration import Config, OneOf, setting
from seqwise.configuration.config import WrongValue
from seqwise.configuration.written import nearest
from seqwise.errors import InputError
from seqwise.names import TextUnits, count_of

Direction = Literal["left-to-right", "bidirectional"]
"""Part of the input that a label depends on: the tokens so far (and a look-ahead), or all."""

MANY_UNSEEN = 0.05
"""Share of unseen words in new text above which taggers read characters."""

ARCHITECTURES = ("lstm", "transformer", "chain")
"""Models of seqwise, with new weights."""

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
"""Name on the hub; the oldest models have no user or organisation."""


def names_pretrained(model: str) -> bool:
    """Whether a model is pretrained, a folder or a name on the hub, instead of an architecture.

    A name without a slash counts as a hub name if it has a hyphen or a digit, unlike misspelt architectures.
    """
    separators = {"/", os.sep, os.altsep or "/"}
    is_plain_hub_name = HUB_NAME.fullmatch(model) is not None and re.search(r"[-0-9]", model) is not None
    has_separator = any(sign in model for sign in separators)
    return model not in ARCHITECTURES and (has_separator or is_plain_hub_name or Path(model).is_dir())


class ModelConfig(Config):
    """Model with its options; a subclass has a ``name: Literal["..."]``."""

    name: str

    pretrained: ClassVar[bool] = False
    """Whether this is a pretrained Hugging Face model."""

    parallel: ClassVar[bool] = False
    """Whether all positions can be computed at once."""

    def units(self, side: Literal["source", "target"]) -> TextUnits:
        """Return the units of one side of an example."""
        return "words"

    @property
    def title(self) -> str:
        """Display name."""
        return self.name


class TaggerModel(ModelConfig):
    """Model that labels each source token."""

    look_ahead: int = setting(0, "tokens read ahead of each label by an encoder that reads from left to right", ge=0)

    @property
    def ahead(self) -> str:
        """Mention of the look-ahead, if there is one."""
        return f", {count_of(self.look_ahead, 'token')} ahead" if self.look_ahead else ""


class TransducerModel(ModelConfig):
    """Model whose outputs have their own length."""


class _Decoder(Config):
    hidden_size: int = setting(
        96, "hidden size of each LSTM direction and of a tagger's decoder; transformer: of embeddings and layers", ge=1
    )
    dropout: float = setting(0.1, "dropout rate", ge=0, lt=1)


class _NewModel(Config):
    minimum_count: int | None = setting(
        None,
        "rarer source tokens are trained as the unknown token; with 1, unknown tokens are refused (except for "
        "subwords); by default 2 for words and subwords, 1 for characters",
        ge=1,
    )

    class_name: ClassVar[str]
    """Class of the model in ``seqwise.models``."""

    sizes: ClassVar[tuple[str, ...]]
    """Options that are arguments of the class."""

    def build(self, **sizes: Any) -> Any:
        """Make a model with new weights; the sizes depend on the vocabularies."""
        from seqwise import models

        return getattr(models, self.class_name)(**sizes, **{name: getattr(self, name) for name in self.sizes})


class NewTagger(_Decoder, _NewModel, TaggerModel):
    """Tagger with new weights."""

    encoder: Direction = setting(
        "bidirectional", "with left-to-right, labels do not depend on later tokens, but for a look-ahead"
    )
    embedding_size: int = setting(64, "size of source (and output) embeddings", ge=1)
    characters: bool = setting(
        False,
        "also read the characters of each word, for unknown words",
        usual=f"if at least {MANY_UNSEEN:.0%} of the training words occur once",
    )

    sizes: ClassVar[tuple[str, ...]] = ("hidden_size", "dropout", "embedding_size", "bidirectional", "look_ahead")

    @model_validator(mode="after")
    def _look_ahead_has_effect(self) -> Any:
        if self.bidirectional:
            require_default(self, "look_ahead", hint="--encoder left-to-right")
        return self

    @property
    def title(self) -> str:
        """Name, with a mention of characters and a look-ahead if they are read."""
        characters = " over words and their characters" if self.characters else ""
        return f"{self.name}{characters}{self.ahead}"

    @property
    def bidirectional(self) -> bool:
        """Whether the encoder sees the whole source."""
        return self.encoder == "bidirectional"


class LSTMTagger(NewTagger):
    """An LSTM over the source, and one over the labels."""

    class_name = "Tagger"
    sizes = (*NewTagger.sizes, "label_embedding_size")

    name: Literal["lstm"] = "lstm"
    label_embedding_size: int = setting(16, "size of label embeddings", ge=1)

    @property
    def title(self) -> str:
        """Direction and name."""
        return f"{self.encoder} {super().title}"


class Chain(NewTagger):
    """Linear chain: a label depends on the source and the previous label."""

    class_name = "ChainTagger"

    name: Literal["chain"] = "chain"


class _Pretrained(ModelConfig):
    name: Literal["pretrained"] = "pretrained"
    path: str = setting("", "a Hugging Face model: a folder, or a name on the hub", flag="model")

    @field_validator("path")
    @classmethod
    def _with_separator(cls, path: str) -> str:
        if not names_pretrained(path):
            raise WrongValue(f"{{name}} must be a folder, or a name on the hub, got {path!r}")
        # With a separator, a folder name cannot be mistaken for a name on the hub.
        is_plain_folder = not {"/", os.sep} & set(path) and Path(path).is_dir()
        return f".{os.sep}{path}" if is_plain_folder else path

    @property
    def title(self) -> str:
        return self.path


class PretrainedEncoder(_Pretrained, _Decoder, TaggerModel):
    """New decoder over a pretrained encoder, such as BERT."""

    pretrained = True

    label_embedding_size: int = setting(16, "size of label embeddings", ge=1)
    decoder_learning_rate: float = setting(
        1e-3, "peak learning rate of the new decoder over a Hugging Face encoder, in each stage", gt=0
    )

    @property
    def title(self) -> str:
        """Folder or name of the encoder, with a mention of a look-ahead."""
        return f"{self.path}{self.ahead}"


class PretrainedGenerator(_Pretrained, TransducerModel):
    """Pretrained encoder-decoder or causal language model, which reads and writes raw text with its own tokenizer."""

    pretrained = True
    parallel = True

    def units(self, side: Literal["source", "target"]) -> TextUnits:
        return "subwords"


class _NewTransducer(_Decoder, _NewModel, TransducerModel):
    source_units: TextUnits = setting("words", "units of a source; subwords are learnt from raw text")
    target_units: TextUnits = setting("words", "units of a target")
    subword_vocabulary: int = setting(8000, "subwords: maximum size of the vocabulary of each side", ge=1)

    @model_validator(mode="after")
    def _vocabulary_options_have_effect(self) -> Any:
        if "subwords" not in (self.source_units, self.target_units):
            require_default(self, "subword_vocabulary", hint="source_units or target_units subwords")
        return self

    def units(self, side: Literal["source", "target"]) -> TextUnits:
        return self.source_units if side == "source" else self.target_units


class LSTMTransducer(_NewTransducer):
    """An LSTM encoder-decoder with attention."""

    class_name = "EncoderDecoder"
    sizes = ("hidden_size", "embedding_size", "dropout")

    name: Literal["lstm"] = "lstm"
    embedding_size: int = setting(64, "size of source (and output) embeddings", ge=1)


class TransformerTransducer(_NewTransducer):
    """A Transformer encoder-decoder."""

    parallel = True
    class_name = "Transformer"
    sizes = ("hidden_size", "num_layers", "num_heads", "feedforward_size", "dropout")

    name: Literal["transformer"] = "transformer"
    num_layers: int = setting(2, "layers of the encoder, and of the decoder", ge=1)
    num_heads: int = setting(4, "heads of each attention", ge=1)
    feedforward_size: int = setting(512, "hidden size of the feed-forward networks", ge=1)

    @model_validator(mode="after")
    def _heads_divide(self) -> Any:
        return require_heads_that_divide(self)


def require_default(settings: Config, name: str, *, hint: str) -> None:
    """Raise an InputError if a setting without effect is not at its default; ``hint`` is what would use it."""
    if getattr(settings, name) != type(settings).model_fields[name].default:
        raise InputError(f"{name}: has no effect here", hint=f"leave it out, or use {hint}")


def require_heads_that_divide(model: Any) -> Any:
    """Raise an InputError for a hidden size that is not a multiple of the number of heads."""
    if model.hidden_size % model.num_heads:
        problem = f"hidden_size: {model.hidden_size} cannot be divided among {model.num_heads} heads"
        raise InputError(problem, hint=f"use a multiple of {model.num_heads}, or other --num-heads")
    return model


def model_of(text: str) -> dict[str, Any]:
    """Expand the text of ``--model``: an architecture, a folder or a name on the hub."""
    if text in ARCHITECTURES:
        return {"name": text}
    if names_pretrained(text):
        return {"name": "pretrained", "path": text}
    expected = f"one of {', '.join(ARCHITECTURES)}, a folder, or a name on the hub"
    raise WrongValue(f"{{name}} must be {expected}, got {text!r}", hint=nearest(text, ARCHITECTURES))


class ModelsOf(OneOf):
    """Models of a task; ``other`` is the flag that chooses the other task."""

    def __init__(self, base: type[Config], *, other: str) -> None:
        super().__init__(base, short=model_of)
        self.other = other

    def member(self, name: Any) -> type[Config]:
        """Look up a model; raise an InputError with a hint for a model of the other task."""
        if name in ARCHITECTURES and name not in self.members:
            problem = f"{{name}} must be one of {', '.join(self.members)}, got {name!r}"
            raise WrongValue(problem, hint=f"use {self.other}", key=self.base.tag)
        return super().member(name)
