"""Brute force to compare the package with: loops over Python floats and NumPy float64, written from the papers.

Nothing here shares arithmetic with seqwise; torch appears only where weights are read out, and in the last section,
which makes random models and batches. One input at a time and without padding, so agreement also shows that padding and
batching are harmless.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from seqwise.data import EncodedExample, collate
from seqwise.data.batches import Batch
from seqwise.models import EncoderDecoder, Tagger, Transformer

Vector = NDArray[np.float64]
LSTMState = tuple[Vector, Vector]
CostAt = Callable[[int], Sequence[float]]
Allowed = Callable[[tuple[int, ...], int], Collection[int]]
"""Tokens that may follow a prefix when so many are still to be written."""

MINUS_INFINITY = -math.inf


# ---------------------------------------------------------------------------------------- arithmetic


def log_sum_exp(values: Sequence[float]) -> float:
    """log sum exp, around the maximum."""
    highest = max(values, default=MINUS_INFINITY)
    if highest == MINUS_INFINITY:
        return MINUS_INFINITY
    return highest + math.log(sum(math.exp(value - highest) for value in values))


def peaked_softmax(scores: Sequence[float], alpha: float) -> list[float]:
    """exp(alpha s_i) / sum_j exp(alpha s_j); all zero when every score is minus infinity."""
    highest = max(scores)
    if highest == MINUS_INFINITY:
        return [0.0] * len(scores)
    powers = [math.exp(alpha * (score - highest)) for score in scores]
    return [power / sum(powers) for power in powers]


def soft_top_k(scores: Sequence[Sequence[float]], k: int, alpha: float) -> list[list[list[float]]]:
    """Algorithm 2 on a J x V table: weights[r][i][w]."""
    maxima = sorted((score for row in scores for score in row), reverse=True)[:k]
    result = []
    for maximum in maxima:
        if maximum == MINUS_INFINITY:
            result.append([[0.0 for _ in row] for row in scores])
            continue
        powers = [
            [0.0 if score == MINUS_INFINITY else math.exp(-alpha * (score - maximum) ** 2) for score in row]
            for row in scores
        ]
        total = sum(power for row in powers for power in row)
        result.append([[power / total for power in row] for row in powers])
    return result


def added_scores(
    logits: Sequence[float],
    *,
    log_partition_weight: float,
    finished: float = 0.0,
    end: int | None = None,
    allowed: Collection[int] | None = None,
    over: str = "vocabulary",
) -> list[float]:
    """f - c log Z for each token, and the continuous bookkeeping of finished slots where there is an end token."""
    allowed = range(len(logits)) if allowed is None else allowed
    log_partition = log_sum_exp([f for token, f in enumerate(logits) if over == "vocabulary" or token in allowed])
    added = [logit if log_partition_weight == 0 else logit - log_partition_weight * log_partition for logit in logits]
    if end is not None and finished >= 1 - 1e-6:
        added = [0.0 if token == end else MINUS_INFINITY for token in range(len(added))]
    elif end is not None:
        added = [
            (1 - finished) * value if token == end else value - 30 * finished / (1 - finished)
            for token, value in enumerate(added)
        ]
    return [value if token in allowed else MINUS_INFINITY for token, value in enumerate(added)]


# ---------------------------------------------------------------------------------------- searches


class OracleModel(Protocol):
    """One input's step model in NumPy."""

    end: int | None
    embeddings: Vector

    def start(self) -> tuple[Vector, Any]:
        """First fed embedding and state."""
        ...

    def step(self, fed: Vector, state: Any, step: int) -> tuple[list[float], Any]:
        """Logits and next state."""
        ...


@dataclass(frozen=True)
class HardHypothesis:
    """A finished or growing output of Algorithm 1."""

    tokens: tuple[int, ...]
    score: float
    cost: float
    state: Any = field(repr=False)
    finished: bool = False


