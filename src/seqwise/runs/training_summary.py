"""The summary that training gives before its first step, and its verdict on itself after the last one.

``summary.json`` in the run folder holds the summary; the verdict is among the ``warnings`` of ``metrics.json``.
"""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from seqwise.data.batches import EncodedExample
from seqwise.data.durable import write_atomically
from seqwise.data.readers import Example
from seqwise.data.summary import DataSummary, most_frequent_labels, most_frequent_outputs, summarize
from seqwise.runs.measures import decisive, measure_outputs, references_by_source
from seqwise.runs.run import OutputRun
from seqwise.runs.settings import Settings
from seqwise.runs.sizing import evaluated_examples
from seqwise.runs.stages import stages, steps_of
from seqwise.schedules import Schedule
from seqwise.training.checkpoints import MEASUREMENTS
from seqwise.training.trainer import TrainingResult

SUMMARY = "summary.json"
"""In a run folder: the summary."""

WIDTH = 80
FEWEST_STEPS = 50  # of which a fifth has a standard error


@dataclass(frozen=True)
class StageSummary:
    """A stage of training: its name, objective, epochs and steps, highest learning rate, and the unit of its loss."""

    name: str
    objective: str
    epochs: float
    steps: int
    learning_rate: float
    loss_unit: str


@dataclass(frozen=True)
class Evaluation:
    """Sentence about how often a stage is evaluated on the development data.

    Attributes:
        every: steps between two evaluations.
        examples: how many are decoded, at most.
        patience: evaluations without a better one that end the stage; None: it takes all its steps.
    """

    every: int
    examples: int
    patience: int | None


@dataclass(frozen=True)
class Baseline:
    """Baselines that take no learning.

    Attributes:
        method: how they are found.
        file: "dev" or "train", where they are measured.
        title: the measure that decides which decoder is best.
        sign: +1 if more of it is better, -1 if less is.
        measures: all of them, by title.
    """

    method: str
    file: str
    title: str
    sign: int
    measures: Mapping[str, float]


@dataclass(frozen=True)
class TrainingSummary:
    """Findings and plan of a training run.

    Attributes:
        task: "tag" or "transduce".
        train: counts over the training data.
        dev: the same of the development data, if there are any.
        source_vocabulary: how many source tokens the model knows.
        target_vocabulary: how many labels or target tokens it can write, with the end token where there is one.
        model: its name.
        parameters: how many numbers are trained.
        batch: how large a batch is.
        stages: in order.
        evaluation: see there; None where only the end counts.
        auto: what the objective "auto" stands for, if it was asked for.
        baseline: see there; None for a transduction without development data.
    """

    task: str
    train: DataSummary
    dev: DataSummary | None
    source_vocabulary: int
    target_vocabulary: int
    model: str
    parameters: int
    batch: str
    stages: Sequence[StageSummary]
    evaluation: Evaluation | None
    auto: str | None
    baseline: Baseline | None


def summarize_training(
    run: OutputRun,
    train: Sequence[Example],
    encoded: Sequence[EncodedExample],
    dev: Sequence[Example],
    settings: Settings,
) -> TrainingSummary:
    """Count the data, the model's parameters and the steps, and measure the baseline."""
    split, split_dev = run.codec.split(train), run.codec.split(dev)
    token = token_of(settings)
    return TrainingSummary(
        settings.task,
        summarize(split),
        summarize(split_dev, train=split) if dev else None,
        len(run.codec.source_vocabulary),
        len(run.codec.target_vocabulary),
        settings.model.title,
        sum(weight.numel() for weight in run.model.parameters() if weight.requires_grad),
        f"{settings.batch_tokens:,} tokens" if settings.batch_tokens else f"{settings.batch_size:,}",
        [
            StageSummary(
                stage.name,
                stage.settings.objective.name,
                stage.settings.epochs,
                steps_of(stage.settings, encoded),
                stage.settings.learning_rate,
                stage.settings.objective.loss_unit(token),
            )
            for stage in stages(settings)
        ],
        _evaluation(dev, settings),
        f"{settings.objective.name} with {settings.trained_score} scores" if settings.chosen_by_auto else None,
        _baseline(run, train, dev),
    )


