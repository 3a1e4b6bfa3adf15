"""A masked language model of transformers where a run is expected: scored and sampled by the same commands.

A folder is one of these if it has a ``config.json`` with a ``model_type`` in it. Nothing of it is ever executed:
weights are read from safetensors only, and folders that bring code of their own (``auto_map``) are refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from seqwise.data.batches import EncodedExample
from seqwise.data.fasta import each_entry
from seqwise.data.readers import Example, FilePath, require_some
from seqwise.data.spooled import spooled
from seqwise.errors import InputError
from seqwise.runs.hub import HUB_RUN, holds_run, run_folder
from seqwise.runs.masked_model import each_sequence, load_masked_run
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.runs.model_names import HUB_NAME
from seqwise.runs.sequence_run import SequenceRun, Ways, fingerprint_of

if TYPE_CHECKING:
    from seqwise.hugging_face import HuggingFaceMaskedModel, TextCodec

__all__ = [
    "PretrainedRun",
    "is_encoder",
    "load_model_and_tokenizer",
    "load_pretrained",
    "load_sequence_run",
    "load_tokenizer",
    "pretrained_source",
    "quiet",
]

FASTA = (".fasta", ".fa", ".faa", ".fasta.gz", ".fa.gz", ".faa.gz")
TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""What the names of models that write text end with."""


@dataclass(frozen=True, eq=False)
class PretrainedRun:
    """A masked language model of transformers that reads and writes raw text, by its tokenizer.

    Attributes:
        model: in evaluation mode, with special tokens around its sequences.
        codec: between text and tokens.
        settings: of raw text, one sequence a line.
        lengths: none are known.
    """

    model: HuggingFaceMaskedModel
    codec: TextCodec
    settings: MaskedModelSettings = field(default_factory=lambda: MaskedModelSettings(units="subwords"))
    lengths: Mapping[int, int] = field(default_factory=dict)

    @property
    def conditional(self) -> bool:
        """These models read no source."""
        return False

    @property
    def allowed_V(self) -> Tensor:
        """Bool (V,): all tokens but special ones."""
        return self.codec.allowed_V

    @property
    def unknown_id(self) -> int | None:
        """What unknown characters become, or None."""
        return self.codec.unknown_id

    def read(self, path: FilePath) -> Sequence[Example]:
        """The texts of a file, one a line; or the proteins of FASTA, which the end of its name tells."""
        if not os.fspath(path).endswith(FASTA):
            return require_some(spooled(each_sequence(path, self.settings)), path)
        return require_some(spooled(map(self._protein, each_entry(path))), path)

    def _protein(self, one: Example) -> Example:
        """Letters as the tokenizer wants them: together, or with blanks between them."""
        letters, together = one.target, "".join(one.target)
        ids = self.codec.ids_to_fill(together)
        apart = len(ids) == 1 < len(letters) or self.unknown_id in ids
        return replace(one, target=(" ".join(letters) if apart else together,))

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Texts to ids; there is no source.

        Raises:
            InputError: a text has no token, a special one, or more than the model has room for; with file and line.
        """
        return [EncodedExample((0,), self._ids(one, self.codec.ids) if one.target else ()) for one in examples]

    def decode(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The tokens of ids."""
        return self.codec.pieces(ids)

    def phrase(self, text: str) -> Ways:
        """How a phrase may stand in a text: after a blank or without one.

        Raises:
            InputError: it is blank, or holds a token that is never drawn.
        """
        if not text.strip():
            raise InputError("a phrase is blank", mend="name a token or more")
        return self.codec.phrase(text)

    @property
    def spell(self) -> Callable[[Sequence[int]], str]:
        """From ids to their text."""
        return self.codec.plain

    def require_free(self, free: str) -> None:
        """Refuse a mark of free positions that is no word.

        Raises:
            InputError: it is blank, or has a blank in it.
        """
        if not free or free != "".join(free.split()):
            raise InputError(f"free: {free!r} is blank, or has a blank in it", mend="choose another token for it")

    def to_fill(self, example: Example, free: str) -> tuple[int, ...]:
        """The ids of a text, FREE where it has the tokenizer's mask token, or the mark of free positions as a word.

        Raises:
            InputError: as :meth:`encode`.
        """
        return self._ids(example, lambda text: self.codec.ids_to_fill(self._marked(text, free)))

    def _ids(self, example: Example, encode: Any) -> tuple[int, ...]:
        try:
            ids: tuple[int, ...] = encode(example.target[0])
            self.model.require_room(len(ids))
        except InputError as error:
            path, line = example.path or None, example.line or None
            raise InputError(error.problem, path=path, line=line, mend=error.mend) from None
        return ids

    def _marked(self, text: str, free: str) -> str:
        mask: str = self.codec.tokenizer.mask_token
        return re.sub(rf"(?<!\S){re.escape(free)}(?!\S)", lambda _: mask, text)

    def text(self, ids: Sequence[int]) -> str:
        """What tokens stand for."""
        return self.codec.text(ids)

    def filled(self, example: Example, ids: Sequence[int], free: str) -> str:
        """A text filled in; what was given stays as it was written, if that is read as the same tokens."""
        return self.codec.filled(self._marked(example.target[0], free), ids) if example.target else self.text(ids)

    def example_text(self, example: Example) -> str:
        """The text of an example as it was written."""
        return example.target[0]

    def source_text(self, example: Example) -> str:
        """There is none."""
        return ""

    def fingerprint(self) -> str:
        """What tells the model, with its vocabulary and special tokens, from others."""
        vocabulary = sorted(self.codec.tokenizer.get_vocab().items())
        return fingerprint_of(self.model.model, repr([vocabulary, self.codec.before, self.codec.after]))


