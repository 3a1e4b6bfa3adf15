"""``seqwise train``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from seqwise.cli.console import number, print_measures, progress_bars
from seqwise.cli.flags import MetricsAsJson, given_flags

__all__ = ["train"]


def train(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="the run folder to make or to continue")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="settings in YAML: task: tag, ...; flags override")
    ] = None,
    as_json: MetricsAsJson = False,
    **flags: str | None,
) -> None:
    """Train a model on your own files: a new one, or one of transformers that you have.

    Settings come from flags, then from the YAML file, then from the defaults in [brackets]. Run the same command again
    to continue after an interruption.
    """
    from seqwise.runs.effects import require_effect
    from seqwise.runs.settings import load_settings
    from seqwise.runs.stages import resolve, stages
    from seqwise.runs.training import train_run

    given = given_flags(flags)
    settings = load_settings(config, given)
    require_effect(settings, path=config, flags=given)
    with progress_bars() as progress:
        bars: dict[str, Any] = {}

        def advance(stage: str, step: Any) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(stage, total=step.steps, note="")
                if step.step > 1:
                    print(f"{stage}: goes on after step {step.step - 1:,} of {step.steps:,}", file=sys.stderr)
            progress.update(bars[stage], completed=step.step, note=f"loss {step.loss:.3f}")

        metrics = train_run(settings, output, on_progress=advance)
    if as_json:
        print(json.dumps(metrics))
        return
    if settings.objective == "auto":
        settings = resolve(settings)
        names = ", then ".join(stage.settings.objective for stage in stages(settings))
        print(f"objective auto: {names}; {settings.score} scores")
    trained = metrics["training"]
    steps = f"{trained['steps']:,} step{'' if trained['steps'] == 1 else 's'}"
    what = f"trained for {steps} on {metrics['train_examples']:,} examples" if bars else f"{steps} were taken before"
    print(f"{what}; loss of the last ones {trained['mean_loss']:.3f}")
    if "dev" in metrics:
        _print_dev(metrics["dev"])
    print(f"the run is in {output}; try: seqwise predict {shlex.quote(str(output))} TEXT")


def _print_dev(dev: dict[str, Any]) -> None:
    rows = dev["decoders"].items()
    print_measures({name: {title: (number(title, value), "") for title, value in row.items()} for name, row in rows})
    for title, signature in dev["signatures"].items():
        print(f"{title}: {signature}")
    log_partition = "" if dev["mean log Z"] is None else f" (mean log Z {dev['mean log Z']:.2f})"
    print(f"best on the development data: {dev['best decoder']}{log_partition}\n{dev['advice']}")
