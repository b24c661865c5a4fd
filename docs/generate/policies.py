"""Generate the reference of the infrastructure rules in policies/infra."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from docs.generate.markdown import anchor, code, escape, paragraphs
from policies import infra
from policies.infra import limits
from policies.infra.rule import Rule, Rules

# The module that registers the rules with Pulumi, whose packages the site's build lacks.
_PACK = "pack"


def modules() -> dict[str, Rules]:
    """Return the name of each module that declares rules → its rules."""
    names = sorted(module.name for module in pkgutil.iter_modules(infra.__path__))
    found = {}
    for name in names:
        if name not in (_PACK, "__main__"):
            rules = getattr(importlib.import_module(f"policies.infra.{name}"), "RULES", None)
            if isinstance(rules, Rules):
                found[name] = rules
    return found


def page() -> str:
    """Return the page: a table of rules for each module."""
    every = modules()
    stacks = limits.load([rule.name for rules in every.values() for rule in rules])
    parts = []
    for name, rules in every.items():
        module = importlib.import_module(f"policies.infra.{name}")
        parts += [f"## {name}", escape((module.__doc__ or "").split("\n\n")[0])]
        for rule in rules:
            advice = [stack for stack, limit in stacks.items() if rule.name in limit.advice]
            parts += _rule(rule, advice)
    return "\n\n".join(parts)


def _rule(rule: Rule, advice: list[str]) -> Iterator[str]:
    yield f"{anchor('policy', rule.name)}\n### {rule.name}"
    check = rule.check or rule.stack_check
    yield f"{escape(rule.title)} {paragraphs(inspect.getdoc(check) or '')}".strip()
    kinds = ", ".join(map(code, rule.kinds))
    subject = "the whole stack" if rule.stack_check else kinds or "every resource"
    level = f"mandatory; advisory in {', '.join(advice)}" if advice else "mandatory"
    yield f":Level: {level}\n:Checks: {subject}\n:Source: {escape(rule.sources)}"
