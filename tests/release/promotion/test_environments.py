"""dev, staging and prod simulated from a real git repository: promoted, reverted, planned."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ml.backends.azure.workspace import VARIABLES
from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.serving import endpoint
from ml.core.errors import Exit, UserError
from ml.release import audit
from ml.release.declaration import desired_state
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.promotion import propose as proposing
from ml.release.promotion.propose import propose
from ml.release.rollout import plan, rollback
from ml.release.rollout.apply import apply
from ml.release.rollout.invoke import ask
from ml.release.rollout.status import status
from tests.local import BACKEND, LOG
from tests.release import tiny
from tests.release.conftest import Template, World
from tests.release.test_commands import ml

# It needs what a team writes down before its first promotion.
REVIEWS = """
reviews:
  - {gate: fairness, feature_set: FEATURES, owner: ana, expires: DAY, finding: both sides alike}
  - {gate: explainability, feature_set: FEATURES, owner: ana, expires: DAY, finding: nothing odd}
"""
WRITTEN = f"""{REVIEWS}waivers:
  - {{gate: latency, owner: ana, expires: DAY, reason: dev is simulated on this machine}}
"""


def git(*words: str) -> str:
    """The output of a git command here."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True)
    return done.stdout


def commit(words: str) -> None:
    """Commit the whole tree."""
    git("add", "-A")
    git("commit", "-qm", words)


@pytest.fixture
def simulated(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Gates that pass here for prod too: a waiver and reviews in git, and advisories at hand."""
    prepare_environments(world.project.folder, tmp_path / "osv")
    monkeypatch.setenv("MLOPS_ADVISORIES", str(tmp_path / "osv"))
    return world


def prepare_environments(project: Path, osv: Path, written: str = WRITTEN) -> None:
    """Commit a waiver and reviews to the project's gates.yml; make a source of advisories."""
    path = project / "gates.yml"
    written = written.replace("DAY", str(datetime.now(UTC).date())).replace("FEATURES", "f" * 64)
    path.write_text(path.read_text() + written)
    advisories(osv)
    commit("gates for simulated environments")


@contextmanager
def simulated_environments(
    trained: Template, factory: pytest.TempPathFactory
) -> Iterator[Template]:
    """Work in a copy of the template whose gates pass for prod, its latencies known."""
    made = replace(trained, root=factory.mktemp("repository"), home=factory.mktemp("home"))
    for old, new in ((trained.root, made.root), (trained.home, made.home)):
        shutil.copytree(old, new, dirs_exist_ok=True)
    with made.inside(), pytest.MonkeyPatch.context() as patch:
        prepare_environments(made.root / "ml/projects/tiny", made.home / "osv")
        patch.setenv("MLOPS_ADVISORIES", str(made.home / "osv"))
        patch.setattr(proposing, "_measured", tiny.measured)
        yield made


def advisories(osv: Path) -> None:
    """A source of advisories, as many as an export of osv.dev has at least."""
    osv.mkdir()
    package = {"ecosystem": "PyPI", "name": "left-pad"}
    affected = [{"package": package, "versions": ["0"]}]
    record = {"modified": datetime.now(UTC).isoformat(), "affected": affected}
    records = [{**record, "id": f"PYSEC-{number}"} for number in range(5000)]
    (osv / "all.json").write_text(json.dumps(records))


def files() -> dict[str, str]:
    """What a promotion changes in the tree."""
    folder = Path("ml/projects/tiny")
    return {path.name: path.read_text() for path in (folder / "release.yml", evidence())}


def evidence() -> Path:
    """The evidence that travels with a promotion to prod."""
    return Path("ml/projects/tiny/evidence/prod.json")


@pytest.mark.slow
@pytest.mark.attack("release.yml names another digest, version, model or evidence")
def test_what_is_not_as_declared_touches_nothing(simulated: World) -> None:
    """A digest, a version, a model or evidence that is another: refused by plan and apply alike."""
    assert propose(BACKEND, "tiny", simulated.run(0.8), "prod").decision.allowed
    sound = files()
    path, digest = Path("ml/projects/tiny/release.yml"), re.compile("sha256:[0-9a-f]{64}")
    lines = len(audit.verify(LOG))
    cases = {
        "digest-mismatch": lambda text: digest.sub("sha256:" + "0" * 64, text),
        "no-such-version": lambda text: text.replace('version: "1"', 'version: "7"'),
        "model-of-another-project": lambda text: text.replace("model: tiny", "model: other"),
    }
    for code, edited in cases.items():
        path.write_text(edited(sound["release.yml"]))
        assert path.read_text() != sound["release.yml"]
        with pytest.raises(UserError) as raised:
            apply(BACKEND, "tiny", "prod", "ana")
        problem = raised.value.problems[0]
        assert problem.code == code and problem.place
        assert problem.place.path == str(path) and problem.place.line > 5
        found = plan.plan(BACKEND, "tiny", "prod")
        assert found.stops and found.stops.problems[0].code == code and not found.steps
    path.write_text(sound["release.yml"])
    evidence().write_text(sound["prod.json"].replace("0.8", "0.9"))
    with pytest.raises(UserError) as raised:
        apply(BACKEND, "tiny", "prod", "ana")
    assert raised.value.problems[0].code == "evidence-edited"
    assert raised.value.exit_code == Exit.GATE_SAID_NO
    assert plan.plan(BACKEND, "tiny", "prod").stops
    evidence().unlink()
    with pytest.raises(UserError):
        apply(BACKEND, "tiny", "prod", "ana")
    path.write_text(sound["release.yml"].replace("decision:", "decisions:"))
    for act in (
        lambda: apply(BACKEND, "tiny", "prod", "ana"),
        lambda: plan.plan(BACKEND, "tiny", "prod"),
    ):
        with pytest.raises(UserError) as raised:
            act()
        assert raised.value.problems[0].code == "unknown-field"
    assert len(audit.verify(LOG)) == lines and endpoint.live("tiny-prod") is None


@pytest.mark.slow
def test_uncommitted_code_goes_to_local_only(simulated: World) -> None:
    """The tree was changed when the model was trained: prod refuses, and is not declared."""
    script = simulated.project.folder / "train.py"
    script.write_text(script.read_text() + "# changed\n")
    dirty = simulated.project.train(0.9)
    before = len(list(LocalRuns().all()))
    with pytest.raises(UserError, match="lineage: trained by commit") as raised:
        propose(BACKEND, "tiny", dirty.name, "prod")
    assert "commit it and train again" in str(raised.value)
    assert (
        len(list(LocalRuns().all())) == before
        and desired_state.read(BACKEND, "tiny", "prod") is None
    )
    here = propose(BACKEND, "tiny", dirty.name)
    assert here.decision.allowed and here.evidence.lineage.dirty is True


@pytest.mark.slow
def test_what_waits_to_be_applied_has_to_be_beaten_too(
    challenged: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worse version does not take the place of a better one that is declared, until that is taken
    back; a better one does. A worse one that a hand declares is refused when it is applied."""
    waiting, why = desired_state.read(BACKEND, "tiny", "local"), "it forgets a withdrawn answer"
    third = propose(BACKEND, "tiny", challenged.run(0.8025), reason=why)
    assert third.decision.outcome == "rejected"
    assert (third.decision.champion, third.champion.version) == ("2", "1")
    assert desired_state.read(BACKEND, "tiny", "local") == waiting
    assert rollback.roll_back(BACKEND, "tiny").declared.version == "1"
    assert propose(BACKEND, "tiny", challenged.run(0.8025), reason=why).decision.allowed
    entry = desired_state.read(BACKEND, "tiny", "local")
    assert entry and entry.version == "3"
    assert propose(BACKEND, "tiny", challenged.run(0.95)).unapplied == "3"
    second = desired_state.read(BACKEND, "tiny", "local")
    assert second
    done = apply(BACKEND, "tiny", "local", "ana")
    assert done and (done.outcome, done.version.version) == ("applied", "2")
    desired_state.declare(BACKEND, "tiny", "local", entry)
    code, out, err = ml(capsys, "release", "plan", "tiny")
    assert code == 3 and "rejected: gates that failed for version 3" in out and "superiority" in err
    done = apply(BACKEND, "tiny", "local", "ana")
    assert (
        done
        and done.outcome == "rejected"
        and ask(BACKEND, "tiny", {"question": "how?"}).version == "2"
    )
    is_now = status(BACKEND, "tiny", "local")[0]
    assert is_now.last_attempt and is_now.last_attempt.outcome == "rejected"
    assert "non-inferiority" in is_now.last_attempt.why
    code, out, _ = ml(capsys, "release", "status", "tiny")
    assert code == 0 and "signed off by ana" in out and "last      version 3 rejected" in out
    # What was never live is taken back.
    code, out, _ = ml(capsys, "release", "rollback", "tiny", "--reason", "a mistake", "--json")
    assert code == 0 and json.loads(out)["replaced"]["version"] == "3"
    code, _, err = ml(capsys, "release", "rollback", "tiny")
    assert code == 0 and "tiny 2 is declared already" in err and "--version 1" in err
    code, _, err = ml(capsys, "release", "rollback", "tiny", "--version", "1")
    assert code == 0 and "tiny 1 is declared in place of 2" in err
    code, out, _ = ml(capsys, "release", "plan", "tiny")
    assert code == 0 and "no canary: this version served here before" in out
    assert propose(BACKEND, "tiny", challenged.run(0.95)).decision.outcome == "already-champion"
    desired_state.declare(BACKEND, "tiny", "local", second)
    done = apply(BACKEND, "tiny", "local", "ana")
    assert done and done.outcome == "unchanged"


@pytest.mark.slow
def test_environments_do_not_disturb_each_other(
    simulated: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a tracked environment too what waits has to be beaten; a version that is measured again
    for another environment stays what the first declares."""
    assert propose(BACKEND, "tiny", simulated.run(0.95), "prod").decision.allowed
    waiting, before = desired_state.read(BACKEND, "tiny", "prod"), files()
    words = ("tiny", "--run", simulated.run(0.8), "--env", "prod", "--reason", "it is smaller")
    code, _, err = ml(capsys, "release", "propose", *words)
    assert code == 3 and "version 1 is declared and was never applied" in err
    assert "next: ml gate" not in err  # it compares with the champion
    assert desired_state.read(BACKEND, "tiny", "prod") == waiting and files() == before

    assert propose(BACKEND, "tiny", simulated.run(0.95), "dev").decision.allowed
    again = desired_state.read(BACKEND, "tiny", "dev")
    assert again and waiting and (again.version, again.digest) == (waiting.version, waiting.digest)
    assert again.evidence != waiting.evidence and files()["prod.json"] == before["prod.json"]
    tiny.staged()
    for environment in ("prod", "dev"):
        done = apply(BACKEND, "tiny", environment, "ana")
        assert done and (done.outcome, done.version.version) == ("applied", "1")
    assert endpoint.live("tiny") is None and BACKEND.registry.champion("tiny", "local") is None


def test_environments_on_azure_need_a_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 names the settings, `local` is here; an environment without a model is no error."""
    tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for words in (("apply", "tiny", "--env", "prod"), ("plan", "tiny", "--env", "dev")):
        code, out, err = ml(capsys, "release", *words)
        assert (code, out) == (2, "") and "error[no-workspace-named]" in err
    code, out, err = ml(capsys, "release", "apply", "tiny", "--on", "azure")
    assert (code, out) == (33, "") and "error[local-environment]" in err
    for environment in desired_state.ENVIRONMENTS:
        words = ("tiny", "--env", environment, "--on", "local")
        code, out, err = ml(capsys, "release", "apply", *words)
        assert (code, out) == (0, "") and "no model yet" in err and "ml release propose" in err
        code, out, _ = ml(capsys, "release", "apply", *words, "--json")
        assert code == 0 and json.loads(out)["outcome"] == "nothing-declared"
        code, out, _ = ml(capsys, "release", "plan", *words)
        assert code == 0 and "no model yet" in out
        code, out, _ = ml(capsys, "release", "plan", *words, "--json")
        assert code == 0 and not json.loads(out)["to_do"]


def test_a_second_apply_says_that_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on when the first has ended; another environment is not held up."""
    tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    waits, done = threading.Event(), threading.Event()

    def second() -> None:
        apply(BACKEND, "tiny", "prod", waiting=lambda _: waits.set())
        done.set()

    other = threading.Thread(target=second)
    with desired_state.rollout_lock("tiny", "prod", waiting=lambda: None):
        other.start()
        assert waits.wait(60) and not done.is_set()
        assert apply(BACKEND, "tiny", "dev") is None
    other.join(60)
    assert done.is_set()


def test_rollback_needs_something_to_go_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing declared, or nothing that served before."""
    tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError) as raised:
            rollback.roll_back(BACKEND, "tiny", "dev")
        assert raised.value.problems[0].code == "no-earlier-version"
        one = ReleaseEntry("tiny", "1", "sha256:" + "1" * 64, "e" * 64, "d" * 64)
        desired_state.declare(BACKEND, "tiny", "dev", one)
    assert desired_state.read(BACKEND, "tiny", "dev") == one
