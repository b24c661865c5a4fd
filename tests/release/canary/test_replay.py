"""When samples are sent: by the router's tallies, without a router."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ml.backends.local.serving.router.process import RouterProcess
from ml.core.errors import Problem, UserError
from ml.release.canary import traffic
from ml.release.canary.traffic import Replay, Traffic

Tallies = dict[str, dict[str, dict[str, int]]]
NOBODY = RouterProcess(Path(), 0, 0, 0, "", "")


def tallies(callers: int, samples: int, copies: int = 0) -> Tallies:
    """Requests of both kinds, half of them green's; so many of its own were copies of callers'."""
    return {
        name: {
            "callers": {"requests": callers // 2 + more, "mirrored": more},
            "samples": {"requests": samples // 2, "mirrored": 0},
            "apart": {"requests": 1000, "mirrored": 0},
        }
        for name, more in (("blue", 0), ("green", copies))
    }


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is measured over hardly any time: one request of a caller is enough."""
    monkeypatch.setattr(traffic, "NOTICE_S", 0.0)


@pytest.mark.parametrize(
    ("now", "goes"),
    [
        (tallies(0, 0), True),
        (tallies(0, 100), True),
        (tallies(0, 0, copies=50), True),  # a copy is no request of a caller
        (tallies(10, 10), True),
        (tallies(10, 12), False),  # until there are as many of callers
        (tallies(1000, 10), True),
    ],
)
def test_samples_keep_pace_with_callers(at_once: None, now: Tallies, goes: bool) -> None:
    """And wait for nobody where callers send nothing; what they address does not count."""
    samples = Replay(NOBODY, [{}])  # never entered: nothing is sent
    Traffic(samples, tallies(0, 0)).observe(now)
    assert samples.going is goes


def test_each_step_begins_anew(at_once: None) -> None:
    """Samples of an earlier step are not counted."""
    samples = Replay(NOBODY, [{}])
    traffic = Traffic(samples, tallies(0, 0))
    traffic.begin(tallies(100, 1000))
    traffic.observe(tallies(200, 1050))
    assert samples.going


def test_a_rate_takes_its_time() -> None:
    """Too soon after the last look nothing changes."""
    samples = Replay(NOBODY, [{}])
    Traffic(samples, tallies(0, 0)).observe(tallies(0, 0))
    assert not samples.going


@pytest.mark.attack("the endpoint refuses one of a canary's samples, so that no other is sent")
def test_a_refused_sample_ends_nothing(at_once: None) -> None:
    """The next one is sent; what refuses them all is told, and is no verdict on green."""
    refused = UserError(Problem("no-permission", "status 403"))
    answers: list[UserError | None] = [refused, None]

    @contextmanager
    def sampling() -> Iterator[Callable[[str], None]]:
        def send(body: str) -> None:
            if answer := answers[0] if len(answers) == 1 else answers.pop(0):
                raise answer

        yield send

    def wait_until(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    router: Any = SimpleNamespace(sampling=sampling)
    with Replay(router, [{}]) as samples:
        samples.go(True)
        wait_until(lambda: samples.sent > 0)
        samples.check()
        answers[:] = [refused]
        wait_until(lambda: samples.refused is not None)
        with pytest.raises(UserError, match="no-permission"):
            samples.check()
