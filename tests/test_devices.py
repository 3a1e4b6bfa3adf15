"""The core on a device: no two devices are mixed, and results are those of the CPU, with and without 64-bit floats."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import accelerator
import oracles
from parameters import quick
from pretrained import bert, made, word_tokenizer
from reproductions.goyal_2021.length_beams import predict_with_lengths
from reproductions.goyal_2021.sampler_draws import refine_from_draws
from seqwise import Decoder, Streams, decode
from seqwise.configuration import OneOf, configure
from seqwise.data import Batch, EncodedExample, collate
from seqwise.data.batches import FREE
from seqwise.hugging_face import (
    infill,
    masked_model,
    pretrained_tagger,
    pseudo_log_likelihoods,
    sample_texts,
    step_model,
)
from seqwise.hugging_face.scoring import prepared, text_scorer
from seqwise.models import ChainTagger, ConditionalMaskedTransformer, MaskedLSTM, MaskedTransformer
from seqwise.objectives import ObjectiveConfig, hamming_cost
from seqwise.objectives.contrastive import noise_log_probs
from seqwise.objectives.masked_likelihood import conditional_masked_objective, mask_uniformly, masked_objective
from seqwise.objectives.options import Context
from seqwise.sampling import (
    ChainSettings,
    ScoringSettings,
    SeededDraws,
    constraint,
    contains,
    local_energy,
    masked_conditionals,
    metropolis_hastings,
    pseudo_log_likelihood,
    raw_energy,
    sample_chains,
    start_chains,
)
from seqwise.sampling.problems import ChainProblem, ChainRunner, run_problems
from seqwise.search import (
    Committing,
    HardTopK,
    SoftArgmax,
    SoftTopK,
    backtrace,
    beam_search,
    best_first,
    candidates,
    delay,
    edit_distance_cost,
    global_,
    interpolated,
    local,
    mean_squared_gap,
    renormalized,
    stochastic_beam_search,
    trie,
)

LARGE = 5000
"""Vocabulary of the large form of a relaxed beam, with blocks of scores."""
OBJECTIVES = OneOf(ObjectiveConfig).members
precision = pytest.mark.parametrize(
    "float64", [pytest.param(True, id="float64", marks=pytest.mark.thorough), pytest.param(False, id="float32 only")]
)

Place = Callable[[Any], Any]
"""Moves a module, a batch or a tensor, in the precision of the device."""


def compare(compute: Callable[[Place], Any], *, float64: bool, tolerance: float | None = None) -> accelerator.Waits:
    """Compute on the CPU and on the device; return how often the host waited for the device."""
    dtype = torch.float64 if float64 else torch.float32
    tolerance = tolerance or (1e-9 if float64 else 1e-3)

    def to(where: str) -> Place:
        def place(value: Any) -> Any:
            if isinstance(value, torch.nn.Module):
                return value.to(dtype).to(where)
            if isinstance(value, Tensor) and value.dtype.is_floating_point:
                return value.to(dtype).to(where)
            return value.to(where)

        return place

    torch.manual_seed(1)
    expected = compute(to("cpu"))
    torch.manual_seed(1)
    with accelerator.device(float64=float64) as waits:
        found = compute(to(accelerator.NAME))
        counted = waits.copy()
        found = torch.utils._pytree.tree_map_only(Tensor, lambda value: value.detach().cpu(), found)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return counted


def with_gradients(objective: Any, model: Any, batch: Batch, values: dict[str, float]) -> list[Tensor]:
    loss = objective(model, batch, values)
    loss.backward()
    return [loss, *(p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters())]


def large_case(seed: int = 0, **options: Any) -> oracles.Case:
    return oracles.transformer_case(seed, target_size=LARGE, lengths=(3, 2), scale=1.0, **options)


CASES: dict[str, Callable[[], oracles.Case]] = {
    "tagger": lambda: oracles.tagger_case(3),
    "encoder-decoder": lambda: oracles.translation_case(4),
    "transformer": lambda: oracles.transformer_case(5),
}

FEW = quick(("tagger", "transformer"), "transformer")
"""Of the two recurrent models, distillation has the other one."""

# ---------------------------------------------------------------------------------------- objectives


def loss_and_gradients(objective: ObjectiveConfig, case: oracles.Case, place: Place) -> list[Tensor]:
    size = case.vocabulary_size
    context = Context(
        case.model.end,
        tuple(map(str, range(size))),
        lambda: place(noise_log_probs(torch.ones(size))),
        lambda: place(CASES["encoder-decoder"]().model.eval()),
    )
    values = {name: schedule.over(10)(5) for name, schedule in objective.schedules.items()}
    return with_gradients(objective.build(context), place(case.model), place(case.batch), values)


@precision
@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize(
    "name", quick([name for name in OBJECTIVES if name != "crf"], "cross-entropy", "hinge", "relaxed-beam", "beam-crf")
)
def test_an_objective(name: str, kind: str, float64: bool) -> None:
    kind = "encoder-decoder" if name == "distillation" else kind  # of which its teacher is
    compare(lambda place: loss_and_gradients(OBJECTIVES[name](), CASES[kind](), place), float64=float64)


@pytest.mark.thorough
@precision
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hinge", {"cost": "edit-distance", "unit": "gaps"}),
        ("relaxed-beam", {"cost": "edit-distance", "score": "global"}),
        ("hinge", {"wrong_label_costs": "2=3"}),
        ("beam-crf", {"direct_loss_weight": 0.5}),
        ("scheduled-sampling", {"feeding": "soft-sample"}),
        ("scheduled-sampling", {"feeding_passes": "two-pass"}),
    ],
)
def test_options_of_an_objective(name: str, options: dict[str, Any], float64: bool) -> None:
    compare(
        lambda place: loss_and_gradients(OBJECTIVES[name](**options), CASES["transformer"](), place), float64=float64
    )


@precision
@pytest.mark.parametrize("alpha", [0.01, 5.0], ids=["all candidates", "few candidates"])
@pytest.mark.parametrize("score", quick(["local", "global"], "local"))
def test_a_relaxed_beam_over_a_large_vocabulary(score: str, alpha: float, float64: bool) -> None:
    objective = OBJECTIVES["relaxed-beam"](score=score, k=3, alpha=str(alpha))
    compare(lambda place: loss_and_gradients(objective, large_case(), place), float64=float64)


@precision
def test_a_chain(float64: bool) -> None:
    def compute(place: Place) -> Any:
        torch.manual_seed(2)
        model = place(ChainTagger(source_size=5, target_size=4, embedding_size=3, hidden_size=4))
        return with_gradients(OBJECTIVES["crf"]().build(), model, place(CASES["tagger"]().batch), {})

    compare(compute, float64=float64)


def test_weights_of_labels_may_lie_on_the_cpu() -> None:
    with accelerator.device():
        costs_BV = hamming_cost(torch.tensor([[1, 0]]).to(accelerator.NAME), 3, torch.tensor([1.0, 2.0, 3.0]))(0)
        assert costs_BV.cpu().tolist() == [[1.0, 0.0, 3.0]]


@precision
def test_masked_likelihoods(float64: bool) -> None:
    def compute(place: Place) -> Any:
        batch, found = place(CASES["encoder-decoder"]().batch), []
        for model in (masked("LSTM", place), masked("transformer", place)):
            found.append(with_gradients(masked_objective(mask_uniformly), model, batch, {}))
        model = place(conditional_model())
        return found, with_gradients(conditional_masked_objective(mask_uniformly), model, batch, {})

    compare(compute, float64=float64)


@precision
@pytest.mark.parametrize("look_ahead", [0, 2])
def test_streams(look_ahead: int, float64: bool) -> None:
    def compute(place: Place) -> Any:
        case = oracles.tagger_case(3, bidirectional=False, look_ahead=look_ahead)
        streams = Streams(place(case.model), k=3, score="global", commit="delay(1)")
        updates = [streams.feed({"a": [1, 2, 3], "b": [4, 0]}), streams.feed({"b": [2, 1], "c": [3]})]
        streams.load_state_dict(streams.state_dict())
        updates.append(streams.feed({"a": [1], "b": [3]}))
        scores = torch.tensor([streams.score(name) for name in "abc"])
        labels = [each for update in updates for name in update for each in update[name]]
        return labels, scores, [list(streams.finish(name)) for name in "abc"]

    compare(compute, float64=float64)


@pytest.mark.parametrize("kind", CASES)
def test_a_model_is_saved_from_the_device(kind: str, tmp_path: Path) -> None:
    model, batch = CASES[kind]().model.float(), CASES[kind]().batch
    with accelerator.device(), torch.no_grad():
        model.to(accelerator.NAME)
        model.teacher_forced(model.encode(batch.to(accelerator.NAME)), batch.targets_BT.to(accelerator.NAME))
        model.save_pretrained(tmp_path)
        weights = {name: weight.cpu() for name, weight in model.state_dict().items()}
    torch.testing.assert_close(type(model).from_pretrained(tmp_path).state_dict(), weights, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------- searches

SEARCHES: dict[str, Callable[[], Any]] = {
    "greedy": lambda: HardTopK(1),
    "beam": lambda: HardTopK(3),
    "soft greedy": lambda: SoftArgmax(2.0),
    "relaxed beam": lambda: SoftTopK(3, 2.0),
    "relaxed beam in gaps": lambda: SoftTopK(3, 2.0, unit=mean_squared_gap),
    "commits": lambda: Committing(HardTopK(3), delay(1)),
}


@precision
@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("name", quick(SEARCHES, "beam", "relaxed beam"))
def test_a_search(name: str, kind: str, float64: bool) -> None:
    def compute(place: Place) -> Any:
        case, found = CASES[kind](), []
        model, batch = place(case.model), place(case.batch)
        num_steps = batch.source_lengths_B if kind == "tagger" else 6  # a tagger writes a label for each token
        for score in (local, global_, interpolated(0.5)):
            beam = beam_search(model, model.encode(batch), SEARCHES[name](), num_steps=num_steps, score=score)
            # Slots of a relaxed beam come to be the same, and then which one is the likeliest parent is rounding.
            found.append((beam.scores_BK, () if "relaxed" in name else backtrace(beam)))
        return found

    compare(compute, float64=float64)


@precision
def test_searches_inside_a_language(float64: bool) -> None:
    def compute(place: Place) -> Any:
        case = CASES["encoder-decoder"]()
        model = place(case.model)
        model.language = trie([(0, 2), (2, 3, 0), (3,)], end=1)
        context = model.encode(place(case.batch))
        beams = [beam_search(model, context, HardTopK(2), num_steps=4, score=score) for score in (local, renormalized)]
        exact = best_first(model, context, 2, num_steps=4)
        return [(beam.scores_BK, backtrace(beam)) for beam in beams], exact.scores_BK, exact.tokens_BKT

    compare(compute, float64=float64)


@precision
def test_costs_noise_and_decoding(float64: bool) -> None:
    def compute(place: Place) -> Any:
        case = CASES["transformer"]()
        model, batch = place(case.model), place(case.batch)
        cost = edit_distance_cost(batch.targets_BT, case.vocabulary_size, end=1)
        torch.manual_seed(5)
        drawn = stochastic_beam_search(model, model.encode(batch), k=2, num_steps=4, cost=cost)
        outputs = decode(model, model.encode(batch), Decoder(HardTopK(2), local), num_steps=4, n_best=2)
        return drawn.perturbed_BK, [[(one.tokens, one.score) for one in found] for found in outputs]

    compare(compute, float64=float64)


@precision
@pytest.mark.parametrize("selector", [HardTopK(3), SoftTopK(3, 5.0)], ids=["beam", "relaxed beam"])
def test_a_search_over_a_large_vocabulary(selector: Any, float64: bool) -> None:
    def compute(place: Place) -> Any:
        case = large_case()
        model = place(case.model)
        with torch.no_grad():
            beam = beam_search(model, model.encode(place(case.batch)), selector, num_steps=4, score=local)
        return beam.scores_BK, backtrace(beam)

    compare(compute, float64=float64)


@precision
@pytest.mark.parametrize("most_expanded", [0, candidates.MANY_ON_A_DEVICE])
def test_a_beam_over_a_large_vocabulary(most_expanded: int, float64: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "MANY_ON_A_DEVICE", most_expanded)
    best_of_many, calls = candidates.best_of_many, list[int]()

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[-1] += 1
        return best_of_many(*arguments, **options)

    monkeypatch.setattr(candidates, "best_of_many", counted)

    @torch.no_grad()
    def compute(place: Place) -> Any:
        calls.append(0)
        case, found = large_case(1), []
        model, batch = place(case.model), place(case.batch)
        for score in (local, global_):
            beam = beam_search(model, model.encode(batch), HardTopK(3), num_steps=6, score=score)
            found.append((beam.scores_BK, backtrace(beam)))
        return found

    compare(compute, float64=float64)
    on_the_cpu, on_the_device = calls
    assert on_the_cpu > 0 and on_the_device == (0 if most_expanded else on_the_cpu)


@pytest.mark.thorough
@pytest.mark.parametrize("with_gradients", [False, True], ids=["decoding", "training"])
@pytest.mark.parametrize(
    ("size", "most_expanded"), [(4, 0), (LARGE, 0), (LARGE, candidates.MANY_ON_A_DEVICE)], ids=["few", "many", "some"]
)
@pytest.mark.parametrize("name", SEARCHES)
def test_waits_of_a_search(
    name: str, size: int, most_expanded: int, with_gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "MANY_ON_A_DEVICE", most_expanded)
    num_steps, case = 16, large_case() if size == LARGE else CASES["transformer"]()
    with accelerator.device(float64=False) as waits:
        model, batch = case.model.float().to(accelerator.NAME), case.batch.to(accelerator.NAME)
        context = model.encode(batch)
        waits.clear()
        with torch.set_grad_enabled(with_gradients):
            beam = beam_search(model, context, SEARCHES[name](), num_steps=num_steps, score=local)
            if with_gradients and ("soft" in name or "relaxed" in name):
                beam.scores_BK.sum().backward()
    assert sum(waits.values()) <= num_steps / 8, waits


class Launches(TorchDispatchMode):
    """Counts the operations that start a kernel: all but those whose result is a view, or has no values yet."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = [one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns]
        self.count += not (any(views) or func.overloadpacket.__name__.startswith(("empty", "new_empty")))
        return func(*args, **(kwargs or {}))


