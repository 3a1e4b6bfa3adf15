"""Where chains start: as the conditionals say, apart from each other, and with every constraint kept."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import seqwise.sampling.starts as starts_module
from recording import RecordedRows
from seqwise.models.protocols import MaskedModel
from seqwise.sampling import SeededDraws, table_model
from seqwise.sampling.refinement import refine
from seqwise.sampling.starts import dispersed_starts, fill_in_turn

MODEL = table_model(num_positions=3, vocab_size=3, seed=5)


def starts(
    model: MaskedModel, fixed: Sequence[int], count: int = 1, **more: Any
) -> tuple[list[tuple[int, ...]], list[bool]]:
    """Starts of ``count`` chains, none of them greedy, where -1 is free."""
    tokens_BT = torch.tensor([fixed] * count)
    more = {"chain_B": torch.arange(count), "greedy_B": torch.zeros(count).bool(), "seed": 0} | more
    found_BT, found_B = dispersed_starts(model, tokens_BT.clamp(min=0), tokens_BT < 0, **more)
    return [tuple(row) for row in found_BT.tolist()], found_B.tolist()


def holds(sequence: Sequence[int], phrase: Sequence[int]) -> bool:
    text = "".join(map(chr, (65 + token for token in sequence)))
    return "".join(map(chr, (65 + token for token in phrase))) in text


def conditional(model: MaskedModel, known: dict[int, int], place: int, tokens: Sequence[int]) -> list[float]:
    """p(w | what is known) over some tokens, the rest of three positions masked."""
    row = [[known.get(at, 0) for at in range(3)]]
    masked = [[at not in known for at in range(3)]]
    scores = model.masked_logits(torch.tensor(row), torch.tensor(masked))
    own = scores[[at for at in range(3) if at not in known].index(place)].tolist()
    total = math.fsum(math.exp(own[token]) for token in tokens)
    return [math.exp(own[token]) / total if token in tokens else 0.0 for token in range(3)]


@pytest.mark.parametrize("allowed", [[0, 1, 2], [0, 2]])
@pytest.mark.parametrize("forbidden", [[], [(2, 2)], [(0,), (1, 2, 2)]])
def test_sequences_filled_in_turn_follow_the_conditionals(allowed: list[int], forbidden: list[tuple[int, ...]]) -> None:
    """Position 1 is fixed; both orders of the other two are as likely; banned tokens leave their mass to the others."""
    expected = dict.fromkeys(itertools.product(range(3), repeat=3), 0.0)
    for first, second in ((0, 2), (2, 0)):
        for one, two in itertools.product(range(3), repeat=2):
            weight, known = 0.5, {1: 2}
            for place, token in ((first, one), (second, two)):

                def finishes(candidate: int, known: dict[int, int] = known, place: int = place) -> bool:
                    # A position that is not known yet holds a token that is in no phrase.
                    whole = [{**known, place: candidate}.get(at, 9) for at in range(3)]
                    return any(holds(whole, phrase) for phrase in forbidden)

                left = [token for token in allowed if not finishes(token)]
                weight *= conditional(MODEL, known, place, left)[token]
                known = {**known, place: token}
            expected[known[0], known[1], known[2]] += weight
    assert math.isclose(math.fsum(expected.values()), 1, abs_tol=1e-12)
    count = 6000
    free_BT = torch.tensor([[True, False, True]]).expand(count, -1)
    allowed_V = torch.tensor([token in allowed for token in range(3)])
    draws = SeededDraws(7, torch.arange(count), sweep=0)
    found_BT, fine_B = fill_in_turn(
        draws, MODEL, torch.full((count, 3), 2), free_BT, allowed_V=allowed_V, forbidden=forbidden
    )
    assert bool(fine_B.all())
    counts = Counter(tuple(row) for row in found_BT.tolist())
    for sequence, probability in expected.items():
        error = math.sqrt(probability * (1 - probability) / count)
        assert abs(counts[sequence] / count - probability) <= 4 * error, sequence


def test_a_start_without_an_allowed_token_is_reported_as_stuck() -> None:
    draws = SeededDraws(0, torch.arange(2), sweep=0)
    free_BT = torch.tensor([[True] * 3, [False] * 3])
    _, fine_B = fill_in_turn(draws, MODEL, torch.zeros(2, 3).long(), free_BT, forbidden=[(0,), (1,), (2,)])
    assert fine_B.tolist() == [False, True]


def test_the_first_chain_is_the_greedy_fill_and_the_others_differ() -> None:
    model = table_model(num_positions=6, vocab_size=4, seed=1, scale=2.0)
    greedy_B = torch.arange(30) == 0
    found, fine = starts(model, [-1, -1, 3, -1, -1, -1], 30, greedy_B=greedy_B)
    assert all(fine) and all(one[2] == 3 for one in found)
    free_BT = torch.tensor([[True, True, False, True, True, True]])
    filled_BT, _ = refine(model, torch.full((1, 6), 3), free_BT, num_iterations=1)
    assert found[0] == tuple(filled_BT[0].tolist())
    assert len(set(found)) > 20


def test_a_start_depends_on_its_chain_and_the_seed_alone() -> None:
    model = table_model(num_positions=5, vocab_size=4, seed=1)
    more: dict[str, Any] = {"required": [(1, 2)], "forbidden": [(0, 0)]}
    together, _ = starts(model, [-1] * 5, 9, **more)
    for chain in range(9):
        alone, _ = starts(model, [-1] * 5, 1, chain_B=torch.tensor([chain]), **more)
        assert alone == [together[chain]]
    assert starts(model, [-1] * 5, 9, seed=1, **more)[0] != together


def test_a_greedy_start_that_holds_a_forbidden_phrase_is_drawn_anew() -> None:
    model = table_model(num_positions=4, vocab_size=3, seed=2)
    greedy_B = torch.ones(1).bool()
    (greedy,), _ = starts(model, [-1] * 4, greedy_B=greedy_B)
    (found,), (fine,) = starts(model, [-1] * 4, greedy_B=greedy_B, forbidden=[greedy[:2]])
    assert fine and not holds(found, greedy[:2])


def test_phrases_are_written_at_every_place() -> None:
    model = table_model(num_positions=5, vocab_size=4)
    places = Counter(
        next(place for place in range(4) if one[place : place + 2] == (3, 1))
        for one in starts(model, [-1, -1, -1, -1, 0], 400, required=[(3, 1)])[0]
    )
    # Three places are left by the fixed token; what is drawn around them may hold the phrase a second time.
    assert set(places) == {0, 1, 2} and min(places.values()) > 80


def test_constraints_are_kept_exactly_where_they_can_be() -> None:
    """Against all sequences, over random problems: found if and only if there is one; fixed positions are respected."""
    chance, model = random.Random(0), table_model(num_positions=4, vocab_size=3)
    known = {True: 0, False: 0}
    for number in range(250):
        fixed = [chance.choice([-1, -1, -1, 0, 1, 2]) for _ in range(4)]
        required, forbidden = (
            [tuple(chance.choices(range(3), k=chance.choice([1, 2, 2, 3]))) for _ in range(chance.choice(sizes))]
            for sizes in ([0, 1, 2, 3], [0, 0, 1, 2])
        )
        possible = any(
            all(token in (-1, own) for token, own in zip(fixed, one, strict=True))
            and all(holds(one, phrase) for phrase in required)
            and not any(holds(one, phrase) for phrase in forbidden)
            for one in itertools.product(range(3), repeat=4)
        )
        known[possible] += 1
        found, fine = starts(
            model, fixed, 2, required=required, forbidden=forbidden, greedy_B=torch.tensor([True, False]), seed=number
        )
        assert fine == [possible] * 2, (fixed, required, forbidden)
        for one in found if possible else ():
            assert all(token in (-1, own) for token, own in zip(fixed, one, strict=True))
            assert all(holds(one, phrase) for phrase in required)
            assert not any(holds(one, phrase) for phrase in forbidden)
    assert min(known.values()) > 40  # both happen


def test_a_phrase_is_written_with_allowed_tokens_alone() -> None:
    """Others may stand there already, where they are fixed."""
    model, allowed_V = table_model(num_positions=4, vocab_size=3), torch.tensor([True, False, True])
    options: dict[str, Any] = {"required": [(2, 1)], "allowed_V": allowed_V}
    assert starts(model, [-1, -1, 1, -1], 9, **options)[1] == [True] * 9
    assert starts(model, [-1, -1, 0, -1], 9, **options)[1] == [False] * 9
    assert starts(model, [-1, -1, 0, -1], 9, required=[(2, 1)])[1] == [True] * 9


def test_an_existing_phrase_is_kept_or_may_be_written_again() -> None:
    """Existing pieces may be a part of another word, so the phrase may have to be written anyway."""
    tokens_NT, free_NT = torch.tensor([[1, 0, 0]] * 20), torch.tensor([[False, True, True]] * 20)
    for keep in (True, False):
        written_NT, left_NT, fits_N = starts_module._write(
            tokens_NT, free_NT, torch.arange(20), 0, 0, [(1,)], [], keep=keep, allowed_V=None
        )
        assert fits_N.tolist() == [True] * 20 and fits_N.dtype == torch.bool
        places = {tuple(row) for row in left_NT.tolist()}
        again = {(False, False, True), (False, True, False)}
        assert places == {(False, True, True)} | (set() if keep else again)
        assert bool((written_NT[~left_NT] == 1).all())


def test_a_forbidden_phrase_that_is_too_long_does_not_hide_a_shorter_one() -> None:
    draws, forbidden = SeededDraws(0, torch.arange(40), sweep=0), [(0, 0, 0, 0), (2,)]
    free_BT = torch.ones(40, 3).bool()
    found_BT, _ = fill_in_turn(draws, MODEL, torch.zeros(40, 3).long(), free_BT, forbidden=forbidden)
    assert not bool((found_BT == 2).any())


def test_no_chains_have_no_starts() -> None:
    none_BT = torch.zeros(0, 3).long()
    options: dict[str, Any] = {"chain_B": torch.arange(0), "greedy_B": torch.zeros(0).bool(), "seed": 0}
    found_BT, found_B = dispersed_starts(MODEL, none_BT, none_BT.bool(), required=[(1, 2)], forbidden=[(0,)], **options)
    assert found_BT.shape == (0, 3) and found_B.shape == (0,)


def test_many_phrases_that_cannot_fit_are_given_up() -> None:
    """They need nine different pairs of neighbours, and 8 positions have seven; trying all places would take long."""
    model = table_model(num_positions=8, vocab_size=3)
    required = [(0, 1), (1, 2), (2, 0), (0, 2), (2, 1), (1, 0), (0, 0, 1), (1, 1, 2), (2, 2, 0)]
    _, fine = starts(model, [-1] * 8, required=required)
    assert fine == [False]


def test_phrases_that_fit_are_found_within_the_budget_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place that is looked at counts, whichever phrase it is for; the budget is that of one start."""
    model = table_model(num_positions=6, vocab_size=3)
    phrases = [(0, 1), (1, 2), (2, 0)]
    monkeypatch.setattr(starts_module, "MOST_PLACES", 2)
    assert starts(model, [-1] * 6, 20, required=phrases)[1] == [False] * 20  # three phrases need three at least
    assert starts(model, [-1] * 6, 20, required=phrases[:2])[1].count(True) > 5
    monkeypatch.setattr(starts_module, "MOST_PLACES", 1)
    assert starts(model, [-1] * 6, 20, required=phrases[:1])[1] == [True] * 20
    calls = 0
    known: list[int | None] = [None] * 8

    class Counted(random.Random):
        def sample(self, population: Any, k: int, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            return super().sample(population, k, **more)

    impossible = [(0, 1), (1, 2), (2, 0), (0, 2), (2, 1), (1, 0), (0, 0, 1), (1, 1, 2), (2, 2, 0)]
    assert starts_module._placed(known, impossible, [], Counted(0), [500]) is None
    assert 50 < calls <= 501


def test_the_number_of_attempts_at_a_start_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition that holds of the third draw on."""
    seen = 0

    def from_the_third_on(tokens_BT: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        return torch.full((len(tokens_BT),), seen >= 3)

    for budget, expected in ((2, [False]), (3, [True])):
        seen = 0
        monkeypatch.setattr(starts_module, "MOST_ATTEMPTS", budget)
        _, fine = starts(MODEL, [-1] * 3, conditions=[from_the_third_on])
        assert fine == expected and seen == budget
    greedy_B = torch.ones(1).bool()
    (greedy,), _ = starts(MODEL, [-1] * 3, greedy_B=greedy_B)
    for budget, expected in ((1, [False]), (20, [True])):
        monkeypatch.setattr(starts_module, "MOST_ATTEMPTS", budget)
        assert starts(MODEL, [-1] * 3, greedy_B=greedy_B, forbidden=[greedy])[1] == expected


@pytest.mark.parametrize("max_rows", [1, 3])
def test_a_model_is_given_no_more_rows_than_it_may(max_rows: int) -> None:
    """Starts and refinements in parts are those made at once."""
    table = table_model(num_positions=5, vocab_size=4, seed=3)
    model = RecordedRows(table)
    free_BT = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 0, 1, 1, 0]]).bool().repeat(2, 1)
    blank_BT, chain_B = torch.zeros(8, 5).long(), torch.arange(8)
    options: dict[str, Any] = {"chain_B": chain_B, "greedy_B": chain_B < 4, "seed": 1, "forbidden": [(1, 2)]}
    options |= {"context": torch.linspace(-1, 1, 8).double()}
    found = dispersed_starts(model, blank_BT, free_BT, max_rows=max_rows, **options)
    assert max(model.rows) == max_rows
    expected = dispersed_starts(table, blank_BT, free_BT, **options)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    more: dict[str, Any] = {"num_iterations": 3, "context": options["context"]}
    model.rows.clear()
    refined = refine(model, blank_BT, free_BT, max_rows=max_rows, **more)
    assert max(model.rows) == max_rows
    assert all(torch.equal(a, b) for a, b in zip(refined, refine(table, blank_BT, free_BT, **more), strict=True))
