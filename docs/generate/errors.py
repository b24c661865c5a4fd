"""Generate the reference of the error codes: place, message, expected value, and remedy.

It parses the source for calls of `Problem`, `UserError.with_code` and similar classes, calls of
functions that pass their parameters to them, rules of `ml check`, and texts that scripts print in
the form `error[CODE]: …`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from docs.generate import source
from docs.generate.markdown import anchor, code, escape, table
from docs.generate.source import Function, Module, Scope
from ml.core.imports import ROOT

FOLDERS = ("infra", "ml", "policies")
MAKEFILES = ("Makefile", "framework.mk")
# Remedies of codes without a hint in the source.
REMEDIES = Path(__file__).parent / "remedies.yml"
# Class or class method that builds a problem → names of its parameters, in order.
CLASSES = {
    "ml.core.errors.Problem": ("code", "actual", "expected", "hint", "place", "severity", "source"),
    "ml.core.errors.UserError.with_code": ("code", "actual", "expected", "hint", "place"),
    "ml.features.timeline.FeatureError": ("code", "actual", "expected"),
    "ml.toolkit.data.tables.Flaw": ("code", "path", "line", "actual", "expected", "hint"),
    "infra.settings.checks.Fault": ("code", "actual", "expected", "hint", "keys"),
    "ml.backends.azure.errors.Known": ("code", "status", "pattern", "actual", "hint"),
}
FINDING = "ml.specs.check.rules.rule.Finding"
RULE = "ml.specs.check.rules.rule.rule"
ROLES = ("code", "actual", "expected", "hint")
_CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PRINTED = re.compile(
    r"(?P<severity>error|warning)\[(?P<code>[^\]]+)\]: (?P<actual>[^\n]*)"
    r"(?:\n\s*expected: (?P<expected>[^\n]*))?(?:\n\s*(?:hint: )?(?P<hint>[^\n]*))?"
)
_HELPERS = 3  # maximum depth of helper functions that pass on parameters


@dataclass(frozen=True)
class Raised:
    """A place in the source that raises a code, with the texts that it can print."""

    code: str
    place: str
    actual: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    hint: tuple[str, ...] = ()
    severity: str = "error"
    source: str = ""
    rule: str = ""


@dataclass(frozen=True)
class _Builder:
    """A function that builds a problem from its parameters.

    `roles` maps `code`, `actual` … to the expression in the function. `is_guess` says that a call
    was matched by the method's name only, so that it may be of another method.
    """

    scope: Scope
    roles: Mapping[str, ast.expr]
    severity: str
    is_guess: bool = False

    @property
    def key(self) -> tuple[str, int]:
        assert self.scope.function is not None
        return self.scope.module.name, self.scope.function.lineno


@dataclass
class Entry:
    """An error code with every place that raises it, and its entry in remedies.yml (`extra`)."""

    code: str
    raised: list[Raised]
    extra: Mapping[str, str]

    def _texts(self, role: str) -> list[str]:
        texts = [
            text for error in self.raised for text in getattr(error, role) if text.strip("… .")
        ]
        # Drop texts that another one with a placeholder matches: `ENV=ENV` and `ENV=…`.
        forms = [(text, re.escape(text).replace("…", "[A-Z_…]+")) for text in texts if "…" in text]
        return [
            text
            for text in dict.fromkeys(texts)
            if not any(text != template and re.fullmatch(form, text) for template, form in forms)
        ]

    @property
    def causes(self) -> list[str]:
        """Return the messages, and the sentences of rules."""
        rules = [error.rule for error in self.raised]
        return [*filter(None, [self.extra.get("cause"), *rules]), *self._texts("actual")]

    @property
    def expected(self) -> list[str]:
        """Return the expected values."""
        return self._texts("expected")

    @property
    def remedies(self) -> list[str]:
        """Return the remedies: the one in remedies.yml, and the hints."""
        return [*filter(None, [self.extra.get("remedy")]), *self._texts("hint")]


def entries() -> dict[str, Entry]:
    """Return every error code in the source, sorted → its entry."""
    found, _ = raised()
    remedies = yaml.safe_load(REMEDIES.read_text(encoding="utf-8"))
    by_code: dict[str, list[Raised]] = defaultdict(list)
    for error in found:
        by_code[error.code].append(error)
    return {name: Entry(name, by_code[name], remedies.get(name, {})) for name in sorted(by_code)}


@cache
def raised() -> tuple[tuple[Raised, ...], tuple[str, ...]]:
    """Return every place that raises a code, and places whose code could not be determined."""
    inventory = Inventory(source.read(ROOT, FOLDERS))
    every = [*inventory.problems(), *inventory.rules(), *inventory.printed(), *_made()]
    return tuple(dict.fromkeys(every)), tuple(sorted({*inventory.unresolved}))


class Inventory:
    """The problems that modules raise; `unresolved` has places whose code is not determined."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self.unresolved: list[str] = []
        # Name of a function or method → calls of that name. The object's type is unknown.
        self.calls: dict[str, list[tuple[Scope, ast.Call]]] = defaultdict(list)
        for module in modules.values():
            scopes: dict[Function | None, Scope] = {}
            for call, function in source.calls(module):
                if function not in scopes:
                    scopes[function] = Scope(modules, module, function)
                name = source.node_name(call.func)
                self.calls[name].append((scopes[function], call))

    # Calls.

    def problems(self) -> Iterator[Raised]:
        """Yield the places that build a problem by one of CLASSES, directly or by a helper."""
        for name, parameters in CLASSES.items():
            for scope, call in self.calls[name.rpartition(".")[2]]:
                # Skip the call in `UserError.with_code` itself, which passes on its arguments.
                if _dotted(scope, call.func) == name and scope.module.name != "ml.core.errors":
                    roles = _bind(call, parameters, scope)
                    severity = " ".join(scope.texts(roles.get("severity"))) or "error"
                    yield from self._from(scope, call, roles, severity)

    def _from(
        self, scope: Scope, call: ast.Call, roles: Mapping[str, ast.expr], severity: str
    ) -> Iterator[Raised]:
        chosen = {role: roles[role] for role in ROLES if role in roles}
        builder = _Builder(scope, chosen, severity)
        if scope.function is not None and any(_is_parameter(scope, e) for e in chosen.values()):
            from_callers = [*self._callers(builder, _HELPERS)]
            if from_callers:
                yield from from_callers
                return
        yield from self._raised(scope, (scope, call), builder)

    def _callers(self, builder: _Builder, depth: int) -> Iterator[Raised]:
        """Yield the problems of each call of the builder's function, at the place of the call."""
        function = builder.scope.function
        assert function is not None
        for caller, call in self.calls[function.name]:
            if not self._is_call_of(builder, caller, call):
                continue
            arguments = _bind(call, builder.scope.parameters)
            if not arguments:
                continue
            bound = builder.scope.bound_by(arguments, caller)
            passed = {
                role: _argument(builder.scope, expression, call)
                for role, expression in builder.roles.items()
            }
            inner = {role: e for role, e in passed.items() if e is not None}
            is_guess = builder.is_guess or caller.callee(call) is None
            is_chain = any(_is_parameter(caller, e) for e in inner.values())
            if is_chain and depth and caller.function is not None:
                outer = replace(
                    builder, scope=caller, roles={**builder.roles, **inner}, is_guess=is_guess
                )
                further = [*self._callers(outer, depth - 1)]
                if further:
                    yield from further
                    continue
            yield from self._raised(bound, (caller, call), replace(builder, is_guess=is_guess))

    def _is_call_of(self, builder: _Builder, caller: Scope, call: ast.Call) -> bool:
        called = caller.callee(call)
        if called is not None:
            return (called[0], called[1].lineno) == builder.key
        function = builder.scope.function
        if function is None or function.name.startswith("__") or not function.args.args:
            return False
        is_method = function.args.args[0].arg in ("self", "cls")
        return is_method and isinstance(call.func, ast.Attribute)

    def _raised(
        self, scope: Scope, site: tuple[Scope, ast.Call], builder: _Builder
    ) -> Iterator[Raised]:
        """Yield the problems of the call `site`; `scope` is the builder's, bound to the call."""
        place = f"{site[0].module.path}:{site[1].lineno}"
        for choice in _rows(scope, builder.roles):
            texts = {
                role: tuple(text.replace("{message}", source.ANY) for text in within.texts(e))
                for role, (within, e) in choice.items()
            }
            codes = [text for text in texts.pop("code", ()) if _CODE.fullmatch(text)]
            if not codes and isinstance(builder.roles.get("code"), ast.Name):
                codes = [*_returned(site[0].module)]  # the code is a result of another function
            if not codes and not builder.is_guess:
                self.unresolved.append(place)
            for name in codes:
                yield Raised(
                    code=name,
                    place=place,
                    actual=texts.get("actual", ()),
                    expected=texts.get("expected", ()),
                    hint=texts.get("hint", ()),
                    severity=builder.severity,
                )

    # Rules of `ml check`.

    def rules(self) -> Iterator[Raised]:
        """Yield the rules of `ml check`; the first line of the docstring is the cause."""
        for module in self.modules.values():
            for functions in module.functions.values():
                for function in functions:
                    for decorator in function.decorator_list:
                        scope = Scope(self.modules, module, function)
                        if isinstance(decorator, ast.Call) and (
                            _dotted(scope, decorator.func) == RULE
                        ):
                            yield self._rule(scope, function, decorator)

    def _rule(self, scope: Scope, function: Function, decorator: ast.Call) -> Raised:
        top = Scope(self.modules, scope.module)
        roles = _bind(decorator, ("name",))
        texts: dict[str, dict[str, None]] = {"actual": {}, "expected": {}, "hint": {}}
        for within, call in _findings(scope):
            arguments = _bind(call, ("keys", "actual", "expected", "hint"))
            for role, found in texts.items():
                found.update(dict.fromkeys(within.texts(arguments.get(role))))
        sentence = (ast.get_docstring(function) or "").splitlines()[0]
        return Raised(
            code="".join(top.texts(roles["name"])),
            place=f"{scope.module.path}:{function.lineno}",
            actual=tuple(texts["actual"]),
            expected=tuple(texts["expected"]),
            hint=tuple(texts["hint"]),
            severity="".join(top.texts(roles.get("severity"))) or "error",
            source="".join(top.texts(roles.get("source"))),
            rule=sentence,
        )

    # Texts that scripts print.

    def printed(self) -> Iterator[Raised]:
        """Yield the problems that scripts of a job print as text."""
        for module in self.modules.values():
            if module.name in ("ml.core.errors", "ml.toolkit.data.tables"):
                continue  # these modules format problems of others
            for node, function in _texts(module):
                scope = Scope(self.modules, module, function)
                yield from self._printed(scope, node)

    def _printed(self, scope: Scope, node: ast.expr) -> Iterator[Raised]:
        place = f"{scope.module.path}:{node.lineno}"
        for text in scope.texts(node):
            match = _PRINTED.match(text)
            if match is None:
                continue
            if match["code"] == "CODE" and scope.function is not None:
                roles: Any = {role: ast.Name(role) for role in ROLES if role in scope.parameters}
                builder = _Builder(scope, roles, match["severity"])
                if scope.function.name == "__init__":
                    yield from self._constructed(builder)
                yield from self._callers(builder, _HELPERS)
            elif _CODE.fullmatch(match["code"]):
                yield Raised(
                    code=match["code"],
                    place=place,
                    actual=(match["actual"],),
                    expected=(match["expected"] or "",),
                    hint=(match["hint"] or "",),
                    severity=match["severity"],
                )

    def _constructed(self, builder: _Builder) -> Iterator[Raised]:
        """Yield the problems of calls of an exception that formats itself, or of a subclass."""
        classes = [(node.name, node) for module in self.modules.values() for node in module.classes]
        names = {name for name, node in classes if builder.scope.function in node.body}
        while more := {
            name
            for name, node in classes
            if name not in names and names & {*map(source.node_name, node.bases)}
        }:
            names |= more
        for name in sorted(names):
            for caller, call in self.calls[name]:
                bound = builder.scope.bound_by(_bind(call, builder.scope.parameters), caller)
                yield from self._raised(bound, (caller, call), builder)


