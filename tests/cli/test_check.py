"""ml.cli.commands.check: what it checks besides specs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ml.cli.commands.check import rule_waiver_problems


@pytest.mark.parametrize(
    ("content", "codes"),
    [
        (", owner: ana, reason: refilled daily, expires: {yesterday}", ["expired-waiver"]),
        (", owner: ana, reason: refilled daily, expires: {soon}", []),
        (", owner: ana, expires: {soon}", ["missing-field"]),
    ],
)
def test_expired_waivers_of_rules_are_warnings(
    content: str, codes: list[str], tmp_path: Path
) -> None:
    """The rule rejects again from the next preview on; who renews the waiver learns it before."""
    today = datetime.now(UTC).date()
    days = {"yesterday": today - timedelta(1), "soon": today + timedelta(5)}
    path = tmp_path / "policies" / "infra" / "waivers.yml"
    path.parent.mkdir(parents=True)
    head = "- {rule: storage-redundancy, environment: staging, resource: lake"
    path.write_text(f"{head}{content.format(**days)}}}\n")
    problems = rule_waiver_problems(tmp_path)
    assert [problem.code for problem in problems] == codes
    assert [problem.severity for problem in problems] == [
        "warning" if code == "expired-waiver" else "error" for code in codes
    ]


def test_a_repository_without_waivers_of_rules_has_no_problem(tmp_path: Path) -> None:
    """A thin fork may delete the file."""
    assert not rule_waiver_problems(tmp_path)
