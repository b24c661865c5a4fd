"""The baseline: a fresh server of the live version, to compare green with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ml.core.errors import Exit, Problem, Refused
from ml.release.rollout import smoke
from ml.serving import endpoint, server
from ml.serving.endpoint import Live
from ml.serving.server import Server


def begin(blue: Live, samples: Sequence[Mapping[str, object]]) -> Callable[[], Server]:
    """Start a second server of the live version; the returned function waits until it answers.

    Errors of both are raised as baseline-failed, which is not a verdict on green.
    """
    slot = blue.server.slot.with_name(endpoint.BASELINE)
    with _not_greens_fault(blue):
        endpoint.check_model(blue.launch)
        begun = server.begin(slot, blue.launch)

    def answers() -> Server:
        with _not_greens_fault(blue):
            started = server.wait_until_ready(begun)
            smoke.test(started, blue.launch, samples)
        return started

    return answers


@contextmanager
def _not_greens_fault(blue: Live) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise Refused(
            Problem(
                "baseline-failed",
                f"version {blue.launch.version} serves, but a second server of it for the canary "
                f"fails: {error.problems[0].found}",
                "memory for three servers during a canary",
                "free some memory and apply again; if the version can no longer be started, "
                f"stop it (`ml serve {blue.launch.endpoint} --stop`): apply then skips the canary",
            ),
            exit_code=Exit.RUN_FAILED,
        ) from None