def _evaluation(dev: Sequence[Example], settings: Settings) -> Evaluation | None:
    if not dev or not settings.evaluate_every:
        return None
    examples = min(evaluated_examples(settings), len(dev))
    return Evaluation(settings.evaluate_every, examples, settings.patience)


def token_of(settings: Settings) -> str:
    """Name what outputs are made of: "label" or "token"."""
    return "label" if settings.task == "tag" else "token"


def _baseline(run: OutputRun, train: Sequence[Example], dev: Sequence[Example]) -> Baseline | None:
    tags, examples = run.settings.task == "tag", dev or train
    if not tags and not dev:  # of known sources the outputs are known
        return None
    asked = examples if tags else references_by_source(examples)[0]
    outputs = (most_frequent_labels if tags else most_frequent_outputs)(train, asked)
    if not tags:  # raw text as the run would write it
        answered = [replace(one, target=output) for one, output in zip(asked, outputs, strict=True)]
        outputs = [tuple(one.target) for one in run.codec.split(answered)]
    found = measure_outputs(run, examples, outputs)
    title, sign = decisive(found, subwords=run.codec.writes_text)
    method = "each word's most frequent label" if tags else "each source's most frequent output, else that of all"
    values = {name: sums.value for name, sums in found.items()}
    return Baseline(method, "dev" if dev else "train", title, sign, values)


def save_summary(summary: TrainingSummary, folder: Path) -> None:
    """Write ``summary.json``."""
    write_atomically(folder / SUMMARY, json.dumps(asdict(summary), indent=1) + "\n")


def lines_of(summary: TrainingSummary) -> list[str]:
    """The summary as a few lines of 80 columns at most."""
    rows = [("train", _counts(summary, summary.train))]
    if summary.dev is not None:
        rows.append(("dev", _counts(summary, summary.dev)))
    if summary.task == "tag":  # which shows at a glance whether these are the labels that were meant
        shares = (f"{label} {share:.1%}" for label, share in summary.train.commonest_targets)
        rows.append(("labels", f"most frequent: {', '.join(shares)}"))
    rows.append(("model", f"{summary.model}, {summary.parameters:,} parameters"))
    if summary.auto is not None:
        rows.append(("auto", f"stands for {summary.auto}"))
    evaluation = summary.evaluation
    most = "" if evaluation is None or evaluation.patience is None else "at most "
    for place, stage in enumerate(summary.stages, start=1):
        steps = f"{most}{stage.epochs:g} epoch{'' if stage.epochs == 1 else 's'}, {stage.steps:,} steps"
        rows.append((f"stage {place}", f"{stage.objective}, {steps}; loss: {stage.loss_unit}"))
    rates = dict.fromkeys(f"{stage.learning_rate:g}" for stage in summary.stages)
    rows.append(("batches", f"of {summary.batch}; learning rate {', then '.join(rates)}"))
    rows.append(("length", _length(summary)))
    if summary.baseline is not None:
        of = summary.baseline
        rows.append(("baseline", f"{of.title} {_percent(of, of.measures[of.title])} on {of.file} by {of.method}"))
    options: dict[str, Any] = {"subsequent_indent": " " * 10, "break_on_hyphens": False}
    return [line for name, text in rows for line in textwrap.wrap(f"{name:<9} {text}", WIDTH, **options)]


def _length(summary: TrainingSummary) -> str:
    evaluation = summary.evaluation
    if evaluation is None:
        return "fixed: " + (
            "without --dev, nothing says when to stop"
            if summary.dev is None
            else "no evaluation on the development data before the end"
        )
    measured = f"evaluated every {evaluation.every:,} steps on {evaluation.examples:,} development examples, best kept"
    if evaluation.patience is None:
        return measured
    evaluations = f"{evaluation.patience} evaluation{'' if evaluation.patience == 1 else 's'}"
    return f"{measured}; a stage stops after {evaluations} without a better one"


def _counts(summary: TrainingSummary, data: DataSummary) -> str:
    tags = summary.task == "tag"
    found = f"{data.examples:,} {'sentence' if tags else 'pair'}{'' if data.examples == 1 else 's'}, "
    found += f"{data.source_tokens:,} {'' if tags else 'source '}tokens ({data.source_types:,} different), "
    found += (
        f"{data.target_types:,} labels" if tags else f"{data.target_tokens:,} target tokens ({data.target_types:,})"
    )
    if data.unseen_source_tokens is None:
        return found
    return f"{found}; {data.unseen_source_tokens / max(data.source_tokens, 1):.1%} unseen tokens"


