"""The pages of docs/: their code runs, they cite what the code cites, and they are linked."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.run import get_args_parser

import seqwise as package
from command_line import Command
from pages import DOCS, blocks, run_page
from reproductions.report import load_table

ROOT = DOCS.parent
RUN = [*sorted((DOCS / "guides").glob("*.md")), DOCS / "scale.md", DOCS / "one-idea.md", DOCS / "extending.md"]
# What a page needs beyond the dependencies, and a place where it is used for the first time.
NEEDED = {
    "translation": "sacrebleu",
    "constraints": "interegular",
    "transduction": "sacrebleu",
    "sampling": "arviz_stats",
}
# What some blocks need beyond that, and what only they contain.
NEEDED_BY_BLOCKS = {"llguidance": "text_grammar"}
MOST_LINES_OF_AN_EXTENSION = 30
MOST_BYTES_OF_A_PICTURE = 200_000


@pytest.mark.thorough
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem in NEEDED:
        pytest.importorskip(NEEDED[page.stem])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    missing = [name for module, name in NEEDED_BY_BLOCKS.items() if importlib.util.find_spec(module) is None]
    run_page(page, without="|".join(missing) or "(?!)")


def test_every_guide_is_known() -> None:
    titles = {
        "tagging", "streaming", "training", "transduction", "translation", "constraints", "scoring", "sampling",
    }  # fmt: skip
    assert {page.stem for page in RUN if page.parent.name == "guides"} == titles


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_page_has_code_and_says_what_comes_out(page: Path) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    assert any(block.shown for block in found)
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(
        re.findall(r"^```[a-z{]", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )


def test_extensions_are_short() -> None:
    found = blocks((DOCS / "extending.md").read_text(encoding="utf-8"))
    assert len(found) > 2 and all(len(block.code.splitlines()) <= MOST_LINES_OF_AN_EXTENSION for block in found)


def test_launched_commands_are_understood_by_the_launcher_and_by_ours(seqwise: Command) -> None:
    text = (DOCS / "scale.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^(?:srun )?torchrun (.*) -m seqwise (masked-model train|[a-z]+) (.*)$", text, re.MULTILINE)
    assert len(commands) == len(re.findall(r"^(?:srun )?torchrun", text, re.MULTILINE)) >= 7
    for launcher, command, options in commands:
        get_args_parser().parse_args([*re.sub(r'"[^"]*"', "4", launcher).split(), "script"])
        known = seqwise(*command.split(), "--help").out
        assert set(re.findall(r"--[a-z-]+", options)) <= set(re.findall(r"--[a-z-]+", known)), command


@pytest.mark.parametrize("page", ["index.md", "data.md"])
def test_commands_that_are_only_shown_exist(page: str, seqwise: Command, corpora_command: Command) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    commands = re.findall(r"^\$ seqwise ([a-z-]+)", text, flags=re.MULTILINE)
    inner = re.findall(r"^\$ python -m reproductions\.corpora ([a-z]+)", text, flags=re.MULTILINE)
    assert commands or inner
    assert all(seqwise(command, "--help").code == 0 for command in commands)
    assert all(corpora_command(command, "--help").code == 0 for command in inner)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem)
def test_pages_import_public_names(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "seqwise":
                listed = getattr(importlib.import_module(node.module or ""), "__all__", ())
                assert {alias.name for alias in node.names} <= {*listed}, f"{page.name}: {ast.unparse(node)}"


def test_every_page_can_be_reached_from_the_start() -> None:
    listed = re.findall(r"^([a-z0-9/-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md") if "_build" not in page.parts}
    benchmarks = re.findall(
        r"\((benchmarks/[a-z-]+)\.md\)$", (DOCS / "benchmarks.md").read_text("utf-8"), flags=re.MULTILINE
    )
    assert pages - {"index"} == {*listed, *benchmarks} - {"api/index"}


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    """The site's own build holds the anchors too."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", prose):
        path = page.parent / target
        assert path.exists() or path.parent.name == "api", target


