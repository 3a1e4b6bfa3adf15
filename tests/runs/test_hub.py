"""Runs on the hub, which is a folder here: pushed with a card, and loaded by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from command_line import Command, run_main
from explored import tagger
from letters import letter_bart, letter_gpt2, letter_pairs, letter_tokenizer
from pretrained import saved
from seqwise.errors import InputError
from seqwise.models import Tagger
from seqwise.runs import Scorer, choose_decoder, load_run, predict, train_settings
from seqwise.runs.hub import run_folder
from seqwise.runs.inputs import input_units, inputs_of
from seqwise.runs.loading import save_run
from seqwise.runs.model_card import CITATION, public_settings
from seqwise.runs.pushing import card_of, push, upload_of
from seqwise.runs.run import fingerprint

TINY = ["--hidden-size=8", "--embedding-size=8", "--batch-size=8", "--beam-size=3", "--epochs=1", "--warm-start=none"]
TEXTS = {"tagger": "the dog", "bart": "a b", "gpt2": "a b"}


class FakeHub:
    """A folder for each repository, with what is asked of an ``HfApi`` and of downloads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[str, Any]] = []
        self.private: dict[str, bool | None] = {}

    def create_repo(self, repo: str, *, private: bool | None, exist_ok: bool) -> None:
        self.calls.append(("create_repo", repo))
        self.private[repo] = private
        (self.folder / repo).mkdir(parents=True, exist_ok=exist_ok)

    def create_commit(self, repo: str, operations: Iterable[Any], *, commit_message: str) -> Any:
        self.calls.append(("create_commit", repo))
        for one in operations:
            path = self.folder / repo / one.path_in_repo
            path.parent.mkdir(parents=True, exist_ok=True)
            with one.as_file() as content:
                path.write_bytes(content.read())
        return SimpleNamespace(commit_url=f"https://hub/{repo}/commit/1")

    def snapshot_download(self, repo: str, *, allow_patterns: list[str], local_dir: Path) -> str:
        self.calls.append(("snapshot_download", repo))
        if not (self.folder / repo).is_dir():
            raise LocalEntryNotFoundError(f"{repo} is not here.\nAnd more.")
        names = [path.relative_to(self.folder / repo).as_posix() for path in (self.folder / repo).rglob("*")]
        for name in filter_repo_objects(names, allow_patterns=allow_patterns):
            if (self.folder / repo / name).is_file():
                (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.folder / repo / name, local_dir / name)
        notes = local_dir / ".cache" / "huggingface" / "download"
        notes.mkdir(parents=True, exist_ok=True)
        (notes / "config.json.metadata").write_text("a revision, a checksum and the time")
        return str(local_dir)

    def hf_hub_download(self, repo: str, name: str) -> str:
        if not (self.folder / repo / name).is_file():
            raise EntryNotFoundError(f"no {name}")
        return str(self.folder / repo / name)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: fake)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake.snapshot_download)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fake.hf_hub_download)
    return fake


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger on raw scores, Hugging Face models on raw and on local scores, and a masked model."""
    folder = tmp_path_factory.mktemp("my-own-folder")
    torch.manual_seed(0)
    (folder / "train.conll").write_text("the\tDET\ndog\tNOUN\n\na\tDET\ncat\tNOUN\n\n" * 4)
    (folder / "train.tsv").write_text(letter_pairs(16, 0))
    (folder / "train.txt").write_text("the dog sees a cat\na cat sees the dog\n" * 4)
    tag = ["--train", folder / "train.conll", "--dev", folder / "train.conll", "--objective=beam-crf", "--score=global"]
    run_main("train", *tag, *TINY, "--output", folder / "tagger")
    bart = letter_bart(max_position_embeddings=64, forced_eos_token_id=None)
    made = {"bart": bart, "gpt2": letter_gpt2(n_positions=64)}
    own = {"bart": ("relaxed-beam", ["--score=global", "--warm-start=none"]), "gpt2": ("cross-entropy", [])}
    for name, model in made.items():
        saved(folder / "models" / name, model, letter_tokenizer("$A </s>" if name == "bart" else "$A"))
        objective, more = own[name]
        given = ["--model", folder / "models" / name, "--train", folder / "train.tsv", "--objective", objective, *more]
        run_main("train", *given, "--epochs=1", "--beam-size=2", "--output", folder / name)
    sizes = ["--hidden-size=8", "--num-heads=1", "--num-layers=1", "--feedforward-size=8", "--epochs=1"]
    text = ["masked-model", "train", folder / "train.txt", "--dev", folder / "train.txt", *sizes]
    run_main(*text, "--output", folder / "masked")
    run_main(*text[:5], "--epochs=1", "--init", folder / "masked", "--output", folder / "continued")
    return folder


def pushed(hub: FakeHub, runs: Path, name: str) -> Path:
    push(upload_of(runs / name, f"ada/{name}"), api=hub)
    return hub.folder / "ada" / name


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tagger", "bart", "gpt2"])
def test_a_pushed_run_is_the_run(name: str, runs: Path, hub: FakeHub, seqwise: Command) -> None:
    said = seqwise("push", runs / name, f"ada/{name}")
    assert said.code == 0, said.err
    assert "https://hub/ada/" in said.out and hub.private[f"ada/{name}"] is None
    own, from_hub = load_run(runs / name), load_run(f"ada/{name}")
    inputs = inputs_of(TEXTS[name], units=input_units(own.settings))
    found, expected = (predict(one, inputs, choose_decoder(one.settings), n_best=2) for one in (from_hub, own))
    assert found == expected
    by_name = seqwise("predict", f"ada/{name}", TEXTS[name])
    assert by_name.code == 0 and by_name.out == seqwise("predict", runs / name, TEXTS[name]).out
    kinds = {path.suffix for path in (hub.folder / "ada" / name).rglob("*") if path.is_file()}
    assert kinds <= {".json", ".yaml", ".safetensors", ".md", ".jinja"} and ".safetensors" in kinds


@pytest.mark.parametrize("name", ["tagger", "bart", "gpt2", "masked", "continued"])
def test_no_path_of_this_machine_is_pushed(name: str, runs: Path, hub: FakeHub) -> None:
    folder = pushed(hub, runs, name)
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".yaml", ".md"):
            assert str(runs) not in path.read_text(encoding="utf-8"), path
    if name == "tagger":
        assert yaml.safe_load((folder / "configuration.yaml").read_text())["train"] == "train.conll"


def test_a_run_from_the_hub_is_pushed_again_without_the_notes_of_the_download(runs: Path, hub: FakeHub) -> None:
    first = pushed(hub, runs, "tagger")
    push(upload_of(run_folder("ada/tagger"), "ada/again"), api=hub)
    again = hub.folder / "ada" / "again"
    assert {path.relative_to(again) for path in again.rglob("*")} == {
        path.relative_to(first) for path in first.rglob("*")
    }


def test_transformers_loads_pushed_models(runs: Path, hub: FakeHub) -> None:
    for name, loader in (("bart", "AutoModelForSeq2SeqLM"), ("gpt2", "AutoModelForCausalLM")):
        folder = pushed(hub, runs, name)
        model = getattr(transformers, loader).from_pretrained(folder)
        own = load_run(runs / name).model.model.state_dict()
        assert all(torch.equal(tensor, own[key]) for key, tensor in model.state_dict().items())


def test_models_of_seqwise_load_by_their_class(runs: Path, hub: FakeHub) -> None:
    model, own = Tagger.from_pretrained(pushed(hub, runs, "tagger")), load_run(runs / "tagger").model
    assert all(torch.equal(tensor, own.state_dict()[key]) for key, tensor in model.state_dict().items())


def test_a_masked_model_is_scored_by_name(runs: Path, hub: FakeHub, tmp_path: Path, seqwise: Command) -> None:
    pushed(hub, runs, "masked")
    assert fingerprint(load_run("ada/masked")) == fingerprint(load_run(str(runs / "masked")))
    (tmp_path / "one.txt").write_text("the dog sees a cat\n")
    scored = [seqwise("score", name, tmp_path / "one.txt").records for name in ("ada/masked", runs / "masked")]
    assert scored[0] == scored[1]


@pytest.mark.parametrize(("name", "kind"), [("bart", "encoder-decoder"), ("gpt2", "causal"), ("masked", "masked")])
def test_the_scorer_finds_the_kind_of_a_run_on_the_hub(name: str, kind: str, runs: Path, hub: FakeHub) -> None:
    pushed(hub, runs, name)
    own, from_hub = Scorer(runs / name), Scorer(f"ada/{name}")
    assert own.kind == from_hub.kind == kind
    assert Scorer(run_folder(f"ada/{name}")).kind == kind


def test_code_and_pickles_in_a_repository_are_not_downloaded(runs: Path, hub: FakeHub) -> None:
    repository = pushed(hub, runs, "tagger")
    for name in ("evil.py", "pytorch_model.bin", "training_args.bin", "model/evil.pkl"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    folder = run_folder("ada/tagger")
    downloaded = [
        path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.relative_to(folder).parts
    ]
    assert {path.suffix for path in downloaded} == {".json", ".yaml", ".safetensors", ".md"}
    load_run("ada/tagger")


# ------------------------------------------------------------------------------------------------ the card


@pytest.mark.parametrize("name", ["tagger", "bart", "gpt2", "masked"])
def test_the_code_of_a_card_runs(
    name: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / name / "model", tmp_path / "own" / name)
    shutil.copy(runs / name / "configuration.yaml", tmp_path / "own" / name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sequences.txt").write_text("the dog sees a cat\n")
    card = card_of(runs / name, repo=f"own/{name}")
    (block,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len(block.splitlines()) <= 5, "short is the point"
    capsys.readouterr()
    exec(compile(block.replace("a text", TEXTS.get(name, "")), f"card of {name}", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_a_card_has_metadata_results_and_signatures(runs: Path) -> None:
    card = ModelCard(card_of(runs / "tagger", repo="ada/tagger"))
    assert card.data.library_name == "seqwise" and "beam-crf" in card.data.tags
    assert card.data.pipeline_tag == "token-classification"
    metrics = json.loads((runs / "tagger" / "metrics.json").read_text())["dev"]
    for decoder, row in metrics["decoders"].items():
        assert re.search(rf"\| {decoder}[ (].*\| {100 * row['accuracy']:.1f} \|", card.text), decoder
    assert metrics["signature"] in card.text
    assert re.match(r"method:beam-crf, global scores, beam 3 \| seeds:0 \| data:[0-9a-f]{12} \| ", metrics["signature"])
    assert "raw-beam (" in card.text and "default" in card.text
    masked = card_of(runs / "masked", repo="ada/masked")
    assert "pseudo perplexity" in masked and "method:masked transformer | seeds:0 | data:" in masked


def test_commands_of_a_card_can_be_typed(runs: Path, tmp_path: Path, seqwise: Command) -> None:
    folder = tmp_path / "my run"
    shutil.copytree(runs / "tagger", folder)
    assert f"`seqwise predict '{folder}' \"a text\"`" in seqwise("card", folder).out
    assert "this is not a repository name" in seqwise("card", folder, "--repo=bad name").complaint


def test_a_card_tells_a_look_ahead(tmp_path: Path) -> None:
    save_run(tagger(look_ahead=2), tmp_path)
    assert "left-to-right encoder that looks 2 tokens ahead, 3 labels" in card_of(tmp_path)


def test_a_card_says_that_raw_scores_need_the_decoder_of_seqwise(runs: Path) -> None:
    assert "uses the raw-score beam" in card_of(runs / "bart", repo="ada/bart")
    assert "raw-score" not in card_of(runs / "gpt2", repo="ada/gpt2")
    assert ModelCard(card_of(runs / "gpt2")).data.pipeline_tag == "text-generation"


def test_a_card_cites_what_the_repository_asks_for() -> None:
    cited = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    titles = [cited["title"], *(one["title"] for one in cited["references"])]
    found = re.findall(r"  title = \{(.+)\}", CITATION)
    assert len(found) == 2 and set(found) <= set(titles)


def test_an_edited_card_is_pushed(runs: Path, hub: FakeHub, tmp_path: Path, seqwise: Command) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "tagger", folder)
    printed = seqwise("card", folder, "--repo", "ada/run").out
    assert printed == card_of(runs / "tagger", repo="ada/run")
    (folder / "README.md").write_text("# Mine\n")
    push(upload_of(folder, "ada/run"), api=hub)
    assert (hub.folder / "ada" / "run" / "README.md").read_text() == "# Mine\n"
    load_run("ada/run")


# ------------------------------------------------------------------------------------------ what is refused


def test_a_dry_run_sends_nothing(runs: Path, hub: FakeHub, seqwise: Command) -> None:
    ended = seqwise("push", runs / "tagger", "ada/tagger", "--dry-run")
    size = (runs / "tagger" / "model" / "model.safetensors").stat().st_size
    assert ended.code == 0 and re.search(rf"^ *{size:,}  model\.safetensors$", ended.out, flags=re.MULTILINE)
    assert "nothing was sent" in ended.out and hub.calls == []


def _damage(folder: Path) -> None:
    path = folder / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")


@pytest.mark.parametrize(
    ("change", "repo", "said"),
    [
        (_damage, "ada/run", "differs from its checksum"),
        (lambda folder: shutil.rmtree(folder / "model"), "ada/run", "the folder holds no trained model"),
        (shutil.rmtree, "ada/run", "there is no such run folder"),
        (lambda folder: (folder / "metrics.json").write_text('{"dev": 1}'), "ada/run", "the metrics do not belong"),
        (lambda folder: None, "run", "this is not a repository name; write it as USER/NAME"),
        (lambda folder: None, "../ada/run", "this is not a repository name"),
    ],
)
def test_unusable_runs_are_refused_before_anything_is_sent(
    change: Callable[[Path], Any], repo: str, said: str, runs: Path, hub: FakeHub, tmp_path: Path, seqwise: Command
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "tagger", folder)
    change(folder)
    assert said in seqwise("push", folder, repo).complaint
    assert hub.calls == []


def test_an_error_of_the_hub_is_one_line(runs: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **named: Any) -> None:
        raise OSError("403 Forbidden.\nMore of it")

    monkeypatch.setattr(hub, "create_commit", refuse)
    with pytest.raises(InputError, match=r"^ada/tagger: the hub refuses the upload \(403 Forbidden\); log in with"):
        push(upload_of(runs / "tagger", "ada/tagger"), api=hub)


def test_an_unreachable_hub_is_not_blamed_on_the_name(
    runs: Path, monkeypatch: pytest.MonkeyPatch, seqwise: Command
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    complaint = seqwise("push", runs / "tagger", "ada/tagger").complaint
    assert complaint.startswith("ada/tagger: the hub cannot be reached (") and "log in" not in complaint
    assert complaint.endswith("; check the network, and HF_HUB_OFFLINE")


def test_unknown_names_are_refused_and_paths_are_not_sent_to_the_hub(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seqwise: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    said = "ada/none: there is no such folder, and no such run on the hub (ada/none is not here); check the name"
    assert seqwise("predict", "ada/none", "a").complaint == said
    asked = len(hub.calls)
    # A slip in the name of a folder is not sent to anybody.
    for name in ("runs/tager", "./ada/none", str(tmp_path / "none"), "none"):
        assert "there is no such run folder" in seqwise("predict", name, "a").complaint
    with pytest.raises(InputError, match="there is no such run folder"):
        load_run(Path("ada/none"))
    assert len(hub.calls) == asked


def test_a_repository_that_was_damaged_is_refused(runs: Path, hub: FakeHub) -> None:
    repository = pushed(hub, runs, "tagger")
    path = repository / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(InputError, match=r"model\.safetensors: the file differs from its checksum"):
        load_run("ada/tagger")


def test_paths_of_pushed_settings_are_reduced_to_names() -> None:
    paths = {"train": Path("/home/ada/train.tsv"), "dev": Path("/home/ada/dev.tsv"), "language": "/home/ada/names.txt"}
    public = public_settings(train_settings(**paths))
    assert (public.train, public.dev, public.language) == (Path("train.tsv"), Path("dev.tsv"), "names.txt")
    assert public_settings(train_settings(language="/[ab]+")).language == "/[ab]+"