def _made() -> Iterator[Raised]:
    """Yield the problems that recipes of the makefiles print."""
    for name in MAKEFILES:
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            if match := re.search(r"(error|warning)\[([a-z0-9-]+)\]: ([^\"]*)", line):
                found = re.sub(r"\$\$(\w+)", lambda name: name[1].upper(), match[3])
                yield Raised(match[2], f"{name}:{number}", (found,), severity=match[1])


def _dotted(scope: Scope, target: ast.expr) -> str:
    """Return the dotted name, with its module, of the class or function that is called."""
    if isinstance(target, ast.Attribute):
        above = _dotted(scope, target.value)
        return f"{above}.{target.attr}" if above else ""
    if isinstance(target, ast.Name):
        here = f"{scope.module.name}.{target.id}"
        return scope.module.imports.get(target.id, here)
    return ""


def _bind(
    call: ast.Call, parameters: Iterable[str], scope: Scope | None = None
) -> dict[str, ast.expr]:
    """Return the arguments of a call by parameter name; skip those that cannot be matched."""
    arguments: dict[str, ast.expr] = {}
    names = iter(parameters)
    for argument in call.args:
        # Expand `*("a", b)` to its items.
        items = [argument]
        if isinstance(argument, ast.Starred):
            stated = scope.locals.get(source.node_name(argument.value), []) if scope else []
            value = stated[0] if stated else argument.value
            items = value.elts if isinstance(value, ast.Tuple) else items
        arguments.update(_named(names, items))
    arguments.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
    return arguments


