"""The committed results say what the README says they do; each was written by the reproduction that made it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from reproductions.compare_results import main
from reproductions.report import Result, load_table, save_table
from reproductions.verdicts import recompute

RESULTS = Path(__file__).parents[2] / "results"
TABLES = sorted(path for path in RESULTS.glob("*.json") if "results" in json.loads(path.read_bytes()))
README = (RESULTS.parent / "README.md").read_text(encoding="utf-8")


def find(name: str, measure: str, system: str) -> Result:
    """One result."""
    (found,) = [r for r in load_table(RESULTS / f"{name}.json").results if (r.system, r.measure) == (system, measure)]
    return found


def value(name: str, measure: str, system: str) -> float:
    """One number."""
    return find(name, measure, system).value


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_number_is_signed(path: Path) -> None:
    for result in load_table(path).results:
        signature = result.signature
        assert (
            signature.seeds and len(signature.data) == 64 and signature.revision and "dirty" not in signature.revision
        )


@pytest.mark.thorough
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_numbers_come_out_again_from_the_values_in_the_file(path: Path) -> None:
    differing = [(one, problem) for one, problem in recompute(load_table(path)) if problem]
    assert not differing


@pytest.mark.thorough
def test_the_demo_has_the_values_of_every_number() -> None:
    for name in ("stress", "label-bias-toy"):
        table = load_table(RESULTS / f"{name}.json")
        found = [problem for _, problem in recompute(table)]
        assert found and not any(found)
        assert all(result.signature.training for result in table.results)


def best_revised(corpus: str) -> float:
    """Accuracy of the best global scores of a stream with all their revisions, without look-ahead."""
    systems = ("beam CRF, global", "dense beam loss, global", "relaxed beam, global")
    return max(value(f"frontier-{corpus}", "agree: accuracy", system) for system in systems)


def test_numbers_of_the_readme_are_the_saved_ones() -> None:
    saved = [
        find("stress", "half-raw beam: word accuracy", "cross-entropy").value,
        find("stress", "raw beam: word accuracy", "beam CRF, global").value,
        find("stress", "greedy: word accuracy", "cross-entropy, two-way").value,
        find("search-objectives-stress", "word accuracy minus best control", "beam CRF from cross-entropy").value,
        find("search-objectives-pmb", "accuracy minus best control", "beam CRF from cross-entropy").value,
        find("search-objectives-stress", "word accuracy minus best control", "sampling, then beam CRF").value,
        find("search-objectives-pmb", "accuracy minus best control", "sampling, then beam CRF").value,
        find("stress", "word accuracy minus best control", "relaxed beam, global").value,
        find("search-objectives-pmb", "accuracy minus best control", "sampling, then dense beam loss").value,
        find("table-4.1-uni-converged", "accuracy minus best control", "beam CRF, global").value,
        find("table-4.1-uni-converged", "accuracy minus best control", "dense beam loss, global").value,
        value("frontier-stress-converged", "agree: word accuracy", "beam CRF, global")
        - value("frontier-stress-converged", "agree: word accuracy", "cross-entropy, local"),
        *(
            value(f"frontier-{corpus}", "delay(2): accuracy", "cross-entropy, look-ahead") - best_revised(corpus)
            for corpus in ("pmb", "ewt", "erg")
        ),
        value("frontier-stress", "agree: word accuracy", "beam CRF, global")
        - value("frontier-stress", "delay(2): word accuracy", "cross-entropy, look-ahead"),
        value("g2p", "beam: word error", "cross-entropy"),
        value("g2p", "raw beam: word error", "cross-entropy"),
    ]
    shown = re.findall(r"[0-9]+\.[0-9]", README)
    assert [number for number in saved if f"{number:.1f}" not in shown] == []


STREAMED = {
    "local scores, `delay(2)`": ("cross-entropy, local", "delay(2)"),
    "half-normalised scores, `delay(2)`": ("cross-entropy, half-normalised", "delay(2)"),
    "dense beam loss, `delay(2)`": ("dense beam loss, global", "delay(2)"),
    "beam CRF, `delay(2)`": ("beam CRF, global", "delay(2)"),
    "beam CRF, `agree`: shown at once and revised": ("beam CRF, global", "agree"),
    "plain tagger, look-ahead of one token, never revised": ("cross-entropy, look-ahead", "delay(1)"),
    "… of two tokens": ("cross-entropy, look-ahead", "delay(2)"),
    "… of four tokens": ("cross-entropy, look-ahead", "delay(4)"),
    "beam CRF, look-ahead of one token, revised": ("beam CRF, global, look-ahead of one token", "agree"),
    "two-way model, rerun on every prefix, revised": ("two-way, re-run on every prefix", "never"),
}
"""Systems and rules by the rows of the streaming guide's table."""


