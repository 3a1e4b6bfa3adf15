"""seqwise sample in blocks: the same samples as at once, also if killed or shared among processes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.test_sample import Killed, build, settings_of
from command_line import Command
from run_folders import contents
from sampled import report_lines, sample
from seqwise import InputError
from seqwise.data import Example
from seqwise.data.spooled import spooled
from seqwise.runs import sampling as module
from seqwise.runs import sampling_folder, sampling_problems
from seqwise.runs.loading import save_run
from seqwise.runs.sampling import Group, SweepDone, sample_in_blocks
from seqwise.runs.sampling_problems import FREE, Problem, problem_warnings, read_problems
from seqwise.runs.sampling_report import SampleReport
from seqwise.runs.sampling_settings import SampleSettings
from seqwise.sampling import Trace
from seqwise.sampling.diagnostics import effective_sample_size, split_r_hat, tail_effective_sample_size
from seqwise.sampling.problems import ChainProblem
from training.test_several_processes import ended, launch


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("words", "characters", "pairs", "fasta"):
        save_run(build(kind, dtype=torch.float32), folder / kind)
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Two problems make a block, and more than three are kept on the disk."""
    monkeypatch.setattr(module, "BLOCK", 2)
    monkeypatch.setattr(sampling_problems, "DRAWS_AT_ONCE", 2)
    monkeypatch.setattr(sampling_problems, "spooled", partial(spooled, in_memory=3))
    return monkeypatch


def without_time(lines: list[str]) -> list[str]:
    return [re.sub(r"; \S+ per second", "", line) for line in lines]


# ---- Samples and report ---------------------------------------------------------------------------------------------


