"""Log-linear language models that re-rank translations: text, lists of candidates, and one cell for each model.

The models learn English from Europarl and from the English sides of those Tatoeba pairs that the translator does not
learn from. They re-rank the 10-best lists of a small German to English translator for Tatoeba's development and test
sentences. The paper's translator needs a language model, but a neural decoder has learnt its own. So the first score of
a candidate is not the translator's, but that of a channel model: the log-probability of the German given the English,
which does not score the English (Yu et al., 2017). Weight and word bonus of each language model are chosen on the
development lists. All share one translator and one channel model; seeds are those of the language models. Texts are
split into words and punctuation marks.

A batch has 1,000 positions, of which the paper's smallest fraction is one. The text has 300,000 positions, the paper's
10 million words. Every language model is one cell, trained in a process of its own on one thread; seconds are CPU time.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from reproductions import Setup
from reproductions.andreas_klein_2015.language_model import (
    LanguageModel,
    LanguageModelSettings,
    fit_language_model,
    score_lists,
    score_sentences,
)
from reproductions.andreas_klein_2015.log_linear import LogLinear
from reproductions.andreas_klein_2015.reranking import Candidate, Tuned, candidate_table, tune
from reproductions.andreas_klein_2015.streams import Sentence, build_vocabulary, read_sentences
from reproductions.cells import CellJob, fingerprint_of, read_or_make, run_cells, trained_on
from reproductions.corpora import readers as corpora
from reproductions.systems import Data, System, cells_of
from reproductions.tuning import place_of, with_early_stopping
from reproductions.workers import Report
from seqwise.data.batches import collate
from seqwise.data.readers import Example, read_pairs
from seqwise.data.spooled import in_blocks
from seqwise.data.subwords import join_pieces
from seqwise.data.vocabulary import Vocabulary
from seqwise.decoding import evaluation_mode
from seqwise.evaluation.metrics import Sums
from seqwise.evaluation.signature import Signature, sha256_of_examples, sign
from seqwise.evaluation.translation import bleu
from seqwise.objectives.objective import teacher_forced_logits
from seqwise.runs.decoder_choice import choose_decoder
from seqwise.runs.loading import load_run
from seqwise.runs.run import OutputRun, predict
from seqwise.runs.settings import train_settings

PARTS = ("dev", "test")
"""Parts of the lists: weights are chosen on the first and measured on the second."""

WORD_BONUSES = (-1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
BATCH = 1000
WORDS = re.compile(r"\w+|[^\w\s]")
TRANSLATOR = train_settings(
    task="transduce", objective="cross-entropy", minimum_count=2, embedding_size=96, hidden_size=160, dropout=0.2,
    beam_size=3, batch_size=32, learning_rate=2e-3, save_every=500,
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """Amounts of training and test data at a scale."""

    positions: int  # of the text of each language model, approximately
    num_weights: int  # of its table
    translator_epochs: float  # passes over the translation pairs, of the translator and of the channel model
    candidates: int = 10  # of each list, and slots of the beam that finds them
    held_out: int = 500  # sentences of each source of text on which normalisation is measured
    # Largest number of passes over the text; training stops after the first that is no better on the development lists.
    most_epochs: int = 1
    rates: tuple[float, ...] = (1.0,)  # factors of the learning rate that are tried with the first seed

    @property
    def stops_early(self) -> bool:
        """Whether the development data end training."""
        return self.most_epochs > 1


SIZES = {
    "cpu": Size(positions=300_000, num_weights=2**24, translator_epochs=5.0),
    "converged": Size(
        positions=300_000, num_weights=2**24, translator_epochs=15.0, most_epochs=8, rates=(2.0, 1.0, 0.5)
    ),
}
"""Sizes by scale; at "cpu", a table takes half an hour on one core."""


@dataclass(frozen=True)
class Row:
    """Row of a table."""

    key: str  # of its cells
    name: str  # as the table prints it
    settings: LanguageModelSettings  # of the language model; size, batch and seed are filled in
    published: Mapping[str, float] = field(default_factory=dict)  # the paper's numbers by measure, where stated


@dataclass(frozen=True)
class Text:
    """Training text and held-out text; ``sources`` names each file with its SHA-256."""

    train: list[Sentence]
    held_out: list[Sentence]
    vocabulary: Vocabulary
    sources: tuple[str, ...] = ()

    @property
    def num_positions(self) -> int:
        """Return the number of words and sentence ends in the training text."""
        return sum(len(sentence.tokens) + 1 for sentence in self.train)

    def digest(self) -> str:
        """Return the SHA-256 of both texts and the vocabulary."""
        return hashlib.sha256(
            (_digest(self.train) + _digest(self.held_out) + "\n".join(self.vocabulary.tokens)).encode()
        ).hexdigest()


@dataclass(frozen=True)
class Translations:
    """Lists of candidates for the sentences of "dev" and "test", with all their reference translations."""

    candidates: Mapping[str, list[list[Candidate]]]
    references: Mapping[str, list[list[str]]]

    @cached_property
    def counts(self) -> dict[str, Sums]:
        """BLEU's sums of every candidate, by part."""
        counts = {}
        for part, lists in self.candidates.items():
            texts = [candidate.text for candidates in lists for candidate in candidates]
            together = zip(lists, self.references[part], strict=True)
            counts[part] = bleu(texts, [options for candidates, options in together for _ in candidates])
        return counts

    def digest(self) -> str:
        """Return the SHA-256 of the candidates."""
        plain = {
            part: [[asdict(candidate) for candidate in candidates] for candidates in lists]
            for part, lists in self.candidates.items()
        }
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Cell:
    """Measurements of one language model."""

    train_seconds: float  # CPU time on one thread, without that of measuring
    scores: Mapping[str, list[list[float]]]  # unnormalised log-scores of all candidates of a part, list by list
    # For each held-out sentence, its unnormalised score and log Z of each position.
    held_out: list[tuple[float, list[float]]]
    on_dev: float  # BLEU on the development lists, with the weight and word bonus that are chosen there
    signature: Signature
    learning_rate: float | None = None  # if chosen on the development lists
    place_of_rate: str = ""  # among the rates tried: "lowest", "highest" or ""


