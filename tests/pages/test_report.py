"""seqwise report: pages of every kind of run, read back; their numbers against the log and against other arithmetic."""

from __future__ import annotations

import base64
import json
import math
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import torch

from command_line import Command, run_main
from oracles import forced_logits, translation_case
from run_folders import json_lines
from seqwise import HardTopK, SoftTopK, beam_search, global_, hamming_cost, local
from seqwise.data import collate
from seqwise.data.readers import Example
from seqwise.evaluation import Counts, edit_distance
from seqwise.objectives import log_partitions
from seqwise.pages.report import ReportOptions, watch_report, write_report
from seqwise.pages.report.blocks import Folded, Listing, Table, plain_number
from seqwise.pages.report.chains import autocorrelation
from seqwise.pages.report.curves import so_far, training_figures
from seqwise.pages.report.drawing import FAINTEST, Palette, draw_lattice, lattice_palette
from seqwise.pages.report.examples import ALPHAS, lattice_blocks, lattice_legend, search_example
from seqwise.pages.report.folders import Folder, StageLog
from seqwise.pages.report.lattice import Lattice, Node, beam_lattice, drawn_steps
from seqwise.pages.report.page import MARKER
from seqwise.pages.report.plots import MOST_POINTS, thinned
from seqwise.pages.report.results import Output, Result, comparable, error_tables, output_listings, verdict
from seqwise.pages.report.sampling import sampling_verdict
from seqwise.runs import load_run, predict
from seqwise.runs.inputs import read_examples
from seqwise.sampling.diagnostics import FEWEST_DRAWS
from seqwise.training.checkpoints import MEASUREMENTS

SCRIPT = "<script>alert('x')</script>"
WORDS = {"the": "DET", "a": "DET", "dog": "NOUN", "cat": "NOUN", "runs": "VERB", "sees": "VERB", SCRIPT: '<b>"&X'}
TINY = ["--hidden-size=8", "--embedding-size=8", "--batch-size=8", "--beam-size=3"]
VOID = {"meta", "link", "input", "br", "img", "hr"}


# ---- Reading a page -------------------------------------------------------------------------------------------------


class Element:
    """An element of a page, with what is in it."""

    def __init__(self, tag: str, attributes: dict[str, str], parent: Element | None) -> None:
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children: list[Element | str] = []

    def all(self, tag: str | None = None) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                if tag in (None, child.tag):
                    yield child
                yield from child.all(tag)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def rows(self) -> list[list[str]]:
        return [[cell.text for cell in row.all() if cell.tag in ("th", "td")] for row in self.all("tr")]


class Page(HTMLParser):
    """A page as a tree; refuses what is not closed where it should be."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text("utf-8")
        self.root = self.now = Element("", {}, None)
        self.feed(self.source)
        self.close()
        assert self.now is self.root

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), attrs
        element = Element(tag, {name: value or "" for name, value in attrs}, self.now)
        self.now.children.append(element)
        if tag not in VOID:
            self.now = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.now.tag == tag and self.now.parent is not None, (tag, self.now.tag, self.getpos())
        self.now = self.now.parent

    def handle_data(self, data: str) -> None:
        self.now.children.append(data)

    def table(self, caption: str) -> list[list[str]]:
        """The rows of the one table whose caption begins so, headings first."""
        found = [one for one in self.root.all("table") if next(one.all("caption")).text.startswith(caption)]
        assert len(found) == 1, (caption, [next(one.all("caption")).text for one in self.root.all("table")])
        return found[0].rows

    @property
    def text(self) -> str:
        return self.root.text


def check(page: Page) -> None:
    """Check that a page is complete, self-contained, and usable without eyes, mouse and network."""
    elements = list(page.root.all())
    assert len(page.source.encode()) < 5_000_000 and MARKER in page.source
    # Nothing from outside: no address at all, nor anything that would be loaded.
    assert not re.search(r"(?:https?|file|ftp):|//\w|@import|url\((?!#)", page.source)
    assert not {"link", "iframe", "object", "embed", "img", "base", "form"} & {one.tag for one in elements}
    assert not [name for one in elements for name in one.attributes if name.startswith("on") or name == "src"]
    ids = Counter(one.attributes["id"] for one in elements if "id" in one.attributes)
    assert max(ids.values()) == 1
    for one in elements:
        for name in ("aria-labelledby", "for", "aria-describedby"):
            assert set(one.attributes.get(name, "").split()) <= set(ids), one.attributes
        for value in one.attributes.values():
            assert set(re.findall(r"url\(#([^)]+)\)", value)) <= set(ids), value
        if one.attributes.get("href", "").startswith("#"):
            assert one.attributes["href"][1:] in ids
        if one.tag == "svg" and one.attributes.get("aria-hidden") != "true":
            assert one.attributes["role"] == "img" and "viewbox" in one.attributes
            named = one.attributes.get("aria-labelledby", "").split()
            name = one.attributes.get("aria-label") or " ".join(other.text for other in elements
                                                                if other.attributes.get("id") in named)  # fmt: skip
            assert len(name) > 20 and re.search(r"\d", name), name
        if one.tag == "input":
            assert one.attributes["type"] == "range" and one.attributes["id"] in {
                label.attributes["for"] for label in page.root.all("label")
            }
        if one.tag == "th":
            assert one.attributes["scope"] in ("col", "row")
        if one.tag == "table":
            assert len({len(row) for row in one.rows}) == 1, one.rows
        if one.attributes.get("class") == "scroll":
            assert one.attributes["tabindex"] == "0" and one.attributes["aria-label"]
    count = Counter(one.tag for one in elements)
    assert (count["h1"], count["main"], count["header"], count["nav"], count["footer"], count["title"] > 0) == (
        1, 1, 1, 1, 1, True,
    )  # fmt: skip
    levels = [int(one.tag[1]) for one in elements if re.fullmatch("h[1-6]", one.tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert next(page.root.all("html")).attributes["lang"] == "en"
    # Of the scripts there is ours alone, and the page's policy names its sum.
    (script,) = page.root.all("script")
    policy = next(one for one in page.root.all("meta") if "http-equiv" in one.attributes).attributes["content"]
    digest = base64.b64encode(sha256(script.text.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and policy.startswith("default-src 'none'")


# ---- Runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chance = tmp_path_factory.mktemp("data"), random.Random(0)
    for name, count in (("train", 40), ("dev", 9)):
        sentences = [chance.choices(list(WORDS), k=chance.randint(2, 4)) for _ in range(count)]
        lines = ("".join(f"{word}\t{WORDS[word]}\n" for word in one) for one in sentences)
        (folder / f"{name}.conll").write_text("\n".join(lines))
        words = ["".join(chance.choices("abc", k=chance.randint(1, 4))) for _ in range(count)]
        (folder / f"{name}.tsv").write_text("".join(f"{word}\t{' '.join(reversed(word.upper()))}\n" for word in words))
        (folder / f"{name}.txt").write_text("".join(f"{' '.join(one)}\n" for one in sentences))
    return folder


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of every kind, made as users make them."""
    folder = tmp_path_factory.mktemp("runs")
    tagger = ["train", "--train", data / "train.conll", "--dev", data / "dev.conll", *TINY, "--objective=relaxed-beam"]
    tagger += [
        "--label-embedding-size=4",
        "--epochs=1",
        "--warm-start-epochs=2",
        "--warm-start-learning-rate=0.03",
        "--learning-rate=0.01",
    ]
    run_main(*tagger, "--output", folder / "tagger")
    run_main(*tagger, "--score=global", "--seed=1", "--output", folder / "other")
    speller = ["train", "--task=transduce", "--train", data / "train.tsv", "--source-units=characters", *TINY]
    run_main(
        *speller, "--objective=cross-entropy", "--epochs=6", "--learning-rate=1e-2", "--output", folder / "speller"
    )
    sizes = ["--hidden-size=8", "--num-layers=1", "--num-heads=2", "--feedforward-size=8", "--batch-size=8"]
    masked = ["masked-model", "train", data / "train.txt", "--dev", data / "dev.txt", *sizes, "--epochs=2"]
    run_main(*masked, "--output", folder / "mlm")
    sample = ["sample", folder / "mlm", "--length=3-5", "--count=3", "--chains=3", "--sweeps=16", "--discard=4"]
    run_main(*sample, "--every=2", "--output", folder / "samples")
    return folder


