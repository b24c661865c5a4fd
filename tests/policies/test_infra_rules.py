"""policies.infra: the two cases of every rule; limits, waivers and unknown values."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from pulumi_policy import (
    PolicyCustomTimeouts,
    PolicyResourceOptions,
    ResourceValidationArgs,
    ResourceValidationPolicy,
)
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE, unknown_checking_proxy

from infra.preview import sdk_types
from infra.preview.capture import Resource
from ml.core import plug_ins
from ml.core.documents import LOADER
from ml.core.errors import UserError
from policies.infra import limits, pack
from policies.infra.limits import Limits
from policies.infra.pack import RULES, Context, plain, violations
from policies.infra.rule import AZURE, UNKNOWN, Item, Kind, Rule
from policies.waivers import RuleWaiver, rule_waivers

CASES = yaml.load(Path(__file__).with_name("infra_rules.yml").read_text(), LOADER)
TODAY = date(2026, 6, 1)
NAMES = [rule.name for rule in RULES]
LIMITS = limits.load(NAMES)
KNOWN: dict[str, Any] = {
    "hosts": ("ada@example.com",),
    "repositories": ("contoso/models",),
    "reviewers": ("contoso/ml", "ada"),
    "registries": ("R",),
    "tenants": (),
    "subscriptions": (),
    "given": ("/subscriptions/s/resourceGroups/given",),
}
STRICT = Context({"default": replace(LIMITS["default"], **KNOWN)}, (), TODAY)
WAIVER = RuleWaiver(
    rule="vault-firewall",
    environment="staging",
    resource="vault",
    reason="being moved",
    owner="ada@example.com",
    expires=TODAY + timedelta(days=30),
)


def _urn(kind: str, name: str, stack: str = "strict") -> str:
    return f"urn:pulumi:{stack}::platform::azure-native:{kind}::{name}"


def _item(
    kind: str,
    props: Mapping[str, Any],
    uses: Mapping[str, Any] | None = None,
    stack: str = "strict",
    name: str = "it",
    ignores: Sequence[str] = (),
    protected: bool = False,
    provider: str = "",
) -> Item:
    made = {key: tuple(urns) for key, urns in (uses or {}).items()}
    # YAML has `None` as a text, as Azure has it.
    return Item(
        kind, name, _urn(kind, name, stack), props, made, tuple(ignores), protected, provider
    )


def _each() -> Iterator[Any]:
    """For each case: the rule, whether it refuses, one resource or those of a stack."""
    for case in CASES:
        for verdict in ("allowed", "refused"):
            found: list[Any] = []
            if "stack" in case:
                for resources in case["stack"][verdict]:
                    urns = {one["name"]: _urn(one["kind"], one["name"]) for one in resources}
                    found.append(
                        [
                            _item(
                                one["kind"],
                                one.get("props", {}),
                                {
                                    key: [urns.get(name, name) for name in names]
                                    for key, names in one.get("uses", {}).items()
                                },
                                name=one["name"],
                                protected=one.get("protected", False),
                            )
                            for one in resources
                        ]
                    )
            elif "item" in case:
                found += [_item(**{"props": {}, **one}) for one in case["item"][verdict]]
            else:
                found += [_item(case["kind"], props) for props in case[verdict]]
            for number, one in enumerate(found):
                yield pytest.param(
                    case["rule"], verdict == "refused", one, id=f"{case['rule']}-{verdict}-{number}"
                )


@pytest.mark.parametrize(("rule", "refused", "given"), _each())
def test_a_rule_allows_and_refuses(rule: str, refused: bool, given: Item | list[Item]) -> None:
    (known,) = (one for one in RULES if one.name == rule)
    if isinstance(given, Item):
        found = list(violations(STRICT, given, (), [known]))
    else:
        found = list(violations(STRICT, None, given, [known]))
    assert bool(found) is refused, found


def test_the_cases_of_a_rule_have_inputs_of_the_sdk() -> None:
    """A rule that reads a property under another name, as its case has it, finds nothing."""
    captured = [
        Resource(item.urn, f"{AZURE}:{item.kind}", str(case.id), "", item.props)
        for case in _each()
        for item in [case.values[2]]
        if isinstance(item, Item) and item.kind in [*Kind]
    ]
    unknown = [one for one in sdk_types.problems(captured) if "not an input of" in one]
    assert len(captured) > 150 and unknown == []


def test_every_rule_has_both_cases_and_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert sorted(names) == sorted({case["rule"] for case in CASES}) and len(set(names)) == len(
        names
    )
    assert all(
        rule.title and rule.sources and bool(rule.check) != bool(rule.stack_check) for rule in RULES
    )


# PSRule, Azure Policy, checkov: one check each of what an Azure ML environment has to satisfy.
CHECKLIST = [
    *("AZR-000406", "AZR-000407", "AZR-000404", "AZR-000263", "AZR-000166", "AZR-000167"),
    *("AZR-000069", "AZR-000296", "6ddb1705-c8cf-450e-aa4b-19ad6703c440"),
    *(f"CKV2_AZURE_{number}" for number in (31, 32, 33, 38, 40, 41, 47, 49)),
    *(f"CKV_AZURE_{number}" for number in (3, 9, 10, 34, 35, 36, 42, 44, 59, 77, 109, 110, 111)),
    *(f"CKV_AZURE_{number}" for number in (137, 138, 139, 142, 144, 150, 160, 163, 167, 189, 190)),
    *(f"CKV_AZURE_{number}" for number in (206, 233, 237, 243, 244)),
]


@pytest.mark.parametrize("source", CHECKLIST)
def test_every_check_of_the_catalogues_is_a_rule(source: str) -> None:
    """The checks of PSRule, checkov, Azure Policy and AVM for an Azure ML environment."""
    assert any(source in rule.sources.replace(",", " ").split() for rule in RULES)


def test_an_environment_without_limits_has_the_strictest() -> None:
    cluster = {"properties": {"properties": {"vmSize": "Standard_NC24ads_A100_v4"}}}
    kind = "machinelearningservices:Compute"
    context = Context(LIMITS, (), TODAY)
    rules = [rule for rule in RULES if rule.name == "cost-gpu-sizes"]
    refused = {
        stack: bool(list(violations(context, _item(kind, cluster, stack=stack), (), rules)))
        for stack in ("dev", "prod", "default", "unheard-of")
    }
    assert refused == {"dev": True, "prod": False, "default": True, "unheard-of": True}


def test_the_strictest_limits_are_the_tightest_of_each() -> None:
    loose = Limits(
        8, 30, ("a", "b"), ("west", "north"), ("owner",), ("x", "y"), ("/h", "/i"), True, ("p",)
    )
    tight = Limits(4, 60, ("b",), ("north", "west"), ("team",), ("y",), ("/i",), False, ())
    found = limits.strictest({"default": loose, "dev": tight})
    tags = ("owner", "team")
    assert found == Limits(4, 30, ("b",), ("west", "north"), tags, ("y",), ("/i",), False, ())


HUB = "/subscriptions/22222222-2222-4222-8222-222222222222/resourceGroups/rg-hub"


@pytest.mark.parametrize(
    ("given", "id", "expected"),
    [
        (HUB, HUB, True),
        (HUB, f"{HUB.upper()}/providers/Microsoft.KeyVault/vaults/kv", True),
        (f"{HUB}/", HUB, True),
        (HUB, f"{HUB}-2/providers/Microsoft.KeyVault/vaults/kv", False),
        (f"{HUB}/providers/Microsoft.KeyVault/vaults/kv", HUB, False),
    ],
)
def test_a_given_resource_is_known_by_its_id(given: str, id: str, expected: bool) -> None:
    assert replace(LIMITS["default"], given=(given,)).allows_id(id) is expected


def test_given_resources_pass_the_rules_of_our_own() -> None:
    """Central zones, logs, a vault and a registry; names that Azure Policy registers."""
    zone = f"{HUB}/providers/Microsoft.Network/privateDnsZones/privatelink"
    zones = [
        {"privateDnsZoneId": f"{zone}.{name}"} for name in ("api.azureml.ms", "notebooks.azure.net")
    ]
    connection = [{"groupIds": ["amlworkspace"]}]
    own = {
        "keyVault": f"{HUB}/v",
        "containerRegistry": f"{HUB}/r",
        "publicNetworkAccess": "Disabled",
    }
    parts = {
        "storageAccount": [_urn("storage:StorageAccount", "s")],
        "applicationInsights": [_urn("applicationinsights:Component", "i")],
    }
    workspace = _item("machinelearningservices:Workspace", own, parts, name="w")
    led = {"privateLinkServiceConnections": [workspace.urn]}
    endpoint = _item(
        "network:PrivateEndpoint", {"privateLinkServiceConnections": connection}, led, name="e"
    )
    group = _item(
        "network:PrivateDnsZoneGroup",
        {"privateDnsZoneConfigs": zones},
        {"privateEndpointName": [endpoint.urn]},
        name="n",
    )
    sent = {"logs": [{"enabled": True}], "workspaceId": f"{HUB}/l"}
    logs = _item("monitor:DiagnosticSetting", sent, {"resourceUri": [workspace.urn]}, name="d")
    storage, insights = (
        _item(kind, {}, name=name)
        for kind, name in (("storage:StorageAccount", "s"), ("applicationinsights:Component", "i"))
    )
    rules = {
        "private-endpoints",
        "private-names",
        "workspace-names",
        "workspace-parts",
        "diagnostics",
        "known-resources",
    }

    def rejected(*items: Item, **limits: Any) -> set[str]:
        context = replace(STRICT, limits={"default": replace(LIMITS["default"], **limits)})
        found = violations(context, None, [*items, storage, insights])
        return {one.rule for one in found if one.item in items} & rules

    everything = (workspace, endpoint, group, logs)
    assert rejected(*everything) == rules - {"private-endpoints"}
    assert rejected(*everything, given=(HUB,)) == set()
    assert "private-endpoints" in rejected(workspace, endpoint, logs, given=(HUB,))
    ours = _item("privatedns:PrivateZone", {}, name="z")
    named = _item(
        *("network:PrivateDnsZoneGroup", {}, {"privateDnsZoneConfigs": [ours.urn]}), name="m"
    )
    spoke = {"virtualNetwork": {"id": f"{HUB}/n"}}
    link = _item("privatedns:VirtualNetworkLink", spoke, {"privateZoneName": [ours.urn]}, name="l")
    assert rejected(named, ours, link) == {"private-names", "known-resources"}
    assert rejected(named, ours, link, given=(HUB,)) == set()
    assert rejected(workspace, endpoint, logs, given=(HUB,), dns_by_policy=True) == set()


def test_the_stacks_of_the_template_have_their_own_limits() -> None:
    """The strictest limits are for stacks that a fork adds."""
    assert LIMITS.keys() == {"default", "dev", "prod", "shared", "staging"}


ALL = (
    "{max_nodes: 1, idle_minutes: 1, gpu_sizes: [], regions: [], tags: [], advice: [data-kept], "
    "given: [], dns_by_policy: false, principals: []}"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dev: {}", "`default` is empty"),
        ("default: {max_nodes: many}", "limits.yml:1: `default.max_nodes` is 'many'"),
        ("default: {nodes: 3}", "limits.yml:1: `default.nodes`"),
        ("default: {max_nodes: 3}", "no `default.advice`"),
        ("default: {max_nodes: true}", "a whole number"),
        (
            f"default: {ALL}\nprod: {{max_nodes: 100000}}",
            "limits.yml:2: `prod.max_nodes` is 100000",
        ),
        (f"default: {ALL}\nprod: {{idle_minutes: 9999}}", "`prod.idle_minutes` is 9999"),
        ("default: [1]", "a mapping"),
        ("default: {", "limits.yml"),
        (f"default: {ALL}\nprod: {{max_nodes: -1}}", "limits.yml:2: `prod.max_nodes` is -1"),
        (f"default: {ALL}\nprod:", "limits.yml:2: `prod` is empty"),
        (f"default: {ALL}\nprod: {{advice: [storage-tsl]}}", "limits.yml:2: .*`storage-tsl`"),
        (
            f"default: {ALL}\nprod: {{advice: [storage-tls]}}",
            "(?s)limits.yml:2: .*one of alerts, .*",
        ),
        (f"default: {ALL}\nprod: {{max_nodes: 1000}}", "`prod.max_nodes` is 1000"),
        (f"default: {ALL}\nprod: {{max_budget: 9999999}}", "`prod.max_budget` is 9999999"),
        (f"default: {ALL}\nprod: {{min_log_days: 0}}", "`prod.min_log_days` is 0"),
        (f"default: {ALL}\nprod: {{hosts: ['*']}}", "limits.yml:2: `prod.hosts"),
        (f"default: {ALL}\nprod: {{hosts: ['*.example.com']}}", "limits.yml:2: `prod.hosts"),
        (
            f"default: {ALL}\nprod: {{}}\ndev: {{}}\nprod: {{max_nodes: 99}}",
            "limits.yml:4: `prod` is here and on line 2",
        ),
        (f"default: {ALL}\nprod: {{max_nodes: 1, max_nodes: 99}}", "`max_nodes` is here and"),
        ("default: &a {prod: *a}", "limits.yml:1: an alias that refers to a node around it"),
    ],
)
def test_wrong_limits_are_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "limits.yml"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        limits.load(["storage-tls", "data-kept"], file)


def test_limits_of_a_misspelt_environment_are_refused(tmp_path: Path) -> None:
    """Its stack would have the strictest limits, or those of `default`."""
    for folder in ("infra", "policies/infra"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "infra/Pulumi.prod.yaml").touch()
    file = tmp_path / "policies/infra/limits.yml"
    file.write_text(f"default: {ALL}\nprod: {{}}\n")
    assert limits.load(["data-kept"], file).keys() == {"default", "prod"}
    file.write_text(f"default: {ALL}\npord: {{}}\n")
    with pytest.raises(UserError, match="`pord` has no stack file") as refused:
        limits.load(["data-kept"], file)
    assert "limits.yml:2" in str(refused.value)


def test_a_fork_may_make_its_own_rules_advice(tmp_path: Path) -> None:
    file = tmp_path / "limits.yml"
    file.write_text(f"default: {ALL}\nprod: {{advice: [log-cap]}}\n")
    assert limits.load(["data-kept", "log-cap"], file, fork_rules=["log-cap"])["prod"].advice == (
        "log-cap",
    )
    with pytest.raises(UserError, match="log-cap"):
        limits.load(["data-kept", "log-cap"], file)


def test_a_waiver_of_one_resource_covers_no_other() -> None:
    """A rule's finding in several resources is one rejection; the waived resource is apart."""
    rule = Rule(
        "same", "Same.", "own", stack_check=lambda items, _: ((one, "is so") for one in items)
    )
    items = [_item("keyvault:Vault", {}, stack="prod", name=name) for name in ("a", "b", "c")]
    waiver = replace(WAIVER, rule="same", environment="prod", resource="a")
    found = [*violations(Context(STRICT.limits, (waiver,), TODAY), None, items, [rule])]
    assert [(one.item.name, one.message, bool(one.exemption)) for one in found] == [
        ("a", "a: is so", True),
        ("b", "b: is so (also c)", False),
    ]


