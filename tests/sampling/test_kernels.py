"""Kernels against a literal Algorithm 4, without caches and one position at a time; their passes and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recording import RecordedRows
from seqwise import InputError
from seqwise.sampling import (
    ChainState,
    Info,
    Kernel,
    SeededDraws,
    Trace,
    anywhere,
    constraint,
    contains,
    cycle,
    delayed_acceptance,
    exact_gibbs,
    gibbs,
    in_order,
    kernels,
    local_energy,
    mask_predict,
    masked_conditionals,
    metropolis_hastings,
    mixture,
    parallel_tempering,
    raw_energy,
    replicas,
    sample_chains,
    sequence_energy,
    shuffled,
    start_chains,
    table_model,
)
from seqwise.sampling.kernels import update_scores
from seqwise.sampling.state import evaluate

NUM_CHAINS, NUM_POSITIONS, VOCAB_SIZE = 3, 5, 4


class Network(nn.Module):
    """A random network that reads all tokens and counts the masked sequences that it is given."""

    def __init__(self, vocab_size: int = VOCAB_SIZE, num_positions: int = NUM_POSITIONS) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.passes = vocab_size, vocab_size + 3, 0
        self.embedding = nn.Embedding(vocab_size + 4, 6)
        self.hidden = nn.Linear(6 * num_positions, num_positions * 8)
        self.head = nn.Linear(8, vocab_size)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.8, generator=torch.Generator().manual_seed(parameter.numel()))
        self.double().eval()

    def masked_logits(self, tokens_NT: Tensor, masked_NT: Tensor, context: Any = None) -> Tensor:
        self.passes += len(tokens_NT)
        features_NTH = self.hidden(self.embedding(tokens_NT.masked_fill(masked_NT, self.mask_id)).flatten(1))
        features_NTH = features_NTH.tanh().view(*tokens_NT.shape, 8)
        if context is not None:
            features_NTH = features_NTH + context["source"][:, None]
        return self.head(features_NTH[masked_NT])


NETWORK = Network()
MODELS = {
    "table": table_model(num_positions=NUM_POSITIONS, vocab_size=VOCAB_SIZE, seed=1, scale=0.7),
    "network": NETWORK,
}
START_BT = torch.tensor([[0, 1, 2, 3, 0], [3, 3, 3, 3, 3], [0, 2, 0, 1, 1]])


# ------------------------------------------------------------------------------------------ a literal Algorithm 4

WORD = 2**64


class LiteralStream:
    """SplitMix64 of one chain and sweep, in Python's own integers."""

    gamma = 0x9E3779B97F4A7C15

    def __init__(self, seed: int, chain: int, sweep: int) -> None:
        """The start of the stream is output ``sweep`` of the stream that starts at output ``chain`` of the seed's."""
        self.state = self.mixed(seed + self.gamma)
        for number in (chain, sweep):
            self.state = self.mixed(self.state + (number + 1) * self.gamma)

    @staticmethod
    def mixed(z: int) -> int:
        z %= WORD
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        return z ^ (z >> 31)

    def uniform(self) -> float:
        self.state = (self.state + self.gamma) % WORD
        return (self.mixed(self.state) >> 11) / 2**53


def literal_scores(model: Any, y: Sequence[int], hidden: Sequence[int]) -> list[list[float]]:
    masked = torch.tensor([[t in hidden for t in range(len(y))]])
    return model.masked_logits(torch.tensor([list(y)]), masked).tolist()


def literal_softmax(scores: Sequence[float], temperature: float = 1.0) -> list[float]:
    weights = [math.exp(score / temperature) for score in scores]
    return [weight / sum(weights) for weight in weights]


def literal_energy(model: Any, y: Sequence[int], kind: str) -> float:
    total = 0.0
    for t in range(len(y)):
        (scores,) = literal_scores(model, y, [t])
        total -= scores[y[t]] if kind == "raw" else math.log(literal_softmax(scores)[y[t]])
    return total


