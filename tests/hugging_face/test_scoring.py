"""Scores of texts against loops over the model: one text, one mask pattern, one prefix at a time, no batch."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from parameters import quick
from pretrained import bert, byte_tokenizer, esm, esm_tokenizer, gpt2, made, piece_tokenizer, roberta, word_tokenizer
from seqwise import InputError
from seqwise.hugging_face import masked_model, pseudo_log_likelihoods, score_texts
from seqwise.hugging_face.tokens import text_tokens
from seqwise.sampling.scores import TokenScores
from seqwise.sampling.scoring_settings import ScoringSettings

PIECES = ["the", "dog", "##s", "##ge", "##d", "see", "cat", "."]
TEXTS = ["The dogsged cats.", "see", "dogged dogs see the cat . the catsd", "dogs dogs"]


def log_probs_of_masks(model: Any, tokenizer: Any, text: str, pieces: str) -> list[float]:
    """A loop: for each token, the masks by the words of the tokenizer, and the model's own forward of one row."""
    encoded = tokenizer(text)
    ids, words = encoded["input_ids"], encoded.word_ids()
    scores = []
    for place, word in enumerate(words):
        if word is None:
            continue
        masked = {
            "original": [place],
            "within-word-l2r": [other for other, its in enumerate(words) if its == word and other >= place],
            "whole-word": [other for other, its in enumerate(words) if its == word],
        }[pieces]
        seen = [tokenizer.mask_token_id if other in masked else token for other, token in enumerate(ids)]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([seen])).logits
        scores.append(logits[0, place].log_softmax(-1)[ids[place]].item())
    return scores


@pytest.mark.parametrize("pieces", ["original", "within-word-l2r", "whole-word"])
@pytest.mark.parametrize("max_tokens", [1, 40, 10_000])
def test_masks_are_those_of_a_loop(pieces: Any, max_tokens: int) -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(len(tokenizer), max_position_embeddings=32))
    scores = pseudo_log_likelihoods(model, tokenizer, TEXTS, pieces=pieces, max_tokens=max_tokens)
    for score in scores:
        expected = log_probs_of_masks(model, tokenizer, score.text, pieces)
        assert score.token_log_probs_T.tolist() == pytest.approx(expected, abs=1e-10)
        assert score.log_prob == pytest.approx(math.fsum(expected), abs=1e-9)
        assert score.mean_log_prob == pytest.approx(math.fsum(expected) / len(expected), abs=1e-9)


def test_the_masks_differ_in_words_of_several_pieces() -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(len(tokenizer)))
    all_three = [
        [score.token_log_probs_T for score in pseudo_log_likelihoods(model, tokenizer, TEXTS[:2], pieces=pieces)]
        for pieces in ("original", "within-word-l2r", "whole-word")
    ]
    for original, *others in zip(*all_three, strict=True):
        for other in others:
            assert torch.equal(original, other) == (len(original) == 1)
    # The last piece of a word has nothing behind it, and its first sees nothing of it.
    words = text_tokens(tokenizer, TEXTS[0]).words
    original, within, whole = (scores[0] for scores in all_three)
    for place, word in enumerate(words):
        if word not in words[place + 1 :]:
            assert float(within[place]) == pytest.approx(float(original[place]), abs=1e-10)
        if word not in words[:place]:
            assert float(within[place]) == pytest.approx(float(whole[place]), abs=1e-10)


def test_passes_of_whole_words_are_one_a_word() -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(len(tokenizer)))
    rows: list[int] = []
    adapted = masked_model(model, tokenizer=tokenizer)
    model.register_forward_pre_hook(lambda _, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True)
    pseudo_log_likelihoods(adapted, tokenizer, ["dogged dogs see"], pieces="whole-word")
    assert sum(rows) == 3
    rows.clear()
    pseudo_log_likelihoods(adapted, tokenizer, ["dogged dogs see"])
    assert sum(rows) == 6


