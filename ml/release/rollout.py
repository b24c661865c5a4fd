"""The rollout: green beside blue, proved by requests, then switched; undone when any step fails."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from ml.release import audit
from ml.release.registry import Registry, Version
from ml.serving import client, endpoint, server, slots
from ml.serving.endpoint import Live
from ml.serving.router.process import Router
from ml.serving.server import Launch, Server
from ml.specs.problems import Exit, Problem, Refused


def roll_out(
    registry: Registry,
    environment: str,
    launch: Launch,
    version: Version,
    samples: Sequence[Mapping[str, object]],
    approved_by: str,
    port: int | None,
) -> Router:
    """Make the version live and champion, and stop the old server; returns the router.

    The steps are start, smoke requests, switch, alias, audit line; when one fails those before it
    are undone in reverse, and blue, which ran all the while, is live as before. The caller holds
    the endpoint.
    """
    name = launch.endpoint
    blue = endpoint.live(name)
    champion = registry.champion(version.model, environment)
    slot = endpoint.other_slot(name)
    with ExitStack() as undo:
        undo.callback(slots.stop, slot)
        green = server.start(slot, launch)
        _smoke(green, launch, samples)
        undo.callback(endpoint.stop_idle, name)  # a router that was started for the first version
        undo.callback(endpoint.switch, name, blue)
        router = endpoint.front(name, port) if blue else None
        endpoint.switch(name, Live(green, launch))
        router = router or endpoint.front(name, port)
        undo.callback(_restore, registry, version, environment, champion)
        registry.promote(version, environment)
        _record(environment, launch, champion, approved_by)
        undo.pop_all()
    endpoint.drained(router)
    endpoint.stop_idle(name)
    return router


def settle(environment: str, launch: Launch, approved_by: str) -> None:
    """Finish a rollout that was killed after its switch: the old server, the audit line."""
    with endpoint.locked(launch.endpoint):
        applied = [line for line in audit.verify() if line["event"] == "applied"]
        here = [line for line in applied if line["endpoint"] == launch.endpoint]
        if not here or here[-1]["digest"] != launch.digest:
            _record(environment, launch, None, approved_by)
        endpoint.stop_idle(launch.endpoint)


def _record(environment: str, launch: Launch, replaced: Version | None, approved_by: str) -> None:
    audit.append(
        "applied",
        {
            "environment": environment,
            "endpoint": launch.endpoint,
            "model": launch.model,
            "version": launch.version,
            "digest": launch.digest,
            "replaced": replaced.version if replaced else None,
            "approved_by": approved_by,
        },
    )


def _smoke(green: Server, launch: Launch, samples: Sequence[Mapping[str, object]]) -> None:
    """Every sample request is answered, by the model that was declared."""
    for sample in samples:
        try:
            answer = client.score(green.port, sample)
        except (OSError, http.client.HTTPException) as error:
            raise _failed(green, f"no answer to {sample}: {error}") from None
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise _failed(green, f"status {answer.status} to {sample}: {answer.body}")
        if answer.body.get("model_digest") != launch.digest:
            raise _failed(green, f"the model {answer.body.get('model_digest')} answers")


def _restore(
    registry: Registry, version: Version, environment: str, champion: Version | None
) -> None:
    if champion is not None:
        registry.promote(champion, environment)
    elif registry.champion(version.model, environment) is not None:
        registry.demote(version.model, environment)


def _failed(green: Server, why: str) -> Refused:
    return Refused(
        Problem(
            "smoke-failed",
            f"{why}; the new server's log ends:\n{slots.last_lines(green.slot)}",
            "an answer from the declared model to every sample request",
            f"nothing was switched; the whole log: {slots.log(green.slot)}",
        ),
        exit_code=Exit.RUN_FAILED,
    )
