"""Long description of the package: README.md without pictures and links that only work in the repository.

Hatchling runs this hook for each wheel and sdist.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n?", flags=re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[^)]*\)")
WHERE = "\nThe pages and figures are in the source distribution, in `docs/`.\n"


def package_page(readme: str) -> str:
    """Drop pictures with a relative path, and replace relative links by their text.

    Args:
        readme: Markdown.
    """
    return LINK.sub(r"\1", PICTURE.sub("", readme)) + WHERE


class PackagePage(MetadataHookInterface):
    """Hook that adds the page to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme`` in the metadata of the project."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": package_page(readme)}
