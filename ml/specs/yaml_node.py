"""Nodes of specs: a mapping in a YAML file, and a step layered over its component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.core.documents import Document, Key
from ml.core.errors import Place


@dataclass(frozen=True)
class YamlNode:
    """A mapping in a YAML document."""

    document: Document
    file: Path
    # Path from the root of the document to the mapping; () for the whole document.
    keys: tuple[Key, ...] = ()

    @property
    def folder(self) -> Path:
        """Return the folder of the file, which its relative paths refer to."""
        return self.file.parent

    def get(self, *keys: Key) -> Any:
        """Return the value at `keys`, with overrides applied; None if it is missing."""
        return self.document.get(*self.keys, *keys)

    def mapping(self, *keys: Key) -> Mapping[str, Any]:
        """Return the mapping at `keys`; {} if the value is not a mapping."""
        value = self.get(*keys)
        return value if isinstance(value, dict) else {}

    def place(self, *keys: Key) -> Place:
        """Return the file and line of the value at `keys`, or of its nearest ancestor."""
        return self.document.place(*self.keys, *keys)

    def child(self, *keys: Key) -> YamlNode:
        """Return the node at `keys` below this one."""
        return YamlNode(self.document, self.file, (*self.keys, *keys))


@dataclass(frozen=True)
class Layers:
    """The fields of a job or step, layered over those of the component or trial that it runs."""

    step: YamlNode
    component: YamlNode | None = None

    def owner(self, key: Key) -> YamlNode:
        """Return the component if only it sets `key`; else the step."""
        if self.component is not None and self.step.get(key) is None:
            return self.component if self.component.get(key) is not None else self.step
        return self.step

    def get(self, *keys: Key) -> Any:
        """Return the value at `keys` from the owner of the first key; without keys, both merged."""
        if keys:
            return self.owner(keys[0]).get(*keys)
        beneath = self.component.get() if self.component is not None else {}
        return {**beneath, **self.step.get()}

    def place(self, *keys: Key) -> Place:
        """Return the file and line of the value at `keys`, in the step or the component."""
        return self.owner(keys[0]).place(*keys) if keys else self.step.place()


Fields = YamlNode | Layers