def test_no_pass_has_more_tokens_than_the_budget() -> None:
    tokenizer, given = piece_tokenizer(PIECES), []
    model = made(bert(len(tokenizer), max_position_embeddings=32))
    model.register_forward_pre_hook(lambda _, args, kwargs: given.append(kwargs["input_ids"].numel()), with_kwargs=True)
    pseudo_log_likelihoods(model, tokenizer, TEXTS * 3, max_tokens=50)
    assert max(given) <= 50
    causal, given_too = made(causal_model(len(tokenizer))), []
    causal.register_forward_pre_hook(
        lambda _, args, kwargs: given_too.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    score_texts(causal, tokenizer, TEXTS * 3, settings=ScoringSettings(max_tokens=50))
    assert max(given_too) <= 50 and len(given_too) < 12


# ---- Words and characters -------------------------------------------------------------------------------------------


def test_words_have_their_characters_and_sums() -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(len(tokenizer)))
    text = "  The dogsged   cat."
    (score,) = pseudo_log_likelihoods(model, tokenizer, [text])
    words = score.words(text)
    assert [word.word for word in words] == ["The", "dogsged", "cat", "."]
    assert all(text[word.start : word.end] == word.word for word in words)
    values = score.token_log_probs_T.tolist()
    sums = [values[0], math.fsum(values[1:5]), values[5], values[6]]
    assert [word.log_prob for word in words] == pytest.approx(sums)
    (blanks,) = score_texts(model, tokenizer, [text], settings=ScoringSettings(words="blanks"))
    assert [word.word for word in blanks.words(text)] == ["The", "dogsged", "cat."]


def test_bits_are_nats_divided_by_the_logarithm_of_two() -> None:
    tokenizer = piece_tokenizer(PIECES)
    (score,) = pseudo_log_likelihoods(made(bert(len(tokenizer))), tokenizer, ["the dogs"])
    nats, bits = score.record("nats"), score.record("bits")
    assert (nats["unit"], bits["unit"]) == ("nats", "bits")
    assert bits["log_prob"] == pytest.approx(score.log_prob / math.log(2), abs=1e-4)
    assert bits["words"][0]["surprisal"] == pytest.approx(-float(score.token_log_probs_T[0]) / math.log(2), abs=1e-4)
    assert nats["pseudo_perplexity"] == bits["pseudo_perplexity"]
    rows = score.rows("bits", text="the dogs")
    assert [row["token"] for row in rows] == ["the", "dog", "##s"] and [row["word"] for row in rows] == [0, 1, 1]
    assert [(row["start"], row["end"]) for row in rows] == [(0, 3), (4, 7), (7, 8)]
    assert math.fsum(row["surprisal"] for row in rows) == pytest.approx(-score.log_prob / math.log(2))


def test_byte_pairs_leave_their_blanks_out() -> None:
    tokenizer = byte_tokenizer()
    text = "the  cat sées"
    tokens = text_tokens(tokenizer, text)
    parts = [text[span[0] : span[1]] for span in tokens.spans if span is not None]
    assert "cat" in parts and not any(part.strip() != part for part in parts if part.strip())


def test_residues_are_words_of_their_own(tmp_path: Path) -> None:
    """A slow tokenizer that sets its tokens apart: nothing but a residue is masked."""
    tokenizer, model = esm_tokenizer(tmp_path), made(esm(33, mask_id=32))
    scores = [
        pseudo_log_likelihoods(model, tokenizer, ["MKTWLG"], pieces=pieces) for pieces in ("original", "whole-word")
    ]
    assert torch.equal(scores[0][0].token_log_probs_T, scores[1][0].token_log_probs_T)
    assert scores[0][0].spans == tuple((place, place + 1) for place in range(6))


