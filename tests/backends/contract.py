"""Tests that every backend must pass: subclass them and define a `backend` fixture."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from ml.backends.base import Backend
from ml.backends.endpoints import SLOTS, Live, Server
from ml.backends.local.serving.endpoint import folder
from ml.backends.model_registry import DIGEST_PREFIX, model_folder
from ml.backends.runs import STARTED_BY, Event, Filter, Run
from ml.backends.traffic import KEY_HEADER
from ml.core.errors import Exit, Place, Severity, UserError
from ml.release import audit
from ml.release.ab import experiment as experiments
from ml.release.ab import records, routing
from ml.release.ab.experiment import Experiment
from ml.release.ab.verdict import verdict
from ml.release.canary import canary
from ml.serving.scoring.manifest import folder_digest
from ml.specs.plan import planning
from ml.specs.plan.plans import Distribution, EarlyTermination
from ml.specs.sdk import load
from tests.backends.conftest import LOG, Plans, Sweeps
from tests.backends.deployments import QUICK, SAMPLES, released
from tests.backends.serving.servers import CRASH
from tests.release.canary.greens import script

_PLACE = Place("jobs/job.yml", 30)
POLICIES = (
    EarlyTermination("median_stopping", _PLACE, 1, 2),
    EarlyTermination("bandit", _PLACE, 1, 2, slack_amount=0.1),
    EarlyTermination("truncation_selection", _PLACE, 1, 2, truncation_percentage=50),
)
PIPELINE = """\
type: pipeline
experiment_name: tests
settings: {default_compute: azureml:cpu-cluster}
inputs: {word: hello}
jobs:
  write:
    command: echo ${{inputs.word}} > ${{outputs.note}}
    environment: azureml:ml-cpu:1
    inputs: {word: "${{parent.inputs.word}}"}
    outputs: {note: {type: uri_file}}
  read:
    command: cp ${{inputs.note}} ${{outputs.copy}}
    environment: azureml:ml-cpu:1
    inputs: {note: "${{parent.jobs.write.outputs.note}}"}
    outputs: {copy: {type: uri_file}}
  fail:
    command: echo the cause; exit 3
    environment: azureml:ml-cpu:1
