"""Several processes, as torchrun starts them: the same gradients, weights, lines and samples as one process makes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from command_line import Command
from seqwise import InputError
from seqwise.configuration import OneOf
from seqwise.data import EncodedExample, Example, collate
from seqwise.data.batches import IGNORE, Batch, BatchSampler
from seqwise.models import ConditionalMaskedTransformer, EncoderDecoder, MaskedLSTM
from seqwise.objectives import ObjectiveConfig, relaxed_beam_objective
from seqwise.objectives.contrastive import noise_log_probs
from seqwise.objectives.masked_likelihood import conditional_masked_objective, masked_objective
from seqwise.objectives.objective import Mean, Objective, SumOfMeans
from seqwise.objectives.options import Context
from seqwise.runs import choose_decoder, new_run, predict, save_run, train_settings
from seqwise.runs import run as runs_of_models
from seqwise.runs.resumable_writer import write_in_blocks
from seqwise.runs.run import OutputRun, predict_together
from seqwise.training import processes
from seqwise.training.trainer import StepBatches, fit

LAUNCHED = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
END, LABELS, LETTERS = 4, 5, 8


def examples(count: int, seed: int = 0) -> list[EncodedExample]:
    """Pairs of very different lengths, whose outputs end with the end token."""
    generator = torch.Generator().manual_seed(seed)

    def some(size: int) -> tuple[int, ...]:
        length = int(torch.randint(1, 7, (), generator=generator))
        return tuple(torch.randint(size, (length,), generator=generator).tolist())

    return [EncodedExample(some(LETTERS), (*some(END), END)) for _ in range(count)]


def writer() -> EncoderDecoder:
    torch.manual_seed(0)
    sizes = {"embedding_size": 6, "hidden_size": 8, "dropout": 0.0}
    return EncoderDecoder(source_size=LETTERS, target_size=LABELS, end=END, **sizes).double()


def translator() -> ConditionalMaskedTransformer:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_heads": 2, "feedforward_size": 16, "num_layers": 1, "dropout": 0.0}
    return ConditionalMaskedTransformer(source_size=LETTERS, vocab_size=LABELS, max_length=9, **sizes).double()


def every_second(tokens_NT: Tensor) -> Tensor:
    """A mask without noise, whose share of the tokens differs from row to row."""
    return (torch.arange(tokens_NT.shape[1], device=tokens_NT.device) % 2 == 0) & (tokens_NT != IGNORE)


def named(name: str, **settings: Any) -> Objective:
    kind = OneOf(ObjectiveConfig).members[name]
    shared = {"k": 2, "cross_entropy_weight": 0.5}
    chosen: Any = kind(**{key: value for key, value in shared.items() if key in kind.model_fields}, **settings)
    noise = noise_log_probs(torch.ones(LABELS))
    return chosen.build(Context(end=END, log_noise_V=lambda: noise.double(), teacher=lambda: writer().eval()))


WRITERS = {
    "cross-entropy": {},
    "self-normalized": {"weight": 0.3, "fraction": 1.0},
    "sampled-self-normalized": {"weight": 0.3, "fraction": 1.0},
    "unnormalized-likelihood": {"weight": 0.3, "fraction": 1.0},
    "scheduled-sampling": {"feeding": "soft-greedy"},
    "distillation": {},
    "relaxed-beam": {"score": "global"},
    "hinge": {"unit": "gaps"},
    "hard-hinge": {},
    "beam-crf": {"direct_loss_weight": 0.5},
    "dense-beam": {},
    "soft-dense-beam": {},
    "early-update": {},
    "beam-search-optimization": {},
    "minimum-risk": {"cost": "edit-distance"},
    "softmax-margin": {"score": "global"},
}


def gradients(model: nn.Module, loss: Tensor) -> Tensor:
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    found = torch.autograd.grad(loss, list(model.parameters()), **options)
    return torch.cat([one.flatten() for one in found])


def means_of(objective: Any, model: Any, batch: Batch, values: dict[str, float]) -> Sequence[Mean]:
    """What an objective sums: its own means, or one over the gold tokens of the batch."""
    if isinstance(objective, SumOfMeans):
        return objective.means(model, batch, values)
    return [Mean(objective(model, batch, values), batch.target_lengths_B.sum())]


def require_sum_of_shares(model: nn.Module, objective: Objective) -> None:
    rows = examples(5)
    values = {"alpha": 3.0, "gold_probability": 0.0}
    whole = gradients(model, objective(model, collate(rows), values))  # type: ignore[arg-type]
    parts = [means_of(objective, model, collate(rows[part::2]), values) for part in range(2)]
    joined = torch.zeros_like(whole)
    for place in range(len(parts[0])):
        total = sum(float(part[place].count) for part in parts)
        joined += sum(gradients(model, part[place].value) * float(part[place].count) / total for part in parts)
    assert whole.abs().max() > 1e-4
    torch.testing.assert_close(joined, whole, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", WRITERS)
def test_the_gradients_of_shares_are_those_of_the_batch(name: str) -> None:
    require_sum_of_shares(writer().eval(), named(name, **WRITERS[name]))


def test_the_gradients_of_shares_of_masked_models_are_those_of_the_batch() -> None:
    require_sum_of_shares(translator().eval(), conditional_masked_objective(every_second, length_weight=0.7))
    model = MaskedLSTM(vocab_size=LABELS, embedding_size=4, hidden_size=8, feedforward_size=8).double().eval()
    require_sum_of_shares(model, masked_objective(every_second))


@pytest.mark.parametrize("parts", [1, 2])
def test_rows_are_shared_and_a_process_without_rows_has_weight_zero(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 rows in batches of 2: the fourth batch has one."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    seen: dict[int, list[int]] = {}
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        sampler = BatchSampler([example.lengths for example in examples(7)], batch_size=2, seed=0)
        batches = StepBatches(examples(7), sampler, steps=4, parts=parts)
        assert len(batches) == 4 * parts
        for number in range(4 * parts):
            item = batches[number]
            own, step = item["batch"].indices_B.tolist(), number // parts
            assert len(own) == 1 and own[0] in item["indices"]
            seen.setdefault(step, []).extend(own if item["weight"] else [])
            assert item["weight"] in (0.0, 1.0) and item["indices"] == batches[step * parts]["indices"]
    for step, own in seen.items():
        assert sorted(own) == sorted(batches[step * parts]["indices"])
    assert sorted(row for own in seen.values() for row in own) == list(range(7))


OBJECTIVES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Objective]]] = {
    "relaxed beam": (writer, lambda: relaxed_beam_objective(k=2, cross_entropy_weight=0.5)),
    "early update": (writer, lambda: named("early-update")),
    "masked": (translator, lambda: conditional_masked_objective(every_second)),
}
# 7 examples in batches of 3: the last batch of an epoch has a single row, and so nothing for the second process.
TRAINED = {"steps": 7, "batch_size": 3, "learning_rate": 0.01, "seed": 0, "clip": 0.5, "weight_decay": 0.01}


def train_all(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Weights by objective."""
    found = {}
    for name, (new, objective) in OBJECTIVES.items():
        model = new()
        schedules = {"alpha": lambda step: 1.0 + step}
        fit(model, objective(), examples(7), output=folder / name, schedules=schedules, save_every=3, **TRAINED)
        found[name] = model.state_dict()
    return found


