"""The preview report of each stack: resources, changes, cost, problems and policy violations.

`rendered` formats it as text, as Markdown for pull requests, or as JSON.
"""

from __future__ import annotations

import contextlib
import json
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from infra.cost.estimate import EXCLUDED, Estimate, as_json, estimate, price_notes
from infra.cost.prices import read
from infra.preview import sdk_types
from infra.preview.capture import (
    Breach,
    Capture,
    Property,
    Resource,
    ResourceChange,
    changes,
    immutable_changes,
)
from infra.preview.diagram import diagram
from infra.preview.inventory import counted
from infra.preview.runner import Runner, captures, runner
from infra.preview.weakenings import MAKE, edits, weakenings
from infra.settings import loader
from infra.settings.model import Settings
from infra.settings.workflows import role_name
from ml.core import documents, git, repository
from ml.core.errors import Problem, UserError
from ml.core.imports import ROOT
from ml.core.markdown import code, plain, text, truncate
from policies.infra import limits, pack
from policies.infra.limits import Limits

# Paths to extract from a git revision: the program's imports, settings, rules and plug-in names.
PATHS = ("infra", "ml", "policies", repository.MARK, *MAKE)
Format = Literal["text", "md", "json"]
# In a diff: the longest value, and the text before its first difference, both in characters.
LONGEST, CONTEXT = 100, 30
# Properties of role assignments, which a diff never shortens.
WHOLE = ("principalId", "scope", "condition")
# The longest problem or finding, in characters.
LETTERS = 1000
NOTE = (
    "Made offline by the program itself. It does not replace `pulumi preview`. Not covered: the"
    " provider's checks and comparison with existing resources, state, and transforms."
)
NETWORK = "Network: connections and outbound routes"
FOLDER = "policies/infra"


@dataclass(frozen=True)
class Report:
    """The preview report of one stack."""

    capture: Capture
    cost: Estimate
    type_problems: tuple[str, ...] = ()  # inputs that the SDK's types do not allow
    base: str = ""  # the git revision it is compared with; "" without a comparison
    # The cost at `base`; None if the stack is missing there or its settings cannot be read.
    base_cost: Estimate | None = None
    changes: tuple[ResourceChange, ...] = ()  # of resources since `base`
    removed: bool = False  # the stack file exists only at `base`
    imported: tuple[str, ...] = ()  # Pulumi ESC environments that add settings to the stack file
    private: bool = False  # True if its workflows need a runner in its network
    edits: tuple[ResourceChange, ...] = ()  # of the stack's settings, rules and code since `base`

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the program cannot be deployed as it is."""
        return (*self.capture.problems, *self.type_problems)

    @property
    def immutable(self) -> tuple[str, ...]:
        """Notes on changes that Azure would reject if the resource already exists."""
        return tuple(immutable_changes(self.changes))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reviewer: ESC environments that a preview cannot read, and `immutable`."""
        imported = (
            f"Pulumi reads settings from the ESC environment {name} too: this preview, its policies"
            " and its cost do not know them"
            for name in self.imported
        )
        return (*imported, *self.immutable)

    @property
    def weakenings(self) -> tuple[str, ...]:
        """Changes that weaken a safeguard or grant more permissions."""
        return tuple(weakenings((*self.edits, *self.changes)))

    @property
    def refused(self) -> tuple[Breach, ...]:
        """Findings of mandatory policies."""
        return tuple(finding for finding in self.capture.findings if finding.mandatory)

    @property
    def advised(self) -> tuple[Breach, ...]:
        """Findings of policies that are advisory in this stack, and waived findings."""
        return tuple(finding for finding in self.capture.findings if not finding.mandatory)

    def by_component(self) -> Mapping[str, list[Resource]]:
        """Return component name → its resources, sorted by name."""
        groups: dict[str, list[Resource]] = {}
        for resource in self.capture.provided:
            name = self.capture.component(resource) or "(no component)"
            groups.setdefault(name, []).append(resource)
        return dict(sorted(groups.items()))

    @property
    def headline(self) -> str:
        """The stack with its number of resources and components, in one line."""
        if self.removed:
            return (
                f"{self.capture.stack}: its stack file is gone; its resources remain until"
                f" `pulumi destroy --stack {self.capture.stack}` with the former file"
            )
        parts = self.by_component()
        count = sum(len(resources) for resources in parts.values())
        needs = "; private: its workflows need a runner in its network" if self.private else ""
        return f"{self.capture.stack}: {count} resources in {len(parts)} components{needs}"

    @property
    def verdict(self) -> str:
        """The verdict on the deployment in one line."""
        if self.problems:
            return f"{len(self.problems)} problems: it cannot be deployed as it is"
        if self.refused:
            return f"{len(self.refused)} rejected by policy"
        advised = f", {len(self.advised)} only advised against or waived" if self.advised else ""
        notes = ", but see the notes" if self.notes else ""
        count = len(self.weakenings)
        weaker = f", {count} weakening{'s' * (count > 1)} to approve" if count else ""
        return f"nothing rejected by policy{weaker}{advised}{notes}"

    def to_json(self) -> dict[str, object]:
        """Return the whole report for JSON output."""
        capture, graph = self.capture, diagram(self.capture)
        return {
            "stack": capture.stack,
            "resources": [
                {**asdict(resource), "component": capture.component(resource)}
                for resource in capture.provided
            ],
            "outputs": capture.outputs,
            "diagrams": [{"title": NETWORK, "mermaid": graph}] if graph else [],
            "problems": self.problems,
            "immutable": self.notes,
            "refused": [asdict(finding) for finding in self.refused],
            "advised": [asdict(finding) for finding in self.advised],
            "base": self.base or None,
            "removed": self.removed,
            "weakenings": self.weakenings,
            "edits": [asdict(change) for change in self.edits],
            "changes": [asdict(change) for change in self.changes],
            "cost": as_json(self.cost),
            "cost_before": as_json(self.base_cost) if self.base_cost else None,
        }