def literal_sweep(
    model: Any, y: list[int], stream: LiteralStream, kind: str, block: int, temperature: float, heat: float
) -> tuple[list[int], int, int, list[int]]:
    """Algorithm 4, line 11 corrected: tokens, how many accepted and novel, how many tokens each proposal changed."""
    accepted = novel = 0
    changed = []
    for first in range(0, len(y), block):
        places = list(range(first, min(first + block, len(y))))
        old_energy = literal_energy(model, y, kind)
        new, forth, back = list(y), 0.0, 0.0
        for place, scores in zip(places, literal_scores(model, y, places), strict=True):
            q, point = literal_softmax(scores, heat), stream.uniform()
            token = next(w for w in range(len(q)) if sum(q[: w + 1]) > point)
            new[place] = token
            forth, back = forth + math.log(q[token]), back + math.log(q[y[place]])
        new_energy = literal_energy(model, new, kind)
        changed.append(sum(a != b for a, b in zip(y, new, strict=True)))
        if stream.uniform() < math.exp((old_energy - new_energy) / temperature + back - forth):
            accepted, novel, y = accepted + 1, novel + (new != y), new
    return y, accepted, novel, changed


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize(
    ("kind", "block", "temperature", "heat"), [("raw", 1, 1.0, 1.0), ("local", 1, 0.8, 1.5), ("local", 2, 1.0, 2.0)]
)
def test_the_states_are_those_of_a_literal_algorithm_4(
    name: str, kind: str, block: int, temperature: float, heat: float
) -> None:
    """The same states to the bit, and T - 1 passes where one token differs; the literal one takes 1 + 2T always."""
    model, num_sweeps = MODELS[name], 12
    energy = raw_energy(model) if kind == "raw" else local_energy(model)
    kernel = metropolis_hastings(
        energy, masked_conditionals(model, temperature=heat), visits=in_order(block), temperature=temperature
    )
    state = start_chains(energy, START_BT)
    before = NETWORK.passes
    chains = sample_chains(kernel, state, num_sweeps, seed=11)
    if name == "network":
        assert NETWORK.passes - before == int(chains.passes_SB.sum())
    for chain in range(NUM_CHAINS):
        y = START_BT[chain].tolist()
        for sweep in range(num_sweeps):
            stream = LiteralStream(11, chain, sweep)
            before = NETWORK.passes
            y, accepted, novel, changed = literal_sweep(model, y, stream, kind, block, temperature, heat)
            assert name == "table" or NETWORK.passes - before == (1 + 2 * NUM_POSITIONS) * len(changed)
            assert chains.tokens_SBT[sweep, chain].tolist() == y
            assert chains.energy_SB[sweep, chain].item() == pytest.approx(literal_energy(model, y, kind), abs=1e-10)
            assert chains.accepted_SB[sweep, chain] == accepted
            assert chains.novel_SB[sweep, chain] == novel
            assert chains.proposals_SB[sweep, chain] == len(changed)
            # One more where several are masked: with blocks of 2 the last position stands alone.
            extra = sum(1 for first in range(0, NUM_POSITIONS, block) if min(block, NUM_POSITIONS - first) > 1)
            costs = [0 if c == 0 else NUM_POSITIONS - 1 if c == 1 else NUM_POSITIONS for c in changed]
            assert chains.passes_SB[sweep, chain] == extra + sum(costs)
    assert 0 < chains.novel_SB.sum() < chains.accepted_SB.sum() < chains.proposals_SB.sum()


def test_the_numbers_are_splitmix64() -> None:
    """The first outputs of the published generator for the seed 0."""
    stream = LiteralStream(0, 0, 0)
    stream.state = 0
    words = [int(stream.uniform() * 2**53) for _ in range(3)]
    assert words == [0xE220A8397B1DCDAF >> 11, 0x6E789E6AA1B965F4 >> 11, 0x06C45D188009454F >> 11]


# ------------------------------------------------------------------------------------------ caches


def every_kernel() -> dict[str, Kernel]:
    model = MODELS["table"]
    energy = local_energy(model) + 0.5 * raw_energy(NETWORK) + sequence_energy(lambda y: 0.1 * y.sum(1))
    proposal = masked_conditionals(model)
    hastings = metropolis_hastings(energy, proposal, visits=shuffled())
    return {
        "Metropolis-Hastings": hastings,
        "mixed blocks": metropolis_hastings(energy, proposal, visits=anywhere([1, 3, 5])),
        "foreign blocks": metropolis_hastings(energy, masked_conditionals(Network()), visits=in_order(2)),
        "delayed acceptance": delayed_acceptance(energy, proposal),
        "Gibbs": gibbs(proposal, visits=in_order(2)),
        "exact Gibbs": exact_gibbs(energy),
        "Mask-Predict": mask_predict(model, num_iterations=3),
        "cycle": cycle(gibbs(proposal), hastings, metropolis_hastings(raw_energy(model), proposal)),
        "mixture": mixture([hastings, gibbs(proposal)]),
        "tempering": parallel_tempering(lambda t_B: metropolis_hastings(energy, proposal, temperature=t_B), [1, 2, 4]),
    }


