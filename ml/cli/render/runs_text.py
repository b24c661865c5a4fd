"""Runs as a person reads them: rows of the list, one run with its lineage, differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml.backends.base import Backend
from ml.backends.comparison import Difference
from ml.backends.runs import Entry, Run
from ml.cli.render.live import number, outcome, parameters
from ml.cli.render.units import ago, size, span
from ml.core.repository import shown

if TYPE_CHECKING:
    from ml.release.versions import Descendant

COLUMNS = ("run", "job", "kind", "status", "experiment", "started", "took", "result")
# Trials and steps of one run that are shown; a sweep may have a thousand.
PARTS = 10
_SHA = 19  # of "sha256:…": enough to tell two apart


def row(entry: Entry, primary: Mapping[str, str]) -> list[str]:
    """A run as a row under COLUMNS; `primary` is the metric that each experiment's sweeps rank."""
    run = entry.run
    took = span(run.active_s)
    what = [run.name, entry.display_name, entry.kind]
    where = [outcome(run), run.experiment, ago(run.started), took]
    return [*what, *where, _result(entry, primary.get(run.experiment, ""))]


def as_json(entry: Entry) -> dict[str, Any]:
    """A run as an element of the list."""
    run = entry.run
    return {
        "name": run.name,
        "id": run.id,
        "kind": entry.kind,
        "status": run.status,
        "ended_by": run.ended_by,
        "experiment": run.experiment,
        "display_name": entry.display_name,
        "description": str(entry.lineage.get("description") or ""),
        "tags": dict(entry.tags),
        "project": entry.project,
        "spec": entry.lineage.get("spec"),
        "started": run.started,
        "ended": run.ended,
        "parameters": dict(run.parameters),
        "metrics": {key: _finite(value) for key, value in run.metrics.items()},
        "best": run.best,
        "trials": len(run.trials),
        "steps": len(run.steps),
        "error": run.error.code if run.error else None,
        "folder": str(run.folder),
    }


