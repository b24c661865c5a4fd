"""`ml new`: what it guesses of a table, what it writes, and what it refuses."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from ml.cli.commands.check import release_files
from ml.core.errors import UserError
from ml.repository.scaffold import project_metrics
from ml.repository.scaffold.libraries import LIBRARIES
from ml.repository.scaffold.new import LARGEST
from ml.repository.scaffold.new import new as project
from ml.repository.scaffold.profile import FEWEST_ROWS, FEWEST_ROWS_OF_FOLDS, Choices, profile
from ml.repository.scaffold.project_metrics import evaluation_problems, sweep_problems
from ml.serving.scoring.onnx import Onnx
from ml.specs.check.check import survey
from ml.toolkit.data.datasets import read_dataset
from policies.promotion import gate_settings
from policies.supply_chain.formats import detect
from tests.conftest import ROOT
from tests.named import spans, wrong
from tests.release.test_commands import ml
from tests.repository.scaffold import tables

TABLES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "churn": (tables.churn, "Churn"),
    "houses": (tables.houses, "price"),
    "flowers": (tables.flowers, "species"),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_written_is_sound(repository: Path, name: str, library: str) -> None:
    """`ml check` finds nothing, ruff finds nothing, and the table passes its own schema."""
    write, target = TABLES[name]
    made = project(repository, name, write(repository / "rows.csv"), Choices(target), model=library)
    report = survey([made.folder], release_files())
    assert report.problems == () and report.specs >= 7
    ruff = [sys.executable, "-m", "ruff"]
    tests = str(repository / "tests" / "projects" / name)
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(made.folder), tests]
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([*ruff, *words, *config], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    data = made.folder / "data"
    dataset = read_dataset(data / name, data / f"{name}.schema.yml")
    assert len({name for part in dataset.splits.values() for name in part.ids}) == tables.COUNT
    requests = (made.folder / "endpoint/requests.jsonl").read_text().splitlines()
    (table,) = json.loads(requests[0]).values()
    assert table["columns"] == [column.name for column in dataset.features]
    every_row = [list(row) for part in dataset.splits.values() for row in part.rows]
    assert len(requests) == 100 and table["data"][0] in every_row


def test_doubts_about_a_column(tmp_path: Path) -> None:
    """Numbers among which there are a few words, and categories that differ in case; not the
    words of a real category, nor numbers of which some are missing.
    """
    draw = np.random.default_rng(0)
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["income", "sex", "age", "floor", "town", "y"])
        for number in range(400):
            income = "unknown" if number % 50 == 0 else "k.A." if number % 80 == 1 else number // 3
            sex, age = ["F", "f", "M"][number % 3], "" if number % 9 == 0 else number % 60
            floor = ["G", "1", "2", "3"][number % 4]
            rows.writerow([income, sex, age, floor, ["Bern", "Genf"][number % 2], draw.integers(2)])
    types = {"income": "category", "sex": "category", "age": "integer", "floor": "category"}
    found = profile(path, Choices("y"))
    assert {of.name: of.type for of in found.columns if of.name in types} == types
    income, sex = found.doubts
    assert income == (
        "`income` is a category since 13 of 400 values are no numbers (`unknown` 8 times, `k.A.` "
        "5 times): empty those cells if it is to be a number"
    )
    assert sex.startswith(
        "`sex` has values that differ in case or Unicode form alone (`F` and `f`): each is a "
    )


@pytest.mark.parametrize(
    ("form", "share", "words"),
    [
        ("{0},03", 1, "numbers have commas (`"),
        ("8,{0}.03", 1, "numbers have commas (`8,"),
        ("1,{0},000", 1, "numbers have commas (`1,"),
        ("8.{0},03", 1, "numbers have commas (`8."),
        ("8,{0}.03", 9, "numbers have commas (`8,"),
        ("k.A.{0}", 9, "no numbers (`k.A."),
    ],
)
def test_numbers_that_all_differ_are_doubted(
    tmp_path: Path, form: str, share: int, words: str
) -> None:
    """Of their written form they are ids, and no features; not real ids of letters and digits."""
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream, delimiter=";")
        rows.writerow(["balance", "code", "size", "y"])
        for number in range(100, 500):
            balance = number if number % share else form.format(number)
            rows.writerow([balance, f"A{number}", number % 7, "ab"[number % 2]])
    found = profile(path, Choices("y"))
    assert [of.type for of in found.columns[:2]] == ["id", "id"]
    (balance,) = found.doubts
    assert balance.startswith("`balance` is an id since ") and words in balance


@pytest.mark.parametrize(
    ("delimiter", "cells", "example"),
    [
        (";", ["237", "31.949", "556"], "31949"),
        (";", ["237", "31.949", "1.234.567"], "31949"),
        (";", ["12.500", "31.949"], "12500"),
        ("\t", ["237", "-31.949"], "-31949"),
        (",", ["237", "31.949"], "31949"),
        (",", ["12.500", "31.949"], ""),
        (",", ["2370", "31.949"], ""),
        (",", ["237", "31.949", "2.5"], ""),
        (";", ["237", "31.949", "2.50"], ""),
        (";", ["0.512", "31.949"], ""),
        (";", ["237", "1031.949"], ""),
        (";", ["237", "556"], ""),
        (";", ["a 1", "31.949"], ""),
    ],
)
def test_dots_that_separate_thousands_are_doubted(
    tmp_path: Path, delimiter: str, cells: list[str], example: str
) -> None:
    """Not decimals of a measurement, of which some have fewer digits or are below 1."""
    path = tmp_path / "rows.csv"
    rows = [[cells[at % len(cells)], f"{at % 7}", "ab"[at % 2]] for at in range(300)]
    path.write_text("\n".join(map(delimiter.join, [["Summe", "size", "y"], *rows])))
    doubts = [doubt for doubt in profile(path, Choices("y")).doubts if "thousands" in doubt]
    assert [f"write {example} into the table" in doubt for doubt in doubts] == [True] * bool(
        example
    )


@pytest.mark.parametrize(
    ("name", "number", "option"),
    [
        ("visit", lambda at: 7000 + 3 * at, "--id"),
        ("visit", lambda at: 7000 - at + at % 50 // 49, "--group"),
        ("Vorgangsnr", lambda at: 7000 + (at - at % 50 // 49) * 7919 % 10007, "--group"),
        ("Order No", lambda at: 7000 + (at - at % 50 // 49) * 7919 % 10007, "--group"),
        ("casino", lambda at: 7000 + (at - at % 50 // 49) * 7919 % 10007, ""),
        ("visit", lambda at: at // 2, ""),
    ],
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_numbers_that_look_like_ids_are_doubted(
    tmp_path: Path, name: str, number: Callable[[int], int], option: str, shuffled: bool
) -> None:
    """They rise or fall with the rows or a time, or are named like an id, and nearly all differ."""
    path, start = tmp_path / "rows.csv", datetime(2025, 1, 1, tzinfo=UTC)
    rows = [
        f"{number(at)},{start + timedelta(hours=at):%Y-%m-%d},{at % 7},{'ab'[at % 2]}"
        for at in range(FEWEST_ROWS)
    ]
    order = np.random.default_rng(0).permutation(len(rows)) if shuffled else range(len(rows))
    path.write_text("\n".join([f"{name},day,size,y", *(rows[at] for at in order)]))
    *ids, time = profile(path, Choices("y")).doubts
    assert [option in doubt and name in doubt for doubt in ids] == [True] * bool(option)
    assert "--time day" in time
    assert profile(path, Choices("y", time="day", group=name)).doubts == []


def test_a_unique_number_named_like_an_id_is_one(tmp_path: Path) -> None:
    """In German too."""
    path = tmp_path / "rows.csv"
    rows = [f"{at * 7919 % 10007},{at % 7},{'ab'[at % 2]}" for at in range(300)]
    path.write_text("\n".join(["Vorgangsnr,size,y", *rows]))
    found = profile(path, Choices("y"))
    assert found.head["id"] == "Vorgangsnr" and found.doubts == []


def test_no_id_divides_the_rows_where_another_number_does(tmp_path: Path) -> None:
    """An account's number repeats, so it is no id of a row, and tells nothing of groups."""
    path = tmp_path / "rows.csv"
    rows = [f"{at // 2},{at * 7919 % 10007},{'ab'[at % 2]}" for at in range(600)]
    path.write_text("\n".join(["account_number,size,y", *rows]))
    assert profile(path, Choices("y")).head["slices"] == ["size"]


