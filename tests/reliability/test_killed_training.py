"""Training that is killed at any moment, and repeatedly, ends with the weights of an undisturbed run."""

from __future__ import annotations

import hashlib
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from reliability.faults import Ended, Fault, command, run, start
from seqwise.training.checkpoints import last_complete

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults are injected by means of Linux")

STEPS, EVERY = 36, 2
RESUMED = "resumed by the same command, same final weights (SHA-256), at most one save interval lost"


def write_columns(path: Path) -> Path:
    draw = random.Random(0)
    sentences = ["".join(f"w{draw.randrange(6)}\tL{draw.randrange(3)}\n" for _ in range(1 + i % 4)) for i in range(24)]
    path.write_text("\n".join(sentences))
    return path


def tagger(folder: Path) -> list[str]:
    """A small LSTM with dropout, 6 batches an epoch."""
    train = write_columns(folder / "train.conll")
    return [
        "train", "--task=tag", "--encoder=left-to-right", f"--train={train}", "--objective=cross-entropy",
        f"--epochs={STEPS / 6}", "--batch-size=4", f"--save-every={EVERY}", "--embedding-size=4", "--hidden-size=4",
        "--dropout=0.3", "--minimum-count=1",
    ]  # fmt: skip


def bart(folder: Path) -> list[str]:
    """A Hugging Face encoder-decoder with its tokenizer."""
    from transformers import BartConfig, BartForConditionalGeneration

    from pretrained import WORDS, saved, word_tokenizer

    torch.manual_seed(0)
    sizes = {f"{side}_{what}": 1 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes |= {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "d_model": 8, "max_position_embeddings": 12}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    model = BartForConditionalGeneration(BartConfig(vocab_size=12, dropout=0.1, **sizes, **special))
    saved(folder / "bart", model, word_tokenizer())
    draw = random.Random(0)
    pairs = [" ".join(draw.choices(WORDS, k=1 + i % 3)) for i in range(24)]
    (folder / "train.tsv").write_text("".join(f"{pair}\t{pair}\n" for pair in pairs))
    return [
        "train", f"--model={folder / 'bart'}", f"--train={folder / 'train.tsv'}", "--objective=cross-entropy",
        f"--epochs={STEPS / 6}", "--batch-size=4", f"--save-every={EVERY}",
    ]  # fmt: skip


MODELS = {"tagger": tagger, "bart": bart}


class Whole:
    """A run that was never killed: its command, what it left, its events and its time."""

    def __init__(self, name: str, folder: Path) -> None:
        self.arguments = MODELS[name](folder)
        self.output = folder / "whole"
        began = time.monotonic()
        ended = run(command, *self.arguments, f"--output={self.output}", root=self.output)
        self.seconds = time.monotonic() - began
        assert ended.code == 0, ended.err
        self.events = ended.events
        self.left = left(self.output)


def left(output: Path) -> dict[str, str]:
    """Return what must be the same: SHA-256 of the weights, the log, and the names of all files."""
    weights = hashlib.sha256((output / "model" / "model.safetensors").read_bytes()).hexdigest()
    names = sorted(path.relative_to(output).as_posix() for path in output.rglob("*"))
    return {"weights": weights, "log": (output / "log.jsonl").read_text(), "names": " ".join(names)}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Whole]:
    return {}


@pytest.fixture
def whole(request: pytest.FixtureRequest, wholes: dict[str, Whole], tmp_path_factory: Any) -> Whole:
    name: str = request.param
    if name not in wholes:
        wholes[name] = Whole(name, tmp_path_factory.mktemp(name))
    return wholes[name]


def of_a_save(events: Sequence[str]) -> list[str]:
    """The events of one save among many, with ``{step}`` and ``{old}`` where they name checkpoints."""
    step, old = STEPS // 2, STEPS // 2 - 2 * EVERY
    begin = next(place for place, name in enumerate(events) if f"checkpoint-{step}" in name)
    end = max(place for place, name in enumerate(events) if f"checkpoint-{old}" in name)
    assert begin < end
    named = [name.replace(f"checkpoint-{step}", "checkpoint-{step}") for name in events[begin : end + 1]]
    # Without those of names that are the same in each save: their number depends on the saves before.
    return [name.replace(f"checkpoint-{old}", "checkpoint-{old}") for name in named if "checkpoint-" in name]


def kept_step(output: Path) -> int:
    last = last_complete(output / "checkpoints")
    return 0 if last is None else int(last.name.rpartition("-")[2])