def _firewall(stack: str, name: str = "vault", today: date = TODAY) -> pack.Violation:
    """The finding of `vault-firewall` for an open vault, with WAIVER."""
    context = Context(STRICT.limits, (WAIVER,), today)
    props = {"properties": {"networkAcls": {"defaultAction": "Allow"}}}
    vault = _item("keyvault:Vault", props, stack=stack, name=name)
    (rule,) = (rule for rule in RULES if rule.name == "vault-firewall")
    (violation,) = violations(context, vault, (), [rule])
    return violation


def test_a_waiver_sets_one_refusal_aside_until_it_expires() -> None:
    waived = "waived until 2026-07-01 by ada@example.com"
    assert _firewall("staging").exemption.startswith(waived)
    assert not _firewall("prod").exemption and not _firewall("staging", "other").exemption
    assert _firewall("staging", today=WAIVER.expires).exemption
    late = _firewall("staging", today=WAIVER.expires + timedelta(days=1))
    assert not late.exemption and "expired on 2026-07-01" in late.message


def test_a_waiver_that_is_too_long_does_not_hold() -> None:
    early = _firewall("staging", today=TODAY - timedelta(days=151))
    assert not early.exemption and "more than 180 days" in early.message


GOOD = (
    "- {rule: vault-firewall, environment: dev, resource: vault, reason: r, owner: o,"
    " expires: 2026-07-01}\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("2026-07-01", "soon"), "expires` is 'soon'"),
        (GOOD.replace("2026-07-01", "2026-07-01T00:00:00Z"), "expires` is 2026"),
        (GOOD.replace("vault-firewall", "vault-fire"), "no rule `vault-fire`"),
        (GOOD.replace("owner: o", "owner: ''"), "owner` is ''"),
        (GOOD.replace("reason: r, ", ""), "no `.0..reason`"),
        (GOOD.replace("reason: r", "reason: r, because: s"), "unknown-field.*because"),
        (GOOD + GOOD.replace("owner: o", "owner: 3"), "waivers.yml:2: `.1..owner` is 3"),
        (GOOD.replace("reason: r", "reason: r, reason: s"), "waivers.yml:1: `reason` is here"),
        (GOOD + GOOD.replace("2026-07-01", "2026-05-01"), "waivers.yml:2: .*waivers.yml:1 waives"),
        ("&a [*a]", "waivers.yml:1: an alias that refers to a node around it"),
        ("a: 1", "a list"),
        ("- [", "waivers.yml"),
    ],
)
def test_wrong_waivers_are_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "waivers.yml"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        rule_waivers(NAMES, file)


