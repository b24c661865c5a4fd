"""A candidate beside a champion, from their evidence alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ml.measures.schema import Contribution
from ml.release.comparison import Comparison, MetricComparison, Side, compare, other_features
from policies.promotion.evidence import ComputeUsage, Cost, DataVersion, Evidence, Latency
from tests.policies import cases


def side(share: float, version: str = "7", **changes: object) -> Side:
    """A model that gets that share right, each unit that a worse one gets right too."""
    good = cases.good(share, version)
    stated = {name: of for name, of in changes.items() if hasattr(good.evaluation, name)}
    other = {name: of for name, of in changes.items() if name not in stated}
    evidence = replace(cases.evaluated(good, **stated), **other)  # type: ignore[arg-type]
    return Side(f"tiny {version}", evidence.digest or "", evidence)


def row(made: Comparison, place: str) -> MetricComparison:
    return next(one for one in (*made.metrics, *made.slices) if one.place == place)


def test_metrics_and_slices_unit_by_unit():
    """Ten points more on the same units: the interval lies above zero; slices have their own."""
    made = compare(side(0.8), side(0.7, "6"))
    test = row(made, "test")
    assert test.difference is not None and test.difference.mean == pytest.approx(0.1)
    assert (
        0 < test.difference.low < 0.1 < test.difference.high
        and test.difference.count == cases.UNITS
    )
    assert test.verdict == "better" and made.unpaired == "" and made.primary == "gain_at_1"
    cost = row(made, "topic=cost")
    assert (
        cost.difference is not None
        and cost.difference.count == cases.UNITS / 2
        and cost.verdict == "better"
    )
    assert (cost.ours.value, made.missing) == (0.7, ())


def test_units_that_belong_together_are_drawn_together(tmp_path: Path):
    """As the gates do it: what is better by one group alone is not shown to be better."""
    first = dict.fromkeys(cases.outcomes(0.8), "")
    groups = {unit: f"customer {int(unit[1:]) // 40}" for unit in first}
    ours = side(0.8, groups={"test": groups})
    theirs = side(0.7, "6", digest="sha256:" + "6" * 64)
    made = compare(ours, theirs)
    test = row(made, "test")
    assert test.difference is not None and test.verdict == "" and test.difference.low == 0
    gate = cases.result(cases.judged(tmp_path, ours.evidence, theirs.evidence), "superiority")
    mean, low, high = test.difference.mean, test.difference.low, test.difference.high
    assert f"{mean:.4f} better than the champion's" in gate.actual
    assert f"{low:.4f} to {high:.4f} better" in gate.actual
    assert row(made, "topic=cost").verdict == ""


def test_the_other_way_round_and_a_tie():
    """Worse is said; no difference is neither."""
    assert row(compare(side(0.7), side(0.8, "6")), "test").verdict == "worse"
    tied = row(compare(side(0.8), side(0.8, "6")), "test")
    assert tied.difference is not None and (
        tied.difference.low,
        tied.difference.high,
        tied.verdict,
    ) == (0.0, 0.0, "")


def test_less_is_better_of_a_loss():
    """The goal turns the verdict round, not the number."""
    made = compare(side(0.8, goal="minimize"), side(0.7, "6", goal="minimize"))
    test = row(made, "test")
    assert test.difference is not None and test.difference.mean > 0 and test.verdict == "worse"


def test_other_features_are_told():
    """By the hash of the feature set, with the names that came and went; none where it is alike."""
    named = (Contribution("words", 0.6), Contribution("age", 0.4))
    ours, theirs = side(0.8, feature_set_hash="0" * 64, contributions=named), side(0.7, "6")
    told = "tiny 7 reads other features than tiny 6: new: age; gone: length"
    assert other_features(ours, theirs) == told
    assert other_features(side(0.8), theirs) == ""
    assert "computed differently" in other_features(side(0.8, feature_set_hash="0" * 64), theirs)
    assert other_features(side(0.8, feature_set_hash=None), theirs) == ""


def test_without_a_champion():
    """The candidate's own numbers, and nothing to pair."""
    made = compare(side(0.8), None)
    assert made.champion is None and made.unpaired == ""
    assert all(
        one.difference is None and one.theirs is None for one in (*made.metrics, *made.slices)
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data": {"faq": DataVersion("azureml:tiny:2", "e" * 64)}}, "not measured on the same"),
        ({"data": {}}, "not measured on the same"),
        ({"primary_metric": "gain_at_3"}, "different primary metrics"),
        ({"goal": "minimize"}, "different primary metrics"),
        (
            {"mismatches": ("test.gain_at_1 states 0.9",)},
            "of tiny 6 cannot be trusted",
        ),
        ({"mismatches": None}, "the metrics of tiny 6 were not recomputed"),
    ],
)
def test_what_cannot_be_paired_is_not(changes: dict[str, object], why: str):
    """Numbers stand side by side; no difference is claimed, and why is said."""
    made = compare(side(0.8), side(0.7, "6", **changes))
    assert why in made.unpaired
    assert all(
        one.difference is None and one.verdict == "" for one in (*made.metrics, *made.slices)
    )


