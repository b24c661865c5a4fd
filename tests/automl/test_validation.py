"""Which rows judge: by classes, by group, by time; and the guardrails that find what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.automl import validation
from ml.automl.problem import Job, Problem, prepare
from ml.automl.validation import Divided
from tests.automl.conftest import people, write

Fit = Callable[..., tuple[Path, dict[str, float]]]
USUAL = {"task": "classification", "metric": "AUC_weighted", "target": "churn", "seed": 0}


def problem(
    folder: Path,
    rows: Sequence[Mapping[str, object]],
    judged: Sequence[Mapping[str, object]] | None = None,
    tested: Sequence[Mapping[str, object]] | None = None,
    **job: Any,
) -> Problem:
    validated = write(folder / "judged", judged) if judged else None
    test = write(folder / "tested", tested) if tested else None
    return prepare(Job(USUAL | job), write(folder / "table", rows), validated, test)


def customers(count: int = 600, habit: float = 1.0) -> list[dict[str, object]]:
    """Rows of 60 customers, each with a birth year, and with a habit of so much weight."""
    draw = np.random.default_rng(0)
    habits, years = draw.normal(size=60), draw.integers(1950, 2005, 60)
    rows = []
    for _ in range(count):
        of = int(draw.integers(60))
        is_yes = habit * habits[of] + draw.normal() > 0
        spent = round(float(draw.lognormal()), 3)
        row = {"customer": 9000 + of, "year": years[of], "spent": spent}
        rows.append({**row, "churn": "Yes" if is_yes else "No"})
    return rows


def months(count: int = 720, drift: float = 1.0) -> list[dict[str, object]]:
    """Rows of two years in any order, whose target drifts by so much."""
    draw = np.random.default_rng(1)
    rows = []
    for _ in range(count):
        month = int(draw.integers(24))
        day = f"{2024 + month // 12}-{1 + month % 12:02}-{1 + int(draw.integers(28)):02}"
        is_yes = drift * (month - 12) / 12 + draw.normal() > 0
        spent = round(float(draw.lognormal()), 3)
        rows.append({"day": day, "spent": spent, "churn": "Yes" if is_yes else "No"})
    return rows


@pytest.mark.parametrize("more", [{"n_cross_validations": 3}, {"validation_data_size": 0.25}])
def test_none_of_a_group_is_divided(tmp_path: Path, more: dict[str, Any]) -> None:
    """Neither between folds nor from the final test; each row judges once, of folds."""
    tags = {"group_column_name": "customer"}
    of = problem(tmp_path, customers(), tags=tags, test_data_size=0.2, **more)
    groups = of.table.frame["customer"].to_numpy()
    for train, judged in of.folds:
        assert not {*groups[train]} & {*groups[judged]} and len(judged) > 60
        assert not ({*groups[train]} | {*groups[judged]}) & {*groups[of.test]}
    if "n_cross_validations" in more:
        validation_rows = np.sort(np.concatenate([judged for _, judged in of.folds]))
        np.testing.assert_array_equal(validation_rows, np.sort(of.fitted))
    assert "grouped by customer" in of.sentence
    (column,) = (column for column in of.table.columns if column.name == "customer")
    assert not column.used


@pytest.mark.parametrize("tags", [{}, {"group_column_name": "customer"}])
def test_folds_are_drawn_more_than_once(tmp_path: Path, tags: dict[str, str]) -> None:
    """Each draw judges every row once, by other folds."""
    tags |= {"cross_validation_repeats": "3"}
    of = problem(tmp_path, customers(), tags=tags, n_cross_validations=4)
    assert len(of.folds) == 12 and "4 folds, repeated 3 times" in of.sentence
    draws = [of.folds[at : at + 4] for at in (0, 4, 8)]
    for draw in draws:
        judged = np.sort(np.concatenate([rows for _, rows in draw]))
        np.testing.assert_array_equal(judged, of.fitted)
    assert len({tuple(np.sort(draw[0][1])) for draw in draws}) == 3


def test_folds_by_time_are_drawn_once(tmp_path: Path) -> None:
    tags = {"time_column_name": "day", "cross_validation_repeats": "3"}
    assert len(problem(tmp_path, months(), tags=tags, n_cross_validations=4).folds) == 4


@pytest.mark.parametrize("repeats", ["0", "21", "1.5", "often", "-1"])
def test_a_number_of_draws_that_is_none(repeats: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="bad-repeats"):
        problem(tmp_path, customers(), tags={"cross_validation_repeats": repeats})


@pytest.mark.parametrize("more", [{"n_cross_validations": 3}, {"validation_data_size": 0.25}])
def test_rows_are_judged_that_are_later(tmp_path: Path, more: dict[str, Any]) -> None:
    """Than all that are fitted, and those of the final test later still; no time is divided."""
    tags = {"time_column_name": "day"}
    of = problem(tmp_path, months(), tags=tags, test_data_size=0.2, **more)
    times = validation.times(of.table, "day")
    for train, judged in of.folds:
        assert times[train].max() < times[judged].min()
        assert times[judged].max() < times[of.test].min()
    assert (
        len(of.folds) == more.get("n_cross_validations", 1)
        and "in time order by day" in of.sentence
    )
    document = of.encoding(of.fitted)
    assert "days" not in document["inputs"][0]["parts"]


def test_rows_that_cannot_be_kept_aside() -> None:
    """A first day of nearly all rows, and classes of a few rows each, leave them all to the fit;
    to hold out so many ends the job.
    """
    days = np.concatenate([np.zeros(880), np.repeat(np.arange(1, 21), 6)]).astype(np.float64)
    many = np.repeat(np.arange(520), 5)
    for divided, code, share in (
        (Divided(None, 1000, 0, times=days, by="day"), "few-times", 0.2),
        (Divided(many, 2600, 0), "too-few-rows", 0.1),
    ):
        rows = np.arange(divided.length)
        left, early_stopping = divided.split_early_stopping(rows)
        assert len(left) == len(rows) and not len(early_stopping)
        with pytest.raises(SystemExit, match=rf"error\[{code}\]"):
            divided.hold_out(rows, share)


def test_each_fold_has_its_share_of_a_rare_class() -> None:
    labels = (np.arange(300) % 15 == 0).astype(np.int64)
    for train, judged in Divided(labels, 300, 0).folds(np.arange(300), 4):
        assert labels[judged].sum() == 5 and labels[train].sum() == 15


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ({"group_column_name": "client"}, "no-such-column"),
        ({"group_column_name": "one"}, "few-groups"),
        ({"time_column_name": "one"}, "few-times"),
        ({"time_column_name": "city"}, "not-a-time"),
        ({"time_column_name": "age", "group_column_name": "city"}, "conflicting-columns"),
    ],
)
def test_columns_that_divide_nothing(tmp_path: Path, tags: dict[str, str], code: str) -> None:
    rows = [dict(row, one=1) for row in people(60)]
    with pytest.raises(SystemExit, match=rf"error\[{code}\]"):
        problem(tmp_path, rows, tags=tags, n_cross_validations=3)


@pytest.mark.parametrize(("day", "cell"), [("31.01.2026", "'31.01.2026'"), ("", "missing")])
def test_how_times_are_written_is_said(tmp_path: Path, day: str, cell: str) -> None:
    rows = [dict(row, day=day if at == 3 else "2026-01-31") for at, row in enumerate(people(60))]
    with pytest.raises(SystemExit, match=rf"`day` is {cell} in a row(?s:.*)2026-01-31, 31/01/2026"):
        problem(tmp_path, rows, tags={"time_column_name": "day"})


@pytest.mark.parametrize("name", ["group_column_name", "time_column_name"])
def test_fewer_folds_where_groups_or_times_are_few(tmp_path: Path, name: str) -> None:
    """Of 400 rows there are ten by default: of six values there are six, or five and one before.
    Those that the spec asks for are not fewer: the sentence names the field.
    """
    rows = [dict(row, part=at % 6) for at, row in enumerate(people(400))]
    tags = {name: "part"}
    of = problem(tmp_path, rows, tags=tags)
    assert len(of.folds) == (6 if name.startswith("group") else 5)
    assert all(len(train) and len(judged) for train, judged in of.folds)
    assert of.sentence.startswith(f"{len(of.folds)} folds; 10 need more different values of part")
    with pytest.raises(SystemExit, match=r"error\[few-(?s:.*)\(`n_cross_validations: 8`\)"):
        problem(tmp_path, rows, tags=tags, n_cross_validations=8)
    single = [dict(row, part=1) for row in rows]
    with pytest.raises(SystemExit, match=r"error\[few-(groups|times)\](?s:.*)more") as stopped:
        problem(tmp_path / "single", single, tags=tags)
    assert "n_cross_validations" not in str(stopped.value)


def test_fewer_folds_where_some_would_lack_a_class(tmp_path: Path) -> None:
    """Which few customers have, or few of the first days: nothing would be fitted or judged."""
    rows, groups = np.arange(600), np.repeat(np.arange(12), 50)
    of_few = (groups < 4) & (rows % 5 == 0)
    for divided in (
        Divided(of_few.astype(np.int64), 600, 0, groups=groups, by="part"),
        Divided((rows % 100 == 50).astype(np.int64), 600, 0, times=rows.astype(float), by="part"),
    ):
        folds, sentence = validation.folds(divided, (), rows, {})
        assert divided.labels is not None
        assert {len(np.unique(divided.labels[part])) for fold in folds for part in fold} == {2}
        assert "folds; more would leave a fold with one class" in sentence and len(folds) > 2
    for seed in range(10):
        divided = Divided(of_few.astype(np.int64), 600, seed, groups=groups, by="part")
        assert all(of_few[part].any() for part in divided.hold_out(rows, 0.2))


def test_a_fold_has_two_rows_or_more(tmp_path: Path) -> None:
    """More folds than the spec asks for are not drawn, and fewer only of rare classes."""
    with pytest.raises(SystemExit, match=r"error\[few-folds\].*n_cross_validations: 31` of 60"):
        problem(tmp_path, people(60), n_cross_validations=31)


@pytest.mark.parametrize("table", ["validation_data", "test_data"])
def test_a_class_that_training_lacks(tmp_path: Path, table: str) -> None:
    """It ends the job with its name and its table: of yes and no it would make three classes."""
    rows, others = people(60), [*people(20, seed=1)]
    training, known = write(tmp_path / "table", rows), write(tmp_path / "known", others)
    others[3] = {**others[3], "churn": "Maybe"}
    other = write(tmp_path / "other", others)
    given = (other, known) if table == "validation_data" else (known, other)
    job = Job({**USUAL, "positive_label": "Yes"})
    for tables in (given, (None, other) if table == "test_data" else (other, None)):
        with pytest.raises(
            SystemExit, match=rf"error\[unknown-class\]: {table} has the class `Maybe`"
        ):
            prepare(job, training, *tables)
    # A class that only training has is one of its classes.
    assert prepare(job, other, known, known).classes == ["Maybe", "No", "Yes"]


@pytest.mark.parametrize("table", ["validation_data", "test_data"])
@pytest.mark.parametrize("count", [0, 20])
def test_rows_that_judge_have_labels(tmp_path: Path, table: str, count: int) -> None:
    training = write(tmp_path / "table", people(60))
    rows = [{**row, "churn": ""} for row in people(20)]
    other = write(tmp_path / "other", rows[:count], [*rows[0]])
    given = (other, None) if table == "validation_data" else (None, other)
    with pytest.raises(SystemExit, match=rf"error\[no-label\]: no row of {table} has a `churn`"):
        prepare(Job(USUAL), training, *given)


def texts_of(of: Problem, check: str) -> set[str]:
    """What a guardrail reports."""
    from ml.automl import guardrails

    report = guardrails.report(of, of.encoding(of.fitted))
    return {each["finding"] for each in report if each["check"] == check}


def findings(of: Problem, check: str) -> set[str]:
    """The columns that a guardrail names."""
    return {text.partition(":")[0].split()[0] for text in texts_of(of, check)}


@pytest.mark.attack("a group split over folds")
def test_a_group_split_over_folds_is_found(tmp_path: Path) -> None:
    """By its own rows' attributes; and where a named group is in both tables."""
    of = problem(tmp_path, customers(), n_cross_validations=3)
    assert findings(of, "validation") == {"customer"}
    rows = customers()
    tags = {"group_column_name": "customer"}
    of = problem(tmp_path / "named", rows[:400], rows[400:], tags=tags)
    assert findings(of, "validation") == {"customer"}


