"""Training of masked models, from a file of sequences to a run folder, and their measures."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seqwise.data.batches import EncodedExample, collate
from seqwise.data.readers import Example
from seqwise.data.spooled import in_blocks
from seqwise.data.summary import overlap_warning
from seqwise.data.tokenizer import Tokenizer, reading_tokenizer, writing_tokenizer
from seqwise.data.vocabulary import Vocabulary
from seqwise.decoding import evaluation_mode
from seqwise.errors import InputError, warn
from seqwise.objectives.masked_likelihood import conditional_masked_objective, masked_cross_entropy, masked_objective
from seqwise.runs.codecs import MaskedCodec
from seqwise.runs.inputs import read_sequences
from seqwise.runs.loading import load_run
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.runs.run import MaskedRun, Run
from seqwise.runs.scoring import Scorer, room_for
from seqwise.runs.sizing import evaluated_examples, sample_evenly, sized_masked
from seqwise.runs.trainer_options import require_evaluation, require_usable
from seqwise.runs.training import OnProgress, claim, finish_run, fit_stage, settings_for_folder
from seqwise.runs.training_summary import (
    MASKED_UNIT,
    PSEUDO_PERPLEXITY,
    TrainingSummary,
    begin_summary,
    initial_warning,
    metrics_of_stage,
    summarize_masked_training,
)
from seqwise.sampling.problems import encode_sources
from seqwise.sampling.scores import pseudo_perplexity
from seqwise.training.lock import sole_writer
from seqwise.training.processes import init_process_group
from seqwise.training.trainer import Progress, TrainingResult


def new_masked_run(examples: Sequence[Example], settings: MaskedModelSettings) -> Run[MaskedModelSettings, MaskedCodec]:
    """Make a run with new weights and the vocabularies of the data, or with those of the run ``init``."""
    model: Any = None
    if settings.init is None:
        sequence, source = _new_tokenizers(examples, settings)
    else:
        before: MaskedRun = load_run(settings.init, to="score")
        if not isinstance(before.codec, MaskedCodec):
            problem = "init: the folder holds a Hugging Face model"
            raise InputError(problem, path=settings.init, hint="give the --output of seqwise masked-model train")
        sequence, source, model = before.codec.sequence, before.codec.source, before.model.train()
    lengths = [len(sequence.split(example.target)) for example in examples]
    max_length = getattr(settings if model is None else model, "max_length", None) or max(lengths)
    if settings.conditional:
        require_short(examples, lengths, max_length=max_length)
    codec = MaskedCodec(sequence, source, dict(sorted(Counter(lengths).items())), settings.format)
    model = _new_model(settings, codec, max_length=max_length) if model is None else model
    return Run(settings, model, codec)


def _new_tokenizers(examples: Sequence[Example], settings: MaskedModelSettings) -> tuple[Tokenizer, Tokenizer | None]:
    """Build the tokenizers of the sequences and, if they have any, of their sources."""
    sides: dict[str, Any] = {"subword_vocabulary": settings.subword_vocabulary}
    targets = [example.target for example in examples]
    if settings.units == "subwords":  # all pieces can be sampled, even those that the data do not contain
        sequence = writing_tokenizer(targets, units="subwords", **sides)
    else:
        sequence = reading_tokenizer(targets, units=settings.units, minimum_count=settings.minimum_count, **sides)
    _require_two_tokens(sequence.vocabulary, examples[0].path)
    if not settings.conditional:
        return sequence, None
    sources = [example.source for example in examples]
    sides["minimum_count"] = settings.minimum_count
    return sequence, reading_tokenizer(sources, units=settings.units_of_sources, **sides)


def _require_two_tokens(vocabulary: Vocabulary, path: str) -> None:
    known = [token for token in vocabulary.tokens if token != vocabulary.unknown]
    if len(known) < 2:
        only = f"one known token, {known[0]!r}" if known else "no known token"
        hint = "give other data" if vocabulary.unknown is None else "give more data, or --minimum-count 1"
        problem = f"the training data have {only}, so there is nothing to predict"
        raise InputError(problem, path=path or None, hint=hint)


def require_short(examples: Sequence[Example], lengths: Iterable[int], *, max_length: int) -> None:
    """Raise an InputError for sequences longer than a conditional model can predict."""
    for example, length in zip(examples, lengths, strict=True):
        if length > max_length:
            problem = f"a sequence of {length} tokens, where max_length is {max_length}"
            hint = f"drop the line, or train with --max-length {length}"
            raise InputError(problem, hint=hint, **example.place)


def _new_model(settings: MaskedModelSettings, codec: MaskedCodec, *, max_length: int) -> Any:
    sizes = {"vocab_size": len(codec.sequence.vocabulary)}
    if codec.source is not None:
        sizes |= {"source_size": len(codec.source.vocabulary), "max_length": max_length}
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        try:
            return settings.model.build(**sizes)
        except (RuntimeError, MemoryError, TypeError, OverflowError):  # the type depends on the size
            raise InputError("not enough memory for a model of this size", hint="give smaller sizes") from None


def train_masked_model(
    train: str | os.PathLike[str],
    output: str | os.PathLike[str],
    settings: MaskedModelSettings,
    *,
    dev: str | os.PathLike[str] | None = None,
    on_start: Callable[[TrainingSummary], None] | None = None,
    on_progress: OnProgress | None = None,
    on_measured: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train a masked model on a file and save a run in the output folder.

    After an interruption, a call with the same arguments resumes from the last complete checkpoint and ends with the
    same weights, bit for bit.
    """
    train, output, dev = Path(train), Path(output), None if dev is None else Path(dev)
    require_evaluation(settings, has_dev=dev is not None)
    require_usable(settings, has_lstm=settings.model.name == "lstm")
    init_process_group()
    with sole_writer(output):
        examples = read_sequences(train, settings)
        held_out = [] if dev is None else read_sequences(dev, settings)
        choose = partial(sized_masked, num_examples=len(examples), evaluated=bool(held_out))
        settings = settings_for_folder(settings, output, choose)
        if settings.format == "sequences" and examples[0].target[0].startswith(">"):
            warn(f"{train} begins with '>'; if it is FASTA, use --format fasta")
        run = new_masked_run(examples, settings)
        encoded, encoded_dev = run.codec.encode(examples), run.codec.encode(held_out)
        if settings.conditional:
            lengths = (len(example.target_ids) for example in encoded_dev)
            require_short(held_out, lengths, max_length=run.model.max_length)
        warn(initial_warning(settings.init), overlap_warning(examples, held_out))
        fingerprints = claim(output, settings, encoded, held_out)
        summary = summarize_masked_training(run, examples, encoded, held_out, encoded_dev)
        begin_summary(summary, output, on_start)
        result = fit_masked_run(
            run,
            encoded,
            examples,
            held_out,
            output=output,
            fingerprints=fingerprints,
            on_progress=None if on_progress is None else partial(on_progress, "training"),
        )
        metrics: dict[str, Any] = {
            "train_examples": len(encoded),
            "dev_examples": len(held_out),
            "tokens": sum(length * count for length, count in run.codec.lengths.items()),
            "vocabulary": int(run.codec.allowed_V.sum()),
            "training": metrics_of_stage(result, settings, encoded, output, loss_unit=MASKED_UNIT),
        }

        def measure() -> tuple[dict[str, Any], Mapping[str, float]]:
            measured = measure_masked_run(run, held_out, on_measured=on_measured)
            return measured, {PSEUDO_PERPLEXITY: measured["pseudo_perplexity"]}

        method = f"masked {settings.model.name}"
        finish_run(run, output, metrics, held_out, measure, method=method, baseline=summary.baseline)
        return metrics


