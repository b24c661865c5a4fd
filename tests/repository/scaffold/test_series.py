"""`ml new --horizon`: a project of forecasts from a table, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest
import yaml

from ml.cli.commands.check import release_files
from ml.core.errors import Refused
from ml.repository.scaffold.new import new
from ml.repository.scaffold.profile import Choices
from ml.repository.scaffold.project_metrics import schema_problems
from ml.repository.scaffold.series import SeriesChoices
from ml.specs.check.check import survey
from ml.toolkit.data.series import read_panel
from policies.promotion import gate_settings
from tests.conftest import ROOT

STEPS = 60


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without projects, with what their jobs and their code name."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "ml" / "projects").mkdir(parents=True)
    for room in ("environments", "measures", "serving", "toolkit"):
        shutil.copytree(ROOT / "ml" / room, tmp_path / "ml" / room)
    shutil.copy(ROOT / ".amlignore", tmp_path)
    (tmp_path / "requirements").mkdir()
    shutil.copy(ROOT / "requirements" / "main.lock", tmp_path / "requirements")
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_what_is_written_is_sound(repository: Path) -> None:
    """`ml check` and ruff find nothing, the table passes its schema, the gates stand on the floor,
    and 100 forecasts are in the test.
    """
    series = SeriesChoices(3, ["shop"])
    made = new("sales", table(repository), Choices("sold", time="day"), series=series)
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
    made = new("sales", path, Choices("sold", time="day"), series=SeriesChoices(3, ["shop"]))
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
            "19 series",
        ),
        (Choices("sold", time="day"), SeriesChoices(30, ["shop"]), 20, "too-few-steps", "60 steps"),
        (Choices("sold", time="day"), SeriesChoices(0, ["shop"]), 20, "wrong-schema", "`horizon`"),
        (Choices("day", time="day"), SeriesChoices(3, ["shop"]), 20, "wrong-schema", "`target`"),
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
    with pytest.raises(Refused) as refused:
        new("sales", table(repository, rows), choices, series=series)
    problem = refused.value.problems[0]
    assert problem.code == code and words in f"{problem.place} {problem.found}"
    assert not (repository / "ml/projects/sales").exists()


def test_a_wrong_schema_has_its_line(repository: Path) -> None:
    """`ml check` reads the head of a table of series."""
    series = SeriesChoices(3, ["shop"])
    made = new("sales", table(repository), Choices("sold", time="day"), series=series)
    schema = made.folder / "data/sales.schema.yml"
    assert schema_problems(schema) == []
    head = yaml.safe_load(schema.read_text())
    schema.write_text(schema.read_text().replace("season: 7", "season: none"))
    (problem,) = schema_problems(schema)
    assert head["season"] == 7 and problem.code == "wrong-schema" and "`season`" in problem.found
    assert problem.place is not None and problem.place.line
