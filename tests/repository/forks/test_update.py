"""`make update`: all of it or nothing, and nothing of the team's lost without a word."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.core.errors import UserError
from ml.repository.forks import update as module
from ml.repository.forks.merge import content_of, tree_of
from ml.repository.forks.update import UNFINISHED, merged, request, update
from ml.repository.forks.wheel import demand_version
from ml.repository.github.api import GitHub
from tests.conftest import ROOT
from tests.repository.forks.forks import GIT, wheel, wheel_name
from tests.stand_ins.github import State, serving

ANSWERS, LOCK = ".copier-answers.yml", "requirements/framework.lock"
GATES, TIMING = "policies/promotion/gates.yml", "ml/toolkit/training/timing.py"
LINES = "".join(f"line {number}\n" for number in range(20))
# A template that is small: every kind of file, with the real rules of what is whose.
FILES = {
    "copier.yml": (ROOT / "copier.yml").read_text(),
    "pyproject.toml": '[project]\nname = "t"\nversion = "0.1.0"\n',
    "Makefile": LINES,
    ".gitignore": ".venv\n*.log\n",
    ".github/CODEOWNERS": LINES,
    ".github/workflows/check.yml": LINES,
    GATES: LINES,
    TIMING: LINES,
    "ml/toolkit/old.py": LINES,
    "ml/toolkit/gone.py": LINES,
    "ml/environments/cpu/conda.yml": LINES,
    "ml/core/errors.py": "of the framework\n",
    "ml/projects/README.md": LINES,
    "ml/projects/example/gates.yml": "of the team from the first day on\n",
    "infra/Pulumi.dev.yaml": "of the team\n",
    "tests/named.py": LINES,
    "tests/shared.py": LINES,
    "tests/__init__.py": LINES,
    "LICENSE": LINES,
}
Changes = Mapping[str, str | bytes | None]


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(folder: Path, files: Changes) -> None:
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def commit(folder: Path, files: Changes, message: str = "change") -> None:
    write(folder, files)
    git(folder, "add", "-Af")
    git(folder, "commit", "-qm", message)


def release(template: Path, version: str, files: Changes) -> None:
    """A version of the template."""
    project = FILES["pyproject.toml"].replace("0.1.0", version)
    commit(template, {**files, "pyproject.toml": project})
    git(template, "tag", f"v{version}")


def locked(version: str, content: bytes | None = None) -> dict[str, str | bytes]:
    """The lock of a wheel, and its file."""
    content = wheel(version) if content is None else content
    digest, path = hashlib.sha256(content).hexdigest(), f"wheels/{wheel_name(version)}"
    return {LOCK: f"# The framework\n./{path} --hash=sha256:{digest}\n", path: content}


ANSWERED = "_commit: v0.1.0\n_src_path: ../template\nfull: false\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template, released as v0.1.0, and a thin fork of it."""
    folder = tmp_path_factory.mktemp("folders")
    left_out = ("copier.yml", "ml/core/errors.py")
    files = {name: text for name, text in FILES.items() if name not in left_out}
    for name in ("template", "fork"):
        (folder / name).mkdir()
        git(folder / name, "init", "-q", "-b", "main")
    release(folder / "template", "0.1.0", FILES)
    commit(folder / "fork", {**files, **locked("0.1.0"), ANSWERS: ANSWERED}, "ours")
    return folder


@pytest.fixture
def template(folders: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders / "template", tmp_path / "template"))


@pytest.fixture
def fork(folders: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders / "fork", tmp_path / "fork"))


