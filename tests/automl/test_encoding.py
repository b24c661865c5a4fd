"""Featurization inside the fold: what rows of training fill is what serves, to the last bit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.automl import encoding, tables
from ml.automl.tables import Choices
from ml.serving.scoring.columns import Columns, Input, days, read_date, words
from ml.toolkit.automl import reading
from ml.toolkit.automl.cells import as_texts
from tests.automl.conftest import people, write

Fit = Callable[..., tuple[Path, dict[str, float]]]
NOTES = [
    "the card was declined twice",
    "late fee on my card",
    "why is the fee so late",
    "thanks a lot for it",
]


def rows_of(count: int = 400, seed: int = 0) -> Sequence[Mapping[str, object]]:
    """A shop of 300 whose rate decides, a time of which the weekend decides, and a note."""
    draw = np.random.default_rng(seed)
    rates = draw.uniform(0, 1, 300)
    rows = []
    for at in range(count):
        shop = int(draw.integers(300))
        time = datetime(2026, 1 + at % 12, 1 + int(draw.integers(28)), int(draw.integers(24)))
        weekend = time.weekday() >= 5
        note = f"{draw.choice(NOTES)} {draw.choice(NOTES)} {at}"
        is_yes = draw.uniform() < 0.15 + 0.5 * (rates[shop] > 0.5) + 0.3 * weekend
        rows.append(
            {
                "shop": f"s{shop}" if at % 19 else "",
                "paid": time.isoformat(sep=" "),
                "note": note,
                "amount": round(float(draw.lognormal()), 3),
                "churn": "Yes" if is_yes else "No",
            }
        )
    return rows


def table_of(
    folder: Path, rows: Sequence[Mapping[str, object]], choices: Choices | None = None
) -> tuple[tables.Table, Any]:
    frame = reading.read(write(folder, rows), "churn")
    table = tables.as_table(frame, choices, target="churn", regression=False)
    return table, (table.labels == "Yes").astype(np.int64)


def test_what_columns_are_taken_for(tmp_path: Path) -> None:
    """A category of many values by its target, a time by its parts, prose by its words."""
    table, _ = table_of(tmp_path / "table", rows_of(900))
    chosen = {column.name: column.choice for column in table.columns}
    assert chosen["shop"].endswith("target encoding")
    assert chosen["paid"].startswith("a time: calendar features")
    assert chosen["note"] == "free text: TF-IDF of its words"
    blocked = Choices(blocked=frozenset({"tf_idf", "cat_target_encoder"}))
    table, _ = table_of(tmp_path / "table", rows_of(900), blocked)
    chosen = {column.name: column.choice for column in table.columns}
    assert "target encoding" not in chosen["shop"] and chosen["note"].endswith("excluded")
    purposes = Choices(purposes={"shop": "Text", "paid": "Categorical", "note": "Ignore"})
    table, _ = table_of(tmp_path / "table", rows_of(60), purposes)
    assert [column.feature for column in table.columns] == ["words", "category", "", "number"]


def test_a_request_has_the_numbers_of_training(tmp_path: Path) -> None:
    """Of rows that were not fitted, among them values that training never saw: bit for bit."""
    rows = rows_of(900)
    table, labels = table_of(tmp_path / "table", rows, Choices(fills={"amount": {}}))
    document = encoding.fit(table, labels, np.arange(600), (), Choices())
    document = json.loads(json.dumps(document))
    shared = {"name", "origin", "parts", "imputation_values"}
    kinds = {next(iter(of.keys() - shared), "") for of in document["inputs"]}
    assert len(kinds) == 4
    columns = Columns(document, lambda row: row)
    names = [*columns.columns]
    stated = [[row[name] or None for name in names] for row in rows]
    served = columns.matrix(columns.read(names, stated)).astype(np.float32)
    trained = encoding.matrix(table, document, np.arange(900))
    assert trained.tobytes() == served.tobytes()
    assert trained.shape[1] == len(columns.names)


CELLS = st.one_of(
    st.none(),
    st.sampled_from(
        ["a", "b", "2026-02-28", "2026-02-28T23:59:59Z", "13/02/2026", "word word two"]
    ),
    st.text(max_size=12),
)
INPUTS = st.sampled_from(
    [
        {"categories": ["a", "b"]},
        {"date": "iso", "origin": 7e5, "parts": ["year", "weekday", "hour", "days"]},
        {"date": "day-first", "origin": 0.0, "parts": ["month", "days"]},
        {"words": ["two", "word", "word word"], "idf": [1.7, 1.1, 2.3]},
        {
            "means": {"a": [0.1, 0.7]},
            "missing": [0.3, 0.3],
            "other": [1 / 3, 0.2],
            "of": ["x", "y"],
        },
    ]
)


@given(cells=st.lists(CELLS, min_size=1, max_size=8), spec=INPUTS)
@settings(max_examples=100)
def test_any_text_has_the_same_bits_in_a_table_and_in_a_request(
    cells: list[str | None], spec: dict[str, Any]
) -> None:
    document = {
        "columns": [{"name": "x", "type": "text"}],
        "inputs": [{"name": "x", **spec}],
        "encoding": "codes",
        "classes": [],
    }
    columns = Columns(document, lambda row: row)
    served = columns.matrix(columns.read(["x"], [[cell] for cell in cells])).astype(np.float32)
    texts = pd.Series([values[0] for values in columns.read(["x"], [[cell] for cell in cells])])
    frame = pd.DataFrame({"x": as_texts(texts.astype(object))})
    column = tables.Column("x", "text", "", "category")
    table = tables.Table(frame, np.zeros(len(cells)), [column])
    assert encoding.matrix(table, document, np.arange(len(cells))).tobytes() == served.tobytes()


def test_means_are_of_other_rows_where_they_are_fitted(tmp_path: Path) -> None:
    """A category of 10,000 values that says nothing: the fitted rows' own means would give their
    labels away.
    """
    draw = np.random.default_rng(0)
    rows = [
        {"shop": f"s{at % 10_000}", "churn": draw.choice(["No", "Yes"])} for at in range(30_000)
    ]
    table, labels = table_of(tmp_path / "table", rows)
    assert table.columns[0].feature == "mean"
    train = np.arange(20_000)
    document = encoding.fit(table, labels, train, (), Choices())
    assert len(document["inputs"][0]["means"]) == 10_000
    own = encoding.matrix(table, document, train)[:, 0]
    cross_fitted = encoding.matrix(table, document, train, labels)[:, 0]
    of_own, of_cross_fitted = (
        abs(np.corrcoef(of, labels[train])[0, 1]) for of in (own, cross_fitted)
    )
    assert of_own > 0.4 and of_cross_fitted < 0.05


@pytest.mark.parametrize("kept", [(0, 1, 2, 3), (0, 2, 3), (1, 3)])
def test_means_of_a_class_that_no_fitted_row_has(tmp_path: Path, kept: Sequence[int]) -> None:
    """They are 0; those of the others are scikit-learn's, of whatever integers labels are."""
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import TargetEncoder

    draw = np.random.default_rng(0)
    rows = [
        {"shop": f"s{draw.integers(300)}", "churn": f"c{draw.integers(4)}"} for _ in range(2000)
    ]
    table, _ = table_of(tmp_path / "table", rows)
    labels = np.array([int(str(of)[1]) for of in table.labels], np.int16)
    train, classes = np.flatnonzero(np.isin(labels, kept)), ["c0", "c1", "c2", "c3"]
    document = encoding.fit(table, labels, train, classes, Choices())
    means = np.array(list(document["inputs"][0]["means"].values()))
    cross_fitted = encoding.matrix(table, document, train, labels)
    absent = [of for of in range(4) if of not in kept]
    assert cross_fitted.shape == (len(train), 4) and means.shape[1] == 4
    assert not means[:, absent].any() and not cross_fitted[:, absent].any()
    if len(kept) > 2:
        others = StratifiedKFold(5, shuffle=True, random_state=0)
        theirs = TargetEncoder(target_type="multiclass", smooth="auto", cv=others)
        codes = table.frame["shop"].cat.codes.to_numpy()[train].reshape(-1, 1)
        expected = theirs.fit_transform(codes, labels[train].astype(np.int64))
        np.testing.assert_array_equal(cross_fitted[:, [*kept]], expected.astype(np.float32))