def test_replicas_are_numbered_after_their_chain() -> None:
    """Each replica draws its own random numbers, which depend on the number of its chain only."""
    state = start_chains(local_energy(MODELS["table"]), START_BT, chain_B=3 * torch.arange(len(START_BT)) + 1)
    numbers = replicas(state, 4).chain_B.view(-1, 4).tolist()
    assert numbers == [[4 * (3 * chain + 1) + own for own in range(4)] for chain in range(len(START_BT))]


@pytest.mark.parametrize("name", list(every_kernel()))
def test_cached_energies_and_scores_are_those_computed_anew(name: str) -> None:
    kernel = every_kernel()[name]
    state = start_chains(local_energy(MODELS["table"]) + raw_energy(NETWORK), START_BT)
    state = replicas(state, 3)
    for sweep in range(4):
        given = [state.tokens_BT.clone(), state.energy_B.clone(), *(own.clone() for own in state.logits)]
        after, _ = kernel(SeededDraws(3, state.chain_B, sweep=sweep), state)
        held = [state.tokens_BT, state.energy_B, *state.logits]
        assert all(torch.equal(a, b) for a, b in zip(given, held, strict=True)), "the given state was changed"
        own = evaluate(after.energy, after.tokens_BT)
        assert torch.allclose(after.energy_B, own.energy_B, atol=1e-12)
        assert torch.allclose(after.energy_BT, own.energy_BT, atol=1e-12)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(after.logits, own.logits, strict=True))
        state = after
    assert not torch.equal(state.tokens_BT, START_BT.repeat_interleave(3, 0))


@pytest.mark.parametrize("name", list(every_kernel()))
def test_fixed_positions_stay_and_chains_without_free_ones_draw_nothing(name: str) -> None:
    kernel = every_kernel()[name]
    free_BT = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).bool()
    energy = local_energy(MODELS["table"]) + 0.5 * raw_energy(NETWORK) + sequence_energy(lambda y: 0.1 * y.sum(1))
    state = replicas(start_chains(energy, START_BT, free_BT=free_BT), 3)
    chains = sample_chains(kernel, state, 6)
    moved = (chains.tokens_SBT != state.tokens_BT).any(0)
    assert not moved[~state.free_BT].any()
    assert moved[state.free_BT].any()
    assert (chains.proposals_SB[:, 3:6] == 0).all()
    assert torch.equal(chains.state.free_BT, state.free_BT)


# ------------------------------------------------------------------------------------------ single kernels


def test_with_one_position_and_no_temperature_the_own_term_cancels_and_all_is_accepted() -> None:
    model = table_model(num_positions=1, vocab_size=5)
    state = start_chains(local_energy(model), torch.zeros(50, 1).long())
    chains = sample_chains(metropolis_hastings(local_energy(model), masked_conditionals(model)), state, 20)
    assert torch.equal(chains.accepted_SB, chains.proposals_SB)
    # And no position is left whose scores could have changed.
    assert chains.passes_SB.sum() == 0


def test_a_proposal_from_another_model_costs_one_pass() -> None:
    energy = local_energy(MODELS["table"])
    state = start_chains(energy, START_BT)
    own = sample_chains(metropolis_hastings(energy, masked_conditionals(MODELS["table"])), state, 5)
    other = sample_chains(metropolis_hastings(energy, masked_conditionals(NETWORK)), state, 5)
    assert (own.passes_SB % (NUM_POSITIONS - 1) == 0).all()
    assert (other.passes_SB % (NUM_POSITIONS - 1) == NUM_POSITIONS % (NUM_POSITIONS - 1)).all()


