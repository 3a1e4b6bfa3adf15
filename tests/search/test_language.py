"""Languages: automata against sets and `re`, and searches inside them against loops; no output is outside."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from seqwise import InputError, beam_search, hamming_cost
from seqwise.data import EncodedExample, collate
from seqwise.decoding import decode
from seqwise.models import ChainTagger, EncoderDecoder
from seqwise.objectives.beam_likelihood import beam_crf_objective, dense_beam_objective
from seqwise.objectives.objective import cross_entropy_objective
from seqwise.objectives.search_aware import hinge_objective, relaxed_beam_objective
from seqwise.search import (
    Automaton,
    Gumbel,
    HardTopK,
    Score,
    SoftArgmax,
    SoftTopK,
    backtrace,
    global_,
    local,
    regular,
    renormalized,
    stochastic_beam_search,
    transitions,
    trie,
    viterbi,
)
from seqwise.search.automata import written_texts
from seqwise.search.language import (
    NOWHERE,
    Allowed,
    allowed_logits,
    members,
    nodes_along,
    require_first_token,
    require_members,
    require_output,
)
from seqwise.search.selectors import Selector

CPU = torch.device("cpu")
Ids = tuple[int, ...]
OBJECTIVES = [relaxed_beam_objective, hinge_objective, beam_crf_objective, dense_beam_objective]
SCORES = {"masked": local, "renormalized": renormalized, "raw": global_}


def allowed_by(outputs: Collection[Ids], *, end: int | None) -> oracles.Allowed:
    """What a list of outputs allows, by looking at each of them."""

    def allowed(prefix: Ids, steps_left: int) -> set[int]:
        if end is not None and end in prefix:
            return {end}
        found = set()
        for output in outputs:
            whole = output if end is None else (*output, end)
            in_time = len(whole) - len(prefix)
            if whole[: len(prefix)] == prefix and (in_time == steps_left if end is None else 0 < in_time <= steps_left):
                found.add(whole[len(prefix)])
        return found

    return allowed


def some_outputs(
    draw: np.random.Generator, tokens: Sequence[int], lengths: Sequence[int], *, share: float = 0.3
) -> set[Ids]:
    """Some of all outputs of these lengths, at least one of each."""
    chosen: set[Ids] = set()
    for length in lengths:
        every = list(itertools.product(tokens, repeat=length))
        chosen |= {every[int(draw.integers(len(every)))]}
        chosen |= {output for output in every if draw.random() < share}
    return chosen


def of_score(score: Score) -> dict[str, Any]:
    return {"log_partition_weight": score.log_partition_weight, "over": score.over}


# ---------------------------------------------------------------------------------------- automata


@pytest.mark.parametrize("seed", range(8))
def test_a_trie_is_its_list_of_outputs(seed: int) -> None:
    draw, end = np.random.default_rng(seed), [None, 2][seed % 2]
    tokens = [token for token in range(4) if token != end]
    outputs = some_outputs(draw, tokens, [1, 2, 4], share=0.15)
    language, expected = trie(outputs, end=end), allowed_by(outputs, end=end)
    for length in range(5):
        prefixes = list(itertools.product(range(4), repeat=length))
        *_, nodes_N1 = nodes_along(language, torch.tensor(prefixes, dtype=torch.long).view(len(prefixes), length))
        for steps_left in (1, 2, 4):
            rows = language.allowed(nodes_N1, steps_left)[:, 0].tolist()
            for prefix, found in zip(prefixes, rows, strict=True):
                parts = ((prefix[:place], prefix[place]) for place in range(length))
                is_prefix = all(any(token in expected(part, steps) for steps in range(1, 6)) for part, token in parts)
                wanted = expected(prefix, steps_left) if is_prefix else set()
                assert sorted(token for token in found if token >= 0) == sorted(wanted)  # each once


@pytest.mark.parametrize("end", [None, 3])
def test_transitions_allow_what_each_pair_allows(end: int | None) -> None:
    draw = torch.Generator().manual_seed(0)
    pairs_VV, first_V, last_V = (torch.rand(size, generator=draw) < 0.5 for size in ((5, 5), (5,), (5,)))
    language = transitions(pairs_VV, first_V=first_V, last_V=last_V, end=end)
    tokens = [token for token in range(5) if token != end]
    for length in (1, 2, 3, 4):
        for output in itertools.product(tokens, repeat=length):
            fits = bool(first_V[output[0]] and last_V[output[-1]])
            fits = fits and all(bool(pairs_VV[v, w]) for v, w in itertools.pairwise(output))
            whole = output if end is None else (*output, end)
            assert bool(members(language, torch.tensor([whole]))) == fits


@pytest.mark.parametrize("pattern", ["(ab|c)*", "a{2,3}b?", "[^a]+", "a.c|b", "(a|b)(c|bb)+a?"])
def test_a_regular_expression_allows_what_re_matches(pattern: str) -> None:
    pytest.importorskip("interegular")
    texts = ["a", "b", "c", "ab", "bc", "aab", None, "", "d"]
    language = regular(pattern, texts, end=6)
    written = [token for token, text in enumerate(texts) if text]
    for length in range(4):
        for output in itertools.product(written, repeat=length):
            text = "".join(texts[token] or "" for token in output)
            is_member = bool(members(language, torch.tensor([[*output, 6]])))
            assert is_member == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize("pattern", ["ab*", "a.*", r"a\Wb", "[^b]*", "(a b)*", "(b| b)?", "a[^ ]b", ".{2}"])
def test_tokens_may_be_spelt_differently_at_the_beginning(pattern: str) -> None:
    """As those of a sentence piece, whose blank the first one drops; also where a text may begin again, or be empty."""
    pytest.importorskip("interegular")
    texts, first = {0: " a", 1: " b", 2: "b", 3: " ", 4: "é"}, {0: "a", 1: "b", 3: "", 5: "ab"}
    language = regular(pattern, texts, first=first, end=6)
    for length in range(4):
        for output in itertools.product(range(6), repeat=length):
            spelt = [(first if place == 0 else texts).get(token) for place, token in enumerate(output)]
            fits = None not in spelt and re.fullmatch(pattern, "".join(map(str, spelt)), re.ASCII) is not None
            assert bool(members(language, torch.tensor([[*output, 6]]))) == fits, spelt


@pytest.mark.parametrize("pattern", ["^a$", r"a\b", r"(a)\1"])
def test_unsupported_pattern_syntax_is_refused_with_the_reason(pattern: str) -> None:
    pytest.importorskip("interegular")
    with pytest.raises(InputError) as caught:
        regular(pattern, ["a", "b"])
    assert "re.fullmatch with re.ASCII, without ^, $" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("[^]]", "b"),
        ("[]a]+", "]a"),
        ("(a|b){1,2}+c", "abc"),
        ("a?+b", "ab"),
        (r"[\D\W]", "a"),
        (r"[\D_\S]", "a"),
        (r"(?i)[a-b\W]", "a"),
        ("(?=b)b", "b"),
        ("b(?!a)", "b"),
        ("(?i:b)(?!a)", "b"),
        ("a(?<=a)b", "ab"),
        ("a(?<!b)b", "ab"),
        ("(?i)é", "é"),
        ("(?i)[^é]", "a"),
        (r"(?i:\xe9)", "é"),
    ],
)
def test_syntax_that_re_reads_differently_is_refused(pattern: str, matches: str) -> None:
    """And the same characters where they have no such meaning are not."""
    pytest.importorskip("interegular")
    assert re.fullmatch(pattern, matches)
    with pytest.raises(InputError, match="is not understood"):
        regular(pattern, ["a", "b", "c", "]"])
    alike = [(r"[^\]]", "a"), ("[[]a", "[a"), (r"\[]", "[]"), (r"[*+?+]\?+", "+??"), (r"a\*+", "a**")]
    alike += [(r"(\D|\W)[\W\d]", "a1"), (r"[\\D\\S]", "S"), (r"(?i)[^\W\d_][^\W0-9]", "aB"), (r"[^a-b\W]", "c")]
    alike += [(r"\(\?=a\)", "(?=a)"), ("[(?=a]+", "(?=a"), ("[éÉ]", "É"), (r"\x41\101", "AA"), ("(?i)a·", "A·")]
    for other, text in alike:
        letters = sorted(set(text))
        language = regular(other, letters)
        assert re.fullmatch(other, text)
        assert bool(members(language, torch.tensor([[letters.index(letter) for letter in text]])))


def test_tokens_may_come_before_every_output_of_an_automaton() -> None:
    for outputs, before in (([(2, 0), (1,)], (3, 2)), ([(2, 0)], ()), ([(0, 1, 1)], (0,))):
        language = trie(outputs, end=4).after(before)
        for length in range(5):
            for output in itertools.product(range(4), repeat=length):
                is_one = output[: len(before)] == before and output[len(before) :] in outputs
                assert members(language, torch.tensor([[*output, 4]])).item() == is_one


def test_tokens_without_text_and_the_end_token_are_never_written() -> None:
    texts = {0: "a", 1: "", 2: None, 3: "b"}
    assert written_texts(texts, None, end=3) == ({0: "a"}, {0: "a"})  # type: ignore[arg-type]
    assert written_texts(["a", "", None, "b"], None, end=None) == ({0: "a", 3: "b"}, {0: "a", 3: "b"})
    pytest.importorskip("interegular")
    language = regular("a+b?", ["a", "", None, "b"], end=3)
    assert language.allowed(language.start(1, CPU), None).flatten().tolist() == [0]


def test_outputs_may_be_tensors() -> None:
    language = trie(torch.tensor([[1, 2, 1, 2], [1, 2, 1, 1]]).unbind())  # type: ignore[arg-type]
    assert len(language.arcs) == 5  # three that both share, and the last of each


def test_the_language_of_the_empty_output_leads_nowhere() -> None:
    language = trie([()])
    start_B1 = language.start(2, CPU)
    assert language.allowed(start_B1, None).tolist() == language.allowed(start_B1, 1).tolist() == [[[-1]], [[-1]]]
    assert language.advance(start_B1, torch.tensor([[0, 0], [0, 0]]), torch.tensor([[0, 1], [5, -1]])).eq(-1).all()
    assert not members(language, torch.tensor([[0], [5]])).any()


@pytest.mark.parametrize("steps_left", [None, 2, torch.tensor([3, 0, 3, -1])], ids=["no limit", "number", "by input"])
def test_slots_in_one_state_with_as_many_steps_left_share_a_row(steps_left: int | torch.Tensor | None) -> None:
    """A row holds what the state allows with this number of steps alone."""
    language = trie([(1, 2), (1, 2, 1), (2,), (3, 1, 1, 1)], end=0)
    nodes_BJ = torch.tensor([[0, 1, 0, NOWHERE], [1, 2, NOWHERE, 0], [0, 3, 1, 0], [0, 0, 0, 0]])
    limits = steps_left.tolist() if isinstance(steps_left, torch.Tensor) else [steps_left] * 4
    slots = [(node, limit) for row, limit in zip(nodes_BJ.tolist(), limits, strict=True) for node in row]
    allowed = language.allowed_rows(nodes_BJ, steps_left)
    assert len(allowed.rows_UC) == len(set(slots))
    for found, (node, limit) in zip(allowed.spread(allowed.rows_UC).flatten(0, 1).tolist(), slots, strict=True):
        alone = language.allowed(torch.tensor([[node]]), limit).flatten().tolist()
        assert {*found} - {-1} == {*alone} - {-1}


def test_members_are_exact_lengths_and_batches() -> None:
    language = trie([(1, 2), (1, 2, 1), (2,)])
    outputs = torch.tensor([[1, 2, -1], [1, 2, 1], [2, -1, -1], [2, 1, -1], [1, -1, -1], [-1, -1, -1]])
    assert members(language, outputs).tolist() == [True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: trie([]), "at least one output"),
        (lambda: trie([(1, 0)], end=0), "end token 0"),
        (lambda: trie(["ab"]), "'ab', not a sequence of token ids"),
        (lambda: trie([3]), "'3', not a sequence"),  # type: ignore[list-item]
        (lambda: Automaton(torch.tensor([[0, 1, 0], [0, 1, 1]]), torch.ones(2, dtype=torch.bool)), "same token"),
        (lambda: Automaton(torch.tensor([[0, 1, 2]]), torch.ones(2, dtype=torch.bool)), "outside its 2 states"),
        (lambda: Automaton(torch.tensor([[0, -1, 1]]), torch.ones(2, dtype=torch.bool)), "negative"),
    ],
)
def test_invalid_languages_are_refused(make: Callable[[], Automaton], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


def test_invalid_patterns_and_patterns_without_a_match_are_refused() -> None:
    pytest.importorskip("interegular")
    with pytest.raises(InputError, match="cannot be read"):
        regular("a(", ["a"])
    for repeated in ("a**", "a+*", "a?*", "a{1}{2}", "a{2}*", "a*{2,}", "a*+"):  # errors in re, or other languages
        with pytest.raises(InputError, match="is not understood"):
            regular(repeated, ["a"])
    with pytest.raises(InputError, match=r"'\{\}' is not understood\); .* braces as"):
        regular("xa{}", ["x", "a", "{", "}"])
    for braces in ("{}", "(a|{})a", r"\{\}"):  # read as re reads them
        language = regular(braces, ["a", "{", "}"])
        for length in range(4):
            for output in itertools.product(range(3), repeat=length):
                text = "".join("a{}"[token] for token in output)
                expected = re.fullmatch(braces, text) is not None
                assert members(language, torch.tensor([output], dtype=torch.long)).item() == expected
    with pytest.raises(InputError, match=r"cannot be read \(nothing to repeat"):
        regular("{1}a", ["a", "{", "}", "1"])
    assert len(regular("(a*?)*a{2,3}", ["a"]).arcs) > 0
    with pytest.raises(InputError, match=r"cannot be read \(not understood\); .* and comments"):
        regular("(?#c)a", ["a"])
    with pytest.raises(InputError, match="no sequence of tokens spells"):
        regular("x+", ["a", "b"])


# ---------------------------------------------------------------------------------------- searches against loops


def cases(seed: int) -> list[tuple[oracles.Case, set[Ids]]]:
    """Models that write as many tokens as they read, and models that end; with a language of each."""
    draw = np.random.default_rng(seed)
    tagger = oracles.tagger_case(seed, target_size=3, lengths=(3, 1, 4))
    translator = oracles.translation_case(seed, target_size=4, lengths=(2, 3))
    transformer = oracles.transformer_case(seed, target_size=4, lengths=(2, 3))
    return [
        (tagger, some_outputs(draw, range(3), [1, 3, 4], share=0.2)),
        (translator, some_outputs(draw, [0, 2, 3], [1, 2, 3, 5], share=0.1)),
        (transformer, some_outputs(draw, [0, 2, 3], [0, 2, 3], share=0.2)),
    ]


def steps_of(case: oracles.Case) -> list[int]:
    if case.model.end is None:
        return [len(example.source_ids) for example in case.examples]
    return [3 + row for row in range(len(case.examples))]


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("seed", range(3))
def test_hard_beams_are_those_of_the_loop(seed: int, score: Score) -> None:
    for (case, outputs), k in itertools.product(cases(seed), (1, 2, 5)):
        end, steps = case.model.end, steps_of(case)
        case.model.language = trie(outputs, end=end)
        context = case.model.encode(case.batch)
        beam = beam_search(case.model, context, HardTopK(k), num_steps=torch.tensor(steps), score=score)
        for row, (oracle, num_steps) in enumerate(zip(case.oracles, steps, strict=True)):
            expected = oracles.hard_beam(
                oracle, k=k, num_steps=num_steps, allowed=allowed_by(outputs, end=end), **of_score(score)
            )
            live = beam.scores_BK[row] > -torch.inf
            assert int(live.sum()) == len(expected)
            found = backtrace(beam)[row, live, :num_steps].tolist()
            assert found == [list(hypothesis.tokens) for hypothesis in expected]
            torch.testing.assert_close(
                beam.scores_BK[row, live], torch.tensor([each.score for each in expected]).double(), atol=1e-10, rtol=0
            )


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_slots_in_one_state_share_the_tokens_that_they_may_write(score: Score) -> None:
    case, num_steps = oracles.tagger_case(2, target_size=4, lengths=(4, 4)), 4
    case.model.language = Automaton(torch.tensor([[0, 1, 0], [0, 3, 0]]), torch.tensor([True]))
    outputs = list(itertools.product((1, 3), repeat=num_steps))
    beam = beam_search(case.model, case.model.encode(case.batch), HardTopK(5), num_steps=num_steps, score=score)
    for row, oracle in enumerate(case.oracles):
        expected = oracles.hard_beam(
            oracle, k=5, num_steps=num_steps, allowed=allowed_by(outputs, end=None), **of_score(score)
        )
        assert backtrace(beam)[row].tolist() == [list(hypothesis.tokens) for hypothesis in expected]
        scores = torch.tensor([each.score for each in expected], dtype=torch.float64)
        torch.testing.assert_close(beam.scores_BK[row], scores, atol=1e-10, rtol=0)


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("seed", range(3))
def test_relaxed_beams_are_those_of_the_loop(seed: int, score: Score) -> None:
    for (case, outputs), (k, alpha) in itertools.product(cases(seed), ((1, 0.7), (3, 2.0))):
        end, steps, size = case.model.end, steps_of(case), len(case.model.embedding_VD)
        case.model.language = trie(outputs, end=end)
        gold = torch.zeros(len(steps), max(steps), dtype=torch.long)
        beam = beam_search(
            case.model,
            case.model.encode(case.batch),
            SoftTopK(k, alpha),
            num_steps=torch.tensor(steps),
            score=replace(score, cost_weight=0.5),
            cost=hamming_cost(gold, size),
        )
        for row, (oracle, num_steps) in enumerate(zip(case.oracles, steps, strict=True)):
            expected = oracles.soft_beam(
                oracle,
                k=k,
                alpha=alpha,
                num_steps=num_steps,
                cost=oracles.hamming([0] * num_steps, size),
                cost_weight=0.5,
                allowed=allowed_by(outputs, end=end),
                **of_score(score),
            )
            live = [slot for slot in expected if slot.score > -math.inf]
            assert min(slot.clearance for slot in expected) > 1e-9
            for name, values in (("scores", beam.scores_BK), ("costs", beam.costs_BK)):
                wanted = torch.tensor([getattr(slot, name[:-1]) for slot in live], dtype=torch.float64)
                torch.testing.assert_close(values[row, : len(live)], wanted, atol=1e-9, rtol=0)
            found = backtrace(beam)[row, : len(live), :num_steps].tolist()
            assert found == [list(slot.tokens) for slot in live]


def test_a_language_of_everything_changes_nothing() -> None:
    case = oracles.tagger_case(4)
    context, steps = case.model.encode(case.batch), torch.tensor(steps_of(case))
    for selector, score in itertools.product((HardTopK(3), SoftTopK(3, 1.0), SoftArgmax(2.0)), SCORES.values()):
        case.model.language = None
        without = beam_search(case.model, context, selector, num_steps=steps, score=score)
        case.model.language = transitions(torch.ones(4, 4, dtype=torch.bool))
        beam = beam_search(case.model, context, selector, num_steps=steps, score=score)
        torch.testing.assert_close(beam.scores_BK, without.scores_BK, atol=1e-10, rtol=0)
        assert torch.equal(backtrace(beam), backtrace(without))


def test_renormalized_scores_are_local_ones_without_a_language() -> None:
    logits = torch.randn(3, 7)
    assert torch.equal(renormalized(logits), local(logits))


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_few_allowed_tokens_of_many_score_as_if_all_were_masked(score: Score) -> None:
    model = EncoderDecoder(source_size=5, target_size=5000, end=0, embedding_size=8, hidden_size=8).eval()
    draw = np.random.default_rng(0)
    outputs = [tuple(draw.integers(1, 5000, length).tolist()) for length in draw.integers(1, 5, 40)]
    case = oracles.translation_case(0)
    context = model.encode(case.batch)
    model.language = trie(outputs, end=0)
    with torch.no_grad():
        beam = beam_search(model, context, HardTopK(4), num_steps=6, score=score)  # rows of the head alone, if raw
    with_graph = beam_search(model, context, HardTopK(4), num_steps=6, score=score)
    assert torch.equal(backtrace(beam), backtrace(with_graph))
    torch.testing.assert_close(beam.scores_BK, with_graph.scores_BK.detach(), atol=1e-5, rtol=1e-5)
    assert bool(members(model.language, backtrace(beam).flatten(0, 1)).all())


@pytest.mark.parametrize(
    "selector", [HardTopK(3), SoftTopK(3, 2.0), HardTopK(1, noise=Gumbel())], ids=["hard", "soft", "sample"]
)
@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_each_step_computes_the_head_once(selector: Selector, score: Score) -> None:
    """Without gradients too, where the logits are not kept."""
    case, calls = oracles.translation_case(0), list[int]()
    case.model.head = torch.nn.Sequential(case.model.head)  # no linear head, whose rows could be used alone
    case.model.head.register_forward_hook(lambda *_: calls.append(1))
    case.model.language = trie([(2,), (3, 2), (0, 0)], end=1)
    with torch.no_grad():
        beam = beam_search(case.model, case.model.encode(case.batch), selector, num_steps=4, score=score)
    assert len(calls) == backtrace(beam).shape[-1] == 4


# ---------------------------------------------------------------------------------------- never outside


@pytest.mark.thorough
@settings(deadline=None, max_examples=8)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([1e-3, 0.3, 3.0, 1e3]))
def test_nothing_leaves_the_language(seed: int, k: int, alpha: float) -> None:
    """Hard, soft, sampled, stochastic: every live hypothesis of every search, also where the beam has room for more."""
    for case, outputs in cases(seed):
        end, steps = case.model.end, torch.tensor(steps_of(case))
        case.model.language = trie(outputs, end=end)
        context = case.model.encode(case.batch)
        selectors: list[Selector] = [
            HardTopK(k),
            SoftTopK(k, alpha),
            SoftArgmax(alpha),
            SoftArgmax(alpha, noise=Gumbel()),
            HardTopK(1, noise=Gumbel()),
        ]
        generator = torch.Generator().manual_seed(seed)
        search = partial(beam_search, case.model, context, num_steps=steps, generator=generator)
        beams = [search(selector, score=score) for selector in selectors for score in SCORES.values()]
        beams.append(stochastic_beam_search(case.model, context, k=k, num_steps=steps, generator=generator).beam)
        for beam in beams:
            is_live = beam.scores_BK > -torch.inf
            assert bool(is_live.any(1).all())
            assert bool(members(case.model.language, backtrace(beam)[is_live]).all())


def test_searches_without_output_are_refused() -> None:
    case = oracles.translation_case(0)
    case.model.language = trie([(2, 3, 2)], end=1)
    with pytest.raises(InputError, match="no output that a search of 3 steps"):
        decode(case.model, case.model.encode(case.batch), "beam", num_steps=3)
    assert decode(case.model, case.model.encode(case.batch), "greedy", num_steps=4)[0][0].tokens == (2, 3, 2)


# ---------------------------------------------------------------------------------------- limits and gradients


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_the_relaxed_beam_tends_to_the_hard_one(score: Score) -> None:
    for case, outputs in cases(7):
        case.model.language = trie(outputs, end=case.model.end)
        context, steps = case.model.encode(case.batch), torch.tensor(steps_of(case))
        hard = beam_search(case.model, context, HardTopK(3), num_steps=steps, score=score)
        soft = beam_search(case.model, context, SoftTopK(3, 1e9), num_steps=steps, score=score)
        assert torch.equal(backtrace(hard), backtrace(soft))
        torch.testing.assert_close(soft.scores_BK, hard.scores_BK, atol=1e-6, rtol=0)


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("make", OBJECTIVES, ids=lambda make: make.__name__)
def test_gradients_inside_a_language(make: Callable[..., Any], score: Score) -> None:
    for case, _ in cases(11)[:2]:
        # Gold is in the language.
        end, tokens = case.model.end, [0, 2] if case.model.end == 1 else range(3)
        outputs = some_outputs(np.random.default_rng(1), tokens, [1, 3, 4])
        outputs |= {tuple(token for token in each.target_ids if token != end) for each in case.examples}
        case.model.language = trie(outputs, end=end)
        oracles.require_gradients(case, make(k=3, score=score), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_renormalized_likelihoods_over_the_whole_language_are_cross_entropy(seed: int) -> None:
    """Probabilities inside the language sum to 1, so that a beam that holds all of it normalises by 1."""
    cross_entropy = cross_entropy_objective(score="renormalized")
    for case, _ in cases(seed):
        end = case.model.end
        golds = {tuple(token for token in each.target_ids if token != end) for each in case.examples}
        tokens = [token for token in range(len(case.model.embedding_VD)) if token != end]
        # Taggers know one length in advance, translators any up to that of gold.
        outputs = some_outputs(np.random.default_rng(seed), tokens, sorted({len(gold) for gold in golds}), share=0.1)
        case.model.language = trie(outputs | golds, end=end)
        expected = []
        for oracle, example in zip(case.oracles, case.examples, strict=True):
            gold = tuple(example.target_ids)
            allowed = allowed_by(outputs | golds, end=end)
            num_steps = len(gold) + (end is not None)
            for step, logits in enumerate(oracles.forced_logits(oracle, gold)):
                kept = allowed(gold[:step], num_steps - step)
                expected.append(oracles.log_sum_exp([logits[token] for token in kept]) - logits[gold[step]])
        loss = float(cross_entropy(case.model, case.batch, {}))
        assert loss == pytest.approx(np.mean(expected), abs=1e-10)
        whole = beam_crf_objective(k=200, score="renormalized")
        assert float(whole(case.model, case.batch, {})) == pytest.approx(loss, abs=1e-9)


def test_gold_outside_the_language_is_refused_by_losses_that_follow_it() -> None:
    case = oracles.translation_case(0)
    case.model.language = trie([(2, 3, 2), (0,)], end=1)
    for objective in (dense_beam_objective(k=2, score="global"), cross_entropy_objective(score=renormalized)):
        with pytest.raises(InputError, match="is not in the language"):
            objective(case.model, case.batch, {})


def test_only_inputs_with_steps_left_need_an_output() -> None:
    none = Allowed.of(torch.full((2, 1, 1), -1))
    require_first_token(none, torch.tensor([0, 0]))
    require_first_token(none, 0)
    require_first_token(Allowed.of(torch.tensor([[[-1]], [[-1]], [[4]]])), torch.tensor([0, -1, 2]))
    with pytest.raises(InputError, match="a search of 1 step can"):
        require_first_token(none, torch.tensor([0, 1]))
    with pytest.raises(InputError, match="a search of 1 step can"):
        require_first_token(none, 1)
    with pytest.raises(InputError, match="the language is empty"):
        require_first_token(none, None)


def test_a_language_without_an_output_of_so_many_steps_is_refused() -> None:
    """By what its first tokens lead to."""
    language = trie([(2, 0), (0, 1)])
    require_output(language, 2)
    require_output(None, 7)
    with pytest.raises(InputError, match="a search of 3 steps can"):
        require_output(language, 3)


def test_an_output_outside_the_language_is_named_without_its_padding() -> None:
    with pytest.raises(InputError, match=r"output \[2, 0\] is not in the language"):
        require_members(trie([(2, 0, 1), (0,)]), torch.tensor([[0, -1, -1], [2, 0, -1]]))


# ---------------------------------------------------------------------------------------- particular selections


@pytest.mark.parametrize("seed", range(4))
def test_viterbi_in_a_language_of_transitions_finds_its_best_output(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = oracles.randomised(ChainTagger(source_size=5, target_size=4, embedding_size=3, hidden_size=4), seed, 1.0)
    pairs_VV, first_V, last_V = (torch.rand(size, generator=generator) < 0.6 for size in ((4, 4), (4,), (4,)))
    pairs_VV.fill_diagonal_(True)
    first_V[0] = last_V[0] = True  # at least 0 0 ... is allowed
    model.language = transitions(pairs_VV, first_V=first_V, last_V=last_V)
    context = model.encode(collate([EncodedExample((1, 2, 3, 4), ()), EncodedExample((3, 1), ())]))
    beam = beam_search(model, context, viterbi, num_steps=context.lengths_B, score=global_)
    chain = model.chain(context)
    for row, length in enumerate(context.lengths_B.tolist()):
        scores = {}
        for output in itertools.product(range(4), repeat=length):
            pairs = list(itertools.pairwise(output))
            if first_V[output[0]] and last_V[output[-1]] and all(pairs_VV[pair] for pair in pairs):
                scores[output] = sum(float(chain.scores_BTV[row, step, label]) for step, label in enumerate(output))
                scores[output] += sum(float(chain.transitions_VV[pair]) for pair in pairs)
        best = max(scores, key=lambda output: scores[output])
        slot = int(beam.scores_BK[row].argmax())
        assert tuple(backtrace(beam)[row, slot, :length].tolist()) == best
        assert float(beam.scores_BK[row, slot]) == pytest.approx(scores[best], abs=1e-9)


def test_stochastic_beams_draw_every_output_of_a_small_language() -> None:
    case = oracles.translation_case(2)
    outputs = [(2,), (3, 2), (), (0, 0)]
    case.model.language = trie(outputs, end=1)
    drawn = stochastic_beam_search(case.model, case.model.encode(case.batch), k=9, num_steps=4)
    live = drawn.beam.scores_BK > -torch.inf
    assert live.sum(1).tolist() == [4] * len(case.examples)
    torch.testing.assert_close(drawn.beam.scores_BK.exp().sum(1), torch.ones(len(case.examples)).double())


def test_allowed_logits_are_those_of_the_loop() -> None:
    outputs = {(0, 2), (0, 0, 2), (2,)}
    allowed = allowed_by(outputs, end=1)
    logits = torch.randn(2, 4, 4)
    gold = torch.tensor([[0, 2, 1, -1], [0, 0, 2, 1]])
    inside = allowed_logits(logits, gold, trie(outputs, end=1))
    for row, step in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)):
        kept = allowed(tuple(gold[row, :step].tolist()), 99)
        expected = [value if token in kept else -math.inf for token, value in enumerate(logits[row, step].tolist())]
        assert inside[row, step].tolist() == expected
    gold[0] = 2  # outside from the second token on
    assert torch.equal(allowed_logits(logits, gold, trie(outputs, end=1))[0, 2:], logits[0, 2:])


def test_without_the_extra_patterns_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "interegular", None)
    with pytest.raises(InputError, match=r"pip install 'seqwise\[constraints\]'"):
        regular("a", ["a"])
