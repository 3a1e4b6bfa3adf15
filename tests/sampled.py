"""Samples of all problems at once, and the report on them, where a test needs no blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqwise.runs.run import MaskedRun
from seqwise.runs.sampling import Sampled, sample_in_blocks
from seqwise.runs.sampling_problems import Problem
from seqwise.runs.sampling_report import SampleReport
from seqwise.runs.sampling_settings import SampleSettings


def sample(run: MaskedRun, problems: Sequence[Problem], settings: SampleSettings, **options: Any) -> Sampled:
    blocks = list(sample_in_blocks(run, problems, settings, **options))
    samples, lines, groups = (
        [item for block in blocks for item in getattr(block, name)] for name in ("samples", "lines", "groups")
    )
    return Sampled(samples, lines, groups)


def report_lines(sampled: Sampled, settings: SampleSettings) -> list[str]:
    report = SampleReport(settings)
    report.add(sampled.groups)
    return report.lines()