def test_delayed_acceptance_takes_fewer_passes() -> None:
    energy, proposal = local_energy(NETWORK), masked_conditionals(NETWORK, temperature=3.0)
    state = start_chains(energy, START_BT.repeat(20, 1))
    plain = sample_chains(metropolis_hastings(energy, proposal), state, 10)
    before = NETWORK.passes
    delayed = sample_chains(delayed_acceptance(energy, proposal, window=0), state, 10)
    assert NETWORK.passes - before == int(delayed.passes_SB.sum())
    # A window of 0 holds the masked position alone, whose scores are known: the first stage is free.
    assert delayed.passes_SB.sum() < plain.passes_SB.sum()
    assert (delayed.passes_SB == (NUM_POSITIONS - 1) * (delayed.passes_SB // (NUM_POSITIONS - 1))).all()


def test_a_wide_window_is_plain_metropolis_hastings() -> None:
    energy, proposal = local_energy(NETWORK), masked_conditionals(NETWORK)
    state = start_chains(energy, START_BT)
    plain = metropolis_hastings(energy, proposal, visits=anywhere())
    wide = delayed_acceptance(energy, proposal, window=NUM_POSITIONS, visits=anywhere())
    assert torch.equal(sample_chains(plain, state, 30).tokens_SBT, sample_chains(wide, state, 30).tokens_SBT)


def test_hard_constraints_reject_without_a_pass() -> None:
    keep = constraint(lambda y: (y == START_BT[:1]).all(1) | (y == START_BT[1:2]).all(1) | (y == START_BT[2:]).all(1))
    energy = local_energy(NETWORK) + keep
    chains = sample_chains(metropolis_hastings(energy, masked_conditionals(NETWORK)), start_chains(energy, START_BT), 5)
    assert chains.passes_SB.sum() == 0
    assert (chains.tokens_SBT == START_BT).all()
    assert torch.equal(chains.novel_SB, torch.zeros_like(chains.novel_SB))
    with pytest.raises(InputError, match="3 of 3 initial sequences is not finite"):
        start_chains(local_energy(NETWORK) + constraint(lambda y: y[:, 0] > 9), START_BT)


def test_a_token_outside_the_nucleus_stays_without_a_pass() -> None:
    """There would be no way back: the nucleus is one token at each position, and the chain holds another."""
    best = mask_predict(NETWORK, num_iterations=1)
    energy, proposal = local_energy(NETWORK), masked_conditionals(NETWORK, nucleus=0.01)
    state = start_chains(energy, START_BT)
    chains = sample_chains(metropolis_hastings(energy, proposal), state, 5)
    assert (chains.tokens_SBT == START_BT).all()
    assert chains.passes_SB.sum() == 0
    assert chains.accepted_SB.sum() < chains.proposals_SB.sum()
    assert not torch.equal(sample_chains(best, state, 1).state.tokens_BT, START_BT)


def test_the_draws_of_a_sweep_are_uniform_and_independent_between_chains_and_sweeps() -> None:
    live = torch.ones(4000).bool()
    drawn = []
    for sweep in range(5):
        draws = SeededDraws(-7, torch.arange(4000), sweep=sweep)
        drawn += [draws.uniform(live) for _ in range(2)]
    numbers = torch.stack(drawn)
    assert ((numbers >= 0) & (numbers < 1)).all()
    cells = torch.histc(numbers, 50, 0, 1)
    expected = numbers.numel() / 50
    assert abs(((cells - expected) ** 2 / expected).sum() - 49) < 4 * math.sqrt(2 * 49)
    centred = (numbers - 0.5) * math.sqrt(12)
    correlations = centred @ centred.T / 4000 - torch.eye(10)
    assert correlations.fill_diagonal_(0).abs().max() < 4.5 / math.sqrt(4000)
    neighbours = (centred[:, 1:] * centred[:, :-1]).mean()
    assert neighbours.abs() < 4 / math.sqrt(centred.numel())


# ------------------------------------------------------------------------------------------ Mask-Predict


@pytest.mark.parametrize("num_iterations", [1, 2, 3, 5])
def test_mask_predict_counts_its_passes_and_is_not_invariant(num_iterations: int) -> None:
    """The states are compared with a loop in test_refinement.py."""
    free_BT = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0]]).bool()
    state = start_chains(local_energy(NETWORK), START_BT, free_BT=free_BT)
    before = NETWORK.passes
    _, info = mask_predict(NETWORK, num_iterations=num_iterations)(SeededDraws(0, state.chain_B, sweep=0), state)
    assert NETWORK.passes - before == int(info.passes_B.sum()) > 0
    assert not info.invariant


