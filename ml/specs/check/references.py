"""The fields of a spec, and the other specs that it names: files, and assets of its repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.documents import Key, strings
from ml.specs.assets import assets
from ml.specs.kinds import Kind, kind_of
from ml.specs.parts import Part
from ml.specs.sdk.load import Spec

# A key → the family of the spec that its text names; "" where the file says it itself.
FAMILIES = {
    **dict.fromkeys(("component", "trial"), "component"),
    **dict.fromkeys(("create_job", "job"), "job"),
    "environment": "environment",
    "model": "model",
    "specification": "",
    "$ref": "",
}
# The keys below these are free names, not fields.
_FREE = frozenset(
    {"inputs", "outputs", "environment_variables", "tags", "properties", "search_space", "conf"}
    | {"conda_file"}
)


def fields(value: Any, keys: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Every field in `value` with its keys, without what users name: inputs, variables, tags."""
    children = value.items() if isinstance(value, dict) else ()
    for key, child in enumerate(value) if isinstance(value, list) else children:
        at = (*keys, key)
        # A step has any name.
        if keys[-1:] != ("jobs",):
            yield at, child
        if key not in _FREE or keys[-1:] == ("jobs",):
            yield from fields(child, at)


def references(spec: Spec) -> list[Spec]:
    """The specs that a spec names, and those that these name, each once.

    Files outside of the repository are not read. What the SDK says of them is among the problems
    of the spec.
    """
    root, met = repository.root(spec.file), {spec.file.resolve()}
    specs, queue = list[Spec](), list[Part]([spec])
    while queue:
        owner = queue.pop(0)
        for part, family in _named(owner, root):
            file = part.file.resolve()
            is_outside = spec.boundary is not None and not file.is_relative_to(spec.boundary)
            if is_outside or file in met or not isinstance(part.get(), dict):
                continue
            met.add(file)
            kind = kind_of(part.get())
            if kind is None or (family and kind.family != family):
                kind = Kind(family, str(part.get("type") or "command").lower())
            specs.append(Spec(part.document, part.file, kind=kind, entity=None))
            queue.append(specs[-1])
    return specs


def _named(owner: Part, root: Path) -> Iterator[tuple[Part, str]]:
    """The specs that the texts of one name, with their families."""
    for keys, text in strings(owner.get()):
        family = FAMILIES.get(str(keys[-1])) if keys else None
        if keys and keys[-1] == "path":  # of data and models
            family = next((f for f in ("data", "model") if assets.find(text, f, root)), None)
        if family is None or "${{" in text or _FREE.intersection(keys) - {"inputs", "outputs"}:
            continue
        part = assets.included(text, owner.folder) if keys[-1] != "path" else None
        part = part or (assets.find(text, family, root) if family else None)
        if part is not None:
            yield part, family


def environments(spec: Spec) -> Iterator[Part]:
    """The environments that a spec defines: itself, or those in its jobs and deployments."""
    if spec.kind.family == "environment":
        yield spec
    for keys, value in fields(spec.document.data):
        if keys[-1] == "environment" and isinstance(value, dict):
            yield spec.at(*keys)
