"""``seqwise train``."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from seqwise.cli.console import (
    bar_for_each_part,
    bar_for_each_stage,
    command_device,
    last_losses,
    print_filled,
    print_measures,
    print_summary,
    print_warnings,
    progress_bars,
)
from seqwise.cli.flags import MetricsAsJson, given_flags
from seqwise.names import measure_text


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
    # The rest takes seconds to import, and wrong settings need none of it.
    from seqwise.runs.training import train_run

    command_device()
    with progress_bars() as progress:
        advance, trained_stages = bar_for_each_part(progress), set[str]()
        show = bar_for_each_stage(advance, [stage.name for stage in settings.stages()])

        def on_progress(stage: str, step: Any) -> None:
            trained_stages.add(stage)
            show(stage, step)

        metrics = train_run(
            settings,
            output,
            on_start=None if as_json else print_summary,
            on_progress=on_progress,
            on_measured=partial(advance, "development data", note="decoders"),
        )
    print_warnings(metrics)
    if as_json:
        print(json.dumps(metrics))
        return
    trained = metrics["training"]
    stages = [stage for stage in metrics.values() if isinstance(stage, dict) and "loss_unit" in stage]
    total = sum(stage["steps"] for stage in stages)
    steps = f"{total:,} step{'' if total == 1 else 's'}{f' in {len(stages)} stages' if len(stages) > 1 else ''}"
    count = metrics["train_examples"]
    trained_now = f"trained for {steps} on {count:,} example{'' if count == 1 else 's'}"
    steps_text = trained_now if trained_stages else f"already trained for {steps}"
    loss = f"mean loss over the last steps {trained['mean_loss']:.4g} ({trained['loss_unit']})"
    print_filled(f"{steps_text}; {loss}", *_lengths(metrics))
    if "dev" in metrics:
        _print_dev(metrics["dev"])
    if "diverged" in metrics.get("warnings", {}):
        return
    print(f"the run is in {output}; try: seqwise predict {shlex.quote(str(output))} TEXT")


def _lengths(metrics: dict[str, Any]) -> list[str]:
    """Summarize each stage: its best step on development data or, without evaluations, the decrease of its loss."""
    lines = []
    for name, stage in metrics.items():
        if isinstance(stage, dict) and "best" in stage:
            best = stage["best"]
            title = next(title for title in best if title not in ("step", "epoch"))
            ended = "stopped early, at" if stage["stopped_early"] else "ended with"
            lines.append(
                f"{name}: best after epoch {best['epoch']:.3g}, step {best['step']:,} ({title} "
                f"{measure_text(title, best[title])} on the evaluated sample); {ended} step {stage['steps']:,}"
            )
    return lines + last_losses(metrics["training"])


def _print_dev(dev: dict[str, Any]) -> None:
    rows = dev["decoders"].items()
    print_measures(
        {name: {title: (measure_text(title, value), "") for title, value in row.items()} for name, row in rows}
    )
    for title, signature in dev["signatures"].items():
        print(f"{title}: {signature}")
    log_partition = "" if dev["mean log Z"] is None else f" (mean log Z {dev['mean log Z']:.2f} nats)"
    print(f"best on the development data: {dev['best decoder']}{log_partition}\n{dev['advice']}")