def _finite(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def _result(entry: Entry, primary: str) -> str:
    """What it came to, in a few words."""
    run = entry.run
    if run.error and run.status == "Failed":
        return f"[{run.error.code}]"
    done = sum(part.status == "Completed" for part in (*run.steps, *run.trials))
    texts = []
    if run.steps or run.trials:
        texts.append(f"{done}/{len(run.steps or run.trials)} {'steps' if run.steps else 'trials'}")
    names = [primary] if primary in run.metrics else sorted(run.metrics)[:2]
    texts += [f"{name}={number(run.metrics[name])}" for name in names]
    return ", ".join(texts)


def run_lines(
    backend: Backend, entry: Entry, parent: str, came: Sequence[Descendant]
) -> Iterator[tuple[str, str]]:
    """(label, text) lines about one run, what it came from before what came of it."""
    run, lineage = entry.run, entry.lineage
    yield "run", f"{run.name} ({entry.kind}, {run.id or 'never started'})"
    yield "status", outcome(run)
    if entry.display_name:
        yield "job", entry.display_name
    if lineage.get("description"):
        yield "description", str(lineage["description"])
    yield "experiment", run.experiment
    for tag, label in entry.tags.items():
        yield f"tag {tag}", label
    yield "started", f"{ago(run.started)}, took {span(run.active_s)}"
    if run.pauses:
        times = "once" if len(run.pauses) == 1 else f"{len(run.pauses)} times"
        yield "resumed", f"{times}; it stood still for {span(_stood_still(run))} in all"
    for pause in run.pauses:
        stopped = f"stopped {ago(pause.since)} ({pause.ended_by})"
        yield "", f"{stopped}, went on {ago(pause.until)}"
    for count, attempt in enumerate(run.former, 1):
        where = f"{outcome(attempt)}, kept in {shown(attempt.folder)}"
        yield f"attempt {count}", f"{where}, counts for nothing"
    yield "disk", f"{size(backend.storage.size(run))} in {shown(run.folder)}"
    if (went := backend.storage.evicted(run)) is not None:
        yield "outputs", f"some went {ago(went)} to keep the disk within its bound"
    if backend.storage.is_kept(run):
        yield "kept", f"never makes room (ml runs keep --undo {run.name})"
    if log := backend.runs.logs(run).get("0"):
        yield "log", shown(log)
    for number_of, moment in enumerate(run.restarts, 1):
        yield f"restart {number_of}", f"{ago(moment)}, after an eviction"
    for name, value in run.parameters.items():
        yield f"parameter {name}", str(value)
    for name, measured in run.metrics.items():
        yield f"metric {name}", number(measured)
    yield from _parts(entry)
    yield "", ""
    yield from _origin(lineage, backend.runs.snapshot(entry))
    yield "→ run", run.name + (f", part of {parent}" if parent else "")
    if run.reused_from:
        yield "  reused from", run.reused_from
    for name, path in run.outputs.items():
        asset = f", registered as {run.registered[name]}" if name in run.registered else ""
        lost = "gone" if run.status == "Completed" or went is not None else "not written"
        state = "" if path.exists() else f" ({lost})"
        yield f"  output {name}", shown(path) + state + asset
    for version in came:
        yield from release_of(version)


def _stood_still(run: Run) -> float:
    return sum(pause.until - pause.since for pause in run.pauses)


def _origin(lineage: Mapping[str, Any], snapshot: Path | None) -> Iterator[tuple[str, str]]:
    for name, data in (lineage.get("data") or {}).items():
        digest = str(data.get("digest", ""))[:_SHA]
        where = str(data.get("asset") or data.get("source") or "not given")
        yield f"data {name}", where + (f" ({digest})" if digest else "")
    code = lineage.get("code") or {}
    if code:
        commit = str(code.get("commit", ""))[:12] or "no commit"
        dirty = ", with uncommitted changes" if code.get("dirty") and code.get("commit") else ""
        yield "→ code", f"{commit}{dirty}"
    if code.get("digest"):
        yield (
            "  snapshot",
            f"{code['digest'][:_SHA]} ({shown(snapshot) if snapshot else 'removed'})",
        )
    if lineage.get("spec"):
        yield "  spec", str(lineage["spec"])
    if environment := environment_of(lineage):
        yield "  environment", environment


def environment_of(lineage: Mapping[str, Any]) -> str:
    """The environment that was asked for, and the Python that stood for it."""
    if not lineage.get("environment"):
        return ""
    requested = f"{lineage['environment']}{sha(str(lineage.get('environment_digest') or ''))}"
    python = lineage.get("interpreter") or {}
    if not python:
        return requested
    built = f"built as {python['built']}" if python.get("built") else "this interpreter"
    return f"{requested} → {built}, Python {python.get('python')}"


def sha(digest: str) -> str:
    """The beginning of a digest in brackets, "" without one."""
    return f" ({digest[:_SHA]})" if digest else ""


def release_of(version: Descendant) -> Iterator[tuple[str, str]]:
    """A model version that came of a run, its release and where it serves."""
    how = {"made": "", "same files": ", first made by another run", "evaluated": ", measured here"}
    name = f"{version.model} {version.version}"
    yield "→ model", f"{name} ({version.digest[:_SHA]}{how[version.relation]})"
    states = [f"declared in {environment}" for environment in version.declared]
    states += [f"champion in {environment}" for environment in version.champion]
    if states:
        yield "  release", ", ".join(states)
    for server in version.serving:
        yield (
            "→ serves",
            f"{server.endpoint} at {server.url}" if server.url else f"{server.endpoint} (stopped)",
        )


def _parts(entry: Entry) -> Iterator[tuple[str, str]]:
    run = entry.run
    for what, parts in (("step", run.steps), ("trial", _ranked(entry))):
        for part in parts[:PARTS]:
            best = ", the best" if part.name == run.best else ""
            metrics = dict(sorted(part.metrics.items())[:2])
            if entry.objective and entry.objective[0] in part.metrics:
                metrics = {entry.objective[0]: part.metrics[entry.objective[0]]}
            texts = [outcome(part) + best, parameters(metrics)]
            texts.append(f"({parameters(part.parameters)})" if what == "trial" else "")
            reused = f"reused from {part.reused_from}" if part.reused_from else ""
            name = f"{what} {part.name.removeprefix(run.name)[1:]}"
            yield name, "  ".join(text for text in (*texts, reused) if text)
        if len(parts) > PARTS:
            yield f"{what}s", f"and {len(parts) - PARTS} more (--json has all)"


def _ranked(entry: Entry) -> Sequence[Run]:
    """Trials: the best first, those that were not measured last."""
    if entry.objective is None:
        return entry.run.trials
    metric, goal = entry.objective
    sign = -1 if goal == "maximize" else 1

    def rank(trial: Run) -> tuple[bool, bool, float]:
        value = trial.metrics.get(metric, float("nan"))
        return trial.status != "Completed", value != value, sign * value

    return sorted(entry.run.trials, key=rank)


def aligned(pairs: Iterable[tuple[str, str]]) -> str:
    """Label and text in two columns."""
    listed = list(pairs)
    width = max((len(label) for label, _ in listed), default=0)
    return "\n".join(f"{label:<{width}}  {text}".rstrip() for label, text in listed)


def cells(difference: Difference) -> list[str]:
    """A difference as a row: section, name, the one, the other, by how much."""
    first, second = difference.one, difference.other
    texts = [_cell(difference, value) for value in (first, second)]
    by = ""
    if difference.section == "metrics" and None not in (first, second):
        by = f"{second - first:+.5g}"
    return [difference.section, difference.name, *texts, by]


def _cell(difference: Difference, value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return number(value)
    is_hash = difference.section in {"data", "code", "files"} and len(str(value)) > 2 * _SHA
    is_hash = is_hash and " " not in str(value) and "/" not in str(value)
    return str(value)[:_SHA] if is_hash else str(value)
