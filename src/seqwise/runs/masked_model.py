"""A trained masked model in a folder: saved, read back, and used to score sequences.

::

    RUN/settings.json     every setting
    RUN/model/            model.safetensors, config.json, lengths.json, sequence_vocabulary.json (and, as may be,
                          source_vocabulary.json and subwords of each side), and a manifest with their SHA-256
    RUN/metrics.json      what it came to
    RUN/log.jsonl         a line for each training step
    RUN/checkpoints/      the last two complete ones

Shapes: V vocabulary.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import EncodedExample
from seqwise.data.fasta import each_entry
from seqwise.data.readers import BLANKS, Example, FilePath, Units, each_pair, read_lines, require_some, write_atomically
from seqwise.data.records import read_record
from seqwise.data.spooled import spooled
from seqwise.data.subwords import Subwords, join_pieces, load_subwords, normalize_text, save_subwords, split_text
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError
from seqwise.models.conditional import ConditionalMaskedTransformer
from seqwise.models.masked import MaskedLSTM, MaskedTransformer
from seqwise.runs.hub import model_folder
from seqwise.runs.inputs import file_units
from seqwise.runs.masked_model_settings import MaskedModelSettings, load_masked_settings
from seqwise.runs.scoring import SequenceScore, room_for, score_sequences
from seqwise.runs.sequence_run import FREE, Ways, fingerprint_of
from seqwise.training.checkpoints import load_model_file, publishing, verify

__all__ = [
    "MaskedRun",
    "SequenceScore",
    "each_sequence",
    "load_masked_run",
    "read_sequences",
    "room_for",
    "save_masked_run",
    "score_sequences",
    "sequence_tokens",
]

Model = MaskedLSTM | MaskedTransformer | ConditionalMaskedTransformer

SETTINGS, MODEL = "settings.json", "model"


@dataclass(frozen=True)
class MaskedRun:
    """A masked model with what it takes to use it; with subwords, a side of an example is one token, its raw text.

    Attributes:
        settings: what it was trained with.
        model: in evaluation mode where it was read from a folder.
        vocabulary: of the sequences, V tokens; the model scores all of them, the unknown symbol included.
        source_vocabulary: of the sources, or None where there are none.
        subwords: that sequences are split into, or None.
        source_subwords: the same for sources.
        lengths: how many training sequences have each length.
    """

    settings: MaskedModelSettings
    model: Model
    vocabulary: Vocabulary
    source_vocabulary: Vocabulary | None = None
    subwords: Subwords | None = None
    source_subwords: Subwords | None = None
    lengths: Mapping[int, int] = field(default_factory=dict)

    @property
    def conditional(self) -> bool:
        """Whether each sequence has a source."""
        return self.settings.conditional

    @property
    def allowed_V(self) -> Tensor:
        """Bool (V,): the tokens that may be proposed, which are all but the unknown symbol."""
        return torch.tensor([token != self.vocabulary.unknown for token in self.vocabulary.tokens])

    @property
    def unknown_id(self) -> int | None:
        """The unknown symbol, or None."""
        return None if self.vocabulary.unknown is None else self.vocabulary.encode([self.vocabulary.unknown])[0]

    def read(self, path: FilePath) -> Sequence[Example]:
        """The sequences of a file; see :func:`read_sequences`. Of many, memory holds a few."""
        return require_some(spooled(each_sequence(path, self.settings)), path)

    def encode(self, examples: Sequence[Example]) -> list[EncodedExample]:
        """Tokens to ids: the sequence is the target, and the source ``(0,)`` where the model reads none.

        Raises:
            InputError: a token is unknown and there is no unknown symbol, or there is no source where one is read; with
                file and line.
        """
        return [EncodedExample(self._source_ids(one), self._sequence_ids(one)) for one in examples]

    def _source_ids(self, example: Example) -> tuple[int, ...]:
        if self.source_vocabulary is None:
            return (0,)
        path, line = example.path or None, example.line or None
        tokens = sequence_tokens(example.source, self.source_subwords)
        if not tokens:
            raise InputError("the source is blank", path=path, line=line, mend="fill it in or drop the line")
        return tuple(self.source_vocabulary.encode(tokens, path=path, line=line))

    def _sequence_ids(self, example: Example) -> tuple[int, ...]:
        path, line = example.path or None, example.line or None
        if self.subwords is not None and example.target:
            strange = set(normalize_text(example.target[0])) - {" ", *self.subwords.pieces}
            if strange:
                problem, mend = f"the character {min(strange)!r} is in no training sequence", "drop or replace it"
                raise InputError(problem, path=path, line=line, mend=mend)
        tokens = sequence_tokens(example.target, self.subwords)
        if example.target and not tokens:
            raise InputError("the sequence is blank", path=path, line=line, mend="fill it in or drop the line")
        return tuple(self.vocabulary.encode(tokens, path=path, line=line))

    def decode(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The tokens of ids."""
        return tuple(self.vocabulary.decode(ids))

    def phrase(self, text: str) -> Ways:
        """The one way to write a phrase, in the units of the run.

        Raises:
            InputError: it is blank, or holds a token that is unknown.
        """
        words = tuple(word for word in BLANKS.split(text) if word)
        units = file_units(self.settings.units)
        tokens = {"words": words, "characters": tuple(text), "text": (text,) if words else ()}[units]
        pieces = sequence_tokens(tokens, self.subwords)
        if not pieces:
            raise InputError("a phrase is blank", mend="name a token or more")
        ids = tuple(self.vocabulary.encode(pieces))
        for piece, one in zip(pieces, ids, strict=True):
            if not self.allowed_V[one]:
                raise InputError(f"the token {piece!r} is unknown to the run", mend="it is never drawn; name others")
        return (ids,)

    @property
    def spell(self) -> Callable[[Sequence[int]], str] | None:
        """From subwords to their text; None where tokens are words, or characters that form none."""
        return None if self.subwords is None else self.text

    def require_free(self, free: str) -> None:
        """Refuse a mark of free positions that could be taken for something else.

        Raises:
            InputError: it is a token of the run, or no token at all.
        """
        mend = "choose another token for it"
        if not free or free != "".join(free.split()):
            raise InputError(f"free: {free!r} is blank, or has a blank in it", mend=mend)
        if self.settings.units == "characters" and len(free) != 1:
            raise InputError(f"free: the sequences are made of characters, and {free!r} is not one", mend=mend)
        known = self.vocabulary.tokens if self.subwords is None else self.subwords.pieces
        if free in known:
            raise InputError(f"free: {free!r} is a token of the run", mend=mend)

    def to_fill(self, example: Example, free: str) -> tuple[int, ...]:
        """The ids of a sequence, FREE where it has the mark of free positions.

        Raises:
            InputError: a token is unknown, with file and line.
        """
        tokens: list[int] = []
        for part in self._parts(example.target, free):
            tokens += [FREE] if part is None else self.encode([replace(example, target=part)])[0].target_ids
        return tuple(tokens)

    def _parts(self, target: Sequence[str], free: str) -> Iterator[tuple[str, ...] | None]:
        """What is fixed, piece by piece, and None for each free position."""
        if self.subwords is None:
            yield from (None if token == free else (token,) for token in target)
            return
        fixed: list[str] = []
        for word in target[0].split():
            if word != free:
                fixed.append(word)
                continue
            if fixed:
                yield (" ".join(fixed),)
            fixed = []
            yield None
        if fixed:
            yield (" ".join(fixed),)

    def filled(self, example: Example, ids: Sequence[int], free: str) -> str:
        """A sequence as it would stand in a file; what was given stays as it was written, unknown tokens too."""
        if not example.target or self.subwords is not None:
            return self.text(ids)
        drawn = zip(example.target, self.decode(ids), strict=True)
        tokens = (new if token == free else token for token, new in drawn)
        return self.example_text(replace(example, target=tuple(tokens)))

    def fingerprint(self) -> str:
        """What tells the model, with its vocabulary, from others."""
        return fingerprint_of(self.model, repr(self.vocabulary.tokens))

    def text(self, ids: Sequence[int]) -> str:
        """A sequence as it would stand in a file."""
        tokens = self.vocabulary.decode(ids)
        return join_pieces(tokens) if self.subwords is not None else self._joined(tokens, self.settings.units)

    def example_text(self, example: Example) -> str:
        """The sequence of an example as it was written."""
        return self._joined(example.target, self.settings.units)

    def source_text(self, example: Example) -> str:
        """The source of an example as it was written."""
        return self._joined(example.source, self.settings.source_units)

    @staticmethod
    def _joined(tokens: Sequence[str], units: str) -> str:
        return ("" if units == "characters" else " ").join(tokens)