@pytest.fixture
def report(seqwise: Command, tmp_path: Path) -> partial[Page]:
    """Run seqwise report, and read the page."""

    def run(*arguments: object) -> Page:
        ended = seqwise("report", *arguments, "--output", tmp_path / "report.html")
        # A slow machine prints the time left there as well.
        assert ended.code == 0 and "seqwise:" not in ended.err, ended
        page = Page(tmp_path / "report.html")
        check(page)
        return page

    return partial(run)


# ---- Training runs ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_numbers_of_a_training_are_those_of_its_log(report: partial[Page], runs: Path, data: Path) -> None:
    page = report(runs / "tagger", "--examples=1")
    for stage, folder in (("warm start", "warm-start"), ("training", "")):
        log = {f"{line['step']:.6g}": line for line in json_lines(runs / "tagger" / folder / "log.jsonl")}
        columns, *rows = page.table(f"tagger, {stage}: values")
        assert columns[:4] == ["step", "loss", "learning rate", "gradient norm"]
        # Cross-entropy reads no alpha, whatever is logged; nothing here feeds anything but gold.
        assert columns[4:] == (["alpha"] if stage == "training" else [])
        assert [rows[0][0], rows[-1][0]] == [next(iter(log)), list(log)[-1]]
        for row in rows:
            expected = [log[row[0]][name.replace(" ", "_")] for name in columns]
            assert row == list(map(plain_number, expected))
    warm, main = (json_lines(runs / "tagger" / name / "log.jsonl") for name in ("warm-start", ""))
    losses = [line["loss"] for line in (*warm, *main)]
    first, last, low, high = (f"{value:.3g}" for value in (warm[0]["loss"], main[-1]["loss"], min(losses), max(losses)))
    words = f"tagger: {first} at step 1, {last} at step {len(warm) + len(main)}; between {low} and {high}."
    assert words in page.text
    dev = json.loads((runs / "tagger" / "metrics.json").read_text())["dev"]
    assert "The checkpoint and the decoder were also chosen on these data." in page.text
    table = page.table("tagger on the development data")
    assert [[name, *(cell.split(" ")[0] for cell in cells)] for name, *cells in table[1:]] == [
        [name, *(f"{100 * dev['decoders'][name][title.removesuffix(', %')]:.1f}" for title in table[0][1:])]
        for name in ("greedy", "beam", "interpolated-beam", "raw-beam", "soft-beam")
    ]
    seen = {name: json_lines(runs / "tagger" / name / "measurements.jsonl") for name in ("warm-start", "")}
    assert set(seen[""][-1]) - set(seen["warm-start"][-1]) == {"spread of slots, relaxed"}
    decisive, *others = (name for name in seen[""][-1] if name != "step")
    (drawn,) = (one.text for one in page.root.all("figure") if f"Development data: {decisive}" in one.text)
    assert f"{100 * seen[''][-1][decisive]:.3g} at step {len(warm) + seen[''][-1]['step']}" in drawn
    for name in others:
        (drawn,) = (one.text for one in page.root.all("figure") if f"{name[1:]}, on a sample of the" in one.text)
        last = seen[""][-1]
        assert f"{last[name]:.3g} at step {len(warm) + last['step']}" in drawn
    settings = dict(page.table("All settings")[1:])
    assert settings["hidden_size"] == "8" and settings["objective"] == "relaxed-beam"
    # What nothing of this training reads is left out.
    assert "label_column" in settings and not {"source_units", "num_heads", "noise_tokens"} & set(settings)
    assert "torch:" in page.text


@pytest.mark.thorough
def test_results_log_z_and_spread_are_those_of_the_file(report: partial[Page], runs: Path, data: Path) -> None:
    page = report(runs / "tagger", "--file", data / "train.conll", "--examples=1")
    assert "also chosen on these data" not in page.text
    run = load_run(runs / "tagger")
    examples = read_examples(run.settings, data / "train.conll")
    from seqwise.runs import choose_decoder

    outputs = predict(run, examples, choose_decoder(run.settings, "beam"))
    right = [a == b for one, best in zip(examples, outputs, strict=True)
             for a, b in zip(one.target, best[0].tokens, strict=True)]  # fmt: skip
    headings, *rows = page.table(f"tagger on {data / 'train.conll'}")
    (beam,) = (row for row in rows if row[0] == "beam")
    cell = beam[headings.index("accuracy, %")]
    assert re.fullmatch(rf"{100 * sum(right) / len(right):.1f} \[\d+\.\d, \d+\.\d\]", cell)
    low, high = map(float, re.findall(r"[\d.]+", cell)[1:])
    assert low < 100 * sum(right) / len(right) < high
    with torch.no_grad():
        batch = collate(run.codec.encode(examples))
        values = log_partitions(run.model, batch).double()
    (row,) = page.table("log Z on gold prefixes")[1:]
    assert row[:4] == ["tagger", str(len(values)), f"{values.mean():.3g}", f"{values.var(correction=0):.3g}"]
    spreads = []
    for one in run.codec.encode(examples):
        beam = beam_search(run.model, run.model.encode(collate([one])), HardTopK(3), num_steps=1)
        scores = beam.scores_BK[0].tolist()
        mean = sum(scores) / 3
        spreads.append(math.sqrt(sum((score - mean) ** 2 for score in scores) / 3))
    found = re.search(
        r"Slot-score spread of the beam by search step.*?tagger: ([\d.]+) nats at search step 1,", page.text, re.S
    )
    assert found is not None and float(found[1]) == pytest.approx(sum(spreads) / len(spreads), rel=5e-3)


