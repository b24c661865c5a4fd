"""policies.supply_chain.serving_code: pickles in what answers requests."""

from __future__ import annotations

import base64
import pickle
import zipfile
from pathlib import Path

import pytest

from policies.supply_chain.serving_code import is_pickle, traces


class Command:
    """What runs a command when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("hit",))


PICKLE = pickle.dumps(Command())
OLD = pickle.dumps(Command(), protocol=0)
CODE = {
    "an import": "import pickle\n",
    "an import under another name": "from joblib import load as read\n",
    "an import in a function": "def init():\n    import dill\n",
    "an import by name": "import importlib\nimportlib.import_module('pickle')\n",
    "bytes": f"MODEL = {PICKLE!r}\n",
    "bytes of the first protocol": f"MODEL = {OLD!r}\n",
    "base64": f"MODEL = {base64.b64encode(PICKLE).decode()!r}\n",
    "hexadecimal digits": f"MODEL = {PICKLE.hex()!r}\n",
    "arrays of objects": "import numpy as np\nnp.load('x.npy', allow_pickle=True)\n",
    "all that torch loads": "import torch\ntorch.load('x.pt', weights_only=False)\n",
    "code that cannot be read": "def init(:\n",
}
HARMLESS = [
    "import json\nimport numpy as np\nnp.load('x.npz', allow_pickle=False)\n",
    "TEXT = 'a text of many letters, which is in no code'\nKEY = 'deadbeefdeadbeefdeadbeef'\n",
    f"DATA = {base64.b64encode(b'some bytes that are no pickle').decode()!r}\n",
    f"NUMBERS = {pickle.dumps([1, 2, 3])!r}\n",
]


def found(folder: Path) -> list[str]:
    return [f"{trace.file.name}:{trace.line}" for trace in traces(folder, "api/score.py")]


def written(folder: Path, script: str, **others: str | bytes) -> Path:
    """A code folder with `api/score.py` and modules beside it."""
    (folder / "api").mkdir(exist_ok=True)
    (folder / "api" / "score.py").write_text(script)
    for name, text in others.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


@pytest.mark.attack("a pickle in serving code")
@pytest.mark.parametrize("text", CODE.values(), ids=CODE)
def test_a_pickle_in_the_code_is_found(text: str, tmp_path: Path) -> None:
    """In the script, in a module that it imports, and in one that this imports."""
    assert found(written(tmp_path, text))
    chain = {"api__first_dot_py": "import package.second\n", "package__second_dot_py": text}
    folder = written(tmp_path, "from .first import x\n", **chain)
    assert {place.partition(":")[0] for place in found(folder)} == {"second.py"}
    assert not found(written(tmp_path, "import json\n"))  # nobody imports it


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_harmless_is_not_found(text: str, tmp_path: Path) -> None:
    """Formats without code, texts, other bytes, and a pickle that calls nothing."""
    assert not found(written(tmp_path, text))


@pytest.mark.attack("a pickle beside the scoring script")
def test_a_pickle_beside_the_code_is_found(tmp_path: Path) -> None:
    """By its content, whatever its name; in a zip file as well."""
    folder = written(tmp_path, "import json\n", api__model_dot_json=PICKLE)
    assert found(folder) == ["model.json:0"]
    (folder / "api" / "model.json").write_text("{}")
    with zipfile.ZipFile(folder / "api" / "weights.npz", "w") as archive:
        archive.writestr("archive/data.pkl", PICKLE)
    assert found(folder) == ["weights.npz:0"]
    assert is_pickle(PICKLE) and is_pickle(OLD) and not is_pickle(b"{}")
