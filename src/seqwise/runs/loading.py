"""New runs, saved runs and loaded runs, of every kind."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seqwise.configuration import dump
from seqwise.configuration.flat import differences
from seqwise.data.durable import write_atomically
from seqwise.data.readers import Example
from seqwise.data.records import read_record
from seqwise.data.tokenizer import END, reading_tokenizer, writing_tokenizer
from seqwise.data.vocabulary import Vocabulary
from seqwise.devices import find_device
from seqwise.errors import InputError
from seqwise.models.chain import ChainTagger
from seqwise.models.recurrent import EncoderDecoder, Tagger
from seqwise.models.transformer import Transformer
from seqwise.runs.codecs import Codec, MaskedCodec, Purpose, SpellingCodec, TokenizerCodec
from seqwise.runs.hub import HUB_RUN, holds_run, model_folder, run_folder
from seqwise.runs.hugging_face_codecs import (
    GeneratorCodec,
    LanguageModelCodec,
    MaskedTextCodec,
    TaggerCodec,
    masked_text_codec,
)
from seqwise.runs.language import in_language, load_language, save_language
from seqwise.runs.masked_model_settings import MaskedModelSettings, masked_settings, saved_masked_settings
from seqwise.runs.model_settings import HUB_NAME, PretrainedEncoder
from seqwise.runs.pretrained import (
    holds_pretrained,
    is_causal,
    is_encoder,
    load_model_and_tokenizer,
    one_line,
    pretrained_source,
    writes_text,
)
from seqwise.runs.run import MaskedRun, OutputRun, Run, require_purpose
from seqwise.runs.settings import Settings, saved_settings
from seqwise.runs.sizing import sized_like
from seqwise.runs.trainer_options import CONFIGURATION, TrainerOptions
from seqwise.training.checkpoints import load_model_file, publishing, verify

MODEL, CODEC = "model", "codec.json"

OutputModel = Tagger | ChainTagger | EncoderDecoder | Transformer

POOLER = ("pooler.",)
"""Weights that many folders lack and no tagger uses."""


# --------------------------------------------------------------------------------------------------------- new


def new_run(examples: Sequence[Example], settings: Settings) -> OutputRun:
    """Make the run that training starts from: tokenizers of the training data, and a model with new weights.

    If the settings name a Hugging Face model, it is loaded with its tokenizer; if they name a run as ``init``, the new
    run has its model and codec.

    Raises:
        InputError: a model or run in the settings cannot be read, or the run has a different task or model.
    """
    return in_language(_new_run(examples, settings), settings.language)


def _new_run(examples: Sequence[Example], settings: Settings) -> OutputRun:
    if settings.init is not None:
        return _continued_run(settings, settings.init)
    if isinstance(settings.model, PretrainedEncoder):
        return _new_tagger_run(examples, settings)
    if settings.model.pretrained:
        return _generator_run(settings, pretrained_source(settings.model.path))
    codec = build_codec(examples, settings)
    return Run(settings, build_model(settings, codec), codec)


def _continued_run(settings: Settings, folder: Path) -> OutputRun:
    """Continue a run: its model and codec with new settings."""
    before: OutputRun = load_run(folder, to="predict")
    if before.settings.task != settings.task:
        problem = f"init: the run is of another task ({before.settings.task}, not {settings.task})"
        raise InputError(problem, path=folder, hint="give a run of this task")
    for name, (then, now) in differences(before.settings.model, settings.model).items():
        problem = f"init: the run has another {'model' if name == 'name' else name} ({then}, not {now})"
        raise InputError(problem, path=folder, hint="leave the settings of the model out; those of the run are used")
    return Run(settings, before.model.train(), before.codec)


def build_codec(examples: Sequence[Example], settings: Settings) -> TokenizerCodec:
    """Make a tokenizer for each side of the training data.

    Vocabularies are separate: the sides share no embeddings, and searches need not choose among source pieces.
    """
    config: Any = settings.model
    subwords = {"subword_vocabulary": getattr(config, "subword_vocabulary", 0)}
    end = END if settings.task == "transduce" else None
    sources, targets = [example.source for example in examples], [example.target for example in examples]
    source = reading_tokenizer(sources, units=settings.source_units, minimum_count=config.minimum_count, **subwords)
    target = writing_tokenizer(targets, units=settings.target_units, end=end, **subwords)
    if not getattr(config, "characters", False):
        return TokenizerCodec(source, target)
    words = [word for tokens in sources for word in tokens]
    return SpellingCodec(
        source, target, reading_tokenizer(words, units="characters", minimum_count=2, subword_vocabulary=0)
    )


def build_model(settings: Settings, codec: TokenizerCodec) -> OutputModel:
    """Make a model with new weights, drawn from the settings' seed."""
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = _draw_model(settings, codec)
    _start_normalized(model, settings)
    return model


