"""`ml check`: every spec that is wrong, before anything runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ml.specs.problems import Exit, Problem


class Format(StrEnum):
    """How findings are written."""

    text = "text"
    json = "json"
    github = "github"


def command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders; the whole repository without any."),
    ] = None,
    format: Annotated[
        Format, typer.Option(help="text for people, json for programs, github for annotations.")
    ] = Format.text,
) -> None:
    """Check Azure ML specs and release.yml: a file, a folder or the repository.

    Ends with exit code 2 when a spec has an error, 0 when there are none or only warnings.
    """
    from ml.specs.survey import survey

    found = survey(paths or [], {"ml/projects/*/release.yml": _release})
    if format is Format.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        for problem in found.problems:
            print(annotation(problem) if format is Format.github else problem)
    print(found.summary(), file=sys.stderr if format is Format.json else sys.stdout)
    raise typer.Exit(Exit.WRONG_CALL if found.errors else Exit.DONE)


def _release(path: Path) -> Sequence[Problem]:
    from ml.release.release_check import problems

    return problems(path)


def annotation(problem: Problem) -> str:
    """A workflow command that GitHub shows beside the line, escaped as its toolkit does."""
    values = {"title": problem.code}
    if problem.place:
        values = {"file": problem.place.path, "line": str(problem.place.line), **values}
    properties = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in values.items())
    words = [problem.found]
    words += [f"expected: {problem.expected}"] if problem.expected else []
    words += [f"hint: {problem.hint}"] if problem.hint else []
    return f"::{problem.severity} {properties}::{_escaped(chr(10).join(words))}"


def _escaped(text: str, also: str = "") -> str:
    """`%`, line ends and, in properties, `:` and `,` (actions/toolkit, core/src/command.ts)."""
    for char in "%\r\n" + also:
        text = text.replace(char, f"%{ord(char):02X}")
    return text
