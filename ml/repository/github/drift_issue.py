"""Keep one GitHub issue for each stack, release and model that drifted.

`python -m ml.repository.github.drift_issue` opens an issue when a stack or release differs from its
declaration, or a model's requests from its evaluation. It updates the issue, and closes it when
nothing differs. It needs no installed package besides PyYAML.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.core.errors import as_program
from ml.core.markdown import code, table, text
from ml.repository.github.api import GitHub, read_results

# The most differences that an issue lists.
MAX_ROWS = 100
BY_DRIFT = "This issue is updated by drift.yml, and closed when nothing differs."


@dataclass(frozen=True)
class Subject:
    """The content of a drift issue."""

    name: str  # identifies the issue: a stack, or `release fraud_scoring prod`
    title: str  # what follows `Drift: 3 differences` in the issue's title
    begin: str  # first paragraph
    head: Sequence[str]  # column names of the table
    rows: Sequence[Sequence[str]]  # cells are Markdown; without rows the issue is closed
    command: str  # a shell command that shows all rows
    end: str  # last paragraph


def post(github: GitHub, subject: Subject) -> str:
    """Open, update or close the subject's issue; return what was done, as a sentence."""
    marker = f"<!-- drift {subject.name} -->"
    count = len(subject.rows)
    if not count:
        closed = github.close_issue(marker)
        return f"{subject.name}: nothing differs{closed and f'; {closed}'}"
    title = f"Drift: {count} difference{'s' if count > 1 else ''} {subject.title}"
    rows = subject.rows[:MAX_ROWS]
    more = [f"And {count - MAX_ROWS} more: `{subject.command}`."] if count > MAX_ROWS else []
    page = "\n\n".join(
        [subject.begin, table(subject.head, rows), *more, f"{subject.end} {BY_DRIFT}"]
    )
    return f"{subject.name}: {github.keep_issue(marker, title, page)}"


def stack(name: str, differences: Sequence[Mapping[str, Any]]) -> Subject:
    """Return the content of a stack's issue, from the differences that `infra drift` found."""
    rows = [
        [
            code(difference.get("resource", "")),
            text(difference.get("kind", "")),
            code(difference.get("path", "")) if difference.get("path") else "",
            text(_shown(difference.get("declared"))),
            text(_shown(difference.get("actual"))),
        ]
        for difference in differences
    ]
    return Subject(
        name,
        f"between {name} and Azure",
        f"Azure differs from what `infra/Pulumi.{name}.yaml` declares.",
        ("resource", "what", "property", "declared", "in Azure"),
        rows,
        f"make infra-drift ENV={name}",
        "Declare what is in Azure by a pull request, or let the next deployment set it back "
        f"(`make deploy ENV={name}`). Differences that mean nothing belong in "
        "`infra/live/drift_ignore.yml`.",
    )


def watched(environment: str, drifts: Sequence[Mapping[str, Any]]) -> Iterator[Subject]:
    """Yield the contents of an environment's issues, from the results of `ml release drift`.

    Unknown results are skipped, so their issues stay unchanged.
    """
    for drift in drifts:
        if drift["unknown"]:
            continue
        about, project = str(drift["about"]), str(drift["project"])
        place = f"{project} in {environment}"
        if about == "release":
            title = f"between what {place} declares and what serves"
            end = (
                "Start release.yml by hand (*Actions, release, Run workflow*): it applies what is "
                "declared. Or declare what serves by a pull request."
            )
        else:
            title = f"between the requests of {place} and its evaluation"
            command = f"ml watch {drift['model']} --env {environment} --on azure"
            end = f"Look at the columns (`{command}`), and train again where the world has changed."
        rows = [
            [code(row["what"]), text(row["expected"]), text(row["actual"])]
            for row in drift["differences"]
        ]
        yield Subject(
            f"{about} {project} {environment}",
            title,
            f"{text(drift['words'], 1000)}.",
            ("what", "expected", "actual"),
            rows,
            f"make release-drift ENV={environment}",
            end,
        )


def _shown(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


@as_program
def main(argv: Sequence[str] | None = None) -> None:
    """Update the drift issues from the results of `infra drift` or `ml release drift`."""
    parser = argparse.ArgumentParser(prog="drift_issue", description=(__doc__ or "").split(";")[0])
    parser.add_argument("--env", required=True, help="The stack or environment.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--differences", type=Path, help="`infra drift --json`.")
    source.add_argument("--watched", type=Path, help="`ml release drift --json`.")
    options = parser.parse_args(argv)
    if options.differences:
        command = f"make infra-drift ENV={options.env}"
        subjects = [stack(options.env, read_results(options.differences, command))]
    else:
        command = f"make release-drift ENV={options.env}"
        subjects = [*watched(options.env, read_results(options.watched, command))]
    github = GitHub.of_workflow()
    for subject in subjects:
        print(post(github, subject))


if __name__ == "__main__":
    sys.exit(main())
