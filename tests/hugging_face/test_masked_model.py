"""Masked Hugging Face models: their own scores, exact chains, special tokens that stay, text in and out."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch.nn import functional as F

from pretrained import (
    MODELS,
    RESIDUES,
    SIZES,
    albert,
    bert,
    byte_tokenizer,
    distilbert,
    esm,
    esm_tokenizer,
    gpt2,
    made,
    roberta,
    word_tokenizer,
)
from seqwise import InputError
from seqwise.configuration import configure
from seqwise.data.batches import IGNORE
from seqwise.hugging_face import infill, masked_model, pseudo_log_likelihoods, sample_texts
from seqwise.hugging_face.text_codec import TextCodec
from seqwise.sampling import (
    ChainSettings,
    ChainState,
    Info,
    anywhere,
    boltzmann,
    examine,
    local_energy,
    masked_conditionals,
    metropolis_hastings,
    pseudo_log_likelihood,
    raw_energy,
    start_chains,
    transition_matrix,
)

wanted = partial(configure, ChainSettings)
"""From flat settings, as of flags."""

each_model = pytest.mark.parametrize("name", MODELS)
# Eager attention takes its softmax in float32, whatever the weights are; the rounding of that depends on the machine.
ROUNDING = {"ModernBERT, eager": 1e-6}
IDS: dict[str, Any] = {"mask_id": 4, "before": [2], "after": [3], "special": [0, 1]}


def with_masks_put_by_hand(model: Any, tokens: list[int], masked: list[int], vocabulary: int = 12) -> Any:
    """The model's own scores of one sequence: special tokens around it, the mask where it belongs, no batch."""
    ids = [2, *(4 if place in masked else token for place, token in enumerate(tokens)), 3]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits
    assert logits.shape == (1, len(ids), vocabulary)
    return logits[0, [place + 1 for place in masked]]


# ---- Scores ---------------------------------------------------------------------------------------------------------


@each_model
def test_scores_at_masked_positions_are_those_of_the_model(name: str) -> None:
    """Rows of several lengths, with several masks, in passes of several sizes."""
    model = made(MODELS[name]())
    rows = [[5, 7, 9, 6, 11, 8], [10, 5, 6], [8, 8, 5, 10], [7]]
    masks = [[0, 3], [2], [0, 1, 3], [0]]
    tokens_NT = torch.full((4, 6), IGNORE)
    masked_NT = torch.zeros(4, 6, dtype=torch.bool)
    for row, (tokens, masked) in enumerate(zip(rows, masks, strict=True)):
        tokens_NT[row, : len(tokens)] = torch.tensor(tokens)
        masked_NT[row, masked] = True
    expected = torch.cat([with_masks_put_by_hand(model, *one) for one in zip(rows, masks, strict=True)])
    assert expected.std() > 0.1
    for max_tokens in (1, 17, 10_000):
        adapted = masked_model(model, **IDS, max_tokens=max_tokens)
        assert adapted.narrowed_at is not None
        found = adapted.masked_logits(tokens_NT, masked_NT)
        assert float((found - expected).detach().abs().max()) < ROUNDING.get(name, 1e-10)
    # What stands behind a mask plays no part, and neither does anything in rows that are not asked for.
    again = adapted.masked_logits(tokens_NT.masked_fill(masked_NT, 6)[:2], masked_NT[:2])
    assert float((again - expected[:3]).detach().abs().max()) < ROUNDING.get(name, 1e-10)


@each_model
def test_the_head_sees_masked_positions_only_and_passes_are_small(name: str) -> None:
    model = made(MODELS[name]())
    adapted = masked_model(model, **IDS, max_tokens=20)
    rows: list[int] = []
    given: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda _, inputs, output: rows.append(output[..., 0].numel()))
    model.register_forward_pre_hook(lambda _, args, kwargs: given.append(kwargs["input_ids"].numel()), with_kwargs=True)
    tokens_BT = torch.randint(5, 12, (7, 4))
    log_probs_BT = pseudo_log_likelihood(adapted, tokens_BT)
    assert log_probs_BT.shape == (7, 4)
    assert sum(rows) == 28 and max(given) <= 20 and sum(given) == 28 * 6
    assert not model.base_model._forward_hooks  # nothing is left in the user's model


