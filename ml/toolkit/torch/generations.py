"""Generations: which start of a training may change a folder of checkpoints.

Each start (a rendezvous round of torchrun, a restarted job) claims the next number by making the
folder `.generations/00000007`, then renames the folders of older generations away. A writer
prepares every change in its own folder. It publishes by a rename out of that folder and removes by
a rename into it, so that once the folder has another name every change fails.

Needs a file system where mkdir fails if the folder exists and a rename of a folder is atomic.
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
    """A newer generation has begun: this one may change nothing."""


class Generation:
    """The exclusive right of one start to change `folder`, until a newer generation begins."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self.number = folder, number
        self.path = folder / FOLDER / f"{number:08}"  # changes are prepared here

    @classmethod
    def claim(cls, folder: Path) -> Self:
        """Begin the next generation and clean up after the older ones.

        What they had published stays, what they had withdrawn without replacing is restored, and
        the rest is deleted.
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
                # Another claim may have renamed it a moment before.
                with suppress(FileNotFoundError):
                    path.rename(path.with_name(f"{path.name}{_FENCED}{uuid4().hex}"))
        for path in generations.glob(f"*{_FENCED}*"):
            _clear(path, folder)
            shutil.rmtree(path, ignore_errors=True)
        return generation

    @property
    def newest(self) -> int:
        """The number of the newest generation that has begun; 0 where none is visible."""
        paths = (self._folder / FOLDER).glob("*")
        return max((int(path.name) for path in paths if path.name.isdecimal()), default=0)

    def demand(self) -> None:
        """Raises Superseded if a newer generation has begun."""
        if (newest := self.newest) > self.number:
            raise Superseded(
                f"generation {newest} of the training has begun; this process is of generation "
                f"{self.number}"
            )

    def publish(self, prepared: Path, name: str) -> None:
        """Rename what lies in `path` into the folder, in place of what has that name.

        Raises Superseded, and then nothing has changed.
        """
        withdrawn = self.withdraw(name) if (self._folder / name).exists() else None
        self._rename(prepared, self._folder / name)
        if withdrawn is not None:
            shutil.rmtree(withdrawn, ignore_errors=True)

    def withdraw(self, name: str) -> Path:
        """Rename what the folder has of that name into `path`, and return where it is.

        Raises Superseded, and then nothing has changed.
        """
        withdrawn = self.path / f"{name}{_WITHDRAWN}"
        self._rename(self._folder / name, withdrawn)
        return withdrawn

    def remove(self, name: str) -> None:
        """Delete what the folder has of that name. Raises Superseded."""
        removed = self.path / name
        self._rename(self._folder / name, removed)
        shutil.rmtree(removed, ignore_errors=True)  # a kill here leaves it to the next `claim`

    def clear(self) -> None:
        """Delete what was prepared and not published; what was withdrawn is there again."""
        _clear(self.path, self._folder)

    def _rename(self, path: Path, to: Path) -> None:
        # A write that was under way may have made the folder of a superseded generation again:
        # then the newer one is visible here. Otherwise the rename itself fails.
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
            with suppress(FileNotFoundError):  # two claims at the same time
                path.rename(final)
        else:
            shutil.rmtree(path, ignore_errors=True)
