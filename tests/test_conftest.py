"""How tests are dealt to the workers that run them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import deal


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
