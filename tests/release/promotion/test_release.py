"""Propose, apply and ask with everything real: jobs, MLflow on SQLite, the inference server."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.serving import endpoint
from ml.backends.model_registry import Version
from ml.backends.runs import Run
from ml.core import home
from ml.core.errors import Exit, UserError
from ml.release.comparison import versus
from ml.release.declaration import desired_state
from ml.release.promotion.candidate import choose
from ml.release.promotion.gate_check import check_registered
from ml.release.promotion.propose import propose
from ml.release.rollout.apply import apply
from ml.release.rollout.invoke import ask
from ml.release.rollout.plan import plan
from policies.promotion.evidence import SCHEMA_VERSION
from tests.backends.serving.servers import process_of
from tests.local import BACKEND
from tests.release import tiny
from tests.release.conftest import World
from tests.release.test_commands import ml
from tests.release.test_registry import full_disk

pytestmark = pytest.mark.slow


def verdicts(decision: object) -> dict[str, str]:
    """Gate → verdict."""
    return {one.gate: one.verdict for one in decision.results}  # type: ignore[attr-defined]


def test_the_same_model_is_the_champion_already(served: World) -> None:
    """Nothing is measured, registered or promoted twice, and it says so."""
    before = len(list(LocalRuns().all()))
    again = propose(BACKEND, "tiny", served.run(0.8))
    assert again.decision.outcome == "already-champion" and not again.written
    assert len(list(LocalRuns().all())) == before
    assert [one.version for one in BACKEND.registry.versions("tiny")] == ["1"]


def test_a_model_that_is_no_better_needs_a_reason(served: World) -> None:
    """The reason is written down with the release and holds when it is applied."""
    assert propose(BACKEND, "tiny", served.run(0.8025)).decision.outcome == "rejected"
    made = propose(BACKEND, "tiny", served.run(0.8025), reason="it forgets a withdrawn answer")
    assert made.decision.outcome == "pending"
    entry = desired_state.read(BACKEND, "tiny", "local")
    assert entry and entry.reason == "it forgets a withdrawn answer"
    # A reviewer sees what the proposal came to.
    assert (
        check_registered(BACKEND, "tiny", made.candidate.version, "local").decision.outcome
        == "pending"
    )
    reviewed = versus(BACKEND, f"tiny:{made.candidate.version}", "champion@local").decision
    assert reviewed is not None and reviewed.outcome == "pending"
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "applied"


def test_the_champion_is_scored_again_on_the_candidates_data(served: World) -> None:
    """With new questions, both are compared on the new questions, by a real evaluation run."""
    tiny.questions(served.project.root, 500)
    better = served.project.train(0.95)
    before = len(list(LocalRuns().all()))
    steps = list[str]()
    made = propose(BACKEND, "tiny", better.name, progress=steps.append)
    assert made.decision.allowed, made.decision.blocking
    assert [step for step in steps if ": " not in step] == [
        "evaluating the model",
        "starting a server of the model on this machine",
        "measuring the latency of 200 requests",
        "comparing 200 answers with the evaluation",
        "evaluating version 1 again, on the data of the candidate",
    ]
    assert sum(step.endswith(": started") for step in steps) == 2
    assert (
        len(list(LocalRuns().all())) == before + 2
    )  # the candidate's evaluation and the champion's
    (compared,) = [one for one in made.decision.results if one.gate == "superiority"]
    assert "is 0.1500 better than the champion's" in compared.actual


def test_a_model_of_other_data_than_it_is_scored_on_is_refused(world: World) -> None:
    """The data changed between training and evaluation: the lineage is not whole."""
    tiny.questions(world.project.root, 500)
    made = propose(BACKEND, "tiny", world.run(0.8))
    assert verdicts(made.decision)["lineage"] == "fail" and not made.written


def test_without_a_commit_there_is_no_lineage(world: World) -> None:
    """Outside of git."""
    subprocess.run(["rm", "-rf", ".git"], check=True)
    with pytest.raises(UserError, match="lineage: missing: commit"):
        propose(BACKEND, "tiny", world.project.train(0.91).name)


@pytest.mark.parametrize(
    "what", ["predictions", "identifiers", "evidence", "model", "all evidence"]
)
def test_what_was_tampered_with_after_it_was_proposed_is_not_applied(
    challenged: World, what: str
) -> None:
    """Apply decides anew from what is on the disk: the champion goes on serving."""
    version = BACKEND.registry.find("tiny", "2")
    if what == "predictions":
        path = version.evidence_folder / "predictions.csv"
        path.write_text(path.read_text().replace(",b,2,", ",a,1,"))
    elif what == "identifiers":
        path = version.evidence_folder / "identifiers.csv"
        path.write_text(path.read_text().replace("id,training", "id,test", 1))
    elif what == "evidence":
        path = version.evidence_folder / "evidence.json"
        path.write_text(path.read_text().replace("0.95", "0.99"))
    elif what == "model":
        path = version.folder / "model.txt"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
    else:
        (version.evidence_folder / "evidence.json").unlink()
    live = endpoint.live("tiny")
    refused = apply(BACKEND, "tiny", "local", "ana")
    assert (
        refused.outcome == "rejected" and verdicts(refused.decision)["verified-metrics"] == "fail"
    )
    assert (
        endpoint.live("tiny") == live and ask(BACKEND, "tiny", {"question": "how?"}).version == "1"
    )


def test_what_has_come_since_it_was_proposed_is_refused_when_it_is_applied(
    challenged: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A new advisory about a package that the model was made with; evidence of an older schema."""
    live = endpoint.live("tiny")
    package = {"ecosystem": "PyPI", "name": "numpy"}
    record = {"id": "PYSEC-1", "modified": "2025-05-30T00:00:00Z"}
    (tmp_path / "osv.json").write_text(json.dumps({**record, "affected": [{"package": package}]}))
    monkeypatch.setenv("MLOPS_ADVISORIES", str(tmp_path / "osv.json"))
    refused = apply(BACKEND, "tiny", "local", "ana")
    assert [one.gate for one in refused.decision.blocking] == ["supply-chain"]
    assert "PYSEC-1" in str(refused.decision.blocking) and endpoint.live("tiny") == live
    monkeypatch.delenv("MLOPS_ADVISORIES")

    _aged(BACKEND.registry.find("tiny", "2"))
    (older,) = [
        one
        for one in check_registered(BACKEND, "tiny", "2", "local").decision.results
        if one.gate == "identity"
    ]
    assert (older.verdict, older.actual) == ("fail", "schema 1")
    assert "`ml release propose" in older.why
    again = propose(BACKEND, "tiny", challenged.run(0.95))
    assert (
        again.candidate.version == "2" and again.decision.allowed and endpoint.live("tiny") == live
    )


