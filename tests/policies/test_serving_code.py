"""policies.supply_chain.serving_code: what answers requests loads no code from data."""

from __future__ import annotations

import base64
import pickle
import zipfile
from pathlib import Path

import pytest

from policies.supply_chain.serving_code import Code, is_pickle


class Command:
    """What runs a command when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("hit",))


PICKLE = pickle.dumps(Command())
OLD = pickle.dumps(Command(), protocol=0)
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
    "a part of a module that is not harmless": "import os\nos.system('x')\n",
    "all of a library": "from pandas import *\n",
    "code of a file": "exec(open('x.txt').read())\n",
    "code of a file, compiled": "run = compile(open('x.txt').read(), 'x', 'exec')\n",
    "a builtin under another name": "run = [eval][0]\n",
    "bytes": f"MODEL = {PICKLE!r}\n",
    "bytes of the first protocol": f"MODEL = {OLD!r}\n",
    "base64": f"MODEL = {base64.b64encode(PICKLE).decode()!r}\n",
    "hexadecimal digits": f"MODEL = {PICKLE.hex()!r}\n",
    "arrays of objects": "import numpy as np\nnp.load('x.npy', allow_pickle=True)\n",
    "arrays of objects by position": "import numpy as np\nnp.load('x.npy', None, True)\n",
    "arrays of objects, a name of its own": "from numpy import load as r\nr('x.npy', None, True)\n",
    "arrays of objects, a list": "import numpy as np\nnp.load(*['x.npy', None, True])\n",
    "arrays of objects, later": "import numpy as np\nread = np.load\nread('x', None, True)\n",
    "arrays of objects, one level below": "import numpy as np\nnp.lib.format.read_array(x, True)\n",
    "a frame": "import pandas as pd\npd.read_pickle('x')\n",
    "a frame by a name": "from pandas import read_pickle as read\n",
    "a frame by a computed name": "import pandas as pd\ngetattr(pd, 'read_' + 'pickle')('x')\n",
    "a frame by a constant name": "import pandas as pd\ngetattr(pd, 'read_pickle')('x')\n",
    "a frame's expression": "import pandas as pd\npd.DataFrame().query(open('x').read())\n",
    "a library's own import": "import pandas as pd\npd.compat.pickle_compat.load('x')\n",
    "another library's own import": "import json\njson.codecs.builtins\n",
    "a library's os": "import pathlib\npathlib.os.system('x')\n",
    "a library's dictionary": "import pandas as pd\npd.__dict__['read_pickle']('x')\n",
    "a library in a variable": "import pandas as pd\nvars(pd)\n",
    "arrays of objects by a parameter": (
        "import numpy as np\ndef f(json):\n    json.load('x', None, True)\nf(np.lib)\n"
    ),
    "a name of two things": (
        "import numpy as x\nx.load('x', None, 1)\nif 0:\n    import json as x\n"
    ),
    "a library's private part": "import skops.io\nskops.io._utils._import_obj('os', 'system')\n",
    "a library's private part, imported": "from pandas.compat import _optional\n",
    "a library that imports by a name": (
        "import pandas as pd\nx = pd.io.parquet\nx.import_optional_dependency('pickle')\n"
    ),
    "a template": "import pandas as pd\npd.io.formats.style.Styler.from_custom_template('x')\n",
    "text that a library's tests run": "import numpy as np\nnp.testing.measure('f()')\n",
    "text that a library's tests run, imported": "from numpy.testing import measure\n",
    "templates that a library imports": (
        "from pandas.io.formats import style_render as s\ns.jinja2.Template('x').render()\n"
    ),
    "names of a generator": "g = (x for x in ())\ng.gi_frame.f_globals\n",
    "names by a format": "import string\nstring.Formatter().get_field('0.x', (f,), {})\n",
    "text that is a type": "import typing\ntyping.ForwardRef('f()')\n",
    "a logging configuration": "import logging.config\n",
    "skops' types by position": "import skops.io\nskops.io.load('x', ['a.b'])\n",
    "all that torch loads": "import torch\ntorch.load('x.pt', weights_only=False)\n",
    "all that torch loads unasked": "import torch\ntorch.load('x.pt')\n",
    "types that skops does not trust": "import skops.io\nskops.io.load('x', trusted=['a.b'])\n",
    "code from a folder, by torch's own import": (
        "import torch as t\nt.nn.functional.torch.hub.load('x', 'y', weights_only=True)\n"
    ),
    "code from a folder, by torch of another library": (
        "import safetensors.torch as s\ns.torch.hub.load('x', 'y', source='local')\n"
    ),
    "torch of another library": "from safetensors.torch import torch\ntorch.hub.load('x', 'y')\n",
    "all that torch of another library loads": (
        "import safetensors.torch as s\ns.torch.load('x.pt')\n"
    ),
    "operators of a library beside the model": (
        "import onnxruntime\ns = onnxruntime.InferenceSession('x')\n"
        "s.get_session_options().register_custom_ops_library('x.bin')\n"
    ),
    "the builtin functions under another name": (
        "import enum\ntype(len)\nenum.bltns.compile('x', 'x', 'exec')\n"
    ),
    "a standard module's own import": "import dataclasses\ndataclasses.types.FunctionType\n",
    "a standard module's own import, imported": "from enum import bltns\n",
    "a part of a standard module's own import": "import json\njson.decoder.scanner.re\n",
    "a function by a computed name": (
        "import sklearn as s\ns.x.inspect.getattr_static(s, 'ev' + 'al')\n"
    ),
    "YAML with objects": "import yaml\nyaml.load('x', Loader=yaml.Loader)\n",
    "names of a function": "def f(): pass\nf.__globals__['__builtins__']\n",
    "names of a pattern": "match len:\n    case object(__self__=x):\n        pass\n",
    "code that cannot be read": "def init(:\n",
    "fields of a dataclass": (
        "import dataclasses, json\nnames = json.loads(open('x').read())\n"
        "dataclasses.dataclass(type('X', (), {'__annotations__': dict.fromkeys(names, int)}))\n"
    ),
    "fields of a dataclass, set later": (
        "import dataclasses as d\nmark = d.field()\n@d.dataclass\nclass A:\n    x: int = mark\n"
        "mark.name = open('x').read()\n@d.dataclass\nclass B(A):\n    pass\n"
    ),
    "fields of a dataclass, by its base": (
        "from dataclasses import dataclass\nBase = made()\n@dataclass\nclass A(Base):\n    pass\n"
    ),
    "fields of a dataclass, by its metaclass": "class A(metaclass=made()):\n    pass\n",
    "fields of a dataclass, by the list of them": "from dataclasses import fields\n",
    "text as a type, registered": (
        "import functools\ndef g(a): pass\nsetattr(g, '__annotations__', {'a': open('x').read()})\n"
    ),
    "text as a type, by a computed name": "setattr(f, '__annot' + 'ations__', {})\n",
    "text as a type, by another setter": "object.__setattr__(f, name, {})\n",
    "text as a type, dispatched": "from functools import singledispatch\n",
    "text as a type, evaluated": "import typing_extensions as t\nt.get_annotations(f)\n",
    "names of a function, copied": (
        "import functools\nfunctools.wraps(f, ('__globals__',), ())(Bag())\n"
    ),
    "names of a function, copied by the other": (
        "import functools\nfunctools.update_wrapper(Bag(), f, assigned=('__globals__',))\n"
    ),
    "the search path of programs": (
        "import os\nimport pandas as pd\nos.environ['PATH'] = 'models'\npd.read_clipboard()\n"
    ),
    "the place of a native library": (
        "import os\nimport pyarrow.fs\nos.environ.update(JAVA_HOME='models')\n"
        "pyarrow.fs.HadoopFileSystem('default')\n"
    ),
    "variables under another name": "from os import environ as e\ne |= {'OPENSSL_CONF': 'x'}\n",
    "variables handed on": "import os\nset_all(os.environ)\n",
    "a default of a variable": "import os\nos.environ.setdefault('JAVA_HOME', 'models')\n",
    "a cache of downloads": (
        "from sklearn.datasets import fetch_california_housing\n"
        "fetch_california_housing(data_home='models', download_if_missing=False)\n"
    ),
    "a cache of steps": "from sklearn.pipeline import Pipeline\nPipeline([], memory='models')\n",
    "a cache of steps, set later": "model.memory = 'models'\n",
    "a cache of steps, by a mapping": (
        "from sklearn.pipeline import Pipeline\nPipeline([], **settings)\n"
    ),
    "a converter of pickles": (
        "import skops.cli.entrypoint\nskops.cli.entrypoint.main_cli(['convert', 'x.pkl'])\n"
    ),
    "a card of a pickle": "import skops.card\nskops.card.Card('x.pkl', allow_pickle=True)\n",
    "a frame's expression, by its parser": (
        "from pandas.core.computation.expr import Expr\nExpr(open('x').read(), env=e)\n"
    ),
    "a frame's expression, by a name": (
        "import pandas as pd\npd.DataFrame().apply('eval', args=(open('x').read(),))\n"
    ),
    "a frame's expression, by a computed name": (
        "import pandas as pd\npd.DataFrame().agg(open('n').read(), 0, open('x').read())\n"
    ),
    "a frame's templates": "frame.style.env.from_string(open('x').read()).render()\n",
    "a module that help imports": "help(open('x').read())\n",
}
HARMLESS = [
    "import numpy as np\nnp.load('x.npz', allow_pickle=False)\nnp.load('x.npz', 'r')\n",
    "import re\nfrom pathlib import Path\nre.compile('x')\njson = Path('x').read_text()\n",
    "import os\nimport pandas as pd\npd.read_csv(os.environ['X'])\npd.read_parquet('x')\n",
    "import yaml\nfrom urllib.parse import quote\nyaml.safe_load('x')\n",
    "import skops.io\nskops.io.load('x.skops', trusted=None)\n",
    "import json\nimport logging\nlogging.getLogger('x').info(list(map(json.loads, ['1'])))\n",
    "try:\n    import orjson\nexcept ImportError:\n    import json\n",
    "import torch\ntorch.load('x.pt', weights_only=True)\ntorch.nn.functional.relu(0)\n",
    "from safetensors.torch import load_file\nimport safetensors.torch\nload_file('x')\n",
    "import pandas as pd\npd.api.types.is_numeric_dtype('x')\n",
    "import collections.abc\nimport json.decoder\nimport os.path\nos.path.join('x')\n"
    "json.decoder.JSONDecodeError\ncollections.abc.Mapping\n",
    "class Model:\n    def __init__(self, name):\n        self.rank = getattr(self, 'rank', 1)\n",
    "from ml.toolkit.training.boosting import lightgbm\n",
    "TEXT = 'a text of many letters, which is in no code'\nKEY = 'deadbeefdeadbeefdeadbeef'\n",
    f"DATA = {base64.b64encode(b'some bytes that are no pickle').decode()!r}\n",
    f"NUMBERS = {pickle.dumps([1, 2, 3])!r}\n",
    "import os\nos.environ.setdefault('OMP_NUM_THREADS', '1')\nos.environ['SCORE_X'] = '1'\n"
    "'X' in os.environ and dict(os.environ.items())\n",
    "from dataclasses import asdict, dataclass, field\n@dataclass(frozen=True)\nclass A:\n"
    "    x: list[int] = field(default_factory=list)\n@dataclass\nclass B(A):\n"
    "    def __post_init__(self):\n        object.__setattr__(self, 'x', [])\n",
    "import functools\ndef d(f):\n    @functools.wraps(f)\n    def g(): pass\n    return g\n",
    "from sklearn.pipeline import make_pipeline\nmake_pipeline(None, memory=None)\n",
    "import pandas as pd\ndef f(row, k): pass\nx = pd.DataFrame()\nx.apply(f, axis=1, k=2)\n"
    "x.apply(lambda row: 1)\nx.agg('mean')\nscaler.transform(x)\nsetattr(x, 'threshold', 1)\n",
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


@pytest.mark.attack("serving code that loads code from data")
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


@pytest.mark.attack("a library of the code folder's own")
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


@pytest.mark.attack("a library handed on by another module")
def test_a_library_is_known_by_the_module_that_hands_it_on(tmp_path: Path) -> None:
    """Under a name of its own, through two modules; its harmless use passes."""
    chain = {"a_dot_py": "import numpy as n\n", "b_dot_py": "from a import n as m\n"}
    assert found(written(tmp_path, "import b\nb.m.load('x', None, True)\n", **chain))
    assert found(written(tmp_path, "from b import m\nm.load('x', None, True)\n", **chain))
    assert not found(written(tmp_path, "from b import m\nm.load('x')\n", **chain))


@pytest.mark.attack("a library's loader behind a function's name")
def test_a_function_of_its_own_may_be_called_load(tmp_path: Path) -> None:
    """It is read as well; a library's `load` under that name is none."""
    use = "from a import load\ntable = open_table(load)\n"
    own = "import torch\ndef load(folder):\n    return torch.load(folder, weights_only={})\n"
    assert not found(written(tmp_path, use, a_dot_py=own.format(True)))
    assert found(written(tmp_path, use, a_dot_py=own.format(False))) == ["a.py:3"]
    for library in ("import numpy\nload = numpy.load\n", "from torch import load\n"):
        assert found(written(tmp_path, use, a_dot_py=library))
    both = "from torch import load\ndef load(folder):\n    pass\n"
    assert found(written(tmp_path, use, a_dot_py=both))


