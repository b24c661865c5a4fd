"""A champion beside a candidate of another library, of other columns, of other data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ml.backends.local.runs.store import LocalRuns
from ml.backends.model_registry import Version
from ml.core.errors import UserError
from ml.measures.schema import Evaluation
from ml.release import audit
from ml.release.canary import canary
from ml.release.canary.canary import Outcome
from ml.release.evidence import evidence
from ml.release.promotion.gate_check import champion_evidence
from ml.release.promotion.propose import promotion, propose
from ml.release.rollout.apply import apply
from ml.release.rollout.plan import plan
from ml.release.rollout.rollback import roll_back
from ml.reports.pull_requests import comparison as pull_request
from policies.promotion.evidence import Evidence
from tests.local import BACKEND, LOG
from tests.policies.cases import result
from tests.release import tiny, tiny_classes
from tests.release.conftest import World
from tests.release.rollout.test_serving_changes import edit

pytestmark = pytest.mark.slow
WHY = "it saw the answer"


def of_another_library(world: World) -> None:
    """The project's code by now: it reads no model of before, and no earlier code reads its own."""
    for name in ("train.py", "evaluate.py", "endpoint/score.py"):
        edit(world.project.folder / name, "skill.json", "level.json")


def test_a_candidate_of_another_library_is_compared(promoted_world: World) -> None:
    """On the same rows the champion's kept predictions count: its model is not evaluated again."""
    of_another_library(promoted_world)
    run = promoted_world.project.train(0.95)
    before = len([*LocalRuns().all()])
    made = propose(BACKEND, "tiny", run.name)
    assert made.decision.allowed, made.decision.blocking
    assert "0.1500 better than the champion's" in result(made.decision, "superiority").actual
    assert len([*LocalRuns().all()]) == before + 1  # the candidate's own evaluation


