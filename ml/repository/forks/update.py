"""`make update`: merge the template's changes since the last update into a fork.

Files that the template's copier.yml shares get a three-way merge: the version merged last, the
template's new version, and the fork. Conflicts are listed; conflicting lines get markers, which the
check of every pull request rejects. Renames are not detected. A thin fork then locks the wheel of
the new version.

The merge uses git's object store, so that the work tree gets all changes or none. First a commit
under the ref UNFINISHED records the result. Then a process that is detached from the terminal's
signals writes the files; the next call finishes an interrupted one.

    make update             changes this work tree, for you to review and commit
    make update-request     opens or updates a pull request; this work tree is unchanged
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import signal
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ml.core import git, repository
from ml.core.errors import Exit, Place, UserError, as_program
from ml.reports.pull_requests import release as page
from ml.repository.forks import wheel
from ml.repository.forks.init import (
    HEAD_OF_ANSWERS,
    WHEELS,
    lock_of,
    remove_empty,
    rules,
    wrong_call,
)
from ml.repository.forks.merge import (
    ANSWERS,
    REMOVED,
    Files,
    Merge,
    as_bytes,
    content_of,
    differences,
    own_index,
    text_of,
    tree_of,
    unchanged_since,
    write,
)
from ml.repository.github.api import GitHub

BRANCHES = "template-update/"
CONFLICT, LABELS = "conflict", "labels"
MERGED = "is merged already"
# Ref of the commit that is being written to this work tree; its message is the report. The ref is
# deleted once all files are written.
UNFINISHED = "refs/worktree/template-update"
# Ref that is then set to the same commit, and deleted once the report is printed.
UNREPORTED = "refs/worktree/template-update-untold"
# The files that record the merged version: they are written last.
_LAST = (repository.FRAMEWORK_LOCK, ANSWERS)
_RELEASE = re.compile(r"v(\d+(?:\.\d+)*(?:(?:a|b|rc|\.post|\.dev)\d+)*)", re.ASCII)
_LOCKED = re.compile(
    rf"(?:\./({WHEELS}/[\w.+-]+\.whl)|{wheel.NAME} @ (https?://\S+))"
    r" --hash=sha256:([0-9a-f]{64})",
    re.ASCII,
)
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@dataclass(frozen=True)
class Update:
    """The result of merging a template version into a fork."""

    before: str  # the template's version that was merged last
    after: str
    commit: str = ""  # the merged files, on top of HEAD; "" if there is nothing to merge
    conflicts: Mapping[str, str] = field(default_factory=dict)  # file → why it needs a decision
    # Files that the template changed and the team removed: they stay removed.
    stay_removed: Sequence[str] = ()

    def __str__(self) -> str:
        if self.before == self.after:
            return f"{self.after} of the template {MERGED}"
        return "\n".join(
            [
                f"{self.before} → {self.after}",
                *(f"{CONFLICT}: {name}: {why}" for name, why in self.conflicts.items()),
                *(f"{name}: you removed it; the template changed it" for name in self.stay_removed),
            ]
        )


def update(
    root: Path,
    revision: str = "",
    source: str = "",
    tell: Callable[[str], object] = lambda text: None,
) -> str:
    """Merge a version of the template, by default its newest, into the clean work tree at `root`.

    `source` is the address or file of the wheel to lock. By default, that is the release's wheel if
    the current lock has an address, else a wheel built from the template. Passes the report to
    `tell` and returns it. If an earlier call was interrupted before its report, this call only
    finishes the earlier one. Raises UserError for uncommitted changes, invalid answers or lock, and
    an unknown version; the work tree is then unchanged.
    """
    _answers(root)
    _resume(root)
    if not _commit_at(root, UNREPORTED):
        text = _updated(root, revision, source)
        if not _commit_at(root, UNREPORTED):
            tell(text)
            return text
    text = git.run(root, "log", "-1", "--format=%B", UNREPORTED).strip()
    tell(text)
    git.run(root, "update-ref", "-d", UNREPORTED)
    return text


def _updated(root: Path, revision: str, source: str) -> str:
    if changes := git.run(root, "status", "--porcelain", "--untracked-files=all").splitlines():
        actual = f"{len(changes)} files that are not committed, such as {changes[0][3:]}"
        hint = "git status; then git stash --include-untracked, or commit your changes"
        raise wrong_call("uncommitted", actual, "a work tree without uncommitted changes", hint)
    result = merged(root, revision, source)
    if result.commit:
        _demand_free(root, f"{result.commit}^", result.commit)
        git.run(root, "update-ref", UNFINISHED, result.commit, "0" * 40)
        _detached(lambda: finish(root))
    return str(result)


def merged(root: Path, revision: str = "", source: str = "") -> Update:
    """Merge a version of the template with the commit of HEAD, ignoring the work tree.

    Raises UserError if the fork's answers, its lock or the template are invalid.
    """
    answers = _answers(root)
    head = git.run(root, "rev-parse", "HEAD").strip()
    with _clone(root, answers["_src_path"]) as template:
        before, full = answers["_commit"], answers["full"]
        old = _commit(template, before)
        former = ("", "") if full else _demand_lock(root, template, before, old)
        after = revision or _newest(template, before)
        new = _commit(template, after)
        if old == new:
            return Update(before, before)
        if not _tags(template, after):
            words = ("describe", "--tags", "--always", "--abbrev=40", new)
            after = git.run(template, *words).strip()
        left_before, _ = rules(text_of(template, old, "copier.yml"), full)
        left_out, is_own = rules(text_of(template, new, "copier.yml"), full)
        merge = Merge(
            root,
            template,
            tree_of(template, old, lambda name: not left_before(name) and not is_own(name)),
            tree_of(root, head),
            tree_of(template, new, lambda name: not left_out(name) and not is_own(name)),
        )
        merge.run()
        if REMOVED in merge.conflicts.values():
            moved = _moved(template, old, new)
            for name in {*moved} & {*merge.conflicts}:
                merge.conflicts[name] = f"you edited it; the template moved it to {moved[name]}"
        if not full:
            merge.files |= _locked(template, former, after, new, source)
        text = HEAD_OF_ANSWERS + yaml.safe_dump({**answers, "_commit": after})
        merge.files[ANSWERS] = ("100644", text.encode())
        conflicts = dict(sorted(merge.conflicts.items()))
        result = Update(before, after, "", conflicts, tuple(sorted(merge.stay_removed)))
        return replace(result, commit=write(root, head, merge.files, str(result)))


# The fork's answers and lock.


def _answers(root: Path) -> dict[str, Any]:
    place = Place(ANSWERS, 1)
    if ANSWERS not in tree_of(root, "HEAD"):
        hint = "make init, in a clone of the template"
        expected = "a repository in which `make init` has run and was committed"
        raise wrong_call("no-fork", f"the last commit has no {ANSWERS}", expected, hint)
    try:
        answers = yaml.safe_load(text_of(root, "HEAD", ANSWERS))
        fits = {"_commit": str, "_src_path": str, "full": bool}
        if all(type(answers[name]) is kind and answers[name] != "" for name, kind in fits.items()):
            return {str(name): value for name, value in answers.items()}
        actual = f"{answers}"[:200]
    except (
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        actual = " ".join(str(error).split())[:200]
    expected = "_commit (the template's version), _src_path (its address) and full (true or false)"
    hint = f"git log -- {ANSWERS}, then git checkout COMMIT -- {ANSWERS}"
    raise wrong_call("bad-answers", actual, expected, hint, place)


def _locked(
    template: Path, former: tuple[str, str], revision: str, commit: str, source: str
) -> Files:
    """Return the file changes that lock a revision's wheel: the lock, the new and old wheel files.

    `former` is the path and the address of the currently locked wheel, one of them "". Raises
    UserError if the wheel's version is not the revision's.
    """
    path, address = former
    if source:
        text, files = lock_of(source if "://" in source else Path(source))
    elif address:
        old, new = wheel.version_in(address), _RELEASE.fullmatch(revision)
        if not old or not new:
            hint = "make update TO=v1.2.3, or WHEEL= with the address of a wheel"
            raise wrong_call("no-release", f"{revision} is no release", "a tag", hint)
        text, files = lock_of(address.replace(old, new[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            text, files = lock_of(wheel.build(template, Path(folder), commit))
    match, expected = _LOCKED.search(text), _version(template, commit)
    if not match or wheel.version_in(match[1] or match[2]) != expected:
        hint = f"make update TO={revision} without WHEEL, or WHEEL= of {expected}"
        actual = text.splitlines()[-1][:200]
        raise wrong_call("wheel-mismatch", actual, f"{expected}, the version of {revision}", hint)
    gone: Files = {path: None} if path else {}
    wheels: Files = {name: ("100644", content) for name, content in files.items()}
    return {**gone, **wheels, repository.FRAMEWORK_LOCK: ("100644", text.encode())}


def _demand_lock(root: Path, template: Path, version: str, commit: str) -> tuple[str, str]:
    """Return the path and the address of the locked wheel; one of them is "".

    Raises UserError unless the lock is valid and has the template's version at `commit`, which was
    merged last.
    """
    name = repository.FRAMEWORK_LOCK
    entries = tree_of(root, "HEAD")
    text = text_of(root, "HEAD", name) if name in entries else ""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    match = _LOCKED.fullmatch(lines[0]) if len(lines) == 1 else None
    expected, actual = _version(template, commit), ""
    if not match:
        actual = f"{lines[0][:200] if lines else 'no lock'}"
    elif wheel.version_in(match[1] or match[2]) != expected:
        actual = f"the wheel {(match[1] or match[2]).rpartition('/')[2]}"
    elif match[1] and match[1] not in entries:
        actual = f"no file {match[1]}"
    elif match[1]:
        content = content_of(root, entries[match[1]][1])
        if hashlib.sha256(content).hexdigest() != match[3]:
            actual = f"{match[1]} has another SHA-256 than the lock"
        else:
            wheel.demand_version(content, match[1])
    if actual or not match:
        hint = f"git log -- {name}, then git checkout COMMIT -- {name} {WHEELS}"
        wanted = f"the locked wheel of {expected}: {ANSWERS} says that {version} was merged last"
        raise wrong_call("lock-mismatch", actual, wanted, hint, Place(name, 1))
    return match[1] or "", match[2] or ""


# The template.


@contextmanager
def _clone(root: Path, address: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "template"
        git.clone(root, address, clone, git.sign_in(os.environ.get("TEMPLATE_TOKEN", "")))
        yield clone


def _newest(template: Path, merged_last: str) -> str:
    """Return the version to merge: the highest release's tag, or "HEAD" without a release.

    If `merged_last` contains that release already, return `merged_last`.
    """
    names = git.run(template, "tag", "--list", "v*").split()
    releases = [
        name for name in names if _RELEASE.fullmatch(name) and not re.search("[a-z]", name[1:])
    ]
    if not releases:
        return "HEAD"
    newest = max(releases, key=lambda name: [int(part) for part in name[1:].split(".")])
    last = _commit(template, merged_last)
    words = ("merge-base", "--is-ancestor", _commit(template, newest), last)
    return newest if git.ask(template, *words) is None else merged_last


def _tags(template: Path, name: str) -> bool:
    return bool(git.run(template, "tag", "--list", "--", name).strip())


def _commit(template: Path, name: str) -> str:
    try:
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        return git.run(template, *words).strip()
    except UserError:
        hint = f"make update TO=v1.2.3; {ANSWERS} has the template's address and last version"
        actual = f"the template has no version `{name}`"
        raise wrong_call("unknown-version", actual, "a tag or commit of it", hint) from None


def _version(template: Path, commit: str) -> str:
    """Return the version in pyproject.toml at a commit; raise UserError if it has none."""
    try:
        project = tomllib.loads(text_of(template, commit, "pyproject.toml"))["project"]
        return str(project["version"])
    except (tomllib.TOMLDecodeError, KeyError, TypeError):
        place = Place("pyproject.toml", 1)
        actual = f"pyproject.toml at {commit} has no version"
        expected, hint = "a commit of the template", "make update TO=VERSION"
        raise wrong_call("no-template", actual, expected, hint, place) from None


def _moved(template: Path, old: str, new: str) -> dict[str, str]:
    """Return the old path of each file that the template moved → its new path."""
    words = ("--find-renames", "--diff-filter=R", "--name-status", "-z", old, new)
    parts = git.run(template, "diff", *words).split("\0")
    return dict(zip(parts[1::3], parts[2::3], strict=False))


# The work tree.


def _commit_at(root: Path, ref: str) -> str:
    return git.run(root, "for-each-ref", "--format=%(objectname)", ref).strip()


def _resume(root: Path) -> None:
    """Finish an interrupted update, if there is one.

    The update is discarded instead if none of its files was written yet, or if HEAD has changed.
    """
    if not _commit_at(root, UNFINISHED):
        return
    before, after = git.run(root, "rev-parse", f"{UNFINISHED}^", UNFINISHED).split()
    changed = {*differences(root, before, after)}
    is_on = git.run(root, "rev-parse", "HEAD").strip() == before
    if not is_on or unchanged_since(root, before, changed) == changed:
        git.run(root, "update-ref", "-d", UNFINISHED, after)
        return
    finish(root)


def _detached(work: Callable[[], None]) -> None:
    """Run `work` in a child process that survives if this process or its group is killed.

    Waits for the child. Raises UserError if it fails.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process = os.fork()
        if not process:
            failed = True
            try:
                os.setsid()
                work()
                failed = False
            except UserError as refused:
                os.write(2, f"{refused}\n".encode())
            finally:
                os._exit(failed)
        failed = os.waitpid(process, 0)[1] != 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    if failed:
        actual, hint = "some files of the update were not written", "run `make update` again"
        raise wrong_call("update-unfinished", actual, "all files written", hint)