@pytest.fixture(autouse=True)
def wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels with nothing but their version: test_wheel.py builds real ones."""

    def build(template: Path, folder: Path, revision: str) -> Path:
        text = git(template, "show", f"{revision}:pyproject.toml")
        version = text.rpartition('"0.')[2].rstrip('"')
        path = folder / wheel_name(f"0.{version}")
        path.write_bytes(wheel(f"0.{version}"))
        return path

    monkeypatch.setattr("ml.repository.forks.wheel.build", build)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def edited(text: str, line: int, word: str) -> str:
    return text.replace(f"line {line}\n", f"line {line} {word}\n")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of the work tree."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


# What is merged.


def test_both_changes_are_there(template: Path, fork: Path) -> None:
    commit(fork, {GATES: edited(LINES, 2, "ours"), "docs/a.png": bytes(range(256))})
    new = {GATES: edited(LINES, 17, "theirs"), "ml/toolkit/new.py": "new\n"}
    own = {"ml/projects/example/gates.yml": "theirs\n", "infra/Pulumi.dev.yaml": "theirs\n"}
    release(template, "0.2.0", {**new, **own, "ml/toolkit/gone.py": None, "ml/core/errors.py": "2"})
    assert update(fork) == "v0.1.0 → v0.2.0"
    files = contents(fork)
    assert files[GATES].decode() == edited(edited(LINES, 2, "ours"), 17, "theirs")
    assert files["ml/toolkit/new.py"] == b"new\n" and "ml/toolkit/gone.py" not in files
    assert files["infra/Pulumi.dev.yaml"] == b"of the team\n"
    assert files["ml/projects/example/gates.yml"] == b"of the team from the first day on\n"
    assert "ml/core/errors.py" not in files and "copier.yml" not in files
    assert {name: files[name].decode("latin-1") for name in locked("0.2.0")} == {
        name: content if isinstance(content, str) else content.decode("latin-1")
        for name, content in locked("0.2.0").items()
    } | {LOCK: files[LOCK].decode()}
    assert f"wheels/{wheel_name('0.1.0')}" not in files
    assert yaml.safe_load(files[ANSWERS])["_commit"] == "v0.2.0"
    commit(fork, {})
    assert update(fork) == "v0.2.0 of the template is merged already"
    assert git(fork, "status", "--porcelain") == ""


def link(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to("Makefile")


OURS, THEIRS = edited(LINES, 3, "ours"), edited(LINES, 3, "theirs")
MOVED = {"ml/toolkit/old.py": None, "ml/toolkit/data/old.py": LINES}
# What the team did, what the template did, and what is said of which file.
EDITS: dict[str, tuple[Changes, Changes, str]] = {
    "the same lines": ({TIMING: OURS}, {TIMING: THEIRS}, "both changed the same lines"),
    "edited, deleted": (
        {"LICENSE": OURS},
        {"LICENSE": None},
        "you edited it; the template removed it",
    ),
    "edited, moved": (
        {"ml/toolkit/old.py": OURS},
        MOVED,
        "you edited it; the template moved it to ml/toolkit/data/old.py",
    ),
    "gates, deleted": ({GATES: OURS}, {GATES: None}, "you edited it; the template removed it"),
    "both added": (
        {".github/workflows/own.yml": "ours\n"},
        {".github/workflows/own.yml": "theirs\n"},
        "both changed the same lines",
    ),
    "bytes": (
        {"tests/named.py": b"\0\xff ours"},
        {"tests/named.py": b"\0\xfe theirs"},
        "not text; your version is kept",
    ),
    "a folder of ours": (
        {"ml/toolkit/kit/a.py": "ours\n"},
        {"ml/toolkit/kit": "theirs\n"},
        "but your file or folder exists",
    ),
    "a file of ours": (
        {"ml/toolkit/tools": "ours\n"},
        {"ml/toolkit/tools/a.py": "theirs\n"},
        "but your file or folder exists",
    ),
    "removed by us": (
        {"tests/__init__.py": None},
        {"tests/__init__.py": THEIRS},
        "you removed it; the template changed it",
    ),
    "emptied by us": (
        {"tests/shared.py": ""},
        {"tests/shared.py": None},
        "you edited it; the template removed it",
    ),
}


@pytest.mark.attack("An update takes an edit of the team's away without a word")
def test_no_edit_is_lost_without_a_word(template: Path, fork: Path) -> None:
    """Each kind at once: a line for each, and the team's file as it was or with markers."""
    edits = {name: content for ours, _, _ in EDITS.values() for name, content in ours.items()}
    commit(fork, edits)
    release(
        template,
        "0.2.0",
        {name: text for _, new, _ in EDITS.values() for name, text in new.items()},
    )
    result = merged(fork)
    lines = str(result).splitlines()[1:]
    assert len(lines) == len(EDITS)
    for name, (ours, theirs, words) in EDITS.items():
        assert any(
            words in line and any(file in line for file in {**ours, **theirs}) for line in lines
        ), name
    files = tree_of(fork, result.commit)
    assert {name for name, content in edits.items() if content is None}.isdisjoint(files)
    for name, content in edits.items():
        if content is not None:
            now, own = content_of(fork, files[name][1]), content
            own = own if isinstance(own, bytes) else own.encode()
            assert now == own or (b"ours" in now and b"<<<<<<< before updating" in now)


