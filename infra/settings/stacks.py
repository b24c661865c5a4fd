"""References between stack files: a stack names the stack that creates its shared registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ml.core import documents, repository
from ml.core.errors import Place, Problem, UserError

FOLDER = "infra"
_REGISTRY = ("config", "platform:asset_registry")


@dataclass(frozen=True)
class Stack:
    """A stack's relation to the shared registry: it creates one, or uses another stack's."""

    name: str
    makes_registry: bool
    uses: str = ""
    place: Place | None = None


def names(folder: Path) -> tuple[str, ...]:
    """Return the stacks that have a file in the folder, by name."""
    files = folder.glob("Pulumi.*.yaml")
    return tuple(sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in files))


def read(folder: Path) -> Mapping[str, Stack]:
    """Return stack name → Stack of a folder; an unreadable file counts as without a registry."""
    return {name: _stack(name, folder / f"Pulumi.{name}.yaml") for name in names(folder)}


def _stack(name: str, path: Path) -> Stack:
    try:
        document = documents.read(path, f"{FOLDER}/{path.name}")
    except UserError:
        return Stack(name, makes_registry=False)
    mode, stack = (document.get(*_REGISTRY, key) for key in ("mode", "stack"))
    place = document.place(*_REGISTRY)
    return Stack(name, mode == "create", str(stack or "") if mode == "use" else "", place)


def environments(folder: Path) -> tuple[str, ...]:
    """Return the stacks in which models are released: all but those that make a registry."""
    return tuple(name for name, stack in read(folder).items() if not stack.makes_registry)


def required_stack(stacks: Mapping[str, Stack], name: str) -> str:
    """Return the stack that must be deployed before `name`; "" if there is none.

    Raise UserError if that stack creates no registry.
    """
    uses = stacks[name].uses
    if uses and not (uses in stacks and stacks[uses].makes_registry):
        makers = [stack.name for stack in stacks.values() if stack.makes_registry]
        actual = f"{name} uses the asset registry of the stack `{uses}`, which has none"
        expected = f"one of: {', '.join(makers)}" if makers else "a stack that creates a registry"
        hint = f"asset_registry.mode: create in {FOLDER}/Pulumi.{uses}.yaml, or mode: none here"
        raise UserError(Problem("unknown-stack", actual, expected, hint, stacks[name].place))
    return uses


def ordered(root: Path) -> tuple[str, ...]:
    """Return all stacks, each after the one it refers to, else in release order (gate `order`).

    Stacks in `unordered` come last. Raises UserError for an environment missing from `order`: it
    would be deployed after prod.
    """
    stacks, release = read(root / FOLDER), repository.environments(root)
    unordered = repository.environments(root, "unordered")
    after = {name: position for position, name in enumerate(release)}
    for name, stack in stacks.items():
        if release and not stack.makes_registry and name not in (*release, *unordered):
            actual = f"{name} has a stack file but is missing from the gate `order`"
            hint = f"add it to `order` in {repository.GATES}, or rename the stack file"
            raise UserError(
                Problem("environment-mismatch", actual, ", ".join(release), hint, stack.place)
            )
    line = sorted(stacks, key=lambda name: (after.get(name, len(after)), name))
    environments = [name for name in line if not stacks[name].makes_registry]
    order = [part for name in environments for part in (required_stack(stacks, name), name) if part]
    return tuple(dict.fromkeys([*order, *line]))
