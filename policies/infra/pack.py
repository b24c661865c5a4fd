"""The rules as CrossGuard policies, limits and waivers applied.

A policy that reads an unknown value is dropped by CrossGuard and its no becomes advice. So the
rules see plain data in which an unknown is a word, which equals nothing that a rule allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError

from policies.infra import (
    data,
    images,
    known,
    limits,
    outbound,
    reach,
    rights,
    spend,
    waivers,
    watched,
    whole,
    workspace,
)
from policies.infra.limits import Limits
from policies.infra.rule import AZURE, UNKNOWN, Item, Rule
from policies.infra.waivers import Waiver

RULES: tuple[Rule, ...] = (
    *known.RULES,
    *workspace.RULES,
    *data.RULES,
    *images.RULES,
    *rights.RULES,
    *reach.RULES,
    *outbound.RULES,
    *watched.RULES,
    *spend.RULES,
    *whole.RULES,
)
SET_ASIDE = "set-aside"


@dataclass(frozen=True)
class Verdict:
    """A rule's no; `aside` says by whose word it is only advice, "" where it stands."""

    rule: str
    item: Item
    message: str
    aside: str = ""


@dataclass(frozen=True)
class Book:
    """What the rules are judged with."""

    limits: Mapping[str, Limits]
    waivers: Sequence[Waiver]
    today: date


def book() -> Book:
    """The limits and waivers of the repository, today; ValueError when a file is wrong."""
    rules = [rule.name for rule in RULES]
    return Book(limits.load(rules), waivers.load(rules), datetime.now(UTC).date())


def verdicts(
    book: Book, item: Item | None, items: Sequence[Item] = (), rules: Iterable[Rule] = RULES
) -> Iterator[Verdict]:
    """What the rules say of one resource, or of the whole stack when there is none."""
    for rule in rules:
        if item is not None and rule.check and (not rule.kinds or item.kind in rule.kinds):
            for message in rule.check(item, limits.of(book.limits, item.urn)):
                yield _judged(book, rule, item, message)
        elif item is None and rule.whole and items:
            for one, message in rule.whole(items, limits.of(book.limits, items[0].urn)):
                yield _judged(book, rule, one, message)


def _judged(book: Book, rule: Rule, item: Item, message: str) -> Verdict:
    told = f"{item.name}: {message}"
    place = limits.environment(item.urn)
    if rule.name in limits.of(book.limits, item.urn).advice:
        return Verdict(rule.name, item, told, f"advice in {place} (limits.yml)")
    waiver = waivers.applying(book.waivers, rule.name, place, item.name)
    if waiver is None:
        return Verdict(rule.name, item, told)
    void = waiver.void(book.today)
    return (
        Verdict(rule.name, item, f"{told}; {void}")
        if void
        else Verdict(rule.name, item, told, str(waiver))
    )


def policies() -> list[Policy]:
    """One policy a rule, and one that says what was set aside and by whose word."""
    with_ = book()
    made = [_policy(with_, rule) for rule in RULES]
    advice = EnforcementLevel.ADVISORY

    def aside(args: ResourceValidationArgs, report: ReportViolation) -> None:
        for one in verdicts(with_, _item(args)):
            if one.aside:
                report(f"{one.rule}: {one.message}; {one.aside}", None)

    def aside_whole(args: StackValidationArgs, report: ReportViolation) -> None:
        for one in verdicts(with_, None, _items(args)):
            if one.aside:
                report(f"{one.rule}: {one.message}; {one.aside}", one.item.urn)

    says = "What a rule refused, and by whose word it is let through."
    return [
        *made,
        ResourceValidationPolicy(SET_ASIDE, says, aside, enforcement_level=advice),
        StackValidationPolicy(f"{SET_ASIDE}-whole", says, aside_whole, enforcement_level=advice),
    ]


def _policy(with_: Book, rule: Rule) -> Policy:
    says = f"{rule.says} ({rule.sources})"
    if rule.whole:

        def whole_stack(args: StackValidationArgs, report: ReportViolation) -> None:
            for one in verdicts(with_, None, _items(args), [rule]):
                if not one.aside:
                    report(one.message, one.item.urn)

        return StackValidationPolicy(rule.name, says, whole_stack)

    def resource(args: ResourceValidationArgs, report: ReportViolation) -> None:
        if not rule.kinds or _kind(args.resource_type) in rule.kinds:
            for one in verdicts(with_, _item(args), (), [rule]):
                if not one.aside:
                    report(one.message, None)

    return ResourceValidationPolicy(rule.name, says, resource)


def _kind(token: str) -> str:
    provider, _, kind = token.partition(":")
    return kind if provider == AZURE else token


def _item(args: ResourceValidationArgs) -> Item:
    return Item(
        _kind(args.resource_type),
        args.name,
        args.urn,
        plain(args.props),
        ignores=tuple(args.opts.ignore_changes),
        protected=args.opts.protect,
    )


def _items(args: StackValidationArgs) -> list[Item]:
    return [
        Item(
            _kind(one.resource_type),
            one.name,
            one.urn,
            plain(one.props),
            {
                key: tuple(each.urn for each in made)
                for key, made in one.property_dependencies.items()
            },
            tuple(one.opts.ignore_changes),
            one.opts.protect,
        )
        for one in args.resources
    ]


def plain(value: Any) -> Any:
    """CrossGuard's proxies as plain data, unknown values as `UNKNOWN`."""
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