def test_the_last_feed_forward_network_sees_masked_positions_only_where_attention_ends_with_its_residual() -> None:
    model = made(bert())
    rows: dict[int, int] = {0: 0, -1: 0}
    for layer in rows:
        network = model.bert.encoder.layer[layer].intermediate
        network.register_forward_hook(
            lambda _, inputs, output, layer=layer: rows.update({layer: rows[layer] + output[..., 0].numel()})
        )
    adapted = masked_model(model, **IDS)
    assert adapted.narrowed_at == f"encoder.layer.{len(model.bert.encoder.layer) - 1}.attention"
    rows.update({0: 0, -1: 0})
    pseudo_log_likelihood(adapted, torch.randint(5, 12, (7, 4)))
    assert rows == {0: 28 * 6, -1: 28}
    assert not any(module._forward_hooks for name, module in model.named_modules() if name.endswith("attention"))
    # One layer run several times, and one whose residual is added behind its attention.
    assert {masked_model(made(build()), **IDS).narrowed_at for build in (albert, distilbert)} == {""}


def test_gradients_reach_the_parameters_that_are_shared() -> None:
    model = made(bert())
    adapted = masked_model(model, **IDS)
    tokens_NT, masked_NT = torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor([[True, False, True]] * 2)
    F.cross_entropy(adapted.masked_logits(tokens_NT, masked_NT), tokens_NT[masked_NT]).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    ids = F.pad(tokens_NT.masked_fill(masked_NT, 4), (1, 1))
    ids[:, 0], ids[:, -1] = 2, 3
    labels = F.pad(tokens_NT.masked_fill(~masked_NT, -100), (1, 1), value=-100)
    model(input_ids=ids, labels=labels).loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(found[name], parameter.grad, atol=1e-12), name
    assert {f"model.{name}" for name in model.state_dict()} == set(adapted.state_dict())


def test_dropout_follows_the_mode_of_the_wrapped_model() -> None:
    model = made(bert())
    model.train()
    model.bert.encoder.layer[0].eval()
    adapted = masked_model(model, **IDS)
    assert model.training and adapted.training and not model.bert.encoder.layer[0].training
    model.eval()
    assert not adapted.training
    adapted.train()
    assert model.training and adapted.training and model.bert.encoder.layer[0].training
    with pytest.raises(InputError, match="training mode"):
        start_chains(local_energy(adapted), torch.tensor([[5, 6]]))
    with pytest.raises(InputError, match=r"training mode.*model.eval\(\)"):
        pseudo_log_likelihoods(model, word_tokenizer(), ["the dog"])


def test_half_precision_gives_single_precision_scores() -> None:
    model = made(bert(), dtype=torch.bfloat16, scale=2.0)
    adapted = masked_model(model, **IDS)
    scores = adapted.masked_logits(torch.tensor([[5, 6, 7]]), torch.tensor([[True, False, True]]))
    assert adapted.narrowed_at is not None and scores.dtype == torch.float32
    whole = with_masks_put_by_hand(model, [5, 6, 7], [0, 2]).float()
    assert torch.allclose(scores, whole, atol=0.05 * float(whole.abs().max()))


class MixedHead(transformers.BertForMaskedLM):
    """A model whose head looks at other positions, as none should."""

    def forward(self, input_ids: Any, attention_mask: Any = None, **others: Any) -> Any:
        hidden = self.bert(input_ids, attention_mask=attention_mask)[0]
        return transformers.modeling_outputs.MaskedLMOutput(logits=self.cls(hidden + hidden.cumsum(-2)))


class NoBackbone(transformers.BertForMaskedLM):
    """A model that does not say where its backbone is."""

    base_model_prefix = "nowhere"


@pytest.mark.parametrize("kind", [MixedHead, NoBackbone])
def test_a_head_that_cannot_be_separated_is_run_at_all_positions(kind: Any) -> None:
    model = made(kind(transformers.BertConfig(vocab_size=12, **SIZES)))
    adapted = masked_model(model, **IDS)
    assert adapted.narrowed_at is None
    found = adapted.masked_logits(torch.tensor([[5, 6, 7]]), torch.tensor([[True, False, True]]))
    expected = with_masks_put_by_hand(model, [5, 6, 7], [0, 2])
    assert float((found - expected).detach().abs().max()) < 1e-10


@pytest.mark.parametrize(
    ("build", "longest"), [(bert, 12), (roberta, 10), (distilbert, 12), (lambda: esm(positions="absolute"), 10)]
)
def test_the_longest_sequence_is_scored_and_a_longer_one_refused(build: Any, longest: int) -> None:
    """RoBERTa and ESM-1b number their positions from the one after the padding's."""
    model = made(build())
    adapted = masked_model(model, **IDS)
    assert adapted.max_length == longest
    tokens = [5 + place % 7 for place in range(longest)]
    masked_NT = F.one_hot(torch.tensor([longest - 1]), longest).bool()
    found = adapted.masked_logits(torch.tensor([tokens]), masked_NT)
    assert float((found - with_masks_put_by_hand(model, tokens, [longest - 1])).detach().abs().max()) < 1e-10
    problem = f"a sequence has {longest + 1} tokens and 2 special ones, .*; cut it into pieces of at most {longest} "
    with pytest.raises(InputError, match=problem):
        adapted.masked_logits(torch.full((1, longest + 1), 5), torch.ones(1, longest + 1).bool())
    whole, long = pseudo_log_likelihoods(model, word_tokenizer(), [" ".join(["dog"] * longest), "dog " * (longest + 1)])
    assert (whole.num_windows, long.num_windows) == (0, 2) and len(long.tokens) == longest + 1


