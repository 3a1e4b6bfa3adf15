"""Settings as written in a file, as flags or in Python, with their lines."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from seqwise.errors import InputError

MANY = 50
"""Largest number of names that a hint lists."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Make a hint for an unknown name: the nearest known one, or one that begins with it, or all names if few.

    Example:
        >>> did_you_mean("raw", ["beam", "raw-beam"]), did_you_mean("x", ["beam"])
        ("did you mean 'raw-beam'?", 'known are beam')
        >>> did_you_mean("x", map(str, range(1000)))
        'none of the 1,000 known names is like it'
    """
    names = sorted(known)
    listed = ", ".join(names) or "none"
    return nearest(name, names) or (
        f"known are {listed}" if len(names) <= MANY else f"none of the {len(names):,} known names is like it"
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Make a hint with the nearest known name, or one that begins with the unknown one; None if there is none.

    Example:
        >>> nearest("raw", ["beam", "raw-beam"]), nearest("x", ["beam"])
        ("did you mean 'raw-beam'?", None)
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1) or [known for known in names if name and known.startswith(name)]
    return f"did you mean {near[0]!r}?" if near else None


class FlagText(str):
    """Text from the command line, where lists are written as YAML and "none" stands for None."""


@dataclass(frozen=True)
class Written:
    """Value as written: text, None, a Python object, or a list or mapping of these."""

    value: Any
    name: str  # dotted or flat
    path: Path | None = None
    line: int | None = None  # of the value
    key_line: int | None = None

    def inner(self, key: Any) -> Written | None:
        """Return the value below a key of a mapping, or at an index of a list."""
        known = self.value.get(key) if isinstance(self.value, Mapping) else None
        if isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            known = self.value[key]
        if known is None or isinstance(known, Written):
            return known
        return Written(known, f"{self.name}.{key}" if self.name else str(key))

    def plain(self) -> Any:
        """Return the plain value, for pydantic."""
        if isinstance(self.value, dict):
            return {key: inner.plain() if isinstance(inner, Written) else inner for key, inner in self.value.items()}
        if isinstance(self.value, list):
            return [inner.plain() if isinstance(inner, Written) else inner for inner in self.value]
        return self.value


@dataclass
class Given:
    """Given settings, before interpretation."""

    file: dict[str, Written]  # keys of a file, or keywords of Python
    flags: dict[str, Written]  # take precedence
    path: Path | None = None
    start: dict[str, Written] | None = None  # a configuration to change, as nested mappings

    def value(self, *names: str) -> Any:
        """Return the plain value of the first given name, or None; nested names have dots."""
        for source in (self.flags, self.file, self.start or {}):
            for name in names:
                written: Written | None = Written(source, "")
                for part in name.split("."):
                    written = None if written is None else written.inner(part)
                if written is not None:
                    return written.plain()
        return None

    def put(self, name: str, value: Any) -> None:
        """Set a flat setting, replacing a given one."""
        self.drop(name)
        self.file[name] = Written(value, name)

    def drop(self, name: str) -> None:
        """Forget a flat setting."""
        self.file.pop(name, None)
        self.flags.pop(name, None)

    def error(self, name: str, problem: str, hint: str | None = None) -> InputError:
        """Return an error about a setting, with its file and line."""
        where: Written | None = None if name in self.flags else Written(self.file, "")
        for part in name.split("."):
            where = None if where is None else where.inner(part)
        if where is None or where.line is None:
            return InputError(problem, hint=hint)
        return InputError(problem, path=where.path, line=where.key_line or where.line, hint=hint)


def given_in_python(flat: Mapping[str, Any]) -> Given:
    """Make given settings of keyword arguments."""
    return Given({name: Written(value, name) for name, value in flat.items()}, {})


def read_given(path: Path | None, flags: Mapping[str, str] | None = None) -> Given:
    """Read a YAML file and flags without interpreting them."""
    root = None if path is None else compose(_read_text(path), path)
    written = Written({}, "") if root is None else written_from(root, "", path)
    if not isinstance(written.value, dict):
        raise InputError(
            f"the file must be a mapping of names to values, got {shown(written.value)}", path=path, line=written.line
        )
    return Given(written.value, {name: Written(FlagText(text), name) for name, text in (flags or {}).items()}, path)


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError("the file does not exist", path=path) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError("not UTF-8", path=path, line=line, hint="save the file as UTF-8") from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error


def compose(text: str, path: Path | None) -> yaml.Node | None:
    """Parse YAML into nodes, which know their lines."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise InputError(f"not valid YAML ({error.problem})", path=path, line=line) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError("a character that YAML does not allow", path=path, line=line) from error
    except RecursionError as error:
        raise InputError("nested too deeply", path=path) from error
    except (ValueError, OverflowError) as error:  # an escaped character or a version number out of range
        raise InputError(f"not valid YAML ({error})", path=path) from error
    return node


MOST_VALUES = 100_000  # nested references grow exponentially: a: &a [1, 1], b: &b [*a, *a] ...


def written_from(node: yaml.Node, name: str, path: Path | None) -> Written:
    """Convert a YAML node, with scalars as text: YAML would read ``no`` as a boolean and 1e-4 as text."""
    outer: list[int] = []
    count = 0

    def convert(node: yaml.Node, name: str, key_line: int | None = None) -> Written:
        nonlocal count
        line = None if node.start_mark is None else node.start_mark.line + 1
        count += 1
        if id(node) in outer or count > MOST_VALUES:
            many = f"has more than {MOST_VALUES:,} values, repeated ones counted"
            problem = "contains itself" if id(node) in outer else many
            raise InputError(f"{name or 'the file'} {problem}", path=path, line=line, hint="write the values out")
        outer.append(id(node))
        value: Any = None if node.tag.endswith(":null") else node.value
        if isinstance(node, yaml.MappingNode):
            value = {}
            for key, inner in node.value:
                at = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise InputError(f"{name or 'the file'} must have names as keys", path=path, line=at)
                dotted = f"{name}.{key.value}" if name else key.value
                if key.value in value:
                    raise InputError(f"the key {dotted!r} occurs twice", path=path, line=at, hint="remove one")
                value[key.value] = convert(inner, dotted, at)
        elif isinstance(node, yaml.SequenceNode):
            value = [convert(inner, f"{name}.{place}") for place, inner in enumerate(node.value)]
        outer.pop()
        return Written(value, name, path, line, key_line)

    return convert(node, name)


def shown(value: Any) -> str:
    """Quote a value for a message."""
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else "''" if value is None else repr(value)