def test_a_champion_with_evidence_of_an_older_schema_is_scored_again(served: World) -> None:
    """What was kept with it is not read, and it is not beaten for that."""
    _aged(BACKEND.registry.find("tiny", "1"))
    made = propose(BACKEND, "tiny", served.run(0.95))
    assert made.decision.allowed and made.champion.version == "1"
    (compared,) = [one for one in made.decision.results if one.gate == "superiority"]
    assert "is 0.1500 better than the champion's" in compared.actual
    worse = propose(BACKEND, "tiny", served.run(0.7))
    assert verdicts(worse.decision)["non-inferiority"] == "fail" and not worse.written


def _aged(version: Version) -> None:
    """Make the version's evidence one of the schema before, with its hash in the registry."""
    text = (version.evidence_folder / "evidence.json").read_text()
    current = f'"schema_version": {SCHEMA_VERSION}'
    older = tiny.resealed(version, text.replace(current, '"schema_version": 1'))
    BACKEND.registry.keep_evidence(version, older.evidence)


def test_a_tracking_servers_numbers_change_nothing(world: World) -> None:
    """A run that has ended takes new metrics, and infinity as a finite one: no gate reads them."""
    made = propose(BACKEND, "tiny", world.run(0.7))
    client = MlflowClient(home.tracking_uri())
    for run in (made.evidence.lineage.run, made.evidence.lineage.evaluation_run):
        for value in (1.0, math.inf):
            client.log_metric(str(run), "gain_at_1", value)
    again = check_registered(BACKEND, "tiny", "1", "local").decision
    found = {one.gate: (one.verdict, one.actual) for one in made.decision.results}
    assert {one.gate: (one.verdict, one.actual) for one in again.results} == found


