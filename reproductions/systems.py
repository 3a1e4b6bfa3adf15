"""Training of several systems on the same data, in parallel, each in its own run folder.

A reproduction lists its systems, each with the one whose weights it starts from. Every system is a resumable cell: when
the reproduction is run again, finished systems are read back and interrupted ones are resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from reproductions.cells import CellJob, fingerprint_of, run_cells, timed, train_seconds, trained_on
from reproductions.report import Curve
from reproductions.workers import ProgressFactory, Report
from seqwise.configuration import dump
from seqwise.data.durable import sha256_of_file
from seqwise.data.readers import Example
from seqwise.evaluation.signature import Signature, sha256_of_examples, sign
from seqwise.runs.decoder_choice import choose_decoder
from seqwise.runs.language import in_language
from seqwise.runs.loading import load_run, new_run, save_run
from seqwise.runs.measures import known_targets, log_partitions_of
from seqwise.runs.run import OutputRun, predict
from seqwise.runs.settings import Settings
from seqwise.runs.training import train_stage
from seqwise.training.checkpoints import MEASUREMENTS

Outputs = dict[str, list[tuple[str, ...]]]
CELL = "cell.json"
FOUR_DECODERS = ("greedy", "beam", "raw-beam", "soft-beam")


@dataclass(frozen=True)
class System:
    """Model to train: a row of a table, with one seed."""

    name: str
    folder: str  # of its run
    settings: Settings  # of its own training stage; their ``model`` may be the folder of a Hugging Face model
    starts_from: str | None = None  # the folder of the system whose weights it starts from; None: new weights
    language: str = ""  # language of decoded outputs; by default that of the settings


def systems_of(stages: Mapping[str, tuple[Settings, str | None]], seed: int) -> dict[str, System]:
    """Make the systems of a seed by key, each in the folder ``seed-N/key``.

    A stage has its settings and the key of the system that it starts from, or None.
    """
    folder = f"seed-{seed}"
    return {
        key: System(f"{key} ({seed})", f"{folder}/{key}", settings, None if before is None else f"{folder}/{before}")
        for key, (settings, before) in stages.items()
    }


@dataclass(frozen=True)
class Data:
    """Training, test and development data, the same for all systems; decoders are chosen on development data."""

    train: list[Example]
    test: list[Example]
    dev: list[Example] = field(default_factory=list)
    sources: tuple[str, ...] = ()  # of the training data: each file with its SHA-256, each package with its version


@dataclass(frozen=True)
class Cell:
    """Outputs and measurements of one system."""

    system: str  # its name
    run: Path  # its folder
    outputs: Outputs  # for each decoder, the best output of each test example
    dev_outputs: Outputs  # the same for each development example
    train_seconds: float  # CPU time of its own stage, on one thread
    total_seconds: float  # the same with all the stages before it
    mean_log_partition: float  # on the test data, in nats
    signature: Signature
    curve: Curve | None = None  # development metric during training, if it was evaluated
    learning_rate: float | None = None  # of its own stage, if chosen on development data
    place_of_rate: str = ""  # among the rates tried: "lowest", "highest" or ""


def best_outputs(run: OutputRun, examples: Sequence[Example], decoder: str, **options: Any) -> list[tuple[str, ...]]:
    """Return the best output of each example, by the name of a decoder."""
    return [best[0].tokens for best in predict(run, examples, choose_decoder(run.settings, decoder, **options))]


def run_systems(
    systems: Sequence[System],
    load_data: Callable[[], Data],
    folder: Path,
    *,
    progress: ProgressFactory,
    decoders: Sequence[str] = FOUR_DECODERS,
) -> dict[str, Cell]:
    """Train and decode every system, as many at a time as there are workers, each on one thread."""
    jobs = cells_of(systems, load_data, folder, decoders)
    found: dict[str, Cell] = {}
    for system, record in zip(systems, run_cells(jobs, progress=progress), strict=True):
        before = 0.0 if system.starts_from is None else found[system.starts_from].total_seconds
        found[system.folder] = _load_cell(system, folder / system.folder, record, before)
    return found


def cells_of(
    systems: Sequence[System], load_data: Callable[[], Data], folder: Path, decoders: Sequence[str]
) -> list[CellJob]:
    """Return the cells that :func:`run_systems` makes, in the order of the systems."""
    data = load_data()
    measured = "".join(map(sha256_of_examples, (data.train, data.dev, data.test))) + "".join(decoders)
    names = {system.folder: system.name for system in systems}
    return [
        CellJob(
            system.name,
            folder / system.folder / CELL,
            partial(_fingerprint, system, measured, folder),
            partial(_train_and_decode, system, load_data=load_data, folder=folder, decoders=decoders),
            after=names.get(system.starts_from or ""),
            folder=folder / system.folder,
        )
        for system in systems
    ]


def _train_and_decode(
    system: System, report: Report, *, load_data: Callable[[], Data], folder: Path, decoders: Sequence[str]
) -> dict[str, Any]:
    data, output = load_data(), folder / system.folder
    run = new_run(data.train, system.settings)
    if system.starts_from is not None:
        run.model.load_state_dict(load_run(folder / system.starts_from).model.state_dict())

    result = train_stage(
        run,
        run.codec.encode(data.train),
        system.settings,
        folder=output,
        examples=data.train,
        dev=data.dev,  # used if the settings evaluate during training
        on_progress=timed(output, report, every=system.settings.evaluate_every),
    )
    save_run(run, output)
    if system.language:
        run = in_language(run, system.language)
    report(result.steps, result.steps + 1, "decoding")

    def decode(examples: list[Example]) -> Outputs:
        return {name: best_outputs(run, examples, name) for name in decoders}

    training = trained_on(data.train, data.sources)
    signature = sign(system.name, seeds=[system.settings.seed], data=sha256_of_examples(data.test), training=training)
    return {
        "train_seconds": train_seconds(output),
        # Made here and stored with the outputs, so that a cell that is read back later is not signed as new.
        "signature": asdict(signature),
        # A label that no training example has cannot be scored.
        "mean_log_partition": log_partitions_of(run, run.codec.encode(known_targets(run, data.test))).mean().item(),
        "outputs": decode(data.test),
        "dev_outputs": decode(data.dev) if data.dev else {},
    }


def _load_cell(system: System, output: Path, record: Mapping[str, Any], before: float) -> Cell:
    """Return a cell; ``before`` is the seconds of the stages before it."""
    outputs, dev_outputs = (
        {name: [tuple(tokens) for tokens in each] for name, each in record[key].items()}
        for key in ("outputs", "dev_outputs")
    )
    seconds = record["train_seconds"]
    return Cell(
        system.name,
        output,
        outputs,
        dev_outputs,
        seconds,
        before + seconds,
        record["mean_log_partition"],
        Signature(**record["signature"]),
        _curve(system, output, seconds, before),
    )


def _curve(system: System, output: Path, seconds: float, before: float) -> Curve | None:
    """Return the metric of early stopping by CPU time; all steps are assumed to have taken equally long."""
    path = output / MEASUREMENTS
    if not (system.settings.evaluate_every and path.exists()):
        return None
    measured = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    measure, last = list(measured[0])[1], measured[-1]["step"]  # the task's metric is measured first
    points = tuple((seconds * each["step"] / last, each[measure]) for each in measured)
    return Curve(system.name, system.settings.seed, measure, before, points)


def _fingerprint(system: System, measured: str, folder: Path) -> str:
    """Return a fingerprint of the settings, the data and decoders, and the weights that a cell starts from."""
    settings, files = system.settings, list[Path]()
    if settings.model.pretrained:  # identified by its content, not by its path
        files = sorted(Path(settings.model.title).iterdir())
        settings = settings.model_copy(update={"model": settings.model.model_copy(update={"path": ""})})
    parts = [dump(settings), measured, *map(sha256_of_file, files)]
    if system.language:
        parts.append(system.language)
    if system.starts_from is not None:
        parts.append((folder / system.starts_from / "model" / "manifest.json").read_text("utf-8"))
    return fingerprint_of(*parts)