@pytest.mark.attack("featurization that looks at the labels of rows that judge")
def test_labels_that_judge_change_nothing_that_is_fitted(tmp_path: Path) -> None:
    table, labels = table_of(tmp_path / "table", rows_of(900))
    train = np.arange(600)
    other = np.concatenate([labels[:600], 1 - labels[600:]])
    documents = [encoding.fit(table, of, train, (), Choices()) for of in (labels, other)]
    assert documents[0] == documents[1]
    matrices = [encoding.matrix(table, documents[0], train, of) for of in (labels, other)]
    assert matrices[0].tobytes() == matrices[1].tobytes()
    other[0] = 1 - other[0]
    assert encoding.fit(table, other, train, (), Choices()) != documents[0]


def test_words_are_weighted_as_scikit_learn_does() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2)).fit(NOTES)
    known, idf = vectorizer.get_feature_names_out().tolist(), vectorizer.idf_.tolist()
    text = "My CARD, my card: late fee! une fée"
    ours = Input({"name": "note", "words": known, "idf": idf}).numbers(text)
    np.testing.assert_allclose(ours, vectorizer.transform([text]).toarray()[0], atol=1e-12)
    assert words("A bc def") == ["bc", "def", "bc def"]


@pytest.mark.parametrize(
    ("text", "order", "expected"),
    [
        ("2026-03-01", "iso", datetime(2026, 3, 1)),
        ("2026-03-01 10:30", "iso", datetime(2026, 3, 1, 10, 30)),
        ("2026-03-01T01:00:00+02:00", "iso", datetime(2026, 2, 28, 23)),
        ("3/1/2026", "month-first", datetime(2026, 3, 1)),
        ("3/1/2026 9:05", "day-first", datetime(2026, 1, 3, 9, 5)),
        ("31/1/2026", "month-first", None),
        ("3.1.2026 9:05", "day-first", datetime(2026, 1, 3, 9, 5)),
        ("3.1.2026", "month-first", None),
        ("3.1/2026", "day-first", None),
        ("2026-02-30", "iso", None),
        ("soon", "iso", None),
    ],
)
def test_dates(text: str, order: str, expected: datetime | None) -> None:
    assert read_date(text, order) == expected
    part = Input({"name": "x", "date": order, "origin": 0.0, "parts": ["days"]}).numbers(text)[0]
    assert math.isnan(part) if expected is None else part == days(expected)


