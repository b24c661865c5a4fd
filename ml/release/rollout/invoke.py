"""Send a request to a served model."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass

from ml.backends.base import Backend
from ml.backends.endpoints import Router
from ml.core.errors import UserError
from ml.release.declaration import projects


@dataclass(frozen=True)
class Reply:
    """The model's answer (the JSON that score.py returns), and whether its server was started."""

    body: Mapping[str, object]
    version: str
    router: Router
    started: bool


def ask(backend: Backend, name: str, request: Mapping[str, object]) -> Reply:
    """Post a request to an endpoint and return the reply; start its server if needed.

    Raises UserError: no-live-deployment, request-refused (exit 2: the request breaks the schema),
    server-error (exit 1), and what starting a server raises.
    """
    endpoints = backend.endpoints
    live, started = endpoints.ensure(name)
    router = endpoints.router(name)
    if router is None:
        raise endpoints.nothing_served(name)
    try:
        answer = endpoints.ask(name, request)
    except (OSError, http.client.HTTPException) as error:
        raise endpoints.failure(
            live.server.slot, "server-error", f"no answer: {error}", hint="correct score.py"
        ) from None
    by, deployment = live.in_slot(answer.deployment)
    if 400 <= answer.status < 500:
        body = answer.body
        error_body = body.get("error") if isinstance(body, dict) else None
        message = error_body.get("message") if isinstance(error_body, dict) else answer.excerpt
        hint = _example(backend, name, deployment.model)
        raise UserError.with_code("request-refused", str(message), hint=hint)
    if answer.status != 200 or not isinstance(answer.body, dict):
        why = f"status {answer.status}: {answer.excerpt}"
        raise endpoints.failure(by.slot, "server-error", why, "status 200", "correct score.py")
    return Reply(answer.body, deployment.version, router, started)


def of_text(backend: Backend, name: str, text: str) -> Mapping[str, object]:
    """Return a request with the text in its only field, which the project's sample request names.

    Raise UserError: no-live-deployment; not-a-request if a sample has more fields or no text.
    """
    live = backend.endpoints.live(name)
    if live is None:
        raise backend.endpoints.nothing_served(name)
    model = live.deployment.model
    project = projects.of_model(backend.root, model)
    sample = project.samples()[0] if project else {}
    if not projects.is_text(sample):
        problem = f"`{text[:80]}` is not a JSON object"
        raise UserError.with_code(
            "not-a-request", problem, "a JSON object", _example(backend, name, model)
        )
    return dict.fromkeys(sample, text)


def _example(backend: Backend, name: str, model: str) -> str:
    return projects.example(name, projects.of_model(backend.root, model))
