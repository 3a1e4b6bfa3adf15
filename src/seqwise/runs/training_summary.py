"""Summary of a training run before its first step (``summary.json``), and warnings after the last one."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from seqwise.data.batches import EncodedExample
from seqwise.data.durable import write_atomically
from seqwise.data.readers import Example
from seqwise.data.summary import MOST_FREQUENT, DataSummary, most_frequent_labels, most_frequent_outputs, summarize
from seqwise.names import count_of
from seqwise.runs.codecs import Codec
from seqwise.runs.measures import decisive, distinct_inputs, measure_outputs
from seqwise.runs.run import METRICS, MaskedRun, OutputRun, Run
from seqwise.runs.sizing import evaluated_examples
from seqwise.runs.trainer_options import TrainerOptions
from seqwise.schedules import Schedule
from seqwise.training.checkpoints import MEASUREMENTS
from seqwise.training.processes import is_main_process
from seqwise.training.trainer import TrainingResult

SUMMARY = "summary.json"
PSEUDO_PERPLEXITY = "pseudo-perplexity"
MASKED_UNIT = "nats per masked token"
WIDTH = 80
FEWEST_STEPS = 50  # for comparing the mean losses of fifths of the steps


@dataclass(frozen=True)
class StageSummary:
    """Stage of training, with its peak learning rate."""

    name: str
    objective: str
    epochs: float
    steps: int
    learning_rate: float
    loss_unit: str


@dataclass(frozen=True)
class Evaluation:
    """Schedule of the evaluations on development data."""

    every: int  # steps
    examples: int
    patience: int | None


@dataclass(frozen=True)
class Baseline:
    """Measures of a baseline without learning."""

    method: str
    file: str  # "dev" or "train"
    title: str  # of the measure that decides which decoder is best
    sign: int  # +1 if higher values are better, else -1
    measures: Mapping[str, float]  # all of them, by title


@dataclass(frozen=True)
class TrainingSummary:
    """Data, model and plan of a training run."""

    task: str  # "tag", "transduce" or "masked"
    train: DataSummary
    dev: DataSummary | None
    source_vocabulary: int
    target_vocabulary: int  # with the end token, if there is one
    model: str
    parameters: int  # number of trained parameters
    batch: str
    stages: Sequence[StageSummary]
    evaluation: Evaluation | None
    auto: str | None  # the objective that "auto" chose
    baseline: Baseline | None  # None for a transduction without development data


def summarize_training(
    run: OutputRun, train: Sequence[Example], encoded: Sequence[EncodedExample], dev: Sequence[Example]
) -> TrainingSummary:
    """Count data, parameters and steps, and measure the baseline."""
    settings = run.settings
    return _summarize(
        run,
        train,
        dev,
        task=settings.task,
        source_vocabulary=len(run.codec.source_vocabulary),
        target_vocabulary=len(run.codec.target_vocabulary),
        model=settings.model.title,
        stages=[
            _stage(stage.name, stage.settings.objective.name, stage.settings, encoded, loss_unit=stage.loss_unit)
            for stage in settings.stages()
        ],
        auto=f"{settings.objective.name} with {settings.trained_score} scores" if settings.chosen_by_auto else None,
        baseline=_baseline(run, train, dev),
    )


def summarize_masked_training(
    run: MaskedRun,
    train: Sequence[Example],
    encoded: Sequence[EncodedExample],
    dev: Sequence[Example],
    encoded_dev: Sequence[EncodedExample],
) -> TrainingSummary:
    """Count data, parameters and steps of a masked model, and measure the unigram baseline."""
    return _summarize(
        run,
        train,
        dev,
        task="masked",
        source_vocabulary=0,
        target_vocabulary=int(run.codec.allowed_V.sum()),
        model=f"masked {run.settings.model.name}",
        stages=[_stage("training", "cross-entropy of masked tokens", run.settings, encoded, loss_unit=MASKED_UNIT)],
        auto=None,
        baseline=_unigrams(encoded, encoded_dev),
    )


def _stage(
    name: str, objective: str, settings: TrainerOptions, encoded: Sequence[EncodedExample], *, loss_unit: str
) -> StageSummary:
    steps = settings.num_steps(encoded)
    return StageSummary(name, objective, settings.epochs, steps, settings.learning_rate, loss_unit)


def _summarize(
    run: Run[TrainerOptions, Codec], train: Sequence[Example], dev: Sequence[Example], **parts: Any
) -> TrainingSummary:
    """Add the data, parameters, batches and evaluations of a run of either kind."""
    settings, split, evaluation = run.settings, run.codec.split(train), None
    if dev and settings.evaluate_every:
        evaluated = min(evaluated_examples(settings), len(dev))
        evaluation = Evaluation(settings.evaluate_every, evaluated, settings.patience)
    return TrainingSummary(
        train=summarize(split),
        dev=summarize(run.codec.split(dev), train=split) if dev else None,
        parameters=sum(weight.numel() for weight in run.model.parameters() if weight.requires_grad),
        batch=f"{settings.batch_tokens:,} tokens" if settings.batch_tokens else f"{settings.batch_size:,}",
        evaluation=evaluation,
        **parts,
    )


def _unigrams(train: Sequence[EncodedExample], dev: Sequence[EncodedExample]) -> Baseline:
    """Compute the perplexity of the unigram distribution of the training data, with add-one smoothing."""
    counts = Counter(token for example in train for token in example.target_ids)
    size = counts.total() + len(counts) + 1
    tokens = [token for example in dev or train for token in example.target_ids]
    nats = -sum(math.log((counts[token] + 1) / size) for token in tokens)
    measures = {PSEUDO_PERPLEXITY: math.exp(nats / len(tokens))}
    method = "each token's frequency in the training data"
    return Baseline(method, "dev" if dev else "train", PSEUDO_PERPLEXITY, -1, measures)


def _baseline(run: OutputRun, train: Sequence[Example], dev: Sequence[Example]) -> Baseline | None:
    tags, examples = run.settings.task == "tag", dev or train
    if not tags and not dev:  # the baseline has memorised the training sources
        return None
    inputs = distinct_inputs(run, examples)
    outputs = (most_frequent_labels if tags else most_frequent_outputs)(train, inputs)
    if not tags:  # split as the run would write them
        answered = [replace(example, target=output) for example, output in zip(inputs, outputs, strict=True)]
        outputs = [tuple(example.target) for example in run.codec.split(answered)]
    measures = measure_outputs(run, examples, outputs)
    title, sign = decisive(measures, subwords=run.codec.writes_text)
    values = {name: sums.value for name, sums in measures.items()}
    return Baseline(MOST_FREQUENT[run.settings.task], "dev" if dev else "train", title, sign, values)


def begin_summary(summary: TrainingSummary, folder: Path, on_start: Callable[[TrainingSummary], None] | None) -> None:
    """Write ``summary.json``, and call ``on_start`` with the summary, in the main process."""
    if not is_main_process():
        return
    write_atomically(folder / SUMMARY, json.dumps(asdict(summary), indent=1) + "\n")
    if on_start is not None:
        on_start(summary)


def summary_lines(summary: TrainingSummary) -> list[str]:
    """Return the summary as lines of at most 80 columns."""
    rows = [("train", _counts(summary, summary.train))]
    if summary.dev is not None:
        rows.append(("dev", _counts(summary, summary.dev)))
    if summary.task == "tag":  # shows at once if labels come from a wrong column
        shares = (f"{label} {share:.1%}" for label, share in summary.train.commonest_targets)
        rows.append(("labels", f"most frequent: {', '.join(shares)}"))
    vocabulary = f", a vocabulary of {summary.target_vocabulary:,}" if summary.task == "masked" else ""
    rows.append(("model", f"{summary.model}, {summary.parameters:,} parameters{vocabulary}"))
    if summary.auto is not None:
        rows.append(("objective", f"auto: {summary.auto}"))
    evaluation = summary.evaluation
    most = "" if evaluation is None or evaluation.patience is None else "at most "
    for place, stage in enumerate(summary.stages, start=1):
        steps = f"{most}{stage.epochs:g} epoch{'s' * (stage.epochs != 1)}, {count_of(stage.steps, 'step')}"
        rows.append((f"stage {place}", f"{stage.objective}, {steps}; loss: {stage.loss_unit}"))
    rates = dict.fromkeys(f"{stage.learning_rate:g}" for stage in summary.stages)
    rows.append(("batches", f"of {summary.batch}; learning rate {', then '.join(rates)}"))
    rows.append(("stopping", _stopping(summary)))
    baseline = summary.baseline
    if baseline is not None:
        value = _shown(baseline, baseline.measures[baseline.title])
        rows.append(("baseline", f"{baseline.title} {value} on {baseline.file} by {baseline.method}"))
    options: dict[str, Any] = {"subsequent_indent": " " * 10, "break_on_hyphens": False}
    return [line for name, text in rows for line in textwrap.wrap(f"{name:<9} {text}", WIDTH, **options)]


def _stopping(summary: TrainingSummary) -> str:
    evaluation = summary.evaluation
    if evaluation is None and summary.dev is None:
        return "no early stopping without --dev"
    if evaluation is None:
        return "none: evaluated on the development data only at the end"
    every, examples = f"{evaluation.every:,} steps", f"{evaluation.examples:,} development examples"
    measured = f"evaluated every {every} on {examples}, best weights kept"
    if evaluation.patience is None:
        return measured
    evaluations = count_of(evaluation.patience, "evaluation")
    return f"{measured}; a stage stops after {evaluations} without improvement"


def _counts(summary: TrainingSummary, data: DataSummary) -> str:
    thing, source_token = _NAMES[summary.task if summary.task != "masked" or not data.source_tokens else "transduce"]
    text = count_of(data.examples, thing)
    if source_token:
        text += f", {count_of(data.source_tokens, source_token)} ({data.source_types:,} different)"
    if summary.task == "tag":
        text += f", {count_of(data.target_types, 'label')}"
    else:
        token = "target token" if source_token else "token"
        text += f", {count_of(data.target_tokens, token)} ({data.target_types:,} different)"
    unseen, total, target = data.unseen_source_tokens, data.source_tokens, ""
    if summary.task == "masked":
        unseen, total, target = data.unseen_target_tokens, data.target_tokens, "target " if source_token else ""
    return text if unseen is None else f"{text}; {unseen / max(total, 1):.1%} unseen {target}tokens"


_NAMES = {"tag": ("sentence", "token"), "transduce": ("pair", "source token"), "masked": ("sequence", "")}
"""Names of the examples and of the input-only tokens, by task."""


def _shown(baseline: Baseline, value: float) -> str:
    if baseline.title == PSEUDO_PERPLEXITY:
        return f"{value:.4g}"
    return f"{100 * value:.1f}" if baseline.title == "BLEU" else f"{100 * value:.1f}%"


def below(baseline: Baseline | None, measures: Mapping[str, float]) -> dict[str, str]:
    """Return a warning if the model's measures on development data, by title, are worse than the baseline's."""
    if baseline is None or baseline.file != "dev":
        return {}
    value, baseline_value = measures[baseline.title], baseline.measures[baseline.title]
    if baseline.sign * (value - baseline_value) >= 0:
        return {}
    own, other = f"{_shown(baseline, value)} on the development data", _shown(baseline, baseline_value)
    values = f"{baseline.title} {own}, against {other} by {baseline.method}"
    return {"below the baseline": f"the model is worse than the baseline without learning: {values}"}


def initial_warning(init: Path | None) -> str | None:
    """Return a warning if the run ``init`` is worse than its baseline."""
    try:
        saved = {} if init is None else json.loads((init / METRICS).read_bytes())
        problem = saved["warnings"]["below the baseline"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # there are no metrics, or no such warning
        return None
    return f"init: {init}: {problem}"


def loss_warnings(
    losses: Sequence[float],
    settings: TrainerOptions,
    *,
    unit: str,
    schedules: Mapping[str, Schedule] | None = None,
    best_step: int | None = None,
) -> dict[str, str]:
    """Return a warning if the loss has "diverged" or was "still falling", by mean losses over fifths of the steps.

    Diverged: the last fifth exceeds the first by three standard errors and by a tenth. Still falling: the last fifth is
    below the previous one by two standard errors and by a hundredth of the total decrease, and the last weights are the
    best. Both need at least 50 steps under constant schedules. A loss above 10 and above ten times the first loss has
    diverged under any schedule.
    """
    before, last = last_fifths(losses)
    size = len(last)
    first = losses[:size]
    start, end = statistics.fmean(first), statistics.fmean(last)
    over_steps = [schedule.over(len(losses)) for schedule in (schedules or {}).values()]

    def steady(since: int) -> bool:
        constant = all(schedule(since) == schedule(len(losses) - 1) for schedule in over_steps)
        return len(losses) >= FEWEST_STEPS and constant

    risen = steady(0) and end - start > max(3 * _error(first, last), abs(start) / 10)
    if risen or end > 10 * max(abs(losses[0]), 1):
        problem = f"the loss rose from {min(start, losses[0]):.4g} to {end:.4g} ({unit}): training diverged"
        return {"diverged": f"{problem}; try --learning-rate {settings.learning_rate / 10:g}"}
    if steady(len(losses) - 2 * size) and best_step in (None, len(losses)):
        fall = statistics.fmean(before) - end
        if fall > 2 * _error(before, last) and fall > (start - end) / 100:
            fell = f"from {end + fall:.4g} to {end:.4g} ({unit}) in the last two fifths of the steps"
            return {"still falling": f"the loss was still falling, {fell}; try --epochs {2 * settings.epochs:g}"}
    return {}


def metrics_of_stage(
    result: TrainingResult, settings: TrainerOptions, encoded: Sequence[EncodedExample], folder: Path, *, loss_unit: str
) -> dict[str, Any]:
    """Return steps and loss of a stage and, if it was evaluated, its best measurement and whether it stopped early."""
    metrics: dict[str, Any] = {"steps": result.steps, "mean_loss": result.mean_loss, "loss_unit": loss_unit}
    if result.best_step is None:
        return metrics
    lines = (folder / MEASUREMENTS).read_text(encoding="utf-8").splitlines()
    measured = next(line for line in map(json.loads, lines) if line["step"] == result.best_step)
    epoch = measured["step"] / len(settings.batches(encoded))
    stopped_early = result.steps < settings.num_steps(encoded)
    return metrics | {"best": measured | {"epoch": epoch}, "stopped_early": stopped_early}


def last_losses(losses: Sequence[float]) -> dict[str, Any]:
    """Return the mean losses of the last two fifths of the steps, for a stage that is not evaluated."""
    return {"loss_of_last_fifths": [statistics.fmean(part) for part in last_fifths(losses) if part]}


def last_fifths(losses: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the losses of the last two fifths of the steps."""
    size = max(1, len(losses) // 5)
    return losses[-2 * size : -size], losses[-size:]


def _error(*samples: Sequence[float]) -> float:
    """Compute the standard error of the difference of two means."""
    return math.sqrt(sum(statistics.variance(sample) / len(sample) for sample in samples if len(sample) > 1))