def finish(root: Path) -> None:
    """Write the files of the UNFINISHED commit to the work tree; some may be written already.

    Raises UserError, with nothing written, if a file differs from both the old and the new commit.
    """
    before, after = git.run(root, "rev-parse", f"{UNFINISHED}^", UNFINISHED).split()
    _demand_free(root, before, after)
    changed = {*differences(root, before, after)}
    with own_index(root, after) as index:
        present = {*git.run(root, "ls-files", "--cached", "-z", index=index).split("\0")}
        for name in changed - present:
            (root / name).unlink(missing_ok=True)
            remove_empty(root, (root / name).parent)
        names = sorted(changed & present, key=lambda name: (name in _LAST, name == ANSWERS, name))
        listed = as_bytes("".join(f"{name}\0" for name in names))
        git.run(root, "checkout-index", "--force", "--stdin", "-z", content=listed, index=index)
    refs = f"update {UNREPORTED} {after}\ndelete {UNFINISHED} {after}\n"
    git.run(root, "update-ref", "--stdin", content=refs.encode())


def _demand_free(root: Path, before: str, after: str) -> None:
    """Raise UserError if a file that the update writes differs from both commits."""
    changed = differences(root, before, after)
    edited = (
        {*changed} - unchanged_since(root, before, changed) - unchanged_since(root, after, changed)
    )
    if edited:
        actual = f"{', '.join(sorted(edited)[:9])}: differs from HEAD and from the update"
        hint = "move your file away; git checkout FILE where it is committed; then make update"
        raise wrong_call("file-conflict", actual, "files without uncommitted changes", hint)


