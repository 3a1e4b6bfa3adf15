"""Languages of context-free grammars and JSON schemas, which llguidance parses.

llguidance knows which tokens may follow a prefix, but not how many more finish the output. A *finish* of a prefix is a
short sequence of tokens that finishes it: a suffix of the finish of the previous prefix, or a few tokens before such a
suffix, found by trial. A token is allowed if a known finish fits into the remaining steps, so an output can always be
finished in time. Where many tokens may follow, outputs that need the very last step may be missed.

Shapes: B batch, J and K slots, C tokens allowed.
"""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seqwise.errors import InputError, first_line
from seqwise.search.automata import written_texts
from seqwise.search.language import NOWHERE, Allowed

Ids = tuple[int, ...]

ROOT, ENDED = 0, 1
"""Nodes of the empty prefix, and of all outputs that have ended."""

MOST_PREFIXES = 1 << 18
"""Number of prefixes that are remembered, or 4 for each slot if that is more."""

MOST_PARSERS = 1 << 12
"""Number of prefixes whose parsers are kept, or 4 for each slot; the others parse again."""

SHORT = 256
"""Number of tokens, those with the shortest texts, with which finishes are searched."""

FEW_TOKENS, FEW_STEPS = 32, 8
"""Numbers of allowed tokens and of steps left up to which shorter finishes are searched if no known one fits."""

MANY = 512
"""Number of allowed tokens above which prefixes share the list of tokens that do not change the finish."""

TRIES = 500
"""Number of continuations up to which breadth-first search looks for the shortest finish."""

MOST_WAYS = 16
"""Number of known finishes that are tried first after each token of a prefix."""

WALKS, LONGEST = 8, 1_000
"""Number of random walks that look for a finish, and largest number of tokens of each."""

SYNTAX = "write a JSON schema, or a grammar of Lark with a rule 'start' or of llama.cpp with a rule 'root'"
"""Hint for a grammar that cannot be read."""


def grammar(
    source: str | Mapping[str, Any],
    tokens: Sequence[str | None] | Mapping[int, str],
    *,
    first: Mapping[int, str] | None = None,
    end: int | None,
) -> Grammar:
    """Make the language of a grammar or a JSON schema over the text of the tokens, joined without blanks.

    Needs the extra ``constraints`` (llguidance), which first splits a text into the quoted texts and patterns of the
    grammar, the longest that may follow at each place: ``("a" | "ab") "b"`` is only abb, and ``/(a|ab)b/`` is ab or
    abb.

    Args:
        source: a JSON schema; or the text of a grammar in the syntax of Lark, with a rule ``start``, or of llama.cpp
            (GBNF), with a rule ``root``.
        tokens: text of each token id; None or "" for tokens that are never written (special ones).
        first: text of each token at the beginning, if that differs, "" for a blank that is dropped there; tokens
            without one never come first.
        end: end token of the model.

    Raises:
        InputError: there is no end token, the grammar is invalid, or no sequence of tokens was found that spells a text
            of it.

    Example:
        >>> import pytest
        >>> llguidance = pytest.importorskip("llguidance")
        >>> nested = grammar('start: "x" | "(" start ")"', ["x", "(", ")", "))", None], end=4)
        >>> nested.allowed(nested.start(1, torch.device("cpu")), 4)  # at most (x), and the end
        tensor([[[0, 1]]])
        >>> nested.allowed(nested.start(1, torch.device("cpu")), 3)
        tensor([[[0]]])
    """
    if end is None:
        problem = "a grammar needs an end token, and this model has none"
        raise InputError(problem, hint="use a pattern, or a list of outputs")
    return Grammar(source, *written_texts(tokens, first, end=end), end)


@dataclass(eq=False)
class _Prefix:
    """A prefix, with a known finish; the parser and the choices are dropped after a while."""

    before: _Prefix | None
    token: int
    key: tuple[int, int]  # node of the previous prefix, and token
    finish: Ids | None = None
    ways: tuple[Ids, ...] = ()  # short finishes found after this prefix and earlier ones; tried first
    parser: Any = None
    choices: _Choices | None = None