def require_little_lost(output: Path) -> None:
    """No more than the steps of one interval is in the log and not in a checkpoint."""
    log = output / "log.jsonl"
    steps = log.read_text().count("\n") if log.exists() else 0
    assert steps - kept_step(output) <= EVERY


def kill_inside(whole: Whole, output: Path, points: Sequence[str], how: Sequence[str]) -> int:
    """One run, killed in save after save, each time at another event; how many times it was."""
    for number, point in enumerate(points):
        step = EVERY * (number % (STEPS // EVERY - 3) + 3)
        if step == 3 * EVERY:
            finish(whole, output)
        event = point.format(step=step, old=step - 2 * EVERY)
        ended = run(
            command, *whole.arguments, f"--output={output}", root=output, fault=Fault(event, how[number % len(how)])
        )
        assert ended.code == -9, (event, ended)
        assert ended.events[-1] == event
        require_little_lost(output)
    finish(whole, output)
    return len(points)


def finish(whole: Whole, output: Path) -> None:
    """Let it come to its end, compare, and clear it away for the next."""
    if not output.exists():
        return
    ended = run(command, *whole.arguments, f"--output={output}", root=output)
    assert ended.code == 0, ended.err
    assert left(output) == whole.left
    shutil.rmtree(output)


def kill_at_random(whole: Whole, output: Path, count: int, draw: random.Random) -> int:
    """Runs killed after a random time, again and again; how many kills that took to come to so many."""
    kills = 0
    while kills < count:
        child = start(command, *whole.arguments, f"--output={output}", root=output)
        ended: Ended = child.kill_after(draw.uniform(0, 1.2 * whole.seconds))
        if ended.code == -9:
            kills += 1
            require_little_lost(output)
        else:
            assert ended.code == 0, ended.err
            finish(whole, output)
    finish(whole, output)
    return kills


@pytest.mark.thorough
@pytest.mark.parametrize("whole", ["tagger"], indirect=True)
def test_killed_inside_a_save_training_ends_with_the_same_weights(whole: Whole, tmp_path: Path, promise: Any) -> None:
    events = of_a_save(whole.events)
    assert len(events) >= 15
    points = [events[len(events) * number // 15] for number in range(15)]
    kills = kill_inside(whole, tmp_path / "run", points, ["kill", "power"])
    promise("training of an LSTM killed inside a save", kills, RESUMED)


SLOW = pytest.mark.slow


@pytest.mark.thorough
@pytest.mark.parametrize(
    "whole, count",
    [("tagger", 3), pytest.param("tagger", 50, marks=SLOW), pytest.param("bart", 10, marks=SLOW)],
    indirect=["whole"],
)
def test_killed_at_random_moments(whole: Whole, count: int, tmp_path: Path, promise: Any) -> None:
    name = "an LSTM" if "--task=tag" in whole.arguments else "a Hugging Face model"
    kills = kill_at_random(whole, tmp_path / "run", count, random.Random(0))
    promise(f"training of {name} killed at random moments", kills, RESUMED)


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["bart"], indirect=True)
def test_killed_at_each_event_of_a_save(whole: Whole, tmp_path: Path, promise: Any) -> None:
    events = of_a_save(whole.events)
    kills = kill_inside(whole, tmp_path / "run", events, ["power", "kill"])
    promise("training of a Hugging Face model killed inside a save", kills, RESUMED)


@pytest.mark.thorough
@pytest.mark.parametrize("whole", ["tagger"], indirect=True)
def test_killed_before_and_after_training(whole: Whole, tmp_path: Path, promise: Any) -> None:
    early = whole.events[: whole.events.index("rename configuration.yaml") + 1]
    late = [name for name in whole.events if name.partition(" ")[2].startswith(("model", ".metrics", "metrics"))]
    assert len(early) >= 3 and "rename model" in late
    output, points = tmp_path / "run", [*early, *late[:: len(late) // 6], "rename model", "rename metrics.json"]
    for point in points:
        ended = run(command, *whole.arguments, f"--output={output}", root=output, fault=Fault(point, "power"))
        assert ended.code == -9, (point, ended)
    finish(whole, output)
    promise("training killed before its first step and after its last", len(points), RESUMED)


@pytest.mark.thorough
@pytest.mark.parametrize("whole", ["tagger"], indirect=True)
def test_killed_between_the_last_save_and_the_removal_of_older_ones(whole: Whole, tmp_path: Path, promise: Any) -> None:
    output, old = tmp_path / "run", f"remove checkpoints/checkpoint-{STEPS - 2 * EVERY}/"
    named = whole.events.index(f"rename checkpoints/checkpoint-{STEPS}")
    removals = [name for name in whole.events[named:] if name.startswith(old)]
    points = [whole.events[named + 1], removals[0], removals[-1]]
    for point in points:
        ended = run(command, *whole.arguments, f"--output={output}", root=output, fault=Fault(point, "kill"))
        assert ended.code == -9, (point, ended)
        finish(whole, output)
    promise("training killed between its last save and the removal of older ones", len(points), RESUMED)


@pytest.mark.thorough
@pytest.mark.parametrize("whole", ["tagger"], indirect=True)
def test_files_of_a_checkpoint_are_flushed_before_it_counts(whole: Whole, promise: Any) -> None:
    step = STEPS // 2
    final, written = f"checkpoints/checkpoint-{step}", f"checkpoints/unfinished/checkpoint-{step}"
    place = {name: number for number, name in enumerate(whole.events)}
    files = [
        name.partition(" ")[2] for name in whole.events if name.startswith(("write ", "open ")) and written in name
    ]
    files = [name for name in files if "manifest" not in name]
    assert len(files) == 6  # weights, settings, optimiser, schedule, generators, state
    sealed = place[f"rename {written}/manifest.json"]
    for name in files:
        began = min(place.get(f"{what} {name}", sealed) for what in ("write", "open"))
        assert began < place[f"fsync {name}"] < place[f"open {written}/.manifest.json.part"]
    assert place["fsync log.jsonl" + f" #{step // EVERY - 1}"] < sealed
    assert place[f"fsync {written}/.manifest.json.part"] < sealed < place[f"fsync {written} #1"]
    named = place[f"rename {final}"]
    assert place[f"fsync {written} #1"] < named and whole.events[named + 1].startswith("fsync checkpoints")
    older = f"remove checkpoints/checkpoint-{step - 2 * EVERY}/"
    assert named + 1 < min(number for name, number in place.items() if name.startswith(older))
    assert not any(name.startswith(("write ", "open ")) and final in name for name in whole.events)
    promise(
        "order of writes in a checkpoint",
        1,
        "files, manifest, name: each flushed before the next; older checkpoints removed last",
    )


def fail_inside(whole: Whole, output: Path, points: Sequence[str], how: Sequence[str]) -> int:
    """One run whose disk fails in save after save, each time at another event; how often it said so in one line."""
    for number, point in enumerate(points):
        step = EVERY * (number % (STEPS // EVERY - 3) + 3)
        if step == 3 * EVERY:
            finish(whole, output)
        fault = Fault(point.format(step=step, old=step - 2 * EVERY), how[number % len(how)])
        ended = run(command, *whole.arguments, f"--output={output}", root=output, fault=fault)
        assert ended.code == 2, (fault, ended)
        device, *before, line = ended.err.splitlines()
        assert device == "running on cpu" and all("resumed after step" in said for said in before), ended.err
        assert line.startswith(f"seqwise: {output}/checkpoints/") and "same command again" in line, line
        require_little_lost(output)
    finish(whole, output)
    return len(points)


@pytest.mark.thorough
@pytest.mark.parametrize("whole", ["tagger"], indirect=True)
def test_a_disk_that_fails_inside_a_save_is_reported(whole: Whole, tmp_path: Path, promise: Any) -> None:
    events = of_a_save(whole.events)
    writes = [name for name in events if name.startswith("write ")]
    points = [*writes, *events[1 :: len(events) // 5]]
    count = fail_inside(whole, tmp_path / "run", points, ["ENOSPC", "EIO", "ENOSPC"])
    promise("a full or broken disk inside a save", count, f"reported in one line; {RESUMED}")


@pytest.mark.slow
@pytest.mark.parametrize("whole", ["tagger"], indirect=True)
@pytest.mark.parametrize("how", ["ENOSPC", "EIO"])
def test_a_disk_that_fails_at_any_event_of_a_save_is_reported(
    whole: Whole, how: str, tmp_path: Path, promise: Any
) -> None:
    # The third time the folder is there, and Python passes over whatever else a disk says to "make it if need be".
    events = [event for event in of_a_save(whole.events) if not (event.startswith("mkdir ") and event.endswith(" #2"))]
    count = fail_inside(whole, tmp_path / "run", events, [how])
    promise("a full or broken disk inside a save", count, f"reported in one line; {RESUMED}")
