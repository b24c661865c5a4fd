"""The gates' settings: the floor in gates.yml beside this module, and a project's own gates.yml,
which may only tighten the floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, NotRequired, cast

from pydantic import AfterValidator, Field

from ml.core import documents, settings
from ml.core.documents import Document
from ml.core.errors import Problem, Refused
from policies.waivers import GateWaiver, Review, check_review, check_waiver, located

FLOOR = Path(__file__).with_name("gates.yml")
Mode = Literal["enabled", "report-only", "disabled"]
MODES: tuple[Mode, ...] = ("disabled", "report-only", "enabled")  # from loose to tight

Names = tuple[str, ...]
Numbers = Mapping[str, float]
Bounds = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Kind:
    """A kind of setting: its type, and whether a project's value is looser than the floor's.

    In a mapping (`entries`) each entry is compared with the floor's entry of the same name, and
    the floor's other entries hold as well.
    """

    form: Any
    looser: Callable[[Any, Any], bool]
    entries: bool = False


def _pair(bounds: list[float]) -> tuple[float, ...]:
    if len(bounds) != 2:
        raise settings.invalid("[lowest, highest]")
    return tuple(bounds)


def _entries(name_form: str, value: Any, looser: Callable[[Any, Any], bool]) -> Kind:
    """A mapping whose names have the form that is shown, such as SPLIT.METRIC."""

    def check(name: str) -> str:
        if name.count(".") != name_form.count("."):
            raise settings.invalid(f"an entry such as `{name_form}: 0.5`")
        return name

    form = GenericAlias(dict, (Annotated[str, AfterValidator(check)], value))
    return Kind(form, looser, entries=True)


_NUMBER = Annotated[float, Field(ge=0)]
MODE = Kind(Mode, lambda value, floor: MODES.index(value) < MODES.index(floor))
MAXIMUM = Kind(_NUMBER, lambda value, floor: bool(value > floor))
MINIMUM = Kind(_NUMBER, lambda value, floor: bool(value < floor))
# A higher one makes it harder to show that a candidate is better, and also that it is worse on a
# slice; beyond 0.99 nothing is shown.
CONFIDENCE = Kind(Annotated[float, Field(ge=0.5, le=0.99)], MINIMUM.looser)
ALLOW_LIST = Kind(Names, lambda value, floor: not set(value) <= set(floor))
DEMANDS = Kind(Names, lambda value, floor: not set(value) >= set(floor))
FLOORS = _entries("SPLIT.METRIC", float, MINIMUM.looser)
CEILINGS = _entries("SPLIT.METRIC", float, MAXIMUM.looser)
BOUNDS = _entries(
    "METRIC",
    Annotated[list[float], AfterValidator(_pair)],
    lambda value, floor: bool(value[0] < floor[0] or value[1] > floor[1]),
)

# What the floor says holds everywhere: any other value is looser.
EQUAL = Kind(str, lambda value, floor: value != floor)
ORDER = Kind(Names, lambda value, floor: value != floor)
# The gates that no file turns off.
ALWAYS = ("attestation", "order")
ENABLED = Kind(Literal["enabled"], EQUAL.looser)

SETTINGS: Mapping[str, Mapping[str, Kind]] = {
    "identity": {},
    "attestation": {
        **dict.fromkeys(("issuer", "repository", "workflow", "ref"), EQUAL),
        "unattested_allowed_in": ALLOW_LIST,
    },
    "freshness": {"max_age_days": MAXIMUM},
    "completeness": {},
    "recomputed": {},
    "lineage": {"dirty_allowed_in": ALLOW_LIST},
    "format": {"allowed": ALLOW_LIST, "imports": ALLOW_LIST},
    "quality": {
        "min_count": MINIMUM,
        "bounds": BOUNDS,
        "at_least": FLOORS,
        "at_most": CEILINGS,
    },
    "gap": {"at_most": CEILINGS},
    "leakage": {
        "checks": DEMANDS,
        "at_most": _entries("KIND.CHECK", float, MAXIMUM.looser),
    },
    "first-promotion": {},
    "non-inferiority": {
        "margin": MAXIMUM,
        "confidence": CONFIDENCE,
        "splits": DEMANDS,
        "slice_min_count": MAXIMUM,
        "slices": DEMANDS,
    },
    "superiority": {"confidence": CONFIDENCE},
    "fairness": {
        "dimensions": DEMANDS,
        "min_count": MAXIMUM,  # smaller slices are not compared
        "at_most": _entries("DIMENSION.METRIC", float, MAXIMUM.looser),
        "unreviewed_allowed_in": ALLOW_LIST,
    },
    "explainability": {
        "min_rows": MINIMUM,
        "max_share": MAXIMUM,
        "max_error": MAXIMUM,
        "unreviewed_allowed_in": ALLOW_LIST,
    },
    "latency": {
        "p95_ms": MAXIMUM,
        "min_requests": MINIMUM,
        "other_hardware_allowed_in": ALLOW_LIST,
    },
    "supply-chain": {
        "licences": ALLOW_LIST,
        "reviewed": ALLOW_LIST,
        "max_advisory_age_days": MAXIMUM,
        "min_advisories": MINIMUM,
        "unchecked_allowed_in": ALLOW_LIST,
    },
    "order": {"environments": ORDER, "unordered": ALLOW_LIST},
    "sign-off": {},
}


def _kind(gate: str, setting: str) -> Kind:
    if setting == "mode":
        return ENABLED if gate in ALWAYS else MODE
    return SETTINGS[gate][setting]


def _gates(required: bool) -> Any:
    """The type of `gates`: the floor states every setting, a project those that it tightens."""
    forms = {
        gate: settings.mapping(
            {name: _kind(gate, name).form for name in ("mode", *kinds)}, required=required
        )
        for gate, kinds in SETTINGS.items()
    }
    return settings.mapping(forms, required=required)


_VERSION = Literal[1]
_FLOOR_FILE = settings.mapping({"schema_version": _VERSION, "gates": _gates(required=True)})
_GATE_WAIVER = Annotated[GateWaiver, AfterValidator(partial(check_waiver, gates=SETTINGS))]
_PROJECT_FILE = settings.mapping(
    {
        "schema_version": _VERSION,
        "gates": NotRequired[_gates(required=False)],
        "waivers": NotRequired[tuple[_GATE_WAIVER, ...]],
        "reviews": NotRequired[tuple[Annotated[Review, AfterValidator(check_review)], ...]],
    }
)


@dataclass(frozen=True)
class Gate:
    """One gate as it applies to a project."""

    name: str
    mode: Mode
    settings: Mapping[str, object]
    waivers: tuple[GateWaiver, ...] = ()
    reviews: tuple[Review, ...] = ()

    def number(self, setting: str) -> float:
        """A maximum or a minimum."""
        return cast(float, self.settings[setting])

    def text(self, setting: str) -> str:
        """A text that the floor fixes."""
        return cast(str, self.settings[setting])

    def names(self, setting: str) -> Names:
        """An allow-list or a list of demands."""
        return cast(Names, self.settings[setting])

    def numbers(self, setting: str) -> Numbers:
        """Floors or ceilings by the name of the entry."""
        return cast(Numbers, self.settings[setting])

    def bounds(self, setting: str) -> Bounds:
        """The lowest and the highest value that a metric can have, by its name."""
        return cast(Bounds, self.settings[setting])


Gates = Mapping[str, Gate]


def load(project: Path | None = None, floor: Path = FLOOR) -> Gates:
    """Every gate, as the floor sets it and the project's file tightens it.

    Raises Refused with every problem of a file: the floor leaves a setting out, or the project's
    file is looser than the floor.
    """
    values = _read(_FLOOR_FILE, floor)[0]["gates"]
    waivers, reviews = _tighten(values, project) if project else ((), ())
    return {
        gate: Gate(
            gate,
            values[gate]["mode"],
            {setting: values[gate][setting] for setting in kinds},
            tuple(waiver for waiver in waivers if waiver.gate == gate),
            tuple(review for review in reviews if review.gate == gate),
        )
        for gate, kinds in SETTINGS.items()
    }


def _tighten(
    values: dict[str, dict[str, Any]], project: Path
) -> tuple[tuple[GateWaiver, ...], tuple[Review, ...]]:
    """Apply a project's settings to those of the floor; its waivers and reviews."""
    file, document = _read(_PROJECT_FILE, project)
    problems: list[Problem] = []
    for gate, stated in file.get("gates", {}).items():
        for setting, value in stated.items():
            held = values[gate][setting]
            problems += _looser(document, (gate, setting), value, held)
            entries = _kind(gate, setting).entries
            values[gate][setting] = {**held, **value} if entries else value
    problems += _vacuous(document, file.get("gates", {}), values["quality"]["bounds"])
    if problems:
        raise Refused(*problems)
    return (
        located(file.get("waivers", ()), document, project, "waivers"),
        located(file.get("reviews", ()), document, project, "reviews"),
    )


