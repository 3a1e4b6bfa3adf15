"""Packages that import their names on first use (PEP 562), so that importing a package is quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(package: str, *modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``; its ``__all__`` lists the names.
        modules: modules that define these names, in the order in which they are searched.

    Returns:
        both functions. They also import submodules on first use.

    Example:
        >>> import seqwise
        >>> "beam_search" in dir(seqwise), seqwise.beam_search.__module__
        (True, 'seqwise.search.beam')
    """

    def get(name: str) -> Any:
        own = vars(sys.modules[package])
        if name in own["__all__"]:
            for module in map(importlib.import_module, modules):
                if hasattr(module, name):
                    own[name] = getattr(module, name)
                    return own[name]
        elif not name.startswith("_"):
            from importlib.util import find_spec

            if find_spec(f"{package}.{name}"):
                return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        own = vars(sys.modules[package])
        return sorted({*own, *own["__all__"]})

    return get, names
