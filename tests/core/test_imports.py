"""The environment has packages alone, and the programs find the framework and nothing beside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ml.core import imports
from ml.core.errors import UserError
from tests.conftest import ROOT


def environment(folder: Path, **files: str) -> Path:
    """The Python of an environment with .pth files."""
    packages = folder / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (folder / "tree").mkdir()
    for name, text in files.items():
        (packages / f"{name}.pth").write_text(text)
    return folder / "venv/bin/python"


@pytest.mark.attack("The work tree is installed, so that every Python imports from it")
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("__editable__.ours", "{tree}"),
        ("ours", "# a comment\n{tree}"),
        ("ours", "../../../../tree"),
        (
            "__editable__.ours",
            "import __editable___finder; __editable___finder.install()",
        ),
    ],
)
def test_an_environment_that_adds_a_folder_is_refused(tmp_path: Path, name: str, line: str) -> None:
    """With the line of the file."""
    python = environment(tmp_path, **{name: line.format(tree=tmp_path / "tree") + "\n"})
    with pytest.raises(UserError) as raised:
        imports.check_import_path(python)
    (problem,) = raised.value.problems
    assert problem.code == "editable-install" and problem.place is not None
    assert problem.place.path.endswith(f"{name}.pth")
    assert problem.place.line == 1 + line.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# a comment\n\n",
        "import os; os.environ.get('SETUPTOOLS_USE_DISTUTILS')\n",
        "nothing/there\n",
        "inside\n",
    ],
)
def test_other_pth_files_are_accepted(tmp_path: Path, text: str) -> None:
    """What packages bring, and folders of the environment."""
    python = environment(tmp_path, other=text)
    (tmp_path / "venv/lib/python3.11/site-packages/inside").mkdir()
    imports.check_import_path(python)


def test_this_environment_has_packages_alone() -> None:
    """As `make setup` leaves it."""
    imports.check_import_path()


def test_the_framework_is_bound_without_the_rest_of_the_work_tree(tmp_path: Path) -> None:
    """Also where a package of the framework is looked for later."""
    code = (
        f"{imports.BIND}; from ml.core import errors; import importlib.util, infra.cli; "
        f"print(importlib.util.find_spec('benchmarks'), {str(ROOT)!r} in sys.path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None False\n"


@pytest.fixture
def thin(tmp_path: Path) -> Path:
    """The folders of a thin fork, with a wheel that is `ml.core` and a `ml.measures`."""
    fork = tmp_path / "fork"
    framework = fork / ".venv/framework"
    shutil.copytree(ROOT / "ml/core", framework / "ml/core")
    for folder in (framework, fork):
        for name in ("ml/measures", "infra", "policies"):
            (folder / name).mkdir(parents=True)
        (folder / "ml/measures/__init__.py").write_text(f"whose = {folder.name!r}")
    (fork / "ml/toolkit").mkdir()
    (fork / "ml/toolkit/__init__.py").touch()
    (fork / "pyproject.toml").touch()
    return fork


@pytest.mark.parametrize("path", ["", ".", "{fork}", "{fork}/.venv/framework:.", "{other}"])
def test_a_path_of_the_shell_changes_nothing(thin: Path, tmp_path: Path, path: str) -> None:
    """PYTHONPATH may have the work tree, or another one whose `infra` is a package."""
    other = tmp_path / "other"
    for name in ("infra", "ml"):
        (other / name).mkdir(parents=True)
        (other / name / "__init__.py").write_text("raise SystemExit('of another tree')")

    def python(code: str, value: str) -> str:
        variables = {"PYTHONPATH": value, "PATH": "/usr/bin:/bin"}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, cwd=thin, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    bind = python("from ml.core.imports import BIND; print(BIND)", ".venv/framework")
    code = (
        f"{bind}; import sys; sys.path.append('/tmp'); import ml.core.errors, ml.measures, "
        "ml.toolkit; from ml.core.imports import PARTS; print(ml.measures.whose, len(PARTS))"
    )
    assert python(code, path.format(fork=thin, other=other)) == "framework 2"


@pytest.mark.parametrize("folder", ["plain", "with a space", "long" * 40])
def test_a_program_is_written_for_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """The first line of a program has no space and is not long: the shell takes its part then."""
    python = tmp_path / folder / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    (python.parent / "ml").write_text("a former one")
    (tmp_path / "linked").hardlink_to(python.parent / "ml")
    monkeypatch.setattr(sys, "executable", str(python))
    imports.main()
    assert (tmp_path / "linked").read_text() == "a former one"
    (python.parent / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix, 'bin')}\n")
    done = subprocess.run(
        [python.parent / "ml", "--help"],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(path for path in sys.path if "site-packages" in path)},
        capture_output=True,
        text=True,
    )
    assert "Run a job spec" in done.stdout, done.stderr
