"""The desired state: the model version that each environment should serve, declared in a file.

The environments of TRACKED are declared in the project's release.yml, which git tracks.
`local` is declared in `.local/release/<project>.yml`, which has the same format, so that trying out
a release changes no tracked file.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path

import yaml

from ml.backends.base import Backend
from ml.core import documents, files, git, home, repository
from ml.core.errors import Exit, Place, UserError
from ml.release.declaration import edit, release_file
from ml.release.declaration.release_file import (
    SCHEMA_VERSION,
    Local,
    ReleaseEntry,
    Strategy,
    Tracked,
)

LOCAL = "local"
TRACKED = release_file.TRACKED
ENVIRONMENTS = (LOCAL, *TRACKED)
FILE = "release.yml"
# How many commits of release.yml are searched for earlier versions.
COMMITS = 50
_HEADER = "# Written by `ml release propose`; `ml release apply` brings it about.\n"
_NEW = """\
# yaml-language-server: $schema=../../release/declaration/release.schema.json
# Which model version serves in which environment: `ml release propose PROJECT --env ENV` writes it,
# a pull request reviews it, `ml release apply` brings it about, `git revert` takes it back.
schema_version: 1
environments:
"""


def path(backend: Backend, project: str, environment: str) -> Path:
    """Return the file that declares the environment, in the local home or in the repository."""
    if environment == LOCAL:
        return home.home() / "release" / f"{project}.yml"
    return backend.root / "ml" / "projects" / project / FILE


def project_lock(project: str) -> AbstractContextManager[None]:
    """Return the lock of the project's declarations: one proposal or apply at a time."""
    return files.locked(home.home() / "release" / f"{project}.lock")


def rollout_lock(
    project: str, environment: str, waiting: Callable[[], None]
) -> AbstractContextManager[None]:
    """Return the lock of the environment's rollout, which may take long; proposals do not need it.

    `waiting` is called before waiting for another apply.
    """
    return files.locked(home.home() / "release" / f"{project}.{environment}.lock", waiting)


def read(backend: Backend, project: str, environment: str) -> ReleaseEntry | None:
    """Return the declared version, or None; raise UserError when the file cannot be read."""
    file = path(backend, project, environment)
    if not file.is_file():
        return None
    kind = Local if environment == LOCAL else Tracked
    return release_file.read(file, kind).declared(environment)


def on_branch(backend: Backend, project: str, environment: str) -> Sequence[ReleaseEntry]:
    """Return the entries that commits of the branch declared for the environment, oldest first.

    Only the last `COMMITS` commits that changed release.yml are read; a merge counts as one. Empty
    for `local` and outside git. A file that cannot be parsed now is left out.
    """
    if environment == LOCAL:
        return []
    file = path(backend, project, environment)
    log = ("log", "--first-parent", f"--max-count={COMMITS}", "--format=%H", "--", file.name)
    every = []
    for commit in reversed((git.ask(file.parent, *log) or "").split()):
        text = git.ask(file.parent, "show", f"{commit}:./{file.name}")
        with suppress(UserError):
            label = f"{repository.shown(file)} at {commit[:12]}"
            entry = release_file.parse(documents.parse(text or "", label)).declared(environment)
            if entry is not None:
                every.append(entry)
    return every


def was_declared(
    backend: Backend, project: str, environment: str, digest: str, deployment_digest: str
) -> bool:
    """Return whether a commit of the branch declared the model with that serving code."""
    return any(
        entry.digest == digest and entry.deployment_digest in ("", deployment_digest)
        for entry in on_branch(backend, project, environment)
    )


def was_declared_before(
    backend: Backend, project: str, environment: str, entry: ReleaseEntry
) -> bool:
    """Return whether the declared version restores one that an earlier commit declared.

    It has the same model and serving code, and another version was declared in between. False if
    the history is missing (a shallow clone).
    """
    wanted = (entry.digest, entry.deployment_digest)
    latest_first = reversed(on_branch(backend, project, environment))
    pairs = ((earlier.digest, earlier.deployment_digest) for earlier in latest_first)
    return wanted in dropwhile(lambda pair: pair == wanted, pairs)


def decisions(backend: Backend) -> Sequence[tuple[str, str, bool]]:
    """Return (place of the declaration, hash, is_ours) for every declared decision.

    `is_ours` is whether the decision was made on this backend, so that its audit log must have it.
    If workspaces share a registry, that is the workspace with the environment's endpoint. Tracked
    files are read as committed.
    """
    rows = []
    for project in projects(backend):
        for environment in ENVIRONMENTS:
            where = "in" if environment == LOCAL else "committed in"
            history = on_branch(backend, project, environment)
            entry = history[-1] if history else None
            if environment == LOCAL:
                entry = read(backend, project, LOCAL)
            if entry is not None:
                file = repository.shown(path(backend, project, environment))
                name = f"{environment} {where} {file}"
                rows.append((name, entry.decision, _is_of(backend, environment, entry)))
    return rows


