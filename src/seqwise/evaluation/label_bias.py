"""Label bias: local and global mass of the prefixes of a beam, step by step.

A locally normalised model conserves the mass of a prefix, whatever follows; raw scores do not. Shapes: B batch (1
here), J slots, T tokens written so far.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seqwise.decoding import Decoder
from seqwise.errors import InputError
from seqwise.evaluation.short_names import shorten_distinctly
from seqwise.evaluation.slot_ranking import Slots, unrestricted, unroll_slots
from seqwise.models.protocols import StepModel
from seqwise.names import ScoreName
from seqwise.search.candidates import Candidates, Score, as_score, global_, local
from seqwise.search.gold import KeepGold, never_lost, no_rivals
from seqwise.search.selection import Selection
from seqwise.search.selectors import HardTopK, Selector

Ids = tuple[int, ...]

FIGURE_ENDINGS = (".png", ".pdf", ".svg")
GOLD, OTHERS = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Prefix:
    """Prefix on the beam, or of gold, after t steps."""

    tokens: Ids  # end token included if it has ended
    log_prob: float  # ``log p(prefix) = sum_s (f_s - log Z_s)``, in nats
    raw_score: float  # ``F(prefix) = sum_s f_s``, in nats
    log_partition: float | None  # log Z of the next step; None after the last
    # Global shares after t tokens, after t + 1, and so on to the last step: see `explore_label_bias`.
    global_masses: tuple[float, ...]
    is_gold: bool  # whether it is a prefix of gold
    on_beam: bool  # false only for gold that has fallen off

    @property
    def local_mass(self) -> float:
        """``p(prefix)``, its share of the locally normalised distribution after any number of steps."""
        return math.exp(self.log_prob)


@dataclass(frozen=True)
class LabelBias:
    """Prefixes of a beam, step by step.

    Attributes:
        steps: prefixes after 0, 1, .. steps, best first by the score of the search, gold last if it has fallen off.
        exact: whether the global shares are exact, not summed over a beam.
        support: the largest number of prefixes over which the global shares were summed.
    """

    steps: tuple[tuple[Prefix, ...], ...]
    exact: bool
    support: int


def explore_label_bias(
    model: StepModel,
    context: Any,
    *,
    num_steps: int,
    k: int,
    score: Score | ScoreName = local,
    gold: Ids | None = None,
    support: int = 4096,
    allowed: Callable[[Selector], Selector] = unrestricted,
) -> LabelBias:
    """Compute the local and the global mass of each prefix of a beam, step by step.

    With ``F(y_1..s)`` the sum of raw scores and Y_s all outputs cut after s tokens (outputs that end earlier are
    complete), the global share of a prefix of t tokens after s >= t tokens is

        P_s(prefix) = sum_{y in Y_s that begin with prefix} exp F(y)  /  sum_{y in Y_s} exp F(y).

    A further step multiplies it by ``Z(prefix) / sum_{y in Y_t} P_t(y) Z(y)``, with Z of the prefix's next step. The
    local share ``p(prefix)`` is the same for every s, because each Z there is 1: this is label bias.

    Both sums run over the prefixes of a raw-score beam of ``support`` slots, each with all its next tokens. If the beam
    never drops a prefix (``exact``), this is enumeration; otherwise it is the approximation of Andor et al., and a
    dropped prefix has share 0 from then on. Outputs that have not ended after ``num_steps`` tokens count as they are.
    Tokens that are not allowed are in neither sum, but keep their part of the local mass.

    Args:
        model: a step model, in evaluation mode.
        context: from ``model.encode``, for one source.
        num_steps: largest number of tokens, or the exact number for a model without end token.
        k: size of the beam.
        score: score of the beam.
        gold: the right output, end token included; its prefixes are kept even off the beam, up to the first token that
            the model lacks (an id of V or more).
        support: number of slots over which the global shares are summed.
        allowed: restricts a selector to allowed outputs; by default to all.

    Raises:
        InputError: there is more than one source, or a number is out of range.

    Source: Goyal (thesis, 2021), section 5.1 and figure 5.1; Bottou (1991) for the law of conservation; the sum over a
    beam, Andor et al. (ACL 2016), section 3.

    Example:
        >>> from seqwise.data import EncodedExample, collate
        >>> from seqwise.models import Tagger
        >>> model = Tagger(source_size=5, target_size=3, embedding_size=4, hidden_size=8, label_embedding_size=2).eval()
        >>> context = model.encode(collate([EncodedExample((1, 2, 3), ())]))
        >>> found = explore_label_bias(model, context, num_steps=3, k=27, gold=(0, 2, 1))
        >>> found.exact, [len(prefixes) for prefixes in found.steps]
        (True, [1, 3, 9, 27])
        >>> round(sum(prefix.global_masses[-1] for prefix in found.steps[2]), 6)
        1.0
    """
    if model.start(context)[0].shape[0] != 1:
        raise InputError("label bias is measured on one input at a time", hint="encode a batch of one")
    for name, value in (("num_steps", num_steps), ("k", k), ("support", support)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    decoder = Decoder(allowed(HardTopK(k)), as_score(score))
    shown = [list(_states(slots, model.end)) for slots in unroll_slots(model, context, decoder, num_steps=num_steps)]
    if gold is not None:
        size = model.embedding_VD.shape[0]
        gold = tuple(itertools.takewhile(lambda token: token < size, gold))
        if gold:
            _add_lost_gold(shown, model, context, gold[:num_steps])
    recorder = _Recorder(HardTopK(support))
    decoder = Decoder(allowed(recorder), global_)
    searched = unroll_slots(model, context, decoder, num_steps=num_steps)
    shares, exact, largest = _global_shares(searched, recorder, shown, end=model.end, support=support)
    steps = tuple(
        tuple(_prefix(state, shares[step:] or shares[-1:], None if gold is None else gold[:step]) for state in states)
        for step, states in enumerate(shown)
    )
    return LabelBias(steps, exact, largest)


def fate_of_gold(bias: LabelBias) -> str:
    """Describe the fate of gold on the beam, without a full stop."""
    lost = next((step for step, prefixes in enumerate(bias.steps) if prefixes and not prefixes[-1].on_beam), None)
    golden = {step: prefix for step, prefixes in enumerate(bias.steps) for prefix in prefixes if prefix.is_gold}
    if not golden:
        return "there is no gold output to follow"
    last = max(golden)
    cut = last + 1 < len(bias.steps) and golden[last].log_partition is not None
    never_seen = f"its token of step {last + 1} was never seen in training, and no output has it"
    if cut and last == 0:
        return f"no output is gold: {never_seen}"
    if cut and lost is None:
        return f"gold stays on the beam for {last} step{'s' * (last != 1)}; {never_seen}"
    if lost is None:
        held = [prefix for prefix in bias.steps[-1] if prefix.is_gold]
        ends = [f", at the end with {percent(prefix.local_mass)}% of the local mass" for prefix in held]
        return f"gold stays on the beam{''.join(ends)}"
    gold = bias.steps[lost][-1]
    above = bias.steps[lost][-2]
    shares = [share for prefix in (gold, above) for share in (prefix.global_masses[0], prefix.global_masses[-1])]
    # Unless the sums are exact, 0 means that the raw-score beam has dropped the prefix.
    there, end, above_there, above_end = (
        f"{percent(share)}%" if share or bias.exact else "an unknown share" for share in shares
    )
    sentence = (
        f"gold falls off the beam at step {lost}, with {percent(gold.local_mass)}% of the local mass, which no later "
        f"step changes; by raw scores, it has {there} at that step and {end} at the end (the last prefix kept: "
        f"{above_there} and {above_end})"
    )
    if 0 in shares and not bias.exact:
        sentence += "; the share of a prefix that the raw-score beam has dropped is not known"
    return f"{sentence}; {never_seen}" if cut else sentence


def percent(share: float) -> str:
    """Format a share in per cent, with one decimal; a small one is not 0."""
    return "0" if share == 0 else "<0.1" if share < 0.0005 else f"{100 * share:.1f}"


class _State(NamedTuple):
    """Live slot of the beam."""

    tokens: Ids
    log_prob: float
    raw_score: float
    log_partition: float
    is_open: bool
    on_beam: bool = True


@dataclass
class _Recorder:
    """Selector that records the scores of another selector's last choice."""

    selector: Selector
    scores_JV: Tensor | None = None

    def __call__(self, candidates: Candidates, carry: Any, generator: torch.Generator | None) -> tuple[Selection, Any]:
        self.scores_JV = candidates.scores_BJV[0]
        return self.selector(candidates, carry, generator)


