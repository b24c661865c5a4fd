"""Fixtures and helpers: small tables, and AutoML trials that run in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ml.automl import trial
from ml.specs.plan import planning
from ml.specs.plan.plans import AutoMLPlan
from ml.specs.sdk import load

SPEC = """\
type: automl
display_name: find a model
experiment_name: churn
task: {task}
primary_metric: {metric}
target_column_name: {target}
training_data: {{type: mltable, path: table}}
{more}
"""

MLTABLE = "paths: [{{pattern: './rows*'}}]\ntransformations: [{{{how}: {{{options}}}}}]\n"
DELIMITED = "read_delimited"

Rows = Sequence[Mapping[str, object]]


def write(folder: Path, rows: Rows, header: Sequence[str] = ()) -> Path:
    """Write an MLTable with these rows; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    names = header or list(rows[0])
    lines = [",".join(names), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "MLTable").write_text(
        "paths: [{file: ./rows.csv}]\ntransformations: [{read_delimited: {delimiter: ','}}]\n"
    )
    return folder


def folder_of(
    folder: Path, files: Mapping[str, str], how: str = DELIMITED, options: str = ""
) -> Path:
    """Write an MLTable that reads files `rows*`; `files` maps their names to texts."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "MLTable").write_text(MLTABLE.format(how=how, options=options))
    return folder


def of_numbers(folder: Path, numbers: Any, how: str = DELIMITED) -> Path:
    """Write an MLTable with the values as column `a`, a number `b` and a class `y`."""
    rows = pd.DataFrame({"a": numbers, "b": np.arange(len(numbers)) % 7})
    rows["y"] = np.where(rows["b"] > 3, "yes", "no")
    folder.mkdir(exist_ok=True)
    if how == DELIMITED:
        rows.to_csv(folder / "rows.csv", index=False)
    elif how == "read_json_lines":
        cells = rows.astype(object).where(rows.notna(), None).to_dict("records")
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, cells)))
    else:
        rows.to_parquet(folder / "rows.parquet")
    return folder_of(folder, {}, how)


def people(count: int = 240, seed: int = 0, classes: Sequence[str] = ("No", "Yes")) -> Rows:
    """Return random rows whose `churn` depends on age and city; some incomes are missing."""
    draw = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        age, city = int(draw.integers(18, 80)), str(draw.choice(["north", "south", "east"]))
        logit = 0.08 * (age - 45) + 1.5 * (city == "north") + draw.normal()
        at = min(len(classes) - 1, max(0, round(logit + len(classes) / 2 - 0.5)))
        income = "" if number % 17 == 0 else round(float(draw.lognormal(10, 0.5)), 1)
        spent = round(3.0 * age + 20 * (city == "south") + float(draw.normal()), 2)
        row = {"age": age, "income": income, "city": city, "spent": spent, "churn": classes[at]}
        rows.append(row)
    return rows


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., AutoMLPlan]:
    """Return a function that plans a search of a small table: `plan("limits: {max_trials: 3}")`."""

    def make(
        more: str = "",
        task: str = "classification",
        metric: str = "auc_weighted",
        target: str = "churn",
    ) -> AutoMLPlan:
        if not (tmp_path / "table").exists():
            write(tmp_path / "table", people(40))
        spec = tmp_path / "search.yml"
        spec.write_text(SPEC.format(task=task, metric=metric, target=target, more=more))
        made = planning.plan(load.load(spec))
        assert isinstance(made, AutoMLPlan)
        return made

    return make


class Logged:
    """A fake tracker that keeps the logged metrics in `values`."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def parameters(self, values: Mapping[str, object]) -> None:
        """Ignore the parameters."""

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Keep the metrics."""
        self.values |= values


@pytest.fixture
def fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Path, dict[str, float]]]:
    """Return a function that runs a trial on a table; its results are model folder and metrics."""
    from contextlib import contextmanager

    number = iter(range(100))

    def run(
        table: Path,
        family: str = "logistic_regression",
        settings: Mapping[str, Any] | None = None,
        *,
        validation: Path | None = None,
        test: Path | None = None,
        **job: Any,
    ) -> tuple[Path, dict[str, float]]:
        logged = Logged()

        @contextmanager
        def tracking() -> Any:
            yield logged

        folder = tmp_path / "trials" / str(next(number))
        given = {"training-data": table, "validation-data": validation, "test-data": test}
        words = [word for name, of in given.items() if of for word in (f"--{name}", str(of))]
        words += ["--model", str(folder / "model"), "--predictions", str(folder / "predictions")]
        usual = {"task": "classification", "metric": "AUC_weighted", "target": "churn", "seed": 0}
        monkeypatch.setattr(trial, "tracking", tracking)
        monkeypatch.setattr("sys.argv", ["trial", *words])
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("AUTOML_JOB", json.dumps(usual | job))
        monkeypatch.setenv(
            "AZUREML_SWEEP_model", json.dumps({"family": family, **(settings or {})})
        )
        try:
            trial.main()
        except SystemExit as error:
            # For a problem of every trial, `of_every_trial` exits with EX_DATAERR: raise its cause.
            raise (error.__cause__ if error.code == os.EX_DATAERR else None) or error from None
        return folder / "model", logged.values

    return run
