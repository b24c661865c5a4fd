"""When samples are sent: by the router's tallies, without a router."""

from __future__ import annotations

import pytest

from ml.release.canary import traffic
from ml.release.canary.traffic import Replay, Traffic

Tallies = dict[str, dict[str, int]]


def tallies(blue: int, green: int, copies: int = 0) -> Tallies:
    """Requests answered by each; so many of green's were copies."""
    return {
        "blue": {"requests": blue, "mirrored": 0},
        "green": {"requests": green, "mirrored": copies},
    }


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is told apart over no time at all: one request more than was sent is enough."""
    monkeypatch.setattr(traffic, "NOTICE_S", 0.0)


@pytest.mark.parametrize(
    ("now", "sent", "goes"),
    [
        (tallies(0, 0), 0, True),
        (tallies(90, 10), 100, True),  # all of it was its own
        (tallies(90, 10), 0, False),
        (tallies(100, 50, copies=50), 100, True),  # its own, and copies of it
        (tallies(1000, 0), 0, True),  # real, but none comes to green
        (tallies(1000, 20), 0, True),
        (tallies(1000, 60), 0, False),
        (tallies(100, 0), 0, False),  # that may be chance
    ],
)
def test_samples_are_sent_while_green_would_wait(
    at_once: None, now: Tallies, sent: int, goes: bool
) -> None:
    """Too few real requests, or too few of them for green, which is due one of ten."""
    samples = Replay(0, [{}])  # never entered: nothing is sent
    traffic = Traffic(samples, "green", tallies(0, 0))
    traffic.begin(tallies(0, 0), 10)
    samples.sent = sent
    traffic.look(now)
    assert samples.going is goes


def test_before_the_first_step_green_is_due_nothing(at_once: None) -> None:
    """Real traffic alone is looked for."""
    samples = Replay(0, [{}])
    traffic = Traffic(samples, "green", tallies(0, 0))
    traffic.look(tallies(1000, 0))
    assert not samples.going


def test_a_rate_takes_its_time() -> None:
    """Too soon after the last look nothing changes."""
    samples = Replay(0, [{}])
    Traffic(samples, "green", tallies(0, 0)).look(tallies(0, 0))
    assert not samples.going