def reports(stacks: Sequence[str], *, against: str = "", root: Path = ROOT) -> list[Report]:
    """Return a report for each stack; without names, for all stacks.

    `against` is a git revision to compare with; stacks that only it has are reported as removed.
    Raise UserError if a program fails or the revision is unknown.
    """
    selected = loader.select(stacks, root / "infra")
    settings = {stack: loader.load(stack, root / "infra") for stack in selected}
    prices, context = read(), pack.load()
    with runner() as programs:
        before, edited = _before(programs, stacks, against, root) if against else ({}, {})
        results = captures(programs, selected, root=root, context=context)
    removed = [
        Report(
            capture=Capture(stack, (), {}),
            cost=Estimate(stack, prices.currency, ()),
            base=against,
            base_cost=estimate(old, prices, counted(capture)) if old else None,
            changes=changes(capture, Capture(stack, (), {})),
            removed=True,
        )
        for stack, (old, capture) in before.items()
        if stack not in settings
    ]
    current = []
    for capture in results:
        old, old_capture = before.get(capture.stack, (None, None))
        cost = estimate(settings[capture.stack], prices, counted(capture))
        bounds = limits.for_urn(context.limits, f"{capture.stack}::")
        findings = (*capture.findings, *budgeted(capture, cost, bounds))
        current.append(
            Report(
                capture=located(replace(capture, findings=findings), settings[capture.stack], root),
                cost=cost,
                type_problems=tuple(sdk_types.problems(capture.provided)),
                base=against,
                base_cost=estimate(old, prices, counted(old_capture))
                if old and old_capture
                else None,
                changes=changes(old_capture, capture) if against else (),
                imported=loader.imported(capture.stack, root / "infra"),
                private=settings[capture.stack].private
                and not settings[capture.stack].network.runners,
                edits=edited.get(capture.stack, ()),
            )
        )
    return removed + current


