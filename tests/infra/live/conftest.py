"""A subscription that is as declared, until a test changes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.live.arm import Arm
from tests.infra.live.declared import GROUP, SUBSCRIPTION, reported
from tests.stand_ins import arm_server
from tests.stand_ins.arm_server import SignedIn, State


@pytest.fixture
def state() -> State:
    found = reported()
    in_group = [{"id": id} for id in found if id.count("/") == 8 and id.startswith(GROUP)]
    return State(found, {f"{GROUP}/resources": in_group})


@pytest.fixture
def arm(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arm]:
    """The SDK's own client against it."""
    with arm_server.running(state, tmp_path) as (address, certificate):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        yield Arm(SignedIn(), SUBSCRIPTION, address)
