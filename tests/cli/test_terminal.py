"""The command line in a terminal: progress, completion, imports and help."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.console import Console

from command_line import Command, run_main
from seqwise.cli import app
from seqwise.cli import console as console_module
from seqwise.cli.console import bar_for_each_part, bar_for_each_stage, progress_bars
from seqwise.cli.examples import EXAMPLES
from seqwise.cli.line_progress import LineProgress
from seqwise.training.trainer import Progress


def lines_of(captured: pytest.CaptureFixture[str]) -> list[str]:
    return captured.readouterr().err.splitlines()


def test_progress_is_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = LineProgress(every=30, clock=lambda: now[0])
    task = progress.add_task("training", total=4000, note="")
    for step in range(100):
        now[0] = float(step)
        progress.update(task, completed=20 * step, note=f"loss {step / 100:.2f}")
    # At 30, 60 and 90 seconds. (How much time is left is told from the real clock, which has not moved enough.)
    said = lines_of(capsys)
    assert [line.split(",")[0] for line in said] == ["training: 600 of 4", "training: 1", "training: 1"]
    assert [line.split("; ")[1] for line in said] == ["loss 0.30", "loss 0.60", "loss 0.90"]


def test_progress_without_a_total_counts_steps(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = LineProgress(every=30, clock=lambda: now[0])
    task = progress.add_task("scoring", total=None, note="")
    progress.advance(task)
    assert lines_of(capsys) == []
    now[0] = 31.0
    progress.advance(task)
    progress.advance(task)
    assert lines_of(capsys) == ["scoring: 2"]


def test_time_left_is_shown_after_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Each takes a minute, which is longer than what rich looks back at."""
    now = [0.0]
    progress = LineProgress(every=30, clock=lambda: now[0])
    progress.get_time = lambda: now[0]
    task = progress.add_task("sampling", total=200, note="")
    for step in (1, 2, 3):
        now[0] = 60.0 * step
        progress.update(task, completed=120 + 2 * step, note="", pace=30.0)
    assert lines_of(capsys) == [
        f"sampling: {completed} of 200, {timedelta(seconds=seconds)} left"
        for completed, seconds in ((122, 78 * 30), (124, 76 * 30), (126, 74 * 30))
    ]


def test_a_stage_that_may_stop_early_has_a_range_of_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LineProgress(every=0)
    show = bar_for_each_stage(bar_for_each_part(progress), ["warm start", "training"], begun=set())
    step = Progress(20, 90, 0.5, 0.1, 1.0, {}, 7.0, measured={"accuracy": 0.4}, seconds_left=70.2, earliest_end=9)
    show("warm start", step)
    show("training", replace(step, step=1, steps=30, measured={}, seconds_left=8.0, earliest_end=8.0))
    assert lines_of(capsys) == [
        "warm start: resumed after step 19 of 90",
        "1/2 warm start: 20 of 90, 0:00:09-0:01:10 left; loss 0.500, accuracy 40.0",
        "1/2 warm start: 20 of 20, 0:00:00 left; loss 0.500, accuracy 40.0",
        "2/2 training: 1 of 30, 0:00:08 left; loss 0.500",
    ]


@pytest.mark.parametrize("width", [80, 140])
def test_a_bar_shows_the_time_left_whatever_the_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    console = Console(width=width, force_terminal=True, file=io.StringIO(), color_system=None)
    monkeypatch.setattr(console_module, "err", lambda: console)
    note = "accepted 56%, new 34%, energy 1234"
    with progress_bars() as bars:
        for more in ("", ", and what has no room" * 9):
            task = bars.add_task("sampling", total=1650, note="")
            bars.update(task, completed=5, note=note + more, pace=18.0)
    with console.capture() as captured:
        console.print(bars.get_renderable())
    for line, whole in zip(captured.get().splitlines(), (True, False), strict=True):
        assert re.search(r" 5/1650 8:13:30 accepted 56%", line)
        assert len(line) <= width and (note in line or not whole)


