"""The baseline: a fresh server of what is live, for the canary to compare green with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ml.core.errors import Exit, Problem, Refused
from ml.release.rollout import smoke
from ml.serving import endpoint, server
from ml.serving.endpoint import Live
from ml.serving.server import Server


def begin(blue: Live, samples: Sequence[Mapping[str, object]]) -> Callable[[], Server]:
    """Begin to start a second server of what is live; what is returned waits until it answers.

    Either is refused as this machine's fault.
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
                "room for three servers as long as a canary takes",
                "free some memory and apply again; if the version itself can no longer be started, "
                f"stop it (`ml serve {blue.launch.endpoint} --stop`): then none is compared with",
            ),
            exit_code=Exit.RUN_FAILED,
        ) from None