def load_sequence_run(name: str) -> SequenceRun:
    """What scoring and sampling take: a trained masked model of ours, or one of transformers.

    Args:
        name: a run folder; a folder of transformers; or, where there is no such path, either of them on the hub.

    Raises:
        InputError: it is neither, or cannot be read.
    """
    folder = Path(name)
    if _is_pretrained(folder):
        return load_pretrained(folder)
    if not os.path.lexists(folder) and HUB_NAME.fullmatch(name) and not (HUB_RUN.fullmatch(name) and holds_run(name)):
        return load_pretrained(name)
    return load_masked_run(run_folder(name))


def load_pretrained(source: Path | str) -> PretrainedRun:
    """Read a masked language model and its tokenizer from a folder, without the network, or from the hub.

    Args:
        source: a Path is a folder, a str a name on the hub.

    Raises:
        InputError: it is no masked language model, brings code or pickled weights, has no tokenizer, or is damaged.

    Not implemented: adapters without their base model.
    """
    from transformers import AutoModelForMaskedLM

    from seqwise.hugging_face import TextCodec, masked_model

    kind = "masked language model"
    model, tokenizer = load_model_and_tokenizer(source, lambda _: AutoModelForMaskedLM, kind=kind)
    with _one_line(source, kind):
        adapted = masked_model(model.eval(), tokenizer=tokenizer)
        return PretrainedRun(adapted, TextCodec(tokenizer, vocab_size=adapted.vocab_size))


def pretrained_source(name: str) -> Path | str:
    """Where a model of transformers is: the path of a folder, or, where there is no such path, a name on the hub.

    Args:
        name: either of them.

    Raises:
        InputError: the folder holds no model of transformers, or there is none and it is no name of the hub.

    Example:
        >>> pretrained_source("ada/bert")
        'ada/bert'
    """
    folder = Path(name)
    if os.path.lexists(folder):
        if not (folder / "config.json").is_file():
            problem = "the folder holds no model of transformers" if folder.is_dir() else "this is no folder"
            raise InputError(problem, path=folder, mend="name a folder with config.json, weights and tokenizer in it")
        return folder
    if not HUB_NAME.fullmatch(name):
        raise InputError("there is no such folder", path=folder, mend="name a folder, or a model on the hub")
    return name


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether a model of transformers reads a text as a whole and writes none: BERT, ModernBERT, ESM and their like.

    Args:
        config: what is in its ``config.json``.

    Example:
        >>> is_encoder({"model_type": "bert"}), is_encoder({"model_type": "bart"}), is_encoder({"model_type": "gpt2"})
        (True, False, False)
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    # The configuration of some encoders is that of a decoder as well.
    if config.get("is_decoder") or any(name.endswith(WRITERS) for name in config.get("architectures") or ()):
        return False
    kind = config.get("model_type")
    return kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and kind not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES


