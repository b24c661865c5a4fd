"""Plans as JSON and back, without loss, so that a job can be resumed later.

Every value carries its type: a dataclass of `plan.py` is `{"is": "InputPlan", "with": …}`, and
a mapping keeps its order and the types of its keys. `ml.cli.render.plan_text` renders it as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ml.specs.plan.plan import CommandPlan, Frozen, PipelinePlan, Plan, SweepPlan


@cache
def kinds() -> dict[str, Any]:
    """Every dataclass that a plan may hold, by its name."""
    classes: dict[str, Any] = {}
    open_ends: list[Any] = [PipelinePlan, SweepPlan, CommandPlan]
    while open_ends:
        hint = open_ends.pop()
        open_ends += get_args(hint)
        if isinstance(hint, type) and is_dataclass(hint) and hint.__name__ not in classes:
            classes[hint.__name__] = hint
            open_ends += get_type_hints(hint).values()
    return classes


def to_json(value: Any) -> Any:
    """A plan or a part of it as JSON values; TypeError for a type that plans do not contain."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Path):
        return {"is": "path", "with": str(value)}
    if isinstance(value, Mapping):
        return {"is": "mapping", "with": [[to_json(k), to_json(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if isinstance(value, list):
        return {"is": "list", "with": [to_json(item) for item in value]}
    name = type(value).__name__
    if kinds().get(name) is not type(value):
        raise TypeError(f"a plan cannot contain {type(value)}")
    return {
        "is": name,
        "with": {item.name: to_json(getattr(value, item.name)) for item in fields(value)},
    }


def from_json(data: Any) -> Plan:
    """The plan that `to_json` wrote. ValueError when it has another format."""
    try:
        decoded = _value(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not a plan of this version: {error}") from error
    if not isinstance(decoded, CommandPlan | SweepPlan | PipelinePlan):
        raise ValueError("this is not a plan")
    return decoded


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_value(item) for item in data)
    if not isinstance(data, dict):
        return data
    kind, content = data["is"], data["with"]
    if kind == "path":
        return Path(content)
    if kind == "mapping":
        return Frozen((_value(key), _value(item)) for key, item in content)
    if kind == "list":
        return [_value(item) for item in content]
    return kinds()[kind](**{name: _value(item) for name, item in content.items()})
