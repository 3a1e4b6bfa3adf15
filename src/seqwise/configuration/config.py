"""Configurations: frozen settings with types and ranges, and choices between alternatives."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from seqwise.configuration.written import FlagText, Written, compose, did_you_mean, nearest, shown, written_from
from seqwise.errors import InputError

T = TypeVar("T", bound="Config")
_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def setting(
    default: Any,
    text: str,
    *,
    flag: str | None = None,
    panel: str | None = None,
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    readers: str | None = None,
    usual: str | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declare a field of a :class:`Config` with its help and range.

    Args:
        default: the default value, as text or an object; or a function of the preceding fields, ``{name: value}``.
        text: the help text.
        flag: the flat name, if it differs from the field: ``k`` of an objective is ``beam_size`` on the command line.
        panel: the group of flags in ``--help`` that begins here.
        metavar: placeholder of the value in ``--help``; by default from the type.
        choices: values for shell completion; by default from the type.
        readers: names of the alternatives with this option in the help; by default all that have it.
        usual: the default shown in the help, if it is computed.
        ge, gt, le, lt: bounds: at least, greater than, at most, less than.

    Example:
        >>> class Model(Config):
        ...     dropout: float = setting(0.1, "dropout rate", ge=0, lt=1)
        >>> Model(dropout=1.0)
        Traceback (most recent call last):
        seqwise.errors.InputError: dropout must be at least 0 and below 1, got 1.0
    """
    extra = {
        "flag": flag,
        "panel": panel,
        "metavar": metavar,
        "choices": choices,
        "readers": readers,
        "usual": usual,
    }
    options: dict[str, Any] = {"default_factory": default} if callable(default) else {"default": default}
    options |= {"description": text, "json_schema_extra": extra}
    return Field(**options, ge=ge, gt=gt, le=le, lt=lt)