def test_a_tokenizer_without_word_ids_splits_words_at_blanks() -> None:
    core = Tokenizer(models.WordLevel({"[UNK]": 0, "[MASK]": 1, "a": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    parted = transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", mask_token="[MASK]")
    assert text_tokens(parted, "a zebra a").words == (0, 1, 2)
    assert text_tokens(parted, "a zebra a").spans == ((0, 1), (2, 7), (8, 9))


# ---- What is given --------------------------------------------------------------------------------------------------


def test_a_prefix_is_seen_and_not_scored() -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(len(tokenizer), max_position_embeddings=32))
    (score,) = score_texts(model, tokenizer, ["dogsged cat."], prefixes=["the cats see"])
    expected = log_probs_of_masks(model, tokenizer, "the cats see dogsged cat.", "within-word-l2r")
    assert score.token_log_probs_T.tolist() == pytest.approx(expected[4:], abs=1e-10)
    assert score.tokens[0] == "dog" and score.spans[0] == (0, 3) and score.words(score.text)[1].word == "cat"


@pytest.mark.parametrize("prefix", ["", "the cats see"])
def test_a_suffix_is_seen_and_not_scored(prefix: str) -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(len(tokenizer), max_position_embeddings=32))
    (score,) = score_texts(model, tokenizer, ["dogsged cat"], prefixes=[prefix], suffixes=["sees the dogs."])
    whole = f"{prefix} dogsged cat sees the dogs.".strip()
    expected = log_probs_of_masks(model, tokenizer, whole, "within-word-l2r")
    given = 4 if prefix else 0
    assert score.token_log_probs_T.tolist() == pytest.approx(expected[given : given + 5], abs=1e-10)
    assert score.tokens == ("dog", "##s", "##ge", "##d", "cat") and score.spans[-1] == (8, 11)
    assert score.record()["suffix"] == "sees the dogs." and score.words(score.text)[1].word == "cat"
    settings = ScoringSettings(bound=4)
    bounds = [
        score_texts(model, tokenizer, ["dogsged cat"], suffixes=[suffix], settings=settings)[0].lower_bound
        for suffix in ("", "sees")
    ]
    assert bounds[0] != bounds[1]


def test_a_prefix_of_a_slow_tokenizer(tmp_path: Path) -> None:
    tokenizer, model = esm_tokenizer(tmp_path), made(esm(33, mask_id=32))
    (whole,) = pseudo_log_likelihoods(model, tokenizer, ["MKTWLG"])
    settings = ScoringSettings(separator="")
    (score,) = score_texts(model, tokenizer, ["WLG"], prefixes=["MKT"], settings=settings)
    assert score.token_log_probs_T.tolist() == pytest.approx(whole.token_log_probs_T.tolist()[3:], abs=1e-10)
    (score,) = score_texts(model, tokenizer, ["KT"], prefixes=["M"], suffixes=["WLG"], settings=settings)
    assert score.token_log_probs_T.tolist() == pytest.approx(whole.token_log_probs_T.tolist()[1:3], abs=1e-10)


# ---- From left to right ---------------------------------------------------------------------------------------------


def causal_model(vocab_size: int, *, n_positions: int = 64) -> Any:
    return gpt2(vocab_size, n_positions=n_positions, bos_token_id=2, eos_token_id=3)


def plain_tokenizer() -> Any:
    """Word pieces without special tokens around them, and a start and an end token, as GPT-2 has it."""
    tokenizer = piece_tokenizer(PIECES)
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.bos_token, tokenizer.eos_token = "[CLS]", "[SEP]"
    return tokenizer


def log_probs_of_prefixes(model: Any, ids: list[int], first: int) -> list[float]:
    """A loop: log p(token | those before) from a forward pass of each prefix."""
    scores = []
    for place in range(first, len(ids)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[:place]])).logits
        scores.append(logits[0, -1].log_softmax(-1)[ids[place]].item())
    return scores


def test_a_causal_model_is_scored_from_left_to_right() -> None:
    tokenizer = plain_tokenizer()
    model = made(causal_model(len(tokenizer)))
    for max_tokens in (1, 30, 10_000):
        for score in score_texts(model, tokenizer, TEXTS, settings=ScoringSettings(max_tokens=max_tokens)):
            ids = [2, *tokenizer(score.text)["input_ids"]]
            assert score.token_log_probs_T.tolist() == pytest.approx(log_probs_of_prefixes(model, ids, 1), abs=1e-10)
            record = score.record()
            assert record["perplexity"] == pytest.approx(math.exp(-score.mean_log_prob), rel=1e-3)
            assert "pseudo_perplexity" not in record
    (given,) = score_texts(model, tokenizer, TEXTS[:1], settings=ScoringSettings(start="none"))
    ids = tokenizer(TEXTS[0])["input_ids"]
    assert given.token_log_probs_T.tolist() == pytest.approx(log_probs_of_prefixes(model, ids, 1), abs=1e-10)
    assert given.tokens == tuple(tokenizer.convert_ids_to_tokens(ids[1:])) and given.spans[0] == (4, 7)
    (ended,) = score_texts(model, tokenizer, ["dogs"], settings=ScoringSettings(end=True))
    ids = [2, *tokenizer("dogs")["input_ids"], 3]
    assert ended.token_log_probs_T.tolist() == pytest.approx(log_probs_of_prefixes(model, ids, 1), abs=1e-10)
    assert ended.tokens[-1] == "[SEP]"
    tokenizer.unk_token = "[SEP]"  # GPT-2 has one token for both
    assert score_texts(model, tokenizer, ["dogs"], settings=ScoringSettings(end=True))[0].num_unknown == 0
    tokenizer.unk_token = "[UNK]"
    (behind,) = score_texts(model, tokenizer, ["dogs"], prefixes=["the cat"])
    ids = [2, *tokenizer("the cat dogs")["input_ids"]]
    assert behind.token_log_probs_T.tolist() == pytest.approx(log_probs_of_prefixes(model, ids, 3), abs=1e-10)
    assert [word.word for word in behind.words("dogs")] == ["dogs"]


