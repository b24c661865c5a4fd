"""Entries told by lines: what they are is what YAML says, or there are none."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from ml.core import documents
from ml.core.entries import split, value
from ml.core.errors import Refused

# Lines that a file of these entries may be made of, whole or cut off.
LINES = r"""
environments:
environments: {dev: {}}
? environments
  dev:
  dev: {}
  dev: {version: 2, serving: 'a'} # one
  "dev": {version: 3}
  'dev': &a {}
  "d\x65v": {}
  prod:
  prod: *a
    version: 1
    serving: 'f'
    serving: f # 'g
    reason: "so that
    "reason": "
    reason: it's
    reason: !!str "
    reason: |
    k\"y: "
    - a
    - b: "
    ? "
    : x
    "
    goes: on"
      it goes"
      dev: no
note: 'x
note: [a,
  b]
]
'
"
# words

---
traffic:
  steps: [1]
"""[1:].splitlines(keepends=True)


def loaded(text: str) -> Any:
    """The environments that the real reader finds in a text; None where it refuses it."""
    with suppress(Refused):
        found = documents.parse(text, "release.yml").get("environments")
        return found if isinstance(found, dict) else None
    return None


@pytest.mark.attack("A text in release.yml passes for an environment")
def test_entries_are_those_of_yaml() -> None:
    """In random files: the lines of an entry, alone, are what YAML reads there in the file."""
    draw, told = random.Random(29), 0
    for _ in range(10_000):
        text = draw.choice(["", "environments:\n", "environments:\n  dev:\n"])
        text += "".join(draw.choices(LINES, k=draw.randrange(1, 6)))
        parts, entries = split(text, "environments", "dev"), loaded(text)
        if parts is None or entries is None:
            continue
        assert "".join(parts) == text
        dev = (loaded(f"environments:\n{parts[1]}") or {}).get("dev")
        assert dev == entries.get("dev"), text
        if isinstance(dev, dict) and "serving" in dev:
            assert value(text, "environments", "dev", "serving") == dev["serving"], text
        told += dev is not None
    assert told > 200


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a:\n  b: c # d\n", "c"),
        ("a:\n    'b': \"c\"\n", "c"),
        ("a: {x: 'b: d', b: c}\n", "c"),
        ("--- \na:\n  x: 1\n  b: 'c'", "c"),
        ("a:\n  b: [c,\n    d]\n", "[c,\n    d]"),
        ("a:\n  b: [c,\n  d]\n", ""),  # at the height of its key
        ("a:\n  b: c\n  b: d\n", ""),
        ("a:\n  x: &x 1\n  b: c\n", "c"),
        ("a:\n  x: &x 1\n  b: *x\n", ""),
        ("a: &x\n  b: c\n", ""),
        ("a:\n  x: 1\u2028  b: c\n", ""),
        ("a:\n  bb: c\n", ""),
        ("", ""),
    ],
)
def test_a_value(text: str, written: str) -> None:
    """Without comment and quotes; none where lines do not tell."""
    assert value(text, "a", "b") == written
