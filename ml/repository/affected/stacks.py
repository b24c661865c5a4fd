"""List the stacks to deploy, in deployment order.

`python -m ml.repository.affected.stacks` needs no installed package besides PyYAML.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.settings import stacks as files
from ml.core import git, repository
from ml.core.errors import Exit, Problem, UserError, as_program
from ml.repository.affected.projects import affected, validated_name
from ml.repository.github.api import MAIN, GitHub, write_outputs

# The name of the job in infra.yml that deploys a stack.
DEPLOY = "deploy ({stack})"


# The events that start a run on main. A run of another event may be on a fork's branch `main`.
EVENTS = ("push", "workflow_dispatch")


def stacks(root: Path, since: str | Mapping[str, str] = "") -> list[str]:
    """Return the stacks affected since a revision, in deployment order.

    `since` is one revision for all stacks, or maps stacks to revisions; a stack without a revision
    is always returned. A stack comes after the stack that it refers to, else in the release order
    of the gate `order`. Raises UserError as `affected` does, and for a reference to a stack that
    creates no registry.
    """
    names = [validated_name(name) for name in files.ordered(root)]
    starts = dict.fromkeys(names, since) if isinstance(since, str) else since
    touched = {
        start: {*affected(root, start, include_reverted=True).stacks}
        for start in {*starts.values()}
        if start
    }
    return [name for name in names if name in touched.get(starts.get(name, ""), names)]


def environments(root: Path) -> list[str]:
    """Return the stacks in which models are trained and released, in release order."""
    named = files.environments(root / files.FOLDER)
    return [name for name in stacks(root) if name in named]


def deployed(github: GitHub, root: Path, workflow: str) -> str:
    """Return the commit of the workflow's last successful run on main; "" if none succeeded.

    The runs of later commits failed, were rejected by a reviewer, or were replaced in the queue.
    `root` must be a clone of all branches, since GitHub also lists the runs of a tag named main,
    whose commit may contain a different workflow.
    """
    runs = _runs(github, root, workflow, status="success")
    return next((str(run["head_sha"]) for run in runs), "")


def deployed_stacks(
    github: GitHub, root: Path, workflow: str, names: Sequence[str]
) -> Mapping[str, str]:
    """Return each stack → the commit at which it was last deployed; omit stacks never deployed.

    A successful run has deployed all pending stacks; a failed run may have deployed some.
    """
    commits: dict[str, str] = {}
    for run in _runs(github, root, workflow):
        behind = [name for name in names if name not in commits]
        if behind and run["conclusion"] not in (None, "success"):
            results = _results(github, run["id"])
            behind = [name for name in behind if results.get(name) == "success"]
        if run["conclusion"] is not None:
            commits |= dict.fromkeys(behind, str(run["head_sha"]))
        if run["conclusion"] == "success" or len(commits) == len(names):
            break
    return commits


def _runs(github: GitHub, root: Path, workflow: str, **query: str) -> Iterator[Mapping[str, Any]]:
    """Yield the runs of a workflow on commits of main, newest first."""
    path, of_main = f"actions/workflows/{workflow}/runs", {"branch": MAIN, **query}
    lists = [github.pages(path, "workflow_runs", event=event, **of_main) for event in EVENTS]
    for run in heapq.merge(*lists, key=lambda run: -int(run["id"])):
        if is_on_main(root, run):
            yield run


def is_on_main(root: Path, run: Mapping[str, Any]) -> bool:
    """Return whether a workflow run's commit is on main; `root` is a clone of all branches."""
    words = ("merge-base", "--is-ancestor", str(run["head_sha"]), f"refs/remotes/origin/{MAIN}")
    return run["head_branch"] == MAIN and git.ask(root, *words) is not None


def _results(github: GitHub, run: object) -> Mapping[str, str]:
    """Return each stack of a run → the conclusion of its deploy job."""
    prefix, suffix = DEPLOY.split("{stack}")
    jobs = github.pages(f"actions/runs/{run}/jobs", "jobs", filter="latest")
    return {
        job["name"].removeprefix(prefix).removesuffix(suffix): job["conclusion"]
        for job in jobs
        if job["name"].startswith(prefix)
    }


def check_referenced_stack(
    github: GitHub, root: Path, stack: str, run: str, deploying: Sequence[str]
) -> None:
    """Raise UserError if `stack` refers to a stack that this run has yet to deploy successfully.

    `deploying` has the stacks that the run deploys; references to other stacks are not checked.
    """
    needed = files.required_stack(files.read(root / files.FOLDER), stack)
    if needed not in deploying:
        return
    result = _results(github, run).get(needed)
    if result != "success":
        actual = f"{needed}, which {stack} refers to: {result or 'not deployed yet'}"
        expected = f"`{DEPLOY.format(stack=needed)}` of this run succeeded"
        hint = "re-run the failed jobs of this run"
        raise UserError(Problem("not-deployed", actual, expected, hint), exit_code=Exit.RUN_FAILED)


@as_program
def main(argv: Sequence[str] | None = None) -> None:
    """Print a JSON list of stacks, and write it to the outputs of the workflow's job."""
    parser = argparse.ArgumentParser(prog="stacks", description=(__doc__ or "").split(";")[0])
    since = parser.add_mutually_exclusive_group()
    since.add_argument("--since", default="", help="Only what the change since it touches.")
    since.add_argument("--not-deployed-by", help="Since this workflow last deployed each.")
    since.add_argument(
        "--needed-by", help="Has this run, of the STACKS, deployed what this stack refers to?"
    )
    options = parser.parse_args(argv)
    root = repository.root()
    if stack := options.needed_by:
        try:
            run, names = os.environ["GITHUB_RUN_ID"], json.loads(os.environ["STACKS"])
        except KeyError as error:
            parser.error(f"--needed-by needs {error.args[0]}, which infra.yml sets")
        check_referenced_stack(GitHub.of_workflow(), root, stack, run, names)
        return
    start: str | Mapping[str, str] = options.since
    if workflow := options.not_deployed_by:
        start = deployed_stacks(GitHub.of_workflow(), root, workflow, files.ordered(root))
    lists = {"stacks": stacks(root, start), "environments": environments(root)}
    print(json.dumps(lists["stacks"]))
    write_outputs(lists)


if __name__ == "__main__":
    sys.exit(main())