# The blank before it is a part of a token, or a token; a blank at the end may be several tokens.
@pytest.mark.parametrize("text", ["dog", "日本", "dog\u202f", "\u00a0", "dog \u3000"])
def test_prefix_and_text_have_the_score_of_both_together(text: str) -> None:
    tokenizer = byte_tokenizer()
    model = made(causal_model(len(tokenizer)))
    whole, prefix = score_texts(model, tokenizer, [f"the cat {text}", "the cat"])
    (after,) = score_texts(model, tokenizer, [text], prefixes=["the cat"])
    assert prefix.log_prob + after.log_prob == pytest.approx(whole.log_prob, abs=1e-10)


def test_words_have_no_blanks_around_them() -> None:
    tokens = TokenScores(("dog", "▁", "s"), torch.zeros(3), words_T=(0, 0, 1), spans=((0, 3), (4, 4), (4, 5)))
    assert [(word.word, word.start, word.end) for word in tokens.words("dog s")] == [("dog", 0, 3), ("s", 4, 5)]


@pytest.mark.parametrize("text", ["a \u00a0 b", "a\u00a0b", "a  b", " \u3000a \n b", "a b \u2009", "  a"])
def test_blanks_of_any_kind_are_no_words(text: str) -> None:
    tokenizer = byte_tokenizer()
    (score,) = score_texts(
        made(causal_model(len(tokenizer))),
        tokenizer,
        [text],
        prefixes=["the"],
        settings=ScoringSettings(words="blanks"),
    )
    expected = [(found[0], *found.span()) for found in re.finditer(r"\S+", text)]
    assert [(word.word, word.start, word.end) for word in score.words(text)] == expected


BLANKS = {  # texts after "a cat", and their tokens there
    "line": ("dog\n", "", ["Ġdog", "Ċ"]),
    "nothing but a line": ("\n", "", ["Ġ", "Ċ"]),  # with the blank between
    "blank": ("dog ", "sees", ["Ġdog", "Ġ"]),
    "both": ("dog \n", "a", ["Ġdog", "Ġ", "Ċ"]),
}


@pytest.mark.parametrize("name", BLANKS)
def test_blanks_at_the_end_of_a_text_are_scored_in_its_context(name: str) -> None:
    text, suffix, own = BLANKS[name]
    tokenizer = byte_tokenizer()
    joined = f"a cat {text} {suffix}" if suffix else f"a cat {text}"
    first = next(n for n in range(12) if tokenizer.tokenize(joined)[n : n + len(own)] == own)
    if suffix:
        model = made(roberta(len(tokenizer), max_position_embeddings=40))
        expected = log_probs_of_masks(model, tokenizer, joined, "within-word-l2r")[first : first + len(own)]
    else:
        model = made(causal_model(len(tokenizer)))
        ids = tokenizer(joined)["input_ids"][:-1]
        expected = log_probs_of_prefixes(model, ids, 1)[first:]
    (score,) = score_texts(model, tokenizer, [text], prefixes=["a cat"], suffixes=[suffix])
    assert list(score.tokens) == own
    assert score.token_log_probs_T.tolist() == pytest.approx(expected, abs=1e-10)
    assert all(span is not None and 0 <= span[0] <= span[1] <= len(text) for span in score.spans)


