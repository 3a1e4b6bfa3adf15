"""Report on masked models: metrics, and scores of a file, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from seqwise.data.readers import Example
from seqwise.data.records import is_number
from seqwise.evaluation.metrics import Counts, estimated
from seqwise.pages.report.blocks import Block, Paragraph, Table, Verdict, plain_number
from seqwise.pages.report.curves import side_by_side
from seqwise.pages.report.drawing import Palette
from seqwise.pages.report.folders import Folder
from seqwise.runs.run import MaskedRun
from seqwise.runs.scoring import Scorer, SequenceScore

DEEPEST = 6.0  # nats; less likely tokens have the same colour


def metrics_tables(folders: Sequence[Folder]) -> list[Block]:
    """Make a table of metrics with a column for each run."""
    rows = side_by_side([shown_metrics(folder.metrics) for folder in folders], missing="")
    columns = ["measure", *(folder.name for folder in folders)]
    return [Table("At the end of training", columns, rows)] if rows else []


def shown_metrics(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Flatten ``metrics.json`` to names and formatted values.

    Example:
        >>> shown_metrics({"steps": 3, "dev": {"tokens": 5}})
        {'steps': '3', 'dev: tokens': '5'}
    """
    shown: dict[str, str] = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            shown |= {f"{name}: {inner}": text for inner, text in shown_metrics(value).items()}
        elif isinstance(value, int | float | str):
            shown[name.replace("_", " ")] = plain_number(value) if isinstance(value, float) else str(value)
    return shown


def masked_verdict(folder: Folder) -> str:
    """Summarize how well a masked model predicts its development data."""
    value = folder.on_dev.get("pseudo_perplexity")
    if not is_number(value):
        return f"{folder.name} was trained without development data."
    return f"{folder.name} has a pseudo-perplexity of {value:.3g} on its development data."


def scored_blocks(
    run: MaskedRun,
    examples: Sequence[Example],
    chosen: Sequence[int],
    *,
    name: str,
    file: str,
    on_progress: Callable[[int, int], None],
) -> tuple[Verdict, list[Block]]:
    """Make a summary, and tables of the pseudo-perplexity on a file, and of the token scores of chosen sequences.

    ``exp(-sum log p(token | all others) / tokens)``; intervals are by bootstrap over sequences.
    """
    losses, lengths, shown = [], [], {}
    for place, score in enumerate(Scorer(run, pieces="original").score_examples(examples)):
        losses.append(-score.log_prob)
        lengths.append(len(score.tokens))
        if place in chosen:
            shown[place] = score
        on_progress(place + 1, len(examples))
    estimate = estimated(Counts(losses, lengths))
    ends = ["" if math.isnan(end) else plain_number(math.exp(min(end, 700.0))) for end in estimate]
    verdict = Verdict(f"{name} has a pseudo-perplexity of {ends[0]} on {file}.")
    summary = Table(
        f"{name} on the file" + ", with a bootstrap 95% interval over sequences" * bool(ends[-1]),
        ["measure", "value", "from", "to"],
        [["pseudo-perplexity", *ends],
         ["sequences", f"{len(losses):,}", "", ""], ["tokens", f"{sum(lengths):,}", "", ""]],
    )  # fmt: skip
    rows = [[str(place + 1), plain_number(score.log_prob), _tokens(score)] for place, score in shown.items()]
    table = Table(
        f"{name}: sequences of the file, and below each token its log-probability given all others, in nats",
        ["sequence", "pseudo-log-likelihood", "tokens"],
        rows,
    )
    if not rows:
        return verdict, [summary]
    return verdict, [summary, table, Paragraph("The deeper the orange, the less likely the token, down to −6 nats.")]


def _tokens(score: SequenceScore) -> Markup:
    palette = Palette(0.0, DEEPEST)
    return Markup(" ").join(
        Markup('<span class="token" style="background:{}">{}<small>{}</small></span>').format(
            palette.colour(-log_prob), token, f"{log_prob:.2f}".replace("-", "−")
        )
        for token, log_prob in zip(score.tokens, score.token_log_probs_T.double().tolist(), strict=True)
    )
