"""Words that must or must not occur, however subwords spell them: exact targets, starts, and what has none."""

from __future__ import annotations

import itertools
import math
import re
from functools import partial
from typing import Any

import pytest
import torch

from pretrained import bert, byte_tokenizer, made, piece_tokenizer, roberta
from seqwise import InputError
from seqwise.configuration import configure
from seqwise.hugging_face import infill, masked_model, sample_texts
from seqwise.hugging_face.text_codec import TextCodec
from seqwise.sampling import (
    ChainSettings,
    anywhere,
    boltzmann,
    contains,
    delayed_acceptance,
    examine,
    local_energy,
    masked_conditionals,
    metropolis_hastings,
    pseudo_log_likelihood,
    start_chains,
    table_model,
    transition_matrix,
)
from seqwise.sampling.correctness import every_sequence
from seqwise.sampling.energies import Energy
from seqwise.sampling.phrases import Phrases, has_words, phrase_starts

wanted = partial(configure, ChainSettings)
"""From flat settings, as of flags."""

PIECES = ["cat", "c", "##at", "##s", "a"]
BYTES = ["cat", "Ġcat", "Ġa", "at", "Ġru"]
SPELT: dict[str, tuple[Any, Any, list[str]]] = {
    "word pieces": (lambda: piece_tokenizer(PIECES), bert, PIECES),
    "byte pairs": (byte_tokenizer, roberta, BYTES),
}


def words_of(text: str) -> list[str]:
    return re.findall("[a-z]+", text)


@pytest.mark.thorough
@pytest.mark.parametrize("kernel_of", [metropolis_hastings, delayed_acceptance])
@pytest.mark.parametrize("setting", ["contain", "without"])
@pytest.mark.parametrize("name", SPELT)
def test_the_chain_over_texts_with_a_word_has_that_target(name: str, setting: str, kernel_of: Any) -> None:
    """All sequences of three pieces; the word may be spelt by several, and its piece may stand in other words."""
    tokenizer, pieces = SPELT[name][0](), SPELT[name][2]
    codec, model = TextCodec(tokenizer, vocab_size=len(tokenizer)), table_model(num_positions=3, vocab_size=5)
    numbers = tokenizer.convert_tokens_to_ids(pieces)
    every_NT = every_sequence(5, 3)
    texts = tokenizer.batch_decode([[numbers[piece] for piece in row] for row in every_NT.tolist()])
    kept_N = torch.tensor([("cat" in words_of(text)) == (setting == "contain") for text in texts])
    ways = [tuple(numbers.index(token) for token in way) for way in codec.phrase("cat")]
    by_piece_N = torch.stack([contains(*way)(every_NT) for way in ways]).any(0) == (setting == "contain")
    assert int((by_piece_N != kept_N).sum()) >= 9  # of 125, what goes by single pieces gets them wrong
    asked: Any = {"contain": ([ways], []), "without": ([], [ways])}[setting]
    phrases = Phrases.of_words(*asked, spell=lambda ids: codec.plain([numbers[piece] for piece in ids]))
    energy = phrases.constrain(local_energy(model))
    assert energy.of_sequences(every_NT).isfinite().equal(kept_N)
    states = start_chains(energy, every_NT[kept_N])
    target_N = boltzmann(-pseudo_log_likelihood(model, every_NT[kept_N]).sum(1))
    kernel = kernel_of(energy, masked_conditionals(model), visits=anywhere([1, 2]))
    report = examine(transition_matrix(kernel, states), target_N)
    assert report.holds(1e-12) and report.irreducible


@pytest.mark.parametrize("name", SPELT)
def test_words_occur_or_do_not_however_they_are_spelt(name: str) -> None:
    tokenizer, model = SPELT[name][0](), SPELT[name][1]
    model = made(model(len(tokenizer)), scale=0.5, dtype=torch.float32)
    options: dict[str, Any] = {"num_chains": 8, "num_sweeps": 12, "discard": 0, "every": 1, "allowed": SPELT[name][2]}
    with_word, without_word = (
        sample_texts(model, tokenizer, length=3, settings=wanted(**given), **options).texts
        for given in ({"contain": ("cat",), "blocks": (2,), "visits": "anywhere"}, {"without": ("cat",)})
    )
    assert all("cat" in words_of(text) for text in with_word) and len(set(with_word)) > 5
    assert not any("cat" in words_of(text) for text in without_word) and len(set(without_word)) > 5
    assert any("cat" in text for text in without_word)  # in other words


def test_a_word_inside_another_word_does_not_count() -> None:
    """Starts included: where the piece of a word stands already, and where its only place is among pieces that join."""
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(10), scale=0.5, dtype=torch.float32)
    mask, options = tokenizer.mask_token, {"num_chains": 6, "num_sweeps": 4, "discard": 0, "every": 1}
    for text in infill(model, tokenizer, [f"cats {mask} a"], settings=wanted(contain=("cat",)), **options).texts:
        assert text == "cats cat a"
    for text in infill(model, tokenizer, [f"cats {mask}"], settings=wanted(without=("cat",)), **options).texts:
        assert words_of(text)[0] in ("cats", "catsat", "catss") and "cat" not in words_of(text)
    for text in infill(model, tokenizer, [f"cat {mask}"], settings=wanted(without=("cat",)), **options).texts:
        assert text in ("cats", "catat")
    with pytest.raises(InputError, match="no sequence was found that does without 'cat'"):
        infill(model, tokenizer, [f"cat a {mask}"], settings=wanted(without=("cat",)), **options)


