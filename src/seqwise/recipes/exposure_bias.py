"""The systems of Tables 3.1, 3.2, 4.1 and 4.2: one family for each task, shared by the tables that need it.

All of a family start from the same cross-entropy weights and go on for about as long as the longer cross-entropy, or
less; their training seconds are among the results. What the papers lack is among them: that longer cross-entropy, and a
relaxed beam with global scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from seqwise.recipes.systems import System
from seqwise.runs.settings import Settings

__all__ = ["FEEDING_ROWS", "SEARCH_ROWS", "family"]

# Decay is counted in the papers' epochs, of which they trained 50; ours are shorter trainings with the same decay.
PAPER_EPOCHS = 50

# Key to name, as Table 3.1 has them.
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
DECAYS = {"decay-100": 100.0, "decay-10": 10.0, "decay-1": 1.0}


def family(
    start: Settings, seed: int, *, steps_an_epoch: int, budget: Mapping[str, float], label_costs: str = ""
) -> dict[str, System]:
    """Every system of a task for one seed, by key; each lies in the folder ``seed-N/key``.

    Args:
        start: the cross-entropy training that the others start from.
        seed: of weights, batches and noise.
        steps_an_epoch: batches of the training data.
        budget: epochs of the second stage: "longer" for cross-entropy, "feeding", "search", "likelihood".
        label_costs: of the searches, such as "O=2".
    """
    start = replace(start, objective="cross-entropy", seed=seed)
    after = replace(start, learning_rate=start.learning_rate / 2)
    settings = {"cross-entropy-longer": replace(after, epochs=budget["longer"])}
    unit = budget["feeding"] * steps_an_epoch / PAPER_EPOCHS
    feeding = replace(
        after,
        objective="scheduled-sampling",
        epochs=budget["feeding"],
        gold_probability=f"inverse_sigmoid(10, {unit:g})",
    )
    settings |= {
        "sampling-greedy": replace(feeding, feeding="greedy"),
        "sampling-sample": replace(feeding, feeding="sample"),
        "fixed-greedy": replace(feeding, feeding="soft-greedy", alpha="2"),
        "fixed-sample": replace(feeding, feeding="soft-sample", alpha="2"),
        "annealed-greedy": replace(feeding, feeding="soft-greedy", alpha="exponential(1, 10)"),
        "annealed-sample": replace(feeding, feeding="soft-sample", alpha="exponential(1, 10)"),
    }
    soft = settings["fixed-greedy"]
    settings |= {key: replace(soft, gold_probability=f"inverse_sigmoid({k:g}, {unit:g})") for key, k in DECAYS.items()}
    settings["always"] = replace(soft, gold_probability="0")
    # A cost through the search moves weights further than a likelihood does: a third of the rate.
    search = replace(
        after,
        learning_rate=start.learning_rate / 6,
        epochs=budget["search"],
        cross_entropy_weight=0.0,
        wrong_label_costs=label_costs,
    )
    direct, hinge = replace(search, objective="relaxed-beam"), replace(search, objective="hinge")
    settings |= {
        "hinge-annealed": replace(hinge, alpha="exponential(1, 10)"),
        "hinge-constant": replace(hinge, alpha="1"),
        "direct-constant": replace(direct, alpha="1"),
        "direct-annealed": replace(direct, alpha="exponential(1, 10)"),
        "direct-mixed": replace(direct, alpha="exponential(1, 10)", cross_entropy_weight=0.1),
        "direct-global": replace(direct, score="global", alpha="exponential(0.5, 4)", cross_entropy_weight=0.1),
        "hard-hinge": replace(search, objective="hard-hinge"),
    }
    # Likelihoods over a beam know no costs; they train at the rate that they have where labels come left to right.
    likelihood = replace(
        after,
        learning_rate=start.learning_rate / 3,
        epochs=budget["likelihood"],
        score="global",
        cross_entropy_weight=0.0,
    )
    settings |= {
        "dense-beam": replace(likelihood, objective="dense-beam"),
        "beam-crf": replace(likelihood, objective="beam-crf", cross_entropy_weight=0.1),
    }
    folder = f"seed-{seed}"
    systems = {"cross-entropy": System(f"cross-entropy ({seed})", f"{folder}/cross-entropy", start)}
    for key, chosen in settings.items():
        systems[key] = System(f"{key} ({seed})", f"{folder}/{key}", chosen, f"{folder}/cross-entropy")
    return systems