def _states(slots: Slots, end: int | None) -> Iterator[_State]:
    """Yield the live slots of the input, each cut after its end token."""
    columns = (slots.log_probs_BJ, slots.raw_scores_BJ, slots.log_partitions_BJ, slots.open_BJ)
    rows = zip(slots.prefixes_BJT[0].tolist(), *(column[0].tolist() for column in columns), strict=True)
    for (tokens, *numbers), score in zip(rows, slots.scores_BJ[0].tolist(), strict=True):
        if score != -math.inf:
            length = tokens.index(end) + 1 if end in tokens else len(tokens)
            yield _State(tuple(tokens[:length]), *numbers)


def _add_lost_gold(shown: list[list[_State]], model: StepModel, context: Any, gold: Ids) -> None:
    """Add the prefixes of gold at the steps where they are not on the beam."""
    selector = KeepGold(no_rivals, torch.tensor([gold], device=model.embedding_VD.device), never_lost)
    for step, slots in enumerate(unroll_slots(model, context, Decoder(selector, local), num_steps=len(gold))):
        if step == len(shown):
            shown.append([])
        if all(state.tokens != gold[:step] for state in shown[step]):
            shown[step] += [state._replace(on_beam=False) for state in _states(slots, model.end)]


def _prefix(state: _State, shares: Sequence[Mapping[Ids, float]], gold: Ids | None) -> Prefix:
    """Make a prefix from a slot and its global shares from this step on; ``gold`` is cut after this step."""
    return Prefix(
        state.tokens,
        state.log_prob,
        state.raw_score,
        state.log_partition if state.is_open else None,
        tuple(share.get(state.tokens, 0.0) for share in shares),
        state.tokens == gold,
        state.on_beam,
    )


