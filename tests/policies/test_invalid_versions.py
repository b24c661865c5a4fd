"""A champion that is stated to be invalid, and what a candidate has to show then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ml.cli.render.release_text import conclusion
from ml.core.errors import UserError
from ml.release.promotion.gate_check import version_to_beat
from ml.reports.pull_requests import comparison
from policies.promotion.decision import Decision, Request
from policies.promotion.engine import decide
from tests.policies.cases import (
    DIGEST,
    OTHER,
    PROJECT,
    REQUEST,
    champion,
    evaluated,
    good,
    load_gates,
    request,
    result,
)
from tests.release.rollout.test_rollback import registered

STATED = {"version": 3, "digest": OTHER, "owner": "ana", "expires": "2025-06-30"}
WHY = "is_recid gives the answer away"
CHAMPION = replace(registered("tiny", "3"), digest=OTHER)
RIVAL = replace(registered("tiny", "5"), digest="sha256:" + "c" * 64)


def judged(
    folder: Path, share: float = 0.7, wanted: Request = REQUEST, rival: bool = False, **stated: Any
) -> Decision:
    """The decision on a candidate that is worse than the champion, under that statement."""
    fields = {**STATED, "reason": WHY, **stated}
    line = ", ".join(f"{name}: {value}" for name, value in fields.items())
    gates = load_gates(folder, f"{PROJECT}invalid_versions:\n  - {{{line}}}\n")
    valid, wanted = version_to_beat(gates, wanted, RIVAL if rival else None, CHAMPION)
    theirs = valid and replace(champion(0.8), version=valid.version, digest=valid.digest)
    return decide(gates, good(share), theirs, wanted)


def test_an_invalid_champion_does_not_have_to_be_beaten(tmp_path: Path) -> None:
    """The rule of a first promotion holds, and everything that is kept or printed says why."""
    decision = judged(tmp_path)
    assert decision.outcome == "pending" and decision.champion is None
    first = result(decision, "first-promotion")
    assert first.verdict == "pass"
    gates = [result(decision, gate) for gate in ("non-inferiority", "superiority")]
    assert [each.verdict for each in gates] == ["not evaluated"] * 2
    document = {"decision": {**decision.to_json(), "blocking": []}, "model": "tiny"}
    told = [first.why, conclusion(decision), comparison.comment(document), gates[0].actual]
    for text in (*told, decision.to_json()["request"]["set_aside"]):  # type: ignore[index]
        plain = text.replace("\\", "")
        assert "version 3" in plain and "ana" in plain and WHY in plain and "gates.yml" in plain


@pytest.mark.parametrize(
    ("stated", "contains"),
    [
        ({"digest": RIVAL.digest}, "is another model"),
        ({"expires": "2025-05-31"}, "expired on 2025-05-31"),
        ({"expires": "2026-06-01"}, "for more than 90 days"),
    ],
)
def test_a_statement_that_does_not_hold_excuses_nothing(
    stated: dict[str, Any], contains: str, tmp_path: Path
) -> None:
    """Of another model, or of another time: the refusal says so."""
    found = result(judged(tmp_path, **stated), "non-inferiority")
    assert found.verdict == "fail" and contains in found.why


def test_thresholds_and_the_baseline_still_hold(tmp_path: Path) -> None:
    """It is no way past the rule of a first promotion."""
    assert [each.gate for each in judged(tmp_path, 0.55).blocking] == ["quality"]
    poor = evaluated(good(0.7), baseline=good(0.75).evaluation.metrics)
    decision = decide(load_gates(tmp_path), poor, None, request(set_aside="version 3"))
    assert [each.gate for each in decision.blocking] == ["first-promotion"]


@pytest.mark.parametrize("expires", ["2025-06-30", "2024-01-01"])
def test_an_invalid_version_is_not_promoted(expires: str, tmp_path: Path) -> None:
    """Not even where it beats the champion, for as long as the line stands."""
    decision = judged(tmp_path, 0.95, digest=DIGEST, expires=expires)
    assert [each.gate for each in decision.blocking] == ["superiority"]
    wanted = request(served_before=True, step="apply", approved_by="ana")
    back = judged(tmp_path, 0.95, wanted, digest=DIGEST, expires=expires)
    assert back.outcome == "approved" and result(back, "superiority").mode == "report-only"


def test_one_that_waits_has_to_be_beaten_unless_it_is_invalid_too(tmp_path: Path) -> None:
    """Of the declared version and the champion the valid ones count."""
    assert judged(tmp_path, rival=True).champion == "5"
    waits = judged(tmp_path, rival=True, version=5, digest=RIVAL.digest)
    assert waits.champion == "3" and "version 5" in waits.request.set_aside


def test_a_reason_is_answered_with_the_line_to_write(tmp_path: Path) -> None:
    """A reason alone does not excuse a worse model; without one nothing suggests it."""
    wanted = request(reason="it leaks")
    decision = decide(load_gates(tmp_path), good(0.7), champion(0.8), wanted)
    why = result(decision, "non-inferiority").why
    assert f"invalid_versions: [{{version: 3, digest: {OTHER}, owner: NAME" in why
    decision = decide(load_gates(tmp_path), good(0.7), champion(0.8), REQUEST)
    assert "invalid_versions" not in result(decision, "non-inferiority").why


@pytest.mark.parametrize(
    "stated",
    [
        {"owner": "..."},
        {"reason": '""'},
        {"digest": "sha256:1"},
        {"version": '""'},
        {"gate": "gap"},
    ],
)
def test_a_statement_names_a_model_an_owner_and_a_reason(
    stated: dict[str, Any], tmp_path: Path
) -> None:
    """A field that is empty or unknown is refused when the file is read."""
    with pytest.raises(UserError, match=r"gates\.yml:"):
        judged(tmp_path, **stated)
