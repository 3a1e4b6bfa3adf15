"""Tables of results: JSON there and back, and numbers computed again from the values in them."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproductions.report import Claim, Curve, Result, Table, load_table, save_table
from reproductions.values import sums_of, values_by_seed, values_of
from reproductions.verdicts import decide, difference_result, holm, interval_result, recompute, student_result
from seqwise.errors import InputError
from seqwise.evaluation.entities import macro_entity_f1
from seqwise.evaluation.metrics import Counts, Sums, bootstrap_interval, paired_bootstrap
from seqwise.evaluation.signature import Signature

SIGNATURE = Signature("hinge, k = 3", (1, 2), "1a2b" * 16, "0.1.0", "2.13", "3.11", "CPU, 2 cores", "2026-01-31", "abc")

numbers = st.floats(-1e300, 1e300)


@given(value=numbers, low=st.none() | numbers, system=st.text(), revision=st.none() | st.text())
def test_tables_load_back_equal_and_are_written_the_same_again(tmp_path_factory, value, low, system, revision):
    signature = Signature("m", (3,), "00", "0", "0", "0", "m", "d", revision)
    table = Table("t", (Result(system, "m", value, signature, low=low),), "n")
    path = tmp_path_factory.mktemp("tables") / "new" / "table.json"
    save_table(table, path)
    written = path.read_bytes()
    assert load_table(path) == table
    save_table(load_table(path), path)
    assert path.read_bytes() == written
    assert os.listdir(path.parent) == ["table.json"]


def test_keys_are_sorted_and_floats_are_short(tmp_path):
    save_table(Table("t", (Result("s", "m", 1 / 3, SIGNATURE),)), tmp_path / "t.json")
    text = (tmp_path / "t.json").read_text()
    assert "0.3333333333\n" in text
    content = json.loads(text)
    assert list(content) == sorted(content) and list(content["results"][0]) == sorted(content["results"][0])


def test_curves_come_back_as_they_were_written(tmp_path):
    curve = Curve("s", 3, "accuracy", 1.5, ((1.0, 1 / 3), (2.0, 0.5)))
    table = Table("t", (Result("s", "m", 1.0, SIGNATURE),), curves=(curve, replace(curve, seed=4)))
    save_table(table, tmp_path / "t.json")
    assert load_table(tmp_path / "t.json") == table and load_table(tmp_path / "t.json").curves[0].points[1] == (2, 0.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n"title": ', r"t\.json:2: invalid JSON"),
        (b"[]", "invalid table"),
        (b"{}", "not a table"),
        (b'{"title": 3, "results": []}', "title must be text"),
        (b'{"title": "t", "results": [], "more": 1}', "more"),
        (b'{"title": "t", "results": [{"system": "s"}]}', "not a table"),
        (b'{"title": "t", "results": ["s"]}', "not a table"),
    ],
)
def test_a_broken_file_is_named_with_its_hint(tmp_path, content, message):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_table(path)
    assert "t.json" in str(caught.value) and "make it again" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.json: no such file"):
        load_table(tmp_path / "absent.json")
    with pytest.raises(InputError, match="cannot be written"):
        save_table(Table("t", ()), tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.7976931348623157e308, None, True, "1"])
def test_results_refuse_what_is_not_a_finite_number(value):
    with pytest.raises(InputError, match="finite number"):
        Result("s", "m", value, SIGNATURE)


def test_two_results_cannot_share_a_cell():
    with pytest.raises(InputError, match="two results"):
        Table("t", (Result("s", "m", 1, SIGNATURE), Result("s", "m", 2, SIGNATURE)))


# ------------------------------------------------------------------ numbers that can be computed again

counts = st.integers(0, 40) | st.sampled_from([0.5, 1 / 3, 1e-12, 1e9])


@given(st.lists(st.tuples(counts, st.integers(1, 50)), min_size=1, max_size=20))
def test_values_come_back_as_they_were_written(pairs):
    ours, gold = zip(*pairs, strict=True)
    (found,) = sums_of(values_of(Counts(ours, gold)))
    assert found.value == pytest.approx(Counts(ours, gold).value, rel=1e-9)
    np.testing.assert_allclose(found.columns_NC, np.stack([ours, gold], axis=1), rtol=1e-9)


def test_values_are_texts_of_one_character_an_example_where_they_can_be():
    assert values_of(Counts([0, 9, 10, 35])).seeds == (("09az", "1111"),)
    assert values_of(Counts([36, 1], [1, 1])).seeds == (("36.0 1.0", "11"),)
    assert values_of(Counts([40], [2])).seeds == (("40.0", "2"),)  # a single number is none of digits


def test_values_of_a_measure_that_cannot_be_found_again_are_refused():
    with pytest.raises(InputError, match="is not a function of seqwise"):
        values_of(Sums([[1.0, 2.0]], lambda sums: sums[..., 0]))
    with pytest.raises(InputError, match="cannot be read"):
        sums_of(replace(values_of(Counts([1])), combine="metrics:_no_such"))


def made_up(generator: np.random.Generator) -> Table:
    """Two systems of three seeds each, a macro F1, a number by seed, and a claim of every rule."""
    first, second = (
        [Counts(generator.integers(0, 9, 60), np.full(60, 12)) for _ in range(3)] for _ in range(2)
    )  # fmt: skip
    gold = [["B-a", "O", "B-b"], ["B-b", "B-a", "O"]] * 9
    entities = macro_entity_f1([["B-a", "O", "O"], ["O", "B-a", "B-b"]] * 9, gold)
    claims = []
    for rule, pair in (
        ("better", (values_of(first), values_of(second))),
        ("better everywhere", (values_of(first), values_of(second), values_of(second), values_of(first))),
        ("no worse by 0.005", (values_of(first), values_of(second))),
        ("by seed", (values_by_seed([1.5, 1.6]), values_by_seed([1.0, 1.2]))),
        ("about 10 times", (values_by_seed([40.0, 41.0, 40.5]), values_by_seed([4.0, 4.0, 4.2]))),
    ):
        verdict, numbers = decide(rule, *pair)
        claims.append(Claim(rule, "here", verdict, "said", rule=rule, values=pair, numbers=numbers))
    results = (
        interval_result("one", "right", first, SIGNATURE),
        interval_result("two", "right", second, SIGNATURE),
        interval_result("one", "F1", entities, SIGNATURE),
        interval_result("one", "ratio", first, SIGNATURE, unit=""),
        interval_result("one", "perplexity", first, SIGNATURE, unit="", rule="exp"),
        student_result("one", "nats", [1.0, 2.0, 4.0], SIGNATURE, unit="nat"),
        difference_result("one", "right minus two", first, second, SIGNATURE),
    )
    return Table("made up", results, claims=tuple(claims))


def test_pairs_that_disagree_make_better_everywhere_not_seen():
    low, high = (values_of([Counts([level] * 50, [12] * 50) for _ in range(3)]) for level in (3, 9))
    found = [decide("better everywhere", high, low, *pair)[0] for pair in ((high, low), (low, high), (low, low))]
    assert found == ["holds", "not seen", "not seen"]
    assert decide("better everywhere", low, high, low, high)[0] == "reversed"


def test_every_interval_p_value_and_verdict_is_computed_again_from_the_file(tmp_path):
    table = made_up(np.random.default_rng(0))
    save_table(table, tmp_path / "t.json")
    assert load_table(tmp_path / "t.json") == table
    found = [problem for _, problem in recompute(load_table(tmp_path / "t.json"))]
    assert found == [""] * 12
    by_measure = {(one.system, one.measure): one for one in table.results}
    # What the file says is what the measurements themselves say.
    first, second = (sums_of(by_measure[name, "right"].values[0]) for name in ("one", "two"))
    one = by_measure["one", "right"]
    assert (one.value, one.low, one.high) == pytest.approx([100 * end for end in bootstrap_interval(first)], rel=1e-9)
    test, against = paired_bootstrap(first, second), by_measure["one", "right minus two"]
    assert against.p_value == pytest.approx(test.p_value) and against.value == pytest.approx(100 * test.difference)
    assert [claim.verdict for claim in table.claims[-2:]] == ["not seen", "holds"]


def test_numbers_that_do_not_come_out_again_are_named(tmp_path):
    table = made_up(np.random.default_rng(1))
    wrong = replace(table.results[-1], p_value=0.5)
    turned = replace(table.claims[0], verdict="reversed" if table.claims[0].verdict != "reversed" else "holds")
    moved = replace(table.claims[1], numbers=(9.0, *table.claims[1].numbers[1:]))
    bare = replace(table.results[0], values=())
    lost = replace(wrong, measure="right minus two again", p_value=None)
    broken = replace(table, results=(bare, wrong, lost), claims=(turned, moved))
    problems = [problem for _, problem in recompute(broken)]
    assert problems[0] == "no values" and problems[1].startswith("p_value is 0.5, comes out as 0.")
    assert problems[2].startswith("p_value is None, comes out as 0.")
    assert problems[3].startswith("the verdict is") and problems[4].startswith("the numbers are (9.0")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_holm_is_the_closure_of_bonferroni(p_values):
    """A test counts if Bonferroni's does in every set of tests that it belongs to."""
    places = range(len(p_values))
    sets = [each for size in range(1, len(p_values) + 1) for each in itertools.combinations(places, size)]
    closed = [max(len(each) * min(p_values[i] for i in each) for each in sets if place in each) for place in places]
    assert holm(p_values) == pytest.approx([min(1.0, p_value) for p_value in closed])


def test_a_text_of_values_is_kept_once(tmp_path):
    counts = Counts([0, 1] * 500)
    table = Table("t", tuple(interval_result(f"system {n}", "right", counts, SIGNATURE) for n in range(9)))
    save_table(table, tmp_path / "t.json")
    text = (tmp_path / "t.json").read_text()
    assert text.count("0101") > 0 and len(text) < 8_000 and len(json.loads(text)["columns"]) == 2


def test_a_theorem_is_no_claim_and_has_its_kind():
    with pytest.raises(InputError, match="a claim must be a claim or theorem or figure"):
        Claim("c", "s", "holds", "e", kind="lemma")