SOURCES, TO_FILL = ("abc", "cab", "b", "acb", "c"), ("_b_", "a_", "__c", "_", "a_b_")
CASES: dict[str, tuple[str, tuple[str | None, ...], dict[str, Any]]] = {
    "whole sequences": ("words", (None,), {"count": 5, "length": "2-4", "every": 5}),
    "what is free": ("characters", TO_FILL, {"proposal_temperature": 1.5}),
    "two lengths, the best": ("pairs", SOURCES, {"length_beam": 2, "best": True, "proposal_temperature": 1.5}),
    "two lengths, tempering": (
        "pairs", SOURCES, {"length_beam": 2, "kernel": "parallel-tempering", "temperatures": (1.0, 2.0)},
    ),
    "mask-predict": ("characters", TO_FILL, {"kernel": "mask-predict"}),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_many_blocks_give_the_samples_of_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples, the report, and how far it is said to be; of each problem the chains are advanced alone, to the bit."""
    kind, texts, given = CASES[name]
    run = build(kind)
    asked: dict[str, Any] = (
        {"chains": 2, "sweeps": 14, "discard": 4, "seed": 3} if given.get("kernel") != "mask-predict" else {}
    )
    settings = settings_of(**asked, **given, max_rows=1)
    problems = [one for text in texts for one in read_problems(run, text, settings)]
    steps: list[SweepDone] = []
    whole = sample(run, problems, settings, on_sweep=steps.append)
    monkeypatch.setattr(module, "BLOCK", 2)
    report, blocks, again = SampleReport(settings), [], list[SweepDone]()
    for block in sample_in_blocks(run, problems, settings, on_sweep=again.append):
        report.add(block.groups)
        blocks.append(block)
    lengths = settings.length_beam
    assert [len(block.groups) for block in blocks] == [2 * lengths, 2 * lengths, lengths]
    assert [one for block in blocks for one in block.samples] == whole.samples
    assert without_time(report.lines()) == without_time(report_lines(whole, settings))
    total = 5 * lengths * settings.num_sweeps
    assert [(step.done, step.total) for step in again] == [(number, total) for number in range(1, total + 1)]
    assert [(step.done, step.total) for step in steps] == [(step.done, step.total) for step in again]
    # Among others they go the same way, but for the rounding of matrix products of other sizes.
    together = sample(run, problems, settings_of(**asked, **given))
    assert [one.tokens for one in together.samples] == [one.tokens for one in whole.samples]


def test_the_report_names_the_worst_of_all_whatever_their_order() -> None:
    """Of several warnings of one kind one is printed, that of the chains that agree least; of two alike the first."""
    pytest.importorskip("arviz_stats")
    settings = settings_of(chains=4, sweeps=20, discard=0)
    generator = torch.Generator().manual_seed(0)
    noise_SB = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    # Problems 2 and 4 do not move; the chains of 1, 3, 5 and 6 lie ever farther from each other, 6 as far as 5.
    spread = torch.arange(4)
    energies = [noise_SB + spread, 0 * noise_SB, noise_SB + 3 * spread, 0 * noise_SB, *[noise_SB + 9 * spread] * 2]
    groups = []
    for number, energy_SB in enumerate(energies):
        ones_SB = torch.ones(20, 4, dtype=torch.int64)
        every_S = torch.ones(20, dtype=torch.bool)
        trace = Trace(energy_SB, ones_SB, ones_SB, 0 * ones_SB, ones_SB, every_S, seconds=2.0)
        groups.append(Group([ChainProblem((FREE,), num_chains=4, problem=number)], trace))
    worst, least = split_r_hat(energies[4]), min(effective_sample_size(one) for one in energies[::2])
    total = sum(effective_sample_size(energies[place]) for place in (0, 2, 4, 5))
    tails = [tail_effective_sample_size(energies[place]) for place in (0, 2, 4, 5)]
    tail, least_tail = sum(tails), min(tails)
    for seed in range(4):
        report = SampleReport(settings)
        for place in torch.randperm(6, generator=generator).tolist() if seed else range(6):
            report.add([groups[place]])
        first, ess, its_tails, r_hat, stuck, apart = report.lines()
        mean = sum(float(one.mean()) for one in energies) / 6
        assert first.endswith(f"accepted 100.0%, novel 0.0%, mean energy {mean:.4g} nats")
        assert ess.startswith(f"effective sample size of the energy {total:.4g}, at worst {least:.4g} (problem ")
        assert ess.endswith(f"; {total / 12:.3g} per second, {total / 480:.3g} per pass")
        assert its_tails.startswith(f"effective sample size of its tails {tail:.4g}, at worst {least_tail:.4g} (")
        assert r_hat == f"R-hat of the energy at worst {worst:.4g} (problem 5)"
        assert stuck.startswith("warning: problem 2: the chains do not move: ")
        assert stuck.endswith(" (and 1 more of 6)")
        assert apart.startswith(f"warning: problem 5: R-hat of energy is {worst:.3f}, above 1.01: the chains disagree")
        assert apart.endswith(" (and 3 more of 6)")


# ---- Problems on the disk -------------------------------------------------------------------------------------------


PROBLEMS: dict[str, tuple[str, str | None]] = {
    "nothing": ("words", None),
    "words": ("words", "a _ z\n_ b\n_\n_ _ _ _ q\nc _\n"),
    "sources": ("pairs", "abc\ncab\nb\nacb\nc\n"),
    "pairs": ("pairs", "ab\t_ a\ncab\t_ b _\nc\t_\nb\t_ _\na\tc _\n"),
    "proteins": ("fasta", ">P1 one\na_b\n>P2\n_cc\n>P3\n_\n>P4\nab_\nc\n>P5\n__\n"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_on_the_disk_are_those_in_memory(name: str, small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kind, text = PROBLEMS[name]
    run, settings = build(kind), settings_of(count=1 if text else 5, seed=2)
    file = tmp_path / "problems.txt"
    file.write_text(text or "")

    def read() -> Any:
        return read_problems(run, str(file) if text else None, settings)

    on_disk = read()
    lines, told_apart = problem_warnings(run, on_disk), module._fingerprints(run, on_disk)
    small.undo()
    in_memory = read()
    assert isinstance(in_memory, list) and not isinstance(on_disk, list)
    assert list(on_disk) == in_memory and on_disk[3:] == in_memory[3:] and len(on_disk) == 5
    assert problem_warnings(run, in_memory) == lines and (name != "words" or len(lines) == 2)
    assert module._fingerprints(run, in_memory) == told_apart
    assert module._fingerprints(run, in_memory[:4]) != told_apart


@pytest.mark.thorough
@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_command_prints_the_same_in_blocks(
    name: str, output: bool, runs: Path, seqwise: Command, small: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind, text = PROBLEMS[name]
    file = tmp_path / "problems.txt"
    file.write_text(text or "")
    asked: list[object] = ["sample", runs / kind, *([file] if text else ["--count=5"]), "--chains=2", "--sweeps=6"]
    asked += ["--max-rows=1", "--every=3"]
    in_blocks = seqwise(*asked, *(["--output", tmp_path / "out"] if output else []))
    small.undo()
    whole = seqwise(*asked)
    assert len(in_blocks.records) == 2 * 5 and in_blocks.out == whole.out
    assert without_time(in_blocks.err.splitlines()) == without_time(whole.err.splitlines())
    if output:
        assert (tmp_path / "out" / "samples.jsonl").read_text() == whole.out
        assert len(list((tmp_path / "out" / "chains").glob("*.jsonl"))) == 5


def test_a_mistake_in_the_last_line_is_found_before_the_first_sample(
    runs: Path, seqwise: Command, small: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "problems.txt"

    def ended_with(last: str, *flags: str) -> Any:
        file.write_text("_ a _\n" * 6 + last + "\n")
        return seqwise("sample", runs / "words", file, "--sweeps=2", "--chains=2", *flags)

    assert ended_with("b a").complaint.startswith(f"{file}:7: no position is free")
    said = "no sequence was found that contains 'a b'; "
    for last in ("b _", "b b _", "_ c b"):
        assert ended_with(last, "--contain=a b").complaint.startswith(f"{file}:7: {said}")
    for last in ("_ b", "a _ c", "c _ _"):
        assert len(ended_with(last, "--contain=a b").records) == 14
    assert len(ended_with("_ c b", "--contain=a b", "--penalty=2").records) == 14
    # There is room for each, and none for both: that only the attempt tells.
    late = ended_with("_ _ a", "--contain=a b", "--contain=c a")
    assert late.code == 2 and len(late.out.splitlines()) == 12
    assert late.err.startswith(f"seqwise: {file}:7: no sequence was found that contains 'a b' and contains 'c a'")


# ---- Kept, killed and resumed ---------------------------------------------------------------------------------------


LASTING: dict[str, dict[str, Any]] = {
    "every": {"every": 2, "discard": 0},
    "best": {"best": True, "proposal_temperature": 1.5},
    "tempering": {"kernel": "parallel-tempering", "temperatures": (1.0, 2.0)},
}


def asked_of(name: str) -> tuple[Any, Any, SampleSettings]:
    """Five problems of two lengths, of which those of a block that have one length go together."""
    run = build("words", dtype=torch.float32)
    settings = settings_of(chains=2, sweeps=5, save_every=2, length="2-3", count=5, **LASTING[name])
    return run, read_problems(run, None, settings), settings


def test_samples_of_many_lengths_are_written_a_few_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All of a block are written again each time."""
    sizes, real = [], sampling_folder.keep_samples
    monkeypatch.setattr(
        module, "keep_samples", lambda *given, **named: sizes.append(len(given[1])) or real(*given, **named)
    )
    run = build("words", dtype=torch.float32)
    settings = settings_of(chains=1, sweeps=1, length="1-9", count=200)
    found = sample(run, read_problems(run, None, settings), settings, output=tmp_path / "kept")
    assert len(found.groups) == 9 and len(sizes) == 5 and sizes[-1] == len(found.samples)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LASTING)
