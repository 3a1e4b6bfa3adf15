"""Scorer and seqwise score: masked, causal and encoder-decoder models, pairs, prefixes, windows, refusals."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from command_line import Command
from pretrained import bert, made, piece_tokenizer, saved
from seqwise import InputError
from seqwise.evaluation.minimal_pairs import PairScore, pair_accuracies, wilson_interval
from seqwise.hugging_face import score_texts
from seqwise.runs import Scorer, load_run, new_run, train_settings

PIECES = ["the", "dog", "##s", "##ge", "##d", "see", "cat", "."]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def left_to_right(kind: str) -> tuple[Any, Any]:
    tokenizer = piece_tokenizer(PIECES)
    tokenizer.bos_token, tokenizer.eos_token = "[CLS]", "[SEP]"
    sizes = {"vocab_size": len(tokenizer), "bos_token_id": 2, "eos_token_id": 3}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=12, **sizes)
        return transformers.GPT2LMHeadModel(config), tokenizer
    if kind == "llama":
        config = transformers.LlamaConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, **sizes
        )
        return transformers.LlamaForCausalLM(config), tokenizer
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, pad_token_id=0, decoder_start_token_id=0, **sizes
    )
    return transformers.T5ForConditionalGeneration(config), tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(0)
    home = tmp_path_factory.mktemp("models")
    tokenizer = piece_tokenizer(PIECES)
    models = {"bert": (bert(len(tokenizer), max_position_embeddings=12), tokenizer)}
    models |= {kind: left_to_right(kind) for kind in ("gpt2", "llama", "t5")}
    return {
        kind: saved(home / kind, made(model, dtype=torch.float32, scale=2.0), its)
        for kind, (model, its) in models.items()
    }


KINDS = {"bert": "masked", "gpt2": "causal", "llama": "causal", "t5": "encoder-decoder"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_scored_as_its_model_is(
    seqwise: Command, folders: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    texts, prefixes = ["the dogs see", "dogged cats ."], ["the cat .", "see"]
    scorer = Scorer(folders[kind])
    assert scorer.kind == KINDS[kind]
    loaders = {"bert": transformers.AutoModelForMaskedLM, "t5": transformers.AutoModelForSeq2SeqLM}
    model = loaders.get(kind, transformers.AutoModelForCausalLM).from_pretrained(folders[kind]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[kind])
    expected = score_texts(model, tokenizer, texts, prefixes=prefixes)
    for found in (scorer.score(texts, prefixes), Scorer(model, tokenizer).score(texts, prefixes)):
        for score, other in zip(found, expected, strict=True):
            assert score.tokens == other.tokens and score.spans == other.spans
            assert score.token_log_probs_T.tolist() == pytest.approx(other.token_log_probs_T.tolist(), abs=1e-5)
    lines = [json.dumps({"text": text, "prefix": prefix}) for text, prefix in zip(texts, prefixes, strict=True)]
    as_json = seqwise("score", folders[kind], write(tmp_path / "some.jsonl", "\n".join(lines) + "\n"))
    table = "".join(f"{prefix}\t{text}\n" for text, prefix in zip(texts, prefixes, strict=True))
    as_table = seqwise("score", folders[kind], write(tmp_path / "some.tsv", table))
    assert as_json.records == as_table.records
    for record, score in zip(as_json.records, expected, strict=True):
        assert record["log_prob"] == pytest.approx(score.log_prob, abs=1e-3) and record["prefix"] == score.prefix
        assert [word["word"] for word in record["words"]] == score.text.split()
        surprisals = [word["surprisal"] for word in record["words"]]
        assert math.fsum(surprisals) == pytest.approx(-score.log_prob, abs=1e-3)
    measure = "pseudo-perplexity" if kind == "bert" else "perplexity"
    assert f" tokens: {measure} " in as_json.err


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_run_that_writes_text_is_scored_as_its_model_is(folders: dict[str, Path], kind: str) -> None:
    """In memory, as its folder is."""
    run = new_run([], train_settings(model=str(folders[kind])))
    (found,), (expected,) = (Scorer(model).score(["the dogs see"], ["the cat ."]) for model in (run, folders[kind]))
    assert found.tokens == expected.tokens
    torch.testing.assert_close(found.token_log_probs_T, expected.token_log_probs_T)


def test_suffixes_are_read_from_a_file(seqwise: Command, folders: dict[str, Path], tmp_path: Path) -> None:
    table = seqwise("score", folders["bert"], write(tmp_path / "gaps.tsv", "the\tdogs see\tthe cat .\nthe\tdogs\n"))
    row = {"prefix": "the", "text": "dogs see", "suffix": "the cat ."}
    as_json = seqwise("score", folders["bert"], write(tmp_path / "gaps.jsonl", json.dumps(row) + "\n"))
    scorer = Scorer(folders["bert"])
    expected = [*scorer.score(["dogs see"], ["the"], ["the cat ."]), *scorer.score(["dogs"], ["the"])]
    assert [record["log_prob"] for record in table.records] == pytest.approx([s.log_prob for s in expected], abs=1e-3)
    assert table.records[0]["suffix"] == "the cat ." and "suffix" not in table.records[1]
    assert as_json.records[0]["log_prob"] == table.records[0]["log_prob"]
    assert scorer.token_scores(["see"], suffixes=["cat"]) != scorer.token_scores(["see"])
    complaint = seqwise("score", folders["gpt2"], tmp_path / "gaps.tsv").complaint
    assert "gaps.tsv:1: suffix: a model that reads from left to right" in complaint


def test_compressed_files_are_read_in_the_same_format(
    seqwise: Command, folders: dict[str, Path], tmp_path: Path
) -> None:
    row = {"prefix": "the", "text": "dogs see", "sentence_good": "the cat", "sentence_bad": "cat the", "UID": "order"}
    for name, text in {"rows.jsonl": json.dumps(row) + "\n", "rows.tsv": "the\tdogs see\n"}.items():
        plain, compressed = write(tmp_path / name, text), tmp_path / f"{name}.gz"
        compressed.write_bytes(gzip.compress(text.encode()))
        for options in [[], ["--pairs"], *([["--pairs", "--category", "UID"]] if name == "rows.jsonl" else [])]:
            ended = [seqwise("score", folders["bert"], path, *options) for path in (plain, compressed)]
            assert ended[0].records == ended[1].records


def test_texts_may_be_any_iterable_and_malformed_pairs_are_refused(folders: dict[str, Path]) -> None:
    scorer = Scorer(folders["bert"])
    texts = ["the dogs", "a cat"]
    assert [one.log_prob for one in scorer.score(iter(texts))] == [one.log_prob for one in scorer.score(texts)]
    for pair in (("the dogs",), "ab", ("a", "b", "c", "d", "e", "f")):
        with pytest.raises(InputError, match="pairs: number 2 is "):
            scorer.score_pairs([("the dogs", "a cat"), pair])
    for category in (3, float("nan"), None):  # as a data frame may have it
        with pytest.raises(InputError, match=f"pairs: number 2 has the category {category}, which is not a text"):
            scorer.score_pairs([("the dogs", "a cat", ""), ("the dogs", "a cat", category)])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_errors_name_the_number_of_the_text_or_the_pair(kind: str, folders: dict[str, Path]) -> None:
    scorer = Scorer(folders[kind])
    with pytest.raises(InputError, match=r"^text 3: the text has no token"):
        scorer.score(["a cat", "dogs see", ""])
    with pytest.raises(InputError, match=r"^pair 2: the text has no token"):
        scorer.score_pairs([("a cat", "the dogs"), ("a cat", "")])
    with pytest.raises(InputError, match=r"^pair 2: text 2: a text was expected, got NoneType"):
        scorer.score_pairs([("a cat", "the dogs"), ("a", None)])  # type: ignore[list-item]


def test_bounds_are_refused_for_pairs(folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="bound: pairs are compared by the log-prob"):
        Scorer(folders["bert"], bound=3).score_pairs([("the dogs", "a cat")])


def test_rows_are_ready_for_a_data_frame(folders: dict[str, Path]) -> None:
    scorer = Scorer(folders["gpt2"], unit="bits")
    rows = scorer.token_scores(["the dogs", "see"])
    assert [(row["text"], row["token"], row["word"]) for row in rows] == [
        (0, "the", 0), (0, "dog", 1), (0, "##s", 1), (1, "see", 0)
    ]  # fmt: skip
    whole = Scorer(folders["gpt2"]).score(["the dogs"])[0].log_prob
    assert math.fsum(row["log_prob"] for row in rows[:3]) == pytest.approx(whole / math.log(2))
    assert all(row["surprisal"] == -row["log_prob"] and row["unit"] == "bits" for row in rows)


PAIRS = [
    ("the dogs see .", "the dogs sees .", "agreement"),
    ("see the cat", "see the dog", "nouns"),
    ("cat dog", "dog the cat", "order"),
]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize("by", ["sum", "mean"])
def test_pairs_are_won_by_the_likelier_text(
    seqwise: Command, folders: dict[str, Path], tmp_path: Path, kind: str, by: str
) -> None:
    blimp = [{"sentence_good": good, "sentence_bad": bad, "UID": name, "field": "x"} for good, bad, name in PAIRS]
    as_json = write(tmp_path / "pairs.jsonl", "".join(json.dumps(line) + "\n" for line in blimp))
    as_table = write(tmp_path / "pairs.tsv", "".join("\t".join(pair) + "\n" for pair in PAIRS))
    ended = seqwise("score", folders[kind], as_json, "--pairs", "--by", by)
    assert ended.records == seqwise("score", folders[kind], as_table, "--pairs", "--by", by).records
    scorer = Scorer(folders[kind], by=by)
    won = 0
    for record, (good, bad, name), pair in zip(ended.records, PAIRS, scorer.score_pairs(PAIRS), strict=True):
        scores = [score.log_prob if by == "sum" else score.mean_log_prob for score in scorer.score([good, bad])]
        assert record["difference"] == pytest.approx(scores[0] - scores[1], abs=2e-4)
        assert record["category"] == name and record["unit"] == "nats" and record["by"] == by
        assert record["winner"] == pair.winner == ("good" if scores[0] > scores[1] else "bad")
        won += record["winner"] == "good"
    heading, *rows = ended.err.splitlines()
    assert [row.split()[0] for row in rows] == ["agreement", "nouns", "order", "all"] and "95% interval" in heading
    _, low, high = wilson_interval(won, 3)
    assert f"all {100 * won / 3:.1f} {100 * low:.1f} to {100 * high:.1f} 3 0 " in " ".join(rows[-1].split())


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("some.txt", ["--by", "mean"], "--by has no effect without --pairs; leave it out, or add --pairs"),
        ("some.txt", ["--category", "UID"], "--category has no effect without --pairs; leave it out, or add --pairs"),
        ("pairs.jsonl", ["--pairs", "--category", "field"], "pairs.jsonl: no pair has the key 'field'; check --cat"),
        ("pairs.tsv", ["--pairs", "--category", "UID"], "pairs.tsv: no pair has the key 'UID'; check --cat"),
    ],
)
def test_options_of_pairs_without_an_effect_are_refused(
    seqwise: Command, folders: dict[str, Path], tmp_path: Path, name: str, options: list[str], says: str
) -> None:
    texts = {"some.txt": "the cat\n", "pairs.tsv": "the cat\tcat\tagreement\n"}
    texts["pairs.jsonl"] = json.dumps({"sentence_good": "the cat", "sentence_bad": "cat", "UID": "agreement"})
    file = write(tmp_path / name, texts[name])
    assert seqwise("score", folders["bert"], file, *options).complaint.removeprefix(f"{tmp_path}/").startswith(says)


def test_pairs_are_scored_between_a_prefix_and_a_suffix(
    seqwise: Command, folders: dict[str, Path], tmp_path: Path
) -> None:
    row = {"sentence_good": "dogs see", "sentence_bad": "dogs sees", "prefix": "the", "suffix": "cat ."}
    path = write(tmp_path / "pairs.jsonl", json.dumps(row) + "\n")
    scorer = Scorer(folders["bert"])
    good, bad = scorer.score(["dogs see", "dogs sees"], ["the"] * 2, ["cat ."] * 2)
    (record,) = seqwise("score", folders["bert"], path, "--pairs").records
    (pair,) = scorer.score_pairs([("dogs see", "dogs sees", "", "the", "cat .")])
    assert record["difference"] == pytest.approx(pair.difference, abs=1e-5)
    assert pair.difference == pytest.approx(good.log_prob - bad.log_prob, abs=1e-5)
    (without,) = scorer.score_pairs([("dogs see", "dogs sees", "", "the")])
    assert abs(without.difference - pair.difference) > 1e-4
    complaint = seqwise("score", folders["gpt2"], path, "--pairs").complaint
    assert "pairs.jsonl:1: suffix: a model that reads from left to right" in complaint


def test_pairs_resume_where_they_were(seqwise: Command, folders: dict[str, Path], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.tsv", "".join("\t".join(pair) + "\n" for pair in PAIRS))
    command = ["score", folders["gpt2"], file, "--pairs", "--output", tmp_path / "scored.jsonl"]
    plain, kept = seqwise(*command[:4]), seqwise(*command)
    assert (tmp_path / "scored.jsonl").read_text() == plain.out and kept.err == plain.err


def test_the_interval_is_that_of_wilson() -> None:
    """The ends solve (p^ - p)^2 = z^2 p (1 - p) / n; where nothing or all is won they do not close up."""
    for successes, number in ((0, 10), (3, 10), (10, 10), (67, 100)):
        share, low, high = wilson_interval(successes, number)
        assert low < high
        for end in (low, high):
            if 0 < end < 1:
                assert (share - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / number, rel=1e-5)
    with pytest.raises(InputError, match="2 successes of 1 trials"):
        wilson_interval(2, 1)


def test_accuracies_count_ties_as_lost() -> None:
    scores = [(1.0, "a"), (2.0, "a"), (0.0, "a"), (-3.0, "b")]
    pairs = [PairScore("x", "y", name, value, 0.0, "bits", "sum") for value, name in scores]
    rows = {row.category: row for row in pair_accuracies(pairs)}
    assert list(rows) == ["a", "b", "all"]
    assert rows["a"].accuracy.value == pytest.approx(2 / 3) and rows["a"].num_ties == 1
    assert rows["all"].accuracy.value == 0.5 and rows["all"].mean_difference == 0.0


def test_long_texts_are_scored_in_windows_with_a_note(
    seqwise: Command, folders: dict[str, Path], tmp_path: Path
) -> None:
    file = write(tmp_path / "long.txt", "dog " * 20 + "\nsee\n")
    for kind in ("bert", "gpt2"):
        ended = seqwise("score", folders[kind], file)
        assert ended.err.rstrip().endswith("; 1 too long for the model, scored in windows")
        assert ended.records[0]["windows"] > 1 and "windows" not in ended.records[1]


def test_words_of_an_own_run_are_made_of_subwords(seqwise: Command, tmp_path: Path) -> None:
    text = "".join("the dogs see the catdog\nthe cats see a dogcat\n" for _ in range(20))
    file = write(tmp_path / "train.txt", text)
    sizes = ["--hidden-size=8", "--num-layers=1", "--feedforward-size=8", "--epochs=1", "--batch-size=4"]
    train = ["masked-model", "train", file, "--units=subwords", "--subword-vocabulary=20", *sizes]
    assert seqwise(*train, "--output", tmp_path / "run").code == 0
    few = write(tmp_path / "few.txt", "the catdog\n")
    record = seqwise("score", tmp_path / "run", few).records[0]
    assert [word["word"] for word in record["words"]] == ["the", "catdog"] and len(record["tokens"]) > 2
    run = load_run(tmp_path / "run")
    (score,) = Scorer(run, pieces="original").score_examples(run.codec.read(few))
    original = seqwise("score", tmp_path / "run", few, "--pieces=original").records[0]
    assert original["token_log_probs"] == pytest.approx(score.token_log_probs_T.tolist(), abs=1e-3)
    assert original["token_log_probs"] != record["token_log_probs"]
    assert Scorer(run).score(["the catdog"])[0].log_prob == pytest.approx(record["log_prob"], abs=1e-3)
    for name, said in {
        "end": "has no effect under a model that is masked",
        "bound": "is for",
        "window": "is for",
        "words": "is for",
        "separator": "is for",
        "seed": "has no effect without a bound; leave it out, or give --bound N",
    }.items():
        with pytest.raises(InputError, match=f"{name}: (it )?{said}"):
            Scorer(run, **{name: {"end": True, "words": "blanks", "separator": "_"}.get(name, 3)})


@pytest.mark.parametrize("kind", KINDS)
def test_proteins_of_a_fasta_file_are_scored_without_their_headers(
    seqwise: Command, folders: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    proteins = write(tmp_path / "some.fasta", ">P1 a protein\ndo\ngs\n>P2\nsedge\n")
    # The second one is unknown as one word, and so is written with blanks.
    texts = write(tmp_path / "some.txt", "dogs\ns e d g e\n")
    found, expected = (seqwise("score", folders[kind], file).records for file in (proteins, texts))
    assert [(one.pop("name"), one.pop("line")) for one in found] == [("P1", 2), ("P2", 5)]
    assert found == [{key: value for key, value in one.items() if key != "line"} for one in expected]


BAD = {
    "columns": ("a.tsv", "one\n", ["--pairs"], "a.tsv:1: 1 column; write sentence_good TAB sentence_bad or"),
    "no JSON": ("a.jsonl", "{\n", ["--pairs"], "a.jsonl:1: this is not JSON; write one object per line"),
    "no key": ("a.jsonl", '{"sentence_good": "a"}\n', ["--pairs"], "needs sentence_good and sentence_bad"),
    "no text": ("a.jsonl", '{"prefix": "a"}\n', [], "under 'text'; each object needs text"),
    "list": ("a.jsonl", "[1]\n", [], "a.jsonl:1: this is not a JSON object"),
    "empty side": ("a.tsv", "see\tdog\nsee\t \n", ["--pairs"], "a.tsv:2: the text has no token"),
    "tab": ("a.txt", "a\tb\n", [], "a.txt:1: a tab in a sequence; give one text per line; seqwise score reads prefix"),
    "mask": ("a.tsv", "see\t[MASK]\n", [], "a.tsv:1: the text contains the mask token [MASK]"),
    "pieces": ("a.txt", "see\n", ["--pieces=whole"], "pieces must be one of within-word-l2r, whole-word, original"),
    "unit": ("a.txt", "see\n", ["--unit=bit"], "unit must be one of nats, bits, got 'bit'; did you mean 'bits'?"),
    "tokens": ("a.txt", "see\n", ["--max-tokens=0"], "max_tokens must be at least 1, got 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_scored_is_refused_in_one_line(
    seqwise: Command, folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    file, text, flags, problem = BAD[name]
    assert problem in seqwise("score", folders["bert"], write(tmp_path / file, text), *flags).complaint


def test_invalid_arguments_of_a_scorer_are_refused() -> None:
    with pytest.raises(InputError, match="a model without its tokenizer"):
        Scorer(bert())
    tokenizer = piece_tokenizer(PIECES)
    scorer = Scorer(made(bert(len(tokenizer))), tokenizer)
    for call, problem in (
        (lambda: scorer.score("see"), "one text was given where several were expected"),
        (lambda: scorer.score(["see", None]), "a text was expected, got NoneType"),  # type: ignore[list-item]
        (lambda: scorer.score(["see"], []), "0 prefixes for 1 texts"),
        (lambda: Scorer(bert(), tokenizer, peices="original"), "unknown key 'peices'; did you mean 'pieces'"),
    ):
        with pytest.raises(InputError, match=problem):
            call()


def test_texts_of_probability_zero_are_a_tie() -> None:
    infinite = [(-math.inf, -math.inf), (-1.0, -math.inf), (-math.inf, -1.0)]
    pairs = [PairScore("a", "b", "", good, bad, "nats", "sum") for good, bad in infinite]
    assert [(pair.winner, pair.difference) for pair in pairs] == [("tie", 0), ("good", math.inf), ("bad", -math.inf)]
    (row,) = pair_accuracies(pairs)
    assert (row.num_ties, row.accuracy.value) == (1, pytest.approx(1 / 3)) and math.isnan(row.mean_difference)
