"""Evidence that passes every gate, and ways to spoil one thing in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from policies.promotion import gates
from policies.promotion.decision import Decision, Request, Result
from policies.promotion.engine import decide
from policies.promotion.evidence import (
    DataVersion,
    Estimate,
    Evidence,
    Latency,
    Lineage,
    LockedPackage,
    SupplyChain,
)

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


def good(share: float = 0.8, version: str = "7", digest: str = DIGEST) -> Evidence:
    """Evidence without a fault."""
    return Evidence(
        schema_version=1,
        created=NOW - timedelta(hours=1),
        project="tiny",
        model="tiny",
        version=version,
        digest=digest,
        primary_metric="gain_at_1",
        goal="maximize",
        metrics={
            split: {"gain_at_1": Estimate(share, share - 0.04, share + 0.04, UNITS)}
            for split in ("test", "validation")
        },
        baseline={"test": {"gain_at_1": Estimate(0.5, 0.45, 0.55, UNITS)}},
        data={"faq": DataVersion("azureml:tiny:1", "d" * 64)},
        lineage=Lineage(
            run="r1",
            parent_run="p1",
            code_snapshot="sha256:" + "c" * 64,
            commit="e" * 40,
            dirty=False,
            environment="azureml:ml-cpu:1",
            feature_set_hash="f" * 64,
            hyperparameters={"leaves": 4},
            seed=0,
        ),
        latency=Latency(1.0, 2.0, 3.0, 200, "a machine", "Standard_DS3_v2"),
        supply_chain=SupplyChain(
            packages={"numpy": LockedPackage("2.3.1", "2.3.1", "BSD-3-Clause")},
            sbom="a" * 64,
            as_of=NOW - timedelta(days=1),
            advisories=(),
        ),
        files={"model.txt": "lightgbm-text", "words.json": "json"},
        disagreements=(),
        outcomes={"test": outcomes(share)},
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
