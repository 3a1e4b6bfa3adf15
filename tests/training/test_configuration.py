"""Settings: the field's type decides, every mistake names file and line, and what is dumped loads back equal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqwise.errors import InputError
from seqwise.training.configuration import dump_configuration, load_configuration


@dataclass(frozen=True)
class Optimiser:
    rate: float = 1e-3
    steps: int = 100
    decay: Literal["linear", "constant"] = "linear"


@dataclass(frozen=True)
class Settings:
    name: str = "run"
    shuffle: bool = True
    data: Path | None = None
    alpha: float | str = 1.0
    sizes: list[int] = field(default_factory=list)
    pair: tuple[float, str] = (1.0, "a")
    weights: dict[str, float] = field(default_factory=dict)
    optimiser: Optimiser = field(default_factory=lambda: Optimiser(steps=7))


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_bytes(text.encode())
    return path


def test_the_type_of_the_field_reads_the_text(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "name: no\nshuffle: off\ndata: a/b.tsv\nalpha: linear(1, 10)\nsizes: [1, 2]\npair: [1e-4, 3]\n"
        "weights: {a: 1e3}\noptimiser:\n  rate: 1e-4\n  steps: 1e3\n",
    )
    assert load_configuration(Settings, path, {}) == Settings(
        name="no", shuffle=False, data=Path("a/b.tsv"), alpha="linear(1, 10)", sizes=[1, 2], pair=(1e-4, "3"),
        weights={"a": 1000.0}, optimiser=Optimiser(rate=1e-4, steps=1000),
    )  # fmt: skip


def test_overrides_win_and_what_is_not_given_keeps_the_outer_default(tmp_path: Path) -> None:
    path = write(tmp_path, "optimiser: {rate: 0.5}\n")
    assert load_configuration(Settings, path, {}).optimiser == Optimiser(rate=0.5, steps=7)
    overrides = {"optimiser.rate": "2", "name": "true", "sizes": "[3]", "data": "x.tsv", "alpha": "2"}
    loaded = load_configuration(Settings, path, overrides)
    assert loaded == Settings("true", True, Path("x.tsv"), 2.0, [3], optimiser=Optimiser(2.0, 7))
    assert load_configuration(Settings, None, {"optimiser.rate": "2"}).optimiser == Optimiser(2.0, 7)
    assert load_configuration(Settings, None, {"data": "none"}).data is None
    assert load_configuration(Settings, write(tmp_path, "# nothing\n"), {}) == Settings()


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("name: a\nshufle: true\n", 2, "unknown key 'shufle'; did you mean 'shuffle'?"),
        ("name: a\n\noptimiser:\n  rat: 1\n", 4, "unknown key 'optimiser.rat'; did you mean 'rate'?"),
        ("optimiser:\n  steps: many\n", 2, "optimiser.steps must be an integer, got 'many'"),
        ("optimiser:\n  steps: 1.5\n", 2, "must be an integer"),
        ("optimiser:\n  steps: true\n", 2, "must be an integer"),
        ("optimiser:\n  steps: " + "9" * 5000, 2, "must be an integer"),
        ("optimiser:\n  rate: .nan\n", 2, "must be a finite number"),
        ("optimiser:\n  rate: 1e999\n", 2, "must be a finite number"),
        ("optimiser:\n  rate:\n", 2, "must be a finite number, got ''"),
        ("optimiser:\n  decay: liner\n", 2, "must be one of linear, constant, got 'liner'; did you mean 'linear'?"),
        ("optimiser: 3\n", 1, "optimiser must be a mapping"),
        ("shuffle: 2\n", 1, "must be true or false"),
        ("name: [a]\n", 1, "name must be text, got a list"),
        ("name: a\nname: b\n", 2, "stands twice"),
        ("sizes: 3\n", 1, "sizes must be a list"),
        ("sizes:\n- 1\n- x\n", 3, "sizes.1 must be an integer"),
        ("pair: [1]\n", 1, "pair must be a list of 2"),
        ("weights:\n  a: b\n", 2, "weights.a must be a finite number"),
        ("- a\n", 1, "the file must be a mapping"),
        ("name: a\n  b: c\n", 2, "not valid YAML"),
        ("name: 'a\n", 2, "not valid YAML"),
        ("name: !!python/object/apply:os.system [ls]\n", 1, "name must be text"),
        ("a: 1\n---\nb: 1\n", 2, "not valid YAML"),
        ("name: a\nshuffle: \x01\n", 2, "does not allow"),
        ("<<: {name: a}\n", 1, "unknown key '<<'"),
        ("? [a]\n: b\n", 1, "names as keys"),
    ],
)
def test_a_mistake_names_its_file_and_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_configuration(Settings, path, {})
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert said in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: b\nname: \xe4\n")
    (tmp_path / "deep.yaml").write_text("[" * 50_000)
    for name, said in [("latin.yaml", ":2: not UTF-8"), ("none.yaml", "does not exist"), ("", "cannot be read"),
                       ("deep.yaml", "nested too deeply")]:  # fmt: skip
        with pytest.raises(InputError, match=said):
            load_configuration(Settings, tmp_path / name, {})


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("optimiser.rat", "1", "unknown setting 'optimiser.rat'; did you mean 'rate'?"),
        ("optimizer.rate", "1", "unknown setting 'optimizer.rate'; did you mean 'optimiser'?"),
        ("optimiser", "1", "optimiser holds several settings; set optimiser.<name>"),
        ("name.first", "1", "unknown setting 'name.first'; set name"),
        ("optimiser.steps", "x", "optimiser.steps must be an integer, got 'x'"),
        ("sizes", "[1, x]", "sizes.1 must be an integer"),
        ("shuffle", "", "shuffle must be true or false, got ''"),
    ],
)
def test_a_wrong_override_is_named(key: str, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        load_configuration(Settings, None, {key: text})
    assert said in str(error.value)


@dataclass
class Needy:
    data: Path
    steps: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"steps must be at least 1, got {self.steps}")


def test_missing_values_and_the_dataclass_s_own_checks_name_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "steps: 2\n")
    with pytest.raises(InputError, match=r"run.yaml: data is missing; add a line 'data: ...'"):
        load_configuration(Needy, path, {})
    with pytest.raises(InputError, match=r"run.yaml:1: steps must be at least 1, got 0"):
        load_configuration(Needy, write(tmp_path, "data: a\nsteps: 0\n"), {})


texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)


@given(
    st.builds(
        Settings, name=texts, shuffle=st.booleans(), data=st.none() | st.just(Path("a b/c")),
        alpha=st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["linear(1, 2)", "x"]),
        sizes=st.lists(st.integers(-(10**9), 10**9), max_size=3), pair=st.tuples(st.floats(-1e9, 1e9), texts),
        weights=st.dictionaries(texts, st.floats(-1e9, 1e9), max_size=2),
        optimiser=st.builds(Optimiser, rate=st.floats(1e-300, 1e300), decay=st.sampled_from(["linear", "constant"])),
    )
)  # fmt: skip
def test_what_is_dumped_loads_back_equal(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> None:
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    path.write_text(dump_configuration(settings), encoding="utf-8", newline="")
    assert load_configuration(Settings, path, {}) == settings
