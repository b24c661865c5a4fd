"""Report on a version: compare its requests and responses with its reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from ml.backends.base import Backend
from ml.backends.endpoints import Endpoints
from ml.backends.model_registry import Version
from ml.core import home
from ml.core.errors import UserError
from ml.features.definition import read
from ml.features.timeline import FeatureError
from ml.release.declaration import projects
from ml.release.declaration.desired_state import LOCAL
from ml.release.evidence.evidence import load_reference
from ml.release.evidence.feature_sets import definitions
from ml.release.watch import drift, requests
from ml.release.watch import limits as watch_limits
from ml.release.watch.drift import Shift
from ml.release.watch.limits import Limits
from ml.release.watch.requests import CollectedRequests, loss
from policies.promotion.decision import listed

Outcome = Literal["breach", "no-breach", "too-few"]


@dataclass(frozen=True)
class Report:
    """A report: the outcome, every comparison (breaches first), and notes on what is not judged."""

    outcome: Outcome
    sentence: str
    model: str
    version: str
    digest: str
    environment: str
    rows: int
    findings: Sequence[Shift]
    notes: Sequence[str]
    limits: Limits
    failing: str = ""  # a sentence about requests that the model failed

    def to_json(self) -> Mapping[str, object]:
        """Return the report as JSON-compatible values."""
        findings = [
            {**{k: _plain(v) for k, v in asdict(finding).items()}, "breach": finding.is_breach}
            for finding in self.findings
        ]
        return {**asdict(self), "findings": findings, "limits": asdict(self.limits)}


@dataclass
class FeatureReport:
    """The comparisons of all feature sets; p-values are not corrected."""

    drift: list[Shift] = field(default_factory=list)
    ages: list[Shift] = field(default_factory=list)  # in hours; no test, so p is 0
    notes: list[str] = field(default_factory=list)  # what was not judged
    unwatched: list[str] = field(default_factory=list)  # sets that the store does not have


def watch(
    backend: Backend,
    model: str,
    environment: str = LOCAL,
    version: str = "",
    *,
    inputs: Path | None = None,
    labels: Path | None = None,
    since: float | None = None,
    store: Path | None = None,
) -> Report:
    """Report on the serving version, or on `version`, from collected requests or from a file.

    `store` is the folder of the feature store; `local` has a default, this machine's store.

    Raises UserError if `store` does not exist, if nothing serves, if no requests are collected for
    the version and no feature set can be reported, or if its reference is missing or belongs to
    another model.
    """
    if store is not None and not store.is_dir():
        actual = f"there is no feature store at {store}"
        hint = f"ml features materialize NAME --store {store}"
        raise UserError.with_code("missing-file", actual, "the folder of a store", hint)
    registered = _version(backend, model, environment, version, inputs is not None)
    if (shared := backend.registry.shared) is not None:
        shared.download(registered)
    reference = load_reference(registered)
    limits = watch_limits.read(projects.find(backend.root, registered.project).folder)
    if store is None and environment == LOCAL:
        store = home.home() / "features"
    of_features = compare_features(backend.root, reference, store, limits)
    if inputs:
        collected = requests.read_file(inputs)
    else:
        try:
            collected = _collected(backend.endpoints, model, environment, registered, since)
        except UserError as refused:
            problem = refused.problems[0]
            if problem.code != "collection-disabled" or not of_features.ages + of_features.drift:
                more = "; ".join([problem.actual, *of_features.notes])
                problems = [replace(problem, actual=more), *refused.problems[1:]]
                raise UserError(*problems, exit_code=refused.exit_code) from None
            collected = CollectedRequests(())
            of_features.notes.append(problem.actual)
    report = compare_requests(
        reference,
        collected,
        limits,
        of_features,
        model=model,
        version=registered.version,
        environment=environment,
        labelled=requests.labels(labels) if labels else None,
    )
    if inputs is not None:
        return replace(report, notes=[*report.notes, f"from {inputs}, not from the endpoint"])
    return report


def compare_requests(
    reference: Mapping[str, Any],
    collected: CollectedRequests,
    limits: Limits,
    of_features: FeatureReport | None = None,
    *,
    model: str,
    version: str,
    environment: str,
    labelled: Mapping[str, str] | None = None,
) -> Report:
    """Compare every column of the reference with the collected requests; a pure function."""
    of_features = of_features or FeatureReport()
    notes = [
        f"{what}: {count:,}"
        for count, what in (
            (collected.unreadable, "lines that cannot be read, left out"),
            (collected.others, "requests that another model answered, left out"),
            (collected.failed, "requests that were not answered with 200"),
        )
        if count
    ]
    notes += of_features.notes
    findings: list[Shift] = []
    if len(collected.rows) >= limits.min_rows:
        findings += _columns("inputs", reference, collected, limits)
        if any(row.answer is not None for row in collected.rows):
            findings += _columns("predictions", reference, collected, limits)
        else:
            notes.append("there are no answers: predictions are not compared")
    if labelled is not None:
        findings += _quality(reference, collected, labelled, limits, notes)
    judged = bool(findings)
    findings = sorted(
        [*drift.correct([*findings, *of_features.drift]), *of_features.ages],
        key=lambda finding: (not finding.is_breach, finding.p),
    )
    breaches = [finding for finding in findings if finding.is_breach]
    outcome: Outcome = "breach" if breaches else "no-breach"
    if breaches:
        sizes = [f"{breach.column}: {breach.test} {breach.size:.2f}" for breach in breaches]
        summary = f"breach: {listed(sizes, '; ', most=3)}"
    elif not judged:
        outcome = "too-few"
        summary = (
            f"too few rows to say anything: {len(collected.rows)} of at least {limits.min_rows}"
        )
    else:
        summary = f"no breach in {len(findings)} comparisons"
    summary = f"{summary} ({len(collected.rows):,} rows)" if judged else summary
    if of_features.unwatched:
        summary += f"; feature sets not watched: {', '.join(of_features.unwatched)}"
    return Report(
        outcome="breach" if collected.failing else outcome,
        sentence=f"{collected.failing}; {summary}" if collected.failing else summary,
        model=model,
        version=version,
        digest=str(reference["digest"]),
        environment=environment,
        rows=len(collected.rows),
        findings=findings,
        notes=notes,
        limits=limits,
        failing=collected.failing,
    )


def _columns(
    part: str, reference: Mapping[str, Any], collected: CollectedRequests, limits: Limits
) -> list[Shift]:
    """Return the comparisons of the columns of a part, "inputs" or "predictions"."""
    findings: list[Shift] = []
    rows = (
        collected.rows
        if part == "inputs"
        else [row for row in collected.rows if row.answer is not None]
    )
    for name, column in reference[part].items():
        if name in limits.ignore:
            continue
        values = [row.value(name) if part == "inputs" else row.predicted(name) for row in rows]
        findings += drift.compare(name, column, values, limits)
    return findings


def _quality(
    reference: Mapping[str, Any],
    collected: CollectedRequests,
    labelled: Mapping[str, str],
    limits: Limits,
    notes: list[str],
) -> list[Shift]:
    """Return the loss comparisons of labelled responses, the last one of each id; add notes."""
    rows = list({row.id: row for row in collected.rows if row.id in labelled}.values())
    findings: list[Shift] = []
    if not reference["quality"]:
        notes.append("the reference keeps no losses: quality is not judged")
    for name, losses in reference["quality"].items():
        kind = reference["predictions"].get(name, {}).get("kind", "numeric")
        costs = [loss(kind, row.predicted(name), labelled[row.id]) for row in rows]
        judged = [cost for cost in costs if cost is not None]
        if len(judged) < len(costs):
            notes.append(
                f"{len(costs) - len(judged):,} labels of `{name}` were left out: the label "
                "is not a number, or the answer has no number"
            )
        if len(judged) < limits.min_rows:
            notes.append(
                f"{len(judged)} answers of `{name}` have a label, {limits.min_rows} are needed: "
                "quality is not judged"
            )
        else:
            findings.append(drift.compare_losses(name, losses, judged, limits))
    return findings


def _plain(value: object) -> object:
    """Return the value; None for NaN and infinities, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _version(
    backend: Backend, model: str, environment: str, version: str, from_file: bool
) -> Version:
    registry = backend.registry
    if version:
        return registry.find(model, version)
    if not from_file:
        name = backend.endpoints.name_of(model, environment)
        state = backend.endpoints.live(name)
        if state is None:
            raise backend.endpoints.nothing_served(name)
        return registry.find(model, state.deployment.version)
    champion = registry.champion(model, environment)
    if champion is None:
        versions = registry.versions(model)
        raise UserError.with_code(
            "no-champion",
            f"`{model}` has no champion in {environment}",
            "a promoted version, or one named with --version",
            f"--version {versions[-1].version}" if versions else "--version N",
        )
    return champion


