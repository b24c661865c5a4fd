"""What a managed network lets out besides what is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

RULES = "managedNetwork.outboundRules"


def let_out(declared: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The user's rules that are not, or no longer, declared: path, and what each leads to.

    Somebody approved them, or an update of the workspace left them there: it need not take away
    what it does not name. Azure's own rules have other categories.
    """
    known = {name.lower() for name in _within(declared, RULES)}
    for name, rule in _within(actual, f"properties.{RULES}").items():
        if not isinstance(rule, Mapping) or rule.get("category") != "UserDefined":
            continue
        if name.lower() not in known:
            yield f"{RULES}.{name}", rule.get("destination")


def _within(value: Any, way: str) -> Mapping[str, Any]:
    """The mapping at a dotted path, an empty one where there is none."""
    for key in way.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