TITLE = re.compile(
    r"step (\d+), slot (\d+): (.*); score (\S+); cost (\S+), total (\S+)(?:; log Z ([^;\s]+))?(?:; from (.*))?",
    re.DOTALL,
)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tagger", "speller"])
def test_lattices_are_the_searches_that_they_show(report: partial[Page], runs: Path, data: Path, name: str) -> None:
    """Every frame of the slider against a separate search: scores, costs, tokens and back-pointers."""
    ending = "conll" if name == "tagger" else "tsv"
    page = report(runs / name, "--file", data / f"dev.{ending}", "--example=2")
    run = load_run(runs / name)
    example = read_examples(run.settings, data / f"dev.{ending}")[1]
    (encoded,) = run.codec.encode([example])
    batch = collate([encoded])
    (frames,) = (one for one in page.root.all("div") if one.attributes.get("class") == "frames")
    names = json.loads(frames.attributes["data-names"])
    assert names == [*(f"alpha {alpha:g}" for alpha in ALPHAS), "hard beam"]
    panels = panels_of(frames)
    assert [next(one.all("summary")).text for one in panels] == [f"{name}, local scores", f"{name}, raw scores"]
    for panel, score in zip(panels, (local, global_), strict=True):
        drawings = [one for one in panel.all("div") if "data-frame" in one.attributes]
        shown = [place for place, one in enumerate(drawings) if "hidden" not in one.attributes]
        # The speller's objective reads no alpha; that of the tagger goes to 8.
        assert shown == [names.index("alpha 8") if name == "tagger" else len(ALPHAS)]
        for drawing, selector in zip(drawings, [*(SoftTopK(3, alpha) for alpha in ALPHAS), HardTopK(3)], strict=True):
            (svg,) = drawing.all("svg")
            found = [TITLE.fullmatch(one.text) for one in svg.all("title") if one.text != "the empty output"]
            assert all(found)
            steps = max(int(one[1]) for one in found if one)
            assert steps >= len(encoded.target_ids)
            cost = hamming_cost(batch.targets_BT, len(run.codec.target_vocabulary)) if name == "tagger" else None
            with torch.no_grad():
                beam = beam_search(
                    run.model, run.model.encode(batch), selector, num_steps=steps, score=score, cost=cost
                )
            last = [one for one in found if one and int(one[1]) == steps]
            scores = [value for value in beam.scores_BK[0].tolist() if value > -math.inf]
            assert [float(one[4]) for one in last] == pytest.approx(scores, abs=1e-4)
            if name == "tagger":
                assert [float(one[6]) for one in last] == pytest.approx(beam.costs_BK[0].tolist(), abs=1e-4)
            elif isinstance(selector, HardTopK):
                from seqwise.search import backtrace

                end = run.model.end
                for tokens, one in zip(backtrace(beam)[0].tolist(), last, strict=False):
                    written = tokens[: tokens.index(end) + 1] if end in tokens else tokens
                    assert float(one[6]) == edit_distance(written, encoded.target_ids)
            for one in found:
                assert one is not None
                token = re.sub(r" [\d.]+$", "", one[3].split(", ")[0])
                assert token == run.codec.target_vocabulary.tokens[
                    int(beam.tokens[int(one[1]) - 1][0, int(one[2]) - 1])
                ] or (isinstance(selector, SoftTopK))
                if isinstance(selector, HardTopK) and one[8]:
                    assert one[8] == f"slot {int(beam.parents[int(one[1]) - 1][0, int(one[2]) - 1]) + 1} 1"


def panels_of(frames: Element) -> list[Element]:
    return [one for one in frames.all("details") if one.attributes.get("class") == "panel wide"]


