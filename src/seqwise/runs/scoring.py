"""Scores of texts and of pairs of texts, under a run or any Hugging Face model.

Shapes: B sequences, T positions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from seqwise.data.readers import Example, FilePath, read_lines, require_some, split_text
from seqwise.data.spooled import in_blocks, spooled
from seqwise.errors import InputError, placed
from seqwise.evaluation.minimal_pairs import PairScore
from seqwise.names import count_of
from seqwise.runs.codecs import MaskedCodec, SequenceCodec
from seqwise.runs.hugging_face_codecs import LanguageModelCodec, MaskedTextCodec, masked_text_codec
from seqwise.runs.inputs import file_units
from seqwise.runs.run import MaskedRun, Run
from seqwise.sampling.energies import pseudo_log_likelihood
from seqwise.sampling.problems import encode_sources, of_one_length
from seqwise.sampling.scores import TextScore, located, with_contexts
from seqwise.sampling.scoring_settings import ScoringSettings, refuse_ignored

BLOCK = 256  # sequences that are sorted by length together
TABLES, JSON_LINES = (".tsv", ".tsv.gz"), (".jsonl", ".jsonl.gz")


@contextmanager
def room_for(what: str, *, hint: str) -> Iterator[None]:
    """Convert an out-of-memory error to one line."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(f"not enough memory for {what}", hint=hint) from None


@contextmanager
def _numbered(what: str, number: int, example: Example) -> Iterator[None]:
    """Name the number of an example in its errors, unless it comes from a file, whose line they name."""
    with placed("", **example.place) if example.path else placed(f"{what} {number}: "):
        yield


@dataclass(frozen=True, eq=False)
class SequenceScore(TextScore):
    """Example with the log-probability of each of its T tokens, in nats, on the CPU."""

    example: Example = field(kw_only=True)