def test_a_corrupted_model_is_not_proposed(world: World) -> None:
    """One flipped bit in the run's output is refused before anything loads or registers it."""
    path = world.runs[0.8].outputs["model"] / "model.txt"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(UserError) as raised:
        propose(BACKEND, "tiny", world.run(0.8))
    assert raised.value.problems[0].code == "model-corrupt"
    assert (
        not BACKEND.registry.versions("tiny")
        and desired_state.read(BACKEND, "tiny", "local") is None
    )


@pytest.mark.attack("The disk is full while a model is proposed")
def test_a_full_disk_leaves_everything_as_it_was(served: World) -> None:
    """Registry, declaration and the served model are untouched, and the error says what to do."""
    entry, live = desired_state.read(BACKEND, "tiny", "local"), endpoint.live("tiny")
    with full_disk(100), pytest.raises(UserError) as raised:
        propose(BACKEND, "tiny", served.run(0.95))
    assert raised.value.problems[0].code == "disk-full"
    assert [one.version for one in BACKEND.registry.versions("tiny")] == ["1"]
    assert desired_state.read(BACKEND, "tiny", "local") == entry and endpoint.live("tiny") == live
    assert ask(BACKEND, "tiny", {"question": "how?"}).version == "1"
    assert propose(BACKEND, "tiny", served.run(0.95)).decision.allowed


@pytest.mark.attack("A pickle is put into a model")
def test_a_pickle_in_the_model_is_refused_by_the_gate(world: World) -> None:
    """A sound manifest does not make a format safe: it is not even evaluated, unless a waiver of
    the version that it may become says so."""
    import pickle

    from ml.serving.scoring.manifest import write_manifest

    folder = world.runs[0.8].outputs["model"]
    (folder / "vocabulary.json").write_bytes(pickle.dumps({"spot": 1}))
    write_manifest(folder)
    before = len(list(LocalRuns().all()))
    with pytest.raises(UserError, match="gate-failed") as raised:
        propose(BACKEND, "tiny", world.run(0.8))
    (problem,) = raised.value.problems
    assert problem.actual == "format: vocabulary.json (unknown)"
    assert "waivers: [{gate: format, item: FILE, version: 1, owner: NAME" in problem.hint
    assert raised.value.exit_code == Exit.GATE_SAID_NO
    assert not BACKEND.registry.versions("tiny") and len(list(LocalRuns().all())) == before
    gates = world.project.folder / "gates.yml"
    expires = datetime.now(UTC).date() + timedelta(days=30)
    waiver = f"gate: format, item: vocabulary.json, version: 1, expires: {expires}"
    waivers = f"waivers: [{{{waiver}, owner: ana, reason: nothing reads it}}]\n"
    gates.write_text(gates.read_text() + waivers)
    made = propose(BACKEND, "tiny", world.run(0.8))
    assert verdicts(made.decision)["format"] == "waived" and made.written


def test_a_gates_file_that_loosens_the_policy_stops_before_anything_runs(world: World) -> None:
    """Told with file and line; nothing is evaluated."""
    path = world.project.folder / "gates.yml"
    path.write_text(path.read_text() + "  latency:\n    p95_ms: 9000\n")
    before = len(list(LocalRuns().all()))
    with pytest.raises(UserError) as raised:
        propose(BACKEND, "tiny", world.run(0.8))
    problem = raised.value.problems[0]
    assert problem.code == "gate-looser-than-policy" and problem.place
    lines = path.read_text().splitlines()
    assert problem.place.path == "ml/projects/tiny/gates.yml"
    assert lines[problem.place.line - 1].strip() == "p95_ms: 9000"
    assert len(list(LocalRuns().all())) == before


