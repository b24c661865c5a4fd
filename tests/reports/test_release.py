"""Reports of proposed models: evidence, gates, champion. A report changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.serving import endpoint
from ml.backends.model_registry import Version
from ml.backends.runs import Run
from ml.core import home
from ml.measures.reference import REFERENCE, Columns, write_reference
from ml.release.comparison import Side
from ml.release.declaration import projects
from ml.release.promotion.gate_check import check_gates, request
from ml.release.promotion.propose import propose
from ml.release.watch.limits import Limits
from ml.release.watch.report import compare_requests
from ml.release.watch.requests import CollectedRequests, Row
from ml.reports import facts as facts_module
from ml.reports.facts import Release, find_quality, gather
from ml.reports.pages import report, watch_page
from policies.promotion.evidence import Evidence
from tests.docs.test_site import CHROMIUM, too_wide
from tests.local import BACKEND, LOG
from tests.policies import cases
from tests.release.conftest import Template, World
from tests.reports.html_page import Page

pytestmark = pytest.mark.slow


@pytest.fixture
def world(declared: Template, copied: Callable[[Template], World]) -> World:
    """Version 1 is champion, a better version 2 is declared."""
    return copied(declared)


def beside(ours: Evidence, theirs: Evidence) -> Release:
    """A release with a champion to compare with."""
    version = Version("tiny", "7", cases.DIGEST, "tiny", "r1", "")
    return Release(version, ours, None, "", False, False, Side("version 6", cases.OTHER, theirs))


def test_a_candidate_beside_the_champion(world: World) -> None:
    """The paired difference, the gates' decision, the lineage from data to version."""
    candidate = report(world.runs[0.95], BACKEND)
    summary = " ".join(candidate.sentences)
    assert "The model's gain_at_1 on test is 0.9500" in summary
    assert "baseline 0.5000" in summary
    assert "The paired difference to version 1 is +0.1500" in summary
    assert "The gates pass; tiny 2 needs an approval for local." in summary
    page = Page(candidate.html)
    assert page.problems == []
    assert "Compared with version 1, the champion." in page.text
    titles = re.findall(r"<h2 id=[^>]*>([^<]+)</h2>", candidate.html)
    assert titles[:3] == ["Quality", "Gates", "Latency"]
    assert page.trials("champion")
    assert "✓ non-inferiority pass" in page.text
    assert "200 sequential warm requests" in page.text
    # Its sentences share the width, whatever words are in them.
    gates = candidate.html.partition('<table class="stacked">')[2].partition("</table>")[0]
    assert gates.count('class="words" data-label="required"') == gates.count("<tr>") - 1 > 10
    assert '<td class="words" data-label="actual"></td>' not in gates
    assert world.runs[0.95].id[:12] in page.text
    assert BACKEND.registry.find("tiny", "2").digest.removeprefix("sha256:")[:12] in page.text


