"""A fork's own gates and rules are found by the names in pyproject.toml, and only add refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ml.core import plug_ins
from ml.core.errors import UserError

TABLE = "[tool.azureml-gitops-starter.plug-ins]\n"


def root(folder: Path, table: str, **modules: str) -> Path:
    (folder / "pyproject.toml").write_text(table)
    (folder / plug_ins.FOLDER).mkdir(parents=True)
    for name, text in modules.items():
        (folder / plug_ins.FOLDER / f"{name}.py").write_text(text)
    return folder


def test_the_named_modules_of_a_kind_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order; others of the folder are not, nor is one of the same name on PYTHONPATH."""
    (tmp_path / "path/policies/own").mkdir(parents=True)
    (tmp_path / "path/policies/own/first.py").write_text("VALUE = 'path'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    (tmp_path / "fork").mkdir()
    table = f'{TABLE}gates = ["second", "first"]\nspec-rules = []\n'
    modules = {name: f"VALUE, GATES = '{name}', {{}}\n" for name in ("first", "second")}
    modules["other"] = "raise SystemExit\n"
    folder = root(tmp_path / "fork", table, **modules)
    assert [module.VALUE for module in plug_ins.load("gates", folder)] == ["second", "first"]
    assert (
        plug_ins.load("spec-rules", folder) == plug_ins.load("infrastructure-rules", folder) == ()
    )


def test_a_fork_without_a_table_has_none(tmp_path: Path) -> None:
    assert plug_ins.load("gates", root(tmp_path, "")) == ()
    assert plug_ins.load("gates", tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    "table",
    [
        f'{TABLE}gate = ["a"]\n',
        f'{TABLE}gates = ["../promotion/engine"]\n',
        f'{TABLE}gates = ["policies.own.a"]\n',
        f"{TABLE}gates = 1\n",
        f"{TABLE}gates = [1]\n",
        '[tool.azureml-gitops-starter]\nplug-ins = ["a"]\n',
        "[tool\n",
    ],
)
def test_another_table_is_refused(table: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="wrong-value") as refused:
        plug_ins.load("gates", root(tmp_path, table))
    line = next((n for n, text in enumerate(table.splitlines(), 1) if "plug-ins" in text), 1)
    assert f"pyproject.toml:{line}" in str(refused.value)


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\n[tool.azureml-gitops-starter.plug-ins]\n\xff")
    with pytest.raises(UserError, match=r"wrong-value.*pyproject\.toml:2"):
        plug_ins.load("gates", tmp_path)


@pytest.mark.attack("A plug-in is a link to code that its owners do not review")
def test_a_link_is_no_module(tmp_path: Path) -> None:
    folder = root(tmp_path, f'{TABLE}gates = ["a"]\n')
    with pytest.raises(UserError, match="missing-file"):
        plug_ins.load("gates", folder)
    (tmp_path / "elsewhere.py").write_text("")
    (folder / plug_ins.FOLDER / "a.py").symlink_to(tmp_path / "elsewhere.py")
    plug_ins.load.cache_clear()
    with pytest.raises(UserError, match="missing-file"):
        plug_ins.load("gates", folder)


def test_a_module_that_fails_is_reported_at_its_line(tmp_path: Path) -> None:
    folder = root(tmp_path, f'{TABLE}gates = ["a"]\n', a="VALUE = 1\nVALUE / 0\n")
    with pytest.raises(UserError, match="plug-in-failed") as refused:
        plug_ins.load("gates", folder)
    (problem,) = refused.value.problems
    assert problem.place is not None and problem.place.line == 2
    assert "ZeroDivisionError" in problem.actual


def test_a_syntax_error_is_reported_at_its_line(tmp_path: Path) -> None:
    folder = root(tmp_path, f'{TABLE}gates = ["a"]\n', a="VALUE = 1\ndef check(:\n")
    with pytest.raises(UserError, match=r"plug-in-failed.*policies/own/a\.py:2"):
        plug_ins.load("gates", folder)


def test_an_error_outside_the_plug_in_is_reported_at_its_function(tmp_path: Path) -> None:
    """Its own lines are in no traceback if it only returned another type."""
    folder = root(tmp_path, f'{TABLE}gates = ["a"]\n', a="GATES = {}\n\ndef check(): ...\n")
    (module,) = plug_ins.load("gates", folder)
    problem = plug_ins.failure(TypeError("no findings"), "the rule `a`", module.check)
    assert problem.place is not None and problem.place.line == 3


@pytest.mark.attack("A plug-in ends the process as if all were well")
@pytest.mark.parametrize("text", ["raise SystemExit(0)", "import sys; sys.exit()", "VALUE = 1"])
def test_a_module_that_exits_or_defines_no_gates_is_refused(text: str, tmp_path: Path) -> None:
    folder = root(tmp_path, f'{TABLE}gates = ["a"]\n', a=text)
    with pytest.raises(UserError, match="plug-in-failed"):
        plug_ins.load("gates", folder)


def test_what_a_plug_in_prints_is_no_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plug_ins.load("spec-rules", root(tmp_path, f'{TABLE}spec-rules = ["a"]\n', a="print('hello')"))
    assert capsys.readouterr() == ("", "hello\n")


def test_a_name_of_the_framework_is_taken(tmp_path: Path) -> None:
    folder = root(tmp_path, f'{TABLE}gates = ["a"]\n', a="GATES = {}\n")
    (module,) = plug_ins.load("gates", folder)
    plug_ins.check_names("gate", ["mine"], ["quality"], module)
    with pytest.raises(UserError, match="plug-in-name-taken"):
        plug_ins.check_names("gate", ["mine", "quality"], ["quality"], module)


def test_functions_of_plug_ins_are_known(tmp_path: Path) -> None:
    folder = root(tmp_path, f'{TABLE}gates = ["a"]\n', a="GATES = {}\ndef check(): ...\n")
    (module,) = plug_ins.load("gates", folder)
    assert plug_ins.is_own(module.check) and not plug_ins.is_own(plug_ins.load)
    assert sys.modules["policies.own.a"] is module