def lines_of(svg: Element) -> dict[tuple[int, int, int], float]:
    """Opacities by step, old slot and new slot, from where the lines are drawn."""
    found = {}
    for path in svg.all("path"):
        x, y, _, to_y = map(int, re.fullmatch(r"M(\d+) (\d+)L(\d+) (\d+)", path.attributes["d"]).groups())  # type: ignore[union-attr]
        found[(x - 34) // 104 if x != 18 else 0, (y - 47) // 46, (to_y - 47) // 46] = float(path.attributes["opacity"])
    return found


@pytest.mark.thorough
def test_opacities_are_back_pointer_weights(report: partial[Page], runs: Path, data: Path) -> None:
    """Against weights from the softmax over squared gaps, written out by hand for two steps of a tagger."""
    page = report(runs / "other", "--file", data / "dev.conll", "--example=1")
    run = load_run(runs / "other")
    example = read_examples(run.settings, data / "dev.conll")[0]
    batch = collate([run.codec.encode([example])[0]])
    (frames,) = (one for one in page.root.all("div") if one.attributes.get("class") == "frames")
    raw = panels_of(frames)[0]  # the score that it was trained by comes first
    drawings = [next(one.all("svg")) for one in raw.all("div") if "data-frame" in one.attributes]
    compared = 0
    for alpha, svg in zip(ALPHAS, drawings, strict=False):
        with torch.no_grad():
            context = run.model.encode(batch)
            beam = beam_search(run.model, context, SoftTopK(3, alpha), num_steps=1, score=global_)
            features, _ = run.model.step(beam.inputs_BKD, beam.state, context, 1)
            table = (beam.scores_BK[..., None] + run.model.head(features))[0].double().tolist()
        best = sorted((value for row in table for value in row), reverse=True)[:3]
        drawn = lines_of(svg)
        for slot, maximum in enumerate(best):
            weights = [[math.exp(-alpha * (value - maximum) ** 2) for value in row] for row in table]
            total = math.fsum(map(math.fsum, weights))
            for parent, row in enumerate(weights):
                expected = math.fsum(row) / total
                if abs(expected - FAINTEST) > 1e-3:
                    assert drawn.get((1, parent, slot), 0.0) == pytest.approx(
                        expected if expected > FAINTEST else 0.0, abs=6e-4
                    )
                    compared += 1
        assert {weight for (step, *_), weight in drawn.items() if step == 0} == {1.0}
    assert compared > 80
    hard = lines_of(drawings[-1])
    assert set(hard.values()) == {1.0} and len(hard) == 3 * len(example.target)


def test_what_soft_and_hard_lattices_have_in_common(runs: Path, data: Path) -> None:
    """Weights that sum to one; for large alpha the soft lattice is the hard one; without gold no costs."""
    run = load_run(runs / "tagger")
    example = read_examples(run.settings, data / "dev.conll")[0]
    (encoded,) = run.codec.encode([example])
    gold = encoded.target_ids
    hard = beam_lattice(run.model, encoded, HardTopK(3), num_steps=len(gold), gold=gold)
    sharp = beam_lattice(run.model, encoded, SoftTopK(3, 1e12), num_steps=len(gold), gold=gold)
    blunt = beam_lattice(run.model, encoded, SoftTopK(3, 0.1), num_steps=len(gold), gold=gold, most_tokens=99)
    for nodes in blunt:
        for node in nodes:
            assert sum(node.parents) == pytest.approx(1, abs=1e-5)
            assert sum(weight for _, weight in node.tokens) == pytest.approx(1, abs=1e-5)
            assert node.cost is not None and 0 < node.cost < 1
    for ours, theirs in zip(sharp, hard, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.parents == pytest.approx(other.parents, abs=1e-3)
            assert one.tokens[0] == (other.tokens[0][0], pytest.approx(1, abs=1e-3))
            assert (one.score, one.total_cost) == pytest.approx((other.score, other.total_cost), abs=1e-3)
    without = beam_lattice(run.model, encoded, HardTopK(3), num_steps=2)
    assert without[1][0].cost is None and without[1][0].score == pytest.approx(hard[1][0].score)
    assert drawn_steps(run.model, encoded, k=3, gold=None) == len(gold)


def test_gold_with_an_unseen_label_is_shown_and_log_z_colours_what_has_no_gold(
    report: partial[Page], runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.conll").write_text("the\tDET\ndog\tNEW\n")
    page = report(runs / "tagger", "--file", tmp_path / "new.conll")
    assert "Gold: DET NEW (unknown)" in page.text and "cost added by the step (Hamming cost)" in page.text
    assert "1 of 2 labels was never seen in training" in page.text and "'NEW'" in page.text
    run = load_run(runs / "tagger")
    (encoded,) = run.codec.encode_sources(read_examples(run.settings, tmp_path / "new.conll"))
    with torch.no_grad():
        context = run.model.encode(collate([encoded]))
        inputs, state = run.model.start(context)
        scores = run.model.head(run.model.step(inputs, state, context, 0)[0])[0, 0].tolist()
    expected = math.log(math.fsum(map(math.exp, scores)))
    tables = [page.table(f"Numbers: tagger, example 1, {kind} scores, hard") for kind in ("local", "raw")]
    for table in tables:
        assert float(table[1][table[0].index("log Z")]) == pytest.approx(expected, abs=1e-4)
        assert {row[table[0].index("cost")] for row in table[1:] if row[0].startswith("2, ")} == {"1.0000"}
    searched = search_example(run, Example(("the", "dog"), ()), 1, name="tagger", logs=[])
    palette = lattice_palette(searched.all_lattices)
    assert lattice_legend([searched], palette).colour == "log Z of the step, nats" and palette.low <= expected
    numbers = lattice_blocks(searched, palette)[-1]
    assert isinstance(numbers, Folded) and all("cost" not in table.columns for table in numbers.blocks)  # type: ignore[union-attr]


@pytest.mark.parametrize("selector", [HardTopK(3), SoftTopK(3, 1e12)], ids=["hard", "soft"])
def test_slots_that_have_ended_have_no_log_z(selector: HardTopK | SoftTopK) -> None:
    case = translation_case(0)
    steps = beam_lattice(case.model, case.examples[0], selector, num_steps=6)
    prefixes, num_ended = [()], 0
    for nodes in steps:
        of_parents = [prefixes[max(range(len(prefixes)), key=node.parents.__getitem__)] for node in nodes]
        for prefix, node in zip(of_parents, nodes, strict=True):
            if case.model.end in prefix:
                num_ended += 1
                assert node.log_partition is None
            else:
                logits = forced_logits(case.oracles[0], [*prefix, 0])[-1]
                expected = math.log(math.fsum(map(math.exp, logits)))
                assert node.log_partition == pytest.approx(expected, abs=1e-6)
        prefixes = [(*prefix, node.tokens[0][0]) for prefix, node in zip(of_parents, nodes, strict=True)]
    assert 0 < num_ended < sum(map(len, steps)) - 4
    palette = lattice_palette([steps])
    assert palette.low > 0 or palette.high > palette.low
    drawing = draw_lattice(steps, words="abcd", title="", step_names=[], palette=palette)
    assert drawing.count(">ended<") == num_ended


def test_a_dead_slot_is_not_drawn_and_colours_go_from_end_to_end() -> None:
    live = Node(((0, 1.0),), (1.0,), -1.0, 0.5, 0.5, 2.0, True)
    dead = Node(((1, 1.0),), (1.0,), -math.inf, 0.0, 0.0, 0.0, False)
    after = Node(((1, 0.7), (0, 0.3)), (0.25, 0.75), -2.0, 1.0, 1.5, 2.0, True)
    drawing = draw_lattice(
        ((live, dead), (after,)), words=["<a>", "&b"], step_names=['"x"'], palette=Palette(0, 1),
        title="<it>", gold=(0, 0),
    )  # fmt: skip
    assert drawing.count("<rect") == 2 and drawing.count("<path") == 2  # that from the dead slot is none
    assert drawing.count('class="gold"') == 1 and "<a>" not in drawing and "&amp;b .7" in drawing
    assert Palette(0, 1).colour(0.5) != Palette(0, 1).colour(1) == Palette(0, 1).colour(9)
    assert Palette(2, 2).colour(2) == Palette(2, 3).colour(1) == "#ffffff"


def test_boxes_of_long_labels_say_what_tells_them_apart() -> None:
    names = [f"dr(0,dl(0,lit(np),lit(s)),lit({end}))" for end in "abcde"]
    nodes = tuple(Node(((place, 1.0),), (1.0,), -1.0, None, None, 2.0, True) for place in range(5))
    mixed = tuple(Node(((place, 0.6),), (1.0,), -1.0, None, None, 2.0, True) for place in range(5))

    def texts(shown: Lattice, *, others: tuple[Lattice, ...] = ()) -> list[str]:
        drawing = draw_lattice(shown, words=names, title="", step_names=[], palette=Palette(0, 1), named_with=others)
        return re.findall(r'<text x="\d+" y="\d+">([^<]*…[^<]*)</text>', drawing)

    assert len(set(texts((nodes,)))) == len(set(texts((mixed,)))) == 5
    # Of all that it is compared with, a token has one name.
    assert texts((nodes[:1],), others=((nodes,),)) == texts((nodes,))[:1]


@pytest.mark.thorough
def test_runs_stand_side_by_side(report: partial[Page], runs: Path, data: Path) -> None:
    page = report(runs / "tagger", runs / "other", "--file", data / "dev.conll")
    assert page.table("Settings that differ")[0] == ["setting", "tagger", "other"]
    assert {row[0]: row[1:] for row in page.table("Settings that differ")[1:]} == {
        "seed": ["0", "1"], "score": ["local", "global"],
    }  # fmt: skip
    assert [row[0] for row in page.table("log Z on gold")[1:]] == ["tagger", "other"]
    key = next(one for one in page.root.all("ul") if one.attributes.get("class") == "key")
    assert key.text.split() == ["tagger", "other"]
    both = report(runs / "tagger", runs / "speller", "--examples=1").table("Settings that differ")
    assert {row[0]: row[1:] for row in both}["label_column"] == ["-1", "not read"]
    # Two examples, and of each the lattices of both runs.
    assert sum(one.attributes.get("class") == "frames" for one in page.root.all("div")) == 4
    twice = report(runs / "tagger", runs / "tagger", "--examples=1")
    assert [row[0] for row in twice.table("Contents of this page")[1:]] == ["tagger (1)", "tagger (2)"]


@pytest.mark.thorough
def test_all_kinds_go_on_one_page(report: partial[Page], runs: Path, data: Path) -> None:
    names = ("tagger", "speller", "mlm", "samples")
    page = report(*(runs / name for name in names), "--examples=1")
    assert [row[0] for row in page.table("Contents of this page")[1:]] == list(names)
    headings = [one.text for one in page.root.all("h2")]
    assert headings == ["Training runs", "Masked models", "Samples", "About this page"]
    assert "speller: trained, not measured: give --file" in page.text
    assert "mlm scores no sequences without --file" in page.text
    files = ["--file", data / "dev.tsv", "--file", data / "dev.txt"]
    page = report(runs / "speller", runs / "mlm", *files, "--examples=1")
    assert page.table(f"speller on {data / 'dev.tsv'}")[0][1] == "word error, %"


# ---- The first screen, and errors -----------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("enough", [True, False])
def test_the_verdict_is_that_of_evaluate(
    report: partial[Page], seqwise: Command, runs: Path, data: Path, enough: bool
) -> None:
    file = data / ("train.conll" if enough else "dev.conll")  # 40 sentences, and 9
    page = report(runs / "tagger", runs / "other", "--file", file, "--examples=1")
    title, values = "accuracy", {}
    (figure,) = (one for one in page.root.all("figure") if "Accuracy" in one.text)
    for name in ("tagger", "other"):
        best = json.loads((runs / name / "metrics.json").read_text())["dev"]["best decoder"]
        found = json.loads(seqwise("evaluate", runs / name, file, "--json").out)
        values[name] = found[best][title]["value"]
        headings, *rows = page.table(f"{name} on {file}")
        cells = {row[0]: row[headings.index("accuracy, %")] for row in rows}
        for decoder, row in found.items():
            ends = {end: f"{100 * number:.1f}" for end, number in row[title].items() if number is not None}
            assert (len(ends) == 3) == enough
            interval = f", between {ends['low']} and {ends['high']}." if enough else "."
            assert f"{name}, {decoder}: {ends['value']}{interval}" in figure.text
            assert cells[decoder] == ends["value"] + (f" [{ends['low']}, {ends['high']}]" if enough else "")
    difference = f"{100 * (values['other'] - values['tagger']):.1f}".replace("-", "−")
    interval = r" \[\S+, \S+\], p = [01]\.\d{3}" if enough else ""
    assert re.search(rf"Paired difference, points: \+?{difference} points{interval}\.", figure.text)
    assert ("too few examples for intervals" in figure.text) != enough
    assert ("with bootstrap 95% intervals over examples" in page.text) == enough  # the captions of tables
    (verdict,) = (one.text for one in page.root.all("p") if one.attributes.get("class") == "verdict")
    assert verdict.startswith("There are too few examples to compare") != enough and verdict.count("points") == 1


def test_insignificant_differences_are_named_as_such() -> None:
    def result(name: str, right: list[int]) -> Result:
        measures = {"beam": {"accuracy": Counts(right)}}
        return Result(name, 0, "the data", "digest", "beam", "accuracy", 1, measures)  # type: ignore[arg-type]

    half, most = [0, 1] * 50, [1] * 80 + [0] * 20
    assert verdict([result("a", half), result("b", most)]).startswith("b is better than a: 80.0 against 50.0% acc")
    assert verdict([result("a", most), result("b", half)]).startswith("a is better than b: 80.0 against 50.0% acc")
    close = verdict([result("a", half), result("b", [1, *half[1:]])])
    assert close.startswith("b and a do not differ significantly: 51.0 against 50.0% accuracy, +1.0 points [")
    # Significantly better than the first alone: the third is as good but for one answer.
    third = verdict([result("a", half), result("b", most), result("c", [0, *most[1:]])])
    assert third.startswith("b is the best of 3 runs, and better than a: 80.0 against 50.0% accuracy")
    assert verdict([result("a", half)]).startswith("a gets 50.0% accuracy [4")
    few = verdict([result("a", [0, 1, 1, 1])])
    assert few.startswith("a gets 75.0% accuracy (too few examples for an interval) on the data, decoded by beam")
    assert comparable([result("a", half), result("b", most)]) == [[ANY, ANY]]


def test_errors_of_runs_that_are_not_compared_name_their_run() -> None:
    """Two taggers on different data have a group each, and a page shows both."""
    for name in ("a", "b"):
        outputs = [Output(("the", "cat"), [("D", "D"), ("D", "N")]), Output(("sat",), [("N", "V")])]
        measures = {"beam": {"accuracy": Counts([0.5, 0])}}
        group = [Result(name, 0, "data", f"digest {name}", "beam", "accuracy", 1, measures, outputs)]  # type: ignore[arg-type]
        labels, counts = error_tables(group)
        assert isinstance(labels, Table) and labels.caption == f"Labels with the most errors of {name} (in %)"
        assert isinstance(counts, Table) and counts.columns == ["gold", "output", name]
        headings = [listing.caption for listing in output_listings(group) if isinstance(listing, Listing)]
        assert len(headings) == 2 and all(heading.startswith(f"{name}: ") for heading in headings)


@pytest.mark.thorough
def test_errors_are_counted_from_the_outputs_and_the_worst_comes_first(
    report: partial[Page], runs: Path, data: Path
) -> None:
    page = report(runs / "tagger", "--file", data / "dev.conll", "--examples=1")
    run = load_run(runs / "tagger")
    examples = read_examples(run.settings, data / "dev.conll")
    best = json.loads((runs / "tagger" / "metrics.json").read_text())["dev"]["best decoder"]
    outputs = [found[0].tokens for found in predict(run, examples, best)]
    pairs = [
        pair for one, labels in zip(examples, outputs, strict=True) for pair in zip(one.target, labels, strict=True)
    ]
    wrong = Counter(pair for pair in pairs if pair[0] != pair[1])
    assert wrong, "else there is nothing to see"
    rows = page.table("Most frequent confusions")[1:]
    assert Counter({(gold, output): int(count) for gold, output, count in rows}) == wrong
    assert [int(row[2]) for row in rows] == sorted((int(row[2]) for row in rows), reverse=True)
    for label, support, precision, recall, _ in page.table("Labels with the most errors")[1:]:
        right = sum(pair == (label, label) for pair in pairs)
        gold, written = sum(pair[0] == label for pair in pairs), sum(pair[1] == label for pair in pairs)
        assert (int(support), recall) == (gold, f"{100 * right / gold if gold else 0:.0f}")
        assert precision == f"{100 * right / written if written else 0:.0f}"
    (first, *_), *_ = ([*one.all("li")] for one in page.root.all("ul") if one.attributes.get("class") == "listing")
    marks = sum(one.tag == "mark" for one in first.all())
    assert marks == max(
        sum(gold != label for gold, label in zip(one.target, labels, strict=True))
        for one, labels in zip(examples, outputs, strict=True)
    )


@pytest.mark.thorough
def test_watching_ends_with_the_run_and_measures_it_then(runs: Path, tmp_path: Path) -> None:
    tagger, page = Path(shutil.copytree(runs / "tagger", tmp_path / "tagger")), tmp_path / "page.html"
    shutil.move(tagger / "model", tmp_path / "model")
    shutil.move(tagger / "metrics.json", tmp_path / "metrics.json")
    log = (tagger / "log.jsonl").read_text().splitlines(keepends=True)
    (tagger / "log.jsonl").write_text("")
    seen: list[str] = []

    def wait(seconds: float) -> None:
        seen.append(page.read_text())
        assert f'<meta http-equiv="refresh" content="{seconds}">' in seen[-1] and "accuracy, by" not in seen[-1]
        if len(seen) == 1:
            (tagger / "log.jsonl").write_text("".join(log[:2]))
        elif len(seen) == 2:
            shutil.move(tmp_path / "model", tagger / "model")
        elif len(seen) == 3:
            shutil.move(tmp_path / "metrics.json", tagger / "metrics.json")

    watch_report([tagger], page, every=7, wait=wait)
    assert len(seen) == 3 and "warm start, step" in seen[0] and "training, step 2, loss" in seen[1]
    assert 'http-equiv="refresh"' not in page.read_text() and "tagger gets" in page.read_text()


@pytest.mark.parametrize(
    "quantity, last_and_best, curve",
    [
        ("word error", ("40.0", "30.0"), "word error, %: x: 50 at step 1, 40 at step 3"),
        ("accuracy", ("40.0", "50.0"), "accuracy, %: x: 50 at step 1"),
        ("cross-entropy of it", ("0.400", "0.300"), "cross-entropy of it, nats: x: 0.5 at step 1"),
        ("masked_cross_entropy", ("0.400", "0.300"), "masked cross entropy, nats: x: 0.5 at step 1"),
    ],
)
def test_the_best_so_far_is_the_least_error_and_the_most_accuracy(
    quantity: str, last_and_best: tuple[str, str], curve: str
) -> None:
    log = StageLog("training", "any", {"step": [1, 2], "loss": [2, 1]}, {"step": [1, 2, 3], quantity: [0.5, 0.3, 0.4]})
    last, best = last_and_best
    folder = Folder(Path("x"), "x", "training", {}, [log])
    assert so_far(folder).endswith(f"{last}, best {best}.")
    assert f"Development data: {curve}" in training_figures([folder])[-1].text  # type: ignore[union-attr]


# ---- Masked models and samples --------------------------------------------------------------------------------------


def test_a_masked_model_is_scored_on_a_file(report: partial[Page], seqwise: Command, runs: Path, data: Path) -> None:
    page = report(runs / "mlm", "--file", data / "train.txt", "--example=3")
    records = seqwise("score", runs / "mlm", data / "train.txt").records
    tokens = sum(len(one["tokens"]) for one in records)
    perplexity = math.exp(-sum(one["log_prob"] for one in records) / tokens)
    rows = {row[0]: row[1:] for row in page.table("mlm on the file")[1:]}
    value, low, high = map(float, rows["pseudo-perplexity"])
    assert f"mlm has a pseudo-perplexity of {rows['pseudo-perplexity'][0]} on train.txt." in page.text
    assert "on its development data" not in page.text
    assert value == pytest.approx(perplexity, rel=5e-3) and low < value < high
    assert rows["sequences"][0] == "40" and rows["tokens"][0] == str(tokens)
    few = report(runs / "mlm", "--file", data / "dev.txt", "--example=3").table("mlm on the file")
    assert few[1][2:] == ["", ""] and few[2][1] == "9"
    (row,) = page.table("mlm: sequences of the file")[1:]
    expected = [f"{token}{value:.2f}".replace("-", "−") for token, value in
                zip(records[2]["tokens"], records[2]["token_log_probs"], strict=True)]  # fmt: skip
    assert row[0] == "3" and [float(row[1])] == pytest.approx([records[2]["log_prob"]], rel=5e-3)
    assert row[2].split(" ") == expected
    log = json_lines(runs / "mlm" / "log.jsonl")
    assert page.table("mlm, training: values")[1][:2] == ["1", f"{log[0]['loss']:.3g}"]
    dev = json.loads((runs / "mlm" / "metrics.json").read_text())["dev"]
    assert ["dev: pseudo perplexity", f"{dev['pseudo_perplexity']:.3g}"] in page.table("At the end of training")


def test_a_masked_model_that_waits_for_another_is_not_said_to_be_untrained(
    runs: Path, data: Path, tmp_path: Path
) -> None:
    """While one of two runs is trained, the page of both says when the other is scored."""
    begun = Path(shutil.copytree(runs / "mlm", tmp_path / "begun", ignore=shutil.ignore_patterns("model")))
    options = ReportOptions(files=[data / "dev.txt"], refresh=5)
    write_report([runs / "mlm", begun], tmp_path / "page.html", options)
    text = Page(tmp_path / "page.html").text
    assert "mlm is scored when all runs are trained." in text and "begun has no trained model yet." in text
    assert "mlm has no trained model" not in text and "mlm on the file" not in text


def sweeps_of(folder: Path) -> list[tuple[int, list[dict[str, list[float]]]]]:
    """Of each problem the lines of its chains, three chains together, by hand."""
    found = []
    for path in sorted((folder / "chains").glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for start in range(0, len(lines[0]["energy"]), 3):
            cut = {"energy", "proposals", "accepted", "novel", "passes"}
            found.append([{name: line[name][start : start + 3] for name in cut} for line in lines])
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    named = []
    for lines in found:
        (problem,) = {
            one["problem"] for one in samples
            if one["sweep"] == 16 and abs(lines[15]["energy"][one["chain"] - 1] - one["energy"]) < 1e-4
        }  # fmt: skip
        named.append((problem, lines))
    return sorted(named)


def test_chains_are_those_of_the_folder(report: partial[Page], runs: Path) -> None:
    before = {path: path.read_bytes() for path in (runs / "samples").rglob("*") if path.is_file()}
    page = report(runs / "samples", "--example=2")
    assert before == {path: path.read_bytes() for path in (runs / "samples").rglob("*") if path.is_file()}
    by_problem = sweeps_of(runs / "samples")
    assert [problem for problem, _ in by_problem] == [1, 2, 3]
    counted = [line for _, lines in by_problem for line in lines[4:]]
    sums = {name: sum(sum(line[name]) for line in counted) for name in ("proposals", "accepted", "novel")}
    energies = [value for line in counted for value in line["energy"]]
    (row,) = page.table("All chains")[1:]
    assert row[:6] == [
        "samples", "9", "12 of 16", f"{sums['accepted'] / sums['proposals']:.1%}",
        f"{sums['novel'] / sums['proposals']:.1%}", f"{math.fsum(energies) / len(energies):.3g}",
    ]  # fmt: skip
    lines = by_problem[1][1]
    for number in range(3):
        first, last = lines[0]["energy"][number], lines[-1]["energy"][number]
        assert f"chain {number + 1}: {first:.3g} nats at sweep 1, {last:.3g} at sweep 16;" in page.text
    share = [sum(sum(all_[sweep]["novel"]) for _, all_ in by_problem) / sum(sum(all_[sweep]["proposals"])
             for _, all_ in by_problem) for sweep in (0, 15)]  # fmt: skip
    assert f"accepted and new: {plain_number(share[0])} at sweep 1, {plain_number(share[1])} at sweep 16;" in page.text
    assert "Energy of problem 2 by sweep" in page.text and "Energy of problem 1 by sweep" not in page.text
    samples = [json.loads(line) for line in (runs / "samples" / "samples.jsonl").read_text().splitlines()]
    own = [one for one in samples if (one["problem"], one["chain"]) == (2, 1)]
    assert [row[:2] for row in page.table("Chain 1 of problem 2")[1:]] == [
        [str(one["sweep"]), one["text"]] for one in own
    ]
    assert [int(row[0]) for row in page.table("Chain 1 of problem 2")[1:]] == [6, 8, 10, 12, 14, 16]


def test_r_hat_and_effective_sample_size_are_those_of_arviz(report: partial[Page], runs: Path) -> None:
    stats = pytest.importorskip("arviz_stats.base").array_stats
    import numpy as np

    page = report(runs / "samples")
    rows = {row[0]: row[1:] for row in page.table("R-hat and effective")[1:]}
    assert set(rows) == {"problem 1", "problem 2", "problem 3"}
    for problem, lines in sweeps_of(runs / "samples"):
        values = np.array([line["energy"] for line in lines[4:]]).T
        r_hat = float(stats.rhat(values, chain_axis=0, draw_axis=1, method="rank"))
        ess = float(stats.ess(values, chain_axis=0, draw_axis=1, method="bulk"))
        tail = float(stats.ess(values, chain_axis=0, draw_axis=1, method="tail", prob=(0.05, 0.95)))
        assert rows[f"problem {problem}"][:3] == [f"{r_hat:.3f}", f"{ess:.0f}", f"{tail:.0f}"]
    assert [float(row[1]) for row in page.table("R-hat and effective")[1:]] == sorted(
        (float(row[0]) for row in rows.values()), reverse=True
    )


def test_chains_that_do_not_move_have_no_effective_sample_size(
    report: partial[Page], runs: Path, seqwise: Command, tmp_path: Path
) -> None:
    """A length of one, and a word that must occur."""
    pytest.importorskip("arviz_stats")
    word = json.loads((runs / "samples" / "samples.jsonl").read_text().splitlines()[0])["text"].split()[0]
    still = tmp_path / "still"
    assert seqwise("sample", runs / "mlm", "--length=1", "--contain", word, "--output", still).code == 0
    page = report(still)
    assert page.table("R-hat and effective")[1][1:5] == ["not a number"] * 4
    assert page.table("All chains")[1][-3:] == ["—"] * 3


def test_effective_sample_sizes_of_few_sweeps_are_unknown(
    report: partial[Page], runs: Path, seqwise: Command, tmp_path: Path
) -> None:
    pytest.importorskip("arviz_stats")
    few = tmp_path / "few"
    assert seqwise("sample", runs / "mlm", "--length=3", "--sweeps=9", "--discard=0", "--output", few).code == 0
    page = report(few)
    assert page.table("R-hat and effective")[1][2:5] == ["unknown"] * 3
    assert page.table("All chains")[1][-3:-1] == ["—"] * 2
    assert "at least 10 draws per chain are needed" in page.text and " nan" not in page.text


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        ([(math.nan, math.nan)], "there is no R-hat, so convergence of the chains is unknown."),
        ([(1.005, 40.2), (math.nan, math.nan)], "agree: the R-hat of the energy is at most 1.005, the effective sample "
         "size at least 40."),
        ([(1.2, math.nan)], "do not agree yet: the R-hat of the energy is at most 1.200. Take more sweeps."),
        ([(1.0, 50.0), (math.inf, math.nan), (1.005, 40.0)], "do not agree yet: the R-hat of the energy is at most inf "
         "over 3 sets of chains, the effective sample size at least 40. Take more sweeps."),
    ],
)  # fmt: skip
def test_chains_that_stand_still_apart_do_not_agree(judged: list[tuple[float, float]], said: str) -> None:
    """Their R-hat is infinite; that of chains that stand still together is not a number."""
    reports = [
        SimpleNamespace(r_hat={"energy": r_hat}, ess={"energy": ess}, num_sweeps=FEWEST_DRAWS) for r_hat, ess in judged
    ]
    sampling: Any = SimpleNamespace(reports=reports)
    assert sampling_verdict("s", sampling).endswith(said)
    reports[-1].num_sweeps = FEWEST_DRAWS - 1
    agrees = "agree:" in said and "do not agree" not in said
    assert ("too few sweeps are counted to tell" in sampling_verdict("s", sampling)) == agrees


def test_autocorrelation_is_its_definition() -> None:
    values_SB = torch.randn(30, 3, dtype=torch.float64).cumsum(0)
    values_SB = torch.cat([values_SB, torch.full((30, 1), 7.0, dtype=torch.float64)], dim=1)  # one that does not move
    found = autocorrelation(values_SB, lags=5)
    for lag in range(6):
        each = []
        for chain in values_SB.T.tolist()[:3]:
            mean = sum(chain) / 30
            above = sum((chain[s] - mean) * (chain[s + lag] - mean) for s in range(30 - lag))
            each.append(above / sum((value - mean) ** 2 for value in chain))
        assert found[lag] == pytest.approx(sum(each) / 3)
    assert math.isnan(autocorrelation(torch.ones(9, 2), lags=1)[0])


@pytest.mark.thorough
def test_unfinished_samples_and_runs_can_be_reported(report: partial[Page], runs: Path, tmp_path: Path) -> None:
    samples = Path(shutil.copytree(runs / "samples", tmp_path / "samples"))
    for path in (samples / "chains").glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:7]) + lines[7][:20])
    (samples / "samples.jsonl").unlink()
    page = report(samples)
    assert page.table("All chains")[1][2] == "3 of 7"
    assert "effective sample size and R-hat need 4 counted sweeps, and there are 3" in page.text
    assert "No sequences of these chains" in page.text and "Energy of problem 2 by sweep" in page.text
    tagger = Path(shutil.copytree(runs / "tagger", tmp_path / "tagger"))
    shutil.rmtree(tagger / "model")
    (tagger / "metrics.json").unlink()
    lines = (tagger / "log.jsonl").read_text().splitlines(keepends=True)
    (tagger / "log.jsonl").write_text("".join(lines[:2]) + lines[2][:9])
    page = report(tagger)
    assert "tagger has not finished: training, step 2, loss " in page.text
    assert len(page.table("tagger, training: values")) == 3
    (tagger / MEASUREMENTS).write_text("")  # stopped before the first evaluation, with development data
    assert "Without --dev" not in report(tagger).text