def fit_masked_run(
    run: MaskedRun,
    encoded: Sequence[EncodedExample],
    examples: Sequence[Example],
    held_out: Sequence[Example],
    *,
    output: Path,
    fingerprints: Mapping[str, str],
    on_progress: Callable[[Progress], None] | None,
) -> TrainingResult:
    """Train the run's model in place, resuming from the checkpoints in output, and leave it in evaluation mode."""
    settings, longest = run.settings, max(run.codec.lengths)
    objective = (conditional_masked_objective if settings.conditional else masked_objective)(settings.masks)
    sample = sample_evenly(held_out, evaluated_examples(settings), key=lambda example: (example.source, example.target))

    def measure(_: Mapping[str, float]) -> dict[str, float]:
        with evaluation_mode(run.model):
            return _cross_entropies(run, sample)

    largest = max(map(len, settings.batches(encoded)))
    with room_for(f"{largest} sequences of up to {longest} tokens", hint="give a smaller --batch-size"):
        result = fit_stage(
            run.model,
            objective,
            encoded,
            settings,
            folder=output,
            measure=measure if settings.evaluate_every else None,
            metric=lambda measured: -sum(measured.values()),
            examples=examples,
            fingerprints=fingerprints,
            on_progress=on_progress,
        )
    run.model.eval()
    return result


def measure_masked_run(
    run: MaskedRun, examples: Sequence[Example], *, on_measured: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Measure a masked model, in evaluation mode, on held-out sequences.

    ``pseudo_perplexity`` is exp of the mean of ``-log p(token | all others)`` over all tokens;
    ``masked_cross_entropy`` is in nats per masked token, under the masks of training with a fixed seed;
    ``length_cross_entropy``, of conditional models, is in nats per sequence.
    """
    log_prob, tokens, unknown = 0.0, 0, 0
    for place, score in enumerate(Scorer(run, pieces="original").score_examples(examples), start=1):
        log_prob += score.log_prob
        tokens += len(score.tokens)
        unknown += score.num_unknown
        if on_measured is not None:
            on_measured(place, len(examples))
    measured = {"pseudo_perplexity": pseudo_perplexity(log_prob, tokens), **_cross_entropies(run, examples)}
    for name, value in measured.items():
        if not math.isfinite(value):
            raise InputError(f"{name} is {value} on the development data", hint="lower the learning rate")
    return {**measured, "sequences": len(examples), "tokens": tokens, "unknown_tokens": unknown}


@torch.no_grad()
def _cross_entropies(run: MaskedRun, examples: Sequence[Example]) -> dict[str, float]:
    encoded = sorted(run.codec.encode(examples), key=lambda example: example.lengths[::-1])
    total, masked, length_total = 0.0, 0, 0.0
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in in_blocks(encoded, run.settings.batch_size or 64):
            batch = collate(block).to(next(run.model.parameters()).device)
            context = encode_sources(run.model, [example.source_ids for example in block])
            if context is not None:
                places_B1 = batch.target_lengths_B[:, None] - 1
                length_total -= float(context.length_log_probs_BL.gather(1, places_B1).cpu().double().sum())
            masked_BT = run.settings.masks(batch.targets_BT)
            count = int(masked_BT.sum())
            total += count * float(masked_cross_entropy(run.model, batch.targets_BT, masked_BT, context))
            masked += count
    lengths = {"length_cross_entropy": length_total / len(encoded)} if run.codec.conditional else {}
    return {"masked_cross_entropy": total / masked, **lengths}