def t5() -> Any:
    config = transformers.T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "left to right": (gpt2, IDS, "GPT2LMHeadModel does not see the tokens after a masked position"),
    "a decoder": (lambda: bert(is_decoder=True), IDS, "does not see the tokens after"),
    "two sides": (t5, IDS, "T5ForConditionalGeneration gives no scores of every token at every position"),
    "no head": (lambda: bert().bert, IDS, "BertModel has no head over a vocabulary; load it with AutoModelForMaskedLM"),
    "no mask": (bert, {}, "give its tokenizer, or mask_id"),
    "mask outside": (bert, {"mask_id": 12}, "the special token 12 is not one of the 12"),
    "both": (bert, {**IDS, "tokenizer": word_tokenizer()}, "both a tokenizer and ids"),
    "all special": (bert, {"mask_id": 4, "special": range(12)}, "none is left to propose"),
    "max_tokens": (bert, {**IDS, "max_tokens": 0}, "max_tokens must be at least 1"),
    "no mask token": (bert, {"tokenizer": word_tokenizer(mask=None)}, "the tokenizer has no mask token; give that of"),
    "large tokenizer": (lambda: bert(9), {"tokenizer": word_tokenizer()}, "tokens up to 11, and the model scores 9"),
    "no positions": (lambda: bert(max_position_embeddings=2), IDS, "no positions besides those of the special tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_masked_language_model_is_refused(name: str) -> None:
    build, options, problem = REFUSED[name]
    with pytest.raises(InputError, match=problem):
        masked_model(build().eval(), **options)


def test_a_context_and_shapes_that_do_not_fit_are_refused() -> None:
    adapted = masked_model(made(bert()), **IDS)
    with pytest.raises(InputError, match="reads no context"):
        adapted.masked_logits(torch.tensor([[5]]), torch.tensor([[True]]), context=torch.zeros(1))
    with pytest.raises(InputError, match="do not fit"):
        adapted.masked_logits(torch.tensor([[5, 6]]), torch.tensor([[True]]))
    assert adapted.masked_logits(torch.tensor([[5]]), torch.tensor([[False]])).shape == (0, 12)


# ---- Energies and chains, exactly -----------------------------------------------------------------------------------

TINY = ["the", "dog", "cat"]


def tiny(name: str) -> tuple[Any, Any]:
    """A model of three words beside the special tokens."""
    build = {"BERT": bert, "RoBERTa": roberta, "ESM": esm}[name]
    return made(build(8), scale=8.0), word_tokenizer(TINY)


def literal_energy(model: Any, tokens: tuple[int, ...], reading: str) -> float:
    """A sum over positions, each masked alone, in plain numbers."""
    terms = []
    for place, token in enumerate(tokens):
        scores = with_masks_put_by_hand(model, list(tokens), [place], model.config.vocab_size)[0].tolist()
        log_z = math.log(math.fsum(map(math.exp, scores))) if reading == "local" else 0.0
        terms.append(log_z - scores[token])
    return math.fsum(terms)


@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "ESM"])
@pytest.mark.parametrize("reading", ["raw", "local"])
def test_energies_are_literal_sums(name: str, reading: str) -> None:
    model, tokenizer = tiny(name)
    adapted = masked_model(model, tokenizer=tokenizer)
    sequences = [(5, 6, 7, 7), (7, 5, 5, 1), (6, 6, 6, 6)]
    energy = {"raw": raw_energy, "local": local_energy}[reading](adapted)
    state = start_chains(energy, torch.tensor(sequences))
    for found, tokens in zip(state.energy_B.tolist(), sequences, strict=True):
        assert found == pytest.approx(literal_energy(model, tokens, reading), abs=1e-10)


def without_ratio(energy: Any, proposal: Any) -> Any:
    """Metropolis-Hastings by hand, where the ratio of the proposals is forgotten."""

    def kernel(draws: Any, state: ChainState) -> tuple[ChainState, Info]:
        (masked_BT,) = anywhere()(draws, state.free_BT)
        log_q_BV = proposal.log_probs(proposal.model.masked_logits(state.tokens_BT, masked_BT))
        new_B = draws.categorical(log_q_BV, masked_BT.any(1))
        proposed = start_chains(energy, state.tokens_BT.masked_scatter(masked_BT, new_B))
        accepted_B = draws.accepts(state.energy_B - proposed.energy_B, masked_BT.any(1))
        tokens_BT = torch.where(accepted_B[:, None], proposed.tokens_BT, state.tokens_BT)
        return start_chains(energy, tokens_BT), Info.none(state)

    return torch.no_grad()(kernel)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "ESM"])
