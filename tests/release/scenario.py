"""A test of a model's lifecycle on a backend: train, propose, apply, replace, roll back.

Each backend subclasses the scenario, defines a `team` fixture, and overrides hooks for its own
behaviour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ml.backends.attestation import Attestor
from ml.backends.base import Backend
from ml.backends.endpoints import Live
from ml.release import audit
from ml.release.declaration import desired_state, projects
from ml.release.promotion.candidate import choose
from ml.release.promotion.gate_check import check_registered
from ml.release.promotion.propose import Proposal, propose
from ml.release.rollout.apply import Applied, apply
from ml.release.rollout.invoke import ask
from ml.release.rollout.plan import Plan, plan
from ml.release.rollout.rollback import roll_back
from ml.release.rollout.status import Status, status
from ml.release.versions import Served, descendants, find_in_use
from ml.serving.scoring.manifest import folder_digest
from tests.policies.cases import result
from tests.release import tiny
from tests.release.promotion.test_environments import commit, git
from tests.release.test_commands import ml

QUESTION = {"question": "how?"}
RELEASE = Path("ml/projects/tiny/release.yml")


class Team:
    """The tiny project in its own repository, released to the environment dev of a backend.

    `pipeline` is a job with a training step; None if the backend has no pipelines. `commands` says
    whether the backend can be passed to `--on`.
    """

    pipeline: str | None = "single.yml"
    commands = True
    attestor: Attestor | None = None

    def __init__(self, folder: Path, backend: Backend) -> None:
        self.project = tiny.make(folder, tiny.SINGLE)
        self.backend = backend
        self.endpoint = backend.endpoints.name_of("tiny", "dev")

    def start_next_step(self) -> None:
        """Continue as the next step of a workflow would; on Azure, that is on another machine."""

    def train(self, skill: float) -> str:
        """Train a model with a skill (accuracy); return the run's name."""
        return self.project.train(skill, self.backend).name

    def propose(self, run: str) -> Proposal:
        """Propose the run's model for dev, as the workflow does."""
        return propose(self.backend, "tiny", run, "dev", attestor=self.attestor)

    def promote(self, run: str) -> Proposal:
        """Propose a model, assert that the gates allow it, and commit the changed files."""
        made = self.propose(run)
        assert made.decision.outcome == "pending", made.decision.blocking
        changed = {line[3:] for line in git("status", "--porcelain", "-uall").splitlines()}
        assert changed == {str(path.absolute().relative_to(Path.cwd())) for path in made.written}
        commit(f"Promote tiny {made.candidate.version} to dev")
        return made

    def plan(self) -> Plan:
        """Return the release plan; assert that it adds no line to the audit log."""
        lines = len(audit.verify(self.backend.audit_log))
        made = plan(self.backend, "tiny", "dev")
        assert len(audit.verify(self.backend.audit_log)) == lines
        return made

    def apply(self, approved_by: str | None = None, **options: object) -> Applied | None:
        """Apply the declared release to dev."""
        return apply(self.backend, "tiny", "dev", approved_by, **options)  # type: ignore[arg-type]

    def status(self) -> Status:
        """Return the status of dev."""
        (row,) = status(self.backend, "tiny", "dev")
        return row

    def live(self) -> Live | None:
        """Return the live deployment; None without one."""
        return self.backend.endpoints.live(self.endpoint)

    def champion(self) -> str | None:
        """Return the version that is dev's champion in the registry; None without one."""
        champion = self.backend.registry.champion("tiny", "dev")
        return champion and champion.version

    def files(self) -> dict[str, str]:
        """Return name → text of the files that a promotion changes."""
        paths = (RELEASE, *RELEASE.parent.glob("evidence/dev*"))
        return {path.name: path.read_text() for path in paths}

    def answer(self) -> str | None:
        """Send a request to the endpoint; return the version that responds."""
        return ask(self.backend, self.endpoint, QUESTION).version


