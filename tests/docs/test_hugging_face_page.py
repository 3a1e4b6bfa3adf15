"""Each block of docs/hugging-face.md runs on its own, on small models in folders with the names that it uses."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pages import run_python
from seqwise.runs import load_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "hugging-face.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", PAGE, flags=re.DOTALL | re.MULTILINE))


@pytest.mark.thorough
@pytest.mark.parametrize("title", list(BLOCKS))
def test_a_block_runs_on_its_own(
    title: str, small_models: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if title.startswith("Valid samples"):
        pytest.importorskip("arviz_stats")
    namespace: dict[str, Any] = {}
    printed = run_python(BLOCKS[title], f"docs/hugging-face.md, {title}", namespace)
    check = CHECKS.get(title)
    if check is not None:
        check(namespace, printed.splitlines())


def trained_bart(namespace: dict[str, Any], lines: list[str]) -> None:
    """The trained model decodes without seqwise, and its weights have moved."""
    plain = transformers.AutoModelForSeq2SeqLM.from_pretrained("runs/bart/model")
    before = transformers.AutoModelForSeq2SeqLM.from_pretrained("my-bart").state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in plain.state_dict().items())
    assert plain.generate(torch.tensor([[2, 5, 6, 3]]), max_new_tokens=3).shape[0] == 1


def two_outputs(namespace: dict[str, Any], lines: list[str]) -> None:
    assert len(lines) == 2


def a_run(namespace: dict[str, Any], lines: list[str]) -> None:
    """The weights are those of the model."""
    weights = transformers.AutoModelForSeq2SeqLM.from_pretrained("my-bart").state_dict()
    loaded = load_run("runs/as-it-is").model.model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


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


def two_folders(namespace: dict[str, Any], lines: list[str]) -> None:
    """Both are read back, and their tokenizer writes and reads the text it was trained on."""
    transformers.AutoModelForSeq2SeqLM.from_pretrained("small-bart")
    transformers.AutoModelForMaskedLM.from_pretrained("small-bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained("small-bart")
    ids = tokenizer("a cat runs").input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a cat runs"


CHECKS = {
    "Fine-tune a BART through a relaxed beam": trained_bart,
    "Choose a search": two_outputs,
    "Find out why a beam makes outputs worse": a_run,
    "Self-normalise a GPT-2, and score without the softmax": raw_score,
    "Score sentences with a BERT": two_scores,
    "Tag with a BERT that conditions on the last label": three_labels,
    "Valid samples from a BERT": four_texts,
    "Fill in, under constraints": filled_in,
    "Variants of a protein": variants,
    "Without a network": two_folders,
}


def test_every_check_has_its_block() -> None:
    assert len(BLOCKS) == 11 and set(CHECKS) <= set(BLOCKS)


def test_lines_of_code_fit_the_page() -> None:
    assert all(len(line) <= 120 for block in BLOCKS.values() for line in block.splitlines())
    assert all(len(block.splitlines()) <= 13 for block in BLOCKS.values()), "short is the point"
