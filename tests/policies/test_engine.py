"""policies.promotion.engine: each gate with what it allows and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml

from policies.promotion.evidence import DataVersion, Estimate, Evidence, Latency, LockedPackage
from policies.promotion.rules import RULES
from policies.promotion.settings import SETTINGS
from tests.policies.cases import (
    DIGEST,
    NOW,
    OTHER,
    PROJECT,
    UNITS,
    asked,
    champion,
    good,
    judged,
    outcomes,
    result,
)


def measured(**changes: float | None) -> Evidence:
    """Good evidence with its gated metric changed."""
    estimate = replace(good().metrics["test"]["gain_at_1"], **changes)
    return replace(good(), metrics={"test": {"gain_at_1": estimate}})


def made(**changes: object) -> Evidence:
    """Good evidence with its lineage changed."""
    return replace(good(), lineage=replace(good().lineage, **changes))  # type: ignore[arg-type]


def timed(**changes: object) -> Evidence:
    """Good evidence with its latency changed."""
    return replace(good(), latency=replace(good().latency, **changes))  # type: ignore[arg-type]


def chosen(**changes: float | None) -> Evidence:
    """Good evidence, which has 0.8 on test, with its metric on validation changed."""
    estimate = replace(good().metrics["validation"]["gain_at_1"], **changes)
    return replace(good(), metrics={**good().metrics, "validation": {"gain_at_1": estimate}})


def baseline(value: float) -> Evidence:
    """Good evidence with another baseline."""
    estimate = Estimate(value, max(value - 0.02, 0), min(value + 0.02, 1), UNITS)
    return replace(good(), baseline={"test": {"gain_at_1": estimate}})


def supplied(packages: dict[str, list[str]] | None = None, **changes: object) -> Evidence:
    """Good evidence with its supply chain changed: name → [locked, installed, licence]."""
    if packages is not None:
        made = {name: LockedPackage(*of) for name, of in packages.items()}
        changes["packages"] = made
    if isinstance(changes.get("advisories"), list):
        changes["advisories"] = tuple(changes["advisories"])  # type: ignore[arg-type]
    return replace(good(), supply_chain=replace(good().supply_chain, **changes))  # type: ignore[arg-type]


# Cases of the supply chain: name → what differs from good evidence.
SUPPLIES = yaml.safe_load(Path(__file__).with_name("supplies.yml").read_text())
# Cases of the gap between test and validation: name → what is stated on validation.
GAPS = yaml.safe_load(Path(__file__).with_name("gaps.yml").read_text())

# gate → (id, evidence) that the gate lets pass and that it refuses, without a champion.
ALLOWED: dict[str, list[Evidence]] = {
    "identity": [good()],
    "freshness": [good(), replace(good(), created=NOW - timedelta(days=30))],
    "recomputed": [good()],
    "lineage": [good(), made(dirty=True), made(hyperparameters={})],
    "format": [good(), replace(good(), files={"words.npz": "npz"})],
    "quality": [good(), measured(value=0.6, low=0.5, high=0.7), measured(count=100)],
    "gap": [good(), *(chosen(**of) for of in GAPS["allowed"].values())],
    "first-promotion": [good(), baseline(0.79)],
    "latency": [good(), timed(p95_ms=200.0, p99_ms=200.0), timed(requests=100)],
}
ALLOWED |= {"completeness": [good()], "fairness": [good()], "explainability": [good()]}
ALLOWED["supply-chain"] = [supplied(**of) for of in SUPPLIES["allowed"].values()]
REFUSED: dict[str, dict[str, Evidence]] = {
    "completeness": {"no stability": replace(good(), stability={})},
    "fairness": {"no slices": replace(good(), slices={})},
    "explainability": {"no contributions": replace(good(), contributions=())},
    "identity": {
        "nothing known": Evidence(),
        "another digest": replace(good(), digest=OTHER),
        "another version": replace(good(), version="8"),
        "another model": replace(good(), model="large"),
        "another schema": replace(good(), schema_version=1),
        "no schema": replace(good(), schema_version=None),
    },
    "freshness": {
        "no date": replace(good(), created=None),
        "stale": replace(good(), created=NOW - timedelta(days=30, seconds=1)),
        "from the future": replace(good(), created=NOW + timedelta(hours=1)),
        "without a zone": replace(good(), created=datetime(2025, 6, 1)),
    },
    "recomputed": {
        "nobody looked": replace(good(), disagreements=None),
        "a metric differs": replace(good(), disagreements=("test.gain_at_1 states 0.9",)),
    },
    "lineage": {
        **{
            f"no {name}": made(**{name: None})
            for name in (
                *("run", "parent_run", "code_snapshot", "commit", "dirty", "environment"),
                *("feature_set_hash", "hyperparameters", "seed"),
            )
        },
        "seed is NaN": made(seed=math.nan),
        "no data": replace(good(), data={}),
        "no data version": replace(good(), data={"faq": DataVersion(None, "d" * 64)}),
        "no data digest": replace(good(), data={"faq": DataVersion("azureml:tiny:1", None)}),
    },
    "format": {
        "nobody looked": replace(good(), files=None),
        "no file": replace(good(), files={}),
        "a pickle": replace(good(), files={"model.txt": "lightgbm-text", "extra.pkl": ""}),
        "not on the list": replace(good(), files={"model.onnx": "onnx"}),
    },
    "quality": {
        "no metrics": replace(good(), metrics={}),
        "below": measured(value=0.59, low=0.5, high=0.7),
        "missing": measured(value=None),
        "NaN": measured(value=math.nan),
        "infinite": measured(value=math.inf, high=math.inf),
        # What MLflow makes of infinity: finite, and far out of bounds.
        "MLflow's infinity": measured(value=1.797e308, high=1.797e308),
        "above what is possible": measured(value=1.01, high=1.02),
        "interval NaN": measured(low=math.nan),
        "interval elsewhere": measured(low=0.9, high=0.95),
        "too few units": measured(count=99),
        "count NaN": measured(count=math.nan),
        "no count": measured(count=None),
    },
    "gap": {
        "no metrics": replace(good(), metrics={}),
        "no validation": replace(good(), metrics={"test": good().metrics["test"]}),
        "no test": replace(good(), metrics={"validation": good().metrics["test"]}),
        **{name: chosen(**of) for name, of in GAPS["refused"].items()},
    },
    "first-promotion": {
        "no better than the baseline": baseline(0.8),
        "worse": baseline(0.9),
        "no baseline": replace(good(), baseline={}),
        "baseline NaN": baseline(math.nan),
        "no goal": replace(good(), goal=None),
        "a goal of its own": replace(good(), goal="maximise"),
        "no primary metric": replace(good(), primary_metric=None),
    },
    "supply-chain": {name: supplied(**of) for name, of in SUPPLIES["refused"].items()},
    "latency": {
        "nothing measured": replace(good(), latency=Latency()),
        "too slow": timed(p95_ms=200.1, p99_ms=201.0),
        "p95 NaN": timed(p95_ms=math.nan),
        "p95 infinite": timed(p95_ms=math.inf, p99_ms=math.inf),
        "p95 missing": timed(p95_ms=None),
        "p50 missing": timed(p50_ms=None),
        "out of order": timed(p50_ms=5.0),
        "negative": timed(p50_ms=-1.0),
        "zero": timed(p50_ms=0.0, p95_ms=0.0, p99_ms=0.0),
        "too few requests": timed(requests=99),
        "requests NaN": timed(requests=math.nan),
        "hardware unnamed": timed(hardware=None),
        "instance type unnamed": timed(instance_type=None),
    },
}


@pytest.mark.parametrize(
    ("gate", "evidence"), [(gate, one) for gate, every in ALLOWED.items() for one in every]
)
def test_each_gate_allows(gate: str, evidence: Evidence, tmp_path: Path) -> None:
    """What a gate lets pass, passes it."""
    found = result(judged(tmp_path, evidence), gate)
    assert found.verdict == "pass", found


@pytest.mark.parametrize(
    ("gate", "evidence"),
    [
        pytest.param(gate, one, id=f"{gate}-{name}")
        for gate, every in REFUSED.items()
        for name, one in every.items()
    ],
)
def test_each_gate_refuses(gate: str, evidence: Evidence, tmp_path: Path) -> None:
    """What a gate refuses fails it, and with it the whole decision, and it says what it found."""
    decision = judged(tmp_path, evidence)
    found = result(decision, gate)
    assert found.verdict == "fail", found
    assert found.required and found.found
    assert decision.outcome == "refused" and not decision.allowed
    assert gate in [one.gate for one in decision.blocking]


def test_every_gate_is_in_the_floor_and_has_both_cases() -> None:
    """No gate is without a rule, settings, an allowed case and a refused case."""
    with_champion = {"non-inferiority", "superiority", "sign-off"}
    assert set(RULES) == set(SETTINGS) == set(ALLOWED) | with_champion
    assert set(ALLOWED) == set(REFUSED)


def test_faultless_evidence_waits_for_the_sign_off(tmp_path: Path) -> None:
    """Everything passes but the sign-off, which is pending when proposed."""
    decision = judged(tmp_path, good())
    assert decision.outcome == "pending" and decision.allowed and not decision.blocking


def test_sign_off_is_required_at_apply(tmp_path: Path) -> None:
    """Without a name apply is refused, blanks are no name, and a name approves."""
    for name in ("", "  "):
        unsigned = judged(tmp_path, good(), request=asked(step="apply", approved_by=name))
        assert unsigned.outcome == "refused"
        assert [one.gate for one in unsigned.blocking] == ["sign-off"]
    signed = judged(tmp_path, good(), request=asked(step="apply", approved_by="ana"))
    assert signed.outcome == "approved"
    assert "ana" in result(signed, "sign-off").found


def test_dirty_code_passes_in_local_only(tmp_path: Path) -> None:
    """Uncommitted changes are named, and refused for any other environment."""
    dirty = made(dirty=True)
    assert "uncommitted" in result(judged(tmp_path, dirty), "lineage").found
    assert judged(tmp_path, dirty, request=asked(environment="prod")).outcome == "refused"


def test_unchecked_advisories_are_said_locally_and_refused_elsewhere(tmp_path: Path) -> None:
    """No source, or an old one, passes in local with a remark and in prod not at all."""
    none = supplied(as_of=None, advisories=None)
    stale = supplied(as_of=NOW - timedelta(days=7, seconds=1))
    future = supplied(as_of=NOW + timedelta(days=2))
    for evidence, said in ((none, "not checked"), (stale, "days old"), (future, "future")):
        found = result(judged(tmp_path, evidence), "supply-chain")
        assert found.verdict == "pass" and said in found.why
        found = result(
            judged(tmp_path, evidence, request=asked(environment="prod")), "supply-chain"
        )
        assert found.verdict == "fail" and said in found.why
    recent = supplied(as_of=NOW - timedelta(days=7))
    prod = judged(tmp_path, recent, request=asked(environment="prod"))
    assert result(prod, "supply-chain").verdict == "pass"


def test_other_hardware_is_said_locally_and_refused_elsewhere(tmp_path: Path) -> None:
    """A latency of another machine passes in local with a remark, in prod not at all."""
    assert "not on the deployment's" in result(judged(tmp_path, good()), "latency").why
    prod = asked(environment="prod")
    assert result(judged(tmp_path, good(), request=prod), "latency").verdict == "fail"
    same = timed(hardware="Standard_DS3_v2")
    assert result(judged(tmp_path, same, request=prod), "latency").verdict == "pass"


def test_a_better_candidate_replaces_the_champion(tmp_path: Path) -> None:
    """Non-inferior and superior: both pass, the first promotion is not asked."""
    decision = judged(tmp_path, good(0.8), champion(0.7))
    assert decision.outcome == "pending" and decision.champion == "3"
    assert result(decision, "first-promotion").verdict == "not asked"
    assert result(decision, "superiority").verdict == "pass"


def test_a_tie_needs_a_reason_in_writing(tmp_path: Path) -> None:
    """Equal is not better: refused by superiority alone, until somebody writes why."""
    tie = judged(tmp_path, good(0.8), champion(0.8))
    assert [one.gate for one in tie.blocking] == ["superiority"]
    blank = judged(tmp_path, good(0.8), champion(0.8), asked(reason="  "))
    assert blank.outcome == "refused"
    reason = judged(tmp_path, good(0.8), champion(0.8), asked(reason="half the latency"))
    assert reason.outcome == "pending"
    assert "half the latency" in result(reason, "superiority").why


def test_no_reason_excuses_a_worse_candidate(tmp_path: Path) -> None:
    """A reason in writing replaces superiority, never non-inferiority."""
    decision = judged(tmp_path, good(0.7), champion(0.8), asked(reason="I like it"))
    assert [one.gate for one in decision.blocking] == ["non-inferiority"]


def test_the_margin_is_on_the_lower_bound(tmp_path: Path) -> None:
    """Half a point worse lies within the margin of two points, four points do not."""
    within = judged(tmp_path, good(0.795), champion(0.8))
    assert result(within, "non-inferiority").verdict == "pass"
    beyond = judged(tmp_path, good(0.76), champion(0.8))
    assert result(beyond, "non-inferiority").verdict == "fail"


def _flip(evidence: Evidence) -> Evidence:
    ranks = {unit: 2 - value for unit, value in evidence.outcomes["test"].items()}
    return replace(evidence, primary_metric="mean_rank", goal="minimize", outcomes={"test": ranks})


def test_a_metric_to_minimize_is_compared_the_other_way(tmp_path: Path) -> None:
    """A lower mean rank is better."""
    better = judged(tmp_path, _flip(good(0.9)), _flip(champion(0.7)))
    assert result(better, "superiority").verdict == "pass"
    worse = judged(tmp_path, _flip(good(0.7)), _flip(champion(0.9)))
    assert result(worse, "non-inferiority").verdict == "fail"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda one: Evidence(), id="nothing known"),
        pytest.param(lambda one: replace(one, outcomes={}), id="no outcomes"),
        pytest.param(lambda one: replace(one, disagreements=None), id="nobody recomputed"),
        pytest.param(lambda one: replace(one, disagreements=("x",)), id="metrics differ"),
        pytest.param(lambda one: replace(one, goal="minimize"), id="another goal"),
        pytest.param(lambda one: replace(one, primary_metric="gain_at_3"), id="another metric"),
        pytest.param(
            lambda one: replace(one, data={"faq": DataVersion("azureml:tiny:2", "e" * 64)}),
            id="other data",
        ),
        pytest.param(
            lambda one: replace(one, outcomes={"test": outcomes(0.5, UNITS - 1)}), id="other units"
        ),
        pytest.param(
            lambda one: replace(one, outcomes={"test": {**outcomes(0.5), "q0000": math.nan}}),
            id="an outcome is NaN",
        ),
        pytest.param(
            lambda one: replace(one, outcomes={"test": {**outcomes(0.5), "q0000": -1e9}}),
            id="an outcome is out of bounds",
        ),
    ],
)
def test_a_champion_that_cannot_be_compared_is_not_beaten(
    spoil: Callable[[Evidence], Evidence], tmp_path: Path
) -> None:
    """Whatever is missing on either side, both comparisons fail, a reason or not."""
    for ours, theirs in ((good(), spoil(champion(0.5))), (spoil(good()), champion(0.5))):
        decision = judged(tmp_path, ours, theirs, asked(reason="because"))
        assert result(decision, "non-inferiority").verdict == "fail"
        assert result(decision, "superiority").verdict == "fail"
        assert decision.outcome == "refused"


def test_few_units_do_not_compare(tmp_path: Path) -> None:
    """A comparison over fewer units than the floor asks for is none."""
    few = replace(good(), outcomes={"test": outcomes(0.9, 99)})
    decision = judged(tmp_path, few, replace(champion(), outcomes={"test": outcomes(0.1, 99)}))
    assert "too few" in result(decision, "superiority").found


def test_the_champion_itself_has_nothing_to_be_promoted(tmp_path: Path) -> None:
    """The same digest is already the champion, whatever the version is called."""
    decision = judged(tmp_path, good(), good(version="3", digest=DIGEST))
    assert decision.outcome == "already-champion" and not decision.allowed


def test_a_missing_digest_is_nobodys(tmp_path: Path) -> None:
    """Two models without a digest are not the same model."""
    nobody = replace(good(), digest=None)
    assert judged(tmp_path, nobody, nobody, asked(digest="")).outcome == "refused"


def test_a_project_without_thresholds_or_splits_passes_nothing(tmp_path: Path) -> None:
    """The floor alone asks for a project's thresholds: none is a refusal, not a pass."""
    bare = "schema_version: 1\n"
    alone = judged(tmp_path, good(), text=bare)
    assert {"quality", "gap", "first-promotion"} <= {one.gate for one in alone.blocking}
    against = judged(tmp_path, good(), champion(), text=bare)
    assert {"non-inferiority", "superiority"} <= {one.gate for one in against.blocking}