def train_in_parts(folder: Path) -> dict[str, Tensor]:
    """Each batch in two parts, of which some have no row in one of the processes."""
    model = writer()
    schedules = {"alpha": lambda step: 1.0 + step}
    objective = OBJECTIVES["relaxed beam"][1]()
    options = {**TRAINED, "gradient_accumulation_steps": 2, "schedules": schedules}
    fit(model, objective, examples(7), output=folder, **options)
    return model.state_dict()


def train_until_stopped(folder: Path) -> dict[str, Tensor]:
    """The third evaluation is the best of those that come before patience ends, after the fifth."""
    model, metrics = writer(), iter([1.0, 2.0, 3.0, 1.0, 2.0, 9.0])
    options: dict[str, Any] = {**TRAINED, "measure_every": 1, "patience": 2, "evaluate": lambda: next(metrics)}
    result = fit(model, named("cross-entropy"), examples(7), output=folder, **options)
    assert (result.steps, result.best_step) == (5, 3)
    return model.state_dict()


@pytest.mark.thorough
def test_early_stopping_is_the_same_in_two_processes(both: tuple[Path, Path]) -> None:
    expected, shared = torch.load(both[0] / "process-0")[0], torch.load(both[1] / "process-1")[0]
    torch.testing.assert_close(shared["stopped"], expected["stopped"], rtol=0, atol=1e-6)
    assert {path.name for path in (both[1] / "stopped" / "checkpoints").iterdir()} == {
        "checkpoint-3", "checkpoint-4", "checkpoint-5",
    }  # fmt: skip


