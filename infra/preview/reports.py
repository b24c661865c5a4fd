"""The previews of some stacks: run, checked against the SDK's types, compared and priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from infra import settings as environments
from infra.estimate import Estimate, estimate
from infra.preview import base, sdk_types
from infra.preview.captured import Capture
from infra.preview.changes import changes
from infra.preview.report import Report
from infra.preview.run import ROOT, captures
from infra.pricing.prices import PriceList, WrongPrices, read
from infra.settings import Settings
from ml.core.errors import Problem, Refused


def reports(stacks: Sequence[str], *, against: str = "", root: Path = ROOT) -> list[Report]:
    """A report for each stack; Refused when a program fails or the revision is unknown.

    Where none is named: for all that there are, and for those that the revision had besides.
    """
    chosen = environments.chosen(stacks, root / "infra")
    known = {stack: environments.load(stack, root / "infra") for stack in chosen}
    prices = _prices()
    before = _before(stacks, against, root) if against else {}
    found, _ = captures(chosen, root=root)
    gone = [
        Report(
            capture=Capture(stack, (), {}),
            cost=Estimate(stack, prices.currency, (), ()),
            base=against,
            base_cost=_cost_before(prices, one),
            changes=changes(one[1], Capture(stack, (), {})),
            gone=True,
        )
        for stack, one in before.items()
        if stack not in known
    ]
    return gone + [
        Report(
            capture=one,
            cost=estimate(known[one.stack], prices),
            type_problems=tuple(sdk_types.problems(one.provided)),
            base=against,
            base_cost=_cost_before(prices, before.get(one.stack)),
            changes=changes(_capture(before.get(one.stack)), one) if against else (),
        )
        for one in found
    ]


def _prices() -> PriceList:
    try:
        return read()
    except WrongPrices as error:
        hint = "mend infra/pricing/prices.json by hand or from git"
        raise Refused(Problem("wrong-prices", str(error), "a price list", hint)) from None


Before = tuple[Settings | None, Capture]


def _before(stacks: Sequence[str], revision: str, root: Path) -> dict[str, Before]:
    """The settings of the revision and what its program made, for the stacks that it had; all its
    stacks where none is named.

    Settings that today's classes cannot read, though those of the revision could, are None.
    """
    with base.tree(root, revision) as folder:
        if folder is None:
            return {}
        there = environments.stacks(folder / "infra")
        had = [one for one in there if one in stacks] if stacks else there
        try:
            found, _ = captures(had, root=folder, policies=False)
        except Refused as refused:
            raise Refused(*(_of(revision, one) for one in refused.problems)) from None
        return {one.stack: (_settings(one.stack, folder / "infra"), one) for one in found}


def _of(revision: str, problem: Problem) -> Problem:
    hint = "nothing is compared with what does not run: name another revision, or leave it out"
    return replace(problem, found=f"as of {revision}, {problem.found}", hint=hint)


def _settings(stack: str, folder: Path) -> Settings | None:
    try:
        return environments.load(stack, folder)
    except Refused:
        return None


def _capture(before: Before | None) -> Capture | None:
    return before[1] if before else None


def _cost_before(prices: PriceList, before: Before | None) -> Estimate | None:
    if before is None or before[0] is None:
        return None
    return estimate(before[0], prices)
