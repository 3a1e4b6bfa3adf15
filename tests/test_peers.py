"""Agreement with torch-struct and texar-pytorch where they compute the same thing, and where they do not, the reason.

Neither is needed to use seqwise or to test the rest of it: these tests are skipped where ``pip install
'seqwise[peers]'`` has not been run. texar-pytorch 0.1.4 names types that NumPy 2 has dropped: it takes ``numpy<2``.
"""

from __future__ import annotations

import importlib
import itertools
import math
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqwise.search import (
    Gumbel,
    HardTopK,
    SoftArgmax,
    backtrace,
    beam_search,
    global_,
    local,
    stochastic_beam_search,
    unroll,
)

# Not ours to fix: torch-struct's distributions do not say which arguments they take.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not define `arg_constraints`")

TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}


def peer(name: str, reason: str) -> ModuleType:
    """The module, or a skipped test; its own warnings about the age of what it calls are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except (ImportError, AttributeError) as error:  # AttributeError: np.float_, under NumPy 2
            pytest.skip(f"{reason} ({type(error).__name__}: {str(error).splitlines()[0]})")


@pytest.fixture
def torch_struct() -> ModuleType:
    """torch-struct 0.5."""
    return peer("torch_struct", "pip install torch-struct==0.5")


@pytest.fixture
def texar() -> ModuleType:
    """texar-pytorch 0.1.4."""
    return peer("texar.torch", "pip install texar-pytorch==0.1.4 'numpy<2' 'setuptools<81'")


# ---------------------------------------------------------------------------------------- torch-struct: linear chains


class Chain:
    """A linear chain as a step model: a token scores ``phi[t - 1, token, token before]``, the first one nothing."""

    end = None

    def __init__(self, potentials_BTVV: Tensor) -> None:
        self.potentials_BTVV = potentials_BTVV
        self.embedding_VD = torch.eye(potentials_BTVV.shape[-1], dtype=potentials_BTVV.dtype)

    def start(self, context: Any) -> tuple[Tensor, Tensor]:
        zeros_B1V = self.potentials_BTVV.new_zeros(len(self.potentials_BTVV), 1, self.embedding_VD.shape[0])
        return zeros_B1V, zeros_B1V

    def step(self, inputs_BJD: Tensor, state: Tensor, context: Any, step: int) -> tuple[Tensor, Tensor]:
        if step == 0:
            return inputs_BJD, state
        return inputs_BJD @ self.potentials_BTVV[:, step - 1].transpose(1, 2), state

    def head(self, features: Tensor) -> Tensor:
        return features


@pytest.fixture
def chain(torch_struct: ModuleType) -> tuple[Any, Any, Tensor, Tensor]:
    """torch-struct's distribution, our beam with room for all 3^5 outputs, and what both were made from."""
    potentials_BTVV = torch.randn(4, 4, 3, 3, dtype=torch.float64).requires_grad_()
    lengths_B = torch.tensor([5, 3, 2, 4])
    crf = torch_struct.LinearChainCRF(potentials_BTVV, lengths=lengths_B)
    beam = beam_search(Chain(potentials_BTVV), None, HardTopK(3**5), num_steps=lengths_B, score=global_)
    return crf, beam, potentials_BTVV, lengths_B


def test_a_full_beam_has_the_partition_function_and_the_maximum_of_a_linear_chain(chain: Any) -> None:
    crf, beam, _, lengths_B = chain
    assert (beam.scores_BK > -torch.inf).sum(1).tolist() == [3**length for length in lengths_B.tolist()]
    torch.testing.assert_close(beam.scores_BK.logsumexp(-1), crf.partition, **TOLERANCE)
    torch.testing.assert_close(beam.scores_BK[:, 0], crf.max, **TOLERANCE)
    torch.testing.assert_close(beam.scores_BK[:, :7].T, crf.kmax(7), **TOLERANCE)
    weights_BK = beam.scores_BK.softmax(-1)
    entropy_B = -torch.where(weights_BK > 0, weights_BK * weights_BK.log(), 0.0).sum(-1)
    torch.testing.assert_close(entropy_B, crf.entropy, **TOLERANCE)


def test_the_best_output_of_a_linear_chain(chain: Any) -> None:
    crf, beam, _, lengths_B = chain
    tokens_BT = backtrace(beam)[:, 0]
    wanted = crf.argmax
    for b, length in enumerate(lengths_B.tolist()):
        on = {tuple(place) for place in wanted[b].nonzero().tolist()}
        assert on == {(t - 1, int(tokens_BT[b, t]), int(tokens_BT[b, t - 1])) for t in range(1, length)}


