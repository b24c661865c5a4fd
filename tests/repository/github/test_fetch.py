"""The fetch of a pull request writes no file that runs, and nothing that git takes for its own."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ml.core import trees
from ml.core.errors import UserError
from ml.repository.github.pull_requests.training_request import fetch
from tests.test_fork import GIT

PULL = 12


def git(folder: Path, *words: str, text: str = "") -> str:
    done = subprocess.run(
        [*GIT, *words], cwd=folder, check=True, capture_output=True, text=True, input=text
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Main's clone, beside its origin."""
    origin = tmp_path / "origin"
    (origin / "ml").mkdir(parents=True)
    (origin / "ml/train.py").write_text("print(1)\n")
    (origin / "pyproject.toml").touch()
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "main")
    git(tmp_path, "clone", "-q", str(origin), "clone")
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


def requested(clone: Path, entries: str) -> str:
    """The commit of a pull request with these entries in ml/projects, beside main's files."""
    origin = clone.parent / "origin"
    folder = git(origin, "mktree", "--missing", text=entries)
    projects = git(origin, "mktree", text=f"040000 tree {folder}\tprojects\n")
    former = git(origin, "ls-tree", "HEAD")
    tree = git(origin, "mktree", text=f"{former.splitlines()[1]}\n040000 tree {projects}\tml\n")
    commit = git(origin, "commit-tree", "-p", "main", tree, text="a change")
    git(origin, "update-ref", f"refs/pull/{PULL}/head", commit)
    return commit


@pytest.mark.attack("A pull request has a repository, a part of one, or another by its name")
@pytest.mark.parametrize(
    "entry",
    [
        *(f"100644 blob {{blob}}\t{name}" for name in (".git", ".GIT", "git~1", ".git.", "HEAD")),
        "040000 tree {tree}\t.git",
        "160000 commit {commit}\twords",
    ],
)
def test_no_repository_is_fetched(entry: str, clone: Path) -> None:
    origin = clone.parent / "origin"
    ids = {
        "blob": git(origin, "hash-object", "-w", "--stdin", text="gitdir: /tmp/evil\n"),
        "commit": git(origin, "rev-parse", "HEAD"),
        "tree": git(origin, "rev-parse", "HEAD:ml"),
    }
    commit = requested(clone, entry.format(**ids) + "\n")
    with pytest.raises(UserError, match="name-not-allowed"):
        fetch(clone, PULL, commit, clone / ".local/pull-request")
    assert not (clone / ".local").exists()


@pytest.mark.attack("Attributes of a pull request have git write other bytes than were reviewed")
@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ("* working-tree-encoding=ASCII//TRANSLIT\n", "x = ‘words’\n"),
        ("* ident\n", "# $Id$\n"),
        ("*.py text eol=crlf\n", "print(1)\n"),
    ],
)
def test_what_is_fetched_is_what_was_read(attributes: str, text: str, clone: Path) -> None:
    origin = clone.parent / "origin"
    ids = [
        git(origin, "hash-object", "-w", "--no-filters", "--stdin", text=each)
        for each in (attributes, text)
    ]
    names = (".gitattributes", "a.py")
    lines = (f"100644 blob {blob}\t{name}\n" for blob, name in zip(ids, names, strict=True))
    commit = requested(clone, "".join(lines))
    with pytest.raises(UserError, match=r"content-mismatch.*projects/a\.py"):
        fetch(clone, PULL, commit, clone / ".local/pull-request")


