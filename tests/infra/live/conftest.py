"""Fixtures: a stand-in for a subscription without drift, which tests change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from azure.core.rest import HttpRequest

from infra.live.arm import PUBLIC, Arm
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
    """Yield the ARM client, connected to the stand-in by HTTPS."""
    with arm_server.running(state, tmp_path) as (address, certificate):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        yield Arm(SignedIn(), SUBSCRIPTION, address)


@pytest.fixture
def direct(state: State, monkeypatch: pytest.MonkeyPatch) -> Arm:
    """Return a client that queries the state without HTTP and paging, for many requests."""
    arm = Arm(SignedIn(), SUBSCRIPTION, PUBLIC)

    def sent(request: HttpRequest) -> Any:
        status, body = state.found(request.method, urlsplit(request.url).path, 0, "")
        return None if status == 404 else {**(body or {}), "nextLink": None}

    monkeypatch.setattr(arm, "_sent", sent)
    return arm