def bart(vocab_size: int, **options: Any) -> Any:
    config = transformers.BartConfig(
        vocab_size=vocab_size, d_model=16, encoder_ffn_dim=24, decoder_ffn_dim=24, pad_token_id=0, bos_token_id=2,
        eos_token_id=3, decoder_start_token_id=3, forced_bos_token_id=None, forced_eos_token_id=None, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, **options,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_an_encoder_decoder_is_scored_given_its_source(kind: str) -> None:
    tokenizer = piece_tokenizer(PIECES)
    size = len(tokenizer)
    if kind == "bart":
        model = made(bart(size))
    else:
        config = transformers.T5Config(
            vocab_size=size, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, pad_token_id=0, eos_token_id=3,
            decoder_start_token_id=0,
        )  # fmt: skip
        model = made(transformers.T5ForConditionalGeneration(config))
    tokenizer.eos_token = "[SEP]"
    sources = ["the cat", "", "dogsged dogs see", "see"]
    start = model.generation_config.decoder_start_token_id
    for max_tokens in (1, 10_000):
        settings = ScoringSettings(max_tokens=max_tokens, end=True)
        for score in score_texts(model, tokenizer, TEXTS, prefixes=sources, settings=settings):
            source = torch.tensor([tokenizer(score.prefix)["input_ids"]])
            # The tokenizer puts [CLS] before what is written too.
            fed = [start, *tokenizer(score.text)["input_ids"]]
            expected = []
            for place in range(2, len(fed)):
                with torch.no_grad():
                    logits = model(input_ids=source, decoder_input_ids=torch.tensor([fed[:place]])).logits
                expected.append(logits[0, -1].log_softmax(-1)[fed[place]].item())
            assert score.token_log_probs_T.tolist() == pytest.approx(expected, abs=1e-9)
    model.generation_config.eos_token_id = [3, 5]  # scoring chooses no end
    (blank,) = score_texts(model, tokenizer, TEXTS[:1])
    (empty,) = score_texts(model, tokenizer, TEXTS[:1], prefixes=[""])
    assert blank.log_prob == empty.log_prob


# ---- Recorded -------------------------------------------------------------------------------------------------------

RECORDED = ["The dogsged cats.", "see the dogs"]
SOURCES = ["the cats see", "see"]
METRICS: dict[str, Any] = {"within-word-l2r": "within_word_l2r", "original": "original"}
# What minicons 0.3.39 gives, as `numbers_of_minicons` has it where the package is installed.
MINICONS: dict[str, Any] = {
    "within-word-l2r": [
        [-3.77889, -2.538198, -3.782736, -1.346808, -2.089643, -2.882819, -3.347929, -2.834913],
        [-3.992268, -3.633047, -5.916198, -4.164308],
    ],
    "original": [
        [-3.77889, -2.554691, -3.869939, -1.355856, -2.089643, -4.725375, -3.347929, -2.834913],
        [-3.992268, -3.633047, -5.921717, -4.164308],
    ],
    "surprisal in bits": [5.451786, 3.661846, 5.457334, 1.943033, 3.014718, 4.159029, 4.830041, 4.089915],
    "means": [-2.825242, -4.426455],
    "masked, given": -4.203467,
    "causal, without start": [
        [-25.371358, -29.555127, -29.800513, -23.489558, -12.713327, -2.111759, -0.538737],
        [-5.424552, -22.706178, -28.690172],
    ],
    "causal, with start": [
        [-28.526795, -22.401847, -28.559249, -6.881978, -21.599674, -31.02639, -29.377026, -11.417216],
        [-27.456022, -3.235656, -19.098968, -0.591002],
    ],
    "causal, given": -3.972531,
    "causal, words": [[-28.526795, -79.442751, -71.82063], [-27.456022, -3.235656, -19.689971]],
    "encoder-decoder, given": [
        [-3.349322, -3.834743, -2.349864, -1.731585, -1.674783, -1.572554, -1.999804, -3.125618],
        [-4.021966, -2.976508, -5.115117, -4.042288],
    ],
}
# Of minicons, which keeps its scores in float32.
ROUNDING = 1e-5


def by_formula(model: Any) -> Any:
    """Weights that are the same everywhere: sines of their places."""
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            if parameter.dim() > 1:
                numbers = torch.arange(parameter.numel(), dtype=torch.float64) * (0.7 + 0.01 * place) + place
                parameter.copy_(numbers.sin().mul(1.5).view(parameter.shape))
    return model.double().eval()


def numbers_of_minicons() -> dict[str, Any]:
    """The recorded numbers anew; batch_encode_plus, which transformers 5 has no longer, is the tokenizer's call."""
    scorer = pytest.importorskip("minicons.scorer")

    def answering(tokenizer: Any) -> Any:
        tokenizer.batch_encode_plus = tokenizer.__call__
        return tokenizer

    def scores(rows: Any, first: int = 0) -> list[list[float]]:
        return [[float(score) for _, score in row[first:]] for row in rows]

    tokenizer = answering(piece_tokenizer(PIECES))
    masked = scorer.MaskedLMScorer(by_formula(bert(len(tokenizer))), "cpu", tokenizer=tokenizer)
    numbers: dict[str, Any] = {
        pieces: scores(masked.token_score(RECORDED, PLL_metric=metric)) for pieces, metric in METRICS.items()
    }
    l2r: dict[str, Any] = {"PLL_metric": METRICS["within-word-l2r"]}
    bits = masked.token_score(RECORDED[:1], surprisal=True, base_two=True, **l2r)
    numbers |= {"surprisal in bits": scores(bits)[0], "means": masked.sequence_score(RECORDED, **l2r)}
    numbers["masked, given"] = masked.conditional_score(["the cats see"], ["dogs ."], **l2r)[0]
    tokenizer = answering(plain_tokenizer())
    causal = scorer.IncrementalLMScorer(by_formula(causal_model(len(tokenizer))), "cpu", tokenizer=tokenizer)
    numbers["causal, without start"] = scores(causal.token_score(RECORDED), 1)
    numbers["causal, with start"] = scores(causal.token_score(RECORDED, bos_token=True), 1)
    numbers["causal, given"] = causal.conditional_score(["the cats see"], ["dogs ."])[0]
    by_blanks: dict[str, Any] = {"tokenize_function": str.split, "bos_token": True}
    numbers["causal, words"] = scores(causal.word_score_tokenized(RECORDED, **by_blanks))
    seq2seq = scorer.Seq2SeqScorer(by_formula(bart(len(tokenizer))), "cpu", tokenizer=tokenizer)
    numbers["encoder-decoder, given"] = scores(seq2seq.conditional_token_score(SOURCES, RECORDED), 1)
    return numbers


def test_the_recorded_numbers_are_those_of_minicons() -> None:
    numbers = numbers_of_minicons()
    assert list(numbers) == list(MINICONS)
    for name, recorded in MINICONS.items():
        rows = zip(numbers[name], recorded, strict=True) if isinstance(recorded, list) else [(numbers[name], recorded)]
        for number, expected in rows:
            assert number == pytest.approx(expected, abs=ROUNDING)


def test_scores_are_the_recorded_numbers() -> None:
    tokenizer = piece_tokenizer(PIECES)
    masked = by_formula(bert(len(tokenizer)))
    for pieces in ("within-word-l2r", "original"):
        scores = score_texts(masked, tokenizer, RECORDED, settings=ScoringSettings(pieces=pieces))
        for score, recorded in zip(scores, MINICONS[pieces], strict=True):
            assert score.token_log_probs_T.tolist() == pytest.approx(recorded, abs=ROUNDING)
    scores = score_texts(masked, tokenizer, RECORDED)
    assert [score.mean_log_prob for score in scores] == pytest.approx(MINICONS["means"], abs=ROUNDING)
    bits = [row["surprisal"] for row in scores[0].rows("bits")]
    assert bits == pytest.approx(MINICONS["surprisal in bits"], abs=ROUNDING)
    (given,) = score_texts(masked, tokenizer, ["dogs ."], prefixes=["the cats see"])
    assert given.mean_log_prob == pytest.approx(MINICONS["masked, given"], abs=ROUNDING)
    tokenizer = plain_tokenizer()
    causal = by_formula(causal_model(len(tokenizer)))
    for start, name in (("none", "causal, without start"), ("token", "causal, with start")):
        found = score_texts(causal, tokenizer, RECORDED, settings=ScoringSettings(start=start))
        for score, recorded in zip(found, MINICONS[name], strict=True):
            assert score.token_log_probs_T.tolist() == pytest.approx(recorded, abs=ROUNDING)
    settings = ScoringSettings(start="none")
    (given,) = score_texts(causal, tokenizer, ["dogs ."], prefixes=["the cats see"], settings=settings)
    assert given.mean_log_prob == pytest.approx(MINICONS["causal, given"], abs=ROUNDING)
    scores = score_texts(causal, tokenizer, RECORDED, settings=ScoringSettings(words="blanks"))
    for score, recorded in zip(scores, MINICONS["causal, words"], strict=True):
        assert [word.log_prob for word in score.words()] == pytest.approx(recorded, abs=ROUNDING)
    scores = score_texts(by_formula(bart(len(tokenizer))), tokenizer, RECORDED, prefixes=SOURCES)
    for score, recorded in zip(scores, MINICONS["encoder-decoder, given"], strict=True):
        assert score.token_log_probs_T.tolist() == pytest.approx(recorded, abs=ROUNDING)


# ---- Windows --------------------------------------------------------------------------------------------------------


def test_a_masked_model_sees_a_window_around_each_token() -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(len(tokenizer), max_position_embeddings=8))
    words = ["the", "dog", "see", "cat", "the", "see", "dog", "dog", "cat", ".", "the"]
    (score,) = pseudo_log_likelihoods(model, tokenizer, [" ".join(words)])
    expected = []
    for place in range(len(words)):
        start = min(max(place - 3, 0), len(words) - 6)
        expected.append(
            log_probs_of_masks(model, tokenizer, " ".join(words[start : start + 6]), "original")[place - start]
        )
    assert score.token_log_probs_T.tolist() == pytest.approx(expected, abs=1e-10)
    assert score.num_windows == 6 and score.record()["windows"] == 6
    (short,) = pseudo_log_likelihoods(model, tokenizer, ["the dog"])
    assert short.num_windows == 0 and "windows" not in short.record()