def test_an_imputer_of_the_spec_is_fitted_inside_the_fold(tmp_path: Path) -> None:
    fills = {"income": {"strategy": "median"}}
    rows = people(60)
    table, labels = table_of(tmp_path / "table", rows)
    document = encoding.fit(table, labels, np.arange(30), (), Choices(fills=fills))
    incomes = [row["income"] for row in rows[:30] if row["income"] != ""]
    fill = document["inputs"][1]["fill"]
    assert fill == pytest.approx(float(np.median(incomes)), rel=1e-6)
    assert encoding.matrix(table, document, np.array([0]))[0, 1] == np.float32(fill)


@pytest.mark.parametrize("value", ["abc", [1], "nan", math.inf])
def test_an_imputer_has_a_number(tmp_path: Path, value: object) -> None:
    fills = {"income": {"strategy": "constant", "fill_value": value}}
    table, labels = table_of(tmp_path / "table", people(60))
    with pytest.raises(SystemExit, match=r"error\[bad-imputer\]: `income` has `fill_value: "):
        encoding.fit(table, labels, np.arange(30), (), Choices(fills=fills))


def test_notes_that_share_no_word_say_nothing(tmp_path: Path, fit: Fit) -> None:
    rows = [
        {"note": " ".join(f"w{at}{of}" for of in "abcde"), "churn": ("No", "Yes")[at % 2]}
        for at in range(60)
    ]
    with pytest.raises(SystemExit, match=r"error\[no-feature\]"):
        fit(write(tmp_path / "table", rows), n_cross_validations=2)


@pytest.mark.parametrize("name", ["light_gbm", "logistic_regression", "xg_boost_classifier"])
def test_they_are_learnt_from(tmp_path: Path, fit: Fit, name: str) -> None:
    """Of shops and weekends; the leaderboard names the choices."""
    from tests.automl.test_trial import of_family

    settings = of_family(name, "classification")
    table = write(tmp_path / "table", rows_of(3000))
    purposes = {"mode": "custom", "column_name_and_types": {"amount": "Ignore"}}
    folder, metrics = fit(table, name, settings, featurization=purposes, n_cross_validations=2)
    assert metrics["AUC_weighted"] > 0.68
    columns = json.loads((folder / "settings.json").read_text())["automl"]["columns"]
    assert {of["feature"] for of in columns} == {"mean", "date", "words", ""}