def test_groups_that_are_not_split_are_not_reported(tmp_path: Path) -> None:
    """Folds by group, a table of other customers, and a number that only looks like one."""
    tags = {"group_column_name": "customer"}
    of = problem(tmp_path, customers(), tags=tags, n_cross_validations=3)
    assert findings(of, "validation") == set()
    early = [row for row in customers() if int(str(row["customer"])) < 9040]
    late = [row for row in customers() if int(str(row["customer"])) >= 9040]
    of = problem(tmp_path / "others", early, late)
    assert findings(of, "validation") == set()
    draw = np.random.default_rng(0)
    rows = [
        dict(row, code=int(draw.integers(60)), town=f"t{draw.integers(60)}") for row in people(600)
    ]
    of = problem(tmp_path / "codes", rows, n_cross_validations=3)
    assert findings(of, "validation") == set()
    rows = [dict(row, band=f"{int(str(row['age'])) // 10}0s") for row in people(600)]
    assert findings(problem(tmp_path / "bands", rows), "validation") == set()


@pytest.mark.attack("a time split that was shuffled")
def test_a_shuffled_time_split_is_found(tmp_path: Path) -> None:
    """Drawn by this engine, or handed over so."""
    of = problem(tmp_path, months(), n_cross_validations=3)
    assert findings(of, "validation") == {"day"}
    rows = months()
    of = problem(tmp_path / "given", rows[:500], rows[500:])
    assert findings(of, "validation") == {"day"}