# ------------------------------------------------------------------------------------------------ bibliography

ENTRIES = [
    " ".join(entry.split()) for entry in (DOCS / "bibliography.md").read_text(encoding="utf-8").split("\n- ")[1:]
]


def cited() -> list[tuple[str, str, str]]:
    """Module, what stands before a year in a paragraph that names sources, and the year."""
    found = []
    for path in sorted(Path(package.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
                for paragraph in re.findall(r"Source: (.*?)(?:\n\n|$)", ast.get_docstring(node) or "", re.DOTALL):
                    text = " ".join(paragraph.split())
                    years = re.finditer(r"\b(19[5-9]\d|20[0-2]\d)\b", text)
                    found += [(path.stem, text[max(0, year.start() - 90) : year.start()], year[0]) for year in years]
    return found


def test_what_docstrings_cite_is_in_the_bibliography() -> None:
    citations = cited()
    assert len(citations) > 100
    missing = [
        f"{module}: {before}{year}"
        for module, before, year in citations
        if not any(is_cited(entry, before) for entry in ENTRIES if re.search(rf"\b{year}\b", entry))
    ]
    assert not missing, "\n".join(missing)


def is_cited(entry: str, before: str) -> bool:
    """Whether an author of an entry, or its title's first word, stands before a year."""
    return any(re.search(rf"\b{name}[,):]", entry) for name in re.findall(r"[A-Z][a-zà-ü]?[A-Za-zà-ü-]+", before))


# ------------------------------------------------------------------------------------------------ what scripts make


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts can be imported."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.mark.parametrize(
    ("script", "result", "page"),
    [
        ("make_mutants_page", "mutants.json", "mutants.md"),
        ("try_models", "hugging-face-models.json", "hugging-face-models.md"),
    ],
)
def test_a_page_is_that_of_its_results(scripts: None, script: str, result: str, page: str) -> None:
    made = importlib.import_module(script).page(json.loads((ROOT / "results" / result).read_text("utf-8")))
    assert (DOCS / page).read_text("utf-8") == made


@pytest.mark.parametrize("script", ["try_models", "make_mutants_page"])
def test_a_script_that_imports_reproductions_is_run_as_a_module(script: str) -> None:
    """From a clone, without any path set: as a file, it would find the folder of scripts alone."""
    where = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = f"import scripts.{script}"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=where, capture_output=True).returncode == 0
    for file in (ROOT / "Makefile", ROOT / "scripts" / f"{script}.py", *DOCS.glob("*.md")):
        assert f"python scripts/{script}.py" not in file.read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "status", "detail"),
    [
        ("MistralForCausalLM", "works", "shared"),
        ("T5ForConditionalGeneration", "works", "shared"),
        ("Qwen3_5ForCausalLM", "works", "copies"),
        ("BertLMHeadModel", "refused", "unknown steps"),
        ("LlamaConfig", "not tried", "AttributeError"),
    ],
)
def test_models_of_transformers_are_tried(scripts: None, name: str, status: str, detail: str) -> None:
    import try_models

    found, said = try_models.attempt(name)
    assert found == status and detail in said


