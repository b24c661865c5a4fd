"""`ml ui`: MLflow's pages on the runs of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from ml.backends.choice import open_backend
from ml.core.errors import Problem, Refused


def command(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="On this port; else a free one.")
    ] = None,
) -> None:
    """Serve MLflow's pages on the local store, in the foreground; Ctrl-C ends it."""
    from ml.serving import processes

    if port is not None and not processes.port_is_free(port):
        raise Refused(
            Problem(
                "port-in-use",
                f"port {port} is held by {processes.port_holder(port)}",
                "a free port",
                "leave --port out for a free one",
            )
        )
    typer.echo("MLflow is starting; Ctrl-C ends it", err=True)
    open_backend().serve_pages(port or processes.free_port(), typer.echo)
    typer.echo("ended", err=True)