def test_a_split_by_time_is_not_reported(tmp_path: Path) -> None:
    """The engine's own or the user's; nor a time that says nothing, where the user divides."""
    tags = {"time_column_name": "day"}
    assert findings(problem(tmp_path, months(), tags=tags), "validation") == set()
    rows = sorted(months(), key=lambda row: str(row["day"]))
    of = problem(tmp_path / "given", rows[:500], rows[500:])
    assert findings(of, "validation") == set()
    rows = months(drift=0.0)
    of = problem(tmp_path / "still", rows[:500], rows[500:])
    assert findings(of, "validation") == set()


def test_a_time_is_named_as_the_spec_does(tmp_path: Path) -> None:
    """With a count where it is a small share; and no other column has to have one in each row."""
    ordered = sorted(months(), key=lambda row: str(row["day"]))
    tags = {"time_column_name": "day"}
    of = problem(tmp_path, ordered[:501], ordered[500:], ordered[500:], tags=tags)
    early = "day (time_column_name): 1 of the 220 validation rows are not later than training rows"
    assert early in texts_of(of, "validation")
    assert "day (time_column_name): 1 of the 220 test rows are not later" in str(
        texts_of(of, "test")
    )
    rows = [
        dict(row, day=f"{2000 + at}-01-01" if at else "unknown") for at, row in enumerate(months())
    ]
    assert findings(problem(tmp_path / "unknown", rows), "validation") == set()
    of = problem(tmp_path / "drawn", months())
    assert all("if rows are ordered by it: tags: " in text for text in texts_of(of, "validation"))