# ------------------------------------------------------------------------------------------ what is refused


class NeverAsked:
    """Draws for kernels that must not get so far."""

    def categorical(self, log_weights_BV: Tensor, live_B: Tensor) -> Tensor:
        raise AssertionError

    def accepts(self, log_probs_B: Tensor, live_B: Tensor) -> Tensor:
        raise AssertionError


def test_invalid_arguments_are_refused() -> None:
    energy, draws = local_energy(NETWORK), NeverAsked()
    state = start_chains(energy, START_BT)
    proposal = masked_conditionals(NETWORK)
    for options in ({"temperature": 0.0}, {"nucleus": 0.0}, {"full_share": 1.0}, {"allowed_V": torch.zeros(4).bool()}):
        with pytest.raises(InputError):
            masked_conditionals(NETWORK, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="temperature of a target"):
        metropolis_hastings(energy, proposal, temperature=-1.0)(draws, state)
    with pytest.raises(InputError, match="one position at a time"):
        exact_gibbs(energy, visits=in_order(2))(draws, state)
    with pytest.raises(InputError, match="would try 0 tokens"):
        exact_gibbs(sequence_energy(lambda y: y.sum(1)))(draws, state)
    with pytest.raises(InputError, match="block"):
        in_order(0)
    with pytest.raises(InputError, match="at least 1 iteration"):
        mask_predict(NETWORK, num_iterations=0)
    with pytest.raises(InputError, match="at least one of them true"):
        mask_predict(NETWORK, num_iterations=1, allowed_V=torch.zeros(4).bool())
    with pytest.raises(InputError, match="token 4 of an initial sequence"):
        start_chains(energy, torch.full((1, 5), 4))
    with pytest.raises(InputError, match="int64"):
        start_chains(energy, torch.zeros(5).long())
    with pytest.raises(InputError, match="training mode"):
        start_chains(local_energy(Network().train()), START_BT)
    for temperatures in ([1.0, 0.0], [0.0], [1.0, -1.0], [math.nan, 1.0], []):
        with pytest.raises(InputError, match="parallel tempering needs temperatures greater than 0"):
            parallel_tempering(lambda t_B: exact_gibbs(energy), temperatures)
    for weights in ([1.0, 0.0], [1.0, math.inf], [1.0], []):
        with pytest.raises(InputError, match="cannot be mixed with the weights"):
            mixture([exact_gibbs(energy)] * 2, weights)
    for temperature in (0.0, math.nan):
        for kernel in (metropolis_hastings(energy, proposal, temperature=temperature),
                       exact_gibbs(energy, temperature=torch.tensor([1.0, 2.0, temperature]))):  # fmt: skip
            with pytest.raises(InputError, match="temperature of a target must be greater than 0"):
                kernel(SeededDraws(0, state.chain_B, sweep=0), state)
    with pytest.raises(InputError, match="do not divide"):
        parallel_tempering(lambda t_B: exact_gibbs(energy), [1.0, 2.0])(draws, state)


@pytest.mark.parametrize("allowed_V", [torch.ones(5).bool(), torch.zeros(4).bool(), torch.tensor([1, 0, 1, 1])])
def test_allowed_tokens_that_are_no_mask_of_the_vocabulary_are_refused(allowed_V: Tensor) -> None:
    with pytest.raises(InputError, match="allowed tokens must be a bool mask of 4 tokens, at least one of them true"):
        exact_gibbs(local_energy(NETWORK), allowed_V=allowed_V)


def test_models_of_two_vocabularies_share_the_allowed_tokens() -> None:
    energy = local_energy(NETWORK) + local_energy(table_model(num_positions=START_BT.shape[1], vocab_size=5))
    state = start_chains(energy, START_BT)
    kernel = exact_gibbs(energy, allowed_V=torch.ones(4).bool())
    assert int(sample_chains(kernel, state, 2).state.tokens_BT.max()) <= 3
    with pytest.raises(InputError, match="must be a bool mask of 4 tokens"):
        exact_gibbs(energy, allowed_V=torch.ones(5).bool())


