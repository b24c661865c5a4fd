"""The first month of a budget: past, this one, within a year, later."""

from __future__ import annotations

from datetime import date

import pytest

from infra.live.arm import Arm
from infra.live.doctor import budget
from infra.preview.capture import Resource
from tests.infra.live.declared import GROUP, resource, resources
from tests.stand_ins.arm_server import State

TODAY = date(2027, 3, 15)


def _with_budget(month: str) -> list[Resource]:
    budget = resource(
        "consumption:Budget",
        "budget",
        budgetName=f"budget-{month}",
        scope="${ResourceGroup:group.id}",
        timePeriod={"startDate": f"{month}-01T00:00:00Z"},
    )
    return [*resources(), budget]


@pytest.mark.parametrize(
    ("month", "verdict"),
    [
        ("2027-02", "error"),
        ("2026-12", "error"),
        ("2027-03", "ok"),
        ("2028-03", "ok"),
        ("2028-04", "error"),
    ],
)
def test_the_first_month_of_a_new_budget(arm: Arm, state: State, month: str, verdict: str) -> None:
    (found,) = budget(_with_budget(month), arm, TODAY)
    assert (found.name, found.verdict) == ("budget", verdict)
    assert ("platform:guardrails.budget_from: 2027-03" in found.hint) is (verdict == "error")


def test_the_month_of_an_existing_budget_is_not_checked(arm: Arm, state: State) -> None:
    state.resources[f"{GROUP}/providers/Microsoft.Consumption/budgets/budget-2026-12"] = {}
    (found,) = budget(_with_budget("2026-12"), arm, TODAY)
    assert (found.verdict, found.message) == ("ok", "exists since 2026-12")


def test_without_a_budget_there_is_no_check(arm: Arm) -> None:
    assert list(budget(resources(), arm, TODAY)) == []
