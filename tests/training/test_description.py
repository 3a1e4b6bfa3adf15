"""Descriptions of functions: equal in every process, and different for functions that compute something else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from seqwise.objectives import Hinge, RelaxedBeam, cross_entropy_objective
from seqwise.objectives.objective import mixed_objective
from seqwise.training.description import describe


@dataclass(frozen=True)
class Weighted:
    weight: Any

    def __call__(self, *given: Any) -> Any:
        return self.weight

    def loss(self, *given: Any) -> Any:
        return self.weight


def weighted(weight: Any) -> Callable[..., Any]:
    return lambda *given: weight


def with_default(weight: Any) -> Callable[..., Any]:
    def loss(*given: Any, weight: Any = weight) -> Any:
        return weight

    return loss


def mixed(weight: float) -> Any:
    return mixed_objective([cross_entropy_objective(), cross_entropy_objective(label_smoothing=0.1)], [1.0, weight])


@pytest.mark.parametrize(
    "make",
    [
        weighted,
        with_default,
        Weighted,
        mixed,
        lambda weight: Weighted(weight).loss,
        lambda weight: partial(max, weight),
        lambda weight: partial(max, key=(weight, weighted(weight))),
        lambda weight: weighted(Weighted(weight)),
        lambda weight: RelaxedBeam(k=weight).build(),
        lambda weight: Hinge(cross_entropy_weight=weight).build(),
    ],
)
def test_functions_made_with_other_values_are_told_apart(make: Callable[[Any], Any]) -> None:
    assert describe(make(2)) == describe(make(2)) != describe(make(3))
    assert "0x" not in describe(make(2))


def test_lambdas_are_told_apart_by_their_code() -> None:
    lambdas = [lambda x: 2 * x, lambda x: 3 * x, lambda x: x.mean(), lambda x: x.sum(), lambda x: x.sum(dim=1)]
    assert len({describe(one) for one in lambdas}) == len(lambdas)


def test_what_changes_in_training_and_what_is_not_plain_is_left_out() -> None:
    calls, seen = 0, list[int]()

    def counting() -> None:
        nonlocal calls
        calls += 1
        seen.append(calls)

    before = describe(counting)
    counting()
    assert describe(counting) == before and "builtins.list" in before
    assert describe(weighted(torch.zeros(2))) == describe(weighted(torch.ones(3)))
    assert describe(weighted(np.float64(0.5))) == describe(weighted(0.5))


def test_a_recursive_function_and_a_long_text_are_described_in_short() -> None:
    def recursive() -> Any:
        return recursive

    assert describe(recursive).endswith("(recursive=...)")
    assert len(describe(weighted("a" * 9999))) < 500
    assert describe(weighted("a" * 9999)) != describe(weighted("a" * 9998))


def test_another_process_gives_the_same_description() -> None:
    code = (
        "from seqwise.objectives import RelaxedBeam; from seqwise.training.description import describe\n"
        "print(describe(RelaxedBeam(k=3).build()))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    found = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    assert found.stdout.strip() == describe(RelaxedBeam(k=3).build())


@dataclass
class Counting:
    calls: int = 0

    def __call__(self, *given: Any) -> Any:
        self.calls += 1


def test_what_an_object_counts_is_not_described() -> None:
    counting = Counting()
    before = describe(counting)
    counting()
    assert describe(counting) == before