"""


class BackendContract:
    """Tests of the port `ml.backends.base`, with jobs that take a moment each."""

    def check_tracking(self, run: Run, status: str) -> None:
        """Hook: assertions on the tracking server's data of a run, besides those by the port."""

    def test_a_command_that_succeeds(self, backend: Backend, command: Plans) -> None:
        """A command completes; its metrics and outputs can be read from the Run and from MLflow."""
        script = LOG + (
            "log('loss', 0.5); log('loss', 0.25, 1)\n"
            "Path(sys.argv[1], 'model.txt').write_text(sys.argv[2])\n"
        )
        line = "python script.py ${{outputs.model}} ${{inputs.word}}"
        plan = command(script, line, {"model": "custom_model"}, word="hello")
        run = backend.run(plan)
        assert (run.status, run.error, run.warnings) == ("Completed", None, ())
        assert run.metrics == {"loss": 0.25}
        assert (run.outputs["model"] / "model.txt").read_text() == "hello"
        assert run.ended is not None
        assert run.parameters == {"word": "hello"} and run.experiment == "tests"
        assert backend.runs.curves([run], "loss") == {run.id: ((0, 0.5), (1, 0.25))}
        assert backend.runs.all_curves(run) == {"loss": ((0, 0.5), (1, 0.25))}
        self.check_tracking(run, "FINISHED")

    def test_a_command_that_fails(self, backend: Backend, command: Plans) -> None:
        """A failed command is a Run with an error (code, line, log's end), not an exception."""
        run = backend.run(command("print('the cause'); raise SystemExit(3)"))
        assert run.status == "Failed"
        assert run.error is not None
        assert run.error.code == "script-failed"
        assert str(run.error.place) == "jobs/job.yml:7"
        assert "exited with 3" in run.error.actual
        assert "the cause" in run.error.actual
        self.check_tracking(run, "FAILED")

    def test_a_command_that_takes_too_long(self, backend: Backend, command: Plans) -> None:
        """`limits.timeout` cancels the job."""
        plan = replace(command("import time; time.sleep(60)"), timeout_s=0.5)
        run = backend.run(plan)
        assert run.status == "Canceled"
        assert run.error is not None
        assert run.error.code == "timed-out"
        self.check_tracking(run, "KILLED")

    def test_a_sweep(self, backend: Backend, sweep: Sweeps) -> None:
        """Trials run in order; the sweep has the outputs and metrics of the best trial."""
        script = LOG + "log('score', float(sys.argv[1])); Path(sys.argv[2]).write_text(sys.argv[1])"
        plan = sweep(script, {"note": "uri_file"})
        line = "python script.py ${{search_space.x}} ${{outputs.note}}"
        plan = replace(plan, trial=replace(plan.trial, command=line))
        run = backend.run(plan)
        assert run.status == "Completed"
        assert [trial.name for trial in run.trials] == [f"{run.name}_{n}" for n in range(3)]
        scores = {trial.name: trial.metrics["score"] for trial in run.trials}
        assert scores == {trial.name: trial.parameters["x"] for trial in run.trials}
        assert run.best == max(scores, key=scores.__getitem__)
        assert float(run.outputs["note"].read_text()) == max(scores.values())
        assert run.metrics == run.trial(run.best).metrics
        assert run.parameters == run.trial(run.best).parameters
        self.check_tracking(run, "FINISHED")
        for number, trial in enumerate(run.trials):
            assert backend.runs.find(trial.name).id == trial.id
            parent, sample = backend.runs.parent(trial), backend.runs.sample(trial)
            assert parent is not None and parent.id == run.id
            assert sample is not None and (sample.number, sample.values) == (
                number,
                trial.parameters,
            )

    def test_a_trial_that_fails_does_not_end_the_sweep(
        self, backend: Backend, sweep: Sweeps
    ) -> None:
        """Other trials continue, and the best trial is a completed one."""
        script = LOG + "x = float(sys.argv[1]); log('score', x); sys.exit(x > 0.5)"
        run = backend.run(sweep(script, max_total_trials=4))
        statuses = {trial.name: trial.status for trial in run.trials}
        assert set(statuses.values()) == {"Completed", "Failed"}
        assert run.status == "Completed"
        assert run.best is not None
        assert statuses[run.best] == "Completed"

    def test_early_termination(self, backend: Backend, sweep: Sweeps) -> None:
        """The policy stops a weak trial, which is Canceled with its name, and never the best."""
        # The weak trial logs after a better one: otherwise, it would be the median and continue. No
        # other test logs its value.
        script = LOG + (
            "good = float(sys.argv[1]) < 0.5\n"
            "better = 'SELECT 1 FROM metrics WHERE value = 0.8125'\n"
            "for _ in range(600):\n"
            "    if good or sqlite3.connect(store).execute(better).fetchall():\n"
            "        break\n"
            "    time.sleep(0.1)\n"
            "for step in range(4):\n"
            "    log('score', 0.8125 if good else 0.0, step)\n"
            "time.sleep(0 if good else 60)\n"
        )
        policy = EarlyTermination("median_stopping", Place("jobs/job.yml", 30), 1, 4)
        plan = sweep(script, max_total_trials=6, early_termination=policy)
        if refusals := backend.refusals(plan):
            assert refusals[0].place == policy.place
            return
        run = backend.run(plan)
        assert run.status == "Completed"
        for trial in run.trials:
            expected = ("Completed", "") if trial.metrics["score"] else ("Canceled", policy.type)
            assert (trial.status, trial.ended_by) == expected
        ended = [trial for trial in run.trials if trial.ended_by]
        assert ended
        self.check_tracking(ended[0], "KILLED")

    @pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.type)
    def test_every_policy_ends_what_lags(
        self, backend: Backend, sweep: Sweeps, policy: EarlyTermination
    ) -> None:
        """A stopped trial was worse than the best, is Canceled, and has the policy's name."""
        script = LOG + (
            "x = float(sys.argv[1])\n"
            "for step in range(8):\n"
            "    log('score', x, step); time.sleep(0.3)\n"
        )
        plan = sweep(script, max_total_trials=6, max_concurrent_trials=2, early_termination=policy)
        if refusals := backend.refusals(plan):
            assert refusals[0].place == policy.place
            return
        run = backend.run(plan)
        assert run.status == "Completed" and run.best is not None
        ended = [trial for trial in run.trials if trial.status == "Canceled"]
        assert ended and {trial.ended_by for trial in ended} == {policy.type}
        best = run.trial(run.best)
        assert best.status == "Completed" and best.ended_by == ""
        assert all(trial.parameters["x"] < best.parameters["x"] for trial in ended)

    def test_a_running_job_is_cancelled(self, backend: Backend, command: Plans) -> None:
        """A followed job is cancelled by name: canceller and follower get a Canceled run."""
        cancelled: list[Run] = []

        def cancel(event: Event) -> None:
            if event.kind == "started":
                name = event.run.name
                thread = threading.Thread(target=lambda: cancelled.append(backend.cancel(name)))
                thread.start()
                threads.append(thread)

        threads: list[threading.Thread] = []
        run = backend.run(command("import time; time.sleep(60)"), cancel)
        for thread in threads:
            thread.join()
        assert run.status == "Canceled"
        assert [each.status for each in cancelled] == ["Canceled"]
        assert backend.runs.find(run.name).status == "Canceled"

    def test_a_pipeline(
        self, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Steps run in order and pass data; a failed step does not affect independent ones."""
        (tmp_path / "pyproject.toml").touch()
        monkeypatch.chdir(tmp_path)
        (tmp_path / "pipeline.yml").write_text(PIPELINE)
        plan = planning.plan(load.load(tmp_path / "pipeline.yml"))
        if refusals := backend.refusals(plan):
            assert refusals[0].place == plan.place
            return
        run = backend.run(plan)
        assert run.status == "Failed"
        statuses = {name: run.step(name).status for name in ("write", "read", "fail")}
        assert statuses == {"write": "Completed", "read": "Completed", "fail": "Failed"}
        assert run.step("read").outputs["copy"].read_text() == "hello\n"
        assert "the cause" in backend.runs.logs(run.step("fail"))["0"].read_text()
        assert backend.runs.parent(run.step("read")) is not None
        (entry,) = backend.runs.entries()
        assert (entry.kind, entry.run.id) == ("pipeline", run.id)

    def test_events_tell_the_story(self, backend: Backend, sweep: Sweeps) -> None:
        """Events are: started, each trial's start and end, ended; each has the run at that time."""
        told: list[Event] = []
        run = backend.run(sweep(LOG + "log('score', 1.0)"), told.append)
        kinds = [event.kind for event in told if event.kind not in ("trial_metric", "running")]
        assert kinds[0] == "started"
        assert kinds[-1] == "ended"
        assert kinds.count("trial_started") == kinds.count("trial_ended") == 3
        assert told[-1].run == run
        assert all(event.trial for event in told if event.kind.startswith("trial"))

    def test_what_cannot_be_honoured_is_refused(self, backend: Backend, command: Plans) -> None:
        """Unsupported fields are either rejected with their line, or the job runs as written."""
        plan = command("print(1)")
        place = Place("jobs/job.yml", 12)
        several = replace(plan, instance_count=2, places={"resources.instance_count": place})
        distributed = replace(plan, distribution=Distribution("pytorch", 2, place))
        for asking in (several, distributed):
            for refusal in backend.refusals(asking):
                severity: Severity = "error"
                assert (refusal.place, refusal.severity) == (place, severity)
                assert refusal.hint
        assert backend.refusals(plan) == ()

    def test_runs_are_found_and_listed(self, backend: Backend, command: Plans) -> None:
        """Runs are found by name, by id, and as `latest`; the list begins with the latest."""
        first, second = backend.run(command("")), backend.run(command(""))
        for name in (first.name, first.id):
            assert backend.runs.find(name).id == first.id
        assert backend.runs.find("latest").id == second.id
        entries = backend.runs.entries()
        assert [entry.run.id for entry in entries] == [second.id, first.id]
        # A run that a release started is listed, but is not `latest`.
        third = backend.run(replace(command("print(3)"), tags={STARTED_BY: "release"}))
        assert backend.runs.entries()[0].run.id == third.id
        assert backend.runs.find("latest", "tests").id == second.id
        other = backend.run(replace(command("print(4)"), experiment="other"))
        assert backend.runs.find("latest").id == other.id
        assert {entry.kind for entry in entries} == {"command"}
        assert Filter(experiment="tests").apply(entries) == entries
        assert Filter(experiment="others").apply(entries) == []
        with pytest.raises(UserError) as refused:
            backend.runs.find("no_such_run")
        assert refused.value.exit_code == Exit.WRONG_CALL

    def test_a_run_has_its_lineage(self, backend: Backend, sweep: Sweeps) -> None:
        """A run has spec, code, data and environment; a sweep its objective; a trial its sweep."""
        run = backend.run(sweep(LOG + "log('score', 1.0)"))
        entry = backend.runs.entry(run)
        assert entry.lineage["spec"] == "jobs/job.yml:3"
        assert entry.objective == ("score", "maximize")
        trial = backend.runs.entry(run.trials[0])
        assert trial.lineage["parent"] == run.id
        assert {"commit", "dirty", "digest"} <= trial.lineage["code"].keys()
        assert {"data", "environment", "environment_digest"} <= trial.lineage.keys()

    def test_logs_and_outputs_are_local_files(self, backend: Backend, command: Plans) -> None:
        run = backend.run(command("print('said')", outputs={}))
        assert "said" in backend.runs.logs(run)["0"].read_text()

    def test_a_model_is_registered_once(self, backend: Backend, command: Plans) -> None:
        """Versions have ascending numbers; an alias per environment marks the champion."""
        run, registry = backend.run(command("")), backend.registry
        for digit in "ab":
            folder = model_folder(DIGEST_PREFIX + digit * 64)
            folder.mkdir(parents=True)
            (folder / "model.txt").write_text(digit)
        first = registry.register("m", "p", "sha256:" + "a" * 64, run.id)
        assert registry.register("m", "p", "sha256:" + "a" * 64, "another") == first
        second = registry.register("m", "p", "sha256:" + "b" * 64, run.id)
        assert [version.version for version in registry.versions("m")] == ["1", "2"]
        assert (second.digest, second.project, second.run) == ("sha256:" + "b" * 64, "p", run.id)
        assert registry.versions("other") == []
        assert list(registry.versions()) == [first, second]
        assert registry.find("m", "2") == second
        for model in ("m", "none"):
            with pytest.raises(UserError, match="no-such-version"):
                registry.find(model, "3")
        assert registry.champion("m", "local") is None
        for version in (first, second, first, second):
            registry.promote(version, "local", "code")
            champion = registry.champion("m", "local")
            assert champion and champion.digest == version.digest
        assert registry.champion("m", "prod") is None
        assert champion.served_in("code") == ("local",) and champion.served_in("other") == ()
        registry.demote("m", "local")
        assert registry.champion("m", "local") is None
        for digit in "cd":
            evidence = replace(first, evidence=digit * 64).evidence_folder
            evidence.mkdir(parents=True)
            (evidence / "evidence.json").write_text(digit)
        kept = registry.keep_evidence(first, "c" * 64)
        assert registry.find("m", "1") == kept and kept.evidence == "c" * 64
        kept = registry.keep_evidence(first, "d" * 64)
        assert kept.kept_at("c" * 64) and kept.kept_at("d" * 64) and kept.evidence == "d" * 64
        assert kept.kept_at("e" * 64) is None

    def test_the_evidence_of_a_version_is_brought(
        self, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Evidence and its files are downloaded, also to a machine without them."""
        deployment = released(backend, "words", tmp_path)
        version = backend.registry.find("words", deployment.version)
        sha256 = hashlib.sha256(b"{}").hexdigest()
        folder = replace(version, evidence=sha256).evidence_folder
        folder.mkdir(parents=True)
        (folder / "evidence.json").write_text("{}")
        version = backend.registry.keep_evidence(version, sha256)
        if backend.name == "azure":
            monkeypatch.setenv("MLOPS_HOME", str(tmp_path / "another"))
        for _ in "ab":
            if shared := backend.registry.shared:
                shared.download(version)
            assert folder_digest(version.folder) == version.digest
            assert (version.evidence_folder / "evidence.json").read_text() == "{}"
        assert [each.model for each in backend.registry.versions()] == ["words"]
        unkept = replace(version, evidence="f" * 64)
        if shared:
            shared.download(unkept)
        assert not unkept.evidence_folder.exists()

    @pytest.mark.attack("Many writers append to the audit log at once")
    def test_lines_of_many_writers_make_one_chain(self, backend: Backend, home: Path) -> None:
        """No line is lost when several processes append to the audit log concurrently."""
        log = backend.audit_log
        assert audit.verify(log) == ()

        def write(name: str) -> None:
            for number in range(5):
                audit.append(log, "drill", {"by": f"{name}{number}"})

        writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        lines = audit.verify(log)
        written = {f"{name}{number}" for name in "abc" for number in range(5)}
        assert len(lines) == 15 and {line["by"] for line in lines} == written

    def test_a_run_that_ended_is_not_cancelled(self, backend: Backend, command: Plans) -> None:
        run = backend.run(command(""))
        assert not backend.resumption or not backend.resumption.was_stopped(run)
        with pytest.raises(UserError):
            backend.cancel(run.name)

    def ask(self, backend: Backend, experiment: Experiment, key: str) -> str:
        """Send a request with a key, which the endpoint routes; return the model's digest."""
        request = Request(
            str(backend.endpoints.url(experiment.endpoint)),
            json.dumps(SAMPLES[0]).encode(),
            {"Content-Type": "application/json", KEY_HEADER: key},
        )
        with urlopen(request) as answer:
            return str(json.loads(answer.read())["model_digest"])

    @pytest.mark.slow
    def test_an_experiment_splits_keys(
        self, backend: Backend, deployments: Path, tmp_path: Path
    ) -> None:
        """Keys are routed to their version, outcomes are counted, and A serves after the stop."""
        endpoints, name = backend.endpoints, "words"
        released_arms = [released(backend, name, tmp_path, collect=True) for _ in "AB"]
        with endpoints.locked(name):
            server = endpoints.begin(released_arms[0])()
            endpoints.switch(name, Live(server, released_arms[0]))
            endpoints.start_router(name)
        a, b = (backend.registry.find(name, arm.version) for arm in released_arms)
        declared = experiments.declare(
            *(backend, "wording", a, b),
            environment="local",
            outcome="binary",
            effect=0.1,
            baseline=0.4,
        )
        # With this salt, the keys get both versions; a random salt fails once in 2,048 runs.
        experiment = replace(declared, endpoint=name, salt="words")
        keys = [f"customer-{number}" for number in range(12)]
        assert routing.begin(backend, experiment, released_arms[1], SAMPLES, "ana") is not None
        assert routing.is_served(backend, experiment)
        arms = records.assign(backend, experiment, keys)
        assert {*arms.values()} == {"A", "B"}
        digests = {"A": a.digest, "B": b.digest}
        assert [self.ask(backend, experiment, key) for key in keys] == [
            digests[arms[key]] for key in keys
        ]
        # An outcome names the key or the id of its request.
        named = [*keys[:6], *(f"{experiment.request_id(key)}.2" for key in keys[6:])]
        assert records.record(backend, experiment, [(of, 1) for of in named]) == 12
        told = verdict(experiment, records.read(backend, experiment))
        assert (told.a.outcomes, told.b.outcomes) == (
            *([*arms.values()].count(arm) for arm in "AB"),
        )
        self.check_misrouted(backend, experiment, keys[0])
        assert [line["event"] for line in audit.verify(backend.audit_log)] == ["ab-served"]
        assert routing.stop(backend, experiment) and not routing.stop(backend, experiment)
        live = endpoints.live(name)
        assert live is not None and live.canary is None and live.deployment.digest == a.digest

    def check_misrouted(self, backend: Backend, experiment: Experiment, key: str) -> None:
        """Hook: assertions on a caller that ignores the assignment, if the backend allows it."""

    @pytest.mark.slow
    def test_a_version_that_does_not_start(
        self, backend: Backend, deployments: Path, tmp_path: Path
    ) -> None:
        """The error has the end of the log; the version is removed, and nothing serves."""
        endpoints, name = backend.endpoints, "words"
        deployment = released(backend, name, tmp_path, CRASH)
        with endpoints.locked(name), pytest.raises(UserError) as refused:
            endpoints.begin(deployment)()
        (problem,) = refused.value.problems
        assert problem.code == "server-crashed" and refused.value.exit_code == Exit.RUN_FAILED
        assert "no weights, no answer" in problem.actual and "its log ends:" in problem.actual
        assert endpoints.live(name) is None and endpoints.url(name) is None
        assert not endpoints.is_up(Server(folder(name) / SLOTS[0], 1, 1))

    @pytest.mark.slow
    def test_a_canary_judges_a_version(
        self, backend: Backend, deployments: Path, tmp_path: Path
    ) -> None:
        """A good version passes 10, 50 and 100 %; failing and leaking ones are rolled back."""
        endpoints, name = backend.endpoints, "words"
        assert (endpoints.live(name), endpoints.url(name)) == (None, None)
        first, good = (released(backend, name, tmp_path) for _ in "ab")
        bad = released(backend, name, tmp_path, script("raise RuntimeError('bad')"))
        hoards = "hoard.append(bytearray(b'x' * 8_000_000))"
        hoarder = released(backend, name, tmp_path, script(hoards))
        with endpoints.locked(name):
            live = Live(endpoints.begin(first)(), first)
            endpoints.switch(name, live)
            endpoints.start_router(name)
        for deployment, ends, why in (
            (good, "passed", ""),
            (bad, "rolled-back", "errors"),
            (hoarder, "rolled-back", "memory: grew by"),
        ):
            with ExitStack() as undo:
                with endpoints.locked(name):
                    trial = canary.start_trial(
                        *(endpoints, name, canary.clear_canary(endpoints, name), deployment),
                        *(SAMPLES, undo),
                        baseline=True,
                        smoke=deployment is not bad,
                    )
                outcome = canary.run_canary(endpoints, name, trial, QUICK, SAMPLES)
                assert outcome.kind == ends and why in outcome.why, outcome.why
                if ends == "passed":
                    with endpoints.locked(name):
                        endpoints.switch(name, Live(trial.server, deployment))
                        endpoints.stop_idle(name)
                    undo.pop_all()
            after = endpoints.live(name)
            assert after is not None and after.canary is None
            names = ("model", "version", "digest", "deployment_digest")
            assert all(getattr(after.deployment, name) == getattr(good, name) for name in names)
            answer = endpoints.ask(name, SAMPLES[0])
            assert answer.status == 200 and isinstance(answer.body, dict)
            assert answer.body["model_digest"] == good.digest
        assert endpoints.ask(name, {"question": 3}).status == 400