def test_waivers_are_read_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "waivers.yml"
    file.write_text("# none\n" + GOOD)
    (waiver,) = rule_waivers(["vault-firewall"], file)
    assert waiver.place.endswith("waivers.yml:2") and waiver.expires == date(2026, 7, 1)


def test_the_waivers_and_limits_of_the_repository_load() -> None:
    assert pack.load().limits["default"].max_nodes > 0


def test_an_unknown_value_is_a_text_that_no_rule_allows() -> None:
    """CrossGuard drops a policy that reads one and turns its refusal into advice."""
    proxy = unknown_checking_proxy({"a": UNKNOWN_STRING_VALUE, "b": [{"c": UNKNOWN_STRING_VALUE}]})
    assert plain(proxy) == {"a": UNKNOWN, "b": [{"c": UNKNOWN}]}
    policy = next(one for one in pack.policies() if one.name == "workspace-public-access")
    assert isinstance(policy, ResourceValidationPolicy)
    options = PolicyResourceOptions(False, [], None, [], PolicyCustomTimeouts(0, 0, 0), [])
    kind = "azure-native:machinelearningservices:Workspace"
    args = ResourceValidationArgs(
        kind,
        unknown_checking_proxy({"publicNetworkAccess": UNKNOWN_STRING_VALUE}),
        _urn("machinelearningservices:Workspace", "w"),
        "w",
        options,
        None,
        {},
    )
    said: list[str] = []
    waiting = policy.validate(args, lambda message, urn=None: said.append(message))
    assert not inspect.isawaitable(waiting)
    assert len(said) == 1 and UNKNOWN in said[0]


