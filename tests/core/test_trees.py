"""ml.core.trees: what is committed, read off the files and not off what git reports."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ml.backends import snapshot
from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs import records
from ml.backends.local.runs.records import code_of
from ml.core import imports, trees
from ml.core.repository import folder_of
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load
from tests.backends.pipelines import write


def git(*words: str, at: Path) -> None:
    """Run git as somebody."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(at), *who, *words], check=True, capture_output=True)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A committed folder of code with a link to a file and a script that may be executed."""
    root = tmp_path / "repository"
    (root / "code" / "more").mkdir(parents=True)
    for name in ("evaluate.py", "more/data.py", "unused.log", ".amlignore"):
        (root / "code" / name).write_text(f"# {name}\n")
    (root / "code" / ".amlignore").write_text("*.log\n")
    (root / "code" / "more" / "data.py").chmod(0o755)
    (root / "code" / "link.py").symlink_to("evaluate.py")
    git("init", "-q", at=root)
    git("add", ".", at=root)
    git("commit", "-qm", "code", at=root)
    return root / "code"


def is_dirty(code: Path) -> bool:
    """What a run of the code would record."""
    return bool(code_of(code, snapshot.take(code), trees.commit(folder_of(code)))["dirty"])


def edit(code: Path, name: str = "evaluate.py") -> None:
    """The same length, as a careful person would."""
    path = code / name
    path.write_text(path.read_text().replace("# ", "#!"))


def flagged(flag: str) -> Callable[[Path], None]:
    def change(code: Path) -> None:
        git("update-index", flag, "code/evaluate.py", at=code.parent)
        edit(code)

    return change


def deleted(code: Path) -> None:
    git("update-index", "--skip-worktree", "code/more/data.py", at=code.parent)
    (code / "more" / "data.py").unlink()


def excluded(code: Path) -> None:
    (code.parent / ".git" / "info" / "exclude").write_text("sitecustomize.py\n")
    (code / "sitecustomize.py").write_text("print(1)\n")


def filtered(code: Path) -> None:
    """A filter that gives git the committed content back."""
    (code.parent / ".git" / "info" / "attributes").write_text("evaluate.py filter=same\n")
    git("config", "filter.same.clean", "sed 's/#!/# /'", at=code.parent)
    edit(code)


def replaced(code: Path) -> None:
    """The tree of another commit stands in for that of HEAD."""
    edit(code)
    git("commit", "-qam", "edited", at=code.parent)
    git("replace", "HEAD~1", "HEAD", at=code.parent)
    git("update-ref", "refs/heads/kept", "HEAD~1", at=code.parent)
    git("symbolic-ref", "HEAD", "refs/heads/kept", at=code.parent)
    # HEAD is the first commit now, which git shows as the second.


def untracked_hidden(code: Path) -> None:
    git("config", "status.showUntrackedFiles", "no", at=code.parent)
    (code / "more" / "new.py").write_text("print(1)\n")


def linked(code: Path) -> None:
    """The link leads to another file of the same commit."""
    git("update-index", "--assume-unchanged", "code/link.py", at=code.parent)
    (code / "link.py").unlink()
    (code / "link.py").symlink_to("more/data.py")


def ignores_more(code: Path) -> None:
    git("update-index", "--skip-worktree", "code/.amlignore", "code/evaluate.py", at=code.parent)
    (code / ".amlignore").write_text("*.log\nevaluate.py\n")
    edit(code)


@pytest.mark.attack("A change of the code that runs is hidden from git")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(edit, id="open"),
        pytest.param(flagged("--skip-worktree"), id="skip-worktree"),
        pytest.param(flagged("--assume-unchanged"), id="assume-unchanged"),
        deleted,
        excluded,
        filtered,
        replaced,
        untracked_hidden,
        linked,
        ignores_more,
    ],
)
def test_a_hidden_change_is_found(home: Path, code: Path, change: Callable[[Path], None]) -> None:
    """The files that run are hashed, and compared with the commit."""
    assert not is_dirty(code)
    change(code)
    assert is_dirty(code)


