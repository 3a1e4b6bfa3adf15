"""Languages as automata: a list of outputs (a trie), transitions between labels, a regular expression.

Shapes: S states, A arcs (a state, a token, and the state that it leads to), V vocabulary, B batch, J and K slots, C
tokens allowed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index

import torch
from torch import Tensor

from seqwise.devices import reading_is_free
from seqwise.errors import InputError
from seqwise.search.language import NOWHERE, Allowed

_COUNT = r"\{(?:\d+,?|,)\d*\}"
_PARTS = re.compile(
    rf"\\(?:x..|.)|(?P<misread>\(\?<?[=!]|\[\^?\]|(?<=[^|(])\{{\}}|(?:[*+?]|{_COUNT})(?:[*+]|{_COUNT}))"
    r"|(?P<set>\[(?:\\.|[^\]\\])*\])|.",
    re.DOTALL,
)
"""Escapes, sets and characters of a pattern; ``misread`` matches what interegular reads differently from ``re``."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """Deterministic finite automaton over tokens, as a :class:`~seqwise.search.language.Language`.

    State 0 is the start. A step takes O(B J C) time for all slots, and O(B K log A) to advance.

    Args:
        arcs: (state, token, next state), int64 (A, 3); at most one for a state and a token.
        final_S: whether an output may end in each state, bool.

    Raises:
        InputError: two arcs leave a state with the same token, or a number is negative or not a state.

    Example:
        >>> even = Automaton(torch.tensor([[0, 7, 1], [1, 7, 0]]), torch.tensor([True, False]))  # 7 7 7 7 ...
        >>> even.allowed(torch.tensor([[0]]), 3), even.allowed(torch.tensor([[0]]), 4)
        (tensor([[[-1]]]), tensor([[[7]]]))
    """

    arcs: Tensor
    final_S: Tensor
    _tables: dict[torch.device, _Tables] = field(default_factory=dict, init=False, repr=False)
    _without: dict[tuple[int, ...], Automaton] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        num_states = len(self.final_S)
        if len(self.arcs) and (int(self.arcs.min()) < 0 or int(self.arcs[:, [0, 2]].max()) >= num_states):
            raise InputError(f"an arc of the automaton has a negative number, or leads outside its {num_states} states")
        if len(torch.unique(self.arcs[:, :2], dim=0)) < len(self.arcs):
            raise InputError("two arcs of the automaton leave one state with the same token", hint="determinise it")

    @property
    def is_open_ended(self) -> bool:
        """Whether an output may end after every token and may always continue, as streams require."""
        goes_on_S = torch.zeros_like(self.final_S).index_fill(0, self.arcs[:, 0], True)
        return bool(self.final_S[self.arcs[:, 2]].all() & goes_on_S[self.arcs[:, 2]].all() & goes_on_S[0])

    def after(self, tokens: Sequence[int]) -> Automaton:
        """Return the language of the same outputs with these tokens before each.

        Example:
            >>> language = trie([(3, 4)], end=0).after((7, 8))
            >>> from seqwise.search.language import members
            >>> members(language, torch.tensor([[7, 8, 3, 4, 0], [3, 4, 0, -1, -1]]))
            tensor([ True, False])
        """
        count = len(tokens)
        before = [(place, token, place + 1) for place, token in enumerate(tokens)]
        moved = self.arcs + torch.tensor([count, 0, count])
        arcs = torch.cat([torch.tensor(before, dtype=torch.long).reshape(-1, 3), moved])
        return Automaton(arcs, torch.cat([torch.zeros(count, dtype=torch.bool), self.final_S]))

    def without(self, tokens: Sequence[int]) -> Automaton:
        """Return the language of the outputs that have none of these tokens.

        Example:
            >>> language = trie([(3, 4), (3, 5)], end=0).without((4,))
            >>> from seqwise.search.language import members
            >>> members(language, torch.tensor([[3, 4, 0], [3, 5, 0]]))
            tensor([False,  True])
        """
        key = tuple(tokens)
        if key not in self._without:
            is_left_A = ~torch.isin(self.arcs[:, 1], torch.tensor(key, device=self.arcs.device))
            self._without[key] = self if bool(is_left_A.all()) else Automaton(self.arcs[is_left_A], self.final_S)
        return self._without[key]

    def start(self, batch_size: int, device: torch.device) -> Tensor:
        """Return state 0 for each input."""
        return torch.zeros(batch_size, 1, dtype=torch.long, device=device)

    def allowed(self, nodes_BJ: Tensor, steps_left: int | Tensor | None) -> Tensor:
        """Return tokens of arcs from which a final state is reachable in the remaining steps."""
        allowed = self.allowed_rows(nodes_BJ, steps_left)
        return allowed.spread(allowed.rows_UC)

    def allowed_rows(self, nodes_BJ: Tensor, steps_left: int | Tensor | None) -> Allowed:
        """Return the same with one row for each state and number of steps.

        Each slot has its own row where finding these would make the host wait.
        """
        if not reading_is_free(nodes_BJ):
            return Allowed.of(self._allowed(nodes_BJ, steps_left))
        size, keys_BJ = len(self.final_S) - NOWHERE, nodes_BJ - NOWHERE
        if isinstance(steps_left, Tensor):  # node and number of steps as one number: faster to sort than pairs
            keys_BJ = keys_BJ + size * steps_left[:, None]
        keys_U, row_BJ = torch.unique(keys_BJ, return_inverse=True)
        steps_U = keys_U // size if isinstance(steps_left, Tensor) else steps_left
        rows_UC = self._allowed((keys_U % size + NOWHERE)[:, None], steps_U)[:, 0]
        return Allowed(rows_UC, (nodes_BJ.shape[0], nodes_BJ.shape[1]), row_BJ.flatten())

    def _allowed(self, nodes_BJ: Tensor, steps_left: int | Tensor | None) -> Tensor:
        tables = self._on(nodes_BJ.device)
        states_BJ = nodes_BJ.clamp(min=0)
        first_BJ = tables.first_S[states_BJ]
        count_BJ = (tables.first_S[states_BJ + 1] - first_BJ).masked_fill(nodes_BJ < 0, 0)
        width = max(int(count_BJ.max()), 1) if count_BJ.numel() else 1
        columns_C = torch.arange(width, device=nodes_BJ.device)
        places_BJC = (first_BJ[..., None] + columns_C).clamp(max=max(len(tables.tokens_A) - 1, 0))
        if not len(tables.tokens_A):
            return torch.full((*nodes_BJ.shape, 1), -1, device=nodes_BJ.device)
        can_end_BJC = tables.can_end(tables.targets_A[places_BJC], steps_left)
        taken_BJC = (columns_C < count_BJ[..., None]) & can_end_BJC
        return tables.tokens_A[places_BJC].masked_fill(~taken_BJC, -1)

    def advance(self, nodes_BJ: Tensor, parents_BK: Tensor, tokens_BK: Tensor) -> Tensor:
        """Follow the arc of each token; without an arc, return :data:`NOWHERE`."""
        tables = self._on(nodes_BJ.device)
        states_BK = nodes_BJ.gather(1, parents_BK)
        if not len(tables.tokens_A):
            return torch.full_like(states_BK, NOWHERE)
        keys_BK = states_BK * tables.size + tokens_BK
        places_BK = torch.searchsorted(tables.keys_A, keys_BK).clamp(max=len(tables.keys_A) - 1)
        known_BK = (tables.keys_A[places_BK] == keys_BK) & (states_BK >= 0) & (tokens_BK >= 0)
        known_BK &= tokens_BK < tables.size
        return torch.where(known_BK, tables.targets_A[places_BK], NOWHERE)

    def _on(self, device: torch.device) -> _Tables:
        if device not in self._tables:
            self._tables[device] = _Tables(self.arcs.to(device), self.final_S.to(device))
        return self._tables[device]


class _Tables:
    """Arcs sorted by state and token, and the states from which an output can be finished, on one device."""

    def __init__(self, arcs: Tensor, final_S: Tensor) -> None:
        self.size = int(arcs[:, 1].max()) + 1 if len(arcs) else 1
        keys_A = arcs[:, 0] * self.size + arcs[:, 1]
        self.keys_A, order_A = keys_A.sort()
        self.sources_A, self.tokens_A, self.targets_A = arcs[order_A].unbind(1)
        states_S = torch.arange(len(final_S) + 1, device=arcs.device)
        self.first_S = torch.searchsorted(self.sources_A.contiguous(), states_S)
        # By number of arcs: whether a path of exactly this length leads to a final state, until this stops changing.
        self._exactly = [final_S]
        self._has_converged = False
        self._eventually_S: Tensor | None = None

    def can_end(self, states: Tensor, steps_left: int | Tensor | None) -> Tensor:
        """Whether outputs can be finished after reaching these states, (B, ...); true if no steps are left."""
        if steps_left is None:
            return self._eventually()[states]
        if isinstance(steps_left, int):
            if steps_left <= 0:
                return torch.ones_like(states, dtype=torch.bool)
            return self._after(steps_left - 1)[states]
        longest = int(steps_left.max()) if steps_left.numel() else 0
        exactly_NS = torch.stack([self._after(steps) for steps in range(max(longest, 1))])
        spread_B = steps_left.view(-1, *[1] * (states.dim() - 1))
        return exactly_NS[(spread_B - 1).clamp(min=0), states] | (spread_B <= 0)

    def _after(self, steps: int) -> Tensor:
        while not self._has_converged and len(self._exactly) <= steps:
            next_S = self._before(self._exactly[-1])
            self._has_converged = torch.equal(next_S, self._exactly[-1])
            if not self._has_converged:
                self._exactly.append(next_S)
        return self._exactly[min(steps, len(self._exactly) - 1)]

    def _eventually(self) -> Tensor:
        if self._eventually_S is None:
            reached_S = self._exactly[0]
            while not torch.equal(further_S := reached_S | self._before(reached_S), reached_S):
                reached_S = further_S
            self._eventually_S = reached_S
        return self._eventually_S

    def _before(self, states_S: Tensor) -> Tensor:
        """Return states with an arc into some of the states."""
        none_S = torch.zeros(len(states_S), dtype=torch.uint8, device=states_S.device)
        return none_S.scatter_reduce(0, self.sources_A, states_S[self.targets_A].to(torch.uint8), "amax").bool()


def trie(outputs: Iterable[Sequence[int]], *, end: int | None = None) -> Automaton:
    """Make the language of a list of outputs, such as a catalogue or a lexicon.

    Args:
        outputs: tokens of each output, without the end token; repeated ones count once.
        end: end token of the model, which then follows every output.

    Raises:
        InputError: there are no outputs, one is no sequence of token ids, or one contains the end token.

    Example:
        >>> language = trie([(3, 4), (3, 5, 6)], end=0)
        >>> language.allowed(language.start(1, torch.device("cpu")), 3)  # 3 5 6 needs one token more, the end
        tensor([[[3]]])
    """
    children: list[dict[int, int]] = [{}]
    lasts = set()
    for output in outputs:
        state = 0
        for token in _ids(output):
            if token == end:
                raise InputError(f"an output of the language contains the end token {end}", hint="leave it out")
            if token not in children[state]:
                children[state][token] = len(children)
                children.append({})
            state = children[state][token]
        lasts.add(state)
    if not lasts:
        raise InputError("a language needs at least one output")
    arcs = [(state, token, next_state) for state, row in enumerate(children) for token, next_state in row.items()]
    return _automaton(arcs, lasts, num_states=len(children), end=end)


def _ids(output: Sequence[int]) -> list[int]:
    try:
        return [index(token) for token in output]
    except TypeError:
        problem = f"an output of the language is {str(output)[:60]!r}, not a sequence of token ids"
        raise InputError(problem, hint="give the ids of its tokens; for text, use a pattern") from None


def transitions(
    allowed_VV: Tensor, *, first_V: Tensor | None = None, last_V: Tensor | None = None, end: int | None = None
) -> Automaton:
    """Make a language of allowed transitions between neighbouring tokens.

    Args:
        allowed_VV: bool, whether token w may follow token v, at [v, w].
        first_V: bool, tokens that may come first; by default all.
        last_V: bool, tokens that may come last; by default all.
        end: end token of the model; its row and column are ignored.

    Example:
        >>> alternating = transitions(~torch.eye(2, dtype=torch.bool))
        >>> node_11 = alternating.advance(torch.tensor([[0]]), torch.tensor([[0]]), torch.tensor([[1]]))
        >>> alternating.allowed(node_11, None)
        tensor([[[0]]])
    """
    size = len(allowed_VV)
    every_V = torch.ones(size, dtype=torch.bool)
    before, token = torch.cat([(every_V if first_V is None else first_V).cpu()[None], allowed_VV.cpu()]).nonzero().T
    arcs = torch.stack([before, token, token + 1], 1)  # state v + 1 follows token v
    lasts = ((every_V if last_V is None else last_V).cpu().nonzero()[:, 0] + 1).tolist()
    if end is not None:
        arcs = arcs[(arcs[:, 1] != end) & (arcs[:, 0] != end + 1)]
        lasts = [state for state in lasts if state != end + 1]
    return _automaton(arcs.tolist(), lasts, num_states=size + 1, end=end)


def regular(
    pattern: str,
    tokens: Sequence[str | None] | Mapping[int, str],
    *,
    first: Mapping[int, str] | None = None,
    end: int | None = None,
) -> Automaton:
    """Make the language of a regular expression over the text of the tokens, joined without blanks.

    Needs the extra ``constraints`` (interegular).

    Args:
        pattern: a regular expression that must match the whole text, as in ``re.fullmatch`` with ``re.ASCII``. Not
            understood: ``^``, ``$``, ``\\b``, lookaround, back-references, comments, possessive quantifiers (``a*+``),
            empty braces (``a{}``), the escapes ``\\u0041``, ``\\N{...}`` and ``\\0``, a bracket that comes first in a
            set without a backslash (``[^]]``), two of ``\\D``, ``\\S``, ``\\W`` in one set, and, if case is ignored,
            letters beyond ASCII and ``\\W`` beside letters in a set.
        tokens: text of each token id; None or "" for tokens that are never written (special ones).
        first: text of each token at the beginning, if that differs, "" for a blank that is dropped there; tokens
            without one never come first.
        end: end token of the model.

    Raises:
        InputError: the pattern is invalid, or no sequence of tokens spells a match.

    Example:
        >>> language = regular("ab*", ["a", "b", "ab", "abc", None], end=4)
        >>> language.allowed(language.start(1, torch.device("cpu")), 9)
        tensor([[[0, 2]]])
    """
    try:
        import interegular
    except ModuleNotFoundError as error:
        raise InputError("patterns need interegular", hint="pip install 'seqwise[constraints]'") from error
    misread = _misread(pattern)
    if misread is not None:  # interegular would accept it
        hint = (
            r"write a bracket in a set as \], braces as \{\}, one quantifier, and (\W|\S) in place of [\W\S]; leave "
            "out lookaround, and (?i) beside letters beyond ASCII"
        )
        raise InputError(f"the pattern {pattern!r} cannot be read ({misread!r} is not understood)", hint=hint)
    try:
        with warnings.catch_warnings(action="ignore"):  # of re, about sets that interegular reads alike
            re.compile(pattern, re.ASCII)  # refuses what interegular takes for characters, such as {1}a
        machine = interegular.parse_pattern(pattern).to_fsm().reduce()
    except Exception as error:  # interegular raises errors of several classes, without a common base
        # Others are faults of its own.
        is_said = isinstance(error, re.error) or type(error).__module__.startswith("interegular")
        reason = str(error) if is_said else ""
        problem = f"the pattern {pattern!r} cannot be read ({reason or 'not understood'})"
        hint = "write it for re.fullmatch with re.ASCII, without ^, $, \\b, lookaround, back-references and comments"
        raise InputError(problem, hint=hint) from None
    texts, firsts = written_texts(tokens, first, end=end)
    spelt, spelt_first = _letters(texts.items()), _letters(firsts.items())
    # The beginning is a state of its own, None: tokens may lead back to the initial state of the machine.
    numbers: dict[object, int] = {None: 0}
    arcs, waiting = [], list[object]([None])
    while waiting:
        state = waiting.pop()
        here = (machine.initial, spelt_first) if state is None else (state, spelt)
        for token, reached in _spell(machine, *here):
            if not machine.islive(reached):
                continue
            if reached not in numbers:
                numbers[reached] = len(numbers)
                waiting.append(reached)
            arcs.append((numbers[state], token, numbers[reached]))
    finals = machine.finals | ({None} if machine.initial in machine.finals else set())
    lasts = [number for state, number in numbers.items() if state in finals]
    language = _automaton(arcs, lasts, num_states=len(numbers), end=end)
    if not bool((language.allowed(language.start(1, torch.device("cpu")), None) >= 0).any()):
        raise InputError(f"no sequence of tokens spells a text that {pattern!r} matches", hint="check the vocabulary")
    return language


def _misread(pattern: str) -> str | None:
    """Return the first part of a pattern that interegular reads differently from ``re``, or None."""
    ignores_case = re.search(r"\(\?\w*i", pattern) is not None
    for part in _PARTS.finditer(pattern):
        if part["misread"] is not None:
            return part["misread"]
        # It ignores the case of every letter, and re.ASCII that of ASCII letters only.
        written = re.sub(r"\\x([0-9A-Fa-f]{2})", lambda code: chr(int(code[1], 16)), part[0].replace(r"\\", ""))
        if ignores_case and any(not letter.isascii() and letter.swapcase() != letter for letter in written):
            return part[0]
        members = (part["set"] or "").replace(r"\\", "")
        complements = re.findall(r"\\[DSW]", members)
        # Of several complements, it takes the intersection. If case is ignored, it puts a letter, once taken from the
        # word characters, back as that of the other case.
        letters = re.search(r"[A-Za-z]|.-.", re.sub(r"\\[dDsSwW]|\d-\d", "", members))
        if len(complements) > 1 or (ignores_case and r"\W" in complements and letters):
            return part["set"]
    return None


def written_texts(
    tokens: Sequence[str | None] | Mapping[int, str], first: Mapping[int, str] | None, *, end: int | None
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the text of each token that may be written, behind others and at the beginning, where it may be empty.

    Args: see :func:`regular`.

    Example:
        >>> written_texts({0: "a", 1: " ", 2: ""}, {0: "a", 1: "", 2: ""}, end=None)
        ({0: 'a', 1: ' '}, {0: 'a', 1: ''})
    """
    every = tokens if isinstance(tokens, Mapping) else dict(enumerate(tokens))
    texts = {token: text for token, text in every.items() if text and token != end}
    if first is None:
        return texts, texts
    return texts, {token: text for token, text in first.items() if token != end and (text or token in texts)}


