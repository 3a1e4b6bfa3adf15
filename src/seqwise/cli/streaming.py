"""``seqwise stream``."""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqwise.cli.flags import BeamSize, RunFolder, decoder_option, load_predicting_run, resolved_decoder
from seqwise.errors import InputError, placed, warn
from seqwise.names import STDIN

if TYPE_CHECKING:
    from seqwise.runs import Update

NAME = "sentence"
PIECES = re.compile(r"[^ \t\r\n]+|\n")
READ_AT_ONCE = 2**16


def stream(
    run: RunFolder,
    file: Annotated[
        str, typer.Argument(metavar="FILE", show_default=False, help="tokens; by default, or with -, standard input")
    ] = "-",
    *,
    commit: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            show_default=False,
            help="when a label is final: if all slots agree (agree), if the best slot leads by M (margin(M)), after D"
            " more tokens (delay(D)), at the end (never), or several rules joined by or [agree]",
        ),
    ] = "agree",
    decoder: Annotated[str | None, decoder_option("as trained")] = None,
    beam_size: BeamSize = None,
    each_line: Annotated[
        bool, typer.Option("--text", help="one sentence per line; without it, a blank line ends a sentence")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per update")] = False,
) -> None:
    """Label tokens as they arrive, from standard input or a file, and mark which labels are final.

    Tokens are separated by spaces or line breaks; a blank line ends a sentence. The run must be a left-to-right tagger.
    Prints one line per token, with four fields separated by tabs: the token, the labels that became final, those that
    may still change, and those of the previous line that are retracted. The end of a sentence is a line without a
    token, after which all its labels are final.
    """
    from seqwise.runs import Streams, choose_decoder

    folder, loaded = load_predicting_run(run)
    chosen = choose_decoder(
        loaded.settings, resolved_decoder(decoder, folder, beam_size=beam_size), beam_size=beam_size
    )
    streams, written = Streams(loaded, chosen, commit=commit), _json_line if as_json else _plain_line
    if file == "-" and sys.stdin.isatty():
        print("reading tokens from the terminal: a blank line ends a sentence, Ctrl-D the input", file=sys.stderr)
    path = STDIN if file == "-" else file
    for token, line in _pieces(file, each_line=each_line):
        with placed(path=path, line=line):
            update = streams.finish(NAME) if token is None else streams.feed({NAME: [token]})[NAME]
        print(written(token, update), flush=True)
    if streams.names:
        print(written(None, streams.finish(NAME)), flush=True)


def _pieces(file: str, *, each_line: bool) -> Iterator[tuple[str | None, int]]:
    """Yield each token as soon as it is complete, and None at the end of a sentence, with their lines."""
    line, in_line, in_sentence, has_tab = 1, False, False, False
    for text in _parts(file):
        if "\t" in text and not has_tab:
            has_tab = True
            warn("a tab separates tokens, so all columns are tokens; of labelled data, give only the first (cut -f1)")
        for match in PIECES.finditer(text):
            if match[0] != "\n":
                in_line = in_sentence = True
                yield match[0], line
                continue
            if in_sentence and (each_line or not in_line):
                in_sentence = False
                yield None, line
            line, in_line = line + 1, False


def _parts(file: str) -> Iterator[str]:
    """Yield the text that has arrived, up to the last token that is complete."""
    from seqwise.data.readers import DAMAGED, damaged_input, opened_input

    # As in read_lines, a byte-order mark is dropped and NUL is refused: UTF-16 and binary files are full of it.
    decoder, rest, line = codecs.getincrementaldecoder("utf-8-sig")(), "", 1
    path = STDIN if file == "-" else file
    with opened_input(path) as opened:
        source: Any = opened
        while True:
            try:
                read: bytes = source.read1(READ_AT_ONCE)  # does not wait for all bytes, unlike read
                text = rest + decoder.decode(read, final=not read)
            except DAMAGED as error:
                raise damaged_input(error, path, line) from None
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                hint = "convert it to UTF-8, for example with iconv"
                raise InputError("the input is not UTF-8", path=path, line=line, hint=hint) from None
            if "\0" in text:
                line += text[: text.index("\0")].count("\n")
                raise InputError("NUL character", path=path, line=line, hint="give a text file in UTF-8")
            line += read.count(b"\n")
            end = max(map(text.rfind, " \t\r\n")) + 1 if read else len(text)
            yield text[:end]
            rest = text[end:]
            if not read:
                return


def _plain_line(token: str | None, update: Update) -> str:
    return "\t".join([token or "", *(" ".join(labels) for labels in update)])


def _json_line(token: str | None, update: Update) -> str:
    record: dict[str, Any] = {"token": token, **{name: list(labels) for name, labels in update._asdict().items()}}
    return json.dumps(record, ensure_ascii=False)
