"""The files of a checkpoint's folder: the manifest, and a reader that runs no loaded code."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
)
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
_PART = 1 << 22


def rank_file(rank: int) -> str:
    """Return the name of the file with a process's own state."""
    return f"rank-{rank}.json"


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint: manifest.json."""

    step: int
    metric: float | None
    processes: int
    weights: Mapping[str, Sequence[Any]]  # tensor of a model → shape and dtype
    files: Mapping[str, str]  # name → sha256
    format: int = FORMAT


class Unusable(Exception):
    """Raised if a checkpoint is incomplete, damaged or not loadable, with the reason."""


class Foreign(Unusable):
    """Raised for an intact checkpoint of another model."""


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest with its own digest, and fsync it."""
    body = asdict(manifest)
    text = json.dumps({**body, "digest": _digest(body)}, indent=1)
    write_file(folder / MANIFEST, text)


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest; raise Unusable if it is missing, changed or of another format."""
    try:
        body = json.loads((folder / MANIFEST).read_bytes())
        digest = body.pop("digest")
        if body.get("format") != FORMAT:
            raise Unusable(f"it has the format {body.get('format')}, this code reads {FORMAT}")
        if digest != _digest(body):
            raise Unusable(f"{MANIFEST} was changed")
        return Manifest(**body)
    except FileNotFoundError:
        raise Unusable(f"it has no {MANIFEST}: writing it was interrupted") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise Unusable(f"{MANIFEST} cannot be read") from None


def check_files(
    folder: Path,
    manifest: Manifest,
    share: int = 0,
    shares: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Compare files with their sha256; raise Unusable for the first mismatch.

    Only every `shares`-th file is checked, from number `share` on. `progress` is called while
    reading.
    """
    for name, sha256 in sorted(manifest.files.items())[share::shares]:
        try:
            if digest(folder / name, progress) != sha256:
                raise Unusable(f"{name} was changed or cut short")
        except FileNotFoundError:
            raise Unusable(f"{name} is missing") from None
        except OSError as error:
            raise Unusable(f"{name} cannot be read: {error.strerror}") from None
    # Additional files are ignored: nothing opens them.


def check_weights(manifest: Manifest, weights: Mapping[str, Sequence[Any]]) -> None:
    """Raise Foreign if the checkpoint's tensors differ from `weights` in name, shape or dtype."""
    for name in sorted(manifest.weights.keys() | weights.keys()):
        saved, current = manifest.weights.get(name), weights.get(name)
        if saved is None or current is None:
            raise Foreign(f"only {'this model' if saved is None else 'the checkpoint'} has {name}")
        if list(saved) != list(current):
            raise Foreign(f"{name} is {saved} there and {current} in this model")


def digest(path: Path, progress: Callable[[], None] = lambda: None) -> str:
    """Return the hexadecimal sha256 of a file; `progress` is called while it is read."""
    sha256 = hashlib.sha256()
    with path.open("rb") as stream:
        while part := stream.read(_PART):
            sha256.update(part)
            progress()
    return sha256.hexdigest()


def write_file(path: Path, text: str) -> None:
    """Write a text file and fsync it."""
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Fsync a folder; ignore mounts that do not support it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


class Reader(FileSystemReader):  # type: ignore[misc]
    """DCP's reader with a restricted unpickler for its metadata.

    Digests only detect damage: someone who can write to the folder can also change the digests. So
    unpickling allows DCP's own classes only.
    """

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata; raise Unusable if the pickle refers to other classes than DCP's."""
        with (Path(self.path) / ".metadata").open("rb") as stream:
            metadata = _Unpickler(stream).load()
        if not isinstance(metadata, Metadata):
            raise Unusable(".metadata is not DCP's")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]
    """DCP's load planner, which calls `progress` after each tensor."""

    def __init__(self, progress: Callable[[], None]) -> None:
        super().__init__()
        self._progress = progress

    def commit_tensor(self, *args: Any, **kwargs: Any) -> None:
        """Commit a tensor and report progress."""
        super().commit_tensor(*args, **kwargs)
        self._progress()


class SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
    """DCP's save planner, which calls `progress` before each tensor."""

    def __init__(self, progress: Callable[[], None]) -> None:
        super().__init__()
        self._progress = progress

    def resolve_data(self, *args: Any, **kwargs: Any) -> Any:
        """Report progress and resolve a tensor."""
        self._progress()
        return super().resolve_data(*args, **kwargs)


_MODULES = {"torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"}
_OTHERS = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        of_dcp = module in _MODULES and "." not in name
        kind = getattr(importlib.import_module(module), name, None) if of_dcp else None
        if isinstance(kind, type) and kind.__module__ in _MODULES:
            return kind
        is_dtype = module == "torch" and name.startswith(("float", "bfloat", "int", "uint", "bool"))
        if (module, name) in _OTHERS or is_dtype:
            return super().find_class(module, name)
        raise Unusable(f".metadata names {module}.{name}")
