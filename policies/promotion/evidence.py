"""The evidence of a model version: what the gates read.

The dataclasses declare evidence.json once: reading, required fields, bounds and the JSON Schema
follow from them. Every value may be None. A value of the wrong type is read as missing; gates
reject missing values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ml.measures import schema
from ml.measures.schema import (
    COMPUTED,
    OPTIONAL,
    Evaluation,
    Flag,
    Number,
    Record,
    Text,
    bounds,
)

SCHEMA_VERSION = 4
# A metric of a whole split: (unit names, their counts in each draw (draws, units)) → the metric of
# each draw, NaN where it is undefined.
Statistic = Callable[[Sequence[str]], Callable[[NDArray[np.float64]], NDArray[np.float64]]]
Time = datetime | None
_computed = partial(field, metadata=COMPUTED)


@dataclass(frozen=True)
class ComputeUsage(Record):
    """Machine time: `seconds` on each of `nodes`, and what it costs where the price is known.

    `instance_type` is the billed one, None if no deployment or cluster names one. `amount` =
    seconds / 3600 × nodes × `price_per_hour`; `note` gives its basis, or why it is missing.
    """

    seconds: Number = field(default=None, metadata=bounds())
    nodes: Number = field(default=None, metadata=bounds(1))
    hardware: Text = None
    instance_type: Text = field(default=None, metadata=OPTIONAL)
    price_per_hour: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    amount: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    note: Text = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Cost(Record):
    """The cost of the training run, and of 1,000 sequential predictions on one machine.

    `source` and `as_of` say where the prices are from; absent when no price is known.
    """

    training: ComputeUsage = field(default_factory=ComputeUsage)
    thousand_predictions: ComputeUsage = field(default_factory=ComputeUsage)
    currency: Text = field(default=None, metadata=OPTIONAL)
    source: Text = field(default=None, metadata=OPTIONAL)
    as_of: Text = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class DataVersion(Record):
    """The data asset (`azureml:name:version`) that a model was made from, and its sha256."""

    asset: Text = None
    sha256: Text = None


@dataclass(frozen=True)
class Lineage(Record):
    """The origin of a model: code, runs and environment of its training and evaluation.

    `parent_run` equals `run` for a model of no sweep or pipeline. `evaluation_snapshot` is the
    digest of the evaluation's code: that of `evaluation_commit`, unless `evaluation_dirty`.
    """

    run: Text = None
    run_name: Text = field(default=None, metadata=OPTIONAL)
    parent_run: Text = None
    evaluation_run: Text = None
    evaluation_snapshot: Text = None
    evaluation_commit: Text = None
    evaluation_dirty: Flag = None
    code_snapshot: Text = None
    commit: Text = None
    dirty: Flag = None
    environment: Text = None
    environment_digest: Text = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Latency(Record):
    """Latency in milliseconds over `requests` sequential requests, after `warm_up` requests.

    `hardware` is the machine measured on, `instance_type` the one that the deployment asks for.
    """

    p50_ms: float = field(default=math.nan, metadata=bounds())
    p95_ms: float = field(default=math.nan, metadata=bounds())
    p99_ms: float = field(default=math.nan, metadata=bounds())
    mean_ms: float = field(default=math.nan, metadata=bounds())
    requests: float = field(default=math.nan, metadata=bounds(1))
    warm_up: float = field(default=math.nan, metadata=bounds())
    hardware: Text = None
    instance_type: Text = None


@dataclass(frozen=True)
class Served(Record):
    """The parity check: how far a server's responses differ from the hashed predictions.

    `rows` counts the requests that were sent; `reason` says why none was. `deployment_digest` is
    that of the scoring code and settings, `prediction` the path of the prediction in a response.
    `differing` counts the rows with a difference above 0.000001, `largest` is the largest
    difference, `example` describes its row. Differences of probabilities are absolute, those of
    other numbers relative; a wrong or missing text counts as 1.
    """

    rows: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    differing: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    largest: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    prediction: Text = field(default=None, metadata=OPTIONAL)
    deployment_digest: Text = field(default=None, metadata=OPTIONAL)
    example: Text = field(default=None, metadata=OPTIONAL)
    reason: Text = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Adapter(Record):
    """The LoRA adapters of a fine-tuned model, as the training stated them.

    `adapter_bytes` is the size of their file, `adapter_parameters` their number, `trained_share`
    the share of all parameters that were trained, with those of other layers.
    """

    adapter_bytes: Number = field(default=None, metadata={**bounds(1), **OPTIONAL})
    adapter_parameters: Number = field(default=None, metadata={**bounds(1), **OPTIONAL})
    trained_share: Number = field(default=None, metadata={**bounds(0, 1), **OPTIONAL})


@dataclass(frozen=True)
class LockedPackage(Record):
    """A package: its version in the lock, the one that is installed, its licence as SPDX."""

    locked: Text = None
    installed: Text = None
    licence: Text = None


@dataclass(frozen=True)
class SupplyChain(Record):
    """The packages that a model was trained with, and their known vulnerabilities.

    `sbom` is the sha256 of the bill of materials. `as_of` is the date of the advisories' source,
    and `advisories` lists those on these packages; both are None if no source was read.
    """

    lock: Text = None
    packages: Mapping[str, LockedPackage] = field(default_factory=dict)
    sbom: Text = None
    source: Text = field(default=None, metadata=OPTIONAL)
    as_of: Time = field(default=None, metadata=OPTIONAL)
    records: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    advisories: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Evidence(Record):
    """The evidence of one model version: what evidence.json states, and what is computed when it is
    loaded, from the model folder and the hashed predictions.

    `evaluation` is evaluation.json, `data` the evaluation's data assets as the backend resolved
    them. `simulated`: made in a simulated environment, without an attestation.

    Computed when it is loaded:
    - `attested`: the signer by a valid attestation (fields of the gate `attestation`);
      `unattested`: why there is none.
    - `files`: each file of the model folder and its detected format; "" if not allowed.
    - `mismatches`: differences between evidence.json and the predictions; None if not compared.
    - By split: `outcomes` (unit → primary metric), `labels` (unit → label), `groups` (unit →
      bootstrap group), `members` (dimension → slice → units).
    - `statistics`: computes a primary metric of a whole split (AUC); `outcomes` are then NaN.
    - `range`: bounds of the primary metric; None for a custom metric.
    - `undefined`: `DIMENSION SLICE` → metric → what its rows lack.
    - `feature_sets`: declared feature set → version and sha256 of definition and code.
    """

    schema_version: Number = field(default=None, metadata=bounds(SCHEMA_VERSION, SCHEMA_VERSION))
    created: Time = None
    project: Text = None
    model: Text = None
    version: Text = None
    digest: Text = None
    uri: Text = None
    simulated: Flag = None
    evaluation: Evaluation = field(default_factory=Evaluation)
    cost: Cost = field(default_factory=Cost)
    data: Mapping[str, DataVersion] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    latency: Latency = field(default_factory=Latency)
    serving: Served = field(default_factory=Served, metadata=OPTIONAL)
    adapter: Adapter = field(default_factory=Adapter, metadata=OPTIONAL)
    supply_chain: SupplyChain = field(default_factory=SupplyChain)

    attested: Mapping[str, str] = _computed(default_factory=dict)
    unattested: str = _computed(default="no attestation is kept with the evidence")
    files: Mapping[str, str] | None = _computed(default=None)
    mismatches: tuple[str, ...] | None = _computed(default=None)
    outcomes: Mapping[str, Mapping[str, float]] = _computed(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = _computed(default_factory=dict)
    statistics: Mapping[str, Statistic] = _computed(default_factory=dict, compare=False)
    groups: Mapping[str, Mapping[str, str]] = _computed(default_factory=dict)
    undefined: Mapping[str, Mapping[str, str]] = _computed(default_factory=dict)
    members: Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]] = _computed(
        default_factory=dict
    )
    range: tuple[float, float] | None = _computed(default=None)
    feature_sets: Mapping[str, tuple[str, str]] = _computed(default_factory=dict)

    @property
    def proposal(self) -> str:
        """The command that proposes the model again; placeholders replace unknown names."""
        run = self.lineage.run_name or self.lineage.run
        words = ["ml release propose", self.project or "PROJECT", *(["--run", run] if run else [])]
        return " ".join(words)


def parse(document: object) -> Evidence:
    """Parse evidence.json; missing values and values of the wrong type become None."""
    return schema.read(Evidence, document)


def uri(model: str | None, version: str | None) -> str:
    """Return the address of a registered version, as MLflow writes it."""
    return f"models:/{model}/{version}"
