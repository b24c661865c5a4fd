"""Write the job summary of a release, the issue about a rollback, and the revert's pull request.

Also writes the texts of a template update's pull request. Needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml.core.markdown import block, code, link, table, text

OUTCOMES = {
    "applied": "✅ {model} {version} now serves",
    "unchanged": "✅ {model} {version} already serves, as declared",
    "rejected": "❌ {model} {version} is rejected; version {serving} serves",
    "rolled-back": "❌ {model} {version} was rolled back; version {serving} serves",
    "failed": "❌ {model} {version} could not be applied; version {serving} serves",
}


def summary(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results of the projects' releases as Markdown."""
    if not results:
        return "Nothing is declared."
    return "\n\n".join(_section(result) for result in results)


def _section(result: Mapping[str, Any]) -> str:
    fields = {name: code(result.get(name) or "nothing") for name in ("model", "version", "serving")}
    head = f"### {OUTCOMES[result['outcome']].format(**fields)}"
    words = [f"In {code(result['environment'])}, approved by {text(result['approved_by'])}."]
    words += [
        f"- {code(gate['gate'])}: {text(gate['actual'])}; required: {text(gate['required'])}"
        for gate in result["gates"]
    ]
    for problem in result["problems"]:
        lines = [f"{problem['code']}: {problem['actual']}", f"expected: {problem['expected']}"]
        lines += [f"hint: {problem['hint']}"] if problem["hint"] else []
        words.append(block(lines))
    if result["canary"]:
        words.append(_figures(result["canary"]))
    return "\n\n".join([head, "\n".join(words)])


def _figures(canary: Mapping[str, Any]) -> str:
    """Return tables of the canary's signals and of the requests and errors of each deployment."""
    signals = [
        [code(name), text(signal["sentence"]), text(signal["log_e_value"]), text(signal["limit"])]
        for name, signal in canary["signals"].items()
    ]
    requests = [
        [code(name), str(count), str(canary["errors"].get(name, 0))]
        for name, count in canary["requests"].items()
    ]
    return "\n\n".join(
        [
            "",
            f"At {canary['at_percent']} % of the traffic, after {canary['seconds']} s:",
            table(("signal", "observation", "log e-value", "limit"), signals, 2),
            table(("deployment", "requests", "errors"), requests, 2),
        ]
    )


def issue(result: Mapping[str, Any], pulls: str) -> tuple[str, str]:
    """Return title and body of the issue about a rollback; `pulls` is the URL of the revert."""
    title = f"Rolled back: {result['project']} {result['version']} in {result['environment']}"
    body = (
        f"{_section(result)}\n\n{link('A pull request', pulls)} reverts the declaration. Until "
        "it is merged, every release to this environment stops here. To retry the version, propose "
        "it again. `release.yml` updates this issue, and closes it once the declared version "
        "serves."
    )
    return title, body


def revert(result: Mapping[str, Any], commit: str) -> tuple[str, str]:
    """Return title and body of the pull request that reverts a commit's declaration."""
    title = f"Revert {result['project']} {result['version']} in {result['environment']}"
    body = (
        f"{_section(result)}\n\nThis reverts what {commit} declared for "
        f"{code(result['environment'])}, so that the serving version is the declared one again."
    )
    return title, body


def update_request(
    before: str, after: str, conflicts: Mapping[str, str], left: Sequence[str]
) -> tuple[str, str]:
    """Return title and body of the pull request that updates the template from one version.

    `conflicts` maps files that need a decision to the reason; `left` are files that stay deleted.
    """
    lines = [f"The template's changes from {before} to {after}, merged with yours."]
    if conflicts:
        lines += [
            "",
            "**Merge conflicts** in these files. Resolve them on this branch: while a file has "
            "conflict markers, the check `required` fails.",
            "",
            *(f"- `{name}`: {why}" for name, why in conflicts.items()),
        ]
    if left:
        lines += [
            "",
            "You deleted these files and the template changed them; they stay deleted.",
            "",
        ]
        lines += [f"- `{name}`" for name in left]
    return f"Template {after}", "\n".join(lines)


def replaced_update(newer: int, people: str) -> str:
    """Return the comment on an older update's pull request, on which `people` have commits.

    `newer` is the number of the newer pull request.
    """
    return (
        f"A newer version of the template is in #{newer}, which does not have the commits of "
        f"{people}. Cherry-pick what it needs, then close this one."
    )
