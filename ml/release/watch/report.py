"""One look at a version: what was seen beside its reference, and whether that is a breach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ml.release.watch import drift
from ml.release.watch.drift import Finding
from ml.release.watch.limits import Limits
from ml.release.watch.requests import Seen, loss

Outcome = Literal["breach", "no-breach", "too-few"]


@dataclass(frozen=True)
class Report:
    """The outcome in a sentence, every comparison (breaches first), and what was not judged."""

    outcome: Outcome
    said: str
    model: str
    version: str
    digest: str
    environment: str
    rows: int
    findings: Sequence[Finding]
    notes: Sequence[str]
    limits: Limits

    def to_json(self) -> Mapping[str, object]:
        """As JSON takes it."""
        shown = [
            {**{k: _plain(v) for k, v in asdict(one).items()}, "breach": one.is_breach}
            for one in self.findings
        ]
        return {**asdict(self), "findings": shown, "limits": asdict(self.limits)}


def look(
    reference: Mapping[str, Any],
    seen: Seen,
    limits: Limits,
    *,
    model: str,
    version: str,
    environment: str,
    labelled: Mapping[str, str] | None = None,
) -> Report:
    """Compare every column of the reference with what was seen; pure."""
    notes = [
        f"{what}: {count:,}"
        for count, what in (
            (seen.unreadable, "lines that cannot be read, left out"),
            (seen.others, "requests that another model answered, left out"),
            (seen.failed, "requests that were not answered with 200"),
        )
        if count
    ]
    findings: list[Finding] = []
    if len(seen.rows) >= limits.min_rows:
        findings += _columns("inputs", reference, seen, limits)
        if any(row.answer is not None for row in seen.rows):
            findings += _columns("predictions", reference, seen, limits)
        else:
            notes.append("there are no answers: predictions are not compared")
    if labelled is not None:
        findings += _quality(reference, seen, labelled, limits, notes)
    findings = sorted(drift.corrected(findings), key=lambda one: (not one.is_breach, one.p))
    breaches = [one for one in findings if one.is_breach]
    outcome: Outcome = "breach" if breaches else "no-breach"
    if not findings:
        outcome = "too-few"
        said = f"too few rows to say anything: {len(seen.rows)} of at least {limits.min_rows}"
    elif breaches:
        first = "; ".join(f"{one.column}: {one.test} {one.size:.2f}" for one in breaches[:3])
        more = f" and {len(breaches) - 3} more" if len(breaches) > 3 else ""
        said = f"breach: {first}{more}"
    else:
        said = f"no breach in {len(findings)} comparisons"
    return Report(
        outcome=outcome,
        said=f"{said} ({len(seen.rows):,} rows)" if findings else said,
        model=model,
        version=version,
        digest=str(reference["digest"]),
        environment=environment,
        rows=len(seen.rows),
        findings=findings,
        notes=notes,
        limits=limits,
    )


def _columns(part: str, reference: Mapping[str, Any], seen: Seen, limits: Limits) -> list[Finding]:
    """The comparisons of one part; a request that could not be read has no value anywhere."""
    found: list[Finding] = []
    rows = seen.rows if part == "inputs" else [one for one in seen.rows if one.answer is not None]
    for name, kept in reference[part].items():
        if name in limits.ignore:
            continue
        of = [row.value(name) if part == "inputs" else row.predicted(name) for row in rows]
        found += drift.compare(name, kept, of, limits)
    return found


def _quality(
    reference: Mapping[str, Any],
    seen: Seen,
    labelled: Mapping[str, str],
    limits: Limits,
    notes: list[str],
) -> list[Finding]:
    """What the answers cost whose right one is known by now; of an id that came again, the last."""
    rows = list({row.id: row for row in seen.rows if row.id in labelled}.values())
    found: list[Finding] = []
    if not reference["quality"]:
        notes.append("the reference keeps no losses: quality is not judged")
    for name, kept in reference["quality"].items():
        kind = reference["predictions"].get(name, {}).get("kind", "numeric")
        costs = [loss(kind, row.predicted(name), labelled[row.id]) for row in rows]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs):
            notes.append(
                f"{len(costs) - len(known):,} labels of `{name}` that are no number, or whose "
                "answer is none, left out"
            )
        if len(known) < limits.min_rows:
            notes.append(
                f"{len(known)} answers of `{name}` have a label, {limits.min_rows} are needed: "
                "quality is not judged"
            )
        else:
            found.append(drift.worsened(name, kept, known, limits))
    return found


def _plain(value: object) -> object:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
