"""The toy on which label bias is all there is: global scores get past the ceiling that holds for local ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from seqwise.cli import app


@pytest.mark.parametrize("seed", [0, 1])
def test_global_scores_pass_the_ceiling_of_local_ones(seed: int, tmp_path: Path) -> None:
    flags = ["--json", "--seed", str(seed), "--output", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    result = CliRunner().invoke(app, ["reproduce", "label-bias-toy", *flags])
    assert result.exit_code == 0, result.output
    table = json.loads(result.stdout)
    found = {(one["system"], one["measure"]): one["value"] for one in table["results"]}
    right = "raw beam: labels right"
    assert found["relaxed beam, global", right] >= 85
    for decoder in ("greedy", "beam", "raw beam", "soft beam"):
        assert found["relaxed beam, local", f"{decoder}: labels right"] < 57
    # Whoever has to commit to a label before the next input comes gets 55% in expectation, and cross-entropy no more.
    assert found["cross-entropy", "greedy: labels right"] < 57