def test_thresholds_may_be_ceilings(tmp_path: Path) -> None:
    """at_most refuses above its number."""
    text = PROJECT.replace("quality:", "quality:\n    at_most: {test.mean_rank: 2}")
    for value, verdict in ((1.9, "pass"), (2.1, "fail")):
        metrics = {**good().metrics["test"], "mean_rank": Estimate(value, 1.5, 2.5, UNITS)}
        found = judged(tmp_path, replace(good(), metrics={"test": metrics}), text=text)
        assert result(found, "quality").verdict == verdict


def test_validation_is_not_compared_with_itself(tmp_path: Path) -> None:
    """A gap that is always zero bounds nothing."""
    text = PROJECT.replace("{test.gain_at_1: 0.1}", "{validation.gain_at_1: 0.1}")
    found = result(judged(tmp_path, good(), text=text), "gap")
    assert found.verdict == "fail" and "itself" in found.why


def test_every_gap_that_is_bounded_holds(tmp_path: Path) -> None:
    """One that is within its bound does not excuse another, and a bound without metrics fails."""
    text = PROJECT.replace("{test.gain_at_1: 0.1}", "{test.gain_at_1: 0.1, unseen.gain_at_1: 0.2}")
    assert "unseen" in result(judged(tmp_path, good(), text=text), "gap").why
    for value, verdict in ((0.61, "pass"), (0.59, "fail")):
        unseen = {"gain_at_1": Estimate(value, 0.5, 0.7, UNITS)}
        both = replace(good(), metrics={**good().metrics, "unseen": unseen})
        assert result(judged(tmp_path, both, text=text), "gap").verdict == verdict


