"""policies.promotion.schema: a document read by its types, what it lacks, and its JSON Schema."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import datetime

import jsonschema
import pytest

from policies.promotion import schema
from policies.promotion.evidence import Evidence, parse
from policies.promotion.schema import AFRESH, OPTIONAL, number
from tests.policies.cases import DOCUMENT


@dataclass(frozen=True)
class Part:
    """A part."""

    name: str | None = None
    size: float | None = number(1, 10)
    note: str | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True)
class Whole:
    """A whole."""

    parts: tuple[Part, ...] = ()
    made: datetime | None = None
    sure: bool | None = None
    seen: str | None = field(default=None, metadata=AFRESH)


SOUND = {
    "parts": [{"name": "a", "size": 3}],
    "made": "2025-06-01T00:00:00+00:00",
    "sure": False,
    "seen": "never read",
}


def test_a_document_is_read_by_its_types() -> None:
    """What fits is taken over; what is made afresh, and what nobody asked for, is not."""
    found = schema.read(Whole, {**SOUND, "more": 1})
    assert found.parts == (Part("a", 3.0),) and found.sure is False and found.seen is None
    assert list(schema.missing(found)) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"parts": []}, "parts"),
        ({"parts": {"name": "a"}}, "parts"),
        ({"parts": [None]}, "parts.0.name"),
        ({"parts": [{"name": "a"}]}, "parts.0.size"),
        ({"parts": [{"name": "a", "size": 0}]}, "parts.0.size"),
        ({"parts": [{"name": "a", "size": 11}]}, "parts.0.size"),
        ({"parts": [{"name": "a", "size": math.nan}]}, "parts.0.size"),
        ({"parts": [{"name": "a", "size": True}]}, "parts.0.size"),
        ({"parts": [{"name": " ", "size": 1}]}, "parts.0.name"),
        ({"made": "2025-06-01T00:00:00"}, "made"),
        ({"made": 3}, "made"),
        ({"sure": 1}, "sure"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, object], path: str) -> None:
    """Absent, empty, of another type, not finite or out of bounds: its path."""
    assert path in list(schema.missing(schema.read(Whole, SOUND | change)))


def test_the_json_schema_says_the_same() -> None:
    """What is complete is valid; without any one of its required fields it is not."""
    stated = schema.json_schema(Evidence)
    jsonschema.Draft202012Validator.check_schema(stated)
    checker = jsonschema.Draft202012Validator(stated)
    document = json.loads(json.dumps(DOCUMENT))
    assert not list(checker.iter_errors(document))
    assert not list(schema.missing(parse(document)))
    for name in stated["required"]:
        less = {key: of for key, of in document.items() if key != name}
        assert list(checker.iter_errors(less)) and list(schema.missing(parse(less))), name
    for bad in ({"schema_version": 1}, {"latency": {**document["latency"], "p95_ms": -1}}):
        assert list(checker.iter_errors(document | bad))
        assert list(schema.missing(parse(document | bad)))
