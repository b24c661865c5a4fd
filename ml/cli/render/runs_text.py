"""Format runs: rows of `ml runs list`, and one run with its lineage for `ml runs show`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml.backends.base import Backend
from ml.backends.runs import Entry, Run
from ml.backends.storage import size_of
from ml.core.errors import UserError
from ml.core.repository import shown
from ml.reports.formatting import ago, duration, size

if TYPE_CHECKING:
    from ml.release.versions import Descendant

COLUMNS = ("run", "job", "kind", "status", "experiment", "started", "took", "result")
# The maximum number of trials or steps that are printed of one run.
PARTS = 10
# Significant digits of metrics and parameters; job.json has all digits.
DIGITS = 5
_SHA = 19  # printed characters of a digest, including `sha256:`


def number(value: float) -> str:
    """Format a metric with DIGITS significant digits."""
    return f"{value:.{DIGITS}g}"


def parameters(values: Mapping[str, Any]) -> str:
    """Format parameters: `lr=0.1, depth=7`."""
    return ", ".join(f"{name}={short(value)}" for name, value in values.items())


def short(value: Any) -> str:
    """Format a parameter's value; floats have DIGITS significant digits."""
    return number(value) if isinstance(value, float) else str(value)


def outcome(run: Run) -> str:
    """Return the status, the cause of an early end, and the number of restarts."""
    details = [run.ended_by] if run.ended_by else []
    if run.restarts:
        count = len(run.restarts)
        details.append(f"evicted, restarted {'once' if count == 1 else f'{count} times'}")
    return f"{run.status} ({', '.join(details)})" if details else run.status


def ranked(trials: Iterable[Run], metric: str, goal: str) -> list[Run]:
    """Sort trials, best first; trials that are incomplete or lack the metric are last."""
    sign = -1 if goal == "maximize" else 1

    def rank(trial: Run) -> tuple[bool, bool, float]:
        value = trial.metrics.get(metric, float("nan"))
        return trial.status != "Completed", value != value, sign * value

    return sorted(trials, key=rank)


def row(entry: Entry, primary: Mapping[str, str]) -> list[str]:
    """Return a run's cells under COLUMNS; `primary` maps an experiment to its primary metric."""
    run = entry.run
    took = duration(run.active_s)
    what = [run.name, entry.display_name, entry.kind]
    where = [outcome(run), run.experiment, ago(run.started), took]
    return [*what, *where, _result(entry, primary.get(run.experiment, ""))]


def list_json(entry: Entry) -> dict[str, Any]:
    """Return a run's entry in `ml runs list --json`."""
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
        "tags": entry.tags,
        "project": entry.project,
        "spec": entry.lineage.get("spec"),
        "started": run.started,
        "ended": run.ended,
        "parameters": run.parameters,
        "metrics": run.metrics,
        "best": run.best,
        "trials": len(run.trials),
        "steps": len(run.steps),
        "error": run.error.code if run.error else None,
        "folder": run.folder,
    }


def run_json(backend: Backend, run: Run) -> dict[str, Any]:
    """Return the fields of job.json, with the run's folder and its outputs' absolute paths."""
    return {**backend.runs.document(run), "folder": run.folder, "outputs": run.outputs}


