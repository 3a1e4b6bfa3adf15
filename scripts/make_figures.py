"""Draw the figures of the documentation that no recipe draws, from library calls: docs/soft-top-k.png."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from seqwise import soft_top_k

ROOT = Path(__file__).resolve().parent.parent
SCORES = (2.0, 1.6, 1.1, 0.2, -0.5)
K = 3
# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00")


def weights_by_alpha() -> tuple[torch.Tensor, torch.Tensor]:
    """Values of alpha, and at each the weights of every candidate in every slot, (A, K, V)."""
    alphas = torch.logspace(-1, 3, 161)
    scores_BJV = torch.tensor(SCORES)[None, None]
    return alphas, torch.stack([soft_top_k(scores_BJV, K, float(alpha))[0, :, 0] for alpha in alphas])


def draw_soft_top_k(path: Path) -> None:
    """What each slot of the relaxed top-k is made of, as alpha grows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    alphas, weights_AKV = weights_by_alpha()
    figure, panels = pyplot.subplots(1, K, figsize=(9, 2.9), sharey=True, layout="constrained")
    for slot, axes in enumerate(panels):
        drawn = axes.stackplot(alphas.numpy(), weights_AKV[:, slot].T.numpy(), colors=COLOURS, alpha=0.9)
        axes.set(xscale="log", xlim=(0.1, 1000), ylim=(0, 1), xlabel="alpha")
        axes.set_title(f"slot {slot + 1}", loc="left", fontsize=10)
    panels[0].set_ylabel("weight")
    labels = [f"score {score:g}" for score in SCORES]
    figure.legend(drawn, labels, loc="outside lower center", frameon=False, ncols=len(labels))
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


if __name__ == "__main__":
    target = ROOT / "docs" / "soft-top-k.png"
    draw_soft_top_k(target)
    print(f"{target.relative_to(ROOT)} is drawn", file=sys.stderr)