def test_a_causal_model_reads_windows_that_overlap_by_half() -> None:
    tokenizer = plain_tokenizer()
    model = made(causal_model(len(tokenizer), n_positions=7))
    ids = tokenizer("the dog see cat the see dog dog cat . the")["input_ids"]
    (score,) = score_texts(model, tokenizer, [tokenizer.decode(ids)])
    expected = []
    for place in range(len(ids)):
        # Six tokens beside the start token; the first window, then those that begin three further.
        start = 0 if place < 6 else 3 * ((place - 6) // 3 + 1)
        expected += log_probs_of_prefixes(model, [2, *ids[start : place + 1]], place - start + 1)
    assert score.token_log_probs_T.tolist() == pytest.approx(expected, abs=1e-10)
    assert score.num_windows == 3


def test_a_decoder_reads_windows_that_overlap_by_half_and_the_whole_source() -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bart(len(tokenizer), max_position_embeddings=8))
    tokenizer.eos_token = "[SEP]"
    text, source = "the dog see cat the see dog dog cat . the", "the cat"
    # Beside the start token and [CLS] six; the end token is scored too.
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], 3]
    (score,) = score_texts(model, tokenizer, [text], prefixes=[source], settings=ScoringSettings(end=True))
    encoded, expected = torch.tensor([tokenizer(source)["input_ids"]]), []
    for place in range(len(ids)):
        start = 0 if place < 6 else 3 * ((place - 6) // 3 + 1)
        fed = [3, 2, *ids[start:place]]
        with torch.no_grad():
            logits = model(input_ids=encoded, decoder_input_ids=torch.tensor([fed])).logits
        expected.append(logits[0, -1].log_softmax(-1)[ids[place]].item())
    assert score.token_log_probs_T.tolist() == pytest.approx(expected, abs=1e-9)
    assert score.num_windows == 3
    with pytest.raises(
        InputError, match=r"a source has 13 tokens, and the model has 8 positions; .*not read in windows"
    ):
        score_texts(model, tokenizer, ["see"], prefixes=[text])


def test_a_smaller_window_can_be_asked_for() -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(len(tokenizer)))
    (score,) = score_texts(model, tokenizer, ["the dog see cat"], settings=ScoringSettings(window=2))
    assert score.num_windows == 3


