"""``seqwise train --model FOLDER`` for causal language models: prompts and continuations, end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from command_line import Command, run_main
from letters import IDS, TOKENS, letter_gpt2, letter_pairs, letter_tokenizer
from parameters import quick
from pretrained import byte_tokenizer, made, saved
from seqwise.data.batches import collate
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.objectives import cross_entropy_objective
from seqwise.runs import train_settings
from seqwise.runs.loading import new_run


def gpt2(**more: Any) -> Any:
    return letter_gpt2(width=32, **{"n_layer": 2, "n_positions": 24, "initializer_range": 0.2, **more})


def llama() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.LlamaConfig(**sizes, **IDS, max_position_embeddings=24, initializer_range=0.2)
    return transformers.LlamaForCausalLM(config)


# GPT-2's tokenizer puts nothing around a text, Llama's a start token before it.
KINDS = {"gpt2": (gpt2, "$A"), "llama": (llama, "<s> $A")}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    for name, (make, template) in KINDS.items():
        saved(folder / name, make(), letter_tokenizer(template))
    # The letter <unk> ends a prompt, as a separator does.
    (folder / "train.tsv").write_text(letter_pairs(160, 0, mark=" >"))
    (folder / "dev.tsv").write_text(letter_pairs(20, 1, mark=" >"))
    return folder


def options(files: Path, name: str, **more: Any) -> list[str]:
    given = {"model": files / name, "train": files / "train.tsv", "batch_size": 16, "save_every": 50, **more}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]


@pytest.fixture(scope="module", params=quick(KINDS, "gpt2"))
def run(request: pytest.FixtureRequest, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / request.param
    learnt = {"objective": "cross-entropy", "epochs": 12, "learning_rate": 0.01, "dev": files / "dev.tsv"}
    run_main("train", *options(files, request.param, **learnt), f"--output={folder}")
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(("decoder", "beams"), [("greedy", 1), ("beam", 3)])
def test_transformers_decodes_a_trained_model_as_seqwise_does(
    decoder: str, beams: int, run: Path, files: Path, seqwise: Command
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(run / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    pairs = [line.split("\t") for line in (files / "dev.tsv").read_text().splitlines()]
    (files / "inputs.txt").write_text("\n".join(source for source, _ in pairs) + "\n")
    size = () if beams == 1 else ("--beam-size", beams)
    records = seqwise("predict", run, files / "inputs.txt", "--decoder", decoder, *size, "--json").records
    for (source, _), record in zip(pairs, records, strict=True):
        prompt = tokenizer(source, return_tensors="pt", return_token_type_ids=False)
        ids = model.generate(**prompt, num_beams=beams, do_sample=False, max_new_tokens=8, length_penalty=0.0)
        written = tokenizer.decode(ids[0, prompt.input_ids.shape[1] :], skip_special_tokens=True)
        assert written == record["outputs"][0]["output"]
    right = [record["outputs"][0]["output"] == target for (_, target), record in zip(pairs, records, strict=True)]
    assert sum(right) >= 10  # what was learnt: the next letter


@pytest.mark.thorough
def test_a_run_is_measured_diagnosed_and_reported_on(run: Path, files: Path, tmp_path: Path, seqwise: Command) -> None:
    pytest.importorskip("matplotlib")
    found = json.loads(seqwise("evaluate", run, files / "dev.tsv", "--json").out)
    assert found["beam"]["token error"]["value"] < 30
    diagnosed = seqwise("diagnose", run, files / "dev.tsv", "--json")
    assert diagnosed.code == 0, diagnosed.err
    rows = json.loads(diagnosed.out)["decoders"]
    assert rows["beam"]["token error"]["value"] == found["beam"]["token error"]["value"]
    explored = seqwise("diagnose", run, files / "dev.tsv", "--example", 1)
    assert explored.code == 0, explored.err
    page = tmp_path / "page.html"
    reported = seqwise("report", run, "--output", page, "--file", files / "dev.tsv", "--examples", 1)
    assert reported.code == 0, reported.err
    assert "edit distance" in page.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("objective", ["relaxed-beam", "self-normalized"])
def test_other_objectives_train_causal_models(objective: str, files: Path, tmp_path: Path, seqwise: Command) -> None:
    short = {"epochs": 0.2, "beam_size": 2, "objective": objective}
    if objective != "self-normalized":
        short["warm_start"] = "none"
    ended = seqwise("train", *options(files, "gpt2", **short), f"--output={tmp_path / 'run'}")
    assert ended.code == 0, ended.err
    before, after = (
        transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in (files / "gpt2", tmp_path / "run/model")
    )
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_the_loss_is_that_of_the_continuation_alone(name: str, files: Path) -> None:
    run = new_run([], train_settings(model=str(files / name)))
    examples = [Example(("a b >",), ("b c",)), Example(("d >",), ("a",))]
    encoded = run.codec.encode(examples)
    assert [one.target_ids for one in encoded] == [(5, 6, 0), (4, 0)]
    assert encoded[0].source_ids == ((2, 4, 5, 3) if name == "llama" else (4, 5, 3))
    found = cross_entropy_objective()(run.model, collate(encoded), {})
    total, count = 0.0, 0
    for one in encoded:
        ids = torch.tensor([[*one.source_ids, *one.target_ids]])
        labels = ids.clone()
        labels[:, : len(one.source_ids)] = -100
        with torch.no_grad():
            own = run.model.model(input_ids=ids, labels=labels).loss
        total, count = total + float(own) * len(one.target_ids), count + len(one.target_ids)
    assert float(found.detach()) == pytest.approx(total / count, rel=1e-4)


def test_a_continuation_is_tokenized_after_its_prompt(tmp_path: Path) -> None:
    """A byte-pair tokenizer has other pieces for a word with a blank before it."""
    tokenizer = byte_tokenizer()
    ids = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    folder = saved(tmp_path / "gpt2", made(gpt2(**ids), scale=1.0, dtype=torch.float32), tokenizer)
    run = new_run([], train_settings(model=str(folder)))
    (one,) = run.codec.encode([Example(("the dog",), ("sees a cat",))])
    whole = tokenizer("the dog sees a cat", add_special_tokens=False).input_ids
    assert list(one.source_ids) == [0, *whole[: len(one.source_ids) - 1]]  # without the </s> that ends a text
    assert list(one.target_ids) == [*whole[len(one.source_ids) - 1 :], 2]
    assert run.codec.target_text(run.codec.target_vocabulary.decode(one.target_ids)) == "sees a cat"


def test_examples_too_long_for_the_model_are_refused_before_training(
    files: Path, tmp_path: Path, seqwise: Command
) -> None:
    def complaint(*lines: str) -> str:
        (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
        arguments = options(files, "gpt2", train=tmp_path / "train.tsv")
        return seqwise("train", *arguments, f"--output={tmp_path / 'run'}").complaint

    long, short = " ".join("abcdabcdabcdabcdabcd"), "a b c d"
    said = complaint(f"{short}\t{short}", f"{long}\t{short} a")
    assert "train.tsv:2: the source has 20 tokens, which leave 5 positions for a target of 6" in said
    # Each fits, but a batch of both would not.
    said = complaint(f"{long}\t{short}", f"{short}\t{long[:-2]}")
    assert "the longest source has 20 tokens, which leave 5 positions for a target of 20" in said


def test_outputs_end_with_the_end_token_of_the_tokenizer(tmp_path: Path) -> None:
    """Chat models have several; targets end with the tokenizer's, and the others are never written."""
    from seqwise.runs import choose_decoder, predict

    other, end = 9, 0
    model = gpt2()
    with torch.no_grad():
        model.lm_head.weight[other] *= 20.0  # what it would write otherwise
    model.generation_config.eos_token_id = [other, end]
    run = new_run([], train_settings(model=str(saved(tmp_path / "gpt2", model, letter_tokenizer("$A")))))
    assert run.model.end == end and run.codec.encode([Example(("a",), ("b",))])[0].target_ids[-1] == end
    examples = [Example((text,), ()) for text in ("a b", "c", "d d d a")]
    for decoder in ("greedy", "beam"):
        outputs = [best for best, *_ in predict(run, examples, choose_decoder(run.settings, decoder))]
        written = run.codec.target_vocabulary.tokens[other]
        assert not any(written in output.tokens for output in outputs)
    run.model.model.generation_config.eos_token_id = end
    outputs = [best for best, *_ in predict(run, examples, choose_decoder(run.settings, "greedy"))]
    assert any(written in output.tokens for output in outputs), "where it is an ordinary token"


def test_a_prompt_near_the_last_position_is_continued_up_to_it(files: Path, seqwise: Command) -> None:
    run = new_run([], train_settings(model=str(files / "gpt2")))
    run.model.model.generation_config.suppress_tokens = [0]  # so that nothing ends by itself
    examples = [Example((" ".join("abcd" * 5),), ()), Example(("a",), ()), Example((" ".join("abcd" * 6),), ())]
    from seqwise.runs import choose_decoder, predict

    found = predict(run, examples, choose_decoder(run.settings, "greedy"))
    assert [len(outputs[0].tokens) for outputs in found] == [5, 12, 1]
    alone = predict(run, examples[:1], choose_decoder(run.settings, "greedy"))
    assert found[0][0].tokens == alone[0][0].tokens
    assert set(found[0][0].tokens) <= set(TOKENS) | {"<id 8>", "<id 9>"}
    with pytest.raises(InputError, match="the source has 25 tokens, and the model has 24 positions"):
        run.codec.encode([Example((" ".join("abcd" * 6 + "a"),), ())])
