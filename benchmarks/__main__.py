"""Run all benchmarks, and write the pages of their results.

python -m benchmarks run                # 30 minutes of one idle core; writes results and pages
python -m benchmarks run --threads 2    # comparisons of systems on two cores; results are kept beside those of one
python -m benchmarks run --device cuda  # the same on a GPU, with its own sizes; over 5 minutes
python -m benchmarks run --quick        # do they work? four minutes; nothing is kept
python -m benchmarks page               # docs/benchmarks.md and docs/benchmarks/ from results/benchmarks
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.command import Ratio, add_device
from seqwise.data.durable import write_atomically
from seqwise.evaluation.signature import describe_machine

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results" / "benchmarks", ROOT / "docs" / "benchmarks.md"

# In the order of the page: the module, its arguments in a full run, and those in a quick one.
BENCHMARKS: dict[str, tuple[list[str], list[str]]] = {
    "relaxed_beam": (["--rounds", "5"], ["--sizes", "10", "--rounds", "3"]),
    "long_outputs": (
        ["--long", "1024", "--gpt2", "128"],
        ["--steps", "8", "16", "--rounds", "1", "--hidden", "32", "--layers", "1"],
    ),
    "beam_decoding": ([], ["--rounds", "2", "--shapes", "tiny Marian", "tiny T5"]),
    "constrained_decoding": (
        [],
        ["--rounds", "2", "--batch", "2", "--items", "50", "--k", "5", "--vocabulary", "500", "--hidden", "32"],
    ),
    "pseudo_likelihood": ([], ["--rounds", "2", "--texts", "8", "--shapes", "4 layers of 256", "--long", "40"]),
    "sampler": (["--rounds", "2"], ["--rounds", "2", "--chains", "2", "--length", "5", "--training-steps", "20"]),
    "self_normalization": (
        ["--rounds", "5"],
        ["--rounds", "2", "--positions", "64", "--vocabulary", "2000", "--hidden", "32"],
    ),
    "sampled_normalizer": (["--positions", "40000"], ["--positions", "1500", "--rounds", "3"]),
    "throughput": (["--rounds", "1"], ["--rounds", "1", "--lines", "200"]),
    "start_up": ([], ["--rounds", "1"]),
    "streaming": ([], ["--rounds", "2", "--streams", "2", "--steps", "60"]),
    "chain_log_partition": (["--rounds", "10"], ["--rounds", "3", "--steps", "10", "--labels", "9"]),
    "training": ([], ["--rounds", "1", "--steps", "7", "--batch", "4", "--hidden", "32", "--layers", "1"]),
    "scaling": ([], ["--points", "3", "--rounds", "1"]),
    "training_profile": (["--steps", "10"], ["--steps", "2", "--only", "stress"]),
}

ALONE = ("scaling", "start_up", "throughput", "training_profile")
"""Benchmarks that only run on one core."""

ON_A_DEVICE: dict[str, list[str]] = {
    "relaxed_beam": ["--rounds", "2"],
    "beam_decoding": ["--shapes", "6 + 6 layers of 512, batch 64", "--rounds", "3"],
    "pseudo_likelihood": ["--texts", "2048", "--dtypes", "float32", "bfloat16"],
    "self_normalization": ["--positions", "2048", "16384", "--hidden", "1024", "--rounds", "3"],
    "sampler": ["--chains", "512", "--literal", "1", "--rounds", "2"],
    "long_outputs": [
        *("--steps", "64", "192", "--rounds", "1"),
        *("--hidden", "768", "--layers", "6", "--vocabulary", "50257"),
    ],
    "streaming": ["--streams", "1", "64", "1024", "--steps", "100", "--hidden", "512", "--rounds", "2"],
}
"""Benchmarks that can run on a device, in order, with their arguments in a full run there."""

NAMES = {"intel": "Intel", "amd": "AMD", "apple": "Apple", "other": "other"}
"""Folders of results, and columns of the page, by maker of the processor."""

CPU = torch.device("cpu")

INTRODUCTION = """# Benchmarks

These pages compare the speed and memory of seqwise with named peers; `python -m benchmarks run` writes them. The
systems take turns on the same work, round by round. Ratios are medians over rounds.

