"""Generate the reference of the promotion gates and their settings in gates.yml."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from operator import gt, lt, ne
from typing import Any

import yaml

from docs.generate.markdown import anchor, code, escape, paragraphs, sentence, table
from policies.promotion import gate, gate_settings
from policies.promotion.engine import ROLLBACK_GATES, RULES
from policies.waivers import NEVER

# Kind of setting → text that says which change makes it stricter.
_TIGHTER = {
    id(gate.ALLOW_LIST): "remove names",
    id(gate.DEMANDS): "add names",
    id(gate.AT_LEAST): "add entries, raise values",
    id(gate.AT_MOST): "add entries, lower values",
    id(gate.BOUNDS): "add entries, narrow ranges",
    id(gate.POINTER): "set it",
}
_DIRECTIONS: Mapping[Any, str] = {gt: "lower", lt: "raise", ne: "not change"}


def page() -> str:
    """Return the page: all gates in the order of their evaluation."""
    policy = gate_settings.POLICY.read_text(encoding="utf-8")
    values = yaml.safe_load(policy)["gates"]
    comments = read_comments(policy)
    return "\n\n".join(_gate(name, values[name], comments) for name in RULES)


def _gate(name: str, values: Mapping[str, Any], comments: Mapping[tuple[str, ...], str]) -> str:
    rows = []
    for setting in ("mode", *gate_settings.SETTINGS[name]):
        kind = _kind(name, setting)
        note = escape(comments.get((name, setting), ""))
        rows.append(
            [code(setting), code(shown(values[setting])), _tighter(kind, values[setting]), note]
        )
    facts = []
    if name in gate_settings.ALWAYS:
        facts.append("No file turns this gate off.")
    if name in ROLLBACK_GATES:
        facts.append("It blocks a rollback too.")
    if name in NEVER:
        facts.append(f"It cannot be waived: {NEVER[name]}.")
    parts = [
        f"{anchor('gate', name)}\n## {name}",
        sentence(escape(comments.get((name,), ""))),
        paragraphs(inspect.getdoc(RULES[name]) or ""),
        " ".join(facts),
        table(["setting", "organisation policy", "a project may", "notes"], rows),
    ]
    return "\n\n".join(filter(None, parts))


def _kind(name: str, setting: str) -> gate.Kind:
    if setting == "mode":
        return gate.ENABLED if name in gate_settings.ALWAYS else gate.MODE
    return gate_settings.SETTINGS[name][setting]


def _tighter(kind: gate.Kind, default: object) -> str:
    if kind is gate.MODE:
        return "not change it" if default == gate.MODES[-1] else "set it to `enabled`"
    if id(kind) in _TIGHTER:
        return _TIGHTER[id(kind)]
    if kind.looser not in _DIRECTIONS:
        raise ValueError(f"no words for what tightens {kind}")
    word = _DIRECTIONS[kind.looser]
    return f"add entries, {word} values" if kind.entries else f"{word} it"


def shown(value: object) -> str:
    """Return a value as YAML writes it on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, float):
        return f"{value:f}".rstrip("0")
    return '""' if value == "" else str(value)


def read_comments(text: str) -> dict[tuple[str, ...], str]:
    """Return the comments in a gates.yml by (gate,) or (gate, setting).

    A comment is on the key's line or on the lines above it.
    """
    comments: dict[tuple[str, ...], str] = {}
    above: list[str] = []
    gate = ""
    keys: tuple[str, ...]
    for line in text.partition("\ngates:\n")[2].splitlines():
        if match := re.match(r"\s+#\s?(.*)", line):
            above.append(match[1])
            continue
        if match := re.match(r"(  |    )([\w-]+):(?:.*?\s#\s(.*))?", line):
            if len(match[1]) == 2:
                gate, keys = match[2], (match[2],)
            else:
                keys = (gate, match[2])
            comments[keys] = " ".join([*above, *filter(None, [match[3]])])
        above = []
    return comments