def _result(entry: Entry, primary: str) -> str:
    """Return a run's error code, or its number of completed parts and its metrics."""
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
    backend: Backend, entry: Entry, parent: str, versions: Sequence[Descendant]
) -> Iterator[tuple[str, str]]:
    """Yield (label, text) about a run: its fields, its lineage, and its model `versions`."""
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
    yield "started", f"{ago(run.started)}, took {duration(run.active_s)}"
    if run.pauses:
        times = "once" if len(run.pauses) == 1 else f"{len(run.pauses)} times"
        paused_s = sum(pause.until - pause.since for pause in run.pauses)
        yield "resumed", f"{times}; stopped for {duration(paused_s)} in all"
    for pause in run.pauses:
        yield "", f"stopped {ago(pause.since)} ({pause.ended_by}), resumed {ago(pause.until)}"
    for count, attempt in enumerate(run.former, 1):
        yield f"attempt {count}", f"{outcome(attempt)}, not counted; see {shown(attempt.folder)}"
    yield "disk", f"{size(size_of(run.folder))} in {shown(run.folder)}"
    try:
        if log := backend.runs.logs(run).get("0"):
            yield "log", shown(log)
    except UserError as refused:
        yield "log", refused.problems[0].actual
    for count, moment in enumerate(run.restarts, 1):
        yield f"restart {count}", f"{ago(moment)}, after an eviction"
    for name, value in run.parameters.items():
        yield f"parameter {name}", str(value)
    for name, value in run.metrics.items():
        yield f"metric {name}", number(value)
    yield from _parts(entry)
    yield "", ""
    for name, data in (lineage.get("data") or {}).items():
        where = str(data.get("asset") or data.get("source") or "not given")
        yield f"data {name}", where + _sha(data.get("digest"))
    if code := lineage.get("code"):
        yield "→ code", _code(code, entry.snapshot)
    if lineage.get("spec"):
        yield "  spec", str(lineage["spec"])
    if environment := _environment(lineage):
        yield "  environment", environment
    yield "→ run", run.name + (f", part of {parent}" if parent else "")
    if run.reused_from:
        yield "  reused from", run.reused_from
    for name, path in run.outputs.items():
        lost = "gone" if run.status == "Completed" else "not written"
        yield f"  output {name}", output_text(run, name, path, lost)
    for version in versions:
        yield from _release(version)


def output_text(run: Run, name: str, path: Path, lost: str) -> str:
    """Return an output's path, with `(LOST)` if it does not exist, and the registered asset."""
    asset = f", registered as {run.registered[name]}" if name in run.registered else ""
    return shown(path) + ("" if path.exists() else f" ({lost})") + asset


def _code(code: Mapping[str, Any], snapshot: Path | None) -> str:
    """Return the commit, and the digest and folder of the code snapshot.

    A pipeline has no snapshot; its steps have.
    """
    commit = str(code.get("commit") or "")[:12]
    dirty = " with uncommitted changes" if commit and code.get("dirty") else ""
    origin = f"{commit or 'no commit'}{dirty}{_sha(code.get('digest'))}"
    if not code.get("digest"):
        return origin
    return f"{origin}, copied to {shown(snapshot)}" if snapshot else f"{origin}, copy removed"


def _environment(lineage: Mapping[str, Any]) -> str:
    """Return the spec's environment and the local Python that replaced it; "" without one."""
    if not lineage.get("environment"):
        return ""
    requested = f"{lineage['environment']}{_sha(lineage.get('environment_digest'))}"
    python = lineage.get("interpreter") or {}
    if not python:
        return requested
    built = f"built as {python['built']}" if python.get("built") else "this interpreter"
    return f"{requested} → {built}, Python {python.get('python')}"


def _sha(digest: str | None) -> str:
    """Return ` (sha256:0123…)` with the beginning of a digest; "" without one."""
    return f" ({digest[:_SHA]})" if digest else ""


def _release(version: Descendant) -> Iterator[tuple[str, str]]:
    """Yield (label, text) about a run's model version: its releases and its servers."""
    how = {"made": "", "same files": ", first made by another run", "evaluated": ", measured here"}
    name = f"{version.model} {version.version}"
    yield "→ model", f"{name} ({version.digest[:_SHA]}{how[version.relation]})"
    states = [f"declared in {environment}" for environment in version.declared]
    states += [f"champion in {environment}" for environment in version.champion]
    if states:
        yield "  release", ", ".join(states)
    for server in version.serving:
        where = f"at {server.url}" if server.url else "(stopped)"
        yield "→ serves", f"{server.endpoint} {where}"


def _parts(entry: Entry) -> Iterator[tuple[str, str]]:
    run, metric = entry.run, entry.objective[0] if entry.objective else ""
    trials = ranked(run.trials, *entry.objective) if entry.objective else run.trials
    for what, parts in (("step", run.steps), ("trial", trials)):
        for part in parts[:PARTS]:
            best = ", the best" if part.name == run.best else ""
            names = [metric] if metric in part.metrics else sorted(part.metrics)[:2]
            texts = [outcome(part) + best, parameters({name: part.metrics[name] for name in names})]
            texts.append(f"({parameters(part.parameters)})" if what == "trial" else "")
            texts.append(f"reused from {part.reused_from}" if part.reused_from else "")
            name = f"{what} {part.name.removeprefix(run.name)[1:]}"
            yield name, "  ".join(text for text in texts if text)
        if len(parts) > PARTS:
            yield f"{what}s", f"and {len(parts) - PARTS} more (--json has all)"
