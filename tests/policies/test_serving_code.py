"""policies.supply_chain.serving_code: a review aid that finds code which loads code from data."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.supply_chain.serving_code import Code

LISTED = (
    *("lightgbm", "numpy", "onnxruntime", "orjson", "pandas", "pyarrow", "safetensors"),
    *("scipy", "skops", "sklearn", "torch", "yaml", "ml.toolkit"),
)
CODE = {
    "an import": "import pickle\n",
    "an import under another name": "from joblib import load as read\n",
    "an import in a function": "def init():\n    import dill\n",
    "an import by name": "import importlib\nimportlib.import_module('pickle')\n",
    "an import without a statement": "__import__('pick' + 'le')\n",
    "a module that is not listed": "import requests\n",
    "a library's own import": "from numpy import ctypeslib\n",
    "a program": "import os\nos.system('x')\n",
    "a program in place of the server": "import os\nos.execvp('x', [])\n",
    "code of a file": "exec(open('x.txt').read())\n",
    "code of a file, compiled": "run = compile(open('x.txt').read(), 'x', 'exec')\n",
    "a builtin under another name": "run = [eval][0]\n",
    "arrays of objects": "import numpy as np\nnp.load('x.npy', allow_pickle=True)\n",
    "arrays of objects, perhaps": "import numpy as np\nnp.load('x.npy', allow_pickle=x)\n",
    "a frame": "import pandas as pd\npd.read_pickle('x')\n",
    "all that torch loads": "import torch\ntorch.load('x.pt', weights_only=False)\n",
    "types that skops does not trust": "import skops.io\nskops.io.load('x', trusted=['a.b'])\n",
    "YAML with objects": "import yaml\nyaml.load('x', Loader=yaml.Loader)\n",
    "code that cannot be read": "def init(:\n",
}
HARMLESS = [
    "import numpy as np\nnp.load('x.npz', allow_pickle=False)\nnp.load('x.npz', 'r')\n",
    "import re\nfrom pathlib import Path\nre.compile('x')\njson = Path('x').read_text()\n",
    "import yaml\nfrom urllib.parse import quote\nyaml.safe_load('x')\n",
    "import skops.io\nskops.io.load('x.skops', trusted=None)\n",
    "try:\n    import orjson\nexcept ImportError:\n    import json\n",
    "import torch\ntorch.load('x.pt', weights_only=True)\ntorch.nn.functional.relu(0)\n"
    "model.eval()\n",
    "import collections.abc\nimport os.path\nos.path.join('x')\n",
    "from ml.toolkit.training.boosting import threads\n",
]


def found(folder: Path, root: Path = Path("/nowhere")) -> list[str]:
    files = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    traces = Code(files, "api/score.py", LISTED, root).traces()
    return [f"{trace.file.name}:{trace.line}" for trace in traces]


def written(folder: Path, script: str, **others: str | bytes) -> Path:
    """A code folder with `api/score.py` and modules beside it."""
    (folder / "api").mkdir(exist_ok=True)
    (folder / "api" / "score.py").write_text(script)
    for name, text in others.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


@pytest.mark.parametrize("text", CODE.values(), ids=CODE)
def test_code_that_loads_code_is_found(text: str, tmp_path: Path) -> None:
    """In the script, in a module that it imports and one that this imports, and in one that no
    import reaches.
    """
    assert found(written(tmp_path, text))
    chain = {"api__first_dot_py": "import package.second\n", "package__second_dot_py": text}
    folder = written(tmp_path, "from .first import x\n", **chain)
    assert {place.partition(":")[0] for place in found(folder)} == {"second.py"}
    assert found(written(tmp_path, "import json\n"))


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_harmless_is_not_found(text: str, tmp_path: Path) -> None:
    """Formats without code, texts, other bytes, and a pickle that calls nothing."""
    assert not found(written(tmp_path, text))


@pytest.mark.parametrize("place", ["numexpr_dot_py", "numexpr__parts_dot_py", "api__x_dot_py"])
def test_what_a_repository_can_import_is_read(place: str, tmp_path: Path) -> None:
    """Of a whole repository: what lies beside the script, what a library could import by its name,
    and what these import; not code for training, nor what its owners review.
    """
    repository = {
        "ml__toolkit__training__boosting_dot_py": "import importlib\n",
        "ml__projects__train_dot_py": "import pickle\n",
        "ml__serving__scoring__model_dot_py": "",
    }
    folder = written(tmp_path, "import ml.toolkit.training.boosting\n", **repository)
    assert not found(folder, root=folder)
    assert found(folder) == ["boosting.py:1"]  # a copy in another repository
    written(folder, "import json\n", **{place: "import pickle\n"})
    if "parts" in place:
        (folder / "numexpr" / "__init__.py").write_text("from . import parts\n")
    assert len(found(folder, root=folder)) == 1


@pytest.mark.parametrize("name", ["helper.pyc", "model.pkl", "api/logging.json"])
def test_a_file_that_is_code_is_found(name: str, tmp_path: Path) -> None:
    """Compiled code, a pickle, and settings of the server beside the script; other JSON is none."""
    folder = written(tmp_path, "", other_dot_json="{}")
    assert not found(folder)
    (folder / name).write_bytes(b"code")
    assert found(folder) == [f"{Path(name).name}:0"]


MODEL = """
import json
def load(folder):
    return json.loads(folder)
def save(model, folder):
    from skl2onnx import to_onnx
    to_onnx(model)
"""


def in_repository(folder: Path, script: str, model: str) -> list[str]:
    """What is found of a scoring script and of a module of a repository that it imports."""
    modules = {"ml__serving__scoring__model_dot_py": "", "ml__a_dot_py": model}
    return found(written(folder, script, **modules))


def test_a_function_of_a_module_may_import_what_training_needs(tmp_path: Path) -> None:
    """As `save` of a model.py that exports to ONNX; no pickle, nothing at the module's top, and
    nothing in the scoring script.
    """
    script = "from ml.a import load\ndef init():\n    load('x')\n"
    assert not in_repository(tmp_path, script, MODEL)
    assert in_repository(tmp_path, script, MODEL.replace("import json", "import skl2onnx"))
    assert in_repository(tmp_path, script, MODEL.replace("from skl2onnx", "from joblib"))
    assert in_repository(tmp_path, f"{script}    import skl2onnx\n", MODEL)