def load_model_and_tokenizer(
    source: Path | str,
    loader: Callable[[Mapping[str, Any]], Any],
    *,
    kind: str,
    unread: tuple[str, ...] = (),
    **options: Any,
) -> tuple[Any, Any]:
    """Read any model and its tokenizer from a folder, without the network, or from the hub.

    Args:
        source: a Path is a folder, a str a name on the hub.
        loader: from the model's configuration to one of the ``AutoModelFor...`` of transformers.
        kind: what it loads, for messages.
        unread: what the names of weights begin with that may be missing, for nothing reads them.
        options: of ``from_pretrained``.

    Raises:
        InputError: it is no such model, brings code or pickled weights, has no tokenizer, or is damaged.
    """
    from transformers import AutoTokenizer

    local = isinstance(source, Path)
    where: dict[str, Any] = {"local_files_only": True} if local else {}
    with quiet(), _one_line(source, kind):
        config, tokenizer_config = _configurations(source)
        _refuse_code(source, config, tokenizer_config)
        if isinstance(source, Path):
            _require_files(source)
        else:
            where["revision"] = config.get("_commit_hash")  # what was looked at is what is loaded
        model, loaded = loader(config).from_pretrained(
            os.fspath(source), use_safetensors=True, output_loading_info=True, **where, **options
        )
        missing = [name for name in loaded["missing_keys"] if not name.startswith(unread)]
        if missing:
            problem = f"no whole {kind}: {len(missing)} weights are missing, {min(missing)} among them"
            raise InputError(problem, path=source, mend=f"take a model that was trained as {_article(kind)}")
        return model, AutoTokenizer.from_pretrained(os.fspath(source), **where)


def load_tokenizer(folder: Path) -> Any:
    """Read a tokenizer of transformers alone, without the network.

    Args:
        folder: with its files, and the ``config.json`` of its model.

    Raises:
        InputError: there is none, it brings code, or is damaged.
    """
    from transformers import AutoTokenizer

    with quiet(), _one_line(folder, "tokenizer"):
        _refuse_code(folder, *_configurations(folder))
        return AutoTokenizer.from_pretrained(os.fspath(folder), local_files_only=True)


def _refuse_code(source: Path | str, *configurations: Mapping[str, Any]) -> None:
    if any("auto_map" in one for one in configurations):
        problem = "the model brings code of its own (auto_map), which is never run"
        raise InputError(problem, path=source, mend="take a model that transformers has")


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _is_pretrained(folder: Path) -> bool:
    path = folder / "config.json"
    return path.is_file() and "model_type" in _read_json(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise InputError("this is no JSON", path=path, mend="take another copy") from None
    return found if isinstance(found, dict) else {}


def _configurations(source: Path | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the model and of the tokenizer, read as data."""
    if isinstance(source, Path):
        path = source / "tokenizer_config.json"
        return _read_json(source / "config.json"), _read_json(path) if path.is_file() else {}
    from transformers import PretrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    config, _ = PretrainedConfig.get_config_dict(source)
    return config, get_tokenizer_config(source, revision=config.get("_commit_hash"))


def _require_files(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    if not any(name.endswith(".safetensors") for name in names):
        if any(name.endswith((".bin", ".pt", ".pth", ".pkl", ".ckpt")) for name in names):
            problem = "the weights are a pickle, which could run code when it is read"
            mend = "save them as safetensors: model.save_pretrained(folder)"
            raise InputError(problem, path=folder, mend=mend)
        raise InputError("the folder has no model.safetensors", path=folder, mend="save the model there")
    if names.isdisjoint(TOKENIZERS) and not any(name.endswith(".model") for name in names):
        raise InputError("the folder has no tokenizer", path=folder, mend="tokenizer.save_pretrained(folder)")


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers shows neither bars nor what it says to developers, and the hub does not count its tries."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_verbosity = hub_logging.get_verbosity()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _one_line(source: Path | str, kind: str) -> Iterator[None]:
    """What transformers says of a model that it cannot load, in one line."""
    from safetensors import SafetensorError

    try:
        yield
    except InputError as error:
        raise InputError(error.problem, path=error.path or source, line=error.line, mend=error.mend) from None
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        TypeError,
        AttributeError,
        ImportError,
        SafetensorError,
    ) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(source, Path):
            mend = f"give {_article(kind)} of transformers"
            raise InputError(f"transformers cannot load the model ({said})", path=source, mend=mend) from error
        problem = f"there is no such folder, and the hub gives no such model ({said})"
        mend = "check the name; where there is no network, give the folder of a model that was saved before"
        raise InputError(problem, path=source, mend=mend) from error
