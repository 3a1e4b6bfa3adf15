"""``seqwise score``."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.console import progress_bars, require_at_least_one

if TYPE_CHECKING:
    from seqwise.runs.scoring import SequenceScore
    from seqwise.runs.sequence_run import SequenceRun

__all__ = ["score"]


def score(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="the --output of a masked-model train; or a masked language model of transformers: a folder, or a"
            " name on the hub",
        ),
    ],
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
) -> None:
    """Score sequences with a masked model: log p(token | all others), and their sum, the pseudo-log-likelihood.

    Prints one JSON object for each sequence, in nats; a summary goes to standard error.
    """
    from seqwise.runs.pretrained import load_sequence_run
    from seqwise.runs.scoring import score_sequences
    from seqwise.sampling.energies import pseudo_perplexity

    require_at_least_one("--max-rows", max_rows)
    loaded = load_sequence_run(run)
    if str(file) == "-" and sys.stdin is not None and sys.stdin.isatty():
        print("reading sequences from the terminal, up to Ctrl-D", file=sys.stderr)
    examples = loaded.read("/dev/stdin" if str(file) == "-" else file)
    scored = score_sequences(loaded, examples, max_rows=max_rows)
    # A bar takes hold of standard output, as if that were the terminal too; where it is, the results themselves move.
    results = sys.stdout
    total, tokens, unknown = 0.0, 0, 0
    strange = loaded.decode([loaded.unknown_id]) if loaded.unknown_id is not None else ()
    with nullcontext() if results.isatty() else progress_bars() as bars:
        task = None if bars is None else bars.add_task("scoring", total=len(examples), note="")
        for one in scored:
            print(json.dumps(_record(loaded, one), ensure_ascii=False), file=results)
            total += one.log_prob
            tokens += len(one.tokens)
            unknown += sum(token in strange for token in one.tokens)
            if bars is not None and task is not None:
                bars.advance(task)
    perplexity = pseudo_perplexity(total, tokens)
    known = f" ({unknown:,} unknown)" if unknown else ""
    print(f"{len(examples):,} sequences, {tokens:,} tokens{known}: pseudo-perplexity {perplexity:.4g}", file=sys.stderr)


def _record(run: SequenceRun, one: SequenceScore) -> dict[str, Any]:
    record: dict[str, Any] = {"text": run.example_text(one.example), "line": one.example.line}
    if run.conditional:
        record["source"] = run.source_text(one.example)
    if run.settings.format == "fasta" or one.example.key:
        record["name"] = one.example.key
    return record | {
        "log_prob": round(one.log_prob, 4),
        "tokens": list(one.tokens),
        "token_log_probs": [round(value, 4) for value in one.token_log_probs_T.double().tolist()],
        "pseudo_perplexity": round(one.pseudo_perplexity, 4),
    }
