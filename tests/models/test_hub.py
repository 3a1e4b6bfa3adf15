"""Models in a folder and on the hub: the files are those of huggingface_hub's own class, both ways."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from torch import nn

from seqwise.errors import InputError
from seqwise.models import Tagger
from seqwise.models.hub import HubModel


class Scores(nn.Module):
    """A model with an argument without a default, one with, and a nested one; LSTMs hold their weights in one piece."""

    def __init__(self, size: int, dropout: float = 0.5, shifts: tuple[tuple[int, ...], ...] = ((1, 2),)) -> None:
        super().__init__()
        self.size, self.drop, self.shifts = size, nn.Dropout(dropout), shifts
        self.head = nn.Linear(size, 2)
        self.tied = self.head


class Ours(Scores, HubModel): ...


class Theirs(Scores, PyTorchModelHubMixin): ...


@pytest.mark.parametrize(("writer", "reader"), [(Ours, Theirs), (Theirs, Ours), (Ours, Ours)])
def test_the_files_are_those_of_the_mixin(writer: Any, reader: Any, tmp_path: Path) -> None:
    model = writer(3, shifts=[[4]])
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"size": 3, "dropout": 0.5, "shifts": [[4]]}
    back = reader.from_pretrained(tmp_path)
    assert (back.size, back.drop.p, back.shifts) == (3, 0.5, [[4]]) and not back.training
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    for name, weights in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], weights)


def test_arguments_replace_those_of_the_file_and_are_kept_by_copies(tmp_path: Path) -> None:
    Ours(3).save_pretrained(tmp_path / "one")
    copy.deepcopy(Ours.from_pretrained(tmp_path / "one", dropout=0.25)).save_pretrained(tmp_path / "two")
    assert json.loads((tmp_path / "two" / "config.json").read_text())["dropout"] == 0.25


def test_a_card_is_made_once(tmp_path: Path) -> None:
    Ours(3).save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "seqwise" and card.data.tags == ["seqwise"] and "Ours" in card.text
    (tmp_path / "README.md").write_text("mine")
    Ours(3).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"size": 4}', "size mismatch for head.weight.*"),
        ('{"size": 3, "hidden": 2}', ".*unexpected keyword argument 'hidden'"),
        ("[3]", ".*unsupported operand.*"),
        ('{"size": 3', "Expecting .*"),
    ],
)
def test_files_of_another_model_are_refused(config: str, reason: str, tmp_path: Path) -> None:
    Ours(3).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match=rf"^{tmp_path}: does not hold a Ours \({reason}\); load it with the class"):
        Ours.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"size": 3}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(InputError, match=r"does not hold a Ours .*; load it"):
        Ours.from_pretrained(tmp_path)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_without_a_file_and_with_a_pickle(missing: str, tmp_path: Path) -> None:
    Ours(3).save_pretrained(tmp_path)
    (tmp_path / missing).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(
        InputError, match=f"there is no {missing}.*pickled weights are not read, since a pickle can run code"
    ):
        Ours.from_pretrained(tmp_path)


def test_a_model_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, asked = tmp_path / "ada" / "scores", []

    class Api:
        def __init__(self, *, token: str | None) -> None:
            asked.append(token)

        def create_repo(self, name: str, *, private: bool | None, exist_ok: bool) -> Any:
            hub.mkdir(parents=True, exist_ok=exist_ok)
            asked.append(private)
            return SimpleNamespace(repo_id=f"ada/{name}")

        def upload_folder(self, *, repo_id: str, folder_path: str, revision: str | None, **more: Any) -> str:
            for path in Path(folder_path).iterdir():
                (hub / path.name).write_bytes(path.read_bytes())
            asked.extend([repo_id, revision, more["commit_message"], more["create_pr"]])
            return "https://hub/commit/1"

    def download(*, repo_id: str, filename: str, revision: str | None, token: Any, **more: Any) -> str:
        if revision == "unreachable":
            raise LocalEntryNotFoundError("no network")
        if not (tmp_path / repo_id / filename).is_file():
            raise EntryNotFoundError("404")
        asked.append((repo_id, filename, revision, token, more["cache_dir"]))
        return str(tmp_path / repo_id / filename)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    url = Ours(3).push_to_hub("scores", commit_message="first", private=True, token="t", branch="b", create_pr=True)
    assert url == "https://hub/commit/1" and asked == ["t", True, "ada/scores", "b", "first", True]
    asked.clear()
    assert Ours.from_pretrained("ada/scores", revision="r", token="t", cache_dir="c").size == 3
    assert asked == [("ada/scores", name, "r", "t", "c") for name in ("config.json", "model.safetensors")]
    with pytest.raises(LocalEntryNotFoundError):
        Ours.from_pretrained("ada/scores", revision="unreachable")
    (hub / "model.safetensors").rename(hub / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"ada/scores: there is no model\.safetensors"):
        Ours.from_pretrained("ada/scores")


def test_a_wrong_argument_is_refused_as_in_any_class() -> None:
    with pytest.raises(TypeError, match="source_sise"):
        Tagger(source_sise=3, target_size=2)  # type: ignore[call-arg]
