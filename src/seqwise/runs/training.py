"""Training of a run from settings: read data, warm-start, train, evaluate on development data, save."""

from __future__ import annotations

import copy
import json
import math
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqwise.configuration.flat import differences
from seqwise.data.batches import EncodedExample, collate
from seqwise.data.durable import discard_partials, sha256_of_file, write_atomically
from seqwise.data.readers import Example, line_of_token
from seqwise.data.summary import missing_blank_lines, overlap_warning, wrong_label_column
from seqwise.data.vocabulary import Vocabulary
from seqwise.errors import InputError, NotFiniteError, warn
from seqwise.evaluation.signature import sha256_of_examples, sign, signature_line
from seqwise.objectives.contrastive import smoothed_noise
from seqwise.objectives.objective import Objective
from seqwise.objectives.options import Context
from seqwise.runs.codecs import Codec
from seqwise.runs.hub import model_folder
from seqwise.runs.inputs import read_examples
from seqwise.runs.language import require_gold_inside
from seqwise.runs.loading import new_run, read_settings, save_run, save_settings
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.runs.measures import (
    changed_targets,
    decisive,
    measure_decoders,
    missing_bleu,
    require_known_target,
    unknown_targets,
    unknown_tokens,
    unread_sources,
)
from seqwise.runs.model_settings import PretrainedEncoder
from seqwise.runs.monitoring import CROSS_ENTROPY, monitor
from seqwise.runs.paths import language_file
from seqwise.runs.run import METRICS, OutputRun, Run
from seqwise.runs.settings import WARM_START_FOLDERS, Settings, require_data
from seqwise.runs.sizing import sized, sized_like
from seqwise.runs.trainer_options import (
    CONFIGURATION,
    AnyOptions,
    TrainerOptions,
    changed_setting_error,
    require_usable,
    with_absolute_paths,
)
from seqwise.runs.training_summary import (
    SUMMARY,
    Baseline,
    TrainingSummary,
    begin_summary,
    below,
    initial_warning,
    last_losses,
    loss_warnings,
    metrics_of_stage,
    summarize_training,
)
from seqwise.schedules import Schedule
from seqwise.training.checkpoints import MANIFEST, MEASUREMENTS, last_complete
from seqwise.training.lock import sole_writer
from seqwise.training.processes import from_main_process, init_process_group, is_main_process
from seqwise.training.trainer import Progress, TrainingResult, fit, read_losses, require_same_data

OnProgress = Callable[[str, Progress], None]
"""Function called after each step with the name of the stage."""


def fit_stage(
    model: Any,
    objective: Objective,
    encoded: Sequence[EncodedExample],
    settings: TrainerOptions,
    *,
    folder: Path,
    measure: Callable[[Mapping[str, float]], Mapping[str, float]] | None,
    metric: Callable[[Mapping[str, float]], float],
    examples: Sequence[Example] = (),
    schedules: Mapping[str, Schedule] | None = None,
    **options: Any,
) -> TrainingResult:
    """Train a model in place, resuming from the folder's checkpoints, and check that its last loss is finite.

    If the model is measured during training, it ends with the weights that have the highest metric. Error messages name
    the examples; further options are those of ``fit``.
    """
    steps, schedules = settings.num_steps(encoded), schedules or {}
    measured: Mapping[str, float] = {}

    def keep(values: Mapping[str, float]) -> Mapping[str, float]:
        nonlocal measured
        measured = measure(values) if measure is not None else {}
        return measured

    result = fit(
        model,
        objective,
        encoded,
        output=folder,
        steps=steps,
        learning_rate=settings.learning_rate,
        warmup_steps=min(round(settings.warmup * steps), steps - 1),
        schedules=schedules,
        measure=None if measure is None else keep,
        measure_every=max(1, settings.evaluate_every),
        evaluate=None if measure is None else lambda: metric(measured),
        patience=None if measure is None else settings.patience,
        example_names=(lambda index: f"{examples[index].path}:{examples[index].line}") if examples else None,
        **settings.fit_options(),
        **options,
    )
    # The loss of every step was finite; the weights after the last one may still overflow.
    indices = next(iter(settings.batches(encoded)))
    batch = collate([encoded[index] for index in indices]).to(next(model.parameters()).device)
    with torch.no_grad(), torch.random.fork_rng():
        last_loss = objective(model, batch, {name: schedule(steps) for name, schedule in schedules.items()})
    if not bool(torch.isfinite(last_loss)):
        raise NotFiniteError(f"after the last step the loss is {last_loss.item()}", hint="lower the learning rate")
    return result


