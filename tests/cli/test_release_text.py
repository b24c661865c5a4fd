"""What `ml release status` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ml.cli.render.release_text import facts_text, status_text
from ml.measures.schema import Estimate
from ml.release.audit import Attempt
from ml.release.declaration import desired_state
from ml.release.rollout.status import Status, status
from tests.local import BACKEND
from tests.policies import cases

SERVED = Status(
    project="tiny",
    environment="prod",
    endpoint="tiny-prod",
    model="tiny",
    declared="2",
    digest="sha256:" + "a" * 64,
    champion="2",
    serving="2",
    url="http://127.0.0.1:8000",
    beside="",
    signed_off="ana",
    last_attempt=None,
    refused=(),
    audit="",
    verdict="as declared",
)


def test_a_deleted_project_is_not_listed(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its declaration in the local home stays when its folder is removed."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    (own_home / "release").mkdir()
    (own_home / "release" / "removed.yml").write_text("schema_version: 1\nenvironments: {}\n")
    assert desired_state.projects(BACKEND) == ["removed"]
    assert status(BACKEND) == []


def test_the_status_says_nothing_twice(snapshot: SnapshotAssertion) -> None:
    """Champion, last attempt and audit have a line where they differ from what is declared. Nobody
    stands for a server that was stopped.
    """
    applied = Attempt("2026-11-28T15:05:00", "applied", "2", "", "ana")
    served = replace(SERVED, last_attempt=applied, audit="verified")
    other = replace(served, champion="1", serving="1", audit="the decision is not in the audit log")
    states = {
        "as declared": served,
        "stopped": replace(SERVED, serving=None, url=None),
        "another champion": other,
        "rejected": replace(other, last_attempt=replace(applied, outcome="rejected")),
    }
    assert {name: status_text(state).splitlines() for name, state in states.items()} == snapshot


def test_the_facts_of_a_proposal() -> None:
    """The metric with its interval, the strongest feature, the contributions; a name of a job does
    not steer a terminal.
    """
    good = cases.good().evaluation
    assert facts_text(good).splitlines() == [
        "gain_at_1 on test: 0.8 (0.76–0.84)",
        "strongest feature alone: words, feature.auc 0.85",
        "largest contributions: words 0.60, length 0.40",
    ]
    assert facts_text(replace(good, contributions=(), leakage=())).endswith("contributions: none")
    beside = replace(good, linear={"gain_at_1": 0.85})
    assert facts_text(beside).splitlines()[1] == "linear model beside it: gain_at_1 0.85"
    split = good.slice_split or ""
    for auc, linear, is_told in ((0.89, 0.76, True), (0.89, 0.8, False), (0.84, 0.7, False)):
        metrics = {split: {**good.metrics[split], "auc": Estimate(auc, auc, auc, 100)}}
        better = replace(good, metrics=metrics, linear={"auc": linear})
        assert ("check the largest contributions for leakage" in facts_text(better)) is is_told
    hostile = replace(good, leakage=(replace(good.leakage[1], of="a\n\x1b[2K"),))
    assert r"alone: a\n\x1b[2K, feature.auc" in facts_text(hostile)
