"""What the gates decide: one result a gate, and the outcome that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

Mode = Literal["enabled", "report-only", "disabled"]
Verdict = Literal["pass", "fail", "waived", "pending", "not asked"]
Outcome = Literal["refused", "pending", "approved", "already-champion"]
Step = Literal["propose", "apply"]
# The gates that a champion passes for as long as nobody changes its files.
ITSELF = ("identity", "recomputed", "format")


@dataclass(frozen=True)
class Request:
    """What is asked for: may `model` `version` with this `digest` be promoted to `environment`?

    `now` is aware of its zone. `reason` is the reason in writing to replace a champion that the
    candidate does not beat. `approved_by` is required at the step `apply`. `served_before`: it
    served there already, so that this is a way back.
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


@dataclass(frozen=True)
class Result:
    """What one gate found, what it requires, and why it came to its verdict.

    `waivers` are those that were used, as JSON takes them; () unless the verdict is "waived".
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
    """The outcome for one request, with every gate's result, disabled gates included."""

    request: Request
    outcome: Outcome
    results: tuple[Result, ...]
    champion: str | None

    @property
    def allowed(self) -> bool:
        """Whether nothing but, perhaps, the sign-off stands between the version and its place."""
        return self.outcome in ("pending", "approved")

    @property
    def waived(self) -> tuple[Result, ...]:
        """The results that would stop the promotion but for a waiver."""
        return tuple(result for result in self.results if result.verdict == "waived")

    @property
    def blocking(self) -> tuple[Result, ...]:
        """The results that stop the promotion; of the champion itself, which there is nothing to
        promote, those that say that it is not what was promoted.
        """
        champion = self.outcome == "already-champion"
        return tuple(
            result
            for result in self.results
            if result.blocks and (result.gate in ITSELF or not champion)
        )

    def to_json(self) -> Mapping[str, object]:
        """The decision as JSON takes it: what `ml gate --json` prints and the audit log keeps."""
        request = {**asdict(self.request), "now": self.request.now.isoformat()}
        return {
            "request": request,
            "outcome": self.outcome,
            "champion": self.champion,
            "results": [asdict(result) for result in self.results],
        }
