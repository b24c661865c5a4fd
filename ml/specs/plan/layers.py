"""Parts of specs: a mapping somewhere in a YAML file, and a step on top of its component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.core.documents import Document, Key
from ml.core.errors import Place


@dataclass(frozen=True)
class Part:
    """The mapping at `keys` of a document, which `file` holds (see `fields.Written`)."""

    document: Document
    file: Path
    keys: tuple[Key, ...] = ()

    @property
    def folder(self) -> Path:
        """What relative paths in it are relative to."""
        return self.file.parent

    def get(self, *keys: Key) -> Any:
        """The value at `keys`, None where there is none."""
        return self.document.get(*self.keys, *keys)

    def mapping(self, *keys: Key) -> Mapping[str, Any]:
        """The value at `keys` where it is a mapping; empty where it is none."""
        value = self.get(*keys)
        return value if isinstance(value, dict) else {}

    def place(self, *keys: Key) -> Place:
        """The line of the node at `keys`, or of its nearest ancestor."""
        return self.document.place(*self.keys, *keys)

    def at(self, *keys: Key) -> Part:
        """The part of this part at `keys`."""
        return Part(self.document, self.file, (*self.keys, *keys))


@dataclass(frozen=True)
class Layers:
    """What a step says itself, on top of what its component says (see `Written`)."""

    own: Part
    component: Part | None = None

    @property
    def folder(self) -> Path:
        """The step's; a path that its component wrote is relative to `owner(…).folder`."""
        return self.own.folder

    def owner(self, key: Key) -> Part:
        """The part that says `key`: the step when both do, and when neither does."""
        if self.component is not None and self.own.get(key) is None:
            return self.component if self.component.get(key) is not None else self.own
        return self.own

    def get(self, *keys: Key) -> Any:
        """The value at `keys` by the part that says the first of them; without keys, both."""
        if keys:
            return self.owner(keys[0]).get(*keys)
        beneath = self.component.get() if self.component is not None else {}
        return {**beneath, **self.own.get()}

    def place(self, *keys: Key) -> Place:
        """The line of that, in the file where it stands."""
        return self.owner(keys[0]).place(*keys) if keys else self.own.place()
