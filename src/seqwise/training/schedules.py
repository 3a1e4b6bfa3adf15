"""What changes while a model trains: alpha, a mixing probability, a temperature, each a function of the step."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable

from seqwise.errors import InputError
from seqwise.training.configuration import did_you_mean

__all__ = [
    "RANGES",
    "AnySchedule",
    "Schedule",
    "constant",
    "exponential",
    "inverse_sigmoid",
    "linear",
    "parse_schedule",
    "schedule_in_range",
]

Schedule = Callable[[float], float]
"""A value as a function of the number of optimiser steps taken so far (0 at the first step)."""

AnySchedule = str | float | Schedule
"""A schedule, or what :func:`parse_schedule` makes one of: a number, or text such as "linear(1, 10)"."""

RANGES: dict[str, tuple[float, float, str]] = {
    # What is smaller than this is 0 in the models' float32.
    "alpha": (1e-30, math.inf, "greater than 0"),
    "gold_probability": (0.0, 1.0, "between 0 and 1"),
}
"""The schedules that objectives ask for by name, and where they must stay."""

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\(([^()]*)\)\s*")


def constant(value: float) -> Schedule:
    """The same value at every step, ``v(t) = value``.

    Args:
        value: any finite number.

    Returns:
        the schedule.

    Raises:
        InputError: the value is not finite.

    Example:
        >>> constant(2.0)(100)
        2.0
    """
    _finite(value=value)
    return lambda step: value


def linear(start: float, end: float, steps: float) -> Schedule:
    """From start to end in equal differences, ``v(t) = start + (end - start) min(t / steps, 1)``.

    Args:
        start: the value at step 0.
        end: the value at step ``steps`` and after it.
        steps: how many steps the way takes, greater than 0.

    Returns:
        the schedule.

    Raises:
        InputError: a number is not finite, or steps is not greater than 0.

    Example:
        >>> [linear(0, 1, 4)(step) for step in (0, 1, 4, 9)]
        [0.0, 0.25, 1.0, 1.0]
    """
    _finite(start=start, end=end)
    _greater_than_zero(steps=steps)
    # Both ends weighted, so that the end is met exactly: start + (end - start) can miss it by rounding.
    return lambda step: start * (1 - _fraction(step, steps)) + end * _fraction(step, steps)


def exponential(start: float, end: float, steps: float) -> Schedule:
    """From start to end in equal ratios, ``v(t) = start^(1 - f) end^f`` with ``f = min(t / steps, 1)``.

    Args:
        start: the value at step 0, greater than 0.
        end: the value at step ``steps`` and after it, greater than 0.
        steps: how many steps the way takes, greater than 0.

    Returns:
        the schedule.

    Raises:
        InputError: a number is not finite or not greater than 0.

    Example:
        >>> [round(exponential(1, 100, 2)(step), 6) for step in (0, 1, 2, 3)]
        [1.0, 10.0, 100.0, 100.0]
    """
    _finite(start=start, end=end)
    _greater_than_zero(start=start, end=end, steps=steps)
    return lambda step: start ** (1 - _fraction(step, steps)) * end ** _fraction(step, steps)


def inverse_sigmoid(k: float, unit: float = 1.0) -> Schedule:
    """The decay of scheduled sampling, ``v(t) = k / (k + exp(t / k))`` with t = step / unit.

    Args:
        k: how slowly it falls, greater than 0; it passes one half at ``t = k ln k``.
        unit: steps to one unit of t, greater than 0: 1 to decay by steps, the steps of an epoch to decay by epochs.

    Returns:
        the schedule: near 1 at first for large k, 0 in the end.

    Raises:
        InputError: k or the unit is not finite or not greater than 0.

    Example:
        >>> [round(inverse_sigmoid(10)(step), 3) for step in (0, 10 * math.log(10), 1e9)]
        [0.909, 0.5, 0.0]

    Source: Bengio et al. 2015, Scheduled Sampling, section 2.4 (there k >= 1).
    """
    _greater_than_zero(k=k, unit=unit)
    # exp overflows above 709; at 700 the value is already below 1e-300 k.
    return lambda step: k / (k + math.exp(min(step / unit / k, 700.0)))


def parse_schedule(schedule: AnySchedule, *, total_steps: float) -> Schedule:
    """Make a schedule from a number, or from text such as ``linear(1, 10)``; a function of the step is one already.

    Args:
        schedule: a number (constant), or a name with its numbers: ``constant(v)``, ``linear(start, end)``,
            ``exponential(start, end)``, ``inverse_sigmoid(k)`` or ``inverse_sigmoid(k, unit)``. A third number for
            linear and exponential is the number of steps. Or a function of the step.
        total_steps: the steps of the whole training, which linear and exponential take when none are given.

    Returns:
        the schedule.

    Raises:
        InputError: the text is no schedule, the name is unknown or the numbers do not fit.

    Example:
        >>> parse_schedule("linear(1, 10)", total_steps=90)(45)
        5.5
        >>> parse_schedule("0.5", total_steps=90)(45), parse_schedule(lambda step: step / 9, total_steps=90)(45)
        (0.5, 5.0)
    """
    if callable(schedule):
        return schedule
    if not isinstance(schedule, str):
        return constant(float(schedule))
    number = _number(schedule)
    if number is not None:
        return constant(number)
    known: dict[str, Callable[..., Schedule]] = {
        f.__name__: f for f in (constant, linear, exponential, inverse_sigmoid)
    }
    match = _CALL.fullmatch(schedule)
    if match is None:
        raise InputError(f"{schedule!r} is not a schedule", mend="write a number or, for example, linear(1, 10)")
    name, text = match.groups()
    if name not in known:
        raise InputError(f"unknown schedule {name!r} in {schedule!r}", mend=did_you_mean(name, known))
    numbers = [_number(part) for part in text.split(",")] if text.strip() else []
    if any(value is None for value in numbers):
        raise InputError(f"{schedule!r} holds something that is not a number", mend="separate numbers with commas")
    signature = inspect.signature(known[name]).parameters.values()
    parameters = [parameter.name for parameter in signature]
    required = sum(parameter.default is parameter.empty for parameter in signature)
    if parameters[-1] == "steps" and len(numbers) == len(parameters) - 1:
        numbers.append(float(total_steps))
    if not required <= len(numbers) <= len(parameters):
        raise InputError(f"{schedule!r} has {len(numbers)} numbers", mend=f"write {name}({', '.join(parameters)})")
    return known[name](*numbers)


def schedule_in_range(name: str, schedule: AnySchedule, *, total_steps: float) -> Schedule:
    """A schedule of :data:`RANGES` that never leaves its range; a function is held to it step by step.

    Args:
        name: "alpha" or "gold_probability".
        schedule, total_steps: as of :func:`parse_schedule`.

    Returns:
        the schedule.

    Raises:
        InputError: names it, and what is wrong with it.

    Example:
        >>> schedule_in_range("gold_probability", "linear(1, -1)", total_steps=10)
        Traceback (most recent call last):
        ...
        seqwise.errors.InputError: gold_probability must stay between 0 and 1, but 'linear(1, -1)' reaches -1
    """
    try:
        found = parse_schedule(schedule, total_steps=total_steps)
    except InputError as error:
        raise InputError(f"{name}: {error.problem}", mend=error.mend) from None
    lowest, highest, wanted = RANGES[name]

    def checked(step: float) -> float:
        value = found(step)
        if not lowest <= value <= highest:
            reached = f"is {value:g} at step {step:g}" if callable(schedule) else f"{schedule!r} reaches {value:g}"
            raise InputError(f"{name} must stay {wanted}, but {reached}")
        return value

    checked(0)
    if callable(schedule):
        return checked
    # Every schedule that is written goes one way, so its two ends are its extremes.
    checked(math.inf)
    return found


def _fraction(step: float, steps: float) -> float:
    return min(max(step / steps, 0.0), 1.0)


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
