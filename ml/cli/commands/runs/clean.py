"""`ml runs clean`: what would go, the question, the removal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import typer

from ml.backends.base import Backend
from ml.backends.storage import Cleaning
from ml.cli.render import tables, units
from ml.core import faults
from ml.core.errors import Exit, Problem, Refused
from ml.release.versions import find_in_use

ROWS = 20  # a person reads; --json has all


def clean(
    backend: Backend,
    keep: int | None,
    before: float | None,
    experiment: str | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Plan, show, ask, remove; see `ml runs clean --help`."""

    def plan() -> Cleaning:
        with faults.as_refusals():
            return backend.storage.cleaning(
                find_in_use(backend.registry), keep=keep, older_than=before, experiment=experiment
            )

    cleaning, used = plan(), backend.storage.parts()
    freed = cleaning.frees
    failures: list[str] = []
    if not as_json:
        _show(cleaning, used, backend.storage.grace_s)
    if not dry_run and cleaning.items:
        if not yes:
            _ask(cleaning)
        # What became needed while the person was thinking stays.
        with faults.as_refusals():
            freed, failures = backend.storage.remove(cleaning, plan())
    if as_json:
        sys.stdout.write(json.dumps(_as_json(cleaning, used, freed, dry_run), indent=1) + "\n")
    elif not dry_run and cleaning.items:
        typer.echo(f"freed {units.size(freed)}", err=True)
    if failures:
        raise Refused(
            *(
                Problem("not-removed", failure, hint="see who owns it: ls -l")
                for failure in failures
            ),
            exit_code=Exit.RUN_FAILED,
        )


def _show(cleaning: Cleaning, used: Mapping[str, int], grace_s: float) -> None:
    parts = ", ".join(f"{name} {units.size(taken)}" for name, taken in list(used.items())[:5])
    typer.echo(f"on the disk: {units.size(sum(used.values()))} ({parts})", err=True)
    if cleaning.items:
        rows = [[i.kind, i.name, units.size(i.size), i.why] for i in cleaning.items[:ROWS]]
        tables.write(("what", "name", "size", "why"), rows)
    if len(cleaning.items) > ROWS:
        typer.echo(f"and {len(cleaning.items) - ROWS} more (--json has all)", err=True)
    for name, why in list(cleaning.stay.items())[:ROWS]:
        typer.echo(f"{name} stays: {why}", err=True)
    if len(cleaning.stay) > ROWS:
        typer.echo(f"{len(cleaning.stay) - ROWS} more stay (--json has all)", err=True)
    grace = f"copies used in the last {grace_s / 60:.0f} minutes stay"
    if cleaning.items:
        typer.echo(f"this frees {units.size(cleaning.frees)}; {grace}", err=True)
    else:
        typer.echo(f"nothing to remove; {grace}; --keep N or --older-than 7d names runs", err=True)


def _ask(cleaning: Cleaning) -> None:
    if not sys.stdin.isatty():
        raise Refused(
            Problem(
                "not-confirmed",
                f"{len(cleaning.items)} things would be removed and nobody is here to ask",
                "--yes, or --dry-run to look alone",
                "add --yes to remove them",
            )
        )
    typer.confirm("remove them?", abort=True, err=True)


def _as_json(
    cleaning: Cleaning, used: Mapping[str, int], freed: int, dry_run: bool
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "freed_bytes": freed,
        "removed": [
            {"kind": item.kind, "name": item.name, "bytes": item.size, "why": item.why}
            | {"paths": [str(path) for path in item.paths]}
            for item in cleaning.items
        ],
        "stay": dict(cleaning.stay),
        "used_bytes": dict(used),
    }