@pytest.mark.attack("Variables of git point to another repository")
def test_variables_of_git_change_nothing(
    home: Path, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(code)
    other = tmp_path / "other"
    git("clone", "-q", str(code.parent), str(other), at=tmp_path)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert is_dirty(code)


def test_what_does_not_run_is_not_asked(home: Path, code: Path) -> None:
    """Files outside of the code; an ignored file that is deleted; flags without a change."""
    git("update-index", "--skip-worktree", "code/evaluate.py", "code/unused.log", at=code.parent)
    (code / "unused.log").unlink()
    project = code.parent / "ml" / "projects" / "tiny"
    (project / "evidence").mkdir(parents=True)
    for name in ("release.yml", "evidence/prod.json"):
        (project / name).write_text("{}")
    (project / "train.py").write_text("")
    assert not is_dirty(code)
    (code / "more" / "train.py").write_text("")
    assert is_dirty(code)


def added(framework: Path) -> None:
    (framework / "ml/more.py").write_text("")


def deleted_module(framework: Path) -> None:
    (framework / "ml/trial.py").unlink()


def edited(framework: Path) -> None:
    (framework / "ml/trial.py").write_text("# edited")


def updated(framework: Path) -> None:
    lock = framework.parents[1] / "requirements/framework.lock"
    lock.write_text(lock.read_text().replace("0.1.0", "0.2.0"))
    git("commit", "-qam", "lock", at=lock.parent)


def uncommitted(framework: Path) -> None:
    with (framework.parents[1] / "requirements/framework.lock").open("a") as lock:
        lock.write("# edited")


@pytest.mark.parametrize("change", [added, deleted_module, edited, updated, uncommitted])
def test_a_wheel_is_committed_by_its_lock(
    home: Path, code: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    """In a thin fork, as long as its files are as installed, and of the locked version."""
    root, framework = code.parent, code.parent / ".venv/framework"
    for name, text in (
        (".gitignore", ".venv"),
        ("requirements/framework.lock", "./wheels/framework-0.1.0-py3-none-any.whl"),
        (".venv/framework/ml/trial.py", "# trial"),
        (".venv/framework/.amlignore", "*\n!/ml/*.py"),
        (".venv/framework/framework-0.1.0.dist-info/METADATA", "Name: framework\nVersion: 0.1.0"),
        (
            ".venv/framework/framework-0.1.0.dist-info/RECORD",
            "ml/trial.py,sha256=IrUonkMZjcAFMeBRN12h80QNJUYNCDleVIXQtQkcKPo,7\n"
            "framework-0.1.0.dist-info/RECORD,,\n",
        ),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git("add", ".", at=root)
    git("commit", "-qm", "thin", at=root)
    monkeypatch.setattr(imports, "FRAMEWORK", framework)
    monkeypatch.setattr(imports, "ROOT", root)
    assert not is_dirty(framework)
    change(framework)
    assert is_dirty(framework)


PIPELINE = """
jobs:
  first: {@, code: code, command: cat evaluate.py}
  second: {@, command: echo done}
"""


@pytest.mark.attack("A change of a pipeline's step is hidden from git")
@pytest.mark.parametrize("path", ["code/evaluate.py", "pipeline.yml"])
def test_a_pipeline_is_dirty_where_a_step_is(home: Path, code: Path, path: str) -> None:
    """Its own record says so too, by what its steps run."""
    spec = write(code.parent, PIPELINE)
    git("add", ".", at=code.parent)
    git("commit", "-qm", "pipeline", at=code)
    (code.parent / "notes.txt").write_text("not committed, and not run")

    def dirty() -> set[str]:
        run = LocalBackend().run(plan(load(spec)))
        assert run.status == "Completed"
        parts = {"": run} | {step.folder.name: step for step in run.steps}
        return {name for name in parts if records.lineage(parts[name].folder)["code"]["dirty"]}

    assert dirty() == set()
    git("update-index", "--skip-worktree", path, at=code.parent)
    (code.parent / path).write_text((code.parent / path).read_text() + "# changed\n")
    assert {"", "first"} <= dirty()


def test_one_file_of_code(home: Path, code: Path) -> None:
    """`code:` may be a file."""
    script = code / "evaluate.py"
    assert not is_dirty(script)
    flagged("--skip-worktree")(code)
    assert is_dirty(script)


def test_a_repository_of_sha256(home: Path, tmp_path: Path) -> None:
    """Its blobs have longer names."""
    code = tmp_path / "repository" / "code"
    code.mkdir(parents=True)
    (code / "run.py").write_text("print(1)\n")
    git("init", "-q", "--object-format=sha256", at=code.parent)
    git("add", ".", at=code)
    git("commit", "-qm", "code", at=code)
    assert not is_dirty(code)
    (code / "run.py").write_text("print(2)\n")
    assert is_dirty(code)


def test_outside_of_git_everything_is_dirty(home: Path, tmp_path: Path) -> None:
    """Nothing can be told there."""
    (tmp_path / "run.py").write_text("")
    assert trees.commit(tmp_path) is None and is_dirty(tmp_path)
