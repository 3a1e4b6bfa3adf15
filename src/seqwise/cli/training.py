"""``seqwise train``."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from seqwise.cli.console import (
    bar_for_each_part,
    bar_for_each_stage,
    print_device,
    print_filled,
    print_measures,
    print_summary,
    progress_bars,
)
from seqwise.cli.flags import MetricsAsJson, given_flags
from seqwise.names import count_of, measure_text


def train(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="run folder to create or to continue")
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="settings in YAML (task: tag, ...); options override them"),
    ] = None,
    as_json: MetricsAsJson = False,
    **flags: str | None,
) -> None:
    """Train a new model, or fine-tune a Hugging Face model, on your own files.

    Options override the YAML file, which overrides the defaults in [brackets]. After an interruption, the same command
    resumes.
    """
    from seqwise.runs.settings import load_settings

    settings = load_settings(config, given_flags(flags))
    # Imported after the settings are checked, because it takes seconds.
    from seqwise.runs.training import train_run

    train_and_print(
        partial(train_run, settings, output),
        stages=[stage.name for stage in settings.stages()],
        note="decoders",
        print_dev=_print_dev,
        hint=f"the run is in {output}; try: seqwise predict {shlex.quote(str(output))} TEXT",
        as_json=as_json,
    )


def train_and_print(
    train: Callable[..., dict[str, Any]],
    *,
    stages: Sequence[str] = ("training",),
    note: str = "",
    print_dev: Callable[[dict[str, Any]], None],
    hint: str,
    as_json: bool,
) -> None:
    """Train with progress bars; print a summary and, unless the loss diverged, a hint, or only the metrics as JSON."""
    print_device()
    with progress_bars() as progress:
        advance, begun = bar_for_each_part(progress), set[str]()
        metrics = train(
            on_start=None if as_json else print_summary,
            on_progress=bar_for_each_stage(advance, stages, begun=begun),
            on_measured=partial(advance, "development data", note=note),
        )
    print_filled(*(f"seqwise: {warning}" for warning in metrics.get("warnings", {}).values()), file=sys.stderr)
    if as_json:
        print(json.dumps(metrics))
        return
    print_filled(*_closing_lines(metrics, trained_now=bool(begun)))
    if "dev" in metrics:
        print_dev(metrics["dev"])
    if "diverged" not in metrics.get("warnings", {}):
        print(hint)


def _closing_lines(metrics: dict[str, Any], *, trained_now: bool) -> list[str]:
    """Summarize training: its steps and last losses, and the best step of each stage on development data."""
    stages = {name: stage for name, stage in metrics.items() if isinstance(stage, dict) and "loss_unit" in stage}
    total = sum(stage["steps"] for stage in stages.values())
    steps = f"{count_of(total, 'step')}{f' in {len(stages)} stages' if len(stages) > 1 else ''}"
    last = metrics["training"]
    done = f"trained for {steps} on {count_of(metrics['train_examples'], 'example')}"
    loss = f"mean loss over the last steps {last['mean_loss']:.4g} ({last['loss_unit']})"
    lines = [f"{done if trained_now else f'already trained for {steps}'}; {loss}"]
    for name, stage in stages.items():
        if "best" in stage:
            best = stage["best"]
            title = next(title for title in best if title not in ("step", "epoch"))
            ended = "stopped early, at" if stage["stopped_early"] else "ended with"
            lines.append(
                f"{name}: best after epoch {best['epoch']:.3g}, step {best['step']:,} ({title.replace('_', ' ')} "
                f"{measure_text(title, best[title])} on the evaluated sample); {ended} step {stage['steps']:,}"
            )
    losses = last.get("loss_of_last_fifths", ())
    if len(losses) == 2:
        before, end = (f"{loss:.4g}" for loss in losses)
        moved = f"{'fell' if losses[1] < losses[0] else 'rose'} from {before} to {end}"
        change = f"stayed at {end}" if before == end else moved
        fixed = "fixed number of steps, not evaluated during training"
        lines.append(f"{fixed}: the loss {change} in the last two fifths of the steps")
    return lines


def _print_dev(dev: dict[str, Any]) -> None:
    rows = dev["decoders"].items()
    print_measures(
        {name: {title: (measure_text(title, value), "") for title, value in row.items()} for name, row in rows}
    )
    for title, signature in dev["signatures"].items():
        print(f"{title}: {signature}")
    log_partition = "" if dev["mean log Z"] is None else f" (mean log Z {dev['mean log Z']:.2f} nats)"
    print(f"best on the development data: {dev['best decoder']}{log_partition}\n{dev['advice']}")
