"""Define the schema of evaluation.json, which evidence.json contains unchanged.

The dataclasses declare the document once: parsing, required fields, bounds and the JSON Schema
follow from them. Parsing never fails: an absent or mistyped value becomes empty, None or NaN, and
the gates reject all of these alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import datetime
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

SCHEMA_VERSION = 3
# Upper bound of counts, times and prices. It rejects the 1.797e308 that MLflow makes of infinity.
MOST = 1e9
# A field that a complete document may leave out.
OPTIONAL: Mapping[str, object] = MappingProxyType({"optional": True})
# A field that is computed and not part of the document.
COMPUTED: Mapping[str, object] = MappingProxyType({"computed": True})
Text = str | None
Number = float | None
Flag = bool | None
# Defaults of absent values, for types that do not allow None.
_EMPTY: Mapping[object, Any] = MappingProxyType({float: math.nan, Mapping: {}, tuple: ()})
_TYPES = {float: "number", bool: "boolean", str: "string", datetime: "string"}


class Record:
    """A mapping of a document; unknown keys are ignored."""


R = TypeVar("R", bound=Record)


def bounds(low: float = 0.0, high: float = MOST) -> Mapping[str, object]:
    """Return the dataclass field metadata for a number from `low` to `high`."""
    return {"low": low, "high": high}


@dataclass(frozen=True)
class Estimate(Record):
    """A metric on a split: its value, 95 % confidence interval and number of units."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    count: float = field(default=math.nan, metadata=bounds(1))

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g}–{self.high:.4g})"


Metrics = Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class Disparity(Record):
    """The difference of a metric between the `lowest` and the `highest` slice of `split`.

    Only slices with enough units are compared; `slices` is their number.
    """

    split: Text = None
    difference: float = field(default=math.nan, metadata=bounds())
    lowest: Text = None
    highest: Text = None
    slices: float = field(default=math.nan, metadata=bounds(2))


@dataclass(frozen=True)
class Contribution(Record):
    """A feature's share of the model's predictions; the shares of all features sum to 1."""

    feature: Text = None
    share: float = field(default=math.nan, metadata=bounds(0, 1))


@dataclass(frozen=True)
class Explanation(Record):
    """The method and the number of rows of the contributions, or the `reason` why there are none.

    `error` is the largest difference between a row's score and the sum of its contributions,
    relative to the score: 0 except for rounding if the method is exact. For permutation
    importances, which do not add up to a score, it is the largest standard error of a share.
    """

    method: Text = field(default=None, metadata=OPTIONAL)
    rows: Number = field(default=None, metadata={**bounds(1), **OPTIONAL})
    error: Number = field(default=None, metadata={**bounds(), **OPTIONAL})
    reason: Text = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Check(Record):
    """A check for leakage: the `value` measured on `of` (a feature, a column) over `units` rows.

    `ml.measures.leakage` defines each `check` (`feature.auc`, `identifiers.shared`, …); `actual` is
    the text for reports. `training` and `test` are the hashes of the compared identifiers, which
    are stored in a separate file.
    """

    check: Text = None
    of: Text = None
    value: float = field(default=math.nan, metadata=bounds())
    units: float = field(default=math.nan, metadata=bounds(1))
    actual: Text = field(default=None, metadata=OPTIONAL)
    training: frozenset[str] = field(default=frozenset(), metadata=COMPUTED)
    test: tuple[str, ...] = field(default=(), metadata=COMPUTED)


@dataclass(frozen=True)
class Stability(Record):
    """A metric of the same training repeated over folds or seeds, and its standard deviation."""

    over: Text = None
    values: tuple[float, ...] = ()
    std: float = field(default=math.nan, metadata=bounds())


@dataclass(frozen=True)
class Fit(Record):
    """Seconds and threads that one fit took in the evaluation."""

    seconds: float = field(default=math.nan, metadata=bounds())
    threads: float = field(default=math.nan, metadata=bounds(1))


@dataclass(frozen=True)
class StatedMetric(Record):
    """A custom metric of the project.

    `goal` is its better direction, `range` its lowest and highest value. With `ratio` it is a ratio
    of sums, else the mean of one value per unit. `code` is the sha256 of the file that computed its
    values; they are stored with the predictions.
    """

    goal: Text = None
    range: tuple[float, ...] = ()
    ratio: Flag = None
    code: Text = None


@dataclass(frozen=True)
class UsedFeatureSet(Record):
    """A feature set of a training set.

    `definition` is the sha256 of its definition and code. `first` and `last` are the event times of
    the earliest and the latest joined row.
    """

    version: Text = None
    definition: Text = None
    first: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True)