@pytest.mark.parametrize(("step", "note"), [(11, "9.1 % of the rows"), (4, "")])
def test_a_rare_positive_class_needs_a_threshold(tmp_path: Path, step: int, note: str) -> None:
    """No class of several, nor one that is a quarter."""
    path = tmp_path / "rows.csv"
    rows = [f"C{at},{at % 7},{'yes' if at % step == 0 else 'no'}" for at in range(330)]
    path.write_text("\n".join(["key,size,y", *rows]))
    doubts = profile(path, Choices("y")).doubts
    assert [note in of and "`costs` or `threshold`" in of for of in doubts] == [True] * bool(note)


@pytest.mark.parametrize(("copies", "note"), [(0, ""), (1, "1 row is a copy"), (100, "100 rows")])
def test_copies_of_rows_are_doubted(tmp_path: Path, copies: int, note: str) -> None:
    """Not the rows of a table of few values, which are alike by chance."""
    path = tmp_path / "rows.csv"
    rows = [f"C{at},{at % 7},{'ab'[at % 2]}" for at in range(600)]
    path.write_text("\n".join(["key,size,y", *rows, *rows[:copies]]))
    doubts = profile(path, Choices("y")).doubts
    assert [note in doubt and "remove" in doubt for doubt in doubts] == [True] * bool(copies)
    path.write_text("\n".join(["size,y", *(row.partition(",")[2] for row in rows)]))
    assert profile(path, Choices("y")).doubts == []


def test_doubts_are_of_one_line(tmp_path: Path) -> None:
    """Decimal commas, a fourth of words, letters composed and not; no cell or name ends a line or
    controls a terminal.
    """
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream, delimiter=";")
        rows.writerow(["rate", "score\nnext:", "city", "since", "empty", "y"])
        for number in range(400):
            rate, score = f"1,{number % 30}", "x\nnext:\n  \x1b[2K" if number % 4 == 0 else number
            city = ["K\u00f6ln", "Ko\u0308ln", "Bonn"][number % 3]
            since = f"{number % 28 + 1}.{number % 12 + 1}.2025"
            rows.writerow([rate, score, city, since, "", number % 2])
    rate, score, city, since = profile(path, Choices("y")).doubts
    assert rate.startswith("`rate` is a category since its numbers have commas (`1,")
    assert score.startswith(
        "`score\\nnext:` is a text since 100 of 400 values are no numbers (`x\\n"
    )
    assert "Unicode form" in city
    assert since.startswith("`since` is of type ") and "(`1.1.2025`)" in since
    assert all(doubt.isprintable() for doubt in (rate, score))


