"""Writes and verifies what every model folder has beside the model: facts and the manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml.serving.scoring.manifest import verify, write_manifest

FILE = "settings.json"


def seal(folder: Path, facts: Mapping[str, Any]) -> str:
    """Write `facts` about the training into the folder, then the manifest; return its digest."""
    text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")
    return write_manifest(folder)


def unseal(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the facts and the digest of a sealed folder. Raises ManifestError, before any loader
    reads a file, if one was changed.
    """
    digest = verify(folder)
    facts: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return facts, digest