def _automaton(arcs: Sequence[Sequence[int]], lasts: Iterable[int], *, num_states: int, end: int | None) -> Automaton:
    """Make an automaton; an end token leads to a final state that repeats it."""
    final_S = torch.zeros(num_states + (end is not None), dtype=torch.bool)
    every = [tuple(arc) for arc in arcs]
    if end is None:
        final_S[list(lasts)] = True
    else:
        final_S[num_states] = True
        every += [(state, end, num_states) for state in sorted(lasts)] + [(num_states, end, num_states)]
    return Automaton(torch.tensor(every, dtype=torch.long).reshape(-1, 3), final_S)


@dataclass
class _Letter:
    """Node of a trie of token texts: those that end here, and the next letters."""

    tokens: list[int] = field(default_factory=list)
    following: dict[str, _Letter] = field(default_factory=dict)


def _letters(texts: Iterable[tuple[int, str]]) -> _Letter:
    root = _Letter()
    for token, text in texts:
        node = root
        for letter in text:
            node = node.following.setdefault(letter, _Letter())
        node.tokens.append(token)
    return root


def _spell(machine: object, state: object, spelt: _Letter) -> list[tuple[int, object]]:
    """Return the tokens that a state of an automaton over letters accepts, each with its next state."""
    import interegular

    found, waiting = [], [(spelt, state)]
    while waiting:
        node, here = waiting.pop()
        found += [(token, here) for token in node.tokens]
        moves = machine.map.get(here, {})  # type: ignore[attr-defined]
        alphabet = machine.alphabet  # type: ignore[attr-defined]
        for letter, below in node.following.items():
            symbol = alphabet[letter] if letter in alphabet else alphabet[interegular.fsm.anything_else]
            if symbol in moves:
                waiting.append((below, moves[symbol]))
    return found
