"""Parse the product's source without importing it: constants, functions, possible texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
# Placeholder for a value that is known only at run time and has no descriptive name.
ANY = "…"
# Maximum possible texts of an expression.
MOST_TEXTS = 6
_DEPTH = 6
# Methods of str that are followed, and the replacement fields of `format`.
_METHODS = ("format", "lower", "strip")
_FIELD = re.compile(r"\{[^{}]*\}")
# Variable names that do not describe their value; they become ANY.
_VAGUE = re.compile(
    "actual|each|error|expected|found|hint|how|message|of|one|problem|reason|state|text|what|why"
)


@dataclass
class Module:
    """A module of the product; `path` is relative to the repository."""

    path: str
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    functions: dict[str, list[Function]] = field(default_factory=dict)
    classes: list[ast.ClassDef] = field(default_factory=list)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    locals: dict[Function, dict[str, list[ast.expr]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read(root: Path, folders: Iterable[str]) -> dict[str, Module]:
    """Return the modules in the folders by dotted name."""
    modules = {}
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            module = Module(file.relative_to(root).as_posix(), tree)
            _index(module)
            modules[module.name] = module
    return modules


def _index(module: Module) -> None:
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            module.functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            module.classes.append(node)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                module.imports[alias.asname or alias.name] = alias.name
    for statement in module.tree.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                module.constants.update(_pairs(target, statement.value))
        elif isinstance(statement, ast.AnnAssign) and statement.value:
            module.constants.update(_pairs(statement.target, statement.value))


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value) for the names that an assignment binds, unpacking tuples."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
        for index, (left, right) in enumerate(zip(target.elts, values, strict=False)):
            is_item = not isinstance(value, ast.Tuple)
            yield from _pairs(left, _Item(value, index) if is_item else right)


class _Item(ast.expr):
    """A synthetic expression: item `index` of the tuple that `value` evaluates to."""

    def __init__(self, value: ast.expr, index: int) -> None:
        super().__init__()
        self.value, self.index = value, index


@dataclass(frozen=True)
class Scope:
    """The scope to evaluate expressions in: a function of a module, or the module itself."""

    modules: Mapping[str, Module]
    module: Module
    function: Function | None = None
    bound: Mapping[str, list[str]] = field(default_factory=dict)

    def bound_by(self, arguments: Mapping[str, ast.expr], caller: Scope) -> Scope:
        """Return the scope with parameters bound to the possible texts of a call's arguments.

        `caller` is the scope of the call.
        """
        bound = {name: self.texts(value) for name, value in self.defaults.items()}
        bound |= {name: caller.texts(value) for name, value in arguments.items()}
        return replace(self, bound=bound)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the function's parameters, without `self` and `cls`."""
        if self.function is None:
            return ()
        names = self.function.args
        every = [argument.arg for argument in (*names.posonlyargs, *names.args, *names.kwonlyargs)]
        return tuple(name for name in every if name not in ("self", "cls"))

    @cached_property
    def defaults(self) -> dict[str, ast.expr]:
        """Return the defaults of the function's parameters by name."""
        if self.function is None:
            return {}
        names = self.function.args
        positional = [*names.posonlyargs, *names.args]
        with_default = positional[len(positional) - len(names.defaults) :]
        pairs = [*zip(with_default, names.defaults, strict=True)]
        pairs += [(a, d) for a, d in zip(names.kwonlyargs, names.kw_defaults, strict=True) if d]
        return {argument.arg: value for argument, value in pairs}

    @property
    def locals(self) -> dict[str, list[ast.expr]]:
        """Return each local name → every expression that the function assigns to it."""
        if self.function is None:
            return {}
        if self.function not in self.module.locals:
            self.module.locals[self.function] = self._locals(self.function)
        return self.module.locals[self.function]

    def _locals(self, function: Function) -> dict[str, list[ast.expr]]:
        found: dict[str, list[ast.expr]] = {}
        for node in ast.walk(function):
            pairs: list[tuple[str, ast.expr]] = []
            if isinstance(node, ast.Assign):
                pairs = [pair for target in node.targets for pair in _pairs(target, node.value)]
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
                pairs = [*_pairs(node.target, node.value)]
            elif isinstance(node, ast.For | ast.comprehension):
                pairs = [*_iterated(node.target, self.constant(node.iter) or node.iter)]
            for name, value in pairs:
                found.setdefault(name, []).append(value)
        return found

    def constant(self, expression: ast.expr) -> ast.expr | None:
        """Return the value of the module constant that the expression refers to, else None."""
        if isinstance(expression, ast.Name):
            if expression.id in self.module.constants:
                return self.module.constants[expression.id]
            dotted = self.module.imports.get(expression.id, "")
        elif isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
            dotted = self.module.imports.get(expression.value.id, "") + "." + expression.attr
        else:
            return None
        module, _, name = dotted.rpartition(".")
        return self.modules[module].constants.get(name) if module in self.modules else None

    def callee(self, call: ast.Call) -> tuple[str, Function] | None:
        """Return the module and definition of a called function; None if it is not known."""
        target = call.func
        if isinstance(target, ast.Name):
            name, dotted = target.id, self.module.imports.get(target.id, "")
        elif isinstance(target, ast.Attribute):
            name = target.attr
            owner = target.value.id if isinstance(target.value, ast.Name) else ""
            if owner not in ("self", "cls") and owner not in self.module.imports:
                return None
            dotted = f"{self.module.imports[owner]}.{name}" if owner in self.module.imports else ""
        else:
            return None
        module = dotted.rpartition(".")[0] if dotted else self.module.name
        found = self.modules[module].functions.get(name, []) if module in self.modules else []
        return (module, found[0]) if found else None

    # Texts.

    def texts(self, expression: ast.expr | None, depth: int = _DEPTH) -> list[str]:
        """Return at most MOST_TEXTS possible texts of an expression.

        A part that is known only at run time becomes its name in capitals, or ANY.
        """
        if expression is None:
            return []
        texts = dict.fromkeys(self._texts(expression, depth))
        return [*islice(texts, MOST_TEXTS)]

    def _texts(self, node: ast.expr, depth: int) -> Iterator[str]:
        if isinstance(node, ast.Constant):
            yield "" if node.value is None else str(node.value)
        elif depth == 0:
            yield ANY
        elif isinstance(node, ast.JoinedStr):
            yield from self._joined(node.values, depth - 1)
        elif isinstance(node, ast.FormattedValue):
            yield from self.texts(node.value, depth - 1)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            yield from self._joined([node.left, node.right], depth - 1)
        elif isinstance(node, ast.IfExp):
            yield from (*self.texts(node.body, depth), *self.texts(node.orelse, depth))
        elif isinstance(node, ast.BoolOp):
            yield from (text for value in node.values for text in self.texts(value, depth))
        elif isinstance(node, _Item):
            yield from self._item(node, depth - 1)
        elif (constant := self.constant(node)) is not None and node_name(node).isupper():
            yield from self.texts(constant, depth - 1)
        elif isinstance(node, ast.Name) and self.bound.get(node.id):
            yield from self.bound[node.id]
        elif isinstance(node, ast.Name) and self.locals.get(node.id):
            for value in self.locals[node.id]:
                yield from self.texts(value, depth - 1)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            yield from self.texts(node.value, depth)  # a slice is shown as the whole text
        elif isinstance(node, ast.Call):
            yield from self._called(node, depth - 1)
        else:
            yield _placeholder(node)

    def _joined(self, parts: list[ast.expr], depth: int) -> Iterator[str]:
        choices = [self.texts(part, depth) or [""] for part in parts]
        for texts in islice(product(*choices), MOST_TEXTS):
            yield "".join(texts)

    def _item(self, node: _Item, depth: int) -> Iterator[str]:
        """Yield the possible texts of an item of a tuple, as `_tuples` finds it."""
        for value, scope in self._tuples(node.value):
            if isinstance(value, ast.Tuple) and node.index < len(value.elts):
                yield from scope.texts(value.elts[node.index], depth)

    def _tuples(self, value: ast.expr) -> Iterator[tuple[ast.expr, Scope]]:
        if isinstance(value, ast.IfExp):
            yield from (*self._tuples(value.body), *self._tuples(value.orelse))
        elif isinstance(value, ast.Call) and (called := self.callee(value)):
            scope = Scope(self.modules, self.modules[called[0]], called[1])
            for node in ast.walk(called[1]):
                if isinstance(node, ast.Return) and node.value is not None:
                    yield from ((choice, scope) for choice in _branches(node.value))
        else:
            yield value, self

    def returned(self, value: ast.expr) -> list[tuple[Scope, ast.Tuple]]:
        """Return the tuples that a called function returns, with its scope.

        `value` must be an item of the call's result; else return [].
        """
        if not isinstance(value, _Item) or not isinstance(value.value, ast.Call):
            return []
        tuples = self._tuples(value.value)
        return [(scope, node) for node, scope in tuples if isinstance(node, ast.Tuple)]

    def _called(self, node: ast.Call, depth: int) -> Iterator[str]:
        """Yield the possible texts of a call: of a str method, or of a function in the source."""
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            yield from (_FIELD.sub(ANY, text) for text in self.texts(node.func.value, depth))
        elif (called := self.callee(node)) and depth > 2:
            scope = Scope(self.modules, self.modules[called[0]], called[1])
            returned = [child for child in ast.walk(called[1]) if isinstance(child, ast.Return)]
            literal = [statement.value for statement in returned if _is_text(statement.value)]
            texts = [text for value in literal for text in scope.texts(value, depth - 1)]
            yield from texts or [ANY]
        else:
            yield ANY


