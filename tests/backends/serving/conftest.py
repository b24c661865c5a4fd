"""Fixtures: two deployments and their router."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.serving.backends import Backend, Routed, backend, routed


@pytest.fixture
def blue() -> Iterator[Backend]:
    with backend("blue") as made:
        yield made


@pytest.fixture
def green() -> Iterator[Backend]:
    with backend("green") as made:
        yield made


@pytest.fixture
def both(tmp_path: Path, blue: Backend, green: Backend) -> Iterator[Routed]:
    """Yield a router that sends all traffic to blue, and requests with a header to green."""
    with routed(tmp_path, ports={"green": green.port, "blue": blue.port}) as made:
        yield made
