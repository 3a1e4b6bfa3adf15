"""Options of every training run: those of the Hugging Face Trainer, and early stopping."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import model_validator

from seqwise.configuration import Config, OneOf, setting
from seqwise.configuration.written import Given, read_given
from seqwise.errors import InputError
from seqwise.names import DecayName
from seqwise.runs.paths import language_file

if TYPE_CHECKING:
    from seqwise.data.batches import BatchSampler, EncodedExample

AnyOptions = TypeVar("AnyOptions", bound="TrainerOptions")

CONFIGURATION = "configuration.yaml"
"""Settings in the folder of a run, of either kind."""

SIZED = "sized to the data"
"""Help for settings that ``sizing`` chooses if they are not given."""


WARMUP = "fraction of the steps of each stage in which the learning rate rises to its peak"
"""Help for ``warmup``, whose default depends on the command."""


class TrainerOptions(Config):
    """Trainer options, for the settings of a command; see the help of each field."""

    if TYPE_CHECKING:  # fields of every subclass, each with its own defaults
        model: Any
        init: Path | None
        epochs: float
        learning_rate: float

    decay: DecayName = setting(
        "linear", "learning rate in each stage: linear or cosine decay to 0, constant, or inverse_sqrt of the step"
    )
    warmup: float = setting(0.0, WARMUP, ge=0, lt=1)
    weight_decay: float = setting(0.0, "weight decay of AdamW; biases and norms have none", ge=0)
    batch_tokens: int | None = setting(
        None, "tokens in a batch, counted on the longer side with padding; replaces --batch-size", ge=1
    )
    batch_size: int | None = setting(
        lambda values: None if values.get("batch_tokens") else 64, "examples in a batch", usual=SIZED, ge=1
    )
    gradient_accumulation_steps: int = setting(
        1, "number of parts of a batch, computed in sequence to save memory", ge=1
    )
    bf16: bool = setting(False, "mixed precision in bfloat16; weights keep their precision")
    fp16: bool = setting(False, "mixed precision in float16 with a scaled loss; GPU only")
    clip: float = setting(1.0, "maximum norm of the gradient", gt=0)
    patience: int | None = setting(
        5, "evaluations without improvement after which a stage stops; none disables early stopping", ge=1
    )
    evaluate_every: int = setting(
        0,
        "steps between evaluations on a sample of the development data, which choose the best weights; 0 keeps the "
        "last weights",
        usual=SIZED,
        ge=0,
    )
    seed: int = setting(0, "seed of initial weights, batches and noise", ge=0, lt=2**32)
    save_every: int = setting(200, "steps between checkpoints", ge=1)
    report_to: str = setting(
        "none",
        "also log losses and evaluations to tensorboard, wandb or another integration of the Hugging Face Trainer; "
        "several separated by commas",
        metavar="NAME",
    )

    @model_validator(mode="after")
    def _choose_one_of_two(self) -> Any:
        if self.batch_tokens is not None and self.batch_size is not None:
            problem = "batch_tokens: the size of a batch is given in examples already"
            raise InputError(problem, hint="give one of batch-size and batch-tokens")
        if self.batch_tokens is None and self.batch_size is None:
            raise InputError("batch_size: the size of a batch is missing", hint="give batch-size or batch-tokens")
        if self.bf16 and self.fp16:
            raise InputError("fp16: bf16 is on already", hint="give one of them")
        return self

    @property
    def integrations(self) -> tuple[str, ...]:
        """Integrations of the Hugging Face Trainer to report to."""
        names = tuple(name.strip() for name in self.report_to.split(","))
        return () if names == ("none",) else names

    def fit_options(self) -> dict[str, Any]:
        """Return the options as arguments of ``fit``, without those of evaluations and of the number of steps."""
        names = {*TrainerOptions.model_fields} - {"patience", "evaluate_every", "report_to", "warmup"}
        return {name: getattr(self, name) for name in names} | {"report_to": self.integrations}

    def batches(self, encoded: Sequence[EncodedExample]) -> BatchSampler:
        """Return the batches of the first epoch; every epoch has the same number."""
        from seqwise.data.batches import BatchSampler

        lengths = [example.lengths for example in encoded]
        return BatchSampler(lengths, batch_size=self.batch_size, batch_tokens=self.batch_tokens, seed=self.seed)

    def num_steps(self, encoded: Sequence[EncodedExample]) -> int:
        """Return the number of steps: epochs times batches per epoch."""
        return max(1, round(self.epochs * len(self.batches(encoded))))


def read_saved(folder: Path, kind: OneOf) -> Given | None:
    """Read the settings in a folder without interpreting them; None if there are none, or those of another kind.

    A file without a tag was written by hand, for ``seqwise train``.
    """
    path = folder / CONFIGURATION
    if not os.path.exists(path):  # unlike Path.exists, does not raise if the name is too long
        return None
    given = read_given(path)
    tag = next((tag for tag in ("task", "format") if tag in given.file), "task")
    return given if tag == kind.base.tag else None


def with_absolute_paths(settings: AnyOptions, output: Path) -> AnyOptions:
    """Make paths absolute if the run folder is outside the working directory; see ``recorded_file``."""
    if output.resolve().is_relative_to(Path.cwd()):
        return settings
    paths: dict[str, Any] = {name: value.absolute() for name, value in settings if isinstance(value, Path)}
    language = language_file(getattr(settings, "language", ""))
    if language is not None:
        paths["language"] = str(language.absolute())
    return settings.model_copy(update=paths)


def changed_setting_error(output: Path, name: str, then: Any, now: Any, *, what: str = "the run was") -> InputError:
    """Return the error about an output folder started with a different value of a setting."""
    problem = f"{what} started with another {name} ({then} then, {now} now)"
    return InputError(problem, path=output, hint="give another --output, or remove this folder to start again")


def require_usable(options: TrainerOptions, *, has_lstm: bool) -> None:
    """Raise an InputError for options that need a missing GPU or package."""
    from seqwise.devices import require_precision
    from seqwise.training.processes import local_device
    from seqwise.training.reporting import require_integrations

    require_precision(local_device(), bf16=options.bf16, fp16=options.fp16, has_lstm=has_lstm)
    require_integrations(options.integrations)


def require_evaluation(options: TrainerOptions, *, has_dev: bool) -> None:
    """Raise an InputError for options of evaluations if nothing is evaluated during training."""
    given = options.model_fields_set
    is_evaluated = has_dev and (options.evaluate_every > 0 or "evaluate_every" not in given)
    if "evaluate_every" in given and options.evaluate_every and not has_dev:
        raise InputError("evaluate_every: there is no development data", hint="give --dev FILE, or leave it out")
    if "patience" in given and options.patience is not None and not is_evaluated:
        problem = "patience: nothing is evaluated during training"
        raise InputError(problem, hint="give --dev FILE, without --evaluate-every 0, or leave it out")
