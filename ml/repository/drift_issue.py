"""One issue for each stack that drifted; `python -m ml.repository.drift_issue --stack dev …`.

It is opened when Azure differs from what the stack declares, updated while it does, and closed when
nothing differs any more. It needs no installed package.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml.core.errors import Exit, Problem, Refused
from ml.reports.markdown import code, table, text
from ml.repository.github import AUTHOR, GitHub

# Differences that the issue lists.
MAX_ROWS = 100


def post(github: GitHub, stack: str, differences: Sequence[Mapping[str, Any]], author: str) -> str:
    """Bring the stack's issue up to date; a sentence on what was done."""
    marker = f"<!-- drift {stack} -->"
    if not differences:
        closed = github.close_issue(marker, author)
        return f"{stack}: Azure is as the stack declares{closed and f'; {closed}'}"
    count = f"{len(differences)} difference{'s' if len(differences) > 1 else ''}"
    title = f"Drift: {count} between {stack} and Azure"
    return f"{stack}: {github.keep_issue(marker, title, _page(stack, differences), author)}"


def _page(stack: str, differences: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            code(each.get("resource", "")),
            text(each.get("kind", "")),
            code(each.get("path", "")) if each.get("path") else "",
            text(_shown(each.get("declared"))),
            text(_shown(each.get("actual"))),
        ]
        for each in differences[:MAX_ROWS]
    ]
    more = len(differences) - len(rows)
    return "\n\n".join(
        [
            f"Azure differs from what `infra/Pulumi.{stack}.yaml` declares.",
            table(("resource", "what", "property", "declared", "in Azure"), rows),
            *([f"And {more} more: `make drift STACK={stack}`."] if more > 0 else []),
            "Declare what is in Azure by a pull request, or let the next deployment set it back "
            f"(`make deploy STACK={stack}`). Differences that mean nothing belong in "
            "`infra/live/noise.yml`. This issue is updated by drift.yml, and closed when nothing "
            "differs.",
        ]
    )


def _shown(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def read(path: Path) -> list[Mapping[str, Any]]:
    """What `infra drift --json` wrote; Refused if the comparison did not end."""
    try:
        differences = json.loads(path.read_text(encoding="utf-8"))
        if all(isinstance(each, dict) for each in differences):
            return list(differences)
    except (OSError, ValueError, TypeError):
        pass
    found = f"{path} has no list of differences"
    raise Refused(Problem("no-drift", found, "what `make drift` writes", "make drift STACK=dev"))


def main(argv: Sequence[str] | None = None) -> int:
    """The command of the workflow."""
    parser = argparse.ArgumentParser(prog="drift_issue", description=(__doc__ or "").split(";")[0])
    parser.add_argument("--stack", required=True, help="The stack.")
    parser.add_argument("--differences", required=True, type=Path, help="`infra drift --json`.")
    parser.add_argument("--author", default=AUTHOR, help="Whose issue is updated.")
    options = parser.parse_args(argv)
    try:
        differences = read(options.differences)
        print(post(GitHub.of_workflow(), options.stack, differences, options.author))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return int(refused.exit_code)
    return int(Exit.DONE)


if __name__ == "__main__":
    sys.exit(main())