def test_launches_of_a_training_step_through_a_relaxed_beam_over_a_large_vocabulary() -> None:
    """Python starts kernels one by one, and takes longer for it than a GPU for the arithmetic of a step."""
    case, launches = oracles.tagger_case(3, target_size=LARGE, lengths=(12, 10)), dict[int, int]()
    with accelerator.device(float64=False):
        model, batch = case.model.float().to(accelerator.NAME), case.batch.to(accelerator.NAME)
        for num_steps in (4, 12):
            with Launches() as counted:
                beam = beam_search(model, model.encode(batch), SoftTopK(3, 4.0), num_steps=num_steps, score=local)
                beam.scores_BK.sum().backward()
            launches[num_steps] = counted.count
    assert launches[12] - launches[4] <= 8 * 180


@pytest.mark.parametrize("name", quick(["cross-entropy", "hinge", "early-update", "beam-crf", "minimum-risk"], "hinge"))
def test_waits_of_a_training_step(name: str) -> None:
    case = CASES["transformer"]()
    with accelerator.device(float64=False) as waits:
        model, batch = case.model.float().to(accelerator.NAME), case.batch.to(accelerator.NAME)
        waits.clear()
        # One for the number of steps.
        OBJECTIVES[name]().build()(model, batch, {"alpha": 1.0}).backward()
    assert sum(waits.values()) <= 1, waits


