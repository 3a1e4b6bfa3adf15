"""SearchAwareTrainer with FSDP version 2: processes that share one model train it as one process does.

accelerate chooses FSDP only where it sees an accelerator. On CPUs, the processes of these tests are told that it does,
and communicate by gloo; the rest is what a GPU runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import FullyShardedDataParallelPlugin
from torch import Tensor
from torch.distributed.tensor import DTensor

from seqwise.data import EncodedExample, collate
from seqwise.errors import InputError
from seqwise.hugging_face import SearchAwareConfig, SearchAwareTrainer, step_model
from seqwise.hugging_face.sharding import classes_of_layers
from seqwise.search import trie

END, PAD, BOS, V = 0, 1, 2, 12  # four processes share each weight evenly: gloo gathers no empty part
ONE_UNIT: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": 2, "auto_wrap_policy": "NO_WRAP"}}
TOKENS = {"vocab_size": V, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": BOS}
LLAMA = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
MARIAN = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 24,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": None,
    "scale_embedding": True,
    "dropout": 0.0,
}
FIELDS = {one.name for one in dataclasses.fields(SearchAwareConfig)}
# transformers has renamed it.
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in FIELDS else "gradient_checkpointing"
CASES: dict[str, dict[str, Any]] = {
    "Llama cross-entropy": {"gradient_accumulation_steps": 2},
    "Llama relaxed-beam": {"beam_size": 3, CHECKPOINTING: True},
    "Llama beam-crf": {"beam_size": 3, "score": "global"},
    "Llama minimum-risk": {"beam_size": 3, "cost": "edit-distance"},
    "Llama distillation": {"beam_size": 2},
    "Marian cross-entropy": {},
    "Marian relaxed-beam": {"beam_size": 3, "gradient_accumulation_steps": 2},
    "Marian beam-crf": {"beam_size": 3, "score": "global", "direct_loss_weight": 0.5},
    "Marian minimum-risk": {"beam_size": 3, "cost": "edit-distance"},
}
RESUMED, RESUMED_IN_LAYERS = "Marian relaxed-beam", "Marian minimum-risk"
# Labels play no part in the first four rows of eight, which are all that the first of two processes has.
HALF_EMPTY = "Llama softmax-margin"
CASES[HALF_EMPTY] = {"beam_size": 2, "score": "global", "train_sampling_strategy": "sequential"}
EVALUATED_FIRST = HALF_EMPTY
# Gradients of the others flow through single steps.
IN_LAYERS = [case for case in CASES if "relaxed" not in case and "direct_loss_weight" not in CASES[case]]
# Gold of four letters and more, in the catalogue of its words: the row that stands in for none is not in there.
INSIDE = "Llama softmax-margin inside"
CASES_IN_LAYERS = {
    INSIDE: CASES[HALF_EMPTY],
    "Marian scheduled-sampling": {"feeding": "greedy", "gold_probability": 0.0},
    "Llama self-normalized": {},
}
ALL_CASES = CASES | CASES_IN_LAYERS
BY_PROCESSES = {2: [*IN_LAYERS, *CASES_IN_LAYERS], 4: ["Llama beam-crf", "Marian minimum-risk", HALF_EMPTY]}
LAYERS: dict[str, Any] = {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
LAYERS_OF_MARIAN = {**LAYERS, "transformer_layer_cls_to_wrap": ["MarianEncoderLayer", "MarianDecoderLayer"]}
ON_CPUS = pytest.mark.skipif(torch.cuda.is_available(), reason="FSDP would take the GPU")


def made(name: str) -> Any:
    torch.manual_seed(0)
    if name == "Llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TOKENS, **LLAMA))
    else:
        model = transformers.MarianMTModel(transformers.MarianConfig(**TOKENS, **MARIAN))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.requires_grad:  # so large that the model has opinions
                parameter.mul_(4.0)
    return model.to(torch.float64)


def rows(name: str, count: int) -> list[dict[str, list[int]]]:
    """Words of letters, and the same words backwards."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        length = int(torch.randint(1, 6, (), generator=generator))
        word = torch.randint(3, V, (length,), generator=generator).tolist()
        source, target = (word, [*word[::-1], END]) if name == "Llama" else ([*word, END], [*word[::-1], END])
        if name == "Llama":
            source = [*source, BOS]
            found.append({"input_ids": [*source, *target], "labels": [-100] * len(source) + target})
        else:
            found.append({"input_ids": source, "labels": target})
    return found