class Config(BaseModel):
    """Frozen settings, each with a type and a range; text is read as in a YAML file.

    Raises:
        InputError: a setting is unknown, missing, of the wrong type or out of range.

    Example:
        >>> class Optimiser(Config):
        ...     rate: float = setting(1e-3, "learning rate", gt=0)
        ...     steps: int = 10
        >>> Optimiser(rate="1e-4")
        Optimiser(rate=0.0001, steps=10)
        >>> Optimiser(rat=1)
        Traceback (most recent call last):
        seqwise.errors.InputError: unknown key 'rat'; did you mean 'rate'?
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
        defer_build=True,  # there are hundreds of alternatives, each takes milliseconds, and a command uses few
    )
    tag: ClassVar[str] = "name"
    """Field that identifies the alternatives of a base class."""

    def __init__(self, **values: Any) -> None:
        try:
            self.__pydantic_validator__.validate_python(values, self_instance=self)
        except ValidationError as error:
            raise explained(error, type(self), Written(values, "")) from None

    # Without this, pydantic would call __init__ for nested values too, and lose the place of a mistake.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("*", mode="before")
    @classmethod
    def _from_text(cls, value: Any, info: Any) -> Any:
        return _read(cls.model_fields[info.field_name].annotation, value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def replace(self: T, **changes: Any) -> T:
        """Return a copy with some fields changed, validated again."""
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | changes)


class OneOf:
    """Annotation of a field that holds one of several alternatives: ``Annotated[Base, OneOf(Base)]``.

    The alternatives are the subclasses of a base class with a tag, ``name: Literal["..."]``, including later ones. Text
    names an alternative with default options; a mapping holds the tag and the options.

    Args:
        base: the base class.
        short: expands text to a mapping; by default to ``{tag: text}``.
        optional: whether "none" means None.
        usual: tag of the alternative that takes flat settings if none is chosen; by default the default's tag.

    Example:
        >>> class Schedule(Config): ...
        >>> class Linear(Schedule):
        ...     name: Literal["linear"] = "linear"
        ...     end: float = 1.0
        >>> class Training(Config):
        ...     schedule: typing.Annotated[Schedule, OneOf(Schedule)] = setting("linear", "how it decays")
        >>> Training(schedule={"name": "linear", "end": 2}).schedule
        Linear(name='linear', end=2.0)
        >>> Training(schedule="liner")
        Traceback (most recent call last):
        seqwise.errors.InputError: schedule must be one of linear, got 'liner'; did you mean 'linear'?
    """

    def __init__(
        self,
        base: type[Config],
        *,
        short: Callable[[str], dict[str, Any]] | None = None,
        optional: bool = False,
        usual: str | None = None,
    ) -> None:
        self.base, self.short = base, short or (lambda text: {base.tag: text})
        self.optional, self.usual = optional, usual

    @property
    def members(self) -> dict[str, type[Config]]:
        """Alternatives by tag, in the order of their definition."""
        return dict(_tagged(self.base))

    def mapping(self, value: Any) -> Any:
        """Expand text to a mapping; return anything else unchanged."""
        return self.short(value) if isinstance(value, str) else value

    def find(self, name: Any) -> type[Config] | None:
        """Look up an alternative by its tag; None if there is none."""
        return self.members.get(name) if isinstance(name, str) else None  # a list has no hash

    def member(self, name: Any) -> type[Config]:
        """Look up an alternative by its tag; raise an InputError if there is none."""
        member = self.find(name)
        if member is None:
            names = dict.fromkeys((*([self.usual] if self.usual else []), *self.members))
            raise wrong_value(f"one of {', '.join(names)}", name, hint=nearest(str(name), names), key=self.base.tag)
        return member

    def validate(self, value: Any) -> Config | None:
        """Return the alternative that a value describes."""
        if isinstance(value, self.base) or (self.optional and (value is None or value == "none")):
            return value if isinstance(value, self.base) else None
        value = self.mapping(value)
        if not isinstance(value, Mapping):
            raise wrong_value("a name or a mapping", value)
        if self.base.tag not in value:
            hint = f"add '{self.base.tag}: ...', one of {', '.join(self.members)}"
            raise InputError(f"{self.base.tag} is missing", hint=hint)
        return self.member(value[self.base.tag]).model_validate(dict(value))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(self.validate)


def _tagged(base: type[Config]) -> Iterator[tuple[str, type[Config]]]:
    for child in base.__subclasses__():
        if child.tag in child.model_fields and isinstance(child.model_fields[child.tag].default, str):
            yield child.model_fields[child.tag].default, child
        yield from _tagged(child)


def flat_name(name: str, info: FieldInfo) -> str:
    """Return the flat name of a field."""
    extra = info.json_schema_extra
    return str(extra["flag"]) if isinstance(extra, dict) and extra.get("flag") else name


def section_of(info: FieldInfo) -> type[Config] | OneOf | None:
    """Return the alternatives of a field, the class of a nested section, or None for a plain value."""
    for annotation in info.metadata:
        if isinstance(annotation, OneOf):
            return annotation
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Config) else None


def _read(kind: Any, value: Any) -> Any:
    """Convert text to a value of this type if possible; pydantic rejects the rest."""
    if isinstance(value, bool) and kind in (int, float):
        return str(value).lower()  # which pydantic rejects; it would accept a boolean as a number
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _read(arguments[0], value)
    if origin in (Union, types.UnionType):
        return _read_union(arguments, value)
    if origin in (list, tuple, dict):
        return _read_items(origin, arguments, value)
    if not isinstance(value, str):
        return value
    if origin is Literal:
        return next((choice for choice in arguments if str(choice) == value), value)
    if kind is bool:
        return _TRUTH.get(value.lower(), value)
    if kind is int and _INTEGER.fullmatch(value):
        return int(value)
    if kind in (int, float):
        number = _finite_number(value)
        return kind(number) if number is not None and (kind is float or number == int(number)) else value
    if kind is Path and "\0" in value:
        raise wrong_value("a path", value)
    return Path(value) if kind is Path else value


def _read_union(members: tuple[Any, ...], value: Any) -> Any:
    kinds = [member for member in members if member is not type(None)]
    if not isinstance(value, str):
        return _read(kinds[0], value) if len(kinds) == 1 else value
    # In a file, "none" stands for None only where numbers are expected; elsewhere, it may be a name.
    if len(kinds) < len(members) and (
        value.lower() in ("", "null", "none")
        if isinstance(value, FlagText)
        else value.lower() == "none" and {*kinds} <= {int, float}
    ):
        return None
    for kind in kinds:
        read = _read(kind, value)
        if read is not value:
            return read
    return value


def _read_items(origin: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    """Read the items of a list; text is YAML if it is a flag, or numbers separated by commas."""
    kind = typing.get_args(arguments[0])[0] if typing.get_origin(arguments[0]) is typing.Annotated else arguments[0]
    is_listed = isinstance(value, FlagText) or (isinstance(value, str) and "," in value)
    if is_listed and kind in (int, float) and not value.startswith("["):
        return _read_items(origin, arguments, value.split(",") if value else [])
    if isinstance(value, FlagText):
        node = compose(value, None)
        value = value if node is None else written_from(node, "", None).plain()
    if origin is dict and isinstance(value, dict):
        return {key: _read(arguments[1], inner) for key, inner in value.items()}
    if origin is not dict and isinstance(value, list | tuple):
        any_length = origin is list or arguments[-1] is Ellipsis
        kinds = (arguments[0],) * len(value) if any_length else arguments
        return [_read(kind, inner) for kind, inner in zip(kinds, value, strict=False)] + list(value[len(kinds) :])
    return value


def _finite_number(text: str) -> float | None:
    try:
        number = float(text) if text.isascii() else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class WrongValue(InputError):
    """Error about a value at an unknown place, such as "{name} must be even, got 3"; ``key`` is relative to it."""

    def __init__(self, problem: str, *, hint: str | None = None, key: str | None = None) -> None:
        super().__init__(problem.replace("{name}", "it", 1), hint=hint)
        self.template, self.key = problem, key


def wrong_value(expected: str, got: Any, *, hint: str | None = None, key: str | None = None) -> WrongValue:
    """Return the error about an unexpected value."""
    return WrongValue(f"{{name}} must be {expected}, got {shown(got)}", hint=hint, key=key)


_KINDS = {
    "int": "an integer",
    "float": "a finite number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping of names to values",
}
"""Expectations by prefix of the type of a pydantic error."""

_BOUNDS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "below"}


def explained(error: ValidationError, kind: type[Config], written: Written) -> InputError:
    """Convert the first mistake of a pydantic error to one line; unknown names come before wrong values."""
    mistakes = error.errors(include_url=False)
    mistake = next((candidate for candidate in mistakes if candidate["type"] == "extra_forbidden"), mistakes[0])
    loc = mistake["loc"]
    cause = mistake.get("ctx", {}).get("error")
    if not isinstance(cause, InputError):
        section, info = _field_at(kind, written, loc)
        cause = _explained(mistake, _name(written, loc), section, info)
    return named(cause, written, loc)


def _explained(mistake: Any, name: str, section: type[Config], info: FieldInfo | None) -> InputError:
    """Return the error about a mistake in a field, or an unknown field, of a section."""
    key, kind, got = "".join(map(str, mistake["loc"][-1:])), mistake["type"], mistake["input"]
    prefix = kind.partition("_")[0]
    if kind == "extra_forbidden":
        by_flag = {flat_name(field_name, field): field_name for field_name, field in section.model_fields.items()}
        nested = by_flag.get(key)  # the key is the name of a flag, and the section has a shorter one
        suggestion = f"did you mean {nested!r}?" if nested else did_you_mean(key, section.model_fields)
        return InputError(f"unknown key {name!r}", hint=suggestion)
    if kind == "missing":
        return InputError(f"{name} is missing", hint=f"add a line '{key}: ...'")
    if kind == "literal_error":
        names = [str(choice) for choice in _choices(info)]
        return wrong_value(f"one of {', '.join(names)}", got, hint=nearest(str(got), names))
    if kind == "too_short":
        limits = mistake["ctx"]
        return InputError(f"{name} must have {limits['min_length']} or more values, got {limits['actual_length']}")
    expected = _range(info) if prefix in ("greater", "less") else _KINDS.get(prefix)
    return wrong_value(expected, got) if expected else InputError(f"{name}: {mistake['msg']}")


def named(error: InputError, written: Written, loc: tuple[Any, ...], flag: Written | None = None) -> InputError:
    """Add the name, file and line of a value to its error."""
    key = error.key if isinstance(error, WrongValue) else error.problem.partition(":")[0]
    if key and _at(written, (*loc, key)):
        loc = (*loc, key)
    where = flag or _at(written, loc)
    problem = error.problem
    if isinstance(error, WrongValue):
        problem = error.template.replace("{name}", where.name if where and where.name else _name(written, loc), 1)
    if where is None:  # a default, or a rule about several values: take the innermost given section
        where = next((section for end in range(len(loc), -1, -1) if (section := _at(written, loc[:end]))), None)
    if error.path is not None or where is None or where.path is None:
        return InputError(problem, path=error.path, line=error.line, hint=error.hint)
    return InputError(problem, path=where.path, line=where.key_line or where.line, hint=error.hint)


def _at(written: Written, loc: tuple[Any, ...]) -> Written | None:
    where: Written | None = written
    for key in loc:
        where = None if where is None else where.inner(key)
    return where


def _name(written: Written, loc: tuple[Any, ...]) -> str:
    for end in range(len(loc), 0, -1):
        where = _at(written, loc[:end])
        if where is not None and where.name:
            return ".".join([where.name, *map(str, loc[end:])])
    return ".".join(map(str, loc))


def _field_at(kind: type[Config], written: Written, loc: tuple[Any, ...]) -> tuple[type[Config], FieldInfo | None]:
    """Return the section of a mistake, and its field or None."""
    section, info = kind, kind.model_fields.get(str(loc[0])) if loc else None
    for depth, key in enumerate(loc[1:], start=1):
        nested = None if info is None else section_of(info)
        if isinstance(nested, OneOf):
            tag = _at(written, (*loc[:depth], nested.base.tag))
            nested = None if tag is None else nested.find(tag.value)
        if nested is None:  # the rest is inside a plain value
            break
        section, info = nested, nested.model_fields.get(str(key))
    return section, info


def _choices(info: FieldInfo | None) -> tuple[Any, ...]:
    kinds = [] if info is None else [info.annotation, *typing.get_args(info.annotation)]
    return next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is Literal), ())


def _item_bounds(kind: Any) -> list[Any]:
    """Return the bounds of the items of a list."""
    fields = (field for item in typing.get_args(kind) for field in getattr(item, "__metadata__", ()))
    return [bound for field in fields for bound in getattr(field, "metadata", ())]


def _range(info: FieldInfo | None) -> str:
    bounds = [] if info is None else [*info.metadata, *_item_bounds(info.annotation)]
    texts = [
        f"{words} {getattr(bound, name)}" for name, words in _BOUNDS.items() for bound in bounds if hasattr(bound, name)
    ]
    return " and ".join(texts)
