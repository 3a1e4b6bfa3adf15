"""Decoders of masked diffusion models: exact laws against recursions over what is revealed, and what they keep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from seqwise import InputError
from seqwise.models import ConditionalMaskedTransformer
from seqwise.sampling import (
    SeededDraws,
    boltzmann,
    local_energy,
    low_confidence_remasking,
    masked_conditionals,
    random_unmasking,
    remasking_diffusion,
    start_chains,
    table_model,
    threshold_decoding,
    transition_matrix,
    unmasking_law,
)
from seqwise.sampling.correctness import TableModel, every_sequence
from seqwise.sampling.unmasking import Partial, Unmasking

SIZE, LENGTH = 3, 3
MODEL = table_model(num_positions=LENGTH, vocab_size=SIZE, seed=4)
TABLE = MODEL.table.numpy()
EVERY = every_sequence(SIZE, LENGTH)

Written = tuple[int | None, ...]
"""A sequence; None where nothing is revealed."""
Step = Callable[[Written, int], Iterator[tuple[float, Written]]]
"""From a sequence and the iteration to what may follow, with its probability."""


def conditional(written: Written, place: int, temperature: float = 1.0) -> np.ndarray:
    """The model's distribution at a place that is not revealed."""
    row = 0
    for token in written:
        row = row * (SIZE + 1) + (SIZE if token is None else token)
    powers = np.exp(TABLE[place, row] / temperature)
    return powers / powers.sum()


def hidden(written: Written) -> list[int]:
    return [place for place, token in enumerate(written) if token is None]


def fillings(written: Written, places: tuple[int, ...], temperature: float) -> Iterator[tuple[float, Written]]:
    """Every way to draw tokens at some places, independently."""
    for tokens in itertools.product(range(SIZE), repeat=len(places)):
        after, weight = list(written), 1.0
        for place, token in zip(places, tokens, strict=True):
            after[place] = token
            weight *= conditional(written, place, temperature)[token]
        yield weight, tuple(after)


def law(step: Step, iteration: int, last: int, written: Written = (None,) * LENGTH) -> dict[Written, float]:
    """The law of what is written in the end, by recursion."""
    if iteration > last or (last == LENGTH + 1 and not hidden(written)):
        return {written: 1.0}
    total: dict[Written, float] = {}
    for weight, after in step(written, iteration):
        for ended, share in law(step, iteration + 1, last, after).items():
            total[ended] = total.get(ended, 0.0) + weight * share
    return total


