"""Measures of a run on data, by decoder, and warnings about unreadable or unwritable tokens."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Any, Literal

import torch

from seqwise.data.batches import EncodedExample, collate
from seqwise.data.readers import Example, line_of_token
from seqwise.data.spooled import in_blocks
from seqwise.data.subwords import normalize_text
from seqwise.decoding import Decoder, evaluation_mode
from seqwise.errors import InputError
from seqwise.evaluation.entities import entity_f1, macro_entity_f1
from seqwise.evaluation.metrics import (
    Sums,
    length_ratio,
    sequence_accuracy,
    token_accuracy,
    token_error_rate,
    word_error_rate,
)
from seqwise.evaluation.translation import bleu, bleu_signature
from seqwise.models.protocols import reads_left_to_right
from seqwise.objectives.self_normalization import log_partitions
from seqwise.runs.advice import advise, best_of
from seqwise.runs.decoder_choice import choose_decoder, decoders_for, usual_decoder
from seqwise.runs.run import OutputRun, Prediction, predict, readable, reading_problems

Tokens = tuple[str, ...]


ENTITY_LABEL = re.compile(r"O|[BIES]-.*", re.DOTALL)


def tagging_measures(predictions: Sequence[Tokens], references: Sequence[Tokens]) -> dict[str, Sums]:
    """Measure accuracy by sequence and by label, and micro- and macro-averaged F1 if labels name entities."""
    measures: dict[str, Sums] = {
        "sequence accuracy": sequence_accuracy(predictions, references),
        "accuracy": token_accuracy(predictions, references),
    }
    if _name_entities({label for labels in references for label in labels}):
        measures["entity F1"] = entity_f1(predictions, references)
        measures["macro-averaged entity F1"] = macro_entity_f1(predictions, references)
    return measures


def _name_entities(labels: Set[str]) -> bool:
    """Whether all labels are O or entity labels, and not all are O."""
    return all(map(ENTITY_LABEL.fullmatch, labels)) and any(label.startswith(("B-", "I-")) for label in labels)


def transduction_measures(predictions: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> dict[str, Sums]:
    """Measure wrong outputs, token errors against the nearest reference, and the length ratio."""
    return {
        "word error": word_error_rate(predictions, references),
        "token error": token_error_rate(predictions, references),
        "length ratio": length_ratio(predictions, [options[0] for options in references]),
    }


def measure(run: OutputRun, examples: Sequence[Example], decoder: str) -> dict[str, Sums]:
    """Decode examples and measure the outputs; unreadable sources count as wrong.

    In transduction, repeated inputs are decoded once, and each of their targets is correct. Targets of subwords are
    compared as texts. BLEU needs sacrebleu, and targets of words or subwords.
    """
    return measure_outputs(run, examples, decode(run, examples, choose_decoder(run.settings, decoder)))


def decode(
    run: OutputRun,
    examples: Sequence[Example],
    decoder: Decoder,
    *,
    search: Callable[[OutputRun, Sequence[Example], Decoder], list[list[Prediction]]] = predict,
) -> list[Tokens]:
    """Return an output for each example of a tagger or distinct source of a transducer; () for unreadable ones.

    ``search`` finds them: ``predict``, or ``predict_together`` in all processes.
    """
    inputs = distinct_inputs(run, examples)
    outputs = iter(search(run, readable(run, inputs), decoder))
    return [next(outputs)[0].tokens if problem is None else () for problem in reading_problems(run, inputs)]


def distinct_inputs(run: OutputRun, examples: Sequence[Example]) -> Sequence[Example]:
    """Return the examples of a tagger, or the first example of each distinct source of a transducer."""
    return examples if run.settings.task == "tag" else references_by_source(examples)[0]


def measure_outputs(run: OutputRun, examples: Sequence[Example], written: Sequence[Tokens]) -> dict[str, Sums]:
    """Measure outputs, one for each example of a tagger or distinct source of a transducer."""
    if run.settings.task == "tag":
        return tagging_measures(written, [example.target for example in examples])
    _, references = references_by_source(examples)
    if not run.codec.writes_text:
        measures = transduction_measures(written, references)
    else:
        outputs = [tuple(run.codec.target_text(tokens).split()) for tokens in written]
        words = [[tuple(text.split()) for text in options] for options in _texts(run, references)]
        measures = transduction_measures(outputs, words)
        del measures["word error"]  # hardly any whole text is right
    tokenize = _bleu_tokenizer(run)
    if tokenize is not None:
        texts = [run.codec.target_text(tokens) for tokens in written]
        measures["BLEU"] = bleu(texts, _texts(run, references), tokenize=tokenize)
    return measures


def _bleu_tokenizer(run: OutputRun) -> str | None:
    """Return the tokenizer of BLEU, "none" for outputs of words, or None without BLEU."""
    if not _writes_words(run) or importlib.util.find_spec("sacrebleu") is None:
        return None
    return "13a" if run.codec.writes_text else "none"


def _writes_words(run: OutputRun) -> bool:
    return run.settings.task == "transduce" and run.settings.target_units != "characters"


def missing_bleu(run: OutputRun) -> str | None:
    """Return a note if BLEU is missing because sacrebleu is not installed."""
    if not _writes_words(run) or importlib.util.find_spec("sacrebleu") is not None:
        return None
    return "BLEU is left out because sacrebleu is not installed; pip install 'seqwise[translation]'"


def _texts(run: OutputRun, references: Sequence[Sequence[Tokens]]) -> list[list[str]]:
    """Return distinct references as texts, normalized as for subwords."""
    normalize = normalize_text if run.codec.writes_text else str
    return [list(dict.fromkeys(normalize(" ".join(tokens)) for tokens in options)) for options in references]


def signatures(run: OutputRun, examples: Sequence[Example]) -> dict[str, str]:
    """Return the signatures of other libraries' measures, by title."""
    tokenize = _bleu_tokenizer(run)
    if tokenize is None:
        return {}
    return {"BLEU": bleu_signature(_texts(run, references_by_source(examples)[1]), tokenize=tokenize)}


