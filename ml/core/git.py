"""Run git safely on untrusted files. No other module starts git.

A folder of a pull request may contain a repository whose settings name programs, and
`.gitattributes` may choose programs from the settings of this machine. So git never searches for a
repository: it gets the nearest `.git` above the folder, a name that git never checks out.
Environment variables, user and system settings, hooks and file system monitors are disabled;
filters do not change files, and objects that a partial clone lacks are not fetched.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ml.core.errors import Problem, UserError

# Settings in environment variables need git 2.32. From 2.38 on git itself also ignores bare
# repositories among the files; older versions rely on `--git-dir` in every call.
_OLDEST = (2, 32)
_SETTINGS = (
    "safe.bareRepository=explicit",
    "core.fsmonitor=",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "core.pager=cat",
    # This cache of the history may contradict the commits.
    "core.commitGraph=false",
    # A submodule has its own settings: compare only its commit, and run nothing in it.
    "diff.ignoreSubmodules=dirty",
    "color.ui=never",
    "i18n.logOutputEncoding=UTF-8",
    "log.showSignature=false",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
)
# Settings that name programs for filters and diffs, which .gitattributes may choose. They are
# overridden: an empty filter leaves files unchanged, and `cat` as textconv prints them.
_DRIVERS = (
    r"^(filter\..*\.(clean|smudge|process|required)|diff\.(external|.*\.(textconv|command)))$"
)
_HARMLESS = {"required": "false", "textconv": "cat", "command": "true", "external": "true"}
# Variables withheld from a program that reads untrusted content.
SECRETS = ("GH_TOKEN", "GITHUB_TOKEN")
# Ignore user and system settings, and forbid fetches: git would fetch missing objects of a partial
# clone while it reads, and a remote's settings may name programs.
_ALONE = MappingProxyType(
    {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ALLOW_PROTOCOL": ""}
)
_LONGEST_S = 600
_EXPORTED = re.compile(r"\bexport-(ignore|subst)\b")


def run(
    folder: Path,
    *words: str,
    settings: Mapping[str, str] = MappingProxyType({}),
    content: bytes = b"",
    index: Path | None = None,
) -> str:
    """Run git in a folder of a work tree and return its unmodified output.

    Bytes that are not UTF-8 become surrogates. `settings` are additional git settings, `content` is
    git's standard input, `index` replaces the index file. Raise UserError if git is missing or
    fails (for instance in a partial clone that lacks an object), and if there is no repository that
    git trusts for this user (as its owner, or by `safe.directory`).
    """
    root, directory = repository_of(folder)
    place = ("-C", str(folder), f"--git-dir={directory}", f"--work-tree={root}")
    listed = (*place, "config", "--name-only", "-z", "--get-regexp", _DRIVERS)
    names = _start(listed, _ALONE).stdout.decode(errors="surrogateescape").split("\0")[:-1]
    drivers = {name: _HARMLESS.get(name.rpartition(".")[2], "") for name in names}
    variables = {**_ALONE, **_as_variables({**drivers, **settings})}
    if index:
        variables["GIT_INDEX_FILE"] = str(index)
    return _output(place, words, variables, content)


def ask(folder: Path, *words: str) -> str | None:
    """Return the output of git without surrounding newlines; None where `run` raises UserError."""
    try:
        return run(folder, *words).strip("\n")
    except UserError:
        return None


def commit(folder: Path, revision: str) -> str | None:
    """Return the commit id of a revision; None if git does not know it.

    A branch takes precedence over a tag of the same name, unlike in git. Otherwise anyone who may
    push tags, but not merge, could redefine main by a tag `origin/main`.
    """
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options")
    names = (f"{place}{revision}^{{commit}}" for place in ("refs/remotes/", "refs/heads/", ""))
    return next(filter(None, (ask(folder, *words, name) for name in names)), None)


def archive(folder: Path, revision: str, to: Path, *paths: str) -> None:
    """Write files of a revision to the tar archive `to`: those below `paths`, by default all.

    Raise UserError as `run` does, and if attributes of the revision exclude or change files: the
    archive would then differ from the revision.
    """
    for path in run(folder, "ls-tree", "-r", "-z", "--name-only", revision).split("\0"):
        if path.rpartition("/")[2] != ".gitattributes":
            continue
        if _EXPORTED.search(run(folder, "show", f"{revision}:{path}")):
            actual = f"{path} of {revision} sets `export-ignore` or `export-subst`"
            expected = "attributes that leave the archived files as committed"
            raise UserError(
                Problem("export-attributes", actual, expected, f"edit or delete {path}")
            )
    words = ("archive", "--format=tar", "--output", str(to), revision, "--", *paths)
    run(folder, *words, settings={"tar.umask": "0022"})


def fetch(folder: Path, *words: str, settings: Mapping[str, str]) -> None:
    """Run `git fetch` with these arguments; raise UserError as `run` does.

    The user's own settings (proxy, sign-in) apply, and `settings`. Those are passed as environment
    variables, so that no other process sees them.
    """
    root, directory = repository_of(folder)
    place = (f"--git-dir={directory}", f"--work-tree={root}")
    _output(place, ("fetch", "--quiet", "--no-tags", *words), _as_variables(settings))


def sign_in(token: str) -> dict[str, str]:
    """Return git settings that send the token to GitHub and no other server; {} if it is ""."""
    if not token:
        return {}
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    return {f"http.{server}/.extraheader": f"AUTHORIZATION: basic {basic}", "credential.helper": ""}


def clone(
    folder: Path, address: str, to: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Clone the repository at an address into `to`, with all branches and without a checkout.

    An address may be relative to `folder`. The user's own git settings apply, and `settings`. Raise
    UserError if git fails.
    """
    branches = ("--origin", "origin", "-c", "remote.origin.fetch=+refs/heads/*:refs/heads/*")
    words = ("clone", "--quiet", "--no-checkout", *branches, "--", address, str(to))
    _output(("-C", str(folder)), words, _as_variables(settings) if settings else {})


