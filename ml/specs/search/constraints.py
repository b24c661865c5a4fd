"""Constraints on a trial's values: arithmetic and comparisons over hyperparameters.

Python's parser parses an expression. Only these nodes are allowed: names, numbers, text, true and
false, `+ - * / // % **`, comparisons (also `in` a list), `and or not`, `a if b else c`, and calls
of a few functions. `model.depth` is no attribute, but the name of a hyperparameter in a branch of
the nested choice `model`.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ml.core.errors import Place, Problem
from ml.specs.plan.plans import Dimension

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": round,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "given": bool,  # `given(name)`: see `Expression.holds`
}
_WORDS: Mapping[str, object] = {"true": True, "false": False, "True": True, "False": False}
_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARED: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_UNARY: Mapping[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
# Limits of an expression's length (characters) and nesting.
MAX_LETTERS, MAX_DEPTH = 500, 50
_MAX_POWER = 1000


class InvalidExpression(Exception):
    """The error of an expression that is not allowed or cannot be evaluated."""

    def __init__(self, actual: str, expected: str = "", hint: str = "") -> None:
        super().__init__(actual)
        self.actual, self.expected, self.hint = actual, expected, hint

    def problem(self, place: Place) -> Problem:
        """Return the problem of the constraint at `place`."""
        return Problem("invalid-constraint", self.actual, self.expected, self.hint, place)


@dataclass(frozen=True)
class Expression:
    """A parsed constraint."""

    text: str
    names: frozenset[str]  # hyperparameters that it uses
    _tree: ast.expr

    @property
    def meaning(self) -> str:
        """Return the normalised text: equal if only whitespace and redundant brackets differ."""
        return ast.unparse(self._tree)

    def holds(self, values: Mapping[str, object], partial: bool = False) -> bool:
        """Return True if the values satisfy the constraint.

        It is also True if evaluation needs a parameter that has no value, because it belongs to
        another branch of a nested choice; `given(name)` tests for that. With `partial`, it is True
        if any parameter lacks a value. Raises InvalidExpression if it cannot be evaluated (division
        by zero).
        """
        if partial and not self.names <= values.keys():
            return True
        try:
            return bool(_value(self._tree, values))
        except _Absent:
            return True
        except (ArithmeticError, ValueError, TypeError) as error:
            inputs = ", ".join(f"{name}={values.get(name)}" for name in sorted(self.names))
            message = f"`{self.text}` cannot be evaluated for {inputs}: {error}"
            hint = "exclude that case first: `x == 0 or 1 / x > 2`"
            raise InvalidExpression(message, "true or false for every point", hint) from None


def names_of(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten a trial's values: those of a nested choice have dotted names (`model.depth`)."""
    named_values: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            named_values |= names_of(value, f"{prefix}{name}.")
        else:
            named_values[f"{prefix}{name}"] = value
    return named_values


def names_in(space: Mapping[str, object], prefix: str = "") -> set[str]:
    """Return every (dotted) name of `names_of` that a trial of the space may have."""
    names: set[str] = set()
    for name, member in space.items():
        choices = (
            member.args if isinstance(member, Dimension) and member.kind == "choice" else (member,)
        )
        for choice in choices:
            if isinstance(choice, Mapping):
                names |= names_in(choice, f"{prefix}{name}.")
            else:
                names.add(f"{prefix}{name}")
    return names


