"""Tiny Hugging Face models with random weights, and tokenizers for them, made without a network.

Also folders of models with code, pickles, or files that are cut or missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "dog", "sees", "a", "cat", "runs", "."]
RESIDUES = list("LAGVSERTIDPKQNFYMHWCXBUZO.-")

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
PLACES: dict[str, Any] = {"max_position_embeddings": 14, "pad_token_id": 0}
OF_ESM: dict[str, Any] = {"max_position_embeddings": 14, "mask_token_id": 4, "token_dropout": True}


def bert(vocab_size: int = 12, **options: Any) -> Any:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=vocab_size, **{**SIZES, **PLACES, **options})
    )


def roberta(vocab_size: int = 12, **options: Any) -> Any:
    config = {**SIZES, **PLACES, "pad_token_id": 1, **options}
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(vocab_size=vocab_size, **config))


def distilbert(vocab_size: int = 12) -> Any:
    config = transformers.DistilBertConfig(
        vocab_size=vocab_size, dim=16, n_layers=2, n_heads=2, hidden_dim=24, **PLACES
    )
    return transformers.DistilBertForMaskedLM(config)


def modernbert(vocab_size: int = 12, attention: str | None = None) -> Any:
    """With its default attention, or the one that is named; windows of local attention shorter than the sequences."""
    own = {"local_attention": 4, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    config = transformers.ModernBertConfig(
        vocab_size=vocab_size, attn_implementation=attention, **{**SIZES, **PLACES, **own}
    )
    return transformers.ModernBertForMaskedLM(config)


def esm(vocab_size: int = 12, *, positions: str = "rotary", pad_id: int = 1, mask_id: int = 4) -> Any:
    own = {**OF_ESM, "mask_token_id": mask_id, "pad_token_id": pad_id, "position_embedding_type": positions}
    return transformers.EsmForMaskedLM(transformers.EsmConfig(vocab_size=vocab_size, **SIZES, **own))


def albert(vocab_size: int = 12) -> Any:
    config = transformers.AlbertConfig(vocab_size=vocab_size, embedding_size=8, **SIZES, **PLACES)
    return transformers.AlbertForMaskedLM(config)


def electra(vocab_size: int = 12) -> Any:
    config = transformers.ElectraConfig(vocab_size=vocab_size, embedding_size=8, **SIZES, **PLACES)
    return transformers.ElectraForMaskedLM(config)


def gpt2(vocab_size: int = 12, *, n_positions: int = 14, **options: Any) -> Any:
    """A causal model of two layers."""
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": n_positions}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocab_size, **sizes, **options))


MODELS = {
    "BERT": bert,
    "RoBERTa": roberta,
    "DistilBERT": distilbert,
    "ModernBERT": modernbert,
    "ModernBERT, eager": lambda: modernbert(attention="eager"),
    "ESM": esm,
    "ESM-1b": lambda: esm(positions="absolute"),
    "ALBERT": albert,
    "ELECTRA": electra,
}


def made(model: Any, *, scale: float = 6.0, dtype: torch.dtype = torch.float64) -> Any:
    """A model with weights so large that it has opinions, in evaluation mode."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "position" not in name:
            parameter.data *= scale
        elif name.endswith("bias"):
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def word_tokenizer(words: list[str] | None = None, *, mask: str | None = "[MASK]") -> Any:
    """A fast tokenizer of lower-cased words, [CLS] and [SEP] around them."""
    tokens = {token: place for place, token in enumerate([*SPECIAL, *(WORDS if words is None else words)])}
    core = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token=mask,
    )


def piece_tokenizer(pieces: list[str]) -> Any:
    """A fast tokenizer of word pieces as BERT has it, [CLS] and [SEP] around them."""
    tokens = {token: place for place, token in enumerate([*SPECIAL, *pieces])}
    return transformers.BertTokenizer(vocab=tokens)


def byte_tokenizer() -> Any:
    """A fast tokenizer of byte pairs as RoBERTa has it, whose mask takes the blank before it."""
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    mask = AddedToken("<mask>", lstrip=True, special=True)
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", mask],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["the dog sees a cat", "the cats run", "a dog runs"] * 5, trainer)
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", mask_token=mask, **names
    )


def esm_tokenizer(folder: Path) -> Any:
    """The slow tokenizer of ESM, with its own vocabulary."""
    tokens = ["<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES, "<null_1>", "<mask>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens))
    return transformers.EsmTokenizer(str(folder / "vocab.txt"))


def saved(folder: Path, model: Any, tokenizer: Any) -> Path:
    """A folder as ``save_pretrained`` leaves it."""
    bars = transformers.utils.logging
    bars.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    bars.enable_progress_bar()
    return folder


def with_code(folder: Path) -> None:
    """A configuration that names code of its own."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Model"}}))


def pickled(folder: Path) -> None:
    """Weights that could run code."""
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cut(folder: Path) -> None:
    """Weights of which most is gone."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])


def without(name: str) -> Callable[[Path], None]:
    """Files of that name, or pattern, are gone."""

    def remove(folder: Path) -> None:
        for path in folder.glob(name):
            path.unlink()

    return remove
