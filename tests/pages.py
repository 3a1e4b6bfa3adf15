"""Pages of the documentation, run as their reader would: from top to bottom, in an empty folder.

A page's Python blocks share one namespace. A console block holds ``$ seqwise ...`` commands, which run in this process.
A text block below either is what it prints: to the character below Python; below commands, whose models were trained on
one processor and may differ on another, but for blanks and a little of each decimal number.
"""

from __future__ import annotations

import importlib
import io
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from command_line import exit_code

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", flags=re.DOTALL | re.MULTILINE)
LONGEST = 120


class Block(NamedTuple):
    """Code to run, and the output that the page shows below it, or None."""

    language: str
    code: str
    shown: str | None


def blocks(text: str, language: str = "python|console") -> list[Block]:
    """The blocks of a page, in order."""
    found = [Block(kind, code, shown or None) for kind, code, shown in BLOCK.findall(text)]
    return [block for block in found if re.fullmatch(language, block.language)]


def run_python(code: str, name: str, namespace: dict[str, Any]) -> str:
    """What a block of Python prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, name, "exec", dont_inherit=True), namespace)
    return printed.getvalue()


def run_commands(code: str, *, accepted: str = "(?!)") -> str:
    """What the commands of a console block print on standard output; each succeeds, and trains without a warning.

    ``accepted`` matches warnings that the data of a test call for, and those of a reader do not.
    """
    lines = code.replace("\\\n", " ").splitlines()
    printed = io.StringIO()
    for line in lines:
        prompt, command, *arguments = shlex.split(line, comments=True)
        application = None
        if [command, *arguments[:1]] == ["python", "-m"]:  # of the reproductions
            module, arguments = arguments[1], arguments[2:]
            application = importlib.import_module(f"{module}.command").app
        assert prompt == "$" and (command == "seqwise" or application), f"not a command of ours: {line}"
        said = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(said):
            code_of_exit = exit_code(*arguments, application=application)
        assert code_of_exit == 0, f"{line}\n{said.getvalue()}"
        warnings = re.findall("^seqwise: .*", said.getvalue(), re.MULTILINE) if arguments[0] == "train" else []
        assert all(re.search(accepted, each) for each in warnings), f"{line}\n{said.getvalue()}"
    return printed.getvalue()


DECIMAL = re.compile(r"-?\d+\.\d+")


def agree(printed: str, shown: str) -> bool:
    """Whether two outputs are the same but for blanks, rules, versions, and decimals that differ by a fifth, or by 2.

    Example:
        >>> agree("beam   97.3 [95.0, 99.1]", "beam 96.9 [94.1, 99.0]"), agree("beam 97.3", "beam 12.0")
        (True, False)
    """
    texts = [re.sub(r"version:\S+|─+", "", text) for text in (printed, shown)]
    numbers = zip(*(map(float, DECIMAL.findall(text)) for text in texts), strict=False)
    texts = [" ".join(DECIMAL.sub("#", text).split()) for text in texts]
    return texts[0] == texts[1] and all(abs(one - other) <= max(abs(other) / 5, 2.0) for one, other in numbers)


def run_page(path: Path, *, without: str = "(?!)") -> dict[str, Any]:
    """Run a page in the current folder; its namespace. What differs from what it shows is an AssertionError.

    ``without`` is found in blocks that are not run.
    """
    namespace: dict[str, Any] = {"__name__": path.stem}
    for number, block in enumerate(blocks(path.read_text(encoding="utf-8")), start=1):
        if re.search(without, block.code):
            continue
        name = f"{path.name}, block {number}"
        printed = run_commands(block.code) if block.language == "console" else run_python(block.code, name, namespace)
        same = agree if block.language == "console" else str.__eq__
        assert block.shown is None or same(printed, block.shown), f"{name} prints:\n{printed}"
        assert all(len(line) <= LONGEST for line in (block.code + (block.shown or "")).splitlines()), name
    return namespace


if __name__ == "__main__":  # to see what a page prints: python tests/pages.py PAGE, in an empty folder
    for one in blocks(Path(sys.argv[1]).read_text(encoding="utf-8")):
        print(run_commands(one.code) if one.language == "console" else run_python(one.code, "page", globals()))