def extensions(
    model: OracleModel,
    beam: Sequence[HardHypothesis],
    step: int,
    *,
    log_partition_weight: float = 1.0,
    cost_weight: float = 0.0,
    cost: CostAt | None = None,
    allowed: Allowed | None = None,
    over: str = "vocabulary",
    steps_left: int = 0,
) -> list[HardHypothesis]:
    """All one-token extensions, best first. Finished hypotheses stay, padded with the end token."""
    first, _ = model.start()
    grown = []
    for hypothesis in beam:
        fed = model.embeddings[hypothesis.tokens[-1]] if hypothesis.tokens else first
        logits, state = model.step(fed, hypothesis.state, step)
        added = added_scores(
            logits,
            log_partition_weight=log_partition_weight,
            finished=float(hypothesis.finished),
            end=model.end,
            allowed=None if allowed is None else allowed(hypothesis.tokens, steps_left),
            over=over,
        )
        for token, value in enumerate(added):
            token_cost = 0.0 if cost is None else cost(step)[token]
            score = hypothesis.score + value + cost_weight * token_cost
            if score == MINUS_INFINITY:
                continue
            grown.append(
                HardHypothesis(
                    (*hypothesis.tokens, token), score, hypothesis.cost + token_cost, state, token == model.end
                )
            )
    return sorted(grown, key=lambda extension: -extension.score)


def empty_beam(model: OracleModel) -> list[HardHypothesis]:
    """Where every hard search starts."""
    return [HardHypothesis((), 0.0, 0.0, model.start()[1])]


def hard_beam(
    model: OracleModel,
    *,
    k: int,
    num_steps: int,
    log_partition_weight: float = 1.0,
    cost_weight: float = 0.0,
    cost: CostAt | None = None,
    allowed: Allowed | None = None,
    over: str = "vocabulary",
) -> list[HardHypothesis]:
    """Algorithm 1: keep the k best of all one-token extensions."""
    beam = empty_beam(model)
    for step in range(num_steps):
        beam = extensions(
            model,
            beam,
            step,
            log_partition_weight=log_partition_weight,
            cost_weight=cost_weight,
            cost=cost,
            allowed=allowed,
            over=over,
            steps_left=num_steps - step,
        )[:k]
    return beam


class SoftSlot(NamedTuple):
    """A mixture of hypotheses, as Algorithm 3 carries it."""

    score: float
    cost: float
    finished: float
    fed: Vector
    state: Any
    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    clearance: float
    """The smallest gap so far between neighbours among the k + 1 best candidates; below rounding, order is luck."""


def mixed(states: Sequence[Any], weights: Sequence[float]) -> Any:
    """sum_i b[i] h_i over tuples of arrays."""
    if isinstance(states[0], tuple):
        return tuple(mixed([state[i] for state in states], weights) for i in range(len(states[0])))
    total = np.zeros_like(states[0])
    for state, weight in zip(states, weights, strict=True):
        total = total + weight * state
    return total


def soft_beam(
    model: OracleModel,
    *,
    k: int,
    alpha: float,
    num_steps: int,
    log_partition_weight: float = 1.0,
    cost_weight: float = 0.0,
    cost: CostAt | None = None,
    allowed: Allowed | None = None,
    over: str = "vocabulary",
) -> list[SoftSlot]:
    """Algorithm 3 from a single live slot."""
    first, state = model.start()
    beam = [SoftSlot(0.0, 0.0, 0.0, first, state, (), (), math.inf)]
    num_tokens = len(model.embeddings)
    for step in range(num_steps):
        costs = [0.0] * num_tokens if cost is None else list(cost(step))
        states, scores = [], []
        for slot in beam:
            logits, state = model.step(slot.fed, slot.state, step)
            added = added_scores(
                logits,
                log_partition_weight=log_partition_weight,
                finished=slot.finished,
                end=model.end,
                allowed=None if allowed is None else allowed(slot.tokens, num_steps - step),
                over=over,
            )
            states.append(state)
            scores.append([slot.score + added[w] + cost_weight * costs[w] for w in range(num_tokens)])
        order = sorted(
            ((i, w) for i in range(len(beam)) for w in range(num_tokens)), key=lambda place: -scores[place[0]][place[1]]
        )
        best = [scores[i][w] for i, w in order[: k + 1] if scores[i][w] > MINUS_INFINITY]
        clearance = min([beam[0].clearance, *(above - below for above, below in itertools.pairwise(best))])
        grown = []
        for rank, weights in enumerate(soft_top_k(scores, k, alpha)):
            back = [sum(row) for row in weights]
            words = [sum(weights[i][w] for i in range(len(beam))) for w in range(num_tokens)]
            live = sum(back) > 0
            score = 0.0 if live else MINUS_INFINITY
            for i, w in itertools.product(range(len(beam)), range(num_tokens)):
                if weights[i][w] > 0:
                    score += weights[i][w] * scores[i][w]
            slot_cost = sum(words[w] * costs[w] for w in range(num_tokens))
            slot_cost += sum(back[i] * beam[i].cost for i in range(len(beam)))
            parent, token = order[rank]
            grown.append(
                SoftSlot(
                    score,
                    slot_cost,
                    0.0 if model.end is None else words[model.end],
                    sum((words[w] * model.embeddings[w] for w in range(num_tokens)), np.zeros_like(first)),
                    mixed(states, back),
                    (*beam[parent].parents, parent),
                    (*beam[parent].tokens, token),
                    clearance,
                )
            )
        beam = grown
    return beam