# ---- Untrusted text and bad input -------------------------------------------------------------------------


@pytest.mark.thorough
def test_tokens_are_text_and_nothing_else(report: partial[Page], runs: Path, data: Path) -> None:
    """Scripts in sources, labels, sequences and samples: every page above holds them too, and `check` looked."""
    page = report(runs / "tagger", "--file", data / "dev.conll", "--examples=2")
    assert SCRIPT in page.text and '<b>"&X' in page.text and page.source.count("<script>") == 1
    assert not list(page.root.all("b"))
    page = report(runs / "mlm", runs / "samples", "--file", data / "dev.txt", "--examples=9")
    assert SCRIPT in page.text and page.source.count("<script>") == 1


def test_a_folder_may_be_called_as_it_likes(report: partial[Page], runs: Path, tmp_path: Path) -> None:
    odd = tmp_path / '<img src=x onerror="a()">&$x_1$'
    page = report(shutil.copytree(runs / "mlm", odd))
    assert page.table("Contents of this page")[1][0] == odd.name


def test_long_lines_are_drawn_by_means_and_said_to_be() -> None:
    xs, ys = thinned(range(1, 4 * MOST_POINTS), [float(x % 4) for x in range(1, 4 * MOST_POINTS)], most=MOST_POINTS)
    assert len(xs) == MOST_POINTS and ys[:3] == [1.5, 1.5, 1.5] and xs[:2] == [2.5, 6.5]
    assert thinned([1, 2], [math.nan, math.inf], most=1) == ([], [])


