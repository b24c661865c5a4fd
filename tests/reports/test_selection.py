"""`ml select` on runs of this machine, and its section in the report."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from ml.backends.local.runs.store import LocalRuns
from ml.core.errors import UserError
from ml.release.selection.selection import Selected, choose
from ml.reports.pages import report
from tests.local import BACKEND
from tests.release.test_commands import ml
from tests.reports import run_records
from tests.reports.html_page import Page
from tests.reports.run_records import TrialRecord

SPEC = "ml/projects/tiny/jobs/pipeline.yml:30"
WEIGHTS = """schema_version: 1
quality: {weight: 1, reference: 0.01}
latency: {weight: 0.5, reference: 10}
cost: {weight: 0.1, reference: 60, predictions: 10000}
stability: {weight: 1, reference: 0.01}
"""


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The select.yml of a project in a repository of its own, in which the test works."""
    path = tmp_path / "ml/projects/tiny/select.yml"
    path.parent.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    path.write_text(WEIGHTS)
    monkeypatch.chdir(tmp_path)
    return path


def logged(milliseconds: float, seconds: float = 1.0, spread: float = 0.001) -> dict[str, float]:
    """What a trial says of itself under the names that a select.yml has by default."""
    return {
        "predict_p50_ms": milliseconds,
        "predict_cpu_ms": milliseconds,
        "training_seconds": seconds,
        "score_std": spread,
    }


def three() -> list[TrialRecord]:
    """Trial 0 is best by the metric, trial 1 nearly as good and much faster, 2 is poor."""
    return [
        TrialRecord([0.5, 0.80, 0.79], {"x": 0}, metrics=logged(60.0)),
        TrialRecord([0.5, 0.79], {"x": 1}, metrics=logged(6.0)),
        TrialRecord([0.6], {"x": 2}, metrics=logged(7.0)),
    ]


def chosen(*names: str, **given: str) -> Selected:
    return choose(BACKEND, [LocalRuns().find(name) for name in names or ("latest",)], **given)


def test_a_sweep_with_the_weights_of_its_project(home: Path) -> None:
    """The metric counts by its best value, like in the sweep, the others by their last."""
    run_records.sweep(three(), spec=SPEC)
    selected = chosen()
    assert selected.project == "tiny" and selected.notes == ()
    assert [one.candidate.label for one in selected.selection.ranked] == [
        *("trial 1", "trial 0", "trial 2")
    ]
    assert selected.selection.by_metric.candidate.terms["quality"] == 0.80
    first = selected.selection.by_score
    assert first is not None and first.candidate.terms["cost"] == 1.0 + 10_000 * 6.0 / 1000
    assert set(selected.runs) == {f"brave_lake_01_{number}" for number in range(3)}


def test_trials_that_are_not_ranked(home: Path) -> None:
    """Stopped, failed and diverged trials are not candidates; notes count them."""
    others = [
        TrialRecord([0.9], {"x": 3}, "Canceled", "bandit", metrics=logged(1.0)),
        TrialRecord([], {"x": 4}, "Failed", error=run_records.failed()),
        TrialRecord([0.95, math.nan], {"x": 5}, metrics=logged(1.0)),
        TrialRecord([], {"x": 6}, metrics=logged(1.0)),
    ]
    run_records.sweep([*three(), *others], spec=SPEC)
    selected = chosen()
    assert len(selected.selection.ranked) == 3
    assert selected.notes == (
        "trial 5, trial 6: not ranked, no usable score",
        "not ranked: 1 stopped early by bandit, 1 failed",
    )


def test_without_weights_quality_alone_counts(home: Path) -> None:
    """The spec is outside of every project: the ranking is the metric's."""
    run_records.sweep(three())
    selected = chosen()
    assert selected.project == "" and "only quality counts" in selected.notes[0]
    assert selected.selection.by_score is not None
    assert selected.selection.by_score.candidate.label == "trial 0"


def test_a_pipeline_stands_for_its_sweep(home: Path) -> None:
    """Steps that are not trials are not candidates."""
    run_records.pipeline()
    assert [one.candidate.name for one in chosen().selection.ranked] == [
        *("calm_lake_01.search_1", "calm_lake_01.search_0")
    ]