@pytest.mark.parametrize("reading", ["raw", "local"])
def test_transitions_leave_the_enumerated_target_as_it_is(name: str, reading: str) -> None:
    model, tokenizer = tiny(name)
    adapted = masked_model(model, tokenizer=tokenizer)
    energy = {"raw": raw_energy, "local": local_energy}[reading](adapted)
    space = list(itertools.product([5, 6, 7], repeat=2))
    weights = [math.exp(-literal_energy(model, tokens, reading)) for tokens in space]
    target_N = torch.tensor([weight / math.fsum(weights) for weight in weights], dtype=torch.float64)
    states = start_chains(energy, torch.tensor(space))
    assert torch.allclose(boltzmann(states.energy_B), target_N, atol=1e-12)
    # Hot proposals, because those at temperature 1 come close to the target of so small a model.
    proposal = masked_conditionals(adapted, allowed_V=adapted.allowed_V, temperature=2.0)
    kernel = metropolis_hastings(energy, proposal, visits=anywhere([1, 2]))
    found = examine(transition_matrix(kernel, states), target_N)
    assert found.stationarity < 1e-10 and found.detailed_balance < 1e-10 and found.irreducible
    wrong = examine(transition_matrix(without_ratio(energy, proposal), states), target_N)
    assert wrong.stationarity > 1e-3 and wrong.total_variation > 1e-2
    settings = wanted(energy=reading, blocks=(2, 1))
    by_settings = settings.build_kernel(adapted, settings.build_energy(adapted), adapted.allowed_V)
    assert examine(transition_matrix(by_settings, states), target_N).holds(1e-10)


@pytest.mark.thorough
def test_special_tokens_neither_appear_nor_move_in_a_thousand_transitions() -> None:
    """Of a model that likes special tokens best."""
    model, tokenizer = tiny("BERT")
    model.cls.predictions.bias.data[:5] += 5.0
    adapted = masked_model(model, tokenizer=tokenizer)
    assert adapted.allowed_V.nonzero().flatten().tolist() == [5, 6, 7]
    seen: list[torch.Tensor] = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True)
    sampled = sample_texts(adapted, tokenizer, length=4, num_chains=5, num_sweeps=50, settings=wanted(blocks=(2,)))
    proposals = int(sampled.chains[0].proposals_SB.sum())
    # Two blocks a sweep: 500 proposals; the rest from single positions with the nucleus cut.
    cut = wanted(nucleus=0.6, full_share=0.1, energy="raw")
    more = sample_texts(adapted, tokenizer, length=4, num_chains=5, num_sweeps=30, settings=cut)
    assert proposals + int(more.chains[0].proposals_SB.sum()) >= 1000
    for ids in seen:
        assert bool((ids[:, 0] == 2).all() and (ids[:, -1] == 3).all())
        assert bool((ids[:, 1:-1] >= 4).all())
        assert not bool((ids[:, 1:-1] == 2).any() or (ids[:, 1:-1] == 3).any())
    for chains in (*sampled.chains, *more.chains):
        assert bool((chains.tokens_SBT >= 5).all())
        assert len({tuple(one) for one in chains.tokens_SBT.flatten(0, 1).tolist()}) > 5


# ---- Text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "DistilBERT", "ModernBERT", "ESM"])
def test_pseudo_log_likelihoods_are_those_of_a_loop(name: str) -> None:
    """Texts of several lengths, unknown words among them, in any order and any number at once."""
    model, tokenizer = made(MODELS[name]()), word_tokenizer()
    texts = ["The dog sees a cat.", "a zebra runs", "dog", "THE CAT RUNS ."]
    words = [["the", "dog", "sees", "a", "cat", "."], ["a", "[UNK]", "runs"], ["dog"], ["the", "cat", "runs", "."]]
    for max_tokens in (1, 30, 10_000):
        scores = pseudo_log_likelihoods(model, tokenizer, texts, max_tokens=max_tokens)
        assert [one.text for one in scores] == texts and [list(one.tokens) for one in scores] == words
        for one, tokens in zip(scores, words, strict=True):
            ids = tokenizer.convert_tokens_to_ids(tokens)
            by_hand = [
                with_masks_put_by_hand(model, ids, [place])[0].log_softmax(-1)[token].item()
                for place, token in enumerate(ids)
            ]
            assert one.token_log_probs_T.tolist() == pytest.approx(by_hand, abs=ROUNDING.get(name, 1e-10))
            assert one.log_prob == pytest.approx(math.fsum(by_hand), abs=ROUNDING.get(name, 1e-10))
            assert one.pseudo_perplexity == pytest.approx(math.exp(-math.fsum(by_hand) / len(ids)), rel=1e-9)
    assert pseudo_log_likelihoods(model, tokenizer, []) == []