@pytest.mark.attack("a folder that takes a library's name")
def test_a_folder_does_not_stand_in_for_a_library(tmp_path: Path) -> None:
    """Python prefers an installed package to a folder without `__init__.py`."""
    script = "import numpy.random as r\nr.load('x', None, True)\n"
    assert found(written(tmp_path, script, numpy__random_dot_py=""))


@pytest.mark.attack("compiled serving code")
def test_compiled_code_is_found(tmp_path: Path) -> None:
    """Python imports it without its source."""
    assert found(written(tmp_path, "", helper_dot_pyc=b"code")) == ["helper.pyc:0"]


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


MODEL = """
import json
def load(folder):
    return json.loads(folder)
def save(model, folder):
    from skl2onnx import to_onnx
    import pickle
    export(to_onnx(model), pickle.dumps(model))
def export(model, content):
    import shelve
"""


def in_repository(folder: Path, script: str, **modules: str) -> list[str]:
    """What is found of a scoring script and of modules of the package `ml` of a repository."""
    package = {f"ml__{name}_dot_py": text for name, text in modules.items()}
    return found(written(folder, script, ml__serving__scoring__model_dot_py="", **package))


def test_what_training_alone_does_is_none_of_the_endpoint(tmp_path: Path) -> None:
    """`save` of a model.py that exports to ONNX, and what it calls: nothing served names them."""
    script = "from ml.a import load\ndef init():\n    load('x')\n"
    assert not in_repository(tmp_path, script, a=MODEL)
    assert in_repository(tmp_path, script, a=MODEL.replace("import json", "import skl2onnx"))


