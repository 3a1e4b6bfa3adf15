"""Settings: a dataclass filled from a YAML file and from the command line, every mistake named with its line."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from seqwise.errors import InputError

__all__ = ["did_you_mean", "dump_configuration", "load_configuration", "setting"]

T = TypeVar("T")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_NOTHING = yaml.MappingNode("tag:yaml.org,2002:map", [])
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The mend for an unknown name: the nearest known one, or all of them where none is near.

    Args:
        name: what was written.
        known: what could have been written.

    Returns:
        an imperative clause for ``InputError(mend=...)``.

    Example:
        >>> did_you_mean("liner", ["linear", "constant"])
        "did you mean 'linear'?"
        >>> did_you_mean("x", ["linear", "constant"])
        'known are constant, linear'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names) or 'none'}"


def setting(default: Any, text: str, **metadata: Any) -> Any:
    """A field of a dataclass of settings, with its line of help.

    Args:
        default: what the field is where nothing is given.
        text: what ``--help`` says of it.
        metadata: ``metavar`` and ``choices``, where the type of the field does not say what to call its value and
            which there are; ``panel``: the group of flags that this one begins in ``--help``.

    Example:
        >>> @dataclasses.dataclass
        ... class Settings:
        ...     rate: float = setting(0.1, "dropout rate")
        >>> Settings().rate, dataclasses.fields(Settings)[0].metadata["help"]
        (0.1, 'dropout rate')
    """
    return dataclasses.field(default=default, metadata={"help": text, **metadata})


def load_configuration(cls: type[T], path: Path | None, overrides: Mapping[str, str]) -> T:
    """Fill a dataclass from a YAML file, then from overrides; the type of each field decides how text is read.

    Args:
        cls: a dataclass; fields may be str, int, float, bool, Path, Literal, Optional and other unions, list, tuple,
            dict with text keys, and nested dataclasses.
        path: a YAML file with a mapping of field names, or None for the defaults alone.
        overrides: ``{"training.steps": "100"}``: dotted field name -> text as on a command line.

    Returns:
        an instance of cls.

    Raises:
        InputError: names file and line of an unknown or repeated key, a value of the wrong type or a missing one.

    Example:
        >>> @dataclasses.dataclass
        ... class Settings:
        ...     rate: float = 1e-3
        ...     steps: int = 10
        >>> load_configuration(Settings, None, {"rate": "1e-4"})
        Settings(rate=0.0001, steps=10)

    Not implemented: YAML merge keys (``<<``) and several documents in one file.
    """
    root: yaml.Node = _NOTHING
    if path is not None:
        composed = _compose(_read(path), path)
        root = _NOTHING if composed is None else composed
    given = {name: _Override(text) for name, text in overrides.items()}
    result: T = _dataclass(cls, root, _Place(path, ""), given)
    return result


def dump_configuration(configuration: Any) -> str:
    """The YAML text from which ``load_configuration`` makes an equal configuration.

    Args:
        configuration: a dataclass instance with the field types that ``load_configuration`` reads.

    Returns:
        YAML, one key a line in the order of the fields.

    Raises:
        InputError: the argument is no dataclass instance.

    Example:
        >>> @dataclasses.dataclass
        ... class Settings:
        ...     rate: float = 1e-5
        ...     data: Path = Path("a.tsv")
        >>> print(dump_configuration(Settings()), end="")
        rate: 1.0e-05
        data: a.tsv
    """
    if not dataclasses.is_dataclass(configuration) or isinstance(configuration, type):
        raise InputError(f"{type(configuration).__name__} is not a dataclass instance")
    text: str = yaml.safe_dump(_plain(dataclasses.asdict(configuration)), sort_keys=False, allow_unicode=True)
    return text


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a value comes from: the file, and the dotted name in it."""

    path: Path | None
    name: str

    def inner(self, name: str) -> _Place:
        return _Place(self.path, f"{self.name}.{name}" if self.name else name)


@dataclasses.dataclass(frozen=True)
class _Override:
    """A value from the command line, read as YAML only where the field is no plain scalar."""

    text: str


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError("the file does not exist", path=path) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError("not UTF-8", path=path, line=line, mend="save the file as UTF-8") from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error


def _compose(text: str, path: Path | None) -> yaml.Node | None:
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
    except (ValueError, OverflowError) as error:  # an escaped character, or a version, beyond all numbers
        raise InputError(f"not valid YAML ({error})", path=path) from error
    return node


