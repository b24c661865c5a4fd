"""The lineage of a run as a graph: its steps, and the runs that its inputs came from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ml.backends.base import Datum, Entry, Link, Made, Run, RunStore
from ml.core import home
from ml.core.errors import Refused
from ml.specs.assets import assets

_STEP = re.compile(r"\$\{\{\s*(?:parent\.)?jobs\.([^.}]+)\.outputs\.([^.}\s]+)\s*\}\}$")


def ancestry(run: Run, runs: RunStore) -> list[Link]:
    """The runs that led to `run`, each after those that its data came from; `run` is the last.

    A pipeline comes after its steps; a sweep stands for its trials. A run that was removed ends the
    way: only its name is left.
    """
    links: dict[str, Link] = {}
    _follow(run, runs, links, set())
    return list(links.values())


def _follow(run: Run, runs: RunStore, links: dict[str, Link], visited: set[str]) -> None:
    if run.name in visited:
        return
    visited.add(run.name)
    entry = runs.entry(run)
    data = tuple(_data(entry, runs))
    for datum in data:
        source = _run(datum.run, runs)
        if source is not None:
            _follow(source, runs, links, visited)
    for step in run.steps:
        _follow(step, runs, links, visited)
    links[run.name] = Link(entry, data, tuple(_made(run)), runs.snapshot(entry))


def _data(entry: Entry, runs: RunStore) -> Iterator[Datum]:
    for name, data in (entry.lineage.get("data") or {}).items():
        source, asset = str(data.get("source") or ""), str(data.get("asset") or "")
        if not source and not asset:
            continue
        digest = str(data.get("digest") or "")
        step = _STEP.match(source)
        if step is not None:
            pipeline = entry.run.name.rpartition(".")[0]
            yield Datum(name, source, digest, f"{pipeline}.{step[1]}", step[2])
            continue
        run, output = _owner(source)
        if data.get("made_by"):
            run = str(data["made_by"])
            output = _output_of(_run(run, runs), asset)
        yield Datum(name, asset or source, digest, run, output)


def _owner(source: str) -> tuple[str, str]:
    """The run in whose folder a path lies, and the output that it is."""
    path = Path(source).absolute() if source and "${{" not in source else Path("/")
    if not path.is_relative_to(home.jobs().absolute()):
        return "", ""
    name, *inside = path.relative_to(home.jobs().absolute()).parts
    while len(inside) > 1 and inside[0] in {"steps", "trials"}:
        name += f"{'.' if inside[0] == 'steps' else '_'}{inside[1]}"
        inside = inside[2:]
    return name, inside[1] if len(inside) > 1 and inside[0] == "outputs" else ""


def _output_of(run: Run | None, asset: str) -> str:
    registered = run.registered if run else {}
    return next((output for output, name in registered.items() if name == asset), "")


def _run(name: str, runs: RunStore) -> Run | None:
    if not name:
        return None
    try:
        return runs.find(name)
    except Refused:
        return None


def _made(run: Run) -> Iterator[Made]:
    for name, path in run.outputs.items():
        target = path.resolve()
        digest = assets.digest(target) if target.exists() else None
        yield Made(name, path, digest, run.registered.get(name, ""))
