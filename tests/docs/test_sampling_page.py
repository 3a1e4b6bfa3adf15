"""The code and the commands of docs/sampling.md run and print what the page shows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result as Ran
from typer.testing import CliRunner

from pages import blocks, run_python
from reproductions import REPRODUCTIONS
from reproductions.command import app as reproductions_app
from seqwise.cli import app
from seqwise.sampling.diagnostics import MOST_R_HAT

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
BLOCKS = [(block.code, block.shown or "") for block in blocks(PAGE, "python")]
COMMANDS = re.findall(r"^\$ seqwise (.+)$", PAGE, flags=re.MULTILINE)


# ------------------------------------------------------------------ code


@pytest.mark.thorough
def test_the_code_prints_what_the_page_says() -> None:
    pytest.importorskip("arviz_stats")
    assert len(BLOCKS) >= 6
    namespace: dict[str, Any] = {}
    for number, (code, shown) in enumerate(BLOCKS, start=1):
        printed = run_python(code, f"docs/sampling.md, block {number}", namespace)
        assert shown and printed == shown, f"block {number} prints:\n{printed}"


def test_lines_of_code_fit_the_page() -> None:
    assert all(len(line) <= 120 for code, shown in BLOCKS for line in (code + shown).splitlines())


def test_what_the_text_says_of_the_output() -> None:
    printed = "".join(shown for _, shown in BLOCKS)
    (mean,) = re.findall(r"^MH on E_local .* ([\d.]+)$", printed.partition("mean E_local")[2], flags=re.MULTILINE)
    assert f"{float(mean):.2f}" in TEXT
    found = re.findall(r"accepted ([\d.]+), novel ([\d.]+), mean energy ([\d.]+)", printed)
    (single, blocks) = ([float(number) for number in row] for row in found)
    assert single[0] > blocks[0] and single[2] < min(blocks[2], float(mean)), "the higher acceptance, the lower energy"
    r_hats = [float(number) for number in re.findall(r"R-hat ([\d.]+)", printed)]
    assert r_hats[1] > r_hats[0] > 1.05 > max(r_hats[2:]), "loudest for the feature"
    assert f"R-hat {max(r_hats[2:])}" in TEXT and max(r_hats[2:]) > MOST_R_HAT
    limits = re.findall(r"^Gibbs, \w+ to \w+ (.+)   ([\d.]+)$", printed, flags=re.MULTILINE)
    assert [float(far) for _, far in limits] == [0.49, 0.0] and limits[0][0] == "0.250 0.250 0.250 0.250"
    rows = re.findall(r"^Gibbs, T = ([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", printed, flags=re.MULTILINE)
    assert rows[0][1] == "0.000" and float(rows[1][3]) < float(mean) and float(rows[1][2]) > 0


# ------------------------------------------------------------------ reproductions


def test_reproductions_exist() -> None:
    assert set(re.findall(r"`python -m reproductions ([a-z0-9.-]+)`", PAGE)) <= set(REPRODUCTIONS)


# ------------------------------------------------------------------ commands


def test_every_flag_exists() -> None:
    command: Any = typer.main.get_command(app)
    commands = [_command(command, *name) for name in (("sample",), ("score",), ("masked-model", "train"))]
    commands.append(typer.main.get_command(reproductions_app))
    known = {option for each in commands for parameter in _parameters(each) for option in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known
    kernels = re.search(r"`--kernel ([a-z-]+)`, `([a-z-]+)`, `([a-z-]+)`", PAGE)
    assert kernels is not None and "--kernel" in known


def _parameters(command: Any) -> Any:
    return command.get_params(typer.Context(command))


def _command(group: Any, *names: str) -> Any:
    for name in names:
        group = group.commands[name]
    return group


def test_every_use_of_a_masked_model_has_a_command() -> None:
    assert len(COMMANDS) == 7
    assert [command.split()[0] for command in COMMANDS] == [
        "masked-model", "score", "sample", "sample", "sample", "masked-model", "sample",
    ]  # fmt: skip


WORDS = {"cat": "Katze", "dog": "Hund", "bird": "Vogel"}


def write_data() -> None:
    """The files that the page names, in the working directory."""
    names = list(WORDS)
    sentences = [f"the {one} {verb} a {other}" for one in names for verb in ("sees", "hears") for other in names]
    sentences += [f"the {one} sleeps now" for one in names]
    Path("sentences.txt").write_text("\n".join(sentences) + "\n")
    Path("dev.txt").write_text("\n".join(sentences[:4]) + "\n")
    pairs = [f"der {german} {verb}\tthe {english} {meaning}" for english, german in WORDS.items()
             for verb, meaning in (("schläft", "sleeps"), ("singt", "sings"), ("kommt", "is coming"))]  # fmt: skip
    Path("de-en.tsv").write_text("\n".join(pairs) + "\n")
    Path("german.txt").write_text("der Hund singt\nder Vogel kommt\n")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Ran]]:
    """Every command of the page, run one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        write_data()
        runner = CliRunner()
        yield [runner.invoke(app, shlex.split(command)) for command in COMMANDS]


def records(result: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


@pytest.mark.thorough
def test_the_commands_run(ran: list[Ran]) -> None:
    for command, result in zip(COMMANDS, ran, strict=True):
        assert result.exit_code == 0, f"{command}\n{result.output}\n{result.exception!r}"


@pytest.mark.thorough
def test_the_commands_do_what_the_page_says(ran: list[Ran]) -> None:
    _, scored, drawn, filled, held, _, translated = map(records, ran)
    assert len(scored) == 4 and all(len(one["token_log_probs"]) == len(one["tokens"]) for one in scored)
    assert {one["problem"] for one in drawn} == {1, 2, 3} and {len(one["text"].split()) for one in drawn} <= {4, 5, 6}
    assert filled and all(re.fullmatch(r"the \S+ sees a \S+", one["text"]) for one in filled)
    assert held and all("the cat" in one["text"] and "bird" not in one["text"].split() for one in held)
    assert [one["source"] for one in translated] == ["der Hund singt", "der Vogel kommt"]
    for result in (ran[2], ran[3], ran[4]):
        assert "accepted" in result.stderr and "novel" in result.stderr
    assert Path("samples").is_dir(), "what --output is for"
