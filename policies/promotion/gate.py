"""A gate with its settings for a project, and the kinds of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import gt, lt, ne
from types import GenericAlias
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field

from ml.core import settings
from policies.waivers import GateWaiver, InvalidVersion, Review

Mode = Literal["enabled", "report-only", "disabled"]
MODES: tuple[Mode, ...] = ("disabled", "report-only", "enabled")  # from loose to tight

Names = tuple[str, ...]
Numbers = Mapping[str, float]
Bounds = Mapping[str, tuple[float, float]]
_NUMBER = Annotated[float, Field(ge=0)]
# The widest range of a metric: enough for amounts of money in cents.
_VALUE = Annotated[float, Field(ge=-1e12, le=1e12)]


@dataclass(frozen=True)
class Gate:
    """One gate with its mode, settings and statements for a project."""

    name: str
    mode: Mode
    settings: Mapping[str, object]
    waivers: tuple[GateWaiver, ...] = ()
    reviews: tuple[Review, ...] = ()
    invalid_versions: tuple[InvalidVersion, ...] = ()

    def number(self, setting: str) -> float:
        """Return a numeric setting, such as a maximum."""
        return cast(float, self.settings[setting])

    def text(self, setting: str) -> str:
        """Return a text setting, which only the organisation policy may set."""
        return cast(str, self.settings[setting])

    def names(self, setting: str) -> Names:
        """Return a list setting: an allow-list, or required names."""
        return cast(Names, self.settings[setting])

    def numbers(self, setting: str) -> Numbers:
        """Return a mapping setting: entry name → lower or upper limit."""
        return cast(Numbers, self.settings[setting])

    def bounds(self, setting: str) -> Bounds:
        """Return a mapping setting: metric → (lowest, highest) possible value."""
        return cast(Bounds, self.settings[setting])


Gates = Mapping[str, Gate]


@dataclass(frozen=True)
class Kind:
    """A kind of setting: its type, and which values are looser."""

    form: Any  # its type
    looser: Callable[[Any, Any], bool]  # (project's value, policy's) → whether the first is looser
    # True for a mapping: each entry is compared with the policy's entry of the same name, and the
    # policy's other entries apply as well.
    entries: bool = False
    loosest: Any = None  # constraint on the policy's value; beyond it the gate has no effect


def _pair(bounds: list[float]) -> tuple[float, ...]:
    if len(bounds) != 2 or bounds[0] >= bounds[1]:
        raise settings.invalid("[lowest, highest]")
    return tuple(bounds)


def entries_of(name_form: str, value: Any, looser: Callable[[Any, Any], bool]) -> Kind:
    """Return the kind of a mapping whose keys have the form `name_form`, such as SPLIT.METRIC."""

    def check(name: str) -> str:
        if name.count(".") != name_form.count("."):
            raise settings.invalid(f"an entry such as `{name_form}: 0.5`")
        return name

    form = GenericAlias(dict, (Annotated[str, AfterValidator(check)], value))
    return Kind(form, looser, entries=True)


def maximum(loosest: float) -> Kind:
    """Return the kind of an upper limit; a policy may set at most `loosest`."""
    return Kind(_NUMBER, gt, loosest=Field(le=loosest))


def minimum(loosest: float) -> Kind:
    """Return the kind of a lower limit; a policy may set at least `loosest`."""
    return Kind(_NUMBER, lt, loosest=Field(ge=loosest))


ENABLED = Kind(Literal["enabled"], ne)
MODE = Kind(Mode, lambda value, policy: MODES.index(value) < MODES.index(policy))
# Below 0.8 one comparison in five is wrong. A higher confidence makes it harder to show that a
# candidate is better, or worse on a slice; above 0.99 no comparison is significant.
CONFIDENCE = Kind(Annotated[float, Field(ge=0, le=0.99)], lt, loosest=Field(ge=0.8))
ALLOW_LIST = Kind(Names, lambda value, policy: not set(value) <= set(policy))
DEMANDS = Kind(Names, lambda value, policy: not set(value) >= set(policy))
AT_LEAST = entries_of("SPLIT.METRIC", float, lt)
AT_MOST = entries_of("SPLIT.METRIC", float, gt)
BOUNDS = entries_of(
    "METRIC",
    Annotated[list[_VALUE], AfterValidator(_pair)],
    lambda value, policy: bool(value[0] < policy[0] or value[1] > policy[1]),
)

# Projects cannot change these settings: any value but the policy's counts as looser.
EQUAL = Kind(str, ne)
BASELINE_SCORES = Kind(Mapping[str, _VALUE], ne)
POINTER = Kind(str, lambda value, policy: False)
ORDER = Kind(Names, ne)


@dataclass(frozen=True)
class OwnGate:
    """A gate of a fork's plug-in."""

    rule: Callable[[Any, Gate], Any]  # (Case, Gate) → Finding; see decision.py
    settings: Mapping[str, Kind] = field(default_factory=dict)  # its settings in gates.yml