def test_a_test_that_the_fit_knows_is_found(tmp_path: Path) -> None:
    """Of a group that is fitted, and not later than what is fitted; and none that it does not."""
    rows, tags = customers(), {"group_column_name": "customer"}
    of = problem(tmp_path, rows[:400], tested=rows[400:], tags=tags)
    assert findings(of, "test") == {"customer"}
    early, late = (
        [row for row in rows if (int(str(row["customer"])) < 9040) is is_early]
        for is_early in (True, False)
    )
    assert findings(problem(tmp_path / "others", early, tested=late, tags=tags), "test") == set()
    tags, ordered = {"time_column_name": "day"}, sorted(months(), key=lambda row: str(row["day"]))
    of = problem(tmp_path / "shuffled", months()[:500], tested=months()[500:], tags=tags)
    assert findings(of, "test") == {"day"}
    first = next(at for at in range(500, 720) if ordered[at]["day"] != ordered[at - 1]["day"])
    of = problem(tmp_path / "later", ordered[:first], tested=ordered[first:], tags=tags)
    assert findings(of, "test") == set()


def test_rows_that_are_repeated_are_found(tmp_path: Path) -> None:
    """Whoever judges has learnt them by heart: of folds, and of the rows for the end."""
    rows = [*people(400)]
    of = problem(tmp_path, rows + rows[:60], n_cross_validations=3)
    assert any("validation rows are duplicates" in text for text in texts_of(of, "validation"))
    of = problem(tmp_path / "tested", rows[:300], tested=rows[250:])
    (text,) = texts_of(of, "test")
    assert text.startswith("50 of the 150 test rows are duplicates of training rows")


