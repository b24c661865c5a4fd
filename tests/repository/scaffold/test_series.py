"""`ml new --horizon`: a project of forecasts from a table, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from ml.cli.app import main
from ml.cli.commands.check import release_files
from ml.core.errors import UserError
from ml.repository.scaffold.new import new
from ml.repository.scaffold.profile import Choices
from ml.repository.scaffold.project_metrics import schema_problems
from ml.repository.scaffold.series import SeriesChoices
from ml.specs.check.check import survey
from ml.toolkit.data.series import read_panel
from policies.promotion import gate_settings
from tests.conftest import ROOT
from tests.release.test_commands import ml

STEPS = 60


def table(folder: Path, series: int = 20, days: int = 1, steps: int = STEPS) -> Path:
    """Series with a step of so many days."""
    rows = [
        f"s{number},{date(2025, 1, 1) + timedelta(days=days * step)},{step % 7 + number},{step}"
        for number in range(series)
        for step in range(steps)
    ]
    path = folder / "sales.csv"
    path.write_text("\n".join(["shop,day,sold,price", *rows]) + "\n")
    return path


def test_columns_that_are_not_known_are_named(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the target, the time nor the series are among them."""
    path = str(table(repository))
    words = ("--target", "sold", "--time", "day", "--series", "shop", "--horizon", "3")
    code, _, err = ml(capsys, "new", "sales", "--table", path, *words)
    assert code == 0 and "not features: price (integer)\n" in err
    assert "`known` in ml/projects/sales/data/sales.schema.yml" in err


def test_thousands_of_a_series_are_doubted(repository: Path) -> None:
    """As those of a table."""
    path = table(repository)
    rows = [of.split(",") for of in path.read_text().splitlines()]
    for row in rows[1:]:
        row[2] = f"{int(row[2]) + 1}.500" if int(row[2]) % 2 else row[2]
    path.write_text("\n".join(map(";".join, rows)) + "\n")
    about = SeriesChoices(3, ["shop"])
    made = new(repository, "sales", path, Choices("sold", time="day"), series=about)
    assert ["`sold`" in of for of in made.profile.doubts if "thousands" in of] == [True]