def test_small_slices_are_those_that_the_gate_does_not_compare(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the project's own `min_count`, which may be below the organisation's 20."""
    run = world.runs[0.95]
    assert "too few to compare" not in report(run, BACKEND).html
    gate = SimpleNamespace(number={"min_count": 10_000}.get)
    monkeypatch.setattr(facts_module, "load_gates", lambda project: {"fairness": gate})
    slices = [
        value for of in gather(run, BACKEND).quality.evaluation.slices.values() for value in of
    ]  # type: ignore[union-attr]
    assert report(run, BACKEND).html.count("too few to compare") == len(slices) > 0


def test_units_of_a_group_are_resampled_together() -> None:
    """The page's interval is the gates'."""
    release = beside(cases.good(0.8), cases.good(0.7, "6"))
    units = release.evidence.outcomes["test"]
    groups = {"test": {unit: f"customer {int(unit[1:]) // 40}" for unit in units}}
    grouped = replace(release, evidence=replace(release.evidence, groups=groups))
    alone, together = (of.row("test").difference for of in (release, grouped))  # type: ignore[union-attr]
    assert alone and together and alone.low > 0 == together.low


def test_a_champion_on_other_data_is_not_paired() -> None:
    """The two have no units in common; the reason is on the page."""
    theirs = cases.good(0.7, "6")
    moved = {name: replace(data, sha256="f" * 64) for name, data in theirs.data.items()}
    release = beside(cases.good(0.8), replace(theirs, data=moved))
    row = release.row("test")
    assert row and row.difference is None
    assert "not measured on the same data" in release.comparison.unpaired


def test_the_champion(world: World) -> None:
    """Its approver, and that it had no predecessor."""
    candidate = report(world.runs[0.8], BACKEND)
    assert "ana approved tiny 1 for local; it is the champion of local." in " ".join(
        candidate.sentences
    )
    assert "It is the first champion" in Page(candidate.html).text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt install chromium")
def test_pages_of_a_release_have_no_horizontal_scroll_bar(world: World, tmp_path: Path) -> None:
    """That of a released run, and that of its requests with long names of columns."""
    (tmp_path / "release.html").write_text(report(world.runs[0.95], BACKEND).html)
    columns: Columns = {f"a_long_name_of_a_column_{n}": ("categorical", ["a"] * 99) for n in "12"}
    write_reference(tmp_path, "d", columns, {}, {})
    kept = json.loads((tmp_path / REFERENCE).read_text())
    rows = [Row("", dict.fromkeys(columns, "b"), None) for _ in range(99)]
    named = {"model": "tiny", "version": "2", "environment": "local"}
    (tmp_path / "watch.html").write_text(
        watch_page(compare_requests(kept, CollectedRequests(rows), Limits(), **named))
    )
    assert too_wide([tmp_path / "release.html", tmp_path / "watch.html"], tmp_path) == []


def test_a_champion_that_was_applied_again(world: World) -> None:
    """The second apply changes nothing, so the approval and the predecessor stay."""
    champion, approved = BACKEND.registry.find("tiny", "2"), "ana approved tiny 2 for local"
    tiny = projects.find(BACKEND.root, "tiny")
    for expected in ("approved", "already-champion"):
        check = check_gates(
            BACKEND, tiny, champion, request(BACKEND, champion, "local", "apply", approved_by="ana")
        )
        assert check.decision.outcome == expected
        BACKEND.registry.promote(champion, "local")
        (endpoint.folder("tiny") / endpoint.STATE).unlink(missing_ok=True)
        candidate = report(world.runs[0.95], BACKEND)
        assert approved in " ".join(candidate.sentences)
        text = Page(candidate.html).text
        assert "Compared with version 1, the champion that it replaced." in text


def test_a_pipeline_of_which_a_trial_was_proposed(world: World) -> None:
    """Another trial than the best one counts until the pipeline's own model is proposed."""
    pipeline = world.project.pipeline()
    sweep = pipeline.step("sweep")
    other = next(trial for trial in sweep.trials if trial.name != sweep.best)
    assert propose(BACKEND, "tiny", other.name).candidate.version == "3"
    for run in (pipeline, sweep):
        summary = " ".join(report(run, BACKEND).sentences)
        assert "The gates reject tiny 3 for local: non-inferiority" in summary
        assert "have not run" not in summary
    assert propose(BACKEND, "tiny", pipeline.name).candidate.version == "4"
    assert propose(BACKEND, "tiny", other.name).candidate.version == "3"
    assert "tiny 4" in " ".join(report(pipeline, BACKEND).sentences)


def test_a_run_that_was_never_proposed(world: World) -> None:
    """The summary ends with the next command."""
    summary = " ".join(report(world.runs[0.7], BACKEND).sentences)
    assert f"ml release propose tiny --run {world.run(0.7)}" in summary


def test_the_run_of_an_evaluation(world: World) -> None:
    """The run that evaluated version 2 has its release too."""
    evaluated = _evaluation(world.runs[0.95])
    facts = gather(evaluated, BACKEND)
    assert facts.release
    assert facts.release.version.version == "2"
    assert facts.quality
    assert facts.quality.source == f"evaluation.json of {evaluated.name}"


def test_the_released_model_is_shown_where_another_one_was_evaluated(world: World) -> None:
    """A pipeline evaluates the best trial, and another one is proposed: one model in each row."""
    release = gather(_evaluation(world.runs[0.95]), BACKEND).release
    notes: list[str] = []
    quality = find_quality(_evaluation(world.runs[0.8], "1"), release, notes)
    assert release and quality and quality.source == f"evidence.json of {release.name}"
    assert quality.evaluation == release.evidence.evaluation
    (note,) = notes
    assert "evaluated another model" in note


def test_a_report_changes_nothing(world: World, own_home: Path) -> None:
    """The audit log, the registry, the declaration and the evidence are unchanged."""

    def state() -> dict[str, bytes]:
        paths = [LOG.path, *(own_home / "release").glob("*.yml")]
        paths += [path for path in (own_home / "evidence").rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}

    before = state()
    report(world.runs[0.95], BACKEND)
    assert state() == before
    assert [one.version for one in BACKEND.registry.versions("tiny")] == ["1", "2"]


def test_edited_evidence(world: World, own_home: Path) -> None:
    """Its numbers are not on the page."""
    (path,) = (own_home / "evidence" / "tiny" / "2").glob("*/evidence.json")
    document = json.loads(path.read_text())
    document["evaluation"]["metrics"]["test"]["gain_at_1"]["value"] = 0.9999
    path.write_text(json.dumps(document))
    page = Page(report(world.runs[0.95], BACKEND).html)
    assert "is not valid" in page.text
    assert "0.9999" not in page.text


def test_an_edited_audit_log(world: World) -> None:
    """A note replaces the decision."""
    text = LOG.path.read_text()
    LOG.path.write_text(text.replace("ana", "eve"))
    page = Page(report(world.runs[0.95], BACKEND).html)
    assert "The gates' decision is not shown: the audit log was changed" in page.text
    assert page.text.count("non-inferiority") == 0


def _evaluation(trained: Run, version: str = "2") -> Run:
    (path,) = (home.home() / "evidence/tiny" / version).glob("*/evidence.json")
    document = json.loads(path.read_text())
    assert document["lineage"]["run"] == trained.id
    return LocalRuns().find(document["lineage"]["evaluation_run"])