def parse(text: str, allowed: Collection[str]) -> Expression:
    """Parse a constraint over the `allowed` names; raises InvalidExpression for anything else."""
    if len(text) > MAX_LETTERS:
        raise InvalidExpression(f"a constraint of {len(text)} letters", f"at most {MAX_LETTERS}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        message = f"`{text}` is not an expression: {reason}"
        raise InvalidExpression(message, "for example: depth * width <= 4096") from None
    names: set[str] = set()
    _demand(tree, set(allowed), names, text, MAX_DEPTH)
    if not names:
        raise InvalidExpression(f"`{text}` names no hyperparameter", f"one of {_listed(allowed)}")
    return Expression(text.strip(), frozenset(names), tree)


def _demand(node: ast.AST, allowed: set[str], names: set[str], text: str, depth: int) -> None:
    """Add the node's names to `names`; raise InvalidExpression if it is too deep or not allowed."""
    if not depth:
        raise InvalidExpression(
            f"`{text}` is nested more than {MAX_DEPTH} deep", "a simpler expression"
        )
    name = _name(node)
    if name is not None:
        if name in allowed:
            names.add(name)
        elif name not in _WORDS:
            near = difflib.get_close_matches(name, sorted(allowed), n=1)
            raise InvalidExpression(
                f"`{name}` in `{text}` is not a hyperparameter of this sweep",
                f"one of {_listed(allowed)}",
                f"did you mean `{near[0]}`?" if near else "text needs quotes: 'gbdt'",
            )
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, int | float | str | bool):
            raise InvalidExpression(
                f"`{text}` contains {node.value!r}", "numbers, text, true and false"
            )
    elif isinstance(node, ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if called not in FUNCTIONS or node.keywords:
            raise InvalidExpression(
                f"`{text}` calls `{called}`", f"no call but {', '.join(FUNCTIONS)}"
            )
        if called == "given" and not (len(node.args) == 1 and _name(node.args[0])):
            raise InvalidExpression(
                f"`{ast.unparse(node)}` does not name a hyperparameter", "given(NAME)"
            )
        for argument in node.args:
            _demand(argument, allowed, names, text, depth - 1)
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        _demand(node.left, allowed, names, text, depth - 1)
        _demand(node.right, allowed, names, text, depth - 1)
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        _demand(node.operand, allowed, names, text, depth - 1)
    elif isinstance(node, ast.Compare) and all(
        type(operation) in _COMPARED for operation in node.ops
    ):
        for part in (node.left, *node.comparators):
            _demand(part, allowed, names, text, depth - 1)
    elif isinstance(node, ast.BoolOp | ast.IfExp | ast.List | ast.Tuple):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                _demand(child, allowed, names, text, depth - 1)
    else:
        raise InvalidExpression(
            f"`{text}` contains `{ast.unparse(node)}`",
            "names, numbers, text, arithmetic, comparisons, and, or, not",
        )


class _Absent(Exception):
    """An expression uses a name without a value."""


def _name(node: ast.AST) -> str | None:
    """Return the name that a node represents (`depth`, `model.depth`); None for other nodes."""
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _value(node: ast.expr, values: Mapping[str, object]) -> Any:
    match node:
        case ast.Name() | ast.Attribute():
            name = _name(node) or ""
            if name not in values and name not in _WORDS:
                raise _Absent
            return values[name] if name in values else _WORDS[name]
        case ast.Constant(value=constant):
            return constant
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, values) for part in parts]
        case ast.BoolOp(op=op, values=parts):
            result: Any = isinstance(op, ast.And)
            for part in parts:
                result = _value(part, values)
                if bool(result) is not isinstance(op, ast.And):
                    break
            return result
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _value(body if _value(test, values) else otherwise, values)
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_value(operand, values))
        case ast.BinOp(left=left, op=op, right=right):
            left_value, right_value = _value(left, values), _value(right, values)
            _demand_small(op, left_value, right_value)
            return _BINARY[type(op)](left_value, right_value)
        case ast.Compare(left=left, ops=ops, comparators=others):
            left_value = _value(left, values)
            for compared, part in zip(ops, others, strict=True):
                right_value = _value(part, values)
                if not _COMPARED[type(compared)](left_value, right_value):
                    return False
                left_value = right_value
            return True
        case ast.Call(func=ast.Name(id=name), args=arguments):
            if name == "given":
                return _name(arguments[0]) in values
            return FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
    raise TypeError(f"{ast.unparse(node)} is not supported")


def _demand_small(op: ast.operator, left: object, right: object) -> None:
    """Raise TypeError for arithmetic on text and lists, ValueError for huge powers."""
    if isinstance(left, str) != isinstance(right, str) or isinstance(left, str | list):
        raise TypeError("text and lists can be compared only")
    if isinstance(op, ast.Pow) and isinstance(right, int | float) and abs(right) > _MAX_POWER:
        raise ValueError(f"a power of {right:g}")
    if isinstance(op, ast.Pow) and isinstance(left, int) and abs(left) > 10**9:
        raise ValueError(f"a power of {left:g}")


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