def test_sampling_killed_in_any_block_resumes_to_the_same_files(
    name: str, small: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Killed at each of the savings of all blocks, and within and after each writing of samples, again and again."""
    run, problems, settings = asked_of(name)
    whole = sample(run, problems, settings, output=tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert 3 < len(whole.groups) == sum(name.endswith(".safetensors") for name in expected)
    save_chains, keep_samples = module.save_chains, sampling_folder.keep_samples

    def attempt(function: str, kill: Any) -> None:
        with small.context() as patched, pytest.raises(Killed):
            patched.setattr(module, function, kill)
            sample(run, problems, settings, output=tmp_path / "killed")

    def at(call: int, *, half: bool) -> Any:
        left = [call]

        def killed(folder: Path, lines: Any, *, begin: int) -> int:
            left[0] -= 1
            if left[0] >= 0:
                return keep_samples(folder, lines, begin=begin)
            if half:
                with (folder / "samples.jsonl").open("ab") as stream:
                    stream.write(b'{"problem": 1, "te')
            else:
                keep_samples(folder, lines, begin=begin)
            raise Killed

        return killed

    def after(path: Path, state: Any) -> None:
        save_chains(path, state)
        raise Killed

    for call in range(len(whole.groups)):
        for _ in range(3):
            attempt("save_chains", after)
        attempt("keep_samples", at(call, half=True))
        attempt("keep_samples", at(call, half=False))
    steps: list[SweepDone] = []
    again = sample(run, problems, settings, output=tmp_path / "killed", on_sweep=steps.append)
    assert again.samples == whole.samples and not steps
    assert contents(tmp_path / "killed") == expected
    assert report_lines(again, settings)[0] == report_lines(whole, settings)[0]
    longer = settings.replace(sweeps=8)
    extended = sample(run, problems, longer, output=tmp_path / "killed", on_sweep=steps.append)
    assert extended.samples == sample(run, problems, longer).samples
    assert len(steps) == 3 * len(whole.groups)


def test_samples_are_written_as_soon_as_their_chains_end(small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, problems, settings = asked_of("every")
    sample(run, problems, settings, output=tmp_path / "whole")
    expected = (tmp_path / "whole" / "samples.jsonl").read_bytes()
    kept = 0
    for block in sample_in_blocks(run, problems, settings, output=tmp_path / "out"):
        found = (tmp_path / "out" / "samples.jsonl").read_bytes()
        kept += len(block.samples)
        assert found == b"".join(expected.splitlines(keepends=True)[:kept])
    assert found == expected


def test_a_block_that_is_written_again_replaces_its_samples(tmp_path: Path) -> None:
    """It may become shorter: of the best sample another length may have the better one."""
    begin = sampling_folder.keep_samples(tmp_path, ["first"], begin=0)
    sampling_folder.keep_samples(tmp_path, ["a long one", "another"], begin=begin)
    assert sampling_folder.keep_samples(tmp_path, ["short"], begin=begin) == begin + 6
    assert (tmp_path / "samples.jsonl").read_text() == "first\nshort\n"
    (tmp_path / "samples.jsonl").unlink()
    (tmp_path / "samples.jsonl").mkdir()
    with pytest.raises(InputError, match=r"samples\.jsonl: cannot be written \(Is a directory\)"):
        sampling_folder.keep_samples(tmp_path, ["short"], begin=0)


def test_chains_of_other_blocks_are_not_taken_for_these(small: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a release with other blocks would leave them: the numbers of the files are then those of other problems."""
    run, settings = build("words"), settings_of(chains=2, sweeps=2, max_rows=1)
    problems = [Problem((FREE,) * 3, Example((), ())), Problem((FREE,) * 2, Example((), ()))]
    small.setattr(module, "BLOCK", 1)
    expected = sample(run, problems, settings, output=tmp_path / "out").samples
    assert sample(run, problems, settings, output=tmp_path / "out").samples == expected
    small.setattr(module, "BLOCK", 2)
    with pytest.raises(InputError, match=r"0000\.safetensors: the file holds other chains; remove the folder"):
        sample(run, problems, settings, output=tmp_path / "out")


SMALL = """
import os, signal, sys
from seqwise import cli
from seqwise.runs import sampling

sampling.BLOCK, save, left = 2, sampling.save_chains, [int(sys.argv.pop(1))]

def killed(path, state):
    save(path, state)
    left[0] -= 1
    if left[0] == 0:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

sampling.save_chains = killed
cli.main()
"""


@pytest.mark.thorough
def test_a_killed_command_has_printed_the_blocks_that_are_done(
    runs: Path, seqwise: Command, small: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags = ["sample", runs / "words", "--length=3", "--count=5", "--chains=2", "--sweeps=4", "--save-every=2"]
    whole = seqwise(*flags, "--output", tmp_path / "whole")
    arguments = [sys.executable, "-c", SMALL, "5", *flags, "--output", tmp_path / "killed"]
    killed = subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout.splitlines() == whole.out.splitlines()[:8]  # two blocks of two problems
    assert (tmp_path / "killed" / "samples.jsonl").read_text() == killed.stdout
    again = seqwise(*flags, "--output", tmp_path / "killed")
    assert again.out == whole.out and contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_blocks_of_two_processes_are_those_of_one(
    runs: Path, seqwise: Command, small: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "small.py"
    script.write_text(SMALL)
    flags = ["sample", runs / "words", "--length=2-4", "--count=7", "--chains=2", "--sweeps=5", "--max-rows=2"]
    one = seqwise(*flags, "--output", tmp_path / "one")
    code, out, err = ended(launch(script, 0, *flags, "--output", tmp_path / "two"))
    assert code == 0 and out == one.out, err
    assert contents(tmp_path / "two") == contents(tmp_path / "one") and len(contents(tmp_path / "one")) == 2 + 2 * 7
    # One that was killed, with all its blocks, goes on in the other number of processes.
    code, _, _ = ended(launch(script, 3, *flags, "--output", tmp_path / "killed"))
    assert code != 0 and contents(tmp_path / "killed") != contents(tmp_path / "one")
    assert seqwise(*flags, "--output", tmp_path / "killed").out == one.out
    assert contents(tmp_path / "killed") == contents(tmp_path / "one")