def references_by_source(examples: Sequence[Example]) -> tuple[list[Example], list[list[Tokens]]]:
    """Return the first example of each distinct source, and all its targets."""
    firsts: dict[Tokens, Example] = {}
    references: dict[Tokens, list[Tokens]] = {}
    for example in examples:
        firsts.setdefault(example.source, example)
        references.setdefault(example.source, []).append(example.target)
    return list(firsts.values()), list(references.values())


def decisive(titles: Collection[str], *, subwords: bool = False) -> tuple[str, int]:
    """Return the measure that decides which decoder is best, and +1 if higher is better, else -1.

    BLEU decides only for texts of subwords.
    """
    order = {"BLEU": 1} if subwords else {}
    order |= {"entity F1": 1, "accuracy": 1, "word error": -1, "token error": -1}
    return next((title, sign) for title, sign in order.items() if title in titles)


def measure_decoders(
    run: OutputRun, examples: Sequence[Example], *, on_measured: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Measure all decoders on development data, with advice and the mean and variance of log Z.

    log Z is measured on targets that the run can write; mean and variance are None if there are none. ``on_measured``
    is called with the number of decoders done and the total.
    """
    decoders = decoders_for(run.settings)
    measures_by_decoder: dict[str, dict[str, Sums]] = {}
    for done, name in enumerate(decoders, start=1):
        if on_measured is not None:
            on_measured(done - 1, len(decoders))
        measures_by_decoder[name] = measure(run, examples, name)
    if on_measured is not None:
        on_measured(len(decoders), len(decoders))
    title, sign = decisive(measures_by_decoder["beam"], subwords=run.codec.writes_text)
    usual = usual_decoder(run.settings)
    log_partitions_N = log_partitions_of(run, run.codec.encode(known_targets(run, examples)))
    mean = log_partitions_N.mean().item() if len(log_partitions_N) else None
    return {
        "decoders": {
            name: {title: sums.value for title, sums in row.items()} for name, row in measures_by_decoder.items()
        },
        "best decoder": best_of(measures_by_decoder, title, sign, usual=usual),
        "best by": title,
        "advice": advise(
            measures_by_decoder,
            title,
            sign,
            settings=run.settings,
            usual=usual,
            mean_log_partition=mean,
            left_to_right=reads_left_to_right(run.model),
        ),
        "signatures": signatures(run, examples),
        "mean log Z": mean,
        "variance of log Z": log_partitions_N.var(correction=0).item() if len(log_partitions_N) else None,
    }


def log_partitions_of(run: OutputRun, encoded: Sequence[EncodedExample], *, batch_size: int = 256) -> torch.Tensor:
    """Compute log Z at every gold position, in nats, in one dimension."""
    device = run.model.embedding_VD.device
    with evaluation_mode(run.model):
        parts = [log_partitions(run.model, collate(block).to(device)) for block in in_blocks(encoded, batch_size)]
    return torch.cat([torch.empty(0), *(part.cpu() for part in parts)])


def known_targets(run: OutputRun, examples: Sequence[Example]) -> list[Example]:
    """Return the examples whose sources the run can read and whose targets it can write."""
    known = run.codec.writable
    splits = zip(examples, run.codec.split(examples), strict=True)
    return readable(run, [example for example, split in splits if known.issuperset(split.target)])


def gold_ids(run: OutputRun, example: Example) -> tuple[int, ...] | None:
    """Return the ids of a target with its end token, V for tokens that the run cannot write; None without a target."""
    if not example.target:
        return None
    if known_targets(run, [example]):
        return run.codec.encode([example])[0].target_ids
    writable, end, unknown = run.codec.writable, run.model.end, run.model.embedding_VD.shape[0]
    ids = {token: place for place, token in enumerate(run.codec.target_vocabulary.tokens) if token in writable}
    written = (ids.get(token, unknown) for token in run.codec.split([example])[0].target)
    return (*written, *(() if end is None else (end,)))


def step_names(run: OutputRun, example: Example) -> list[str]:
    """Return the tokens that a tagger reads, one before each label; none for other models."""
    return list(example.source) if run.settings.task == "tag" else []


def gold_text(run: OutputRun, example: Example) -> str:
    """Return the text of a target with unknown tokens marked."""
    tokens = run.codec.units_of_target(example)
    known = run.codec.writable
    unseen = dict.fromkeys(token for token in tokens if token not in known)
    if run.codec.writes_text:
        return " ".join(example.target) + (f" (unknown: {', '.join(unseen)})" if unseen else "")
    return run.codec.target_text(f"{token} (unknown)" if token in unseen else token for token in tokens)


def unknown_tokens(run: OutputRun, examples: Sequence[Example]) -> Iterator[tuple[Example, int, str]]:
    """Yield target tokens that the run cannot write, each with its example and position."""
    known = run.codec.writable
    for example in examples:
        for place, token in enumerate(run.codec.units_of_target(example)):
            if token not in known:
                yield example, place, token


def unknown_targets(run: OutputRun, examples: Sequence[Example]) -> str | None:
    """Return a warning about target tokens that do not occur in the training data, or None."""
    unknown = list(unknown_tokens(run, examples))
    if not unknown:
        return None
    example, place, token = unknown[0]
    line = line_of_token(example, place) if run.settings.task == "tag" else example.line
    total = sum(len(run.codec.units_of_target(each)) for each in examples)
    were = "was never seen in training and counts" if len(unknown) == 1 else "were never seen in training and count"
    counts = f"{len(unknown):,} of {total:,} {run.codec.target_things} {were} as wrong"
    return f"{counts}; the first is {example.path}:{line}: '{token[:100]}'"


def changed_targets(run: OutputRun, examples: Sequence[Example]) -> str | None:
    """Return a warning if the run's tokenizer changes a tenth of a sample of the targets or more, else None."""
    if not run.codec.writes_text:
        return None
    sample = examples[:: -(-len(examples) // 100) or 1]
    texts = [normalize_text(" ".join(example.target)) for example in sample]
    pairs = zip(texts, (run.codec.target_text(split.target) for split in run.codec.split(sample)), strict=True)
    changed = [(text, written) for text, written in pairs if written != text]
    if 10 * len(changed) < max(len(sample), 1):
        return None
    text, written = (repr(side[:100]) for side in changed[0])
    share = f"{len(changed)} of {len(sample)} sampled targets"
    return f"the tokenizer changes {share}, so no output can equal them; the first is {text}, and becomes {written}"


def require_known_target(run: OutputRun, examples: Sequence[Example]) -> None:
    """Raise an InputError if the run knows no token of the targets."""
    known = run.codec.writable
    first: tuple[Example, str] | None = None
    for example in examples:
        for token in run.codec.units_of_target(example):
            if token in known:
                return
            first = first or (example, token)
    if first is not None:
        example, token = first
        problem = f"the run knows none of the {run.codec.target_things} in this file (the first is {token[:100]!r})"
        hint = (
            "give a token and its label on each line, in the columns of the training data"
            if run.settings.task == "tag"
            else "give sources and targets like those of the training data, separated by a tab"
        )
        raise InputError(problem, hint=hint, **example.place)


def unread_sources(
    run: OutputRun,
    examples: Sequence[Example],
    *,
    handled: Literal["counted as wrong", "left out"] = "counted as wrong",
) -> str | None:
    """Return a warning about unreadable sources, or None; raise an InputError if all are unreadable."""
    problems = [problem for problem in reading_problems(run, examples) if problem is not None]
    if not problems:
        return None
    if len(problems) == len(examples):
        raise problems[0]
    inputs = f"{len(problems):,} of {len(examples):,} inputs"
    return f"{inputs} could not be read ({handled}); the first is {problems[0]}"


def unknown_sources(run: OutputRun, examples: Sequence[Example]) -> str | None:
    """Return a warning if most source tokens are unknown to the run, or None."""
    encoded_examples = run.codec.encode_sources(readable(run, examples))
    ids = [token for encoded in encoded_examples for token in run.codec.source_tokens(encoded)]
    unknown_id, total = run.codec.source_vocabulary.unknown_id, len(ids)
    unknown = 0 if unknown_id is None else ids.count(unknown_id)
    if 2 * unknown <= total:
        return None
    place = f" in {examples[0].path}" if examples[0].path else ""
    described = f"the run does not know {unknown:,} of {total:,} source tokens{place}"
    return f"{described}: are they in the language of the training data?"
