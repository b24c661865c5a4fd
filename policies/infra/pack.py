"""The rules as CrossGuard policies, with limits and waivers applied.

CrossGuard skips a policy that reads an unknown value, and reports its violations only as advice.
Rules therefore get plain data, in which an unknown value is UNKNOWN, which no rule allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import FunctionType
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    PolicyResource,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError

from ml.core import plug_ins, repository
from ml.core.errors import Place, Problem, UserError, nearest
from policies.infra import (
    access,
    cost,
    images,
    known,
    limits,
    monitoring,
    network,
    resources,
    storage,
    workspace,
)
from policies.infra.limits import Limits
from policies.infra.rule import AZURE, UNKNOWN, Item, Kind, Rule
from policies.waivers import RuleWaiver, rule_waivers

# Name of the advisory policies that report violations which a waiver or limits.yml exempts.
EXEMPTED = "set-aside"
_RULES: tuple[Rule, ...] = (
    *resources.RULES,
    *workspace.RULES,
    *storage.RULES,
    *images.RULES,
    *access.RULES,
    *known.RULES,
    *network.RULES,
    *monitoring.RULES,
    *cost.RULES,
)


def _own_rules() -> Iterator[Rule]:
    taken = {rule.name for rule in _RULES} | {EXEMPTED}
    for module in plug_ins.load("infrastructure-rules"):
        names = [rule.name for rule in module.RULES]
        plug_ins.check_names("rule", names, taken, module)
        taken |= {*names}
        for rule in module.RULES:
            if unknown := sorted({*rule.kinds} - {*Kind}):
                actual = f"the rule `{rule.name}` is of the kind `{unknown[0]}`, so it never runs"
                expected = "a value of Kind in policies/infra/rule.py"
                hint = f"did you mean {near[0]}?" if (near := nearest(unknown[0], Kind)) else ""
                place = Place(repository.shown(Path(str(module.__file__))), 1)
                raise UserError(Problem("wrong-value", actual, expected, hint, place))
            yield replace(
                rule,
                check=_guarded(rule.name, rule.check, lambda breach: isinstance(breach, str)),
                stack_check=_guarded(rule.name, rule.stack_check, _is_stack_finding),
            )


def _is_stack_finding(breach: Any) -> bool:
    return isinstance(breach, tuple) and [*map(type, breach)] == [Item, str]


def _guarded(
    name: str, check: Callable[..., Iterator[Any]] | None, is_finding: Callable[[Any], bool]
) -> Callable[..., Iterator[Any]] | None:
    """Wrap the check of a plug-in's rule so that it cannot print to stdout or exit; None for None.

    The wrapper raises UserError, at a line of the plug-in, if the check raises an exception or
    yields anything but findings.
    """

    def judge(*arguments: Any) -> Iterator[Any]:
        assert check is not None
        try:
            with plug_ins.guarded():
                returned = check(*arguments)
                if isinstance(returned, str):
                    raise TypeError("it returned a text; yield findings")
                breaches = list(returned)
            if wrong := [breach for breach in breaches if not is_finding(breach)]:
                raise TypeError(f"it yielded {wrong[0]!r}; yield TEXT, or (ITEM, TEXT) of a stack")
        except Exception as error:
            function = check if isinstance(check, FunctionType) else None
            raise UserError(plug_ins.failure(error, f"the rule `{name}`", function)) from None
        return iter(breaches)

    return judge if check else None


# The rules of the fork's plug-ins, and all rules.
FORK_RULES = tuple(_own_rules())
RULES = (*_RULES, *FORK_RULES)


@dataclass(frozen=True)
class Violation:
    """A violation of a rule by one resource."""

    rule: str
    item: Item
    message: str
    exemption: str = ""  # why it does not block (advice or a waiver), "" if it does


@dataclass(frozen=True)
class Context:
    """The limits, waivers and date with which the rules are evaluated."""

    limits: Mapping[str, Limits]
    waivers: Sequence[RuleWaiver]
    today: date


def load() -> Context:
    """Read limits.yml and waivers.yml; return them with today's date (UTC).

    Raise UserError if a file is invalid.
    """
    rules = [rule.name for rule in RULES]
    fork_rules = [rule.name for rule in FORK_RULES]
    return Context(
        limits.load(rules, fork_rules=fork_rules), rule_waivers(rules), datetime.now(UTC).date()
    )


def violations(
    context: Context, item: Item | None, items: Sequence[Item] = (), rules: Iterable[Rule] = RULES
) -> Iterator[Violation]:
    """Yield the violations of one resource, or of the whole stack when `item` is None."""
    for rule in rules:
        if item is not None and rule.check and (not rule.kinds or item.kind in rule.kinds):
            for message in rule.check(item, limits.for_urn(context.limits, item.urn)):
                yield _violation(context, rule, item, message)
        elif item is None and rule.stack_check and items:
            stack = limits.for_urn(context.limits, items[0].urn)
            breaches = rule.stack_check(items, stack)
            yield from _merged(
                [(_violation(context, rule, *breach), breach[1]) for breach in breaches]
            )


def _merged(pairs: Iterable[tuple[Violation, str]]) -> Iterator[Violation]:
    """Merge violations with the same finding about several resources into one.

    A waiver exempts one resource: its violation is not merged.
    """
    resources: dict[str, dict[str, Violation]] = {}
    for violation, finding in pairs:
        if violation.exemption:
            yield violation
        else:
            resources.setdefault(finding, {}).setdefault(violation.item.urn, violation)
    for violations in resources.values():
        first, *others = violations.values()
        names = ", ".join(other.item.name for other in others)
        more = f" (also {names})" if others else ""
        yield replace(first, message=f"{first.message}{more}")


def _violation(context: Context, rule: Rule, item: Item, finding: str) -> Violation:
    message = f"{item.name}: {finding}"
    environment = limits.environment(item.urn)
    if rule.name in limits.for_urn(context.limits, item.urn).advice:
        return Violation(rule.name, item, message, f"advice in {environment} (limits.yml)")
    subject = (rule.name, environment, item.name)
    waiver = next((waiver for waiver in context.waivers if waiver.subject == subject), None)
    if waiver is None:
        return Violation(rule.name, item, message)
    if expired := waiver.expired(context.today):
        return Violation(rule.name, item, f"{message}; {expired}")
    return Violation(rule.name, item, message, str(waiver))


def policies() -> list[Policy]:
    """Return one CrossGuard policy per rule, and two that report exempted violations."""
    context = load()

    def report_exempted(args: ResourceValidationArgs, report: ReportViolation) -> None:
        _report(violations(context, _item(args)), report, exempted=True)

    def report_exempted_in_stack(args: StackValidationArgs, report: ReportViolation) -> None:
        _report(violations(context, None, _items(args)), report, exempted=True)

    name, advice = EXEMPTED, EnforcementLevel.ADVISORY
    title = "Rejections that a waiver or limits.yml overrides."
    return [
        *(_policy(context, rule) for rule in RULES),
        ResourceValidationPolicy(name, title, report_exempted, enforcement_level=advice),
        StackValidationPolicy(
            f"{name}-whole", title, report_exempted_in_stack, enforcement_level=advice
        ),
    ]


def _report(breaches: Iterable[Violation], report: ReportViolation, exempted: bool = False) -> None:
    """Report blocking violations, or with `exempted` exempted ones with rule and exemption."""
    for breach in breaches:
        if exempted and breach.exemption:
            report(f"{breach.rule}: {breach.message}; {breach.exemption}", breach.item.urn)
        elif not exempted and not breach.exemption:
            report(breach.message, breach.item.urn)


def _policy(context: Context, rule: Rule) -> Policy:
    title = f"{rule.title} ({rule.sources})"
    if rule.stack_check:

        def check_stack(args: StackValidationArgs, report: ReportViolation) -> None:
            _report(violations(context, None, _items(args), [rule]), report)

        return StackValidationPolicy(rule.name, title, check_stack)

    def check_resource(args: ResourceValidationArgs, report: ReportViolation) -> None:
        if not rule.kinds or kind_of(args.resource_type) in rule.kinds:
            _report(violations(context, _item(args), (), [rule]), report)

    return ResourceValidationPolicy(rule.name, title, check_resource)


def kind_of(token: str) -> str:
    """Return a type without `azure-native:`, or the whole type of another provider."""
    provider, _, kind = token.partition(":")
    return kind if provider == AZURE else token


def _item(args: ResourceValidationArgs | PolicyResource) -> Item:
    return Item(
        kind_of(args.resource_type),
        args.name,
        args.urn,
        plain(args.props),
        ignores=tuple(args.opts.ignore_changes),
        protected=args.opts.protect,
        provider=args.provider.name if args.provider else "",
    )


def _items(args: StackValidationArgs) -> list[Item]:
    uses = (resource.property_dependencies.items() for resource in args.resources)
    return [
        replace(
            _item(resource),
            uses={key: tuple(source.urn for source in sources) for key, sources in by},
        )
        for resource, by in zip(args.resources, uses, strict=True)
    ]


def plain(value: Any) -> Any:
    """Return CrossGuard's proxies as plain data, with UNKNOWN for unknown values."""
    if isinstance(value, Mapping):
        return {key: _read(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_read(value, index) for index in range(len(value))]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read(holder: Any, key: Any) -> Any:
    try:
        return plain(holder[key])
    except UnknownValueError:
        return UNKNOWN