@pytest.mark.parametrize("name", ["ours", "theirs"])
def test_a_link_is_no_text(name: str, template: Path, fork: Path) -> None:
    """Whoever made a link of a file that the other edited: the team's is left, and named."""
    where, other, version = (fork, template, "") if name == "ours" else (template, fork, "0.2.0")
    link(where, TIMING)
    commit(where, {})
    commit(other, {TIMING: THEIRS})
    release(template, version or "0.2.0", {"Makefile": "new\n"})
    result = merged(fork)
    assert result.conflicts == {
        TIMING: "both sides changed it, and it is not a regular file; your version is kept"
    }
    assert git(fork, "ls-tree", result.commit, TIMING) == git(fork, "ls-tree", "HEAD", TIMING)


def test_a_file_that_may_be_run_stays_so(template: Path, fork: Path) -> None:
    (fork / "Makefile").chmod(0o755)
    commit(fork, {})
    release(template, "0.2.0", {"Makefile": THEIRS})
    update(fork)
    assert os.access(fork / "Makefile", os.X_OK) and (fork / "Makefile").read_text() == THEIRS


def test_what_becomes_the_teams_own_stays(template: Path, fork: Path) -> None:
    """And what moves into the wheel goes."""
    rules = FILES["copier.yml"].replace(
        "  - /wheels/\n", "  - /wheels/\n  - /ml/environments/\n", 1
    )
    release(template, "0.2.0", {"copier.yml": rules.replace("    !/tests/named.py\n", "")})
    update(fork)
    assert (fork / "ml/environments/cpu/conda.yml").exists()
    assert not (fork / "tests/named.py").exists()


# All of it or nothing.


def another(version: str) -> Changes:
    """The lock of a wheel that says another version than its name."""
    content = wheel(version)
    digest, path = hashlib.sha256(content).hexdigest(), f"wheels/{wheel_name('0.1.0')}"
    return {LOCK: f"./{path} --hash=sha256:{digest}\n", path: content}


