"""Languages of grammars and JSON schemas: against brute force on tiny vocabularies, and searches inside them."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import oracles
from parameters import quick
from seqwise import InputError, beam_search
from seqwise.sampling import sample_within
from seqwise.search import Gumbel, HardTopK, SoftTopK, backtrace, best_first, grammar, grammars
from seqwise.search.language import members, nodes_along
from seqwise.search.selectors import Selector

CPU = torch.device("cpu")
Ids = tuple[int, ...]


@pytest.fixture(autouse=True)
def _llguidance(request: pytest.FixtureRequest) -> None:
    if "without_the_extra" not in request.node.name:
        pytest.importorskip("llguidance", reason="grammars need the extra constraints (llguidance)")


def is_balanced(text: str) -> bool:
    while "(x)" in text:
        text = text.replace("(x)", "x")
    return text == "x"


def fits_schema(text: str) -> bool:
    """Whether a text is compact JSON: {"a": list of true and 1, and perhaps "b": such an object again}."""
    try:
        found = json.loads(text)
    except ValueError:
        return False

    def fits(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and list(value) in (["a"], ["a", "b"])
            and isinstance(value["a"], list)
            and all(each is True or each == 1 for each in value["a"])
            and all(map(fits, [value["b"]] if "b" in value else []))
        )

    return fits(found) and json.dumps(found, separators=(",", ":")) == text


SCHEMA: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"enum": [True, 1]}}, "b": {"$ref": "#/$defs/node"}},
            "required": ["a"],
            "additionalProperties": False,
        }
    },
    "x-guidance": {"whitespace_flexible": False},
}
# A grammar, the texts of tokens with several spellings and tokens that never fit, and an independent judge.
CASES: dict[str, tuple[str | dict[str, Any], list[str | None], Callable[[str], bool], int]] = {
    "lark": ('start: "x" | "(" start ")"', ["x", "(", ")", "))", "(x", "", None, "y"], is_balanced, 7),
    "gbnf": ('root ::= "x" | "(" root ")"', ["x", "(", ")", "((", "x)"], is_balanced, 7),
    "a long way": (
        'start: "a" | "b" "cc" "cc" "d"',
        ["a", "b", "c", "cc", "d", "bc"],
        lambda text: text in ("a", "bccccd"),
        6,
    ),
    "what no token spells": (
        'start: "a" ("b" | "a" "q")? | "q"',
        ["a", "b", "aa"],
        lambda text: text in ("a", "ab"),
        4,
    ),
    "a shorter way that is not the known one": (
        'start: "t"? "x" "y" | "t" "q"',
        ["x", "y", "t", "q"],
        lambda text: text in ("xy", "txy", "tq"),
        5,
    ),
    "counted": (
        'start: /[ab]{2,4}/ "c"',
        ["a", "ab", "c", "bc", "b"],
        lambda text: bool(re.fullmatch("[ab]{2,4}c", text)),
        5,
    ),
    "repeated": ('start: /[ab]+/ "c"', ["a", "b", "c"], lambda text: bool(re.fullmatch("[ab]+c", text)), 5),
    "json": (SCHEMA, ['{"a":', "[", "]", "}", "1", "true", ",", ',"b":', "]}"], fits_schema, 6),
}


def every(texts: list[str | None], is_inside: Callable[[str], bool], *, most: int, end: int) -> set[Ids]:
    """Every sequence of at most so many tokens, and the end, that spells a text inside."""
    written = [token for token, text in enumerate(texts) if text]
    outputs = (ids for length in range(most) for ids in itertools.product(written, repeat=length))
    return {(*ids, end) for ids in outputs if is_inside("".join(texts[token] or "" for token in ids))}


def listed(language: grammars.Grammar, num_steps: int | None) -> set[Ids]:
    """All outputs of a language, by what it allows; no prefix is a dead end."""
    found, waiting = set(), [((), language.start(1, CPU))]
    while waiting:
        written, node_11 = waiting.pop()
        steps_left = None if num_steps is None else num_steps - len(written)
        allowed = language.allowed(node_11, steps_left).flatten().tolist()
        tokens = [token for token in allowed if token >= 0]
        assert tokens and len(set(tokens)) == len(tokens)
        for token in tokens:
            output = (*written, token)
            if token == language.end:
                found.add(output)
            else:
                waiting.append((output, language.advance(node_11, torch.zeros_like(node_11), torch.tensor([[token]]))))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_grammar_allows_every_spelling_of_its_texts_and_nothing_else(name: str) -> None:
    source, texts, is_inside, longest = CASES[name]
    end = len(texts)
    language = grammar(source, texts, end=end)
    for num_steps in range(1, longest + 1):
        expected = every(texts, is_inside, most=num_steps, end=end)
        if expected:
            assert listed(language, num_steps) == expected
        else:
            assert bool((language.allowed(language.start(1, CPU), num_steps) < 0).all())


@pytest.mark.parametrize("name", ["lark", "a long way"])
def test_tokens_may_come_before_every_output(name: str) -> None:
    """Their text does not matter: one is a token of the grammar; the other has no text and is written twice."""
    source, texts, is_inside, longest = CASES[name]
    end, before = len(texts), (len(texts) + 1, 0, len(texts) + 1)
    language = grammar(source, texts, end=end).after(before[1:]).after(before[:1])
    for num_steps in range(1, longest + 4):
        expected = {(*before, *output) for output in every(texts, is_inside, most=num_steps - 3, end=end)}
        if expected:
            assert listed(language, num_steps) == expected
        else:
            assert bool((language.allowed(language.start(1, CPU), num_steps) < 0).all())
    output = max(expected)
    again = pickle.loads(pickle.dumps(language))
    for wrong in (output[1:], (0, *output[1:]), (*before, *output), output[:2]):
        outputs_BT = torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, (output, wrong))], True, -1)
        assert members(again, outputs_BT).tolist() == [True, False]


@pytest.mark.parametrize("name", ["a long way", "what no token spells", "a shorter way that is not the known one"])
def test_without_a_limit_a_finite_grammar_allows_all_its_outputs(name: str) -> None:
    source, texts, is_inside, _ = CASES[name]
    assert listed(grammar(source, texts, end=len(texts)), None) == every(texts, is_inside, most=7, end=len(texts))


def test_where_no_step_is_left_an_output_can_only_end() -> None:
    """As in a batch whose other inputs take more steps."""
    language, _ = nested(end=1)
    nodes_B1 = language.start(3, CPU)
    allowed_BC = language.allowed(nodes_B1, torch.tensor([0, 1, 2]))[:, 0]
    assert [[token for token in row if token >= 0] for row in allowed_BC.tolist()] == [[1], [], [0]]


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("lark", {"MANY": 1}),
        ("counted", {"MANY": 1}),
        ("repeated", {"MANY": 1}),
        ("counted", {"FEW_STEPS": 0}),
        ("json", {"FEW_STEPS": 0}),
        ("a shorter way that is not the known one", {"FEW_STEPS": 3, "FEW_TOKENS": 2}),
        ("gbnf", {"TRIES": 0}),
        ("counted", {"TRIES": 0}),
    ],
    ids=str,
)
def test_all_ways_to_find_finishes_agree(name: str, bounds: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all prefixes that share the list, not again when steps are few, again up to a bound, or by walks."""
    for bound, number in bounds.items():
        monkeypatch.setattr(grammars, bound, number)
    source, texts, is_inside, longest = CASES[name]
    for num_steps in (longest - 2, longest):
        language = grammar(source, texts, end=len(texts))
        assert listed(language, num_steps) == every(texts, is_inside, most=num_steps, end=len(texts))
        assert bool(language._alike) == ("MANY" in bounds)


