"""Resolves the references in a spec: files, and assets by `azureml:name:version`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from ml.core import faults, home, repository
from ml.core.documents import Document, Key, read
from ml.core.errors import UserError
from ml.core.names import check, is_name
from ml.specs.assets.ignore_file import IgnoreFile
from ml.specs.kinds import kind_of
from ml.specs.yaml_node import YamlNode

ASSET_FAMILIES = frozenset(
    {"data", "environment", "model", "component", "feature_store_entity", "feature_set"}
)

_SHORT = re.compile(r"azureml:(?P<name>[^:@/]+)(?::(?P<version>[^:@/]+)|@(?P<label>[^:@/]+))?$")
# The file that describes an asset which a run registered, in a folder kind/name/version.
REGISTERED = "asset.yml"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\\)")
# System folders that a spec outside a repository must not reference.
_SYSTEM = tuple(
    map(Path, ("/etc", "/proc", "/sys", "/dev", "/root", "/boot", "/run", "/usr", "/bin", "/sbin"))
)
_PRIVATE = frozenset({".ssh", ".aws", ".azure", ".gnupg", ".kube", ".netrc", ".docker"})


@dataclass(frozen=True)
class AssetReference:
    """A parsed reference: `azureml:name:version` or `azureml:name@label`."""

    name: str
    version: str = ""
    label: str = ""  # neither version nor label: the newest version


@dataclass(frozen=True, kw_only=True)
class AssetSpec(YamlNode):
    """A spec file that defines an asset."""

    kind: str
    name: str
    version: str

    @property
    def path(self) -> Path | None:
        """Return the local path of the asset's data; None if its `path` is remote.

        For remote data, this is the copy at `data/NAME/VERSION` in the home folder, if it exists.
        """
        written = self.get("path")
        if not isinstance(written, str):
            return None
        here = local_path(written, self.file.parent)
        if here is None and (copy := local_copy_path(self.name, self.version)).exists():
            return copy
        return here

    def tag(self, name: str) -> str:
        """Return the tag of that name; "" if there is none."""
        return str(self.mapping("tags").get(name) or "")


def parse(text: str) -> AssetReference | None:
    """Parse a short reference; return None for a path, a URL or a full resource id."""
    match = _SHORT.match(text)
    if match is None:
        return None
    return AssetReference(match["name"], match["version"] or "", match["label"] or "")


def local_copy_path(name: str, version: str) -> Path:
    """Return the path of a local copy of a remote data asset, which may not exist."""
    return home.home() / "data" / check("asset", name) / check("version", version)


def local_path(written: str, folder: Path) -> Path | None:
    """Return the path of `written`, relative to `folder`; None if it is a URL or git reference."""
    text = written.removeprefix("file://").removeprefix("file:")
    if _URI.match(text) or text.startswith("git+"):
        return None
    return Path(folder, text)


def read_referenced(written: str, folder: Path) -> YamlNode | None:
    """Return the YAML file at the path `written`, relative to `folder`; None if unreadable."""
    path = local_path(written, folder)
    try:
        if path is not None and path.is_file():
            stat = path.stat()
            return YamlNode(
                _read(path, repository.shown(path), stat.st_mtime_ns, stat.st_size), path
            )
    except (OSError, ValueError, UserError):
        pass
    return None


@lru_cache(maxsize=256)
def _read(path: Path, display_path: str, mtime_ns: int, size: int) -> Document:
    """Read a YAML file; cached by modification time and size, since many specs name the same."""
    return read(path, display_path)


def component(owner: YamlNode, key: Key, root: Path) -> YamlNode | None:
    """Return the component that `owner` references at `key` (`component` or `trial`).

    It is inline, a file, or an asset of the repository `root`. None if it is in a workspace or a
    registry, or if the key is missing.
    """
    written = owner.get(key)
    if isinstance(written, dict):
        return owner.child(key)
    if not isinstance(written, str):
        return None
    return read_referenced(written, owner.folder) or find(written, "component", root)


def find(text: str, kind: str, root: Path, store: Path | None = None) -> AssetSpec | None:
    """Return the spec of the asset that `text` references; None if there is none.

    `@latest` and a missing version select the newest; 10 is newer than 9. The repository's specs
    and the folder `store`, where local runs register assets, are searched. For equal versions, the
    repository's spec wins.
    """
    reference = parse(text)
    if reference is None or reference.label not in {"", "latest"}:
        return None
    specs = [spec for spec in definitions(root) if (spec.kind, spec.name) == (kind, reference.name)]
    is_named = is_name("asset", reference.name) and is_name("version", reference.version or "1")
    if store and is_named:
        pattern = f"{kind}/{reference.name}/{reference.version or '*'}/{REGISTERED}"
        specs += [read_registered(file.parent) for file in store.glob(pattern)]
    if reference.version:
        specs = [spec for spec in specs if spec.version == reference.version]
    return max(specs, key=lambda spec: version_key(spec.version), default=None)


def read_registered(folder: Path) -> AssetSpec:
    """Read the asset that a run registered in a folder kind/name/version."""
    (kind, name, version), file = folder.parts[-3:], folder / REGISTERED
    document = read(file)
    return AssetSpec(document, file, kind=kind, name=name, version=version)


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for versions: numbers by value, other parts before them."""
    parts = re.split(r"[.\-_]", version)
    return tuple((1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts)


def definitions(root: Path) -> tuple[AssetSpec, ...]:
    """Return every asset that the repository's specs define; cached until a file changes.

    Only specs under `ml/` and `infra/` count: no test fixtures, examples or symbolic links.
    Outside a repository, only the specs directly in `root` count.
    """
    listed = _listed.get()
    if listed is None:
        return _definitions(root, tuple(_stamps(root)))
    if root not in listed:
        listed[root] = _definitions(root, tuple(_stamps(root)))
    return listed[root]


@contextmanager
def listed_once() -> Iterator[None]:
    """Cache `definitions` per repository inside this context, where no file may change."""
    if _listed.get() is not None:
        yield
        return
    token = _listed.set({})
    try:
        yield
    finally:
        _listed.reset(token)


_listed = ContextVar[dict[Path, tuple[AssetSpec, ...]] | None]("listed", default=None)


def digest(path: Path) -> str:
    """Return the sha256 (hex) of a file, or of a folder's sorted relative names and contents."""
    total = hashlib.sha256()
    if path.is_file():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        total.update(f"{file.relative_to(path).as_posix()}\0{digest(file)}\n".encode())
    return total.hexdigest()


def _stamps(root: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield each file that may define an asset, its modification time (ns) and size (bytes)."""
    if repository.is_root(root):
        paths = repository.asset_files(root)
    else:
        paths = (path for path in sorted(root.glob("*.y*ml")) if path.is_file())
    for path in paths:
        stat = path.stat()
        yield path, stat.st_mtime_ns, stat.st_size


@cache
def _definitions(root: Path, stamps: tuple[tuple[Path, int, int], ...]) -> tuple[AssetSpec, ...]:
    specs = []
    for path, _, _ in stamps:
        try:
            document = read(path)
        except UserError:
            continue  # `ml check` reports it
        kind = kind_of(document.data)
        name = document.get("name")
        if kind is not None and kind.family in ASSET_FAMILIES and isinstance(name, str):
            written = document.get("version")
            version = "1" if written is None else str(written)
            specs.append(AssetSpec(document, path, kind=kind.family, name=name, version=version))
    return tuple(specs)


class Links:
    """Resolves symbolic links, and caches the results: many specs share one `code:` folder."""

    def __init__(self) -> None:
        self._escapes: dict[tuple[Path, ...], list[tuple[Path, Path]]] = {}
        self._real: dict[str, Path] = {}

    def escape(self, written: Path, folder: Path, boundary: Path | None) -> Path | None:
        """Return the real path of `written`, relative to `folder`, if it is forbidden; else None.

        With a `boundary`, every path outside it is forbidden. Without one: system folders, private
        folders such as `.ssh`, and links out of `folder`.
        """
        base = self.real(folder)
        lexical = Path(os.path.normpath(base / written))
        real = self.real(lexical)
        if boundary is not None:
            return None if real.is_relative_to(self.real(boundary)) else real
        if _is_private(real, base):
            return real
        climbs = [part for part in written.parts if part != "."]
        after = next((part for part in climbs if part != ".."), "")
        if ".." in climbs and f"/{after}" in {"/etc", "/proc", "/root", "/sys"}:
            return real
        through_link = lexical.is_relative_to(base) and not real.is_relative_to(base)
        return real if through_link else None

    def real(self, path: Path) -> Path:
        """Return `path` with its links followed."""
        if (key := str(path)) not in self._real:
            self._real[key] = Path(os.path.realpath(path))
        return self._real[key]

    def escapes_inside(
        self, top: Path, folder: Path, boundary: Path | None
    ) -> Iterator[tuple[Path, Path]]:
        """Yield (link, target) of each link below `top` that leaves `boundary` (None: `folder`)."""
        allowed = (self.real(boundary),) if boundary else (self.real(folder), self.real(top))
        if (key := (self.real(top), *allowed)) not in self._escapes:
            with faults.as_user_errors():
                entries = IgnoreFile(key[0]).entries({home.home()}, allowed)
                self._escapes[key] = [(link, real) for _, link, real in entries if real is not None]
        yield from self._escapes[key]


def _is_private(real: Path, base: Path) -> bool:
    if any(real.is_relative_to(place) and not base.is_relative_to(place) for place in _SYSTEM):
        return True
    return bool(_PRIVATE & set(real.parts) - set(base.parts))
