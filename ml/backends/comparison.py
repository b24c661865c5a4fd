"""The differences between two runs: spec, data, code, files, parameters and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ml.backends.runs import OPEN, Entry, RunStore, TrackingUnavailable

# In the order in which they explain a difference.
SECTIONS = ("job", "data", "code", "files", "parameters", "metrics")


@dataclass(frozen=True)
class Difference:
    """A field in each of two runs; None where a run does not have it."""

    section: str
    name: str
    one: Any
    other: Any


def differences(runs: RunStore, entry: Entry, other: Entry) -> list[Difference]:
    """The fields in which the runs differ; none for two runs of the same job on the same data."""
    first, second = dict(_fields(runs, entry)), dict(_fields(runs, other))
    differing = [
        Difference(*key, first.get(key), second.get(key)) for key in first.keys() | second.keys()
    ]
    differing += _files(entry, other)
    differing.sort(key=lambda field: (SECTIONS.index(field.section), field.name))
    return [field for field in differing if not _same(field.one, field.other)]


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) or (value != value and other != other)  # NaN is the same as NaN


def _fields(runs: RunStore, entry: Entry) -> Iterator[tuple[tuple[str, str], Any]]:
    run, lineage = entry.run, entry.lineage
    metrics = run.metrics
    if run.status in OPEN:  # its record has no metrics yet
        with suppress(TrackingUnavailable):
            metrics = runs.metrics(run)
    yield ("job", "kind"), entry.kind
    yield ("job", "status"), run.status
    yield ("job", "experiment"), run.experiment
    yield ("job", "spec"), lineage.get("spec")
    yield ("job", "environment"), lineage.get("environment")
    for name, data in (lineage.get("data") or {}).items():
        yield ("data", name), data.get("asset") or data.get("source")
        yield ("data", f"{name} sha256"), data.get("digest")
    for name, value in (lineage.get("code") or {}).items():
        yield ("code", name), value
    for name, value in run.parameters.items():
        yield ("parameters", name), value
    for name, number in metrics.items():
        yield ("metrics", name), number


def _files(entry: Entry, other: Entry) -> Iterator[Difference]:
    """The files that differ between the two snapshots; none when a snapshot was removed."""
    first, second = entry.snapshot, other.snapshot
    if first is None or second is None or first == second:
        return
    paths = [(root, path) for root in (first, second) for path in root.rglob("*") if path.is_file()]
    names = {path.relative_to(root) for root, path in paths}
    for name in sorted(names):
        yield Difference("files", str(name), _digest(first / name), _digest(second / name))


def _digest(path: Path) -> str | None:
    return f"sha256:{sha256(path.read_bytes()).hexdigest()}" if path.is_file() else None
