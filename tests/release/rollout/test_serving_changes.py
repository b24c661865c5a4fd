"""A changed score.py or deployment.yml of the version that serves is a release of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from ml.backends.local.serving import endpoint
from ml.core import home
from ml.core.errors import UserError
from ml.release import audit, serving
from ml.release.canary import canary
from ml.release.canary.canary import Outcome
from ml.release.canary.verdict import Signal
from ml.release.declaration import desired_state
from ml.release.promotion.propose import propose
from ml.release.rollout.apply import apply
from ml.release.rollout.invoke import ask
from ml.release.rollout.plan import plan
from ml.release.rollout.rollback import roll_back
from ml.release.versions import find_in_use
from tests.local import BACKEND, LOG
from tests.release.conftest import World
from tests.release.test_commands import ml

pytestmark = pytest.mark.slow
QUESTION = {"question": "how?"}
SCRIPT_CHANGED = "ml/projects/tiny/endpoint/score.py: 2 lines added, 0 removed"


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text that is in the file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def changed(world: World) -> None:
    """Another score.py and another instance type."""
    score = world.project.folder / "endpoint" / "score.py"
    score.write_text(score.read_text() + "\nCHANGED = True\n")
    deployment = world.project.folder / "endpoint" / "deployment.yml"
    deployment.write_text(deployment.read_text() + "description: another\n")
    edit(deployment, "Standard_DS3_v2", "Standard_DS4_v2")


def test_changed_serving_waits_for_a_proposal(
    served: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """An apply serves what is declared; it and the plan say which changes that leaves out."""
    before = endpoint.live("tiny")
    assert plan(BACKEND, "tiny").project_changes == ()
    changed(served)
    done = apply(BACKEND, "tiny", "local", "ana")
    assert done is not None and done.outcome == "unchanged"
    assert endpoint.live("tiny") == before
    code, out, err = ml(capsys, "release", "plan", "tiny")
    text = out + err
    assert code == 0
    assert f"serving code of tiny differs from what is declared: {SCRIPT_CHANGED};" in text
    assert 'instance_type: "Standard_DS3_v2" → "Standard_DS4_v2"' in text
    assert f"next: ml release propose tiny --run {served.run(0.8)}" in text
    assert "nothing to do" not in text
    code, out, _ = ml(capsys, "release", "plan", "tiny", "--json")
    assert json.loads(out)["project_changes"][0] == SCRIPT_CHANGED
    code, out, err = ml(capsys, "release", "apply", "tiny")
    assert code == 0
    assert f"serving code of tiny differs from what is declared: {SCRIPT_CHANGED};" in out + err
    code, out, _ = ml(capsys, "release", "apply", "tiny", "--json")
    assert json.loads(out)["project_changes"][0] == SCRIPT_CHANGED


def test_a_deployment_that_cannot_be_read_does_not_stop_what_is_declared(served: World) -> None:
    """The plan says which of the project's files is wrong, with its line."""
    edit(served.project.folder / "endpoint" / "deployment.yml", "instance_count", "instance_cuont")
    (difference,) = plan(BACKEND, "tiny").project_changes
    assert "deployment.yml:" in difference and "instance_cuont" in difference
    done = apply(BACKEND, "tiny", "local", "ana")
    assert done is not None and done.outcome == "unchanged"


def test_changed_serving_is_proposed_signed_off_and_rolled_out(served: World) -> None:
    """The plan lists what changes, the canary judges it; no gate asks for a better model."""
    before = endpoint.live("tiny")
    changed(served)
    proposal = propose(BACKEND, "tiny", served.run(0.8))
    assert proposal.decision.outcome == "pending" and proposal.candidate.version == "1"
    verdicts = {result.gate: result.verdict for result in proposal.decision.results}
    assert verdicts["superiority"] == "not evaluated"
    (first, *_) = plan(BACKEND, "tiny").steps
    assert "score.py: 2 lines added, 0 removed" in first
    assert 'instance_type: "Standard_DS3_v2" → "Standard_DS4_v2"' in first
    assert "description" not in first
    assert apply(BACKEND, "tiny").outcome == "rejected"  # nobody signed off
    done = apply(BACKEND, "tiny", "local", "ana")
    assert done.outcome == "applied" and done.canary is not None
    after = endpoint.live("tiny")
    assert (
        after
        and before
        and after.deployment.deployment_digest != before.deployment.deployment_digest
    )
    assert after.deployment.digest == before.deployment.digest
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "unchanged"
    assert propose(BACKEND, "tiny", served.run(0.8)).decision.outcome == "already-champion"


def test_serving_that_was_kept_nowhere_is_refused(served: World) -> None:
    """A declaration of another machine needs the files that it was proposed with."""
    changed(served)
    entry = desired_state.read(BACKEND, "tiny", "local")
    assert entry
    (home.deployment_specs() / entry.deployment_digest / "serving.json").unlink()
    with pytest.raises(UserError) as raised:
        apply(BACKEND, "tiny", "local", "ana")
    problem = raised.value.problems[0]
    assert problem.code == "digest-mismatch" and entry.deployment_digest in problem.expected
    assert problem.place and problem.place.line


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Standard_DS3_v2", "Standard_DS4_v2"),
        ('/score.py"', '/other.py"'),
        ('"snapshots/', '"models/../../'),
    ],
)
def test_kept_serving_that_was_edited_is_refused(served: World, old: str, new: str) -> None:
    """Its content has to have the digest that it is kept under, its code to be a snapshot."""
    entry = desired_state.read(BACKEND, "tiny", "local")
    assert entry and serving.find(entry.deployment_digest)
    edit(home.deployment_specs() / entry.deployment_digest / "serving.json", old, new)
    with pytest.raises(UserError) as raised:
        serving.find(entry.deployment_digest)
    assert raised.value.problems[0].code == "serving-edited"


