"""Every kernel by its exact transition matrix, and every known way to get one wrong, found out by the same matrix."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from seqwise import InputError
from seqwise.sampling import (
    ChainState,
    Draws,
    Energy,
    Info,
    Kernel,
    SeededDraws,
    anneal_blocks,
    anneal_target,
    anywhere,
    boltzmann,
    burn_in,
    constraint,
    contains,
    cycle,
    delayed_acceptance,
    exact_gibbs,
    examine,
    examine_draws,
    gibbs,
    in_order,
    local_energy,
    masked_conditionals,
    metropolis_hastings,
    mixture,
    parallel_tempering,
    raw_energy,
    repeat,
    sample_chains,
    sequence_energy,
    shuffled,
    simulated_matrix,
    start_chains,
    table_model,
    transition_matrix,
)
from seqwise.sampling.correctness import MatrixReport, every_sequence
from seqwise.sampling.kernels import mask_predict
from seqwise.sampling.proposals import Visits

MODEL = table_model(num_positions=3, vocab_size=3, seed=1)
SMALL = table_model(num_positions=3, vocab_size=2, seed=2)
OTHER = table_model(num_positions=3, vocab_size=3, seed=3)
ANOTHER = table_model(num_positions=3, vocab_size=2, seed=4)
TOLERANCE = 1e-14


def listed(energy: Energy, *, num_positions: int = 3, vocab_size: int = 3) -> ChainState:
    return start_chains(energy, every_sequence(vocab_size, num_positions))


def require_right(kernel: Kernel, states: ChainState, temperature: float = 1.0) -> MatrixReport:
    """The target stays as it is, and every listed state leads to every other."""
    report = examine(*matrix_and_target(kernel, states, temperature))
    assert report.stationarity <= TOLERANCE
    assert report.irreducible
    return report


def matrix_and_target(kernel: Kernel, states: ChainState, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    return transition_matrix(kernel, states), boltzmann(states.energy_B, temperature)


# ---------------------------------------------------------------------------------------------- right kernels

NOT_TWO = torch.tensor([True, True, False])
PROPOSALS = {
    "plain": {},
    "hot": {"temperature": 2.0},
    "nucleus and a share": {"nucleus": 0.6, "full_share": 0.1},
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "energy",
    [raw_energy(MODEL), local_energy(MODEL), raw_energy(MODEL) + 0.5 * local_energy(OTHER)],
    ids=["raw", "local", "sum"],
)
@pytest.mark.parametrize("options", PROPOSALS.values(), ids=list(PROPOSALS))
@pytest.mark.parametrize("blocks", [(1,), (2,)], ids=["singles", "pairs"])
def test_one_visit_is_reversible(energy: Energy, options: dict[str, float], blocks: tuple[int, ...]) -> None:
    states = listed(energy)
    kernel = metropolis_hastings(energy, masked_conditionals(MODEL, **options), visits=anywhere(blocks))
    report = require_right(kernel, states)
    assert report.detailed_balance <= TOLERANCE
    assert report.total_variation < 1e-10
    assert report.holds()


def sweeps() -> dict[str, tuple[Kernel, ChainState, float]]:
    both, small = local_energy(MODEL), local_energy(SMALL)
    proposal, tiny = masked_conditionals(MODEL), masked_conditionals(SMALL, temperature=1.3)
    states, few = listed(both), listed(small, vocab_size=2)

    def singles(temperature: float) -> Kernel:
        return metropolis_hastings(both, proposal, visits=anywhere(), temperature=temperature)

    def blocks(size: int) -> Kernel:
        return metropolis_hastings(small, tiny, visits=in_order(size))

    # A term of the whole sequence is added in another place than those of its positions.
    whole = small + sequence_energy(lambda tokens_BT: tokens_BT.sum(1).double())

    return {
        "a sweep in order": (metropolis_hastings(both, proposal), states, 1.0),
        "pairs in order": (blocks(2), few, 1.0),
        "a shuffled sweep": (metropolis_hastings(small, tiny, visits=shuffled()), few, 1.0),
        "shuffled pairs": (metropolis_hastings(small, tiny, visits=shuffled(2)), few, 1.0),
        "another temperature": (metropolis_hastings(small, tiny, temperature=0.6), few, 0.6),
        "a whole sequence's energy, cold": (
            metropolis_hastings(whole, tiny, temperature=0.6),
            listed(whole, vocab_size=2),
            0.6,
        ),
        "another model proposes": (metropolis_hastings(small, masked_conditionals(ANOTHER)), few, 1.0),
        "mixed blocks": (metropolis_hastings(small, tiny, visits=anywhere([1, 2, 3])), few, 1.0),
        "exact Gibbs": (exact_gibbs(both), states, 1.0),
        "exact Gibbs, cold": (exact_gibbs(both, visits=anywhere(), temperature=0.5), states, 0.5),
        "delayed acceptance": (delayed_acceptance(both, proposal, window=0, visits=anywhere()), states, 1.0),
        "delayed acceptance, near": (delayed_acceptance(both, proposal, window=1, visits=anywhere()), states, 1.0),
        "delayed pairs": (delayed_acceptance(both, proposal, window=0, visits=anywhere([2])), states, 1.0),
        "cycle": (cycle(singles(1.0), exact_gibbs(both, visits=anywhere())), states, 1.0),
        "repeat": (repeat(singles(1.0), 2), states, 1.0),
        "mixture": (mixture([singles(1.0), exact_gibbs(both, visits=anywhere())], [1, 2]), states, 1.0),
        "annealed blocks": (anneal_blocks(blocks, [3, 2, 1]), few, 1.0),
        "annealed target": (anneal_target(singles, [1.0, 0.8, 0.7]), replace(states, sweep=7), 0.7),
    }


def test_a_mixture_is_its_kernels_by_their_weights() -> None:
    """The exact matrix: both leave the target unchanged, so that the target alone cannot tell one from the other."""
    energy, states = local_energy(SMALL), listed(local_energy(SMALL), vocab_size=2)
    cold = metropolis_hastings(energy, masked_conditionals(SMALL, temperature=0.5), visits=anywhere())
    gibbs_ = exact_gibbs(energy, visits=anywhere())
    first, second, mixed = (transition_matrix(one, states) for one in (cold, gibbs_, mixture([cold, gibbs_], [1, 3])))
    assert float((first - second).abs().max()) > 0.05
    assert torch.allclose(mixed, 0.25 * first + 0.75 * second, rtol=0, atol=1e-14)


def test_the_matrix_of_a_single_sequence_is_one() -> None:
    energy = local_energy(table_model(num_positions=2, vocab_size=1))
    for kernel in (exact_gibbs(energy), exact_gibbs(energy, visits=shuffled())):
        assert transition_matrix(kernel, listed(energy, num_positions=2, vocab_size=1)).tolist() == [[1.0]]


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(sweeps()))
def test_every_kernel_leaves_its_target_unchanged(name: str) -> None:
    kernel, states, temperature = sweeps()[name]
    assert require_right(kernel, states, temperature).total_variation < 1e-10


def test_a_sweep_in_order_is_right_though_not_reversible() -> None:
    kernel, states, _ = sweeps()["a sweep in order"]
    report = examine(*matrix_and_target(kernel, states))
    assert report.detailed_balance > 1e-4
    assert report.holds()


@pytest.mark.thorough
@pytest.mark.parametrize(("num_positions", "temperatures"), [(2, [1.0, 1.7]), (1, [1.0, 1.7, 3.0])])
def test_parallel_tempering_leaves_the_product_of_its_targets_unchanged(
    num_positions: int, temperatures: list[float]
) -> None:
    model, count = table_model(num_positions=num_positions, vocab_size=2, seed=4, scale=2.0), len(temperatures)
    energy, proposal = raw_energy(model), masked_conditionals(model, temperature=2.0)
    sequences = every_sequence(2, num_positions)
    together = torch.tensor(list(itertools.product(range(len(sequences)), repeat=count)))
    states = start_chains(energy, sequences[together.flatten()])

    def alone(temperature_B: Tensor) -> Kernel:
        return metropolis_hastings(energy, proposal, temperature=temperature_B, visits=in_order(num_positions))

    matrix = transition_matrix(parallel_tempering(alone, temperatures), states, chains_per_state=count)
    ladder = torch.tensor(temperatures, dtype=torch.float64)
    report = examine(matrix, boltzmann((states.energy_B.view(-1, count) / ladder).sum(1)))
    assert report.stationarity <= TOLERANCE
    assert report.irreducible
    # It does exchange, and replicas that only went their own ways would be reversible.
    apart = transition_matrix(alone(ladder.repeat(len(together))), states, chains_per_state=count)
    assert (matrix - apart).abs().max() > 0.1


def test_the_matrix_is_that_of_a_formula() -> None:
    """One visit anywhere, by its textbook formula in plain Python."""
    energy, temperature = raw_energy(MODEL), 1.5
    states = listed(energy)
    kernel = metropolis_hastings(energy, masked_conditionals(MODEL, temperature=temperature), visits=anywhere())
    found = transition_matrix(kernel, states)
    sequences = [tuple(row) for row in every_sequence(3, 3).tolist()]

    def scores(y: tuple[int, ...], t: int) -> list[float]:
        masked = torch.tensor([[place == t for place in range(3)]])
        return MODEL.masked_logits(torch.tensor([y]), masked)[0].tolist()

    def cost(y: tuple[int, ...]) -> float:
        return -sum(scores(y, t)[y[t]] for t in range(3))

    for i, y in enumerate(sequences):
        row = dict.fromkeys(sequences, 0.0)
        for t, w in itertools.product(range(3), range(3)):
            new = (*y[:t], w, *y[t + 1 :])
            weights = [math.exp(score / temperature) for score in scores(y, t)]
            forth, back = weights[w] / sum(weights), weights[y[t]] / sum(weights)
            accept = min(1.0, math.exp(cost(y) - cost(new)) * back / forth)
            row[new] += forth * accept / 3
            row[y] += forth * (1 - accept) / 3
        assert found[i].tolist() == pytest.approx([row[y] for y in sequences], abs=1e-14)


# --------------------------------------------------------------------- fixed positions and constraints


def test_infilling_samples_the_conditional_and_never_touches_fixed_positions() -> None:
    energy = local_energy(MODEL)
    sequences = every_sequence(3, 3)
    given = sequences[sequences[:, 1] == 2]
    free = torch.tensor([True, False, True]).expand(len(given), -1)
    states = start_chains(energy, given, free_BT=free)
    proposal = masked_conditionals(MODEL)
    for kernel in (
        metropolis_hastings(energy, proposal),
        metropolis_hastings(energy, proposal, visits=shuffled(2)),
        exact_gibbs(energy),
        delayed_acceptance(energy, proposal, visits=anywhere([1, 2])),
    ):
        # A step to another token in the middle would leave the listed states, which is an error.
        require_right(kernel, states)


@pytest.mark.parametrize("penalty", [math.inf, 1.5])
def test_constraints_hard_and_soft(penalty: float) -> None:
    energy = local_energy(MODEL) + constraint(contains(2), penalty=penalty) + sequence_energy(lambda y: 0.3 * y.sum(1))
    sequences = every_sequence(3, 3)
    possible = sequences if penalty < math.inf else sequences[(sequences == 2).any(1)]
    states = start_chains(energy, possible)
    for kernel in (
        metropolis_hastings(energy, masked_conditionals(MODEL), visits=anywhere([1, 2])),
        exact_gibbs(energy, visits=anywhere()),
        delayed_acceptance(energy, masked_conditionals(MODEL), window=0, visits=anywhere()),
    ):
        require_right(kernel, states)


def test_tokens_that_are_not_allowed_are_never_proposed() -> None:
    energy = local_energy(MODEL)
    sequences = every_sequence(3, 3)
    for kernel in (
        metropolis_hastings(energy, masked_conditionals(MODEL, allowed_V=NOT_TWO), visits=anywhere()),
        exact_gibbs(energy, allowed_V=NOT_TWO, visits=anywhere()),
    ):
        require_right(kernel, start_chains(energy, sequences[(sequences != 2).all(1)]))
        # From sequences that hold such tokens, those stay: 8 classes, by where they stand.
        report = examine(*matrix_and_target(kernel, start_chains(energy, sequences)))
        assert report.stationarity <= TOLERANCE
        assert report.detailed_balance <= TOLERANCE
        assert report.num_classes == 8


@pytest.mark.thorough
def test_blocks_of_all_sizes_move_a_phrase_that_single_positions_cannot() -> None:
    """Three tokens in five positions: the middle one of its places cannot be left one change at a time."""
    model = table_model(num_positions=5, vocab_size=3, seed=1)
    energy, every = local_energy(model) + constraint(contains(0, 1, 2)), every_sequence(3, 5)
    states = start_chains(energy, every[contains(0, 1, 2)(every)])
    target = boltzmann(states.energy_B)

    def one_visit(visits: Visits) -> Tensor:
        return transition_matrix(metropolis_hastings(energy, masked_conditionals(model), visits=visits), states)

    assert examine(one_visit(anywhere()), target).num_classes == 2
    mixed = one_visit(anywhere([1, 2, 3]))
    # A sweep is five of these visits, which are drawn independently.
    for matrix in (mixed, torch.linalg.matrix_power(mixed, 5)):
        report = examine(matrix, target)
        assert report.stationarity <= TOLERANCE
        assert report.detailed_balance <= TOLERANCE
        assert report.irreducible


@pytest.mark.thorough
def test_as_many_visits_as_free_positions_are_that_many_single_ones() -> None:
    model = table_model(num_positions=3, vocab_size=2, seed=2)
    energy, every = local_energy(model), every_sequence(2, 3)
    free_BT = torch.tensor([True, True, False]).expand(len(every), -1)
    states = start_chains(energy, every, free_BT=free_BT)

    def matrix(num_visits: int | None) -> Tensor:
        visits = anywhere([1, 2], num_visits=num_visits)
        return transition_matrix(metropolis_hastings(energy, masked_conditionals(model), visits=visits), states)

    assert (matrix(None) - matrix(1) @ matrix(1)).abs().max() <= TOLERANCE


# ---------------------------------------------------------------------------------------------- wrong kernels

Accept = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def by_hand(
    energy: Energy,
    log_accept: Accept,
    *,
    block: int = 1,
    drawn: Callable[[Tensor], Tensor] = lambda logits: logits.log_softmax(-1),
    judged: Callable[[Tensor], Tensor] = lambda logits: logits.log_softmax(-1),
    over_differing: bool = False,
) -> Kernel:
    """Metropolis-Hastings over random subsets as a reader of the paper would write it, with a part exchanged."""
    subsets = [list(subset) for subset in itertools.combinations(range(3), block)]

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        y, live = state.tokens_BT, torch.ones(len(state), dtype=torch.bool)
        choice = draws.categorical(torch.zeros(len(y), len(subsets)), live)
        masked = torch.zeros_like(y, dtype=torch.bool)
        places = torch.tensor(subsets)[choice]
        masked.scatter_(1, places, True)
        logits = MODEL.masked_logits(y, masked).view(len(y), block, -1)
        new = y.clone()
        for k in range(block):
            token = draws.categorical(drawn(logits[:, k]), live)
            new.scatter_(1, places[:, k : k + 1], token[:, None])
        if over_differing:
            forth, back = differing_ratio(y, new)
        else:
            log_q = judged(logits)
            forth = log_q.gather(2, new.gather(1, places)[..., None]).squeeze(2).sum(1)
            back = log_q.gather(2, y.gather(1, places)[..., None]).squeeze(2).sum(1)
        old_energy, new_energy = start_chains(energy, y).energy_B, start_chains(energy, new).energy_B
        accepted = draws.accepts(log_accept(old_energy, new_energy, forth, back), live)
        return replace(state, tokens_BT=torch.where(accepted[:, None], new, y)), Info.none(state)

    return kernel


def differing_ratio(y: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """q over the positions that differ, with only those masked."""
    forth, back = torch.zeros(len(y), dtype=torch.float64), torch.zeros(len(y), dtype=torch.float64)
    for row in range(len(y)):
        differs = y[row] != new[row]
        if differs.any():
            log_q = MODEL.masked_logits(y[row : row + 1], differs[None]).log_softmax(-1)
            forth[row] = log_q.gather(1, new[row][differs][:, None]).sum()
            back[row] = log_q.gather(1, y[row][differs][:, None]).sum()
    return forth, back


def hastings(old: Tensor, new: Tensor, forth: Tensor, back: Tensor) -> Tensor:
    return old - new + back - forth


def always(old: Tensor, new: Tensor, forth: Tensor, back: Tensor) -> Tensor:
    return torch.zeros_like(old)


def as_printed(old: Tensor, new: Tensor, forth: Tensor, back: Tensor) -> Tensor:
    return (new / old).abs().log() + forth - back


def without_q(old: Tensor, new: Tensor, forth: Tensor, back: Tensor) -> Tensor:
    return old - new


def hot(logits: Tensor) -> Tensor:
    return (logits / 2).log_softmax(-1)


def nucleus(logits: Tensor) -> Tensor:
    return masked_conditionals(MODEL, nucleus=0.8).log_probs(logits)


def test_a_sweep_of_gibbs_is_the_product_of_its_visits() -> None:
    """Each position is redrawn given what was drawn before it, with probabilities taken from the model one by one."""
    model, every_NT = table_model(num_positions=3, vocab_size=2, seed=4), every_sequence(2, 3)
    rows = [tuple(row) for row in every_NT.tolist()]
    expected_NN = torch.eye(len(rows), dtype=torch.float64)
    for place in range(3):
        visit_NN = torch.zeros_like(expected_NN)
        for number, row in enumerate(rows):
            masked_1T = torch.arange(3)[None] == place
            probs_V = model.masked_logits(torch.tensor([row]), masked_1T).double()[0].softmax(0)
            for token, probability in enumerate(probs_V.tolist()):
                visit_NN[number, rows.index((*row[:place], token, *row[place + 1 :]))] = probability
        expected_NN = expected_NN @ visit_NN
    states = start_chains(local_energy(model), every_NT)
    swept_NN = transition_matrix(gibbs(masked_conditionals(model)), states)
    assert torch.allclose(swept_NN, expected_NN, atol=1e-12)


WRONG: dict[str, Callable[[Energy], Kernel]] = {
    "Gibbs on masked conditionals": lambda energy: gibbs(masked_conditionals(MODEL), visits=anywhere()),
    "Gibbs, pairs": lambda energy: gibbs(masked_conditionals(MODEL), visits=anywhere([2])),
    "Gibbs, a sweep": lambda energy: gibbs(masked_conditionals(MODEL)),
    "accept always": lambda energy: by_hand(energy, always),
    "line 11 as printed": lambda energy: by_hand(energy, as_printed),
    "no ratio of q": lambda energy: by_hand(energy, without_q),
    "drawn hot, judged at 1": lambda energy: by_hand(energy, hastings, drawn=hot),
    "nucleus, judged whole": lambda energy: by_hand(energy, hastings, drawn=nucleus),
    "q where they differ": lambda energy: by_hand(energy, hastings, block=2, over_differing=True),
    "Mask-Predict": lambda energy: mask_predict(MODEL, num_iterations=2),
}


@pytest.mark.thorough
@pytest.mark.parametrize("energy", [raw_energy(MODEL), local_energy(MODEL)], ids=["raw", "local"])
@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_kernel_is_found_out(name: str, energy: Energy) -> None:
    states = listed(energy)
    report = examine(*matrix_and_target(WRONG[name](energy), states))
    assert report.stationarity > 1e-4
    assert report.total_variation > 1e-3
    assert not report.holds()


@pytest.mark.parametrize("block", [1, 2])
def test_the_kernel_by_hand_is_right_when_nothing_is_exchanged(block: int) -> None:
    """So what the tests above find is the part that was exchanged."""
    energy = local_energy(MODEL)
    matrix, target = matrix_and_target(by_hand(energy, hastings, block=block), listed(energy))
    assert examine(matrix, target).stationarity <= TOLERANCE
    kernel = metropolis_hastings(energy, masked_conditionals(MODEL), visits=anywhere([block]))
    assert (matrix - transition_matrix(kernel, listed(energy))).abs().max() < 1e-14


def test_a_nucleus_passes_from_the_target_and_is_found_reducible() -> None:
    energy = local_energy(MODEL)
    kernel = metropolis_hastings(energy, masked_conditionals(MODEL, nucleus=0.8), visits=anywhere())
    report = examine(*matrix_and_target(kernel, listed(energy)))
    assert report.stationarity <= TOLERANCE
    assert report.detailed_balance <= TOLERANCE
    assert report.num_classes > 1
    assert report.total_variation > 0.5
    assert not report.holds()


def test_burn_in_and_moving_targets_are_flagged() -> None:
    energy = local_energy(MODEL)
    proposal = masked_conditionals(MODEL)
    state = start_chains(energy, torch.zeros(2, 3).long())
    kernel = anneal_target(lambda t: metropolis_hastings(energy, proposal, temperature=t), [1.0, 0.9, 0.8])
    assert sample_chains(kernel, state, 4).invariant_S.tolist() == [False, False, True, True]
    blocks = anneal_blocks(lambda b: metropolis_hastings(energy, proposal, visits=in_order(b)), [2, 1])
    assert sample_chains(blocks, state, 3).invariant_S.tolist() == [True, True, True]
    warm = sample_chains(burn_in(gibbs(proposal)), state, 2)
    assert warm.invariant_S.tolist() == [False, False]
    draws = SeededDraws(0, state.chain_B, sweep=0)
    assert not cycle(gibbs(proposal), exact_gibbs(energy))(draws, state)[1].invariant
    assert not mixture([gibbs(proposal), exact_gibbs(energy)])(draws, state)[1].invariant


# ---------------------------------------------------------------------------------------------- the kit itself


def test_a_simulated_matrix_agrees_with_the_exact_one() -> None:
    energy = local_energy(SMALL)
    states = listed(energy, vocab_size=2)
    kernel = metropolis_hastings(energy, masked_conditionals(SMALL, temperature=1.5), visits=in_order())

    def step(tokens_BT: Tensor) -> Tensor:
        return sample_chains(kernel, start_chains(energy, tokens_BT), 1, seed=5).state.tokens_BT

    num_draws = 2000
    exact = transition_matrix(kernel, states)
    found = simulated_matrix(step, states.tokens_BT, num_draws=num_draws)
    error = (exact * (1 - exact) / num_draws).sqrt()
    assert ((found - exact).abs() <= 4.5 * error + 1e-12).all()
    wrong = transition_matrix(gibbs(masked_conditionals(SMALL, temperature=1.5)), states)
    assert ((found - wrong).abs() > 4.5 * error).any()


def test_a_report_on_matrices_that_are_known() -> None:
    stay, swap = torch.eye(2), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    even = torch.tensor([0.5, 0.5])
    assert examine(stay, even).num_classes == 2
    assert examine(stay, even).total_variation == pytest.approx(0.5)
    # Periodic, yet right on average.
    assert examine(swap, even).holds()
    assert examine(swap, even).total_variation == pytest.approx(0.0)
    tilted = examine(swap, torch.tensor([0.75, 0.25]))
    assert tilted.stationarity == pytest.approx(0.5)
    assert tilted.detailed_balance == pytest.approx(0.5)
    assert tilted.total_variation == pytest.approx(0.25)
    # States of no probability belong to no class.
    drain = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    assert examine(drain, torch.tensor([0.5, 0.5, 0.0])).num_classes == 2
    one_way = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    assert examine(one_way, torch.tensor([0.0, 1.0])).holds()


def test_one_draw_from_each_state_is_enough_to_be_examined() -> None:
    even = torch.tensor([0.5, 0.5])
    assert examine_draws(torch.eye(2), even, num_draws=1).holds()
    with pytest.raises(InputError, match="at least 1, got 0"):
        examine_draws(torch.eye(2), even, num_draws=0)


def test_invalid_arguments_of_the_kit_are_refused() -> None:
    energy = local_energy(MODEL)
    states = listed(energy)
    kernel = metropolis_hastings(energy, masked_conditionals(MODEL), visits=anywhere())
    with pytest.raises(InputError, match="not among the states"):
        transition_matrix(kernel, states.take(torch.arange(5)))
    with pytest.raises(InputError, match="the same"):
        transition_matrix(kernel, states.take(torch.tensor([0, 0])))
    with pytest.raises(InputError, match="not among"):
        simulated_matrix(lambda y: y + 5, every_sequence(2, 1), num_draws=2)
    with pytest.raises(InputError, match="sum to 1"):
        examine(2 * torch.eye(2), torch.tensor([0.5, 0.5]))


GENERATOR = torch.Generator().manual_seed(0)
OWN_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch's": lambda y: torch.randint(3, y.shape),
    "numpy's": lambda y: torch.from_numpy(np.random.randint(3, size=y.shape)),
    "Python's": lambda y: torch.tensor([[random.randrange(3) for _ in row] for row in y.tolist()]),
    "its result for the same choices": lambda y: torch.randint(3, y.shape, generator=GENERATOR),
}


@pytest.mark.parametrize("name", list(OWN_NUMBERS))
@pytest.mark.parametrize("asks", [True, False])
def test_a_kernel_that_draws_its_own_numbers_is_refused(name: str, asks: bool) -> None:
    states = listed(local_energy(MODEL))

    def kernel(draws: Draws, state: ChainState) -> tuple[ChainState, Info]:
        tokens_BT = OWN_NUMBERS[name](state.tokens_BT)
        if asks:
            moves_B = draws.accepts(torch.full((len(state),), -0.7), state.free_BT.any(1))
            tokens_BT = torch.where(moves_B[:, None], tokens_BT, state.tokens_BT)
        return start_chains(state.energy, tokens_BT), Info.none(state)

    with pytest.raises(InputError, match=name) as refused:
        transition_matrix(kernel, states)
    assert "simulated_matrix" in str(refused.value)


def test_a_kernel_that_draws_nothing_has_a_matrix() -> None:
    states = listed(local_energy(MODEL))
    assert torch.equal(
        transition_matrix(lambda draws, state: (state, Info.none(state)), states), torch.eye(27).double()
    )


def redrawn(probs_N: Tensor, states_NT: Tensor, seed: int) -> Callable[[Tensor], Tensor]:
    """A sampler that forgets where it was."""
    generator = torch.Generator().manual_seed(seed)
    return lambda y: states_NT[torch.multinomial(probs_N, len(y), replacement=True, generator=generator)]


@pytest.mark.thorough
def test_simulated_matrices_of_right_and_wrong_samplers() -> None:
    states_NT = every_sequence(2, 3)
    target_N = torch.linspace(1, 2, 8, dtype=torch.float64).softmax(0)
    tilted_N = target_N.clone()
    tilted_N[7] *= 1.05
    tilted_N /= tilted_N.sum()
    for seed in range(5):
        right, wrong = (
            examine_draws(
                simulated_matrix(redrawn(one, states_NT, seed), states_NT, num_draws=20000), target_N, num_draws=20000
            )
            for one in (target_N, tilted_N)
        )
        assert right.holds() and right.largest == float(right.gaps_N.abs().max()) < 4
        assert not wrong.holds() and wrong.p_value < 1e-6
        assert int(wrong.gaps_N.argmax()) == 7


@pytest.mark.thorough
def test_right_samplers_are_not_refused_more_often_than_the_level_says() -> None:
    """Of 400 simulations no more than 5 in 100 at the level 0.05, within 3 standard errors; rare states included."""
    target_N = torch.tensor([0.6, 0.3, 0.09, 0.009, 0.001], dtype=torch.float64)
    states_NT = every_sequence(5, 1)
    for num_draws in (50, 1000):
        matrices = (
            simulated_matrix(redrawn(target_N, states_NT, seed), states_NT, num_draws=num_draws) for seed in range(400)
        )
        refused = sum(not examine_draws(one, target_N, num_draws=num_draws).holds(0.05) for one in matrices)
        assert refused <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_a_gap_in_standard_errors_is_that_of_the_formula() -> None:
    matrix_NN, target_N, num_draws = torch.tensor([[0.7, 0.3], [0.4, 0.6]]).double(), torch.tensor([0.5, 0.5]), 10**6
    variance = 0.25 * (0.7 * 0.3 + 0.4 * 0.6) / num_draws
    report = examine_draws(matrix_NN, target_N, num_draws=num_draws)
    assert report.gaps_N.tolist() == pytest.approx([0.05 / variance**0.5, -0.05 / variance**0.5], rel=1e-4)
    assert report.p_value == 0 and not report.holds()
    # Two states, each with the two tails of the normal distribution.
    near = examine_draws(matrix_NN, torch.tensor([0.5715, 0.4285]), num_draws=20000)
    z = (0.5715 * 0.7 + 0.4285 * 0.4 - 0.5715) / math.sqrt((0.5715**2 * 0.21 + 0.4285**2 * 0.24) / 20000)
    assert near.p_value == pytest.approx(min(1.0, 2 * math.erfc(abs(z) / math.sqrt(2))), rel=1e-2)
    with pytest.raises(InputError, match="sum to 1"):
        examine_draws(2 * matrix_NN, target_N, num_draws=5)
