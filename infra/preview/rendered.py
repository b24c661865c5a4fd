"""A preview as a person reads it, as a pull request shows it, and as a program takes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Literal

from infra import costing
from infra.estimate import LEFT_OUT, Estimate
from infra.preview.changes import Change
from infra.preview.report import Report
from infra.pricing.months import Month

Format = Literal["text", "md", "json"]
NOTE = (
    "Made offline by the program itself. Not covered: what the provider checks and compares with"
    " what is there, state, and transforms; `pulumi preview` shows those."
)

# Where a refusal is from, and who may change that: an environment that is new has no limits yet.
ELSE = (
    "what only advises in `{0}` stands below its name in policies/infra/limits.yml, what somebody"
    " answers for in waivers.yml"
)


def rendered(reports: Sequence[Report], form: Format) -> str:
    """The reports in one of the three forms."""
    if form == "json":
        return json.dumps([one.to_json() for one in reports], indent=1, default=str) + "\n"
    each = _markdown if form == "md" else _text
    parts = ["\n".join(each(report)) for report in reports]
    if form == "md":
        parts = ["\n".join(_overview(reports)), *parts]
    return "\n\n".join([*parts, f"_{NOTE}_" if form == "md" else NOTE]) + "\n"


def _text(report: Report) -> Iterator[str]:
    yield report.headline
    if report.base:
        yield from _changes(report)
    else:
        for component, resources in report.by_component().items():
            yield f"  {component}"
            width = max(len(one.name) for one in resources)
            yield from (f"    {one.name:<{width}}  {one.kind}" for one in resources)
    yield f"  a month: {shown(report.cost)}"
    yield from (f"    {line}" for line in _notes(report))
    yield from (f"  problem: {problem}" for problem in report.problems)
    yield from (f"  note: {kept}" for kept in report.lasting)
    yield from (f"  refused by {one.policy}: {one.message}" for one in report.refused)
    yield from (f"  set aside: {one.message}" for one in report.advised)
    yield f"  {report.verdict}"
    if report.refused:
        yield f"  hint: {ELSE.format(report.capture.stack)}"


def _changes(report: Report) -> Iterator[str]:
    yield f"  against {report.base}: {_counted(report.changes)}"
    for change in report.changes:
        sign = {"added": "+", "removed": "-", "changed": "~"}[change.what]
        yield f"    {sign} {change.name}  {change.kind}"
        for one in change.properties:
            yield f"        {one.path}: {_value(one.before)} → {_value(one.after)}"


def _overview(reports: Sequence[Report]) -> Iterator[str]:
    """All stacks at a glance: may it be, what changes, what it costs."""
    currency = reports[0].cost.currency if reports else ""
    yield f"| | verdict | changes | {currency} a month: idle, typical, worst |\n|---|---|---|---|"
    for report in reports:
        mark = "❌" if report.problems or report.refused else "⚠️" if report.lasting else "✅"
        changed = _counted(report.changes) if report.base else "not compared"
        month = _figures(report.cost.total)
        if report.base_cost and _figures(report.base_cost.total) != month:
            month = f"{_figures(report.base_cost.total)} → **{month}**"
        yield f"| **{report.capture.stack}** | {mark} {report.verdict} | {changed} | {month} |"


def _markdown(report: Report) -> Iterator[str]:
    yield f"### {report.headline}\n"
    yield from (f"- **problem** {problem}" for problem in report.problems)
    yield from (f"- **note** {kept}" for kept in report.lasting)
    yield from (f"- **refused** by `{one.policy}`: {one.message}" for one in report.refused)
    if report.refused:
        yield f"\n{ELSE.format(report.capture.stack)}"
    if report.base:
        yield f"\nAgainst `{report.base}`: {_counted(report.changes)}\n"
        if report.changes:
            yield "| | resource | property | before | after |\n|---|---|---|---|---|"
        for change in report.changes:
            row = f"| {change.what} | `{change.name}` {change.kind} |"
            cells = [
                f" `{one.path}` | {_cell(one.before)} | {_cell(one.after)} |"
                for one in change.properties
            ]
            yield from (row + cell for cell in cells or [" | | |"])
    if report.cost.unpriced:
        yield f"\nNo price known, and not in the sum: {', '.join(report.cost.unpriced)}"
    month = shown(report.cost)
    yield from _folded(f"A month: {month}", _lines(report.cost))
    if report.advised:
        yield from _folded(
            f"{len(report.advised)} set aside", (f"- {one.message}" for one in report.advised)
        )
    parts = ", ".join(f"{name} {len(of)}" for name, of in report.by_component().items())
    yield from _folded(f"Resources: {parts}", _resources(report))


def _lines(cost: Estimate) -> Iterator[str]:
    yield f"| {cost.currency} a month | idle | typical | worst | of what |"
    yield "|---|---|---|---|---|"
    for line in cost.lines:
        figures = "? | ? | ?"
        if line.price:
            month = line.month
            figures = f"{month.idle:,.0f} | {month.typical:,.0f} | {month.worst:,.0f}"
        yield f"| {line.what} | {figures} | {line.basis} |"
    yield ""
    yield from (f"- {line}" for line in costing.dated(cost))
    yield f"- not in it: {'; '.join(LEFT_OUT)}"


def _resources(report: Report) -> Iterator[str]:
    yield "| component | resource | type |\n|---|---|---|"
    for component, resources in report.by_component().items():
        yield from (f"| {component} | `{one.name}` | {one.kind} |" for one in resources)


def _folded(title: str, lines: Iterator[str]) -> Iterator[str]:
    yield f"\n<details><summary>{title}</summary>\n"
    yield from lines
    yield "\n</details>"


def _notes(report: Report) -> Iterator[str]:
    if report.base_cost:
        yield f"before: {shown(report.base_cost)}"
    if report.cost.unpriced:
        yield f"no price known: {', '.join(report.cost.unpriced)}"
    yield from costing.dated(report.cost)
    yield f"not in it: {'; '.join(LEFT_OUT)}"


def shown(cost: Estimate) -> str:
    """A cost in words."""
    month = cost.total
    figures = f"{month.idle:,.0f} idle, {month.typical:,.0f} typical, {month.worst:,.0f} worst"
    return f"{'at least ' if cost.unpriced else ''}{figures}, in {cost.currency}"


def _figures(month: Month) -> str:
    return f"{month.idle:,.0f}, {month.typical:,.0f}, {month.worst:,.0f}"


def _counted(changes: Sequence[Change]) -> str:
    counts = {
        what: sum(one.what == what for one in changes) for what in ("added", "changed", "removed")
    }
    said = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join(said) or "nothing changes"


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _cell(value: object) -> str:
    """In a table that GitHub draws: one line, and marks that are no marks."""
    text = " ".join(_value(value).split())
    mark = "``" if "`" in text else "`"
    return f"{mark}{text}{mark}".replace("|", "\\|")