def budgeted(capture: Capture, cost: Estimate, limits: Limits) -> Iterator[Breach]:
    """Yield findings on budgets that warn too late or every month; no currency is converted."""
    month = cost.total
    for budget in (
        resource for resource in capture.provided if resource.kind == "consumption:Budget"
    ):
        amount = budget.inputs.get("amount")
        if not isinstance(amount, int) or not month.typical:
            continue
        figures = f"the budget is {amount:,}, a typical month {month.typical:,.0f}"
        figures += f" and the worst {month.worst:,.0f}"
        if amount > month.typical * (most := limits.max_budget_of_typical):
            message = f"{figures}: the budget may be at most {most} times a typical month"
            message += ", `max_budget_of_typical` in limits.yml"
            yield Breach("budget-of-typical", True, budget.urn, message)
        if month.worst > amount * (most := limits.max_worst_of_budget):
            message = f"{figures}: the worst month may be at most {most} times the budget"
            message += ", `max_worst_of_budget` in limits.yml"
            yield Breach("worst-of-budget", True, budget.urn, message)
        if month.typical > amount:
            yield Breach("budget-warns", False, budget.urn, f"{figures}: it warns each month")


def located(capture: Capture, settings: Settings, root: Path) -> Capture:
    """Return the capture with `file:line` of the cluster before each finding on a cluster."""
    document = documents.read(root / "infra" / f"Pulumi.{capture.stack}.yaml")
    places = {
        cluster.name: document.place("config", "platform:clusters", index)
        for index, cluster in enumerate(settings.clusters)
    }
    findings = [
        replace(finding, message=f"{places[name]}: {finding.message}")
        if name in places
        else finding
        for finding in capture.findings
        for name in [finding.urn.rpartition("::")[2]]
    ]
    return replace(capture, findings=tuple(findings))


def _before(
    programs: Runner, stacks: Sequence[str], revision: str, root: Path
) -> tuple[dict[str, tuple[Settings | None, Capture]], dict[str, tuple[ResourceChange, ...]]]:
    """Return (settings, capture) of each stack at the revision, and the stack's changed files.

    Without names: all stacks of the revision. The settings are None if today's classes cannot
    read the revision's stack file.
    """
    with revision_tree(root, revision) as folder:
        if folder is None:
            return {}, {}
        existing = loader.stacks(folder / "infra")
        selected = [stack for stack in existing if stack in stacks] if stacks else existing
        try:
            results = [programs.capture(stack, root=folder) for stack in selected]
        except UserError as refused:
            hint = "name another revision, or omit --against: this one does not run"
            raise UserError(
                *(
                    replace(problem, actual=f"as of {revision}, {problem.actual}", hint=hint)
                    for problem in refused.problems
                )
            ) from None
        before = {
            result.stack: (_settings(result.stack, folder / "infra"), result) for result in results
        }
        return before, {stack: edits(stack, folder, root) for stack in before}


def _settings(stack: str, folder: Path) -> Settings | None:
    try:
        return loader.load(stack, folder)
    except UserError:
        return None


@contextlib.contextmanager
def revision_tree(root: Path, revision: str) -> Iterator[Path | None]:
    """Yield a temporary folder with the program of a git revision; None if it had no program.

    Raise UserError if the revision is unknown.
    """
    commit = git.commit(root, revision)
    if commit is None:
        actual, expected = f"no revision `{revision}` in git", "a branch, tag or commit"
        branch = revision.removeprefix("origin/")
        hint = f"git fetch origin {branch}, then --against origin/{branch}"
        if git.run(root, "rev-parse", "--is-shallow-repository") == "true\n":
            hint = "git fetch --unshallow: this clone only has the last commits"
        raise UserError(Problem("unknown-revision", actual, expected, hint))
    paths = (git.ask(root, "ls-tree", "--name-only", commit, "--", *PATHS) or "").split()
    if "infra" not in paths:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="infra-base-") as name:
        folder = Path(name)
        archive = folder / "tree.tar"
        git.archive(root, commit, archive, *paths)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        yield folder if (folder / "infra" / "__main__.py").is_file() else None


