"""Rollback by the history of release.yml on the branch."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ml.backends.model_registry import EVIDENCE_FILE, Version
from ml.core.errors import UserError
from ml.release import audit
from ml.release.declaration import desired_state
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.rollout.rollback import roll_back
from tests.local import BACKEND, LOG
from tests.release import tiny


def git(*words: str) -> None:
    """Run git here."""
    who = ("-c", "user.name=ana", "-c", "user.email=ana@example.org")
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


def declared(version: str) -> ReleaseEntry:
    """A declaration of that version, and its evidence on this machine."""
    of = ReleaseEntry("tiny", version, f"sha256:{version * 64}", "e" * 63 + version, version * 64)
    folder = Version(of.model, of.version, of.digest, "tiny", "", of.evidence).evidence_folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EVIDENCE_FILE).write_text(version)
    return of


def commit(version: str, environment: str = "prod") -> None:
    """Declare it and commit."""
    desired_state.declare(BACKEND, "tiny", environment, declared(version))
    git("add", "-A")
    git("commit", "-qm", f"{environment} {version}")


def happened(event: str, version: str) -> None:
    """Add a line of a rollout to the audit log."""
    of = {"endpoint": "tiny-prod", "model": "tiny", "version": version, "decision": version * 64}
    audit.append(
        LOG, event, {**of, "digest": f"sha256:{version * 64}", "deployment_digest": "5" * 64}
    )


def registered(model: str, version: str) -> Version:
    """The version as a registry has it."""
    of = declared(version)
    return Version(model, version, of.digest, "tiny", "", of.evidence)


REGISTRY = SimpleNamespace(find=registered, shared=None)
ENDPOINTS = SimpleNamespace(name_of="{}-{}".format, live=lambda name: None)
RELEASED: Any = SimpleNamespace(
    name="local", root=Path(), registry=REGISTRY, audit_log=LOG, endpoints=ENDPOINTS
)


def back(to: str | None = None) -> str:
    """The version that a rollback of prod declares."""
    return roll_back(RELEASED, "tiny", "prod", to=to).declared.version


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny project in a repository of its own, with nothing declared."""
    tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_an_invalid_version_comes_last() -> None:
    """It is not the default where another one is there; test_champion goes back to the only one."""
    for version in ("1", "2", "3"):
        commit(version)
    gates = Path("ml/projects/tiny/gates.yml")
    expires = datetime.now(UTC).date() + timedelta(days=30)
    stated = f"version: 2, digest: {declared('2').digest}, owner: ana, expires: {expires}"
    gates.write_text(f"{gates.read_text()}invalid_versions: [{{{stated}, reason: leaks}}]\n")
    assert back() == "1"


def test_the_version_before_is_that_of_the_branch() -> None:
    """Without a line of an audit log, as on another machine; commits for other environments and a
    rollback that was committed are no versions of their own.
    """
    commit("1")
    with pytest.raises(UserError, match="no-earlier-version"):
        back()
    commit("2")
    commit("9", "dev")
    found = roll_back(RELEASED, "tiny", "prod")
    assert found.declared == declared("1") and found.replaced == declared("2")
    assert [path.read_text() for path in found.written[1:]] == ["1"]
    git("add", "-A")
    git("commit", "-qm", "back")
    assert roll_back(RELEASED, "tiny", "prod").written == ()
    commit("3")
    assert back() == "1"


@pytest.mark.parametrize(
    ("events", "version"),
    [
        ([("applied", "1"), ("applied", "2"), ("applied", "3")], "2"),
        ([("applied", "1"), ("rolled-back", "2"), ("applied", "3")], "1"),
        ([("applied", "1"), ("applied", "3")], "1"),  # 2 was never applied
        ([("rolled-back", "2"), ("applied", "1"), ("applied", "2"), ("applied", "3")], "2"),
        ([("applied", "1"), ("applied", "2"), ("rolled-back", "3")], "2"),
    ],
)
def test_versions_that_are_not_good_are_passed_over(
    events: list[tuple[str, str]], version: str
) -> None:
    """What a canary refused, and what never served where others did."""
    for number in "123":
        commit(number)
    for event in events:
        happened(*event)
    assert back() == version


def test_a_merge_is_one_step_of_the_branch() -> None:
    """A pull request declared 2, then 3: only 3 was ever on the branch."""
    commit("1")
    git("checkout", "-qb", "proposal")
    commit("2")
    commit("3")
    git("checkout", "-q", "-")
    git("merge", "-q", "--no-ff", "-m", "merge", "proposal")
    assert back() == "1"


def test_a_declaration_that_is_not_committed_goes_back_by_the_audit_log() -> None:
    """The commits do not say what served before it."""
    commit("1")
    for version in "1234":
        happened("applied", version)
    desired_state.declare(BACKEND, "tiny", "prod", declared("4"))
    assert back() == "3"


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "by the audit log"])
def test_a_rollback_typed_twice_goes_back_once(committed: bool) -> None:
    """The second one writes nothing; further back goes who names the version, and no further than
    what served.
    """
    for version in "123":
        commit(version) if committed else desired_state.declare(
            BACKEND, "tiny", "prod", declared(version)
        )
        happened("applied", version)
    assert back() == "2"
    for _ in range(2):
        again = roll_back(RELEASED, "tiny", "prod")
        assert (again.declared.version, again.written) == ("2", ())
    if committed:
        git("commit", "-qam", "back")
    happened("applied", "2")
    assert roll_back(RELEASED, "tiny", "prod", to="2").written == ()
    assert roll_back(RELEASED, "tiny", "prod").further == ("1" if committed else "1@55555555",)
    with pytest.raises(UserError, match="version 3 did not serve before version 2"):
        back("3")
    assert back("1") == "1"
    assert roll_back(RELEASED, "tiny", "prod").written == ()


def test_a_version_that_fails_on_its_way_back_is_passed_over() -> None:
    """Its server does not start: the next rollback goes on."""
    for version in "123":
        commit(version)
        happened("applied", version)
    assert back() == "2"
    happened("rolled-back", "2")
    assert back() == "1"


def test_a_version_that_is_proposed_again_can_be_gone_back_from() -> None:
    """Declared by a decision of its own, it is no rollback."""
    for version in "12":
        commit(version)
        happened("applied", version)
    assert back() == "1"
    desired_state.declare(BACKEND, "tiny", "prod", replace(declared("2"), decision="c" * 64))
    assert back() == "1"


def test_the_same_version_by_earlier_code_is_named_by_its_digest() -> None:
    """A score.py that changed twice: both are version 1."""
    for code in "abc":
        of = replace(declared("1"), deployment_digest=code * 64, decision=code * 64)
        desired_state.declare(BACKEND, "tiny", "prod", of)
        audit.append(LOG, "applied", {**vars(of), "endpoint": "tiny-prod"})
    assert roll_back(RELEASED, "tiny", "prod").declared.deployment_digest == "b" * 64
    done = roll_back(RELEASED, "tiny", "prod", to="1")
    assert (done.written, done.further) == ((), (f"1@{'a' * 8}",))
    with pytest.raises(UserError, match="one of: 1@aaaaaaaa"):
        back("1@ccc")
    assert (
        roll_back(RELEASED, "tiny", "prod", to=done.further[0]).declared.deployment_digest
        == "a" * 64
    )