class Trial(NamedTuple):
    """Row with one of the learning rates and a seed."""

    key: str  # of the row
    factor: float  # of its learning rate
    seed: int


def split_words(text: str) -> tuple[str, ...]:
    """Split text into words and punctuation marks."""
    return tuple(WORDS.findall(text))


@cache
def load_text(scale: str) -> Text:
    """Read English from Europarl and Tatoeba, shuffled, cut to the size; V = 15,403 is that of the whole text."""
    size = SIZES[scale]
    files = sorted(corpora.corpus("lm-text-en").glob("europarl-*"))
    europarl = [Sentence(split_words(" ".join(sentence.tokens))) for sentence in read_sentences(files)]
    tatoeba = [Sentence(split_words(text)) for text in unseen_english()]
    test = [Sentence(split_words(options[0])) for options in corpora.translation_references("test")]
    known = [*europarl[: -size.held_out], *tatoeba]
    order = np.random.default_rng(0).permutation(len(known))
    ends = np.cumsum([len(known[place].tokens) + 1 for place in order])
    chosen = order[: int(np.searchsorted(ends, size.positions)) + 1]
    return Text(
        [known[place] for place in chosen],
        [*europarl[-size.held_out :], *test[: size.held_out]],
        build_vocabulary(known, minimum_count=2),
        tuple(map(corpora.source_of, (*files, _tatoeba()))),
    )


def unseen_english() -> list[str]:
    """Read the English sides of Tatoeba's training pairs that the translator does not learn from, each once."""
    pairs = read_pairs(_tatoeba(), source_units="text", target_units="text")
    seen = {pair.target[0] for pair in pairs[:: corpora.EVERY]}
    return [text for text in dict.fromkeys(pair.target[0] for pair in pairs) if text not in seen]


def _tatoeba() -> Path:
    return corpora.corpus("mt-de-en-tatoeba") / "train.tsv.gz"