# ---------------------------------------------------------------------------------------- Hugging Face models

SMALL: dict[str, Any] = {"vocab_size": 11, "pad_token_id": 10, "eos_token_id": 0, "bos_token_id": 9}
SEQ2SEQ: dict[str, Any] = {**SMALL, "decoder_start_token_id": 10, "forced_eos_token_id": None, "d_model": 8}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
ADAPTED: dict[str, Callable[[], Any]] = {
    "Marian": lambda: transformers.MarianMTModel(
        transformers.MarianConfig(**SEQ2SEQ, **LAYERS, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=16)
    ),
    "T5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(**SEQ2SEQ, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    ),
    "GPT-2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SMALL, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    ),
    "Llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SMALL,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=16,
        )
    ),
}
BATCH = collate([EncodedExample((1, 4, 2, 3), (2, 3, 0)), EncodedExample((3, 5), (1, 5, 1, 0))])


def adapted(name: str, place: Place) -> Any:
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return step_model(place(made(ADAPTED[name]())))


@precision
@pytest.mark.parametrize("name", quick(["Marian", "Llama", "T5", "GPT-2"], "Marian"))
def test_a_hugging_face_model(name: str, float64: bool) -> None:
    def compute(place: Place) -> Any:
        model, batch = adapted(name, place), place(BATCH)
        with torch.no_grad():
            beam = beam_search(model, model.encode(batch), HardTopK(3), num_steps=4)
        losses = [
            OBJECTIVES[objective]().build()(model, batch, {"alpha": 2.0})
            for objective in ("relaxed-beam", "cross-entropy")
        ]
        losses[0].backward()
        return beam.scores_BK, losses, [p.grad for p in model.parameters() if p.grad is not None]

    # Some of their layers compute in float32 whatever they are given.
    compare(compute, float64=float64, tolerance=2e-3)


