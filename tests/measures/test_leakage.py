"""What gives the answers away: each check has a case that is allowed and one that is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

import numpy as np
import pytest

from ml.measures.leakage import BOUNDS, features, identifiers, leaks, not_later, shared
from ml.measures.schema import Check, stated
from policies.promotion import gate_settings

RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=400)
LABEL = RNG.integers(0, 2, 400)
DAY = datetime(2025, 1, 1, tzinfo=UTC)


def _only(checks: list[Check]) -> Check:
    assert len(checks) == 1
    return checks[0]


def test_features_that_help_are_no_leak():
    """The strongest is told, with what it reaches alone."""
    helps = LABEL + NOISE
    check = _only(features(np.column_stack([NOISE, helps]), LABEL, ["noise", "helps"]))
    assert (check.check, check.of, check.units, leaks(check)) == (
        "feature.auc",
        "helps",
        400,
        False,
    )
    # Φ(1/√2): a positive is above a negative by 1, with noise of standard deviation √2.
    assert check.value == pytest.approx(0.760, abs=0.05)


@pytest.mark.parametrize("sign", [1, -1])
def test_features_that_give_a_label_away_are_told(sign: int):
    """In either direction, every one of them; the label itself is an AUC of 1."""
    table = np.column_stack([NOISE, sign * LABEL, sign * (LABEL * 4 + NOISE)])
    checks = features(table, LABEL.astype(str), ["noise", "paid_back", "like_it"])
    assert [check.of for check in checks] == ["paid_back", "like_it"]
    assert all(leaks(check) for check in checks) and checks[0].value == 1.0


def test_a_feature_that_is_missing_for_one_label_is_told():
    """A column that is filled in after the event."""
    check = _only(features(np.where(LABEL == 1, np.nan, NOISE)[:, None], LABEL, ["closed_on"]))
    assert leaks(check) and check.value == 1.0


def test_auc_counts_ties_by_half():
    """Four pairs: one right, two ties, one wrong; a constant is 0.5."""
    check = _only(features([[1.0, 0], [2, 0], [1, 0], [2, 0]], [0, 0, 1, 1], ["half", "constant"]))
    assert check.value == 0.5


@pytest.mark.parametrize(("noise", "is_leak"), [(1.0, False), (0.2, False), (0.01, True)])
def test_a_numeric_target_by_rank_correlation(noise: float, is_leak: bool):
    """Any increasing or decreasing function of the target leaks; a good predictor does not."""
    target = RNG.normal(size=500)
    near = -np.exp(target + noise * RNG.normal(size=500))
    check = _only(features(near[:, None], target, ["near"]))
    assert check.check == "feature.correlation" and leaks(check) is is_leak


def test_a_feature_that_gives_one_of_three_classes_away_is_found():
    """The AUC of that class against the others; a feature that tells none of them is no leak."""
    names = np.array(["a", "b", "c"] * 40)
    table = np.column_stack([names == "b", np.arange(120) % 7]).astype(float)
    (check,) = features(table, names, ["tells b", "other"])
    assert (check.check, check.of, check.value) == ("feature.auc", "tells b", 1.0)
    assert features(table[:, 1:], names, ["other"])[0].value < 0.6


@pytest.mark.parametrize(
    ("table", "target", "message"),
    [
        ([[1.0], [2.0]], [1, 1], "always the same"),
        ([[1.0], [2.0]], [0, 1, 0], "expected 3 rows"),
        ([[1.0], [2.0], [3.0]], [1j, 2j, 3j], "neither"),
        ([[1.0], [2.0], [3.0]], [0.5, 1.5, np.nan], "neither"),
    ],
)
def test_what_cannot_be_judged_is_refused(table: object, target: object, message: str):
    """Nothing is passed off as checked."""
    with pytest.raises(ValueError, match=message):
        features(table, target, ["one"])  # type: ignore[arg-type]


def test_identifiers_in_one_part_alone_are_no_leak():
    """None is found, and how many were looked at is told."""
    check = shared(["a", "b"], ["c", "d"], "customer")
    assert (check.value, check.units, leaks(check)) == (0, 2, False)
    assert check.found == "0 of 2 by customer were trained on"


def test_identifiers_in_both_parts_are_told():
    """Each row of the test counts; a few are named."""
    check = shared(["a", "b", "e", "f"], ["a", "c", "b", "a", "e", "f"], "customer")
    assert (check.value, leaks(check)) == (5, True)
    assert check.found == "5 of 6 by customer were trained on: a, b, …"
    with pytest.raises(ValueError, match="0 of the test"):
        shared(["a"], [], "customer")


def test_a_test_that_is_later_is_no_leak():
    """By times, and by numbers."""
    days = [DAY + timedelta(days=n) for n in range(4)]
    assert not leaks(not_later(days[:2], days[2:], "day"))
    assert not leaks(not_later(np.arange(3.0), np.arange(3.0, 5), "week"))


def test_a_test_in_the_past_of_training_is_told():
    """The same moment is not later; nor is one that nobody knows."""
    days = [DAY + timedelta(days=n) for n in range(4)]
    check = not_later(days[:3], [days[1], days[2], days[3]], "day")
    assert (check.value, check.units, leaks(check)) == (2, 3, True)
    assert "2 of 3 by day are not later" in check.found
    assert not_later([1.0, 2.0], [3.0, np.nan], "week").value == 1
    assert not_later([1.0, np.nan], [3.0, 4.0], "week").value == 2
    times = np.array(["2025-01-01", "2025-01-02"], "datetime64[D]")
    assert not_later(times, np.array(["2025-01-03", "NaT"], "datetime64[D]"), "day").value == 1


def test_the_bounds_are_those_of_the_gate():
    """What an evaluation tells as a leak, the floor refuses."""
    assert dict(gate_settings.load()["leakage"].numbers("at_most")) == dict(BOUNDS)


def test_what_is_not_a_number_leaks():
    """NaN passes no bound."""
    assert leaks(Check("feature.auc", "f", float("nan"), 1, ""))


def test_identifiers_are_written_hashed():
    """Those of training once, in an order that says nothing; those of the test row by row."""
    check = shared(["b", "a", "b"], ["c", "a", "c"], "id")
    other = features(NOISE[:, None], LABEL, ["noise"])
    text = identifiers([*other, check])
    rows = [line.split(",") for line in text.splitlines()]
    hashed = {name: sha256(name.encode()).hexdigest()[:16] for name in "abc"}
    assert rows[0] == ["of", "part", "sha256"]
    assert rows[1:3] == sorted(["id", "training", hashed[name]] for name in "ab")
    assert rows[3:] == [["id", "test", hashed[name]] for name in "cac"]
    assert identifiers(other) == "" and "training" not in stated(check)
