"""Fencing: only the newest start of a training may change its folder of checkpoints.

Each start (a rendezvous round of torchrun, a restarted job) claims the next generation number by
creating a folder such as `.generations/00000007`, and renames the folders of older generations. A
writer prepares every change in its own folder. It publishes by renaming out of that folder and
removes by renaming into it. Once its folder is renamed, all its changes fail.

It needs a file system where mkdir fails if the folder exists and renaming a folder is atomic.
"""

from __future__ import annotations

import itertools
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Self
from uuid import uuid4

FOLDER = ".generations"
_FENCED, _WITHDRAWN = ".fenced-", ".withdrawn"


class Superseded(Exception):
    """Raised if a newer generation has started, so this one must not change the folder."""


class Generation:
    """The exclusive right of one start to change `folder`, until a newer generation starts."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self.number = folder, number
        self.path = folder / FOLDER / f"{number:08}"  # changes are prepared here

    @classmethod
    def claim(cls, folder: Path) -> Self:
        """Start the next generation and clean up after the older ones.

        Keep what they published, restore what they withdrew without a replacement, and delete the
        rest.
        """
        generations = folder / FOLDER
        generations.mkdir(parents=True, exist_ok=True)
        names = (path.name.partition(_FENCED)[0] for path in generations.iterdir())
        for number in itertools.count(max(map(int, names), default=0) + 1):
            generation = cls(folder, number)
            with suppress(FileExistsError):
                generation.path.mkdir()
                break
        for path in sorted(generations.iterdir()):
            if path.name.isdecimal() and int(path.name) < generation.number:
                # A concurrent claim may have renamed it already.
                with suppress(FileNotFoundError):
                    path.rename(path.with_name(f"{path.name}{_FENCED}{uuid4().hex}"))
        for path in generations.glob(f"*{_FENCED}*"):
            _clear(path, folder)
            shutil.rmtree(path, ignore_errors=True)
        return generation

    @property
    def newest(self) -> int:
        """The number of the newest generation, or 0 if none is visible."""
        paths = (self._folder / FOLDER).glob("*")
        return max((int(path.name) for path in paths if path.name.isdecimal()), default=0)

    def demand(self) -> None:
        """Raise Superseded if a newer generation has started."""
        if (newest := self.newest) > self.number:
            raise Superseded(
                f"generation {newest} of the training has begun; this process is of generation "
                f"{self.number}"
            )

    def publish(self, prepared: Path, name: str) -> None:
        """Move `prepared` into the folder as `name`, replacing an existing entry.

        Raises Superseded without a change.
        """
        withdrawn = self.withdraw(name) if (self._folder / name).exists() else None
        self._rename(prepared, self._folder / name)
        if withdrawn is not None:
            shutil.rmtree(withdrawn, ignore_errors=True)

    def withdraw(self, name: str) -> Path:
        """Move the folder's entry `name` into this generation's folder; return its new path.

        Raises Superseded without a change.
        """
        withdrawn = self.path / f"{name}{_WITHDRAWN}"
        self._rename(self._folder / name, withdrawn)
        return withdrawn

    def remove(self, name: str) -> None:
        """Delete the folder's entry `name`. Raises Superseded without a change."""
        removed = self.path / name
        self._rename(self._folder / name, removed)
        shutil.rmtree(removed, ignore_errors=True)  # if killed here, the next `claim` deletes it

    def clear(self) -> None:
        """Delete unpublished entries and restore withdrawn ones without a replacement."""
        _clear(self.path, self._folder)

    def _rename(self, path: Path, to: Path) -> None:
        # A concurrent write may recreate the folder of a superseded generation, so the rename would
        # succeed; therefore check first. Otherwise the rename fails.
        self.demand()
        try:
            path.rename(to)
        except FileNotFoundError:
            self.demand()
            raise


def _clear(generation: Path, folder: Path) -> None:
    for path in generation.glob("*"):
        final = folder / path.name.removesuffix(_WITHDRAWN)
        if path.name.endswith(_WITHDRAWN) and not final.exists():
            with suppress(FileNotFoundError):  # a concurrent claim may have moved it
                path.rename(final)
        else:
            shutil.rmtree(path, ignore_errors=True)