@precision
def test_a_tagger_over_an_encoder(float64: bool) -> None:
    sources = [(2, ~5, 6, ~7, 3), (2, ~6, 3)]

    def compute(place: Place) -> Any:
        torch.manual_seed(3)
        model = place(pretrained_tagger(made(bert()).base_model, num_labels=3, hidden_size=8).eval())
        batch = place(collate([EncodedExample(ids, (0, 2)[: 2 - i]) for i, ids in enumerate(sources)]))
        return with_gradients(OBJECTIVES["relaxed-beam"](k=2).build(), model, batch, {"alpha": 1.0})

    compare(compute, float64=float64)


@pytest.mark.thorough
@precision
def test_texts_of_a_masked_language_model(float64: bool) -> None:
    def compute(place: Place) -> Any:
        torch.manual_seed(3)
        model, tokenizer = place(made(bert())), word_tokenizer()
        drawn = sample_texts(model, tokenizer, length=4, num_chains=2, num_sweeps=3)
        filled = infill(model, tokenizer, ["the [MASK] sees a cat ."], num_chains=2, num_sweeps=2)
        scores = pseudo_log_likelihoods(model, tokenizer, ["the dog runs", "a cat sees the dog ."])
        texts.append((drawn.texts, filled.texts))
        return [score.token_log_probs_T for score in scores]

    texts: list[Any] = []
    compare(compute, float64=float64)
    assert texts[0] == texts[1]


