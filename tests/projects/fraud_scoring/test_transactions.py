"""The generated transactions: their mechanism is the one that is written down."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ml.projects.fraud_scoring import transactions
from ml.projects.fraud_scoring.train import SCHEMA
from ml.projects.fraud_scoring.transactions import DAY, FINAL_AFTER, HOUR, Transactions, windowed

DATA = SCHEMA.parent
TABLE = DATA / "fraud_scoring" / "table.csv"


@pytest.fixture(scope="module", name="made")
def _made() -> Transactions:
    """What data/ was made of."""
    return transactions.generate()


def test_the_tables_are_what_the_generator_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the byte; the best AUC is said, and another seed makes other rows."""
    transactions.main(["--out", str(tmp_path)])
    line = capsys.readouterr().out.strip()
    assert 0.96 < float(line.split()[-1]) < 0.98
    assert line.partition(": ")[2] in (SCHEMA.parents[1] / "README.md").read_text()
    assert (tmp_path / "fraud_scoring" / "table.csv").read_bytes() == TABLE.read_bytes()
    made, kept = (
        pl.read_parquet(folder / "card_payments" / "payments.parquet")
        for folder in (tmp_path, DATA)
    )
    assert made.equals(kept)
    wait = (made["arrival"] - made["paid_at"]).dt.total_seconds()
    assert wait.min() > 0 and 0.005 < (wait > 3600).mean() < 0.02
    small = [transactions.generate(seed, 20, 40).columns["amount"].tolist() for seed in (0, 0, 1)]
    assert small[0] == small[1] != small[2]


def test_no_ranking_is_expected_to_beat_the_true_probabilities(made: Transactions) -> None:
    """The best AUC is the mean over tables with the same rows and other draws of the labels."""
    draw = np.random.default_rng(3)
    rank = np.argsort(np.argsort(made.probability)) + 1.0
    drawn = []
    for _ in range(40):
        fraud = draw.random(len(rank)) < made.probability
        pairs = fraud.sum() * (~fraud).sum()
        drawn.append((rank[fraud].sum() - fraud.sum() * (fraud.sum() + 1) / 2) / pairs)
    assert abs(np.mean(drawn) - transactions.best_auc(made.probability)) < 0.003


def test_one_in_a_hundred_is_a_fraud(made: Transactions) -> None:
    """By the probabilities, and about so by the labels."""
    fraud = made.columns["is_fraud"] == "yes"
    assert made.probability.mean() == pytest.approx(0.01)
    assert 0.008 < fraud.mean() < 0.012


@pytest.mark.parametrize(
    ("column", "more"), [("count_1h", 2), ("abroad", 1), ("unusual", 3), ("night", 1)]
)
def test_the_mechanism_is_the_one_that_is_written_down(
    made: Transactions, column: str, more: float
) -> None:
    """Bursts, foreign countries, unusual amounts and nights have more frauds."""
    columns = made.columns
    values = {
        "unusual": columns["amount"] / columns["usual_amount"],
        "night": columns["hour"] < 6,
        **columns,
    }[column]
    high = values >= more
    assert made.probability[high].mean() > 2 * made.probability[~high].mean()


def test_the_mechanism_drifts(made: Transactions) -> None:
    """Vouchers have more frauds in the second half, travel fewer; groceries stay."""
    late = made.seconds > made.seconds[-1] / 2
    grown = {
        name: made.probability[late & of].mean() / made.probability[~late & of].mean()
        for name in ("vouchers", "travel", "grocery")
        for of in [made.columns["category"] == name]
    }
    assert grown["vouchers"] > 1.5 and grown["travel"] < 0.8 and 0.6 < grown["grocery"] < 1.6


def test_windows_do_not_look_into_the_future(made: Transactions) -> None:
    """What is known of the first rows is the same without the later ones, and right."""
    card, amount = made.columns["card"], made.columns["amount"]
    _, number = np.unique(card, return_inverse=True)
    some = 3000
    whole = windowed(number, made.seconds, amount)
    for name, values in windowed(number[:some], made.seconds[:some], amount[:some]).items():
        assert np.array_equal(values, whole[name][:some], equal_nan=True)
        assert np.array_equal(values, made.columns[name][:some], equal_nan=True)
    for row in range(0, some, 97):
        before = np.flatnonzero((number == number[row]) & (made.seconds < made.seconds[row]))
        for name, width in (("1h", HOUR), ("24h", DAY)):
            within = before[made.seconds[before] >= made.seconds[row] - width]
            assert whole[f"count_{name}"][row] == len(within)
            assert whole[f"sum_{name}"][row] == pytest.approx(amount[within].sum(), abs=0.01)
        since = made.seconds[row] - made.seconds[before].max() if len(before) else np.nan
        assert np.array_equal(whole["since_last"][row], since, equal_nan=True)


def test_labels_come_late(made: Transactions) -> None:
    """A fraud is known when it is reported, all else after 30 days: of the last days only frauds
    would be known, and the table has no row of them.
    """
    fraud = made.columns["is_fraud"] == "yes"
    delay = made.labelled - made.seconds
    assert (delay[~fraud] == FINAL_AFTER * DAY).all() and (delay[fraud] <= FINAL_AFTER * DAY).all()
    assert 3 * DAY < delay[fraud].mean() < 10 * DAY
    end = transactions.DAYS * DAY
    recent = made.seconds > end - FINAL_AFTER * DAY
    assert fraud[recent & (made.labelled <= end)].all()
    with TABLE.open() as stream:
        last = [row["made_at"] for row in csv.DictReader(stream)][-1]
    assert last <= transactions._text(end - FINAL_AFTER * DAY)