@dataclass(eq=False)
class _Choices:
    """Tokens that may follow a prefix."""

    finishes: dict[int, Ids | None]  # finish after each of these tokens, if known
    alike_C: np.ndarray  # other tokens, after which the finish of the prefix is still one
    none_within: dict[int, int] = field(default_factory=dict)  # steps within which a token is known to have no finish


class _Tried(NamedTuple):
    """A continuation of a prefix in the search for a finish."""

    parser: Any
    written: Ids
    following: Ids  # the short tokens that may follow


@dataclass(eq=False)
class Grammar:
    """Language of a grammar; made by :func:`grammar`.

    Nodes are numbers of prefixes. Parsing runs on the CPU, one prefix at a time.

    Args:
        source: see :func:`grammar`.
        texts, first: text of each token after others and at the beginning, without the end token.
        end: end token of the model.
        before: tokens that come before every output, whatever their text; see :meth:`after`.
    """

    source: str | Mapping[str, Any]
    texts: Mapping[int, str]
    first: Mapping[int, str]
    end: int
    before: Ids = ()

    def __post_init__(self) -> None:
        # If tokens have another text at the beginning, the parser has two symbols for each.
        self._size = max([self.end, *self.texts, *self.first]) + 1
        self._shift = self._size if self.first != self.texts else 0
        self._parser = self._parsed()
        self._silent = [token for token, text in self.first.items() if not text]  # which the parser does not read
        by_length = sorted(self.texts, key=lambda token: (len(self.texts[token].encode()), token))
        self._short = by_length[:SHORT]
        self._beginning: dict[tuple[bool, int], list[int]] = {}  # tokens by the first byte of their text
        for is_first, texts in ((False, self.texts), (True, self.first)):
            for token, text in texts.items():
                if text:
                    self._beginning.setdefault((is_first, text.encode()[0]), []).append(token)
        is_short = set(self._short)
        self._short_beginning = {
            key: [token for token in tokens if token in is_short] for key, tokens in self._beginning.items()
        }
        self._alike: OrderedDict[tuple[bytes, Ids], np.ndarray] = OrderedDict()
        self._prefixes = OrderedDict({ROOT: _Prefix(None, NOWHERE, (NOWHERE, NOWHERE), parser=self._parser)})
        self._parsing: OrderedDict[int, None] = OrderedDict()
        self._numbers: dict[tuple[int, int], int] = {}
        self._opening = range(ENDED + 1, ENDED + 1 + len(self.before))  # nodes before each of these tokens
        self._unused = count(self._opening.stop)
        self._without: dict[frozenset[int], Grammar] = {}
        root = self._prefixes[ROOT]
        root.finish = self._search(self._parser, [(self.end,)], shift=self._shift)
        if root.finish is None and self._silent:
            after = self._search(self._parser, [(self.end,)])
            root.finish = None if after is None else (self._silent[0], *after)
        if root.finish is None:
            problem = "no sequence of tokens was found that spells a text of the grammar"
            raise InputError(problem, hint="check the vocabulary")

    def __reduce__(self) -> tuple[Any, ...]:  # a parser cannot be copied to another process
        return Grammar, (self.source, self.texts, self.first, self.end, self.before)

    def after(self, tokens: Sequence[int]) -> Grammar:
        """Return the language of the same outputs with these tokens before each.

        Example: ``text_grammar(tokenizer, schema, end=model.end).after((bos,))``, for targets that begin with ``bos``.
        """
        return replace(self, before=(*tokens, *self.before)) if tokens else self

    def without(self, tokens: Sequence[int]) -> Grammar:
        """Return the language of the outputs that have none of these tokens.

        Raises an InputError if there is none, as when the end token is among them.
        """
        key = frozenset(tokens)
        if self.end in key:
            raise InputError(f"every output ends with the token {self.end}", hint="keep it")
        if key not in self._without:
            texts, first = (
                {token: text for token, text in every.items() if token not in key} for every in (self.texts, self.first)
            )
            has_any = not key.isdisjoint({*self.texts, *self.first})
            self._without[key] = Grammar(self.source, texts, first, self.end, self.before) if has_any else self
        return self._without[key]

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Return the node of the empty prefix for each input."""
        return torch.full((batch_size, 1), self._opening.start if self.before else ROOT, device=device)

    def allowed(self, nodes_BJ: Tensor, steps_left: int | Tensor | None) -> Tensor:
        """Return tokens of the grammar with a known finish within the remaining steps."""
        allowed = self.allowed_rows(nodes_BJ, steps_left)
        return allowed.spread(allowed.rows_UC)

    def allowed_rows(self, nodes_BJ: Tensor, steps_left: int | Tensor | None) -> Allowed:
        """Return the same with one row for all slots with the same prefix and number of steps."""
        (batch_size, num_slots), numbers = nodes_BJ.shape, nodes_BJ.flatten().tolist()
        self._bound(len(numbers))
        if isinstance(steps_left, Tensor):
            steps = steps_left.repeat_interleave(num_slots).tolist()
        else:
            steps = [steps_left] * len(numbers)
        slots = list(zip(numbers, steps, strict=True))
        allowed = {slot: self._allowed(*slot) for slot in dict.fromkeys(slots)}
        rows_UC = np.full((len(allowed), max([1, *map(len, allowed.values())])), NOWHERE)
        for row, tokens in zip(rows_UC, allowed.values(), strict=True):
            row[: len(tokens)] = tokens
        row_of = {slot: row for row, slot in enumerate(allowed)}
        row_N = torch.tensor([row_of[slot] for slot in slots], dtype=torch.long)
        device = nodes_BJ.device
        return Allowed(torch.from_numpy(rows_UC).to(device), (batch_size, num_slots), row_N.to(device))

    def advance(self, nodes_BJ: Tensor, parents_BK: Tensor, tokens_BK: Tensor) -> Tensor:
        """Return the nodes of the new prefixes, :data:`NOWHERE` if the grammar does not allow the token."""
        before = nodes_BJ.gather(1, parents_BK).flatten().tolist()
        self._bound(len(before))
        after = list(map(self._advance, before, tokens_BK.flatten().tolist()))
        return torch.tensor(after, dtype=torch.long, device=nodes_BJ.device).view(tokens_BK.shape)

    def _bound(self, num_slots: int) -> None:
        """Drop the parsers and choices that were used least recently."""
        while len(self._parsing) > max(MOST_PARSERS, 4 * num_slots):
            number, _ = self._parsing.popitem(last=False)
            if number in self._prefixes:
                self._prefixes[number].parser = self._prefixes[number].choices = None
        while len(self._prefixes) > max(MOST_PREFIXES, 4 * num_slots):
            _, prefix = self._prefixes.popitem(last=False)
            del self._numbers[prefix.key]

    def _prefix(self, number: int) -> _Prefix:
        prefix = self._prefixes.get(number)
        if prefix is None:
            problem = f"a search goes back to a prefix from more than {MOST_PREFIXES:,} prefixes ago"
            raise InputError(problem, hint="use a narrower search, or fewer inputs at once")
        for used in (ROOT, number):
            self._prefixes.move_to_end(used)
        if number != ROOT:
            self._parsing[number] = None
            self._parsing.move_to_end(number)
        if prefix.parser is None:
            written: list[int] = []
            parsed: _Prefix | None = prefix
            while parsed is not None and parsed.parser is None:
                written = [*self._symbols(parsed.before, parsed.token), *written]
                parsed = parsed.before
            assert parsed is not None
            prefix.parser = _after(parsed.parser, written)
        return prefix

    def _symbols(self, before: _Prefix | None, token: int) -> list[int]:
        """Return the parser's symbol for a token; none for a token without text."""
        is_first = before is not None and before.before is None
        if is_first and not self.first[token]:
            return []
        return [token + (self._shift if is_first else 0)]

    def _advance(self, number: int, token: int) -> int:
        if number == ENDED and token == self.end:
            return ENDED
        if number in (NOWHERE, ENDED) or token < 0:
            return NOWHERE
        if number in self._opening:
            place = number - self._opening.start
            if token != self.before[place]:
                return NOWHERE
            return number + 1 if number + 1 in self._opening else ROOT
        before = self._prefix(number)
        if token == self.end:
            return ENDED if before.parser.is_accepting() else NOWHERE
        after = self._numbers.get((number, token))
        if after is None:
            texts = self.first if number == ROOT else self.texts
            if token not in texts:
                return NOWHERE
            symbols = self._symbols(before, token)
            if before.parser.validate_tokens(symbols) != len(symbols):
                return NOWHERE
            after = self._numbers[number, token] = next(self._unused)
            self._prefixes[after] = _Prefix(before, token, (number, token))
        if before.choices is not None:
            finish = before.choices.finishes.get(token, before.finish)
            prefix = self._prefixes[after]
            if finish is not None and (prefix.finish is None or len(finish) < len(prefix.finish)):
                prefix.finish, prefix.choices = finish, None
        return after

    def _allowed(self, number: int, steps_left: int | None) -> np.ndarray:
        if number == NOWHERE:
            return np.zeros(0, dtype=np.int64)
        if number in self._opening:
            missing = self._opening.stop - number
            left = None if steps_left is None else steps_left - missing
            if (
                steps_left is not None
                and steps_left > 0
                and (steps_left <= missing or not len(self._allowed(ROOT, left)))
            ):
                return np.zeros(0, dtype=np.int64)
            return np.array([self.before[-missing]])
        if number == ENDED or (steps_left is not None and steps_left <= 0):
            return np.array([self.end])
        prefix = self._prefix(number)
        if steps_left == 1:
            return np.array([self.end] * bool(prefix.parser.is_accepting()), dtype=np.int64)
        if prefix.choices is None:
            prefix.choices = self._choices(prefix)
        choices, alike_C = prefix.choices, prefix.choices.alike_C
        most = None if steps_left is None else steps_left - 1
        if most is not None and most < FEW_STEPS and len(choices.finishes) <= FEW_TOKENS:
            self._shorten(prefix, choices, most)
        in_time = [token for token, finish in choices.finishes.items() if _fits(finish, most)]
        return np.concatenate([in_time, alike_C if _fits(prefix.finish, most) else []]).astype(np.int64)

    def _choices(self, prefix: _Prefix) -> _Choices:
        """Find a finish after each token that may follow."""
        parser, known = prefix.parser, prefix.finish
        if known is None:  # the prefix was reached without a call of `allowed`
            known = prefix.finish = self._search(parser, self._goals(prefix.before))
        shift = self._shift if prefix.before is None else 0
        tokens_C, alike_C = self._next(parser, shift), np.zeros(0, dtype=np.int64)
        finishes: dict[int, Ids | None] = {self.end: ()} if parser.is_accepting() else {}
        finished_by = [goal for goal in (known[1:], known) if goal] if known else []
        if known and len(tokens_C) > MANY:
            key = tokens_C.tobytes(), known
            if key not in self._alike:
                self._alike[key] = np.array(
                    [
                        token
                        for token in tokens_C.tolist()
                        if next((goal for goal in finished_by if _ends(parser, (token, *goal), shift)), ()) == known
                    ],
                    dtype=np.int64,
                )
                if len(self._alike) > MANY:
                    self._alike.popitem(last=False)
            self._alike.move_to_end(key)
            alike_C = self._alike[key]
            tokens_C = np.setdiff1d(tokens_C, alike_C, assume_unique=True)
        goals = self._goals(prefix)
        ways = _shortest({*finished_by, *(prefix.before.ways if prefix.before is not None else ())})
        for token in tokens_C.tolist():
            finish = next((way for way in ways if _ends(parser, (token, *way), shift)), None)
            if finish is None:
                finish = self._search(_after(parser, [token + shift]), goals)
                ways = ways if finish is None else _shortest({*ways, finish})
            finishes[token] = finish
        if self._silent and prefix.before is None:
            finishes |= dict.fromkeys(self._silent, self._search(parser, [(self.end,)]))
        prefix.ways = tuple(ways[:MOST_WAYS])
        return _Choices(finishes, alike_C)

    def _next(self, parser: Any, shift: int) -> np.ndarray:
        """Return the tokens that the grammar allows next, without the end token."""
        if parser.is_stopped():
            return np.zeros(0, dtype=np.int64)
        if forced := parser.compute_ff_bytes():
            # If only one text may follow, a bitmask has only the tokens of one of its spellings.
            spelling = self._beginning.get((shift > 0, forced[0]), [])
            return np.array([token for token in spelling if parser.validate_tokens([token + shift]) == 1], np.int64)
        bits = np.frombuffer(parser.compute_bitmask(), np.uint8)
        if parser.is_error():
            problem = first_line(parser.get_error())
            if problem.startswith("NoExtension"):  # no token spells what the grammar requires
                return np.zeros(0, dtype=np.int64)
            raise InputError(f"the grammar is too complex ({problem})", hint="simplify it")
        allowed_V = np.unpackbits(bits, bitorder="little")[shift : shift + self._size]
        allowed_V[self.end] = 0
        return allowed_V.nonzero()[0]

    def _shorten(self, prefix: _Prefix, choices: _Choices, most: int) -> None:
        """Search finishes of at most ``most`` tokens after the tokens for which none is known."""
        for token, finish in choices.finishes.items():
            if not _fits(finish, most) and choices.none_within.get(token, 0) < most:
                after = _after(prefix.parser, self._symbols(prefix, token))
                found = self._search(after, [(self.end,)], most=most, num_walks=0)
                choices.finishes[token] = found or finish
                choices.none_within[token] = most

    def _goals(self, prefix: _Prefix | None) -> list[Ids]:
        """Return the suffixes of the finish of a prefix, or of the last earlier one with a finish; short ones first."""
        while prefix is not None and prefix.finish is None:
            prefix = prefix.before
        finish = (self.end,) if prefix is None or prefix.finish is None else prefix.finish
        return [finish[place:] for place in reversed(range(len(finish)))]

    def _search(
        self, parser: Any, goals: list[Ids], *, shift: int = 0, most: int | None = None, num_walks: int = WALKS
    ) -> Ids | None:
        """Return the fewest tokens, or few, that end in one of the goals and finish; None if none are found.

        Args:
            parser: has read the prefix.
            goals: short ones first.
            shift: offset from the first token to its symbol.
            most: largest number of tokens.
            num_walks: see :meth:`_walk`, which is used if a breadth-first search becomes too broad.
        """
        layer, tries = [_Tried(parser, (), self._next_short(parser, shift))], 0
        while layer and (most is None or len(layer[0].written) < most):
            finishes = [
                (*tried.written, *goal) for tried in layer if (goal := _first_end(tried.parser, goals)) is not None
            ]
            if finishes:
                shortest = min(finishes, key=len)
                return shortest if most is None or len(shortest) <= most else None
            longer: list[_Tried] = []
            for tried in layer:
                longer += self._longer(tried, shift)
                if tries + len(longer) > TRIES:
                    return self._walk(parser, goals, shift, num_walks)
            layer, tries = longer, tries + len(longer)
        return None

    def _walk(self, parser: Any, goals: list[Ids], shift: int, num_walks: int) -> Ids | None:
        """Walk at random until a goal finishes, and shorten the shortest walk.

        Next tokens are grouped by the set of tokens that may follow them, and all groups are equally probable. The
        groups are those of the first prefix with the same next tokens, which is right often enough.
        """
        draw, best = random.Random(0), None
        kinds: dict[tuple[int, Ids], list[list[int]]] = {}
        for _ in range(num_walks):
            here = _Tried(parser, (), self._next_short(parser, shift))
            while here.following and len(here.written) < (LONGEST if best is None else len(best)):
                offset = 0 if here.written else shift
                if (offset, here.following) not in kinds:
                    by_set: dict[Ids, list[int]] = {}
                    for longer in self._longer(here, shift):
                        by_set.setdefault(longer.following, []).append(longer.written[-1])
                    kinds[offset, here.following] = list(by_set.values())
                token = draw.choice(draw.choice(kinds[offset, here.following]))
                after = _after(here.parser, [token + offset])
                here = _Tried(after, (*here.written, token), self._next_short(after))
                if (goal := _first_end(after, goals)) is not None:
                    finish = (*here.written, *goal)
                    best = finish if best is None or len(finish) < len(best) else best
                    break
        return None if best is None else _shrunk(parser, best, shift)

    def _longer(self, tried: _Tried, shift: int) -> list[_Tried]:
        """Return a continuation with one token more for each short token that may follow."""
        parsers = [
            (token, _after(tried.parser, [token + (0 if tried.written else shift)])) for token in tried.following
        ]
        return [_Tried(parser, (*tried.written, token), self._next_short(parser)) for token, parser in parsers]

    def _next_short(self, parser: Any, shift: int = 0) -> Ids:
        """Return the short tokens that may follow; if the vocabulary is large, a bitmask of all takes longer."""
        if self._size <= 4 * SHORT:
            return tuple(self._next(parser, shift).tolist())
        if parser.is_stopped():
            return ()
        forced = parser.compute_ff_bytes()
        candidates = self._short_beginning.get((shift > 0, forced[0]), []) if forced else self._short
        return tuple(token for token in candidates if parser.validate_tokens([token + shift]) == 1)

    def _parsed(self) -> Any:
        try:
            import llguidance
        except ModuleNotFoundError as error:
            raise InputError("grammars need llguidance", hint="pip install 'seqwise[constraints]'") from error
        words = [self.texts.get(token, "").encode() for token in range(self._size)]
        if self._shift:
            words += [self.first.get(token, "").encode() for token in range(self._size)]
        words[self.end] = b"<end>"
        tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Tokens(words, self.end)))
        try:
            if isinstance(self.source, str):
                text = llguidance.grammar_from("cfg", self.source)
            else:
                text = llguidance.grammar_from("json_schema", json.dumps(self.source))
        except (ValueError, TypeError) as error:
            raise InputError(f"the grammar cannot be read ({first_line(error)})", hint=SYNTAX) from None
        parser = llguidance.LLMatcher(tokenizer, text, log_level=0)
        if parser.is_error():
            raise InputError(f"the grammar cannot be read ({first_line(parser.get_error())})", hint=SYNTAX)
        return parser


