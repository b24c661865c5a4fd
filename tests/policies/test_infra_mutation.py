"""Each property of the checklist, weakened one at a time: the pack refuses it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.preview import sdk_types
from infra.preview.capture import Capture
from infra.preview.runner import unknown
from policies.infra import limits
from policies.infra.pack import RULES, Context, kind_of, violations
from policies.infra.rule import AZURE, UNKNOWN, Item
from tests.infra.programs import changed, own

WEAKENINGS = yaml.safe_load(Path(__file__).with_name("weakenings.yml").read_text())
CONTEXT = Context(limits.load([rule.name for rule in RULES]), (), date(2026, 6, 1))
LEAST = 1.0


def _items(found: Capture) -> list[Item]:
    return [
        Item(
            kind_of(one.type),
            one.name,
            one.urn,
            unknown(one.inputs),
            one.uses,
            one.ignore_changes,
            one.protect,
            one.provider,
        )
        for one in found.resources
    ]


def _said(items: list[Item], context: Context = CONTEXT) -> list[str]:
    # A policy of single resources is not told what an input was made from.
    single = [replace(item, uses={}) for item in items]
    whole = [replace(item, props=_outputs(item)) for item in items]
    found = [one for item in single for one in violations(context, item)]
    found += violations(context, None, whole)
    return [f"{one.rule}: {one.message}" for one in found if not one.exemption]


def _outputs(item: Item) -> dict[str, Any]:
    """What a stack policy is shown of it in a preview; a component registers its inputs."""
    if item.kind.count(":") != 1:
        return dict(item.props)
    names = sdk_types.outputs(f"{AZURE}:{item.kind}")
    assert names
    return {name: item.props.get(name, UNKNOWN) for name in names}


def _changed(item: Item, path: str, value: Any) -> Item | None:
    """The item with one input changed; None where it has no such input."""
    props = copy.deepcopy(dict(item.props))
    uses = dict(item.uses)
    holder: Any = props
    keys = [int(key) if key.isdigit() else key for key in path.split(".")]
    try:
        for key in keys[:-1]:
            holder = holder[key]
        holder[keys[-1]]
    except (KeyError, IndexError, TypeError):
        return None
    if value == "REMOVED":
        del holder[keys[-1]]
        if len(keys) == 1:
            uses.pop(str(keys[0]), None)
    else:
        holder[keys[-1]] = value
    return replace(item, props=props, uses=uses)


def _mutants(stacks: list[list[Item]]) -> Iterator[tuple[str, list[Item]]]:
    """Each stack with one thing weakened; what is to be weakened is in one of them at least."""
    for weakening in WEAKENINGS:
        mutants = [mutant for items in stacks for mutant in _weakened(items, weakening)]
        assert mutants, f"nothing to weaken: {weakening}"
        yield from mutants


def _weakened(items: list[Item], weakening: dict[str, Any]) -> Iterator[tuple[str, list[Item]]]:
    for at, item in enumerate(items):
        if item.kind != weakening["kind"]:
            continue
        rest = [*items[:at], *items[at + 1 :]]
        if weakening.get("drop"):
            yield f"{item.kind} {item.name} dropped", rest
        for option, value in weakening.get("option", {}).items():
            changed = replace(item, **{option: value})
            yield f"{item.kind} {item.name} {option} = {value}", [*rest, changed]
        for value in weakening.get("to", []):
            mutant = _changed(item, weakening["path"], value)
            if mutant is not None:
                yield f"{item.kind} {item.name}.{weakening['path']} = {value}", [*rest, mutant]


FEATURES: dict[str, Any] = {
    "feature_store": {"mode": "create", "redis": "Balanced_B0"},
    "clusters": [{"name": "cpu-cluster", "preset": "cpu", "lake": "write"}],
}


@pytest.mark.slow
def test_the_pack_catches_what_is_weakened(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # The registry has a stack of its own, and no stack of the repository has a feature store.
    stacks = [_items(own()[name]) for name in ("prod", "shared")]
    stacks.append(_items(changed(tmp_path, **FEATURES)))
    assert not any(_said(items) for items in stacks), "a stack itself is refused"
    mutants = list(_mutants(stacks))
    missed = [name for name, weakened in mutants if not _said(weakened)]
    caught = len(mutants) - len(missed)
    with capsys.disabled():
        print(f"\nmutation score: {caught} of {len(mutants)} ({caught / len(mutants):.1%})")
        print("".join(f"  missed: {name}\n" for name in missed))
    assert len(mutants) > 100
    assert caught / len(mutants) >= LEAST


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["managed", "own"])
def test_an_option_of_the_settings_is_not_refused_for_what_it_is(
    isolation: str, tmp_path: Path
) -> None:
    """By the strictest limits, without a waiver: either network, a share, SAS, every machine. The
    person is a listed one.
    """
    person = "6f8d2c1e-0000-4000-8000-000000000002"
    key = "ssh-ed25519 AAAA bob"
    found = changed(
        tmp_path,
        network={"isolation": isolation},
        storage={
            "redundancy": "GZRS",
            "nfs_share_gib": 100,
            "datastores": "sas",
            "containers": ["raw"],
        },
        clusters=[{"name": "cpu-cluster", "preset": "cpu"}],
        workstations=[
            {"name": "ada", "person": person},
            {"name": "bob", "person": person, "kind": "data-science-vm", "ssh_key": key},
        ],
    )
    listed = replace(CONTEXT.limits["default"], principals=(person,))
    assert _said(_items(found), replace(CONTEXT, limits={"default": listed})) == []


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["managed", "own"])
def test_a_feature_store_is_not_refused(isolation: str, tmp_path: Path) -> None:
    """By the strictest limits, without a waiver, in either network."""
    found = changed(tmp_path, network={"isolation": isolation}, **FEATURES)
    assert _said(_items(found)) == []
