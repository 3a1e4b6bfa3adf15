"""Schedules: values that change during training (alpha, mixing probabilities, temperatures), functions of the step."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic_core import core_schema

from seqwise.configuration.config import WrongValue
from seqwise.configuration.written import did_you_mean, shown
from seqwise.errors import InputError

__all__ = [
    "Alpha",
    "AnySchedule",
    "Probability",
    "Schedule",
    "constant",
    "exponential",
    "inverse_sigmoid",
    "linear",
    "parse_schedule",
]

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(([^()]*)\)\s*")


class Schedule:
    """Value as a function of the number of optimiser steps taken so far (0 at the first step).

    Named subclasses are frozen dataclasses of numbers; ``str`` writes them as :func:`parse_schedule` reads them. Each
    is monotonic, so its extremes are at its ends.
    """

    def __call__(self, step: float) -> float:
        """Return the value at a step."""
        raise NotImplementedError

    def over(self, total_steps: float) -> Schedule:
        """Return the same schedule over all training steps, unless it sets its own number of steps."""
        return self

    @property
    def ends(self) -> tuple[float, float]:
        """Values at the first step and in the limit."""
        schedule = self.over(1)
        return schedule(0), schedule(math.inf)

    def __str__(self) -> str:
        numbers: Any = dataclasses.astuple(self)  # type: ignore[call-overload]
        defaults = [field.default for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        written = [
            f"{number:g}" if float(f"{number:g}") == number else repr(float(number))
            for number, default in zip(numbers, defaults, strict=True)
            if number != default
        ]
        return f"{type(self).__name__}({', '.join(written)})"


AnySchedule = str | float | Schedule | Callable[[float], float]
"""A schedule, or an argument of :func:`parse_schedule`: a number, text such as "linear(1, 10)", or a function."""


@dataclass(frozen=True)
class constant(Schedule):
    """Constant schedule, ``v(t) = value``.

    Example:
        >>> constant(2.0)(100), str(constant(2.0))
        (2.0, '2')
    """

    value: float

    def __post_init__(self) -> None:
        _finite(value=self.value)

    def __call__(self, step: float) -> float:
        return self.value

    def __str__(self) -> str:
        return super().__str__().removeprefix("constant(").removesuffix(")")


@dataclass(frozen=True)
class _Transition(Schedule):
    """Transition from one value to another in a number of steps, by default all training steps."""

    start: float
    end: float
    steps: float | None = None

    def __post_init__(self) -> None:
        _finite(start=self.start, end=self.end)
        if self.steps is not None:
            _greater_than_zero(steps=self.steps)

    def over(self, total_steps: float) -> Schedule:
        """Return the same transition, over all training steps if it has no number of steps."""
        return self if self.steps is not None else dataclasses.replace(self, steps=float(total_steps))

    def fraction(self, step: float) -> float:
        """Return the fraction of the transition that is complete."""
        if self.steps is None:
            raise InputError(
                f"{self} has no number of steps", hint="call over(total_steps) first, or give a third number"
            )
        return min(max(step / self.steps, 0.0), 1.0)


class linear(_Transition):
    """Linear schedule, ``v(t) = start + (end - start) min(t / steps, 1)``.

    ``steps`` is by default the number of all training steps.

    Example:
        >>> [linear(0, 1, 4)(step) for step in (0, 1, 4, 9)]
        [0.0, 0.25, 1.0, 1.0]
        >>> linear(1, 10).over(90)(45), str(linear(1, 10))
        (5.5, 'linear(1, 10)')
    """

    def __call__(self, step: float) -> float:
        # A weighted mean reaches the end exactly; start + (end - start) can miss it by rounding.
        return self.start * (1 - self.fraction(step)) + self.end * self.fraction(step)


class exponential(_Transition):
    """Exponential schedule, ``v(t) = start^(1 - f) end^f`` with ``f = min(t / steps, 1)``; start and end are above 0.

    ``steps`` is by default the number of all training steps.

    Example:
        >>> [round(exponential(1, 100, 2)(step), 6) for step in (0, 1, 2, 3)]
        [1.0, 10.0, 100.0, 100.0]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _greater_than_zero(start=self.start, end=self.end)

    def __call__(self, step: float) -> float:
        return self.start ** (1 - self.fraction(step)) * self.end ** self.fraction(step)


@dataclass(frozen=True)
class inverse_sigmoid(Schedule):
    """Decay of scheduled sampling, ``v(t) = k / (k + exp(t / k))`` with t = step / unit; k and unit are above 0.

    It is one half at ``t = k ln k``, starts near 1 for large k, and tends to 0. Set the unit to 1 to decay by steps, or
    to the steps per epoch to decay by epochs.

    Source: Bengio et al. 2015, Scheduled Sampling, section 2.4 (there k >= 1).

    Example:
        >>> [round(inverse_sigmoid(10)(step), 3) for step in (0, 10 * math.log(10), 1e9)]
        [0.909, 0.5, 0.0]
    """

    k: float
    unit: float = 1.0

    def __post_init__(self) -> None:
        _greater_than_zero(k=self.k, unit=self.unit)

    def __call__(self, step: float) -> float:
        # exp overflows above 709; at 700 the value is already below 1e-300 k.
        return self.k / (self.k + math.exp(min(step / self.unit / self.k, 700.0)))


