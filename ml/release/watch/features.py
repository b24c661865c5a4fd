"""Freshness and drift of the feature sets of a version, from their materialised rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ml.features.definition import read
from ml.features.timeline import FeatureError
from ml.release.evidence.feature_sets import definitions
from ml.release.watch import drift
from ml.release.watch.drift import Shift
from ml.release.watch.limits import Limits


@dataclass
class FeatureReport:
    """The comparisons of all feature sets; p-values are not corrected."""

    drift: list[Shift] = field(default_factory=list)
    ages: list[Shift] = field(default_factory=list)  # in hours; no test, so p is 0
    notes: list[str] = field(default_factory=list)  # what was not judged
    unwatched: list[str] = field(default_factory=list)  # sets that the store does not have


def compare(
    root: Path, reference: Mapping[str, Any], store: Path | None, limits: Limits
) -> FeatureReport:
    """Compare the feature sets of a reference with the last materialised days in a store.

    As many days are read as have `limits.min_rows` rows together. The ages are those of the newest
    event, limited by the lookback of the join, and of the newest arrival, limited by the schedule.
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
                    "missing-file", f"no file defines `{name}`", "ml/projects/*/features"
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
