"""A proposal that is killed: at every step the release can be read, says what is wrong, goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ml.backends.local.runs.store import LocalRuns
from ml.core import home
from ml.core.errors import UserError
from ml.release.declaration import desired_state, projects, release_file
from ml.release.evidence.verification import checks
from ml.release.promotion import gate_check
from ml.release.promotion import propose as proposing
from ml.release.rollout import plan
from ml.release.rollout.apply import apply
from tests.local import BACKEND
from tests.release import tiny
from tests.release.conftest import Template, World
from tests.release.killing import killed_at
from tests.release.promotion.test_environments import commit, evidence, git, simulated_environments

pytestmark = pytest.mark.slow

RELEASE = Path("ml/projects/tiny/release.yml")
IMPORTS = """
from pathlib import Path
from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs.store import LocalRuns
from ml.release import audit
from ml.release.promotion import gate_check, propose as proposing
from ml.backends.local.model_registry import LocalRegistry
from ml.core import files
from tests.release import tiny
"""
# What takes seconds is done before: an evaluation is found, a latency is known.
WORK = """
proposing.evaluate = lambda *_: LocalRuns().find({evaluated!r})
proposing._measured = tiny.measured
proposing.propose(LocalBackend(), "tiny", {run!r}, "prod")
"""
# What is killed right after that call, and before the one that is negative or nought.
# Files are replaced in this order: the bill of materials and the evidence, in a folder that gets
# its name then; the serving code and settings; their samples; release.yml; the evidence beside it.
KILLED = [
    *[
        ("proposing.store", 1),
        ("LocalRegistry.register", 1),
        ("audit.append", 1),
        ("audit.append", 2),
    ],
    *[("files.replace", call) for call in (1, 2, 3, 4, 5, 6)],
    *[("LocalRegistry.keep_evidence", call) for call in (0, 1)],
    *[("Path.replace", call) for call in (-5, -6)],
]
# In `make test`, one of each step; the others take a minute.
BRIEFLY = {
    *[("proposing.store", 1), ("LocalRegistry.register", 1), ("audit.append", 2)],
    *[("files.replace", 3), ("files.replace", 5), ("LocalRegistry.keep_evidence", 1)],
    ("Path.replace", -6),
}
# Those after which release.yml declares what its evidence is not yet of.
BETWEEN = {("files.replace", 5), ("Path.replace", -6)}


@dataclass(frozen=True)
class Waiting:
    """Version 1 waits in prod; the model of skill 0.95 is `evaluated` (a run), not registered."""

    template: Template
    evaluated: str


@pytest.fixture(scope="module")
def waiting(trained: Template, tmp_path_factory: pytest.TempPathFactory) -> Waiting:
    """Made once, in a repository and a home of its own."""
    with simulated_environments(trained, tmp_path_factory) as made:
        assert proposing.propose(BACKEND, "tiny", made.names[0.8], "prod").decision.allowed
        commit("version 1 waits")
        model = LocalRuns().find(made.names[0.95]).outputs["model"]
        project = projects.find(BACKEND.root, "tiny")
        evaluation = gate_check.evaluation_plan(project, model)
        return Waiting(made, gate_check.evaluate(BACKEND, project, evaluation).name)


@pytest.mark.torture
@pytest.mark.parametrize(
    ("step", "call"),
    [
        pytest.param(*case, marks=[] if case in BRIEFLY else pytest.mark.torture(only=True))
        for case in KILLED
    ],
)
@pytest.mark.attack("A proposal is killed at any of its steps")
def test_a_proposal_killed_at_any_step_is_made_again(
    waiting: Waiting,
    copied: Callable[[Template], World],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    call: int,
) -> None:
    """SIGKILL: the declaration is the old one or the new one, whole; where its evidence is not yet
    beside it, plan and apply say so; proposing again ends as if nothing had happened."""
    run = copied(waiting.template).run(0.95)
    monkeypatch.setenv("MLOPS_ADVISORIES", str(home.home() / "osv"))
    work = WORK.format(evaluated=waiting.evaluated, run=run)
    killed_at(step, call, IMPORTS, work)

    tiny.staged()
    entry, found = (
        desired_state.read(BACKEND, "tiny", "prod"),
        plan.plan(BACKEND, "tiny", "prod"),
    )
    assert entry and entry.version in ("1", "2")
    attached = hashlib.sha256(evidence().read_bytes()).hexdigest() == entry.evidence
    assert attached is ((step, call) not in BETWEEN)
    if attached:
        assert found.steps and not found.stops
    else:
        assert found.stops and found.stops.problems[0].code == "evidence-edited"
        assert "propose the version again" in found.stops.problems[0].hint
        with pytest.raises(UserError, match="evidence-edited"):
            apply(BACKEND, "tiny", "prod", "ana")
        assert [one.code for one in release_file.check(RELEASE)] == ["evidence-edited"]

    monkeypatch.setattr(proposing, "_measured", tiny.measured)
    monkeypatch.setattr(proposing, "evaluate", lambda *_: LocalRuns().find(waiting.evaluated))
    again = proposing.propose(BACKEND, "tiny", run, "prod")
    assert again.candidate.version == "2" and again.decision.allowed and len(again.written) == 2
    tiny.staged()
    entry, found = (
        desired_state.read(BACKEND, "tiny", "prod"),
        plan.plan(BACKEND, "tiny", "prod"),
    )
    assert entry and entry.version == "2" and found.steps and not found.stops
    every = BACKEND.registry.versions("tiny")
    assert [one.version for one in every] == ["1", "2"]
    assert all(check.sound for one in every for check in checks(one))
    changed = {line[3:] for line in git("status", "--porcelain", "-uall").splitlines()}
    assert changed == {str(RELEASE), str(evidence())}
    assert not list((home.home() / "evidence").rglob(".*"))