def test_what_is_written_is_sound(repository: Path) -> None:
    """`ml check` and ruff find nothing, the table passes its schema, the gates are no looser
    than the policy, and 100 forecasts are in the test.
    """
    series = SeriesChoices(3, ["shop"])
    made = new(repository, "sales", table(repository), Choices("sold", time="day"), series=series)
    report = survey([made.folder], release_files())
    assert report.problems == () and report.specs >= 6
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(made.folder)]
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([*ruff, *words, *config], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    schema = made.folder / "data/sales.schema.yml"
    panel = read_panel(made.folder / "data/sales", schema)
    assert panel.head.season == 7 and panel.head.origins == 5 and len(panel.units("test")) == 100
    assert gate_settings.load(made.folder / "gates.yml")
    search = yaml.safe_load((made.folder / "jobs/automl.yml").read_text())["jobs"]["search"]
    steps = {"forecast_horizon": 3, "cv_step_size": 3, "seasonality": 7}
    names = {"time_column_name": "day", "time_series_id_column_names": ["shop"]}
    assert (search["n_cross_validations"], search["forecasting"]) == (5, {**names, **steps})
    assert "total" in (made.folder / "release.yml").read_text()
    assert len((made.folder / "endpoint/requests.jsonl").read_text().splitlines()) == 20


@pytest.mark.parametrize(
    ("days", "steps", "season"), [(1, 60, 7), (7, 60, 1), (7, 140, 52), (30, 60, 12)]
)
def test_the_season_follows_from_the_steps(
    repository: Path, days: int, steps: int, season: int
) -> None:
    """A year of weeks only where the table is long enough."""
    path = table(repository, 60, days, steps)
    made = new(
        repository, "sales", path, Choices("sold", time="day"), series=SeriesChoices(3, ["shop"])
    )
    assert made.profile.head["season"] == season


@pytest.mark.parametrize(
    ("choices", "series", "rows", "code", "words"),
    [
        (Choices("sold"), SeriesChoices(3, ["shop"]), 20, "no-such-column", "no --time"),
        (Choices("sale", time="day"), SeriesChoices(3, ["shop"]), 20, "no-such-column", "`sale`"),
        (Choices("sold", time="day"), SeriesChoices(3, ["shops"]), 20, "no-such-column", "`shops`"),
        (
            Choices("sold", time="day"),
            SeriesChoices(3, ["shop"]),
            19,
            "too-few-series",
            "19 series with a value add series, or use an AutoML job",
        ),
        (Choices("sold", time="day"), SeriesChoices(30, ["shop"]), 20, "too-few-steps", "60 steps"),
        (
            Choices("sold", time="day"),
            SeriesChoices(0, ["shop"]),
            20,
            "option-conflict",
            "--horizon",
        ),
        (Choices("sold", time="day"), SeriesChoices(-1, ["shop"]), 20, "wrong-schema", "`horizon`"),
        (Choices("day", time="day"), SeriesChoices(3, ["shop"]), 20, "option-conflict", "`day`"),
        (Choices("shop", time="day"), SeriesChoices(3, []), 20, "wrong-type", "sales.csv:2"),
        (Choices("sold", time="day"), SeriesChoices(3, ["day"]), 20, "option-conflict", "`day`"),
        (
            Choices("sold", time="day"),
            SeriesChoices(3, ["shop"] * 2),
            20,
            "option-conflict",
            "`shop`",
        ),
        (Choices("sold", time="day"), SeriesChoices(3, []), 20, "duplicate-time", "sales.csv:62"),
        (Choices("sold", time="shop"), SeriesChoices(3, []), 20, "wrong-time", "sales.csv:2"),
        (
            Choices("sold", time="day", positive="1"),
            SeriesChoices(3, ["shop"]),
            20,
            "option-conflict",
            "--positive",
        ),
        (
            Choices("sold", task="binary", time="day"),
            SeriesChoices(3, ["shop"]),
            20,
            "option-conflict",
            "--task binary",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(
    repository: Path, choices: Choices, series: SeriesChoices, rows: int, code: str, words: str
) -> None:
    """And nothing is written."""
    with pytest.raises(UserError) as refused:
        new(repository, "sales", table(repository, rows), choices, series=series)
    problem = refused.value.problems[0]
    assert problem.code == code and words in f"{problem.place} {problem.actual} {problem.hint}"
    assert not (repository / "ml/projects/sales").exists()


@pytest.mark.parametrize("irregular", [True, False])
def test_times_off_the_grid_are_refused(repository: Path, irregular: bool) -> None:
    """Steps of 2, 3, 5, 7 and 9 hours; a third of the days of a daily table may be missing."""
    hours, step, rows = (2, 3, 5, 7, 9), timedelta(days=1), ["shop,at,sold"]
    time = datetime(2026, 1, 1)
    for number in range(90):
        time += timedelta(hours=hours[number % 5]) if irregular else step * (1 + number // 2 % 2)
        rows += [f"s{shop},{time.isoformat()},{number % 7 + shop}" for shop in range(20)]
    path = repository / "sales.csv"
    path.write_text("\n".join(rows) + "\n")
    choices, series = Choices("sold", time="at"), SeriesChoices(3, ["shop"])
    if not irregular:
        assert new(repository, "sales", path, choices, series=series).profile.head["season"] == 7
        return
    with pytest.raises(UserError) as refused:
        new(repository, "sales", path, choices, series=series)
    (problem,) = refused.value.problems
    assert problem.code == "irregular-times" and "20 % of the steps" in problem.actual


@pytest.mark.parametrize("cell", ["inf", "n/a", '"3,5"', "?!"])
def test_a_wrong_cell_of_the_target_has_its_line(repository: Path, cell: str) -> None:
    """One of 1,200 does not make the target a text."""
    path = table(repository)
    lines = path.read_text().splitlines()
    lines[99] = re.sub(r",\d+,", f",{cell},", lines[99])
    path.write_text("\n".join(lines))
    with pytest.raises(UserError) as refused:
        new(
            repository,
            "sales",
            path,
            Choices("sold", time="day"),
            series=SeriesChoices(3, ["shop"]),
        )
    (problem,) = refused.value.problems
    assert str(problem.place).endswith("sales.csv:100") and problem.code == "wrong-type"
    assert cell.strip('"') in problem.actual and problem.expected == "a finite number"


@pytest.mark.parametrize(
    ("steps", "horizon", "words"),
    [
        # 20 series: 5 cutoffs of the test and 5 of validation.
        (60, 6, "at least 68 for a horizon of 6: | --horizon 5 at most"),
        (60, 24, "at least 266 for a horizon of 24: | --horizon 5 at most"),
        (12, 3, "at least 35 for a horizon of 3: | give a longer table, or more series"),
        (60, 5, "the season is 1: a season of 12 needs at least 79 steps | --horizon 3 at most"),
        (60, 3, ""),
    ],
)
def test_a_short_table_says_what_would_do(
    repository: Path, steps: int, horizon: int, words: str
) -> None:
    """The least number of months grows with the horizon, and the horizon in the hint is used."""
    path, series = table(repository, 20, 31, steps), SeriesChoices(horizon, ["shop"])
    try:
        made = new(repository, "sales", path, Choices("sold", time="day"), series=series)
        text = " ".join(made.profile.doubts)
        assert made.profile.head["season"] == (1 if words else 12)
    except UserError as refused:
        (problem,) = refused.problems
        assert problem.code == "too-few-steps" and f"{steps} steps" in problem.actual
        text = f"{problem.expected} {problem.hint}"
    assert all(part in text for part in words.split(" | "))


@pytest.mark.parametrize(
    ("before", "after", "line", "found"),
    [
        ("season: 7", "season: none", 11, "`season` is 'none'"),
        ("target: sold", "target: [sold]", 7, "`target` is ['sold']"),
        ("series: [shop]", "series: shop", 9, "`series` is 'shop'"),
        ("series: [shop]", "series: [[shop]]", 9, "`series` is ['shop']"),
        ("metric: mase", "metric: [mase]", 6, "`primary_metric` is ['mase']"),
    ],
)
def test_a_wrong_schema_has_its_line(
    repository: Path, before: str, after: str, line: int, found: str
) -> None:
    """`ml check` reads the head of a table of series."""
    series = SeriesChoices(3, ["shop"])
    made = new(repository, "sales", table(repository), Choices("sold", time="day"), series=series)
    schema = made.folder / "data/sales.schema.yml"
    assert schema_problems(schema) == []
    text = schema.read_text()
    assert before in text
    schema.write_text(text.replace(before, after))
    (problem,) = schema_problems(schema)
    assert (problem.code, problem.actual) == ("wrong-schema", found)
    assert problem.place is not None and problem.place.line == line


def test_columns_of_series_may_be_separated_by_commas(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or the option is repeated."""
    words = ["new", "sales", "--table", str(table(repository)), "--target", "sold"]
    words += ["--time", "day", "--horizon", "3"]
    for series in (["--series", "shop,region"], ["--series", "shop", "--series", "region"]):
        with pytest.raises(SystemExit):
            main([*words, *series])
        assert "has no column `region`" in capsys.readouterr().err
