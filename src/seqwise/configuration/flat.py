"""Flat names, as of command-line flags, for the settings of all sections: reading, writing and listing them."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from seqwise.configuration.config import Config, OneOf, WrongValue, explained, flat_name, named, section_of
from seqwise.configuration.written import FlagText, Given, Written, did_you_mean, read_given
from seqwise.errors import InputError

__all__ = ["Flag", "build", "configure", "dump", "flags_of", "flat_settings", "load"]

T = TypeVar("T", bound=Config)


def configure(kind: type[T] | OneOf, **flat: Any) -> T:
    """Build a configuration from flat settings, each by the name that its command-line flag has.

    Args:
        kind: a Config, or the alternatives of one.
        flat: settings of any depth, or whole sections.

    Raises:
        InputError: a setting is unknown, not one of the chosen alternatives', or out of its range.

    Example:
        >>> class Settings(Config):
        ...     rate: float = 1e-3
        ...     steps: int = 10
        >>> configure(Settings, rate=0.5)
        Settings(rate=0.5, steps=10)
    """
    return build(kind, Given({name: Written(value, name) for name, value in flat.items()}))


def load(kind: type[T] | OneOf, path: Path | None, flags: Mapping[str, str] | None = None) -> T:
    """Build a configuration from a YAML file and from flags, which win.

    Args:
        kind: a Config, or the alternatives of one.
        path: a YAML file, nested like the configuration or flat like the flags; None: the defaults alone.
        flags: ``{"beam_size": "3"}``: names as of :func:`configure` -> text as on a command line.

    Raises:
        InputError: names file and line of an unknown or repeated key, a value of the wrong type or a missing one.

    Example:
        >>> class Settings(Config):
        ...     rate: float = 1e-3
        ...     steps: int = 10
        >>> load(Settings, None, {"rate": "1e-4"})
        Settings(rate=0.0001, steps=10)

    Not implemented: YAML merge keys (``<<``) and several documents in one file.
    """
    return build(kind, read_given(path, flags))


def dump(configuration: Config) -> str:
    """Write a configuration as the YAML text from which ``load`` makes an equal one.

    Returns:
        YAML, nested, one key a line in the order of the fields.

    Example:
        >>> class Settings(Config):
        ...     rate: float = 1e-5
        ...     data: Path = Path("a.tsv")
        >>> print(dump(Settings()), end="")
        rate: 1.0e-05
        data: a.tsv
    """
    text: str = yaml.safe_dump(_plain(configuration), sort_keys=False, allow_unicode=True)
    return text


def flat_settings(configuration: Config) -> dict[str, Any]:
    """List the settings that were given, of all sections, by their flat names: what ``configure`` takes.

    Example:
        >>> from seqwise.configuration import setting
        >>> class Settings(Config):
        ...     k: int = setting(5, "slots of the beam", flag="beam_size")
        ...     steps: int = 10
        >>> flat_settings(Settings(k=3))
        {'beam_size': 3}
    """
    found: dict[str, Any] = {}
    for name, info in type(configuration).model_fields.items():
        value, section = getattr(configuration, name), section_of(info)
        if name not in configuration.model_fields_set:
            continue
        if isinstance(section, OneOf):
            found[flat_name(name, info)] = "none" if value is None else getattr(value, value.tag)
        if isinstance(value, Config) and section is not None:
            inner = flat_settings(value)
            found |= {key: inner[key] for key in inner if key not in (value.tag, *found)}
        elif section is None:
            found[flat_name(name, info)] = value
    return found


def _plain(value: Any) -> Any:
    """A value as YAML can hold it."""
    if isinstance(value, Config):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


@dataclass(frozen=True)
class Flag:
    """One command-line flag: all fields of one flat name.

    Args:
        name: the flat name.
        text: the line of help.
        metavar: what its value is called.
        choices: what a shell may complete.
        default: what it is where nothing is given, "" where that says nothing.
        panel: the group in ``--help``, or None for that of the flag before.
    """

    name: str
    text: str
    metavar: str
    choices: tuple[str, ...]
    default: str
    panel: str | None


def flags_of(kind: type[Config] | OneOf) -> list[Flag]:
    """List the flags of a configuration, those of every alternative included.

    The help of an option that not all alternatives have begins with the names of those that do.

    Example:
        >>> from seqwise.configuration import setting
        >>> class Settings(Config):
        ...     k: int = setting(5, "slots of the beam", flag="beam_size")
        >>> [(flag.name, flag.text, flag.metavar, flag.default) for flag in flags_of(Settings)]
        [('beam_size', 'slots of the beam', 'N', '5')]
    """
    same_name: dict[str, list[_Leaf]] = {}
    for leaf in _leaves(kind):
        same_name.setdefault(leaf.flag, []).append(leaf)
    return [_flag(name, leaves) for name, leaves in same_name.items()]


@dataclass(frozen=True)
class _Leaf:
    """A field of some alternative.

    Args:
        flag: its flat name.
        info: its default, help and bounds.
        owners: the alternatives that it belongs to: pairs of the flat name that chooses and the chosen tag.
        alternatives: where the field is such a choice itself, the tags.
    """

    flag: str
    info: FieldInfo
    owners: tuple[tuple[str, str], ...]
    alternatives: tuple[str, ...] = ()


def _leaves(kind: type[Config] | OneOf, owners: tuple[tuple[str, str], ...] = ()) -> Iterator[_Leaf]:
    if isinstance(kind, OneOf):  # of the root, whose tag is a setting like others
        tag = kind.base.tag
        yield _Leaf(tag, next(iter(kind.members.values())).model_fields[tag], owners, tuple(kind.members))
        for name, member in kind.members.items():
            yield from (leaf for leaf in _leaves(member, (*owners, (tag, name))) if leaf.flag != tag)
        return
    for name, info in kind.model_fields.items():
        section, flag = section_of(info), flat_name(name, info)
        if isinstance(section, OneOf):
            yield _Leaf(flag, info, owners, tuple(section.members))
            for tag, member in section.members.items():
                leaves = _leaves(member, (*owners, (flag, tag)))
                yield from (leaf for leaf in leaves if leaf.flag != member.tag)
        elif section is not None:
            yield from _leaves(section, owners)
        else:
            yield _Leaf(flag, info, owners)


def _flag(name: str, leaves: list[_Leaf]) -> Flag:
    info = leaves[0].info
    extra: Any = info.json_schema_extra or {}
    text = "; ".join(dict.fromkeys(leaf.info.description or "" for leaf in leaves))
    alternatives = tuple(dict.fromkeys(choice for leaf in leaves for choice in leaf.alternatives))
    names = alternatives or _names(info.annotation)
    if not all(choice in text for choice in names):
        text += f" ({', '.join(names)})"
    owners = dict.fromkeys(leaf.owners[-1][1] for leaf in leaves if leaf.owners)
    if owners and all(leaf.owners for leaf in leaves):
        text = f"{', '.join(owners)}: {text}"
    default = "" if info.default in (None, Path(), "") or info.default_factory is not None else str(info.default)
    panel = next((found for leaf in leaves if (found := (leaf.info.json_schema_extra or {}).get("panel"))), None)  # type: ignore[union-attr]
    return Flag(
        name,
        text,
        extra.get("metavar") or ("NAME" if alternatives else _metavar(info.annotation)),
        tuple(extra.get("choices") or names),
        default if info.default is not PydanticUndefined else "",
        str(panel) if panel else None,
    )


def _metavar(kind: Any) -> str:
    members = [member for member in typing.get_args(kind) if member is not type(None)] or [kind]
    return {int: "N", float: "X", Path: "FILE", str: "TEXT", bool: "yes|no"}.get(members[0], "NAME")


def _names(kind: Any) -> tuple[str, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def build(kind: type[T] | OneOf, given: Given) -> T:
    """Build a configuration from what was given; see :func:`load`.

    Raises:
        InputError: as of :func:`load`.
    """
    used: set[str] = set()
    if isinstance(kind, OneOf):
        tag = given.value(kind.base.tag)
        member = kind.member(tag) if tag in kind.members else None
        if member is None:
            wrong = WrongValue(
                f"must be one of {', '.join(kind.members)}", got=tag, mend=did_you_mean(str(tag), kind.members)
            )
            raise named(wrong, Written(given.file, "", given.path), (kind.base.tag,), given.flags.get(kind.base.tag))
        kind_of_root: Any = member
    else:
        kind_of_root = kind
    placed = _placed(kind_of_root, given, Written({}, "", given.path), used)
    for source in (given.flags, given.file):
        for name, written in source.items():
            if name not in used:
                raise _unread(kind, written)
    try:
        built: T = kind_of_root.model_validate(placed.plain())
    except ValidationError as error:
        raise explained(error, kind_of_root, placed) from None
    return built


def _placed(kind: type[Config], given: Given, here: Written, used: set[str]) -> Written:
    """A section with the flat settings where they belong: those of a file below what is nested there, flags above.

    Args:
        kind: the class of the section.
        given: all flat settings.
        here: the section as a mapping.
        used: takes the names of the flat settings that have found their place.
    """
    values = dict(here.value)
    for name, info in kind.model_fields.items():
        flat, section = flat_name(name, info), section_of(info)
        candidates = [given.file.get(flat), here.inner(name), given.flags.get(flat)]
        written = [candidate for candidate in candidates if candidate is not None]
        used |= {flat} & {*given.file, *given.flags}
        if section is not None and all(isinstance(w.value, str | Mapping) for w in written):
            found = _placed_section(section, info, written, given, used)
        else:
            found = written[-1] if written else None
        if found is not None:
            values[name] = found
    return Written(values, here.name, here.path, here.line, here.key_line)


def _placed_section(
    section: type[Config] | OneOf, info: FieldInfo, written: list[Written], given: Given, used: set[str]
) -> Written | None:
    """A nested section; None where nothing of it was given."""
    merged: dict[str, Any] = {}
    for candidate in written:
        if isinstance(section, OneOf) and section.optional and candidate.value == "none":
            merged = {}
            continue
        mapping = section.mapping(candidate.value) if isinstance(section, OneOf) else candidate.value
        if not isinstance(mapping, Mapping):
            return candidate
        merged |= {
            key: inner if isinstance(inner, Written) else replace(candidate, value=inner)
            for key, inner in mapping.items()
        }
    if written and not merged:
        return written[-1]
    here = Written(merged, *((written[-1].name, written[-1].path, written[-1].line) if written else ("",)))
    if not isinstance(section, OneOf):
        inner = _placed(section, given, here, used)
        return inner if written or inner.value else None
    tag = section.base.tag
    name = merged[tag].plain() if tag in merged else section.usual or info.default
    if name not in section.members:
        return here if written else None
    inner = _placed(section.members[name], given, here, used)
    if not written and not inner.value:
        return None
    return replace(inner, value={tag: Written(name, tag), **inner.value})


def _unread(kind: type[Config] | OneOf, written: Written) -> InputError:
    """The error about a flat setting that none of the chosen alternatives has."""
    leaves = list(_leaves(kind))
    owners: dict[str, dict[str, None]] = {}
    for leaf in leaves:
        if leaf.flag == written.name and leaf.owners:
            choice, name = leaf.owners[-1]
            owners.setdefault(choice, {})[name] = None
    line = written.key_line or written.line
    if not owners:
        what = "setting" if isinstance(written.value, FlagText) else "key"
        hint = did_you_mean(written.name, {leaf.flag for leaf in leaves})
        return InputError(f"unknown {what} {written.name!r}", path=written.path, line=line, mend=hint)
    alternatives = " or ".join(f"{choice} {', '.join(names)}" for choice, names in owners.items())
    hint = f"leave it out, or use {alternatives}"
    return InputError(f"{written.name}: nothing reads it here", path=written.path, line=line, mend=hint)
