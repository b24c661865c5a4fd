"""Holes that a pull request could open: what rejects them, or warns about them by name."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.preview.capture import Capture, Resource, changes
from infra.preview.weakenings import LIMITS, edits, weakenings
from infra.settings.workflows import BLOB_WRITER, role_id
from ml.core.errors import UserError
from policies.infra import limits
from policies.infra.pack import RULES, Context
from tests.conftest import ROOT
from tests.infra.programs import HUB, LANDING_ZONE, SPOKE, capture, own
from tests.policies.test_infra_mutation import CONTEXT, _items, _said

TABLE: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("holes.yml").read_text())
SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
WRITER = (
    f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/"
    f"{role_id(BLOB_WRITER.name, SUBSCRIPTION)}"
)


def _put(holder: Any, path: str, value: Any) -> None:
    """Set a value at a path of keys and positions; what is missing on the way is made."""
    *way, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    for key in way:
        holder = holder[key] if isinstance(key, int) else holder.setdefault(key, {})
    if isinstance(holder, list) and last == len(holder):
        holder.append(None)
    holder[last] = WRITER if value == "BLOB_WRITER" else value


def _edited(base: Capture, hole: dict[str, Any]) -> Capture:
    """The program's resources with the hole in them."""
    label = hole.get("resource") or hole.get("drop") or ""
    (target,) = [one for one in base.provided if f"{one.kind}/{one.name}" == label] or [None]
    rest = [one for one in base.resources if one is not target]
    if "drop" in hole:
        assert target, label
        return replace(base, resources=tuple(rest))
    if "add" in hole:
        kind, _, name = hole["add"].rpartition("/")
        urn = f"urn:pulumi:prod::platform::azure-native:{kind}::{name}"
        target = Resource(urn, f"azure-native:{kind}", name, rest[0].parent, {})
    assert target, label
    inputs = copy.deepcopy(dict(target.inputs))
    uses = {**target.uses, **{key: tuple(urns) for key, urns in hole.get("uses", {}).items()}}
    for key, source in hole.get("from", {}).items():
        uses[key] = tuple(one.urn for one in rest if f"{one.kind}/{one.name}" == source)
        assert uses[key], source
    for path, value in hole.get("set", {}).items():
        _put(inputs, path, value)
    options = {key: tuple(one) if one == [] else one for key, one in hole.get("option", {}).items()}
    changed = replace(target, inputs=inputs, uses=uses, **options)
    return replace(base, resources=(*rest, changed))


def _tree(folder: Path) -> Path:
    if not folder.exists():
        for room in ("infra", "policies", "ml/core"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / room, folder / room, ignore=ignored)
    return folder


def _outcome(base: Capture, hole: dict[str, Any], folder: Path) -> tuple[str, str]:
    """What comes of it: rejected, warned, only a difference, or no trace; and the first line."""
    files: Any = ()
    context, after = CONTEXT, base
    if "settings" in hole or "limits" in hole:
        tree = _tree(folder)
        name = LIMITS if "limits" in hole else "infra/Pulumi.prod.yaml"
        document = yaml.safe_load((ROOT / name).read_text())
        for path, value in {**hole.get("settings", {}), **hole.get("limits", {})}.items():
            is_setting = name != LIMITS and not path.startswith("azure-native:")
            _put(
                document if name == LIMITS else document["config"],
                f"platform:{path}" if is_setting else path,
                value,
            )
        (tree / name).write_text(yaml.safe_dump(document))
        try:
            files = edits("prod", ROOT, tree)
            if name == LIMITS:
                limited = limits.load([rule.name for rule in RULES], tree / LIMITS)
                context = Context(limited, (), CONTEXT.today)
            else:
                after = capture("prod", root=tree)
        except UserError as refused:
            return "rejected", str(refused).splitlines()[0]
        finally:
            shutil.copy(ROOT / name, tree / name)
    else:
        after = _edited(base, hole)
    if found := _said(_items(after), context):
        return "rejected", found[0]
    differing = (*files, *changes(base, after))
    if lines := [*weakenings(differing)]:
        return "warned", lines[0]
    return ("shown", str(differing[0])) if differing else ("no trace", "")


@pytest.mark.slow
def test_a_hole_is_rejected_or_named(tmp_path: Path) -> None:
    """All usual ones are rejected; none leaves no trace."""
    base = own()["prod"]
    found = {one["hole"]: _outcome(base, one, tmp_path / "tree") for one in TABLE}
    other = {
        one["hole"]: found[one["hole"]] for one in TABLE if found[one["hole"]][0] != one["expect"]
    }
    assert other == {}
    assert len(found) == len(TABLE) > 70
    assert {one["expect"] for one in TABLE if one.get("usual")} == {"rejected"}


HARMLESS: dict[str, dict[str, Any]] = {
    "another CPU cluster": {"clusters/4": {"name": "cpu-more", "preset": "cpu", "max_nodes": 4}},
    "a smaller cluster": {"clusters/0/max_nodes": 2},
    "a larger budget": {"guardrails/monthly_budget": 12000},
    "logs for half a year": {"monitoring/retention_days": 180},
    "raw data for a year": {"storage/delete_after_days": 365},
    "another host": {"network/allowed_hosts": ["pypi.org", "download.pytorch.org", "*.docker.io"]},
    "another container": {"storage/containers": ["raw", "curated", "labels"]},
    "another endpoint": {"endpoints/5": {"name": "churn-scoring", "alert_errors": 20}},
    "tags": {"tags": {"DataClassification": "internal"}, "cost_center": "research"},
    "keys of our own": {"workspace": {"customer_managed_key": True, "high_business_impact": True}},
    "our own network": {"network/isolation": "own", "network/allowed_hosts": []},
    "a share and a feature store": {
        "storage/nfs_share_gib": 100,
        "feature_store": {"mode": "create", "redis": "Balanced_B0"},
    },
    "a landing zone": LANDING_ZONE,
    # What an engineer wrote for one, with the range of the given network.
    "a landing zone with its range": yaml.safe_load(f"""
        network/address_space: 10.62.0.0/16
        network/virtual_network: {SPOKE}
        network/subnet: {SPOKE}/subnets/ml
        network/private_dns_zones: {HUB}
        network/peer: {HUB}/providers/Microsoft.Network/virtualNetworks/vnet-hub
        monitoring:
          workspace: {HUB}/providers/Microsoft.OperationalInsights/workspaces/log-central
        images:
          registry: {HUB}/providers/Microsoft.ContainerRegistry/registries/crcentral
        vault: {{id: {HUB}/providers/Microsoft.KeyVault/vaults/kv-central}}
        resource_group: rg-landing
        tags: {{DataClassification: internal, ApplicationId: app-1}}
        """),
}


@pytest.mark.slow
def test_what_is_harmless_is_not_rejected(tmp_path: Path) -> None:
    """In `prod`; what a landing zone gives is listed."""
    tree = _tree(tmp_path / "tree")
    name, listed = "infra/Pulumi.prod.yaml", replace(CONTEXT.limits["prod"], given=(HUB,))
    for title, settings in HARMLESS.items():
        document = yaml.safe_load((ROOT / name).read_text())
        for path, value in settings.items():
            _put(document["config"], f"platform:{path}", value)
        (tree / name).write_text(yaml.safe_dump(document))
        limited = listed if "resource_group" in settings else CONTEXT.limits["prod"]
        found = _said(
            _items(capture("prod", root=tree)), replace(CONTEXT, limits={"prod": limited})
        )
        assert found == [], title