def _global_shares(
    searched: Iterable[Slots],
    recorder: _Recorder,
    shown: Sequence[Sequence[_State]],
    *,
    end: int | None,
    support: int,
) -> tuple[list[dict[Ids, float]], bool, int]:
    """Return, for each s, the share P_s of every prefix shown after at most s steps."""
    shown_prefixes = {state.tokens for states in shown for state in states}
    shares: list[dict[Ids, float]] = [{(): 1.0}]
    kept_all, exact, largest = True, True, 0
    for step, slots in enumerate(searched, start=1):
        scores_JV, recorder.scores_JV = recorder.scores_JV, None
        if scores_JV is None:  # the final beam, which is not extended
            break
        exact = kept_all  # drops of the last selection do not matter: the sums include all its candidates
        states = list(_states(slots, end))
        largest = max(largest, len(states))
        kept_all = kept_all and int((scores_JV > -torch.inf).sum()) <= support
        scores_JV = scores_JV[slots.scores_BJ[0] > -torch.inf]
        ahead = scores_JV.logsumexp(-1).tolist()
        total = np.logaddexp.reduce(ahead)
        below: dict[Ids, list[float]] = {}
        for state, log_mass in zip(states, ahead, strict=True):
            for length in range(len(state.tokens) + 1):
                if state.tokens[:length] in shown_prefixes:
                    below.setdefault(state.tokens[:length], []).append(log_mass)
        still_open = {state.tokens: row for row, state in enumerate(states) if state.is_open}
        for state in shown[step] if step < len(shown) else ():
            if len(state.tokens) == step and state.tokens[:-1] in still_open:
                below[state.tokens] = [float(scores_JV[still_open[state.tokens[:-1]], state.tokens[-1]])]
        shares.append({tokens: math.exp(np.logaddexp.reduce(masses) - total) for tokens, masses in below.items()})
    return shares, exact, largest