def random_step(last: int) -> Step:
    def step(written: Written, iteration: int) -> Iterator[tuple[float, Written]]:
        count = len(hidden(written)) - (LENGTH - LENGTH * iteration // last)
        chosen = list(itertools.combinations(hidden(written), count))
        for places in chosen:
            for weight, after in fillings(written, places, 1.0):
                yield weight / len(chosen), after

    return step


def confident_step(last: int, temperature: float) -> Step:
    def step(written: Written, iteration: int) -> Iterator[tuple[float, Written]]:
        places = hidden(written)
        stay = LENGTH - LENGTH * iteration // last
        for weight, drawn in fillings(written, tuple(places), temperature):
            surest = sorted(places, key=lambda place: (-conditional(written, place)[drawn[place]], place))
            kept = surest[: len(places) - stay]
            yield weight, tuple(drawn[place] if place in kept else written[place] for place in range(LENGTH))

    return step


def threshold_step(threshold: float, temperature: float) -> Step:
    def step(written: Written, iteration: int) -> Iterator[tuple[float, Written]]:
        top = {place: conditional(written, place).max() for place in hidden(written)}
        passed = tuple(place for place in top if top[place] >= threshold)
        yield from fillings(written, passed or (max(top, key=lambda place: top[place]),), temperature)

    return step


def remasking_step(last: int, cap: float) -> Step:
    def step(written: Written, iteration: int) -> Iterator[tuple[float, Written]]:
        noise_before, noise_after = 1 - (iteration - 1) / last, 1 - iteration / last
        sigma = cap if noise_before == 1 else min(cap, noise_after / (1 - noise_before))
        # What is masked stays so with probability (1 - b - sigma a) / (1 - a).
        stay = (noise_after - sigma * (1 - noise_before)) / noise_before
        for flips in itertools.product([False, True], repeat=LENGTH):
            weight, after, drawn = 1.0, list(written), []
            for place, flip in enumerate(flips):
                if written[place] is None:
                    weight *= 1 - stay if flip else stay
                    drawn += [place] if flip else []
                else:
                    weight *= sigma if flip else 1 - sigma
                    after[place] = None if flip else written[place]
            for share, filled in fillings(written, tuple(drawn), 1.0):
                yield weight * share, tuple(filled[p] if p in drawn else after[p] for p in range(LENGTH))

    return step


def any_order_law() -> list[float]:
    """The mean over all orders of the product of the conditionals."""
    found = []
    for tokens in EVERY.tolist():
        total = 0.0
        for order in itertools.permutations(range(LENGTH)):
            written: Written = (None,) * LENGTH
            weight = 1.0
            for place in order:
                weight *= conditional(written, place)[tokens[place]]
                written = (*written[:place], tokens[place], *written[place + 1 :])
            total += weight / math.factorial(LENGTH)
        found.append(total)
    return found


PROPOSAL, COLD = masked_conditionals(MODEL), masked_conditionals(MODEL, temperature=0.4)
UNTIL_ALL = LENGTH + 1
CASES: dict[str, tuple[Unmasking, Step, int]] = {
    **{f"random, {n}": (random_unmasking(PROPOSAL, num_iterations=n), random_step(n), n) for n in (1, 2, 3, 5)},
    **{
        f"confidence, {n}": (low_confidence_remasking(PROPOSAL, num_iterations=n), confident_step(n, 1.0), n)
        for n in (1, 2, 3)
    },
    "confidence, cold": (low_confidence_remasking(COLD, num_iterations=2), confident_step(2, 0.4), 2),
    **{
        f"threshold, {bar}": (threshold_decoding(PROPOSAL, threshold=bar), threshold_step(bar, 1.0), UNTIL_ALL)
        for bar in (0.0, 0.5, 0.6, 1.0)
    },
    "threshold, cold": (threshold_decoding(COLD, threshold=0.5), threshold_step(0.5, 0.4), UNTIL_ALL),
    **{
        f"remasking, {n}, {cap}": (
            remasking_diffusion(PROPOSAL, num_iterations=n, remask=cap),
            remasking_step(n, cap),
            n,
        )
        for n, cap in ((1, 0.3), (2, 0.0), (3, 0.3), (3, 1.0))
    },
}


@pytest.mark.parametrize("name", CASES)
def test_the_law_is_that_of_a_recursion_over_what_is_revealed(name: str) -> None:
    decoder, step, last = CASES[name]
    expected = law(step, 1, last)
    wanted = torch.tensor([expected.get(tuple(row), 0.0) for row in EVERY.tolist()], dtype=torch.float64)
    assert float(wanted.sum()) == pytest.approx(1)
    torch.testing.assert_close(unmasking_law(decoder, LENGTH).probs_N, wanted, atol=1e-12, rtol=0)


SMALL = table_model(num_positions=2, vocab_size=2, seed=4)


@pytest.mark.parametrize(
    "decoder",
    [
        random_unmasking(masked_conditionals(SMALL), num_iterations=2),
        low_confidence_remasking(masked_conditionals(SMALL), num_iterations=2),
        threshold_decoding(masked_conditionals(SMALL), threshold=0.6),
        remasking_diffusion(masked_conditionals(SMALL), num_iterations=2, remask=0.4),
    ],
    ids=["random", "confidence", "threshold", "remasking"],
)
def test_as_a_kernel_it_draws_from_that_law_whatever_the_state(decoder: Unmasking) -> None:
    matrix = transition_matrix(decoder, start_chains(local_energy(SMALL), every_sequence(2, 2)))
    expected = unmasking_law(decoder, 2).probs_N
    torch.testing.assert_close(matrix, expected.expand_as(matrix), atol=1e-12, rtol=0)


def test_random_unmasking_of_one_position_a_pass_is_the_any_order_law_and_no_other_decoder_is() -> None:
    wanted = torch.tensor(any_order_law(), dtype=torch.float64)
    assert float(wanted.sum()) == pytest.approx(1)
    one_a_pass = random_unmasking(PROPOSAL, num_iterations=LENGTH)
    torch.testing.assert_close(unmasking_law(one_a_pass, LENGTH).probs_N, wanted, atol=1e-12, rtol=0)
    others = [
        random_unmasking(PROPOSAL, num_iterations=LENGTH - 1),
        low_confidence_remasking(PROPOSAL, num_iterations=LENGTH),
        threshold_decoding(PROPOSAL, threshold=1.0),
        remasking_diffusion(PROPOSAL, num_iterations=LENGTH, remask=0.3),
    ]
    for decoder in others:
        assert float((unmasking_law(decoder, LENGTH).probs_N - wanted).abs().sum() / 2) > 0.01
    local = boltzmann(start_chains(local_energy(MODEL), EVERY).energy_B)
    assert float((local - wanted).abs().sum() / 2) > 0.01


def test_without_remasking_many_iterations_come_near_the_any_order_law() -> None:
    wanted = torch.tensor(any_order_law(), dtype=torch.float64)
    gaps = [
        float((unmasking_law(remasking_diffusion(PROPOSAL, num_iterations=n, remask=0.0), LENGTH).probs_N - wanted)
              .abs().sum() / 2)
        for n in (4, 8, 16)
    ]  # fmt: skip
    assert gaps[1] == pytest.approx(gaps[0] / 2, rel=0.2) and gaps[2] == pytest.approx(gaps[1] / 2, rel=0.2)


@pytest.mark.parametrize("name", ["random, 2", "confidence, 2", "threshold, 0.6", "remasking, 3, 0.3"])
def test_counted_passes_are_on_average_the_expected_ones(name: str) -> None:
    decoder = CASES[name][0]
    state = start_chains(local_energy(MODEL), torch.zeros(4000, LENGTH).long())
    after, info = decoder(SeededDraws(0, state.chain_B, sweep=0), state)
    passes_B = (info.passes_B - LENGTH * (after.tokens_BT != state.tokens_BT).any(1)).double()
    error = float(passes_B.std()) / math.sqrt(len(passes_B))
    assert abs(float(passes_B.mean()) - unmasking_law(decoder, LENGTH).passes) <= 4 * error


@pytest.mark.parametrize("name", ["random, 3", "confidence, 3", "threshold, 1.0", "remasking, 3, 1.0"])
def test_positions_that_are_not_free_stay_and_no_chain_depends_on_the_others(name: str) -> None:
    free_BT = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0]]).bool()
    tokens_BT = torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 1]])
    state = start_chains(local_energy(MODEL), tokens_BT, free_BT=free_BT)
    decoder = CASES[name][0]
    after, info = decoder(SeededDraws(0, state.chain_B, sweep=0), state)
    assert torch.equal(after.tokens_BT[~free_BT], tokens_BT[~free_BT])
    assert int(info.proposals_B[2]) == int(info.passes_B[2]) == 0 and not info.invariant
    for row in range(3):
        alone = start_chains(
            local_energy(MODEL), tokens_BT[row : row + 1], free_BT=free_BT[row : row + 1], chain_B=torch.tensor([row])
        )
        by_itself, _ = decoder(SeededDraws(0, alone.chain_B, sweep=0), alone)
        assert torch.equal(by_itself.tokens_BT[0], after.tokens_BT[row])


