"""JSON files with one object each; errors name the file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seqwise.data.readers import read_lines
from seqwise.errors import InputError


def read_record(path: str | os.PathLike[str], keys: Sequence[str], *, what: str, hint: str) -> dict[str, Any]:
    """Read a JSON object with exactly these keys.

    Example:
        >>> file = getfixture("tmp_path") / "a.json"
        >>> _ = file.write_text('{"tokens": []}')
        >>> read_record(file, ["tokens"], what="vocabulary", hint="save it again")
        {'tokens': []}
    """
    record = read_json_object(path, what=what, hint=hint)
    if set(record) != set(keys):
        raise InputError(f"invalid {what}: expected exactly the keys {', '.join(keys)}", path=path, hint=hint)
    return record


def read_json_object(path: str | os.PathLike[str], *, what: str, hint: str) -> dict[str, Any]:
    """Read a JSON object; ``what`` names its contents in messages."""
    text = "\n".join(line for _, line in read_lines(path))
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"invalid JSON ({error.msg})", path=path, line=error.lineno, hint=hint) from None
    except (RecursionError, ValueError):  # nested too deeply; a number of thousands of digits
        raise InputError(f"invalid {what}", path=path, hint=hint) from None
    if not isinstance(record, dict):
        raise InputError(f"invalid {what}: expected a JSON object", path=path, hint=hint)
    return record


def read_json_lines(path: Path, *, hint: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and JSON object of each line, except an incomplete last line of a growing file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("the file cannot be read", path=path, hint=hint) from error
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise InputError("not a JSON object", path=path, line=number, hint=hint) from None
        yield number, record


def is_number(value: object) -> bool:
    """Whether a JSON value is a finite number.

    Example:
        >>> is_number(1.5), is_number(True), is_number(None)
        (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
