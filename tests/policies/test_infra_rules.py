"""policies.infra: every rule with what it allows and refuses; limits, waivers, unknown values."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
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

from infra.program import roles as grants
from policies.infra import limits, pack, rights, waivers
from policies.infra.limits import Limits
from policies.infra.pack import RULES, Book, plain, verdicts
from policies.infra.rule import UNKNOWN, Item
from policies.infra.waivers import Waiver

CASES = yaml.safe_load(Path(__file__).with_name("infra_rules.yml").read_text())
TODAY = date(2026, 6, 1)
LIMITS = limits.load(rule.name for rule in RULES)
STRICT = Book({"default": LIMITS["default"]}, (), TODAY)
WAIVER = Waiver(
    "vault-firewall",
    "staging",
    "vault",
    "being moved",
    "ada@example.com",
    TODAY + timedelta(days=30),
    "waivers.yml:1",
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
) -> Item:
    made = {key: tuple(urns) for key, urns in (uses or {}).items()}
    # YAML has `None` as a text, as Azure has it.
    return Item(kind, name, _urn(kind, name, stack), props, made, tuple(ignores), protected)


def _each() -> Iterator[Any]:
    """One parameter a case: rule, whether it is refused, one resource or those of a stack."""
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
        found = list(verdicts(STRICT, given, (), [known]))
    else:
        found = list(verdicts(STRICT, None, given, [known]))
    assert bool(found) is refused, found


def test_every_rule_has_both_cases_and_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert sorted(names) == sorted({case["rule"] for case in CASES}) and len(set(names)) == len(
        names
    )
    assert all(
        rule.says and rule.sources and bool(rule.check) != bool(rule.whole) for rule in RULES
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
    """What PSRule, checkov, Azure Policy and AVM ask of an Azure ML environment."""
    assert any(source in rule.sources.replace(",", " ").split() for rule in RULES)


def test_every_role_that_the_program_grants_may_be_granted_and_no_other() -> None:
    assert {ident: name for name, ident in grants.ROLES.items()} == rights.ROLES


def test_an_environment_without_limits_has_the_strictest() -> None:
    cluster = {"properties": {"properties": {"vmSize": "Standard_NC24ads_A100_v4"}}}
    kind = "machinelearningservices:Compute"
    book = Book(LIMITS, (), TODAY)
    rules = [rule for rule in RULES if rule.name == "cost-gpu-sizes"]
    said = {
        stack: bool(list(verdicts(book, _item(kind, cluster, stack=stack), (), rules)))
        for stack in ("dev", "prod", "default", "unheard-of")
    }
    assert said == {"dev": True, "prod": False, "default": True, "unheard-of": True}


def test_the_strictest_is_the_tightest_of_each_limit() -> None:
    loose = Limits(8, 30, ("a", "b"), ("west", "north"), ("owner",), ("x", "y"))
    tight = Limits(4, 60, ("b",), ("north", "west"), ("team",), ("y",))
    found = limits.strictest({"default": loose, "dev": tight})
    assert found == Limits(4, 30, ("b",), ("west", "north"), ("owner", "team"), ("y",))


def test_the_stacks_that_we_ship_have_limits_of_their_own() -> None:
    """The strictest are for a stack that nobody has thought of yet."""
    assert LIMITS.keys() == {"default", "dev", "prod", "staging"}


ALL = "{max_nodes: 1, idle_minutes: 1, gpu_sizes: [], regions: [], tags: [], advice: [storage-tls]}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dev: {}", "with `default`"),
        ("default: {max_nodes: many}", "default.max_nodes"),
        ("default: {nodes: 3}", "default.nodes"),
        ("default: {max_nodes: 3}", "no advice"),
        ("default: {max_nodes: true}", "a whole number"),
        ("default: [1]", "a mapping"),
        ("default: {", "limits.yml"),
        (f"default: {ALL}\nprod: {{max_nodes: -1}}", "prod.max_nodes"),
        (f"default: {ALL}\nprod:", "prod`: a mapping"),
        (f"default: {ALL}\nprod: {{advice: [storage-tsl]}}", "no rule `storage-tsl`"),
        (
            f"default: {ALL}\nprod: {{}}\ndev: {{}}\nprod: {{max_nodes: 99}}",
            "limits.yml:4: `prod` twice",
        ),
        (f"default: {ALL}\nprod: {{max_nodes: 1, max_nodes: 99}}", "`max_nodes` twice"),
        ("default: &a {prod: *a}", "limits.yml: an alias inside"),
    ],
)
def test_wrong_limits_are_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "limits.yml"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        limits.load(["storage-tls"], file)


def _firewall(book: Book, stack: str, name: str = "vault") -> pack.Verdict:
    open_ = {"properties": {"networkAcls": {"defaultAction": "Allow"}}}
    rules = [rule for rule in RULES if rule.name == "vault-firewall"]
    (found,) = verdicts(book, _item("keyvault:Vault", open_, stack=stack, name=name), (), rules)
    return found


def test_a_waiver_sets_one_no_aside_until_its_day() -> None:
    book = Book(STRICT.limits, (WAIVER,), TODAY)
    assert _firewall(book, "staging").aside.startswith("waived until 2026-07-01 by ada@example.com")
    assert not _firewall(book, "prod").aside and not _firewall(book, "staging", "other").aside
    last = Book(STRICT.limits, (WAIVER,), WAIVER.expires)
    assert _firewall(last, "staging").aside
    late = _firewall(Book(STRICT.limits, (WAIVER,), WAIVER.expires + timedelta(days=1)), "staging")
    assert not late.aside and "expired on 2026-07-01" in late.message


def test_a_waiver_for_too_long_is_none() -> None:
    book = Book(STRICT.limits, (WAIVER,), TODAY - timedelta(days=151))
    assert "more than 180 days" in _firewall(book, "staging").message


GOOD = (
    "- {rule: vault-firewall, environment: dev, resource: vault, reason: r, owner: o,"
    " expires: 2026-07-01}\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("2026-07-01", "soon"), "expires"),
        (GOOD.replace("2026-07-01", "2026-07-01T00:00:00Z"), "expires"),
        (GOOD.replace("vault-firewall", "vault-fire"), "no rule"),
        (GOOD.replace("owner: o", "owner: ''"), "owner"),
        (GOOD.replace("reason: r, ", ""), "no more and no less"),
        (GOOD + GOOD.replace("owner: o", "owner: 3"), "waivers.yml:2: `owner`"),
        (GOOD.replace("reason: r", "reason: r, reason: s"), "waivers.yml:1: `reason` twice"),
        (GOOD + GOOD.replace("2026-07-01", "2026-05-01"), "waivers.yml:2: waivers.yml:1 waives"),
        ("&a [*a]", "waivers.yml: an alias inside"),
        ("a: 1", "a list"),
        ("- [", "waivers.yml"),
    ],
)
def test_wrong_waivers_are_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "waivers.yml"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        waivers.load([rule.name for rule in RULES], file)


def test_waivers_are_read_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "waivers.yml"
    file.write_text("# none\n" + GOOD)
    (found,) = waivers.load(["vault-firewall"], file)
    assert (found.place, found.expires) == ("waivers.yml:2", date(2026, 7, 1))


def test_the_waivers_and_limits_of_the_repository_load() -> None:
    assert pack.book().limits["default"].max_nodes > 0


def test_an_unknown_value_is_a_word_that_no_rule_allows() -> None:
    """CrossGuard would drop the policy that reads one, and make its no advice."""
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
