"""The generated sales, the model, its evaluation and the endpoint, on 24 series."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from ml.cli import clusters
from ml.features.timeline import Timeline
from ml.features.windows import Window, windows
from ml.measures.evaluation import read_evaluation
from ml.projects.demand_forecast import batch, sales, split
from ml.projects.demand_forecast.endpoint import score
from ml.projects.demand_forecast.train import SCHEMA
from ml.serving.scoring.series import Forecaster, Spec, features
from ml.toolkit.data import mltables
from ml.toolkit.data.series import Panel
from ml.toolkit.training import forecasting
from ml.toolkit.training.forecasting import scored_forecasts
from tests.conftest import ROOT


def test_the_table_is_generated() -> None:
    """The table in the repository is what sales.py writes, with everything that it promises."""
    table = SCHEMA.parent / sales.PROJECT / "table.csv"
    with table.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    made = sales.rows(0, sales.STORES, sales.ITEMS, sales.DAYS)
    assert rows[1:] == [list(map(str, row)) for row in made]
    lengths: dict[tuple[str, str], int] = {}
    for store, item, *_ in rows[1:]:
        lengths[store, item] = lengths.get((store, item), 0) + 1
    assert len(lengths) == 200 and set(lengths.values()) - {sales.DAYS}
    empty, promoted, holidays = (
        sum(row[at] == value for row in rows) for at, value in ((3, ""), (4, "1"), (5, "1"))
    )
    assert 0 < empty < promoted and holidays


def test_the_features_are_those_of_the_windows(panel: Panel) -> None:
    """The means over the last seasons are those that ml.features computes from the rows known at
    the cutoff.
    """
    unit = panel.units("test")[0]
    history, known = panel.history(unit)
    spec = Spec(7, 14, ["promotion", "holiday"], [], [], 0.0)
    table, level = features(history, known, spec)
    times = panel.times[unit.cutoff - len(history) : unit.cutoff]
    day = pl.Series(times).dt.replace_time_zone("UTC")
    rows = pl.DataFrame({"series": "a", "day": day, "sales": history}).fill_nan(None)
    asked = [Window(f"mean_{of}", "mean", times[of * 7] - times[0], "sales") for of in (1, 4, 8)]
    found = windows(rows, asked, keys=["series"], timeline=Timeline("day")).sort("day").tail(1)
    for window in asked:
        ours = table[:, spec.names().index(window.name)] * level
        assert ours == pytest.approx(np.full(14, found.get_column(window.name).item()))


def test_the_model_is_evaluated(
    data: Path, model: Path, panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is better than seasonal naive; the forecasts of the test are a table beside it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/tracking.db")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "evaluation"
    arguments = ["--data", str(data), "--model", str(model), "--evaluation", str(folder)]
    forecasting.evaluate(SCHEMA, "demand-forecast", arguments)
    evaluation = read_evaluation(folder)
    test = evaluation.metrics["test"]
    assert test["relative_mase"].high < 1 and test["mase"].count == len(panel.units("test"))
    assert evaluation.baseline["test"]["relative_mase"].value == pytest.approx(1.0, abs=1e-6)
    assert (evaluation.unit, evaluation.resampled) == ("forecast", "series")
    assert {*evaluation.slices} <= {"store", "history", "size"}
    assert {of.check: of.value for of in evaluation.leakage} == {
        "identifiers.shared": 0,
        "time.not_later": 0,
    }
    reference = json.loads((folder / "reference.json").read_text())
    assert {*reference["predictions"]} == {*reference["quality"]} == {"total"}
    with (folder / forecasting.FORECASTS).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 14 * len(panel.units("test"))
    assert all(row["cutoff"] < row["ds"] for row in rows)
    assert all(float(row["lo_80"]) <= float(row["yhat"]) <= float(row["hi_80"]) for row in rows)


def test_the_model_of_a_search_is_evaluated(
    data: Path, searched: Path, panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the project's: the rolling origins of the search are validation, the test is later. The
    endpoint and the batch job answer as evaluated.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/tracking.db")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "evaluation"
    arguments = ["--data", str(data), "--model", str(searched), "--evaluation", str(folder)]
    forecasting.evaluate(SCHEMA, "demand-forecast", arguments)
    evaluation = read_evaluation(folder)
    assert evaluation.metrics["test"]["relative_mase"].value < 1
    assert evaluation.metrics["validation"]["mase"].count == len(panel.units("validation"))
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(searched))
    monkeypatch.delenv("MODEL_DIGEST", raising=False)
    score.init()
    with (folder / forecasting.FORECASTS).open(encoding="utf-8", newline="") as stream:
        rows = [float(row["yhat"]) for row in csv.DictReader(stream)]
    units = panel.units("test")
    for number in (0, 7, len(units) - 1):
        request = panel.request(units[number])
        answer = score.run(json.dumps(request))
        assert isinstance(answer, dict)
        path = [of[0] for of in answer["forecast"]]
        assert path == pytest.approx(rows[14 * number : 14 * (number + 1)])
    for change in ({"series": "s99/i00"}, {"until": "2020-01-01"}, {"until": "soon"}, {"until": 1}):
        assert getattr(score.run(json.dumps({**request, **change})), "status_code", 200) == 400
    split.main(["--data", str(data), "--latest", str(tmp_path / "latest")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["batch.py", "--model", str(searched)])
        patch.setattr(sys, "path", [*sys.path])
        batch.init()
    lines = batch.run([str(of) for of in sorted((tmp_path / "latest").glob("*"))])
    assert len(lines) == len(panel.names)


@pytest.mark.parametrize(
    ("days", "says"), [(140, "forecast other rows"), (126, "used rows up to 2025-")]
)
def test_a_search_of_other_rows_is_not_evaluated(
    days: int, says: str, searched: Path, tmp_path: Path
) -> None:
    """Of other values, and of a table whose test begins before the search's last row."""
    size = ["--stores", "2", "--items", "12", "--seed", "1", "--days", str(days)]
    sales.main(["--out", str(tmp_path), *size])
    arguments = ["--data", str(tmp_path / sales.PROJECT), "--model", str(searched)]
    with pytest.raises(SystemExit, match=rf"error\[row-mismatch\].*{says}"):
        forecasting.evaluate(SCHEMA, "x", [*arguments, "--evaluation", str(tmp_path / "out")])


