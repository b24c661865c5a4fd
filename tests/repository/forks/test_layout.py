"""ml.repository.forks.layout: the names that a commit may hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ml.core.errors import UserError
from ml.core.terminal import printable
from ml.repository.forks import links
from ml.repository.forks.layout import own_names, problems, tracked_problems
from tests.conftest import ROOT
from tests.test_fork import GIT

FILE, LINK, GITLINK = "100644", "120000", "160000"


def test_what_this_repository_tracks_is_allowed() -> None:
    assert [*tracked_problems(ROOT)] == []


@pytest.mark.attack("A file runs, or hides another, by its name at the root")
@pytest.mark.parametrize(
    "path",
    [
        *("GNUmakefile", "makefile", "MAKEFILE", "Makefile.sh", "Makefile,v", "SCCS/s.Makefile"),
        *("argparse.py", "argparse/__init__.py", "yaml/x.txt", "ml.so", "sitecustomize.py"),
        *("usercustomize.py", "conftest.py", "setup.py", "setup.cfg", "tox.ini", "pytest.ini"),
        *("mypy.ini", "ruff.toml", ".ruff.toml", "uv.toml", ".python-version", "pip.conf"),
        *(".venv/bin/python", "pyvenv.cfg", ".netrc", ".npmrc", "package.json", ".env"),
        *(".gitattributes", ".lfsconfig", ".mailmap", ".azureml/config.json", "Dockerfile"),
        *(".local/check/x.json", "CODEOWNERS", " ml/x.py", "ML/x.py", "wheels ", "HEAD", "config"),
    ],
)
def test_a_name_at_the_root_is_refused(path: str) -> None:
    (problem,) = problems([(FILE, path)], [])
    assert problem.code == "name-not-allowed" and f"`{printable(path)}`" in problem.actual


@pytest.mark.attack("A folder looks like a repository, and git reads it")
@pytest.mark.parametrize(
    ("mode", "path"),
    [
        *((FILE, f"ml/projects/words/{name}") for name in ("HEAD", "head", "x/y/HEAD")),
        *((FILE, f"docs/{name}") for name in ("HEAD.", "head ", "HEAD::$DATA", "HE\u200cAD")),
        (LINK, "ml/projects/words/HEAD"),
        *(
            (FILE, f"ml/projects/words/{name}/config")
            for name in (".git", ".GIT", ".git.", ".git ", ".git. .", ".git::$INDEX_ALLOCATION")
        ),
        *((FILE, f"ml/projects/{name}/release.yml") for name in ("venv", "node_modules")),
        *((FILE, f"docs/{name}") for name in (".git", "git~1", "GIT~2", "gi7eba~1", ".g\u200cit")),
        *((FILE, f"docs/{name}") for name in (".gitmodules", ".GITMODULES ", "a\\.git\\config")),
        (GITLINK, "ml/projects/words"),
        (GITLINK, "docs"),
    ],
)
def test_no_repository_is_among_the_files(mode: str, path: str) -> None:
    (problem,) = problems([(mode, path)], [])
    assert problem.code == "name-not-allowed" and f"`{printable(path)}`" in problem.actual


@pytest.mark.attack("The name of a file is a command of the workflow that refuses it")
def test_a_name_is_printed_on_one_line() -> None:
    (problem,) = problems([(FILE, "a\n::add-path::/tmp/\udce9")], [])
    assert "\n::" not in str(problem) and "a\\n::add-path::/tmp/\\udce9" in str(problem)
    str(problem).encode()


@pytest.mark.attack("A fork's part of a package hides the framework's")
@pytest.mark.parametrize(
    "path",
    [
        *("ml/__init__.py", "infra/__init__.pyc", "policies/__init__.so"),
        *("ml/serving/__init__.py", "ml/serving.py"),
    ],
)
def test_a_part_of_a_package_hides_no_other(path: str) -> None:
    assert [*problems([(FILE, path)], [])]


@pytest.mark.attack("Python runs other bytes than the reviewed module, by the name beside it")
@pytest.mark.parametrize(
    "path",
    [
        *("ml/core/__pycache__/errors.cpython-311.pyc", "ml/projects/words/__PyCache__ /x"),
        *("ml/core/errors.cpython-311-x86_64-linux-gnu.so", "ml/core/errors.abi3.so"),
        *("ml/projects/words/train.pyc", "ml/projects/words/train.PYD", "tests/x.pyo"),
        *("ml/core/errors/__init__.py"),
    ],
)
def test_a_module_is_the_text_that_is_reviewed(path: str) -> None:
    files = [(FILE, "ml/core/errors.py"), (FILE, path)]
    assert [problem.place.path for problem in problems(files, []) if problem.place] == [path]


@pytest.mark.attack("A link to a package hides the reviewed module beside it")
def test_a_link_hides_no_module() -> None:
    files = [(FILE, "ml/core/errors.py"), (LINK, "ml/core/errors")]
    assert [problem.code for problem in problems(files, [])] == ["name-not-allowed"]
    files = [(FILE, "ml/projects/words/errors.py"), (LINK, "ml/projects/words/page")]
    assert [*problems(files, [])] == []


def test_a_package_and_a_folder_are_allowed() -> None:
    """A module that became a package, and a folder of files beside a module."""
    for files in (["words/__init__.py", "words/x.py"], ["words.py", "words/x.txt"]):
        assert [*problems([(FILE, f"ml/projects/{name}") for name in files], [])] == []


@pytest.mark.attack("A folder of a project passes for the root of the repository")
def test_the_root_is_marked_once() -> None:
    for path in ("ml/projects/words/pyproject.toml", "docs/PyProject.toml."):
        (problem,) = problems([(FILE, path)], [])
        assert "taken for the root" in problem.expected
    assert [*problems([(FILE, "pyproject.toml")], [])] == []


def test_no_link_is_at_the_root() -> None:
    assert [*problems([(LINK, "requirements")], [])]
    assert [*problems([(LINK, "ml/projects/words/page.md")], [])] == []


@pytest.mark.attack("What owners review leads to a file that has others")
@pytest.mark.parametrize(
    "name", ["", "/gates.yml", "/release.yml", "/evidence", "/evidence/a.json"]
)
def test_what_has_owners_is_no_link(name: str) -> None:
    (problem,) = problems([(LINK, f"ml/projects/words{name}")], [])
    assert "owners" in problem.expected
    assert [*problems([(FILE, f"ml/projects/words{name}")], [])] == []


@pytest.mark.attack("What judges a change leads to a project's own file")
@pytest.mark.parametrize(
    "path",
    ["policies/promotion/gates.yml", "infra/Pulumi.dev.yaml", "ml/core", "requirements/main.lock"],
)
def test_what_judges_is_no_link(path: str) -> None:
    (problem,) = problems([(LINK, path)], [])
    assert "owners" in problem.expected
    assert [*problems([(LINK, "notebooks/page"), (LINK, "docs/page.md")], ["notebooks"])] == []


@pytest.mark.attack("Two files are one on a Mac, by letters that are composed or not")
def test_letters_are_composed() -> None:
    (problem,) = problems([(FILE, "ml/caf\u00e9.py"), (FILE, "ml/cafe\u0301.py")], [])
    assert "one spelling" in problem.expected


@pytest.mark.attack("A name of other letters takes the place of a file that has owners, on a Mac")
@pytest.mark.parametrize(
    "path",
    [
        *("ml/projects/words/Gates.yml", "ml/projects/words/gates.yml.", "ml/Projects/words/x.py"),
        *("ml/projects/words/gates\u200c.yml", "ML\\x.py", "ml/projects/words/GATES.YML/x"),
        "ml/projects/Words/x.py",
    ],
)
def test_a_file_has_one_spelling(path: str) -> None:
    """File systems that leave letters out of a name, or their case, have one file for both."""
    former = "ml/projects/words/gates.yml"
    (problem,) = problems([(FILE, former), (FILE, path)], ["ML"])
    assert problem.actual.strip("`") in {former, printable(path)}
    assert "one spelling" in problem.expected
    assert [*problems([(FILE, former), (FILE, "ml/projects/words/y/gates.yml")], [])] == []


def test_packages_of_several_parts_are_known() -> None:
    """Those of the framework that have modules and no `__init__.py`, a project's folder aside."""
    modules = [path for room in ("infra", "ml", "policies") for path in (ROOT / room).rglob("*.py")]
    folders = {path.parent for path in modules if not (path.parent / "__init__.py").exists()}
    names = {folder.relative_to(ROOT).as_posix() for folder in folders} | {"ml"}
    assert {name for name in names if "projects" not in name} == {
        *("infra", "ml", "ml/serving", "policies")
    }


