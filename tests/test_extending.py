"""A named objective or kernel takes one new file and one line, as shown in a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seqwise

pytestmark = pytest.mark.thorough

OBJECTIVE = """
from typing import Literal
from seqwise.configuration import setting
from seqwise.objectives.options import NOTHING, ObjectiveConfig

class Halved(ObjectiveConfig):
    from_scratch = True
    name: Literal["halved"] = "halved"
    share: float = setting(0.5, "factor of the loss", gt=0)

    def build(self, context=NOTHING):
        from seqwise.objectives.likelihood import cross_entropy
        from seqwise.objectives.objective import teacher_forced_logits

        def loss(model, batch, values):
            logits = teacher_forced_logits(model, model.encode(batch), batch)
            return self.share * cross_entropy(logits, batch.targets_BT)

        return loss
"""
KERNEL = """
from typing import Literal
from seqwise.configuration import setting
from seqwise.sampling.options import KernelConfig

class Twice(KernelConfig):
    name: Literal["twice"] = "twice"
    times: int = setting(2, "sweeps in one", ge=1)

    def build(self, model, energy, allowed_V=None):
        from seqwise.sampling.combinators import repeat
        from seqwise.sampling.kernels import exact_gibbs

        return repeat(exact_gibbs(energy), self.times)
"""
USED = """
import torch
from seqwise.configuration import configure
from seqwise.sampling import ChainSettings, sample_chains, start_chains, table_model

model = table_model(num_positions=2, vocab_size=3)
settings = configure(ChainSettings, kernel="twice", times=3)
energy = settings.build_energy(model)
chains = sample_chains(settings.build_kernel(model, energy), start_chains(energy, torch.zeros(4, 2).long()), 5)
assert int(chains.proposals_SB[0, 0]) == 3 * 2
"""


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    package = tmp_path / "copy" / "seqwise"
    shutil.copytree(Path(seqwise.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for room, file, name, text in (
        ("objectives", "halved", "Halved", OBJECTIVE),
        ("sampling", "twice", "Twice", KERNEL),
    ):
        (package / room / f"{file}.py").write_text(text)
        settings = package / room / "settings.py"
        first = f"from seqwise.{room}.options import "
        line = f"from seqwise.{room}.{file} import {name}\n"
        settings.write_text(settings.read_text().replace(first, line + first, 1))
    return package.parent


def python(package: Path, *arguments: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert not ran.returncode, ran.stderr
    return ran.stdout


def test_commands_use_an_objective_and_a_kernel_of_one_file_and_one_line(extended: Path, tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("dogs\tN\nrun\tV\n\n" * 8)
    command = ["-m", "seqwise", "train", "--train=train.conll", "--epochs=1", "--output=run", "--seed=0"]
    python(extended, *command, "--objective=halved", "--share=0.25", "--hidden-size=4", folder=tmp_path)
    saved = (tmp_path / "run" / "configuration.yaml").read_text()
    assert "name: halved\n  share: 0.25" in saved
    assert "--times N" in python(extended, "-m", "seqwise", "sample", "--help", folder=tmp_path)
    python(extended, "-c", USED, folder=tmp_path)