def test_an_energy_without_a_model_can_be_sampled() -> None:
    """Positions that do not know of each other: the energy is all that a sequence has."""
    energy = sequence_energy(lambda y: 0.5 * y.sum(1))
    state = start_chains(energy, torch.zeros(3000, 2).long())
    kernel = exact_gibbs(energy, allowed_V=torch.ones(3).bool())
    tokens_BT = sample_chains(kernel, state, 1).state.tokens_BT
    wanted = torch.tensor([0.0, -0.5, -1.0], dtype=torch.float64).softmax(0)
    for place in range(2):
        found = torch.bincount(tokens_BT[:, place], minlength=3) / 3000
        assert ((found - wanted).abs() < 4 * (wanted * (1 - wanted) / 3000).sqrt()).all()


def test_info_adds_up() -> None:
    state: ChainState = start_chains(local_energy(NETWORK), START_BT)
    one = replace(Info.none(state), proposals_B=torch.tensor([1, 2, 3]))
    both = one + replace(one, invariant=False)
    assert both.proposals_B.tolist() == [2, 4, 6]
    assert not both.invariant


# ------------------------------------------------------------------------------------------ no more rows than fit


def limited(
    make: Callable[[Any, int], Kernel], start_BT: Tensor, max_rows: int, num_sweeps: int = 3
) -> tuple[Trace, list[int]]:
    """Chains of a kernel, and the numbers of rows that their model was given; the start is not among them."""
    model = RecordedRows(MODELS["table"])
    state = start_chains(local_energy(model, max_rows=max_rows), start_BT.repeat(3, 1))
    model.rows.clear()
    return sample_chains(make(model, max_rows), state, num_sweeps, seed=3), model.rows


KERNELS_BY_ROWS: dict[str, Callable[[Any, int], Kernel]] = {
    "blocks": lambda m, n: metropolis_hastings(local_energy(m, max_rows=n), masked_conditionals(m), visits=in_order(3)),
    "Gibbs": lambda m, n: gibbs(masked_conditionals(m), visits=shuffled(2)),
    "exact Gibbs": lambda m, n: exact_gibbs(local_energy(m, max_rows=n)),
    "exact Gibbs, some tokens": lambda m, n: exact_gibbs(
        local_energy(m, max_rows=n) + constraint(contains(1)),
        allowed_V=torch.tensor([1, 1, 0, 1]).bool(),
        temperature=0.7,
    ),
    "Mask-Predict": lambda m, n: mask_predict(m, num_iterations=3),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(KERNELS_BY_ROWS))
@pytest.mark.parametrize("max_rows", [1, 4, 7])
def test_a_model_is_given_no_more_rows_than_it_may(name: str, max_rows: int) -> None:
    make = KERNELS_BY_ROWS[name]
    start = START_BT[[0, 2]] if name.endswith("tokens") else START_BT
    (found, given), (expected, all_at_once) = limited(make, start, max_rows), limited(make, start, 10**6)
    assert max(given) <= max_rows < max(all_at_once)
    assert torch.equal(found.tokens_SBT, expected.tokens_SBT)
    assert torch.equal(found.energy_SB, expected.energy_SB)
    assert torch.equal(found.passes_SB, expected.passes_SB)
    assert all(torch.equal(a, b) for a, b in zip(found.state.logits, expected.state.logits, strict=True))


def test_exact_gibbs_holds_the_scores_of_a_few_candidates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 9 chains, 4 tokens and 5 positions 180 rows of scores; the state itself has 45."""
    held = []

    def recorded(state: ChainState, rows_N: Tensor, *others: Any) -> Any:
        held.append(len(rows_N) * NUM_POSITIONS)
        return update_scores(state, rows_N, *others)

    monkeypatch.setattr(kernels, "update_scores", recorded)
    limited(KERNELS_BY_ROWS["exact Gibbs"], START_BT, 20, num_sweeps=1)
    assert max(held) == 45
    # At each of 5 visits: 9 parts of 4 candidates, and then the one of each chain that was drawn.
    assert held == ([20] * 9 + [45]) * 5
    held.clear()
    _, given = limited(KERNELS_BY_ROWS["exact Gibbs"], START_BT, 1000, num_sweeps=1)
    assert held == [180] * 5 and given == [9 * 3 * 4] * 5