def test_each_sequence_is_scored_with_its_own_source() -> None:
    sizes = {"hidden_size": 8, "num_heads": 2, "num_layers": 1, "feedforward_size": 8}
    model = ConditionalMaskedTransformer(source_size=6, vocab_size=3, max_length=4, **sizes).double().eval()
    decoder = random_unmasking(masked_conditionals(model), num_iterations=2)
    masked_BT = torch.tensor([[True, False, True], [False, True, True]])
    partial = Partial(torch.zeros(2, 3).long(), masked_BT, torch.ones(2, 3).bool())
    context = model.encode(torch.tensor([[1, 2, 3], [5, 4, 0]]), torch.tensor([3, 2]))
    with torch.no_grad():
        scores_BTV = decoder.scores(partial, context)
        for row, source in enumerate(([1, 2, 3], [5, 4])):
            own = model.encode(torch.tensor([source]), torch.tensor([len(source)]))
            part = slice(row, row + 1)
            alone_MV = model.masked_logits(partial.tokens_BT[part], masked_BT[part], own)
            torch.testing.assert_close(scores_BTV[row, masked_BT[row]], alone_MV)
        assert bool((scores_BTV[~masked_BT] == 0).all())


def test_certainty_is_over_the_tokens_that_are_allowed() -> None:
    """As of a model that never says the others."""
    silent = TableModel(MODEL.table.clone())
    silent.table[..., 1] = -1e9
    allowed_V = torch.tensor([True, False, True])
    laws = [
        unmasking_law(low_confidence_remasking(proposal, num_iterations=2), LENGTH).probs_N
        for proposal in (masked_conditionals(MODEL, allowed_V=allowed_V), masked_conditionals(silent))
    ]
    torch.testing.assert_close(*laws, rtol=0, atol=1e-9)


def test_options_out_of_their_range_are_refused() -> None:
    for make in (random_unmasking, low_confidence_remasking, remasking_diffusion):
        assert make(PROPOSAL, num_iterations=1).num_iterations == 1
        with pytest.raises(InputError, match="at least 1 iteration, got 0"):
            make(PROPOSAL, num_iterations=0)
    with pytest.raises(InputError, match=r"from 0 to 1, got 1\.5"):
        threshold_decoding(PROPOSAL, threshold=1.5)
    with pytest.raises(InputError, match="from 0 to 1, got -1"):
        remasking_diffusion(PROPOSAL, num_iterations=2, remask=-1)