class Scorer:
    """Scorer of texts under one model: a folder, a name on the hub, a run, or a Hugging Face model with its tokenizer.

    Args:
        model: a folder of ``seqwise masked-model train`` or ``save_pretrained``, or a loaded model: masked, causal or
            encoder-decoder.
        tokenizer: the tokenizer of a loaded Hugging Face model.
        options: fields of ``ScoringSettings``; with ``pieces="original"``, each token is scored given all others, like
            the local energy and the measures of training.

    Raises:
        InputError: there is no such model, or it does not score texts; an option is unknown.

    Source: Salazar et al. (ACL 2020), section 2. Not implemented: probabilities of lengths, which conditional models
    have.

    Example:
        >>> from transformers import BertConfig, BertForMaskedLM, BertTokenizer
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "see", "a", "cat"]
        >>> tokenizer = BertTokenizer(vocab={word: place for place, word in enumerate(words)})
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        >>> bert = BertForMaskedLM(BertConfig(vocab_size=11, **sizes)).eval()
        >>> scorer = Scorer(bert, tokenizer, unit="bits")
        >>> [(row["text"], row["token"], row["start"], row["unit"]) for row in scorer.token_scores(["dogs see"])]
        [(0, 'dog', 0, 'bits'), (0, '##s', 3, 'bits'), (0, 'see', 5, 'bits')]
        >>> (pair,) = scorer.score_pairs([("dogs see", "dogs sees")])
        >>> pair.winner == ("good" if pair.difference > 0 else "bad")
        True
    """

    def __init__(self, model: Any, tokenizer: Any = None, **options: Any) -> None:
        self.settings = ScoringSettings(**options)
        self.run: Run[Any, Any] = _run_of(model, tokenizer)
        self._scoring = _scoring_of(self.run, self.settings)

    @property
    def kind(self) -> str:
        """Return "masked", "causal" or "encoder-decoder"."""
        return self._scoring.kind

    def score(
        self, texts: Iterable[str], prefixes: Sequence[str] | None = None, suffixes: Sequence[str] | None = None
    ) -> list[TextScore]:
        """Score texts, in order, in nats.

        Args:
            texts: texts to score.
            prefixes: context before each text; sources for an encoder-decoder or a conditional run.
            suffixes: context after each text, for Hugging Face masked models.
        """
        return list(self.score_examples(self._examples(texts, prefixes, suffixes)))

    def token_scores(
        self, texts: Iterable[str], prefixes: Sequence[str] | None = None, suffixes: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return a flat dict for each token, for a data frame, in the unit of the settings.

        Keys: index of the text, token, index of its word, start, end, log_prob, surprisal, unit; indices start at 0.
        """
        scores = self.score(texts, prefixes, suffixes)
        return [row for number, score in enumerate(scores) for row in score.rows(self.settings.unit, text=number)]

    def score_pairs(self, pairs: Iterable[Sequence[str]]) -> list[PairScore]:
        """Score pairs of a good and a bad text; further texts are the category, a prefix and a suffix of both.

        Returns:
            For each pair, the scores of both sides, in the unit of the settings, their difference and the winner.
        """
        examples = []
        for number, pair in enumerate(pairs, start=1):
            if isinstance(pair, str) or not 2 <= len(pair) <= 5:
                hint = "give two texts, and if needed their category, prefix and suffix"
                raise InputError(f"pairs: number {number} is {pair!r}", hint=hint)
            if not isinstance((*pair, "")[2], str):
                problem = f"pairs: number {number} has the category {pair[2]}, which is not a text"
                raise InputError(problem, hint="give a text, '' for none")
            examples.append(pair_example(*pair))
        return list(self.score_pair_examples(examples))

    def check(self, examples: Sequence[Example]) -> None:
        """Raise an InputError for examples that cannot be scored."""
        for number, example in enumerate(examples, start=1):
            with _numbered("text", number, example):
                self._scoring.check(example)

    def check_pairs(self, examples: Sequence[Example]) -> None:
        """Raise an InputError for pairs of :func:`read_pairs_to_score` that cannot be scored."""
        if self.settings.bound:
            problem = "bound: pairs are compared by the log-probabilities of their tokens"
            raise InputError(problem, hint="leave it out, or score the texts one by one")
        for number, example in enumerate(examples, start=1):
            with _numbered("pair", number, example):
                for side in self._sides(example):
                    self._scoring.check(side)

    def score_examples(self, examples: Sequence[Example]) -> Iterator[SequenceScore]:
        """Score examples read by the run's codec, in order; all are checked first.

        Nearby sequences of equal length share passes of the model.
        """
        self.check(examples)
        return (score for block in in_blocks(examples, BLOCK) for score in self._scoring.score(block))

    def score_pair_examples(self, examples: Sequence[Example]) -> Iterator[PairScore]:
        """Score pairs of :func:`read_pairs_to_score`; all are checked first."""
        self.check_pairs(examples)
        return (pair for block in in_blocks(examples, BLOCK) for pair in self._pairs(block))

    def _pairs(self, examples: Sequence[Example]) -> Iterator[PairScore]:
        sides = [side for example in examples for side in self._sides(example)]
        scores = self._scoring.score(sides)
        for example, good, bad in zip(examples, scores[::2], scores[1::2], strict=True):
            yield PairScore.of(good, bad, category=example.key, settings=self.settings)

    def _sides(self, example: Example) -> list[Example]:
        """Return the good and the bad text of a pair."""
        good, prefix, suffix = (*example.source, "", "")[:3]
        sides = self._examples([good, example.target[0]], [prefix, prefix], [suffix, suffix])
        return [replace(side, path=example.path, line=example.line) for side in sides]

    def _examples(
        self, texts: Iterable[str], prefixes: Sequence[str] | None, suffixes: Sequence[str] | None = None
    ) -> list[Example]:
        return [
            Example(self._scoring.split_source(prefix, suffix), self._scoring.split(text))
            for text, prefix, suffix in with_contexts(texts, prefixes, suffixes)
        ]


# ------------------------------------------------------------------------------------------------------------- files


def read_texts_to_score(run: Run[Any, Any], path: FilePath) -> Sequence[Example]:
    """Read texts for ``seqwise score``.

    A run reads files in the format of its training data. For Hugging Face models: one text per line; prefix, tab, text,
    and optionally tab and suffix (``.tsv``); objects with ``text`` and optionally ``prefix`` and ``suffix``
    (``.jsonl``); FASTA. Any may be gzipped (``.gz``).
    """
    if isinstance(run.codec, MaskedCodec) or not os.fspath(path).endswith(TABLES + JSON_LINES):
        texts: Sequence[Example] = run.codec.read(path)
        return texts
    columns = (("text",), ("prefix", "text"), ("prefix", "text", "suffix"))
    examples = (
        Example(_around(fields.get("prefix", ""), fields.get("suffix", "")), (fields["text"],), os.fspath(path), number)
        for number, fields in _each_row(path, ("text",), ("prefix", "suffix"), columns=columns)
    )
    return require_some(spooled(examples), path)


def _around(prefix: str, suffix: str) -> tuple[str, ...]:
    """Return the context of a text, as the source of an example."""
    return (prefix, suffix) if suffix else (prefix,)


def read_pairs_to_score(path: FilePath, *, category: str = "UID") -> Sequence[Example]:
    """Read pairs of a good and a bad text, optionally with a category, as examples whose key is the category.

    A table has good, bad and optionally a category, separated by tabs; a ``.jsonl`` file has objects with
    ``sentence_good``, ``sentence_bad``, optionally ``prefix`` and ``suffix``, and the category under a given key (as in
    BLiMP).
    """
    return require_some(spooled(_each_pair(path, category)), path)


def _each_pair(path: FilePath, category: str) -> Iterator[Example]:
    needed, columns = ("sentence_good", "sentence_bad"), ("sentence_good", "sentence_bad", category)
    optional = (category, "prefix", "suffix")
    for number, fields in _each_row(path, needed, optional, columns=(needed, columns)):
        pair = (fields["sentence_good"], fields["sentence_bad"], *(fields.get(name, "") for name in optional))
        yield replace(pair_example(*pair), path=os.fspath(path), line=number)


def pair_example(good: str, bad: str, category: str = "", prefix: str = "", suffix: str = "") -> Example:
    """Return a pair as an example: source good and the context, target bad, key the category."""
    return Example((good, *_around(prefix, suffix)), (bad,), key=category)


def _each_row(
    path: FilePath, needed: Sequence[str], more: Sequence[str], *, columns: Sequence[Sequence[str]]
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield line numbers and fields of a table or a file of JSON objects, skipping blank lines."""
    as_json = os.fspath(path).endswith(JSON_LINES)
    for number, line in read_lines(path):
        if not line.strip():
            continue
        place: dict[str, Any] = {"path": path, "line": number}
        if not as_json:
            cells = line.split("\t")
            names = next((row for row in columns if len(row) == len(cells)), None)
            if names is None:
                expected = " or ".join(" TAB ".join(row) for row in columns)
                raise InputError(count_of(len(cells), "column"), **place, hint=f"write {expected}")
            yield number, dict(zip(names, cells, strict=True))
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError("this is not JSON", **place, hint="write one object per line") from None
        if not isinstance(record, dict):
            raise InputError("this is not a JSON object", **place, hint="write one object per line")
        for name in needed:
            if not isinstance(record.get(name), str):
                hint = f"each object needs {' and '.join(needed)}"
                raise InputError(f"there is no text under {name!r}", **place, hint=hint)
        known = {name: record[name] for name in (*needed, *more) if record.get(name) is not None}
        yield number, {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}


# ------------------------------------------------------------------------------------------------------- two back ends


@dataclass(frozen=True)
class _Scoring:
    """Scoring of a run: the check of an example, the scores of a block, and the splitting of a text."""

    kind: str
    check: Callable[[Example], Any]
    score: Callable[[Sequence[Example]], list[SequenceScore]]
    split: Callable[[str], tuple[str, ...]]
    split_source: Callable[[str, str], tuple[str, ...]]


def _run_of(model: Any, tokenizer: Any) -> Run[Any, Any]:
    from seqwise.runs.loading import load_run_to_score, run_to_score

    if isinstance(model, str | os.PathLike):
        return load_run_to_score(model)
    if isinstance(model, Run):
        return run_to_score(model)
    if tokenizer is None:
        raise InputError("a model without its tokenizer", hint="write Scorer(model, tokenizer), or give a folder")
    from seqwise.hugging_face.scoring import writes_text

    if writes_text(model):
        return Run(None, model, LanguageModelCodec(tokenizer))
    return Run(None, *masked_text_codec(model, tokenizer))


def _scoring_of(run: Run[Any, Any], settings: ScoringSettings) -> _Scoring:
    if isinstance(run.codec, MaskedTextCodec):
        return _of_texts(run.model, run.codec.codec.tokenizer, settings)
    if isinstance(run.codec, LanguageModelCodec):
        return _of_texts(run.model, run.codec.tokenizer, settings)
    if not isinstance(run.codec, SequenceCodec):
        raise InputError("the run predicts outputs", hint="use a masked model or a Hugging Face model to score")
    return _of_sequences(run, settings)


def _of_texts(model: Any, tokenizer: Any, settings: ScoringSettings) -> _Scoring:
    """Score raw texts under a Hugging Face model."""
    from seqwise.hugging_face.scoring import ScoredText, text_scorer

    scorer = text_scorer(model, tokenizer, settings)

    def prepare(example: Example) -> ScoredText:
        prefix, suffix = (*example.source, "", "")[:2]
        with placed(**example.place):
            return scorer.prepare(example.target[0] if example.target else "", prefix, suffix)

    def score(examples: Sequence[Example]) -> list[SequenceScore]:
        with room_for(f"{settings.max_tokens:,} tokens at once", hint="give a smaller --max-tokens"):
            scores = scorer.scores([prepare(example) for example in examples])
        return [SequenceScore(**vars(score), example=example) for score, example in zip(scores, examples, strict=True)]

    return _Scoring(scorer.kind, prepare, score, lambda text: (text,), _around)


def _of_sequences(run: MaskedRun, settings: ScoringSettings) -> _Scoring:
    """Score the sequences of a masked model of seqwise."""
    refuse_ignored(settings, "masked")
    usual = ScoringSettings()
    for name in ("bound", "window", "words", "separator"):
        if getattr(settings, name) != getattr(usual, name):
            raise InputError(f"{name}: it is for Hugging Face models", hint="leave it out")

    def check(example: Example) -> None:
        (encoded,) = run.codec.encode([example])
        if not encoded.target_ids:
            raise InputError("there is no sequence to score", **example.place)

    def score(examples: Sequence[Example]) -> list[SequenceScore]:
        return _score_block(run, examples, settings)

    def split(text: str) -> tuple[str, ...]:
        return split_text(text, file_units(run.codec.units))

    def split_source(prefix: str, suffix: str) -> tuple[str, ...]:
        if suffix:
            raise InputError("suffix: it is for Hugging Face masked models", hint="leave it out")
        return split_text(prefix, file_units(run.codec.source_units))

    return _Scoring("masked", check, score, split, split_source)


@torch.no_grad()
def _score_block(run: MaskedRun, examples: Sequence[Example], settings: ScoringSettings) -> list[SequenceScore]:
    model, codec = run.model, run.codec
    device = next(model.parameters()).device
    block = codec.encode(examples)
    words = [codec.words(example.target_ids) for example in block]
    # Sequences of one length are ordered by the lengths of their sources.
    order = sorted(range(len(block)), key=lambda place: block[place].lengths[0])
    lengths = [len(block[place].target_ids) for place in order]
    scored: dict[int, torch.Tensor] = {}

    def most_rows(length: int) -> int:
        return max(1, settings.max_tokens // length)

    for group in of_one_length(lengths, lambda length: most_rows(length) // length):
        part, length = [order[place] for place in group], lengths[group[0]]
        targets_BT = torch.tensor([block[place].target_ids for place in part], device=device)
        context = encode_sources(model, [block[place].source_ids for place in part])
        words_BT = torch.tensor([words[place] for place in part], device=device)
        rows = most_rows(length)
        with room_for(f"{min(rows, length)} sequences of {length} tokens", hint="give a smaller --max-tokens"):
            options: dict[str, Any] = {"words_BT": words_BT, "pieces": settings.pieces, "max_rows": rows}
            log_probs_BT = pseudo_log_likelihood(model, targets_BT, context=context, **options)
        scored |= zip(part, log_probs_BT.cpu(), strict=True)
    return [
        _sequence_score(codec, example, ids.target_ids, scored[place], words[place])
        for place, (example, ids) in enumerate(zip(examples, block, strict=True))
    ]


def _sequence_score(
    codec: SequenceCodec, example: Example, ids: Sequence[int], log_probs_T: torch.Tensor, words: tuple[int, ...]
) -> SequenceScore:
    if bool(log_probs_T.isnan().any()):
        problem = "the model's scores of the sequence are not numbers"
        raise InputError(problem, **example.place, hint="check its weights")
    tokens, text = codec.decode(ids), codec.example_text(example)
    options: dict[str, Any] = {"words_T": words, "spans": located(codec.pieces_of(tokens), text), "example": example}
    unknown = sum(token == codec.unknown_id for token in ids)
    return SequenceScore(tokens, log_probs_T, text, num_unknown=unknown, **options)
