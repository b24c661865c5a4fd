"""The evidence of a model version: what the gates read.

The dataclasses declare evidence.json once: reading, required fields, bounds and the JSON Schema
follow from them. Every value may be None. To a gate, a value that is absent and one of the wrong
type are the same, and a gate refuses both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

SCHEMA_VERSION = 3
# No count, time or price is larger: MLflow turns infinity into a finite 1.797e308.
MOST = 1e9
# A field that a complete document may leave out.
OPTIONAL: Mapping[str, object] = MappingProxyType({"optional": True})
T = TypeVar("T")
# A metric of several units together: their names → how often each counts in each draw
# (draws, units) → the metric of each draw, NaN where it is not defined.
Statistic = Callable[[Sequence[str]], Callable[[NDArray[np.float64]], NDArray[np.float64]]]


@dataclass(frozen=True)
class _Lenient:
    """A value of another type is read as the default."""

    default: Any = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_default_schema(
            handler(source), default=self.default, on_error="default"
        )


class Part:
    """A part of evidence.json; unknown keys are ignored."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_default_schema(
            handler(source), default_factory=cls, on_error="default"
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        described = handler.resolve_ref_schema(handler(schema))
        stated = _stated(cls)
        described["properties"] = {
            each.name: _property(described["properties"][each.name], each) for each in stated
        }
        described["required"] = [each.name for each in stated if "optional" not in each.metadata]
        return described


