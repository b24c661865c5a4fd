"""The gates' settings: the organisation policy in policies/promotion/gates.yml, and a project's
own gates.yml, which may only tighten it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from operator import gt, lt
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field

from ml.core import documents, plug_ins, repository, settings
from ml.core.documents import Document
from ml.core.errors import Problem, UserError
from ml.core.imports import ROOT
from policies.promotion.gate import (
    ALLOW_LIST,
    AT_LEAST,
    AT_MOST,
    BASELINE_SCORES,
    BOUNDS,
    CONFIDENCE,
    DEMANDS,
    ENABLED,
    EQUAL,
    MODE,
    ORDER,
    POINTER,
    Gate,
    Gates,
    Kind,
    OwnGate,
    entries_of,
    maximum,
    minimum,
)
from policies.waivers import GateWaiver, InvalidVersion, Review, check_review, check_waiver, located

POLICY = ROOT / repository.GATES
# The gates that compare with the champion.
COMPARING = ("non-inferiority", "superiority")
# The gates that no file can disable.
ALWAYS = ("attestation", "order")
# A threshold must exclude at least this share of the metric's bounds, unless `loosest_at_least` or
# `loosest_at_most` has an entry for the metric.
_MIN_EXCLUDED = 0.1
# gate → the largest allowed difference, as a share of the range between the loosest threshold and
# the best value. A larger one would make `gap` and `fairness` useless.
_MAX_DIFFERENCE: Mapping[str, float] = {"gap": 0.5, "fairness": 0.75}

# Every setting of every gate of the framework. The numbers are the loosest that a policy may set.
_SETTINGS: Mapping[str, Mapping[str, Kind]] = {
    "identity": {},
    "attestation": {
        **dict.fromkeys(("issuer", "repository", "workflow", "ref"), EQUAL),
        "runners": ALLOW_LIST,
        "triggers": ALLOW_LIST,
        "unattested_allowed_in": ALLOW_LIST,
    },
    "freshness": {"max_age_days": maximum(366)},  # the data of last year's season
    "completeness": {},
    "verified-metrics": {},
    "lineage": {"dirty_allowed_in": ALLOW_LIST},
    "format": {"allowed": ALLOW_LIST, "imports": ALLOW_LIST},
    "quality": {
        "min_count": minimum(30),  # fewer units give no useful interval
        "bounds": BOUNDS,
        "loosest_at_least": BASELINE_SCORES,
        "loosest_at_most": BASELINE_SCORES,
        "at_least": AT_LEAST,
        "at_most": AT_MOST,
    },
    # Fewer units give no useful interval.
    "gap": {"at_most": AT_MOST, "min_count_beside_folds": minimum(30)},
    "leakage": {
        "checks": DEMANDS,
        # The limit of each check, such as a number of shared rows.
        "at_most": entries_of("KIND.CHECK", Annotated[float, Field(ge=0, le=1000)], gt),
        "warn_from": entries_of("KIND.CHECK", Annotated[float, Field(ge=0, le=1000)], gt),
    },
    "first-promotion": {},
    "non-inferiority": {
        "margin": maximum(0.2),  # a loss of a fifth of the scale is never negligible
        "spreads": entries_of("METRIC", Annotated[float, Field(gt=0, le=10)], gt),
        "confidence": CONFIDENCE,
        "splits": DEMANDS,
        "slice_min_count": maximum(1000),  # smaller slices are not judged
        "slices": DEMANDS,
    },
    "superiority": {"confidence": CONFIDENCE},
    # Intervals of nominal coverage 0.8 that contain fewer than half, or nearly all, are useless.
    "forecasting": {"min_coverage": minimum(0.5), "max_coverage": maximum(0.95)},
    "fairness": {
        "dimensions": DEMANDS,
        "min_count": maximum(1000),  # smaller slices are not compared
        "at_most": entries_of("DIMENSION.METRIC", float, gt),
        "ratio_at_least": entries_of("DIMENSION.METRIC", Annotated[float, Field(gt=0, le=1)], lt),
        "unreviewed_allowed_in": ALLOW_LIST,
    },
    "explainability": {
        "min_rows": minimum(30),  # a mean over fewer is unreliable
        "max_share": maximum(0.99),  # beyond it one feature predicts alone
        "max_error": maximum(0.01),  # contributions add up to the prediction
        "max_error_single": maximum(0.01),
        "max_error_permuted": maximum(0.5),  # beyond it shares are arbitrary
        "single_precision": ALLOW_LIST,
        "unreviewed_allowed_in": ALLOW_LIST,
    },
    "serving": {
        "min_rows": minimum(30),  # fewer contain few of a column's values
        "tolerance": maximum(0.0001),
        "tolerance_single": maximum(0.001),  # numbers of single precision have seven digits
        "single_precision": ALLOW_LIST,
        "prediction": POINTER,
    },
    "latency": {
        "p95_ms": maximum(180_000),  # the largest request timeout of a managed endpoint
        "min_requests": minimum(20),  # with fewer, p95 is the slowest request
        "other_hardware_allowed_in": ALLOW_LIST,
    },
    "supply-chain": {
        "licences": ALLOW_LIST,
        "reviewed": ALLOW_LIST,
        "max_advisory_age_days": maximum(31),  # exploits come within days
        "min_advisories": minimum(1000),  # osv.dev had as many in 2021
        "unchecked_allowed_in": ALLOW_LIST,
    },
    "order": {"environments": ORDER, "unordered": ALLOW_LIST},
    "sign-off": {},
}


def _own_gates() -> Mapping[str, OwnGate]:
    gates: dict[str, OwnGate] = {}
    for module in plug_ins.load("gates"):
        plug_ins.check_names("gate", module.GATES, [*_SETTINGS, *gates], module)
        gates |= module.GATES
    return gates


# The gates of the fork's plug-ins, by name.
OWN_GATES = _own_gates()
SETTINGS = {**_SETTINGS, **{name: gate.settings for name, gate in OWN_GATES.items()}}


def _kind(gate: str, setting: str) -> Kind:
    if setting == "mode":
        return ENABLED if gate in ALWAYS else MODE
    return SETTINGS[gate][setting]


def _gates(required: bool) -> Any:
    """Return the type of `gates`: with every setting (policy), or some of them (project)."""

    def form(kind: Kind) -> Any:
        return Annotated[kind.form, kind.loosest] if required and kind.loosest else kind.form

    forms = {
        gate: settings.mapping(
            {name: form(_kind(gate, name)) for name in ("mode", *kinds)}, required=required
        )
        for gate, kinds in SETTINGS.items()
    }
    return settings.mapping(forms, required=required)


_VERSION = Literal[1]
_POLICY_FILE = settings.mapping({"schema_version": _VERSION, "gates": _gates(required=True)})
_GATE_WAIVER = Annotated[GateWaiver, AfterValidator(partial(check_waiver, gates=SETTINGS))]
_PROJECT_FILE = settings.mapping(
    {
        "schema_version": _VERSION,
        "gates": NotRequired[_gates(required=False)],
        "waivers": NotRequired[tuple[_GATE_WAIVER, ...]],
        "reviews": NotRequired[tuple[Annotated[Review, AfterValidator(check_review)], ...]],
        "invalid_versions": NotRequired[tuple[InvalidVersion, ...]],
    }
)


def load(project: Path | None = None, policy: Path = POLICY) -> Gates:
    """Return every gate, as the organisation policy sets it and the project's file tightens it.

    Raises UserError with every problem of a file: the policy leaves a setting out, or the project's
    file is looser than the policy.
    """
    file, document = _read(_POLICY_FILE, policy)
    values = file["gates"]
    if problems := tuple(_ineffective_thresholds(document, values, values["quality"])):
        raise UserError(*problems)
    waivers, reviews, invalid = _tighten(values, project) if project else ((), (), ())
    return {
        gate: Gate(
            gate,
            values[gate]["mode"],
            {setting: values[gate][setting] for setting in kinds},
            tuple(waiver for waiver in waivers if waiver.gate == gate),
            tuple(review for review in reviews if review.gate == gate),
            invalid if gate in COMPARING else (),
        )
        for gate, kinds in SETTINGS.items()
    }


def _tighten(
    values: dict[str, dict[str, Any]], project: Path
) -> tuple[tuple[GateWaiver, ...], tuple[Review, ...], tuple[InvalidVersion, ...]]:
    """Apply a project's settings to the policy's; return its waivers, reviews, invalid versions."""
    file, document = _read(_PROJECT_FILE, project)
    problems: list[Problem] = []
    for gate, stated in file.get("gates", {}).items():
        for setting, value in stated.items():
            held = values[gate][setting]
            problems += _looser(document, (gate, setting), value, held)
            entries = _kind(gate, setting).entries
            values[gate][setting] = {**held, **value} if entries else value
    problems += _ineffective_thresholds(document, file.get("gates", {}), values["quality"])
    problems += _off_decisive_splits(document, values)
    problems += _empty(document, values["forecasting"])
    if problems:
        raise UserError(*problems)
    return (
        located(file.get("waivers", ()), document, project, "waivers"),
        located(file.get("reviews", ()), document, project, "reviews"),
        located(file.get("invalid_versions", ()), document, project, "invalid_versions"),
    )


def _ineffective_thresholds(
    document: Document, stated: Mapping[str, Mapping[str, Any]], quality: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield a problem for each threshold that no model, or nearly every model, meets."""
    for gate in ("quality", *_MAX_DIFFERENCE):
        for setting in ("at_least", "at_most"):
            for name, value in stated.get(gate, {}).get(setting, {}).items():
                metric = name.partition(".")[2]
                loosest = _loosest(gate, setting, metric, quality)
                lowest, highest = quality["bounds"].get(metric, (-math.inf, math.inf))
                best = (
                    highest if setting == "at_least" else 0 if gate in _MAX_DIFFERENCE else lowest
                )
                if value > best if setting == "at_least" else value < best:
                    keys = ("gates", gate, setting, name)
                    yield Problem(
                        "unreachable-gate",
                        f"`{settings.dotted(keys)}` is {value:g}, which no model meets",
                        f"{'at most' if setting == 'at_least' else 'at least'} {best:g}",
                        "`gates.quality.bounds` says which values the metric can have",
                        document.place(*keys),
                    )
                if value < loosest if setting == "at_least" else value > loosest:
                    keys = ("gates", gate, setting, name)
                    yield Problem(
                        "ineffective-gate",
                        f"`{settings.dotted(keys)}` is {value:g}, which nearly every model meets",
                        f"{setting.replace('_', ' ')} {loosest:g}",
                        "`gates.quality` says which values the metric can have (`bounds`), and "
                        f"what guessing reaches (`loosest_{setting}`)",
                        document.place(*keys),
                    )