# ---- Bounds ---------------------------------------------------------------------------------------------------------


def exact_bound(model: Any, tokenizer: Any, prefix: str, text: str) -> float:
    """The sum over all 2^T masks of the text, each in a pass of its own."""
    given = len(tokenizer(prefix, add_special_tokens=False)["input_ids"])
    ids = tokenizer(f"{prefix} {text}")["input_ids"]
    places = range(1 + given, len(ids) - 1)
    total = 0.0
    for size in range(1, len(places) + 1):
        for masked in itertools.combinations(places, size):
            seen = [4 if place in masked else token for place, token in enumerate(ids)]
            with torch.no_grad():
                log_probs = model(input_ids=torch.tensor([seen])).logits[0].log_softmax(-1)
            value = math.fsum(log_probs[place, ids[place]].item() for place in masked)
            total += value / (size * math.comb(len(places), size))
    return total


@pytest.mark.parametrize("prefix", quick(["", "the cats"], "the cats"))
def test_bounds_are_near_those_of_all_masks(prefix: str) -> None:
    tokenizer = piece_tokenizer(PIECES)
    model = made(bert(len(tokenizer)), scale=4.0)
    text = "dogs see the ."
    settings = [ScoringSettings(bound=10, seed=seed) for seed in range(60)]
    values = [
        score_texts(model, tokenizer, [text], prefixes=[prefix], settings=each)[0].lower_bound for each in settings
    ]
    values_N = torch.tensor([value for value in values if value is not None])
    assert len(values_N) == 60
    error = float(values_N.std()) / math.sqrt(60)
    assert error > 0 and abs(float(values_N.mean()) - exact_bound(model, tokenizer, prefix, text)) < 4 * error
    again, among = (
        score_texts(model, tokenizer, texts, settings=settings[0])[-1].lower_bound
        for texts in ([text], ["see", "the cat", text])
    )
    assert again == pytest.approx(among, abs=1e-9)


# ---- What cannot be -------------------------------------------------------------------------------------------------


