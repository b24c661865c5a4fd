"""Write and verify the manifest of a model folder: the sha256 of every file.

LightGBM, numpy and torch load wrong numbers from a corrupt file without an error. So a folder is
verified before its model is loaded. Uses only the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

NAME = "manifest.json"
SCHEMA_VERSION = 1
DIGEST_PREFIX = "sha256:"

Reason = Literal["no-manifest", "bad-manifest", "missing", "added", "changed", "link"]
_SENTENCES: Mapping[Reason, str] = {
    "no-manifest": "the folder has no manifest, so its files cannot be checked",
    "bad-manifest": "the manifest cannot be read",
    "missing": "the manifest lists this file, but it is missing",
    "added": "this file is not in the manifest",
    "changed": "its sha256 differs from the manifest",
    "link": "it is a link; a model folder contains only files",
}


class ManifestError(Exception):
    """A model folder differs from its manifest; `file` is the relative path of the wrong file."""

    def __init__(self, folder: Path, file: str, reason: Reason) -> None:
        self.folder = folder
        self.file = file
        self.reason = reason
        super().__init__(f"{folder / file}: {_SENTENCES[reason]}")


def write_manifest(folder: Path) -> str:
    """Write `manifest.json`, which lists every file in `folder`, atomically; return the digest.

    Raises ManifestError if the folder contains a link, NotADirectoryError if it is not a folder.
    """
    temporary = folder / f".{NAME}.tmp"
    temporary.unlink(missing_ok=True)  # left by a killed process
    hashes = _hashes(folder)
    document = {"schema_version": SCHEMA_VERSION, "files": hashes}
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(document, indent=2, sort_keys=True) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(folder / NAME)
    finally:
        temporary.unlink(missing_ok=True)
    return _digest(hashes)


def verify(folder: Path, digest: str | None = None) -> str:
    """Raise ManifestError if a file is missing, added or changed; return the folder's digest.

    With `digest`, also raise ManifestError if the folder has another digest, since the manifest
    itself may have been edited.
    """
    hashes = _hashes(folder)
    listed = _listed(folder)
    for file in sorted(listed.keys() | hashes.keys()):
        if file not in hashes:
            raise ManifestError(folder, file, "missing")
        if file not in listed:
            raise ManifestError(folder, file, "added")
        if hashes[file] != listed[file]:
            raise ManifestError(folder, file, "changed")
    actual = _digest(hashes)
    if digest is not None and actual != digest:
        raise ManifestError(folder, NAME, "changed")
    return actual


def folder_digest(folder: Path) -> str:
    """Return the digest (`sha256:…`) of the names and contents of all files except the manifest."""
    return _digest(_hashes(folder))


def _digest(hashes: Mapping[str, str]) -> str:
    # JSON separates names and hashes unambiguously, whatever characters a name contains.
    canonical = json.dumps(sorted(hashes.items()), separators=(",", ":"))
    return DIGEST_PREFIX + hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def _hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 (hex) of every file except the manifest, by relative posix path."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a model folder")
    hashes: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        file = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise ManifestError(folder, file, "link")
        if path.is_file() and file != NAME:
            with path.open("rb") as stream:
                hashes[file] = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashes


def _listed(folder: Path) -> dict[str, str]:
    try:
        document = json.loads((folder / NAME).read_text(encoding="utf-8"))
        files = document["files"]
        if document["schema_version"] != SCHEMA_VERSION:
            raise ManifestError(folder, NAME, "bad-manifest")
        return {str(file): str(sha256) for file, sha256 in files.items()}
    except FileNotFoundError:
        raise ManifestError(folder, NAME, "no-manifest") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ManifestError(folder, NAME, "bad-manifest") from None
