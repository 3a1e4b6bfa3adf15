"""Statistics of log Z over a data set, by position and by length, against NumPy; and from a model's own batch."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from oracles import translation_case
from seqwise import InputError
from seqwise.evaluation import log_partition_report
from seqwise.evaluation.log_partitions import LogPartitionSummary, summarize_log_partitions
from seqwise.objectives import log_partitions


def by_numpy(values: list[float]) -> tuple[float, ...]:
    array = np.array(values)
    mean = array.mean()
    spread = np.abs(array - mean).mean()
    return len(array), mean, array.var(), np.abs(array).mean(), spread, array.min(), array.max()


def outputs(seed: int, count: int) -> list[list[float]]:
    draw = np.random.default_rng(seed)
    return [draw.normal(1, 3, int(draw.integers(0, 7))).tolist() for _ in range(count)]


def equal(found: LogPartitionSummary, values: list[float]) -> bool:
    return dataclasses.astuple(found) == pytest.approx(by_numpy(values))


def test_every_number_equals_numpy() -> None:
    rows = outputs(0, 30)
    found = log_partition_report([torch.tensor(row, dtype=torch.float64) for row in rows], edges=(2, 5))
    assert equal(found.overall, [value for row in rows for value in row])
    assert len(found.by_position) == max(map(len, rows))
    for place, summary in enumerate(found.by_position):
        assert equal(summary, [row[place] for row in rows if len(row) > place])
    expected = {
        "1": [value for row in rows if len(row) < 2 for value in row],
        "2-4": [value for row in rows if 2 <= len(row) < 5 for value in row],
        "5-6": [value for row in rows if len(row) >= 5 for value in row],
    }
    assert list(found.by_length) == list(expected)
    assert all(equal(found.by_length[name], values) for name, values in expected.items())
    assert sum(summary.count for summary in found.by_position) == found.overall.count


def test_the_definitions_on_a_case_by_hand() -> None:
    found = summarize_log_partitions(torch.tensor([[-1.0, 3.0], [4.0, -2.0]]))
    assert found == LogPartitionSummary(4, 1.0, 6.5, 2.5, 2.5, -2.0, 4.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.mean = 0.0


def test_a_constant_off_all_scores_leaves_the_deviation_only() -> None:
    values = torch.tensor([2.0, 2.5, 3.0, 4.5])
    found = summarize_log_partitions(values)
    assert summarize_log_partitions(values - found.mean).mean_absolute == pytest.approx(found.mean_absolute_deviation)


def test_a_batch_of_a_model_is_split_into_its_outputs() -> None:
    case = translation_case(0)
    lengths = [len(example.target_ids) for example in case.examples]
    parts = log_partitions(case.model, case.batch).split(case.batch.target_lengths_B.tolist())
    assert [len(part) for part in parts] == lengths
    found = log_partition_report(parts)
    assert found.overall.count == sum(lengths)
    assert found.by_position[0].count == len(lengths)
    logits = case.model.head(case.model.teacher_forced(case.model.encode(case.batch), case.batch.targets_BT))
    second = [math.log(sum(math.exp(score) for score in row[1].tolist())) for row in logits.detach()]
    expected = [value for value, length in zip(second, lengths, strict=True) if length > 1]
    assert found.by_position[1].mean == pytest.approx(np.mean(expected))


def test_bad_input_is_refused() -> None:
    for nothing in ([], [torch.zeros(0)]):
        with pytest.raises(InputError, match="no position"):
            log_partition_report(nothing)
    with pytest.raises(InputError, match="no position"):
        summarize_log_partitions(torch.zeros(0, 3))
    with pytest.raises(InputError, match="output 1 has shape"):
        log_partition_report([torch.zeros(2), torch.zeros(2, 2)])
    with pytest.raises(InputError, match="edges"):
        log_partition_report([torch.zeros(2)], edges=(3, 3))