def test_kept_serving_that_cannot_be_read_is_refused(own_home: Path) -> None:
    """A folder in its place, say, or a file of another user's."""
    (own_home / "servings" / "0123" / "serving.json").mkdir(parents=True)
    with pytest.raises(UserError) as raised:
        serving.find("0123")
    assert raised.value.problems[0].code == "serving-edited"


def test_a_rollback_with_a_name_serves_at_once(
    challenged: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Declared and switched by one command, without a canary."""
    assert apply(BACKEND, "tiny", "local", "ana").version.version == "2"
    code, out, _ = ml(capsys, "release", "rollback", "tiny", "--approved-by", "ana", "--json")
    document = json.loads(out)
    assert code == 0 and document["declared"]["version"] == "1"
    assert (document["applied"]["outcome"], document["applied"]["canary"]) == ("applied", None)
    assert ask(BACKEND, "tiny", QUESTION).version == "1"


def test_a_rollback_through_a_canary(challenged: World) -> None:
    """The earlier version is compared with the one that serves, as any other would be."""
    assert apply(BACKEND, "tiny", "local", "ana").version.version == "2"
    roll_back(BACKEND, "tiny")
    done = apply(BACKEND, "tiny", "local", "ana", through_canary=True)
    assert (done.outcome, done.version.version) == ("applied", "1") and done.canary is not None


def test_code_that_a_rollback_needs_is_not_cleaned(challenged: World) -> None:
    """The serving code of a version that served stays in its snapshot."""
    first = endpoint.live("tiny")
    changed(challenged)
    propose(BACKEND, "tiny", challenged.run(0.95))
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "applied"
    assert first and first.deployment.code in find_in_use(BACKEND).paths


def refuse(monkeypatch: pytest.MonkeyPatch, new_fields: Sequence[str]) -> None:
    """The next canary rolls back, whatever is answered; it is told of these new fields."""

    def run_canary(*given: object, **named: object) -> Outcome:
        assert named["new_fields"] == new_fields
        signals = (Signal("answers", 9.0, 1.0, "answers: 9 of 20"),)
        return Outcome("rolled-back", "answers: 9 of 20", 10, signals, {}, {}, 9, 1.0)

    monkeypatch.setattr(canary, "run_canary", run_canary)


def test_serving_that_was_rolled_back_can_be_proposed_again(
    served: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion's own model: by the same code again, and by a score.py that was mended."""
    run = served.run(0.8)
    score = served.project.folder / "endpoint" / "score.py"
    score.write_text(score.read_text() + "\nBAD = True\n")
    assert propose(BACKEND, "tiny", run).written
    assert propose(BACKEND, "tiny", run).decision.outcome == "already-champion"  # it waits
    release = served.project.folder / "release.yml"
    answers = "new_fields:\n  - {owner: ana, reason: callers ask"
    day, past = datetime.now(UTC).date() + timedelta(days=9), date(2025, 1, 1)
    fields = f"{answers}, field: note, expires: {day}}}\n"
    fields += f"  - {{owner: ana, reason: they asked, field: old, expires: {past}}}\n"
    release.write_text(release.read_text() + fields)
    steps = plan(BACKEND, "tiny").steps
    assert "its answers may have new fields: note (release.yml)" in steps
    assert any("old: the new field at" in step and "expired" in step for step in steps)
    with monkeypatch.context() as patch:
        refuse(patch, ["note"])
        with pytest.raises(UserError, match="`new_fields` of release"):
            apply(BACKEND, "tiny", "local", "ana")
    stops = plan(BACKEND, "tiny").stops
    again = (
        f"the same again: ml release propose tiny --run {BACKEND.runs.find(run).id} --env local;"
    )
    assert stops is not None and again in stops.problems[0].hint
    assert propose(BACKEND, "tiny", run).decision.outcome == "pending"
    assert plan(BACKEND, "tiny").stops is None
    edit(score, "BAD = True", "MENDED = True")
    assert propose(BACKEND, "tiny", run).decision.outcome == "pending"
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "applied"


def test_the_champion_is_proposed_by_other_code_after_another_was_refused(
    challenged: World,
) -> None:
    """Version 2 is declared and its canary refused it; version 1 gets a new score.py."""
    entry = desired_state.read(BACKEND, "tiny", "local")
    assert entry and entry.version == "2"
    line = {"endpoint": "tiny", "digest": entry.digest, "decision": entry.decision}
    audit.append(LOG, audit.ROLLED_BACK, {**line, "deployment_digest": entry.deployment_digest})
    changed(challenged)
    proposal = propose(BACKEND, "tiny", challenged.run(0.8))
    assert (proposal.candidate.version, proposal.decision.outcome) == ("1", "pending")
    assert proposal.written and proposal.unapplied == "2"