def _branches(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from (*_branches(value.body), *_branches(value.orelse))
    else:
        yield value


def _is_text(node: ast.expr | None) -> bool:
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_constant or isinstance(node, ast.JoinedStr | ast.IfExp | ast.BinOp)


def _iterated(target: ast.expr, values: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value) for each value of a literal list or dict that a loop iterates over."""
    if isinstance(values, ast.Tuple | ast.List):
        for value in values.elts:
            yield from _pairs(target, value)
    elif isinstance(values, ast.Dict):
        for key in values.keys:
            if key is not None:
                yield from _pairs(target, key)


def node_name(node: ast.expr) -> str:
    """Return the last part of a name: `a.b.c` → c; "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _placeholder(node: ast.expr) -> str:
    name = node_name(node).strip("_")
    is_name = re.fullmatch(r"[a-z][a-z_]{2,}", name) and not _VAGUE.fullmatch(name)
    return name.upper() if is_name else ANY


def calls(module: Module) -> Iterator[tuple[ast.Call, Function | None]]:
    """Yield every call of a module with its innermost function; None at the top level."""
    waiting: list[tuple[ast.AST, Function | None]] = [(module.tree, None)]
    while waiting:
        node, function = waiting.pop()
        if isinstance(node, ast.Call):
            yield node, function
        inside = node if isinstance(node, Function) else function
        waiting.extend((child, inside) for child in ast.iter_child_nodes(node))


def index_of(value: ast.expr) -> int | None:
    """Return the index of an `_Item`; None for other expressions."""
    return value.index if isinstance(value, _Item) else None
