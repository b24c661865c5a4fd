"""What is known about a model version when somebody asks whether it may be promoted.

The dataclasses are the schema of evidence.json: names, types, what is required, and bounds. Every
leaf may be None: absent or of the wrong type is the same to a gate, and a gate refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from policies.promotion.schema import AFRESH, OPTIONAL, number, read

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Estimate:
    """A metric on a split: its value, the 95 % interval around it, and how many units it counts."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    count: float | None = number(1)


Metrics = Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class Disparity:
    """How far a metric lies apart between slices of `split`: the lowest and the highest of them.

    Only slices of enough units are compared; `slices` says how many those are.
    """

    split: str | None = None
    difference: float | None = number()
    lowest: str | None = None
    highest: str | None = None
    slices: float | None = number(2)


@dataclass(frozen=True)
class Contribution:
    """A feature's share in what the model says, of all features together 1."""

    feature: str | None = None
    share: float | None = number(0, 1)


@dataclass(frozen=True)
class Explanation:
    """How the contributions were found, over how many rows.

    `error` is how far the contributions of a row are from adding up to its score, at most, relative
    to the score: 0 but for rounding when the method is exact.
    """

    method: str | None = None
    rows: float | None = number(1)
    error: float | None = number()


@dataclass(frozen=True)
class LeakCheck:
    """What `check` (`feature.auc`, `identifiers.shared`, …) found in `of`, a feature or a column:
    `value` of it over `units` rows. `ml.toolkit.leakage` says what each measures.
    """

    check: str | None = None
    of: str | None = None
    value: float | None = number()
    units: float | None = number(1)
    found: str | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Stability:
    """A metric of the same training over other folds or seeds, and the standard deviation."""

    over: str | None = None
    values: tuple[float | None, ...] = ()
    std: float | None = number()


@dataclass(frozen=True)
class Training:
    """Seconds and threads that one fit took in the evaluation."""

    seconds: float | None = number()
    threads: float | None = number(1)


@dataclass(frozen=True)
class Spent:
    """Machine time: `seconds` on each of `nodes`, and what it costs where the price is known.

    `instance_type` is the one that would be paid for, absent where no deployment or cluster names
    one. `amount` = seconds / 3600 × nodes × `price_per_hour`; `note` says why there is none, or
    what it rests on.
    """

    seconds: float | None = number()
    nodes: float | None = number(1)
    hardware: str | None = None
    instance_type: str | None = field(default=None, metadata=OPTIONAL)
    price_per_hour: float | None = number(optional=True)
    amount: float | None = number(optional=True)
    note: str | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Cost:
    """What the training run took, and what 1,000 predictions do, one after another on one machine.

    `source` and `as_of` say where the prices are from; absent when no price is known.
    """

    training: Spent = field(default_factory=Spent)
    thousand_predictions: Spent = field(default_factory=Spent)
    currency: str | None = field(default=None, metadata=OPTIONAL)
    source: str | None = field(default=None, metadata=OPTIONAL)
    as_of: str | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class DataVersion:
    """The data asset (`azureml:name:version`) that a model was made from, and its sha256."""

    asset: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Lineage:
    """Where a model comes from; `parent_run` equals `run` for a model of no sweep or pipeline."""

    run: str | None = None
    run_name: str | None = field(default=None, metadata=OPTIONAL)
    parent_run: str | None = None
    evaluation_run: str | None = None
    code_snapshot: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    environment: str | None = None
    environment_digest: str | None = field(default=None, metadata=OPTIONAL)
    feature_set_hash: str | None = None
    hyperparameters: Mapping[str, object] | None = None
    seed: float | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds over `requests` served requests, one after another, `warm_up` before them.

    `hardware` is the machine measured on, `instance_type` the one that the deployment asks for.
    """

    p50_ms: float | None = number()
    p95_ms: float | None = number()
    p99_ms: float | None = number()
    mean_ms: float | None = number()
    requests: float | None = number(1)
    warm_up: float | None = number()
    hardware: str | None = None
    instance_type: str | None = None


@dataclass(frozen=True)
class KeptPredictions:
    """The hashed predictions from which every metric follows."""

    file: str | None = None
    sha256: str | None = None
    rows: float | None = number(1)


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

    lock: str | None = None
    packages: Mapping[str, LockedPackage] = field(default_factory=dict)
    sbom: str | None = None
    source: str | None = field(default=None, metadata=OPTIONAL)
    as_of: datetime | None = field(default=None, metadata=OPTIONAL)
    records: float | None = number(optional=True)
    advisories: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Evidence:
    """The evidence of one model version.

    `task` says what the predictions are (ranking, binary, multiclass, regression; absent for a
    ranking). `unit` is what one prediction is about; `resampled` what the bootstrap draws: the
    unit, or what holds several of them, such as an entity or a time block. `slices` (dimension →
    slice → metric) and `fairness` (dimension → metric) are of `slice_split`. `identifiers` is the
    sha256 of the hashed identifiers that `leakage` compared.

    The last fields are never read from the document: whoever loads it makes them afresh from the
    model folder and the hashed predictions. `files` maps each file of the model folder to the
    format that its content shows ("" when none is recognised). `disagreements` lists what differs
    between the document and the predictions; None says that nobody looked. By split: `outcomes` has
    the primary metric of every unit, `groups` what was drawn with a unit, `members` the units of
    every slice by dimension.
    """

    schema_version: float | None = number(SCHEMA_VERSION, SCHEMA_VERSION)
    created: datetime | None = None
    project: str | None = None
    model: str | None = None
    version: str | None = None
    digest: str | None = None
    uri: str | None = None
    task: str | None = field(default=None, metadata=OPTIONAL)
    primary_metric: str | None = None
    goal: str | None = None
    unit: str | None = None
    resampled: str | None = None
    metrics: Metrics = field(default_factory=dict)
    baseline: Metrics = field(default_factory=dict, metadata=OPTIONAL)
    slice_split: str | None = None
    slices: Mapping[str, Metrics] = field(default_factory=dict)
    fairness: Mapping[str, Mapping[str, Disparity]] = field(default_factory=dict)
    contributions: tuple[Contribution, ...] = ()
    explanation: Explanation = field(default_factory=Explanation)
    stability: Mapping[str, Stability] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    leakage: tuple[LeakCheck, ...] = field(default=(), metadata=OPTIONAL)
    identifiers: str | None = field(default=None, metadata=OPTIONAL)
    cost: Cost = field(default_factory=Cost)
    data: Mapping[str, DataVersion] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    latency: Latency = field(default_factory=Latency)
    predictions: KeptPredictions = field(default_factory=KeptPredictions)
    supply_chain: SupplyChain = field(default_factory=SupplyChain)
    files: Mapping[str, str] | None = field(default=None, metadata=AFRESH)
    disagreements: tuple[str, ...] | None = field(default=None, metadata=AFRESH)
    outcomes: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata=AFRESH)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict, metadata=AFRESH)
    members: Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]] = field(
        default_factory=dict, metadata=AFRESH
    )


def parse(document: object) -> Evidence:
    """The evidence that a JSON document states; what is absent or of a wrong type becomes None."""
    return read(Evidence, document)


def uri(model: str | None, version: str | None) -> str:
    """Where a registered version is found, as MLflow writes it."""
    return f"models:/{model}/{version}"