def test_single_runs_need_a_metric(home: Path) -> None:
    """Runs outside of a sweep are ranked once the metric and its goal are given."""
    run_records.command("calm_river_01", curves={"loss": [2.0, 1.0]})
    run_records.command("calm_river_02", curves={"loss": [3.0, 0.5]})
    names = ("calm_river_01", "calm_river_02")
    with pytest.raises(UserError, match="metric-required") as refused:
        chosen(*names)
    assert "they logged: loss" in refused.value.problems[0].hint
    with pytest.raises(UserError, match="goal-required") as refused:
        chosen(*names, metric="loss")
    assert "--goal maximize" in refused.value.problems[0].hint
    selected = chosen(*names, metric="loss", goal="minimize")
    assert [one.candidate.label for one in selected.selection.ranked] == [*reversed(names)]
    with pytest.raises(UserError, match="metric-not-logged") as refused:
        chosen(*names, metric="lost", goal="minimize")
    assert "--metric loss" in refused.value.problems[0].hint


def test_a_trial_by_its_own_name(home: Path) -> None:
    """The metric is that of its sweep."""
    run_records.sweep(three(), spec=SPEC)
    selected = chosen("brave_lake_01_0", "brave_lake_01_2")
    assert [one.candidate.label for one in selected.selection.ranked] == [
        *("brave_lake_01_0", "brave_lake_01_2")
    ]
    assert selected.selection.metric == "score" and selected.project == "tiny"


def test_runs_of_several_projects_are_refused(home: Path) -> None:
    """Each project has its own weights."""
    run_records.sweep(three(), spec=SPEC)
    run_records.sweep(three(), "calm_lake_02", spec="ml/projects/other/jobs/sweep.yml:1")
    with pytest.raises(UserError, match="several-projects"):
        chosen("brave_lake_01", "calm_lake_02")


def test_the_command(
    home: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    """The table on stdout, the words and the next command on stderr."""
    run_records.sweep(three(), spec=SPEC)
    code, out, err = ml(capsys, "select", "brave_lake_01", "--limit", "2")
    assert code == 0 and out == snapshot(name="stdout")
    assert err == snapshot(name="stderr")


def test_the_command_with_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An infinity is text, and a missing term is named."""
    trials = [*three(), TrialRecord([0.7], {"x": 3}, metrics={"predict_p50_ms": math.inf})]
    run_records.sweep(trials, spec=SPEC)
    output = json.loads(ml(capsys, "select", "--json")[1], parse_constant=pytest.fail)
    assert output["first_by_score"] == "brave_lake_01_1"
    assert output["first_by_metric"] == "brave_lake_01_0"
    assert output["weights"].endswith("tiny/select.yml")
    last = output["ranked"][-1]
    assert (last["run"], last["score"], last["on_front"]) == ("brave_lake_01_3", None, None)
    assert last["terms"]["latency"] == "inf"
    assert last["missing"] == {
        **{"latency": "infinite", "cost": "not logged"},
        "stability": "not logged",
    }


def test_the_pareto_front_in_the_report(home: Path) -> None:
    """A mark per trial, with a class for the two best, and the sentences."""
    trials = [*three(), TrialRecord([0.55], {"x": 3}, metrics={"predict_p50_ms": math.nan})]
    run_records.sweep(trials, spec=SPEC)
    html = report(LocalRuns().find("latest"), BACKEND).html
    selected = Page(html)
    assert selected.problems == [] and "nan" not in "".join(
        given.get("transform") or "" for _, given in selected.elements
    )
    for colour, trial in (("best", "1"), ("stopped", "0"), ("q2", "2")):
        assert trial in selected.trials(colour), colour
    assert "Trial 0 is first by score, trial 1 by the score: 1 point less score" in selected.text
    assert "Trial 3 has no score: `predict_p50_ms` is NaN" in selected.text
    assert "latency of a prediction, ms" in selected.text


def test_without_terms_there_is_no_section(home: Path) -> None:
    """A sweep that logged only its metric has no selection."""
    run_records.sweep([TrialRecord([0.5], {"x": 0}), TrialRecord([0.6], {"x": 1})], spec=SPEC)
    assert "Selection" not in Page(report(LocalRuns().find("latest"), BACKEND).html).text


def test_invalid_weights_are_noted_in_the_report(home: Path, weights: Path) -> None:
    """The page is complete."""
    weights.write_text("schema_version: 1\nlatency: fast\n")
    run_records.sweep(three(), spec=SPEC)
    (note,) = report(LocalRuns().find("latest"), BACKEND).notes
    assert "select.yml:2: " in note and "fast" in note
