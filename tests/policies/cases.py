"""Evidence that passes every gate, and ways to spoil one thing in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from policies.promotion import gates
from policies.promotion.decision import Decision, Request, Result
from policies.promotion.engine import decide
from policies.promotion.evidence import (
    SCHEMA_VERSION,
    Contribution,
    Cost,
    DataVersion,
    Disparity,
    Estimate,
    Evidence,
    Explanation,
    KeptPredictions,
    Latency,
    Lineage,
    LockedPackage,
    Metrics,
    Spent,
    Stability,
    SupplyChain,
    Training,
)

NOW = datetime(2025, 6, 1, 12, 0, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
UNITS = 400
SLICES = {"cost": 0.7, "data": 0.9}

PROJECT = """
schema_version: 1
gates:
  quality:
    at_least: {test.gain_at_1: 0.6}
  gap:
    at_most: {test.gain_at_1: 0.1}
  fairness:
    dimensions: [topic]
    at_most: {topic.gain_at_1: 0.3}
  non-inferiority:
    splits: [test]
"""


def held(folder: Path, text: str = PROJECT) -> gates.Gates:
    """The floor, tightened by a project's file."""
    path = folder / "gates.yml"
    path.write_text(text)
    return gates.load(path)


def outcomes(share: float, count: int = UNITS) -> dict[str, float]:
    """Units of which the first `share` are right: a better model is right where a worse one is."""
    return {f"q{number:04}": float(number < share * count) for number in range(count)}


def sliced(values: Mapping[str, float]) -> Metrics:
    """What is stated of slices: half of the units each."""
    return {
        name: {"gain_at_1": Estimate(value, value - 0.1, value + 0.05, UNITS / 2)}
        for name, value in values.items()
    }


def members(count: int = UNITS) -> dict[str, tuple[str, ...]]:
    """The units of every slice: they take turns."""
    every = [f"q{number:04}" for number in range(count)]
    return {"cost": tuple(every[::2]), "data": tuple(every[1::2])}


def good(share: float = 0.8, version: str = "7", digest: str = DIGEST) -> Evidence:
    """Evidence without a fault."""
    return Evidence(
        schema_version=SCHEMA_VERSION,
        created=NOW - timedelta(hours=1),
        project="tiny",
        model="tiny",
        version=version,
        digest=digest,
        uri=f"models:/tiny/{version}",
        primary_metric="gain_at_1",
        goal="maximize",
        unit="question",
        resampled="question",
        metrics={
            split: {"gain_at_1": Estimate(share, share - 0.04, share + 0.04, UNITS)}
            for split in ("test", "validation")
        },
        baseline={"test": {"gain_at_1": Estimate(0.5, 0.45, 0.55, UNITS)}},
        slice_split="test",
        slices={"topic": sliced(SLICES)},
        fairness={"topic": {"gain_at_1": Disparity("test", 0.2, "cost", "data", 2)}},
        contributions=(Contribution("words", 0.6), Contribution("length", 0.4)),
        explanation=Explanation("TreeSHAP", UNITS, 0.0),
        stability={"gain_at_1": Stability("folds", (0.79, 0.8, 0.81), 0.01)},
        training=Training(1.5, 2),
        cost=Cost(Spent(2.0, 1, "a machine"), Spent(1.5, 1, "a machine", "Standard_DS3_v2")),
        data={"faq": DataVersion("azureml:tiny:1", "d" * 64)},
        lineage=Lineage(
            run="r1",
            run_name="brave_lake_01_3",
            parent_run="p1",
            evaluation_run="v1",
            code_snapshot="sha256:" + "c" * 64,
            commit="e" * 40,
            dirty=False,
            environment="azureml:ml-cpu:1",
            feature_set_hash="f" * 64,
            hyperparameters={"leaves": 4},
            seed=0,
        ),
        latency=Latency(1.0, 2.0, 3.0, 1.5, 200, 20, "a machine", "Standard_DS3_v2"),
        predictions=KeptPredictions("predictions.csv", "e" * 64, 2 * UNITS),
        supply_chain=SupplyChain(
            packages={"numpy": LockedPackage("2.3.1", "2.3.1", "BSD-3-Clause")},
            lock="requirements/main.lock",
            sbom="a" * 64,
            source="advisories.zip",
            records=1,
            as_of=NOW - timedelta(days=1),
            advisories=(),
        ),
        files={"model.txt": "lightgbm-text", "words.json": "json"},
        disagreements=(),
        outcomes={"test": outcomes(share)},
        members={"test": {"topic": members()}},
    )


def champion(share: float = 0.7) -> Evidence:
    """A champion's evidence on the same units."""
    return good(share, version="3", digest=OTHER)


REQUEST = Request("local", "tiny", "7", DIGEST, "propose", NOW)


def judged(
    folder: Path,
    evidence: Evidence,
    against: Evidence | None = None,
    request: Request = REQUEST,
    text: str = PROJECT,
) -> Decision:
    """The decision under the project's gates."""
    return decide(held(folder, text), evidence, against, request)


def result(decision: Decision, gate: str) -> Result:
    """One gate's result."""
    return next(one for one in decision.results if one.gate == gate)


def asked(**changes: object) -> Request:
    """The request with something changed."""
    return replace(REQUEST, **changes)  # type: ignore[arg-type]