def direct_loss(scores: Sequence[float], costs: Sequence[float], alpha: float) -> float:
    """softmax_alpha(s) . D."""
    return sum(weight * cost for weight, cost in zip(peaked_softmax(scores, alpha), costs, strict=True))


def hinge_loss(scores: Sequence[float], gold: float, alpha: float) -> float:
    """max(0, softmax_alpha(s) . s - s(y*))."""
    weights = peaked_softmax(scores, alpha)
    best = sum(weight * score for weight, score in zip(weights, scores, strict=True) if weight > 0)
    return max(0.0, best - gold)


def gold_score(model: OracleModel, gold: Sequence[int], *, log_partition_weight: float = 1.0) -> float:
    """Score of one output, fed to itself."""
    return sum(
        added_scores(logits, log_partition_weight=log_partition_weight)[token]
        for logits, token in zip(forced_logits(model, gold), gold, strict=True)
    )


def forced_logits(model: OracleModel, gold: Sequence[int]) -> list[list[float]]:
    """Logits before each token of an output that is fed to itself."""
    fed, state = model.start()
    result = []
    for step, token in enumerate(gold):
        logits, state = model.step(fed, state, step)
        result.append(logits)
        fed = model.embeddings[token]
    return result


def all_outputs(model: OracleModel, num_steps: int) -> Iterator[tuple[int, ...]]:
    """Every output of exactly so many tokens; with an end token, every one that ends in time and those that do not."""
    words = range(len(model.embeddings))
    if model.end is None:
        yield from itertools.product(words, repeat=num_steps)
        return
    going_on = [word for word in words if word != model.end]
    for length in range(num_steps):
        for tokens in itertools.product(going_on, repeat=length):
            yield (*tokens, model.end)
    yield from itertools.product(going_on, repeat=num_steps)


def hamming(gold: Sequence[int], num_tokens: int, weights: Sequence[float] | None = None) -> CostAt:
    """1, or its weight, for each token that is not the gold one; nothing beyond the gold output."""

    def cost(step: int) -> list[float]:
        if step >= len(gold) or gold[step] < 0:
            return [0.0] * num_tokens
        return [0.0 if w == gold[step] else 1.0 if weights is None else float(weights[w]) for w in range(num_tokens)]

    return cost


def until_end(tokens: Sequence[int], end: int | None) -> tuple[int, ...]:
    """Tokens up to the first end token, and with it."""
    return tuple(tokens[: list(tokens).index(end) + 1] if end in tokens else tokens)