def _named(names: Iterator[str], items: Iterable[ast.expr]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the next names, one for each item."""
    for item in items:
        name = next(names, None)
        if name is not None:
            yield name, item


def _is_parameter(scope: Scope, expression: ast.expr) -> bool:
    return (
        isinstance(expression, ast.Name)
        and expression.id in scope.parameters
        and expression.id not in scope.locals
    )


def _argument(scope: Scope, expression: ast.expr, call: ast.Call) -> ast.expr | None:
    """Return what a call passes for a parameter; None if the expression is not a parameter.

    `scope` is that of the called function.
    """
    if not _is_parameter(scope, expression):
        return None
    assert isinstance(expression, ast.Name)
    arguments = _bind(call, scope.parameters)
    return arguments.get(expression.id, scope.defaults.get(expression.id))


def _rows(
    scope: Scope, roles: Mapping[str, ast.expr]
) -> Iterator[dict[str, tuple[Scope, ast.expr]]]:
    """Yield role → (scope, expression).

    If the code is an item of a tuple that another function returns, there is a row for each such
    tuple; otherwise, there is one row with the roles unchanged.
    """
    as_they_are = {role: (scope, expression) for role, expression in roles.items()}
    name = roles.get("code")
    values = scope.locals.get(name.id, []) if isinstance(name, ast.Name) else []
    rows = [row for value in values for row in scope.returned(value)]
    if not rows:
        yield as_they_are
    for row_scope, row in rows:
        chosen = dict(as_they_are)
        for role, expression in roles.items():
            for value in scope.locals.get(source.node_name(expression), []):
                index = source.index_of(value)
                if index is not None and index < len(row.elts):
                    chosen[role] = (row_scope, row.elts[index])
        yield chosen


def _returned(module: Module) -> Iterator[str]:
    """Yield the codes in `return "a-code", message` statements of a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and node.value.elts:
            first = node.value.elts[0]
            text = first.value if isinstance(first, ast.Constant) else None
            if isinstance(text, str) and "-" in text and _CODE.fullmatch(text):
                yield text


def _findings(scope: Scope) -> Iterator[tuple[Scope, ast.Call]]:
    """Yield calls of `Finding` in a rule's function and in functions of its module it calls."""
    seen: set[int] = set()
    waiting = [scope.function]
    while waiting:
        function = waiting.pop()
        if function is None or function.lineno in seen:
            continue
        seen.add(function.lineno)
        within = Scope(scope.modules, scope.module, function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                if _dotted(within, node.func) == FINDING:
                    yield within, node
                waiting += scope.module.functions.get(source.node_name(node.func), [])


def _texts(module: Module) -> Iterator[tuple[ast.expr, Function | None]]:
    """Yield string expressions of a module that begin with `error[` or `warning[`."""
    waiting: list[tuple[ast.AST, Function | None]] = [(module.tree, None)]
    while waiting:
        node, function = waiting.pop()
        first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
        begins = isinstance(first, ast.Constant) and isinstance(first.value, str)
        if begins and re.match(r"(error|warning)\[", str(first.value)):  # type: ignore[attr-defined]
            assert isinstance(node, ast.expr)
            yield node, function
            continue
        inside = node if isinstance(node, Function) else function
        waiting.extend((child, inside) for child in ast.iter_child_nodes(node))


# The page.


def page() -> str:
    """Return the page: all codes in alphabetical order, each with an anchor `error-CODE`."""
    parts = []
    letter = ""
    for entry in entries().values():
        if entry.code[0] != letter:
            letter = entry.code[0]
            parts.append(f"## {letter.upper()}")
        parts.append(_section(entry))
    return "\n\n".join(parts)


def _section(entry: Entry) -> str:
    lines = [anchor("error", entry.code), f"### {entry.code}"]
    if all(error.severity == "warning" for error in entry.raised):
        lines.append("A warning: the command continues.")
    lines += [f"Rule: {escape(error.rule)}" for error in entry.raised if error.rule]
    lines += [escape(entry.extra[name]) for name in ("cause", "remedy") if name in entry.extra]
    # Places with the same texts share a row.
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for error in entry.raised:
        texts = (_either(error.actual), _either(error.expected), _either(error.hint))
        places[texts].append(code(error.place))
    rows = [(*texts, ", ".join(dict.fromkeys(sites))) for texts, sites in places.items()]
    head = ("Message", "Expected", "Remedy", "Raised in")
    if len(rows) == 1:
        fields = zip(head, rows[0], strict=True)
        lines.append("\n".join(f":{name}: {text}" for name, text in fields if text))
    else:
        lines.append(table(head, rows))
    if sources := dict.fromkeys(error.source for error in entry.raised if error.source):
        lines.append(f"Source: {escape('; '.join(sources))}.")
    return "\n\n".join(lines).replace("=\n\n###", "=\n###")


def _either(texts: Iterable[str]) -> str:
    """Join the texts that a place can print to one text."""
    return "; or ".join(escape(text) for text in texts if text.strip("… ."))
