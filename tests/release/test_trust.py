"""The guarantees of docs/threat-model.md about evidence and approvals, attacked."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ml.backends.local.serving import endpoint
from ml.backends.model_registry import EVIDENCE_FILE, Version
from ml.core.errors import Exit, UserError
from ml.release import audit
from ml.release.declaration import desired_state, projects
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.evidence import evidence
from ml.release.evidence.evidence import ATTESTATION
from ml.release.promotion.gate_check import GateCheck, champion_of, check_gates, request
from ml.release.promotion.propose import propose
from ml.release.rollout.apply import apply
from ml.release.rollout.plan import plan
from policies.promotion.decision import Result
from tests.local import BACKEND, LOG
from tests.release import tiny
from tests.release.authority import Authority, Workflow
from tests.release.conftest import World
from tests.release.promotion.test_environments import commit, git, prepare_environments, simulated
from tests.release.test_commands import ml
from tests.stand_ins.memory import MemoryBackend

__all__ = ["simulated"]


def now_declared(environment: str = "local") -> ReleaseEntry:
    """What is declared."""
    found = desired_state.read(BACKEND, "tiny", environment)
    assert found is not None
    return found


def refused(act: Callable[[], object]) -> str:
    """The code of the error."""
    with pytest.raises(UserError) as raised:
        act()
    return raised.value.problems[0].code


def edited(version: Version, change: Callable[[dict[str, Any]], object]) -> str:
    """The hash of an edited copy of the evidence, beside the true one as an apply finds it."""
    document = json.loads((version.evidence_folder / EVIDENCE_FILE).read_text())
    change(document)
    text = json.dumps(document)
    copy = replace(version, evidence=hashlib.sha256(text.encode()).hexdigest())
    shutil.copytree(version.evidence_folder, copy.evidence_folder)
    (copy.evidence_folder / EVIDENCE_FILE).write_text(text)
    return copy.evidence


@pytest.mark.attack("A declaration names evidence that the registry never kept")
def test_evidence_that_the_registry_does_not_have(declared_world: World) -> None:
    """A folder of that hash is not enough."""
    entry = now_declared()
    version = BACKEND.registry.find("tiny", entry.version)
    other = edited(version, lambda document: document.update(created="2030-01-01T00:00:00+00:00"))
    desired_state.declare(BACKEND, "tiny", "local", replace(entry, evidence=other))
    assert refused(lambda: apply(BACKEND, "tiny", "local", "ana")) == "digest-mismatch"
    assert endpoint.live("tiny").deployment.version == "1"  # type: ignore[union-attr]


@pytest.mark.attack(
    "Evidence claims another date, other hardware, advisories or clean code", told=True
)
def test_claims_are_told_again(declared_world: World) -> None:
    """Evidence that the registry has, and that nobody attested."""
    version = BACKEND.registry.find("tiny", "2")
    claimed = datetime.now(UTC) + timedelta(days=300)

    def claim(document: dict[str, Any]) -> None:
        document["created"] = claimed.isoformat()
        document["latency"]["hardware"] = document["latency"]["instance_type"]
        document["supply_chain"] |= {"source": "osv", "as_of": claimed.isoformat(), "records": 1}
        document["supply_chain"]["advisories"] = []

    version = BACKEND.registry.keep_evidence(version, edited(version, claim))
    found = evidence.load(BACKEND, version)
    assert found.created and found.created < datetime.now(UTC)
    assert found.latency.hardware != found.latency.instance_type
    assert found.supply_chain.as_of is None and found.supply_chain.advisories is None
    assert found.lineage.dirty is False and found.lineage.evaluation_dirty is False
    for name in ("code_snapshot", "evaluation_snapshot", "commit", "evaluation_commit"):
        other = "b" * 40 if name.endswith("commit") else "sha256:" + "b" * 64
        lie = edited(version, lambda document: document["lineage"].update({name: other}))  # noqa: B023
        lineage = evidence.load(BACKEND, BACKEND.registry.keep_evidence(version, lie)).lineage
        assert lineage.evaluation_dirty if name.startswith("evaluation") else lineage.dirty


@pytest.mark.attack("A decision is invented")
@pytest.mark.parametrize("how", ["nothing", "another version", "another event"])
def test_an_invented_decision(declared_world: World, how: str) -> None:
    """It has to be one of the gates that allowed this model here."""
    entry = now_declared()
    hashes = {
        "nothing": lambda: "d" * 64,
        "another version": lambda: str(audit.verify(LOG)[0]["hash"]),
        "another event": lambda: audit.append(
            LOG,
            "drill",
            {"decision": audit.verify(LOG)[-1]["decision"], "endpoint": "tiny"},
        ),
    }
    desired_state.declare(BACKEND, "tiny", "local", replace(entry, decision=hashes[how]()))
    assert refused(lambda: apply(BACKEND, "tiny", "local", "ana")) == "decision-unknown"
    stops = plan(BACKEND, "tiny").stops
    assert stops and stops.problems[0].code == "decision-unknown"
    run = BACKEND.registry.find("tiny", entry.version).run
    assert (
        stops.problems[0].hint
        == f"ml release propose tiny --run {run} --env local evaluates the gates"
    )
    desired_state.declare(BACKEND, "tiny", "local", entry)
    assert plan(BACKEND, "tiny").stops is None


@pytest.mark.attack("A second declaration takes over the approval of the first")
def test_an_approval_is_of_a_digest(declared_world: World) -> None:
    """Declared while an apply waits for another: it needs an its own approval."""
    second, sentences, results = now_declared(), [], []
    first = next(line for line in audit.verify(LOG) if line["event"] == "applied")
    waits = threading.Event()

    def run() -> None:
        done = apply(
            BACKEND,
            "tiny",
            "local",
            "ana",
            progress=sentences.append,
            waiting=lambda _: waits.set(),
        )
        results.append(done)

    desired_state.declare(
        BACKEND, "tiny", "local", replace(second, version="1", digest=str(first["digest"]))
    )
    other = threading.Thread(target=run)
    with desired_state.rollout_lock("tiny", "local", waiting=lambda: None):
        other.start()
        assert waits.wait(60)
        desired_state.declare(BACKEND, "tiny", "local", second)
    other.join(60)
    (done,) = results
    assert done.outcome == "rejected" and [one.gate for one in done.decision.blocking] == [
        "sign-off"
    ]
    assert "ana approved version 1" in sentences[0] and "its own approval" in sentences[0]


@pytest.mark.attack("A forged line of the audit log says that a version served before")
def test_the_log_loosens_nothing(declared_world: World) -> None:
    """The gates are not report-only for it, and there is a canary."""
    second = now_declared()
    version = BACKEND.registry.find("tiny", "2")
    audit.append(
        LOG,
        "applied",
        {
            **{"environment": "local", "endpoint": "tiny", "model": "tiny", "version": "2"},
            **{
                "digest": version.digest,
                "deployment_digest": second.deployment_digest,
                "decision": second.decision,
            },
        },
    )
    found = plan(BACKEND, "tiny")
    assert found.decision and not found.decision.request.served_before
    assert not [step for step in found.steps if step.startswith("no canary")]


@pytest.mark.attack("The alias of the champion is moved in the registry")
def test_an_alias_lets_nothing_pass(declared_world: World) -> None:
    """The version to beat is the one that serves; the declared one needs its approval."""
    BACKEND.registry.promote(BACKEND.registry.find("tiny", "2"), "local")
    champion = champion_of(BACKEND, "tiny", "local")
    assert champion and champion.version == "1"
    done = apply(BACKEND, "tiny", "local")
    assert done and done.outcome == "rejected" and done.decision.champion == "1"
    endpoint.switch("tiny", None)  # and where nothing serves, the alias is no approval
    done = apply(BACKEND, "tiny", "local")
    assert done and done.outcome == "rejected"


@pytest.mark.attack("The version that serves is removed from the registry, so that none is to beat")
def test_what_serves_and_no_registry_knows_is_no_first_promotion(declared_world: World) -> None:
    """The gates ask for the version that serves; a way back from it is still one."""
    live = endpoint.live("tiny")
    assert live is not None
    endpoint.switch(
        "tiny", replace(live, deployment=replace(live.deployment, digest=f"sha256:{'0' * 64}"))
    )
    assert refused(lambda: champion_of(BACKEND, "tiny", "local")) == "champion-unknown"
    assert champion_of(BACKEND, "tiny", "local", is_rollback=True) is not None
    assert refused(lambda: apply(BACKEND, "tiny", "local", "ana")) == "champion-unknown"


def _other_code(document: dict[str, Any]) -> None:
    copy = Path("other").absolute()
    shutil.copytree(Path("ml/projects/tiny/endpoint"), copy)
    (copy / "score.py").write_text(tiny.SCORE + "\nCHANGED = 1\n")
    document["deployment"]["code"] = str(copy)


@pytest.mark.attack("The evaluation imports a module of the work tree that is in no snapshot")
@pytest.mark.parametrize("name", ["benchmarks", "ml.core.errors", "policies"])
def test_an_evaluation_imports_nothing_of_the_work_tree(world: World, name: str) -> None:
    """What it has of the framework is what its own code brings."""
    script = world.project.folder / "evaluate.py"
    look = f"try:\n    import {name}\nexcept ImportError: pass\nelse: sys.exit('hidden')\n"
    script.write_text(f"import sys\n{look}{script.read_text()}")
    assert propose(BACKEND, "tiny", world.run(0.8)).decision.allowed


@pytest.mark.attack("live.json starts other code than the released")
@pytest.mark.parametrize(
    "change",
    [
        _other_code,
        lambda document: document["deployment"].update(scoring_script="/tmp/score.py"),
        lambda document: document["deployment"]["environment_variables"].update(PYTHONPATH="/tmp"),
        lambda document: document["deployment"].update(deployment_digest=""),
        lambda document: document["deployment"].update(collect=1.0),
        lambda document: document["deployment"]["settings"].update(instance_type="other"),
        lambda document: document["deployment"].update(digest="sha256:" + "0" * 64),
    ],
    ids=["code", "script", "variables", "digest", "collect", "settings", "model"],
)
def test_a_changed_state_starts_nothing(
    promoted_world: World, change: Callable[[dict[str, Any]], None]
) -> None:
    """Its deployment is hashed before a server is started from it."""
    path = endpoint.folder("tiny") / endpoint.STATE
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    assert refused(lambda: endpoint.ensure("tiny")) in ("serving-code-changed", "model-corrupt")


@pytest.mark.attack("The served score.py is changed in its snapshot")
def test_changed_serving_code_starts_nothing(promoted_world: World) -> None:
    """Neither by serving what is live, nor by an apply of it."""
    live = endpoint.live("tiny")
    assert live
    (live.deployment.code / live.deployment.scoring_script).write_text(
        tiny.SCORE + "\nCHANGED = 1\n"
    )
    assert refused(lambda: endpoint.ensure("tiny")) == "serving-code-changed"
    assert refused(lambda: apply(BACKEND, "tiny", "local", "ana")) == "serving-code-changed"
    stops = plan(BACKEND, "tiny").stops
    assert stops and stops.exit_code == Exit.GATE_SAID_NO


@pytest.mark.attack("The audit log is written anew as a whole", told=True)
@pytest.mark.parametrize("how", ["anew", "empty", "gone"])
def test_a_log_that_was_written_anew(
    declared_world: World, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lacks the decision that this machine declares; what it was held against is said."""
    code, out, err = ml(capsys, "audit", "verify")
    assert code == 0 and "compared with local in" in err and "is line" in err
    lines = audit.verify(LOG)
    LOG.path.write_text("")
    if how == "gone":
        LOG.path.unlink()
    elif how == "anew":
        LOG.path.unlink()
        for line in lines:
            details = {"endpoint": line.get("endpoint", ""), "decision": line.get("decision")}
            audit.append(LOG, str(line["event"]), details)
    code, out, err = ml(capsys, "audit", "verify")
    assert code == 3 and "error[audit-broken]" in err
    code, out, err = ml(capsys, "audit", "verify", "--json")
    assert code == 3 and json.loads(out)["sound"] is False


