"""Manners of the command line: progress where there is no terminal, and completion."""

from __future__ import annotations

import pytest

from command_line import Command
from seqwise.cli.console import LineProgress, progress_bars


def lines_of(captured: pytest.CaptureFixture[str]) -> list[str]:
    return captured.readouterr().err.splitlines()


def test_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_steps_count_as_well_and_what_is_soon_over_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = LineProgress(every=30, clock=lambda: now[0])
    task = progress.add_task("scoring", total=None, note="")
    progress.advance(task)
    assert lines_of(capsys) == []
    now[0] = 31.0
    progress.advance(task)
    progress.advance(task)
    assert lines_of(capsys) == ["scoring: 2"]


def test_commands_have_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress_bars() as bars:
        assert isinstance(bars, LineProgress)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("seqwise tr", ["train"]),
        ("seqwise train --obj", ["--objective"]),
        ("seqwise reproduce table-3", ["table-3.1", "table-3.2"]),
    ],
)
def test_the_shell_completes(
    seqwise: Command, monkeypatch: pytest.MonkeyPatch, typed: str, completed: list[str]
) -> None:
    monkeypatch.setenv("_SEQWISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert seqwise().out.split() == completed