def test_infilling_keeps_what_is_written_and_samples_the_target() -> None:
    model, tokenizer = tiny("BERT")
    text = "The [MASK]  CAT [MASK]"
    settings = wanted(proposal_temperature=1.5)
    sampled = infill(model, tokenizer, ["dog [MASK]", text], num_chains=800, num_sweeps=8, settings=settings)
    ours = [one for one in sampled.samples if one.problem == 1]
    assert len(ours) == 800 and [one.chain for one in ours] == list(range(800))
    weights = {}
    for first, last in itertools.product(TINY, repeat=2):
        ids = tuple(tokenizer.convert_tokens_to_ids(["the", first, "cat", last]))
        weights[f"The {first}  CAT {last}"] = math.exp(-literal_energy(model, ids, "local"))
    counts = Counter(one.text for one in ours)
    assert set(counts) <= set(weights)  # letter for letter, blanks too
    means = {one: 800 * weight / math.fsum(weights.values()) for one, weight in weights.items()}
    chi_square = math.fsum((counts[one] - mean) ** 2 / mean for one, mean in means.items())
    assert (chi_square - 8) / math.sqrt(16) < 4  # standard deviations, of 9 cells
    for one in ours[:20]:
        ids = tuple(tokenizer.convert_tokens_to_ids(list(one.tokens)))
        assert one.survives and one.sweep == 8
        assert one.energy == pytest.approx(literal_energy(model, ids, "local"), abs=1e-9)
    assert {one.text for one in sampled.samples if one.problem == 0} == {f"dog {word}" for word in TINY}


def test_chains_of_one_text_do_not_depend_on_other_texts() -> None:
    model, tokenizer = made(bert()), word_tokenizer()
    text, options = "the [MASK] [MASK] a [MASK]", {"num_chains": 3, "num_sweeps": 6}
    alone = infill(model, tokenizer, [text], **options)
    among = infill(model, tokenizer, [text, "a [MASK]", text], **options)
    assert torch.equal(alone.chains[0].tokens_SBT, among.chains[0].tokens_SBT)
    for chain in range(3):  # the same text once more is drawn with other numbers
        assert not torch.equal(among.chains[0].tokens_SBT[:, chain], among.chains[2].tokens_SBT[:, chain])


def test_sampled_texts_are_tokenized_back_to_their_tokens() -> None:
    model, tokenizer = made(bert()), word_tokenizer()
    sampled = sample_texts(model, tokenizer, length=5, num_chains=4, num_sweeps=12, discard=4, every=2, seed=3)
    assert [(one.chain, one.sweep) for one in sampled.samples] == [
        (chain, sweep) for chain in range(4) for sweep in (6, 8, 10, 12)
    ]
    scores = pseudo_log_likelihoods(model, tokenizer, sampled.texts)
    for one, score in zip(sampled.samples, scores, strict=True):
        assert one.survives and score.tokens == one.tokens and len(one.tokens) == 5
        assert one.energy == pytest.approx(-score.log_prob, abs=1e-9)
    again = sample_texts(model, tokenizer, length=5, num_chains=4, num_sweeps=12, discard=4, every=2, seed=3)
    assert again.texts == sampled.texts
    other = sample_texts(model, tokenizer, length=5, num_chains=4, num_sweeps=12, discard=4, every=2, seed=4)
    assert other.texts != sampled.texts
    accepted, proposals = (
        int(one[4:].sum()) for one in (sampled.chains[0].accepted_SB, sampled.chains[0].proposals_SB)
    )
    assert proposals == 8 * 4 * 5 and sampled.acceptance == accepted / proposals
    assert 0 < sampled.novelty <= sampled.acceptance <= 1


def test_chains_are_judged_text_by_text() -> None:
    pytest.importorskip("arviz_stats")
    model, tokenizer = made(bert()), word_tokenizer()
    sampled = infill(model, tokenizer, ["the [MASK] [MASK]", "a [MASK]"], num_chains=4, num_sweeps=40)
    first, second = sampled.diagnose({"dogs": lambda y: (y == 6).sum(-1).double()})
    assert first.num_sweeps == second.num_sweeps == 33 and set(first.ess) == {"energy", "dogs"}
    assert first.ess["energy"] > 0 and first.r_hat["energy"] > 0.9
    proposals = [int(one.proposals_SB[7:].sum()) for one in sampled.chains]
    assert proposals == [33 * 4 * 2, 33 * 4]
    mean = (first.acceptance * proposals[0] + second.acceptance * proposals[1]) / sum(proposals)
    assert sampled.acceptance == pytest.approx(mean)


