"""Runs in a language: ``--language`` in training and prediction, the saved language, and invalid ones."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import Command, run_main
from letters import letter_bart, letter_gpt2, letter_pairs, letter_tokenizer
from pretrained import byte_tokenizer, saved
from seqwise import InputError
from seqwise.data.readers import Example
from seqwise.decoding import as_decoder
from seqwise.evaluation.entities import valid_transitions
from seqwise.runs import language, load_run, predict
from seqwise.runs.diagnosis import diagnose_language
from seqwise.runs.inputs import read_examples
from seqwise.runs.language import in_language, load_language, require_gold_inside, save_language
from seqwise.runs.loading import new_run
from seqwise.runs.measures import measure
from seqwise.runs.run import fingerprint
from seqwise.runs.settings import train_settings
from seqwise.search import Grammar, HardTopK
from seqwise.search.language import members

TINY = ["--hidden-size=8", "--embedding-size=8", "--batch-size=8", "--beam-size=3"]
SHORT = [*TINY, "--epochs=0.4", "--objective=cross-entropy"]
SPELLING = ["--task=transduce", "--source-units=characters", "--target-units=characters"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    sentence = "anna\tB-PER\nsees\tO\nnew\tB-LOC\nyork\tI-LOC\n"
    (folder / "train.conll").write_text("\n".join([sentence] * 16))
    words = ["".join(draw.choices("abc", k=draw.randint(2, 3))) for _ in range(24)]
    (folder / "train.tsv").write_text("".join(f"{word}\t{word.upper()}\n" for word in words))
    (folder / "catalogue.txt").write_text("".join(f"{word.upper()}\n" for word in sorted(set(words))) + "\n")
    return folder


@pytest.fixture(scope="module")
def tagger(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "tagger"
    inside = ["--language=bio", "--normalized-over=allowed"]
    run_main("train", "--train", data / "train.conll", *SHORT, *inside, "--output", run)
    return run


@pytest.fixture(scope="module")
def speller(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "speller"
    run_main("train", *SPELLING, "--train", data / "train.tsv", *SHORT, "--output", run)
    return run


def test_a_run_keeps_its_language(tagger: Path) -> None:
    """Every decoder writes well-formed entities only, which without the language it does not."""
    run = load_run(tagger)
    assert run.settings.language == "bio" and run.settings.trained_score == "renormalized"
    follows, first, _ = valid_transitions(run.codec.target_vocabulary.tokens)
    ids = dict(zip(run.codec.target_vocabulary.tokens, range(9), strict=False))

    def is_well_formed(tokens: tuple[str, ...]) -> bool:
        places = [ids[token] for token in tokens]
        return first[places[0]] and all(follows[v][w] for v, w in itertools.pairwise(places))

    texts = ["anna", "new york sees", "york york york york york"]
    for decoder in ("greedy", "beam", "renormalized-beam", "raw-beam", "soft-beam"):
        outputs = [best.tokens for found in predict(run, texts, decoder, n_best=3) for best in found]
        assert all(map(is_well_formed, outputs))
    assert predict(run, texts)[0][0].score == predict(run, texts, "renormalized-beam")[0][0].score
    free = in_language(run, "")
    every = [best.tokens for found in predict(free, texts, "beam", n_best=3) for best in found]
    assert not all(map(is_well_formed, every))
    with pytest.raises(InputError, match=r"renormalized-beam sums .* this run has no language"):
        predict(free, texts, "renormalized-beam")


def test_a_continued_run_inherits_the_language(tagger: Path, data: Path) -> None:
    settings = train_settings(init=tagger, train=data / "train.conll")
    assert settings.language == "bio" and settings.trained_score == "renormalized"
    assert new_run([], settings).model.language is not None
    free = train_settings(init=tagger, train=data / "train.conll", language="", objective="cross-entropy")
    assert free.language == "" and new_run([], free).model.language is None


@pytest.mark.parametrize("output", ["below/run", "../elsewhere/run"])
def test_a_language_file_is_inherited_in_any_working_directory(
    output: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("words").write_text((data / "catalogue.txt").read_text())  # a name that could be a pattern too
    run_main("train", *SPELLING, "--train", data / "train.tsv", *SHORT, "--language=words", "--output", output)
    folder = Path(output).resolve()
    monkeypatch.chdir(data)
    continued = new_run([], train_settings(init=folder, train=data / "train.tsv"))
    ids = continued.codec.output_ids(Example((), tuple((data / "catalogue.txt").read_text().split()[0])))
    inside_B = members(continued.model.language, torch.tensor([[*ids, continued.model.end]]))
    assert bool(inside_B.all())


def test_predict_stays_in_a_file_or_a_pattern(speller: Path, data: Path, seqwise: Command) -> None:
    catalogue = set((data / "catalogue.txt").read_text().split())
    for words in ("abc", "ccc", "b"):
        shown = seqwise("predict", speller, words, "--language", data / "catalogue.txt", "--json", "--n-best=3")
        found = [each["output"] for record in shown.records for each in record["outputs"]]
        assert len(found) > 1 and set(found) <= catalogue
    pytest.importorskip("interegular")
    shown = seqwise("predict", speller, "abc", "--language", "(AB|C)*B", "--json", "--n-best=3")
    found = [each["output"] for record in shown.records for each in record["outputs"]]
    assert found and all(text.endswith("B") and not set(text) - set("ABC") for text in found)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("words.txt", "AB\nBA\n", "AB\nBC\n"), ("some.lark", 'start: "A" | "B"\n', 'start: "A" | "C"\n')],
)
def test_changed_contents_of_a_language_file_change_the_fingerprint(
    name: str, first: str, second: str, speller: Path, tmp_path: Path
) -> None:
    if name.endswith(".lark"):
        pytest.importorskip("llguidance", reason="grammars need the extra constraints (llguidance)")
    file, found = tmp_path / name, []
    for text in (first, second, first):
        file.write_text(text)
        found.append(fingerprint(in_language(load_run(speller), str(file))))
    assert found[0] != found[1] and found[0] == found[2]


def test_training_is_not_resumed_with_a_changed_language_file(data: Path, tmp_path: Path, seqwise: Command) -> None:
    file, output = tmp_path / "words.txt", tmp_path / "run"
    file.write_text((data / "catalogue.txt").read_text())
    command = ["train", *SPELLING, "--train", data / "train.tsv", *SHORT, "--language", file, "--output", output]
    run_main(*command)
    assert seqwise(*command).code == 0
    file.write_text(file.read_text() + "AAAAAA\n")
    assert "the checkpoint was made with other contents of the language file" in seqwise(*command).complaint


def test_predict_stays_in_a_schema_or_a_grammar(speller: Path, data: Path, seqwise: Command, tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="grammars need the extra constraints (llguidance)")
    (tmp_path / "some.lark").write_text('start: "A" start "B" | "C"\n')
    shown = seqwise("predict", speller, "abc", "--language", tmp_path / "some.lark", "--json", "--n-best=3")
    found = [each["output"] for record in shown.records for each in record["outputs"]]
    assert len(found) > 1 and all(re.fullmatch("(A*)C(B*)", text) and len(set(text) - {"C"}) != 1 for text in found)
    (tmp_path / "line.json").write_text("{\n3}")
    refused = seqwise("predict", speller, "abc", "--language", tmp_path / "line.json").complaint
    assert refused.startswith(f"{tmp_path / 'line.json'}:2: invalid JSON")
    assert refused.endswith('; write a JSON schema, such as {"type": "integer"}')
    (tmp_path / "line.json").write_text('{"type": "integer"}')
    refused = seqwise("predict", speller, "abc", "--language", tmp_path / "line.json").complaint
    assert refused.startswith(f"{tmp_path / 'line.json'}: no sequence of tokens was found that spells")


def test_a_run_keeps_its_grammar(data: Path, tmp_path: Path, seqwise: Command) -> None:
    pytest.importorskip("llguidance", reason="grammars need the extra constraints (llguidance)")
    (tmp_path / "some.gbnf").write_text("root ::= [ABC] root | [ABC]\n")
    command = ["train", *SPELLING, "--train", data / "train.tsv", *SHORT, "--language", tmp_path / "some.gbnf"]
    assert seqwise(*command, "--output", tmp_path / "run").code == 0
    (tmp_path / "some.gbnf").unlink()
    (tmp_path / "run").rename(tmp_path / "moved")
    run = load_run(tmp_path / "moved")
    assert isinstance(run.model.language, Grammar)
    assert all(re.fullmatch("[ABC]+", "".join(best.tokens)) for best in predict(run, ["abc"], "beam", n_best=3)[0])


def test_evaluate_searches_inside_the_language(speller: Path, data: Path, seqwise: Command) -> None:
    free = seqwise("evaluate", speller, data / "train.tsv", "--decoder=beam", "--json")
    stay = ["--language", data / "catalogue.txt"]
    inside = seqwise("evaluate", speller, data / "train.tsv", "--decoder=beam", "--json", *stay)
    assert (free.code, inside.code) == (0, 0) and free.out != inside.out


@pytest.mark.thorough
def test_diagnose_reports_the_effect_of_masking(speller: Path, data: Path, seqwise: Command) -> None:
    command = ["diagnose", speller, data / "train.tsv", "--language", data / "catalogue.txt"]
    found = json.loads(seqwise(*command, "--json").out)
    size = len((data / "catalogue.txt").read_text().split())
    masking = found["masking"]
    errors = found["search errors"]
    assert errors["beams"].keys() == {"1", "3"} and errors["certified"] == errors["inputs"] == masking["inputs"]
    assert found["decoders"].keys() == {"beam", "renormalized-beam", "raw-beam"} and len(found["changed"]) == 2
    assert set(masking["listed"]) <= set(range(1, size + 1)) and masking["total variation"]["low"] is None
    assert 0 < masking["total variation"]["value"] < 1
    assert all(abs(each["masked"] - each["conditional"]) <= 1 for each in masking["prefixes"]) and masking["prefixes"]
    shown = seqwise(*command).out
    assert f"total variation  {masking['total variation']['value']:.3f}" in shown
    assert " ".join(found["meaning"]["masking"].split())[:40] in " ".join(shown.split())
    assert "two diagnoses" in seqwise(*command, "--example=1").complaint


def test_diagnose_reports_search_errors_inside_the_language(speller: Path, data: Path) -> None:
    """Against a beam that is as wide as the catalogue."""
    run = in_language(load_run(speller), str(data / "catalogue.txt"))
    with torch.no_grad():
        torch.manual_seed(1)
        run.model.head.weight.copy_(10 * torch.randn_like(run.model.head.weight))
    size = len((data / "catalogue.txt").read_text().split())
    examples = read_examples(run.settings, data / "train.tsv")
    sources = list(dict.fromkeys("".join(each.source) for each in examples))
    best = {k: [found[0] for found in predict(run, sources, as_decoder("beam", k=k))] for k in (1, 2, size)}
    errors = diagnose_language(run, examples, beam_size=2).search
    assert errors is not None and errors.certified == len(sources)
    for k in (1, 2):
        lost = [wide.score - narrow.score for wide, narrow in zip(best[size], best[k], strict=True)]
        assert errors.missed[k].value == pytest.approx(sum(nats > 1e-6 for nats in lost) / len(sources))
        assert errors.lost[k].value == pytest.approx(sum(lost) / len(sources), abs=1e-5)
    assert errors.lost[1].value > errors.lost[2].value > 0


def test_a_beam_as_wide_as_the_catalogue_keeps_every_gold_output(speller: Path, data: Path) -> None:
    catalogue = sorted(set((data / "catalogue.txt").read_text().split()))
    run = in_language(load_run(speller), data / "catalogue.txt")
    examples = read_examples(run.settings, data / "train.tsv")
    narrow, wide = (diagnose_language(run, examples, beam_size=k).training for k in (2, len(catalogue)))
    assert narrow is not None and wide is not None
    assert {name: share.value for name, share in wide.oracle.items()} == dict.fromkeys(wide.best, 1.0)
    assert 0 < narrow.best["beam"].value < narrow.oracle["beam"].value < 1
    assert 0 < wide.outside.value == narrow.outside.value < 1


@pytest.mark.parametrize(
    ("language", "says"),
    [
        ("bio", "language: bio is for taggers, which write labels; give a file or a pattern"),
        ("missing.txt", "missing.txt: no such file; check the name"),
    ],
)
def test_an_invalid_language_is_refused_in_one_line(speller: Path, seqwise: Command, language: str, says: str) -> None:
    assert seqwise("predict", speller, "abc", "--language", language).complaint == says


@pytest.mark.parametrize("labels", [("DET", "NOUN", "DET"), ("B-LOC", "L-LOC", "U-LOC")], ids=" ".join)
def test_labels_of_which_any_may_follow_any_need_no_language(
    seqwise: Command, tmp_path: Path, labels: tuple[str, ...]
) -> None:
    rows = zip("abc", labels, strict=True)
    (tmp_path / "train.conll").write_text("".join(f"{word}\t{label}\n" for word, label in rows))
    train = ["train", "--train", tmp_path / "train.conll", *SHORT, "--language=bio", "--output", tmp_path / "run"]
    says = "language: bio allows all sequences of this run's labels; it is for labels such as B-LOC and I-LOC; "
    assert seqwise(*train).complaint == says + "give a file or a pattern"


def test_outputs_that_cannot_be_written_are_named(speller: Path, seqwise: Command, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("AB\nAXB\n")
    refused = seqwise("predict", speller, "abc", "--language", tmp_path / "some.txt").complaint
    assert refused.startswith(f"{tmp_path / 'some.txt'}:2: ") and "'X" in refused
    (tmp_path / "blank.txt").write_text("\n\n")
    assert "has no output" in seqwise("predict", speller, "abc", "--language", tmp_path / "blank.txt").complaint


def test_subwords_may_begin_with_a_piece_that_is_only_a_blank(tmp_path: Path) -> None:
    """The first letter of a rare word is a piece behind a piece that is only the blank."""
    pytest.importorskip("interegular")
    (tmp_path / "train.tsv").write_text("ab\tab ab\n" * 6 + "x\txab ab\n")
    settings = train_settings(
        task="transduce", train=tmp_path / "train.tsv", source_units="subwords", target_units="subwords",
        subword_vocabulary=10, hidden_size=8, embedding_size=8,
    )  # fmt: skip
    examples = read_examples(settings, tmp_path / "train.tsv")
    run = in_language(new_run(examples, settings), "[abx]+ [abx]+")
    [*_, rare] = run.codec.encode(examples)
    assert run.codec.target_vocabulary.tokens[rare.target_ids[0]] == "\u2581"
    require_gold_inside(run, [rare], examples[-1:])
    with pytest.raises(InputError, match="not in the language"):
        require_gold_inside(in_language(run, "[abx]+"), [rare], examples[-1:])


def test_gold_outside_the_language_is_named_with_its_line(data: Path, seqwise: Command, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("AB\n")
    command = ["train", *SPELLING, "--train", data / "train.tsv", *SHORT, "--language", tmp_path / "few.txt"]
    refused = seqwise(*command, "--output", tmp_path / "run").complaint
    assert refused.startswith(f"{data / 'train.tsv'}:") and "is not in the language" in refused
    assert not (tmp_path / "run" / "model").exists()


def test_the_headroom_is_printed_and_is_json(speller: Path, seqwise: Command, tmp_path: Path) -> None:
    """Nothing is measured where no target lies in the language."""
    (tmp_path / "test.tsv").write_text("ab\tAB\nba\tCA\n")
    (tmp_path / "few.txt").write_text("AB\nCA\nBA\n")
    (tmp_path / "others.txt").write_text("BBB\n")
    command = ["diagnose", speller, tmp_path / "test.tsv", "--beam-size=3", "--language"]
    printed = seqwise(*command, tmp_path / "few.txt").out
    assert re.search(r"Headroom for training .*\n.*gold in beam, %\n.*\nbeam +\d+\.0 +100\.0", printed)
    found = json.loads(seqwise(*command, tmp_path / "few.txt", "--json").out)["training"]
    assert found["inputs"] == 2 and 0 < found["mass of excluded tokens"]["value"] < 1
    decoders = {"beam", "renormalized-beam", "raw-beam"}
    assert set(found["gold is best"]) == decoders
    assert {name: share["value"] for name, share in found["gold in beam"].items()} == dict.fromkeys(decoders, 1.0)
    assert "no target lies in the language" in seqwise(*command, tmp_path / "others.txt").out
    assert json.loads(seqwise(*command, tmp_path / "others.txt", "--json").out)["training"] is None


@pytest.mark.parametrize("command", ["evaluate", "diagnose"])
def test_targets_outside_the_language_are_counted(
    command: str, speller: Path, data: Path, seqwise: Command, tmp_path: Path
) -> None:
    """A target with an unknown letter is named by its own warning, and is not counted a second time."""
    (tmp_path / "test.tsv").write_text("ab\tAB\nba\tBAB\nb\tB\nab\tXY\n")
    (tmp_path / "few.txt").write_text("AB\nCA\n")
    done = seqwise(command, speller, tmp_path / "test.tsv", "--language", tmp_path / "few.txt")
    says = f"2 of 4 targets are not in the language and count as wrong; the first is {tmp_path / 'test.tsv'}:2: 'BAB'"
    assert done.code == 0 and says in " ".join(done.err.split())


def test_renormalised_scores_need_a_language(data: Path, seqwise: Command, tmp_path: Path) -> None:
    command = ["train", "--train", data / "train.conll", *SHORT, "--normalized-over=allowed"]
    assert "language: renormalised scores" in seqwise(*command, "--output", tmp_path / "run").complaint


def test_entities_are_well_formed_in_both_schemes() -> None:
    labels = ["O", "B-A", "I-A", "E-A", "S-A", "I-B"]
    follows, first, last = valid_transitions(labels)
    assert [label for label, may in zip(labels, first, strict=True) if may] == ["O", "B-A", "S-A"]
    assert [label for label, may in zip(labels, last, strict=True) if may] == ["O", "E-A", "S-A"]
    after = {v: {w for w, may in zip(labels, row, strict=True) if may} for v, row in zip(labels, follows, strict=True)}
    assert after["B-A"] == after["I-A"] == {"I-A", "E-A"} and after["E-A"] == {"O", "B-A", "S-A"}
    assert after["I-B"] == {"I-B"}
    iob2, _, ends = valid_transitions(["O", "B-A", "I-A", "B-B"])
    assert iob2 == [[True, True, False, True], [True] * 4, [True] * 4, [True, True, False, True]] and all(ends)


def test_a_length_without_an_output_in_the_language_is_an_error_of_its_line(
    tagger: Path, seqwise: Command, tmp_path: Path
) -> None:
    (tmp_path / "two.txt").write_text("O B-PER\n")
    (tmp_path / "words.txt").write_text("sees anna\nanna\n")
    shown = seqwise("predict", tagger, tmp_path / "words.txt", "--text", "--language", tmp_path / "two.txt")
    assert shown.code == 1
    first, second = shown.out.splitlines()
    assert first == "sees anna\tO B-PER"
    assert second.startswith("anna\terror: ") and "no output that a search of 1 step can write" in second


def test_gold_is_looked_up_in_blocks(speller: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "AT_ONCE", 2)
    run = in_language(load_run(speller), str(data / "catalogue.txt"))
    texts = ["AB", "AC", "CC", "ABCA", "BB"]
    examples = [Example(("a",), tuple(text), line=line) for line, text in enumerate(texts, start=1)]
    (data / "five.txt").write_text("".join(f"{text}\n" for text in texts if text != "ABCA"))
    run = in_language(run, str(data / "five.txt"))
    inside = [example for example in examples if example.line != 4]
    require_gold_inside(run, run.codec.encode(inside), inside)
    with pytest.raises(InputError, match=r"line 4|'ABCA'"):
        require_gold_inside(run, run.codec.encode(examples), examples)


@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_hugging_face_models_stay_in_a_file_or_a_pattern(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("interegular")
    torch.manual_seed(0)
    tokenizer = letter_tokenizer()
    make = letter_bart if kind == "bart" else letter_gpt2
    saved(tmp_path / kind, make(width=16, vocab_size=len(tokenizer)), tokenizer)
    pairs = [line.split("\t") for line in letter_pairs(12, 0).splitlines()]
    (tmp_path / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    catalogue = sorted({target for _, target in pairs})
    (tmp_path / "some.txt").write_text("".join(f"{target}\n" for target in catalogue[:3]))
    settings = train_settings(task="transduce", model=str(tmp_path / kind), train=tmp_path / "train.tsv")
    run = in_language(new_run([], settings), str(tmp_path / "some.txt"))
    for found in predict(run, [source for source, _ in pairs[:4]], "beam", n_best=3):
        texts = [run.codec.target_text(best.tokens) for best in found]
        assert sorted(texts) == sorted(catalogue[:3])
    run = in_language(run, "a b( c)?")
    for found in predict(run, [source for source, _ in pairs[:2] if len(source) > 1], "beam", n_best=2):
        assert {run.codec.target_text(best.tokens) for best in found} <= {"a b", "a b c"}


@pytest.mark.parametrize(("forced", "suffix"), [(None, ""), (0, ""), (None, ".lark"), (0, ".lark")])
def test_a_language_ignores_the_special_tokens_before_a_target(forced: int | None, suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("llguidance" if suffix else "interegular")

    def named(pattern: str) -> str:
        path = tmp_path / f"some{suffix}"
        path.write_text(f"start: /{pattern}/") if suffix else None
        return str(path) if suffix else pattern

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    special = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
    model = letter_bart(width=16, vocab_size=len(tokenizer), forced_bos_token_id=forced, **special)
    saved(tmp_path / "bart", model, tokenizer)
    (tmp_path / "train.tsv").write_text("the dog\tab ab\na cat\tb ab\n")
    settings = train_settings(task="transduce", model=str(tmp_path / "bart"), train=tmp_path / "train.tsv")
    examples = read_examples(settings, tmp_path / "train.tsv")
    run = in_language(new_run(examples, settings), named("b? ?ab( ab)?"))
    gold = run.codec.encode(examples)
    assert {each.target_ids[0] for each in gold} == {0}  # <s>, which no pattern spells
    require_gold_inside(run, gold, examples)
    [found] = predict(run, ["the dog"], "beam", n_best=2)
    assert all(re.fullmatch("b? ?ab( ab)?", run.codec.target_text(best.tokens)) for best in found)
    with pytest.raises(InputError, match="'b ab' is not in the language"):
        require_gold_inside(in_language(run, named("ab ab")), gold, examples)


@pytest.mark.parametrize("suffix", ["", ".lark", ".json"])
def test_outputs_after_a_prompt_begin_with_its_blank(suffix: str, tmp_path: Path) -> None:
    """As targets do: a pattern contains the outputs of a catalogue, so its best output is at least as good."""
    pytest.importorskip("llguidance" if suffix else "interegular")
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    ends = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}
    saved(tmp_path / "gpt2", letter_gpt2(width=16, vocab_size=len(tokenizer), **ends), tokenizer)
    (tmp_path / "train.tsv").write_text("the dog\ta cat\na cat\tthe dog\n")
    (tmp_path / "catalogue.txt").write_text("a cat\nthe dog\n")
    (tmp_path / "some.lark").write_text('start: "a cat" | "the dog"')
    (tmp_path / "some.json").write_text('{"enum": ["a cat", "the dog"]}')
    settings = train_settings(task="transduce", model=str(tmp_path / "gpt2"), train=tmp_path / "train.tsv")
    examples = read_examples(settings, tmp_path / "train.tsv")
    run = in_language(new_run(examples, settings), str(tmp_path / "catalogue.txt"))
    gold = run.codec.encode(examples)
    require_gold_inside(run, gold, examples)
    [listed] = predict(run, ["the dog"], "beam")
    quoted = suffix == ".json"
    run = in_language(run, str(tmp_path / f"some{suffix}") if suffix else "a cat|the dog")
    if quoted:
        examples = [replace(each, target=(json.dumps(each.target[0]),)) for each in examples]
        gold = run.codec.encode(examples)
    require_gold_inside(run, gold, examples)
    [found] = predict(run, ["the dog"], as_decoder("beam", k=40))
    assert found[0].score >= listed[0].score - 1e-5 or quoted
    assert run.codec.target_text(found[0].tokens).strip('"') in ("a cat", "the dog")


def test_a_pattern_for_subwords_matches_their_text(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("interegular")
    words = ["low", "lower", "lowest", "new", "newer", "newest"]
    (tmp_path / "train.tsv").write_text("".join(f"{word} x\t{word} {word}\n" for word in 4 * words))
    settings = train_settings(
        task="transduce", train=tmp_path / "train.tsv", source_units="subwords", target_units="subwords",
        subword_vocabulary=20, hidden_size=8, embedding_size=8,
    )  # fmt: skip
    examples = read_examples(settings, tmp_path / "train.tsv")
    run = in_language(new_run(examples, settings), "(new|low)(er|est)? lowest")
    for found in predict(run, ["lower x", "new x"], "beam", n_best=3):
        for best in found:
            assert re.fullmatch("(new|low)(er|est)? lowest", run.codec.target_text(best.tokens))


def _forbidding(tmp_path: Path, **settings: Any) -> Any:
    """A run of an encoder-decoder whose generation config has some settings."""
    torch.manual_seed(0)
    model, tokenizer = letter_bart(width=16), letter_tokenizer()
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    saved(tmp_path / "bart", model, tokenizer)
    (tmp_path / "train.tsv").write_text(letter_pairs(12, 0))
    return new_run([], train_settings(task="transduce", model=str(tmp_path / "bart"), train=tmp_path / "train.tsv"))


@pytest.mark.parametrize("forbids", [{"suppress_tokens": [5]}, {"bad_words_ids": [[5]]}], ids=str)
@pytest.mark.parametrize("suffix", ["txt", "lark"])
def test_no_prefix_leads_to_a_token_that_the_generation_config_forbids(
    forbids: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    pytest.importorskip("llguidance")
    file = tmp_path / f"some.{suffix}"
    # As many prefixes as slots lead to b, and one does not.
    texts = ["a b", "c b", "d b", "a a a a"]
    quoted = " | ".join(f'"{text}"' for text in texts)
    file.write_text(f"start: {quoted}\n" if suffix == "lark" else "".join(f"{text}\n" for text in texts))
    run = in_language(_forbidding(tmp_path, **forbids), str(file))
    save_language(run.model, tmp_path)
    run = load_language(run, tmp_path)
    for decoder in ("greedy", "beam", "raw-beam", "soft-beam"):
        for found in predict(run, ["a", "b", "c", "d"], decoder, n_best=3):
            assert {run.codec.target_text(best.tokens) for best in found} == {"a a a a"}
    (tmp_path / "none.txt").write_text("a b\nc b\n")
    [name] = forbids
    with pytest.raises(InputError, match=rf"every output of the language has a token that .*\.{name} forbids"):
        in_language(run, str(tmp_path / "none.txt"))
    with pytest.raises(InputError, match=rf"generation_config.json restricts outputs too \({name}\)"):
        diagnose_language(run, read_examples(run.settings, tmp_path / "train.tsv"))


def test_forbidden_first_tokens_are_refused_with_a_language(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("a b\n")
    run = _forbidding(tmp_path, begin_suppress_tokens=[4])
    with pytest.raises(InputError, match=r"generation_config.begin_suppress_tokens is \[4\], which a search inside"):
        in_language(run, str(tmp_path / "some.txt"))


def test_a_run_whose_language_is_refused_can_be_loaded_to_replace_it(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("a b\n")
    run = in_language(_forbidding(tmp_path), str(tmp_path / "some.txt"))
    save_language(run.model, tmp_path)
    (tmp_path / "other").mkdir()
    other = load_language(_forbidding(tmp_path / "other", begin_suppress_tokens=[4]), tmp_path)
    with pytest.raises(InputError, match="which a search inside a language does not follow"):
        predict(other, ["a"], "beam")
    assert predict(in_language(other, ""), ["a"], "beam")[0]


def test_an_input_without_an_output_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = _forbidding(tmp_path)

    def excluding(candidates: Any, carry: Any, generator: Any) -> Any:
        none_BX = torch.arange(candidates.scores_BJW[0].numel()).expand(len(candidates.scores_BJW), -1)
        return HardTopK(2)(candidates.without(none_BX), carry, generator)

    monkeypatch.setattr(type(run.codec), "allowed", lambda codec, selector: excluding)
    examples = read_examples(run.settings, tmp_path / "train.tsv")
    for call in (lambda: predict(run, examples, "beam"), lambda: measure(run, examples, "beam")):
        with pytest.raises(InputError, match=r"train\.tsv:1: the search finds no output, because all are excluded; "):
            call()
