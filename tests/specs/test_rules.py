"""The rules as a catalogue: each has a refused case, an allowed twin, a sentence and a source."""

from __future__ import annotations

import pytest

from ml.specs.check.rules.rule import RULES, Finding, Rule, rule
from tests.specs.allowed import ALLOWED
from tests.specs.broken import CASES
from tests.specs.conftest import Check

TWINS = [(name, text) for name, texts in ALLOWED.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), TWINS, ids=[name for name, _ in TWINS])
def test_allowed_twin(name: str, text: str, problems: Check) -> None:
    """A spec that comes close to breaking a rule and does not has no problem at all."""
    assert [str(problem) for problem in problems(text)] == []


@pytest.mark.parametrize("name", RULES)
def test_rule_is_complete(name: str) -> None:
    """A rule has a sentence, a source, a refused case and an allowed one."""
    rule = RULES[name]
    assert rule.sentence.endswith(".") and rule.source
    assert name in ALLOWED
    # Links on disk (test_broken), a project's code (test_code).
    tried_elsewhere = {
        "duplicate-declaration",
        "link-escape",
        "missing-package",
        "unknown-argument",
    }
    assert name in tried_elsewhere or any(f": {name}\n" in text for text in CASES.values())


def test_every_twin_has_its_rule() -> None:
    """No twin outlives its rule."""
    assert set(ALLOWED) <= set(RULES)


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("command: echo\nenvironment: azureml:e:1\n", []),
        ("name: e\nversion: 1\nimage: python:3.11\n", ["Subject"]),
        ("type: pipeline\njobs: {a: {command: echo, environment: 'azureml:e:1'}}\n", ["Node"]),
    ],
)
def test_a_rule_is_called_in_its_scopes_only(
    text: str, called: list[str], problems: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule for environments and steps is not called for a command job."""
    calls: list[str] = []

    def find(item: object) -> list[Finding]:
        calls.append(type(item).__name__)
        return []

    monkeypatch.setitem(
        RULES,
        "probe",
        Rule("probe", "", "error", "", frozenset({"environment", "step"}), False, find),
    )
    problems(text)
    assert calls == called


def test_an_unknown_scope_is_refused() -> None:
    """A rule of a scope that does not exist would never run."""

    def find(_: object) -> list[Finding]:
        """Jobs have names."""
        return []

    with pytest.raises(ValueError, match="scope"):
        rule("probe", scope=("job", "jobs"), source="here")(find)
