"""Views of an answer as HTML: lattice, outputs with both scores, masses of prefixes, search errors."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from seqwise.evaluation.label_bias import LabelBias, Prefix, fate_of_gold
from seqwise.pages.explorer.answers import Answer
from seqwise.pages.explorer.searches import Scored, SearchErrors, dropped, fell_off, text_of
from seqwise.pages.report.blocks import Legend, Paragraph, Table, plain_number
from seqwise.pages.report.drawing import draw_lattice, lattice_palette, lattice_table
from seqwise.pages.report.lattice import MOST_STEPS, Node
from seqwise.pages.report.page import render_blocks
from seqwise.runs.measures import step_names
from seqwise.runs.run import OutputRun

UNMIXED = 0.995  # smallest weight at which a relaxed slot counts as one candidate


def lattice_view(run: OutputRun, answer: Answer, step: int) -> Markup:
    """Draw the lattice up to a step, with its numbers in a folded table."""
    words, lattice, question = run.codec.target_vocabulary.tokens, answer.lattice, answer.question
    shown = lattice[:step]
    drawing = draw_lattice(
        shown,
        words=words,
        title=f"{_setup_in_words(answer)}, the first {len(shown)} of {len(lattice)} steps",
        step_names=step_names(run, question.example),
        palette=lattice_palette([lattice]),
        gold=question.gold,
        named_with=[lattice],
    )
    is_cut = len(lattice) == MOST_STEPS and len(answer.bias.steps) > MOST_STEPS + 1
    notes = [Paragraph(f"Only the first {MOST_STEPS} steps are drawn.")] if is_cut else []
    table = lattice_table(shown, "Values in the lattice", words)
    return _region("the lattice of the search", drawing) + render_blocks(*notes, table)


def legend_view(answer: Answer) -> Markup:
    """Draw the legend of the lattice."""
    palette = lattice_palette([answer.lattice])
    colour = "log Z of the step, nats" if answer.question.gold is None else "cost added by the step"
    return render_blocks(Legend(colour, plain_number(palette.low), plain_number(palette.high)))


def _region(name: str, content: Markup) -> Markup:
    return Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">{}</div>').format(name, content)


def _setup_in_words(answer: Answer) -> str:
    setup = answer.setup
    slots = "" if setup.search == "greedy" else f" of {setup.k} slots"
    alpha = f", alpha {setup.alpha:g}" if setup.search == "relaxed beam" else ""
    return f"{setup.search}{slots} with {setup.score} scores{alpha}"


def step_in_words(run: OutputRun, answer: Answer, step: int) -> str:
    """Describe a step: the token of the best slot, and the pruned prefixes or the mixture of a relaxed beam."""
    words, nodes = run.codec.target_vocabulary.tokens, answer.lattice[step - 1]
    live = [node for node in nodes if node.is_live]
    if not live:
        return f"Step {step}: no slot is left."
    best = max(live, key=lambda node: node.score)
    text = f"Step {step}: the best slot adds {words[best.tokens[0][0]]} and has score {best.score:.3f}."
    if answer.setup.search == "relaxed beam":
        return f"{text} {_mixing(live, words)}"
    gone, gold = dropped(answer.lattice, step), answer.question.gold
    if gone:
        plural = "s" * (len(gone) > 1)
        text += f" The prefix{'es' * (len(gone) > 1)} in slot{plural} {_listed(gone)} of the previous step "
        text += "are pruned." if len(gone) > 1 else "is pruned."
    lost = None if gold is None else fell_off(answer.lattice, gold)
    if lost is not None and lost <= step and lost - 1 in answer.question.unseen:
        unseen = answer.question.unseen[lost - 1]
        text += f" The right output fell off the beam at step {lost}: training never saw {unseen}."
    elif lost is not None and lost <= step:
        text += f" The right output fell off the beam at step {lost}: a search error or a model error; see below."
    return text


def _mixing(live: Sequence[Node], words: Sequence[str]) -> str:
    """Describe the most mixed slot."""

    def purest(node: Node) -> float:
        return min(node.tokens[0][1], max(node.parents))

    least = min(range(len(live)), key=lambda place: purest(live[place]))
    node = live[least]
    if purest(node) >= UNMIXED:
        return "Every slot is one candidate, as in a hard beam."
    tokens = ", ".join(f"{words[token]} {weight:.2f}" for token, weight in node.tokens)
    parents = ", ".join(f"slot {place} {weight:.2f}" for place, weight in enumerate(node.parents, 1) if weight >= 0.01)
    return f"Slot {least + 1} mixes most: tokens {tokens}; it comes from {parents}."


def _listed(numbers: Sequence[int]) -> str:
    names = list(map(str, numbers))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def outputs_view(outputs: Sequence[Scored]) -> Markup:
    """Make a table of the outputs of several searches with both scores, the highest of each column marked."""
    best = [max(getattr(output, name) for output in outputs) for name in ("log_prob", "raw_score")]
    rows = [
        [
            output.name,
            output.text,
            *(
                Markup("<mark>{}</mark>").format(f"{value:.3f}") if value >= high - 1e-4 else f"{value:.3f}"
                for value, high in zip((output.log_prob, output.raw_score), best, strict=True)
            ),
            "" if output.is_gold is None else "yes" if output.is_gold else "no",
        ]
        for output in outputs
    ]
    columns = ("search", "output", "log p, nats", "raw score, nats", "right")
    return render_blocks(Table("Outputs with both scores, the highest of each column marked", columns, rows))


def bias_view(run: OutputRun, bias: LabelBias, step: int) -> Markup:
    """Make a table of the prefixes of the local beam after a step, with their local and global shares."""
    step = min(step, len(bias.steps) - 1)
    rows = [_mass_row(run, prefix) for prefix in bias.steps[step]]
    columns = ("prefix", "local share", "global share now", "one step later", "at the end", "log Z of next step")
    table = Table(f"Prefixes of the local beam after step {step}", columns, rows)
    how = "exactly" if bias.exact else f"over a raw-score beam of {bias.support:,} prefixes"
    text = (
        "With local scores, the share of a prefix never changes; with raw scores, later inputs can change it. Global "
        f"shares are summed {how}. * marks the right output, (off) means that it has left the beam."
    )
    if any(prefix.is_gold for prefixes in bias.steps for prefix in prefixes):
        text += f" In the whole search, {fate_of_gold(bias)}."
    return render_blocks(Paragraph(text), table)


def _mass_row(run: OutputRun, prefix: Prefix) -> list[str | Markup]:
    masses = prefix.global_masses
    text = text_of(run, prefix.tokens)
    name = f"{'* ' if prefix.is_gold else ''}{text}{'' if prefix.on_beam else ' (off)'}"
    return [
        name,
        _bar(prefix.local_mass),
        _bar(masses[0]),
        _bar(masses[1]) if len(masses) > 1 else "",
        _bar(masses[-1]),
        "" if prefix.log_partition is None else f"{prefix.log_partition:.2f}",
    ]


def _bar(share: float) -> Markup:
    """Render a share as a number over a bar."""
    return Markup('<span class="share">{}%<span class="bar" style="width:{}%"></span></span>').format(
        f"{100 * share:.1f}", f"{100 * min(max(share, 0.0), 1.0):.1f}"
    )


def errors_view(run: OutputRun, errors: SearchErrors, *, score: str) -> Markup:
    """Make a table of the outputs of other beam sizes, and state whether the chosen beam made a search error."""
    rows: list[list[str | Markup]] = []
    for place, best in enumerate([*errors.beams, *([errors.exact] if errors.exact else [])]):
        name: str | Markup = (
            Markup("<strong>{}</strong>").format(best.name) if place == errors.place_of_k else best.name
        )
        gap = f"{best.gap:.3f}" if best.gap else "none"
        rows.append([name, text_of(run, best.tokens), f"{best.score:.3f}", gap])
    columns = ("search", "output", f"{score} score, nats", "gap to the best")
    table = Table(f"The same input, with other beam sizes, {score} scores", columns, rows)
    return render_blocks(Paragraph(_verdict(errors)), table)


def _verdict(errors: SearchErrors) -> str:
    chosen = errors.beams[errors.place_of_k]
    if not chosen.gap:
        if errors.exact:
            return f"The {chosen.name} makes no search error here: it finds the best-scored output."
        largest = errors.beams[-1].name
        return f"The {chosen.name} makes no known search error: no beam up to the {largest} scores higher."
    best = errors.exact or next(beam for beam in errors.beams if not beam.gap)
    goal = "the best-scored output" if errors.exact else f"that of the {best.name}"
    return (
        f"The {chosen.name} makes a search error: its output scores {chosen.gap:.3f} nats below {goal}. "
        "Whether the better-scored output is right depends on the model, not on the search."
    )
