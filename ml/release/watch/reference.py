"""The reference of a version: stored beside its evidence, verified before each use."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml.backends.registry import Version
from ml.core.errors import Exit, Problem, Refused
from ml.release.registry.models import EVIDENCE_FILE
from ml.toolkit.reference import REFERENCE, SCHEMA_VERSION

# What evidence.json calls the sha256 of the reference.
FIELD = "reference"


def keep(evaluation: Path, folder: Path) -> str | None:
    """Copy an evaluation's reference to the folder of the version's evidence; its sha256 (hex).

    None, and nothing is copied, when the project writes no reference.
    """
    source = evaluation / REFERENCE
    if not source.is_file():
        return None
    shutil.copyfile(source, folder / REFERENCE)
    return hashlib.sha256((folder / REFERENCE).read_bytes()).hexdigest()


def load(version: Version) -> Mapping[str, Any]:
    """The reference of a version; raises Refused when it is none, another model's, or edited."""
    path = version.evidence_folder / REFERENCE
    name = f"{version.model} {version.version}"
    try:
        content = path.read_bytes()
    except OSError:
        raise Refused(
            Problem(
                "no-reference",
                f"no {REFERENCE} is kept with {name}",
                "the project's evaluation writes one (ml.toolkit.reference)",
                "propose the version's run again once it does",
            )
        ) from None
    try:
        evidence = (version.evidence_folder / EVIDENCE_FILE).read_bytes()
        stated = json.loads(evidence).get(FIELD)
        document = json.loads(content)
        digest = document["digest"]
        sound = document["schema_version"] == SCHEMA_VERSION and all(
            isinstance(document[part], dict) for part in ("inputs", "predictions", "quality")
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unfit(path, f"it cannot be read: {error!r}") from None
    if hashlib.sha256(evidence).hexdigest() != version.evidence:
        raise _unfit(path, f"{EVIDENCE_FILE} is not the file that was kept with {name}")
    if hashlib.sha256(content).hexdigest() != stated or not sound:
        raise _unfit(path, "it is not the file whose sha256 the evidence states")
    if digest != version.digest:
        raise _unfit(path, f"it is of the model {digest}, {name} is {version.digest}")
    return dict(document)


def _unfit(path: Path, why: str) -> Refused:
    problem = Problem("reference-unfit", f"{path}: {why}", "the reference of this very model")
    return Refused(problem, exit_code=Exit.RUN_FAILED)
