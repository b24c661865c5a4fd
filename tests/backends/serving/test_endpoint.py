"""What an endpoint's file says, and the routes that follow from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.endpoints import Canary, Live, ModelDeployment, Server
from ml.backends.local.serving import endpoint
from ml.backends.local.serving.router import routes as routing


@pytest.fixture
def trial(own_home: Path) -> Live:
    """Blue is live, green is a canary with a baseline."""
    folder = endpoint.folder("echo")
    blue, green, baseline = (
        Server(folder / name, number, number)
        for number, name in enumerate(("blue", "green", "baseline"), 1)
    )
    old, new = (
        ModelDeployment(
            *(own_home / "c", "s.py", {}),
            **{"endpoint": "echo", "model": "echo", "version": version},
            digest=f"sha256:{version}",
            model_folder=Path("/m"),
        )
        for version in "12"
    )
    return Live(blue, old, Canary(green, new, 10, 20, baseline))


def test_a_written_state_is_read_back(trial: Live) -> None:
    """With a canary and a baseline, with a canary alone, and with neither."""
    assert trial.canary
    alone = replace(trial, canary=replace(trial.canary, baseline=None))
    for one in (trial, alone, replace(trial, canary=None)):
        endpoint.switch("echo", one)
        assert endpoint.live("echo") == one
    older = json.loads(json.dumps(endpoint.document(trial)))
    del older["canary"]["baseline"]  # of a file from before there were any
    (endpoint.folder("echo") / endpoint.STATE).write_text(json.dumps(older))
    assert endpoint.live("echo") == alone


@pytest.mark.parametrize(
    ("weight", "traffic"),
    [
        (0, {"green": 0, "baseline": 0, "blue": 100}),
        (10, {"green": 10, "baseline": 10, "blue": 80}),
        (50, {"green": 50, "baseline": 50, "blue": 0}),
        (66, {"green": 66, "baseline": 0, "blue": 34}),
        (100, {"green": 100, "baseline": 0, "blue": 0}),
    ],
)
def test_a_baseline_gets_the_share_of_green(
    trial: Live, weight: int, traffic: dict[str, int]
) -> None:
    """Up to 50 %. Green comes first, so that its sticky keys stay; copies are shared equally."""
    assert trial.canary
    endpoint.switch("echo", replace(trial, canary=replace(trial.canary, weight=weight)))
    routes = routing.read(endpoint.folder("echo") / "live.json")
    assert list(routes.traffic.items()) == list(traffic.items())
    assert routes.mirror == {"green": 20, "baseline": 20} and routes.live == "blue"


@pytest.mark.attack("a caller computes which routing keys lead to green")
def test_the_routes_know_servers_by_their_processes_and_keys_by_a_secret(trial: Live) -> None:
    """Each canary has a secret of its own, which stays while its share grows."""
    assert trial.canary
    endpoint.switch("echo", trial)
    routes = routing.read(endpoint.folder("echo") / "live.json")
    assert routes.pids == {
        each.slot.name: each.pid for each in (trial.server, *trial.canary_servers)
    }
    assert len(routes.salt) == 64 and routes.salt == trial.canary.salt
    canary = trial.canary
    assert replace(canary, weight=50).salt == canary.salt
    assert Canary(canary.server, canary.deployment, 10).salt != canary.salt


def test_a_slot_names_a_server_and_its_deployment(trial: Live) -> None:
    """The baseline has the live version's deployment; an unknown name means the live server."""
    found = {name: trial.in_slot(name) for name in ("green", "baseline", "blue", "")}
    assert [deployment.version for _, deployment in found.values()] == ["2", "1", "1", "1"]
    slots = [server.slot.name for server, _ in found.values()]
    assert slots == ["green", "baseline", "blue", "blue"]
