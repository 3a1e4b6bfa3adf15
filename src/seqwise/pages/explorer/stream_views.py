"""Views of live lines as HTML: words with labels that are final, open, or just retracted."""

from __future__ import annotations

from itertools import zip_longest

from markupsafe import Markup

from seqwise.names import count_of
from seqwise.pages.explorer.streams import Line, Live

MOST_LINES = 20  # largest number of lines to show
GROUNDS = {"final": "#d7efdd", "may change": "#fff1bf", "retracted": "#fbd9d6", "no label yet": "#eeeeee"}


def lines_view(live: Live) -> Markup:
    """Show the last lines: each word with its label, coloured by state, and retracted labels struck through."""
    lines = [Markup("<p>{}</p>").format(_line(line)) for line in live.lines[-MOST_LINES:]]
    earlier = len(live.lines) - len(lines)
    note = Markup("<p>{} earlier line{} not shown</p>").format(earlier, "s are" if earlier > 1 else " is")
    return Markup("").join([note] * bool(earlier) + lines)


def _line(line: Line) -> Markup:
    tokens = []
    for place, (word, label) in enumerate(zip_longest(line.words, line.labels, fillvalue="")):
        state = "final" if place < line.num_final else "may change" if label else "no label yet"
        tokens.append(_token(word, label, state, line.retracted.get(place)))
    return Markup(" ").join(tokens)


def _token(word: str, label: str, state: str, retracted: str | None = None) -> Markup:
    struck = Markup('<del style="background:{}">{}</del> ')
    before = "" if retracted is None else struck.format(GROUNDS["retracted"], retracted)
    kinds = "token" if state == "final" else "token open"
    return Markup('<span class="{}" style="background:{}" title="{}">{}<small>{}{}</small></span>').format(
        kinds, GROUNDS[state], f"{word}: {label}, {state}" if label else f"{word}: {state}", word, before, label
    )


def colours_view(look_ahead: int = 0) -> Markup:
    """Show the legend of colours, for a model with a look-ahead of some words."""
    samples = [("final",), ("may change",), ("may change", "retracted")]
    words = ["final", "may change", "retracted by the last word"]
    if look_ahead:
        samples.append(("no label yet",))
        words.append(f"labelled {count_of(look_ahead, 'word')} later")
    return Markup(" ").join(_token("word", word, *sample) for word, sample in zip(words, samples, strict=True))


def live_in_words(live: Live) -> str:
    """Describe the last line, and count the retracted labels of all lines."""
    if not live.lines:
        return "No words yet: a word is read once a blank follows it."
    line = live.lines[-1]
    words, labels = count_of(len(line.words), "word"), len(line.labels)
    text = f"{words} in the last line: {line.num_final} final, {labels - line.num_final} may change"
    text += f", {len(line.words) - labels} without a label." if labels < len(line.words) else "."
    if line.retracted:
        text += f" The last word retracted {' '.join(line.retracted.values())}."
    share = f"{100 * live.num_retracted / live.num_words:.1f} for every 100 words"
    return f"{text} Retracted so far: {live.num_retracted}, {share}."
