"""``seqwise predict`` and ``seqwise evaluate``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.completion import choice_of
from seqwise.cli.console import (
    estimates_of,
    print_estimates,
    print_table,
    require_at_least_one,
    require_files,
)
from seqwise.cli.flags import (
    ONE_OUTPUT,
    BeamSize,
    GoldFile,
    Language,
    ResumableOutput,
    RunFolder,
    decoder_option,
    load_predicting_run,
    resolved_decoder,
)
from seqwise.cli.layout import TEXT_OR_FILE
from seqwise.errors import InputError, warn
from seqwise.names import count_of

if TYPE_CHECKING:
    from seqwise.data.readers import Example
    from seqwise.evaluation.entities import EntityCounts
    from seqwise.evaluation.metrics import Sums
    from seqwise.runs import Prediction
    from seqwise.runs.run import OutputRun

BLOCK = 1024  # inputs that are decoded, and written to a file, together
FORMATS = ("lines", "json", "columns")
LengthNormalization = Annotated[
    float,
    typer.Option(metavar="P", show_default=False, help="rank by score / length^P, counting the end token [0]"),
]


def predict(
    run: RunFolder,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar=TEXT_OR_FILE, help="one input, or a file of inputs; by default, or with -, standard input"
        ),
    ] = None,
    *,
    plain_text: Annotated[
        bool, typer.Option("--text", help="FILE has one input per line; for a tagger, words separated by spaces")
    ] = False,
    decoder: Annotated[str | None, decoder_option("as trained")] = None,
    beam_size: BeamSize = None,
    language: Language = None,
    n_best: Annotated[
        int | None,
        typer.Option(metavar="N", help="outputs per input; by default up to 5 for one text, 1 for a file"),
    ] = None,
    length_normalization: LengthNormalization = 0.0,
    layout: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            autocompletion=choice_of(FORMATS),
            show_default=False,
            help="output format: lines, json (one object with scores per line), columns (token, tab, label) [lines]",
        ),
    ] = "lines",
    as_json: Annotated[bool, typer.Option("--json", help="the same as --format json")] = False,
    output: ResumableOutput = None,
) -> None:
    """Print the best outputs for one text, or for each input of a file.

    For one text, prints ranked outputs with their scores. FILE has the format of the training data: columns for
    a tagger, with or without labels; otherwise one input per line, or input, tab, target (targets are ignored). An
    argument that ends like a file name (.tsv, .txt) is always read as a file.

    For a file, prints one line per input: the input, a tab, the output. With --format columns, tokens, comments and
    blank lines keep their order; word ranges and empty nodes of CoNLL-U are left out. For an unreadable input, the
    output is "error: ...", and the exit code is 1. With --output, torchrun may start several processes, which share the
    inputs.
    """
    from seqwise.data.spooled import in_blocks
    from seqwise.runs import choose_decoder
    from seqwise.runs import predict as predict_examples
    from seqwise.runs.inputs import digest_of, input_reader, input_units, inputs_of, require_own_labels
    from seqwise.runs.resumable_writer import write_in_blocks
    from seqwise.runs.run import fingerprint

    require_files(output, text or "-")
    folder, loaded = load_predicting_run(run, language=language)
    layout = _layout("json" if as_json else layout, task=loaded.settings.task, n_best=n_best)
    read = input_reader(loaded.settings, plain_text=plain_text)
    examples = inputs_of(text, units=input_units(loaded.settings), read=read)
    require_own_labels(examples, loaded.codec.writable)
    decoder = resolved_decoder(decoder, folder, beam_size=beam_size)
    _require_possible(loaded, decoder, beam_size=beam_size, n_best=n_best, length_normalization=length_normalization)
    # For all examples, so that errors are raised before the first output.
    problems = _problems_by_line(loaded, examples)
    chosen = choose_decoder(loaded.settings, decoder, beam_size=beam_size)
    n_best = n_best or (1 if examples[0].path or layout == "columns" or decoder in ONE_OUTPUT else 5)
    search = partial(predict_examples, loaded, decoder=chosen, n_best=n_best, length_normalization=length_normalization)
    ends = (examples[0].line, examples[-1].line)
    lines_of = partial(_lines_of, loaded, search=search, problems=problems, layout=layout, ends=ends)
    if output is None:
        for block in in_blocks(examples, BLOCK):
            for line in lines_of(block):
                print(line)
    else:
        claim = {"model": fingerprint(loaded), "input": digest_of(examples), "decoder": decoder or "as trained"}
        numbers = {"beam_size": beam_size, "n_best": n_best, "length_normalization": length_normalization}
        claim |= {name: str(value) for name, value in numbers.items()} | {"format": layout}
        write_in_blocks(output, examples, lines_of, claim=claim, block=BLOCK)
    if problems:
        sys.stdout.flush()
        unread = f"{len(problems):,} of {len(examples):,} inputs could not be read"
        warn(f"{unread}; the first is {next(iter(problems.values()))}")
        raise typer.Exit(1)


def _lines_of(
    run: OutputRun,
    block: Sequence[Example],
    *,
    search: Callable[[Sequence[Example]], list[list[Prediction]]],
    problems: Mapping[int, InputError],
    layout: str,
    ends: tuple[int, int],
) -> Iterator[str]:
    """Yield the lines of a block of inputs; ``ends`` are the lines of the first and last input of the file."""
    inputs = [example for example in block if example.source and example.line not in problems]
    outputs_by_line = {example.line: outputs for example, outputs in zip(inputs, search(inputs), strict=True)}
    for example in block:
        outputs, problem = outputs_by_line.get(example.line, []), problems.get(example.line)
        if layout == "columns":
            yield from _columns(example, outputs, problem, is_first=example.line == ends[0])
            if example.line == ends[1]:
                yield ""
        elif layout == "json":
            yield _json_line(run, example, outputs, problem)
        else:
            yield from _lines(run, example, outputs, problem)


def _problems_by_line(run: OutputRun, examples: Sequence[Example]) -> dict[int, InputError]:
    """Return the errors of unreadable inputs; raise the error of a single text."""
    from seqwise.runs.run import reading_problems

    by_example = zip(examples, reading_problems(run, examples), strict=True)
    problems = {example.line: problem for example, problem in by_example if problem is not None}
    if problems and not examples[0].path:
        raise problems[0]
    return problems


def _layout(layout: str, *, task: str | None, n_best: int | None) -> str:
    """Return the output format; raise an InputError if the run cannot write it."""
    from seqwise.configuration.written import nearest

    if layout not in FORMATS:
        problem = f"--format must be one of {', '.join(FORMATS)}, got {layout!r}"
        raise InputError(problem, hint=nearest(layout, FORMATS))
    if layout == "columns" and task != "tag":
        raise InputError("--format columns is for taggers, which write a label for each token", hint="leave it out")
    if layout == "columns" and (n_best or 1) > 1:
        raise InputError("--format columns has room for one output", hint="use --format json, or leave --n-best out")
    return layout


def _require_finite(length_normalization: float) -> None:
    if not math.isfinite(length_normalization):
        raise InputError(f"--length-normalization must be finite, got {length_normalization}")


def _require_possible(
    run: OutputRun, decoder: str | None, *, beam_size: int | None, n_best: int | None, length_normalization: float
) -> None:
    """Raise an InputError for numbers that a search cannot use."""
    require_at_least_one("--n-best", n_best)
    _require_finite(length_normalization)
    slots = 1 if decoder in ONE_OUTPUT else beam_size or run.settings.beam_size
    if n_best is not None and n_best > slots:
        hint = "choose another decoder" if decoder in ONE_OUTPUT else f"add --beam-size {n_best}"
        raise InputError(f"--n-best {n_best} is more than the {slots} that the search keeps", hint=hint)


def _lines(
    run: OutputRun, example: Example, outputs: Sequence[Prediction], problem: InputError | None
) -> Iterator[str]:
    """Yield ranked outputs of a text, or the line of an input of a file."""
    if not example.path:
        for rank, output in enumerate(outputs, start=1):
            yield f"{rank}  {round(output.score, 4):>9.3f}  {run.codec.target_text(output.tokens)}"
    elif not example.source:
        yield ""
    else:
        texts = [run.codec.target_text(output.tokens) for output in outputs]
        yield "\t".join([run.codec.source_text(example), *(texts if problem is None else [_error_text(problem)])])


def _json_line(run: OutputRun, example: Example, outputs: Sequence[Prediction], problem: InputError | None) -> str:
    scored = [{"output": run.codec.target_text(output.tokens), "score": round(output.score, 4)} for output in outputs]
    record: dict[str, Any] = {"input": run.codec.source_text(example) if example.source else ""}
    record |= {"line": example.line} if example.path else {}
    record |= {"outputs": scored} | ({} if problem is None else {"error": str(problem)})
    return json.dumps(record, ensure_ascii=False)


def _columns(
    example: Example, outputs: Sequence[Prediction], problem: InputError | None, *, is_first: bool
) -> Iterator[str]:
    """Yield the lines before a sentence, or one blank line, and its tokens with their labels."""
    yield from example.key.split("\n")[:-1] or ([] if is_first else [""])
    labels = outputs[0].tokens if outputs else [_error_text(problem) if problem else ""] * len(example.source)
    yield from ("\t".join(row) for row in zip(example.source, labels, strict=True))


def _error_text(problem: InputError) -> str:
    """Return the text that replaces an output: the error without file and line."""
    return f"error: {InputError(problem.problem, hint=problem.hint)}"


def evaluate(
    run: RunFolder,
    file: GoldFile,
    *,
    decoder: Annotated[str | None, decoder_option("all of them")] = None,
    beam_size: BeamSize = None,
    language: Language = None,
    length_normalization: LengthNormalization = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table")] = False,
) -> None:
    """Evaluate a run on a file, with bootstrap 95% intervals.

    For entity labels (B-PER, I-PER, O), prints micro-averaged and macro-averaged F1, and precision, recall, F1 and the
    number of gold entities of each type.

    Pairs with the same source count as one example, for which each of their targets is right.

    An unreadable input, for example one with an unknown character, counts as wrong, and the exit code is 1. torchrun
    may start several processes, which share the batches; the results are those of one.
    """
    from seqwise.evaluation.entities import EntityCounts
    from seqwise.runs.decoder_choice import choose_decoder, decoders_for, usual_decoder
    from seqwise.runs.inputs import read_examples
    from seqwise.runs.language import targets_outside
    from seqwise.runs.measures import (
        decode,
        distinct_inputs,
        measure_outputs,
        missing_bleu,
        require_known_target,
        signatures,
        unknown_sources,
        unknown_targets,
        unread_sources,
    )
    from seqwise.runs.run import predict_together
    from seqwise.training.processes import NO_TIMEOUT, init_process_group, wait_for_everyone

    folder, loaded = load_predicting_run(run, language=language)
    examples = read_examples(loaded.settings, file)
    require_known_target(loaded, examples)
    decoder = resolved_decoder(decoder, folder, beam_size=beam_size)
    _require_finite(length_normalization)
    names = decoders_for(loaded.settings) if decoder is None else [decoder]
    decoders = {name: choose_decoder(loaded.settings, name, beam_size=beam_size) for name in names}
    init_process_group(timeout=NO_TIMEOUT)
    search = partial(predict_together, length_normalization=length_normalization)
    written = {name: decode(loaded, examples, chosen, search=search) for name, chosen in decoders.items()}
    measured = {name: measure_outputs(loaded, examples, outputs) for name, outputs in written.items()}
    unread = unread_sources(loaded, examples)
    outside = targets_outside(loaded, examples)
    warn(unread, unknown_sources(loaded, examples), unknown_targets(loaded, examples), outside, missing_bleu(loaded))
    entities = {
        name: sums
        for name, by_title in measured.items()
        for sums in by_title.values()
        if isinstance(sums, EntityCounts)
    }
    if as_json:
        print(json.dumps(_plain(measured, signatures(loaded, examples), entities), indent=1))
    else:
        counted = count_of(len(examples), "example")
        if (num_inputs := len(distinct_inputs(loaded, examples))) < len(examples):
            counted += f" of {count_of(num_inputs, 'source')}"
        _print_measured(measured, signatures(loaded, examples), counted=counted)
        if entities:
            name = decoder or usual_decoder(loaded.settings)
            print(f"\nEntities by type, {name}")
            _print_types(entities[name])
    wait_for_everyone()  # until rank 0 has printed, because torchrun ends it as soon as another process fails
    if unread is not None:
        raise typer.Exit(1)


def _plain(
    measured: Mapping[str, Mapping[str, Sums]],
    signed: Mapping[str, str],
    entities: Mapping[str, EntityCounts],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the measures as a JSON record, with the signature of BLEU and the scores of each entity type."""
    plain = estimates_of(measured)
    for row in plain.values():
        for title, signature in signed.items():
            row[title]["signature"] = signature
    for name, sums in entities.items():
        plain[name]["entity F1"]["by type"] = {kind: scores._asdict() for kind, scores in sums.by_type.items()}
    return plain


def _print_measured(measured: Mapping[str, Mapping[str, Sums]], signed: Mapping[str, str], *, counted: str) -> None:
    from seqwise.evaluation.metrics import enough_examples

    print_estimates(measured)
    has_intervals = any(enough_examples(sums) for row in measured.values() for sums in row.values())
    print(f"{counted}; 95% bootstrap intervals in brackets" if has_intervals else f"{counted}, too few for intervals")
    for title, signature in signed.items():
        print(f"{title}: {signature}")


def _print_types(entities: EntityCounts) -> None:
    rows = []
    for kind, scores in {**entities.by_type, "all (micro-averaged)": entities.all_types}.items():
        shares = (f"{100 * share:.1f}" for share in (scores.precision, scores.recall, scores.f1))
        rows.append((kind, *shares, f"{scores.support:,}"))
    print_table(("type", "precision, %", "recall, %", "F1, %", "support"), rows)