def rendered(reports: Sequence[Report], form: Format) -> str:
    """Return the reports in one of the three formats."""
    if form == "json":
        return json.dumps([report.to_json() for report in reports], indent=1, default=str) + "\n"
    if form == "text":
        return "\n\n".join([*("\n".join(_text(report)) for report in reports), NOTE]) + "\n"
    parts = ["\n".join(_overview(reports)), *("\n".join(_markdown(report)) for report in reports)]
    return "\n\n".join([*parts, f"_{NOTE}_"]) + "\n"


def _total(cost: Estimate) -> str:
    """Return the total of an estimate in words."""
    month = cost.total
    figures = f"{month.idle:,.0f} idle, {month.typical:,.0f} typical, {month.worst:,.0f} worst"
    return f"{'at least ' if cost.unpriced else ''}{figures}, in {cost.currency}"


def _text(report: Report) -> Iterator[str]:
    yield report.headline
    if report.base:
        yield from (
            f"  weakening: {truncate(plain(weakening), LETTERS)}" for weakening in report.weakenings
        )
        yield f"  against {report.base}: {_counts(report.changes)}"
        for change in (*report.edits, *report.changes):
            sign = {"added": "+", "removed": "-", "changed": "~"}[change.what]
            yield f"    {sign} {change.name}  {change.kind}"
            for difference in change.properties:
                before, after = _values(difference)
                yield f"        {difference.path}: {before} → {after}"
    else:
        for component, resources in report.by_component().items():
            yield f"  {component}"
            width = max(len(resource.name) for resource in resources)
            yield from (f"    {resource.name:<{width}}  {resource.kind}" for resource in resources)
    yield f"  a month: {_total(report.cost)}"
    if report.base_cost:
        yield f"    before: {_total(report.base_cost)}"
    if report.cost.unpriced:
        yield f"    no price known: {', '.join(report.cost.unpriced)}"
    yield from (f"    {note}" for note in price_notes(report.cost))
    yield f"    not included: {'; '.join(EXCLUDED)}"
    yield from (f"  problem: {problem}" for problem in report.problems)
    yield from (f"  note: {note}" for note in report.notes)
    yield from (f"  rejected by {finding.policy}: {finding.message}" for finding in report.refused)
    yield from (f"  advice or waived: {finding.message}" for finding in report.advised)
    yield f"  {report.verdict}"
    if report.refused:
        yield f"  hint: {_exemptions(report)}"


def _exemptions(report: Report) -> str:
    """Return how to exempt what the rules reject; a check of the budget has only its limit."""
    rejecting, stack = {finding.policy for finding in report.refused}, report.capture.stack
    advisable = rejecting & (limits.ADVISABLE | {rule.name for rule in pack.FORK_RULES})
    ways = []
    if advisable:
        rules = ", ".join(sorted(advisable))
        ways.append(f"to make {rules} advisory, add it to `{stack}.advice` in {FOLDER}/limits.yml")
    if rejecting & {rule.name for rule in pack.RULES}:
        ways.append(f"to exempt one resource, add a waiver to {FOLDER}/waivers.yml")
    return "; ".join(ways) or f"change the stack file, or the limit in {FOLDER}/limits.yml"


def _overview(reports: Sequence[Report]) -> Iterator[str]:
    """Yield the lines of a Markdown table of all stacks: verdict, changes, cost."""
    currency = reports[0].cost.currency if reports else ""
    yield f"| | verdict | changes | {currency} a month: idle, typical, worst |\n|---|---|---|---|"
    for report in reports:
        notable = report.notes or report.weakenings
        mark = "❌" if report.problems or report.refused else "⚠️" if notable else "✅"
        changed = _counts(report.changes) if report.base else "not compared"
        month = str(report.cost.total)
        if report.base_cost and str(report.base_cost.total) != month:
            month = f"{report.base_cost.total} → **{month}**"
        yield f"| **{report.capture.stack}** | {mark} {report.verdict} | {changed} | {month} |"


