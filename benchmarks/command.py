"""Command lines, signatures and ratios of all benchmarks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from seqwise.data.durable import write_atomically
from seqwise.devices import find_device
from seqwise.errors import InputError
from seqwise.evaluation.signature import sign, signature_line

__all__ = ["Ratio", "add_device", "at_least", "make_parser", "run", "signed"]


@dataclass(frozen=True)
class Ratio:
    """Ratio in the summary of all benchmarks, with a target: ``least`` or ``most``, or none."""

    label: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def target(self) -> str:
        """Return the target as text, "" without one."""
        if self.most is not None:
            return f"≤ {self.most:g}"
        return "" if self.least is None else f"{self.least:g}"

    @property
    def missed(self) -> bool:
        """Whether there is a target, and it is not reached."""
        return (self.least is not None and self.value < self.least) or (
            self.most is not None and self.value > self.most
        )


def make_parser(name: str, description: str | None, *, rounds: int, seed: str) -> argparse.ArgumentParser:
    """Make a parser with the options of all benchmarks; each adds its own.

    Args:
        name: name of the module.
        description: its docstring.
        rounds: default number of rounds.
        seed: what depends on the seed.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=at_least(1), default=rounds, help="number of rounds, in which the systems take turns"
    )
    parser.add_argument("--threads", type=at_least(1), default=1, help="processor threads of torch")
    parser.add_argument("--seed", type=int, default=0, help=f"seed of {seed}")
    parser.add_argument("--output", type=Path, default=Path(f"outputs/{name}.json"), help="JSON file")
    return parser


def at_least(lowest: int) -> Callable[[str], int]:
    """Return the type of an option that is an integer of at least ``lowest``."""

    def integer(text: str) -> int:
        if (value := int(text)) < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, got {value}")
        return value

    return integer


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option of benchmarks that can be run on a device."""
    parser.add_argument("--device", type=_device, default=torch.device("cpu"), help="cpu, cuda or cuda:N")


def _device(name: str) -> torch.device:
    try:
        return find_device(name)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def signed(title: str, options: argparse.Namespace, *, data: str) -> dict[str, Any]:
    """Return the signature of a result, with all options, as fields and as a line.

    Args:
        title: what was measured.
        options: options of the command line.
        data: digest of the data, or "random".
    """
    settings = ", ".join(f"{name} {value}" for name, value in vars(options).items() if name != "output")
    signature = sign(f"{title}; {settings}", seeds=[options.seed], data=data)
    return {"signature": asdict(signature), "signature_line": signature_line(signature)}


def run(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None,
) -> dict[str, Any]:
    """Measure, write JSON and print a table."""
    options = parser.parse_args(arguments)
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output: {options.output.parent}: cannot be made ({error.strerror})")
    result = measure(options)
    write_atomically(options.output, json.dumps(result, indent=1) + "\n")
    print(table(result))
    return result
