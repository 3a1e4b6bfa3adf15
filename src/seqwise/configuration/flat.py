"""Flat names of the settings of all sections, like command-line flags: reading, writing and listing."""

from __future__ import annotations

import os
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from seqwise.configuration.config import Config, OneOf, WrongValue, explained, flat_name, named, section_of, wrong_value
from seqwise.configuration.written import FlagText, Given, Written, given_in_python, nearest, read_given
from seqwise.errors import InputError

T = TypeVar("T", bound=Config)

YES_OR_NO = "yes|no"
"""Placeholder of the value of a flag that is on or off."""


def configure(kind: type[T] | OneOf, **flat: Any) -> T:
    """Build a configuration from flat settings, named like command-line flags.

    Args:
        kind: a Config, or the alternatives of one.
        flat: settings at any depth, or whole sections.

    Raises:
        InputError: a setting is unknown, has no effect, or is out of its range.

    Example:
        >>> class Settings(Config):
        ...     rate: float = 1e-3
        ...     steps: int = 10
        >>> configure(Settings, rate=0.5)
        Settings(rate=0.5, steps=10)
    """
    return build(kind, given_in_python(flat))


def load(kind: type[T] | OneOf, path: Path | None, flags: Mapping[str, str] | None = None) -> T:
    """Build a configuration from a YAML file and flags; flags take precedence.

    Args:
        kind: a Config, or the alternatives of one.
        path: a YAML file, nested like the configuration or flat like the flags; None for defaults.
        flags: text by flat name, as on a command line: ``{"beam_size": "3"}``.

    Raises:
        InputError: a key is unknown, repeated or missing, or a value has the wrong type; names file and line.

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
    """Return a configuration as nested YAML that ``load`` reads back as an equal one.

    Example:
        >>> class Settings(Config):
        ...     rate: float = 1e-5
        ...     data: Path = Path("a.tsv")
        >>> print(dump(Settings()), end="")
        rate: 1.0e-05
        data: a.tsv
    """
    text: str = yaml.safe_dump(plain_values(configuration), sort_keys=False, allow_unicode=True)
    return text


def plain_values(configuration: Config) -> dict[str, Any]:
    """Return a configuration as nested mappings of values for YAML and JSON."""
    return {name: _plain(getattr(configuration, name)) for name in type(configuration).model_fields}


def changed(
    kind: type[T] | OneOf, configuration: Config, changes: Mapping[str, Any], leave_out: Collection[str] = ()
) -> T:
    """Build a configuration that differs from another by flat changes, without the fields in ``leave_out``.

    Settings that were not given explicitly are recomputed. Options that a newly chosen alternative lacks are dropped.
    """
    start = {name: value for name, value in _set_values(configuration).items() if name not in leave_out}
    fields = type(configuration).model_fields
    plain = {
        flat_name(name, info): start[name] for name, info in fields.items() if name in start and not section_of(info)
    }
    flags = {name: Written(value, name) for name, value in changes.items()}
    return build(kind, Given(plain, flags, start=start))


def _set_values(configuration: Config, above: str = "") -> dict[str, Written]:
    """Return the explicitly given fields, with sections as mappings, and the tags of all alternatives."""
    values: dict[str, Written] = {}
    for name, info in type(configuration).model_fields.items():
        value = getattr(configuration, name)
        if name in configuration.model_fields_set or name == configuration.tag:
            is_none = value is None and isinstance(section_of(info), OneOf)
            inner = _set_values(value, f"{above}{name}.") if isinstance(value, Config) else value
            values[name] = Written("none" if is_none else inner, f"{above}{name}")
    return values


def _plain(value: Any) -> Any:
    """Convert a value to YAML types."""
    if isinstance(value, Config):
        return plain_values(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def flat_values(configuration: Config, *, only_changed: bool = False) -> dict[str, Any]:
    """List all settings by flat name, with YAML types; the outermost of equal names wins.

    ``only_changed`` leaves out defaults.
    """
    values: dict[str, Any] = {}
    own: dict[str, Any] = {}
    before: dict[str, Any] = {}
    for name, info in type(configuration).model_fields.items():
        value, section, flat = getattr(configuration, name), section_of(info), flat_name(name, info)
        default = info.get_default(call_default_factory=True, validated_data=before)
        before[name] = value
        if isinstance(section, OneOf):
            chosen = "none" if value is None else getattr(value, value.tag)
            usual = getattr(default, default.tag) if isinstance(default, Config) else default
            if not only_changed or chosen != usual:
                own[flat] = chosen
        if isinstance(value, Config):
            inner = flat_values(value, only_changed=only_changed)
            values |= {key: inner[key] for key in inner if key not in (value.tag, *own)}
            own |= {flat: inner[flat]} if flat in inner else {}
        elif section is None and (not only_changed or _plain(value) != _plain(default)):
            own[flat] = _plain(value)
    return {**values, **own}


def differences(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """List the settings in which two configurations differ, by flat name; different alternatives by their tags."""
    changes: dict[str, tuple[Any, Any]] = {}
    fields = {**type(before).model_fields, **type(after).model_fields}
    for name, info in fields.items():
        then, now = getattr(before, name, None), getattr(after, name, None)
        if isinstance(then, Config) and isinstance(now, Config) and type(then) is type(now):
            changes |= differences(then, now)
        elif then != now:
            shown = [getattr(value, value.tag) if isinstance(value, Config) else _plain(value) for value in (then, now)]
            changes[flat_name(name, info)] = (shown[0], shown[1])
    return changes


@dataclass(frozen=True)
class Flag:
    """Command-line flag: all fields with one flat name."""

    name: str
    text: str  # help
    metavar: str
    choices: tuple[str, ...]  # that a shell completes
    default: str  # "" if it is empty or computed
    panel: str | None  # group in ``--help``


def flags_of(kind: type[Config] | OneOf) -> list[Flag]:
    """List the flags of a configuration with all its alternatives; the help names the alternatives with each option."""
    same_name: dict[str, list[_Leaf]] = {}
    panels: dict[str, str | None] = {}
    panel = None
    for leaf in _leaves(kind):
        panel = _extra(leaf.info).get("panel") or panel
        panels.setdefault(leaf.flag, panel)
        same_name.setdefault(leaf.flag, []).append(leaf)
    every = {
        name: {tag for leaf in leaves for tag in leaf.alternatives} - {"none"} for name, leaves in same_name.items()
    }
    flags = [_flag(name, leaves, panels[name], every) for name, leaves in same_name.items()]
    order = list(dict.fromkeys(panels.values()))
    return sorted(flags, key=lambda flag: order.index(flag.panel))


@dataclass(frozen=True)
class _Leaf:
    """Field of an alternative."""

    flag: str
    info: FieldInfo
    owners: tuple[tuple[str, str], ...]  # alternatives that have it: the flat name of the choice, and the chosen tag
    alternatives: tuple[str, ...] = ()  # tags, of a field that is a choice itself


def _leaves(kind: type[Config] | OneOf, owners: tuple[tuple[str, str], ...] = ()) -> Iterator[_Leaf]:
    if isinstance(kind, OneOf):  # the root is a choice, whose tag is a flag too
        tag = kind.base.tag
        yield _Leaf(tag, next(iter(kind.members.values())).model_fields[tag], owners, tuple(kind.members))
        for name, member in kind.members.items():
            yield from (leaf for leaf in _leaves(member, (*owners, (tag, name))) if leaf.flag != tag)
        return
    for name, info in kind.model_fields.items():
        section, flag = section_of(info), flat_name(name, info)
        if isinstance(section, OneOf):
            yield _Leaf(flag, info, owners, (*(["none"] if section.optional else []), *section.members))
            for tag, member in section.members.items():
                leaves = _leaves(member, (*owners, (flag, tag)))
                yield from (leaf for leaf in leaves if leaf.flag != member.tag)
        elif section is not None:
            yield from _leaves(section, owners)
        else:
            yield _Leaf(flag, info, owners)


def _flag(name: str, leaves: list[_Leaf], panel: str | None, every: Mapping[str, set[str]]) -> Flag:
    choosing = [leaf for leaf in leaves if leaf.alternatives]
    leaves = choosing or leaves
    info, extra = leaves[0].info, _extra(leaves[0].info)
    text = "; ".join(dict.fromkeys(leaf.info.description for leaf in leaves if leaf.info.description))
    tags = tuple(dict.fromkeys(tag for leaf in leaves for tag in leaf.alternatives))
    if tags and extra.get("usual"):
        tags = tuple(dict.fromkeys((extra["usual"], *tags)))  # such as "auto", which stands for one of the others
    names = extra.get("choices") or tags or _names(info.annotation)
    if not all(choice in text for choice in names):
        text += f" ({', '.join(names)})"
    readers = extra.get("readers") or _readers(leaves, every)
    default = extra.get("usual") or info.default
    return Flag(
        name,
        f"{readers}: {text}" if readers else text,
        extra.get("metavar") or ("NAME" if choosing else _metavar(info.annotation)),
        tuple(names),
        "" if default in (None, Path(), "", PydanticUndefined, ...) else _as_typed(default),
        panel,
    )


def _as_typed(default: Any) -> str:
    """Return a default as it is typed on the command line."""
    return ("no", "yes")[default] if isinstance(default, bool) else str(default)


def _readers(leaves: list[_Leaf], every: Mapping[str, set[str]]) -> str:
    """Return the names of the alternatives that have an option; "" if all have it."""
    chosen: dict[str, dict[str, None]] = {}
    for leaf in leaves:
        owners = [(choice, tag) for choice, tag in leaf.owners if choice in every]
        if not owners:
            return ""
        chosen.setdefault(owners[-1][0], {})[owners[-1][1]] = None
    if any(every[choice] == set(tags) for choice, tags in chosen.items()):
        return ""
    return ", ".join(dict.fromkeys(tag for tags in chosen.values() for tag in tags))


def _extra(info: FieldInfo) -> dict[str, Any]:
    """Return the notes of ``setting`` on a field."""
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def _metavar(kind: Any) -> str:
    members = [member for member in typing.get_args(kind) if member is not type(None)] or [kind]
    return {int: "N", float: "X", Path: "FILE", str: "TEXT", bool: YES_OR_NO}.get(members[0], "NAME")


def _names(kind: Any) -> tuple[str, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def build(kind: type[T] | OneOf, given: Given) -> T:
    """Build a configuration from given settings."""
    root = _member_of_root(kind, given) if isinstance(kind, OneOf) else kind
    start = {name: value for name, value in (given.start or {}).items() if name in root.model_fields}
    used: dict[str, str] = {}
    placed = _placed(root, given, Written(start, "", given.path), used)
    for written in (*given.flags.values(), *(given.file.values() if given.start is None else ())):
        if nested := used.get(written.name):
            hint = f"it is also given as {nested}; remove one of them"
            raise InputError(f"{written.name} is given twice", path=written.path, line=written.key_line, hint=hint)
        if nested is None:
            raise _without_effect(kind, written)
    try:
        built: Any = root.model_validate(placed.plain())
    except ValidationError as error:
        raise explained(error, root, placed) from None
    return built


def _member_of_root(kind: OneOf, given: Given) -> type[Config]:
    tag = kind.base.tag
    name = given.value(tag)
    member = kind.find(name)
    if member is not None:
        return member
    wrong = wrong_value(f"one of {', '.join(kind.members)}", name, hint=nearest(str(name), kind.members))
    raise named(wrong, Written({**given.file, **given.flags}, "", given.path), (tag,))


def _placed(kind: type[Config], given: Given, here: Written, used: dict[str, str]) -> Written:
    """Put flat settings into a section: file values below nested ones, flags above; record them in ``used``.

    There, the value of a flat name is "", or the nested name that takes its place.
    """
    values = dict(here.value)
    for name, info in kind.model_fields.items():
        flat, section = flat_name(name, info), section_of(info)
        candidates = [given.file.get(flat), here.inner(name), given.flags.get(flat)]
        written = [candidate for candidate in candidates if candidate is not None]
        # In a file, a flat key has no effect next to a nested key for the same setting.
        has_effect = section is not None or flat in given.flags or here.inner(name) in (None, given.file.get(flat))
        if has_effect:
            used |= dict.fromkeys({flat} & {*given.file, *given.flags}, "")
        elif flat in given.file and (nested := here.inner(name)) is not None:
            used.setdefault(flat, nested.name)
        if section is not None and all(isinstance(w.value, str | Mapping) for w in written):
            inner = _placed_section(section, info, written, given, used)
        else:
            inner = written[-1] if written else None
        if inner is not None:
            values[name] = inner
    return Written(values, here.name, here.path, here.line, here.key_line)


def _placed_section(
    section: type[Config] | OneOf, info: FieldInfo, written: list[Written], given: Given, used: dict[str, str]
) -> Written | None:
    """Return a nested section, or None if none of its settings was given."""
    merged: dict[str, Any] = {}
    for candidate in written:
        if isinstance(section, OneOf) and section.optional and candidate.value == "none":
            merged = {}
            continue
        try:
            mapping = section.mapping(candidate.value) if isinstance(section, OneOf) else candidate.value
        except WrongValue as error:
            raise named(error, candidate, (), candidate) from None
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
    member = section.find(name)
    if member is None:
        return here if written else None
    if given.start is not None:  # only a newly chosen alternative takes settings of other sections
        before = written[0].value.get(tag) if written and isinstance(written[0].value, Mapping) else None
        given = replace(given, file={}) if before is not None and before.plain() == name else given
        here = replace(here, value={key: inner for key, inner in merged.items() if key in member.model_fields})
    inner = _placed(member, given, here, used)
    if not written and not inner.value:
        return None
    origin = inner if inner.path else next((child for child in inner.value.values() if child.path), inner)
    value = {tag: Written(name, tag), **inner.value}
    return Written(value, inner.name, origin.path, origin.line, origin.key_line)


def _without_effect(kind: type[Config] | OneOf, written: Written) -> InputError:
    """Return the error about a flat setting that no chosen alternative has."""
    leaves = list(_leaves(kind))
    owners: dict[str, dict[str, None]] = {}
    outer: dict[str, None] = {}  # of nested alternatives
    for leaf in leaves:
        if leaf.flag == written.name and leaf.owners:
            choice, name = leaf.owners[-1]
            owners.setdefault(choice, {})[name] = None
            outer |= {" ".join(owner): None for owner in leaf.owners[:-1]}
    line = written.key_line or written.line
    if not owners:
        what = "setting" if isinstance(written.value, FlagText) else "key"
        hint = nearest(written.name, {leaf.flag for leaf in leaves}) or "see the options of the command (--help)"
        return InputError(f"unknown {what} {written.name!r}", path=written.path, line=line, hint=hint)
    alternatives = " or ".join(f"{choice} {', '.join(names)}" for choice, names in owners.items())
    # LSTM transducers have source units, LSTM taggers have none: if only one outer alternative applies, name it.
    outer_name = f"{' '.join(outer)} with " if len(outer) == 1 else ""
    hint = f"leave it out, or use {outer_name}{alternatives}"
    return InputError(f"{written.name}: has no effect here", path=written.path, line=line, hint=hint)
