"""The committed results say what the README says they do; each was written by the reproduction that made it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from reproductions.beyond import transformer_translation
from reproductions.corpora.readers import PIECES
from reproductions.goyal_2019.label_bias import LOG_PARTITION_WEIGHT
from seqwise.evaluation.report import Result, load_table
from seqwise.evaluation.verdicts import recompute

RESULTS = Path(__file__).parents[2] / "results"
TABLES = sorted(path for path in RESULTS.glob("*.json") if "results" in json.loads(path.read_bytes()))
README = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
CONTROLS = (
    "cross-entropy", "cross-entropy, longer", "scheduled sampling", "self-normalised", "relaxed beam, local",
)  # fmt: skip


def best_control(name: str) -> float:
    """What the control that is best on development data reaches on test, each with its decoder chosen there."""
    return chosen(name, max(CONTROLS, key=lambda system: on_dev(name, system)))


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
    differing = [(one, problem) for one, problem in recompute(load_table(path)) if problem not in ("", "no values")]
    assert not differing


@pytest.mark.thorough
def test_the_demo_has_the_values_of_every_number() -> None:
    for name in ("stress", "label-bias-toy"):
        table = load_table(RESULTS / f"{name}.json")
        found = [problem for _, problem in recompute(table)]
        assert found and not any(found)
        assert all(result.signature.training for result in table.results)


def test_the_toy_of_label_bias_is_the_saved_one() -> None:
    local = value("label-bias-toy", "beam: labels right", "relaxed beam, local")
    reached = value("label-bias-toy", "raw beam: labels right", "relaxed beam, global")
    assert f"local scores\nstay at {local:.1f}%; global scores reach {reached:.1f}%." in LABEL_BIAS


def test_numbers_of_the_readme_are_the_saved_ones() -> None:
    saved = [
        find("stress", "half-raw beam: words right", "cross-entropy").value,
        find("stress", "raw beam: words right", "beam CRF, global").value,
        find("stress", "greedy: words right", "cross-entropy, two-way").value,
        find("stress", "words right minus best control", "beam CRF, global").value,
        find("stress", "words right minus best control", "relaxed beam, global").value,
        find("search-objectives-pmb", "labels right minus best control", BEAM_CRF).value,
        value("g2p", "beam: word error", "cross-entropy"),
        value("g2p", "raw beam: word error", "cross-entropy"),
    ]
    shown = re.findall(r"[0-9]+\.[0-9]", README)
    assert [number for number in saved if f"{number:.1f}" not in shown] == []


HOW_TO_CHOOSE = (RESULTS.parent / "docs" / "how-to-choose.md").read_text(encoding="utf-8")
BEAM_CRF, DENSE, RELAXED = (f"sampling, then {name}" for name in ("beam CRF", "dense beam loss", "relaxed beam"))


def chosen(name: str, system: str) -> float:
    """What a system reaches on test with the decoder that was chosen on dev."""
    results = load_table(RESULTS / f"{name}.json").results
    (found,) = [r for r in results if r.system == system and r.note == "chosen on dev"]
    return found.value


def on_dev(name: str, system: str) -> float:
    """What a system reaches on dev with the decoder that is best there."""
    results = load_table(RESULTS / f"{name}.json").results
    return max(r.value for r in results if r.system == system and r.measure.endswith(", dev"))


@pytest.mark.parametrize(
    "row, name, systems",
    [
        ("CCG supertags, labels right (`table-4.1`)", "table-4.1",
         ("cross-entropy, longer", "scheduled sampling, greedy", "beam CRF, global")),
        ("named entities, macro F1 (`table-4.2`)", "table-4.2",
         ("cross-entropy, longer", "scheduled sampling, greedy", "dense beam loss, global")),
        ("the same, shorter, 3 seeds (`improvements`)", "improvements-g2p",
         ("cross-entropy, longer", "dense beam loss, local")),
        ("German to English, BLEU (`table-3.1`)", "table-3.1-translation",
         ("cross-entropy, longer", "scheduled sampling, greedy")),
        ("CCG supertags (`search-objectives`)", "search-objectives-pmb",
         ("cross-entropy, longer", DENSE, BEAM_CRF, RELAXED)),
        ("named entities (`search-objectives`)", "search-objectives-ner",
         ("scheduled sampling, longer", DENSE, BEAM_CRF, RELAXED)),
        ("stress, a third of the words (`search-objectives`)", "search-objectives-stress",
         ("cross-entropy", DENSE, BEAM_CRF, RELAXED)),
    ],
)  # fmt: skip
def test_the_tables_of_how_to_choose_are_the_saved_ones(row: str, name: str, systems: tuple[str, ...]) -> None:
    (line,) = [line for line in HOW_TO_CHOOSE.splitlines() if line.startswith(f"| {row} |")]
    shown = [float(number) for number in re.findall(r"(\d+\.\d) ?[*(|]", line.partition(") |")[2].replace("**", ""))]
    assert shown == [round(chosen(name, system), 1) for system in systems]


@pytest.mark.parametrize(
    "row, system",
    [
        ("dense beam loss, as above", DENSE),
        ("beam CRF, as above", BEAM_CRF),
        ("dense beam loss, k = 10, about the same time", "dense beam loss, k = 10"),
        ("beam CRF, k = 10, about the same time", "beam CRF, k = 10"),
        ("dense beam loss, twice as long", "dense beam loss, twice as long"),
        ("dense beam loss, then beam CRF", "dense beam loss, then beam CRF (twice as long)"),
        ("beam CRF + 0.5 direct loss through the relaxed beam", "beam CRF + 0.5 direct loss"),
        ("soft dense beam loss, alpha tied to score gaps", "soft dense beam loss, alpha by gaps"),
        ("relaxed beam, alpha tied to score gaps (without: 84.6, 39.8)", "relaxed beam, alpha by gaps"),
    ],
)
def test_the_improvements_of_how_to_choose_are_the_saved_ones(row: str, system: str) -> None:
    (line,) = [line for line in HOW_TO_CHOOSE.splitlines() if line.startswith(f"| {row} |")]
    shown = [float(cell.strip(" *")) for cell in line.split("|")[2:4]]
    saved = [
        value(f"improvements-{name}", f"{measure}, dev", system)
        for name, measure in (("pmb", "labels right"), ("ner", "macro F1"))
    ]
    assert shown == [round(number, 1) for number in saved]


def seconds_after(name: str, start: str, systems: tuple[str, ...]) -> list[int]:
    """Training seconds of systems beyond those of what they start from."""
    column = "training seconds, all stages"
    return [round(value(name, column, system) - value(name, column, start)) for system in systems]


def evidence(name: str, text: str) -> str:
    """What a claim of a table rests on."""
    (found,) = [claim for claim in load_table(RESULTS / f"{name}.json").claims if text in claim.text]
    return found.evidence


def greedy(name: str, system: str) -> float:
    """What a system reaches on test by greedy decoding."""
    (found,) = [
        r
        for r in load_table(RESULTS / f"{name}.json").results
        if r.system == system and r.measure.startswith("greedy: ") and not r.measure.endswith(", dev")
    ]
    return found.value


def test_the_sentences_of_how_to_choose_are_what_was_measured() -> None:
    text = " ".join(HOW_TO_CHOOSE.split())

    def says(sentence: str) -> bool:
        return sentence in text

    longer = "cross-entropy, longer"
    supertags = seconds_after("table-4.1", "cross-entropy", (longer, "scheduled sampling, greedy", "beam CRF, global"))
    entities = seconds_after(
        "table-4.2", "cross-entropy", (longer, "scheduled sampling, greedy", "dense beam loss, global")
    )
    assert says(
        f"are {supertags[0]}, {supertags[1]} and {supertags[2]} for supertags, "
        f"{entities[0]}, {entities[1]} and {entities[2]} for named entities"
    )
    control = chosen("search-objectives-pmb", "scheduled sampling, longer")
    gain = chosen("search-objectives-pmb", DENSE) - control
    assert says(f"gets {control:.1f} on test; against it the dense beam loss has +{gain:.1f} points")
    over = find("search-objectives-ner", "macro F1 minus best control", BEAM_CRF)
    assert over.p_value is not None
    assert says(f"(+{over.value:.1f} points; p = {over.p_value:.3f} for the beam CRF")
    twice = re.search(r"([+-][\d.]+) \[.*\], p = ([\d.]+)", evidence("improvements-pmb", "twice as long"))
    assert twice is not None and says(f"({twice[1]} on test, p = {twice[2]}, of two corpora on one)")
    edits = re.search(r": ([+-][\d.]+ \[.*?\])", evidence("improvements-g2p", "The edit distance as cost"))
    assert edits is not None and says(f"({edits[1].replace('-', '−')})")
    effects = [
        chosen(f"search-objectives-{name}", BEAM_CRF)
        - chosen(f"search-objectives-{name}", "beam CRF from cross-entropy")
        for name in ("pmb", "ner", "stress")
    ]
    shown = [f"{effect:+.1f}".replace("-", "−") for effect in effects]
    assert says(f"({shown[0]}, {shown[1]} and {shown[2]} points, not tested)")
    for name in ("pmb", "stress"):
        alone = greedy(f"search-objectives-{name}", "scheduled sampling")
        assert says(f"{alone:.1f} against {greedy(f'search-objectives-{name}', longer):.1f})")


def raw_gain(name: str, measure: str, system: str) -> float:
    """What raw scores add to a beam, in points."""
    return value(name, f"raw beam: {measure}", system) - value(name, f"beam: {measure}", system)


def test_what_how_to_choose_says_of_the_raw_beam_of_a_plain_model() -> None:
    text = " ".join(HOW_TO_CHOOSE.split())
    shown = re.search(r"worth \+(\d) to \+(\d) points on supertags for nothing, −(\d+) to −(\d+) on named entities, "
                      r"and from \+(\d) to −(\d) on stress", text)  # fmt: skip
    assert shown is not None
    low, high, little, much, first, longer = map(int, shown.groups())
    plain = ("cross-entropy", "cross-entropy, longer")
    supertags, entities, stress = (
        [raw_gain(f"search-objectives-{name}", measure, system) for system in plain]
        for name, measure in (("pmb", "labels right"), ("ner", "macro F1"), ("stress", "words right"))
    )
    assert supertags == [pytest.approx(low, abs=0.55), pytest.approx(high, abs=0.55)]
    assert entities == [pytest.approx(-much, abs=0.55), pytest.approx(-little, abs=0.55)]
    assert stress == [pytest.approx(first, abs=0.55), pytest.approx(-longer, abs=0.55)]
    nats = value("g2p", "mean log Z", "cross-entropy")
    right, ruined = (value("g2p", f"{decoder}: word error", "cross-entropy") for decoder in ("beam", "raw beam"))
    assert f"log Z ({nats:.0f} nats on spelling to sound)" in text
    assert f"word error goes from {right:.1f} to {ruined:.1f}%" in text
    assert f"outputs are {value('g2p', 'raw beam: length ratio', 'cross-entropy'):.1f} times as long" in text


def test_what_how_to_choose_says_of_one_seed() -> None:
    text = " ".join(HOW_TO_CHOOSE.split())
    systems = ("cross-entropy, longer", "scheduled sampling", "relaxed beam, local")
    seconds = [round(value("g2p", "training seconds", system)) for system in systems]
    assert f"{seconds[0]}, {seconds[1]} and {seconds[2]} for spelling to sound" in text
    right = [100 - value("g2p", "beam: word error", system) for system in systems]
    assert f"| spelling to sound, words right (`g2p`) | **{right[0]:.1f}** | {right[1]:.1f} | {right[2]:.1f} " in text
    gain = find("stress", "words right minus best control", "relaxed beam, global").value
    assert f"{gain:+.1f} points on stress" in text
    row = [chosen("stress", name) for name in ("beam CRF, global", "relaxed beam, global")]
    assert f"| {best_control('stress'):.1f} | – | **{row[0]:.1f}** | {row[1]:.1f} |" in text
    said = f"best control gets {best_control('stress'):.1f}% of the words right, the relaxed beam with global scores"
    assert f"{said} {row[1]:.1f}%, the likelihood over a beam (beam CRF) {row[0]:.1f}%" in " ".join(LABEL_BIAS.split())


LABEL_BIAS = (RESULTS.parent / "docs" / "label-bias.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "row, name, system",
    [
        *((one, "5.2", one) for one in (
            "cross-entropy", "cross-entropy, longer", "relaxed beam, local", "relaxed beam, global", "beam CRF, global",
        )),
        *((one, "5.3", one) for one in ("self-normalised", "self-normalised, longer")),
        *((f"self-normalised, then {one}", "5.3", one) for one in ("relaxed beam, local", "relaxed beam, global")),
    ],
)  # fmt: skip
def test_the_table_of_label_bias_is_the_saved_one(row: str, name: str, system: str) -> None:
    before = LABEL_BIAS.partition("## Translation")[0]
    (line,) = [line for line in before.splitlines() if line.startswith(f"| {row} |")]
    shown = [float(cell.strip(" *")) for cell in line.split("|")[2:4]]
    columns = ("beam: labels right", "raw beam: labels right")
    assert shown == [round(value(f"table-{name}-pmb-uni", column, system), 1) for column in columns]


def test_what_label_bias_says_of_the_claims() -> None:
    difference = value("table-5.3-pmb-uni", "raw beam: labels right", "relaxed beam, global") - value(
        "table-5.3-pmb-uni", "beam: labels right", "relaxed beam, local"
    )
    assert f"by {difference:.1f}\npoints" in LABEL_BIAS
    (crf,) = re.findall(r": ([+-][\d.]+) \[", evidence("search-objectives-pmb", "“beam CRF from cross-entropy” beats"))
    assert f"{crf} straight from cross-entropy, five seeds" in " ".join(LABEL_BIAS.split())
    (crf,) = re.findall(r": ([+-][\d.]+) \[", evidence("table-5.2-pmb-uni", "The best search-aware row beats longer"))
    assert f"the beam CRF's {crf} could be chance" in " ".join(LABEL_BIAS.split())
    distilled = value("table-5.2-pmb-uni", "raw beam: labels right", "distilled, then relaxed beam, global")
    assert f"worse ({distilled:.1f})" in LABEL_BIAS
    start = re.search(r": ([+-][\d.]+) \[.*\], p = 0([.\d]{3})", evidence("table-5.2-pmb-bi", "A distilled start"))
    assert start is not None and f"may help a little ({start[1]}, p = {start[2]})" in LABEL_BIAS


TRANSLATORS = (
    "cross-entropy", "cross-entropy, longer", "relaxed beam, local", "relaxed beam, global", "self-normalised",
    "self-normalised, longer", "self-normalised, then local", "self-normalised, then global", "distilled, then global",
)  # fmt: skip


@pytest.mark.parametrize("system", TRANSLATORS)
def test_the_translators_of_label_bias_are_the_saved_ones(system: str) -> None:
    part = LABEL_BIAS.partition("## Translation")[2].partition("### ")[0]
    (line,) = [line for line in part.splitlines() if line.startswith(f"| {system} |")]
    shown = [float(cell.strip(" *")) for cell in line.split("|")[2:4]]
    assert shown == [round(value("table-5.4", column, system), 1) for column in ("beam: BLEU", "raw beam: BLEU")]


def test_what_label_bias_says_of_ngrams_and_of_what_self_normalising_costs() -> None:
    text = " ".join(LABEL_BIAS.split())

    def shares(measure: str) -> list[float]:
        names = ("self-normalised, then global (raw beam)", "self-normalised, then local (beam)")
        return [value("table-5.5", measure, name) for name in names]

    for measure, what in (("1-gram overlap", "unigrams"), ("4-gram overlap", "4-grams")):
        ours, local = shares(measure)
        assert f"({ours:.1f}% of {what} against {local:.1f}%" in text
    ours, local = (f"{share:.2f}".removeprefix("0") for share in shares("length ratio"))
    assert f"({ours} of the reference against {local})" in text
    for table, measure in (
        *((f"supertags{corpus}", "labels right") for corpus in ("", "-erg", "-ewt")),
        ("translation", "BLEU"),
    ):
        of = {
            name: [value(f"table-5.1-{table}", one, name) for one in (
                "mean of log Z on dev", "variance of log Z on dev", f"beam: {measure}")]
            for name in ("cross-entropy", "self-normalised")
        }  # fmt: skip
        means, variances, right = zip(*of.values(), strict=True)
        assert f"from {means[0]:.1f} to {means[1]:.1f}" in text and f"{variances[0]:.1f} to {variances[1]:.1f}" in text
        assert f"{right[0]:.1f} against {right[1]:.1f} {measure}" in text


def test_what_label_bias_says_of_andreas_and_klein() -> None:
    text = " ".join(LABEL_BIAS.split())
    for name in ("γ = 0", "γ = 1/128", "γ = 0.1", "γ = 1", "normalised, α = 0.1 (Devlin)"):
        of = [value("andreas-klein-1", m, name) for m in ("R", "mean |log Z - mean|", "perplexity", "training seconds")]
        perplexity = f"{of[2]:.1f}" if name != "γ = 0" else "–"
        assert f"| {name} | {of[0]:.2f} | {of[1]:.2f} | {perplexity} | {of[3]:.0f} |" in text
    (ratio,) = re.findall(r"s: ([\d.]+) times", evidence("andreas-klein-1", "ten times as fast"))
    assert f"γ = 0.1 is {ratio} times as fast as γ = 1" in text
    weak, strong = (value("andreas-klein-2", "R", name) for name in ("α = 0.01", "α = 10"))
    assert f"({weak:.2f} with α = .01" in text and f"to {strong:.2f} (α = 10)" in text
    found = load_table(RESULTS / "andreas-klein-1.json").results
    bleu = [round(one.value, 1) for one in found if one.measure == "BLEU"]
    found = load_table(RESULTS / "andreas-klein-2.json").results
    bleu += [round(one.value, 1) for one in found if one.measure == "BLEU"]
    assert f"between {min(bleu)} and {max(bleu)}" in text
    first, second = (evidence("figure-1", f"Theorem {number}") for number in (1, 2))
    reached = [re.search(r"at most ([\d.]+) of", one) for one in (first, second)]
    assert all(reached) and f"at most {reached[0][1]} and {reached[1][1]} of their bounds" in text  # type: ignore[index]


def test_what_label_bias_says_of_translators_and_of_english_dependencies() -> None:
    text = " ".join(LABEL_BIAS.split())
    names = ("relaxed beam, global", "distilled, then global")
    plain, raw = (value("table-5.4", "raw beam: BLEU", name) for name in names)
    assert f"({plain:.1f})" in text and f"({raw:.1f})" in text
    gains = [
        value(table, "raw beam: labels right", "relaxed beam, global")
        - value(table, "beam: labels right", "relaxed beam, local")
        for table in ("table-5.3-ewt-uni", "table-5.2-ewt-uni")
    ]
    said = f"beats local by {gains[0]:.1f} points from a self-normalised start, and is {gains[1]:.1f} ahead"
    assert said in text
    longer = value("table-5.2-ewt-uni", "raw beam: labels right", "cross-entropy, longer")
    assert f"in its raw beam ({longer:.1f})" in LABEL_BIAS
    erg = "table-5.2-erg-uni"
    local, plain, longer = (
        value(erg, "beam: labels right", name)
        for name in ("relaxed beam, local", "cross-entropy", "cross-entropy, longer")
    )
    global_, raw, longer_raw = (
        value(erg, "raw beam: labels right", name)
        for name in ("relaxed beam, global", "cross-entropy", "cross-entropy, longer")
    )
    assert f"gives {local:.1f} in a beam and global {global_:.1f} in\nits raw beam" in LABEL_BIAS
    assert f"has {plain:.1f} and {raw:.1f} and longer cross-entropy {longer:.1f} and {longer_raw:.1f}." in LABEL_BIAS
    started = [
        value("table-5.3-erg-uni", f"{decoder}: labels right", name)
        for decoder, name in (("raw beam", "relaxed beam, global"), ("beam", "relaxed beam, local"))
    ]
    assert f"by {started[0] - started[1]:.1f} ({started[0]:.1f} against {started[1]:.1f}), and does no better" in text
    both_ways = [
        value("table-5.2-erg-bi", f"{decoder}: labels right", name)
        for decoder, name in (
            ("beam", "relaxed beam, local"), ("raw beam", "relaxed beam, global"), ("beam", "cross-entropy"),
            ("beam", "cross-entropy, longer"),
        )
    ]  # fmt: skip
    numbers = "have {:.1f} and {:.1f} where cross-entropy has {:.1f} in a beam, and longer cross-entropy {:.1f}."
    assert numbers.format(*both_ways) in text
    penalty = LOG_PARTITION_WEIGHT * math.log(PIECES) ** 2
    assert f"lambda (log V)^2, {penalty:.1f} nats a token here" in LABEL_BIAS


@pytest.mark.parametrize(("model", "place"), [("transformer", 0), ("marian", 1)])
def test_what_label_bias_says_of_transformers(model: str, place: int) -> None:
    name = f"transformer-translation-{model}"
    if not (RESULTS / f"{name}.json").exists():
        pytest.skip(f"results/{name}.json has not been made: python -m reproductions transformer-translation")
    section = LABEL_BIAS.partition("### With Transformers")[2].partition("\n## ")[0]
    for system in transformer_translation.NAMES.values():
        (line,) = [line for line in section.splitlines() if line.startswith(f"| {system} |")]
        measures = ("greedy: BLEU", "beam: BLEU", "raw beam: BLEU", "training seconds, all stages")
        *numbers, seconds = [value(name, measure, system) for measure in measures]
        shown = [*(f"{number:.1f}" for number in numbers), f"{seconds:,.0f}"]
        columns = line.removeprefix(f"| {system} | ").removesuffix(" |").split(" | ")
        assert columns[4 * place : 4 * place + 4] == shown


def test_what_label_bias_says_between_the_lines_about_transformers() -> None:
    said = " ".join(LABEL_BIAS.partition("### With Transformers")[2].partition("\n## ")[0].split())

    def gain(model: str, system: str, decoder: str = "beam", sign: int = 1) -> str:
        table = f"transformer-translation-{model}"
        own, plain = (value(table, f"{decoder}: BLEU", name) for name in (system, "cross-entropy"))
        return f"{sign * (own - plain):.1f}"

    for model in ("transformer", "marian"):
        if not (RESULTS / f"transformer-translation-{model}.json").exists():
            pytest.skip("results/transformer-translation-*.json have not been made")
    longer, sampling, local = "cross-entropy, longer", "scheduled sampling, two-pass", "relaxed beam, local"
    assert f"gains {gain('transformer', longer)} points in a beam" in said
    assert f"in about the same time, {gain('transformer', sampling)};" in said
    assert f"loses {gain('transformer', local, sign=-1)} with local scores" in said
    assert f"({gain('marian', local, sign=-1)} lost with Marian)" in said
    own = gain("transformer", "relaxed beam, global", "greedy")
    assert f"though the greedy search of our own gains {own} with global ones." in said


RAW_SCORES = {
    "CCG supertags, left to right": "CCG supertags (Parallel Meaning Bank), left to right",
    "stress, left to right": "streaming stress assignment (CMU dictionary)",
    "named entities, left to right": "German named entities (GermEval 2014), left to right",
    "CCG supertags, both ways": "CCG supertags (Parallel Meaning Bank), both ways",
    "spelling to sound": "spelling to sound (CMU dictionary)",
}


@pytest.mark.parametrize("row", RAW_SCORES)
def test_raw_scores_by_task_are_the_saved_ones(row: str) -> None:
    (line,) = [line for line in LABEL_BIAS.splitlines() if line.startswith(f"| {row} |")]
    shown = [float(cell.strip(" *")) for cell in line.split("|")[2:7]]
    ranked = ("log p(prefix)", "next log Z", "log p + next log Z")
    columns = ("beam", "raw beam", *(f"ranked first by {name}" for name in ranked))
    assert shown == [round(value("raw-scores", column, RAW_SCORES[row]), 1) for column in columns]
    if row == "spelling to sound":
        back = value("raw-scores", "recovered by the constant", RAW_SCORES[row])
        constant = value("raw-scores", "raw beam less a constant", RAW_SCORES[row])
        assert f"gives back {back:.1f}% of what is lost ({constant:.1f})" in LABEL_BIAS


SAMPLING = (RESULTS.parent / "docs" / "sampling.md").read_text(encoding="utf-8")


def test_what_sampling_says_of_a_model_that_has_learnt_something() -> None:
    def of(table: str, measure: str, system: str) -> float:
        return value(f"table-{table}-g2p", measure, system)

    for temperature in ("2", "1", "0.5"):
        ours, gibbs = f"MH, local, T = {temperature}", f"Gibbs, T = {temperature}"
        row = [temperature]
        for system in (ours, gibbs):
            right = [of("6.2", f"words right, {which}", system) for which in ("samples", "lowest energy")]
            row += [*(f"{number:.1f}" for number in right), f"{of('6.2', 'E_local, samples', system):.2f}"]
            row += [f"{of('6.2', 'novel', system):.1f}"] if system == ours else []
        assert "| T = " + " | ".join(row) + " |" in SAMPLING
    gibbs, ours = (of("6.2", "words right, samples", f"{name}, T = 0.5") for name in ("Gibbs", "MH, local"))
    assert f"({gibbs:.1f} against {ours:.1f} words right)" in SAMPLING
    annealed, plain, fast = (
        of("6.5", "words right, last state", f"MH, local, {how}")
        for how in ("annealed by 0.02", "not annealed", "annealed by 0.06")
    )
    assert f"have {annealed:.1f} instead of {plain:.1f} words right" in SAMPLING
    assert f"they have {fast:.1f}." in SAMPLING
    gibbs, ours = (
        of("6.6", "words right, last state", name) for name in ("Gibbs, T = 0.8", "MH, local, annealed by 0.02")
    )
    assert f"by last states it has {gibbs:.1f} and MH, annealed, {ours:.1f}." in SAMPLING
    one, five = (of("6.6", "words right, last state", f"Mask-Predict{how}") for how in ("", ", 5 lengths"))
    assert f"Mask-Predict ({one:.1f})" in SAMPLING and f"five lengths ({five:.1f})" in SAMPLING
    for temperature, said in (("0.5", "in {} of 100 cases and leave a"), ("1", "are accepted in {} and leave")):
        assert said.format(f"{of('6.2', 'acceptance', f'MH, local, T = {temperature}'):.0f}") in SAMPLING
        assert f"{of('6.2', 'R-hat of the energy, median', f'MH, local, T = {temperature}'):.2f}" in SAMPLING
    own, cold, hot = (of("6.2", "ESS per 1,000 passes", f"MH, local, T = {t}") for t in ("1", "0.5", "2"))
    assert f"1,000 passes, {own:.0f}; T = 0.5 gives {cold:.0f} and T = 2 gives {hot:.0f}." in SAMPLING
    blocks, single = (of("6.4", "novel", f"MH, local, {how}") for how in ("blocks", "single positions"))
    assert f"({blocks:.1f} of 100 proposals against {single:.1f}, `table-6.4`)" in SAMPLING
    assert f"but {of('6.4', 'ESS per 1,000 passes', 'MH, local, blocks'):.0f} effective samples" in SAMPLING


def test_what_sampling_says_of_exact_likelihoods_of_phonemes() -> None:
    found = {one.measure: one for one in load_table(RESULTS / "table-6.1-phonemes.json").results}
    nats = [f"{found[name].value:.2f}" for name in ("PLL", "MLM, raw", "MLM, local")]
    said = "cost {} nats by pseudolikelihood, and as an MLM {} read as E_raw and {} as E_local".format(*nats)
    assert said in " ".join(SAMPLING.split())
    published = [f"{found[name].published:.2f}" for name in ("PLL", "MLM, raw")]
    assert "the thesis has {} and {} for the first two".format(*published) in " ".join(SAMPLING.split())


def test_what_sampling_says_of_translation() -> None:
    found = load_table(RESULTS / "table-6.2-translation.json")
    said = " ".join(SAMPLING.partition("### And on one that translates")[2].partition("\n## ")[0].split())

    def of(measure: str, system: str, places: int = 1) -> str:
        return f"{value('table-6.2-translation', measure, system):.{places}f}"

    bleu, lowest, energy = "BLEU, samples", "BLEU, lowest energy", "E_local, samples"
    for temperature in ("2", "1", "0.5"):
        ours, gibbs = f"MH, local, T = {temperature}", f"Gibbs, T = {temperature}"
        row = [of(one, ours) for one in (bleu, lowest, energy, "novel", "acceptance")]
        row += [of(one, gibbs) for one in (bleu, lowest, energy, "novel")]
        assert f"| T = {temperature} | {' | '.join(row)} |" in said
    ours, gibbs = "MH, local, T = 1", "Gibbs, T = 1"
    assert f"({of(energy, gibbs)} against {of(energy, ours)} nats)" in said
    assert f"({of(bleu, gibbs)} BLEU against {of(bleu, ours)}; the thesis has 9.0 against 24.7)" in said
    assert f"a cold Gibbs is the best of all ({of(bleu, 'Gibbs, T = 0.5')})" in said
    assert f"median R-hat of {of('R-hat of the energy, median', ours, 2)} at T = 1" in said
    (seconds,) = re.findall(r"pseudo-perplexity [\d.]+ on dev, ([\d,]+) CPU seconds each", found.note)
    assert f"three models of {seconds} CPU seconds each" in said and found.note.startswith("100 test sentences")


def test_what_sampling_says_of_nuclei_blocks_and_annealing_on_translation() -> None:
    said = " ".join(SAMPLING.partition("### And on one that translates")[2].partition("\n## ")[0].split())

    def of(table: str, measure: str, system: str, places: int = 1) -> str:
        found = value(f"{table}-translation", measure, system)
        return f"{found:.{places}f}"

    bleu, last, novel = "BLEU, samples", "BLEU, last state", "novel"
    gibbs = [of("table-6.3", bleu, f"Gibbs, nucleus {nucleus}") for nucleus in ("1", "0.8")]
    ours = {of("table-6.3", bleu, f"MH, local, nucleus {nucleus}") for nucleus in ("1", "0.8")}
    assert f"with .8 Gibbs goes from {gibbs[0]} to {gibbs[1]} BLEU, while MH stays at {' '.join(ours)} and" in said
    r_hat = of("table-6.3", "R-hat of the energy, median", "MH, local, nucleus 0.8", 2)
    assert f"mixes worse (median R-hat {r_hat})" in said
    blocks, single = (of("table-6.4", novel, f"MH, local, {how}") for how in ("blocks", "single positions"))
    assert f"({blocks} novel of 100 proposals against {single})" in said
    start = [of("figure-6.2", f"{what} of MH, local", "epoch 0") for what in ("BLEU", "E_local")]
    assert f"has {start[0]} BLEU at {start[1]} nats" in said
    plain, fast = "MH, local, not annealed", "MH, local, annealed by 0.06"
    numbers = [of("table-6.5", one, system) for one in (last, "E_local, last state") for system in (fast, plain)]
    assert "have {} BLEU instead of {}, at {} nats instead of {} (`table-6.5`)".format(*numbers) in said


def test_what_sampling_says_of_modes_on_translation() -> None:
    said = " ".join(SAMPLING.partition("### And on one that translates")[2].partition("\n## ")[0].split())
    found = load_table(RESULTS / "table-6.6-translation.json")
    rows = {
        "greedy fill": ("warm start", "last state"),
        "degenerate Gibbs, T = 0.8": ("Gibbs, T = 0.8", "lowest energy"),
        "Mask-Predict": ("Mask-Predict", "last state"),
        "**Mask-Predict, 5 lengths": ("Mask-Predict, 5 lengths", "last state"),
        "MH, local, annealed": ("MH, local, annealed by 0.04", "lowest energy"),
        "MH, raw, annealed": ("MH, raw, annealed by 0.04", "last state"),
        "the lowest energy of 35 drawn Mask-Predicts": ("the best of 35 drawn Mask-Predicts", "lowest energy"),
    }
    for key, (system, state) in rows.items():
        name = key.removeprefix("**")
        bleu, energy = (value("table-6.6-translation", f"{what}, {state}", system) for what in ("BLEU", "E_local"))
        shown = f"**{bleu:.1f}**" if key.startswith("**") else f"{bleu:.1f}"
        passes = value("table-6.6-translation", "passes", system)
        assert f"| {name} | {shown} | {energy:.1f} | {passes:.0f} |" in said
        if not name.startswith(("greedy", "Mask", "the")):  # the state that was chosen on development data
            assert f"{system}: {state.split()[0]} (" in found.note
    (plain,) = (one.value for one in found.results if one.system.startswith("left to right"))
    assert f"has {plain:.1f}.)" in said
    last = [value("table-6.6-translation", "BLEU, last state", rows[key][0])
            for key in ("MH, local, annealed", "MH, raw, annealed", "degenerate Gibbs, T = 0.8")]  # fmt: skip
    assert "{:.1f} BLEU with local energies, {:.1f} with raw ones, and {:.1f} of Gibbs".format(*last) in said


def test_what_sampling_says_of_a_model_without_right_answers() -> None:
    def of(table: str, measure: str, system: str) -> float:
        return value(f"table-{table}-phonemes", measure, system)

    energy = "E_local, samples"
    for temperature in ("2", "1", "0.5"):
        ours, gibbs = f"MH, local, T = {temperature}", f"Gibbs, T = {temperature}"
        numbers = [of("6.2", one, ours) for one in (energy, "novel", "acceptance")]
        numbers += [of("6.2", one, gibbs) for one in (energy, "novel")]
        assert f"| T = {temperature} | " + " | ".join(f"{number:.1f}" for number in numbers) + " |" in SAMPLING
    ours, gibbs = (of("6.2", energy, f"{name}, T = 1") for name in ("MH, local", "Gibbs"))
    assert (
        f"at {ours:.1f} nats whatever it proposes" in SAMPLING and f"settles {gibbs - ours:.1f} nats higher" in SAMPLING
    )
    assert f"the median R-hat of MH is {of('6.2', 'R-hat of the energy, median', 'MH, local, T = 1'):.2f}" in SAMPLING
    refused = 100 - of("6.2", "acceptance", "MH, local, T = 1")
    assert f"Of 100 proposals {refused:.0f} are refused" in SAMPLING
    assert f"it was {100 - value('table-6.2-g2p', 'acceptance', 'MH, local, T = 1'):.0f}, and there" in SAMPLING
    blocks, single = (of("6.4", "novel", f"MH, local, {how}") for how in ("blocks", "single positions"))
    assert f"({blocks:.1f} against {single:.1f} novel of 100 proposals, `table-6.4`)" in SAMPLING
