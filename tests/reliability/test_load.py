"""Long runs and large files: memory and speed do not drift.

``SEQWISE_SOAK_SECONDS`` is the time of each subject (``make soak``: ten minutes).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from reliability.soak import Tick, judged
from seqwise.data.readers import Example
from seqwise.data.spooled import in_blocks, spooled
from seqwise.runs import codecs, inputs
from seqwise.runs.loading import new_run, save_run
from seqwise.runs.masked_model_settings import masked_settings
from seqwise.runs.masked_model_training import new_masked_run
from seqwise.runs.settings import train_settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")

SECONDS = float(os.environ.get("SEQWISE_SOAK_SECONDS", "90"))
MOST_MEMORY, LEAST_SPEED = 1.02, 0.95


def ticks_of(subject: str, seconds: float) -> list[Tick]:
    command = [sys.executable, "-m", "reliability.soak", subject, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    # The Trainer may print something before.
    return [Tick(*one) for one in json.loads(ended.stdout.splitlines()[-1])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "unit"),
    [
        ("train", "epochs of 60 training steps, each with a checkpoint"),
        ("decode", "beam decodings of 120 sentences"),
        ("sample", "sweeps of 24 chains"),
        ("stream", "thousands of tokens of one stream, which commits by 'agree or delay(50)'"),
    ],
)
def test_memory_and_speed_do_not_drift(subject: str, unit: str, promise: Any) -> None:
    ticks = ticks_of(subject, SECONDS)
    found = judged(ticks)
    assert found.memory <= MOST_MEMORY, found
    assert found.speed >= LEAST_SPEED, found
    promise(
        f"{unit}, over {SECONDS:,.0f} s",
        len(ticks),
        "memory grows by at most 2%, and the last tenth is at least 95% as fast as the first (CPU time)",
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("subject", "what"), [("leak", "memory"), ("slow down", "speed")])
def test_a_leak_and_a_slowdown_are_detected(subject: str, what: str) -> None:
    found = judged(ticks_of(subject, 3))
    assert found.memory > MOST_MEMORY if what == "memory" else found.speed < LEAST_SPEED, found


# ---------------------------------------------------------------------------------------------------- large files


# Fewer than a block of the file, and more.
@pytest.mark.parametrize("in_memory", [100, 600])
@pytest.mark.parametrize("count", [0, 1, 100, 101, 512, 600, 601, 1400])
def test_spooled_examples_equal_the_originals(count: int, in_memory: int) -> None:
    examples = [
        Example(("a", "é\u2028", str(number)), ("\\",) * (number % 3), "f", number, "k" * (number % 2))
        for number in range(count)
    ]
    found = spooled(iter(examples), in_memory=in_memory)
    assert list(found) == examples and len(found) == count
    assert [one for block in in_blocks(found, 77) for one in block] == examples
    assert isinstance(found, list) is (count <= in_memory)
    for piece in (slice(250, 520), slice(None, None, -3), slice(5, 2), slice(-7, None)):
        assert list(found[piece]) == examples[piece]
    for place in (0, 255, 256, -1):
        if -count <= place < count:
            assert found[place] == examples[place]
    with pytest.raises(IndexError):
        found[count]


def test_a_mistake_in_the_last_line_is_found_before_anything_is_used(tmp_path: Path) -> None:
    def examples() -> Iterator[Example]:
        yield from [Example(("a",), ())] * 1000
        raise ValueError("the last line")

    with pytest.raises(ValueError, match="the last line"):
        spooled(examples(), in_memory=10)


LETTERS = "abcd"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs")
    sizes: dict[str, Any] = {"hidden_size": 4, "embedding_size": 4, "minimum_count": 1}
    tags = train_settings(task="tag", objective="cross-entropy", label_embedding_size=2, **sizes)
    save_run(new_run([Example(tuple(LETTERS), tuple("ABAB"))], tags), folder / "tagger")
    masked = new_masked_run([Example((), tuple(LETTERS))], masked_settings(model="lstm", **sizes))
    save_run(replace(masked, codec=replace(masked.codec, lengths={3: 1})), folder / "masked")
    return folder


def lines(path: Path, count: int, *, start: str = "") -> Path:
    draw = random.Random(0)
    with path.open("w") as file:
        for number in range(count):
            file.write(start + " ".join(draw.choices(LETTERS, k=1 + number % 4)) + "\n")
    return path


# What Linux tells of a child's memory counts that of this process when it started it; so the child reads its own.
MEASURED = """
import atexit, sys
from pathlib import Path
from seqwise.cli import main

def keep(path):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    path.write_text(line.split()[1])

atexit.register(keep, Path(sys.argv.pop(1)))
main()
"""


def peak(*command: object, output: Path) -> int:
    """The most memory that a command took, in bytes; its lines go to a file."""
    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc, by which memory is measured")
    found, threads = output.with_suffix(".peak"), {"OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", MEASURED, str(found), *map(str, command)]
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        code = subprocess.run(program, stdout=out, stderr=err, env={**os.environ, **threads}, check=False).returncode
    assert code == 0, output.with_suffix(".err").read_text()
    return 1024 * int(found.read_text())


@pytest.mark.thorough
def test_peak_memory_is_that_of_the_command_alone(runs: Path, tmp_path: Path) -> None:
    """Bytes that this process holds are none of the command's, and those that the command holds are."""
    few = lines(tmp_path / "few.txt", 20)
    held = torch.ones(700_000_000, dtype=torch.uint8)  # more than a command needs
    found = peak("predict", runs / "tagger", few, "--text", "--decoder=greedy", output=tmp_path / "few.out")
    assert 1e8 < found < 6e8 < held.sum().item()


COMMANDS: dict[str, list[object]] = {"predict": ["tagger", "--text", "--decoder=greedy"], "score": ["masked"]}
SAMPLING: list[object] = ["masked", "--chains=1", "--sweeps=1"]


def peaks(name: str, runs: Path, folder: Path, counts: tuple[int, int]) -> tuple[int, int]:
    """The most memory that a command takes for few lines and for many."""
    run, *options = {**COMMANDS, "sample": SAMPLING}[name]
    found = []
    for count in counts:
        file = lines(folder / f"{count}.txt", count, start="_ " if name == "sample" else "")
        output = folder / f"{count}.out"
        found.append(peak(name, runs / str(run), file, *options, output=output))
        with output.open("rb") as written:
            assert sum(1 for _ in written) >= count
    return found[0], found[1]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_outputs_do_not_depend_on_where_examples_are_kept(
    name: str, runs: Path, tmp_path: Path, seqwise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, *options = COMMANDS[name]
    asked = [name, runs / str(run), lines(tmp_path / "lines.txt", 600), *options]
    expected = seqwise(*asked)
    assert expected.code == 0 and len(expected.out.splitlines()) == 600
    for module in (inputs, codecs):
        monkeypatch.setattr(module, "spooled", partial(spooled, in_memory=3))
    assert seqwise(*asked) == expected
    for place in ("kept", "again"):
        assert seqwise(*asked, "--output", tmp_path / place).code == 0
        assert (tmp_path / place).read_text() == expected.out
        monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMMANDS, "sample"])
def test_a_million_lines_take_no_more_memory(name: str, runs: Path, tmp_path: Path, promise: Any) -> None:
    many = 1_000_000
    before, after = peaks(name, runs, tmp_path, (50_000, many))
    assert after <= 1.1 * before + 50_000_000
    promise(f"lines through seqwise {name}", many, "peak memory is that of 50,000 lines, to 10% and 50 MB")
