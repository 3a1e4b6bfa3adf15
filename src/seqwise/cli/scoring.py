"""``seqwise score``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.console import err, print_device, progress_bars, require_files
from seqwise.cli.flags import ResumableOutput, ScoredModel, given_flags
from seqwise.errors import InputError
from seqwise.names import count_of
from seqwise.training.processes import local_device

if TYPE_CHECKING:
    from seqwise.data.readers import Example
    from seqwise.runs.scoring import Scorer


def score(
    model: ScoredModel,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="sequences in the format of the training data; for Hugging Face models one text per line, prefix TAB"
            " text, optionally TAB suffix (.tsv), objects with text, prefix and suffix (.jsonl), or FASTA (.fasta,"
            " .fa, .faa); - for standard input",
        ),
    ],
    *,
    pairs: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="FILE has pairs: good TAB bad, or good TAB bad TAB category; in .jsonl sentence_good and sentence_bad",
        ),
    ] = False,
    output: ResumableOutput = None,
    **flags: str | None,
) -> None:
    """Score texts by log-probabilities of tokens and words; with --pairs, compare pairs of texts.

    A masked model gives log p(token | unmasked tokens), summed to the pseudo-log-likelihood; a causal model or an
    encoder-decoder gives log p(token | previous tokens). Prints one JSON object per text or pair. A summary goes to
    standard error; with --pairs, it has accuracies by category with 95% intervals. Texts too long for the model are
    scored in windows. With --output, torchrun may start several processes, which share the texts.
    """
    from rich.progress import Progress

    from seqwise.runs.inputs import digest_of, standard_input
    from seqwise.runs.resumable_writer import write_in_blocks
    from seqwise.runs.run import fingerprint
    from seqwise.runs.scoring import BLOCK, JSON_LINES, Scorer, read_pairs_to_score, read_texts_to_score

    require_files(output, str(file))
    given = given_flags(flags)
    for name in ("by", "category"):
        if name in given and not pairs:
            raise InputError(f"--{name} has no effect without --pairs", hint="leave it out, or add --pairs")
    scorer = Scorer(model, **given)
    scorer.run.model.to(local_device())
    print_device()
    path = standard_input() if str(file) == "-" else file
    if pairs:
        examples = read_pairs_to_score(path, category=scorer.settings.category)
        has_keys = str(path).endswith(JSON_LINES) and any(example.key for example in examples)
        if "category" in given and not has_keys:
            hint = "check --category; in a table, the third column is the category"
            raise InputError(f"no pair has the key {str(given['category'])!r}", path=path, hint=hint)
    else:
        examples = read_texts_to_score(scorer.run, path)
    lines_of, totals = (_pair_lines, _PairTotals()) if pairs else (_lines, _Totals())
    # A running bar captures standard output; if that is a terminal, the results themselves show the progress.
    results = sys.stdout
    with Progress(console=err(), disable=True) if results.isatty() and output is None else progress_bars() as bars:
        task = bars.add_task("scoring", total=len(examples), note="")

        def lines(block: Sequence[Example]) -> Iterator[str]:
            for line in lines_of(scorer, block):
                yield line
                bars.advance(task)

        def show_total(count: int) -> None:
            bars.update(task, total=count)

        if output is None:
            for line in lines(examples):
                print(line, file=results)
                totals.add(line)
        else:
            (scorer.check_pairs if pairs else scorer.check)(examples)
            claim = {"model": fingerprint(scorer.run), "input": digest_of(examples)}
            claim["configuration"] = repr(scorer.settings)
            # Sequences of a block share passes of the model, so blocks are the same as without a file.
            write_in_blocks(output, examples, lines, claim=claim, block=BLOCK, on_begin=show_total)
            with output.open(encoding="utf-8") as kept:
                for line in kept:
                    totals.add(line)
    print(totals.summary(scorer), file=sys.stderr)


def _lines(scorer: Scorer, examples: Sequence[Example]) -> Iterator[str]:
    for scored in scorer.score_examples(examples):
        example, codec = scored.example, scorer.run.codec
        record: dict[str, Any] = {"text": scored.text, "line": example.line}
        if codec.conditional:
            record["source"] = codec.source_text(example)
        if getattr(scorer.run.settings, "format", None) == "fasta" or example.key:
            record["name"] = example.key
        yield json.dumps(record | scored.record(scorer.settings.unit), ensure_ascii=False)


def _pair_lines(scorer: Scorer, examples: Sequence[Example]) -> Iterator[str]:
    for example, pair in zip(examples, scorer.score_pair_examples(examples), strict=True):
        yield json.dumps({"line": example.line, **pair.record()}, ensure_ascii=False)


@dataclass
class _Totals:
    """Sums over the lines, including those of an interrupted call."""

    sequences: int = 0
    tokens: int = 0
    unknown: int = 0
    windowed: int = 0
    log_prob: float = 0.0

    def add(self, line: str) -> None:
        record = json.loads(line)
        self.sequences += 1
        self.tokens += len(record["tokens"])
        self.unknown += record.get("unknown", 0)
        self.windowed += "windows" in record
        self.log_prob += record["log_prob"]

    def summary(self, scorer: Scorer) -> str:
        from seqwise.sampling.scores import NATS_OF, pseudo_perplexity

        known = f" ({self.unknown:,} unknown)" if self.unknown else ""
        nats = self.log_prob * NATS_OF[scorer.settings.unit]
        measure = "pseudo-perplexity" if scorer.kind == "masked" else "perplexity"
        number = pseudo_perplexity(nats, self.tokens)
        windows = f"; {self.windowed:,} too long for the model, scored in windows" if self.windowed else ""
        counts = f"{count_of(self.sequences, 'sequence')}, {count_of(self.tokens, 'token')}"
        return f"{counts}{known}: {measure} {number:.4g}{windows}"


@dataclass
class _PairTotals:
    """Pairs of the lines, without their texts."""

    pairs: list[Any] = field(default_factory=list)

    def add(self, line: str) -> None:
        from seqwise.evaluation.minimal_pairs import PairScore

        record = json.loads(line)
        values = (record[name] for name in ("category", "good_log_prob", "bad_log_prob", "unit", "by"))
        self.pairs.append(PairScore("", "", *values))

    def summary(self, scorer: Scorer) -> str:
        from seqwise.evaluation.minimal_pairs import pair_accuracies

        rows = [
            ("category", "accuracy, %", "95% interval", "pairs", "ties", f"mean difference, {scorer.settings.unit}")
        ]
        for row in pair_accuracies(self.pairs):
            value, low, high = (f"{100 * end:.1f}" for end in row.accuracy)
            counts = (f"{row.num_pairs:,}", f"{row.num_ties:,}")
            rows.append((row.category, value, f"{low} to {high}", *counts, f"{row.mean_difference:+.3f}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )
