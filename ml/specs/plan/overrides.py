"""`--set`: dotted paths into a spec, as `az ml job create --set` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ml.core.documents import LOADER
from ml.core.errors import Problem, Refused
from ml.specs.assets import assets
from ml.specs.expressions import did_you_mean

# Sections of any job in which --set may add fields.
_OPEN = frozenset(
    {
        "inputs",
        "environment_variables",
        "tags",
        "properties",
        "limits",
        "resources",
        "sampling_algorithm",
    }
)
_OF_SWEEPS = frozenset({"sampling_algorithm"})
_OF_COMMANDS = frozenset(
    {"environment", "command", "code", "environment_variables", "resources", *_OF_SWEEPS}
)
_FIELDS = frozenset(
    {
        *("compute", "experiment_name", "display_name", "description", "name"),
        *("environment", "command", "code"),
    }
)
# Fields that define the file itself and are not suggested.
_FIXED = frozenset({"$schema", "type", "version"})


def apply(data: dict[str, Any], overrides: Mapping[str, str]) -> None:
    """Change `data` in place; raises Refused with every target that does not exist.

    Values are read as YAML scalars (`0.1` is a number, `"0.1"` text). `inputs.x` and
    `outputs.x` mean the `path` of data and the value of a literal. A local path is relative to
    the working directory.
    """
    problems = []
    for target, text in overrides.items():
        keys = target.split(".")
        problem = _set(data, keys, _value(text), target)
        if problem:
            problems.append(problem)
    if problems:
        raise Refused(*problems)


def _value(text: str) -> Any:
    try:
        return yaml.load(text, Loader=LOADER)
    except (yaml.YAMLError, ValueError):
        return text


def _set(data: dict[str, Any], keys: list[str], value: Any, target: str) -> Problem | None:
    parent: Any = data
    for depth, key in enumerate(keys[:-1]):
        child = parent.get(key)
        if child is None and depth == 0 and key in _OPEN:
            child = parent[key] = {}
        if isinstance(child, str) and depth == 0 and key == "sampling_algorithm":
            child = parent[key] = {"type": child}  # the short form: only its type is written
        if not isinstance(child, dict):
            return _unknown(keys[: depth + 1], parent, target)
        parent = child
    last = keys[-1]
    current = parent.get(last)
    data_port = keys[0] in {"inputs", "outputs"} and len(keys) == 2
    if data_port and isinstance(current, dict):
        parent, last, current = current, "path", current.get("path")
    elif last not in parent and not _may_add(keys):
        return _unknown(keys, parent, target)
    if last == "path" and isinstance(value, str):
        value = _typed_path(value)
    if isinstance(current, dict) and not isinstance(value, dict):
        message, field_names = f"`{target}` is a mapping, not a value", ", ".join(map(str, current))
        return Problem("bad-override", message, f"one of its fields: {field_names}")
    parent[last] = value
    return None


def _may_add(keys: list[str]) -> bool:
    if keys[0] == "inputs":
        return len(keys) > 2
    return keys[0] in _OPEN or (len(keys) == 1 and keys[0] in _FIELDS) or len(keys) > 2


def _typed_path(text: str) -> str:
    if assets.local(text, Path.cwd()) is None:
        return text
    return str(Path(text.removeprefix("file://").removeprefix("file:")).expanduser().resolve())


def _unknown(keys: list[str], parent: dict[str, Any], target: str) -> Problem:
    field_names = [str(key) for key in parent if key not in _FIXED]
    if len(keys) == 1:
        is_command = not {"jobs", "trial"} & parent.keys()
        field_names += sorted((_OPEN | _FIELDS) - (_OF_SWEEPS if is_command else _OF_COMMANDS))
    prefix = "".join(f"{key}." for key in keys[:-1])
    names = ", ".join(prefix + key for key in dict.fromkeys(field_names))
    return Problem(
        "bad-override",
        f"--set {target}: the spec has no `{'.'.join(keys)}`",
        f"one of {names}" if names else f"no --set of `{keys[0]}`: the spec has none",
        did_you_mean(keys[-1], field_names, prefix + "{}"),
    )
