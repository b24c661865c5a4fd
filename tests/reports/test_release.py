"""A report of a model that was proposed: evidence, gates, champion; and that it only reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.base import Run
from ml.backends.local.runs import runs
from ml.backends.registry import Version
from ml.core import home
from ml.release.log import audit
from ml.reports.facts import gather
from ml.reports.pages import report
from ml.reports.release import Release
from tests.local import BACKEND
from tests.policies import cases
from tests.release.conftest import Template, World
from tests.reports.made import STORE
from tests.reports.reading import Page

pytestmark = pytest.mark.slow


@pytest.fixture
def world(declared: Template, copied: Callable[[Template], World]) -> World:
    """Version 1 is champion, a better version 2 is declared."""
    return copied(declared)


def test_a_candidate_beside_the_champion(world: World) -> None:
    """By how much it is better, what the gates said, the chain from data to version."""
    made = report(world.runs[0.95], STORE)
    said = " ".join(made.sentences)
    assert "The model's gain_at_1 on test is 0.9500" in said
    assert "baseline 0.5000" in said
    assert "The paired difference to version 1 is +0.1500" in said
    assert "The gates pass; tiny 2 needs an approval for local." in said
    page = Page(made.html)
    assert page.problems == []
    assert "Compared with version 1, the champion." in page.text
    assert page.count("circle", "champion") > 0
    assert "✓ non-inferiority pass" in page.text
    assert "200 warm requests" in page.text
    assert world.runs[0.95].id[:12] in page.text
    assert BACKEND.registry.find("tiny", "2").digest.removeprefix("sha256:")[:12] in page.text


def test_units_of_a_group_are_resampled_together() -> None:
    """The page's interval is the gates'."""
    ours, theirs = cases.good(0.8), cases.good(0.7, "6")
    groups = {unit: f"customer {int(unit[1:]) // 40}" for unit in ours.outcomes["test"]}
    version = Version("tiny", "7", cases.DIGEST, "tiny", "r1", "")
    apart = Release(version, ours, {}, None, "", False, False, version, theirs)
    together = replace(apart, evidence=replace(ours, groups={"test": groups}))
    by, again = apart.paired_difference("test"), together.paired_difference("test")
    assert by and again and by.low > 0 == again.low


def test_the_champion(world: World) -> None:
    """Who approved it, and that there was none before it."""
    made = report(world.runs[0.8], STORE)
    assert "ana approved tiny 1 for local; it is the champion of local." in " ".join(made.sentences)
    assert "there was none before it" in Page(made.html).text


def test_a_run_that_was_never_proposed(world: World) -> None:
    """What to type next."""
    said = " ".join(report(world.runs[0.7], STORE).sentences)
    assert f"ml release propose PROJECT --run {world.run(0.7)}" in said


def test_the_evaluation_itself(world: World) -> None:
    """The run that measured version 2 leads to it as well."""
    evaluated = _evaluation(world.runs[0.95])
    facts = gather(evaluated, STORE)
    assert facts.release
    assert facts.release.version.version == "2"
    assert facts.quality
    assert facts.quality.source == f"evaluation.json of {evaluated.name}"


def test_a_report_only_reads(world: World, own_home: Path) -> None:
    """The audit log, the registry, the declaration and the evidence are as they were."""

    def state() -> dict[str, bytes]:
        kept = [audit.path(), *(own_home / "release").glob("*.yml")]
        kept += [path for path in (own_home / "evidence").rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in kept}

    before = state()
    report(world.runs[0.95], STORE)
    assert state() == before
    assert [one.version for one in BACKEND.registry.versions("tiny")] == ["1", "2"]


def test_evidence_that_was_edited(world: World, own_home: Path) -> None:
    """Its numbers are not shown as if they were true."""
    (path,) = (own_home / "evidence" / "tiny" / "2").glob("*/evidence.json")
    document = json.loads(path.read_text())
    document["metrics"]["test"]["gain_at_1"]["value"] = 0.9999
    path.write_text(json.dumps(document))
    page = Page(report(world.runs[0.95], STORE).html)
    assert "is not valid" in page.text
    assert "0.9999" not in page.text


def test_an_audit_log_that_was_edited(world: World) -> None:
    """The decision is left out and the reason said."""
    text = audit.path().read_text()
    audit.path().write_text(text.replace("ana", "eve"))
    page = Page(report(world.runs[0.95], STORE).html)
    assert "The gates' decision is not shown: the audit log was changed" in page.text
    assert page.text.count("non-inferiority") == 0


def _evaluation(trained: Run) -> Run:
    (path,) = (home.home() / "evidence/tiny/2").glob("*/evidence.json")
    document = json.loads(path.read_text())
    assert document["lineage"]["run"] == trained.id
    return runs.find(document["lineage"]["evaluation_run"])
