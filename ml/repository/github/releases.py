"""Find the environments to release and their approvers, and revert rolled-back declarations.

`python -m ml.repository.github.releases` needs no installed package besides PyYAML.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ml.core import documents, git, repository
from ml.core.errors import Exit, Problem, UserError, as_program
from ml.reports.pull_requests import release
from ml.repository.affected import stacks
from ml.repository.affected.stacks import deployed
from ml.repository.github.api import MAIN, GitHub, for_all, read_results, write_outputs
from ml.repository.github.pull_requests.posting import read_artifact

FILE = "release.yml"
ENTRIES = "environments"
DECLARED_MEANWHILE = "declaration-changed"
_RESULTS = re.compile(r"(release)\.json")


def declaration(content: str, environment: str) -> str:
    """Return an environment's entry in the text of a release.yml, as JSON.

    Returns "null" if it has none, and the whole text if it cannot be parsed.
    """
    try:
        return json.dumps(_entries(content).get(environment), sort_keys=True, default=str)
    except ValueError:
        return content


def with_entry(environment: str, seen: str, wanted: str, now: str) -> str:
    """Return the text `now` with one environment's entry replaced by the entry in `wanted`.

    All arguments but `environment` are texts of release.yml: `now` is main's, `seen` the one that
    the run started from. Raises UserError if the entry in `now` is in neither of the others, or if
    entries do not begin on separate lines.
    """
    try:
        before, entry, there = (_entries(text).get(environment) for text in (seen, wanted, now))
        if there == entry:
            return now
        if there != before:
            actual = f"{MAIN} now declares another release for {environment}"
            expected = "the declaration that this run started from"
            hint = "the run of a newer commit evaluates the gates again"
            raise UserError(Problem(DECLARED_MEANWHILE, actual, expected, hint))
        (head, _, tail), (_, lines, _) = _parts(now, environment), _parts(wanted, environment)
        edited = f"{head}{lines}{tail}"
        expected_entries = {**_entries(now), environment: entry}
        if entry is None:
            del expected_entries[environment]
        if _entries(edited) == expected_entries:
            return edited
    except ValueError:
        pass
    expected = f"each entry on separate lines below `environments:` in {FILE}"
    actual = f"the entry of {environment} is ambiguous"
    hint = "correct release.yml by a pull request; its run continues"
    raise UserError(Problem("ambiguous-entry", actual, expected, hint))


def _entries(content: str) -> dict[str, Any]:
    """Return the entries of a release.yml by environment; raise ValueError for invalid YAML."""
    try:
        entries = documents.parse(content, FILE).get(ENTRIES)
    except UserError as refused:
        raise ValueError(str(refused)) from None
    return entries if isinstance(entries, dict) else {}


def _parts(content: str, environment: str) -> tuple[str, str, str]:
    """Split the text at an environment's entry: before it, the entry, after it.

    The entry is "" if absent; blank lines and comments below it are not part of it. Raises
    ValueError if entries do not begin on separate lines.
    """
    root = documents.parse(content, FILE).root
    lines = [f"{line}\n" for line in content.removesuffix("\n").split("\n")]
    sections = _lines_of(root, lines, len(lines))
    if ENTRIES not in sections:
        raise ValueError(f"no `{ENTRIES}`")
    first, end, entries = sections[ENTRIES]
    names = _lines_of(entries, lines, end) if entries.value else {}
    last = max((stop for _, stop, _ in names.values()), default=first + 1)
    start, stop, _ = names.get(environment, (last, last, None))
    return "".join(lines[:start]), "".join(lines[start:stop]), "".join(lines[stop:])


def _lines_of(
    mapping: yaml.Node, lines: Sequence[str], end: int
) -> dict[str, tuple[int, int, yaml.Node]]:
    """Return each key of a YAML mapping → its first line, the line after its last, its value."""
    if not isinstance(mapping, yaml.MappingNode) or mapping.flow_style:
        raise ValueError("no mapping in block style")
    starts = [key.start_mark.line for key, _ in mapping.value]
    positions = {}
    for (key, value), stop in zip(mapping.value, [*starts[1:], end], strict=True):
        start = key.start_mark.line
        if lines[start][: key.start_mark.column].strip():
            raise ValueError("a key that does not begin its line")
        while stop > start + 1 and lines[stop - 1].lstrip()[:1] in ("", "#"):
            stop -= 1
        positions[str(key.value)] = (start, stop, value)
    return positions


def environments(root: Path, since: str = "") -> list[str]:
    """Return the environments whose declaration changed since a commit, in release order.

    Returns all environments if `since` is "" or unknown here. A change that was reverted counts:
    it may have been applied meanwhile.
    """
    names = stacks.environments(root)
    if not since or git.ask(root, "cat-file", "-e", f"{since}^{{commit}}") is None:
        return names
    log = ("log", "--first-parent", "-m", f"{since}..HEAD")
    words = (*log, "--format=", "--name-only", "--no-renames", "--", f"ml/projects/*/{FILE}")
    files = {*(git.ask(root, *words) or "").split("\n")} - {""}
    changed: set[str] = set()
    for file in files:
        commits = (git.ask(root, *log, "--format=%H", "--", file) or "").split()
        texts = [_at(root, commit, file) or "" for commit in (since, *commits)]
        changed |= {name for name in names if len({declaration(text, name) for text in texts}) > 1}
    return [name for name in names if name in changed]


def _at(root: Path, commit: str, file: str) -> str | None:
    """Return the text of a file in a commit; None if it does not exist."""
    try:
        return git.run(root, "cat-file", "blob", f"{commit}:{file}")
    except UserError:
        return None


def approver(github: GitHub, root: Path, environment: str) -> str:
    """Return the account that approved this run: the environment's reviewer, or GITHUB_ACTOR.

    Raises UserError if main's declaration for the environment has changed, for example when an old
    run is re-run, since the approval was for another declaration.
    """
    main = github.head()
    for path in sorted((root / "ml/projects").glob(f"*/{FILE}")):
        name = path.relative_to(root).as_posix()
        there = github.text(name, main)
        here = path.read_bytes().decode()
        if declaration(there, environment) != declaration(here, environment):
            actual = f"{MAIN} now declares another release for {environment} in {name}"
            expected = "the declaration that this run was started for"
            hint = "the run of the newer commit applies it"
            problem = Problem(DECLARED_MEANWHILE, actual, expected, hint)
            raise UserError(problem, exit_code=Exit.GATE_SAID_NO)
    run = os.environ["GITHUB_RUN_ID"]
    approvals = [
        str(approval["user"]["login"])
        for approval in github.get(f"actions/runs/{run}/approvals")
        if approval["state"] == "approved"
        and f"{environment}-release" in [item["name"] for item in approval["environments"]]
    ]
    return approvals[-1] if approvals else os.environ["GITHUB_ACTOR"]


def keep_issue(github: GitHub, result: Mapping[str, Any]) -> str:
    """Update the issue about a release; return what was done.

    Opens or updates the issue if the release was rolled back, and closes it if the release was
    applied or unchanged.
    """
    project, environment = result["project"], result["environment"]
    marker = f"<!-- release {project} {environment} -->"
    where = f"{project} in {environment}"
    if result["outcome"] in ("applied", "unchanged"):
        done = github.close_issue(marker)
        return f"{where}: {done or 'serves as declared'}"
    if result["outcome"] != "rolled-back":
        return f"{where}: no issue, see the summary of the run"
    pulls = f"https://github.com/{github.repository}/pulls?q=head:{_branch(result)}"
    title, body = release.issue(result, pulls)
    return f"{where}: {github.keep_issue(marker, title, body)}"


def revert(github: GitHub, root: Path, result: Mapping[str, Any]) -> str:
    """Open the pull request that reverts the declaration of a rolled-back version.

    If main now declares another release, close that pull request instead. Returns what was done.
    """
    project, environment = result["project"], result["environment"]
    file = f"ml/projects/{project}/{FILE}"
    before, evidence, commit = _earlier_release(
        root, project, environment, str(result["serving_digest"])
    )
    title, body = release.revert(result, commit)
    main = github.head()
    now, seen = github.text(file, main), (root / file).read_bytes().decode()
    try:
        text = with_entry(environment, seen, before, now)
    except UserError as refused:
        if refused.problems[0].code != DECLARED_MEANWHILE:
            raise
        text = now
    if text == now:
        done = f"{MAIN} now declares another release for {environment}: nothing to roll back"
        for pull in github.pull_requests_of(_branch(result)):
            if pull["state"] == "open":
                github.send("PATCH", f"pulls/{pull['number']}", {"state": "closed"})
                done += f"; pull request {pull['number']} is closed"
        return done
    return github.keep_pull_request(_branch(result), title, body, {file: text, **evidence}, main)[1]


def _branch(result: Mapping[str, Any]) -> str:
    return f"revert/{result['project']}-{result['environment']}-{result['decision'][:12]}"


def _earlier_release(
    root: Path, project: str, environment: str, live_digest: str
) -> tuple[str, dict[str, str | None], str]:
    """Return the release.yml to revert to, its evidence files, and the commit to revert.

    It is the newest earlier declaration that contains `live_digest`, the deployment that serves; if
    none does, the previous declaration. Evidence is path → content, None to remove the file.
    Raises UserError without an earlier declaration.
    """
    folder = f"ml/projects/{project}"
    file = f"{folder}/{FILE}"
    current = declaration((root / file).read_bytes().decode(), environment)
    commit, earlier = "", list[tuple[str, str]]()
    for revision, before in _history(root, file):
        if not earlier:
            commit = revision
        if declaration(before, environment) != current:
            earlier.append((revision, before))
    if not earlier:
        message = f"no earlier commit declares another release for {environment} in {file}"
        raise UserError(
            Problem("no-earlier-version", message, "the full history", "fetch-depth: 0")
        )
    live = (pair for pair in earlier if live_digest in declaration(pair[1], environment))
    after, text = next(live, earlier[0])
    files: dict[str, str | None] = {}
    for suffix in ("json", "attestation.json"):
        evidence = f"{folder}/evidence/{environment}.{suffix}"
        if (root / evidence).exists() or _at(root, f"{after}^", evidence) is not None:
            files[evidence] = _at(root, f"{after}^", evidence)
    return text, files, commit


def _history(root: Path, file: str) -> Iterator[tuple[str, str]]:
    """Yield each commit that changed the file, newest first, and the file's text before it."""
    log = ("log", "--first-parent", "--format=%H", "--", file)
    for commit in (git.ask(root, *log) or "").split():
        yield commit, _at(root, f"{commit}^", file) or ""


