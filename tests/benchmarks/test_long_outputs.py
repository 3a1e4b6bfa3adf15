"""Which lengths of the benchmark of gradient checkpointing have targets."""

from __future__ import annotations

from benchmarks.long_outputs import ratios


def test_each_length_has_the_target_of_its_size() -> None:
    rows = [
        {"steps": steps, "saved": [100, share], "seconds": [1.0, 2.0]}
        for steps, share in ((64, 90), (128, 20), (1024, 20))
    ]
    found = ratios({"models": [{"size": {"layers": 2, "hidden": 64}, "rows": rows}]})
    memory = {ratio.label: ratio.most for ratio in found if ratio.label.endswith("memory")}
    assert memory == {
        "gradient checkpointing, 2 layers of 64, T = 128: memory": 0.25,
        "gradient checkpointing, 2 layers of 64, T = 1024: memory": 0.125,
    }
