"""``python -m reproductions.andreas_klein_2015 train | score | rerank``."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqwise.cli.console import progress_bars
from seqwise.cli.examples import shown
from seqwise.cli.flags import MetricsAsJson, command_with_flags, given_flags, without_flags
from seqwise.cli.layout import Group
from seqwise.errors import InputError

if TYPE_CHECKING:
    from reproductions.andreas_klein_2015.language_model import LanguageModel, SentenceScore
    from reproductions.andreas_klein_2015.log_linear import HeldOut
    from reproductions.andreas_klein_2015.reranking import NBest
    from seqwise.evaluation.metrics import Sums

COMMAND = "python -m reproductions.andreas_klein_2015"
EXAMPLES = {
    "": (
        f"{COMMAND} train text.txt.gz --dev dev.txt --output runs/lm",
        f"{COMMAND} score runs/lm sentences.txt --unnormalized",
        "seqwise predict runs/translator sources.txt --n-best 5 --json > nbest.jsonl",
        f"{COMMAND} rerank runs/lm nbest.jsonl --weight 0.5",
    ),
    "train": (
        f"{COMMAND} train text.txt.gz --dev dev.txt --output runs/lm",
        f"{COMMAND} train part1.gz part2.gz --fraction 0.01 \\\n    --output runs/lm",
    ),
    "score": (
        f"{COMMAND} score runs/lm sentences.txt",
        f"{COMMAND} score runs/lm - --unnormalized < sentences.txt",
    ),
    "rerank": (
        f"{COMMAND} rerank runs/lm nbest.jsonl --weight 0.5",
        f"{COMMAND} rerank runs/lm nbest.jsonl \\\n    --dev dev-nbest.jsonl --references dev.tsv",
    ),
}
# By the name of the command; "" for the group.

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=shown(*EXAMPLES[""]))
"""The group of commands."""


@app.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    """Log-linear language models: train on text of any size, score sentences, re-rank n-best lists."""
    if context.invoked_subcommand is None:
        print(context.get_help())


ModelFolder = Annotated[
    str, typer.Argument(metavar="DIR|NAME", help="output folder of train, or the name of a model on the hub")
]
MEASURES = ("bleu", "exact")


def train_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="text, plain or gzipped: one sentence per line, words separated by spaces"
        ),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="folder to create or to continue")],
    dev: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="held-out text, for perplexity and R = mean |log Z|; may be repeated"),
    ] = None,
    as_json: MetricsAsJson = False,
    **flags: str | None,
) -> None:
    """Train a self-normalised language model.

    Files are streamed. After an interruption, the same command resumes.
    """
    from reproductions.andreas_klein_2015.language_model import LanguageModelSettings, train_language_model
    from reproductions.andreas_klein_2015.log_linear import HeldOut
    from seqwise.configuration import load

    settings = load(LanguageModelSettings, None, given_flags(flags))
    # The settings allow 0 for a published table; nobody wants its unbounded scores on purpose.
    if not settings.fraction:
        raise InputError(f"--fraction must be greater than 0 and at most 1, got {settings.fraction}")
    with progress_bars() as bars:
        task = bars.add_task("training", total=None, note="")

        def on_step(step: int, steps: int, loss: float) -> None:
            bars.update(task, completed=step, total=steps, note=f"loss {loss:.3f}")

        metrics = train_language_model(files, output, settings, dev=dev or (), on_step=on_step)
    if as_json:
        print(json.dumps(metrics))
        return
    print(f"{metrics['positions']:,} positions, {metrics['vocabulary']:,} words, {metrics['steps']:,} steps")
    if "dev" in metrics:
        print(_summary(HeldOut(**metrics["dev"])))
    print(f"the model is in {output}; try: {COMMAND} score {shlex.quote(str(output))} FILE")


app.command(
    "train",
    cls=command_with_flags("reproductions.andreas_klein_2015.language_model", "LanguageModelSettings"),
    epilog=shown(*EXAMPLES["train"]),
)(without_flags(train_command))


def _summary(measures: HeldOut) -> str:
    return (
        f"{measures.num_positions:,} positions: perplexity {measures.perplexity:.4g}, "
        f"R = mean |log Z| {measures.risk:.3f}, mean log Z {measures.mean:.3f}, "
        f"mean |log Z - mean| {measures.deviation:.3f}"
    )


@app.command("score", epilog=shown(*EXAMPLES["score"]))
def score_command(
    folder: ModelFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="one sentence per line, plain or gzipped; - for standard input")
    ],
    *,
    unnormalized: Annotated[
        bool, typer.Option("--unnormalized", help="print raw scores only, without the normaliser")
    ] = False,
) -> None:
    """Print one JSON object for each sentence, with its log-scores in nats; a summary goes to standard error."""
    from reproductions.andreas_klein_2015.language_model import (
        load_language_model,
        score_sentences,
        score_sentences_unnormalized,
    )
    from reproductions.andreas_klein_2015.streams import read_sentences
    from seqwise.names import STDIN

    loaded = load_language_model(folder)
    sentences = read_sentences([STDIN if str(file) == "-" else file])
    scored = (score_sentences_unnormalized if unnormalized else score_sentences)(loaded, sentences)
    print(_print_scores(loaded, scored), file=sys.stderr)


def _print_scores(loaded: LanguageModel, scored: Iterable[SentenceScore]) -> str:
    """Print scores, and return their summary."""
    import torch

    from reproductions.andreas_klein_2015.log_linear import HeldOut

    total, positions, log_partitions = 0.0, 0, []
    ends = loaded.vocabulary.end is not None
    for score in scored:
        record: dict[str, object] = {
            "text": " ".join(score.sentence.tokens),
            "line": score.sentence.line,
            "unnormalized": round(score.unnormalized, 4),
        }
        if score.normalized is not None:
            record["normalized"] = round(score.normalized, 4)
        print(json.dumps(record, ensure_ascii=False))
        total += score.unnormalized
        positions += len(score.sentence.tokens) + ends
        if score.log_partitions_T is not None:
            log_partitions.append(score.log_partitions_T)
    if not log_partitions:
        return f"{positions:,} positions: mean unnormalised score {total / positions:.4f}"
    return _summary(HeldOut.of(torch.cat(log_partitions), total))


@app.command("rerank", epilog=shown(*EXAMPLES["rerank"]))
def rerank_command(
    folder: ModelFolder,
    nbest: Annotated[
        Path, typer.Argument(metavar="NBEST", help="output of seqwise predict --n-best N --json, plain or gzipped")
    ],
    *,
    weight: Annotated[
        float | None, typer.Option(metavar="X", help="weight of the language model's unnormalised score")
    ] = None,
    word_bonus: Annotated[
        float,
        typer.Option(
            metavar="B",
            help="nats added to the language model's score for each word of an output; -1 / (2 alpha) cancels the log "
            "Z that a model trained with --likelihood unnormalized, the default, adds to each word",
        ),
    ] = 0.0,
    dev: Annotated[Path | None, typer.Option(metavar="NBEST", help="choose the weight on these lists instead")] = None,
    references: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="references for --dev: input, a tab, output; an input may have several"),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="measure to choose the weight by: bleu (the default), or exact (share of right outputs)",
        ),
    ] = None,
) -> None:
    """Re-rank n-best lists by their own score plus a weight times the language model's, word bonus included.

    Prints the lists in the format of the input, with the language model's score and the total of each output.
    """
    import numpy as np

    from reproductions.andreas_klein_2015.language_model import load_language_model
    from reproductions.andreas_klein_2015.reranking import candidate_table, read_nbest

    if (weight is None) == (dev is None):
        raise InputError("either a weight or development lists are needed", hint="give --weight or --dev, not both")
    if (dev is None) != (references is None):
        raise InputError("--dev and --references go together", hint="give both or none")
    if weight is not None and not math.isfinite(weight):
        raise InputError(f"--weight must be finite, got {weight}")
    if not math.isfinite(word_bonus):
        raise InputError(f"--word-bonus must be finite, got {word_bonus}")
    if measure is not None and dev is None:
        raise InputError("--measure has no effect without --dev", hint="leave it out, or give --dev for --weight")
    measure = measure or MEASURES[0]
    if measure not in MEASURES:
        raise InputError(f"there is no measure {measure!r}", hint=f"choose from {', '.join(MEASURES)}")
    loaded = load_language_model(folder)
    lists = read_nbest(nbest)
    if dev is not None and references is not None:
        weight = _tuned(loaded, dev, references, measure, word_bonus)
    assert weight is not None
    seconds = _language_scores(loaded, lists)
    totals_H = candidate_table([each.candidates for each in lists], seconds).totals(weight, word_bonus=word_bonus)
    if not np.isfinite(totals_H).all():
        problem = "a score of the n-best list, or its sum with the language model's, is not a finite number"
        raise InputError(problem, hint="lower the weight")
    totals = iter(totals_H.tolist())
    for each, scores in zip(lists, seconds, strict=True):
        outputs = [
            {
                "output": candidate.text,
                "score": candidate.score,
                "language_model": round(score, 4),
                "total": next(totals),
            }
            for candidate, score in zip(each.candidates, scores, strict=True)
        ]
        outputs.sort(key=lambda output: -output["total"])  # ties stay in order
        ranked = [{**output, "total": round(output["total"], 4)} for output in outputs]
        print(json.dumps({"input": each.source, "outputs": ranked}, ensure_ascii=False))


def _language_scores(loaded: LanguageModel, lists: Sequence[NBest]) -> list[list[float]]:
    """Return the unnormalised scores of all candidates."""
    from reproductions.andreas_klein_2015.language_model import score_lists
    from reproductions.andreas_klein_2015.streams import Sentence

    def sentence(text: str, each: NBest) -> Sentence:
        return Sentence(tuple(text.split()), each.path, each.line)

    return score_lists(loaded, ([sentence(candidate.text, each) for candidate in each.candidates] for each in lists))


def _tuned(loaded: LanguageModel, dev: Path, references: Path, measure: str, word_bonus: float) -> float:
    from reproductions.andreas_klein_2015.reranking import candidate_table, read_nbest, tune
    from seqwise.evaluation.metrics import Counts
    from seqwise.evaluation.translation import bleu

    lists = read_nbest(dev)
    texts = [candidate.text for each in lists for candidate in each.candidates]
    right = zip(lists, _right_outputs(references, lists), strict=True)
    options = [outputs for each, outputs in right for _ in each.candidates]
    counts: Sums
    if measure == "bleu":
        counts = bleu(texts, options)
    else:
        counts = Counts([text in outputs for text, outputs in zip(texts, options, strict=True)])
    table = candidate_table([each.candidates for each in lists], _language_scores(loaded, lists))
    tuned, before = tune(table, counts, word_bonuses=[word_bonus]), tune(table, counts, weights=[0.0])
    values = f"{100 * before.value:.2f} -> {100 * tuned.value:.2f}"
    print(f"weight {tuned.weight:g}: {measure} {values} on {dev}", file=sys.stderr)
    return tuned.weight


def _right_outputs(path: Path, lists: Sequence[NBest]) -> list[list[str]]:
    from seqwise.data.readers import read_pairs

    known: dict[str, list[str]] = {}
    for example in read_pairs(path, source_units="text", target_units="text"):
        known.setdefault(example.source[0], []).append(example.target[0])
    for each in lists:
        if each.source not in known:
            hint = f"add it to {path}"
            raise InputError("this input has no reference", path=each.path, line=each.line, hint=hint)
    return [known[each.source] for each in lists]
