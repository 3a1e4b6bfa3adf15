"""Label bias on toy data: labels that only the next input decides, with two known ceilings.

Ten input symbols; ``y_i = 2 x_i + [x_{i+1} >= 5]``, the bit flipped with probability 0.1, and ``y_T = 2 x_T``. A
left-to-right model cannot know the bit when it writes y_i. Under local normalisation, it can hardly do better than
split the mass, which later inputs cannot change; under global normalisation, the next score can.
"""

from __future__ import annotations

from functools import partial

import torch

from reproductions import Setup
from reproductions.outcome import Measure, Outcome, build_outcome
from reproductions.systems import Data, System, run_systems
from seqwise.data.synthetic import label_bias_toy
from seqwise.evaluation.metrics import token_accuracy
from seqwise.runs.settings import train_settings

LENGTH, FLIP = 10, 0.1


def load_data(seed: int) -> Data:
    """Make 20,000 training and 2,000 test sequences."""
    generator = torch.Generator().manual_seed(seed)
    make = partial(label_bias_toy, length=LENGTH, flip=FLIP, generator=generator)
    return Data(train=make(20_000), test=make(2_000))


def toy_ceilings(length: int, flip: float) -> tuple[float, float]:
    """Return the best expected token accuracy on `label_bias_toy`, in percent: without look-ahead, and with it.

    x_t is known, so only the bit can be wrong. At the T - 1 positions before the last, a model that must commit to y_t
    after x_1 .. x_t knows nothing of the bit: x_{t+1} is uniform and independent of x_1 .. x_t and of the labels so far
    (those depend on x_1 .. x_t and on independent flips), so the bit is 0 or 1 with probability 1/2, flipped or not.
    A model that may wait for x_{t+1} predicts [x_{t+1} >= 5] and errs only where it was flipped. The last bit is always
    0, which both know. Hence

        without = 100 ((T - 1) / 2 + 1) / T,    with = 100 ((T - 1) (1 - flip) + 1) / T.
    """
    without_look_ahead = 100 * ((length - 1) / 2 + 1) / length
    with_look_ahead = 100 * ((length - 1) * (1 - flip) + 1) / length
    return without_look_ahead, with_look_ahead


def systems(seed: int) -> list[System]:
    """Return cross-entropy, and the relaxed beam from it with local and with global scores."""
    cross_entropy = train_settings(
        task="tag", encoder="left-to-right", minimum_count=1, embedding_size=32, hidden_size=64, dropout=0.0,
        objective="cross-entropy", epochs=1.3, learning_rate=3e-3, seed=seed, save_every=200,
    )  # fmt: skip
    # With a large alpha from the start, some labels, different for each seed, would stay undecided.
    local = cross_entropy.with_changes(
        objective="relaxed-beam", score="local", alpha="exponential(0.1, 3)", cross_entropy_weight=0.0, epochs=2.6,
        learning_rate=2e-3,
    )  # fmt: skip
    global_ = local.with_changes(score="global")
    return [
        System("cross-entropy", "cross-entropy", cross_entropy),
        System("relaxed beam, local", "relaxed-local", local, starts_from="cross-entropy"),
        System("relaxed beam, global", "relaxed-global", global_, starts_from="cross-entropy"),
    ]


def reproduce(setup: Setup) -> list[Outcome]:
    """Train the three systems and compare them with the ceilings."""
    data = load_data(setup.seed)
    cells = run_systems(systems(setup.seed), partial(load_data, setup.seed), setup.folder, progress=setup.progress)
    references = [example.target for example in data.test]
    measure = Measure("accuracy", lambda outputs: token_accuracy(outputs, references))
    without, with_look_ahead = toy_ceilings(LENGTH, FLIP)
    best = {
        key: 100 * measure.count(cells[key].outputs[decoder]).value
        for key, decoder in (("relaxed-local", "beam"), ("relaxed-global", "raw-beam"), ("cross-entropy", "raw-beam"))
    }
    lesson = (
        f"Ceilings: {without:.0f}% for a model that commits to a label before seeing the next input, "
        f"{with_look_ahead:.0f}% with look-ahead. Trained through the search, local scores stay at the first "
        f"({best['relaxed-local']:.0f}%), global scores come near the second ({best['relaxed-global']:.0f}%). Even "
        f"plain cross-entropy gets {best['cross-entropy']:.0f}% when it is searched with raw scores."
    )
    title = "Label bias, in the open: accuracy, %"
    return [build_outcome("label-bias-toy", title, cells, [measure], lesson=lesson, files={})]
