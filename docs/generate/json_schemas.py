"""Generate the reference of settings files with a JSON Schema: stack files and release.yml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from docs.generate.gates import shown
from docs.generate.markdown import anchor, code, escape, paragraphs, table
from infra.settings import loader
from ml.core.imports import ROOT

Schema = Mapping[str, Any]
RELEASE = ROOT / "ml/release/declaration/release.schema.json"


def stack_page() -> str:
    """Return the page of the settings in a stack file."""
    schema = loader.schema()
    return _page(schema, schema["properties"]["config"], "stack")


def release_page() -> str:
    """Return the page of the fields in release.yml."""
    schema = json.loads(RELEASE.read_text(encoding="utf-8"))
    return _page(schema, schema, "release")


def _page(document: Schema, top: Schema, kind: str) -> str:
    """Return a table of the top-level fields, then one for each nested mapping."""
    definitions = document.get("$defs", {})
    top = definitions.get(_target(top), top)
    parts = [_table(top, kind)]
    for name in sorted(definitions):
        definition = definitions[name]
        if definition is not top and definition.get("properties") and name != "mapping":
            parts.append(f"{anchor(kind, name.lower())}\n## {name}")
            parts.append(paragraphs(definition.get("description", "")))
            parts.append(_table(definition, kind))
    return "\n\n".join(filter(None, parts))


def _table(schema: Schema, kind: str) -> str:
    required = schema.get("required", [])
    rows = []
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default(field)
        rows.append([code(name), _type(field, kind), default, _description(field)])
    return table(["setting", "value", "default", "description"], rows)


def _default(field: Schema) -> str:
    default = field.get("default")
    if default is None or isinstance(default, Mapping):
        return ""
    return code(str(default).lower() if isinstance(default, bool) else shown(default))


def _description(field: Schema) -> str:
    return escape(field.get("description", ""))


def _target(field: Schema) -> str:
    return str(field.get("$ref", "")).rpartition("/")[2]


def _type(field: Schema, kind: str) -> str:
    """Return a field's type with its bounds; a nested mapping becomes a link to its table."""
    if target := _target(field):
        return "a mapping" if target == "mapping" else f"[{target}](#{kind}-{target.lower()})"
    if "const" in field:
        return code(field["const"])
    if "enum" in field:
        return " or ".join(map(code, field["enum"]))
    if "anyOf" in field:
        return " or ".join(_type(option, kind) for option in field["anyOf"])
    words = field.get("type", "any value")
    name = " or ".join(words) if isinstance(words, list) else words
    if name == "array":
        return f"list of {_type(field['items'], kind)}"
    return f"{name}{_bounds(field)}"


def _bounds(field: Schema) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    parts = []
    if "exclusiveMinimum" in field:
        parts.append(f"above {field['exclusiveMinimum']}")
    if low is not None and high is not None:
        parts.append(f"{low} to {high}")
    elif low is not None or high is not None:
        parts.append(f"at least {low}" if high is None else f"at most {high}")
    return f", {', '.join(parts)}" if parts else ""