class _Tokens:
    """Tokens in the interface that llguidance needs; it never tokenizes text here."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], end: int) -> None:
        self.tokens, self.eos_token_id, self.special_token_ids = tokens, end, [end]

    def __call__(self, text: bytes) -> list[int]:
        return []


def _after(parser: Any, symbols: list[int]) -> Any:
    """Return a parser that has read more."""
    copied = parser.deep_copy()
    copied.consume_tokens(symbols)
    return copied


def _ends(parser: Any, tokens: Ids, shift: int = 0) -> bool:
    """Whether tokens, the last of which is the end token, finish what a parser has read."""
    if len(tokens) == 1:
        return bool(parser.is_accepting())  # a stopped parser does not validate the end token
    return bool(parser.validate_tokens([tokens[0] + shift, *tokens[1:]]) == len(tokens))


def _first_end(parser: Any, goals: list[Ids]) -> Ids | None:
    return next((goal for goal in goals if _ends(parser, goal)), None)


def _shrunk(parser: Any, finish: Ids, shift: int) -> Ids:
    """Remove parts that a finish does not need, long ones first."""
    length = len(finish) - 1
    while length:
        place = 0
        while place + length < len(finish):
            shorter = finish[:place] + finish[place + length :]
            if _ends(parser, shorter, shift):
                finish = shorter
            else:
                place += 1 + length // 8
        length -= 1 + length // 8
    return finish


def _shortest(finishes: set[Ids]) -> list[Ids]:
    return sorted(finishes, key=lambda finish: (len(finish), finish))


def _fits(finish: Ids | None, steps: int | None) -> bool:
    return finish is not None and (steps is None or len(finish) <= steps)
