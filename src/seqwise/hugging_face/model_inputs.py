"""Batches from a Hugging Face data collator, with padding on either side and labels of -100.

Shapes: B batch, L columns, S source length, T target length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seqwise.data.batches import IGNORE, Batch
from seqwise.errors import InputError

NEEDED = ("input_ids", "labels")
"""Required inputs of a model."""

READ = (*NEEDED, "attention_mask", "decoder_input_ids")
"""Inputs that are read."""


def batch_from_inputs(inputs: Mapping[str, Any], *, first: int | None) -> Batch:
    """Convert the inputs of a Hugging Face model to sources and targets, without rows that have no label.

    An encoder-decoder reads ``input_ids`` and writes ``labels``, starting after the token ``first``;
    ``decoder_input_ids``, which ``DataCollatorForSeq2Seq(model=...)`` adds, must be the labels shifted right. A causal
    model (``first`` is None) has both in one row: tokens with a label are the target, those before it the prompt, which
    is never empty: as in Transformers, the first token of a row is not a target.

    Example:
        >>> inputs = {"input_ids": torch.tensor([[0, 5, 6, 7]]), "attention_mask": torch.tensor([[0, 1, 1, 1]])}
        >>> batch = batch_from_inputs(inputs | {"labels": torch.tensor([[-100, -100, 6, 7]])}, first=None)
        >>> batch.sources_BS, batch.targets_BT
        (tensor([[5]]), tensor([[6, 7]]))
    """
    require_needed(inputs)
    ignored = [name for name in inputs if name not in READ and inputs[name] is not None]
    if ignored:
        raise InputError(f"the inputs have {ignored[0]}, which a search would not read", hint="drop it from the data")
    tokens_BL, labels_BL = inputs["input_ids"], target_labels(inputs, causal=first is None)
    real_BL, wanted_BL = _real(inputs), labels_BL >= 0
    _require_no_gap(real_BL, "attention_mask has a gap")
    _require_no_gap(wanted_BL, "labels have a gap of -100 between two targets")
    if first is None:
        if bool((wanted_BL & (labels_BL != tokens_BL)).any()):
            problem = "the labels of a causal model must be its input_ids, or -100, and they differ"
            raise InputError(problem, hint="copy input_ids without shifting them: they are shifted later")
        real_BL = real_BL & (torch.cumsum(wanted_BL, dim=1) == 0)
    elif inputs.get("decoder_input_ids") is not None:
        _require_shifted(inputs["decoder_input_ids"], labels_BL, first)
    kept_B = wanted_BL.any(1)
    sources_BS, source_lengths_B = _shifted_left(tokens_BL[kept_B], real_BL[kept_B], 0)
    targets_BT, target_lengths_B = _shifted_left(labels_BL[kept_B], wanted_BL[kept_B], IGNORE)
    return Batch(sources_BS, source_lengths_B, targets_BT, target_lengths_B, kept_B.nonzero()[:, 0])


def require_needed(inputs: Mapping[str, Any]) -> None:
    """Raise an InputError if an input is missing that a model needs to be trained."""
    for name in NEEDED:
        if inputs.get(name) is None:
            raise InputError(f"the inputs have no {name}", hint="tokenise the data, and use a collator that pads them")


def prompts_of(inputs: Mapping[str, Any], padding: int) -> dict[str, Tensor]:
    """Return the prompts of a causal model, padded on the left as ``generate`` reads them: whole rows without labels.

    Example:
        >>> labels = torch.tensor([[-100, -100, 6, 7], [-100, 8, 9, 9]])
        >>> prompts_of({"input_ids": torch.tensor([[3, 5, 6, 7], [4, 8, 9, 9]]), "labels": labels}, 0)
        {'input_ids': tensor([[3, 5],
                [0, 4]]), 'attention_mask': tensor([[1, 1],
                [0, 1]])}
    """
    before_BL = _real(inputs) & (torch.cumsum(target_labels(inputs, causal=True) >= 0, dim=1) == 0)
    prompts_BS, lengths_B = _shifted_left(inputs["input_ids"], before_BL, padding)
    if prompts_BS.shape[1] == 0:  # all rows are padding
        prompts_BS = prompts_BS.new_full((len(prompts_BS), 1), padding)
    width = prompts_BS.shape[1]
    columns_BS = torch.arange(width, device=lengths_B.device) - (width - lengths_B[:, None])
    tokens_BS = prompts_BS.gather(1, columns_BS % width).masked_fill(columns_BS < 0, padding)
    return {"input_ids": tokens_BS, "attention_mask": (columns_BS >= 0).long()}


def target_labels(inputs: Mapping[str, Any], *, causal: bool) -> Tensor:
    """Return the labels that are targets, -100 elsewhere: for causal models, all but the first token of a row.

    Example:
        >>> inputs = {"input_ids": torch.tensor([[5, 6]]), "labels": torch.tensor([[5, 6]])}
        >>> target_labels(inputs, causal=True)
        tensor([[-100,    6]])
    """
    labels_BL: Tensor = inputs["labels"]
    if not causal:
        return labels_BL
    real_BL = _real(inputs)
    if real_BL.shape != labels_BL.shape:
        problem = f"labels have {labels_BL.shape[1]} columns and input_ids {real_BL.shape[1]}"
        raise InputError(f"{problem}, and a causal model has both in one row", hint="pad both to the same length")
    is_first_BL = real_BL & (torch.cumsum(real_BL, dim=1) == 1)
    return labels_BL.masked_fill(is_first_BL | ~real_BL, IGNORE)


def _real(inputs: Mapping[str, Any]) -> Tensor:
    """Return the mask of tokens that are not padding."""
    mask_BL: Tensor | None = inputs.get("attention_mask")
    if mask_BL is None:
        return torch.ones_like(inputs["input_ids"], dtype=torch.bool)
    if mask_BL.dim() != 2:
        raise InputError(f"attention_mask has {mask_BL.dim()} dimensions, and 2 are read", hint="give one row a text")
    return mask_BL > 0


def _require_no_gap(mask_BL: Tensor, problem: str) -> None:
    if mask_BL.shape[1] == 0:
        return
    columns_L = torch.arange(mask_BL.shape[1], device=mask_BL.device)
    last_B = torch.where(mask_BL, columns_L, -1).amax(1)
    first_B = torch.where(mask_BL, columns_L, mask_BL.shape[1]).amin(1)
    if bool((mask_BL.sum(1) < last_B - first_B + 1).any()):
        hint = "pad on one side; give labels to all that follows a prompt, or split the text there"
        raise InputError(problem, hint=hint)


def _require_shifted(fed_BL: Tensor, labels_BL: Tensor, first: int) -> None:
    wanted_BL = labels_BL >= 0
    same = fed_BL.shape == labels_BL.shape
    # If labels are padded on the left, Transformers puts padding before the first; here it is the start token.
    same = same and not bool((wanted_BL[:, 0] & (fed_BL[:, 0] != first)).any())
    followed = wanted_BL[:, 1:] & wanted_BL[:, :-1]
    if not same or bool((followed & (fed_BL[:, 1:] != labels_BL[:, :-1])).any()):
        raise InputError(
            f"decoder_input_ids are not the labels after the start token {first}",
            hint="drop them, or set generation_config.decoder_start_token_id to the token that they start with",
        )


def _shifted_left(values_BL: Tensor, kept_BL: Tensor, fill: int) -> tuple[Tensor, Tensor]:
    """Shift the kept part of each row to the left, and return it with its length; as wide as the longest."""
    lengths_B = kept_BL.sum(1)
    width = int(lengths_B.max()) if len(lengths_B) else 0
    order_BL = (~kept_BL).long().argsort(dim=1, stable=True)[:, :width]
    is_padding_BL = torch.arange(width, device=lengths_B.device) >= lengths_B[:, None]
    return values_BL.gather(1, order_BL).masked_fill(is_padding_BL, fill), lengths_B