def _time(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


Text = Annotated[
    Annotated[str, AfterValidator(lambda text: text.strip() or None)] | None,
    _Lenient(),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
Number = Annotated[Annotated[float, Strict()] | None, _Lenient()]
Flag = Annotated[Annotated[bool, Strict()] | None, _Lenient()]
# A time without a zone could be hours old or hours ahead.
Time = Annotated[AwareDatetime | None, BeforeValidator(_time), _Lenient()]
By = Annotated[Mapping[str, T], _Lenient({})]
Each = Annotated[tuple[T, ...], _Lenient(())]


def bounds(low: float = 0.0, high: float = MOST) -> Mapping[str, object]:
    """The metadata of a field that holds a number from `low` to `high`."""
    return {"low": low, "high": high}


@dataclass(frozen=True)
class Estimate(Part):
    """A metric on a split: its value, the 95 % interval around it, and how many units it counts."""

    value: Number = None
    low: Number = None
    high: Number = None
    count: Number = field(default=None, metadata=bounds(1))


Metrics = By[By[Estimate]]


@dataclass(frozen=True)
class Disparity(Part):
    """How far a metric lies apart between slices of `split`: the lowest and the highest of them.

    Only slices of enough units are compared; `slices` says how many those are.
    """

    split: Text = None
    difference: Number = field(default=None, metadata=bounds())
    lowest: Text = None
    highest: Text = None
    slices: Number = field(default=None, metadata=bounds(2))


@dataclass(frozen=True)
class Contribution(Part):
    """A feature's share in what the model says, of all features together 1."""

    feature: Text = None
    share: Number = field(default=None, metadata=bounds(0, 1))


@dataclass(frozen=True)
class Explanation(Part):
    """How the contributions were found, over how many rows.

    `error` is how far the contributions of a row are from adding up to its score, at most, relative
    to the score: 0 but for rounding when the method is exact.
    """

    method: Text = None
    rows: Number = field(default=None, metadata=bounds(1))
    error: Number = field(default=None, metadata=bounds())


@dataclass(frozen=True)
class LeakCheck(Part):
    """What `check` (`feature.auc`, `identifiers.shared`, …) found in `of`, a feature or a column:
    `value` of it over `units` rows. `ml.toolkit.leakage` says what each measures.
    """

    check: Text = None
    of: Text = None
    value: Number = field(default=None, metadata=bounds())
    units: Number = field(default=None, metadata=bounds(1))
    found: Text = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Stability(Part):
    """A metric of the same training over other folds or seeds, and the standard deviation."""

    over: Text = None
    values: Each[Number] = ()
    std: Number = field(default=None, metadata=bounds())


@dataclass(frozen=True)
class Training(Part):
    """Seconds and threads that one fit took in the evaluation."""

    seconds: Number = field(default=None, metadata=bounds())
    threads: Number = field(default=None, metadata=bounds(1))


@dataclass(frozen=True)
class Spent(Part):
    """Machine time: `seconds` on each of `nodes`, and what it costs where the price is known.

    `instance_type` is the one that would be paid for, absent where no deployment or cluster names
    one. `amount` = seconds / 3600 × nodes × `price_per_hour`; `note` says why there is none, or
    what it rests on.
    """

    seconds: Number = field(default=None, metadata=bounds())
    nodes: Number = field(default=None, metadata=bounds(1))
    hardware: Text = None
    instance_type: Text = field(default=None, metadata=OPTIONAL)
    price_per_hour: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    amount: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    note: Text = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Cost(Part):
    """What the training run took, and what 1,000 predictions do, one after another on one machine.

    `source` and `as_of` say where the prices are from; absent when no price is known.
    """

    training: Spent = field(default_factory=Spent)
    thousand_predictions: Spent = field(default_factory=Spent)
    currency: Text = field(default=None, metadata=OPTIONAL)
    source: Text = field(default=None, metadata=OPTIONAL)
    as_of: Text = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class DataVersion(Part):
    """The data asset (`azureml:name:version`) that a model was made from, and its sha256."""

    asset: Text = None
    sha256: Text = None


@dataclass(frozen=True)
class Lineage(Part):
    """Where a model comes from, and what measured it.

    `parent_run` equals `run` for a model of no sweep or pipeline. `evaluation_snapshot` is the
    digest of the code that evaluated it, which is of `evaluation_commit` unless it was dirty.
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
    feature_set_hash: Text = None
    hyperparameters: Annotated[Mapping[str, object] | None, _Lenient()] = None
    seed: Number = None


@dataclass(frozen=True)
class Latency(Part):
    """Milliseconds over `requests` served requests, one after another, `warm_up` before them.

    `hardware` is the machine measured on, `instance_type` the one that the deployment asks for.
    """

    p50_ms: Number = field(default=None, metadata=bounds())
    p95_ms: Number = field(default=None, metadata=bounds())
    p99_ms: Number = field(default=None, metadata=bounds())
    mean_ms: Number = field(default=None, metadata=bounds())
    requests: Number = field(default=None, metadata=bounds(1))
    warm_up: Number = field(default=None, metadata=bounds())
    hardware: Text = None
    instance_type: Text = None


@dataclass(frozen=True)
class KeptPredictions(Part):
    """The hashed predictions from which every metric follows."""

    file: Text = None
    sha256: Text = None
    rows: Number = field(default=None, metadata=bounds(1))


@dataclass(frozen=True)
class LockedPackage(Part):
    """A package: its version in the lock, the one that is installed, its licence as SPDX."""

    locked: Text = None
    installed: Text = None
    licence: Text = None


@dataclass(frozen=True)
class SupplyChain(Part):
    """The packages that a model was made with, and what is known against them.

    `sbom` is the sha256 of the bill of materials. `as_of` dates the source of advisories and
    `advisories` lists what it has on these packages; both are None when no source was read.
    """

    lock: Text = None
    packages: By[LockedPackage] = field(default_factory=dict)
    sbom: Text = None
    source: Text = field(default=None, metadata=OPTIONAL)
    as_of: Time = field(default=None, metadata=OPTIONAL)
    records: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    advisories: Annotated[tuple[str, ...] | None, _Lenient()] = field(
        default=None, metadata=OPTIONAL
    )


@dataclass(frozen=True)
class EvidenceFile(Part):
    """The evidence of one model version, as evidence.json states it.

    `task` says what the predictions are (ranking, binary, multiclass, regression; absent for a
    ranking). `unit` is what one prediction is about; `resampled` what the bootstrap draws: the
    unit, or what holds several of them, such as an entity or a time block. `baseline_from` says how
    the model behind `baseline` was made. `slices` (dimension →
    slice → metric) and `fairness` (dimension → metric) are of `slice_split`. `identifiers` is the
    sha256 of the hashed identifiers that `leakage` compared. `rehearsal` says that nobody attested
    it when it was made.
    """

    schema_version: Number = field(default=None, metadata=bounds(SCHEMA_VERSION, SCHEMA_VERSION))
    created: Time = None
    project: Text = None
    model: Text = None
    version: Text = None
    digest: Text = None
    uri: Text = None
    rehearsal: Flag = None
    task: Text = field(default=None, metadata=OPTIONAL)
    primary_metric: Text = None
    goal: Text = None
    unit: Text = None
    resampled: Text = None
    metrics: Metrics = field(default_factory=dict)
    baseline: Metrics = field(default_factory=dict, metadata=OPTIONAL)
    baseline_from: Text = field(default=None, metadata=OPTIONAL)
    slice_split: Text = None
    slices: By[Metrics] = field(default_factory=dict)
    fairness: By[By[Disparity]] = field(default_factory=dict)
    contributions: Each[Contribution] = ()
    explanation: Explanation = field(default_factory=Explanation)
    stability: By[Stability] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    leakage: Each[LeakCheck] = field(default=(), metadata=OPTIONAL)
    identifiers: Text = field(default=None, metadata=OPTIONAL)
    cost: Cost = field(default_factory=Cost)
    data: By[DataVersion] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    latency: Latency = field(default_factory=Latency)
    predictions: KeptPredictions = field(default_factory=KeptPredictions)
    supply_chain: SupplyChain = field(default_factory=SupplyChain)


@dataclass(frozen=True)
class Evidence(EvidenceFile):
    """The evidence with what is computed when it is loaded, from the model folder and the hashed
    predictions; evidence.json does not state these fields.

    `files` maps each file of the model folder to the format of its content ("" for none that is
    allowed). `disagreements` lists what differs between the document and the predictions; None
    means that nobody compared them. By split: `outcomes` has the primary metric of every unit,
    `groups` what was drawn with a unit, `members` the units of every slice by dimension. Where the
    primary metric is one of all units together (an AUC), `statistics` computes it and the
    `outcomes` are NaN. `attested` is who made it, by a valid attestation (the fields are those of
    the gate `attestation`); `unattested` says why nobody did.
    """

    attested: Mapping[str, str] = field(default_factory=dict)
    unattested: str = "no attestation is kept with the evidence"
    files: Mapping[str, str] | None = None
    disagreements: tuple[str, ...] | None = None
    outcomes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    statistics: Mapping[str, Statistic] = field(default_factory=dict, compare=False)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    members: Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]] = field(default_factory=dict)


def parse(document: object) -> Evidence:
    """The evidence that a JSON document states; what is absent or of a wrong type becomes None."""
    return Evidence(**vars(_adapter().validate_python(document)))


def missing(part: Part, above: str = "") -> Iterator[str]:
    """The path of every required field that is absent, empty, not finite or out of its bounds."""
    for each in _stated(type(part)):
        value, path = getattr(part, each.name), above + each.name
        # Only a field that is None by default may be empty.
        if value is None or (not value and each.default is not None):
            if "optional" not in each.metadata:
                yield path
        elif isinstance(value, float) and not (
            each.metadata.get("low", value) <= value <= each.metadata.get("high", value)
        ):
            yield path
        else:
            yield from _missing_inside(value, path)


def _missing_inside(value: Any, path: str) -> Iterator[str]:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        yield path
    elif isinstance(value, Part):
        yield from missing(value, f"{path}.")
    elif isinstance(value, Mapping | tuple | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            if inner == {}:
                yield f"{path}.{key}"
            yield from _missing_inside(inner, f"{path}.{key}")


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a complete evidence.json, for editors."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return about | _adapter().json_schema()


@cache
def _adapter() -> TypeAdapter[EvidenceFile]:
    return TypeAdapter(EvidenceFile)


def _stated(kind: type[Any]) -> tuple[Field[Any], ...]:
    """The fields that evidence.json states."""
    return fields(EvidenceFile if issubclass(kind, EvidenceFile) else kind)


def _property(described: Mapping[str, Any], stated: Field[Any]) -> Mapping[str, Any]:
    """pydantic's description of a field, without null where it is required, with its bounds."""
    (form,) = (
        option for option in described.get("anyOf", [described]) if option.get("type") != "null"
    )
    form = {key: value for key, value in form.items() if key not in ("default", "title")}
    names = {"minimum": "low", "maximum": "high"}
    form |= {name: stated.metadata[key] for name, key in names.items() if key in stated.metadata}
    if "optional" in stated.metadata:
        return {"anyOf": [form, {"type": "null"}]}
    if stated.default is not None:
        smallest = {"array": "minItems", "object": "minProperties"}.get(form.get("type", ""))
        form |= {smallest: 1} if smallest else {}
    return form


def uri(model: str | None, version: str | None) -> str:
    """The address of a registered version, as MLflow writes it."""
    return f"models:/{model}/{version}"