def test_a_word_at_the_beginning_of_byte_pairs_is_there_already() -> None:
    """It is another token than after a blank, which has no place."""
    tokenizer = byte_tokenizer()
    codec = TextCodec(tokenizer, vocab_size=len(tokenizer))
    phrases = Phrases.of_words([codec.phrase("cat runs")], [], spell=codec.plain)
    model = masked_model(made(roberta(len(tokenizer)), dtype=torch.float32), tokenizer=tokenizer)
    tokens_BT = torch.tensor([codec.ids("cat runs see")] * 4)
    chain_B, greedy_B = torch.arange(4), torch.zeros(4, dtype=torch.bool)
    free_BT = torch.arange(tokens_BT.shape[1]).eq(tokens_BT.shape[1] - 1).expand(4, -1)
    started_BT, found_B = phrase_starts(
        model, tokens_BT, free_BT, phrases, chain_B=chain_B, greedy_B=greedy_B, seed=0, allowed_V=codec.allowed_V
    )
    assert bool(found_B.all()) and all("cat runs" in codec.plain(row) for row in started_BT.tolist())


@pytest.mark.parametrize(
    ("text", "phrase", "there"),
    [
        ("a cat, not dogs", "cat", True),
        ("a cat, not dogs", "dog", False),
        ("dogs", "ogs", False),
        ("concat cat", "cat", True),  # further on
        ("cat concat", "cat", True),
        ("cat_5", "cat", False),
        ("cat5", "cat", False),
        ("5 cats.", "cats.", True),  # what ends in a full stop ends there
        ("dogs.com", "dogs.", True),
        ("caté", "cat", False),
        ("cat\u0301", "cat", False),  # the accent of its last letter
        ("cat٣", "cat", False),
        ("cat—x", "cat", True),
        ("白い猫です", "猫", True),  # a script without blanks
        ("แมวดำ", "ดำ", True),
        ("", "cat", False),
    ],
)
def test_a_word_ends_where_no_letter_digit_or_accent_follows(text: str, phrase: str, there: bool) -> None:
    assert has_words(text, phrase) == there


@pytest.mark.parametrize("penalty", [1.0, math.inf])
def test_a_start_takes_the_first_way_that_fits(penalty: float) -> None:
    """Of three ways, and in one chain none; each chain has its own room, and constraints that are hard need some."""
    model = table_model(num_positions=3, vocab_size=4)
    ways = [(3, 3, 3), (2, 1), (1,)]
    tokens_BT = torch.tensor([[0, 0, 0], [0, 2, 0], [0, 0, 0], [0, 0, 0]])
    free_BT = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 0, 1], [0, 0, 0]]).bool()
    options: dict[str, Any] = {"chain_B": torch.arange(4), "greedy_B": torch.zeros(4).bool(), "seed": 0}
    phrases = Phrases(required=[ways], penalty=penalty)
    started_BT, found_B = phrase_starts(model, tokens_BT, free_BT, phrases, **options)
    there_BW = torch.stack([contains(*way)(started_BT) for way in ways], 1)
    assert [int(there_W.long().argmax()) if there_W.any() else None for there_W in there_BW] == [0, 1, 2, None]
    assert found_B.tolist() == [True, True, True, penalty < math.inf]


@pytest.mark.parametrize("penalty", [1.0, math.inf])
def test_a_forbidden_phrase_is_avoided_where_it_is_forbidden_strictly(penalty: float) -> None:
    model = table_model(num_positions=3, vocab_size=2)
    options: dict[str, Any] = {"chain_B": torch.arange(40), "greedy_B": torch.zeros(40).bool(), "seed": 0}
    blank_BT, free_BT = torch.zeros(40, 3).long(), torch.ones(40, 3).bool()
    for phrases in (
        Phrases(forbidden=[(1,)], penalty=penalty),
        Phrases(forbidden=[], penalty=penalty, conditions=[lambda tokens_BT: ~contains(1)(tokens_BT)]),
    ):
        started_BT, found_B = phrase_starts(model, blank_BT, free_BT, phrases, **options)
        assert bool(found_B.all()) and bool(started_BT.any()) == (penalty < math.inf)


def test_a_soft_phrase_without_room_leaves_ordinary_starts() -> None:
    """Chains with room get the phrase; the others start as they would without it, and count as found."""
    model = table_model(num_positions=3, vocab_size=4)
    tokens_BT, free_BT = torch.zeros(4, 3).long(), torch.ones(4, 3).bool()
    free_BT[1] = free_BT[3] = torch.tensor([True, False, True])
    options = {"chain_B": torch.arange(4), "greedy_B": torch.zeros(4).bool(), "seed": 0}
    phrases = Phrases(required=[[(2, 1)]], penalty=1.0)
    started_BT, found_B = phrase_starts(model, tokens_BT, free_BT, phrases, **options)
    assert bool(found_B.all()) and contains(2, 1)(started_BT).tolist() == [True, False, True, False]
    without_BT, _ = phrase_starts(model, tokens_BT, free_BT, Phrases(), **options)
    assert torch.equal(started_BT[1::2], without_BT[1::2]) and started_BT[1::2, 1].tolist() == [0, 0]


def test_phrases_of_tokens_cost_their_penalty() -> None:
    """Over all sequences of three tokens: once for a missing phrase, and for each way of a forbidden one."""
    phrases = Phrases(required=[[(1, 2), (0, 0)]], forbidden=[(2,), (1, 0)], penalty=0.5)
    found_B = phrases.constrain(Energy()).of_sequences(every_sequence(3, 3))
    for tokens, energy in zip(itertools.product(range(3), repeat=3), found_B.tolist(), strict=True):
        pairs = set(itertools.pairwise(tokens))
        expected = 0.5 * (not pairs & {(1, 2), (0, 0)}) + 0.5 * (2 in tokens) + 0.5 * ((1, 0) in pairs)
        assert energy == pytest.approx(expected, abs=1e-12)
