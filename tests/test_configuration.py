"""Settings: the field's type decides, every mistake names file and line, and what is dumped loads back equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqwise.configuration import Config, OneOf, configure, dump, load, setting
from seqwise.configuration.flat import changed, flags_of
from seqwise.errors import InputError


class Optimiser(Config):
    rate: float = 1e-3
    steps: int = 100
    decay: Literal["linear", "constant"] = "linear"


class Settings(Config):
    name: str = "run"
    shuffle: bool = True
    data: Path | None = None
    alpha: float | str = 1.0
    sizes: list[int] = setting([], "several")
    pair: tuple[float, str] = (1.0, "a")
    weights: dict[str, float] = setting({}, "by name")
    optimiser: Optimiser = Optimiser()


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
    assert load(Settings, path, {}) == Settings(
        name="no", shuffle=False, data=Path("a/b.tsv"), alpha="linear(1, 10)", sizes=[1, 2], pair=(1e-4, "3"),
        weights={"a": 1000.0}, optimiser=Optimiser(rate=1e-4, steps=1000),
    )  # fmt: skip


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "optimiser: {rate: 0.5, steps: 7}\n")
    flags = {"rate": "2", "name": "true", "sizes": "[3]", "data": "x.tsv", "alpha": "2"}
    assert load(Settings, path, {}).optimiser == Optimiser(rate=0.5, steps=7)
    assert load(Settings, path, flags) == Settings(
        name="true", data=Path("x.tsv"), alpha=2.0, sizes=[3], optimiser=Optimiser(rate=2.0, steps=7)
    )
    assert load(Settings, None, {"rate": "2"}).optimiser == Optimiser(rate=2.0)
    assert load(Settings, None, {"data": "none"}).data is None
    assert load(Settings, write(tmp_path, "# nothing\n"), {}) == Settings()


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
        ("optimiser: 3\n", 1, "optimiser must be a mapping of names to values, got '3'"),
        ("shuffle: 2\n", 1, "must be true or false"),
        ("name: [a]\n", 1, "name must be text, got a list"),
        ("name: a\nname: b\n", 2, "occurs twice"),
        ("sizes: 3\n", 1, "sizes must be a list"),
        ("sizes:\n- 1\n- x\n", 3, "sizes.1 must be an integer"),
        ("pair: [1]\n", 1, "pair.1 is missing"),
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
        load(Settings, path, {})
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert said in str(error.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: b\nname: \xe4\n")
    (tmp_path / "deep.yaml").write_text("[" * 50_000)
    for name, said in [("latin.yaml", ":2: not UTF-8"), ("none.yaml", "does not exist"), ("", "cannot be read"),
                       ("deep.yaml", "nested too deeply")]:  # fmt: skip
        with pytest.raises(InputError, match=said):
            load(Settings, tmp_path / name, {})


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("rat", "1", "unknown setting 'rat'; did you mean 'rate'?"),
        ("optimiser.rate", "1", "unknown setting 'optimiser.rate'"),
        ("optimiser", "1", "optimiser must be a mapping of names to values, got '1'"),
        ("steps", "x", "steps must be an integer, got 'x'"),
        ("sizes", "[1, x]", "sizes.1 must be an integer"),
        ("shuffle", "", "shuffle must be true or false, got ''"),
    ],
)
def test_a_wrong_flag_is_named(key: str, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        load(Settings, None, {key: text})
    assert str(error.value).startswith(said)


class Needy(Config):
    data: Path
    steps: int = setting(1, "how many", ge=1)
    share: float = setting(0.5, "how much", gt=0, le=1)


def test_missing_values_and_ranges_name_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "steps: 2\n")
    with pytest.raises(InputError, match=r"run.yaml: data is missing; add a line 'data: ...'"):
        load(Needy, path, {})
    with pytest.raises(InputError, match=r"run.yaml:2: steps must be at least 1, got 0"):
        load(Needy, write(tmp_path, "data: a\nsteps: 0\n"), {})
    with pytest.raises(InputError, match=r"^steps must be at least 1, got 0$"):
        load(Needy, path, {"data": "a", "steps": "0"})
    with pytest.raises(InputError, match=r"^share must be greater than 0 and at most 1, got 2.0$"):
        Needy(data="a", share=2.0)
    with pytest.raises(InputError, match=r"^steps must be an integer, got 'true'$"):
        Needy(data="a", steps=True)
    with pytest.raises(InputError, match=r"^unknown key 'step'; did you mean 'steps'\?$"):
        Needy(data="a", step=1)


class Model(Config):
    dropout: float = setting(0.1, "dropout rate", ge=0, lt=1)


class LSTM(Model):
    name: Literal["lstm"] = "lstm"
    size: int = setting(8, "of each direction", ge=1)


class Transformer(Model):
    name: Literal["transformer"] = "transformer"
    size: int = setting(16, "of each layer", ge=1)
    num_heads: int = setting(4, "of each layer", ge=1, flag="heads")


class Objective(Config):
    pass


class Likelihood(Objective):
    name: Literal["likelihood"] = "likelihood"


class Beam(Objective):
    name: Literal["beam"] = "beam"
    k: int = setting(5, "slots of the beam", ge=1, flag="beam_size")


class Training(Config):
    model: Annotated[Model, OneOf(Model)] = setting("lstm", "what is trained", panel="Model")
    objective: Annotated[Objective, OneOf(Objective)] = setting("likelihood", "what is minimised")
    start: Annotated[Objective | None, OneOf(Objective, optional=True)] = setting("none", "what comes before")
    beam_size: int | None = setting(None, "slots in decoding", ge=1)
    steps: int = setting(10, "how many", ge=1)


def test_nested_and_flat_settings_give_equal_configurations(tmp_path: Path) -> None:
    wanted = Training(model=Transformer(size=4, num_heads=2), objective=Beam(k=3), beam_size=3)
    flat = {"model": "transformer", "size": "4", "heads": "2", "objective": "beam", "beam_size": "3"}
    assert load(Training, None, flat) == wanted
    assert configure(Training, model="transformer", size=4, heads=2, objective="beam", beam_size=3) == wanted
    assert configure(Training, model=Transformer(size=4, num_heads=2), objective=Beam(k=3), beam_size=3) == wanted
    nested = "model: {name: transformer, size: 4, num_heads: 2}\nobjective: {name: beam, k: 3}\nbeam_size: 3\n"
    assert load(Training, write(tmp_path, nested)) == wanted
    short = "model: transformer\nsize: 4\nheads: 2\nobjective: beam\nbeam_size: 3\n"
    assert load(Training, write(tmp_path, short)) == wanted
    assert load(Training, write(tmp_path, dump(wanted))) == wanted
    assert changed(Training, wanted, {}) == wanted
    assert changed(Training, wanted, {"objective": "likelihood"}).beam_size == 3
    likelihood = configure(Training, beam_size=3)
    assert changed(Training, likelihood, {"objective": "beam"}).objective == Beam(k=3)
    assert changed(Training, Training(objective=Beam(), beam_size=3), {"steps": 2}).objective == Beam(k=5)
    assert changed(Training, wanted, {"model": "lstm"}).model == LSTM(size=4)
    assert configure(Training, start="beam", beam_size=2).start == Beam(k=2)
    assert configure(Training, start="none").start is None is Training().start
    assert load(Training, write(tmp_path, "start: {name: beam}\n"), {"start": "none"}).start is None
    overridden = load(Training, write(tmp_path, nested), {"heads": "1", "objective": "beam"})
    assert overridden == wanted.replace(model=Transformer(size=4, num_heads=1))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("steps: 1\nmodel:\n  name: lstm\n  heads: 2\n", 4, "unknown key 'model.heads'; known are dropout, name, size"),
        (
            "steps: 1\nmodel:\n  name: lstn\n",
            3,
            "model.name must be one of lstm, transformer, got 'lstn'; did you mean",
        ),
        ("model: lstn\n", 1, "model must be one of lstm, transformer, got 'lstn'; did you mean 'lstm'?"),
        ("model:\n  name: lstm\n  size: 0\n", 3, "model.size must be at least 1, got 0"),
        ("model:\n  name: lstm\n  dropout: 1\n", 3, "model.dropout must be at least 0 and below 1, got 1.0"),
        ("steps: 2\nsize: 0\n", 2, "size must be at least 1, got 0"),
        ("steps: 2\nheads: 2\n", 2, "heads: has no effect here; leave it out, or use model transformer"),
        ("model: [lstm]\n", 1, "model must be a name or a mapping, got a list"),
        ("model: {name: [lstm]}\n", 1, "model.name must be one of lstm, transformer, got a list"),
        ("model: {name: {size: 4}}\n", 1, "model.name must be one of lstm, transformer, got a mapping"),
        ("objective: {k: 3}\n", 1, "unknown key 'objective.k'"),
        ("objective:\n  name: beam\n  k: x\n", 3, "objective.k must be an integer, got 'x'"),
        ("sise: 2\n", 1, "unknown key 'sise'; did you mean 'size'?"),
        ("objective:\n  name: beam\n  beam_size: 3\n", 3, "unknown key 'objective.beam_size'; did you mean 'k'?"),
    ],
)
def test_a_mistake_in_an_alternative_names_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        load(Training, path)
    assert str(error.value).startswith(f"{path}:{line}: {said}")


@pytest.mark.parametrize(
    ("kind", "text", "names"),
    [(Training, "model: zzz\n", "lstm, transformer"), (Optimiser, "decay: zzz\n", "linear, constant")],
)
def test_names_are_listed_once(kind: type[Config], text: str, names: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf":1: \w+ must be one of {names}, got 'zzz'$"):
        load(kind, write(tmp_path, text))


def test_none_in_a_file_is_no_number_and_may_be_a_path(tmp_path: Path) -> None:
    assert load(Training, write(tmp_path, "beam_size: none\n")).beam_size is None
    assert load(Settings, write(tmp_path, "data: none\n")).data == Path("none")
    with pytest.raises(InputError, match="beam_size must be an integer, got 'null and void'"):
        load(Training, write(tmp_path, "beam_size: null and void\n"))


def test_a_flag_that_no_chosen_alternative_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"^heads: has no effect here; leave it out, or use model transformer$"):
        load(Training, None, {"heads": "2"})
    with pytest.raises(
        InputError, match=r"^objective must be one of likelihood, beam, got 'beem'; did you mean 'beam'\?"
    ):
        load(Training, None, {"objective": "beem"})
    with pytest.raises(InputError, match=r"^objective\.k must be at least 1, got 0$"):
        Training(objective={"name": "beam", "k": 0})


def test_flags_are_listed_once_with_the_alternatives_that_have_them() -> None:
    flags: dict[str, Any] = {flag.name: flag for flag in flags_of(Training)}
    assert list(flags) == ["model", "dropout", "size", "heads", "objective", "beam_size", "start", "steps"]
    assert flags["model"].choices == ("lstm", "transformer") and flags["model"].panel == "Model"
    assert flags["heads"].text == "transformer: of each layer"
    assert flags["beam_size"].text == "slots of the beam; slots in decoding" and flags["beam_size"].metavar == "N"


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
    path.write_text(dump(settings), encoding="utf-8", newline="")
    assert load(Settings, path, {}) == settings


@pytest.mark.parametrize(
    "room, base, member",
    [
        ("objectives", "ObjectiveConfig", "hinge"),
        pytest.param("sampling", "KernelConfig", "gibbs", marks=pytest.mark.thorough),
    ],
)
def test_a_base_class_comes_with_its_members(room: str, base: str, member: str) -> None:
    """In a new process, where nothing else has imported them."""
    imports = f"from seqwise.{room} import {base}; from seqwise.configuration import OneOf"
    code = f"{imports}; OneOf({base}).members[{member!r}]"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