# The pull request.


def request(root: Path, github: GitHub, revision: str = "", source: str = "") -> str:
    """Open or update the pull request of a template update; return what was done.

    Each version has its own branch, so a pull request that somebody closed stays closed. Pull
    requests of older versions are closed, except those with commits of other authors.
    """
    result = merged(root, revision, source)
    if not result.commit:
        return str(result)
    branch = f"{BRANCHES}{result.after}"
    pulls = {
        str(pull["head"]["ref"]): pull
        for pull in github.pages("pulls", state="open")
        if (pull["head"].get("repo") or {}).get("full_name") == github.repository
        and str(pull["head"]["ref"]).startswith(BRANCHES)
    }
    current = pulls.pop(branch, None)
    if current and (authors := _other_authors(github, current)):
        return f"pull request {current['number']} has commits of {authors}, and stays as it is"
    files, modes = _contents(root, result.commit)
    title, body = page.update_request(
        result.before, result.after, result.conflicts, result.stay_removed
    )
    base = git.run(root, "rev-parse", f"{result.commit}^").strip()
    number, done = github.keep_pull_request(branch, title, body, files, base, modes)
    if result.conflicts:
        github.send("POST", f"issues/{number}/{LABELS}", {LABELS: [CONFLICT]})
    for pull in pulls.values():
        done += f"; {_close_superseded(github, pull, number)}"
    return done


