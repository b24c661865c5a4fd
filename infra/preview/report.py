"""A preview put together: what a stack would have, what changes, what it costs, what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from infra import costing
from infra.estimate import Estimate
from infra.preview.captured import Capture, Finding, Resource
from infra.preview.changes import Change
from infra.preview.lasting import lasting


@dataclass(frozen=True)
class Report:
    """One stack. `base` is the revision that it was compared with, "" where it was with none.

    `gone`: the revision had it, and now nothing is declared of it.
    """

    capture: Capture
    cost: Estimate
    type_problems: tuple[str, ...] = ()
    base: str = ""
    base_cost: Estimate | None = None
    changes: tuple[Change, ...] = ()
    gone: bool = False

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps the program from being deployed as it is."""
        return (*self.capture.problems, *self.type_problems)

    @property
    def lasting(self) -> tuple[str, ...]:
        """What Azure would refuse if it is there already, which a preview does not know."""
        return tuple(lasting(self.changes))

    @property
    def refused(self) -> tuple[Finding, ...]:
        """What a policy refuses; the rest of the findings is advice."""
        return tuple(one for one in self.capture.findings if one.mandatory)

    @property
    def advised(self) -> tuple[Finding, ...]:
        """What a policy would refuse elsewhere, or somebody answers for."""
        return tuple(one for one in self.capture.findings if not one.mandatory)

    def by_component(self) -> Mapping[str, list[Resource]]:
        """The resources, by the name of their component."""
        found: dict[str, list[Resource]] = {}
        for one in self.capture.provided:
            found.setdefault(self.capture.component(one) or "(alone)", []).append(one)
        return dict(sorted(found.items()))

    @property
    def headline(self) -> str:
        """What it is, in a line."""
        if self.gone:
            return (
                f"{self.capture.stack}: its stack file is gone; what was made of it stays until"
                f" `pulumi destroy --stack {self.capture.stack}` with the file as it was"
            )
        parts = self.by_component()
        count = sum(len(resources) for resources in parts.values())
        return f"{self.capture.stack}: {count} resources in {len(parts)} components"

    @property
    def verdict(self) -> str:
        """Whether it may be, in a line."""
        if self.problems:
            return f"{len(self.problems)} problems: it could not be deployed as it is"
        if self.refused:
            return f"{len(self.refused)} refused by policy"
        aside = f", {len(self.advised)} set aside" if self.advised else ""
        kept = ", but see the notes" if self.lasting else ""
        return f"nothing refused by policy{aside}{kept}"

    def to_json(self) -> dict[str, object]:
        """Everything, for a program that reads it."""
        capture = self.capture
        return {
            "stack": capture.stack,
            "resources": [
                {**asdict(one), "component": capture.component(one)} for one in capture.provided
            ],
            "outputs": capture.outputs,
            "problems": self.problems,
            "lasting": self.lasting,
            "refused": [asdict(one) for one in self.refused],
            "advised": [asdict(one) for one in self.advised],
            "base": self.base or None,
            "gone": self.gone,
            "changes": [asdict(one) for one in self.changes],
            "cost": costing.as_json(self.cost),
            "cost_before": costing.as_json(self.base_cost) if self.base_cost else None,
            "process": asdict(capture.spent),
        }
