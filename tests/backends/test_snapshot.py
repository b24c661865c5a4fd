"""Which files travel, as the SDK decides it, and copies that do not collide."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ml.backends import snapshot
from ml.core.errors import UserError
from ml.specs.assets.ignore_file import IgnoreFile
from tests.conftest import ROOT

TREE = """
    README.md .venv/lib/site.py .git/config data/a.csv data/raw/b.csv data/raw/c.bin #odd !bang
    ml/__init__.py ml/projects/faq/train.py ml/projects/faq/data/v1.yml ml/projects/faq/notes.txt
    ml/toolkit/__init__.py ml/cli/app.py sub/#odd tests/test_a.py build/x/y/z.o foo/foo
"""


def plant(folder: Path) -> None:
    """A tree with files of every sort."""
    for name in TREE.split():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def travelling(folder: Path) -> set[str]:
    """What our matcher lets travel."""
    return {relative for relative, _ in IgnoreFile(folder).files()}


def travelling_by_the_sdk(folder: Path) -> set[str]:
    """What azure-ai-ml would upload."""
    from azure.ai.ml._utils._asset_utils import get_ignore_file, get_upload_files_from_folder

    ignore = get_ignore_file(folder)
    return {name for _, name in get_upload_files_from_folder(folder, ignore_file=ignore)}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["*.csv", "build"],
        ["build/", "data/raw/"],
        ["/data", "!data/raw/b.csv"],
        ["*", "!/ml/__init__.py", "!/ml/projects/**/*.py", "!/ml/projects/*/data/*.yml"],
        ["*", "!ml/"],
        ["**/raw", "foo/"],
        ["data/**", "!data/**/b.csv"],
        ["**/", "!README.md"],
        ["  *.py  ", "# a comment", "", "/", "\\#odd", "\\!bang"],
        ["[a-c]*.csv", "[!R]*.md", "x[", "?.o"],
        ["a/**/z.o", "build/**/z.o", "**/faq/**"],
        ["ml/**/", "!ml/toolkit/__init__.py", "**"],
        ["ml", "/**/", "a//b", "!//"],
        ["data/*", "!data/a.csv", "/ml/*/", "*/projects/*"],
    ],
)
def test_the_matcher_is_the_sdks(tmp_path: Path, lines: list[str]) -> None:
    """File by file, for every form of pattern."""
    plant(tmp_path)
    (tmp_path / ".amlignore").write_text("\n".join(lines))
    assert travelling(tmp_path) == travelling_by_the_sdk(tmp_path)


def test_gitignore_counts_where_there_is_no_amlignore(tmp_path: Path) -> None:
    """And not beside one."""
    plant(tmp_path)
    (tmp_path / ".gitignore").write_text("*.py\n")
    assert travelling(tmp_path) == travelling_by_the_sdk(tmp_path)
    assert "ml/cli/app.py" not in travelling(tmp_path)
    (tmp_path / ".amlignore").write_text("*.csv\n")
    assert travelling(tmp_path) == travelling_by_the_sdk(tmp_path)
    assert "ml/cli/app.py" in travelling(tmp_path)


PARTS = st.sampled_from(["ml", "data", "raw", "*", "**", "*.py", "foo", "a?c", "[bc].csv", "build"])
PATTERNS = st.builds(
    lambda bang, root, parts, tail: f"{bang}{root}{'/'.join(parts)}{tail}",
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "/"]),
    st.lists(PARTS, min_size=1, max_size=3),
    st.sampled_from(["", "/"]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(PATTERNS, min_size=1, max_size=5))
def test_any_patterns(tmp_path: Path, lines: list[str]) -> None:
    """Whatever people write, ours and the SDK's agree, pruned folders included."""
    if not (tmp_path / "README.md").exists():
        plant(tmp_path)
    (tmp_path / ".amlignore").write_text("\n".join(lines))
    assert travelling(tmp_path) == travelling_by_the_sdk(tmp_path)