def test_a_gated_metric_without_bounds_fails(tmp_path: Path) -> None:
    """A threshold on a metric that nobody bounded cannot be judged."""
    text = PROJECT.replace("test.gain_at_1", "test.accuracy")
    metrics = {"test": {"accuracy": Estimate(0.9, 0.8, 1.0, UNITS)}}
    found = judged(tmp_path, replace(good(), metrics=metrics), text=text)
    assert "no bounds" in result(found, "quality").why


def test_modes_are_visible_and_only_enabled_blocks(tmp_path: Path) -> None:
    """Report-only fails without blocking; disabled is not asked; both are in the decision."""
    from policies.promotion.engine import decide
    from tests.policies.cases import REQUEST, held

    gates = held(tmp_path)
    spoiled = replace(good(), created=NOW - timedelta(days=31))
    for mode, verdict in (("report-only", "fail"), ("disabled", "not asked")):
        changed = {**gates, "freshness": replace(gates["freshness"], mode=mode)}
        decision = decide(changed, spoiled, None, REQUEST)
        found = result(decision, "freshness")
        assert (found.verdict, found.mode, decision.outcome) == (verdict, mode, "pending")
        assert {"gate": "freshness", "mode": mode} in [
            {"gate": one["gate"], "mode": one["mode"]}
            for one in decision.to_json()["results"]  # type: ignore[attr-defined]
        ]


def test_the_same_case_always_gets_the_same_decision(tmp_path: Path) -> None:
    """The engine is a pure function: bootstrap and all."""
    first, second = (judged(tmp_path, good(0.72), champion(0.7)) for _ in range(2))
    assert first == second
