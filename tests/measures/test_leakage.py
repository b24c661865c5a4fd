"""What gives the answers away: each check has a case that is allowed and one that is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

import numpy as np
import pandas as pd
import pytest

from ml.measures.leakage import (
    BOUNDS,
    WARNINGS,
    features,
    identifiers,
    joint_checks,
    leaks,
    model,
    not_later,
    shared,
    warning,
)
from ml.measures.schema import Check, stated
from policies.promotion import gate_settings
from tests.conftest import ROOT

# Public tables, where this repository is beside them.
DATA = ROOT / "../shared/data"

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
        ([[1.0], [2.0]], [1, 1], "the target is constant"),
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
    assert check.actual == "0 of 2 by customer were trained on"


def test_an_identifier_is_the_same_however_it_is_written():
    """Spaces and composed characters do not hide a row; capitals tell ids apart."""
    check = shared(
        ["how  do I?", "caf\u00e9", "A1"], ["how do\u00a0I? ", "cafe\u0301", "a1"], "text"
    )
    assert check.value == 2
    assert shared(["a b"], ["a  b"], "text").test == shared(["a b"], ["a b"], "text").test


def test_identifiers_in_both_parts_are_told():
    """Each row of the test counts; a few are named."""
    check = shared(["a", "b", "e", "f"], ["a", "c", "b", "a", "e", "f"], "customer")
    assert (check.value, leaks(check)) == (5, True)
    assert check.actual == "5 of 6 by customer were trained on: a, b, …"
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
    assert "2 of 3 by day are not later" in check.actual
    assert not_later([1.0, 2.0], [3.0, np.nan], "week").value == 1
    assert not_later([1.0, np.nan], [3.0, 4.0], "week").value == 2
    times = np.array(["2025-01-01", "2025-01-02"], "datetime64[D]")
    assert not_later(times, np.array(["2025-01-03", "NaT"], "datetime64[D]"), "day").value == 1


def test_the_bounds_are_those_of_the_gate():
    """What an evaluation tells as a leak, the organisation policy refuses."""
    assert dict(gate_settings.load()["leakage"].numbers("at_most")) == dict(BOUNDS)


def test_what_warns_is_that_of_the_gate():
    """What an evaluation warns of, the gate warns of."""
    assert dict(gate_settings.load()["leakage"].numbers("warn_from")) == dict(WARNINGS)


NAMES = [f"x{number}" for number in range(12)]
NOISES = RNG.normal(size=(600, 12))
A, B, C = NOISES.T[:3]
CLASSES = RNG.integers(0, 3, 600)
SIDE = (CLASSES == 1).astype(int)


@pytest.mark.parametrize(
    ("values", "target", "is_category"),
    [
        ((CLASSES * 2) % 3 + 3 * RNG.integers(0, 5, 600), SIDE, True),
        ((CLASSES * 2) % 3 + 3 * RNG.integers(0, 5, 600), np.array(list("abc"))[CLASSES], True),
        (np.where(SIDE == 1, RNG.uniform(-1, 1, 600), 3 * np.sign(A) + B / 9), SIDE, False),
        (np.where(SIDE == 1, np.where(A > 0, np.nan, -9.0), B), SIDE, False),
    ],
    ids=["category", "category of classes", "in the middle", "missing or small"],
)
def test_a_leak_in_no_order_is_found(values: np.ndarray, target: np.ndarray, is_category: bool):
    """Whatever the codes of categories are, and whichever values stand for a label."""
    table = np.column_stack([B, values])
    check = _only(features(table, target, ["b", "leak"], [1] if is_category else []))
    assert check.of == "leak" and leaks(check), check


@pytest.mark.parametrize(
    ("target", "is_leak"),
    [
        (((A > 0) ^ (B > 0)).astype(int), True),
        ((A + B + C > 0).astype(int), True),
        (np.digitize(A + B, [-1, 1]).astype(str), True),
        (A + 2 * B - C, True),
        ((A + B + C + 2 * RNG.normal(size=600) > 0).astype(int), False),
        (A + RNG.normal(size=600), False),
        (SIDE, False),
    ],
    ids=["xor", "sum", "sum of classes", "sum of numbers", "helps", "helps a number", "noise"],
)
def test_a_leak_of_features_together_is_found(target: np.ndarray, is_leak: bool):
    """Though none of them alone tells much; features that help are no leak."""
    assert not any(map(warning, features(NOISES, target, NAMES)))
    joint, whole = joint_checks(NOISES, target, NAMES)
    assert (joint.check or "").startswith("joint.") and leaks(joint) is is_leak
    assert bool(warning(joint)) is is_leak and (is_leak or not warning(whole)), (joint, whole)
    if target.dtype.kind == "i" and is_leak:
        assert {"x0", "x1"} <= {*str(joint.of).split(" + ")}


def test_features_that_are_too_good_warn_below_the_bound():
    """Each is named, and the model that has them; the bound of a model is no gate's."""
    near = SIDE[:, None] * 2.4 + NOISES[:, :2]
    checks = [*features(near, SIDE, ["a", "b"]), model(near.sum(axis=1), SIDE, "test")]
    assert [leaks(check) for check in checks] == [False, False, False]
    named = " ".join(map(warning, checks))
    assert "a alone: auc 0.9" in named and "b alone" in named and "the model on test" in named
    number = features((A + 0.3 * B)[:, None], A, ["near"])
    assert not leaks(number[0]) and "correlation 0.95" in warning(number[0])


def test_pairs_of_a_case_and_a_control_are_no_leak():
    """The mean of the others in a pair is the other label: that is no prediction of this one."""
    pairs = np.repeat(np.arange(300), 2)
    check = _only(features(pairs[:, None], np.arange(600) % 2, ["pair"], [0]))
    assert not warning(check)


@pytest.mark.parametrize("name", ["uci/adult.csv", "bank_marketing/bank_marketing_train_data.csv"])
def test_public_tables_do_not_warn(name: str):
    """Where they are: features that predict well, alone and together."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    frame = pd.read_csv(path, skipinitialspace=True).iloc[::5]
    *names, target = frame.columns
    codes = [n for n, of in enumerate(names) if not pd.api.types.is_numeric_dtype(frame[of])]
    columns = [
        pd.factorize(frame[of])[0] if n in codes else frame[of] for n, of in enumerate(names)
    ]
    table, labels = np.column_stack(columns), frame[target].to_numpy(dtype=str)
    checks = [*features(table, labels, names, codes), *joint_checks(table, labels, names)]
    assert not any(map(warning, checks))


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