def sequence_tokens(tokens: Sequence[str], subwords: Subwords | None) -> tuple[str, ...]:
    """One side of an example as the model sees it: its raw text split into subwords where there are any.

    Example:
        >>> sequence_tokens(["the", "dog"], None)
        ('the', 'dog')
    """
    return tuple(tokens) if subwords is None or not tokens else split_text(tokens[0], subwords)


def read_sequences(path: FilePath, settings: MaskedModelSettings) -> list[Example]:
    r"""Read a file in the format of a run; blank lines of a file with one sequence a line are left out.

    Returns:
        Examples whose target is the sequence; the source is empty but for pairs, and the key the name of FASTA.

    Raises:
        InputError: the file cannot be read as that, with its line.

    Example:
        >>> file = getfixture("tmp_path") / "a.txt"
        >>> _ = file.write_text("the dog\n\nruns\n")
        >>> [(one.target, one.line) for one in read_sequences(file, MaskedModelSettings())]
        [(('the', 'dog'), 1), (('runs',), 3)]
    """
    return require_some(list(each_sequence(path, settings)), path)


def each_sequence(path: FilePath, settings: MaskedModelSettings) -> Iterator[Example]:
    """The examples of :func:`read_sequences`, one at a time; none is no error."""
    units = file_units(settings.units)
    if settings.format == "pairs":
        yield from each_pair(path, source_units=file_units(settings.source_units), target_units=units)
    elif settings.format == "fasta":
        for one in each_entry(path):
            yield replace(one, target=("".join(one.target),)) if units == "text" else one
    else:
        yield from _each_line(path, units)