def test_a_model_that_searches_otherwise_than_generate_is_said_to_differ(
    scripts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import try_models

    beam_of = try_models.generated
    monkeypatch.setattr(try_models, "generated", lambda model, source: beam_of(model, source[1:]))
    assert try_models.attempt("LlamaForCausalLM") == ("differs", "its beam is not that of generate")


def test_the_figure_shows_the_way_from_an_average_to_one_candidate(scripts: None, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from reproductions import make_figures

    alphas, weights_AKV = make_figures.weights_by_alpha()
    assert alphas[0] == pytest.approx(0.1) and alphas[-1] == pytest.approx(1000)
    assert torch.allclose(weights_AKV.sum(-1), torch.ones(len(alphas), make_figures.K))
    assert weights_AKV[0].max() < 0.3 and bool((weights_AKV[-1, range(3), range(3)] > 0.99).all())
    make_figures.draw_soft_top_k(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == (DOCS / "soft-top-k.png").read_bytes()[:4] == b"\x89PNG"


def test_the_animation_ends_at_the_hard_beam(scripts: None) -> None:
    from reproductions import make_figures

    model = make_figures.small_tagger()
    costs = [make_figures.cost_of(model, alpha) for alpha in make_figures.BEAM_ALPHAS]
    hard = make_figures.cost_of(model, None)
    assert make_figures.cost_of(model, 3e4) == pytest.approx(hard, abs=1e-3) and hard == round(hard)
    assert abs(costs[0] - hard) > 0.1 and abs(costs[-1] - hard) < 0.05
    assert (DOCS / "relaxed-beam.gif").read_bytes()[:4] == b"GIF8"


def test_every_picture_is_made_and_every_one_is_shown(scripts: None) -> None:
    import make_explorer_picture
    import make_report_picture

    from reproductions import make_figures

    made = set(make_figures.pictures())
    # A run and a browser can only be photographed.
    photographs = {make_explorer_picture.PICTURE.name, make_report_picture.PICTURE.name}
    photographs |= set(re.findall(r"--plot docs/(\S+)", (DOCS / "label-bias.md").read_text("utf-8")))
    assert len(photographs) == 3 and not made & photographs
    there = {path.name for path in DOCS.iterdir() if path.suffix in (".png", ".gif", ".jpg", ".svg")}
    shown = {
        target.removeprefix("docs/").removeprefix("../")
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for target in re.findall(r"!\[[^]]*\]\((?!https?:)([^)\s]+)\)", page.read_text("utf-8"))
    }
    assert there == made | photographs, "make figures draws what is missing; what nothing draws goes"
    assert shown == there, "reproductions/result_pages.py shows what is made of results"


OF_RESULTS = [
    path.name
    for path in sorted(DOCS.glob("*.png"))
    if path.stem == "what-holds" or (ROOT / "results" / f"{path.stem}.json").exists()
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "figure-3.1.png")) for name in OF_RESULTS]
)
def test_a_picture_is_that_of_the_committed_results(scripts: None, name: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    from reproductions import make_figures

    make_figures.pictures()[name](tmp_path / name)
    (new, by), (committed, then) = (
        (np.asarray(picture, dtype=int), picture.info["Software"])
        for picture in (image.open(folder / name) for folder in (tmp_path, DOCS))
    )
    assert (DOCS / name).stat().st_size < MOST_BYTES_OF_A_PICTURE
    if by != then:
        pytest.skip(f"drawn by {then}, which places letters otherwise than {by}")
    # Of 255: another processor may shade the rim of a line a little otherwise.
    assert new.shape == committed.shape and abs(new - committed).max() <= 8, "make figures draws it anew"


@pytest.mark.parametrize("factor, same", [(1.0, True), (1.0001, True), (1.01, False)])
def test_a_reproduction_that_is_run_again_must_give_the_saved_numbers(
    scripts: None, factor: float, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reproductions import make_figures

    saved = load_table(ROOT / "results" / "figure-3.1.json")

    def again(name: str, folder: Path, *, seed: int, **how: Any) -> list[Any]:
        assert name == "figure-3.1" and (seed,) == saved.results[0].signature.seeds
        (folder / "figure.png").write_bytes(b"points")
        results = (replace(saved.results[0], value=factor * saved.results[0].value), *saved.results[1:])
        return [SimpleNamespace(table=replace(saved, results=results), files={"figure": folder / "figure.png"})]

    monkeypatch.setattr(make_figures, "run_reproduction", again)
    if same:
        make_figures.draw_again("figure-3.1", saved, tmp_path / "figure.png")
        assert (tmp_path / "figure.png").read_bytes() == b"points"
    else:
        with pytest.raises(
            SystemExit, match=r"^results/figure-3\.1\.json differs from what its reproduction gives now"
        ):
            make_figures.draw_again("figure-3.1", saved, tmp_path / "figure.png")
        assert not (tmp_path / "figure.png").exists()
