"""policies.promotion.evidence: read by its types, what it lacks, and its JSON Schema."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest

from ml.measures.schema import Contribution, json_schema, missing
from policies.promotion.evidence import Cost, Evidence, parse
from tests.policies.cases import DOCUMENT


def test_a_document_is_read_by_its_types() -> None:
    """Stated values are read; computed fields and unknown keys are not."""
    document = {
        "created": "2025-06-01T00:00:00+00:00",
        "evaluation": {"contributions": [{"feature": "a", "share": 1, "more": 2}]},
        "files": {"model.txt": "lightgbm-text"},
        "mismatches": [],
        "more": 1,
    }
    evidence = parse(document)
    assert (
        evidence.evaluation.contributions == (Contribution("a", 1.0),) and evidence.cost == Cost()
    )
    assert evidence.created is not None and evidence.created.utcoffset() is not None
    assert evidence.files is None and evidence.mismatches is None
    for nothing in (None, [], 3, "text", {}):
        assert parse(nothing) == parse({})


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"evaluation": {"contributions": [None]}}, "evaluation.contributions.0.feature"),
        ({"evaluation": {"contributions": [{"feature": "a"}]}}, "evaluation.contributions.0.share"),
        (
            {"evaluation": {"contributions": [{"feature": "a", "share": -0.1}]}},
            "evaluation.contributions.0.share",
        ),
        (
            {"evaluation": {"contributions": [{"feature": "a", "share": 1.1}]}},
            "evaluation.contributions.0.share",
        ),
        (
            {"evaluation": {"contributions": [{"feature": "a", "share": math.nan}]}},
            "evaluation.contributions.0.share",
        ),
        (
            {"evaluation": {"contributions": [{"feature": "a", "share": True}]}},
            "evaluation.contributions.0.share",
        ),
        (
            {"evaluation": {"contributions": [{"feature": " ", "share": 1}]}},
            "evaluation.contributions.0.feature",
        ),
        ({"created": "2025-06-01T00:00:00"}, "created"),
        ({"created": "1748779200"}, "created"),
        ({"created": 3}, "created"),
        ({"lineage": {"dirty": 1}}, "lineage.dirty"),
        ({"evaluation": {"seed": math.inf}}, "evaluation.seed"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, object], path: str) -> None:
    """Absent, empty, of another type, not finite or out of bounds: its path."""
    assert path not in list(missing(parse(DOCUMENT)))
    assert path in list(missing(parse(DOCUMENT | change)))


def test_the_json_schema_says_the_same() -> None:
    """A complete document is valid; without one of its required fields it is not."""
    schema = json_schema(Evidence)
    assert schema["title"] == Evidence.__name__
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator(schema)
    document = json.loads(json.dumps(DOCUMENT))
    assert not list(checker.iter_errors(document))
    assert not list(missing(parse(document)))
    for name in schema["required"]:
        less = {key: value for key, value in document.items() if key != name}
        assert list(checker.iter_errors(less)) and list(missing(parse(less))), name
    latency = document["latency"]
    for bad in ({"schema_version": 1}, {"latency": {**latency, "p95_ms": -1}}):
        assert list(checker.iter_errors(document | bad))
        assert list(missing(parse(document | bad)))