def _other_authors(github: GitHub, pull: Mapping[str, Any]) -> str:
    """Return the accounts, besides the app that opened it, with commits on a pull request; or "".

    `web-flow`, as which GitHub's API commits, does not count. A person who opened the pull request
    counts, and so does an author without a GitHub account.
    """
    login = str((pull.get("user") or {}).get("login"))
    bots = {"web-flow", *([login] if login.endswith("[bot]") else [])}
    names = {
        str((commit[role] or {}).get("login") or "an unknown account")
        for commit in github.pages(f"pulls/{pull['number']}/commits")
        for role in ("author", "committer")
    }
    return ", ".join(sorted(names - bots))


def _close_superseded(github: GitHub, pull: Mapping[str, Any], newer: int) -> str:
    """Close the pull request of an older version; return what was done.

    If it has commits of other authors, it stays open and gets one comment about the newer version.
    """
    number = pull["number"]
    authors = _other_authors(github, pull)
    if not authors:
        github.send("PATCH", f"pulls/{number}", {"state": "closed"})
        return f"{number} is closed"
    marker = f"<!-- {BRANCHES}{newer} -->"
    comments = github.pages(f"issues/{number}/comments")
    if not any(str(comment["body"]).startswith(marker) for comment in comments):
        text = f"{marker}\n{page.replaced_update(newer, authors)}"
        github.send("POST", f"issues/{number}/comments", {"body": text})
    return f"{number} has commits of {authors}, and stays open"


