"""``seqwise predict`` and ``seqwise evaluate``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.completion import choice_of, run_folders
from seqwise.cli.console import number, out, print_measures, require_at_least_one, require_files
from seqwise.errors import InputError
from seqwise.names import DECODER_NAMES
from seqwise.training.processes import own_device

if TYPE_CHECKING:
    from seqwise.data.readers import Example
    from seqwise.evaluation.entities import TypeScores
    from seqwise.evaluation.metrics import Estimate
    from seqwise.runs import Prediction, Run

__all__ = ["evaluate", "predict"]

RunFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        autocompletion=run_folders,
        help="a run folder, or the name of a run on the hub",
    ),
]
BLOCK = 1024  # inputs that are decoded together, and kept together in a file
DECODERS = f"{', '.join(DECODER_NAMES)} (of a chain)"
DECODER_CHOICES = choice_of((*DECODER_NAMES, "best"))
BeamSize = Annotated[int | None, typer.Option(metavar="N", help="slots of the beam; by default as trained")]


def predict(
    run: RunFolder,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT|FILE", help="one input, or a file with one input a line; standard input if left out or -"
        ),
    ] = None,
    *,
    decoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=DECODER_CHOICES,
            help=f"{DECODERS}, or best (on the development data); by default as trained",
        ),
    ] = None,
    beam_size: BeamSize = None,
    n_best: Annotated[
        int | None,
        typer.Option(metavar="N", help="outputs for each input; by default up to 5 for one text, 1 for a file"),
    ] = None,
    length_normalization: Annotated[
        float, typer.Option(metavar="P", show_default=False, help="rank by score / length^P [0]")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line, with scores")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="takes the lines; killed, the same command goes on where it was"
        ),
    ] = None,
) -> None:
    """Print the best outputs for one text, or for each line of a file.

    One text: ranked outputs with their scores. A file: a line for each of its lines, the input, a tab, the output. With
    --output, torchrun may start several processes, which share the lines.
    """
    from seqwise.data.spooled import in_blocks
    from seqwise.runs import choose_decoder, load_run, require_enough_candidates
    from seqwise.runs import predict as predict_examples
    from seqwise.runs.hub import run_folder
    from seqwise.runs.inputs import digest_of, input_units, inputs_of
    from seqwise.runs.kept_lines import write_in_blocks
    from seqwise.runs.run import fingerprint

    require_files(output, text or "-")
    folder = run_folder(run)
    loaded = load_run(folder)
    loaded.model.to(own_device())
    examples = inputs_of(text, units=input_units(loaded.settings))
    decoder = _named(decoder, folder)
    _require_possible(loaded, decoder, beam_size=beam_size, n_best=n_best, length_normalization=length_normalization)
    if beam_size is not None:
        require_enough_candidates(loaded, examples, beam_size)
    chosen = choose_decoder(loaded.settings, decoder, beam_size=beam_size)
    one_text = not examples[0].path
    n_best = n_best or (5 if one_text else 1)
    # All of them, so that a mistake in the last line is found before the first output.
    for block in in_blocks(examples, BLOCK):
        loaded.encode_sources(block)

    def lines_of(block: Sequence[Example]) -> Iterator[str]:
        found = predict_examples(loaded, block, chosen, n_best=n_best, length_normalization=length_normalization)
        for example, outputs in zip(block, found, strict=True):
            yield from _lines(loaded, example, outputs, one_text=one_text, as_json=as_json)

    if output is None:
        for block in in_blocks(examples, BLOCK):
            for line in lines_of(block):
                print(line)
        return
    claim = {"model": fingerprint(folder), "inputs": digest_of(examples), "decoder": decoder or "as trained"}
    options = {"beam_size": beam_size, "n_best": n_best, "length_normalization": length_normalization, "json": as_json}
    claim |= {name: str(value) for name, value in options.items()}
    write_in_blocks(output, examples, lines_of, claim=claim, block=BLOCK)


def _require_possible(
    run: Run, decoder: str | None, *, beam_size: int | None, n_best: int | None, length_normalization: float
) -> None:
    """Numbers that a search can do something with.

    Raises:
        InputError: otherwise.
    """
    require_at_least_one("--beam-size", beam_size)
    require_at_least_one("--n-best", n_best)
    if not math.isfinite(length_normalization):
        raise InputError(f"--length-normalization must be finite, got {length_normalization}")
    slots = 1 if decoder == "greedy" else beam_size or run.settings.beam_size
    if n_best is not None and n_best > slots:
        mend = "choose another decoder" if decoder == "greedy" else f"add --beam-size {n_best}"
        raise InputError(f"--n-best {n_best} is more than the {slots} that the search keeps", mend=mend)


def _named(decoder: str | None, folder: Path) -> str | None:
    """The name of a decoder; the best one on the development data where that is asked for."""
    from seqwise.runs import best_decoder

    return best_decoder(folder) if decoder == "best" else decoder


def _lines(
    run: Run, example: Example, outputs: Sequence[Prediction], *, one_text: bool, as_json: bool
) -> Iterator[str]:
    source = run.source_text(example)
    ranked = [(run.target_text(one.tokens), round(one.score, 4)) for one in outputs]
    if as_json:
        objects = [{"output": output, "score": score} for output, score in ranked]
        yield json.dumps({"input": source, "outputs": objects}, ensure_ascii=False)
    elif one_text:
        for rank, (output, score) in enumerate(ranked, start=1):
            yield f"{rank}  {score:>9.3f}  {output}"
    else:
        yield "\t".join([source, *(output for output, _ in ranked)])


def evaluate(
    run: RunFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="data with the right answers, in the format of the training data")
    ],
    *,
    decoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=DECODER_CHOICES, help=f"{DECODERS}, or best; by default all of them"
        ),
    ] = None,
    beam_size: BeamSize = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table")] = False,
) -> None:
    """Measure a run on a file, with bootstrap 95% intervals.

    Where labels name entities (B-PER, I-PER, O): their F1 over all types together (micro-averaged), the mean of the F1
    of each type (macro-averaged), and a table with precision, recall, F1 and number of gold entities of each type.
    """
    from seqwise.evaluation.entities import EntityCounts
    from seqwise.evaluation.metrics import bootstrap_interval
    from seqwise.runs import load_run, require_enough_candidates
    from seqwise.runs.decoder_choice import decoders_for, usual_decoder
    from seqwise.runs.hub import run_folder
    from seqwise.runs.measures import measure, signatures, unknown_targets
    from seqwise.runs.training import read_examples

    folder = run_folder(run)
    loaded = load_run(folder)
    examples = read_examples(loaded.settings, file)
    decoder = _named(decoder, folder)
    require_at_least_one("--beam-size", beam_size)
    if beam_size is not None:
        require_enough_candidates(loaded, examples, beam_size)
    measured = {
        name: measure(loaded, examples, name, beam_size=beam_size)
        for name in (decoders_for(loaded.settings) if decoder is None else [decoder])
    }
    unknown = unknown_targets(loaded, examples)
    if unknown is not None:
        print(f"seqwise: {unknown}", file=sys.stderr)
    estimates = {
        name: {title: bootstrap_interval(sums) for title, sums in by_title.items()}
        for name, by_title in measured.items()
    }
    signed = signatures(loaded, examples)
    types = {
        name: sums.by_type
        for name, by_title in measured.items()
        for sums in by_title.values()
        if isinstance(sums, EntityCounts)
    }
    if as_json:
        print(json.dumps(_plain(estimates, signed, types), indent=1))
        return
    print_measures(
        {name: {title: _cell(title, estimate) for title, estimate in row.items()} for name, row in estimates.items()}
    )
    print(f"{len(examples)} examples; in brackets bootstrap 95% intervals")
    for title, signature in signed.items():
        print(f"{title}: {signature}")
    if types:
        name = decoder or usual_decoder(loaded.settings)
        print(f"\nEntities by type, {name}")
        _print_types(types[name])


def _plain(
    estimates: Mapping[str, Mapping[str, Estimate]],
    signed: Mapping[str, str],
    types: Mapping[str, Mapping[str, TypeScores]],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Every estimate as JSON has it; BLEU with its signature, entity F1 with the scores of each type."""
    plain: dict[str, dict[str, dict[str, Any]]] = {
        name: {title: estimate._asdict() for title, estimate in row.items()} for name, row in estimates.items()
    }
    for row in plain.values():
        for title, signature in signed.items():
            row[title]["signature"] = signature
    for name, by_type in types.items():
        plain[name]["entity F1"]["by type"] = {kind: scores._asdict() for kind, scores in by_type.items()}
    return plain


def _print_types(by_type: Mapping[str, TypeScores]) -> None:
    import rich.box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("type", overflow="fold")
    for heading in ("precision, %", "recall, %", "F1, %", "support"):
        table.add_column(heading, justify="right")
    for kind, scores in by_type.items():
        shares = (f"{100 * share:.1f}" for share in (scores.precision, scores.recall, scores.f1))
        table.add_row(Text(kind), *shares, f"{scores.support:,}")  # a type may look like markup
    out().print(table)


def _cell(title: str, estimate: Estimate) -> tuple[str, str]:
    value, low, high = (number(title, one) for one in estimate)
    return value, f"[{low}, {high}]"
