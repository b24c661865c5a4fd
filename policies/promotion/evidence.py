"""What is known about a model version when somebody asks whether it may be promoted.

Every leaf may be None: absent or of the wrong type is the same to a gate, and a gate refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Estimate:
    """A metric on a split: its value, the 95 % interval around it, and how many units it counts."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    count: float | None = None


@dataclass(frozen=True)
class Lineage:
    """Where a model comes from; `parent_run` equals `run` for a model of no sweep or pipeline."""

    run: str | None = None
    parent_run: str | None = None
    code_snapshot: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    environment: str | None = None
    feature_set_hash: str | None = None
    hyperparameters: Mapping[str, object] | None = None
    seed: float | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds at the 50th, 95th and 99th percentile over `requests` warm, served requests.

    `hardware` is the machine measured on, `instance_type` the one that the deployment asks for.
    """

    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    requests: float | None = None
    hardware: str | None = None
    instance_type: str | None = None


@dataclass(frozen=True)
class DataVersion:
    """The data asset (`azureml:name:version`) that a model was made from, and its sha256."""

    asset: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class LockedPackage:
    """A package: its version in the lock, the one that is installed, its licence as SPDX."""

    locked: str | None = None
    installed: str | None = None
    licence: str | None = None


@dataclass(frozen=True)
class SupplyChain:
    """The packages that a model was made with, and what is known against them.

    `sbom` is the sha256 of the bill of materials. `as_of` dates the source of advisories and
    `advisories` lists what it has on these packages; both are None when no source was read.
    """

    packages: Mapping[str, LockedPackage] = field(default_factory=dict)
    sbom: str | None = None
    as_of: datetime | None = None
    advisories: tuple[str, ...] | None = None


Metrics = Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class Evidence:
    """The evidence of one model version.

    The last three fields are never read from the document: whoever loads it makes them afresh from
    the model folder and the hashed predictions. `files` maps each file of the model folder to the
    format that its content shows ("" when none is recognised). `disagreements` lists what differs
    between the document and the predictions; None says that nobody looked. `outcomes` holds the
    primary metric of every unit: split → unit id → value.
    """

    schema_version: float | None = None
    created: datetime | None = None
    project: str | None = None
    model: str | None = None
    version: str | None = None
    digest: str | None = None
    primary_metric: str | None = None
    goal: str | None = None
    metrics: Metrics = field(default_factory=dict)
    baseline: Metrics = field(default_factory=dict)
    data: Mapping[str, DataVersion] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    latency: Latency = field(default_factory=Latency)
    supply_chain: SupplyChain = field(default_factory=SupplyChain)
    files: Mapping[str, str] | None = None
    disagreements: tuple[str, ...] | None = None
    outcomes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def parse(document: object) -> Evidence:
    """The evidence that a JSON document states; what is absent or of a wrong type becomes None."""
    top = _mapping(document)
    model = _mapping(top.get("model"))
    lineage = _mapping(top.get("lineage"))
    latency = _mapping(top.get("latency"))
    hyperparameters = lineage.get("hyperparameters")
    dirty = lineage.get("dirty")
    return Evidence(
        schema_version=_number(top.get("schema_version")),
        created=_time(top.get("created")),
        project=_text(top.get("project")),
        model=_text(model.get("name")),
        version=_text(model.get("version")),
        digest=_text(model.get("digest")),
        primary_metric=_text(top.get("primary_metric")),
        goal=_text(top.get("goal")),
        metrics=_metrics(top.get("metrics")),
        baseline=_metrics(top.get("baseline")),
        data={
            str(name): DataVersion(
                _text(_mapping(of).get("asset")), _text(_mapping(of).get("sha256"))
            )
            for name, of in _mapping(top.get("data")).items()
        },
        lineage=Lineage(
            run=_text(lineage.get("run")),
            parent_run=_text(lineage.get("parent_run")),
            code_snapshot=_text(lineage.get("code_snapshot")),
            commit=_text(lineage.get("commit")),
            dirty=dirty if isinstance(dirty, bool) else None,
            environment=_text(lineage.get("environment")),
            feature_set_hash=_text(lineage.get("feature_set_hash")),
            hyperparameters=hyperparameters if isinstance(hyperparameters, Mapping) else None,
            seed=_number(lineage.get("seed")),
        ),
        latency=Latency(
            p50_ms=_number(latency.get("p50_ms")),
            p95_ms=_number(latency.get("p95_ms")),
            p99_ms=_number(latency.get("p99_ms")),
            requests=_number(latency.get("requests")),
            hardware=_text(latency.get("hardware")),
            instance_type=_text(latency.get("instance_type")),
        ),
        supply_chain=_supply_chain(_mapping(top.get("supply_chain"))),
    )


def _supply_chain(found: Mapping[str, object]) -> SupplyChain:
    advisories = _mapping(found.get("advisories"))
    listed = advisories.get("found")
    return SupplyChain(
        packages={
            str(name): LockedPackage(
                _text(_mapping(of).get("locked")),
                _text(_mapping(of).get("installed")),
                _text(_mapping(of).get("licence")),
            )
            for name, of in _mapping(found.get("packages")).items()
        },
        sbom=_text(_mapping(found.get("sbom")).get("sha256")),
        as_of=_time(advisories.get("as_of")),
        advisories=tuple(map(str, listed)) if isinstance(listed, list) else None,
    )


def _metrics(found: object) -> Metrics:
    return {
        str(split): {
            str(metric): Estimate(
                value=_number(_mapping(of).get("value")),
                low=_number(_mapping(of).get("low")),
                high=_number(_mapping(of).get("high")),
                count=_number(_mapping(of).get("count")),
            )
            for metric, of in _mapping(metrics).items()
        }
        for split, metrics in _mapping(found).items()
    }


def _mapping(found: object) -> Mapping[str, object]:
    return found if isinstance(found, Mapping) else {}


def _text(found: object) -> str | None:
    return found.strip() or None if isinstance(found, str) else None


def _number(found: object) -> float | None:
    # True is an int to Python; as a metric it is a mistake.
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    try:
        return float(found)
    except OverflowError:
        return float("inf")


def _time(found: object) -> datetime | None:
    try:
        when = datetime.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        return None
    # A time without a zone could be hours old or hours ahead: it says nothing.
    return when if when is not None and when.tzinfo is not None else None