def train_to_no_number(folder: Path) -> str:
    """Of the rows of the batch, the one at fault is the second."""
    rows = examples(2)

    def infinite(model: Any, batch: Any, values: Mapping[str, float]) -> Tensor:
        fault = torch.where(batch.indices_B == 1, torch.inf, 1.0).sum()
        return fault * sum(parameter.sum() for parameter in model.parameters())

    try:
        fit(writer(), infinite, rows, output=folder, **{**TRAINED, "batch_size": 2})
    except InputError as error:
        return str(error)
    return "nothing was said"


def train_with_other_settings(folder: Path) -> str:
    """What only the first process finds out."""
    try:
        fit(writer(), named("cross-entropy"), examples(7), output=folder, **{**TRAINED, "seed": 1})
    except InputError as error:
        return str(error)
    return "nothing was said"


def squares(numbers: Sequence[int]) -> list[str]:
    return [str(number**2) for number in numbers]


def together(folder: Path) -> None:
    """What each of the processes does that the test below starts."""
    torch.set_num_threads(1)
    weights = train_all(folder)
    write_in_blocks(folder / "squares", range(23), squares, claim={"of": "n"}, block=5)
    said = train_to_no_number(folder / "no number"), train_with_other_settings(folder / "early update")
    weights["parts"] = train_in_parts(folder / "parts")
    weights["stopped"] = train_until_stopped(folder / "stopped")
    torch.save((weights, said), folder / f"process-{processes.rank()}")


