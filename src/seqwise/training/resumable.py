"""Crash-safe checkpoints of the Trainer: a mixin that seals what the Trainer writes.

The Trainer writes a checkpoint file by file under its final name. Here it writes to ``unfinished``; the folder is
sealed (:mod:`~seqwise.training.checkpoints`), and gets its name by one rename.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors.torch import save_file
from torch import distributed, nn
from transformers import Trainer, TrainerState
from transformers.trainer_pt_utils import safe_globals

from seqwise.errors import InputError, NotFiniteError, first_line
from seqwise.training.checkpoints import UNFINISHED, checkpoint_step, keep_checkpoint, saving
from seqwise.training.processes import local_device, world_size

SETTINGS = "settings.json"
"""File of a checkpoint with the settings of the training run and its machine, so that others are noticed."""

MACHINE = "machine"
"""Key of the machine in the settings of a checkpoint."""

WEIGHTS = "model.safetensors"
"""File of a checkpoint with the weights."""

_GENERATORS, _STATE = "rng_state.pth", "trainer_state.json"
_TENSORS = ("optimizer.pt", "scheduler.pt", _GENERATORS)


class ResumableTrainer(Trainer):  # transformers exports it as Any
    """Trainer whose checkpoints are complete or absent, and contain the settings of the training run."""

    settings: Mapping[str, Any]  # written into each checkpoint
    log_file: TextIO  # synced to disk before each checkpoint

    def store_flos(self) -> None:
        """Skip counts of floating-point operations: the Trainer would gather them, but only rank 0 saves."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights, which may be tied and must be finite, and the settings."""
        weights = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
        for name, tensor in weights.items():
            # The loss of the last step was finite; the weights after it need not be.
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise NotFiniteError(
                    f"the weights {name.removeprefix('model.')} are not finite after step {self.state.global_step}",
                    hint=f"checkpoints before it, if any, are kept in {self.args.output_dir}; lower the learning rate",
                )
        folder = Path(str(output_dir or self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        # Cloned, because safetensors refuses tensors that share memory, as tied embeddings do.
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
        record = json.dumps({**self.settings, MACHINE: machine()}, sort_keys=True)
        (folder / SETTINGS).write_text(record, encoding="utf-8")

    # Private methods, because no public one is called between writing a checkpoint and using it.

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(self.args.output_dir) / UNFINISHED)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if not self.is_world_process_zero():
            if self.state.best_global_step:
                distributed.barrier()  # which the Trainer calls in rank 0
            return  # the next step waits for rank 0
        checkpoints, step = Path(self.args.output_dir), self.state.global_step
        with saving(checkpoints / f"checkpoint-{step}"):
            super()._save_checkpoint(model, trial)
            # With several processes, the Trainer names it by rank; their noise does not depend on it, so a single
            # process can resume.
            for generators in (checkpoints / UNFINISHED / f"checkpoint-{step}").glob("rng_state_*.pth"):
                generators.rename(generators.with_name(_GENERATORS))
            os.fsync(self.log_file.fileno())
            keep_checkpoint(checkpoints, step, best=self.state.best_global_step)
        self.state.best_model_checkpoint = None  # the Trainer's path, before renaming


def machine() -> dict[str, Any]:
    """Return what trained weights depend on beside the settings and the data."""
    device = local_device().type
    on_cpu = {"threads": torch.get_num_threads(), "instructions": torch.backends.cpu.get_cpu_capability()}
    common = {"device": device, "processes": world_size(), "torch": torch.__version__}
    return common | (on_cpu if device == "cpu" else {})


def has_ended(state: TrainerState) -> bool:
    """Whether training had ended when this state was saved, after the last step or by early stopping."""
    return bool(state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"])


def require_state(folder: Path) -> TrainerState:
    """Return the Trainer's state of a checkpoint; raise if a file is missing, which the Trainer would ignore."""
    hint = "remove the checkpoint, and the same command continues from the one before it"
    for name in (*_TENSORS, _STATE):
        if not (folder / name).is_file():
            raise InputError("the checkpoint lacks this file", path=folder / name, hint=hint)
    for name in _TENSORS:
        try:
            with safe_globals():  # with weights_only, torch executes no code from the file
                torch.load(folder / name, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged or foreign file may fail in any way
            problem = f"cannot be loaded as plain data ({first_line(error)})"
            raise InputError(problem, path=folder / name, hint=hint) from error
    try:
        state = TrainerState.load_from_json(str(folder / _STATE))
        has_ended(state)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"not the state of a training run ({error})", path=folder / _STATE, hint=hint) from error
    if state.global_step != checkpoint_step(folder):
        raise InputError(f"the state is that of step {state.global_step!r}", path=folder / _STATE, hint=hint)
    return state
