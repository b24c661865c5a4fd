"""Edit a declaration in the text of a release.yml; all other text stays unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

import yaml

STEP = 2  # columns of indentation


class CannotEdit(Exception):
    """The file is written in a way that cannot be edited in place (anchors, merged keys)."""


def declared(text: str, environment: str, values: Mapping[str, str]) -> str:
    """Return the YAML text with `values` set under `environments.ENVIRONMENT`.

    An empty value removes its key with the comment after it. All other comments, the order, quotes
    and values are kept. Raise CannotEdit if that is impossible.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise CannotEdit("no mapping")
    environments = _value(root, "environments")
    entry = _value(environments, environment)
    if entry is not None and _full(entry):
        edited = _into(text, entry, values)
    else:
        present = {key: value for key, value in values.items() if value}
        edited = text if not present else _under(text, root, ("environments", environment), present)
    _demand(text, edited, environment, values)
    return edited


def _into(text: str, entry: yaml.MappingNode, values: Mapping[str, str]) -> str:
    """Return the text with the entry's values replaced or removed; new keys come first."""
    first = entry.value[0][0].start_mark
    changes: list[tuple[int, int, str]] = []
    new = ""
    for key, value in values.items():
        node = _value(entry, key)
        if node is not None and not value:
            changes.append((*_extent(text, entry, key), ""))
        elif node is not None:
            # A block of text (`|`) ends with its line.
            end = "\n" if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">") else ""
            lead = " " if node.start_mark.index == node.end_mark.index else ""
            replaced = f"{lead}{_scalar(value)}{end}"
            changes.append((node.start_mark.index, node.end_mark.index, replaced))
        elif value:
            pair = f"{key}: {_scalar(value)}"
            new += f"{pair}, " if entry.flow_style else f"{' ' * first.column}{pair}\n"
    place = first.index - (0 if entry.flow_style else first.column)
    # From the end, so that earlier positions stay valid.
    for start, stop, put in sorted([*changes, (place, place, new)], reverse=True):
        text = text[:start] + put + text[stop:]
    return text


def _extent(text: str, entry: yaml.MappingNode, key: str) -> tuple[int, int]:
    """Return where a key and its value begin and end in the text.

    In a block these are whole lines; in a flow mapping the comma that follows is included.
    """
    name, value = next(pair for pair in entry.value if pair[0].value == key)
    start, stop = name.start_mark.index, value.end_mark.index
    if entry.flow_style:
        comma = re.compile(r"\s*,\s*").match(text, stop)
        return start, comma.end() if comma else stop
    ends = stop if text[stop - 1] == "\n" else text.find("\n", stop) + 1
    return start - name.start_mark.column, ends or len(text)


def _under(
    text: str, parent: yaml.MappingNode, keys: tuple[str, ...], values: Mapping[str, str]
) -> str:
    """Return the text with the values added at the path `keys`; missing keys are created."""
    key, *inner = keys
    node = _value(parent, key)
    if inner and node is not None and _full(node):
        return _under(text, node, tuple(inner), values)
    first = parent.value[0][0].start_mark if parent.value else parent.start_mark
    if parent.flow_style:
        new = _flow(tuple(inner), values)
        if node is not None:
            return text[: node.start_mark.index] + new + text[node.end_mark.index :]
        return f"{text[: first.index]}{key}: {new}, {text[first.index :]}"
    block = _block(tuple(inner), values, first.column + STEP)
    if node is None:
        lead = f"{key}:\n{block}{' ' * first.column}"
        return text[: first.index] + lead + text[first.index :]
    # A comment beside the old value stays on its line.
    comment, _, below = text[node.end_mark.index :].partition("\n")
    return f"{text[: node.start_mark.index].rstrip(' ')}{comment.rstrip()}\n{block}{below}"


def _block(keys: tuple[str, ...], values: Mapping[str, str], column: int) -> str:
    if keys:
        below = _block(keys[1:], values, column + STEP)
        return f"{' ' * column}{keys[0]}:\n{below}"
    return "".join(f"{' ' * column}{key}: {_scalar(value)}\n" for key, value in values.items())


def _flow(keys: tuple[str, ...], values: Mapping[str, str]) -> str:
    if keys:
        return f"{{{keys[0]}: {_flow(keys[1:], values)}}}"
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in values.items()) + "}"


def _scalar(value: str) -> str:
    """Return a plain scalar if YAML reads it back as the same text, else a double-quoted one."""
    if re.fullmatch(r"[A-Za-z][\w-]*(:[\w-]+)?", value) and yaml.safe_load(value) == value:
        return value
    return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=1e9).strip()


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _full(node: yaml.Node) -> TypeGuard[yaml.MappingNode]:
    return isinstance(node, yaml.MappingNode) and bool(node.value)


def _demand(before: str, after: str, environment: str, values: Mapping[str, str]) -> None:
    """Check that the declaration changed and nothing else did; raises CannotEdit."""
    try:
        was, now = (_without_aliases(yaml.safe_load(content)) for content in (before, after))
        for content in (was, now):
            content["environments"] = content.get("environments") or {}
        old, entry = (root["environments"].pop(environment, None) or {} for root in (was, now))
        unchanged = {key: value for key, value in old.items() if key not in values}
        expected = {**unchanged, **{key: value for key, value in values.items() if value}}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise CannotEdit(str(error)) from None
    if entry != expected or now != was:
        raise CannotEdit("another value would change too (an anchor or a merged key)")


def _without_aliases(value: Any) -> Any:
    """Return a deep copy in which YAML aliases are separate objects."""
    if isinstance(value, dict):
        return {key: _without_aliases(item) for key, item in value.items()}
    return [_without_aliases(item) for item in value] if isinstance(value, list) else value
