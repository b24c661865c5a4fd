"""policies.supply_chain.formats: by content, not by name."""

from __future__ import annotations

import io
import json
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from policies.promotion import gate_settings
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
@pytest.mark.attack("A pickle bears the name of a harmless format")
def test_a_pickle_is_no_format_under_any_name(name: str, protocol: int, tmp_path: Path) -> None:
    """The content decides, for every pickle protocol."""
    (tmp_path / name).write_bytes(pickle.dumps(Payload(), protocol=protocol))
    assert detect(tmp_path / name) == ""


def _objects() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, fine=np.arange(2), words=np.array([Payload()], dtype=object))
    return stream.getvalue()


def _array(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


_TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def _safetensors(header: object, size: int = 8) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


def _zip(member: bytes, name: str = "data.pkl") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, member)
    return stream.getvalue()


REFUSED: dict[str, bytes] = {
    "an npz with an array of objects": _objects(),
    "an array of objects alone": _array(np.array([Payload()], dtype=object)),
    "an array whose header is no array's": b"\x93NUMPY\x01\x00\x05\x00{1:2}",
    "an array of numbers alone, which is not on the list": _array(np.arange(3)),
    "a torch-like zip of a pickle": _zip(pickle.dumps(Payload())),
    "a pickle of plain data": pickle.dumps({"weights": [1.0]}),
    "a pickle that is cut off": pickle.dumps(Payload())[:-1],
    "two pickles": pickle.dumps(1) + pickle.dumps(Payload()),
    "a zip of nothing": _zip(b""),
    "a broken zip": b"PK\x03\x04 cut off",
    "binary behind LightGBM's first line": b"tree\n\x00\x01binary",
    "no text behind LightGBM's first line": b"tree\n\xff\xfe",
    "a zip of a pickle behind LightGBM's first line": b"tree\n" + _zip(pickle.dumps(Payload())),
    "NaN is not JSON": b'{"a": NaN}',
    "half JSON": b'{"a": 1',
    "a program": b"\x7fELF",
    "a program of another system": b"MZ\x90",
    "a script": b"#!/bin/sh\n",
    "a sentence": b"It works.",
    "nothing": b"",
    "safetensors that end early": _safetensors({"a": _TENSOR})[:-1],
    "safetensors with more behind": _safetensors({"a": _TENSOR}) + b"x",
    "a tensor of an unknown type": _safetensors({"a": {**_TENSOR, "dtype": "OBJ"}}),
    "a tensor of another size": _safetensors({"a": {**_TENSOR, "shape": [3]}}),
    "tensors over each other": _safetensors({"a": _TENSOR, "b": _TENSOR}),
    "notes that are no text": _safetensors({"a": _TENSOR, "__metadata__": {"n": 1}}),
    "an ONNX model without a node": b"\x08\x09:\x03\x12\x01gB\x00",
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_everything_else_is_no_format(content: bytes, tmp_path: Path) -> None:
    """Any other content has no format."""
    path = tmp_path / "model.txt"
    path.write_bytes(content)
    assert detect(path) == ""


def test_every_format_that_is_recognised_is_allowed() -> None:
    """The organisation policy allows them all; a project may leave some out."""
    allowed = {"lightgbm-text", "xgboost-json", "json", "npz", "onnx", "safetensors", "skops"}
    assert set(gate_settings.load()["format"].names("allowed")) == allowed


def test_safetensors_are_recognised(tmp_path: Path) -> None:
    """Tensors that fill the file in any order of the header, and notes."""
    second = {**_TENSOR, "data_offsets": [8, 16]}
    both = _safetensors({"b": second, "a": _TENSOR, "__metadata__": {"by": "ana"}}, 16)
    for name, content in (("one", _safetensors({"a": _TENSOR})), ("two", both)):
        (tmp_path / name).write_bytes(content)
        assert detect(tmp_path / name) == "safetensors"


@pytest.mark.slow
@pytest.mark.attack("A skops file has types that run code")
def test_skops_counts_with_trusted_types_alone(tmp_path: Path) -> None:
    """A fitted model; one with a function of the system in it; a zip that only looks like one."""
    import os

    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import FunctionTransformer
    from skops.io import dump

    numbers = np.random.default_rng(0).normal(size=(20, 2))
    dump(LogisticRegression().fit(numbers, np.arange(20) % 2), tmp_path / "fitted")
    dump(FunctionTransformer(func=os.system), tmp_path / "calls")
    (tmp_path / "empty").write_bytes(_zip(b"{}", "schema.json"))
    with zipfile.ZipFile(tmp_path / "fitted", "a") as archive:
        assert detect(tmp_path / "fitted") == "skops"
        archive.writestr("more.bin", pickle.dumps(Payload()))
    named = {**formats(tmp_path)}
    assert named.pop("calls").startswith("skops with ")
    assert named == {"empty": "", "fitted": ""}


@given(st.binary(max_size=200))
@pytest.mark.attack("Bytes of a model break the scan of its format")
def test_no_bytes_break_the_scan(content: bytes) -> None:
    """Any bytes can be read without an error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        for start in (b"", b"tree\n", b"PK\x03\x04", b"\x93NUMPY", b"\x80\x04"):
            path.write_bytes(start + content)
            detect(path)


def graph(*nodes: Any, **tensors: Any) -> Any:
    """A graph of one input and one output."""
    ends = [helper.make_tensor_value_info(name, 1, [None, 2]) for name in ("x", "y")]
    return helper.make_graph(nodes, "g", ends[:1], ends[1:], **tensors)


def model(of: Any, functions: Any = ()) -> bytes:
    return bytes(helper.make_model(of, functions=functions).SerializeToString())


NEGATE = helper.make_node("Neg", ["x"], ["y"])
OTHERS = helper.make_node("Run", ["x"], ["y"], domain="others")
BESIDE = helper.make_tensor("w", 1, [2], [1.0, 2.0])
BESIDE.external_data.add(key="location", value="../../etc/passwd")
BRANCH = helper.make_graph([OTHERS], "b", [], [helper.make_tensor_value_info("y", 1, [2])])


def function(domain: str, name: str) -> Any:
    return helper.make_function(
        domain, name, ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], []
    )


OWN = function("own", "Twice")
RUNTIMES = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")


@pytest.mark.attack("An ONNX model needs an operator or a file of elsewhere")
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (model(graph(NEGATE)), "onnx"),
        (model(graph(NEGATE, initializer=[helper.make_tensor("w", 1, [2], [1.0, 2.0])])), "onnx"),
        (model(graph(helper.make_node("Twice", ["x"], ["y"], domain="own")), [OWN]), "onnx"),
        (model(graph(OTHERS)), ""),
        (model(graph(helper.make_node("Other", ["x"], ["y"], domain="own")), [OWN]), ""),
        (model(graph(NEGATE, initializer=[BESIDE])), ""),
        (model(graph(helper.make_node("If", ["c"], ["y"], then_branch=BRANCH))), ""),
        (model(graph(helper.make_node("Constant", [], ["y"], value=BESIDE))), ""),
        (model(graph(RUNTIMES), [function("com.microsoft", "Gelu")]), ""),
        (model(graph(NEGATE), [function("", "Neg")]), ""),
        (model(graph(NEGATE), [function("ai.onnx.ml", "Scaler")]), ""),
        (b"\x08\x08\x12\x04ORTM" + model(graph(NEGATE)), ""),
        (b"\x08\x08\x12\x04ORTN" + model(graph(NEGATE)), "onnx"),
        (model(graph()), ""),
    ],
)
def test_an_onnx_model_is_whole(content: bytes, expected: str, tmp_path: Path) -> None:
    """Operators of the standard and its own, also in branches; each tensor in the file itself. ONNX
    Runtime prefers its own operator to a function of that name, and reads a file with ORTM in the
    fifth place in a format of its own, whatever else it is.
    """
    (tmp_path / "model.bin").write_bytes(content)
    assert detect(tmp_path / "model.bin") == expected


def test_a_model_of_xgboost_is_told_from_other_json(tmp_path: Path) -> None:
    import xgboost

    rows = np.random.default_rng(0).normal(size=(50, 2))
    booster = xgboost.train({"verbosity": 0}, xgboost.DMatrix(rows, rows[:, 0]), 2)
    booster.save_model(tmp_path / "model.json")
    assert detect(tmp_path / "model.json") == "xgboost-json"
    booster.save_model(tmp_path / "model.ubj")
    assert detect(tmp_path / "model.ubj") == ""


def test_every_file_of_a_folder_is_checked(tmp_path: Path) -> None:
    """In inner folders too."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "inner" / "b.json").write_bytes(pickle.dumps(Payload()))
    assert formats(tmp_path) == {"a.json": "json", "inner/b.json": ""}