def test_the_gradient_of_a_full_beam_is_the_marginals_of_a_linear_chain(chain: Any) -> None:
    crf, beam, potentials_BTVV, _ = chain
    (gradient,) = torch.autograd.grad(beam.scores_BK.logsumexp(-1).sum(), potentials_BTVV)
    torch.testing.assert_close(gradient, crf.marginals.detach(), **TOLERANCE)


# ---------------------------------------------------------------------------------------- torch-struct: autoregression


class Recurrent:
    """``h' = tanh(h W + e U)``, ``f = h' A``, one start state for each row; in our protocol and in torch-struct's."""

    end = None

    def __init__(self, initial_BH: Tensor, *, num_tokens: int) -> None:
        size = initial_BH.shape[1]
        self.initial_BH = initial_BH
        self.embedding_VD = torch.randn(num_tokens, size, dtype=torch.float64)
        self.recurrent_HH, self.input_DH = torch.randn(2, size, size, dtype=torch.float64)
        self.output_HV = torch.randn(size, num_tokens, dtype=torch.float64)

    def start(self, context: Any) -> tuple[Tensor, Tensor]:
        """Token 0 is fed first."""
        return self.embedding_VD[0].expand(len(self.initial_BH), 1, -1), self.initial_BH[:, None]

    def step(self, inputs_BJD: Tensor, state: Tensor, context: Any, step: int) -> tuple[Tensor, Tensor]:
        state = torch.tanh(state @ self.recurrent_HH + inputs_BJD @ self.input_DH)
        return state, state

    def head(self, features: Tensor) -> Tensor:
        return features @ self.output_HV

    def __call__(self, inputs: Tensor, state: tuple[Tensor]) -> tuple[Tensor, tuple[Tensor]]:
        """torch-struct's protocol: tokens (N, 1), or their weights (N, 1, V); the state is (N, H)."""
        weights = inputs if inputs.is_floating_point() else F.one_hot(inputs, len(self.embedding_VD)).double()
        features, _ = self.step(weights @ self.embedding_VD, state[0][:, None], None, 0)
        return self.head(features), (features[:, 0],)


def both(torch_struct: ModuleType, *, num_rows: int, num_tokens: int, num_steps: int) -> tuple[Recurrent, Any]:
    """Our model and torch-struct's view of it."""
    model = Recurrent(torch.randn(num_rows, 5, dtype=torch.float64), num_tokens=num_tokens)
    peer = torch_struct.Autoregressive(model, (model.initial_BH,), num_tokens, num_steps)
    return model, peer


@pytest.mark.parametrize("k", [1, 3, 4])
def test_the_hard_beam_is_that_of_torch_struct(torch_struct: ModuleType, k: int) -> None:
    model, peer = both(torch_struct, num_rows=20, num_tokens=4, num_steps=5)
    paths_KBTV, scores_KB, _ = peer._beam_search(torch_struct.autoregressive.KMaxSemiring(k))
    beam = beam_search(model, None, HardTopK(k), num_steps=5)
    torch.testing.assert_close(beam.scores_BK.T, scores_KB.detach(), **TOLERANCE)
    assert torch.equal(backtrace(beam).transpose(0, 1), paths_KBTV.argmax(-1))


def fed_weights(model: Any, selector: Any, num_steps: int) -> tuple[Tensor, Tensor]:
    """What a soft search feeds at each step, and the log-probabilities that it chooses by: (B, T, V)."""
    steps = list(unroll(model, None, selector, num_steps=num_steps))
    weights = torch.stack([step.selection.token_weights_BKX[:, 0] for step in steps], dim=1)
    return weights, torch.stack([local(step.candidates.logits_BJV)[:, 0] for step in steps], dim=1)


class Replayed:
    """Noise that was drawn before, one tensor a step."""

    def __init__(self, noise: list[Tensor]) -> None:
        self.noise = iter(noise)

    def __call__(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        return scores + next(self.noise).view_as(scores)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 20.0])