def test_a_search_forecasts_validation_that_it_did_not_see(searched: Path, panel: Panel) -> None:
    """Of a later table, as a champion is measured on: nothing is taken from its rolling origins."""
    days = 56
    later = replace(
        panel,
        times=[of + timedelta(days=days) for of in panel.times],
        values=np.roll(panel.values, 1, axis=1),
    )
    assert len(scored_forecasts(searched, panel)) == len(panel.units("validation"))
    assert scored_forecasts(searched, later) == {}


def test_what_other_steps_read(data: Path, model: Path, panel: Panel, tmp_path: Path) -> None:
    """AutoML gets no row of the test; the batch job scores every series of every store."""
    train, latest = tmp_path / "train", tmp_path / "latest"
    split.main(["--data", str(data), "--train", str(train), "--latest", str(latest)])
    rows = mltables.frame(mltables.describe(train), None)
    end = panel.times[panel.cutoffs["test"][0]].date().isoformat()
    assert rows["day"].astype(str).max() < end and rows["sales"].notna().all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["batch.py", "--model", str(model)])
        patch.setattr(sys, "path", [*sys.path])
        batch.init()
    lines = [json.loads(of) for of in batch.run([str(of) for of in sorted(latest.glob("*"))])]
    assert [of["series"] for of in lines] == panel.names
    assert all(len(of["forecast"]) == 14 and of["total"] >= 0 for of in lines)


def test_the_rows_of_training_follow_the_schema(tmp_path: Path) -> None:
    """A copy of the project with other columns: the head of its schema names them."""
    days = [f"2025-01-{day:02d}" for day in range(1, 31)]
    rows = ["month;price;volume", *(f"{day};2;1" for day in days[:-1]), f"{days[-1]};2;"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    schema = tmp_path / "rows.schema.yml"
    schema.write_text(
        "{file: rows.csv, delimiter: ;, header: true, rows: [1, 100], primary_metric: mase, "
        "target: volume, time: month, horizon: 2, season: 1, columns: [{name: month, type: "
        "timestamp}, {name: price, type: float}, {name: volume, type: float, optional: true}]}"
    )
    forecasting.split(schema, ["--data", str(tmp_path), "--train", str(tmp_path / "train")])
    lines = (tmp_path / "train/table.csv").read_text().splitlines()
    assert lines[0] == "month,volume" and lines[-1] == f"{days[25]},1" and len(lines) == 27


def test_the_search_has_clusters_of_different_sizes() -> None:
    """AutoML on a larger one; the declared clusters have both."""
    jobs = yaml.safe_load((SCHEMA.parents[1] / "jobs/search.yml").read_text())
    used = {jobs["settings"]["default_compute"], jobs["jobs"]["search"]["compute"]}
    assert used == {"azureml:cpu-cluster", "azureml:cpu-large"}
    assert {of.removeprefix("azureml:") for of in used} <= clusters.names()


def test_the_endpoint_answers_as_evaluated(
    model: Path, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request of a unit gets the forecast of the whole history; bad ones get status 400."""
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(model))
    monkeypatch.delenv("MODEL_DIGEST", raising=False)
    score.init()
    forecaster = Forecaster(model)
    for unit in panel.units("test")[::5]:
        answer = score.run(json.dumps(panel.request(unit)))
        assert isinstance(answer, dict)
        expected = forecaster.forecast(*panel.history(unit))
        assert np.array_equal(np.array(answer["forecast"]), expected)
        assert answer["total"] == pytest.approx(expected[:, 0].sum())
    for line in (ROOT / "ml/projects/demand_forecast/endpoint/requests.jsonl").open():
        assert isinstance(score.run(line), dict)
    assert getattr(score.run("{}"), "status_code", 200) == 400
