"""`ml serve`, `ml invoke`, `ml watch`: the models that are served on this machine."""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ml.backends.endpoints import Router, Servers
from ml.cli.options import AsJson, Environment, On, Port, moment
from ml.cli.render.output import write_json
from ml.core.errors import Exit, Problem, UserError
from ml.core.names import check

if TYPE_CHECKING:
    from ml.backends.base import Backend
    from ml.backends.endpoints import Live

WIDTH = 96
# The keys of one entry in the response of a ranking model.
ENTRY = {"rank", "score", "question", "answer"}


def serve(
    endpoint: Annotated[
        str | None,
        typer.Argument(help="Start this endpoint, or that of a project; else show all."),
    ] = None,
    port: Port = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop its server.")] = False,
    stop_all: Annotated[bool, typer.Option("--stop-all", help="Stop every server.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show, start or stop the model servers on this machine."""
    from ml.cli.app import open_backend

    here = open_backend()
    endpoints, processes = here.endpoints, here.servers
    assert processes is not None  # the local backend has servers
    if endpoint is not None:
        endpoint = _endpoint_of(endpoint, here)
    if (stop or port is not None) and endpoint is None:
        expected = f"one of: {', '.join(processes.names()) or 'nothing is served yet'}"
        raise UserError(Problem("no-endpoint", "no endpoint is named", expected))
    if stop or stop_all:
        for name in processes.names() if stop_all else [check("endpoint", str(endpoint))]:
            if name not in processes.names():
                raise endpoints.nothing_served(name)
            was = "stopped" if processes.stop(name) else "was not running"
            typer.echo(f"{name}: {was}", err=True)
        return
    unreadable: list[Problem] = []  # raised after the readable endpoints are printed
    if endpoint is not None:
        live, started = endpoints.ensure(endpoint, port)
        typer.echo(f"{endpoint}: {'started' if started else 'was running already'}", err=True)
        servers = [(endpoint, live, endpoints.router(endpoint))]
    else:
        servers = []
        for name in processes.names():
            try:
                deployed = endpoints.live(name)
            except UserError as refused:
                unreadable += refused.problems
                continue
            if deployed:
                router = endpoints.router(name) if endpoints.is_up(deployed.server) else None
                servers.append((name, deployed, router))
        if not servers and not unreadable:
            typer.echo("nothing is served; next: make demo", err=True)
    if as_json:
        write_json([_row(*server, processes) for server in servers])
    else:
        for server in servers:
            typer.echo(_line(*server))
    if unreadable:
        raise UserError(*unreadable, exit_code=Exit.RUN_FAILED)


def _row(name: str, live: Live, router: Router | None, processes: Servers) -> Mapping[str, object]:
    """Return one endpoint's entry of `ml serve --json`."""
    return {
        "endpoint": name,
        "model": live.deployment.model,
        "version": live.deployment.version,
        "digest": live.deployment.digest,
        "running": router is not None,
        "url": router.url if router else None,
        "log": processes.log(live.server.slot),
        "canary": live.canary
        and {
            "version": live.canary.deployment.version,
            "weight": live.canary.weight,
            "baseline": live.canary.baseline is not None,
        },
    }


def _line(name: str, live: Live, router: Router | None) -> str:
    where = router.url if router else f"stopped (`ml serve {name}` starts it)"
    candidate = live.canary
    canary = f", canary {candidate.deployment.version} ({candidate.weight} %)" if candidate else ""
    return f"{name}: {live.deployment.model} {live.deployment.version}{canary}, {where}"


def _endpoint_of(name: str, backend: Backend) -> str:
    """Return the endpoint's name; `name` is an endpoint, or a project, which has one."""
    from ml.release.declaration import projects

    if backend.servers and name in backend.servers.names():
        return name
    # A name with an underscore is a project: endpoint names cannot have one.
    if "_" in name or name in {project.name for project in projects.every(backend.root)}:
        return projects.find(backend.root, name).endpoint()
    return name


def invoke(
    endpoint: Annotated[str, typer.Argument(help="An endpoint, or a folder under ml/projects.")],
    request: Annotated[
        str, typer.Argument(help="The request: a JSON object, or the text of its only field.")
    ] = "",
    on: On = "local",
    data: Annotated[
        str | None,
        typer.Option("--input", metavar="PATH", help="Data that a batch endpoint scores."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="A file, such as an image: sent as base64 in the only field."),
    ] = None,
    deployment: Annotated[
        str, typer.Option(help="The batch deployment; default: the endpoint's default.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Send a request to a served model; start its server if needed."""
    from ml.cli.app import open_backend

    if data is not None:
        _score(endpoint, deployment, data, on, as_json)
        return
    from ml.release.declaration import projects
    from ml.release.rollout.invoke import ask, of_text

    backend = open_backend(on)
    endpoint = check("endpoint", _endpoint_of(endpoint, backend))
    if file is not None:
        request = _content(file)
    if not request.strip():
        hint = projects.example(endpoint, projects.of_model(backend.root, endpoint))
        raise UserError(Problem("no-request", "the request is empty", "some text", hint))
    body = _object(request)
    payload = of_text(backend, endpoint, request) if body is None else body
    reply = ask(backend, endpoint, payload)
    if reply.started:
        typer.echo(f"{endpoint} was not running; started it at {reply.router.url}", err=True)
    if as_json:
        write_json(reply.body)
        return
    for answer in answer_texts(reply.body):
        typer.echo(answer)
    typer.echo(f"({endpoint}, version {reply.version})", err=True)


def _score(endpoint: str, deployment: str, data: str, on: str, as_json: bool) -> None:
    """Score a file or folder with a batch endpoint on Azure, or locally with a deployment's spec.

    `endpoint` is a name, or the path of the spec. Exit 1 if the run fails.
    """
    from ml.backends.base import Options
    from ml.backends.runs import narrated
    from ml.cli.app import open_backend
    from ml.cli.render.runs_text import run_json
    from ml.core import home
    from ml.core.repository import shown
    from ml.specs.plan import batch
    from ml.specs.sdk import load

    def say(line: str) -> None:
        typer.echo(line, err=True)

    backend = open_backend(on, Options(say=say))
    spec = load.load(Path(endpoint)) if endpoint.endswith((".yml", ".yaml")) else None
    if spec is not None:
        endpoint, deployment = str(spec.get("endpoint_name")), str(spec.get("name"))
    if backend.resources is not None:
        run = backend.resources.score(endpoint, deployment, data, narrated(say))
    elif spec is not None:
        planned = batch.planned(spec, Path(data).resolve(), home.assets())
        run = backend.run(planned, narrated(say))
    else:
        hint = f"ml invoke DEPLOYMENT.yml --input {data}, or add --on azure"
        actual = f"this machine has no batch endpoint `{endpoint}`"
        problem = Problem("no-batch-endpoint", actual, "the spec of a batch deployment", hint)
        raise UserError(problem, exit_code=Exit.CANNOT_HONOUR)
    if as_json:
        write_json(run_json(backend, run))
    else:
        typer.echo(f"{run.name}: {run.status}{f' ({run.error})' if run.error else ''}")
        for name, path in run.outputs.items():
            typer.echo(f"  output {name}: {shown(path)}")
    raise typer.Exit(Exit.DONE if run.status == "Completed" else Exit.RUN_FAILED)


def _content(file: Path) -> str:
    """Return the content of a file in base64; raise UserError if it cannot be read."""
    try:
        return base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        actual = f"{file}: {error.strerror}"
        raise UserError(Problem("no-file", actual, "a readable file", "check the path")) from None


def _object(request: str) -> Mapping[str, object] | None:
    try:
        document = json.loads(request)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else None


def answer_texts(body: Mapping[str, object]) -> list[str]:
    """Format a response for people: one text for each ranked entry, anything else as JSON."""
    answers = body.get("answers")
    if isinstance(answers, list) and all(
        isinstance(entry, dict) and entry.keys() >= ENTRY for entry in answers
    ):
        return [_entry_text(entry) for entry in answers]
    return [json.dumps(body, ensure_ascii=False)]


def _entry_text(answer: Mapping[str, object]) -> str:
    """Format a ranked entry: rank, question and score on one line, the answer below."""
    text = textwrap.fill(
        str(answer["answer"]), WIDTH, initial_indent="   ", subsequent_indent="   "
    )
    return f"{answer['rank']}. {answer['question']}  [{answer['score']:.3f}]\n{text}\n"


def watch(
    model: Annotated[str, typer.Argument(help="The model, which is its endpoint's name.")],
    env: Environment = "local",
    version: Annotated[str, typer.Option(help="This version; else the one that serves.")] = "",
    inputs: Annotated[
        Path | None,
        typer.Option(help="Requests in a file (.jsonl, .csv), not what the endpoint collected."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels: lines of REQUEST_ID,LABEL (or ID/ROW of a table)."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only requests since: 7d, 12h, 2026-11-20.")
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(help="The feature store; default, of local: features in the local home."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="The report's page; else in the local home."),
    ] = None,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Compare requests, predictions and features with the evaluation's; exit 3 on a breach."""
    from ml.cli.app import open_backend
    from ml.core.terminal import printable
    from ml.release.declaration.desired_state import place_of
    from ml.release.watch.report import watch as compare
    from ml.reports.pages import endpoint_links, write_watch_page

    backend = open_backend(place_of(env, on))
    report = compare(
        backend,
        model,
        env,
        version,
        inputs=inputs,
        labels=labels,
        since=moment("--since", since) if since else None,
        store=features,
    )
    place = write_watch_page(report, out, endpoint_links(backend, model, env))
    if as_json:
        write_json({**report.to_json(), "report": place})
    else:
        for finding in report.findings:
            if finding.is_breach:
                typer.echo(printable(f"{finding.column}: {finding.sentence}"))
        for note in report.notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"{model} {report.version} in {env}: {report.sentence}")
        typer.echo(f"written to {place}, and beside it as JSON", err=True)
    if report.outcome == "breach":
        raise typer.Exit(Exit.GATE_SAID_NO)
