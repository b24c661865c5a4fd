"""What two runs have in common and where they part: values, results, data, code, environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ml.backends.local.runs.listing import Entry, with_latest_metrics
from ml.core import home

# Where each comes from, in the order in which it explains a difference.
SECTIONS = ("job", "data", "code", "files", "parameters", "metrics")


@dataclass(frozen=True)
class Difference:
    """One field in the one run and the other, None where a run has none of it."""

    section: str
    name: str
    one: Any
    other: Any


def differences(one: Entry, other: Entry) -> list[Difference]:
    """Where the runs differ; nothing in it means that they are the same run twice."""
    ours, theirs = (dict(_fields(entry)) for entry in (one, other))
    keys = sorted(ours.keys() | theirs.keys(), key=lambda key: (SECTIONS.index(key[0]), key[1]))
    found = [Difference(*key, ours.get(key), theirs.get(key)) for key in keys]
    found += [Difference("files", *parted) for parted in _files(one, other)]
    found.sort(key=lambda difference: SECTIONS.index(difference.section))
    return [difference for difference in found if not _same(difference)]


def _same(difference: Difference) -> bool:
    # NaN is no difference to NaN.
    return bool(difference.one == difference.other) or (
        difference.one != difference.one and difference.other != difference.other
    )


def _fields(entry: Entry) -> Iterator[tuple[tuple[str, str], Any]]:
    run, lineage = with_latest_metrics(entry.run), entry.lineage
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
    for name, number in run.metrics.items():
        yield ("metrics", name), number


def _files(one: Entry, other: Entry) -> Iterator[tuple[str, str | None, str | None]]:
    """The files of the two snapshots that are not alike; none when a snapshot was removed."""
    ours, theirs = snapshot_of(one.lineage), snapshot_of(other.lineage)
    if ours is None or theirs is None or ours == theirs:
        return
    names = {path.relative_to(folder) for folder in (ours, theirs) for path in _below(folder)}
    for name in sorted(names):
        here, there = ours / name, theirs / name
        both = here.is_file() and there.is_file()
        if not both or here.read_bytes() != there.read_bytes():
            yield str(name), _digest(here), _digest(there)


def _digest(path: Path) -> str | None:
    return f"sha256:{sha256(path.read_bytes()).hexdigest()}" if path.is_file() else None


def snapshot_of(lineage: Mapping[str, Any]) -> Path | None:
    """The copy of the code that a run worked with, while it is kept."""
    digest = str((lineage.get("code") or {}).get("digest", "")).removeprefix("sha256:")
    folder = home.snapshots() / digest
    return folder if digest and folder.is_dir() else None


def _below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