CALLS = {
    "an import": ("from ml.a import load, save\n", ""),
    "an import under another name": ("from ml.a import save as s\n", ""),
    "a module's attribute": ("from ml import a\na.save(1, 2)\n", ""),
    "a constant name": ("from ml import a\ngetattr(a, 'save')(1, 2)\n", ""),
    "a pattern": ("from ml import a\nmatch a:\n    case object(save=f):\n        f(1, 2)\n", ""),
    "what is named calls it": ("from ml.a import load\n", "def load(f):\n    save(f, f)\n"),
    "two steps on": ("from ml.a import f\n", "def f():\n    g()\ndef g():\n    save(1, 2)\n"),
    "another module calls it": ("import ml.b\n", ""),
    "a decorator": (
        "from ml import a\n",
        "def d(f):\n    f(1)\n@d\ndef x(y):\n    import pickle\n",
    ),
    "a default": ("from ml import a\n", "def x(y=__import__('pickle')):\n    pass\n"),
    "a module's own lookup": (
        "from ml import a\na.x\n",
        "def __getattr__(n):\n    import pickle\n",
    ),
    "the server": ("from ml.a import *\n", "def run(body):\n    import pickle\n"),
    "a method": ("from ml import a\n", "class A:\n    def x(self):\n        import pickle\n"),
    "a function in a branch": (
        "from ml import a\n",
        "if 1:\n    def x():\n        import pickle\n",
    ),
    "an assignment": ("from ml import a\n", "x = [save]\n"),
    "a lambda": ("from ml import a\n", "x = lambda: save(1, 2)\n"),
}


@pytest.mark.attack("code that training alone is said to run")
@pytest.mark.parametrize(("script", "more"), CALLS.values(), ids=CALLS)
def test_what_serving_can_call_is_read(script: str, more: str, tmp_path: Path) -> None:
    """However it is named."""
    assert in_repository(tmp_path, script, a=MODEL + more, b="from ml.a import save\nsave(1, 2)\n")