def _off_decisive_splits(
    document: Document, values: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Yield a problem if no `quality` threshold is on a split that decides the promotion."""
    quality, splits = values["quality"], values["non-inferiority"]["splits"]
    named = {name.partition(".")[0] for name in (*quality["at_least"], *quality["at_most"])}
    if named and splits and not named & set(splits):
        yield Problem(
            "ineffective-gate",
            f"the thresholds of `gates.quality` are on {', '.join(sorted(named))} alone",
            f"one on a split of `gates.non-inferiority.splits`: {', '.join(splits)}",
            "add a threshold there: the other splits may have selected the model",
            document.place("gates", "quality"),
        )


def _empty(document: Document, coverage: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem if `min_coverage` exceeds `max_coverage`."""
    if coverage["min_coverage"] > coverage["max_coverage"]:
        actual = f"`min_coverage` is {coverage['min_coverage']:g}"
        expected = f"at most `max_coverage`, {coverage['max_coverage']:g}"
        place = document.place("gates", "forecasting")
        yield Problem("unreachable-gate", actual, expected, place=place)


def _loosest(gate: str, setting: str, metric: str, quality: Mapping[str, Any]) -> float:
    """Return the loosest useful threshold of a metric, or of a difference of the metric.

    NaN for a metric without bounds, which the gate rejects.
    """
    lowest, highest = quality["bounds"].get(metric, (-math.inf, math.inf))
    at_least = quality["loosest_at_least"].get(metric)
    at_most = quality["loosest_at_most"].get(metric)
    if gate in _MAX_DIFFERENCE:
        lowest = lowest if at_least is None else at_least
        highest = highest if at_most is None else at_most
        return float(_MAX_DIFFERENCE[gate] * (highest - lowest))
    excluded = _MIN_EXCLUDED * (highest - lowest)
    if setting == "at_least":
        return float(lowest + excluded if at_least is None else at_least)
    return float(highest - excluded if at_most is None else at_most)


def _read(form: Any, path: Path) -> tuple[Any, Document]:
    document = documents.read(path)
    return settings.read(form, document), document


def _looser(document: Document, keys: tuple[str, ...], value: Any, held: Any) -> Iterator[Problem]:
    """Yield a problem where a setting is looser than `held`, the organisation policy's value."""
    kind = _kind(*keys)
    pairs = [(keys, value, held)]
    if kind.entries:
        pairs = [((*keys, name), value[name], held[name]) for name in value.keys() & held.keys()]
    for names, ours, theirs in pairs:
        if kind.looser(ours, theirs):
            place = document.place("gates", *names)
            actual = f"`{settings.dotted(('gates', *names))}` is {_shown(ours)}"
            expected = f"no looser than the organisation policy's {_shown(theirs)}"
            hint = "tighten it, or change policies/promotion/gates.yml for all projects"
            yield Problem("gate-looser-than-policy", actual, expected, hint, place)


def _shown(value: object) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)