# ---------------------------------------------------------------------------------------- sampling

MASKED: dict[str, Callable[[], Any]] = {
    "LSTM": lambda: MaskedLSTM(vocab_size=5, embedding_size=4, hidden_size=4, feedforward_size=6),
    "transformer": lambda: MaskedTransformer(vocab_size=5, hidden_size=8, num_layers=2, num_heads=2, dropout=0.0),
    "BERT": lambda: made(bert(vocab_size=12)),
}
KERNELS: dict[str, dict[str, Any]] = {
    "metropolis-hastings": {"blocks": (1, 2), "visits": "anywhere", "nucleus": 0.9, "full_share": 0.1},
    "delayed-acceptance": {"window": 1},
    "exact-gibbs": {},
    "gibbs": {"visits": "shuffled"},
    "mask-predict": {"iterations": 3},
    "parallel-tempering": {"temperatures": (1.0, 2.0)},
    "random-unmasking": {"iterations": 3},
    "low-confidence-remasking": {"iterations": 3},
    "remdm": {"iterations": 3, "remask": 0.5},
    "threshold-decoding": {"threshold": 0.5},
}


def masked(kind: str, place: Place) -> Any:
    model = MASKED[kind]()
    if kind == "BERT":
        return masked_model(place(model), mask_id=4, before=[2], after=[3], special=[0, 1])
    return place(oracles.randomised(model, 4, 0.8))