def test_numbers_of_the_streaming_guide_are_the_saved_ones() -> None:
    guide = (RESULTS.parent / "docs" / "guides" / "streaming.md").read_text(encoding="utf-8")
    rows = [row.strip("| ").split(" | ") for row in guide.splitlines() if row.startswith("| ")]
    above, seen = "", set()
    measures = {"stress": "word accuracy", "pmb": "accuracy", "ewt": "accuracy", "erg": "accuracy", "ner": "macro F1"}
    for label, *numbers in rows:
        retracted = label == "… labels retracted per 100 tokens"
        if not retracted and label not in STREAMED:
            continue
        system, rule = STREAMED[above if retracted else label]
        for (corpus, measure), number in zip(measures.items(), numbers, strict=True):
            shown = f"{rule}: {'retracted a hundred tokens' if retracted else measure}"
            assert number == f"{value(f'frontier-{corpus}', shown, system):.1f}", (label, corpus)
        above = above if retracted else label
        seen.add(label)
    assert seen >= STREAMED.keys()

    crf, local, half = "beam CRF, global", "cross-entropy, local", "cross-entropy, half-normalised"
    ahead = "{}, look-ahead of one token"

    def stress(system: str, rule: str) -> float:
        return value("frontier-stress", f"{rule}: word accuracy", system)

    saved = [
        stress(local, "delay(2)") - stress(crf, "delay(2)"),
        stress(crf, "delay(4)") - stress(local, "delay(4)"),
        *(best_revised(corpus) for corpus in ("pmb", "ewt", "erg")),
        stress(crf, "agree") - stress("cross-entropy, look-ahead", "delay(2)"),
        *(
            value(f"frontier-{corpus}", f"agree: {measure}", ahead.format("beam CRF, global"))
            - value(f"frontier-{corpus}", f"agree: {measure}", ahead.format(local))
            for corpus, measure in (("stress", "word accuracy"), ("pmb", "accuracy"))
        ),
        *(value("frontier-pmb-converged", "agree: accuracy", system) for system in (crf, half, local)),
        value("frontier-pmb-converged", "never: accuracy", "two-way, re-run on every prefix"),
        *(value("frontier-stress-converged", "agree: word accuracy", system) for system in (crf, half, local)),
        value("frontier-stress-converged", "never: word accuracy", "two-way, re-run on every prefix"),
        stress(half, "agree"),
        *(stress(f"beam CRF, trained for delay({n})", f"delay({n})") - stress(local, f"delay({n})") for n in (1, 2)),
        stress("beam CRF, trained for delay(2)", "agree"),
        stress("dense beam loss, global", "delay(2)"),
        stress("dense beam loss, trained for delay(2)", "delay(2)"),
    ]
    shown = re.findall(r"[0-9]+\.[0-9]", guide)
    assert [number for number in saved if f"{number:.1f}" not in shown] == []
    judged = {
        ("stress", "… than local scores at a delay of 1."),
        ("stress", "Global scores, shown at once and revised, do better than a look-ahead of two tokens."),
        ("stress", "With a look-ahead of one token, global scores do better than local ones, both revised."),
        ("pmb", "With a look-ahead of one token, global scores do better than local ones, both revised."),
        (
            "stress",
            "A two-way model, run again on every prefix, does better than global scores, both shown at once and "
            "revised.",
        ),
    }
    words = " ".join(guide.split())
    for corpus in ("stress", "pmb"):
        for claim in load_table(RESULTS / f"frontier-{corpus}.json").claims:
            if (corpus, claim.text) in judged:
                _, low, high, _ = claim.numbers
                assert f"[{100 * low:.1f}, {100 * high:.1f}]" in words
                judged.remove((corpus, claim.text))
    assert not judged


def test_numbers_of_the_guide_to_constraints_are_the_saved_ones() -> None:
    tables = [f"training-inside-{name}-converged" for name in ("ner", "g2p")]
    claims = [claim for table in tables for claim in load_table(RESULTS / f"{table}.json").claims]
    saved = {found for claim in claims for found in re.findall(r"\[-?[0-9.]+, -?[0-9.]+\]", claim.evidence)}
    guide = (RESULTS.parent / "docs" / "guides" / "constraints.md").read_text(encoding="utf-8")
    intervals = re.findall(r"\[-?[0-9]+\.[0-9], -?[0-9]+\.[0-9]\]", guide)
    assert len(intervals) == 5 and set(intervals) <= saved
    shown = re.findall(r"[0-9]+\.[0-9]", guide)
    for system in ("cross-entropy, longer", "cross-entropy, renormalised inside"):
        for decoder in ("beam", "renormalised beam"):
            assert f"{value(tables[1], f'{decoder}: word accuracy', system):.1f}" in shown


def test_results_made_again_are_compared_bit_for_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = load_table(RESULTS / "figure-3.1.json")
    save_table(table, tmp_path / "figure-3.1.json")
    assert main(tmp_path) == 0
    assert (
        capsys.readouterr().out
        == f"figure-3.1.json: {len(table.results)} of {len(table.results)} numbers are the same\n"
    )
    first, second, *rest = table.results
    changed = (replace(first, value=first.value + 1e-6), replace(second, system="new"), *rest)
    save_table(replace(table, results=changed), tmp_path / "figure-3.1.json")
    assert main(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"; was {first.value:.10g}") and lines[1].endswith("; is not among the results")
    assert lines[2].startswith(f"figure-3.1.json: {len(rest)} of ")
