"""`ml serve`: the model servers of this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ml.core.errors import Problem, Refused


def command(
    endpoint: Annotated[str | None, typer.Argument(help="Start this one; else show all.")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="On this port; else a free one.")
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop it.")] = False,
    stop_all: Annotated[bool, typer.Option("--stop-all", help="Stop every one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Show, start or stop the model servers on this machine."""
    from ml.serving import endpoint as endpoints
    from ml.serving import processes, server

    if (stop or port is not None) and endpoint is None:
        expected = f"one of: {', '.join(endpoints.names()) or 'nothing is served yet'}"
        raise Refused(Problem("no-endpoint", "no endpoint is named", expected))
    if stop or stop_all:
        names = endpoints.folders() if stop_all else [str(endpoint)]
        for name in names:
            if name not in endpoints.folders():
                raise endpoints.nothing_served(name)
            was = "stopped" if endpoints.stop(name) else "was not running"
            typer.echo(f"{name}: {was}", err=True)
        return
    if endpoint is not None:
        live, started = endpoints.ensure(endpoint, port)
        typer.echo(f"{endpoint}: {'started' if started else 'was running already'}", err=True)
        servers = [(endpoint, live, endpoints.router(endpoint))]
    else:
        launched = [(name, endpoints.live(name)) for name in endpoints.names()]
        servers = [
            (name, live, endpoints.router(name) if server.is_up(live.server) else None)
            for name, live in launched
            if live
        ]
        if not servers:
            typer.echo("nothing is served; `make demo` goes the whole way", err=True)
    if as_json:
        rows = [
            {
                "endpoint": name,
                "model": live.launch.model,
                "version": live.launch.version,
                "digest": live.launch.digest,
                "running": router is not None,
                "url": router.url if router else None,
                "log": str(processes.log(live.server.slot)),
                "canary": live.canary
                and {
                    "version": live.canary.launch.version,
                    "weight": live.canary.weight,
                    "baseline": live.canary.baseline is not None,
                },
            }
            for name, live, router in servers
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    for name, live, router in servers:
        where = router.url if router else f"stopped (`ml serve {name}` starts it)"
        beside = live.canary
        canary = f", canary {beside.launch.version} ({beside.weight} %)" if beside else ""
        typer.echo(f"{name}: {live.launch.model} {live.launch.version}{canary}, {where}")
