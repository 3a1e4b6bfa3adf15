"""Suggested examples of the development data, ranked by disagreement between searches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations
from threading import Lock

from seqwise.data.batches import EncodedExample
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.evaluation.metrics import edit_distance
from seqwise.pages.explorer.questions import MOST_TOKENS
from seqwise.runs.decoder_choice import choose_decoder, decoders_for
from seqwise.runs.inputs import read_examples
from seqwise.runs.run import OutputRun, search

MOST_EXAMPLES = 200
"""Largest number of development examples to compare."""

LARGEST_BATCH = 32  # examples


def disagreement(outputs: Sequence[Sequence[int]]) -> tuple[int, float]:
    """Return the number of distinct outputs, and their mean edit distance per token of the longer output.

    Example:
        >>> disagreement([(1, 2), (1, 2), (1, 3)])
        (2, 0.3333333333333333)
    """
    pairs = [edit_distance(a, b) / max(len(a), len(b), 1) for a, b in combinations(outputs, 2)]
    return len({tuple(output) for output in outputs}), sum(pairs) / max(len(pairs), 1)


class Suggestions:
    """Development examples of a run; searches are compared on a few at a time."""

    def __init__(self, run: OutputRun) -> None:
        self.run = run
        examples, self.note = _development_examples(run)
        short = [example for example in examples if 1 < len(example.source) <= MOST_TOKENS // 4 and example.target]
        # Subword codecs read the whole text as one token.
        self._examples = (short or examples)[:MOST_EXAMPLES]
        blank = "" if run.settings.task != "tag" and run.settings.target_units == "characters" else " "
        self.texts = [(run.codec.source_text(example), blank.join(example.target)) for example in self._examples]
        self._disagreements: list[tuple[int, float]] = []
        self._lock = Lock()

    @property
    def is_complete(self) -> bool:
        """Whether all examples have been compared."""
        return len(self._disagreements) == len(self._examples)

    def compare_for(self, seconds: float) -> int:
        """Compare the searches on more examples for some seconds; return the total number compared."""
        deadline, batch_size = time.monotonic() + seconds, 1
        with self._lock:
            while not self.is_complete and time.monotonic() < deadline:
                start = len(self._disagreements)
                self._disagreements += self._compare(self._examples[start : start + batch_size])
                batch_size = min(2 * batch_size, LARGEST_BATCH)
            return len(self._disagreements)

    def order(self) -> list[int]:
        """Return the indices of the examples: by decreasing disagreement, then those not yet compared."""
        known = list(self._disagreements)
        ranked = sorted(range(len(known)), key=lambda place: (-known[place][0], -known[place][1]))
        return ranked + list(range(len(known), len(self._examples)))

    def _compare(self, examples: Sequence[Example]) -> list[tuple[int, float]]:
        encoded = {place: source for place, example in enumerate(examples) for source in self._encode(example)}
        outputs: dict[int, list[tuple[int, ...]]] = {place: [] for place in encoded}
        for name in decoders_for(self.run.settings):
            decoder = choose_decoder(self.run.settings, name)
            hypotheses = search(self.run, list(encoded.values()), decoder)
            for place, best in zip(encoded, hypotheses, strict=True):
                outputs[place].append(best[0].tokens)
        return [disagreement(outputs.get(place, ())) for place in range(len(examples))]

    def _encode(self, example: Example) -> list[EncodedExample]:
        try:
            return self.run.codec.encode_sources([example])
        except InputError:  # examples that the run cannot read come last
            return []


def _development_examples(run: OutputRun) -> tuple[list[Example], str]:
    """Return the examples, or an empty list and a note that says why."""
    offer = "seqwise explore --file FILE offers examples."
    if run.settings.dev is None:
        return [], f"The run was trained without development data; {offer}"
    try:
        return read_examples(run.settings, run.settings.dev), ""
    except (InputError, OSError) as error:
        return [], f"The run's development data cannot be read ({error}); {offer}"
