"""Steps of an LSTM beside ``nn.LSTM`` itself, and their gradients beside those that autograd makes step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from seqwise import tree
from seqwise.data import EncodedExample, collate
from seqwise.models import EncoderDecoder, Tagger, deferred_linear
from seqwise.models import lstm_steps as module
from seqwise.models.lstm_steps import LSTMSteps, lstm_step, read_both_ways, run_lstm

D, M, H, S, B = 3, 2, 4, 5, 2


@pytest.fixture(params=[0, 10**9], ids=["one product", "autograd"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "LARGE", request.param)
    return int(request.param)


@pytest.fixture(autouse=True)
def _double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def walk(lstm: nn.LSTM, inputs_BTD: torch.Tensor, memory_BSM: torch.Tensor | None, steps: LSTMSteps) -> torch.Tensor:
    """The hidden states of one slot, one step after another."""
    state, hidden = (torch.zeros(B, 1, H), torch.zeros(B, 1, H)), []
    for place in range(inputs_BTD.shape[1]):
        at = 0 if memory_BSM is None else place
        state = steps.step(lstm, inputs_BTD[:, place, None], state, memory_BSM, at)
        hidden.append(state[0])
    return torch.cat(hidden, dim=1)


def case(with_memory: bool) -> tuple[nn.LSTM, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    lstm = nn.LSTM(D + M * with_memory, H, batch_first=True)
    inputs_BTD, memory_BSM = torch.randn(B, S, D, requires_grad=True), torch.randn(B, S, M, requires_grad=True)
    whole = torch.cat([inputs_BTD, memory_BSM], dim=2) if with_memory else inputs_BTD
    return lstm, inputs_BTD, memory_BSM if with_memory else None, whole


def gradients(loss: torch.Tensor, lstm: nn.LSTM, *others: torch.Tensor | None) -> list[torch.Tensor]:
    wanted = [*lstm.parameters(), *(other for other in others if other is not None)]
    return list(torch.autograd.grad(loss, wanted, retain_graph=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("lengths", [(S, S, S), (2, S, 1), (S, 3, 4)])
def test_each_direction_by_itself_reads_each_source_as_it_is_read_alone(
    lengths: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lstm = nn.LSTM(D, H, batch_first=True, bidirectional=True, dtype=dtype, device=place)
    inputs_BSD = torch.randn(len(lengths), S, D, dtype=dtype, device=place, requires_grad=True)
    weight_BSX = torch.randn(len(lengths), S, 2 * H, dtype=dtype, device=place)
    read_BSX = read_both_ways(lstm, inputs_BSD, torch.tensor(lengths, device=place))
    found, wanted = torch.zeros((), device=place), torch.zeros((), device=place)
    for row, length in enumerate(lengths):
        alone_SX, _ = lstm(inputs_BSD[row, :length])
        torch.testing.assert_close(read_BSX[row, :length], alone_SX, atol=tolerance, rtol=0)
        found = found + (weight_BSX[row, :length] * read_BSX[row, :length]).sum()
        wanted = wanted + (weight_BSX[row, :length] * alone_SX).sum()
    for first, second in zip(gradients(found, lstm, inputs_BSD), gradients(wanted, lstm, inputs_BSD), strict=True):
        torch.testing.assert_close(first, second, atol=10 * tolerance, rtol=0)


@pytest.mark.parametrize("with_memory", [True, False])
def test_steps_are_those_of_the_whole_sequence(large: int, with_memory: bool) -> None:
    lstm, inputs, memory, whole = case(with_memory)
    weights = torch.randn(B, S, H)
    expected, found = lstm(whole)[0], walk(lstm, inputs, memory, LSTMSteps())
    torch.testing.assert_close(found, expected)
    for _ in range(2):  # and once more through the same graph
        for a, b in zip(
            gradients((found * weights).sum(), lstm, inputs, memory),
            gradients((expected * weights).sum(), lstm, inputs, memory),
            strict=True,
        ):
            torch.testing.assert_close(a, b)
    with torch.no_grad():
        torch.testing.assert_close(walk(lstm, inputs, memory, LSTMSteps()), expected)
    with torch.inference_mode():
        torch.testing.assert_close(walk(lstm, inputs, memory, LSTMSteps()), expected)


def test_gradients_by_finite_differences(large: int) -> None:
    lstm, inputs, memory, _ = case(True)
    names, values = zip(*lstm.named_parameters(), strict=True)

    class Walk(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lstm

        def forward(self, inputs: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
            return walk(self.lstm, inputs[:, :3], memory, LSTMSteps())

    def of(*tensors: torch.Tensor) -> torch.Tensor:
        swapped = dict(zip((f"lstm.{name}" for name in names), tensors[2:], strict=True))
        return torch.func.functional_call(Walk(), swapped, tensors[:2])

    assert memory is not None
    assert torch.autograd.gradcheck(of, (inputs, memory, *values))


def test_one_context_and_weights_that_change(large: int) -> None:
    """Steps with and without a graph, in turn; after an optimiser's step; with another memory; parts of a context."""
    lstm, inputs, memory, whole = case(True)
    steps = LSTMSteps()
    for change in (lambda: None, lambda: lstm.weight_hh_l0.mul_(2), lambda: lstm.bias_ih_l0.add_(1)):
        with torch.no_grad():
            change()
            torch.testing.assert_close(walk(lstm, inputs, memory, steps), lstm(whole)[0])
        found, expected = walk(lstm, inputs, memory, steps), lstm(whole)[0]
        for a, b in zip(gradients(found.sum(), lstm), gradients(expected.sum(), lstm), strict=True):
            torch.testing.assert_close(a, b)
    for change in (lambda: lstm.weight_ih_l0.mul_(2), lambda: lstm.bias_hh_l0.add_(1)):  # with a graph before and after
        with torch.no_grad():
            change()
        torch.testing.assert_close(walk(lstm, inputs, memory, steps), lstm(whole)[0])
    lstm.requires_grad_(False)
    assert memory is not None
    walk(lstm, inputs, memory, steps).sum().backward()
    lstm.requires_grad_(True)  # thawed: the same numbers, with gradients from here on
    found, expected = walk(lstm, inputs, memory, steps), lstm(whole)[0]
    for a, b in zip(gradients(found.sum(), lstm), gradients(expected.sum(), lstm), strict=True):
        torch.testing.assert_close(a, b)
    other = torch.randn(B, S, M)
    torch.testing.assert_close(walk(lstm, inputs, other, steps), lstm(torch.cat([inputs, other], dim=2))[0])
    nn.utils.parametrizations.weight_norm(lstm, "weight_hh_l0")  # made anew for every step
    found, expected = walk(lstm, inputs, memory, steps), lstm(whole)[0]
    torch.testing.assert_close(found, expected)
    for a, b in zip(gradients(found.sum(), lstm), gradients(expected.sum(), lstm), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", [Tagger, EncoderDecoder])
def test_a_part_of_a_context_begins_anew(large: int, kind: type) -> None:
    ends = {} if kind is Tagger else {"end": 2}
    model = kind(source_size=5, target_size=3, embedding_size=4, hidden_size=8, **ends).eval()
    context = model.encode(collate([EncodedExample((1, 2, 3), ()), EncodedExample((4, 1, 1), ())]))
    inputs, state = model.start(context)
    features, _ = model.step(inputs, state, context, 0)
    part = tree.map(lambda leaf: leaf[1:], context)
    assert part.steps is not context.steps
    of_part, _ = model.step(inputs[1:], tree.map(lambda leaf: leaf[1:], state), part, 0)
    torch.testing.assert_close(of_part, features[1:])


def test_gradients_as_large_as_the_weights_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 0)
    lstm, inputs, memory, _ = case(True)
    made: list[int] = []
    backward = deferred_linear._Collect.backward
    monkeypatch.setattr(
        deferred_linear._Collect, "backward", staticmethod(lambda ctx, g: made.append(1) or backward(ctx, g))
    )
    walk(lstm, inputs, memory, LSTMSteps()).sum().backward()
    assert made == [1]