class ReleaseScenario:
    """The steps of the lifecycle, with assertions by the backend's port only."""

    def check_unapplied(self, team: Team) -> None:
        """Hook: assertions of a backend before the first apply."""

    def apply_first(self, team: Team) -> Applied | None:
        """Apply the first version."""
        return team.apply("ana")

    def check_second(self, team: Team, capsys: pytest.CaptureFixture[str]) -> None:
        """Hook: assertions of a backend before the second version is applied."""

    def check_fault(self, team: Team, run: str) -> None:
        """Hook: assertions of a backend on faults during a canary, before the next apply."""

    def test_from_training_to_rollback(
        self, team: Team, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Release a version, reject a worse model, release a better one, roll back in three ways.

        Version 2 has other serving code: each rollback also restores the code of version 1.
        """
        before = RELEASE.read_text()
        first, second = self.promote_first(team), team.train(0.95)
        self.check_unapplied(team)
        self.release_first(team, first)
        digest, serving = first.candidate.digest, self.serving(team)
        self.reject_worse(team)
        released = team.files()
        number = self.release_second(team, second, digest, capsys)

        git("revert", "--no-edit", "HEAD")
        assert team.files() == released
        steps = team.plan()
        assert "no canary: this version served here before" in steps.steps
        assert steps.decision and "non-inferiority" in {
            one.gate for one in steps.decision.results if one.mode == "report-only"
        }
        if team.commands:
            words = ("release", "plan", "tiny", "--env", "dev", "--on", team.backend.name, "--json")
            code, out, _ = ml(capsys, *words)
            document = json.loads(out)
            assert code == 0 and document["to_do"] and document["declared"]["version"] == "1"
        unsigned = team.apply()  # a rollback also needs an approval
        assert unsigned and unsigned.outcome == "rejected" and team.champion() == number
        self.apply_earlier(team, "cy", serving)

        git("revert", "--no-edit", "HEAD")
        self.check_fault(team, second)
        team.start_next_step()
        done = team.apply("cy")  # the same as any promotion
        assert done and done.version.version == number and done.canary

        # Change the sample requests after version 1 was proposed.
        samples = team.project.folder / "endpoint" / "requests.jsonl"
        samples.write_text('{"question": "how?", "language": "en"}\n')
        commit("other requests")
        team.start_next_step()
        back = roll_back(team.backend, "tiny", "dev", "it was a test")
        assert (back.declared.version, back.replaced.version) == ("1", number)
        assert back.declared.deployment_digest == serving and team.files() == released
        commit("back")
        self.apply_earlier(team, "ana", serving)
        again = roll_back(team.backend, "tiny", "dev")
        assert again.declared.version == "1" and not again.written
        if team.commands:
            self.check_commands(team, {first.run: True, second: False}, capsys)

        RELEASE.write_text(before)
        assert team.apply("ana") is None
        assert team.status().verdict == "nothing is declared; version 1 keeps serving"
        assert team.answer() == "1"

    def serving(self, team: Team) -> str:
        """Return the digest of the live serving code."""
        live = team.live()
        assert live and live.canary is None
        return live.deployment.deployment_digest

    def promote_first(self, team: Team) -> Proposal:
        """Propose version 1; assert that it is declared in files, but not served or champion."""
        empty = team.status()
        assert empty.verdict.startswith("no model yet") and empty.declared is None
        job = team.pipeline or "train.yml"
        run = team.project.run(job, team.backend).name
        made = team.promote(run)
        assert made.champion is None and made.candidate.version == "1"
        assert result(made.decision, "first-promotion").verdict == "pass"
        assert made.evidence.latency.hardware and made.evidence.mismatches == ()
        assert "not on the deployment's" in str([one.why for one in made.decision.results])
        assert made.evidence.lineage.environment == "azureml:ml-cpu:1"
        names = ["release.yml", "dev.json", *["dev.attestation.json"] * bool(team.attestor)]
        assert [path.name for path in made.written] == names
        entry = desired_state.read(team.backend, "tiny", "dev")
        assert entry and entry.digest == made.candidate.digest
        assert check_registered(team.backend, "tiny", "1", "dev").decision.outcome == "pending"
        assert made.run == (f"{run}.train" if team.pipeline else run)
        # The version's run in the registry is the pipeline's step, which its attestation names.
        project = projects.find(team.backend.root, "tiny")
        again = choose(team.backend, project, made.candidate.run)
        assert again.id == made.candidate.run
        assert folder_digest(again.outputs["model"]) == made.candidate.digest
        trained = team.backend.runs.find(made.run)
        assert [one.relation for one in descendants(team.backend, trained)] == ["made"]
        return made

    def release_first(self, team: Team, made: Proposal) -> None:
        """Assert that apply needs an approver, serves, and does nothing the second time."""
        steps = team.plan()
        assert steps.unsigned and steps.stops is None and steps.serving is None
        assert "no canary" in " ".join(steps.steps)
        unsigned = team.apply()
        assert unsigned and unsigned.outcome == "rejected"
        assert team.live() is None and team.champion() is None
        done = self.apply_first(team)
        assert done and (done.outcome, done.version.version) == ("applied", "1")
        assert (done.canary, done.replaced) == (None, None)
        assert done.rollout.deployment.endpoint == team.endpoint
        reply = ask(team.backend, team.endpoint, QUESTION)
        assert reply.body["model_digest"] == made.candidate.digest and not reply.started
        assert isinstance(reply.body["answers"], list)
        again = team.apply("ana")
        assert again and again.outcome == "unchanged" and not again.started
        assert again.router == done.router
        steps = team.plan()
        assert steps.steps == () and steps.verdict.startswith("nothing to do")
        row = team.status()
        assert (row.champion, row.serving, row.verdict) == ("1", "1", "as declared")
        assert (row.audit, row.signed_off) == ("verified", "ana")
        events = [line["event"] for line in audit.verify(team.backend.audit_log)]
        assert events == [*["decision"] * 4, "applied", "decision"]
        assert team.backend.registry.champion("tiny", "local") is None
        version = team.backend.registry.find("tiny", "1")
        assert version.folder in find_in_use(team.backend).paths
        (model,) = descendants(team.backend, team.backend.runs.find(made.run))
        url = team.backend.endpoints.url(team.endpoint)
        assert url and model.serving == [Served(team.endpoint, url)]

    def reject_worse(self, team: Team) -> None:
        """Assert that the gates reject a worse model: declaration, champion and live stay."""
        entry, live = desired_state.read(team.backend, "tiny", "dev"), team.live()
        worse = team.propose(team.train(0.7))
        assert worse.decision.outcome == "rejected" and not worse.written
        assert result(worse.decision, "non-inferiority").verdict == "fail"
        assert desired_state.read(team.backend, "tiny", "dev") == entry
        assert team.live() == live and team.champion() == "1"
        done = team.apply("ana")
        assert done and done.outcome == "unchanged"
        number = worse.candidate.version
        again = check_registered(team.backend, "tiny", number, "dev").decision
        assert again.outcome == "rejected"
        again = check_registered(team.backend, "tiny", "1", "dev").decision
        assert again.outcome == "already-champion"

    def release_second(
        self, team: Team, run: str, digest: str, capsys: pytest.CaptureFixture[str]
    ) -> str:
        """Assert that blue serves until green passed 10, 50 and 100 %, and is then stopped."""
        team.start_next_step()
        score = team.project.folder / "endpoint" / "score.py"
        score.write_text(score.read_text() + "# Other serving code, which a rollback takes back.\n")
        commit("other serving code")
        better = team.promote(run)
        number = better.candidate.version
        assert better.champion and better.champion.version == "1"
        steps = team.plan()
        assert steps.serving and steps.serving.version == "1" and not steps.stops
        assert [step for step in steps.steps if step.startswith(("10 %", "50 %", "100 %"))]
        blue, lines = team.live(), list[str]()
        assert blue and blue.deployment.digest == digest
        self.check_second(team, capsys)
        team.start_next_step()
        done = team.apply("ben", progress=lines.append)
        assert done and done.outcome == "applied", done and done.decision.blocking
        assert (done.version.version, done.replaced and done.replaced.version) == (number, "1")
        assert done.canary and done.canary.kind == "passed"
        self.check_progress(lines, blue)
        green = team.live()
        assert green and green.canary is None and green.server.slot != blue.server.slot
        assert not team.backend.endpoints.is_up(blue.server)
        assert team.answer() == number == team.champion()
        row = team.status()
        assert (row.declared, row.serving, row.champion) == (number, number, number)
        assert row.signed_off == "ben"
        assert row.verdict == "as declared" and row.url
        assert row.last_attempt and row.last_attempt.outcome == "applied"
        return number

    def check_progress(self, lines: list[str], blue: Live) -> None:
        """Assert that the lines have the canary's traffic shares in order."""
        begun = [f"canary: {share} %" for share in (10, 50, 100)]
        assert [start for line in lines for start in begun if line.startswith(f"{start}:")] == begun

    def apply_earlier(self, team: Team, approved_by: str, serving: str) -> None:
        """Assert that version 1 serves at once with its former code, without a canary."""
        team.start_next_step()
        done = team.apply(approved_by)
        assert done and (done.outcome, done.version.version, done.canary) == ("applied", "1", None)
        assert self.serving(team) == serving and team.answer() == "1"

    def check_commands(
        self, team: Team, serves: Mapping[str, bool], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Assert that `ml` prints the same for version 1 and for runs; `serves` is by run."""
        where = ("--on", team.backend.name)
        digest = team.backend.registry.find("tiny", "1").digest
        code, out, _ = ml(capsys, "release", "status", "tiny", "--env", "dev", *where, "--json")
        (row,) = json.loads(out)
        assert code == 0
        assert (row["serving"], row["audit"], row["signed_off"]) == ("1", "verified", "ana")
        code, out, _ = ml(capsys, "release", "drift", "--env", "dev", *where, "--json")
        release, model = json.loads(out)
        assert code == 0 and not release["differences"] and release["words"] == "as declared"
        assert model["about"] == "model" and model["unknown"], model
        code, out, _ = ml(capsys, "invoke", team.endpoint, json.dumps(QUESTION), *where, "--json")
        assert code == 0 and json.loads(out)["model_digest"] == digest
        address = {"endpoint": team.endpoint, "url": team.backend.endpoints.url(team.endpoint)}
        for run, does in serves.items():
            code, out, _ = ml(capsys, "runs", "show", run, *where, "--json")
            (found,) = json.loads(out)["models"]
            assert code == 0 and found["serving"] == [address] * does, run
        team.start_next_step()
        code, out, _ = ml(capsys, "gate", "--released", "--env", "dev", *where)
        assert (code, out) == (0, "✔ tiny 1 in dev: passes\n")
        code, _, err = ml(capsys, "audit", "verify", *where)
        assert code == 0 and "none changed" in err
        code, _, err = ml(capsys, "evidence", "verify", "tiny", "1", *where)
        assert code == 0 and "DIFFERS" not in err