def _contents(root: Path, commit: str) -> tuple[dict[str, str | bytes | None], dict[str, str]]:
    """Return the paths that a commit changes → content (None if removed), and → git mode."""
    entries = tree_of(root, commit)
    files: dict[str, str | bytes | None] = {}
    for name in differences(root, f"{commit}^", commit):
        content = content_of(root, entries[name][1]) if name in entries else None
        try:
            files[name] = content and content.decode()
        except UnicodeDecodeError:
            files[name] = content
    return files, {name: entries[name][0] for name in files if name in entries}


@as_program
def main(argv: Sequence[str] | None = None) -> int | None:
    """Run `make update`; exit with 1 if conflicts need a decision."""
    parser = argparse.ArgumentParser(prog="update", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", default="", help="A version of the template; else the newest.")
    parser.add_argument("--wheel", default="", help="The address or the file of its wheel.")
    parser.add_argument("--pull-request", action="store_true", help="Keep one on GitHub.")
    options = parser.parse_args(argv)
    root = repository.root()
    try:
        if options.pull_request:
            print(request(root, GitHub.of_workflow(), options.to, options.wheel))
            return None
        text = update(root, options.to, options.wheel, lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    if text.endswith(MERGED):
        return None
    if (root / repository.FRAMEWORK_LOCK).exists() and (root / repository.LOCK).exists():
        print(f"{repository.LOCK} is of the former version: make lock")
    print("next: git diff; make test; git commit")
    return Exit.RUN_FAILED if f"\n{CONFLICT}: " in text else None


if __name__ == "__main__":
    sys.exit(main())
