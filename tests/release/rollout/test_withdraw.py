"""A rollback where nothing was ever applied withdraws the version: nothing is declared then."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ml.backends.local.serving import endpoint
from ml.core.errors import UserError
from ml.release import audit
from ml.release.canary import canary
from ml.release.declaration import desired_state
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.promotion.propose import propose
from ml.release.rollout.apply import apply
from ml.release.rollout.rollback import NONE, RolledBack, roll_back
from tests.local import BACKEND, LOG
from tests.release.conftest import World
from tests.release.rollout.test_rollback import (
    RELEASED,
    commit,
    declared,
    git,
    happened,
    project,
)
from tests.release.test_commands import ml

__all__ = ["project"]
WHY = "it saw the answer"


def withdrawn(where: str = "prod", live: object = None, **named: Any) -> RolledBack:
    """The result of a rollback, with what is declared by it."""
    endpoints = SimpleNamespace(name_of="{}-{}".format, live=lambda name: live)
    backend: Any = SimpleNamespace(**{**vars(RELEASED), "endpoints": endpoints})
    done = roll_back(backend, "tiny", where, WHY, **{"has_audit_log": True, **named})
    assert (desired_state.read(BACKEND, "tiny", where) or ReleaseEntry()) == done.declared
    return done


def test_a_first_version_is_withdrawn_from_git() -> None:
    """Its lines go, with the evidence beside them, and nothing else changes; twice is an error."""
    before = desired_state.path(BACKEND, "tiny", "prod").read_text()
    desired_state.declare(BACKEND, "tiny", "prod", declared("1"))
    evidence = Path("ml/projects/tiny/evidence/prod.json")
    evidence.parent.mkdir()
    evidence.write_text("{}")
    commit("9", "dev")
    assert withdrawn().declared == ReleaseEntry()
    text = desired_state.path(BACKEND, "tiny", "prod").read_text()
    now = yaml.safe_load(text)["environments"]
    assert not now["prod"] and now["dev"]["version"] == "9" and not evidence.exists()
    for line in before.splitlines():
        assert line.strip() in text
    (line,) = [line for line in audit.verify(LOG) if line["event"] == audit.WITHDRAWN]
    assert (line["why"], line["version"]) == (WHY, "1") and line["by"]
    with pytest.raises(UserError, match="nothing is declared"):
        withdrawn()


@pytest.mark.parametrize("refused", [False, True])
def test_a_first_version_is_withdrawn_from_local(refused: bool) -> None:
    """Also one whose server did not start when it was applied."""
    desired_state.declare(BACKEND, "tiny", "local", declared("1"))
    if refused:
        happened("rolled-back", "1")
    assert withdrawn("local").declared == ReleaseEntry()


def test_the_previous_entry_of_the_branch_returns() -> None:
    """What was not committed goes first; a rollback goes back once, and with `none` to nothing."""
    commit("1")
    commit("2")
    desired_state.declare(BACKEND, "tiny", "prod", declared("3"))
    assert withdrawn().declared == declared("2")
    again = withdrawn()
    assert again.written == () and again.further == ("1", NONE)
    assert withdrawn(to=NONE).declared == ReleaseEntry()


def test_what_served_is_not_withdrawn() -> None:
    """By the audit log, by the endpoint, or where nobody asked the environment itself."""
    commit("1")
    for named in ({"live": object()}, {"has_audit_log": False}):
        with pytest.raises(UserError, match="no-earlier-version"):
            withdrawn(**named)
    with pytest.raises(UserError, match="ml release rollback tiny --env prod --on azure"):
        withdrawn(has_audit_log=False)
    happened("applied", "1")
    for to in (None, NONE):
        with pytest.raises(UserError, match="no-earlier-version"):
            withdrawn(to=to)
    assert desired_state.read(BACKEND, "tiny", "prod") == declared("1")


def test_a_withdrawn_decision_is_not_used_again() -> None:
    """By a rollback, or by the revert of its withdrawal; proposed again it is another decision."""
    commit("1")
    withdrawn()
    git("commit", "-qam", "withdrawn")
    git("revert", "--no-edit", "HEAD")
    history = audit.history(LOG, "tiny-prod")
    assert desired_state.read(BACKEND, "tiny", "prod") == declared("1") and history.refusal(
        declared("1")
    )
    assert not history.refusal(replace(declared("1"), decision="c" * 64))
    commit("2")
    assert withdrawn().declared == ReleaseEntry()


def test_a_version_that_served_is_no_worse_for_a_rollback_from_it() -> None:
    """Only what was never applied counts as withdrawn."""
    for version in "12":
        commit(version)
        happened("applied", version)
    assert withdrawn().declared == declared("1")
    assert not audit.history(LOG, "tiny-prod").refused()
    commit("3")
    assert withdrawn().declared == declared("2")
    (one,) = audit.history(LOG, "tiny-prod").refused()
    assert (one.version, one.outcome) == ("3", "withdrawn")


@pytest.mark.slow
def test_the_hint_of_a_refusal_leads_out(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A worse version is refused; once the first one is withdrawn, it has nothing to beat."""
    words = ("release", "propose", "tiny", "--run")
    assert ml(capsys, *words, world.run(0.95))[0] == 0
    code, _, err = ml(capsys, *words, world.run(0.8), "--reason", WHY)
    assert code == 3 and "ml release rollback tiny --reason TEXT" in err
    code, _, err = ml(capsys, "release", "rollback", "tiny", "--reason", WHY)
    assert code == 0 and "tiny 1 is withdrawn: nothing is declared for local" in err
    code, _, err = ml(capsys, "release", "status", "tiny", "--env", "local")
    assert code == 0 and "version 1 withdrawn on " in err and WHY in err
    code, out, _ = ml(capsys, *words, world.run(0.8), "--json")
    assert code == 0 and json.loads(out)["version"] == "2"
    code, out, _ = ml(capsys, "release", "rollback", "tiny", "--reason", WHY, "--json")
    assert code == 0 and json.loads(out)["declared"] is None


@pytest.mark.slow
@pytest.mark.attack("A declaration is withdrawn while it is applied")
def test_a_version_that_is_withdrawn_meanwhile_does_not_go_live(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The apply sees it before it switches, and leaves nothing behind."""
    assert propose(BACKEND, "tiny", world.run(0.95)).decision.allowed
    start = canary.start_trial

    def started(*given: Any, **named: Any) -> Any:
        trial = start(*given, **named)
        assert roll_back(BACKEND, "tiny", why=WHY).declared == ReleaseEntry()
        return trial

    monkeypatch.setattr(canary, "start_trial", started)
    assert apply(BACKEND, "tiny", "local", "ana") is None
    assert endpoint.live("tiny") is None and BACKEND.registry.champion("tiny", "local") is None
    assert not audit.history(LOG, "tiny").applied
