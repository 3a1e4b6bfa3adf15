"""The benchmark of beams in a catalogue: both systems find the same items."""

from __future__ import annotations

from pathlib import Path

from benchmarks import constrained_decoding


def test_both_find_the_same_items(tmp_path: Path) -> None:
    sizes = {"rounds": 1, "batch": 2, "items": 40, "length": 3, "k": 4, "vocabulary": 90, "hidden": 16, "layers": 1}
    flags = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    result = constrained_decoding.main([*flags, "--output", str(tmp_path / "found.json")])
    assert result["same_best"] == result["same_items"] == 1
    assert result["against_generate"] > 0
    assert "seqwise against generate" in constrained_decoding.table(result)
