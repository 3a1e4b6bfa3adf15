"""Descriptions of functions, which tell in another process whether a function is the same one."""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType

_CONSTANTS = {"LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST", "KW_NAMES"}  # whichever of them a version of Python has
_LONGEST = 400  # characters


def describe(function: object) -> str:
    """Describe a function by its name and the plain values that it was made with, without addresses.

    Plain values are numbers, texts, None and tuples of them, in closures, default arguments, partials and fields of
    frozen dataclasses, and functions in any of these. All other objects, such as tensors, modules and lists, are
    described by their types, so that those of the same type are not told apart; so are two bodies of a function of the
    same name, except those of a lambda. A variable that the function assigns is left out, because it may have changed
    since.

    Example:
        >>> def weighted(weight):
        ...     def loss(model, batch, values):
        ...         return weight * model(batch)
        ...     return loss
        >>> describe(weighted(0.5)).rpartition(".")[0] != describe(weighted(2.0)).rpartition(".")[0]
        True
        >>> describe(partial(max, 1, key=None))
        'partial(builtins.max, 1, key=None)'
    """
    text = _described(function, ())
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({hashlib.sha256(text.encode(errors='backslashreplace')).hexdigest()[:8]})"


def _described(value: object, outer: tuple[int, ...]) -> str:
    for plain in (bool, int, float, str):  # subclasses, such as NumPy's floats, have other texts
        if isinstance(value, plain):
            return repr(plain(value))
    if value is None:
        return "None"
    if id(value) in outer:  # a recursive function is in its own closure
        return "..."
    outer = (*outer, id(value))
    if isinstance(value, tuple):
        return f"({', '.join(_described(part, outer) for part in value)})"
    if isinstance(value, partial):
        return f"partial({', '.join([_described(value.func, outer), *_arguments(value.args, value.keywords, outer)])})"
    if isinstance(value, MethodType):
        return f"{_name(value.__func__)}({', '.join(_arguments((value.__self__,), {}, outer))})"
    if isinstance(value, FunctionType):
        made_with = [*_arguments((), dict(_made_with(value)), outer)]
        return f"{_name(value)}({', '.join(made_with)})" if made_with else _name(value)
    # Other dataclasses may have changed since.
    if is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        named = {field.name: getattr(value, field.name, None) for field in fields(value)}
        return f"{_name(type(value))}({', '.join(_arguments((), named, outer))})"
    return _name(value if hasattr(value, "__qualname__") else type(value))


def _arguments(positional: tuple[object, ...], named: Mapping[str, object], outer: tuple[int, ...]) -> Iterator[str]:
    yield from (_described(value, outer) for value in positional)
    yield from (f"{name}={_described(value, outer)}" for name, value in named.items())


def _made_with(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the values in a function's closure and its defaults; of a lambda, also names and constants of its code."""
    code: CodeType = function.__code__
    instructions = list(dis.get_instructions(code))
    assigned = {instruction.argval for instruction in instructions if instruction.opname == "STORE_DEREF"}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if name not in assigned:
            yield name, value
    if function.__defaults__ or function.__kwdefaults__:
        yield "defaults", (function.__defaults__ or (), tuple((function.__kwdefaults__ or {}).items()))
    if function.__name__ == "<lambda>":
        yield "names", code.co_names
        constants = [instruction.argval for instruction in instructions if instruction.opname in _CONSTANTS]
        yield "constants", tuple(value for value in constants if isinstance(value, bool | int | float | str | tuple))


def _name(thing: object) -> str:
    """Return the module and qualified name of a function or class."""
    return f"{getattr(thing, '__module__', None) or type(thing).__module__}.{getattr(thing, '__qualname__', thing)}"