def test_features_that_predict_too_well_are_told(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A category, and a column of two lines that is filled in afterwards, each by name; none of an
    honest table.
    """
    draw = np.random.default_rng(0)
    path = repository / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["size", "stage", "closed\nnext:", "y"])
        for _ in range(400):
            y = int(draw.integers(2))
            stage = ("adb" if y else "cef")[int(draw.integers(3))]
            closed = draw.integers(9) if y and draw.random() < 0.9 else ""
            rows.writerow([draw.integers(90), stage, closed, y])
    code, _, told = ml(capsys, "new", "told", "--table", str(path), "--target", "y")
    assert code == 0
    assert "warning[leak]: stage alone: auc 1.0000" in told
    assert "warning[possible-leak]: closed\\nnext: alone: auc 0.9" in told
    assert "all features together" in told and "told.schema.yml" in told
    # A column that stands for the target is no slice.
    assert profile(path, Choices("y")).head["slices"] == ["size"]
    assert profile(tables.churn(path), Choices("Churn")).leaks == []


@pytest.mark.parametrize(
    ("one", "other", "severity", "argument"),
    [("lightgbm", "torch", "error", "--num-leaves"), ("torch", "lightgbm", "warning", "--width")],
)
def test_another_librarys_model_alone_is_told(
    repository: Path, one: str, other: str, severity: str, argument: str
) -> None:
    """Its jobs name an environment that has not what it imports, and settings of the first one."""
    table = tables.churn(repository / "rows.csv")
    made = project(repository, "churn", table, Choices("Churn"), model=one)
    taken = project(repository, "taken", table, Choices("Churn"), model=other)
    text = (taken.folder / "model.py").read_text()
    shutil.rmtree(taken.folder)
    (made.folder / "model.py").write_text(text)
    problems = survey([made.folder], release_files()).problems
    lacking = {
        (of.place.path.partition("churn/")[2], of.severity)
        for of in problems
        if of.place and of.code == "missing-package"
    }
    jobs = {("jobs/train.yml", severity), ("jobs/sweep.yml", severity)}
    assert lacking >= jobs | {("jobs/evaluate.yml", severity)}
    # A server may read LightGBM's trees without it.
    assert (("endpoint/deployment.yml", severity) in lacking) == (other == "torch")
    unknown = [of.actual for of in problems if of.code == "unknown-argument"]
    assert f"ml.projects.churn.train has no argument `{argument}`" in unknown


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_project_is_short(repository: Path, table: str, library: str) -> None:
    """At most 90 lines are the model with LightGBM and 100 with others, 170 all of the Python, and
    60 the YAML besides what Azure ML asks for. A network's model has its layers and loss besides.
    """
    write, target = TABLES[table]
    made = project(
        repository, table, write(repository / "rows.csv"), Choices(target), model=library
    )
    network = 12 if library == "torch" else 0

    def lines(*patterns: str) -> int:
        paths = [path for pattern in patterns for path in made.folder.glob(pattern)]
        assert paths
        return sum(len(path.read_text().splitlines()) for path in paths)

    assert lines("columns.py", "model.py") <= (90 if library == "lightgbm" else 100) + network
    assert lines("**/*.py") <= 170
    assert lines("*.yml", "data/*.schema.yml") <= 60


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "churn",
            {"task": "binary", "positive": "Yes", "id": "customerID", "slices": ["Contract"]},
        ),
        ("houses", {"task": "regression", "primary_metric": "mae", "delimiter": ";"}),
        ("flowers", {"task": "multiclass", "slices": ["colour"], "delimiter": "\t"}),
    ],
)
def test_guesses(repository: Path, name: str, expected: dict[str, object]) -> None:
    """The task, the positive value, the id, the slices and the separator."""
    write, target = TABLES[name]
    found = profile(write(repository / "rows.csv"), Choices(target))
    assert expected.items() <= found.head.items()
    types = {column.name: (column.type, column.optional) for column in found.columns}
    if name == "churn":
        assert types["Total.Charges"] == ("float", True) and types["tenure"] == ("integer", False)
        assert types["customerID"] == ("id", False)


@pytest.mark.parametrize(
    ("count", "time", "folds"),
    [(3000, "", 5), (3001, "", 0), (600, "day", 0), (599, "day", None), (150, "", 5)],
)
def test_a_table_of_few_rows_is_tested_out_of_fold(
    repository: Path, count: int, time: str, folds: int | None
) -> None:
    """Where a fifth of the rows would refuse a version that is as good; not by time, where a fold
    would be answered by later rows.
    """
    path = repository / "rows.csv"
    lines = [
        f"{at % 7},{('on', 'off')[at % 3 == 0]},2026-01-{1 + at % 31:02}" for at in range(count)
    ]
    path.write_text("\n".join(["size,state,day", *lines]))
    if folds is None:
        with pytest.raises(UserError, match="at least 600"):
            profile(path, Choices("state", time=time))
    else:
        assert profile(path, Choices("state", time=time)).head.get("folds", 0) == folds


@pytest.mark.parametrize(
    ("count", "group", "judges"),
    [
        (599, "", None),
        (900, "", "n_cross_validations"),
        (900, "home", "validation_data"),
        (3001, "", "validation_data"),
    ],
)
def test_an_automl_job_of_few_rows_draws_its_folds_three_times(
    count: int, group: str, judges: str | None, repository: Path
) -> None:
    """One draw of folds chooses by chance there. `split` keeps groups together, folds would not;
    and a test of less than 600 rows is too small for the gates.
    """
    rows = [f"{at % 7},{at % 11},{('on', 'off')[at % 3 == 0]},h{at // 3}" for at in range(count)]
    table = repository / "rows.csv"
    table.write_text("\n".join(["size,weight,state,home", *rows]))
    made = project(repository, "states", table, Choices("state", group=group))
    assert survey([made.folder], release_files()).problems == ()
    job = made.folder / "jobs/automl.yml"
    assert job.is_file() is (judges is not None)
    if judges:
        search = yaml.safe_load(job.read_text())["jobs"]["search"]
        given = {"n_cross_validations", "validation_data"} & {*search}
        repeats = search.get("tags", {}).get("cross_validation_repeats")
        assert given == {judges} and (repeats == "3") is (judges == "n_cross_validations")


def test_a_number_that_begins_with_zero_is_a_name(repository: Path) -> None:
    """Of a branch, an article, a town: 003 is not three, and 010 not ten times 001."""
    path = repository / "rows.csv"
    lines = [f"{at % 7:03},0.{at % 5},{at % 9},{at % 2}" for at in range(FEWEST_ROWS)]
    path.write_text("\n".join(["branch,rate,size,state", *lines]))
    kinds = {column.name: column.type for column in profile(path, Choices("state")).columns}
    assert (kinds["branch"], kinds["rate"], kinds["size"]) == ("category", "float", "integer")


def test_what_a_person_says_comes_first(repository: Path) -> None:
    """Metric, positive value, slice, group and time."""
    path = tables.churn(repository / "rows.csv")
    choices = Choices("Churn", primary_metric="f1", positive="No", slice="tenure", group="Contract")
    head = profile(path, choices).head
    assert head["primary_metric"] == "f1" and head["positive"] == "No"
    assert head["slices"] == ["tenure"] and head["group"] == "Contract"
    found = profile(path, Choices("tenure", task="multiclass"))
    assert found.classes == 72 and found.primary_metric == "log_loss"


def test_a_predicted_quantile(repository: Path) -> None:
    """LightGBM's objective follows the metric, and the constant to beat is that quantile."""
    path = tables.houses(repository / "rows.csv")
    made = project(repository, "houses", path, Choices("price", primary_metric="quantile_loss_90"))
    code = (made.folder / "model.py").read_text()
    assert '"objective": "quantile",' in code and '"alpha": 0.9,' in code
    median = profile(path, Choices("price")).baseline
    assert made.profile.baseline < median / 2
    assert survey([made.folder], release_files()).problems == ()


def test_names_that_yaml_would_read_otherwise(repository: Path) -> None:
    """Columns and classes called yes, null or 1: texts they stay."""
    path = repository / "rows.csv"
    lines = [f"{at % 7},{('on', 'off')[at % 3 == 0]},{at % 2}" for at in range(FEWEST_ROWS)]
    path.write_text("\n".join(["yes,null,1", *lines]))
    made = project(repository, "odd", path, Choices("null"))
    data = made.folder / "data"
    head = yaml.safe_load((data / "odd.schema.yml").read_text())
    assert (head["target"], head["positive"]) == ("null", "off")
    dataset = read_dataset(data / "odd", data / "odd.schema.yml")
    assert [column.name for column in dataset.features] == ["yes", "1"]


def test_spaces_around_names_and_a_byte_order_mark(repository: Path) -> None:
    """As spreadsheets and old data sets have them: neither is a part of a name or a value."""
    path = repository / "rows.csv"
    lines = [f"{at % 7}, {('on', 'off')[at % 3 == 0]}, {at}" for at in range(FEWEST_ROWS)]
    path.write_text("\n".join(["size, state, row id", *lines]), encoding="utf-8-sig")
    made = project(repository, "spaces", path, Choices("state"))
    data = made.folder / "data"
    dataset = read_dataset(data / "spaces", data / "spaces.schema.yml")
    assert [column.name for column in dataset.features] == ["size"]
    assert (dataset.about.id, dataset.about.positive) == ("row id", "off")


@pytest.mark.parametrize("rooms", [6, 6.0, None])
@pytest.mark.parametrize("persons", [3, 0, None])
def test_the_example_of_derive_takes_every_row(
    repository: Path, rooms: float | None, persons: int | None
) -> None:
    """Of numbers, of zero and of what is missing, as it stands in columns.py."""
    made = project(repository, "churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    lines = (made.folder / "columns.py").read_text().splitlines()
    example = "\n".join(line[8:] for line in lines if line.startswith(" " * 8))
    row = {"rooms": rooms, "persons": persons}
    exec(example, {"row": row})
    assert row["space"] == (2.0 if rooms and persons else None)


def test_what_is_guessed_of_a_table_is_what_its_schema_takes(repository: Path) -> None:
    """Ids with spaces around them, times of which some are written as missing, a name in quotes
    with quotes in it.
    """
    path = repository / "rows.csv"
    names = ("size", "state", 'the "id"', "opened")
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        for at in range(FEWEST_ROWS):
            opened = "NA" if at % 9 == 0 else f"2026-01-{at % 28 + 1:02}"
            writer.writerow([at % 7, ("on", "off")[at % 3 == 0], f" A{at} ", opened])
    made = project(repository, "padded", path, Choices("state"))
    data = made.folder / "data"
    dataset = read_dataset(data / "padded", data / "padded.schema.yml")
    kinds = {column.name: column.type for column in made.profile.columns}
    assert kinds == dict(zip(names, ("integer", "category", "id", "timestamp"), strict=True))
    assert {*dataset.train.ids} < {f"A{at}" for at in range(FEWEST_ROWS)}


def test_a_split_by_time_is_asked_of_every_version(repository: Path) -> None:
    """The gate `leakage` then requires that the test is later than training."""
    path = repository / "rows.csv"
    lines = [
        f"{at % 7},{('on', 'off')[at % 3 == 0]},2026-01-{1 + at // 30:02}" for at in range(800)
    ]
    path.write_text("\n".join(["size,state,day", *lines]))
    made = project(repository, "daily", path, Choices("state", time="day"))
    assert "time.not_later" in (made.folder / "gates.yml").read_text()
    assert survey([made.folder], release_files()).problems == ()
    data = made.folder / "data"
    dataset = read_dataset(data / "daily", data / "daily.schema.yml")
    assert dataset.about.time == "day" and dataset.leakage()[0].value == 0


def test_data_in_a_datastore(repository: Path) -> None:
    """The asset names it, and the table is not copied."""
    where = "azureml://datastores/workspaceblobstore/paths/churn/"
    path = tables.churn(repository / "sample.csv")
    made = project(repository, "churn", path, Choices("Churn"), where)
    assert yaml.safe_load((made.folder / "data/churn.yml").read_text())["path"] == where
    assert not list(made.folder.rglob("*.csv"))
    assert survey([made.folder], release_files()).errors == ()


def test_a_target_with_a_single_value_is_named(repository: Path) -> None:
    """`--task` would not help."""
    path = repository / "rows.csv"
    path.write_text("calls,left\n" + "".join(f"{number},no\n" for number in range(300)))
    with pytest.raises(UserError, match="has a single value, `no`") as refused:
        project(repository, "churn", path, Choices("left"))
    assert "add rows with another value" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("9lives", Choices("Churn"), "error[bad-name]"),
        ("x" * 40, Choices("Churn"), "error[bad-name]"),
        *[(word, Choices("Churn"), "error[bad-name]") for word in ("class", "import", "None")],
        ("taken", Choices("Churn"), "error[project-exists]"),
        ("churn", Choices("Chrun"), "did you mean `Churn`?"),
        ("churn", Choices("Churn", slice="Contrat"), "did you mean `Contract`?"),
        ("churn", Choices("Churn", task="ranking"), "error[no-such-task]"),
        ("churn", Choices("Churn", task="regression"), "error[wrong-target]"),
        ("churn", Choices("customerID"), "error[wrong-target]"),
        ("churn", Choices("Churn", primary_metric="mae"), "error[no-such-metric]"),
        ("churn", Choices("Churn", positive="Maybe"), "one of: No, Yes"),
        ("churn", Choices("Total.Charges"), "error[empty-target]"),
        ("churn", Choices("Churn", id="Total.Charges"), "error[empty-id]"),
        ("churn", Choices("Churn", group="Total.Charges"), "error[empty-group]"),
        ("churn", Choices("Churn", time="Total.Charges"), "error[empty-time]"),
    ],
)
def test_what_cannot_be_written_is_refused(
    repository: Path, name: str, choices: Choices, message: str
) -> None:
    """With what is wrong, and nothing is written."""
    (repository / "ml/projects/taken").mkdir()
    path = tables.churn(repository / "rows.csv")
    with pytest.raises(UserError) as refused:
        project(repository, name, path, choices)
    assert message in str(refused.value)
    assert [one.name for one in (repository / "ml/projects").iterdir()] == ["taken"]


