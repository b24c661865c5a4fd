"""Find the root of a repository, its boundary and its files, and show paths in messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from ml.core import files

MARK = "pyproject.toml"
# The table under [tool] of pyproject.toml with a team's settings of this template.
TABLE = "azureml-gitops-starter"
LOCK = "requirements/main.lock"
# In a thin fork: the lock that pins the framework's wheel.
FRAMEWORK_LOCK = "requirements/framework.lock"

# The gate `order` in this file lists the environments in the order of releases.
GATES = Path("policies") / "promotion" / "gates.yml"

# The folders whose specs define the assets of the repository.
ASSETS = ("ml/", "infra/")

# Folders without specs of this repository: those of tools and of installed packages.
SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"})


def root(path: Path | None = None) -> Path:
    """Return the nearest folder with a pyproject.toml above `path` or the working directory.

    Without one, return the folder of `path`, by default the working directory.
    """
    for start in (path, Path.cwd()):
        if start is None:
            continue
        folder = _nearest(start.resolve(), (MARK,))
        if folder is not None:
            return folder
    return folder_of(path.resolve()) if path is not None else Path.cwd()


def boundary(path: Path) -> Path | None:
    """Return the folder that paths in the spec at `path` may not leave.

    It is the nearest git work tree above the spec, else the nearest folder with a pyproject.toml,
    else None.
    """
    start = path.resolve()
    return _nearest(start, (".git",)) or _nearest(start, (MARK,))


def is_root(folder: Path) -> bool:
    """Return whether a folder is the root of a repository."""
    return (folder / MARK).exists()


def lock(root: Path) -> Path:
    """Return the path of the package lock; a thin fork without one uses the framework's."""
    path = root / LOCK
    is_thin = (root / FRAMEWORK_LOCK).is_file()
    return Path(__file__).resolve().parents[2] / LOCK if is_thin and not path.is_file() else path


def environments(root: Path, part: str = "environments") -> tuple[str, ...]:
    """Return the environments in the order of releases, from policies/promotion/gates.yml.

    `part` "unordered" returns those outside that order. Names with special characters are left out,
    because commands and workflow matrices contain the names. The result is () if the file has no
    order or is invalid YAML; the checks of the file report both.
    """
    file = root / GATES
    try:
        policy = yaml.safe_load(files.content(file)) if file.is_file() else {}
        names = dict.fromkeys(map(str, policy["gates"]["order"][part]))
    except (yaml.YAMLError, KeyError, TypeError):
        return ()
    return tuple(name for name in names if re.fullmatch(r"[A-Za-z][\w-]*", name, re.ASCII))


def folder_of(path: Path) -> Path:
    """Return `path` if it is a folder, else its parent."""
    return path if path.is_dir() else path.parent


def shown(path: Path) -> str:
    """Return `path` relative to the working directory if it is below that, else unchanged."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def yaml_files(folder: Path) -> Iterator[Path]:
    """Yield the YAML files under `folder`, sorted; skip hidden folders and installed packages."""
    try:
        paths = sorted(folder.iterdir())
    except PermissionError:
        return  # a folder of another user has no spec of this repository
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            if path.name not in SKIPPED and not path.name.startswith("."):
                yield from yaml_files(path)
        elif path.suffix in {".yml", ".yaml"} and path.is_file():
            yield path


def asset_files(root: Path) -> Iterator[Path]:
    """Yield the YAML files in the folders `ASSETS` of a repository; links are not followed."""
    for folder in (root / name for name in ASSETS):
        if folder.is_dir() and not folder.is_symlink():
            yield from (path for path in yaml_files(folder) if not path.is_symlink())


@cache
def _nearest(start: Path, marks: tuple[str, ...]) -> Path | None:
    for folder in (start, *start.parents):
        if any((folder / mark).exists() for mark in marks):
            return folder
    return None
