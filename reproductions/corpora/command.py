"""``python -m reproductions.corpora``: the corpora of the reproductions."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from seqwise.cli.examples import shown
from seqwise.cli.layout import Group
from seqwise.errors import InputError

COMMAND = "python -m reproductions.corpora"
EXAMPLES = {
    "": (
        f"{COMMAND} list",
        f"{COMMAND} download g2p-en-sigmorphon21",
        f"{COMMAND} check",
    ),
    "list": (
        f"{COMMAND} list",
        f"{COMMAND} list --json",
    ),
    "where": (f"{COMMAND} where supertag-ccg-pmb",),
    "download": (
        f"{COMMAND} download cmudict --to corpora",
        f"{COMMAND} download supertag-ccg-pmb \\\n    --mirror https://data.example.org/corpora",
    ),
    "check": (
        f"{COMMAND} check",
        f"{COMMAND} check supertag-ccg-pmb",
    ),
    "supertags": (f"{COMMAND} supertags en_ewt-ud-dev.conllu dev.tsv",),
}
# By the name of the command; "" for the group.

app = typer.Typer(
    cls=Group,
    help="List, download and check the corpora that reproductions read; convert dependency trees to supertags.",
    epilog=shown(*EXAMPLES[""]),
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The group of commands."""


@app.command("list", epilog=shown(*EXAMPLES["list"]))
def list_corpora(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object with all fields of the catalogue")
    ] = False,
) -> None:
    """List the corpora: contents, licence, source, the reproductions that need each, and whether it is present."""
    from dataclasses import asdict

    from reproductions.corpora.catalogue import corpora

    root, here = _root(), _present()
    if as_json:
        records = {name: {**asdict(corpus), "here": name in here} for name, corpus in corpora().items()}
        print(json.dumps({"SEQWISE_DATA": None if root is None else str(root), "corpora": records}, indent=1))
        return
    for name, corpus in corpora().items():
        print(f"{name} ({'here' if name in here else 'absent'}): {corpus.contents}")
        print(f"  licence: {corpus.licence}")
        for source in corpus.sources:
            print(f"  source: {source}")
        if corpus.needed_by:
            print(f"  needed by: {', '.join(corpus.needed_by)}")
        if corpus.optional_for:
            print(f"  optional for: {', '.join(corpus.optional_for)}")
    print("SEQWISE_DATA is not set" if root is None else f"SEQWISE_DATA is {root}")


def _root() -> Path | None:
    named = os.environ.get("SEQWISE_DATA")
    return Path(named) if named else None


def _present() -> list[str]:
    """Return the names of the corpora that are in the folder."""
    from reproductions.corpora.catalogue import corpora

    root = _root()
    return [name for name in corpora() if root is not None and (root / name).is_dir()]


@app.command(epilog=shown(*EXAMPLES["where"]))
def where(name: Annotated[str, typer.Argument(metavar="NAME", help="name of a corpus")]) -> None:
    """Print the folder of a corpus."""
    from reproductions.corpora.catalogue import find_corpus
    from reproductions.corpora.readers import corpus

    find_corpus(name)
    print(corpus(name))


@app.command(epilog=shown(*EXAMPLES["check"]))
def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="corpora to check; by default all that are present")
    ] = None,
) -> None:
    """Check the size and SHA-256 of every file of corpora."""
    from reproductions.corpora.catalogue import find_corpus, verify
    from reproductions.corpora.readers import corpus

    for name in names or ():
        find_corpus(name)
    chosen = names or _present()
    if not chosen:
        raise InputError("no corpus is present", hint="set SEQWISE_DATA to the folder of the corpora")
    wrong: list[tuple[Path, str]] = []
    for name in chosen:
        folder, files = corpus(name), find_corpus(name).files
        faults = {file: fault for file, fault in verify(folder, files) if fault}
        print(f"{name}: {'in order' if not faults else f'{len(faults)} wrong'} ({len(files)} files)")
        for file, fault in faults.items():
            print(f"  {file} {fault}")
            wrong.append((folder / file, fault))
    if wrong:
        path, fault = wrong[0]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise InputError(f"{fault}{more}", path=path, hint="download it again")


@app.command(epilog=shown(*EXAMPLES["download"]))
def download(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="names of corpora")],
    *,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="folder of the corpora, with a subfolder for each [SEQWISE_DATA]"),
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="address of a folder of corpora, to use instead of their sources")
    ] = None,
) -> None:
    """Download corpora; a file with another size or SHA-256 than in the catalogue is rejected.

    Files that are complete are not downloaded again. After an interruption, the same command downloads the others.
    """
    from reproductions.corpora.catalogue import find_corpus
    from reproductions.corpora.fetching import fetch_corpus

    for name in names:
        find_corpus(name)
    root = to or _root()
    if root is None:
        raise InputError("no folder for the corpora is given", hint="give --to FOLDER, or set SEQWISE_DATA")
    for name in names:
        fetched, missing = fetch_corpus(name, root / name, mirror=mirror, show_progress=sys.stderr.isatty())
        print(f"{name}: {len(fetched)} files downloaded to {root / name}; licence: {find_corpus(name).licence}")
        if missing:
            print(f"  not published in this form, available from a mirror only (--mirror): {', '.join(missing)}")


@app.command(epilog=shown(*EXAMPLES["supertags"]))
def supertags(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="dependency trees in CoNLL-U, plain or gzipped")],
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="output columns: word, supertag, morphology, part of speech")
    ],
) -> None:
    """Convert dependency trees to supertags, like those of supertag-ud-ewt.

    seqwise train --label-column 1 learns the second column of OUT.
    """
    from reproductions.corpora.dependencies import dependency_supertags, read_dependencies, write_supertags

    sentences = read_dependencies(file)
    write_supertags(output, sentences)
    labels = {label for words in sentences for label in dependency_supertags(words)}
    words = sum(map(len, sentences))
    print(f"{output}: {len(sentences):,} sentences, {words:,} words, {len(labels):,} supertags")
