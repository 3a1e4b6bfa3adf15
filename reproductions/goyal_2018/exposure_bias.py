"""The systems of Tables 3.1, 3.2, 4.1 and 4.2: one family for each task, shared by the tables that need it.

All systems of a family start from the same cross-entropy weights and then train for about as long as the longer
cross-entropy, or less; their training seconds are among the results. Longer cross-entropy and a relaxed beam with
global scores are not in the papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from reproductions.systems import System, systems_of
from reproductions.tasks import Family, Task
from reproductions.tuning import with_early_stopping
from seqwise.runs.settings import Settings, train_settings

# Decay is counted in the papers' epochs, of which they trained 50; our shorter training has the same decay.
PAPER_EPOCHS = 50

# Key to name, as in Table 3.1.
FEEDING_ROWS = {
    "sampling-greedy": "scheduled sampling, greedy",
    "sampling-sample": "scheduled sampling, sample",
    "fixed-greedy": "alpha-soft greedy, fixed",
    "fixed-sample": "alpha-soft sample, fixed",
    "annealed-greedy": "alpha-soft greedy, annealed",
    "annealed-sample": "alpha-soft sample, annealed",
}
# Key to name: those of Tables 4.1 and 4.2, the hard-beam hinge of their footnote, and four of our own.
SEARCH_ROWS = {
    "hinge-annealed": "hinge, annealed",
    "hinge-constant": "hinge, alpha = 1",
    "direct-constant": "direct loss, alpha = 1",
    "direct-annealed": "direct loss, annealed",
    "direct-mixed": "direct loss + 0.1 cross-entropy",
    "direct-global": "the same, global, alpha .5 to 4",
    "hard-hinge": "hinge, hard beam",
    "dense-beam": "dense beam loss, global",
    "beam-crf": "beam CRF, global",
}
LARGE_ALPHA = 100
"""Alpha of AAAI 2018, footnote 2, which says "very large"; the search is nearly hard from the first step on."""
DIRECTIONS = {"uni": "left to right", "bi": "both ways"}
"""Directions in which a tagger reads its input."""
DECAYS = {"decay-100": 100.0, "decay-1": 1.0}
"""Decay k by key; k = 10 is the row "fixed-greedy"."""


CONVERGED_EPOCHS = {"longer": 30.0, "feeding": 16.0, "search": 8.0, "likelihood": 8.0}
"""Largest numbers of epochs of the second stages at the scale "converged"."""


@dataclass(frozen=True)
class Plan:
    """Training of the systems of a task."""

    start: Mapping[str, Settings]  # of the cross-entropy stage that all systems start from, by scale
    budget: Mapping[str, float]  # epochs of "longer" cross-entropy and of the other second stages
    label_costs: str = ""  # of the searches, such as "O=2"
    # At the scale "converged": largest numbers of epochs, and evaluations per epoch.
    most: Mapping[str, float] = field(default_factory=lambda: CONVERGED_EPOCHS)
    evaluations: int = 2

    def options_at(self, scale: str, num_examples: int, direction: str = "bi") -> tuple[Settings, dict[str, Any]]:
        """Return the start of a family at a scale, and its other options.

        At the scale "converged", every stage is stopped early on development data.
        """
        start = self.start[scale]
        if direction == "uni":
            start = start.with_changes(encoder="left-to-right")
        assert start.batch_size is not None
        steps_per_epoch = -(-num_examples // start.batch_size)
        options: dict[str, Any] = {"steps_per_epoch": steps_per_epoch, "label_costs": self.label_costs}
        if scale != "converged":
            return start, {**options, "budget": self.budget}
        start = with_early_stopping(start, num_examples, evaluations=self.evaluations)
        return start, {**options, "budget": self.most, "slower": ALIKE, "cross_entropy_weight": 0.0}


SLOWER = {"longer": 2.0, "feeding": 2.0, "search": 6.0, "likelihood": 3.0}
"""Divisors of the start's learning rate for the second stages.