@dataclass(frozen=True)
class Function(Schedule):
    """Schedule given by a function of the step, checked against a range at each step."""

    function: Callable[[float], float]
    range: Range | None = None
    name: str = "the schedule"

    def __call__(self, step: float) -> float:
        value = float(self.function(step))  # a number of NumPy cannot be written as JSON
        if self.range is not None and not self.range.lowest <= value <= self.range.highest:
            raise InputError(f"{self.name} must stay {self.range.text}, but is {value:g} at step {step:g}")
        return value

    @property
    def ends(self) -> tuple[float, float]:
        """The value at the first step, twice, as the limit is unknown."""
        return self(0), self(0)

    def __str__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))


_NAMED: dict[str, type[Any]] = {named.__name__: named for named in (constant, linear, exponential, inverse_sigmoid)}


def parse_schedule(schedule: AnySchedule) -> Schedule:
    """Make a schedule from a number, a function of the step, or text such as ``linear(1, 10)``.

    Text is a name with its numbers: ``constant(v)``, ``linear(start, end)``, ``exponential(start, end)``,
    ``inverse_sigmoid(k)`` or ``inverse_sigmoid(k, unit)``. An optional third number of linear and exponential is the
    number of steps, by default all training steps (:meth:`Schedule.over`).

    Raises:
        InputError: the text is not a schedule, the name is unknown or the numbers do not fit.

    Example:
        >>> parse_schedule("linear(1, 10)").over(90)(45)
        5.5
        >>> parse_schedule("0.5")(45), parse_schedule(lambda step: step / 9)(45)
        (0.5, 5.0)
    """
    if isinstance(schedule, Schedule):
        return schedule
    if callable(schedule):
        return Function(schedule)
    if not isinstance(schedule, str):
        try:
            return constant(float(schedule))
        except (TypeError, ValueError):  # such as a list, or None from an empty YAML value
            hint = "write a number or, for example, linear(1, 10)"
            raise InputError(f"{shown(schedule)} is not a schedule", hint=hint) from None
    number = _number(schedule)
    if number is not None:
        return constant(number)
    match = _CALL.fullmatch(schedule)
    if match is None:
        raise InputError(f"{schedule!r} is not a schedule", hint="write a number or, for example, linear(1, 10)")
    name, text = match.groups()
    if name not in _NAMED:
        raise InputError(f"unknown schedule {name!r} in {schedule!r}", hint=did_you_mean(name, _NAMED))
    numbers = [_number(part) for part in text.split(",")] if text.strip() else []
    if any(value is None for value in numbers):
        raise InputError(f"{schedule!r} holds something that is not a number", hint="separate numbers with commas")
    fields = dataclasses.fields(_NAMED[name])
    required = sum(field.default is dataclasses.MISSING for field in fields)
    if not required <= len(numbers) <= len(fields):
        parameters = ", ".join(field.name for field in fields)
        raise InputError(f"{schedule!r} has {len(numbers)} numbers", hint=f"write {name}({parameters})")
    made: Schedule = _NAMED[name](*numbers)
    return made


@dataclass(frozen=True)
class Range:
    """Annotation of a schedule setting: the range of its values, ends included.

    Example:
        >>> Range(0, 1, "between 0 and 1").checked("linear(1, -1)")
        Traceback (most recent call last):
        ...
        seqwise.configuration.config.WrongValue: it must stay between 0 and 1, but 'linear(1, -1)' reaches -1
    """

    lowest: float
    highest: float
    text: str

    def checked(self, schedule: AnySchedule, name: str = "it") -> Schedule:
        """Return a schedule that stays within the range; a function is checked at each step."""
        try:
            parsed = parse_schedule(schedule)
        except InputError as error:
            raise WrongValue("{name}: " + error.problem, hint=error.hint) from None
        if isinstance(parsed, Function):
            parsed = Function(parsed.function, self, name)
        for value in parsed.ends:
            if not self.lowest <= value <= self.highest:
                raise WrongValue(f"{{name}} must stay {self.text}, but {str(schedule)!r} reaches {value:g}")
        return parsed

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.with_info_plain_validator_function(
            lambda value, info: self.checked(value, info.field_name or "it")
        )


# Still smaller values would underflow to 0 in the models' float32.
Alpha = Annotated[Schedule, Range(1e-30, math.inf, "greater than 0")]
"""Setting that is a schedule of inverse temperatures."""

Probability = Annotated[Schedule, Range(0.0, 1.0, "between 0 and 1")]
"""Setting that is a schedule of probabilities."""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _finite(**values: float) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise InputError(f"{name} of a schedule must be finite, got {value}")


def _greater_than_zero(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} of a schedule must be greater than 0 and finite, got {value}")
