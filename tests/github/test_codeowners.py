"""Whose approval a change needs: every line of CODEOWNERS is about something that is there."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT

LINES = [
    line.split()
    for line in (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_a_line_names_what_is_there_and_who(line: list[str]) -> None:
    pattern, *owners = line
    assert (ROOT / pattern.strip("/").partition("*")[0]).exists()
    assert owners and all(one.startswith("@") and "/" in one for one in owners)


def test_what_decides_has_an_owner() -> None:
    """The policies, and the workflow that asks them."""
    assert {"/policies/", "/.github/"} <= {line[0] for line in LINES}
