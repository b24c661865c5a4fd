"""What gates.yml may say: each gate's settings, their types, and which way each is tightened."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, cast

from policies.promotion.decision import Mode

# How a setting is tightened: a maximum only downwards, a minimum only upwards, an allow-list only
# by leaving out, demands only by adding, floors, ceilings and bounds one by one.
Kind = Literal["maximum", "minimum", "allow-list", "demands", "floors", "ceilings", "bounds"]
SETTINGS: Mapping[str, Mapping[str, Kind]] = {
    "identity": {},
    "freshness": {"max_age_days": "maximum"},
    "completeness": {},
    "recomputed": {},
    "lineage": {"dirty_allowed_in": "allow-list"},
    "format": {"allowed": "allow-list"},
    "quality": {
        "min_count": "minimum",
        "bounds": "bounds",
        "at_least": "floors",
        "at_most": "ceilings",
    },
    "gap": {"at_most": "ceilings"},
    "leakage": {"checks": "demands", "at_most": "ceilings"},
    "first-promotion": {},
    "non-inferiority": {
        "margin": "maximum",
        "confidence": "minimum",
        "splits": "demands",
        "slice_min_count": "maximum",
        "slices": "demands",
    },
    "superiority": {"confidence": "minimum"},
    "fairness": {
        "dimensions": "demands",
        "min_count": "minimum",
        "at_most": "ceilings",
        "unreviewed_allowed_in": "allow-list",
    },
    "explainability": {
        "min_rows": "minimum",
        "max_share": "maximum",
        "max_error": "maximum",
        "unreviewed_allowed_in": "allow-list",
    },
    "latency": {
        "p95_ms": "maximum",
        "min_requests": "minimum",
        "other_hardware_allowed_in": "allow-list",
    },
    "supply-chain": {
        "licences": "allow-list",
        "reviewed": "allow-list",
        "max_advisory_age_days": "maximum",
        "unchecked_allowed_in": "allow-list",
    },
    "sign-off": {},
}
# How the entries of a gate are named, where not as SPLIT.METRIC.
NAMES: Mapping[str, str] = {"fairness": "DIMENSION.METRIC", "leakage": "KIND.CHECK"}
MODES: tuple[Mode, ...] = ("disabled", "report-only", "enabled")  # from loose to tight

Names = tuple[str, ...]
Numbers = Mapping[str, float]
Bounds = Mapping[str, tuple[float, float]]


def checked(value: object, gate: str, setting: str) -> object:
    """The value in the type that its setting has; raises ValueError saying what was expected."""
    if setting == "mode":
        if value not in MODES:
            raise ValueError("one of " + ", ".join(MODES))
        return value
    match SETTINGS[gate][setting]:
        case "maximum" | "minimum":
            if not _is_number(value) or cast(float, value) < 0:
                raise ValueError("a finite number, zero or more")
            if setting == "confidence" and not 0.5 <= cast(float, value) < 1:
                raise ValueError("a confidence from 0.5 to below 1")
            return float(cast(float, value))
        case "allow-list" | "demands":
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise ValueError("a list of names")
            return tuple(cast(list[str], value))
        case "bounds":
            if not _is_mapping(value, lambda _, of: _is_pair(of)):
                raise ValueError("METRIC: [lowest, highest], both finite")
            return {
                key: (float(low), float(high)) for key, (low, high) in cast(Bounds, value).items()
            }
        case "floors" | "ceilings":
            if not _is_mapping(value, lambda key, of: key.count(".") == 1 and _is_number(of)):
                raise ValueError(f"{NAMES.get(gate, 'SPLIT.METRIC')}: a finite number")
            return {key: float(number) for key, number in cast(Numbers, value).items()}


def merged(value: object, gate: str, setting: str, floor: object) -> object:
    """What holds for a project that states `value` where the floor states `floor`.

    Both are checked already. Raises ValueError when the project's is looser.
    """
    loose = False
    result = value
    match "mode" if setting == "mode" else SETTINGS[gate][setting]:
        case "mode":
            loose = MODES.index(cast(Mode, value)) < MODES.index(cast(Mode, floor))
        case "maximum":
            loose = cast(float, value) > cast(float, floor)
        case "minimum":
            loose = cast(float, value) < cast(float, floor)
        case "allow-list":
            loose = not set(cast(Names, value)) <= set(cast(Names, floor))
        case "demands":
            loose = not set(cast(Names, floor)) <= set(cast(Names, value))
        case "floors":
            ours, theirs = cast(Numbers, value), cast(Numbers, floor)
            loose = any(ours[key] < theirs[key] for key in ours.keys() & theirs.keys())
            result = {**theirs, **ours}
        case "ceilings":
            ours, theirs = cast(Numbers, value), cast(Numbers, floor)
            loose = any(ours[key] > theirs[key] for key in ours.keys() & theirs.keys())
            result = {**theirs, **ours}
        case "bounds":
            narrow, wide = cast(Bounds, value), cast(Bounds, floor)
            loose = any(
                narrow[key][0] < wide[key][0] or narrow[key][1] > wide[key][1]
                for key in narrow.keys() & wide.keys()
            )
            result = {**wide, **narrow}
    if loose:
        held = floor
        if isinstance(value, Mapping) and len(value) == 1:  # of one entry, the one that it loosens
            held = cast(Mapping[str, object], floor)[next(iter(value))]
        raise ValueError(f"no looser than the floor's {shown(held)}")
    return result


def shown(value: object) -> str:
    """A setting's value as a person reads it."""
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


def _is_mapping(value: object, sound: Callable[[str, object], bool]) -> bool:
    """Whether it is a mapping of names, and every entry sound."""
    return isinstance(value, dict) and all(
        isinstance(key, str) and sound(key, of) for key, of in value.items()
    )


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
