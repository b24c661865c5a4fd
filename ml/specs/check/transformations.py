"""Static analysis of a feature set's transformation code, without importing or running it.

`ml features plan` runs the transformation and finds the remaining errors.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path

# Window function → type of the feature that it computes; `last` has the type of its column.
WINDOW_TYPES = {
    **dict.fromkeys(("count", "distinct"), "long"),
    **dict.fromkeys(("sum", "mean", "time_since"), "double"),
}
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
# Code that imports other modules may get column names from them.
_IMPORTS = re.compile(
    r"(__future__|collections|dataclasses|datetime|math|numpy|polars|typing|ml\.features)(\..*)?"
)
Value = str | timedelta | int | float | None


class _NotConstantError(Exception):
    """An expression is not a constant that can be evaluated without running code."""


class Code:
    """A module of transformation code.

    Raises OSError, SyntaxError, ValueError or RecursionError for a file that cannot be parsed.
    """

    def __init__(self, file: Path) -> None:
        self._module = ast.parse(file.read_bytes())
        self._nodes = [*ast.walk(self._module)]

    def transforms(self, name: str) -> bool:
        """Return True if the class has a method `transform` or may inherit one."""
        body = self._module.body
        imports = [item for item in body if isinstance(item, ast.Import | ast.ImportFrom)]
        imported = {alias.asname or alias.name for item in imports for alias in item.names}
        classes = {item.name: item for item in body if isinstance(item, ast.ClassDef)}
        seen, queue = set[str](), [name]
        while queue:
            name = queue.pop()
            if name in imported:
                return True
            if name in seen or name not in classes:
                continue
            seen.add(name)
            methods = [i.name for i in classes[name].body if isinstance(i, ast.FunctionDef)]
            bases = classes[name].bases
            if "transform" in methods or not all(isinstance(base, ast.Name) for base in bases):
                return True
            queue += [base.id for base in bases if isinstance(base, ast.Name)]
        return False

    def may_compute(self, feature: str) -> bool:
        """Return True if the code contains the feature's name or may construct it."""
        return any(fnmatchcase(feature, pattern) for pattern in self._names())

    def _names(self) -> Iterator[str]:
        """Yield `fnmatch` patterns of all strings and keywords; "*" if code builds names."""
        for node in self._nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield escape(node.value)
            elif isinstance(node, ast.keyword):
                yield node.arg or "*"
            elif isinstance(node, ast.JoinedStr):
                yield "".join(
                    escape(str(part.value)) if isinstance(part, ast.Constant) else "*"
                    for part in node.values
                )
            elif _makes_names(node):
                yield "*"

    def calls(
        self, name: str, fields: Sequence[str], defaults: Mapping[str, Value]
    ) -> Iterator[tuple[int, dict[str, Value]]]:
        """Yield (line, arguments by field) of each call of `name(*fields)`.

        Arguments that are not constants are omitted; missing ones have their default.
        """
        constants = self._constants()
        for node in self._nodes:
            if not isinstance(node, ast.Call) or _called(node) != name or _unpacks(node):
                continue
            arguments = dict(zip(fields, node.args, strict=False))
            arguments |= {str(word.arg): word.value for word in node.keywords}
            values = {field: value for field, value in defaults.items() if field not in arguments}
            for field, argument in arguments.items():
                with suppress(_NotConstantError):
                    values[field] = _value(argument, constants)
            yield node.lineno, values

    def _constants(self) -> dict[str, Value]:
        """Return the constants of the module by name; names that are assigned twice are omitted."""
        bound = Counter(
            node.id if isinstance(node, ast.Name) else node.arg
            for node in self._nodes
            if isinstance(node, ast.arg)
            or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
        )
        constants: dict[str, Value] = {}
        for statement in self._module.body:
            if isinstance(statement, ast.Assign):
                targets = statement.targets
            elif isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            else:
                continue
            for target in targets:
                names: list[ast.expr] = [target]
                values: list[ast.expr | None] = [statement.value]
                if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                    names, values = target.elts, [*statement.value.elts]
                for name, value in zip(names, values, strict=False):
                    if isinstance(name, ast.Name) and bound[name.id] == 1:
                        with suppress(_NotConstantError):
                            constants[name.id] = _value(value, constants)
        return constants


def _makes_names(node: ast.AST) -> bool:
    """Return True if a node may produce a column name that is not a literal in the code."""
    if isinstance(node, ast.BinOp):
        return any(
            isinstance(side, ast.JoinedStr)
            or (isinstance(side, ast.Constant) and isinstance(side.value, str))
            for side in (node.left, node.right)
        )
    if isinstance(node, ast.Attribute):  # "{}_1h".format, pl.all().name.suffix
        texts = ast.JoinedStr | ast.Constant
        is_name = isinstance(node.value, ast.Attribute) and node.value.attr == "name"
        return is_name or isinstance(node.value, texts) or node.attr in ("format", "pivot")
    if isinstance(node, ast.Import):
        return not all(_IMPORTS.fullmatch(alias.name) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or not _IMPORTS.fullmatch(node.module or "")
    return False


def _unpacks(call: ast.Call) -> bool:
    """Return True if a call has arguments `*x` or `**x`."""
    has_star = any(isinstance(argument, ast.Starred) for argument in call.args)
    return has_star or any(word.arg is None for word in call.keywords)


def _called(call: ast.Call) -> str:
    """Return the called name without its module: `Window` for `ml.Window(…)`; "" if unnamed."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _value(node: ast.AST | None, constants: Mapping[str, Value]) -> Value:
    """Return the value of a constant expression; raise _NotConstantError for any other."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    try:
        if isinstance(node, ast.BinOp):
            sides = [_value(side, constants) for side in (node.left, node.right)]
            if not any(isinstance(side, str) for side in sides):
                return _OPERATORS[type(node.op)](*sides)  # type: ignore[no-any-return]
        if isinstance(node, ast.Call) and _called(node) == "timedelta":
            numbers = [_value(argument, constants) for argument in node.args]
            named = {str(word.arg): _value(word.value, constants) for word in node.keywords}
            return timedelta(*numbers, **named)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        pass
    raise _NotConstantError