def _percent(baseline: Baseline, value: float) -> str:
    return f"{100 * value:.1f}" if baseline.title == "BLEU" else f"{100 * value:.1f}%"


def warnings_of(
    losses: Sequence[float],
    settings: Settings,
    *,
    baseline: Baseline | None = None,
    dev: Mapping[str, Any] | None = None,
    best_step: int | None = None,
) -> dict[str, str]:
    """The reasons to doubt a training run that has come to its end."""
    found = loss_warnings(
        losses,
        unit=settings.objective.loss_unit(token_of(settings)),
        learning_rate=settings.learning_rate,
        epochs=settings.epochs,
        schedules=[schedule.over(len(losses)) for schedule in settings.objective.schedules.values()],
        best_step=best_step,
    )
    if baseline is not None and dev is not None and baseline.file == "dev":
        value, least = dev["decoders"][dev["best decoder"]][baseline.title], baseline.measures[baseline.title]
        if baseline.sign * (value - least) < 0:
            shares = f"{_percent(baseline, value)}, and {_percent(baseline, least)} by {baseline.method}"
            said = f"the model is worse than no learning: on the development data {baseline.title} {shares}"
            found["below the baseline"] = said
    return found


def loss_warnings(
    losses: Sequence[float],
    *,
    unit: str,
    learning_rate: float,
    epochs: float,
    schedules: Sequence[Schedule] = (),
    best_step: int | None = None,
) -> dict[str, str]:
    """Compare the losses of fifths of the steps: has the loss risen, or was it still falling?

    It was still falling where the last fifth is below the one before by more than two standard errors of their
    difference, and by more than a hundredth of all it has fallen. (The last tenth says little: its learning rate is
    next to 0.) It has risen where the last fifth is above the first by more than three standard errors and a tenth of
    it. Both are rules for 50 steps or more, under schedules that stand still: an alpha that grows makes another loss.
    Ten times the first loss, and more than 10, is too much under any schedule.
    """
    before, last = last_fifths(losses)
    size = len(last)
    first = losses[:size]
    start, end = statistics.fmean(first), statistics.fmean(last)

    def steady(since: int) -> bool:
        return len(losses) >= FEWEST_STEPS and all(one(since) == one(len(losses) - 1) for one in schedules)

    risen = steady(0) and end - start > max(3 * _error(first, last), abs(start) / 10)
    if risen or end > 10 * max(abs(losses[0]), 1):
        said = f"the loss rose from {min(start, losses[0]):.4g} to {end:.4g} ({unit}): the model is of no use"
        return {"diverged": f"{said}; try --learning-rate {learning_rate / 10:g}"}
    if steady(len(losses) - 2 * size) and best_step in (None, len(losses)):
        fall = statistics.fmean(before) - end
        if fall > 2 * _error(before, last) and fall > (start - end) / 100:
            said = f"the loss was still falling, from {end + fall:.4g} to {end:.4g} in the last two fifths of the steps"
            return {"still falling": f"{said}; try --epochs {2 * epochs:g}"}
    return {}


def best_of_stage(result: TrainingResult, *, steps: int, steps_an_epoch: int, folder: Path) -> dict[str, Any]:
    """Describe the step whose weights are kept, with its measurement, and whether training stopped before its end."""
    lines = (folder / MEASUREMENTS).read_text(encoding="utf-8").splitlines()
    measured = next(line for line in map(json.loads, lines) if line["step"] == result.best_step)
    epoch = measured["step"] / steps_an_epoch
    return {"best": measured | {"epoch": epoch}, "stopped_early": result.steps < steps}


def last_fifths(losses: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Split off the losses of the last two fifths of the steps.

    Example:
        >>> last_fifths([5.0, 4.0, 3.0, 2.0, 1.0])
        ([2.0], [1.0])
    """
    size = max(1, len(losses) // 5)
    return losses[-2 * size : -size], losses[-size:]


def _error(*samples: Sequence[float]) -> float:
    """The standard error of the difference of two means."""
    return math.sqrt(sum(statistics.variance(sample) / len(sample) for sample in samples if len(sample) > 1))
