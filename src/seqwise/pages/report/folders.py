"""Run folders of a report: kind, settings, logs and metrics. They are only read; training may still be running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from seqwise.configuration.flat import flat_values
from seqwise.data.records import read_json_lines, read_json_object
from seqwise.errors import InputError
from seqwise.runs.loading import read_settings
from seqwise.runs.masked_model_settings import MaskedModelSettings
from seqwise.runs.run import read_metrics
from seqwise.runs.settings import Settings
from seqwise.training.checkpoints import MANIFEST, MEASUREMENTS

Kind = Literal["training", "masked model", "samples"]
"""Kind of folder: written by ``seqwise train``, ``seqwise masked-model train`` or ``seqwise sample``."""

_AS_SAVED = "restore it as it was saved"
_FOLDER_HINT = "give the --output of seqwise train, masked-model train or sample"


@dataclass(frozen=True)
class StageLog:
    """Log of a training stage."""

    name: str  # "training", or the name of a warm start
    objective: str
    columns: Mapping[str, Sequence[float]]  # by name, "step" among them: a number for each logged step
    # "step", and development measures after these steps
    measured: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["step"])


@dataclass(frozen=True)
class Folder:
    """Run folder of a report."""

    path: Path
    name: str  # unique in the report
    kind: Kind
    settings: Mapping[str, Any]  # without ignored ones
    logs: Sequence[StageLog] = ()  # of each training stage that has begun
    metrics: Mapping[str, Any] = field(default_factory=dict)  # ``metrics.json``; empty if there is none yet
    has_model: bool = False
    weights: str | None = None  # SHA-256
    loss_unit: str = ""  # of the last stage
    baseline: float | None = None  # deciding measure of the baseline without learning, on the development data

    @property
    def is_unfinished(self) -> bool:
        """Whether the model is still being trained or evaluated."""
        return self.kind != "samples" and not (self.has_model and self.metrics)

    @property
    def on_dev(self) -> Mapping[str, Any]:
        """Final measures on the development data, if any."""
        dev = self.metrics.get("dev")
        return dev if isinstance(dev, dict) else {}


def read_folders(paths: Sequence[Path]) -> list[Folder]:
    """Read folders and give each a unique name."""
    folders = [read_folder(path) for path in paths]
    names = [folder.name for folder in folders]
    return [
        folder if names.count(folder.name) == 1 else replace(folder, name=f"{folder.name} ({place})")
        for place, folder in enumerate(folders, start=1)
    ]


def read_folder(path: Path) -> Folder:
    """Read a folder."""
    if not path.is_dir():
        raise InputError("there is no such folder", path=path, hint=_FOLDER_HINT)
    settings = read_settings(path)
    if settings is not None:
        return _run(path, settings)
    if (path / "settings.json").is_file() and (path / "chains").is_dir():
        return Folder(path, path.resolve().name, "samples", _read_json(path / "settings.json"))
    raise InputError("the folder contains no run", path=path, hint=_FOLDER_HINT)


def _run(path: Path, settings: Settings | MaskedModelSettings) -> Folder:
    kind: Kind
    if isinstance(settings, Settings):
        kind, shown = "training", {**flat_values(settings), "score": settings.trained_score}
        stages = [(stage.name, stage.settings.objective.name, stage.folder) for stage in settings.stages()]
    else:
        kind, shown = "masked model", flat_values(settings)
        stages = [("training", "masked cross-entropy", "")]
    logs = [log for name, objective, at in stages for log in _stage_logs(name, objective, path / at / "log.jsonl")]
    model, metrics, (loss_unit, baseline) = path / "model", read_metrics(path), _summarized(path)
    weights = _weights(model / MANIFEST)
    return Folder(path, path.resolve().name, kind, shown, logs, metrics, model.is_dir(), weights, loss_unit, baseline)


def _summarized(path: Path) -> tuple[str, float | None]:
    """Return the unit of the last stage's loss and the baseline on development data, from ``summary.json``."""
    summary = _read_json(path / "summary.json") if (path / "summary.json").is_file() else {}
    stages, baseline = summary.get("stages"), summary.get("baseline")
    try:
        unit = stages[-1].get("loss_unit", "") if stages else ""
        if not isinstance(baseline, dict) or baseline.get("file") != "dev":
            return unit, None
        return unit, baseline["measures"].get(baseline["title"])
    except (AttributeError, KeyError, TypeError):
        raise InputError("not a summary", path=path / "summary.json", hint=_AS_SAVED) from None


def _stage_logs(name: str, objective: str, file: Path) -> list[StageLog]:
    """Return the log of a stage, or nothing before its first step."""
    columns, measurements = _read_columns(file) if file.is_file() else {}, file.with_name(MEASUREMENTS)
    if not columns:
        return []
    return [StageLog(name, objective, columns, _read_columns(measurements) if measurements.is_file() else {})]


def _read_json(path: Path) -> dict[str, Any]:
    return read_json_object(path, what=path.stem, hint=_AS_SAVED)


def _weights(manifest: Path) -> str | None:
    """Return the SHA-256 of the weights from a manifest."""
    files = _read_json(manifest).get("files") if manifest.is_file() else None
    entry = files.get("model.safetensors") if isinstance(files, dict) else None
    return str(entry["sha256"]) if isinstance(entry, dict) and "sha256" in entry else None


def _read_columns(path: Path) -> dict[str, list[float]]:
    """Read the columns of a log that may still be growing."""
    columns: dict[str, list[float]] = {}
    for number, record in read_json_lines(path, hint="use another copy"):
        if (
            "step" not in record
            or (columns and set(record) != set(columns))
            or not all(
                isinstance(value, int | float)  # JSON has NaN for an undefined loss
                for value in record.values()
            )
        ):
            raise InputError("not a line of a training log", path=path, line=number, hint="use another copy")
        for name, value in record.items():
            columns.setdefault(name, []).append(float(value))
    return columns