def draw_label_bias(
    bias: LabelBias, path: Path, *, target_name: Callable[[int], str], step_names: Sequence[str], title: str = ""
) -> None:
    """Draw the prefixes of a beam as two trees: local masses above, global masses including the next step below.

    The area of a disc grows with the share of its prefix. Gold is blue; once it has fallen off the beam, it is a ring.

    Args:
        bias: the masses.
        path: file of the figure, PNG, PDF or SVG by its ending.
        target_name: returns the name of a token.
        step_names: labels of the steps, from the first token on; there may be fewer.
        title: title of the figure.

    Raises:
        InputError: the ending is unknown, or matplotlib is not installed.
    """
    if path.suffix not in FIGURE_ENDINGS:
        raise InputError("unknown figure format", path=path, hint="use a name that ends in .png, .pdf or .svg")
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("figures need matplotlib", hint="pip install 'seqwise[demo]'") from error

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = max(map(len, bias.steps))
    size = (min(2.5 + 0.95 * len(bias.steps), 30), 1.2 + 0.55 * rows)
    figure, (above, below) = pyplot.subplots(2, figsize=(size[0], 2 * size[1]), sharex=True, layout="constrained")
    # The axes extend half a step beyond the first and the last step, and the constrained layout leaves a margin.
    width = 72 * size[0] * 0.97 / len(bias.steps)
    tokens = dict.fromkeys(prefix.tokens[-1] for prefixes in bias.steps for prefix in prefixes if prefix.tokens)
    short_names = _names_that_fit([target_name(token) for token in tokens], width, font_size=8)
    ticks = ["start", *step_names][: len(bias.steps)]
    short_ticks = _names_that_fit(ticks, width, font_size=10)
    how = "exact" if bias.exact else f"over {bias.support:,} prefixes"
    panels = (
        (above, "local: p(prefix), the same before and after the next step", lambda prefix: prefix.local_mass),
        (
            below,
            f"raw scores: share of the prefix after the next step ({how})",
            lambda prefix: prefix.global_masses[:2][-1],
        ),
    )
    for axes, heading, mass in panels:
        _draw_tree(axes, bias.steps, mass, lambda token: short_names[target_name(token)])
        axes.set_title(heading, loc="left", fontsize=10)
        axes.set_xlim(-0.5, len(bias.steps) - 0.5)
        axes.set_ylim(rows - 0.4, -0.8)
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
    below.set_xticks(range(len(ticks)), [short_ticks[name] for name in ticks], parse_math=False)
    figure.suptitle(title)
    handles = _legend_handles()
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_tree(
    axes: Any, steps: Sequence[Sequence[Prefix]], mass: Callable[[Prefix], float], name_of: Callable[[int], str]
) -> None:
    """Draw each prefix as a disc, with a line to its parent."""
    for step, prefixes in enumerate(steps):
        rows_before = {prefix.tokens: row for row, prefix in enumerate(steps[step - 1])} if step else {}
        for row, prefix in enumerate(prefixes):
            colour = GOLD if prefix.is_gold else OTHERS
            # A prefix that has ended is its own parent.
            parent = prefix.tokens if prefix.tokens in rows_before else prefix.tokens[:-1]
            if parent in rows_before:
                axes.plot([step - 1, step], [rows_before[parent], row], color=colour, alpha=0.35, lw=1, zorder=1)
            face = colour if prefix.on_beam else "none"
            axes.scatter(step, row, s=_area(mass(prefix)), color=face, edgecolors=colour, zorder=2)
            name = name_of(prefix.tokens[-1]) if prefix.tokens else ""
            place = {"xytext": (0, 11), "textcoords": "offset points", "ha": "center"}
            axes.annotate(name, (step, row), **place, fontsize=8, parse_math=False)


def _legend_handles() -> list[Any]:
    from matplotlib.lines import Line2D

    kinds = {"gold": (GOLD, GOLD), "other prefixes": (OTHERS, OTHERS), "gold, no longer on the beam": (GOLD, "none")}
    handles = [
        Line2D([], [], ls="", marker="o", markeredgecolor=edge, markerfacecolor=face, label=name)
        for name, (edge, face) in kinds.items()
    ]
    return handles + [
        Line2D([], [], ls="", marker="o", color="0.7", markersize=math.sqrt(_area(share)), label=f"share {share:.0%}")
        for share in (0.1, 0.5)
    ]


def _area(share: float) -> float:
    """Return the area of a disc, in square points."""
    return 12 + 420 * share


def _names_that_fit(names: Sequence[str], width: float, *, font_size: float) -> dict[str, str]:
    """Abbreviate names to a drawn width in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    font, measure = FontProperties(size=font_size), TextToPath()
    longest = max(map(len, names), default=1)
    while True:
        short = shorten_distinctly(names, longest=longest)
        widths = (measure.get_text_width_height_descent(name, font, ismath=False)[0] for name in short.values())
        widest = max(widths, default=0.0)
        if widest <= width or longest <= 3:
            return short
        longest = max(3, min(longest - 1, int(longest * width / widest)))