A number is the speed of seqwise over that of the other system; with a target ≤, it is a ratio of times or of memory.
"A slot over cross-entropy" is the time of a training step per slot of the beam, over that of a step of cross-entropy.
A target is the aim, reached or not; missed ones are in bold. There is a column for each measured processor, with one
thread and with two (`--threads 2`), and one for the GPU (`--device cuda`). Each question leads to its method and its
measurements, with signatures that name the machines. How to run them: `benchmarks/README.md`.
"""

ABOVE = "One of the [benchmarks](../benchmarks.md). A floor is the time of the matrix products alone."
TOCTREE = "```{toctree}\n:hidden:\n:glob:\n\nbenchmarks/*\n```\n"


def write_pages(results: Path, page: Path) -> None:
    """Write a page of ratios, and in a folder beside it a page for each benchmark: question, method and tables."""
    columns = columns_of(results)
    parts: list[str] = []
    met: dict[str, list[bool]] = {column: [] for column in columns}
    for name in BENCHMARKS:
        paths = {column: folder / f"{name}.json" for column, folder in columns.items()}
        found = {column: json.loads(path.read_text("utf-8")) for column, path in paths.items() if path.exists()}
        if not found:
            continue
        module = importlib.import_module(f"benchmarks.{name}")
        question, _, method = inspect.getdoc(module).partition("\n\n")  # type: ignore[union-attr]
        tables = "\n".join(f"```text\n{module.table(result).strip()}\n```\n" for result in found.values())
        own = page.with_suffix("") / f"{name.replace('_', '-')}.md"
        own.parent.mkdir(exist_ok=True)
        write_atomically(own, f"# {question}\n\n{ABOVE}\n\n{method.strip()}\n\n{tables}")
        parts.append(f"## [{question}]({own.relative_to(page.parent)})\n")
        if hasattr(module, "ratios"):
            ratios = {column: module.ratios(result) for column, result in found.items()}
            for column, several in ratios.items():
                met[column] += [not ratio.missed for ratio in several if ratio.target]
            parts.append(ratio_table(ratios))
    counts = "; ".join(f"{column} {sum(each)} of {len(each)}" for column, each in met.items() if each)
    write_atomically(page, "\n".join([INTRODUCTION, f"Targets met: {counts}.\n", *parts, TOCTREE]))


def columns_of(results: Path) -> dict[str, Path]:
    """Return the folders of results by machine: processors, one thread first, then devices."""
    columns = {}
    for folder, name in ((results / key, name) for key, name in NAMES.items()):
        if folder.exists():
            columns[name] = folder
            others = sorted(folder.glob("threads-*"))
            columns |= {f"{name}, {other.name.removeprefix('threads-')} threads": other for other in others}
    return columns | ({"GPU": results / "cuda"} if (results / "cuda").exists() else {})


def ratio_table(ratios: Mapping[str, Sequence[Ratio]]) -> str:
    """Return a table of the ratios of a benchmark with their targets, a column for each machine."""
    rows: dict[str, dict[str, Ratio]] = {}
    for column, several in ratios.items():
        for ratio in several:
            rows.setdefault(ratio.label, {})[column] = ratio
    lines = [f"| | target | {' | '.join(ratios)} |", "|---" * (2 + len(ratios)) + "|"]
    for label, row in rows.items():
        cells = (_cell(row[column]) if column in row else "" for column in ratios)
        lines.append(f"| {label} | {next(iter(row.values())).target} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(ratio: Ratio) -> str:
    shown = f"{ratio.value:.2f}" if ratio.value < 10 else f"{ratio.value:,.0f}"
    return f"**{shown}**" if ratio.missed else shown


def folder_of(threads: int, device: torch.device) -> Path:
    """Return the folder of results on a device, or on some threads of this machine's processor."""
    if device.type != "cpu":
        return RESULTS / device.type
    processor = describe_machine().lower()
    maker = next((key for key in NAMES if key in processor), "other")
    return RESULTS / maker if threads == 1 else RESULTS / maker / f"threads-{threads}"


def measure(name: str, arguments: Sequence[str]) -> bool:
    """Run a benchmark in its own process, because memory left by another one changes its speed.

    Returns:
        Whether it succeeded. If not, it has printed the reason.
    """
    return not subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments], cwd=ROOT, check=False
    ).returncode


def run(names: Sequence[str], *, quick: bool, threads: int = 1, device: torch.device = CPU) -> None:
    """Run some benchmarks; unless they are quick, keep each result when its benchmark ends, and write the pages.

    Raises:
        SystemExit: some failed; the others were run nevertheless.
    """
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if quick else folder_of(threads, device)
        for number, name in enumerate(names, start=1):
            print(f"[{number}/{len(names)}] {name}", file=sys.stderr, flush=True)
            full, short = BENCHMARKS[name]
            machine = [] if threads == 1 else ["--threads", str(threads)]
            if device.type != "cpu":
                full, machine = ON_A_DEVICE[name], ["--device", str(device)]
            if not measure(name, [*(short if quick else full), *machine, "--output", str(folder / f"{name}.json")]):
                failed.append(name)
        if not quick:
            write_pages(RESULTS, PAGE)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        raise SystemExit(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run benchmarks")
    running.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks: {', '.join(BENCHMARKS)}; default: all")
    running.add_argument("--quick", action="store_true", help="small sizes and few rounds; nothing is kept")
    running.add_argument("--threads", type=int, default=1, help="processor threads of torch (default: 1)")
    add_device(running)
    commands.add_parser("page", help="write the pages from results/benchmarks")
    options = parser.parse_args(arguments)
    if options.command == "page":
        write_pages(RESULTS, PAGE)
        return
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"{unknown[0]} is not a benchmark; there are {', '.join(BENCHMARKS)}")
    if options.threads < 1:
        parser.error("--threads must be 1 or more")
    alone = [name for name in options.names if name in ALONE]
    if options.threads > 1 and alone:
        parser.error(f"{alone[0]} runs on one core only: leave --threads out")
    default = [name for name in BENCHMARKS if options.threads == 1 or name not in ALONE]
    if options.device.type != "cpu":
        if options.threads > 1:
            parser.error("--threads is for the CPU: leave it out with --device")
        on_cpu = [name for name in BENCHMARKS if name not in ON_A_DEVICE]
        refused = [name for name in options.names if name in on_cpu]
        if refused:
            parser.error(f"{refused[0]} runs on the CPU only: leave --device out")
        if not options.names:
            print(f"left out, for the CPU only: {', '.join(on_cpu)}", file=sys.stderr)
        default = list(ON_A_DEVICE)
    run(options.names or default, quick=options.quick, threads=options.threads, device=options.device)


if __name__ == "__main__":
    main()
