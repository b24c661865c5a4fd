"""Data, environment and model specs of the repository, found by `azureml:name:version`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Document, read
from ml.core.errors import Place, Refused
from ml.specs.check.kinds import kind_of

KINDS = frozenset({"data", "environment", "model", "component"})

_SHORT = re.compile(r"azureml:(?P<name>[^:@/]+)(?::(?P<version>[^:@/]+)|@(?P<label>[^:@/]+))?$")
# "letters, numbers, dashes and underscores", as Azure ML's data, models and versions are named;
# dots are in versions and in names of older assets.
_NAME = re.compile(r"[A-Za-z0-9_][\w.\-]{0,254}$", re.ASCII)
# The file that describes an asset which a run registered, in a folder kind/name/version.
REGISTERED = "asset.yml"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\\)")


@dataclass(frozen=True)
class Reference:
    """`azureml:name:version` or `azureml:name@label`, taken apart; neither means the newest."""

    name: str
    version: str = ""
    label: str = ""


@dataclass(frozen=True)
class AssetSpec:
    """A spec file in the repository that defines an asset."""

    kind: str
    name: str
    version: str
    document: Document
    file: Path

    @property
    def path(self) -> Path | None:
        """The local path of the asset's data; None when its `path` is remote."""
        written = self.document.get("path")
        return local(written, self.file.parent) if isinstance(written, str) else None

    def get(self, *keys: str) -> Any:
        """A field of the spec as it is written."""
        return self.document.get(*keys)

    def tag(self, name: str) -> str:
        """The tag of that name; "" when there is none."""
        return str((self.document.get("tags") or {}).get(name) or "")

    def place(self, *keys: str) -> Place:
        """The line of that field."""
        return self.document.place(*keys)


def parse(text: str) -> Reference | None:
    """The parts of a short reference; None for a path, a URL or a full resource id."""
    match = _SHORT.match(text)
    if match is None:
        return None
    return Reference(match["name"], match["version"] or "", match["label"] or "")


def local(written: str, folder: Path) -> Path | None:
    """The absolute path that `written` means beside a spec in `folder`; None when it is remote."""
    text = written.removeprefix("file://").removeprefix("file:")
    if _URI.match(text) or text.startswith("git+"):
        return None
    return Path(folder, text)


def find(text: str, kind: str, root: Path) -> AssetSpec | None:
    """The repository's spec of that asset; `@latest` and no version mean the newest.

    Versions compare number by number, so that 10 is newer than 9.
    """
    reference = parse(text)
    if reference is None or reference.label not in {"", "latest"}:
        return None
    versions = [spec for spec in known(root) if (spec.kind, spec.name) == (kind, reference.name)]
    if reference.version:
        versions = [spec for spec in versions if spec.version == reference.version]
    return max(versions, key=lambda spec: newness(spec.version), default=None)


def is_name(text: str) -> bool:
    """Whether a text is a valid name of an asset or a version."""
    return _NAME.match(text) is not None


def registered(text: str, kind: str, store: Path | None) -> AssetSpec | None:
    """As `find`, among those that runs on this machine registered in the folder `store`."""
    reference = parse(text)
    if store is None or reference is None or reference.label not in {"", "latest"}:
        return None
    if not is_name(reference.name) or not is_name(reference.version or "1"):
        return None
    versions = [
        AssetSpec(kind, reference.name, path.parent.name, read(path, repository.shown(path)), path)
        for path in store.glob(f"{kind}/{reference.name}/{reference.version or '*'}/{REGISTERED}")
    ]
    return max(versions, key=lambda spec: newness(spec.version), default=None)


def newness(version: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key for versions: numbers by value, other parts before them."""
    parts = re.split(r"[.\-_]", version)
    return tuple((1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts)


def known(root: Path) -> tuple[AssetSpec, ...]:
    """Every asset that a spec under `root` defines; read again only when a file changes.

    Outside of a repository, only the specs directly in the folder count.
    """
    return _known(root, tuple(_stamps(root)))


def digest(path: Path) -> str:
    """sha256 (hex) of a file, or of a folder's files: relative names and contents, sorted."""
    total = hashlib.sha256()
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        total.update(f"{file.relative_to(path).as_posix()}\0{digest(file)}\n".encode())
    return total.hexdigest()


def _stamps(root: Path) -> Iterator[tuple[Path, int, int]]:
    beside = (path for path in sorted(root.glob("*.y*ml")) if path.is_file())
    for path in repository.yaml_files(root) if repository.is_root(root) else beside:
        stat = path.stat()
        yield path, stat.st_mtime_ns, stat.st_size


@cache
def _known(root: Path, stamps: tuple[tuple[Path, int, int], ...]) -> tuple[AssetSpec, ...]:
    assets = []
    for path, _, _ in stamps:
        try:
            document = read(path, repository.shown(path))
        except Refused:
            continue  # `ml check` reports it
        kind = kind_of(document.data)
        name = document.get("name")
        if kind is not None and kind.family in KINDS and isinstance(name, str):
            version = document.get("version")
            written = "1" if version is None else str(version)
            assets.append(AssetSpec(kind.family, name, written, document, path))
    return tuple(assets)
