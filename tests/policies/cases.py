"""Evidence that passes every gate, and ways to break one thing in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ml.measures.schema import SCHEMA_VERSION as EVALUATION_SCHEMA
from ml.measures.schema import Estimate, Metrics
from policies.promotion import gate_settings
from policies.promotion.decision import Decision, Request, Result
from policies.promotion.engine import decide
from policies.promotion.evidence import SCHEMA_VERSION, Evidence, parse
from policies.promotion.gate import Gates

NOW = datetime(2025, 6, 1, 12, 0, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
UNITS = 400

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


def load_gates(folder: Path, text: str = PROJECT) -> Gates:
    """The organisation policy, tightened by a project's file."""
    path = folder / "gates.yml"
    path.write_text(text)
    return gate_settings.load(path)


def outcomes(share: float, count: int = UNITS) -> dict[str, float]:
    """Units of which the first `share` are right, so a better model is right where a worse is."""
    return {f"q{number:04}": float(number < share * count) for number in range(count)}


# What the gates rely on: without any one of these the version is refused.
_SPENT = {"seconds": 2.0, "nodes": 1, "hardware": "a machine"}
DOCUMENT: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "created": (NOW - timedelta(hours=1)).isoformat(),
    "project": "tiny",
    "model": "tiny",
    "version": "7",
    "digest": DIGEST,
    "uri": "models:/tiny/7",
    "simulated": False,
    "evaluation": {
        "schema_version": EVALUATION_SCHEMA,
        "model": "tiny",
        "feature_set_hash": "f" * 64,
        "hyperparameters": {},
        "seed": 0,
        "primary_metric": "gain_at_1",
        "goal": "maximize",
        "unit": "question",
        "resampled": "question",
        "metrics": {
            "test": {"gain_at_1": {"value": 0.8, "low": 0.76, "high": 0.84, "count": UNITS}},
            "validation": {"gain_at_1": {"value": 0.79, "low": 0.7, "high": 0.84, "count": UNITS}},
        },
        "baseline": {
            "test": {"gain_at_1": {"value": 0.5, "low": 0.4, "high": 0.6, "count": UNITS}}
        },
        "slice_split": "test",
        "slices": {
            "topic": {
                "cost": {"gain_at_1": {"value": 0.7, "low": 0.6, "high": 0.8, "count": 200}},
                "data": {"gain_at_1": {"value": 0.9, "low": 0.8, "high": 1.0, "count": 200}},
            }
        },
        "fairness": {
            "topic": {
                "gain_at_1": {
                    "split": "test",
                    "difference": 0.2,
                    "lowest": "cost",
                    "highest": "data",
                    "slices": 2,
                }
            }
        },
        "explanation": {"method": "TreeSHAP", "rows": UNITS, "error": 0.0},
        "contributions": [{"feature": "words", "share": 0.6}, {"feature": "length", "share": 0.4}],
        "stability": {"gain_at_1": {"over": "folds", "values": [0.79, 0.81], "std": 0.01}},
        "training": {"seconds": 1.5, "threads": 2},
        "leakage": [
            {"check": "identifiers.shared", "of": "question", "value": 0, "units": UNITS},
            {"check": "feature.auc", "of": "words", "value": 0.85, "units": UNITS},
        ],
        "identifiers": "b" * 64,
        "predictions": {"file": "predictions.csv", "sha256": "e" * 64, "rows": 800},
        "requests": "c" * 64,
    },
    "cost": {"training": _SPENT, "thousand_predictions": _SPENT},
    "data": {"faq": {"asset": "azureml:tiny:1", "sha256": "d" * 64}},
    "lineage": {
        "run": "r1",
        "parent_run": "p1",
        "evaluation_run": "v1",
        "evaluation_snapshot": "d" * 64,
        "evaluation_commit": "e" * 40,
        "evaluation_dirty": False,
        "code_snapshot": "c" * 64,
        "commit": "e" * 40,
        "dirty": False,
        "environment": "azureml:ml-cpu:1",
    },
    "supply_chain": {
        "lock": "requirements/main.lock",
        "packages": {"numpy": {"locked": "2.3.1", "installed": "2.3.1", "licence": "MIT"}},
        "source": "advisories.zip",
        "as_of": (NOW - timedelta(days=1)).isoformat(),
        "records": 20000,
        "advisories": [],
        "sbom": "a" * 64,
    },
    "serving": {
        "rows": 200,
        "differing": 0,
        "largest": 0.0,
        "prediction": "answers/0/entry_id",
        "deployment_digest": "serving",
    },
    "latency": {
        "p50_ms": 1.0,
        "p95_ms": 2.0,
        "p99_ms": 3.0,
        "mean_ms": 1.5,
        "requests": 200,
        "warm_up": 20,
        "hardware": "a machine",
        "instance_type": "Standard_DS3_v2",
    },
}


def sliced(values: Mapping[str, float]) -> Metrics:
    """What is stated of slices: half of the units each."""
    return {
        name: {"gain_at_1": Estimate(value, value - 0.1, value + 0.05, UNITS / 2)}
        for name, value in values.items()
    }


def members(count: int = UNITS) -> dict[str, tuple[str, ...]]:
    """The units of every slice, taken in turns."""
    every = [f"q{number:04}" for number in range(count)]
    return {"cost": tuple(every[::2]), "data": tuple(every[1::2])}


def computed(evidence: Evidence, share: float = 0.8) -> Evidence:
    """The evidence with what is computed when it is loaded; `share` of the units are right."""
    return replace(
        evidence,
        files={"model.txt": "lightgbm-text", "words.json": "json"},
        mismatches=(),
        outcomes={"test": outcomes(share)},
        labels={"test": dict.fromkeys(outcomes(share), "a")},
        members={"test": {"topic": members()}},
        range=(0, 1),
    )


def good(share: float = 0.8, version: str = "7", digest: str = DIGEST) -> Evidence:
    """Evidence without a fault."""
    stated = {"gain_at_1": Estimate(share, share - 0.04, share + 0.04, UNITS)}
    evidence = replace(
        computed(parse(DOCUMENT), share),
        version=version,
        digest=digest,
        uri=f"models:/tiny/{version}",
    )
    return evaluated(evidence, metrics={"test": stated, "validation": stated})


def evaluated(evidence: Evidence, **changes: Any) -> Evidence:
    """The evidence of an evaluation that states something else."""
    return replace(evidence, evaluation=replace(evidence.evaluation, **changes))


def champion(share: float = 0.7) -> Evidence:
    """A champion's evidence on the same units."""
    return good(share, version="3", digest=OTHER)


REQUEST = Request("local", "tiny", "7", DIGEST, "propose", NOW, deployment_digest="serving")


def judged(
    folder: Path,
    evidence: Evidence,
    against: Evidence | None = None,
    request: Request = REQUEST,
    text: str = PROJECT,
) -> Decision:
    """The decision under the project's gates."""
    return decide(load_gates(folder, text), evidence, against, request)


def result(decision: Decision, gate: str) -> Result:
    """One gate's result."""
    return next(one for one in decision.results if one.gate == gate)


def request(**changes: object) -> Request:
    """The request with something changed."""
    return replace(REQUEST, **changes)  # type: ignore[arg-type]