def _own_rules(monkeypatch: pytest.MonkeyPatch, *rules: Rule) -> list[Rule]:
    """The rules as the pack loads them from a fork's plug-in."""
    module = ModuleType("policies.own.caps")
    vars(module).update(RULES=list(rules), __file__=str(Path("policies/own/caps.py").absolute()))
    monkeypatch.setattr(plug_ins, "load", lambda kind: (module,))
    return [*pack._own_rules()]


@pytest.mark.attack("An infrastructure rule of a fork has a misspelt kind, and never runs")
def test_an_own_rule_of_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Rule("cap", "Cap.", "own", (Kind.LOGS,), check=lambda item, _: iter(()))
    assert [rule.name for rule in _own_rules(monkeypatch, good)] == ["cap"]
    bad = replace(good, kinds=("operationalinsights:Workspaces",))
    with pytest.raises(UserError, match="never runs") as refused:
        _own_rules(monkeypatch, bad)
    assert "did you mean operationalinsights:Workspace?" in str(refused.value)


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (lambda item, _: None, "'NoneType' object is not iterable"),
        (lambda item, _: "abc", "it returned a text; yield findings"),
        (lambda item, _: iter([1]), "it yielded 1; yield TEXT"),
        (lambda item, _: [][0], "IndexError"),
    ],
)
def test_an_own_rule_that_fails_is_named(
    check: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = _own_rules(monkeypatch, Rule("cap", "Cap.", "own", check=check))
    with pytest.raises(UserError, match="plug-in-failed") as refused:
        [*violations(STRICT, _item(Kind.LOGS, {}), (), rules)]
    assert "the rule `cap` failed" in str(refused.value) and told in str(refused.value)


def test_a_finding_of_an_own_rule_of_the_stack_names_its_resource(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    item = _item(Kind.LOGS, {})
    for breach, is_right in (((item, "is so"), True), ("is so", False), (("a", "b"), False)):
        check: Any = lambda items, _, breach=breach: iter([breach])  # noqa: E731
        rules = _own_rules(monkeypatch, Rule("cap", "Cap.", "own", stack_check=check))
        if is_right:
            assert [each.rule for each in violations(STRICT, None, [item], rules)] == ["cap"]
        else:
            with pytest.raises(UserError, match="plug-in-failed"):
                [*violations(STRICT, None, [item], rules)]
