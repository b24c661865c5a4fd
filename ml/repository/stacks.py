"""The stacks to deploy, in order; `python -m ml.repository.stacks` needs no installed package."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ml.core import repository
from ml.core.errors import Refused
from ml.repository.affected import affected
from ml.repository.github import GitHub

GATES = Path("policies") / "promotion" / "gates.yml"
_ORDER = re.compile(r"^  order:.*?^    environments: \[([^\]]*)\]", re.M | re.S)


def stacks(root: Path, since: str = "") -> list[str]:
    """The stacks that have a file, of those that a commit since a revision touches.

    They are in the order in which a release goes through them (the gate `order`), others last.
    Raises Refused as `affected` does.
    """
    files = (root / "infra").glob("Pulumi.*.yaml")
    names = {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in files}
    if since:
        names &= {*affected(root, since, taken_back=True).stacks}
    match = _ORDER.search((root / GATES).read_text(encoding="utf-8"))
    order = re.findall(r"[\w-]+", match[1]) if match else []
    return sorted(names, key=lambda name: (order.index(name) if name in order else 99, name))


def deployed(github: GitHub, workflow: str) -> str:
    """The commit of main whose run of the workflow last succeeded; "" without one.

    What came after it is not deployed: a run may have failed, been rejected by a reviewer, or have
    given up its place in the queue to a newer one.
    """
    query = {"branch": "main", "event": "push", "status": "success", "per_page": "1"}
    runs = github.get(f"actions/workflows/{workflow}/runs", **query)["workflow_runs"]
    return str(runs[0]["head_sha"]) if runs else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a JSON list, and writes it where a workflow's next job reads it."""
    parser = argparse.ArgumentParser(prog="stacks", description=(__doc__ or "").split(";")[0])
    since = parser.add_mutually_exclusive_group()
    since.add_argument("--since", default="", help="Only what the change since it touches.")
    since.add_argument("--not-deployed-by", help="Since this workflow's last success; all without.")
    options = parser.parse_args(argv)
    try:
        workflow, start = options.not_deployed_by, options.since
        start = deployed(GitHub.of_workflow(), workflow) if workflow else start
        names = json.dumps(stacks(repository.root(), start))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return int(refused.exit_code)
    print(names)
    if path := os.environ.get("GITHUB_OUTPUT"):
        with Path(path).open("a", encoding="utf-8") as outputs:
            outputs.write(f"stacks={names}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
