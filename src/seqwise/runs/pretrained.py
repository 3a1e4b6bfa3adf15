"""Loading of Hugging Face models and tokenizers from a folder or the hub; each error is one line.

No code is executed: weights are safetensors only, and folders with custom code (``auto_map``) are refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seqwise.data.records import read_json_object
from seqwise.errors import InputError, first_line
from seqwise.runs.model_settings import HUB_NAME

TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")
"""Name endings of models that write text."""


def holds_pretrained(folder: Path) -> bool:
    """Whether a folder has a ``config.json`` with a ``model_type``."""
    path = folder / "config.json"
    return path.is_file() and "model_type" in _read_json(path)


def pretrained_source(name: str) -> Path | str:
    """Return the path of a Hugging Face model's folder, or its name on the hub if there is no such path."""
    folder = Path(name)
    if os.path.lexists(folder):
        if not (folder / "config.json").is_file():
            problem = "the folder holds no Hugging Face model" if folder.is_dir() else "this is not a folder"
            raise InputError(problem, path=folder, hint="name a folder with config.json, weights and tokenizer in it")
        return folder
    if not HUB_NAME.fullmatch(name):
        raise InputError("there is no such folder", path=folder, hint="name a folder, or a model on the hub")
    return name


def writes_text(source: Path | str) -> bool:
    """Whether a Hugging Face model is causal or an encoder-decoder, by its ``config.json``."""
    config, _ = _configurations(source)
    return any(name.endswith(WRITERS) for name in config.get("architectures") or ())


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is that of an encoder: BERT, ModernBERT, ESM and the like."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    # Some decoders have the model_type of an encoder.
    if config.get("is_decoder") or any(name.endswith(WRITERS) for name in config.get("architectures") or ()):
        return False
    kind = config.get("model_type")
    return kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and kind not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES


def is_causal(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is that of a causal language model: GPT-2, Llama, BERT as a decoder and the like."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    # Some encoder-decoders are also in the mapping of causal models, for their decoders.
    kind = config.get("model_type")
    writes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    return writes and not is_encoder(config)


def load_model_and_tokenizer(
    source: Path | str,
    loader: Callable[[Mapping[str, Any]], Any],
    *,
    kind: str,
    unused: tuple[str, ...] = (),
    **options: Any,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder (a Path), without the network, or from the hub (a str).

    The loader maps the model's configuration to an ``AutoModelFor...`` class; weights whose names begin with one of
    ``unused`` may be missing.
    """
    from transformers import AutoTokenizer

    local = isinstance(source, Path)
    where: dict[str, Any] = {"local_files_only": True} if local else {}
    with quiet(), one_line(source, kind):
        config, tokenizer_config = _configurations(source)
        _refuse_code(source, config, tokenizer_config)
        if isinstance(source, Path):
            _require_files(source)
        else:
            where["revision"] = config.get("_commit_hash")  # the revision that was checked
        model, loaded = loader(config).from_pretrained(
            os.fspath(source), use_safetensors=True, output_loading_info=True, **where, **options
        )
        missing = [name for name in loaded["missing_keys"] if not name.startswith(unused)]
        if missing:
            problem = f"incomplete {kind}: {len(missing)} weights are missing, among them {min(missing)}"
            raise InputError(problem, path=source, hint=f"use a trained {kind}")
        return model, AutoTokenizer.from_pretrained(os.fspath(source), **where)


def load_pretrained_tokenizer(folder: Path) -> Any:
    """Load a Hugging Face tokenizer from a folder, without the network."""
    from transformers import AutoTokenizer

    with quiet(), one_line(folder, "tokenizer"):
        _refuse_code(folder, *_configurations(folder))
        return AutoTokenizer.from_pretrained(os.fspath(folder), local_files_only=True)


def _refuse_code(source: Path | str, *configurations: Mapping[str, Any]) -> None:
    if any("auto_map" in configuration for configuration in configurations):
        problem = "the model has its own code (auto_map), which is never run"
        raise InputError(problem, path=source, hint="use a model class of transformers")


def _read_json(path: Path) -> dict[str, Any]:
    return read_json_object(path, what=path.stem, hint="use another copy")


def _configurations(source: Path | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the configurations of model and tokenizer as data."""
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
            hint = "save them as safetensors: model.save_pretrained(folder)"
            raise InputError(problem, path=folder, hint=hint)
        raise InputError("the folder has no model.safetensors", path=folder, hint="save the model there")
    named = not names.isdisjoint(TOKENIZERS) or any(name.endswith(".model") for name in names)
    if not named and not _has_all_files(folder):
        raise InputError("the folder has no tokenizer", path=folder, hint="tokenizer.save_pretrained(folder)")


def _has_all_files(folder: Path) -> bool:
    """Whether a folder has all files of its tokenizer: none for one of bytes or characters (ByT5, CANINE)."""
    import transformers

    _, config = _configurations(folder)
    files = getattr(getattr(transformers, str(config.get("tokenizer_class")), None), "vocab_files_names", None)
    return files is not None and all((folder / name).exists() for name in files.values())


@contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars and log messages of Transformers and the hub."""
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
def one_line(source: Path | str, kind: str) -> Iterator[None]:
    """Convert errors of Transformers to one line."""
    from safetensors import SafetensorError

    try:
        yield
    except InputError as error:
        raise InputError(error.problem, path=error.path or source, line=error.line, hint=error.hint) from None
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
        message = first_line(error)
        if isinstance(source, Path):
            hint = f"give a Hugging Face {kind}"
            raise InputError(f"transformers cannot load the model ({message})", path=source, hint=hint) from error
        problem = f"there is no such folder, and no such model on the hub ({message})"
        hint = "check the name; without a network, give the folder of a saved model"
        raise InputError(problem, path=source, hint=hint) from error
