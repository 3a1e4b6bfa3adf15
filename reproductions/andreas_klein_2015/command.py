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
from seqwise.cli.flags import MetricsAsJson
from seqwise.cli.layout import Group
from seqwise.errors import InputError

if TYPE_CHECKING:
    from reproductions.andreas_klein_2015.language_model import LanguageModel, SentenceScore
    from reproductions.andreas_klein_2015.reranking import CandidateTable, NBest
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
# By the name of the command; "" is all of them.

app = typer.Typer(cls=Group, rich_markup_mode=None, epilog=shown(*EXAMPLES[""]))
"""The group of commands."""


@app.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    """Log-linear language models: train on text of any size, score sentences, re-rank n-best lists."""
    if context.invoked_subcommand is None:
        print(context.get_help())


ModelFolder = Annotated[
    str, typer.Argument(metavar="DIR|NAME", help="the --output of a language-model train, or its name on the hub")
]
MEASURES = ("bleu", "exact")


@app.command("train", epilog=shown(*EXAMPLES["train"]))
def train_command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="text, plain or gzip: one sentence a line, words between blanks"),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="the folder to make or to continue")],
    dev: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="measure perplexity and R on it; may be repeated")
    ] = None,
    fraction: Annotated[
        float, typer.Option(metavar="X", help="gamma, in (0, 1], of positions whose log Z is computed")
    ] = 0.1,
    alpha: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="weight of (log Z)^2; log Z ends near 1 / (2 X) with --likelihood unnormalized, near 0 if normalized",
        ),
    ] = 1.0,
    likelihood: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="of gold words: unnormalized, or normalized (with log Z of the same positions)"
        ),
    ] = "unnormalized",
    epochs: Annotated[int, typer.Option(metavar="N", help="how often the text is read")] = 1,
    batch_size: Annotated[int, typer.Option(metavar="N", help="positions of a step")] = 128,
    learning_rate: Annotated[float, typer.Option(metavar="X", help="of Adagrad, in nats")] = 0.3,
    num_weights: Annotated[
        int, typer.Option(metavar="N", help="size of the hashed table; ten times the words of the text or more")
    ] = 2**22,
    minimum_count: Annotated[int, typer.Option(metavar="N", help="rarer words are unknown")] = 2,
    save_every: Annotated[int, typer.Option(metavar="N", help="steps between checkpoints")] = 2000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="of order and sampling")] = 0,
    as_json: MetricsAsJson = False,
) -> None:
    """Train a language model that normalises itself.

    Files are streamed; run the same command again to continue after an interruption.
    """
    from reproductions.andreas_klein_2015.language_model_training import LanguageModelSettings, train_language_model

    # The settings allow 0, for a published table has it: scores without any bound, for which nobody asks on purpose.
    if not 0 < fraction <= 1:
        raise InputError(f"--fraction must be greater than 0 and at most 1, got {fraction}")
    settings = LanguageModelSettings(
        likelihood=likelihood,
        alpha=alpha,
        fraction=fraction,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        num_weights=num_weights,
        minimum_count=minimum_count,
        save_every=save_every,
        seed=seed,
    )
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
        found = metrics["dev"]
        print(_summary(found["num_positions"], found["perplexity"], found["risk"], found["mean"], found["deviation"]))
    print(f"the model is in {output}; try: {COMMAND} score {shlex.quote(str(output))} FILE")


def _summary(count: int, perplexity: float, risk: float, mean: float, deviation: float) -> str:
    log_z = f"R = mean |log Z| {risk:.3f}, mean log Z {mean:.3f}, mean |log Z - mean| {deviation:.3f}"
    return f"{count:,} positions: perplexity {perplexity:.4g}, {log_z}"


