"""The last days of a store, and how old they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ml.features.definition import FeatureSet
from ml.features.materialize import materialize
from ml.features.store import ages, stored
from ml.features.timeline import FeatureError
from tests.features.test_materialize import HOUR, START, payment, write


def test_the_last_days_have_enough_rows(account_payments: FeatureSet, tmp_path: Path) -> None:
    """Whole days, from the last one back; all where that is not enough."""
    rows = [payment(24 * day + hour) for day in range(3) for hour in range(2)]
    materialize(account_payments, write(tmp_path / "source", "1.parquet", rows), tmp_path)
    heights = [stored(account_payments, tmp_path, least).height for least in (1, 2, 3, 99)]
    assert heights == [2, 2, 4, 6]
    every = stored(account_payments, tmp_path)
    assert stored(account_payments, tmp_path, 3).equals(every.tail(4))


def test_a_set_without_rows_has_no_last_day(account_payments: FeatureSet, tmp_path: Path) -> None:
    """The error says what to run."""
    with pytest.raises(FeatureError, match="ml features materialize account_payments"):
        stored(account_payments, tmp_path, 1)


def test_ages_have_the_limits_of_the_definition(
    account_payments: FeatureSet, tmp_path: Path
) -> None:
    """Of the event the lookback of 2 days; of the arrival the schedule and the delay of 5 minutes.

    The late row of an older event is the newest arrival.
    """
    rows = [payment(2), payment(1, late=9)]
    materialize(account_payments, write(tmp_path / "source", "1.parquet", rows), tmp_path)
    table = stored(account_payments, tmp_path)
    event, arrival = ages(account_payments, table, START + 34 * HOUR)
    assert (event.last, event.age, event.limit) == (START + 2 * HOUR, 32 * HOUR, 48 * HOUR)
    assert (arrival.last, arrival.age) == (START + 10 * HOUR, 24 * HOUR)
    assert arrival.limit == 24 * HOUR + timedelta(minutes=5)
    assert not event.is_late and not arrival.is_late
    late = ages(account_payments, table, START + 35 * HOUR)
    assert [age.is_late for age in late] == [False, True]
    stale = ages(account_payments, table, START + 50 * HOUR)
    assert [age.is_late for age in stale] == [True, True]
    unscheduled = replace(account_payments, schedule=None, lookback=None)
    assert [age.limit for age in ages(unscheduled, table, START)] == [None, None]
