"""Settings of scoring: masks, words, units, batches and windows. Nothing here imports torch."""

from __future__ import annotations

from typing import Literal

from seqwise.configuration import Config, setting
from seqwise.errors import InputError
from seqwise.names import Pieces, ScoreUnit, WordsName


class ScoringSettings(Config):
    """Settings of ``seqwise score`` and ``Scorer``; see the help of each field.

    Example:
        >>> ScoringSettings(pieces="whole-word").unit
        'nats'
    """

    pieces: Pieces = setting(
        "within-word-l2r",
        "what is masked together with the scored token: the rest of its word, its whole word, or nothing else"
        " (original)",
        panel="Scores",
    )
    words: WordsName = setting("tokenizer", "word boundaries: those of the tokenizer, or blanks", panel="Scores")
    unit: ScoreUnit = setting("nats", "unit of scores", panel="Scores")
    by: Literal["sum", "mean"] = setting("sum", "compare pairs by the sum or the mean over tokens", panel="Scores")
    start: Literal["token", "none"] = setting(
        "token",
        "what a causal model reads before the first token: its start token, or none; with none, the first token is not"
        " scored",
        panel="Scores",
    )
    end: bool = setting(False, "also score the end token of causal models and encoder-decoders", panel="Scores")
    bound: int = setting(
        0,
        "passes that estimate a lower bound of log p(text) under a masked model read as a diffusion model; 0: no bound",
        ge=0,
        panel="Scores",
    )
    seed: int = setting(0, "seed of the masks of the bound", ge=0, panel="Scores")
    separator: str = setting(" ", "text between a prefix and its text", panel="Input")
    category: str = setting("UID", "key of the category in pairs.jsonl", metavar="KEY", panel="Input")
    max_tokens: int = setting(2**14, "tokens in one pass, padding included; fewer need less memory", ge=1, panel="Run")
    window: int | None = setting(
        None,
        "tokens in a window, for texts longer than that [positions of the model]",
        ge=2,
        panel="Run",
    )


def refuse_ignored(settings: ScoringSettings, kind: str) -> None:
    """Raise an InputError for a setting that a model of this kind ignores, or a seed without a bound.

    Example:
        >>> refuse_ignored(ScoringSettings(end=True), "causal")
    """
    if settings.seed and not settings.bound:
        raise InputError("seed: has no effect without a bound", hint="leave it out, or give --bound N")
    readers = {
        "pieces": ["masked"],
        "separator": ["masked", "causal"],
        "start": ["causal"],
        "end": ["causal", "encoder-decoder"],
    }
    for name, kinds in readers.items():
        if kind not in kinds and getattr(settings, name) != getattr(ScoringSettings(), name):
            hint = f"leave it out, or score under a model that is {' or '.join(kinds)}"
            raise InputError(f"{name}: has no effect under a model that is {kind}", hint=hint)