def _each_line(path: FilePath, units: Units) -> Iterator[Example]:
    for number, text in read_lines(path):
        if "\t" in text:
            problem, mend = "a tab in a sequence", "give one sequence a line; source, tab, sequence is --format pairs"
            raise InputError(problem, path=path, line=number, mend=mend)
        if text.strip(" "):
            words = tuple(word for word in BLANKS.split(text) if word)
            tokens = {"words": words, "characters": tuple(text), "text": (text.strip(" "),)}[units]
            yield Example((), tokens, os.fspath(path), number)


def save_masked_run(run: MaskedRun, output: str | os.PathLike[str]) -> None:
    """Write settings and model; the model folder appears whole or not at all."""
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    with publishing(output / MODEL) as partial:
        run.model.save_pretrained(partial)
        # Its model card says that the model has been published.
        (partial / "README.md").unlink(missing_ok=True)
        for side, vocabulary, subwords in (
            ("sequence", run.vocabulary, run.subwords),
            ("source", run.source_vocabulary, run.source_subwords),
        ):
            if vocabulary is not None:
                vocabulary.save(partial / f"{side}_vocabulary.json")
            if subwords is not None:
                save_subwords(subwords, partial / f"{side}_subwords.json")
        lengths = {str(length): count for length, count in sorted(run.lengths.items())}
        write_atomically(partial / "lengths.json", json.dumps({"lengths": lengths}, indent=1) + "\n")
        save_settings(run.settings, output)


def save_settings(settings: MaskedModelSettings, output: Path) -> None:
    """Write ``settings.json``."""
    write_atomically(output / SETTINGS, json.dumps(asdict(settings), indent=1, sort_keys=True) + "\n")


def load_masked_run(folder: str | os.PathLike[str]) -> MaskedRun:
    """Read a trained masked model back, every file of it checked against its manifest.

    Raises:
        InputError: the folder is missing, holds something else (the message names the command that reads it), or a file
            of it is damaged.
    """
    folder = Path(folder)
    _require_masked_run(folder)
    inside = model_folder(folder)
    verify(inside)
    settings = load_masked_settings(folder / SETTINGS)
    vocabulary = Vocabulary.load(inside / "sequence_vocabulary.json")
    source = Vocabulary.load(inside / "source_vocabulary.json") if settings.conditional else None
    lengths = read_record(inside / "lengths.json", ["lengths"], what="counts of lengths", mend="take another copy")
    return MaskedRun(
        settings,
        _load_model(settings, folder, vocabulary, source),
        vocabulary,
        source,
        _load_subwords(inside / "sequence_subwords.json", settings.units),
        _load_subwords(inside / "source_subwords.json", settings.source_units),
        {int(length): count for length, count in lengths["lengths"].items()},
    )


def _load_subwords(path: Path, units: str) -> Subwords | None:
    return load_subwords(path) if units == "subwords" else None


def _require_masked_run(folder: Path) -> None:
    """Refuse any other folder, in words that say what it is."""
    mend = "give the --output of a seqwise masked-model train, or a folder of transformers"
    if not folder.is_dir():
        raise InputError("there is no such run folder", path=folder, mend=mend)
    if (folder / "configuration.yaml").exists():
        mend = "use it with seqwise predict or seqwise evaluate"
        raise InputError("the folder holds a run of seqwise train, which is no masked model", path=folder, mend=mend)
    if not (model_folder(folder) / "sequence_vocabulary.json").exists():
        if (folder / SETTINGS).exists() and (folder / "checkpoints").is_dir():
            load_masked_settings(folder / SETTINGS)  # so that what is somebody else's is not called unfinished
            mend = "run the same seqwise masked-model train again to finish it"
        raise InputError("the folder holds no trained masked model", path=folder, mend=mend)


def _load_model(
    settings: MaskedModelSettings, folder: Path, vocabulary: Vocabulary, source: Vocabulary | None
) -> Model:
    inside = model_folder(folder)
    weights, sizes = load_model_file(inside / "model.safetensors"), {"vocab_size": len(vocabulary)}
    if source is not None:
        sizes["source_size"] = len(source)
    try:
        config: dict[str, Any] = json.loads((inside / "config.json").read_bytes())
        model = model_class(settings)(**config)
        if any(config.get(name) != size for name, size in sizes.items()):
            raise ValueError("vocabulary and model are of different sizes")
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, ValueError, OSError) as error:
        problem = f"settings, vocabulary and weights do not fit each other ({str(error).splitlines()[-1].strip()})"
        raise InputError(problem, path=folder, mend="take another copy") from error
    return model.eval()


def model_class(settings: MaskedModelSettings) -> type[Model]:
    """The class of the model that the settings describe."""
    if settings.conditional:
        return ConditionalMaskedTransformer
    return MaskedLSTM if settings.model == "lstm" else MaskedTransformer
