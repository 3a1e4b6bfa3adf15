"""Errors in user input: one line with the problem, its place and a hint."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["InputError"]


class InputError(ValueError):
    """Error in the caller's input; its message names the place and gives a hint.

    Args:
        problem: what is wrong, as a clause without a full stop.
        path: the file.
        line: the line in that file, from 1.
        hint: how to correct it, as an imperative clause.

    The command line prints ``str(error)`` and exits with code 2.

    Example:
        >>> print(InputError("3 columns where 2 were expected", path="a.tsv", line=7, hint="separate with one tab"))
        a.tsv:7: 3 columns where 2 were expected; separate with one tab
        >>> print(InputError("alpha must be greater than 0, got -1.0"))
        alpha must be greater than 0, got -1.0
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
        hint: str | None = None,
    ) -> None:
        place = "" if path is None else f"{os.fspath(path)}:" if line is None else f"{os.fspath(path)}:{line}:"
        text = f"{place} {problem}".strip() if hint is None else f"{place} {problem}; {hint}".strip()
        # Tokens and file names come from outside and may hold line breaks: the promise is one line.
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))
        self.problem, self.path, self.line, self.hint = problem, path, line, hint


class NotFiniteError(InputError):
    """A loss, a gradient, a weight, a score or a measure of a model is not finite."""


@contextmanager
def placed(prefix: str = "", *, path: str | os.PathLike[str] | None = None, line: int | None = None) -> Iterator[None]:
    """Give errors that know no place one: a file and line, or text before the problem.

    Example:
        >>> with placed("text 2: "):
        ...     raise InputError("the text is blank", hint="fill it in")
        Traceback (most recent call last):
        seqwise.errors.InputError: text 2: the text is blank; fill it in
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{prefix}{error.problem}", path=path, line=line, hint=error.hint) from None


def first_line(error: object) -> str:
    r"""Return the first line of the message of an error, or of what a library says; without one, the type's name.

    Example:
        >>> first_line(RuntimeError("out of memory\nat line 7")), first_line(KeyError())
        ('out of memory', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def warn(*warnings: str | None) -> None:
    """Print warnings on standard error, one per line."""
    for warning in warnings:
        if warning is not None:
            print(f"seqwise: {warning}", file=sys.stderr)