@app.command("score", epilog=shown(*EXAMPLES["score"]))
def score_command(
    folder: ModelFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="one sentence a line, plain or gzip; - for standard input")
    ],
    *,
    unnormalized: Annotated[
        bool, typer.Option("--unnormalized", help="raw scores only: the vocabulary is never touched")
    ] = False,
) -> None:
    """Print one JSON object for each sentence, with its log-scores in nats; a summary goes to standard error."""
    from reproductions.andreas_klein_2015.language_model import (
        load_language_model,
        score_sentences,
        score_sentences_unnormalized,
    )
    from reproductions.andreas_klein_2015.streams import read_sentences

    loaded = load_language_model(folder)
    sentences = read_sentences(["/dev/stdin" if str(file) == "-" else file])
    scored = (score_sentences_unnormalized if unnormalized else score_sentences)(loaded, sentences)
    print(_print_scores(loaded, scored), file=sys.stderr)


def _print_scores(loaded: LanguageModel, scored: Iterable[SentenceScore]) -> str:
    """Print them, and sum them up."""
    import torch

    total, positions, log_partitions = 0.0, 0, []
    ends = loaded.vocabulary.end is not None
    for one in scored:
        record = {
            "text": " ".join(one.sentence.tokens),
            "line": one.sentence.line,
            "unnormalized": round(one.unnormalized, 4),
        }
        normalized = one.normalized
        if normalized is not None:
            record["normalized"] = round(normalized, 4)
        print(json.dumps(record, ensure_ascii=False))
        total += one.unnormalized
        positions += len(one.sentence.tokens) + ends
        if one.log_partitions_T is not None:
            log_partitions.append(one.log_partitions_T.double())
    if not log_partitions:
        return f"{positions:,} positions: mean unnormalised score {total / positions:.4f}"
    values_N = torch.cat(log_partitions)
    mean = float(values_N.mean())
    perplexity = math.exp(min(mean - total / positions, 700.0))
    return _summary(positions, perplexity, float(values_N.abs().mean()), mean, float((values_N - mean).abs().mean()))


@app.command("rerank", epilog=shown(*EXAMPLES["rerank"]))
def rerank_command(
    folder: ModelFolder,
    nbest: Annotated[
        Path, typer.Argument(metavar="NBEST", help="what seqwise predict --n-best N --json wrote; gzip or plain")
    ],
    *,
    weight: Annotated[
        float | None, typer.Option(metavar="X", help="of the language model's unnormalised score")
    ] = None,
    word_bonus: Annotated[
        float,
        typer.Option(
            metavar="B",
            help="nats added to the language model's score for each word of an output; -1 / (2 alpha) takes off what "
            "every word earns from a model trained with --likelihood unnormalized, the default",
        ),
    ] = 0.0,
    dev: Annotated[Path | None, typer.Option(metavar="NBEST", help="choose the weight on these lists instead")] = None,
    references: Annotated[
        Path | None, typer.Option(metavar="FILE", help="right outputs for --dev: input, a tab, output; several allowed")
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="what --dev is judged by: bleu (the default), or exact (share of right outputs)"
        ),
    ] = None,
) -> None:
    """Re-rank n-best lists by their own score plus a weight times the language model's, word bonus included.

    Prints the lists in the new order, as they came, with the language model's score and the total of each output.
    """
    from reproductions.andreas_klein_2015.language_model import load_language_model
    from reproductions.andreas_klein_2015.reranking import read_nbest

    if (weight is None) == (dev is None):
        raise InputError("either a weight or development lists are needed", hint="give --weight or --dev, not both")
    if (dev is None) != (references is None):
        raise InputError("--dev and --references go together", hint="give both or none")
    if weight is not None and not math.isfinite(weight):
        raise InputError(f"--weight must be finite, got {weight}")
    if not math.isfinite(word_bonus):
        raise InputError(f"--word-bonus must be finite, got {word_bonus}")
    if measure is not None and dev is None:
        raise InputError("--measure is what --dev is judged by", hint="leave it out, or give --dev for --weight")
    measure = measure or MEASURES[0]
    if measure not in MEASURES:
        raise InputError(f"there is no measure {measure!r}", hint=f"choose from {', '.join(MEASURES)}")
    loaded = load_language_model(folder)
    lists = read_nbest(nbest)
    if dev is not None and references is not None:
        weight = _tuned(loaded, dev, references, measure, word_bonus)
    assert weight is not None
    for one, seconds in zip(lists, _language_scores(loaded, lists), strict=True):
        ranked = _ranked(one, seconds, weight, word_bonus)
        print(json.dumps({"input": one.source, "outputs": ranked}, ensure_ascii=False))


