"""A task for Hugging Face models that is learnt in seconds: letters to the letters after them, in raw text."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

__all__ = ["IDS", "LETTERS", "TOKENS", "letter_bart", "letter_gpt2", "letter_pairs", "letter_tokenizer"]

LETTERS = ["a", "b", "c", "d"]
TOKENS = ["</s>", "<pad>", "<s>", "<unk>", *LETTERS]
# Two tokens more than the tokenizer knows.
IDS: dict[str, Any] = {"vocab_size": len(TOKENS) + 2, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 0}


def letter_bart(*, width: int = 8, **options: Any) -> Any:
    """Make an encoder-decoder with one layer a side and random weights; options are those of its configuration."""
    sizes = {"layers": 1, "attention_heads": 2, "ffn_dim": width}
    given = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}
    given |= {"d_model": width, "decoder_start_token_id": IDS["bos_token_id"], **IDS, **options}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**given))


def letter_gpt2(*, width: int = 8, **options: Any) -> Any:
    """Make a causal model with one layer and random weights; options are those of its configuration."""
    given = {"n_embd": width, "n_layer": 1, "n_head": 2, **IDS, **options}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**given))


def letter_tokenizer(template: str = "$A </s>") -> Any:
    """Words to the ids of TOKENS, with special tokens around them as the template has it."""
    core = Tokenizer(models.WordLevel({token: place for place, token in enumerate(TOKENS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [("</s>", 0), ("<s>", 2)]
    core.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="</s>", pad_token="<pad>", bos_token="<s>", unk_token="<unk>"
    )


def letter_pairs(count: int, seed: int, *, mark: str = "") -> str:
    """Lines of letters (and the mark), a tab, and the letter after each of them."""
    generator = torch.Generator().manual_seed(seed)
    lines = []
    for _ in range(count):
        length = int(torch.randint(1, 4, (), generator=generator))
        source = torch.randint(0, 4, (length,), generator=generator).tolist()
        target = " ".join(LETTERS[(n + 1) % 4] for n in source)
        lines.append(" ".join(LETTERS[n] for n in source) + mark + "\t" + target)
    return "\n".join(lines) + "\n"
