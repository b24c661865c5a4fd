"""Write and verify the training facts and the manifest of a model folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml.serving.scoring.manifest import verify, write_manifest

FILE = "settings.json"


def seal(folder: Path, facts: Mapping[str, Any]) -> str:
    """Write `facts` to settings.json, then the manifest; return the manifest's digest."""
    text = json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")
    return write_manifest(folder)


def unseal(folder: Path) -> tuple[dict[str, Any], str]:
    """Verify a sealed folder; return its facts and digest. Raises ManifestError if it changed."""
    digest = verify(folder)
    facts: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return facts, digest
