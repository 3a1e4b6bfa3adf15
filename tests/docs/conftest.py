"""Small models of random weights, in folders of the names that the pages use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import pretrained

SMALL = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "d_model": 16}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32}
IDS = {"vocab_size": 12, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


def bart() -> Any:
    config = transformers.BartConfig(**SMALL, **HEADS, **IDS, decoder_start_token_id=2, forced_eos_token_id=3)
    return transformers.BartForConditionalGeneration(config)


def marian() -> Any:
    config = transformers.MarianConfig(**SMALL, **HEADS, **IDS, decoder_start_token_id=0, forced_eos_token_id=None)
    return transformers.MarianMTModel(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, **IDS)
    return transformers.GPT2LMHeadModel(config)


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


@pytest.fixture
def small_models(model_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is an empty one with these models, and the hub cannot be reached."""
    for model in model_folders.iterdir():
        (tmp_path / model.name).symlink_to(model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
