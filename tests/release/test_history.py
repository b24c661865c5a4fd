"""ml.release.audit: what the audit log says of an endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.backends.endpoints import ModelDeployment
from ml.release import audit
from tests.local import LOG


def happened(event: str, version: str, endpoint: str = "tiny", **more: object) -> None:
    """Add a line as a rollout does."""
    what = {
        "endpoint": endpoint,
        "version": version,
        "digest": f"sha256:{version}",
        "deployment_digest": "1",
    }
    audit.append(LOG, event, {**what, "approved_by": "ana", **more})


def deployment(version: str, deployment_digest: str = "1") -> ModelDeployment:
    """The version with that serving code."""
    return ModelDeployment(
        endpoint="tiny",
        model="tiny",
        version=version,
        digest=f"sha256:{version}",
        code=Path("code"),
        scoring_script="score.py",
        model_folder=Path("model"),
        environment_variables={},
        deployment_digest=deployment_digest,
    )


@pytest.mark.parametrize(
    ("applied", "left"),
    [("", ""), ("1", "1"), ("123", "123"), ("1232", "12"), ("12321", "1"), ("1213", "13")],
)
def test_going_back_takes_away_what_came_after(applied: str, left: str) -> None:
    """A rollback never leads to a version that was gone back from."""
    for version in applied:
        happened("applied", version)
        happened("applied", "9", endpoint="other")
    assert "".join(str(line["version"]) for line in audit.history(LOG, "tiny").served) == left


def test_refused_versions_are_those_that_did_not_make_it_since() -> None:
    """One that was refused and applied later is none; the last reason holds."""
    for event, version, why in (
        ("rolled-back", "2", "errors"),
        ("rolled-back", "3", "latency"),
        ("applied", "2", ""),
        ("rolled-back", "3", "memory"),
    ):
        happened(event, version, why=why)
    (one,) = audit.history(LOG, "tiny").refused()
    assert (one.version, one.outcome, one.why, one.by) == ("3", "rolled-back", "memory", "ana")
    assert audit.history(LOG, "tiny").approver("sha256:2") == "ana"
    assert audit.history(LOG, "tiny").approver("sha256:3") == ""


def decided(outcome: str, step: str = "apply", environment: str = "prod") -> str:
    """Add a decision's line."""
    request = {"environment": environment, "step": step, "version": "5"}
    results = [{"gate": "gap", "mode": "enabled", "verdict": "fail"}]
    asked = {**request, "approved_by": "", "reason": "because"}
    decision = {"request": asked, "outcome": outcome, "results": results}
    return audit.append(LOG, "decision", {"project": "tiny", "decision": decision})


def test_the_last_attempt_is_what_an_apply_came_to() -> None:
    """Not a proposal, not another environment's, not one that found nothing to do."""
    assert audit.history(LOG, "tiny-prod").last_attempt("tiny", "prod") is None
    happened("applied", "4", endpoint="tiny-prod")
    decided("rejected", environment="dev")
    decided("rejected", step="propose")
    hash = decided("already-champion")
    found = audit.history(LOG, "tiny-prod").last_attempt("tiny", "prod")
    assert found and (found.outcome, found.version) == ("applied", "4")
    decided("rejected")
    found = audit.history(LOG, "tiny-prod").last_attempt("tiny", "prod")
    assert found and (found.outcome, found.version) == ("rejected", "5") and "gap" in found.why
    assert audit.history(LOG, "tiny-prod").reason(hash) == "because"
    assert audit.history(LOG, "tiny-prod").reason("0" * 64) == ""
