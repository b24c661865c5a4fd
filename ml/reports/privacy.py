"""What a run says of itself, without the secrets that may be in it: a page is passed on."""

from __future__ import annotations

from ml.core.errors import Problem
from ml.specs.check.secrets import secret_in
from ml.specs.plan.plan import Value

HIDDEN = "(hidden)"


def shown(name: str, value: Value) -> Value:
    """A parameter's value, or `(hidden)` when it looks like a secret."""
    return HIDDEN if secret_in(name, value, is_variable=False) else value


def plain(text: str) -> str:
    """What a run printed, a line that holds a secret replaced by what it is."""
    return "\n".join(line_of(line) for line in text.splitlines())


def headline(problem: Problem) -> str:
    """What was found, in a line: the log, which may follow, has a section of its own."""
    first = next(iter(plain(problem.found).splitlines()), problem.code)
    return first.partition("; the end of its log")[0]


def line_of(line: str) -> str:
    """A line of a log, unless it holds a secret."""
    found = secret_in("", line, is_variable=False)
    return f"(a line is hidden: it holds {found})" if found else line