@pytest.mark.attack("A version is declared as a way back that was never merged before")
def test_a_way_back_was_merged_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier commit declared it, and a later one something else."""
    tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    one, two = (
        ReleaseEntry(
            "tiny", number, f"sha256:{number * 64}", "e" * 64, "d" * 64, deployment_digest="c" * 64
        )
        for number in "12"
    )

    def before(entry: ReleaseEntry) -> bool:
        return desired_state.was_declared_before(BACKEND, "tiny", "prod", entry)

    assert not before(one)
    for entry in (one, two):
        desired_state.declare(BACKEND, "tiny", "prod", entry)
        assert not before(entry)
        commit("promote")
        assert not before(entry)
    assert before(one) and not before(replace(one, deployment_digest="b" * 64))
    desired_state.declare(BACKEND, "tiny", "prod", one)
    assert before(one)
    commit("back")
    assert before(one) and before(two)


@pytest.mark.slow
@pytest.mark.attack("prod is declared without staging")
def test_an_environment_waits_for_the_one_before(
    simulated: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plan and apply refuse until staging served this model by this serving code."""
    proposal = propose(BACKEND, "tiny", simulated.run(0.8), "prod")
    assert proposal.decision.outcome == "pending" and proposal.decision.request.simulated
    words = ("tiny", "--env", "prod", "--on", "local")
    code, _, err = ml(capsys, "release", "plan", *words)
    assert code == 3 and "staging has not served this model" in err
    code, _, err = ml(capsys, "release", "apply", *words, "--approved-by", "ana")
    assert code == 3 and "simulated on this machine" in err and "order" in err
    version = BACKEND.registry.find("tiny", "1")
    BACKEND.registry.promote(version, "staging", "a" * 64)  # by other serving code
    assert apply(BACKEND, "tiny", "prod", "ana").outcome == "rejected"  # type: ignore[union-attr]
    tiny.staged()
    assert plan(BACKEND, "tiny", "prod").stops is None