@pytest.mark.thorough
def test_only_reports_are_replaced(seqwise: Command, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    assert seqwise("report", runs / "mlm", "--output", page).out == f"the report is in {page}\n"
    first = page.read_text()
    assert seqwise("report", runs / "samples", "-o", page).code == 0 and page.read_text() != first
    page.write_text("my own notes")
    assert "page.html: the file is not a seqwise report" in seqwise("report", runs / "mlm", "-o", page).complaint
    assert page.read_text() == "my own notes" and [one.name for one in page.parent.iterdir()] == ["page.html"]
    assert "the output is a folder" in seqwise("report", runs / "mlm", "-o", tmp_path).complaint
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "linked.html")
    assert seqwise("report", runs / "mlm", "-o", link).code == 0
    assert link.is_symlink() and (tmp_path / "linked.html").read_text() == first


@pytest.mark.thorough
def test_mistakes_end_in_one_line(seqwise: Command, runs: Path, data: Path, tmp_path: Path) -> None:
    def said(*arguments: object) -> str:
        complaint = seqwise("report", *arguments, "--output", tmp_path / "page.html").complaint
        assert not (tmp_path / "page.html").exists()
        return complaint

    assert said(tmp_path / "nowhere").endswith(
        "nowhere: there is no such folder; give the --output of seqwise train, masked-model train or sample"
    )
    assert "the folder contains no run" in said(data)
    assert "missing argument" in said().lower()
    assert "--example 10 is out of range: there are 9" in said(runs / "tagger", "--example=10")
    assert "--example 4 is not a problem of samples" in said(runs / "samples", "--example=4")
    assert "--examples must be at least 1" in said(runs / "tagger", "--examples=0")
    assert "--example must be at least 1" in said(runs / "tagger", "--example=0")
    assert "reads no data" in said(runs / "samples", "--file", data / "dev.txt")
    two = ["--file", data / "dev.conll"] * 2
    assert "2 files for 1 run that reads one" in said(runs / "tagger", runs / "samples", *two)
    assert "nowhere.conll" in said(runs / "tagger", "--file", data / "nowhere.conll")
    assert "dev.txt:3: 3 columns where" in said(runs / "tagger", "--file", data / "dev.txt")
    shutil.copytree(runs / "tagger", tmp_path / "tagger")
    with (tmp_path / "tagger" / "log.jsonl").open("a") as log:
        log.write("{}\n")
    assert re.search(r"log\.jsonl:6: not a line of a training log", said(tmp_path / "tagger"))
    for summary in ({"stages": [1]}, {"stages": {}, "baseline": {"file": "dev"}}):
        shutil.copytree(runs / "tagger", tmp_path / "summarised", dirs_exist_ok=True)
        (tmp_path / "summarised" / "summary.json").write_text(json.dumps(summary))
        assert "summary.json: not a summary; restore it as it was saved" in said(tmp_path / "summarised")
    shutil.copytree(runs / "samples", tmp_path / "samples")
    path = tmp_path / "samples" / "chains" / "0000.jsonl"
    path.write_text(path.read_text().replace('"sweep": 3', '"sweep": 4', 1))
    assert "0000.jsonl:3: the sweeps are damaged" in said(tmp_path / "samples")
    path.write_text("")
    assert "0000.jsonl: the sweeps are damaged" in said(tmp_path / "samples")
    (tmp_path / "samples" / "settings.json").write_text("[]")
    assert "settings.json: invalid settings: expected a JSON object" in said(tmp_path / "samples")