def _markdown(report: Report) -> Iterator[str]:
    yield f"### {report.headline}\n"
    yield from (f"- **weakening** {text(weakening, LETTERS)}" for weakening in report.weakenings)
    yield from (f"- **problem** {text(problem, LETTERS)}" for problem in report.problems)
    yield from (f"- **note** {text(note, LETTERS)}" for note in report.notes)
    yield from (
        f"- **rejected** by {code(finding.policy)}: {text(finding.message, LETTERS)}"
        for finding in report.refused
    )
    if report.refused:
        yield f"\n{_exemptions(report)}"
    if report.base:
        yield f"\nAgainst `{report.base}`: {_counts(report.changes)}\n"
        if report.edits or report.changes:
            yield "| | resource | property | before | after |\n|---|---|---|---|---|"
        for change in (*report.edits, *report.changes):
            row = f"| {change.what} | {_cell(change.name)} {text(change.kind)} |"
            cells = [
                f" {_cell(difference.path)} | {' | '.join(map(_cell, _values(difference)))} |"
                for difference in change.properties
            ]
            yield from (row + cell for cell in cells or [" | | |"])
    if report.cost.unpriced:
        yield f"\nNo price known, and not in the total: {', '.join(report.cost.unpriced)}"
    yield from _folded(f"A month: {_total(report.cost)}", _cost(report.cost))
    if report.advised:
        messages = (f"- {text(finding.message, LETTERS)}" for finding in report.advised)
        yield from _folded(f"{len(report.advised)} only advised against or waived", messages)
    if report.removed:
        return
    if graph := diagram(report.capture):
        yield from _folded(NETWORK, [f"```mermaid\n{graph}\n```"])
    parts = ", ".join(f"{name} {len(value)}" for name, value in report.by_component().items())
    yield from _folded(f"Resources: {parts}", _resources(report))


def _cost(cost: Estimate) -> Iterator[str]:
    yield f"| {cost.currency} a month | idle | typical | worst | basis |"
    yield "|---|---|---|---|---|"
    for line in cost.lines:
        figures = str(line.month).replace(", ", " | ") if line.price else "? | ? | ?"
        yield f"| {line.item} | {figures} | {line.basis} |"
    yield ""
    yield from (f"- {note}" for note in price_notes(cost))
    yield f"- not included: {'; '.join(EXCLUDED)}"


def _resources(report: Report) -> Iterator[str]:
    yield "| component | resource | type |\n|---|---|---|"
    for component, resources in report.by_component().items():
        yield from (
            f"| {component} | `{resource.name}` | {resource.kind} |" for resource in resources
        )


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"\n<details><summary>{title}</summary>\n"
    yield from lines
    yield "\n</details>"


def _counts(changes: Sequence[ResourceChange]) -> str:
    kinds = [change.what for change in changes]
    counts = {kind: kinds.count(kind) for kind in ("added", "changed", "removed")}
    return ", ".join(f"{n} {kind}" for kind, n in counts.items() if n) or "no changes"


def _values(difference: Property) -> tuple[str, str]:
    """Return both values in at most `LONGEST` characters, cutting their common beginning first.

    A role is shown by its name: role ids differ only near the end.
    """
    values = (difference.before, difference.after)
    before, after = (value if isinstance(value, str) else json.dumps(value) for value in values)
    if difference.path == "roleDefinitionId":
        return role_name(before), role_name(after)
    if difference.path in WHOLE:
        return before, after
    if " ".join(before.split()) == " ".join(after.split()):
        # Quotes and `␣` show differences in white space, and between a text and a number.
        before, after = (
            json.dumps(value, ensure_ascii=False).replace(" ", "␣") for value in values
        )
    differs = (
        index for index, (old, new) in enumerate(zip(before, after, strict=False)) if old != new
    )
    start = max(next(differs, 0) - CONTEXT, 0) if max(len(before), len(after)) > LONGEST else 0
    return _cut(before, start), _cut(after, start)


def _cut(text: str, start: int) -> str:
    """Return the text from `start` on, cut in the middle, since the end of an id is its name."""
    text = f"…{text[start:]}" if start else text
    return text if len(text) <= LONGEST else f"{text[:59]}…{text[60 - LONGEST :]}"


def _cell(text: str) -> str:
    """Return text as inline code on one line, for a cell of a Markdown table."""
    text = " ".join(text.split())
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")
