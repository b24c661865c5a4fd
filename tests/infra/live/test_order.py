"""The whole order: bootstrap, the shared registry, the environments, and dev taken away again.

A kill between any two steps is followed by the same commands from the beginning, which end where an
undisturbed run ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.live.addresses import Addresses
from infra.live.bootstrap import plan
from infra.live.steps import Words, carry_out
from infra.preview.capture import Capture, Resource
from infra.settings import loader
from infra.settings.loader import load
from infra.settings.model import Settings
from infra.settings.stacks import ordered
from infra.settings.workflows import OF_THE_PROGRAM
from tests.conftest import ROOT
from tests.infra.live.declared import SUBSCRIPTION
from tests.infra.programs import HUB, LANDING_ZONE, capture, own
from tests.stand_ins.az_and_gh import Cloud

pytestmark = pytest.mark.slow
STACKS = ordered(ROOT)
CHANGES = {"create", "update", "set", "init", "register", "PUT", "put", "POST"}


# Captures of stacks with other settings.
DECLARED: dict[tuple[str, str, bool], Capture] = {}


class Killed(Exception):
    """The machine is gone."""


class Platform:
    """Azure, GitHub and Pulumi's states, as the steps leave them; `steps_left` end in a kill."""

    def __init__(self, folder: Path, registry_in: str = "", brought: bool = False) -> None:
        self.registry_in, self.brought = registry_in, brought
        self.cloud = Cloud(folder)
        self.cloud.state["folder"] = str(folder)
        (folder / "infra").mkdir()
        for stack in loader.stacks(ROOT / "infra"):
            file = folder / f"infra/Pulumi.{stack}.yaml"
            shutil.copy(ROOT / f"infra/Pulumi.{stack}.yaml", file)
            if brought and stack != "shared":
                document = yaml.safe_load(file.read_text())
                group = {"resource_group": f"rg-landing-{stack}", "exposure": "private"}
                for key, value in {**LANDING_ZONE, **group}.items():
                    document["config"][f"platform:{key}"] = value
                storage = document["config"].setdefault("platform:storage", {})
                storage["customer_managed_key"] = True
                file.write_text(yaml.safe_dump(document))
            if registry_in and stack == "shared":
                file.write_text(file.read_text().replace(SUBSCRIPTION, registry_in, 1))
            elif registry_in:
                name = "    name: mlplat-shared\n"
                there = f"{name}    subscription: {registry_in}\n"
                file.write_text(file.read_text().replace(name, there))
        # Each resource of Azure by its id, with the stack in whose state it is.
        self.resources: dict[str, tuple[str, Resource]] = {}
        self.taken = 0
        self.steps_left = -1

    def take(self) -> None:
        """One more change; the kill comes before it."""
        if self.taken == self.steps_left:
            raise Killed
        self.taken += 1

    def run(self, words: Words, is_query: bool) -> Any:
        """A command of the bootstrap."""
        if not is_query and CHANGES & {*words}:
            self.take()
        return self.cloud.run(words, is_query)

    def bootstrap(self) -> dict[str, str]:
        """What each step came to."""
        steps = plan([load(stack, loader.FOLDER) for stack in STACKS])
        return {each.step.name: each.outcome for each in carry_out(steps, self.run, make=True)}

    def push(self) -> None:
        """A person commits the keys of the stacks."""
        files = {f"infra/{file.name}": file.read_text() for file in loader.FOLDER.iterdir()}
        if self.cloud.state.get("main") != files:
            self.take()
            self.cloud.state["main"] = files

    def up(self, stack: str) -> None:
        """`pulumi up`: what the program declares and the state lacks, after what it depends on."""
        settings = load(stack, loader.FOLDER)
        name = f"infra/Pulumi.{stack}.yaml"
        assert "encryptedkey" in self.cloud.state["main"][name], "workflows cannot read its state"
        if settings.asset_registry.mode == "use":
            assert settings.registry_id in self.resources, "the doctor refuses it"
        declared = self._declared(stack)
        addresses = Addresses(declared, settings.subscription)
        for resource in _sorted(declared):
            id = addresses.place(resource).id
            if id not in self.resources:
                scope = addresses.resolved(str(resource.inputs.get("scope", "")))
                assert not scope.endswith("/registries/mlplat-shared") or scope in self.resources
                is_own = id.startswith(f"/subscriptions/{settings.subscription}/")
                if self.registry_in and not is_own:
                    self._demand_role(settings, resource, id)
                is_given = id.startswith(HUB) and resource.kind != "authorization:RoleAssignment"
                assert not is_given, f"{stack} makes {id} in the landing zone"
                self.take()
                self.resources[id] = (stack, resource)
        for purpose in () if settings.makes_registry else OF_THE_PROGRAM:
            identity = settings.names.local("id", purpose)
            self.cloud.state["things"][f"identity  {identity}"] = {"clientId": identity}

    def _declared(self, stack: str) -> Sequence[Resource]:
        if not self.registry_in and not self.brought:
            return own()[stack].provided
        key = (stack, self.registry_in, self.brought)
        if key not in DECLARED:
            DECLARED[key] = capture(stack, config=loader.configuration(stack, loader.FOLDER))
        return DECLARED[key].provided

    def _demand_role(self, settings: Settings, resource: Resource, id: str) -> None:
        """In another subscription the deployer makes nothing but the assignments that it may."""
        assert resource.kind == "authorization:RoleAssignment", id
        role = "Role Based Access Control Administrator"
        principal = f"principal-id-{settings.name}-{settings.environment}-deploy"
        held = self.cloud.state["things"][
            f"role {principal} {role} /{'/'.join(id.split('/')[1:3])}"
        ]
        definition = str(resource.inputs["roleDefinitionId"])
        assert definition.split("/")[2] == id.split("/")[2], "a custom role of another subscription"
        assert definition.rpartition("/")[2] in held["condition"]

    def destroy(self, stack: str) -> None:
        """`pulumi destroy`: the state from its end; a lock keeps what is on and below its scope
        (azure-resource-manager/management/lock-resources).
        """
        members = [id for id, (owner, _) in self.resources.items() if owner == stack]
        for id in reversed(members):
            resource = self.resources[id][1]
            assert not resource.protect
            if not resource.kind.endswith("ManagementLockByScope"):
                locks = [other for other in self.resources if "/locks/" in other]
                scopes = [
                    lock.partition("/providers/Microsoft.Authorization/locks/")[0] for lock in locks
                ]
                assert not any(id.startswith(f"{scope}/") or id == scope for scope in scopes)
            self.take()
            del self.resources[id]

    def order(self) -> None:
        """All of it, from the beginning, as a person types it and infra.yml goes on."""
        self.bootstrap()
        self.push()
        for stack in STACKS:
            self.up(stack)
        self.bootstrap()
        self.destroy("dev")