def test_rows_that_are_alike_by_nature_are_not_reported(tmp_path: Path) -> None:
    """Of few categories; and rows that differ in a missing value or in the target alone."""
    churn = ("No", "Yes")
    of_nature = [{"a": at % 3, "b": at % 2, "churn": churn[at % 5 > 2]} for at in range(300)]
    assert texts_of(problem(tmp_path, of_nature), "validation") == set()
    draw = np.random.default_rng(0)
    tokens = [f"{a}{b}" for a in "abcdefgh" for b in "xyz"]
    of_nature = [
        {
            "age": at % 61,
            "job": draw.choice(tokens),
            "pets": draw.integers(3),
            "churn": churn[at % 2],
        }
        for at in draw.integers(10_000, size=6000)
    ]
    of = problem(tmp_path / "many", of_nature)
    assert findings(of, "validation") == set()
    of = problem(tmp_path / "copies", of_nature[:900] + of_nature[:120])
    assert any("validation rows are duplicates" in text for text in texts_of(of, "validation"))
    rows = [*people(400)]
    other = {"No": "Yes", "Yes": "No"}
    turned = [{**row, "churn": other[str(row["churn"])]} for row in rows[:60]]
    lacking = [{**row, "income": ""} for row in rows[60:120] if row["income"] != ""]
    of = problem(tmp_path / "turned", rows + turned + lacking, n_cross_validations=3)
    assert texts_of(of, "validation") == set()


def shops(count: int, of_shops: int, seed: int = 0) -> list[dict[str, object]]:
    draw = np.random.default_rng(seed)
    rates = draw.uniform(0.2, 0.6, of_shops)
    rows = []
    for _ in range(count):
        shop = int(draw.integers(of_shops))
        is_yes = draw.uniform() < rates[shop]
        spent = round(float(draw.lognormal()), 4)
        rows.append({"shop": f"s{shop}", "spent": spent, "churn": "Yes" if is_yes else "No"})
    return rows


