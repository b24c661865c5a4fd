"""`ml assets plan | apply`: the assets that jobs name, and feature sets, on a backend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ml.cli.app import open_backend
from ml.cli.options import AsJson
from ml.cli.render.output import write_json, write_table
from ml.core.errors import Exit, Problem, UserError

if TYPE_CHECKING:
    from ml.backends.base import AssetState, AssetStore

app = typer.Typer(no_args_is_help=True)

Where = Annotated[str, typer.Option("--on", help="The backend: azure.")]
Folder = Annotated[
    Path | None, typer.Argument(help="The specs below this folder; default: the repository.")
]


@app.command()
def plan(folder: Folder = None, on: Where = "azure", as_json: AsJson = False) -> None:
    """Compare the assets that specs define with those of the workspace; changes nothing."""
    _, states = _compare(folder, on)
    _show(states, as_json)


@app.command()
def apply(folder: Folder = None, on: Where = "azure", as_json: AsJson = False) -> None:
    """Register the assets that are missing; exit 2 when a registered version has changed."""
    store, states = _compare(folder, on)
    changed = [state for state in states if state.status == "changed"]
    if changed:
        raise UserError(*(_changed(state) for state in changed))
    missing = [state for state in states if state.status == "missing"]
    for state in states:
        if state.status == "no-feature-store":
            typer.echo(f"skipped {state}: AZUREML_FEATURE_STORE_NAME is not set", err=True)
    for state in missing:
        store.create(state)
        typer.echo(f"registered {state} ({state.spec.document.shown})", err=True)
    if as_json or not missing:
        _show(missing, as_json)


def _compare(folder: Path | None, on: str) -> tuple[AssetStore, list[AssetState]]:
    from ml.core import repository

    store = open_backend(on).assets
    if store is None:
        actual = f"--on {on}: jobs of this machine read assets from their specs"
        hint = "there is nothing to register: ml run SPEC"
        problem = Problem("no-assets-here", actual, "--on azure", hint)
        raise UserError(problem, exit_code=Exit.CANNOT_HONOUR)
    return store, list(store.compare((folder or repository.root()).absolute()))


def _show(states: list[AssetState], as_json: bool) -> None:
    if as_json:
        write_json(
            [
                {
                    "asset": str(state),
                    "kind": state.spec.kind,
                    "status": state.status,
                    "spec": state.spec.document.shown,
                    "digest": state.digest,
                }
                for state in states
            ]
        )
    elif states:
        rows = [[str(s), s.spec.kind, s.status, s.spec.document.shown] for s in states]
        write_table(("asset", "kind", "status", "spec"), rows)
    else:
        typer.echo("nothing to register", err=True)


def _changed(state: AssetState) -> Problem:
    return Problem(
        "asset-changed",
        f"{state} is registered with other content",
        "the registered content: a version is immutable",
        "increment `version:`, here and in the jobs that use it",
        state.spec.place("version") if state.spec.get("version") else state.spec.place(),
    )