@functools.cache
def levenshtein(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """By its recursive definition."""
    if not a or not b:
        return len(a) + len(b)
    return min(levenshtein(a[1:], b) + 1, levenshtein(a, b[1:]) + 1, levenshtein(a[1:], b[1:]) + int(a[0] != b[0]))


# ---------------------------------------------------------------------------------------- the three models


def sigmoid(x: Vector) -> Vector:
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True)
class LSTMWeights:
    """One direction of a one-layer LSTM; gates in the order input, forget, cell, output."""

    from_input: Vector
    from_hidden: Vector
    bias: Vector

    @staticmethod
    def of(lstm: nn.LSTM, suffix: str = "") -> LSTMWeights:
        """Read the weights out."""
        bias = numbers(getattr(lstm, f"bias_ih_l0{suffix}")) + numbers(getattr(lstm, f"bias_hh_l0{suffix}"))
        return LSTMWeights(
            numbers(getattr(lstm, f"weight_ih_l0{suffix}")), numbers(getattr(lstm, f"weight_hh_l0{suffix}")), bias
        )

    def step(self, x: Vector, state: LSTMState) -> LSTMState:
        """Hochreiter and Schmidhuber (1997) with forget gates."""
        hidden, cell = state
        i, f, g, o = np.split(self.from_input @ x + self.from_hidden @ hidden + self.bias, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(cell), cell

    def run(self, inputs: Sequence[Vector]) -> list[Vector]:
        """Outputs at each position, from a state of zeros."""
        size = self.from_hidden.shape[1]
        state = (np.zeros(size), np.zeros(size))
        outputs = []
        for x in inputs:
            state = self.step(x, state)
            outputs.append(state[0])
        return outputs


def numbers(tensor: torch.Tensor) -> Vector:
    """A copy of the values, float64."""
    return np.array(tensor.detach().cpu().tolist(), dtype=np.float64)


def encoded(encoder: Any, source: Sequence[int]) -> list[Vector]:
    """Encoder outputs of one source."""
    embeddings = numbers(encoder.embedding.weight)
    inputs = [embeddings[symbol] for symbol in source]
    forward = LSTMWeights.of(encoder.lstm).run(inputs)
    if encoder.look_ahead:
        back = LSTMWeights.of(encoder.ahead.lstm)
        windows = [inputs[i : i + 1 + encoder.look_ahead][::-1] for i in range(len(inputs))]
        return [np.concatenate([forward[i], back.run(window)[-1]]) for i, window in enumerate(windows)]
    if not encoder.lstm.bidirectional:
        return forward
    backward = LSTMWeights.of(encoder.lstm, "_reverse").run(inputs[::-1])[::-1]
    return [np.concatenate(pair) for pair in zip(forward, backward, strict=True)]


class TaggerOracle:
    """seqwise.Tagger on one source."""

    end = None

    def __init__(self, model: Tagger, source: Sequence[int]) -> None:
        self.memory = encoded(model.encoder, source)
        self.embeddings = numbers(model.label_embedding.weight)
        self.first = numbers(model.first_input_D)
        self.decoder = LSTMWeights.of(model.decoder)
        self.weight, self.bias = numbers(model.head.weight), numbers(model.head.bias)

    def start(self) -> tuple[Vector, LSTMState]:
        """Zeros."""
        size = self.decoder.from_hidden.shape[1]
        return self.first, (np.zeros(size), np.zeros(size))

    def step(self, fed: Vector, state: LSTMState, step: int) -> tuple[list[float], LSTMState]:
        """h_i = LSTM(h_{i-1}, [e; m_i]), f = W h + b."""
        state = self.decoder.step(np.concatenate([fed, self.memory[step]]), state)
        return list(self.weight @ state[0] + self.bias), state


class EncoderDecoderOracle:
    """seqwise.EncoderDecoder on one source."""

    def __init__(self, model: EncoderDecoder, source: Sequence[int]) -> None:
        self.end = model.end
        self.memory = encoded(model.encoder, source)
        self.embeddings = numbers(model.target_embedding.weight)
        self.first = numbers(model.first_input_D)
        self.decoder = LSTMWeights.of(model.decoder)
        self.bridge = numbers(model.bridge.weight), numbers(model.bridge.bias)
        self.query = numbers(model.query.weight)
        self.combine = numbers(model.combine.weight), numbers(model.combine.bias)
        self.weight, self.bias = numbers(model.head.weight), numbers(model.head.bias)

    def start(self) -> tuple[Vector, LSTMState]:
        """tanh(W [forward at the last position; backward at the first] + b)."""
        half = len(self.memory[0]) // 2
        final = np.concatenate([self.memory[-1][:half], self.memory[0][half:]])
        hidden = np.tanh(self.bridge[0] @ final + self.bridge[1])
        return self.first, (hidden, np.zeros_like(hidden))

    def step(self, fed: Vector, state: LSTMState, step: int) -> tuple[list[float], LSTMState]:
        """Dot attention after the LSTM."""
        state = self.decoder.step(fed, state)
        query = self.query @ state[0]
        attention = peaked_softmax([float(query @ position) for position in self.memory], 1.0)
        attended = mixed(self.memory, attention)
        features = np.tanh(self.combine[0] @ np.concatenate([state[0], attended]) + self.combine[1])
        return list(self.weight @ features + self.bias), state


class TransformerLayers:
    """The parts of a Transformer: loops over positions and heads, one vector at a time."""

    def __init__(self, model: Any, *, num_heads: int, size: int) -> None:
        self.weights = {name: numbers(value) for name, value in model.named_parameters()}
        self.num_heads, self.size = num_heads, size

    def linear(self, name: str, x: Vector) -> Vector:
        """W x + b."""
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Vector) -> Vector:
        """To mean 0 and variance 1, then scaled and shifted."""
        mean = sum(x) / len(x)
        variance = sum((value - mean) ** 2 for value in x) / len(x)
        return (x - mean) / math.sqrt(variance + 1e-5) * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def placed(self, embedding: Vector, place: int) -> Vector:
        """Scaled, plus the code of its place."""
        half = -(-self.size // 2)
        angles = [place / 10000 ** (i / half) for i in range(half)]
        code = [*map(math.sin, angles), *map(math.cos, angles)][: self.size]
        return math.sqrt(self.size) * embedding + np.array(code)

    def attend(self, name: str, x: Vector, keys: Vector, values: Vector) -> Vector:
        """softmax(q . k / sqrt(A)) v for each head."""
        query, width = self.linear(f"{name}.query", x), self.size // self.num_heads
        found = []
        for head in range(self.num_heads):
            part = slice(head * width, (head + 1) * width)
            scores = [float(query[part] @ key[part]) / math.sqrt(width) for key in keys]
            weights = peaked_softmax(scores, 1.0)
            found.append(mixed([value[part] for value in values], weights))
        return self.linear(f"{name}.output", np.concatenate(found))

    def feedforward(self, name: str, x: Vector) -> Vector:
        """W2 max(0, W1 LayerNorm(x) + b1) + b2."""
        inner = self.linear(f"{name}.feedforward.1", self.norm(f"{name}.feedforward.0", x))
        return self.linear(f"{name}.feedforward.4", np.maximum(inner, 0))

    def read(self, name: str, vectors: Sequence[Vector]) -> tuple[Vector, Vector]:
        """Keys and values of an attention, a row each."""
        keys, values = (np.array([self.linear(f"{name}.{side}", x) for x in vectors]) for side in ("key", "value"))
        return keys, values

    def layer(self, name: str, hidden: Sequence[Vector], memory: Sequence[Vector] | None = None) -> list[Vector]:
        """One layer on a sequence that is read both ways, and beside it a memory."""
        normal = [self.norm(f"{name}.own_norm", x) for x in hidden]
        own = self.read(f"{name}.own", normal)
        hidden = [x + self.attend(f"{name}.own", n, *own) for x, n in zip(hidden, normal, strict=True)]
        if memory is not None:
            cross = self.read(f"{name}.cross", memory)
            hidden = [x + self.attend(f"{name}.cross", self.norm(f"{name}.cross_norm", x), *cross) for x in hidden]
        return [x + self.feedforward(name, x) for x in hidden]


class TransformerOracle(TransformerLayers):
    """seqwise.Transformer on one source."""

    def __init__(self, model: Transformer, source: Sequence[int]) -> None:
        super().__init__(model, num_heads=model.decoder[0].own.num_heads, size=model.head.in_features)
        self.end, self.num_layers = model.end, len(model.decoder)
        self.embeddings = self.weights["target_embedding.weight"]
        hidden = [self.placed(self.weights["source_embedding.weight"][w], s) for s, w in enumerate(source)]
        for layer in range(self.num_layers):
            hidden = self.layer(f"encoder.{layer}", hidden)
        self.memory = [self.norm("encoder_norm", x) for x in hidden]

    def start(self) -> tuple[Vector, Any]:
        """For each layer, no keys and no values."""
        nothing = np.zeros((0, self.size))
        return self.weights["first_input_D"], ((nothing, nothing),) * self.num_layers

    def step(self, fed: Vector, state: Any, step: int) -> tuple[list[float], Any]:
        """One more row in every cache."""
        x, caches = self.placed(fed, step), []
        for layer, (keys, values) in enumerate(state):
            name = f"decoder.{layer}"
            normal = self.norm(f"{name}.own_norm", x)
            keys = np.vstack([keys, self.linear(f"{name}.own.key", normal)])
            values = np.vstack([values, self.linear(f"{name}.own.value", normal)])
            caches.append((keys, values))
            x = x + self.attend(f"{name}.own", normal, keys, values)
            memory = self.read(f"{name}.cross", self.memory)
            x = x + self.attend(f"{name}.cross", self.norm(f"{name}.cross_norm", x), *memory)
            x = x + self.feedforward(name, x)
        return list(self.linear("head", self.norm("decoder_norm", x))), tuple(caches)


# ---------------------------------------------------------------------------------------- random cases


@dataclass(frozen=True)
class Case:
    """A random float64 model, ragged examples, their batch, and the oracle of each example."""

    model: Any
    examples: list[EncodedExample]
    batch: Batch
    oracles: list[Any]

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self.model.embedding_VD.shape[0]

    def forced_logits(self, batch: Batch | None = None) -> torch.Tensor:
        """The model's own scores along gold, all steps at once, (B, T, V)."""
        batch = self.batch if batch is None else batch
        return self.model.head(self.model.teacher_forced(self.model.encode(batch), batch.targets_BT))

    def stepped(self, context: Any, targets_BT: torch.Tensor) -> torch.Tensor:
        """The model's own features along gold, one step after the other, (B, T, H)."""
        inputs_B1D, state = self.model.start(context)
        columns = []
        for step in range(targets_BT.shape[1]):
            features_B1H, state = self.model.step(inputs_B1D, state, context, step)
            columns.append(features_B1H)
            inputs_B1D = self.model.embedding_VD[targets_BT[:, step, None].clamp(min=0)]
        return torch.cat(columns, 1)


def randomised(model: Any, seed: int, scale: float) -> Any:
    """Weights of standard deviation ``scale``: larger than at initialisation, so that hypotheses differ clearly."""
    generator = torch.Generator().manual_seed(seed)
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def tagger_case(
    seed: int,
    *,
    target_size: int = 4,
    lengths: Sequence[int] = (3, 1, 4),
    bidirectional: bool = True,
    look_ahead: int = 0,
    scale: float = 0.8,
) -> Case:
    """A tagger and sources with as many labels as symbols."""
    model = Tagger(
        source_size=5,
        target_size=target_size,
        embedding_size=3,
        hidden_size=4,
        label_embedding_size=2,
        bidirectional=bidirectional,
        look_ahead=look_ahead,
    )
    randomised(model, seed, scale)
    draw = np.random.default_rng(seed)
    examples = [
        EncodedExample(tuple(draw.integers(0, 5, n).tolist()), tuple(draw.integers(0, target_size, n).tolist()))
        for n in lengths
    ]
    oracles = [TaggerOracle(model, example.source_ids) for example in examples]
    return Case(model, examples, collate(examples), oracles)


def ended_examples(seed: int, *, target_size: int, lengths: Sequence[int], end: int) -> list[EncodedExample]:
    """Sources over five symbols, and outputs of 1 to 4 tokens, the end token counted."""
    draw = np.random.default_rng(seed)
    going_on = [word for word in range(target_size) if word != end]
    return [
        EncodedExample(
            tuple(draw.integers(0, 5, n).tolist()), (*draw.choice(going_on, draw.integers(0, 4)).tolist(), end)
        )
        for n in lengths
    ]


def translation_case(
    seed: int, *, target_size: int = 4, lengths: Sequence[int] = (2, 4, 1), scale: float = 0.8, end: int = 1
) -> Case:
    """An encoder-decoder and gold outputs of 1 to 4 tokens, the end token counted."""
    model = EncoderDecoder(source_size=5, target_size=target_size, end=end, embedding_size=3, hidden_size=4)
    randomised(model, seed, scale)
    examples = ended_examples(seed, target_size=target_size, lengths=lengths, end=end)
    oracles = [EncoderDecoderOracle(model, example.source_ids) for example in examples]
    return Case(model, examples, collate(examples), oracles)


def transformer_case(
    seed: int,
    *,
    target_size: int = 4,
    lengths: Sequence[int] = (2, 4, 1),
    scale: float = 0.8,
    end: int = 1,
    **sizes: int,
) -> Case:
    """A tiny Transformer and gold outputs of 1 to 4 tokens, the end token counted."""
    sizes = {"hidden_size": 4, "num_layers": 2, "num_heads": 2, "feedforward_size": 5, **sizes}
    model = randomised(Transformer(source_size=5, target_size=target_size, end=end, **sizes), seed, scale)
    examples = ended_examples(seed, target_size=target_size, lengths=lengths, end=end)
    with_oracles = [TransformerOracle(model, example.source_ids) for example in examples]
    return Case(model, examples, collate(examples), with_oracles)


def require_gradients(case: Case, objective: Callable[..., torch.Tensor], **tolerance: float) -> None:
    """Gradients are those of central differences along random directions, too small to change what a search chose."""
    parameters = list(case.model.parameters())

    def loss() -> torch.Tensor:
        return objective(case.model, case.batch, {"alpha": 0.7})

    gradients = torch.autograd.grad(loss(), parameters, materialize_grads=True)
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 1e-3
    for _ in range(3):
        directions = [torch.randn_like(parameter) for parameter in parameters]
        slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
        with torch.no_grad():
            values = []
            for step in (1e-6, -2e-6, 1e-6):  # ahead, behind, and back
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter += step * direction
                values.append(float(loss()))
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, **tolerance)