def test_this_repositorys_snapshot_is_what_the_sdk_would_upload() -> None:
    """The allow-list of the root, read by both."""
    from azure.ai.ml._utils._asset_utils import get_ignore_file

    ignore = get_ignore_file(ROOT)
    ours = travelling(ROOT)
    files = [path for path in (ROOT / "ml").rglob("*") if path.is_file()]
    theirs = {str(p.relative_to(ROOT)) for p in files if not ignore.is_file_excluded(p)}
    assert ours == theirs
    assert "ml/toolkit/__init__.py" in ours


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    """A link to data travels as its content; a link to a folder above is not entered."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "a" / "up").symlink_to("..")
    assert travelling(tmp_path) == {"a/x", "b/x"}


def test_the_same_content_is_one_snapshot(home: Path, tmp_path: Path) -> None:
    """A change of content is another, a touched file is not."""
    code = tmp_path / "code"
    plant(code)
    first = snapshot.take(code)
    (code / "README.md").touch()
    assert first is not None
    assert snapshot.take(code) == first and snapshot.copy(code) == first.folder
    (code / "README.md").write_text("changed")
    second = snapshot.take(code)
    assert second is not None
    assert first.digest != second.digest
    assert (first.folder / "README.md").read_text() == "README.md"


def test_no_code_and_one_file(home: Path, tmp_path: Path) -> None:
    """`code:` may be left out, and may be a single file."""
    assert snapshot.take(None) is None
    assert list(snapshot.working_copy(None, tmp_path / "work").iterdir()) == []
    file = tmp_path / "script.py"
    file.write_text("1")
    taken = snapshot.take(file)
    assert taken is not None
    assert [path.name for path in taken.folder.iterdir()] == ["script.py"]


def test_the_home_inside_the_code_does_not_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a snapshot would hold every snapshot before it."""
    plant(tmp_path)
    monkeypatch.setenv("MLOPS_HOME", str(tmp_path / ".local"))
    first = snapshot.take(tmp_path)
    assert snapshot.take(tmp_path) == first


