"""A preview for people, for a pull request, and for a program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from infra.cost.estimate import EXCLUDED, Estimate, price_notes
from infra.preview.changes import Change
from infra.preview.report import Report

Format = Literal["text", "md", "json"]
NOTE = (
    "Made offline by the program itself. It does not replace `pulumi preview`. Not covered: the"
    " provider's checks and comparison with existing resources, state, and transforms."
)
# Printed with refusals, because a new environment has no limits yet.
LIMITS_HINT = (
    "to make a policy advice in `{0}`, list it under that name in policies/infra/limits.yml; to"
    " waive it, with an owner, use waivers.yml"
)


def rendered(reports: Sequence[Report], form: Format) -> str:
    """The reports in one of the three formats."""
    if form == "json":
        return json.dumps([report.to_json() for report in reports], indent=1, default=str) + "\n"
    if form == "text":
        return "\n\n".join([*("\n".join(_text(report)) for report in reports), NOTE]) + "\n"
    parts = ["\n".join(_overview(reports)), *("\n".join(_markdown(report)) for report in reports)]
    return "\n\n".join([*parts, f"_{NOTE}_"]) + "\n"


def total(cost: Estimate) -> str:
    """A monthly cost in words."""
    month = cost.total
    figures = f"{month.idle:,.0f} idle, {month.typical:,.0f} typical, {month.worst:,.0f} worst"
    return f"{'at least ' if cost.unpriced else ''}{figures}, in {cost.currency}"


def _text(report: Report) -> Iterator[str]:
    yield report.headline
    if report.base:
        yield f"  against {report.base}: {_counts(report.changes)}"
        for change in report.changes:
            sign = {"added": "+", "removed": "-", "changed": "~"}[change.what]
            yield f"    {sign} {change.name}  {change.kind}"
            for difference in change.properties:
                before, after = _value(difference.before), _value(difference.after)
                yield f"        {difference.path}: {before} → {after}"
    else:
        for component, resources in report.by_component().items():
            yield f"  {component}"
            width = max(len(resource.name) for resource in resources)
            yield from (f"    {resource.name:<{width}}  {resource.kind}" for resource in resources)
    yield f"  a month: {total(report.cost)}"
    if report.base_cost:
        yield f"    before: {total(report.base_cost)}"
    if report.cost.unpriced:
        yield f"    no price known: {', '.join(report.cost.unpriced)}"
    yield from (f"    {note}" for note in price_notes(report.cost))
    yield f"    not included: {'; '.join(EXCLUDED)}"
    yield from (f"  problem: {problem}" for problem in report.problems)
    yield from (f"  note: {note}" for note in report.immutable)
    yield from (f"  refused by {finding.policy}: {finding.message}" for finding in report.refused)
    yield from (f"  advice or waived: {finding.message}" for finding in report.advised)
    yield f"  {report.verdict}"
    if report.refused:
        yield f"  hint: {LIMITS_HINT.format(report.capture.stack)}"


def _overview(reports: Sequence[Report]) -> Iterator[str]:
    """All stacks at a glance: verdict, changes, cost."""
    currency = reports[0].cost.currency if reports else ""
    yield f"| | verdict | changes | {currency} a month: idle, typical, worst |\n|---|---|---|---|"
    for report in reports:
        mark = "❌" if report.problems or report.refused else "⚠️" if report.immutable else "✅"
        changed = _counts(report.changes) if report.base else "not compared"
        month = str(report.cost.total)
        if report.base_cost and str(report.base_cost.total) != month:
            month = f"{report.base_cost.total} → **{month}**"
        yield f"| **{report.capture.stack}** | {mark} {report.verdict} | {changed} | {month} |"


def _markdown(report: Report) -> Iterator[str]:
    from infra.preview.diagram import markdown as diagram

    yield f"### {report.headline}\n"
    yield from (f"- **problem** {problem}" for problem in report.problems)
    yield from (f"- **note** {note}" for note in report.immutable)
    yield from (
        f"- **refused** by `{finding.policy}`: {finding.message}" for finding in report.refused
    )
    if report.refused:
        yield f"\n{LIMITS_HINT.format(report.capture.stack)}"
    if report.base:
        yield f"\nAgainst `{report.base}`: {_counts(report.changes)}\n"
        if report.changes:
            yield "| | resource | property | before | after |\n|---|---|---|---|---|"
        for change in report.changes:
            row = f"| {change.what} | `{change.name}` {change.kind} |"
            cells = [
                f" `{difference.path}` | {_cell(difference.before)} | {_cell(difference.after)} |"
                for difference in change.properties
            ]
            yield from (row + cell for cell in cells or [" | | |"])
    if report.cost.unpriced:
        yield f"\nNo price known, and not in the total: {', '.join(report.cost.unpriced)}"
    yield from _folded(f"A month: {total(report.cost)}", _cost(report.cost))
    if report.advised:
        messages = (f"- {finding.message}" for finding in report.advised)
        yield from _folded(f"{len(report.advised)} only advised against or waived", messages)
    if report.removed:
        return
    yield from _folded("Diagrams: access and network", diagram(report.capture))
    parts = ", ".join(f"{name} {len(of)}" for name, of in report.by_component().items())
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


def _counts(changes: Sequence[Change]) -> str:
    counts = {
        what: sum(change.what == what for change in changes)
        for what in ("added", "changed", "removed")
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "no changes"


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _cell(value: object) -> str:
    """A value in a table that GitHub draws: on one line, without Markdown."""
    text = " ".join(_value(value).split())
    mark = "``" if "`" in text else "`"
    return f"{mark}{text}{mark}".replace("|", "\\|")