def test_a_short_row_is_named_by_its_line(tmp_path: Path) -> None:
    """Blank lines and quoted line breaks count."""
    path = tmp_path / "rows.csv"
    rows = [f"{number % 7},{'ab'[number % 2]}" for number in range(FEWEST_ROWS_OF_FOLDS)]
    path.write_text("\n".join(["size,risk", '"1\n",a', "", "3", *rows]))
    with pytest.raises(UserError, match=r"rows\.csv:5: 1 of 152 rows have no `risk`"):
        profile(path, Choices("risk"))


def test_a_class_that_is_called_none_needs_another_name(tmp_path: Path) -> None:
    """Such a cell is a missing value, as everywhere."""
    path = tmp_path / "rows.csv"
    lines = [f"{at % 7},{('low', 'None')[at % 2]}" for at in range(FEWEST_ROWS_OF_FOLDS)]
    path.write_text("\n".join(["size,risk", *lines]))
    with pytest.raises(
        UserError, match=r"(?s)cell of `None` counts as missing.*called `None` needs another name"
    ):
        profile(path, Choices("risk"))


@pytest.mark.parametrize("delimiter", ",;")
def test_a_table_of_many_columns(delimiter: str, tmp_path: Path) -> None:
    """Of which the first bytes have no two whole rows; Excel's UTF-16 is told how to save it."""
    names, count = [f"column {number}" for number in range(4000)], FEWEST_ROWS_OF_FOLDS
    rows = [[f"{row % 7}.{number % 10}" for number in range(3999)] for row in range(count)]
    lines = [names, *([*row, str(at % 2)] for at, row in enumerate(rows))]
    path = tmp_path / "wide.csv"
    path.write_text("".join(f"{delimiter.join(line)}\n" for line in lines))
    about = profile(path, Choices("column 3999"))
    assert about.task == "binary" and about.head["delimiter"] == delimiter
    path.write_text(path.read_text(), encoding="utf-16")
    with pytest.raises(UserError, match="save it as CSV UTF-8"):
        profile(path, Choices("column 3999"))