def merge_lines(texts: Sequence[bytes], labels: Sequence[str]) -> tuple[bytes | None, bool]:
    """Merge three versions of a text by lines: ours, old, new.

    Return the merged text and whether it has conflicts, which have markers with the three labels.
    The text is None if an input is binary.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("ours", "old", "new")]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text)
        words = ["-C", folder, "merge-file", "--quiet", "--stdout"]
        words += [word for label in labels for word in ("-L", label)]
        nowhere = {**_ALONE, "GIT_CEILING_DIRECTORIES": str(Path(folder).resolve().parent)}
        done = _start((*words, *map(str, paths)), nowhere)
    # The number of conflicts, 127 at most.
    return (None if done.returncode > 127 else done.stdout), done.returncode > 0


def repository_of(folder: Path) -> tuple[Path, Path]:
    """Return the root of the work tree that the folder is in, and its git directory.

    Raise UserError if there is none, or if git does not trust it for this user.
    """
    start = folder.resolve()
    for root in (start, *start.parents):
        if (root / ".git").exists():
            return root, _directory(root)
    hint = "run it in a clone: git clone ADDRESS"
    raise UserError(
        Problem("no-repository", f"{start} is not in a git repository", "a clone", hint)
    )


@cache
def _directory(root: Path) -> Path:
    text = _output((), ("version",), {}).split()[2]
    if tuple(int(number) for number in re.findall(r"\d+", text)[:2]) < _OLDEST:
        expected = ".".join(map(str, _OLDEST))
        raise UserError(Problem("old-git", f"git {text}", f"git {expected} or newer", "install it"))
    # Only here the user's settings apply: `safe.directory` is one of them.
    words = ("rev-parse", "--show-toplevel", "--absolute-git-dir")
    alone = {"GIT_CEILING_DIRECTORIES": str(root.parent)}
    lines = _output(("-C", str(root)), words, alone).splitlines()
    if len(lines) != 2 or Path(lines[0]).resolve() != root or Path(lines[1]).resolve() == root:
        actual = f"the .git of {root} belongs to {' '.join(lines[:1]) or 'no work tree'}"
        expected, hint = f"a .git that belongs to {root}", "clone the repository again"
        raise UserError(Problem("no-repository", actual, expected, hint))
    return Path(lines[1])


def _as_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Return git settings as environment variables; unlike with `-c`, a name may contain `=`."""
    variables = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings.items()):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def _output(
    place: tuple[str, ...],
    words: tuple[str, ...],
    variables: Mapping[str, str],
    content: bytes = b"",
) -> str:
    done = _start((*place, *words), variables, content)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = next((line for line in lines if line.startswith("fatal:")), "".join(lines[-1:]))
        actual = f"git {words[0]}: {reason or f'exit {done.returncode}'}"
        # Another user owns the folder, as in a container; git's message names it.
        unsafe = re.search(r"dubious ownership in repository at '(.*)'", actual)
        hint = "run it in a clone of the repository"
        if re.search("transport '.*' not allowed", actual):
            hint = "git fetch --refetch --no-filter: the clone is a partial one"
        if unsafe:
            hint = f"git config --global --add safe.directory {shlex.quote(unsafe[1])}"
        raise UserError(Problem("git-failed", actual, "exit 0", hint))
    return done.stdout.decode(errors="surrogateescape")


def _start(
    words: tuple[str, ...], variables: Mapping[str, str], content: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") and name not in SECRETS
    }
    # Ignore replacement objects (`git replace`) and grafts, which could fake the merged history.
    more = {
        # Messages in English, and setting names of any bytes.
        "LC_ALL": "C",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": os.devnull,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *settings, *words],
            input=content,
            capture_output=True,
            env={**inherited, **more, **variables},
            timeout=_LONGEST_S,
        )
    except FileNotFoundError:
        hint = "install git"
        actual = "`git` is not installed"
        raise UserError(Problem("no-git", actual, "git on the PATH", hint)) from None
    except subprocess.TimeoutExpired:
        actual = f"git took more than {_LONGEST_S} s"
        expected, hint = f"an answer within {_LONGEST_S} s", "try again; if it repeats: git fsck"
        raise UserError(Problem("git-failed", actual, expected, hint)) from None
