"""Writing a declaration into release.yml: no other character of the file changes."""

from __future__ import annotations

import difflib
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as some

from ml.release.declaration import edit

ENTRY = {
    "model": "tiny",
    "version": "3",
    "digest": "sha256:" + "0a" * 32,
    "evidence": "1" * 64,  # a number to YAML, unless quoted
    "decision": "9e" + "1" * 62,  # and this one a float
    "reason": "",
}
OTHER = {**ENTRY, "version": "12", "reason": "because: it is 'better' # by far\nand é"}
FILES = {
    "empty": "schema_version: 1\nenvironments:\n  dev: {}   # not yet\n  prod: {}\n",
    "nothing but empty": "environments:\n  dev: {}\n  staging: {}\n",
    "null": "schema_version: 1\nenvironments:\n  dev:   # not yet\n  prod:\n# the end",
    "not there": "schema_version: 1\nenvironments:\n    # later\n    prod:\n        traffic: {}\n",
    "no environment": "schema_version: 1\nenvironments: {} # none\n",
    "ends at once": "schema_version: 1\nenvironments:",
    "a strategy": "environments:\n  dev:\n    # why\n    traffic: {steps: [10]} # so\n\n# é\n",
    "flow": "environments: {prod: {}, dev: {traffic: {mirror: 3}}}\n",
    "flow null": "environments: {dev: , prod: {}}\n",
    "flow, not there": "{schema_version: 1, environments: {prod: {}}}\n",
    "partly there": "environments:\n  dev:\n    version: 1 # é\n    reason: |\n      old\n"
    "      one\n    model:\n  prod: {}\n",
    "lines of Windows": "schema_version: 1\r\nenvironments:\r\n  dev: {}\r\n  prod: {}\r\n",
}


def changed(before: str, after: str) -> list[str]:
    """The lines that were taken away."""
    found = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[2:] for line in found if line.startswith("- ")]


@pytest.mark.parametrize("name", FILES)
def test_it_is_written_where_it_belongs(name: str) -> None:
    """Over nothing, over another, and again, which changes nothing."""
    text = FILES[name]
    before = yaml.safe_load(text)
    first = edit.declared(text, "dev", ENTRY)
    second = edit.declared(first, "dev", OTHER)
    assert edit.declared(second, "dev", OTHER) == second
    for made, values in ((first, ENTRY), (second, OTHER)):
        found = yaml.safe_load(made)
        entry = found["environments"].pop("dev")
        assert {key: value for key, value in values.items() if value}.items() <= entry.items()
        environments = dict(before["environments"] or {})
        old = environments.pop("dev", None) or {}
        assert entry.get("traffic") == old.get("traffic")
        assert found == {**before, "environments": environments}
    for comment in [line.partition("#")[2] for line in text.splitlines() if "#" in line]:
        assert comment in first and comment in second


@pytest.mark.parametrize("name", FILES)
def test_it_is_taken_out_again(name: str) -> None:
    """Without its lines, and with all others; where nothing is declared the text stays."""
    empty = dict.fromkeys(ENTRY, "")
    none = edit.declared(FILES[name], "dev", empty)
    for values in (ENTRY, OTHER):
        made = edit.declared(edit.declared(none, "dev", values), "dev", empty)
        wanted = yaml.safe_load(none)
        environments = wanted["environments"] = wanted["environments"] or {}
        found = yaml.safe_load(made)
        entry, before = (
            each.pop("dev", None) or {} for each in (found["environments"], environments)
        )
        assert found == wanted and entry == before and not ENTRY.keys() & entry.keys()
        assert (
            not changed(none, made) or name.startswith("flow") or "no env" in name or "{}" in none
        )


def test_the_next_version_changes_its_lines_alone() -> None:
    """The difference that a reviewer sees is the declaration."""
    first = edit.declared(FILES["a strategy"], "dev", ENTRY)
    assert not changed(FILES["a strategy"], first)
    second = edit.declared(first, "dev", {**ENTRY, "version": "4"})
    assert changed(first, second) == ['    version: "3"']


@pytest.mark.parametrize(
    "text",
    [
        "environments:\n  prod: &one\n    model: m\n  dev: *one\n",
        "one: &one {model: m}\nenvironments:\n  dev:\n    <<: *one\n    traffic: {}\n",
        "environments: &all\n  prod: {}\nothers: *all\n",
        "- 1\n",
        "environments: [dev]\n",
    ],
)
def test_what_cannot_be_edited_is_left(text: str) -> None:
    """Where an anchor would carry the change elsewhere, nobody guesses."""
    made: Any = None
    try:
        made = edit.declared(text, "dev", ENTRY)
    except edit.CannotEdit:
        return
    found = yaml.safe_load(made)
    del found["environments"]["dev"]
    rest = yaml.safe_load(text)
    rest["environments"].pop("dev", None)
    assert found == rest


@settings(max_examples=60, deadline=None)
@given(
    some.dictionaries(
        some.sampled_from(["model", "version", "reason"]), some.text(max_size=30), min_size=1
    ),
    some.sampled_from(sorted(FILES)),
)
def test_any_text_is_read_back(values: dict[str, str], name: str) -> None:
    """Whatever a reason holds: it is written so that it is read back, or not at all."""
    try:
        made = edit.declared(FILES[name], "dev", {**ENTRY, **values})
    except edit.CannotEdit:
        assert not all(value.isprintable() for value in values.values())
        return
    entry = yaml.safe_load(made)["environments"]["dev"]
    assert all(entry[key] == value for key, value in values.items() if value)
