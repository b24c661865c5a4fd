"""The data of the gates: Request, Case (a gate's input), Finding, Result and Decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Literal

from ml.measures.schema import MOST, Estimate, Evaluation, Metrics
from policies.promotion.evidence import Evidence
from policies.promotion.gate import Gate, Gates, Mode

Verdict = Literal["pass", "fail", "waived", "pending", "not evaluated"]
Outcome = Literal["rejected", "pending", "approved", "already-champion"]
Step = Literal["propose", "apply"]
# The gates that a version keeps passing until somebody changes its files.
PROPERTIES = ("identity", "verified-metrics", "format")
# The split that the model and its hyperparameters are selected on.
VALIDATION = "validation"
# The most items that a finding lists; the evidence has them all.
LISTED = 5


@dataclass(frozen=True)
class Request:
    """A request to promote a model version to an environment."""

    environment: str
    model: str
    version: str
    digest: str  # of the model
    step: Step
    now: datetime  # with a time zone
    approved_by: str = ""  # the step `apply` requires it
    reason: str = ""  # why to replace a champion that the candidate does not beat
    served_before: bool = False  # True if the version served there before: a rollback
    # True if the serving code or settings change; used only for the champion's own model.
    serving_changes: bool = False
    simulated: bool = False  # whether the environment is simulated on one machine
    served_in: tuple[str, ...] = ()  # environments that served this model with this serving code
    # Digest of the serving code and settings to deploy; "" if unknown, as nothing is deployed.
    deployment_digest: str = ""
    # The `invalid_versions` entry that excludes the champion from the comparison; "" if none.
    set_aside: str = ""

    @property
    def day(self) -> date:
        """The day of the request in UTC."""
        return self.now.astimezone(UTC).date()


@dataclass(frozen=True)
class Case:
    """The input of a gate."""

    request: Request
    evidence: Evidence  # of the candidate
    champion: Evidence | None  # of the champion; None if no champion has to be beaten
    gates: Gates
    # Cache of the paired differences, which several gates compute.
    differences: dict[object, Any] = field(default_factory=dict, compare=False)

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation in the evidence."""
        return self.evidence.evaluation

    @property
    def metric(self) -> str:
        """The name of the primary metric for sentences."""
        return self.evaluation.primary_metric or "the primary metric"

    @property
    def is_champion(self) -> bool:
        """True if the candidate is the champion's own model."""
        return self.champion is not None and self.champion.digest == self.request.digest

    @property
    def only_serving_changes(self) -> bool:
        """True if the champion's own model is to be served with other code or settings."""
        return self.is_champion and self.request.serving_changes

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that decide a promotion; `superiority` compares on the first."""
        return self.gates["non-inferiority"].names("splits")

    @property
    def min_count(self) -> float:
        """The minimum number of units of a metric."""
        return self.gates["quality"].number("min_count")

    def bounds(self, metric: str | None) -> tuple[float, float] | None:
        """Return the lowest and highest possible value of a metric; None if gates.yml has none."""
        return self.gates["quality"].bounds("bounds").get(metric or "")


@dataclass(frozen=True)
class Finding:
    """A gate's result before its mode and waivers are applied."""

    verdict: Verdict
    actual: str
    required: str
    why: str = ""
    # Whether a failed gate had complete and sound evidence: only such a failure can be waived.
    measured: bool = False
    # The failed items, if the gate checks several (advisory ids, files); a waiver names one.
    items: tuple[str, ...] = ()
    # Item that a waiver can name → sentence; a warning blocks nothing.
    warnings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A gate's result after its mode and waivers were applied."""

    gate: str
    verdict: Verdict
    mode: Mode
    actual: str
    required: str
    why: str = ""
    waivers: tuple[Mapping[str, object], ...] = ()  # used for failures and warnings, as JSON
    warnings: tuple[str, ...] = ()  # those that no waiver accepts

    @property
    def mark(self) -> str:
        """The verdict, or `warn` of a gate that passes with warnings."""
        return "warn" if self.verdict == "pass" and self.warnings else self.verdict

    @property
    def blocks(self) -> bool:
        """True if this result stops the promotion; a report-only gate never does."""
        return self.mode == "enabled" and self.verdict == "fail"


@dataclass(frozen=True)
class Decision:
    """The outcome of one request, with the result of every gate, disabled gates included."""

    request: Request
    outcome: Outcome
    results: tuple[Result, ...]
    champion: str | None

    @property
    def allowed(self) -> bool:
        """True if the gates allow the promotion, even if the sign-off is pending."""
        return self.outcome in ("pending", "approved")

    @property
    def waived(self) -> tuple[Result, ...]:
        """The results that would stop the promotion without a waiver."""
        return tuple(result for result in self.results if result.verdict == "waived")

    @property
    def blocking(self) -> tuple[Result, ...]:
        """The results that stop the promotion; for the champion itself, which cannot be promoted
        again, only those that detect changed files.
        """
        champion = self.outcome == "already-champion"
        return tuple(
            result
            for result in self.results
            if result.blocks and (result.gate in PROPERTIES or not champion)
        )

    def to_json(self) -> Mapping[str, object]:
        """Return the decision as JSON: `ml gate --json` prints it and the audit log keeps it."""
        request = {**asdict(self.request), "now": self.request.now.isoformat()}
        return {
            "request": request,
            "outcome": self.outcome,
            "champion": self.champion,
            "results": [asdict(result) for result in self.results],
        }


Rule = Callable[[Case, Gate], Finding]


def real(number: float | None) -> float:
    """Return the number when it is finite, otherwise NaN, which satisfies no comparison."""
    return number if number is not None and math.isfinite(number) else math.nan


def shown(number: float | None) -> str:
    """Return the number with four significant digits, or "missing"."""
    return "missing" if number is None or math.isnan(number) else f"{number:.4g}"


def listed(names: Sequence[str], separator: str = ", ", most: int = LISTED) -> str:
    """Return the first `most` names as text, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def metric_on_split(key: str) -> str:
    """Return `METRIC on SPLIT` for the key `SPLIT.METRIC` of gates.yml."""
    split, metric = key.split(".")
    return f"{metric} on {split}"


def estimate(metrics: Metrics, split: str, metric: str) -> Estimate:
    """Return the metric on the split; an empty estimate if it is missing."""
    return (metrics.get(split) or {}).get(metric) or Estimate()


def unsound(measured: Estimate, bounds: tuple[float, float] | None, min_count: float) -> str:
    """Return why an estimate cannot be used, or ""."""
    if bounds is None:
        return "has no bounds in gates.yml"
    value, low, high = real(measured.value), real(measured.low), real(measured.high)
    if not bounds[0] <= value <= bounds[1]:
        return "is missing or out of bounds"
    if not bounds[0] <= low <= value <= high <= bounds[1]:
        return "has no interval around it"
    if not min_count <= real(measured.count) <= MOST:
        return f"counts {shown(measured.count)} units, not {min_count:g} or more"
    return ""