def _ranked(one: NBest, seconds: Sequence[float], weight: float, word_bonus: float) -> list[dict[str, object]]:
    from reproductions.andreas_klein_2015.log_linear import rerank
    from reproductions.andreas_klein_2015.reranking import Candidate

    places = [Candidate(str(place), candidate.score) for place, candidate in enumerate(one.candidates)]
    words = [len(candidate.text.split()) for candidate in one.candidates]
    ranked = rerank(places, seconds, weight, word_bonus=word_bonus, words=words)
    order = [int(candidate.text) for candidate in ranked]
    return [
        {
            "output": one.candidates[place].text,
            "score": one.candidates[place].score,
            "language_model": round(seconds[place], 4),
            "total": round(one.candidates[place].score + weight * (seconds[place] + word_bonus * words[place]), 4),
        }
        for place in order
    ]


def _language_scores(loaded: LanguageModel, lists: Sequence[NBest]) -> list[list[float]]:
    """Unnormalised scores of all candidates; a blank one is the end token alone."""
    from reproductions.andreas_klein_2015.language_model import score_sentences_unnormalized
    from reproductions.andreas_klein_2015.streams import Sentence

    sentences = (
        Sentence(tuple(candidate.text.split()), one.path, one.line) for one in lists for candidate in one.candidates
    )
    scores = iter([one.unnormalized for one in score_sentences_unnormalized(loaded, sentences)])
    return [[next(scores) for _ in one.candidates] for one in lists]


def _tuned(loaded: LanguageModel, dev: Path, references: Path, measure: str, word_bonus: float) -> float:
    from reproductions.andreas_klein_2015.reranking import candidate_table, read_nbest, tune

    lists = read_nbest(dev)
    right = _right_outputs(references, lists)
    table = candidate_table([one.candidates for one in lists], _language_scores(loaded, lists))
    tuned = tune(table, _counts(lists, right, measure), word_bonuses=[word_bonus])
    before = _value(table, _counts(lists, right, measure))
    print(f"weight {tuned.weight:g}: {measure} {100 * before:.2f} -> {100 * tuned.value:.2f} on {dev}", file=sys.stderr)
    return tuned.weight


def _right_outputs(path: Path, lists: Sequence[NBest]) -> list[list[str]]:
    from seqwise.data.readers import read_pairs

    known: dict[str, list[str]] = {}
    for example in read_pairs(path, source_units="text", target_units="text"):
        known.setdefault(example.source[0], []).append(example.target[0])
    for one in lists:
        if one.source not in known:
            hint = f"add it to {path}"
            raise InputError("no right output is known for this input", path=one.path, line=one.line, hint=hint)
    return [known[one.source] for one in lists]


def _counts(lists: Sequence[NBest], right: Sequence[Sequence[str]], measure: str) -> Sums:
    from seqwise.evaluation.metrics import Counts
    from seqwise.evaluation.translation import bleu

    texts = [candidate.text for one in lists for candidate in one.candidates]
    options = [references for one, references in zip(lists, right, strict=True) for _ in one.candidates]
    if measure == "bleu":
        return bleu(texts, options)
    return Counts([text in references for text, references in zip(texts, options, strict=True)])


def _value(table: CandidateTable, counts: Sums) -> float:
    from seqwise.evaluation.metrics import Sums as Measured

    return Measured(counts.columns_NC[table.best(0.0)], counts.combine).value
