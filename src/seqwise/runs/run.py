"""Runs: a trained model with its settings and codec, in a folder that commands use.

::

    RUN/configuration.yaml   every setting
    RUN/model/               model.safetensors, config.json, codec.json, a folder for each tokenizer (of a Hugging Face
                             model what from_pretrained reads), and a manifest with their SHA-256
    RUN/metrics.json         results on the development data
    RUN/log.jsonl            a line for each training step
    RUN/summary.json         counts over the data, the stages of training, and the baseline without learning
    RUN/measurements.jsonl   a line for each evaluation on the development data during training
    RUN/checkpoints/         the last two complete ones (RUN/warm-start/, RUN/scheduled-sampling/ and RUN/distillation/
                             hold those of the warm start)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from seqwise.data.batches import EncodedExample
from seqwise.data.readers import Example, Units
from seqwise.data.records import read_json_object
from seqwise.data.spooled import in_blocks
from seqwise.decoding import Decoder, Hypothesis, batches_by_length, decode_examples, steps_for
from seqwise.errors import InputError
from seqwise.names import DecoderName
from seqwise.runs.codecs import Codec, OutputCodec, Purpose, SequenceCodec
from seqwise.runs.decoder_choice import choose_decoder
from seqwise.runs.inputs import example_of, input_units
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.runs.settings import Settings
from seqwise.search.automata import Automaton
from seqwise.search.grammars import Grammar
from seqwise.search.language import language_of, require_output
from seqwise.search.selectors import HardTopK
from seqwise.training.processes import from_all_processes, shard

METRICS = "metrics.json"

S_co = TypeVar("S_co", covariant=True)
C_co = TypeVar("C_co", bound=Codec, covariant=True)


@dataclass(frozen=True, eq=False)
class Run(Generic[S_co, C_co]):
    """Trained model with its settings, and the codec between text and ids."""

    settings: S_co
    model: Any
    codec: C_co


OutputRun = Run[Settings, OutputCodec]
"""Run of a tagger, transducer or language model, which predicts."""

MaskedRun = Run[MaskedModelSettings, SequenceCodec]
"""Run of a masked model, which scores and samples."""


@dataclass(frozen=True)
class Prediction:
    """Output as tokens, with its score (higher is better)."""

    tokens: tuple[str, ...]
    score: float


def fingerprint(run: Run[Any, Codec]) -> str:
    """SHA-256 of a run's settings, of its codec, and of all tensors and the language of its model."""
    digest = hashlib.sha256(f"{run.settings!r}{run.codec.identity}".encode("utf-8", "surrogatepass"))
    tensors, language = dict(run.model.state_dict()), language_of(run.model)
    if isinstance(language, Automaton):  # in full, because its file may have changed
        tensors |= {"language.arcs": language.arcs, "language.final": language.final_S}
    if isinstance(language, Grammar):
        digest.update(repr(language.source).encode("utf-8", "surrogatepass"))
    for name, tensor in tensors.items():
        digest.update(name.encode())
        # As bytes, because numpy has no bfloat16.
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_OTHER_USE: dict[Purpose, tuple[str, str]] = {
    "predict": ("a masked model, which does not predict outputs", "use it with seqwise score or seqwise sample"),
    "score": ("a run of seqwise train, which is not a masked model", "use it with seqwise predict or seqwise evaluate"),
}
"""By purpose: the other kind of run, and the commands for it."""


def require_loaded(run: Any) -> None:
    """Raise an InputError for the name of a run in place of the run."""
    if isinstance(run, str | os.PathLike):
        name = os.fspath(run)
        raise InputError(f"{name!r} is the name of a run", hint=f"load it first: load_run({name!r})")


def require_purpose(codec: Codec | type[Codec], purpose: Purpose, *, path: Path | None = None) -> None:
    """Raise an InputError if the codec of a run does not serve a purpose."""
    if codec.purpose != purpose:
        other, hint = _OTHER_USE[purpose]
        raise InputError(f"the {'run' if path is None else 'folder'} holds {other}", path=path, hint=hint)


def reading_problems(run: OutputRun, examples: Sequence[Example]) -> Iterator[InputError | None]:
    """Yield, for each example, the error on reading its source, or None; blank lines count as readable."""
    for block in in_blocks(examples, 1024):
        if _reading_problem(run, block) is None:
            yield from repeat(None, len(block))
        else:
            yield from (_reading_problem(run, [example]) for example in block)