def test_alpha_soft_greedy_is_torch_structs_without_its_noise(torch_struct: ModuleType, alpha: float) -> None:
    """Its inner loop called without noise feeds softmax_alpha at every step, and so do we."""
    model, peer = both(torch_struct, num_rows=6, num_tokens=4, num_steps=5)
    _, _, log_probs_1BTV = peer._beam_search(torch_struct.autoregressive.TempMax(alpha))
    _, log_probs_BTV = fed_weights(model, SoftArgmax(alpha), 5)
    torch.testing.assert_close(log_probs_BTV, log_probs_1BTV[0].detach(), **TOLERANCE)


@pytest.mark.parametrize("alpha", [0.5, 20.0])
def test_torch_structs_greedy_tempmax_is_the_soft_sample_and_not_soft_greedy(
    torch_struct: ModuleType, alpha: float
) -> None:
    """Its alpha also lands in a boolean that switches Gumbel noise on: what it feeds is the concrete sample.

    Its scores include the noise, and its path is the one-hot gradient of a maximum, not what was fed: so neither is
    compared.
    """
    model, peer = both(torch_struct, num_rows=6, num_tokens=4, num_steps=5)
    torch.manual_seed(11)
    _, _, noisy_BTV = peer.greedy_tempmax(alpha)
    torch.manual_seed(11)
    noise = [torch.distributions.Gumbel(0.0, 1.0).sample((1, 6, 4)).double() for _ in range(5)]
    _, log_probs_BTV = fed_weights(model, SoftArgmax(alpha, noise=Replayed(noise)), 5)
    renormalised_BTV = (log_probs_BTV + torch.stack(noise, dim=2)[0]).log_softmax(-1)
    torch.testing.assert_close(renormalised_BTV, noisy_BTV.detach(), **TOLERANCE)
    _, without_BTV = fed_weights(model, SoftArgmax(alpha), 5)
    assert (without_BTV - log_probs_BTV)[:, 1:].abs().max() > 0.1


def test_torch_structs_sampling_without_replacement_follows_another_law(torch_struct: ModuleType) -> None:
    """Noise drawn afresh at every step includes outputs with other probabilities than sampling without replacement."""
    num_draws, num_tokens, num_steps, k = 10_000, 4, 2, 3
    model, _ = both(torch_struct, num_rows=1, num_tokens=num_tokens, num_steps=num_steps)
    whole = beam_search(model, None, HardTopK(num_tokens**num_steps), num_steps=num_steps)
    names = [tuple(tokens) for tokens in backtrace(whole)[0].tolist()]
    probabilities = dict(zip(names, whole.scores_BK[0].exp().tolist(), strict=True))
    included = dict.fromkeys(names, 0.0)
    for drawn in itertools.permutations(names, k):
        probability, remaining = 1.0, 1.0
        for name in drawn:
            probability *= probabilities[name] / remaining
            remaining -= probabilities[name]
        for name in drawn:
            included[name] += probability
    assert sum(included.values()) == pytest.approx(k)
    included_N = torch.tensor(list(included.values()))
    deviations_N = (included_N * (1 - included_N) / num_draws).sqrt()

    def worst(tokens_BKT: Tensor) -> float:
        counts = dict.fromkeys(names, 0)
        for tokens in itertools.chain.from_iterable(tokens_BKT.tolist()):
            counts[tuple(tokens)] += 1
        found_N = torch.tensor([counts[name] for name in names]) / num_draws
        return float(((found_N - included_N) / deviations_N).abs().max())

    model.initial_BH = model.initial_BH.expand(num_draws, -1)
    ours = stochastic_beam_search(model, None, k=k, num_steps=num_steps, generator=torch.Generator().manual_seed(0))
    assert worst(backtrace(ours.beam)) < 4.5
    theirs = torch_struct.Autoregressive(model, (model.initial_BH,), num_tokens, num_steps)
    assert worst(theirs.sample_without_replacement((k,)).argmax(-1).transpose(0, 1)) > 20


# ---------------------------------------------------------------------------------------- texar


class TexarDecoder:
    """The weights of texar's ``BasicRNNDecoder`` with an LSTM cell, as a step model."""

    end = None

    def __init__(self, decoder: Any, embedding_VD: Tensor, num_rows: int) -> None:
        self.decoder, self.embedding_VD, self.num_rows = decoder, embedding_VD, num_rows
        (self.cell,) = [module for module in decoder.modules() if type(module) is torch.nn.LSTMCell]

    def start(self, context: Any) -> tuple[Tensor, Any]:
        zeros = torch.zeros(self.num_rows, 1, self.cell.hidden_size, dtype=torch.float64)
        return self.embedding_VD[0].expand(self.num_rows, 1, -1), (zeros, zeros)

    def step(self, inputs_BJD: Tensor, state: Any, context: Any, step: int) -> tuple[Tensor, Any]:
        hidden, cell = self.cell(inputs_BJD[:, 0], (state[0][:, 0], state[1][:, 0]))
        return hidden[:, None], (hidden[:, None], cell[:, None])

    def head(self, features: Tensor) -> Tensor:
        return self.decoder.output_layer(features)


