"""`ml runs lineage`: the way from data to model, for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ml.backends.runs import LineageNode
from ml.cli.render.live import outcome
from ml.cli.render.runs_text import environment_of, release_of, sha
from ml.core.repository import shown

if TYPE_CHECKING:
    from ml.release.versions import Descendant


def lineage_lines(
    nodes: Sequence[LineageNode], versions: Sequence[Descendant]
) -> Iterator[tuple[str, str]]:
    """(label, text) lines: each run after those that it came from, then the versions of it."""
    for number, node in enumerate(nodes):
        if number:
            yield "", ""
        run = node.run
        reused = f", reused from {run.reused_from}" if run.reused_from else ""
        yield "run", f"{run.name} ({node.entry.kind}, {outcome(run)}{reused})"
        for data in node.inputs:
            origin = f"output `{data.output}` of {data.run}" if data.output else data.run
            # A registered asset is named with the run that made it, a step's output by that alone.
            source = data.source if not origin or "${{" not in data.source else ""
            text = " ← ".join(part for part in (source, origin) if part)
            yield f"  ← {data.name}", text + sha(data.digest)
        commit = str(node.code.get("commit", ""))[:12]
        if node.code:
            dirty = " with uncommitted changes" if commit and node.code.get("dirty") else ""
            snapshot_folder = f", kept in {shown(node.snapshot)}" if node.snapshot else ""
            snapshot = str(node.code.get("digest", ""))
            yield "  code", f"{commit or 'no commit'}{dirty}{sha(snapshot)}{snapshot_folder}"
        if environment := environment_of(node.entry.lineage):
            yield "  environment", environment
        for output in node.outputs:
            state = " (gone)" if output.digest is None else sha(output.digest)
            asset = f", registered as {output.asset}" if output.asset else ""
            yield f"  → {output.name}", f"{shown(output.path)}{state}{asset}"
    for version in versions:
        yield "", ""
        yield from release_of(version)


def as_json(nodes: Sequence[LineageNode], versions: Sequence[Descendant]) -> dict[str, Any]:
    """The same for a program; `runs` are in order, the one that was asked for is the last."""
    return {
        "runs": [_node(node) for node in nodes],
        "models": [version.to_json() for version in versions],
    }


def _node(node: LineageNode) -> dict[str, Any]:
    lineage = node.entry.lineage
    return {
        "run": node.run.name,
        "id": node.run.id,
        "kind": node.entry.kind,
        "status": node.run.status,
        "reused_from": node.run.reused_from or None,
        "spec": lineage.get("spec"),
        "data": {
            data.name: {
                "what": data.source,
                "digest": data.digest,
                "run": data.run or None,
                "output": data.output or None,
            }
            for data in node.inputs
        },
        "code": {**node.code, "kept": str(node.snapshot) if node.snapshot else None},
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
            for output in node.outputs
        },
    }
