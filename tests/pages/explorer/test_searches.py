"""Searches of the explorer, against models in NumPy and brute force."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
import torch

from explored import MARKUP, SIZES, masked_run, oracle_of, speller, tagger
from oracles import all_outputs, gold_score, hard_beam
from seqwise.data import collate
from seqwise.data.readers import Example
from seqwise.errors import InputError
from seqwise.evaluation import edit_distance
from seqwise.evaluation.label_bias import fate_of_gold
from seqwise.evaluation.slot_ranking import unroll_slots
from seqwise.pages.explorer.answers import PARTS, answer
from seqwise.pages.explorer.questions import MOST_TOKENS, load_explored, read_question
from seqwise.pages.explorer.search_views import bias_view, errors_view, lattice_view, outputs_view, step_in_words
from seqwise.pages.explorer.searches import Setup, compare, dropped, fell_off, follow, search_errors
from seqwise.pages.explorer.suggestions import MOST_EXAMPLES, Suggestions
from seqwise.pages.report.lattice import Lattice
from seqwise.runs import save_run, train_settings
from seqwise.runs.decoder_choice import choose_decoder, decoders_for
from seqwise.runs.run import OutputRun, search
from seqwise.runs.training import train_run

RUNS = {"tagger": (tagger, "a c b", "D N D"), "speller": (speller, "acb", "A C")}


@pytest.fixture(params=list(RUNS))
def asked(request: pytest.FixtureRequest) -> tuple[OutputRun, str, str]:
    make, text, right = RUNS[request.param]
    return make(), text, right


def with_end(run: OutputRun, tokens: tuple[int, ...], steps: int) -> tuple[int, ...]:
    """As it was written: with its end token, unless the search ran out of steps."""
    return tokens if run.model.end is None or len(tokens) == steps else (*tokens, run.model.end)


# ---- Questions ------------------------------------------------------------------------------------------------------


def test_a_text_is_never_taken_for_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "a.txt"
    secret.write_text("b\n")
    with pytest.raises(InputError, match=secret.name):
        read_question(tagger(), str(secret))


@pytest.mark.parametrize(
    ("text", "right", "message"),
    [
        ("  ", "", "the input is empty"),
        ("a b", "D", "1 label for 2 words; give one for each"),
        (" a" * (MOST_TOKENS + 1), "", f"at most {MOST_TOKENS}"),
        ("a zebra", "", "'zebra'"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(text: str, right: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_question(tagger(), text, right)


def test_a_question_is_read_in_the_units_of_the_run() -> None:
    question = read_question(speller(), " abc ", "B A")
    assert question.example.source == ("a", "b", "c") and question.source.source_ids == (0, 1, 2)
    run = speller()
    assert question.gold is not None and run.codec.target_vocabulary.decode(question.gold) == ["B", "A", "</s>"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "text", "right", "seen", "shown"),
    [
        (tagger, "a c b", "D Z N", ["D"], "D Z (unknown) N"),
        (tagger, "a c b", "Z D N", [], "Z (unknown) D N"),
        (speller, "acb", "A Z C", ["A"], "A Z (unknown) C"),
    ],
)
def test_one_unseen_token_does_not_hide_the_right_output(
    make: Callable[[], OutputRun], text: str, right: str, seen: list[str], shown: str
) -> None:
    run = make()
    question = read_question(run, text, right)
    words = (*run.codec.target_vocabulary.tokens, "Z")
    assert question.unseen == {len(seen): "Z"}
    assert [words[token] for token in question.gold or () if token != run.model.end] == right.split()
    found = answer(run, question, Setup(k=3))
    gold = found.outputs[-1]
    assert (gold.text, gold.log_prob, gold.is_gold) == (shown, -math.inf, True) and shown in outputs_view(found.outputs)
    assert all(math.isfinite(one.log_prob) for one in found.outputs[:-1])
    # Costs count the unseen token as wrong, and all others as ever.
    for slot in range(3):
        path = path_to(found.lattice, slot, end=run.model.end)
        node = found.lattice[-1][slot]
        wrong = edit_distance(path, question.gold) if run.model.end is not None else hamming(path, question.gold)
        assert node.total_cost == pytest.approx(wrong)
    golden = [prefix.tokens for prefixes in found.bias.steps for prefix in prefixes if prefix.is_gold]
    assert [[words[token] for token in tokens] for tokens in golden] == [seen[:n] for n in range(len(seen) + 1)]
    assert f"its token of step {len(seen) + 1} was never seen in training" in fate_of_gold(found.bias)
    assert "never seen in training" in bias_view(run, found.bias, 1)
    steps = len(found.lattice)
    if fell_off(found.lattice, question.gold or ()) == len(seen) + 1:
        assert "training never saw Z." in step_in_words(run, found, steps)


def path_to(lattice: Lattice, slot: int, *, end: int | None) -> tuple[int, ...]:
    """What a slot of the last step of a hard search has written; one that has ended adds its end token again."""
    path = []
    for nodes in reversed(lattice):
        path.append(nodes[slot].tokens[0][0])
        slot = max(range(len(nodes[slot].parents)), key=nodes[slot].parents.__getitem__)
    written = tuple(reversed(path))
    return written[: written.index(end) + 1] if end in written else written


def hamming(path: Sequence[int], gold: Sequence[int] | None) -> int:
    return sum(one != other for one, other in zip(path, gold or (), strict=True))


def test_runs_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    save_run(tagger(), tmp_path / "tagger")
    save_run(masked_run(), tmp_path / "mlm")
    assert load_explored(tmp_path / "tagger").codec.purpose == "predict"
    assert load_explored(tmp_path / "mlm").codec.lengths == {4: 1}
    (tmp_path / "samples" / "chains").mkdir(parents=True)
    for name, message in (
        ("samples", "holds samples"),
        ("gone", "no such run folder"),
        ("", "no trained model"),
    ):
        with pytest.raises(InputError, match=message):
            load_explored(tmp_path / name)


def with_dev(run: OutputRun, dev: Path) -> OutputRun:
    return replace(run, settings=run.settings.with_changes(dev=dev))


def test_suggestions_are_examples_of_the_development_data(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("ab\tA B\nca\tC A\n")
    run = speller()
    found = Suggestions(with_dev(run, tmp_path / "dev.tsv"))
    assert (found.texts, found.note, found.is_complete) == ([("ab", "A B"), ("ca", "C A")], "", False)
    assert read_question(run, *found.texts[0]).gold is not None
    gone = Suggestions(with_dev(run, tmp_path / "gone.tsv"))
    assert gone.texts == gone.order() == [] and "gone.tsv: no such file" in gone.note and "--file" in gone.note


def test_suggestions_begin_where_the_searches_disagree_most(tmp_path: Path) -> None:
    run = tagger(seed=11)
    inputs = list(product("abc", repeat=3))
    (tmp_path / "dev.conll").write_text("\n".join("".join(f"{word}\tD\n" for word in one) for one in inputs))
    found = Suggestions(with_dev(run, tmp_path / "dev.conll"))
    assert found.order() == list(range(27))
    found.compare_for(seconds=60)
    assert found.is_complete
    # By hand: each search of each input alone, and how far apart the outputs of two are.
    measured = []
    for one in inputs:
        (source,) = run.codec.encode_sources([Example(one, ())])
        decoders = [choose_decoder(run.settings, name) for name in decoders_for(run.settings)]
        outputs = [search(run, [source], how, n_best=1, length_normalization=0.0)[0][0].tokens for how in decoders]
        apart = [edit_distance(first, second) / 3 for first, second in combinations(outputs, 2)]
        measured.append((len(set(outputs)), sum(apart) / len(apart)))
    expected = sorted(range(27), key=lambda place: (-measured[place][0], -measured[place][1]))
    assert found.order() == expected != list(range(27)) and measured[expected[0]][0] > measured[expected[-1]][0] == 1


def test_suggestions_look_at_what_time_allows_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["q\tA\n" if number == 1 else "abc\tA\n" for number in range(MOST_EXAMPLES + 5)]
    (tmp_path / "dev.tsv").write_text("".join(lines).replace("q", "aq"))
    found = Suggestions(with_dev(speller(), tmp_path / "dev.tsv"))
    found.compare_for(seconds=0.0)
    assert not found.is_complete and found.order() == list(range(MOST_EXAMPLES))
    monkeypatch.setattr(time, "monotonic", itertools.count(step=1.0).__next__)
    found.compare_for(seconds=2.5)  # batches of one and of two examples
    assert not found.is_complete
    assert sorted(found.order()[:3]) == [0, 1, 2] and found.order()[2] == 1  # what cannot be read is last of these
    monkeypatch.undo()
    found.compare_for(seconds=60)
    assert found.is_complete


@pytest.mark.thorough
def test_development_data_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "project" / "data" / "dev.tsv").write_text("ab\tA B\nca\tC A\n")
    (tmp_path / "elsewhere" / "data").mkdir(parents=True)
    (tmp_path / "elsewhere" / "data" / "dev.tsv").write_text("c\tC\n")  # of another project
    tiny = {"warm_start": "none", "objective": "cross-entropy", "epochs": 1.0, "evaluate_every": 0, **SIZES}
    settings = train_settings(
        task="transduce", source_units="characters", train=Path("data/dev.tsv"), dev=Path("data/dev.tsv"), **tiny
    )
    monkeypatch.chdir(tmp_path / "project")
    outputs = [Path("runs/inside"), tmp_path / "outside"]
    for output in outputs:
        train_run(settings, output)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for output in outputs:
        run = load_explored(tmp_path / "project" / output)
        assert Suggestions(run).texts == [("ab", "A B"), ("ca", "C A")]
    chosen = load_explored(tmp_path / "outside", file=Path("data/dev.tsv"))
    assert chosen.settings.dev == Path("data/dev.tsv")
    with pytest.raises(InputError, match=r"gone\.tsv: no such file"):
        load_explored(tmp_path / "outside", file=Path("gone.tsv"))
    (tmp_path / "project").rename(tmp_path / "moved")
    inside = load_explored(tmp_path / "moved" / "runs" / "inside")
    assert Suggestions(inside).texts
    outside = load_explored(tmp_path / "outside")
    assert "--file FILE" in Suggestions(outside).note


# ---- Searches -------------------------------------------------------------------------------------------------------


def test_both_scores_of_every_output_are_those_of_the_model(asked: tuple[OutputRun, str, str]) -> None:
    run, text, right = asked
    question = read_question(run, text, right)
    oracle = oracle_of(run, question.source.source_ids)
    steps = len(question.source.source_ids) if run.model.end is None else 16
    found = compare(run, question, k=3, alpha=1.0)
    assert [one.name for one in found][:3] == ["greedy", "beam, local scores", "beam, raw scores"]
    for one in found:
        whole = with_end(run, one.tokens, steps)
        assert one.log_prob == pytest.approx(gold_score(oracle, whole), abs=1e-9)
        assert one.raw_score == pytest.approx(gold_score(oracle, whole, log_partition_weight=0.0), abs=1e-9)
        assert one.is_gold == (whole == question.gold)
    for one, weight, k in zip(found, (1.0, 1.0, 0.0), (1, 3, 3), strict=False):
        best = hard_beam(oracle, k=k, num_steps=steps, log_partition_weight=weight)[0]
        written = best.tokens[: best.tokens.index(run.model.end)] if run.model.end in best.tokens else best.tokens
        assert one.tokens == written
    assert (found[-1].name, found[-1].is_gold) == ("the right output", True)


def test_the_lattice_follows_the_search_that_is_chosen(asked: tuple[OutputRun, str, str]) -> None:
    run, text, _ = asked
    question = read_question(run, text)
    oracle = oracle_of(run, question.source.source_ids)
    for score, weight in (("local", 1.0), ("raw", 0.0)):
        lattice = follow(run, question, Setup(k=3, score=score))
        expected = hard_beam(oracle, k=3, num_steps=len(lattice), log_partition_weight=weight)
        assert [node.score for node in lattice[-1]] == pytest.approx([one.score for one in expected])
        nearly_hard = follow(run, question, Setup("relaxed beam", score, 3, 1e9))
        scores = [node.score for node in nearly_hard[0]]
        assert scores == pytest.approx([node.score for node in lattice[0]], abs=1e-6)
    assert [len(nodes) for nodes in follow(run, question, Setup("greedy", k=3))][:2] == [1, 1]
    mixed = follow(run, question, Setup("relaxed beam", k=3, alpha=0.01))[0][0]
    assert mixed.tokens[0][1] < 0.9


@pytest.mark.parametrize("seed", range(4))
def test_where_gold_falls_off_is_where_no_prefix_of_the_beam_is_gold(seed: int) -> None:
    run = tagger(seed=seed)
    question = read_question(run, "a b c a")
    batch = collate([question.source])
    decoder = Setup(k=2).decoder(run)
    with torch.no_grad():
        slots = list(unroll_slots(run.model, run.model.encode(batch), decoder, num_steps=4))
    beams = [{tuple(prefix) for prefix in one.prefixes_BJT[0].tolist()} for one in slots]
    lattice, seen = follow(run, question, Setup(k=2)), set()
    for gold in product(range(3), repeat=4):
        expected = next((step for step in range(1, 5) if gold[:step] not in beams[step]), None)
        assert fell_off(lattice, gold) == expected
        seen.add(expected)
    assert None in seen and len(seen) > 2
    for step in range(2, 5):
        before = [tuple(prefix) for prefix in slots[step - 1].prefixes_BJT[0].tolist()]
        left = {prefix[:-1] for prefix in beams[step]}
        assert dropped(lattice, step) == tuple(place for place, one in enumerate(before, 1) if one not in left)


# ---- Search errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["local", "raw"])
def test_exact_search_of_a_tagger_is_brute_force(score: str) -> None:
    run = tagger(seed=3)
    question = read_question(run, "a b c")
    oracle = oracle_of(run, question.source.source_ids)
    weight = 1.0 if score == "local" else 0.0
    best = max(all_outputs(oracle, 3), key=lambda output: gold_score(oracle, output, log_partition_weight=weight))
    errors = search_errors(run, question, k=3, score=score)
    name = "exact, best-first" if score == "local" else "exact, over all 27 outputs"
    assert errors.exact is not None and errors.exact.name == name
    assert errors.exact.tokens == best and errors.exact.gap == 0
    assert errors.exact.score == pytest.approx(gold_score(oracle, best, log_partition_weight=weight))
    assert [one.name for one in errors.beams][errors.place_of_k] == "beam of 3"
    for one in errors.beams:
        expected = errors.exact.score - gold_score(oracle, one.tokens, log_partition_weight=weight)
        assert one.gap == pytest.approx(expected, abs=1e-9)


def a_chain_that_misleads() -> OutputRun:
    """Label 0 looks best at first; label 1 leads to what is better in the end."""
    run = tagger(model="chain")
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.zero_()
        run.model.first_input_D.copy_(torch.tensor([1.0, 0.5, 0.0]))
        run.model.transitions.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.0]]))
    return run


def test_a_search_error_of_a_chain_is_found_by_viterbi() -> None:
    run = a_chain_that_misleads()
    question = read_question(run, "a b c a b c a b c")  # too long to be enumerated
    errors = search_errors(run, question, k=1, score="raw")
    assert errors.exact is not None and (errors.exact.name, errors.exact.tokens) == ("exact, by Viterbi", (1,) * 9)
    assert errors.exact.score == pytest.approx(0.5 + 8 * 9.0)
    assert errors.beams[0].gap == pytest.approx(errors.exact.score - 1.0)
    assert errors.beams[1].gap == 0
    assert "makes a search error: its output scores 71.500 nats below" in errors_view(run, errors, score="raw")
    by_probability = search_errors(run, question, k=1, score="local")
    assert by_probability.exact is not None and by_probability.exact.name == "exact, best-first"


def test_without_an_exact_search_the_largest_beam_is_all_that_is_known() -> None:
    run = speller()
    errors = search_errors(run, read_question(run, "abc"), k=64, score="raw")
    assert errors.exact is None
    best = max(one.score for one in errors.beams)
    assert all(one.gap == pytest.approx(best - one.score, abs=1e-6) for one in errors.beams)


# ---- Answers --------------------------------------------------------------------------------------------------------


def test_parts_are_kept_unless_a_setting_touches_them() -> None:
    run = tagger()
    question, seen = read_question(run, "a b"), []
    first = answer(run, question, Setup(k=2), on_part=lambda part, done, total: seen.append((part, done, total)))
    assert seen == [(part, number, len(PARTS)) for number, part in enumerate(PARTS)]
    for change, kept in (
        (Setup("relaxed beam", k=2), {"outputs", "bias", "errors"}),
        (Setup(k=2, score="raw"), {"outputs", "bias"}),
        (Setup(k=2, alpha=4.0), {"bias", "errors"}),
        (Setup(k=3), set()),
    ):
        second = answer(run, question, change, known=first)
        names = ("lattice", "outputs", "bias", "errors")
        assert {name for name in names if getattr(second, name) is getattr(first, name)} == kept
    other = answer(run, read_question(run, "b a"), Setup(k=2), known=first)
    assert other.lattice is not first.lattice and other.bias is not first.bias


def test_work_can_be_stopped_between_parts() -> None:
    run, seen = tagger(), []

    def stop(part: str, done: int, total: int) -> None:
        seen.append(part)
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(run, read_question(run, "a b"), Setup(k=2), on_part=stop)
    assert seen == list(PARTS[:2])


# ---- Views ----------------------------------------------------------------------------------------------------------


def test_views_say_what_was_found_and_escape_it(asked: tuple[OutputRun, str, str]) -> None:
    run, text, right = asked
    found = answer(run, read_question(run, text, right), Setup(k=3))
    steps = len(found.lattice)
    whole = lattice_view(run, found, steps)
    assert whole.count("<rect") == sum(node.is_live for nodes in found.lattice for node in nodes)
    assert lattice_view(run, found, 1).count("<rect") == len(found.lattice[0])
    outputs = outputs_view(found.outputs)
    assert f"{found.outputs[0].raw_score:.3f}" in outputs and "the right output" in outputs
    bias = bias_view(run, found.bias, steps + 5)
    last = found.bias.steps[-1][0]
    assert f"after step {len(found.bias.steps) - 1}" in bias and f"{100 * last.local_mass:.1f}%" in bias
    for view in (whole, outputs, bias, errors_view(run, found.errors, score="local")):
        assert MARKUP not in view
    if run.settings.task == "tag":
        assert "&lt;b&gt;&amp;X" in lattice_view(run, found, steps)


def test_steps_that_are_not_drawn_are_named() -> None:
    run = a_chain_that_misleads()
    for length, is_cut in ((20, False), (21, True)):
        found = answer(run, read_question(run, " ".join("a" * length)), Setup(k=2))
        assert len(found.lattice) == 20
        assert ("Only the first 20 steps are drawn." in lattice_view(run, found, 20)) == is_cut


def test_steps_are_told_in_words() -> None:
    run = a_chain_that_misleads()
    question = read_question(run, "a b c", "D D D")
    greedy = answer(run, question, Setup("greedy", "raw", 1))
    assert step_in_words(run, greedy, 1).startswith("Step 1: the best slot adds <b>&X and has score 1.000.")
    assert "fell off the beam at step 1" in step_in_words(run, greedy, 1)
    beam = answer(run, question, Setup("beam", "raw", 3))
    (gone,) = dropped(beam.lattice, 3)
    assert f"The prefix in slot {gone} of the previous step is pruned." in step_in_words(run, beam, 3)
    assert "fell off the beam" not in step_in_words(run, beam, 3)
    soft = answer(run, question, Setup("relaxed beam", "raw", 2, 0.01))
    assert "mixes most: tokens" in step_in_words(run, soft, 1)
    hard = answer(run, question, Setup("relaxed beam", "raw", 1, 64.0))
    assert "Every slot is one candidate" in step_in_words(run, hard, 1)