def test_chains_start_from_given_texts_and_lengths_stay_apart() -> None:
    model, tokenizer = made(bert()), word_tokenizer()
    starts = ["the dog runs", "a cat", "a cat sees", "the dog"]
    sampled = sample_texts(model, tokenizer, texts=starts, num_sweeps=6)
    assert [(one.problem, one.chain, len(one.tokens)) for one in sampled.samples] == [
        (0, 0, 2), (0, 1, 2), (1, 0, 3), (1, 1, 3)
    ]  # fmt: skip
    still = sample_texts(
        model, tokenizer, texts=starts[:1], num_sweeps=1, settings=wanted(temperature=1e-3, energy="raw")
    )
    assert still.chains[0].tokens_SBT.shape == (1, 1, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "delayed-acceptance"},
        {"kernel": "exact-gibbs"},
        {"kernel": "parallel-tempering", "temperatures": (1.0, 2.0)},
        {"kernel": "gibbs"},
        {"kernel": "mask-predict", "iterations": 2},
        {"temperature": 0.5, "anneal": 0.25},
    ],
    ids=lambda options: options.get("kernel", "annealed"),
)
def test_every_kernel_runs_on_text(options: dict[str, Any]) -> None:
    model, tokenizer = made(bert()), word_tokenizer()
    sampled = infill(model, tokenizer, ["The [MASK] [MASK] ."], num_chains=3, num_sweeps=6, settings=wanted(**options))
    assert len(sampled.texts) == 3
    for one in sampled.samples:
        assert one.text.startswith("The ") and one.text.endswith(" .") and one.survives
        assert one.energy == pytest.approx(-pseudo_log_likelihoods(model, tokenizer, [one.text])[0].log_prob, abs=1e-9)


def test_phrases_occur_or_do_not() -> None:
    model, tokenizer = made(bert()), word_tokenizer()
    settings = wanted(contain=("a cat", "dog"), without=("the",), blocks=(2, 1))
    sampled = sample_texts(model, tokenizer, length=5, num_chains=6, num_sweeps=10, every=1, settings=settings)
    assert len(set(sampled.texts)) > 6
    for one in sampled.samples:
        assert "a cat" in one.text and "dog" in one.tokens and "the" not in one.tokens
    soft = wanted(contain=("a cat",), penalty=2.0)
    (one,) = infill(model, tokenizer, ["the [MASK]"], num_chains=1, settings=soft).samples
    bare = pseudo_log_likelihoods(model, tokenizer, [one.text])[0].log_prob
    assert one.energy == pytest.approx(2.0 - bare, abs=1e-9)


