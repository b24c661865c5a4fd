"""The commands that talk to Azure: `infra doctor | drift | sas | bootstrap`."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from infra import settings as environments
from ml.core.errors import Exit, Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from azure.core.credentials import TokenCredential

    from infra.live.arm import Arm
    from infra.preview.captured import Resource

Stacks = Annotated[list[str] | None, typer.Argument(help="Environments; all where none is named.")]
Stack = Annotated[str, typer.Argument(help="The environment.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def doctor(stack: Stack, as_json: AsJson = False) -> None:
    """Before an update: would it be refused? Providers, names, quota, permissions.

    Exit 3 when something is certain to be.
    """
    from infra.live.doctor.examination import examine

    settings = environments.load(stack)
    arm = _arm(settings)
    found = []
    for check in examine(settings, _declared(stack), arm):
        found.append(check)
        if not as_json:
            typer.echo(str(check))
    if as_json:
        write([asdict(one) for one in found])
    if any(one.verdict == "error" for one in found):
        raise typer.Exit(Exit.GATE_SAID_NO)


def drift(stack: Stack, as_json: AsJson = False) -> None:
    """What is declared against what is there; exit 3 on a difference that means something."""
    from infra.live import drift as drifting

    arm = _arm(environments.load(stack))
    declared = _declared(stack)
    found = []
    for one in drifting.drift(declared, arm, drifting.noise()):
        found.append(one)
        if not as_json:
            typer.echo(str(one))
    if as_json:
        write([asdict(one) for one in found])
    elif not found:
        typer.echo(f"{stack}: {sum(one.custom for one in declared)} resources are as declared")
    if found:
        raise typer.Exit(Exit.GATE_SAID_NO)


def sas(
    stack: Stack,
    path: Annotated[str, typer.Argument(help="CONTAINER/FILE, or CONTAINER/FOLDER/.")],
    to_write: Annotated[
        bool, typer.Option("--write", help="To write; to read without it.")
    ] = False,
    hours: Annotated[float, typer.Option(help="How long it is valid.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """A SAS of the data lake for one path, signed by who is signed in. Its output is a secret."""
    from azure.storage.blob import BlobServiceClient

    from infra import naming
    from infra.live import sas as issuing

    settings = environments.load(stack)
    wanted = issuing.scope(path)
    limit = timedelta(hours=settings.storage.sas_hours)
    life = issuing.lifetime(hours, limit)
    account = naming.names(settings).worldwide("stlk")
    service = BlobServiceClient(
        issuing.BLOBS.format(account=account), credential=_signed_in("https://storage.azure.com")
    )
    issued = issuing.issue(service, wanted, "write" if to_write else "read", life, limit)
    if as_json:
        write({"url": issued.url, "expires": issued.expires.isoformat(), "access": issued.access})
        return
    typer.echo(issued.url)
    typer.echo(f"{issued.access} {wanted} until {issued.expires:%Y-%m-%d %H:%M} UTC", err=True)


def bootstrap(
    stacks: Stacks = None,
    run: Annotated[bool, typer.Option("--run", help="Run what is wanting.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask nothing: every command.")] = False,
    as_json: AsJson = False,
) -> None:
    """What a new fork needs before its first update: state, identities, GitHub's variables.

    Shows what is wanting; with --run it is made. Running it again changes nothing.
    """
    from infra.live import bootstrap as bootstrapping
    from infra.live import commands, steps

    chosen = [environments.load(one) for one in environments.chosen(stacks)]
    plan = bootstrapping.steps(chosen)
    for sentence in bootstrapping.shared(chosen):
        typer.echo(sentence, err=True)
    if offline:
        if as_json:
            write([{"step": step.name, "command": steps.shown(step.make)} for step in plan])
        else:
            typer.echo("\n".join(steps.shell(step.make) for step in plan))
        return
    found = []
    for done in steps.carry_out(plan, commands.run, make=run):
        found.append(done)
        if not as_json:
            typer.echo(f"{done.outcome:<8} {done.step.name}")
            if done.outcome == "wanting":
                typer.echo(f"         {steps.shell(done.step.make)}")
    if as_json:
        write([steps.as_json(one) for one in found])
    wanting = sum(one.outcome == "wanting" for one in found)
    if wanting:
        makes = "run this again after `pulumi up`" if run else "--run makes them"
        typer.echo(f"{wanting} of {len(found)} are wanting; {makes}", err=True)


def write(value: object) -> None:
    """JSON on stdout."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _declared(stack: str) -> Sequence[Resource]:
    from infra.preview import run

    return run.capture(stack).resources


def _arm(settings: environments.Settings) -> Arm:
    from infra.live import arm

    return arm.Arm(_signed_in(arm.PUBLIC), settings.subscription, arm.PUBLIC)


def _signed_in(audience: str) -> TokenCredential:
    """Who runs the command; Refused at once, in one line, when nobody is signed in."""
    from azure.core.exceptions import ClientAuthenticationError
    from azure.identity import DefaultAzureCredential

    # The SDKs log a paragraph for each way of signing in that is not used, and what they trip over.
    logging.getLogger("azure").setLevel(logging.CRITICAL + 1)
    found, hint = "nobody", "az login"
    try:
        credential = DefaultAzureCredential()
        credential.get_token(f"{audience}/.default")
    except ClientAuthenticationError:
        pass
    except (ValueError, OSError) as error:  # a variable that it cannot take
        found, hint = str(error)[:300], "the environment's variables AZURE_…, or unset them"
    else:
        return credential
    expected = "somebody who is signed in to Azure"
    problem = Problem("not-signed-in", found, expected, hint)
    raise Refused(problem, exit_code=Exit.RUN_FAILED)
