"""The request, the result of each gate, and the decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import Literal

Mode = Literal["enabled", "report-only", "disabled"]
Verdict = Literal["pass", "fail", "waived", "pending", "not asked"]
Outcome = Literal["refused", "pending", "approved", "already-champion"]
Step = Literal["propose", "apply"]
# The gates that a version keeps passing until somebody changes its files.
PROPERTIES = ("identity", "recomputed", "format")


@dataclass(frozen=True)
class Request:
    """A request to promote `model` `version`, which has this `digest`, to `environment`.

    `now` has a time zone. `reason` says in writing why to replace a champion that the candidate
    does not beat. The step `apply` requires `approved_by`. `served_before` means that the version
    served there already, so that this is a rollback.
    """

    environment: str
    model: str
    version: str
    digest: str
    step: Step
    now: datetime
    approved_by: str = ""
    reason: str = ""
    served_before: bool = False

    @property
    def day(self) -> date:
        """The day in UTC."""
        return self.now.astimezone(UTC).date()


@dataclass(frozen=True)
class Result:
    """What one gate found, what it requires, and why it reached its verdict.

    `waivers` are those that were used, as JSON; () unless the verdict is "waived".
    """

    gate: str
    verdict: Verdict
    mode: Mode
    found: str
    required: str
    why: str = ""
    waivers: tuple[Mapping[str, object], ...] = ()

    @property
    def blocks(self) -> bool:
        """Whether this result stops the promotion; a report-only gate never does."""
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
        """Whether nothing is in the way of the promotion, except perhaps the sign-off."""
        return self.outcome in ("pending", "approved")

    @property
    def waived(self) -> tuple[Result, ...]:
        """The results that would stop the promotion without a waiver."""
        return tuple(result for result in self.results if result.verdict == "waived")

    @property
    def blocking(self) -> tuple[Result, ...]:
        """The results that stop the promotion. For the champion itself, which cannot be promoted
        again, only those that show that its files changed.
        """
        champion = self.outcome == "already-champion"
        return tuple(
            result
            for result in self.results
            if result.blocks and (result.gate in PROPERTIES or not champion)
        )

    def to_json(self) -> Mapping[str, object]:
        """The decision as JSON: `ml gate --json` prints it and the audit log keeps it."""
        request = {**asdict(self.request), "now": self.request.now.isoformat()}
        return {
            "request": request,
            "outcome": self.outcome,
            "champion": self.champion,
            "results": [asdict(result) for result in self.results],
        }
