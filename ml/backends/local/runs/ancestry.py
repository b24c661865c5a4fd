"""The way from data to what a run made: its steps, and the runs that its inputs came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml.backends.base import Datum, Entry, Link, Made, Run
from ml.backends.local.runs import runs
from ml.backends.local.runs.listing import entry_of
from ml.core import home
from ml.core.errors import Refused
from ml.specs.assets import assets

_STEP = re.compile(r"\$\{\{\s*(?:parent\.)?jobs\.([^.}]+)\.outputs\.([^.}\s]+)\s*\}\}$")


def ancestry(run: Run) -> list[Link]:
    """The runs on the way to `run`, each after those that its data came from; `run` is the last.

    A pipeline stands after its steps; of a sweep the sweep stands for its trials. A run that is
    gone ends the way: its name is still told.
    """
    found: dict[str, Link] = {}
    _follow(run, found, set())
    return list(found.values())


def _follow(run: Run, found: dict[str, Link], open_: set[str]) -> None:
    if run.name in found or run.name in open_:
        return
    open_.add(run.name)
    entry = entry_of(run)
    data = tuple(_data(entry))
    for datum in data:
        before = _run(datum.run)
        if before is not None:
            _follow(before, found, open_)
    for step in run.steps:
        _follow(step, found, open_)
    found[run.name] = Link(entry, data, tuple(_made(run)), snapshot_of(entry.lineage))


def _data(entry: Entry) -> Iterator[Datum]:
    for name, one in (entry.lineage.get("data") or {}).items():
        source, asset = str(one.get("source") or ""), str(one.get("asset") or "")
        if not source and not asset:
            continue
        digest = str(one.get("digest") or "")
        step = _STEP.match(source)
        if step is not None:
            above = entry.run.name.rpartition(".")[0]
            yield Datum(name, source, digest, f"{above}.{step[1]}", step[2])
            continue
        run, output = _owner(source)
        if one.get("made_by"):
            run, output = str(one["made_by"]), _output_of(str(one["made_by"]), asset)
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


def _output_of(name: str, asset: str) -> str:
    run = _run(name)
    return next((o for o, one in run.registered.items() if one == asset), "") if run else ""


def _run(name: str) -> Run | None:
    if not name:
        return None
    try:
        return runs.find(name)
    except Refused:
        return None


def _made(run: Run) -> Iterator[Made]:
    for name, path in run.outputs.items():
        there = path.resolve()
        digest = assets.digest(there) if there.exists() else None
        yield Made(name, path, digest, run.registered.get(name, ""))


def snapshot_of(lineage: Mapping[str, Any]) -> Path | None:
    """The folder with the code as it ran; None once it was removed."""
    digest = str((lineage.get("code") or {}).get("digest", "")).removeprefix("sha256:")
    folder = home.snapshots() / digest
    return folder if digest and folder.is_dir() else None
