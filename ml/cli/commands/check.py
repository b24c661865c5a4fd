"""`ml check`: report every wrong spec before anything runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ml.cli.options import AsJson
from ml.core.errors import Exit, Problem, Refused


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
    as_json: AsJson = False,
) -> None:
    """Check Azure ML specs and what releases read: a file, a folder or the repository.

    That is a project's gates.yml, select.yml, watch.yml and release.yml, and the floors in
    policies/promotion. Ends with exit code 2 when there is an error, 0 when there is none or only
    warnings.
    """
    from ml.specs.check.survey import survey

    format = Format.json if as_json else format
    report = survey(paths or [], release_files())
    if format is Format.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        for problem in report.problems:
            print(annotation(problem) if format is Format.github else problem)
    print(report.summary(), file=sys.stderr if format is Format.json else sys.stdout)
    raise typer.Exit(Exit.WRONG_CALL if report.errors else Exit.DONE)


def release_files() -> Mapping[str, Callable[[Path], Sequence[Problem]]]:
    """What releases read besides Azure ML specs, by pattern, with what finds the problems."""
    from ml.release.declaration import release_file
    from ml.release.declaration.projects import Project
    from ml.release.promotion import gate_check
    from ml.release.selection import weights
    from ml.release.watch import limits
    from policies.promotion import gates, watch

    def problems_of(read: Callable[[Path], object]) -> Callable[[Path], Sequence[Problem]]:
        def problems(path: Path) -> Sequence[Problem]:
            try:
                read(path)
            except Refused as refused:
                return refused.problems
            return []

        return problems

    return {
        "ml/projects/*/release.yml": release_file.check,
        "ml/projects/*/gates.yml": problems_of(
            lambda path: gate_check.load_gates(Project(path.parent.name, path.parent))
        ),
        "ml/projects/*/select.yml": problems_of(lambda path: weights.read(path.parent)),
        "ml/projects/*/watch.yml": problems_of(lambda path: limits.read(path.parent)),
        "policies/promotion/gates.yml": problems_of(lambda path: gates.load(floor=path)),
        "policies/promotion/watch.yml": problems_of(watch.load),
    }


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