def texar_decoder(texar: ModuleType, *, num_rows: int, num_tokens: int) -> tuple[Any, TexarDecoder]:
    """texar's decoder and our view of its weights."""
    embedding_VD = torch.randn(num_tokens, 4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decoder = texar.modules.BasicRNNDecoder(
            input_size=4,
            vocab_size=num_tokens,
            token_embedder=lambda tokens: embedding_VD[tokens],
            hparams={"rnn_cell": {"type": "LSTMCell", "kwargs": {"num_units": 6}}},
        )
    decoder.double().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return decoder, TexarDecoder(decoder, embedding_VD, num_rows)


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_texars_softmax_helper_is_alpha_soft_greedy(texar: ModuleType, alpha: float) -> None:
    """Five steps, tau = 1 / alpha: the logits, the weights that are fed, and the gradient through both."""
    decoder, model = texar_decoder(texar, num_rows=3, num_tokens=5)
    helper = texar.modules.SoftmaxEmbeddingHelper(torch.zeros(3).long(), 4, tau=1 / alpha, use_finish=False)
    outputs, _, _ = decoder(helper=helper, max_decoding_length=5)
    weights_BTV, log_probs_BTV = fed_weights(model, SoftArgmax(alpha), 5)
    torch.testing.assert_close(weights_BTV, outputs.sample_id, **TOLERANCE)
    torch.testing.assert_close(log_probs_BTV, outputs.logits.log_softmax(-1), **TOLERANCE)
    parameters = list(decoder.parameters())
    ours = torch.autograd.grad(weights_BTV[:, -1, 0].sum(), parameters)
    theirs = torch.autograd.grad(outputs.sample_id[:, -1, 0].sum(), parameters)
    assert max(float(gradient.abs().max()) for gradient in ours) > 1e-3
    torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_texars_gumbel_helper_is_the_alpha_soft_sample(texar: ModuleType) -> None:
    """With the same noise, step by step; and our own noise has texar's law."""
    alpha = 2.0
    decoder, model = texar_decoder(texar, num_rows=3, num_tokens=5)
    helper = texar.modules.GumbelSoftmaxEmbeddingHelper(torch.zeros(3).long(), 4, tau=1 / alpha, use_finish=False)
    torch.manual_seed(3)
    outputs, _, _ = decoder(helper=helper, max_decoding_length=5)
    torch.manual_seed(3)
    noise = [torch.distributions.Gumbel(torch.tensor(0.0), torch.tensor(1.0)).sample((3, 5)).double() for _ in range(5)]
    weights_BTV, log_probs_BTV = fed_weights(model, SoftArgmax(alpha, noise=Replayed(noise)), 5)
    torch.testing.assert_close(weights_BTV, outputs.sample_id, **TOLERANCE)
    torch.testing.assert_close(log_probs_BTV, outputs.logits.log_softmax(-1), **TOLERANCE)
    logits_BV = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64).expand(20_000, 3)
    theirs_BV = helper.sample(0, logits_BV)
    ours_BV = (alpha * Gumbel()(logits_BV, None)).softmax(-1)
    deviations_V = (theirs_BV.var(0) + ours_BV.var(0)).sqrt() / math.sqrt(20_000)
    assert ((theirs_BV.mean(0) - ours_BV.mean(0)).abs() / deviations_V).max() < 4


def test_texars_greedy_helper_is_a_beam_of_one(texar: ModuleType) -> None:
    decoder, model = texar_decoder(texar, num_rows=8, num_tokens=5)
    # An end token that is never written: with one, texar goes on feeding it, and we keep the output as it is.
    helper = texar.modules.GreedyEmbeddingHelper(torch.zeros(8).long(), 99)
    outputs, _, _ = decoder(helper=helper, max_decoding_length=6)
    assert torch.equal(backtrace(beam_search(model, None, HardTopK(1), num_steps=6))[:, 0], outputs.sample_id)