def _vacuous(
    document: Document, stated: Mapping[str, Mapping[str, Any]], bounds: Bounds
) -> Iterator[Problem]:
    """Thresholds that every value of a metric meets: they judge nothing."""
    for gate, setting in (("quality", "at_least"), *((g, "at_most") for g in _OF_METRICS)):
        for name, value in stated.get(gate, {}).get(setting, {}).items():
            lowest, highest = bounds.get(name.partition(".")[2], (-math.inf, math.inf))
            widest = highest if gate == "quality" else highest - lowest
            if value <= lowest if setting == "at_least" else value >= widest:
                keys = ("gates", gate, setting, name)
                found = f"`{settings.dotted(keys)}` is {value:g}, which every value meets"
                edge = f"more than {lowest:g}" if setting == "at_least" else f"less than {widest:g}"
                hint = "`gates.quality.bounds` says which values the metric can have"
                place = document.place(*keys)
                yield Problem("gate-judges-nothing", found, edge, hint, place)


# Gates whose `at_most` is about values of metrics, or differences of them.
_OF_METRICS = ("quality", "gap", "fairness")


def _read(form: Any, path: Path) -> tuple[Any, Document]:
    document = documents.read(path)
    return settings.read(form, document), document


def _looser(document: Document, keys: tuple[str, ...], value: Any, held: Any) -> Iterator[Problem]:
    """What is looser than `held`, the floor's value of the setting `keys`."""
    kind = _kind(*keys)
    pairs = [(keys, value, held)]
    if kind.entries:
        pairs = [((*keys, name), value[name], held[name]) for name in value.keys() & held.keys()]
    for names, ours, theirs in pairs:
        if kind.looser(ours, theirs):
            place = document.place("gates", *names)
            found = f"`{settings.dotted(('gates', *names))}` is {_shown(ours)}"
            expected = f"no looser than the floor's {_shown(theirs)}"
            hint = (
                "a project can only tighten a gate; policies/promotion/gates.yml is for everybody"
            )
            yield Problem("gate-looser-than-floor", found, expected, hint, place)


def _shown(value: object) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)
