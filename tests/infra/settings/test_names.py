"""Names that Azure accepts, whatever the unique suffix."""

from __future__ import annotations

import re

import pytest

from infra.settings.azure import Names


@pytest.mark.parametrize("tail", ["12345", "0a000", "fffff"])
def test_a_letter_follows_each_hyphen_of_an_instance(tail: str) -> None:
    """Each hyphen needs a letter after it, and 24 characters are the maximum
    (how-to-create-compute-instance).
    """
    called = Names("mlplat", "prod", tail).instance("a-name-of-16-c16")
    assert re.search("[a-z]", called.rpartition("-")[2]) and len(called) <= 24