def test_steps_broadcast_inputs_and_states() -> None:
    lstm = nn.LSTM(D, H, batch_first=True)
    tokens_1KD, states = torch.randn(1, 3, D), (torch.randn(2, 1, H), torch.randn(2, 1, H))
    hidden, cell = lstm_step(lstm, tokens_1KD, states)
    for p in range(2):
        for k in range(3):
            one = tuple(leaf[p].view(1, 1, H) for leaf in states)
            _, (h, c) = lstm(tokens_1KD[:, k, None], one)
            torch.testing.assert_close((hidden[p, k], cell[p, k]), (h[0, 0], c[0, 0]))


def test_under_autocast(large: int) -> None:
    torch.set_default_dtype(torch.float32)
    lstm, inputs, memory, whole = case(True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = walk(lstm, inputs, memory, LSTMSteps())
    found.sum().backward()
    torch.testing.assert_close(found.float(), lstm(whole)[0], atol=0.05, rtol=0.05)
    assert all(parameter.grad is not None for parameter in lstm.parameters())


class OnGPU:
    """In the place of an LSTM whose weights lie on a GPU: it says whether cuDNN is on while it is called."""

    weight_ih_l0 = SimpleNamespace(is_cuda=True)

    def __init__(self, *, training: bool) -> None:
        self.training = training

    def __call__(self) -> bool:
        return torch.backends.cudnn.enabled


@pytest.mark.parametrize(
    ("training", "gradients", "by_cudnn"), [(True, True, True), (False, False, True), (False, True, False)]
)
def test_cudnn_has_no_gradients_in_evaluation_mode(training: bool, gradients: bool, by_cudnn: bool) -> None:
    lstm: Any = OnGPU(training=training)
    with torch.set_grad_enabled(gradients):
        assert run_lstm(lstm) is by_cudnn
    assert torch.backends.cudnn.enabled
