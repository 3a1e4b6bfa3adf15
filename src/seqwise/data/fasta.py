"""Reader of FASTA files."""

from __future__ import annotations

import os
from collections.abc import Iterator

from seqwise.data.readers import Example, FilePath, read_lines, require_some
from seqwise.errors import InputError


def read_fasta(path: FilePath) -> list[Example]:
    r"""Read a FASTA file, plain or gzip: headers ``>NAME words``, each followed by the letters of its sequence.

    Letters are kept unchanged; whitespace, blank lines and old-style comments (lines that begin with ``;``) are
    dropped.

    Args:
        path: the file.

    Returns:
        One example for each header: ``target`` holds the letters, ``source`` is empty, ``key`` is the name (the first
        word of the header, if any), and ``line`` is that of the first letters.

    Raises:
        InputError: letters before the first header, a header without letters, no sequences, or as for `read_lines`.

    Example:
        >>> file = getfixture("tmp_path") / "two.fasta"
        >>> _ = file.write_text(">P1 a protein\nMAT\nLK\n\n>P2\nGG\n")
        >>> [(e.key, "".join(e.target), e.line) for e in read_fasta(file)]
        [('P1', 'MATLK', 2), ('P2', 'GG', 6)]

    Source: Pearson and Lipman (PNAS 1988), whose programs read this format; there is no standard. Not implemented:
    lower case as a mark of repeats (``a`` and ``A`` differ), FASTQ.
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
