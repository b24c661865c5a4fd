"""Attacks through a spec: commands in values, and secrets in plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ml.core.documents import Key, strings, walk
from ml.specs import expressions
from ml.specs.check import secrets
from ml.specs.check.nodes import Node
from ml.specs.check.rules.registry import Finding, Subject, rule
from ml.specs.expressions import Reference, literal

Value = tuple[tuple[Key, ...], str]

_PARENT_INPUT = re.compile(r"\s*\$\{\{\s*parent\.inputs\.([^\s}]+)\s*\}\}\s*$")


@rule(
    "shell-metacharacter",
    scope="spec",
    source="Azure ML puts literals verbatim into a command that bash runs (azure-ai-ml 1.35)",
)
def shell_metacharacter(subject: Subject) -> Iterator[Finding]:
    """A literal never becomes a command: text that the shell would interpret is in quotes."""
    seen = set()
    for node in subject.nodes:
        for reference in expressions.references(node.command[1] if node.command else ""):
            for keys, value in _values(node, reference):
                problem = expressions.dangerous(value, reference)
                if problem and (keys, reference.quoting) not in seen:
                    seen.add((keys, reference.quoting))
                    yield Finding(keys, problem.found, problem.expected, problem.hint)


def _values(node: Node, reference: Reference) -> Iterator[Value]:
    """What a placeholder may be replaced by, each value with where it is written."""
    if reference.source == "search_space":
        at = (*node.keys, "search_space", reference.name, "values")
        values = node.get("search_space", reference.name, "values")
        for index, value in enumerate(values if isinstance(values, list) else []):
            for below, text in strings(value):
                yield (*at, index, *below), text
    elif reference.source == "inputs":
        yield from _input(node, reference.name)


def _input(node: Node, name: str) -> Iterator[Value]:
    """The literal that an input has: its own, its pipeline's, or its component's default."""
    value = node.get("inputs", name)
    keys = (*node.keys, "inputs", name)
    if isinstance(value, dict):
        if node.is_component:
            keys, value = (*keys, "default"), value.get("default")
        elif value.get("mode") == "direct":
            keys, value = (*keys, "path"), value.get("path")
        else:
            return
    if isinstance(value, str):
        bound = _PARENT_INPUT.match(value)
        if bound and node.parent is not None:
            yield from _input(node.parent, bound[1])
        elif "${{" not in value:
            yield keys, literal(value)


@rule("plaintext-secret", scope="spec", source="reliability: a spec in git is read by everybody")
def plaintext_secret(subject: Subject) -> Iterator[Finding]:
    """A secret is named, never written: specs are in git and on every node."""
    for keys, value in walk(subject.spec.document.data):
        if not isinstance(value, str | int) or isinstance(value, bool):
            continue
        name = _name(keys)
        what = secrets.secret_in(name, value, _is_variable(keys))
        if not what and keys[-1:] == ("command",):
            variable = secrets.secret_in_command(str(value))
            what, name = (f"a secret for `{variable}`", "command") if variable else ("", name)
        if what:
            yield Finding(
                keys,
                f"`{name}` contains {what} in plain text",
                "a reference to Key Vault, or the job's identity",
                "remove it and revoke it: anyone who read this file has it",
            )


def _name(keys: tuple[Key, ...]) -> str:
    """The name that says what a value is: `inputs.api_key.default` is `api_key`."""
    names = [str(key) for key in keys if not isinstance(key, int)]
    if len(names) > 1 and names[-1] in {"default", "value", "path"}:
        return names[-2]
    return names[-1] if names else ""


def _is_variable(keys: tuple[Key, ...]) -> bool:
    """Whether a node is an environment variable or a credential, where any value is one."""
    return "environment_variables" in keys[:-1] or "credentials" in keys[:-1]
