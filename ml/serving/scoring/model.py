"""Find and verify the model that a score.py serves."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ml.serving.scoring.manifest import NAME, verify

# Environment variables: Azure ML sets MODEL_DIR for every deployment; a release sets MODEL_DIGEST
# to the declared digest.
MODEL_DIR = "AZUREML_MODEL_DIR"
MODEL_DIGEST = "MODEL_DIGEST"
# Environment variable for the feature store: a URL of Redis, set in deployment.yml, or locally the
# folder of the store.
FEATURE_STORE = "SCORE_FEATURE_STORE"


@dataclass(frozen=True)
class ServedModel:
    """A verified model folder, and its digest."""

    folder: Path
    digest: str


def open_model() -> ServedModel:
    """Verify and return the model folder; call it before a library loads a file.

    The manifest is in AZUREML_MODEL_DIR or one level below, where Azure ML mounts a registered
    folder. Raises FileNotFoundError unless exactly one folder has a manifest, and ManifestError if
    a file was changed or the digest differs from MODEL_DIGEST.
    """
    mounted = os.environ.get(MODEL_DIR)
    if not mounted:
        raise FileNotFoundError(f"{MODEL_DIR} is not set; the inference server sets it")
    root = Path(mounted)
    candidates = [root, *sorted(path for path in root.glob("*") if path.is_dir())]
    folders = [folder for folder in candidates if (folder / NAME).is_file()]
    if len(folders) != 1:
        raise FileNotFoundError(f"{len(folders)} folders with a {NAME} in {root}, expected one")
    return ServedModel(folders[0], verify(folders[0], os.environ.get(MODEL_DIGEST) or None))