@pytest.mark.parametrize(
    "path",
    [
        *("ml/projects/words/train.py", "ml/projects/words/.gitignore", "ml/projects/__init__.py"),
        *("docs/page.md", "tests/conftest.py", "ml/projects/words/heads.py", "docs/git.md"),
        *("ml/projects/words/head/model.py", "notebooks/first.ipynb", ".github/x.yml"),
    ],
)
def test_other_names_are_allowed(path: str) -> None:
    assert [*problems([(FILE, path)], ["notebooks"])] == []


def test_a_team_has_names_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In pyproject.toml, which the platform's team reviews."""
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.azureml-gitops-starter]\nroot = ["notebooks"]\n')
    assert own_names(tmp_path) == ["notebooks"]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/a.md").touch()
    assert [*tracked_problems(tmp_path)] == [], "outside of git"
    for words in (("init", "-q"), ("add", "-A")):
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True)
    assert [*tracked_problems(tmp_path)] == []
    (tmp_path / "yaml.py").touch()
    assert [*tracked_problems(tmp_path)] == [], "what git does not track is a person's"
    subprocess.run([*GIT, "add", "-A"], cwd=tmp_path, check=True)
    (problem,) = tracked_problems(tmp_path)
    assert problem.actual == "`yaml.py`"
    settings.write_text("[tool.azureml-gitops-starter]\nroot = 'notebooks'\n")
    with pytest.raises(UserError, match="wrong-value"):
        own_names(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert links.main() == 2
    assert "error[wrong-value]: pyproject.toml:1" in capsys.readouterr().err


@pytest.mark.attack("Characters that turn the direction of text show another program than runs")
def test_no_program_reads_otherwise_than_it_runs() -> None:
    """By the lint of every pull request that is not of documents alone."""

    def lint(comment: str) -> str:
        words = ("-m", "ruff", "check", "--stdin-filename", "ml/projects/words/x.py", "-")
        text = f'"""A module."""\n# {comment}\n'
        done = subprocess.run(
            (sys.executable, *words), cwd=ROOT, input=text, capture_output=True, text=True
        )
        return done.stdout

    assert "All checks passed" in lint("plain")
    assert "PLE2502" in lint("\u202e plain")


@pytest.mark.attack("A program has a name of letters that nobody sees")
@pytest.mark.parametrize("name", ["ml/projects/words/x.py", "infra/Pulumi.dev.yaml", "Makefile"])
@pytest.mark.parametrize("letter", ["\u3164", "\uffa0", "\u202e", "\u200b"])
def test_no_program_has_characters_that_nobody_sees(name: str, letter: str, tmp_path: Path) -> None:
    """Of U+3164 Python makes a name; documents and data may have any."""
    subprocess.run([*GIT, "init", "-q", tmp_path], check=True)
    for path in (name, "docs/page.md", "ml/projects/words/data/rows.csv"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"größe = 1\nx = {letter}\n", encoding="utf-8")
    (tmp_path / "infra").mkdir(exist_ok=True)
    (tmp_path / "infra/Pulumi.yaml").write_text("name: x\n", encoding="utf-8-sig")
    (problem,) = links.unseen(tmp_path)
    assert problem.code == "invisible-character" and str(problem.place) == f"{name}:2"
    assert problem.actual.isascii()


@pytest.mark.attack("A page has so many brackets that the check of its links never ends")
@pytest.mark.parametrize("line", ["[a](" * 20_000, "[](<" * 20_000, "# a" + " " * 50_000 + "x"])
def test_a_page_of_brackets_is_read_to_its_end(tmp_path: Path, line: str) -> None:
    """Without a bound of time: what tries each character many times runs for hours."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "a.md").write_text(f"{line}\n[self](a.md#end)\n[none](b.md 'of (c)')\n# End #\n")
    assert [problem.actual for problem in links.problems(tmp_path)][-1] == (
        "the link `b.md` is broken"
    )