def train_stage(
    run: OutputRun,
    encoded: Sequence[EncodedExample],
    settings: Settings,
    *,
    folder: Path,
    examples: Sequence[Example] = (),
    dev: Sequence[Example] = (),
    fingerprints: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> TrainingResult:
    """Train a run's model in place with the objective of the settings.

    Distillation uses the initial model as teacher. So a resumed run must start from the same weights, those of the last
    checkpoint of the previous stage.
    """
    objective = settings.objective.build(context_of(run.codec.target_vocabulary, encoded=encoded, start=run.model))
    steps = settings.num_steps(encoded)
    is_evaluated = dev and settings.evaluate_every
    return fit_stage(
        run.model,
        objective,
        encoded,
        settings,
        folder=folder,
        measure=monitor(run, dev, settings) if is_evaluated else None,
        metric=lambda measured: _metric(measured, subwords=run.codec.writes_text, path=dev[0].path),
        examples=examples,
        schedules={name: schedule.over(steps) for name, schedule in settings.objective.schedules.items()},
        rates=_rates(run, settings),
        fingerprints=fingerprints,
        on_progress=on_progress,
        gradient_checkpointing=settings.gradient_checkpointing,
    )


def _metric(measured: Mapping[str, float], *, subwords: bool, path: str) -> float:
    """Return the deciding measure, minus a small multiple of the cross-entropy.

    A model that learns thus improves even while the measure is still 0.
    """
    title, sign = decisive(measured, subwords=subwords)
    value = measured[title]
    if not math.isfinite(value):
        hint = "give other development data, or --evaluate-every 0"
        raise InputError(f"{title} is {value} on the development data", path=path or None, hint=hint)
    return sign * value - _CROSS_ENTROPY_WEIGHT * min(measured.get(CROSS_ENTROPY, 0.0), 100.0)


_CROSS_ENTROPY_WEIGHT = 1e-6
"""Weight of the cross-entropy in the metric of early stopping, which matters less than one correct answer."""


# Settings that may change between calls: checkpoints compare the data, and the others do not affect the weights.
_MAY_DIFFER = {"train", "dev", "init", "save_every", "report_to", "gradient_checkpointing"}
_WRITTEN = (
    "model", "model.partial", "checkpoints", *WARM_START_FOLDERS, "log.jsonl", MEASUREMENTS, SUMMARY, METRICS,
)  # fmt: skip


def settings_for_folder(given: AnyOptions, output: Path, choose: Callable[[AnyOptions], AnyOptions]) -> AnyOptions:
    """Choose the settings that were not given, without evaluations if the run in the folder was started without them.

    Raises:
        InputError: the folder contains anything but a run with the same settings.
    """
    settings, saved = choose(with_absolute_paths(given, output)), read_settings(output)
    was_unevaluated = saved is not None and "evaluate_every" in saved.model_fields_set and not saved.evaluate_every
    if was_unevaluated and "evaluate_every" not in given.model_fields_set:
        # Development data that were added later only measure the trained model.
        settings = settings.model_copy(update={"evaluate_every": 0, "patience": None})
    from_main_process(lambda: _require_same_settings(output, saved, settings, given.model_fields_set))
    return settings


def _require_same_settings(
    output: Path, saved: Settings | MaskedModelSettings | None, settings: AnyOptions, given: Container[str]
) -> None:
    """Raise an InputError if the output folder contains anything but a run with the same settings.

    Settings that were not given depend on the training data; if the data differ, the error names the data instead.
    """
    if saved is None:
        leftover = next((name for name in _WRITTEN if (output / name).exists()), None)
        if leftover is not None:
            problem = f"the folder holds {leftover} but no {CONFIGURATION}, so it is not a run"
            raise InputError(problem, path=output, hint="give another --output")
        return
    if saved.tag != settings.tag:
        command = "train" if isinstance(saved, Settings) else "masked-model train"
        raise InputError(f"the folder holds a run of seqwise {command}", path=output, hint="give another --output")
    changed = differences(sized_like(saved, settings), settings)
    # Given settings first, because others follow from them.
    for name, (then, now) in sorted(changed.items(), key=lambda change: change[0] not in given):
        if (name not in _MAY_DIFFER or now is None) and not _began_without_checkpoint(output):
            if name not in given and "train" in changed:
                name, then, now = "training file", *changed["train"]
            raise changed_setting_error(output, name, then, now)


def _began_without_checkpoint(output: Path) -> bool:
    """Whether training began in a folder and was interrupted before its first checkpoint."""
    folders = [output / folder / "checkpoints" for folder in ("", *WARM_START_FOLDERS)]
    began = any(folder.exists() for folder in folders) and not (output / "model").exists()
    return began and not any(map(last_complete, folders))


def claim(
    output: Path,
    settings: TrainerOptions,
    encoded: Sequence[EncodedExample],
    dev: Sequence[Example],
    *,
    first_stage: str = "",
) -> dict[str, str]:
    """Write the settings, and return the checksums of the inputs of training other than the training data.

    Raises:
        InputError: the first stage in the folder was trained on other data; nothing is written.
    """

    def write() -> None:
        discard_partials(output)
        save_settings(settings, output)

    fingerprints = fingerprints_of(settings, dev)
    from_main_process(lambda: require_same_data(output / first_stage, encoded, fingerprints))
    from_main_process(write)
    return fingerprints


def fingerprints_of(settings: TrainerOptions, dev: Sequence[Example]) -> dict[str, str]:
    """Return checksums of the development data, the run ``init`` and the language, as far as training uses them."""
    fingerprints = {}
    if settings.evaluate_every:
        fingerprints["development data"] = sha256_of_examples(dev)
    if settings.init is not None:
        fingerprints["initial weights"] = sha256_of_file(model_folder(settings.init) / MANIFEST)
    language = language_file(getattr(settings, "language", ""))
    if language is not None:
        fingerprints["contents of the language file"] = sha256_of_file(language)
    return fingerprints


def context_of(
    labels: Vocabulary, *, encoded: Iterable[EncodedExample] = (), start: nn.Module | None = None
) -> Context:
    """Return the context of an objective: properties of the outputs, the data and the initial model."""

    def noise() -> Tensor:
        rows = (torch.tensor(example.target_ids, dtype=torch.long) for example in encoded)
        return smoothed_noise(rows, len(labels))

    def teacher(model: nn.Module) -> nn.Module:
        return copy.deepcopy(model).requires_grad_(False).eval()

    return Context(labels.end_id, labels.tokens, noise, None if start is None else partial(teacher, start))


def _rates(run: OutputRun, settings: Settings) -> dict[str, float] | None:
    """Return learning rates of the new parts of a tagger over a Hugging Face encoder, by name."""
    if not isinstance(settings.model, PretrainedEncoder):
        return None
    parts = {name.partition(".")[0] for name, _ in run.model.named_parameters()}
    return dict.fromkeys(sorted(parts - {"encoder"}), settings.model.decoder_learning_rate)


def train_run(
    settings: Settings,
    output: str | os.PathLike[str],
    *,
    on_start: Callable[[TrainingSummary], None] | None = None,
    on_progress: OnProgress | None = None,
    on_measured: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train a model from files, and save a run folder.

    A repeated call resumes from the last complete checkpoint of an interrupted one, and ends with the same weights, bit
    for bit.

    Args:
        settings: settings from :func:`~seqwise.runs.train_settings`.
        output: the run folder; created if missing.
        on_start: called with the summary before the first step.
        on_progress: called after each step with the name of the stage and its progress.
        on_measured: called after training with the number of decoders measured so far, and the total.

    Returns:
        The metrics in ``metrics.json``; in processes other than the first, only those of training.

    Raises:
        InputError: data or settings cannot be used, another process writes to the folder, or a loss is not finite.
    """
    output = Path(output)
    require_data(settings)
    require_usable(settings, has_lstm=not settings.model.parallel)
    init_process_group()
    with sole_writer(output):
        examples = read_examples(settings, settings.train)
        settings = settings_for_folder(settings, output, partial(sized, examples=examples))
        run, encoded, dev, unread = begin_run(settings, examples)
        fingerprints = claim(output, settings, encoded, dev, first_stage=settings.stages()[0].folder)
        tags = settings.task == "tag"
        warn(
            initial_warning(settings.init),
            (wrong_label_column(examples) or missing_blank_lines(examples)) if tags else None,
            unread,
            overlap_warning(examples, dev),
            changed_targets(run, examples),
            unknown_targets(run, dev),
            missing_bleu(run) if dev else None,
        )
        summary = summarize_training(run, examples, encoded, dev)
        begin_summary(summary, output, on_start)
        metrics: dict[str, Any] = {"train_examples": len(examples), "dev_examples": len(dev)}
        for stage in settings.stages():
            result = train_stage(
                run,
                encoded,
                stage.settings,
                folder=output / stage.folder,
                examples=examples,
                dev=dev,
                fingerprints=fingerprints,
                on_progress=None if on_progress is None else partial(on_progress, stage.name),
            )
            metrics[stage.name] = metrics_of_stage(
                result, stage.settings, encoded, output / stage.folder, loss_unit=stage.loss_unit
            )

        def measure() -> tuple[dict[str, Any], Mapping[str, float]]:
            measured = measure_decoders(run, dev, on_measured=on_measured)
            return measured, measured["decoders"][measured["best decoder"]]

        method = f"{settings.objective.name}, {settings.trained_score} scores, beam {settings.beam_size}"
        schedules = settings.objective.schedules
        finish_run(run, output, metrics, dev, measure, method=method, baseline=summary.baseline, schedules=schedules)
        return metrics


def finish_run(
    run: Run[TrainerOptions, Codec],
    output: Path,
    metrics: dict[str, Any],
    dev: Sequence[Example],
    measure: Callable[[], tuple[dict[str, Any], Mapping[str, float]]],
    *,
    method: str,
    baseline: Baseline | None,
    schedules: Mapping[str, Schedule] | None = None,
) -> None:
    """Save a trained run, measure it on development data, and write its metrics, in the main process.

    ``measure`` returns the metrics on development data, and those to compare with the baseline by title.
    """
    if not is_main_process():
        return
    settings, stage, losses = run.settings, metrics["training"], read_losses(output / "log.jsonl")
    if not settings.evaluate_every:
        stage |= last_losses(losses)
    best_step = stage.get("best", {}).get("step")
    metrics["warnings"] = loss_warnings(
        losses, settings, unit=stage["loss_unit"], schedules=schedules, best_step=best_step
    )
    save_run(run, output)
    if dev:
        try:
            metrics["dev"], measures = measure()
        except KeyboardInterrupt:
            print("stopped while measuring; run the same command again to measure the trained model", file=sys.stderr)
            raise
        signature = sign(method, seeds=[settings.seed], data=sha256_of_examples(dev))
        metrics["dev"]["signature"] = signature_line(signature)
        metrics["warnings"] |= below(baseline, measures)
    write_atomically(output / METRICS, json.dumps(metrics, indent=1, sort_keys=True) + "\n")


def begin_run(
    settings: Settings, examples: Sequence[Example]
) -> tuple[OutputRun, list[EncodedExample], list[Example], str | None]:
    """Make a run, encode the training data and read the development data, without writing anything.

    The last of the four results is a warning about development inputs that the run cannot read, or None.
    """
    dev = [] if settings.dev is None else read_examples(settings, settings.dev)
    run = new_run(examples, settings)
    if settings.init is not None and settings.task == "tag":
        _require_labels_of_init(run, examples)
    encoded = run.codec.encode(examples)
    require_gold_inside(run, encoded, examples)
    unread = unread_sources(run, dev)
    try:
        require_known_target(run, dev)
    except InputError:  # the columns of the training data may be wrong
        warning = wrong_label_column(examples) if settings.task == "tag" else None
        if warning is None:
            raise
        raise InputError(warning, path=settings.train) from None
    return run, encoded, dev, unread


def _require_labels_of_init(run: OutputRun, examples: Sequence[Example]) -> None:
    """Raise an InputError for a label that the run in ``init``, whose labels stay, does not have."""
    for example, place, label in unknown_tokens(run, examples):
        problem, hint = f"init: the run has no label {label[:100]!r}", "train a new run, without init"
        raise InputError(problem, path=example.path or None, line=line_of_token(example, place), hint=hint)
