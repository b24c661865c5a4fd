"""One entry of release.yml changes, and every other byte stays."""

from __future__ import annotations

import pytest
import yaml

from ml.core.errors import UserError
from ml.repository.github.releases import with_entry
from tests.github.test_release import declared

ONE = declared(dev="1", prod="1")
TWO = declared(dev="2", prod="1")
COMMENTS = """\
# top
environments: # all
  dev: {}

  # of R&D
  prod:
    a: 1
# end
traffic: {}
"""
BELOW = COMMENTS.replace("dev: {}", "dev:\n    version: 2")


@pytest.mark.parametrize(
    ("seen", "wanted", "now", "expected"),
    {
        "nothing else": (ONE, TWO, ONE, TWO),
        "another environment moved on": (
            *(ONE, TWO, declared(dev="1", prod="9")),
            declared(dev="2", prod="9"),
        ),
        "the wanted text changes another one": (ONE, declared(dev="2", prod="2"), ONE, TWO),
        "declared already": (ONE, TWO, TWO, TWO),
        "declared already, without an end": (ONE, TWO, TWO.rstrip(), TWO.rstrip()),
        "no end of the last line": (ONE.rstrip(), TWO, ONE.rstrip(), TWO),
        "a first entry after a line without an end": (
            *("environments:\n  prod: 1", "environments:\n  dev: 1", "environments:\n  prod: 1"),
            "environments:\n  prod: 1\n  dev: 1\n",
        ),
        "a first entry": (
            *("environments:\n", "environments:\n  dev: 1\n", "environments:\n"),
            "environments:\n  dev: 1\n",
        ),
        "a first entry before other keys": (
            "environments:\n  prod: 1\ntraffic: {}\n",
            "environments:\n  prod: 1\n  dev: 1\ntraffic: {}\n",
            "environments:\n  prod: 2\n\n# words\ntraffic: {}\n",
            "environments:\n  prod: 2\n  dev: 1\n\n# words\ntraffic: {}\n",
        ),
        "texts in quotes on one line": (
            "environments:\n  dev: 1\n",
            "environments:\n  dev: 2\n",
            'environments:\n  prod: {why: "it is so"} # it\'s\n  dev: 1\n',
            'environments:\n  prod: {why: "it is so"} # it\'s\n  dev: 2\n',
        ),
        "an anchor that nothing refers to": (
            *(ONE, TWO, ONE.replace("  dev: ", "  dev: &dev ")),
            TWO,
        ),
        "comments, blank lines and more lines stay": (
            *(COMMENTS, BELOW, COMMENTS.replace("a: 1", "a: 2")),
            BELOW.replace("a: 1", "a: 2"),
        ),
    }.values(),
    ids=str,
)
def test_one_entry_changes(seen: str, wanted: str, now: str, expected: str) -> None:
    assert with_entry("dev", seen, wanted, now) == expected


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (declared(dev="3", prod="1"), "declaration-changed"),
        (declared(prod="1"), "declaration-changed"),
        (f"{ONE}  more: *dev\n", "ambiguous-entry"),
        (f"{ONE}  dev: {{}}\n", "ambiguous-entry"),
        (ONE.replace("  ", "    "), "ambiguous-entry"),
        (ONE.replace("  ", "\t"), "ambiguous-entry"),
        (yaml.safe_dump(yaml.safe_load(ONE), default_flow_style=True), "ambiguous-entry"),
        (f"{ONE}environments:\n  dev: {{}}\n", "ambiguous-entry"),
        ("", "ambiguous-entry"),
        (f'{ONE}    reason: "better\n  prod:\n    version: 9\n    # "\n', "ambiguous-entry"),
        (f"{ONE}    reason: !!str 'better\n  prod:\n    version: 9'\n", "ambiguous-entry"),
        (f'{ONE}    "rea\n  prod: son": 1\n', "ambiguous-entry"),
        (f'{ONE}    reasons: ["better]\n  prod: "]\n', "ambiguous-entry"),
    ],
)
def test_an_entry_that_is_not_as_seen_is_not_changed(now: str, code: str) -> None:
    """Another declaration, or one that cannot be told apart from the others."""
    with pytest.raises(UserError, match=code):
        with_entry("dev", ONE, declared(dev="2", prod="1"), now)
