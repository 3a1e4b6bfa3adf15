"""What docs/hugging-face.md shows runs, each block on its own, on small models in folders of the names that it uses."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pretrained
from pages import blocks, run_python
from seqwise.hugging_face import masked_model

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "hugging-face.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE))
SMALL = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "d_model": 16}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32}
IDS = {"vocab_size": 12, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


def bart() -> Any:
    config = transformers.BartConfig(**SMALL, **HEADS, **IDS, decoder_start_token_id=2, forced_eos_token_id=None)
    return transformers.BartForConditionalGeneration(config)


def marian() -> Any:
    config = transformers.MarianConfig(**SMALL, **HEADS, **IDS, decoder_start_token_id=0, forced_eos_token_id=None)
    return transformers.MarianMTModel(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, **IDS)
    return transformers.GPT2LMHeadModel(config)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small model of each kind, with its tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    for name, make in {"my-bart": bart, "my-marian": marian, "my-gpt2": gpt2}.items():
        pretrained.saved(folder / name, make(), pretrained.word_tokenizer())
    opinionated = pretrained.made(pretrained.bert(), scale=4.0, dtype=torch.float32)
    pretrained.saved(folder / "my-bert", opinionated, pretrained.word_tokenizer())
    residues = pretrained.esm_tokenizer(folder / "vocabulary")
    esm = pretrained.esm(len(residues), mask_id=residues.mask_token_id)
    pretrained.saved(folder / "my-esm", esm, residues)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("title", list(BLOCKS))
def test_a_block_runs_on_its_own(
    title: str, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    if title.startswith("Valid samples"):
        pytest.importorskip("arviz_stats")
    for model in folders.iterdir():
        (tmp_path / model.name).symlink_to(model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    namespace: dict[str, Any] = {}
    printed = run_python(BLOCKS[title], f"docs/hugging-face.md, {title}", namespace)
    check = CHECKS.get(title)
    if check is not None:
        check(namespace, printed.splitlines())


def trained_bart(namespace: dict[str, Any], lines: list[str]) -> None:
    """What was trained with us decodes without us, and its weights have moved."""
    plain = transformers.AutoModelForSeq2SeqLM.from_pretrained("runs/bart/model")
    before = transformers.AutoModelForSeq2SeqLM.from_pretrained("my-bart").state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in plain.state_dict().items())
    assert plain.generate(torch.tensor([[2, 5, 6, 3]]), max_new_tokens=3).shape[0] == 1


def two_outputs(namespace: dict[str, Any], lines: list[str]) -> None:
    assert len(lines) == 2


def raw_score(namespace: dict[str, Any], lines: list[str]) -> None:
    """The sum of the scores of the tokens, none of them normalised."""
    with torch.no_grad():
        logits_TV = namespace["model"](namespace["ids"]).logits[0, :-1]
    expected = logits_TV.gather(1, namespace["ids"][0, 1:, None]).sum()
    assert float(lines[-1]) == pytest.approx(float(expected), abs=1e-4)


def two_scores(namespace: dict[str, Any], lines: list[str]) -> None:
    assert len(lines) == 2 and float(lines[0].split()[0]) < 0


def four_texts(namespace: dict[str, Any], lines: list[str]) -> None:
    assert len(namespace["sampled"].texts) == 4 and "accepted" in lines[0] and "R-hat" in " ".join(lines)


def filled_in(namespace: dict[str, Any], lines: list[str]) -> None:
    assert len(lines) == 5
    assert all(line.startswith("the dog ") and line.endswith(" .") and "a cat" in line for line in lines)


def variants(namespace: dict[str, Any], lines: list[str]) -> None:
    assert len(lines) == 4
    assert all(re.fullmatch("M ?K ?T ?[A-Y] ?L ?L ?V ?[A-Y] ?A", line.split(" ", 1)[1]) for line in lines)


def three_labels(namespace: dict[str, Any], lines: list[str]) -> None:
    """A label for each word, by a tagger whose encoder was trained along."""
    assert len(ast.literal_eval(lines[-1])) == 3
    before = transformers.AutoModelForTokenClassification.from_pretrained("my-bert").base_model.state_dict()
    after = namespace["tagger"].encoder.backbone.state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in after.items())


CHECKS = {
    "Fine-tune a BART through a relaxed beam": trained_bart,
    "Search as you like": two_outputs,
    "Self-normalise a GPT-2, and score without the softmax": raw_score,
    "How likely a BERT finds your sentences": two_scores,
    "Tag with a BERT that knows its last label": three_labels,
    "Valid samples from a BERT": four_texts,
    "Fill in, under constraints": filled_in,
    "Variants of a protein": variants,
}


@pytest.mark.thorough
def test_the_readme_has_all_of_it_in_a_few_lines_each(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("arviz_stats")
    section = README.partition("## Models that you already have")[2].partition("\n## ")[0]
    parts = [block.code for block in blocks(section, "python")]
    assert len(parts) == 8 == section.count("<details>") + 1 == section.count("</details>") + 1
    assert all(len([line for line in part.splitlines() if line]) <= 10 for part in parts), "short is the point"
    for model in folders.iterdir():
        (tmp_path / model.name).symlink_to(model)
    (tmp_path / "sentences.txt").write_text("the dog sees a cat .\ncat a sees the . dog\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    namespace: dict[str, Any] = {}
    printed = [run_python(part, f"README.md, model {number}", namespace) for number, part in enumerate(parts, start=1)]
    assert ast.literal_eval(printed[3].strip()) and len(printed[4].splitlines()) == 2
    assert len(namespace["sampled"].texts) == 4 and "R-hat" in printed[5]
    assert "a cat" in printed[6] and len(printed[7].splitlines()) == 4
    raw_score(namespace, printed[2].splitlines())


def test_the_page_has_what_the_checks_are_of() -> None:
    assert len(BLOCKS) == 9 and set(CHECKS) <= set(BLOCKS)
    assert callable(masked_model)


def test_lines_of_code_fit_the_page() -> None:
    assert all(len(line) <= 120 for block in BLOCKS.values() for line in block.splitlines())
    assert all(len(block.splitlines()) <= 13 for block in BLOCKS.values()), "short is the point"
