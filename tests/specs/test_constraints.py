"""Constraints: what they can say, what they cannot, and what they mean."""

from __future__ import annotations

import pytest

from ml.core.errors import Place
from ml.specs.plan.plans import Dimension
from ml.specs.search.constraints import InvalidExpression, names_in, names_of, parse

HERE = Place("sweep.hints.yml", 1)
VALUES = {"a": 3, "b": 0.5, "kind": "tree", "on": True, "model.depth": 7}
KNOWN = {*VALUES, "model.penalty"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a < 4", True),
        ("a < 3", False),
        ("a <= 3 <= 3 < model.depth", True),
        ("a * b == 1.5", True),
        ("a ** 2 - 1 >= 8 and not a % 2 == 0", True),
        ("kind == 'tree'", True),
        ("kind in ['linear', 'forest']", False),
        ("kind not in ('linear', 'forest')", True),
        ("on", True),
        ("on == false", False),
        ("on != True", False),
        ("log(a) < 1.1 < exp(b)", True),
        ("max(a, b) / min(a, b) == 6", True),
        ("abs(-a) == 3 and round(b + 0.1) == 1 and sqrt(a + 1) == 2", True),
        ("log2(a + 1) == 2 and log10(a + 7) == 1 and a // 2 == 1", True),
        ("(a if kind == 'tree' else 100) < 10", True),
        ("model.penalty > 100", True),  # says nothing of a point of another branch
        ("a < 4 and model.penalty > 100", True),
        ("a > 4 and model.penalty > 100", False),
        ("given(model.depth)", True),
        ("given(model.penalty)", False),
        ("not given(model.penalty) or a > 5", True),
    ],
)
def test_values_of_expressions(text: str, holds: bool) -> None:
    """Arithmetic as Python's; a parameter of another branch leaves the matter open: it holds."""
    assert parse(text, KNOWN).holds(VALUES) is holds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.real < 1", "`a.real`"),
        ("a.__class__", "`a.__class__`"),
        ("model.depth.real > 1", "`model.depth.real`"),
        ("().__class__.__bases__", "contains"),
        ("open('x')", "calls `open`"),
        ("log(a, base=2)", "calls `log`"),
        ("kind.upper() == 'TREE'", "calls `kind.upper`"),
        ("a[0] == 1", "contains `a[0]`"),
        ("{a: 1}", "contains"),
        ("f'{a}' == '3'", "contains"),
        ("(x := a) > 2", "contains"),
        ("[a for _ in (1,)]", "contains"),
        ("lambda: a", "contains"),
        ("a is 3", "contains"),
        ("a @ b", "contains"),
        ("a << 99999999", "contains"),
        ("~a < 0", "contains"),
        ("a == 1j", "contains 1j"),
        ("a == None", "None"),
        ("kind == tree", "`tree` in `kind == tree` is not a hyperparameter"),
        ("given(3)", "does not name a hyperparameter"),
        ("a = 3", "not an expression"),
        ("a; b", "not an expression"),
        ("a < 1\nimport os", "not an expression"),
        ("", "not an expression"),
        ("3 < 4", "names no hyperparameter"),
        ("(" * 220 + "a" + ")" * 220, "not an expression"),
        ("a" + " + a" * 200, "letters"),
        ("-" * 60 + "a", "deep"),
    ],
)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_invalid_constraints_are_refused(text: str, found: str) -> None:
    """Whatever is not on the list is refused when it is read, and nothing of it is carried out."""
    with pytest.raises(InvalidExpression) as unclear:
        parse(text, KNOWN)
    assert found in unclear.value.actual


@pytest.mark.parametrize(
    "text",
    ["1 / (a - 3) > 0", "log(b - 0.5) > 0", "kind < 3", "kind * a == 1", "9 ** 9 ** 9 > a",
     "(a + 999999999) ** 900 ** 2 > 0", "10.0 ** 400 > a", "a % 0 == 1", "[a] * 99 == kind",
     "kind + 'x' == 'treex'"],
)  # fmt: skip
def test_an_expression_without_a_value_is_refused(text: str) -> None:
    """It is told with the values that it met, and costs neither time nor memory."""
    with pytest.raises(InvalidExpression, match="cannot be evaluated for") as unclear:
        parse(text, KNOWN).holds(VALUES)
    assert (
        "a=3" in unclear.value.actual
        or "kind=tree" in unclear.value.actual
        or "b=0.5" in str(unclear.value.actual)
    )


def test_boolean_operators_short_circuit() -> None:
    """`and`, `or` and `if` stop where the answer is known, so that a division can be guarded."""
    assert parse("a == 3 or 1 / (a - 3) > 0", KNOWN).holds(VALUES)
    assert not parse("a != 3 and 1 / (a - 3) > 0", KNOWN).holds(VALUES)


def test_names_of_nested_choices() -> None:
    """A name in a branch is spelt with a point, in spaces and in values."""
    inner = Dimension("depth", "choice", (3, 5), HERE)
    model = Dimension("model", "choice", ({"name": "tree", "depth": inner}, "linear"), HERE)
    rate = Dimension("rate", "uniform", (0, 1), HERE)
    assert names_in({"model": model, "rate": rate}) == {
        "model", "model.name", "model.depth", "rate"
    }  # fmt: skip
    assert names_of({"model": {"name": "tree", "depth": 3}, "rate": 0.1}) == {
        "model.name": "tree",
        "model.depth": 3,
        "rate": 0.1,
    }
    assert names_of({"model": "linear"}) == {"model": "linear"}
