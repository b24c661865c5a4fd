"""ml.core.git: on files of others git runs no program of theirs, and reads no other history."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from ml.core import git, trees
from ml.core.errors import UserError
from ml.release.declaration import desired_state
from policies.waivers import merge_days
from tests.local import BACKEND

WHO = ("-c", "user.name=t", "-c", "user.email=t@example.org")
RELEASE = """\
schema_version: 1
environments:
  dev:
    model: words
    version: "1"
    digest: "sha256:%s"
    evidence: "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
    decision: "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
    traffic: {prediction: label}
"""


def real(folder: Path, *words: str, day: str = "2025-06-01") -> str:
    """What the real git prints in a folder, as somebody on a day."""
    done = subprocess.run(
        ["git", *WHO, *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "GIT_COMMITTER_DATE": f"{day} 12:00:00 +0000"},
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a project whose gates.yml and release.yml are merged."""
    root = tmp_path / "repository"
    project = root / "ml/projects/words"
    project.mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (project / "gates.yml").write_text("a: 1\n")
    (project / "release.yml").write_text(RELEASE % ("a" * 64))
    real(root, "init", "-q", "-b", "main")
    real(root, "add", "-A")
    real(root, "commit", "-qm", "merged")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def evil(tmp_path: Path) -> tuple[str, Path]:
    """A command of a stranger, and the file that is there once it ran."""
    return f"touch {tmp_path}/pwned; cat", tmp_path / "pwned"


def bare_in(folder: Path, command: str) -> None:
    """A repository of a stranger among the files of a folder, with a history of its own."""
    other = folder.parents[3] / "other"
    shutil.copytree(folder, other)
    (other / "release.yml").write_text(RELEASE % ("b" * 64))
    real(other, "init", "-q", "-b", "main")
    real(other, "add", "-A")
    real(other, "commit", "-qm", "forged", day="2020-01-01")
    real(other, "config", "core.worktree", ".")
    real(other, "config", "core.fsmonitor", command)
    shutil.copytree(other / ".git", folder, dirs_exist_ok=True)