@pytest.mark.thorough
def test_records_of_a_large_vocabulary_are_json_and_in_time() -> None:
    """Inside a text many tokens may follow, most of which do not change how it can finish, and few steps are left."""
    letters = [chr(place) for place in range(32, 127)]
    texts: list[str | None] = [None, *letters, *("".join(each) for each in itertools.product(letters[:40], repeat=2))]
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "more": {"type": "object", "required": ["a long name"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    language, generator = grammar(schema, texts, end=0), torch.Generator().manual_seed(0)
    steps_B = torch.arange(10, 34, 6)
    nodes_B1, written = language.start(len(steps_B), CPU), []
    for step in range(int(steps_B.max())):
        allowed_BC = language.allowed(nodes_B1, steps_B - step)[:, 0]
        assert bool((allowed_BC >= 0).any(1).all())
        chosen_B1 = torch.multinomial((allowed_BC >= 0).double(), 1, generator=generator)
        written.append(allowed_BC.gather(1, chosen_B1))
        nodes_B1 = language.advance(nodes_B1, torch.zeros_like(nodes_B1), written[-1])
    assert language._alike
    for row, num_steps in zip(torch.cat(written, 1).tolist(), steps_B.tolist(), strict=True):
        assert row.index(0) < num_steps
        record = json.loads("".join(texts[token] or "" for token in row))
        assert "name" in record and ("more" not in record or "a long name" in record["more"])


@pytest.mark.parametrize("name", quick(CASES, "json"))
def test_members_are_those_of_the_judge(name: str) -> None:
    source, texts, is_inside, _ = CASES[name]
    end = len(texts)
    language = grammar(source, texts, end=end)
    for length in range(4):
        for ids in itertools.product(range(end), repeat=length):
            is_spelt = all(texts[token] for token in ids)
            expected = is_spelt and is_inside("".join(texts[token] or "" for token in ids))
            assert bool(members(language, torch.tensor([[*ids, end]]))) == expected
            assert not bool(members(language, torch.tensor([[*ids, end, 0]])))
    longer = every(texts, is_inside, most=6, end=end)
    assert all(bool(members(language, torch.tensor([output]))) for output in longer)


def test_the_first_token_has_a_text_of_its_own() -> None:
    language = grammar('start: "a" (" " ("a" | "b"))*', [" a", " b", "a"], first={0: "a", 1: "b"}, end=3)
    expected = {(0, 3), *((0, token, 3) for token in (0, 1))}
    assert listed(language, 3) == expected


def test_a_blank_that_the_beginning_drops_may_come_first() -> None:
    texts, first, end = {0: " a", 1: "a", 2: " ", 3: "b"}, {0: "a", 2: ""}, 4
    expected: set[Ids] = set()
    language = grammar('start: "a" ("b" | " a")* | "b" "b"', texts, first=first, end=end)
    for output in (output for length in range(5) for output in itertools.product(range(4), repeat=length)):
        spelt = [(texts if place else first).get(token) for place, token in enumerate(output)]
        is_inside = None not in spelt and bool(re.fullmatch("a(b| a)*|bb", "".join(map(str, spelt))))
        expected |= {(*output, end)} if is_inside else set()
        assert bool(members(language, torch.tensor([[*output, end]]))) == is_inside, output
    assert (2, 3, 3, end) in expected and listed(language, 5) == expected
    # No text begins without the blank.
    language = grammar('start: "b"+', texts, first=first, end=end)
    assert listed(language, 4) == {(2, 3, end), (2, 3, 3, end)}


@pytest.mark.parametrize("name", ["lark", "counted", "json"])
def test_what_is_allowed_can_be_finished_without_another_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finish that was known when a token was allowed is still known after it."""
    source, texts, is_inside, longest = CASES[name]
    language = grammar(source, texts, end=len(texts))
    monkeypatch.setattr(grammars.Grammar, "_search", lambda *_, **__: None)
    outputs = listed(language, longest)
    assert outputs and outputs <= every(texts, is_inside, most=longest, end=len(texts))


def test_a_few_tokens_and_then_the_rest_of_a_known_finish_are_found_by_a_short_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    language = grammar('start: ("x" | "y" "z") "abcde"', list("xyzabcde"), end=8)
    monkeypatch.setattr(grammars, "TRIES", 3)
    monkeypatch.setattr(grammars.Grammar, "_walk", lambda *_: None)
    rest = (*range(3, 8), 8)
    assert listed(language, 9) == {(0, *rest), (1, 2, *rest)}


def test_tokens_after_a_prefix_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source, texts, _, longest = CASES["counted"]
    language = grammar(source, texts, end=len(texts))
    outputs = listed(language, longest)

    def again(*_: Any) -> None:
        raise AssertionError("looked for what may follow once more")

    monkeypatch.setattr(grammars.Grammar, "_choices", again)
    assert listed(language, longest) == outputs


@pytest.mark.parametrize("tries", [grammars.TRIES, 0])
def test_only_the_first_token_has_the_text_of_the_beginning(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a finish is found by a walk."""
    monkeypatch.setattr(grammars, "TRIES", tries)
    texts, first, end = {0: " a", 1: " b", 2: " "}, {0: "a", 1: "b", 2: ""}, 3
    assert listed(grammar('start: "a" " b" " a"', texts, first=first, end=end), 4) == {(0, 1, 0, end)}
    assert listed(grammar('start: " a"', texts, first=first, end=end), 3) == {(2, 0, end)}
    for source in ('start: "aa"', 'start: "c"'):
        with pytest.raises(InputError, match="no sequence of tokens was found"):
            grammar(source, texts, first=first, end=end)
    with pytest.raises(InputError, match="no sequence of tokens was found"):
        grammar('start: "c"', {**texts, 4: "c"}, first={0: "a"}, end=end)


@pytest.mark.parametrize("first", [None, {0: "a", 1: "b", 2: ""}])
def test_the_end_token_writes_no_text(first: dict[int, str] | None) -> None:
    """Whatever its text: one that the grammar has, or a blank that the beginning drops."""
    language = grammar('start: "a" "b"*', ["a", "b", "b"], first=first, end=2)
    assert listed(language, 3) == {(0, 2), (0, 1, 2)}


def nested(end: int = 1) -> tuple[grammars.Grammar, list[str]]:
    texts = ["x", "", "(", ")"]
    return grammar('start: "x" | "(" start ")"', texts, end=end), texts


@pytest.mark.parametrize("alpha", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("make", quick([oracles.translation_case, oracles.transformer_case], oracles.translation_case))
def test_nothing_that_is_searched_or_drawn_leaves_the_grammar(make: Callable[..., Any], alpha: float) -> None:
    case = make(3, target_size=4, lengths=(2, 3))
    language, texts = nested()
    case.model.language = language
    context, steps = case.model.encode(case.batch), torch.tensor([6, 5])
    selectors: list[Selector] = [HardTopK(1), HardTopK(4), SoftTopK(3, alpha), HardTopK(1, noise=Gumbel())]
    rows = []
    for selector in selectors:
        beam = beam_search(case.model, context, selector, num_steps=steps)
        is_live = beam.scores_BK > -torch.inf
        assert bool(is_live.any(1).all())
        rows += backtrace(beam)[is_live].tolist()
    for method in ("rejection", "metropolis"):
        drawn = sample_within(case.model, context, language, num_steps=steps, num_samples=30, method=method)
        rows += drawn.tokens_BNT.flatten(0, 1).tolist()
    rows += best_first(case.model, context, 3, num_steps=steps).tokens_BKT.flatten(0, 1).tolist()
    for row in rows:
        if any(token >= 0 for token in row):
            assert 1 in row and is_balanced("".join(texts[token] for token in row[: row.index(1)]))


def test_samples_follow_the_conditional_distribution() -> None:
    """Of all outputs of a grammar, by the model's own probabilities."""
    case = oracles.translation_case(5, target_size=4, lengths=(2,))
    language, texts = nested()
    outputs = sorted(every(texts, is_balanced, most=6, end=1))
    context = case.model.encode(case.batch)
    log_probs = []
    for output in outputs:
        forced = oracles.forced_logits(case.oracles[0], output)
        scores = [logits[token] - oracles.log_sum_exp(logits) for logits, token in zip(forced, output, strict=True)]
        log_probs.append(sum(scores))
    expected = torch.tensor(log_probs).softmax(0)
    drawn = sample_within(case.model, context, language, num_steps=6, num_samples=4000, method="rejection")
    counts = torch.zeros(len(outputs))
    for row in drawn.tokens_BNT[0].tolist():
        counts[outputs.index(tuple(row[: row.index(1) + 1]))] += 1
    assert float((counts / counts.sum() - expected).abs().sum()) / 2 < 0.03


def test_prefixes_are_forgotten_and_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run keeps neither parsers nor prefixes, and what it allows does not depend on what was forgotten."""
    monkeypatch.setattr(grammars, "MOST_PARSERS", 8)
    monkeypatch.setattr(grammars, "MOST_PREFIXES", 200)
    texts: list[str | None] = ["a", "b", '"', "[", "]", ","]
    source = 'start: value\nvalue: "[" [value ("," value)*] "]" | "\\"" /[ab]*/ "\\""'
    language, fresh = (grammar(source, texts, end=6) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        nodes_B1 = language.start(12, CPU)
        outputs: list[list[int]] = [[] for _ in range(12)]
        for steps_left in range(20, 0, -1):
            allowed_BC = language.allowed(nodes_B1, steps_left)[:, 0]
            chosen_B1 = torch.multinomial((allowed_BC >= 0).double(), 1, generator=generator)
            tokens_B1 = allowed_BC.gather(1, chosen_B1)
            for output, token in zip(outputs, tokens_B1.flatten().tolist(), strict=True):
                output.append(token)
            nodes_B1 = language.advance(nodes_B1, torch.zeros_like(nodes_B1), tokens_B1)
        assert all(output[-1] == 6 for output in outputs)
    assert len(language._prefixes) <= 200 + 12 and len(language._numbers) < len(language._prefixes)
    gc.collect()
    parsers = [each for each in gc.get_objects() if isinstance(each, grammars._Prefix) and each.parser is not None]
    assert len(parsers) < 200
    for output in outputs:
        *_, node_11 = nodes_along(fresh, torch.tensor([output]))
        assert int(node_11) == grammars.ENDED
    forgotten = next(number for number in range(2, 10_000) if number not in language._prefixes)
    with pytest.raises(InputError, match="goes back to a prefix"):
        language.allowed(torch.tensor([[forgotten]]), 5)


def test_a_grammar_can_be_copied_to_another_process() -> None:
    language, _ = nested()
    assert listed(pickle.loads(pickle.dumps(language)), 5) == listed(language, 5)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("start: a b", "cannot be read"),
        ({"type": "nonsense"}, "cannot be read .*nonsense"),
        ({"enum": {"a"}}, "cannot be read .*set"),  # which is nothing that JSON has
        ('start: "z"', "no sequence of tokens was found"),
    ],
)
def test_invalid_grammars_are_refused_in_one_line(source: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        grammar(source, ["a", "b"], end=2)
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="needs an end token"):
        grammar('start: "a"', ["a"], end=None)


def test_without_the_extra_grammars_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"pip install 'seqwise\[constraints\]'"):
        grammar('start: "a"', ["a"], end=1)


def test_a_text_is_split_into_the_longest_parts_unless_the_grammar_is_one_pattern() -> None:
    """As the guide says; a pattern has both outputs."""
    texts = ["a", "b"]
    for source, outputs in [
        ('start: ("a" | "ab") "b"', {"abb"}),
        ('root ::= ("a" | "ab") "b"', {"abb"}),
        ("start: /(a|ab)b/", {"ab", "abb"}),
    ]:
        language = grammar(source, texts, end=2)
        every = [ids for length in range(4) for ids in itertools.product(range(2), repeat=length)]
        inside = {
            "".join(texts[n] for n in ids) for ids in every if members(language, torch.tensor([[*ids, 2]])).item()
        }
        assert inside == outputs, source