def test_files_are_fetched_as_they_are(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names at the root that main allows; the token is seen by nobody."""
    monkeypatch.setenv("GH_TOKEN", "secret")
    origin = clone.parent / "origin"
    blob = git(origin, "hash-object", "-w", "--stdin", text="../../..")
    words = git(origin, "mktree", text=f"120000 blob {blob}\tlink\n")
    commit = requested(clone, f"100644 blob {blob}\ta.txt\n040000 tree {words}\twords\n")
    to = clone / ".local/pull-request"
    fetch(clone, PULL, commit, to)
    link = to / "ml/projects/words/link"
    assert not link.is_symlink() and link.read_text() == "../../.."
    assert git(to, "rev-parse", "HEAD") == commit
    settings = [file for file in (clone / ".git").rglob("*") if file.is_file()]
    assert not any(b"c2VjcmV0" in file.read_bytes() for file in settings)


def nested(origin: Path, blob: str, levels: int, wide: int) -> str:
    """The id of a tree of trees with `wide ** levels` files, all of them one blob."""
    id = git(origin, "mktree", text=f"100644 blob {blob}\ta.txt\n")
    for _ in range(levels):
        id = git(origin, "mktree", text="".join(f"040000 tree {id}\t{at}\n" for at in range(wide)))
    return id


@pytest.mark.attack("A small pack of a pull request unfolds to more than a disk holds")
def test_what_unfolds_to_too_much_is_not_fetched(clone: Path) -> None:
    """A file may be named any number of times."""
    origin = clone.parent / "origin"
    for size, names, expected in (
        (30 << 20, 20, r"600 MiB in 21 files.*at most 256 MiB and 20,000 files beyond main"),
        (1, 20_010, r"0 MiB in 20,011 files"),
    ):
        (origin / "zeros").write_bytes(b"")
        with (origin / "zeros").open("ab") as zeros:
            zeros.truncate(size)
        blob = git(origin, "hash-object", "-w", "zeros")
        entries = "".join(f"100644 blob {blob}\tz{at:05}.bin\n" for at in range(names))
        with pytest.raises(UserError, match=rf"(?s)too-large.*{expected}"):
            fetch(clone, PULL, requested(clone, entries), clone / ".local/pull-request")
    assert not (clone / ".local").exists()
    assert sum(file.stat().st_size for file in (clone / ".git").rglob("*")) < 4 << 20


@pytest.mark.attack("Folders that are each named ten times in another have more files than fit")
def test_folders_in_folders_are_counted_and_not_listed(clone: Path) -> None:
    origin = clone.parent / "origin"
    blob = git(origin, "hash-object", "-w", "--stdin", text="x")
    started = time.monotonic()
    for levels, wide, expected in ((10, 10, "in 10,000,000,001 files"), (200, 1, "folders deep")):
        entries = f"040000 tree {nested(origin, blob, levels, wide)}\twords\n"
        with pytest.raises(UserError, match=rf"too-large.*{expected}"):
            fetch(clone, PULL, requested(clone, entries), clone / ".local/pull-request")
    assert time.monotonic() - started < 60
    assert not (clone / ".local").exists()


@pytest.mark.attack("A commit names files of a kind that git does not write")
@pytest.mark.parametrize("mode", ["160001", "000000"])
def test_a_broken_commit_is_a_sentence(mode: str, clone: Path) -> None:
    entry = clone.parent / "tree"
    entry.write_bytes(f"{mode} words\0".encode() + bytes.fromhex("ab" * 20))
    words = ("hash-object", "-t", "tree", "-w", "--literally", str(entry))
    tree = git(clone, *words)
    commit = git(clone, "commit-tree", tree, text="a change")
    with pytest.raises(UserError, match="broken-commit"):
        trees.measure(clone, commit)


def test_a_commit_is_measured_as_it_is_checked_out(clone: Path) -> None:
    """Its files as often as they are written, and no repository inside."""
    (clone / "again").mkdir()
    for name in ("again/train.py", "again/two.py"):
        (clone / name).write_text("print(1)\n")
    git(clone, "add", "-A")
    commit = git(clone, "rev-parse", "HEAD")
    git(clone, "update-index", "--add", "--cacheinfo", f"160000,{commit},inside")
    git(clone, "commit", "-qm", "more")
    assert trees.measure(clone, "HEAD") == trees.Extent(files=4, size=27, depth=2)


@pytest.mark.parametrize("commit", ["HEAD", "a" * 40, "--upload-pack=x"])
def test_another_commit_is_not_fetched(commit: str, clone: Path) -> None:
    requested(clone, "")
    with pytest.raises(UserError, match="no-commit"):
        fetch(clone, PULL, commit, clone / ".local/pull-request")


@pytest.mark.parametrize("cleaned", [False, True], ids=["there", "cleaned"])
def test_another_fetch_on_the_same_machine(cleaned: bool, clone: Path) -> None:
    """A runner of one's own keeps the clone, and removes ignored files between two jobs."""
    to, blob = clone / ".local/pull-request", git(clone, "hash-object", "-w", "pyproject.toml")
    git(clone.parent / "origin", "hash-object", "-w", "pyproject.toml")
    fetch(clone, PULL, requested(clone, f"100644 blob {blob}\told.txt\n"), to)
    if cleaned:
        shutil.rmtree(clone / ".local")
    commit = requested(clone, f"100644 blob {blob}\tnew.txt\n")
    fetch(clone, PULL, commit, to)
    assert git(to, "rev-parse", "HEAD") == commit
    assert [path.name for path in (to / "ml/projects").iterdir()] == ["new.txt"]


def test_a_folder_of_somebody_is_not_replaced(clone: Path) -> None:
    to = clone / ".local/pull-request"
    to.mkdir(parents=True)
    (to / "mine.txt").touch()
    with pytest.raises(UserError, match="already exists"):
        fetch(clone, PULL, requested(clone, ""), to)
    assert (to / "mine.txt").exists()


@pytest.mark.attack("A tree is so deep that it cannot be written, or removed again")
@pytest.mark.parametrize(
    ("depth", "name", "code"),
    [
        (600, "d", "too-large"),
        (90, "d" * 50, "name-not-allowed"),
        (1, "ö" * 150, "name-not-allowed"),
    ],
)
def test_a_path_that_no_disk_holds_is_not_fetched(
    depth: int, name: str, code: str, clone: Path
) -> None:
    """Nothing of it is written, so that the next fetch finds no rest."""
    origin, to = clone.parent / "origin", clone / ".local/pull-request"
    tree = git(origin, "rev-parse", "HEAD:ml")
    for _ in range(depth):
        tree = git(origin, "mktree", text=f"040000 tree {tree}\t{name}\n")
    with pytest.raises(UserError, match=code):
        fetch(clone, PULL, requested(clone, f"040000 tree {tree}\td\n"), to)
    assert not to.exists()
    blob = git(origin, "rev-parse", "HEAD:ml/train.py")
    fetch(clone, PULL, requested(clone, f"100644 blob {blob}\tx.py\n"), to)
    assert (to / "ml/projects/x.py").is_file()
