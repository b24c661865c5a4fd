"""ml.core.settings: each kind of mistake has its line, what was expected and what to type."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, Field

from ml.core import documents, settings
from ml.core.errors import Problem, UserError
from ml.core.settings import CLOSED, invalid


def _even(value: int) -> int:
    if value % 2:
        raise invalid("an even number", f"{value + 1}")
    return value


@dataclass(frozen=True)
class Cluster:
    """A cluster."""

    __pydantic_config__ = CLOSED

    name: Annotated[str, Field(pattern="^[a-z-]+$", description="what jobs call it")]
    nodes: Annotated[int, Field(ge=0, le=10)] = 2
    priority: Literal["dedicated", "low-priority"] = "dedicated"
    pairs: Annotated[int, AfterValidator(_even)] = 0


@dataclass(frozen=True)
class Settings:
    """Some settings."""

    __pydantic_config__ = CLOSED

    version: Literal[1]
    share: Annotated[float, Field(gt=0)] = 1.0
    enabled: bool = True
    expires: date | None = None
    clusters: tuple[Cluster, ...] = ()
    rates: dict[str, float] = field(default_factory=dict)
    hosts: Annotated[tuple[str, ...], Field(min_length=1)] = ("localhost",)


@dataclass(frozen=True)
class Versioned:
    """A file with a schema version."""

    schema_version: settings.SchemaVersion


def _problems(text: str) -> list[Problem]:
    with pytest.raises(UserError) as refused:
        settings.read(Settings, documents.parse(text, "settings.yml"))
    return list(refused.value.problems)


def test_a_complete_file_becomes_the_dataclass() -> None:
    text = """
version: 1
share: 2
expires: 2026-06-30
clusters:
  - {name: cpu, nodes: 4, priority: low-priority, pairs: 2}
rates: {dev: 0.5}
hosts: [one, two]
"""
    assert settings.read(Settings, documents.parse(text, "settings.yml")) == Settings(
        version=1,
        share=2.0,
        expires=date(2026, 6, 30),
        clusters=(Cluster("cpu", 4, "low-priority", 2),),
        rates={"dev": 0.5},
        hosts=("one", "two"),
    )


def test_a_part_of_a_document_is_read_by_its_keys() -> None:
    document = documents.parse("a:\n  b:\n    - name: cpu\n      nodes: 11\n", "s.yml")
    with pytest.raises(UserError) as refused:
        settings.read(Cluster, document, "a", "b", 0)
    assert str(refused.value.problems[0].place) == "s.yml:4"
    assert refused.value.problems[0].actual == "`a.b[0].nodes` is 11"


@pytest.mark.parametrize(
    ("line", "code", "actual", "expected", "hint"),
    [
        ("share: .nan", "wrong-value", "`share` is nan", "a finite number", ""),
        ("share: 0", "wrong-value", "`share` is 0", "more than 0", ""),
        ("share: '4'", "wrong-value", "`share` is '4'", "a number", "write it without quotes"),
        ("share: true", "wrong-value", "`share` is true", "a number", ""),
        ("share:", "wrong-value", "`share` is empty", "a number", ""),
        ("enabled: 1", "wrong-value", "`enabled` is 1", "true or false", ""),
        ("enabled: 'true'", "wrong-value", "`enabled` is 'true'", "true or false", "quotes"),
        ("expires: soon", "wrong-value", "`expires` is 'soon'", "a date such as", ""),
        ("hosts: []", "wrong-value", "`hosts` is a list of 0", "at least 1", ""),
        ("hosts: cpu", "wrong-value", "`hosts` is 'cpu'", "a list: a dash", ""),
        ("hosts: [1]", "wrong-value", "`hosts[0]` is 1", "a text", "put it in quotes"),
        ("clusters: {}", "wrong-value", "`clusters` is a mapping", "a list: a dash", ""),
        ("clusters: [cpu]", "wrong-value", "`clusters[0]` is 'cpu'", "a mapping", ""),
        ("clusters: [{nodes: 1}]", "missing-field", "no `clusters[0].name`", "what jobs", "add"),
        (
            "clusters: [{name: CPU}]",
            "wrong-value",
            "`clusters[0].name` is 'CPU'",
            "a text that matches",
            "what jobs call it",
        ),
        (
            "clusters: [{name: a, priority: low-prio}]",
            "wrong-value",
            "`clusters[0].priority` is 'low-prio'",
            "'dedicated' or 'low-priority'",
            "did you mean `low-priority`?",
        ),
        ("clusters: [{name: a, pairs: 3}]", "wrong-value", "pairs` is 3", "an even number", "4"),
        ("clusters: [{name: a, nods: 3}]", "unknown-field", "nods`", "one of: name", "`nodes`?"),
        ("rates: {dev: fast}", "wrong-value", "`rates.dev` is 'fast'", "a number", ""),
        ("shrae: 2", "unknown-field", "`shrae`", "one of: version, share", "did you mean `share`?"),
        ("nothing-like-it: 2", "unknown-field", "`nothing-like-it`", "one of", "delete it"),
    ],
)
def test_a_mistake_has_its_line_and_what_to_type(
    line: str, code: str, actual: str, expected: str, hint: str
) -> None:
    (problem,) = _problems(f"version: 1\n{line}\n")
    assert str(problem.place) == "settings.yml:2"
    assert problem.code == code
    assert actual in problem.actual
    assert expected in problem.expected
    assert hint in problem.hint


@pytest.mark.parametrize("version", ["true", "2", "'1'"])
def test_a_schema_version_is_the_number_one(version: str) -> None:
    with pytest.raises(UserError) as refused:
        settings.read(Versioned, documents.parse(f"schema_version: {version}\n", "s.yml"))
    assert refused.value.problems[0].expected == "1"
    text = documents.parse("schema_version: 1\n", "s.yml")
    assert settings.read(Versioned, text) == Versioned(1)


def test_every_problem_is_reported_at_once() -> None:
    problems = _problems("share: 0\nenabled: 1\nhosts: [1, 2]\nx: 1\n")
    assert sorted(problem.actual for problem in problems) == [
        "`enabled` is 1",
        "`hosts[0]` is 1",
        "`hosts[1]` is 2",
        "`share` is 0",
        "`x`",
        "no `version`",
    ]


def test_the_schema_describes_the_same_file() -> None:
    schema = settings.schema(Settings)
    assert schema["required"] == ["version"]
    assert schema["additionalProperties"] is False
    assert "title" not in schema
    assert schema["$defs"]["Cluster"]["properties"]["name"]["description"] == "what jobs call it"