class Normalized(nn.Module):
    """A model whose scores are its log-probabilities plus a constant, so that every log Z is that constant."""

    def __init__(self, model: Any, constant: float) -> None:
        super().__init__()
        self.model, self.constant = model, constant
        self.train(model.training)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name in ("model", "constant") else getattr(self.model, name)

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Scores that sum to exp(constant)."""
        scores: torch.Tensor = self.model.head(features).log_softmax(-1) + self.constant
        return scores


class ManyModels:
    """B unrelated random recurrent models as the B rows of one batch, for tests over many models.

    ``h' = tanh(W_b h + U_b e)``, ``f = A_b h'``; only the embedding is shared.
    """

    def __init__(self, count: int, *, num_tokens: int, end: int | None, seed: int, scale: float = 1.5) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

        size = 4
        self.end, self.count, self.size = end, count, size
        self.embedding_VD = draw(num_tokens, size)
        self.recurrent_BHH, self.input_BDH = draw(count, size, size), draw(count, size, size)
        self.output_BHV = draw(count, size, num_tokens)
        self.first_B1D = draw(count, 1, size)

    def encode(self, batch: Any) -> None:
        """There is no source."""

    def start(self, context: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """A random first input and zeros."""
        return self.first_B1D, torch.zeros(self.count, 1, self.size, dtype=torch.float64)

    def step(
        self, inputs_BJD: torch.Tensor, state: torch.Tensor, context: Any, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of every row's own model."""
        state = torch.tanh(state @ self.recurrent_BHH + inputs_BJD @ self.input_BDH)
        return state, state

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Each row's own output layer."""
        return features @ self.output_BHV
