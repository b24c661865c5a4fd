"""Fixtures: small generated stores, and a briefly trained model; created once per session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# One store for each split.
STORES = {"castle": 4, "bridge": 4, "north": 4}
SIZE = 96
ARGUMENTS = (
    *("--size", str(SIZE), "--channels", "16", "--batch", "2", "--measure-every", "1"),
    *("--proposals", "40", "--boxes", "10", "--epochs", "2"),
)


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same layout as the data asset."""
    folder = tmp_path_factory.mktemp("recipe")
    document = {"seed": 1, "size": SIZE, "stores": STORES}
    (folder / "recipe.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="session")
def trained(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of a model that was trained for two epochs."""
    if not find_spec("torchvision"):
        pytest.skip("torchvision is not installed: make images")
    from ml.projects.shelf_gaps.train import main

    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setenv("MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING", "false")
        main(["--data", str(recipe), "--model", str(folder / "model"), *ARGUMENTS])
        yield folder / "model"
