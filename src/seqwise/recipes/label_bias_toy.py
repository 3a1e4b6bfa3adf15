"""Label bias where everything is known: a label that only the next input decides, with its two ceilings.

Ten input symbols; ``y_i = 2 x_i + [x_{i+1} >= 5]``, the bit flipped with probability 0.1. A left-to-right model cannot
know the bit when it writes y_i. Under local normalisation it may then only split the mass, and nothing it reads later
takes mass back; under global normalisation the next step's score can.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from seqwise.data.synthetic import label_bias_toy, toy_ceilings
from seqwise.evaluation.metrics import token_accuracy
from seqwise.evaluation.report import sha256_of_examples, sign
from seqwise.recipes.outcome import Measure, Outcome, build_outcome
from seqwise.recipes.systems import Data, ProgressFactory, System, run_systems
from seqwise.runs.settings import Settings

__all__ = ["reproduce"]

LENGTH, FLIP = 10, 0.1


def load_data(seed: int) -> Data:
    """20,000 training and 2,000 test sequences."""
    generator = torch.Generator().manual_seed(seed)
    make = partial(label_bias_toy, length=LENGTH, flip=FLIP, generator=generator)
    return Data(train=make(20_000), test=make(2_000))


def systems(seed: int) -> list[System]:
    """Cross-entropy, and the relaxed beam from it with local and with global scores."""
    cross_entropy = Settings(
        task="tag", encoder="left-to-right", minimum_count=1, embedding_size=32, hidden_size=64, dropout=0.0,
        objective="cross-entropy", epochs=1.3, learning_rate=3e-3, seed=seed, save_every=200,
    )  # fmt: skip
    local = Settings(**{
        **vars(cross_entropy), "objective": "relaxed-beam", "score": "local", "alpha": "exponential(0.5, 3)",
        "cross_entropy_weight": 0.0, "epochs": 1.6, "learning_rate": 2e-3,
    })  # fmt: skip
    global_ = Settings(**{**vars(local), "score": "global"})
    return [
        System("cross-entropy", "cross-entropy", cross_entropy),
        System("relaxed beam, local", "relaxed-local", local, starts_from="cross-entropy"),
        System("relaxed beam, global", "relaxed-global", global_, starts_from="cross-entropy"),
    ]


def reproduce(folder: Path, *, seed: int, progress: ProgressFactory) -> list[Outcome]:
    """Train the three systems and set them beside the ceilings."""
    data = load_data(seed)
    cells = run_systems(systems(seed), partial(load_data, seed), folder, progress=progress)
    references = [example.target for example in data.test]
    measure = Measure("labels right", lambda outputs: token_accuracy(outputs, references))
    without, with_look_ahead = (100 * ceiling if ceiling <= 1 else ceiling for ceiling in toy_ceilings(LENGTH, FLIP))
    # Each as it was trained to be searched.
    best = {
        key: 100 * measure.count(cells[key].outputs[decoder]).value
        for key, decoder in (("relaxed-local", "beam"), ("relaxed-global", "raw-beam"))
    }
    lesson = (
        f"Ceilings: {without:.0f}% for a model that must commit before it sees the next input, {with_look_ahead:.0f}% "
        f"with look-ahead. Trained through the same search, local scores reach {best['relaxed-local']:.0f}% and global "
        f"scores {best['relaxed-global']:.0f}%: normalising every step is what kept the beam from changing its mind."
    )
    signature = sign("label-bias-toy: relaxed beam, k=5", seeds=[seed], data=sha256_of_examples(data.test))
    title = "Label bias, in the open: percent of labels right"
    return [build_outcome("label-bias-toy", title, cells, [measure], signature=signature, lesson=lesson, files={})]
