"""How many workers run the tests, and how these are dealt to them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import deal, pytest_xdist_auto_num_workers


def named(name: str) -> Any:
    """A test that is slow if its name is in upper case."""
    return SimpleNamespace(name=name, get_closest_marker=lambda _: name.isupper() or None)


@pytest.mark.parametrize(
    ("names", "workers", "dealt"),
    [
        ("aBcD", 1, "BDac"),
        ("aBcDefgH", 2, "BaceDHfg"),
        ("ABCd", 2, "AdBC"),
        ("abc", 2, "abc"),
        ("A", 3, "A"),
    ],
)
def test_each_worker_begins_with_its_share_of_the_slow_ones(
    names: str, workers: int, dealt: str
) -> None:
    """As many tests as the others have, and none is lost."""
    assert "".join(of.name for of in deal([*map(named, names)], workers)) == dealt


def test_a_worker_more_than_processors_unless_a_person_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the processors that this process may use."""
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    assert pytest_xdist_auto_num_workers() == 4
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert pytest_xdist_auto_num_workers() == 9
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "2")
    assert pytest_xdist_auto_num_workers() is None
