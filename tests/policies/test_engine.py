"""policies.promotion.engine: each gate with what it allows and what it refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ml.measures.schema import Estimate, Stability, StatedMetric
from policies.promotion import champion_gates
from policies.promotion.champion_gates import Difference, paired_difference
from policies.promotion.engine import ROLLBACK_GATES
from policies.promotion.evidence import Evidence
from policies.waivers import REVIEWED
from tests.policies.cases import (
    DIGEST,
    NOW,
    PROJECT,
    UNITS,
    champion,
    evaluated,
    good,
    judged,
    request,
    result,
)


def made(**changes: object) -> Evidence:
    """Good evidence with its lineage changed."""
    return replace(good(), lineage=replace(good().lineage, **changes))  # type: ignore[arg-type]


def test_faultless_evidence_waits_for_the_sign_off(tmp_path: Path) -> None:
    """Everything passes but the sign-off, which is pending when proposed."""
    decision = judged(tmp_path, good())
    assert decision.outcome == "pending" and decision.allowed and not decision.blocking


def test_dirty_code_passes_in_local_only(tmp_path: Path) -> None:
    """Uncommitted changes are named, and refused for any other environment."""
    dirty = made(dirty=True)
    assert "uncommitted" in result(judged(tmp_path, dirty), "lineage").actual
    assert judged(tmp_path, dirty, request=request(environment="prod")).outcome == "rejected"


def test_a_better_candidate_replaces_the_champion(tmp_path: Path) -> None:
    """Non-inferior and superior: both pass, the first promotion does not apply."""
    decision = judged(tmp_path, good(0.8), champion(0.7))
    assert decision.outcome == "pending" and decision.champion == "3"
    assert result(decision, "first-promotion").verdict == "not evaluated"
    assert result(decision, "superiority").verdict == "pass"


def test_gates_that_ask_for_the_same_comparison_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each split, and each slice, is compared once: it takes most of the time of a decision."""
    asked: list[object] = []

    def compared(ours: Evidence, theirs: Evidence, split: str, *more: object) -> Difference:
        asked.append((split, *more))
        return paired_difference(ours, theirs, split, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(champion_gates, "paired_difference", compared)
    decision = judged(tmp_path, good(0.8), champion(0.7))
    assert {"superiority", "non-inferiority"} <= {
        one.gate for one in decision.results if one.verdict == "pass"
    }
    assert asked and len(asked) == len(set(asked))


def test_a_tie_needs_a_reason_in_writing(tmp_path: Path) -> None:
    """Equal is not better: refused by superiority alone, until the request gives a reason."""
    tie = judged(tmp_path, good(0.8), champion(0.8))
    assert [one.gate for one in tie.blocking] == ["superiority"]
    blank = judged(tmp_path, good(0.8), champion(0.8), request(reason="  "))
    assert blank.outcome == "rejected"
    reason = judged(tmp_path, good(0.8), champion(0.8), request(reason="half the latency"))
    assert reason.outcome == "pending"
    assert "half the latency" in result(reason, "superiority").why


def test_no_reason_excuses_a_worse_candidate(tmp_path: Path) -> None:
    """A reason in writing replaces superiority, never non-inferiority."""
    decision = judged(tmp_path, good(0.7), champion(0.8), request(reason="I like it"))
    assert [one.gate for one in decision.blocking] == ["non-inferiority"]


def test_a_rollback_may_be_worse_than_the_champion(tmp_path: Path) -> None:
    """Comparisons, age and thresholds are shown and do not block; an approval is still required."""
    old = replace(good(0.7), created=NOW - timedelta(days=400))
    back = request(step="apply", approved_by="ana", served_before=True)
    decision = judged(tmp_path, old, champion(0.8), back)
    assert decision.outcome == "approved" and decision.request.served_before
    for gate in ("non-inferiority", "freshness"):
        found = result(decision, gate)
        assert (found.verdict, found.mode) == ("fail", "report-only")
        assert "served here before" in found.why
    assert judged(tmp_path, old, champion(0.8), replace(back, approved_by="")).outcome == "rejected"


@pytest.mark.parametrize("gate", sorted(ROLLBACK_GATES - {"sign-off"}))
def test_a_rollback_needs_unchanged_files(gate: str, tmp_path: Path) -> None:
    """Evidence of another model, edited evidence and files that run code block it."""
    broken = {
        "identity": {"digest": "sha256:" + "0" * 64},
        "verified-metrics": {"mismatches": ("edited",)},
        "format": {"files": {"model.pkl": "pickle"}},
        "attestation": {"unattested": "nobody signed it"},
        "order": {},
    }
    back = request(step="apply", approved_by="ana", served_before=True)
    if gate == "attestation":
        back = replace(back, environment="dev")
    elif gate == "order":
        back = replace(back, environment="prod", simulated=True)
    decision = judged(tmp_path, replace(good(0.7), **broken[gate]), champion(0.8), back)
    assert [one.gate for one in decision.blocking] == [gate]


def test_the_margin_is_on_the_lower_bound(tmp_path: Path) -> None:
    """Half a point worse lies within the margin of two points, four points do not."""
    within = judged(tmp_path, good(0.795), champion(0.8))
    assert result(within, "non-inferiority").verdict == "pass"
    beyond = judged(tmp_path, good(0.76), champion(0.8))
    assert result(beyond, "non-inferiority").verdict == "fail"


def _flip(evidence: Evidence) -> Evidence:
    ranks = {unit: 2 - value for unit, value in evidence.outcomes["test"].items()}
    return replace(
        evaluated(evidence, primary_metric="mean_rank", goal="minimize"),
        outcomes={"test": ranks},
        range=(1, math.inf),
    )


def test_a_metric_to_minimize_is_compared_the_other_way(tmp_path: Path) -> None:
    """A lower mean rank is better."""
    better = judged(tmp_path, _flip(good(0.9)), _flip(champion(0.7)))
    assert result(better, "superiority").verdict == "pass"
    worse = judged(tmp_path, _flip(good(0.7)), _flip(champion(0.9)))
    assert result(worse, "non-inferiority").verdict == "fail"


def _as_statistic(evidence: Evidence) -> Evidence:
    """The same metric, as if it were one of all units together, as an AUC is."""
    values = evidence.outcomes["test"]

    def mean(units: Sequence[str]) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        own = [values[unit] for unit in units]
        return lambda times: np.asarray(times @ own / times.sum(axis=1))

    outcomes = {"test": dict.fromkeys(values, math.nan)}
    return replace(evidence, outcomes=outcomes, statistics={"test": mean})


def test_a_metric_of_all_units_together_is_compared_on_draws_of_them(tmp_path: Path) -> None:
    """By split and by slice, as a mean is; without what computes it nothing is compared."""
    ours, theirs = _as_statistic(good(0.9)), _as_statistic(champion(0.7))
    better = judged(tmp_path, ours, theirs)
    assert result(better, "superiority").verdict == "pass"
    assert result(better, "superiority").actual.startswith(
        "gain_at_1 on test is 0.2000 better than the champion's (95 % interval: 0.1"
    )
    assert result(better, "non-inferiority").verdict == "pass"
    worse = judged(tmp_path, _as_statistic(good(0.7)), _as_statistic(champion(0.9)))
    assert result(worse, "non-inferiority").verdict == "fail"
    for changed in (replace(ours, statistics={}), replace(ours, outcomes={})):
        lost = judged(tmp_path, changed, theirs)
        assert {"superiority", "non-inferiority"} <= {one.gate for one in lost.blocking}


@pytest.mark.parametrize(
    ("ends", "ours", "verdict"),
    [
        ((0.0, math.inf), 101.0, "pass"),
        ((0.0, math.inf), 103.0, "fail"),
        ((0.0, 1000.0), 119.0, "pass"),
        ((0.0, 1000.0), 121.0, "fail"),
        (None, 119.0, "pass"),
        (None, 121.0, "fail"),
        ((0.0, 500.0), 109.0, "pass"),
        ((0.0, 500.0), 111.0, "fail"),
    ],
)
def test_the_margin_is_a_share_of_the_range(
    tmp_path: Path, ends: tuple[float, float] | None, ours: float, verdict: str
) -> None:
    """Of what the metric can be; of a metric without an end of the champion's 100; and of a metric
    of the project's own, whose range nobody else knows, of its bounds in gates.yml.
    """
    sides = _costs(good(), ours, ends), _costs(champion(), 100.0, ends)
    decision = judged(tmp_path, *sides, text=BOUNDED)
    assert result(decision, "non-inferiority").verdict == verdict


@pytest.mark.attack("A custom metric has a range so wide that every margin holds")
@pytest.mark.parametrize(
    "stated", [(0, 500), (0, None), (None, 9), (9, 0), (math.nan, 9), (0,), ()]
)
def test_the_narrower_range_is_shared(tmp_path: Path, stated: tuple[float | None, ...]) -> None:
    """Of the evaluation and of gates.yml, whose range is 1000; without both there is no margin."""
    own = {"cost": StatedMetric("minimize", stated, False)}
    candidate, holder = (
        evaluated(_costs(of, value, None), custom_metrics=own)
        for of, value in ((good(), 111.0), (champion(), 100.0))
    )
    decision = judged(tmp_path, candidate, holder, text=BOUNDED)
    assert result(decision, "non-inferiority").verdict == "fail"


def test_a_metric_of_another_formula_is_not_compared(tmp_path: Path) -> None:
    """By the file that has it, the goal and the range."""
    sides = [_costs(of, value, None) for of, value in ((good(), 90.0), (champion(), 100.0))]
    assert result(judged(tmp_path, *sides, text=BOUNDED), "non-inferiority").verdict == "pass"
    other = replace(sides[1].evaluation.custom_metrics["cost"], code="other")
    changed = evaluated(sides[1], custom_metrics={"cost": other})
    decision = judged(tmp_path, sides[0], changed, text=BOUNDED)
    assert "computes another cost" in result(decision, "non-inferiority").actual
    assert {"superiority", "non-inferiority"} <= {of.gate for of in decision.blocking}


@pytest.mark.parametrize(
    ("over", "values", "verdict"),
    [
        ("seeds", (100.0, 110.0, 120.0), "pass"),  # 10 apart: the margin of 20 holds
        ("seeds", (100.0, 100.1, 100.2), "fail"),
        ("folds", (100.0, 110.0, 120.0), "fail"),
        ("seeds", (100.0,), "fail"),
        ("seeds", (100.0, math.nan), "fail"),
        ("seeds", (100.0, None), "fail"),
    ],
)
def test_the_spread_over_seeds_bounds_the_margin(
    tmp_path: Path, over: str, values: tuple[float | None, ...], verdict: str
) -> None:
    """It makes the margin smaller alone; without two values over seeds there is none."""
    text = BOUNDED + "    spreads: {cost: 2}\n"
    candidate = evaluated(
        _costs(good(), 115.0, None), stability={"cost": Stability(over, values, std=1000.0)}
    )
    decision = judged(tmp_path, candidate, _costs(champion(), 100.0, None), text=text)
    assert result(decision, "non-inferiority").verdict == verdict


BOUNDED = PROJECT.replace("  quality:\n", "  quality:\n    bounds: {cost: [0, 1000]}\n")


def _costs(evidence: Evidence, value: float, ends: tuple[float, float] | None) -> Evidence:
    """The same with an error of that size for each unit."""
    stated = {"cost": Estimate(value, value - 1, value + 1, UNITS)}
    return replace(
        evaluated(
            evidence,
            primary_metric="cost",
            goal="minimize",
            metrics={"test": stated, "validation": stated},
            custom_metrics={} if ends else {"cost": StatedMetric("minimize", (0, 1000), False)},
        ),
        outcomes={"test": dict.fromkeys(evidence.outcomes["test"], value)},
        range=ends,
    )


def test_the_champion_cannot_be_promoted_again(tmp_path: Path) -> None:
    """The same digest is already the champion, whatever the version is called."""
    decision = judged(tmp_path, good(), good(version="3", digest=DIGEST))
    assert decision.outcome == "already-champion" and not decision.allowed
    asked = {result.gate: result.verdict for result in decision.results}
    assert asked["superiority"] == "not evaluated"  # nothing is better than itself


def test_the_champion_is_blocked_by_changed_files_only(tmp_path: Path) -> None:
    """It does not beat itself, which does not block; files that were edited since do."""
    itself = good(version="9")
    assert [one.gate for one in judged(tmp_path, good(), itself).blocking] == []
    edited = replace(good(), mismatches=("x",))
    decision = judged(tmp_path, edited, itself)
    assert decision.outcome == "already-champion"
    assert [one.gate for one in decision.blocking] == ["verified-metrics"]


def test_a_missing_digest_matches_nothing(tmp_path: Path) -> None:
    """Two models without a digest are not the same model."""
    nobody = replace(good(), digest=None)
    assert judged(tmp_path, nobody, nobody, request(digest="")).outcome == "rejected"


def test_every_gap_that_is_bounded_holds(tmp_path: Path) -> None:
    """A gap within its bound does not excuse another; a bound without metrics fails."""
    text = PROJECT.replace("{test.gain_at_1: 0.1}", "{test.gain_at_1: 0.1, unseen.gain_at_1: 0.2}")
    assert "unseen" in result(judged(tmp_path, good(), text=text), "gap").why
    for value, verdict in ((0.61, "pass"), (0.59, "fail")):
        unseen = {"gain_at_1": Estimate(value, 0.5, 0.7, UNITS)}
        both = evaluated(good(), metrics={**good().evaluation.metrics, "unseen": unseen})
        assert result(judged(tmp_path, both, text=text), "gap").verdict == verdict


@pytest.mark.parametrize("gate", REVIEWED)
def test_a_missing_review_comes_with_a_line_to_copy(gate: str, tmp_path: Path) -> None:
    """With a date in it, that line under `reviews` lets the gate pass."""
    prod = request(environment="prod")
    refused = result(judged(tmp_path, good(), None, prod), gate)
    (line,) = re.findall(r"\{gate:.*?\}", refused.why)
    text = f"{PROJECT}reviews:\n  - {line.replace('DAY', '2025-12-31')}\n"
    assert refused.verdict == "fail"
    assert result(judged(tmp_path, good(), None, prod, text), gate).verdict == "pass"


def test_modes_are_visible_and_only_enabled_blocks(tmp_path: Path) -> None:
    """Report-only fails without blocking, disabled does not apply; the decision shows both."""
    from policies.promotion.engine import decide
    from tests.policies.cases import REQUEST, load_gates

    gates = load_gates(tmp_path)
    spoiled = replace(good(), created=NOW - timedelta(days=31))
    for mode, verdict in (("report-only", "fail"), ("disabled", "not evaluated")):
        changed = {**gates, "freshness": replace(gates["freshness"], mode=mode)}
        decision = decide(changed, spoiled, None, REQUEST)
        found = result(decision, "freshness")
        assert (found.verdict, found.mode, decision.outcome) == (verdict, mode, "pending")
        assert {"gate": "freshness", "mode": mode} in [
            {"gate": one["gate"], "mode": one["mode"]}
            for one in decision.to_json()["results"]  # type: ignore[attr-defined]
        ]


def test_the_same_case_always_gets_the_same_decision(tmp_path: Path) -> None:
    """The engine is a pure function, the bootstrap included."""
    first, second = (judged(tmp_path, good(0.72), champion(0.7)) for _ in range(2))
    assert first == second


def test_a_difference_in_words(tmp_path: Path) -> None:
    """Of a metric to minimize too, less is better; the interval may have both in it."""
    for share, words in (
        (0.7975, "0.0025 worse than the champion's (95 % interval: 0.0075 worse to 0.0000)"),
        (0.9, "0.1000 better than the champion's (95 % interval: 0.0725 better to 0.1325 better)"),
    ):
        decision = judged(tmp_path, good(share), champion(0.8))
        assert result(decision, "superiority").actual == f"gain_at_1 on test is {words}"
        fewer = (evaluated(good(share), goal="minimize"), evaluated(champion(0.8), goal="minimize"))
        assert ("better" in result(judged(tmp_path, *fewer), "superiority").actual) is (share < 0.8)


def test_a_difference_of_zero_has_no_direction(tmp_path: Path) -> None:
    """Also for a metric to minimize, whose difference is negated."""
    ours, theirs = (evaluated(one, goal="minimize") for one in (good(), champion(0.8)))
    found = result(judged(tmp_path, ours, theirs), "non-inferiority").actual
    equal = "gain_at_1 on test is as good as the champion's (95 % interval: 0.0000 to 0.0000)"
    assert found == equal
