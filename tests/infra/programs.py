"""Programs to preview: the repository's own once a session, and tiny ones written by a test."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path

from infra.preview.captured import Capture
from infra.preview.run import captures


@functools.cache
def own() -> dict[str, Capture]:
    """The three stacks of this repository, without policies."""
    found, _ = captures(["dev", "prod", "staging"], policies=False)
    return {one.stack: one for one in found}


def tree(folder: Path, program: str) -> Path:
    """A tree with `program` as its infra/__main__.py."""
    (folder / "infra").mkdir(exist_ok=True)
    (folder / "infra" / "__main__.py").write_text(textwrap.dedent(program))
    return folder
