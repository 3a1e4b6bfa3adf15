"""Schedules: the ends are met exactly, the middle follows the equation, and bad text names its hint."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqwise.errors import InputError
from seqwise.schedules import Function, Range, Schedule, constant, exponential, inverse_sigmoid, linear, parse_schedule

positive = st.floats(1e-6, 1e6)


@given(positive, positive, st.integers(1, 10**6))
def test_both_ends_are_met_and_kept(start: float, end: float, steps: int) -> None:
    for schedule in (linear(start, end, steps), exponential(start, end, steps)):
        assert schedule(0) == start
        assert schedule(steps) == end
        assert schedule(steps * 3) == end


@given(positive, positive)
def test_the_middle_is_the_mean(start: float, end: float) -> None:
    assert linear(start, end, 2)(1) == pytest.approx((start + end) / 2)
    assert exponential(start, end, 2)(1) == pytest.approx(math.sqrt(start * end))


def test_inverse_sigmoid_falls_through_one_half_and_never_overflows() -> None:
    schedule = inverse_sigmoid(20.0)
    values = [schedule(step) for step in range(0, 400, 10)]
    assert values == sorted(values, reverse=True)
    assert schedule(0) == 20 / 21
    assert schedule(20 * math.log(20)) == pytest.approx(0.5)
    assert 0 <= schedule(1e12) < 1e-100


@pytest.mark.parametrize(
    ("text", "step", "value"),
    [
        (0.25, 7, 0.25),
        (3, 7, 3.0),
        ("1e-4", 7, 1e-4),
        ("constant(2)", 7, 2.0),
        ("linear(1, 10)", 50, 5.5),
        (" linear ( 1 ,10 ) ", 50, 5.5),
        ("linear(0, 1, 10)", 5, 0.5),
        ("exponential(1, 100)", 50, 10.0),
        ("inverse_sigmoid(10)", 0, 10 / 11),
    ],
)
def test_text_becomes_the_schedule(text: str | float, step: float, value: float) -> None:
    assert parse_schedule(text).over(100)(step) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("liner(1, 2)", "did you mean 'linear'?"),
        ("linear(1)", "write linear(start, end, steps)"),
        ("linear(1, 2, 3, 4)", "4 numbers"),
        ("linear(1; 2)", "not a number"),
        ("linear(1, )", "not a number"),
        ("linear 1 2", "not a schedule"),
        ("linear(1, 2", "not a schedule"),
        ("", "not a schedule"),
        ("nan", "finite"),
        ("inf", "finite"),
        ("constant()", "0 numbers"),
        ("exponential(0, 1)", "start of a schedule must be greater than 0"),
        ("exponential(1, -1)", "end of a schedule must be greater than 0"),
        ("inverse_sigmoid(0)", "k of a schedule must be greater than 0"),
        ("linear(1, 2, 0)", "steps of a schedule must be greater than 0"),
    ],
)
def test_bad_text_is_refused_with_its_hint(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_schedule(text)
    assert said in str(error.value)


@pytest.mark.parametrize("value", [None, [1, 4], {"start": 1}])  # as a YAML file has them
def test_what_is_neither_number_nor_text_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="is not a schedule; write a number or"):
        parse_schedule(value)


def test_not_finite_numbers_are_refused() -> None:
    for make in (lambda: constant(math.nan), lambda: linear(0, math.inf, 3), lambda: exponential(1, 2, math.nan)):
        with pytest.raises(InputError):
            make()


PROBABILITY, ALPHA = Range(0, 1, "between 0 and 1"), Range(1e-30, math.inf, "greater than 0")


def test_a_function_is_a_schedule_and_is_held_to_its_range_step_by_step() -> None:
    assert parse_schedule(lambda step: step**2)(3) == 9
    schedule = PROBABILITY.checked(lambda step: 1 - step / 4, "gold_probability")
    assert [schedule(step) for step in (0, 2, 4)] == [1.0, 0.5, 0.0]
    assert schedule.over(9) is schedule
    with pytest.raises(InputError, match=r"gold_probability must stay between 0 and 1, but is -0\.25 at step 5"):
        schedule(5)
    with pytest.raises(InputError, match="alpha must stay greater than 0, but is 0 at step 0"):
        ALPHA.checked(lambda step: step, "alpha")


@pytest.mark.parametrize(
    "schedule",
    [constant(0.1), constant(2), linear(1, 0), linear(1 / 3, 1e-7, 10), exponential(1, 8), inverse_sigmoid(10.5),
     inverse_sigmoid(3, 7)],
)  # fmt: skip
def test_what_is_written_is_read_back_equal(schedule: Schedule) -> None:
    assert parse_schedule(str(schedule)) == schedule
    assert hash(parse_schedule(str(schedule))) == hash(schedule)
    assert schedule.over(7)(7) == parse_schedule(str(schedule)).over(7)(7)


def test_a_schedule_over_the_whole_training_asks_for_its_length() -> None:
    with pytest.raises(InputError, match=r"linear\(1, 2\) has no number of steps; call over"):
        linear(1, 2)(3)
    assert linear(1, 2, 4).over(100) == linear(1, 2, 4)
    assert linear(1, 2) != exponential(1, 2) and isinstance(parse_schedule(math.sqrt), Function)


def test_a_function_may_return_a_number_of_numpy() -> None:
    assert type(parse_schedule(lambda step: np.float32(step))(2)) is float
