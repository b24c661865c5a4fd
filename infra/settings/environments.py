"""Check that stack files, gates and workflows declare the same environments.

Each environment has a stack file. The gate `order` and the options of `promote.yml` list them, and
jobs of workflows name their GitHub environments. An environment missing from `order` would be
deployed after prod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.settings import stacks
from infra.settings.workflows import PURPOSES
from ml.core import documents, repository
from ml.core.errors import Place, Problem, UserError

WORKFLOWS = Path(".github") / "workflows"
PROMOTE = WORKFLOWS / "promote.yml"
_OPTIONS = (
    True,
    "workflow_dispatch",
    "inputs",
    "environment",
    "options",
)  # YAML reads `on` as true
_INPUT = re.compile(r"\$\{\{\s*inputs\.([\w-]+)\s*\}\}")


@dataclass(frozen=True)
class GitHubEnvironment:
    """The GitHub environment of a workflow's job."""

    job: str  # FILE: JOB
    name: str  # may contain expressions, `${{ … }}`
    place: Place


def of_workflows(root: Path) -> Iterator[GitHubEnvironment]:
    """Yield the GitHub environment of each job; one per option if the name has a choice input.

    Raise UserError for a workflow that is not YAML.
    """
    for path in sorted((root / WORKFLOWS).glob("*.y*ml")):
        document = documents.read(path, path.relative_to(root).as_posix())
        inputs = document.get(*_OPTIONS[:3])
        jobs = document.get("jobs")
        for key, job in jobs.items() if isinstance(jobs, Mapping) else ():
            named = job.get("environment") if isinstance(job, Mapping) else None
            name = str((named.get("name") if isinstance(named, Mapping) else named) or "")
            choice = _INPUT.search(name)
            declared = inputs.get(choice[1]) if choice and isinstance(inputs, Mapping) else None
            options = declared.get("options") if isinstance(declared, Mapping) else None
            place = document.place("jobs", key, "environment")
            for option in (options if isinstance(options, list) else [None]) if name else ():
                text = name.replace(choice[0], str(option)) if choice and option else name
                yield GitHubEnvironment(f"{path.name}: {key}", text, place)


def problems(root: Path) -> list[Problem]:
    """Return a problem for each mismatch; [] if there are no stack files or no gate `order`."""
    names, order = stacks.environments(root / stacks.FOLDER), repository.environments(root)
    if not names or not order:
        return []
    try:
        return list(_mismatches(root, names, order))
    except UserError as refused:
        return list(refused.problems)


def _mismatches(root: Path, names: tuple[str, ...], order: tuple[str, ...]) -> Iterator[Problem]:
    gates = documents.read(root / repository.GATES, repository.GATES.as_posix())
    line = gates.place("gates", "order", "environments")
    unordered = re.findall(r"[\w-]+", str(gates.get("gates", "order", "unordered")))
    for name in order:
        if name not in names:
            yield _mismatch(f"the gate `order` has {name}, which has no stack file", names, line)
    for name in names:
        if name not in order and name not in unordered:
            actual = f"{name} has a stack file but is missing from the gate `order`"
            yield _mismatch(actual, order, Place(f"{stacks.FOLDER}/Pulumi.{name}.yaml", 1))
    if (root / PROMOTE).is_file():
        document = documents.read(root / PROMOTE, PROMOTE.as_posix())
        options = document.get(*_OPTIONS)
        if options != [*order[1:]]:
            actual = f"`options` of the input `environment`: {options}"
            yield _mismatch(actual, order[1:], document.place(*_OPTIONS))
    pattern = re.compile(rf"([\w-]+)-(?:{'|'.join(PURPOSES)})")
    for usage in of_workflows(root):
        match = pattern.fullmatch(usage.name)
        # Models are trained in the first environment only.
        expected = order[:1] if usage.job.startswith(("merge.yml:", "train.yml:")) else names
        if usage.place.path != PROMOTE.as_posix() and match and match[1] not in expected:
            actual = f"the job of {usage.job} names the GitHub environment {usage.name}"
            yield _mismatch(actual, expected, usage.place)


def _mismatch(actual: str, expected: tuple[str, ...], place: Place) -> Problem:
    """Return the problem `environment-mismatch` at a place."""
    hint = f"change the stack files, `order` in {repository.GATES} and the workflows together"
    return Problem("environment-mismatch", actual, ", ".join(expected), hint, place)
