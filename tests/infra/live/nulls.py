"""Answers with a null in place of a value: one answer for each value, at any depth.

A list of objects without any object is invalid: `Arm` refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def with_a_null(value: Any) -> Iterator[Any]:
    """Copies of a value, each with one null in it."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from ({**value, key: other} for other in (None, *with_a_null(one)))
    elif isinstance(value, list):
        for at, one in enumerate(value):
            others = (None, *with_a_null(one)) if not isinstance(one, dict) else with_a_null(one)
            yield from ([*value[:at], other, *value[at + 1 :]] for other in others)
