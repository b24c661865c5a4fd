"""Errors for users: a problem of a spec or a command, and the next command to type."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from typing import Literal

Severity = Literal["error", "warning"]


class Exit(IntEnum):
    """Exit codes of every `ml` command; a shell and typer also use 130 after Ctrl-C."""

    DONE = 0
    RUN_FAILED = 1
    WRONG_CALL = 2
    GATE_SAID_NO = 3
    CANNOT_HONOUR = 33
    INTERRUPTED = 130


@dataclass(frozen=True)
class Place:
    """A line of a file, or a value set on the command line."""

    path: str  # as the user would type it; `--set FIELD` for a value set there
    line: int  # from 1; 0 for `--set FIELD`

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True)
class Problem:
    """A problem and what to do about it."""

    code: str  # in kebab case
    actual: str
    expected: str = ""
    hint: str = ""  # what to type next
    place: Place | None = None
    severity: Severity = "error"
    source: str = ""  # origin of the rule: a document of Azure ML, an experiment

    def __str__(self) -> str:
        where = f" {self.place}:" if self.place else ""
        lines = [f"{self.severity}[{self.code}]:{where} {self.actual}"]
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class UserError(Exception):
    """An error that the user can correct; commands print its message instead of a traceback.

    The message lists the problems; `exit_code` is the command's exit code.
    """

    def __init__(self, *problems: Problem, exit_code: Exit = Exit.WRONG_CALL) -> None:
        self.problems = problems
        self.exit_code = exit_code
        super().__init__("\n".join(str(problem) for problem in problems))

    @classmethod
    def with_code(
        cls,
        code: str,
        actual: str,
        expected: str = "",
        hint: str = "",
        place: Place | None = None,
        *,
        exit_code: Exit = Exit.WRONG_CALL,
    ) -> UserError:
        """Return an error with one problem."""
        return cls(Problem(code, actual, expected, hint, place), exit_code=exit_code)


def as_program(run: Callable[[Sequence[str] | None], int | None]) -> Callable[..., int]:
    """Decorate a function of the command-line arguments as a `main` that returns an exit code.

    `main` prints a UserError on stderr instead of a traceback.
    """

    @wraps(run)
    def main(argv: Sequence[str] | None = None) -> int:
        try:
            return int(run(argv) or Exit.DONE)
        except UserError as refused:
            sys.stderr.write(f"{refused}\n")
            return int(refused.exit_code)

    return main


def errors(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems of severity "error", in their order, without the warnings."""
    return tuple(problem for problem in problems if problem.severity == "error")


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return [the known word closest to a misspelt one], or [] if none is close."""
    return difflib.get_close_matches(word, list(known), 1, 0.7)