class TrainingSet(Record):
    """A training set: labels joined with feature sets.

    `digest` is the sha256 of the joined table that the model was trained on, `evaluated` that of
    the table it was evaluated on. `first_label` and `last_label` are the range of the labels'
    times.
    """

    digest: Text = None
    evaluated: Text = None
    first_label: datetime | None = None
    last_label: datetime | None = None
    sets: Mapping[str, UsedFeatureSet] = field(default_factory=dict)


@dataclass(frozen=True)
class KeptPredictions(Record):
    """The file of predictions from which all metrics can be recomputed, with its sha256."""

    file: Text = None
    sha256: Text = None
    rows: float = field(default=math.nan, metadata=bounds(1))


@dataclass(frozen=True)
class Evaluation(Record):
    """The evaluation of one model: the content of evaluation.json.

    `model` is the endpoint's name. `task` names the task; absent for a ranking. `unit` names what
    one prediction is about (a row, an image), `resampled` what the bootstrap draws: the unit, or a
    group of units such as an entity or a time block. `baseline_from` describes the model behind
    `baseline`. `slices` (dimension → slice → metric) and `fairness` (dimension → metric) are
    measured on `slice_split`, and so are the metrics of a linear model (`linear`), which are only
    reported. `leakage` lists every check, with or without a finding. `identifiers` is the sha256 of
    the hashed identifiers that the leakage check compared, `requests` that of the sample requests.
    `custom_metrics` are the project's custom metrics. A binary model predicts "1" for a score above
    `threshold` (None: 0.5). `out_of_fold` maps a split to its number of folds if its predictions
    come from cross-validation models instead of this model. `training_set` is absent unless a
    feature set was joined. `ml.measures.evaluation.write_evaluation` fills `schema_version`,
    `predictions`, `identifiers` and `requests`.
    """

    schema_version: float = field(default=math.nan, metadata=bounds(SCHEMA_VERSION, SCHEMA_VERSION))
    model: Text = None
    task: Text = field(default=None, metadata=OPTIONAL)
    primary_metric: Text = None
    goal: Text = None
    unit: Text = None
    resampled: Text = None
    feature_set_hash: Text = None
    seed: Number = None
    hyperparameters: Mapping[str, object] | None = None
    metrics: Metrics = field(default_factory=dict)
    baseline: Metrics = field(default_factory=dict, metadata=OPTIONAL)
    baseline_from: Text = field(default=None, metadata=OPTIONAL)
    slice_split: Text = None
    slices: Mapping[str, Metrics] = field(default_factory=dict)
    fairness: Mapping[str, Mapping[str, Disparity]] = field(default_factory=dict)
    contributions: tuple[Contribution, ...] = field(default=(), metadata=OPTIONAL)
    explanation: Explanation = field(default_factory=Explanation, metadata=OPTIONAL)
    stability: Mapping[str, Stability] = field(default_factory=dict)
    training: Fit = field(default_factory=Fit)
    leakage: tuple[Check, ...] = field(default=(), metadata=OPTIONAL)
    identifiers: Text = field(default=None, metadata=OPTIONAL)
    predictions: KeptPredictions = field(default_factory=KeptPredictions)
    custom_metrics: Mapping[str, StatedMetric] = field(default_factory=dict, metadata=OPTIONAL)
    out_of_fold: Mapping[str, float] = field(default_factory=dict, metadata=OPTIONAL)
    requests: Text = field(default=None, metadata=OPTIONAL)
    linear: Mapping[str, float] = field(default_factory=dict, metadata=OPTIONAL)
    threshold: Number = field(default=None, metadata={**bounds(0, 1), **OPTIONAL})
    training_set: TrainingSet | None = field(default=None, metadata=OPTIONAL)

    def values(self, kind: str = "metrics") -> dict[str, float]:
        """Return the metrics (or with "baseline" its metrics) as `<split>_<metric>` → value."""
        return {
            f"{split}_{name}": estimate.value
            for split, metrics in getattr(self, kind).items()
            for name, estimate in metrics.items()
        }

    def text(self) -> str:
        """Return a text table of the metrics and the baseline's, with intervals."""
        lines = [f"{'':13}{'metric':22}{'this model':>33}{'baseline':>33}"]
        for split, metrics in self.metrics.items():
            for number, (name, ours) in enumerate(metrics.items()):
                theirs = self.baseline.get(split, {}).get(name)
                first = "" if number else split
                line = f"{first:13}{name:22}{ours!s:>33}{theirs or ''!s:>33}"
                lines.append(line.rstrip())
        if (linear := self.linear.get(self.primary_metric or "")) is not None:
            metric = f"{self.slice_split} {self.primary_metric}"
            lines.append(f"a linear model has a {metric} of {linear:.4f}")
        return "\n".join(lines)


def stated_fields(kind: type[Any]) -> tuple[Field[Any], ...]:
    """Return the fields of a record class that are part of the document."""
    return tuple(entry for entry in fields(kind) if "computed" not in entry.metadata)