def test_a_candidate_that_does_not_answer_is_not_registered(world: World) -> None:
    """A scoring script that fails on a sample request shows when the latency is measured."""
    path = world.project.folder / "endpoint" / "score.py"
    path.write_text(path.read_text().replace("len(question) * weight", "forecast(question)"))
    with pytest.raises(UserError) as raised:
        propose(BACKEND, "tiny", world.run(0.8))
    assert raised.value.problems[0].code == "candidate-fails"
    assert "forecast" in str(raised.value)
    assert not BACKEND.registry.versions("tiny")
    assert process_of(endpoint.folder("tiny") / "candidate") is None


@pytest.mark.parametrize(
    ("file", "old", "new", "code"),
    [
        ("endpoint/score.py", "reply(model, {", "({", "candidate-fails"),
        ("endpoint/requests.jsonl", '{"question": "how?"}', "how?", "bad-request"),
        ("release.yml", "[20, 20, 20]", "[20, 20, 19]", "wrong-value"),
    ],
    ids=["answers without the model's digest", "no sample request", "no canary"],
)
def test_what_apply_would_refuse_is_not_proposed(
    file: str, old: str, new: str, code: str, world: World
) -> None:
    """Each of them stopped `apply` alone: nothing is declared."""
    path = world.project.folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=code):
        propose(BACKEND, "tiny", world.run(0.8))
    assert desired_state.read(BACKEND, "tiny", "local") is None


def test_an_evaluation_that_fails_is_told_with_its_log(world: World) -> None:
    """The project's own error reaches the person."""
    path = world.project.folder / "evaluate.py"
    path.write_text("raise SystemExit(3)\n")
    with pytest.raises(UserError) as raised:
        propose(BACKEND, "tiny", world.run(0.8))
    assert int(raised.value.exit_code) == 1 and not BACKEND.registry.versions("tiny")


def test_a_run_that_cannot_be_proposed_is_refused(world: World, tmp_path: Path) -> None:
    """No sweep, no such run, a run that failed: each says what to do."""
    with pytest.raises(UserError) as raised:
        propose(BACKEND, "tiny")
    assert raised.value.problems[0].code == "no-candidate"
    assert "jobs/pipeline.yml" in raised.value.problems[0].hint
    jobs = world.project.folder / "jobs"
    # One of another experiment would leave no candidate either.
    text = (jobs / "pipeline.yml").read_text()
    (jobs / "pipeline.yml").write_text(text.replace("experiment_name: tiny", "experiment_name: x"))
    (jobs / "sweep-random.yml").rename(jobs / "tune.yml")
    with pytest.raises(UserError, match=r"ml run .*jobs/tune\.yml"):
        propose(BACKEND, "tiny")
    with pytest.raises(UserError):
        propose(BACKEND, "tiny", "no_such_run_00")
    evaluation = propose(BACKEND, "tiny", world.run(0.8)).evidence
    assert evaluation.lineage.run == world.runs[0.8].id
    scored = [run for run in LocalRuns().all() if "evaluation" in run.outputs]
    with pytest.raises(UserError) as raised:
        propose(BACKEND, "tiny", scored[0].name)
    assert raised.value.problems[0].code == "unsuitable-run"