@pytest.mark.slow
@pytest.mark.attack("The evaluation has uncommitted changes")
@pytest.mark.parametrize("hidden", [False, True])
def test_an_uncommitted_evaluation(simulated: World, hidden: bool) -> None:
    """prod refuses it, whatever git says; `local` takes it and says so."""
    script = simulated.project.folder / "evaluate.py"
    if hidden:
        git("update-index", "--skip-worktree", "ml/projects/tiny/evaluate.py")
    script.write_text(script.read_text() + "# Another line.\n")
    with pytest.raises(UserError, match="lineage: evaluated by commit") as raised:
        propose(BACKEND, "tiny", simulated.run(0.8), "prod")
    assert "commit it" in str(raised.value) and "train again" not in str(raised.value)
    made = propose(BACKEND, "tiny", simulated.run(0.8))
    assert made.decision.allowed and made.evidence.lineage.evaluation_dirty is True


@pytest.mark.slow
@pytest.mark.attack("An evaluation that flatters measures the candidate alone")
def test_an_evaluation_that_flatters_is_not_what_the_server_answers(promoted_world: World) -> None:
    """A worse model is scored better by changed code, the champion as before: the gate `serving`
    finds answers that nobody would get, also where a few rows of all are scored so.
    """
    script = promoted_world.project.folder / "evaluate.py"
    script.write_text(script.read_text().replace('["skill"]', '["skill"] + 0.2'))
    commit("an easier evaluation")
    made = propose(BACKEND, "tiny", promoted_world.run(0.7))
    assert made.decision.outcome == "rejected"
    assert [one.gate for one in made.decision.blocking] == ["serving"]


