"""Numbers of positions of Hugging Face models, by their configurations and tables."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

Side = Literal["encoder", "decoder"]


class Limit(NamedTuple):
    """Number of positions, and the setting that it comes from."""

    positions: int
    setting: str


def configured_limit(config: Any, side: Side = "decoder") -> Limit | None:
    """Return the number of positions of a configuration; None if it has none.

    It is that of training, which models with rotary or relative positions may exceed.

    Example:
        >>> from transformers import GPT2Config, LEDConfig
        >>> configured_limit(GPT2Config(n_positions=16))
        Limit(positions=16, setting='max_position_embeddings')
        >>> configured_limit(LEDConfig(), "encoder")
        Limit(positions=16384, setting='max_encoder_position_embeddings')
    """
    for setting in (f"max_{side}_position_embeddings", "max_position_embeddings", "max_seq_len"):
        positions = getattr(config, setting, None)
        if isinstance(positions, int) and positions > 0:
            return Limit(positions, setting)
    return None


def decoder_limits(decoder: Any, config: Any) -> list[Limit]:
    """Return the limits that a decoder of some configuration cannot exceed; none for rotary or relative positions."""
    limits = []
    table = configured_limit(config)
    if table is not None and _has_table(decoder):
        limits.append(table)
    # Beyond these, a long row changes the frequencies of rotary positions for all rows of its batch.
    ropes = getattr(decoder.config, "rope_parameters", None) or {}
    for rope in (ropes, *ropes.values()):
        kind = rope.get("rope_type", "") if isinstance(rope, dict) else ""
        if kind == "longrope":
            setting = "original_max_position_embeddings"
            limits.append(Limit(rope[setting], f"{setting} of longrope"))
        elif "dynamic" in kind:
            limits.append(Limit(decoder.config.max_position_embeddings, f"max_position_embeddings of {kind} rope"))
    return limits


def _has_table(decoder: Any) -> bool:
    """Whether a decoder looks positions up: in an embedding, in sinusoids (GPT-J, CTRL), or in biases (MPT)."""
    parts = list(decoder.modules())
    return (
        sum(isinstance(part, nn.Embedding) for part in parts) > 1
        or any(isinstance(getattr(part, name, None), Tensor) for part in parts for name in _SINUSOIDS)
        or hasattr(decoder, "build_mpt_alibi_tensor")
    )


_SINUSOIDS = ("embed_positions", "pos_encoding")


def num_positions(model: Any, side: Side = "encoder") -> int | None:
    """Return the longest sequence: from the configuration, or from a position table without padding entries."""
    limit = configured_limit(model.config, side)
    known = [] if limit is None else [limit.positions]
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            # RoBERTa and ESM number positions from the one after the padding's.
            known.append(module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1))
    return min((positions for positions in known if positions > 0), default=None)