def broken(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.data.fill_(math.nan)
    return model


def grasping_tokenizer() -> Any:
    """A token that takes the blanks after it."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(AddedToken("<x>", rstrip=True))
    return tokenizer


BAD: dict[str, tuple[Any, str]] = {
    "not a number": (
        lambda m, t: score_texts(broken(m), t, ["see"], settings=ScoringSettings()),
        "the model's scores of 'see' are not numbers; check its weights",
    ),
    "prefixes": (lambda m, t: score_texts(m, t, ["a", "b"], prefixes=["c"]), "1 prefixes for 2 texts"),
    "mask": (lambda m, t: score_texts(m, t, ["see"], prefixes=["a [MASK]"]), r"text 1: .* mask token \[MASK\]"),
    "empty": (lambda m, t: score_texts(m, t, ["see", ""]), "text 2: the text has no token; fill it in or drop it"),
    "end": (
        lambda m, t: score_texts(m, t, ["see"], settings=ScoringSettings(end=True)),
        "end: has no effect under a model that is masked; leave it out, or score under a model that is causal or enc",
    ),
    "start": (
        lambda m, t: score_texts(made(bart(13)), t, ["see"], settings=ScoringSettings(start="none")),
        "start: has no effect under a model that is encoder-decoder; leave it out, or score under a model that is caus",
    ),
    "separator": (
        lambda m, t: score_texts(made(bart(13)), t, ["see"], settings=ScoringSettings(separator="_")),
        "separator: has no effect under a model that is encoder-decoder; leave it out, or score under a model that is",
    ),
    "surrogate": (
        lambda m, t: score_texts(m, t, ["see", "a \ud83d cat"]),
        "text 2: character 3 of a text is half of a surrogate pair; drop the lone surrogate",
    ),
    "surrogate in a source": (
        lambda m, t: score_texts(made(bart(13)), t, ["see"], prefixes=["\ud83d"]),
        "text 1: character 1 of a text is half of a surrogate pair",
    ),
    "swallowed": (
        lambda m, t: score_texts(made(causal_model(291)), grasping_tokenizer(), ["\n"], prefixes=["<x>"]),
        "text 1: between its prefix and suffix, the text has no token; fill it in or drop it",
    ),
    "training": (lambda m, t: score_texts(m.train(), t, ["see"]), "a model is in training mode"),
    "first": (
        lambda m, t: score_texts(
            made(causal_model(13)), plain_tokenizer(), ["see"], settings=ScoringSettings(start="none")
        ),
        "text 1: the only token of the text is the first, which is not scored",
    ),
    "suffix": (
        lambda m, t: score_texts(made(causal_model(13)), plain_tokenizer(), ["see"], suffixes=["cat"]),
        "text 1: suffix: a model that reads from left to right does not see what comes after a text",
    ),
    "suffixes": (lambda m, t: score_texts(m, t, ["see"], suffixes=[]), "0 suffixes for 1 texts"),
    "bound": (
        lambda m, t: score_texts(made(causal_model(13)), plain_tokenizer(), ["see"], settings=ScoringSettings(bound=1)),
        "bound: a left-to-right model has exact log-probabilities",
    ),
    "long bound": (
        lambda m, t: score_texts(m, t, ["see " * 13], settings=ScoringSettings(bound=1)),
        "text 1: bound: a text has 13 tokens, and the model has room for 12",
    ),
    "pieces": (lambda m, t: ScoringSettings(pieces="whole"), "pieces must be one of within-word-l2r, whole-word, "),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_invalid_calls_are_refused(name: str) -> None:
    call, problem = BAD[name]
    tokenizer = piece_tokenizer(PIECES)
    with pytest.raises(InputError, match=problem):
        call(made(bert(len(tokenizer))), tokenizer)


def test_unknown_words_are_counted() -> None:
    (score,) = pseudo_log_likelihoods(made(bert()), word_tokenizer(), ["a zebra runs"])
    assert score.num_unknown == 1 and score.record()["unknown"] == 1 and score.words(score.text)[1].word == "zebra"


def test_byte_pairs_of_a_masked_model_are_those_of_a_loop() -> None:
    tokenizer = byte_tokenizer()
    model = made(roberta(len(tokenizer), max_position_embeddings=40))
    (score,) = pseudo_log_likelihoods(model, tokenizer, ["the dingo sées"])
    expected = log_probs_of_masks(model, tokenizer, "the dingo sées", "within-word-l2r")
    assert score.token_log_probs_T.tolist() == pytest.approx(expected, abs=1e-10)
    assert [word.word for word in score.words(score.text)] == ["the", "dingo", "sées"]


@pytest.mark.parametrize("words", ["tokenizer", "blanks"])
@pytest.mark.parametrize("text", [" the  dög", "это дом", "日本 語", "a это b", "a öde", "one", "a "])
def test_words_of_bytes_are_separated_by_blanks(words: Any, text: str) -> None:
    """A byte of a character of several decodes to nothing by itself; blanks belong to the word before them."""
    tokens = text_tokens(transformers.ByT5Tokenizer(), text, words=words)
    lengths = [len(word.encode()) for word in re.findall(r"^\s*\S+\s*|\S+\s*", text)]
    assert tokens.words == tuple(number for number, length in enumerate(lengths) for _ in range(length))
