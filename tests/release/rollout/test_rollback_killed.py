"""A rollback that is killed: what is declared is whole, and rolling back again ends as it would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ml.backends.local.serving import endpoint
from ml.core import home
from ml.release import audit
from ml.release.declaration import desired_state
from ml.release.promotion import propose as proposing
from ml.release.rollout import plan, rollback
from ml.release.rollout.apply import apply
from tests.local import BACKEND, LOG
from tests.release import tiny
from tests.release.conftest import Template, World
from tests.release.killing import killed_at
from tests.release.promotion.test_environments import commit, files, simulated_environments

pytestmark = pytest.mark.slow

IMPORTS = """
from pathlib import Path
from ml.backends.local.backend import LocalBackend
from ml.release import audit
from ml.release.rollout import rollback
from ml.core import files
"""
# What is killed right after that call, and before the one that is negative or nought.
LOCAL = [("files.replace", 1), ("Path.replace", -1), ("audit.append", 0), ("audit.append", 1)]
KILLED = [
    *[("local", *one) for one in LOCAL],
    *[("prod", *one) for one in [*LOCAL, ("files.replace", 2), ("Path.replace", -2)]],
]
# In `make test`, one of each step.
BRIEFLY = {
    *[("local", "files.replace", 1), ("local", "audit.append", 0), ("prod", "audit.append", 1)],
    *[("prod", "files.replace", 2), ("prod", "Path.replace", -1)],
}


@pytest.fixture(scope="module")
def twice(trained: Template, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Versions 1 and 2 went to prod, one after the other; the files of 1 are kept in `first`."""
    with simulated_environments(trained, tmp_path_factory) as made:
        first = made.home / "first"
        for number, skill in enumerate((0.8, 0.95), start=1):
            assert proposing.propose(BACKEND, "tiny", made.names[skill], "prod").decision.allowed
            commit(f"Promote tiny {number} to prod")
            tiny.staged()
            done = apply(BACKEND, "tiny", "prod", "ana")
            assert done and done.outcome == "applied"
            if number == 1:
                first.mkdir()
                for name, text in files().items():
                    (first / name).write_text(text)
        endpoint.stop("tiny-prod")
    return made


@pytest.mark.torture
@pytest.mark.parametrize(
    ("where", "step", "call"),
    [
        pytest.param(*case, marks=[] if case in BRIEFLY else pytest.mark.torture(only=True))
        for case in KILLED
    ],
)
@pytest.mark.attack("A rollback is killed at any of its steps")
def test_a_rollback_killed_at_any_step_is_done_by_the_next(
    declared: Template,
    twice: Template,
    copied: Callable[[Template], World],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    step: str,
    call: int,
) -> None:
    """SIGKILL: the old version is declared with all that belongs to it, or rolling back again
    declares it; never the one before that, and never without a line of the audit log."""
    copied(declared if where == "local" else twice)
    monkeypatch.setenv("MLOPS_ADVISORIES", str(home.home() / "osv"))
    killed_at(step, call, IMPORTS, f'rollback.roll_back(LocalBackend(), "tiny", {where!r})')

    now = desired_state.read(BACKEND, "tiny", where)
    assert now and now.version in ("1", "2")
    again = rollback.roll_back(BACKEND, "tiny", where)
    assert again.declared.version == "1" and bool(again.written) is (now.version == "2")
    now, found = desired_state.read(BACKEND, "tiny", where), plan.plan(BACKEND, "tiny", where)
    assert now and now.version == "1" and not found.stops
    assert [line["to"] for line in audit.verify(LOG) if line["event"] == "rollback"][-1] == "1"
    if where == "prod":
        first = {path.name: path.read_text() for path in (home.home() / "first").iterdir()}
        assert files() == first and found.steps
        done = apply(BACKEND, "tiny", "prod", "ana")
        assert done and (done.outcome, done.version.version, done.canary) == ("applied", "1", None)
    folder = desired_state.path(BACKEND, "tiny", where).parent
    assert not [one for one in folder.rglob(".*") if one.is_file() and Path(one).suffix == ".tmp"]
