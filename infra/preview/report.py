"""The preview of each stack: its resources, what changes, what it costs, what is wrong."""

from __future__ import annotations

import contextlib
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from infra.cost.estimate import Estimate, as_json, estimate
from infra.cost.prices import read
from infra.preview import sdk_types
from infra.preview.analyzer import captures
from infra.preview.capture import Capture, Finding, Resource
from infra.preview.changes import Change, changes, immutable_changes
from infra.preview.runner import ROOT, Runner, runner
from infra.settings import loader
from infra.settings.model import Settings
from ml.core.errors import Problem, Refused

# The program's imports, and its settings.
ROOMS = ("infra", "ml")


@dataclass(frozen=True)
class Report:
    """One stack. `base` is the revision that it is compared with, "" without a comparison.

    `removed`: the revision had the stack, and its file is gone.
    """

    capture: Capture
    cost: Estimate
    type_problems: tuple[str, ...] = ()
    base: str = ""
    base_cost: Estimate | None = None
    changes: tuple[Change, ...] = ()
    removed: bool = False

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the program cannot be deployed as it is."""
        return (*self.capture.problems, *self.type_problems)

    @property
    def immutable(self) -> tuple[str, ...]:
        """Changes that Azure would refuse for existing resources; a preview knows none of them."""
        return tuple(immutable_changes(self.changes))

    @property
    def refused(self) -> tuple[Finding, ...]:
        """Findings of mandatory policies."""
        return tuple(finding for finding in self.capture.findings if finding.mandatory)

    @property
    def advised(self) -> tuple[Finding, ...]:
        """Findings that are advice here, or waived."""
        return tuple(finding for finding in self.capture.findings if not finding.mandatory)

    def by_component(self) -> Mapping[str, list[Resource]]:
        """The resources, by the name of their component."""
        groups: dict[str, list[Resource]] = {}
        for resource in self.capture.provided:
            name = self.capture.component(resource) or "(no component)"
            groups.setdefault(name, []).append(resource)
        return dict(sorted(groups.items()))

    @property
    def headline(self) -> str:
        """The stack and its size, in a line."""
        if self.removed:
            return (
                f"{self.capture.stack}: its stack file is gone; its resources remain until"
                f" `pulumi destroy --stack {self.capture.stack}` with the former file"
            )
        parts = self.by_component()
        count = sum(len(resources) for resources in parts.values())
        return f"{self.capture.stack}: {count} resources in {len(parts)} components"

    @property
    def verdict(self) -> str:
        """Whether it could be deployed, in a line."""
        if self.problems:
            return f"{len(self.problems)} problems: it cannot be deployed as it is"
        if self.refused:
            return f"{len(self.refused)} refused by policy"
        advised = f", {len(self.advised)} only advised against or waived" if self.advised else ""
        notes = ", but see the notes" if self.immutable else ""
        return f"nothing refused by policy{advised}{notes}"

    def to_json(self) -> dict[str, object]:
        """Everything, for a program."""
        capture = self.capture
        return {
            "stack": capture.stack,
            "resources": [
                {**asdict(resource), "component": capture.component(resource)}
                for resource in capture.provided
            ],
            "outputs": capture.outputs,
            "problems": self.problems,
            "immutable": self.immutable,
            "refused": [asdict(finding) for finding in self.refused],
            "advised": [asdict(finding) for finding in self.advised],
            "base": self.base or None,
            "removed": self.removed,
            "changes": [asdict(change) for change in self.changes],
            "cost": as_json(self.cost),
            "cost_before": as_json(self.base_cost) if self.base_cost else None,
        }


def reports(stacks: Sequence[str], *, against: str = "", root: Path = ROOT) -> list[Report]:
    """A report for each stack; Refused if a program fails or the revision is unknown.

    Without names: for all stacks, and for those that only the revision had.
    """
    selected = loader.select(stacks, root / "infra")
    settings = {stack: loader.load(stack, root / "infra") for stack in selected}
    prices = read()
    with runner() as programs:
        before = _before(programs, stacks, against, root) if against else {}
        results = captures(programs, selected, root=root)
    removed = [
        Report(
            capture=Capture(stack, (), {}),
            cost=Estimate(stack, prices.currency, (), ()),
            base=against,
            base_cost=estimate(old, prices) if old else None,
            changes=changes(capture, Capture(stack, (), {})),
            removed=True,
        )
        for stack, (old, capture) in before.items()
        if stack not in settings
    ]
    current = []
    for capture in results:
        old, old_capture = before.get(capture.stack, (None, None))
        current.append(
            Report(
                capture=capture,
                cost=estimate(settings[capture.stack], prices),
                type_problems=tuple(sdk_types.problems(capture.provided)),
                base=against,
                base_cost=estimate(old, prices) if old else None,
                changes=changes(old_capture, capture) if against else (),
            )
        )
    return removed + current


def _before(
    programs: Runner, stacks: Sequence[str], revision: str, root: Path
) -> dict[str, tuple[Settings | None, Capture]]:
    """Settings and capture of each named stack that the revision had; of all if none is named.

    The settings are None where today's classes cannot read those of the revision.
    """
    with revision_tree(root, revision) as folder:
        if folder is None:
            return {}
        existing = loader.stacks(folder / "infra")
        selected = [stack for stack in existing if stack in stacks] if stacks else existing
        try:
            results = [programs.capture(stack, root=folder) for stack in selected]
        except Refused as refused:
            hint = "name another revision, or omit --against: this one does not run"
            raise Refused(
                *(
                    replace(problem, found=f"as of {revision}, {problem.found}", hint=hint)
                    for problem in refused.problems
                )
            ) from None
        return {
            result.stack: (_settings(result.stack, folder / "infra"), result) for result in results
        }


def _settings(stack: str, folder: Path) -> Settings | None:
    try:
        return loader.load(stack, folder)
    except Refused:
        return None


@contextlib.contextmanager
def revision_tree(root: Path, revision: str) -> Iterator[Path | None]:
    """A folder with the program of a git revision; None if it had none; Refused if unknown."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit is None:
        raise Refused(_unknown_revision(root, revision))
    rooms = (_git(root, "ls-tree", "--name-only", commit, "--", *ROOMS) or "").split()
    if "infra" not in rooms:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="infra-base-") as name:
        folder = Path(name)
        archive = folder / "tree.tar"
        _git(root, "archive", "--output", str(archive), commit, "--", *rooms)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        yield folder if (folder / "infra" / "__main__.py").is_file() else None


def _unknown_revision(root: Path, revision: str) -> Problem:
    message, expected = f"git knows no revision `{revision}`", "a branch, tag or commit"
    shallow = _git(root, "rev-parse", "--is-shallow-repository")
    branch = revision.removeprefix("origin/")
    hint = f"git fetch origin {branch}, then --against origin/{branch}"
    if shallow is None:
        message, expected = f"{root} is not a git repository", "a clone, to compare with a revision"
        hint = "git clone it, or omit --against"
    elif shallow == "true":
        hint = "git fetch --unshallow: this clone only has the last commits"
    return Problem("unknown-revision", message, expected, hint)


def _git(root: Path, *words: str) -> str | None:
    """The output of git, None if it fails; Refused if git is not installed."""
    try:
        process = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        hint = "install git, or omit --against"
        raise Refused(Problem("no-git", "no program `git`", "git on the PATH", hint)) from None
    return process.stdout.strip() if process.returncode == 0 else None