def encoded(
    rows: Sequence[Mapping[str, object]], by: Sequence[Mapping[str, object]], smooth: float
) -> list[dict[str, object]]:
    """The rows with the mean of the target by shop, of the rows `by`."""
    overall = float(np.mean([row["churn"] == "Yes" for row in by]))
    of_shop: dict[object, list[bool]] = {}
    for row in by:
        of_shop.setdefault(row["shop"], []).append(row["churn"] == "Yes")
    rate = {k: (sum(v) + smooth * overall) / (len(v) + smooth) for k, v in of_shop.items()}
    return [{**row, "rate": round(rate.get(row["shop"], overall), 9)} for row in rows]


@pytest.mark.attack("a target encoding that was fitted outside of the fold")
@pytest.mark.parametrize("smooth", [0.0, 7.0, 20.0])
@pytest.mark.parametrize("keeps_shop", [True, False])
def test_means_of_the_target_that_were_fitted_outside_are_found(
    tmp_path: Path, smooth: float, keeps_shop: bool
) -> None:
    rows = shops(1500, 100)
    table = [dict(row) for row in encoded(rows, rows, smooth)]
    for row in table:
        if not keeps_shop:
            row.pop("shop")
    assert findings(problem(tmp_path, table, n_cross_validations=3), "leakage") == {"rate"}


def test_means_of_other_rows_are_not_reported(tmp_path: Path) -> None:
    """Those of a year before, however smoothed, nor a number with few values that explains much."""
    for smooth in (0.0, 10.0):
        table = encoded(shops(1500, 100, seed=0), shops(3000, 100, seed=0)[1500:], smooth)
        of = problem(tmp_path / str(smooth), table, n_cross_validations=3)
        assert findings(of, "leakage") == set()
    rows = [dict(row, age=float(int(str(row["age"]))) + 0.5) for row in people(800)]
    assert findings(problem(tmp_path / "ages", rows, n_cross_validations=3), "leakage") == set()
    own = [dict(row, shop=str(row["shop"]) + "x") for row in shops(1500, 400)]
    assert findings(problem(tmp_path / "own", own, n_cross_validations=3), "leakage") == set()


@pytest.mark.attack("a column of the future among the features")
@pytest.mark.parametrize("classes", [("No", "Yes"), ("a", "b", "c")])
def test_a_column_of_the_future_is_found(tmp_path: Path, classes: Sequence[str]) -> None:
    """Of two classes and of several; a good feature is none."""
    rows = [
        dict(row, refund=0.0 if row["churn"] == classes[0] else 9.5 + at % 7)
        for at, row in enumerate(people(300, classes=classes))
    ]
    assert findings(problem(tmp_path, rows, n_cross_validations=3), "leakage") == {"refund"}
    honest = people(300, classes=classes)
    of = problem(tmp_path / "honest", honest, n_cross_validations=3)
    assert findings(of, "leakage") == set()


@pytest.mark.attack("a column of the future among the features")
@pytest.mark.parametrize("classes", [("No", "Yes"), ("a", "b", "c")])
@pytest.mark.parametrize("tokens", [6, 12])
def test_a_category_of_the_future_is_found(
    tmp_path: Path, classes: Sequence[str], tokens: int
) -> None:
    """Each of its values is of one class, in whatever order of the alphabet they are."""
    names = ["k3", "b8", "z1", "m5", "a2", "q7", "d4", "x9", "c6", "w0", "h2", "f5"][:tokens]
    draw = np.random.default_rng(0)
    rows = []
    for row in people(600, classes=classes):
        at = classes.index(str(row["churn"]))
        state = names[at :: len(classes)]
        rows.append(dict(row, state=str(draw.choice(state))))
    assert findings(problem(tmp_path, rows, n_cross_validations=3), "leakage") == {"state"}