def _dataclass(
    cls: Any, node: yaml.Node, place: _Place, overrides: Mapping[str, _Override], start: Any = dataclasses.MISSING
) -> Any:
    """Fields come from the overrides, else the node, else start (the outer field's default), else their defaults."""
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(node, place.path, place.name or "the file", "a mapping of names to values")
    kinds = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    found = _entries(node, place)
    for key, (key_node, _) in found.items():
        if key not in fields:
            problem = f"unknown key {place.inner(key).name!r}"
            raise InputError(problem, path=place.path, line=_line(key_node), mend=did_you_mean(key, fields))
    for dotted in overrides:
        if dotted.split(".")[0] not in fields:
            raise InputError(
                f"unknown setting {place.inner(dotted).name!r}", mend=did_you_mean(dotted.split(".")[0], fields)
            )
    values = {}
    for name, field in fields.items():
        inner = {key.removeprefix(f"{name}."): text for key, text in overrides.items() if key.startswith(f"{name}.")}
        here = place.inner(name)
        default = _default(field) if start is dataclasses.MISSING else getattr(start, name)
        if dataclasses.is_dataclass(kinds[name]):
            if name in overrides:
                raise InputError(f"{here.name} holds several settings", mend=f"set {here.name}.<name>")
            if name in found or inner:
                value = found[name][1] if name in found else _NOTHING
                values[name] = _dataclass(kinds[name], value, here, inner, default)
        elif inner:
            raise InputError(f"unknown setting {here.inner(next(iter(inner))).name!r}", mend=f"set {here.name}")
        elif name in overrides:
            values[name] = _override(kinds[name], overrides[name], here)
        elif name in found:
            values[name] = _value(kinds[name], found[name][1], here)
        if name not in values:
            if default is dataclasses.MISSING:
                raise InputError(f"{here.name} is missing", path=place.path, mend=f"add a line '{name}: ...'")
            values[name] = default
    try:
        return cls(**values)
    except InputError as error:
        if error.path is not None or place.path is None:
            raise
        raise InputError(error.problem, path=place.path, line=_line(node), mend=error.mend) from error


def _entries(node: yaml.MappingNode, place: _Place) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _wrong(key, place.path, place.name or "the file", "names as keys")
        if key.value in found:
            raise InputError(
                f"the key {place.inner(key.value).name!r} stands twice",
                path=place.path,
                line=_line(key),
                mend="remove one",
            )
        found[key.value] = (key, value)
    return found


def _override(kind: Any, override: _Override, place: _Place) -> Any:
    place = _Place(None, place.name)
    scalar = yaml.ScalarNode("tag:yaml.org,2002:str", override.text)
    members = typing.get_args(kind) if _is_union(kind) else (kind,)
    if type(None) in members and override.text.lower() in ("", "null", "none"):
        return None
    if any(typing.get_origin(member) in (list, tuple, dict) for member in members):
        return _value(kind, _compose(override.text, None) or scalar, place)
    return _value(kind, scalar, place)


def _value(kind: Any, node: yaml.Node, place: _Place) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, node, place, {})
    if _is_union(kind):
        return _union(arguments, node, place)
    if origin is Literal:
        for choice in arguments:
            if isinstance(node, yaml.ScalarNode) and node.value == str(choice):
                return choice
        names = [str(choice) for choice in arguments]
        raise _wrong(node, place.path, place.name, f"one of {', '.join(names)}", did_you_mean(_text(node), names))
    if origin in (list, tuple):
        return _sequence(origin, arguments, node, place)
    if origin is dict:
        if not isinstance(node, yaml.MappingNode):
            raise _wrong(node, place.path, place.name, "a mapping")
        return {key: _value(arguments[1], value, place.inner(key)) for key, (_, value) in _entries(node, place).items()}
    return _scalar(kind, node, place)


def _union(members: tuple[Any, ...], node: yaml.Node, place: _Place) -> Any:
    if type(None) in members and node.tag.endswith(":null"):
        return None
    rest = [member for member in members if member is not type(None)]
    for member in rest[:-1]:
        try:
            return _value(member, node, place)
        except InputError:
            continue
    return _value(rest[-1], node, place)


def _sequence(origin: Any, arguments: tuple[Any, ...], node: yaml.Node, place: _Place) -> Any:
    if not isinstance(node, yaml.SequenceNode):
        raise _wrong(node, place.path, place.name, "a list")
    kinds = arguments
    if origin is list or arguments[-1] is Ellipsis:
        kinds = (arguments[0],) * len(node.value)
    if len(kinds) != len(node.value):
        raise _wrong(node, place.path, place.name, f"a list of {len(kinds)}")
    items = zip(kinds, node.value, strict=True)
    return origin(_value(kind, item, place.inner(str(i))) for i, (kind, item) in enumerate(items))


def _scalar(kind: Any, node: yaml.Node, place: _Place) -> Any:
    names = {bool: "true or false", int: "an integer", float: "a finite number", str: "text", Path: "a path"}
    if kind not in names:
        raise TypeError(f"{place.name}: fields of type {kind!r} cannot be read from text")
    if not isinstance(node, yaml.ScalarNode) or node.tag.endswith(":null"):
        raise _wrong(node, place.path, place.name, names[kind])
    text = node.value
    if kind in (str, Path) and not (kind is Path and "\0" in text):
        # As written: YAML would read the text `no` as a truth value and `1_0` as a number.
        return kind(text)
    if kind is bool and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if kind is int and _INTEGER.fullmatch(text):
        return int(text)
    if kind in (int, float):
        number = _finite_number(text)
        if number is not None and (kind is float or number == int(number)):
            return kind(number)
    raise _wrong(node, place.path, place.name, names[kind])


def _finite_number(text: str) -> float | None:
    """YAML reads 1e-4 as text, so numbers are read here, from the text."""
    try:
        number = float(text) if text.isascii() else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _line(node: yaml.Node) -> int | None:
    return None if node.start_mark is None else node.start_mark.line + 1


def _text(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _wrong(node: yaml.Node, path: Path | None, name: str, wanted: str, mend: str | None = None) -> InputError:
    got = repr(node.value) if isinstance(node, yaml.ScalarNode) else _text(node)
    line = _line(node) if path is not None else None
    return InputError(f"{name} must be {wanted}, got {got}", path=path, line=line, mend=mend)
