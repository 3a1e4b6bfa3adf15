"""Reader of FASTA files."""

from __future__ import annotations

import os
from collections.abc import Iterator

from seqwise.data.readers import Example, FilePath, read_lines, require_some
from seqwise.errors import InputError


def read_fasta(path: FilePath) -> list[Example]:
    r"""Read a FASTA file, plain or gzip: headers ``>NAME words``, each with the letters of its sequence below.

    Letters are kept as they stand; blanks among them, blank lines and old comments (lines that begin with ``;``) are
    left out.

    Args:
        path: the file.

    Returns:
        One example for each header: its ``target`` holds the letters, its ``source`` nothing, its ``key`` the name (the
        first word of the header, which may be missing), and its ``line`` is that of the first letters.

    Raises:
        InputError: letters before the first header, a header without letters, no sequence at all, or as
            `read_lines`.

    Example:
        >>> file = getfixture("tmp_path") / "two.fasta"
        >>> _ = file.write_text(">P1 a protein\nMAT\nLK\n\n>P2\nGG\n")
        >>> [(e.key, "".join(e.target), e.line) for e in read_fasta(file)]
        [('P1', 'MATLK', 2), ('P2', 'GG', 6)]

    Source: Pearson and Lipman (PNAS 1988), whose programs read this form; no standard defines it. Not implemented:
    lower case as a mark of repeats (``a`` and ``A`` are two letters), FASTQ.
    """
    return require_some(list(each_entry(path)), path)


def each_entry(path: FilePath) -> Iterator[Example]:
    """Yield the examples of :func:`read_fasta`."""
    header, name, start = 0, "", 0
    letters: list[str] = []

    def entry() -> Example:
        if not letters:
            hint = "write its letters on the lines below the header, or drop the header"
            raise InputError("the sequence is empty", path=path, line=header, hint=hint)
        return Example((), tuple(letters), os.fspath(path), start, name)

    for number, text in read_lines(path):
        if text.startswith(">"):
            if header:
                yield entry()
            header, name, letters = number, (text[1:].split() or [""])[0], []
        elif text.strip() and not text.startswith(";"):
            if not header:
                problem, hint = "a sequence without a header", "begin each sequence with a line such as >NAME"
                raise InputError(problem, path=path, line=number, hint=hint)
            start = start if letters else number
            letters += (letter for letter in text if not letter.isspace())
    if header:
        yield entry()
