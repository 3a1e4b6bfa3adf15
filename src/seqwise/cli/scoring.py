"""``seqwise score``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.console import progress_bars, require_at_least_one, require_files
from seqwise.cli.flags import MaskedRunFolder, ResumableOutput
from seqwise.training.processes import local_device

if TYPE_CHECKING:
    from seqwise.data.readers import Example
    from seqwise.runs.run import MaskedRun
    from seqwise.runs.scoring import SequenceScore


def score(
    run: MaskedRunFolder,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="sequences in the format of the training data; for transformers one a line, or FASTA (.fasta, .fa,"
            " .faa); - for standard input",
        ),
    ],
    *,
    max_rows: Annotated[
        int, typer.Option(metavar="N", help="masked sequences that the model is given at once; fewer need less memory")
    ] = 256,
    output: ResumableOutput = None,
) -> None:
    """Score sequences with a masked model: log p(token | all others), and their sum, the pseudo-log-likelihood.

    Prints one JSON object for each sequence, in nats; a summary goes to standard error. With --output, torchrun may
    start several processes, which share the sequences.
    """
    from seqwise.runs.loading import load_run

    require_at_least_one("--max-rows", max_rows)
    require_files(output, str(file))
    loaded = load_run(run, to="score")
    loaded.model.to(local_device())
    if str(file) == "-" and sys.stdin is not None and sys.stdin.isatty():
        print("reading sequences from the terminal, up to Ctrl-D", file=sys.stderr)
    examples = loaded.codec.read("/dev/stdin" if str(file) == "-" else file)
    # A bar would take hold of standard output; if that is a terminal, the results show the progress.
    results = sys.stdout
    with nullcontext() if results.isatty() and output is None else progress_bars() as bars:
        task = None if bars is None else bars.add_task("scoring", total=len(examples), note="")

        def progressing(lines: Iterable[str]) -> Iterator[str]:
            for line in lines:
                yield line
                if bars is not None and task is not None:
                    bars.advance(task)

        def on_begin(count: int) -> None:
            if bars is not None and task is not None:
                bars.update(task, total=count)

        totals = _Totals()
        if output is None:
            for line in progressing(_lines(loaded, examples, max_rows)):
                print(line, file=results)
                totals.add(line)
        else:
            _keep(loaded, examples, max_rows, output, progressing, on_begin)
            with output.open(encoding="utf-8") as kept:
                for line in kept:
                    totals.add(line)
    print(totals.summary(loaded), file=sys.stderr)


def _lines(run: MaskedRun, examples: Sequence[Example], max_rows: int) -> Iterator[str]:
    from seqwise.runs.scoring import score_sequences

    scored = score_sequences(run, examples, max_rows=max_rows)
    return (json.dumps(_record(run, score), ensure_ascii=False) for score in scored)


def _keep(
    run: MaskedRun,
    examples: Sequence[Example],
    max_rows: int,
    output: Path,
    progressing: Callable[[Iterable[str]], Iterator[str]],
    on_begin: Callable[[int], None],
) -> None:
    """Write the lines to a file, resuming a killed command."""
    from seqwise.runs import scoring
    from seqwise.runs.inputs import digest_of
    from seqwise.runs.resumable_writer import write_in_blocks
    from seqwise.runs.run import fingerprint

    scoring.score_sequences(run, examples, max_rows=max_rows)
    # Sequences of a block share passes of the model, so blocks are the same as without a file.
    write_in_blocks(
        output,
        examples,
        lambda block: progressing(_lines(run, block, max_rows)),
        claim={"model": fingerprint(run), "sequences": digest_of(examples), "max_rows": str(max_rows)},
        block=scoring.BLOCK,
        on_begin=on_begin,
    )


@dataclass
class _Totals:
    """Sums over the lines, those of an interrupted call included."""

    sequences: int = 0
    log_prob: float = 0.0
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, line: str) -> None:
        record = json.loads(line)
        self.sequences += 1
        self.log_prob += record["log_prob"]
        self.tokens.update(record["tokens"])

    def summary(self, run: MaskedRun) -> str:
        from seqwise.sampling.scores import pseudo_perplexity

        number = self.tokens.total()
        strange = run.codec.decode([run.codec.unknown_id]) if run.codec.unknown_id is not None else ()
        unknown = sum(self.tokens[token] for token in strange)
        known = f" ({unknown:,} unknown)" if unknown else ""
        perplexity = pseudo_perplexity(self.log_prob, number)
        return f"{self.sequences:,} sequences, {number:,} tokens{known}: pseudo-perplexity {perplexity:.4g}"


def _record(run: MaskedRun, scored: SequenceScore) -> dict[str, Any]:
    record: dict[str, Any] = {"text": run.codec.example_text(scored.example), "line": scored.example.line}
    if run.codec.conditional:
        record["source"] = run.codec.source_text(scored.example)
    if run.settings.format == "fasta" or scored.example.key:
        record["name"] = scored.example.key
    return record | {
        "log_prob": round(scored.log_prob, 4),
        "tokens": list(scored.tokens),
        "token_log_probs": [round(value, 4) for value in scored.token_log_probs_T.double().tolist()],
        "pseudo_perplexity": round(scored.pseudo_perplexity, 4),
    }
