"""Known vulnerabilities of packages, from a local copy of OSV records, without network access.

The copy is a folder of OSV JSON files, a zip of them as osv.dev publishes for each ecosystem, or
one file with a list (https://ossf.github.io/osv-schema/). An export has no date, so it is derived
from the newest records. It skips a few, so that one record dated today cannot make an old export
look new.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from policies.supply_chain.packages import Package

ECOSYSTEM = "PyPI"
# The date of an export skips one newest record per this many, about 15 of osv.dev's.
NEWER = 1000


class AdvisoriesError(Exception):
    """A source of advisories cannot be read, or contains something else than OSV records."""


@dataclass(frozen=True)
class Advisories:
    """The security advisories of a source, as OSV records."""

    records: tuple[Mapping[str, Any], ...]

    @property
    def as_of(self) -> datetime:
        """The date of the newest record, after skipping one per NEWER records."""
        relevant = [record for record in self.records if any(_affected(record))] or self.records
        changed = {str(record["id"]): _changed(record) for record in sorted(relevant, key=_changed)}
        return sorted(changed.values(), reverse=True)[len(changed) // NEWER]

    @property
    def count(self) -> int:
        """The number of different advisories about packages of ECOSYSTEM.

        An export of osv.dev has thousands; a source with few is incomplete or of another ecosystem.
        """
        return len({str(record["id"]) for record in self.records if any(_affected(record))})

    def affecting(self, packages: Iterable[Package]) -> tuple[str, ...]:
        """Return `ID: NAME VERSION` of each record that affects a package and is not withdrawn.

        A version or range that cannot be parsed counts as affected.
        """
        by_name = {package.name: package.installed or package.locked for package in packages}
        return tuple(
            sorted(
                {
                    f"{record['id']}: {name} {by_name[name]}"
                    for record in self.records
                    if not record.get("withdrawn")
                    for name, affected in _affected(record)
                    if name in by_name and _affects(affected, by_name[name])
                }
            )
        )


def read(source: Path) -> Advisories:
    """Read the advisories of a folder, zip or file; raise AdvisoriesError if it is invalid."""
    records: list[Mapping[str, Any]] = []
    for name, content in _files(source):
        try:
            document = json.loads(content)
            for record in document if isinstance(document, list) else [document]:
                if not isinstance(record["id"], str) or _changed(record).tzinfo is None:
                    raise ValueError("no `id`, or `modified` without a zone")
                list(_affected(record))
                records.append(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise AdvisoriesError(f"{name} is not an OSV record: {error!r}") from None
    if not records:
        raise AdvisoriesError(f"{source} has no records")
    return Advisories(tuple(records))


def _changed(record: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(record["modified"])


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if source.is_dir():
            for path in sorted(source.rglob("*.json")):
                yield str(path), path.read_bytes()
        elif source.suffix == ".zip":
            with zipfile.ZipFile(source) as archive:
                for name in archive.namelist():
                    yield f"{source}/{name}", archive.read(name)
        else:
            yield str(source), source.read_bytes()
    except (OSError, zipfile.BadZipFile) as error:
        raise AdvisoriesError(str(error)) from None


def _affected(record: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for affected in record.get("affected", ()):
        package = affected.get("package") or {}
        if package.get("ecosystem") == ECOSYSTEM:
            yield canonicalize_name(package["name"]), affected


def _affects(affected: Mapping[str, Any], version: str) -> bool:
    """Return whether a version is affected, by the evaluation algorithm of the OSV schema."""
    listed, ranges = affected.get("versions") or (), affected.get("ranges") or ()
    if version in listed or not (listed or ranges):
        return True
    try:
        ours = Version(version)
        if any(ours == Version(listed_version) for listed_version in listed):
            return True
        return any(_contains(span, ours) for span in ranges if span.get("type") != "GIT")
    except (InvalidVersion, KeyError, TypeError, AttributeError):
        return True


def _contains(affected_range: Mapping[str, Any], ours: Version) -> bool:
    events = [
        (kind, version_text)
        for event in affected_range["events"]
        for kind, version_text in event.items()
    ]
    inside = False
    order = {"introduced": 0, "fixed": 1, "last_affected": 2}
    changes = [
        (Version("0.dev0" if version_text == "0" else version_text), order[kind], kind)
        for kind, version_text in events
        if kind in order
    ]
    for version, _, kind in sorted(changes):
        if kind == "introduced" and ours >= version:
            inside = True
        elif (kind == "fixed" and ours >= version) or (kind == "last_affected" and ours > version):
            inside = False
    return inside