def test_commands_have_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress_bars() as bars:
        assert isinstance(bars, LineProgress)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("seqwise tr", ["train"]),
        ("seqwise train --obj", ["--objective"]),
        ("seqwise train --objective hard", ["hard-hinge"]),
        ("seqwise train --objective au", ["auto"]),
        ("seqwise train --model ch", ["chain"]),
        ("seqwise train --encoder l", ["left-to-right"]),
        ("seqwise train --train da", []),  # so that the shell completes the name of a file
        ("seqwise predict ru", ["runs/mlm", "runs/tagger"]),
        ("seqwise predict ./runs/t", ["./runs/tagger"]),
        ("seqwise predict runs/tagger da", []),
        ("seqwise predict --decoder b", ["beam", "best"]),
        ("seqwise sample --kernel g", ["gibbs"]),
        ("seqwise masked-model train --format f", ["fasta"]),
    ],
)
def test_the_shell_completes(
    seqwise: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, completed: list[str]
) -> None:
    for file in ("runs/tagger/configuration.yaml", "runs/mlm/settings.json", "runs/notes/ideas.txt", "data.conll"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_SEQWISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert seqwise().out.split() == completed


def imports(
    modules: Sequence[str], *arguments: str, **options: Any
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run a command in a process, and return which of these modules it has imported at its end."""
    program = f"""
import atexit, sys
atexit.register(lambda: print("imported:", *(name for name in {modules!r} if name in sys.modules)))
sys.argv = ["seqwise", *{arguments!r}]
from seqwise.cli import main
main()
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, **options)
    ended.stdout, _, imported = ended.stdout.rpartition("imported:")
    return ended, imported.split()


@pytest.mark.parametrize(
    ("typed", "environment"),
    [
        ("seqwise --help", {}),
        ("seqwise train --help", {}),
        ("seqwise masked-model train --help", {}),
        ("seqwise", {"_SEQWISE_COMPLETE": "complete_bash", "COMP_WORDS": "seqwise tr", "COMP_CWORD": "1"}),
        (
            "seqwise",
            {"_SEQWISE_COMPLETE": "complete_bash", "COMP_WORDS": "seqwise sample --kernel g", "COMP_CWORD": "3"},
        ),
        ("seqwise", {"_SEQWISE_COMPLETE": "complete_bash", "COMP_WORDS": "seqwise predict r", "COMP_CWORD": "2"}),
    ],
)
def test_help_and_completion_import_nothing_slow(typed: str, environment: dict[str, str]) -> None:
    slow = ["torch", "transformers", "numpy", "rich", "pydantic"]
    ended, imported = imports(slow, *typed.split()[1:], env=os.environ | environment)
    assert ended.stdout and ended.returncode == 0, ended.stderr
    # The flags of a command are read off its configuration.
    words = environment.get("COMP_WORDS", typed).split()
    assert imported == (["pydantic"] if {"sample", "train"} & set(words) else [])


@pytest.mark.parametrize(
    "typed",
    [
        "train --dropout=2 --output out",
        "tune task.yaml --dropout=2 --trials 2 --output out",
        "masked-model train data.txt --dropout=2 --output out",
        "sample run --temperature=-1",
    ],
)
def test_wrong_settings_are_refused_before_anything_slow_is_imported(typed: str, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("task: tag\n")
    ended, imported = imports(["torch", "transformers"], *typed.split(), cwd=tmp_path)
    assert ended.returncode == 2 and " must be " in ended.stderr, ended.stderr
    assert (ended.stdout, imported) == ("", [])


def test_standard_streams_may_be_closed(seqwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert seqwise("debug-data", "-").complaint == "<stdin>: standard input is closed; give a file"
    monkeypatch.setattr(sys, "stdout", None)
    assert seqwise("--version") == (0, "", "")


@pytest.mark.parametrize("module", [True, False], ids=["python -m seqwise", "seqwise"])
def test_an_interrupt_while_the_command_is_imported_leaves_no_traceback(module: bool) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    script, _, main = project["scripts"]["seqwise"].partition(":")
    start = "runpy.run_module('seqwise', run_name='__main__')" if module else f"{script}.{main}()"
    program = f"""
import os, runpy, signal, sys
import seqwise.__main__

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
sys.meta_path.insert(0, Interrupted())
{start}
"""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.thorough
def test_predict_of_an_own_tagger_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Apart from torch, imports are what takes the time of predicting one sentence."""
    (tmp_path / "train.conll").write_text("the\tDET\ndog\tNOUN\n\na\tDET\ncat\tNOUN\n")
    given = ["--train", tmp_path / "train.conll", "--hidden-size=8", "--epochs=1"]
    run_main("train", *given, "--output", tmp_path / "run")
    unused = ["transformers", "tokenizers", "huggingface_hub", "httpx", "httpx2", "rich", "jinja2", "matplotlib"]
    unused += ["seqwise.sampling", "seqwise.hugging_face", "seqwise.pages", "seqwise.training.trainer"]
    unused += [f"seqwise.runs.{name}" for name in ("training", "scoring", "sampling", "diagnosis", "streaming")]
    ended, imported = imports(unused, "predict", str(tmp_path / "run"), "the dog")
    assert len(ended.stdout.splitlines()) == 4 and ended.returncode == 0, ended.stderr
    assert imported == []


# ---- Help -----------------------------------------------------------------------------------------------------------

GROUP: Any = typer.main.get_command(app)


def commands(group: Any = GROUP, name: str = "") -> dict[str, Any]:
    """Every command and group, by what one types."""
    found = {name: group}
    for inner, command in getattr(group, "commands", {}).items():
        found |= commands(command, f"{name} {inner}".strip())
    return found


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(commands())


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_ends_with_the_examples(seqwise: Command, name: str) -> None:
    said = seqwise(*name.split(), "--help").out
    for line in (line for example in EXAMPLES[name] for line in example.split("\n")):
        assert f"  {line}\n" in said and len(line) <= 76


@pytest.mark.parametrize("line", sorted({line for lines in EXAMPLES.values() for line in lines}))
def test_examples_are_command_lines(line: str) -> None:
    """Each is parsed, flags and all, as far as nothing is run."""
    words = shlex.split(line.replace("\\\n", ""))
    # What the shell sees to.
    words = words[: min(words.index(sign) if sign in words else len(words) for sign in "<>")]
    program, *rest = words
    assert program == "seqwise"
    command = GROUP
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if command is GROUP:
        assert rest == ["--install-completion"]
        return
    context = command.make_context(command.name, rest, resilient_parsing=False)
    assert context.params


@pytest.mark.parametrize("name", [name for name, command in commands().items() if hasattr(command, "commands")])
def test_lists_of_commands_are_not_cut(seqwise: Command, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = seqwise(*name.split(), "--help").out.splitlines()
    assert "Commands:" in lines
    assert not any("..." in line for line in lines[lines.index("Commands:") :]) and max(map(len, lines)) <= 80


@pytest.mark.parametrize(("name", "fewest"), [("train", 6), ("sample", 6)])
def test_long_helps_have_groups(seqwise: Command, name: str, fewest: int) -> None:
    parts = re.split(r"^(\w.*):$", seqwise(name, "--help").out, flags=re.MULTILINE)
    groups = dict(zip(parts[1::2], parts[2::2], strict=True))
    flags = {title: re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE) for title, text in groups.items()}
    flags = {title: names for title, names in flags.items() if names}
    assert len(flags) >= fewest and max(map(len, flags.values())) <= 20
    command = commands()[name]
    parameters = command.get_params(typer.Context(command))
    assert sum(map(len, flags.values())) == sum(p.param_type_name == "option" for p in parameters)


def test_examples_of_a_command_are_of_that_command() -> None:
    for name, lines in EXAMPLES.items():
        if not hasattr(commands()[name], "commands"):
            assert all(line.startswith(f"seqwise {name} ") or line == f"seqwise {name}" for line in lines)