BAD: dict[str, tuple[Any, str]] = {
    "neither": (lambda m, t: sample_texts(m, t), "give length or texts"),
    "both": (lambda m, t: sample_texts(m, t, length=2, texts=["a"]), "give length or texts"),
    "one text": (lambda m, t: infill(m, t, "the [MASK]"), "give a list of texts"),
    "no text": (lambda m, t: pseudo_log_likelihoods(m, t, ["a", None]), "text 2: a text was expected, got NoneType"),
    "empty": (lambda m, t: pseudo_log_likelihoods(m, t, ["a", " "]), "text 2: the text has no token"),
    "mask": (lambda m, t: pseudo_log_likelihoods(m, t, ["a [MASK]"]), r"the text contains the mask token \[MASK\]"),
    "special": (lambda m, t: infill(m, t, ["a [SEP] [MASK]"]), r"text 1: the text contains the special token \[SEP\]"),
    "nothing free": (lambda m, t: infill(m, t, ["[MASK]", "a cat"]), r"text 2: no position is free; write \[MASK\]"),
    "unknown start": (lambda m, t: sample_texts(m, t, texts=["zebra"]), r"text 1: the token '\[UNK\]' is never drawn"),
    "chains of starts": (lambda m, t: sample_texts(m, t, texts=["a"], num_chains=2), "each text is the start of one"),
    "length": (lambda m, t: sample_texts(m, t, length=0), "length must be at least 1"),
    "too long": (lambda m, t: sample_texts(m, t, length=13), "cut it into pieces of at most 12"),
    "chains": (lambda m, t: sample_texts(m, t, length=1, num_chains=0), "num_chains must be at least 1"),
    "sweeps": (lambda m, t: sample_texts(m, t, length=1, num_sweeps=0), "num_sweeps must be at least 1"),
    "every": (lambda m, t: sample_texts(m, t, length=1, every=0), "every must be at least 1"),
    "every, too few": (
        lambda m, t: infill(m, t, ["[MASK]"], num_sweeps=5, every=6),
        "every: none of 5 sweeps would be returned, because 2 are discarded",
    ),
    "discard": (lambda m, t: sample_texts(m, t, length=1, discard=33), "33 of 33 sweeps are discarded"),
    "max_tokens": (lambda m, t: pseudo_log_likelihoods(m, t, ["a"], max_tokens=0), "max_tokens must be at least 1"),
    "allowed": (lambda m, t: sample_texts(m, t, length=1, allowed=["zebra"]), "allowed: 'zebra' is a special"),
    "allowed mark": (lambda m, t: sample_texts(m, t, length=1, allowed=["[CLS]"]), r"allowed: '\[CLS\]' is a special"),
    "allowed none": (lambda m, t: sample_texts(m, t, length=1, allowed=[]), "allowed: no token"),
    "phrase": (
        lambda m, t: sample_texts(m, t, length=2, settings=wanted(contain=("a zebra",))),
        r"contain: the phrase '.*' contains an unknown token",
    ),
    "no room": (
        lambda m, t: infill(m, t, ["[MASK]", "a [MASK]"], settings=wanted(contain=("the dog",))),
        "text 1: no sequence of length 1 was found that contains 'the dog'",
    ),
    "other tokenizer": (
        lambda m, t: pseudo_log_likelihoods(masked_model(m, mask_id=4), t, ["a"]),
        "other special tokens than the model was adapted with",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_invalid_calls_are_refused(name: str) -> None:
    call, problem = BAD[name]
    with pytest.raises(InputError, match=problem):
        call(made(bert(), dtype=torch.float32), word_tokenizer())


def test_phrases_are_written_in_allowed_tokens_only() -> None:
    """A chain could never leave another token, nor come back to it; the text that is given may have it."""
    model, tokenizer = made(bert(), dtype=torch.float32), word_tokenizer()
    options: dict[str, Any] = {"num_sweeps": 3, "allowed": ["dog", "a"]}
    with pytest.raises(InputError, match="of length 3 was found that contains 'cat'; allow all tokens of the phrases"):
        sample_texts(model, tokenizer, length=3, settings=wanted(contain=("cat",)), **options)
    soft = wanted(contain=("cat",), penalty=1.0)
    texts = sample_texts(model, tokenizer, length=3, settings=soft, **options).texts
    assert {word for text in texts for word in text.split()} <= {"dog", "a"}
    filled = infill(model, tokenizer, ["cat [MASK] [MASK]"], settings=wanted(contain=("cat a",)), **options).texts
    assert {text.rsplit(" ", 1)[0] for text in filled} == {"cat a"}


def test_byte_pairs_bring_their_blanks() -> None:
    """RoBERTa's way: a word in the text is another token than at its beginning, and the mask takes a blank with it."""
    tokenizer = byte_tokenizer()
    codec = TextCodec(tokenizer, vocab_size=len(tokenizer))
    assert (codec.before, codec.after) == ((0,), (2,))
    ids = codec.ids("the cat sees")
    blank = codec.ids_to_fill("the <mask> sees")
    assert len(blank) == 3 and blank[0] == ids[0] and blank[2] == ids[2]
    assert codec.filled("the <mask> sees", ids) == "the cat sees" == codec.text(ids)
    within, alone = codec.phrase("dog")
    assert codec.pieces(within) == ("Ġdog",) and "".join(codec.pieces(alone)) == "dog"
    model = made(roberta(len(tokenizer)), dtype=torch.float32)
    settings = wanted(contain=("cat",), without=("dog",))
    sampled = sample_texts(model, tokenizer, length=4, num_chains=8, num_sweeps=3, settings=settings)
    for one in sampled.samples:
        assert "cat" in re.findall(r"\w+", one.text) and "dog" not in re.findall(r"\w+", one.text)
        assert one.survives == (codec.ids_to_fill(one.text) == tuple(tokenizer.convert_tokens_to_ids(list(one.tokens))))
    # Random bytes are seldom UTF-8, and seldom what the tokenizer would make of their text.
    assert not all(one.survives for one in sampled.samples)


def test_filling_a_mask_inside_a_word_keeps_the_rest_of_the_text() -> None:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "sees", ".", ","]
    tokenizer = transformers.BertTokenizer(vocab={piece: place for place, piece in enumerate(vocabulary)})
    codec = TextCodec(tokenizer, vocab_size=len(vocabulary))
    for masked, wanted in (
        ("The Dog  [MASK] X.", "The Dogs X."),
        ("The [MASK] [MASK], X", "The dogs, X"),
        ("The [MASK] sees X.", "The dog sees X."),
    ):
        ids = tokenizer(wanted, add_special_tokens=False)["input_ids"]
        assert codec.filled(masked, ids) == wanted


def test_filling_a_mask_after_a_blank_token_keeps_the_rest_of_the_text() -> None:
    """SentencePiece's blank before a mask is a token, whose text is empty."""
    core = Tokenizer(
        models.BPE({"<unk>": 0, "[MASK]": 1, "▁": 2, "d": 3, "▁d": 4, "x": 5}, [("▁", "d")], unk_token="<unk>")
    )
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", mask_token="[MASK]")
    codec = TextCodec(tokenizer, vocab_size=6)
    assert codec.pieces(codec.ids("d x")) == ("▁d", "▁", "x")
    assert codec.filled("D [MASK]", codec.ids("d x")) == "D x"


def test_proteins_with_and_without_blanks(tmp_path: Path) -> None:
    tokenizer = esm_tokenizer(tmp_path)
    model = made(esm(33, mask_id=32), dtype=torch.float64)
    together, apart = pseudo_log_likelihoods(model, tokenizer, ["MKTWLG", "M K T W L G"])
    assert together.tokens == apart.tokens == tuple("MKTWLG")
    assert torch.equal(together.token_log_probs_T, apart.token_log_probs_T)
    filled = infill(model, tokenizer, ["MK<mask><mask>WC"], num_chains=4, num_sweeps=8, allowed=RESIDUES[:20])
    for one in filled.samples:
        assert one.survives and len(one.text) == 6 and one.text[:2] == "MK" and one.text[4:] == "WC"
        assert set(one.text) <= set(RESIDUES[:20])
    for one in sample_texts(model, tokenizer, length=7, num_sweeps=3, allowed=RESIDUES[:20]).samples:
        assert len(one.text) == 7 and set(one.text) <= set(RESIDUES[:20]) and one.survives


# ---- Models whose scores depend on what they have read, or on padding ---------------------------------------------


def big_bird() -> Any:
    torch.manual_seed(0)
    return transformers.BigBirdForMaskedLM(
        transformers.BigBirdConfig(
            vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=128, block_size=4, num_random_blocks=1, initializer_range=0.5, pad_token_id=0,
        )
    ).eval()  # fmt: skip


def test_short_inputs_leave_sparse_attention_as_it_was() -> None:
    """BigBird reads inputs of up to 28 tokens with full attention here, and would never go back by itself."""
    long, short = torch.randint(5, 12, (1, 60), generator=torch.Generator().manual_seed(1)), torch.tensor([[5, 6, 7]])
    masked = torch.zeros(1, 60, dtype=torch.bool)
    masked[0, [0, 31, 59]] = True
    expected = with_masks_put_by_hand(big_bird(), long[0].tolist(), [0, 31, 59])
    model = big_bird()
    adapted = masked_model(model, **IDS)
    with torch.no_grad():
        assert model.bert.attention_type == "block_sparse"
        for _ in range(2):
            torch.testing.assert_close(adapted.masked_logits(long, masked), expected)
            adapted.masked_logits(short, torch.ones_like(short).bool())
    full = big_bird()
    full.bert.set_attention_type("original_full")
    by_hand = masked_model(full, **IDS)  # which is respected
    own = with_masks_put_by_hand(full, long[0].tolist(), [0, 31, 59])
    with torch.no_grad():
        torch.testing.assert_close(by_hand.masked_logits(long, masked), own)
    assert (with_masks_put_by_hand(full, long[0].tolist(), [0, 31, 59]) - expected).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_rows_share_a_pass_only_if_padding_does_not_change_their_scores(dtype: torch.dtype) -> None:
    """Funnel pools over pairs of tokens, padding among them; the sparse attention of BigBird depends on the length."""
    torch.manual_seed(0)
    funnel = transformers.FunnelForMaskedLM(
        transformers.FunnelConfig(
            vocab_size=12, block_sizes=[1, 1], num_decoder_layers=1, d_model=16, n_head=2, d_head=8, d_inner=16,
            pad_token_id=0, initializer_std=1.0,
        )
    ).eval()  # fmt: skip
    for model in (funnel, big_bird()):
        assert not masked_model(model.to(dtype), **IDS).padding_is_neutral
    for name in ("BERT", "RoBERTa"):
        assert masked_model(MODELS[name]().to(dtype), **IDS).padding_is_neutral


def test_a_model_that_cannot_be_padded_is_adapted() -> None:
    class WithoutPadding(transformers.BertForMaskedLM):
        def forward(self, *arguments: Any, attention_mask: Any = None, **named: Any) -> Any:
            if attention_mask is not None:
                raise ValueError("padding is not supported")
            return super().forward(*arguments, **named)

    model = WithoutPadding(transformers.BertConfig(vocab_size=12, **SIZES)).eval()
    adapted = masked_model(model, **IDS)
    assert not adapted.padding_is_neutral
    assert adapted.masked_logits(torch.tensor([[5, 6]]), torch.tensor([[True, False]])).shape == (1, 12)