@pytest.mark.parametrize(("delimiter", "row"), [(",", '9,"a\n",b'), (";", "9;a;b")])
def test_a_row_of_too_many_fields_is_named_by_its_line(
    tmp_path: Path, delimiter: str, row: str
) -> None:
    """Of a text with an unquoted delimiter, or a delimiter at the end; blank lines count."""
    path = tmp_path / "rows.csv"
    rows = [f"{number % 7}{delimiter}{'ab'[number % 2]}" for number in range(400)]
    path.write_text("\n".join([f"size{delimiter}risk", "", *rows[:200], row, *rows]))
    with pytest.raises(UserError) as refused:
        profile(path, Choices("risk"))
    (problem,) = refused.value.problems
    assert problem.code == "extra-column" and problem.place and problem.place.line == 203
    assert (
        problem.actual == "the row has 3 fields, but the header has 2"
        and f"`{delimiter}`" in problem.hint
    )


def test_tables_that_are_none_are_refused(repository: Path) -> None:
    """Too few rows, two columns of one name, no text, no file, too many bytes for git."""
    path = repository / "rows.csv"
    tables.churn(path, FEWEST_ROWS_OF_FOLDS - 1)
    cases = {"too-few-rows": path.read_bytes()}
    cases |= {"bad-header": b"a,a\n" + b"1,2\n" * 700, "unreadable": bytes(range(256)) * 9}
    cases |= {"too-large-for-git": b"a,b\n" * (LARGEST // 4 + 1)}
    for code, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(UserError, match=code):
            project(repository, "churn", path, Choices("a" if code == "bad-header" else "Churn"))
    path.write_text("\n")
    files = {"gone.csv": "No such file", "ml": "Is a directory", path.name: "is empty"}
    for name, found in files.items():
        with pytest.raises(UserError, match=f"(?s)unreadable.*{found}.*--table FILE"):
            project(repository, "churn", repository / name, Choices("Churn"))
    with pytest.raises(UserError, match="no-such-library"):
        project(repository, "churn", path, Choices("Churn"), model="catboost")


@pytest.mark.slow
def test_an_estimator_that_skops_does_not_load_is_told_when_it_is_saved(
    repository: Path, tmp_path: Path
) -> None:
    """Before it is trained a dozen times, and with the types that are in the way."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    made = project(
        repository,
        "churn",
        tables.churn(repository / "rows.csv"),
        Choices("Churn"),
        model="sklearn",
    )
    code: dict[str, Any] = {}
    exec((made.folder / "model.py").read_text(), code)
    rows, labels = [[0.0], [1.0], [2.0]], [0, 1, 1]
    code["save"](LogisticRegression().fit(rows, labels), tmp_path)
    with pytest.raises(SystemExit, match=r"untrusted-type.*sklearn\.tree\._tree\.Tree"):
        code["save"](RandomForestClassifier(2).fit(rows, labels), tmp_path)


# Each library with one table; all with all in `make torture`.
QUICK = {"lightgbm": "churn", "sklearn": "churn", "torch": "flowers", "xgboost": "houses"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "name"),
    [
        pytest.param(
            library,
            name,
            marks=pytest.mark.torture(only=QUICK[library] != name),
            id=f"{library}-{name}",
        )
        for library in LIBRARIES
        for name in TABLES
    ],
)
def test_what_is_saved_is_what_is_served(repository: Path, library: str, name: str) -> None:
    """By the test that `ml new` writes beside the project."""
    write, target = TABLES[name]
    project(repository, name, write(repository / "rows.csv"), Choices(target), model=library)
    served_as_saved(repository, name)


def served_as_saved(repository: Path, name: str) -> None:
    """The test of the project passes."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/projects/{name}"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=repository)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


PAGE = ROOT / "docs/how-to/add-a-library.md"


def test_a_forest_is_served_by_onnx_as_the_page_says(tmp_path: Path) -> None:
    """What is loaded answers as what was fitted, and the gate knows the format."""
    import skl2onnx
    from sklearn.ensemble import RandomForestClassifier

    section = PAGE.read_text().partition("## Estimators")[2]
    code: dict[str, Any] = {"skl2onnx": skl2onnx, "np": np, "Onnx": Onnx, "Any": Any, "Path": Path}
    code["NDArray"] = NDArray
    exec(section.partition("```python\n")[2].partition("```")[0], code)
    rows = np.random.default_rng(0).normal(size=(200, 3))
    forest = RandomForestClassifier(5, random_state=0).fit(rows, (rows[:, 0] > 0).astype(int))
    code["save"](forest, tmp_path)
    answers = code["predict"](code["load"](tmp_path), rows)
    assert np.allclose(answers, code["predict"](forest, rows), rtol=0, atol=1e-4)
    assert detect(tmp_path / "model.onnx") == "onnx"


def test_the_command(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files on stdout; what was found and the next commands on stderr."""
    path = tables.churn(repository / "rows.csv")
    code, out, err = ml(capsys, "new", "churn", "--table", str(path), "--target", "Churn")
    assert code == 0 and "ml/projects/churn/train.py" in out.splitlines()
    assert "binary: 4 features" in err and "ml run ml/projects/churn/jobs/sweep.yml" in err
    assert "not features: customerID (id)\n" in err
    code, _, err = ml(capsys, "new", "churn", "--table", str(path), "--target", "Churn")
    assert code == 2 and "error[project-exists]" in err


@pytest.mark.parametrize(
    ("file", "old", "new", "line", "message"),
    [
        ("data/churn.schema.yml", "auc", "log_los", 6, "did you mean `log_loss`?"),
        ("data/churn.schema.yml", "auc", "mae", 6, "expected: one of accuracy, log_loss"),
        ("data/churn.schema.yml", "metric: auc", "metric: [auc]", 6, "is ['auc']\n  expected: one"),
        ("data/churn.schema.yml", "get: Churn", "get: [Churn]", 7, "`target` is ['Churn']\n  exp"),
        ("data/churn.schema.yml", "'Yes'", "yes", 8, 'hint: write `positive: "yes"`'),
        ("data/churn.schema.yml", "slices: [", "slices: [[a], ", 11, "`slices[0]` is ['a']"),
        ("data/churn.schema.yml", "[Contract]", "[Contract, tenrue]", 11, "did you mean `tenure`?"),
        ("data/churn.schema.yml", "slices: [Contract]", "slices: []", 11, "expected: a list of"),
        ("data/churn.schema.yml", "slices:", "slice:", 11, "did you mean `slices`?"),
        ("data/churn.schema.yml", "type: integer", "type: intger", 17, "did you mean `integer`?"),
        ("data/churn.schema.yml", "type: integer", "type: int", 17, "did you mean `integer`?"),
        ("evaluate.py", 'unit="row"', 'task="binary", primary_metric="mae"', 13, "of a binary"),
        ("gates.yml", "test.auc: 0.5}", "test.acu: 0.5}", 8, "did you mean `auc`?"),
        ("gates.yml", "{test.auc: 0.2", "{test.gain_at_1: 0.2", 10, "a metric of a binary model"),
        ("data/churn.schema.yml", "[450, 90000]", "[5000, 10]", 14, "the fewest and the most"),
        ("data/churn.schema.yml", "[450, 90000]", "[-3, 0]", 14, "the fewest and the most"),
        ("gates.yml", "[Contract]", "[Contarct]", 16, "`Contract`?"),
        (
            "gates.yml",
            "[Contract]",
            "[Contract]\n    at_most: {Cont.auc: 0.1}",
            17,
            "the slice `Cont`",
        ),
        (
            "gates.yml",
            "{test.auc: 0.5}",
            "{test.auc: 0.5, tset.auc: 0.5}",
            8,
            "did you mean `test`?",
        ),
        ("gates.yml", "{test.auc: 0.2", "{train.auc: 0.2", 10, "expected: validation or test"),
        ("jobs/sweep.yml", "n_auc", "n_acu", 32, "did you mean `validation_auc`?"),
        ("jobs/sweep.yml", "validation_auc", "auc", 32, "did you mean `validation_auc`?"),
        ("jobs/sweep.yml", "maximize", "minimize", 31, "but auc is maximised"),
        ("jobs/sweep.yml", "maximize", "Minimize", 31, "expected: goal: maximize"),
        ("jobs/sweep.yml", "validation_auc", "test_log_loss", 31, "but log_loss is minimised"),
        ("jobs/sweep.yml", "validation_auc", "loss", 32, "expected: a metric of a binary model"),
    ],
)
def test_a_wrong_primary_metric_is_refused_with_its_line(
    repository: Path, file: str, old: str, new: str, line: int, message: str
) -> None:
    """By `ml check`, before anything is trained; in the schema or as a text in evaluate.py."""
    made = project(repository, "churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    path = made.folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    (problem,) = survey([made.folder], release_files()).errors
    assert problem.code in ("wrong-schema", "wrong-primary-metric", "wrong-goal", "not-evaluated")
    assert problem.place and problem.place.line == line and message in str(problem)
    assert str(problem.place.path).endswith(file)


@pytest.mark.parametrize(
    ("file", "old", "new", "place", "message"),
    [
        ("churn.schema.yml", "name: tenure", "name: tenrue", "table.csv:1", "missing: tenrue"),
        ("churn.schema.yml", "'Yes'", "'ja'", "churn.schema.yml:8", "a value of `Churn`: No, Yes"),
        (
            "churn.schema.yml",
            "Contract, type: category",
            "Contract, type: float",
            "table.csv:2",
            "",
        ),
        ("churn/table.csv", "Contract", "Contarct", "table.csv:1", "missing: Contract"),
        ("churn.yml", "path: churn", "path: azureml://datastores/a/paths/b", "", ""),
        ("churn.yml", "path: churn", "path: ELSEWHERE", "", ""),
    ],
)
def test_a_table_that_differs_from_its_schema_is_known(
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    file: str,
    old: str,
    new: str,
    place: str,
    message: str,
) -> None:
    """To `ml check`, where the table lies in the repository: a column, a type, the positive."""
    made = project(repository, "churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    path = made.folder / "data" / file
    text = path.read_text()
    assert old in text
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path.write_text(text.replace(old, new.replace("ELSEWHERE", str(elsewhere)), 1))
    (elsewhere / "table.csv").write_text("none\n")
    schema = made.folder / "data/churn.schema.yml"
    problems = project_metrics.schema_problems(schema)
    assert [str(problem.place).endswith(place) for problem in problems] == [True] * bool(place)
    assert message in "".join(map(str, problems))


def test_a_large_table_is_not_compared(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training does."""
    made = project(repository, "churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    schema = made.folder / "data/churn.schema.yml"
    schema.write_text(schema.read_text().replace("'Yes'", "'ja'"))
    assert project_metrics.schema_problems(schema)
    monkeypatch.setattr(project_metrics, "MOST_BYTES", 100)
    assert not project_metrics.schema_problems(schema)


@pytest.mark.parametrize(("metric", "count"), [("auc", 0), ("accuracy", 1)])
def test_a_sweep_by_another_metric_than_versions_is_a_warning(
    metric: str, count: int, repository: Path
) -> None:
    made = project(repository, "churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    sweep = made.folder / "jobs/sweep.yml"
    sweep.write_text(sweep.read_text().replace("validation_auc", f"validation_{metric}"))
    problems = [(problem.code, problem.severity) for problem in sweep_problems(sweep)]
    assert problems == [("other-primary-metric", "warning")] * count


@pytest.mark.parametrize("above", [(), ("tables", "a.tsv")])
def test_tables_without_a_task_have_bounds_too(above: tuple[str, ...], tmp_path: Path) -> None:
    """One in a file, or several; a file of another layout is its project's own."""
    path = tmp_path / "a.schema.yml"
    for rows, is_refused in (([5000, 10], True), ([10, 5000], False), (None, False)):
        table: dict[str, Any] = {"rows": rows, "columns": [{"name": "a", "type": "text"}]}
        table = {key: value for key, value in table.items() if value}
        for key in reversed(above):
            table = {key: table}
        path.write_text(yaml.safe_dump(table))
        problems = project_metrics.schema_problems(path)
        assert [problem.actual for problem in problems] == ["`rows` is [5000, 10]"] * is_refused


@pytest.mark.parametrize(
    ("file", "code", "refused"),
    [
        ("model.py", "import pickle", True),
        ("columns.py", "import joblib", True),
        ("train.py", "import pickle", False),
    ],
)
def test_code_that_a_proposal_would_refuse_is_known(
    repository: Path, file: str, code: str, refused: bool
) -> None:
    """To `ml check`: of what the endpoint imports, and not of what training alone does."""
    made = project(repository, "churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    path = made.folder / file
    path.write_text(path.read_text() + f"\n{code}\n")
    errors = survey([made.folder], release_files()).errors
    assert [problem.code for problem in errors] == ["code-from-data"] * refused


@pytest.mark.parametrize("days", [-1, 5, 400])
def test_a_waiver_that_does_not_hold_is_a_warning(days: int, repository: Path) -> None:
    """Of a gate, with its date, and not once another one about the same thing holds."""
    made = project(repository, "churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    gates, today = made.folder / "gates.yml", datetime.now(UTC).date()
    ends, later = today + timedelta(days), today + timedelta(5)
    line = "  - {{gate: latency, owner: ana, expires: {}, reason: a slow image}}\n"
    gates.write_text(f"{gates.read_text()}waivers:\n{line.format(ends)}")
    report = survey([made.folder], release_files())
    warnings = [problem for problem in report.problems if problem.severity == "warning"]
    assert not report.errors and len(warnings) == (days != 5)
    if warnings:
        assert warnings[0].code == "expired-waiver" and warnings[0].place.line == 18
        words = f"expired on {ends}" if days < 0 else "for more than 90 days"
        assert words in warnings[0].actual
    if days < 0:
        gates.write_text(gates.read_text() + line.format(later))
        assert not survey([made.folder], release_files()).problems


OWN = '''"""Own."""

from ml.measures.metrics import CustomMetric

METRICS: dict[str, CustomMetric] = {"cost": CustomMetric("minimize", (0, 90), lambda a, c: a.score)}
'''


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("gates.yml", "", "", ""),
        ("gates.yml", "bounds: {cost: [0, 90]}", "min_count: 100", "error[no-bounds]"),
        ("gates.yml", "test.cost", "test.costs", "did you mean `cost`?"),
        ("data/churn.schema.yml", "metric: cost", "metric: costs", "did you mean `cost`?"),
        ("jobs/sweep.yml", "validation_cost", "validation_cots", "did you mean"),
        ("jobs/sweep.yml", "minimize", "maximize", "but cost is minimised"),
        ("metrics.py", '"minimize"', '"maximize"', "but cost is maximised"),
        ("metrics.py", '"minimize"', "GOAL", ""),
        ("metrics.py", '"cost"', '"auc"', "error[wrong-metric]"),
        ("metrics.py", '"cost"', '"test.cost"', "error[wrong-metric]"),
    ],
)
def test_a_metric_of_ones_own_is_known(
    repository: Path, file: str, old: str, new: str, message: str
) -> None:
    """To `ml check`: in the schema, the sweep and the gates, which have to bound it."""
    made = project(repository, "churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    edits = {
        "metrics.py": None,
        "data/churn.schema.yml": ("metric: auc", "metric: cost"),
        "jobs/sweep.yml": ("goal: maximize\n  primary_metric: validation_auc", OBJECTIVE),
        "gates.yml": ("at_least: {test.auc: 0.5}", QUALITY),
    }
    for name, edit in edits.items():
        path = made.folder / name
        text = path.read_text().replace(*edit) if edit else OWN
        path.write_text(text.replace(old, new) if name == file and old else text)
    errors = survey([made.folder], release_files()).errors
    assert bool(errors) is bool(message) and message in "\n".join(map(str, errors))


OBJECTIVE = "goal: minimize\n  primary_metric: validation_cost"
QUALITY = "at_most: {test.cost: 60}\n    bounds: {cost: [0, 90]}"


def test_every_gate_with_entries_by_metric_is_read() -> None:
    """Of what gates.yml may have."""
    entries = {
        (gate, name)
        for gate, kinds in gate_settings.SETTINGS.items()
        for name, kind in kinds.items()
        if kind.entries
    }
    of_leakage = {("leakage", "at_most"), ("leakage", "warn_from")}
    assert entries == {*project_metrics.SETTINGS, *of_leakage}


@pytest.mark.parametrize("code", ['"loss"', 'f"{part}_loss"', "mlflow.autolog()"])
def test_a_sweep_may_compare_what_its_own_code_logs(repository: Path, code: str) -> None:
    """A text of train.py, one that is computed in part, and a library that logs by itself."""
    made = project(repository, "churn", tables.churn(repository / "rows.csv"), Choices("Churn"))
    sweep = made.folder / "jobs/sweep.yml"
    name = "validation_loss" if "part" in code else "loss"
    sweep.write_text(sweep.read_text().replace("validation_auc", name))
    assert [problem.code for problem in survey([sweep], release_files()).errors]
    train = made.folder / "train.py"
    train.write_text(train.read_text() + f"\nlogged = {code}\n")
    assert not survey([sweep], release_files()).errors


def test_a_sweep_without_a_table_is_refused_for_a_slip_alone(tmp_path: Path) -> None:
    """Other code may log anything; a pipeline's sweep is read as well, a broken file is not."""
    folder = tmp_path / "ml/projects/own"
    (folder / "jobs").mkdir(parents=True)
    (folder / "evaluate.py").write_text('evaluate(task="binary", primary_metric="auc")\n')
    job = folder / "jobs/pipeline.yml"
    for name, is_right in {
        "validation_auc": True,
        "hits": True,
        "validation_log_los": False,
    }.items():
        steps = f"one: {{type: sweep, objective: {{primary_metric: {name}}}}}"
        job.write_text(f"type: pipeline\njobs:\n  zero: 1\n  {steps}\n")
        problems = list(sweep_problems(job))
        assert (problems == []) is is_right
    assert problems[0].place and problems[0].place.line == 4
    (folder / "evaluate.py").write_text("evaluate(task=computed(), primary_metric=other)\n")
    assert list(sweep_problems(job)) == []  # the task is not written


def test_a_constant_is_read_where_it_stands(tmp_path: Path) -> None:
    """And a ranking is the task of an Evaluation that names none; other calls are not read."""
    path = tmp_path / "evaluate.py"
    path.write_text(
        'PRIMARY = "gain_at_2"\n'
        "Evaluation(primary_metric=PRIMARY)\n"
        'other(primary_metric="x")\nEvaluation(primary_metric=made(), task="binary")\n'
    )
    (problem,) = evaluation_problems(path)
    assert problem.place and problem.place.line == 1 and "gain_at_1" in problem.expected
    path.write_text("def broken(:")
    assert list(evaluation_problems(path)) == []
    assert list(evaluation_problems(tmp_path / "gone.py")) == []


def test_the_page_names_what_is_written(repository: Path) -> None:
    """Its README and the how-to guide: files of the project, and commands with their options."""
    made = project(
        repository, "churn", tables.churn(repository / "rows.csv", 4000), Choices("Churn")
    )
    for page in (PAGE, made.folder / "README.md"):
        named = [span for span in spans(page.read_text()) if "churn" not in span]
        assert [span for span in named if wrong(span, made.folder)] == []
    assert len(made.files) == 23
    small = project(repository, "small", tables.churn(repository / "rows.csv"), Choices("Churn"))
    assert len(small.files) == 23


@pytest.mark.parametrize(
    ("header", "slices"),
    [
        ("telephone,sex,amount,y", ["sex"]),
        ("telephone,maritalStatus,amount,y", ["maritalStatus"]),
        ("telephone,personal_status,age,y", ["personal_status", "age"]),
        ("telephone,mileage,amount,y", ["mileage"]),
        ("telephone,language,amount,y", ["language"]),
    ],
)
def test_protected_attributes_are_the_first_slices(
    repository: Path, header: str, slices: list[str]
) -> None:
    """By whole words of the name; a telephone, which divides the rows best, is none."""
    path = repository / "rows.csv"
    draw = np.random.default_rng(0)
    lines = [
        f"{'yes' if row % 2 else 'none'},{'ab'[draw.random() < 0.3]},{draw.integers(900)},"
        f"{'no' if draw.random() < 0.5 else 'yes'}"
        for row in range(400)
    ]
    path.write_text("\n".join([header, *lines]))
    assert profile(path, Choices("y")).head["slices"] == slices


def test_a_protected_attribute_of_many_values_is_a_slice(repository: Path) -> None:
    """Its frequent values are compared; the many rare ones need no gate to be looked at."""
    path = repository / "rows.csv"
    draw = np.random.default_rng(0)
    names = [*(["NL"] * 200), *(["DE"] * 120), *(f"N{number % 40}" for number in range(80))]
    lines = [
        f"{'yes' if row % 2 else 'none'},{name},{'no' if draw.random() < 0.5 else 'yes'}"
        for row, name in enumerate(draw.permutation(names))
    ]
    path.write_text("\n".join(["plan,nationality,y", *lines]))
    assert profile(path, Choices("y")).head["slices"] == ["nationality"]
    path.write_text("\n".join(["plan,nationality,y", *lines]).replace("DE", "NL"))
    assert profile(path, Choices("y")).head["slices"] == ["plan"]
