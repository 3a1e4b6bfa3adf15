"""Views of chains as HTML: sequences with their last changes, acceptance in words, and energies."""

from __future__ import annotations

import torch
from markupsafe import Markup

from seqwise.pages.explorer.chains import Watched
from seqwise.pages.report.blocks import Table, plain_number
from seqwise.pages.report.page import render_blocks
from seqwise.pages.report.plots import Line, line_plot
from seqwise.sampling.chains import Tally, tally

FEWEST_DRAWN = 2  # sweeps that make a line


def sequences_view(watched: Watched) -> Markup:
    """Make a table of chains: tokens and energy; changed tokens have a thick outline, fixed ones a dashed one."""
    fixed_T, changed_BT = (~watched.state.free_BT[0]).tolist(), watched.changed_BT.tolist()
    rows: list[list[str | Markup]] = []
    for number, (tokens, changed_T) in enumerate(zip(watched.rows, changed_BT, strict=True)):
        cells = [
            _token(token, is_fixed=is_fixed, is_changed=is_changed)
            for token, is_fixed, is_changed in zip(tokens, fixed_T, changed_T, strict=True)
        ]
        energy = plain_number(float(watched.state.energy_B[number]))
        rows.append(
            [f"chain {number + 1}", Markup('<span class="chain">{}</span>').format(Markup(" ").join(cells)), energy]
        )
    sweeps = len(watched.done)
    caption = f"After {sweeps} sweep{'s' * (sweeps != 1)}: thick outlines have just changed, dashed positions are fixed"
    return render_blocks(Table(caption, ["chain", "sequence", "energy, nats"], rows))


def _token(token: str, *, is_fixed: bool, is_changed: bool) -> Markup:
    kinds = " ".join(["token", *["pinned"] * is_fixed, *["changed"] * is_changed])
    state = ", changed" if is_changed else ", fixed" if is_fixed else ""
    ground = "#ffe9d6" if is_changed else "#eef0f3" if is_fixed else "#ffffff"
    return Markup('<span class="{}" style="background:{}" title="{}">{}</span>').format(
        kinds, ground, f"{token}{state}", token
    )


def sweep_in_words(watched: Watched) -> str:
    """Describe acceptance in the last sweep and since the last change of settings."""
    if not watched.done:
        return "Before the first sweep: one chain starts from a greedy fill, the others are sampled token by token."
    since = watched.done[watched.since :]
    parts = [f"Sweep {len(watched.done):,}. Last sweep: {_shares(tally(watched.done[-1:]))}."]
    if len(since) > 1:
        parts.append(f"All {len(since):,} sweeps with these settings: {_shares(tally(since))}.")
    parts.append(f"Mean energy {float(watched.state.energy_B.mean()):.3f} nats.")
    if not bool(watched.done[-1].invariant_S.all()):
        parts.append("These sweeps follow no energy, so their stationary distribution is unknown.")
    if not bool(watched.state.free_BT.any()):
        parts.append("Every position is fixed: nothing can move.")
    return " ".join(parts)


def _shares(counts: Tally) -> str:
    if not counts.proposals:
        return "no proposals"
    return (
        f"{counts.acceptance:.0%} of {counts.proposals:,} proposals accepted, {counts.novelty:.0%} changed a sequence"
    )


def energy_view(watched: Watched) -> Markup:
    """Plot energies and acceptance by sweep, from two sweeps on."""
    if len(watched.done) < FEWEST_DRAWN:
        return Markup("")
    values_SB, sweeps = torch.cat([swept.energy_SB for swept in watched.done]), range(1, len(watched.done) + 1)
    borders = [watched.since + 0.5] if watched.since else []
    lines = [
        Line(f"chain {chain + 1}", sweeps, values_SB[:, chain].tolist(), chain) for chain in range(values_SB.shape[1])
    ]
    counts = [tally([swept]) for swept in watched.done]
    shares = [
        Line("accepted", sweeps, [count.acceptance for count in counts], 0),
        Line("accepted and new", sweeps, [count.novelty for count in counts], 1),
    ]
    drawn = (
        line_plot("Energy by sweep, a line for each chain", lines, x_label="sweep", borders=borders, unit="nats"),
        line_plot("Shares of proposals: accepted (solid), new (dashed)", shares, x_label="sweep", borders=borders),
    )
    return Markup('<div class="blocks">{}</div>').format(render_blocks(*drawn))