def _draw_model(settings: Settings, codec: TokenizerCodec) -> OutputModel:
    source, target = codec.source.vocabulary, codec.target.vocabulary
    if settings.task == "tag" and target.end is not None:
        problem = f"the target vocabulary of a tagger has the end token {target.end!r}"
        raise InputError(problem, hint="build it without one: a tagger writes a label for each token")
    if settings.task == "transduce" and target.end_id is None:
        raise InputError("the target vocabulary of a transduction has no end token", hint="is it a tagger?")
    config: Any = settings.model
    sizes = {"source_size": len(source), "target_size": len(target)}
    if target.end_id is not None:
        sizes["end"] = target.end_id
    if isinstance(codec, SpellingCodec):
        sizes["num_characters"] = len(codec.characters.vocabulary)
    model: OutputModel = config.build(**sizes)
    return model


def _start_normalized(model: nn.Module, settings: Settings) -> None:
    """Lower the output biases by log V if the first stage is self-normalised, so that log Z starts near 0.

    Source: Devlin et al. (ACL 2014), section 2.4.
    """
    if settings.stages()[0].settings.objective.self_normalizing and isinstance(model.head, nn.Linear):
        nn.init.constant_(model.head.bias, -math.log(model.head.out_features))


def _new_tagger_run(examples: Sequence[Example], settings: Settings) -> OutputRun:
    """Make a tagger with a new decoder over the encoder or causal model in the settings."""
    from seqwise.hugging_face import pretrained_tagger

    config: Any = settings.model
    source = pretrained_source(config.path)
    labels = Vocabulary.build(example.target for example in examples)
    sizes = {name: getattr(config, name) for name in ("hidden_size", "label_embedding_size", "dropout", "look_ahead")}
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        options: dict[str, Any] = {"unused": POOLER, "dtype": torch.float32}
        backbone, tokenizer = load_model_and_tokenizer(source, _encoder_loader, kind="encoder", **options)
        # So that the saved config names the labels.
        backbone.config.id2label = dict(enumerate(labels.tokens))
        backbone.config.label2id = {label: place for place, label in enumerate(labels.tokens)}
        model = pretrained_tagger(backbone, num_labels=len(labels), **sizes)
    if getattr(settings.objective, "commit_delay", None) is not None:
        try:
            model.require_left_to_right()
        except InputError as error:
            hint = "leave it out, or name another model"
            raise InputError(f"commit_delay: {error.problem}", path=source, hint=hint) from None
    _start_normalized(model, settings)
    return Run(settings, model, TaggerCodec.over(model, tokenizer, labels, source=source))


def _generator_run(settings: Settings, source: Path | str) -> OutputRun:
    """Load an encoder-decoder or causal model from a folder or the hub."""
    from seqwise.hugging_face import step_model
    from seqwise.hugging_face.generation import ended_by

    kind = "encoder-decoder or causal language model"
    model, tokenizer = load_model_and_tokenizer(source, _generator_loader, kind=kind, dtype=torch.float32)
    with one_line(source, kind):
        adapted = step_model(model.eval(), generation_config=ended_by(model.generation_config, tokenizer))
    if adapted.end is None:
        raise InputError("the model has no end token", path=source, hint="set eos_token_id in its generation config")
    return Run(settings, adapted, GeneratorCodec(tokenizer, adapted))


def _encoder_loader(config: Mapping[str, Any]) -> Any:
    from transformers import AutoModel

    if not is_encoder(config) and not is_causal(config):
        name = next(iter(config.get("architectures") or ()), config.get("model_type"))
        problem = f"the model ({name}) is neither an encoder nor a causal model, which --task tag needs"
        raise InputError(problem, hint="name one such as BERT or GPT-2, or use --task transduce")
    return AutoModel


