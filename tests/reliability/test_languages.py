"""A million outputs of searches and draws inside languages, each judged without the languages' own code."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from seqwise import beam_search, stochastic_beam_search
from seqwise.data import EncodedExample, collate
from seqwise.evaluation.entities import valid_transitions
from seqwise.models import EncoderDecoder, Tagger
from seqwise.search import Gumbel, HardTopK, Language, SoftTopK, backtrace, regular, transitions, trie

OUTPUTS = 1_000_000
END = 0
LABELS = ["O", "B-A", "I-A", "B-B", "I-B", "B-C", "I-C"]
TEXTS = [None, "a", "b", "c", "ab", "bc", "ca", "1", "2", "12", "-", "(", ")", "a1", "-b"]
PATTERN = r"(\(?[abc]{1,4}\)?)(-[abc]+|-?[12]{2})*"


@dataclass
class Case:
    """A model, a language, and whether an output is legal."""

    model: Any
    language: Language
    is_legal: Callable[[tuple[int, ...]], bool]


def catalogue() -> Case:
    draw = random.Random(0)
    items = {tuple(draw.choices(range(1, 15), k=draw.randint(0, 6))) for _ in range(400)}

    def is_legal(output: tuple[int, ...]) -> bool:
        written = ended(output)
        return written is not None and written in items

    return Case(translator(), trie(items, end=END), is_legal)


def pattern() -> Case:
    def is_legal(output: tuple[int, ...]) -> bool:
        written = ended(output)
        return written is not None and bool(re.fullmatch(PATTERN, "".join(TEXTS[token] or "?" for token in written)))

    return Case(translator(), regular(PATTERN, TEXTS, end=END), is_legal)


def entities() -> Case:
    follows, first, last = (torch.tensor(each) for each in valid_transitions(LABELS))

    def is_legal(output: tuple[int, ...]) -> bool:
        labels = "".join(f"{LABELS[label]} " if label >= 0 else "?" for label in output)
        return bool(re.fullmatch(r"(O |B-(\w) (I-\2 )*)*", labels))

    model = Tagger(source_size=9, target_size=7, embedding_size=4, hidden_size=6, label_embedding_size=4)
    return Case(opinionated(model), transitions(follows, first_V=first, last_V=last), is_legal)


LANGUAGES = {"a catalogue of 400 items": catalogue, "well-formed entities": entities, "a regular expression": pattern}


def ended(output: tuple[int, ...]) -> tuple[int, ...] | None:
    """What was written before the end token, if there is nothing but end tokens after it."""
    if END not in output:
        return None
    length = output.index(END)
    return output[:length] if set(output[length:]) == {END} else None


def translator() -> Any:
    return opinionated(EncoderDecoder(source_size=9, target_size=len(TEXTS), end=END, embedding_size=6, hidden_size=8))


def opinionated(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    return model.eval()


def searches(model: Any, context: Any, steps_B: Tensor, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """By search, outputs with the index of their input before them, (N, 1 + T)."""
    for name, selector in {
        "greedy": HardTopK(1),
        "beam": HardTopK(6),
        "sampling": HardTopK(1, noise=Gumbel()),
        "relaxed beam": SoftTopK(4, 10.0 ** float(torch.empty(()).uniform_(-2, 3, generator=generator))),
        "stochastic beam": None,
    }.items():
        if selector is None:
            beam = stochastic_beam_search(model, context, k=6, num_steps=steps_B, generator=generator).beam
        else:
            beam = beam_search(model, context, selector, num_steps=steps_B, generator=generator)
        live_BK = beam.scores_BK > -torch.inf
        assert bool(live_BK.any(1).all()), name
        rows_BK = torch.arange(len(steps_B))[:, None].expand_as(live_BK)
        yield name, torch.cat([rows_BK[live_BK][:, None], backtrace(beam)[live_BK]], 1)


@pytest.mark.slow
@torch.no_grad()
def test_a_million_outputs_are_all_legal(promise: Any) -> None:
    pytest.importorskip("interegular")
    counts: dict[tuple[str, str], int] = {}
    for language, make in LANGUAGES.items():
        generator, draw, made = torch.Generator().manual_seed(0), random.Random(0), 0
        while made < OUTPUTS / len(LANGUAGES):
            torch.manual_seed(made)  # each batch has another model
            case = make()
            case.model.language = case.language
            extra = 0 if case.model.end is None else 3
            lengths = [draw.randint(1, 8) for _ in range(2048)]
            sources = [EncodedExample(tuple(draw.randrange(1, 9) for _ in range(length)), ()) for length in lengths]
            context = case.model.encode(collate(sources))
            for search, found in searches(case.model, context, torch.tensor(lengths) + extra, generator):
                for row, *output in found.tolist():
                    written = tuple(output[: lengths[row] + extra])
                    assert case.is_legal(written), (language, search, written)
                counts[language, search] = counts.get((language, search), 0) + len(found)
                made += len(found)
    assert len(counts) == 5 * len(LANGUAGES) and sum(counts.values()) >= OUTPUTS
    for (_, search), count in counts.items():
        promise(f"{search} inside {', '.join(LANGUAGES)}", count, "the output is in the language")