def translations(setup: Setup) -> Translations:
    """Train the translator and the channel model, or read them back, and return the lists that they make and score."""
    size = SIZES[setup.scale]
    settings = TRANSLATOR.with_changes(epochs=size.translator_epochs)
    if size.stops_early:
        settings = with_early_stopping(settings, len(corpora.translation().train))
    sources = {"translator": corpora.translation, "channel": reversed_translation}
    trainings = [
        cell
        for name, load_data in sources.items()
        for cell in cells_of([System(name, name, settings)], load_data, setup.folder, decoders=("greedy",))
    ]
    run_cells(trainings, progress=setup.progress)
    folders = [setup.folder / name for name in sources]
    path = folders[0] / "lists.json"
    made_by = [(folder / "model" / "manifest.json").read_text("utf-8") for folder in folders]
    fingerprint = fingerprint_of(*made_by, str(size.candidates))

    def make() -> dict[str, Any]:
        translator, channel = map(load_run, folders)
        data = corpora.translation()
        parts = (("dev", data.dev), ("test", data.test))
        return {"lists": {part: _lists(translator, channel, examples, size.candidates) for part, examples in parts}}

    lists = read_or_make(path, fingerprint, make)["lists"]
    return Translations(
        {part: [[Candidate(*each) for each in candidates] for candidates in lists[part]] for part in PARTS},
        {part: corpora.translation_references(part) for part in PARTS},
    )


@cache
def reversed_translation() -> Data:
    """Read the translator's pairs in reverse, English to German."""
    data = corpora.translation()
    train, dev, test = (
        [replace(pair, source=pair.target, target=pair.source) for pair in pairs]
        for pairs in (data.train, data.dev, data.test)
    )
    return replace(data, train=train, dev=dev, test=test)


def _lists(
    translator: OutputRun, channel: OutputRun, examples: Sequence[Example], count: int
) -> list[list[tuple[str, float]]]:
    """Return the translator's candidates for each example, with the scores of the channel model."""
    decoder = choose_decoder(translator.settings, "beam", beam_size=count)
    # The channel model cannot read an empty source, which is kept only if the list has no other output.
    candidates = [
        [output.tokens for output in outputs if output.tokens] or [()]
        for outputs in predict(translator, examples, decoder, n_best=count)
    ]
    pairs = [
        Example(tokens, example.source)
        for example, outputs in zip(examples, candidates, strict=True)
        for tokens in outputs
        if tokens
    ]
    scores = iter(channel_scores(channel, pairs))
    return [[(join_pieces(tokens), next(scores) if tokens else 0.0) for tokens in outputs] for outputs in candidates]


def channel_scores(run: OutputRun, pairs: Sequence[Example], *, batch_size: int = 128) -> list[float]:
    """Return the log-probability of each target given its source, without the pieces that the run cannot write."""
    writable = run.codec.writable
    encoded = run.codec.encode(
        [replace(pair, target=tuple(piece for piece in pair.target if piece in writable)) for pair in pairs]
    )
    scores: list[float] = []
    with evaluation_mode(run.model), torch.no_grad():
        for block in in_blocks(encoded, batch_size):
            batch = collate(block)
            logits_BTV = teacher_forced_logits(run.model, run.model.encode(batch), batch)
            losses_BT = functional.cross_entropy(logits_BTV.mT, batch.targets_BT, reduction="none")
            scores += (-losses_BT.sum(1)).tolist()
    return scores


def tuned_on_dev(lists: Translations, scores: Mapping[str, list[list[float]]]) -> Tuned:
    """Choose weight and word bonus of a language model on the development lists."""
    table = candidate_table(lists.candidates["dev"], scores["dev"])
    return tune(table, lists.counts["dev"], word_bonuses=WORD_BONUSES)