def launch(*command: object) -> subprocess.Popen[str]:
    """Start two processes, and a launcher that watches them."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    arguments = [*LAUNCHED, *map(str, command)]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(launcher: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = launcher.communicate(timeout=240)
    return launcher.returncode, out, err


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of what one process has done, and that of what two have."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    together(one)
    script = two / "together.py"
    script.write_text(
        f"from pathlib import Path\nfrom training.{Path(__file__).stem} import together\ntogether(Path({str(two)!r}))"
    )
    code, _, err = ended(launch(script))
    assert code == 0, err
    return one, two


@pytest.mark.thorough
@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_processes_train_the_weights_of_one(both: tuple[Path, Path], name: str) -> None:
    one, two = both
    (expected, _), (first, _), (second, _) = (
        torch.load(path) for path in (one / "process-0", two / "process-0", two / "process-1")
    )
    start = OBJECTIVES[name][0]().state_dict()
    assert max(float((expected[name][part] - start[part]).abs().max()) for part in start) > 0.01
    torch.testing.assert_close(first[name], expected[name], rtol=0, atol=1e-6)
    torch.testing.assert_close(second[name], first[name], rtol=0, atol=0)
    logs = [[json.loads(line) for line in (root / name / "log.jsonl").open()] for root in both]
    assert [line["loss"] for line in logs[1]] == pytest.approx([line["loss"] for line in logs[0]], rel=1e-6)
    assert [line["step"] for line in logs[1]] == list(range(1, 8))


@pytest.mark.thorough
def test_parts_of_a_batch_in_two_processes_train_the_weights_of_the_batch(both: tuple[Path, Path]) -> None:
    expected, shared = torch.load(both[0] / "process-0")[0], torch.load(both[1] / "process-1")[0]
    for found in (expected, shared):
        torch.testing.assert_close(found["parts"], expected["relaxed beam"], rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_one_process_resumes_the_training_of_two(both: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = both
    shutil.copytree(two / "relaxed beam", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "checkpoint-7")
    model = writer()
    options = {**TRAINED, "output": tmp_path / "run", "schedules": {"alpha": lambda step: 1.0 + step}}
    assert fit(model, OBJECTIVES["relaxed beam"][1](), examples(7), **options).resumed_from == 6
    expected = torch.load(one / "process-0")[0]["relaxed beam"]
    torch.testing.assert_close(model.state_dict(), expected, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_two_processes_leave_the_files_of_one(both: tuple[Path, Path]) -> None:
    left = [sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.suffix != ".py") for root in both]
    assert [name for name in left[1] if name != "process-1"] == left[0]
    assert (both[1] / "squares").read_text() == "".join(f"{n * n}\n" for n in range(23))


@pytest.mark.thorough
def test_errors_of_one_process_are_reported_by_all(both: tuple[Path, Path]) -> None:
    one, two = both
    expected = [text.replace(str(one), str(two)) for text in torch.load(one / "process-0")[1]]
    assert "the loss is inf at step 1, on example 1, example 0;" in expected[0] and "with other seed" in expected[1]
    for process in ("process-0", "process-1"):
        assert list(torch.load(two / process)[1]) == expected


def test_commands_that_cannot_be_shared_are_refused(
    seqwise: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    complaint = seqwise("stream", tmp_path).complaint
    assert complaint == "seqwise stream runs in one process, and there are 2; start it without torchrun"
    for command in (["score", tmp_path, "a.txt"], ["predict", tmp_path, "a.txt"], ["sample", tmp_path]):
        assert seqwise(*command).complaint == "2 processes cannot print their lines in order; give an --output"
    for command in (["score", tmp_path, "-"], ["predict", tmp_path]):
        complaint = seqwise(*command, "--output", tmp_path / "out").complaint
        assert complaint == "2 processes cannot share standard input; give a file"


def test_other_processes_print_only_their_errors(
    seqwise: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("seqwise.cli.PATIENCE", 0)
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    assert seqwise("--help") == (0, "", "")
    assert seqwise("score", tmp_path, "a.txt").complaint.endswith("give an --output (process 1)")


def test_a_machine_has_a_gpu_for_each_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert processes.local_device() == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(InputError, match="3 processes on a machine with 2 GPUs; start 2 on each"):
        processes.local_device()


@pytest.mark.parametrize(("visible", "own"), [(None, "1"), ("3,5", "5"), ("3", ""), ("", "")])
def test_what_runs_alone_sees_one_process_and_its_gpu(
    visible: str | None, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    given = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    given |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with processes.as_one_process():
        assert (processes.rank(), processes.world_size()) == (0, 1)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == own and "LOCAL_RANK" not in os.environ
    names = (*given, "CUDA_VISIBLE_DEVICES")
    assert {name: os.environ[name] for name in names if name in os.environ} == given


def command(folder: Path, *arguments: object) -> Any:
    """A command of seqwise that two processes carry out, with its files in a folder."""
    return launch("-m", "seqwise", *(folder / one if isinstance(one, Path) else one for one in arguments))


def wait_until(happened: Callable[[], bool], launcher: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if happened() or launcher.poll() is not None:
            break
        time.sleep(0.1)
    assert happened(), launcher.communicate()


def worker(launcher: subprocess.Popen[str], rank: int) -> int:
    """The process id of a worker of a launcher, which has one child for each."""
    for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"{launcher.pid} has no worker {rank}")


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def write_words(folder: Path, *, sentences: int) -> None:
    """Words with the label of whether they come after the word before, and the words alone."""
    words = torch.randint(8, (sentences, 6), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [sentence[: 2 + number % 5] for number, sentence in enumerate(words)]
    labelled = ["".join(f"w{b}\t{'XY'[a < b]}\n" for a, b in zip([0, *row], row, strict=False)) for row in rows]
    (folder / "train.conll").write_text("\n".join(labelled))
    (folder / "words.txt").write_text("".join(" ".join(f"w{n}" for n in row) + "\n" for row in rows))


SMALL = ["--hidden-size", 16, "--epochs", 1, "--save-every", 10]
SMALL_MASKED = ["--num-heads", 2, "--num-layers", 1, "--feedforward-size", 16]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the workers of a launcher are looked up in /proc")
def test_a_dead_process_ends_the_training_and_the_same_command_resumes_it(tmp_path: Path) -> None:
    write_words(tmp_path, sentences=400)
    train = ["train", "--train", Path("train.conll"), "--dev", Path("train.conll"), "--objective", "relaxed-beam"]
    train += ["--warm-start", "none", "--beam-size", 2, "--batch-size", 4, *SMALL, "--dropout", 0.2]
    code, out, err = ended(command(tmp_path, *train, "--output", Path("whole")))
    assert code == 0 and out.count("trained for 100 steps") == 1, (out, err)
    launcher = command(tmp_path, *train, "--output", Path("killed"))
    wait_until(lambda: lines(tmp_path / "killed" / "log.jsonl") > 15, launcher)
    os.kill(worker(launcher, 1), signal.SIGKILL)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 1 and not (tmp_path / "killed" / "model").exists()
    code, _, err = ended(command(tmp_path, *train, "--output", Path("killed")))
    assert code == 0, err
    for name in ("model/model.safetensors", "log.jsonl", "measurements.jsonl", "metrics.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def new_speller(folder: Path, words: int) -> tuple[OutputRun, list[Example]]:
    """A run with random weights, whose outputs vary, saved in a folder, and words for it, which are many batches."""
    drawn = torch.randint(4, (words, 6), generator=torch.Generator().manual_seed(0)).tolist()
    letters = [tuple("abcd"[letter] for letter in row[: 1 + number % 6]) for number, row in enumerate(drawn)]
    pairs = [Example((*word, *f"{number:x}"), word) for number, word in enumerate(letters)]
    torch.manual_seed(0)
    sizes = {"hidden_size": 4, "embedding_size": 4, "beam_size": 2, "source_units": "characters"}
    run = new_run(pairs, train_settings(task="transduce", target_units="characters", **sizes))
    with torch.no_grad():
        for weights in run.model.parameters():
            weights *= 8
    save_run(run, folder)
    return run, pairs


def test_processes_share_the_batches_that_are_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both in turn here: the batches of the one are not those of the other, and together they are those of one."""
    run, pairs = new_speller(tmp_path, 900)
    decoder = choose_decoder(run.settings, "beam")
    expected = predict(run, pairs, decoder)
    assert len({outputs[0].tokens for outputs in expected}) > 30
    shares: list[dict[int, Any]] = []

    def gathered(own: dict[int, Any]) -> list[Any]:
        shares.append(dict(own))
        return shares if len(shares) == 2 else [own, dict.fromkeys(set(range(900)) - own.keys())]

    monkeypatch.setattr(runs_of_models, "from_all_processes", gathered)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        found = predict_together(run, pairs, decoder)
    assert found == expected
    assert [len(own) for own in shares] == [512, 388] and not shares[0].keys() & shares[1].keys()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [[], ["--json", "--decoder", "beam"]])