@pytest.mark.attack("The registry says that an environment served what it never declared")
def test_an_environment_has_served_what_the_branch_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry's word alone opens no environment, and neither does a file without a commit."""
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.chdir(root)
    tiny.make(root)
    backend = MemoryBackend(tmp_path / "memory")
    version = backend.registry.register("tiny", "tiny", "sha256:" + "d" * 64, "run")
    backend.registry.promote(version, "dev", "a" * 64)
    hashes = {"evidence": "e" * 64, "decision": "f" * 64, "deployment_digest": "a" * 64}
    entry = ReleaseEntry("tiny", version.version, version.digest, **hashes)

    def served_in() -> tuple[str, ...]:
        known = backend.registry.find("tiny", version.version)
        return request(backend, known, "staging", deployment_digest="a" * 64).served_in

    assert served_in() == ()
    desired_state.declare(BACKEND, "tiny", "dev", replace(entry, deployment_digest="b" * 64))
    commit("another serving code")
    desired_state.declare(BACKEND, "tiny", "dev", entry)
    assert served_in() == ()
    commit("dev")
    assert served_in() == ("dev",)


@pytest.mark.slow
@pytest.mark.attack("Evidence that no trusted workflow made is applied to the real place")
def test_the_real_place_takes_attested_evidence_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulation, another authority, another workflow, edited evidence: the gate refuses all."""
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.chdir(root)
    project, authority = tiny.make(root), Authority()
    git("init", "-q")
    prepare_environments(project.folder, tmp_path / "osv")
    monkeypatch.setenv("MLOPS_ADVISORIES", str(tmp_path / "osv"))
    backend = MemoryBackend(tmp_path / "memory", authority.verifier)
    run = project.train(0.8, backend).name

    def gate(attestor: Workflow | None) -> Result:
        decision = propose(backend, "tiny", run, "dev", attestor=attestor).decision
        return next(one for one in decision.results if one.gate == "attestation")

    refused = gate(None)
    assert refused.verdict == "fail" and "no attestation is kept" in refused.why, refused
    trusted = Workflow(authority)
    assert gate(trusted).verdict == "pass"
    (version,) = backend.registry.versions("tiny")
    assert (version.evidence_folder / ATTESTATION).is_file()
    for attestor, why in (
        (Workflow(Authority()), "no authority"),
        (trusted.of(ref="refs/heads/topic"), "not allowed: ref"),
        (trusted.of(repository="somebody/fork"), "not allowed: repository"),
        (replace(trusted, commit="b" * 40), "another commit"),
    ):
        result = gate(attestor)
        assert result.verdict == "fail" and why in result.why, result

    # A simulated environment that borrows the attestation of the true evidence.
    (simulated,) = backend.registry.versions("tiny")
    other = edited(version, lambda document: document["latency"].update(p95_ms=0.1))
    version = backend.registry.keep_evidence(simulated, other)
    assert (version.evidence_folder / ATTESTATION).is_file()
    checked = judged(backend, version)
    result = next(one for one in checked.decision.results if one.gate == "attestation")
    assert result.verdict == "fail" and "is not that of a subject" in result.why
    # Without the authority of the tests nothing is attested: there is no default.
    backend.verifier = None
    checked = judged(backend, simulated)
    assert "attestation" in [one.gate for one in checked.decision.blocking]


def judged(backend: MemoryBackend, version: Version) -> GateCheck:
    """What the gates say of it now."""
    asked = request(backend, version, "dev")
    return check_gates(backend, projects.find(BACKEND.root, "tiny"), version, asked, record=False)
