"""Views of live lines as HTML: words with labels that are final, open, or just retracted."""

from __future__ import annotations

from markupsafe import Markup

from seqwise.pages.explorer.streams import Line, Live

MOST_LINES = 20  # largest number of lines to show
GROUNDS = {"final": "#d7efdd", "may change": "#fff1bf", "retracted": "#fbd9d6"}


def lines_view(live: Live) -> Markup:
    """Show the last lines: each word with its label, coloured by state, and retracted labels struck through."""
    lines = [Markup("<p>{}</p>").format(_line(line)) for line in live.lines[-MOST_LINES:]]
    earlier = len(live.lines) - len(lines)
    note = Markup("<p>{} earlier line{} not shown</p>").format(earlier, "s are" if earlier > 1 else " is")
    return Markup("").join([note] * bool(earlier) + lines)


def _line(line: Line) -> Markup:
    tokens = []
    for place, (word, label) in enumerate(zip(line.words, line.labels, strict=True)):
        state = "final" if place < line.num_final else "may change"
        tokens.append(_token(word, label, state, line.retracted.get(place)))
    return Markup(" ").join(tokens)


def _token(word: str, label: str, state: str, retracted: str | None = None) -> Markup:
    struck = Markup('<del style="background:{}">{}</del> ')
    before = "" if retracted is None else struck.format(GROUNDS["retracted"], retracted)
    kinds = "token" if state == "final" else "token open"
    return Markup('<span class="{}" style="background:{}" title="{}">{}<small>{}{}</small></span>').format(
        kinds, GROUNDS[state], f"{word}: {label}, {state}", word, before, label
    )


def colours_view() -> Markup:
    """Show the legend of colours."""
    samples = (("final", None), ("may change", None), ("may change", "retracted"))
    words = ("final", "may change", "retracted by the last word")
    return Markup(" ").join(_token("word", word, *sample) for word, sample in zip(words, samples, strict=True))


def live_in_words(live: Live) -> str:
    """Describe the last line, and count the retracted labels of all lines."""
    if not live.lines:
        return "No words yet: a word is read once a blank follows it."
    line = live.lines[-1]
    words, still_open = len(line.words), len(line.words) - line.num_final
    text = f"{words} word{'s' * (words != 1)} in the last line: {line.num_final} final, {still_open} may change."
    if line.retracted:
        text += f" The last word retracted {' '.join(line.retracted.values())}."
    share = f"{100 * live.num_retracted / live.num_words:.1f} for every 100 words"
    return f"{text} Retracted so far: {live.num_retracted}, {share}."