def test_a_champion_that_is_invalid_is_replaced_by_a_worse_one(
    promoted_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stated in gates.yml, also beside other data, which it cannot be measured on; the canary does
    not compare predictions with it, and a rollback to it stays possible."""
    tiny.questions(promoted_world.project.root, 300)
    worse = promoted_world.project.train(0.7).name
    refused = result(propose(BACKEND, "tiny", worse, reason=WHY).decision, "non-inferiority")
    champion = BACKEND.registry.champion("tiny", "local")
    assert champion and f"digest: {champion.digest}, owner" in refused.why
    expires = datetime.now(UTC).date() + timedelta(days=30)
    line = (
        f"{{version: 1, digest: {champion.digest}, owner: ana, expires: {expires}, reason: {WHY}}}"
    )
    with (promoted_world.project.folder / "gates.yml").open("a") as gates:
        gates.write(f"invalid_versions:\n  - {line}\n")
    made = propose(BACKEND, "tiny", worse)
    assert made.decision.allowed, made.decision.blocking
    text = pull_request.comment(promotion(BACKEND, made, "local")["comparison"])
    assert "Set aside, not beaten" in text and WHY in text
    outcome = Outcome("rolled-back", "errors: many", 10, (), {}, {}, 0, 1.0)
    with monkeypatch.context() as patch, pytest.raises(UserError) as refusal:
        patch.setattr(canary, "run_canary", lambda *_, **__: outcome)
        apply(BACKEND, "tiny", "local", "bo")
    stops = plan(BACKEND, "tiny").stops
    assert stops is not None
    for hint in (refusal.value.problems[0].hint, stops.problems[0].hint):
        assert "version 1" not in hint and "rollback" not in hint
    assert propose(BACKEND, "tiny", worse).decision.allowed
    done = apply(BACKEND, "tiny", "local", "bo")
    assert done and done.outcome == "applied" and done.replaced == champion
    assert done.rollout.acceptance.strategy.tolerances.drift == 1
    kept = [line["decision"]["request"]["set_aside"] for line in audit.verify(LOG)[-2:-1]]  # type: ignore[index]
    assert WHY in kept[0] and "ana" in kept[0]
    leaky = propose(BACKEND, "tiny", promoted_world.run(0.8))
    assert result(leaky.decision, "superiority").verdict == "fail"
    assert roll_back(BACKEND, "tiny").declared.version == "1"
    back = apply(BACKEND, "tiny", "local", "bo")
    assert back and back.version.digest == champion.digest


def test_a_champion_is_measured_on_other_data_by_its_own_code(promoted_world: World) -> None:
    """The candidate's cannot read it. Where nothing can, one sentence says what to do."""
    of_another_library(promoted_world)
    tiny.questions(promoted_world.project.root, 300)
    run = promoted_world.project.train(0.95)
    found = result(propose(BACKEND, "tiny", run.name).decision, "superiority")
    assert found.verdict == "pass" and "0.15" in found.actual
    for text in promoted_world.project.root.glob("ml/projects/tiny/data/files/*.csv"):
        edit(text, "id,difficulty", "id,hardness")
    edit(promoted_world.project.folder / "evaluate.py", '"difficulty"', '"hardness"')
    edit(promoted_world.project.folder / "evaluate.py", '{"question"', '{"words"')
    again = promoted_world.project.train(0.95)
    refused = result(propose(BACKEND, "tiny", again.name).decision, "non-inferiority")
    assert refused.verdict == "fail" and "was measured on other data" in refused.actual
    assert "first propose the new model on azureml:tiny:1" in refused.actual
    # What each way ended with, in the words of its log.
    assert "exited with 1: KeyError: 'difficulty'" in refused.actual
    assert "its requests have the field question" in refused.actual
    assert "the end of its log" not in refused.actual


def test_a_champion_of_an_earlier_schema_is_asked_by_its_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column is new and the target is called otherwise, so that no evaluation takes the other's
    model: the server that the champion came with answers the new rows.
    """
    monkeypatch.chdir(tmp_path)
    made = tiny_classes.make(tmp_path)
    first = propose(BACKEND, "tiny", made.train(0.3).name)
    BACKEND.registry.promote(first.candidate, "local")
    table = made.folder / "data/files/rows.csv"
    head, *rows = table.read_text().splitlines()
    head = head.replace("fraud", "is_fraud") + ",night"
    table.write_text("\n".join([head, *(f"{row},{at % 2}" for at, row in enumerate(rows))]) + "\n")
    for name in ("reading.py", "endpoint/score.py"):
        edit(made.folder / name, '("amount", "hour")', '("amount", "hour", "night")')
    for name in ("reading.py", "evaluate.py"):
        edit(made.folder / name, 'row["fraud"]', 'row["is_fraud"]')
    night = 'asked.integers["hour"], asked.integers["night"]]'
    edit(made.folder / "endpoint/score.py", 'asked.integers["hour"]]', night)
    better = propose(BACKEND, "tiny", made.train(0.9).name)
    assert better.decision.allowed, better.decision.blocking
    assert "better than the champion's" in result(better.decision, "superiority").actual
    assert "0 of 200 predictions differ" in result(better.decision, "serving").actual


@pytest.mark.parametrize(
    ("ours", "theirs", "how"), [({"test": 5}, {}, "folds: 0"), ({}, {"test": 5}, "folds: 5")]
)
def test_a_champion_of_other_folds_is_not_asked(
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has learnt from the rows that it would be asked: nothing is started, and the gate says
    what to do.
    """
    of = Evidence(evaluation=Evaluation(task="binary"), labels={"test": {"a": "1"}})
    champion = Version("tiny", "1", "sha256:" + "a" * 64, "tiny", "run", "")

    def folds(of_split: Mapping[str, float]) -> Evaluation:
        return replace(of.evaluation, out_of_fold=of_split)

    monkeypatch.setattr(evidence, "load", lambda *_: replace(of, evaluation=folds(theirs)))
    own = replace(of, evaluation=folds(ours), labels={"test": {"b": "1"}})
    nothing = cast(Any, SimpleNamespace(simulated=True))
    answer = champion_evidence(nothing, nothing, own, tmp_path, champion, "", lambda _: None)
    assert answer is not None
    (wrong,) = answer.mismatches or ()
    assert f"version 1 was measured with `{how}`" in wrong and "in the schema" in wrong
    assert f"invalid_versions: [{{version: 1, digest: {champion.digest}, owner: NAME" in wrong