def _generator_loader(config: Mapping[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    masked = any(name.endswith("ForMaskedLM") for name in config.get("architectures") or ())
    if masked or is_encoder(config):
        what = "a masked language model" if masked else "an encoder"
        hint = "tag with it (--task tag), or use it with seqwise score or seqwise sample"
        raise InputError(f"the model is {what}, which cannot generate text", hint=hint)
    return AutoModelForCausalLM if is_causal(config) else AutoModelForSeq2SeqLM


# ------------------------------------------------------------------------------------------------------- saved


def save_run(run: Run[Any, Codec], folder: str | os.PathLike[str]) -> None:
    """Save settings and model; the model folder is complete or missing."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with publishing(folder / MODEL) as partial_folder:
        run.codec.save(run.model, partial_folder)
        write_atomically(partial_folder / CODEC, json.dumps({"kind": run.codec.kind}) + "\n")
        save_settings(run.settings, folder)
        if run.codec.purpose == "predict":
            save_language(run.model, partial_folder)


def save_settings(settings: TrainerOptions, folder: Path) -> None:
    """Write ``configuration.yaml``, unless the file there, perhaps with comments, has the same settings."""
    saved = read_settings(folder)
    if saved is None or sized_like(saved, settings) != settings:
        write_atomically(folder / CONFIGURATION, dump(settings))


# ------------------------------------------------------------------------------------------------------ loaded


def read_settings(folder: Path) -> Settings | MaskedModelSettings | None:
    """Read the settings of a run of either kind; None if the folder holds none."""
    return saved_settings(folder) or saved_masked_settings(folder)


def load_run(
    name: str | os.PathLike[str], *, to: Purpose | None = None, device: str | torch.device = "cpu"
) -> Run[Any, Any]:
    """Load a run, with every file checked against its manifest, or a Hugging Face masked model.

    Args:
        name: a folder; or, as a str that is not a path, a name on the hub.
        to: purpose of the run, "predict" or "score"; only "score" also finds other masked models on the hub.
        device: where to put the model: a device, or a name for :func:`~seqwise.devices.find_device`, such as "auto".

    Returns:
        The settings, the model in evaluation mode, and the codec between text and ids.

    Raises:
        InputError: there is no such device; the folder is missing or not a run, a file is damaged, the run does not
            serve the purpose, or the hub has no such run.
    """
    device = find_device(device) if isinstance(device, str) else device
    run = _load(name, to=to)
    run.model.to(device)
    return run


def _load(name: str | os.PathLike[str], *, to: Purpose | None) -> Run[Any, Any]:
    pretrained = None if to == "predict" else _pretrained(name, on_hub=to == "score")
    if pretrained is not None:
        return _masked_text_run(masked_settings(units="subwords"), pretrained)
    folder = run_folder(name)
    model_path = _trained_model(folder, _GIVE[to])
    verify(model_path)
    record = read_record(model_path / CODEC, ["kind"], what="codec of a run", hint=_GIVE[to])
    if record["kind"] not in list(_LOADERS):  # a list, because the kind in a damaged file may be unhashable
        raise InputError(f"there is no codec {record['kind']!r}", path=model_path / CODEC, hint=_GIVE[to])
    codec_class, load = _LOADERS[record["kind"]]
    if to is not None:
        require_purpose(codec_class, to, path=folder)
    settings = read_settings(folder)
    if settings is None or isinstance(settings, Settings) != (codec_class.purpose == "predict"):
        problem = "the file does not exist" if settings is None else "these settings are not of this kind of model"
        raise InputError(problem, path=folder / CONFIGURATION, hint="restore it as it was saved")
    return load_language(load(settings, folder, model_path), model_path)


def load_run_to_score(name: str | os.PathLike[str]) -> Run[Any, Any]:
    """Load a model that scores texts: a masked run, or a Hugging Face masked, causal or encoder-decoder model.

    Raises:
        InputError: there is no such model, or it is a run that predicts outputs in its own units.
    """
    pretrained = _pretrained(name, on_hub=True)
    if pretrained is not None and _writes_text(pretrained):
        options: dict[str, Any] = {"kind": "causal model or encoder-decoder"}
        model, tokenizer = load_model_and_tokenizer(pretrained, _generator_loader, **options)
        return Run(None, model.eval(), LanguageModelCodec(tokenizer))
    folder = run_folder(name) if pretrained is None else None
    if folder is not None and (model_folder(folder) / CODEC).is_file():
        run = load_run(folder)
        if not isinstance(run.codec, GeneratorCodec):
            require_purpose(run.codec, "score", path=folder)
        return run_to_score(run)
    return load_run(name, to="score")


def run_to_score(run: Run[Any, Any]) -> Run[Any, Any]:
    """Convert a run over a Hugging Face model that writes text to one that scores texts; return others as they are."""
    if not isinstance(run.codec, GeneratorCodec):
        return run
    return Run(run.settings, run.model.model, LanguageModelCodec(run.codec.tokenizer))


def _writes_text(source: Path | str) -> bool:
    try:
        return writes_text(source)
    except (OSError, ValueError):  # of the hub; the error is reported on loading
        return False


_GIVE: dict[Purpose | None, str] = {
    "predict": "give the --output of seqwise train",
    "score": "give the --output of seqwise masked-model train, or the folder of a Hugging Face masked model",
    None: "give the --output of seqwise train or masked-model train",
}


def _pretrained(name: str | os.PathLike[str], *, on_hub: bool) -> Path | str | None:
    """Return the folder or hub name of a masked model that is not a seqwise run, or None."""
    folder = Path(name)
    if holds_pretrained(folder) and not (folder / CODEC).exists():
        return folder
    if not on_hub or not isinstance(name, str) or os.path.lexists(folder) or not HUB_NAME.fullmatch(name):
        return None
    return None if HUB_RUN.fullmatch(name) and holds_run(name) else name


def _trained_model(folder: Path, give: str) -> Path:
    """Return the model folder of a run, or raise an InputError with the reason."""
    if folder.is_file():
        raise InputError("a file where a run folder was expected", path=folder, hint=f"{give}, before any file")
    if not folder.is_dir():
        raise InputError("there is no such run folder", path=folder, hint=give)
    if folder.name == MODEL and (folder.parent / CONFIGURATION).is_file():
        raise InputError("the folder is a part of a run", path=folder, hint=f"give the run, {folder.parent}")
    model_path = model_folder(folder)
    if not model_path.is_dir():
        unfinished = (folder / "checkpoints").is_dir() or (folder / "warm-start").is_dir()
        finish = "wait for the end of its training or, if that was stopped, run the same command again"
        if holds_pretrained(folder) and not (folder / CODEC).exists():
            problem = "the folder holds a Hugging Face model, not a run"
            raise InputError(problem, path=folder, hint=f"fine-tune it with seqwise train --model {folder}, or {give}")
        raise InputError("the folder holds no trained model", path=folder, hint=finish if unfinished else give)
    return model_path


def _load_own_run(kind: type[TokenizerCodec], settings: Settings, folder: Path, model_path: Path) -> OutputRun:
    codec = kind.load(model_path)
    try:
        model = build_model(settings, codec)
    except InputError as error:
        hint = "restore it as it was saved"
        raise InputError(error.problem, path=folder / CONFIGURATION, hint=hint) from error
    try:
        model.load_state_dict(load_model_file(model_path / "model.safetensors"))
    except RuntimeError as error:
        problem = f"the weights do not fit the configuration ({str(error).splitlines()[-1].strip()})"
        hint = "restore configuration.yaml as it was saved"
        raise InputError(problem, path=model_path / "model.safetensors", hint=hint) from error
    return Run(settings, model.eval(), codec)


def _load_tagger_run(settings: Settings, folder: Path, model_path: Path) -> OutputRun:
    from seqwise.hugging_face.tagger import load_tagger

    model = load_tagger(model_path)
    return Run(settings, model, TaggerCodec.load(model_path, model))


def _load_masked_run(settings: MaskedModelSettings, folder: Path, model_path: Path) -> MaskedRun:
    codec = MaskedCodec.load(model_path, format=settings.format)
    weights, sizes = load_model_file(model_path / "model.safetensors"), {"vocab_size": len(codec.sequence.vocabulary)}
    if codec.source is not None:
        sizes["source_size"] = len(codec.source.vocabulary)
    try:
        config: dict[str, Any] = json.loads((model_path / "config.json").read_bytes())
        model = settings.model.model_class(**config)
        if any(config.get(name) != size for name, size in sizes.items()):
            raise ValueError("vocabulary and model are of different sizes")
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, ValueError, OSError) as error:
        problem = f"settings, vocabulary and weights do not fit each other ({str(error).splitlines()[-1].strip()})"
        raise InputError(problem, path=folder, hint="use another copy") from error
    return Run(settings, model.eval(), codec)


def _masked_text_run(settings: MaskedModelSettings, source: Path | str) -> MaskedRun:
    """Load a masked language model for scoring and sampling; adapters without their base model are refused."""
    from transformers import AutoModelForMaskedLM

    kind = "masked language model"
    model, tokenizer = load_model_and_tokenizer(source, lambda _: AutoModelForMaskedLM, kind=kind)
    with one_line(source, kind):
        return Run(settings, *masked_text_codec(model.eval(), tokenizer))


_LOADERS: dict[str, tuple[type[Codec], Callable[[Any, Path, Path], Run[Any, Any]]]] = {
    codec.kind: (codec, load)
    for codec, load in (
        (TokenizerCodec, partial(_load_own_run, TokenizerCodec)),
        (SpellingCodec, partial(_load_own_run, SpellingCodec)),
        (GeneratorCodec, lambda settings, folder, model_path: _generator_run(settings, model_path)),
        (TaggerCodec, _load_tagger_run),
        (MaskedCodec, _load_masked_run),
        (MaskedTextCodec, lambda settings, folder, model_path: _masked_text_run(settings, model_path)),
    )
}
"""Codec, and function that loads a run from its settings, folder and model folder, by the kind in ``codec.json``."""
