"""Disk space that runs take: what may be removed, and which limit applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ItemKind = Literal["run", "outputs", "snapshot", "environment", "model", "reuse", "leftover"]


@dataclass(frozen=True)
class Needed:
    """What has to stay, each with the reason: paths (and all below them), and runs by MLflow id.

    `models` is the folder of stored model copies, one a digest.
    """

    paths: Mapping[Path, str]
    runs: Mapping[str, str]
    models: Path


@dataclass(frozen=True)
class Item:
    """Something to remove: its paths, their size in bytes, and why it may be removed."""

    kind: ItemKind
    name: str
    paths: tuple[Path, ...]
    size: int
    why: str


@dataclass(frozen=True)
class Cleaning:
    """What is removed, the bytes that this frees, and why requested runs stay (by name)."""

    items: tuple[Item, ...]
    frees: int
    stay: Mapping[str, str]


@dataclass(frozen=True)
class Usage:
    """Bytes in use, the limit in bytes (None: no limit), and what is removed to keep it."""

    taken: int
    limit: float | None
    cleaning: Cleaning

    @property
    def is_over(self) -> bool:
        """Whether more than the limit is in use."""
        return self.limit is not None and self.taken > self.limit