WRONG: dict[str, tuple[Changes, str]] = {
    "another version": (dict(locked("0.2.0")), "lock-mismatch"),
    "another version's wheel": (another("0.2.0"), "no-wheel"),
    "another hash": (
        {LOCK: f"./wheels/{wheel_name('0.1.0')} --hash=sha256:{'0' * 64}"},
        "lock-mismatch",
    ),
    "no wheel": ({f"wheels/{wheel_name('0.1.0')}": None}, "lock-mismatch"),
    "bytes for a wheel": (dict(locked("0.1.0", b"PK\x03\x04garbage")), "no-wheel"),
    "an empty wheel": (dict(locked("0.1.0", b"")), "no-wheel"),
    "garbage in the lock": ({LOCK: "\0\xff<html>"}, "lock-mismatch"),
    "an empty lock": ({LOCK: ""}, "lock-mismatch"),
    "two in the lock": ({LOCK: f"{locked('0.1.0')[LOCK]}{locked('0.2.0')[LOCK]}"}, "lock-mismatch"),
    "no lock": ({LOCK: None}, "lock-mismatch"),
    "garbage in the answers": ({ANSWERS: "\0: [}"}, "bad-answers"),
    "nested answers": ({ANSWERS: "[" * 9000}, "bad-answers"),
    "answers of a list": ({ANSWERS: "- a\n"}, "bad-answers"),
    "empty answers": ({ANSWERS: ""}, "bad-answers"),
    "a version that is a number": (
        {ANSWERS: ANSWERED.replace("v0.1.0", "1")},
        "bad-answers",
    ),
    "a version that is no version": (
        {ANSWERS: "_commit: --help\n_src_path: ../template\nfull: false\n"},
        "unknown-version",
    ),
    "an address that is an option": (
        {ANSWERS: "_commit: v0.1.0\n_src_path: --upload-pack=touch x\nfull: false\n"},
        "git-failed",
    ),
    "an address that is a command": (
        {ANSWERS: "_commit: v0.1.0\n_src_path: 'ext::touch x'\nfull: false\n"},
        "git-failed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_fork_that_is_not_what_it_says_is_refused(name: str, template: Path, fork: Path) -> None:
    files, code = WRONG[name]
    release(template, "0.2.0", {"Makefile": THEIRS})
    commit(fork, files)
    before = contents(fork)
    with pytest.raises(UserError) as refused:
        update(fork)
    assert refused.value.problems[0].code == code
    assert contents(fork) == before and not git(fork, "for-each-ref", UNFINISHED)


def test_a_wheel_that_is_given_has_the_version(template: Path, fork: Path, tmp_path: Path) -> None:
    release(template, "0.2.0", {"Makefile": THEIRS})
    path, other = (tmp_path / wheel_name(version) for version in ("0.2.0", "0.3.0"))
    with pytest.raises(UserError, match="no-wheel"):
        merged(fork, source=str(path))
    for content in (b"garbage", wheel("0.3.0")):
        path.write_bytes(content)
        with pytest.raises(UserError, match="no-wheel"):
            merged(fork, source=str(path))
    other.write_bytes(wheel("0.3.0"))
    with pytest.raises(UserError, match="wheel-mismatch"):
        merged(fork, source=str(other))
    path.write_bytes(wheel("0.2.0"))
    assert str(merged(fork, source=str(path))) == "v0.1.0 → v0.2.0"


def test_bytes_of_a_stranger_are_refused() -> None:
    """Whatever is wrong with an archive."""
    content, chance = bytearray(wheel("0.2.0")), random.Random(3)
    for _ in range(300):
        broken = content[: chance.randrange(len(content))] if chance.random() < 0.3 else content[:]
        for _ in range(chance.randrange(1, 9)):
            if broken:
                broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            demand_version(bytes(broken), wheel_name("0.2.0"))
        except UserError as refused:
            assert refused.problems[0].code == "no-wheel"


def test_variables_of_a_hook_are_not_ours(
    template: Path, fork: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(template, "0.2.0", {"Makefile": THEIRS})
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    monkeypatch.setattr("ml.repository.forks.wheel.build", lambda *words: fork / "none")
    with pytest.raises(UserError, match="no-wheel"):
        merged(fork)


@pytest.mark.parametrize("name", ["Makefile", "notes.txt", "ml/toolkit/new.py"])
def test_what_is_not_committed_is_not_touched(name: str, template: Path, fork: Path) -> None:
    release(template, "0.2.0", {"ml/toolkit/new.py": THEIRS})
    write(fork, {name: "of a person"})
    with pytest.raises(UserError, match="uncommitted"):
        update(fork)
    assert (fork / name).read_text() == "of a person"


@pytest.mark.parametrize("how", ["ignored", "assumed"])
def test_what_git_does_not_show_is_not_touched(how: str, template: Path, fork: Path) -> None:
    release(template, "0.2.0", {"ml/toolkit/a.log": THEIRS, "Makefile": THEIRS})
    name = "ml/toolkit/a.log" if how == "ignored" else "Makefile"
    if how == "assumed":
        git(fork, "update-index", "--assume-unchanged", name)
    write(fork, {name: "of a person"})
    before = contents(fork)
    with pytest.raises(UserError, match="file-conflict"):
        update(fork)
    assert contents(fork) == before and not git(fork, "for-each-ref", UNFINISHED)


@pytest.mark.attack(
    "the template adds a file whose name differs from a file of the team in case alone"
)
def test_a_name_in_another_case_is_a_conflict(template: Path, fork: Path) -> None:
    """On a disk without case one would be the other."""
    commit(fork, {"ml/toolkit/Extra.py": "of the team\n", "ml/toolkit/old.py": OURS})
    release(
        template,
        "0.2.0",
        {
            **{"ml/toolkit/extra.py": LINES, "ml/toolkit/old.py": None, "ml/toolkit/Old.py": LINES},
            **{"ml/toolkit/gone.py": None, "ml/toolkit/Gone.py": LINES},
        },
    )
    text = update(fork)
    for new, ours in (("extra.py", "Extra.py"), ("Old.py", "old.py")):
        assert (
            f"conflict: ml/toolkit/{new}: new in the template, but differs only in case from "
            f"your ml/toolkit/{ours}" in text
        )
        assert not (fork / "ml/toolkit" / new).exists()
    assert (fork / "ml/toolkit/Gone.py").exists() and not (fork / "ml/toolkit/gone.py").exists()


def test_an_unknown_version_is_refused(template: Path, fork: Path) -> None:
    with pytest.raises(UserError, match="unknown-version"):
        update(fork, "v9.9.9")


def test_what_is_merged_is_not_taken_back(template: Path, fork: Path) -> None:
    """The newest release is older than the commit that was merged."""
    release(template, "0.2.0", {"Makefile": THEIRS})
    commit(template, {"Makefile": OURS})
    assert update(fork, "main").startswith("v0.1.0 → v0.2.0-1-g")
    commit(fork, {})
    assert (fork / "Makefile").read_text() == OURS
    assert update(fork).startswith("v0.2.0-1-g") and git(fork, "status", "--porcelain") == ""


# The pull request.


@pytest.fixture
def github(fork: Path) -> Iterator[State]:
    rights = {"contents": "write", "pull-requests": "write"}
    with serving(State(folder=fork, tokens={"app": rights}, apps={"app"})) as state:
        yield state


def ask(fork: Path, state: State) -> str:
    return request(fork, GitHub(state.repository, "app", state.api))


def work_on(fork: Path, branch: str, how: str) -> str:
    """Somebody's commit on the branch of an update; its new head."""
    git(fork, "switch", "-q", branch)
    if how == "amended":  # with the app's message and as its author
        git(fork, "-c", "user.email=ana@users", "commit", "-q", "--amend", "--no-edit")
    else:
        write(fork, {TIMING: "resolved"})
        email = {"known": "ana@users", "unknown": "nobody@example.org"}[how]
        git(fork, "-c", f"user.email={email}", "commit", "-qam", "resolved")
    head = git(fork, "rev-parse", "HEAD")
    git(fork, "switch", "-q", "main")
    return head


def test_the_pull_request_names_what_is_lost(template: Path, fork: Path, github: State) -> None:
    commit(fork, {"LICENSE": OURS, "ml/toolkit/old.py": OURS, TIMING: None})
    release(template, "0.2.0", {"LICENSE": None, **MOVED, TIMING: THEIRS})
    ask(fork, github)
    (pull,) = github.pulls
    assert "- `LICENSE`: you edited it; the template removed it\n" in pull["body"]
    assert "- `ml/toolkit/old.py`: you edited it; the template moved it to" in pull["body"]
    assert (
        f"You deleted these files and the template changed them; they stay deleted.\n\n- `{TIMING}`"
        in (pull["body"])
    )
    assert pull["labels"] == ["conflict"]
    branch = "template-update/v0.2.0"
    assert git(fork, "show", f"{branch}:LICENSE") == OURS.strip()
    assert git(fork, "rev-parse", f"{branch}^") == git(fork, "rev-parse", "main")


def test_what_main_got_meanwhile_is_not_taken_back(
    template: Path, fork: Path, github: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is on the one that was merged with, so that GitHub merges what came after it."""
    release(template, "0.2.0", {"Makefile": THEIRS})
    before, first = git(fork, "rev-parse", "main"), merged

    def later(*words: Any) -> Any:
        result = first(*words)
        commit(fork, {"Makefile": OURS}, "somebody else's")
        return result

    monkeypatch.setattr("ml.repository.forks.update.merged", later)
    ask(fork, github)
    assert git(fork, "rev-parse", "template-update/v0.2.0^") == before


@pytest.mark.attack("An update writes over, or closes, what somebody did on the one before")
@pytest.mark.parametrize("how", ["known", "unknown", "amended"])
def test_what_somebody_worked_on_stays(how: str, template: Path, fork: Path, github: State) -> None:
    """The same version's as it is; an older one's open, with one comment that names the newer."""
    release(template, "0.2.0", {"Makefile": THEIRS})
    ask(fork, github)
    head = work_on(fork, "template-update/v0.2.0", how)
    who = "an unknown account" if how == "unknown" else "ana"
    commit(fork, {GATES: OURS})
    assert ask(fork, github) == f"pull request 200 has commits of {who}, and stays as it is"
    release(template, "0.3.0", {"Makefile": edited(LINES, 4, "theirs")})
    for _ in range(2):
        assert f"200 has commits of {who}, and stays open" in ask(fork, github)
    assert [pull["state"] for pull in github.pulls] == ["open", "open"]
    (comment,) = github.bodies(200)
    assert "#201" in comment and who in comment
    assert git(fork, "rev-parse", "template-update/v0.2.0") == head


def test_a_persons_pull_request_is_theirs(template: Path, fork: Path, github: State) -> None:
    """Also one of the same name, whose commits are of who opened it."""
    release(template, "0.2.0", {"Makefile": THEIRS})
    ask(fork, github)
    head = work_on(fork, "template-update/v0.2.0", "amended")
    github.pulls[0]["user"] = {"login": "ana"}
    assert "has commits of ana, the-teams-app[bot], and stays" in ask(fork, github)
    github.pulls[0]["user"] = None
    assert "and stays as it is" in ask(fork, github)
    assert git(fork, "rev-parse", "template-update/v0.2.0") == head


def test_what_nobody_worked_on_is_renewed(template: Path, fork: Path, github: State) -> None:
    """And a branch of that name in somebody's fork is theirs."""
    release(template, "0.2.0", {"Makefile": THEIRS})
    ask(fork, github)
    head = {"ref": "template-update/v9", "label": "x:template-update/v9"}
    theirs = {"number": 7, "state": "open", "title": "x", "body": "", "user": {"login": "x"}}
    github.pulls.append({**theirs, "head": {**head, "repo": {"full_name": "x/models"}}})
    commit(fork, {GATES: OURS})
    assert "200 is updated" in ask(fork, github)
    release(template, "0.3.0", {"Makefile": edited(LINES, 4, "theirs")})
    assert "is opened; 200 is closed" in ask(fork, github)
    assert [pull["state"] for pull in github.pulls] == ["closed", "open", "open"]


# Kills.


def killed(fork: Path, at: int, work: Callable[[Path], object]) -> bool:
    """Whether a process that does the work is killed before it starts its program number `at`."""
    process = os.fork()
    if not process:
        started, start, own = 0, subprocess.run, os.getpid()

        def run(*words: Any, **options: Any) -> Any:
            nonlocal started
            started += 1
            if started == at and os.getpid() == own:
                os.kill(os.getpid(), signal.SIGKILL)
            return start(*words, **options)

        subprocess.run = run
        try:
            work(fork)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])


@pytest.fixture
def pair(template: Path, fork: Path, tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A fork with edits, of which one is a conflict, and its files as the update makes them."""
    commit(fork, {GATES: OURS, TIMING: OURS, "Makefile": edited(LINES, 2, "ours")})
    new = {GATES: edited(LINES, 17, "theirs"), TIMING: None, "Makefile": THEIRS}
    release(template, "0.2.0", {**new, "ml/toolkit/gone.py": None, "ml/toolkit/new/a.py": "new\n"})
    complete = tmp_path / "complete"
    shutil.copytree(fork, complete)
    assert TIMING in update(complete)
    return fork, contents(complete)


@pytest.mark.torture
@pytest.mark.attack(
    "An update is killed half-way, and leaves the template's gates in place of ours"
)
def test_a_kill_leaves_all_or_nothing(
    pair: tuple[Path, dict[str, bytes]], torture: bool, tmp_path: Path
) -> None:
    """Before each program that it starts; the next update is as if there had been no kill."""
    fork, after = pair
    before = contents(fork)
    at, ends = 1, 0
    while not ends:
        copy = tmp_path / f"copy{at}"
        shutil.copytree(fork, copy)
        ends = not killed(copy, at, update)
        assert contents(copy) == (after if ends else before)
        if torture and not ends:
            assert git(copy, "status", "--porcelain") == ""
            assert TIMING in update(copy) and contents(copy) == after
        shutil.rmtree(copy)
        at += 1 if torture else 13
    assert at > 40


@pytest.mark.torture
def test_what_a_kill_interrupts_is_finished(
    pair: tuple[Path, dict[str, bytes]], torture: bool, tmp_path: Path
) -> None:
    """Killed while files are written: each is as it was or as it is to become, the answers last."""
    fork, after = pair
    before = contents(fork)
    git(fork, "update-ref", UNFINISHED, merged(fork).commit)
    changed = sorted(name for name in {*before} | {*after} if before.get(name) != after.get(name))
    chance = random.Random(7)
    for number in range(60 if torture else 4):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(fork, copy)
        written = {*chance.sample(changed, chance.randrange(1, len(changed)))}
        write(copy, {name: after.get(name) for name in written if name != ANSWERS})
        text = update(copy)
        if written != {ANSWERS}:
            assert text.startswith("v0.1.0 → v0.2.0") and TIMING in text
        assert contents(copy) == after and not git(copy, "for-each-ref", UNFINISHED)
        shutil.rmtree(copy)


def test_an_edit_after_a_kill_is_not_written_over(pair: tuple[Path, dict[str, bytes]]) -> None:
    """Nor is what another commit has; the answers say that nothing was merged."""
    fork, after = pair
    git(fork, "update-ref", UNFINISHED, merged(fork).commit)
    write(fork, {"ml/toolkit/new/a.py": after["ml/toolkit/new/a.py"], GATES: "edited since"})
    half = contents(fork)
    with pytest.raises(UserError, match=f"file-conflict.*{GATES}"):
        update(fork)
    assert contents(fork) == half
    commit(fork, {GATES: OURS})
    assert TIMING in update(fork) and not git(fork, "for-each-ref", UNFINISHED)
    assert contents(fork) == after


@pytest.mark.attack("a kill after the last file was written, before a conflict was named")
def test_what_was_not_told_is_told_by_the_next(pair: tuple[Path, dict[str, bytes]]) -> None:
    """The files are there, so only the names of what somebody has to look at are missing; once told
    they are not told again.
    """
    fork, after = pair

    def killed(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update(fork, tell=killed)
    assert contents(fork) == after
    git(fork, "add", "-A")
    git(fork, "commit", "-qm", "update")
    told: list[str] = []
    assert f"conflict: {TIMING}" in update(fork, tell=told.append) and len(told) == 1
    assert update(fork) == "v0.2.0 of the template is merged already"


@pytest.mark.torture(only=True)
def test_a_kill_at_any_moment(pair: tuple[Path, dict[str, bytes]], tmp_path: Path) -> None:
    """Of the whole group, as a terminal that closes or a runner that is stopped does."""
    fork, after = pair
    before, chance, ends = contents(fork), random.Random(8), {True: 0, False: 0}
    wheels = tmp_path / wheel_name("0.2.0")
    wheels.write_bytes(wheel("0.2.0"))
    words = [sys.executable, "-m", "ml.repository.forks.update", f"--wheel={wheels}"]
    for number in range(60):
        copy = tmp_path / f"moment{number}"
        shutil.copytree(fork, copy)
        process = subprocess.Popen(words, cwd=copy, start_new_session=True, stdout=subprocess.PIPE)
        time.sleep(chance.uniform(0.3, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        until = time.monotonic() + 3  # what writes is another group
        while git(copy, "for-each-ref", UNFINISHED) and time.monotonic() < until:
            time.sleep(0.05)
        state = contents(copy)
        assert state in (before, after)
        ends[state == after] += 1
        shutil.rmtree(copy)
    assert all(ends.values())


# Four versions, ten kinds of edits, kills in between.

SHARED = (GATES, TIMING, "Makefile", "LICENSE", "ml/toolkit/old.py", "tests/named.py",
          ".github/workflows/check.yml", "ml/environments/cpu/conda.yml")  # fmt: skip


def of_the_template(folder: Path, chance: random.Random, version: str) -> dict[str, str | None]:
    """What a version changes: lines, files that are new, gone, moved or back."""
    files: dict[str, str | None] = {f"ml/toolkit/v{version[2]}.py": LINES}
    for name in chance.sample(SHARED, 6):
        there = (folder / name).is_file()
        text = (folder / name).read_text() if there else LINES
        how = chance.choice(("line", "line", "rewritten", "gone", "moved"))
        line = chance.randrange(20)
        files[name] = edited(text, line, f"theirs {version}") if how == "line" else f"{version}\n"
        if there and how in ("gone", "moved"):
            files[name] = None
        if how == "moved":
            files[f"ml/toolkit/moved/{Path(name).name}{version[2]}"] = text
    return files


def of_the_team(fork: Path, chance: random.Random, tag: str) -> None:
    """Ten kinds of edits, each of them with a tag that is the team's alone."""
    shared = [name for name in SHARED if (fork / name).is_file() and not (fork / name).is_symlink()]
    kinds = ("line", "end", "top", "empty", "bytes", "removed", "moved", "link", "mode")
    for number, name in enumerate(chance.sample(shared, len(shared))):
        path, mark, kind = fork / name, f"{tag}-{number} ", kinds[number]
        text = path.read_bytes().decode("latin-1")
        line = f"line {chance.randrange(20)}\n"
        new = {
            "line": text.replace(line, f"{mark}\n"),
            "end": f"{text}{mark}",
            "top": f"{mark}\n{text}",
            "empty": mark,
            "bytes": f"\0{mark}\xff",
        }
        if kind in new:
            path.write_bytes(new[kind].encode("latin-1"))
        elif kind == "mode":
            path.chmod(0o755)
        elif kind == "moved":
            path.rename(fork / f"docs-{tag}-{number}")
        else:
            path.unlink()
            if kind == "link":
                path.symlink_to(f"{mark}")
    commit(fork, {f"ml/toolkit/v{chance.choice('234')}.py": f"{tag}-new \n", f"docs/{tag}": tag})


def tags(fork: Path) -> dict[str, set[str]]:
    """Each file of the commit → what is of the team's in it."""
    marks = {}
    for name, (mode, blob) in tree_of(fork, "HEAD").items():
        words = re.findall(rb"t\d-\w+ ", content_of(fork, blob))
        marks[name] = {word.decode() for word in words} | ({mode} - {"100644"})
    return marks


@pytest.mark.torture
@pytest.mark.attack("Updates that follow each other, and are killed, lose an edit of the team's")
def test_four_versions_lose_nothing_unnamed(
    template: Path, fork: Path, torture: bool, tmp_path: Path
) -> None:
    """What a file of the team's had it has still, or the update names the file."""
    for seed in range(30 if torture else 1):
        chance = random.Random(seed)
        ours, theirs = (tmp_path / f"round{seed}" / name for name in ("fork", "template"))
        for folder, source in ((ours, fork), (theirs, template)):
            shutil.copytree(source, folder)
        for number, version in enumerate(("0.2.0", "0.3.0", "0.4.0")):
            of_the_team(ours, chance, f"t{number}")
            removed = {name for name in SHARED if (theirs / name).exists()} - {*tags(ours)}
            release(theirs, version, of_the_template(theirs, chance, version))
            before, files = tags(ours), contents(ours)
            for _ in range(3 if torture else 1):
                if killed(ours, chance.randrange(5, 60), update):
                    assert contents(ours) == files
                else:
                    git(ours, "reset", "-q", "--hard")
                    git(ours, "clean", "-fdq")
            text = update(ours)
            commit(ours, {})
            after = tags(ours)
            lost = {name for name, marks in before.items() if not marks <= after.get(name, set())}
            assert removed.isdisjoint(after)
            assert all(f"{name}: " in text for name in lost), (seed, version, lost, text)
            named = text.splitlines()[1:]
            assert all("<<<<<<<" in line or "you" in line for line in named), named
        shutil.rmtree(ours.parent)


def test_a_private_template_is_cloned_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """template-update.yml gives the app's as TEMPLATE_TOKEN; without one git signs in itself."""
    settings: list[Mapping[str, str]] = []
    monkeypatch.setattr(
        "ml.core.git.clone", lambda root, address, to, given: settings.append(given)
    )
    for token in ("", "secret"):
        monkeypatch.setenv("TEMPLATE_TOKEN", token)
        with module._clone(tmp_path, "https://github.com/contoso/template"):
            pass
    assert settings[0] == {}
    header = settings[1]["http.https://github.com/.extraheader"]
    assert header.endswith(base64.b64encode(b"x-access-token:secret").decode())
