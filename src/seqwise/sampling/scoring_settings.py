"""Settings of scoring: masks, words, units, batches and windows. Nothing here imports torch."""

from __future__ import annotations

from typing import Literal

from seqwise.configuration import Config, setting
from seqwise.names import Pieces, ScoreUnit, WordsName


class ScoringSettings(Config):
    """Settings of ``seqwise score`` and of ``Scorer``; see each field's help.

    Example:
        >>> ScoringSettings(pieces="whole-word").unit
        'nats'
    """

    pieces: Pieces = setting(
        "within-word-l2r",
        "what a masked model does not see beside the token that is scored: the rest of its word, all of its word, or"
        " nothing else (original)",
        panel="Scores",
    )
    words: WordsName = setting("tokenizer", "what parts words: the tokenizer, or blanks alone", panel="Scores")
    unit: ScoreUnit = setting("nats", "of scores", panel="Scores")
    by: Literal["sum", "mean"] = setting("sum", "what pairs are compared by: of the tokens", panel="Scores")
    start: Literal["token", "none"] = setting(
        "token",
        "what a causal model reads before the first token: its start token, or none, and then the first token is given"
        " and not scored",
        panel="Scores",
    )
    end: bool = setting(False, "score the end token of causal models and encoder-decoders too", panel="Scores")
    bound: int = setting(
        0,
        "passes for a lower bound of a text's log-probability under a masked model read as a diffusion model; 0: none",
        ge=0,
        panel="Scores",
    )
    seed: int = setting(0, "of the masks of the bound", ge=0, panel="Scores")
    separator: str = setting(" ", "what stands between a prefix and its text", panel="Input")
    category: str = setting("UID", "key of the category in pairs.jsonl", metavar="KEY", panel="Input")
    max_tokens: int = setting(
        2**14, "tokens that the model is given at once, padding included; fewer need less memory", ge=1, panel="Run"
    )
    window: int | None = setting(
        None,
        "tokens in a window where a text is longer [positions of the model]",
        ge=2,
        panel="Run",
    )
