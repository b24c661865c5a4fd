"""Which commands are one start of Python, and what their scripts import."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ml.backends.local.pool import pool
from ml.backends.local.pool.pool import Invocation, NotForkable


@pytest.mark.parametrize(
    "command",
    [
        "python script.py",
        "python3 -u script.py --lr 0.1 --name=a_b-c@d:e,f+g%h",
        "python -m pack.train --text 'a  b' \"c d\" 'it''s' --empty ''",
        "python script.py \\\n  --x 1 \\\n  --y 2",
        "  python script.py a'b c'd ",
        'python script.py "it\'s" \'a "b"\'',
        "python script.py 'a $HOME `x` \\ \"' ^ -- -",
    ],
)
def test_what_is_read_is_what_bash_passes(command: str, tmp_path: Path) -> None:
    """The words are those that a program gets from bash."""
    invocation = pool.parse_command(command)
    for name in ("python", "python3"):
        (tmp_path / name).write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", command], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True
    )
    words = done.stdout.decode().split("\0")[:-1]
    module = ["-m"] if invocation.is_module else []
    assert words == [*invocation.flags, *module, invocation.target, *invocation.arguments]


@pytest.mark.parametrize(
    "command",
    [
        "python script.py && echo done",
        "python script.py; true",
        "python a.py\npython b.py",
        "python a.py | tee log",
        "python a.py > log",
        "python a.py &",
        "python a.py $HOME",
        'python a.py "$HOME"',
        "python a.py `date`",
        "python a.py *.csv",
        "python a.py [ab]",
        "python a.py ~/data",
        "python a.py {1,2}",
        "python a.py # note",
        "python a.py a\\ b",
        "python a.py 'open",
        "python a.py \"it's $HOME and it's\"",
        "python a.py 'two\nlines'",
        "python a.py !x",
        "LR=1 python a.py",
        "pip install x && python a.py",
        "bash run.sh",
        "/usr/bin/python a.py",
        "python",
        "python -c 'print(1)'",
        "python -I a.py",
        "python -X importtime a.py",
        "python -B a.py",
        "python -u",
        "python -",
        "python folder",
        "python -m",
        "(python a.py)",
        "",
    ],
)
def test_what_is_left_to_a_shell(command: str) -> None:
    """With a reason."""
    with pytest.raises(NotForkable, match=r"\w"):
        pool.parse_command(command)


def scan(root: Path, files: dict[str, str], target: str = "train.py") -> tuple[str, ...]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return pool.script_imports(
        root, Invocation("python", (), target, not target.endswith(".py"), ())
    )


def test_third_party_imports_are_found(tmp_path: Path) -> None:
    """Through modules of the code, each once, and in functions; types do not count."""
    imports = scan(
        tmp_path,
        {
            "train.py": "'doc'\nfrom __future__ import annotations\nimport numpy as np\n"
            "import own\nfrom pack.part import thing\nfrom typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    import never\n"
            "def f():\n    import late\n    import numpy\n"
            "try:\n    import maybe\nexcept ImportError:\n    import otherwise\n"
            "class C:\n    import inside\n",
            "own.py": "import json\nimport train\n",
            "pack/__init__.py": "import first\n",
            "pack/part.py": "from . import sibling\nfrom .deep.er import x\nimport last.of\n",
            "pack/sibling.py": "import from_sibling\n",
            "pack/deep/__init__.py": "",
            "pack/deep/er.py": "from three.four import five\n",
        },
    )
    assert set(imports) == {
        *("numpy", "late", "maybe", "otherwise", "inside", "first", "from_sibling"),
        *("three.four", "three.four.five", "last.of"),
    }
    assert len(set(imports)) == len(imports)


def test_a_module_of_a_package(tmp_path: Path) -> None:
    """Its packages count; relative imports are followed; the folder itself is the base."""
    imports = scan(
        tmp_path,
        {
            "a/__init__.py": "import one\n",
            "a/b/__init__.py": "import two\n",
            "a/b/c.py": "from ..d import e\nfrom a import f\nimport four\n",
            "a/d.py": "import three\nprint(1)\nimport five\n",
            "a/f.py": "import six\n",
        },
        "a.b.c",
    )
    assert set(imports) == {"one", "two", "three", "four", "five", "six"}


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['X'] = '1'",
        "os.environ.update(X='1')",
        "os.environ.setdefault('X', '1')",
        "environ['X'] = '1'",
        "del os.environ['X']",
        "os.putenv('X', '1')",
        "load_dotenv()",
        "os.environ |= {}",
        "sys.modules['pandas'] = None",
        "sys.path.insert(0, 'src')",
    ],
)
def test_code_that_steers_imports_imports_for_itself(tmp_path: Path, line: str) -> None:
    """Packages read the environment while they are imported."""
    with pytest.raises(NotForkable, match=r"train\.py:2 changes"):
        scan(tmp_path, {"train.py": f"import os\n{line}\n"})


@pytest.mark.parametrize(
    "line", ["os.environ['X']", "if os.environ['X'] == 'a': pass", "os.getenv('X')", "sys.pathlike"]
)
def test_code_that_reads_the_environment_need_not(tmp_path: Path, line: str) -> None:
    """Reading changes nothing."""
    assert scan(tmp_path, {"train.py": f"import os, numpy\n{line}\n"}) == ("numpy",)


def test_code_that_hides_a_package(tmp_path: Path) -> None:
    """What lies beside the script comes before packages; what lies elsewhere does not."""
    files = {"train.py": "import numpy\n", "src/numpy.py": "", "html/text.py": ""}
    assert scan(tmp_path, files) == ("numpy",)
    (tmp_path / "queue.py").touch()
    with pytest.raises(NotForkable, match="module `queue` shadows"):
        scan(tmp_path, {"train.py": ""})


@pytest.mark.parametrize("text", ["import = 1", "\0", "import numpy\nx = ("])
def test_a_script_that_cannot_be_parsed_says_so_itself(tmp_path: Path, text: str) -> None:
    """Nothing is preloaded for it."""
    assert not scan(tmp_path, {"train.py": text})
