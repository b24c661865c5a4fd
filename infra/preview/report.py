"""A preview as a person reads it, as a pull request shows it, and as a program takes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from infra.preview.captured import Capture, Finding, Resource

Format = Literal["text", "md", "json"]
NOTE = (
    "Made offline by the program itself. Not covered: what the provider checks and compares with"
    " what is there, state, and transforms; `pulumi preview` shows those."
)


@dataclass(frozen=True)
class Report:
    """One stack: what it would have, and what is wrong with it."""

    capture: Capture
    type_problems: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps the program from being deployed as it is."""
        return (*self.capture.problems, *self.type_problems)

    @property
    def refused(self) -> tuple[Finding, ...]:
        """What a policy refuses; the rest of the findings is advice."""
        return tuple(one for one in self.capture.findings if one.mandatory)

    @property
    def advised(self) -> tuple[Finding, ...]:
        """What a policy would refuse elsewhere, or somebody answers for."""
        return tuple(one for one in self.capture.findings if not one.mandatory)

    def by_component(self) -> dict[str, list[Resource]]:
        """The resources, by the name of their component."""
        found: dict[str, list[Resource]] = {}
        for one in self.capture.provided:
            found.setdefault(self.capture.component(one) or "(alone)", []).append(one)
        return dict(sorted(found.items()))


def rendered(reports: Sequence[Report], form: Format) -> str:
    """The reports in one of the three forms."""
    if form == "json":
        return json.dumps([_data(report) for report in reports], indent=1) + "\n"
    each = _markdown if form == "md" else _text
    parts = [each(report) for report in reports]
    note = f"_{NOTE}_" if form == "md" else NOTE
    return "\n\n".join([*parts, note]) + "\n"


def _data(report: Report) -> dict[str, object]:
    capture = report.capture
    return {
        "stack": capture.stack,
        "resources": [
            {**asdict(one), "component": capture.component(one)} for one in capture.provided
        ],
        "outputs": capture.outputs,
        "problems": report.problems,
        "refused": [asdict(one) for one in report.refused],
        "advised": [asdict(one) for one in report.advised],
        "process": asdict(capture.spent),
    }


def _text(report: Report) -> str:
    parts = report.by_component()
    lines = [_headline(report)]
    for component, resources in parts.items():
        lines.append(f"  {component}")
        width = max(len(one.name) for one in resources)
        lines += [f"    {one.name:<{width}}  {one.kind}" for one in resources]
    lines += [f"  problem: {problem}" for problem in report.problems]
    lines += [f"  refused by {one.policy}: {one.message}" for one in report.refused]
    lines += [f"  advice: {one.message}" for one in report.advised]
    lines.append(f"  {_verdict(report)}")
    return "\n".join(lines)


def _markdown(report: Report) -> str:
    lines = [f"### {_headline(report)}", "", f"**{_verdict(report)}**", ""]
    lines += [f"- **problem** {problem}" for problem in report.problems]
    lines += [f"- **refused** by `{one.policy}`: {one.message}" for one in report.refused]
    if report.advised:
        lines += ["", f"<details><summary>{len(report.advised)} set aside</summary>", ""]
        lines += [f"- {one.message}" for one in report.advised]
        lines += ["", "</details>"]
    lines += ["", "<details><summary>Resources</summary>", ""]
    lines += ["| component | resource | type |", "|---|---|---|"]
    lines += [
        f"| {component} | `{one.name}` | {one.kind} |"
        for component, resources in report.by_component().items()
        for one in resources
    ]
    return "\n".join([*lines, "", "</details>"])


def _verdict(report: Report) -> str:
    if report.problems:
        return f"{len(report.problems)} problems: it could not be deployed as it is"
    if report.refused:
        return f"{len(report.refused)} refused by policy"
    aside = f", {len(report.advised)} set aside" if report.advised else ""
    return f"nothing refused by policy{aside}"


def _headline(report: Report) -> str:
    parts = report.by_component()
    count = sum(len(resources) for resources in parts.values())
    return f"{report.capture.stack}: {count} resources in {len(parts)} components"
