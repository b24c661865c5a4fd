"""How long a run that cannot be seen is looked for, and what is said meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from ml.backends.azure.runs import AzureRuns
from ml.backends.azure.workspace import Workspace
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Patience
from ml.core.errors import Exit, Problem, UserError

AGAIN = "ml runs logs --follow calm --on azure"
FAILED = UserError(Problem("azure-failed", "it failed"), exit_code=Exit.RUN_FAILED)
BARRED = UserError(Problem("no-permission", "it is barred", hint="infra doctor"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def ask(store: Any, said: list[str]) -> Patience:
    return Patience(store, "calm", AGAIN, said.append)


@pytest.mark.parametrize(("refused", "limit_s"), [(FAILED, 1800), (BARRED, 120)])
def test_a_look_is_repeated_until_it_is_too_late(
    clock: list[float], refused: UserError, limit_s: int
) -> None:
    """It is told at once, then ever more seldom; the end names the run and the command."""
    said: list[str] = []
    waiting = ask(AzureRuns(Workspace("s", "g", "w")), said)
    for clock[0] in range(limit_s):
        waiting.endure(refused)
    assert 2 <= len(said) <= 6 and f"of {limit_s // 60} minutes" in said[-1]
    clock[0] = limit_s
    with pytest.raises(UserError) as ended:
        waiting.endure(refused)
    (problem,) = ended.value.problems
    assert (problem.code, ended.value.exit_code) == (refused.problems[0].code, refused.exit_code)
    assert "calm" in problem.actual and refused.problems[0].actual in problem.actual
    assert problem.hint.endswith(AGAIN)


def test_what_was_seen_is_waited_for_anew(clock: list[float]) -> None:
    """A minute without it, a look that succeeds, and another minute are not two."""
    waiting = ask(AzureRuns(Workspace("s", "g", "w")), [])
    for clock[0] in range(0, 1000, 60):
        waiting.endure(BARRED)
        waiting.seen()


def test_this_machine_is_not_asked_twice() -> None:
    """A run that is gone here does not come back."""
    with pytest.raises(UserError) as refused:
        ask(LocalRuns(), []).endure(BARRED)
    assert refused.value is BARRED