@pytest.mark.parametrize(
    ("kind", "float64"),
    [
        pytest.param("transformer", False, id="transformer-float32 only"),
        pytest.param("transformer", True, id="transformer-float64", marks=pytest.mark.thorough),
        pytest.param("LSTM", False, id="LSTM-float32 only", marks=pytest.mark.thorough),
        pytest.param("BERT", False, id="BERT-float32 only", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("kernel", quick(KERNELS, "metropolis-hastings", "gibbs", "mask-predict"))
def test_a_kernel(kernel: str, kind: str, float64: bool) -> None:
    problems = [ChainProblem((FREE, 1, FREE, FREE), num_chains=3), ChainProblem((FREE, FREE, 2), first_chain=3)]

    def compute(place: Place) -> Any:
        settings = configure(ChainSettings, kernel=kernel, **KERNELS[kernel])
        traces = run_problems(masked(kind, place), problems, settings, num_sweeps=2, seed=1)
        return [(trace.energy_SB, trace.tokens_SBT, trace.accepted_SB, trace.passes_SB) for trace in traces]

    compare(compute, float64=float64)


@precision
def test_constraints_and_scores(float64: bool) -> None:
    tokens_BT = torch.tensor([[1, 0, 2, 3], [1, 4, 4, 0]])

    def compute(place: Place) -> Any:
        model = masked("transformer", place)
        target = local_energy(model) + 0.5 * raw_energy(model) + constraint(contains(1), penalty=3.0)
        kernel = metropolis_hastings(target, masked_conditionals(model))
        trace = sample_chains(kernel, start_chains(target, place(tokens_BT)), 3, seed=1)
        scores_BT = pseudo_log_likelihood(model, place(tokens_BT), words_BT=place(tokens_BT), pieces="whole-word")
        return trace.energy_SB, trace.tokens_SBT, scores_BT

    compare(compute, float64=float64)


@pytest.mark.parametrize("kernel", quick(KERNELS, "metropolis-hastings"))
def test_waits_of_a_sampler(kernel: str) -> None:
    """Two a visit: for what is proposed, and for its energy. Delayed acceptance has two energies to decide on."""
    num_visits, num_sweeps = 4, 2
    with accelerator.device(float64=False) as waits:
        model = masked("transformer", lambda module: module.float().to(accelerator.NAME))
        runner = ChainRunner(model, configure(ChainSettings, kernel=kernel, **KERNELS[kernel]))
        state = runner.start([ChainProblem((FREE,) * num_visits, num_chains=3)])
        waits.clear()
        runner.advance(state, num_sweeps)
    each = 3 if kernel == "delayed-acceptance" else 2
    assert 0 < sum(waits.values()) <= each * num_visits * num_sweeps, waits


@pytest.mark.parametrize("kind", MASKED)
def test_masked_scores_of_tokens_on_the_cpu_wait_for_nothing(kind: str) -> None:
    tokens_NT = torch.tensor([[1, 2, 3, 0], [2, 2, 1, -100]])
    for masked_NT in (tokens_NT == 2, (tokens_NT == 2) & (torch.arange(4) == 1)):
        with accelerator.device(float64=False) as waits:
            model = masked(kind, lambda module: module.float().to(accelerator.NAME))
            waits.clear()
            with torch.no_grad():
                model.masked_logits(tokens_NT, masked_NT)
        # Transformers checks whether its mask hides any token.
        assert sum(waits.values()) <= (1 if kind == "BERT" else 0), waits


SCORED = ["the dog runs", "a cat sees the dog .", "runs", "the cat sees a dog that runs ."]


@pytest.mark.parametrize("pieces", ["original", "within-word-l2r", "whole-word"])
def test_texts_of_several_lengths_share_a_pass_where_it_costs_as_much_as_one(pieces: Any) -> None:
    tokenizer, passes = word_tokenizer(), list[int]()

    def compute(place: Place) -> Any:
        model = place(made(bert()))
        passes.append(0)
        model.register_forward_pre_hook(lambda *_: passes.__setitem__(-1, passes[-1] + 1))
        return [one.token_log_probs_T for one in pseudo_log_likelihoods(model, tokenizer, SCORED, pieces=pieces)]

    compare(compute, float64=False)
    on_the_cpu, on_the_device = passes
    assert on_the_device == on_the_cpu - 3


def test_scores_of_texts_wait_once_for_all() -> None:
    """Once, and once a pass for Transformers, which checks whether its mask hides any token."""
    tokenizer = word_tokenizer()
    with accelerator.device(float64=False) as waits:
        scorer = text_scorer(made(bert()).float().to(accelerator.NAME), tokenizer, ScoringSettings())
        texts = prepared(scorer, SCORED, None, None)
        waits.clear()
        scorer.scores(texts)
    assert sum(waits.values()) <= 2, waits


def conditional_model() -> Any:
    sizes = {"hidden_size": 4, "num_layers": 1, "num_heads": 2, "feedforward_size": 5}
    model = ConditionalMaskedTransformer(source_size=6, vocab_size=5, max_length=5, dropout=0.0, **sizes)
    return oracles.randomised(model, 0, 0.8)


@precision
def test_drawn_candidates_of_a_reproduction(float64: bool) -> None:
    def compute(place: Place) -> Any:
        model = place(conditional_model())
        context = model.encode(place(torch.tensor([[1, 2, 3], [4, 0, 0]])), place(torch.tensor([3, 1])))
        draws, masks_BT = SeededDraws(1, torch.arange(2), sweep=0), torch.zeros(2, 3, dtype=torch.int64)
        allowed_V = torch.tensor([True, True, False, True, True])
        return refine_from_draws(draws, model, masks_BT, num_iterations=3, context=context, allowed_V=allowed_V)

    compare(compute, float64=float64)


@precision
def test_outputs_of_unknown_length(float64: bool) -> None:
    def compute(place: Place) -> Any:
        model, sources_BS = place(conditional_model()), place(torch.tensor([[1, 2, 3], [4, 0, 0]]))
        context = model.encode(sources_BS, place(torch.tensor([3, 1])))
        found = predict_with_lengths(model, context, beam=2, num_iterations=2)
        return [(one.tokens, one.log_prob) for one in found]

    compare(compute, float64=float64)