A cost through the search moves weights further than a likelihood does; likelihoods over a beam have the divisor of
:mod:`reproductions.beyond.search_objectives`.
"""

ALIKE = dict.fromkeys(SLOWER, 1.0)
"""The same if learning rates are chosen by :func:`reproductions.tuning.tune`."""


_TAGGER = train_settings(
    task="tag",
    encoder="bidirectional",
    objective="cross-entropy",
    embedding_size=100,
    beam_size=3,
    batch_size=32,
    save_every=500,
)
_ENTITY_TAGGER = _TAGGER.with_changes(
    hidden_size=64, label_embedding_size=8, dropout=0.2, epochs=12.0, learning_rate=6e-3
)
_SUPERTAGGER = _TAGGER.with_changes(
    hidden_size=128, label_embedding_size=64, dropout=0.3, epochs=10.0, learning_rate=4e-3
)
_TRANSLATOR = train_settings(
    task="transduce", objective="cross-entropy", minimum_count=2, embedding_size=96, hidden_size=160, dropout=0.2,
    beam_size=3, batch_size=64, epochs=4.0, learning_rate=3e-3, save_every=500,
)  # fmt: skip
_PAPER_SIZED = _SUPERTAGGER.with_changes(
    embedding_size=512, hidden_size=512, label_embedding_size=512, learning_rate=1e-3, epochs=20.0
)
_CONVERGED = _SUPERTAGGER.with_changes(epochs=50.0, batch_size=16, learning_rate=5e-3, beam_size=5)
PLANS = {
    # A bidirectional tagger; the papers' sizes fit a CPU. Wrongly choosing "O" costs double in searches.
    "ner": Plan(
        {
            "cpu": _ENTITY_TAGGER,
            "gpu": _ENTITY_TAGGER.with_changes(epochs=20.0),
            # Most words of the test data are rare or new; their endings and capitals are informative.
            "converged": _ENTITY_TAGGER.with_changes(
                characters=True, epochs=40.0, batch_size=16, learning_rate=5e-3, beam_size=5
            ),
        },
        {"longer": 8, "feeding": 4, "search": 1.5, "likelihood": 2.5},
        label_costs="O=2",
    ),
    # A bidirectional tagger, of a fifth of the papers' size at the scale "cpu".
    "supertags": Plan(
        {"cpu": _SUPERTAGGER, "gpu": _PAPER_SIZED, "converged": _CONVERGED},
        {"longer": 10, "feeding": 5, "search": 2, "likelihood": 3.5},
    ),
    # Four times the text, and as many steps; the papers' sizes on a GPU.
    "supertags-ewt": Plan(
        {"cpu": _SUPERTAGGER.with_changes(epochs=3.0), "gpu": _PAPER_SIZED, "converged": _CONVERGED},
        {"longer": 2.5, "feeding": 1.2, "search": 0.5, "likelihood": 0.8},
    ),
    "supertags-erg": Plan(
        {
            "cpu": _SUPERTAGGER.with_changes(epochs=2.0),
            "gpu": _PAPER_SIZED.with_changes(epochs=10.0),
            "converged": _CONVERGED,
        },
        {"longer": 1.7, "feeding": 0.8, "search": 0.35, "likelihood": 0.55},
    ),
    # An attention encoder-decoder over 4,000 subwords.
    "translation": Plan(
        {
            "cpu": _TRANSLATOR,
            "gpu": _TRANSLATOR.with_changes(embedding_size=256, hidden_size=256, learning_rate=1e-3, epochs=10.0),
            # Six times the text, and concatenations.
            "converged": _TRANSLATOR.with_changes(embedding_size=128, hidden_size=256, learning_rate=2e-3, epochs=6.0),
        },
        {"longer": 2, "feeding": 1, "search": 1, "likelihood": 1},
        # About as many CPU seconds each.
        most={"longer": 2, "feeding": 1, "search": 0.5, "likelihood": 1},
        evaluations=6,
    ),
}
# With 8 epochs, most searches of left-to-right taggers are stopped by that limit.
PLANS["supertags-bi"] = replace(PLANS["supertags"], most={**CONVERGED_EPOCHS, "search": 12.0, "likelihood": 16.0})
"""Plans by name of the task, or of a task and a direction."""


def runs_of(task: Task, direction: str = "bi") -> str:
    """Return the folder of a task's runs; left-to-right taggers ("uni") have their own."""
    return f"{task.name}-left-to-right" if direction == "uni" else task.name