def _collected(
    endpoints: Endpoints, model: str, environment: str, version: Version, since: float | None
) -> CollectedRequests:
    name = endpoints.name_of(model, environment)
    collected = requests.read_collected(endpoints.collected(name, since), version.digest, since)
    if collected.rows or collected.earlier:
        return collected
    state = endpoints.live(name)
    deployments = (
        [state.deployment, *([state.canary.deployment] if state.canary else [])] if state else []
    )
    serving = [deployment for deployment in deployments if deployment.digest == version.digest]
    if not serving:
        raise UserError.with_code(
            "not-served",
            f"version {version.version} does not serve on `{name}`, and no requests to it "
            "were recorded",
            "a version that serves",
            "ml release status lists the serving versions",
        )
    if not any(deployment.collect for deployment in serving):
        raise UserError.with_code(
            "collection-disabled",
            f"no requests to version {version.version} of `{name}` are collected",
            '`enabled: "true"` for `request` and `response` in `data_collector.collections` of the '
            "project's endpoint/deployment.yml",
            "set it there, propose the version again and apply; or --inputs FILE",
        )
    return collected


def compare_features(
    root: Path, reference: Mapping[str, Any], store: Path | None, limits: Limits
) -> FeatureReport:
    """Compare the feature sets of a reference with the last materialised days in a store.

    As many days are read as have `limits.min_rows` rows together. The age of the newest event is
    limited by the join's lookback, and the age of the newest arrival by the schedule.
    """
    report, sets = FeatureReport(), reference.get("features") or {}
    if not sets:
        return report
    if store is None:
        report.notes.append(f"feature sets are not watched: {', '.join(sets)}; name --features DIR")
        report.unwatched += sets
        return report
    from ml.features.store import ages, stored  # imports polars

    files = definitions(root)
    for name, trained in sets.items():
        try:
            if not (paths := files.get(name)):
                raise FeatureError(
                    "missing-file",
                    f"no file defines the feature set `{name}`",
                    "a definition in ml/projects/*/features",
                )
            feature_set = read(paths[-1])
            rows = stored(feature_set, store, limits.min_rows)
        except FeatureError as error:
            report.notes.append(f"{name} is not watched: {error}")
            report.unwatched.append(name)
            continue
        if feature_set.digest != trained["definition"]:
            report.notes.append(
                f"the model was trained on version {trained['version']} of {name} as it was "
                f"defined then; version {feature_set.version} is compared"
            )
        for age in ages(feature_set, rows, datetime.now(UTC)):
            if age.limit is not None and name not in limits.ignore:
                hours = timedelta(hours=1)
                text = f"the newest {age.what} is of {age.last:%Y-%m-%d %H:%M} UTC"
                size, limit = age.age / hours, age.limit / hours
                shift = Shift(f"{name}: {age.what}", "hours", size, limit, 0.0, text, limits.alpha)
                report.ages.append(shift)
        for feature, column in trained["columns"].items():
            column_name = f"{name}/{feature}"
            if feature in rows.columns and column_name not in limits.ignore:
                values = rows.get_column(feature).to_list()
                report.drift += drift.compare(column_name, column, values, limits)
    return report
