"""Which environments have a stack file, and the checked settings of each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from infra.settings import checks, reader
from infra.settings.model import Settings
from ml.core.errors import Problem, Refused

FOLDER = Path(__file__).parents[1]


def stacks(folder: Path = FOLDER) -> tuple[str, ...]:
    """The environments that have a stack file, by name."""
    files = folder.glob("Pulumi.*.yaml")
    return tuple(sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in files))


def select(names: Sequence[str] | None, folder: Path = FOLDER) -> Sequence[str]:
    """`names`, or all environments where it is empty; Refused where there is none."""
    selected = names or stacks(folder)
    if not selected:
        expected, hint = "at least one environment", "write Pulumi.dev.yaml there"
        raise Refused(Problem("no-stack", f"no stack file in {folder.name}/", expected, hint))
    return selected


def load(stack: str, folder: Path = FOLDER) -> Settings:
    """The settings of a stack; Refused with every problem of its file, each with line and key."""
    existing = stacks(folder)
    if stack not in existing:
        near = difflib.get_close_matches(stack.lower(), existing, 1)
        hint = f"did you mean `{near[0]}`?" if near else "write Pulumi.STACK.yaml beside the others"
        if (folder / f"Pulumi.{stack}.yml").exists():
            hint = f"rename Pulumi.{stack}.yml: Pulumi only reads .yaml"
        expected = f"one of: {', '.join(existing) or 'none'}"
        raise Refused(Problem("unknown-stack", f"no stack {stack!r}", expected, hint))
    document = reader.document(folder / f"Pulumi.{stack}.yaml")
    settings = reader.settings(Settings, document, environment=stack)
    problems = tuple(checks.problems(settings, document))
    if problems:
        raise Refused(*problems)
    return settings
