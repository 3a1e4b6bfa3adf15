"""A run: a trained model with its vocabularies and settings, in a folder that is all that prediction needs.

::

    RUN/configuration.yaml   every setting
    RUN/model/               model.safetensors, config.json, the vocabularies (and subwords; of a model of transformers
                             what ``from_pretrained`` reads; of a tagger over one what ``load_tagger`` does), and a
                             manifest with their SHA-256
    RUN/metrics.json         what it reached on the development data
    RUN/log.jsonl            a line for each training step
    RUN/summary.json         counts over the data, the stages of training, and the baseline of no learning
    RUN/measurements.jsonl   a line for each look at the development data on the way
    RUN/checkpoints/         the last two complete ones (RUN/warm-start/, RUN/scheduled-sampling/ and RUN/distillation/
                             hold those of the warm start)
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from seqwise.data.batches import EncodedExample, encode_examples
from seqwise.data.readers import Example, write_atomically
from seqwise.data.spooled import in_blocks
from seqwise.data.subwords import (
    UNKNOWN_PIECE,
    Subwords,
    join_pieces,
    normalize_text,
    save_subwords,
    split_text,
)
from seqwise.data.vocabulary import Vocabulary
from seqwise.decoding import Decoder, Hypothesis, decode_examples, steps_after
from seqwise.errors import InputError
from seqwise.models.chain import ChainTagger
from seqwise.models.recurrent import EncoderDecoder, Tagger
from seqwise.models.transformer import Transformer
from seqwise.names import DecoderName
from seqwise.runs.decoder_choice import best_decoder, choose_decoder, usual_decoder
from seqwise.runs.hub import model_folder
from seqwise.runs.inputs import example_of, input_units
from seqwise.runs.settings import Settings
from seqwise.runs.stages import SELF_NORMALIZING, resolve, stages
from seqwise.search.selectors import Selector
from seqwise.training.checkpoints import MANIFEST, publishing
from seqwise.training.configuration import dump_configuration, load_configuration

__all__ = [
    "Prediction",
    "Run",
    "best_decoder",
    "choose_decoder",
    "fingerprint",
    "predict",
    "require_enough_candidates",
    "save_run",
    "start_normalized",
    "unreadable",
    "usual_decoder",
]

UNKNOWN, END = UNKNOWN_PIECE, "</s>"
SequenceModel = Tagger | ChainTagger | EncoderDecoder | Transformer


@dataclass(frozen=True)
class Run:
    """A model with what it takes to use it; with subwords, that side of an example is one token, its raw text."""

    settings: Settings
    model: SequenceModel
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    source_subwords: Subwords | None = None
    target_subwords: Subwords | None = None

    def split(self, examples: Sequence[Example]) -> list[Example]:
        """Raw texts to subwords, where the run has them."""
        return _split(examples, self.source_subwords, self.target_subwords)

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Tokens to ids; an unknown label is refused with its file and line."""
        return encode_examples(self.split(examples), self.source_vocabulary, self.target_vocabulary)

    def encode_sources(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Ids of the sources alone: whatever the targets are, they are not looked at."""
        return self.encode([replace(example, target=()) for example in examples])

    @property
    def writes_text(self) -> bool:
        """Whether targets are raw texts."""
        return self.target_subwords is not None

    @property
    def writable(self) -> set[str]:
        """All that targets can be made of."""
        return set(self.target_vocabulary.tokens)

    @property
    def unknown_source(self) -> str | None:
        """The token that stands for source tokens that are not known, if there is one."""
        return self.source_vocabulary.unknown

    def written(self, example: Example) -> Sequence[str]:
        """What a target is written in; of subwords, every known character is one."""
        if self.target_subwords is None:
            return example.target
        return [character for text in example.target for character in normalize_text(text) if character != " "]

    def search(
        self, encoded: Sequence[EncodedExample], decoder: Decoder, *, n_best: int, length_normalization: float
    ) -> list[list[Hypothesis]]:
        """The best outputs for each source, best first."""
        decoder = replace(decoder, selector=self.allowed(decoder.selector))
        return decode_examples(self.model, encoded, decoder, n_best=n_best, length_normalization=length_normalization)

    def allowed(self, selector: Selector) -> Selector:
        """A selector that chooses as another does, among what the run may write: here all of it."""
        return selector

    def save_model(self, folder: Path) -> None:
        """Write the model and what turns text into ids and back."""
        self.model.save_pretrained(folder)
        # Its model card says that the model has been published.
        (folder / "README.md").unlink(missing_ok=True)
        self.source_vocabulary.save(folder / "source_vocabulary.json")
        self.target_vocabulary.save(folder / "target_vocabulary.json")
        for side, subwords in (("source", self.source_subwords), ("target", self.target_subwords)):
            if subwords is not None:
                save_subwords(subwords, folder / f"{side}_subwords.json")

    def source_text(self, example: Example) -> str:
        """The source as it was written."""
        return ("" if _units(self.settings, "source") == "characters" else " ").join(example.source)

    def target_text(self, tokens: Iterable[str]) -> str:
        """What the model wrote, as text: without blanks between characters, and subwords put together."""
        if self.target_subwords is not None:
            return join_pieces(tokens)
        return ("" if _units(self.settings, "target") == "characters" else " ").join(tokens)


@dataclass(frozen=True)
class Prediction:
    """One output as tokens, with its score (higher is better)."""

    tokens: tuple[str, ...]
    score: float


def _units(settings: Settings, side: str) -> str:
    """What a side is made of; a tagger reads and writes words."""
    units: str = getattr(settings, f"{side}_units")
    return units if settings.task == "transduce" else "words"


def _split(examples: Sequence[Example], source: Subwords | None, target: Subwords | None) -> list[Example]:
    return [
        replace(example, source=_pieces(example, "source", source), target=_pieces(example, "target", target))
        for example in examples
    ]


def _pieces(example: Example, side: str, subwords: Subwords | None) -> tuple[str, ...]:
    texts: tuple[str, ...] = getattr(example, side)
    if subwords is None or not texts:  # a target that is asked for
        return texts
    pieces = split_text(texts[0], subwords)
    if not pieces:
        path, line = example.path or None, example.line or None
        raise InputError(f"the {side} is blank", path=path, line=line, mend="fill it in or drop the line")
    return pieces


def start_normalized(model: nn.Module, settings: Settings) -> None:
    """Lower the output biases of a new model by log V, if it is trained to be self-normalised first.

    So log Z is about 0 from the first step (Devlin et al., ACL 2014, section 2.4). From log Z = log V, the penalty
    would drown the likelihood for as long as the model has learnt nothing.
    """
    if stages(settings)[0].settings.objective in SELF_NORMALIZING and isinstance(model.head, nn.Linear):
        nn.init.constant_(model.head.bias, -math.log(model.head.out_features))


def save_run(run: Run, folder: str | os.PathLike[str]) -> None:
    """Write configuration and model; the model folder appears whole or not at all."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with publishing(folder / "model") as partial:
        run.save_model(partial)
        save_settings(run.settings, folder)


def save_settings(settings: Settings, folder: Path) -> None:
    """Write ``configuration.yaml``, unless it says the same already: it may be the user's own, with comments."""
    path = folder / "configuration.yaml"
    if not path.exists() or resolve(load_configuration(Settings, path, {})) != settings:
        write_atomically(path, dump_configuration(settings))


def fingerprint(folder: Path) -> str:
    """What tells a run, which can be loaded, from others: SHA-256 of its settings and of the sums of its files."""
    found = hashlib.sha256()
    for path in (folder / "configuration.yaml", model_folder(folder) / MANIFEST):
        found.update(path.read_bytes())
    return found.hexdigest()


def require_enough_candidates(run: Run, examples: Sequence[Example], beam_size: int) -> None:
    """A beam asked for by hand must not be larger than the set of possible outputs.

    Raises:
        InputError: it is, for each of the examples.
    """
    encoded = (one for block in in_blocks(examples, 1024) for one in run.encode_sources(block))
    steps = max(steps_after(one.source_ids, run.model) for one in encoded)
    labels = len(run.target_vocabulary)
    if labels**steps < beam_size:
        raise InputError(
            f"a beam of {beam_size} is larger than the number of candidates, {labels}^{steps} = {labels**steps}",
            mend=f"use --beam-size {labels**steps} or less",
        )


def unreadable(run: Run, examples: Sequence[Example]) -> dict[int, InputError]:
    """The examples of a file that a run cannot read, by their line, with what is wrong; blank lines are left out."""
    problems: dict[int, InputError] = {}
    for block in in_blocks(examples, 1024):
        written = [example for example in block if example.source]
        try:
            _require_readable(run, written)
        except InputError:
            for example in written:
                try:
                    _require_readable(run, [example])
                except InputError as error:
                    problems[example.line] = error
    return problems


def _require_readable(run: Run, examples: Sequence[Example]) -> None:
    for encoded in run.encode_sources(examples):
        steps_after(encoded.source_ids, run.model)


def predict(
    run: Run,
    examples: Sequence[Example | str],
    decoder: Decoder | DecoderName | None = None,
    *,
    n_best: int = 1,
    length_normalization: float = 0.0,
) -> list[list[Prediction]]:
    """Search for the best outputs of each example, best first, as tokens.

    Args:
        run: as :func:`load_run` returns it.
        examples: texts, which are split as the training data were; or examples, of which only the sources are read.
        decoder: itself or its name, with the run's beam size and alpha; None: as the model was trained to be searched.
        n_best: how many outputs for each example at most.
        length_normalization: see :func:`~seqwise.decoding.hypotheses`.

    Raises:
        InputError: a text is empty, or there is no such decoder.
    """
    units = input_units(run.settings)
    encoded = run.encode_sources([example_of(one, units=units) if isinstance(one, str) else one for one in examples])
    if not isinstance(decoder, Decoder):
        decoder = choose_decoder(run.settings, decoder)
    found = run.search(encoded, decoder, n_best=n_best, length_normalization=length_normalization)
    return [[_as_tokens(hypothesis, run.target_vocabulary) for hypothesis in outputs] for outputs in found]


def _as_tokens(hypothesis: Hypothesis, vocabulary: Vocabulary) -> Prediction:
    return Prediction(tuple(vocabulary.decode(hypothesis.tokens)), hypothesis.score)


def save_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Write ``metrics.json``."""
    write_atomically(folder / "metrics.json", json.dumps(metrics, indent=1, sort_keys=True) + "\n")