def test_no_number_of_other_data_stands_beside_the_candidates():
    """Neither a metric nor a slice: what they differ by is the data's as well."""
    other = {"faq": DataVersion("azureml:tiny:2", "e" * 64)}
    made = compare(side(0.8), side(0.7, "6", data=other))
    assert made.metrics and made.slices and "not measured on the same data" in made.unpaired
    assert all(one.theirs is None for one in (*made.metrics, *made.slices))
    assert all(one.theirs for one in compare(side(0.8), side(0.7, "6")).slices)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_unit_that_is_no_number(bad: float):
    """One NaN among the champion's units: that split is not paired."""
    outcomes = {**cases.outcomes(0.7), "q0003": bad}
    made = compare(side(0.8), side(0.7, "6", outcomes={"test": outcomes}))
    assert row(made, "test").difference is None


def test_other_units_are_no_pairs():
    """A question that only one of them answered: the two are not on the same units."""
    fewer = {"test": cases.outcomes(0.7, cases.UNITS - 1)}
    assert row(compare(side(0.8), side(0.7, "6", outcomes=fewer)), "test").difference is None


def test_a_metric_beside_the_primary_one():
    """Its units are handed in; which way is better nobody says, so that nothing is claimed."""
    estimates = {"mean_rank": cases.good().evaluation.metrics["test"]["gain_at_1"]}
    both = {"test": {**cases.good().evaluation.metrics["test"], **estimates}}
    sides = [
        replace(
            side(share, version, metrics=both),
            outcomes={"mean_rank": {"test": {f"q{n}": rank + n for n in range(50)}}},
        )
        for share, version, rank in ((0.8, "7", 1.0), (0.7, "6", 2.0))
    ]
    other = next(one for one in compare(*sides).metrics if one.metric == "mean_rank")
    assert other.difference is not None and other.difference.mean == -1.0 and other.verdict == ""


def test_what_they_take():
    """Latency, machine time and price; what is missing or no number is None, never zero."""
    latency = Latency(p50_ms=5.0, p95_ms=math.nan, p99_ms=None)
    priced = Cost(ComputeUsage(2.0, 1, "here", None, 3.6, 0.002), ComputeUsage(), currency="USD")
    made = compare(
        side(0.8, latency=latency, cost=priced),
        side(0.7, "6", cost=replace(priced, currency="EUR"), stability={}),
    )
    found = {one.what: (one.ours, one.theirs, one.unit) for one in made.amounts}
    assert found["latency, p50"] == (5.0, cases.good().latency.p50_ms, "ms")
    assert found["latency, p95"][0] is None and found["latency, p99"][0] is None
    assert found["training, price"] == (0.002, None, "USD")  # two currencies do not compare
    assert found["1,000 predictions, machine time"][0] is None
    assert found["spread of gain_at_1 over refits"] == (0.01, None, "")


def test_what_is_missing_is_named():
    """By the path of the field in the evidence."""
    made = compare(side(0.8, lineage=replace(cases.good().lineage, commit=None), slices={}), None)
    assert {"lineage.commit", "evaluation.slices"} <= set(made.missing)
    assert compare(Side("empty", "", Evidence()), None).metrics == ()