def _is_of(backend: Backend, environment: str, entry: ReleaseEntry) -> bool:
    """Return whether the declared decision was made on this backend."""
    versions = backend.registry.versions(entry.model)
    if not any(version.kept_at(entry.evidence) for version in versions):
        return False
    name = backend.endpoints.name_of(entry.model, environment)
    return backend.simulated or backend.endpoints.live(name) is not None


def reason_for(backend: Backend, project: str, environment: str, digest: str) -> str:
    """Return the declared reason to promote a model that does not beat the champion, or ""."""
    entry = read(backend, project, environment)
    return entry.reason if entry is not None and entry.digest == digest else ""


def strategy(backend: Backend, project: str, environment: str) -> Strategy:
    """Return the canary strategy: the environment's values override the project's.

    Raises UserError when release.yml cannot be read.
    """
    file = path(backend, project, "")
    return release_file.read(file).strategy(environment) if file.is_file() else Strategy()


def new_fields(backend: Backend, project: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the response fields that green may add today, and a sentence per invalid field."""
    file = path(backend, project, "")
    today = datetime.now(UTC).date()
    return release_file.new_fields(file, today) if file.is_file() else ((), ())


def place(backend: Backend, project: str, environment: str, field: str = "") -> Place:
    """Return the file and line of a field of the declaration."""
    kind = Local if environment == LOCAL else Tracked
    document = release_file.read(path(backend, project, environment), kind).document
    return document.place("environments", environment, *filter(None, [field]))


def declare(
    backend: Backend,
    project: str,
    environment: str,
    entry: ReleaseEntry,
    first: Callable[[Path], object] = lambda _: None,
) -> Path:
    """Replace the declaration atomically and return the file; an empty `entry` removes it.

    All other text of a tracked file is kept. `first` is called with the file just before the write,
    after the edit has succeeded. The caller holds the project's lock. Raise UserError if the file
    cannot be edited.
    """
    file = path(backend, project, environment)
    files.sweep(file)
    if environment == LOCAL:
        first(file)
        values = {key: value for key, value in asdict(entry).items() if value}
        declaration = {"environments": {environment: values}}
        text = yaml.safe_dump({"schema_version": SCHEMA_VERSION, **declaration}, sort_keys=False)
        files.replace(file, _HEADER + text)
        return file
    if file.is_file():
        release_file.read(file)
        text = file.read_bytes().decode("utf-8-sig")
    else:
        text = _NEW + "".join(f"  {name}: {{}}\n" for name in TRACKED)
    try:
        edited = edit.declared(text, environment, asdict(entry))
    except edit.CannotEdit as error:
        lines = "; ".join(f"{key}: {value}" for key, value in asdict(entry).items() if value)
        raise UserError.with_code(
            "cannot-edit",
            f"`{environment}` cannot be written in place: {error}",
            "an entry of its own, without anchors and merged keys",
            f"write it by hand: {lines or 'without any of these fields'}",
            Place(repository.shown(file), 1),
        ) from None
    first(file)
    files.replace(file, edited)
    return file


def check_environment(environment: str) -> str:
    """Return the environment; raise UserError if there is no such environment."""
    if environment not in ENVIRONMENTS:
        near = difflib.get_close_matches(environment, ENVIRONMENTS, 1)
        raise UserError.with_code(
            "no-such-environment",
            f"there is no environment `{environment}`",
            f"one of: {', '.join(ENVIRONMENTS)}",
            f"did you mean `{near[0]}`?" if near else "",
        )
    return environment


def place_of(environment: str, on: str | None) -> str:
    """Return the name of an environment's backend, `local` or `azure`; `on` overrides it.

    By default `local` runs on this machine and the other environments on Azure ML. With `on`
    "local" those are simulated here, each on its own endpoint, from the same release.yml. Raise
    UserError (exit 33) for `local` on Azure.
    """
    check_environment(environment)
    chosen = on or (LOCAL if environment == LOCAL else "azure")
    if environment == LOCAL != chosen:
        raise UserError.with_code(
            "local-environment",
            "the environment `local` exists only on this machine, not on Azure ML",
            f"one of: {', '.join(TRACKED)}",
            "leave --on out, or name an environment: --env dev --on azure",
            exit_code=Exit.CANNOT_HONOUR,
        )
    return chosen


def projects(backend: Backend) -> Sequence[str]:
    """Return the projects that may have a declaration, by name."""
    local = {file.stem for file in (home.home() / "release").glob("*.yml")}
    tracked = (backend.root / "ml" / "projects").glob(f"*/{FILE}")
    return sorted(local | {file.parent.name for file in tracked})