def family_of(task: Task, scale: str, direction: str = "bi") -> Family:
    """Return the systems of a task at a scale, as a function of the seed; only taggers have a direction."""
    plan = PLANS.get(f"{task.name}-{direction}", PLANS[task.name])
    start, options = plan.options_at(scale, len(task.load_data().train), direction)
    return partial(family, start, **options)


def family(
    start: Settings,
    seed: int,
    *,
    steps_per_epoch: int,
    budget: Mapping[str, float],
    label_costs: str = "",
    slower: Mapping[str, float] = SLOWER,
    cross_entropy_weight: float = 0.1,
) -> dict[str, System]:
    """Return every system of a task for one seed, by key.

    Args:
        start: settings of the cross-entropy stage that the others start from.
        seed: of weights, batches and noise.
        steps_per_epoch: number of batches of the training data.
        budget, label_costs: see :class:`Plan`.
        slower: divisors of the start's learning rate for the second stages.
        cross_entropy_weight: of the searches "direct-mixed" and "direct-global".
    """
    start = start.with_changes(objective="cross-entropy", seed=seed)
    after = {kind: start.with_changes(learning_rate=start.learning_rate / factor) for kind, factor in slower.items()}
    settings = {"cross-entropy-longer": after["longer"].with_changes(epochs=budget["longer"])}
    unit = budget["feeding"] * steps_per_epoch / PAPER_EPOCHS
    feeding = after["feeding"].with_changes(
        objective="scheduled-sampling",
        epochs=budget["feeding"],
        gold_probability=f"inverse_sigmoid(10, {unit:g})",
    )
    settings |= {
        "sampling-greedy": feeding.with_changes(feeding="greedy"),
        "sampling-sample": feeding.with_changes(feeding="sample"),
        "fixed-greedy": feeding.with_changes(feeding="soft-greedy", alpha="2"),
        "fixed-sample": feeding.with_changes(feeding="soft-sample", alpha="2"),
        "annealed-greedy": feeding.with_changes(feeding="soft-greedy", alpha="exponential(1, 10)"),
        "annealed-sample": feeding.with_changes(feeding="soft-sample", alpha="exponential(1, 10)"),
    }
    soft = settings["fixed-greedy"]
    settings |= {
        key: soft.with_changes(gold_probability=f"inverse_sigmoid({k:g}, {unit:g})") for key, k in DECAYS.items()
    }
    settings["always"] = soft.with_changes(gold_probability="0")
    search = partial(
        after["search"].with_changes,
        epochs=budget["search"],
        cross_entropy_weight=0.0,
        wrong_label_costs=label_costs,
    )
    direct, hinge = search(objective="relaxed-beam"), search(objective="hinge")
    mixed = direct.with_changes(cross_entropy_weight=cross_entropy_weight)
    settings |= {
        "hinge-annealed": hinge.with_changes(alpha="exponential(1, 10)"),
        "hinge-constant": hinge.with_changes(alpha="1"),
        "direct-constant": direct.with_changes(alpha="1"),
        "direct-annealed": direct.with_changes(alpha="exponential(1, 10)"),
        "direct-large": direct.with_changes(alpha=f"{LARGE_ALPHA}"),
        "direct-mixed": mixed.with_changes(alpha="exponential(1, 10)"),
        "direct-global": mixed.with_changes(score="global", alpha="exponential(0.5, 4)"),
        "hard-hinge": search(objective="hard-hinge"),
    }
    likelihood = partial(
        after["likelihood"].with_changes,
        epochs=budget["likelihood"],
        score="global",
        cross_entropy_weight=0.0,
    )
    settings |= {
        "dense-beam": likelihood(objective="dense-beam"),
        "beam-crf": likelihood(objective="beam-crf", cross_entropy_weight=0.1),
    }
    second = {key: (stage, "cross-entropy") for key, stage in settings.items()}
    return systems_of({"cross-entropy": (start, None), **second}, seed)