def test_many_runs_at_the_same_moment(home: Path, tmp_path: Path) -> None:
    """All get the same whole copy, and no half one is left."""
    code = tmp_path / "code"
    plant(code)
    taken: list[snapshot.Snapshot | None] = []
    threads = [threading.Thread(target=lambda: taken.append(snapshot.take(code))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 8
    assert len(set(taken)) == 1
    (folder,) = (home / "snapshots").iterdir()
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == set(
        TREE.split()
    )


def leak(code: Path, secret: Path, kind: str) -> None:
    """Put a link to the secret, outside of the repository, into the code."""
    other = code.parent / "other"
    other.mkdir()
    if kind == "file":
        (code / "link").symlink_to(secret)
    elif kind == "folder":
        (code / "link").symlink_to(secret.parent)
    elif kind == "broken":
        (code / "link").symlink_to(secret.parent / "later")
    elif kind == "chain":
        (code / "link").symlink_to(other / "second")
        (other / "second").symlink_to(secret)
    elif kind == "in a linked folder":
        (code / "link").symlink_to(other)
        (other / "second").symlink_to(secret)
    elif kind == "in a folder of packages":
        (code / "node_modules").mkdir()
        (code / "node_modules" / "x").symlink_to(secret)


@pytest.mark.attack("A link in a job's code copies a file from outside the repository")
@pytest.mark.parametrize(
    "kind", ["file", "folder", "broken", "chain", "in a linked folder", "in a folder of packages"]
)
def test_a_link_that_leaves_the_repository_is_refused(
    home: Path, tmp_path: Path, kind: str
) -> None:
    """However many links lead there; one that .amlignore excludes does not travel."""
    code, secret = tmp_path / "repository" / "code", tmp_path / "outside" / "secret"
    plant(code)
    secret.parent.mkdir()
    secret.write_text("secret")
    (tmp_path / "repository" / "pyproject.toml").touch()
    (code / "inside").symlink_to(code / "README.md")
    (code / "nowhere").symlink_to("gone")
    (code / "loop").symlink_to("loop")
    assert snapshot.take(code) is not None
    leak(code, secret, kind)
    with pytest.raises(UserError, match="link-escape"):
        snapshot.take(code)
    (code / ".amlignore").write_text("link\nnode_modules\n")
    assert snapshot.take(code) is not None


@pytest.mark.attack("A file is replaced by a link between the check and the copy")
@pytest.mark.parametrize("name", ["README.md", "data"])
def test_a_link_that_appears_before_the_copy_is_not_followed(
    home: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a file nor a folder, whenever it is replaced."""
    code, outside = tmp_path / "repository" / "code", tmp_path / "outside"
    plant(code)
    plant(outside)
    (tmp_path / "repository" / "pyproject.toml").touch()
    listed = IgnoreFile.files

    def replaced(self: IgnoreFile, skipped_folders: object = ()) -> list[tuple[str, Path]]:
        files = list(listed(self))
        (code / name).rename(tmp_path / "before")
        (code / name).symlink_to(outside / name)
        return files

    monkeypatch.setattr(IgnoreFile, "files", replaced)
    with pytest.raises(UserError, match="link-escape"):
        snapshot.take(code)


def test_links_that_multiply_files_are_refused(home: Path, tmp_path: Path) -> None:
    """Each level doubles what travels: 2 ** 18 folders."""
    for level in range(18):
        (tmp_path / str(level)).mkdir()
        for link in "ab":
            (tmp_path / str(level) / link).symlink_to(tmp_path / str(level + 1))
    with pytest.raises(UserError, match="too-many-links"):
        snapshot.take(tmp_path / "0")


def test_folders_that_nest_too_deep_are_refused(home: Path, tmp_path: Path) -> None:
    """Patterns match each path in about the cube of its folders; those excluded do not count."""
    (tmp_path / "code" / "/".join("a" * 60)).mkdir(parents=True)
    with pytest.raises(UserError, match="too-deep"):
        snapshot.take(tmp_path / "code")
    (tmp_path / "code" / ".amlignore").write_text("a/a/a/\n")
    snapshot.take(tmp_path / "code")


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("*a*a*a*b", True),
        ("!*a**a*b", True),
        ("**/a/**/b/**/c", True),
        ("**/" * 40 + "x", False),
        ("**/a/**/*.py[co]", False),
        ("*_*_*.py", False),
        ("# ****", False),
        ("!", True),
        ("\\", True),
    ],
)
def test_a_pattern_that_would_match_for_ever_is_refused(
    tmp_path: Path, line: str, is_refused: bool
) -> None:
    """With the line; names of 255 letters in 100 folders are matched at once by others."""
    (tmp_path / ".amlignore").write_text(f"*.csv\n{line}\n")
    if is_refused:
        with pytest.raises(UserError, match=r"bad-pattern.*amlignore:2"):
            IgnoreFile(tmp_path)
    else:
        assert not IgnoreFile(tmp_path).excludes("a/" * 100 + "a" * 255)


@pytest.mark.attack("The copy of the code that a job or a server would run is changed")
@pytest.mark.parametrize("change", ["edit", "more", "less", "executable"])
def test_a_changed_copy_is_refused(home: Path, tmp_path: Path, change: str) -> None:
    """It is named after its content, which is hashed again."""
    code = tmp_path / "code"
    plant(code)
    taken = snapshot.take(code)
    assert taken is not None and snapshot.take(code) == taken
    file = taken.folder / "README.md"
    if change == "edit":
        file.write_text(file.read_text().upper())
    elif change == "more":
        (taken.folder / "sitecustomize.py").write_text("")
    elif change == "less":
        file.unlink()
    else:
        file.chmod(0o755)
    with pytest.raises(UserError) as raised:
        snapshot.take(code)
    (problem,) = raised.value.problems
    assert problem.code == "snapshot-changed" and "rm -r" in problem.hint
    shutil.rmtree(taken.folder)
    assert snapshot.take(code) == taken


def test_a_snapshot_leaves_folders_out(tmp_path: Path) -> None:
    """What they hold changes neither the copy nor its name."""
    code = tmp_path / "code"
    for name in ("mine", "theirs"):
        (code / name).mkdir(parents=True)
        (code / name / "score.py").write_text("1")
    first = snapshot.copy(code, {code / "theirs"})
    assert [path.name for path in first.iterdir()] == ["mine"]
    (code / "theirs" / "score.py").write_text("2")
    assert snapshot.copy(code, {code / "theirs"}) == first != snapshot.copy(code)
