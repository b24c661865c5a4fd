"""A promotion: the summary of what was trained and decided, and the pull request of a version that
passed. It needs no package besides Python's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml.core.markdown import code, text
from ml.reports.json_values import Value
from ml.reports.pull_requests.comparison import fit, sections, title


def summary(documents: Sequence[Mapping[str, Any]]) -> str:
    """Each candidate beside the champion, with what the gates decided, as Markdown."""
    candidates = [_section(Value(document)) for document in documents]
    return "\n\n".join(candidates) or "The change touches no project that trains."


def _section(document: Value) -> str:
    compared = document["comparison"]
    if not compared:
        return f"### {document['project'].code()} failed\n\n{document['error'].text(2000)}"
    return fit([title(compared), *_jobs(document), *sections(compared)])


def _jobs(document: Value) -> list[str]:
    """The jobs that ran and what they left, which is all that may be registered."""
    candidate = document["comparison"]["candidate"]
    rows = [
        f"| {job['run'].code()} | {text(name)} | {digest.code()} |"
        for _, job in document["jobs"].fields()
        for name, digest in job["outputs"].fields()
    ]
    if not rows:
        return []
    head = f"Model {candidate['digest'].code()}, the output of exactly these jobs:"
    return ["\n".join([head, "", "| job | output | content |", "|---|---|---|", *rows])]


def request(
    project: str, environment: str, version: str, compared: Value, address: str
) -> tuple[str, str]:
    """The title and the body; commits are linked under the address of the repository."""
    merging = (
        f"Merging this declares version {code(version)} of {text(project)} for "
        f"{code(environment)}; `release.yml` then evaluates the gates again and applies it "
        "through a canary. The evidence was collected and attested on main."
    )
    first, *others = sections(compared, address)
    body = fit([title(compared), first, merging, *others])
    return f"Promote {project} {version} to {environment}", body