def _reading_problem(run: OutputRun, examples: Sequence[Example]) -> InputError | None:
    try:
        for encoded in run.codec.encode_sources([example for example in examples if example.source]):
            require_output(language_of(run.model), steps_for(encoded.source_ids, run.model))
    except InputError as error:
        return error
    return None


def readable(run: OutputRun, examples: Sequence[Example]) -> list[Example]:
    """Return the examples with sources that a run can read."""
    problems = reading_problems(run, examples)
    return [example for example, problem in zip(examples, problems, strict=True) if problem is None]


def predict(
    run: OutputRun,
    examples: Sequence[Example | str],
    decoder: Decoder | DecoderName | None = None,
    *,
    n_best: int = 1,
    length_normalization: float = 0.0,
) -> list[list[Prediction]]:
    """Search for the best outputs of each example, best first, as tokens.

    Args:
        run: a run from :func:`~seqwise.runs.loading.load_run`.
        examples: texts, which are split like the training data; or examples, of which only the sources are read.
        decoder: a decoder, or its name, with the run's beam size and alpha; None for that of the training objective.
        n_best: largest number of outputs for each example.
        length_normalization: see :func:`~seqwise.decoding.hypotheses`.

    Returns:
        For each example, at most ``n_best`` predictions: ``tokens`` without the end token, and ``score``.

    Raises:
        InputError: ``examples`` is a single text, one of them is neither a text nor an example or has no token, there
            is no such decoder, or the run is a masked model or only its name.
    """
    if isinstance(examples, str):
        raise InputError("one text where a list of texts was expected", hint="write predict(run, [text])")
    require_loaded(run)
    require_purpose(run.codec, "predict")
    units = input_units(run.settings)
    inputs = [_as_example(given, number, units=units) for number, given in enumerate(examples, start=1)]
    encoded = run.codec.encode_sources(inputs)
    if not isinstance(decoder, Decoder):
        decoder = choose_decoder(run.settings, decoder)
    hypotheses = search(run, encoded, decoder, n_best=n_best, length_normalization=length_normalization)
    for example, outputs in zip(inputs, hypotheses, strict=True):
        if not outputs:
            hint = "exclude fewer tokens, or use a wider beam or language"
            raise InputError("the search finds no output, because all are excluded", hint=hint, **example.place)
    decode = run.codec.target_vocabulary.decode
    return [[Prediction(tuple(decode(best.tokens)), best.score) for best in outputs] for outputs in hypotheses]


def _as_example(given: Example | str, number: int, *, units: Units) -> Example:
    if isinstance(given, str):
        return example_of(given, units=units)
    if not isinstance(given, Example):
        problem = f"input {number} is a {type(given).__name__}, and a text or an Example was expected"
        raise InputError(problem, hint="join its tokens with spaces, or write Example(tuple(tokens), ())")
    return given


def predict_together(
    run: OutputRun, examples: Sequence[Example], decoder: Decoder, *, length_normalization: float = 0.0
) -> list[list[Prediction]]:
    """Search for the best output of each example in all processes together, which share the batches.

    Every process returns all outputs, bit for bit those of :func:`predict` in a single process.
    """
    batches = list(batches_by_length(run.model, run.codec.encode_sources(examples)))
    own = [place for batch in shard(batches) for place in batch]
    own_outputs = predict(run, [examples[place] for place in own], decoder, length_normalization=length_normalization)
    outputs: dict[int, list[Prediction]] = {}
    for part in from_all_processes(dict(zip(own, own_outputs, strict=True))):
        outputs |= part
    return [outputs[place] for place in range(len(examples))]


def search(
    run: OutputRun, encoded: Sequence[EncodedExample], decoder: Decoder, **options: Any
) -> list[list[Hypothesis]]:
    """Decode as ``decode_examples`` does, with its options, among the tokens that the codec allows."""
    return decode_examples(
        run.model, encoded, replace(decoder, selector=run.codec.allowed(decoder.selector)), **options
    )


def restrictions(run: OutputRun) -> list[str]:
    """Return the settings by which the codec excludes outputs that the model and its language may allow."""
    return list(getattr(run.codec.allowed(HardTopK(1)), "settings", ()))


def read_metrics(folder: Path) -> dict[str, Any]:
    """Read ``metrics.json``; empty if there is none."""
    path = folder / METRICS
    return read_json_object(path, what="metrics", hint="restore it as it was saved") if path.is_file() else {}