def _sorted(resources: Any) -> Iterator[Resource]:
    by_urn = {resource.urn: resource for resource in resources}
    graph = {
        urn: {*each.dependencies, *(used for uses in each.uses.values() for used in uses)}
        for urn, each in by_urn.items()
    }
    for urn in TopologicalSorter(graph).static_order():
        if urn in by_urn:
            yield by_urn[urn]


@pytest.fixture(name="platform")
def _platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    platform = Platform(tmp_path)
    monkeypatch.setattr(loader, "FOLDER", tmp_path / "infra")
    return platform


def _ends(platform: Platform) -> tuple[object, ...]:
    """What there is at the end; numbers that GitHub gives are its own."""
    things = platform.cloud.state["things"]
    rulesets = {each["name"] for each in things["rulesets"].values()}
    policies = {
        name: [each["name"] for each in value]
        for name, value in things.items()
        if name.endswith(" policies")
    }
    variables = {name: value for name, value in things.items() if name.startswith("variables ")}
    files = platform.cloud.state["main"]
    return {*things}, rulesets, policies, variables, files, {*platform.resources}


@pytest.mark.parametrize("registry_in", ["", "6f8d2c1e-0000-4000-8000-000000000000"])
def test_the_whole_order_ends(platform: Platform, tmp_path: Path, registry_in: str) -> None:
    """Dev is gone, the others stay; what is missing waits for the team's app alone. So it is where
    the registry has a subscription of its own.
    """
    if registry_in:
        shutil.rmtree(tmp_path / "infra")
        platform = Platform(tmp_path, registry_in)
    platform.order()
    owners = {owner for owner, _ in platform.resources.values()}
    assert owners == {"shared", "staging", "prod"}
    again = platform.bootstrap()
    assert {name for name, outcome in again.items() if outcome != "exists"} == {
        *("app", "ruleset-proposals", "ruleset-proposals-rules")
    }


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.attack("the machine is lost between two steps of the first deployment")
@pytest.mark.parametrize("brought", [False, True])
def test_a_kill_at_any_step_converges(
    brought: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torture: bool
) -> None:
    """The same commands again end in the same, also where a landing zone gives everything."""
    monkeypatch.setattr(loader, "FOLDER", tmp_path / "infra")
    platform = Platform(tmp_path, brought=brought)
    platform.order()
    steps, expected = platform.taken, _ends(platform)
    # A few spread over all of them; `make torture` takes each.
    rounds = 3 if brought else 11
    for at in range(0, steps, 1 if torture else max(steps // rounds, 1)):
        folder = tmp_path / str(at)
        folder.mkdir()
        other = Platform(folder, brought=brought)
        monkeypatch.setattr(loader, "FOLDER", folder / "infra")
        other.steps_left = at
        with pytest.raises(Killed):
            other.order()
        other.steps_left = -1
        other.order()
        assert _ends(other) == expected, f"killed before step {at}"
