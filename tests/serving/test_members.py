"""ml.serving.scoring.members: the files that members.json names."""

from __future__ import annotations

import json
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from ml.serving.scoring.members import FILE, Members


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A model folder, and beside it a file of another model."""
    folder = tmp_path / "model"
    folder.mkdir()
    table = np.arange(100.0).reshape(-1, 1)
    data = lightgbm.Dataset(table, (table[:, 0] > 50).astype(int), params={"verbose": -1})
    booster = lightgbm.train({"objective": "binary", "verbose": -1}, data, 2)
    for file in (folder / "model.txt", tmp_path / "other.txt"):
        booster.save_model(file)
    return folder


def name_member(folder: Path, name: str) -> None:
    document = {"task": "binary", "positive": "Yes", "members": [{"file": name, "weight": 1.0}]}
    (folder / FILE).write_text(json.dumps(document))


def test_a_member_is_a_file_of_the_folder(folder: Path) -> None:
    name_member(folder, "model.txt")
    low, high = Members(folder).predict(np.array([[1.0], [99.0]]))
    assert low < high


@pytest.mark.attack("members.json names a file that the model's digest does not cover")
@pytest.mark.parametrize("name", ["../other.txt", "{outside}/other.txt", "", "."])
def test_a_member_elsewhere_is_refused(folder: Path, name: str) -> None:
    name_member(folder, name.replace("{outside}", str(folder.parent)))
    with pytest.raises(ValueError, match=r"no file of its folder|no format that a member has"):
        Members(folder)


def test_a_member_of_another_format_is_refused(folder: Path) -> None:
    (folder / "model.pkl").write_bytes(b"")
    name_member(folder, "model.pkl")
    with pytest.raises(ValueError, match="no format that a member has"):
        Members(folder)