@pytest.mark.parametrize("share", [0.5, 0.02])
@pytest.mark.parametrize("values", [3, 60, 250])
def test_a_category_that_says_nothing_is_not_reported(
    tmp_path: Path, values: int, share: float
) -> None:
    """Of few values and of many, with rows of a rare class; nor pairs of one row of each class."""
    draw = np.random.default_rng(0)
    rows = [
        {"x": float(draw.normal()), "town": f"t{draw.integers(values)}"}
        | {"churn": "Yes" if at < share * 600 else "No"}
        for at in range(600)
    ]
    assert findings(problem(tmp_path, rows, n_cross_validations=3), "leakage") == set()
    pairs = [dict(row, town=f"p{at % 250}") for at, row in enumerate(rows[:500])]
    for at, row in enumerate(pairs):
        row["churn"] = "Yes" if at < 250 else "No"
    of = problem(tmp_path / "pairs", pairs, n_cross_validations=3)
    assert findings(of, "leakage") == set()


def test_a_category_of_the_future_of_a_regression(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [dict(row, town=f"t{draw.integers(40)}") for row in people(400)]
    job = {"task": "regression", "target": "spent", "metric": "r2_score"}
    assert findings(problem(tmp_path, rows, **job), "leakage") == set()
    tiers = draw.permutation(20)
    for row in rows:
        row["spent"] = round(float(str(row["spent"])) / 30)
        row["tier"] = f"t{tiers[int(str(row['spent']))]}"
    assert findings(problem(tmp_path / "tiers", rows, **job), "leakage") == {"tier"}


def test_a_number_of_the_future_is_found(tmp_path: Path) -> None:
    """Of a regression; another good feature is none."""
    of = enumerate(people())
    rows = [dict(row, paid=2 * float(str(row["spent"])) + at % 2) for at, row in of]
    job = {"task": "regression", "target": "spent", "metric": "r2_score"}
    assert findings(problem(tmp_path, rows, **job), "leakage") == {"paid"}
    assert findings(problem(tmp_path / "honest", people(), **job), "leakage") == set()


def test_the_spec_says_how_rows_are_divided_by_tags(tmp_path: Path, fit: Fit) -> None:
    """The leaderboard says it."""
    table = write(tmp_path / "table", customers())
    tags = {"group_column_name": "customer"}
    folder, _ = fit(table, tags=tags, n_cross_validations=3)
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    assert facts["validation"] == "3 folds, grouped by customer"


def test_rows_that_watch_are_of_the_rows_that_fit() -> None:
    """A share of each class, of other groups, or the later ones; none where they are too few."""
    rows, labels = np.arange(1000), np.arange(1000) % 10 // 9
    left, early_stopping = Divided(labels, 1000, 0).split_early_stopping(rows[:600])
    assert sorted([*left, *early_stopping]) == [*range(600)]
    assert len(early_stopping) == 120 and labels[early_stopping].sum() == 12
    groups = np.arange(1000) // 20
    left, early_stopping = Divided(labels, 1000, 0, groups, by="of").split_early_stopping(rows)
    assert len(early_stopping) > 100 and not {*groups[left]} & {*groups[early_stopping]}
    times = np.arange(1000)[::-1].astype(float)
    left, early_stopping = Divided(labels, 1000, 0, times=times, by="day").split_early_stopping(
        rows
    )
    assert times[left].max() < times[early_stopping].min()
    for few in (
        Divided(labels, 1000, 0).split_early_stopping(rows[:150]),
        Divided(labels, 1000, 0, groups // 10, by="of").split_early_stopping(rows),
        Divided(labels, 1000, 0, times=np.repeat([1.0, 2.0], 500), by="day").split_early_stopping(
            rows
        ),
        Divided(
            (rows == 999).astype(int), 1000, 0, times=times[::-1], by="day"
        ).split_early_stopping(rows),
    ):
        assert len(few[1]) == 0


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (999, "10 folds, by the number of rows (999)"),
        (1_000, "3 folds, by the number of rows (1000)"),
        (50_000, "3 folds, by the number of rows (50000)"),
        (50_001, "5000 rows are held out, by the number of rows (50001)"),
    ],
)
def test_how_many_folds_judge_follows_from_the_number_of_rows(rows: int, sentence: str) -> None:
    divided = Divided(None, rows, 0)
    assert validation.folds(divided, (), np.arange(rows), {})[1] == sentence
