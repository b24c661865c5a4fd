"""`ml doctor`: check this machine, Azure and GitHub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ml.cli.options import AsJson
from ml.cli.render.output import write_json
from ml.core import repository
from ml.core.errors import Exit, Problem, UserError

if TYPE_CHECKING:
    from ml.repository.doctor import Check, Stack

PARTS = ("machine", "azure", "github")
SIGNS = {"ok": "✔", "warning": "!", "error": "✘"}


def doctor(
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="machine, azure, github; all of them without any.", metavar="PART…"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, packages, sign-in, workspaces, quota and GitHub's settings; change nothing.

    Prints each problem with its fix. Exit 1 when one is an error.
    """
    for part in parts or ():
        if part not in PARTS:
            actual, hint = f"there is no check `{part}`", f"choose one of: {', '.join(PARTS)}"
            raise UserError(Problem("no-such-check", actual, hint=hint))
    checks = []
    for check in _checks(parts or PARTS):
        checks.append(check)
        if not as_json:
            typer.echo(f"{SIGNS[check.verdict]} {check.name:<18} {check.actual}")
            if check.fix:
                typer.echo(f"  {'':<18} → {check.fix}")
    if as_json:
        write_json([asdict(check) for check in checks])
    if any(check.verdict == "error" for check in checks):
        raise typer.Exit(Exit.RUN_FAILED)


def _checks(parts: Sequence[str]) -> Iterator[Check]:
    from ml.repository import doctor

    root = repository.root()
    if "machine" in parts:
        yield from doctor.machine(root)
        yield from doctor.placeholders(root)
    try:
        stacks = _stacks() if {"azure", "github"} & {*parts} else []
    except UserError as refused:
        problem = refused.problems[0]
        actual = f"{problem.place}: {problem.actual}"
        yield doctor.Check("stack files", "error", actual, "infra settings")
        return
    if "azure" in parts:
        yield from doctor.azure([stack for stack in stacks if stack.workspace])
    if "github" in parts and stacks:
        yield from doctor.github(stacks[0].repository, stacks)


def _stacks() -> list[Stack]:
    from infra.settings import loader
    from infra.settings.workflows import REVIEWED, github_environment, purposes
    from ml.repository.doctor import Stack

    every = [loader.load(name) for name in loader.select(None)]
    return [
        Stack(
            name=settings.environment,
            subscription=settings.subscription,
            location=settings.location,
            group=settings.names.group,
            workspace="" if settings.makes_registry else settings.workspace_name,
            repository=settings.github,
            github={
                github_environment(settings, purpose): (
                    settings.reviewers if purpose in REVIEWED else ()
                )
                for purpose in purposes(settings)
            },
            private=settings.private,
        )
        for settings in every
    ]
