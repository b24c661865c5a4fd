"""The smoke test of a server that was just started: it answers the sample requests."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence

from ml.core.errors import Exit, Problem, Refused
from ml.serving import client, processes
from ml.serving.server import Launch, Server


def test(green: Server, launch: Launch, samples: Sequence[Mapping[str, object]]) -> None:
    """Send every sample request; Refused (smoke-failed) unless the launched model answers."""
    for sample in samples:
        try:
            answer = client.score(green.port, sample)
        except (OSError, http.client.HTTPException) as error:
            raise _failed(green, f"no answer to {sample}: {error}") from None
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise _failed(green, f"status {answer.status} to {sample}: {answer.excerpt}")
        if answer.body.get("model_digest") != launch.digest:
            raise _failed(green, f"no answer of the declared model to {sample}: {answer.excerpt}")


def _failed(green: Server, why: str) -> Refused:
    return Refused(
        Problem(
            "smoke-failed",
            f"{why}; its log ends:\n{processes.last_lines(green.slot)}",
            "an answer from the declared model to every sample request",
            f"nothing was switched; the whole log: {processes.log(green.slot)}",
        ),
        exit_code=Exit.RUN_FAILED,
    )
