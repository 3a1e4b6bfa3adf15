"""Samples inside a language: weights, exact transition matrices and draws, against enumeration in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import oracles
from parameters import quick
from seqwise import InputError
from seqwise.sampling import (
    LanguageChains,
    RejectionMemory,
    WithinSamples,
    boltzmann,
    diagnose_chains,
    examine,
    local_energy,
    masked_draws,
    mixture,
    parallel_tempering,
    regrow_suffix,
    replicas,
    sample_chains,
    sample_within,
    save_chains,
    start_chains,
    start_within,
    table_model,
    transition_matrix,
)
from seqwise.sampling.energies import rows_of
from seqwise.search import (
    backtrace,
    importance_weights,
    normalized_importance_weights,
    stochastic_beam_search,
    trie,
)

Ids = tuple[int, ...]


class Law(NamedTuple):
    """An input of a small model: each output of the language with log p and log Z of its steps."""

    num_steps: int
    outputs: dict[Ids, tuple[float, list[float]]]

    def conditional(self) -> dict[Ids, float]:
        """p(y | y in L)."""
        total = oracles.log_sum_exp([log_p for log_p, _ in self.outputs.values()])
        return {output: math.exp(log_p - total) for output, (log_p, _) in self.outputs.items()}

    def masked(self) -> dict[Ids, float]:
        """The law of masked draws."""
        return {output: math.exp(log_p - sum(masses)) for output, (log_p, masses) in self.outputs.items()}


class World(NamedTuple):
    """A model, the list of outputs that make its language, and the law of each input."""

    case: oracles.Case
    outputs: list[Ids]
    laws: list[Law]

    @property
    def language(self) -> object:
        return trie(self.outputs, end=self.case.model.end)

    @property
    def num_steps(self) -> Tensor:
        return torch.tensor([law.num_steps for law in self.laws])

    def padded(self, row: int) -> list[Ids]:
        """The outputs of an input as samplers write them."""
        length, end = max(law.num_steps for law in self.laws), self.case.model.end
        rows = []
        for output in self.laws[row].outputs:
            whole = output if end is None else (*output, *[end] * (self.laws[row].num_steps - len(output)))
            rows.append((*whole, *[-1] * (length - len(whole))))
        return rows


def law_of(oracle: oracles.OracleModel, outputs: Sequence[Ids], num_steps: int) -> Law:
    """By enumeration: the allowed tokens of a prefix are those by which some output in time goes on."""
    whole = [output if oracle.end is None else (*output, oracle.end) for output in outputs]
    in_time = [
        output for output in whole if len(output) <= num_steps and (oracle.end is not None or len(output) == num_steps)
    ]
    found = {}
    for output in in_time:
        log_p, masses = 0.0, []
        for step, logits in enumerate(oracles.forced_logits(oracle, output)):
            log_z = oracles.log_sum_exp(logits)
            allowed = {other[step] for other in in_time if other[:step] == output[:step]}
            masses.append(oracles.log_sum_exp([logits[token] for token in allowed]) - log_z)
            log_p += logits[output[step]] - log_z
        found[output] = log_p, masses
    return Law(num_steps, found)


def world(case: oracles.Case, outputs: list[Ids], num_steps: Sequence[int]) -> World:
    pairs = zip(case.oracles, num_steps, strict=True)
    return World(case, outputs, [law_of(oracle, outputs, steps) for oracle, steps in pairs])


ENDED = [(), (2,), (0, 3), (2, 2), (2, 0, 3), (3, 3, 2), (3, 0, 0)]
WORLDS = {
    "tagger": world(
        oracles.tagger_case(0, target_size=3, lengths=(3, 2), scale=1.5),
        [(0, 1), (2, 2), (0, 1, 1), (0, 2, 0), (1, 1, 1), (2, 0, 1), (2, 0, 2)],
        [3, 2],
    ),
    "encoder-decoder": world(oracles.translation_case(1, lengths=(2, 3), scale=1.5), ENDED, [4, 3]),
    "transformer": world(oracles.transformer_case(2, lengths=(3, 2), scale=0.4), ENDED, [3, 4]),
}
NAMES = list(WORLDS)


def states_of(name: str, row: int, memory: RejectionMemory | None = None) -> LanguageChains:
    """A chain at every output of an input."""
    model, tokens_NT = WORLDS[name].case.model, torch.tensor(WORLDS[name].padded(row))
    inputs_N = torch.full((len(tokens_NT),), row)
    context = rows_of(model.encode(WORLDS[name].case.batch), inputs_N)
    return start_within(model, context, WORLDS[name].language, tokens_NT, inputs_B=inputs_N, memory=memory)


def test_a_model_in_training_mode_is_refused() -> None:
    case = oracles.translation_case(0)
    with pytest.raises(InputError, match="in training mode"):
        sample_within(case.model.train(), case.model.encode(case.batch), trie([(2,)], end=case.model.end), num_steps=3)


@pytest.mark.parametrize("method", ["rejection", "budgeted", "metropolis"])
def test_no_input_has_no_samples(method: str) -> None:
    case = oracles.translation_case(0)
    nothing = rows_of(case.model.encode(case.batch), torch.zeros(0, dtype=torch.long))
    options: dict[str, Any] = {"num_steps": 3, "num_samples": 2, "method": method}
    found = sample_within(case.model, nothing, trie([(2,)], end=case.model.end), **options)
    assert found.tokens_BNT.shape[:2] == (0, 2)


def sample(name: str = "tagger", **options: Any) -> WithinSamples:
    """Samples of every input of a world, inside its language."""
    world = WORLDS[name]
    context = world.case.model.encode(world.case.batch)
    return sample_within(world.case.model, context, world.language, num_steps=world.num_steps, **options)


def some_memory(name: str, num_samples: int = 2) -> RejectionMemory:
    """What a few samples leave, so that some prefixes were visited and others were not."""
    memory = RejectionMemory()
    sample(name, num_samples=num_samples, method="rejection", memory=memory)
    return memory


def expected_matrix(law: Law, independence: float) -> np.ndarray:
    """Add up, position by position, the probability of every suffix and of its acceptance."""
    outputs = list(law.outputs)
    matrix = np.zeros((len(outputs), len(outputs)))
    masked = law.masked()

    def start(output: Ids, place: int) -> float:
        return independence * (place == 0) + (1 - independence) / len(output)

    for i, here in enumerate(outputs):
        for place in range(len(here)):
            if start(here, place) == 0:
                continue
            beginning = here[:place]
            written = sum(q for output, q in masked.items() if output[:place] == beginning)
            for j, there in enumerate(outputs):
                if there[:place] != beginning:
                    continue
                ratio = start(there, place) / start(here, place)
                ratio *= math.exp(sum(law.outputs[there][1][place:]) - sum(law.outputs[here][1][place:]))
                moves = start(here, place) * masked[there] / written * min(1.0, ratio)
                matrix[i, j] += moves
        matrix[i, i] += 1 - matrix[i].sum()
    return matrix


# ---------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("name", NAMES)
def test_energies_and_masses_are_those_of_the_enumeration(name: str) -> None:
    for row, law in enumerate(WORLDS[name].laws):
        states = states_of(name, row)
        for chain, (log_p, masses) in enumerate(law.outputs.values()):
            assert float(states.energy_B[chain]) == pytest.approx(-log_p, abs=1e-12)
            assert float(states.log_weights_B[chain]) == pytest.approx(sum(masses), abs=1e-12)
            found = states.log_mass_BT[chain].tolist()
            assert found == pytest.approx([*masses, *[0.0] * (len(found) - len(masses))], abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_masked_draws_follow_the_mask_and_their_weights_correct_it(name: str) -> None:
    case, count = WORLDS[name].case, 4000
    language, steps = WORLDS[name].language, WORLDS[name].num_steps
    drawn = masked_draws(case.model, case.model.encode(case.batch), language, num_steps=steps, num_samples=count)
    for row, law in enumerate(WORLDS[name].laws):
        rows = slice(row * count, (row + 1) * count)
        require_law(drawn.tokens_BT[rows], WORLDS[name].padded(row), law.masked())
        weights = drawn.log_weights_B[rows].exp()
        total = sum(math.exp(log_p) for log_p, _ in law.outputs.values())
        assert abs(float(weights.mean()) - total) < 4 * float(weights.std()) / math.sqrt(count)


def require_law(tokens_NT: Tensor, outputs: Sequence[Ids], law: dict[Ids, float]) -> None:
    """Shares of the outputs among draws are their probabilities, within 4 standard errors and one draw."""
    count, found = len(tokens_NT), [tuple(row) for row in tokens_NT.tolist()]
    assert set(found) <= set(outputs)
    for output, probability in zip(outputs, law.values(), strict=True):
        error = math.sqrt(probability * (1 - probability) / count)
        assert abs(found.count(output) / count - probability) < 4 * error + 1 / count, output


# ---------------------------------------------------------------------------------------- the kernel


@pytest.mark.parametrize("independence", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", quick(NAMES, "tagger"))
def test_the_transition_matrix_is_that_of_the_enumeration(name: str, independence: float) -> None:
    case = WORLDS[name].case
    kernel = regrow_suffix(case.model, WORLDS[name].language, independence=independence)
    for row, law in enumerate(WORLDS[name].laws):
        states = states_of(name, row)
        matrix_NN = transition_matrix(kernel, states)
        np.testing.assert_allclose(matrix_NN, expected_matrix(law, independence), atol=1e-12)
        target_N = torch.tensor(list(law.conditional().values()), dtype=torch.float64)
        torch.testing.assert_close(boltzmann(states.energy_B), target_N, atol=1e-12, rtol=0)
        report = examine(matrix_NN, target_N)
        assert report.holds()
        assert report.detailed_balance <= 1e-12


def test_kernels_of_regrown_suffixes_mix() -> None:
    case, language = WORLDS["tagger"].case, WORLDS["tagger"].language
    states = states_of("tagger", 0)
    kernel = mixture([regrow_suffix(case.model, language, independence=share) for share in (0.0, 1.0)])
    assert examine(transition_matrix(kernel, states), boltzmann(states.energy_B)).holds()


def test_chains_that_are_not_free_stay_and_draw_nothing() -> None:
    case, language = WORLDS["encoder-decoder"].case, WORLDS["encoder-decoder"].language
    states = states_of("encoder-decoder", 0)
    held_B = torch.arange(len(states)) % 2 == 0
    held = replace(states, free_BT=states.free_BT & ~held_B[:, None])
    trace = sample_chains(regrow_suffix(case.model, language), held, 20)
    assert torch.equal(trace.state.tokens_BT[held_B], states.tokens_BT[held_B])
    assert not torch.equal(trace.state.tokens_BT[~held_B], states.tokens_BT[~held_B])
    assert trace.passes_SB.sum(0).tolist() == [0 if is_held else 20 for is_held in held_B]


@pytest.mark.parametrize("name", NAMES)
def test_cached_values_are_those_of_the_tokens(name: str, tmp_path: Path) -> None:
    case, language = WORLDS[name].case, WORLDS[name].language
    context, steps = case.model.encode(case.batch), WORLDS[name].num_steps
    chains = masked_draws(case.model, context, language, num_steps=steps, num_samples=8)
    last = sample_chains(regrow_suffix(case.model, language), chains, 10).state
    with pytest.raises(InputError, match=r"a LanguageChains holds more than a file of chains; .* start_within"):
        save_chains(tmp_path / "chains.safetensors", last)
    assert isinstance(last, LanguageChains)
    again = start_within(case.model, last.context, language, last.tokens_BT)
    for cached in ("energy_B", "energy_BT", "log_mass_BT"):
        torch.testing.assert_close(getattr(last, cached), getattr(again, cached), atol=1e-12, rtol=0)


@pytest.mark.thorough
def test_chains_are_diagnosed_and_do_not_depend_on_the_batch() -> None:
    case, language = WORLDS["tagger"].case, WORLDS["tagger"].language
    context = case.model.encode(case.batch)
    chains = masked_draws(case.model, context, language, num_steps=WORLDS["tagger"].num_steps, num_samples=4)
    kernel = regrow_suffix(case.model, language)
    trace = sample_chains(kernel, chains, 200, seed=3)
    alone = sample_chains(kernel, chains.take(torch.tensor([5])), 200, seed=3)
    assert torch.equal(alone.tokens_SBT[:, 0], trace.tokens_SBT[:, 5])
    report = diagnose_chains(trace.take(torch.arange(4)), discard=20)
    assert report.r_hat["energy"] < 1.1
    assert 0 < report.novelty < report.acceptance < 1


# ---------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("name", quick(NAMES, "tagger"))
def test_samples_of_chains_have_the_law_that_the_matrix_says(name: str) -> None:
    count = 4000
    samples = sample(name, num_samples=count, method="metropolis", num_passes=6)
    assert not bool(samples.exact_BN.any())
    assert samples.passes_B.tolist() == [6 * count] * len(WORLDS[name].laws)
    for row, law in enumerate(WORLDS[name].laws):
        after_N = np.array(list(law.masked().values())) @ np.linalg.matrix_power(expected_matrix(law, 0.5), 5)
        after = dict(zip(law.outputs, after_N.tolist(), strict=True))
        require_law(samples.tokens_BNT[row], WORLDS[name].padded(row), after)


@pytest.mark.parametrize("name", NAMES)
def test_a_memory_bounds_what_prefixes_keep_in_the_language(name: str) -> None:
    memory, world = some_memory(name), WORLDS[name]
    assert memory.log_weights and memory.log_mass((-1, ())) == 0.0
    for row, prefix in memory.log_weights:
        bound = memory.log_mass((row, prefix))
        law = world.laws[row]
        inside = [log_p for output, (log_p, _) in law.outputs.items() if output[: len(prefix)] == prefix]
        before = sum(
            logits[token] - oracles.log_sum_exp(logits)
            for logits, token in zip(oracles.forced_logits(world.case.oracles[row], prefix), prefix, strict=False)
        )
        assert bound >= oracles.log_sum_exp(inside) - before - 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_is_kept_in_proportion_to_the_conditional(name: str) -> None:
    """Drawn with q and kept with p / (q b), an output comes with probability p / b: the law of rejection."""
    for memory in (RejectionMemory(), some_memory(name)):
        for row, law in enumerate(WORLDS[name].laws):
            states = states_of(name, row, memory)
            drawn_N = (-states.energy_B - states.log_weights_B).exp()
            assert float(drawn_N.sum()) == pytest.approx(1, abs=1e-12)
            keeps_N = (states.log_weights_B - memory.log_mass((row, ()))).exp()
            assert float(keeps_N.max()) <= 1 + 1e-12
            kept_N = drawn_N * keeps_N
            expected_N = torch.tensor(list(law.conditional().values()), dtype=torch.float64)
            torch.testing.assert_close(kept_N / kept_N.sum(), expected_N, atol=1e-12, rtol=0)


@pytest.mark.parametrize("independence", [0.3, 1.0])
@pytest.mark.parametrize("name", quick(NAMES, "tagger"))
def test_chains_with_a_memory_keep_the_conditional_and_draw_what_it_says(name: str, independence: float) -> None:
    case, memory = WORLDS[name].case, some_memory(name)
    kernel = regrow_suffix(case.model, WORLDS[name].language, independence=independence)
    for row in range(len(WORLDS[name].laws)):
        states = states_of(name, row, memory)
        matrix_NN, target_N = transition_matrix(kernel, states), boltzmann(states.energy_B)
        report = examine(matrix_NN, target_N)
        assert report.holds()
        assert report.detailed_balance <= 1e-12
        if independence == 1:
            weights_N = states.log_weights_B.exp()
            drawn_N = (-states.energy_B).exp() / weights_N
            moves_NN = drawn_N * (weights_N / weights_N[:, None]).clamp(max=1)
            off_NN = ~torch.eye(len(states)).bool()
            torch.testing.assert_close(matrix_NN[off_NN], moves_NN[off_NN], atol=1e-12, rtol=0)
            # What two proposals leave is at most what two drafts leave.
            kept = float((-states.energy_B).exp().sum()) / math.exp(memory.log_mass((row, ())))
            after_N = drawn_N @ matrix_NN
            assert float((after_N - target_N).abs().sum() / 2) <= (1 - kept) ** 2 + 1e-12


@pytest.mark.parametrize("name", quick(NAMES, "tagger"))
def test_rejection_draws_from_the_conditional(name: str) -> None:
    count, memory = 4000, RejectionMemory()
    sample(name, method="rejection", num_samples=200, memory=memory, seed=1)
    many = sample(name, method="rejection", num_samples=count, memory=memory)
    fresh = sample(name, method="rejection", num_samples=count)
    for row, law in enumerate(WORLDS[name].laws):
        for samples in (many, fresh):
            assert bool(samples.exact_BN.all())
            require_law(samples.tokens_BNT[row], WORLDS[name].padded(row), law.conditional())
        # Once every prefix was seen, none is rejected.
        assert count < int(fresh.passes_B[row])
        assert int(many.passes_B[row]) - count <= 0.5 * (int(fresh.passes_B[row]) - count) + 10
        total = sum(math.exp(log_p) for log_p, _ in law.outputs.values())
        assert memory.log_mass((row, ())) == pytest.approx(math.log(total), abs=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_is_kept_and_what_is_missing_comes_from_chains(name: str) -> None:
    count = 400
    plenty = sample(name, num_samples=count, num_passes=10)
    assert bool(plenty.exact_BN.all())
    rejected = sample(name, num_samples=count, method="rejection")
    assert torch.equal(plenty.tokens_BNT, rejected.tokens_BNT)
    scarce = sample(name, num_samples=count, num_passes=2)
    assert (scarce.passes_B <= 2 * count).all()
    is_exact_BN = scarce.exact_BN
    assert 0 < int(is_exact_BN.sum()) < is_exact_BN.numel()
    assert torch.equal(scarce.tokens_BNT[is_exact_BN], rejected.tokens_BNT[is_exact_BN])
    for row in range(len(WORLDS[name].laws)):
        outputs = {tuple(output) for output in WORLDS[name].padded(row)}
        assert {tuple(output) for output in scarce.tokens_BNT[row].tolist()} <= outputs


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_weights_of_stochastic_beams_estimate_what_holds_in_the_language(name: str, k: int) -> None:
    case, count, steps = WORLDS[name].case, 3000, WORLDS[name].num_steps
    case.model.language = WORLDS[name].language
    context = case.model.encode(case.batch)
    for row, law in enumerate(WORLDS[name].laws):
        rows_M = torch.full((count,), row)
        generator = torch.Generator().manual_seed(k)
        drawn = stochastic_beam_search(
            case.model, rows_of(context, rows_M), k=k, num_steps=steps[rows_M], generator=generator
        )
        outputs = [tuple(output[: law.num_steps]) for output in WORLDS[name].padded(row)]
        values = {output: math.sin(3 * place) for place, output in enumerate(outputs)}
        joint = [math.exp(log_p) for log_p, _ in law.outputs.values()]
        weights_BK, live_BK = importance_weights(drawn), drawn.beam.scores_BK > -torch.inf
        found = [[tuple(output[: law.num_steps]) for output in slots] for slots in backtrace(drawn.beam).tolist()]
        values_BK = torch.tensor(
            [
                [values[output] if is_live else 0.0 for output, is_live in zip(slots, live, strict=True)]
                for slots, live in zip(found, live_BK.tolist(), strict=True)
            ],
            dtype=torch.float64,
        )
        truth = sum(probability * value for probability, value in zip(joint, values.values(), strict=True))
        for estimates_B, wanted in ((weights_BK.sum(1), sum(joint)), ((weights_BK * values_BK).sum(1), truth)):
            error = float(estimates_B.std()) / math.sqrt(count)
            assert abs(float(estimates_B.mean()) - wanted) < 4 * error + 1e-9
        if live_BK.shape[1] >= len(outputs):  # all of the language was drawn
            torch.testing.assert_close(weights_BK.sum(1), torch.full((count,), sum(joint)).double())
            shares_BK = normalized_importance_weights(drawn)
            expected = torch.full((count,), truth / sum(joint)).double()
            torch.testing.assert_close((shares_BK * values_BK).sum(1), expected)


# ---------------------------------------------------------------------------------------- refusals


def no_language_chains() -> None:
    model = table_model(num_positions=2, vocab_size=2)
    masked = start_chains(local_energy(model), torch.zeros(1, 2).long())
    case = WORLDS["tagger"].case
    sample_chains(regrow_suffix(case.model, WORLDS["tagger"].language), masked, 1)


def tempered_within() -> None:
    """Exchanges would leave the masses of the chains where they were."""
    case, language = WORLDS["tagger"].case, WORLDS["tagger"].language
    kernel = parallel_tempering(lambda temperature_B: regrow_suffix(case.model, language), [1.0, 2.0])
    sample_chains(kernel, replicas(states_of("tagger", 0), 2), 1)


def never_written(sampler: Callable[..., object]) -> None:
    case = oracles.tagger_case(0, target_size=3, lengths=(2,))
    with torch.no_grad():
        case.model.head.bias[1] = -math.inf
    sampler(case.model, case.model.encode(case.batch), trie([(0, 1), (2, 1)]), num_steps=2)


@pytest.mark.parametrize("method", ["metropolis", "budgeted"])
def test_chains_start_where_the_model_gives_a_probability(method: str) -> None:
    """Though every prefix is allowed and probable, all that may follow some of them is excluded."""
    case = oracles.tagger_case(0, target_size=3, lengths=(2,))
    with torch.no_grad():
        case.model.head.bias[1] = -math.inf
    language, context = trie([(0, 1), (2, 1), (2, 0), (2, 2)]), case.model.encode(case.batch)
    few = {"num_passes": 1} if method == "budgeted" else {"num_passes": 20}
    drawn = sample_within(case.model, context, language, num_steps=2, num_samples=400, method=method, **few)
    assert not bool(drawn.exact_BN.any())
    scores = oracles.forced_logits(case.oracles[0], (2, 0))[1]
    share = math.exp(scores[0] - oracles.log_sum_exp([scores[0], scores[2]]))
    outputs = list(map(tuple, drawn.tokens_BNT[0].tolist()))
    assert set(outputs) == {(2, 0), (2, 2)}
    assert abs(outputs.count((2, 0)) / 400 - share) < 4 * math.sqrt(share * (1 - share) / 400)
    assert drawn.passes_B.item() > 400 * few["num_passes"]  # those that were drawn again count


def outside() -> None:
    case = WORLDS["encoder-decoder"].case
    context = rows_of(case.model.encode(case.batch), torch.tensor([0]))
    start_within(case.model, context, WORLDS["encoder-decoder"].language, torch.tensor([[0, 1, 1, 1]]))


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (no_language_chains, "chains inside a language"),
        (tempered_within, "only regrow_suffix moves chains inside a language"),
        (lambda: regrow_suffix(WORLDS["tagger"].case.model, trie([(0,)]), independence=1.5), "between 0 and 1"),
        (lambda: never_written(sample_within), "probability 0"),
        (lambda: never_written(partial(sample_within, method="metropolis")), "probability 0"),
        (lambda: sample(method="gibbs"), "unknown method 'gibbs'"),
        (lambda: sample(num_passes=0), "at least 1"),
        (lambda: sample(num_samples=0), "at least 1"),
        (outside, "not in the language"),
    ],
)
def test_what_cannot_be_sampled_is_refused(refused: Callable[[], None], says: str) -> None:
    with pytest.raises(InputError, match=says):
        refused()