def test_a_model_of_automl_is_proposed_by_its_own_output(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its schema calls it `best_model`; a run without either is still refused."""
    run = world.run(0.8)
    made = world.runs[0.8]
    searched = replace(made, outputs={"best_model": made.outputs["model"]})
    monkeypatch.setattr(LocalRuns, "find", lambda self, name: searched)
    monkeypatch.setattr(LocalRuns, "parent", lambda self, run: None)
    assert choose(BACKEND, world.project, run).outputs["model"] == made.outputs["model"]
    searched = replace(made, outputs={"predictions": made.outputs["model"]})
    with pytest.raises(UserError, match="no output `model`"):
        choose(BACKEND, world.project, run)


def test_the_best_trial_of_the_latest_sweep_is_proposed(world: World) -> None:
    """Without a name, or by the sweep's; the lineage names the sweep as the parent."""
    swept = world.project.sweep()
    made = propose(BACKEND, "tiny")
    assert made.run == swept.best and made.decision.allowed
    assert made.evidence.evaluation.hyperparameters == {"skill": 0.9}
    assert made.evidence.lineage.parent_run == swept.id != made.evidence.lineage.run
    assert propose(BACKEND, "tiny", swept.name).candidate.digest == made.candidate.digest
    assert len(BACKEND.registry.versions("tiny")) == 1


def test_a_pipeline_stands_for_the_model_it_left(world: World) -> None:
    """Its sweep's best trial is proposed; its evaluation is taken over while it says the same.

    The data that the evaluation read was handed on by a step, unchanged: it is the asset's.
    """
    done = world.project.pipeline()
    made = propose(BACKEND, "tiny")
    assert made.run == done.step("sweep").best and made.decision.allowed, made.decision
    document = json.loads(
        (BACKEND.registry.find("tiny", "1").evidence_folder / "evidence.json").read_text()
    )
    assert document["lineage"]["evaluation_run"] == done.step("evaluate").id
    assert document["data"]["data"]["asset"] == "azureml:tiny:1"
    # What was evaluated stands in it once, as it was written.
    kept = done.step("evaluate").outputs["evaluation"] / "evaluation.json"
    assert document["evaluation"] == json.loads(kept.read_text())
    assert not document["evaluation"].keys() & {*document} - {"schema_version", "model"}
    # Run again, every step is reused, and the same trial is proposed again.
    again = world.project.pipeline()
    assert {step.reused_from for step in again.steps} == {step.name for step in done.steps}
    assert propose(BACKEND, "tiny", again.name).run == made.run


def test_a_model_that_the_pipeline_does_not_pass_on(tmp_path: Path) -> None:
    """The step that has it is named: it can be proposed itself."""
    step = Run("2", "calm_river_03.train", "Completed", "tiny", tmp_path, 0.0)
    step = replace(step, outputs={"model": tmp_path})
    pipeline = replace(step, id="1", name="calm_river_03", outputs={}, steps=(step,))
    backend: Any = SimpleNamespace(
        runs=SimpleNamespace(find=lambda _: pipeline, parent=lambda _: None)
    )
    project: Any = None
    with pytest.raises(UserError) as refused:
        choose(backend, project, "calm_river_03")
    assert "--run calm_river_03.train" in refused.value.problems[0].hint


def test_another_evaluation_is_not_taken_over(world: World) -> None:
    """The script was edited since the pipeline ran: the model is evaluated anew."""
    done = world.project.pipeline()
    script = world.project.folder / "evaluate.py"
    script.write_text(script.read_text() + "\n# edited\n")
    propose(BACKEND, "tiny", done.name)
    document = json.loads(
        (BACKEND.registry.find("tiny", "1").evidence_folder / "evidence.json").read_text()
    )
    assert document["lineage"]["evaluation_run"] not in {step.id for step in done.steps}


def test_a_champion_whose_files_were_changed_is_told_by_plan_and_gate(
    promoted_world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its server is stopped: plan says what apply will refuse, and the gates why they say no."""
    champion = BACKEND.registry.champion("tiny", "local")
    assert champion is not None
    spoilt = champion.folder / "model.txt"
    spoilt.write_bytes(spoilt.read_bytes().replace(b".", b","))
    found = plan(BACKEND, "tiny")
    assert found.stops and found.stops.problems[0].code == "model-corrupt" and not found.steps
    code, _, err = ml(capsys, "release", "plan", "tiny")
    assert code == 1 and "error[model-corrupt]" in err
    with pytest.raises(UserError, match="model-corrupt"):
        apply(BACKEND, "tiny", "local", "ana")
    code, _, err = ml(capsys, "gate", "tiny", "1")
    assert (
        "no evidence that can be trusted" in err and "another version of the framework" not in err
    )
    told = " ".join(err.split())
    assert (
        code == 0 and "it changed since it was promoted: identity, verified-metrics, format" in told
    )