def read(kind: type[R], document: object) -> R:
    """Parse a JSON document to a record; absent or mistyped values become empty, None or NaN."""
    stated = document if isinstance(document, Mapping) else {}
    values = {name: _value(hint, stated.get(name)) for name, hint in _hints(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if value is not None})


def stated(value: object) -> Any:
    """Return a record or value as JSON.

    An optional field that is None is left out; a number that is not finite becomes None.
    """
    if isinstance(value, Record):
        entries = {entry: getattr(value, entry.name) for entry in stated_fields(type(value))}
        return {
            entry.name: stated(inner)
            for entry, inner in entries.items()
            if inner is not None or "optional" not in entry.metadata
        }
    if isinstance(value, Mapping):
        return {key: stated(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [stated(inner) for inner in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def missing(record: Record, above: str = "") -> Iterator[str]:
    """Yield the path of every required field that is absent, empty, not finite or out of bounds."""
    for entry in stated_fields(type(record)):
        value, path = getattr(record, entry.name), above + entry.name
        # Only a field that is None by default may be empty.
        is_empty = isinstance(value, Mapping | tuple) and not value and entry.default is not None
        if value is None or is_empty:
            if "optional" not in entry.metadata:
                yield path
        elif isinstance(value, float) and not (
            entry.metadata.get("low", value) <= value <= entry.metadata.get("high", value)
        ):
            yield path
        else:
            yield from _missing_inside(value, path)


def _missing_inside(value: Any, path: str) -> Iterator[str]:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        yield path
    elif isinstance(value, Record):
        yield from missing(value, f"{path}.")
    elif isinstance(value, Mapping | tuple | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            if inner == {}:
                yield f"{path}.{key}"
            yield from _missing_inside(inner, f"{path}.{key}")


def json_schema(kind: type[Record]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a complete document, for editors."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind.__name__}
    return about | _form(kind)


@cache
def _hints(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Return (name, type) of each field that is part of the document."""
    hints = get_type_hints(kind)
    return tuple((entry.name, hints[entry.name]) for entry in stated_fields(kind))


def _bare(hint: Any) -> Any:
    """Return the type without None."""
    options = [option for option in get_args(hint) if option is not NoneType]
    return options[0] if NoneType in get_args(hint) else hint


def _value(hint: Any, value: object) -> Any:
    """Convert a JSON value to the type `hint`; return its empty value or None if mistyped."""
    bare = _bare(hint)
    origin = get_origin(bare) or bare
    absent = _EMPTY.get(origin) if bare is hint else None
    if origin is object:
        return value
    if issubclass(origin, Record):
        return None if value is None and bare is not hint else read(origin, value)
    if origin is Mapping and isinstance(value, Mapping):
        return {str(key): _value(get_args(bare)[1], inner) for key, inner in value.items()}
    if origin is tuple and isinstance(value, list | tuple):
        of_each = tuple(_value(get_args(bare)[0], inner) for inner in value)
        return absent if None in of_each else of_each
    if origin is str and isinstance(value, str):
        return value.strip() or None
    if origin is datetime and isinstance(value, str):
        return _time(value)
    if origin is bool and isinstance(value, bool):
        return value
    if origin is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return absent
    return absent


def _time(value: str) -> datetime | None:
    """Parse a time; return None without a zone, since it could be off by hours."""
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return time if time.utcoffset() is not None else None


def _form(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type."""
    bare = _bare(hint)
    origin = get_origin(bare) or bare
    if origin is object:
        return {}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _form(get_args(bare)[1])}
    if origin is tuple:
        return {"type": "array", "items": _form(get_args(bare)[0])}
    if not issubclass(origin, Record):
        more: dict[type, dict[str, Any]] = {
            str: {"minLength": 1},
            datetime: {"format": "date-time"},
        }
        return {"type": _TYPES[origin], **more.get(origin, {})}
    hints = dict(_hints(origin))
    return {
        "type": "object",
        "description": origin.__doc__,
        "properties": {
            entry.name: _property(hints[entry.name], entry) for entry in stated_fields(origin)
        },
        "required": [
            entry.name for entry in stated_fields(origin) if "optional" not in entry.metadata
        ],
    }


def _property(hint: Any, entry: Field[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a field: bounds, null if optional, otherwise not empty."""
    names = {"minimum": "low", "maximum": "high"}
    form = _form(hint)
    form |= {name: entry.metadata[key] for name, key in names.items() if key in entry.metadata}
    if "optional" in entry.metadata:
        return {"anyOf": [form, {"type": "null"}]}
    smallest = {"array": "minItems", "object": "minProperties"}.get(form["type"])
    return form | {smallest: 1} if smallest and entry.default is not None else form
