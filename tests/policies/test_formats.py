"""policies.supply_chain.formats: by content, not by name."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from policies.supply_chain.formats import detect, formats


class Payload:
    """Unpickling this would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("true",)


def test_a_real_lightgbm_model_is_recognised(tmp_path: Path) -> None:
    """What LightGBM saves as text is its text format."""
    numbers = np.random.default_rng(0).normal(size=(100, 2))
    data = lightgbm.Dataset(numbers, numbers[:, 0])
    model = lightgbm.train({"verbose": -1}, data, num_boost_round=2)
    model.save_model(tmp_path / "model.txt")
    assert detect(tmp_path / "model.txt") == "lightgbm-text"


def test_json_and_arrays_are_recognised_whatever_their_name(tmp_path: Path) -> None:
    """JSON and an npz of numbers and text count under any name."""
    (tmp_path / "a.bin").write_text(json.dumps({"words": ["spot"]}))
    assert detect(tmp_path / "a.bin") == "json"
    with (tmp_path / "b.bin").open("wb") as stream:
        np.savez_compressed(stream, numbers=np.arange(3.0), words=np.array(["spot", "cost"]))
    assert detect(tmp_path / "b.bin") == "npz"


@pytest.mark.parametrize("name", ["model.txt", "model.json", "model.npz", "model.pkl"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_no_format_under_any_name(name: str, protocol: int, tmp_path: Path) -> None:
    """The content decides, for every pickle protocol."""
    (tmp_path / name).write_bytes(pickle.dumps(Payload(), protocol=protocol))
    assert detect(tmp_path / name) == ""


def _objects() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, fine=np.arange(2), words=np.array([Payload()], dtype=object))
    return stream.getvalue()


def _zip(member: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("data.pkl", member)
    return stream.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(_objects(), id="an npz with an array of objects"),
        pytest.param(_zip(pickle.dumps(Payload())), id="a torch-like zip of a pickle"),
        pytest.param(_zip(b""), id="a zip of nothing"),
        pytest.param(b"PK\x03\x04 cut off", id="a broken zip"),
        pytest.param(b"tree\n\x00\x01binary", id="binary behind LightGBM's first line"),
        pytest.param(b"tree\n\xff\xfe", id="no text behind LightGBM's first line"),
        pytest.param(b'{"a": NaN}', id="NaN is not JSON"),
        pytest.param(b'{"a": 1', id="half JSON"),
        pytest.param(b"\x7fELF", id="a program"),
        pytest.param(b"#!/bin/sh\n", id="a script"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_everything_else_is_no_format(content: bytes, tmp_path: Path) -> None:
    """What is not known to be harmless is not recognised."""
    path = tmp_path / "model.txt"
    path.write_bytes(content)
    assert detect(path) == ""


def test_every_file_of_a_folder_is_looked_at(tmp_path: Path) -> None:
    """Inner folders too: one pickle among sound files is found."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "inner" / "b.json").write_bytes(pickle.dumps(Payload()))
    assert formats(tmp_path) == {"a.json": "json", "inner/b.json": ""}