def older(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A git before 2.38, which does not know `safe.bareRepository`."""
    program = tmp_path / "programs/git"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/bash\n"
        'for word; do all+=("${word/#safe.bareRepository=explicit/a.b=c}"); done\n'
        f'exec {shutil.which("git")} "${{all[@]}}"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.attack("A folder of a pull request is a repository whose settings name a program")
@pytest.mark.parametrize("age", ["", "older"])
def test_a_repository_among_the_files_is_not_read(
    age: str,
    tree: Path,
    tmp_path: Path,
    evil: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither its program nor its history: that of the root counts, whatever the age of git."""
    command, pwned = evil
    folder = tree / "ml/projects/words"
    bare_in(folder, command)
    real(folder, "status")
    assert pwned.exists(), "the attack works on a git that looks for a repository"
    pwned.unlink()
    if age:
        older(monkeypatch, tmp_path)
    assert merge_days(folder / "gates.yml") == {1: date(2025, 6, 1)}
    digests = [each.digest for each in desired_state.on_branch(BACKEND, "words", "dev")]
    assert digests == [f"sha256:{'a' * 64}"]
    head = real(tree, "rev-parse", "HEAD")
    commit = trees.commit(folder)
    assert commit is not None and (commit.id, commit.root) == (head, tree)
    assert git.run(folder, "status", "--porcelain", "--", "gates.yml") == ""
    assert not pwned.exists()


def of_a_filter(tree: Path, command: str) -> None:
    real(tree, "config", "filter.x=y.clean", command)
    real(tree, "config", "filter.x=y.smudge", command)
    real(tree, "config", "filter.x=y.required", "true")
    (tree / ".gitattributes").write_text("* filter=x=y\n")


def of_a_name_that_is_no_text(tree: Path, command: str) -> None:
    os.environ["LC_ALL"] = "C.UTF-8"
    with (tree / ".git/config").open("ab") as settings:
        settings.write(b'[filter "\xff"]\n\tclean = "%s"\n' % command.encode())
    (tree / ".gitattributes").write_bytes(b"* filter=\xff\n")


def of_a_process(tree: Path, command: str) -> None:
    real(tree, "config", "filter.long.process", command)
    (tree / ".gitattributes").write_text("* filter=long\n")


def of_a_text(tree: Path, command: str) -> None:
    real(tree, "config", "diff.words.textconv", command)
    (tree / ".gitattributes").write_text("* diff=words\n")


def of_a_program_that_compares(tree: Path, command: str) -> None:
    real(tree, "config", "diff.words.command", command)
    real(tree, "config", "diff.words.external", command)
    (tree / ".gitattributes").write_text("* diff=words\n")


def of_every_comparison(tree: Path, command: str) -> None:
    real(tree, "config", "diff.external", command)


def of_the_user(tree: Path, command: str) -> None:
    settings = Path(os.environ["HOME"]) / ".gitconfig"
    settings.write_text(f'[filter "lfs"]\n\tclean = {command}\n\tsmudge = {command}\n')
    settings.write_text(settings.read_text().replace(";", "&&"))
    (tree / ".gitattributes").write_text("* filter=lfs\n")


def of_a_hook(tree: Path, command: str) -> None:
    for name in ("post-checkout", "post-index-change", "fsmonitor"):
        (tree / ".git/hooks").mkdir(exist_ok=True)
        (tree / ".git/hooks" / name).write_text(f"#!/bin/sh\n{command}\n")
        (tree / ".git/hooks" / name).chmod(0o755)
    real(tree, "config", "core.fsmonitor", ".git/hooks/fsmonitor")


def of_a_variable(tree: Path, command: str) -> None:
    os.environ["GIT_EXTERNAL_DIFF"] = os.environ["GIT_PAGER"] = command
    os.environ["GIT_CONFIG_PARAMETERS"] = f"'core.fsmonitor'='{command}'"


@pytest.mark.attack("Attributes, hooks, settings or variables have git run a program")
@pytest.mark.parametrize(
    "way",
    [
        of_a_filter,
        of_a_name_that_is_no_text,
        of_a_process,
        of_a_text,
        of_a_program_that_compares,
        of_every_comparison,
        of_the_user,
        of_a_hook,
        of_a_variable,
    ],
)
def test_git_runs_no_other_program(
    way: Callable[[Path, str], None],
    tree: Path,
    tmp_path: Path,
    evil: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not to read, to compare, nor to check out."""
    command, pwned = evil
    monkeypatch.setattr(os, "environ", {**os.environ, "HOME": str(tmp_path)})
    way(tree, command)
    gates = tree / "ml/projects/words/gates.yml"
    gates.write_text("a: 2\n")
    assert (
        git.run(tree, "diff", "--name-only", "HEAD", "--", "ml") == f"{gates.relative_to(tree)}\n"
    )
    text = git.run(tree, "diff", "HEAD", "--", "ml")
    assert "+a: 2" in text or way in (of_a_program_that_compares, of_every_comparison)
    assert [*merge_days(gates)] == [1]
    git.run(tree, "add", "-A")
    git.run(tree, "worktree", "add", "--quiet", "--detach", str(tmp_path / "more"), "HEAD")
    assert (tmp_path / "more/ml/projects/words/gates.yml").read_text() == "a: 1\n"
    git.run(tree, "archive", "--output", str(tmp_path / "tree.tar"), "HEAD")
    assert not pwned.exists()


@pytest.mark.attack("A remote that has what a repository lacks names a program in its settings")
def test_what_a_repository_lacks_is_fetched_from_nowhere(
    tree: Path, tmp_path: Path, evil: tuple[str, Path]
) -> None:
    """Git itself would ask the remote (a partial clone), by the program that the settings name."""
    command, pwned = evil
    shutil.copytree(tree, tmp_path / "remote")
    blob = real(tree, "rev-parse", "HEAD:ml/projects/words/gates.yml")
    (tree / ".git/objects" / blob[:2] / blob[2:]).unlink()
    real(tree, "config", "core.repositoryFormatVersion", "1")
    real(tree, "config", "extensions.partialClone", "stranger")
    real(tree, "config", "remote.stranger.url", str(tmp_path / "remote"))
    real(tree, "config", "remote.stranger.uploadpack", f"{command} /dev/null; git-upload-pack")
    assert git.ask(tree, "show", "HEAD:ml/projects/words/gates.yml") is None
    assert not pwned.exists()
    assert real(tree, "show", "HEAD:ml/projects/words/gates.yml") == "a: 1"
    assert pwned.exists(), "the attack works on a git that fetches"


@pytest.mark.attack("A repository inside has a program in its settings")
def test_no_program_of_a_repository_inside_is_run(tree: Path, evil: tuple[str, Path]) -> None:
    """Not to say what has changed; no commit may hold one, and only a person can add it here."""
    command, pwned = evil
    inside = tree / "ml/inside"
    inside.mkdir()
    real(inside, "init", "-q")
    (inside / "a").write_text("1")
    (inside / ".gitattributes").write_text("* filter=x\n")
    real(inside, "add", "-A")
    real(inside, "commit", "-qm", "inside")
    real(tree, "add", "-A")
    real(tree, "commit", "-qm", "with another inside")
    real(inside, "config", "filter.x.clean", command)
    (inside / "a").write_text("2")
    assert git.run(tree, "status", "--porcelain") == ""
    assert git.run(tree, "diff", "--name-only", "HEAD", "--") == ""
    assert not pwned.exists()


@pytest.mark.attack("What lies beside the commits says that they have other parents")
@pytest.mark.parametrize("way", ["replace", "graft", "commit-graph"])
def test_the_history_is_that_of_the_commits(way: str, tree: Path) -> None:
    first = real(tree, "rev-parse", "HEAD")
    (tree / "ml/projects/words/gates.yml").write_text("a: 2\n")
    real(tree, "commit", "-qam", "second")
    second = real(tree, "rev-parse", "HEAD")
    if way == "replace":
        real(tree, "replace", "--graft", second)
    elif way == "graft":
        (tree / ".git/info/grafts").write_text(f"{second}\n")
    else:
        real(tree, "commit-graph", "write", "--reachable")
        graph = tree / ".git/objects/info/commit-graph"
        content = bytearray(graph.read_bytes())
        chunk = content.find(b"CDAT")
        start = int.from_bytes(content[chunk + 4 : chunk + 12], "big")
        at = start + 36 * sorted([first, second]).index(second) + 20
        content[at : at + 4] = (0x70000000).to_bytes(4, "big")  # no parent
        graph.chmod(0o644)
        graph.write_bytes(content)
    assert real(tree, "log", "--format=%H") == second, "the attack works on a git as it is"
    assert git.run(tree, "log", "--format=%H").split() == [second, first]


@pytest.mark.attack("A repository of somebody else lies above the folder")
def test_the_repository_is_one_that_git_takes(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner has to be who runs git, or the user has to have named it safe: git looks."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert git.ask(tree, "rev-parse", "HEAD"), "a variable of git decides nothing"
    program = tmp_path / "programs/git"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexport GIT_TEST_ASSUME_DIFFERENT_OWNER=1\nexec {shutil.which("git")} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    git._directory.cache_clear()
    with pytest.raises(UserError, match="dubious ownership") as raised:
        git.run(tree, "rev-parse", "HEAD")
    hint = f"git config --global --add safe.directory {tree}"
    assert raised.value.problems[0].hint == hint
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text("[safe]\n\tdirectory = *\n")
    assert git.run(tree, "rev-parse", "HEAD") == f"{real(tree, 'rev-parse', 'HEAD')}\n"


def test_an_old_git_is_refused(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not read the settings that keep programs out."""
    (tmp_path / "git").write_text("#!/bin/sh\necho git version 2.31.9 of somebody\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"old-git.*2\.31\.9"):
        git.run(tree, "rev-parse", "HEAD")


def test_what_is_printed_is_whole(tree: Path) -> None:
    """To the last byte, with names of any bytes; a failure has git's reason."""
    name = b"caf\xe9\r\n".decode(errors="surrogateescape")
    (tree / name).write_bytes(b"one\r\ntwo\n\n")
    real(tree, "add", "-A")
    assert name in git.run(tree, "ls-files", "-z").split("\0")
    assert git.run(tree, "show", f":{name}") == "one\r\ntwo\n\n"
    assert git.ask(tree, "show", f":{name}") == "one\r\ntwo"
    with pytest.raises(UserError, match=r"git-failed.*git show: .*nothing"):
        git.run(tree, "show", "HEAD:nothing")
    assert git.ask(tree, "show", "HEAD:nothing") is None


def test_what_is_printed_is_in_utf_8(tree: Path) -> None:
    """Whatever a repository's settings say; dates cannot be read in another encoding."""
    real(tree, "commit", "-q", "--allow-empty", "-m", "café")
    real(tree, "config", "i18n.logOutputEncoding", "UTF-16")
    assert git.run(tree, "log", "-1", "--format=%s") == "café\n"
    assert merge_days(tree / "ml/projects/words/gates.yml") == {1: date(2025, 6, 1)}


def test_without_a_repository_nothing_is_read(tmp_path: Path, evil: tuple[str, Path]) -> None:
    """A folder that only looks like one is none."""
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    bare_in(tmp_path / "a/b/c/d", evil[0])
    with pytest.raises(UserError, match="no-repository"):
        git.run(tmp_path / "a/b/c/d", "status")
    (tmp_path / "a/b/c/d/.git").mkdir()
    assert git.ask(tmp_path / "a/b/c/d", "status") is None
    assert not evil[1].exists()


def test_an_index_of_its_own(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes go in as they are; the person's index stays, and a variable names no other."""
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    own = tmp_path / "index"
    blob = git.run(tree, "hash-object", "-w", "--stdin", content=b"\0\xff\r\n").strip()
    assert git.run(tree, "cat-file", "blob", blob) == b"\0\xff\r\n".decode(errors="surrogateescape")
    git.run(tree, "read-tree", "HEAD", index=own)
    git.run(tree, "update-index", "--index-info", content=f"100644 {blob}\tx".encode(), index=own)
    assert git.run(tree, "ls-files", "x", index=own) == "x\n"
    assert git.run(tree, "ls-files", "x") == ""


def test_lines_are_merged(tree: Path) -> None:
    """Settings of the repository around decide nothing; bytes are no text."""
    real(tree, "config", "merge.conflictStyle", "diff3")
    labels = ("a", "b", "c")
    assert git.merge_lines((b"1\n2\n3\n4\n", b"1\n2\n3\n", b"0\n2\n3\n"), labels) == (
        b"0\n2\n3\n4\n",
        False,
    )
    conflict = b"<<<<<<< a\n2\n=======\n3\n>>>>>>> c\n"
    assert git.merge_lines((b"2\n", b"1\n", b"3\n"), labels) == (conflict, True)
    assert git.merge_lines((b"\0 2", b"1\n", b"3\n"), labels) == (None, True)


@pytest.mark.attack("A repository's settings say where its template is cloned from")
def test_a_clone_is_of_its_address(tree: Path, tmp_path: Path) -> None:
    """As seen from the folder, with every branch under its name and no file."""
    real(tree, "branch", "other")
    folder = tmp_path / "fork"
    real(tmp_path, "init", "-q", "fork")
    real(folder, "config", "url./nowhere/.insteadOf", "../repository")
    real(folder, "config", "alias.clone", "!false")
    git.clone(folder, "../repository", tmp_path / "clone")
    assert git.run(tmp_path / "clone", "rev-parse", "other") == git.run(tree, "rev-parse", "main")
    assert [path.name for path in (tmp_path / "clone").iterdir()] == [".git"]
    with pytest.raises(UserError, match="git-failed"):
        git.clone(folder, "--upload-pack=touch x", tmp_path / "more")


def test_a_token_is_for_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone of another server does not get it; without one the user's own sign-in counts."""
    monkeypatch.delenv("GITHUB_SERVER_URL", raising=False)
    settings = git.sign_in("secret")
    header = "AUTHORIZATION: basic eC1hY2Nlc3MtdG9rZW46c2VjcmV0"
    assert settings == {
        "http.https://github.com/.extraheader": header,
        "credential.helper": "",
    }
    assert git.sign_in("") == {}


def test_a_clone_takes_settings(tree: Path, tmp_path: Path) -> None:
    """Those of a sign-in go to git alone, and are not kept in the clone."""
    git.clone(tmp_path, str(tree), tmp_path / "clone", git.sign_in("secret"))
    assert "extraheader" not in (tmp_path / "clone/.git/config").read_text()


@pytest.mark.attack("Attributes leave a file out of what a preview compares with, or change it")
@pytest.mark.parametrize("attribute", ["export-ignore", "export-subst"])
def test_attributes_change_no_archive(tree: Path, tmp_path: Path, attribute: str) -> None:
    """An archive of all that a revision has, or none."""
    git.archive(tree, "HEAD", tmp_path / "whole.tar", "ml")
    (tree / "ml/.gitattributes").write_text(f"*.yml {attribute}\n")
    real(tree, "add", "-A")
    real(tree, "commit", "-qm", "attributes")
    with pytest.raises(UserError, match="export-attributes"):
        git.archive(tree, "HEAD", tmp_path / "part.tar", "ml")