def measure_rows(
    rows: Sequence[Row], text: Text, lists: Translations, setup: Setup, *, size: Size
) -> dict[str, list[Cell]]:
    """Train and measure every row with every seed, or read finished cells back; return cells by the key of the row.

    The learning rate of a row is the one with which its first seed was best on the development lists.
    """
    data, by_key = text.digest() + lists.digest(), {row.key: row for row in rows}

    def settings_of(trial: Trial) -> LanguageModelSettings:
        key, factor, seed = trial
        settings = by_key[key].settings
        return settings.replace(
            num_weights=size.num_weights,
            batch_size=BATCH,
            seed=seed,
            epochs=size.most_epochs,
            learning_rate=factor * settings.learning_rate,
        )

    def job(trial: Trial) -> CellJob:
        settings, (key, _, seed) = settings_of(trial), trial
        name = f"{key}-{settings.learning_rate:g}"
        return CellJob(
            f"{name}, seed {seed}",
            setup.folder / f"seed-{seed}" / f"{name}.json",
            partial(fingerprint_of, json.dumps(settings.model_dump(), sort_keys=True), data),
            partial(_train_and_score, by_key[key].name, settings, text, lists),
        )

    def cell(trial: Trial, record: Mapping[str, Any]) -> Cell:
        held_out = [(float(score), list(values)) for score, values in record["held_out"]]
        numbers = record["train_seconds"], record["scores"], held_out, record["on_dev"]
        measured = Cell(*numbers, Signature(**record["signature"]))
        if len(size.rates) == 1:
            return measured
        place = place_of(trial.factor, size.rates)
        return replace(measured, learning_rate=settings_of(trial).learning_rate, place_of_rate=place)

    def run(trials: Sequence[Trial]) -> dict[Trial, Cell]:
        records = run_cells([job(trial) for trial in trials], progress=setup.progress)
        return {trial: cell(trial, record) for trial, record in zip(trials, records, strict=True)}

    first = setup.seeds[0]
    tried = run([Trial(key, factor, first) for key in by_key for factor in size.rates])
    chosen = {key: max(size.rates, key=lambda rate: tried[Trial(key, rate, first)].on_dev) for key in by_key}
    # Seed by seed, so that an interrupted table has complete seeds.
    found = run([Trial(key, chosen[key], seed) for seed in setup.seeds for key in by_key])
    return {key: [found[Trial(key, chosen[key], seed)] for seed in setup.seeds] for key in by_key}


def _train_and_score(
    name: str, settings: LanguageModelSettings, text: Text, lists: Translations, report: Report
) -> dict[str, Any]:
    model = LogLinear(vocabulary_size=len(text.vocabulary), num_weights=settings.num_weights)
    run, best, seconds = LanguageModel(model, text.vocabulary), {"on_dev": -math.inf}, 0.0
    started = time.process_time()

    def on_step(step: int, steps: int, loss: float) -> None:
        if step % 20 == 0 or step == steps:
            report(step, steps, f"loss {loss:.3f}")

    def is_enough() -> bool:
        """Measure the model, and keep the measurements if it is the best so far; otherwise end training."""
        nonlocal best, seconds, started
        seconds += time.process_time() - started
        measured = _measure(run, text, lists)
        is_better = measured["on_dev"] > best["on_dev"]
        best = measured if is_better else best
        started = time.process_time()
        return not is_better

    fit_language_model(
        model,
        lambda: text.train,
        text.vocabulary,
        settings,
        num_positions=text.num_positions,
        on_step=on_step,
        is_enough=is_enough,
    )
    training = trained_on(_as_examples(text.train), text.sources)
    # Made here and stored with the numbers, so that a cell that is read back later is not signed as new.
    signature = sign(name, seeds=[settings.seed], data=_digest(text.held_out), training=training)
    return {**best, "train_seconds": seconds, "signature": asdict(signature)}


def _measure(run: LanguageModel, text: Text, lists: Translations) -> dict[str, Any]:
    """Score all lists and the held-out text."""

    def scores_of(part: str) -> list[list[float]]:
        candidates = lists.candidates[part]
        return score_lists(run, ([Sentence(split_words(each.text)) for each in outputs] for outputs in candidates))

    scores = {part: scores_of(part) for part in PARTS}
    held_out = [
        (score.unnormalized, [round(value, 5) for value in score.log_partitions_T.tolist()])
        for score in score_sentences(run, text.held_out)
        if score.log_partitions_T is not None
    ]
    return {"on_dev": tuned_on_dev(lists, scores).value, "scores": scores, "held_out": held_out}


def _digest(sentences: Iterable[Sentence]) -> str:
    return sha256_of_examples(_as_examples(sentences))


def _as_examples(sentences: Iterable[Sentence]) -> Iterator[Example]:
    return (Example(sentence.tokens, ()) for sentence in sentences)