def _results_of_run(environment: str) -> Sequence[Mapping[str, Any]]:
    """Return the results of an environment's release job in this run; [] without any.

    Raises UserError if the artifact is invalid.
    """
    app, job = GitHub.of_workflow(), f"release ({environment})"
    reader = replace(app, token=os.environ.get("RUN_TOKEN", app.token))
    run, name = int(os.environ["GITHUB_RUN_ID"]), f"release-{environment}"
    documents, unread = read_artifact(reader, run, name, _RESULTS, job, failed_too=True)
    if unread:
        raise UserError(Problem("no-results", "; ".join(unread), hint="re-run the failed jobs"))
    text = json.dumps(documents.get("release", []))
    return read_results(Path(name), "make release", text, release.OUTCOMES)


def _revert(root: Path, environments: Sequence[str]) -> None:
    """Open the pull requests that revert rolled-back versions; raise UserError at the end."""

    def revert_all(environment: str) -> None:
        results = [
            result for result in _results_of_run(environment) if result["outcome"] == "rolled-back"
        ]
        for_all(results, lambda result: print(revert(GitHub.of_workflow(), root, result)))

    for_all(environments, revert_all)


@as_program
def main(argv: Sequence[str] | None = None) -> None:
    """Run a command of the workflow release.yml."""
    parser = argparse.ArgumentParser(prog="releases", description=(__doc__ or "").split(".")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("environments", help="Print those to release, as JSON.")
    listed.add_argument("--not-released-by", default="", help="Since this workflow's last success.")
    approved = commands.add_parser("approver", help="Print who approved the job.")
    approved.add_argument("environment")
    for name, words in (
        ("summary", "Print what became of each project."),
        ("issue", "Open, update or close the issues."),
    ):
        command = commands.add_parser(name, help=words)
        command.add_argument("results", type=Path, help="What `ml release apply --json` printed.")
    reverting = commands.add_parser("revert", help="Open the pull requests that revert.")
    reverting.add_argument("--environments", type=json.loads, required=True, help="A JSON list.")
    options, root = parser.parse_args(argv), repository.root()
    if options.command == "environments":
        workflow = options.not_released_by
        since = deployed(GitHub.of_workflow(), root, workflow) if workflow else ""
        names = environments(root, since)
        print(json.dumps(names))
        write_outputs({"environments": names})
    elif options.command == "approver":
        print(approver(GitHub.of_workflow(), root, options.environment))
    elif options.command == "revert":
        _revert(root, options.environments)
    else:
        results = read_results(options.results, "make release", outcomes=release.OUTCOMES)
        if options.command == "summary":
            print(release.summary(results))
        else:
            for result in results:
                print(keep_issue(GitHub.of_workflow(), result))


if __name__ == "__main__":
    sys.exit(main())
