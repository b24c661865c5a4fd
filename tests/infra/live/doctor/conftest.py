"""Fixture: a subscription in which every check passes, which tests change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.live.doctor import GLOBAL
from infra.settings.loader import load
from infra.settings.model import Cluster, Settings
from tests.infra.live.declared import REGISTRY, SUBSCRIPTION
from tests.infra.live.doctor.ready import HERE, PERMISSIONS, PROVIDERS, USAGES, usage
from tests.stand_ins.arm_server import State


@pytest.fixture
def settings() -> Settings:
    clusters = (
        Cluster(name="cpu-cluster", preset="cpu", max_nodes=4),
        Cluster(name="gpu", preset="t4", max_nodes=2),
    )
    return replace(load("dev"), location="westeurope", clusters=clusters)


@pytest.fixture(autouse=True)
def fine(state: State) -> None:
    """Fill the state with a subscription in which every check passes."""
    state.resources[f"/subscriptions/{SUBSCRIPTION}"] = {
        "subscriptionId": SUBSCRIPTION,
        "tenantId": load("dev").tenant,
        "state": "Enabled",
    }
    state.resources[load("dev").registry_id] = REGISTRY
    for name in PROVIDERS:
        state.resources[f"{HERE}/{name}"] = {"registrationState": "Registered"}
    for _, type in GLOBAL.values():
        question = f"{type.partition('/')[0]}/checkNameAvailability"
        state.answers[f"{HERE}/{question}"] = {"nameAvailable": True}
    state.lists[f"{HERE}/Microsoft.KeyVault/deletedVaults"] = []
    state.lists[USAGES] = [
        usage("standardEDSv4Family", 100), usage("TotalLowPriorityCores", 100, spot=True),
        usage("TotalDedicatedCores", 100),
        *(usage(f"another{number}", 0) for number in range(5)),
    ]  # fmt: skip
    state.lists[PERMISSIONS] = [{"actions": ["*"], "notActions": []}]