def padded(examples: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
    batch = {}
    for name, filler in (("input_ids", PAD), ("attention_mask", 0), ("labels", -100)):
        values = [one.get(name, [1] * len(one["input_ids"])) for one in examples]
        width = max(map(len, values))
        batch[name] = torch.tensor([one + [filler] * (width - len(one)) for one in values])
    return batch


def trainer_of(case: str, folder: Path, **options: Any) -> Any:
    name, objective = case.split()[:2]
    rows_each = 8 // int(os.environ.get("WORLD_SIZE", "1"))
    settings: dict[str, Any] = {
        "objective": objective,
        "max_steps": 2,
        "per_device_train_batch_size": rows_each,
        "per_device_eval_batch_size": rows_each,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "adam_epsilon": 1e-4,  # Adam makes steps of what is nothing but rounding in a gradient of 0
        "max_grad_norm": 0.1,  # so low that gradients are clipped
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 1,
        "predict_with_generate": True,
        "generation_max_length": 18,
        "generation_num_beams": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    config = SearchAwareConfig(
        str(folder / case.replace(" ", "-")), **(settings | {**CASES, **CASES_IN_LAYERS}[case] | options)
    )
    data = rows(name, 32)
    if case == INSIDE:
        data = [row for row in rows(name, 200) if sum(label >= 0 for label in row["labels"]) > 4][:32]
        config.language = trie([[label for label in row["labels"] if label > 0] for row in data], end=END)
    held_out = data[:8]
    if case in (HALF_EMPTY, INSIDE):
        data = [row | {"labels": [-100] * len(row["labels"])} if i % 8 < 4 else row for i, row in enumerate(data)]
    trainer = SearchAwareTrainer(made(name), config, data_collator=padded, train_dataset=data, eval_dataset=held_out)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def held(trainer: Any) -> float:
    """The part of the numbers of the model and its optimiser that this process holds."""
    states = [value for state in trainer.optimizer.state.values() for value in state.values() if value.dim() > 0]
    tensors = [*trainer.model.parameters(), *states]
    mine = sum(one.to_local().numel() if isinstance(one, DTensor) else one.numel() for one in tensors)
    return mine / sum(one.numel() for one in tensors)


def train_all(folder: Path, cases: Sequence[str] = tuple(CASES), **options: Any) -> None:
    """Train, and write down the models, the losses, and what the trained models predict."""
    for case in cases:
        trainer = trainer_of(case, folder, **options)
        before = trainer.evaluate()["eval_loss"] if case == EVALUATED_FIRST else None
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        found = {
            "losses": [entry["loss"] for entry in logged],
            "norms": [float(entry["grad_norm"]) for entry in logged],
            "held": held(trainer),
            "sharded": all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters()),
            "before": before,
            "after": trainer.evaluate()["eval_loss"],
            "predicted": trainer.predict(trainer.eval_dataset).predictions.tolist(),
        }
        trainer.save_model()
        if trainer.is_world_process_zero():
            (Path(trainer.args.output_dir) / "found.json").write_text(json.dumps(found))


def resume(folder: Path, case: str = RESUMED, **options: Any) -> None:
    """Train on from the first checkpoint, and save the model apart."""
    trainer = trainer_of(case, folder, **(options | {"save_strategy": "no"}))
    trainer.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-1"))
    trainer.save_model(str(folder / "resumed"))


def shard_on_cpus() -> None:
    """Tell accelerate that the CPUs of this process are an accelerator."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    as_it_is = AcceleratorState.__init__

    def told(self: Any, *arguments: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        as_it_is(self, *arguments, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            if self.mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self.mixed_precision)
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = told  # type: ignore[method-assign]


def together(folder: Path) -> None:
    """What each of two processes does."""
    shard_on_cpus()
    train_all(folder, use_cpu=True, **ONE_UNIT)
    resume(folder, use_cpu=True, **ONE_UNIT)


def in_layers(folder: Path, cases: Sequence[str], **options: Any) -> None:
    """What each process does where layers are units of their own."""
    for case in cases:
        names = LAYERS_OF_MARIAN if case.startswith("Marian") else LAYERS  # a Marian does not name its layers
        train_all(folder, [case], fsdp=True, fsdp_config=names, **options)


def launch(call: str, *, processes: int, folder: Path) -> None:
    """Call a function of this module in processes that share their models."""
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(f"from pathlib import Path\nfrom hugging_face.{Path(__file__).stem} import *\n{call}\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", script]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr[-6000:]


def loaded(folder: Path) -> dict[str, Tensor]:
    """The weights of a saved model, as one process loads it."""
    is_seq2seq = transformers.AutoConfig.from_pretrained(folder).is_encoder_decoder
    kind = transformers.AutoModelForSeq2SeqLM if is_seq2seq else transformers.AutoModelForCausalLM
    model, report = kind.from_pretrained(folder, dtype=torch.float64, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert type(model).__name__ in ("MarianMTModel", "LlamaForCausalLM")
    weights: dict[str, Tensor] = model.state_dict()
    return weights


def require_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-9)


def found_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one process."""
    folder = tmp_path_factory.mktemp("one")
    train_all(folder, use_cpu=True)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two processes."""
    folder = tmp_path_factory.mktemp("two")
    launch(f"together(Path({str(folder)!r}))", processes=2, folder=folder)
    return folder


@ON_CPUS
@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_two_processes_with_half_the_weights_each_train_those_of_one(case: str, one: Path, two: Path) -> None:
    """The saved models too, with the same names, so that one process loads them."""
    name = case.replace(" ", "-")
    expected, found = found_in(one / name), found_in(two / name)
    assert found["sharded"] and found["held"] == pytest.approx(0.5, abs=0.02)
    assert found["losses"] == pytest.approx(expected["losses"], abs=1e-6)  # float32
    assert found["norms"] == pytest.approx(expected["norms"], abs=1e-9)
    assert max(expected["norms"]) > 0.1  # they were clipped
    for step in ("checkpoint-1", "checkpoint-2", "."):
        require_same(loaded(two / name / step), loaded(one / name / step))
    start = made(case.split()[0]).state_dict()
    assert all(
        (loaded(two / name)[part] - start[part]).abs().max() > 1e-4 for part in start if part.endswith("proj.weight")
    )


@pytest.fixture(scope="module")
def one_without_a_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one process whose gradients, like those of sharded layers, flow through no cache of prompts.

    The norms of a Llama compute in float32, so a cache would change the gradient by 1e-8.
    """
    folder = tmp_path_factory.mktemp("one-without-a-cache")
    train_all(folder, BY_PROCESSES[2], use_cpu=True, **{CHECKPOINTING: True})
    return folder


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folders of two and four processes that share models layer by layer."""
    folders = {}
    for processes, cases in BY_PROCESSES.items():
        folders[processes] = folder = tmp_path_factory.mktemp("layers")
        call = f"shard_on_cpus()\nin_layers(Path({str(folder)!r}), {cases!r}, use_cpu=True)"
        launch(call, processes=processes, folder=folder)
    return folders


@ON_CPUS
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("processes", "case"), [(count, case) for count in BY_PROCESSES for case in BY_PROCESSES[count]]
)
def test_processes_that_share_layers_train_the_weights_of_one(
    processes: int, case: str, one_without_a_cache: Path, layers: dict[int, Path]
) -> None:
    """Their searches differ in length, and half of them may have no rows."""
    folder, name = layers[processes], case.replace(" ", "-")
    expected, found = found_in(one_without_a_cache / name), found_in(folder / name)
    assert found["sharded"] and found["held"] == pytest.approx(1 / processes, abs=0.03)
    assert found["norms"] == pytest.approx(expected["norms"], abs=1e-9)
    for step in ("checkpoint-1", "checkpoint-2", "."):
        require_same(loaded(folder / name / step), loaded(one_without_a_cache / name / step))
    if processes == 2:  # with fewer rows in a batch, other prompts are padded before what is generated
        assert found["predicted"] == expected["predicted"]


@ON_CPUS
@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_two_processes_evaluate_and_predict_as_one(case: str, one: Path, two: Path) -> None:
    name = case.replace(" ", "-")
    expected, found = found_in(one / name), found_in(two / name)
    assert found["predicted"] == expected["predicted"]
    if case.startswith("Llama"):  # of other models, transformers takes a sum of the loss over processes
        assert found["after"] == pytest.approx(expected["after"], abs=1e-6)
    if case == EVALUATED_FIRST:
        assert found["before"] == pytest.approx(expected["before"], abs=1e-6)
        assert found["before"] != pytest.approx(found["after"], abs=1e-3)


@ON_CPUS
@pytest.mark.thorough
def test_any_number_of_processes_resumes_with_the_state_of_the_optimizer(two: Path) -> None:
    expected = loaded(two / RESUMED.replace(" ", "-") / "checkpoint-2")
    require_same(loaded(two / "resumed"), expected)
    call = f"shard_on_cpus()\nresume(Path({str(two)!r}), use_cpu=True, **ONE_UNIT)"
    launch(call, processes=1, folder=two)
    require_same(loaded(two / "resumed"), expected)


@ON_CPUS
@pytest.mark.thorough
@pytest.mark.parametrize("processes", [1, 4])
def test_any_number_of_processes_resumes_what_two_shared_layer_by_layer(
    processes: int, layers: dict[int, Path]
) -> None:
    folder, options = layers[2], {"fsdp": True, "fsdp_config": LAYERS_OF_MARIAN, "use_cpu": True}
    call = f"shard_on_cpus()\nresume(Path({str(folder)!r}), {RESUMED_IN_LAYERS!r}, **{options!r})"
    launch(call, processes=processes, folder=folder)
    require_same(loaded(folder / "resumed"), loaded(folder / RESUMED_IN_LAYERS.replace(" ", "-") / "checkpoint-2"))


@ON_CPUS
@pytest.mark.thorough
def test_two_processes_train_in_bfloat16(one: Path, tmp_path: Path) -> None:
    """Also where one of them has rows to learn from, and the other has none."""
    call = f"shard_on_cpus()\ntrain_all(Path({str(tmp_path)!r}), [HALF_EMPTY], use_cpu=True, bf16=True, **ONE_UNIT)"
    launch(call, processes=2, folder=tmp_path)
    name = HALF_EMPTY.replace(" ", "-")
    expected, found = found_in(one / name), found_in(tmp_path / name)
    assert found["losses"] == pytest.approx(expected["losses"], rel=0.02)  # it has 8 bits
    assert found["norms"] == pytest.approx(expected["norms"], rel=0.05)
    assert found["norms"] != pytest.approx(expected["norms"], rel=1e-6)


@pytest.mark.thorough
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_with_fsdp_comes_to_the_weights_of_one_without(tmp_path: Path) -> None:
    plain, sharded, half = (tmp_path / name for name in ("plain", "sharded", "half"))
    train_all(plain, max_steps=3)
    folder = f"Path({str(sharded)!r})"
    call = f"train_all({folder}, max_steps=3, **ONE_UNIT)\nresume({folder}, max_steps=3, **ONE_UNIT)"
    launch(call, processes=1, folder=sharded)
    launch(f"train_all(Path({str(half)!r}), [RESUMED], max_steps=3, bf16=True, **ONE_UNIT)", processes=1, folder=half)
    for case in CASES:
        name = case.replace(" ", "-")
        expected, found = found_in(plain / name), found_in(sharded / name)
        assert found["sharded"] and not expected["sharded"]
        for step in ("checkpoint-1", "checkpoint-3", "."):
            require_same(loaded(sharded / name / step), loaded(plain / name / step))
        assert found["predicted"] == expected["predicted"]
        assert found["after"] == pytest.approx(expected["after"], abs=1e-6)
    name = RESUMED.replace(" ", "-")
    require_same(loaded(sharded / "resumed"), loaded(sharded / name))
    # bfloat16 has 8 bits.
    assert found_in(half / name)["losses"] == pytest.approx(found_in(plain / name)["losses"], rel=0.05)


@pytest.mark.thorough
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_with_units_of_layers_comes_to_the_weights_of_one_without(tmp_path: Path) -> None:
    plain, sharded, cases = tmp_path / "plain", tmp_path / "sharded", BY_PROCESSES[2]
    train_all(plain, cases, **{CHECKPOINTING: True})  # without a cache of prompts: see one_without_a_cache
    launch(f"in_layers(Path({str(sharded)!r}), {cases!r})", processes=1, folder=sharded)
    for case in cases:
        name = case.replace(" ", "-")
        expected, found = found_in(plain / name), found_in(sharded / name)
        assert found["sharded"] and not expected["sharded"]
        assert found["norms"] == pytest.approx(expected["norms"], abs=1e-9)
        require_same(loaded(sharded / name), loaded(plain / name))
        assert found["predicted"] == expected["predicted"]


@pytest.mark.parametrize(
    ("fsdp_config", "said"),
    [
        (None, "fsdp: gradients of relaxed-beam flow through single steps, .*; shard the model as one unit: fsdp_conf"),
        ({"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, "fsdp: gradients of relaxed-beam flow through single steps"),
        ({"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 9}, "SIZE_BASED_WRAP makes units that are neither"),
        ({"auto_wrap_policy": "NO_WRAP", "version": 1}, "fsdp: version 1 gathers weights at a call of the model"),
        ({"auto_wrap_policy": "NO_WRAP", "xla": True}, "fsdp_config: xla is not supported"),
        ({"auto_wrap_policy": "NO_WRAP", "cpu_offload": True}, "fsdp_config: cpu_offload is not supported"),
        ({"auto_wrap_policy": "NO_WRAP", "activation_checkpointing": True}, "leave it out; the argument activation_"),
        ({"auto_wrap_policy": "NO_WRAP", "cpu_ram_efficient_loading": True}, "cpu_ram_efficient_loading is not"),
        (
            {"auto_wrap_policy": "NO_WRAP", "state_dict_type": "SHARDED_STATE_DICT"},
            "state_dict_type SHARDED_STATE_DICT saves no model that loads without FSDP",
        ),
    ],
)
def test_other_settings_of_fsdp_are_refused(fsdp_config: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        SearchAwareConfig(str(tmp_path), objective="relaxed-beam", use_cpu=True, fsdp=True, fsdp_config=fsdp_config)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("Marian", {}, "a MarianMTModel does not name its layers; name the classes of its layers"),
        ("Llama", {"transformer_layer_cls_to_wrap": ["GPT2Block"]}, "a LlamaForCausalLM has no GPT2Block"),
        ("Marian", {"transformer_layer_cls_to_wrap": ["MarianDecoderLayer"]}, "different layers .layerdrop."),
    ],
)
def test_layers_that_cannot_be_units_are_refused(name: str, options: Any, said: str, tmp_path: Path) -> None:
    config = SearchAwareConfig(
        str(tmp_path), objective="beam-crf", use_cpu=True, fsdp=True, fsdp_config=LAYERS | options
    )
    model = made(name)
    model.get_decoder().layerdrop = 0.1
    with pytest.raises(InputError, match=said):
        classes_of_layers(model, FullyShardedDataParallelPlugin(**config.fsdp_plugin_args))


class Announced:
    """A lockstep of one process."""

    passes = 0

    def announce(self) -> None:
        self.passes += 1


@pytest.mark.parametrize("name", ["Llama", "Marian"])
def test_an_idle_pass_draws_nothing_and_a_cache_is_only_for_searches(name: str) -> None:
    model = made(name).train()
    for part in model.modules():
        if hasattr(part, "dropout"):
            part.dropout = 0.5
        if hasattr(part, "attention_dropout"):
            part.attention_dropout = 0.5
    adapted, lockstep = step_model(model), Announced()
    adapted.lockstep = lockstep  # type: ignore[assignment]
    batch = collate([EncodedExample((3, 4, 5), (5, 4, END)), EncodedExample((6,), (6, END))])
    context = adapted.encode(batch)
    assert context.memory and not any(leaf.requires_grad for layer in context.memory for leaf in layer)
    features = adapted.teacher_forced(context, batch.targets_BT)
    assert features.requires_grad and lockstep.passes == 1
    before = torch.get_rng_state()
    adapted.teacher_forced(context, batch.targets_BT)
    assert not torch.equal(torch.get_rng_state(), before)  # a pass of its own draws its dropout
    before = torch.get_rng_state()
    adapted.idle_pass()
    assert torch.equal(torch.get_rng_state(), before) and lockstep.passes == 2


@pytest.mark.parametrize("in_layers", [False, True])
def test_processes_that_share_layers_generate_together(
    in_layers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has ended goes on until the others have, as transformers calls for where every step gathers layers."""
    trainer, told = trainer_of("Llama beam-crf", tmp_path, use_cpu=True), list[bool]()
    if in_layers:
        trainer.adapted().lockstep = Announced()
    generate = trainer.model.generate

    def listening(*arguments: Any, synced_gpus: bool = False, **named: Any) -> Any:
        told.append(synced_gpus)
        return generate(*arguments, **named)

    monkeypatch.setattr(trainer.model, "generate", listening)
    trainer.predict(trainer.eval_dataset)
    assert told == [in_layers]


def test_the_model_may_be_one_unit(tmp_path: Path) -> None:
    for options in (ONE_UNIT, {"fsdp": "full_shard", "fsdp_config": ONE_UNIT["fsdp_config"]}):
        assert SearchAwareConfig(str(tmp_path), use_cpu=True, **options).fsdp_plugin_args["fsdp_version"] == 2
