"""`ml runs lineage`: the way from data to model, for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ml.backends.base import Link
from ml.cli.render.live import outcome
from ml.cli.render.runs_text import environment_of, release_of, sha
from ml.core.repository import shown

if TYPE_CHECKING:
    from ml.release.versions import Descendant


def lineage_lines(
    links: Sequence[Link], versions: Sequence[Descendant]
) -> Iterator[tuple[str, str]]:
    """(label, text) lines: each run after those that it came from, then the versions of it."""
    for number, link in enumerate(links):
        if number:
            yield "", ""
        run = link.run
        reused = f", reused from {run.reused_from}" if run.reused_from else ""
        yield "run", f"{run.name} ({link.entry.kind}, {outcome(run)}{reused})"
        for data in link.data:
            origin = f"output `{data.output}` of {data.run}" if data.output else data.run
            # A registered asset is named with the run that made it, a step's output by that alone.
            what = data.what if not origin or "${{" not in data.what else ""
            text = " ← ".join(part for part in (what, origin) if part)
            yield f"  ← {data.name}", text + sha(data.digest)
        commit = str(link.code.get("commit", ""))[:12]
        if link.code:
            dirty = " with uncommitted changes" if commit and link.code.get("dirty") else ""
            snapshot_folder = f", kept in {shown(link.snapshot)}" if link.snapshot else ""
            snapshot = str(link.code.get("digest", ""))
            yield "  code", f"{commit or 'no commit'}{dirty}{sha(snapshot)}{snapshot_folder}"
        if environment := environment_of(link.entry.lineage):
            yield "  environment", environment
        for output in link.made:
            state = " (gone)" if output.digest is None else sha(output.digest)
            asset = f", registered as {output.asset}" if output.asset else ""
            yield f"  → {output.name}", f"{shown(output.path)}{state}{asset}"
    for version in versions:
        yield "", ""
        yield from release_of(version)


def as_json(links: Sequence[Link], versions: Sequence[Descendant]) -> dict[str, Any]:
    """The same for a program; `runs` are in order, the one that was asked for is the last."""
    return {
        "runs": [_link(link) for link in links],
        "models": [version.to_json() for version in versions],
    }


def _link(link: Link) -> dict[str, Any]:
    lineage = link.entry.lineage
    return {
        "run": link.run.name,
        "id": link.run.id,
        "kind": link.entry.kind,
        "status": link.run.status,
        "reused_from": link.run.reused_from or None,
        "spec": lineage.get("spec"),
        "data": {
            data.name: {
                "what": data.what,
                "digest": data.digest,
                "run": data.run or None,
                "output": data.output or None,
            }
            for data in link.data
        },
        "code": {**link.code, "kept": str(link.snapshot) if link.snapshot else None},
        "environment": {
            "reference": lineage.get("environment"),
            "digest": lineage.get("environment_digest"),
            "interpreter": lineage.get("interpreter"),
        },
        "outputs": {
            output.name: {
                "path": str(output.path),
                "digest": output.digest,
                "registered": output.asset or None,
            }
            for output in link.made
        },
    }