def test_two_processes_evaluate_as_one_does(options: list[str], tmp_path: Path, seqwise: Command) -> None:
    """Numbers, intervals and warnings, also of an input that cannot be read."""
    _, pairs = new_speller(tmp_path / "run", 600)
    rows = [f"{''.join(pair.source)}\t{''.join(pair.target)}\n" for pair in pairs]
    (tmp_path / "dev.tsv").write_text("".join([*rows[:300], "a!\ta\n", *rows[300:], "aaa\t!\n"]))
    said = seqwise("evaluate", tmp_path / "run", tmp_path / "dev.tsv", *options)
    code, out, err = ended(command(tmp_path, "evaluate", Path("run"), Path("dev.tsv"), *options))
    assert said.code == code == 1 and out == said.out and "1 of 602 inputs could not be read" in said.err
    assert [line for line in err.splitlines() if line.startswith("seqwise: ")] == said.err.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the workers of a launcher are looked up in /proc")
def test_a_dead_process_ends_the_tuning_and_the_same_command_continues_it(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    write_words(tmp_path, sentences=100)
    files = dict.fromkeys(("train", "dev"), tmp_path / "train.conll")
    options = {**files, "hidden_size": 8, "batch_size": 8, "epochs": 3.0, "evaluate_every": 10, "save_every": 10}
    lines = (f"{name}: {value}\n" for name, value in {**options, "objective": "cross-entropy"}.items())
    (tmp_path / "settings.yaml").write_text("".join(lines))
    tune = ["tune", Path("settings.yaml"), "--trials", 6, "--output", Path("tuned"), "--json"]
    launcher = command(tmp_path, *tune)
    wait_until(lambda: (tmp_path / "tuned" / "best.yaml").exists(), launcher)
    os.kill(worker(launcher, 1), signal.SIGKILL)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    code, out, err = ended(command(tmp_path, *tune))
    assert code == 0, err
    found = json.loads(out)
    assert len(found["trials"]) == 6 and Path(found["run"]).exists()
    assert len({trial["settings"]["learning_rate"] for trial in found["trials"]}) == 6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the workers of a launcher are looked up in /proc")
def test_files_made_by_two_processes_are_those_of_one(tmp_path: Path, seqwise: Command) -> None:
    """Scores after a kill, and whichever number of processes goes on; predictions; samples."""
    write_words(tmp_path, sentences=1500)
    words, run, tagger = tmp_path / "words.txt", tmp_path / "masked", tmp_path / "tagger"
    train = ["masked-model", "train", Path("words.txt"), *SMALL, *SMALL_MASKED, "--minimum-count", 1]
    code, out, err = ended(command(tmp_path, *train, "--output", Path("masked")))
    assert code == 0 and out.count("a vocabulary of 8") == 1, err
    options = ["--warm-start", "none", "--objective", "cross-entropy", *SMALL, "--output", tagger]
    assert seqwise("train", "--train", tmp_path / "train.conll", *options).code == 0

    score = ["score", run, words, "--max-tokens", 40, "--output"]
    summary = seqwise(*score, tmp_path / "one.jsonl").err.splitlines()[-1]
    launcher = command(tmp_path, *score, Path("two.jsonl"))
    wait_until(lambda: len([*tmp_path.glob("two.jsonl.partial/[0-9]*")]) > 1, launcher)
    os.kill(worker(launcher, 0), signal.SIGKILL)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 1 and not (tmp_path / "two.jsonl").exists()
    shutil.copytree(tmp_path / "two.jsonl.partial", tmp_path / "alone.jsonl.partial")
    code, _, err = ended(command(tmp_path, *score, Path("two.jsonl")))
    assert code == 0 and err.count(summary) == 1
    alone = seqwise(*score, tmp_path / "alone.jsonl")
    assert alone.err.splitlines()[-1] == summary
    one = (tmp_path / "one.jsonl").read_bytes()
    assert (tmp_path / "two.jsonl").read_bytes() == one == (tmp_path / "alone.jsonl").read_bytes()
    assert one.count(b"\n") == 1500 and not list(tmp_path.glob("*.partial*"))

    predict = ["predict", tagger, words, "--text", "--n-best", 2, "--beam-size", 2]
    assert ended(command(tmp_path, *predict, "--output", Path("labels.txt")))[0] == 0
    assert (tmp_path / "labels.txt").read_text() == seqwise(*predict).out

    sample = ["sample", run, "--length", "3-5", "--count", 6, "--chains", 2, "--sweeps", 5, "--max-rows", 4]
    said = seqwise(*sample, "--output", tmp_path / "samples-1")
    code, out, _ = ended(command(tmp_path, *sample, "--output", Path("samples-2")))
    assert code == 0 and out == said.out
    one_folder, two_folder = (
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "samples-1", tmp_path / "samples-2")
    )
    assert two_folder == one_folder and len(one_folder) > 6
